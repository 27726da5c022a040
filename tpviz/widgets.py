"""Widgets: the diagrams with something to move (widgets). `compute(parameters)`, `draw(result)`, and a thin shell.

The shell knows nothing of what it shows: it hands the controls' values to `compute`, hands what that gives to `draw`,
and puts the picture below the controls. All that is right or wrong is in the two functions, which need no browser.

Every control is a slider. JupyterLab takes the arrow keys of a focused menu, radio button or button for its own
commands, and leaves a slider its keys; so a slider is what a learner can use without a mouse.
"""

import html
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import ipywidgets
import torch
import traitlets
from torch import Tensor

import tpviz
from tpviz import diagrams
from tpviz.diagrams import Drawing, grammar
from tpviz.example import X4, W, X
from tpviz.i18n import _

RANKS = (1, 2, 4, 8)


class Shell(ipywidgets.VBox):  # type: ignore[misc]
    """Controls, and below them the picture of what they say.

    Where no kernel runs, in a notebook as it is stored, the picture stays. An error in `compute` or `draw` is shown in
    the picture's place, until a control is moved on.
    """

    def __init__(
        self,
        compute: Callable[..., Any],
        draw: Callable[[Any], Drawing],
        controls: dict[str, ipywidgets.ValueWidget],
    ) -> None:
        self.controls = controls
        self.picture = ipywidgets.HTML()
        self._compute, self._draw = compute, draw
        self._update()
        for control in controls.values():
            control.observe(self._update, "value")
        super().__init__([*controls.values(), self.picture])

    def _update(self, _change: object = None) -> None:
        """Compute and draw for what the controls say now."""
        try:
            drawing = self._draw(self._compute(**{name: control.value for name, control in self.controls.items()}))
        except Exception as error:
            sentence = _("No picture for this choice. {kind}: {error}").format(kind=type(error).__name__, error=error)
            self.alt, self.picture.value = sentence, _card(sentence)
        else:
            self.alt, self.picture.value = drawing.alt, drawing.html

    def _repr_mimebundle_(self, **kwargs: Any) -> dict[str, Any]:
        """The widget; beside it what it shows now, for where no kernel runs."""
        bundle: dict[str, Any] = super()._repr_mimebundle_(**kwargs)
        return {**bundle, "text/html": self.picture.value, "text/plain": self.alt}


def _card(sentence: str) -> str:
    """A sentence where a picture would be."""
    style = (
        f"background:{grammar.CARD};color:{grammar.INK};border:1px solid {grammar.CARD_EDGE};border-radius:8px;"
        "padding:12px 16px;max-width:46em;white-space:pre-wrap;line-height:1.5"
    )
    return f'<div style="{style}">✗ {html.escape(sentence)}</div>'


# Without `echo_update`, the kernel does not first repeat to the browser what the browser has sent: 4 ms of some 45.
class _NumberSlider(ipywidgets.IntSlider):  # type: ignore[misc]
    """A slider over whole numbers."""

    value = traitlets.CInt().tag(sync=True, echo_update=False)


class _ChoiceSlider(ipywidgets.SelectionSlider):  # type: ignore[misc]
    """A slider over a few choices."""

    index = traitlets.Int().tag(sync=True, echo_update=False)


_LOOK: dict[str, Any] = {
    "style": {"description_width": "7em"},
    "layout": {"width": "26em", "max_width": "100%"},
}


def _number(label: str, last: int, start: int) -> ipywidgets.ValueWidget:
    """A control for the whole numbers from 0 to the last."""
    return _NumberSlider(value=start, min=0, max=last, description=label, **_LOOK)


def _choice(label: str, choices: Sequence[Any], start: object) -> ipywidgets.ValueWidget:
    """A control for a few choices."""
    return _ChoiceSlider(options=choices, value=start, description=label, **_LOOK)


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
        "row": _number(_("row of Y"), X.shape[0] - 1, row),
        "column": _number(_("column of Y"), W.shape[1] - 1, column),
        "ranks": _choice(_("ranks"), RANKS, 2),
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
    return Shell(compute_work, draw_work, {"ranks": _choice(_("ranks"), RANKS, 2)})


# A collective


@dataclass(frozen=True)
class Exchange:
    """What the ranks held before a collective, and the run of it."""

    before: list[Tensor]
    run: tpviz.Run


COLLECTIVES: dict[str, Callable[[tpviz.Communicator, Tensor], Tensor]] = {
    "Broadcast": lambda comm, x: comm.broadcast(x, src=0),
    "AllGather": lambda comm, x: comm.all_gather(x),
    "AllReduce": lambda comm, x: comm.all_reduce(x),
    "ReduceScatter": lambda comm, x: comm.reduce_scatter(x),
    "AllToAll": lambda comm, x: comm.all_to_all(x, split_dim=0, concat_dim=0),
}


def compute_collective(collective: str, ranks: int) -> Exchange:
    """Give each rank as many numbers as there are ranks (0 1, 10 11 on two), and run the collective on them."""

    def start(comm: tpviz.Communicator) -> Tensor:
        return 10 * comm.rank + torch.arange(ranks)

    run = tpviz.run(lambda comm: COLLECTIVES[collective](comm, start(comm)), ranks=ranks)
    return Exchange(tpviz.run(start, ranks=ranks).outputs, run)


def draw_collective(exchange: Exchange) -> Drawing:
    """What each rank held, the collective, and what each holds then."""
    return diagrams.collective(exchange.run.trace[0], exchange.before, exchange.run)


def collectives() -> Shell:
    """Choose a collective and the number of ranks: what does each rank hold before, and what afterwards?"""
    return Shell(
        compute_collective,
        draw_collective,
        {
            "collective": _choice(_("collective"), tuple(COLLECTIVES), "AllGather"),
            "ranks": _choice(_("ranks"), RANKS[1:], 2),
        },
    )
