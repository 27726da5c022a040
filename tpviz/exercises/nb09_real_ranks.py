# mypy: allow-untyped-defs, allow-untyped-calls
"""The exercises of notebook 09, real ranks (checks). The function is shown as it stands here.

DTensor, and all that needs it, is slow to import: only who mends the plan waits for it.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from types import FunctionType
from typing import Any

import torch
import torch.distributed as dist

import tpviz
from tpviz.exercises import values
from tpviz.exercises.inputs import W2, W, X
from tpviz.exercises.pattern import Case, Difference, Misconception, ProgramExercise, ValueExercise
from tpviz.i18n import N_, _


def _lengths() -> list[int]:
    """What the ranks return if each has the notebook's list as it was, as a process has it: a copy of its own."""
    seen: list[int] = []

    def program(comm):
        mine = copy.deepcopy(seen)
        mine.append(comm.rank)
        return len(mine)

    return tpviz.run(program, ranks=2).outputs


SEEN = ValueExercise(
    id="09-seen",
    variable="lengths",
    answer=_lengths,
    ask="what rank 0 returns, and rank 1",
    hole="[..., ...]",
    right=N_(
        "Each process has a copy of the list, as it was when the run began: empty. Each appends to its own, and "
        "neither sees the other's, nor does the notebook."
    ),
    hint_sentences=(
        N_("A process has its own memory. How does the notebook's list come to it?"),
        N_("Each rank gets a copy of the empty list. How long is it after one append?"),
    ),
    misconceptions=(
        Misconception(
            "shared",
            [1, 2],
            N_(
                "So it is on simulated ranks, which are threads of one process: there the list is one. A process gets a"
                " copy, and what another one appends to its own does not show in it."
            ),
        ),
        Misconception(
            "both see both",
            [2, 2],
            N_(
                "Nothing brings rank 1's number to rank 0: no collective is called. A rank sees another rank's values "
                "through a collective, or not at all."
            ),
        ),
        Misconception(
            "not there",
            [0, 0],
            N_("The list is there: it is sent along with the program. Each rank appends one number to its copy."),
        ),
        Misconception(
            "shared, other order",
            [2, 1],
            N_(
                "That would be one list that rank 1 reached first. The two processes have a list each, and who is "
                "first does not matter."
            ),
        ),
    ),
)


NODES, GPUS = 2, 8

SERVERS = ValueExercise(
    id="09-servers",
    variable="started",
    answer=lambda: [NODES, NODES * GPUS, list(range(NODES * GPUS))[GPUS]],
    ask="commands, processes in all, the first rank on the second server",
    hole="[..., ..., ...]",
    right=N_(
        "One command for each server, and each starts one process for each of its GPUs. The ranks are numbered "
        "through: 0 to 7 on the first server, 8 to 15 on the second."
    ),
    hint_sentences=(
        N_("`torchrun` starts processes on the machine on which you type it, and on no other."),
        N_("`--nproc-per-node 8` is what one command starts. The ranks are numbered through both servers."),
    ),
    misconceptions=(
        Misconception(
            "one command",
            [1, 16, 8],
            N_(
                "`torchrun` starts nothing on another machine. One command would wait for the second server to come, "
                "and end when it does not. On a cluster, Slurm or Kubernetes types the commands for you."
            ),
        ),
        Misconception(
            "a command for each process",
            [16, 16, 8],
            N_("`--nproc-per-node 8` starts eight processes with one command. Each server needs one command."),
        ),
        Misconception(
            "numbered anew",
            [2, 16, 0],
            N_(
                "That is the *local* rank, which names a GPU of a server, and which is 0 on both. `comm.rank` is "
                "numbered through all servers: the second begins where the first ends."
            ),
        ),
        Misconception(
            "counted from 1",
            [2, 16, 9],
            N_("Ranks begin at 0: the first server has ranks 0 to 7."),
        ),
        Misconception(
            "the last of the first server",
            [2, 16, 7],
            N_("7 is the last rank on the first server, which has ranks 0 to 7."),
        ),
        Misconception(
            "the server's number",
            [2, 16, 1],
            N_("1 is the second server's own number, `--node-rank 1`. Ranks are numbered by processes."),
        ),
        Misconception(
            "a command for each GPU",
            [8, 16, 8],
            N_("8 is the number of GPUs of one server, and one command starts a process for each of them."),
        ),
        Misconception(
            "one process for each server",
            [2, 2, 1],
            N_("A rank has one GPU, and each server has eight: `--nproc-per-node 8` starts a process for each."),
        ),
        Misconception(
            "the first server's only",
            [2, 8, 8],
            N_("Eight are what one command starts. Two commands start twice as many, and they are one world."),
        ),
    ),
)


def _own_gradient(comm, w, grads):
    """What a rank has: all of w, and the gradient of its own samples."""
    return w, grads[comm.rank]


def _cases() -> list[Case]:
    w, grads = torch.tensor([5.0, -2]), torch.tensor([[1.0, 3], [3, -7], [0, 2], [4, 6]])
    overflow, both = grads.clone(), grads[:2].clone()
    overflow[1] = both[0] = torch.inf
    both[1] = -torch.inf
    first, last = grads[:2].clone(), grads[:2].clone()
    first[1, 0] = last[0, 1] = torch.inf
    return [
        Case((w, grads[:2]), _("{ranks} ranks with finite gradients").format(ranks=2), 2),
        Case((w, overflow), _("{ranks} ranks, of which rank 1 has an infinite gradient").format(ranks=4), 4),
        Case((w, overflow[:2]), _("{ranks} ranks, of which rank 1 has an infinite gradient").format(ranks=2), 2),
        Case((w, both), _("{ranks} ranks, one with ∞ and one with −∞").format(ranks=2), 2),
        Case((w, first), _("{ranks} ranks, rank 1 with one ∞ and one finite number").format(ranks=2), 2),
        Case((w, last), _("{ranks} ranks, rank 0 with one finite number and one ∞").format(ranks=2), 2),
    ]


_UNMET = "unmet"


@dataclass(frozen=True, kw_only=True)
class MeetingExercise(ProgramExercise):
    """The answer is a rank program whose ranks may fail to meet, which is an outcome like any other.

    As an exception it would name the learner's lines, and no two answers would end alike.
    """

    def evaluate(self, answer: Any, case: Case) -> object:
        """What each rank returns, or that they did not meet."""
        try:
            return super().evaluate(answer, case)
        except tpviz.CollectiveMismatch as error:
            if error.__cause__ is not None:  # a rank raised, and thereby left the others waiting
                raise
            return _UNMET

    def difference(self, expected: object, got: object, case: Case) -> Difference:
        """That the ranks did not meet, or the difference on the first rank whose output is wrong."""
        if got == _UNMET:
            text = _(
                "Tried on {case}: the ranks do not meet. Some return, or call something else, while others wait in a "
                "collective; real ranks would hang here."
            )
            return Difference(text.format(case=case.label), {"case": case.label})
        return super().difference(expected, got, case)


def step(comm, w, grad):
    """w minus the mean gradient; or w, on all ranks, if one's gradient has an ∞."""
    mean = comm.all_reduce(grad, op="mean")  # hole
    return w - mean if torch.isfinite(mean).all() else w  # hole


def _stays_away(comm, w, grad):
    return w - comm.all_reduce(grad, op="mean") if torch.isfinite(grad).all() else w


def _own_check(comm, w, grad):
    mean = comm.all_reduce(grad, op="mean")
    return w - mean if torch.isfinite(grad).all() else w


def _rank_0s_check(comm, w, grad):
    mean = comm.all_reduce(grad, op="mean")
    return w - mean if torch.isfinite(comm.broadcast(grad)).all() else w


def _zeros(comm, w, grad):
    return w - comm.all_reduce(torch.where(torch.isfinite(grad), grad, 0.0), op="mean")


def _entry_by_entry(comm, w, grad):
    mean = comm.all_reduce(grad, op="mean")
    return torch.where(torch.isfinite(mean), w - mean, w)


def _if_deciding(is_fit):
    """The step that all take or none, by another condition on the mean."""

    def program(comm, w, grad):
        mean = comm.all_reduce(grad, op="mean")
        return w - mean if is_fit(mean) else w

    return program


def _summed(comm, w, grad):
    total = comm.all_reduce(grad)
    return w - total if torch.isfinite(total).all() else w


STEP = MeetingExercise(
    id="09-step",
    function=step,
    inputs=_cases,
    held=_own_gradient,
    right=N_(
        "Every rank calls the collective, whatever its own numbers are, and all decide by one result. Nobody stays "
        "away, and the copies of w stay copies."
    ),
    hint_sentences=(
        N_("Which rank never comes to the collective? It must come too, before anybody decides."),
        N_("All ranks must decide alike. Which number have all of them, and does it tell of an ∞ on one rank?"),
        N_("The mean of ∞ and a finite number is ∞. All ranks have the mean: `torch.isfinite(mean).all()`."),
    ),
    misconceptions=(
        Misconception(
            "stays away",
            _stays_away,
            N_(
                "Tried on {case}: that rank skips the collective, and the others wait in it. Here it is an error at "
                "once; a job on a cluster stands still until a time-out ends it. Let every rank call the collective, "
                "and decide afterwards."
            ),
        ),
        Misconception(
            "own check",
            _own_check,
            N_(
                "All ranks meet, and then each decides by its *own* gradient. Tried on {case}: {place} is {got} on rank"
                " {rank}, and it should be {expected}. One rank keeps w, the others take the step: copies no more."
            ),
        ),
        Misconception(
            "not infinite",
            _if_deciding(lambda mean: not mean.isinf().any()),
            N_(
                "∞ − ∞ is nan, which isn't infinite either: use `isfinite`. Tried on {case}: {place} is {got}, and it "
                "should stay {expected}."
            ),
        ),
        Misconception(
            "no check",
            lambda comm, w, grad: w - comm.all_reduce(grad, op="mean"),
            N_(
                "All ranks meet, and nobody looks at the result. Tried on {case}: {place} is {got}, and it should be "
                "{expected}. After this step the model is lost on every rank."
            ),
        ),
        Misconception(
            "rank 0's",
            _rank_0s_check,
            N_(
                "All decide alike, by rank 0's gradient. Tried on {case}: rank 0's gradient was finite, another's was "
                "not, and {place} is {got} on all ranks. It should be {expected}."
            ),
        ),
        Misconception(
            "zeros",
            _zeros,
            N_(
                "The ranks meet, and zeros take the place of what is not finite. Tried on {case}: a step is taken, "
                "{place} is {got}, and it should stay {expected}. The mean is over fewer gradients than it is divided "
                "by, and nobody was told."
            ),
        ),
        Misconception(
            "entry by entry",
            _entry_by_entry,
            N_(
                "You skip entry by entry; w must stay whole. Tried on {case}: {place} is {got}, and it should stay "
                "{expected}. Half a step has been taken, from a gradient that nobody trusts."
            ),
        ),
        Misconception(
            "any",
            _if_deciding(lambda mean: torch.isfinite(mean).any()),
            N_(
                "You take the step although an entry of the mean is ∞. Tried on {case}: {place} is {got}, and it "
                "should stay {expected}. One ∞ is enough to skip: `.all()` must be finite."
            ),
        ),
        Misconception(
            "one entry",
            _if_deciding(lambda mean: torch.isfinite(mean[0])),
            N_(
                "You look at the first entry only. Tried on {case}: {place} is {got}, and it should be {expected}. "
                "An ∞ may stand in any entry: `torch.isfinite(mean).all()`."
            ),
        ),
        Misconception(
            "summed",
            _summed,
            N_(
                "The ranks meet and decide alike, on the sum. Tried on {case}: {place} is {got}, and it should be "
                '{expected}. The mean is asked for: `op="mean"`.'
            ),
        ),
        Misconception(
            "never",
            lambda comm, w, grad: w,
            N_("No step is ever taken. Tried on {case}: {place} is {got}, and it should be {expected}."),
        ),
        Misconception(
            "own step",
            lambda comm, w, grad: w - grad if torch.isfinite(grad).all() else w,
            N_(
                "Nothing can hang, since nothing is sent: each rank takes a step of its own. Tried on {case}: {place} "
                "is {got} on rank {rank}, and it should be {expected}. The copies of w are copies no more."
            ),
        ),
    ),
)


def _gated():
    """The model of the exercise: the MLP of Llama, with gate, up and down."""
    from torch import nn

    class Gated(nn.Module):
        def __init__(self):
            super().__init__()
            self.gate, self.up = nn.Linear(4, 8, bias=False), nn.Linear(4, 8, bias=False)
            self.down = nn.Linear(8, 4, bias=False)
            for layer, weight in ((self.gate, W), (self.up, W), (self.down, W2)):
                layer.weight = nn.Parameter(weight.T.clone())

        def forward(self, x):
            return self.down(torch.relu(self.gate(x)) * self.up(x))

    return Gated()


def _sent_by(plan: Any, ranks: int) -> list[Any]:
    """The numbers of weights a rank holds, the shape of its Y, and a row for each module and phase that sent."""
    from torch.distributed.tensor.parallel import parallelize_module

    from tpviz.watching import pretended_ranks, watch

    with pretended_ranks(ranks) as mesh:
        model = parallelize_module(_gated(), mesh, dict(plan))
        with watch(model) as watched:
            Y = model(X.clone().requires_grad_())
            Y.backward(torch.ones_like(Y))
        held = sum(getattr(weight, "to_local", lambda w=weight: w)().numel() for weight in model.parameters())
    rows = [[sent.name, sent.phase, ", ".join(sent.kinds().elements()), sent.payload_bytes] for sent in watched.sent()]
    return [held, list(Y.shape), rows]


_MODULES = ("gate", "up", "down")


@dataclass(frozen=True, kw_only=True)
class PlanExercise(ValueExercise):
    """The answer is a plan of `parallelize_module`, or a function that makes one: what it sends is compared."""

    code: str
    """The plan as the solution writes it."""
    before: str
    """The lines in front of it."""

    def _sources(self) -> tuple[str, str]:
        head = f"{self.before}\n\n# {self.ask}\n{self.variable} = "
        return f"{head}{self.hole}", f"{head}{self.code}"

    def cases(self) -> list[Case]:
        """The plan is tried on pretended ranks."""
        return [Case((), _("{ranks} ranks").format(ranks=ranks), ranks) for ranks in (2, 4)]

    def evaluate(self, answer: Any, case: Case) -> object:
        """What a rank holds, has of Y, and sends."""
        return _sent_by(answer() if type(answer) is FunctionType else answer, case.ranks)

    def refuse(self, answer: object) -> str | None:
        """A plan has a style for modules that the model has."""
        if dist.is_initialized():
            return _("torch.distributed is initialised here; call torch.distributed.destroy_process_group() first.")
        if type(answer) is FunctionType:
            return None
        if type(answer) is not dict:
            return _("A plan is needed, a dictionary with a style for each module, and this is {value}.").format(
                value=values.in_words(answer)
            )
        for name, style in answer.items():
            if type(name) is not str or name not in _MODULES:
                return _("The model has no module {name}; it has {known}.").format(
                    name=f'"{values.shortened(name)}"' if type(name) is str else values.in_words(name),
                    known=", ".join(_MODULES),
                )
            if isinstance(style, type):
                return _("A style needs its brackets: {style}().").format(style=values.shortened(style.__name__))
        if answer and "down" not in answer:
            return _("down is missing from your plan: it would stay whole on each rank.")
        return None

    def difference(self, expected: object, got: object, case: Case) -> Difference:
        """Too many weights on a rank, a part of Y, or too much sent, and by which module."""
        assert isinstance(expected, list)
        assert isinstance(got, list)
        (should_hold, whole, needed), (held, shape, sent) = expected, got
        fields = {"held": str(held), "should_hold": str(should_hold), "case": case.label}
        fields |= {"got": str(_bytes(sent)), "expected": str(_bytes(needed))}
        if held != should_hold:
            text = _("Tried on {case}: a rank holds {held} numbers of weights, and {should_hold} will do.")
            return Difference(text.format(**fields), fields)
        if shape != whole:
            text = _("Tried on {case}: a rank ends with {got_shape} of Y, and it should have {expected_shape}.")
            shapes = {"got_shape": values.shown(shape), "expected_shape": values.shown(whole)}
            return Difference(text.format(**fields, **shapes), fields | shapes)
        if extra := [row for row in sent if row not in needed]:
            text = _("Tried on {case}: {got} bytes of payload are sent, and {expected} will do. Not needed: {rows}.")
            return Difference(text.format(**fields, rows=_in_words(extra)), fields)
        text = _("Tried on {case}: without {rows} there are partial sums where whole numbers are needed.")
        return Difference(text.format(**fields, rows=_in_words([row for row in needed if row not in sent])), fields)


def _in_words(rows: list[list[Any]]) -> str:
    return "; ".join(f"{kinds} ({name}, {phase})" for name, phase, kinds, _size in rows)


def _bytes(rows: list[list[Any]]) -> int:
    return sum(size for _name, _phase, _kinds, size in rows)


def _styles() -> tuple[Any, Any, Any]:
    from torch.distributed.tensor import Replicate
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel

    return ColwiseParallel, RowwiseParallel, Replicate()


def _right_plan() -> dict[str, Any]:
    column, row, _whole = _styles()
    return {"gate": column(), "up": column(), "down": row()}


def _as_it_was() -> dict[str, Any]:
    column, row, whole = _styles()
    return {name: column(output_layouts=whole) for name in ("gate", "up")} | {"down": row(input_layouts=whole)}


def _columns_only() -> dict[str, Any]:
    column, _row, whole = _styles()
    return {name: column(output_layouts=whole) for name in _MODULES}


def _rows_first() -> dict[str, Any]:
    column, row, whole = _styles()
    return {name: row(input_layouts=whole) for name in ("gate", "up")} | {"down": column(output_layouts=whole)}


def _only_down_mended() -> dict[str, Any]:
    _column, row, _whole = _styles()
    return _as_it_was() | {"down": row()}


def _rows_without_layouts() -> dict[str, Any]:
    _column, row, _whole = _styles()
    return {name: row() for name in _MODULES}


def _columns_without_layouts() -> dict[str, Any]:
    column, _row, _whole = _styles()
    return {name: column() for name in _MODULES}


def _without(*names: str) -> Any:
    def plan() -> dict[str, Any]:
        return {name: style for name, style in _right_plan().items() if name not in names}

    return plan


PLAN = PlanExercise(
    id="09-plan",
    variable="mended",
    answer=_right_plan,
    ask="a style for each module",
    hole='{"gate": ..., "up": ..., "down": ...}',
    before="from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel",
    code='{"gate": ColwiseParallel(), "up": ColwiseParallel(), "down": RowwiseParallel()}',
    right=N_(
        "The columns that gate and up leave are what the product passes and what down wants. Forward one sum is left, "
        "and backward each of the two column layers sums its share of dX."
    ),
    hint_sentences=(
        N_("Which rows of the table stand between the layers? Which argument of the plan made them?"),
        N_("gate and up leave columns, if nobody asks for the whole. Which style wants columns as its input?"),
        N_("`ColwiseParallel()` leaves its output cut, and `RowwiseParallel()` expects its input so."),
    ),
    misconceptions=(
        Misconception(
            "as it was",
            _as_it_was,
            N_(
                "This is the plan as it was: gate and up gather their outputs, and down cuts the product again. {got} "
                "bytes of payload are sent, and {expected} will do."
            ),
        ),
        Misconception(
            "columns only",
            _columns_only,
            N_(
                "Three column layers, each of which gathers its output: right numbers, {got} bytes of payload "
                "where {expected} will do. The last layer should want what the others leave: columns. Which style does?"
            ),
        ),
        Misconception(
            "columns without layouts",
            _columns_without_layouts,
            N_(
                "PyTorch refuses it: the shapes do not fit. The third layer wants its input whole and gets columns. It "
                "could gather them; or it could be of the style that wants columns."
            ),
        ),
        Misconception(
            "only down mended",
            _only_down_mended,
            N_(
                "PyTorch refuses it: gate and up still gather, so down gets the whole H, and takes it for one rank's "
                "part. What is `output_layouts` of gate and up for?"
            ),
        ),
        Misconception(
            "rows without layouts",
            _rows_without_layouts,
            N_("PyTorch refuses it: gate expects its input cut, as `RowwiseParallel()` does, and x is whole."),
        ),
        Misconception(
            "rows first",
            _rows_first,
            N_(
                "Rows first leaves partial sums, which must be summed before the ReLU, where the matrix is twice as "
                "wide: {got} bytes of payload, and {expected} will do."
            ),
        ),
        Misconception(
            "nothing",
            {},
            N_("No layer is cut: nothing is sent, and each rank holds all {held} numbers of the weights."),
        ),
        Misconception(
            "up forgotten",
            _without("up"),
            N_(
                "up leaves all 8 columns where gate leaves fewer, and they cannot be multiplied: "
                "{error}. Whoever is multiplied with columns must be cut in columns too."
            ),
        ),
        Misconception(
            "gate forgotten",
            _without("gate"),
            N_(
                "gate leaves all 8 columns where up leaves fewer, and they cannot be multiplied: "
                "{error}. Whoever is multiplied with columns must be cut in columns too."
            ),
        ),
    ),
)

EXERCISES = (SEEN, SERVERS, STEP, PLAN)
