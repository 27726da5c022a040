# mypy: allow-untyped-defs, allow-untyped-calls
"""The exercises of notebook 01, column parallel (checks). The functions are shown as they stand here."""

import torch

import tpviz
from tpviz.exercises.inputs import W, X, example, integers, product
from tpviz.exercises.pattern import Case, FunctionExercise, Misconception, ValueExercise
from tpviz.i18n import N_, _


def _column(comm, X, W):
    return X @ tpviz.shard(W, 1, comm)


def _dealt_out(comm, X, W):
    return X @ W[:, comm.rank :: comm.world_size]


MESSAGES = ValueExercise(
    id="01-predict-messages",
    variable="messages",
    answer=lambda: len(tpviz.run(_dealt_out, ranks=2, args=(X, W)).trace),
    ask="0, 1 or 2",
    right=N_(
        "A column of Y needs all of X and one column of W. Whoever has this column needs nothing else, blocks or not."
    ),
    hint_sentences=(
        N_("Take one entry of Y. Which row of X and which column of W does it need?"),
        N_("Is there a rank that holds that whole row and that whole column?"),
    ),
    misconceptions=(
        Misconception(
            "one",
            1,
            N_(
                "One message would be needed if a rank had to wait for something. Take row 0, column 5 of Y: it is row"
                " 0 of X times column 5 of W, and rank 1 holds both."
            ),
        ),
        Misconception(
            "two",
            2,
            N_(
                "Two messages would be one each way. What would rank 0 send? Rank 1 has the same X, and never looks at "
                "rank 0's columns of W."
            ),
        ),
    ),
)


def merge(shards):
    """Y, from the list of what the ranks returned: rank 0's columns, rank 1's, ..."""
    return torch.cat(shards, dim=1)  # hole


def _merge_cases() -> list[Case]:
    def shards(x: torch.Tensor, w: torch.Tensor, ranks: int) -> list[torch.Tensor]:
        return tpviz.run(_column, ranks=ranks, args=(x, w)).outputs

    sizes = (2, 5, 9)
    x, w = integers(2, 5), integers(5, 9)
    return [
        example(shards(X, W, 2), ranks=2),
        example(shards(X, W, 4), ranks=4),
        product(shards(x, w, 3), sizes=sizes, ranks=3),
    ]


MERGE = FunctionExercise(
    id="01-merge",
    function=merge,
    inputs=_merge_cases,
    right=N_(
        "Each rank's columns are finished, so they stand side by side in rank order, and the result equals X @ W."
    ),
    hint_sentences=(
        N_("Look at the shapes: what the ranks return is 3×4, Y is 3×8. Which dimension has to grow?"),
        N_("Rank 1 holds columns 4 to 7 of Y. They begin where rank 0's columns end."),
        N_("`torch.cat(tensors, dim=...)` puts tensors behind each other along one dimension."),
    ),
    misconceptions=(
        Misconception(
            "sum",
            lambda shards: torch.stack(shards).sum(dim=0),
            N_(
                "You added the parts, which makes one number of column 0 and column 4 of Y. You notice by the shape: "
                "it is {got_shape}, and Y is {expected_shape}. Nothing in different columns is to be added."
            ),
        ),
        Misconception(
            "mean",
            lambda shards: torch.stack(shards).mean(dim=0),
            N_(
                "You took the mean of the parts, which mixes column 0 of Y with column 4. You notice by the shape: it "
                "is {got_shape}, and Y is {expected_shape}."
            ),
        ),
        Misconception(
            "rows",
            lambda shards: torch.cat(shards, dim=0),
            N_(
                "You put the parts one above the other, {got_shape}. But rank 1 has no further rows of Y: it has "
                "further columns of the same rows, and Y is {expected_shape}."
            ),
        ),
        Misconception(
            "reshaped",
            lambda shards: torch.cat(shards, dim=0).reshape(shards[0].shape[0], -1),
            N_(
                "The shape is right and the numbers are not: {place} is {got}, and it should be {expected}. One above "
                "the other and then cut into longer rows, row 0 goes on with rank 0's row 1 instead of rank 1's row 0."
                " A shape proves nothing; compare the entries."
            ),
        ),
        Misconception(
            "swapped",
            lambda shards: torch.cat(shards[::-1], dim=1),
            N_(
                "The ranks are in the wrong order: {place} is {got}, which the last rank computed. The shape cannot "
                "tell; compare with X @ W. The columns of rank 0 come first."
            ),
        ),
        Misconception(
            "stacked",
            lambda shards: torch.stack(shards),
            N_(
                "`torch.stack` makes a new dimension for the ranks, {got_shape}. Y is one matrix, {expected_shape}: it"
                " has no dimension that counts ranks."
            ),
        ),
        Misconception(
            "one rank",
            lambda shards: shards[0],
            N_("That is rank 0's part alone, {got_shape}. Y is {expected_shape}, and its other columns are elsewhere."),
        ),
        Misconception(
            "first two",
            lambda shards: torch.cat(shards[:2], dim=1),
            N_(
                "On 2 ranks this is right. Tried on {case}, it gives {got_shape} where Y is {expected_shape}: the "
                "parts of the other ranks are missing. Use the whole list."
            ),
        ),
    ),
)


def owner(row, column, columns, n):
    """The rank that holds this entry of Y: its columns are cut into n equal blocks."""
    return column // (columns // n)  # hole


def _owner_cases() -> list[Case]:
    text = _("row {row}, column {column} of {columns}, {ranks} ranks")
    return [
        Case((row, column, columns, ranks), text.format(row=row, column=column, columns=columns, ranks=ranks))
        for columns, ranks in ((8, 2), (8, 4), (12, 3))
        for row in range(3)
        for column in range(columns)
    ]


_BY_ROW = N_(
    "You asked for the row. Each rank computes all rows, so the row says nothing about the rank. Tried on {case}: "
    "you say rank {got}, and rank {expected} holds it."
)

OWNER = FunctionExercise(
    id="01-owner",
    function=owner,
    inputs=_owner_cases,
    right=N_("A rank holds columns // n columns, one block. The row does not matter: each rank has all rows."),
    hint_sentences=(
        N_("8 columns on 2 ranks: rank 0 holds columns 0 to 3, rank 1 columns 4 to 7. And on 4 ranks?"),
        N_("How many columns does one rank hold? Write it with `columns` and `n`."),
        N_("`//` divides and drops the remainder: 5 // 4 is 1."),
    ),
    misconceptions=(
        Misconception("row", lambda row, column, columns, n: row, _BY_ROW),
        Misconception("row, dealt out", lambda row, column, columns, n: row % n, _BY_ROW),
        Misconception(
            "dealt out",
            lambda row, column, columns, n: column % n,
            N_(
                "You dealt the columns out one by one, like cards. They are cut into blocks. Tried on {case}: you say "
                "rank {got}, and rank {expected} holds it."
            ),
        ),
        Misconception(
            "divided by n",
            lambda row, column, columns, n: column // n,
            N_(
                "n is the number of ranks. To divide by it gives blocks of n columns; a rank's block is columns // n "
                "wide. Tried on {case}: you say rank {got}, and rank {expected} holds it."
            ),
        ),
        Misconception(
            "columns from 1",
            lambda row, column, columns, n: (column + 1) // (columns // n),
            N_(
                "Off by one, at the end of a block: columns are counted from 0, so rank 0's last is not yet rank 1's. "
                "Tried on {case}: you say rank {got}, and rank {expected} holds it."
            ),
        ),
        Misconception(
            "ranks from 1",
            lambda row, column, columns, n: column // (columns // n) + 1,
            N_("Ranks are counted from 0. Tried on {case}: you say rank {got}, and rank {expected} holds it."),
        ),
        Misconception(
            "reversed",
            lambda row, column, columns, n: n - 1 - column // (columns // n),
            N_("That is the order turned round. Tried on {case}: you say rank {got}, and rank {expected} holds it."),
        ),
        Misconception(
            "fractions",
            lambda row, column, columns, n: column / (columns / n),
            N_(
                "`/` gives fractions: on {case} you say rank {got}. There is no such rank; one with a whole number "
                "holds the entry."
            ),
        ),
    ),
)


def columns_of_y(X, weight, rank, n):
    """This rank's columns of X @ W; weight is nn.Linear's, (out, in)."""
    part = weight.chunk(n, dim=0)[rank]  # hole
    return torch.nn.functional.linear(X, part)


def _weight_cases() -> list[Case]:
    text = _("rank {rank} of {ranks} with a weight of {shape}")
    square = integers(4, 4)
    return [
        Case(
            (x, w.T.contiguous(), rank, ranks),
            text.format(rank=rank, ranks=ranks, shape=f"{w.shape[1]}×{w.shape[0]}"),
        )
        for x, w, ranks in ((X, W, 2), (X, W, 4), (X, square, 2), (integers(2, 3), integers(3, 10), 2))
        for rank in range(ranks)
    ]


WEIGHT = FunctionExercise(
    id="01-weight",
    function=columns_of_y,
    inputs=_weight_cases,
    right=N_("W's columns are the rows of `weight`, so W cut along dim 1 is `weight` cut along dim 0."),
    hint_sentences=(
        N_("`weight` is 8×4, W is 4×8. What is a column of W in `weight`?"),
        N_("A rank holds 4 of the 8 columns of W, hence a 4×4 part of `weight`, with 4 whole rows."),
        N_("`weight.chunk(n, dim=...)` is the list of n equal parts; take the one of this rank."),
    ),
    misconceptions=(
        Misconception(
            "dim 1",
            lambda X, weight, rank, n: torch.nn.functional.linear(X, weight.chunk(n, dim=1)[rank]),
            N_(
                "You cut dim 1, which is where W has its columns. But `nn.Linear` keeps W turned round, as 8×4: its "
                "dim 1 counts W's rows. You notice since the shapes do not fit: {error}"
            ),
        ),
        Misconception(
            "dim 1, turned",
            lambda X, weight, rank, n: torch.nn.functional.linear(X, weight.chunk(n, dim=1)[rank].T),
            N_(
                "You cut dim 1 of `weight`, as if it were W, and turned the part to make it fit. The 8×4 weight stops "
                "you: {error}. A square weight does not. Tried on {case}, the shape is right and {place} is {got}; it "
                "should be {expected}."
            ),
        ),
        Misconception(
            "part of W",
            lambda X, weight, rank, n: torch.nn.functional.linear(X, weight.T.chunk(n, dim=1)[rank]),
            N_(
                "You turned `weight` into W and cut W's columns, but `linear` turns what it gets once more. On 2 ranks"
                " the part is square, 4×4, and no shape complains: {place} is {got}, and it should be {expected}. On 4"
                " ranks it ends in {error}"
            ),
        ),
        Misconception(
            "whole",
            lambda X, weight, rank, n: torch.nn.functional.linear(X, weight),
            N_(
                "That is the whole weight: each rank would compute all of Y, {got_shape}, and nothing would be "
                "divided. This rank's columns are {expected_shape}."
            ),
        ),
        Misconception(
            "rank 0",
            lambda X, weight, rank, n: torch.nn.functional.linear(X, weight.chunk(n, dim=0)[0]),
            N_(
                "Each rank gets the first part. Tried on {case}, {place} is {got}, which is rank 0's; it should be "
                "{expected}. Use `rank`."
            ),
        ),
        Misconception(
            "dealt out",
            lambda X, weight, rank, n: torch.nn.functional.linear(X, weight[rank::n]),
            N_(
                "You dealt the rows of `weight` out one by one. The shapes are right, and side by side the parts give "
                "the columns of Y in another order: on {case}, {place} is {got}, and it should be {expected}. A part "
                "is one block."
            ),
        ),
    ),
)

EXERCISES = (MESSAGES, MERGE, OWNER, WEIGHT)
