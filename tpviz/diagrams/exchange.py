"""A collective, before and after: which rank's numbers arrive where (diagrams)."""

from collections.abc import Iterable, Sequence
from itertools import chain, groupby, islice, pairwise
from typing import NamedTuple

from torch import Tensor

from tpviz.chunking import chunk_sizes
from tpviz.diagrams.blocks import LANE_HEAD, LANE_PAD, Grid, draw_caption, draw_digits, draw_lane
from tpviz.diagrams.canvas import Box, Canvas, Color, middle
from tpviz.diagrams.drawing import Drawing
from tpviz.diagrams.grammar import CELL, MARGIN, SLIDE_WIDTH, WIDEST, text_width, wrapped
from tpviz.diagrams.numbers import Cells, number_texts
from tpviz.diagrams.operands import Block, RunLike, check_ranks, checked_tensor, is_large, values_of
from tpviz.i18n import N_, _
from tpviz.tables import shape_text
from tpviz.trace import Event

_GAP = 8
_ARROW = 52
_HEADING = 32
_BADGES = 30
"""The room for the numbers of the ranks that pieces go to or came from: once at the head, or in each lane."""
_BADGE = 13
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


class _Array(NamedTuple):
    """What a rank gave or got: its shape, and its numbers as text where these can be shown."""

    rows: int
    columns: int
    texts: list[list[str]]

    def size(self, axis: int) -> int:
        """How long it is along an axis."""
        return self.columns if axis else self.rows

    def cut(self, axis: int, sizes: Sequence[int]) -> list[Block]:
        """The pieces of these sizes along an axis."""
        blocks, at = [], 0
        for size in sizes:
            if axis:
                blocks.append(Block([line[at : at + size] for line in self.texts], self.rows, size, 0, at))
            else:
                blocks.append(Block(self.texts[at : at + size], size, self.columns, at, 0))
            at += size
        return blocks

    @property
    def block(self) -> Block:
        """All of it."""
        return Block(self.texts, self.rows, self.columns)


class _Piece(NamedTuple):
    """A part of an array, in the colour of the rank that its numbers are from; grey if they are from all."""

    block: Block
    color: Color
    badge: int | None = None
    """The rank that it goes to, or that it came from, where this is not plain."""


class _Side:
    """What a lane shows before or after: the outline of an array, and the pieces of it that the rank has."""

    def __init__(self, rows: int, columns: int, pieces: Sequence[_Piece] = (), partial: bool = False) -> None:
        self.rows, self.columns, self.pieces, self.partial = rows, columns, pieces, partial
        self.badges = any(piece.badge is not None for piece in pieces)
        self.upright = self.badges and any(piece.block.row for piece in pieces)
        """Whether the pieces are one above another, so that their badges stand beside them."""


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
        self.event, self.ranks = event, event.ranks
        _reduction, dim, other_dim = event.options
        flat = len(event.shape) < 2  # a vector is drawn as one row
        self.axis, self.other_axis = (1, 1) if flat else (dim or 0, other_dim or 0)
        sends, receives = (range(1), range(1, 2)) if event.kind == "send" else (range(len(given)), range(len(got)))
        before = {k: checked_tensor(given[k], _("before of rank {rank}").format(rank=self.ranks[k])) for k in sends}
        after = {k: checked_tensor(got[k], _("after of rank {rank}").format(rank=self.ranks[k])) for k in receives}
        self.source = _broadcaster(before, after) if event.kind == "broadcast" else 0
        tensors = [*before.values(), *after.values()]
        self.large = any(is_large(*tensor.shape) for tensor in tensors)
        texts = iter([] if self.large else number_texts([line for tensor in tensors for line in tensor.tolist()]))
        arrays = [_Array(len(tensor), tensor.shape[1], list(islice(texts, len(tensor)))) for tensor in tensors]
        self.given = dict(zip(before, arrays, strict=False))
        self.got = dict(zip(after, arrays[len(before) :], strict=True))
        self.cuts: dict[int, list[int]] = {}
        """How the dimension that is cut falls to the ranks, in what each gave."""
        if event.kind in ("reduce_scatter", "all_to_all"):
            self.cuts = {k: chunk_sizes(array.size(self.axis), len(self.ranks)) for k, array in self.given.items()}
        for k, array in self.got.items():
            expected = self._expected(k)
            if (array.rows, array.columns) != expected:
                message = _("after of rank {rank} is {came}, where {name} gives {expected}: pass what it returned.")
                shapes = {"came": shape_text((array.rows, array.columns)), "expected": shape_text(expected)}
                raise ValueError(message.format(rank=self.ranks[k], name=NAMES[event.kind], **shapes))

    def _expected(self, k: int) -> tuple[int, int]:
        """The shape of what the k-th rank gets."""
        array = self.given[self.source if self.event.kind in ("broadcast", "send") else k]
        shape = [array.rows, array.columns]
        if self.event.kind == "all_gather":
            shape[self.axis] = sum(each.size(self.axis) for each in self.given.values())
        elif self.event.kind in ("reduce_scatter", "all_to_all"):
            shape[self.axis] = self.cuts[k][k]
        if self.event.kind == "all_to_all":
            shape[self.other_axis] = sum(self._received(k))
        return shape[0], shape[1]

    def _received(self, k: int) -> list[int]:
        """How long the pieces are, along the dimension that joins them, that the k-th rank gets from each."""
        if self.event.kind == "all_gather":
            return [array.size(self.axis) for array in self.given.values()]
        if self.axis == self.other_axis:
            return [cut[k] for cut in self.cuts.values()]
        return [array.size(self.other_axis) for array in self.given.values()]

    def before(self, k: int, in_place: bool) -> _Side:
        """What the k-th rank of the group gave."""
        kind, color = self.event.kind, self.ranks[k]
        if k not in self.given or (kind == "broadcast" and k != self.source):
            return _Side(self.given[self.source].rows, self.given[self.source].columns)
        array = self.given[k]
        pieces = [_Piece(array.block, color)]
        if kind in ("reduce_scatter", "all_to_all"):
            cuts = array.cut(self.axis, self.cuts[k])
            pieces = [_Piece(block, color, to) for block, to in zip(cuts, self.ranks, strict=True)]
        if kind == "all_gather" and in_place:
            sizes = self._received(k)
            return self._placed(array, sum(sizes[:k]), sum(sizes), color)
        return _Side(array.rows, array.columns, pieces, kind in ("all_reduce", "reduce_scatter"))

    def after(self, k: int, in_place: bool) -> _Side:
        """What the k-th rank of the group got."""
        kind, source = self.event.kind, self.ranks[self.source]
        if k not in self.got:
            return _Side(self.given[self.source].rows, self.given[self.source].columns)
        array = self.got[k]
        pieces = [_Piece(array.block, "neutral")]
        if kind in ("broadcast", "send"):
            pieces = [_Piece(array.block, source, source)]
        elif kind in ("all_gather", "all_to_all"):
            cuts = array.cut(self.axis if kind == "all_gather" else self.other_axis, self._received(k))
            pieces = [_Piece(block, rank, rank) for block, rank in zip(cuts, self.ranks, strict=True)]
        elif kind == "reduce_scatter" and in_place:
            return self._placed(array, sum(self.cuts[k][:k]), sum(self.cuts[k]), "neutral")
        return _Side(array.rows, array.columns, pieces)

    def _placed(self, array: _Array, offset: int, size: int, color: Color) -> _Side:
        """A shard in its place in the whole."""
        if self.axis:
            return _Side(array.rows, size, [_Piece(array.block._replace(column=offset), color)])
        return _Side(size, array.columns, [_Piece(array.block._replace(row=offset), color)])


def _broadcaster(given: dict[int, Tensor], got: dict[int, Tensor]) -> int:
    """The index of the rank whose numbers all the others got."""
    for k, tensor in given.items():
        if all(tensor.shape == result.shape and _same(tensor, result) for result in got.values()):
            return k
    raise ValueError(_("after a broadcast every rank has what one rank gave; these are no rank's numbers."))


def _same(left: Tensor, right: Tensor) -> bool:
    """Whether two tensors hold the same numbers, not-a-number included."""
    return bool(((left == right) | ((left != left) & (right != right))).all())


class _Exchange:
    """The layout of the figure: a lane for each rank, and the bar across those of the group."""

    def __init__(self, event: Event, moved: _Moved, lanes: Sequence[int]) -> None:
        self.event, self.moved, self.lanes = event, moved, lanes
        self.words = self._words()
        self.bar_width = max(text_width(word, "label") for word in self.words) + 32
        members = [place for place, rank in enumerate(lanes) if rank in event.ranks]
        runs = groupby(members, key=lambda place: place - members.index(place))
        self.stretches = [list(group) for _key, group in runs]
        self.alone = any(len(stretch) == 1 for stretch in self.stretches)
        taken = 2 * MARGIN + LANE_HEAD + self.bar_width + 2 * (_ARROW + _FRAME) + LANE_PAD + _BADGES
        arrays = chain(moved.given.values(), moved.got.values())
        cells = Cells.of(chain.from_iterable(line for array in arrays for line in array.texts))
        for in_place, widest in ((True, SLIDE_WIDTH), (False, WIDEST)):
            self.befores = [moved.before(k, in_place) for k in range(len(event.ranks))]
            self.afters = [moved.after(k, in_place) for k in range(len(event.ranks))]
            columns = max(side.columns for side in self.befores) + max(side.columns for side in self.afters)
            rows = max(side.rows for side in (*self.befores, *self.afters))
            self.grid = Grid(cells.width, CELL, cells)
            if not moved.large and columns * cells.width + taken <= widest:
                break
        else:
            self.grid = Grid(min(CELL, (SLIDE_WIDTH - taken) / columns), min(CELL, 160 / rows), None)
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
        both = (self.befores, self.afters)
        heads = [_heads(sides) for sides in both]
        beside = [_BADGES * any(side.upright for side in sides) for sides in both]
        above = [
            _BADGES * (not head and any(side.badges and not side.upright for side in sides))
            for head, sides in zip(heads, both, strict=True)
        ]
        widths = [self.grid.across(max(side.columns for side in sides)) for sides in both]
        content = self.grid.down(max(side.rows for side in (*self.befores, *self.afters)))
        pad, gap = (_PAD, _GAP) if len(self.lanes) <= 4 else (_PAD // 2, _GAP // 2)
        self.height = max(content + 2 * (self.frame + pad) + max(above), _LEAST_LANE if self.alone else 0)
        self.pitch = self.height + gap
        self.top = MARGIN + _HEADING + _BADGES * any(heads)
        left = MARGIN + LANE_HEAD + self.frame
        bar_x = left + widths[0] + beside[0] + self.frame + _ARROW
        after_x = bar_x + self.bar_width + _ARROW
        right = after_x + widths[1] + beside[1] + LANE_PAD + 6
        for x, width, text, head in zip((left, after_x), widths, (_("before"), _("after")), heads, strict=True):
            canvas.text(x + width // 2, middle(MARGIN + 12, "label"), text, "label", "c")
            self._draw_badges(canvas, head, x, self.top - _BADGES // 2 - 1)
        for place, rank in enumerate(self.lanes):
            lane = Box(MARGIN, self.top + place * self.pitch, right - MARGIN, self.height)
            draw_lane(canvas, lane, rank)
            if rank not in self.event.ranks:
                canvas.text(left, middle(lane.center_y, "note"), _("takes no part"), "note")
                continue
            k = self.event.ranks.index(rank)
            before, after = self.befores[k], self.afters[k]
            center_y = lane.center_y + max(above) // 2
            self._draw_side(canvas, before, left, center_y, not heads[0])
            self._draw_side(canvas, after, after_x, center_y, not heads[1])
            if before.pieces:
                start = left + self.grid.across(before.columns) + beside[0] + self.frame
                canvas.arrow(start + 8, bar_x - 4, center_y)
            if after.pieces:
                canvas.arrow(bar_x + self.bar_width + 4, after_x - 8, center_y)
        self._draw_bar(canvas, bar_x)
        lines = wrapped(self._caption(), "caption", right - MARGIN) if self.badges else []
        bottom = draw_caption(canvas, lines, MARGIN, self.top + len(self.lanes) * self.pitch - gap)
        return canvas.drawing(right + MARGIN, bottom + MARGIN, self._alt())

    def _caption(self) -> str:
        if self.event.kind == "reduce_scatter":
            return _("A small number: the rank that a piece goes to.")
        if self.event.kind == "all_to_all":
            return _("A small number: before, the rank that a piece goes to; after, the rank that it came from.")
        return _("A small number: the rank that a piece came from.")

    def _draw_badges(self, canvas: Canvas, pieces: Sequence[_Piece], x: int, y: int) -> None:
        """Draw the pieces' badges above them, those that have the room."""
        for piece in pieces:
            box = self.grid.box(x, 0, piece.block)
            if piece.badge is not None and box.width >= 2 * _BADGE:
                canvas.badge(box.center_x, y, piece.badge, _BADGE)

    def _draw_side(self, canvas: Canvas, side: _Side, x: int, center_y: int, badges: bool) -> None:
        grid = self.grid
        wide, high = grid.across(side.columns), grid.down(side.rows)
        y = center_y - high // 2
        whole = Box(x, y, wide, high)
        if sum(piece.block.rows * piece.block.columns for piece in side.pieces) < side.rows * side.columns:
            canvas.box("absent", whole)
        frame = _FRAME * side.partial
        if side.partial:
            canvas.frame(whole, frame, side.pieces[0].color)
        draw_digits(canvas, [piece.block for piece in side.pieces], grid, x, y)
        for piece in side.pieces:
            if piece.block.empty:
                continue
            box = grid.box(x, y, piece.block)
            if not side.partial:
                canvas.box("block", box, piece.color)
            elif piece.block.column:
                canvas.line("thin", (box.x, y), (box.x, box.bottom))
            elif piece.block.row:
                canvas.line("thin", (x, box.y), (box.right, box.y))
            if side.upright and piece.badge is not None:
                canvas.badge(box.right + frame + 18, box.center_y, piece.badge, _BADGE)
        if badges and not side.upright:
            self._draw_badges(canvas, side.pieces, x, y - frame - 16)

    def _draw_bar(self, canvas: Canvas, x: int) -> None:
        """Draw the bar over each stretch of neighbouring lanes of the group, joined by a line past the others."""
        center_x, top = x + self.bar_width // 2, self.top
        for stretch in self.stretches:
            above = top + stretch[0] * self.pitch + 4
            box = Box(x, above, self.bar_width, top + stretch[-1] * self.pitch + self.height - 4 - above)
            canvas.rounded("bar", box, 10)
            y = box.center_y - len(self.words) * _BAR_LINE // 2
            for line, word in enumerate(self.words):
                style = "note" if line else "label"
                canvas.text(center_x, middle(y + _BAR_LINE // 2, style), word, style, "c", "w")
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


def _heads(sides: Sequence[_Side]) -> Sequence[_Piece]:
    """The pieces whose badges can stand once above all lanes: every rank has the same, in the same columns."""
    found = {
        tuple((piece.block.column, piece.block.columns, piece.badge) for piece in side.pieces): side
        for side in sides
        if side.pieces
    }
    side = next(iter(found.values()))
    return side.pieces if len(found) == 1 and side.badges and not side.upright else ()


def _shapes_text(arrays: Iterable[_Array]) -> str:
    """The shapes, named once where they agree."""
    return ", ".join(dict.fromkeys(shape_text((array.rows, array.columns)) for array in arrays))


def _ranks_text(event: Event) -> str:
    ranks = event.ranks
    if event.kind == "send":
        return _("rank {source} to {target}").format(source=ranks[0], target=ranks[1])
    if len(ranks) == 1:
        return _("rank {rank}").format(rank=ranks[0])
    if len(ranks) > 2 and ranks == tuple(range(ranks[0], ranks[-1] + 1)):
        return _("ranks {first} to {last}").format(first=ranks[0], last=ranks[-1])
    return _("ranks {ranks}").format(ranks=", ".join(map(str, ranks)))
