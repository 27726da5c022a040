"""Where a function of two addends is not the sum of its values: a map, and one point worked out (diagrams)."""

from collections.abc import Sequence

from torch import Tensor

from tpviz.diagrams.blocks import LANE_HEAD, Grid, Marks, draw_digits, draw_lane
from tpviz.diagrams.canvas import Box, Canvas, middle
from tpviz.diagrams.drawing import Drawing
from tpviz.diagrams.grammar import CELL, LABEL, MARGIN, text_width
from tpviz.diagrams.numbers import Cells, number_text
from tpviz.diagrams.operands import REPLICATE, operand
from tpviz.i18n import _

_TICKS = 56
"""The room for the second axis' name and numbers."""
_BESIDE = 60
"""Between the map and the point's own sums."""
_LANE = 72
_GAP = 10
_ARROW = 118


def addends_map(
    errors: Tensor,
    axis: Sequence[float],
    point: tuple[int, int],
    values: Sequence[float],
    *,
    function: str,
    names: tuple[str, str] = ("Z₀", "Z₁"),
) -> Drawing:
    """Draw by how much f(Z₀) + f(Z₁) is too large, for every pair of addends, and how it comes about at one of them.

    Args:
        errors: f(a) + f(b) - f(a + b), a row for each b from the first of the axis on, a column for each a.
        axis: the addends.
        point: which a and which b, as places on the axis.
        values: f(a), f(b), f(a) + f(b), a + b, and f(a + b) at the point.
        function: what f is called.
        names: what the addends are called.
    """
    count = len(axis)
    if errors.shape != (count, count) or len(values) != 5:
        message = _("errors is {came} and values has {values} numbers; expected {expected} and 5.")
        expected = f"{count}×{count}"
        raise ValueError(message.format(came="×".join(map(str, errors.shape)), values=len(values), expected=expected))
    a, b = point
    if a not in range(count) or b not in range(count):
        message = _("point={point} is outside of the axis, whose places are 0 to {last}.")
        raise IndexError(message.format(point=point, last=count - 1))
    return _Map(errors, axis, point, [number_text(each) for each in values], function, names).drawing()


class _Map:
    """The layout of the figure: the map at the left, the point's two ways at the right."""

    def __init__(
        self,
        errors: Tensor,
        axis: Sequence[float],
        point: tuple[int, int],
        values: list[str],
        function: str,
        names: tuple[str, str],
    ) -> None:
        self.errors = errors.flip(0)  # upwards is more
        self.axis = [number_text(each) for each in axis]
        self.a, self.b = point
        self.values, self.function, self.names = values, function, names
        self.shown = operand("f", self.errors, REPLICATE, 1)
        cells = Cells.of(text for line in self.shown.blocks[0].texts for text in line)
        self.grid = Grid(cells.width, CELL, cells)

    def drawing(self) -> Drawing:
        """Draw both parts."""
        canvas = Canvas()
        count = len(self.axis)
        left, top = MARGIN + _TICKS, MARGIN + LABEL
        title_right = self._draw_map(canvas, left, top, count)
        right, bottom = self._draw_point(canvas, left + self.grid.across(count) + _BESIDE, top)
        right, bottom = max(right, title_right), max(bottom, top + self.grid.down(count) + 2 * LABEL)
        return canvas.drawing(right + MARGIN, bottom + MARGIN - 8, self._alt())

    def _draw_map(self, canvas: Canvas, left: int, top: int, count: int) -> int:
        """Draw the map; return where its title ends."""
        whole = Box(left, top, self.grid.across(count), self.grid.down(count))
        title = _("the difference: {f}({a}) + {f}({b}) − {f}({a} + {b})")
        text = title.format(f=self.function, a=self.names[0], b=self.names[1])
        canvas.text(MARGIN, middle(MARGIN + LABEL // 2 - 6, "label"), text, "label")
        for row, line in enumerate(self.errors.tolist()):
            for column, value in enumerate(line):
                if value:
                    box = Box(
                        left + self.grid.across(column), top + self.grid.down(row), round(self.grid.cell_width), CELL
                    )
                    canvas.box("shade", box)
        canvas.box("absent", whole)
        row = count - 1 - self.b
        marks = Marks(range(row, row + 1), range(self.a, self.a + 1))
        marked = marks.box(self.grid, left, top, self.shown.blocks[0])
        assert marked is not None
        canvas.box("mark", marked, "neutral")
        draw_digits(canvas, self.shown.blocks, self.grid, left, top, marks)
        for place, tick in enumerate(self.axis):
            x = left + self.grid.across(place) + round(self.grid.cell_width) // 2
            canvas.text(x, middle(whole.bottom + LABEL // 2, "note"), tick, "note", "c")
            y = top + self.grid.down(count - 1 - place) + CELL // 2
            canvas.text(left - 10, middle(y, "note"), tick, "note", "e")
        canvas.name(whole.center_x - 10, middle(whole.bottom + LABEL + LABEL // 2 - 4, "name"), self.names[0])
        canvas.name(MARGIN - 4, middle(whole.center_y, "name"), self.names[1])
        return MARGIN + text_width(text, "label")

    def _draw_point(self, canvas: Canvas, left: int, top: int) -> tuple[int, int]:
        """Draw what each rank does with its addend, and what one would get from the sum."""
        first, second, apart, total, together = self.values
        addends = [self.axis[self.a], self.axis[self.b]]
        number = max(text_width(text, "name") for text in [*self.values, *addends]) + 24
        right = left + LANE_HEAD + 2 * number + _ARROW
        rows = [(addends[0], first, 0), (addends[1], second, 1)]
        y = top
        for before, after, rank in rows:
            draw_lane(canvas, Box(left, y, right - left, _LANE), rank)
            self._draw_step(canvas, left + LANE_HEAD, y + _LANE // 2, before, after, number)
            y += _LANE + _GAP
        canvas.line("rule", (right - number - 16, y + 4), (right, y + 4))
        canvas.text(right - number // 2, middle(y + 34, "name"), apart, "name", "c")
        canvas.text(left, middle(y + 34, "label"), _("added afterwards"), "label")
        y += 124
        self._draw_step(canvas, left + LANE_HEAD, y, total, together, number)
        canvas.text(left, middle(y - 40, "label"), _("added first"), "label")
        verdict = _("The same.") if apart == together else _("Not the same.")
        canvas.text(left, middle(y + 52, "label"), verdict, "label")
        return right, y + 70

    def _draw_step(self, canvas: Canvas, x: int, y: int, before: str, after: str, number: int) -> None:
        canvas.text(x + number // 2, middle(y, "name"), before, "name", "c")
        canvas.arrow(x + number, x + number + _ARROW - 10, y)
        canvas.text(x + number + _ARROW // 2 - 6, y - 12, self.function, "label", "c")
        canvas.text(x + number + _ARROW + number // 2 - 6, middle(y, "name"), after, "name", "c")

    def _alt(self) -> str:
        first, second, apart, total, together = self.values
        message = _(
            "A map of where {f} of two addends differs from {f} of their sum: at {a} and {b} the ranks get {first} and "
            "{second}, together {apart}, while the sum {total} gives {together}."
        )
        values = {"first": first, "second": second, "apart": apart, "total": total, "together": together}
        return message.format(f=self.function, a=self.axis[self.a], b=self.axis[self.b], **values)
