"""Machines: one-way figures, and which links a group of ranks uses."""

import re

import pytest

from tpviz.costs import collective_seconds, hierarchical_seconds
from tpviz.machines import DGX_2H, DGX_A100, DGX_H100, H200_NODE, LAPTOP, MACHINES, PCIE_BOX, group_seconds

GB = 10**9


@pytest.mark.parametrize(
    ("machine", "inside", "between"),
    [
        # One way, GB/s: a rank inside of its node, and its share of the node's network.
        (DGX_2H, 150, 100 / 16),
        (DGX_A100, 300, 8 * 200 / 8 / 8),
        (DGX_H100, 450, 8 * 400 / 8 / 8),
        (H200_NODE, 450, 8 * 400 / 8 / 8),
        (PCIE_BOX, 31, 100 / 8 / 4),
    ],
)
def test_bandwidths_are_one_way(machine, inside, between):
    assert machine.inside.bandwidth == inside * GB
    assert machine.between.bandwidth == between * GB


@pytest.mark.parametrize("machine", MACHINES, ids=lambda machine: machine.name)
def test_every_machine_is_plausible(machine):
    assert machine.inside.bandwidth < machine.stream < machine.memory_bandwidth < machine.peak
    assert machine.between is None or machine.between.bandwidth < machine.inside.bandwidth
    assert machine.host == 0, "a fitted number belongs to the comparison that fits it"


def test_a_group_inside_of_a_node_is_a_ring():
    for stride, ranks in ((1, 8), (2, 4), (8, 1)):
        expected = collective_seconds("all_reduce", GB, ranks, DGX_A100.inside)
        assert group_seconds(DGX_A100, "all_reduce", GB, ranks, stride) == expected


@pytest.mark.parametrize(("ranks", "stride", "inside"), [(16, 1, 8), (8, 4, 2), (8, 8, 1), (4, 16, 1)])
def test_a_group_over_nodes_is_hierarchical(ranks, stride, inside):
    found = group_seconds(DGX_A100, "all_reduce", GB, ranks, stride)
    levels = (inside, DGX_A100.inside, ranks // inside, DGX_A100.between)
    assert found == hierarchical_seconds("all_reduce", GB, *levels)


@pytest.mark.parametrize(("machine", "ranks", "inside"), [(DGX_A100, 12, 8), (LAPTOP, 8, 4)])
def test_a_group_that_finds_no_place_is_refused(machine, ranks, inside):
    message = f"{ranks} ranks, 1 apart, on {machine.name}, {inside} in each node: expected a multiple of {inside}, and"
    with pytest.raises(ValueError, match=re.escape(message)):
        group_seconds(machine, "all_reduce", GB, ranks)
