"""The two ends of a language model, cut over the vocabulary: its embedding, and the loss of its logits (layers)."""

from __future__ import annotations

from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn
from torch.nn import functional

from tpviz.communicator import Communicator
from tpviz.i18n import _
from tpviz.layers import column_linear
from tpviz.operators import reduce_from_region, reduce_scatter_to_region
from tpviz.parameters import ShardedModule, equal_share

REDUCTIONS = ("mean", "sum", "none")


class VocabParallelEmbedding(ShardedModule):
    """``nn.Embedding``, its rows, the words, cut over the ranks: each looks up its own words, and adds nothing else.

    Forward sends one all-reduce, of the ranks' rows, of which one is not 0 (``reduce_from_region``, g); backward
    nothing: every rank holds the whole gradient, and takes the rows of its words. ``sequence_parallel``: a
    reduce-scatter along dimension 0 forward, so that the result is this rank's rows, and an all-gather backward.

    Shapes, with V = ``num_embeddings``, h = ``embedding_dim``, n ranks:
        ``tokens``, integers of any shape (...), replicated; the result (..., h), replicated.
        ``weight`` (V/n, h), a shard along 0 of ``nn.Embedding``'s.

    ``padding_idx``: the word, of all V, whose gradient stays 0; one rank has it. ``ValueError`` where n does not divide
    V (Megatron-LM pads V, to a multiple of 128·n); ``IndexError`` for a token that no rank has, whose row would be 0.

    The whole table is initialised as ``nn.Embedding`` does, then sliced (see ``ColumnParallelLinear``).

    Source: Megatron-LM 2019, arXiv 1909.08053, section 3; ``VocabParallelEmbedding`` in
    ``megatron/core/tensor_parallel/layers.py``.
    """

    shard_dims: ClassVar = {"weight": 0}

    weight: nn.Parameter

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        comm: Communicator,
        padding_idx: int | None = None,
        sequence_parallel: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        share = equal_share("num_embeddings", num_embeddings, comm.world_size)
        device = comm.device if device is None else device
        whole = nn.Embedding(num_embeddings, embedding_dim, padding_idx, device=device, dtype=dtype)
        self.comm = comm
        self.num_embeddings, self.embedding_dim, self.padding_idx = num_embeddings, embedding_dim, whole.padding_idx
        self.sequence_parallel = sequence_parallel
        self.first = share * comm.rank
        """The first word that this rank has."""
        self._keep(whole, device)

    def _keep(self, whole: nn.Embedding, device: torch.device | str) -> None:
        part = self.own_part("weight", whole.weight.detach())
        self.weight = nn.Parameter(part.to(device), whole.weight.requires_grad)

    @classmethod
    def from_embedding(cls, embedding: nn.Embedding, comm: Communicator, **options: Any) -> Self:
        """Return the layer that computes what ``embedding``, the same on every rank, computes; nothing is sent."""
        sizes = embedding.num_embeddings, embedding.embedding_dim
        options |= {"padding_idx": embedding.padding_idx, "device": "meta", "dtype": embedding.weight.dtype}
        layer = cls(*sizes, comm, **options)
        layer._keep(embedding, comm.device)
        return layer

    def forward(self, tokens: Tensor) -> Tensor:
        """Return the tokens' rows, or under ``sequence_parallel`` those of this rank's part of dimension 0."""
        _check_words("tokens", tokens, self.num_embeddings)
        local, others = _own_words(tokens, self.first, len(self.weight))
        padding = None if self.padding_idx is None else self.padding_idx - self.first
        if padding is not None and not 0 <= padding < len(self.weight):
            padding = None
        # Another rank's word is looked up as word 0 here, and its row then masked, with its gradient.
        rows = functional.embedding(local, self.weight, padding).masked_fill(others.unsqueeze(-1), 0)
        if self.sequence_parallel:
            return reduce_scatter_to_region(rows, self.comm, dim=0)
        return reduce_from_region(rows, self.comm)

    def logits(self, x: Tensor, keep_gathered: bool = True) -> Tensor:
        """Return x · weightᵀ: the logits of this rank's words, where the output layer is tied to the embedding.

        ``x`` (..., h), replicated (under ``sequence_parallel`` this rank's rows); the result (..., V/n), a shard of the
        last dimension, of all rows. Forward sends nothing (an all-gather of rows); backward an all-reduce of dX (a
        reduce-scatter). ``keep_gathered``: see ``ColumnParallelLinear``. Source: Megatron-LM, ``parallel_lm_logits``.
        """
        return column_linear(x, self.weight, None, self.comm, self.sequence_parallel, keep_gathered)

    def extra_repr(self) -> str:
        """Return the sizes of the whole table, and which rank's part this is."""
        names = ("num_embeddings", "embedding_dim", "padding_idx", "sequence_parallel")
        shown = {name: getattr(self, name) for name in names}
        shown |= {"rank": self.comm.rank, "world_size": self.comm.world_size}
        return ", ".join(f"{name}={value}" for name, value in shown.items())


def vocab_parallel_cross_entropy(
    logits: Tensor,
    target: Tensor,
    comm: Communicator,
    ignore_index: int = -100,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> Tensor:
    """Return ``functional.cross_entropy`` of logits whose last dimension, the vocabulary, is cut over the ranks.

    Shapes, with V words, n ranks: ``logits`` (..., V/n), a shard of the last dimension, of the same size on every rank;
    ``target`` (...), integers, replicated: words of all V, or ``ignore_index``. The result, replicated, is a scalar, or
    with ``reduction="none"`` (...). Its loss counts once. Half precision is computed in float32.

    Forward sends two all-reduces: the maximum of each row; then, as one, each row's sum of exponentials and the
    target's logit, which one rank has (and with ``label_smoothing`` the sum of logits too). The logits themselves, V
    for each row, are never gathered. Backward sends nothing.

    ``label_smoothing`` ε is PyTorch's: the target is 1 - ε of its word, and ε/V of every word, of *all* V. ``mean`` is
    over the targets that are not ignored. ``IndexError`` for a target that is no word.

    Source: Megatron-LM 2019, arXiv 1909.08053, section 3; ``megatron/core/tensor_parallel/cross_entropy.py``, whose
    three all-reduces ``megatron/core/fusions/fused_cross_entropy.py`` makes two.
    """
    if reduction not in REDUCTIONS:
        message = _("reduction={reduction!r} is unknown; expected one of {known}.")
        raise ValueError(message.format(reduction=reduction, known=", ".join(REDUCTIONS)))
    share = logits.shape[-1]
    words = share * comm.world_size
    ignored = target == ignore_index
    _check_words("target", target[~ignored], words)
    if logits.dtype in (torch.float16, torch.bfloat16):
        logits = logits.float()

    largest = comm.all_reduce(logits.detach().amax(dim=-1), op="max", phase="forward")
    shifted = logits - largest.unsqueeze(-1)
    local, others = _own_words(target, share * comm.rank, share)
    chosen = shifted.gather(-1, local.unsqueeze(-1)).squeeze(-1).masked_fill(others, 0)
    shares = [shifted.exp().sum(dim=-1), chosen] + ([shifted.sum(dim=-1)] if label_smoothing else [])
    exponentials, chosen, *sums = reduce_from_region(torch.stack(shares), comm).unbind()

    log_sum = exponentials.log()
    loss = log_sum - chosen
    if label_smoothing:
        loss = (1 - label_smoothing) * loss + label_smoothing * (log_sum - sums[0] / words)
    loss = loss.masked_fill(ignored, 0)
    if reduction == "none":
        return loss
    return loss.sum() / (~ignored).sum() if reduction == "mean" else loss.sum()


def _own_words(tokens: Tensor, first: int, count: int) -> tuple[Tensor, Tensor]:
    """Return each token's number among a rank's words, 0 for another rank's, and where it is another rank's."""
    local = tokens - first
    others = (local < 0) | (local >= count)
    return local.masked_fill(others, 0), others


def _check_words(name: str, tokens: Tensor, words: int) -> None:
    outside = tokens[(tokens < 0) | (tokens >= words)]
    if len(outside):
        message = _("{name} has {token}, which is no word of a vocabulary of {words}: expected 0 to {last}.")
        raise IndexError(message.format(name=name, token=int(outside[0]), words=words, last=words - 1))
