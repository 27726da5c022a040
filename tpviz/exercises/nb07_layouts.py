# mypy: allow-untyped-defs, allow-untyped-calls
"""The exercises of notebook 07, which layouts pass (checks). The function is shown as it stands here."""

import tpviz
from tpviz.exercises.inputs import X4, W, example, integers, product
from tpviz.exercises.pattern import Case, Misconception, Remark, YesNoExercise
from tpviz.exercises.traffic import Kinds, TrafficExercise
from tpviz.i18n import N_
from tpviz.trace import Trace


def _partial_passes() -> list[int]:
    # PyTorch's placements are slow to import: only who does this exercise waits for them.
    from torch.distributed.tensor.placement_types import Partial

    from tpviz.rules import passes

    return [int(bool(passes(name, Partial()))) for name in ("scale", "add_constant", "square", "transpose")]


PARTIAL = YesNoExercise(
    id="07-partial",
    variable="passes",
    answer=_partial_passes,
    ask="x·2, x + 10, x², x.T: 1 passes, 0 does not",
    hole="[..., ..., ..., ...]",
    right=N_(
        "Twice a sum is the sum of the doubles, and a sum turned round is the sum of the parts turned round. Of + 10 "
        "and x² neither is true, though both look at one entry at a time."
    ),
    hint_sentences=(
        N_("Take one entry, −1. Rank 0 holds 1 of it, rank 1 holds −2. What should come out, and what comes out?"),
        N_("x + 10: rank 0 gets 11, rank 1 gets 8. Their sum is 19, and −1 + 10 is 9."),
        N_("What passes is what may be done before the sum as well as after it: f(a) + f(b) = f(a + b)."),
    ),
    misconceptions=(
        Misconception(
            "element-wise passes",
            [1, 1, 1, 1],
            N_(
                "You let everything pass. Say rank 0 holds 1 and rank 1 holds −2, which are −1 together. x + 10 makes "
                "11 and 8, in sum 19, and it should be 9. x² makes 1 and 4, in sum 5, and it should be 1. The shapes "
                "are right, and no message says a word."
            ),
        ),
        Misconception(
            "element-wise passes, the transpose does not",
            [1, 1, 1, 0],
            N_(
                "You asked whether f looks at one entry at a time. With partial sums that is not the question. 1 and −2"
                " are −1 together: x² makes 1 and 4, in sum 5, and it should be 1. And x.T moves the addends of an "
                "entry to the same new place on both ranks."
            ),
        ),
        Misconception(
            "x² passes",
            [1, 0, 1, 1],
            N_(
                "x² does not pass. 1 and −2 are −1 together: the squares are 1 and 4, in sum 5, and it should be 1. "
                "What is missing is 2ab, which needs both ranks' numbers."
            ),
        ),
        Misconception(
            "x + 10 passes",
            [1, 1, 0, 1],
            N_(
                "x + 10 does not pass. Each rank adds 10 to its own addend, so the sum has it once for each rank: 1 and"
                " −2 become 11 and 8, in sum 19, and it should be 9. A bias on every rank of a row layer does the same."
            ),
        ),
        Misconception(
            "none",
            [0, 0, 0, 0],
            N_(
                "Summing first is always right, and not always needed. 1 and −2 are −1 together. x·2 makes 2 and −4, in"
                " sum −2, which is twice −1. x.T moves both to the same new place."
            ),
        ),
        Misconception(
            "transpose does not",
            [1, 0, 0, 0],
            N_(
                "x.T passes. It moves an entry to another place, on each rank to the same one. So its addends still "
                "stand at one place, and are still its addends."
            ),
        ),
        Misconception(
            "x·2 does not",
            [0, 0, 0, 1],
            N_(
                "x·2 passes. Each rank doubles its addend, and the sum is doubled once, not once for each rank: 1 and "
                "−2 become 2 and −4, in sum −2, and twice −1 is −2."
            ),
        ),
        Misconception(
            "the wrong way round",
            [0, 1, 1, 0],
            N_(
                "That is the right answer the wrong way round: 1 stands for what passes. Of the sum −1 from 1 and −2, "
                "x + 10 makes 19 in place of 9."
            ),
        ),
    ),
)


def _shard_passes() -> list[int]:
    from torch.distributed.tensor.placement_types import Shard

    from tpviz.rules import PLACEMENTS, passes

    columns = Shard(1)
    norm = any(passes("layer_norm", columns, weight) for weight in PLACEMENTS if weight != columns)
    others = [bool(passes(name, columns)) for name in ("relu", "softmax", "sum")]
    return [int(each) for each in (others[0], norm, *others[1:])]


SHARDS = YesNoExercise(
    id="07-shards",
    variable="passes",
    answer=_shard_passes,
    ask="ReLU, LayerNorm, softmax, sum, over the features: 1 passes, 0 does not",
    hole="[..., ..., ..., ...]",
    right=N_(
        "ReLU looks at one finished number at a time. The sum over a rank's features is a share of the whole sum, so "
        "what comes out is a partial sum. LayerNorm and softmax need a row whole."
    ),
    hint_sentences=(
        N_("A row is 1 3 | 5 7: rank 0 has 1 and 3, rank 1 has 5 and 7. What can rank 0 say of the row's mean?"),
        N_("What passes may come out in another layout. What is the sum of rank 0's part of a row?"),
        N_("Rank 0's sum is 4, rank 1's is 12, and the row's is 16. Rank 0's mean is 2, and the row's is 4."),
    ),
    misconceptions=(
        Misconception(
            "shards pass everything",
            [1, 1, 1, 1],
            N_(
                "You let everything pass, since shards hold finished numbers. LayerNorm needs the mean of a row: of "
                "1 3 | 5 7 it is 4, and rank 0 would take 2, rank 1 would take 6. Softmax would make each rank's part "
                "add up to 1, and the row to 2. The shapes are right, and no message says a word."
            ),
        ),
        Misconception(
            "only ReLU",
            [1, 0, 0, 0],
            N_(
                "The sum passes too, and what comes out lies in another way. Of 1 3 | 5 7 rank 0 makes 4 and rank 1 "
                "makes 12: shares of 16. That is a partial sum, and it may be added now or later."
            ),
        ),
        Misconception(
            "softmax passes",
            [1, 0, 1, 1],
            N_(
                "Softmax divides by a sum over the whole row. A rank that sees its own features divides by their sum: "
                "its part adds up to 1, the other rank's too, and the row to 2. The shapes are right."
            ),
        ),
        Misconception(
            "LayerNorm passes",
            [1, 1, 0, 1],
            N_(
                "LayerNorm subtracts the mean of the whole row, and divides by its spread. Of 1 3 | 5 7 the mean is 4; "
                "rank 0 would subtract 2, rank 1 would subtract 6. The shapes are right, and the numbers are not."
            ),
        ),
        Misconception(
            "only the sum needs all",
            [1, 1, 1, 0],
            N_(
                "The other way round. A sum may be done in parts, and the parts added later: 4 and 12 are 16. LayerNorm"
                " and softmax use such a sum on every entry at once, and a part of it would be wrong there."
            ),
        ),
        Misconception(
            "none",
            [0, 0, 0, 0],
            N_(
                "Nothing has to be put together first for ReLU: it looks at one number, and the rank has it finished. "
                "And a sum may be done in parts, 4 and 12 of 16."
            ),
        ),
        Misconception(
            "ReLU does not",
            [0, 0, 0, 1],
            N_(
                "ReLU does not pass partial sums. These are shards: each number is finished, and ReLU needs no other. "
                "In the MLP of notebook 06 nothing is sent there."
            ),
        ),
        Misconception(
            "the wrong way round",
            [0, 1, 1, 0],
            N_(
                "That is the right answer the wrong way round: 1 stands for what passes with nothing sent. LayerNorm of"
                " 1 3 | 5 7 needs the mean 4, and no rank has it."
            ),
        ),
    ),
)


def _partial(comm, X, W):
    """What a rank has: as a row layer leaves it."""
    return (tpviz.shard(X, 1, comm) @ tpviz.shard(W, 0, comm),)


def _cases() -> list[Case]:
    """The last has rows that do not divide: 2, 2 and 1."""
    return [
        example(X4, W, ranks=2),
        example(X4, W, ranks=4),
        product(integers(5, 6), integers(6, 4, start=6), sizes=(5, 6, 4), ranks=3),
    ]


def own_rows(comm, partial):
    """This rank's rows of the sum of all `partial`, sending as little as can be."""
    return comm.reduce_scatter(partial, dim=0)  # hole


def _wire_bytes(trace: Trace) -> int:
    """What all ranks send together, in bytes: whoever sends piece by piece may send more from one rank than another."""
    return round(sum(event.wire_bytes * (1 if event.kind == "send" else len(event.ranks)) for event in trace))


def _added(comm, pieces):
    """The sum of pieces that stand one above the other, one from each rank."""
    return pieces.reshape(comm.world_size, -1, pieces.shape[1]).sum(0)


CONVERT = TrafficExercise(
    id="07-convert",
    function=own_rows,
    inputs=_cases,
    held=_partial,
    weigh=_wire_bytes,
    too_much=N_(
        "Tried on {case}, your numbers are right. For them the ranks send {got} bytes in all ({sent}), and {expected} "
        "bytes will do."
    ),
    right=N_(
        "A ReduceScatter adds, and hands each rank its own part of the sum. It is half of an AllReduce; the other half "
        "would bring everybody the rest, which nobody asked for."
    ),
    hint_sentences=(
        N_("Each rank needs the sum, but only some rows of it. What would an AllReduce send in vain?"),
        N_("A rank needs the others' addends of its own rows. Which collective adds, and leaves each its part?"),
        N_("`comm.reduce_scatter(x, dim=...)` cuts the sum along a dimension. Rows are dimension 0."),
    ),
    misconceptions=(
        Misconception(
            "all-reduced and sliced",
            lambda comm, partial: tpviz.shard(comm.all_reduce(partial), 0, comm),
            N_(
                "The numbers are right, and the price is double: tried on {case}, the ranks send {got} bytes in all, "
                "and {expected} will do. The AllReduce brought every rank the whole sum, and the slice throws the rest "
                "away again."
            ),
        ),
        Misconception(
            "gathered and added",
            lambda comm, partial: tpviz.shard(_added(comm, comm.all_gather(partial, dim=0)), 0, comm),
            N_(
                "The numbers are right. But every rank gets all addends of all rows, adds them itself, and keeps its "
                "own rows only: tried on {case}, the ranks send {got} bytes in all, and {expected} will do. With more "
                "ranks the difference grows."
            ),
        ),
        Misconception(
            "not summed",
            lambda comm, partial: tpviz.shard(partial, 0, comm),
            N_(
                "You took your rows of your own addends, and nothing is added. The shape is right, and nothing "
                "complains: on rank {rank}, {place} is {got}, and it should be {expected}."
            ),
        ),
        Misconception(
            "columns",
            lambda comm, partial: comm.reduce_scatter(partial, dim=1),
            N_(
                "The right collective, along the wrong dimension: {got_shape} on rank {rank}, and it should be "
                "{expected_shape}. You cut the sum by columns. Rows are dimension 0."
            ),
        ),
        Misconception(
            "whole sum",
            lambda comm, partial: comm.all_reduce(partial),
            N_(
                "That is the whole sum on every rank, {got_shape}. This rank is asked for its rows only, "
                "{expected_shape}."
            ),
        ),
        Misconception(
            "gathered",
            lambda comm, partial: comm.all_gather(partial, dim=0),
            N_(
                "You put the addends one above the other, {got_shape}. They are partial sums: they belong on top of "
                "each other, added entry by entry, and of the sum this rank wants {expected_shape}."
            ),
        ),
        Misconception(
            "mean",
            lambda comm, partial: comm.reduce_scatter(partial, dim=0, op="mean"),
            N_(
                "The mean divides the sum by the number of ranks. The shape is right: {place} is {got}, and it should "
                "be {expected}. The ranks hold addends, not guesses at one number."
            ),
        ),
        Misconception(
            "summed twice",
            lambda comm, partial: comm.reduce_scatter(comm.all_reduce(partial), dim=0),
            N_(
                "After the AllReduce every rank has the whole sum, and the ReduceScatter adds that up, once for each "
                "rank: tried on {case}, {place} is {got}, and it should be {expected}."
            ),
        ),
        Misconception(
            "rank 0's rows",
            lambda comm, partial: comm.all_reduce(partial)[: -(-partial.shape[0] // comm.world_size)],
            N_(
                "Every rank returns the first rows of the sum. Those are rank 0's. On rank {rank}, {place} is {got}, "
                "and it should be {expected}."
            ),
        ),
        Misconception(
            "cut again",
            lambda comm, partial: tpviz.shard(comm.reduce_scatter(partial, dim=0), 0, comm),
            N_(
                "What the ReduceScatter returns is already this rank's part. You cut it once more: {got_shape}, and it "
                "should be {expected_shape}."
            ),
        ),
    ),
    remarks=(
        Remark(
            "added by hand",
            lambda comm, partial: _added(comm, comm.all_to_all(partial, split_dim=0, concat_dim=0)),
            N_(
                "One thing: you send each rank its rows of your addends, and add what comes. It is no more bytes than a"
                " ReduceScatter, which does both in one call."
            ),
            probe=Kinds,
        ),
    ),
)

EXERCISES = (PARTIAL, SHARDS, CONVERT)
