"""The map of conventions: all cells of a row say the same, and PyTorch and our layers do what they say."""

import re

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Partial, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn import functional
from torch.testing._internal.distributed.fake_pg import FakeStore

import tpviz
from tools import notebooks
from tpviz.conversions import conversion
from tpviz.example import W, X
from tpviz.layouts import distribute, full

TEXT = (notebooks.ROOT / "docs" / "conventions.md").read_text(encoding="utf-8")
HEAD, _RULE, *LINES = [line for line in TEXT.splitlines() if line.startswith("|")]
COLUMNS = [cell.strip() for cell in HEAD.strip("|").split("|")]
ROWS = {
    cells[0]: dict(zip(COLUMNS, cells, strict=True))
    for cells in ([cell.strip() for cell in line.strip("|").split("|")] for line in LINES)
}
MATHS, TEXTBOOK, LINEAR, DTENSOR, BOOK, SBP = COLUMNS[1:]
DIMENSIONS = {"X": "BD", "W": "DF", "Y": "BF"}
DTENSORS = {"Replicate()": Replicate(), "Partial()": Partial(), "Shard(0)": Shard(0), "Shard(1)": Shard(1)}
SBPS = {"B": Replicate(), "P": Partial(), "S(0)": Shard(0), "S(1)": Shard(1)}


def in_words(cell, rows):
    """The placement that words say; ``rows`` is the dimension that they call rows."""
    kind, *_of = cell.split()
    if kind == "dim":
        return Shard(int(cell.split()[1]))
    words = {"whole": Replicate(), "addends": Partial(), "rows": Shard(rows), "columns": Shard(1 - rows)}
    return words[kind]


def in_the_book(cell):
    """The placement that a name such as Y[B, F_T]{U_T} says."""
    name, first, second, partial = re.fullmatch(r"([XWY])\[(\w+), (\w+)\](\{U_T\})?", cell).groups()
    assert first[0] + second[0] == DIMENSIONS[name]
    cut = [dim for dim, axis in enumerate((first, second)) if axis.endswith("_T")]
    assert len(cut) + bool(partial) <= 1
    return Partial() if partial else Shard(cut[0]) if cut else Replicate()


def flipped(placement):
    return Shard(1 - placement.dim) if isinstance(placement, Shard) else placement


def placements(row):
    """What each column says, of X, W and Y as they are in Y = X W, before and after where something changes."""
    is_weight = " of W" in row[MATHS]
    stored = flipped if is_weight else (lambda placement: placement)  # nn.Linear.weight is A
    readers = {
        MATHS: lambda cell: in_words(cell, rows=0),
        TEXTBOOK: lambda cell: in_words(cell, rows=1),  # of A, x and y, which are the transposes
        LINEAR: lambda cell: stored(in_words(cell, rows=0)),
        DTENSOR: lambda cell: stored(DTENSORS[cell.strip("`")]),
        BOOK: in_the_book,
        SBP: SBPS.__getitem__,
    }
    return {column: [read(cell) for cell in row[column].split(" → ")] for column, read in readers.items()}


@pytest.mark.parametrize("fact", ROWS)
def test_all_vocabularies_say_the_same(fact):
    said = placements(ROWS[fact])
    assert len({str(each) for each in said.values()}) == 1, said


def test_a_wrong_cell_is_found():
    row = {**ROWS["the weight, column-parallel"], DTENSOR: "`Shard(1)`"}
    assert len({str(each) for each in placements(row).values()}) == 2


@pytest.mark.parametrize("fact", ["AllReduce", "ReduceScatter", "AllGather", "AllToAll", "a slice, with nothing sent"])
def test_the_collectives_are_those_of_the_conversions(fact):
    before, after = placements(ROWS[fact])[DTENSOR]
    kind = conversion(before, after).forward
    wanted = "" if fact.startswith("a slice") else fact.lower()
    assert (str(kind).replace("_", "").lower() if kind else "") == wanted


def whole_of(fact):
    """What a fact's layout gives for Y = X W where it is put together."""
    return placements(ROWS[fact])[MATHS][0]


@pytest.mark.parametrize("ranks", [2, 4])
def test_the_numbers_agree(ranks):
    x, w = (whole_of(f"the {name}") for name in ("input of a row-parallel layer", "weight, row-parallel"))
    parts = [a @ b for a, b in zip(distribute(X, x, ranks), distribute(W, w, ranks), strict=True)]
    assert torch.equal(full(parts, whole_of("what a row-parallel layer leaves: partial sums")), X @ W)
    parts = [X @ shard for shard in distribute(W, whole_of("the weight, column-parallel"), ranks)]
    assert torch.equal(full(parts, whole_of("what a column-parallel layer leaves")), X @ W)
    for name in ("column", "row"):
        cut = whole_of(f"the weight, {name}-parallel")
        assert all(
            torch.equal(math, stored.T)
            for math, stored in zip(
                distribute(W, cut, ranks), distribute(W.T.contiguous(), flipped(cut), ranks), strict=True
            )
        )


@pytest.fixture(scope="module")
def mesh():
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    yield init_device_mesh("cpu", (2,))
    dist.destroy_process_group()


@pytest.mark.parametrize(
    ("style", "name", "bias"), [(ColwiseParallel(), "column", Shard(0)), (RowwiseParallel(), "row", Replicate())]
)
def test_pytorch_places_weight_and_bias_so(style, name, bias, mesh):
    layer = parallelize_module(nn.Linear(4, 8), mesh, style)
    assert layer.weight.placements == (DTENSORS[ROWS[f"the weight, {name}-parallel"][DTENSOR].strip("`")],)
    assert layer.bias.placements == (bias,)
    said = TEXT.partition("A bias follows the output.")[2].partition(f"{name.title()}-parallel: ")[2].partition(".")[0]
    assert [DTENSORS[found] for found in re.findall("`(.+?)`", said)] == [bias]


@pytest.mark.parametrize(
    ("given", "weight", "leaves"),
    [
        ("the input, replicated", "the weight, column-parallel", "what a column-parallel layer leaves"),
        (
            "the input of a row-parallel layer",
            "the weight, row-parallel",
            "what a row-parallel layer leaves: partial sums",
        ),
    ],
)
def test_pytorch_leaves_what_the_map_says(given, weight, leaves, mesh):
    x, w, y = (DTENSORS[ROWS[fact][DTENSOR].strip("`")] for fact in (given, weight, leaves))
    product = functional.linear(distribute_tensor(X, mesh, [x]), distribute_tensor(W.T.contiguous(), mesh, [w]))
    assert product.placements == (y,)


def test_our_layers_hold_what_the_map_says():
    def shapes(comm):
        column, row = tpviz.ColumnParallelLinear(6, 8, comm), tpviz.RowParallelLinear(8, 6, comm)
        return [tuple(layer.weight.shape) for layer in (column, row)] + [
            tuple(column.bias.shape),
            tuple(row.bias.shape),
        ]

    (first, second) = tpviz.run(shapes, ranks=2).outputs
    assert first == second == [(4, 6), (6, 4), (4,), (6,)]
