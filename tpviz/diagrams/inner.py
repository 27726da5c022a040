"""One entry of a product opened into its inner product: who multiplies what, and how the shares add up (diagrams)."""

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from tpviz.chunking import chunk_offsets, chunk_sizes
from tpviz.diagrams.blocks import LANE_HEAD, LANE_PAD, draw_lane, ink_on, sum_text
from tpviz.diagrams.canvas import Box, Canvas, Color, middle, pill_width
from tpviz.diagrams.drawing import Drawing
from tpviz.diagrams.grammar import CELL, MARGIN, SLIDE_WIDTH, text_width
from tpviz.diagrams.numbers import Cells, number_texts
from tpviz.diagrams.operands import Outputs, checked_entry, checked_tensor, outputs_of
from tpviz.i18n import _
from tpviz.tables import shape_text

_TIMES, _PLUS, _EQUALS = 22, 30, 44
"""The room for the signs between two cells."""
_GAP = 8
_INDEX = 24
"""The height of the line that says k = 0 above a product."""
_STRIP = 44
_TOTAL = 64


@dataclass(frozen=True, slots=True)
class _Share:
    """What one rank contributes to the entry: the products of these k, and their sum."""

    rank: int
    terms: range
    value: str


def inner_product(
    X: Tensor,
    W: Tensor,
    products: Tensor,
    outputs: Outputs,
    Y: Tensor,
    *,
    entry: tuple[int, int],
    names: Sequence[str] = ("X", "W", "Y"),
) -> Drawing:
    """Draw how the entry (i, j) of Y = X @ W comes about, product by product, each in the lane of who computes it.

    Args:
        X: the whole input.
        W: the whole weight.
        products: the products that make up the entry, ``X[i] * W[:, j]``.
        outputs: a run, or what each rank computed: its columns of Y (W cut by columns), or its partial sum of the
            whole Y (W cut by rows).
        Y: the whole result.
        entry: the row i and the column j.
        names: what the three are called.
    """
    x, w, y = (checked_tensor(value, name) for value, name in zip((X, W, Y), names, strict=True))
    parts = outputs_of(outputs, names[2])
    i, j = entry
    _check(x, w, y, checked_tensor(products, _("products")), entry, names)
    shares = _shares(parts, y, i, j, x.shape[1], names[2])
    factors = number_texts([x[i].tolist()]) + number_texts([w[:, j].tolist()]) + number_texts([products.tolist()])
    (total,) = number_texts([[y[i, j].item()]])[0]
    return _Opening(factors, shares, total, entry, names).drawing()


def _check(x: Tensor, w: Tensor, y: Tensor, products: Tensor, entry: tuple[int, int], names: Sequence[str]) -> None:
    if x.shape[1] != w.shape[0] or y.shape != (x.shape[0], w.shape[1]):
        message = _("{x}, {w} and {y} are {shapes}: these are not the shapes of {x} @ {w} = {y}.")
        shapes = ", ".join(shape_text(value.shape) for value in (x, w, y))
        raise ValueError(message.format(x=names[0], w=names[1], y=names[2], shapes=shapes))
    i, j = checked_entry(entry, y.shape[0], y.shape[1], names[2])
    if products.numel() != x.shape[1]:
        message = _("products has {came} numbers, where {expected} are expected: give {x}[{i}] * {w}[:, {j}].")
        numbers = {"came": products.numel(), "expected": x.shape[1]}
        raise ValueError(message.format(x=names[0], w=names[1], i=i, j=j, **numbers))


def _shares(parts: list[Tensor], y: Tensor, i: int, j: int, inner: int, name: str) -> list[_Share]:
    """Who computes which products, from the shapes of what the ranks computed."""
    ranks = len(parts)
    if all(part.shape == y.shape for part in parts):
        values = number_texts([[part[i, j].item()] for part in parts])
        cuts = zip(chunk_offsets(inner, ranks), chunk_sizes(inner, ranks), strict=True)
        return [_Share(rank, range(at, at + size), values[rank][0]) for rank, (at, size) in enumerate(cuts)]
    offsets, sizes = chunk_offsets(y.shape[1], ranks), chunk_sizes(y.shape[1], ranks)
    if [tuple(part.shape) for part in parts] != [(y.shape[0], size) for size in sizes]:
        message = _("the ranks hold {came}; expected its columns, {columns}, or all of {y}'s shape, {shape}.")
        came = ", ".join(shape_text(part.shape) for part in parts)
        columns = ", ".join(shape_text((y.shape[0], size)) for size in sizes)
        raise ValueError(message.format(came=came, y=name, shape=shape_text(y.shape), columns=columns))
    owner = next(rank for rank in range(ranks) if offsets[rank] <= j < offsets[rank] + sizes[rank])
    value = number_texts([[parts[owner][i, j - offsets[owner]].item()]])[0][0]
    return [_Share(rank, range(inner), value) if rank == owner else _Share(rank, range(0), "") for rank in range(ranks)]


class _Opening:
    """The layout of the figure: a lane for each rank, and the total below them."""

    def __init__(
        self,
        factors: list[list[str]],
        shares: list[_Share],
        total: str,
        entry: tuple[int, int],
        names: Sequence[str],
    ) -> None:
        self.lefts, self.rights, self.products = factors
        self.shares = shares
        self.total = total
        self.names = names
        self.entry = f"{names[2]}[{entry[0]}, {entry[1]}]"
        self.row, self.column = entry
        values = [share.value for share in shares]
        self.cell = Cells.of([*self.lefts, *self.rights, *self.products, *values, total]).width
        self.sharers = [share for share in shares if share.terms]
        self.summed = len(self.sharers) > 1
        self.single = all(len(share.terms) <= 1 for share in shares)
        self.pair = 2 * self.cell + _TIMES
        self.index = text_width("k = 00", "note")

    def drawing(self) -> Drawing:
        """Draw the lanes, one for each rank."""
        canvas = Canvas()
        title = _("{entry} is row {row} of {x} times column {column} of {w}: {x}[{row}, k] × {w}[k, {column}]").format(
            entry=self.entry, row=self.row, x=self.names[0], column=self.column, w=self.names[1]
        )
        lanes = [self._lane_right(share) for share in self.shares]
        right = max(*lanes, self._total_right(), MARGIN + text_width(title, "label"))
        canvas.text(MARGIN, middle(MARGIN + 14, "label"), title, "label")
        top = MARGIN + 36
        for share in self.shares:
            height = 2 * 8 + CELL if self.single else 2 * LANE_PAD - 6 + _INDEX + 2 * CELL + 4
            box = Box(MARGIN, top, right - MARGIN, height if share.terms else _STRIP)
            draw_lane(canvas, box, share.rank)
            if not share.terms:
                text = _("no share in {entry}").format(entry=self.entry)
                canvas.text(MARGIN + LANE_HEAD, middle(box.center_y, "note"), text, "note")
            elif self.single:
                self._draw_line(canvas, box, share)
            else:
                self._draw_sum(canvas, box, share)
            top = box.bottom + _GAP
        if self.summed:
            self._draw_total(canvas, Box(MARGIN, top, right - MARGIN, _TOTAL))
            top += _TOTAL + _GAP
        return canvas.drawing(right + MARGIN, top - _GAP + MARGIN, self._alt())

    def _pieces(self, share: _Share) -> list[int | None]:
        """The terms that fit a slide; None stands for those that do not."""
        room = SLIDE_WIDTH - 2 * MARGIN - LANE_HEAD - LANE_PAD - _EQUALS - self.cell - self._badge(share)
        most = max(3, (room + _PLUS) // (self.pair + _PLUS))
        if len(share.terms) <= most:
            return list(share.terms)
        return [*share.terms[: most - 2], None, share.terms[-1]]

    def _badge(self, share: _Share) -> int:
        return pill_width(self._addend(share)) + 16 if self.summed else 0

    def _addend(self, share: _Share) -> str:
        """What the badge of a share says: which it is of those that are added, ranks without a share left out."""
        return sum_text(self.sharers.index(share), len(self.sharers))

    def _lane_right(self, share: _Share) -> int:
        if not share.terms:
            return 0
        start = MARGIN + LANE_HEAD + (self.index if self.single else 0)
        terms = len(self._pieces(share)) * (self.pair + _PLUS) - _PLUS
        return start + terms + _EQUALS + self.cell + self._badge(share) + LANE_PAD

    def _draw_pair(self, canvas: Canvas, x: int, y: int, k: int, rank: int) -> None:
        left, right = Box(x, y, self.cell, CELL), Box(x + self.cell + _TIMES, y, self.cell, CELL)
        _draw_cell(canvas, left, self.lefts[k], "block", rank)
        _draw_cell(canvas, right, self.rights[k], "block", rank)
        canvas.character("×", x + self.cell + _TIMES // 2, middle(left.center_y, "label"), "label")

    def _draw_share(self, canvas: Canvas, x: int, y: int, share: _Share) -> None:
        box = Box(x + _EQUALS, y, self.cell, CELL)
        canvas.character("=", x + _EQUALS // 2, middle(box.center_y, "op"), "op")
        _draw_cell(canvas, box, share.value, "mark", share.rank)
        if self.summed:
            canvas.pill(box.right + 16, box.center_y, self._addend(share), share.rank)

    def _draw_line(self, canvas: Canvas, lane: Box, share: _Share) -> None:
        """Draw a share of one product: the product is the share."""
        x, y = MARGIN + LANE_HEAD, lane.y + 8
        canvas.text(x, middle(lane.center_y, "note"), f"k = {share.terms[0]}", "note")
        self._draw_pair(canvas, x + self.index, y, share.terms[0], share.rank)
        self._draw_share(canvas, x + self.index + self.pair, y, share)

    def _draw_sum(self, canvas: Canvas, lane: Box, share: _Share) -> None:
        """Draw a share: the factors in one line, their products and the products' sum below."""
        x = MARGIN + LANE_HEAD
        factors = lane.y + LANE_PAD - 6 + _INDEX
        line = factors + CELL + 4
        for place, k in enumerate(self._pieces(share)):
            if place:
                for y, style in ((factors, "op"), (line, "op")):
                    canvas.character("+", x - _PLUS // 2, middle(y + CELL // 2, style), style)
            center = x + self.pair // 2
            if k is None:
                for y in (factors, line):
                    canvas.character("⋯", center, middle(y + CELL // 2, "op"), "op")
            else:
                canvas.text(center, middle(factors - _INDEX // 2, "note"), f"k = {k}", "note", "c")
                self._draw_pair(canvas, x, factors, k, share.rank)
                canvas.text(center, middle(line + CELL // 2, "digit"), self.products[k], "digit", "c")
            x += self.pair + _PLUS
        self._draw_share(canvas, x - _PLUS, line, share)

    def _total_right(self) -> int:
        if not self.summed:
            return 0
        chip = 36 + self.cell + _PLUS
        name = text_width(self.entry, "name")
        return MARGIN + LANE_PAD + name + _EQUALS + len(self.sharers) * chip - _PLUS + _EQUALS + self.cell + LANE_PAD

    def _draw_total(self, canvas: Canvas, lane: Box) -> None:
        """Draw the sum of the shares, each with its rank's number."""
        canvas.rounded("lane", lane, 8, "neutral")
        x = lane.x + LANE_PAD
        canvas.text(x, middle(lane.center_y, "name"), self.entry, "name")
        x += text_width(self.entry, "name")
        y = lane.center_y - CELL // 2
        for place, share in enumerate(self.sharers):
            room, sign = (_PLUS, "+") if place else (_EQUALS, "=")
            canvas.character(sign, x + room // 2, middle(lane.center_y, "op"), "op")
            x += room
            canvas.badge(x + 14, lane.center_y, share.rank, radius=14)
            _draw_cell(canvas, Box(x + 36, y, self.cell, CELL), share.value, "mark", share.rank)
            x += 36 + self.cell
        canvas.character("=", x + _EQUALS // 2, middle(lane.center_y, "op"), "op")
        _draw_cell(canvas, Box(x + _EQUALS, y, self.cell, CELL), self.total, "mark", "neutral")

    def _alt(self) -> str:
        count = len(self.products)
        names = {"entry": self.entry, "x": self.names[0], "w": self.names[1], "row": self.row, "column": self.column}
        if len(self.sharers) == 1:
            message = _(
                "{entry} = {total} is row {row} of {x} times column {column} of {w}: rank {rank} computes all "
                "{count} products."
            )
            return message.format(**names, total=self.total, rank=self.sharers[0].rank, count=count)
        message = _(
            "{entry} = {total} is row {row} of {x} times column {column} of {w}, {count} products of which {shares}."
        )
        one = _("rank {rank} sums {count} to {value}")
        shares = ", ".join(one.format(rank=each.rank, count=len(each.terms), value=each.value) for each in self.sharers)
        return message.format(**names, total=self.total, count=count, shares=shares)


def _draw_cell(canvas: Canvas, box: Box, text: str, layer: str, color: Color) -> None:
    """Draw one number in a cell of its own."""
    canvas.box(layer, box, color)
    ink = ink_on(color) if layer == "mark" else ""
    canvas.text(box.center_x, middle(box.center_y, "digit"), text, "digit", "c", ink)
