"""Large tensors between processes, by torch.distributed's own collectives: gloo's or NCCL's (communicators).

The ranks have agreed on the call by now (``distributed.py``), so options and shapes are right. What the libraries'
collectives cannot do (add up a dtype that they don't know, gather shards of unequal sizes) is done by moving bytes.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Sequence

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup, Work

from tpviz.chunking import chunk
from tpviz.communicator import Call
from tpviz.moving import piece, result
from tpviz.wire import as_bytes

_REDUCE = {
    "sum": dist.ReduceOp.SUM,
    "mean": dist.ReduceOp.SUM,  # divided afterwards: gloo knows no mean
    "max": dist.ReduceOp.MAX,
    "min": dist.ReduceOp.MIN,
}
_REDUCIBLE = (
    torch.float64,
    torch.float32,
    torch.float16,
    torch.bfloat16,
    torch.int64,
    torch.int32,
    torch.int8,
    torch.uint8,
)
"""What gloo and NCCL both reduce."""

_EXCHANGED_BYTES = 1 << 18
"""Up to so many bytes from the other ranks, to receive them all and reduce here is quicker than gloo's all-reduce."""

_TAGS = 1 << 30
"""Tags from here on are made from what is sent; smaller ones are ``distributed.py``'s."""

Wait = Callable[[Work], None]
Shapes = Sequence[tuple[int, ...]]
Begun = tuple[list[Work], Callable[[], Tensor]]
"""Works under way, and what gives this rank's result once they are over."""


def transfer(group: ProcessGroup, mine: Call, shapes: Shapes, rank: int, wait: Wait) -> Tensor:
    """Do a collective with torch.distributed and return this rank's result, in its own memory.

    ``shapes`` are all ranks' shapes and ``rank`` is this rank's number in the group; ``wait`` waits for a work.
    """
    x = mine.tensor
    assert x is not None
    if mine.kind == "broadcast":
        whole = x.clone(memory_format=torch.contiguous_format)
        wait(started(dist.broadcast(as_bytes(whole), group=group, group_src=mine.peer or 0, async_op=True)))
        return whole
    if mine.kind == "all_to_all":
        return _all_to_all(group, mine, x, shapes, rank, wait)
    if mine.kind == "all_gather" or x.dtype not in _REDUCIBLE:
        return result(mine, _gathered(group, x, shapes, wait), rank)
    return _reduction(group, mine, x, len(shapes), rank, wait)


def exchange(group: ProcessGroup, mine: Call, ranks: int, rank: int) -> Begun | None:
    """Begin an all-reduce or a reduce-scatter before the ranks are known to agree; None where that would not be safe.

    A library's collective must not meet another one: gloo ends the process, and NCCL blocks its stream. Here every
    rank sends its numbers to each other one, under a tag made from what they are: who does not mean the same does not
    receive them. On two ranks no more is sent than by a ring, and small tensors on more ranks arrive sooner.
    """
    x = mine.tensor
    if x is None or mine.reduction is None or not x.is_cpu or ranks == 1:
        return None
    if ranks > 2 and x.nbytes * (ranks - 1) > _EXCHANGED_BYTES:
        return None
    tag = _TAGS + zlib.crc32(repr(mine.agreement()).encode()) % _TAGS
    own = as_bytes(x)
    came = [own if peer == rank else torch.empty_like(own) for peer in range(ranks)]
    peers = [peer for peer in range(ranks) if peer != rank]
    works = [group.recv([came[peer]], peer, tag) for peer in peers] + [group.send([own], peer, tag) for peer in peers]

    def result_of() -> Tensor:
        return result(mine, [memory.view(x.dtype).view(x.shape) for memory in came], rank)

    return works, result_of


def _reduction(group: ProcessGroup, mine: Call, x: Tensor, ranks: int, rank: int, wait: Wait) -> Tensor:
    op, dim = _REDUCE[mine.reduction or ""], mine.dim or 0
    # gloo's own reduce-scatter takes longer than its all-reduce; NCCL's wants shards of one size.
    if mine.kind == "reduce_scatter" and not x.is_cpu and x.shape[dim] % ranks == 0:
        pieces = [part.contiguous() for part in x.chunk(ranks, dim)]
        total = torch.empty_like(pieces[rank])
        wait(started(dist.reduce_scatter(total, pieces, op, group=group, async_op=True)))
    else:
        total = x.clone(memory_format=torch.contiguous_format)
        wait(started(dist.all_reduce(total, op, group=group, async_op=True)))
        if mine.kind == "reduce_scatter":
            total = piece(total, dim, ranks, rank)
    return total.div_(ranks) if mine.reduction == "mean" else total


def _gathered(group: ProcessGroup, x: Tensor, shapes: Shapes, wait: Wait) -> list[Tensor]:
    """Return all ranks' tensors, the shorter ones padded on their way."""
    sizes = [math.prod(shape) * x.element_size() for shape in shapes]
    own = as_bytes(x)
    if x.nbytes < max(sizes):
        own = torch.cat([own, own.new_zeros(max(sizes) - x.nbytes)])
    came = [torch.empty_like(own) for _ in shapes]
    wait(started(dist.all_gather(came, own, group=group, async_op=True)))
    return [memory[:size].view(x.dtype).view(shape) for memory, size, shape in zip(came, sizes, shapes, strict=True)]


def _all_to_all(group: ProcessGroup, mine: Call, x: Tensor, shapes: Shapes, rank: int, wait: Wait) -> Tensor:
    ranks, dim, other_dim = len(shapes), mine.dim or 0, mine.other_dim or 0
    sent = [as_bytes(piece(x, dim, ranks, number)) for number in range(ranks)]
    came = []
    for shape in shapes:
        _start, size = chunk(shape[dim], ranks, rank)
        came.append((*shape[:dim], size, *shape[dim + 1 :]))
    sizes = [math.prod(shape) * x.element_size() for shape in came]
    received = x.new_empty(sum(sizes), dtype=torch.uint8)
    own_sizes = [part.numel() for part in sent]
    wait(started(dist.all_to_all_single(received, torch.cat(sent), sizes, own_sizes, group=group, async_op=True)))
    parts = [part.view(x.dtype).view(shape) for part, shape in zip(torch.split(received, sizes), came, strict=True)]
    return torch.cat(parts, other_dim)


def started(work: Work | None) -> Work:
    """Return a work that has begun: torch.distributed has none for who is not in the group."""
    assert work is not None, "this process is not a member of the group"
    return work
