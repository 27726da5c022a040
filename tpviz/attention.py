"""``ParallelAttention``: self-attention, its heads cut over the ranks (layers)."""

from __future__ import annotations

import math
from typing import Any, Self

import torch
from torch import Tensor, nn

from tpviz.communicator import Communicator
from tpviz.dropout import DropoutStreams, ParallelDropout
from tpviz.fused import QKVParallelLinear
from tpviz.i18n import _
from tpviz.layers import RowParallelLinear


class ParallelAttention(nn.Module):
    """Self-attention over whole heads: rank i computes the outputs of its heads, and its partial sum of the projection.

    Forward sends one all-reduce, of the partial sums of Y; backward one, of the contributions to dX; each of X's size.
    ``sequence_parallel``: an all-gather of X and a reduce-scatter of Y forward, and the same two backward. Between the
    two layers nothing is sent, since no head needs another one. Where ``kv_heads`` are fewer than ranks, backward sends
    two small all-reduces more, of the gradients of shared rows of ``qkv`` (``QKVParallelLinear``).

    Shapes, with h = ``hidden``, a = ``heads``, g = ``kv_heads`` (a by default), d = h/a, n ranks:
        ``x`` (sequence, batch, h), replicated, and so is the result; under ``sequence_parallel`` both are shards along
        dimension 0, but each query sees the keys of all rows.
        ``qkv.weight`` ((a/n + 2·max(g/n, 1))·d, h), cut by head; ``projection.weight`` (h, h/n).

    ``causal``: a row sees the rows up to its own. ``dropout`` acts on the attention's weights, a shard, so it draws
    from ``streams.per_rank``; it needs ``streams``. ``ValueError``: heads that do not divide h, or that ranks do
    not divide (``QKVParallelLinear``).

    Initialisation, ``keep_gathered`` and ``device``: see ``ColumnParallelLinear``.

    Sources: Megatron-LM 2019, arXiv 1909.08053, section 3, and ``megatron/core/transformer/attention.py``; grouped
    queries: Ainslie et al. 2023, arXiv 2305.13245.
    """

    def __init__(
        self,
        hidden: int,
        heads: int,
        comm: Communicator,
        kv_heads: int | None = None,
        bias: bool = True,
        causal: bool = True,
        dropout: float = 0.0,
        streams: DropoutStreams | None = None,
        sequence_parallel: bool = False,
        keep_gathered: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        kv_heads = heads if kv_heads is None else kv_heads
        if hidden % heads:
            message = _("hidden={hidden} and heads={heads}: each head takes as many features.")
            raise ValueError(message.format(hidden=hidden, heads=heads))
        self.causal = causal
        options: dict[str, Any] = {"sequence_parallel": sequence_parallel, "device": device, "dtype": dtype}
        counts = {"heads": heads, "kv_heads": kv_heads, "bias": bias, "keep_gathered": keep_gathered}
        self.qkv = QKVParallelLinear(hidden, (heads + 2 * kv_heads) * (hidden // heads), comm, **counts, **options)
        self.projection = RowParallelLinear(hidden, hidden, comm, bias, **options)
        self.dropout = parallel_dropout(dropout, streams, sharded=True)

    @classmethod
    def from_linears(
        cls,
        qkv: nn.Linear,
        projection: nn.Linear,
        comm: Communicator,
        heads: int,
        kv_heads: int | None = None,
        **options: Any,
    ) -> Self:
        """Return the attention that whole layers are: ``qkv``'s rows are those of Q, then K, then V.

        Each rank copies its slices; nothing is sent. ``options`` are the constructor's, without sizes and ``bias``.
        """
        sizes: dict[str, Any] = {"kv_heads": kv_heads, "bias": qkv.bias is not None, "dtype": qkv.weight.dtype}
        attention = cls(qkv.in_features, heads, comm, **sizes, **options, device="meta")
        row = {"sequence_parallel": options.get("sequence_parallel", False)}
        column = row | {"keep_gathered": options.get("keep_gathered", True)}
        attention.qkv = QKVParallelLinear.from_linear(qkv, comm, heads=heads, kv_heads=kv_heads, **column)
        attention.projection = RowParallelLinear.from_linear(projection, comm, **row)
        return attention

    @classmethod
    def from_multihead_attention(cls, whole: nn.MultiheadAttention, comm: Communicator, **options: Any) -> Self:
        """Return what ``whole`` computes as self-attention; see ``from_linears``.

        Its ``dropout`` is taken from ``options``, and its ``batch_first`` left out: x is (sequence, batch, h) here.
        ``ValueError`` where its keys have another width, or biases that are rows of their own.
        """
        if whole.in_proj_weight is None or whole.bias_k is not None or whole.add_zero_attn:
            raise ValueError(_("Only self-attention is cut: one in_proj_weight, no bias_k, no add_zero_attn."))
        qkv = nn.Linear(whole.embed_dim, 3 * whole.embed_dim, device="meta", dtype=whole.in_proj_weight.dtype)
        qkv.weight, qkv.bias = whole.in_proj_weight, whole.in_proj_bias
        return cls.from_linears(qkv, whole.out_proj, comm, whole.num_heads, **options)

    def forward(self, x: Tensor) -> Tensor:
        """Return Y, or under ``sequence_parallel`` this rank's rows of it."""
        if x.ndim != 3:
            raise ValueError(_("x is (sequence, batch, hidden); this one has {ndim} dimensions.").format(ndim=x.ndim))
        q, k, v = self.qkv.split_heads(self.qkv(x))
        if (group := q.shape[1] // k.shape[1]) > 1:
            k, v = k.repeat_interleave(group, dim=1), v.repeat_interleave(group, dim=1)
        scores = (q / math.sqrt(q.shape[-1])) @ k.transpose(-2, -1)
        if self.causal:
            later = torch.ones(scores.shape[-2:], dtype=torch.bool, device=x.device).triu(1)
            scores = scores.masked_fill(later, -math.inf)
        context = self.dropout(scores.softmax(dim=-1)) @ v
        return self.projection(context.permute(2, 0, 1, 3).flatten(2))  # type: ignore[no-any-return]


def parallel_dropout(p: float, streams: DropoutStreams | None, sharded: bool) -> nn.Module:
    """Return a ``ParallelDropout``, or with p = 0 nothing at all; refuse dropout without streams."""
    if p == 0:
        return nn.Identity()
    if streams is None:
        raise ValueError(_("dropout={p} needs streams=DropoutStreams(seed, comm), to draw from.").format(p=p))
    return ParallelDropout(p, streams, sharded)
