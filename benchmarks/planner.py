"""Speed of the planner: ``python -m benchmarks.planner`` prints how long it takes for 10, 20 and 40 operators.

Chains, blocks with a norm and a residual connection, and gated MLPs, on 8 ranks; without a limit of memory, and where a
rank may hold half of the weights, on a fast and on a slow link. No two blocks are equally wide, so that few plans hold
equally much. Printed are medians in ms over rounds in which every network is planned once; pinned to one core, and of
the thread's own time, so that what else runs on the machine counts little. The bound is 200 ms for 40 operators.
"""

import os
import statistics
import time
from collections.abc import Callable, Iterator
from math import prod
from typing import NamedTuple

from tpviz.costs import Link
from tpviz.planner import Prices
from tpviz.plans import NODE, plan

BOUND = 200.0
ROUNDS = 15
RANKS = 8
SIZES = (10, 20, 40)
ROWS, FEATURES, HIDDEN = 2048, 4096, 8192
LINKS = {"200 GB/s": NODE, "2 GB/s": Prices(Link(NODE.link.latency, 2e9), NODE.flops)}

Steps = list[tuple[str, ...]]
Shapes = dict[str, tuple[int, ...]]

# The operators of a block, with their inputs: "x" is what the block is given, a number the output of one of its own
# steps; weights are added.
CHAIN = (("matmul", "x"), ("relu", "0"), ("matmul", "1"))
RESIDUAL = (("rms_norm", "x"), ("matmul", "0"), ("gelu", "1"), ("matmul", "2"), ("add", "x", "3"))
GATED = (("matmul", "x"), ("matmul", "x"), ("silu", "0"), ("multiply", "2", "1"), ("matmul", "3"))
# As in Llama: three tensors wait at once.
LLAMA = (
    *(("rms_norm", "x"), ("matmul", "0"), ("matmul", "0"), ("silu", "1")),
    *(("multiply", "3", "2"), ("matmul", "4"), ("add", "x", "5")),
)
BLOCKS = {"chain": CHAIN, "residual": RESIDUAL, "gated": GATED, "gated, residual": LLAMA}


class Question(NamedTuple):
    """What the planner is asked, in words; ``operators`` is how many."""

    network: str
    limit: str
    link: str
    operators: int


def network(block: tuple[tuple[str, ...], ...], operators: int) -> tuple[Steps, Shapes]:
    """Return blocks in a row; where the next one would be too long, ReLUs follow."""
    steps: Steps = []
    shapes: Shapes = {"X": (ROWS, FEATURES)}
    given, last_matmul = "X", max(number for number, step in enumerate(block) if step[0] == "matmul")
    while len(steps) + len(block) <= operators:
        base = len(steps)
        hidden = HIDDEN + 64 * base
        for number, (operator, *inputs) in enumerate(block):
            names = [given if name == "x" else f"T{base + int(name)}" for name in inputs]
            if operator in ("matmul", "rms_norm"):
                names.append(f"W{base + number}")
                wide = (hidden, FEATURES) if number == last_matmul else (FEATURES, hidden)
                shapes[names[-1]] = wide if operator == "matmul" else (FEATURES,)
            steps.append((f"T{base + number}", operator, *names))
        given = steps[-1][0]
    while len(steps) < operators:
        steps.append((f"T{len(steps)}", "relu", steps[-1][0]))
    return steps, shapes


def questions() -> Iterator[tuple[Question, Callable[[], object]]]:
    """Yield what is asked, with the call."""
    for name, block in BLOCKS.items():
        for operators in SIZES:
            steps, shapes = network(block, operators)
            half = 4 * sum(prod(shape) for given, shape in shapes.items() if given != "X") / 2
            for words, limit in (("none", None), ("half", half)):
                for link, prices in LINKS.items():
                    yield Question(name, words, link, operators), _asked(steps, shapes, limit, prices)


def _asked(steps: Steps, shapes: Shapes, limit: float | None, prices: Prices) -> Callable[[], object]:
    return lambda: plan(steps, shapes, ranks=RANKS, memory_limit=limit, prices=prices)


def medians() -> dict[Question, float]:
    """How long each answer takes, in ms."""
    asked = dict(questions())
    times: dict[Question, list[float]] = {question: [] for question in asked}
    for _round in range(ROUNDS):
        for question, ask in asked.items():
            start = time.thread_time()
            ask()
            times[question].append(1e3 * (time.thread_time() - start))
    return {question: statistics.median(values) for question, values in times.items()}


def main() -> None:
    """Measure and print."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    found = medians()
    print(f"{'ms':18}{'limit':8}{'link':10}" + "".join(f"{operators:>4} operators" for operators in SIZES))
    for name, limit, link in dict.fromkeys(question[:3] for question in found):
        row = (found[Question(name, limit, link, operators)] for operators in SIZES)
        print(f"{name:18}{limit:8}{link:10}" + "".join(f"{value:14.1f}" for value in row))
    slowest = max(value for question, value in found.items() if question.operators == SIZES[-1])
    print(f"slowest of {SIZES[-1]} operators: {slowest:.1f} ms; bound: {BOUND:.0f} ms")


if __name__ == "__main__":
    main()
