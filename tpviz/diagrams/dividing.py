"""Two ways to divide the work of one matmul: by rows of the output, or by its columns (diagrams)."""

from collections.abc import Sequence

from tpviz.diagrams.blocks import Grid, common_grid, draw_digits
from tpviz.diagrams.canvas import Box, Canvas, middle
from tpviz.diagrams.drawing import Drawing
from tpviz.diagrams.grammar import LABEL, MARGIN, WIDEST, text_width, wrapped
from tpviz.diagrams.operands import COLUMNS, ROWS, Layout, Operand, Outputs, operand, outputs_of
from tpviz.i18n import _, ngettext
from tpviz.tables import shape_text

_BAND = 32
"""The thickness of the bands that stand for X and W."""
_SPACE = 10
_GAP = 56
"""Between the two panels."""
_LINE = 26
_NAME = 36
"""The room for a name to the right of the weight's band and of the output."""


def two_cuts(
    by_rows: Outputs,
    by_columns: Outputs,
    *,
    titles: Sequence[str] | None = None,
    names: Sequence[str] = ("X", "W", "Y"),
) -> Drawing:
    """Draw the same output cut twice: by rows (as ZeRO-3 divides the work) and by columns (as tensor parallelism does).

    Beside each stands what its ranks need: a band for the rows of X at the left, one for the columns of W above, in
    the ranks' colours where they are divided, grey where every rank needs the whole.

    Args:
        by_rows: a run in which each rank computed some rows of Y with the whole W, or a list of these.
        by_columns: a run in which each rank computed some columns of Y with the whole X, or a list of these.
        titles: what stands above the two.
        names: what input, weight and output are called; each stands beside its band or its rectangle.
    """
    cuts = [_cut(names[2], by_rows, ROWS), _cut(names[2], by_columns, COLUMNS)]
    if cuts[0].shape != cuts[1].shape:
        message = _("cut by rows the output is {rows}, cut by columns {columns}: they must be the same output.")
        raise ValueError(message.format(rows=cuts[0].shape, columns=cuts[1].shape))
    grid = common_grid(cuts, (WIDEST - 2 * MARGIN - _GAP) // 2 - _BAND - _SPACE - _NAME)
    canvas = Canvas()
    x, bottom = MARGIN, 0
    usual = [
        _("ZeRO-3 cuts {x} and {y} by rows").format(x=names[0], y=names[2]),
        _("Tensor parallel cuts {w} and {y} by columns").format(w=names[1], y=names[2]),
    ]
    for cut, title in zip(cuts, titles or usual, strict=True):
        panel = _Panel(cut, grid, title, names)
        bottom = max(bottom, panel.draw(canvas, x))
        x += panel.width + _GAP
    message = _("The same {shape} output cut twice: {rows}, and {columns}.")
    parts = [(_("by rows into {sizes}"), _sizes(cuts[0])), (_("by columns into {sizes}"), _sizes(cuts[1]))]
    rows, columns = (text.format(sizes=sizes) for text, sizes in parts)
    alt = message.format(shape=cuts[0].shape, rows=rows, columns=columns)
    return canvas.drawing(x - _GAP + MARGIN, bottom + MARGIN, alt)


def _cut(name: str, outputs: Outputs, layout: Layout) -> Operand:
    parts = outputs_of(outputs, name)
    return operand(name, parts, layout, len(parts))


def _sizes(cut: Operand) -> str:
    return ", ".join(shape_text((block.rows, block.columns)) for block in cut.blocks)


class _Panel:
    """One of the two: the output in its ranks' colours, with the bands of what they need."""

    def __init__(self, cut: Operand, grid: Grid, title: str, names: Sequence[str]) -> None:
        self.cut, self.grid, self.title, self.names = cut, grid, title, names
        self.output_width = grid.across(cut.columns)
        self.width = max(_BAND + _SPACE + self.output_width + _NAME, text_width(title, "label"))

    def draw(self, canvas: Canvas, x: int) -> int:
        """Draw the panel with its left edge at x; return its bottom."""
        canvas.text(x, middle(MARGIN + 14, "label"), self.title, "label")
        left, top = x + _BAND + _SPACE, MARGIN + LABEL + _BAND + _SPACE
        output = Box(left, top, self.output_width, self.grid.down(self.cut.rows))
        above = Box(left, MARGIN + LABEL, output.width, _BAND)
        beside = Box(x, top, _BAND, output.height)
        canvas.name(above.right + 8, middle(above.center_y, "name"), self.names[1])
        canvas.name(output.right + 8, middle(output.center_y, "name"), self.names[2])
        canvas.name(
            x + (_BAND - text_width(self.names[0], "name")) // 2, middle(output.bottom + 16, "name"), self.names[0]
        )
        by_rows = self.cut.layout is ROWS
        canvas.box("block", above if by_rows else beside, "neutral")
        for rank, block in enumerate(self.cut.blocks):
            if block.empty:
                continue
            part = self.grid.box(left, top, block)
            band = Box(x, part.y, _BAND, part.height) if by_rows else Box(part.x, above.y, part.width, _BAND)
            canvas.box("block", part, rank)
            canvas.box("block", band, rank)
            canvas.character(str(rank), band.center_x, middle(band.center_y, "label"), "label")
        draw_digits(canvas, self.cut.blocks, self.grid, left, top)
        y = output.bottom + LABEL
        for line in self._lines():
            canvas.text(x, middle(y + _LINE // 2, "note"), line, "note")
            y += _LINE
        return y

    def _lines(self) -> list[str]:
        """Who computes how much, and what it needs for that."""
        blocks = self.cut.blocks
        if len({(block.rows, block.columns) for block in blocks}) == 1:
            first = _("each rank computes {rows} × {columns} = {entries} entries")
            rows = _("and needs its rows of {x}, and the whole {w}")
            columns = _("and needs the whole {x}, and its columns of {w}")
        else:
            first = _("the ranks compute {each} entries")
            rows = _("and need their rows of {x}, and the whole {w}")
            columns = _("and need the whole {x}, and their columns of {w}")
        entries = [block.rows * block.columns for block in blocks]
        work = {"rows": blocks[0].rows, "columns": blocks[0].columns, "entries": entries[0]}
        second = rows if self.cut.layout is ROWS else columns
        lines = [
            first.format(**work, each=", ".join(map(str, entries))),
            second.format(x=self.names[0], w=self.names[1]),
        ]
        if idle := sum(block.empty for block in blocks):
            message = ngettext("{count} rank has nothing to do", "{count} ranks have nothing to do", idle)
            lines.append(message.format(count=idle))
        return [line for text in lines for line in wrapped(text, "note", self.width)]
