"""This machine, measured: times the parts of a step on the ranks at hand, fits the cost model, predicts steps (costs).

The models are those of ``costs.py`` and ``matmuls.py``; what is fitted here are their parameters. They are fitted to
operators and to AllReduces by themselves. Of whole steps only the tiniest is timed, for what an operator costs.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch

from tpviz.communicator import Communicator
from tpviz.costs import Link
from tpviz.fitting import Stretch, Waiting, fit_line, fit_link, fit_matmuls
from tpviz.i18n import N_, _
from tpviz.machines import Machine, group_seconds
from tpviz.matmuls import matmul_seconds
from tpviz.operators import copy_to_region, reduce_from_region
from tpviz.progress import Report, rounds
from tpviz.running import run
from tpviz.steps import Phase
from tpviz.tables import Table, size_text, three

SECONDS = 14.0
"""So long rounds follow each other, in each of which everything is timed: so a busy moment meets all alike."""
_BURST_SECONDS, _FEWEST, _MOST = 0.03, 3, 1000
"""In each round each is done as often as fits in so many seconds, at least and at most so often, and the mean taken:
what is short must not slip through between other programs, which a whole step cannot."""

MATMULS, ELEMENTWISE = 6, 2
"""Operators of a step: each of two matmuls forward is two backward, and ReLU has a backward."""
_RELU_PASSES = 5
"""ReLU reads and writes a matrix; its backward reads two and writes one."""


class Size(NamedTuple):
    """A two-layer MLP: X of rows×width, W1 of width×hidden, W2 of hidden×width."""

    rows: int
    width: int
    hidden: int


class Timed(NamedTuple):
    """What is timed to fit the model, on one kind of device."""

    dtype: torch.dtype
    payloads: tuple[int, ...]
    """Bytes of an AllReduce."""
    matmuls: tuple[tuple[int, int, int], ...]
    entries: tuple[int, ...]
    """Of a ReLU."""


TINY = Size(2, 4, 4)
"""The one step that is timed to be fitted to: it takes what its operators cost beside their work."""
_WORK = (0, 1, 6)
"""How many matmuls of these sizes come before an AllReduce; in a step ranks compute before they meet."""
_BEFORE = (128, 512, 512)


def _cubes(*sides: int) -> tuple[tuple[int, int, int], ...]:
    return tuple((m, k, n) for m in sides[:-1] for k in sides for n in sides)


TIMED = {
    "gloo": Timed(
        torch.float32,
        (64, 1 << 10, 3 << 10, 4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20, 2 << 20),
        (*_cubes(16, 64, 256, 1024), (1024, 16, 1024), (1024, 64, 256), (1024, 256, 64)),
        tuple(1 << power for power in range(14, 23, 2)),
    ),
    "nccl": Timed(
        torch.bfloat16,
        tuple(1 << power for power in range(6, 28, 2)),
        _cubes(64, 256, 1024, 4096),
        tuple(1 << power for power in range(18, 28, 2)),
    ),
}


class Measured(NamedTuple):
    """What was fitted to the times of the ranks at hand; no number of it is a vendor's."""

    ranks: int
    backend: str
    machine: Machine
    """A rank while all of them compute. ``inside`` is the link of the largest payloads."""
    stretches: tuple[Stretch, ...]
    """The link of each payload: α, what the operators and their checks cost included, and the bandwidth."""
    waiting: Waiting
    noise: float
    """By which share the median of a time is above the least of them, the median of all: how busy the machine was."""

    def link(self, payload_bytes: float) -> Link:
        """Return the link as it is for a payload."""
        return next(stretch.link for stretch in self.stretches if payload_bytes <= stretch.up_to)

    def table(self) -> Table:
        """Return what was fitted, in words."""
        rows = []
        for stretch in self.stretches:
            end = (
                _("any") if stretch.up_to == float("inf") else _("to {size}").format(size=size_text(int(stretch.up_to)))
            )
            rows.append([_("α, AllReduce ({payload})").format(payload=end), f"{1e6 * stretch.link.latency:.0f} µs"])
            rows.append([_("1/β, AllReduce ({payload})").format(payload=end), _speed(stretch.link.bandwidth)])
        longest = _("{share:.0%} of it, at most {time} µs").format(
            share=self.waiting.share, time=three(1e6 * self.waiting.longest)
        )
        rows += [
            [_("waiting after computing"), longest],
            [_("matmuls at best"), f"{self.machine.peak / 1e9:.0f} GFLOP/s"],
            [_("size at which they run at half speed"), f"{self.machine.half:.1f}"],
            [_("element-wise work"), _speed(self.machine.stream)],
            [_("an operator beside its work"), f"{1e6 * self.machine.launch:.1f} µs"],
            [_("noise: median above the least"), f"{self.noise:.0%}"],
        ]
        return Table([_("fitted"), _("value")], rows)


def _speed(bandwidth: Any) -> str:
    return _("too quick to tell") if bandwidth > 1e13 else f"{three(float(bandwidth) / 1e9)} GB/s"


Key = tuple[Any, ...]
Job = Callable[[], Any]
Times = dict[Key, float]


def measure(
    ranks: int = 2, backend: str = "gloo", seconds: float = SECONDS, progress: Report | None = None
) -> Measured:
    """Time operators and AllReduces on ``ranks`` ranks for ``seconds`` and fit the model.

    ``backend`` is "gloo" or "nccl". ``progress(seconds, of)`` is called after each round; without it a notebook shows
    a bar. A time is the median of all rounds; in each of them it is the mean of what fits in 30 ms.
    """
    return measure_with([], ranks, backend, seconds, progress)[0]


def measure_with(
    sizes: Sequence[Size],
    ranks: int = 2,
    backend: str = "gloo",
    seconds: float = SECONDS,
    progress: Report | None = None,
) -> tuple[Measured, dict[tuple[Size, int], float]]:
    """Measure, and time steps of ``sizes`` in the same rounds; what is fitted knows nothing of these.

    The second result has the seconds of each size on 1 and on ``ranks`` ranks.
    """
    if backend not in TIMED:
        message = _("backend={backend!r} cannot be measured; expected one of {known}.")
        raise ValueError(message.format(backend=backend, known=", ".join(map(repr, TIMED))))
    if ranks < 2:
        raise ValueError(_("ranks={ranks}: expected 2 or more, since one rank sends nothing.").format(ranks=ranks))
    sizes = [_checked(Size(*size), ranks) for size in sizes]
    times, noise = _timed(_everything, ranks, backend, seconds, progress, (TIMED[backend], sizes))
    steps = {(size, count): times["step", size, count] for size in sizes for count in (1, ranks)}
    return _fitted(times, noise, ranks, backend), steps


def time_steps(
    sizes: Sequence[Size], ranks: int = 2, backend: str = "gloo", seconds: float = 3.0, progress: Report | None = None
) -> dict[tuple[Size, int], float]:
    """Return the seconds of a step, forward and backward, of each size: on one rank, and cut over ``ranks`` of them.

    For one rank, each computes the whole MLP by itself at the same time, on as many threads as it has in the other.
    """
    sizes = [_checked(Size(*size), ranks) for size in sizes]
    times, _noise = _timed(_steps, ranks, backend, seconds, progress, (TIMED[backend].dtype, sizes))
    return {(size, count): times["step", size, count] for size in sizes for count in (1, ranks)}


def _checked(size: Size, ranks: int) -> Size:
    if min(size) < 1 or size.hidden % ranks:
        message = _("{size}: expected positive sizes, and hidden to be a multiple of the {ranks} ranks.")
        raise ValueError(message.format(size="×".join(map(str, size)), ranks=ranks))
    return size


def predict(measured: Measured, size: Size, ranks: int | None = None) -> Phase:
    """Return the seconds of a step, forward and backward, of the two-layer MLP, by what they are spent on.

    ``ranks`` is 1 or the number that was measured, which is also what it is if left out. Six matmuls, ReLU and its
    backward; on several ranks two AllReduces of X's size, each after half of the computing.
    """
    ranks = measured.ranks if ranks is None else ranks
    if ranks not in (1, measured.ranks):
        message = _("ranks={ranks}: expected 1 or {known}, the number of ranks that were measured.")
        raise ValueError(message.format(ranks=ranks, known=measured.ranks))
    size, machine = _checked(Size(*size), ranks), measured.machine
    hidden, width = size.hidden // ranks, machine.dtype.itemsize
    matmuls = MATMULS * matmul_seconds(size.rows, size.width, hidden, machine)
    elementwise = ELEMENTWISE * machine.launch + _RELU_PASSES * size.rows * hidden * width / machine.stream
    if ranks == 1:
        return Phase(float(matmuls), elementwise, 0.0)
    payload = size.rows * size.width * width
    joined = machine._replace(inside=measured.link(payload))
    sent = group_seconds(joined, "all_reduce", payload, ranks)
    waited = measured.waiting.seconds(float(matmuls + elementwise) / 2)
    return Phase(float(matmuls), elementwise, 2 * float(sent + waited))


def _timed(
    jobs: Callable[..., Iterator[tuple[Key, Job]]],
    ranks: int,
    backend: str,
    seconds: float,
    progress: Report | None,
    args: tuple[Any, ...],
) -> tuple[Times, float]:
    """Return each job's seconds, on the rank on which it takes longest, and how noisy they were."""
    taken: list[dict[Key, list[float]]] = [defaultdict(list) for _rank in range(ranks)]
    for _round in rounds(seconds, progress):
        for rank, times in enumerate(run(_burst, ranks, backend, (jobs, args)).outputs):
            for key, some in (times or {}).items():  # a launched process has its own rank's only
                taken[rank][key] += some
    known = [times for times in taken if times]
    usual = {key: max(float(np.median(times[key])) for times in known) for key in known[0]}
    busy = [float(np.median(some) / min(some)) - 1 for times in known for some in times.values()]
    return usual, float(np.median(busy))


def _burst(
    comm: Communicator, jobs: Callable[..., Iterator[tuple[Key, Job]]], args: tuple[Any, ...]
) -> dict[Key, list[float]]:
    """A round, as a rank program: all ranks do each job at once."""

    def often(job: Job, count: int) -> float:
        start = time.perf_counter()
        for _time in range(count):
            job()
        if comm.device.type == "cuda":
            torch.cuda.synchronize()
        return (time.perf_counter() - start) / count

    times = {}
    for key, job in jobs(comm, *args):
        often(job, 1)
        comm.barrier()
        slowest = comm.all_reduce(torch.tensor(often(job, 1), dtype=torch.float64), op="max").item()
        count = int(min(_MOST, max(_FEWEST, _BURST_SECONDS / slowest)))
        comm.barrier()
        times[key] = [often(job, count)]
    return times


def _everything(comm: Communicator, timed: Timed, sizes: Sequence[Size]) -> Iterator[tuple[Key, Job]]:
    """All that is fitted to, and the steps of ``sizes``."""
    for count in _WORK:
        work = _work(comm, count, timed.dtype)
        yield ("work", count), work
        for payload in timed.payloads:
            yield ("all_reduce", count, payload), _met(comm, payload // timed.dtype.itemsize, work, timed.dtype)
    for m, k, n in timed.matmuls:
        yield ("matmul", m, k, n), _matmul(comm, m, k, n, timed.dtype)
    for entries in timed.entries:
        x = torch.randn(entries, device=comm.device, dtype=timed.dtype)
        yield ("relu", entries), partial(torch.relu, x)
    yield from _steps(comm, timed.dtype, [TINY, *sizes])


def _work(comm: Communicator, count: int, dtype: torch.dtype) -> Job:
    matmul = _matmul(comm, *_BEFORE, dtype)

    def work() -> None:
        for _time in range(count):
            matmul()

    return work


def _met(comm: Communicator, entries: int, work: Job, dtype: torch.dtype) -> Job:
    """As in a step: computing, the AllReduce of g, forward; computing, that of f, backward."""
    x = torch.ones(entries, device=comm.device, dtype=dtype, requires_grad=True)
    dz = torch.ones(entries, device=comm.device, dtype=dtype)

    def met() -> None:
        x.grad = None
        work()
        z = reduce_from_region(copy_to_region(x, comm), comm)
        work()
        z.backward(dz)  # type: ignore[no-untyped-call]

    return met


def _matmul(comm: Communicator, m: int, k: int, n: int, dtype: torch.dtype) -> Job:
    """Of three pairs in turn: in a step each matmul has its own matrices, which a cache may have lost meanwhile."""
    pairs = [
        (torch.randn(m, k, device=comm.device, dtype=dtype), torch.randn(k, n, device=comm.device, dtype=dtype))
        for _pair in range(3)
    ]

    def matmul() -> None:
        pairs.append(pairs.pop(0))
        torch.mm(*pairs[0])

    return matmul


def _steps(comm: Communicator, dtype: torch.dtype, sizes: Sequence[Size]) -> Iterator[tuple[Key, Job]]:
    for size in sizes:
        yield ("step", size, 1), _step(comm, size, 1, dtype)
        yield ("step", size, comm.world_size), _step(comm, size, comm.world_size, dtype)


def _step(comm: Communicator, size: Size, ranks: int, dtype: torch.dtype) -> Job:
    """Forward and backward of a rank's share of the MLP; with one rank, of all of it."""

    def matrix(rows: int, columns: int) -> torch.Tensor:
        return torch.randn(rows, columns, device=comm.device, dtype=dtype)

    own = size.hidden // ranks
    x, dz = matrix(size.rows, size.width).requires_grad_(), matrix(size.rows, size.width)
    w1, w2 = matrix(size.width, own).requires_grad_(), matrix(own, size.width).requires_grad_()

    def step() -> None:
        x.grad = w1.grad = w2.grad = None
        if ranks == 1:
            z = torch.relu(x @ w1) @ w2
        else:
            z = reduce_from_region(torch.relu(copy_to_region(x, comm) @ w1) @ w2, comm)
        z.backward(dz)  # type: ignore[no-untyped-call]

    return step


def _fitted(times: Times, noise: float, ranks: int, backend: str) -> Measured:
    timed = TIMED[backend]
    met = [key for key in times if key[0] == "all_reduce"]
    computed = [times["work", count] if count else 0.0 for _kind, count, _payload in met]
    alone = [times[key] / 2 - before for key, before in zip(met, computed, strict=True)]
    stretches, waiting = fit_link([payload for _kind, _count, payload in met], computed, alone, ranks)
    peak, half = fit_matmuls(timed.matmuls, [times["matmul", *shape] for shape in timed.matmuls])
    moved = [2 * timed.dtype.itemsize * entries for entries in timed.entries]
    stream = 1 / max(fit_line(moved, [times["relu", entries] for entries in timed.entries]).slope, 1e-15)
    machine = Machine(
        N_("this machine"),
        peak,
        timed.dtype,
        0.0,
        stream,
        ranks,
        stretches[-1].link,
        None,
        sustained=1.0,
        half=half,
        streaming=1.0,
        launch=0.0,
    )
    measured = Measured(ranks, backend, machine, stretches, waiting, noise)
    beside = times["step", TINY, 1] - predict(measured, TINY, 1).seconds
    launch = max(float(beside), 1e-9) / (MATMULS + ELEMENTWISE)
    return measured._replace(machine=machine._replace(launch=launch))
