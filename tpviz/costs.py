"""The α–β model: how long a ring collective takes on a link (costs)."""

from __future__ import annotations

from typing import NamedTuple

from tpviz.i18n import _
from tpviz.trace import wire_factor


class Link(NamedTuple):
    """What joins the ranks.

    ``latency`` is α, in seconds: what a message costs before its first byte arrives. ``bandwidth`` is 1/β, in bytes a
    second that one rank can send while it receives as many (one-way; vendors often print the sum of both ways).
    """

    latency: float
    bandwidth: float


def ring_steps(kind: str, ranks: int) -> int:
    """Return how many messages follow each other in a ring: an all-reduce is a reduce-scatter and an all-gather."""
    if ranks == 1 or kind == "barrier":
        return 0
    if kind == "send":
        return 1
    return 2 * (ranks - 1) if kind == "all_reduce" else ranks - 1


def collective_seconds(kind: str, payload_bytes: float, ranks: int, link: Link) -> float:
    """Return the seconds that a ring collective takes: steps · α + wire bytes · β.

    ``payload_bytes`` counts the whole array, as the trace does; the wire bytes are ``trace.wire_factor`` of it. For an
    all-reduce of S bytes that is 2(n−1)α + 2(n−1)/n · S/bandwidth (Thakur, Rabenseifner and Gropp 2005, "Optimization
    of Collective Communication Operations in MPICH", section 4.5).
    """
    if ranks < 1 or payload_bytes < 0:
        message = _("ranks={ranks}, payload_bytes={bytes}: expected at least one rank, and no negative size.")
        raise ValueError(message.format(ranks=ranks, bytes=payload_bytes))
    wire = payload_bytes * wire_factor(kind, ranks)
    return ring_steps(kind, ranks) * link.latency + wire / link.bandwidth
