# mypy: allow-untyped-defs, allow-untyped-calls
"""The exercises of notebook 02, row parallel (checks). The functions are shown as they stand here."""

import tpviz
from tpviz.exercises.inputs import W, X, example, integers, product
from tpviz.exercises.pattern import Case, Misconception, ProgramExercise, Remark
from tpviz.i18n import N_


def _cases() -> list[Case]:
    sizes = (2, 6, 5)
    return [
        example(X, W, ranks=2),
        example(X, W, ranks=4),
        product(integers(2, 6), integers(6, 5), sizes=sizes, ranks=3),
    ]


def _partial(comm, X, W):
    return tpviz.shard(X, 1, comm) @ tpviz.shard(W, 0, comm)


def all_of_y(comm, X, W):
    """Y = X @ W, the whole of it on each rank."""
    partial = tpviz.shard(X, 1, comm) @ tpviz.shard(W, 0, comm)
    return comm.all_reduce(partial)  # hole


MERGE = ProgramExercise(
    id="02-merge",
    function=all_of_y,
    inputs=_cases,
    right=N_("Each rank holds its share of each entry, a partial sum. Added over the ranks, they are Y, on each rank."),
    hint_sentences=(
        N_("Take row 0, column 0 of Y. Which of its four products does rank 0 compute, and which does rank 1?"),
        N_("Each rank has a share of each entry. What makes the whole entry out of the shares?"),
        N_("`comm.all_reduce(x)` adds x over the ranks, entry by entry, and each rank gets the sum."),
    ),
    misconceptions=(
        Misconception(
            "concatenated",
            lambda comm, X, W: comm.all_gather(_partial(comm, X, W), dim=-1),
            N_(
                "You put the ranks' results side by side, as for column parallel. You notice by the shape: "
                "{got_shape}, and Y is {expected_shape}. Each rank already has all columns; what it lacks is the other"
                " ranks' share of each entry."
            ),
        ),
        Misconception(
            "rows",
            lambda comm, X, W: comm.all_gather(_partial(comm, X, W), dim=0),
            N_(
                "You put the ranks' results one above the other. You notice by the shape: {got_shape}, and Y is "
                "{expected_shape}. W is cut by rows, and Y is not: each rank has all rows of Y, with a share of each "
                "entry."
            ),
        ),
        Misconception(
            "mean",
            lambda comm, X, W: comm.all_reduce(_partial(comm, X, W), op="mean"),
            N_(
                "The mean divides by the number of ranks. The shape is right, and the numbers are too small: tried on "
                "{case}, {place} is {got}, and it should be {expected}. The shares of an entry are added; nothing "
                "counts twice."
            ),
        ),
        Misconception(
            "maximum",
            lambda comm, X, W: comm.all_reduce(_partial(comm, X, W), op="max"),
            N_(
                "The larger of two shares is not the whole. The shape cannot tell; compare with X @ W: {place} is "
                "{got}, and it should be {expected}."
            ),
        ),
        Misconception(
            "one rank",
            _partial,
            N_(
                "Each rank returns its own share. It looks like Y, since the shape is right, but {place} is {got} on "
                "rank {rank}, and it should be {expected}. The other ranks' products are missing."
            ),
        ),
        Misconception(
            "rank 0",
            lambda comm, X, W: comm.broadcast(_partial(comm, X, W)),
            N_(
                "Now all ranks have the same numbers, rank 0's share of each entry. That they agree does not make them"
                " right: {place} is {got}, and it should be {expected}."
            ),
        ),
        Misconception(
            "some rows",
            lambda comm, X, W: comm.reduce_scatter(_partial(comm, X, W), dim=0),
            N_(
                "The sum is right, but each rank gets only some rows of it: {got_shape} on rank {rank}. Here each rank"
                " needs all of Y, {expected_shape}."
            ),
        ),
        Misconception(
            "summed twice",
            lambda comm, X, W: comm.all_reduce(comm.all_reduce(_partial(comm, X, W))),
            N_(
                "You added twice. After the first sum each rank has all of Y, and the second adds up whole results: "
                "{place} is {got}, and it should be {expected}."
            ),
        ),
    ),
)


def part_of_x(comm, X, W):
    """Y on each rank, which holds rows of W and the part of X that they need."""
    Wi = tpviz.shard(W, 0, comm)
    Xi = tpviz.shard(X, 1, comm)  # hole
    return comm.all_reduce(Xi @ Wi)


def _with_part(part):
    """The program with another part of X."""
    return lambda comm, X, W: comm.all_reduce(part(comm, X) @ tpviz.shard(W, 0, comm))


LAYOUT = ProgramExercise(
    id="02-part-of-x",
    function=part_of_x,
    inputs=_cases,
    right=N_(
        "Row k of W is multiplied with column k of X and with nothing else. So X is cut by columns where W is cut by "
        "rows."
    ),
    hint_sentences=(
        N_("Rank 0 holds rows 0 and 1 of W. Which entries of a row of X are multiplied with them?"),
        N_("Wi is 2×8, so Xi must be 3×2: all rows of X, and as many columns as Wi has rows."),
        N_("`tpviz.shard(X, dim, comm)` is this rank's part of X, cut along dim."),
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
            _with_part(lambda comm, X: X.chunk(comm.world_size, dim=1)[(comm.rank + 1) % comm.world_size]),
            N_(
                "This rank has another rank's part of X: on 2 ranks the result is X1 W0 + X0 W1. All shapes are right,"
                " and no message says a word. You notice when you compare with X @ W: {place} is {got}, and it should "
                "be {expected}."
            ),
        ),
        Misconception(
            "reversed",
            _with_part(lambda comm, X: X.chunk(comm.world_size, dim=1)[comm.world_size - 1 - comm.rank]),
            N_(
                "The parts of X are dealt out from the last rank to the first: on 2 ranks the result is X1 W0 + X0 W1."
                " All shapes are right. You notice when you compare with X @ W: {place} is {got}, and it should be "
                "{expected}."
            ),
        ),
        Misconception(
            "rank 0's",
            _with_part(lambda comm, X: X.chunk(comm.world_size, dim=1)[0]),
            N_(
                "Each rank has the first columns of X. All shapes are right, and the other columns of X are never "
                "used: {place} is {got}, and it should be {expected}."
            ),
        ),
        Misconception(
            "dealt out",
            _with_part(lambda comm, X: X[:, comm.rank :: comm.world_size]),
            N_(
                "You dealt the columns of X out one by one, 0 and 2 to rank 0, while the rows of W are cut into "
                "blocks, 0 and 1 to rank 0. Any rule will do if both follow it; here they do not: {place} is {got}, "
                "and it should be {expected}."
            ),
        ),
    ),
)


def with_bias(comm, X, W, b):
    """Y = X @ W + b on each rank, which has all of b."""
    partial = tpviz.shard(X, 1, comm) @ tpviz.shard(W, 0, comm)
    Y = comm.all_reduce(partial)  # hole
    return Y + b  # hole


def _bias_cases() -> list[Case]:
    # On 3 ranks a third of b is not exact, and b / n would be refused for its rounding.
    b = integers(1, 8)[0]
    sizes = (2, 4, 5)
    return [
        example(X, W, b, ranks=2),
        example(X, W, b, ranks=4),
        product(integers(2, 4), integers(4, 5), integers(1, 5)[0], sizes=sizes, ranks=4),
    ]


def _own_bias(program):
    """The program, each rank having another bias: shows how much of its own b a rank adds."""
    return lambda comm, X, W, b: program(comm, X, W, b * (comm.rank + 1))


BIAS = ProgramExercise(
    id="02-bias",
    function=with_bias,
    inputs=_bias_cases,
    right=N_("b is in the result once, on each rank."),
    hint_sentences=(
        N_("How often is b in the result if each rank adds it to its share before the sum?"),
        N_("Add it where it counts once: after the sum, or on one rank only."),
    ),
    misconceptions=(
        Misconception(
            "every rank",
            lambda comm, X, W, b: comm.all_reduce(_partial(comm, X, W) + b),
            N_(
                "Each rank adds b to its share, and the sum counts it once for each rank: the result is Y + (n − 1)·b "
                "instead of Y. No shape tells. Tried on {case}, {place} is {got}, and it should be {expected}. With b "
                "= 0, as layers often start, not even the numbers would tell."
            ),
        ),
        Misconception(
            "no bias",
            lambda comm, X, W, b: comm.all_reduce(_partial(comm, X, W)),
            N_("b is missing: {place} is {got}, and it should be {expected}."),
        ),
        Misconception(
            "a share with bias",
            lambda comm, X, W, b: _partial(comm, X, W) + b,
            N_(
                "b is in it once, but the shares were not added: on rank {rank}, {place} is {got}, and it should be "
                "{expected}."
            ),
        ),
        Misconception(
            "divided after the sum",
            lambda comm, X, W, b: comm.all_reduce(_partial(comm, X, W)) + b / comm.world_size,
            N_(
                "After the sum there is nothing left to divide for: each rank adds only a part of b. Tried on {case}, "
                "{place} is {got}, and it should be {expected}."
            ),
        ),
        Misconception(
            "one rank after the sum",
            lambda comm, X, W, b: comm.all_reduce(_partial(comm, X, W)) + (b if comm.rank == 0 else 0),
            N_(
                "Rank 0 adds b after the sum, when nothing is sent any more, so the other ranks never see it: on rank "
                "{rank}, {place} is {got}, and it should be {expected}."
            ),
        ),
    ),
    remarks=(
        Remark(
            "b / n",
            lambda comm, X, W, b: comm.all_reduce(_partial(comm, X, W) + b / comm.world_size),
            N_(
                "One thing: you add b / n on each rank. The output is right, and yet a rank's own b moves it by only "
                "1/n. So the gradient that reaches b will be 1/n of the true one. Added after the sum, b gets its "
                "whole gradient."
            ),
            probe=_own_bias,
        ),
    ),
)

EXERCISES = (MERGE, LAYOUT, BIAS)
