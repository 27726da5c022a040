"""Foretold: what a model predicts of steps on this machine beside what they took (charts)."""

from collections.abc import Sequence
from typing import NamedTuple

from matplotlib.figure import Figure

from tpviz.charts.base import DARK_GREEN, PALE_GREEN, Panel, chart, legend
from tpviz.charts.times import beside
from tpviz.diagrams.drawing import Drawing
from tpviz.i18n import _
from tpviz.tables import three


class Foretold(NamedTuple):
    """One step, named, with its two times in seconds."""

    name: str
    predicted: float
    measured: float


_THIN, _GROUP = 34, 84


def foretold(steps: Sequence[Foretold]) -> Drawing:
    """Draw each step's predicted time above its measured one, each step's longer bar at full length."""
    spoken = "; ".join(
        _("{name} predicted {predicted} ms, measured {measured}").format(
            name=step.name, predicted=three(1e3 * step.predicted), measured=three(1e3 * step.measured)
        )
        for step in steps
    )
    alt = _("Steps on this machine: {spoken}.").format(spoken=spoken)
    looks = (PALE_GREEN, DARK_GREEN)

    def draw(figure: Figure) -> None:
        legend(figure, 30, 24, [_("predicted"), _("measured")], looks)
        height = _GROUP * len(steps)
        axes = Panel(290, 78, 600, height).axes(figure, xlim=(0, 1), ylim=(height, 0))
        axes.set_axis_off()
        for number, step in enumerate(steps):
            top = number * _GROUP
            beside(axes, top + _THIN, 0, step.name, "bold", left=True)
            error = f"{step.predicted / step.measured - 1:+.0%}".replace("-", "−")
            texts = (
                _("{time} ms, error {error}").format(time=three(1e3 * step.predicted), error=error),
                f"{three(1e3 * step.measured)} ms",
            )
            for row, (seconds, text, look) in enumerate(zip(step[1:], texts, looks, strict=True)):
                middle, length = top + (row + 0.5) * _THIN, seconds / max(step[1:])
                axes.barh(middle, length, _THIN - 6, clip_on=False, **look.bar)
                beside(axes, middle, length, text)

    return chart(78 + _GROUP * len(steps) + 8, alt, draw)
