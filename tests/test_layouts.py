"""Layouts: round trips, PyTorch's DTensor as the reference, and errors that name the dimension, its size, the ranks."""

import pytest
import torch
import torch.distributed as dist
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor
from torch.testing._internal.distributed.fake_pg import FakeStore

import tpviz
from tpviz.layouts import Partial, Replicate, Shard, comparison, distribute, full, recognise

PLACEMENTS = st.one_of(
    st.just(Replicate()),
    st.integers(0, 1).map(Shard),
    st.sampled_from(["sum", "avg", "max", "min"]).map(Partial),
)


def numbers(rows, columns):
    return (torch.arange(rows * columns).reshape(rows, columns) * 7 % 23 - 9).float()


@settings(max_examples=200, deadline=None, derandomize=True)
@given(placement=PLACEMENTS, ranks=st.integers(1, 9), rows=st.integers(1, 10), columns=st.integers(1, 10))
def test_what_the_ranks_hold_is_the_whole(placement, ranks, rows, columns):
    whole = numbers(rows, columns)
    held = distribute(whole, placement, ranks)
    assert len(held) == ranks
    # A mean of n equal numbers need not be that number in floating point; integers times a power of two are.
    if placement != Partial("avg") or ranks in (1, 2, 4, 8):
        assert torch.equal(full(held, placement), whole)
    held[0].zero_()
    assert torch.equal(whole, numbers(rows, columns))


@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 8])
@pytest.mark.parametrize("size", [1, 4, 6, 8, 9])
@pytest.mark.parametrize("dim", [0, 1])
def test_shards_are_dtensors(ranks, size, dim):
    shape = (size, 5) if dim == 0 else (5, size)
    whole = numbers(*shape)
    held = distribute(whole, Shard(dim), ranks)
    for rank in range(ranks):
        dist.init_process_group("fake", rank=rank, world_size=ranks, store=FakeStore())
        try:
            mesh = init_device_mesh("cpu", (ranks,))
            local = DTensor.from_local(whole, mesh, [Replicate()], run_check=False).redistribute(mesh, [Shard(dim)])
            assert torch.equal(held[rank], local.to_local())
        finally:
            dist.destroy_process_group()


@pytest.mark.parametrize("placement", [Replicate(), Shard(0), Shard(1), Partial()])
def test_layouts_are_recognised_from_the_numbers(placement):
    whole = numbers(4, 6)
    held = distribute(whole, placement, 2)
    if placement == Partial():
        held = [whole - 3, torch.full_like(whole, 3)]
    assert recognise(held, whole) == placement
    held[1] = held[1] + 1
    assert recognise(held, whole) is None


def test_the_comparison_is_read_off_the_runs():
    X, W = numbers(3, 4), numbers(4, 8)

    def column(comm):
        Wi = tpviz.shard(W, 1, comm)
        return X, Wi, X @ Wi

    def row(comm):
        Xi, Wi = tpviz.shard(X, 1, comm), tpviz.shard(W, 0, comm)
        return Xi, Wi, Xi @ Wi

    programs = {"column": tpviz.run(column).outputs, "row": tpviz.run(row).outputs}
    table = comparison(["X", "W", "Y"], [X, W, X @ W], programs)
    assert table.rows[2] == ("Y", "cut by columns, 3×4", "a partial sum on every rank, 3×8")
    assert table.rows[3][1:] == ("side by side", "by adding, entry by entry")
    programs["row"][0][2][0, 0] += 1
    with pytest.raises(ValueError, match="not the whole"):
        comparison(["X", "W", "Y"], [X, W, X @ W], programs)


@pytest.mark.parametrize(
    ("held", "placement", "words"),
    [
        ([torch.ones(2, 3), torch.ones(2, 2)], Shard(0), ["rank 1", "2×2", "2×3"]),
        ([torch.ones(2, 3), torch.ones(2, 1)], Shard(1), ["dim 1", "4 over 2 ranks", "[2, 2]"]),
        ([torch.ones(2, 3), torch.ones(3, 2)], Partial(), ["rank 1"]),
        ([torch.ones(2, 3), 2 * torch.ones(2, 3)], Replicate(), ["rank 1", "[0, 0]"]),
        ([torch.ones(2, 3)], Shard(2), ["dim=2", "2×3"]),
        ([torch.ones(2, 3)], Partial("product"), ["product"]),
    ],
)
def test_what_cannot_be_is_refused_in_words(held, placement, words):
    with pytest.raises(ValueError) as caught:  # noqa: PT011  the words are checked below
        full(held, placement)
    for word in words:
        assert word in str(caught.value)


@pytest.mark.parametrize("placement", ["Shard(0)", None, 0])
def test_only_pytorchs_placements(placement):
    for attempt in (lambda: distribute(torch.ones(2), placement, 2), lambda: full([torch.ones(2)], placement)):
        with pytest.raises(TypeError, match="no placement"):
            attempt()


def test_shard_is_a_copy_of_this_ranks_slice():
    whole = numbers(5, 6).requires_grad_()

    def program(comm):
        mine = tpviz.shard(whole, 1, comm)
        assert not mine.requires_grad
        assert mine.is_contiguous()
        return mine

    outputs = tpviz.run(program, ranks=4).outputs
    assert [tuple(output.shape) for output in outputs] == [(5, 2), (5, 2), (5, 2), (5, 0)]
    assert torch.equal(torch.cat(outputs, dim=1), whole.detach())
