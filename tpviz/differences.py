"""How one tensor differs from another: how many entries, where most, and whether by one factor (layouts)."""

from __future__ import annotations

from fractions import Fraction
from typing import NamedTuple

import torch
from torch import Tensor

from tpviz.communicator import check_tensor
from tpviz.i18n import _, ngettext
from tpviz.tables import shape_text

_LONGEST_OFFSET = 8
_LARGEST_DENOMINATOR = 64


class Difference(NamedTuple):
    """What ``difference`` found: numbers, and a sentence that says them."""

    entries: int
    """How many entries each of the two has."""
    differing: int
    """How many of them differ."""
    place: tuple[int, ...]
    """Where they differ most."""
    got: float
    """What is there."""
    expected: float
    """What should be there."""
    factor: float | None
    """What every entry is too large by, where that is one number."""
    offset: tuple[float, ...] | None
    """What every row is off by, where that is the same in all of them (a bias that was added too often)."""

    @property
    def largest(self) -> float:
        """The size of the largest difference."""
        return abs(self.got - self.expected)

    def __repr__(self) -> str:
        """One sentence; where one factor explains all, it names the factor."""
        if not self.differing:
            message = ngettext("The {entries} entry is equal.", "All {entries} entries are equal.", self.entries)
            return message.format(entries=self.entries)
        if self.factor is not None:
            return _("Every entry is {factor} times what it should be.").format(factor=factor_text(self.factor))
        if self.offset is not None:
            offset = ", ".join(map(number_text, self.offset))
            return _("Every row is off by ({offset}).").format(offset=offset)
        message = ngettext(
            "{differing} of {entries} entries differs, at {place}: {got}, where {expected} is expected.",
            "{differing} of {entries} entries differ, most at {place}: {got}, where {expected} is expected.",
            self.differing,
        )
        numbers = {"got": number_text(self.got), "expected": number_text(self.expected)}
        return message.format(differing=self.differing, entries=self.entries, place=list(self.place), **numbers)


def difference(got: Tensor, expected: Tensor) -> Difference:
    """Compare two tensors of one shape entry by entry; not-a-number equals itself.

    ``factor`` is found up to the rounding of the dtype; ``differing`` counts what is not equal to the bit.
    """
    for tensor in (got, expected):
        check_tensor("difference", tensor)
        if tensor.is_complex():
            raise TypeError(_("difference compares real numbers; of complex ones compare .real and .imag."))
    if got.shape != expected.shape:
        message = _("{got} cannot be compared with {expected}, entry by entry: the shapes must be equal.")
        raise ValueError(message.format(got=shape_text(got.shape), expected=shape_text(expected.shape)))
    mine, theirs = (tensor.detach().to("cpu", torch.float64) for tensor in (got, expected))
    unequal = (mine != theirs) & ~(mine.isnan() & theirs.isnan())
    differing = int(unequal.sum())
    if not differing:
        return Difference(got.numel(), 0, (), 0.0, 0.0, None, None)
    # Where either is infinite or not a number, that is the largest difference.
    size = torch.where(unequal, (mine - theirs).abs().nan_to_num(torch.inf, torch.inf), -1.0)
    place = tuple(int(i) for i in torch.unravel_index(size.argmax(), size.shape))
    tolerance = max(_rounding(got.dtype), _rounding(expected.dtype))
    return Difference(
        got.numel(),
        differing,
        place,
        mine[place].item(),
        theirs[place].item(),
        _factor(mine, theirs, tolerance),
        _offset(mine, theirs, tolerance),
    )


def _rounding(dtype: torch.dtype) -> float:
    """How far a few additions may round, relative to the numbers."""
    return 8 * torch.finfo(dtype).eps if dtype.is_floating_point else 0.0


def _factor(mine: Tensor, theirs: Tensor, tolerance: float) -> float | None:
    """The one number that the first is a multiple of the second by; a lone entry always is one, so it tells nothing."""
    largest = theirs.abs().argmax()
    unit = theirs.flatten()[largest].item()
    if theirs.count_nonzero() < 2 or not torch.isfinite(mine).all() or not torch.isfinite(theirs).all():
        return None
    factor: float = mine.flatten()[largest].item() / unit
    found = torch.allclose(mine, factor * theirs, tolerance, tolerance * abs(unit))
    return factor if found and abs(factor - 1) > tolerance else None  # rounding is no factor


def _offset(mine: Tensor, theirs: Tensor, tolerance: float) -> tuple[float, ...] | None:
    if mine.ndim < 2 or mine.shape[-1] > _LONGEST_OFFSET:
        return None
    off = (mine - theirs).reshape(-1, mine.shape[-1])
    rounding = tolerance * theirs.abs().max().item()
    alike = len(off) > 1 and torch.allclose(off, off[0].expand_as(off), tolerance, rounding)
    return tuple(off[0].tolist()) if alike else None


def number_text(number: float) -> str:
    """A number in a sentence: whole numbers without a point, a minus as wide as a plus."""
    return f"{number + 0.0:.6g}".replace("-", "−")  # adding 0.0 makes a zero of −0


def factor_text(factor: float) -> str:
    """A factor in a sentence: 2, 1/2, 0.35."""
    fraction = Fraction(factor).limit_denominator(_LARGEST_DENOMINATOR)
    if fraction.denominator == 1 or abs(float(fraction) - factor) > 1e-6 * abs(factor):
        return number_text(factor)
    return str(fraction).replace("-", "−")
