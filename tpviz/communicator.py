"""The communicator: what a rank program may say to the other ranks, the same on every backend (communicators).

This module knows what each collective *is*: which arguments are right, what the ranks must agree on, the size of the
whole array, the layouts before and after. How the tensors travel is a backend's business (``simulated.py``).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from tpviz.i18n import _
from tpviz.source import Site, call_site
from tpviz.tables import shape_text

PHASES = ("forward", "backward", "gradients", "other")
REDUCTIONS = ("sum", "mean", "max", "min")

_OPERATORS = {
    "all_reduce": "tpviz.reduce_from_region(x, comm)",
    "all_gather": "tpviz.gather_from_region(x, comm)",
    "reduce_scatter": "tpviz.reduce_scatter_to_region(x, comm)",
}


class Call(NamedTuple):
    """One rank's part of one collective: what it says of it, and the tensor that it brings. Made by ``call``."""

    # What all ranks of a group must agree on, in the order of ``agreement_names``.
    kind: str
    reduction: str | None
    peer: int | None  # a broadcast's root, the rank that a send goes to
    dim: int | None  # the dimension gathered along, scattered along, or (all-to-all) split
    other_dim: int | None  # the dimension that an all-to-all concatenates along
    agreed_shape: tuple[int, ...] | None  # without the dimension along which shards may differ
    dtype: torch.dtype | None
    on_cpu: bool
    needs_grad: bool
    # What is each rank's own.
    tensor: Tensor | None
    phase: str
    site: Site
    source_peer: int | None  # the rank that a receive comes from
    color: Hashable  # a split's

    def agreement(self) -> tuple[object, ...]:
        """Return what all ranks of a group must agree on."""
        return self[:9]

    @staticmethod
    def agreement_names() -> tuple[str, ...]:
        """Return the words for the entries of ``agreement``."""
        return (
            _("the kind of collective"),
            _("the reduction (op)"),
            _("the root (src)"),
            _("the dimension (dim)"),
            _("the dimension to concatenate along (concat_dim)"),
            _("the shape"),
            _("the dtype"),
            _("the kind of device"),
            _("whether a gradient is required"),
        )

    def text(self) -> str:
        """Return the call as an error message names it: ``all_reduce(sum) of 3×4 float32``."""
        if self.kind == "recv":
            return f"recv(src={self.source_peer})"
        if self.kind == "sendrecv":
            name = f"sendrecv(dst={self.peer}, src={self.source_peer})"
        elif self.kind == "send":
            name = f"send(dst={self.peer})"
        elif self.kind == "broadcast":
            name = f"broadcast(src={self.peer})"
        elif self.kind == "all_to_all":
            name = f"all_to_all(split_dim={self.dim}, concat_dim={self.other_dim})"
        else:
            details = [self.reduction] if self.reduction else []
            details += [f"dim={self.dim}"] if self.dim is not None else []
            name = f"{self.kind}({', '.join(details)})"
        x = self.tensor
        if x is None:
            return name
        shape, dtype = shape_text(x.shape), str(x.dtype).removeprefix("torch.")
        what = _("{name} of {shape} {dtype}").format(name=name, shape=shape, dtype=dtype)
        what += " " + _("in backward") if self.phase == "backward" else ""
        return what + (" " + _("that requires grad") if self.needs_grad else "")

    def whole(self, tensors: Sequence[Tensor]) -> tuple[tuple[int, ...], int]:
        """Return the shape and the bytes of the whole array that the group's call is about, as nccl-tests counts.

        ``tensors`` are all ranks' inputs: the gathered result is as long as they are together, an all-to-all is about
        the largest rank's input, everything else is as large as any input.
        """
        x = tensors[0]
        if self.kind == "all_gather" and self.dim is not None:
            shape = list(x.shape)
            shape[self.dim] = sum(tensor.shape[self.dim] for tensor in tensors)
            return tuple(shape), sum(tensor.nbytes for tensor in tensors)
        largest = max(tensors, key=lambda tensor: tensor.nbytes) if self.kind == "all_to_all" else x
        return tuple(largest.shape), largest.nbytes


def call(
    kind: str,
    tensor: Tensor | None,
    phase: str,
    site: Site,
    reduction: str | None = None,
    dim: int | None = None,
    other_dim: int | None = None,
    peer: int | None = None,
    source_peer: int | None = None,
    color: Hashable = None,
    needs_grad: bool = False,
) -> Call:
    """Return the call of a rank that brings ``tensor``, if the collective has one."""
    if tensor is None:
        return Call(kind, None, peer, None, None, None, None, True, False, None, phase, site, source_peer, color)
    if tensor.requires_grad:  # a collective moves values; gradients are the conjugate operators' business
        tensor = tensor.detach()
    shape: tuple[int, ...] = tensor.shape
    free = dim if kind == "all_gather" else other_dim
    if free is not None:
        shape = (*shape[:free], *shape[free + 1 :])
    facts = (kind, reduction, peer, dim, other_dim, shape, tensor.dtype, tensor.is_cpu, needs_grad)
    return Call(*facts, tensor, phase, site, source_peer, color)


class Communicator(ABC):
    """A rank's handle on its group: its number, the group's size, and the collectives.

    Attributes:
        rank: this rank's number in the group, 0 to ``world_size - 1``.
        world_size: the number of ranks in the group.
        ranks: the global numbers of the group's ranks.
        device: the ``torch.device`` on which this rank computes.

    A collective must be called by every rank of the group, in the same order, with the same shape, dtype and options.
    What it returns is the rank's own memory, never shared with another rank, and its input is left as it was. A
    tensor that requires grad is refused in grad mode: the conjugate operators (``tpviz.copy_to_region``, ...) are for
    those. ``phase`` ("forward", "backward", "gradients" or "other") is what the trace says of the call.
    """

    rank: int
    world_size: int
    ranks: tuple[int, ...]
    device: torch.device

    def all_reduce(self, x: Tensor, op: str = "sum", phase: str = "other") -> Tensor:
        """Reduce ``x`` over the ranks, entry by entry and in rank order; every rank gets the result, shaped like ``x``.

        ``op`` is "sum", "mean", "max" or "min".
        """
        return self._reduce("all_reduce", x, op, None, phase)

    def all_gather(self, x: Tensor, dim: int = -1, phase: str = "other") -> Tensor:
        """Concatenate the ranks' ``x`` along ``dim`` in rank order; every rank gets the whole.

        The shards may differ along ``dim`` as ``Shard(dim)`` cuts: 6 over 4 is 2, 2, 2, 0.
        """
        self._check("all_gather", x, phase)
        return self._exchange(call("all_gather", x, phase, call_site(), dim=dimension("dim", dim, x)))  # type: ignore[no-any-return]

    def reduce_scatter(self, x: Tensor, dim: int = 0, op: str = "sum", phase: str = "other") -> Tensor:
        """Reduce ``x`` over the ranks, and give each rank its shard of the result along ``dim`` (the chunk rule)."""
        return self._reduce("reduce_scatter", x, op, dim, phase)

    def broadcast(self, x: Tensor, src: int = 0, phase: str = "other") -> Tensor:
        """Give every rank a copy of rank ``src``'s ``x``; the others' ``x`` says shape and dtype only."""
        self._check("broadcast", x, phase)
        return self._exchange(call("broadcast", x, phase, call_site(), peer=self._member("src", src)))  # type: ignore[no-any-return]

    def all_to_all(self, x: Tensor, split_dim: int, concat_dim: int, phase: str = "other") -> Tensor:
        """Cut ``x`` along ``split_dim``, send piece i to rank i, and concatenate what came along ``concat_dim``.

        An array sharded along ``concat_dim`` becomes one sharded along ``split_dim``.
        """
        self._check("all_to_all", x, phase)
        dim, other_dim = dimension("split_dim", split_dim, x), dimension("concat_dim", concat_dim, x)
        return self._exchange(call("all_to_all", x, phase, call_site(), dim=dim, other_dim=other_dim))  # type: ignore[no-any-return]

    def barrier(self, phase: str = "other") -> None:
        """Wait until every rank of the group is here."""
        _check_phase(phase)
        self._exchange(call("barrier", None, phase, call_site()))

    def send(self, x: Tensor, dst: int, phase: str = "other") -> None:
        """Send ``x`` to rank ``dst``, and wait until it is received there (a rendezvous)."""
        self._check("send", x, phase)
        self._exchange(call("send", x, phase, call_site(), peer=self._other("dst", dst)))

    def recv(self, src: int, phase: str = "other") -> Tensor:
        """Wait for the tensor that rank ``src`` sends, and return it."""
        _check_phase(phase)
        return self._exchange(call("recv", None, phase, call_site(), source_peer=self._other("src", src)))  # type: ignore[no-any-return]

    def sendrecv(self, x: Tensor, dst: int, src: int, phase: str = "other") -> Tensor:
        """Send ``x`` to rank ``dst`` while receiving from rank ``src``: one step of a ring, with nobody first."""
        self._check("sendrecv", x, phase)
        peer, source_peer = self._other("dst", dst), self._other("src", src)
        return self._exchange(call("sendrecv", x, phase, call_site(), peer=peer, source_peer=source_peer))  # type: ignore[no-any-return]

    def split(self, color: Hashable) -> Communicator:
        """Return the communicator of the ranks that gave the same ``color``, in rank order: a row of a mesh, a column.

        Every rank of the group must call it. It is not recorded.
        """
        try:
            if isinstance(color, Tensor):  # equal tensors have different hashes
                raise TypeError
            hash(color)
        except TypeError:
            message = _("split takes a color that can be hashed, such as a number; a {type} cannot.")
            raise TypeError(message.format(type=type(color).__name__)) from None
        return self._exchange(call("split", None, "other", call_site(), color=color))  # type: ignore[no-any-return]

    @abstractmethod
    def _exchange(self, mine: Call) -> Any:
        """Meet the other ranks and return this rank's result."""

    def _reduce(self, kind: str, x: Tensor, op: str, dim: int | None, phase: str) -> Tensor:
        self._check(kind, x, phase)
        check_reduction(op, x)
        dim = None if dim is None else dimension("dim", dim, x)
        return self._exchange(call(kind, x, phase, call_site(), reduction=op, dim=dim))  # type: ignore[no-any-return]

    def _check(self, kind: str, x: object, phase: str) -> None:
        check_tensor(kind, x)
        _check_phase(phase)
        assert isinstance(x, Tensor)
        if x.requires_grad and torch.is_grad_enabled():
            operator = _OPERATORS.get(kind)
            remedy = (
                _("Use {operator}, whose backward is stated, or x.detach() where no gradient is to flow.").format(
                    operator=operator
                )
                if operator
                else _("Use x.detach() where no gradient is to flow.")
            )
            message = _(
                "{kind} was given a tensor that requires grad; autograd cannot follow it to the other ranks, so"
                " gradients would silently be wrong."
            )
            raise RuntimeError(message.format(kind=kind) + " " + remedy)

    def _member(self, name: str, rank: object) -> int:
        if not isinstance(rank, int) or isinstance(rank, bool) or not 0 <= rank < self.world_size:
            message = _("{name}={rank!r} is not a rank of this group: expected 0 to {last}.")
            raise ValueError(message.format(name=name, rank=rank, last=self.world_size - 1))
        return rank

    def _other(self, name: str, rank: object) -> int:
        member = self._member(name, rank)
        if member == self.rank:
            raise ValueError(
                _("{name}={rank} is this rank itself: a send needs another rank to receive it.").format(
                    name=name, rank=rank
                )
            )
        return member

    def __deepcopy__(self, memo: object) -> Communicator:
        return self  # a handle on a group cannot be doubled; what holds one may be copied


def check_tensor(kind: str, x: object) -> None:
    """Refuse what no collective can move, with the reason."""
    if not isinstance(x, Tensor):
        raise TypeError(_("{kind} takes a torch.Tensor, not {type}.").format(kind=kind, type=type(x).__name__))
    if x.layout is not torch.strided:
        raise TypeError(
            _("{kind} takes a dense tensor, not one of layout {layout}; use x.to_dense().").format(
                kind=kind, layout=x.layout
            )
        )


def check_reduction(op: object, x: Tensor) -> None:
    """Refuse an unknown reduction, and those that have no exact meaning for the tensor's dtype."""
    if op not in REDUCTIONS:
        raise ValueError(
            _("op={op!r} is no reduction; expected one of {known}.").format(op=op, known=", ".join(REDUCTIONS))
        )
    if op == "mean" and not (x.is_floating_point() or x.is_complex()):
        raise ValueError(_("the mean of {dtype} is no {dtype}: use x.float(), or op='sum'.").format(dtype=x.dtype))
    if op in ("sum", "mean") and x.dtype == torch.bool:
        raise ValueError(_("the sum of booleans is no boolean: use x.int() to count, or op='max' for 'any'."))
    if op in ("max", "min") and x.is_complex():
        raise ValueError(_("complex numbers have no order: op='max' and op='min' need real ones."))


def _check_phase(phase: object) -> None:
    if phase not in PHASES:
        raise ValueError(
            _("phase={phase!r} is unknown; expected one of {known}.").format(phase=phase, known=", ".join(PHASES))
        )


def dimension(name: str, dim: object, x: Tensor) -> int:
    """Return the dimension counted from the front; ``name`` is the argument that an error names."""
    if not isinstance(dim, int) or isinstance(dim, bool) or not -x.ndim <= dim < x.ndim:
        shape = shape_text(x.shape)
        raise ValueError(
            _("{name}={dim!r} is no dimension of a tensor of shape {shape}.").format(name=name, dim=dim, shape=shape)
        )
    return dim % x.ndim
