"""The cost model, its speed and its errors on this machine: ``python -m benchmarks.cost [--backend nccl]``.

How long a map of 200 × 200 step times takes: each point is another size of the model and another link. Printed are
medians in ms over rounds; pinned to one core, and of the thread's own time, so that what else runs on the machine
counts little. The bound is 50 ms.

How near the model comes to steps of the two-layer MLP on two ranks of this machine, whose parameters are fitted to
operators and AllReduces timed in the same rounds. None of these steps is fitted to. The goal is a median error of 15%.
"""

import argparse
import os
import statistics
import time

import numpy as np

import tpviz
from tpviz.costs import Link
from tpviz.machines import DGX_A100
from tpviz.measuring import Size, measure_with, predict
from tpviz.steps import step
from tpviz.strategies import Strategy
from tpviz.transformers import Transformer

BOUND = 50.0
ROUNDS = 30
POINTS = 200
GOAL = 0.15
MEASURED_SECONDS = 40.0
"""Of which the steps that are held out take more than half."""
RANKS = 2
HELD_OUT = [
    Size(3, 4, 8),
    Size(24, 48, 192),
    Size(48, 96, 384),
    Size(64, 128, 512),
    Size(96, 192, 768),
    Size(32, 320, 1280),
    Size(128, 240, 1024),
    Size(96, 384, 1536),
    Size(192, 384, 768),
    Size(512, 240, 1024),
    Size(160, 512, 1536),
    Size(224, 448, 1792),
    Size(64, 768, 3072),
    Size(320, 640, 1280),
    Size(384, 512, 2048),
    Size(256, 640, 2560),
]
"""Rows × width × hidden. No matmul and no payload of these is timed by itself."""
LARGER_ON_GPUS = 4
"""On GPUs each dimension is larger."""
STRATEGIES = {
    "TP": Strategy(8),
    "TP, sequence parallel": Strategy(8, sequence_parallel=True),
    "FSDP": Strategy(1, 8, 3),
    "TP × FSDP": Strategy(4, 2, 3),
}


def median(strategy: Strategy) -> float:
    """How long the map takes, in ms."""
    hidden, bandwidth = np.linspace(512, 16384, POINTS)[None, :], np.geomspace(1e9, 1e12, POINTS)[:, None]
    model, machine = Transformer(hidden, 32, 32, 2048), DGX_A100._replace(inside=Link(3e-6, bandwidth))
    times = []
    for _round in range(ROUNDS):
        start = time.thread_time()
        _map = step(model, machine, strategy, 1).total
        times.append(1e3 * (time.thread_time() - start))
    return statistics.median(times)


def map_times() -> None:
    """Print how long a map takes."""
    cores = os.sched_getaffinity(0) if hasattr(os, "sched_setaffinity") else set()
    if cores:
        os.sched_setaffinity(0, {min(cores)})
    measured = {name: median(strategy) for name, strategy in STRATEGIES.items()}
    if cores:
        os.sched_setaffinity(0, cores)
    for name, time_ms in measured.items():
        print(f"{name:24}{time_ms:8.2f} ms")
    print(f"slowest: {max(measured.values()):.2f} ms; bound: {BOUND:.0f} ms")


def errors_here(backend: str) -> None:
    """Measure this machine, and print what the model predicts of other sizes beside what they take."""
    factor = LARGER_ON_GPUS if backend == "nccl" else 1
    sizes = [Size(*(factor * side for side in size)) for size in HELD_OUT]
    if hasattr(os, "getloadavg"):
        print(f"\nload before: {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores, of which the ranks need {RANKS}")
    measured, times = measure_with(sizes, RANKS, backend, MEASURED_SECONDS)
    tpviz.shutdown()
    print(f"\n{RANKS} ranks, {backend}, {str(measured.machine.dtype)[6:]}; fitted to operators and AllReduces:")
    print(measured.table())
    print("\nheld out: a step in ms, forward and backward; medians")
    heads = ("predicted", "measured", "error", "1 rank:", "measured", "error")
    print("rows x width x hidden".ljust(24) + "".join(f"{head:>11}" for head in heads))
    errors: dict[int, list[float]] = {RANKS: [], 1: []}
    for size in sizes:
        line = f"{size.rows} x {size.width} x {size.hidden}".ljust(24)
        for ranks, own in errors.items():
            predicted, taken = predict(measured, size, ranks).seconds, times[size, ranks]
            own.append(float(predicted) / taken - 1)
            line += f"{1e3 * float(predicted):11.3f}{1e3 * taken:11.3f}{own[-1]:+11.1%}"
        print(line)
    two, one = (statistics.median(map(abs, own)) for own in errors.values())
    print(f"median error of {len(sizes)} sizes on {RANKS} ranks: {two:.1%}; goal: {GOAL:.0%}; on 1 rank: {one:.1%}")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backend", choices=["gloo", "nccl"], default="gloo")
    backend = parser.parse_args().backend
    map_times()
    errors_here(backend)


if __name__ == "__main__":
    main()
