"""The norm of all gradients, each parameter counted once, and clipping by it (layers)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from tpviz.communicator import Communicator
from tpviz.parameters import ShardedModule, own_parameters


def gradient_norm(module: nn.Module, comm: Communicator) -> Tensor:
    """Return the 2-norm of all gradients of the *whole* model below ``module``, a scalar, the same on every rank.

    Every rank counts its shards; rank 0 alone counts what is replicated, and of the rows that several ranks share the
    first of them does. The squares are added up by one all-reduce of one number, in the phase "gradients". Every rank
    of the group must call it, once the gradients are complete: under sequence parallelism after
    ``reduce_replicated_gradients``.

    Source: Megatron-LM, ``megatron/core/optimizer/clip_grads.py``, ``param_is_not_tensor_parallel_duplicate``.
    """
    total = torch.zeros((), device=comm.device)
    for _name, part, own, parameter in own_parameters(module):
        if parameter.grad is None:
            continue
        grad = parameter.grad.detach()
        if own in getattr(part, "shard_dims", ()):
            counted = part.counted_part(own, grad) if isinstance(part, ShardedModule) else grad
        elif comm.rank == 0:
            counted = grad
        else:
            counted = grad[:0]
        total = total + counted.square().sum(dtype=torch.promote_types(grad.dtype, torch.float32))
    return comm.all_reduce(total, phase="gradients").sqrt()


def clip_grad_norm(module: nn.Module, comm: Communicator, max_norm: float) -> Tensor:
    """Scale all gradients so that their norm is at most ``max_norm``; return the norm that they had.

    All ranks scale by the same factor, max_norm / (norm + 1e-6) where this is below 1, as
    ``torch.nn.utils.clip_grad_norm_`` does. What is sent is ``gradient_norm``'s.
    """
    norm = gradient_norm(module, comm)
    factor = (max_norm / (norm + 1e-6)).clamp(max=1)
    for _name, _part, _own, parameter in own_parameters(module):
        if parameter.grad is not None:
            parameter.grad.mul_(factor)
    return norm
