"""The exercises of notebook 07b, the planner (checks).

PyTorch's placements, and all that needs them, are slow to import: only who does these exercises waits for them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

import torch

from tpviz import example
from tpviz.exercises import values
from tpviz.exercises.pattern import Case, Difference, Misconception, ValueExercise
from tpviz.i18n import N_, _

if TYPE_CHECKING:
    from torch.distributed.tensor.placement_types import Placement

    from tpviz.plans import Plan

STEPS = (("A", "matmul", "X", "W1"), ("H", "relu", "A"), ("Y", "matmul", "H", "W2"))
NAMES = ("A", "H", "Y")
SHAPES = {"X": tuple(example.X4.shape), "W1": tuple(example.W1.shape), "W2": tuple(example.W2.shape)}
BYTES = 4 * (example.W1.numel() + example.W2.numel())
LIMIT = BYTES // 2
"""Of weights, on one of two ranks."""


@cache
def _placements() -> dict[str, Placement]:
    """The placements by their names."""
    from tpviz.rules import PLACEMENTS, str_of

    return {str_of(placement): placement for placement in PLACEMENTS}


@cache
def _plan(layouts: tuple[str, ...] | None, limit: int | None = LIMIT) -> Plan | None:
    """The cheapest plan whose A, H and Y lie like this, in rows at both ends; None if there is none."""
    from tpviz.plans import NoPlan, plan

    known = _placements()
    fixed = None if layouts is None else {name: known[word] for name, word in zip(NAMES, layouts, strict=True)}
    rows = known["Shard(0)"]
    try:
        return plan(STEPS, SHAPES, ranks=2, start=rows, end=rows, memory_limit=limit, layouts=fixed)
    except NoPlan:
        return None


def _least_bytes(layouts: tuple[str, ...]) -> int | None:
    """The fewest bytes of weights that one rank can hold with these layouts; None if they are impossible."""
    least, found = None, _plan(layouts, None)
    while found is not None:
        least = found.weight_bytes
        found = _plan(layouts, least - 1)
    return least


def _microseconds(plan: Plan) -> str:
    return f"{1e6 * plan.seconds:.1f}"


def _word(item: object) -> str | None:
    """The name of a placement that is given by its name, or as itself."""
    known = _placements()
    for word, placement in known.items():
        if values.same(word, item) or (type(item) is type(placement) and item == placement):
            return word
    return None


@dataclass(frozen=True, kw_only=True)
class LayoutsExercise(ValueExercise):
    """The answer lists a placement for each of the chain's outputs. It is right if no plan is cheaper."""

    def evaluate(self, answer: Any, case: Case) -> object:
        """The list, in the names that PyTorch uses; the best one for any that is as cheap."""
        plain = super().evaluate(answer, case)
        if type(plain) is not list or len(plain) != len(NAMES):
            return plain
        words = [_word(item) for item in plain]
        layouts = tuple(word for word in words if word is not None)
        if len(layouts) < len(NAMES):
            return [item if word is None else word for item, word in zip(plain, words, strict=True)]
        best, mine = _plan(None), _plan(layouts)
        assert best is not None
        return self.reference if mine is not None and mine.price.ticks == best.price.ticks else [*layouts]

    def difference(self, expected: object, got: object, case: Case) -> Difference:
        """What is wrong with the list, or what it costs beside the best."""
        if type(got) is not list or len(got) != len(NAMES):
            text = _("A list of three words is needed, one for each of A, H and Y. This is {value}.")
            return Difference(text.format(value=values.shown(got)))
        known = _placements()
        for name, item in zip(NAMES, got, strict=True):
            if type(item) is not str or item not in known:
                text = _("{name}: a placement is needed, one of {known}. This is {value}.")
                words = ", ".join(f'"{word}"' for word in known)
                return Difference(text.format(name=name, known=words, value=values.in_words(item)))
        return _compared(tuple(got))


def _compared(layouts: tuple[str, ...]) -> Difference:
    """Why layouts are not the best: impossible, too large, too slow."""
    from tpviz.rules import passes

    best, mine, least = _plan(None), _plan(layouts), _least_bytes(layouts)
    assert best is not None
    lies = ", ".join(f"{name}: {word}" for name, word in zip(NAMES, layouts, strict=True))
    if least is None:
        text = _("{lies}: there is no such plan. ReLU leaves no partial sum behind, and lets none pass. {reason}")
        return Difference(text.format(lies=lies, reason=passes("relu", _placements()["Partial"]).reason))
    if mine is None:
        fields = {"bytes": str(least), "limit": str(LIMIT)}
        text = _("{lies}: a rank holds at least {bytes} bytes of weights for that, and {limit} are allowed.")
        return Difference(text.format(lies=lies, **fields), fields)
    sent = ", ".join(each.kind for each in mine.foretold())
    fields = {"price": _microseconds(mine), "best": _microseconds(best), "sent": sent}
    text = _("{lies}: the cheapest such plan takes {price} µs and sends {sent}. There is one that takes {best} µs.")
    return Difference(text.format(lies=lies, **fields), fields)


def _best_layouts() -> list[str]:
    from tpviz.rules import str_of

    best = _plan(None)
    assert best is not None
    return [str_of(choice.output.value) for choice in best.choices]


BEAT = LayoutsExercise(
    id="07b-beat",
    variable="layouts",
    answer=_best_layouts,
    ask='A, H, Y: each "Replicate", "Shard(0)", "Shard(1)" or "Partial"',
    hole="[..., ..., ...]",
    right=N_(
        "Column, ReLU, row. What the column layer leaves is what ReLU lets pass and what the row layer wants, so the "
        "middle is free. Only the ends are paid for. The planner finds no cheaper one."
    ),
    hint_sentences=(
        N_("A rank may hold half of the weights. If A is cut by rows, how much of W1 does each rank need?"),
        N_("Only W1 and W2 must be cut; X can be gathered. Which cut of W1 leaves an A that ReLU lets pass?"),
        N_('With A and H as "Shard(1)", W2 can be cut by rows. What does a row layer leave, before any sum?'),
    ),
    misconceptions=(
        Misconception(
            "everything by rows",
            ["Shard(0)", "Shard(0)", "Shard(0)"],
            N_(
                "That is data parallel: each rank does its rows, and needs all of W1 and all of W2. It holds {bytes} "
                "bytes of weights, and {limit} are allowed."
            ),
        ),
        Misconception(
            "everything replicated",
            ["Replicate", "Replicate", "Replicate"],
            N_(
                "Each rank does everything, and needs all of W1 and all of W2: {bytes} bytes of weights, and {limit} "
                "are allowed. Without the limit that would be cheap here."
            ),
        ),
        Misconception(
            "row first",
            ["Partial", "Replicate", "Shard(1)"],
            N_(
                "Row, ReLU, column: the partial sums must be summed before ReLU, in the middle, where the matrix is "
                "twice as wide. It takes {price} µs and sends {sent}. There is a plan that takes {best} µs."
            ),
        ),
        Misconception(
            "ReLU on partial sums",
            ["Partial", "Partial", "Partial"],
            N_(
                "There is no such plan: partial sums do not pass ReLU. Of 1 and −2, which are −1 together, ReLU would "
                "make 1 and 0, in sum 1, and it should be 0. It has to be summed first."
            ),
        ),
        Misconception(
            "Y as at the end",
            ["Shard(1)", "Shard(1)", "Shard(0)"],
            N_(
                "Y shall end in rows, but your list says how the second matmul leaves it, before anything is sent. To "
                "leave rows it needs rows of H and all of W2: a rank holds {bytes} bytes of weights, and {limit} are "
                "allowed. What does it leave with only its rows of W2?"
            ),
        ),
        Misconception(
            "Y whole",
            ["Shard(1)", "Shard(1)", "Replicate"],
            N_(
                "Your list says how the second matmul leaves Y, before anything is sent. To leave it whole a rank needs"
                " all of W2: it holds {bytes} bytes of weights, and {limit} are allowed."
            ),
        ),
        Misconception(
            "column twice",
            ["Shard(1)", "Shard(1)", "Shard(1)"],
            N_(
                "Two column layers: the second one wants all of H, so H is gathered in the middle. It takes {price} µs "
                "and sends {sent}. Cut W2 the other way, and the middle is free: {best} µs."
            ),
        ),
        Misconception(
            "H gathered",
            ["Shard(1)", "Replicate", "Partial"],
            N_(
                "Column and row, with the middle put together and cut again. That takes {price} µs and sends {sent}. "
                "ReLU lets columns pass, and the row layer wants them: there is a plan that takes {best} µs."
            ),
        ),
        Misconception(
            "data parallel, then row",
            ["Shard(0)", "Shard(0)", "Partial"],
            N_(
                "The first layer by rows of X needs all of W1, the second a half of W2: {bytes} bytes of weights, and "
                "{limit} are allowed."
            ),
        ),
    ),
)


LARGE = {"X": (4096, 2**17), "W1": (2**17, 2**19), "W2": (2**19, 2**17)}
"""Two layers of 275 GB in 16 bits."""
CARD = 80e9


def _fits(word: str | None, ranks: int) -> bool:
    """Whether a card holds what a rank needs of the large layers, if all that they compute lies like this."""
    from tpviz.plans import NoPlan, plan

    layouts = None if word is None else dict.fromkeys(NAMES, _placements()[word])
    try:
        plan(STEPS, LARGE, ranks=ranks, memory_limit=CARD, layouts=layouts, dtype=torch.bfloat16)
    except NoPlan:
        return False
    return True


def _copies_differ(plan: Plan, given: Sequence[str]) -> bool:
    """Whether the ranks of a plan end up with different gradients."""
    numbers = {name: getattr(example, name) for name in given} | {"X": example.X4}
    first, *others = plan.run(numbers, example.X4).outputs
    return any(not torch.equal(first[name], other[name]) for other in others for name in first)


@cache
def _why() -> str:
    """Which of the reasons is true, and speaks against a plan that replicates all."""
    from tpviz.plans import plan
    from tpviz.rules import passes

    free, cut = plan(STEPS, SHAPES), plan(STEPS, SHAPES, memory_limit=LIMIT)
    assert free.weight_bytes == BYTES
    assert not free.foretold()
    assert _fits(None, ranks=8)
    reasons = {
        "weights do not fit": not _fits("Replicate", ranks=8),
        "copies drift apart": _copies_differ(free, ["W1", "W2"]),
        "AllReduce is free": cut.seconds <= free.seconds,
        "ReLU is not linear": not passes("relu", _placements()["Replicate"]),
    }
    [reason] = [reason for reason, is_true in reasons.items() if is_true]
    return reason


WHY = ValueExercise(
    id="07b-why",
    variable="why",
    answer=_why,
    ask='"weights do not fit", "copies drift apart", "AllReduce is free", "ReLU is not linear"',
    right=N_(
        "The toy's weights are 256 bytes. A real model's are more than one card holds, and then a plan that replicates "
        "them is none. Where they do fit, each rank would still do all the arithmetic, and for large matrices that "
        "takes longer than sending."
    ),
    hint_sentences=(
        N_("What does a rank hold in that plan, and how does it grow with the model?"),
        N_("The toy's W1 and W2 are 256 bytes. Which number did you give the planner in order to get another plan?"),
    ),
    misconceptions=(
        Misconception(
            "drift",
            "copies drift apart",
            N_(
                "They do not: the ranks have the same X and the same weights, compute the same gradients, and take the "
                "same step. Copies drift apart where each sees other rows of X and nobody averages."
            ),
        ),
        Misconception(
            "free",
            "AllReduce is free",
            N_(
                "If it were, cutting would cost nothing, and the planner would have no reason to avoid it. With half of"
                " the weights on a rank, the toy's plan sends two AllReduces, and takes 20 µs for them."
            ),
        ),
        Misconception(
            "ReLU",
            "ReLU is not linear",
            N_(
                "True, and no reason. ReLU must not have partial sums, and there are none in that plan: every rank has "
                "all of A, finished."
            ),
        ),
    ),
)

EXERCISES = (BEAT, WHY)
