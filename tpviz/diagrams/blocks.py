"""Blocks and lanes: a rank's part of a matrix in its place, with its digits, its name and its lane (diagrams)."""

from collections.abc import Sequence
from itertools import chain, pairwise
from typing import NamedTuple

from tpviz.diagrams.canvas import Box, Canvas, Color, middle, pill_width
from tpviz.diagrams.grammar import CARD, CELL, FRAME, LABEL, RANKS, TWIN, text_width
from tpviz.diagrams.numbers import Cells, Line
from tpviz.diagrams.operands import COLUMNS, PARTIAL, REPLICATE, Block, Operand
from tpviz.i18n import _

LANE_HEAD = 88
"""The room for the rank's badge at the left end of a lane."""
LANE_PAD = 14
"""Between a lane's edge and what is in it."""
_LABEL_SPACE = 8
_CAPTION_LINE, _CAPTION_GAP = 28, 10
_SCHEMATIC_WIDTH, _SCHEMATIC_HEIGHT = 760, 180
_LEAST = 24
"""The least width and height of a matrix that is drawn as a shape."""


class Grid(NamedTuple):
    """How large a whole matrix is drawn, and where the digits stand."""

    cell_width: float
    cell_height: float
    cells: Cells | None
    """None where the matrix is drawn as a shape, without digits, and its cells are no whole px."""

    def across(self, columns: int) -> int:
        """The width of so many columns."""
        return round(columns * self.cell_width)

    def down(self, rows: int) -> int:
        """The height of so many rows."""
        return round(rows * self.cell_height)

    def box(self, x: int, y: int, block: Block) -> Box:
        """Where a block lies if the whole's corner is at x, y."""
        _texts, rows, columns, row, column = block
        if self.cells is not None:
            wide = self.cells.width
            return Box(x + column * wide, y + row * CELL, columns * wide, rows * CELL)
        left, top = self.across(column), self.down(row)
        return Box(x + left, y + top, self.across(column + columns) - left, self.down(row + rows) - top)


def _digit_grid(operands: Sequence[Operand]) -> Grid:
    blocks = chain.from_iterable(operand.blocks for operand in operands)
    cells = Cells.of(chain.from_iterable(line for block in blocks for line in block.texts))
    return Grid(cells.width, CELL, cells)


def _shape_grids(operands: Sequence[Operand]) -> list[Grid]:
    """Grids to one scale, for matrices too large for their digits."""
    scale = min(
        _SCHEMATIC_WIDTH / sum(operand.columns for operand in operands),
        _SCHEMATIC_HEIGHT / max(operand.rows for operand in operands),
    )
    return [Grid(max(scale, _LEAST / each.columns), max(scale, _LEAST / each.rows), None) for each in operands]


def grids(operands: Sequence[Operand], room: int) -> list[Grid]:
    """The grids of matrices side by side: with digits if these can be read and fit into so many px."""
    if not any(operand.large for operand in operands):
        found = [_digit_grid([operand]) for operand in operands]
        if sum(grid.cell_width * operand.columns for grid, operand in zip(found, operands, strict=True)) <= room:
            return found
    return _shape_grids(operands)


def common_grid(operands: Sequence[Operand], room: int) -> Grid:
    """One grid for matrices below each other: with digits if these can be read and fit into so many px."""
    if not any(operand.large for operand in operands):
        grid = _digit_grid(operands)
        if grid.cell_width * max(operand.columns for operand in operands) <= room:
            return grid
    return _shape_grids(operands[-1:])[0]


class Marks(NamedTuple):
    """The entries of the whole that the text talks about: they alone are saturated."""

    rows: range
    columns: range

    def box(self, grid: Grid, x: int, y: int, block: Block) -> Box | None:
        """Where the part of them lies that this block has."""
        rows = range(max(self.rows.start, block.row), min(self.rows.stop, block.row + block.rows))
        columns = range(max(self.columns.start, block.column), min(self.columns.stop, block.column + block.columns))
        if not rows or not columns:
            return None
        return grid.box(x, y, Block([], len(rows), len(columns), rows.start, columns.start))

    def split(self, lines: Sequence[Line]) -> tuple[list[Line], list[Line]]:
        """Return the numbers that are not among them, and those that are."""
        plain: list[Line] = []
        marked: list[Line] = []
        for row, column, texts in lines:
            first, last = (max(0, edge - column) for edge in (self.columns.start, self.columns.stop))
            if row not in self.rows:
                first = last = len(texts)
            plain += [(row, column, texts[:first]), (row, column + last, texts[last:])]
            marked.append((row, column + first, texts[first:last]))
        return [line for line in plain if line[2]], [line for line in marked if line[2]]


NO_MARKS = Marks(range(0), range(0))


def color_of(operand: Operand, rank: int) -> Color:
    """A rank's colour for what is its own, grey for what every rank has."""
    return "neutral" if operand.layout is REPLICATE else rank


def draw_block(
    canvas: Canvas,
    operand: Operand,
    rank: int,
    grid: Grid,
    x: int,
    y: int,
    marks: Marks = NO_MARKS,
    frame: int = FRAME,
) -> None:
    """Draw a rank's block in its place inside the outline of the whole, whose corner is at x, y."""
    block = operand.blocks[rank]
    whole = Box(x, y, grid.across(operand.columns), grid.down(operand.rows))
    box = grid.box(x, y, block)
    if operand.layout is PARTIAL:
        canvas.frame(box, frame, rank)
    else:
        if box != whole:
            canvas.box("absent", whole)
        if not block.empty:
            canvas.box("block", box, color_of(operand, rank))
    if operand.gradient and not block.empty:
        canvas.box("twin", box.grown(TWIN + (frame if operand.layout is PARTIAL else 0)), color_of(operand, rank))
    if marks is not NO_MARKS and (marked := marks.box(grid, x, y, block)):
        canvas.box("mark", marked, rank)
    draw_digits(canvas, [block], grid, x, y, marks, rank)


def draw_digits(
    canvas: Canvas,
    blocks: Sequence[Block],
    grid: Grid,
    x: int,
    y: int,
    marks: Marks = NO_MARKS,
    color: Color = "neutral",
) -> None:
    """Write the numbers of a matrix's blocks; those that are marked in the ink that is read on this colour."""
    if grid.cells is None:
        return
    lines: list[Line] = []
    for block in blocks:
        lines += [(i, block.column, texts) for i, texts in enumerate(block.texts, block.row) if texts]
    lines, marked = marks.split(lines) if marks is not NO_MARKS else (lines, [])
    if lines:
        canvas.digits(*grid.cells.place(lines, x, y))
    if marked:
        canvas.digits(*grid.cells.place(marked, x, y), ink_on(color))


def ink_on(color: Color) -> str:
    """The class of a text on a rank's full colour, or on the dark grey of a marked entry that is no rank's own."""
    return "" if isinstance(color, int) and RANKS[color].on_solid != CARD else "w"


def note_of(operand: Operand, rank: int, grid: Grid) -> str:
    """Which part of the whole a block is, in words; its shape where its numbers are left out."""
    block, layout = operand.blocks[rank], operand.layout
    if block.empty:
        return _("empty")
    if grid.cells is None:
        return f"{block.rows}×{block.columns}"
    if not layout.is_shard():
        return ""
    first, count = (block.column, block.columns) if layout is COLUMNS else (block.row, block.rows)
    if count == 1:
        message = _("column {first}") if layout is COLUMNS else _("row {first}")
    else:
        message = _("columns {first} to {last}") if layout is COLUMNS else _("rows {first} to {last}")
    return message.format(first=first, last=first + count - 1)


def sum_text(rank: int, ranks: int) -> str:
    """What the badge of a partial sum says."""
    return _("Σ {number} of {ranks}").format(number=rank + 1, ranks=ranks)


class Label(NamedTuple):
    """The line above a block: the name, which part of the whole it is, and the badge of a partial sum."""

    name: str
    note: str
    badge: str
    width: int

    @staticmethod
    def of(operand: Operand, rank: int, grid: Grid) -> "Label":
        """The label of a rank's block."""
        name, note = operand.local_name(rank), note_of(operand, rank, grid)
        badge = sum_text(rank, len(operand.blocks)) if operand.layout is PARTIAL else ""
        width = text_width(name, "name") + bool(note) * (_LABEL_SPACE + text_width(note, "note"))
        return Label(name, note, badge, width + (_LABEL_SPACE + pill_width(badge) if badge else 0))

    def draw(self, canvas: Canvas, block: Box, left: int, right: int, rank: int) -> None:
        """Write it above the block, as near to its middle as the slot from left to right allows."""
        x = min(max(block.center_x - self.width // 2, left), right - self.width)
        center_y = block.y - LABEL // 2
        baseline = middle(center_y, "name")
        canvas.name(x, baseline, self.name)
        x += text_width(self.name, "name") + _LABEL_SPACE
        if self.note:
            canvas.text(x, baseline, self.note, "note")
            x += text_width(self.note, "note") + _LABEL_SPACE
        if self.badge:
            canvas.pill(x, center_y, self.badge, rank)


def draw_lane(canvas: Canvas, box: Box, rank: int, head: int = LANE_HEAD) -> None:
    """Draw a rank's lane with its badge in the room of its head; a low one has a small badge."""
    canvas.rounded("lane", box, 8, rank)
    canvas.rounded("solid", Box(box.x, box.y, 10, box.height), 5, rank)
    x = box.x + head // 2
    if box.height < 100:
        canvas.badge(x, box.center_y, rank, radius=15 if box.height >= 36 else 13)
    else:
        canvas.badge(x, box.center_y - 12, rank)
        canvas.text(x, box.center_y + 32, _("rank"), "note", "c")


def draw_upright_lane(canvas: Canvas, box: Box, rank: int) -> None:
    """Draw a lane that stands on its end, for ranks side by side."""
    canvas.rounded("lane", box, 8, rank)
    canvas.rounded("solid", Box(box.x, box.y, box.width, 10), 5, rank)
    canvas.badge(box.center_x, box.y + 32, rank, radius=15)


def draw_silence(canvas: Canvas, gap: Box, text: str) -> None:
    """Mark a gap between lanes that nothing crosses: the words in it, and a line on both sides of them."""
    half = text_width(text, "note") // 2 + 12
    canvas.text(gap.center_x, middle(gap.center_y, "note"), text, "note", "c")
    canvas.line("thin", (gap.x + 8, gap.center_y), (gap.center_x - half, gap.center_y))
    canvas.line("thin", (gap.center_x + half, gap.center_y), (gap.right - 8, gap.center_y))


def draw_silences(canvas: Canvas, x: int, right: int, lanes: Sequence[Box], bars: Sequence[int], half: int) -> None:
    """Mark where nothing crosses between lanes from x to right: all of it, or the widest stretch beside the bars.

    ``bars`` are the bars' centres, and ``half`` is half of a bar's width.
    """
    edges = [x, *sorted(bars), right]
    widest = max(range(len(edges) - 1), key=lambda index: edges[index + 1] - edges[index])
    left, end = edges[widest] + half * (widest > 0), edges[widest + 1] - half * (widest < len(bars))
    for upper, lower in pairwise(lanes):
        draw_silence(canvas, Box(left, upper.bottom, end - left, lower.y - upper.bottom), _("nothing crosses"))


def caption_height(lines: Sequence[str]) -> int:
    """The room that the lines of a caption take."""
    return len(lines) * _CAPTION_LINE + bool(lines) * _CAPTION_GAP


def draw_caption(canvas: Canvas, lines: Sequence[str], x: int, top: int) -> int:
    """Write the lines of a caption; return where the next thing may begin."""
    y = top + _CAPTION_GAP
    for line in lines:
        canvas.text(x, middle(y + _CAPTION_LINE // 2, "caption"), line, "caption")
        y += _CAPTION_LINE
    return top + caption_height(lines)
