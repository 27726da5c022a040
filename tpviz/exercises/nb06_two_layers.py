# mypy: allow-untyped-defs, allow-untyped-calls
"""The exercises of notebook 06, two layers (checks). The functions are shown as they stand here."""

import itertools
from dataclasses import dataclass

import torch

import tpviz
from tpviz.exercises import values
from tpviz.exercises.inputs import W2, X4, W, X, example, integers
from tpviz.exercises.pattern import (
    Case,
    Difference,
    Misconception,
    Remark,
    ValueExercise,
)
from tpviz.exercises.traffic import Kinds, TrafficExercise
from tpviz.i18n import N_, _

W1 = W


def _both_ways(comm, X, W1, W2):
    X = X.clone().requires_grad_()
    H = torch.relu(tpviz.copy_to_region(X, comm) @ tpviz.shard(W1, 1, comm))
    Y = tpviz.reduce_from_region(H @ tpviz.shard(W2, 0, comm), comm)
    Y.backward(torch.ones_like(Y))


def _collectives() -> list[int]:
    phases = [event.phase for event in tpviz.run(_both_ways, ranks=2, args=(X, W1, W2)).trace]
    return [phases.count("forward"), phases.count("backward")]


PREDICT = ValueExercise(
    id="06-predict",
    variable="collectives",
    answer=_collectives,
    ask="in forward, in backward",
    hole="[..., ...]",
    right=N_(
        "The column layer leaves H in columns, and the row layer wants it so: nothing is sent in the middle. Y is "
        "summed once at the end of forward, dX once at the end of backward."
    ),
    hint_sentences=(
        N_("In which columns does the column layer leave its output? Which columns does the row layer want?"),
        N_("Forward: Y comes out of the row layer as partial sums. Backward: who knows all of dX?"),
        N_("The column layer sends nothing in forward, and the row layer nothing in backward. What does each send?"),
    ),
    misconceptions=(
        Misconception(
            "one for each layer",
            [2, 2],
            N_(
                "You counted one for each layer, each way. But the column layer sends nothing in forward if nobody "
                "needs its whole output, and the row layer nothing in backward, as dY is on every rank. Each layer "
                "sends once in all."
            ),
        ),
        Misconception(
            "none backward",
            [1, 0],
            N_(
                "Backward ends at X. Each rank knows what the loss feels about X through its own columns of W1, and "
                "that is a share of dX: with none sent, the layer before would learn from a wrong dX, and no message "
                "would say a word."
            ),
        ),
        Misconception(
            "gathered in the middle",
            [2, 1],
            N_(
                "You put H together between the layers. It works, and the notebook's first attempt does it. But the row"
                " layer cuts H by columns again, and each rank had these columns before."
            ),
        ),
        Misconception(
            "gathered, both ways",
            [3, 3],
            N_(
                "Three each way is one for each layer and one between them. Ask at each of the three places what a rank"
                " has, and what it needs next. In the middle it has it already."
            ),
        ),
        Misconception(
            "none at all",
            [0, 0],
            N_(
                "With nothing sent, no rank ever has a number that depends on another's weights. But each entry of Y "
                "depends on all of W1. The row layer's results are as large as Y, and each is a share of it."
            ),
        ),
        Misconception(
            "column layer only",
            [0, 1],
            N_(
                "That is the column layer alone: nothing in forward, one sum for dX. The row layer behind it leaves "
                "partial sums, and Y shall be whole on both ranks."
            ),
        ),
        Misconception(
            "both in forward",
            [2, 0],
            N_(
                "Two in all is right, and they are one each way. In forward only the row layer leaves something "
                "unfinished; in backward only the column layer does."
            ),
        ),
        Misconception(
            "gathered backward",
            [1, 2],
            N_(
                "Forward is right. Backward goes the same way back: dH comes in columns, ReLU's mask is there in "
                "columns, and the column layer wants its dA so. Only dX is left to be summed."
            ),
        ),
    ),
)


def _parts(comm, X, W1, W2):
    """What a rank has: all of X, its columns of W1, its rows of W2."""
    return X, tpviz.shard(W1, 1, comm), tpviz.shard(W2, 0, comm)


def _cases() -> list[Case]:
    """The third has other weights than the notebook, and all its matrices on a rank are 4×4. The last: 3, 3 and 1."""
    other = X4, integers(4, 8, start=2), integers(8, 4, start=9)
    return [
        example(X, W1, W2, ranks=2),
        example(X, W1, W2, ranks=4),
        Case(other, _("4 rows and other weights on {ranks} ranks").format(ranks=2), 2),
        Case(
            (integers(2, 5), integers(5, 7), integers(7, 4)), _("7 columns of W1 on {ranks} ranks").format(ranks=3), 3
        ),
    ]


def mlp(comm, X, W1i, W2i):
    """Y = relu(X W1) W2 on every rank, in as few collectives as can be.

    W1i: this rank's columns of W1. W2i: its rows of W2.
    """
    Hi = torch.relu(X @ W1i)  # hole
    return comm.all_reduce(Hi @ W2i)  # hole


def _share(X, W1i, W2i):
    return torch.relu(X @ W1i) @ W2i


def _gathered(comm, X, W1i, W2i):
    H = comm.all_gather(torch.relu(X @ W1i), dim=1)
    return comm.all_reduce(tpviz.shard(H, 1, comm) @ W2i)


def _next_ranks_rows(comm, X, W1i, W2i):
    rows = comm.all_gather(W2i, dim=0).chunk(comm.world_size)[(comm.rank + 1) % comm.world_size]
    return comm.all_reduce(torch.relu(X @ W1i) @ rows)


def _added_by_hand(comm, X, W1i, W2i):
    shares = comm.all_gather(_share(X, W1i, W2i), dim=0)
    return shares.reshape(comm.world_size, *X.shape[:1], -1).sum(0)


def _in_two(comm, X, W1i, W2i):
    return comm.all_gather(comm.reduce_scatter(_share(X, W1i, W2i), dim=0), dim=0)


FEWEST = TrafficExercise(
    id="06-fewest",
    function=mlp,
    inputs=_cases,
    held=_parts,
    weigh=len,
    too_much=N_("Tried on {case}, your numbers are right. You send {sent}: {got} collectives, and {expected} will do."),
    right=N_(
        "A rank's columns of H are finished numbers, so ReLU may have them, and its rows of W2 want these columns and "
        "no others. Only the shares of Y are left to be added, once."
    ),
    hint_sentences=(
        N_("What does a rank have after X @ W1i: finished numbers, or shares of a sum? May ReLU have them?"),
        N_("Rank 0's columns of H meet rows 0 to 3 of W2 and no others. Which rows does rank 0 have?"),
        N_("`torch.relu(X @ W1i) @ W2i` is a partial sum of Y. Which one collective makes Y of partial sums?"),
    ),
    misconceptions=(
        Misconception(
            "H gathered",
            _gathered,
            N_(
                "The numbers are right, and you send {sent}: one more than is needed. You put the middle together and "
                "each rank then takes its own columns of it. It had these before. Leave out both steps and nothing "
                "changes."
            ),
        ),
        Misconception(
            "all gathered",
            lambda comm, X, W1i, W2i: comm.all_gather(torch.relu(X @ W1i), dim=1) @ comm.all_gather(W2i, dim=0),
            N_(
                "The numbers are right, and you send {sent}. Both factors are put together on every rank, which then "
                "has as much to multiply as if it were alone. It can work with the parts that it has, and {expected} "
                "collective will do."
            ),
        ),
        Misconception(
            "AllReduce in two",
            _in_two,
            N_(
                "The numbers are right, and you send {sent}. These two are what an AllReduce does in one. They pay "
                "where something can be done between them on a part of the rows; here nothing is."
            ),
        ),
        Misconception(
            "H all-reduced",
            lambda comm, X, W1i, W2i: comm.all_reduce(comm.all_reduce(torch.relu(X @ W1i)) @ W2i),
            N_(
                "You summed H over the ranks. They hold different columns of H, and rank 0's column 0 is now mixed with"
                " rank 1's. All shapes fit, and no message says a word: tried on {case}, {place} is {got}, and it "
                "should be {expected}."
            ),
        ),
        Misconception(
            "H all-reduced, Y not",
            lambda comm, X, W1i, W2i: comm.all_reduce(torch.relu(X @ W1i)) @ W2i,
            N_(
                "You summed in the middle and not at the end. In the middle each rank has columns of its own, which are"
                " finished. At the end it has a share of each entry. All shapes fit: tried on {case}, {place} on rank "
                "{rank} is {got}, and it should be {expected}."
            ),
        ),
        Misconception(
            "A all-reduced",
            lambda comm, X, W1i, W2i: comm.all_reduce(torch.relu(comm.all_reduce(X @ W1i)) @ W2i),
            N_(
                "You summed A before ReLU, as one does behind a row layer. W1 is cut by columns: each rank's columns of"
                " A are finished, and not the same as another's. All shapes fit: tried on {case}, {place} is {got}, and"
                " it should be {expected}."
            ),
        ),
        Misconception(
            "W2's halves swapped",
            _next_ranks_rows,
            N_(
                "Each rank multiplies with another rank's rows of W2. On 2 ranks feature 0 of H meets row 4 instead of "
                "row 0. Equal parts fit any rows: no message, and on {case}, {place} is {got}, and it should be "
                "{expected}."
            ),
        ),
        Misconception(
            "no sum",
            lambda comm, X, W1i, W2i: _share(X, W1i, W2i),
            N_(
                "Each rank returns its share of Y. The shape is right, so nothing complains: on rank {rank}, {place} is"
                " {got}, and it should be {expected}. The products with the other ranks' columns of H are missing."
            ),
        ),
        Misconception(
            "mean",
            lambda comm, X, W1i, W2i: comm.all_reduce(_share(X, W1i, W2i), op="mean"),
            N_(
                "The mean divides by the number of ranks. The shape is right, and the numbers are too small: tried on "
                "{case}, {place} is {got}, and it should be {expected}. Each rank has other products; all are wanted."
            ),
        ),
        Misconception(
            "concatenated",
            lambda comm, X, W1i, W2i: comm.all_gather(_share(X, W1i, W2i), dim=1),
            N_(
                "You put the ranks' results side by side: {got_shape}, and Y is {expected_shape}. Each already has all "
                "columns of Y, with a share of each entry."
            ),
        ),
        Misconception(
            "rows",
            lambda comm, X, W1i, W2i: comm.all_gather(_share(X, W1i, W2i), dim=0),
            N_(
                "You put the ranks' results one above the other: {got_shape}, and Y is {expected_shape}. Each already "
                "has all rows of Y, with a share of each entry."
            ),
        ),
        Misconception(
            "some rows",
            lambda comm, X, W1i, W2i: comm.reduce_scatter(_share(X, W1i, W2i), dim=0),
            N_(
                "The sum is right, and each rank gets only some rows of it: {got_shape} on rank {rank}. Here every rank"
                " needs all of Y, {expected_shape}."
            ),
        ),
        Misconception(
            "summed twice",
            lambda comm, X, W1i, W2i: comm.all_reduce(comm.all_reduce(_share(X, W1i, W2i))),
            N_(
                "After the first sum every rank has Y. The second adds Y once for each rank: tried on {case}, {place} "
                "is {got}, and it should be {expected}."
            ),
        ),
        Misconception(
            "ReLU after the sum",
            lambda comm, X, W1i, W2i: torch.relu(comm.all_reduce(X @ W1i @ W2i)),
            N_(
                "ReLU stands behind both layers. It belongs between them, on H's columns: tried on {case}, {place} is "
                "{got}, and it should be {expected}. Now no entry is negative, and Y has some."
            ),
        ),
        Misconception(
            "ReLU on partial sums",
            lambda comm, X, W1i, W2i: comm.all_reduce(torch.relu(X @ W1i @ W2i)),
            N_(
                "ReLU gets the shares of Y, before they are added. It would make 0 of a negative share whose sum is "
                "positive. And it belongs between the layers: tried on {case}, {place} is {got}, and it should be "
                "{expected}."
            ),
        ),
        Misconception(
            "ReLU twice",
            lambda comm, X, W1i, W2i: torch.relu(comm.all_reduce(_share(X, W1i, W2i))),
            N_(
                "The sum was Y, and then ReLU cut it too: tried on {case}, {place} is {got}, and it should be "
                "{expected}. There is one ReLU, between the layers."
            ),
        ),
        Misconception(
            "no ReLU",
            lambda comm, X, W1i, W2i: comm.all_reduce(X @ W1i @ W2i),
            N_(
                "ReLU is missing: tried on {case}, {place} is {got}, and it should be {expected}. Without it two layers"
                " are one."
            ),
        ),
        Misconception(
            "the notebook's weights",
            lambda comm, X, W1i, W2i: torch.relu(X @ W1) @ W2,
            N_(
                "Right on the notebook's weights, since you used W1 and W2 themselves. A rank has only W1i and W2i. "
                "Tried on {case}, {place} is {got}, and it should be {expected}."
            ),
        ),
    ),
    remarks=(
        Remark(
            "added by hand",
            _added_by_hand,
            N_(
                "One thing: your AllGather brings every rank all the shares, and each adds them for itself. An "
                "AllReduce is one collective too, and about one Y, not as many as there are ranks."
            ),
            probe=Kinds,
        ),
    ),
)


@dataclass(frozen=True, kw_only=True)
class RowsExercise(ValueExercise):
    """The answer lists rows, in an order that counts."""

    def difference(self, expected: object, got: object, case: Case) -> Difference:
        """Whether it is only the order."""
        assert isinstance(expected, list)
        if type(got) is list and all(map(values.is_number, got)) and sorted(got) == expected:
            text = _("These rows, and in another order: {value}. Rank 0's columns of H stand as they were dealt.")
            return Difference(text.format(value=values.shown(got)))
        return super().difference(expected, got, case)


DEALT = [[0, 2, 4, 6], [1, 3, 5, 7]]


def _rows() -> list[int]:
    """Those of all 4 of 8 rows of W2 with which the ranks' products add up to Y, rank 1 having the others."""
    H = [torch.relu(X @ W1[:, columns]) for columns in DEALT]
    found = []
    for rows in itertools.combinations(range(8), 4):
        others = sorted({*range(8)} - {*rows})
        if torch.equal(H[0] @ W2[list(rows)] + H[1] @ W2[others], torch.relu(X @ W1) @ W2):
            found.append(list(rows))
    [rows_of_rank_0] = found
    return rows_of_rank_0


DEAL = RowsExercise(
    id="06-deal",
    variable="rows",
    answer=_rows,
    ask="the rows of W2 that rank 0 must hold",
    hole="[...]",
    right=N_(
        "Column j of W1 makes feature j of H, and row j of W2 uses it. Rank 0 makes features 0, 2, 4 and 6. Any rule "
        "will do, if both matrices follow it."
    ),
    hint_sentences=(
        N_("Which features of H does rank 0 compute from columns 0, 2, 4 and 6 of W1?"),
        N_("Y's entry is a sum over the features: feature j of H times row j of W2. Who has feature 2?"),
    ),
    misconceptions=(
        Misconception(
            "contiguous",
            [0, 1, 2, 3],
            N_(
                "Then W1 follows one rule and W2 another. Rank 0's second column of H is feature 2, and it would meet "
                "row 1. The shapes fit, the sum is as large as Y, and no message says a word; compare with Y, and most "
                "numbers are wrong."
            ),
        ),
        Misconception(
            "contiguous, second half",
            [4, 5, 6, 7],
            N_(
                "That is the other rank's half where both matrices are cut in the middle. W1 is not, here: feature 0 of"
                " H would meet row 4. The shapes fit, and the numbers are wrong."
            ),
        ),
        Misconception(
            "rank 1's",
            [1, 3, 5, 7],
            N_(
                "Those are rank 1's. Rank 0 would multiply feature 0 with row 1, rank 1 feature 1 with row 0. The "
                "shapes fit, and the numbers are wrong. Whoever has column j of W1 needs row j of W2."
            ),
        ),
        Misconception(
            "all",
            [0, 1, 2, 3, 4, 5, 6, 7],
            N_(
                "With all rows it holds all of W2, and cannot use it: its part of H is 3×4, and W2 is 8×4, which "
                "PyTorch refuses to multiply. Four features need four rows."
            ),
        ),
        Misconception(
            "columns of W2",
            [0, 2],
            N_(
                "That deals out W2's four columns. The question is about its rows, and it has 8, one for each feature "
                "of H."
            ),
        ),
    ),
)

EXERCISES = (PREDICT, FEWEST, DEAL)
