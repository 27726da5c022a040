"""What each collective does to the ranks' tensors, when one process holds them all (communicators; pure functions).

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
    if call.kind == "all_reduce":
        return _copies(reduced(tensors, call.reduction or ""), ranks)
    if call.kind == "all_gather":
        return _copies(torch.cat(tensors, dim), ranks)
    if call.kind == "reduce_scatter":
        return pieces(reduced(tensors, call.reduction or ""), dim, ranks)
    if call.kind == "broadcast":
        return _copies(tensors[call.peer or 0].clone(), ranks)
    assert call.kind == "all_to_all"
    cut = [pieces(tensor, dim, ranks) for tensor in tensors]
    return [torch.cat(column, call.other_dim or 0) for column in zip(*cut, strict=True)]


def pieces(whole: Tensor, dim: int, ranks: int) -> list[Tensor]:
    """Return the ranks' shards of a whole along ``dim`` (counted from the front), each in new memory."""
    size = whole.shape[dim]
    return [whole.narrow(dim, *chunk(size, ranks, rank)).clone() for rank in range(ranks)]


def _copies(result: Tensor, ranks: int) -> list[Tensor]:
    return [result, *(result.clone() for _ in range(ranks - 1))]
