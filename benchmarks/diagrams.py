"""Speed of the diagrams: ``python -m benchmarks.diagrams`` prints how long each takes to make, on 2, 4 and 8 ranks.

Each figure of the notebooks is made from tensors that are there, down to the image tag that a cell shows. Printed are
medians in ms over rounds in which every figure is made once; pinned to one core, and of the thread's own time, so that
what else runs on the machine counts little. The bound is 2 ms.
"""

import os
import statistics
import time
from collections.abc import Callable

import torch
from torch import Tensor

import tpviz
from tpviz import diagrams, widgets
from tpviz.communicator import Communicator
from tpviz.diagrams import Drawing
from tpviz.example import X4, W, X, dY
from tpviz.layouts import Replicate, Shard, distribute

BOUND = 2.0
ROUNDS = 300


def figures(ranks: int) -> dict[str, Callable[[], Drawing]]:
    """The figures of the notebooks on so many ranks."""
    w_columns, w_rows = distribute(W, Shard(1), ranks), distribute(W, Shard(0), ranks)
    x_columns, x_rows = distribute(X, Shard(1), ranks), distribute(X4, Shard(0), ranks)
    column = tpviz.run(lambda comm: X @ w_columns[comm.rank], ranks)
    column_4 = tpviz.run(lambda comm: X4 @ w_columns[comm.rank], ranks)
    row = tpviz.run(lambda comm: x_columns[comm.rank] @ w_rows[comm.rank], ranks)
    zero = tpviz.run(lambda comm: x_rows[comm.rank] @ W, ranks)
    y, products = X @ W, X[0] * W[:, 1]
    parts = tpviz.run(lambda comm: tpviz.shard(dY, 1, comm) @ tpviz.shard(W, 1, comm).T, ranks)
    dx, dw = dY @ W.T, X.T @ dY
    layers, mesh = widgets.compute_both_layers(ranks), widgets.compute_mesh(ranks, 2)
    numbers = [float(rank) for rank in range(ranks)]

    def exchanged(program: Callable[[Communicator, Tensor], Tensor], length: int = 2) -> Callable[[], Drawing]:
        given = [torch.arange(length, dtype=torch.float32) + 10 * rank for rank in range(ranks)]
        run = tpviz.run(lambda comm: program(comm, given[comm.rank]), ranks)
        return lambda: diagrams.collective(run.trace[0], given, run)

    return {
        "matrices": lambda: diagrams.matrices(X=X, W=W, Y=y),
        "column_parallel": lambda: diagrams.column_parallel(X, W, column),
        "column_parallel, entry": lambda: diagrams.column_parallel(X, W, column, entry=(1, 5)),
        "row_parallel": lambda: diagrams.row_parallel(X, W, row),
        "row_parallel, entry": lambda: diagrams.row_parallel(X, W, row, entry=(0, 1)),
        "matmul, rows": lambda: diagrams.matmul(X4, W, zero, (Shard(0), Replicate(), Shard(0))),
        "inner_product": lambda: diagrams.inner_product(X, W, products, row, y, entry=(0, 1)),
        "concatenation": lambda: diagrams.concatenation(column, y),
        "summation": lambda: diagrams.summation(row, y, entry=(0, 1)),
        "two_cuts": lambda: diagrams.two_cuts(zero, column_4),
        "dense_backward": lambda: diagrams.dense_backward(X, W, y, dx, dw, dY),
        "contributions": lambda: diagrams.contributions(parts, dx, dY, entry=(0, 0)),
        "compared": lambda: diagrams.compared(parts, dx),
        "branches": lambda: diagrams.branches(3, numbers, numbers, 90, numbers, numbers, 60),
        "backward_pair": lambda: widgets.draw_both_layers(layers),
        "mesh": lambda: widgets.draw_mesh(mesh),
        "all_gather": exchanged(lambda comm, x: comm.all_gather(x)),
        "all_reduce": exchanged(lambda comm, x: comm.all_reduce(x)),
        "reduce_scatter": exchanged(lambda comm, x: comm.reduce_scatter(x), length=ranks),
        "broadcast": exchanged(lambda comm, x: comm.broadcast(x)),
        "all_to_all": exchanged(lambda comm, x: comm.all_to_all(x, 0, 0), length=ranks),
    }


def medians(ranks: int) -> dict[str, float]:
    """How long each figure takes, in ms."""
    makers = figures(ranks)
    times: dict[str, list[float]] = {name: [] for name in makers}
    for _round in range(ROUNDS):
        for name, make in makers.items():
            start = time.thread_time()
            _tag = make().html
            times[name].append(1e3 * (time.thread_time() - start))
    return {name: statistics.median(values) for name, values in times.items()}


def main() -> None:
    """Measure and print."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    columns = {ranks: medians(ranks) for ranks in (2, 4, 8)}
    print(f"{'ms':24}" + "".join(f"{ranks:>6} ranks" for ranks in columns))
    for name in columns[2]:
        print(f"{name:24}" + "".join(f"{column[name]:12.2f}" for column in columns.values()))
    slowest = max(max(column.values()) for column in columns.values())
    print(f"slowest: {slowest:.2f} ms; bound: {BOUND:.0f} ms")


if __name__ == "__main__":
    main()
