"""Dropout with two random streams: one that the ranks share, one of each rank's own (layers)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from tpviz.communicator import Communicator
from tpviz.i18n import _

PER_RANK_OFFSET = 2718
"""Megatron-LM's distance between the shared seed and rank 0's own."""


class DropoutStreams:
    """Two generators on ``comm.device``: ``replicated``, seeded alike on all ranks, and ``per_rank``, seeded by rank.

    What all ranks hold must be dropped alike, or the replicas differ; of what each holds a shard, the masks must
    differ, or the shards' masks are copies of each other. PyTorch's own stream is neither read nor moved.

    Source: Megatron-LM, ``megatron/core/tensor_parallel/random.py``, ``model_parallel_cuda_manual_seed``.
    """

    def __init__(self, seed: int, comm: Communicator) -> None:
        self.replicated = torch.Generator(comm.device).manual_seed(seed)
        self.per_rank = torch.Generator(comm.device).manual_seed(seed + PER_RANK_OFFSET + comm.rank)


class ParallelDropout(nn.Module):
    """Sets each entry of x to 0 with probability ``p``, and divides the others by 1 - p; while training only.

    ``sharded``: x is this rank's shard, and the mask is drawn from ``streams.per_rank``; else x is replicated, and the
    mask from ``streams.replicated``. The result has x's shape. Nothing is sent, forward or backward; kept for backward
    is the mask, 1 byte an entry. ``ValueError`` unless 0 ≤ p < 1.

    Source: Megatron-LM, ``megatron/core/tensor_parallel/random.py``; Korthikanti et al. 2022, arXiv 2205.05198.
    """

    def __init__(self, p: float, streams: DropoutStreams, sharded: bool) -> None:
        super().__init__()
        if not 0 <= p < 1:
            raise ValueError(_("p={p}: the probability of dropping is at least 0 and less than 1.").format(p=p))
        self.p = p
        self.generator = streams.per_rank if sharded else streams.replicated

    def forward(self, x: Tensor) -> Tensor:
        """Return x with entries dropped."""
        if not self.training or self.p == 0:
            return x
        drawn = torch.rand(x.shape, generator=self.generator, device=x.device)
        return x.masked_fill(drawn < self.p, 0) / (1 - self.p)
