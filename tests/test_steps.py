"""Step time: each term by hand, what prefetch hides, and what the model says of C34 to C36."""

import numpy as np
import pytest
import torch

from tpviz.costs import Link
from tpviz.machines import DGX_A100, DGX_H100, PCIE_BOX, group_seconds
from tpviz.matmuls import matmul_seconds
from tpviz.steps import layer_phase, layer_seconds, step
from tpviz.strategies import Strategy, rank_bytes
from tpviz.transformers import Transformer, core_matmuls, linear_matmuls

MODEL = Transformer(4096, 32, 32, 2048)
PHASES = ("forward", "recompute", "backward")


def test_the_phases_of_a_layer_by_hand():
    strategy = Strategy(8)
    forward, again, backward = (layer_phase(MODEL, DGX_A100, strategy, 2, phase) for phase in PHASES)
    matmuls = [*linear_matmuls(MODEL, 2, 8), *core_matmuls(MODEL, 2, 8)]
    expected = sum(matmul_seconds(m, k, n, DGX_A100, copies) for _name, m, k, n, copies in matmuls)
    assert forward.matmuls == pytest.approx(expected)
    expected = sum(
        matmul_seconds(m, n, k, DGX_A100, copies) + matmul_seconds(k, m, n, DGX_A100, copies)
        for _name, m, k, n, copies in matmuls
    )
    assert backward.matmuls == pytest.approx(expected)
    entries = 2 * 2048 * 4096
    assert forward.elementwise == (22 * entries + 16 * entries / 8 + 9 * 32 * 2048 * 2 * 2048 / 8) / DGX_A100.stream
    all_reduce = group_seconds(DGX_A100, "all_reduce", 2 * entries, 8)
    assert forward.tensor_parallel == backward.tensor_parallel == 2 * all_reduce
    assert forward.seconds == sum(forward)
    assert again == (0, 0, 0)


def test_what_is_computed_again():
    phases = {
        name: layer_phase(MODEL, DGX_A100, Strategy(8, recompute=name), 1, "recompute")
        for name in ("selective", "full")
    }
    core = sum(matmul_seconds(m, k, n, DGX_A100, copies) for _name, m, k, n, copies in core_matmuls(MODEL, 1, 8))
    assert phases["selective"].matmuls == pytest.approx(core)
    assert phases["selective"].tensor_parallel == 0
    assert phases["full"] == layer_phase(MODEL, DGX_A100, Strategy(8), 1, "forward")


@pytest.mark.parametrize("recompute", ["none", "selective", "full"])
def test_a_layers_seconds_are_its_phases(recompute):
    strategy = Strategy(4, recompute=recompute)
    phases = [layer_phase(MODEL, DGX_A100, strategy, 2, phase) for phase in PHASES]
    found = layer_seconds(MODEL, DGX_A100, strategy, 2)
    assert found == pytest.approx([sum(parts) for parts in zip(*phases, strict=True)])
    assert found.seconds == pytest.approx(sum(phase.seconds for phase in phases))


def test_a_step_is_the_sum_of_its_terms():
    spent = step(MODEL, DGX_A100._replace(host=1e-3), Strategy(2, 4, 3), 1)
    assert spent.total == pytest.approx(sum(spent) - spent.hidden)
    assert spent.host == pytest.approx(32e-3)
    cells = dict(row[:2] for row in spent.table().rows)
    assert cells["total"] == f"{1e3 * spent.total:.2f} ms"
    assert len(cells) == 9


@pytest.mark.parametrize(
    "strategy", [Strategy(1, 8), Strategy(1, 8, 1), Strategy(1, 8, 2), Strategy(1, 8, 3), Strategy(4, 8, 3)], ids=str
)
def test_prefetch_hides_and_loses_nothing(strategy):
    """Exposed and hidden together are what the data ranks send, whatever the layer's time."""
    t = strategy.tensor
    sums = (
        ("all_reduce",)
        if strategy.stage == 0
        else ("reduce_scatter", *("all_gather",) * (2 if strategy.stage == 3 else 1))
    )
    layer, ends = 2 * MODEL.rank_layer_parameters(t), 2 * MODEL.rank_end_parameters(t)
    sent = sum(
        32 * group_seconds(DGX_A100, kind, layer, 8, t) + group_seconds(DGX_A100, kind, ends, 8, t) for kind in sums
    )
    for machine in (DGX_A100, DGX_A100._replace(peak=1e18, memory_bandwidth=1e18, launch=0.0)):
        spent = step(MODEL, machine, strategy, 1)
        assert spent.gathers + spent.gradients + spent.hidden == pytest.approx(sent, rel=1e-9)
    # Behind layers that take no time only TP's collectives are left to hide behind.
    assert spent.hidden < 1e-3 * sent + spent.tensor_parallel


def test_fsdp_hides_behind_enough_work():
    """A large micro-batch hides all but the first gather and the last sum; without prefetch all of it would show."""
    spent = step(MODEL, DGX_A100, Strategy(1, 8, 3), 8)
    one = 2 * MODEL.layer_parameters
    gather, summed = (group_seconds(DGX_A100, kind, one, 8) for kind in ("all_gather", "reduce_scatter"))
    assert spent.hidden == pytest.approx(31 * (gather + summed) + 32 * gather, rel=1e-9)


def test_float32_moves_twice_the_bytes():
    narrow = DGX_A100._replace(inside=Link(0.0, DGX_A100.inside.bandwidth))
    machines = narrow, narrow._replace(dtype=torch.float32)
    for phase in PHASES[::2]:
        half, full = (layer_phase(MODEL, machine, Strategy(8), 2, phase) for machine in machines)
        assert full.elementwise == pytest.approx(2 * half.elementwise)
        assert full.tensor_parallel == pytest.approx(2 * half.tensor_parallel)


def test_zero_divides_the_update():
    plain, divided = (step(MODEL, DGX_A100, Strategy(1, 8, stage), 1).optimizer for stage in (0, 1))
    assert plain == pytest.approx(8 * divided)


def test_c34_more_tp_is_slower_for_a_small_model():
    """The share of communication rises with t, the bytes saturate, matmuls fall short of their share of speed."""
    small = Transformer(1024, 16, 24, 1024)
    spent = [step(small, DGX_H100, Strategy(t), 1) for t in (1, 2, 4, 8)]
    shares = [each.tensor_parallel / each.total for each in spent]
    assert shares == sorted(shares)
    assert all(t * each.matmuls > spent[0].matmuls for t, each in zip((2, 4, 8), spent[1:], strict=True))
    assert spent[2].total < spent[1].total < spent[0].total
    assert spent[3].total > spent[2].total


def test_c35_a_slow_link_eats_the_gain():
    big = Transformer(8192, 64, 80, 4096)
    fast, slow = (DGX_H100._replace(inside=link) for link in (DGX_H100.inside, DGX_H100.between))
    gain = [
        step(big, machine, Strategy(1), 1).total / step(big, machine, Strategy(8), 1).total for machine in (fast, slow)
    ]
    assert gain[0] > 5
    assert gain[1] < 3
    # Over two PCIe boxes TP is slower than in one; FSDP over the same link hides nearly all that it sends.
    assert step(big, PCIE_BOX, Strategy(8), 1).total > step(big, PCIE_BOX, Strategy(4), 1).total
    spent = step(big, slow, Strategy(1, 8, 3), 4)
    assert spent.gathers + spent.gradients < 0.1 * spent.hidden


def test_c36_where_only_tp_fits_and_where_fsdp_is_enough():
    """FSDP divides no activations: one long sequence, nothing recomputed, fits no card but with TP."""
    big, card = Transformer(8192, 64, 80, 4096), DGX_H100.memory
    assert all(rank_bytes(big, Strategy(1, data, 3), 1).total > card for data in (8, 64, 512, 4096))
    assert rank_bytes(big, Strategy(8, 8, 3, True, "selective"), 1).total < card
    # A 7B model: FSDP fits, and gets more sequences a second out of the same 8 ranks.
    fsdp, tp = Strategy(1, 8, 3), Strategy(8)
    assert rank_bytes(MODEL, fsdp, 1).total < card
    assert 8 / step(MODEL, DGX_H100, fsdp, 1).total > 1 / step(MODEL, DGX_H100, tp, 1).total


def test_a_map_is_its_points():
    hidden, bandwidth = np.linspace(512, 16384, 200)[None, :], np.geomspace(1e9, 1e12, 200)[:, None]
    machine = DGX_A100._replace(inside=Link(3e-6, bandwidth))
    for strategy in (Strategy(8), Strategy(1, 8, 3)):
        model = Transformer(hidden, 32, 32, 2048)
        found = step(model, machine, strategy, 1).total
        assert found.shape == (200, 200)
        one = step(
            Transformer(hidden[0, 7], 32, 32, 2048), DGX_A100._replace(inside=Link(3e-6, bandwidth[9, 0])), strategy, 1
        )
        assert found[9, 7] == pytest.approx(one.total, rel=1e-12)
