"""Maps: how many times as fast a number of ranks is, over the size of a model and of its input (charts)."""

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from tpviz.charts.base import OUTSIDE, SMALL, Look, Panel, chart, frame, legend, ticks, write
from tpviz.diagrams import grammar
from tpviz.diagrams.drawing import Drawing
from tpviz.i18n import _

LEVELS = (1, 1.5, 2, 3, 4, 6, 8, 12, 16)
"""Where one colour ends and the next begins, in every map: the same colour is the same speed."""
_EDGE = "#003d2b"
_SLOWER = Look("#ececec", grammar.NEUTRAL_EDGE, "/")
_GREENS = ("#f2f9e4", "#d9efc0", "#b5e0a5", "#86cc92", "#55b184", "#2c9272", "#127159", "#00503f")
"""From light to dark, for those who tell no green from red as well."""
_HEIGHT = 650
_PANEL = Panel(120, 70, 720, 480)


class Mark(NamedTuple):
    """A known model on the map."""

    name: str
    hidden: float
    tokens: float


def speed_map(
    hidden: Sequence[float],
    tokens: Sequence[float],
    speed_ups: NDArray[np.float64],
    ranks: int,
    machine: str,
    marks: Sequence[Mark] = (),
) -> Drawing:
    """Draw a map of speed-ups, a row for each number of tokens, a column for each hidden size.

    Where it is below 1, so that one rank alone is faster, the map is hatched; a thick line is where both are equal.
    """
    last = next(number for number, level in enumerate(LEVELS) if level >= ranks)
    bands = [_SLOWER, *(Look(fill, _EDGE) for fill in _GREENS[:last])]
    names = [_("slower than 1 rank")]
    names += [_band(low, high) for low, high in pairwise(LEVELS[: last + 1])]
    slower = float((speed_ups < 1).mean())
    alt = _(
        "Map of how many times as fast {ranks} ranks are as 1, on {machine}: from {least:.1f} to {most:.1f}, more to "
        "the right (larger hidden size) and upwards (more tokens); on {slower:.0%} of the map they are slower."
    ).format(ranks=ranks, machine=machine, least=speed_ups.min(), most=speed_ups.max(), slower=slower)

    def draw(figure: Figure) -> None:
        axes = _PANEL.axes(figure)
        _fill(axes, hidden, tokens, speed_ups, bands)
        for mark in marks:
            place = (float(np.log2(mark.hidden)), float(np.log2(mark.tokens)))
            axes.plot(*place, "o", markersize=12, markerfacecolor=grammar.CARD, markeredgecolor="black", mew=3)
            axes.annotate(mark.name, place, (12, 12), size=SMALL, weight="bold", bbox=_LABEL, **OUTSIDE)
        title = _("{ranks} ranks with TP beside 1 rank, on {machine}").format(ranks=ranks, machine=machine)
        write(figure, _PANEL.left, 38, title, weight="bold")
        right = _PANEL.left + _PANEL.width + 40
        legend(figure, right, _PANEL.top, names, bands, step=42)
        below = _PANEL.top + 42 * len(names) + 30
        said = _("the largest: {most:.1f} times\nthick line: as fast as 1 rank\ncircle: a published model")
        write(figure, right, below, said.format(most=speed_ups.max()), size=SMALL, va="top")

    return chart(_HEIGHT, alt, draw)


_LABEL = {"boxstyle": "round,pad=0.15", "facecolor": grammar.CARD, "edgecolor": "none", "alpha": 0.85}


def _fill(
    axes: Axes, hidden: Sequence[float], tokens: Sequence[float], speed_ups: NDArray[np.float64], bands: Sequence[Look]
) -> None:
    x, y = np.log2(hidden), np.log2(tokens)
    edges = [0, *LEVELS[: len(bands)]]
    fills = [band.fill for band in bands]
    axes.contourf(x, y, speed_ups, levels=edges, colors=fills, hatches=[band.hatch or None for band in bands])
    axes.contour(x, y, speed_ups, levels=[1], colors="black", linewidths=5)
    frame(axes)
    axes.grid(visible=False)
    for along, powers in (("x", _whole(x)), ("y", _whole(y))):
        ticks(axes, along, powers, [f"{2**power:,}" for power in powers])
    axes.tick_params("x", pad=14)
    axes.set_xlabel(_("hidden size h"), labelpad=8)
    axes.set_ylabel(_("tokens"), labelpad=8)


def _whole(logarithms: NDArray[np.float64]) -> range:
    return range(round(logarithms[0]), round(logarithms[-1]) + 1)


def _band(low: float, high: float) -> str:
    return _("{low:g} to {high:g} times as fast").format(low=low, high=high)
