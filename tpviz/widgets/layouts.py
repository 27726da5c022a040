"""A widget of the layouts: may a function work on partial sums? (widgets)."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

import tpviz
from tpviz import diagrams
from tpviz.diagrams import Drawing
from tpviz.i18n import _
from tpviz.widgets.shell import Shell, choice

FUNCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "ReLU": torch.relu,
    "×2": lambda z: 2 * z,
    "+10": lambda z: z + 10,
    "square": torch.square,
}
_LARGEST = 4


@dataclass(frozen=True)
class Addends:
    """A function on partial sums: how far f(a) + f(b) is from f(a + b), and one pair worked out."""

    function: str
    errors: Tensor
    point: tuple[int, int]
    values: list[float]


def compute_addends(function: str, z0: int, z1: int) -> Addends:
    """Let two ranks apply the function to each pair of addends from -4 to 4, and once to the sum."""
    f = FUNCTIONS[function]
    numbers = torch.arange(-_LARGEST, _LARGEST + 1.0)

    def addends(comm: tpviz.Communicator) -> Tensor:
        """A row for each b, a column for each a."""
        grid = numbers if comm.rank == 0 else numbers[:, None]
        return grid.expand(len(numbers), len(numbers)).clone()

    apart = tpviz.run(lambda comm: comm.all_reduce(f(addends(comm)))).outputs[0]
    together = tpviz.run(lambda comm: f(comm.all_reduce(addends(comm)))).outputs[0]
    a, b = torch.tensor(float(z0)), torch.tensor(float(z1))
    values = [f(a), f(b), f(a) + f(b), a + b, f(a + b)]
    point = z0 + _LARGEST, z1 + _LARGEST
    return Addends(function, apart - together, point, [value.item() for value in values])


def draw_addends(found: Addends) -> Drawing:
    """The map, and the pair."""
    axis = range(-_LARGEST, _LARGEST + 1)
    return diagrams.addends_map(found.errors, axis, found.point, found.values, function=found.function)


def addends() -> Shell:
    """Choose a function and what two ranks hold of a number: is the function of the sum the sum of the functions?"""
    places = tuple(range(-_LARGEST, _LARGEST + 1))
    return Shell(
        compute_addends,
        draw_addends,
        {
            "function": choice(_("function"), tuple(FUNCTIONS), "ReLU"),
            "z0": choice("Z₀", places, 1),
            "z1": choice("Z₁", places, -2),
        },
    )
