"""A plan as a path: a column for each tensor, a row for each way in which it may lie on the ranks (diagrams)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tpviz.diagrams.canvas import Box, Canvas, middle
from tpviz.diagrams.drawing import Drawing
from tpviz.diagrams.exchange import NAMES
from tpviz.diagrams.grammar import MARGIN, SLIDE_WIDTH, text_width
from tpviz.diagrams.operands import typeset
from tpviz.i18n import _, ngettext

if TYPE_CHECKING:
    from tpviz.conversions import Conversion, Flow
    from tpviz.plans import Plan

_ROW = 92
_HEAD = 54
_WIDEST, _NARROWEST = 190, 132
"""From one tensor's column to the next."""
_NODE = 13
_ICON_WIDTH, _ICON_HEIGHT = 56, 40
_SIDE = 22
"""How far beside a column's nodes its conversions run."""


def layout_path(plan: Plan) -> Drawing:
    """Draw a plan as a path through layouts.

    A level line is an operator, which takes a tensor in one layout and gives the next in another; thin ones are those
    that the rules would allow too. A line down or up is a conversion, and says what it sends forward and backward.
    """
    return _Route(plan).drawing()


class _Route:
    """The layout of the figure."""

    def __init__(self, plan: Plan) -> None:
        from tpviz.conversions import FLOWS  # brings PyTorch's DTensor along

        self.plan, self.network = plan, plan.network
        self.flows = FLOWS
        self.tensors = [self.network.input, *(step.output for step in self.network.steps)]
        texts = (
            _("whole, used alike"),
            _("whole, used in shares"),
            _("cut by rows"),
            _("cut by columns"),
            _("partial sums"),
        )
        self.labels = dict(zip(FLOWS, texts, strict=True))
        self.side = max(text_width(text, "note") for text in texts) + _ICON_WIDTH + 34
        self.used = self._used()
        lines = [text for move in plan.moves for text in _sent(move.conversion)]
        self.margin = max((text_width(text, "label") for text in lines), default=0) + _SIDE + 24
        room = (SLIDE_WIDTH - 2 * MARGIN - self.side - self.margin) // len(self.tensors)
        self.column = min(_WIDEST, max(_NARROWEST, room))

    def _used(self) -> set[tuple[str, Flow]]:
        """Which tensor lies how in this plan."""
        found = {(self.network.input, self.plan.start), (self.network.output, self.plan.end)}
        for step, choice in zip(self.network.steps, self.plan.choices, strict=True):
            found.add((step.output, choice.output))
        found.update((move.tensor, move.conversion.after) for move in self.plan.moves)
        return found

    def _x(self, tensor: str) -> int:
        return MARGIN + self.side + self.column // 2 - 30 + self.tensors.index(tensor) * self.column

    def _adjacent(self, name: str, output: str) -> bool:
        return self.tensors.index(output) == self.tensors.index(name) + 1

    def _y(self, flow: Flow) -> int:
        return MARGIN + _HEAD + self.flows.index(flow) * _ROW + _ROW // 2

    def drawing(self) -> Drawing:
        """Draw the rows and columns, what the rules allow, and the plan's own way."""
        canvas = Canvas()
        right = self._x(self.tensors[-1]) + self.margin
        for flow in self.flows:
            self._draw_row(canvas, flow, right)
        for tensor in self.tensors:
            name = typeset(tensor)
            canvas.name(self._x(tensor) - text_width(name, "name") // 2, middle(MARGIN + 14, "name"), name)
        self._draw_allowed(canvas)
        for step, choice in zip(self.network.steps, self.plan.choices, strict=True):
            for name, flow in zip(step.inputs, choice.inputs, strict=True):
                if name not in self.network.weights:
                    self._draw_step(canvas, name, flow, step.output, choice.output)
            x = self._x(step.output) - self.column // 2
            label = step.operator
            weights = [typeset(name) for name in step.inputs if name in self.network.weights]
            if step.operator == "matmul" and weights:
                label = f"@ {weights[0]}"
            canvas.text(x, middle(MARGIN + 42, "note"), label, "note", "c")
        for move in self.plan.moves:
            self._draw_move(canvas, move.tensor, move.conversion)
        for tensor in self.tensors:
            for flow in self.flows:
                self._draw_node(canvas, tensor, flow)
        bottom = MARGIN + _HEAD + len(self.flows) * _ROW
        return canvas.drawing(right + MARGIN, bottom + MARGIN, self._alt())

    def _draw_row(self, canvas: Canvas, flow: Flow, right: int) -> None:
        y = self._y(flow)
        icon = Box(MARGIN + 8, y - _ICON_HEIGHT // 2, _ICON_WIDTH, _ICON_HEIGHT)
        self._draw_icon(canvas, icon, flow)
        canvas.text(icon.right + 18, middle(y, "note"), self.labels[flow], "note")
        if flow != self.flows[0]:
            canvas.line("rail", (MARGIN, y - _ROW // 2), (right, y - _ROW // 2))

    def _draw_icon(self, canvas: Canvas, box: Box, flow: Flow) -> None:
        kind = self.flows.index(flow)
        half_width, half_height = box.width // 2, box.height // 2
        if kind == 4:
            canvas.frame(box.grown(-6), 6, "neutral")
        elif kind in (2, 3):
            first, second = (
                (Box(box.x, box.y, box.width, half_height), Box(box.x, box.y + half_height, box.width, half_height))
                if kind == 2
                else (Box(box.x, box.y, half_width, box.height), Box(box.x + half_width, box.y, half_width, box.height))
            )
            canvas.box("block", first, 0)
            canvas.box("block", second, 1)
        else:
            canvas.box("block", box, "neutral")
            if kind == 1:  # each rank uses it for a share of its own
                for rank in (0, 1):
                    canvas.box("mark", Box(box.x + 8 + rank * half_width, box.center_y - 6, 12, 12), rank)

    def _draw_allowed(self, canvas: Canvas) -> None:
        from tpviz.planner import choices

        for step in self.network.steps:
            lines = set()
            for choice in choices(self.network, step):
                for name, flow in zip(step.inputs, choice.inputs, strict=True):
                    if name not in self.network.weights and self._adjacent(name, step.output):
                        lines.add((name, flow, choice.output))
            for name, flow, output in sorted(lines, key=lambda line: (line[0], *map(self.flows.index, line[1:]))):
                start, end = (self._x(name), self._y(flow)), (self._x(step.output), self._y(output))
                canvas.line("thin", (start[0] + _NODE, start[1]), (end[0] - _NODE, end[1]))

    def _draw_step(self, canvas: Canvas, name: str, flow: Flow, output: str, after: Flow) -> None:
        start, end = (self._x(name) + _NODE + 3, self._y(flow)), (self._x(output) - _NODE - 5, self._y(after))
        if not self._adjacent(name, output):
            canvas.curve(start, end, 0, bow=34)
        elif start[1] == end[1]:
            canvas.arrow(start[0], end[0], start[1], 0)
        else:
            canvas.curve(start, end, 0)

    def _draw_move(self, canvas: Canvas, tensor: str, conversion: Conversion) -> None:
        """Draw a conversion beside the column, with what it sends."""
        x, start, end = self._x(tensor), self._y(conversion.before), self._y(conversion.after)
        way = 1 if end > start else -1
        bend = x + _SIDE
        canvas.line("rule", (x + _NODE - 2, start + 4 * way), (bend, start + 22 * way), (bend, end - 22 * way))
        canvas.line("rule", (bend, end - 22 * way), (x + _NODE - 2, end - 4 * way))
        lines = _sent(conversion)
        y = (start + end) // 2 - 12 * (len(lines) - 1)
        for text in lines:
            width = text_width(text, "label") + 16
            canvas.rounded("tag", Box(bend - 4, y - 14, width, 28), 6)
            canvas.text(bend + 4, middle(y, "label"), text, "label", "", "w")
            y += 30

    def _draw_node(self, canvas: Canvas, tensor: str, flow: Flow) -> None:
        x, y = self._x(tensor), self._y(flow)
        turn = _NODE if (tensor, flow) in self.used else _NODE - 5
        box = Box(x - turn, y - turn, 2 * turn, 2 * turn)
        if (tensor, flow) in self.used:
            canvas.rounded("mark", box, turn, "neutral")
        else:
            canvas.rounded("block", box, turn, "neutral")

    def _alt(self) -> str:
        events = [
            _("{kind} of {tensor}").format(kind=NAMES[each.kind], tensor=typeset(each.tensor))
            for each in self.plan.foretold()
        ]
        message = ngettext(
            "A plan for {tensors} on {ranks} ranks as a path through layouts, with {n} collective: {events}.",
            "A plan for {tensors} on {ranks} ranks as a path through layouts, with {n} collectives: {events}.",
            len(events),
        )
        return message.format(
            tensors=", ".join(map(typeset, self.tensors)),
            ranks=self.plan.ranks,
            n=len(events),
            events=", ".join(events) or _("none"),
        )


def _sent(conversion: Conversion) -> list[str]:
    """What a conversion sends, forward and backward."""
    kinds = (("→", conversion.forward), ("←", conversion.backward))
    return [f"{arrow} {NAMES[kind]}" for arrow, kind in kinds if kind is not None]
