"""Widgets of one layer's forward: which rank computes what (widgets)."""

from dataclasses import dataclass

import ipywidgets
from torch import Tensor

import tpviz
from tpviz import diagrams
from tpviz.diagrams import Drawing
from tpviz.example import X4, W, X
from tpviz.i18n import _
from tpviz.widgets.shell import RANKS, Shell, choice, number

# One entry of a product


@dataclass(frozen=True)
class Entry:
    """A layer's forward on some ranks, and the entry of Y that is looked at."""

    run: tpviz.Run
    row: int
    column: int

    @property
    def products(self) -> Tensor:
        """The products that the entry is the sum of."""
        return X[self.row] * W[:, self.column]


def compute_column_entry(row: int, column: int, ranks: int) -> Entry:
    """Run the running example with W cut by columns."""
    return Entry(tpviz.run(lambda comm: X @ tpviz.shard(W, 1, comm), ranks=ranks), row, column)


def draw_column_entry(entry: Entry) -> Drawing:
    """The product on its ranks; the entry's row, column and owner light up."""
    return diagrams.column_parallel(X, W, entry.run, entry=(entry.row, entry.column))


def compute_row_entry(row: int, column: int, ranks: int) -> Entry:
    """Run the running example with W cut by rows and X by columns."""
    return Entry(tpviz.run(lambda comm: tpviz.shard(X, 1, comm) @ tpviz.shard(W, 0, comm), ranks=ranks), row, column)


def draw_row_entry(entry: Entry) -> Drawing:
    """The entry, opened into its products, each in the lane of the rank that computes it."""
    return diagrams.inner_product(X, W, entry.products, entry.run, X @ W, entry=(entry.row, entry.column))


def _entry_controls(row: int, column: int) -> dict[str, ipywidgets.ValueWidget]:
    return {
        "row": number(_("row of Y"), X.shape[0] - 1, row),
        "column": number(_("column of Y"), W.shape[1] - 1, column),
        "ranks": choice(_("ranks"), RANKS, 2),
    }


def column_entry() -> Shell:
    """Choose an entry of Y and the number of ranks: who computes it, with W cut by columns?"""
    return Shell(compute_column_entry, draw_column_entry, _entry_controls(0, 5))


def row_entry() -> Shell:
    """Choose an entry of Y and the number of ranks: who computes which of its products, with W cut by rows?"""
    return Shell(compute_row_entry, draw_row_entry, _entry_controls(1, 3))


# The work of a layer, cut in two ways


def compute_work(ranks: int) -> tuple[tpviz.Run, tpviz.Run]:
    """Run the layer on 4 rows as ZeRO-3 does, each rank with its rows, and column-parallel, each with its columns."""
    return (
        tpviz.run(lambda comm: tpviz.shard(X4, 0, comm) @ comm.all_gather(tpviz.shard(W, 0, comm), dim=0), ranks=ranks),
        tpviz.run(lambda comm: X4 @ tpviz.shard(W, 1, comm), ranks=ranks),
    )


def draw_work(runs: tuple[tpviz.Run, tpviz.Run]) -> Drawing:
    """The entries of Y in the colours of who computes them, both ways."""
    return diagrams.two_cuts(*runs)


def work() -> Shell:
    """Choose the number of ranks: how is the work of one layer divided, by ZeRO-3 and by the column split?"""
    return Shell(compute_work, draw_work, {"ranks": choice(_("ranks"), RANKS, 2)})
