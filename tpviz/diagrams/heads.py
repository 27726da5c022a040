"""A fused QKV weight cut over the ranks: whose each head is, and what each rank takes it for (diagrams)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import NamedTuple

import torch
from torch import Tensor

from tpviz.diagrams.blocks import draw_lane
from tpviz.diagrams.canvas import Box, Canvas, middle
from tpviz.diagrams.drawing import Drawing
from tpviz.diagrams.grammar import CARD, MARGIN, RANKS, text_width
from tpviz.diagrams.operands import RunLike, check_ranks, subscripted, values_of
from tpviz.i18n import _

PARTS = ("Q", "K", "V")
_TITLE = 36
_BAND = 40
"""The least width of a head's columns, in the whole and in a lane."""
_STRIP = 66
"""The height of the whole: the heads' names, and below them whose they are."""
_SHARES = 14
"""The height of the stripes below a head that several ranks have."""
_HEADING = 40
"""The room above the lanes for what a rank takes its columns for."""
_HEIGHT = 40
"""The height of a head in a lane."""
_HEAD = 56
"""The room for a rank's badge."""
_PAD = 10
_GAP = 22
"""Between two of Q, K and V."""
_BETWEEN = 6
_PANEL = 36
"""Between two ways to cut."""


class _Segment(NamedTuple):
    """Columns beside each other of one head: which of all heads it is, and how many columns."""

    head: int
    columns: int


class _Cut:
    """One way to cut: what each rank takes for Q, K and V, and the ranks that have each column of the whole."""

    def __init__(self, title: str, taken: object, heads: int, kv_heads: int) -> None:
        self.title = title
        self.counts = (heads, kv_heads, kv_heads)
        self.taken = _numbers(taken)
        check_ranks(len(self.taken))
        bands = heads + 2 * kv_heads
        columns = 1 + max(number for parts in self.taken for part in parts for number in part)
        self.size, rest = divmod(columns, bands)
        if rest:
            message = _(
                "the columns are numbered up to {columns}, which is no multiple of {bands} heads in Q, K and V."
            )
            raise ValueError(message.format(columns=columns, bands=bands))
        self.kinds = [part for part, count in zip(PARTS, self.counts, strict=True) for _index in range(count)]
        self.owners: list[tuple[int, ...]] = [
            tuple(rank for rank, parts in enumerate(self.taken) if any(column in part for part in parts))
            for column in range(columns)
        ]
        self.lanes = [[self._segments(part) for part in parts] for parts in self.taken]
        self.groups = [
            max(sum(self._width(segment) for segment in parts[index]) for parts in self.lanes) for index in range(3)
        ]
        self.groups = [
            max(width, text_width(_heading(part), "label")) for width, part in zip(self.groups, PARTS, strict=True)
        ]
        strip = bands * _BAND + 2 * _GAP
        self.width = max(_HEAD + max(strip, sum(self.groups) + 2 * _GAP) + _PAD, text_width(title, "label"))

    def _segments(self, columns: Sequence[int]) -> list[_Segment]:
        runs = groupby(columns, key=lambda column: column // self.size)
        return [_Segment(head, len(list(run))) for head, run in runs]

    def _width(self, segment: _Segment) -> int:
        return max(1, round(_BAND * segment.columns / self.size))

    def name(self, head: int) -> str:
        """A head's name: Q₂."""
        kind = self.kinds[head]
        return subscripted(kind, head - self.kinds.index(kind))

    def draw(self, canvas: Canvas, x: int, y: int) -> int:
        """Draw the whole, and a lane for each rank below it; return the lower edge."""
        canvas.text(x, middle(y + 12, "label"), self.title, "label")
        y += _TITLE
        self._draw_whole(canvas, x + _HEAD, y)
        y += _STRIP + _SHARES
        left = x + _HEAD
        for part, width in zip(PARTS, self.groups, strict=True):
            canvas.text(left + width // 2, middle(y + _HEADING // 2, "label"), _heading(part), "label", "c")
            left += width + _GAP
        y += _HEADING
        for rank, parts in enumerate(self.lanes):
            lane = Box(x, y, self.width, _HEIGHT + 2 * _PAD)
            draw_lane(canvas, lane, rank, _HEAD)
            left = x + _HEAD
            for part, segments, width in zip(PARTS, parts, self.groups, strict=True):
                self._draw_taken(canvas, rank, part, segments, left, y + _PAD)
                left += width + _GAP
            y = lane.bottom + _BETWEEN
        return y - _BETWEEN

    def _draw_whole(self, canvas: Canvas, x: int, y: int) -> None:
        """Draw the whole weight, each head in the colours of the ranks that have its columns."""
        canvas.name(x - _HEAD + 18, middle(y + _STRIP // 2 - 4, "name"), "W")
        for head, kind in enumerate(self.kinds):
            first = head * self.size
            left = x + head * _BAND + PARTS.index(kind) * _GAP
            for owners, run in groupby(range(first, first + self.size), key=lambda column: self.owners[column]):
                columns = len(list(run))
                width = round(_BAND * columns / self.size)
                self._draw_owned(canvas, Box(left, y, width, _STRIP), owners)
                left += width
            name = self.name(head)
            canvas.name(left - _BAND // 2 - text_width(name, "name") // 2, middle(y + 21, "name"), name)

    def _draw_owned(self, canvas: Canvas, box: Box, owners: Sequence[int]) -> None:
        """Draw columns of the whole: in its rank's colour, or with a stripe below it for each, and their numbers."""
        if not owners:
            canvas.box("absent", box)
            return
        canvas.box("block", box, owners[0] if len(owners) == 1 else "neutral")
        if len(owners) > 1:
            for place, rank in enumerate(owners):
                left, right = (box.x + box.width * (place + step) // len(owners) for step in (0, 1))
                canvas.box("block", Box(left, box.bottom, right - left, _SHARES), rank)
        first, last = owners[0], owners[-1]
        words = f"{first}" if first == last else f"{first}–{last}" if len(owners) > 2 else f"{first} {last}"
        canvas.text(box.center_x, middle(box.bottom - 14, "note"), words, "note", "c")

    def _draw_taken(self, canvas: Canvas, rank: int, part: str, segments: Sequence[_Segment], x: int, y: int) -> None:
        """Draw what a rank takes for one part; columns of another part are saturated."""
        for segment in segments:
            box = Box(x, y, self._width(segment), _HEIGHT)
            wrong = self.kinds[segment.head] != part
            canvas.box("mark" if wrong else "block", box, rank)
            name = self.name(segment.head)
            if wrong:
                ink = "w" if RANKS[rank].on_solid == CARD else ""
                canvas.text(box.center_x, middle(box.center_y, "name"), name, "name", "c", ink)
            else:
                canvas.name(box.center_x - text_width(name, "name") // 2, middle(box.center_y - 2, "name"), name)
            x = box.right

    def description(self) -> str:
        """Who takes what for Q, K and V, for a text alternative."""
        said = []
        for rank, parts in enumerate(self.lanes):
            each = " | ".join(" ".join(self.name(segment.head) for segment in segments) for segments in parts)
            said.append(_("rank {rank} {heads}").format(rank=rank, heads=each))
        return _("{title}, {ranks}").format(title=self.title, ranks=", ".join(said))


def qkv_cuts(
    cuts: Mapping[str, RunLike | Sequence[Sequence[Tensor]]], heads: int, kv_heads: int | None = None
) -> Drawing:
    """Draw a fused weight [Q | K | V] cut in one way or several: whose each head is, and what each rank takes it for.

    Saturated in a lane: columns that the rank takes for another part than they are of. A head that several ranks have
    has a stripe for each of them below it.

    Args:
        cuts: by title, a run (or a list) whose ranks each returned three vectors: the numbers of the whole weight's
            columns that attention reads as Q, as K and as V there. A whole weight whose columns are numbered from 0,
            cut by the layer itself, holds them.
        heads: the heads of Q.
        kv_heads: the heads of K and of V; as many as of Q by default.
    """
    found = [_Cut(title, values_of(run), heads, heads if kv_heads is None else kv_heads) for title, run in cuts.items()]
    if not found:
        raise ValueError(_("nothing to draw: give one cut at least, by its title."))
    canvas = Canvas()
    x, bottom = MARGIN, 0
    for cut in found:
        bottom = max(bottom, cut.draw(canvas, x, MARGIN))
        x += cut.width + _PANEL
    alt = _("What each rank takes for Q, K and V: {cuts}.").format(cuts="; ".join(cut.description() for cut in found))
    return canvas.drawing(x - _PANEL + MARGIN, bottom + MARGIN, alt)


def _heading(part: str) -> str:
    return _("as {part}").format(part=part)


def _numbers(outputs: object) -> list[list[list[int]]]:
    """Each rank's three vectors as lists."""
    expected = _("each rank must return three vectors, the numbers of the columns that it takes for Q, for K and for V")
    if not isinstance(outputs, Sequence) or not outputs:
        raise TypeError(_("{expected}; this is a {type}.").format(expected=expected, type=type(outputs).__name__))
    found = []
    for rank, parts in enumerate(outputs):
        if not isinstance(parts, Sequence) or len(parts) != len(PARTS) or not all(map(torch.is_tensor, parts)):
            message = _("{expected}; rank {rank} returned a {type}.")
            raise TypeError(message.format(expected=expected, rank=rank, type=type(parts).__name__))
        found.append([[int(number) for number in part.flatten().tolist()] for part in parts])
    return found
