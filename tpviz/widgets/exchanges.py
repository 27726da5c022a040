"""Widgets of what crosses between ranks: the collectives, and an AllReduce in a ring (widgets)."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

import tpviz
from tpviz import diagrams
from tpviz.diagrams import Drawing
from tpviz.i18n import _
from tpviz.widgets.shell import RANKS, Shell, choice

# A collective


@dataclass(frozen=True)
class Exchange:
    """What the ranks held before a collective, and the run of it."""

    before: list[Tensor]
    run: tpviz.Run


COLLECTIVES: dict[str, Callable[[tpviz.Communicator, Tensor], Tensor]] = {
    "Broadcast": lambda comm, x: comm.broadcast(x, src=0),
    "AllGather": lambda comm, x: comm.all_gather(x),
    "AllReduce": lambda comm, x: comm.all_reduce(x),
    "ReduceScatter": lambda comm, x: comm.reduce_scatter(x),
    "AllToAll": lambda comm, x: comm.all_to_all(x, split_dim=0, concat_dim=0),
}


def compute_collective(collective: str, ranks: int) -> Exchange:
    """Give each rank as many numbers as there are ranks (0 1, 10 11 on two), and run the collective on them."""

    def start(comm: tpviz.Communicator) -> Tensor:
        return 10 * comm.rank + torch.arange(ranks)

    run = tpviz.run(lambda comm: COLLECTIVES[collective](comm, start(comm)), ranks=ranks)
    return Exchange(tpviz.run(start, ranks=ranks).outputs, run)


def draw_collective(exchange: Exchange) -> Drawing:
    """What each rank held, the collective, and what each holds then."""
    return diagrams.collective(exchange.run.trace[0], exchange.before, exchange.run)


def collectives() -> Shell:
    """Choose a collective and the number of ranks: what does each rank hold before, and what afterwards?"""
    return Shell(
        compute_collective,
        draw_collective,
        {
            "collective": choice(_("collective"), tuple(COLLECTIVES), "AllGather"),
            "ranks": choice(_("ranks"), RANKS[1:], 2),
        },
    )


# A ring


def _ring(comm: tpviz.Communicator) -> list[Tensor]:
    """An AllReduce in a ring of as many numbers as there are ranks: what this rank holds after each step."""
    n, me = comm.world_size, comm.rank
    held = [10 * me + torch.arange(1, n + 1)]
    for turn in range(1, 2 * n - 1):
        pieces = held[-1].clone()
        out, into = (me - turn) % n, (me - turn - 1) % n
        arrived = comm.sendrecv(pieces[[out]], dst=(me + 1) % n, src=(me - 1) % n)
        pieces[into] = pieces[into] + arrived if turn < n else arrived
        held.append(pieces)
    return held


def compute_ring(ranks: int) -> tpviz.Run:
    """Run the ring: 1 2, 11 12 on two ranks."""
    return tpviz.run(_ring, ranks=ranks)


def draw_ring(run: tpviz.Run) -> Drawing:
    """All steps, below each other."""
    return diagrams.ring(run)


def ring() -> Shell:
    """Choose the number of ranks: how does an AllReduce go round?"""
    return Shell(compute_ring, draw_ring, {"ranks": choice(_("ranks"), (2, 3, 4, 8), 4)})
