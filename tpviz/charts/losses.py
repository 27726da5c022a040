"""Losses: trainings on top of each other, and below, how far each is from the first (charts)."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from tpviz.charts.base import OUTSIDE, SMALL, Panel, apart, chart, frame, ticks, write
from tpviz.diagrams import grammar
from tpviz.diagrams.drawing import Drawing
from tpviz.i18n import _


class Losses(NamedTuple):
    """One training, named: the loss of each step."""

    name: str
    losses: Sequence[float]


class _Line(NamedTuple):
    color: str
    ink: str
    """Of its name."""
    dashes: Any
    width: float


# The first one is drawn wide and grey, so that what lies on it is seen to lie on it.
_REFERENCE = _Line("#b3bec9", grammar.INK, "-", 13)
_LINES = (
    _Line("#0072b2", "#0072b2", "-", 3.5),
    _Line("#b04c00", "#b04c00", (0, (4, 3)), 3.5),
    _Line("#00704f", "#00704f", (0, (1, 2)), 5),
)
_LEFT, _WIDTH = 150, 760
_TOP, _HEIGHT, _BETWEEN, _BELOW = 64, 250, 108, 200
_NAME = 30
"""Between two names, in px."""
_ZERO = -17.0
"""The power of ten at which 0 is drawn: such an axis has none."""
_HIGHEST = 1
_SUPERSCRIPT = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def losses(trainings: Sequence[Losses]) -> Drawing:
    """Draw the loss of each step of each training, and |difference from the first one| in powers of ten.

    Two to four trainings, of equally many steps.
    """
    first, *others = trainings
    differences = [np.abs(np.subtract(each.losses, first.losses)) for each in others]
    spoken = "; ".join(
        _("{name} at most {difference}").format(name=each.name, difference=_power(float(found.max())))
        for each, found in zip(others, differences, strict=True)
    )
    start, end = (f"{first.losses[at]:.2f}" for at in (0, -1))
    alt = _(
        "The loss of {name} over {steps} steps, from {start} to {end}, and how far from it others are: {spoken}."
    ).format(name=first.name, steps=len(first.losses), start=start, end=end, spoken=spoken)

    def draw(figure: Figure) -> None:
        write(figure, 30, 36, _("loss"), weight="bold")
        panel = Panel(_LEFT, _TOP, _WIDTH, _HEIGHT)
        most = 1.05 * max(max(each.losses) for each in trainings)
        _lines(figure, panel, (0, most), [(each.name, each.losses) for each in trainings], (_REFERENCE, *_LINES))
        top = _TOP + _HEIGHT + _BETWEEN
        write(figure, 30, top - 34, _("how far from: {name}").format(name=first.name), weight="bold")
        powers = [np.log10(np.maximum(found, 10**_ZERO)) for found in differences]
        named = [(each.name, found) for each, found in zip(others, powers, strict=True)]
        axes = _lines(figure, Panel(_LEFT, top, _WIDTH, _BELOW), (_ZERO, _HIGHEST), named, _LINES)
        marked = range(-15, _HIGHEST, 5)
        ticks(axes, "y", [_ZERO, *marked], [_("equal"), *(_power(10.0**power) for power in marked)])
        axes.set_xlabel(_("step"), labelpad=8)

    return chart(_TOP + _HEIGHT + _BETWEEN + _BELOW + 86, alt, draw)


def _lines(
    figure: Figure,
    panel: Panel,
    limits: tuple[float, float],
    named: Sequence[tuple[str, Any]],
    lines: Sequence[_Line],
) -> Axes:
    """Draw curves in a panel, each named at its end."""
    axes = panel.axes(figure, xlim=(0, len(named[0][1]) - 1), ylim=limits)
    frame(axes)
    heights = apart([float(values[-1]) for _name, values in named], _NAME / panel.height * (limits[1] - limits[0]))
    for (name, values), height, line in zip(named, heights, lines, strict=False):
        steps = range(len(values))
        axes.plot(steps, values, linestyle=line.dashes, color=line.color, linewidth=line.width, dash_capstyle="butt")
        axes.annotate(
            name, (steps[-1], height), (18, 0), va="center", size=SMALL, color=line.ink, weight="bold", **OUTSIDE
        )
    return axes


def _power(number: float) -> str:
    """A number as one digit and a power of ten: 3 · 10⁻⁷."""
    if number == 0:
        return "0"
    digit, power = f"{number:.0e}".split("e")
    raised = "10" + str(int(power)).translate(_SUPERSCRIPT)
    return raised if digit == "1" else f"{digit} · {raised}"
