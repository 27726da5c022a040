"""Machines as data: what a rank computes, keeps and sends in a second, with the source of every number (machines).

Bandwidths of links are one-way everywhere, in bytes a second that one rank sends while it receives as many. Vendors
print NVLink and PCIe both ways added up, and networks one way: ``_both_ways`` and ``_network`` take what is printed.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from tpviz.costs import Amount, Link, hierarchical_seconds, ring_seconds
from tpviz.i18n import N_, _
from tpviz.memory import GB

NVLINK_STEP, PCIE_STEP, NETWORK_STEP = 3.4e-6, 5.7e-6, 14e-6
"""α of a ring step, in seconds, for large messages: NCCL's own model (``src/graph/tuning.cc``, ``hwLat``, Ring/Simple;
PyTorch's, for small ones, has 0.6 µs inside and 2.7 µs between hosts: torch's ``_collective_utils.py``)."""


class Machine(NamedTuple):
    """A rank, its node, and what joins nodes."""

    name: str
    """To be shown through ``i18n._``."""
    peak: float
    """Matmul operations a second (FLOP/s) at best, dense, as the vendor prints for ``dtype``."""
    dtype: torch.dtype
    memory: float
    """Bytes of memory that one rank has."""
    memory_bandwidth: float
    """Bytes a second from and to that memory, as the vendor prints."""
    ranks_per_node: int
    inside: Link
    """Joins the ranks of a node; one-way."""
    between: Link | None
    """Joins nodes: one rank's share when all ranks of the node send at once; one-way. None where there is one node."""
    sustained: float = 0.8
    """The share of ``peak`` that large matmuls reach. Assumed until it is measured."""
    half: float = 64
    """The size of a dimension at which a matmul runs at half speed for its sake (see ``matmuls.efficiency``)."""
    streaming: float = 0.8
    """The share of ``memory_bandwidth`` that an element-wise kernel reaches. Assumed until it is measured."""
    launch: float = 4e-6
    """Seconds that a kernel takes beside its work. Assumed until it is measured."""
    host: float = 0.0
    """Seconds of a Transformer layer in a step that are no kernel's work and that no degree of TP divides: waiting for
    the host, which launches and synchronises. Nobody prints it; where it is not 0, it was fitted."""

    @property
    def stream(self) -> float:
        """Bytes a second that an element-wise kernel moves."""
        return self.memory_bandwidth * self.streaming


def _both_ways(total: float, step: float) -> Link:
    """A link whose vendor prints the sum of both directions, in bytes a second."""
    return Link(step, total / 2)


def _network(ports: int, gigabits: float, ranks: int) -> Link:
    """One rank's share of its node's network ports, of so many Gb/s each; networks are printed one-way."""
    return Link(NETWORK_STEP, ports * gigabits * GB / 8 / ranks)


DGX_2H = Machine(
    "DGX-2H (V100)",
    130e12,
    torch.float16,
    32 * GB,
    900 * GB,
    16,
    _both_ways(300 * GB, NVLINK_STEP),
    _network(8, 100, 16),
)
"""16 V100 of 450 W. Peak: Megatron-LM 2019 calls 39 TFLOP/s 30% of it. Memory: NVIDIA's V100 data sheet. NVLink 2:
300 GB/s printed, both ways. Between servers 100 GB/s (Megatron-LM 2019, section 5): 8 × 100 Gb/s, one-way."""

DGX_A100 = Machine(
    "DGX A100", 312e12, torch.bfloat16, 80 * GB, 2039 * GB, 8, _both_ways(600 * GB, NVLINK_STEP), _network(8, 200, 8)
)
"""8 A100 80GB SXM. Peak (dense), memory, NVLink 3 (600 GB/s printed, both ways): NVIDIA's A100 data sheet.
8 × 200 Gb/s InfiniBand, one-way: DGX A100 data sheet. An all-reduce reaches 235 of the 300 GB/s (nccl-tests)."""

DGX_H100 = Machine(
    "DGX H100", 989.4e12, torch.bfloat16, 80 * GB, 3350 * GB, 8, _both_ways(900 * GB, NVLINK_STEP), _network(8, 400, 8)
)
"""8 H100 SXM. Peak (the data sheet's 1,979 is with sparsity), memory, NVLink 4 (900 GB/s printed, both ways): NVIDIA's
H100 data sheet. 8 × 400 Gb/s InfiniBand, one-way: DGX H100 data sheet."""

H200_NODE = DGX_H100._replace(name=N_("H200 node"), memory=141 * GB, memory_bandwidth=4800 * GB)
"""8 H200 SXM: an H100 with other memory (NVIDIA's H200 data sheet: 141 GB, 4.8 TB/s)."""

PCIE_BOX = Machine(
    N_("PCIe box (A100)"),
    312e12,
    torch.bfloat16,
    80 * GB,
    1935 * GB,
    4,
    _both_ways(62 * GB, PCIE_STEP),
    _network(1, 100, 4),
)
"""4 A100 80GB PCIe, no NVLink bridge. NVIDIA's A100 data sheet; PCIe 4 ×16: 62 GB/s both ways (2 × 16 lanes × 16 GT/s
× 128/130 / 8, less packet headers), and one port of 100 Gb/s Ethernet for the node, one-way: assumed."""

LAPTOP = Machine(
    N_("laptop"),
    768e9,
    torch.float32,
    16 * GB,
    51.2 * GB,
    4,
    Link(50e-6, 2 * GB),
    None,
    half=16,
    launch=5e-6,
)
"""A stand-in until this machine is measured. 8 cores × 3 GHz × 32 FLOP a cycle (two AVX2 multiply-adds on 8 float32);
two channels of DDR4-3200: 2 × 8 bytes × 3.2 GT/s; processes that talk through the loopback interface: assumed."""

MACHINES = (DGX_2H, DGX_A100, DGX_H100, H200_NODE, PCIE_BOX, LAPTOP)


def group_seconds(machine: Machine, kind: str, payload_bytes: Amount, ranks: int, stride: int = 1) -> Amount:
    """Return the seconds of a collective of ``ranks`` ranks that are numbered ``stride`` apart, node after node.

    A TP group has stride 1, and fills a node before it reaches into the next; the ranks with the same shard, which are
    the TP degree apart, are a data-parallel group. Inside of one node it is a ring, over several hierarchical.
    """
    inside = min(ranks, max(1, machine.ranks_per_node // stride))
    nodes = ranks // inside
    if nodes == 1 and ranks == inside:
        return ring_seconds(kind, payload_bytes, ranks, machine.inside)
    if machine.between is None or ranks % inside:
        message = _(
            "{ranks} ranks, {stride} apart, on {machine}, {inside} in each node: expected a multiple of {inside}, and "
            "a machine of several nodes. Choose fewer ranks, or another machine."
        )
        raise ValueError(message.format(ranks=ranks, stride=stride, machine=_(machine.name), inside=inside))
    return hierarchical_seconds(kind, payload_bytes, inside, machine.inside, nodes, machine.between)
