"""The exercises of notebooks 06, 07 and 07b: what learners write, right and wrong, and that the answers speak true."""

import itertools
import subprocess
import sys

import pytest
import torch
from answers import said_right, said_wrong
from torch.distributed.tensor.placement_types import Partial, Replicate, Shard
from torch.nn import functional

import tpviz
from tpviz import example, exercises, plans
from tpviz.exercises import nb06_two_layers, nb07b_planner
from tpviz.rules import PLACEMENTS, str_of

# 06


def one_collective_by_hand(comm, X, W1i, W2i):
    Z = torch.relu(X @ W1i) @ W2i
    return torch.stack(comm.all_gather(Z, 0).chunk(comm.world_size)).sum(dim=0)


@pytest.mark.parametrize(
    "mlp",
    [
        lambda comm, X, W1i, W2i: comm.all_reduce(functional.relu(X @ W1i) @ W2i),
        lambda comm, X, W1i, W2i: comm.all_reduce((X @ W1i).clamp(min=0) @ W2i, phase="forward"),
        lambda comm, X, W1i, W2i: comm.all_reduce(x=torch.mm((X @ W1i).relu(), W2i), op="sum"),
        lambda comm, X, W1i, W2i: comm.all_reduce(torch.maximum(X @ W1i, torch.zeros(())) @ W2i),
        lambda comm, X, W1i, W2i: tpviz.reduce_from_region(torch.relu(tpviz.copy_to_region(X, comm) @ W1i) @ W2i, comm),
        lambda comm, X, W1i, W2i: comm.all_reduce(W2i.T @ torch.relu(W1i.T @ X.T)).T,
        lambda comm, X, W1i, W2i: comm.all_reduce(sum(torch.relu(X @ W1i[:, [j]]) @ W2i[[j]] for j in range(len(W2i)))),
    ],
)
def test_one_all_reduce_is_right(mlp):
    assert said_right("06-fewest", mlp) == ()


def test_one_all_gather_is_right_with_a_remark():
    [remark] = said_right("06-fewest", one_collective_by_hand)
    assert "brings every rank all the shares" in remark


def all_reduced_middle(comm, X, W1i, W2i):
    H = comm.all_reduce(torch.relu(X @ W1i))
    Y = H @ W2i
    return comm.all_reduce(Y)


def gathered_middle(comm, X, W1i, W2i):
    A = comm.all_gather(X @ W1i, dim=1)
    H = torch.relu(A)
    Hi = H.chunk(comm.world_size, dim=1)[comm.rank]
    return comm.all_reduce(Hi @ W2i)


def halves_exchanged(comm, X, W1i, W2i):
    if comm.world_size == 2:
        W2i = comm.sendrecv(W2i, dst=1 - comm.rank, src=1 - comm.rank)
    return comm.all_reduce(torch.relu(X @ W1i) @ W2i)


def columns_exchanged(comm, X, W1i, W2i):
    W1i = comm.sendrecv(W1i, dst=(comm.rank + 1) % comm.world_size, src=(comm.rank - 1) % comm.world_size)
    return comm.all_reduce(torch.relu(X @ W1i) @ W2i)


def weights_gathered(comm, X, W1i, W2i):
    W1, W2 = comm.all_gather(W1i, dim=1), comm.all_gather(W2i, dim=0)
    return torch.relu(X @ W1) @ W2


def from_the_notebook(comm, X, W1i, W2i):
    Hi = torch.relu(X @ tpviz.shard(example.W1, 1, comm))
    return comm.all_reduce(Hi @ tpviz.shard(example.W2, 0, comm))


def summed_on_rank_0(comm, X, W1i, W2i):
    Y = comm.all_reduce(torch.relu(X @ W1i) @ W2i)
    return comm.broadcast(Y)


def barrier_first(comm, X, W1i, W2i):
    comm.barrier()
    return comm.all_reduce(torch.relu(X @ W1i) @ W2i)


@pytest.mark.parametrize(
    ("mlp", "misconception", "said"),
    [
        (all_reduced_middle, "H all-reduced", "They hold different columns of H"),
        (gathered_middle, "H gathered", "you send all_gather, all_reduce: one more than is needed"),
        (halves_exchanged, "W2's halves swapped", "feature 0 of H meets row 4"),
        (columns_exchanged, "W2's halves swapped", "another rank's rows of W2"),
        (weights_gathered, "all gathered", "you send all_gather, all_gather"),
        (from_the_notebook, "the notebook's weights", "Tried on 4 rows and other weights on 2 ranks"),
        (lambda comm, X, W1i, W2i: functional.relu(X @ W1i) @ W2i, "no sum", "on rank 0, row 0, column 0 is 9"),
        (lambda comm, X, W1i, W2i: comm.all_reduce((X @ W1i).relu() @ W2i) / comm.world_size, "mean", "is 7"),
        (lambda comm, X, W1i, W2i: comm.all_reduce((X @ W1i).relu() @ W2i) * comm.world_size, "summed twice", "is 28"),
        (
            lambda comm, X, W1i, W2i: functional.relu(comm.all_reduce((X @ W1i) @ W2i)),
            "ReLU after the sum",
            "ReLU stands behind both layers",
        ),
        (
            lambda comm, X, W1i, W2i: tpviz.shard(comm.all_reduce((X @ W1i).relu() @ W2i), 0, comm),
            "some rows",
            "2×4 on rank 0",
        ),
        (
            summed_on_rank_0,
            None,
            "You send all_reduce, broadcast: 2 collectives, and 1 will do. Not needed: broadcast.",
        ),
        (barrier_first, None, "You send barrier, all_reduce: 2 collectives, and 1 will do. Not needed: barrier."),
        (lambda comm, X, W1i, W2i: comm.all_reduce(torch.relu(X) @ W1i @ W2i), None, "row 0, column 0 is"),
        (lambda comm, X, W1i, W2i: comm.all_reduce(W2i @ torch.relu(X @ W1i)), None, "your code ended in RankError"),
        (lambda comm, X, W1i, W2i: comm.all_reduce(torch.relu(X @ W1i) @ W2i).tolist(), None, "is a list of 3"),
    ],
)
def test_too_much_and_too_little_between_two_layers(mlp, misconception, said):
    name, text = said_wrong("06-fewest", mlp)
    assert (name, said in text) == (misconception, True), text


def test_a_rank_has_its_part_only():
    shapes = []
    exercise = exercises.get("06-fewest")

    def seen(comm, X, W1i, W2i):
        shapes.append((comm.world_size, comm.rank, tuple(W1i.shape), tuple(W2i.shape)))

    for case in exercise.cases():
        exercise.evaluate(seen, case)
    assert (2, 1, (4, 4), (4, 4)) in shapes
    assert (4, 3, (4, 2), (2, 4)) in shapes
    assert {(3, 0, (5, 3), (3, 4)), (3, 2, (5, 1), (1, 4))} <= {*shapes}


@pytest.mark.parametrize(
    ("name", "answer"),
    [
        ("06-predict", (1, 1)),
        ("06-predict", torch.tensor([1.0, 1.0])),
        ("06-deal", (0, 2, 4, 6)),
        ("06-deal", torch.arange(0, 8, 2)),
        ("06-deal", [*range(0, 8, 2)]),
        ("07-partial", [True, False, False, True]),
        ("07-partial", (1, False, 0, 1.0)),
        ("07-shards", torch.tensor([True, False, False, True])),
        ("07-shards", [1, 0, 0, 1]),
        ("07b-why", "Weights do not fit"),
    ],
)
def test_the_same_value_in_another_form_is_right(name, answer):
    assert said_right(name, answer) == ()


@pytest.mark.parametrize(
    ("name", "answer", "misconception", "said"),
    [
        ("06-predict", (2, 2), "one for each layer", "Each layer sends once in all"),
        ("06-predict", [2.0, 1], "gathered in the middle", "H together"),
        ("06-predict", torch.tensor([1, 0]), "none backward", "share of dX"),
        ("06-predict", [0, 1], "column layer only", "partial sums"),
        ("06-predict", 2, None, "An answer of the form […, …] is needed."),
        ("06-predict", [1, "1"], None, "Numbers are needed, without quotes: […, …]."),
        ("06-predict", [4, 4], None, "It is not [4, 4]."),
        ("06-deal", range(4), None, "An answer of the form"),
        ("06-deal", torch.arange(4), "contiguous", "most numbers are wrong"),
        ("06-deal", [*range(8)], "all", "PyTorch refuses"),
        ("06-deal", [0, 4, 2, 6], None, "These rows, and in another order: [0, 4, 2, 6]."),
        ("06-deal", [6, 4, 2, 0.0], None, "in another order"),
        ("06-deal", [0, 2, 4], None, "An answer of the form […, …, …, …] is needed."),
        ("06-deal", [0, 2, 5, 7], None, "It is not [0, 2, 5, 7]."),
        ("06-deal", [2, 4, 6, 8], None, "It is not [2, 4, 6, 8]."),
        ("07-partial", [True] * 4, "element-wise passes", "in sum 19"),
        ("07-partial", [True, True, True, False], "element-wise passes, the transpose does not", "the same new place"),
        ("07-partial", (1, 1, 0, 1), "x + 10 passes", "once for each rank"),
        ("07-partial", [0, 0, 0, 0], "none", "not always needed"),
        ("07-partial", [0, 1, 0, 1], None, "It is not [0, 1, 0, 1]."),
        ("07-partial", ["x·2", "x.T"], None, "Numbers are needed, without quotes: […, …, …, …]."),
        ("07-shards", [True] * 4, "shards pass everything", "rank 0 would take 2"),
        ("07-shards", [1, 0, 0, False], "only ReLU", "shares of 16"),
        ("07-shards", (1, 0, 1, 1), "softmax passes", "the row to 2"),
        ("07-shards", [True, True, False, True], "LayerNorm passes", "the mean is 4"),
        ("07-shards", [0, 0, 1, 1], None, "It is not [0, 0, 1, 1]."),
        ("07b-why", "allreduce is free", "free", "20 µs"),
        ("07b-why", " Copies drift apart", "drift", "They do not"),
        ("07b-why", "relu is not linear ", "ReLU", "True, and no reason"),
        ("07b-why", "too slow", None, "“too slow” is not one of the choices"),
        ("07b-why", 256, None, "One of these words is needed"),
    ],
)
def test_what_is_said_of_a_value(name, answer, misconception, said):
    found, text = said_wrong(name, answer)
    assert (found, said in text) == (misconception, True), text


# 07


def exchanged_and_added(comm, partial):
    mine = comm.all_to_all(partial, split_dim=0, concat_dim=1)
    return sum(mine.chunk(comm.world_size, dim=1))


def sent_one_by_one(comm, partial):
    """Every rank sends every other one its rows: as many bytes in all as a reduce-scatter, in more pieces."""
    pieces = torch.tensor_split(partial, [*itertools.accumulate(rows_of(comm, partial))][:-1])
    total = pieces[comm.rank].clone()
    for step in range(1, comm.world_size):
        to, source = (comm.rank + step) % comm.world_size, (comm.rank - step) % comm.world_size
        total += comm.sendrecv(pieces[to], dst=to, src=source)
    return total


def rows_of(comm, partial):
    size = -(-len(partial) // comm.world_size)
    return [max(0, min(size, len(partial) - rank * size)) for rank in range(comm.world_size)]


def in_two_halves(comm, partial):
    halves = partial.chunk(2, dim=1)
    return torch.cat([comm.reduce_scatter(half.contiguous(), dim=0) for half in halves], dim=1)


@pytest.mark.parametrize(
    "program",
    [
        lambda comm, partial: comm.reduce_scatter(partial),
        lambda comm, partial: comm.reduce_scatter(partial, dim=-2, op="sum"),
        lambda comm, partial: comm.reduce_scatter(x=partial, dim=0, phase="forward"),
        lambda comm, partial: comm.reduce_scatter(partial.T.contiguous(), dim=1).T,
        lambda comm, partial: tpviz.reduce_scatter_to_region(partial, comm, 0),
        sent_one_by_one,
        in_two_halves,
    ],
)
def test_the_fewest_bytes_are_right(program):
    assert said_right("07-convert", program) == ()


def test_pieces_sent_and_added_are_right_with_a_remark():
    [remark] = said_right("07-convert", exchanged_and_added)
    assert "add what comes" in remark


def from_everybody(comm, partial):
    total = sum(comm.broadcast(partial, src=rank) for rank in range(comm.world_size))
    return tpviz.shard(total, 0, comm)


def chunk_of_all_reduce(comm, partial):
    return comm.all_reduce(partial).chunk(comm.world_size)[comm.rank]


def gathered_chunks(comm, partial):
    everything = comm.all_gather(partial, dim=0).chunk(comm.world_size)
    return tpviz.shard(torch.stack(everything).sum(0), 0, comm)


@pytest.mark.parametrize(
    ("program", "misconception", "said"),
    [
        (chunk_of_all_reduce, "all-reduced and sliced", "the ranks send 256 bytes in all, and 128 will do"),
        (gathered_chunks, "gathered and added", "every rank gets all addends of all rows"),
        (lambda comm, partial: partial.chunk(comm.world_size)[comm.rank], "not summed", "nothing is added"),
        (lambda comm, partial: comm.reduce_scatter(partial, -1), "columns", "4×4 on rank 0"),
        (lambda comm, partial: tpviz.shard(comm.all_reduce(partial), 1, comm), "columns", "dimension 0"),
        (lambda comm, partial: comm.all_reduce(partial, op="sum"), "whole sum", "4×8"),
        (lambda comm, partial: comm.reduce_scatter(partial) / comm.world_size, "mean", "−0.5"),
        (lambda comm, partial: comm.reduce_scatter(partial) * comm.world_size, "summed twice", "is −2"),
        (lambda comm, partial: comm.all_gather(partial, 0), "gathered", "8×8"),
        (
            lambda comm, partial: comm.all_reduce(partial)[: 4 // comm.world_size],
            "rank 0's rows",
            "Every rank returns the first rows",
        ),
        (from_everybody, None, "(broadcast, broadcast), and 128 bytes will do."),
        (
            lambda comm, partial: comm.reduce_scatter(comm.broadcast(partial), dim=0),
            None,
            "row 0, column 0 is 2; it should be −1.",
        ),
        (lambda comm, partial: comm.reduce_scatter(partial, dim=2), None, "your code ended in RankError"),
        (lambda comm, partial: None, None, "what rank 0 returns is None"),
    ],
)
def test_too_much_and_too_little_in_a_conversion(program, misconception, said):
    name, text = said_wrong("07-convert", program)
    assert (name, said in text) == (misconception, True), text


def test_the_rows_of_numbers_in_the_answers():
    row = torch.tensor([[1.0, 3, 5, 7]])
    left, right = row.chunk(2, dim=1)
    assert (row.mean(), left.mean(), right.mean()) == (4, 2, 6)
    assert (left.sum(), right.sum(), row.sum()) == (4, 12, 16)
    assert torch.cat([left.softmax(1), right.softmax(1)], 1).sum().item() == pytest.approx(2)
    a, b = torch.tensor(1.0), torch.tensor(-2.0)
    assert ((a + 10) + (b + 10), a + b + 10, a**2 + b**2, (a + b) ** 2, 2 * a + 2 * b) == (19, 9, 5, 1, -2)
    assert (torch.relu(a) + torch.relu(b), torch.relu(a + b)) == (1, 0)


def test_most_numbers_are_wrong_with_two_rules():
    H, W2 = torch.relu(example.X @ example.W1), example.W2
    (even, odd), (top, bottom) = nb06_two_layers.DEALT, W2.chunk(2)
    for first, second in ((top, bottom), (bottom, top), (W2[odd], W2[even])):
        assert (H[:, even] @ first + H[:, odd] @ second != H @ W2).float().mean() > 0.5


# 07b


@pytest.mark.parametrize(
    "layouts",
    [
        ("Shard(1)", "Shard(1)", "Partial"),
        ["shard(1)", "Shard 1", "partial()"],
        [Shard(1), Shard(1), Partial()],
        [Shard(dim=1), "Shard(1)", Partial("sum")],
    ],
)
def test_the_best_layouts_in_any_form_are_right(layouts):
    assert said_right("07b-beat", layouts) == ()


def test_layouts_are_right_where_no_plan_is_cheaper():
    """All 64 lists, held against every plan that there is."""
    rows = Shard(0)
    every = plans.every_plan(
        nb07b_planner.STEPS, nb07b_planner.SHAPES, start=rows, end=rows, memory_limit=nb07b_planner.LIMIT
    )
    cheapest = {
        tuple(str_of(choice.output.value) for choice in each.choices)
        for each in every
        if each.price.ticks == every[0].price.ticks
    }
    for layouts in itertools.product(map(str_of, PLACEMENTS), repeat=3):
        feedback = exercises.check("07b-beat", list(layouts))
        assert (feedback.status == "right") == (layouts in cheapest), feedback.text
        assert feedback.sentences[0]


@pytest.mark.parametrize("layouts", [["Replicate"] * 3, ["Shard(0)"] * 3])
def test_another_list_that_is_as_cheap_is_right(layouts, monkeypatch):
    """A planner that finds another list as cheap."""
    real = nb07b_planner._plan
    best = real(None)
    monkeypatch.setattr(nb07b_planner, "_plan", lambda words, *rest: best if words == tuple(layouts) else real(words))
    assert said_right("07b-beat", layouts) == ()


@pytest.mark.parametrize(
    ("layouts", "misconception", "said"),
    [
        ([Shard(0)] * 3, "everything by rows", "It holds 256 bytes of weights, and 128 are allowed."),
        (("Replicate",) * 3, "everything replicated", "256 bytes"),
        (["partial", "replicate", "shard(1)"], "row first", "It takes 40.0 µs"),
        ([Partial(), Partial(), Partial()], "ReLU on partial sums", "in sum 1, and it should be 0"),
        (["Shard(1)", Shard(1), Replicate()], "Y whole", "192 bytes"),
        (["Shard(1)", "Partial", "Partial"], None, "H: Partial, Y: Partial: there is no such plan. ReLU leaves no"),
        (
            ["Partial", "Shard(1)", "Partial"],
            None,
            "A: Partial, H: Shard(1), Y: Partial: the cheapest such plan takes 30.0 µs and sends all_to_all, "
            "reduce_scatter, reduce_scatter, all_gather, all_gather, all_to_all. There is one that takes 20.0 µs.",
        ),
        (
            ["Replicate", "Shard(1)", "Partial"],
            None,
            "a rank holds at least 192 bytes of weights for that, and 128 are allowed.",
        ),
        (["Shard(2)", "Shard(1)", "Partial"], None, 'A: a placement is needed, one of "Replicate", "Shard(0)"'),
        (["Shard(1)", "Shard(1)", 1], None, "Y: a placement is needed"),
        (["Column", "ReLU", "Row"], None, "This is the text “Column”."),
        (["Shard(1)", "Shard(1)", Partial("avg")], None, "This is an object of type Partial."),
        (["Shard(1)", "Partial"], None, "A list of three words is needed, one for each of A, H and Y."),
        (["Shard(1)"] * 4, None, "This is [the text"),
        ("Shard(1), Shard(1), Partial", None, "This is the text “Shard(1), Shard(1), Partial”."),
        ({"A": "Shard(1)", "H": "Shard(1)", "Y": "Partial"}, None, "This is an object of type dict."),
    ],
)
def test_what_is_said_of_layouts(layouts, misconception, said):
    name, text = said_wrong("07b-beat", layouts)
    assert (name, said in text) == (misconception, True), text


def test_layouts_that_are_left_open_wait():
    assert exercises.check("07b-beat", ["Shard(1)", ..., ...]).status == "unattempted"


def test_what_is_said_of_large_matrices_and_of_the_toy():
    large = plans.plan(nb07b_planner.STEPS, nb07b_planner.LARGE, ranks=8, dtype=torch.bfloat16)
    assert large.foretold(), "the planner cuts large matrices with no limit at all"
    cut = plans.plan(nb07b_planner.STEPS, nb07b_planner.SHAPES, memory_limit=nb07b_planner.LIMIT)
    assert [each.kind for each in cut.foretold()] == ["all_reduce", "all_reduce"]
    assert f"{1e6 * cut.seconds:.0f}" == "20"
    assert nb07b_planner.BYTES == 256


def test_the_first_check_does_not_wait_for_placements():
    script = (
        "import sys; from tpviz import exercises; exercises.ids(); print('torch.distributed.tensor' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
