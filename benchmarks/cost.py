"""Speed of the cost model: ``python -m benchmarks.cost`` prints how long a map of 200 × 200 step times takes.

Each point is another size of the model and another link. Printed are medians in ms over rounds; pinned to one core, and
of the thread's own time, so that what else runs on the machine counts little. The bound is 50 ms.
"""

import os
import statistics
import time

import numpy as np

from tpviz.costs import Link
from tpviz.machines import DGX_A100
from tpviz.steps import step
from tpviz.strategies import Strategy
from tpviz.transformers import Transformer

BOUND = 50.0
ROUNDS = 30
POINTS = 200
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


def main() -> None:
    """Measure and print."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    measured = {name: median(strategy) for name, strategy in STRATEGIES.items()}
    for name, time_ms in measured.items():
        print(f"{name:24}{time_ms:8.2f} ms")
    print(f"slowest: {max(measured.values()):.2f} ms; bound: {BOUND:.0f} ms")


if __name__ == "__main__":
    main()
