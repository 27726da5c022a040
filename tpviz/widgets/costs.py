"""Widgets of what a way to spread a model costs: time, memory and bytes sent (widgets)."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tpviz import charts
from tpviz.diagrams import Drawing
from tpviz.i18n import N_, _
from tpviz.machines import DGX_A100, DGX_H100, PCIE_BOX, Machine
from tpviz.published import MEGATRON_2019, MEGATRON_2021
from tpviz.steps import Phase, layer_seconds, step
from tpviz.strategies import Strategy, rank_bytes, sent_bytes, strategy_name
from tpviz.transformers import Recompute, Transformer, activation_parts
from tpviz.widgets.shell import RANKS, Shell, choice, named

APART = DGX_H100._replace(name=N_("H100, one a node"), ranks_per_node=1)
"""The same cards without NVLink: each in a node of its own, with its share of a DGX H100's network."""
LINKED = {N_("A100"): DGX_A100, N_("H100"): DGX_H100, N_("PCIe box"): PCIE_BOX, N_("network"): APART}
"""By short names: a slider has little room beside it."""
DEGREES = (1, 2, 4, 8, 16)
HEAD = 64
"""The features of a head of attention."""


@dataclass(frozen=True)
class SpeedMap:
    """How many times as fast some ranks with TP are as one, over hidden sizes (columns) and tokens (rows)."""

    machine: Machine
    ranks: int
    hidden: NDArray[np.float64]
    tokens: NDArray[np.float64]
    speed_ups: NDArray[np.float64]


_HIDDEN, _TOKENS = 2.0 ** np.linspace(10, 15, 51), 2.0 ** np.linspace(7, 13, 49)


def compute_speed_map(machine: str, ranks: int) -> SpeedMap:
    """A layer's time on one rank divided by its time under TP, forward and backward, for one sequence of tokens."""
    model = Transformer(_HIDDEN, _HIDDEN / HEAD, 1, _TOKENS[:, None])  # type: ignore[arg-type]
    one, shared = (layer_seconds(model, LINKED[machine], Strategy(degree), 1).seconds for degree in (1, ranks))
    return SpeedMap(LINKED[machine], ranks, _HIDDEN, _TOKENS, np.asarray(one / shared))


def draw_speed_map(found: SpeedMap) -> Drawing:
    """The map, with three published models on it."""
    known = [(MEGATRON_2019[0].size, MEGATRON_2019[0].model)]
    known += [(f"{run.size:g}B", run.model) for run in MEGATRON_2021 if run.size in (7.5, 145.6)]
    marks = [charts.Mark(size, float(model.hidden), model.sequence) for size, model in known]
    return charts.speed_map(
        found.hidden.tolist(), found.tokens.tolist(), found.speed_ups, found.ranks, _(found.machine.name), marks
    )


def speed_map() -> Shell:
    """Choose a machine and a number of ranks: for which models are they faster than one rank?"""
    return Shell(
        compute_speed_map,
        draw_speed_map,
        {
            "machine": choice(_("machine"), named(LINKED), "H100"),
            "ranks": choice(_("ranks"), DEGREES[1:], 8),
        },
    )


@dataclass(frozen=True)
class LayerTimes:
    """What a layer's time is spent on, by TP degree."""

    machine: Machine
    hidden: int
    spent: list[Phase]


def compute_layer_times(hidden: int, machine: str) -> LayerTimes:
    """A layer forward and backward, for one sequence of 1024 tokens."""
    model = Transformer(hidden, hidden // HEAD, 1, 1024)
    spent = [layer_seconds(model, LINKED[machine], Strategy(degree), 1) for degree in DEGREES]
    return LayerTimes(LINKED[machine], hidden, spent)


def draw_layer_times(found: LayerTimes) -> Drawing:
    """A bar for each degree."""
    title = _("h = {hidden:,} and 1,024 tokens, {machine}")
    title = title.format(hidden=found.hidden, machine=_(found.machine.name))
    return charts.breakdowns(DEGREES, found.spent, title)


def layer_times() -> Shell:
    """Choose a hidden size and a machine: what is a layer's time spent on, on more and more ranks?"""
    return Shell(
        compute_layer_times,
        draw_layer_times,
        {
            "hidden": choice(_("hidden size"), (1024, 2048, 4096, 8192), 1024),
            "machine": choice(_("machine"), named(LINKED), "H100"),
        },
    )


# FSDP, TP or both

CLUSTERS = {N_("8 H100"): (DGX_H100, 8), N_("64 H100"): (DGX_H100, 64), N_("64 PCIe"): (PCIE_BOX, 64)}
SIZES = {f"{run.size:g}B": run.model for run in MEGATRON_2021 if run.size < 200}


@dataclass(frozen=True)
class Ways:
    """A model on a cluster, spread in several ways."""

    size: str
    machine: Machine
    ranks: int
    found: list[charts.Way]


def compute_ways(size: str, cluster: str) -> Ways:
    """What each way keeps, sends and takes; each data rank works on one sequence, and recomputes attention's core."""
    machine, ranks = CLUSTERS[cluster]
    inside = machine.ranks_per_node
    spread = [(1, 0), (1, 1), (1, 2), (1, 3), (2, 3), *([(4, 3)] if ranks == inside else [(inside, 3)]), (inside, 0)]
    strategies = [Strategy(tensor, ranks // tensor, stage, recompute="selective") for tensor, stage in spread]
    return Ways(size, machine, ranks, [_way(SIZES[size], machine, each) for each in strategies])


def _way(model: Transformer, machine: Machine, strategy: Strategy) -> charts.Way:
    sent = sent_bytes(model, strategy, 1)
    return charts.Way(
        strategy_name(strategy),
        rank_bytes(model, strategy, 1),
        float(sent.tensor) / strategy.data,
        float(sent.data) / strategy.data,
        strategy.data / float(step(model, machine, strategy, 1).total),
    )


def draw_ways(ways: Ways) -> Drawing:
    """A row for each way."""
    title = _("{size} on {ranks} ranks: {nodes} × {machine}").format(
        size=ways.size, ranks=ways.ranks, nodes=ways.ranks // ways.machine.ranks_per_node, machine=_(ways.machine.name)
    )
    return charts.ways(ways.found, ways.machine.memory, title)


def ways() -> Shell:
    """Choose a model and a cluster: what does a rank keep and send under DP, ZeRO, FSDP, TP, and both?"""
    return Shell(
        compute_ways,
        draw_ways,
        {
            "size": choice(_("model"), tuple(SIZES), "7.5B"),
            "cluster": choice(_("cluster"), named(CLUSTERS), "8 H100"),
        },
    )


# Activations, with sequence parallel and without


@dataclass(frozen=True)
class Kept:
    """What a rank keeps of one layer until backward, by TP degree."""

    size: str
    recompute: Recompute
    degrees: list[charts.Degree]


def compute_activations(size: str, recompute: Recompute) -> Kept:
    """One layer's activations for one sequence, by Korthikanti's formula."""
    model = SIZES[size]
    degrees = []
    for ranks in RANKS:
        parts = [activation_parts(model, 1, ranks, cut, recompute) for cut in (False, True)]
        degrees.append(charts.Degree(ranks, *(charts.KeptBytes(*map(float, each)) for each in parts)))
    return Kept(size, recompute, degrees)


def draw_activations(kept: Kept) -> Drawing:
    """Two bars for each degree: plain TP, and with sequence parallel."""
    model = SIZES[kept.size]
    message = (
        _("a layer of the {size} model (h = {hidden:,}), attention's core kept")
        if kept.recompute == "none"
        else _("a layer of the {size} model (h = {hidden:,}), attention's core recomputed")
    )
    return charts.activations(kept.degrees, message.format(size=kept.size, hidden=model.hidden))


def activations() -> Shell:
    """Choose a model, and whether attention's core is kept: what does TP cut, and what sequence parallel besides?"""
    cores = [(_("kept"), "none"), (_("recomputed"), "selective")]
    return Shell(
        compute_activations,
        draw_activations,
        {
            "size": choice(_("model"), tuple(SIZES), "18.4B"),
            "recompute": choice(_("attention"), cores, "selective"),
        },
    )
