"""Real ranks, as ratios measured in one run: ``python -m benchmarks.distributed [--backend nccl]``.

Forward and backward of the two-layer MLP on two processes, three times the same: with tpviz's operators (which check
every collective), with a hand-written pair of ``autograd.Function`` over ``torch.distributed`` (which checks nothing),
and with PyTorch's ``parallelize_module``. The three take turns in the same processes, and what is printed are medians.
Further: the first run from a Jupyter kernel, which starts the processes, and the runs after it.
"""

from __future__ import annotations

import argparse
import math
import statistics
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from jupyter_client.manager import start_new_kernel
from torch import Tensor, nn
from torch.autograd import Function
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

import tpviz
from tpviz.communicator import Communicator

RANKS = 2


class Size(NamedTuple):
    """A two-layer MLP: X of rows x width, W1 of width x hidden, W2 of hidden x width."""

    rows: int
    width: int
    hidden: int
    rounds: int
    against_pair: float
    """The goal for tpviz's time over the hand-written pair's."""
    against_dtensor: float | None
    """The goal for tpviz's time over DTensor's."""


ON_CPUS = [Size(3, 4, 8, 600, 1.1, 0.5), Size(64, 512, 2048, 150, 1.3, None), Size(256, 1024, 4096, 60, 1.1, 1.0)]
ON_GPUS = [*ON_CPUS, Size(2048, 4096, 16384, 100, 1.1, 1.0), Size(8192, 8192, 32768, 20, 1.1, 1.0)]

Step = Callable[[], Any]


class _Copy(Function):
    """f, as Megatron-LM writes it: identity forward, all-reduce backward."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        grad = grad.contiguous()
        dist.all_reduce(grad)
        return grad


class _Reduce(Function):
    """g, as Megatron-LM writes it: all-reduce forward, in place; identity backward."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        dist.all_reduce(x)
        return x

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        return grad


def steps(comm: Communicator, size: Size, dtype: torch.dtype) -> dict[str, Step]:
    """Return the three ways to do one step."""
    generator = torch.Generator().manual_seed(1)

    def whole(*shape: int) -> Tensor:
        return (torch.randn(shape, generator=generator) / math.sqrt(shape[0])).to(comm.device, dtype)

    rows, width, hidden = size[:3]
    x, dz = whole(rows, width).requires_grad_(), whole(rows, width)
    w1, w2 = whole(width, hidden), whole(hidden, width)
    w1_own = tpviz.shard(w1, 1, comm).requires_grad_()
    w2_own = tpviz.shard(w2, 0, comm).requires_grad_()
    dense = nn.Sequential(nn.Linear(width, hidden, bias=False), nn.ReLU(), nn.Linear(hidden, width, bias=False))
    dense[0].weight.data, dense[2].weight.data = w1.T.clone(), w2.T.clone()
    plan = {"0": ColwiseParallel(), "2": RowwiseParallel()}
    model = parallelize_module(dense, init_device_mesh(comm.device.type, (RANKS,)), plan)

    def ours() -> Tensor:
        return tpviz.reduce_from_region(torch.relu(tpviz.copy_to_region(x, comm) @ w1_own) @ w2_own, comm)

    def pair() -> Tensor:
        copied = _Copy.apply(x)  # type: ignore[no-untyped-call]
        return _Reduce.apply(torch.relu(copied @ w1_own) @ w2_own)  # type: ignore[no-any-return, no-untyped-call]

    def step(forward: Callable[[], Tensor], *leaves: Tensor) -> Callable[[], Tensor]:
        def once() -> Tensor:
            for leaf in leaves:
                leaf.grad = None
            forward().backward(dz)  # type: ignore[no-untyped-call]
            assert x.grad is not None
            return x.grad

        return once

    return {
        "tpviz": step(ours, x, w1_own, w2_own),
        "pair": step(pair, x, w1_own, w2_own),
        "dtensor": step(lambda: model(x), x, *model.parameters()),
    }


def measure(comm: Communicator, size: Size, dtype: torch.dtype) -> dict[str, float]:
    """Return the median seconds of each way, on this rank."""
    ways = steps(comm, size, dtype)
    answers = {name: way() for name, way in ways.items()}
    tolerance = 1e-4 if dtype == torch.float32 else 5e-2
    for name, answer in answers.items():
        scale = answers["pair"].abs().max()
        assert (answer - answers["pair"]).abs().max() <= tolerance * scale, f"{name} computes something else"
    times: dict[str, list[float]] = {name: [] for name in ways}
    for _round in range(size.rounds):
        for name, way in ways.items():
            comm.barrier()
            start = time.perf_counter()
            way()
            if comm.device.type == "cuda":
                torch.cuda.synchronize()
            times[name].append(time.perf_counter() - start)
    return {name: statistics.median(some) for name, some in times.items()}


CELL = """
import time, tpviz
from tpviz.example import X
start = time.perf_counter()
tpviz.run(lambda comm: comm.all_reduce(X), backend="gloo")
print(time.perf_counter() - start)
"""


def from_a_kernel(runs: int = 6) -> list[float]:
    """Return the seconds of runs one after the other in a new Jupyter kernel; the first starts the processes."""
    manager, client = start_new_kernel(kernel_name="python3")
    seconds: list[float] = []

    def hear(message: dict[str, Any]) -> None:
        if message["header"]["msg_type"] == "stream":
            seconds.append(float(message["content"]["text"]))

    try:
        for _run in range(runs):
            client.execute_interactive(CELL, output_hook=hear, timeout=60)
    finally:
        client.stop_channels()
        manager.shutdown_kernel()
    return seconds


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backend", choices=["gloo", "nccl"], default="gloo")
    backend = parser.parse_args().backend
    sizes, dtype = (ON_GPUS, torch.bfloat16) if backend == "nccl" else (ON_CPUS, torch.float32)
    print(f"{RANKS} ranks, {backend}, {str(dtype)[6:]}; median of a step in ms, forward and backward")
    heads = ("tpviz", "pair", "DTensor", "/ pair", "goal", "/ DTensor", "goal")
    print("rows x width x hidden".ljust(24) + "".join(f"{head:>10}" for head in heads))
    for size in sizes:
        outputs = tpviz.run(measure, ranks=RANKS, backend=backend, args=(size, dtype)).outputs
        tp, pair, dtensor = (max(output[name] for output in outputs) for name in ("tpviz", "pair", "dtensor"))
        goal = "" if size.against_dtensor is None else f"{size.against_dtensor:.1f}"
        name = f"{size.rows} x {size.width} x {size.hidden}".ljust(24)
        times = "".join(f"{1e3 * seconds:10.2f}" for seconds in (tp, pair, dtensor))
        ratios = f"{tp / pair:10.2f}{size.against_pair:10.1f}{tp / dtensor:10.2f}{goal:>10}"
        print(name + times + ratios, flush=True)
    tpviz.shutdown()
    if backend == "gloo":
        first, *others = from_a_kernel()
        print(f"from a kernel: first run {first:.2f} s (goal 3.5), then {statistics.median(others):.3f} s (goal 0.2)")


if __name__ == "__main__":
    main()
