# mypy: allow-untyped-defs, allow-untyped-calls
"""The exercises of notebook 05b, tensor and data parallelism together (checks). The program is shown as it is here."""

import torch

import tpviz
from tpviz.exercises.inputs import X4, dY4, integers
from tpviz.exercises.pattern import Case, Misconception, ProgramExercise, Remark, ValueExercise
from tpviz.i18n import N_, _


def _own_dw(comm, X, dY, tp):
    """The groups of a mesh with tp ranks in a row, and this rank's dW from its rows of X and its part of dY."""
    tp_group, dp_group = comm.split(comm.rank // tp), comm.split(comm.rank % tp)
    rows_of_x, rows_of_dy = tpviz.shard(X, 0, dp_group), tpviz.shard(dY, 0, dp_group)
    return tp_group, dp_group, rows_of_x.T @ tpviz.shard(rows_of_dy, 1, tp_group)


def _group() -> str:
    """The group over which the ranks' dW add up to what one rank alone would compute from all rows."""

    def program(comm):
        tp_group, dp_group, dWi = _own_dw(comm, X4, dY4, 2)
        groups = {"TP group": tp_group, "DP group": dp_group, "all four ranks": comm}
        return {name: group.all_reduce(dWi) for name, group in groups.items()} | {"nobody": dWi}

    outputs: list[dict[str, torch.Tensor]] = tpviz.run(program, ranks=4).outputs
    dense = (X4.T @ dY4).chunk(2, dim=1)
    return next(name for name in outputs[0] if all(torch.equal(outputs[r][name], dense[r % 2]) for r in range(4)))


GROUP = ValueExercise(
    id="05b-group",
    variable="group",
    answer=_group,
    ask='"TP group", "DP group", "all four ranks", "nobody"',
    right=N_(
        "The ranks of a DP group hold the same part of W and saw different rows of X. Each has a part of the sum over "
        "the rows; a rank with other columns of W has nothing to add."
    ),
    hint_sentences=(
        N_("Which ranks hold the same part of W? And which of them saw the same rows of X?"),
        N_("Ranks 0 and 1 hold different columns of W. Ranks 0 and 2 hold the same columns."),
    ),
    misconceptions=(
        Misconception(
            "TP",
            "TP group",
            N_(
                "The ranks of a TP group hold different columns of W. Added, column 0 mixes with column 4; the shapes "
                "agree, and no message says a word. Inside a TP group each dW is local."
            ),
        ),
        Misconception(
            "both",
            "all four ranks",
            N_(
                "Two of the four hold other columns of W than this rank. In a sum over all four, column 0 mixes with "
                "column 4; the shapes agree, and no message says a word."
            ),
        ),
        Misconception(
            "none",
            "nobody",
            N_(
                "Within one TP group that is true. But ranks 0 and 2 hold the same part of W and saw different rows of "
                "X. Without a word between them they take different steps, and after the first one no longer hold the "
                "same weight."
            ),
        ),
    ),
)


def _mesh(X: torch.Tensor, dY: torch.Tensor, dp: int, tp: int) -> Case:
    return Case((X, dY, tp), _("a {dp}×{tp} mesh").format(dp=dp, tp=tp), dp * tp)


def _cases() -> list[Case]:
    return [
        _mesh(X4, dY4, dp=2, tp=2),
        _mesh(X4, dY4, dp=2, tp=1),
        _mesh(X4, dY4, dp=1, tp=2),
        _mesh(integers(8, 3), integers(8, 6, start=6), dp=4, tp=2),
    ]


def mean_gradient(comm, X, dY, tp):
    """This rank's dW, the mean over the copies, each with its own rows of X."""
    tp_group, dp_group = comm.split(comm.rank // tp), comm.split(comm.rank % tp)
    X, dY = tpviz.shard(X, 0, dp_group), tpviz.shard(dY, 0, dp_group)
    dWi = X.T @ tpviz.shard(dY, 1, tp_group)
    return dp_group.all_reduce(dWi, op="mean", phase="gradients")  # hole


def _with_sync(sync):
    """The program with another synchronisation."""
    return lambda comm, X, dY, tp: sync(comm, *_own_dw(comm, X, dY, tp))


def _phases(program):
    """A program that returns what the trace of the program says of each collective's phase."""

    def traced(comm, X, dY, tp):
        trace = tpviz.run(program, ranks=comm.world_size, args=(X, dY, tp)).trace
        return [event.phase for event in trace]

    return traced


MEAN = ProgramExercise(
    id="05b-mean",
    function=mean_gradient,
    inputs=_cases,
    right=N_(
        "The copies of one part of W take one mean, and so the same step. That is the price of data parallelism; the TP"
        " group sends nothing for it."
    ),
    hint_sentences=(
        N_("`tp_group` and `dp_group` are communicators, as `comm` is. In which do all ranks hold the same part of W?"),
        N_("Each copy's loss is a mean over its own rows. What is the mean over all rows, if each copy has as many?"),
        N_('`group.all_reduce(x, op="mean", phase="gradients")` averages over a group; the phase is for the trace.'),
    ),
    misconceptions=(
        Misconception(
            "summed",
            _with_sync(lambda comm, tp_group, dp_group, dWi: dp_group.all_reduce(dWi, phase="gradients")),
            N_(
                "The right group, and a sum: tried on {case}, {place} is {got}, and it should be {expected}. The step "
                "would be as many times too long as there are copies. A sum is right where each copy's loss is a sum "
                "over its rows, or is already divided by the number of all rows."
            ),
        ),
        Misconception(
            "over TP",
            _with_sync(lambda comm, tp_group, dp_group, dWi: tp_group.all_reduce(dWi, op="mean")),
            N_(
                "You averaged over the TP group, whose ranks hold different columns of W. The shapes agree, and no "
                "message says a word: on rank {rank}, {place} is {got}, and it should be {expected}."
            ),
        ),
        Misconception(
            "over all",
            _with_sync(lambda comm, tp_group, dp_group, dWi: comm.all_reduce(dWi, op="mean")),
            N_(
                "You averaged over all ranks, also over those that hold other columns of W. The shapes agree, and no "
                "message says a word: on rank {rank}, {place} is {got}, and it should be {expected}."
            ),
        ),
        Misconception(
            "none",
            _with_sync(lambda comm, tp_group, dp_group, dWi: dWi),
            N_(
                "Each rank keeps the gradient of its own rows. On {case}, {place} is {got} on rank {rank}, and it "
                "should be {expected}. The copies would take different steps, and after the first one be copies no "
                "more."
            ),
        ),
        Misconception(
            "rank 0's",
            _with_sync(lambda comm, tp_group, dp_group, dWi: dp_group.broadcast(dWi)),
            N_(
                "Now the copies agree, on what the first copy's rows say: {place} is {got}, and it should be "
                "{expected}. The other rows were computed for nothing."
            ),
        ),
        Misconception(
            "divided by all",
            _with_sync(lambda comm, tp_group, dp_group, dWi: dp_group.all_reduce(dWi) / comm.world_size),
            N_(
                "The right sum, divided by the number of all ranks. But only the copies were added: on {case}, {place} "
                "is {got}, and it should be {expected}. Divide by `dp_group.world_size`."
            ),
        ),
        Misconception(
            "divided by tp",
            _with_sync(lambda comm, tp_group, dp_group, dWi: dp_group.all_reduce(dWi) / tp_group.world_size),
            N_(
                "The right sum, divided by the size of the TP group. On a 2×2 mesh that is also the number of copies, "
                "and no number tells; on {case}, {place} is {got}, and it should be {expected}. Divide by "
                "`dp_group.world_size`."
            ),
        ),
        Misconception(
            "divided by 2",
            _with_sync(lambda comm, tp_group, dp_group, dWi: dp_group.all_reduce(dWi) / 2),
            N_(
                "The right sum, divided by 2. That is right for two copies; on {case}, {place} is {got}, and it should "
                "be {expected}. Divide by `dp_group.world_size`."
            ),
        ),
        Misconception(
            "over both",
            _with_sync(lambda comm, tp_group, dp_group, dWi: tp_group.all_reduce(dp_group.all_reduce(dWi, op="mean"))),
            N_(
                "The mean over the copies was right. Then you added over the TP group too, where each rank holds other "
                "columns of W: on rank {rank}, {place} is {got}, and it should be {expected}."
            ),
        ),
    ),
    remarks=(
        Remark(
            "no phase",
            _with_sync(lambda comm, tp_group, dp_group, dWi: dp_group.all_reduce(dWi, op="mean")),
            N_(
                'One thing: say `phase="gradients"`, and the trace tells this collective from those of forward and '
                "backward."
            ),
            probe=_phases,
        ),
    ),
)

EXERCISES = (GROUP, MEAN)
