# mypy: allow-untyped-defs, allow-untyped-calls
"""The exercises of notebook 03, backward of the column layer (checks). The functions are shown as they stand here."""

import tpviz
from tpviz.exercises.inputs import W, X, dY, example, integers, product
from tpviz.exercises.pattern import Case, Misconception, ProgramExercise, ValueExercise
from tpviz.i18n import N_


def _columns(comm, W, dY):
    """What a rank of the column layer has of W and of dY."""
    return tpviz.shard(W, 1, comm), tpviz.shard(dY, 1, comm)


def _contribution(comm, Wi, dYi):
    return dYi @ Wi.T


def _entry() -> int:
    dX = sum(tpviz.run(lambda comm: _contribution(comm, *_columns(comm, W, dY)), ranks=2).outputs)
    return int(dX[0, 0])


ENTRY = ValueExercise(
    id="03-predict-entry",
    variable="entry",
    answer=_entry,
    ask="5, -2, 1.5, [5, -2] or 3",
    right=N_("5 through columns 0 to 3 and −2 through columns 4 to 7. The entry moves both at once, so 5 − 2 = 3."),
    hint_sentences=(
        N_("Move this one entry of X a little. Through which columns of Y does the loss notice?"),
        N_("The loss changes by 5 times the move through rank 0's columns, and by −2 times through rank 1's. In all?"),
    ),
    misconceptions=(
        Misconception(
            "rank 0's",
            5,
            N_("That is what the loss feels through columns 0 to 3. Columns 4 to 7 move with X too, and they say −2."),
        ),
        Misconception(
            "rank 1's",
            -2,
            N_("That is what the loss feels through columns 4 to 7. Columns 0 to 3 move with X too, and they say 5."),
        ),
        Misconception(
            "mean",
            1.5,
            N_(
                "That is the mean of 5 and −2. The two ranks are not two guesses at one number: each tells of other "
                "columns of Y, and all columns move at the same time."
            ),
        ),
        Misconception(
            "side by side",
            [5, -2],
            N_(
                "Side by side, dX would be 3×8, as wide as Y. But X is 3×4, and its gradient has one number for each "
                "of its entries. Both 5 and −2 are about the same entry of X."
            ),
        ),
    ),
)


def _input_cases() -> list[Case]:
    """The last has columns that do not divide: 3, 3 and 1."""
    return [
        example(W, dY, ranks=2),
        example(W, dY, ranks=4),
        product(integers(5, 7), integers(2, 7, start=6), sizes=(2, 5, 7), ranks=3),
    ]


def input_gradient(comm, Wi, dYi):
    """The whole dX on each rank, which has its columns of W and of dY."""
    Gi = dYi @ Wi.T  # hole
    return comm.all_reduce(Gi)  # hole


INPUT_GRADIENT = ProgramExercise(
    id="03-dx",
    function=input_gradient,
    inputs=_input_cases,
    held=_columns,
    right=N_(
        "Each rank's product is a contribution to all of dX, through its own columns. Added over the ranks, they are "
        "dX."
    ),
    hint_sentences=(
        N_("dX = dY Wᵀ for the whole layer. With its own dYi and Wi, what can a rank compute, and what is its shape?"),
        N_("Each rank's dYi @ Wi.T is 3×4, as large as dX, and tells of its own columns only. What makes dX of them?"),
        N_("`comm.all_reduce(x)` adds x over the ranks, entry by entry, and each rank gets the sum."),
    ),
    misconceptions=(
        Misconception(
            "concatenated",
            lambda comm, Wi, dYi: comm.all_gather(_contribution(comm, Wi, dYi), dim=-1),
            N_(
                "You put the contributions side by side, as the outputs were in forward. You notice by the shape: "
                "{got_shape}, and dX has X's, {expected_shape}. Each contribution already tells of all entries of X."
            ),
        ),
        Misconception(
            "rows",
            lambda comm, Wi, dYi: comm.all_gather(_contribution(comm, Wi, dYi), dim=0),
            N_(
                "You put the contributions one above the other. You notice by the shape: {got_shape}, and dX has X's, "
                "{expected_shape}. Each contribution already has a row for each row of X."
            ),
        ),
        Misconception(
            "one rank's",
            _contribution,
            N_(
                "Each rank returns its own contribution. The shape is right, and nothing complains: on rank {rank}, "
                "{place} is {got}, and it should be {expected}. What the loss feels through the other ranks' columns "
                "is missing."
            ),
        ),
        Misconception(
            "rank 0's",
            lambda comm, Wi, dYi: comm.broadcast(_contribution(comm, Wi, dYi)),
            N_(
                "Now all ranks have rank 0's contribution. That they agree does not make it dX: {place} is {got}, and "
                "it should be {expected}. What the loss feels through the other ranks' columns is missing."
            ),
        ),
        Misconception(
            "mean",
            lambda comm, Wi, dYi: comm.all_reduce(_contribution(comm, Wi, dYi), op="mean"),
            N_(
                "The mean divides by the number of ranks. The shape is right, and the numbers are too small: tried on "
                "{case}, {place} is {got}, and it should be {expected}. Nothing was counted twice, so there is nothing"
                " to divide."
            ),
        ),
        Misconception(
            "maximum",
            lambda comm, Wi, dYi: comm.all_reduce(_contribution(comm, Wi, dYi), op="max"),
            N_(
                "The larger of the contributions is not their sum. The shape cannot tell; compare with dY @ W.T: "
                "{place} is {got}, and it should be {expected}."
            ),
        ),
        Misconception(
            "summed twice",
            lambda comm, Wi, dYi: comm.all_reduce(comm.all_reduce(_contribution(comm, Wi, dYi))),
            N_(
                "What you added up was all of dX already, so it is counted once for each rank. Tried on {case}, {place}"
                " is {got}, and it should be {expected}."
            ),
        ),
        Misconception(
            "some rows",
            lambda comm, Wi, dYi: comm.reduce_scatter(_contribution(comm, Wi, dYi), dim=0),
            N_(
                "The sum is right, but each rank gets only some rows of it: {got_shape} on rank {rank}. Here each rank"
                " needs all of dX, {expected_shape}."
            ),
        ),
        Misconception(
            "no transpose",
            lambda comm, Wi, dYi: comm.all_reduce(dYi @ Wi),
            N_(
                "Wi is not turned round. On 2 ranks it is square, 4×4, and nothing complains: tried on {case}, {place}"
                " is {got}, and it should be {expected}. On 4 ranks it is not, and you notice at once: {error}"
            ),
        ),
        Misconception(
            "all of dY",
            lambda comm, Wi, dYi: comm.all_reduce(comm.all_gather(dYi) @ Wi.T),
            N_("You gathered all of dY. A rank's Wi fits its own columns of it, dYi, and no others: {error}"),
        ),
    ),
)


def _weight_cases() -> list[Case]:
    """The last: a square X, and a dY as square, of which no shape can tell that something was not turned round."""
    return [
        example(X, dY, ranks=2),
        example(X, dY, ranks=4),
        product(integers(2, 5), integers(2, 9, start=6), sizes=(2, 5, 9), ranks=3),
        product(integers(3, 3), integers(3, 6, start=6), sizes=(3, 3, 6), ranks=2),
    ]


def _own_columns(comm, X, dY):
    """What a rank of the column layer has of X, all of it, and of dY."""
    return X, tpviz.shard(dY, 1, comm)


def weight_gradient(comm, X, dYi):
    """The gradient of this rank's columns of W, from all of X and its columns of dY."""
    return X.T @ dYi  # hole


WEIGHT_GRADIENT = ProgramExercise(
    id="03-dw",
    function=weight_gradient,
    inputs=_weight_cases,
    held=_own_columns,
    right=N_(
        "Wi made Yi and nothing else, and this rank has all of X and all of dYi. So dWi is complete, and nothing is "
        "sent."
    ),
    hint_sentences=(
        N_("dW = Xᵀ dY for the whole layer. Which columns of dY does a column of dW need?"),
        N_("Wi is 4×4 on 2 ranks, and so is its gradient. X is 3×4 and dYi is 3×4: what has to be turned round?"),
        N_("Everything is here: `X.T` and `dYi`. No other rank has ever used this Wi."),
    ),
    misconceptions=(
        Misconception(
            "all-reduced",
            lambda comm, X, dYi: comm.all_reduce(X.T @ dYi),
            N_(
                "You added the ranks' weight gradients, as one does where each rank has a copy of the whole weight. "
                "Here each rank has other columns. All shapes are right, and no message says a word: on rank {rank}, "
                "{place} is {got}, and it should be {expected}. The sum mixes column 0 of W with a column of another "
                "rank."
            ),
        ),
        Misconception(
            "averaged",
            lambda comm, X, dYi: comm.all_reduce(X.T @ dYi, op="mean"),
            N_(
                "You averaged the ranks' weight gradients, as one does where each rank has a copy of the whole weight."
                " Here each rank has other columns. All shapes are right, and no message says a word: on rank {rank}, "
                "{place} is {got}, and it should be {expected}."
            ),
        ),
        Misconception(
            "whole",
            lambda comm, X, dYi: comm.all_gather(X.T @ dYi),
            N_(
                "That is all of dW, {got_shape}. This rank holds only its columns of W, so only their gradient has "
                "anything to update: {expected_shape}."
            ),
        ),
        Misconception(
            "no transpose",
            lambda comm, X, dYi: X @ dYi,
            N_(
                "X is not turned round. With 3 samples of 4 features you notice at once: {error}. With as many samples"
                " as features you do not: tried on {case}, {place} is {got}, and it should be {expected}."
            ),
        ),
        Misconception(
            "turned round",
            lambda comm, X, dYi: dYi.T @ X,
            N_(
                "That is the gradient turned round, as `nn.Linear` keeps its weight. W is not: on 2 ranks Wi is "
                "square, 4×4, and nothing complains, but {place} is {got}, and it should be {expected}. On 4 ranks the"
                " shape is 2×4, and Wi is 4×2."
            ),
        ),
        Misconception(
            "part of X",
            lambda comm, X, dYi: tpviz.shard(X, 1, comm).T @ dYi,
            N_(
                "You cut X by columns, as the row layer does. In the column layer X is replicated, and each of its "
                "columns takes part: the result is {got_shape}, and this rank's part of W is {expected_shape}."
            ),
        ),
    ),
)


def _with_data(comm, X, W, dY):
    Wi = tpviz.shard(W, 1, comm).requires_grad_()
    Yi = tpviz.copy_to_region(X, comm) @ Wi
    Yi.backward(tpviz.shard(dY, 1, comm))


DATA = ValueExercise(
    id="03-data",
    variable="collectives",
    answer=lambda: len(tpviz.run(_with_data, ranks=2, args=(X, W, dY)).trace),
    ask="0, 1 or 2",
    right=N_(
        "Nothing before this layer can learn, so nobody asks for dX, and dX was the only thing that needed a sum. Each "
        "dWi is local."
    ),
    hint_sentences=(
        N_("Of the two gradients, dW and dX, which needs the other ranks?"),
        N_("Who would use dX, if X is data?"),
    ),
    misconceptions=(
        Misconception(
            "one",
            1,
            N_(
                "One AllReduce makes dX, for the layer before. Here there is none: X is data, and data is not "
                "trained. So dX is not computed, and not sent either."
            ),
        ),
        Misconception(
            "two",
            2,
            N_(
                "Two would be one for each gradient. dWi = Xᵀ dYi is complete on its rank and needs none, and dX is not"
                " asked for, since X is data."
            ),
        ),
    ),
)

EXERCISES = (ENTRY, INPUT_GRADIENT, WEIGHT_GRADIENT, DATA)
