"""Column-parallel matmuls of one X as one: gate and up of an MLP; Q, K and V of attention, cut by head (layers).

A fused weight is its parts, one below the other: [gate; up], [Q; K; V]. A contiguous cut would give one rank all of Q
and another all of V. So each part is cut by itself, and each rank has its share of every part. The names are vLLM's
(``vllm/model_executor/layers/linear.py``); Megatron-LM stores the rows in another order instead.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from tpviz.communicator import Communicator
from tpviz.i18n import _
from tpviz.layers import ColumnParallelLinear
from tpviz.operators import copy_to_region
from tpviz.parameters import equal_share


class _FusedColumnParallelLinear(ColumnParallelLinear):
    """A column layer of which each rank holds the rows of the whole weight that ``_rows`` says."""

    def _rows(self, rank: int) -> Tensor:
        """Return the numbers of the rows of the whole ``nn.Linear``'s weight that a rank holds, in its order."""
        raise NotImplementedError

    def own_part(self, name: str, whole: Tensor) -> Tensor:
        """Return this rank's rows of a whole weight or bias, in memory of its own."""
        return whole[self._rows(self.comm.rank).to(whole.device)]

    def whole_of(self, name: str, part: Tensor) -> Tensor:
        """Gather the ranks' rows, and put each in its place in the whole."""
        gathered = self.comm.all_gather(part, dim=0)
        rows = torch.cat([self._rows(rank) for rank in range(self.comm.world_size)])
        whole = gathered.new_empty(self.out_features, *gathered.shape[1:])
        whole[rows.to(whole.device)] = gathered
        return whole


class MergedColumnParallelLinear(_FusedColumnParallelLinear):
    """Y = X [W1 W2 ...] + b: column-parallel matmuls of one X, each of the parts cut by columns by itself.

    Shapes, with in = ``in_features``, ``sizes`` the parts' output features, n ranks:
        ``x`` (..., in), replicated; the result (..., Σ sizes/n): this rank's columns of each part, side by side.
        ``weight`` (Σ sizes/n, in); of the whole ``nn.Linear``, (Σ sizes, in), part below part.

    What is sent, the options and the initialisation are ``ColumnParallelLinear``'s. ``ValueError`` where the number of
    ranks does not divide each of the sizes, or where these do not add up to ``out_features``.

    Source: vLLM's ``MergedColumnParallelLinear``.
    """

    def __init__(
        self, in_features: int, out_features: int, comm: Communicator, *, sizes: Sequence[int], **options: Any
    ) -> None:
        if sum(sizes) != out_features:
            message = _("sizes={sizes} add up to {sum}, but out_features={out_features}.")
            raise ValueError(message.format(sizes=list(sizes), sum=sum(sizes), out_features=out_features))
        for index, size in enumerate(sizes):
            equal_share(f"sizes[{index}]", size, comm.world_size)
        self.sizes = tuple(sizes)
        super().__init__(in_features, out_features, comm, **options)

    def _rows(self, rank: int) -> Tensor:
        ranks = self.comm.world_size
        parts = torch.split(torch.arange(self.out_features), list(self.sizes))
        return torch.cat([part.chunk(ranks)[rank] for part in parts])


class QKVParallelLinear(_FusedColumnParallelLinear):
    """Q, K and V of one X, cut by head: each rank holds whole heads, of Q those that its heads of K and V serve.

    Shapes, with in = ``in_features``, a ``heads``, g ``kv_heads``, d the width of a head, n ranks, and k = max(g/n, 1):
        ``out_features`` (a + 2g)·d; ``x`` (..., in), replicated; the result (..., (a/n + 2k)·d), Q then K then V.
        ``weight`` ((a/n + 2k)·d, in); of the whole ``nn.Linear``, ((a + 2g)·d, in), Q's rows, then K's, then V's:
        the order of ``nn.MultiheadAttention.in_proj_weight``.

    Fewer heads of K and V than ranks (grouped-query attention, Ainslie et al. 2023, arXiv 2305.13245): r = n/g ranks
    hold the same head, and each brings the gradient of its own queries. The rows of weight and bias that they share
    pass through ``copy_to_region`` over these r ranks, so that backward adds the gradients up: one all-reduce for the
    weight, one for the bias. Else what is sent is ``ColumnParallelLinear``'s, as are options and initialisation.

    ``ValueError`` where n does not divide ``heads``, where neither of n and ``kv_heads`` divides the other, where
    ``kv_heads`` does not divide ``heads``, or where ``out_features`` is no whole number of heads.

    Source: Megatron-LM 2019 (arXiv 1909.08053), section 3; vLLM's ``QKVParallelLinear``.
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        comm: Communicator,
        *,
        heads: int,
        kv_heads: int | None = None,
        **options: Any,
    ) -> None:
        kv_heads, ranks = heads if kv_heads is None else kv_heads, comm.world_size
        check_heads(heads, kv_heads, ranks)
        self.head_size, rest = divmod(out_features, heads + 2 * kv_heads)
        if rest:
            message = _("out_features={out_features} is no multiple of heads + 2·kv_heads = {parts}.")
            raise ValueError(message.format(out_features=out_features, parts=heads + 2 * kv_heads))
        self.heads, self.kv_heads = heads, kv_heads
        self.own_heads, self.own_kv_heads = heads // ranks, max(kv_heads // ranks, 1)
        self.sharing = comm.split(comm.rank * kv_heads // ranks) if kv_heads < ranks else None
        """The ranks that hold the same head of K and V; None where each head has one rank."""
        super().__init__(in_features, out_features, comm, **options)

    def effective_parameters(self) -> tuple[Tensor, Tensor | None]:
        """Return weight and bias; the rows that ranks share so that their gradients are added up."""
        return self._added_up(self.weight), None if self.bias is None else self._added_up(self.bias)

    def counted_part(self, name: str, part: Tensor) -> Tensor:
        """Return Q's rows, and those of K and V on the first only of the ranks that share them."""
        counts_all = self.sharing is None or self.sharing.rank == 0
        return part if counts_all else part[: self.own_heads * self.head_size]

    def split_heads(self, y: Tensor) -> tuple[Tensor, ...]:
        """Return Q, K and V of a result (sequence, batch, ...), each (batch, this rank's heads, sequence, d)."""
        heads = y.view(*y.shape[:-1], -1, self.head_size).permute(1, 2, 0, 3)
        return torch.split(heads, [self.own_heads, self.own_kv_heads, self.own_kv_heads], dim=1)

    def _added_up(self, parameter: Tensor) -> Tensor:
        if self.sharing is None:
            return parameter
        queries = self.own_heads * self.head_size
        return torch.cat([parameter[:queries], copy_to_region(parameter[queries:], self.sharing)])

    def _rows(self, rank: int) -> Tensor:
        heads = torch.arange(self.out_features).view(-1, self.head_size)
        q, k, v = torch.split(heads, [self.heads, self.kv_heads, self.kv_heads])
        first, first_kv = rank * self.own_heads, rank * self.kv_heads // self.comm.world_size
        mine, shared = slice(first, first + self.own_heads), slice(first_kv, first_kv + self.own_kv_heads)
        return torch.cat([q[mine], k[shared], v[shared]]).flatten()


def check_heads(heads: int, kv_heads: int, ranks: int) -> None:
    """Refuse heads that cannot be cut over the ranks, or of which no whole number shares a head of K and V."""
    equal_share("heads", heads, ranks)
    if heads % kv_heads:
        message = _("heads={heads} and kv_heads={kv_heads}: as many heads of Q share each of K and V.")
        raise ValueError(message.format(heads=heads, kv_heads=kv_heads))
    if kv_heads % ranks and ranks % kv_heads:
        message = _("kv_heads={kv_heads} on {ranks} ranks: one of the two numbers must divide the other.")
        raise ValueError(message.format(kv_heads=kv_heads, ranks=ranks))
