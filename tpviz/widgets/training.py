"""Widgets of a training step on many ranks: a mesh, and the stages of ZeRO (widgets)."""

import torch
from torch import Tensor

import tpviz
from tpviz import diagrams
from tpviz.diagrams import Drawing
from tpviz.example import X4, W, dY4
from tpviz.i18n import _
from tpviz.widgets.shell import Shell, choice

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
        compute_mesh, draw_mesh, {"ranks": choice(_("ranks"), (4, 8), 4), "tp": choice(_("TP group"), (1, 2, 4), 2)}
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
        compute_zero, draw_zero, {"stage": choice(_("stage"), stages, 1), "ranks": choice(_("ranks"), (2, 4), 2)}
    )
