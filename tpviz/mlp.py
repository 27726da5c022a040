"""``ParallelMLP``: a column layer, GELU or SwiGLU, a row layer (layers)."""

from __future__ import annotations

from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.nn import functional

from tpviz.communicator import Communicator
from tpviz.fused import MergedColumnParallelLinear
from tpviz.layers import ColumnParallelLinear, RowParallelLinear
from tpviz.parameters import equal_share


class ParallelMLP(nn.Module):
    """Y = GELU(X W_up) W_down, or with ``gated`` SwiGLU: Y = (SiLU(X W_gate) ∘ X W_up) W_down.

    Forward sends one all-reduce, of the partial sums of Y; backward one, of the contributions to dX; each of X's size.
    ``sequence_parallel``: an all-gather of X and a reduce-scatter of Y forward, and the same two backward.

    Shapes, with h = ``hidden``, f = ``ffn_hidden`` (4h by default), n ranks:
        ``x`` (..., h), replicated, and so is the result; under ``sequence_parallel`` both are shards along dimension 0.
        ``up.weight`` (f/n, h); gated: (2f/n, h), this rank's rows of gate, then of up; of the whole [gate; up].
        ``down.weight`` (h, f/n).

    ``keep_gathered``, initialisation and ``device``: see ``ColumnParallelLinear``. ``ValueError`` where n does not
    divide f.

    Sources: Megatron-LM 2019, arXiv 1909.08053, section 3, and ``megatron/core/transformer/mlp.py``; SwiGLU: Shazeer
    2020, arXiv 2002.05202.
    """

    def __init__(
        self,
        hidden: int,
        comm: Communicator,
        ffn_hidden: int | None = None,
        gated: bool = False,
        bias: bool = True,
        sequence_parallel: bool = False,
        keep_gathered: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        width = 4 * hidden if ffn_hidden is None else ffn_hidden
        equal_share("ffn_hidden", width, comm.world_size)
        self.gated = gated
        options: dict[str, Any] = {"sequence_parallel": sequence_parallel, "device": device, "dtype": dtype}
        first = options | {"bias": bias, "keep_gathered": keep_gathered}
        self.up: ColumnParallelLinear = (
            MergedColumnParallelLinear(hidden, 2 * width, comm, sizes=(width, width), **first)
            if gated
            else ColumnParallelLinear(hidden, width, comm, **first)
        )
        self.down = RowParallelLinear(width, hidden, comm, bias, **options)

    @classmethod
    def from_linears(
        cls, up: nn.Linear, down: nn.Linear, comm: Communicator, gate: nn.Linear | None = None, **options: Any
    ) -> Self:
        """Return the MLP that computes what the whole layers compute; with a ``gate`` it is gated.

        Each rank copies its slices; nothing is sent. ``options`` are ``sequence_parallel`` and ``keep_gathered``.
        """
        bias, gated = up.bias is not None, gate is not None
        sizes = {"ffn_hidden": up.out_features, "gated": gated, "bias": bias}
        mlp = cls(up.in_features, comm, **sizes, **options, device="meta", dtype=up.weight.dtype)  # type: ignore[arg-type]
        if gate is not None:
            mlp.up = MergedColumnParallelLinear.from_linear(
                stacked(gate, up), comm, sizes=(gate.out_features, up.out_features), **options
            )
        else:
            mlp.up = ColumnParallelLinear.from_linear(up, comm, **options)
        rows = options.get("sequence_parallel", False)
        mlp.down = RowParallelLinear.from_linear(down, comm, sequence_parallel=rows)
        return mlp

    def forward(self, x: Tensor) -> Tensor:
        """Return Y, or under ``sequence_parallel`` this rank's rows of it."""
        y = self.up(x)
        if self.gated:
            gate, up = y.chunk(2, dim=-1)
            return self.down(functional.silu(gate) * up)  # type: ignore[no-any-return]
        return self.down(functional.gelu(y))  # type: ignore[no-any-return]


def stacked(*layers: nn.Linear) -> nn.Linear:
    """Return whole layers of one X as one: their weights, and biases, one below the other."""
    first, bias = layers[0], layers[0].bias is not None
    sizes = first.in_features, sum(layer.out_features for layer in layers)
    whole = nn.Linear(*sizes, bias, device="meta", dtype=first.weight.dtype)
    for name in ("weight", "bias") if bias else ("weight",):
        rows = torch.cat([getattr(layer, name).detach() for layer in layers])
        whole.register_parameter(name, nn.Parameter(rows))
    return whole
