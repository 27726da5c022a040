"""Timelines: they add up to the cost model's seconds; TP waits for all that it sends, FSDP for what nothing hides."""

from itertools import pairwise

import pytest

from tpviz.machines import DGX_H100, PCIE_BOX, group_seconds
from tpviz.steps import layer_phase
from tpviz.strategies import Strategy
from tpviz.timelines import fsdp_forward, halves, tensor_parallel_forward, waiting
from tpviz.transformers import Transformer

MODEL = Transformer(8192, 64, 80, 4096)
NETWORK = DGX_H100._replace(ranks_per_node=1)


@pytest.mark.parametrize("machine", [DGX_H100, PCIE_BOX, NETWORK], ids=lambda machine: machine.name)
@pytest.mark.parametrize("ranks", [1, 8])
def test_halves_are_the_layers_phase(machine, ranks):
    phase = layer_phase(MODEL, machine, Strategy(ranks), 4, "forward")
    assert sum(halves(MODEL, machine, ranks, 4)) == pytest.approx(phase.matmuls + phase.elementwise, rel=1e-12)


def test_tp_waits_for_all_that_it_sends():
    tasks = tensor_parallel_forward(MODEL, DGX_H100, 8, 32, layers=3)
    assert [task.sends for task in tasks] == [False, True] * 6
    assert all(later.start == pytest.approx(earlier.end) for earlier, later in pairwise(tasks))
    phase = layer_phase(MODEL, DGX_H100, Strategy(8), 32, "forward")
    assert waiting(tasks) == pytest.approx(3 * phase.tensor_parallel)
    assert tasks[-1].end == pytest.approx(3 * phase.seconds)


def test_fsdp_waits_for_its_first_gather_where_the_others_are_short():
    for machine in (DGX_H100, NETWORK):
        tasks = fsdp_forward(MODEL, machine, 8, 4, layers=4)
        gather = group_seconds(machine, "all_gather", 2 * MODEL.layer_parameters, 8)
        assert waiting(tasks) == pytest.approx(gather)
        computing = [task for task in tasks if not task.sends]
        assert [task.layer for task in computing] == [0, 1, 2, 3]


def test_fsdp_waits_longer_where_a_gather_takes_longer_than_a_layer():
    tasks = fsdp_forward(MODEL, PCIE_BOX, 8, 1, layers=4)
    gathers = [task for task in tasks if task.sends]
    computing = [task for task in tasks if not task.sends]
    assert gathers[0].seconds > computing[0].seconds
    assert waiting(tasks) == pytest.approx(sum(task.seconds for task in gathers) - 3 * computing[0].seconds)
    for gather, layer in zip(gathers, computing, strict=True):
        assert layer.start >= gather.end - 1e-12
