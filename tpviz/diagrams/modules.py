"""What a watched model sent: a line for each module, forward and backward side by side (diagrams)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from tpviz.diagrams.canvas import Box, Canvas, middle
from tpviz.diagrams.drawing import Drawing
from tpviz.diagrams.exchange import NAMES
from tpviz.diagrams.grammar import MARGIN, text_width
from tpviz.i18n import _, ngettext
from tpviz.tables import shape_text, size_text
from tpviz.trace import Event, layout_text

if TYPE_CHECKING:  # it loads DTensor; who has something watched has loaded it
    from tpviz.watching import Sent, Watched

_HEAD = 44
_FOOT = 48
_PAD = 10
_BAR = 38
_NOTE = 26
"""The room for the layouts below a bar."""
_GAP = 8
"""Between two bars of a cell, and between two rows."""
_INSIDE = 14
"""Between a bar's ends and its words."""
_COLUMN = 26
"""Between two columns."""
_ARROW = 24
"""As long as an arrow beside a phase's name: forward goes down through the modules, backward up."""


class _Bar(NamedTuple):
    """Collectives of one kind on arrays of one shape."""

    words: str
    note: str


class _Row(NamedTuple):
    """A module's line: its name, and its bars in each phase."""

    name: str
    cells: dict[str, list[_Bar]]

    @property
    def height(self) -> int:
        """How high it is."""
        return 2 * _PAD - _GAP + max(map(_cell_height, self.cells.values()))


def modules(watched: Watched) -> Drawing:
    """Draw what each module of a watched model sent: a dark bar for each collective, forward left, backward right.

    Modules that sent nothing are left out; layers that sent the same are one line, whose bytes are those of all.

    Args:
        watched: what ``tpviz.watch`` recorded, with at least one collective.
    """
    sent = watched.sent()
    if not sent:
        raise ValueError(_("nothing to draw: no collective was recorded."))
    return _Modules(sent).drawing()


class _Modules:
    """The layout of the figure: names, then a column for each phase."""

    def __init__(self, sent: Sequence[Sent]) -> None:
        self.sent = sent
        events = [event for each in sent for event in each.events]
        self.groups = list(dict.fromkeys(event.ranks for event in events))
        self.head = _ranks_text(self.groups[0]) if len(self.groups) == 1 else ""
        present = {each.phase for each in sent}
        self.phases = [name for name in ("forward", "backward", "other") if name != "other" or name in present]
        rows: dict[tuple[str | None, ...], _Row] = {}
        for each in sent:
            row = rows.setdefault(each.modules, _Row(each.name, {}))
            row.cells.setdefault(each.phase, []).extend(self._bars(each))
        self.rows = list(rows.values())

    def drawing(self) -> Drawing:
        """Draw the heads, the rows and the totals."""
        canvas = Canvas()
        names = [*(row.name for row in self.rows), self.head, self._all()]
        left = MARGIN + _PAD + max(text_width(name, "label") for name in names) + _COLUMN
        columns = self._columns(left)
        right = columns[self.phases[-1]].right + _PAD
        canvas.text(MARGIN + _PAD, middle(MARGIN + _HEAD // 2 - 4, "note"), self.head, "note")
        for phase, column in columns.items():
            self._draw_head(canvas, phase, column)
        y = MARGIN + _HEAD
        for row in self.rows:
            canvas.rounded("lane", Box(MARGIN, y, right - MARGIN, row.height), 8, "neutral")
            canvas.text(MARGIN + _PAD, middle(y + row.height // 2, "label"), row.name, "label")
            for phase, column in columns.items():
                self._draw_cell(canvas, row.cells.get(phase, []), column, y, row.height)
            y += row.height + _GAP
        canvas.text(MARGIN + _PAD, middle(y + _FOOT // 2, "label"), self._all(), "label")
        for phase, column in columns.items():
            canvas.text(column.center_x, middle(y + _FOOT // 2, "label"), self._total(phase), "label", "c")
        return canvas.drawing(right + MARGIN, y + _FOOT + MARGIN - _PAD, self._alt())

    def _columns(self, x: int) -> dict[str, Box]:
        columns = {}
        for phase in self.phases:
            bars = [bar for row in self.rows for bar in row.cells.get(phase, [])]
            widths = [text_width(bar.words, "label") + 2 * _INSIDE for bar in bars]
            widths += [text_width(bar.note, "note") for bar in bars]
            widths += [text_width(self._total(phase), "label"), text_width(phase, "label") + 2 * _ARROW]
            columns[phase] = Box(x, MARGIN, max(widths), _HEAD)
            x = columns[phase].right + _COLUMN
        return columns

    def _bars(self, sent: Sent) -> list[_Bar]:
        counted = Counter((e.kind, e.shape, e.payload_bytes, e.ranks, _change(e), sent.recomputed) for e in sent.events)
        bars = []
        for (kind, shape, payload, ranks, change, recomputed), each in counted.items():
            count = each * len(sent.modules)
            words = [NAMES.get(kind, kind), *([shape_text(shape)] if shape else []), size_text(count * payload)]
            text = ("" if count == 1 else f"{count} × ") + " · ".join(words)
            notes = [change] if change else []
            notes += [_("recomputing")] if recomputed else []
            notes += [_ranks_text(ranks)] if len(self.groups) > 1 else []
            bars.append(_Bar(text, " · ".join(notes)))
        return bars

    def _draw_head(self, canvas: Canvas, phase: str, column: Box) -> None:
        half = text_width(phase, "label") // 2 + 8
        y = MARGIN + _HEAD // 2 - 4
        canvas.text(column.center_x, middle(y, "label"), phase, "label", "c")
        if phase == "forward":
            canvas.rise(column.center_x + half + _ARROW // 2, y - _ARROW // 2, y + _ARROW // 2)
        elif phase == "backward":
            canvas.rise(column.center_x + half + _ARROW // 2, y + _ARROW // 2, y - _ARROW // 2)

    def _draw_cell(self, canvas: Canvas, bars: Sequence[_Bar], column: Box, top: int, height: int) -> None:
        if not bars:
            canvas.text(column.center_x, middle(top + height // 2, "note"), _("nothing"), "note", "c")
            return
        y = top + (height - _cell_height(bars) + _GAP) // 2
        for words, note in bars:
            bar = Box(column.x, y, column.width, _BAR)
            canvas.rounded("bar", bar, 10)
            canvas.text(bar.center_x, middle(bar.center_y, "label"), words, "label", "c", "w")
            if note:
                canvas.text(bar.center_x, middle(bar.bottom + _NOTE // 2 + 1, "note"), note, "note", "c")
            y += _BAR + (_NOTE if note else 0) + _GAP

    def _all(self) -> str:
        return _("in all")

    def _total(self, phase: str) -> str:
        sent = [each for each in self.sent if each.phase == phase]
        count = sum(each.kinds().total() for each in sent)
        if not count:
            return _("nothing")
        size = size_text(sum(each.payload_bytes for each in sent))
        return ngettext("{n} collective, {size}", "{n} collectives, {size}", count).format(n=count, size=size)

    def _alt(self) -> str:
        lines = []
        for row in self.rows:
            for phase, bars in row.cells.items():
                what = " + ".join(f"{bar.words} ({bar.note})" if bar.note else bar.words for bar in bars)
                lines.append(_("{module} in {phase} {what}").format(module=row.name, phase=phase, what=what))
        if self.head:
            message = _("What each module sends among {ranks}: {lines}.")
            return message.format(ranks=self.head, lines="; ".join(lines))
        return _("What each module sends: {lines}.").format(lines="; ".join(lines))


def _cell_height(bars: Sequence[_Bar]) -> int:
    return sum(_BAR + (_NOTE if bar.note else 0) + _GAP for bar in bars)


def _change(event: Event) -> str:
    before, after = event.layout_names()
    return f"{layout_text(before)} → {layout_text(after)}" if before and after else ""


def _ranks_text(ranks: Sequence[int]) -> str:
    """Name the ranks, three or more in a row by the first and the last."""
    first, last = ranks[0], ranks[-1]
    row = len(ranks) > 2 and tuple(ranks) == tuple(range(first, last + 1))
    return _("ranks {ranks}").format(ranks=f"{first}–{last}" if row else ", ".join(map(str, ranks)))
