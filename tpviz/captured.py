"""What a program finds outside of itself: each rank has its own copy, as a process would (communicators).

Real ranks are processes: a tensor that the program takes from its notebook, a closure or its arguments exists once in
each. So n ranks must not add into one captured leaf's ``.grad``, and a write in place must not reach the others.

Where a program refers to something that holds tensors or a random generator (a global, a closure's cell, default
values, an attribute of a class or of a module), that place is remembered. While a rank runs, the places hold the rank's
own copies; they change with the baton, as the random streams do, and hold the originals again after the run. What holds
no tensors is shared.
"""

from __future__ import annotations

import copy
import dis
import functools
import sys
import sysconfig
import types
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from tpviz.communicator import Communicator
from tpviz.i18n import _

_LIBRARIES = tuple({sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")})
_TPVIZ = __file__.removesuffix("captured.py")
# Objects of other libraries (a figure, a logger, a path) hold no tensors of a rank, and some of them hold the world.
_SEARCHED_LIBRARIES = ("torch", "tpviz", "collections", "types")

_ATOMS = {int, float, complex, str, bytes, bool, type(None), types.ModuleType, types.BuiltinFunctionType}

Place = tuple[Any, str]
"""A namespace (a dict) and a name in it, or an object and the name of an attribute."""


class Captured:
    """The places through which a program reaches tensors, and the arguments that it is given."""

    def __init__(self, program: Callable[..., Any], args: tuple[Any, ...]) -> None:
        self._places: list[Place] = []
        self._names: list[str] = []
        """What the program calls the thing in each place."""
        self.rebound = False
        """Whether a function assigns to a global, to a variable of a function around it, or to an attribute."""
        self._tensors: list[Tensor | torch.Generator] = []
        self._visited: dict[int, tuple[object, bool]] = {}  # by id, with the object, which keeps the id valid
        self._program, self._args = program, args
        self._own_program = self._visit(program, getattr(program, "__name__", "program"))
        self._own_args = bool(args) and self._visit(args, "args")
        self.originals = self.values()
        plain = [value for value in self.originals if type(value) is Tensor and not value.requires_grad]
        self._only_tensors = not self._own_program and not self._own_args and len(plain) == len(self.originals)
        self._only_tensors &= len(self._tensors) == len(plain)  # else one tensor stands in two places

    def values(self) -> list[Any]:
        """Return what the places hold now."""
        return [holder[name] if type(holder) is dict else getattr(holder, name) for holder, name in self._places]

    def put(self, values: list[Any]) -> None:
        """Let the places hold these values."""
        for (holder, name), value in zip(self._places, values):  # noqa: B905  strict costs as much as the loop
            if type(holder) is dict:
                holder[name] = value
            else:
                setattr(holder, name, value)

    def copies(self) -> tuple[Callable[..., Any], tuple[Any, ...], list[Any]]:
        """Return a rank's own program, arguments and values of the places; a tensor has one copy in all of them."""
        if self._only_tensors:  # by far the most frequent case, and every rank pays for it
            return self._program, self._args, [tensor.clone() for tensor in self.originals]
        memo: dict[int, Any] = {id(tensor): _own_copy(tensor) for tensor in self._tensors}
        program = _copied(self._program, "the program", memo) if self._own_program else self._program
        args = _copied(self._args, "args", memo) if self._own_args else self._args
        values = zip(self.originals, self._names, strict=True)
        return program, args, [_copied(value, name, memo) for value, name in values]

    def _visit(self, thing: object, name: str) -> bool:
        """Return whether a thing holds tensors; collect the places of functions and classes that it leads to."""
        if type(thing) in _ATOMS:
            return False
        known = self._visited.get(id(thing))
        if known is not None:
            return known[1]
        self._visited[id(thing)] = (thing, False)  # until it is known: for what refers to itself
        if isinstance(thing, (Tensor, torch.Generator)):
            if isinstance(thing, Tensor):
                self._check_leaf(thing, name)
            self._tensors.append(thing)
            holds = True
        elif isinstance(thing, (types.FunctionType, type)):
            self.rebound |= isinstance(thing, types.FunctionType) and _names_of(thing.__code__).rebinds
            for value, spoken, place in _references(thing):
                if self._visit(value, spoken):
                    if isinstance(place[0], type):
                        _check_settable(place, spoken)
                    self._places.append(place)
                    self._names.append(spoken)
            holds = False
        else:
            holds = False
            for part in _parts(thing):
                holds = self._visit(part, name) or holds
        self._visited[id(thing)] = (thing, holds)
        return holds

    @staticmethod
    def _check_leaf(tensor: Tensor, name: str) -> None:
        if tensor.requires_grad and not tensor.is_leaf:
            message = _(
                "the program uses {name}, a tensor from outside with a graph behind it, which no other process could"
                " have: give it {name}.detach().clone() instead."
            )
            raise ValueError(message.format(name=name))


def _check_settable(place: Place, name: str) -> None:
    """Refuse a class that lets nobody assign to its attributes, such as an Enum."""
    holder, attribute = place
    try:
        setattr(holder, attribute, getattr(holder, attribute))
    except (AttributeError, TypeError) as error:
        raise _uncopied(name, error) from error


def _uncopied(name: str, error: Exception) -> ValueError:
    message = _(
        "the program uses {name}, which holds tensors and cannot be copied for each rank ({error}): give it the tensors"
        " themselves instead, each a .clone()."
    )
    return ValueError(message.format(name=name, error=error))


def _own_copy(tensor: Tensor | torch.Generator) -> Tensor | torch.Generator:
    if isinstance(tensor, torch.Generator):
        return tensor.clone_state()
    if type(tensor) is Tensor:
        return tensor.detach().clone().requires_grad_() if tensor.requires_grad else tensor.clone()
    if type(tensor) is nn.Parameter:
        return nn.Parameter(tensor.detach().clone(), tensor.requires_grad)
    return copy.deepcopy(tensor)


def _copied(value: Any, name: str, memo: dict[int, Any]) -> Any:
    """Return ``copy.deepcopy(value, memo)``, without its cost for tensors and tuples of tensors, which most are."""
    known = memo.get(id(value))
    if known is not None:
        return known
    if type(value) is tuple:
        known = memo[id(value)] = tuple([_copied(item, name, memo) for item in value])
        return known
    if type(value) is list:
        known = memo[id(value)] = []  # before its items, one of which may lead back to it
        known.extend([_copied(item, name, memo) for item in value])
        return known
    try:
        return copy.deepcopy(value, memo)
    except Exception as error:  # an open file, a lock: whatever the learner's object holds
        raise _uncopied(name, error) from error


def _references(thing: types.FunctionType | type) -> Iterator[tuple[object, str, Place]]:
    """Yield what a function or a class refers to, the name it has there, and the place; nothing for a library's."""
    if isinstance(thing, type):
        for owner in thing.__mro__:
            if not _is_library_module(owner.__module__):
                for name, value in list(vars(owner).items()):
                    yield getattr(value, "__func__", getattr(value, "fget", value)), name, (owner, name)
        return
    if is_library_file(thing.__code__.co_filename):
        return
    names = _names_of(thing.__code__)
    modules = [sys.modules[name] for name in names.imports if name in sys.modules]
    for name in names.globals:
        if name in thing.__globals__:
            value = thing.__globals__[name]
            if type(value) is types.ModuleType:
                modules.append(value)
            else:
                yield value, name, (thing.__globals__, name)
    for cell, name in zip(thing.__closure__ or (), thing.__code__.co_freevars, strict=True):
        try:
            value = cell.cell_contents
        except ValueError:  # not yet assigned
            continue
        if type(value) is types.ModuleType:
            modules.append(value)
        else:
            yield value, name, (cell, "cell_contents")
    yield from _module_references(modules, names.attributes)
    if thing.__defaults__ is not None:
        yield thing.__defaults__, thing.__name__, (thing, "__defaults__")
    if thing.__kwdefaults__ is not None:
        yield thing.__kwdefaults__, thing.__name__, (thing, "__kwdefaults__")


def _module_references(modules: list[types.ModuleType], names: frozenset[str]) -> Iterator[tuple[object, str, Place]]:
    """Yield what modules hold under these names, and the modules within them; of libraries, tpviz.example only."""
    seen = []
    while modules:
        module = modules.pop()
        namespace = vars(module)
        if module.__name__ == "tpviz":
            namespace = {"example": namespace["example"]} if "example" in namespace else {}
        elif module in seen or (module.__name__ != "tpviz.example" and _is_library_module(module.__name__)):
            continue
        seen.append(module)
        for name in names & namespace.keys():
            value = namespace[name]
            if type(value) is types.ModuleType:
                modules.append(value)
            else:
                yield value, f"{module.__name__}.{name}", (namespace, name)


def _parts(thing: object) -> Iterator[object]:
    """Yield what a container, a bound function or an object holds."""
    if isinstance(thing, Communicator):  # leads to its run, and to all of it
        return
    if isinstance(thing, dict):
        yield from thing.keys()
        yield from thing.values()
    elif isinstance(thing, (list, tuple, set, frozenset)):
        yield from thing
    elif isinstance(thing, types.MethodType):
        yield thing.__func__
        yield thing.__self__
    elif type(thing).__module__ == "functools":  # partial, cached_property, what cache makes of a function
        yield from (getattr(thing, name, None) for name in ("func", "args", "keywords", "__wrapped__"))
    elif type(thing).__module__.partition(".")[0] in _SEARCHED_LIBRARIES or not _is_library_module(
        type(thing).__module__
    ):
        yield type(thing)
        yield from getattr(thing, "__dict__", {}).values()
        for owner in type(thing).__mro__:
            slots = vars(owner).get("__slots__", ())
            yield from (getattr(thing, name, None) for name in ([slots] if isinstance(slots, str) else slots))


class _Names(NamedTuple):
    """What a function, and the functions written inside of it, look up and assign outside of themselves."""

    globals: frozenset[str]
    attributes: frozenset[str]
    imports: frozenset[str]
    rebinds: bool


_known_names: dict[int, tuple[types.CodeType, _Names]] = {}  # by id, since to hash a code object is slow


def _names_of(code: types.CodeType) -> _Names:
    known = _known_names.get(id(code))
    if known is not None:
        return known[1]
    instructions = list(dis.get_instructions(code))
    names = {i.argval for i in instructions if i.opname.startswith("LOAD_") and i.opname.endswith(("GLOBAL", "NAME"))}
    attributes = {i.argval for i in instructions if i.opname in ("LOAD_ATTR", "LOAD_METHOD", "IMPORT_FROM")}
    imports = {i.argval for i in instructions if i.opname == "IMPORT_NAME"}
    rebinds = any(
        i.opname in ("STORE_GLOBAL", "STORE_ATTR") or (i.opname == "STORE_DEREF" and i.argval in code.co_freevars)
        for i in instructions
    )
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            inner = _names_of(constant)
            names |= inner.globals
            attributes |= inner.attributes
            imports |= inner.imports
            rebinds = rebinds or inner.rebinds
    if len(_known_names) > 1000:  # a kernel in which cells run again and again
        _known_names.clear()
    result = _Names(frozenset(names), frozenset(attributes), frozenset(imports), rebinds)
    _known_names[id(code)] = (code, result)
    return result


@functools.lru_cache(maxsize=8192)
def is_library_file(filename: str) -> bool:
    """Return whether a file belongs to Python, to an installed package or to tpviz, not to the learner."""
    # What a virtual environment lies in may itself be the learner's folder: only its packages are libraries.
    return filename.startswith((*_LIBRARIES, _TPVIZ))


@functools.lru_cache(maxsize=1024)
def _is_library_module(name: str) -> bool:
    if name.partition(".")[0] in sys.stdlib_module_names:
        return True
    return is_library_file(getattr(sys.modules.get(name), "__file__", None) or "")
