# mypy: allow-untyped-defs, allow-untyped-calls
"""The exercises of side room B, DDP and ZeRO (checks). The program is shown as it stands here."""

import tpviz
from tpviz import widgets
from tpviz.exercises.inputs import integers
from tpviz.exercises.pattern import Case, Misconception, ValueExercise
from tpviz.exercises.traffic import TrafficExercise, wire_bytes
from tpviz.i18n import N_, _


def _sent() -> list[int]:
    return [int(wire_bytes(widgets.compute_zero(stage, 4).trace)) for stage in (0, 2, 3)]


SENT = ValueExercise(
    id="B-sent",
    variable="sent",
    answer=_sent,
    ask="DDP, ZeRO-2, ZeRO-3",
    hole="[..., ..., ...]",
    right=N_(
        "DDP: 2 · 3/4 · 128. ZeRO-2 does the two halves of that AllReduce one after the other, the second with weights "
        "in place of gradients. ZeRO-3 gathers twice: half as much again."
    ),
    hint_sentences=(
        N_("A half of a ring, ReduceScatter or AllGather, sends 3/4 of 128 bytes. How many halves does each way have?"),
        N_("DDP: one AllReduce. ZeRO-2: gradients scattered, weights gathered. ZeRO-3: gathered for forward, too."),
    ),
    misconceptions=(
        Misconception(
            "one half for ZeRO-2",
            [192, 96, 288],
            N_(
                "ZeRO-2 does send half as much for its gradients, 96 bytes. But then each rank has new rows of W and "
                "old others: gathering them costs the other 96."
            ),
        ),
        Misconception(
            "all alike",
            [192, 192, 192],
            N_(
                "DDP and ZeRO-2 are right. ZeRO-3 has no whole W to begin with: it gathers W for forward and again for "
                "backward, and scatters gradients. Three halves."
            ),
        ),
        Misconception(
            "ZeRO saves bytes sent",
            [192, 96, 96],
            N_("ZeRO saves memory, not messages. What a rank does not keep has to be sent to it when it is needed."),
        ),
        Misconception(
            "payloads",
            [128, 256, 384],
            N_("These are payloads. The question is what one of 4 ranks sends: an AllReduce 6/4 of that, a half 3/4."),
        ),
    ),
)


def _kept() -> list[int]:
    runs = [widgets.compute_zero(stage, 4) for stage in range(4)]
    return [sum(tensor.nbytes for tensor in run.outputs[0].values()) for run in runs]


KEPT = ValueExercise(
    id="B-kept",
    variable="kept",
    answer=_kept,
    ask="DDP, ZeRO-1, ZeRO-2, ZeRO-3",
    hole="[..., ..., ..., ...]",
    right=N_("Each stage cuts one of the three into quarters: 128 become 32. At stage 3 a quarter is left of all."),
    hint_sentences=(
        N_("DDP keeps all three whole. How many bytes are that?"),
        N_("Stage 1 cuts M, stage 2 dW as well, stage 3 W as well. On 4 ranks a cut tensor takes a quarter."),
    ),
    misconceptions=(
        Misconception(
            "two ranks",
            [384, 320, 256, 192],
            N_("That is right for 2 ranks, as in the figure above. On 4 ranks a cut tensor takes 32 bytes, not 64."),
        ),
        Misconception(
            "the weight stays whole",
            [384, 288, 192, 192],
            N_("Stage 3 cuts the weight as well. It is whole for a moment only, while the layer works."),
        ),
        Misconception(
            "all cut at once",
            [384, 96, 96, 96],
            N_("A quarter of all is what stage 3 reaches. Stage 1 cuts M alone, and stage 2 leaves W whole."),
        ),
        Misconception(
            "counted from 0",
            [288, 192, 96, 96],
            N_("DDP cuts nothing: it is stage 0, with all 384 bytes on every rank. You are one stage ahead."),
        ),
    ),
)


def zero_step(comm, w, mi, g):
    """The new weight, whole, from this rank's rows of the momentum and its gradient."""
    gi = comm.reduce_scatter(g, dim=0, phase="gradients")  # hole
    mi = mi + gi  # hole
    wi = tpviz.shard(w, 0, comm) - mi  # hole
    return comm.all_gather(wi, dim=0)  # hole


def _held(comm, w, momentum, gradients):
    return w, tpviz.shard(momentum, 0, comm), gradients[comm.rank]


def _case(rows: int, columns: int, ranks: int) -> Case:
    w, momentum = integers(rows, columns), integers(rows, columns, start=3)
    gradients = [integers(rows, columns, start=7 + 5 * rank) for rank in range(ranks)]
    label = _("a weight of {rows}×{columns} on {ranks} ranks").format(rows=rows, columns=columns, ranks=ranks)
    return Case((w, momentum, gradients), label, ranks)


def _cases() -> list[Case]:
    return [_case(4, 8, ranks=2), _case(4, 8, ranks=4), _case(6, 2, ranks=3), _case(4, 4, ranks=4)]


def _with(scatter, gather):
    """The step with another way to come by this rank's gradient, and to the whole weight."""

    def program(comm, w, mi, g):
        mi = mi + scatter(comm, g)
        return gather(comm, w, tpviz.shard(w, 0, comm) - mi)

    return program


def _scattered(comm, g):
    return comm.reduce_scatter(g, dim=0)


def _gathered(comm, w, wi):
    return comm.all_gather(wi, dim=0)


STEP = TrafficExercise(
    id="B-step",
    function=zero_step,
    inputs=_cases,
    held=_held,
    weigh=wire_bytes,
    too_much=N_(
        "The weight is right. Tried on {case}, one rank sends {got} bytes, and {expected} will do: you send {sent}."
    ),
    right=N_(
        "Each rank sums only the rows that it updates, and hands the new rows to all. Reduce-scatter, all-gather: the "
        "two halves of DDP's AllReduce, with the optimizer's step between them."
    ),
    hint_sentences=(
        N_("`g` is this rank's gradient of its own samples, for all rows of W. Which rows does it need the sum of?"),
        N_("Add over the ranks, and let each keep its rows: one collective does both."),
        N_("Its rows of W: `tpviz.shard(w, 0, comm)`. From them it takes the new momentum, `mi` plus its gradient."),
        N_("In the end each rank has its new rows, and everybody needs all of them, below each other: dim 0."),
    ),
    misconceptions=(
        Misconception(
            "AllReduce, then cut",
            _with(lambda comm, g: tpviz.shard(comm.all_reduce(g), 0, comm), _gathered),
            N_(
                "The weight is right, and you sent too much: AllReduce hands every row of the sum to every rank, and "
                "each throws all but its own rows away. Tried on {case}, {got} bytes, and {expected} will do."
            ),
        ),
        Misconception(
            "no sum",
            _with(lambda comm, g: tpviz.shard(g, 0, comm), _gathered),
            N_(
                "Each rank cut its own gradient, and nothing was added: the other ranks' samples have no say. Tried on "
                "{case}, {place} is {got}, and it should be {expected}."
            ),
        ),
        Misconception(
            "the mean",
            _with(lambda comm, g: comm.reduce_scatter(g, dim=0, op="mean"), _gathered),
            N_(
                "You took the mean over the ranks. The loss here is a sum over samples, so gradients add: {place} is "
                "{got}, and it should be {expected}."
            ),
        ),
        Misconception(
            "not gathered",
            _with(_scattered, lambda comm, w, wi: wi),
            N_(
                "Each rank has its new rows, {got_shape}, and the others still need them: the next forward multiplies "
                "with all of W, {expected_shape}."
            ),
        ),
        Misconception(
            "new rows added",
            _with(_scattered, lambda comm, w, wi: comm.all_reduce(wi)),
            N_("You added the ranks' new rows. They are different rows of W: they belong below each other."),
        ),
        Misconception(
            "gathered beside each other",
            _with(_scattered, lambda comm, w, wi: comm.all_gather(wi)),
            N_(
                "You joined the rows beside each other: all_gather takes the last dimension, unless told. They were cut"
                " along dim 0, so they are joined along dim 0."
            ),
        ),
    ),
)

EXERCISES = (SENT, STEP, KEPT)
