"""Curves: the share of the ranks' work that is of use, against what it depends on (charts)."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from tpviz.charts.base import OUTSIDE, SMALL, Panel, apart, chart, frame, ticks, write
from tpviz.diagrams import grammar
from tpviz.diagrams.drawing import Drawing
from tpviz.i18n import _


class Curve(NamedTuple):
    """A line, named at its end: shares between 0 and 1, one for each value of its panel."""

    name: str
    shares: Sequence[float]
    limit: float | None = None
    """What it cannot pass, drawn as a thin line."""


class Against(NamedTuple):
    """A panel: what stands along its axis, on a scale on which doubling is a step, and its curves."""

    label: str
    values: Sequence[float]
    marked: Sequence[float]
    """The values that are written below the axis."""
    curves: Sequence[Curve]


# Blue, vermillion and bluish green, each with a line and a mark of its own.
_STYLES = (("#0072b2", "-", "o"), ("#b04c00", "--", "s"), ("#00704f", ":", "^"))
_LEFT, _WIDTH, _APART, _TOP, _HEIGHT = 116, 214, 392, 92, 330
_NEAREST = 0.09
"""Names at the ends of curves are at least so far apart, as a share of the panel."""


def efficiencies(panels: Sequence[Against], title: str) -> Drawing:
    """Draw panels side by side: speed-up divided by the number of ranks, from 0 to 100%."""
    spoken = "; ".join(
        _("against {label}, {curves}").format(
            label=panel.label,
            curves=", ".join(
                _("{name} from {first:.0%} to {last:.0%}").format(
                    name=curve.name, first=curve.shares[0], last=curve.shares[-1]
                )
                + ("" if curve.limit is None else _(" of at most {limit:.0%}").format(limit=curve.limit))
                for curve in panel.curves
            ),
        )
        for panel in panels
    )
    alt = _("Efficiency of TP, {title}: {spoken}.").format(title=title, spoken=spoken)

    def draw(figure: Figure) -> None:
        write(figure, 30, 36, title, weight="bold")
        for number, panel in enumerate(panels):
            axes = Panel(_LEFT + number * _APART, _TOP, _WIDTH, _HEIGHT).axes(figure, ylim=(0, 1))
            _against(axes, panel)
            if number == 0:
                axes.set_ylabel(_("efficiency"), labelpad=8)

    return chart(_TOP + _HEIGHT + 100, alt, draw)


def _against(axes: Axes, panel: Against) -> None:
    frame(axes)
    places = np.log2(panel.values)
    for curve, (color, line, marker) in zip(panel.curves, _STYLES, strict=False):
        axes.plot(places, curve.shares, line, color=color, linewidth=4, marker=marker, markersize=10, clip_on=False)
        if curve.limit is not None:
            axes.axhline(curve.limit, color=color, linewidth=2, linestyle=(0, (2, 3)))
    heights = apart([curve.shares[-1] for curve in panel.curves], _NEAREST)
    for curve, height, (color, _line, _marker) in zip(panel.curves, heights, _STYLES, strict=False):
        at = (places[-1], height)
        axes.annotate(curve.name, at, (14, 0), va="center", size=SMALL, color=color, weight="bold", **OUTSIDE)
    ticks(axes, "x", [float(np.log2(value)) for value in panel.marked], [f"{value:,.0f}" for value in panel.marked])
    ticks(axes, "y", [0, 0.25, 0.5, 0.75, 1], ["0", "25%", "50%", "75%", "100%"])
    axes.set_xlabel(panel.label, labelpad=8, color=grammar.INK)
