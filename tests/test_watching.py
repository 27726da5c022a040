"""Watching: what a PyTorch plan sends, by module, phase and line, agrees with PyTorch's own counter and with ours."""

import functools
import inspect
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from gloo_ranks import on_gloo
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard
from torch.distributed.tensor.debug import CommDebugMode
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)
from torch.utils.checkpoint import checkpoint

import tpviz
from tpviz.layers import ColumnParallelLinear, RowParallelLinear
from tpviz.watching import Place, Watched, pretended_ranks, watch

BATCH, LENGTH, WIDTH, HIDDEN = 2, 8, 16, 32
WHOLE = BATCH * LENGTH * WIDTH * 4
"""The bytes of one activation."""


class MLP(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(WIDTH, HIDDEN)
        self.down = nn.Linear(HIDDEN, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        hidden = torch.relu(self.up(x))
        return self.down(hidden)


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.out = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (each(x).unflatten(-1, (-1, 2)).transpose(1, 2) for each in (self.q, self.k, self.v))
        heads = nn.functional.scaled_dot_product_attention(q, k, v)
        return self.out(heads.transpose(1, 2).flatten(-2))


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.attention = Attention()
        self.mlp = MLP()

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm(x))
        return x + self.mlp(x)


class Stack(nn.Module):
    def __init__(self, layers: int, block: Callable[[], nn.Module] = Block, checkpointed: bool | None = None) -> None:
        super().__init__()
        self.layers = nn.ModuleList(block() for _ in range(layers))
        self.reentrant = checkpointed

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x) if self.reentrant is None else checkpoint(layer, x, use_reentrant=self.reentrant)  # type: ignore[assignment]
        return x


def rows() -> Shard:
    return Shard(1)


PAIR = {"up": ColwiseParallel, "down": RowwiseParallel}
SEQUENCE: Mapping[str, Callable[[], Any]] = {
    "norm": SequenceParallel,
    "attention": lambda: PrepareModuleInput(input_layouts=rows(), desired_input_layouts=Replicate()),
    **{f"attention.{name}": ColwiseParallel for name in "qkv"},
    "attention.out": lambda: RowwiseParallel(output_layouts=rows()),
    "mlp.up": lambda: ColwiseParallel(input_layouts=rows()),
    "mlp.down": lambda: RowwiseParallel(output_layouts=rows()),
}
HEADS: Mapping[str, Callable[[], Any]] = {
    **{f"attention.{name}": ColwiseParallel for name in "qkv"},
    "attention.out": RowwiseParallel,
    **{f"mlp.{name}": style for name, style in PAIR.items()},
}
Row = tuple[str, str, dict[str, int], int]
# A model and its plan, and by hand: each module's and phase's collectives and the bytes of one of its whole arrays.
PLANS: dict[str, tuple[Callable[[], nn.Module], Mapping[str, Callable[[], Any]], list[Row]]] = {
    "pair": (
        MLP,
        PAIR,
        [("up", "backward", {"all_reduce": 1}, WHOLE), ("down", "forward", {"all_reduce": 1}, WHOLE)],
    ),
    "gathered": (
        MLP,
        {"up": lambda: ColwiseParallel(output_layouts=Replicate())},
        [
            ("up", "forward", {"all_gather": 1}, 2 * WHOLE),
            ("up", "backward", {"all_reduce": 1}, WHOLE),
        ],
    ),
    "wrong: both split by columns": (
        MLP,
        {"up": ColwiseParallel, "down": ColwiseParallel},
        # down expects a whole input, and is given a shard as if it were one: nothing is gathered, and nothing reduced.
        [("up", "backward", {"all_reduce": 1}, WHOLE), ("down", "backward", {"all_reduce": 1}, WHOLE)],
    ),
    "attention": (
        Block,
        HEADS,
        [
            *((f"attention.{name}", "backward", {"all_reduce": 1}, WHOLE) for name in "qkv"),
            ("attention.out", "forward", {"all_reduce": 1}, WHOLE),
            ("mlp.up", "backward", {"all_reduce": 1}, WHOLE),
            ("mlp.down", "forward", {"all_reduce": 1}, WHOLE),
        ],
    ),
    "sequence": (
        Block,
        SEQUENCE,
        [
            ("attention", "forward", {"all_gather": 1}, WHOLE),
            ("attention", "backward", {"reduce_scatter": 1}, WHOLE),
            ("attention.out", "forward", {"reduce_scatter": 1}, WHOLE),
            ("attention.out", "backward", {"all_gather": 1}, WHOLE),
            ("mlp.up", "forward", {"all_gather": 1}, WHOLE),
            ("mlp.up", "backward", {"reduce_scatter": 1}, WHOLE),
            ("mlp.down", "forward", {"reduce_scatter": 1}, WHOLE),
            ("mlp.down", "backward", {"all_gather": 1}, WHOLE),
        ],
    ),
}
