"""The operators of a block in their order, forward above and backward below, a lane for each rank (diagrams).

Whether an operator's work is the same on every rank is read from the numbers; what crosses the lanes is what the trace
recorded.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from tpviz.diagrams.blocks import draw_lane, draw_silences
from tpviz.diagrams.canvas import Box, Canvas, Color, middle
from tpviz.diagrams.drawing import Drawing
from tpviz.diagrams.exchange import NAMES
from tpviz.diagrams.grammar import MARGIN, TWIN, text_width
from tpviz.diagrams.journey import Path
from tpviz.diagrams.operands import RunLike, check_ranks
from tpviz.i18n import _
from tpviz.tables import size_text
from tpviz.trace import Event

SENDS: dict[str, dict[str, str]] = {
    "copy_to_region": {"backward": "all_reduce"},
    "reduce_from_region": {"forward": "all_reduce"},
    "gather_from_region": {"forward": "all_gather", "backward": "reduce_scatter"},
    "reduce_scatter_to_region": {"forward": "reduce_scatter", "backward": "all_gather"},
}
"""What a conjugate operator sends in each phase; of ``gather_from_region`` with ``consumer="sharded"``."""

_TITLE = 28
_SECTION = 10
_HEAD = 56
_BOX, _STRIP = 40, 20
"""The height of an operator in an open lane, and in one of the many."""
_PAST = 34
"""How far above the operators' line a tensor's way past them is; in a strip less."""
_PAST_STRIP = 18
_PAD = 18
_GAP = 28
_BAR = 36
_NODE, _MINI = 15, 9
"""The radius of a + on its disc."""
_DOT = 5
_ARROW = 18
_INSIDE = 8
_OPEN = 3


class _Stop(NamedTuple):
    """A column of the figure: an operator, a conjugate operator that may be a bar, a + or the branch before it."""

    kind: str
    label: str
    source: str
    target: str
    box: Box
    """Its place across; the height counts for nothing."""


def operators(run: RunLike, path: str) -> Drawing:
    """Draw a block's operators lane by lane, in a rank's colour for its own part, grey where all do alike.

    Args:
        run: a run whose ranks each returned a dict with the tensors that the path names, and their gradients: of X also
            dX. The trace must have the collectives of the path's conjugate operators, and no others in these phases.
        path: tensors, and between any two the operator that makes the next: ``"X → norm → N → copy_to_region → F"``.
            A conjugate operator is named as the function is; ``+ X`` adds a tensor from before, a residual.
    """
    check_ranks(len(run.outputs))
    return _Operators(run, Path.of(path)).drawing()


class _Operators:
    """The layout of the figure: its columns, and a lane for each rank and phase."""

    def __init__(self, run: RunLike, path: Path) -> None:
        self.ranks = len(run.outputs)
        self.path = path
        self.steps = list(zip(path.tensors, path.steps, path.tensors[1:], strict=False))
        self.added = [step.removeprefix("+ ") for step in path.steps if step.startswith("+ ")]
        unknown = [name for name in self.added if name not in path.tensors]
        if unknown:
            message = _("the path adds {names}, which no step before has made.")
            raise ValueError(message.format(names=", ".join(unknown)))
        self.alike = {
            phase: {name: _alike(run.outputs, prefix + name) for name in path.tensors}
            for phase, prefix in (("forward", ""), ("backward", "d"))
        }
        self.events = {phase: _events(path, run.trace, phase) for phase in ("forward", "backward")}
        self.stops = self._stops(MARGIN + _HEAD + _ARROW)
        self.right = self.stops[-1].box.right + _ARROW + _PAD

    def _stops(self, x: int) -> list[_Stop]:
        stops = []

        def add(kind: str, label: str, source: str, target: str, width: int) -> None:
            nonlocal x
            stops.append(_Stop(kind, label, source, target, Box(x, 0, width, 0)))
            x += width + _ARROW

        for source, step, target in self.steps:
            if source in self.added:
                add("branch", "", source, source, 2 * _NODE)
            if step.startswith("+ "):
                add("sum", step.removeprefix("+ "), source, target, 2 * _NODE)
            elif step in SENDS:
                add("sends", step, source, target, _BAR)
            else:
                add("operator", step, source, target, text_width(step, "label") + 2 * _INSIDE)
        return stops

    def drawing(self) -> Drawing:
        """Draw forward, then backward."""
        canvas = Canvas()
        y = MARGIN
        titles = {"forward": _("forward →"), "backward": _("← backward")}
        for phase, title in titles.items():
            canvas.text(MARGIN, middle(y + _TITLE // 2 - 4, "label"), title, "label")
            lanes = self._draw_lanes(canvas, y + _TITLE, phase)
            bars = [stop.box.center_x for stop in self.stops if self._event(stop, phase)]
            if self.ranks <= _OPEN:
                draw_silences(canvas, MARGIN, self.right, lanes, bars, _BAR // 2)
            for stop in self.stops:
                if (event := self._event(stop, phase)) is not None:
                    _draw_bar(canvas, stop.box.center_x, event, lanes)
            y = lanes[-1].bottom + _SECTION
        return canvas.drawing(self.right + MARGIN, y - _SECTION + MARGIN, self._alt())

    def _event(self, stop: _Stop, phase: str) -> Event | None:
        return self.events[phase].get(stop.source) if stop.kind == "sends" else None

    def _draw_lanes(self, canvas: Canvas, y: int, phase: str) -> list[Box]:
        lanes = []
        for rank in range(self.ranks):
            opened = self.ranks <= _OPEN or rank == 0
            past, below = (_PAST, _BOX // 2 + _PAD) if opened else (_PAST_STRIP, _STRIP // 2 + 9)
            lane = Box(MARGIN, y, self.right - MARGIN, below + past + 15)
            draw_lane(canvas, lane, rank, _HEAD)
            self._draw_lane(canvas, lane.bottom - below, rank, phase, opened)
            lanes.append(lane)
            y = lane.bottom + (_GAP if self.ranks <= _OPEN else 5)
        return lanes

    def _draw_lane(self, canvas: Canvas, y: int, rank: int, phase: str, opened: bool) -> None:
        """Draw a rank's operators on a line, and the arrows between them."""
        alike, forward = self.alike[phase], phase == "forward"
        stops = [stop for stop in self.stops if not self._is_passed(stop, phase)]
        edges = [MARGIN + _HEAD, *(x for stop in stops for x in (stop.box.x, stop.box.right)), self.right - _PAD]
        names = [*(stop.source for stop in stops), stops[-1].target]
        for start, end, name in zip(edges[::2], edges[1::2], names, strict=True):
            color: Color = "neutral" if alike[name] else rank
            canvas.arrow(*((start + 2, end - 2) if forward else (end - 2, start + 2)), y, color)
        for stop in self.stops:
            own = not (alike[stop.source] and alike[stop.target])
            if stop.kind == "operator":
                height = _BOX if opened else _STRIP
                box = Box(stop.box.x, y - height // 2, stop.box.width, height)
                color = rank if own else "neutral"
                canvas.box("block", box, color)
                if not forward:
                    canvas.box("twin", box.grown(TWIN - 1), color)
                if opened:
                    canvas.text(box.center_x, middle(y, "label"), stop.label, "label", "c")
            elif stop.kind != "sends":
                self._draw_meeting(canvas, stop, y, phase, opened)
            if stop.kind == "sum":
                self._draw_residual(canvas, stop, y, phase, opened)

    def _is_passed(self, stop: _Stop, phase: str) -> bool:
        """Whether a stop does nothing in this phase: a conjugate operator that sends nothing, or a way that parts."""
        if stop.kind == "sends":
            return self._event(stop, phase) is None
        return stop.kind == ("branch" if phase == "forward" else "sum")

    def _draw_meeting(self, canvas: Canvas, stop: _Stop, y: int, phase: str, opened: bool) -> None:
        """Draw where two ways meet as a +, and where they part as a dot: backward, each is the other."""
        x = stop.box.center_x
        if self._is_passed(stop, phase):
            canvas.rounded("bar", Box(x - _DOT, y - _DOT, 2 * _DOT, 2 * _DOT), _DOT)
        else:
            canvas.node(x, y, "+", _NODE if opened else _MINI)

    def _draw_residual(self, canvas: Canvas, stop: _Stop, y: int, phase: str, opened: bool) -> None:
        """Draw the way of a residual past the operators, behind the bars."""
        branch = next(each for each in self.stops if each.kind == "branch" and each.source == stop.label)
        top = y - (_PAST if opened else _PAST_STRIP)
        left, right = branch.box.center_x, stop.box.center_x
        bars = [each.box for each in self.stops if self._event(each, phase) and left < each.box.x < right]
        edges = [left, *(x for bar in bars for x in (bar.x - 1, bar.right + 1)), right]
        for x, to_x in zip(edges[::2], edges[1::2], strict=True):
            canvas.line("arrow", (x, top), (to_x, top))
        from_x, to_x = (left, right) if phase == "forward" else (right, left)
        canvas.line("arrow", (from_x, y), (from_x, top))
        if opened:
            canvas.rise(to_x, top, y - _NODE - 2)
        else:
            canvas.line("arrow", (to_x, top), (to_x, y - _MINI))

    def _alt(self) -> str:
        boxes = [stop for stop in self.stops if stop.kind in ("operator", "sum")]
        alike = self.alike["forward"]
        own = [
            each.label for each in boxes if each.kind == "operator" and not (alike[each.source] and alike[each.target])
        ]
        said = []
        for phase in ("forward", "backward"):
            places = [self._place(stop, phase) for stop in self.stops if self._event(stop, phase)]
            if phase == "backward":
                places.reverse()
            said.append(_("{phase}: {places}").format(phase=phase, places=", ".join(places) or _("nothing crosses")))
        message = _("The operators {all} on {ranks} ranks; on their own part the ranks do {own}; {sent}.")
        names = ", ".join("+" if each.kind == "sum" else each.label for each in boxes)
        return message.format(all=names, ranks=self.ranks, own=", ".join(own) or "-", sent="; ".join(said))

    def _place(self, stop: _Stop, phase: str) -> str:
        """A bar and the operator that it follows, as the phase goes."""
        index, event = self.stops.index(stop), self._event(stop, phase)
        assert event is not None
        before = self.stops[:index][::-1] if phase == "forward" else self.stops[index + 1 :]
        name = next((each.label for each in before if each.kind == "operator"), "-")
        return _("{name} after {operator}").format(name=NAMES[event.kind], operator=name)


def _draw_bar(canvas: Canvas, x: int, event: Event, lanes: Sequence[Box]) -> None:
    top, bottom = lanes[event.ranks[0]].y + 4, lanes[event.ranks[-1]].bottom - 4
    canvas.rounded("bar", Box(x - _BAR // 2, top, _BAR, bottom - top), 10)
    name = NAMES[event.kind]
    text = f"{name} · {size_text(event.payload_bytes)}"
    shown = text if text_width(text, "label") <= bottom - top - 4 else name
    canvas.upright(x, (top + bottom) // 2, shown, "label", "w")


def _events(path: Path, trace: Sequence[Event], phase: str) -> dict[str, Event]:
    """The events of a phase, by the tensor that enters the conjugate operator in forward."""
    expected = [
        (source, SENDS[step][phase])
        for source, step in zip(path.tensors, path.steps, strict=False)
        if phase in SENDS.get(step, {})
    ]
    if phase == "backward":
        expected.reverse()
    recorded = [event for event in trace if event.phase == phase]
    kinds = [kind for _source, kind in expected]
    if [event.kind for event in recorded] != kinds:
        message = _("{phase}, the path has the collectives {expected}, and the run recorded {came}.")
        came = [event.kind for event in recorded]
        raise ValueError(message.format(phase=phase, expected=kinds, came=came))
    return {source: event for (source, _kind), event in zip(expected, recorded, strict=True)}


def _alike(outputs: Sequence[Mapping[str, Tensor]], name: str) -> bool:
    """Whether every rank has the same numbers."""
    if not all(isinstance(output, Mapping) and torch.is_tensor(output.get(name)) for output in outputs):
        raise ValueError(_("each rank must return a dict that has {name} in it.").format(name=name))
    first = outputs[0][name]
    return len(outputs) > 1 and all(torch.equal(output[name], first) for output in outputs[1:])
