"""An AllReduce in a ring, step by step: which piece is where, and how many ranks' shares are in it (diagrams)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple

from torch import Tensor

from tpviz.diagrams.blocks import Grid, draw_digits, draw_upright_lane
from tpviz.diagrams.canvas import Box, Canvas, middle
from tpviz.diagrams.drawing import Drawing
from tpviz.diagrams.grammar import CELL, MARGIN, SLIDE_WIDTH, text_width
from tpviz.diagrams.numbers import Cells, number_texts
from tpviz.diagrams.operands import Block, RunLike, check_ranks
from tpviz.diagrams.stepping import Stepper
from tpviz.i18n import _, ngettext
from tpviz.trace import Event

_OPEN = 4
"""So many ranks show their numbers; of more, the pieces are small blocks."""
_HEAD = 58
"""The room for the ranks' badges."""
_PAD = 14
_BETWEEN = 18
"""Between two lanes."""


class _Piece(NamedTuple):
    """A piece on a rank: its number, how many ranks' shares are in it, and whether it is still of use there."""

    value: float
    shares: int
    live: bool = True


class _Sizes(NamedTuple):
    """How large the figure's parts are: with numbers, or of many ranks."""

    cell: int
    height: int
    frame: int
    label: int
    """The room above a cell for what is in its sum."""
    gap: int
    """Between two pieces."""
    arrows: int
    """The room between two rows for what is sent: so much that an arrow is seen to lead down."""

    @property
    def pitch(self) -> int:
        """From one piece to the next."""
        return self.cell + 2 * self.frame + self.gap


def ring(run: RunLike) -> Drawing:
    """Draw an AllReduce in a ring, a row for each step: what each rank holds, and what it sends to the next rank.

    A piece with a hatched frame is a partial sum, and Σ says how many ranks' shares are in it; a grey one is the whole
    sum; of a piece that was sent on unfinished, only the outline stays.

    Args:
        run: a run in which each rank, in each step, sent one piece to the next rank, and which returned what the rank
            held at the start and after each step: tensors with one number for each of the pieces.
    """
    return _Ring(run).drawing()


def ring_stepper(run: RunLike) -> Stepper:
    """Return the ring to step through; the argument is that of `ring`."""
    drawn = _Ring(run)
    return Stepper(drawn.drawing(), tuple(drawn.said()), first=0)


class _Ring:
    """What the ranks held and sent, and the layout of the figure."""

    def __init__(self, run: RunLike) -> None:
        self.ranks = len(run.outputs)
        check_ranks(self.ranks)
        self.steps = _steps(run.trace, self.ranks)
        values = [_states(output, rank, self.ranks, len(self.steps)) for rank, output in enumerate(run.outputs)]
        start = [[_Piece(value, 1) for value in states[0]] for states in values]
        self.states = [start]
        self.adds: list[bool] = []
        for step in range(len(self.steps)):
            self._follow([states[step + 1] for states in values])
        self.sent = [self._sent(step) for step in range(len(self.steps))]
        self.texts = [number_texts([states[step] for states in values]) for step in range(len(self.states))]
        self.cells = Cells.of(text for rows in self.texts for row in rows for text in row)
        names = [name for step in range(len(self.states)) for name in self._names(step)]
        self.left = max(text_width(name, "label") for name in names) + 18
        self.sizes = _Sizes(self.cells.width, CELL, 6, 20, 4, 32 if self.ranks == _OPEN else 44)
        self.tops = self._tops()
        self.digits = self.ranks <= _OPEN and self._right() <= SLIDE_WIDTH
        if not self.digits:
            self.sizes = _Sizes(8, 18, 2, 0, 0, 18)
            self.tops = self._tops()

    def _follow(self, values: Sequence[Sequence[float]]) -> None:
        """Find out, from the numbers, which piece arrived at each rank and what became of it."""
        before = self.states[-1]
        after = [list(row) for row in before]
        step = len(self.states)
        kinds = set()
        for rank, new in enumerate(values):
            changed = [piece for piece in range(self.ranks) if new[piece] != before[rank][piece].value]
            source = before[(rank - 1) % self.ranks]
            if len(changed) != 1:
                message = _("step {step} changes {count} pieces on rank {rank}; one piece arrives in each step.")
                raise ValueError(message.format(step=step, count=len(changed), rank=rank))
            (piece,) = changed
            own, came = before[rank][piece], source[piece]
            if new[piece] not in (own.value + came.value, came.value):
                message = _("step {step}: piece {piece} of rank {rank} is neither what arrived nor its sum.")
                raise ValueError(message.format(step=step, piece=piece, rank=rank))
            adds = new[piece] == own.value + came.value
            kinds.add(adds)
            after[rank][piece] = _Piece(new[piece], came.shares + own.shares * adds)
            if came.shares < self.ranks:
                after[(rank - 1) % self.ranks][piece] = came._replace(live=False)
        if len(kinds) > 1:
            raise ValueError(_("step {step}: some ranks add what arrives, and others keep it.").format(step=step))
        self.states.append(after)
        self.adds.append(kinds.pop())

    def _sent(self, step: int) -> list[int]:
        """Which piece each rank sent: the one that its neighbour got."""
        before, after = self.states[step], self.states[step + 1]
        return [
            next(
                piece
                for piece in range(self.ranks)
                if after[(rank + 1) % self.ranks][piece].value != before[(rank + 1) % self.ranks][piece].value
            )
            for rank in range(self.ranks)
        ]

    def _label(self, step: int) -> int:
        """The room above a row's cells: where all pieces are finished no Σ stands there."""
        unfinished = any(piece.live and piece.shares < self.ranks for row in self.states[step] for piece in row)
        return self.sizes.label if unfinished else 0

    def _tops(self) -> list[int]:
        """Where each row's cells begin, with their frames; at last where the next one's would."""
        tops, y = [], MARGIN + _HEAD
        for step in range(len(self.states)):
            y += self._label(step)
            tops.append(y)
            y += self.sizes.height + 2 * self.sizes.frame + self.sizes.arrows
        return [*tops, y]

    def _names(self, step: int) -> list[str]:
        """What stands beside a row."""
        if step == 0:
            return [_("start")]
        return [_("step {number}").format(number=step), _("adds") if self.adds[step - 1] else _("copies")]

    def said(self) -> list[str]:
        """What happens at each step, in words."""
        said = [_("Each rank has all of its own numbers: of every piece, one share of {n}.").format(n=self.ranks)]
        for number, (adds, events) in enumerate(zip(self.adds, self.steps, strict=True), 1):
            if adds:
                message = _(
                    "Step {number}, {bytes} bytes: each rank sends a piece to the right, and adds its own share to what"
                    " arrives."
                )
            else:
                message = _(
                    "Step {number}, {bytes} bytes: each rank sends a finished piece to the right, and keeps what "
                    "arrives."
                )
            said.append(message.format(number=number, bytes=events[0].payload_bytes))
        return said

    def _lane(self, rank: int) -> Box:
        width = self.ranks * self.sizes.pitch - self.sizes.gap + 2 * _PAD
        between = _BETWEEN if self.ranks <= _OPEN else 6
        bottom = self.tops[-1] - self.sizes.arrows + _PAD
        return Box(MARGIN + self.left + rank * (width + between), MARGIN, width, bottom - MARGIN)

    def _right(self) -> int:
        return self._lane(self.ranks - 1).right + MARGIN

    def _cell(self, step: int, rank: int, piece: int) -> Box:
        sizes = self.sizes
        x = self._lane(rank).x + _PAD + piece * sizes.pitch + sizes.frame
        return Box(x, self.tops[step] + sizes.frame, sizes.cell, sizes.height)

    def drawing(self) -> Drawing:
        """Draw the lanes, and in them a row for each step, which is a step of the figure too."""
        canvas = Canvas()
        for rank in range(self.ranks):
            draw_upright_lane(canvas, self._lane(rank), rank)
        for step in range(len(self.states)):
            canvas.step(step + 1)
            self._draw_names(canvas, step)
            for rank in range(self.ranks):
                if step:
                    self._draw_sent(canvas, step, rank)
                for piece in range(self.ranks):
                    self._draw_piece(canvas, step, rank, piece)
        canvas.step(0)
        return canvas.drawing(self._right(), self._lane(0).bottom + MARGIN, self._alt())

    def _draw_names(self, canvas: Canvas, step: int) -> None:
        names = self._names(step)
        center_y = self._cell(step, 0, 0).center_y
        if not self.digits:
            text = f"{step} {names[-1]}" if step else names[0]
            canvas.text(MARGIN, middle(center_y, "note"), text, "note")
            return
        y = center_y - 11 * (len(names) - 1)
        for name, style in zip(names, ("label", "note"), strict=False):
            canvas.text(MARGIN, middle(y, style), name, style)
            y += 22

    def _draw_piece(self, canvas: Canvas, step: int, rank: int, piece: int) -> None:
        found, box = self.states[step][rank][piece], self._cell(step, rank, piece)
        if not found.live:
            canvas.box("absent", box)
            return
        if found.shares == self.ranks:
            canvas.box("block", box, "neutral")
        else:
            canvas.frame(box, self.sizes.frame, rank)
        if not self.digits:
            return
        block = Block([[self.texts[step][rank][piece]]], 1, 1)
        draw_digits(canvas, [block], Grid(self.sizes.cell, CELL, self.cells), box.x, box.y)
        y = box.y - self.sizes.frame - self.sizes.label // 2
        if found.shares < self.ranks:
            text = _("Σ {number}").format(number=found.shares)
            canvas.text(box.center_x, middle(y, "mini"), text, "mini", "c")

    def _draw_sent(self, canvas: Canvas, step: int, rank: int) -> None:
        """Draw the way of the piece that a rank sent; from the last rank it leads on to the first."""
        piece = self.sent[step - 1][rank]
        source, target = self._cell(step - 1, rank, piece), self._cell(step, (rank + 1) % self.ranks, piece)
        start = source.center_x, source.bottom + self.sizes.frame + 2
        partial = self.states[step][(rank + 1) % self.ranks][piece].shares < self.ranks
        end = target.center_x, target.y - 3 - (self.sizes.frame + self.sizes.label) * partial
        ways = [(start, end)]
        if rank == self.ranks - 1:
            across = self._lane(1).x - self._lane(0).x
            ways = [(start, (start[0] + across, end[1])), ((end[0] - across, start[1]), end)]
        left, right = self._lane(0).x - 8, self._lane(self.ranks - 1).right + 8
        for (x, y), (to_x, to_y) in ways:
            first, last = max(x, left), min(to_x, right)
            y_first, y_last = (y + (to_y - 7 - y) * (at - x) // (to_x - x) for at in (first, last))
            canvas.line("arrow", (first, y_first), (last, y_last))
            if last == to_x:
                canvas.rise(to_x, to_y - 8, to_y)

    def _alt(self) -> str:
        added, copied = self.adds.count(True), self.adds.count(False)
        message = ngettext(
            "A ring of {ranks} ranks in {n} step: in it, every rank sends {bytes} bytes to the next rank; what "
            "arrives is added in {added}, and kept in {copied}.",
            "A ring of {ranks} ranks in {n} steps: in each, every rank sends {bytes} bytes to the next rank; what "
            "arrives is added in {added}, and kept in {copied}.",
            len(self.steps),
        )
        size = max((event.payload_bytes for events in self.steps for event in events), default=0)
        return message.format(ranks=self.ranks, n=len(self.steps), bytes=size, added=added, copied=copied)


def _steps(trace: Sequence[Event], ranks: int) -> list[list[Event]]:
    """The sends of each step: the k-th of every rank, each to the next rank."""
    sent: dict[int, list[Event]] = defaultdict(list)
    for event in trace:
        if event.kind != "send" or event.ranks[1] != (event.ranks[0] + 1) % ranks:
            message = _("{kind} among ranks {ranks}: in a ring each rank sends to the next one, and to no other.")
            raise ValueError(message.format(kind=event.kind, ranks=", ".join(map(str, event.ranks))))
        sent[event.ranks[0]].append(event)
    counts = {len(sent[rank]) for rank in range(ranks)}
    if len(counts) > 1:
        message = _("the ranks sent {counts} times; in a ring each rank sends once in each step.")
        raise ValueError(message.format(counts=", ".join(str(len(sent[rank])) for rank in range(ranks))))
    return [[sent[rank][step] for rank in range(ranks)] for step in range(counts.pop())]


def _states(output: object, rank: int, ranks: int, steps: int) -> list[list[float]]:
    """The numbers that a rank held, a list for the start and for each step."""
    message = _("rank {rank} must return {states} tensors of {ranks} numbers: what it held at the start and after each")
    message = message.format(rank=rank, states=steps + 1, ranks=ranks)
    if not isinstance(output, list | tuple) or len(output) != steps + 1:
        raise ValueError(message)
    for state in output:
        if not isinstance(state, Tensor) or state.shape != (ranks,):
            raise ValueError(message)
    return [state.tolist() for state in output]
