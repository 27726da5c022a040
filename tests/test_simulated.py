"""What each collective returns, on any number of ranks, and what the trace says of it."""

import json

import pytest
import torch
from torch.distributed.tensor import Partial, Replicate, Shard

import tpviz
from tpviz.chunking import chunk_offsets, chunk_sizes

RANKS = (1, 2, 3, 4, 8)


def data(rank, *shape):
    """Rank-dependent, never symmetric, unique and exact."""
    return (100 * rank + torch.arange(int(torch.tensor(shape).prod()))).reshape(shape).float()


def pointers(outputs):
    return [output.untyped_storage().data_ptr() for output in outputs if output.numel()]


@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize("op", ["sum", "mean", "max", "min"])
def test_all_reduce(ranks, op):
    inputs = [data(rank, 3, 5) for rank in range(ranks)]
    reduce = {
        "sum": lambda t: t.sum(0),
        "mean": lambda t: t.mean(0),
        "max": lambda t: t.amax(0),
        "min": lambda t: t.amin(0),
    }
    expected = reduce[op](torch.stack(inputs))

    def program(comm):
        x = inputs[comm.rank].clone()
        before = x.clone()
        result = comm.all_reduce(x, op=op)
        assert torch.equal(x, before)
        return result

    run = tpviz.run(program, ranks=ranks)
    assert all(torch.equal(output, expected) for output in run.outputs)
    assert len(set(pointers(run.outputs))) == ranks
    (event,) = run.trace
    assert (event.kind, event.ranks, event.phase) == ("all_reduce", tuple(range(ranks)), "other")
    assert (event.shape, event.dtype, event.payload_bytes) == ((3, 5), torch.float32, 60)
    assert event.wire_bytes == pytest.approx(2 * (ranks - 1) / ranks * 60)
    assert event.layout_after == Replicate()
    assert event.layout_before == Partial("avg" if op == "mean" else op)


@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize("size", [1, 6, 8])
@pytest.mark.parametrize("dim", [0, 1, -1])
def test_all_gather_and_reduce_scatter_follow_the_chunk_rule(ranks, size, dim):
    shape = [3, 5]
    shape[dim] = size
    whole = data(7, *shape)
    sizes, offsets = chunk_sizes(size, ranks), chunk_offsets(size, ranks)

    def gather(comm):
        return comm.all_gather(whole.narrow(dim, offsets[comm.rank], sizes[comm.rank]).clone(), dim=dim)

    run = tpviz.run(gather, ranks=ranks)
    assert all(torch.equal(output, whole) for output in run.outputs)
    assert len(set(pointers(run.outputs))) == ranks
    (event,) = run.trace
    assert (event.shape, event.payload_bytes) == (tuple(shape), whole.nbytes)
    assert event.wire_bytes == pytest.approx((ranks - 1) / ranks * whole.nbytes)
    assert (event.layout_before, event.layout_after) == (Shard(dim % 2), Replicate())

    run = tpviz.run(lambda comm: comm.reduce_scatter(whole * (comm.rank + 1), dim=dim), ranks=ranks)
    total = whole * sum(range(1, ranks + 1))
    for rank, output in enumerate(run.outputs):
        assert torch.equal(output, total.narrow(dim, offsets[rank], sizes[rank]))
    assert run.trace[0].shape == tuple(shape)
    assert (run.trace[0].layout_before, run.trace[0].layout_after) == (Partial(), Shard(dim % 2))


@pytest.mark.parametrize("ranks", RANKS)
def test_broadcast(ranks):
    src = ranks - 1
    run = tpviz.run(lambda comm: comm.broadcast(data(comm.rank, 2, 3), src=src), ranks=ranks)
    assert all(torch.equal(output, data(src, 2, 3)) for output in run.outputs)
    assert len(set(pointers(run.outputs))) == ranks
    assert run.trace[0].wire_bytes == (24.0 if ranks > 1 else 0.0)
    assert isinstance(run.trace[0].wire_bytes, float)


@pytest.mark.parametrize("ranks", RANKS)
def test_all_to_all_turns_one_cut_into_the_other(ranks):
    whole = data(0, 6, 8)
    sizes, offsets = chunk_sizes(6, ranks), chunk_offsets(6, ranks)

    def program(comm):
        rows = whole.narrow(0, offsets[comm.rank], sizes[comm.rank])
        return comm.all_to_all(rows, split_dim=1, concat_dim=0)

    run = tpviz.run(program, ranks=ranks)
    for rank, output in enumerate(run.outputs):
        columns, begins = chunk_sizes(8, ranks), chunk_offsets(8, ranks)
        assert torch.equal(output, whole.narrow(1, begins[rank], columns[rank]))
    assert (run.trace[0].layout_before, run.trace[0].layout_after) == (Shard(0), Shard(1))


@pytest.mark.parametrize("ranks", [2, 3, 4, 8])
def test_a_ring_of_sendrecv(ranks):
    def program(comm):
        x = data(comm.rank, 2)
        for _ in range(comm.world_size):
            x = comm.sendrecv(x, dst=(comm.rank + 1) % comm.world_size, src=(comm.rank - 1) % comm.world_size)
        return x

    run = tpviz.run(program, ranks=ranks)
    assert all(torch.equal(output, data(rank, 2)) for rank, output in enumerate(run.outputs))
    assert len(run.trace) == ranks**2
    assert {event.ranks for event in run.trace} == {(rank, (rank + 1) % ranks) for rank in range(ranks)}
    assert all(event.kind == "send" and event.wire_bytes == 8.0 for event in run.trace)


def test_send_and_recv():
    def program(comm):
        if comm.rank == 0:
            comm.send(data(0, 3), dst=1)
            return comm.recv(src=1)
        received = comm.recv(src=0)
        comm.send(2 * received, dst=0)
        return received

    run = tpviz.run(program)
    assert torch.equal(run.outputs[1], data(0, 3))
    assert torch.equal(run.outputs[0], 2 * data(0, 3))
    assert [event.ranks for event in run.trace] == [(0, 1), (1, 0)]


def test_rows_and_columns_of_a_mesh():
    def program(comm):
        row, column = comm.split(comm.rank // 2), comm.split(comm.rank % 2)
        x = data(comm.rank, 2)
        return row.ranks, column.ranks, row.all_reduce(x, phase="forward"), column.all_reduce(x, phase="gradients")

    run = tpviz.run(program, ranks=4)
    assert [output[0] for output in run.outputs] == [(0, 1), (0, 1), (2, 3), (2, 3)]
    assert [output[1] for output in run.outputs] == [(0, 2), (1, 3), (0, 2), (1, 3)]
    for rank, output in enumerate(run.outputs):
        assert torch.equal(output[2], data(rank, 2) + data(rank ^ 1, 2))
        assert torch.equal(output[3], data(rank, 2) + data(rank ^ 2, 2))
    assert [(event.phase, event.ranks) for event in run.trace] == [
        ("forward", (0, 1)),
        ("forward", (2, 3)),
        ("gradients", (0, 2)),
        ("gradients", (1, 3)),
    ]


def test_the_baton_passes_in_rank_order():
    order = []

    def program(comm):
        for step in range(3):
            order.append((step, comm.rank))
            comm.barrier()

    run = tpviz.run(program, ranks=4)
    assert order == [(step, rank) for step in range(3) for rank in range(4)]
    assert [event.payload_bytes for event in run.trace] == [0, 0, 0]


def test_float_sums_run_in_rank_order_and_repeat_bit_by_bit():
    values = [torch.tensor([1e8]), torch.tensor([1.0]), torch.tensor([-1e8])]
    first, second = (tpviz.run(lambda comm: comm.all_reduce(values[comm.rank]), ranks=3).outputs for _ in range(2))
    expected = (values[0] + values[1]) + values[2]
    assert all(torch.equal(output, expected) for output in first + second)


def test_events_name_the_learners_line_also_behind_a_module_and_in_backward():
    class Layer(torch.nn.Module):
        def __init__(self, comm):
            super().__init__()
            self.comm = comm

        def forward(self, x):
            return tpviz.copy_to_region(x, self.comm)  # the line

    def program(comm):
        x = torch.ones(2, requires_grad=True)
        Layer(comm)(x).sum().backward()

    (event,) = tpviz.run(program).trace
    line = Layer.forward.__code__.co_firstlineno + 1
    assert event.source.endswith(f"test_simulated.py:{line}")
    assert event.phase == "backward"


def test_the_trace_as_json_text_and_html():
    run = tpviz.run(lambda comm: comm.all_reduce(data(comm.rank, 3, 4), phase="forward"))
    (row,) = json.loads(run.trace.to_json())
    assert row["kind"] == "all_reduce"
    assert (row["shape"], row["payload_bytes"], row["wire_bytes"]) == ([3, 4], 48, 48.0)
    assert row["layout_before"] == "Partial(sum)"
    assert "48 B" in repr(run.trace)
    assert "wire" not in repr(run.trace)
    assert "wire" in run.trace.table("wire_bytes").text()
    assert "<table" in run.trace._repr_html_()
    with pytest.raises(ValueError, match="columns are"):
        run.trace.table("colour")


def test_a_group_of_one_sends_nothing():
    run = tpviz.run(lambda comm: comm.split(comm.rank).all_reduce(data(comm.rank, 2)))
    assert [event.wire_bytes for event in run.trace] == [0.0, 0.0]
    assert [event.payload_bytes for event in run.trace] == [8, 8]
