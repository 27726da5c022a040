"""Ways: what a rank keeps and sends under each way to spread a model, and how fast it is (charts)."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Polygon

from tpviz.charts.base import (
    DARK_GREEN,
    GREEN,
    GREY,
    ORANGE,
    OUTSIDE,
    PALE_GREEN,
    SMALL,
    Look,
    Panel,
    chart,
    legend,
    write,
)
from tpviz.charts.times import beside, stack
from tpviz.diagrams import grammar
from tpviz.diagrams.drawing import Drawing
from tpviz.i18n import _
from tpviz.memory import GB
from tpviz.strategies import RankBytes
from tpviz.tables import three


class Way(NamedTuple):
    """A way to spread a model over ranks."""

    name: str
    kept: RankBytes
    """By one rank."""
    activations_sent: float
    """Bytes that a rank sends of activations and their gradients, for each sequence of the batch."""
    weights_sent: float
    """The same of weights and their gradients."""
    speed: float
    """Sequences a second, of all ranks."""


_ROW = 58
_THICK = 38 / _ROW
_TOP = 176
_KEPT, _SENT, _SPEED = Panel(200, _TOP, 410, 0), Panel(740, _TOP, 200, 0), 1125
_KEPT_LOOKS = (DARK_GREEN, GREEN, PALE_GREEN, GREY, ORANGE)
_WEIGHTS_SENT = Look(grammar.CARD, "#00704f", "x")
_SENT_LOOKS = (_WEIGHTS_SENT, ORANGE)
_MOST = 1.6
"""A bar that is longer than so many times the card's memory is cut off; its number says how long it is."""


def ways(found: Sequence[Way], memory: float, title: str) -> Drawing:
    """Draw, a row for each way: what a rank keeps beside the card's ``memory`` (bytes), what it sends, its speed."""
    fit = [way for way in found if way.kept.total <= memory]
    fastest = max(fit, key=lambda way: way.speed, default=None)
    spoken = "; ".join(_spoken(way, memory) for way in found)
    alt = _(
        "{title}, cards of {memory} GB; what a rank keeps, what it sends in a step divided by the step's sequences, "
        "sequences a second: {spoken}."
    ).format(title=title, memory=f"{memory / GB:g}", spoken=spoken)

    def draw(figure: Figure) -> None:
        write(figure, 30, 36, title, weight="bold")
        height = _ROW * len(found)
        most = max(memory, min(_MOST * memory, max(float(way.kept.total) for way in found)))
        kept = _KEPT._replace(height=height).axes(figure, xlim=(0, most), ylim=(len(found), 0))
        sent = _SENT._replace(height=height).axes(
            figure, xlim=(0, max(way.weights_sent + way.activations_sent for way in found)), ylim=(len(found), 0)
        )
        _headings(figure, torn=any(way.kept.total > most for way in found))
        for row, way in enumerate(found):
            weight = "bold" if way is fastest else "normal"
            beside(kept, row + 0.5, 0, way.name, weight, left=True)
            _keep(kept, row + 0.5, way, most)
            stack(sent, row + 0.5, [way.weights_sent, way.activations_sent], _SENT_LOOKS, _THICK)
            total = way.weights_sent + way.activations_sent
            beside(sent, row + 0.5, total, f"{three(total / GB)} GB", weight)
            text = three(way.speed) if way in fit else _("does not fit")
            write(figure, _SPEED, _TOP + (row + 0.5) * _ROW, text, size=SMALL, weight=weight)
        for axes in (kept, sent):
            axes.set_axis_off()
        kept.plot([memory, memory], [-0.15, len(found)], color=grammar.INK, linewidth=4, clip_on=False)
        limit = _("card: {memory} GB").format(memory=f"{memory / GB:g}")
        kept.annotate(limit, (memory, -0.2), (0, 0), ha="center", va="bottom", size=SMALL, weight="bold", **OUTSIDE)

    return chart(_TOP + _ROW * len(found) + 16, alt, draw)


def _headings(figure: Figure, torn: bool) -> None:
    names = [_("weights"), _("gradients"), _("optimizer"), _("gathered layers"), _("activations")]
    legend(figure, 30, 64, names, _KEPT_LOOKS)
    legend(figure, 30, 94, [_("sent: weights, or their gradients")], [_WEIGHTS_SENT])
    keeps = _("a rank keeps (a cut bar is longer)") if torn else _("a rank keeps")
    write(figure, 30, 142, keeps, weight="bold")
    for left, lines in (
        (_SENT.left, (_("a rank sends in a step"), _("÷ sequences of the step"))),
        (_SPEED, (_("sequences"), _("a second"))),
    ):
        for number, line in enumerate(lines):
            write(figure, left, 118 + 28 * number, line, weight="bold")


def _parts(kept: RankBytes) -> list[float]:
    states = kept.states
    parts = (states.parameters, states.gradients, states.optimizer, kept.gathered, kept.activations)
    return [float(part) for part in parts]


def _keep(axes: Axes, middle: float, way: Way, most: float) -> None:
    room, parts = most, []
    for part in _parts(way.kept):
        parts.append(min(part, room))
        room -= parts[-1]
    looks: Sequence[Look] = _KEPT_LOOKS
    stack(axes, middle, parts, looks, _THICK)
    if way.kept.total > most:
        torn = np.array([[0.955, 0.6], [0.97, 0.6], [0.965, -0.6], [0.95, -0.6]]) * [most, _THICK] + [0, middle]
        axes.add_patch(Polygon(torn, facecolor=grammar.CARD, edgecolor="none", clip_on=False, zorder=3))
    plate = {"facecolor": grammar.CARD, "edgecolor": "none", "pad": 1}
    beside(axes, middle, sum(parts), f"{three(float(way.kept.total) / GB)} GB", bbox=plate)


def _spoken(way: Way, memory: float) -> str:
    return _("{name} {kept} and {sent} GB, {speed}").format(
        name=way.name,
        kept=three(float(way.kept.total) / GB),
        sent=three((way.weights_sent + way.activations_sent) / GB),
        speed=three(way.speed) if way.kept.total <= memory else _("does not fit"),
    )
