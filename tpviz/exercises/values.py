"""What an answer may be (checks): copies, a comparison that nothing can fool, and words for any value.

A learner's value may be of any type, and its methods may raise or lie. So nothing here calls a method of a value whose
type is not known exactly, and no value is printed that could be long.
"""

import math
from types import EllipsisType
from typing import Any, TypeGuard

import torch

from tpviz.i18n import _, ngettext
from tpviz.tables import shape_text

_LONGEST_TEXT = 40
_LONGEST_LIST = 120
_LARGEST_INT = 10**12
_DEEPEST = 4
_MOST = 64
"""How deep and how far a learner's list is looked into: it may hold itself."""


def copied(value: Any) -> Any:
    """The same value, sharing no memory with it: what an answer writes into is its own."""
    if isinstance(value, torch.Tensor):
        return value.clone()
    if isinstance(value, list | tuple):
        return type(value)(copied(item) for item in value)
    return value


def is_tensor(value: object) -> TypeGuard[torch.Tensor]:
    """Whether it is a plain tensor: a subclass may answer every question as it likes, a nested one has no shape."""
    return type(value) in (torch.Tensor, torch.nn.Parameter) and not value.is_nested  # type: ignore[attr-defined]


def is_number(value: object) -> TypeGuard[int | float]:
    """Whether it is a plain number. True is not one, though Python takes it for 1."""
    return type(value) in (int, float)


def has_hole(value: object, depth: int = _DEEPEST) -> bool:
    """Whether it is, or holds, the `...` of a stub."""
    if type(value) is EllipsisType:
        return True
    items: list[Any] = []
    if type(value) is dict:
        items = list(value.values())
    elif type(value) in (list, tuple):
        items = list(value)  # type: ignore[call-overload]
    return depth > 0 and any(has_hole(item, depth - 1) for item in items[:_MOST])


def plain(value: object, depth: int = _DEEPEST) -> object:
    """A short tuple or tensor as the list that it means, 2.0 as 2; everything else as it is."""
    if type(value) is float and value.is_integer():
        return int(value)
    if is_tensor(value) and value.dim() > 0 and value.numel() <= _MOST:
        numbers = _numbers(value)
        return value if numbers is None else plain(numbers.tolist())
    if type(value) in (list, tuple) and depth > 0:
        items: list[object] = list(value)  # type: ignore[call-overload]
        return [plain(item, depth - 1) for item in items[:_MOST]] + items[_MOST:]
    return value


def same(expected: object, got: object, depth: int = _DEEPEST) -> bool:
    """Whether the answer is what it should be: the type, the shape, the dtype and every entry; nothing broadcasts."""
    if is_tensor(expected):
        return is_tensor(got) and _same_tensor(expected, got)
    if is_number(expected):
        return type(got) is type(expected) and got == expected
    if type(expected) is str:
        return type(got) is str and _word(got) == _word(expected)
    if isinstance(expected, list | tuple) and type(expected) in (list, tuple):
        if type(got) is not type(expected) or len(got) != len(expected) or depth == 0:
            return False
        return all(same(a, b, depth - 1) for a, b in zip(expected, got, strict=True))
    return type(expected) is type(got) and expected is got


def _word(text: str) -> str:
    """A word however it is written: AllReduce is all_reduce."""
    return "".join(character for character in text.casefold() if character.isalnum())


def _same_tensor(expected: torch.Tensor, got: torch.Tensor) -> bool:
    if got.shape != expected.shape or got.dtype != expected.dtype:
        return False
    numbers = _numbers(got)
    # Two nan are one outcome, though not equal: a mistake that computes one is recognised by it.
    return numbers is not None and bool(((numbers == expected) | (numbers != numbers) & (expected != expected)).all())


def _numbers(tensor: torch.Tensor) -> torch.Tensor | None:
    """The entries of a small tensor, on its own; None where it has none (it lies on "meta", it left its `vmap`)."""
    try:
        entries = torch.Tensor.detach(tensor).tolist()
    except (RuntimeError, NotImplementedError):
        return None
    return torch.tensor(entries, dtype=tensor.dtype).reshape(tensor.shape)


def first_wrong(expected: torch.Tensor, got: torch.Tensor) -> tuple[tuple[int, ...], float, float] | None:
    """The first place where two tensors of one shape differ, with what should be and what is there."""
    numbers = _numbers(got)
    if numbers is None:
        return None
    index = tuple((numbers != expected).nonzero()[0].tolist())
    return index, expected[index].item(), numbers[index].item()


# Words


def number(value: complex) -> str:
    """A number as text: whole numbers without a point, a minus sign as wide as a plus."""
    if type(value) is int:
        text = str(value) if abs(value) < _LARGEST_INT else _("a very large number")
    elif type(value) is float and math.isfinite(value):
        text = str(int(value)) if value.is_integer() and abs(value) < _LARGEST_INT else f"{value:.9g}"
    else:
        text = str(value)
    return text.replace("-", "−")


def place(index: tuple[int, ...]) -> str:
    """An entry's place in words."""
    if len(index) == 2:
        return _("row {row}, column {column}").format(row=index[0], column=index[1])
    return _("position {index}").format(index=", ".join(map(str, index)))


def type_name(value: object) -> str:
    """The name of a value's type: `__name__` itself may be a property that raises."""
    name: str = type.__dict__["__name__"].__get__(type(value))
    return name[:_LONGEST_TEXT]


def shortened(text: str, longest: int = _LONGEST_TEXT) -> str:
    """The beginning of a text that may be long."""
    return text if len(text) <= longest else text[: longest - 1] + "…"


def in_words(value: object) -> str:
    """Any value in a few words, none of them its own."""
    if value is None or type(value) is bool:
        return str(value)
    if type(value) in (int, float, complex):
        return number(value)  # type: ignore[arg-type]
    if type(value) is str:
        return _("the text “{text}”").format(text=shortened(value))
    if is_tensor(value):
        if value.dim() == 0:
            return _("a tensor that holds one number")
        return _("a tensor of shape {shape}").format(shape=shape_text(value.shape))
    if type(value) is list:
        return ngettext("a list of {count}", "a list of {count}", len(value)).format(count=len(value))
    if type(value) is tuple:
        return ngettext("a tuple of {count}", "a tuple of {count}", len(value)).format(count=len(value))
    return _("an object of type {name}").format(name=type_name(value))


def shown(value: object, depth: int = 2) -> str:
    """A short list of numbers as it is written; everything else in words."""
    if type(value) is list and 0 < len(value) <= 8 and depth > 0:
        return shortened("[" + ", ".join(shown(item, depth - 1) for item in value) + "]", _LONGEST_LIST)
    return in_words(value)
