"""A widget of attention's heads: which rank has which of a fused weight? (widgets)."""

from dataclasses import dataclass

import torch
from torch import Tensor

import tpviz
from tpviz import diagrams
from tpviz.diagrams import Drawing
from tpviz.fused import QKVParallelLinear
from tpviz.i18n import _
from tpviz.widgets.shell import RANKS, Shell, choice

HEADS = 8
"""The heads of Q in the widget."""


@dataclass(frozen=True)
class Heads:
    """Which columns of a fused QKV weight each rank takes for Q, K and V."""

    run: tpviz.Run
    kv_heads: int


def compute_heads(ranks: int, kv_heads: int) -> Heads:
    """Cut a weight of heads of two columns by head, its columns numbered."""
    whole = torch.nn.Linear(1, 2 * (HEADS + 2 * kv_heads), bias=False)
    whole.weight.data = torch.arange(float(whole.out_features))[:, None]

    def taken(comm: tpviz.Communicator) -> tuple[Tensor, ...]:
        layer = QKVParallelLinear.from_linear(whole, comm, heads=HEADS, kv_heads=kv_heads)
        numbers = layer(torch.ones(1, 1, 1)).detach()
        return tuple(part.flatten() for part in layer.split_heads(numbers))

    return Heads(tpviz.run(taken, ranks=ranks), kv_heads)


def draw_heads(found: Heads) -> Drawing:
    """The whole weight and a lane for each rank."""
    title = _("{heads} heads of Q, {kv_heads} of K and of V").format(heads=HEADS, kv_heads=found.kv_heads)
    return diagrams.qkv_cuts({title: found.run}, HEADS, found.kv_heads)


def heads() -> Shell:
    """Choose the number of ranks and of heads of K and V: which rank holds which heads?"""
    return Shell(
        compute_heads,
        draw_heads,
        {"ranks": choice(_("ranks"), RANKS[1:], 4), "kv_heads": choice(_("K, V heads"), (8, 4, 2, 1), 2)},
    )
