"""Layouts: PyTorch's own placements, what a rank holds of a whole, and the whole from what the ranks hold (layouts).

A placement says how a whole tensor lies on a group's ranks: ``Replicate()``, every rank has all of it;
``Shard(dim)``, each has its slice along ``dim``; ``Partial()``, each has a tensor of the whole's shape, and only their
sum is the whole.
The classes are PyTorch's (``torch.distributed.tensor``) and so are the rules (its ``placement_types.py``); the two
functions are named after DTensor's ``distribute_tensor`` and ``full_tensor``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor
from torch.distributed.tensor.placement_types import Partial, Placement, Replicate, Shard

from tpviz.chunking import chunk_sizes
from tpviz.communicator import check_tensor, dimension
from tpviz.i18n import _
from tpviz.moving import pieces, reduced
from tpviz.tables import Table, shape_text

__all__ = ["Partial", "Placement", "Replicate", "Shard", "comparison", "distribute", "full", "recognise"]

_REDUCTIONS = {"sum": "sum", "avg": "mean", "max": "max", "min": "min"}  # Partial's names, and torch.distributed's


def distribute(whole: Tensor, placement: Placement, ranks: int) -> list[Tensor]:
    """Return what each of ``ranks`` ranks holds of ``whole``: detached copies, each in memory of its own.

    Uneven sizes follow the chunk rule: 6 columns on 4 ranks are 2, 2, 2 and an empty shard. Of a partial sum, rank 0
    holds the whole and the others zeros; of a partial mean, maximum or minimum every rank holds the whole.
    """
    if not isinstance(ranks, int) or isinstance(ranks, bool) or ranks < 1:
        raise ValueError(_("ranks={ranks!r}: expected a whole number, 1 or more.").format(ranks=ranks))
    check_tensor("distribute", whole)
    whole = whole.detach()
    if isinstance(placement, Shard):
        return pieces(whole, dimension("dim", placement.dim, whole), ranks)
    if isinstance(placement, Partial) and _reduction(placement) == "sum":
        return [whole.clone(), *(torch.zeros_like(whole) for _rank in range(1, ranks))]
    if isinstance(placement, (Partial, Replicate)):
        return [whole.clone() for _rank in range(ranks)]
    raise _unknown(placement)


def full(locals: Sequence[Tensor], placement: Placement) -> Tensor:
    """Return the whole that the ranks' tensors are: detached, in new memory.

    Raises ValueError where they cannot be what ``placement`` says: replicas that differ, shards whose sizes are not
    the chunk rule's, partial sums of different shapes.
    """
    if not locals:
        raise ValueError(_("full needs the tensors of at least one rank."))
    for tensor in locals:
        check_tensor("full", tensor)
    locals = [tensor.detach() for tensor in locals]
    if isinstance(placement, Shard):
        return torch.cat(_checked_shards(locals, dimension("dim", placement.dim, locals[0])), dim=placement.dim)
    if not isinstance(placement, (Partial, Replicate)):
        raise _unknown(placement)
    _check_alike(locals)
    if isinstance(placement, Partial):
        return reduced(list(locals), _reduction(placement))
    for rank, tensor in enumerate(locals):
        same = (tensor == locals[0]) | ((tensor != tensor) & (locals[0] != locals[0]))  # nan is a replica of nan
        if not same.all():
            place = tuple(int(i) for i in (~same).nonzero()[0])
            message = _(
                "rank {rank} does not hold a replica of rank 0's tensor: at {place} it has {mine}, rank 0 has {theirs}."
            )
            mine, theirs = tensor[place].item(), locals[0][place].item()
            raise ValueError(message.format(rank=rank, place=list(place), mine=mine, theirs=theirs))
    return locals[0].clone()


def recognise(locals: Sequence[Tensor], whole: Tensor) -> Placement | None:
    """Return the placement in which the ranks' tensors are ``whole``, or None if they are not.

    What fits in several ways (on one rank, all do) is taken as Replicate before Shard, and Shard before Partial.
    """
    placements: list[Placement] = [Replicate(), *(Shard(dim) for dim in range(whole.ndim))]
    for placement in placements:
        held = distribute(whole, placement, len(locals))
        if all(torch.equal(mine, theirs) for mine, theirs in zip(locals, held, strict=True)):
            return placement
    alike = all(tensor.shape == whole.shape for tensor in locals)
    return Partial() if alike and torch.equal(reduced(list(locals), "sum"), whole) else None


def comparison(
    names: Sequence[str], wholes: Sequence[Tensor], programs: Mapping[str, Sequence[Sequence[Tensor]]]
) -> Table:
    """Return a table of how each program's ranks held each of the named matrices.

    ``programs`` has, for each program, what its ranks returned: one tensor for each name. How they lie is recognised
    from the numbers, and so is the way in which the last one is put together.
    """
    held = [
        [recognise(parts, whole) for parts, whole in zip(zip(*outputs, strict=True), wholes, strict=True)]
        for outputs in programs.values()
    ]
    shapes = [[shape_text(tensor.shape) for tensor in outputs[0]] for outputs in programs.values()]
    rows = [
        [name, *(f"{_in_words(mine[i])}, {sizes[i]}" for mine, sizes in zip(held, shapes, strict=True))]
        for i, name in enumerate(names)
    ]
    merged = _("{name} is put together").format(name=names[-1])
    return Table(["", *programs], [*rows, [merged, *(_merged_in_words(mine[-1]) for mine in held)]])


def _in_words(placement: Placement | None) -> str:
    match placement:
        case Replicate():
            return _("whole on every rank")
        case Shard(dim=0):
            return _("cut by rows")
        case Shard(dim=1):
            return _("cut by columns")
        case Partial():
            return _("a partial sum on every rank")
    raise ValueError(
        _("the ranks' tensors are not the whole: neither replicas, nor rows, columns or partial sums of it.")
    )


def _merged_in_words(placement: Placement | None) -> str:
    match placement:
        case Shard(dim=0):
            return _("one below the other")
        case Shard(dim=1):
            return _("side by side")
        case Partial():
            return _("by adding, entry by entry")
    return _("it is whole already")


def _checked_shards(locals: Sequence[Tensor], dim: int) -> list[Tensor]:
    _check_alike(locals, free=dim)
    sizes = [tensor.shape[dim] for tensor in locals]
    expected = chunk_sizes(sum(sizes), len(sizes))
    if sizes != expected:
        message = _(
            "the shards' sizes along dim {dim} are {sizes}; Shard({dim}) cuts {whole} over {ranks} ranks into"
            " {expected}."
        )
        text = message.format(dim=dim, sizes=sizes, whole=sum(sizes), ranks=len(sizes), expected=expected)
        raise ValueError(text)
    return list(locals)


def _check_alike(locals: Sequence[Tensor], free: int | None = None) -> None:
    """Refuse ranks' tensors that differ in dtype, or in shape but for the size along the dimension ``free``."""
    first = _shape_and_dtype(locals[0])
    for rank, tensor in enumerate(locals):
        shape = [size for dim, size in enumerate(tensor.shape) if dim != free]
        expected = [size for dim, size in enumerate(locals[0].shape) if dim != free]
        if tensor.ndim != locals[0].ndim or shape != expected or tensor.dtype != locals[0].dtype:
            message = _("rank {rank} holds a tensor of {mine}, which does not go with rank 0's of {theirs}.")
            raise ValueError(message.format(rank=rank, mine=_shape_and_dtype(tensor), theirs=first))


def _shape_and_dtype(tensor: Tensor) -> str:
    return f"{shape_text(tensor.shape)} {str(tensor.dtype).removeprefix('torch.')}"


def _reduction(placement: Partial) -> str:
    try:
        return _REDUCTIONS[placement.reduce_op]
    except KeyError:
        message = _("{placement} is not supported; the reductions are {known}.")
        raise ValueError(message.format(placement=placement, known=", ".join(_REDUCTIONS))) from None


def _unknown(placement: object) -> Exception:
    message = _("{placement!r} is no placement; expected Replicate(), Shard(dim) or Partial().")
    return TypeError(message.format(placement=placement))
