# mypy: allow-untyped-defs, allow-untyped-calls
"""The exercises of notebook 02, row parallel (checks). The functions are shown as they stand here."""

from dataclasses import replace

import tpviz
from tpviz.exercises import values
from tpviz.exercises.inputs import W, X, example, integers, product
from tpviz.exercises.pattern import Case, Misconception, ProgramExercise, Remark, ValueExercise
from tpviz.i18n import N_, _


def _cases() -> list[Case]:
    sizes = (2, 6, 5)
    return [
        example(X, W, ranks=2),
        example(X, W, ranks=4),
        product(integers(2, 6), integers(6, 5), sizes=sizes, ranks=3),
    ]


def _shares(comm, X, W, *others):
    """What a rank has: its columns of X, its rows of W, and all of everything else."""
    return tpviz.shard(X, 1, comm), tpviz.shard(W, 0, comm), *others


_NOT_ITS_OWN = N_(
    "Right numbers on the running example, but X and W are the notebook's: this multiplies with all of W, which a rank "
    "does not have. On other matrices it would still be the notebook's product. Use `partial`."
)


def _own_shape(comm, X, W):
    return tpviz.shard(X, 1, comm) @ tpviz.shard(W, 0, comm)


SHAPE = ValueExercise(
    id="02-predict-shape",
    variable="shape",
    answer=lambda: list(tpviz.run(_own_shape, ranks=4, args=(X, W)).outputs[0].shape),
    ask="rows and columns of what one of 4 ranks computes",
    hole="[..., ...]",
    right=N_(
        "One column of X times one row of W is 3×8. With more ranks a rank has less to multiply, and its result stays "
        "as large as Y."
    ),
    hint_sentences=(
        N_("A rank has one row of W, 1×8. So its part of X is one column. How large is that?"),
        N_("3×1 times 1×8: as many rows as the first has, as many columns as the second."),
    ),
    misconceptions=(
        Misconception(
            "columns",
            [3, 2],
            N_(
                "That is column parallel on 4 ranks, where each has 2 columns of Y. Here a rank has a row of W, with "
                "all 8 columns in it."
            ),
        ),
        Misconception(
            "row of W",
            [1, 8],
            N_("That is the size of its part of W. It is multiplied with a column of X, which has 3 entries."),
        ),
        Misconception(
            "column of X",
            [3, 1],
            N_("That is the size of its part of X. It is multiplied with a row of W, which has 8 entries."),
        ),
        Misconception(
            "half",
            [3, 4],
            N_("That is half of Y, as if its columns were cut. Of a row of W all 8 columns are there."),
        ),
        Misconception(
            "turned",
            [8, 3],
            N_("You have them the wrong way round: rows first, then columns."),
        ),
    ),
)


def _collectives(program):
    """Which collectives a program makes."""
    return lambda comm, Xi, Wi: [event.kind for event in MERGE.run(program, example(X, W, ranks=comm.world_size)).trace]


def all_of_y(comm, Xi, Wi):
    """Y on each rank, which has Xi and Wi: its columns of X and its rows of W."""
    partial = Xi @ Wi
    return comm.all_reduce(partial)  # hole


MERGE = ProgramExercise(
    id="02-merge",
    function=all_of_y,
    inputs=_cases,
    held=_shares,
    right=N_("Each rank holds its share of each entry, a partial sum. Added over the ranks, they are Y, on each rank."),
    hint_sentences=(
        N_("Take row 0, column 0 of Y. Which of its four products does rank 0 compute, and which does rank 1?"),
        N_("Each rank has a share of each entry. What makes the whole entry out of the shares?"),
        N_("`comm.all_reduce(x)` adds x over the ranks, entry by entry, and each rank gets the sum."),
    ),
    misconceptions=(
        Misconception(
            "concatenated",
            lambda comm, Xi, Wi: comm.all_gather(Xi @ Wi, dim=-1),
            N_(
                "You put the ranks' results side by side, as for column parallel. You notice by the shape: "
                "{got_shape}, and Y is {expected_shape}. Each rank already has all columns; what it lacks is the other"
                " ranks' share of each entry."
            ),
        ),
        Misconception(
            "rows",
            lambda comm, Xi, Wi: comm.all_gather(Xi @ Wi, dim=0),
            N_(
                "You put the ranks' results one above the other. You notice by the shape: {got_shape}, and Y is "
                "{expected_shape}. W is cut by rows, and Y is not: each rank has all rows of Y, with a share of each "
                "entry."
            ),
        ),
        Misconception(
            "mean",
            lambda comm, Xi, Wi: comm.all_reduce(Xi @ Wi, op="mean"),
            N_(
                "The mean divides by the number of ranks. The shape is right, and the numbers are too small: tried on "
                "{case}, {place} is {got}, and it should be {expected}. The shares of an entry are added; nothing "
                "counts twice."
            ),
        ),
        Misconception(
            "maximum",
            lambda comm, Xi, Wi: comm.all_reduce(Xi @ Wi, op="max"),
            N_(
                "The larger of two shares is not the whole. The shape cannot tell; compare with X @ W: {place} is "
                "{got}, and it should be {expected}."
            ),
        ),
        Misconception(
            "one rank",
            lambda comm, Xi, Wi: Xi @ Wi,
            N_(
                "Each rank returns its own share. It looks like Y, since the shape is right, but {place} is {got} on "
                "rank {rank}, and it should be {expected}. The other ranks' products are missing."
            ),
        ),
        Misconception(
            "rank 0",
            lambda comm, Xi, Wi: comm.broadcast(Xi @ Wi),
            N_(
                "Now all ranks have the same numbers, rank 0's share of each entry. That they agree does not make them"
                " right: {place} is {got}, and it should be {expected}."
            ),
        ),
        Misconception(
            "some rows",
            lambda comm, Xi, Wi: comm.reduce_scatter(Xi @ Wi, dim=0),
            N_(
                "The sum is right, but each rank gets only some rows of it: {got_shape} on rank {rank}. Here each rank"
                " needs all of Y, {expected_shape}."
            ),
        ),
        Misconception(
            "summed twice",
            lambda comm, Xi, Wi: comm.all_reduce(comm.all_reduce(Xi @ Wi)),
            N_(
                "You added twice. After the first sum each rank has all of Y, and the second adds up whole results: "
                "{place} is {got}, and it should be {expected}."
            ),
        ),
        Misconception("all of W", lambda comm, Xi, Wi: X @ W, _NOT_ITS_OWN),
    ),
    remarks=(
        Remark(
            "gathered",
            lambda comm, Xi, Wi: comm.all_gather(Xi, dim=1) @ comm.all_gather(Wi, dim=0),
            N_(
                "One thing: you gathered X and W, and each rank multiplies all of them. That is right, and nothing is "
                "divided: no rank is spared any of W or any product. Use `partial`."
            ),
            probe=_collectives,
        ),
    ),
)


def part_of_x(comm, X, Wi):
    """Y on each rank. Wi is every n-th row of W: on 2 ranks 0 and 2, or 1 and 3."""
    Xi = X[:, comm.rank :: comm.world_size]  # hole
    return comm.all_reduce(Xi @ Wi)


def _dealt_out(comm, X, W):
    """What a rank has: all of X, and its rows of W, dealt out like cards."""
    return X, W[comm.rank :: comm.world_size].clone()


def _with_part(part):
    """The program with another part of X."""
    return lambda comm, X, Wi: comm.all_reduce(part(comm, X) @ Wi)


LAYOUT = ProgramExercise(
    id="02-part-of-x",
    function=part_of_x,
    inputs=_cases,
    held=_dealt_out,
    right=N_(
        "Row k of W is multiplied with column k of X and with nothing else. So the columns of X are dealt out as the "
        "rows of W are. Any rule will do if both follow it."
    ),
    hint_sentences=(
        N_("Of 2 ranks, rank 1 holds rows 1 and 3 of W. Which entries of a row of X are multiplied with them?"),
        N_("Wi is 2×8, so Xi must be 3×2: all rows of X, and as many columns as Wi has rows."),
        N_("`X[:, 1::2]` is columns 1, 3, … of X: it begins at 1 and goes on in steps of 2."),
    ),
    misconceptions=(
        Misconception(
            "whole",
            _with_part(lambda comm, X: X),
            N_(
                "You gave each rank all of X, as for column parallel. You notice at once: {error}. X has a column for "
                "each row of W, and this rank has only some of the rows."
            ),
        ),
        Misconception(
            "rows",
            _with_part(lambda comm, X: tpviz.shard(X, 0, comm)),
            N_("You cut X by rows, as W is cut. You notice at once: {error}. A row of W meets a column of X."),
        ),
        Misconception(
            "the partner's",
            _with_part(lambda comm, X: X[:, (comm.rank + 1) % comm.world_size :: comm.world_size]),
            N_(
                "This rank has another rank's part of X: on 2 ranks the result is X1 W0 + X0 W1. All shapes are right,"
                " and no message says a word. You notice when you compare with X @ W: {place} is {got}, and it should "
                "be {expected}."
            ),
        ),
        Misconception(
            "reversed",
            _with_part(lambda comm, X: X[:, comm.world_size - 1 - comm.rank :: comm.world_size]),
            N_(
                "The parts of X are dealt out from the last rank to the first: on 2 ranks the result is X1 W0 + X0 W1."
                " All shapes are right. You notice when you compare with X @ W: {place} is {got}, and it should be "
                "{expected}."
            ),
        ),
        Misconception(
            "rank 0's",
            _with_part(lambda comm, X: X[:, :: comm.world_size]),
            N_(
                "Each rank has rank 0's columns of X. All shapes are right, and the other columns of X are never "
                "used: {place} is {got}, and it should be {expected}."
            ),
        ),
        Misconception(
            "blocks",
            _with_part(lambda comm, X: tpviz.shard(X, 1, comm)),
            N_(
                "You cut the columns of X into blocks, 0 and 1 to rank 0, while the rows of W are dealt out, 0 and 2 "
                "to rank 0. All shapes are right. Any rule will do if both follow it; here they do not: {place} is "
                "{got}, and it should be {expected}."
            ),
        ),
        Misconception(
            "every other",
            _with_part(lambda comm, X: X[:, comm.rank :: 2]),
            N_(
                "On 2 ranks this is right. Tried on 4, it ends in {error}. Of n ranks each has every n-th row of W: go "
                "in steps of `comm.world_size`."
            ),
        ),
    ),
)


def with_bias(comm, Xi, Wi, b):
    """X W + b on each rank, which has its columns of X, its rows of W, and all of b."""
    partial = Xi @ Wi
    Y = comm.all_reduce(partial)  # hole
    return Y + b  # hole


def _bias_cases() -> list[Case]:
    # On 3 ranks a third of b is not exact, and b / n would be refused for its rounding.
    b = integers(1, 8)[0]
    sizes = (2, 4, 5)
    cases = [
        example(X, W, b, ranks=2),
        example(X, W, b, ranks=4),
        product(integers(2, 4), integers(4, 5), integers(1, 5)[0], sizes=sizes, ranks=4),
    ]
    text = _("{case}, with b[0] = {first}")
    return [
        replace(case, label=text.format(case=case.label, first=values.number(case.args[2][0].item()))) for case in cases
    ]


def _own_bias(program):
    """The program, each rank having another bias: shows how much of its own b a rank adds."""
    return lambda comm, Xi, Wi, b: program(comm, Xi, Wi, b * (comm.rank + 1))


BIAS = ProgramExercise(
    id="02-bias",
    function=with_bias,
    inputs=_bias_cases,
    held=_shares,
    right=N_("b is in the result once, on each rank."),
    hint_sentences=(
        N_("How often is b in the result if each rank adds it to its share before the sum?"),
        N_("Add it where it counts once: after the sum on every rank, or before it on one rank only."),
    ),
    misconceptions=(
        Misconception(
            "every rank",
            lambda comm, Xi, Wi, b: comm.all_reduce(Xi @ Wi + b),
            N_(
                "Each rank adds b to its share, and the sum counts it once for each rank: the result is X W + n·b "
                "instead of X W + b. No shape tells. Tried on {case}, {place} is {got}, and it should be {expected}. "
                "With b = 0, as layers often start, not even the numbers would tell."
            ),
        ),
        Misconception(
            "no bias",
            lambda comm, Xi, Wi, b: comm.all_reduce(Xi @ Wi),
            N_("b is missing: {place} is {got}, and it should be {expected}."),
        ),
        Misconception(
            "a share with bias",
            lambda comm, Xi, Wi, b: Xi @ Wi + b,
            N_(
                "b is in it once, but the shares were not added: on rank {rank}, {place} is {got}, and it should be "
                "{expected}."
            ),
        ),
        Misconception("all of W", lambda comm, Xi, Wi, b: X @ W + b, _NOT_ITS_OWN),
        Misconception(
            "divided after the sum",
            lambda comm, Xi, Wi, b: comm.all_reduce(Xi @ Wi) + b / comm.world_size,
            N_(
                "After the sum there is nothing left to divide for: each rank adds only a part of b. Tried on {case}, "
                "{place} is {got}, and it should be {expected}."
            ),
        ),
        Misconception(
            "one rank after the sum",
            lambda comm, Xi, Wi, b: comm.all_reduce(Xi @ Wi) + (b if comm.rank == 0 else 0),
            N_(
                "Rank 0 adds b after the sum, when nothing is sent any more, so the other ranks never see it: on rank "
                "{rank}, {place} is {got}, and it should be {expected}."
            ),
        ),
    ),
    remarks=(
        Remark(
            "b / n",
            lambda comm, Xi, Wi, b: comm.all_reduce(Xi @ Wi + b / comm.world_size),
            N_(
                "One thing: you add b / n on each rank. The output is right, and yet a rank's own b moves it by only "
                "1/n. So with plain tensors, as here, the gradient that reaches b will be 1/n of the true one. Added "
                "after the sum, b gets its whole gradient. PyTorch's `RowwiseParallel` does add b / n, and its tensors "
                "know of the shares and make up for it."
            ),
            probe=_own_bias,
        ),
    ),
)

EXERCISES = (SHAPE, MERGE, LAYOUT, BIAS)
