"""Ranks on GPUs: NCCL, one GPU a rank, gives what simulated ranks give; and simulated ranks on one GPU do too."""

import pytest
import torch
from test_failures import fails
from test_real_ranks import numbers

import tpviz
from tpviz.example import W1, W2, X

GPUS = torch.cuda.device_count()
one_gpu = pytest.mark.skipif(GPUS < 1, reason="needs a GPU; this machine has none")
two_gpus = pytest.mark.skipif(GPUS < 2, reason=f"needs 2 GPUs; this machine has {GPUS}")
RANKS = [pytest.param(1, marks=one_gpu), pytest.param(2, marks=two_gpus)]


def mlp(comm):
    x = X.to(comm.device, copy=True).requires_grad_()
    w1, w2 = tpviz.shard(W1, 1, comm).requires_grad_(), tpviz.shard(W2, 0, comm).requires_grad_()
    z = tpviz.reduce_from_region(torch.relu(tpviz.copy_to_region(x, comm) @ w1) @ w2, comm)
    z.backward(X.to(comm.device) - 1)
    return z, x.grad, w1.grad, w2.grad


def on_gpu(program):
    """Let a program see a device of the kind that the ranks have, and check that it computes there."""

    def checked(comm):
        assert comm.device.type == "cuda"
        return program(comm)

    return checked


@pytest.mark.parametrize("ranks", RANKS)
def test_the_mlp(ranks):
    simulated = tpviz.run(mlp, ranks=ranks)
    real = tpviz.run(on_gpu(mlp), ranks=ranks, backend="nccl")
    assert list(real.trace) == list(simulated.trace)
    for mine, its in zip(real.outputs, simulated.outputs, strict=True):
        assert all(torch.equal(one, other) for one, other in zip(mine, its, strict=True))
        assert all(tensor.device.type == "cpu" for tensor in mine)


@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize("columns", [3, 8192])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.int16, torch.complex64], ids=str)
def test_every_collective(dtype, columns, ranks):
    ops = ["sum"] if dtype.is_complex else ["sum", "max", "min"]

    def program(comm):
        x = numbers(comm.rank, 3, columns, dtype=dtype).to(comm.device)
        own = tpviz.shard(numbers(0, 3, columns, dtype=dtype), 1, comm)
        found = [comm.all_reduce(x, op) for op in ops] + [comm.reduce_scatter(x, 1, op) for op in ops]
        found += [comm.all_gather(own, 1), comm.broadcast(x, comm.world_size - 1), comm.all_to_all(own, 0, 1)]
        if comm.world_size > 1:
            found.append(comm.sendrecv(x, 1 - comm.rank, 1 - comm.rank))
        comm.barrier()
        return [tensor.cpu() for tensor in found]

    simulated = tpviz.run(program, ranks=ranks)
    real = tpviz.run(on_gpu(program), ranks=ranks, backend="nccl")
    assert list(real.trace) == list(simulated.trace)
    for mine, its in zip(real.outputs, simulated.outputs, strict=True):
        assert all(torch.equal(one, other) for one, other in zip(mine, its, strict=True))


@two_gpus
def test_failures_end_at_once():
    def raises(comm):
        if comm.rank == 1:
            raise KeyError("weight")
        return comm.all_reduce(X.to(comm.device))

    text, _error = fails(raises, backend="nccl")
    assert "rank 1: KeyError: 'weight'" in text

    def differs(comm):
        return comm.all_reduce(torch.ones(3, 4 + comm.rank, device=comm.device))

    text, _error = fails(differs, tpviz.CollectiveMismatch, backend="nccl")
    assert "shape" in text


@two_gpus
def test_auto_takes_the_gpus():
    assert tpviz.run(lambda comm: comm.device.index, backend="auto").outputs == [0, 1]


@one_gpu
@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_simulated_ranks_on_a_gpu(ranks):
    expected = tpviz.run(mlp, ranks=ranks)
    with torch.device("cuda"):
        found = tpviz.run(on_gpu(mlp), ranks=ranks)
    assert list(found.trace) == list(expected.trace)
    for mine, its in zip(found.outputs, expected.outputs, strict=True):
        assert all(torch.equal(one.cpu(), other) for one, other in zip(mine, its, strict=True))


@one_gpu
def test_random_streams_of_simulated_ranks_on_a_gpu():
    def program(comm):
        torch.cuda.manual_seed(comm.rank)
        first = torch.rand(2, device="cuda")
        comm.barrier()
        return first, torch.rand(2, device="cuda")

    with torch.device("cuda"):
        (one, other), (again, _other) = tpviz.run(program).outputs, tpviz.run(program).outputs
    assert not torch.equal(one[0], other[0])
    assert torch.equal(one[1], again[1])
