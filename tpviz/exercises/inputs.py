"""What answers are tried on (checks): the running example and other small integers, no two shards alike."""

import runpy
from collections.abc import Sequence

import torch

import tpviz
from tpviz import example as _example
from tpviz.exercises.pattern import Case
from tpviz.i18n import _

# A copy of its own: a learner may write into the tensors of tpviz.example.
_own: dict[str, torch.Tensor] = runpy.run_path(_example.__file__)
X, X4, W, W2, dY, dY4 = (_own[name] for name in ("X", "X4", "W", "W2", "dY", "dY4"))


def integers(rows: int, columns: int, start: int = 0) -> torch.Tensor:
    """A matrix of small integers without a pattern that a mistake could hide in; another start, other integers."""
    count = start + torch.arange(rows * columns)
    return ((count * 7 + count * count * 3) % 13 - 5).float().reshape(rows, columns)


def example(*args: object, ranks: int) -> Case:
    """The running example."""
    return Case(args, _("the running example on {ranks} ranks").format(ranks=ranks), ranks)


def product(*args: object, sizes: tuple[int, int, int], ranks: int) -> Case:
    """Another product, of a rows × inner matrix and an inner × columns matrix."""
    rows, inner, columns = sizes
    text = _("a product of {rows}×{inner} and {inner}×{columns} on {ranks} ranks")
    return Case(args, text.format(rows=rows, inner=inner, columns=columns, ranks=ranks), ranks)


def after(collective: str, before: Sequence[Sequence[int]], **options: int) -> list[list[int]]:
    """What each rank holds after the collective, as it really runs; before it rank i holds the i-th of these lists."""

    def program(comm: tpviz.Communicator) -> torch.Tensor:
        result: torch.Tensor = getattr(comm, collective)(torch.tensor(before[comm.rank]), **options)
        return result

    return [output.tolist() for output in tpviz.run(program, ranks=len(before)).outputs]
