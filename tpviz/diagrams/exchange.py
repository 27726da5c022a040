"""A collective, before and after: which rank's numbers arrive where (diagrams)."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import groupby, pairwise

from torch import Tensor

from tpviz.chunking import chunk_offsets, chunk_sizes
from tpviz.diagrams.blocks import LANE_HEAD, LANE_PAD, Grid, draw_caption, draw_digits, draw_lane
from tpviz.diagrams.canvas import Box, Canvas, Color, middle
from tpviz.diagrams.drawing import Drawing
from tpviz.diagrams.grammar import CELL, MARGIN, WIDEST, text_width, wrapped
from tpviz.diagrams.numbers import Cells, number_texts
from tpviz.diagrams.operands import Block, RunLike, check_ranks, checked_tensor, is_large, shape_text, values_of
from tpviz.i18n import N_, _
from tpviz.trace import Event

_GAP = 8
_ARROW = 52
_HEADING = 32
_BADGES = 30
"""The room above the blocks for the numbers of the ranks that pieces go to or came from."""
_FRAME = 8
_PAD = 8
_BAR_LINE = 24
_LEAST_LANE = 3 * _BAR_LINE + 2 * _PAD
"""A bar over a single lane has room for its words."""

NAMES = {
    "all_gather": "AllGather",
    "all_reduce": "AllReduce",
    "all_to_all": "AllToAll",
    "broadcast": "Broadcast",
    "reduce_scatter": "ReduceScatter",
    "send": "Send",
}
_REDUCTIONS = {"sum": N_("sum"), "mean": N_("mean"), "max": N_("maximum"), "min": N_("minimum")}


@dataclass(frozen=True, slots=True)
class _Piece:
    """A part of an array, in the colour of the rank that its numbers are from; grey if they are from all."""

    block: Block
    color: Color
    badge: int | None = None
    """The rank that it goes to, or that it came from, where this is not plain."""


@dataclass(frozen=True, slots=True)
class _Side:
    """What a lane shows before or after: the outline of an array, and the pieces of it that the rank has."""

    rows: int
    columns: int
    pieces: Sequence[_Piece] = ()
    partial: bool = False

    @property
    def badges(self) -> bool:
        """Whether the pieces carry numbers."""
        return any(piece.badge is not None for piece in self.pieces)

    @property
    def upright(self) -> bool:
        """Whether the pieces carry numbers and are one above another, so that the numbers stand beside them."""
        return any(piece.block.row for piece in self.pieces) and self.badges


def collective(event: Event, before: Sequence[Tensor | None], after: RunLike | Sequence[Tensor | None]) -> Drawing:
    """Draw one recorded collective: what each rank gave, what each got, and whose numbers arrived where.

    Args:
        event: the event, such as ``run.trace[0]``.
        before: what each rank gave, one tensor a rank; None for the rank that receives in a send.
        after: what each rank got: the run, if its outputs are that, or a list likewise.
    """
    if event.kind not in NAMES:
        message = _("{kind} moves no numbers, so there is nothing to draw: expected one of {known}.")
        raise ValueError(message.format(kind=event.kind, known=", ".join(NAMES)))
    given, got = list(before), list(values_of(after))
    lanes = event.ranks if len(given) == len(event.ranks) else tuple(range(len(given)))
    if len(given) != len(got) or not set(event.ranks) <= set(lanes):
        message = _("before has {before} tensors and after {after}: give one a rank, for the ranks {ranks} or for all.")
        ranks = ", ".join(map(str, event.ranks))
        raise ValueError(message.format(before=len(given), after=len(got), ranks=ranks))
    check_ranks(max(lanes) + 1)
    members = [lanes.index(rank) for rank in event.ranks]
    moved = _Moved(event, [given[index] for index in members], [got[index] for index in members])
    return _Exchange(event, moved, lanes).drawing()


class _Moved:
    """What the group's ranks gave and got: as matrices, and as what each side of the figure shows."""

    def __init__(self, event: Event, given: Sequence[Tensor | None], got: Sequence[Tensor | None]) -> None:
        self.event = event
        self.ranks = event.ranks
        _reduction, dim, other_dim = event.options
        flat = len(event.shape) < 2  # a vector is drawn as one row
        self.axis, self.other_axis = (1, 1) if flat else (dim or 0, other_dim or 0)
        receives, sends = range(len(got)), range(len(given))
        if event.kind == "send":
            sends, receives = range(1), range(1, 2)
        self.given = {k: checked_tensor(given[k], _("before of rank {rank}").format(rank=self.ranks[k])) for k in sends}
        self.got = {k: checked_tensor(got[k], _("after of rank {rank}").format(rank=self.ranks[k])) for k in receives}
        self.source = self._source()
        self.cuts = {k: chunk_sizes(tensor.shape[self.axis], len(self.ranks)) for k, tensor in self.given.items()}
        """How the dimension that is cut falls to the ranks, in what each gave."""
        for k, tensor in self.got.items():
            expected = self._expected(k)
            if tuple(tensor.shape) != expected:
                message = _("after of rank {rank} is {came}, where {name} gives {expected}: pass what it returned.")
                shapes = {"came": shape_text(tensor.shape), "expected": shape_text(expected)}
                raise ValueError(message.format(rank=self.ranks[k], name=NAMES[event.kind], **shapes))
        tensors = [*self.given.values(), *self.got.values()]
        self.large = any(is_large(*tensor.shape) for tensor in tensors)
        texts = iter([] if self.large else number_texts([line for tensor in tensors for line in tensor.tolist()]))
        self.texts = {
            id(tensor): [next(texts) for _line in range(tensor.shape[0])] for tensor in tensors if not self.large
        }

    def _source(self) -> int:
        """The index of the rank that a broadcast or a send comes from."""
        if self.event.kind != "broadcast":
            return 0
        for k, tensor in self.given.items():
            if all(tensor.shape == result.shape and _same(tensor, result) for result in self.got.values()):
                return k
        raise ValueError(_("after a broadcast every rank has what one rank gave; these are no rank's numbers."))

    def _expected(self, k: int) -> tuple[int, ...]:
        """The shape of what the k-th rank gets."""
        if self.event.kind in ("broadcast", "send"):
            return tuple(self.given[self.source].shape)
        shape = list(self.given[k].shape)
        if self.event.kind == "all_gather":
            shape[self.axis] = sum(tensor.shape[self.axis] for tensor in self.given.values())
        elif self.event.kind in ("reduce_scatter", "all_to_all"):
            shape[self.axis] = self.cuts[k][k]
        if self.event.kind == "all_to_all":
            shape[self.other_axis] = sum(self._received(k))
        return tuple(shape)

    def _received(self, k: int) -> list[int]:
        """How long the pieces are, along the dimension that joins them, that an all-to-all brings the k-th rank."""
        if self.axis == self.other_axis:
            return [cut[k] for cut in self.cuts.values()]
        return [tensor.shape[self.other_axis] for tensor in self.given.values()]

    def _cut(self, tensor: Tensor, axis: int, sizes: Sequence[int]) -> list[Block]:
        """The pieces of these sizes along an axis."""
        texts = self.texts.get(id(tensor), [])
        rows, columns = tensor.shape
        blocks, at = [], 0
        for size in sizes:
            if axis == 0:
                blocks.append(Block(texts[at : at + size], size, columns, row=at))
            else:
                blocks.append(Block([line[at : at + size] for line in texts], rows, size, column=at))
            at += size
        return blocks

    def _whole(self, tensor: Tensor) -> Block:
        return self._cut(tensor, 0, [tensor.shape[0]])[0]

    def before(self, k: int, in_place: bool) -> _Side:
        """What the k-th rank of the group gave."""
        kind, ranks = self.event.kind, self.ranks
        if k not in self.given:
            return _side(self.given[self.source])
        tensor, color = self.given[k], ranks[k]
        side = _side(tensor, [_Piece(self._whole(tensor), color)], kind in ("all_reduce", "reduce_scatter"))
        if kind == "broadcast" and k != self.source:
            return _side(tensor)
        if kind in ("reduce_scatter", "all_to_all"):
            cuts = self._cut(tensor, self.axis, self.cuts[k])
            pieces = [_Piece(block, color, to) for block, to in zip(cuts, ranks, strict=True)]
            return _side(tensor, pieces, side.partial)
        if kind == "all_gather" and in_place:
            sizes = [each.shape[self.axis] for each in self.given.values()]
            return self._placed(self._whole(tensor), sum(sizes[:k]), sum(sizes), color)
        return side

    def after(self, k: int, in_place: bool) -> _Side:
        """What the k-th rank of the group got."""
        kind, ranks = self.event.kind, self.ranks
        if k not in self.got:
            return _side(self.given[self.source])
        tensor = self.got[k]
        if kind in ("broadcast", "send"):
            source = ranks[self.source]
            return _side(tensor, [_Piece(self._whole(tensor), source, source)])
        if kind in ("all_gather", "all_to_all"):
            axis = self.axis if kind == "all_gather" else self.other_axis
            lengths = [each.shape[axis] for each in self.given.values()] if kind == "all_gather" else self._received(k)
            cuts = self._cut(tensor, axis, lengths)
            return _side(tensor, [_Piece(block, rank, rank) for block, rank in zip(cuts, ranks, strict=True)])
        if kind == "reduce_scatter" and in_place:
            size = self.given[k].shape[self.axis]
            return self._placed(self._whole(tensor), chunk_offsets(size, len(ranks))[k], size, "neutral")
        return _side(tensor, [_Piece(self._whole(tensor), "neutral")])

    def _placed(self, block: Block, offset: int, size: int, color: Color) -> _Side:
        """A shard in its place in the whole."""
        if self.axis == 0:
            return _Side(size, block.columns, [_Piece(replace(block, row=offset), color)])
        return _Side(block.rows, size, [_Piece(replace(block, column=offset), color)])


def _side(tensor: Tensor, pieces: Sequence[_Piece] = (), partial: bool = False) -> _Side:
    return _Side(tensor.shape[0], tensor.shape[1], pieces, partial)


def _same(left: Tensor, right: Tensor) -> bool:
    """Whether two tensors hold the same numbers, not-a-number included."""
    return bool(((left == right) | ((left != left) & (right != right))).all())


class _Exchange:
    """The layout of the figure: a lane for each rank, and the bar across those of the group."""

    def __init__(self, event: Event, moved: _Moved, lanes: Sequence[int]) -> None:
        self.event, self.moved, self.lanes = event, moved, lanes
        self.words = self._words()
        self.bar_width = round(max(text_width(word, "label") for word in self.words) + 32)
        members = [place for place, rank in enumerate(lanes) if rank in event.ranks]
        runs = groupby(members, key=lambda place: place - members.index(place))
        self.stretches = [list(group) for _key, group in runs]
        self.alone = any(len(stretch) == 1 for stretch in self.stretches)
        self.room = WIDEST - 2 * MARGIN - LANE_HEAD - self.bar_width - 2 * (_ARROW + _FRAME) - LANE_PAD
        texts = (text for lines in moved.texts.values() for line in lines for text in line)
        cells = Cells.of(texts)
        for in_place in (True, False):
            self.befores = [moved.before(k, in_place) for k in range(len(event.ranks))]
            self.afters = [moved.after(k, in_place) for k in range(len(event.ranks))]
            columns = max(side.columns for side in self.befores) + max(side.columns for side in self.afters)
            rows = max(side.rows for side in (*self.befores, *self.afters))
            self.grid = Grid(cells.width, CELL, cells)
            if not moved.large and columns * cells.width <= self.room:
                break
        else:
            self.grid = Grid(min(CELL, self.room / columns), min(CELL, 160 / rows), None)
        self.badges = any(side.badges for side in (*self.befores, *self.afters))
        self.frame = _FRAME * any(side.partial for side in self.befores)

    def _words(self) -> list[str]:
        """What the bar says: the collective, what it reduces by, how many bytes it is about, and its ranks."""
        event = self.event
        reduction = event.options[0] if event.kind in ("all_reduce", "reduce_scatter") else None
        size = _("{bytes} bytes").format(bytes=event.payload_bytes)
        if reduction is not None:
            size = _("{reduction}, {size}").format(reduction=_(_REDUCTIONS[reduction]), size=size)
        return [NAMES[event.kind], size, _ranks_text(event)]

    def drawing(self) -> Drawing:
        """Draw the lanes, then the bar across them."""
        canvas = Canvas()
        sides = (*self.befores, *self.afters)
        beside = [_BADGES * any(side.upright for side in one) for one in (self.befores, self.afters)]
        above = _BADGES * (self.badges and not all(side.upright for side in sides if side.badges))
        self.content = max(side.rows for side in sides) * self.grid.cell_height
        pad, gap = (_PAD, _GAP) if len(self.lanes) <= 4 else (_PAD // 2, _GAP // 2)
        self.height = max(self.content + 2 * (self.frame + pad) + above, _LEAST_LANE if self.alone else 0)
        self.pitch = self.height + gap
        left = MARGIN + LANE_HEAD + self.frame
        width = max(side.columns for side in self.befores) * self.grid.cell_width
        bar_x = round(left + width + beside[0] + self.frame + _ARROW)
        after_x = bar_x + self.bar_width + _ARROW
        after_width = max(side.columns for side in self.afters) * self.grid.cell_width
        right = after_x + after_width + beside[1] + LANE_PAD + 6
        canvas.text(left + width / 2, middle(MARGIN + 12, "label"), _("before"), "label", "c")
        canvas.text(after_x + after_width / 2, middle(MARGIN + 12, "label"), _("after"), "label", "c")
        for place, rank in enumerate(self.lanes):
            lane = Box(MARGIN, MARGIN + _HEADING + place * self.pitch, right - MARGIN, self.height)
            draw_lane(canvas, lane, rank)
            if rank not in self.event.ranks:
                canvas.text(left, middle(lane.center_y, "note"), _("takes no part"), "note")
                continue
            k = self.event.ranks.index(rank)
            center_y = lane.center_y + above / 2
            self._draw_side(canvas, self.befores[k], left, center_y)
            self._draw_side(canvas, self.afters[k], after_x, center_y)
            if self.befores[k].pieces:
                start = left + self.befores[k].columns * self.grid.cell_width + beside[0] + self.frame
                canvas.arrow(start + 8, bar_x - 4, center_y)
            if self.afters[k].pieces:
                canvas.arrow(bar_x + self.bar_width + 4, after_x - 8, center_y)
        self._draw_bar(canvas, bar_x)
        lines = wrapped(self._caption(), "caption", right - MARGIN) if self.badges else []
        bottom = draw_caption(canvas, lines, MARGIN, MARGIN + _HEADING + len(self.lanes) * self.pitch - gap)
        return canvas.drawing(right + MARGIN, bottom + MARGIN, self._alt())

    def _caption(self) -> str:
        if self.event.kind == "reduce_scatter":
            return _("A small number: the rank that a piece goes to.")
        if self.event.kind == "all_to_all":
            return _("A small number: before, the rank that a piece goes to; after, the rank that it came from.")
        return _("A small number: the rank that a piece came from.")

    def _draw_side(self, canvas: Canvas, side: _Side, x: float, center_y: float) -> None:
        grid = self.grid
        y = round(center_y - side.rows * grid.cell_height / 2)
        whole = Box(x, y, side.columns * grid.cell_width, side.rows * grid.cell_height)
        if sum(piece.block.rows * piece.block.columns for piece in side.pieces) < side.rows * side.columns:
            canvas.box("absent", whole)
        if side.partial:
            canvas.frame(whole, _FRAME, side.pieces[0].color)
        draw_digits(canvas, [piece.block for piece in side.pieces], grid, x, y)
        upright, badge_y = side.upright, y - _FRAME * side.partial - 16
        for piece in side.pieces:
            if piece.block.empty:
                continue
            box = grid.box(x, y, piece.block)
            if not side.partial:
                canvas.box("block", box, piece.color)
            elif piece.block.column:
                canvas.line("thin", (box.x, box.y), (box.x, box.bottom))
            elif piece.block.row:
                canvas.line("thin", (box.x, box.y), (box.right, box.y))
            if piece.badge is None:
                continue
            if upright:
                canvas.badge(box.right + _FRAME * side.partial + 18, box.center_y, piece.badge, radius=13)
            elif box.width >= 26:
                canvas.badge(box.center_x, badge_y, piece.badge, radius=13)

    def _draw_bar(self, canvas: Canvas, x: int) -> None:
        """Draw the bar over each stretch of neighbouring lanes of the group, joined by a line past the others."""
        center_x, top = x + self.bar_width / 2, MARGIN + _HEADING
        for stretch in self.stretches:
            above = top + stretch[0] * self.pitch + 4
            box = Box(x, above, self.bar_width, top + stretch[-1] * self.pitch + self.height - 4 - above)
            canvas.rounded("bar", box, 10)
            y = box.center_y - len(self.words) * _BAR_LINE / 2
            for line, word in enumerate(self.words):
                style = "note" if line else "label"
                canvas.text(center_x, middle(y + _BAR_LINE / 2, style), word, style, "c", "w")
                y += _BAR_LINE
        for upper, lower in pairwise(self.stretches):
            start = top + upper[-1] * self.pitch + self.height - 4
            canvas.line("rule", (center_x, start), (center_x, top + lower[0] * self.pitch + 4))

    def _alt(self) -> str:
        event, moved = self.event, self.moved
        messages = {
            "all_gather": _("{name}, {ranks}: what each gave, {before}, is joined, and each gets the whole, {after}."),
            "all_reduce": _("{name}, {ranks}: what each gave, {before}, is reduced ({op}), and each gets the result."),
            "reduce_scatter": _(
                "{name}, {ranks}: what each gave, {before}, is reduced ({op}), and each gets its part, {after}."
            ),
            "broadcast": _("{name}, {ranks}: each gets what rank {source} gave, {before}."),
            "all_to_all": _(
                "{name}, {ranks}: each cuts what it has, {before}, into a piece for each, and gets {after}."
            ),
            "send": _("{name}, {ranks}: what rank {source} gave, {before}, arrives."),
        }
        return messages[event.kind].format(
            name=NAMES[event.kind],
            ranks=_ranks_text(event),
            op=_(_REDUCTIONS.get(event.options[0] or "sum", "sum")),
            before=_shapes_text(moved.given.values()),
            after=_shapes_text(moved.got.values()),
            source=event.ranks[moved.source],
        )


def _shapes_text(tensors: Iterable[Tensor]) -> str:
    """The shapes, named once where they agree."""
    return ", ".join(dict.fromkeys(shape_text(tensor.shape) for tensor in tensors))


def _ranks_text(event: Event) -> str:
    ranks = event.ranks
    if event.kind == "send":
        return _("rank {source} to {target}").format(source=ranks[0], target=ranks[1])
    if len(ranks) == 1:
        return _("rank {rank}").format(rank=ranks[0])
    if len(ranks) > 2 and ranks == tuple(range(ranks[0], ranks[-1] + 1)):
        return _("ranks {first} to {last}").format(first=ranks[0], last=ranks[-1])
    return _("ranks {ranks}").format(ranks=", ".join(map(str, ranks)))
