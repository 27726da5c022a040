"""The exercises of notebook 00, stored in shards or computed in shards (checks)."""

from tpviz import memory
from tpviz.exercises.inputs import X4, W, after
from tpviz.exercises.pattern import Misconception, ValueExercise
from tpviz.i18n import N_

RANKS = 4
"""The notebook computes and draws both ways on 2 ranks; the exercises ask about others."""


def _both_ways() -> tuple[memory.LayerForward, memory.LayerForward]:
    """One layer's forward on one of the ranks, with ZeRO-3 and with the column split."""
    (rows, in_features), out_features = X4.shape, W.shape[1]
    return (
        memory.zero3_forward(rows, in_features, out_features, RANKS),
        memory.column_forward(rows, in_features, out_features, RANKS),
    )


PREDICT = ValueExercise(
    id="00-predict-all-reduce",
    variable="after",
    answer=lambda: after("all_reduce", [[0, 1], [10, 11], [20, 21]])[0],
    ask="rank 0's list",
    right=N_(
        "0 + 10 + 20 and 1 + 11 + 21: AllReduce adds number by number over the ranks, and all end with this list."
    ),
    hint_sentences=(
        N_("Reduce means that several numbers become one. Which numbers of the others belong to rank 0's first?"),
        N_("The result is as long as each rank's list: first with first, second with second."),
    ),
    misconceptions=(
        Misconception(
            "all_gather",
            [0, 1, 10, 11, 20, 21],
            N_(
                "That is AllGather, which puts the lists behind each other. AllReduce adds them, and the result is no "
                "longer than before."
            ),
        ),
        Misconception(
            "nothing",
            [0, 1],
            N_("That is what rank 0 had before. The other ranks' numbers are to be in it."),
        ),
        Misconception(
            "two ranks",
            [10, 12],
            N_("That is the sum of the first two ranks. There are three now: rank 2's numbers are missing."),
        ),
        Misconception(
            "own sum",
            [1, 21, 41],
            N_(
                "You added inside of each rank, 0 + 1, 10 + 11 and 20 + 21. The sum goes across the ranks: first with "
                "first, second with second."
            ),
        ),
        Misconception(
            "mean",
            [10, 11],
            N_("That is the mean over the ranks, by accident what rank 1 had. AllReduce adds, and divides by nothing."),
        ),
        Misconception(
            "one number",
            63,
            N_(
                "You added everything up. AllReduce adds first with first and second with second, so two numbers stay "
                "two."
            ),
        ),
    ),
)


def _less_arithmetic() -> str:
    zero3, column = (way.flops for way in _both_ways())
    return "equal" if zero3 == column else "ZeRO-3" if zero3 < column else "column split"


ARITHMETIC = ValueExercise(
    id="00-arithmetic",
    variable="less",
    answer=_less_arithmetic,
    ask='"ZeRO-3", "column split", "equal"',
    right=N_(
        "1 row times 8 columns, or 4 rows times 2 columns: 8 entries of Y on a rank, each of them 4 products. Both "
        "cut the work into 4 equal parts, one by rows and the other by columns."
    ),
    hint_sentences=(
        N_("Count the entries of Y that one rank computes. Y is 4×8."),
        N_(
            "With ZeRO-3 each of the 4 ranks computes 1 row of Y, with all its columns. With the column split it "
            "computes all 4 rows. How many columns?"
        ),
    ),
    misconceptions=(
        Misconception(
            "column split",
            "column split",
            N_(
                "With the column split a rank multiplies with a quarter of W, and it does so for all 4 rows. With "
                "ZeRO-3 it multiplies with all of W, for 1 row. Count entries of Y: 4 rows of 2 against 1 row of 8."
            ),
        ),
        Misconception(
            "ZeRO-3",
            "ZeRO-3",
            N_(
                "With ZeRO-3 a rank has one row, and multiplies it with all of W. With the column split it has all 4 "
                "rows, each times a quarter of W. Count entries of Y: 1 row of 8 against 4 rows of 2."
            ),
        ),
    ),
)


PRESENT = ValueExercise(
    id="00-present",
    variable="present",
    answer=lambda: [way.present_bytes for way in _both_ways()],
    ask="bytes of W with ZeRO-3, bytes of W with the column split",
    hole="[..., ...]",
    right=N_(
        "Both store 32 bytes of W. To multiply, ZeRO-3 needs all 128 for a moment, and the column split its own 32: "
        "with more ranks only the second number shrinks."
    ),
    hint_sentences=(
        N_("W is 4×8, and each entry takes 4 bytes. How many bytes is all of it?"),
        N_("With which part of W does a rank multiply: in ZeRO-3, after the gather? In the column split?"),
    ),
    misconceptions=(
        Misconception(
            "stored",
            [32, 32],
            N_(
                "That is what a rank stores, the same in both. But ZeRO-3 cannot multiply with a quarter of W: it "
                "gathers the rest first, and has all of it while it multiplies."
            ),
        ),
        Misconception(
            "whole",
            [128, 128],
            N_(
                "With ZeRO-3 all of W is there. With the column split it never is: a rank multiplies with its own "
                "columns, and nothing is gathered."
            ),
        ),
        Misconception(
            "swapped",
            [32, 128],
            N_("You have them the wrong way round. Which of the two gathers W before it multiplies?"),
        ),
        Misconception(
            "entries",
            [32, 8],
            N_("You counted entries. Each of them takes 4 bytes."),
        ),
        Misconception(
            "two ranks",
            [128, 64],
            N_("That is right for 2 ranks. On 4, how many of W's 8 columns does one rank have?"),
        ),
    ),
)

EXERCISES = (PREDICT, ARITHMETIC, PRESENT)
