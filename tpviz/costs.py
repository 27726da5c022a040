"""The α–β model: how long a ring collective takes on a link, or on two, inside of nodes and between them (costs)."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tpviz.i18n import _
from tpviz.trace import wire_factor

Amount = float | NDArray[np.float64]
"""A number, or an array of them, one a point of a map."""

KINDS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "send", "barrier")
"""The collectives that a trace records."""


class Link(NamedTuple):
    """What joins the ranks.

    ``latency`` is α, in seconds: what a message costs before its first byte arrives. ``bandwidth`` is 1/β, in bytes a
    second that one rank can send while it receives as many (one-way; vendors often print the sum of both ways).
    """

    latency: float
    bandwidth: Amount


def ring_steps(kind: str, ranks: int) -> int:
    """Return how many messages follow each other in a ring: an all-reduce is a reduce-scatter and an all-gather."""
    if ranks == 1 or kind == "barrier":
        return 0
    if kind == "send":
        return 1
    return 2 * (ranks - 1) if kind == "all_reduce" else ranks - 1


def ring_seconds(kind: str, payload_bytes: Amount, ranks: int, link: Link) -> Amount:
    """Return the seconds of ``collective_seconds``, of one payload (bytes) or of an array of them, unchecked."""
    return ring_steps(kind, ranks) * link.latency + payload_bytes * wire_factor(kind, ranks) / link.bandwidth


def collective_seconds(kind: str, payload_bytes: float, ranks: int, link: Link) -> float:
    """Return the seconds that a ring collective takes: steps · α + wire bytes · β.

    ``payload_bytes`` counts the whole array, as the trace does; the wire bytes are ``trace.wire_factor`` of it. For an
    all-reduce of S bytes that is 2(n−1)α + 2(n−1)/n · S/bandwidth (Thakur, Rabenseifner and Gropp 2005, "Optimization
    of Collective Communication Operations in MPICH", section 4.5); for an all-gather, a reduce-scatter or an all-to-all
    (n−1)α + (n−1)/n · S/bandwidth; for a broadcast, handed on in pieces from rank to rank, (n−1)α + S/bandwidth.
    """
    if ranks < 1 or payload_bytes < 0:
        message = _("ranks={ranks}, payload_bytes={bytes}: expected at least one rank, and no negative size.")
        raise ValueError(message.format(ranks=ranks, bytes=payload_bytes))
    _check_kind(kind, KINDS)
    return float(ring_seconds(kind, payload_bytes, ranks, link))


def hierarchical_seconds(
    kind: str, payload_bytes: Amount, inside_ranks: int, inside: Link, nodes: int, between: Link
) -> Amount:
    """Return the seconds of a collective of ``nodes`` · ``inside_ranks`` ranks, in rings inside of nodes and between.

    A reduce-scatter inside leaves each rank 1/inside_ranks of the payload S, and only that goes between the nodes, on
    all ranks' links at once; an all-gather inside completes it:

        reduce_scatter   reduce-scatter of S inside, then of S/inside_ranks between
        all_gather       all-gather of S/inside_ranks between, then of S inside
        all_reduce       reduce-scatter of S inside, all-reduce of S/inside_ranks between, all-gather of S inside

    A rank sends as many bytes as in one ring of all ranks. ``between.bandwidth`` is one rank's share of its node's.
    Source: Jia et al. 2018, arXiv 1807.11205 (hierarchical all-reduce), here with all ranks of a node in the middle.
    """
    _check_kind(kind, ("all_reduce", "all_gather", "reduce_scatter"))
    if kind == "all_reduce":
        within = ring_seconds("reduce_scatter", payload_bytes, inside_ranks, inside)
        within = within + ring_seconds("all_gather", payload_bytes, inside_ranks, inside)
    else:
        within = ring_seconds(kind, payload_bytes, inside_ranks, inside)
    return within + ring_seconds(kind, payload_bytes / inside_ranks, nodes, between)


def _check_kind(kind: str, known: tuple[str, ...]) -> None:
    if kind not in known:
        message = _("kind={kind!r}: expected one of {known}.")
        raise ValueError(message.format(kind=kind, known=", ".join(known)))
