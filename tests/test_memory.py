"""The formulas give the published figures, and what they say of a layer is what really runs."""

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

import tpviz
from tpviz import memory
from tpviz.example import X4, W


@pytest.mark.parametrize(("stage", "published"), [(0, 120), (1, 31.4), (2, 16.6), (3, 1.9)])
def test_figure_1_of_zero(stage, published):
    states = memory.model_states(7.5e9, ranks=64, stage=stage)
    assert round(states.total / memory.GB, 1) == published


def test_7b_on_one_and_on_four_ranks():
    assert memory.model_states(7e9, ranks=1, stage=0).total == 112 * memory.GB
    assert memory.model_states(7e9, ranks=4, stage=3).total == 28 * memory.GB


@pytest.mark.parametrize("stage", memory.STAGES)
def test_one_rank_divides_nothing(stage):
    states = memory.model_states(1000, ranks=1, stage=stage, optimizer_bytes=4)
    assert (states.parameters, states.gradients, states.optimizer) == (2000, 2000, 4000)


def test_what_each_stage_divides():
    whole = (2000, 2000, 12000)
    for stage, divided in enumerate([(), (2,), (1, 2), (0, 1, 2)]):
        states = memory.model_states(1000, ranks=10, stage=stage)
        expected = tuple(size / 10 if part in divided else size for part, size in enumerate(whole))
        assert (states.parameters, states.gradients, states.optimizer) == pytest.approx(expected)


def test_an_unknown_stage():
    with pytest.raises(ValueError, match="stages 0, 1, 2 and 3, not 4"):
        memory.model_states(1, ranks=1, stage=4)


def _measured(program, ranks):
    """The bytes of the weight that a rank multiplies with, and the FLOP of its matmul, as PyTorch counts them."""

    def counted(comm):
        x, weight = program(comm)
        with FlopCounterMode(display=False) as counter:
            x @ weight
        return weight.numel() * weight.element_size(), counter.get_total_flops()

    return tpviz.run(counted, ranks=ranks).outputs


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_the_layer_that_runs_agrees_with_the_formula(ranks):
    sizes = (*X4.shape, W.shape[1], ranks)

    def zero3(comm):
        stored = tpviz.shard(W, 0, comm)
        assert stored.numel() * stored.element_size() == memory.zero3_forward(*sizes).stored_bytes
        return tpviz.shard(X4, 0, comm), comm.all_gather(stored, dim=0)

    def column(comm):
        return X4, tpviz.shard(W, 1, comm)

    for program, formula in ((zero3, memory.zero3_forward), (column, memory.column_forward)):
        expected = formula(*sizes)
        assert _measured(program, ranks) == [(expected.present_bytes, expected.flops)] * ranks
    assert memory.column_forward(*sizes).stored_bytes == memory.column_forward(*sizes).present_bytes


def test_only_the_weight_present_during_the_matmul_differs():
    zero3, column = memory.zero3_forward(4, 4, 8, ranks=2), memory.column_forward(4, 4, 8, ranks=2)
    assert zero3.stored_bytes == column.stored_bytes == 64
    assert zero3.flops == column.flops == 128
    assert (zero3.present_bytes, column.present_bytes) == (128, 64)


def test_element_size():
    assert memory.zero3_forward(4, 4, 8, 2, element_bytes=2).present_bytes == 64
    assert memory.column_forward(4, 4, 8, 2, element_bytes=torch.finfo(torch.float64).bits // 8).stored_bytes == 128


@pytest.mark.parametrize(
    ("formula", "sizes", "name"),
    [
        (memory.zero3_forward, (3, 4, 8, 2), "rows = 3"),
        (memory.zero3_forward, (10, 1, 8, 5), "in_features × out_features = 8"),
        (memory.column_forward, (4, 4, 6, 4), "out_features = 6"),
    ],
)
def test_what_does_not_divide_is_named(formula, sizes, name):
    with pytest.raises(ValueError, match=f"{name} does not divide into {sizes[-1]} equal parts"):
        formula(*sizes)
