"""The exercises of notebook 10: what learners write, right and wrong, and that the answers speak true."""

import pytest
import torch
from answers import said_right, said_wrong

import tpviz
from tpviz.exercises import nb10_block


def one_by_one(comm, W):
    q, k, v = W.chunk(3, dim=1)
    return torch.cat((tpviz.shard(q, 1, comm), tpviz.shard(k, 1, comm), tpviz.shard(v, 1, comm)), 1)


def by_index(comm, W):
    share = W.shape[1] // 3 // comm.world_size
    starts = [part * W.shape[1] // 3 + comm.rank * share for part in range(3)]
    return torch.cat([W[:, start : start + share] for start in starts], 1)


def reshaped(comm, W):
    return W.reshape(len(W), 3, comm.world_size, -1)[:, :, comm.rank].flatten(1)


@pytest.mark.parametrize("program", [one_by_one, by_index, reshaped])
def test_columns_of_a_ranks_heads(program):
    assert said_right("10-cut", program) == ()


def parts_of(comm, W):
    return [tpviz.shard(part, 1, comm) for part in W.chunk(3, dim=1)]


def halves(comm, W):
    """Right on 2 ranks; on 4 it ends in the error of another mistake, a whole part for each rank."""
    return torch.cat([part.chunk(2, dim=1)[comm.rank] for part in W.chunk(3, dim=1)], 1)


Wq, Wk, Wv = torch.randint(-1, 2, (3, 8, 8)).double()


def of_the_notebook(comm, W):
    return torch.cat([tpviz.shard(part, 1, comm) for part in (Wq, Wk, Wv)], 1)


@pytest.mark.parametrize(
    ("program", "misconception", "said"),
    [
        (lambda comm, W: W.chunk(comm.world_size, dim=1)[comm.rank], "contiguous", "rank 1 no Q at all"),
        (lambda comm, W: W.chunk(3, dim=1)[comm.rank], "one part each", "A head needs all three"),
        (lambda comm, W: W.chunk(comm.world_size)[comm.rank], "rows", "4×24, and it should be 8×12"),
        (lambda comm, W: torch.cat(parts_of(comm, W)), "below each other", "24×4"),
        (lambda comm, W: torch.stack(parts_of(comm, W)), None, "it should be 8×12"),
        (lambda comm, W: tuple(parts_of(comm, W)), "a tuple of the three", "in three pieces: a tuple of 3"),
        (parts_of, "a list of the three", "in three pieces: a list of 3"),
        (lambda comm, W: tuple(parts_of(comm, W)[:2]), None, "a tuple of 2"),
        (halves, "two halves on any number of ranks", "Right on 2 ranks. On 4 each part has four pieces"),
        (of_the_notebook, "the notebook's weights", "float64, as the notebook's Wq, Wk and Wv are, and W is float32"),
        (lambda comm, W: of_the_notebook(comm, W)[:4], None, "has shape 4×12; it should be 8×12"),
        (
            lambda comm, W: torch.cat([part[:, comm.rank :: comm.world_size] for part in W.chunk(3, 1)], 1),
            "columns dealt out",
            "tears heads apart",
        ),
        (
            lambda comm, W: torch.cat([tpviz.shard(W[:, : W.shape[1] // 3], 1, comm), W[:, W.shape[1] // 3 :]], 1),
            "K and V whole",
            "8×20, and it should be 8×12",
        ),
        (
            lambda comm, W: torch.stack([p.unflatten(1, (-1, 2)) for p in parts_of(comm, W)], 2).flatten(1),
            "head after head",
            "Megatron-LM stores them so",
        ),
        (lambda comm, W: torch.cat(parts_of(comm, W)[::-1], 1), None, "it should be"),
        (lambda comm, W: W, None, "shape 8×24"),
        (lambda comm, W: None, None, "is None"),
        (lambda W: W, None, "TypeError"),
        (torch.ones(8, 12), None, "needs the function itself"),
    ],
)
def test_no_columns_of_a_ranks_heads(program, misconception, said):
    name, text = said_wrong("10-cut", program)
    assert (name, said in text) == (misconception, True), text


def test_the_contiguous_cut_fits_every_shape_that_the_solution_fits():
    """What makes the mistake silent: on the exercise's cases it never has another shape."""
    for case in nb10_block.CUT.cases():
        right, wrong = (
            tpviz.run(program, ranks=case.ranks, args=case.args).outputs
            for program in (nb10_block.own_columns, lambda comm, W: tpviz.shard(W, 1, comm))
        )
        assert [each.shape for each in right] == [each.shape for each in wrong]


@pytest.mark.parametrize(
    ("name", "answer"),
    [
        ("10-needs", " Nothing"),
        ("10-ledger", (2, 2.0)),
        ("10-ledger", torch.tensor([2, 2])),
        ("10-holders", (0, 0, 1, 1)),
    ],
)
def test_the_same_value_in_another_form_is_right(name, answer):
    assert said_right(name, answer) == ()


@pytest.mark.parametrize(
    ("name", "answer", "misconception", "said"),
    [
        ("10-needs", "K and V", "K and V", "within the head"),
        ("10-needs", "the scores", "the scores", "Softmax runs over tokens"),
        ("10-needs", "the other tokens", "the other tokens", "Tokens do mix"),
        ("10-needs", "Q", None, "“Q” is not one of the choices"),
        ("10-needs", 0, None, "One of these words is needed"),
        ("10-ledger", [4, 4], "one for each layer", "each sends once in all"),
        ("10-ledger", [1, 1], "MLP only", "That is the MLP"),
        ("10-ledger", [2, 4], "shared heads, or Q, K and V each", "Here no head is shared"),
        ("10-ledger", [4, 2], "norms too", "Norms send nothing"),
        ("10-ledger", [2, 0], "forward only", "Backward, each rank has dX through its own heads"),
        ("10-ledger", [1, 2], "one at the end", "a norm of partial sums"),
        ("10-ledger", [2, 1], "one column layer only", "A norm stands between"),
        ("10-ledger", [3, 3], "inside attention", "One each way is too many"),
        ("10-ledger", [5, 5], None, "It is not [5, 5]."),
        ("10-ledger", ["2", "2"], None, "Numbers are needed, without quotes: […, …]."),
        ("10-ledger", 4, None, "An answer of the form […, …] is needed."),
        ("10-holders", [0, 1, 0, 1], "dealt in turn", "it would hold K₁"),
        ("10-holders", [0, 1, 2, 3], "one each", "two heads of K only"),
        ("10-holders", (0, 0, 0, 0), "K0 everywhere", "these read K₁"),
        ("10-holders", [0, 2, 4, 6], "heads of Q", "divide by 4"),
        ("10-holders", [1, 1, 0, 0], None, "It is not [1, 1, 0, 0]."),
        ("10-holders", ["K0", "K0", "K1", "K1"], None, "Numbers are needed, without quotes: […, …, …, …]."),
        ("10-holders", [0, 1], None, "An answer of the form […, …, …, …] is needed."),
    ],
)
def test_what_is_said_of_a_value(name, answer, misconception, said):
    found, text = said_wrong(name, answer)
    assert (found, said in text) == (misconception, True), text
