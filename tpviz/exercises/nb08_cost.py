# mypy: allow-untyped-defs, allow-untyped-calls
"""The exercises of notebook 08, what TP costs (checks). The cost model itself decides what is right."""

from functools import cache
from typing import Any

import torch

import tpviz
from tpviz.costs import Amount
from tpviz.exercises.amounts import AmountExercise, AmountFunctionExercise, BestExercise
from tpviz.exercises.pattern import Case, Misconception
from tpviz.i18n import N_, _
from tpviz.machines import DGX_H100, PCIE_BOX, Machine
from tpviz.steps import Phase, layer_seconds
from tpviz.strategies import Strategy
from tpviz.tables import three
from tpviz.transformers import Transformer

DEGREES = (1, 2, 4, 8, 16)
SMALL = Transformer(1024, 16, 1, 1024)
"""On a DGX H100 more TP is slower for it."""
LARGE = Transformer(6144, 48, 1, 2048)
"""For PCIe boxes of 4; a layer of the 18.4B model of 2021."""


@cache
def _spent(model: Transformer, machine: Machine, degree: int) -> Phase:
    return layer_seconds(model, machine, Strategy(degree), 1)


def _milliseconds(seconds: Amount) -> str:
    return three(1e3 * float(seconds))


def _is_degree(value: object) -> bool:
    return type(value) is int and value in DEGREES


def _degrees(model: Transformer, machine: Machine, degrees: tuple[int, ...], **texts: Any) -> BestExercise:
    """An exercise that asks for the degree with which one layer of a model is fastest on a machine."""

    def fields(degree: int | None, best: int) -> dict[str, str]:
        own, other = (_spent(model, machine, each) for each in (degree or best, best))
        return {
            "time": _milliseconds(own.seconds),
            "sent": _milliseconds(own.tensor_parallel),
            "computed": _milliseconds(own.matmuls + own.elementwise),
            "least": _milliseconds(other.seconds),
            "degree": str(degree),
            "gain": f"{float(_spent(model, machine, 1).seconds / own.seconds):.1f}",
        }

    def price(degree: int) -> float:
        return float(_spent(model, machine, degree).seconds)

    return BestExercise(
        form=N_("A number of ranks is needed: 1, 2, 4, 8 or 16."),
        known=_is_degree,
        impossible=lambda degree: None if degree in degrees else _("The question is about at most 8 ranks here."),
        price=price,
        choices=lambda: list(degrees),
        fields=fields,
        slack=0.02,
        answer=lambda: min(degrees, key=price),
        **texts,
    )


FASTEST = _degrees(
    SMALL,
    DGX_H100,
    (1, 2, 4, 8),
    id="08-fastest",
    variable="fastest",
    ask="1, 2, 4 or 8 ranks",
    right=N_(
        "With twice as many ranks, what they compute shrinks by less and less, and what they send takes longer. Here "
        "the two meet early. The notebook shows both."
    ),
    hint_sentences=(
        N_("Each rank has less to compute on 8 ranks than on 4. And what has it to send?"),
        N_(
            "Each AllReduce takes several messages, one after the other: more ranks, more messages. The layer is small,"
            " and they count."
        ),
    ),
    slower=N_("On {degree}, the layer takes {time} ms, of which {sent} ms are sending. There is a better number."),
    misconceptions=(
        Misconception(
            "8 ranks are 8 times as fast",
            8,
            N_(
                "Eight ranks are {gain} times as fast as one here, not 8 times: {computed} ms for computing, and {sent}"
                " ms for sending. That is {time} ms, and with fewer ranks it is {least}."
            ),
        ),
        Misconception(
            "sending never pays",
            1,
            N_(
                "One rank sends nothing and computes everything, in {time} ms. Some sending pays: with the best number "
                "of ranks it is {least} ms."
            ),
        ),
    ),
)

BEYOND = _degrees(
    LARGE,
    PCIE_BOX,
    DEGREES,
    id="08-boxes",
    variable="degree",
    ask="1, 2, 4, 8 or 16 ranks",
    right=N_(
        "As many as a box holds. With more, every AllReduce crosses the network, and even a quarter of its bytes take "
        "longer there than the second box saves."
    ),
    hint_sentences=(
        N_("How many ranks are in one box? What joins them, and what joins two boxes?"),
        N_(
            "4 ranks: a fourth of the computing, and the AllReduces of the cell above. 8 ranks: an eighth, the same "
            "AllReduces inside, and a fourth of the bytes once more over the network, which is ten times as slow."
        ),
    ),
    slower=N_(
        "On {degree}, the layer takes {time} ms: {computed} ms for computing, {sent} ms for sending. With the best "
        "number of ranks it takes {least} ms."
    ),
    misconceptions=(
        Misconception(
            "as many as there are",
            16,
            N_(
                "With 16 ranks computing takes {computed} ms, less than with any other number. But four boxes take part"
                " in each AllReduce: sending takes {sent} ms. That is {time} ms in all, and {least} can be had."
            ),
        ),
        Misconception(
            "as in a DGX",
            8,
            N_(
                "Eight is right where eight ranks share NVLink. Here a box holds 4, so that 8 ranks are two boxes: "
                "{sent} ms for sending, {computed} ms for computing, {time} ms in all. In one box it is {least}."
            ),
        ),
        Misconception(
            "no slow link at all",
            1,
            N_(
                "PCIe is slow, and not that slow: one rank takes {time} ms. The best number of ranks takes {least} ms, "
                "sending included."
            ),
        ),
    ),
)

PAYLOAD, RANKS = 800, 4


def _wire() -> float:
    """What the trace of such an AllReduce says."""
    run = tpviz.run(lambda comm: comm.all_reduce(torch.ones(PAYLOAD // 4)), ranks=RANKS)
    return run.trace[0].wire_bytes


WIRE = AmountExercise(
    id="08-wire",
    variable="wire_bytes",
    answer=_wire,
    ask="bytes that one rank sends",
    right=N_("Six messages of a quarter, 200 bytes each: 2 · 3/4 of 800."),
    hint_sentences=(
        N_("A ring of 4 cuts the tensor into 4 pieces. How many bytes is a piece?"),
        N_("A rank sends a piece 3 times while the sums are formed, and 3 times while they are handed round."),
    ),
    misconceptions=(
        Misconception(
            "payload",
            800,
            N_(
                "That is the payload, the size of the tensor. On two ranks a rank sends as many bytes; on 4 it sends a "
                "piece of 200 bytes more often than 4 times."
            ),
        ),
        Misconception(
            "one half",
            600,
            N_(
                "That is one half of an AllReduce: 3 messages of 200 bytes, after which each rank has one piece of the "
                "sum. The pieces are still to be handed round."
            ),
        ),
        Misconception(
            "twice",
            1600,
            N_(
                "Twice the payload is what it comes close to on very many ranks. On 4 a rank sends 3 pieces of 4, "
                "twice: its own piece need not travel."
            ),
        ),
        Misconception(
            "once more than needed",
            1400,
            N_("That is 7 messages. After 3 a rank has one piece of the sum, and 3 more bring it the other three."),
        ),
        Misconception(
            "two pieces",
            400,
            N_("That is two messages of 200 bytes, one for each half. A half takes 3, since 3 others are in the ring."),
        ),
        Misconception("one piece", 200, N_("That is one message. How many does a rank send, one after the other?")),
        Misconception(
            "to everybody",
            2400,
            N_(
                "You let each rank send the whole tensor to the 3 others. That would work, and a ring sends half of it:"
                " what a neighbour gets is a sum already."
            ),
        ),
        Misconception(
            "all ranks together",
            4800,
            N_("That is what all four ranks send together. Each has a link of its own, so count one of them."),
        ),
    ),
)


def all_reduce_seconds(payload, ranks, latency, printed):
    """Seconds of an AllReduce; `printed`: bytes a second, both ways together."""
    messages = 2 * (ranks - 1)
    wire = 2 * (ranks - 1) / ranks * payload  # hole
    return messages * latency + wire / (printed / 2)  # hole


def _cases() -> list[Case]:
    def case(payload: int, ranks: int, latency: float, printed: float) -> Case:
        label = _("{payload:,} bytes on {ranks} ranks").format(payload=payload, ranks=ranks)
        return Case((payload, ranks, latency, printed), label, ranks)

    return [
        case(2 * 2**20, 8, 3.4e-6, 900e9),
        case(2 * 2**20, 2, 3.4e-6, 900e9),
        case(64 * 2**20, 4, 5.7e-6, 62e9),
    ]


def _microseconds(seconds: float) -> str:
    return f"{1e6 * seconds:.4g} µs"


def _terms(case: Case) -> str:
    payload, ranks, latency, printed = case.args
    alphas = _microseconds(2 * (ranks - 1) * latency)
    sent = _microseconds(_no_latency(payload, ranks, latency, printed))
    return _("{alphas} of latency and {bytes} of bytes").format(alphas=alphas, bytes=sent)


def _both_ways(payload, ranks, latency, printed):
    return all_reduce_seconds(payload, ranks, latency, 2 * printed)


def _payload_sent(payload, ranks, latency, printed):
    return 2 * (ranks - 1) * latency + payload / (printed / 2)


def _payload_both_ways(payload, ranks, latency, printed):
    return 2 * (ranks - 1) * latency + payload / printed


def _one_message(payload, ranks, latency, printed):
    return latency + 2 * (ranks - 1) / ranks * payload / (printed / 2)


def _no_latency(payload, ranks, latency, printed):
    return 2 * (ranks - 1) / ranks * payload / (printed / 2)


def _each_message_all(payload, ranks, latency, printed):
    return 2 * (ranks - 1) * (latency + payload / (printed / 2))


SECONDS = AmountFunctionExercise(
    id="08-seconds",
    function=all_reduce_seconds,
    inputs=_cases,
    shown=_microseconds,
    terms=_terms,
    right=N_(
        "Messages times what one costs, plus bytes on the wire over bytes a second. The printed figure is halved, since"
        " a rank sends on one half of the link while it receives on the other."
    ),
    hint_sentences=(
        N_("Two terms: `messages * latency`, and the bytes that a rank sends over what the link carries in a second."),
        N_("A rank sends 2 (n − 1) pieces of 1/n of the payload. And `printed` counts both directions."),
        N_("`wire = 2 * (ranks - 1) / ranks * payload`, and the link carries `printed / 2` one way."),
    ),
    misconceptions=(
        Misconception(
            "both ways",
            _both_ways,
            N_(
                "You used the printed figure as it is, or half of the bytes. The figure adds up both directions, and a "
                "rank sends on one of them. Tried on {case}, you say {got}, and it is {expected}."
            ),
        ),
        Misconception(
            "payload for wire",
            _payload_sent,
            N_(
                "You sent the payload once. That is right on two ranks only, where a rank sends 2 · 1/2 of it. Tried on"
                " {case}, you say {got}, and it is {expected}: the wire carries 2 (n − 1)/n of the payload."
            ),
        ),
        Misconception(
            "payload, both ways",
            _payload_both_ways,
            N_(
                "Two things. The wire carries 2 (n − 1)/n of the payload, and the printed figure adds up both "
                "directions. Tried on {case}, you say {got}, and it is {expected}."
            ),
        ),
        Misconception(
            "one message",
            _one_message,
            N_(
                "You paid the latency once. The messages follow each other, since each adds to what the one before "
                "brought. Tried on {case}, you say {got}, and it is {expected}."
            ),
        ),
        Misconception(
            "no latency",
            _no_latency,
            N_(
                "You counted bytes only. Each message costs `latency` before its first byte arrives. Tried on {case}, "
                "you say {got}, and it is {expected}."
            ),
        ),
        Misconception(
            "whole tensor in each message",
            _each_message_all,
            N_(
                "Each of your messages carries the whole tensor. In a ring it carries one piece of n. Tried on {case}, "
                "you say {got}, and it is {expected}."
            ),
        ),
    ),
)

EXERCISES = (FASTEST, WIRE, SECONDS, BEYOND)
