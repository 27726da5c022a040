# mypy: allow-untyped-defs, allow-untyped-calls
"""The exercises of notebook 11, sequence parallel (checks). The programs are shown as they stand here."""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace
from typing import Any

import torch

import tpviz
from tpviz.exercises import values
from tpviz.exercises.amounts import AmountExercise
from tpviz.exercises.inputs import W2, X4, W, dY4, integers
from tpviz.exercises.pattern import Case, Difference, Misconception, ProgramExercise, ValueExercise
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
        """What each rank returns; where all of it is right also rank 0's rows, and the bytes that it sends."""
        best = self._tried(self.reference, replace(case, args=values.copied(case.args)))
        mine = self._tried(answer, case)
        if not values.same(best[: case.ranks], mine[: case.ranks]):
            return mine[: case.ranks]
        return [*mine[:-1], max(best[-1], mine[-1])]

    def _tried(self, answer: Any, case: Case) -> list[Any]:
        # A partial, since a run looks into one for the tensors that the answer takes from the notebook.
        run = tpviz.run(functools.partial(_counted, answer), ranks=case.ranks, args=case.args)
        sent = sum(event.wire_bytes for event in run.trace)
        return [*(output for output, _rows in run.outputs), run.outputs[0][1], int(sent)]

    def difference(self, expected: object, got: object, case: Case) -> Difference:
        """The difference on the first rank whose output is wrong; where none is, the work or the bytes."""
        assert isinstance(expected, list)
        assert isinstance(got, list)
        if len(got) == case.ranks:
            return super().difference(expected, got, case)
        *_outputs, rows, sent = expected
        if got[-2] != rows:
            text = _(
                "The numbers are right. Tried on {case}, rank 0 hands `normed` {got} rows, and its share is {expected}."
            )
            fields = {"got": str(got[-2]), "expected": str(rows)}
        else:
            text = _("The numbers are right. Tried on {case}, one rank sends {got} bytes, and {expected} will do.")
            fields = {"got": str(got[-1]), "expected": str(sent)}
        return Difference(text.format(case=case.label, **fields), fields)


_SIGNS = torch.tensor([[1, 1, 1, -1, -1, 1, -1, -1], [-1, 1, -1, -1, 1, 1, -1, 1], [1, -1, 1, 1, -1, -1, -1, 1]])
"""As many of each, and no half of a row is normalised as the row is."""


def _even(rows: int) -> torch.Tensor:
    """Rows whose mean and deviation are whole, and so are all their normalised entries: 1 and -1."""
    row = torch.arange(rows)[:, None]
    return row % 5 - 2 + _SIGNS[row[:, 0] % 3] * 2.0 ** (row % 2)


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
    ),
)


# The norm's gain


def gain_gradient(comm, dNi, Ui):
    """The gradient of the gain, whole, on every rank: the sum over ALL rows of dN * U.

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


GAIN = ProgramExercise(
    id="11-gain",
    function=gain_gradient,
    inputs=_gain_cases,
    held=_own_rows,
    right=N_(
        "Every row uses the one gain, and its gradient is a sum over all rows. Each rank knows its own rows' share, so "
        "the shares are added. It is as in data parallel, inside the TP group."
    ),
    hint_sentences=(
        N_("On one rank: `(dN * U).sum(0)`, 4 numbers. Which of its terms does this rank have?"),
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
            N_("You put the shares side by side, {got_shape}. They are of the same numbers, {expected_shape}: add."),
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
    ),
)


# The gradient's norm


def _once() -> float:
    def program(comm):
        own = torch.tensor([3.0, 4.0])[comm.rank]
        return (comm.all_reduce(own**2) + 12**2).sqrt()

    return float(tpviz.run(program).outputs[0])


NORM = AmountExercise(
    id="11-norm",
    variable="norm",
    answer=lambda: int(_once()),
    ask="of the whole model's gradient",
    right=N_("√(3² + 4² + 12²). The shards are different parameters, the 12 is one and the same: it counts once."),
    hint_sentences=(
        N_("Write down the gradient of the whole model, as one rank alone would have it. How many numbers has it?"),
        N_("The model has three parameters, with gradients 3, 4 and 12."),
    ),
    misconceptions=(
        Misconception(
            "the replicated one counted twice",
            313**0.5,
            N_(
                "That is √(3² + 12² + 4² + 12²): each rank added up all that it has, and the ranks' sums were added. "
                "The 12 is in it twice. On 8 ranks it would be in it 8 times, and clipping would cut the more, the more"
                " ranks there are."
            ),
        ),
        Misconception(
            "rank 0 alone",
            153**0.5,
            N_("That is √(3² + 12²), what rank 0 has. Rank 1 would clip by another number, and copies would part."),
        ),
        Misconception(
            "rank 1 alone",
            160**0.5,
            N_("That is √(4² + 12²), what rank 1 has. Rank 0 would clip by another number, and copies would part."),
        ),
        Misconception(
            "shards alone",
            5,
            N_("That is √(3² + 4²), the shards alone. The replicated parameter is one of the model's, too: once."),
        ),
        Misconception("not rooted", 169, N_("That is the sum of the squares. The norm is its root.")),
        Misconception("added", 19, N_("A norm adds squares, and takes the root of the sum.")),
    ),
)

EXERCISES = (BYTES, BETWEEN, GAIN, NORM)
