"""A number that reaches the loss along several paths: values forward, contributions backward (diagrams)."""

from collections.abc import Sequence

from tpviz.diagrams.blocks import LANE_PAD
from tpviz.diagrams.canvas import Box, Canvas, Color, middle
from tpviz.diagrams.drawing import Drawing
from tpviz.diagrams.grammar import CELL, MARGIN, TWIN, text_width
from tpviz.diagrams.numbers import number_text
from tpviz.diagrams.operands import check_ranks, subscripted
from tpviz.i18n import _, ngettext

_GAP = 12
_SIDE = 140
"""The room for the curves between x and the lanes, and between the lanes and L."""
_ARROW = 150
"""The room for the arrows in a lane."""
_HEAD = 92
"""The room for the number of the path."""
_ROW = 66
"""From the values' line in a lane to the gradients'."""
_LIFT = 36
"""How far x and L lie above the middle, and the gradient of x below."""
_NODE = 17
_SPACE = 10


def branches(
    x: float,
    weights: Sequence[float],
    values: Sequence[float],
    loss: float,
    upstream: Sequence[float],
    contributions: Sequence[float],
    total: float,
    *,
    names: tuple[str, str, str, str] = ("x", "w", "y", "L"),
) -> Drawing:
    """Draw how x reaches the loss along one path for each weight, and how the gradient comes back along them.

    Args:
        x: where the paths begin.
        weights: what x is multiplied by on each path.
        values: what each path makes of x.
        loss: what the values give together.
        upstream: the gradient of each value.
        contributions: what each path tells of the gradient of x.
        total: the gradient of x.
        names: what x, the weights, the values and the loss are called.
    """
    count = len(weights)
    for name, given in (("values", values), ("upstream", upstream), ("contributions", contributions)):
        if len(given) != count or not count:
            message = _("{name} has {came} numbers for {expected} weights: give one for each path.")
            raise ValueError(message.format(name=name, came=len(given), expected=count))
    check_ranks(count)
    columns = [[float(each) for each in given] for given in (weights, values, upstream, contributions)]
    texts = [number_text(number) for number in (float(x), float(loss), float(total))]
    return _Branches(texts, [[number_text(each) for each in column] for column in columns], names).drawing()


class _Branches:
    """The layout of the figure: x at the left, a lane for each path, the loss at the right."""

    def __init__(self, ends: Sequence[str], columns: list[list[str]], names: tuple[str, str, str, str]) -> None:
        self.names = names
        self.x, self.loss, self.total = ends
        self.weights, self.values, self.upstream, self.contributions = columns
        self.count = len(self.weights)
        widest = max(text_width(text, "digit") for text in [*ends, *self.values, *self.upstream, *self.contributions])
        self.cell = max(widest + 16, 56)

    def drawing(self) -> Drawing:
        """Draw the lanes, then what joins them."""
        canvas = Canvas()
        x_name, w_name, y_name, loss_name = self.names
        label = text_width(f"d{loss_name}/d{y_name}00", "name")
        lane_height = 2 * LANE_PAD + CELL + _ROW
        lane_x = MARGIN + max(self.cell + 2 * TWIN, text_width(f"d{loss_name}/d{x_name}", "name")) + _SIDE
        start = lane_x + _HEAD + TWIN
        end = start + self.cell + TWIN + _ARROW
        lane_right = end + self.cell + TWIN + _SPACE + label + LANE_PAD
        loss_x = lane_right + _SIDE
        lanes_height = self.count * (lane_height + _GAP) - _GAP
        height = max(lanes_height, 2 * (_LIFT + CELL + 30))  # the ends have names above and below
        forward, backward = MARGIN + height // 2 - _LIFT, MARGIN + height // 2 + _LIFT
        node_x = MARGIN + TWIN + self.cell + TWIN + _NODE + _SPACE
        for path in range(self.count):
            top = MARGIN + (height - lanes_height) // 2 + path * (lane_height + _GAP)
            lane = Box(lane_x, top, lane_right - lane_x, lane_height)
            canvas.rounded("lane", lane, 8, path)
            canvas.rounded("solid", Box(lane.x, lane.y, 10, lane.height), 5, path)
            number = _("path {number}").format(number=path + 1)
            canvas.text(lane.x + 22, middle(lane.center_y, "label"), number, "label")
            upper, lower = lane.center_y - _ROW // 2, lane.center_y + _ROW // 2
            self._draw_cell(canvas, end, upper, self.values[path], path)
            self._draw_cell(canvas, end, lower, self.upstream[path], path, gradient=True)
            self._draw_cell(canvas, start, lower, self.contributions[path], path, gradient=True)
            name_x = end + self.cell + TWIN + _SPACE
            canvas.name(name_x, middle(upper, "name"), subscripted(y_name, path + 1))
            canvas.name(name_x, middle(lower, "name"), subscripted(f"d{loss_name}/d{y_name}", path + 1))
            text = f"· {subscripted(w_name, path + 1)} = {self.weights[path]}"
            canvas.arrow(lane.x + _HEAD, end - 8, upper)
            canvas.arrow(end - TWIN - 6, start + self.cell + TWIN + 8, lower, path)
            for center_y in (upper, lower):
                canvas.text((start + self.cell + end) // 2, center_y - 11, text, "label", "c")
            canvas.curve((MARGIN + TWIN + self.cell + 6, forward), (lane_x - 6, upper), "neutral")
            canvas.curve((lane_right + 6, upper), (loss_x - 8, forward), "neutral")
            canvas.curve((loss_x - 8, backward), (lane_right + 6, lower), path)
            arrive = backward + (2 * path - self.count + 1) * _NODE // self.count
            canvas.curve((lane_x - 6, lower), (node_x + _NODE + 5, arrive), path)
        x = MARGIN + TWIN
        self._draw_cell(canvas, x, forward, self.x, "neutral")
        self._draw_cell(canvas, x, backward, self.total, "neutral", gradient=True)
        self._draw_cell(canvas, loss_x, forward, self.loss, "neutral")
        self._draw_cell(canvas, loss_x, backward, "1", "neutral", gradient=True)
        canvas.text(loss_x + self.cell // 2, backward + CELL // 2 + 34, f"d{loss_name}/d{loss_name}", "name", "c")
        canvas.node(node_x, backward, "+", _NODE)
        canvas.text(x + self.cell // 2, forward - CELL // 2 - 12, x_name, "name", "c")
        canvas.text(loss_x + self.cell // 2, forward - CELL // 2 - 12, loss_name, "name", "c")
        canvas.text(x, backward + CELL // 2 + 34, f"d{loss_name}/d{x_name}", "name")
        right = loss_x + self.cell // 2 + text_width(f"d{loss_name}/d{loss_name}", "name") // 2
        return canvas.drawing(max(right, loss_x + self.cell + TWIN) + MARGIN, MARGIN + height + MARGIN, self._alt())

    def _draw_cell(
        self, canvas: Canvas, x: int, center_y: int, text: str, color: Color, gradient: bool = False
    ) -> None:
        box = Box(x, center_y - CELL // 2, self.cell, CELL)
        canvas.box("block", box, color)
        if gradient:
            canvas.box("twin", box.grown(TWIN), color)
        canvas.text(box.center_x, middle(center_y, "digit"), text, "digit", "c")

    def _alt(self) -> str:
        message = ngettext(
            "Along {count} path {x} = {value} reaches {loss} = {loss_value}; back comes the contribution "
            "{contributions}, and {total} is the gradient of {x}.",
            "Along {count} paths {x} = {value} reaches {loss} = {loss_value}; back come the contributions "
            "{contributions}, and their sum, {total}, is the gradient of {x}.",
            self.count,
        )
        return message.format(
            x=self.names[0],
            value=self.x,
            loss=self.names[3],
            loss_value=self.loss,
            count=self.count,
            contributions=", ".join(self.contributions),
            total=self.total,
        )
