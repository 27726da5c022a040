"""The exercises of notebook 00, stored in shards or computed in shards (checks)."""

from tpviz import memory
from tpviz.exercises.inputs import X4, W, after
from tpviz.exercises.pattern import Misconception, ValueExercise
from tpviz.i18n import N_


def _both_ways() -> tuple[memory.LayerForward, memory.LayerForward]:
    """One layer's forward on one of two ranks, with ZeRO-3 and with the column split."""
    (rows, in_features), out_features = X4.shape, W.shape[1]
    return (
        memory.zero3_forward(rows, in_features, out_features, ranks=2),
        memory.column_forward(rows, in_features, out_features, ranks=2),
    )


PREDICT = ValueExercise(
    id="00-predict-all-reduce",
    variable="after",
    answer=lambda: after("all_reduce")[0],
    ask="rank 0's list",
    right=N_("0 + 10 and 1 + 11: AllReduce adds number by number over the ranks, and rank 1 ends with the same list."),
    hint_sentences=(
        N_("Reduce means that several numbers become one. Which number of rank 1 belongs to rank 0's first?"),
        N_("The result is as long as each rank's list: first with first, second with second."),
    ),
    misconceptions=(
        Misconception(
            "all_gather",
            [0, 1, 10, 11],
            N_(
                "That is AllGather, which puts the lists behind each other. AllReduce adds them, and the result is no "
                "longer than before."
            ),
        ),
        Misconception(
            "nothing",
            [0, 1],
            N_("That is what rank 0 had before. Rank 1's numbers are to be in it."),
        ),
        Misconception(
            "own sum",
            [1, 21],
            N_(
                "You added inside of each rank, 0 + 1 and 10 + 11. The sum goes across the ranks: first with first, "
                "second with second."
            ),
        ),
        Misconception(
            "mean",
            [5, 6],
            N_("That is the mean. AllReduce adds, and divides by nothing."),
        ),
        Misconception(
            "one number",
            22,
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
        "2 rows times 8 columns, or 4 rows times 4 columns: 16 entries of Y on a rank, each of them 4 products. Both "
        "cut the work in half, one by rows and the other by columns."
    ),
    hint_sentences=(
        N_("Count the entries of Y that one rank computes. Y is 4×8."),
        N_(
            "With ZeRO-3 a rank computes 2 rows of Y, with all their columns. With the column split it computes all 4 "
            "rows. How many columns?"
        ),
    ),
    misconceptions=(
        Misconception(
            "column split",
            "column split",
            N_(
                "With the column split a rank multiplies with half of W, and it does so for all 4 rows. With ZeRO-3 it"
                " multiplies with all of W, for 2 rows. Count entries of Y: 4 rows of 4 against 2 rows of 8."
            ),
        ),
        Misconception(
            "ZeRO-3",
            "ZeRO-3",
            N_(
                "With ZeRO-3 a rank has half of the rows, and multiplies each of them with all of W. With the column "
                "split it has all rows, each times half of W. Count entries of Y: 2 rows of 8 against 4 rows of 4."
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
        "Both store 64 bytes of W. To multiply, ZeRO-3 needs all 128 for a moment, and the column split its own 64."
    ),
    hint_sentences=(
        N_("W is 4×8, and each entry takes 4 bytes. How many bytes is all of it?"),
        N_("With which part of W does a rank multiply: in ZeRO-3, after the gather? In the column split?"),
    ),
    misconceptions=(
        Misconception(
            "stored",
            [64, 64],
            N_(
                "That is what a rank stores, the same in both. But ZeRO-3 cannot multiply with half of W: it gathers"
                " the other half first, and has all of it while it multiplies."
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
            [64, 128],
            N_("You have them the wrong way round. Which of the two gathers W before it multiplies?"),
        ),
        Misconception(
            "entries",
            [32, 16],
            N_("You counted entries. Each of them takes 4 bytes."),
        ),
    ),
)

EXERCISES = (PREDICT, ARITHMETIC, PRESENT)
