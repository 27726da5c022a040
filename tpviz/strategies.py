"""What a rank sends in a layer, and what it keeps, under TP, sequence parallelism, ZeRO and DP (strategies).

Ranks stand in a mesh: ``tensor`` of them share a layer, and ``data`` such groups share the batch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from tpviz.costs import Amount
from tpviz.i18n import _
from tpviz.memory import STAGES, ModelStates, model_states
from tpviz.trace import wire_factor
from tpviz.transformers import Recompute, Transformer, activation_bytes, check_recompute, end_activation_bytes


@dataclass(frozen=True)
class Strategy:
    """How a model is spread over tensor · data ranks."""

    tensor: int = 1
    """The TP degree, t."""
    data: int = 1
    """The ranks that hold the same shard of TP, each with sequences of its own: DP, or FSDP."""
    stage: int = 0
    """ZeRO's, over the data ranks: 0 is plain DP, 3 is FSDP."""
    sequence_parallel: bool = False
    recompute: Recompute = "none"

    def __post_init__(self) -> None:
        check_recompute(self.recompute)
        if self.tensor < 1 or self.data < 1:
            message = _("tensor={tensor}, data={data}: expected at least one rank in each direction.")
            raise ValueError(message.format(tensor=self.tensor, data=self.data))
        if self.stage not in STAGES:
            raise ValueError(_("ZeRO has the stages 0, 1, 2 and 3, not {stage}.").format(stage=self.stage))

    @property
    def ranks(self) -> int:
        """All ranks, tensor · data."""
        return self.tensor * self.data

    def check(self, model: Transformer) -> None:
        """Refuse a TP degree that does not divide the model's heads, or the rows that sequence parallelism cuts."""
        sizes = {"heads": model.heads} | ({"sequence": model.sequence} if self.sequence_parallel else {})
        for name, size in sizes.items():
            # A map's points lie between the models that there are.
            if np.ndim(size) == 0 and size % self.tensor:
                message = _(
                    "{name}={size} on {tensor} ranks: each takes as many, so choose a TP degree that divides it."
                )
                raise ValueError(message.format(name=name, size=size, tensor=self.tensor))


def strategy_name(strategy: Strategy) -> str:
    """Return what people call it: "FSDP", "TP 8", "TP 8 × ZeRO-1"; degrees only where there are two."""
    across = ("DP", "ZeRO-1", "ZeRO-2", "FSDP")[strategy.stage]
    if strategy.tensor == 1:
        return across
    if strategy.data == 1:
        return f"TP {strategy.tensor}"
    return f"TP {strategy.tensor} × {across} {strategy.data}"


class Collective(NamedTuple):
    """A collective of one layer in one step, as the trace would record it."""

    kind: str
    phase: str
    """"forward", "backward", "gradients", "recompute" (a forward's, again), or "update" (after the optimizer)."""
    payload_bytes: Amount
    over: str
    """"tensor" or "data": which ranks of the mesh."""


def layer_collectives(
    model: Transformer, strategy: Strategy, micro_batch: Amount, element_bytes: int = 2
) -> list[Collective]:
    """Return what a rank of the mesh sends in one layer, in one step of one micro-batch.

    With S = b·s·h · ``element_bytes`` of activations, on t > 1 ranks:

        TP                  2 all-reduces of S forward, 2 backward (Megatron-LM 2019, arXiv 1909.08053, section 3)
        sequence parallel   2 all-gathers and 2 reduce-scatters of S, forward and backward; and an all-reduce of the
                            6h replicated parameters' gradients (Korthikanti et al. 2022, arXiv 2205.05198, 4.2.2)
        full recompute      forward's once more

    With P bytes of this rank's parameters of the layer, on d > 1 data ranks (ZeRO, arXiv 1910.02054, section 7):

        stage 0 (DP)        an all-reduce of P
        stages 1, 2         a reduce-scatter of P, and an all-gather of P after the optimizer's step
        stage 3 (FSDP)      all-gathers of P forward and backward, and a reduce-scatter of P
    """
    strategy.check(model)
    found = []
    if strategy.tensor > 1:
        activations = micro_batch * model.sequence * model.hidden * element_bytes
        kinds = ("all_gather", "reduce_scatter") if strategy.sequence_parallel else ("all_reduce",)
        phases = ("forward", *(("recompute",) if strategy.recompute == "full" else ()), "backward")
        found += [Collective(kind, phase, activations, "tensor") for phase in phases for kind in 2 * kinds]
        if strategy.sequence_parallel:
            found.append(Collective("all_reduce", "gradients", 6 * model.hidden * element_bytes, "tensor"))
    if strategy.data > 1:
        parameters = model.rank_layer_parameters(strategy.tensor) * element_bytes
        found += [Collective(kind, phase, parameters, "data") for kind, phase in ZERO[strategy.stage]]
    return found


_DIVIDED = (("reduce_scatter", "gradients"), ("all_gather", "update"))
ZERO = (
    (("all_reduce", "gradients"),),
    _DIVIDED,
    _DIVIDED,
    (("all_gather", "forward"), ("all_gather", "backward"), ("reduce_scatter", "gradients")),
)
"""What each stage sends of its parameters: the collective and its phase."""


class SentBytes(NamedTuple):
    """What one rank sends in a step, in bytes on the wire."""

    tensor: Amount
    """To the ranks that share its layers: activations, and their gradients."""
    data: Amount
    """To the ranks that hold the same shard of TP: weights, and their gradients."""


def sent_bytes(model: Transformer, strategy: Strategy, micro_batch: Amount, element_bytes: int = 2) -> SentBytes:
    """Return what one rank sends in a step of one micro-batch: ``layer_collectives``, and those of the two ends.

    The ends add two all-reduces of activations under TP, and of their own parameters what a layer's send.
    """
    ranks = {"tensor": strategy.tensor, "data": strategy.data}
    sent: dict[str, Amount] = dict.fromkeys(ranks, 0.0)
    for each in layer_collectives(model, strategy, micro_batch, element_bytes):
        wire = wire_factor(each.kind, ranks[each.over]) * each.payload_bytes
        sent[each.over] = sent[each.over] + model.layers * wire
    activations = micro_batch * model.sequence * model.hidden * element_bytes
    sent["tensor"] = sent["tensor"] + 2 * wire_factor("all_reduce", strategy.tensor) * activations
    parameters = model.rank_end_parameters(strategy.tensor) * element_bytes
    for kind, _phase in ZERO[strategy.stage]:
        sent["data"] = sent["data"] + wire_factor(kind, strategy.data) * parameters
    return SentBytes(**sent)


class RankBytes(NamedTuple):
    """What one rank keeps at the end of a forward, in bytes."""

    states: ModelStates
    gathered: Amount
    """Stage 3: the layer that is being used, and the next one, prefetched."""
    activations: Amount

    @property
    def total(self) -> Amount:
        """The sum, in bytes; without what libraries and the allocator take beside it."""
        return self.states.total + self.gathered + self.activations


def rank_bytes(model: Transformer, strategy: Strategy, micro_batch: Amount) -> RankBytes:
    """Return what one rank keeps at the end of a forward, in mixed precision with Adam.

    Model states of this rank's parameters by ZeRO's formulas (``memory.model_states``), activations by Korthikanti's
    (``transformers.activation_bytes``). With full recomputation one layer's activations exist whole for a while, too.
    """
    strategy.check(model)
    tensor, sequence_parallel = strategy.tensor, strategy.sequence_parallel
    layer = model.rank_layer_parameters(tensor)
    parameters = model.layers * layer + model.rank_end_parameters(tensor)
    kept = model.layers * activation_bytes(model, micro_batch, tensor, sequence_parallel, strategy.recompute)
    if strategy.recompute == "full":
        kept = kept + activation_bytes(model, micro_batch, tensor, sequence_parallel)
    return RankBytes(
        model_states(parameters, strategy.data, strategy.stage),  # type: ignore[arg-type]  # arrays do as well
        2 * 2 * layer if strategy.stage == 3 and strategy.data > 1 else 0.0,
        kept + end_activation_bytes(model, micro_batch, tensor, sequence_parallel),
    )
