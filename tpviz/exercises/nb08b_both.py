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
            "outside only", 10.0, N_("That is what lies outside. The rank's part of the 24 MB inside is kept, too.")
        ),
        Misconception(
            "outside twice",
            10 + 34 / TP,
            N_("You counted the outside twice: whole, and an eighth of it again. Only the 24 MB inside are divided."),
        ),
        Misconception(
            "outside for inside",
            10 + 10 / TP,
            N_("You divided the 10 MB outside, and left out the 24 MB inside. The inside is what TP divides."),
        ),
        Misconception(
            "inside twice",
            24 + 24 / TP,
            N_("You counted the inside twice, and the outside not at all. Inside: 24/8. Outside: 10, on every rank."),
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


_13B = Transformer(5120, 40, 40, 2048)
"""A size that the figure of 08b lacks, so that no answer stands in it."""
NODE = Cluster(_13B, DGX_H100, 8)
BOXES = Cluster(_13B, PCIE_BOX, 32)
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
    if min(tensor, data) < 1:
        return _("Both degrees are at least 1, which means: not cut this way.")
    if tensor * data != cluster.ranks:
        text = _("{tensor} × {data} is not {ranks}: the two degrees multiply to the number of ranks.")
        return text.format(tensor=_shown(tensor), data=_shown(data), ranks=cluster.ranks)
    if cluster.model.heads % tensor:
        text = _("The model's attention has {heads} heads, which {tensor} ranks cannot share evenly. Choose less TP.")
        return text.format(heads=cluster.model.heads, tensor=tensor)
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


def _spent(cluster: Cluster, choice: list[int]) -> str:
    """Where a step's seconds go, in words."""
    spent = step(cluster.model, cluster.machine, _strategy(choice), cluster.micro_batch)
    return _(
        "In a step ({sequences} sequences, {total} ms) a rank computes {computed} ms, waits {waited} ms for TP, and "
        "{exposed} ms for what the data ranks send and nothing hides."
    ).format(
        sequences=choice[1] * cluster.micro_batch,
        total=three(1e3 * float(spent.total)),
        computed=three(1e3 * float(spent.matmuls + spent.elementwise)),
        waited=three(1e3 * float(spent.tensor_parallel)),
        exposed=three(1e3 * float(spent.gathers + spent.gradients)),
    )


@cache
def _choices(cluster: Cluster) -> list[list[int]]:
    return list(possible(cluster))


def _speed(cluster: Cluster, choice: list[int]) -> float:
    return _judged(cluster, (choice[0], choice[1], choice[2]))[1]


def _close(cluster: Cluster, choice: list[int]) -> dict[str, str]:
    """How near a choice is to the best."""
    best = max(_speed(cluster, each) for each in _choices(cluster))
    return {"name": strategy_name(_strategy(choice)), "share": f"{_speed(cluster, choice) / best:.0%}"}


def _node_nearly(choice: list[int]) -> str:
    text = (
        _(
            "{name} reaches {share} of the best, too close for this model to tell. It hands the new weights out after "
            "the step, when nothing is left to hide that behind."
        )
        if choice[0] == 1
        else _(
            "{name} reaches {share} of the best, too close for this model to tell. But no card computes a whole layer: "
            "TP waits a little, and is not needed for room."
        )
    )
    return text.format(**_close(NODE, choice))


def _boxes_nearly(choice: list[int]) -> str:
    text = _("{name} sends as much as ZeRO-2, 2 × the weights, and keeps the gradients whole, for which there is room.")
    return text.format(**_close(BOXES, choice))


def _wide_nearly(choice: list[int]) -> str:
    fits = min(each[0] for each in _choices(WIDE))
    nodes = choice[0] // WIDE.machine.ranks_per_node
    text = _(
        "{name} reaches {share} of the best. TP {tensor} spans {nodes} nodes; with so wide a layer that costs little. "
        "The smallest TP that fits is {fits}, and it stays inside of a node."
    )
    return text.format(tensor=choice[0], nodes=nodes, fits=fits, **_close(WIDE, choice))


def _spread(cluster: Cluster, **texts: Any) -> BestExercise:
    """An exercise that asks how to spread a model over a cluster."""

    def fields(choice: list[int] | None, best: list[int]) -> dict[str, str]:
        found = {"best": three(_speed(cluster, best)), "memory": f"{cluster.machine.memory / GB:g}"}
        if choice is None:
            return found
        name = strategy_name(_strategy(choice))
        return found | {"name": name, "speed": three(_speed(cluster, choice)), "spent": _spent(cluster, choice)}

    return BestExercise(
        hole="[..., ..., ...]",
        ask=_ASK,
        form=N_("A list of three whole numbers is needed: TP degree, data ranks, ZeRO stage."),
        known=_is_choice,
        impossible=lambda choice: _impossible(cluster, choice),
        price=lambda choice: 1 / _speed(cluster, choice),
        choices=lambda: _choices(cluster),
        fields=fields,
        slower=N_("{name} fits, and trains {speed} sequences a second; there is a choice that trains {best}. {spent}"),
        slack=SLACK,
        **texts,
    )


_ASK = "TP degree, data ranks, ZeRO stage (0 is DP, 3 is FSDP)"

_NOTHING_CUT = N_(
    "Each rank would keep all 16 bytes of every parameter, and activations: more than the {memory} GB of "
    "the card. Something has to be cut."
)
_TP_ON_PCIE = N_(
    "TP inside of a box is right where NVLink is inside. PCIe is slow, and a step finishes a fourth of the "
    "sequences: {speed} a second, and {best} can be had. {spent}"
)

ONE_NODE = _spread(
    NODE,
    id="08b-node",
    answer=lambda: [1, 8, 3],
    variable="spread",
    right=N_(
        "It fits, and each card runs a whole layer well. What the data ranks send hides behind the computing, so there "
        "is no reason for much TP here."
    ),
    nearly=_node_nearly,
    hint_sentences=(
        N_(
            "The model states are 16 bytes × 13 · 10⁹, and the stages divide more and more of them by 8. Which fit, "
            "with room for activations? In the figure above this model lies between 7.5B and 18.4B."
        ),
        N_("A rank without TP has large matmuls, and FSDP's gathers run while it computes."),
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
            _NOTHING_CUT,
        ),
    ),
)

MANY_BOXES = _spread(
    BOXES,
    id="08b-boxes",
    answer=lambda: [1, 32, 2],
    variable="spread",
    right=N_(
        "On a slow link send little, and seldom: each weight's gradient once, and the weight once, in each step. FSDP "
        "gathers the weights twice, and TP sends in every layer."
    ),
    nearly=_boxes_nearly,
    hint_sentences=(
        N_("What do DP, ZeRO-2 and FSDP send in a step, as a multiple of the weights? Which of them can a card keep?"),
        N_("ZeRO-2 keeps the weights whole on each rank, so that nothing need be gathered for forward and backward."),
    ),
    misconceptions=(
        Misconception(
            "FSDP as always",
            [1, 32, 3],
            N_(
                "FSDP fits, and trains {speed} sequences a second: it gathers all weights twice a step, more than this "
                "link can hide behind one sequence. A lower stage keeps more and sends less: {best}."
            ),
        ),
        Misconception(
            "TP in each box",
            [4, 8, 3],
            _TP_ON_PCIE,
        ),
        Misconception(
            "TP in each box, with DP",
            [4, 8, 0],
            _TP_ON_PCIE,
        ),
        Misconception(
            "plain DP",
            [1, 32, 0],
            _NOTHING_CUT,
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
    nearly=_wide_nearly,
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
