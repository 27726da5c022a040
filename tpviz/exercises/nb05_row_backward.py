# mypy: allow-untyped-defs, allow-untyped-calls
"""The exercises of notebook 05, row backward (checks). The functions are shown as they stand here."""

import tpviz
from tpviz.exercises.inputs import W, X, dY, example, integers, product
from tpviz.exercises.pattern import Case, Misconception, ProgramExercise, ValueExercise
from tpviz.i18n import N_


def _rows(comm, W, dY):
    """What a rank of the row layer has of W, and of dY, which is all of it."""
    return tpviz.shard(W, 0, comm), dY


def _own_dx(comm, Wi, dY):
    return dY @ Wi.T


def _own_dx_cases() -> list[Case]:
    """The third has a square Wi; the last has rows that do not divide: 3, 3 and 1."""
    return [
        example(W, dY, ranks=2),
        example(W, dY, ranks=4),
        product(integers(8, 4), integers(3, 4, start=6), sizes=(3, 8, 4), ranks=2),
        product(integers(7, 5), integers(2, 5, start=6), sizes=(2, 7, 5), ranks=3),
    ]


def own_dx(comm, Wi, dY):
    """The gradient of this rank's part of X, from its rows of W and all of dY."""
    return dY @ Wi.T  # hole


OWN_DX = ProgramExercise(
    id="05-dx-part",
    function=own_dx,
    inputs=_own_dx_cases,
    held=_rows,
    right=N_("Xi met Wi and nothing else, on this rank and nowhere else. So dXi is complete, and nothing is added."),
    hint_sentences=(
        N_("dX = dY Wᵀ for the whole layer. A column of dX needs which row of W?"),
        N_("Which other rank used this rank's Xi in forward?"),
        N_("Everything is here: `dY` and `Wi.T`."),
    ),
    misconceptions=(
        Misconception(
            "summed",
            lambda comm, Wi, dY: comm.all_reduce(_own_dx(comm, Wi, dY)),
            N_(
                "You added, as the column layer does. There all ranks used one X. Here X0 and X1 are different "
                "columns of X, and you added their gradients. On 2 ranks and on 4 the shapes agree, and no message "
                "says a word: on rank {rank}, {place} is {got}, and it should be {expected}."
            ),
        ),
        Misconception(
            "averaged",
            lambda comm, Wi, dY: comm.all_reduce(_own_dx(comm, Wi, dY), op="mean"),
            N_(
                "You took the mean over the ranks. But X0 and X1 are different columns of X, and their gradients are "
                "not two guesses at one number. No shape tells: on rank {rank}, {place} is {got}, and it should be "
                "{expected}."
            ),
        ),
        Misconception(
            "whole",
            lambda comm, Wi, dY: dY @ comm.all_gather(Wi, dim=0).T,
            N_(
                "That is all of dX, {got_shape}. This rank holds only its columns of X, and their gradient is "
                "{expected_shape}."
            ),
        ),
        Misconception(
            "no transpose",
            lambda comm, Wi, dY: dY @ Wi,
            N_(
                "Wi is not turned round. On the running example you notice at once: {error}. With a square Wi you do "
                "not: tried on {case}, {place} is {got}, and it should be {expected}."
            ),
        ),
        Misconception(
            "part of dY",
            lambda comm, Wi, dY: tpviz.shard(dY, 1, comm) @ Wi.T,
            N_(
                "You cut dY, as the column layer does. Here each rank made a share of all columns of Y, so it needs all"
                " of dY: {error}"
            ),
        ),
        Misconception(
            "cut again",
            lambda comm, Wi, dY: tpviz.shard(_own_dx(comm, Wi, dY), 1, comm),
            N_(
                "dY @ Wi.T is already this rank's part, since Wi holds only its rows of W. You cut it once more: "
                "{got_shape}, and Xi is {expected_shape}."
            ),
        ),
    ),
)


def _whole_dx_cases() -> list[Case]:
    """The third has a square Wi."""
    return [
        example(W, dY, ranks=2),
        example(W, dY, ranks=4),
        product(integers(8, 4), integers(3, 4, start=6), sizes=(3, 8, 4), ranks=2),
        product(integers(6, 5), integers(2, 5, start=6), sizes=(2, 6, 5), ranks=3),
    ]


def whole_dx(comm, Wi, dY):
    """The whole dX on each rank, which has its rows of W and all of dY."""
    dXi = dY @ Wi.T  # hole
    return comm.all_gather(dXi, dim=1)  # hole


WHOLE_DX = ProgramExercise(
    id="05-dx-row",
    function=whole_dx,
    inputs=_whole_dx_cases,
    held=_rows,
    right=N_("dX0 and dX1 are finished columns of dX, so they stand side by side, in rank order: an AllGather."),
    hint_sentences=(
        N_("What does a rank's dY @ Wi.T have: a share of each entry of dX, or some entries of it, finished?"),
        N_("On 2 ranks each part is 3×2, and dX is 3×4. Which dimension has to grow?"),
        N_("`comm.all_gather(x, dim=...)` puts the ranks' x behind each other along one dimension, on each rank."),
    ),
    misconceptions=(
        Misconception(
            "summed",
            lambda comm, Wi, dY: comm.all_reduce(_own_dx(comm, Wi, dY)),
            N_(
                "You added the parts, as the column layer does. All parts are {got_shape}, so the sum itself raises no "
                "error; you notice since dX is {expected_shape}. X0 and X1 are different columns of X: nothing of "
                "theirs is to be added."
            ),
        ),
        Misconception(
            "averaged",
            lambda comm, Wi, dY: comm.all_reduce(_own_dx(comm, Wi, dY), op="mean"),
            N_(
                "You took the mean of the parts, which is {got_shape}; dX is {expected_shape}. X0 and X1 are different "
                "columns of X, not two guesses at one."
            ),
        ),
        Misconception(
            "own part",
            _own_dx,
            N_(
                "That is this rank's own part, {got_shape}: all that is needed where the layer before takes shards. "
                "Here each rank is asked for the whole, {expected_shape}."
            ),
        ),
        Misconception(
            "cut again",
            lambda comm, Wi, dY: tpviz.shard(_own_dx(comm, Wi, dY), 1, comm),
            N_(
                "You cut what is already a part: {got_shape}. Wi holds only some rows of W, so dY @ Wi.T has only some "
                "columns of dX. The whole is {expected_shape}."
            ),
        ),
        Misconception(
            "rows",
            lambda comm, Wi, dY: comm.all_gather(_own_dx(comm, Wi, dY), dim=0),
            N_(
                "You put the parts one above the other, {got_shape}. Each part has all rows of dX, and some of its "
                "columns; dX is {expected_shape}."
            ),
        ),
        Misconception(
            "reshaped",
            lambda comm, Wi, dY: comm.all_gather(_own_dx(comm, Wi, dY), dim=0).reshape(dY.shape[0], -1),
            N_(
                "The shape is right and the numbers are not: {place} is {got}, and it should be {expected}. One above "
                "the other and then cut into longer rows, row 0 goes on with rank 0's row 1 instead of rank 1's row 0."
            ),
        ),
        Misconception(
            "wholes added",
            lambda comm, Wi, dY: comm.all_reduce(dY @ comm.all_gather(Wi, dim=0).T),
            N_(
                "Each rank had all of dX already, from all of W, and you added that up, once for each rank. The shape "
                "is right: tried on {case}, {place} is {got}, and it should be {expected}."
            ),
        ),
        Misconception(
            "no transpose",
            lambda comm, Wi, dY: comm.all_gather(dY @ Wi, dim=1),
            N_(
                "Wi is not turned round. On the running example you notice at once: {error}. With a square Wi you do "
                "not: tried on {case}, the shape is right, {place} is {got}, and it should be {expected}."
            ),
        ),
    ),
)


def _sharded_input(comm, X, W, dY):
    Xi, Wi = tpviz.shard(X, 1, comm).requires_grad_(), tpviz.shard(W, 0, comm).requires_grad_()
    tpviz.reduce_from_region(Xi @ Wi, comm).backward(dY)


def _in_backward() -> int:
    trace = tpviz.run(_sharded_input, ranks=2, args=(X, W, dY)).trace
    return sum(event.phase == "backward" for event in trace)


MESSAGES = ValueExercise(
    id="05-messages",
    variable="collectives",
    answer=_in_backward,
    ask="0, 1 or 2",
    right=N_("dWi = Xiᵀ dY and dXi = dY Wiᵀ need what the rank has: its own shards, and dY, which is on all ranks."),
    hint_sentences=(
        N_("Each rank has Xi, Wi and all of dY. Which of the two gradients needs more?"),
        N_("dXi is complete, and the layer before takes it in shards. Who would have to send anything?"),
    ),
    misconceptions=(
        Misconception(
            "one",
            1,
            N_(
                "The row layer's one AllReduce is in forward, where it makes Y. Its backward hands dY to each rank as "
                "it is. One in backward is the column layer's, whose ranks all used one X; here each has its own Xi."
            ),
        ),
        Misconception(
            "two",
            2,
            N_(
                "Two would be one for each gradient. Both are complete on their rank: dWi = Xiᵀ dY, dXi = dY Wiᵀ. An "
                "AllGather comes in only where somebody needs the whole dX, and here its shards are wanted."
            ),
        ),
    ),
)


def _step_cases() -> list[Case]:
    return [
        example(X, W, dY, 0.5, ranks=2),
        example(X, W, dY, 0.5, ranks=4),
        product(integers(2, 6), integers(6, 5), integers(2, 5, start=6), 2.0, sizes=(2, 6, 5), ranks=3),
    ]


def sgd_step(comm, X, W, dY, lr):
    """This rank's rows of W after one SGD step with learning rate lr."""
    Xi, Wi = tpviz.shard(X, 1, comm), tpviz.shard(W, 0, comm)
    dWi = Xi.T @ dY  # hole
    return Wi - lr * dWi  # hole


def _with_step(step):
    """The program with another step, from this rank's part of W and of dW."""

    def program(comm, X, W, dY, lr):
        return step(comm, tpviz.shard(W, 0, comm), tpviz.shard(X, 1, comm).T @ dY, lr)

    return program


STEP = ProgramExercise(
    id="05-step",
    function=sgd_step,
    inputs=_step_cases,
    right=N_("dWi is complete on its rank, so the step is too: the ranks' results are the whole layer's step, sliced."),
    hint_sentences=(
        N_("One SGD step on the whole weight is W - lr * dW. What are its rows that this rank holds?"),
        N_("dW = Xᵀ dY. Rows 0 and 1 of dW need columns 0 and 1 of X, which is Xi on rank 0, and all of dY."),
        N_("`dWi = Xi.T @ dY` has the shape of Wi. Nobody else has to be asked."),
    ),
    misconceptions=(
        Misconception(
            "all-reduced",
            _with_step(lambda comm, Wi, dWi, lr: Wi - lr * comm.all_reduce(dWi)),
            N_(
                "You added the ranks' weight gradients first. Each rank has other rows of W, so the sum mixes rows that"
                " have nothing to do with each other. The shapes agree, and no message says a word: on rank {rank}, "
                "{place} is {got}, and it should be {expected}."
            ),
        ),
        Misconception(
            "averaged",
            _with_step(lambda comm, Wi, dWi, lr: Wi - lr * comm.all_reduce(dWi, op="mean")),
            N_(
                "You averaged the ranks' weight gradients first. That is for ranks that hold the same weight; here each"
                " has other rows. The shapes agree, and no message says a word: on rank {rank}, {place} is {got}, and "
                "it should be {expected}."
            ),
        ),
        Misconception(
            "plus",
            _with_step(lambda comm, Wi, dWi, lr: Wi + lr * dWi),
            N_(
                "Plus goes uphill. The gradient says where the loss grows, so the step goes the other way: {place} is "
                "{got}, and it should be {expected}."
            ),
        ),
        Misconception(
            "no learning rate",
            _with_step(lambda comm, Wi, dWi, lr: Wi - dWi),
            N_("lr is missing: {place} is {got}, and it should be {expected}."),
        ),
        Misconception(
            "update only",
            _with_step(lambda comm, Wi, dWi, lr: lr * dWi),
            N_("That is what is taken away: {place} is {got}, and it should be {expected}. Taken away from what?"),
        ),
        Misconception(
            "gradient only",
            _with_step(lambda comm, Wi, dWi, lr: dWi),
            N_(
                "That is the gradient, not the weight after the step: {place} is {got}, and it should be {expected}. "
                "Take lr times it away from Wi."
            ),
        ),
        Misconception(
            "whole",
            lambda comm, X, W, dY, lr: W - lr * (X.T @ dY),
            N_(
                "That is the whole weight after the step, {got_shape}. This rank holds and updates its own rows only, "
                "{expected_shape}."
            ),
        ),
        Misconception(
            "all of X",
            lambda comm, X, W, dY, lr: tpviz.shard(W, 0, comm) - lr * (X.T @ dY),
            N_(
                "You took all of X, which gives the gradient of all of W. On 2 ranks you notice at once: {error}. On 4,"
                " where Wi is a single row, PyTorch repeats it and raises no error: {got_shape}, and it should be "
                "{expected_shape}."
            ),
        ),
    ),
)

EXERCISES = (OWN_DX, WHOLE_DX, MESSAGES, STEP)
