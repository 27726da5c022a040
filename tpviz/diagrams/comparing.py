"""Wrong beside right: what each rank has, what it should have, and how the two differ, in words (diagrams)."""

from collections.abc import Sequence
from dataclasses import replace

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
)
from tpviz.diagrams.canvas import Box, Canvas, middle
from tpviz.diagrams.drawing import Drawing
from tpviz.diagrams.grammar import MARGIN, SLIDE_HEIGHT, SLIDE_WIDTH, TWIN, text_width, wrapped
from tpviz.diagrams.operands import COLUMNS, REPLICATE, Operand, Outputs, check_ranks, operand, outputs_of, subscripted
from tpviz.differences import Difference, difference
from tpviz.i18n import _

_GAP = 8
_PAD = 9
_WORDS = 440
"""The room for what is said of a rank's matrix."""
_LINE = 26
_SPACE = 20


def compared(
    parts: Outputs, right: Tensor, *, name: str = "dX", ranks: Sequence[int] | None = None, own: bool = True
) -> Drawing:
    """Draw what each rank has beside what it should have, with the factor, the offset or the worst entry named.

    Args:
        parts: a run, or a list with one tensor a rank.
        right: what each of them should be.
        name: what it is called; a name that starts with d is a gradient and wears a second outline.
        ranks: whose tensors these are; left out, those of all ranks.
        own: whether each rank's tensor has the rank's number to its name; else all have the one name.
    """
    held = outputs_of(parts, name)
    numbers = tuple(range(len(held)) if ranks is None else ranks)
    if len(numbers) != len(held):
        message = _("ranks={ranks} are {came} numbers for {expected} tensors: give one for each.")
        raise ValueError(message.format(ranks=list(numbers), came=len(numbers), expected=len(held)))
    check_ranks(max(numbers) + 1)
    whole = operand(name, right, REPLICATE, 1)
    shown = operand(name, held, REPLICATE, len(held))  # all of one shape; the layout only says that none is a shard
    if shown.shape != whole.shape:
        message = _("{name} is {came} on the ranks, where {expected} is expected: wrong and right must have one shape.")
        raise ValueError(message.format(name=name, came=shown.shape, expected=whole.shape))
    gradient = name.startswith("d")
    # A block for each rank up to the highest, of which those asked for are drawn.
    blocks = [shown.blocks[0]] * (max(numbers) + 1)
    for number, block in zip(numbers, shown.blocks, strict=True):
        blocks[number] = block
    mine = Operand(name, COLUMNS, whole.rows, whole.columns, blocks, gradient)
    found = [difference(part, right.reshape(part.shape)) for part in held]
    return _Compared(mine, replace(whole, gradient=gradient), found, numbers, own).drawing()


class _Compared:
    """The layout of the figure: a lane for each rank, with its matrix and the words, and the right one below."""

    def __init__(
        self, mine: Operand, whole: Operand, found: list[Difference], numbers: Sequence[int], own: bool
    ) -> None:
        self.found, self.numbers = found, numbers
        self.names = [subscripted(mine.name, rank) if own else mine.name for rank in numbers]
        self.ranks = len(found)
        self.shape = whole.shape
        self.grid = common_grid([mine, whole], SLIDE_WIDTH - 2 * MARGIN - LANE_HEAD - _WORDS)
        self.row: int | None = None
        self.mine, self.whole = mine, whole
        if self._height() > SLIDE_HEIGHT and self.grid.cells is not None and whole.rows > 1:
            worst = next((each for each in found if each.differing), None)
            self.row = worst.place[0] if worst is not None and len(worst.place) == 2 else 0
            self.mine, self.whole = mine.only_row(self.row), whole.only_row(self.row)
        self.x = MARGIN + LANE_HEAD + max(text_width(self.names[0], "name"), 40) + _SPACE
        self.words_x = self.x + self.grid.across(whole.columns) + TWIN + _SPACE

    @property
    def lane_height(self) -> int:
        """The height of a lane."""
        return max(self.grid.down(self.whole.rows) + 2 * (_PAD + TWIN), 2 * _LINE + 2 * _PAD)

    def _height(self) -> int:
        return 2 * MARGIN + (self.ranks + 1) * (self.lane_height + _GAP)

    def _marks(self, rank: int) -> Marks:
        """The entry that differs most, where few do; where most do, a single one in colour would mislead."""
        found, place = self.found[rank], self.found[rank].place
        if len(place) != 2 or 2 * found.differing > found.entries or self.row not in (None, place[0]):
            return NO_MARKS
        row = 0 if self.row is not None else place[0]
        return Marks(range(row, row + 1), range(place[1], place[1] + 1))

    def drawing(self) -> Drawing:
        """Draw the lanes and the right matrix."""
        canvas = Canvas()
        pitch = self.lane_height + _GAP
        right = self.words_x + _WORDS
        for place, rank in enumerate(self.numbers):
            lane = Box(MARGIN, MARGIN + place * pitch, right - MARGIN, self.lane_height)
            draw_lane(canvas, lane, rank)
            canvas.name(MARGIN + LANE_HEAD, middle(lane.center_y, "name"), self.names[place])
            y = lane.center_y - self.grid.down(self.whole.rows) // 2
            draw_block(canvas, self.mine, rank, self.grid, self.x, y, self._marks(place))
            self._write(canvas, str(self.found[place]), lane.center_y)
        center_y = MARGIN + self.ranks * pitch + self.lane_height // 2
        y = center_y - self.grid.down(self.whole.rows) // 2
        box = self.grid.box(self.x, y, self.whole.blocks[0])
        canvas.box("block", box, "neutral")
        if self.whole.gradient:
            canvas.box("twin", box.grown(TWIN), "neutral")
        draw_digits(canvas, self.whole.blocks, self.grid, self.x, y)
        canvas.name(MARGIN + LANE_HEAD, middle(center_y, "name"), self.whole.name)
        self._write(canvas, _("what it should be"), center_y)
        lines = [] if self.row is None else wrapped(self._caption(), "caption", right - MARGIN)
        bottom = draw_caption(canvas, lines, MARGIN, center_y + self.lane_height // 2)
        return canvas.drawing(right + MARGIN, bottom + MARGIN, self._alt())

    def _write(self, canvas: Canvas, sentence: str, center_y: int) -> None:
        lines = wrapped(sentence, "caption", _WORDS - _SPACE)
        y = center_y - len(lines) * _LINE // 2
        for line in lines:
            canvas.text(self.words_x, middle(y + _LINE // 2, "caption"), line, "caption")
            y += _LINE

    def _caption(self) -> str:
        return _("Row {row} of each is shown.").format(row=self.row)

    def _alt(self) -> str:
        said = [
            _("rank {rank}: {words}").format(rank=rank, words=str(each).rstrip(".。"))
            for rank, each in zip(self.numbers, self.found, strict=True)
        ]
        message = _("What {ranks} ranks hold as {name} ({shape}), beside what it should be; {said}.")
        return message.format(name=self.whole.name, shape=self.shape, ranks=self.ranks, said="; ".join(said))
