"""Matrices side by side, with their names, shapes and numbers (diagrams)."""

from collections.abc import Sequence

from torch import Tensor

from tpviz.diagrams.blocks import NO_MARKS, Marks, draw_digits, grids
from tpviz.diagrams.canvas import Box, Canvas, middle
from tpviz.diagrams.drawing import Drawing
from tpviz.diagrams.grammar import LABEL, MARGIN, WIDEST, text_width
from tpviz.diagrams.operands import REPLICATE, Operand, operand, typeset
from tpviz.i18n import _

_GAP = 40


def matrix(values: Tensor, name: str = "X", *, highlight: tuple[int | None, int | None] | None = None) -> Drawing:
    """Draw one matrix; a vector is one row.

    Args:
        values: the matrix.
        name: what it is called; "Y_0" is written Y₀.
        highlight: what the text talks about: (0, 1) is an entry, (0, None) row 0, (None, 1) column 1.
    """
    shown = operand(typeset(name), values, REPLICATE, 1)
    marks, message = NO_MARKS, _("The matrix {name}, {shape}.")
    row, column = highlight or (None, None)
    if highlight is not None:
        marks = _marks(highlight, shown)
        if row is None:
            message = _("The matrix {name}, {shape}; column {column} is marked.")
        elif column is None:
            message = _("The matrix {name}, {shape}; row {row} is marked.")
        else:
            message = _("The matrix {name}, {shape}; entry [{row}, {column}] is marked.")
    alt = message.format(name=shown.name, shape=shown.shape, row=row, column=column)
    return _drawing([shown], marks, alt)


def matrices(**named: Tensor) -> Drawing:
    """Draw several matrices side by side: ``matrices(X=X, W=W)``; the name ``Y_0`` is written Y₀."""
    if not named:
        raise ValueError(_("there is no matrix to draw: give names and tensors, such as matrices(X=X, W=W)."))
    shown = [operand(typeset(name), values, REPLICATE, 1) for name, values in named.items()]
    listed = ", ".join(f"{each.name} ({each.shape})" for each in shown)
    return _drawing(shown, NO_MARKS, _("Side by side: {matrices}.").format(matrices=listed))


def _marks(highlight: tuple[int | None, int | None], shown: Operand) -> Marks:
    ranges = []
    for place, size, kind in zip(highlight, (shown.rows, shown.columns), (_("row"), _("column")), strict=True):
        if place is not None and place not in range(size):
            message = _("highlight={highlight}: {name} is {shape}, its last {kind} is {last}.")
            values = {"name": shown.name, "shape": shown.shape, "kind": kind, "last": size - 1}
            raise IndexError(message.format(highlight=highlight, **values))
        ranges.append(range(size) if place is None else range(place, place + 1))
    return Marks(*ranges)


def _drawing(shown: Sequence[Operand], marks: Marks, alt: str) -> Drawing:
    canvas = Canvas()
    found = grids(shown, WIDEST - 2 * MARGIN - (len(shown) - 1) * _GAP)
    height = max(grid.down(each.rows) for each, grid in zip(shown, found, strict=True))
    x = MARGIN
    for each, grid in zip(shown, found, strict=True):
        label = text_width(each.name, "name") + 8 + text_width(each.shape, "note")
        wide, high = grid.across(each.columns), grid.down(each.rows)
        slot = max(wide, label)
        box = Box(x + (slot - wide) // 2, MARGIN + LABEL + (height - high) // 2, wide, high)
        canvas.box("block", box, "neutral")
        if marked := marks.box(grid, box.x, box.y, each.blocks[0]):
            canvas.box("mark", marked, "neutral")
        draw_digits(canvas, each.blocks, grid, box.x, box.y, marks)
        start, baseline = x + (slot - label) // 2, middle(box.y - LABEL // 2, "name")
        canvas.name(start, baseline, each.name)
        canvas.text(start + text_width(each.name, "name") + 8, baseline, each.shape, "note")
        x += slot + _GAP
    return canvas.drawing(x - _GAP + MARGIN, MARGIN + LABEL + height + MARGIN, alt)
