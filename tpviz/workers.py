"""The threads that play ranks, kept between runs (communicators)."""

from __future__ import annotations

import _thread
import contextlib
import ctypes
import os
import threading
import time
from typing import Protocol

import torch

from tpviz.i18n import _

# How long an ending thread may go on with its program's clean-up; for as long again it is told to stop. Only a program
# deep in one C call (a sleep, a huge matmul) takes longer: its thread ends after that call, and its communicator is
# dead at once.
_PATIENCE_SECONDS = 1.0


class Released(BaseException):
    """Unwinds a rank's program after its run has failed elsewhere; never seen by a reader."""


class Part(Protocol):
    """What a worker plays: one rank of one run."""

    def play(self) -> bool:
        """Run to the end, and say whether the thread may play another part."""


class Worker:
    """A daemon thread that sleeps on a lock of its own, and plays one part after another."""

    def __init__(self) -> None:
        self.lock = _thread.allocate_lock()
        self.lock.acquire()
        self.part: Part | None = None
        self._up = _thread.allocate_lock()
        self._up.acquire()
        self.thread = threading.Thread(target=self._loop, name="tpviz rank", daemon=True)
        # A rank computes on one intra-op thread: the pools of many ranks would fight over few cores, and the bits of
        # a float sum would depend on the number of cores. torch also takes the number as the default of threads to
        # come, so the caller's is put back.
        callers = torch.get_num_threads()
        self.thread.start()
        self._up.acquire()
        torch.set_num_threads(callers)

    def _loop(self) -> None:
        torch.set_num_threads(1)
        torch.autograd.set_multithreading_enabled(False)  # backward in the rank's own thread, on a GPU too
        if hasattr(os, "SCHED_BATCH"):
            # A woken rank waits until its waker sleeps; else it preempts the waker, which still holds Python's lock,
            # and has to sleep again: twice the time for passing the baton on one core. A sandbox may refuse.
            with contextlib.suppress(OSError):
                os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
        self._up.release()
        with contextlib.suppress(Released):
            while True:
                self.lock.acquire()
                part, self.part = self.part, None
                if part is None or not part.play():
                    return
                del part  # an idle thread keeps nothing of the last run alive

    def throw(self) -> None:
        """Raise ``Released`` in the thread, at the next line of Python that it runs."""
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(self.thread.ident or 0), ctypes.py_object(Released))

    def end(self) -> None:
        """Wake the thread to end, and wait for it, though not for ever."""
        self.part = None
        # The lock may be released already: by the rank that passed the baton while the run was interrupted.
        with contextlib.suppress(RuntimeError):
            self.lock.release()
        self.thread.join(_PATIENCE_SECONDS)
        insist_until = time.monotonic() + _PATIENCE_SECONDS
        while self.thread.is_alive() and time.monotonic() < insist_until:
            self.throw()  # again and again: a program may catch it
            self.thread.join(0.01)


_idle: list[Worker] = []


def hire(number: int) -> list[Worker]:
    """Return idle workers, and new ones where they do not suffice."""
    hired: list[Worker] = []
    try:
        while len(hired) < number:
            hired.append(_idle.pop() if _idle else Worker())
    except BaseException as error:
        _idle.extend(hired)
        if not isinstance(error, RuntimeError):  # an interrupt
            raise
        message = _("this machine could start only {started} of {number} rank threads: use fewer ranks.")
        raise RuntimeError(message.format(started=len(hired), number=number)) from error
    return hired


def dismiss(workers: list[Worker]) -> None:
    """Keep workers, whose parts are over, for the next run."""
    _idle.extend(workers)


def end_idle() -> None:
    """End the threads that wait for a next run."""
    while _idle:
        _idle.pop().end()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_idle.clear)  # threads do not live on in a forked process
