"""Bars: what a layer's forward asks of a rank, in two ways (charts)."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from tpviz.charts.base import chart
from tpviz.diagrams import grammar
from tpviz.diagrams.drawing import Drawing
from tpviz.i18n import _
from tpviz.memory import LayerForward


@dataclass(frozen=True, slots=True)
class _Look:
    """How the bars of one series look, where it matters (strong) and where all series are equal (pale)."""

    strong: str
    pale: str
    edge: str
    hatch: str


# Okabe-Ito's orange and bluish green, with dark edges: no figure of two ranks uses these hues for a rank. The hatch
# and the name beside each bar say the same without colour.
_LOOKS = (_Look("#e69f00", "#fcefcf", "#7a5400", ""), _Look("#5fc4a5", "#def2eb", "#00704f", "/"))

_BAR, _BETWEEN, _GROUP = 38, 8, 34
_LABELS, _NAMES, _NUMBERS = 330, 190, 260
"""The room for what a group of bars is about, for the names of its bars, and for the numbers at their ends."""


@dataclass(frozen=True, slots=True)
class _Group:
    """Bars beside each other: what they are about, how their numbers are written, and the numbers."""

    label: str
    form: str
    numbers: Sequence[float]

    @property
    def texts(self) -> list[str]:
        """The numbers with their unit."""
        return [self.form.format(number=f"{number:,}") for number in self.numbers]


def layer_forward(zero3: LayerForward, column: LayerForward) -> Drawing:
    """Draw what one layer's forward asks of a rank, with ZeRO-3 and with the column split.

    Three groups of two bars, of which those that differ are in strong colours.
    """
    names = (_("ZeRO-3"), _("column split"))
    ways = (zero3, column)
    groups = [
        _Group(_("weight that is stored"), _("{number} bytes"), [way.stored_bytes for way in ways]),
        _Group(_("weight present during the matmul"), _("{number} bytes"), [way.present_bytes for way in ways]),
        _Group(_("arithmetic"), _("{number} operations"), [way.flops for way in ways]),
    ]
    spoken = [
        _("{label}, {first} and {second}").format(label=g.label, first=g.texts[0], second=g.texts[1]) for g in groups
    ]
    alt = _("One rank's share of a layer's forward, with ZeRO-3 and with the column split: {groups}.").format(
        groups="; ".join(spoken)
    )
    return _bars(names, groups, alt)


def _bars(names: Sequence[str], groups: Sequence[_Group], alt: str) -> Drawing:
    """Groups of horizontal bars, one below the other. Groups of one unit have one scale."""
    group_height = len(names) * _BAR + (len(names) - 1) * _BETWEEN
    height = len(groups) * (group_height + _GROUP) + _GROUP
    left, right = grammar.MARGIN + _LABELS + _NAMES, grammar.SLIDE_WIDTH - grammar.MARGIN - _NUMBERS
    longest = {form: max(max(g.numbers) for g in groups if g.form == form) for form in {g.form for g in groups}}

    def draw(figure: Figure) -> None:
        for index, group in enumerate(groups):
            bottom = (len(groups) - 1 - index) * (group_height + _GROUP) + _GROUP
            axes = figure.add_axes(
                (
                    left / grammar.SLIDE_WIDTH,
                    bottom / height,
                    (right - left) / grammar.SLIDE_WIDTH,
                    group_height / height,
                ),
                xlim=(0, longest[group.form]),
                ylim=(group_height, 0),
            )
            axes.set_axis_off()
            _draw_group(axes, names, group)
            lines = "\n".join(grammar.wrapped(group.label, "name", _LABELS))
            middle = (grammar.MARGIN / grammar.SLIDE_WIDTH, (bottom + group_height / 2) / height)
            figure.text(*middle, lines, va="center", weight="bold")

    return chart(height, alt, draw)


def _draw_group(axes: Axes, names: Sequence[str], group: _Group) -> None:
    equal = len(set(group.numbers)) == 1
    for row, (name, number, look) in enumerate(zip(names, group.numbers, _LOOKS, strict=True)):
        middle = row * (_BAR + _BETWEEN) + _BAR / 2
        axes.barh(
            middle,
            number,
            _BAR,
            facecolor=look.pale if equal else look.strong,
            edgecolor=look.edge,
            hatch=look.hatch,
            linewidth=2,
            clip_on=False,
        )
        offset: dict[str, Any] = {"textcoords": "offset points", "va": "center", "annotation_clip": False}
        axes.annotate(name, (0, middle), (-12, 0), ha="right", **offset)
        axes.annotate(group.texts[row], (number, middle), (12, 0), weight="normal" if equal else "bold", **offset)
