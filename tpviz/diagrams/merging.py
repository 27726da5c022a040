"""The merge: the ranks' results added entry by entry, or set side by side (diagrams)."""

from torch import Tensor

from tpviz.diagrams.blocks import (
    LANE_HEAD,
    NO_MARKS,
    Marks,
    common_grid,
    draw_block,
    draw_caption,
    draw_digits,
    draw_lane,
    draw_upright_lane,
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
    checked_entry,
    laid_out,
    operand,
    outputs_of,
    subscripted,
)
from tpviz.i18n import _
from tpviz.tables import shape_text

_GAP = 8
_PAD = 9
_SIGN = 40
"""The room for the "+" at the left of an addend."""
_RULE = 22
"""The room for the line above the total."""
_LABEL_SPACE = 16
_CARD_HEAD = 44
"""The room for the badge at the head of an upright lane."""
_GUIDES = 40
"""The room for the lines from the parts to their places in the whole."""
_DIGITS_ROOM = WIDEST - 2 * MARGIN - LANE_HEAD - 200


def summation(
    parts: Outputs,
    total: Tensor,
    *,
    name: str = "Y",
    entry: tuple[int, int] | None = None,
    partial: bool = True,
) -> Drawing:
    """Draw the ranks' results below each other and their sum at the end, as one adds on paper.

    Args:
        parts: a run, or a list with each rank's addend.
        total: their sum, entry by entry.
        name: what the sum is called.
        entry: the row and the column of an entry that lights up in every addend and in the sum. Where a slide cannot
            hold all ranks' matrices, its row (else row 0) stands for them.
        partial: whether the addends are partial sums; else they are finished values, such as columns that somebody
            adds by mistake.
    """
    addends = operand(name, parts, PARTIAL, len(outputs_of(parts, name)))
    whole = operand(name, total, REPLICATE, 1)
    if addends.shape != whole.shape:
        message = _("the sum is {came}, but its addends are {expected}: adding entry by entry keeps the shape.")
        raise ValueError(message.format(came=whole.shape, expected=addends.shape))
    if not partial:
        addends = Operand(name, COLUMNS, addends.rows, addends.columns, addends.blocks)
    if entry is not None:
        checked_entry(entry, whole.rows, whole.columns, name)
    return _Sum(addends, whole, entry).drawing()


class _Sum:
    """The layout of the sum: a lane for each addend, a line, and the total."""

    def __init__(self, addends: Operand, whole: Operand, entry: tuple[int, int] | None) -> None:
        self.shape = whole.shape
        self.ranks = len(addends.blocks)
        self.row: int | None = None
        self.frame = FRAME if addends.layout is PARTIAL else 0
        self.grid = common_grid([addends, whole], _DIGITS_ROOM)
        self.addends, self.whole = addends, whole
        self.marks = NO_MARKS
        i, j = entry or (0, 0)
        if self._height() > SLIDE_HEIGHT and self.grid.cells is not None and whole.rows > 1:
            self.row = i
            self.addends, self.whole = addends.only_row(i), whole.only_row(i)
            self.frame = min(self.frame, 6)
        if entry is not None:
            self.marks = Marks(range(1) if self.row is not None else range(i, i + 1), range(j, j + 1))
        self.x = MARGIN + LANE_HEAD + _SIGN + self.frame
        self.block_right = self.x + self.grid.across(whole.columns)

    @property
    def lane_height(self) -> int:
        """The height of an addend's lane."""
        return self.grid.down(self.whole.rows) + 2 * (_PAD + self.frame)

    def _height(self) -> int:
        return 2 * MARGIN + self.ranks * (self.lane_height + _GAP) + _RULE + self.lane_height

    def drawing(self) -> Drawing:
        """Draw the addends and the total."""
        canvas = Canvas()
        pitch = self.lane_height + _GAP
        rights = [self._draw_addend(canvas, rank, MARGIN + rank * pitch) for rank in range(self.ranks)]
        total = MARGIN + self.ranks * pitch + _RULE
        box = self.grid.box(self.x, total, self.whole.blocks[0])
        line = total - _RULE // 2 - _GAP // 2
        canvas.line("rule", (self.x - self.frame - _SIGN, line), (self.block_right + self.frame, line))
        self._draw_sign(canvas, "=", box.center_y)
        canvas.box("block", box, "neutral")
        if marked := self.marks.box(self.grid, self.x, total, self.whole.blocks[0]):
            canvas.box("mark", marked, "neutral")
        draw_digits(canvas, self.whole.blocks, self.grid, self.x, total, self.marks)
        x = self.block_right + self.frame + _LABEL_SPACE
        canvas.name(x, middle(box.center_y, "name"), self.whole.name)
        right = max(*rights, x + text_width(self.whole.name, "name")) + _LABEL_SPACE
        for rank in range(self.ranks):
            draw_lane(canvas, Box(MARGIN, MARGIN + rank * pitch, right - MARGIN, self.lane_height), rank)
        lines = [] if self.row is None else wrapped(self._caption(), "caption", right - MARGIN)
        bottom = draw_caption(canvas, lines, MARGIN, box.bottom)
        return canvas.drawing(right + MARGIN, bottom + MARGIN, self._alt())

    def _caption(self) -> str:
        return _("Row {row} of each; the other rows are added likewise.").format(row=self.row)

    def _draw_sign(self, canvas: Canvas, sign: str, center_y: int) -> None:
        canvas.character(sign, MARGIN + LANE_HEAD + _SIGN // 2 - 8, middle(center_y, "op"), "op")

    def _draw_addend(self, canvas: Canvas, rank: int, top: int) -> int:
        """Draw an addend and its name; return where they end."""
        center_y = top + self.lane_height // 2
        if rank:
            self._draw_sign(canvas, "+", center_y)
        y = top + _PAD + self.frame
        draw_block(canvas, self.addends, rank, self.grid, self.x, y, self.marks, self.frame)
        name = subscripted(self.addends.name, rank)
        x = self.block_right + self.frame + _LABEL_SPACE
        canvas.name(x, middle(center_y, "name"), name)
        x += text_width(name, "name")
        if self.addends.layout is PARTIAL:
            x += 8
            x += canvas.pill(x, center_y, sum_text(rank, self.ranks), rank)
        return x

    def _alt(self) -> str:
        if self.addends.layout is PARTIAL:
            message = _("The partial sums of {ranks} ranks, {shape} each, add up entry by entry to {name}, {shape}")
        else:
            message = _("The matrices of {ranks} ranks, {shape} each, add up entry by entry to one of {shape}")
        sentence = message.format(ranks=self.ranks, shape=self.shape, name=self.whole.name)
        if self.row is not None:
            sentence = _("{sentence}; row {row} is shown").format(sentence=sentence, row=self.row)
        return _("{sentence}.").format(sentence=sentence)


def concatenation(parts: Outputs, whole: Tensor, *, name: str = "Y", dim: int = -1) -> Drawing:
    """Draw the ranks' results and the whole in which they stand side by side, or one above another.

    Args:
        parts: a run, or a list with each rank's part.
        whole: the parts, concatenated.
        name: what the whole is called.
        dim: the dimension along which the parts follow each other: 1 or -1 side by side, 0 one above another.
    """
    pieces = outputs_of(parts, name)
    result = operand(name, whole, REPLICATE, 1)
    if dim not in (-2, -1, 0, 1):
        raise ValueError(_("dim={dim} is no dimension of a matrix: expected 0 or 1.").format(dim=dim))
    layout = COLUMNS if dim % 2 or whole.ndim < 2 else ROWS
    joined = laid_out(name, pieces, layout)
    kept = 0 if layout is COLUMNS else 1
    if joined.shape != result.shape or any(piece.shape[kept] != pieces[0].shape[kept] for piece in pieces):
        message = _(
            "the parts are {parts}, and the whole is {whole}: along dim {dim} the parts' sizes must add up to it."
        )
        shapes = ", ".join(shape_text(piece.shape) for piece in pieces)
        raise ValueError(message.format(parts=shapes, whole=result.shape, dim=layout.dim))
    return _Concatenation(joined, result).drawing()


class _Concatenation:
    """The layout of the figure: a lane for each part, and lines from each to its place in the whole."""

    def __init__(self, parts: Operand, whole: Operand) -> None:
        self.parts, self.whole = parts, whole
        self.ranks = len(parts.blocks)
        self.grid = common_grid([parts, whole], _DIGITS_ROOM)
        self.width = self.grid.across(whole.columns)
        self.height = self.grid.down(whole.rows)

    def drawing(self) -> Drawing:
        """Draw the parts and the whole."""
        canvas = Canvas()
        right, bottom = self._draw_rows(canvas) if self.parts.layout is ROWS else self._draw_columns(canvas)
        return canvas.drawing(right + MARGIN, bottom + MARGIN, self._alt())

    def _draw_columns(self, canvas: Canvas) -> tuple[int, int]:
        """Draw upright lanes side by side, and the whole below them."""
        names = [subscripted(self.parts.name, rank) for rank in range(self.ranks)]
        widths = [
            max(self.grid.across(block.columns), text_width(name, "name"), text_width(_("empty"), "note")) + 24
            for block, name in zip(self.parts.blocks, names, strict=True)
        ]
        right = MARGIN + max(sum(widths) + (self.ranks - 1) * _GAP, self.width + 2 * _LABEL_SPACE)
        x = MARGIN + (right - MARGIN - sum(widths) - (self.ranks - 1) * _GAP) // 2
        y = MARGIN + _CARD_HEAD + LABEL
        lane_bottom = y + self.height + 12
        whole_x = (MARGIN + right - self.width) // 2
        whole_y = lane_bottom + _GUIDES
        for rank, (width, name, block) in enumerate(zip(widths, names, self.parts.blocks, strict=True)):
            draw_upright_lane(canvas, Box(x, MARGIN, width, lane_bottom - MARGIN), rank)
            canvas.name(x + (width - text_width(name, "name")) // 2, middle(y - LABEL // 2, "name"), name)
            place = self.grid.box(whole_x, whole_y, block)
            part = Box(x + (width - place.width) // 2, y, place.width, place.height)
            self._draw_part(canvas, rank, part)
            self._draw_place(canvas, rank, place)
            if not block.empty:
                canvas.line("thin", (part.x, lane_bottom + 4), (place.x, whole_y - 10))
                canvas.line("thin", (part.right, lane_bottom + 4), (place.right, whole_y - 10))
            x += width + _GAP
        self._draw_whole(canvas, whole_x, whole_y)
        return right, whole_y + self.height + LABEL

    def _draw_rows(self, canvas: Canvas) -> tuple[int, int]:
        """Draw lanes one above another, and the whole to the right of them."""
        names = [subscripted(self.parts.name, rank) for rank in range(self.ranks)]
        x = MARGIN + LANE_HEAD + max(text_width(name, "name") for name in names) + _LABEL_SPACE
        right = x + self.width + _LABEL_SPACE
        heights = [max(self.grid.down(block.rows), LABEL) + 2 * _PAD for block in self.parts.blocks]
        bottom = MARGIN + max(sum(heights) + (self.ranks - 1) * _GAP, self.height + LABEL)
        whole_x, whole_y = right + _GUIDES, (MARGIN + bottom - self.height) // 2
        y = MARGIN + (bottom - MARGIN - sum(heights) - (self.ranks - 1) * _GAP) // 2
        for rank, (height, name, block) in enumerate(zip(heights, names, self.parts.blocks, strict=True)):
            lane = Box(MARGIN, y, right - MARGIN, height)
            draw_lane(canvas, lane, rank)
            canvas.name(MARGIN + LANE_HEAD, middle(lane.center_y, "name"), name)
            place = self.grid.box(whole_x, whole_y, block)
            part = Box(x, y + (height - place.height) // 2, place.width, place.height)
            self._draw_part(canvas, rank, part)
            self._draw_place(canvas, rank, place)
            if not block.empty:
                canvas.line("thin", (right + 4, part.y), (whole_x - 10, place.y))
                canvas.line("thin", (right + 4, part.bottom), (whole_x - 10, place.bottom))
            y += height + _GAP
        self._draw_whole(canvas, whole_x, whole_y)
        return whole_x + self.width + LABEL, max(bottom, whole_y + self.height + LABEL)

    def _draw_part(self, canvas: Canvas, rank: int, box: Box) -> None:
        block = self.parts.blocks[rank]
        if block.empty:
            canvas.text(box.center_x, middle(box.center_y, "note"), _("empty"), "note", "c")
            return
        canvas.box("block", box, rank)
        corner = self.grid.box(0, 0, block)
        draw_digits(canvas, [block], self.grid, box.x - corner.x, box.y - corner.y)

    def _draw_place(self, canvas: Canvas, rank: int, place: Box) -> None:
        """Draw where a part lies in the whole, and the seam at its end."""
        if self.parts.blocks[rank].empty:
            return
        canvas.box("block", place, rank)
        if self.parts.layout is COLUMNS and rank:
            canvas.line("rule", (place.x, place.y - 9), (place.x, place.bottom + 9))
        elif rank:
            canvas.line("rule", (place.x - 9, place.y), (place.right + 9, place.y))

    def _draw_whole(self, canvas: Canvas, x: int, y: int) -> None:
        draw_digits(canvas, self.whole.blocks, self.grid, x, y)
        name, shape = self.whole.name, self.whole.shape
        start = x + (self.width - text_width(name, "name") - 8 - text_width(shape, "note")) // 2
        baseline = middle(y + self.height + LABEL // 2 + 6, "name")
        canvas.name(start, baseline, name)
        canvas.text(start + text_width(name, "name") + 8, baseline, shape, "note")

    def _alt(self) -> str:
        shapes = ", ".join(shape_text((block.rows, block.columns)) for block in self.parts.blocks)
        if self.parts.layout is COLUMNS:
            message = _("The parts of {ranks} ranks, {shapes}, side by side are {name}, {shape}.")
        else:
            message = _("The parts of {ranks} ranks, {shapes}, one above another are {name}, {shape}.")
        return message.format(ranks=self.ranks, shapes=shapes, name=self.whole.name, shape=self.whole.shape)
