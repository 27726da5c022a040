"""Unknown collectives, and rings inside of nodes and between (the ring's own times: tests/test_conversions.py)."""

import numpy as np
import pytest
import torch

import tpviz
from tpviz.costs import KINDS, Link, collective_seconds, hierarchical_seconds, ring_seconds
from tpviz.trace import wire_factor

INSIDE, BETWEEN = Link(2e-6, 8e9), Link(10e-6, 1e9)
KINDS_OF_TWO_LEVELS = ("all_reduce", "all_gather", "reduce_scatter")


def test_an_unknown_collective_is_refused_with_the_known_ones():
    with pytest.raises(ValueError, match=r"kind='allreduce': expected one of all_reduce, all_gather, .*barrier\."):
        collective_seconds("allreduce", 8, 2, INSIDE)
    with pytest.raises(ValueError, match=r"kind='broadcast': expected one of all_reduce, all_gather, reduce_scatter\."):
        hierarchical_seconds("broadcast", 8, 2, INSIDE, 2, BETWEEN)


@pytest.mark.parametrize("kind", KINDS)
def test_arrays_take_the_time_of_their_numbers(kind):
    sizes = np.array([0.0, 8.0, 1e9])
    expected = [collective_seconds(kind, size, 4, INSIDE) for size in sizes]
    assert np.array_equal(np.broadcast_to(ring_seconds(kind, sizes, 4, INSIDE), 3), expected)


@pytest.mark.parametrize(
    ("kind", "microseconds"),
    [
        # 64 kB on 4 ranks in each of 2 nodes: 2 µs and 64/8 µs · 3/4 inside, 10 µs and 16 µs · 1/2 between.
        ("reduce_scatter", 3 * 2 + 6 + 10 + 8),
        ("all_gather", 3 * 2 + 6 + 10 + 8),
        ("all_reduce", 2 * (3 * 2 + 6 + 10 + 8)),
    ],
)
def test_two_levels_by_hand(kind, microseconds):
    assert hierarchical_seconds(kind, 64e3, 4, INSIDE, 2, BETWEEN) == pytest.approx(microseconds * 1e-6, rel=1e-12)


@pytest.mark.parametrize("kind", KINDS_OF_TWO_LEVELS)
def test_one_node_or_one_rank_in_each_is_a_ring(kind):
    assert hierarchical_seconds(kind, 64e3, 8, INSIDE, 1, BETWEEN) == collective_seconds(kind, 64e3, 8, INSIDE)
    assert hierarchical_seconds(kind, 64e3, 1, INSIDE, 8, BETWEEN) == collective_seconds(kind, 64e3, 8, BETWEEN)


@pytest.mark.parametrize(("inside", "nodes"), [(2, 2), (2, 4), (4, 2)])
def test_a_run_on_two_levels_sends_what_is_charged(inside, nodes):
    """An all-reduce of two levels gives the sum, by the collectives that are priced, with one ring's bytes."""
    whole = torch.arange(64, dtype=torch.float32)

    def program(comm):
        node, across = comm.split(comm.rank // inside), comm.split(comm.rank % inside)
        part = node.reduce_scatter(whole * (comm.rank + 1), dim=0)
        return node.all_gather(across.all_reduce(part), dim=0)

    ranks = inside * nodes
    run = tpviz.run(program, ranks=ranks)
    assert all(torch.equal(output, whole * sum(range(1, ranks + 1))) for output in run.outputs)
    sent = [event for event in run.trace if 0 in event.ranks]
    links = {True: INSIDE, False: BETWEEN}
    seconds = sum(
        collective_seconds(event.kind, event.payload_bytes, len(event.ranks), links[event.ranks[1] == 1])
        for event in sent
    )
    assert hierarchical_seconds("all_reduce", 256, inside, INSIDE, nodes, BETWEEN) == pytest.approx(seconds, rel=1e-12)
    assert sum(event.wire_bytes for event in sent) == pytest.approx(256 * wire_factor("all_reduce", ranks), rel=1e-12)
