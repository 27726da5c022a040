"""The exercises of 10: other ways to be right, and wrong answers and what is said to them."""

import pytest
import torch
from answers import said_right, said_wrong

import tpviz
from tpviz import exercises


def by_index(comm, WQKV):
    width = WQKV.shape[1] // 3
    share = width // comm.world_size
    columns = torch.arange(3 * width).unflatten(0, (3, width))[:, comm.rank * share : (comm.rank + 1) * share]
    return WQKV[:, columns.flatten()]


def by_chunks(comm, WQKV):
    return torch.cat([part.chunk(comm.world_size, dim=1)[comm.rank] for part in WQKV.chunk(3, dim=1)], dim=1)


@pytest.mark.parametrize("program", [by_index, by_chunks])
def test_each_part_is_cut(program):
    assert said_right("10-by-head", program) == ()


def test_a_contiguous_cut_is_named():
    name, text = said_wrong("10-by-head", lambda comm, WQKV: WQKV.chunk(comm.world_size, dim=1)[comm.rank])
    assert name == "contiguous"
    assert "Nothing fails; the numbers are another model's" in text


def test_K_and_V_forgotten_is_a_shape():
    name, text = said_wrong("10-by-head", lambda comm, WQKV: tpviz.shard(WQKV.chunk(3, dim=1)[0], 1, comm))
    assert name is None
    assert "shape" in text


@pytest.mark.parametrize(
    ("answer", "name"), [((4, 4), "one for each matrix"), ([2, 4], "twice backward"), ([0, 0], None), ([5, 1], None)]
)
def test_ledgers(answer, name):
    assert said_wrong("10-ledger", answer)[0] == name
    assert exercises.get("10-ledger").reference == [2, 2]


def by_pairs(comm, dKi):
    other = comm.rank ^ 1
    theirs = comm.sendrecv(dKi, dst=other, src=other)
    return dKi + theirs if comm.rank < other else theirs + dKi


def test_two_ranks_may_tell_each_other():
    assert said_right("10-shared", by_pairs) == ()


def test_an_all_reduce_over_all_mixes_heads():
    name, text = said_wrong("10-shared", lambda comm, dWKi: comm.all_reduce(dWKi, phase="backward"))
    assert name == "over all ranks"
    assert "other heads" in text


def test_gathering_every_head_sends_too_much():
    def gathered(comm, dWKi):
        every = comm.all_gather(dWKi.unsqueeze(0), dim=0)
        first = comm.rank // 2 * 2
        return every[first] + every[first + 1]

    name, text = said_wrong("10-shared", gathered)
    assert name is None
    assert "one rank sends 96 bytes, and 32 will do" in text


def test_a_part_for_each_rank_and_features_dealt_are_named():
    assert said_wrong("10-by-head", lambda comm, WQKV: WQKV.chunk(3, dim=1)[comm.rank])[0] == "a part for each rank"

    def dealt(comm, WQKV):
        return torch.cat([part[:, comm.rank :: comm.world_size] for part in WQKV.chunk(3, dim=1)], dim=1)

    assert said_wrong("10-by-head", dealt)[0] == "features dealt"
