"""Times: what a step is spent on, when a rank computes and sends, and what was published beside a model (charts)."""

from collections.abc import Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from tpviz.charts.base import (
    ABSENT,
    DARK_GREEN,
    GREEN,
    ORANGE,
    OUTSIDE,
    PALE_GREEN,
    SMALL,
    Look,
    Panel,
    chart,
    frame,
    legend,
    write,
)
from tpviz.diagrams.drawing import Drawing
from tpviz.i18n import _, ngettext
from tpviz.published import Comparison
from tpviz.steps import Phase
from tpviz.tables import three
from tpviz.timelines import Task

_ROW, _BAR = 62, 42
_MILLI = 1e3


def on_ranks(count: int) -> str:
    """A number of ranks, in words."""
    return ngettext("{count} rank", "{count} ranks", count).format(count=count)


def breakdowns(degrees: Sequence[int], spent: Sequence[Phase], title: str) -> Drawing:
    """Draw what a layer's time is spent on, a bar for each TP degree; the others are held against the first."""
    names = [_("matmuls"), _("element-wise work"), _("TP's collectives")]
    looks = [GREEN, PALE_GREEN, ORANGE]
    parts = [[_MILLI * float(part) for part in each] for each in spent]
    totals = [sum(each) for each in parts]
    texts = [
        _("{time} ms, {speed:.1f} times as fast").format(time=three(total), speed=totals[0] / total) for total in totals
    ]
    texts[0] = f"{three(totals[0])} ms"
    spoken = "; ".join(
        _("{ranks} {text}, {share:.0%} of it TP's collectives").format(
            ranks=on_ranks(degree), text=text, share=own[-1] / total
        )
        for degree, text, own, total in zip(degrees, texts, parts, totals, strict=True)
    )
    alt = _("A layer's time by TP degree, {title}: {spoken}.").format(title=title, spoken=spoken)

    def draw(figure: Figure) -> None:
        write(figure, 30, 36, title, weight="bold")
        legend(figure, 30, 66, names, looks)
        axes = Panel(150, 112, 700, _ROW * len(degrees)).axes(figure, xlim=(0, max(totals)), ylim=(len(degrees), 0))
        axes.set_axis_off()
        fastest = totals.index(min(totals))
        for row, (own, text) in enumerate(zip(parts, texts, strict=True)):
            stack(axes, row + 0.5, own, looks)
            weight = "bold" if row == fastest else "normal"
            beside(axes, row + 0.5, totals[row], text, weight)
            beside(axes, row + 0.5, 0, on_ranks(degrees[row]), weight, left=True)

    return chart(112 + _ROW * len(degrees) + 20, alt, draw)


def stack(axes: Axes, middle: float, parts: Sequence[float], looks: Sequence[Look], thickness: float = 0) -> None:
    """Add a bar of several parts, of which those that are nothing are left out."""
    left = 0.0
    for part, look in zip(parts, looks, strict=True):
        if part > 0:
            axes.barh(middle, part, thickness or _BAR / _ROW, left=left, clip_on=False, **look.bar)
        left += part


def beside(
    axes: Axes, middle: float, at: float, text: str, weight: str = "normal", left: bool = False, **more: Any
) -> None:
    """Write at the end of a bar, or before its beginning."""
    aside, ha = (-14, "right") if left else (14, "left")
    axes.annotate(text, (at, middle), (aside, 0), ha=ha, va="center", size=SMALL, weight=weight, **more, **OUTSIDE)


_LANE, _LANES, _PIECE = 46, 130, 36


def timelines(rows: Sequence[tuple[str, Sequence[Task]]]) -> Drawing:
    """Draw timelines below each other, on one scale: above what the rank computes, below what its link sends.

    A number says which layer a piece belongs to. Where a rank computes nothing, before its last task ends, it waits.
    """
    names = [_("computing"), _("waiting"), _("AllReduce of activations"), _("gather of weights")]
    looks = [GREEN, ABSENT, ORANGE, PALE_GREEN]
    longest = _MILLI * max(task.end for _title, tasks in rows for task in tasks)
    spoken = []
    for title, tasks in rows:
        ends, works = (
            max(task.end for task in tasks),
            sum(task.seconds for task in tasks if not task.sends),
        )
        spoken.append(
            _("{title}: {time} ms, {share:.0%} of it waiting").format(
                title=title.replace("\n", " "), time=three(_MILLI * ends), share=1 - works / ends
            )
        )
    alt = _("What a rank does in a forward, over time: {spoken}.").format(spoken="; ".join(spoken))

    def draw(figure: Figure) -> None:
        legend(figure, 30, 24, names, looks)
        height = _LANES * len(rows)
        axes = Panel(250, 76, 890, height).axes(figure, xlim=(0, longest), ylim=(height, 0))
        frame(axes)
        axes.spines["left"].set_visible(False)
        axes.set_yticks([])
        axes.set_xlabel(_("milliseconds"), labelpad=4)
        for row, (title, tasks) in enumerate(rows):
            top = row * _LANES + 16
            axes.annotate(title, (0, top + _LANE), (-20, 0), ha="right", va="center", weight="bold", **OUTSIDE)
            _timeline(axes, top, tasks)

    return chart(76 + _LANES * len(rows) + 90, alt, draw)


_PLATE = {"boxstyle": "round,pad=0.1", "facecolor": "white", "edgecolor": "none"}
_NARROW = 0.03
"""A piece that is shorter, as a share of the time axis, has no room for its layer's number."""


def _timeline(axes: Axes, top: float, tasks: Sequence[Task]) -> None:
    narrow = _NARROW * axes.get_xlim()[1] / _MILLI
    end = _MILLI * max(task.end for task in tasks)
    axes.barh(top + _LANE / 2, end, _PIECE, **ABSENT.bar)
    for task in tasks:
        look = GREEN if not task.sends else ORANGE if task.name == "AllReduce" else PALE_GREEN
        middle = top + _LANE / 2 + (_LANE if task.sends else 0)
        axes.barh(middle, _MILLI * task.seconds, _PIECE, left=_MILLI * task.start, **look.bar)
        if task.seconds > narrow:
            place = (_MILLI * (task.start + task.seconds / 2), middle)
            axes.annotate(str(task.layer + 1), place, ha="center", va="center", size=SMALL, weight="bold", bbox=_PLATE)
    axes.annotate(f"{three(end)} ms", (end, top + _LANE / 2), (12, 0), va="center", size=SMALL, **OUTSIDE)


def published(comparisons: Sequence[Comparison], labels: Sequence[str]) -> Drawing:
    """Draw published figures beside models of the same cases, the error at the end of each model's bar."""
    first = comparisons[0]
    looks = [DARK_GREEN, GREEN, PALE_GREEN][: len(comparisons) + 1]
    unit = first.unit if first.unit in "%×" else f" {first.unit}"
    names = [_("published"), *labels]
    spoken = "; ".join(
        _("{label}, off by at most {worst:.1f}").format(label=label, worst=each.worst)
        for label, each in zip(labels, comparisons, strict=True)
    )
    alt = _("Published figures of {cases} cases, in {unit}, beside models: {spoken}.").format(
        cases=len(first.rows), unit=first.unit, spoken=spoken
    )
    group = _THIN * (len(comparisons) + 1) + 24
    longest = max(max(row.published, row.model) for each in comparisons for row in each.rows)

    def draw(figure: Figure) -> None:
        legend(figure, 30, 24, names, looks)
        height = group * len(first.rows)
        axes = Panel(250, 78, 720, height).axes(figure, xlim=(0, longest), ylim=(height, 0))
        axes.set_axis_off()
        for number, row in enumerate(first.rows):
            top = number * group
            beside(axes, top + (group - 24) / 2, 0, row.case, "bold", left=True)
            _published_bar(axes, top, row.published, f"{row.published:g}{unit}", looks[0], "bold")
            for place, each in enumerate(comparisons, 1):
                own = each.rows[number]
                error = f"{own.error:+.1f}".replace("-", "−").replace("−0.0", "+0.0")
                text = _("{model}{unit}, error {error}").format(model=three(own.model), unit=unit, error=error)
                _published_bar(axes, top + _THIN * place, own.model, text, looks[place], "normal")

    return chart(78 + group * len(first.rows) + 8, alt, draw)


_THIN = 36


def _published_bar(axes: Axes, top: float, number: float, text: str, look: Look, weight: str) -> None:
    axes.barh(top + _THIN / 2, number, _THIN - 8, clip_on=False, **look.bar)
    beside(axes, top + _THIN / 2, number, text, weight)
