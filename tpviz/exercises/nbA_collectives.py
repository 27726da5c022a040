"""The exercises of side room A, collectives by pictures (checks)."""

from tpviz.exercises.inputs import after
from tpviz.exercises.pattern import Misconception, ValueExercise
from tpviz.i18n import N_

BEFORE = ([1, 2], [30, 40])
"""What the two ranks hold in all exercises. The notebook's figures show others, on 3 ranks."""

COLLECTIVES = ("broadcast", "all_gather", "reduce_scatter", "all_reduce", "all_to_all")
_ALONG = {"all_to_all": {"split_dim": 0, "concat_dim": 0}}


def _gives_the_sum_to_all() -> str:
    total = [sum(numbers) for numbers in zip(*BEFORE, strict=True)]
    return next(name for name in COLLECTIVES if after(name, BEFORE, **_ALONG.get(name, {})) == [total, total])


ALL_GATHER = ValueExercise(
    id="A-all-gather",
    variable="after",
    answer=lambda: after("all_gather", BEFORE)[1],
    ask="rank 1's list of four numbers",
    right=N_(
        "Both ranks end with the same list: rank 0's numbers, then rank 1's. Numbers are copied, none is computed."
    ),
    hint_sentences=(
        N_("Nothing is added. Each number that was there before is there afterwards, on both ranks."),
        N_("Rank 0's numbers come first, on rank 1 too."),
    ),
    misconceptions=(
        Misconception(
            "own first",
            [30, 40, 1, 2],
            N_(
                "You put rank 1's own numbers first. Then the two ranks would end with different lists. The order is "
                "the order of the ranks, the same on both."
            ),
        ),
        Misconception(
            "interleaved",
            [1, 30, 2, 40],
            N_("You took one number from each rank in turn. What a rank brings stays in one piece."),
        ),
        Misconception(
            "all_reduce",
            [31, 42],
            N_(
                "You added: 1 + 30 and 2 + 40. That is AllReduce, and from 31 and 42 nobody can tell what each rank "
                "had. AllGather only copies, so four numbers stay four."
            ),
        ),
        Misconception(
            "own only",
            [30, 40],
            N_("That is what rank 1 had before. Afterwards it has rank 0's numbers too."),
        ),
        Misconception(
            "rank 0's",
            [1, 2],
            N_(
                "That is what rank 0 had before: copied to rank 1, it would be Broadcast. AllGather brings the numbers"
                " of all ranks."
            ),
        ),
    ),
)

REDUCE_SCATTER = ValueExercise(
    id="A-reduce-scatter",
    variable="after",
    answer=lambda: after("reduce_scatter", BEFORE),
    ask="rank 0's list, rank 1's list",
    hole="[..., ...]",
    right=N_("The lists are added, 31 and 42, and each rank keeps one piece of the sum."),
    hint_sentences=(
        N_("The name says two things, in order. First reduce: add the two lists, number by number."),
        N_("Then scatter: the sum has two numbers, and each rank gets one of them, as a list of one."),
    ),
    misconceptions=(
        Misconception(
            "all_reduce",
            [[31, 42], [31, 42]],
            N_(
                "The sums are right, and each rank has all of them: that is AllReduce. ReduceScatter leaves each rank "
                "one piece, half as much to keep."
            ),
        ),
        Misconception(
            "own piece",
            [[1], [40]],
            N_(
                "You cut each rank's own list and added nothing. Reduce comes first: what ends on rank 0 is made of "
                "rank 0's number and rank 1's."
            ),
        ),
        Misconception(
            "own sum",
            [[3], [70]],
            N_(
                "You added the numbers inside of each rank, 1 + 2 and 30 + 40. The sum goes across the ranks: 1 + 30 "
                "and 2 + 40."
            ),
        ),
        Misconception(
            "swapped",
            [[42], [31]],
            N_("The sums are right, and the pieces are swapped: the first piece goes to rank 0."),
        ),
        Misconception(
            "to rank 0",
            [[31, 42], []],
            N_("The sums are right, and rank 0 has them all. Scatter deals them out: one piece for each rank."),
        ),
        Misconception(
            "all_to_all",
            [[1, 30], [2, 40]],
            N_("The right numbers meet on the right rank, 1 and 30 on rank 0. They are still to be added."),
        ),
    ),
)

ALL_TO_ALL = ValueExercise(
    id="A-all-to-all",
    variable="after",
    answer=lambda: after("all_to_all", BEFORE, **_ALONG["all_to_all"]),
    ask="rank 0's list, rank 1's list",
    hole="[..., ...]",
    right=N_("Each rank sends its first number to rank 0 and its second to rank 1: rows become columns."),
    hint_sentences=(
        N_("Nothing is added, and no number is there twice afterwards. What moves, and what stays?"),
        N_("Each rank cuts its list into one piece for each rank. Rank 0 gets all first pieces."),
    ),
    misconceptions=(
        Misconception(
            "all_gather",
            [[1, 2, 30, 40], [1, 2, 30, 40]],
            N_(
                "Here each rank gets everything: that is AllGather. In AllToAll a rank sends each other rank another "
                "piece, and nothing is there twice."
            ),
        ),
        Misconception(
            "swapped",
            [[30, 40], [1, 2]],
            N_(
                "You swapped the lists whole. Each rank cuts its list and keeps one piece: 1 stays on rank 0, and 40 "
                "on rank 1."
            ),
        ),
        Misconception(
            "nothing moves",
            [[1, 2], [30, 40]],
            N_("That is how it was before. Rank 0's second number goes to rank 1, and rank 1's first to rank 0."),
        ),
        Misconception(
            "order",
            [[30, 1], [40, 2]],
            N_("The right numbers are on the right rank, in another order: what comes from rank 0 stands first."),
        ),
        Misconception(
            "reduce_scatter",
            [[31], [42]],
            N_("You added what met on a rank: that is ReduceScatter. AllToAll computes nothing."),
        ),
    ),
)

WHICH = ValueExercise(
    id="A-which",
    variable="collective",
    answer=_gives_the_sum_to_all,
    ask=", ".join(f'"{name}"' for name in COLLECTIVES),
    right=N_("AllReduce adds over the ranks and gives each of them the whole sum."),
    hint_sentences=(
        N_("Two of the five add. Which ones?"),
        N_("Of the two that add, one leaves each rank the whole sum."),
    ),
    misconceptions=(
        Misconception(
            "broadcast",
            "broadcast",
            N_(
                "Broadcast copies one rank's numbers to all. Of [1, 2] and [30, 40] it leaves [1, 2], and rank 1's "
                "numbers are in it nowhere."
            ),
        ),
        Misconception(
            "all_gather",
            "all_gather",
            N_(
                "AllGather puts the lists behind each other, [1, 2, 30, 40], and adds nothing. Each rank would still "
                "have to add them itself, and it would get more bytes than it needs."
            ),
        ),
        Misconception(
            "reduce_scatter",
            "reduce_scatter",
            N_(
                "ReduceScatter adds, and then each rank has only its piece: of [1, 2] and [30, 40], [31] here and [42]"
                " there. On each rank a part of the sum is missing."
            ),
        ),
        Misconception(
            "all_to_all",
            "all_to_all",
            N_("AllToAll moves pieces, [1, 30] here and [2, 40] there, and adds nothing."),
        ),
    ),
)

EXERCISES = (ALL_GATHER, REDUCE_SCATTER, ALL_TO_ALL, WHICH)
