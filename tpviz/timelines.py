"""Timelines: when a rank computes and when its link sends, in a forward under TP and under FSDP (timelines)."""

from __future__ import annotations

from typing import NamedTuple

from tpviz.i18n import N_
from tpviz.machines import Machine, group_seconds
from tpviz.matmuls import matmul_seconds
from tpviz.transformers import Transformer, core_matmuls, forward_traffic, linear_matmuls

ATTENTION, MLP, LAYER = N_("attention"), N_("MLP"), N_("layer")
ALL_REDUCE, GATHER = "AllReduce", N_("gather")


class Task(NamedTuple):
    """Something that a rank does in a layer."""

    name: str
    """To be shown through ``i18n._``."""
    layer: int
    sends: bool
    """Whether its link is busy with it; otherwise it computes."""
    start: float
    """In seconds."""
    seconds: float

    @property
    def end(self) -> float:
        """In seconds."""
        return self.start + self.seconds


def halves(model: Transformer, machine: Machine, tensor: int, micro_batch: float) -> tuple[float, float]:
    """Return the seconds that a rank computes in a layer's attention and in its MLP, forward.

    Together they are ``steps.layer_phase``'s matmuls and element-wise work; what lies outside of both is halved.
    """
    matmuls = linear_matmuls(model, micro_batch, tensor)
    traffic = forward_traffic(model, micro_batch, tensor, sequence_parallel=False)
    stream = machine.stream * 2 / machine.dtype.itemsize
    parts = (
        (matmuls[:2] + core_matmuls(model, micro_batch, tensor), traffic.core),
        (matmuls[2:], traffic.mlp),
    )
    attention, mlp = (
        float(
            sum(matmul_seconds(each.m, each.k, each.n, machine, each.copies) for each in own)
            + (moved + traffic.outside / 2) / stream
        )
        for own, moved in parts
    )
    return attention, mlp


def tensor_parallel_forward(
    model: Transformer, machine: Machine, ranks: int, micro_batch: float, layers: int
) -> list[Task]:
    """Return a rank's tasks under TP: what follows an all-reduce needs its result, so one task follows the other.

    ``micro_batch`` is the sequences of the whole group. Source: Megatron-LM 2019, arXiv 1909.08053, section 3.
    """
    payload = micro_batch * model.sequence * model.hidden * machine.dtype.itemsize
    sent = float(group_seconds(machine, "all_reduce", payload, ranks))
    tasks: list[Task] = []
    now = 0.0
    for layer in range(layers):
        for name, computed in zip((ATTENTION, MLP), halves(model, machine, ranks, micro_batch), strict=True):
            tasks += [Task(name, layer, False, now, computed), Task(ALL_REDUCE, layer, True, now + computed, sent)]
            now = tasks[-1].end
    return tasks


def fsdp_forward(model: Transformer, machine: Machine, ranks: int, micro_batch: float, layers: int) -> list[Task]:
    """Return a rank's tasks under FSDP: the weights of a layer are gathered while the layer before it computes.

    ``micro_batch`` is the rank's own sequences. Source: PyTorch FSDP, arXiv 2304.11277, section 3.3.
    """
    payload = model.layer_parameters * machine.dtype.itemsize
    gathered = float(group_seconds(machine, "all_gather", payload, ranks))
    computed = sum(halves(model, machine, 1, micro_batch))
    tasks = [Task(GATHER, 0, True, 0.0, gathered)]
    now = gathered
    for layer in range(layers):
        tasks.append(Task(LAYER, layer, False, now, computed))
        if layer + 1 < layers:
            tasks.append(Task(GATHER, layer + 1, True, now, gathered))
        now = max(task.end for task in tasks)
    return tasks


def waiting(tasks: list[Task]) -> float:
    """Return the seconds in which the rank computes nothing, until its last task ends."""
    return max(task.end for task in tasks) - sum(task.seconds for task in tasks if not task.sends)
