# mypy: allow-untyped-defs, allow-untyped-calls
"""The exercises of notebook 11, sequence parallel (checks). The programs are shown as they stand here."""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace
from typing import Any

import torch

import tpviz
from tpviz.chunking import chunk
from tpviz.exercises import values
from tpviz.exercises.inputs import W2, X4, W, dY4, integers
from tpviz.exercises.pattern import Case, Difference, Misconception, ProgramExercise, ValueExercise
from tpviz.exercises.traffic import TrafficExercise, wire_bytes
from tpviz.i18n import N_, _


def normed(rows: torch.Tensor) -> torch.Tensor:
    """LayerNorm without its gain and its shift: each row less its mean, divided by its standard deviation."""
    away = rows - rows.mean(-1, keepdim=True)
    return away / away.square().mean(-1, keepdim=True).sqrt()


def _halves() -> list[int]:
    def program(comm):
        comm.all_reduce(X4)
        comm.all_gather(comm.reduce_scatter(X4, dim=0), dim=0)

    return [int(event.wire_bytes) for event in tpviz.run(program, ranks=4).trace]


BYTES = ValueExercise(
    id="11-bytes",
    variable="sent",
    answer=_halves,
    ask="AllReduce; then ReduceScatter, AllGather",
    hole="[..., ..., ...]",
    right=N_("A ring's AllReduce is these two, one after the other: 3 messages of 16 bytes, and 3 more."),
    hint_sentences=(
        N_("In a ring of 4 the 64 bytes are cut into pieces of 16. How many pieces does a rank send in each half?"),
        N_("A2: 3 steps while the sums are formed, 3 while they are handed round. Which half is which collective?"),
    ),
    misconceptions=(
        Misconception(
            "each as much as the whole",
            [96, 96, 96],
            N_(
                "Two collectives, and yet not twice the bytes: AllReduce *is* these two. Each of them sends 3 of the 6 "
                "pieces."
            ),
        ),
        Misconception(
            "payloads",
            [64, 64, 64],
            N_("That is the array, the payload of all three. Asked is what one of 4 ranks sends."),
        ),
        Misconception(
            "two ranks",
            [64, 32, 32],
            N_("That is what a rank sends on 2 ranks. On 4 it sends 3 pieces of 16 bytes in each half."),
        ),
        Misconception(
            "half the payload",
            [64, 48, 48],
            N_("The halves are right. AllReduce is the two of them: add them up."),
        ),
        Misconception(
            "AllReduce for half",
            [48, 48, 48],
            N_("The halves are right, and AllReduce is both: after the first half a rank has a quarter of the sum."),
        ),
        Misconception(
            "AllReduce once round",
            [48, 24, 24],
            N_(
                "48 bytes are one half: 3 pieces of 16. After them each rank has one piece of the sum, and the pieces "
                "are still to be handed round."
            ),
        ),
        Misconception(
            "AllGather sends its own piece",
            [96, 48, 16],
            N_(
                "A rank sends its own piece once, 16 bytes, and then it passes on the pieces that reach it: 3 steps of "
                "16 in AllGather, too."
            ),
        ),
        Misconception(
            "one piece in each half",
            [96, 16, 16],
            N_(
                "AllReduce is right, and it is the two halves: they must add up to it. 16 bytes are one of its 6 steps."
            ),
        ),
        Misconception(
            "one piece",
            [16, 16, 16],
            N_(
                "16 bytes are one piece, and what a rank sends in one step. On 4 ranks ReduceScatter takes 3 steps, "
                "AllGather 3."
            ),
        ),
        Misconception(
            "without (n−1)/n",
            [128, 64, 64],
            N_(
                "That is each half once all the way round: 4 pieces. A rank sends 3 of the 4, since its own piece is "
                "already where it belongs."
            ),
        ),
        Misconception(
            "everyone to everyone",
            [192, 48, 48],
            N_(
                "192 bytes are the whole array, sent to each of 3 others. A ring adds on the way: its AllReduce is the "
                "two halves, which you have right."
            ),
        ),
        Misconception(
            "everyone to everyone, in ReduceScatter too",
            [192, 192, 48],
            N_(
                "AllGather is right. 192 bytes are the whole array, sent to each of 3 others. In a ring a rank sends "
                "one piece of 16 in each step, with what it was handed added in: 3 steps in ReduceScatter, 6 in "
                "AllReduce."
            ),
        ),
        Misconception(
            "AllReduce moves the array once",
            [64, 48, 16],
            N_(
                "ReduceScatter is right. In AllGather a rank passes on the pieces that reach it: 3 steps of 16, too. "
                "And AllReduce is the two of them, which is more than the array once."
            ),
        ),
        Misconception(
            "ReduceScatter as an AllReduce",
            [96, 96, 48],
            N_(
                "AllReduce and AllGather are right. After 96 bytes a rank has all of the sum; ReduceScatter leaves it "
                "a quarter, and is done half-way."
            ),
        ),
        Misconception(
            "AllReduce twice the array",
            [128, 48, 48],
            N_(
                "The halves are right. 128 bytes are the array twice, once for each half; but a rank sends 3 pieces "
                "of the 4. Add the halves up."
            ),
        ),
    ),
)


# Between a row layer and a column layer


def between(comm, Zi, normed):
    """All rows of normed(Z0 + Z1 + ...), on every rank. normed works on any rows.

    Zi: this rank's partial sum, of all rows.
    """
    Yi = comm.reduce_scatter(Zi, dim=0)  # hole
    return comm.all_gather(normed(Yi), dim=0)  # hole


def _counted(answer, comm, partials):
    """What the answer returns, and how many rows it had normalised."""
    seen = []

    def counting(rows):
        seen.append(len(rows))
        return normed(rows)

    return answer(comm, partials[comm.rank], counting), sum(seen)


@dataclass(frozen=True, kw_only=True)
class BetweenExercise(ProgramExercise):
    """The answer is right only if each rank normalises its share of the rows, and sends no more than must be."""

    def evaluate(self, answer: Any, case: Case) -> object:
        """What each rank returns; where all of it is right also rank 0's rows, the bytes that it sends, and by what.

        Who sends no more than the solution, by other collectives, has sent what the solution sends.
        """
        best = self._tried(self.reference, replace(case, args=values.copied(case.args)))
        mine = self._tried(answer, case)
        if not values.same(best[: case.ranks], mine[: case.ranks]):
            return mine[: case.ranks]
        *outputs, _bytes, _kinds = mine
        return [*outputs, *(mine[-2:] if mine[-2] > best[-2] else best[-2:])]

    def _tried(self, answer: Any, case: Case) -> list[Any]:
        # A partial, since a run looks into one for the tensors that the answer takes from the notebook.
        run = tpviz.run(functools.partial(_counted, answer), ranks=case.ranks, args=case.args)
        sent = wire_bytes(run.trace)
        kinds = [event.kind for event in run.trace]
        return [*(output for output, _rows in run.outputs), run.outputs[0][1], int(sent), kinds]

    def difference(self, expected: object, got: object, case: Case) -> Difference:
        """The difference on the first rank whose output is wrong; where none is, the work or the bytes."""
        assert isinstance(expected, list)
        assert isinstance(got, list)
        if len(got) == case.ranks:
            return super().difference(expected, got, case)
        rows, sent, _kinds = expected[case.ranks :]
        got_rows, got_sent, _got_kinds = got[case.ranks :]
        if got_rows != rows:
            text = _(
                "The numbers are right. Tried on {case}, rank 0 hands `normed` {got} rows, and its share is {expected}."
            )
            fields = {"got": str(got_rows), "expected": str(rows)}
        else:
            text = _("The numbers are right. Tried on {case}, one rank sends {got} bytes, and {expected} will do.")
            fields = {"got": str(got_sent), "expected": str(sent)}
        return Difference(text.format(case=case.label, **fields), fields)


_SIGNS = torch.tensor([[1, 1, 1, -1, -1, 1, -1, -1], [-1, 1, -1, -1, 1, 1, -1, 1], [1, -1, 1, 1, -1, -1, -1, 1]])
"""As many of each, and no half of a row is normalised as the row is."""


def _even(rows: int) -> torch.Tensor:
    """Rows whose mean and deviation are whole, and so are all their normalised entries: 1 and -1."""
    row = torch.arange(rows)[:, None]
    return row % 5 - 2 + _SIGNS[row[:, 0] % 3] * 2.0 ** (row % 2)


def _padded(comm, Zi, normed):
    """Own rows normalised, in an array of zeros otherwise, and added up."""
    own = normed(comm.reduce_scatter(Zi, dim=0))
    first, length = chunk(len(Zi), comm.world_size, comm.rank)
    return comm.all_reduce(torch.nn.functional.pad(own, (0, 0, first, len(Zi) - first - length)))


def _sums(comm, Zi):
    """All partial sums, gathered and added up by every rank."""
    return sum(comm.all_gather(Zi, dim=0).chunk(comm.world_size))


def _own_sums(comm, Zi):
    return tpviz.shard(_sums(comm, Zi), 0, comm)


def _partials(rows: int, ranks: int) -> Case:
    parts = [integers(rows, 8, start=3 + 5 * rank) for rank in range(ranks - 1)]
    last = _even(rows) - sum(parts)
    label = _("{rows} rows of 8 features on {ranks} ranks")
    return Case(([*parts, last],), label.format(rows=rows, ranks=ranks), ranks)


def _cases() -> list[Case]:
    return [_partials(4, 2), _partials(4, 4), _partials(6, 3), _partials(5, 2)]


BETWEEN = BetweenExercise(
    id="11-between",
    function=between,
    inputs=_cases,
    right=N_(
        "The sum is formed for a rank's own rows only, a row is normalised by the rank that has it, and the second "
        "half of the AllReduce hands the finished rows round. As many bytes as AllReduce, and 1/n of the work."
    ),
    hint_sentences=(
        N_("Which half of an AllReduce leaves each rank with some rows of the sum?"),
        N_("`normed` looks at one row at a time. Whom does a rank have to ask, if it has whole rows?"),
        N_("Rows are dim 0. Scatter the sums by rows, normalise, gather by rows."),
    ),
    misconceptions=(
        Misconception(
            "AllReduce",
            lambda comm, Zi, normed: normed(comm.all_reduce(Zi)),
            N_(
                "The numbers are right: it is plain TP. Every rank normalises all rows, the same work on each: tried on"
                " {case}, {got} rows where its share is {expected}. Do it while each rank has only its own rows."
            ),
        ),
        Misconception(
            "AllReduce, then cut",
            lambda comm, Zi, normed: comm.all_gather(normed(tpviz.shard(comm.all_reduce(Zi), 0, comm)), dim=0),
            N_(
                "The numbers and the work are right, and you send too much: tried on {case}, {got} bytes, and "
                "{expected} will do. AllReduce hands round rows that you then throw away. Stop at its first half."
            ),
        ),
        Misconception(
            "cut, then AllReduce",
            _padded,
            N_(
                "The numbers and the work are right, and you send too much: tried on {case}, {got} bytes, and "
                "{expected} will do. Your AllReduce adds rows to zeros: each row is on one rank only, and nothing is "
                "left to be added. Hand the rows round."
            ),
        ),
        Misconception(
            "the halves swapped",
            lambda comm, Zi, normed: comm.reduce_scatter(normed(comm.all_gather(Zi, dim=0)), dim=0),
            N_(
                "You gathered first and summed at the end: a rank then has all the partial sums, one below the other, "
                "and `normed` works on each. Tried on {case}, {place} is {got}, and it should be {expected}. First sum "
                "and scatter, then normalise, then gather."
            ),
        ),
        Misconception(
            "normed before the sum",
            lambda comm, Zi, normed: comm.all_gather(comm.reduce_scatter(normed(Zi), dim=0), dim=0),
            N_(
                "You normalised partial sums. A norm is not linear: first the sum, then the norm. The shape is right, "
                "the numbers are not: tried on {case}, {place} is {got}, and it should be {expected}."
            ),
        ),
        Misconception(
            "cut by features",
            lambda comm, Zi, normed: comm.all_gather(normed(comm.reduce_scatter(Zi, dim=1)), dim=1),
            N_(
                "You cut by features, so each rank normalised a part of every row, by that part's own mean. The shape "
                "is right, and no message says a word: tried on {case}, {place} is {got}, and it should be {expected}. "
                "Whole rows are needed: dim 0."
            ),
        ),
        Misconception(
            "no sum",
            lambda comm, Zi, normed: comm.all_gather(normed(tpviz.shard(Zi, 0, comm)), dim=0),
            N_(
                "Each rank cut its own partial sum, and nothing was added. The shape is right: tried on {case}, {place}"
                " is {got}, and it should be {expected}."
            ),
        ),
        Misconception(
            "not gathered",
            lambda comm, Zi, normed: normed(comm.reduce_scatter(Zi, dim=0)),
            N_(
                "Each rank has its own rows, {got_shape}. The column layer behind multiplies all rows by its columns of"
                " the weight: it needs {expected_shape}."
            ),
        ),
        Misconception(
            "gathered beside each other",
            lambda comm, Zi, normed: comm.all_gather(normed(comm.reduce_scatter(Zi, dim=0))),
            N_(
                "You joined the rows beside each other, {got_shape}: all_gather takes the last dimension, unless told. "
                "Rows are dim 0."
            ),
        ),
        Misconception(
            "own rows added up",
            lambda comm, Zi, normed: comm.all_reduce(normed(comm.reduce_scatter(Zi, dim=0))),
            N_(
                "You added rank 0's rows to rank 1's, {got_shape}: they are different tokens. After the first half "
                "nothing is left to be added. Put them behind each other, {expected_shape}: all_gather, dim 0."
            ),
        ),
        Misconception(
            "partial sums gathered",
            lambda comm, Zi, normed: comm.all_gather(normed(_own_sums(comm, Zi)), dim=0),
            N_(
                "The numbers and the work are right, and you send too much: tried on {case}, {got} bytes, and "
                "{expected} will do. Every rank has every partial sum, and adds up its own rows: reduce_scatter adds "
                "them on the way."
            ),
        ),
        Misconception(
            "partial sums gathered, all rows normed",
            lambda comm, Zi, normed: normed(_sums(comm, Zi)),
            N_(
                "The numbers are right. Every rank adds up all partial sums and normalises all rows, the same work on "
                "each: tried on {case}, {got} rows where its share is {expected}. Let a rank have the sum of its own "
                "rows only."
            ),
        ),
        Misconception(
            "normed twice",
            lambda comm, Zi, normed: normed(comm.all_gather(normed(comm.reduce_scatter(Zi, dim=0)), dim=0)),
            N_(
                "You normalised before the gather, and all rows once more behind it: tried on {case}, {got} rows where "
                "the share is {expected}. The gathered rows are finished."
            ),
        ),
    ),
)


# The norm's gain


def gain_gradient(comm, dNi, Ui):
    """The gradient of the gain, whole, on every rank. On one GPU: (dN * U).sum(0).

    dNi, Ui: this rank's rows of dN and of the normalised rows U.
    """
    share = (dNi * Ui).sum(0)  # hole
    return comm.all_reduce(share, phase="gradients")  # hole


def _own_rows(comm, dN, U):
    return tpviz.shard(dN, 0, comm), tpviz.shard(U, 0, comm)


def _gain_cases() -> list[Case]:
    rows = [(dY4 @ W.T, X4 @ W2[:4], 2), (dY4 @ W.T, X4 @ W2[:4], 4), (integers(6, 3), integers(6, 3, start=8), 3)]
    label = _("{rows} rows on {ranks} ranks")
    return [Case((dN, U), label.format(rows=len(U), ranks=ranks), ranks) for dN, U, ranks in rows]


GAIN = TrafficExercise(
    id="11-gain",
    function=gain_gradient,
    inputs=_gain_cases,
    held=_own_rows,
    weigh=wire_bytes,
    too_much=N_("The numbers are right. Tried on {case}, a rank sends {got} bytes, and {expected} will do: {sent}."),
    right=N_(
        "Every row uses the one gain, and its gradient is a sum over all rows. Each rank knows its own rows' share, so "
        "the shares are added, and not averaged: the loss counts every row once."
    ),
    hint_sentences=(
        N_("`(dN * U).sum(0)` adds over all rows. Which of its terms does this rank have?"),
        N_("Each rank has a share of each of the 4 numbers. Which collective makes them whole, on every rank?"),
    ),
    misconceptions=(
        Misconception(
            "not synchronised",
            lambda comm, dNi, Ui: (dNi * Ui).sum(0),
            N_(
                "That is this rank's share, of its own rows. The shape is right, and nothing complains; after one step "
                "the ranks' gains differ, and they should be copies. Tried on {case}, {place} on rank {rank} is {got}, "
                "and it should be {expected}."
            ),
        ),
        Misconception(
            "mean",
            lambda comm, dNi, Ui: comm.all_reduce((dNi * Ui).sum(0), op="mean"),
            N_(
                "You averaged. The copies agree, so no check of replicas finds it: the gain learns 1/n as fast. Tried "
                "on {case}, {place} is {got}, and it should be {expected}. The loss counts every row once: add."
            ),
        ),
        Misconception(
            "summed twice",
            lambda comm, dNi, Ui: comm.all_reduce(comm.all_reduce((dNi * Ui).sum(0))),
            N_("After the first sum all have the whole. The second makes it n times as much: {got} for {expected}."),
        ),
        Misconception(
            "dN summed first",
            lambda comm, dNi, Ui: (comm.all_reduce(dNi) * Ui).sum(0),
            N_(
                "You added rank 0's rows of dN to rank 1's: they belong to different tokens. All shapes fit. Tried on "
                "{case}, {place} is {got}, and it should be {expected}. First each rank's product, then the sum."
            ),
        ),
        Misconception(
            "concatenated",
            lambda comm, dNi, Ui: comm.all_gather((dNi * Ui).sum(0)),
            N_(
                "You joined what the ranks have along the features, {got_shape}. These are shares of the same numbers, "
                "{expected_shape}: add them."
            ),
        ),
        Misconception(
            "rows kept",
            lambda comm, dNi, Ui: comm.all_reduce(dNi * Ui),
            N_(
                "You added over the ranks and not over a rank's own rows: {got_shape}. There is one gain for all rows, "
                "so its gradient is {expected_shape}."
            ),
        ),
        Misconception(
            "cut",
            lambda comm, dNi, Ui: comm.reduce_scatter((dNi * Ui).sum(0)),
            N_(
                "You left each rank a part of the sum, {got_shape}. The gain is on every rank, so its gradient is "
                "needed there whole, {expected_shape}."
            ),
        ),
        Misconception(
            "rows gathered",
            lambda comm, dNi, Ui: (comm.all_gather(dNi, dim=0) * comm.all_gather(Ui, dim=0)).sum(0),
            N_(
                "The numbers are right. But you gathered all rows of dN and U, which are cut so that no rank needs all "
                "of them: tried on {case}, a rank sends {got} bytes, and {expected} will do. Add up your own rows "
                "first: one share, as large as the gain."
            ),
        ),
        Misconception(
            "products gathered",
            lambda comm, dNi, Ui: comm.all_gather(dNi * Ui, dim=0).sum(0),
            N_(
                "The numbers are right. But you handed round every row's product, and every rank adds up all of them: "
                "tried on {case}, a rank sends {got} bytes, and {expected} will do. Add up your own rows first."
            ),
        ),
        Misconception(
            "added over the ranks first",
            lambda comm, dNi, Ui: comm.all_reduce(dNi * Ui).sum(0),
            N_(
                "The numbers are right. But you added the ranks' products row by row, and the rows afterwards: tried "
                "on {case}, a rank sends {got} bytes, and {expected} will do. Add up your own rows first, `.sum(0)`, "
                "then over the ranks."
            ),
        ),
        Misconception(
            "the own share n times",
            lambda comm, dNi, Ui: (dNi * Ui).sum(0) * comm.world_size,
            N_(
                "You took this rank's share n times. But the ranks' shares differ, as their rows do: tried on {case}, "
                "{place} on rank {rank} is {got}, and it should be {expected}. Add the shares."
            ),
        ),
        Misconception(
            "the shift's gradient",
            lambda comm, dNi, Ui: comm.all_reduce(dNi.sum(0)),
            N_(
                "That is the gradient of the shift, which was added. The gain was multiplied by U, so each row of dN "
                "meets its row of U first: tried on {case}, {place} is {got}, and it should be {expected}."
            ),
        ),
        Misconception(
            "shares gathered",
            lambda comm, dNi, Ui: comm.all_gather((dNi * Ui).sum(0, keepdim=True), dim=0).sum(0),
            N_(
                "The numbers are right. You handed every share to every rank, and each adds them all. On 2 ranks that "
                "sends no more; tried on {case}, it is {got} bytes, and {expected} will do: an AllReduce adds on the "
                "way."
            ),
        ),
        Misconception(
            "a row of its own",
            lambda comm, dNi, Ui: comm.all_reduce((dNi * Ui).sum(0, keepdim=True)),
            N_(
                "The numbers are right, in a matrix of one row, {got_shape}. The gain is {expected_shape}: leave out "
                "keepdim."
            ),
        ),
        Misconception(
            "over the features",
            lambda comm, dNi, Ui: comm.all_reduce((dNi * Ui).sum(1)),
            N_(
                "You added over the features, {got_shape}: one number for each row. The gain has one for each feature, "
                "{expected_shape}: add over the rows, dim 0."
            ),
        ),
        Misconception(
            "product of sums",
            lambda comm, dNi, Ui: comm.all_reduce(dNi.sum(0) * Ui.sum(0)),
            N_(
                "You added first and multiplied then: so a row's dN meets another row's U. Tried on {case}, {place} is "
                "{got}, and it should be {expected}. First each row's product, then the sum."
            ),
        ),
    ),
)

EXERCISES = (BYTES, BETWEEN, GAIN)
