"""Conversions: from one placement to another, by which collective forward and backward, and at what price (layouts)."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import NamedTuple

import torch
from torch import Tensor
from torch.distributed.tensor.placement_types import Partial, Placement, Replicate, Shard

from tpviz.chunking import chunk_sizes
from tpviz.communicator import Communicator
from tpviz.costs import Link, collective_seconds
from tpviz.i18n import N_, _
from tpviz.operators import (
    all_to_all_region,
    copy_to_region,
    gather_from_region,
    reduce_from_region,
    reduce_scatter_to_region,
    scatter_to_region,
)
from tpviz.rules import PLACEMENTS, str_of
from tpviz.sharding import own_slice
from tpviz.tables import Table
from tpviz.trace import wire_factor

R, PARTIAL = Replicate(), Partial()


class Flow(NamedTuple):
    """How a tensor lies on the ranks on its way forward, and how its gradient lies on the way back."""

    value: Placement
    gradient: Placement

    def __str__(self) -> str:
        """Shard(1); where the gradient lies otherwise, both: "Replicate, gradient Partial"."""
        if self.value == self.gradient or isinstance(self.value, Partial):
            return str_of(self.value)
        return _("{value}, gradient {gradient}").format(value=str_of(self.value), gradient=str_of(self.gradient))


WHOLE = Flow(R, R)
"""The same on every rank, used alike on every rank: its gradient is whole on each."""
SHARED = Flow(R, PARTIAL)
"""The same on every rank, used by each for a share of its own: the gradient is the sum of what they know of it."""
ROWS, COLUMNS = Flow(Shard(0), Shard(0)), Flow(Shard(1), Shard(1))
ADDENDS = Flow(PARTIAL, R)
"""A partial sum on every rank. Every addend's gradient is the sum's."""
FLOWS = (WHOLE, SHARED, ROWS, COLUMNS, ADDENDS)


class Conversion(NamedTuple):
    """A way from one flow to another: an operator, and the collectives that it takes in each direction."""

    before: Flow
    after: Flow
    operator: str
    """The function of tpviz that does it; "own_slice" cuts with nothing to add up afterwards; "" is nothing to do."""
    forward: str | None
    backward: str | None
    why: str

    def kinds(self) -> tuple[str, ...]:
        """The collectives, forward and backward."""
        return tuple(kind for kind in (self.forward, self.backward) if kind is not None)

    def payload(self, phase: str, shape: Sequence[int], itemsize: int, ranks: int) -> int:
        """Return the bytes that the collective of a phase is about, as the trace counts them; 0 where there is none.

        ``shape`` is the whole tensor's. An all-to-all is about what one rank has, the largest; all others about the
        whole.
        """
        kind = self.forward if phase == "forward" else self.backward
        if kind is None:
            return 0
        sizes = list(shape)
        if kind == "all_to_all":
            side = self.before.value if phase == "forward" else self.after.gradient
            assert isinstance(side, Shard)
            sizes[side.dim] = max(chunk_sizes(sizes[side.dim], ranks))
        return prod(sizes) * itemsize

    def wire_bytes(self, shape: Sequence[int], itemsize: int, ranks: int) -> float:
        """Return the bytes that one rank sends, forward and backward together."""
        return sum(
            self.payload(phase, shape, itemsize, ranks) * wire_factor(kind, ranks)
            for phase, kind in (("forward", self.forward), ("backward", self.backward))
            if kind is not None
        )

    def seconds(self, shape: Sequence[int], itemsize: int, ranks: int, link: Link) -> float:
        """Return how long the collectives take, forward and backward together, by the α–β model."""
        return sum(
            collective_seconds(kind, self.payload(phase, shape, itemsize, ranks), ranks, link)
            for phase, kind in (("forward", self.forward), ("backward", self.backward))
            if kind is not None
        )

    def apply(self, x: Tensor, comm: Communicator) -> Tensor:
        """Do it, on one rank: ``x`` is what this rank holds of the tensor before; returns what it holds after."""
        value, after = self.before.value, self.after.value
        consumer = "sharded" if self.after.gradient == PARTIAL else "replicated"
        match self.operator:
            case "":
                return x
            case "copy_to_region":
                return copy_to_region(x, comm)
            case "reduce_from_region":
                return reduce_from_region(x, comm, consumer)
            case "gather_from_region":
                assert isinstance(value, Shard)
                return gather_from_region(x, comm, value.dim, consumer)
        assert isinstance(after, Shard)
        match self.operator:
            case "scatter_to_region":
                return scatter_to_region(x, comm, after.dim)
            case "reduce_scatter_to_region":
                return reduce_scatter_to_region(x, comm, after.dim)
            case "all_to_all_region":
                assert isinstance(value, Shard)
                return all_to_all_region(x, comm, after.dim, value.dim)
        return own_slice(x, after.dim, comm)


_COPY = N_("Nothing to do forward; backward, each rank knows a part of the gradient, and the parts are added.")
_SLICE = N_("Each rank takes its slice; backward, the slices' gradients are put together for everybody.")
_OWN_SLICE = N_("Each rank takes its slice, and hands back a gradient that is zero elsewhere: an addend.")
_REDUCE = N_("The addends are summed; backward, the sum's gradient is each addend's, as it is.")
_REDUCE_SHARED = N_("The addends are summed; backward, each rank knows a part of the sum's gradient: these are added.")
_REDUCE_SCATTER = N_("The addends are summed, and each rank keeps its slice; backward, the slices are put together.")
_GATHER = N_("The slices are put together; backward, each rank takes its slice of the gradient.")
_GATHER_SHARED = N_("The slices are put together; backward, the parts of the gradient are added and cut again.")
_EXCHANGE = N_("Each rank sends each other one a piece: cut one way becomes cut the other way; backward, they go back.")


def _all() -> dict[tuple[Flow, Flow], Conversion]:
    found = [
        Conversion(WHOLE, SHARED, "copy_to_region", None, "all_reduce", _COPY),
        Conversion(ADDENDS, WHOLE, "reduce_from_region", "all_reduce", None, _REDUCE),
        Conversion(ADDENDS, SHARED, "reduce_from_region", "all_reduce", "all_reduce", _REDUCE_SHARED),
        Conversion(ROWS, COLUMNS, "all_to_all_region", "all_to_all", "all_to_all", _EXCHANGE),
        Conversion(COLUMNS, ROWS, "all_to_all_region", "all_to_all", "all_to_all", _EXCHANGE),
    ]
    for cut in (ROWS, COLUMNS):
        found += [
            Conversion(WHOLE, cut, "scatter_to_region", None, "all_gather", _SLICE),
            Conversion(SHARED, cut, "own_slice", None, None, _OWN_SLICE),
            Conversion(ADDENDS, cut, "reduce_scatter_to_region", "reduce_scatter", "all_gather", _REDUCE_SCATTER),
            Conversion(cut, WHOLE, "gather_from_region", "all_gather", None, _GATHER),
            Conversion(cut, SHARED, "gather_from_region", "all_gather", "reduce_scatter", _GATHER_SHARED),
        ]
    return {(each.before, each.after): each for each in found}


CONVERSIONS = _all()
"""Every conversion by one operator of tpviz.

Two kinds are left out, although they would send nothing. Into addends: of a whole tensor, rank 0 keeps it and the
others hold zeros; of shards, each rank fills its own up with zeros. And from SHARED back to WHOLE: there the gradient
would become addends in the same way."""


_WHOLE_INTO_ADDENDS = N_(
    "{before} → {after} is none of the conversions here. It would send nothing: rank 0 keeps the tensor, the others "
    "hold zeros. To add the tensor to addends, add it after their sum, or on one rank only."
)
_SHARD_INTO_ADDENDS = N_(
    "{before} → {after} is none of the conversions here. It would send nothing: each rank fills its shard up with "
    "zeros. To add the tensor to addends, add it after their sum; a reduce_scatter cuts that the same way."
)


def conversion(before: Placement, after: Placement, consumer: str = "replicated") -> Conversion:
    """Return the conversion between two placements. Those into addends are left out (see ``CONVERSIONS``).

    Args:
        before: what the tensor has, in the classic layout: its gradient is whole, or cut as it is.
        after: what it shall have.
        consumer: for a whole tensor, whether every rank goes on alike ("replicated") or with a share of its own
            ("sharded"), as for the operators.
    """
    flows = {R: WHOLE, Shard(0): ROWS, Shard(1): COLUMNS, PARTIAL: ADDENDS}
    for placement in (before, after):
        if not isinstance(placement, Placement) or placement not in flows:
            message = _("{placement!r} is no placement of a matrix; expected one of {known}.")
            raise TypeError(message.format(placement=placement, known=", ".join(map(str_of, PLACEMENTS))))
    if consumer not in ("replicated", "sharded"):
        raise ValueError(_("consumer={consumer!r} is unknown: replicated or sharded.").format(consumer=consumer))
    start, end = flows[before], flows[after]
    if end == WHOLE and consumer == "sharded":
        end = SHARED
    if start == end:
        return Conversion(start, end, "", None, None, N_("Nothing to do."))
    if (start, end) not in CONVERSIONS:
        message = _(_SHARD_INTO_ADDENDS) if isinstance(before, Shard) else _(_WHOLE_INTO_ADDENDS)
        raise ValueError(message.format(before=str_of(before), after=str_of(after)))
    return CONVERSIONS[start, end]


def table(shape: Sequence[int], dtype: torch.dtype = torch.float32, ranks: int = 2, link: Link | None = None) -> Table:
    """Return a table of every conversion: the collectives and their payload, and on a link what a rank sends, how long.

    ``shape`` is the whole tensor's; wire bytes and seconds are of forward and backward together.
    """
    headings = [_("from"), _("to"), _("forward"), _("backward")]
    if link is not None:
        headings += [_("wire, one rank"), _("time")]
    rows = []
    for each in CONVERSIONS.values():
        row = [str(each.before), str(each.after)]
        for phase, kind in (("forward", each.forward), ("backward", each.backward)):
            row.append(f"{kind}, {each.payload(phase, shape, dtype.itemsize, ranks)} B" if kind else "–")
        if link is not None:
            wire = each.wire_bytes(shape, dtype.itemsize, ranks)
            row += [f"{wire:g} B", f"{1e6 * each.seconds(shape, dtype.itemsize, ranks, link):.1f} µs"]
        rows.append(row)
    return Table(headings, rows)
