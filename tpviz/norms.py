"""LayerNorm and RMSNorm beside parallel layers: their weights are replicated, under sequence parallelism too (layers).

Each rank's weights meet this rank's rows only under sequence parallelism, so their gradients are shares of a sum, which
``reduce_replicated_gradients`` makes after backward.
"""

from __future__ import annotations

import torch
from torch import nn

from tpviz.communicator import Communicator


class LayerNorm(nn.LayerNorm):
    """``nn.LayerNorm`` over the last dimension, replicated: x (..., features), the result of the same shape.

    Nothing is sent, forward or backward. ``sequence_parallel``: x is this rank's rows, and after backward
    ``reduce_replicated_gradients`` adds up the gradients of ``weight`` and ``bias``, by one all-reduce each: a sum, not
    a mean, since the loss counts every row once.

    Source: Ba et al. 2016, arXiv 1607.06450; Korthikanti et al. 2022, arXiv 2205.05198, section 4.2.2.
    """

    def __init__(
        self,
        features: int,
        comm: Communicator,
        sequence_parallel: bool = False,
        eps: float = 1e-5,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(features, eps, device=comm.device if device is None else device, dtype=dtype)
        self.sequence_parallel = sequence_parallel


class RMSNorm(nn.RMSNorm):
    """``nn.RMSNorm`` over the last dimension, replicated: x (..., features), the result of the same shape.

    Nothing is sent. ``sequence_parallel``: as in ``LayerNorm``; there is a ``weight`` only.

    Source: Zhang and Sennrich 2019, arXiv 1910.07467.
    """

    def __init__(
        self,
        features: int,
        comm: Communicator,
        sequence_parallel: bool = False,
        eps: float = 1e-5,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(features, eps, device=comm.device if device is None else device, dtype=dtype)
        self.sequence_parallel = sequence_parallel
