"""``DenseTransformer``: the model of ``blocks`` made of PyTorch's own modules, on one device: the reference (layers).

Parameters have the same names and whole shapes, so that its ``state_dict()`` is what ``load_whole_state_dict`` cuts.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from tpviz.blocks import TransformerConfig
from tpviz.i18n import _

_NORMS = {"layer": nn.LayerNorm, "rms": nn.RMSNorm}
_EPS = 1e-5


class DenseTransformer(nn.Module):
    """The unsharded language model of a configuration; knows no ranks, and sends nothing.

    Shapes: ``tokens`` (sequence, batch), integers; the logits (sequence, batch, vocabulary). Start and errors are
    ``ParallelTransformer``'s. ``config.sequence_parallel`` and ``keep_gathered`` say nothing here; ``ValueError`` for
    dropout, whose masks would be drawn in another order than the ranks'.

    Source: Radford et al. 2019 (GPT-2); PyTorch's ``scaled_dot_product_attention``.
    """

    def __init__(self, config: TransformerConfig, device: torch.device | str | None = None) -> None:
        super().__init__()
        if config.dropout:
            raise ValueError(_("dropout={p}: the dense reference is without dropout.").format(p=config.dropout))
        place: dict[str, Any] = {"device": device, "dtype": config.dtype}
        self.embedding = nn.Embedding(config.vocabulary, config.hidden, **place)
        self.positions = nn.Embedding(config.sequence, config.hidden, **place)
        for table in (self.embedding, self.positions):
            nn.init.normal_(table.weight, std=config.init_std)
        self.layers = nn.ModuleList(_Layer(config, place) for _index in range(config.layers))
        self.norm = _NORMS[config.norm](config.hidden, eps=_EPS, **place)
        self.output = None if config.tied else nn.Linear(config.hidden, config.vocabulary, bias=False, **place)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return the logits of all words."""
        x = self.embedding(tokens) + self.positions.weight[: len(tokens)].unsqueeze(1)
        for layer in self.layers:
            x = layer(x)
        last = self.embedding if self.output is None else self.output
        return functional.linear(self.norm(x), last.weight)

    def loss(self, tokens: Tensor, target: Tensor) -> Tensor:
        """Return the mean cross-entropy of the words that follow: ``target`` (sequence, batch)."""
        return functional.cross_entropy(self(tokens).flatten(0, 1), target.flatten())


class _Layer(nn.Module):
    """x + Attention(norm(x)), then x + MLP(norm(x))."""

    def __init__(self, config: TransformerConfig, place: dict[str, Any]) -> None:
        super().__init__()
        self.attention_norm = _NORMS[config.norm](config.hidden, eps=_EPS, **place)
        self.attention = _Attention(config, place)
        self.mlp_norm = _NORMS[config.norm](config.hidden, eps=_EPS, **place)
        self.mlp = _MLP(config, place)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.attention_norm(x))
        return x + self.mlp(self.mlp_norm(x))  # type: ignore[no-any-return]


class _Attention(nn.Module):
    def __init__(self, config: TransformerConfig, place: dict[str, Any]) -> None:
        super().__init__()
        size, kv_heads = config.hidden // config.heads, config.kv_heads or config.heads
        self.causal, self.size = config.causal, size
        self.widths = [config.heads * size, kv_heads * size, kv_heads * size]
        self.qkv = nn.Linear(config.hidden, sum(self.widths), config.bias, **place)
        self.projection = nn.Linear(config.hidden, config.hidden, config.bias, **place)

    def forward(self, x: Tensor) -> Tensor:
        # Each (batch, heads, sequence, size).
        q, k, v = (
            part.unflatten(-1, (-1, self.size)).permute(1, 2, 0, 3) for part in self.qkv(x).split(self.widths, dim=-1)
        )
        attended = functional.scaled_dot_product_attention(q, k, v, is_causal=self.causal, enable_gqa=True)
        return self.projection(attended.permute(2, 0, 1, 3).flatten(2))  # type: ignore[no-any-return]


class _MLP(nn.Module):
    def __init__(self, config: TransformerConfig, place: dict[str, Any]) -> None:
        super().__init__()
        width = config.ffn_hidden or 4 * config.hidden
        self.gated = config.gated
        self.up = nn.Linear(config.hidden, 2 * width if config.gated else width, config.bias, **place)
        self.down = nn.Linear(width, config.hidden, config.bias, **place)

    def forward(self, x: Tensor) -> Tensor:
        if not self.gated:
            return self.down(functional.gelu(self.up(x)))  # type: ignore[no-any-return]
        gate, up = self.up(x).chunk(2, dim=-1)
        return self.down(functional.silu(gate) * up)  # type: ignore[no-any-return]
