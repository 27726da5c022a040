"""Diagrams: what a figure shows is what the tensors hold, in its place, legible, described, the same every time."""

import gettext
import html.parser
import itertools
import os
import re
import subprocess
import sys
import urllib.parse
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable, Iterator
from typing import NamedTuple

import pytest
import torch
import torch.distributed as dist
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.distributed.tensor import Partial, Replicate, Shard
from torch.distributed.tensor.parallel import RowwiseParallel, parallelize_module

import tpviz
from tpviz import diagrams, i18n, plans, watching
from tpviz.chunking import chunk_offsets, chunk_sizes
from tpviz.diagrams import Drawing, grammar
from tpviz.diagrams.numbers import number_texts
from tpviz.example import W2, X4, W, X, dY, dY4
from tpviz.fused import QKVParallelLinear
from tpviz.layouts import distribute

Y = X @ W

# --- reading a figure back -------------------------------------------------------------------------------------------


class Box(NamedTuple):
    """A rectangle that a figure shows, read from its path."""

    x: int
    y: int
    width: int
    height: int

    def holds(self, other: "Box") -> bool:
        return (
            self.x <= other.x
            and self.y <= other.y
            and other.x + other.width <= self.x + self.width
            and other.y + other.height <= self.y + self.height
        )

    def overlap(self, other: "Box") -> int:
        """How many px the two share in the direction in which they share less."""
        across = min(self.x + self.width, other.x + other.width) - max(self.x, other.x)
        down = min(self.y + self.height, other.y + other.height) - max(self.y, other.y)
        return min(across, down)


class Word(NamedTuple):
    """A text of a figure, or one number of a matrix, with the room it takes."""

    text: str
    style: str
    box: Box
    end: int
    """For a number of a matrix: the centre of its last digit."""
    white: bool


_RECTANGLE = re.compile(r"M(-?\d+) (-?\d+)h(\d+)v(\d+)h-\3z")
_ROUNDED = re.compile(r"M(-?\d+) (-?\d+)h(-?\d+)a(\d+) \4 0 0 1 \4 \4v(-?\d+)a")


class Figure:
    """A drawing, read as XML."""

    def __init__(self, drawing: Drawing) -> None:
        self.drawing = drawing
        self.root = ElementTree.fromstring(drawing.svg)
        self.words = [word for text in self._all("text") for word in _words(text)]

    def _all(self, tag: str) -> Iterator[ElementTree.Element]:
        return self.root.iter("{http://www.w3.org/2000/svg}" + tag)

    def boxes(self, layer: str, color: str = "") -> list[Box]:
        """The rectangles of a layer, of all colours or of one: r0, r1, ..., neutral."""
        found = []
        for path in self._all("path"):
            classes = path.get("class", "").split()
            if classes[0] == layer and (not color or color in classes):
                data = path.get("d", "")
                found += [Box(*map(int, match)) for match in _RECTANGLE.findall(data)]
                for x, y, across, radius, down in _ROUNDED.findall(data):
                    r = int(radius)
                    found.append(Box(int(x) - r, int(y), int(across) + 2 * r, int(down) + 2 * r))
        return found

    def numbers(self, box: Box, white: bool | None = None) -> list[list[float]]:
        """The numbers that stand in a rectangle, row by row."""
        inside = [word for word in self.words if word.style == "digit" and box.holds(word.box)]
        inside = [word for word in inside if white is None or word.white == white]
        rows: dict[int, list[tuple[int, float]]] = {}
        for word in inside:
            rows.setdefault(word.box.y, []).append((word.end, float(word.text.replace("−", "-"))))
        return [[value for _end, value in sorted(rows[y])] for y in sorted(rows)]

    def says(self, text: str) -> list[Word]:
        return [word for word in self.words if word.text == text]


def _words(element: ElementTree.Element) -> Iterator[Word]:
    style, *others = element.get("class", "").split()
    size = grammar.SIZES[style]
    xs, ys = ([int(each) for each in element.get(axis, "").split()] for axis in "xy")
    text = element.text or ""
    white = "w" in others
    if len(xs) > 1 or (style != "digit" and len(text) == 1):
        assert len(xs) == len(ys) == len(text), "a place for each character"
        at = 0
        for part in text.split(" ") if style == "digit" else text:
            places = xs[at : at + len(part)]
            (y,) = set(ys[at : at + len(part)])
            half = 7 if style == "digit" else grammar.text_width(part, style) // 2
            box = Box(places[0] - half, y - round(0.75 * size), places[-1] - places[0] + 2 * half, round(0.8 * size))
            yield Word(part, style, box, places[-1], white)
            at += len(part) + (style == "digit")
        return
    width = grammar.text_width(text, style)
    if element.get("transform"):  # read from below to above, centred on its place
        assert "c" in others
        box = Box(xs[0] - round(0.75 * size), ys[0] - width // 2, round(0.8 * size), width)
        yield Word(text, style, box, xs[0], white)
        return
    x = xs[0] - (width // 2 if "c" in others else width if "e" in others else 0)
    yield Word(text, style, Box(x, ys[0] - round(0.75 * size), width, round(0.8 * size)), xs[0], white)


class _ImageTag(html.parser.HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.images: list[dict[str, str | None]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag == "img"
        self.images.append(dict(attrs))


# --- the figures of the notebooks ------------------------------------------------------------------------------------


def column_run(ranks: int, x: Tensor = X, w: Tensor = W) -> tpviz.Run:
    shards = distribute(w, Shard(1), ranks)
    return tpviz.run(lambda comm: x @ shards[comm.rank], ranks)


def row_run(ranks: int, x: Tensor = X, w: Tensor = W) -> tpviz.Run:
    xs, ws = distribute(x, Shard(1), ranks), distribute(w, Shard(0), ranks)
    return tpviz.run(lambda comm: xs[comm.rank] @ ws[comm.rank], ranks)


def zero_run(ranks: int) -> tpviz.Run:
    shards = distribute(X4, Shard(0), ranks)
    return tpviz.run(lambda comm: shards[comm.rank] @ W, ranks)


dX = dY @ W.T


def contribution_run(ranks: int) -> tpviz.Run:
    return tpviz.run(lambda comm: tpviz.shard(dY, 1, comm) @ tpviz.shard(W, 1, comm).T, ranks)


def column_layer(comm: tpviz.Communicator) -> dict[str, Tensor]:
    x, w = X.clone().requires_grad_(), tpviz.shard(W, 1, comm).requires_grad_()
    y = tpviz.copy_to_region(x, comm) @ w
    gradient = tpviz.shard(dY, 1, comm)
    y.backward(gradient)
    assert x.grad is not None
    assert w.grad is not None
    return {"X": x, "Y": y, "dY": gradient, "G": gradient @ w.T, "dX": x.grad, "dW": w.grad}


def row_layer(comm: tpviz.Communicator) -> dict[str, Tensor]:
    x, w = tpviz.shard(X, 1, comm).requires_grad_(), tpviz.shard(W, 0, comm).requires_grad_()
    z = x @ w
    y = tpviz.reduce_from_region(z, comm)
    y.backward(dY)
    assert x.grad is not None
    assert w.grad is not None
    return {"X": x, "Z": z, "Y": y, "dY": dY, "dX": x.grad, "dW": w.grad}


WHOLES = {"X": X, "Y": Y, "Z": Y, "dY": dY, "G": dX, "dX": dX}


def between_layers(comm: tpviz.Communicator, rows: bool) -> dict[str, Tensor]:
    """From a row layer's partial sums to a column layer's columns, its middle on all rows or on this rank's."""
    w = tpviz.shard(W, 1, comm)
    z = (tpviz.shard(X4, 1, comm) @ tpviz.shard(W2[:4], 0, comm)).requires_grad_()
    y = tpviz.reduce_scatter_to_region(z, comm) if rows else tpviz.reduce_from_region(z, comm)
    y.retain_grad()
    doubled = 2 * y
    doubled.retain_grad()
    whole = tpviz.gather_from_region(doubled, comm, 0, "sharded") if rows else tpviz.copy_to_region(doubled, comm)
    cotangent = tpviz.shard(dY4, 1, comm)
    (whole @ w).backward(cotangent)
    gradients = {"dY": cotangent, "G": cotangent @ w.T, "dN": doubled.grad, "dS": y.grad, "dZ": z.grad}
    return {"Z": z, "S": y, "N": doubled, "N'": whole, "Y": whole @ w} | gradients  # type: ignore[dict-item]


BETWEEN = {"Z": X4 @ W2[:4], "S": X4 @ W2[:4], "N": 2 * X4 @ W2[:4], "Y": 2 * X4 @ W2[:4] @ W, "dY": dY4}
BETWEEN |= {"G": dY4 @ W.T, "dN": dY4 @ W.T, "dS": 2 * dY4 @ W.T, "dZ": 2 * dY4 @ W.T}
FORWARD = ("Z → all_reduce → S → ×2 → N → @ W → Y", "Z → reduce_scatter → S → ×2 → N → all_gather → N' → @ W → Y")
BACKWARD = (
    "dY → @ Wᵀ → G → all_reduce → dN → ×2 → dS → = → dZ",
    "dY → @ Wᵀ → G → reduce_scatter → dN → ×2 → dS → all_gather → dZ",
)


def two_ways(ranks: int, phase: str) -> Drawing:
    paths = FORWARD if phase == "forward" else BACKWARD
    runs = [tpviz.run(between_layers, ranks, args=(rows,)) for rows in (False, True)]
    ways = dict(zip(("All rows", "Own rows"), zip(runs, paths, strict=True), strict=True))
    return diagrams.two_ways(ways, BETWEEN, phase)


MLP = [("A", "matmul", "X", "W1"), ("H", "relu", "A"), ("Y", "matmul", "H", "W2")]
MLP_SHAPES = {"X": X4.shape, "W1": W.shape, "W2": W2.shape}


def layer_pair(ranks: int) -> Drawing:
    return diagrams.backward_pair(tpviz.run(column_layer, ranks), tpviz.run(row_layer, ranks), WHOLES)


def tp_and_dp(comm: tpviz.Communicator) -> Tensor:
    tp_group, dp_group = comm.split(comm.rank // 2), comm.split(comm.rank % 2)
    activations = tp_group.all_reduce(X, phase="backward")
    return dp_group.all_reduce(activations[:2], phase="gradients")


def watched_pair(ranks: int) -> watching.Watched:
    """A row layer's two all-reduces, and one among the first ranks outside of it."""
    layer = nn.Linear(8, 4)
    with watching.pretended_ranks(ranks) as mesh:
        parallelize_module(layer, mesh, RowwiseParallel(input_layouts=Replicate(), output_layouts=Replicate()))
        few = dist.new_group([0, ranks // 2] if ranks > 1 else [0])
        with tpviz.watch(layer) as watched:
            layer(torch.ones(3, 8, requires_grad=True)).sum().backward()
            dist.all_reduce(X.clone(), group=few)
    return watched


COLLECTIVES: dict[str, Callable[[tpviz.Communicator, Tensor], Tensor]] = {
    "all_gather": lambda comm, x: comm.all_gather(x),
    "all_reduce": lambda comm, x: comm.all_reduce(x),
    "reduce_scatter": lambda comm, x: comm.reduce_scatter(x),
    "broadcast": lambda comm, x: comm.broadcast(x),
    "all_to_all": lambda comm, x: comm.all_to_all(x, 0, 0),
}


def given_arrays(kind: str, ranks: int) -> list[Tensor]:
    """Arrays in which no number occurs twice: of two numbers, or of one for each rank where they are cut."""
    length = ranks if kind in ("reduce_scatter", "all_to_all") else 2
    return [torch.arange(float(length)) + 10 * rank for rank in range(ranks)]


def exchange(kind: str, ranks: int) -> Drawing:
    arrays = given_arrays(kind, ranks)
    run = tpviz.run(lambda comm: COLLECTIVES[kind](comm, arrays[comm.rank]), ranks)
    return diagrams.collective(run.trace[0], arrays, run)


def ring_steps(comm: tpviz.Communicator) -> list[Tensor]:
    """An AllReduce in a ring, in which rank r gives 10 r + 1, 10 r + 2, ...: what this rank holds after each step."""
    n, me = comm.world_size, comm.rank
    pieces = list(torch.arange(1.0, n + 1) + 10 * me)
    held = [torch.stack(pieces)]
    for step in range(2 * (n - 1)):
        arrived = comm.sendrecv(pieces[(me - step - 1) % n], (me + 1) % n, (me - 1) % n)
        into = (me - step - 2) % n
        pieces[into] = pieces[into] + arrived if step < n - 1 else arrived
        held.append(torch.stack(pieces))
    return held


def ring_run(ranks: int) -> tpviz.Run:
    return tpviz.run(ring_steps, ranks)


KEPT = {"W": W, "dW": 2 * W, "M": W - 1}


def kept_run(stage: int, ranks: int) -> tpviz.Run:
    """What ranks keep at a stage of ZeRO: the gradient of stage 1 is a share of the sum."""

    def program(comm: tpviz.Communicator) -> dict[str, Tensor]:
        cut = {name: whole if stage < k else tpviz.shard(whole, 0, comm)
               for (name, whole), k in zip(KEPT.items(), (3, 2, 1), strict=True)}  # fmt: skip
        share = 2 * W - comm.rank if comm.rank else 2 * W + sum(range(comm.world_size)) - 2 * W * (comm.world_size - 1)
        return cut | ({"dW": share} if stage == 1 and comm.world_size > 1 else {})

    return tpviz.run(program, ranks)


def taken_heads(ranks: int, kv_heads: int) -> tpviz.Run:
    """The numbers of the columns that a rank takes for Q, K and V: 8 heads of Q, of two columns each."""
    whole = nn.Linear(1, 2 * (8 + 2 * kv_heads), bias=False)
    whole.weight.data = torch.arange(float(whole.out_features))[:, None]

    def program(comm: tpviz.Communicator) -> tuple[Tensor, ...]:
        layer = QKVParallelLinear.from_linear(whole, comm, heads=8, kv_heads=kv_heads)
        sizes = [2 * layer.own_heads, 2 * layer.own_kv_heads, 2 * layer.own_kv_heads]
        return torch.split(layer.weight.detach().flatten(), sizes)

    return tpviz.run(program, ranks)


BLOCK = "X → norm → N → copy_to_region → F → up → H → down → Z → reduce_from_region → A → + X → Y"


def block(comm: tpviz.Communicator) -> dict[str, Tensor]:
    """A norm and two layers beside a residual: all tensors, and their gradients."""
    values = {"X": X.clone().requires_grad_()}
    values["N"] = values["X"] - 1
    values["F"] = tpviz.copy_to_region(values["N"], comm)
    values["H"] = values["F"] @ tpviz.shard(W, 1, comm)
    values["Z"] = values["H"] @ tpviz.shard(W2, 0, comm)
    values["A"] = tpviz.reduce_from_region(values["Z"], comm)
    values["Y"] = values["A"] + values["X"]
    for tensor in values.values():
        tensor.retain_grad()
    values["Y"].backward(X + 1)
    return values | {f"d{name}": tensor.grad for name, tensor in values.items()}


def notebook_figures(ranks: int) -> dict[str, Drawing]:
    column, row = column_run(ranks), row_run(ranks)
    figures = {
        "column": diagrams.column_parallel(X, W, column),
        "column, entry": diagrams.column_parallel(X, W, column, entry=(1, 5)),
        "column, last open": diagrams.column_parallel(X, W, column, open_rank=ranks - 1),
        "uneven columns": diagrams.column_parallel(X, W[:, :6], column_run(ranks, X, W[:, :6])),
        "row": diagrams.row_parallel(X, W, row),
        "row, entry": diagrams.row_parallel(X, W, row, entry=(0, 1)),
        "rows": diagrams.matmul(X4, W, zero_run(ranks), (Shard(0), Replicate(), Shard(0))),
        "inner product, row": diagrams.inner_product(X, W, X[0] * W[:, 1], row, Y, entry=(0, 1)),
        "inner product, column": diagrams.inner_product(X, W, X[1] * W[:, 5], column, Y, entry=(1, 5)),
        "concatenation": diagrams.concatenation(column, Y),
        "concatenation of rows": diagrams.concatenation(zero_run(ranks), X4 @ W, dim=0),
        "sum": diagrams.summation(row, Y, entry=(1, 2)),
        "sum of shards": diagrams.summation([Y[:, :4]] * ranks, Y[:, :4] * ranks, partial=False),
        "two cuts": diagrams.two_cuts(zero_run(ranks), column_run(ranks, X4)),
        "contributions": diagrams.contributions(contribution_run(ranks), dX, dY, entry=(0, 0)),
        "contributions, all": diagrams.contributions(contribution_run(ranks), dX, dY),
        "compared": diagrams.compared(contribution_run(ranks), dX),
        "compared, a factor": diagrams.compared([2 * dX] * ranks, dX),
        "layer pair": layer_pair(ranks),
        "map": diagrams.addends_map(torch.eye(5), range(-2, 3), (1, 3), [1, 0, 1, -1, 0], function="ReLU"),
        "plan": diagrams.layout_path(plans.plan(MLP, MLP_SHAPES, ranks=ranks, memory_limit=130 if ranks > 1 else None)),
        "plan of rows": diagrams.layout_path(
            plans.plan(
                MLP, MLP_SHAPES, ranks=ranks, start=Shard(0), end=Shard(0), memory_limit=130 if ranks > 1 else None
            )
        ),
        "branches": diagrams.branches(3, range(ranks), range(ranks), -12, range(ranks), range(ranks), 60),
    }
    figures["operators"] = diagrams.operators(tpviz.run(block, ranks), BLOCK)
    figures["modules"] = diagrams.modules(watched_pair(ranks))
    if ranks > 1:
        figures["ring"] = diagrams.ring(ring_run(ranks))
    if ranks < 8:
        figures |= {f"two ways {phase}": two_ways(ranks, phase) for phase in ("forward", "backward")}
        figures |= {f"kept {stage}": diagrams.kept(kept_run(stage, ranks), KEPT) for stage in range(4)}
    if 8 % ranks == 0:
        cuts = {few: {"Cut by head": taken_heads(ranks, few)} for few in (8, 2, 1)}
        figures |= {f"heads, {few}": diagrams.qkv_cuts(cut, 8, few) for few, cut in cuts.items()}
    if ranks % 2 == 0:
        figures["mesh"] = diagrams.mesh(tpviz.run(tp_and_dp, ranks), tp=2)
    return figures | {kind: exchange(kind, ranks) for kind in COLLECTIVES}


OTHER_FIGURES = {
    "dense backward": lambda: diagrams.dense_backward(X, W, Y, dX, X.T @ dY, dY),
    "dense backward of data": lambda: diagrams.dense_backward(X, W, Y, None, X.T @ dY, dY),
    "contributions of two digits": lambda: diagrams.contributions([dX * 10, dX * -10], dX * 0, dY, entry=(2, 3)),
    "contributions too large": lambda: diagrams.contributions(
        [torch.ones(64, 512)] * 2, torch.ones(64, 512), torch.ones(64, 2048)
    ),
    "matrix": lambda: diagrams.matrix(X, highlight=(0, None)),
    "matrices": lambda: diagrams.matrices(X=X, W=W, Y_0=Y),
    "two digits": lambda: diagrams.row_parallel(X * 3, W * 5, row_run(2, X * 3, W * 5)),
    "fractions": lambda: diagrams.column_parallel(X / 3, W, column_run(2, X / 3)),
    "100 rows": lambda: diagrams.column_parallel(torch.ones(100, 4), W, column_run(2, torch.ones(100, 4))),
    "a real layer": lambda: diagrams.column_parallel(
        torch.zeros(64, 512), torch.zeros(512, 1376), [torch.zeros(64, 344)] * 4
    ),
    "large matrix": lambda: diagrams.matrices(A=torch.ones(100, 8), B=torch.ones(8, 300)),
    "W2 on 8 ranks": lambda: diagrams.row_parallel(Y, W2, row_run(8, Y, W2), entry=(0, 1)),
    "30 products": lambda: diagrams.inner_product(
        torch.ones(2, 30), torch.ones(30, 2), torch.ones(30), row_run(2, torch.ones(2, 30), torch.ones(30, 2)),
        torch.full((2, 2), 30.0), entry=(0, 1),
    ),
}  # fmt: skip


@pytest.fixture(scope="module", params=(1, 2, 3, 4, 8))
def figures(request: pytest.FixtureRequest) -> dict[str, Drawing]:
    return notebook_figures(request.param)


# --- what is shown is what was computed ------------------------------------------------------------------------------


def matrix_and_ranks() -> st.SearchStrategy[tuple[Tensor, Tensor, int]]:
    sizes = st.integers(1, 7)
    numbers = st.integers(-9, 9)

    @st.composite
    def build(draw: st.DrawFn) -> tuple[Tensor, Tensor, int]:
        rows, inner, columns = draw(sizes), draw(sizes), draw(sizes)
        x = draw(st.lists(numbers, min_size=rows * inner, max_size=rows * inner))
        w = draw(st.lists(numbers, min_size=inner * columns, max_size=inner * columns))
        return (
            torch.tensor(x, dtype=torch.float32).reshape(rows, inner),
            torch.tensor(w, dtype=torch.float32).reshape(inner, columns),
            draw(st.integers(1, 8)),
        )

    return build()


def _open_lane(figure: Figure, rank: int) -> Box:
    """The lane that shows a rank's digits, and no other's."""
    (lane,) = figure.boxes("lane", f"r{rank}")
    return lane


@settings(deadline=None, max_examples=60)
@given(matrix_and_ranks(), st.data())
def test_a_column_shard_stands_in_its_place_with_its_numbers(
    case: tuple[Tensor, Tensor, int], data: st.DataObject
) -> None:
    x, w, ranks = case
    rank = data.draw(st.integers(0, ranks - 1))
    outputs = [x @ shard for shard in distribute(w, Shard(1), ranks)]
    figure = Figure(diagrams.column_parallel(x, w, outputs, open_rank=rank))
    lane = _open_lane(figure, rank)
    (whole_x,) = [box for box in figure.boxes("block", "neutral") if lane.holds(box)]
    assert figure.numbers(whole_x) == x.tolist()
    size, offset = chunk_sizes(w.shape[1], ranks)[rank], chunk_offsets(w.shape[1], ranks)[rank]
    blocks = sorted(box for box in figure.boxes("block", f"r{rank}") if lane.holds(box))
    outlines = sorted(box for box in figure.boxes("absent") if lane.holds(box))
    if size == 0:
        assert not blocks
        assert len(outlines) == 2
        return
    shards = (w[:, offset : offset + size], outputs[rank])
    assert [figure.numbers(box) for box in blocks] == [shard.tolist() for shard in shards]
    if size == w.shape[1]:
        assert not outlines
        return
    for block, outline in zip(blocks, outlines, strict=True):
        cell = outline.width // w.shape[1]
        assert cell >= grammar.CELL
        assert block == Box(outline.x + offset * cell, outline.y, size * cell, outline.height)


@settings(deadline=None, max_examples=60)
@given(matrix_and_ranks(), st.data())
def test_a_partial_sum_is_as_large_as_the_whole_and_hatched_outside_of_its_numbers(
    case: tuple[Tensor, Tensor, int], data: st.DataObject
) -> None:
    x, w, ranks = case
    rank = data.draw(st.integers(0, ranks - 1))
    pairs = zip(distribute(x, Shard(1), ranks), distribute(w, Shard(0), ranks), strict=True)
    outputs = [a @ b for a, b in pairs]
    figure = Figure(diagrams.row_parallel(x, w, outputs, open_rank=rank))
    lane = _open_lane(figure, rank)
    (inner,) = [box for box in figure.boxes("partial", f"r{rank}") if lane.holds(box)]
    (hatched,) = [box for box in figure.boxes("hatch") if lane.holds(box)]
    (colored,) = [box for box in figure.boxes("frame", f"r{rank}") if lane.holds(box)]
    assert figure.numbers(inner) == outputs[rank].tolist()
    assert hatched == colored
    assert hatched.holds(inner)
    assert inner.x - hatched.x >= 8
    digits = [word.box for word in figure.words if word.style == "digit" and hatched.holds(word.box)]
    assert all(inner.holds(digit) for digit in digits)
    assert figure.says(f"Σ {rank + 1} of {ranks}")


def test_rows_cut_by_the_chunk_rule_are_bands_of_the_whole() -> None:
    figure = Figure(diagrams.column_parallel(X, W[:, :6], column_run(4, X, W[:, :6]), open_rank=3))
    first = [min(figure.boxes("block", f"r{rank}"), key=lambda box: (box.y, box.x)) for rank in range(3)]
    assert [box.width for box in first] == [80, 80, 80]
    assert [box.x - first[0].x for box in first] == [0, 80, 160]
    assert not figure.boxes("block", "r3")
    assert figure.says("empty")


def test_an_entry_lights_up_with_its_row_and_column_at_its_owner_only() -> None:
    run = column_run(2)
    figure = Figure(diagrams.column_parallel(X, W, run, entry=(1, 5)))
    row, column, entry = sorted(figure.boxes("mark"))
    assert figure.boxes("mark", "r1") == [row, column, entry]
    assert figure.numbers(row, white=True) == [X[1].tolist()]
    assert figure.numbers(column, white=True) == [[value] for value in W[:, 5].tolist()]
    assert figure.numbers(entry, white=True) == [[Y[1, 5].item()]]


def test_in_a_row_split_every_ranks_share_lights_up() -> None:
    run = row_run(2)
    figure = Figure(diagrams.row_parallel(X, W, run, entry=(0, 1)))
    for rank, half in enumerate((slice(0, 2), slice(2, 4))):
        row, column, entry = sorted(figure.boxes("mark", f"r{rank}"))
        assert figure.numbers(row, white=True) == [X[0, half].tolist()]
        assert figure.numbers(column, white=True) == [[value] for value in W[half, 1].tolist()]
        assert figure.numbers(entry, white=True) == [[run.outputs[rank][0, 1].item()]]


def test_a_strip_says_its_share_of_the_entry() -> None:
    run = row_run(4)
    figure = Figure(diagrams.row_parallel(X, W, run, entry=(0, 1), open_rank=0))
    for rank, name in ((1, "Y₁"), (2, "Y₂"), (3, "Y₃")):
        value = str(int(run.outputs[rank][0, 1])).replace("-", "−")
        assert figure.says(f"{name}[0, 1] = {value}")


def test_the_owner_of_the_entry_is_open_unless_another_is_asked_for() -> None:
    run = column_run(8)
    heights = [
        [Figure(diagrams.column_parallel(X, W, run, entry=(1, 5), open_rank=asked)).boxes("lane", f"r{rank}")[0].height
         for rank in (2, 5)]
        for asked in (None, 2)
    ]  # fmt: skip
    assert heights[0][0] < heights[0][1]
    assert heights[1][0] > heights[1][1]


@pytest.mark.parametrize("ranks", [1, 2, 4, 8])
def test_the_inner_product_shows_every_factor_product_and_share(ranks: int) -> None:
    run = row_run(ranks)
    figure = Figure(diagrams.inner_product(X, W, X[0] * W[:, 1], run, Y, entry=(0, 1)))
    for rank, (offset, size) in enumerate(zip(chunk_offsets(4, ranks), chunk_sizes(4, ranks), strict=True)):
        (lane,) = figure.boxes("lane", f"r{rank}")
        cells = sorted(box for box in figure.boxes("block", f"r{rank}") if lane.holds(box))
        shown = [figure.numbers(cell)[0][0] for cell in cells]
        inner = range(offset, offset + size)
        assert shown == [number for k in inner for number in (X[0, k].item(), W[k, 1].item())]
        if size:
            (share,) = [box for box in figure.boxes("mark", f"r{rank}") if lane.holds(box)]
            assert figure.numbers(share) == [[run.outputs[rank][0, 1].item()]]
            # Of 8 ranks, 4 have a share: there are 4 addends, not 8.
            assert ranks == 1 or figure.says(f"Σ {rank + 1} of {min(ranks, 4)}")
        if ranks <= 2:
            products = [word for word in figure.words if word.style == "digit" and lane.holds(word.box)]
            lowest = max(word.box.y for word in products)
            line = [float(word.text.replace("−", "-")) for word in products if word.box.y == lowest]
            assert line[:size] == [(X[0, k] * W[k, 1]).item() for k in inner]
    if ranks > 1:
        (total,) = figure.boxes("mark", "neutral")
        assert figure.numbers(total) == [[3.0]]


def test_in_a_column_split_one_rank_owns_all_products() -> None:
    figure = Figure(diagrams.inner_product(X, W, X[1] * W[:, 5], column_run(4), Y, entry=(1, 5)))
    assert len(figure.boxes("block", "r2")) == 8
    assert not any(figure.boxes("block", f"r{rank}") for rank in (0, 1, 3))
    assert len(figure.says("no share in Y[1, 5]")) == 3


@pytest.mark.parametrize("ranks", [1, 2, 3, 8])
def test_concatenated_parts_stand_in_their_places_in_the_whole(ranks: int) -> None:
    run = column_run(ranks)
    figure = Figure(diagrams.concatenation(run, Y))
    places = []
    for rank, output in enumerate(run.outputs):
        if not output.numel():
            assert not figure.boxes("block", f"r{rank}")
            continue
        part, place = sorted(figure.boxes("block", f"r{rank}"), key=lambda box: box.y)
        assert figure.numbers(part) == figure.numbers(place) == output.tolist()
        places.append(place)
    assert all(left.x + left.width == right.x and left.y == right.y for left, right in itertools.pairwise(places))


def test_the_sum_shows_addends_and_total_column_under_column() -> None:
    run = row_run(2)
    figure = Figure(diagrams.summation(run, Y))
    blocks = [figure.boxes("partial", "r0")[0], figure.boxes("partial", "r1")[0], figure.boxes("block", "neutral")[0]]
    assert [figure.numbers(box) for box in blocks] == [value.tolist() for value in (*run.outputs, Y)]
    assert len({(box.x, box.width) for box in blocks}) == 1


def test_where_a_slide_cannot_hold_all_addends_the_entrys_row_stands_for_them() -> None:
    run = row_run(8, Y, W2)
    figure = Figure(diagrams.summation(run, Y @ W2, entry=(2, 1)))
    for rank, output in enumerate(run.outputs):
        assert figure.numbers(figure.boxes("partial", f"r{rank}")[0]) == [output[2].tolist()]
    assert figure.numbers(figure.boxes("block", "neutral")[0]) == [(Y @ W2)[2].tolist()]
    assert "row 2" in figure.drawing.alt


def test_two_cuts_show_one_output_in_equal_areas() -> None:
    figure = Figure(diagrams.two_cuts(zero_run(2), column_run(2, X4)))
    whole = (X4 @ W).tolist()
    areas = []
    for rank in range(2):
        pieces = sorted(figure.boxes("block", f"r{rank}"), key=lambda box: -box.width * box.height)[:2]
        by_rows, by_columns = sorted(pieces)
        areas.append([box.width * box.height for box in pieces])
        assert figure.numbers(by_rows) == whole[2 * rank : 2 * rank + 2]
        assert figure.numbers(by_columns) == [row[4 * rank : 4 * rank + 4] for row in whole]
    assert len({area for pair in areas for area in pair}) == 1
    assert figure.says("ZeRO-3 cuts X and Y by rows")
    assert figure.says("Tensor parallel cuts W and Y by columns")
    assert not figure.says("nothing to do")


def test_two_cuts_name_the_output_and_say_who_has_nothing_to_do() -> None:
    figure = Figure(diagrams.two_cuts(zero_run(8), column_run(8, X4)))
    assert len([word for word in figure.words if word.text == "Y"]) == 2
    assert figure.says("the ranks compute 8, 8, 8, 8, 0, 0, 0, 0 entries")
    assert figure.says("and need their rows of X, and the whole W")
    assert figure.says("4 ranks have nothing to do")
    assert figure.says("each rank computes 4 × 1 = 4 entries")


@pytest.mark.parametrize("stage", range(4))
@pytest.mark.parametrize("ranks", [2, 4])
def test_what_a_rank_keeps_stands_in_its_place_with_its_bytes(stage: int, ranks: int) -> None:
    run = kept_run(stage, ranks)
    figure = Figure(diagrams.kept(run, KEPT))
    total = sum(tensor.nbytes for tensor in run.outputs[0].values())
    assert len(figure.says(f"{total} bytes")) >= ranks
    assert len(figure.boxes("hatch")) == (ranks if stage == 1 else 0)
    assert len(figure.says(f"Σ 1 of {ranks}")) == (stage == 1)
    for rank in range(ranks):
        lane = _open_lane(figure, rank)
        own = [box for box in figure.boxes("block", f"r{rank}") if lane.holds(box)]
        outlines = [box for box in figure.boxes("absent") if lane.holds(box)]
        cut = {0: 0, 1: 1, 2: 2, 3: 3}[stage]
        assert len(own) == len(outlines) == cut
        for block, outline in zip(sorted(own), sorted(outlines), strict=True):
            assert block.height * ranks == outline.height
            assert block.y == outline.y + rank * block.height
        assert len([box for box in figure.boxes("block", "neutral") if lane.holds(box)]) == 3 - cut - (stage == 1)


@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_a_ring_shows_what_each_rank_holds_in_each_step(ranks: int) -> None:
    run = ring_run(ranks)
    figure = Figure(diagrams.ring(run))
    for rank in range(ranks):
        lane = _open_lane(figure, rank)
        partial = [box for box in figure.boxes("partial", f"r{rank}") if lane.holds(box)]
        whole = [box for box in figure.boxes("block", "neutral") if lane.holds(box)]
        rows: dict[int, list[Box]] = {}
        for box in sorted([*partial, *whole]):
            rows.setdefault(box.y, []).append(box)
        counts = [len(rows[y]) for y in sorted(rows)]
        assert counts == [*range(ranks, 0, -1), *range(2, ranks + 1)]
        for y, held in zip(sorted(rows), run.outputs[rank], strict=True):
            shown = [figure.numbers(box)[0][0] for box in rows[y]]
            assert [value for value in held.tolist() if value in shown] == shown
        assert len(figure.numbers(lane)[-1]) == ranks == len([box for box in whole if box.y == max(rows)])


@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_in_a_ring_a_partial_sum_says_how_many_shares_it_has(ranks: int) -> None:
    figure = Figure(diagrams.ring(ring_run(ranks)))
    counts = {number: len(figure.says(f"Σ {number}")) for number in range(1, ranks + 1)}
    ones = ranks + sum(ranks - step - 1 for step in range(1, ranks - 1))  # on each rank, in all rows
    assert counts == {1: ranks * ones, **dict.fromkeys(range(2, ranks), ranks), ranks: 0}
    assert len(figure.boxes("hatch")) == sum(counts.values())


@pytest.mark.parametrize("ranks", [2, 3, 4, 8])
def test_in_a_ring_each_step_is_a_group_that_says_its_bytes(ranks: int) -> None:
    shown = diagrams.ring_stepper(ring_run(ranks))
    groups = re.findall(r'<g data-step="(\d+)"', shown.drawing.svg)
    assert groups == [str(number + 1) for number in range(2 * ranks - 1)]
    assert len(shown.steps) == 2 * ranks - 1
    assert all("4 bytes" in said for said in shown.steps[1:])
    assert ["adds" in said for said in shown.steps[1:]] == [True] * (ranks - 1) + [False] * (ranks - 1)
    assert shown.drawing == diagrams.ring(ring_run(ranks))
    assert shown.first == 0  # the start, so that the count is the step's number
    assert [said.split(",")[0] for said in shown.steps[1:]] == [f"Step {step}" for step in range(1, 2 * ranks - 1)]


@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_in_a_ring_every_arrow_leads_down(ranks: int) -> None:
    figure = Figure(diagrams.ring(ring_run(ranks)))
    data = "".join(path.get("d", "") for path in figure._all("path") if path.get("class") == "arrow")
    lines = [tuple(map(int, match)) for match in re.findall(r"M(\d+) (\d+)L(\d+) (\d+)", data)]
    across = [line for line in lines if line[2] - line[0] > 100]
    assert len(across) >= (ranks - 1) * 2 * (ranks - 1)
    assert all(to_y - y > (to_x - x) / 20 for x, y, to_x, to_y in across)
    assert figure.drawing.height <= grammar.SLIDE_HEIGHT


@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 8])
@pytest.mark.parametrize("kind", COLLECTIVES)
def test_a_collective_shows_what_each_rank_gave_and_got(kind: str, ranks: int) -> None:
    arrays = given_arrays(kind, ranks)
    run = tpviz.run(lambda comm: COLLECTIVES[kind](comm, arrays[comm.rank]), ranks)
    figure = Figure(diagrams.collective(run.trace[0], arrays, run))
    (bar,) = figure.boxes("bar")
    for rank in range(ranks):
        lane = _open_lane(figure, rank)
        left = Box(lane.x, lane.y, bar.x - lane.x, lane.height)
        right = Box(bar.x, lane.y, lane.x + lane.width - bar.x, lane.height)
        shown = [] if kind == "broadcast" and rank else [arrays[rank].tolist()]
        assert figure.numbers(left) == shown
        assert figure.numbers(right) == [run.outputs[rank].tolist()]


def _after(figure: Figure, rank: int, color: str) -> list[list[float]]:
    """The numbers of one colour that a rank has after the collective, one list for each piece."""
    (bar,), lane = figure.boxes("bar"), _open_lane(figure, rank)
    pieces = sorted(box for box in figure.boxes("block", color) if lane.holds(box) and box.x > bar.x)
    return [figure.numbers(piece)[0] for piece in pieces]


def test_after_a_collective_a_number_wears_the_colour_of_the_rank_that_it_came_from() -> None:
    gathered, traded, reduced = (Figure(exchange(kind, 4)) for kind in ("all_gather", "all_to_all", "all_reduce"))
    for rank, source in itertools.product(range(4), range(4)):
        assert _after(gathered, rank, f"r{source}") == [[10.0 * source, 10.0 * source + 1]]
        assert _after(traded, rank, f"r{source}") == [[10.0 * source + rank]]
        assert not _after(reduced, rank, f"r{source}")
    assert all(_after(reduced, rank, "neutral") == [[60, 64]] for rank in range(4))


def test_a_reduced_shard_stands_in_its_place_in_the_whole() -> None:
    figure = Figure(exchange("reduce_scatter", 4))
    for rank in range(4):
        lane = _open_lane(figure, rank)
        (block,) = [box for box in figure.boxes("block", "neutral") if lane.holds(box)]
        (outline,) = [box for box in figure.boxes("absent") if lane.holds(box)]
        assert block == Box(outline.x + rank * outline.width // 4, outline.y, outline.width // 4, outline.height)


def test_uneven_shards_are_gathered_in_their_places() -> None:
    shards = distribute(torch.arange(6.0), Shard(0), 4)
    run = tpviz.run(lambda comm: comm.all_gather(shards[comm.rank], dim=0), 4)
    figure = Figure(diagrams.collective(run.trace[0], shards, run))
    assert [_after(figure, 3, f"r{source}") for source in range(4)] == [[[0, 1]], [[2, 3]], [[4, 5]], []]


def test_the_bar_names_the_collective_its_ranks_and_its_payload() -> None:
    figure = Figure(exchange("all_reduce", 4))
    (bar,) = figure.boxes("bar")
    assert {word.text for word in figure.words if bar.holds(word.box)} == {"AllReduce", "sum, 8 bytes", "ranks 0 to 3"}
    for rank in range(4):
        assert bar.overlap(_open_lane(figure, rank)) > 30


def test_a_sub_groups_bar_leaves_the_others_out() -> None:
    arrays = given_arrays("all_reduce", 4)
    run = tpviz.run(lambda comm: comm.split(comm.rank % 2).all_reduce(arrays[comm.rank]), 4)
    figure = Figure(diagrams.collective(run.trace[0], arrays, run))
    assert run.trace[0].ranks == (0, 2)
    assert len(figure.says("takes no part")) == 2
    for bar in figure.boxes("bar"):
        assert bar.overlap(_open_lane(figure, 1)) < 0


def test_the_members_of_a_group_alone_can_be_drawn_and_keep_their_numbers() -> None:
    arrays = given_arrays("all_reduce", 4)
    run = tpviz.run(lambda comm: comm.split(comm.rank % 2).all_gather(arrays[comm.rank]), 4)
    event = next(event for event in run.trace if event.ranks == (1, 3))
    figure = Figure(diagrams.collective(event, [arrays[1], arrays[3]], [run.outputs[1], run.outputs[3]]))
    assert not figure.boxes("lane", "r0")
    assert figure.boxes("lane", "r1")
    assert _after(figure, 3, "r1") == [arrays[1].tolist()]


def test_a_send_goes_from_one_lane_to_another() -> None:
    def program(comm: tpviz.Communicator) -> Tensor | None:
        if comm.rank == 0:
            comm.send(torch.tensor([1.0, 2.0]), dst=2)
        return comm.recv(src=0) if comm.rank == 2 else None

    run = tpviz.run(program, 3)
    figure = Figure(diagrams.collective(run.trace[0], [torch.tensor([1.0, 2.0]), None, None], run))
    lane = _open_lane(figure, 2)
    (arrived,) = [box for box in figure.boxes("block", "r0") if lane.holds(box)]
    assert figure.numbers(arrived) == [[1, 2]]


@pytest.mark.parametrize("dim", [0, 1])
def test_matrices_are_exchanged_along_either_dimension(dim: int) -> None:
    arrays = [X, X + 3]
    run = tpviz.run(lambda comm: comm.all_gather(arrays[comm.rank], dim=dim), 2)
    figure = Figure(diagrams.collective(run.trace[0], arrays, run))
    (bar,) = figure.boxes("bar")
    for rank, source in itertools.product(range(2), range(2)):
        lane = _open_lane(figure, rank)
        pieces = [box for box in figure.boxes("block", f"r{source}") if lane.holds(box) and box.x > bar.x]
        assert [figure.numbers(piece) for piece in pieces] == [arrays[source].tolist()]


def test_a_matrix_and_its_marked_row() -> None:
    figure = Figure(diagrams.matrix(X, highlight=(1, None)))
    (block,), (mark,) = figure.boxes("block"), figure.boxes("mark")
    assert figure.numbers(block) == X.tolist()
    assert figure.numbers(mark, white=True) == [X[1].tolist()]


def test_matrices_stand_side_by_side_under_their_names() -> None:
    figure = Figure(diagrams.matrices(X=X, W=W, Y_0=Y))
    assert [figure.numbers(box) for box in sorted(figure.boxes("block"))] == [X.tolist(), W.tolist(), Y.tolist()]
    assert "Y₀ (3×8)" in figure.drawing.alt


def test_contributions_and_their_sum_wear_two_outlines_and_the_entry_is_followed() -> None:
    parts = contribution_run(2).outputs
    figure = Figure(diagrams.contributions(parts, dX, dY, entry=(0, 0)))
    for rank, part in enumerate(parts):
        (inner,) = figure.boxes("partial", f"r{rank}")
        assert figure.numbers(inner) == part.tolist()
        assert figure.numbers(inner, white=True) == [[part[0, 0].item()]]
        (outer,) = [box for box in figure.boxes("twin", f"r{rank}") if box.holds(inner)]
        (frame,) = figure.boxes("frame", f"r{rank}")
        assert outer.holds(frame)
        assert figure.says(str(int(part[0, 0])).replace("-", "−"))
        (upstream,) = figure.boxes("block", f"r{rank}")
        assert figure.numbers(upstream) == dY[:, 4 * rank : 4 * rank + 4].tolist()
    (total,) = figure.boxes("block", "neutral")
    assert figure.numbers(total) == dX.tolist()
    assert "5, −2" in figure.drawing.alt


@pytest.mark.parametrize("ranks", [4, 8])
def test_of_many_contributions_the_entrys_row_is_shown(ranks: int) -> None:
    parts = contribution_run(ranks).outputs
    figure = Figure(diagrams.contributions(parts, dX, dY, entry=(1, 2)))
    for rank, part in enumerate(parts):
        (inner,) = figure.boxes("partial", f"r{rank}")
        assert figure.numbers(inner) == [part[1].tolist()]
    assert any("Row 1" in word.text for word in figure.words)


def test_a_gradient_stands_under_its_value() -> None:
    figure = Figure(OTHER_FIGURES["dense backward"]())
    values = sorted(figure.boxes("block"), key=lambda box: (box.x, box.y))
    for value, gradient, wanted in zip(values[::2], values[1::2], (dX, X.T @ dY, dY), strict=True):
        assert (value.x, value.width) == (gradient.x, gradient.width)
        assert value.y + value.height < gradient.y
        assert figure.numbers(gradient) == wanted.tolist()
        assert any(outline.holds(gradient) for outline in figure.boxes("twin"))
        assert not any(outline.holds(value) for outline in figure.boxes("twin"))
    data = Figure(OTHER_FIGURES["dense backward of data"]())
    assert len(data.boxes("absent")) == 1
    assert data.says("not computed")


def test_every_number_of_the_branching_graph_is_given() -> None:
    figure = Figure(diagrams.branches(3, [2, 5], [6, 15], 90, [15, 6], [30, 31], 61))
    shown = [word.text for word in figure.words if word.style == "digit"]
    assert sorted(shown) == sorted(["3", "6", "15", "90", "15", "6", "30", "31", "61", "1"])
    assert [word.text for word in figure.words if word.style == "label"].count("· w₁ = 2") == 2


def test_wrong_stands_beside_right_with_what_is_wrong_in_words() -> None:
    figure = Figure(diagrams.compared([dX, 3 * dX], dX))
    mine, theirs = (figure.boxes("block", color)[0] for color in ("r1", "neutral"))
    assert figure.numbers(mine) == (3 * dX).tolist()
    assert figure.numbers(theirs) == dX.tolist()
    assert figure.says("All 12 entries are equal.")
    assert "Every entry is 3 times what it should be" in figure.drawing.alt
    wrong = dX.clone()
    wrong[1, 2] += 9
    figure = Figure(diagrams.compared([dX, wrong], dX))
    (marked,) = figure.boxes("mark", "r1")
    assert figure.numbers(marked, white=True) == [[wrong[1, 2].item()]]


@pytest.mark.parametrize("ranks", [2, 3])
def test_on_a_journey_a_gradient_stands_in_its_values_column_and_only_events_cross(ranks: int) -> None:
    run = tpviz.run(column_layer, ranks)
    figure = Figure(diagrams.journey(run, WHOLES, "X → @ W → Y", "dY → @ Wᵀ → G → all_reduce → dX"))
    forward, backward = (sorted(figure.boxes("block", "neutral"), key=lambda box: box.y)[at] for at in (0, -1))
    assert (forward.x, forward.width) == (backward.x, backward.width)
    (bar,) = figure.boxes("bar")
    lanes = sorted(figure.boxes("lane"), key=lambda box: box.y)
    assert len(lanes) == 2 * ranks
    crossed = [lane for lane in lanes if bar.y < lane.y + lane.height and lane.y < bar.y + bar.height]
    assert crossed == lanes[ranks:]
    assert figure.says("AllReduce, 48 bytes")
    assert len(figure.says("nothing crosses")) == 2 * (ranks - 1)
    tiles = [word.text for word in figure.words if word.text == "dW"]
    assert len(tiles) == ranks


@pytest.mark.parametrize("phase", ["forward", "backward"])
def test_two_ways_have_what_is_alike_in_one_column_and_their_own_bars(phase: str) -> None:
    figure = Figure(two_ways(2, phase))
    lanes = sorted(figure.boxes("lane"), key=lambda box: box.y)
    wholes = [box for box in figure.boxes("block", "neutral") if lanes[1].holds(box)]
    bands = [box for box in figure.boxes("block", "r1") if lanes[3].holds(box) and 2 * box.height == wholes[0].height]
    assert len(bands) == 2  # S and N of rank 1, its rows
    assert {box.x for box in bands} <= {box.x for box in wholes}
    for bar in figure.boxes("bar"):
        assert sum(bar.y < lane.y + lane.height and lane.y < bar.y + bar.height for lane in lanes) == 2
    for name in ("AllReduce sends 64 B", "ReduceScatter sends 32 B", "AllGather sends 32 B"):
        assert len(figure.says(name)) == 1
    assert not any("'" in word.text for word in figure.words)


def test_a_watched_modules_line_has_a_bar_for_what_it_sent_in_each_phase() -> None:
    figure = Figure(diagrams.modules(watched_pair(4)))
    forward, backward, other = sorted(figure.boxes("bar"))
    (row, outside) = sorted(figure.boxes("lane"), key=lambda box: box.y)
    assert row.holds(forward) and row.holds(backward) and outside.holds(other)  # noqa: PT018
    words = {bar: [word.text for word in figure.words if bar.holds(word.box)] for bar in (forward, backward, other)}
    assert words == {
        forward: ["AllReduce · 3×4 · 48 B"],
        backward: ["AllGather · 3×8 · 96 B"],
        other: ["AllReduce · 3×4 · 48 B"],
    }
    assert figure.says("Shard(1) → Replicate · ranks 0–3")
    assert figure.says("Partial(sum) → Replicate · ranks 0, 2")
    assert len(figure.says("nothing")) == 3
    # Forward leads down through the modules, backward up.
    data = "".join(path.get("d", "") for path in figure._all("path") if path.get("class") == "arrow")
    ways = {int(x): int(to_y) - int(y) for x, y, to_y in re.findall(r"M(\d+) (\d+)V(\d+)", data)}
    beside = {bar: [way for x, way in ways.items() if bar.x <= x <= bar.x + bar.width] for bar in (forward, backward)}
    assert [[way > 0 for way in found] for found in beside.values()] == [[True], [False]]
    with pytest.raises(ValueError, match="nothing to draw"), tpviz.watch(nn.Identity()) as watched:
        diagrams.modules(watched)


def test_a_mesh_shows_what_went_along_its_rows_and_columns() -> None:
    figure = Figure(diagrams.mesh(tpviz.run(tp_and_dp, 4), tp=2))
    assert len(figure.says("TP: AllReduce")) == 2
    assert len(figure.says("DP: AllReduce")) == 2
    assert len(figure.says("48 bytes")) == 2
    assert len(figure.says("32 bytes")) == 2
    silent = Figure(diagrams.mesh(tpviz.run(lambda comm: X, 4), tp=2))
    assert not silent.boxes("bar")


@pytest.mark.parametrize("point", [(0, 0), (1, 3), (4, 2)])
def test_the_map_shades_what_differs_and_marks_the_point(point: tuple[int, int]) -> None:
    errors = torch.tensor([[0.0, 1, 0, 0, 2]] * 5) * torch.arange(5.0)[:, None]
    figure = Figure(diagrams.addends_map(errors, range(5), point, [1, 2, 3, 4, 5], function="f"))
    (whole,) = figure.boxes("absent")
    assert figure.numbers(whole) == errors.flip(0).tolist()
    assert len(figure.boxes("shade")) == errors.count_nonzero()
    (marked,) = figure.boxes("mark")
    assert figure.numbers(marked, white=True) == [[errors[point[1], point[0]].item()]]
    assert figure.says("Not the same.")


def test_a_plans_path_goes_through_its_layouts_and_names_what_it_sends() -> None:
    figure = Figure(diagrams.layout_path(plans.plan(MLP, MLP_SHAPES, memory_limit=128)))
    assert figure.says("→ AllReduce")
    assert figure.says("← AllReduce")
    assert len([box for box in figure.boxes("mark", "neutral") if box.width > 20]) == 6
    assert "AllReduce of Y, AllReduce of X" in figure.drawing.alt


def test_ranks_may_be_chosen_and_keep_their_colours() -> None:
    figure = Figure(diagrams.compared([dX, 2 * dX], dX, ranks=[1, 3], own=False))
    assert [figure.numbers(figure.boxes("block", color)[0]) for color in ("r1", "r3")] == [
        dX.tolist(),
        (2 * dX).tolist(),
    ]
    assert not figure.boxes("lane", "r0")
    assert "rank 3: Every entry is 2 times" in figure.drawing.alt


# --- legible ---------------------------------------------------------------------------------------------------------


def clashes(drawing: Drawing) -> list[str]:
    """What lies on what it must not lie on, in words."""
    figure = Figure(drawing)
    card = Box(0, 0, drawing.width, drawing.height)
    found = [f"{word.text!r} leaves the card" for word in figure.words if not card.holds(word.box)]
    for one, other in itertools.combinations(figure.words, 2):
        if one.box.overlap(other.box) > 0:
            found.append(f"{one.text!r} and {other.text!r} overlap at {one.box[:2]}")
    obstacles = [*figure.boxes("frame"), *figure.boxes("partial"), *figure.boxes("block"), *figure.boxes("bar")]
    for pill in figure.boxes("pill"):
        found += [f"a pill at {pill[:2]} covers a block" for box in obstacles if pill.overlap(box) > 0]
        if not any(lane.holds(pill) for lane in figure.boxes("lane")):
            found.append(f"a pill at {pill[:2]} leaves its lane")
    return found


def test_no_text_lies_on_another_and_no_badge_on_a_block(figures: dict[str, Drawing]) -> None:
    assert {name: found for name, drawing in figures.items() if (found := clashes(drawing))} == {}


@pytest.mark.parametrize("name", OTHER_FIGURES)
def test_nor_with_unusual_numbers_and_sizes(name: str) -> None:
    assert clashes(OTHER_FIGURES[name]()) == []


class _Chinese(gettext.NullTranslations):
    """Every message half again as long, in characters that are two wide."""

    def gettext(self, message: str) -> str:
        return re.sub(r"(?<![{\w])[a-z]{2,}(?![\w}])", lambda word: "算" * -(-len(word[0]) * 3 // 4), message)


@pytest.mark.parametrize("ranks", [2, 4])
def test_nor_in_a_language_with_wider_words(ranks: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(i18n, "_translations", _Chinese())
    figures = notebook_figures(ranks)
    assert any("算" in drawing.svg for drawing in figures.values())
    assert {name: found for name, drawing in figures.items() if (found := clashes(drawing))} == {}


def test_digits_of_a_column_stand_in_line_whatever_their_signs() -> None:
    figure = Figure(diagrams.matrix(torch.tensor([[1.0, -20], [-1, 3], [7, -4]])))
    for column in range(2):
        ends = [sorted(word.end for word in figure.words if word.style == "digit" and word.box.y == y)[column]
                for y in {word.box.y for word in figure.words if word.style == "digit"}]  # fmt: skip
        assert len(set(ends)) == 1
    (block,) = figure.boxes("block")
    assert all(block.holds(word.box) for word in figure.words if word.style == "digit")


def test_nothing_crosses_is_said_in_the_gap_and_only_of_a_run_without_events() -> None:
    figure = Figure(diagrams.column_parallel(X, W, column_run(2)))
    (words,) = figure.says("nothing crosses")
    upper, lower = sorted(figure.boxes("lane"), key=lambda box: box.y)
    assert upper.y + upper.height < words.box.y
    assert words.box.y + words.box.height < lower.y
    assert "nothing crosses" in figure.drawing.alt

    def talkative(comm: tpviz.Communicator) -> Tensor:
        comm.barrier()
        return X @ distribute(W, Shard(1), 2)[comm.rank]

    for outputs in (tpviz.run(talkative, 2), column_run(2).outputs):
        assert "nothing crosses" not in diagrams.column_parallel(X, W, outputs).svg


def test_a_slide_holds_the_figures_of_the_running_example() -> None:
    for ranks in (1, 2, 4):
        for name, drawing in notebook_figures(ranks).items():
            assert drawing.width <= grammar.SLIDE_WIDTH, name
            assert drawing.height <= grammar.SLIDE_HEIGHT, name
    for drawing in (
        diagrams.column_parallel(X, W, column_run(8), entry=(1, 5)),
        *(exchange(k, 8) for k in COLLECTIVES),
    ):
        assert drawing.width <= grammar.SLIDE_WIDTH
        assert drawing.height <= grammar.SLIDE_HEIGHT


@pytest.mark.parametrize("name", ["100 rows", "a real layer", "large matrix"])
def test_a_matrix_too_large_to_be_read_is_drawn_as_a_shape(name: str) -> None:
    drawing = OTHER_FIGURES[name]()
    assert drawing.width <= grammar.SLIDE_WIDTH
    assert drawing.height <= grammar.SLIDE_HEIGHT
    assert not [word for word in Figure(drawing).words if word.style == "digit"]


def test_type_is_large_enough_for_a_slide() -> None:
    assert grammar.SIZES["digit"] >= 24
    assert min(grammar.SIZES[style] for style in grammar.SIZES if style != "sub") >= 18


def test_cjk_characters_are_a_whole_em_wide() -> None:
    assert grammar.text_width("矩阵", "caption") == 2 * grammar.SIZES["caption"]
    assert grammar.text_width("Y = X @ W", "name") > grammar.text_width("Y = X", "name")


@pytest.mark.parametrize("text", ["a few words that are too long for a line", "一句太长而必须换行的话，没有空格"])
def test_a_caption_breaks_between_words_or_chinese_characters(text: str) -> None:
    lines = grammar.wrapped(text, "caption", 140)
    assert len(lines) > 1
    assert all(grammar.text_width(line, "caption") <= 140 for line in lines)
    assert " ".join(lines).replace(" ", "") == text.replace(" ", "")


# --- numbers ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("values", "texts"),
    [
        ([1, -2, 0.0, -0.0], ["1", "−2", "0", "0"]),
        ([0.5, -1.5], ["0.5", "−1.5"]),
        ([1 / 3, 2.0, -0.25], ["0.33", "2.00", "−0.25"]),
        ([0.1, 0.2], ["0.1", "0.2"]),
        ([1e6, 1.0], ["1e6", "1"]),
        ([-12345678.0, 0.001], ["−1.2e7", "1e−3"]),
        ([float("nan"), float("-inf"), 7.0], ["nan", "−∞", "7"]),
        ([True, False], ["1", "0"]),
    ],
)
def test_numbers_are_short_and_stable(values: list[float], texts: list[str]) -> None:
    assert number_texts([values]) == [texts]


def test_a_float32_is_written_as_it_was_typed() -> None:
    assert number_texts(torch.tensor([[0.1, 2.7, -0.3]]).tolist()) == [["0.1", "2.7", "−0.3"]]


# --- the result ------------------------------------------------------------------------------------------------------

AWKWARD = '<svg xmlns="http://www.w3.org/2000/svg"><text fill="#1f2933">−1 &amp; 100% of\n"矩阵" \'</text></svg>'


def test_the_image_tag_carries_the_svg_and_the_sentence_unchanged() -> None:
    drawing = Drawing(AWKWARD, 'X is "3×4" & W <4×8>.', 700, 200)
    (image,) = _ImageTag(drawing.html).images
    assert image["alt"] == drawing.alt
    assert image["src"] is not None
    head, _, body = image["src"].partition(",")
    assert head == "data:image/svg+xml"
    assert urllib.parse.unquote(body) == AWKWARD
    assert body.isascii()
    assert not set(body) & set('<>"#&\n')


def test_the_image_fits_its_page_and_keeps_its_digits_on_a_phone() -> None:
    (image,) = _ImageTag(diagrams.column_parallel(X, W, column_run(2)).html).images
    assert image["width"] == "1060"
    assert image["style"] == "max-width:100%;min-width:530px;height:auto"


def test_a_notebook_gets_the_image_the_svg_and_the_sentence() -> None:
    drawing = Drawing(AWKWARD, "X is 3×4.", 700, 200)
    assert drawing._repr_mimebundle_() == {
        "text/html": drawing.html,
        "image/svg+xml": AWKWARD,
        "text/plain": "X is 3×4.",
    }


def test_every_figure_is_described_in_one_sentence(figures: dict[str, Drawing]) -> None:
    for name, drawing in figures.items():
        assert re.fullmatch(r"[A-Z][^.]*\.", drawing.alt), (name, drawing.alt)
        assert "{" not in drawing.alt, name
        assert re.search(r"\d×\d|row \d|x = 3|mesh|map|plan|ring|head|operators", drawing.alt), (name, drawing.alt)
        assert Figure(drawing).root.get("aria-label") == drawing.alt


def test_the_sentence_has_the_real_shapes_ranks_and_cuts() -> None:
    assert diagrams.column_parallel(X, W[:, :6], column_run(4, X, W[:, :6]), entry=(1, 5)).alt == (
        "On 4 ranks, between which nothing crosses, X (3×4, whole on every rank) times W (4×6, cut by columns into "
        "2, 2, 2, 0) gives Y (3×6, cut by columns into 2, 2, 2, 0); entry [1, 5] is lit up on rank 2."
    )


def test_figures_are_the_same_text_in_every_process() -> None:
    program = (
        "import hashlib, tests.test_diagrams as t\n"
        "figures = [*t.notebook_figures(4).values(), *(make() for make in t.OTHER_FIGURES.values())]\n"
        "print(hashlib.sha256(''.join(f.svg + f.html for f in figures).encode()).hexdigest())"
    )
    printed = {
        subprocess.run(
            [sys.executable, "-c", program],
            env=os.environ | {"PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(printed) == 1


def test_the_svg_is_small_and_shows_itself_alone() -> None:
    drawing = diagrams.row_parallel(X, W, row_run(2))
    assert len(drawing.svg) < 8000
    assert "http" not in drawing.svg.replace("http://www.w3.org/2000/svg", "")
    (card,) = [rect for rect in Figure(drawing)._all("rect") if rect.get("class") == "card"]
    assert f".card{{fill:{grammar.CARD}" in drawing.svg
    assert int(card.get("width", "")) == drawing.width - 1


def test_diagrams_do_not_load_what_is_slow_to_load() -> None:
    program = (
        "import sys, torch, tpviz.example as e; from tpviz import diagrams\n"
        "diagrams.column_parallel(e.X, e.W, [e.X @ e.W])\n"
        "print([m for m in ('torch.distributed.tensor', 'matplotlib', 'IPython', 'ipywidgets') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


# --- placements and wrong input --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "placements",
    [
        (Replicate(), Shard(1), Shard(1)),
        ((Replicate(),), (Shard(-1),), (Shard(-1),)),
    ],
)
def test_pytorchs_placements_are_understood(placements: tuple[object, ...]) -> None:
    run = column_run(2)
    assert diagrams.matmul(X, W, run, placements) == diagrams.column_parallel(X, W, run)  # type: ignore[arg-type]


def test_operands_may_be_what_the_ranks_hold() -> None:
    run = row_run(2)
    parts = (distribute(X, Shard(1), 2), distribute(W, Shard(0), 2))
    assert diagrams.matmul(*parts, run, (Shard(1), Shard(0), Partial())) == diagrams.row_parallel(X, W, run)


def test_inputs_are_left_as_they_were_and_gradients_do_not_matter() -> None:
    x = X.clone().requires_grad_()
    drawing = diagrams.column_parallel(x, W, [x @ W])
    assert torch.equal(x, X)
    assert drawing == diagrams.column_parallel(X, W, [X @ W])


WRONG: dict[str, tuple[Callable[[], object], type[Exception], list[str]]] = {
    "not a tensor": (lambda: diagrams.matrix([[1, 2]]), TypeError, ["X", "list", "torch.tensor("]),  # type: ignore[arg-type]
    "three dimensions": (lambda: diagrams.matrix(torch.ones(2, 3, 4)), ValueError, ["2×3×4", "slice"]),
    "complex": (lambda: diagrams.matrix(torch.ones(2, 2) * 1j), TypeError, ["complex64", "real"]),
    "empty": (lambda: diagrams.matrix(torch.ones(0, 4)), ValueError, ["0×4", "no entry"]),
    "no matrices": (lambda: diagrams.matrices(), ValueError, ["matrices(X=X, W=W)"]),
    "highlight outside": (lambda: diagrams.matrix(X, highlight=(3, 0)), IndexError, ["(3, 0)", "3×4", "row", "2"]),
    "outputs are one tensor": (lambda: diagrams.column_parallel(X, W, Y), TypeError, ["Y", "one tensor a rank"]),
    "outputs are tuples": (
        lambda: diagrams.column_parallel(X, W, tpviz.run(lambda comm: (X, W), 2)),
        TypeError,
        ["Y of rank 0", "tuple", "output[0]"],
    ),
    "no outputs": (lambda: diagrams.column_parallel(X, W, []), TypeError, ["Y", "list"]),
    "nine ranks": (lambda: diagrams.row_parallel(X, W, [Y] * 9), ValueError, ["8", "9", "smaller run"]),
    "inner sizes differ": (lambda: diagrams.column_parallel(X, W2, [X]), ValueError, ["3×4", "8×4", "columns", "rows"]),
    "gathered outputs": (
        lambda: diagrams.column_parallel(X, W, [Y, Y]),
        ValueError,
        ["rank 0", "3×8", "3×4", "before any collective"],
    ),
    "uneven by another rule": (
        lambda: diagrams.column_parallel(X, W, [Y[:, :5], Y[:, 5:]]),
        ValueError,
        ["rank 0", "3×5", "3×4", "Shard(1)", "3×8", "2 ranks"],
    ),
    "too few parts": (
        lambda: diagrams.matmul([X], W, [Y, Y], (Replicate(), Replicate(), Replicate())),
        ValueError,
        ["X", "1", "2"],
    ),
    "partial given whole": (
        lambda: diagrams.matmul(X, W, [X, X], (Partial(), Replicate(), Partial())),
        TypeError,
        ["X", "partial sum", "list"],
    ),
    "no placement": (lambda: diagrams.matmul(X, W, [Y], ("column", Shard(1), Shard(1))), TypeError, ["X", "'column'"]),  # type: ignore[arg-type]
    "placement of a third dimension": (
        lambda: diagrams.matmul(X, W, [Y], (Replicate(), Shard(2), Shard(1))),
        TypeError,
        ["W", "Shard(dim=2)"],
    ),
    "factors cut differently": (
        lambda: diagrams.matmul(X, W, row_run(2), (Replicate(), Shard(0), Partial())),
        ValueError,
        ["rank 0", "3×4", "2×8", "cut alike"],
    ),
    "partial sums called whole": (
        lambda: diagrams.matmul(X, W, row_run(2), (Shard(1), Shard(0), Replicate())),
        ValueError,
        ["Y", "Partial()", "inner dimension"],
    ),
    "whole called partial": (
        lambda: diagrams.matmul(X, W, [Y, Y], (Replicate(), Replicate(), Partial())),
        ValueError,
        ["Y", "no partial sum"],
    ),
    "entry outside": (
        lambda: diagrams.column_parallel(X, W, column_run(2), entry=(3, 0)),
        IndexError,
        ["(3, 0)", "3×8", "0 to 2", "0 to 7"],
    ),
    "open rank": (lambda: diagrams.column_parallel(X, W, column_run(2), open_rank=2), ValueError, ["2", "0 to 1"]),
    "products of another entry's length": (
        lambda: diagrams.inner_product(X, W, X[0], [Y[:, :1]], Y, entry=(0, 0)),
        ValueError,
        ["3×1", "3×8"],
    ),
    "products missing": (
        lambda: diagrams.inner_product(X, W, X[0, :2], [Y], Y, entry=(0, 1)),
        ValueError,
        ["2 numbers", "4", "X[0] * W[:, 1]"],
    ),
    "a matrix of products": (
        lambda: diagrams.inner_product(X, W, X[:, :4][:1].repeat(4, 1)[:, :1], [Y], Y[:2], entry=(0, 1)),
        ValueError,
        ["3×4, 4×8, 2×8"],
    ),
    "a sum of another shape": (lambda: diagrams.summation(row_run(2), Y[:2]), ValueError, ["2×8", "3×8"]),
    "a concatenation of another size": (
        lambda: diagrams.concatenation([X, X], Y[:2]),
        ValueError,
        ["3×4", "2×8", "dim 1"],
    ),
    "a dimension that is none": (lambda: diagrams.concatenation([X], X, dim=2), ValueError, ["dim=2"]),
    "two cuts of two outputs": (lambda: diagrams.two_cuts([Y], [Y[:2]]), ValueError, ["3×8", "2×8", "same output"]),
    "a barrier": (
        lambda: diagrams.collective(tpviz.run(lambda comm: comm.barrier(), 2).trace[0], [X, X], [X, X]),
        ValueError,
        ["barrier", "all_gather"],
    ),
    "too few ranks in a collective": (
        lambda: diagrams.collective(tpviz.run(lambda comm: comm.all_reduce(X), 3).trace[0], [X, X], [X, X]),
        ValueError,
        ["2", "0, 1, 2"],
    ),
    "another result of a collective": (
        lambda: diagrams.collective(tpviz.run(lambda comm: comm.all_gather(X), 2).trace[0], [X, X], [X, X]),
        ValueError,
        ["rank 0", "3×4", "AllGather", "3×8"],
    ),
    "contributions of another shape": (
        lambda: diagrams.contributions(contribution_run(2), dX[:2], dY),
        ValueError,
        ["2×4", "3×4"],
    ),
    "upstream of other rows": (
        lambda: diagrams.contributions(contribution_run(2), dX, dY[:2]),
        ValueError,
        ["dY is 2×8", "dX is 3×4"],
    ),
    "a gradient of another shape": (
        lambda: diagrams.dense_backward(X, W, Y, dX, dY, dY),
        ValueError,
        ["dW is 3×8", "W is 4×8"],
    ),
    "too few contributions": (
        lambda: diagrams.branches(3, [2, 5], [6, 15], 90, [15, 6], [30], 60),
        ValueError,
        ["contributions", "1", "2"],
    ),
    "a path that does not alternate": (
        lambda: diagrams.journey(tpviz.run(column_layer), WHOLES, "X → Y", "dY → @ Wᵀ → dX"),
        ValueError,
        ["'X → Y'", "'X → @ W → Y'"],
    ),
    "a collective that did not happen": (
        lambda: diagrams.journey(tpviz.run(row_layer), WHOLES, "X → @ W → Z → all_gather → Y", "dY → @ Wᵀ → dX"),
        ValueError,
        ["forward", "all_gather", "all_reduce"],
    ),
    "a collective left out": (
        lambda: diagrams.journey(tpviz.run(column_layer), WHOLES, "X → @ W → Y", "dY → @ Wᵀ → G"),
        ValueError,
        ["backward", "[]", "all_reduce"],
    ),
    "a tensor that nobody returned": (
        lambda: diagrams.journey(tpviz.run(column_layer), WHOLES, "X → @ W → Z", "dY → @ Wᵀ → G → all_reduce → dX"),
        ValueError,
        ["Z", "return"],
    ),
    "a tensor that is not the whole": (
        lambda: diagrams.journey(tpviz.run(lambda comm: {"X": X, "Y": Y + 1, "dY": dY}), WHOLES, "X → @ W → Y", "dY"),
        ValueError,
        ["Y", "no shards"],
    ),
    "too few numbers of ranks": (lambda: diagrams.compared([dX, dX], dX, ranks=[1]), ValueError, ["[1]", "2"]),
    "a map of another size": (
        lambda: diagrams.addends_map(torch.eye(3), range(4), (0, 0), [0] * 5, function="f"),
        ValueError,
        ["3×3", "4×4"],
    ),
    "a point outside": (
        lambda: diagrams.addends_map(torch.eye(3), range(3), (3, 0), [0] * 5, function="f"),
        IndexError,
        ["(3, 0)", "0 to 2"],
    ),
    "wrong of another shape": (lambda: diagrams.compared([dX[:2]], dX), ValueError, ["dX", "2×4", "3×4"]),
    "a mesh with a remainder": (lambda: diagrams.mesh(tpviz.run(tp_and_dp, 4), tp=3), ValueError, ["3", "4"]),
    "a collective across the mesh": (
        lambda: diagrams.mesh(tpviz.run(lambda comm: comm.all_reduce(X), 4), tp=2),
        ValueError,
        ["all_reduce", "0, 1, 2, 3"],
    ),
    "something kept that is not the whole": (
        lambda: diagrams.kept(kept_run(0, 2), KEPT | {"M": W + 5}),
        ValueError,
        ["M", "no shards"],
    ),
    "something that nobody keeps": (
        lambda: diagrams.kept(kept_run(0, 2), KEPT | {"V": W}),
        ValueError,
        ["V", "dict"],
    ),
    "a ring with a collective in it": (
        lambda: diagrams.ring(tpviz.run(lambda comm: [comm.all_reduce(torch.ones(2))], 2)),
        ValueError,
        ["all_reduce", "0, 1", "next one"],
    ),
    "a ring that returns its result only": (
        lambda: diagrams.ring(tpviz.run(lambda comm: ring_steps(comm)[-1:], 3)),
        ValueError,
        ["rank 0", "5 tensors of 3 numbers"],
    ),
    "a ring in which nothing is taken up": (
        lambda: diagrams.ring(tpviz.run(lambda comm: ring_steps(comm)[:1] * 5, 3)),
        ValueError,
        ["step 1", "0 pieces on rank 0"],
    ),
    "a ring in which something else is taken up": (
        lambda: diagrams.ring(tpviz.run(lambda comm: [held * (k + 1) for k, held in enumerate(ring_steps(comm))], 2)),
        ValueError,
        ["step 1", "rank 0"],
    ),
    "a ring in which a rank is silent": (
        lambda: diagrams.ring(
            tpviz.run(lambda comm: comm.send(X, 1) if comm.rank == 0 else comm.recv(0) if comm.rank == 1 else X, 3)
        ),
        ValueError,
        ["1, 0, 0", "once in each step"],
    ),
    "a broadcast of nobody's numbers": (
        lambda: diagrams.collective(tpviz.run(lambda comm: comm.broadcast(X), 2).trace[0], [X, X], [X + 1, X + 1]),
        ValueError,
        ["broadcast", "no rank's numbers"],
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_input_is_named_with_what_was_expected_and_what_came(name: str) -> None:
    draw, kind, words = WRONG[name]
    with pytest.raises(kind) as caught:
        draw()
    message = str(caught.value)
    assert [word for word in words if word not in message] == [], message
    assert "{" not in message
