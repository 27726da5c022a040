"""Contributions: what each rank knows of a gradient, and the sum of these along the drawn paths (diagrams)."""

from dataclasses import replace

from torch import Tensor

from tpviz.diagrams.blocks import (
    LANE_HEAD,
    LANE_PAD,
    NO_MARKS,
    Label,
    Marks,
    common_grid,
    draw_block,
    draw_caption,
    draw_digits,
    draw_lane,
    grids,
    sum_text,
)
from tpviz.diagrams.canvas import Box, Canvas, middle, pill_width
from tpviz.diagrams.drawing import Drawing
from tpviz.diagrams.grammar import (
    FRAME,
    LABEL,
    MARGIN,
    SLIDE_HEIGHT,
    TWIN,
    WIDEST,
    text_width,
    wrapped,
)
from tpviz.diagrams.operands import (
    COLUMNS,
    PARTIAL,
    REPLICATE,
    Operand,
    Outputs,
    checked_entry,
    operand,
    outputs_of,
    subscripted,
)
from tpviz.i18n import _

_GAP = 12
_OPERATOR = 104
"""The room for the arrow on which "@ W₀ᵀ" stands."""
_PATHS = 190
"""The room for the paths from the contributions to their sum."""
_NODE = 17
"""The radius of the "+"."""
_TIGHT = 6
"""A partial sum's frame where a lane holds a single row."""


def contributions(
    parts: Outputs,
    total: Tensor,
    upstream: Tensor,
    *,
    names: tuple[str, str, str, str] = ("dY", "W", "G", "dX"),
    entry: tuple[int, int] | None = None,
) -> Drawing:
    """Draw how each rank's columns of dY become a contribution to dX, and the contributions their sum.

    Args:
        parts: a run, or a list with each rank's contribution, dYi @ Wi.T.
        total: their sum, entry by entry: dX.
        upstream: the whole dY, of which each rank has its columns.
        names: what dY, W, the contributions and dX are called.
        entry: the row and the column of an entry of dX that lights up, with the row of dY that it depends on. Where a
            slide cannot hold all ranks' matrices, its row (else row 0) stands for them.
    """
    ranks = len(outputs_of(parts, names[2]))
    gradient = replace(operand(names[0], upstream, COLUMNS, ranks), gradient=True)
    addends = replace(operand(names[2], parts, PARTIAL, ranks), gradient=True)
    whole = replace(operand(names[3], total, REPLICATE, 1), gradient=True)
    if addends.shape != whole.shape:
        message = _("the sum is {came}, but its addends are {expected}: adding entry by entry keeps the shape.")
        raise ValueError(message.format(came=whole.shape, expected=addends.shape))
    if gradient.rows != whole.rows:
        message = _("{dY} is {came}, but {dX} is {expected}: both have a row for each sample.")
        raise ValueError(message.format(dY=names[0], dX=names[3], came=gradient.shape, expected=whole.shape))
    if entry is not None:
        checked_entry(entry, whole.rows, whole.columns, whole.name)
    return _Contributions(gradient, addends, whole, names[1], entry).drawing()


class _Contributions:
    """The layout of the figure: a lane for each rank, and paths from its contribution to the sum at the right."""

    def __init__(
        self, upstream: Operand, addends: Operand, whole: Operand, weight: str, entry: tuple[int, int] | None
    ) -> None:
        self.weight, self.entry = weight, entry
        self.ranks = len(addends.blocks)
        self.shape = whole.shape
        room = WIDEST - 2 * MARGIN - LANE_HEAD - _OPERATOR - _PATHS - 4 * FRAME
        self.upstream_grid, self.grid, _whole = grids([upstream, addends, whole], room)
        self.grid = common_grid([addends, whole], room) if self.grid.cells is not None else self.grid
        self.frame, self.row = FRAME, None
        if self._height(addends.rows) > SLIDE_HEIGHT and self.grid.cells is not None and whole.rows > 1:
            self.row = entry[0] if entry else 0
            addends, whole = addends.only_row(self.row), whole.only_row(self.row)
            self.frame = _TIGHT
        self.upstream, self.addends, self.whole = upstream, addends, whole
        self.labels = [Label.of(addends, rank, self.grid) for rank in range(self.ranks)]
        self.upstream_labels = [Label.of(upstream, rank, self.upstream_grid) for rank in range(self.ranks)]

    def _height(self, rows: int) -> int:
        lane = 2 * LANE_PAD + LABEL + self.grid.down(rows) + 2 * (FRAME + TWIN)
        return 2 * MARGIN + self.ranks * (lane + _GAP)

    @property
    def _open(self) -> bool:
        """Whether the lanes show whole matrices, and what they come from."""
        return self.row is None

    def _marks(self, wide: bool) -> Marks:
        if self.entry is None:
            return NO_MARKS
        i, j = self.entry
        rows = range(1) if self.row is not None else range(i, i + 1)
        return Marks(rows, range(self.upstream.columns) if wide else range(j, j + 1))

    def drawing(self) -> Drawing:
        """Draw the lanes, the paths, and the sum."""
        canvas = Canvas()
        block_width = self.grid.across(self.whole.columns)
        left = MARGIN + LANE_HEAD
        if self._open:
            upstream_width = max(
                self.upstream_grid.across(self.upstream.columns), *(label.width for label in self.upstream_labels)
            )
            x = left + TWIN + upstream_width + _OPERATOR
            slot = max(block_width + 2 * (self.frame + TWIN), *(label.width for label in self.labels))
            height = 2 * LANE_PAD + LABEL + self.grid.down(self.whole.rows) + 2 * (self.frame + TWIN)
        else:
            names = [text_width(subscripted(self.addends.name, rank), "name") for rank in range(self.ranks)]
            pills = [pill_width(sum_text(rank, self.ranks)) for rank in range(self.ranks)]
            x = left + max(names) + 14
            slot = block_width + 2 * (self.frame + TWIN) + 10 + max(pills)
            height = self.grid.down(1) + 2 * (self.frame + TWIN) + 12
        lane_right = x + slot + LANE_PAD
        pitch = height + (_GAP if self._open else _GAP // 2)
        total_x = lane_right + _PATHS + TWIN
        bottom = MARGIN + self.ranks * pitch - (pitch - height)
        total = Box(total_x, (MARGIN + bottom - self.grid.down(self.whole.rows)) // 2, block_width, self._block_height)
        ends = []
        for rank in range(self.ranks):
            lane = Box(MARGIN, MARGIN + rank * pitch, lane_right - MARGIN, height)
            draw_lane(canvas, lane, rank)
            draw = self._draw_open if self._open else self._draw_row
            ends.append((lane_right, draw(canvas, rank, lane, left, x, slot)))
        self._draw_paths(canvas, ends, total)
        right = total.right + TWIN + 8
        label = f"{self.whole.name} {self.shape}"
        right = max(right, total.center_x + text_width(label, "label") // 2)
        lines = wrapped(self._caption(), "caption", right - MARGIN) if self._caption() else []
        bottom = draw_caption(canvas, lines, MARGIN, bottom)
        return canvas.drawing(right + MARGIN, bottom + MARGIN, self._alt())

    @property
    def _block_height(self) -> int:
        return self.grid.down(self.whole.rows)

    def _draw_open(self, canvas: Canvas, rank: int, lane: Box, left: int, x: int, slot: int) -> int:
        """Draw a lane with the rank's columns of dY and its contribution; return the height where its path starts."""
        top = lane.y + LANE_PAD + LABEL + self.frame + TWIN
        y = top + (self._block_height - self.upstream_grid.down(self.upstream.rows)) // 2
        start = left + TWIN
        width = self.upstream_grid.across(self.upstream.columns)
        draw_block(canvas, self.upstream, rank, self.upstream_grid, start, y, self._marks(wide=True))
        above = self.upstream_grid.box(start, y - TWIN, self.upstream.blocks[rank])
        self.upstream_labels[rank].draw(canvas, above, start, start + width, rank)
        center_y = top + self._block_height // 2
        block_x = x + (slot - self.grid.across(self.addends.columns)) // 2
        operator = f"@ {subscripted(self.weight, rank)}ᵀ"
        canvas.arrow(start + width + 14, block_x - self.frame - TWIN - 8, center_y, rank)
        center_x = (start + width + block_x - self.frame) // 2
        canvas.text(center_x, center_y - 14, operator, "label", "c")
        draw_block(canvas, self.addends, rank, self.grid, block_x, top, self._marks(wide=False), self.frame)
        outer = Box(block_x, top - self.frame - TWIN, self.grid.across(self.addends.columns), 0)
        self.labels[rank].draw(canvas, outer, x, x + slot, rank)
        return self._entry_y(top)

    def _draw_row(self, canvas: Canvas, rank: int, lane: Box, left: int, x: int, slot: int) -> int:
        """Draw a lane with one row of the rank's contribution."""
        y = lane.center_y - self._block_height // 2
        name = subscripted(self.addends.name, rank)
        canvas.name(left, middle(lane.center_y, "name"), name)
        block_x = x + self.frame + TWIN
        draw_block(canvas, self.addends, rank, self.grid, block_x, y, self._marks(wide=False), self.frame)
        end = block_x + self.grid.across(self.addends.columns) + self.frame + TWIN + 10
        canvas.pill(end, lane.center_y, sum_text(rank, self.ranks), rank)
        return self._entry_y(y)

    def _entry_y(self, top: int) -> int:
        """The height of the entry's row, else of the middle."""
        if self.entry is None:
            return top + self._block_height // 2
        row = self.entry[0] if self.row is None else 0
        return top + self.grid.down(row) + self.grid.down(1) // 2

    def _draw_paths(self, canvas: Canvas, starts: list[tuple[int, int]], total: Box) -> None:
        """Draw a path from each contribution to the "+", with the entry's value on it, and the sum."""
        node_x, node_y = total.x - TWIN - 62, self._entry_y(total.y)
        for rank, (x, y) in enumerate(starts):
            end = node_y + (2 * rank - self.ranks + 1) * _NODE // self.ranks
            start = x + 4
            if self.entry is not None and self.addends.blocks[rank].texts:
                row = self.entry[0] if self.row is None else 0
                text = self.addends.blocks[rank].texts[row][self.entry[1]]
                canvas.text(start + 6, middle(y, "name"), text, "name")
                start += text_width(text, "name") + 14
            canvas.curve((start, y), (node_x - _NODE - 4, end), rank)
        canvas.node(node_x, node_y, "+", _NODE)
        canvas.arrow(node_x + _NODE + 4, total.x - TWIN - 6, node_y)
        canvas.box("block", total, "neutral")
        canvas.box("twin", total.grown(TWIN), "neutral")
        marks = self._marks(wide=False)
        if marked := marks.box(self.grid, total.x, total.y, self.whole.blocks[0]):
            canvas.box("mark", marked, "neutral")
        draw_digits(canvas, self.whole.blocks, self.grid, total.x, total.y, marks)
        baseline = middle(total.y - TWIN - LABEL // 2 + 4, "name")
        width = text_width(self.whole.name, "name") + 8 + text_width(self.shape, "note")
        canvas.name(total.center_x - width // 2, baseline, self.whole.name)
        canvas.text(total.center_x - width // 2 + text_width(self.whole.name, "name") + 8, baseline, self.shape, "note")

    def _caption(self) -> str:
        if self.row is not None:
            return _("Row {row} of each; the other rows are added likewise.").format(row=self.row)
        return ""

    def _alt(self) -> str:
        message = _("The contributions of {ranks} ranks, {shape} each, add up entry by entry to {name}, {shape}")
        sentence = message.format(ranks=self.ranks, shape=self.shape, name=self.whole.name)
        if self.entry is not None and self.addends.blocks[0].texts:
            i, j = self.entry
            row = i if self.row is None else 0
            values = ", ".join(block.texts[row][j] for block in self.addends.blocks)
            message = _("{sentence}; at [{i}, {j}] they are {values}, and the sum is {total}")
            total = self.whole.blocks[0].texts[row][j]
            sentence = message.format(sentence=sentence, i=i, j=j, values=values, total=total)
        return _("{sentence}.").format(sentence=sentence)
