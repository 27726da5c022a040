"""Real ranks: a communicator over torch.distributed, for one process a rank (communicators).

A collective begins with one slot from every rank (``wire.py``), so each rank sees what the others call before a number
is used: by itself gloo returns wrong numbers or ends the process, and NCCL hangs. A small tensor travels in its slot,
and is reduced here, in rank order, as on simulated ranks; larger ones travel beside the slots or after them
(``transfers.py``).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable
from datetime import timedelta
from threading import get_ident
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup, Work

from tpviz import diagnosis
from tpviz.communicator import Call, Communicator
from tpviz.i18n import _
from tpviz.moving import result
from tpviz.standing import Board, Needs, PeerLost, Point, Store, Unmet
from tpviz.transfers import exchange, started, transfer
from tpviz.waiting import Awaited, Waiter
from tpviz.wire import Facts, Message, Slots, as_bytes, call_of, facts_of, fits

BACKENDS = {"gloo": "gloo", "nccl": "cpu:gloo,cuda:nccl"}
"""torch.distributed's names: with NCCL the slots, which are in the CPUs' memory, still go by gloo."""

TIMEOUT = timedelta(days=7)
"""torch.distributed's own, half an hour, would end a run whose ranks are at work; who waits in vain is found out."""

_HEADER, _ACKNOWLEDGEMENT, _DATA = 1, 2, 3  # tags of what a send's two ranks exchange


class Entry(NamedTuple):
    """One call of a rank's record."""

    communicator: int
    """0 is the world's; ``split`` makes the next."""
    ranks: tuple[int, ...]
    facts: Facts
    color: Hashable = None


class _Joint:
    """What this process's communicators of the same ranks share: the process group, and memory for slots."""

    def __init__(self, group: ProcessGroup, ranks: tuple[int, ...]) -> None:
        self.group = group
        self.ranks = ranks
        self.slots = Slots(len(ranks))
        self.parts = list(self.slots.all.chunk(len(ranks)))
        self.came = Slots(1)


class World:
    """This process's place among the ranks: its number, its device, the process groups, and the store."""

    def __init__(self, group: ProcessGroup, store: Store, device: torch.device, backend: str) -> None:
        self.rank, self.size = group.rank(), group.size()
        self.group = group
        self.store = store
        self.device = device
        self._backend = backend
        ranks = tuple(range(self.size))
        self._joints = {ranks: _Joint(group, ranks)}

    def leave(self) -> None:
        """Let go of the process groups: a process that ends while anyone holds one is aborted now and then."""
        for joint in self._joints.values():
            del joint.group
        self._joints.clear()
        del self.group

    def joint(self, ranks: tuple[int, ...]) -> _Joint:
        """Return what communicators of these ranks share; all of them must call it when one of them first does."""
        joint = self._joints.get(ranks)
        if joint is None:
            group = dist.new_group(
                list(ranks), timeout=TIMEOUT, backend=BACKENDS[self._backend], use_local_synchronization=True
            )
            joint = self._joints[ranks] = _Joint(group, ranks)
        return joint


class Seat:
    """What one run knows of the rank in this process. ``close`` ends its communicators."""

    def __init__(self, world: World, run: str) -> None:
        self.world = world
        self.board = Board(world.store, run, world.rank, world.size)
        self.waiter = Waiter()
        self.record: list[Entry] = []
        self.communicators = 0
        self.twins: defaultdict[tuple[int, ...], int] = defaultdict(int)
        self._ident: int | None = get_ident()

    def communicator(self, ranks: tuple[int, ...]) -> DistributedCommunicator:
        """Return a new communicator of these ranks."""
        return DistributedCommunicator(self, ranks)

    def close(self) -> None:
        """End the communicators."""
        self._ident = None
        self.waiter.close()

    def check(self) -> None:
        """Refuse a call after the run, or from another thread."""
        if self._ident != get_ident():
            if self._ident is None:
                raise RuntimeError(_("this communicator died with its run: use it inside of the program only."))
            message = _("rank {rank}'s communicator was used from another thread: it belongs to the rank's own.")
            raise RuntimeError(message.format(rank=self.world.rank))


class DistributedCommunicator(Communicator):
    """A communicator whose ranks are processes. Made by a ``Seat``."""

    def __init__(self, seat: Seat, ranks: tuple[int, ...]) -> None:
        self._seat = seat
        self._joint = seat.world.joint(ranks)
        self._number = seat.communicators
        seat.communicators += 1
        self._twin = seat.twins[ranks]
        seat.twins[ranks] += 1
        self.ranks = ranks
        self.rank = ranks.index(seat.world.rank)
        self.world_size = len(ranks)
        self.device = seat.world.device

    def __repr__(self) -> str:
        return _("communicator of rank {rank} of {size}, a process").format(rank=self.rank, size=self.world_size)

    def __reduce__(self) -> Any:
        raise TypeError(_("a communicator belongs to its rank and its run: it cannot be sent to another process."))

    def _exchange(self, mine: Call) -> Any:
        self._seat.check()
        facts = facts_of(mine)
        self._seat.record.append(Entry(self._number, self.ranks, facts, mine.color))
        if mine.source_peer is not None or (mine.peer is not None and mine.kind != "broadcast"):
            return self._send_and_receive(mine, facts)
        x, begun = mine.tensor, None
        meeting, number = self._begin_meeting(mine, facts)
        if x is not None and not fits(x):
            # Its result is used only if the ranks turn out to mean the same: the slots travel beside the numbers.
            begun = exchange(self._joint.group, mine, self.world_size, self.rank)
        shapes, inside = self._meet(mine, facts, meeting, number)
        if begun is not None:
            works, result_of = begun
            self._wait_for_data(*works)
            return result_of()
        if mine.kind == "split":
            return self._split(mine.color)
        if x is None:  # a barrier
            return None
        if inside:
            slots = self._joint.slots
            return result(mine, [slots.tensor(rank, shape, x.dtype) for rank, shape in enumerate(shapes)], self.rank)
        return transfer(self._joint.group, mine, shapes, self.rank, self._wait_for_data)

    def _begin_meeting(self, mine: Call, facts: Facts) -> tuple[Work, int]:
        """Begin to exchange slots; return which of the group's meetings it is, too."""
        joint = self._joint
        joint.slots.write(Message(self._twin, facts, fits(mine.tensor)), mine.tensor)
        # dist.all_gather would check what is right by construction.
        work = joint.group.allgather([joint.parts], [joint.slots.own])
        return work, self._seat.board.come_to(("meeting", self.ranks))

    def _meet(self, mine: Call, facts: Facts, meeting: Work, number: int) -> tuple[list[Any], bool]:
        """Wait for all slots, check that the ranks mean the same; return their shapes, and whether slots hold all."""
        slots = self._joint.slots
        self._seat.board.wait([meeting], lambda: self._waits(mine, number))
        if slots.agree():
            return [facts.shape] * self.world_size, fits(mine.tensor)
        messages = [slots.read(rank) for rank in range(self.world_size)]
        calls = [call_of(message.facts) for message in messages]
        self._check_twins(messages, calls)
        if any(call.agreement() != calls[0].agreement() for call in calls):
            raise Unmet(diagnosis.mismatch({}, self.ranks, calls, diagnosis.disagreement(calls)))
        if mine.tensor is not None:
            tensors = [call.tensor for call in calls if call.tensor is not None]
            if (reason := diagnosis.uneven(mine, tensors)) is not None:
                raise Unmet(diagnosis.mismatch({}, self.ranks, calls, reason))
        return [message.facts.shape for message in messages], all(message.inside for message in messages)

    def _check_twins(self, messages: list[Message], calls: list[Call]) -> None:
        if any(message.twin != self._twin for message in messages):
            waits = {rank: diagnosis.waiting(call, self.ranks) for rank, call in zip(self.ranks, calls, strict=True)}
            raise Unmet(diagnosis.stuck(waits, False, False))

    def _waits(self, mine: Call, number: int) -> dict[str, object]:
        """Return what to post of a rank that waits in a collective: it needs all to come to this meeting."""
        needs = tuple((rank, ("meeting", self.ranks), number) for rank in self.ranks)
        return {"words": diagnosis.waiting(mine, self.ranks), "needs": (needs,)}

    def _wait_for_data(self, *works: Work) -> None:
        """Wait for works that the ranks have agreed on: only a process that is gone can keep them from ending."""
        try:
            for work in works:
                work.wait()
        except RuntimeError as error:
            raise PeerLost(str(error)) from error

    def _split(self, color: Hashable) -> Communicator:
        colors: list[Any] = [None] * self.world_size
        if self.world_size == 1:
            colors = [color]
        else:
            try:
                dist.all_gather_object(colors, color, group=self._joint.group)
            except RuntimeError as error:
                raise PeerLost(str(error)) from error
        return self._seat.communicator(
            tuple(rank for rank, theirs in zip(self.ranks, colors, strict=True) if theirs == color)
        )

    def _send_and_receive(self, mine: Call, facts: Facts) -> Tensor | None:
        """Send, receive, or both; a send ends when its tensor is being received (a rendezvous)."""
        joint, board, x = self._joint, self._seat.board, mine.tensor
        group, own, came = joint.group, joint.slots.own, joint.came.all
        sending: list[Awaited] = []
        receiving: list[Awaited] = []
        where = self._waits_for_peers(mine, sending, receiving)
        me = self.rank
        inside = fits(x)
        if mine.peer is not None:
            joint.slots.write(Message(self._twin, facts, inside), x)
            acknowledged = torch.empty(1, dtype=torch.uint8)
            sending.append(self._awaited(dist.isend(own, group=group, group_dst=mine.peer, tag=_HEADER)))
            answer = dist.irecv(acknowledged, group=group, group_src=mine.peer, tag=_ACKNOWLEDGEMENT)
            sending.append(self._awaited(answer))
            board.come_to(self._point("sent", me, mine.peer))
        message = None
        if mine.source_peer is not None:
            receiving.append(self._awaited(dist.irecv(came, group=group, group_src=mine.source_peer, tag=_HEADER)))
            board.wait(receiving, where)
            message = joint.came.read(0)
            self._check_twins([message], [mine])
            yes = torch.zeros(1, dtype=torch.uint8)
            answer = dist.isend(yes, group=group, group_dst=mine.source_peer, tag=_ACKNOWLEDGEMENT)
            board.come_to(self._point("taken", mine.source_peer, me))
            board.wait([self._awaited(answer)], where)
        board.wait(sending, where)
        return self._move(mine, inside, message)

    def _move(self, mine: Call, inside: bool, message: Message | None) -> Tensor | None:
        """Send what was not in this rank's slot, and return what is received."""
        operations, received = [], None
        group = self._joint.group
        if mine.tensor is not None and not inside:
            data = as_bytes(mine.tensor)
            operations.append(dist.P2POp(dist.isend, data, group=group, group_peer=mine.peer, tag=_DATA))
        if message is not None:
            shape, dtype = message.facts.shape or (), getattr(torch, message.facts.dtype or "")
            if message.inside:
                received = self._joint.came.tensor(0, shape, dtype).clone()
            else:
                device = torch.device("cpu") if message.facts.on_cpu else self.device
                received = torch.empty(shape, dtype=dtype, device=device)
                memory = received.view(-1).view(torch.uint8)
                operations.append(dist.P2POp(dist.irecv, memory, group=group, group_peer=mine.source_peer, tag=_DATA))
        if operations:
            self._wait_for_data(*dist.batch_isend_irecv(operations))
        return received

    def _awaited(self, work: Work | None) -> Awaited:
        return self._seat.waiter.awaited(started(work))

    def _waits_for_peers(
        self, mine: Call, sending: list[Awaited], receiving: list[Awaited]
    ) -> Callable[[], dict[str, object]]:
        """Return the function that says what to post of a rank that waits for a send's or a recv's other side."""

        board, me = self._seat.board, self.rank

        def where() -> dict[str, object]:
            needs: list[Needs] = []
            if mine.peer is not None and not (sending and all(work.is_completed() for work in sending)):
                times = board.times(self._point("sent", me, mine.peer))
                needs.append(((self.ranks[mine.peer], self._point("taken", me, mine.peer), times),))
            source = mine.source_peer
            if source is not None and not all(work.is_completed() for work in receiving):
                times = board.times(self._point("taken", source, me)) + 1
                needs.append(((self.ranks[source], self._point("sent", source, me), times),))
            # Else only this process's own thread has to hand over what is done.
            return {"words": diagnosis.waiting(mine, self.ranks), "needs": tuple(needs) or ((),), "is_direct": True}

        return where

    def _point(self, what: str, source: int, destination: int) -> Point:
        """Return what counts the messages between two of this communicator's ranks."""
        return what, self.ranks, self._twin, source, destination
