"""A journey through a layer or several: tensors in their columns, forward above, backward below (diagrams).

A tensor and its gradient stand in one column, an operator and its transpose in one gap. What crosses the lanes is what
the trace recorded; how a tensor lies on the ranks is recognised from the numbers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from torch import Tensor

from tpviz.diagrams.blocks import (
    Grid,
    draw_block,
    draw_lane,
    draw_silences,
    sum_text,
)
from tpviz.diagrams.canvas import Box, Canvas, Color, middle, pill_width
from tpviz.diagrams.drawing import Drawing
from tpviz.diagrams.exchange import NAMES
from tpviz.diagrams.grammar import MARGIN, TWIN, text_width
from tpviz.diagrams.operands import (
    COLUMNS,
    PARTIAL,
    REPLICATE,
    ROWS,
    Operand,
    RunLike,
    check_ranks,
    operand,
    read_layout,
    subscripted,
    typeset,
)
from tpviz.diagrams.stepping import Stepper
from tpviz.i18n import _, ngettext
from tpviz.trace import Event

_TITLE = 28
_HEAD = 74
"""The room for the rank's badge."""
_LABEL = 34
"""The height of the line above a block that names it."""
_PAD = 9
_GAP = 28
"""Between two lanes: room for what is said of it."""
_SECTION = 10
"""Between forward and backward."""
_BAR = 36
_ARROW = 24
"""The room for the arrows on both sides of a bar."""
_FRAME = 8
_HEIGHT, _STRIP = 52, 20
"""The height of a block in an open lane, and in one of the many."""
_WIDTH = 60
"""The width of a block of four columns."""
_OPEN = 3
"""So many lanes are open; of more, one is, and the others are strips."""
_OPEN_OF_TWO = 2
"""So many are open in each of two journeys below each other."""
_PANEL = 24
"""Between two journeys side by side."""
_BELOW = 12
"""Between two journeys below each other."""


class Path(NamedTuple):
    """Where the tensors go: names of tensors, and between any two the operator or the collective that makes the next.

    ``Path("X", "@ W", "Y")``, ``Path("dY", "@ Wᵀ", "G", "all_reduce", "dX")``.
    """

    tensors: tuple[str, ...]
    steps: tuple[str, ...]

    @staticmethod
    def of(text: str) -> Path:
        """Read a path from a text: ``"X → @ W → Y"``."""
        parts = tuple(part.strip() for part in text.split("→"))
        if len(parts) % 2 == 0 or not all(parts):
            message = _("the path {text!r} must alternate tensors and operators, such as 'X → @ W → Y'.")
            raise ValueError(message.format(text=text))
        return Path(parts[::2], parts[1::2])


@dataclass(frozen=True, slots=True)
class _Leg:
    """One step of a path: from a tensor to the next, by an operator or by a recorded collective."""

    source: str
    step: str
    target: str
    event: Event | None


class _Slot(NamedTuple):
    """A column of the figure, or the gap between two, with its place."""

    x: int
    width: int

    @property
    def right(self) -> int:
        return self.x + self.width

    @property
    def center_x(self) -> int:
        return self.x + self.width // 2


class _Columns(NamedTuple):
    """Where the columns of a figure and the gaps between them are, and what stands in them."""

    order: list[str]
    columns: list[_Slot]
    gaps: list[_Slot]


def journey(run: RunLike, wholes: Mapping[str, Tensor], forward: str, backward: str) -> Drawing:
    """Draw the way of the tensors through a run, forward above and backward below, a tensor above its gradient.

    Args:
        run: a run whose ranks each returned a dict of the tensors that the paths name. Weight gradients in it, such as
            ``dW1``, are shown at the operators ``@ W1ᵀ`` that they belong to.
        wholes: the whole tensors by the same names; of contributions such as G the whole that they add up to.
        forward: the path of the values, such as ``"X → @ W → Y"``; a collective is named by its kind, ``all_reduce``,
            and stands where the run recorded one.
        backward: the path of the gradients, such as ``"dY → @ Wᵀ → G → all_reduce → dX"``.
    """
    canvas = Canvas()
    drawn = Journey(run, wholes, forward, backward)
    right, bottom = drawn.draw(canvas, MARGIN, MARGIN)
    return canvas.drawing(
        right + MARGIN, bottom + MARGIN, _("The way of the tensors: {sentence}.").format(sentence=drawn.description())
    )


def stepper(run: RunLike, wholes: Mapping[str, Tensor], forward: str, backward: str) -> Stepper:
    """Return the journey to step through, event by event; the arguments are those of `journey`."""
    canvas = Canvas()
    drawn = Journey(run, wholes, forward, backward)
    right, bottom = drawn.draw(canvas, MARGIN, MARGIN, stepwise=True)
    alt = _("The way of the tensors: {sentence}.").format(sentence=drawn.description())
    return Stepper(canvas.drawing(right + MARGIN, bottom + MARGIN, alt), tuple(drawn.steps()))


def backward_pair(column: RunLike, row: RunLike, wholes: Mapping[str, Tensor]) -> Drawing:
    """Draw the column layer and the row layer side by side, each forward above and backward below.

    Args:
        column: a run of the column layer whose ranks each returned a dict with X, Y, dY, dW, G and dX.
        row: a run of the row layer whose ranks each returned a dict with X, Z, Y, dY, dW and dX.
        wholes: the whole tensors by these names; of the contributions G it is dX, of the partial sums Z it is Y.
    """
    left = Journey(column, wholes, "X → @ W → Y", "dY → @ Wᵀ → G → all_reduce → dX")
    right = Journey(row, wholes, "X → @ W → Z → all_reduce → Y", "dY → @ Wᵀ → dX")
    canvas = Canvas()
    x, bottoms, alts = MARGIN, [], []
    for shown, title in ((left, _("Column parallel")), (right, _("Row parallel"))):
        canvas.text(x, middle(MARGIN + _TITLE // 2 - 4, "name"), title, "label")
        end, bottom = shown.draw(canvas, x, MARGIN + _TITLE)
        alts.append(f"{title}: {shown.description()}")
        bottoms.append(bottom)
        x = end + _PANEL
    return canvas.drawing(x - _PANEL + MARGIN, max(bottoms) + MARGIN, _("{sentence}.").format(sentence="; ".join(alts)))


def two_ways(ways: Mapping[str, tuple[RunLike, str]], wholes: Mapping[str, Tensor], phase: str) -> Drawing:
    """Draw journeys of one direction below each other, what is alike in the same column.

    Args:
        ways: by title a run whose ranks each returned a dict of the tensors that the path names, and the path. The
            columns are those of the longest path; the others may leave some of them out. A name may end in ``'``, which
            is not shown: N and N' are one tensor, laid out in two ways.
        wholes: the whole tensors by name, without ``'``.
        phase: the direction of all paths, "forward" or "backward".

    Bars say what one rank sends, not how large the array is: so two bars can be compared with the one they replace.
    """
    drawn = [Journey(run, wholes, **{phase: path}, most_open=_OPEN_OF_TWO, sent=True) for run, path in ways.values()]
    columns = _columns(drawn, MARGIN + _HEAD)
    canvas = Canvas()
    right, y, alts = 0, MARGIN, []
    for title, each in zip(ways, drawn, strict=True):
        above = _("{title}, forward →") if phase == "forward" else _("{title}, ← backward")
        right, bottom = each.draw(canvas, MARGIN, y, columns=columns, titles={phase: above.format(title=title)})
        alts.append(f"{title}: {each.description()}")
        y = bottom + _BELOW
    return canvas.drawing(right + MARGIN, y - _BELOW + MARGIN, _("{sentence}.").format(sentence="; ".join(alts)))


class Journey:
    """The layout of one journey: its columns and gaps, and a lane for each rank and direction."""

    def __init__(
        self,
        run: RunLike,
        wholes: Mapping[str, Tensor],
        forward: str = "",
        backward: str = "",
        most_open: int = _OPEN,
        sent: bool = False,
    ) -> None:
        self.outputs = list(run.outputs)
        self.sent = sent
        self.ranks = len(self.outputs)
        check_ranks(self.ranks)
        self.all_open = self.ranks <= most_open
        texts = {"forward": forward, "backward": backward}
        self.paths = {phase: Path.of(text) for phase, text in texts.items() if text}
        self.legs = {phase: _legs(path, run.trace, phase) for phase, path in self.paths.items()}
        self.operands: dict[str, Operand] = {}
        for phase, path in self.paths.items():
            for name in path.tensors:
                self.operands[name] = _operand(name, self.outputs, wholes, gradient=phase == "backward")
        self.tiles = {
            step: f"d{step[2:-1]}"
            for path in self.paths.values()
            for step in path.steps
            if step.startswith("@ ") and step.endswith("ᵀ") and f"d{step[2:-1]}" in self.outputs[0]
        }
        widest = max(shown.columns for shown in self.operands.values())
        self.scale = min(_WIDTH / 4, 2 * _WIDTH / widest)
        self.order = self._order()
        self._stepwise = False

    def steps(self) -> list[str]:
        """What happens at each step, in words: a tensor is there, an operator is applied, a collective is done."""
        said = []
        for phase, path in self.paths.items():
            message = _("Forward. {tensor}.") if phase == "forward" else _("Backward. {tensor}.")
            said.append(message.format(tensor=self._state(path.tensors[0])))
            for leg in self.legs[phase]:
                said.append(self._said(leg))
        return said

    def _state(self, name: str) -> str:
        words = {
            REPLICATE: _("{name} is whole on every rank"),
            PARTIAL: _("{name} is a partial sum on every rank"),
            ROWS: _("Each rank has its rows of {name}"),
            COLUMNS: _("Each rank has its columns of {name}"),
        }
        return words[self.operands[name].layout].format(name=typeset(self.operands[name].name))

    def _said(self, leg: _Leg) -> str:
        if leg.event is not None:
            message = _("{collective}, {bytes} bytes. {tensor}.")
            values = {"collective": NAMES[leg.event.kind], "bytes": leg.event.payload_bytes}
            return message.format(tensor=self._state(leg.target), **values)
        label = leg.step
        if label.startswith("@ "):
            name = label.removeprefix("@ ").removesuffix("ᵀ")
            label = label.replace(name, typeset(name))
        message = _("{operator}, on each rank. {tensor}. Nothing crosses.")
        said = message.format(operator=label, tensor=self._state(leg.target))
        if leg.step in self.tiles:
            said += " " + _("{weight} stays where it is.").format(weight=typeset(self.tiles[leg.step]))
        return said

    def _step(self, canvas: Canvas, phase: str, target: str) -> None:
        """Let what follows belong to the step that makes this tensor."""
        if self._stepwise:
            before = len(self.paths["forward"].tensors) if phase == "backward" else 0
            canvas.step(1 + before + self.paths[phase].tensors.index(target))

    def _order(self) -> list[str]:
        """The columns from left to right: the forward's tensors, and among them what only backward has."""
        columns = list(self.paths["forward"].tensors) if "forward" in self.paths else []
        place = 0
        for name in reversed(self.paths["backward"].tensors if "backward" in self.paths else ()):
            if name[1:] in columns:
                place = columns.index(name[1:]) + 1
            else:
                columns.insert(place, name)
                place += 1
        return columns

    def _column(self, name: str) -> int:
        return self.order.index(name if name in self.order else name[1:])

    def _grid(self, shown: Operand, height: int) -> Grid:
        return Grid(self.scale, height / shown.rows, None)

    def draw(
        self,
        canvas: Canvas,
        x: int,
        y: int,
        stepwise: bool = False,
        columns: _Columns | None = None,
        titles: Mapping[str, str] | None = None,
    ) -> tuple[int, int]:
        """Draw the journey with its corner at x, y, steps in groups if so asked; return its right and lower end.

        Its columns may be shared with others, and what stands above each direction be said.
        """
        self._stepwise = stepwise
        self.order, slots, gaps = columns or _columns([self], x + _HEAD)
        right = slots[-1].right + _PAD + 4
        titles = titles or {"forward": _("forward →"), "backward": _("← backward")}
        for phase, legs in self.legs.items():
            canvas.text(x, middle(y + _TITLE // 2 - 4, "label"), titles[phase], "label")
            y += _TITLE
            lanes = self._draw_lanes(canvas, x, y, right, phase, slots, gaps)
            self._step(canvas, phase, self.paths[phase].tensors[-1])  # what never crossed is known at the end
            self._draw_silences(canvas, x, right, lanes, [leg for leg in legs if leg.event], gaps)
            for leg in legs:
                if leg.event is not None:
                    self._step(canvas, phase, leg.target)
                    self._draw_bar(canvas, leg, gaps, lanes)
            canvas.step(0)
            y = lanes[-1].bottom + _SECTION
        return right, y - _SECTION

    def needed(self, index: int) -> int:
        """The width of what this journey has in a column."""
        return max((self._width(name) for name in self.operands if self._column(name) == index), default=0)

    def room(self, gap: int) -> int:
        """The width of what this journey has in a gap."""
        legs = [leg for legs in self.legs.values() for leg in legs if self._gap(leg) == gap]
        if any(leg.event is not None for leg in legs):
            return _BAR + 2 * _ARROW
        labels = [self._label(leg.step, self.ranks - 1) for leg in legs]
        tiles = [self._tile_width(leg.step, 0) + 16 for leg in legs if leg.step in self.tiles]
        return max(text_width(max(labels, key=len, default=""), "label") + 22, *tiles, 0)

    def _width(self, name: str) -> int:
        shown = self.operands[name]
        frame = _FRAME if shown.layout is PARTIAL else 0
        wide = round(shown.columns * self.scale) + 2 * frame + 2 * TWIN
        if shown.layout is PARTIAL:
            return max(wide, text_width(subscripted(name, 0), "name") + 8 + pill_width(sum_text(0, self.ranks)))
        return max(wide, text_width(subscripted(name, 0), "name"))

    def _tile_width(self, step: str, rank: int) -> int:
        return text_width(subscripted(typeset(self.tiles[step]), rank), "name") + 14

    def _gap(self, leg: _Leg) -> int:
        """The gap in which a step stands: of those that it spans, a collective's is next to what it changes."""
        first, last = sorted((self._column(leg.source), self._column(leg.target)))
        if leg.event is not None:
            return first
        taken = {
            min(self._column(other.source), self._column(other.target))
            for legs in self.legs.values()
            for other in legs
            if other.event is not None
        }
        return next(gap for gap in range(last - 1, first - 1, -1) if gap not in taken)

    def _label(self, step: str, rank: int) -> str:
        """The operator's label; a weight that is cut carries the rank."""
        name = step.removeprefix("@ ").removesuffix("ᵀ")
        if not step.startswith("@ "):
            return step
        return f"@ {subscripted(typeset(name), rank)}{'ᵀ' if step.endswith('ᵀ') else ''}"

    def _draw_lanes(
        self,
        canvas: Canvas,
        x: int,
        y: int,
        right: int,
        phase: str,
        columns: Sequence[_Slot],
        gaps: Sequence[_Slot],
    ) -> list[Box]:
        lanes = []
        for rank in range(self.ranks):
            opened = self.all_open or rank == 0
            height = 2 * _PAD + _LABEL + _HEIGHT + 2 * (_FRAME + TWIN) + 4 if opened else _STRIP + 2 * (4 + TWIN)
            lane = Box(x, y, right - x, height)
            draw_lane(canvas, lane, rank, _HEAD)
            center_y = lane.bottom - _PAD - 4 - _FRAME - TWIN - _HEIGHT // 2 if opened else lane.center_y
            for name in self.paths[phase].tensors:
                self._step(canvas, phase, name)
                self._draw_tensor(canvas, name, rank, columns[self._column(name)], center_y, opened)
            for leg in self.legs[phase]:
                self._step(canvas, phase, leg.target)
                self._draw_leg(canvas, leg, rank, columns, gaps, center_y, opened)
            canvas.step(0)
            lanes.append(lane)
            y = lane.bottom + (_GAP if self.all_open else 5)
        return lanes

    def _draw_tensor(self, canvas: Canvas, name: str, rank: int, slot: _Slot, center_y: int, opened: bool) -> None:
        shown = self.operands[name]
        height, frame = (_HEIGHT, _FRAME) if opened else (_STRIP, 4)
        width = round(shown.columns * self.scale)
        x = slot.center_x - width // 2
        grid = self._grid(shown, height)
        draw_block(canvas, shown, rank, grid, x, center_y - height // 2, frame=frame)
        if not opened:
            return
        local = shown.local_name(rank)
        badge = sum_text(rank, self.ranks) if shown.layout is PARTIAL else ""
        label = text_width(local, "name") + (8 + pill_width(badge) if badge else 0)
        block = grid.box(x, 0, shown.blocks[rank])
        start = min(max(block.center_x - label // 2, slot.x), slot.right - label)
        line_y = center_y - height // 2 - _FRAME - TWIN - _LABEL // 2
        canvas.name(start, middle(line_y, "name"), local)
        if badge:
            canvas.pill(start + text_width(local, "name") + 8, line_y, badge, rank)

    def _draw_leg(
        self,
        canvas: Canvas,
        leg: _Leg,
        rank: int,
        columns: Sequence[_Slot],
        gaps: Sequence[_Slot],
        center_y: int,
        opened: bool,
    ) -> None:
        start, end = self._edge(leg.source, leg.target, columns), self._edge(leg.target, leg.source, columns)
        gap = gaps[self._gap(leg)]
        way = 1 if end > start else -1
        color: Color = "neutral" if self.operands[leg.source].layout is REPLICATE and leg.event is None else rank
        if leg.event is not None:
            canvas.arrow(start + 5 * way, gap.center_x - (_BAR // 2 + 3) * way, center_y, rank)
            own: Color = "neutral" if self.operands[leg.target].layout is REPLICATE else rank
            canvas.arrow(gap.center_x + (_BAR // 2 + 3) * way, end - 5 * way, center_y, own)
            return
        canvas.arrow(start + 5 * way, end - 5 * way, center_y, color)
        if not opened:
            return
        canvas.text(gap.center_x, center_y - 11, self._label(leg.step, rank), "label", "c")
        if leg.step in self.tiles:
            width = self._tile_width(leg.step, rank)
            tile = Box(gap.center_x - width // 2, center_y + 14, width, 27)
            canvas.box("block", tile, rank)
            canvas.box("twin", tile.grown(4), rank)
            name = subscripted(typeset(self.tiles[leg.step]), rank)
            canvas.name(tile.x + 9, middle(tile.center_y - 2, "name"), name)

    def _edge(self, name: str, other: str, columns: Sequence[_Slot]) -> int:
        """Where an arrow from or to this tensor begins: the side that faces the other."""
        shown, slot = self.operands[name], columns[self._column(name)]
        half = round(shown.columns * self.scale) // 2 + TWIN * shown.gradient
        if shown.layout is PARTIAL:
            half += _FRAME
        return slot.center_x + (half if self._column(other) > self._column(name) else -half)

    def _draw_silences(
        self,
        canvas: Canvas,
        x: int,
        right: int,
        lanes: Sequence[Box],
        crossing: Sequence[_Leg],
        gaps: Sequence[_Slot],
    ) -> None:
        """Mark the gaps between lanes where nothing crosses: all of it, or the stretches beside the bars."""
        if not self.all_open:
            return
        bars = [gaps[self._gap(leg)].center_x for leg in crossing]
        draw_silences(canvas, x, right, lanes, bars, _BAR // 2)

    def _draw_bar(self, canvas: Canvas, leg: _Leg, gaps: Sequence[_Slot], lanes: Sequence[Box]) -> None:
        assert leg.event is not None
        center_x = gaps[self._gap(leg)].center_x
        top, bottom = lanes[leg.event.ranks[0]].y + 4, lanes[leg.event.ranks[-1]].bottom - 4
        canvas.rounded("bar", Box(center_x - _BAR // 2, top, _BAR, bottom - top), 10)
        name = NAMES[leg.event.kind]
        if self.sent:
            text = _("{collective} sends {bytes} B").format(collective=name, bytes=f"{leg.event.wire_bytes:g}")
        else:
            text = f"{name}, {_('{bytes} bytes').format(bytes=leg.event.payload_bytes)}"
        if text_width(text, "label") > bottom - top - 16:
            text = name
        canvas.upright(center_x, (top + bottom) // 2, text, "label", "w")

    def description(self) -> str:
        """The journey in words, for a text alternative."""
        sentences = []
        for phase, path in self.paths.items():
            tensors = ", ".join(_described(self.operands[name]) for name in path.tensors)
            events = [NAMES[leg.event.kind] for leg in self.legs[phase] if leg.event is not None]
            if events:
                crossing = ngettext(
                    "one collective crosses the ranks: {events}",
                    "{n} collectives cross the ranks: {events}",
                    len(events),
                ).format(n=len(events), events=", ".join(events))
            else:
                crossing = _("nothing crosses the ranks")
            message = (
                _("forward on {ranks} ranks, {tensors}; {crossing}")
                if phase == "forward"
                else _("backward, {tensors}; {crossing}")
            )
            sentences.append(message.format(ranks=self.ranks, tensors=tensors, crossing=crossing))
        return "; ".join(sentences)


def _columns(journeys: Sequence[Journey], x: int) -> _Columns:
    """The columns from x on: those of the journey that has most, wide enough for all of them."""
    order = max((each.order for each in journeys), key=len)
    for each in journeys:
        each.order = order
    columns, gaps = [], []
    for index in range(len(order)):
        columns.append(_Slot(x, max(each.needed(index) for each in journeys)))
        x = columns[-1].right
        if index < len(order) - 1:
            gaps.append(_Slot(x, max(each.room(index) for each in journeys)))
            x = gaps[-1].right
    return _Columns(order, columns, gaps)


def _described(shown: Operand) -> str:
    """Name, shape and layout, without the sizes of the parts."""
    words = {REPLICATE: _("whole"), PARTIAL: _("partial sums"), ROWS: _("cut by rows"), COLUMNS: _("cut by columns")}
    return f"{shown.name} ({shown.shape}, {words[shown.layout]})"


def _legs(path: Path, trace: Sequence[Event], phase: str) -> list[_Leg]:
    """The steps of a path, each collective with the event that the run recorded."""
    recorded = [event for event in trace if event.phase == phase and event.kind != "barrier"]
    expected = [step for step in path.steps if step in NAMES]
    if [event.kind for event in recorded] != expected:
        message = _("{phase}, the path has the collectives {expected}, and the run recorded {came}.")
        came = [event.kind for event in recorded]
        raise ValueError(message.format(phase=phase, expected=expected, came=came))
    events = iter(recorded)
    return [
        _Leg(source, step, target, next(events) if step in NAMES else None)
        for source, step, target in zip(path.tensors, path.steps, path.tensors[1:], strict=False)
    ]


def _operand(
    name: str, outputs: Sequence[Mapping[str, Tensor]], wholes: Mapping[str, Tensor], gradient: bool
) -> Operand:
    """A named tensor on the ranks, its layout recognised from the numbers."""
    from tpviz.layouts import recognise  # brings PyTorch's DTensor along

    shown_name = name.rstrip("'")
    if not all(isinstance(output, Mapping) and name in output for output in outputs) or shown_name not in wholes:
        message = _("the path names {name}: each rank must return it in a dict, and it must be among the wholes.")
        raise ValueError(message.format(name=name))
    parts = [output[name] for output in outputs]
    placement = recognise(parts, wholes[shown_name])
    if placement is None:
        message = _(
            "what the ranks returned as {name} is not the whole: no replicas, no shards, no partial sums of it."
        )
        raise ValueError(message.format(name=name))
    shown = operand(shown_name, parts, read_layout(placement, name), len(parts))
    return replace(shown, gradient=gradient)
