"""One matmul on one device with its two gradients: values above, gradients below in the same columns (diagrams)."""

from dataclasses import replace

from torch import Tensor

from tpviz.diagrams.blocks import Grid, draw_digits, grids
from tpviz.diagrams.canvas import Box, Canvas, middle
from tpviz.diagrams.drawing import Drawing
from tpviz.diagrams.grammar import LABEL, MARGIN, TWIN, WIDEST, text_width
from tpviz.diagrams.operands import REPLICATE, Operand, operand
from tpviz.i18n import _

_OPERATOR = 96
"""The room for the operators and the arrows between two matrices."""
_ROWS = 26
"""Between the values and the gradients."""
_TURN = 34
"""How far below the gradients the arrow from dY to dX runs."""
_SPACE = 8


def dense_backward(
    X: Tensor,
    W: Tensor,
    Y: Tensor,
    dX: Tensor | None,
    dW: Tensor,
    dY: Tensor,
    *,
    names: tuple[str, str, str] = ("X", "W", "Y"),
) -> Drawing:
    """Draw Y = X @ W, and under each matrix its gradient, with an arrow for what each gradient is computed from.

    ``dX`` is None where nobody computes it, since X is data: its place stays empty.
    """
    values = [operand(name, value, REPLICATE, 1) for name, value in zip(names, (X, W, Y), strict=True)]
    gradients: list[Operand | None] = []
    for value, gradient in zip(values, (dX, dW, dY), strict=True):
        name = f"d{value.name}"
        shown = None if gradient is None else replace(operand(name, gradient, REPLICATE, 1), gradient=True)
        if shown is not None and shown.shape != value.shape:
            message = _("{name} is {came}, but {value} is {expected}: a gradient has the shape of what it belongs to.")
            raise ValueError(message.format(name=name, value=value.name, came=shown.shape, expected=value.shape))
        gradients.append(shown)
    return _Dense(values, gradients).drawing()


class _Dense:
    """The layout of the figure: three columns, the values above and the gradients below."""

    def __init__(self, values: list[Operand], gradients: list[Operand | None]) -> None:
        self.values, self.gradients = values, gradients
        self.notes = (_("to the layer before"), _("updates {W}"), _("from the layer after"))
        room = WIDEST - 2 * MARGIN - 2 * _OPERATOR
        self.grids = grids(values, room)
        drawn = [gradient for gradient in gradients if gradient is not None]
        wide = {each.name: grid for each, grid in zip(drawn, grids(drawn, room), strict=True)}
        # A gradient's numbers may be wider than its value's: both get the wider cells, so that they stay in one column.
        self.grids = [
            max(grid, wide.get(f"d{value.name}", grid), key=lambda each: each.cell_width)
            for value, grid in zip(values, self.grids, strict=True)
        ]

    def drawing(self) -> Drawing:
        """Draw the values, the gradients, and what leads from dY to the other two."""
        canvas = Canvas()
        highest = max(grid.down(value.rows) for value, grid in zip(self.values, self.grids, strict=True))
        upper = MARGIN + LABEL + highest // 2
        lower = upper + highest + _ROWS + LABEL + 2 * TWIN
        x, boxes = MARGIN + TWIN, []
        for value, gradient, grid, note in zip(self.values, self.gradients, self.grids, self.notes, strict=True):
            name = f"d{value.name}"
            text = note.format(W=value.name) if gradient is not None else ""
            label = text_width(name, "name") + _SPACE + text_width(text, "note")
            width = max(grid.across(value.columns), label)
            self._draw_matrix(canvas, value, grid, x + width // 2, upper, value.shape)
            if gradient is None:
                boxes.append(self._draw_absence(canvas, value, grid, x + width // 2, lower))
            else:
                boxes.append(self._draw_matrix(canvas, gradient, grid, x + width // 2, lower, text))
            x += width + _OPERATOR
        for left, right, sign in zip(boxes, boxes[1:], "@=", strict=False):
            canvas.character(sign, (left.right + right.x) // 2, middle(upper, "op"), "op")
        bottom = self._draw_arrows(canvas, boxes, lower)
        return canvas.drawing(x - _OPERATOR + TWIN + MARGIN, bottom + MARGIN, self._alt())

    def _draw_matrix(self, canvas: Canvas, shown: Operand, grid: Grid, center_x: int, center_y: int, note: str) -> Box:
        width, height = grid.across(shown.columns), grid.down(shown.rows)
        box = Box(center_x - width // 2, center_y - height // 2, width, height)
        canvas.box("block", box, "neutral")
        if shown.gradient:
            canvas.box("twin", box.grown(TWIN), "neutral")
        draw_digits(canvas, shown.blocks, grid, box.x, box.y)
        label = text_width(shown.name, "name") + _SPACE + text_width(note, "note")
        baseline = middle(box.y - LABEL // 2 - TWIN * shown.gradient, "name")
        canvas.name(center_x - label // 2, baseline, shown.name)
        canvas.text(center_x - label // 2 + text_width(shown.name, "name") + _SPACE, baseline, note, "note")
        return box

    def _draw_absence(self, canvas: Canvas, value: Operand, grid: Grid, center_x: int, center_y: int) -> Box:
        width, height = grid.across(value.columns), grid.down(value.rows)
        box = Box(center_x - width // 2, center_y - height // 2, width, height)
        canvas.box("absent", box)
        name = f"d{value.name}"
        canvas.name(center_x - text_width(name, "name") // 2, middle(box.y - LABEL // 2 - TWIN, "name"), name)
        canvas.text(center_x, middle(center_y, "note"), _("not computed"), "note", "c")
        return box

    def _draw_arrows(self, canvas: Canvas, boxes: list[Box], center_y: int) -> int:
        """Draw the arrows to dW and to dX; return where the lower of them ends."""
        dX, dW, dY = boxes
        start, end = dY.x - TWIN - 6, dW.right + TWIN + 6
        canvas.arrow(start, end, center_y)
        canvas.text((start + end) // 2, center_y - 14, f"{self.values[0].name}ᵀ @", "label", "c")
        lowest = max(box.bottom for box in boxes) + TWIN
        if self.gradients[0] is None:
            return lowest
        y = lowest + _TURN
        canvas.line("arrow", (dY.center_x, dY.bottom + TWIN + 6), (dY.center_x, y), (dX.center_x, y))
        canvas.rise(dX.center_x, y, dX.bottom + TWIN + 6)
        canvas.text(dW.center_x, y - 10, f"@ {self.values[1].name}ᵀ", "label", "c")
        return y

    def _alt(self) -> str:
        x, w, y = (value.name for value in self.values)
        shapes = {"x_shape": self.values[0].shape, "w_shape": self.values[1].shape, "y_shape": self.values[2].shape}
        if self.gradients[0] is None:
            message = _(
                "{x} ({x_shape}) times {w} ({w_shape}) gives {y} ({y_shape}); below, d{y} gives d{w}, and d{x} is "
                "not computed."
            )
        else:
            message = _(
                "{x} ({x_shape}) times {w} ({w_shape}) gives {y} ({y_shape}); below, each has its gradient: d{y} gives "
                "d{w} and d{x}."
            )
        return message.format(x=x, w=w, y=y, **shapes)
