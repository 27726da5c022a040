"""Speed of the simulator, as ratios measured in one run: ``python -m benchmarks.simulator``.

The toy two-layer MLP of the notebooks, forward and backward, on simulated ranks, against (a) the same local arithmetic
in a plain loop and (b) PyTorch's ``LocalTensorMode`` on the same program; further: many ranks, what recording costs,
how long each mismatch takes to be found, and what ``import tpviz`` costs. Contestants are interleaved and pinned to one
core, since two cores add more noise than there is to measure; what is printed are medians, and the goals of issue 2.
"""

from __future__ import annotations

import contextlib
import functools
import os
import statistics
import subprocess
import sys
import time
import unittest.mock
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch import Tensor
from torch.autograd import Function
from torch.distributed._local_tensor import LocalTensorMode
from torch.testing._internal.distributed.fake_pg import FakeStore

import tpviz
from tpviz.communicator import Communicator
from tpviz.example import W1, W2, X
from tpviz.simulated import Simulation

DY = torch.arange(12, dtype=torch.float32).reshape(3, 4) - 5
Step = Callable[[], Any]


def program(comm: Communicator) -> tuple[Any, ...]:
    """Run one rank's part of the MLP, as a learner writes it."""
    x = X.clone().requires_grad_()
    w1 = tpviz.shard(W1, 1, comm).requires_grad_()
    w2 = tpviz.shard(W2, 0, comm).requires_grad_()
    y = tpviz.reduce_from_region(torch.relu(tpviz.copy_to_region(x, comm) @ w1) @ w2, comm)
    y.backward(DY)  # type: ignore[no-untyped-call]
    return y, x.grad, w1.grad, w2.grad


def plain_loop(ranks: int) -> tuple[Any, ...]:
    """Run the same local arithmetic in a loop, and add up what the ranks would have added up."""
    size = 8 // ranks
    ys, dxs, weights = [], [], []
    for rank in range(ranks):
        columns = slice(rank * size, (rank + 1) * size)
        x = X.clone().requires_grad_()
        w1 = W1[:, columns].clone().requires_grad_()
        w2 = W2[columns].clone().requires_grad_()
        z = torch.relu(x @ w1) @ w2
        z.backward(DY)  # type: ignore[no-untyped-call]
        ys.append(z.detach())
        dxs.append(x.grad)
        weights.append((w1.grad, w2.grad))
    return sum(ys), sum(dxs), weights


class _LocalCopy(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return _local_sum(grad)


class _LocalReduce(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return _local_sum(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad


def _local_sum(x: Tensor) -> Tensor:
    pending = functional.all_reduce(x, "sum", dist.group.WORLD)  # type: ignore[arg-type]
    return functional.wait_tensor(pending)  # type: ignore[no-any-return, no-untyped-call]


def local_tensor_mode(ranks: int) -> Tensor:
    """Run the same program in LocalTensorMode; return dX."""
    size = 8 // ranks
    with LocalTensorMode(ranks) as mode:
        x = mode.rank_map(lambda rank: X.clone()).requires_grad_()
        w1 = mode.rank_map(lambda rank: W1[:, rank * size : (rank + 1) * size].clone()).requires_grad_()
        w2 = mode.rank_map(lambda rank: W2[rank * size : (rank + 1) * size].clone()).requires_grad_()
        y = _LocalReduce.apply(torch.relu(_LocalCopy.apply(x) @ w1) @ w2)  # type: ignore[no-untyped-call]
        y.backward(mode.rank_map(lambda rank: DY))
        return x.grad  # type: ignore[return-value]


def medians(steps: Sequence[Step], rounds: int) -> list[float]:
    """Return each step's median time in seconds, the steps taking turns."""
    times: list[list[float]] = [[] for _ in steps]
    for step in steps:
        step()
    for _round in range(rounds):
        for step, mine in zip(steps, times, strict=True):
            begin = time.perf_counter()
            step()
            mine.append(time.perf_counter() - begin)
    return [statistics.median(mine) for mine in times]


def row(what: str, measured: float, goal: str, good: bool, detail: str = "") -> None:
    """Print one line of the table."""
    print(f"{what:58} {measured:8.3f}   {goal:12} {'yes' if good else 'NO':4} {detail}")


def on(ranks: int) -> Step:
    """Return the step that runs the program on so many simulated ranks."""
    return lambda: tpviz.run(program, ranks=ranks)


def against_the_loop() -> None:
    """(a) Simulated ranks against a plain loop."""
    for ranks in (2, 4, 8):
        outputs = tpviz.run(program, ranks=ranks).outputs
        assert torch.equal(outputs[0][1], plain_loop(ranks)[1])
        simulated, loop = medians([on(ranks), functools.partial(plain_loop, ranks)], 400)
        detail = f"{simulated * 1e6:.0f} us / {loop * 1e6:.0f} us"
        good = simulated <= 2.5 * loop
        row(f"MLP on {ranks} ranks / the same in a plain loop", simulated / loop, "<= 2.5", good, detail)


def against_local_tensor_mode() -> None:
    """(b) LocalTensorMode against simulated ranks."""
    for ranks, goal in ((2, 8.0), (8, 5.0)):
        dist.init_process_group("fake", rank=0, world_size=ranks, store=FakeStore())
        try:
            theirs: Any = local_tensor_mode(ranks)
            ours = tpviz.run(program, ranks=ranks).outputs
            assert all(torch.equal(theirs._local_tensors[rank], ours[rank][1]) for rank in range(ranks))
            local, simulated = medians([functools.partial(local_tensor_mode, ranks), on(ranks)], 30)
        finally:
            dist.destroy_process_group()
        detail = f"{local * 1e3:.1f} ms / {simulated * 1e3:.2f} ms"
        good = local >= goal * simulated
        row(f"LocalTensorMode / MLP on {ranks} ranks", local / simulated, f">= {goal:g}", good, detail)


def many_ranks() -> None:
    """(c) Time for each rank and collective, on 64 ranks against 2."""

    def hundred(comm: Communicator) -> None:
        x = X
        for _ in range(100):
            x = comm.all_reduce(x)

    many, two = medians([lambda: tpviz.run(hundred, ranks=64), lambda: tpviz.run(hundred, ranks=2)], 15)
    each_of_many, each_of_two = many / 64 / 100, two / 2 / 100
    detail = f"{each_of_many * 1e6:.1f} us / {each_of_two * 1e6:.1f} us"
    ratio = each_of_many / each_of_two
    row("100 collectives: one rank of 64 / one rank of 2", ratio, "<= 1.3", ratio <= 1.3, detail)


def recording() -> None:
    """(d) What recording costs: with it, and with the recorder replaced by nothing."""

    def nothing(*_call: object) -> None:
        return None

    def silent() -> None:
        with unittest.mock.patch.object(Simulation, "_record", nothing):
            tpviz.run(program, ranks=4)

    def recorded() -> None:
        with unittest.mock.patch.object(Simulation, "_record", Simulation._record):
            tpviz.run(program, ranks=4)

    with_it, without = medians([recorded, silent], 400)
    row("MLP on 4 ranks, recorded / not recorded", with_it / without, "<= 1.05", with_it <= 1.05 * without)


def mismatches() -> None:
    """(e) How long the slowest kind of mismatch takes from the start of the run to the error, in milliseconds."""

    def kind(comm: Communicator) -> Any:
        return comm.all_reduce(X) if comm.rank == 0 else comm.all_gather(X)

    def shape(comm: Communicator) -> Any:
        return comm.all_reduce(X if comm.rank == 0 else X[:2])

    def reduction(comm: Communicator) -> Any:
        return comm.all_reduce(X, op="sum" if comm.rank == 0 else "max")

    def returns(comm: Communicator) -> Any:
        return comm.all_reduce(X) if comm.rank == 0 else None

    def raises(comm: Communicator) -> Any:
        return comm.all_reduce(X) if comm.rank == 0 else 1 / 0

    def sends(comm: Communicator) -> Any:
        return comm.send(X, dst=1 - comm.rank)

    def fails(bad: Callable[[Communicator], Any], ranks: int) -> None:
        with contextlib.suppress(tpviz.CollectiveMismatch):
            tpviz.run(bad, ranks=ranks)
            raise AssertionError(bad)

    kinds = (kind, shape, reduction, returns, raises, sends)
    slowest = max(medians([functools.partial(fails, bad, 2) for bad in kinds], 20))
    row("the slowest mismatch, in ms", slowest * 1e3, "<= 10", slowest <= 0.010)


def imports() -> None:
    """(f) ``import tpviz`` against ``import torch``, each in fresh interpreters."""

    def fresh(module: str) -> Step:
        return lambda: subprocess.run([sys.executable, "-c", f"import {module}"], check=True)

    ours, theirs = medians([fresh("tpviz"), fresh("torch")], 9)
    row(
        "import tpviz / import torch", ours / theirs, "<= 1.15", ours <= 1.15 * theirs, f"{ours:.2f} s / {theirs:.2f} s"
    )


def main() -> None:
    """Measure everything and print the table."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    torch.set_num_threads(1)
    print(f"{'what':58} {'measured':>8}   {'goal':12} met")
    for measure in (against_the_loop, against_local_tensor_mode, many_ranks, recording, mismatches, imports):
        measure()


if __name__ == "__main__":
    main()
