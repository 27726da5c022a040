"""Activations: what a rank keeps of a layer from forward until backward, by TP degree (charts)."""

from collections.abc import Sequence
from itertools import chain
from typing import NamedTuple

from matplotlib.figure import Figure

from tpviz.charts.base import GREEN, ORANGE, Panel, chart, legend, write
from tpviz.charts.times import beside, on_ranks, stack
from tpviz.diagrams.drawing import Drawing
from tpviz.i18n import _
from tpviz.memory import GB
from tpviz.tables import three

_ROW, _APART, _TOP = 46, 14, 116
_LEFT, _WIDTH = 330, 560


class KeptBytes(NamedTuple):
    """Bytes that a rank keeps of one layer, in two parts."""

    outside: float
    """What plain TP leaves whole on every rank."""
    inside: float


class Degree(NamedTuple):
    """What one of so many ranks keeps, with plain TP and with sequence parallel."""

    ranks: int
    plain: KeptBytes
    cut: KeptBytes


def activations(degrees: Sequence[Degree], title: str) -> Drawing:
    """Draw two bars for each TP degree above 1: plain TP, and with sequence parallel; ``title`` says of which layer."""
    whole = sum(degrees[0].plain)
    rows = list(chain.from_iterable(_rows(degree) for degree in degrees))
    spoken = "; ".join(f"{name} {three(sum(kept) / GB)}" for name, kept, _gap in rows)
    alt = _("GB that a rank keeps of one layer for backward, {title}: {spoken}.").format(title=title, spoken=spoken)
    height = sum(_ROW + gap for _name, _kept, gap in rows)

    def draw(figure: Figure) -> None:
        write(figure, 30, 36, title, weight="bold")
        legend(figure, 30, 66, [_("norms, dropouts, inputs of column layers"), _("the rest")], [ORANGE, GREEN])
        axes = Panel(_LEFT, _TOP, _WIDTH, height).axes(figure, xlim=(0, whole), ylim=(height, 0))
        axes.set_axis_off()
        y = 0
        for name, kept, gap in rows:
            y += gap
            middle = y + _ROW / 2
            stack(axes, middle, kept, (ORANGE, GREEN), thickness=_ROW - 10)
            beside(axes, middle, 0, name, left=True)
            text = f"{three(sum(kept) / GB)} GB"
            if sum(kept) != whole:
                text = _("{size}, {share:.1f} times less").format(size=text, share=whole / sum(kept))
            beside(axes, middle, sum(kept), text)
            y += _ROW

    return chart(_TOP + height + 20, alt, draw)


def _rows(degree: Degree) -> list[tuple[str, KeptBytes, int]]:
    """A degree's bars: the name, the bytes, and the room above."""
    ranks = on_ranks(degree.ranks)
    if degree.ranks == 1:
        return [(ranks, degree.plain, 0)]
    names = _("{ranks}, TP").format(ranks=ranks), _("{ranks}, TP and SP").format(ranks=ranks)
    return [(names[0], degree.plain, _APART), (names[1], degree.cut, 0)]
