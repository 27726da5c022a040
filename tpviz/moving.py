"""What each collective does to the ranks' tensors, when one process holds them all (communicators; pure functions).

Results are each rank's own memory and the inputs stay as they are. Reductions run in rank order, so the same inputs
give the same bits.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from tpviz.chunking import chunk_offsets, chunk_sizes
from tpviz.communicator import Call

_COMBINE: dict[str, Callable[..., Tensor]] = {
    "sum": torch.add,
    "mean": torch.add,
    "max": torch.maximum,
    "min": torch.minimum,
}


def reduced(tensors: Sequence[Tensor], op: str) -> Tensor:
    """Return the reduction of equally shaped tensors, entry by entry, in new memory."""
    if len(tensors) == 1:
        return tensors[0].clone()
    combine = _COMBINE[op]
    total = combine(tensors[0], tensors[1])
    for tensor in tensors[2:]:
        combine(total, tensor, out=total)
    return total.div_(len(tensors)) if op == "mean" else total


def results(calls: Sequence[Call]) -> Sequence[Tensor]:
    """Return what each rank gets, for calls that agree (see ``Call.agreement``)."""
    first = calls[0]
    tensors = [call.tensor for call in calls if call.tensor is not None]
    ranks = len(tensors)
    match first.kind:
        case "all_reduce":
            return _copies(reduced(tensors, str(first.reduction)), ranks)
        case "all_gather":
            return _copies(torch.cat(tensors, dim=first.dim or 0), ranks)
        case "reduce_scatter":
            return pieces(reduced(tensors, str(first.reduction)), first.dim or 0, ranks)
        case "broadcast":
            return _copies(tensors[first.peer or 0].clone(), ranks)
        case "all_to_all":
            cut = [pieces(tensor, first.dim or 0, ranks) for tensor in tensors]
            return [torch.cat(column, dim=first.other_dim or 0) for column in zip(*cut, strict=True)]
    raise AssertionError(first.kind)


def pieces(whole: Tensor, dim: int, ranks: int) -> list[Tensor]:
    """Return the ranks' shards of a whole along ``dim`` (counted from the front), each in new memory."""
    size = whole.shape[dim]
    cuts = zip(chunk_offsets(size, ranks), chunk_sizes(size, ranks), strict=True)
    return [whole.narrow(dim, offset, length).clone() for offset, length in cuts]


def _copies(result: Tensor, ranks: int) -> list[Tensor]:
    return [result, *(result.clone() for _ in range(ranks - 1))]
