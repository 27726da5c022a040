"""Widgets: the diagrams with something to move (widgets). `compute(parameters)`, `draw(result)`, and a thin shell.

The shell knows nothing of what it shows: it hands the controls' values to `compute`, hands what that gives to `draw`,
and puts the picture below the controls. All that is right or wrong is in the two functions, which need no browser.

Every control is a slider. JupyterLab takes the arrow keys of a focused menu, radio button or button for its own
commands, and leaves a slider its keys; so a slider is what a learner can use without a mouse.
"""

import html
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import ipywidgets
import numpy as np
import torch
import traitlets
from numpy.typing import NDArray
from torch import Tensor

import tpviz
from tpviz import charts, diagrams
from tpviz.diagrams import Drawing, grammar
from tpviz.example import X4, W, X, dY, dY4
from tpviz.i18n import N_, _
from tpviz.machines import DGX_A100, DGX_H100, PCIE_BOX, Machine
from tpviz.published import MEGATRON_2019, MEGATRON_2021
from tpviz.steps import Phase, layer_seconds, step
from tpviz.strategies import Strategy, rank_bytes, sent_bytes, strategy_name
from tpviz.transformers import Transformer

RANKS = (1, 2, 4, 8)


class Shell(ipywidgets.VBox):  # type: ignore[misc]
    """Controls, and below them the picture of what they say.

    Where no kernel runs, in a notebook as it is stored, the picture stays. An error in `compute` or `draw` is shown in
    the picture's place, until a control is moved on.
    """

    def __init__(
        self,
        compute: Callable[..., Any],
        draw: Callable[[Any], Drawing],
        controls: dict[str, ipywidgets.ValueWidget],
    ) -> None:
        self.controls = controls
        self.picture = ipywidgets.HTML()
        self._compute, self._draw = compute, draw
        self._update()
        for control in controls.values():
            control.observe(self._update, "value")
        super().__init__([*controls.values(), self.picture])

    def _update(self, _change: object = None) -> None:
        """Compute and draw for what the controls say now."""
        try:
            drawing = self._draw(self._compute(**{name: control.value for name, control in self.controls.items()}))
        except Exception as error:
            sentence = _("No picture for this choice. {kind}: {error}").format(kind=type(error).__name__, error=error)
            self.alt, self.picture.value = sentence, _card(sentence)
        else:
            self.alt, self.picture.value = drawing.alt, drawing.html

    def _repr_mimebundle_(self, **kwargs: Any) -> dict[str, Any]:
        """The widget; beside it what it shows now, for where no kernel runs."""
        bundle: dict[str, Any] = super()._repr_mimebundle_(**kwargs)
        return {**bundle, "text/html": self.picture.value, "text/plain": self.alt}


def _card(sentence: str) -> str:
    """A sentence where a picture would be."""
    style = (
        f"background:{grammar.CARD};color:{grammar.INK};border:1px solid {grammar.CARD_EDGE};border-radius:8px;"
        "padding:12px 16px;max-width:46em;white-space:pre-wrap;line-height:1.5"
    )
    return f'<div style="{style}">✗ {html.escape(sentence)}</div>'


# Without `echo_update`, the kernel does not first repeat to the browser what the browser has sent: 4 ms of some 45.
class _NumberSlider(ipywidgets.IntSlider):  # type: ignore[misc]
    """A slider over whole numbers."""

    value = traitlets.CInt().tag(sync=True, echo_update=False)


class _ChoiceSlider(ipywidgets.SelectionSlider):  # type: ignore[misc]
    """A slider over a few choices."""

    index = traitlets.Int().tag(sync=True, echo_update=False)


_LOOK: dict[str, Any] = {
    "style": {"description_width": "7em"},
    "layout": {"width": "26em", "max_width": "100%"},
}


def _number(label: str, last: int, start: int) -> ipywidgets.ValueWidget:
    """A control for the whole numbers from 0 to the last."""
    return _NumberSlider(value=start, min=0, max=last, description=label, **_LOOK)


def _choice(label: str, choices: Sequence[Any], start: object) -> ipywidgets.ValueWidget:
    """A control for a few choices."""
    return _ChoiceSlider(options=choices, value=start, description=label, **_LOOK)


# One entry of a product


@dataclass(frozen=True)
class Entry:
    """A layer's forward on some ranks, and the entry of Y that is looked at."""

    run: tpviz.Run
    row: int
    column: int

    @property
    def products(self) -> Tensor:
        """The products that the entry is the sum of."""
        return X[self.row] * W[:, self.column]


def compute_column_entry(row: int, column: int, ranks: int) -> Entry:
    """Run the running example with W cut by columns."""
    return Entry(tpviz.run(lambda comm: X @ tpviz.shard(W, 1, comm), ranks=ranks), row, column)


def draw_column_entry(entry: Entry) -> Drawing:
    """The product on its ranks; the entry's row, column and owner light up."""
    return diagrams.column_parallel(X, W, entry.run, entry=(entry.row, entry.column))


def compute_row_entry(row: int, column: int, ranks: int) -> Entry:
    """Run the running example with W cut by rows and X by columns."""
    return Entry(tpviz.run(lambda comm: tpviz.shard(X, 1, comm) @ tpviz.shard(W, 0, comm), ranks=ranks), row, column)


def draw_row_entry(entry: Entry) -> Drawing:
    """The entry, opened into its products, each in the lane of the rank that computes it."""
    return diagrams.inner_product(X, W, entry.products, entry.run, X @ W, entry=(entry.row, entry.column))


def _entry_controls(row: int, column: int) -> dict[str, ipywidgets.ValueWidget]:
    return {
        "row": _number(_("row of Y"), X.shape[0] - 1, row),
        "column": _number(_("column of Y"), W.shape[1] - 1, column),
        "ranks": _choice(_("ranks"), RANKS, 2),
    }


def column_entry() -> Shell:
    """Choose an entry of Y and the number of ranks: who computes it, with W cut by columns?"""
    return Shell(compute_column_entry, draw_column_entry, _entry_controls(0, 5))


def row_entry() -> Shell:
    """Choose an entry of Y and the number of ranks: who computes which of its products, with W cut by rows?"""
    return Shell(compute_row_entry, draw_row_entry, _entry_controls(1, 3))


# The work of a layer, cut in two ways


def compute_work(ranks: int) -> tuple[tpviz.Run, tpviz.Run]:
    """Run the layer on 4 rows as ZeRO-3 does, each rank with its rows, and column-parallel, each with its columns."""
    return (
        tpviz.run(lambda comm: tpviz.shard(X4, 0, comm) @ comm.all_gather(tpviz.shard(W, 0, comm), dim=0), ranks=ranks),
        tpviz.run(lambda comm: X4 @ tpviz.shard(W, 1, comm), ranks=ranks),
    )


def draw_work(runs: tuple[tpviz.Run, tpviz.Run]) -> Drawing:
    """The entries of Y in the colours of who computes them, both ways."""
    return diagrams.two_cuts(*runs)


def work() -> Shell:
    """Choose the number of ranks: how is the work of one layer divided, by ZeRO-3 and by the column split?"""
    return Shell(compute_work, draw_work, {"ranks": _choice(_("ranks"), RANKS, 2)})


# A collective


@dataclass(frozen=True)
class Exchange:
    """What the ranks held before a collective, and the run of it."""

    before: list[Tensor]
    run: tpviz.Run


COLLECTIVES: dict[str, Callable[[tpviz.Communicator, Tensor], Tensor]] = {
    "Broadcast": lambda comm, x: comm.broadcast(x, src=0),
    "AllGather": lambda comm, x: comm.all_gather(x),
    "AllReduce": lambda comm, x: comm.all_reduce(x),
    "ReduceScatter": lambda comm, x: comm.reduce_scatter(x),
    "AllToAll": lambda comm, x: comm.all_to_all(x, split_dim=0, concat_dim=0),
}


def compute_collective(collective: str, ranks: int) -> Exchange:
    """Give each rank as many numbers as there are ranks (0 1, 10 11 on two), and run the collective on them."""

    def start(comm: tpviz.Communicator) -> Tensor:
        return 10 * comm.rank + torch.arange(ranks)

    run = tpviz.run(lambda comm: COLLECTIVES[collective](comm, start(comm)), ranks=ranks)
    return Exchange(tpviz.run(start, ranks=ranks).outputs, run)


def draw_collective(exchange: Exchange) -> Drawing:
    """What each rank held, the collective, and what each holds then."""
    return diagrams.collective(exchange.run.trace[0], exchange.before, exchange.run)


def collectives() -> Shell:
    """Choose a collective and the number of ranks: what does each rank hold before, and what afterwards?"""
    return Shell(
        compute_collective,
        draw_collective,
        {
            "collective": _choice(_("collective"), tuple(COLLECTIVES), "AllGather"),
            "ranks": _choice(_("ranks"), RANKS[1:], 2),
        },
    )


# A ring


def _ring(comm: tpviz.Communicator) -> list[Tensor]:
    """An AllReduce in a ring of as many numbers as there are ranks: what this rank holds after each step."""
    n, me = comm.world_size, comm.rank
    held = [10 * me + torch.arange(1, n + 1)]
    for turn in range(2 * (n - 1)):
        pieces = held[-1].clone()
        out, into = (me - turn - 1) % n, (me - turn - 2) % n
        arrived = comm.sendrecv(pieces[[out]], dst=(me + 1) % n, src=(me - 1) % n)
        pieces[into] = pieces[into] + arrived if turn < n - 1 else arrived
        held.append(pieces)
    return held


def compute_ring(ranks: int) -> tpviz.Run:
    """Run the ring: 1 2, 11 12 on two ranks."""
    return tpviz.run(_ring, ranks=ranks)


def draw_ring(run: tpviz.Run) -> Drawing:
    """All steps, below each other."""
    return diagrams.ring(run)


def ring() -> Shell:
    """Choose the number of ranks: how does an AllReduce go round?"""
    return Shell(compute_ring, draw_ring, {"ranks": _choice(_("ranks"), (2, 3, 4, 8), 4)})


# Contributions to the gradient of the input


@dataclass(frozen=True)
class Contributions:
    """What each rank of the column layer knows of dX, and the entry that is looked at."""

    run: tpviz.Run
    row: int
    column: int


def compute_contributions(row: int, column: int, ranks: int) -> Contributions:
    """Run the backward of the running example with W cut by columns."""
    run = tpviz.run(lambda comm: tpviz.shard(dY, 1, comm) @ tpviz.shard(W, 1, comm).T, ranks=ranks)
    return Contributions(run, row, column)


def draw_contributions(found: Contributions) -> Drawing:
    """The contributions and their sum; the entry lights up in all of them."""
    return diagrams.contributions(found.run, dY @ W.T, dY, entry=(found.row, found.column))


def contributions() -> Shell:
    """Choose an entry of dX and the number of ranks: what does each rank contribute to it?"""
    return Shell(
        compute_contributions,
        draw_contributions,
        {
            "row": _number(_("row of dX"), X.shape[0] - 1, 0),
            "column": _number(_("column of dX"), X.shape[1] - 1, 0),
            "ranks": _choice(_("ranks"), RANKS, 2),
        },
    )


# A number that reaches the loss along two paths

COMBINATIONS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "y1 + y2": lambda y1, y2: y1 + y2,
    "y1 · y2": lambda y1, y2: y1 * y2,
    "max(y1, y2)": torch.maximum,
    "sin(y1) · y2": lambda y1, y2: torch.sin(y1) * y2,
}
"""What a loss may make of y1 and y2. The slider leaves out x = 0, a tie, where the maximum has no gradient."""


@dataclass(frozen=True)
class Paths:
    """A number, its two paths to the loss, and the gradients on them, as autograd has them."""

    x: float
    weights: tuple[float, float]
    values: list[float]
    loss: float
    upstream: list[float]
    contributions: list[float]
    total: float


def compute_paths(loss: str, x: int) -> Paths:
    """Let autograd go through the branch: once with one x for both paths, once with an x for each."""
    weights = (2.0, 5.0)
    shared = torch.tensor(float(x), requires_grad=True)
    own = [torch.tensor(float(x), requires_grad=True) for _path in weights]
    torch.autograd.backward(COMBINATIONS[loss](*(shared * weight for weight in weights)))
    values = [each * weight for each, weight in zip(own, weights, strict=True)]
    for value in values:
        value.retain_grad()
    result = COMBINATIONS[loss](*values)
    torch.autograd.backward(result)
    return Paths(
        x=float(x),
        weights=weights,
        values=[value.item() for value in values],
        loss=result.item(),
        upstream=[_gradient(value) for value in values],
        contributions=[_gradient(each) for each in own],
        total=_gradient(shared),
    )


def _gradient(tensor: Tensor) -> float:
    assert tensor.grad is not None
    return tensor.grad.item()


def draw_paths(paths: Paths) -> Drawing:
    """The branching graph."""
    return diagrams.branches(
        paths.x, paths.weights, paths.values, paths.loss, paths.upstream, paths.contributions, paths.total
    )


def paths() -> Shell:
    """Choose the loss and x: what comes back along each path, and what is the gradient of x?"""
    return Shell(
        compute_paths,
        draw_paths,
        {
            "loss": _choice(_("loss"), tuple(COMBINATIONS), "y1 · y2"),
            "x": _ChoiceSlider(options=(-2, -1, 1, 2, 3, 4), value=3, description="x", **_LOOK),
        },
    )


# f, left out or applied too often


def compute_copies(times: int, ranks: int) -> tpviz.Run:
    """Run the column layer's backward with so many copy_to_region in front of it."""

    def program(comm: tpviz.Communicator) -> Tensor:
        x = X.clone().requires_grad_()
        copied: Tensor = x
        for _time in range(times):
            copied = tpviz.copy_to_region(copied, comm)
        torch.autograd.backward(copied @ tpviz.shard(W, 1, comm), tpviz.shard(dY, 1, comm))
        assert x.grad is not None
        return x.grad

    return tpviz.run(program, ranks=ranks)


def draw_copies(run: tpviz.Run) -> Drawing:
    """Each rank's dX beside the true one."""
    return diagrams.compared(run, dY @ W.T, name="dX")


def copies() -> Shell:
    """Choose how often f stands in front of the layer, and the number of ranks: what is wrong with dX?"""
    return Shell(
        compute_copies,
        draw_copies,
        {"times": _choice(_("number of f"), (0, 1, 2, 3), 0), "ranks": _choice(_("ranks"), (2, 4), 2)},
    )


# Both layers, there and back


def _column_layer(comm: tpviz.Communicator) -> dict[str, Tensor | None]:
    x, w = X.clone().requires_grad_(), tpviz.shard(W, 1, comm).requires_grad_()
    y, gradient = tpviz.copy_to_region(x, comm) @ w, tpviz.shard(dY, 1, comm)
    torch.autograd.backward(y, gradient)
    return {"X": x, "Y": y, "dY": gradient, "G": gradient @ w.T, "dX": x.grad, "dW": w.grad}


def _row_layer(comm: tpviz.Communicator) -> dict[str, Tensor | None]:
    x, w = tpviz.shard(X, 1, comm).requires_grad_(), tpviz.shard(W, 0, comm).requires_grad_()
    z = x @ w
    y = tpviz.reduce_from_region(z, comm)
    torch.autograd.backward(y, dY)
    return {"X": x, "Z": z, "Y": y, "dY": dY, "dX": x.grad, "dW": w.grad}


def compute_both_layers(ranks: int) -> tuple[tpviz.Run, tpviz.Run]:
    """Run the column layer and the row layer, forward and backward."""
    return tpviz.run(_column_layer, ranks=ranks), tpviz.run(_row_layer, ranks=ranks)


def draw_both_layers(runs: tuple[tpviz.Run, tpviz.Run]) -> Drawing:
    """The ways of the tensors, side by side."""
    wholes = {"X": X, "Y": X @ W, "Z": X @ W, "dY": dY, "G": dY @ W.T, "dX": dY @ W.T}
    return diagrams.backward_pair(*runs, wholes)


def both_layers() -> Shell:
    """Choose the number of ranks: what crosses between them, in the column layer and in the row layer?"""
    return Shell(compute_both_layers, draw_both_layers, {"ranks": _choice(_("ranks"), (2, 4), 2)})


# A mesh


def compute_mesh(ranks: int, tp: int) -> tuple[tpviz.Run, int]:
    """Train one layer for a step on a mesh, on 8 samples: its rows cut W, its columns cut the samples."""
    samples, upstream = torch.cat([X4, X4.flip(0)]), torch.cat([dY4, dY4.flip(0)])

    def program(comm: tpviz.Communicator) -> Tensor:
        tp_group, dp_group = comm.split(comm.rank // tp), comm.split(comm.rank % tp)
        x = tpviz.shard(samples, 0, dp_group).requires_grad_()
        gradient = tpviz.shard(tpviz.shard(upstream, 0, dp_group), 1, tp_group)
        w = tpviz.shard(W, 1, tp_group).requires_grad_()
        torch.autograd.backward(tpviz.copy_to_region(x, tp_group) @ w, gradient)
        assert w.grad is not None
        return dp_group.all_reduce(w.grad, phase="gradients")

    return tpviz.run(program, ranks=ranks), tp


def draw_mesh(found: tuple[tpviz.Run, int]) -> Drawing:
    """The mesh, and what its rows and its columns sent."""
    return diagrams.mesh(*found)


def mesh() -> Shell:
    """Choose how many ranks there are, and how many share one copy of the layer: who sends what to whom?"""
    return Shell(
        compute_mesh, draw_mesh, {"ranks": _choice(_("ranks"), (4, 8), 4), "tp": _choice(_("TP group"), (1, 2, 4), 2)}
    )


# DDP and the stages of ZeRO


def _sharded_step(comm: tpviz.Communicator, stage: int) -> dict[str, Tensor]:
    """A step of momentum SGD on the running example's rows: what this rank keeps after it."""
    x, upstream = tpviz.shard(X4, 0, comm), tpviz.shard(dY4, 0, comm)
    w = comm.all_gather(tpviz.shard(W, 0, comm), dim=0, phase="forward") if stage == 3 else W
    own = x.T @ (x @ w - upstream)
    if stage == 0:
        gradient = comm.all_reduce(own, phase="gradients")
        momentum = gradient.clone()
        return {"W": W - momentum, "dW": gradient, "M": momentum}
    if stage == 3:
        comm.all_gather(tpviz.shard(W, 0, comm), dim=0, phase="backward")
    rows = comm.reduce_scatter(own, dim=0, phase="gradients")
    momentum = rows.clone()
    updated = tpviz.shard(W, 0, comm) - momentum
    weight = updated if stage == 3 else comm.all_gather(updated, dim=0)
    return {"W": weight, "dW": own if stage == 1 else rows, "M": momentum}


def compute_zero(stage: int, ranks: int) -> tpviz.Run:
    """Run one training step of the layer on 4 rows: stage 0 is DDP."""
    return tpviz.run(_sharded_step, ranks=ranks, args=(stage,))


def draw_zero(run: tpviz.Run) -> Drawing:
    """What each rank keeps of the weight, its gradient and the momentum."""
    gradient = X4.T @ (X4 @ W - dY4)
    return diagrams.kept(run, {"W": W - gradient, "dW": gradient, "M": gradient})


def zero() -> Shell:
    """Choose a stage of ZeRO and the number of ranks: what does each rank keep?"""
    stages = [(_("DDP"), 0), *((f"ZeRO-{stage}", stage) for stage in (1, 2, 3))]
    return Shell(
        compute_zero, draw_zero, {"stage": _choice(_("stage"), stages, 1), "ranks": _choice(_("ranks"), (2, 4), 2)}
    )


# A function of partial sums

FUNCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "ReLU": torch.relu,
    "×2": lambda z: 2 * z,
    "+10": lambda z: z + 10,
    "square": torch.square,
}
_LARGEST = 4


@dataclass(frozen=True)
class Addends:
    """A function on partial sums: how far f(a) + f(b) is from f(a + b), and one pair worked out."""

    function: str
    errors: Tensor
    point: tuple[int, int]
    values: list[float]


def compute_addends(function: str, z0: int, z1: int) -> Addends:
    """Let two ranks apply the function to each pair of addends from -4 to 4, and once to the sum."""
    f = FUNCTIONS[function]
    numbers = torch.arange(-_LARGEST, _LARGEST + 1.0)

    def addends(comm: tpviz.Communicator) -> Tensor:
        """A row for each b, a column for each a."""
        grid = numbers if comm.rank == 0 else numbers[:, None]
        return grid.expand(len(numbers), len(numbers)).clone()

    apart = tpviz.run(lambda comm: comm.all_reduce(f(addends(comm)))).outputs[0]
    together = tpviz.run(lambda comm: f(comm.all_reduce(addends(comm)))).outputs[0]
    a, b = torch.tensor(float(z0)), torch.tensor(float(z1))
    values = [f(a), f(b), f(a) + f(b), a + b, f(a + b)]
    point = z0 + _LARGEST, z1 + _LARGEST
    return Addends(function, apart - together, point, [value.item() for value in values])


def draw_addends(found: Addends) -> Drawing:
    """The map, and the pair."""
    axis = range(-_LARGEST, _LARGEST + 1)
    return diagrams.addends_map(found.errors, axis, found.point, found.values, function=found.function)


def addends() -> Shell:
    """Choose a function and what two ranks hold of a number: is the function of the sum the sum of the functions?"""
    places = tuple(range(-_LARGEST, _LARGEST + 1))
    return Shell(
        compute_addends,
        draw_addends,
        {
            "function": _choice(_("function"), tuple(FUNCTIONS), "ReLU"),
            "z0": _choice("Z₀", places, 1),
            "z1": _choice("Z₁", places, -2),
        },
    )


# What TP costs

APART = DGX_H100._replace(name=N_("H100, one a node"), ranks_per_node=1)
"""The same cards without NVLink: each in a node of its own, with its share of a DGX H100's network."""
LINKED = {N_("A100"): DGX_A100, N_("H100"): DGX_H100, N_("PCIe box"): PCIE_BOX, N_("network"): APART}
"""By short names: a slider has little room beside it."""
DEGREES = (1, 2, 4, 8, 16)
HEAD = 64
"""The features of a head of attention."""


@dataclass(frozen=True)
class SpeedMap:
    """How many times as fast some ranks with TP are as one, over hidden sizes (columns) and tokens (rows)."""

    machine: Machine
    ranks: int
    hidden: NDArray[np.float64]
    tokens: NDArray[np.float64]
    speed_ups: NDArray[np.float64]


_HIDDEN, _TOKENS = 2.0 ** np.linspace(10, 15, 51), 2.0 ** np.linspace(7, 13, 49)


def compute_speed_map(machine: str, ranks: int) -> SpeedMap:
    """A layer's time on one rank divided by its time under TP, forward and backward, for one sequence of tokens."""
    model = Transformer(_HIDDEN, _HIDDEN / HEAD, 1, _TOKENS[:, None])  # type: ignore[arg-type]
    one, shared = (layer_seconds(model, LINKED[machine], Strategy(degree), 1).seconds for degree in (1, ranks))
    return SpeedMap(LINKED[machine], ranks, _HIDDEN, _TOKENS, np.asarray(one / shared))


def draw_speed_map(found: SpeedMap) -> Drawing:
    """The map, with three published models on it."""
    known = [(MEGATRON_2019[0].size, MEGATRON_2019[0].model)]
    known += [(f"{run.size:g}B", run.model) for run in MEGATRON_2021 if run.size in (7.5, 145.6)]
    marks = [charts.Mark(size, float(model.hidden), model.sequence) for size, model in known]
    return charts.speed_map(
        found.hidden.tolist(), found.tokens.tolist(), found.speed_ups, found.ranks, _(found.machine.name), marks
    )


def speed_map() -> Shell:
    """Choose a machine and a number of ranks: for which models are they faster than one rank?"""
    return Shell(
        compute_speed_map,
        draw_speed_map,
        {
            "machine": _choice(_("machine"), _named(LINKED), "H100"),
            "ranks": _choice(_("ranks"), DEGREES[1:], 8),
        },
    )


def _named(choices: dict[str, Any]) -> list[tuple[str, str]]:
    """Choices in the reader's language, with the names that compute knows them by."""
    return [(_(name), name) for name in choices]


@dataclass(frozen=True)
class LayerTimes:
    """What a layer's time is spent on, by TP degree."""

    machine: Machine
    hidden: int
    spent: list[Phase]


def compute_layer_times(hidden: int, machine: str) -> LayerTimes:
    """A layer forward and backward, for one sequence of 1024 tokens."""
    model = Transformer(hidden, hidden // HEAD, 1, 1024)
    spent = [layer_seconds(model, LINKED[machine], Strategy(degree), 1) for degree in DEGREES]
    return LayerTimes(LINKED[machine], hidden, spent)


def draw_layer_times(found: LayerTimes) -> Drawing:
    """A bar for each degree."""
    title = _("h = {hidden:,} and 1,024 tokens, {machine}")
    title = title.format(hidden=found.hidden, machine=_(found.machine.name))
    return charts.breakdowns(DEGREES, found.spent, title)


def layer_times() -> Shell:
    """Choose a hidden size and a machine: what is a layer's time spent on, on more and more ranks?"""
    return Shell(
        compute_layer_times,
        draw_layer_times,
        {
            "hidden": _choice(_("hidden size"), (1024, 2048, 4096, 8192), 1024),
            "machine": _choice(_("machine"), _named(LINKED), "H100"),
        },
    )


# FSDP, TP or both

CLUSTERS = {N_("8 H100"): (DGX_H100, 8), N_("64 H100"): (DGX_H100, 64), N_("64 PCIe"): (PCIE_BOX, 64)}
SIZES = {f"{run.size:g}B": run.model for run in MEGATRON_2021 if run.size < 200}


@dataclass(frozen=True)
class Ways:
    """A model on a cluster, spread in several ways."""

    size: str
    machine: Machine
    ranks: int
    found: list[charts.Way]


def compute_ways(size: str, cluster: str) -> Ways:
    """What each way keeps, sends and takes; each data rank works on one sequence, and recomputes attention's core."""
    machine, ranks = CLUSTERS[cluster]
    inside = machine.ranks_per_node
    spread = [(1, 0), (1, 1), (1, 2), (1, 3), (2, 3), *([(4, 3)] if ranks == inside else [(inside, 3)]), (inside, 0)]
    strategies = [Strategy(tensor, ranks // tensor, stage, recompute="selective") for tensor, stage in spread]
    return Ways(size, machine, ranks, [_way(SIZES[size], machine, each) for each in strategies])


def _way(model: Transformer, machine: Machine, strategy: Strategy) -> charts.Way:
    sent = sent_bytes(model, strategy, 1)
    return charts.Way(
        strategy_name(strategy),
        rank_bytes(model, strategy, 1),
        float(sent.tensor) / strategy.data,
        float(sent.data) / strategy.data,
        strategy.data / float(step(model, machine, strategy, 1).total),
    )


def draw_ways(ways: Ways) -> Drawing:
    """A row for each way."""
    title = _("{size} on {ranks} ranks: {nodes} × {machine}").format(
        size=ways.size, ranks=ways.ranks, nodes=ways.ranks // ways.machine.ranks_per_node, machine=_(ways.machine.name)
    )
    return charts.ways(ways.found, ways.machine.memory, title)


def ways() -> Shell:
    """Choose a model and a cluster: what does a rank keep and send under DP, ZeRO, FSDP, TP, and both?"""
    return Shell(
        compute_ways,
        draw_ways,
        {
            "size": _choice(_("model"), tuple(SIZES), "7.5B"),
            "cluster": _choice(_("cluster"), _named(CLUSTERS), "8 H100"),
        },
    )
