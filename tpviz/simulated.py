"""Simulated ranks: one thread a rank, of which exactly one runs at a time (communicators).

A rank runs until it must wait in a collective; then the baton passes to the next rank that can go on, in rank order.
So a run is deterministic, needs no time-out, and knows at once when nobody can go on: that is a mismatch, and its
error says where each rank stands.

How the baton passes: each rank's thread sleeps on a lock of its own, and whoever holds the baton releases exactly one
of these locks. After a failure the holder's program is unwound first, then, one after the other, the rest.
"""

from __future__ import annotations

import _thread
import contextlib
import contextvars
import functools
import os
import sys
import threading
import warnings
from collections.abc import Callable, Sequence
from threading import get_ident
from typing import Any, NoReturn

import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only

from tpviz import diagnosis, workers
from tpviz.captured import Captured
from tpviz.communicator import Call, Communicator
from tpviz.errors import AbandonedByRank, CallSiteWarning, CollectiveMismatch, RankError
from tpviz.i18n import _
from tpviz.moving import results
from tpviz.source import Site, calls_programs, describe, name_and_line
from tpviz.streams import Modes, Streams
from tpviz.trace import Event, Trace
from tpviz.workers import Released, Worker

Program = Callable[..., Any]

_READY, _WAITING, _DONE = range(3)

_playing = threading.local()  # .rank: the rank that the current thread plays
_one_run = threading.Lock()  # runs of several threads take turns, since torch's generators are process-wide


class _Group:
    """The ranks that a communicator joins, and their calls of its current collective."""

    def __init__(self, members: Sequence[_Rank]) -> None:
        self.members = members
        self.ranks = tuple(member.number for member in members)
        self.calls: list[Any] = [None] * len(members)
        self.arrived = 0

    # Made when first needed, as are most of a rank's attributes: to make what is not needed is a good part of a small
    # run. Of collectives whose ranks came from different sites: what they agreed on and all their sites, and which two
    # ranks (i < j) stood at which two sites.
    @functools.cached_property
    def met(self) -> set[tuple[object, ...]]:
        return set()

    @functools.cached_property
    def pairs(self) -> set[tuple[object, ...]]:
        return set()


_NOBODY = _Group([])


class _Rank:
    """What the run knows of one rank."""

    # Not set in __init__: most ranks never need most of these.
    state = _READY
    ident: int | None = None  # the thread in which this rank's communicators may be used, while it plays
    group: _Group | None = None
    call: Call | None = None
    sending = receiving = False
    result: Any = None
    output: Any = None
    error: BaseException | None = None
    inner: Simulation | None = None  # the run that this rank's program waits for

    def __init__(self, run: Simulation, number: int, worker: Worker, captured: Captured, streams: Any) -> None:
        self.run = run
        self.number = number
        self.worker = worker
        self.lock = worker.lock
        # What is the rank's own, and changes with the baton: captured tensors, and random streams.
        self.program, self.args, self.captured = captured.copies()
        self.streams = streams
        self.context = contextvars.copy_context()  # a kernel finds a print's cell by it
        worker.part = self

    def play(self) -> bool:
        """Play this rank (see ``workers.Part``)."""
        return self.run.play(self)


class SimulatedCommunicator(Communicator):
    """A communicator whose ranks are threads of this process."""

    def __init__(self, rank: _Rank, group: _Group, number: int, device: torch.device) -> None:
        self._rank = rank
        self._group = group
        self.ranks = group.ranks
        self.rank = number
        self.world_size = len(group.ranks)
        self.device = device

    def _exchange(self, mine: Call) -> Any:
        rank = self._rank
        if rank.ident != get_ident():
            if rank.ident is None:
                raise RuntimeError(_("this communicator died with its run: use it inside of the program only."))
            message = _("rank {rank}'s communicator was used from another thread: it belongs to the rank's own.")
            raise RuntimeError(message.format(rank=rank.number))
        result = rank.run.meet(rank, self._group, self.rank, mine)
        if mine.kind == "split":
            return SimulatedCommunicator(rank, result, result.ranks.index(rank.number), self.device)
        return result

    def __repr__(self) -> str:
        return _("communicator of rank {rank} of {size}, simulated").format(rank=self.rank, size=self.world_size)


class Simulation:
    """One run of ``program(comm, *args)`` on simulated ranks."""

    _results: Callable[[Call, list[Tensor]], Sequence[Any]] = staticmethod(results)

    def __init__(self, program: Program, args: tuple[Any, ...], ranks: int) -> None:
        self._captured = Captured(program, args)
        self._size = ranks
        self._modes = Modes()
        self._streams = Streams()
        self._ranks: list[_Rank] = []
        self._world = _NOBODY
        self._active: _Rank | None = None
        self._failed: BaseException | None = None
        self._raised: list[_Rank] = []
        self._events: list[Event] = []
        self._site_names: dict[Site, str] = {}
        self._warnings: list[tuple[str, Site]] = []
        self._warned_of: set[frozenset[Site]] = set()
        self._over = _thread.allocate_lock()
        self._over.acquire()

    def run(self) -> tuple[list[Any], Trace]:
        """Run the programs to their end; return each rank's output and the trace, or raise what went wrong."""
        __tracebackhide__ = True  # IPython and pytest: the reader's traceback is about the reader's lines
        outer: _Rank | None = getattr(_playing, "rank", None)
        if outer is not None:  # a run inside of a rank's program: the outer run holds the turn
            outer.inner = self
            try:
                return self._run()
            finally:
                outer.inner = None
        with _one_run:
            return self._run()

    def _run(self) -> tuple[list[Any], Trace]:
        __tracebackhide__ = True
        callers = self._streams.states()
        crew = workers.hire(self._size)
        try:
            self._ranks = [_Rank(self, number, worker, self._captured, callers) for number, worker in enumerate(crew)]
            self._world = _Group(self._ranks)
            self._ranks[0].lock.release()
            _wait(self._over)
            outputs = [rank.output for rank in self._ranks]
        except BaseException as interrupt:
            self.interrupt(interrupt)
            raise
        finally:
            try:
                if self._failed is None:
                    workers.dismiss(crew)
                else:  # unwind the programs one after the other, and end their threads
                    for worker in crew:
                        worker.end()
            finally:  # also where a second interrupt comes meanwhile
                self._streams.put(callers)
                self._captured.put(self._captured.originals)
                failure = self._let_go()
        if failure is not None:
            try:
                raise failure
            finally:
                del failure  # whose traceback holds this frame
        for text, site in self._warnings:
            # Shown at the learner's line, named as the reader knows it: a kernel's file name carries its pid.
            file, line = name_and_line(site)
            warnings.warn_explicit(text, CallSiteWarning, file, line)
        return outputs, Trace(self._events, [text for text, _site in self._warnings])

    def _let_go(self) -> BaseException | None:
        """End the communicators, and free what refers to each other now, not when Python's collector comes by.

        Returns why the run failed, if it did.
        """
        for rank in self._ranks:
            rank.ident = rank.group = rank.call = rank.error = None
        self._ranks, self._raised = [], []
        self._active = None
        self._world = _NOBODY
        failure = self._failed
        if failure is not None:  # it stays failed for a program that does not end
            self._failed = Released()
        return failure

    def _wake_waiting(self) -> None:
        """Wake the thread that waits for the run; an interrupt may have done so already."""
        with contextlib.suppress(RuntimeError):
            self._over.release()

    def interrupt(self, cause: BaseException) -> None:
        """Stop the rank that runs, from the thread that waits for the run (or for the run around it)."""
        self._failed = self._failed or cause
        active = self._active
        if active is None or active.state == _DONE:
            return
        if active.inner is not None:
            inner = active.inner
            inner.interrupt(cause)
            inner._wake_waiting()  # the rank's own thread, which unwinds the inner run
        active.worker.throw()

    def play(self, rank: _Rank) -> bool:
        """Play one rank in the current thread, which has just got the baton; False ends the thread."""
        try:
            return self._play(rank)
        except BaseException as error:  # an interrupt between two lines, or a fault here: the run must not wait for it
            self._failed = self._failed or error
            self._wake_waiting()
            return False

    def _play(self, rank: _Rank) -> bool:
        if self._failed is None:
            _playing.rank = rank
            rank.ident = get_ident()
            try:
                self._take_baton(rank)
                rank.output = detached(rank.context.run(self._call_program, rank))
            except Released:
                pass
            except BaseException as error:
                rank.error = error
                self._raised.append(rank)
            rank.state = _DONE
            rank.ident = _playing.rank = None
            if self._failed is None:
                follower = self._next(rank.number)
                if follower is not None:
                    follower.lock.release()
                    return True
                self._failed = self._outcome()
            if self._active is rank:  # the other ranks of a failed run are unwound by the waiting thread
                self._wake_waiting()
        return self._failed is None

    def _call_program(self, rank: _Rank) -> Any:
        comm = SimulatedCommunicator(rank, self._world, rank.number, self._modes.device)
        return self._modes.call(rank.program, comm, *rank.args)

    def meet(self, rank: _Rank, group: _Group, index: int, call: Call) -> Any:
        """Bring one rank's call to its group's collective; return its result once every rank is there."""
        if self._failed is not None:
            raise Released
        rank.call, rank.group, rank.state = call, group, _WAITING
        if call.source_peer is None and (call.peer is None or call.kind == "broadcast"):
            group.calls[index] = call
            group.arrived += 1
            if group.arrived == len(group.calls):
                self._complete(group)
        else:
            self._send_and_receive(rank, group, index, call)
        self._pass_baton(rank)
        result, rank.result = rank.result, None
        return result

    def _pass_baton(self, rank: _Rank) -> None:
        follower = self._next(rank.number)
        if follower is rank:  # alone in its group, or the only one who can go on
            return
        if follower is None:
            self._failed = self._outcome()
            raise Released
        rank.streams = self._streams.states()
        if self._captured.rebound:
            rank.captured = self._captured.values()
        follower.lock.release()
        rank.lock.acquire()
        if self._failed is not None:
            raise Released
        self._take_baton(rank)

    def _take_baton(self, rank: _Rank) -> None:
        self._active = rank
        self._streams.put(rank.streams)
        if rank.captured:
            self._captured.put(rank.captured)

    def _next(self, number: int) -> _Rank | None:
        """Return the next rank after this one that can go on, in rank order and round again."""
        ranks = self._ranks
        for rank in ranks[number + 1 :]:
            if rank.state == _READY:
                return rank
        for rank in ranks[: number + 1]:
            if rank.state == _READY:
                return rank
        return None

    def _complete(self, group: _Group) -> None:
        """Every rank of the group has come: check that they mean the same, compute, record, let them go on."""
        calls: list[Call] = group.calls
        first = calls[0]
        agreement, sites_differ = first.agreement(), False
        for call in calls:
            if call.agreement() != agreement:
                self._fail(diagnosis.mismatch(self._stands(), group.ranks, calls, diagnosis.disagreement(calls)))
            sites_differ = sites_differ or call.site != first.site
        if sites_differ:
            self._check_sites(group)
        if first.kind == "split":
            answers: Sequence[Any] = self._split(group)
        elif first.tensor is None:  # a barrier
            self._record(first, group.ranks, (), None, 0)
            answers = [None] * len(calls)
        else:
            tensors: list[Tensor] = [call.tensor for call in calls]  # type: ignore[misc]
            shape, payload = first.whole(tensors)
            if (reason := diagnosis.uneven(first, tensors)) is not None:
                self._fail(diagnosis.mismatch(self._stands(), group.ranks, calls, reason))
            answers = self._results(first, tensors)
            self._record(first, group.ranks, shape, first.tensor.dtype, payload)
        for member, answer in zip(group.members, answers, strict=True):
            member.result, member.state = answer, _READY
        group.calls = [None] * len(calls)
        group.arrived = 0

    def _record(
        self, call: Call, ranks: tuple[int, ...], shape: tuple[int, ...], dtype: torch.dtype | None, payload: int
    ) -> None:
        name = self._site_names.get(call.site)
        if name is None:
            name = self._site_names[call.site] = describe(call.site)
        options = (call.reduction, call.dim, call.other_dim)
        self._events.append(Event(call.kind, ranks, call.phase, shape, dtype, payload, name, options))

    def _split(self, group: _Group) -> list[_Group]:
        members: dict[Any, list[_Rank]] = {}
        for member, call in zip(group.members, group.calls, strict=True):
            members.setdefault(call.color, []).append(member)
        groups = {color: _Group(some) for color, some in members.items()}
        return [groups[call.color] for call in group.calls]

    def _send_and_receive(self, rank: _Rank, group: _Group, index: int, call: Call) -> None:
        rank.sending, rank.receiving = call.peer is not None, call.source_peer is not None
        if call.peer is not None:
            receiver = group.members[call.peer]
            theirs = receiver.call
            if receiver.receiving and receiver.group is group and theirs is not None and theirs.source_peer == index:
                self._deliver(rank, receiver)
        if call.source_peer is not None:
            sender = group.members[call.source_peer]
            theirs = sender.call
            if sender.sending and sender.group is group and theirs is not None and theirs.peer == index:
                self._deliver(sender, rank)

    def _deliver(self, sender: _Rank, receiver: _Rank) -> None:
        call = sender.call
        assert call is not None
        assert call.tensor is not None
        receiver.result = call.tensor.clone()
        sender.sending = receiver.receiving = False
        ranks, shape = (sender.number, receiver.number), tuple(call.tensor.shape)
        self._record(call._replace(kind="send"), ranks, shape, call.tensor.dtype, call.tensor.nbytes)
        for rank in (sender, receiver):
            if not rank.sending and not rank.receiving:
                rank.state = _READY

    def _check_sites(self, group: _Group) -> None:
        """Warn where ranks met from different lines; two ranks that did so crosswise have swapped their calls."""
        sites = tuple(call.site for call in group.calls)
        # Calls that disagree (broadcasts from different roots) could not have met, so they are not swapped ones.
        agreement = group.calls[0].agreement()
        if (agreement, sites) in group.met:
            return
        group.met.add((agreement, sites))
        lines = frozenset(sites)
        if lines not in self._warned_of:  # in a loop over the root, say, each rank stands at each line once
            self._warned_of.add(lines)
            self._warnings.append((diagnosis.different_lines(group.ranks, group.calls), sites[0]))
        for j, there in enumerate(sites):
            for i, here in enumerate(sites[:j]):
                if here != there:
                    if (agreement, i, there, j, here) in group.pairs:
                        self._fail(diagnosis.crossing(self._stands(), group.ranks, group.calls, i, j))
                    group.pairs.add((agreement, i, here, j, there))

    def _fail(self, message: str) -> NoReturn:
        self._failed = CollectiveMismatch(message)
        raise Released

    def _stands(self) -> dict[int, str]:
        """Return where each rank stands, in words."""
        words = {}
        for rank in self._ranks:
            if rank.error is not None:
                words[rank.number] = diagnosis.has_raised(rank.error)
            elif rank.state == _DONE:
                words[rank.number] = _("has returned")
            elif rank.state == _WAITING and rank.call is not None and rank.group is not None:
                words[rank.number] = diagnosis.waiting(rank.call, rank.group.ranks)
            else:
                words[rank.number] = _("is between two collectives")
        return words

    def _outcome(self) -> BaseException | None:
        """Nobody can go on: return None if all is well, else the error that says why."""
        waiting = [rank for rank in self._ranks if rank.state == _WAITING]
        if self._raised:
            return _rank_error(self._raised, diagnosis.lines("", self._stands()) if waiting else "")
        if not waiting:
            return None
        returned = len(waiting) < len(self._ranks)
        sending = any(rank.sending or rank.receiving for rank in waiting)
        return CollectiveMismatch(diagnosis.stuck(self._stands(), returned, sending))


calls_programs(Modes.call.__code__)
calls_programs(Modes.call_in_modes.__code__)
_MACHINERY = (__file__, Modes.call.__code__.co_filename)


def _rank_error(raised: Sequence[_Rank], others: str) -> RankError:
    """Return the error that stands for the first rank that raised, caused by the original."""
    rank = raised[0]
    original = rank.error
    assert original is not None
    traceback = original.__traceback__
    while traceback is not None and traceback.tb_frame.f_code.co_filename in _MACHINERY:
        traceback = traceback.tb_next  # the reader's traceback begins in the program
    original.__traceback__ = traceback
    message = _("rank {rank}: {error}").format(rank=rank.number, error=diagnosis.raised(original))
    kind = AbandonedByRank if others else RankError
    error = kind(message + others, rank.number)
    error.__cause__ = original
    for other in raised[1:]:
        error.add_note(
            _("rank {rank} raised as well: {error}").format(rank=other.number, error=diagnosis.raised(other.error))
        )
    if traceback is None and isinstance(original, TypeError):
        error.add_note(
            _("A rank program is a function program(comm, *args): the communicator comes first, then run's args.")
        )
    return error


def detached(value: Any) -> Any:
    """Return the value with every tensor in it detached, so that a run holds no graph and no rank's parameters."""
    kind = type(value)
    if kind is Tensor:
        return value.detach() if value.requires_grad else value
    if value is None or kind in (int, float, bool, str):
        return value
    if kind in (tuple, list):  # told apart here since torch's general way costs 40 µs
        return kind(map(detached, value))
    return tree_map_only(Tensor, Tensor.detach, value)


def _wait(lock: _thread.LockType) -> None:
    if sys.platform == "win32":  # there a blocked acquire does not see an interrupt
        while not lock.acquire(timeout=0.1):
            pass
    else:
        lock.acquire()


def shutdown() -> None:
    """End the idle threads that earlier runs left for the next one."""
    # In a rank's program the run holds the turn already.
    with contextlib.nullcontext() if getattr(_playing, "rank", None) else _one_run:
        workers.end_idle()


def _forget_turn() -> None:
    global _one_run
    _one_run = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_turn)
