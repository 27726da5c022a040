# mypy: allow-untyped-defs, allow-untyped-calls
"""The exercises of side room A's second half, the ring (checks). The programs are shown as they stand here."""

from collections import Counter
from dataclasses import dataclass
from typing import Any

import torch

import tpviz
from tpviz.exercises import values
from tpviz.exercises.inputs import integers
from tpviz.exercises.pattern import Case, Difference, Misconception, ProgramExercise, ValueExercise
from tpviz.i18n import N_, _
from tpviz.trace import Trace, wire_factor


def sent_bytes(trace: Trace) -> Counter[int]:
    """How many bytes each rank sent, by the sends that were recorded."""
    sent: Counter[int] = Counter()
    for event in trace:
        if event.kind == "send":
            sent[event.ranks[0]] += event.payload_bytes
    return sent


@dataclass(frozen=True, kw_only=True)
class RingExercise(ProgramExercise):
    """The answer is a rank program that is right only if each rank sends to the next one, and no more than is needed.

    A case's first argument is a list, of which each rank has its own item.
    """

    def evaluate(self, answer: Any, case: Case) -> object:
        """What each rank returns, the kinds of what is sent, the sends to others than the next rank, and most bytes."""
        run = self.run(answer, case)
        kinds = ", ".join(sorted({event.kind for event in run.trace}))
        sends = [event for event in run.trace if event.kind == "send"]
        astray = sum(event.ranks[1] != (event.ranks[0] + 1) % case.ranks for event in sends)
        return [*run.outputs, kinds, astray, max(sent_bytes(run.trace).values(), default=0)]

    def difference(self, expected: object, got: object, case: Case) -> Difference:
        """The difference on the first rank whose output is wrong; where none is, what is sent in another way."""
        assert isinstance(expected, list)
        assert isinstance(got, list)
        kinds, astray, most = got[case.ranks :]
        if not values.same(expected[: case.ranks], got[: case.ranks]):
            found = super().difference(expected, got, case)
            if not kinds:
                return Difference(_("Nothing was sent. {more}").format(more=found.sentence), found.fields)
            return found
        if kinds != expected[case.ranks]:
            text = _("The numbers are right, and they came by {kinds}. In a ring each rank sends to the next one only.")
            return Difference(text.format(kinds=kinds or _("no message at all")))
        if astray:
            text = _("The numbers are right. Tried on {case}: {count} times a rank sends to another than the next one.")
            return Difference(text.format(case=case.label, count=astray))
        text = _("The numbers are right. Tried on {case}: one rank sends {got} bytes, and {expected} will do.")
        return Difference(text.format(case=case.label, got=most, expected=expected[-1]))


def _own(comm, arrays):
    return (arrays[comm.rank],)


def _case(ranks: int, numbers: int) -> Case:
    """On each rank so many integers of its own."""
    label = _("{ranks} ranks with {numbers} numbers each").format(ranks=ranks, numbers=numbers)
    arrays = [integers(1, numbers, start=5 * rank)[0] + 10 * rank for rank in range(ranks)]
    return Case((arrays,), label, ranks)


def _start_case() -> Case:
    """What the notebook's ranks hold."""
    arrays = [torch.arange(1, 4) + 10 * rank for rank in range(3)]
    return Case((arrays,), _("the notebook's three ranks"), 3)


def _whole_cases() -> list[Case]:
    return [_start_case(), _case(4, 8), _case(2, 4), _case(8, 16)]


def _piece_cases() -> list[Case]:
    return [_case(3, 2), _case(4, 3), _case(2, 1), _case(8, 2)]


FACTORS = {"100 times as much": 100.0, "twice as much": 2.0, "a third more": 4 / 3, "the same": 1.0}


def _more() -> str:
    factor = wire_factor("all_reduce", 400) / wire_factor("all_reduce", 4)
    return min(FACTORS, key=lambda name: abs(FACTORS[name] - factor))


MORE = ValueExercise(
    id="A2-predict",
    variable="more",
    answer=_more,
    ask=", ".join(f'"{name}"' for name in FACTORS),
    right=N_(
        "In a ring of 4 a rank sends one and a half times the array; in a ring of 400 nearly twice, and never more."
    ),
    hint_sentences=(
        N_("A rank need not send its numbers to everybody: a sum that is half done can be passed on."),
        N_(
            "Cut the array into n pieces, and let each rank be in charge of one sum. The part of the array that a rank "
            "need not send is then one piece of n, and shrinks as n grows. The formula comes below."
        ),
    ),
    misconceptions=(
        Misconception(
            "100 times",
            "100 times as much",
            N_(
                "So it would be if each rank sent its array to each other one. But the sum of two arrays is no longer "
                "than one of them: who adds before passing on sends no more for more ranks."
            ),
        ),
        Misconception(
            "twice",
            "twice as much",
            N_(
                "Twice the array is what a rank sends at most. But on 4 ranks it sends one and a half times the array "
                "already."
            ),
        ),
        Misconception(
            "the same",
            "the same",
            N_(
                "Nearly. A ring cuts the array into n pieces, and of these a rank passes n − 1 on, twice: 3 of 4, then "
                "399 of 400. The share grows a little."
            ),
        ),
    ),
)


def ring_reduce_scatter(comm, x):
    """This rank's piece of the sum; each rank sends to the next one only."""
    n, me = comm.world_size, comm.rank
    pieces = list(x.chunk(n))
    for step in range(1, n):
        out, into = (me - step) % n, (me - step - 1) % n
        arrived = comm.sendrecv(pieces[out], dst=(me + 1) % n, src=(me - 1) % n)  # hole
        total = pieces[into] + arrived  # hole
        pieces[into] = total
    return pieces[me]


def _with_step(step_total):
    """The reduce-scatter with another step: what a rank makes of its pieces, given the neighbours and the indices."""

    def program(comm, x):
        n, me = comm.world_size, comm.rank
        pieces = list(x.chunk(n))
        for step in range(1, n):
            out, into = (me - step) % n, (me - step - 1) % n
            pieces[into] = step_total(comm, x, pieces, out, into)
        return pieces[me]

    return program


def _sent(comm, x, way=1):
    n, me = comm.world_size, comm.rank
    return comm.sendrecv(x, dst=(me + way) % n, src=(me - way) % n)


REDUCE_SCATTER = RingExercise(
    id="A2-reduce-scatter",
    function=ring_reduce_scatter,
    inputs=_whole_cases,
    held=_own,
    right=N_(
        "Each piece goes once round the ring and takes up a share on each rank. After n − 1 steps it is finished where "
        "it belongs."
    ),
    hint_sentences=(
        N_("Two lines: one that sends and receives, one that adds."),
        N_("`comm.sendrecv(x, dst=..., src=...)` sends x to one rank and returns what came from another."),
        N_("The next rank is `(me + 1) % n`, and the one before is `(me - 1) % n`. You send `pieces[out]`."),
        N_("What arrives is a share of the same piece that you hold as `pieces[into]`."),
    ),
    misconceptions=(
        Misconception(
            "not added",
            _with_step(lambda comm, x, pieces, out, into: _sent(comm, pieces[out])),
            N_(
                "What arrived took the place of your own share. A piece that goes round so is one rank's all the way: "
                "on rank {rank}, {place} is {got}, and it should be {expected}."
            ),
        ),
        Misconception(
            "the other way",
            _with_step(lambda comm, x, pieces, out, into: pieces[into] + _sent(comm, pieces[out], -1)),
            N_(
                "You send to the rank before. The indices are made for the other way round: what arrives is another "
                "piece than `pieces[into]`. On two ranks nobody could tell, since the next rank is the one before; on "
                "{case}, {place} on rank {rank} is {got}, and it should be {expected}."
            ),
        ),
        Misconception(
            "indices exchanged",
            _with_step(lambda comm, x, pieces, out, into: pieces[out] + _sent(comm, pieces[into])),
            N_(
                "`out` and `into` are exchanged: you send the piece that is about to be added to. On rank {rank}, "
                "{place} is {got}, and it should be {expected}."
            ),
        ),
        Misconception(
            "sends what it adds to",
            _with_step(lambda comm, x, pieces, out, into: pieces[into] + _sent(comm, pieces[into])),
            N_(
                "You send the piece that you are about to add to. What arrives is then a share of another piece: on "
                "rank {rank}, {place} is {got}, and it should be {expected}. `pieces[out]` is what goes."
            ),
        ),
        Misconception(
            "nothing sent",
            _with_step(lambda comm, x, pieces, out, into: pieces[into] + pieces[out]),
            N_(
                "Nothing was sent: you added two pieces of one rank, which are different parts of the array. On rank "
                "{rank}, {place} is {got}, and it should be {expected}. The shares are on the other ranks."
            ),
        ),
        Misconception(
            "its own share doubled",
            _with_step(lambda comm, x, pieces, out, into: pieces[out] + _sent(comm, pieces[out])),
            N_(
                "You added what arrived to the piece that you sent. They are different pieces: on rank {rank}, {place} "
                "is {got}, and it should be {expected}."
            ),
        ),
        Misconception(
            "the whole array",
            _with_step(lambda comm, x, pieces, out, into: pieces[into] + _sent(comm, x)),
            N_(
                "You sent the whole array. A rank sends one piece in a step, `pieces[out]`; what arrives is then as "
                "long as `pieces[into]`."
            ),
        ),
        Misconception(
            "AllReduce",
            _with_step(lambda comm, x, pieces, out, into: comm.all_reduce(x).chunk(comm.world_size)[into]),
            N_(
                "The numbers are right: you let AllReduce do it, in each step. Here you build it, from sends to the "
                "next rank."
            ),
        ),
    ),
)


def ring_all_gather(comm, piece):
    """All pieces, in rank order; each rank sends to the next one only."""
    n, me = comm.world_size, comm.rank
    pieces = [piece] * n
    for step in range(1, n):
        out, into = (me - step + 1) % n, (me - step) % n  # hole
        pieces[into] = comm.sendrecv(pieces[out], dst=(me + 1) % n, src=(me - 1) % n)
    return torch.cat(pieces)


def _with_indices(indices):
    """The all-gather with other indices."""

    def program(comm, piece):
        n, me = comm.world_size, comm.rank
        pieces = [piece] * n
        for step in range(1, n):
            out, into = (index % n for index in indices(me, step))
            pieces[into] = _sent(comm, pieces[out])
        return torch.cat(pieces)

    return program


ALL_GATHER = RingExercise(
    id="A2-all-gather",
    function=ring_all_gather,
    inputs=_piece_cases,
    held=_own,
    right=N_("First each rank sends its own piece, and from then on what has arrived last. Nothing is added."),
    hint_sentences=(
        N_("Step 1: which piece does a rank have to send? From which rank does the one come that arrives?"),
        N_("Step 2: it passes on what arrived in step 1. So `out` is what `into` was a step before."),
        N_("In step 1, `out` is `me` and `into` is `me - 1`, counted round the ring. Both go down by 1 in each step."),
    ),
    misconceptions=(
        Misconception(
            "own each time",
            _with_indices(lambda me, step: (me, me - step)),
            N_(
                "You send your own piece in every step. The next rank gets it over and over, and nobody further on "
                "ever does: on rank {rank}, {place} is {got}, and it should be {expected}."
            ),
        ),
        Misconception(
            "the same each time",
            _with_indices(lambda me, step: (me, me - 1)),
            N_(
                "You send the same piece in every step, and keep what arrives in the same place. That is right in step "
                "1. From then on a rank passes on what it got last: on rank {rank}, {place} is {got}, and it should be "
                "{expected}."
            ),
        ),
        Misconception(
            "put where it was sent from",
            _with_indices(lambda me, step: (me - step + 1, me - step + 1)),
            N_(
                "What arrives is another piece than the one that you send: it belongs one place before. On rank {rank},"
                " {place} is {got}, and it should be {expected}."
            ),
        ),
        Misconception(
            "the reduce-scatter's",
            _with_indices(lambda me, step: (me - step, me - step - 1)),
            N_(
                "These are the indices of the first half, where a rank begins with the piece before its own. Now it "
                "begins with its own, the only one that it has: on rank {rank}, {place} is {got}, and it should be "
                "{expected}."
            ),
        ),
        Misconception(
            "the other way",
            _with_indices(lambda me, step: (me + step - 1, me + step)),
            N_(
                "You count upwards. What arrives is from the rank before, so it is a piece of a lower number: on rank "
                "{rank}, {place} is {got}, and it should be {expected}."
            ),
        ),
    ),
)

_PAYLOAD = 200
"""Numbers of 4 bytes, on each of 8 ranks."""


def _each_to_each(comm, x):
    """Each rank's sum of all arrays, each of which came from its rank."""
    n, me = comm.world_size, comm.rank
    others = [comm.sendrecv(x, dst=(me + k) % n, src=(me - k) % n) for k in range(1, n)]
    return sum(others, start=x)


def _both_sent() -> list[int]:
    x = torch.ones(_PAYLOAD)
    naive = tpviz.run(_each_to_each, ranks=8, args=(x,)).trace
    ring = tpviz.run(lambda comm, x: comm.all_reduce(x), ranks=8, args=(x,)).trace
    return [sent_bytes(naive)[0], int(ring[0].wire_bytes)]


BYTES = ValueExercise(
    id="A2-bytes",
    variable="sent",
    answer=_both_sent,
    ask="bytes that one rank sends: each to each, in a ring",
    hole="[..., ...]",
    right=N_("7 times 800, against 14 pieces of 100. On 80 ranks it would be 63,200 against 1,580."),
    hint_sentences=(
        N_("Each to each: how many others are there, and how much does each of them get?"),
        N_("In a ring of 8 a piece is an eighth of the array. How many steps are there, in both halves?"),
    ),
    misconceptions=(
        Misconception(
            "itself too",
            [6400, 1400],
            N_("The ring is right. A rank sends nothing to itself: of 8 ranks, 7 get the array."),
        ),
        Misconception(
            "one half",
            [5600, 700],
            N_(
                "700 bytes are one half, 7 pieces of 100. Then the sums are finished, each on one rank, and still have "
                "to be handed round."
            ),
        ),
        Misconception(
            "a step too many",
            [5600, 1600],
            N_("A half has 7 steps, not 8: a piece starts on one rank and visits the 7 others."),
        ),
        Misconception(
            "whole arrays",
            [5600, 11200],
            N_("14 steps are right. In each of them a rank sends one piece, an eighth of the array."),
        ),
        Misconception(
            "once",
            [800, 1400],
            N_("800 bytes are what one other rank gets. Without a ring each of the 7 others needs them."),
        ),
        Misconception(
            "exchanged",
            [1400, 5600],
            N_("Both numbers are right, in the other order: each to each comes first, and the ring sends less."),
        ),
        Misconception(
            "n for n − 1",
            [6400, 1600],
            N_("You took 8, twice, where it is 7: a rank has 7 others to send to, and a half of the ring has 7 steps."),
        ),
        Misconception(
            "one step",
            [800, 100],
            N_("So much goes in one step. Each to each takes 7 of them, and the ring 7 for each half."),
        ),
        Misconception(
            "all ranks",
            [44800, 11200],
            N_("That is what all 8 ranks send together. Of one rank it is an eighth."),
        ),
    ),
)

EXERCISES = (MORE, REDUCE_SCATTER, ALL_GATHER, BYTES)
