"""Widgets of the backward pass: contributions, the paths that they come along, and f (widgets)."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

import tpviz
from tpviz import diagrams
from tpviz.diagrams import Drawing
from tpviz.example import W, X, dY
from tpviz.i18n import _
from tpviz.widgets.shell import RANKS, Shell, choice, number

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
            "row": number(_("row of dX"), X.shape[0] - 1, 0),
            "column": number(_("column of dX"), X.shape[1] - 1, 0),
            "ranks": choice(_("ranks"), RANKS, 2),
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
            "loss": choice(_("loss"), tuple(COMBINATIONS), "y1 · y2"),
            "x": choice("x", (-2, -1, 1, 2, 3, 4), 3),
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
        {"times": choice(_("number of f"), (0, 1, 2, 3), 0), "ranks": choice(_("ranks"), (2, 4), 2)},
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
    return Shell(compute_both_layers, draw_both_layers, {"ranks": choice(_("ranks"), (2, 4), 2)})
