"""One rank's call as bytes: what ranks in different processes tell each other, and keep for the trace (communicators).

A collective's first message is one slot from every rank, of a fixed size, so that slots can be exchanged before anyone
knows whether the ranks mean the same. It says what the rank is calling, from which line, and holds the tensor where
there is room.
"""

from __future__ import annotations

import marshal
import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

from tpviz.communicator import Call, call

SLOT_BYTES = 4096
"""On gloo's loopback an exchange of 256 bytes takes as long as one of 64 KiB."""

_PREFIX = 4
_ALIGNED = 16  # a tensor's bytes begin where any dtype may
_HEADER_BYTES = 1024
_LONGEST_FILE_NAME = 300  # in the slot; the rank's own record has all of it


class Facts(NamedTuple):
    """A call in plain values, which ``marshal`` writes: all but the tensor's numbers and a split's color."""

    kind: str
    reduction: str | None
    peer: int | None
    dim: int | None
    other_dim: int | None
    shape: tuple[int, ...] | None
    dtype: str | None
    on_cpu: bool
    needs_grad: bool
    phase: str
    file: str
    line: int
    source_peer: int | None


class Message(NamedTuple):
    """What one rank says in its slot."""

    twin: int
    """Which of the communicators of the same ranks the call is for."""
    facts: Facts
    inside: bool
    """Whether the tensor is in the slot too."""


def facts_of(mine: Call) -> Facts:
    """Return a call's facts."""
    shape, dtype = (None, None) if mine.tensor is None else (tuple(mine.tensor.shape), str(mine.tensor.dtype)[6:])
    options = (mine.kind, mine.reduction, mine.peer, mine.dim, mine.other_dim)
    return Facts(*options, shape, dtype, mine.on_cpu, mine.needs_grad, mine.phase, *mine.site, mine.source_peer)


def call_of(facts: Facts, color: Any = None) -> Call:
    """Return the call of these facts, with a tensor that has no numbers."""
    tensor = None
    if facts.shape is not None:
        tensor = torch.empty(facts.shape, dtype=getattr(torch, facts.dtype or ""), device="meta")
    options = (facts.reduction, facts.dim, facts.other_dim, facts.peer, facts.source_peer)
    made = call(facts.kind, tensor, facts.phase, (facts.file, facts.line), *options, color, facts.needs_grad)
    return made._replace(on_cpu=facts.on_cpu)


class Slots:
    """The memory of the slot that this rank sends, ``own``, and of those that come, ``all``."""

    def __init__(self, ranks: int) -> None:
        self.own = torch.zeros(SLOT_BYTES, dtype=torch.uint8)
        self.all = torch.zeros(ranks * SLOT_BYTES, dtype=torch.uint8)
        self._own = self.own.numpy().data
        self._all = self.all.numpy().data
        self._header_bytes = 0

    def write(self, message: Message, x: Tensor | None) -> None:
        """Write this rank's message into ``own``, and the tensor's numbers where the message says so."""
        facts = message.facts
        if len(facts.file.encode()) > _LONGEST_FILE_NAME:
            facts = facts._replace(file=facts.file.encode()[-_LONGEST_FILE_NAME:].decode(errors="ignore"))
        # In later versions of marshal's format the bytes depend on who else holds a value.
        header = marshal.dumps((message.twin, tuple(facts), message.inside), 2)
        start = self._header_bytes = _PREFIX + len(header)
        self._own[:start] = len(header).to_bytes(_PREFIX, "little") + header
        if message.inside and x is not None and x.numel():
            start = _aligned(start)
            self._own[start : start + x.nbytes] = as_bytes(x).numpy().data

    def agree(self) -> bool:
        """Return whether all ranks say the same to the byte; the usual case, and quicker than to read them."""
        mine, size = self._own[: self._header_bytes], self._header_bytes
        slots = range(0, len(self._all), SLOT_BYTES)
        return all(self._all[start : start + size] == mine for start in slots)

    def read(self, rank: int) -> Message:
        """Return what a rank said."""
        start, end = self._header(rank)
        twin, facts, inside = marshal.loads(self._all[start:end])
        return Message(twin, Facts(*facts), inside)

    def tensor(self, rank: int, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """Return the tensor in a rank's slot; a view of the slot's memory, good until the next exchange."""
        start = _aligned(self._header(rank)[1])  # a slot itself begins where any dtype may
        return self.all[start : start + math.prod(shape) * dtype.itemsize].view(dtype).view(shape)

    def _header(self, rank: int) -> tuple[int, int]:
        start = rank * SLOT_BYTES
        size = int.from_bytes(self._all[start : start + _PREFIX], "little")
        return start + _PREFIX, start + _PREFIX + size


def _aligned(start: int) -> int:
    return -(-start // _ALIGNED) * _ALIGNED


def fits(x: Tensor | None) -> bool:
    """Return whether there is room for a tensor in a slot: the same answer on all ranks that bring the same."""
    return x is None or (x.is_cpu and x.nbytes <= SLOT_BYTES - _HEADER_BYTES)


def as_bytes(x: Tensor) -> Tensor:
    """Return a tensor's numbers as one row of bytes, which moves whatever the dtype."""
    return x.resolve_conj().resolve_neg().contiguous().view(-1).view(torch.uint8)
