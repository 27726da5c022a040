"""What each collective does to the ranks' tensors, where one process has them all (communicators; pure functions).

Results are each rank's own memory and the inputs stay as they are. Reductions run in rank order, so the same inputs
give the same bits.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from tpviz.chunking import chunk
from tpviz.communicator import Call

_COMBINE: dict[str, Callable[..., Tensor]] = {
    "sum": torch.add,
    "mean": torch.add,
    "max": torch.maximum,
    "min": torch.minimum,
}


def reduced(tensors: list[Tensor], op: str) -> Tensor:
    """Return the reduction of equally shaped tensors, entry by entry, in new memory."""
    if len(tensors) == 1:
        return tensors[0].clone()
    combine = _COMBINE[op]
    total = combine(tensors[0], tensors[1])
    for tensor in tensors[2:]:
        combine(total, tensor, out=total)
    return total.div_(len(tensors)) if op == "mean" else total


def results(call: Call, tensors: list[Tensor]) -> list[Tensor]:
    """Return what each rank gets; ``call`` is any of the ranks' calls, which agree; ``tensors`` are their inputs."""
    ranks, dim = len(tensors), call.dim or 0
    if call.kind == "reduce_scatter":
        return pieces(reduced(tensors, call.reduction or ""), dim, ranks)
    if call.kind == "all_to_all":
        cut = [pieces(tensor, dim, ranks) for tensor in tensors]
        return [torch.cat(column, call.other_dim or 0) for column in zip(*cut, strict=True)]
    same = result(call, tensors, 0)
    return [same, *(same.clone() for _ in range(ranks - 1))]


def result(call: Call, tensors: list[Tensor], rank: int) -> Tensor:
    """Return what one rank gets, where each rank computes its own result from all inputs."""
    ranks, dim = len(tensors), call.dim or 0
    if call.kind == "all_reduce":
        return reduced(tensors, call.reduction or "")
    if call.kind == "all_gather":
        return torch.cat(tensors, dim)
    if call.kind == "broadcast":
        return tensors[call.peer or 0].clone()
    if call.kind == "reduce_scatter":
        return piece(reduced(tensors, call.reduction or ""), dim, ranks, rank)
    assert call.kind == "all_to_all"
    return torch.cat([piece(tensor, dim, ranks, rank) for tensor in tensors], call.other_dim or 0)


def pieces(whole: Tensor, dim: int, ranks: int) -> list[Tensor]:
    """Return the ranks' shards of a whole along ``dim`` (counted from the front), each in new memory."""
    return [piece(whole, dim, ranks, rank) for rank in range(ranks)]


def piece(whole: Tensor, dim: int, ranks: int, rank: int) -> Tensor:
    """Return one rank's shard of a whole along ``dim`` (counted from the front), in new memory."""
    return whole.narrow(dim, *chunk(whole.shape[dim], ranks, rank)).clone()
