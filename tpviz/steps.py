"""Step time: what a training step of a Transformer spends its seconds on, under TP, ZeRO, DP and both (steps)."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from tpviz.costs import Amount
from tpviz.i18n import _
from tpviz.machines import Machine, group_seconds
from tpviz.matmuls import matmul_seconds
from tpviz.strategies import ZERO, Collective, Strategy, layer_collectives
from tpviz.tables import Table
from tpviz.transformers import (
    Matmul,
    Transformer,
    backward_traffic,
    core_matmuls,
    forward_traffic,
    linear_matmuls,
)

UPDATE_BYTES = 28
"""Bytes that Adam moves for a parameter: reads its gradient (2), reads and writes its float32 copy, momentum and
variance (24), writes it in 16 bits (2)."""


class Phase(NamedTuple):
    """One layer's seconds on a rank in one phase, one after the other: nothing of TP overlaps."""

    matmuls: Amount
    elementwise: Amount
    tensor_parallel: Amount
    """TP's collectives: the next operator needs what they deliver."""

    @property
    def seconds(self) -> Amount:
        """The sum."""
        return self.matmuls + self.elementwise + self.tensor_parallel


class Breakdown(NamedTuple):
    """A step's seconds on one rank, by what they are spent on."""

    matmuls: Amount
    elementwise: Amount
    host: Amount
    """Waiting for the host (``Machine.host``)."""
    tensor_parallel: Amount
    """TP's collectives, on the critical path."""
    gathers: Amount
    """FSDP's gathers of parameters (and those after the update of stages 1 and 2), where nothing hides them."""
    gradients: Amount
    """The data ranks' sums of gradients, where nothing hides them."""
    optimizer: Amount
    hidden: Amount
    """Not part of the total: seconds of gathers and gradients behind other layers' work. Without prefetch, and with
    gradients sent last of all, a step takes ``total + hidden``."""

    @property
    def total(self) -> Amount:
        """The step's seconds: the sum of all terms but ``hidden``."""
        return sum(self[:-1], start=0.0)

    def table(self) -> Table:
        """Return the terms as a table, in milliseconds and in shares of the total."""
        names = [
            _("matmuls"),
            _("element-wise work"),
            _("waiting for the host"),
            _("TP's collectives"),
            _("gathers of parameters"),
            _("sums of gradients"),
            _("optimizer"),
        ]
        terms = zip(names, self[:-1], strict=True)
        rows = [[name, f"{1e3 * term:.2f} ms", f"{term / self.total:.1%}"] for name, term in terms]
        rows.append([_("total"), f"{1e3 * self.total:.2f} ms", ""])
        rows.append([_("hidden behind other work"), f"{1e3 * self.hidden:.2f} ms", ""])
        return Table([_("spent on"), _("time"), _("share")], rows)


def layer_phase(model: Transformer, machine: Machine, strategy: Strategy, micro_batch: Amount, phase: str) -> Phase:
    """Return one layer's seconds in "forward", "backward" (without what it computes again) or "recompute".

    The backward of Y = X W is two matmuls, dX = dY Wᵀ and dW = Xᵀ dY.
    """
    t, size = strategy.tensor, machine.dtype.itemsize
    matmuls, core = linear_matmuls(model, micro_batch, t), core_matmuls(model, micro_batch, t)
    counted = backward_traffic if phase == "backward" else forward_traffic
    traffic = counted(model, micro_batch, t, strategy.sequence_parallel)
    # Traffic is counted for 16 bits.
    stream = machine.stream * 2 / size
    if phase == "recompute" and strategy.recompute == "none":
        return Phase(0.0, 0.0, 0.0)
    if phase == "recompute" and strategy.recompute == "selective":
        return Phase(_seconds(core, machine), traffic.core / stream, 0.0)
    matmuls += core
    if phase == "backward":
        matmuls = tuple(each for one in matmuls for each in _backward(one))
    collectives = layer_collectives(model, strategy, micro_batch, size)
    sent = [each for each in collectives if (each.over, each.phase) == ("tensor", phase)]
    return Phase(_seconds(matmuls, machine), sum(traffic) / stream, _sent(sent, machine, strategy))


def layer_seconds(model: Transformer, machine: Machine, strategy: Strategy, micro_batch: Amount) -> Phase:
    """Return one layer's seconds forward and backward together, with what is computed again."""
    phases = [layer_phase(model, machine, strategy, micro_batch, each) for each in ("forward", "recompute", "backward")]
    return Phase(*(sum(parts, start=0.0) for parts in zip(*phases, strict=True)))


def _seconds(matmuls: tuple[Matmul, ...], machine: Machine) -> Amount:
    return sum((matmul_seconds(each.m, each.k, each.n, machine, each.copies) for each in matmuls), start=0.0)


def _backward(forward: Matmul) -> tuple[Matmul, Matmul]:
    name, m, k, n, copies = forward
    return Matmul(f"d{name} input", m, n, k, copies), Matmul(f"d{name} weight", k, m, n, copies)


def _sent(collectives: list[Collective], machine: Machine, strategy: Strategy) -> Amount:
    groups = {"tensor": (strategy.tensor, 1), "data": (strategy.data, strategy.tensor)}
    each = (group_seconds(machine, sent.kind, sent.payload_bytes, *groups[sent.over]) for sent in collectives)
    return sum(each, start=0.0)


def step(model: Transformer, machine: Machine, strategy: Strategy, micro_batch: Amount) -> Breakdown:
    """Return the breakdown of a training step in which each data rank works on one micro-batch (sequences).

    All layers are alike. TP's collectives wait for nobody and are waited for. FSDP prefetches: the gather of a layer
    runs while the one before it computes, and so do, backward, its gather and the sum of the gradients of the layer
    after it; what takes longer than that work is exposed (backward as ``gradients``), and so are the first gather and
    the last sum; backward's first gather has the output layer's matmuls to hide behind. (TP's and FSDP's transfers are
    taken to run side by side.) Stages 1 and 2 gather parameters after the optimizer, exposed. The two ends add the
    output layer's matmuls, two collectives of TP and their own parameters', exposed.

    Sources: Megatron-LM 2019 (arXiv 1909.08053), ZeRO (1910.02054), PyTorch FSDP (2304.11277, section 3.3).
    """
    strategy.check(model)
    layers, t = model.layers, strategy.tensor
    phases = [layer_phase(model, machine, strategy, micro_batch, each) for each in ("forward", "recompute", "backward")]
    collectives = layer_collectives(model, strategy, micro_batch, machine.dtype.itemsize)
    ends, of_ends = _ends(model, machine, strategy, micro_batch)

    def sent(over: str, phase: str) -> Amount:
        return _sent([each for each in collectives if (each.over, each.phase) == (over, phase)], machine, strategy)

    ahead, again, sums = (sent("data", phase) for phase in ("forward", "backward", "gradients"))
    gathers = ahead + (layers - 1) * np.maximum(0, ahead - phases[0].seconds) + np.maximum(0, again - ends.matmuls)
    backward = phases[1].seconds + phases[2].seconds
    gradients = sums + (layers - 1) * np.maximum(0, again + sums - backward)
    parameters = layers * model.rank_layer_parameters(t) + model.rank_end_parameters(t)
    tensor_parallel = sum((each.tensor_parallel for each in phases), start=sent("tensor", "gradients"))
    of_ends_gathers = _sent([each for each in of_ends if each.kind == "all_gather"], machine, strategy)
    of_ends_sums = _sent([each for each in of_ends if each.kind != "all_gather"], machine, strategy)
    return Breakdown(
        matmuls=layers * sum((each.matmuls for each in phases), start=0.0) + ends.matmuls,
        elementwise=layers * sum((each.elementwise for each in phases), start=0.0),
        host=layers * machine.host,
        tensor_parallel=layers * tensor_parallel + ends.tensor_parallel,
        gathers=gathers + layers * sent("data", "update") + of_ends_gathers,
        gradients=gradients + of_ends_sums,
        optimizer=UPDATE_BYTES * parameters / (strategy.data if strategy.stage > 0 else 1) / machine.stream,
        hidden=layers * (ahead + again + sums) - gathers - gradients,
    )


def _ends(
    model: Transformer, machine: Machine, strategy: Strategy, micro_batch: Amount
) -> tuple[Phase, list[Collective]]:
    """The output layer's matmuls, forward and backward, and TP's two collectives; and what the data ranks send."""
    rows, size = micro_batch * model.sequence, machine.dtype.itemsize
    logits = Matmul("logits", rows, model.hidden, model.vocabulary / strategy.tensor)
    across = 2 * group_seconds(machine, "all_reduce", rows * model.hidden * size, strategy.tensor)
    payload = model.rank_end_parameters(strategy.tensor) * size
    kinds = ZERO[strategy.stage] if strategy.data > 1 else ()
    of_ends = [Collective(kind, phase, payload, "data") for kind, phase in kinds]
    return Phase(_seconds((logits, *_backward(logits)), machine), 0.0, across), of_ends
