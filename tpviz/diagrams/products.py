"""The matmul on n ranks: what each rank multiplies and gets, each block in its layout's place (diagrams)."""

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from tpviz.diagrams.blocks import (
    LANE_HEAD,
    LANE_PAD,
    NO_MARKS,
    Grid,
    Label,
    Marks,
    caption_height,
    draw_block,
    draw_caption,
    draw_lane,
    draw_silence,
    grids,
    sum_text,
)
from tpviz.diagrams.canvas import Box, Canvas, middle
from tpviz.diagrams.drawing import Drawing
from tpviz.diagrams.grammar import FRAME, LABEL, MARGIN, SLIDE_HEIGHT, WIDEST, text_width, wrapped
from tpviz.diagrams.operands import (
    COLUMNS,
    PARTIAL,
    REPLICATE,
    ROWS,
    Operand,
    Outputs,
    Placement,
    checked_entry,
    operand,
    outputs_of,
    read_layout,
)
from tpviz.i18n import _, ngettext
from tpviz.tables import shape_text

_OPERATOR = 56
"""The room for "@" and "="."""
_DIGITS_ROOM = WIDEST - 2 * MARGIN - LANE_HEAD - 2 * _OPERATOR - 2 * FRAME - 2 * LANE_PAD

_STRIP_BLOCK = 22
_STRIP_FRAME = 5
_STRIP_PAD = 5
_LABEL = 26
"""The height of the line above a whole in the overview."""
_HEAD = 72
"""The least height of a whole in the overview."""
_BAND = 28
"""The least height of a band that carries its rank's number."""
_GAP, _STRIP_GAP, _SILENT_GAP = 12, 5, 36


def matmul(
    left: Tensor | Outputs,
    right: Tensor | Outputs,
    result: Outputs,
    placements: Sequence[Placement],
    *,
    names: Sequence[str] = ("X", "W", "Y"),
    entry: tuple[int, int] | None = None,
    open_rank: int | None = None,
) -> Drawing:
    """Draw what each rank multiplies and gets: one lane a rank, each block in its place in the whole.

    Args:
        left: the left factor, whole or as a list with each rank's part.
        right: the right factor, likewise.
        result: what the ranks computed: a run, or a list with one tensor a rank. If a run recorded no event, the gaps
            between the lanes say that nothing crosses.
        placements: PyTorch's placements of the three, such as ``(Replicate(), Shard(1), Shard(1))``.
        names: what the three are called.
        entry: the row and the column of an entry of the result; the row, the column and the entry light up on every
            rank that has a share in it.
        open_rank: where the lanes do not all fit, the one that shows its digits; else the entry's owner, or rank 0.
    """
    layouts = [read_layout(placement, name) for placement, name in zip(placements, names, strict=True)]
    ranks = len(outputs_of(result, names[2]))
    values = (left, right, result)
    x, w, y = (operand(name, value, layout, ranks) for name, value, layout in zip(names, values, layouts, strict=True))
    _check_product(x, w, y)
    if entry is not None:
        checked_entry(entry, y.rows, y.columns, y.name)
    if open_rank is not None and open_rank not in range(ranks):
        message = _("open_rank={rank!r} is none of the ranks 0 to {last}.")
        raise ValueError(message.format(rank=open_rank, last=ranks - 1))
    trace = getattr(result, "trace", None)
    return _Product(x, w, y, entry, silent=trace is not None and not len(trace)).drawing(open_rank)


def column_parallel(
    X: Tensor,
    W: Tensor,
    outputs: Outputs,
    *,
    names: Sequence[str] = ("X", "W", "Y"),
    entry: tuple[int, int] | None = None,
    open_rank: int | None = None,
) -> Drawing:
    """Draw Y = X @ W with W cut by columns: every rank has the whole X, and computes some columns of Y.

    ``outputs`` is the run, or a list with each rank's columns of Y; the rest is as in `matmul`.
    """
    return matmul(X, W, outputs, (REPLICATE, COLUMNS, COLUMNS), names=names, entry=entry, open_rank=open_rank)


def row_parallel(
    X: Tensor,
    W: Tensor,
    outputs: Outputs,
    *,
    names: Sequence[str] = ("X", "W", "Y"),
    entry: tuple[int, int] | None = None,
    open_rank: int | None = None,
) -> Drawing:
    """Draw Y = X @ W with W cut by rows and X by columns: every rank computes a partial sum of the whole Y.

    ``outputs`` is the run, or a list with each rank's partial sum; the rest is as in `matmul`.
    """
    return matmul(X, W, outputs, (COLUMNS, ROWS, PARTIAL), names=names, entry=entry, open_rank=open_rank)


def _check_product(x: Operand, w: Operand, y: Operand) -> None:
    if x.columns != w.rows:
        message = _("{x} is {x_shape} and {w} is {w_shape}: {x} must have as many columns as {w} has rows.")
        raise ValueError(message.format(x=x.name, x_shape=x.shape, w=w.name, w_shape=w.shape))
    for rank, (a, b, c) in enumerate(zip(x.blocks, w.blocks, y.blocks, strict=True)):
        if a.columns != b.rows:
            message = _(
                "rank {rank} cannot multiply {a} by {b}: {x}'s columns and {w}'s rows must be cut alike, "
                "or both be whole."
            )
            shapes = {"a": shape_text((a.rows, a.columns)), "b": shape_text((b.rows, b.columns))}
            raise ValueError(message.format(rank=rank, x=x.name, w=w.name, **shapes))
        if (c.rows, c.columns) != (a.rows, b.columns):
            message = _(
                "{y} of rank {rank} is {came}, where {expected} is expected, the product of {a} and {b}: "
                "give what each rank's own matmul returned, before any collective."
            )
            shapes = {
                "came": shape_text((c.rows, c.columns)),
                "expected": shape_text((a.rows, b.columns)),
                "a": shape_text((a.rows, a.columns)),
                "b": shape_text((b.rows, b.columns)),
            }
            raise ValueError(message.format(y=y.name, rank=rank, **shapes))
    inner_cut = x.layout is COLUMNS
    if inner_cut != (y.layout is PARTIAL):
        message = (
            _("{y} is a partial sum on every rank, since the inner dimension is cut: its placement must be Partial().")
            if inner_cut
            else _("{y} is no partial sum, since the inner dimension is not cut: its placement cannot be Partial().")
        )
        raise ValueError(message.format(y=y.name))


@dataclass(frozen=True, slots=True)
class _Slot:
    """The place of an operand in every lane: as wide as its widest label."""

    operand: Operand
    grid: Grid
    x: int
    width: int
    marks: Marks
    labels: list[Label]

    @property
    def frame(self) -> int:
        return FRAME if self.operand.layout is PARTIAL else 0

    @property
    def block_width(self) -> int:
        return self.grid.across(self.operand.columns)

    @property
    def block_height(self) -> int:
        return self.grid.down(self.operand.rows)

    @property
    def block_x(self) -> int:
        return self.x + (self.width - self.block_width) // 2


class _Product:
    """The layout of the figure: the lanes, and the operands' slots in them."""

    def __init__(self, x: Operand, w: Operand, y: Operand, entry: tuple[int, int] | None, silent: bool) -> None:
        self.operands = (x, w, y)
        self.ranks = len(y.blocks)
        self.entry = entry
        self.silent = silent and self.ranks > 1
        self.slots: list[_Slot] = []
        place = MARGIN + LANE_HEAD
        for shown, grid, marks in zip(self.operands, grids(self.operands, _DIGITS_ROOM), self._marks(), strict=True):
            frame = FRAME if shown.layout is PARTIAL else 0
            labels = [Label.of(shown, rank, grid) for rank in range(self.ranks)]
            width = max(grid.across(shown.columns) + 2 * frame, *(label.width for label in labels))
            self.slots.append(_Slot(shown, grid, place, width, marks, labels))
            place += width + _OPERATOR
        self.right = place - _OPERATOR + 2 * LANE_PAD
        self.content = max(slot.block_height + 2 * slot.frame for slot in self.slots)
        self.gap = _SILENT_GAP if self.silent else _GAP

    def _marks(self) -> list[Marks]:
        if self.entry is None:
            return [NO_MARKS] * 3
        x, _w, _y = self.operands
        i, j = self.entry
        inner, row, column = range(x.columns), range(i, i + 1), range(j, j + 1)
        return [Marks(row, inner), Marks(inner, column), Marks(row, column)]

    def _shares(self, rank: int) -> bool:
        """Whether this rank has a share in the entry."""
        if self.entry is None:
            return False
        block = self.operands[2].blocks[rank]
        i, j = self.entry
        return block.row <= i < block.row + block.rows and block.column <= j < block.column + block.columns

    def drawing(self, open_rank: int | None) -> Drawing:
        """Draw all lanes open if a slide can hold them, else one of them below an overview of the whole."""
        lane = 2 * LANE_PAD + LABEL + self.content
        lines = self._caption()
        all_open = 2 * MARGIN + self.ranks * lane + (self.ranks - 1) * self.gap + caption_height(lines)
        canvas = Canvas()
        if self.ranks == 1 or all_open <= SLIDE_HEIGHT:
            bottom = self._draw_all(canvas, lane)
        else:
            owner = next((rank for rank in range(self.ranks) if self._shares(rank)), 0)
            bottom = self._draw_overview(canvas, lane, owner if open_rank is None else open_rank)
        bottom = draw_caption(canvas, lines, MARGIN, bottom)
        return canvas.drawing(self.right + MARGIN, bottom + MARGIN, self._alt())

    def _draw_all(self, canvas: Canvas, lane: int) -> int:
        top = MARGIN
        for rank in range(self.ranks):
            if rank:
                if self.silent:
                    draw_silence(canvas, Box(MARGIN, top, self.right - MARGIN, self.gap), _("nothing crosses"))
                top += self.gap
            self._draw_open(canvas, Box(MARGIN, top, self.right - MARGIN, lane), rank)
            top += lane
        return top

    def _draw_overview(self, canvas: Canvas, lane: int, opened: int) -> int:
        top = self._draw_head(canvas)
        partial = any(slot.frame for slot in self.slots)
        strip = _STRIP_BLOCK + 2 * (_STRIP_FRAME * partial + _STRIP_PAD)
        for rank in range(self.ranks):
            top += _STRIP_GAP
            box = Box(MARGIN, top, self.right - MARGIN, lane if rank == opened else strip)
            (self._draw_open if rank == opened else self._draw_strip)(canvas, box, rank)
            top = box.bottom
        if self.silent:
            draw_silence(
                canvas, Box(MARGIN, top, self.right - MARGIN, _SILENT_GAP), _("nothing crosses between the lanes")
            )
            top += _SILENT_GAP
        return top

    def _draw_operators(self, canvas: Canvas, center_y: int) -> None:
        for slot, operator in zip(self.slots, "@=", strict=False):
            canvas.character(operator, slot.x + slot.width + _OPERATOR // 2, middle(center_y, "op"), "op")

    def _draw_open(self, canvas: Canvas, lane: Box, rank: int) -> None:
        draw_lane(canvas, lane, rank)
        center_y = lane.y + LANE_PAD + LABEL + self.content // 2
        for slot in self.slots:
            y = center_y - slot.block_height // 2
            marks = slot.marks if self._shares(rank) else NO_MARKS
            draw_block(canvas, slot.operand, rank, slot.grid, slot.block_x, y, marks)
            above = slot.grid.box(slot.block_x, y - slot.frame, slot.operand.blocks[rank])
            slot.labels[rank].draw(canvas, above, slot.x, slot.x + slot.width, rank)
        self._draw_operators(canvas, center_y)

    def _draw_strip(self, canvas: Canvas, lane: Box, rank: int) -> None:
        draw_lane(canvas, lane, rank)
        y = lane.center_y - _STRIP_BLOCK // 2
        for slot in self.slots:
            shown = slot.operand
            flat = Grid(slot.grid.cell_width, _STRIP_BLOCK / shown.rows, None)
            if shown.layout is not PARTIAL:
                marks = slot.marks if self._shares(rank) else NO_MARKS
                draw_block(canvas, shown, rank, flat, slot.block_x, y, marks)
                if shown.blocks[rank].empty:
                    center_x = slot.block_x + slot.block_width // 2
                    canvas.text(center_x, middle(lane.center_y, "note"), _("empty"), "note", "c")
                continue
            draw_block(canvas, shown, rank, flat, slot.block_x, y, frame=_STRIP_FRAME)
            text = sum_text(rank, self.ranks)
            if self.entry is not None and shown.blocks[rank].texts:
                i, j = self.entry
                text = f"{shown.local_name(rank)}[{i}, {j}] = {shown.blocks[rank].texts[i][j]}"
            canvas.text(slot.block_x + slot.block_width // 2, middle(lane.center_y, "mini"), text, "mini", "c")

    def _draw_head(self, canvas: Canvas) -> int:
        """Draw the three wholes once, each as bands that carry the number of the rank that holds them."""
        heights = [
            max(_HEAD, _BAND * sum(not block.empty for block in slot.operand.blocks) * slot.operand.layout.is_shard(0))
            for slot in self.slots
        ]
        frame = max(slot.frame for slot in self.slots)
        center_y = MARGIN + _LABEL + frame + max(heights) // 2
        canvas.text(MARGIN + LANE_HEAD // 2, middle(center_y, "note"), _("whole"), "note", "c")
        for slot, height in zip(self.slots, heights, strict=True):
            shown = slot.operand
            whole = Box(slot.block_x, center_y - height // 2, slot.block_width, height)
            canvas.text(whole.center_x, whole.y - slot.frame - 10, f"{shown.name} {shown.shape}", "label", "c")
            if shown.layout.is_shard():
                grid = Grid(slot.grid.cell_width, height / shown.rows, None)
                for rank, block in enumerate(shown.blocks):
                    band = grid.box(whole.x, whole.y, block)
                    if block.empty:
                        continue
                    canvas.box("block", band, rank)
                    if band.width >= _BAND:
                        canvas.character(str(rank), band.center_x, middle(band.center_y, "number"), "number")
                continue
            if shown.layout is PARTIAL:
                canvas.frame(whole, FRAME, "neutral")
                text = _("the sum of all {ranks}").format(ranks=self.ranks)
            else:
                canvas.box("block", whole, "neutral")
                text = _("on every rank")
            if text_width(text, "note") <= whole.width:
                canvas.text(whole.center_x, middle(center_y, "note"), text, "note", "c")
        self._draw_operators(canvas, center_y)
        return center_y + max(heights) // 2 + frame + _GAP // 2

    def _caption(self) -> list[str]:
        if self.entry is None:
            return []
        x, w, y = self.operands
        i, j = self.entry
        sharers = [rank for rank in range(self.ranks) if self._shares(rank)]
        if len(sharers) == 1:
            message = _("Row {i} of {x} times column {j} of {w} is {y}[{i}, {j}]: rank {rank} computes it alone.")
        elif y.layout is PARTIAL:
            message = _("Row {i} of {x} times column {j} of {w} is {y}[{i}, {j}]: every rank computes a share of it.")
        else:
            message = _("Row {i} of {x} times column {j} of {w} is {y}[{i}, {j}]: every rank computes all of it.")
        text = message.format(i=i, j=j, x=x.name, w=w.name, y=y.name, rank=sharers[0])
        return wrapped(text, "caption", self.right - MARGIN)

    def _alt(self) -> str:
        x, w, y = (shown.description() for shown in self.operands)
        if self.ranks == 1:
            sentence = _("On 1 rank, {x} times {w} gives {y}")
        elif self.silent:
            sentence = _("On {ranks} ranks, between which nothing crosses, {x} times {w} gives {y}")
        else:
            sentence = _("On {ranks} ranks, {x} times {w} gives {y}")
        sentence = sentence.format(ranks=self.ranks, x=x, w=w, y=y)
        if self.entry is not None:
            i, j = self.entry
            sharers = [str(rank) for rank in range(self.ranks) if self._shares(rank)]
            message = ngettext(
                "{sentence}; entry [{i}, {j}] is lit up on rank {ranks}",
                "{sentence}; entry [{i}, {j}] is lit up on ranks {ranks}",
                len(sharers),
            )
            sentence = message.format(sentence=sentence, i=i, j=j, ranks=", ".join(sharers))
        return _("{sentence}.").format(sentence=sentence)
