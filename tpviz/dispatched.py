"""What an operator call of torch.distributed communicates: kind, ranks, whole array, options (part of watching)."""

import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import _functional_collectives as functional

from tpviz.source import is_inside

NAMESPACES = frozenset({"_c10d_functional", "_c10d_functional_autograd", "c10d_functional", "c10d", "_dtensor"})

# The kind of each operator, and which argument holds the whole array; "" is the result. Functional collectives and
# torch.distributed's own have different names, so that one table holds both.
_OPERATORS: dict[str, tuple[str, str]] = {
    **dict.fromkeys(("all_reduce", "all_reduce_"), ("all_reduce", "input")),
    **dict.fromkeys(("all_reduce_coalesced", "all_reduce_coalesced_"), ("all_reduce", "inputs")),
    **dict.fromkeys(("allreduce_", "allreduce_coalesced_"), ("all_reduce", "tensors")),
    **dict.fromkeys(
        ("all_gather_into_tensor", "all_gather_into_tensor_out", "all_gather_into_tensor_coalesced"),
        ("all_gather", ""),
    ),
    "_allgather_base_": ("all_gather", "output_tensor"),
    "allgather_": ("all_gather", "output_tensors"),
    "allgather_coalesced_": ("all_gather", "output_lists"),
    "allgather_into_tensor_coalesced_": ("all_gather", "outputs"),
    **dict.fromkeys(("reduce_scatter_tensor", "reduce_scatter_tensor_out"), ("reduce_scatter", "input")),
    "_reduce_scatter_base_": ("reduce_scatter", "input_tensor"),
    "reduce_scatter_": ("reduce_scatter", "input_tensors"),
    **dict.fromkeys(
        ("reduce_scatter_tensor_coalesced", "reduce_scatter_tensor_coalesced_"), ("reduce_scatter", "inputs")
    ),
    **dict.fromkeys(("all_to_all_single", "alltoall_base_", "shard_dim_alltoall"), ("all_to_all", "input")),
    "alltoall_": ("all_to_all", "input_tensors"),
    **dict.fromkeys(("broadcast", "broadcast_"), ("broadcast", "input")),
    "reduce_": ("reduce", "tensors"),
    "gather_": ("gather", "input_tensors"),
    "scatter_": ("scatter", "output_tensors"),
    **dict.fromkeys(("send", "recv_"), ("send", "tensors")),
    **dict.fromkeys(("isend", "irecv"), ("send", "tensor")),
    **dict.fromkeys(("barrier", "monitored_barrier_"), ("barrier", "tensor")),
}
_SILENT = frozenset({"wait_tensor", "_wrap_tensor_autograd", "check_for_nan", "mesh_get_process_group"})
_REDUCTIONS = {"avg": "mean"}

_FUNCTIONAL = functional.__file__


class Communication(NamedTuple):
    """The facts of one call that an event states; ``shape`` and ``payload_bytes`` are of the whole array."""

    kind: str
    ranks: tuple[int, ...]
    shape: tuple[int, ...]
    dtype: torch.dtype | None
    payload_bytes: int
    options: tuple[str | None, int | None, int | None]


def is_silent(func: Any) -> bool:
    """Whether an operator of one of the namespaces sends nothing: it waits for a result, or wraps one."""
    return operator_name(func) in _SILENT


def operator_name(func: Any) -> str:
    """Return an operator's name without its namespace: ``all_reduce``."""
    return str(func._schema.name).rpartition("::")[2]


def communication(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], result: Any) -> Communication | None:
    """Return what a call communicates; None for an operator that is not known here."""
    name = operator_name(func)
    if name not in _OPERATORS or func.namespace == "c10d_functional":
        return None
    kind, holder = _OPERATORS[name]
    given = dict(zip((argument.name for argument in func._schema.arguments), args, strict=False)) | dict(kwargs)
    group = _group(given)
    ranks = tuple(dist.get_process_group_ranks(group))
    if kind == "barrier":
        return Communication(kind, ranks, (), None, 0, (None, None, None))
    if kind == "send":
        me = dist.get_rank()
        ranks = (me, ranks[given["dst"]]) if "dst" in given else (ranks[given["src"]], me)
    # broadcast_ calls it tensors, and broadcast input
    tensors = list(_tensors(result if not holder else given[holder] if holder in given else given["tensors"]))
    dim, other_dim = _dims(kind, given)
    shape, payload = _whole(tensors)
    if kind in ("gather", "scatter"):  # only the root holds the whole; every rank holds one part
        shape, payload = (len(ranks), *shape), payload * len(ranks)
    elif dim is not None and kind != "all_to_all":
        (part,) = _tensors(given["input"] if kind == "all_gather" else result)
        dim %= max(part.ndim, 1)
        shape = (*part.shape[:dim], part.shape[dim] * len(ranks), *part.shape[dim + 1 :])
    options = (_reduction(given.get("reduce_op")), dim, other_dim)
    return Communication(kind, ranks, shape, tensors[0].dtype, payload, options)


def _group(given: Mapping[str, Any]) -> dist.ProcessGroup:
    group = given["process_group"] if "process_group" in given else given["group_name"]
    if isinstance(group, str):
        return dist.distributed_c10d._resolve_process_group(group)  # type: ignore[attr-defined, arg-type]
    if isinstance(group, dist.ProcessGroup):
        return group
    return dist.ProcessGroup.unbox(group)


def _reduction(op: Any) -> str | None:
    if op is None:
        return None
    name = op if isinstance(op, str) else dist.ReduceOp.RedOpType(op.op()).name.lower()
    return _REDUCTIONS.get(name, name)


def _tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for each in value:
            yield from _tensors(each)


def _whole(tensors: Sequence[Tensor]) -> tuple[tuple[int, ...], int]:
    """Return the shape and the bytes of tensors that are one array: stacked where they are alike, else in a row."""
    payload = sum(tensor.nbytes for tensor in tensors)
    shapes = {tuple(tensor.shape) for tensor in tensors}
    if len(tensors) == 1:
        return shapes.pop(), payload
    if len(shapes) == 1:
        return (len(tensors), *shapes.pop()), payload
    return (sum(tensor.numel() for tensor in tensors),), payload


def _dims(kind: str, given: Mapping[str, Any]) -> tuple[int | None, int | None]:
    """Return the dimension and an all-to-all's other one, where the call or its caller states them.

    A functional all-gather or reduce-scatter moves blocks along dimension 0, whatever the dimension is that the caller
    wants: the Python function around it cuts and concatenates. So the dimension is that function's own argument. Where
    there is no such function (``torch.distributed.all_gather``), nobody knows what becomes of the blocks.
    """
    if "shard_dim" in given:
        return given["shard_dim"], given["gather_dim"]
    argument = {"all_gather": "gather_dim", "reduce_scatter": "scatter_dim"}.get(kind)
    return (_argument_of_caller(argument) if argument and "group_name" in given else None), None


def _argument_of_caller(argument: str) -> int | None:
    """Return an argument of the functional collective that is being called, found in its frame; else None."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename != _FUNCTIONAL:
        if not is_inside(frame.f_code.co_filename):
            return None
        frame = frame.f_back
    while frame.f_back is not None and frame.f_code.co_filename == _FUNCTIONAL:
        dim = frame.f_locals.get(argument)
        if isinstance(dim, int):
            return dim
        frame = frame.f_back
    return None
