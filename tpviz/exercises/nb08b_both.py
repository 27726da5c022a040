"""The exercises of notebook 08b, FSDP, TP or both (checks). The cost model itself decides what is right."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any, NamedTuple

from tpviz.exercises.amounts import AmountExercise, BestExercise
from tpviz.exercises.pattern import Misconception
from tpviz.i18n import N_, _
from tpviz.machines import DGX_H100, PCIE_BOX, Machine
from tpviz.memory import GB
from tpviz.published import MEGATRON_2021
from tpviz.steps import step
from tpviz.strategies import RankBytes, Strategy, rank_bytes, strategy_name
from tpviz.tables import three
from tpviz.transformers import Transformer, activation_bytes

SLACK = 0.15
"""The model misses published figures by up to 16%: what it finds closer than this, it cannot tell apart."""
TP = 8


def _kept(tensor: int) -> float:
    """MB of a layer whose X has 10⁶ entries, without attention's core."""
    model = Transformer(1000, 8, 1, 1000)
    return float(activation_bytes(model, 1, tensor, recompute="selective")) / 1e6


KEPT = AmountExercise(
    id="08b-kept",
    variable="kept",
    answer=lambda: _kept(TP),
    ask="MB on each of 8 ranks",
    right=N_(
        "10 + 24/8. TP divides what lies between its two layers; what lies outside stands whole on every rank. Notebook"
        " 11 divides that, too."
    ),
    hint_sentences=(
        N_("In 06, which of X, H and Y was cut, and which stood whole on every rank?"),
        N_("The 24 MB inside are divided by 8. The 10 MB outside are not."),
    ),
    misconceptions=(
        Misconception(
            "divided by all ranks",
            34 / TP,
            N_(
                "You divided everything by 8. H is cut, and X is not: every rank keeps all of it, for its own backward."
                " So only the 24 MB inside shrink."
            ),
        ),
        Misconception(
            "nothing divided",
            34.0,
            N_("Each rank computes its part of H only, and keeps only that. What lies inside is divided by 8."),
        ),
        Misconception(
            "inside only",
            24 / TP,
            N_("That is what lies inside, 24/8. The 10 MB outside are kept as well, and on every rank."),
        ),
        Misconception(
            "the other way round",
            10 / TP + 24,
            N_(
                "You divided what lies outside. It is the other way round: X stands whole on every rank, H is cut. "
                "Sequence parallelism, of notebook 11, divides both."
            ),
        ),
    ),
)


class Cluster(NamedTuple):
    """A model, ranks to train it on, and the sequences that each data rank works on at once."""

    model: Transformer
    machine: Machine
    ranks: int
    micro_batch: int = 1


_7B = next(run.model for run in MEGATRON_2021 if run.size == 7.5)
NODE = Cluster(_7B, DGX_H100, 8)
BOXES = Cluster(_7B, PCIE_BOX, 64)
WIDE = Cluster(Transformer(65536, 512, 4, 2048), DGX_H100, 256, 4)
"""A layer whose weights alone, in 16 bits, are more than a card holds."""

Choice = tuple[int, int, int]


def _strategy(choice: Any) -> Strategy:
    tensor, data, stage = choice
    return Strategy(tensor, data, stage, recompute="selective")


@cache
def _judged(cluster: Cluster, choice: Choice) -> tuple[RankBytes, float]:
    """What a rank keeps, and sequences a second."""
    strategy = _strategy(choice)
    kept = rank_bytes(cluster.model, strategy, cluster.micro_batch)
    seconds = float(step(cluster.model, cluster.machine, strategy, cluster.micro_batch).total)
    return kept, strategy.data * cluster.micro_batch / seconds


def _is_choice(value: object) -> bool:
    return type(value) is list and len(value) == 3 and all(type(each) is int for each in value)


def _impossible(cluster: Cluster, choice: list[int]) -> str | None:
    """Why a cluster cannot run it: what is asked for does not exist, does not use all ranks, or does not fit."""
    tensor, data, _stage = choice
    if tensor * data != cluster.ranks and min(tensor, data) > 0:
        text = _("{tensor} × {data} is not {ranks}: the two degrees multiply to the number of ranks.")
        return text.format(tensor=_shown(tensor), data=_shown(data), ranks=cluster.ranks)
    try:
        kept, _speed = _judged(cluster, (choice[0], choice[1], choice[2]))
    except ValueError as error:
        return str(error)
    if kept.total <= cluster.machine.memory:
        return None
    text = _(
        "{name}: a rank would keep {kept} GB, {states} of model states, {gathered} of gathered layers and "
        "{activations} of activations. A card has {memory:g} GB."
    )
    return text.format(
        name=strategy_name(_strategy(choice)),
        kept=three(float(kept.total) / GB),
        states=three(kept.states.total / GB),
        gathered=three(float(kept.gathered) / GB),
        activations=three(float(kept.activations) / GB),
        memory=cluster.machine.memory / GB,
    )


def _shown(number: int) -> str:
    return str(number) if abs(number) < 10**6 else _("a very large number")


def possible(cluster: Cluster) -> Iterator[list[int]]:
    """Every choice that a cluster can run; over a single data rank the stage makes no difference."""
    for tensor in range(1, cluster.ranks + 1):
        if cluster.ranks % tensor == 0:
            for stage in range(4):
                choice = [tensor, cluster.ranks // tensor, stage]
                if _impossible(cluster, choice) is None:
                    yield choice


@cache
def _choices(cluster: Cluster) -> list[list[int]]:
    return list(possible(cluster))


def _speed(cluster: Cluster, choice: list[int]) -> float:
    return _judged(cluster, (choice[0], choice[1], choice[2]))[1]


def _spread(cluster: Cluster, **texts: Any) -> BestExercise:
    """An exercise that asks how to spread a model over a cluster."""

    def fields(choice: list[int] | None, best: list[int]) -> dict[str, str]:
        found = {"best": three(_speed(cluster, best)), "memory": f"{cluster.machine.memory / GB:g}"}
        if choice is None:
            return found
        name = strategy_name(_strategy(choice))
        return found | {"name": name, "speed": three(_speed(cluster, choice))}

    return BestExercise(
        hole="[..., ..., ...]",
        ask=_ASK,
        form=N_("A list of three whole numbers is needed: TP degree, data ranks, ZeRO stage."),
        known=_is_choice,
        impossible=lambda choice: _impossible(cluster, choice),
        price=lambda choice: 1 / _speed(cluster, choice),
        choices=lambda: _choices(cluster),
        fields=fields,
        slower=N_("{name} fits, and trains {speed} sequences a second. There is a choice that trains {best}."),
        slack=SLACK,
        **texts,
    )


_ASK = "TP degree, data ranks, ZeRO stage (0 is DP, 3 is FSDP)"

ONE_NODE = _spread(
    NODE,
    id="08b-node",
    answer=lambda: [1, 8, 3],
    variable="spread",
    right=N_(
        "It fits, and each card runs a whole layer well. What the data ranks send hides behind the computing, so there "
        "is no reason for much TP here."
    ),
    hint_sentences=(
        N_("Move the figure above to this model and this cluster. Which rows fit, and which of them is fastest?"),
        N_("A rank without TP has large matmuls, and its gathers run while it computes."),
    ),
    misconceptions=(
        Misconception(
            "TP everywhere",
            [8, 1, 0],
            N_(
                "TP 8 fits, and trains {speed} sequences a second: all 8 ranks work on one sequence, wait for each "
                "AllReduce, and have small matmuls. There is a choice that trains {best}."
            ),
        ),
        Misconception(
            "plain DP",
            [1, 8, 0],
            N_(
                "Each rank would keep all 16 bytes of every parameter, and activations: more than the {memory} GB of "
                "the card. Something has to be cut."
            ),
        ),
    ),
)

MANY_BOXES = _spread(
    BOXES,
    id="08b-boxes",
    answer=lambda: [1, 64, 2],
    variable="spread",
    right=N_(
        "On a slow link send little, and seldom: each weight's gradient once, and the weight once, in each step. FSDP "
        "gathers the weights twice, and TP sends in every layer."
    ),
    hint_sentences=(
        N_("Move the figure above to this model and these boxes. What do DP, ZeRO-2 and FSDP send?"),
        N_("ZeRO-2 keeps the weights whole on each rank, so that nothing need be gathered for forward and backward."),
    ),
    misconceptions=(
        Misconception(
            "FSDP as always",
            [1, 64, 3],
            N_(
                "FSDP fits, and trains {speed} sequences a second: it gathers all weights twice a step, more than this "
                "link can hide behind one sequence. A lower stage keeps more and sends less: {best}."
            ),
        ),
        Misconception(
            "TP in each box",
            [4, 16, 3],
            N_(
                "TP inside of a box is right where NVLink is inside. PCIe is slow, and the ranks wait for it in every "
                "layer: {speed} sequences a second. There is a choice that trains {best}."
            ),
        ),
        Misconception(
            "TP in each box, with DP",
            [4, 16, 0],
            N_(
                "TP inside of a box is right where NVLink is inside. PCIe is slow, and the ranks wait for it in every "
                "layer: {speed} sequences a second. There is a choice that trains {best}."
            ),
        ),
        Misconception(
            "plain DP",
            [1, 64, 0],
            N_(
                "Each rank would keep all 16 bytes of every parameter, and activations: more than the {memory} GB of "
                "the card. Something has to be cut."
            ),
        ),
    ),
)

WIDE_LAYER = _spread(
    WIDE,
    id="08b-wide",
    answer=lambda: [8, 32, 3],
    variable="spread",
    right=N_(
        "FSDP alone has to gather whole layers, and a card holds none. TP cuts the layer itself; ZeRO over the other "
        "ranks cuts the rest. With TP 8 all that waits stays on NVLink."
    ),
    hint_sentences=(
        N_("One layer's weights are 103 GB. FSDP gathers a layer, and prefetches the next. What has to be cut?"),
        N_("TP has to cut a layer until two of them, and the rest, fit in 80 GB. Is 2 or 4 enough?"),
    ),
    misconceptions=(
        Misconception(
            "FSDP alone",
            [1, 256, 3],
            N_(
                "FSDP divides what is stored by any number of ranks. But it computes with whole layers: one of them is "
                "103 GB, and the next is prefetched. A card has {memory} GB, and more ranks do not help."
            ),
        ),
        Misconception(
            "TP inside, copies outside",
            [8, 32, 0],
            N_(
                "TP 8 brings a layer to 13 GB. But with plain DP each group keeps all model states, 16 bytes a "
                "parameter, an eighth of them on each rank: more than {memory} GB. Cut these, too."
            ),
        ),
    ),
)

EXERCISES = (KEPT, ONE_NODE, MANY_BOXES, WIDE_LAYER)
