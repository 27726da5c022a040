"""Waiting a moment for a send or a recv among processes, which gloo itself cannot (communicators).

Where a wait for one of them times out, gloo takes the other rank for lost and closes all connections; for a collective
it does not. So a thread waits as long as it takes, and the rank waits for the thread, as often and as long as it likes.
"""

from __future__ import annotations

import threading
from datetime import timedelta
from queue import SimpleQueue
from typing import Protocol


class Work(Protocol):
    """What is used of ``torch.distributed.Work``: a send or a recv that is under way."""

    def wait(self) -> bool:
        """Wait for the end, or raise."""


class Waiter:
    """The thread of one run; it starts with the first work. A run that breaks off leaves it where it waits."""

    def __init__(self) -> None:
        self._asked: SimpleQueue[Awaited | None] = SimpleQueue()
        self._started = False

    def awaited(self, work: Work) -> Awaited:
        """Return a work that can be waited for with a limit."""
        return Awaited(self, work)

    def ask(self, awaited: Awaited) -> None:
        """Let the thread wait; a rank waits for one work after the other, and so does its thread."""
        if not self._started:
            self._started = True
            threading.Thread(target=self._serve, daemon=True).start()
        self._asked.put(awaited)

    def close(self) -> None:
        """Let the thread end."""
        if self._started:
            self._asked.put(None)

    def _serve(self) -> None:
        while (awaited := self._asked.get()) is not None:
            awaited.end()


class Awaited:
    """A send or a recv that is under way, as ``standing.Board`` waits for it. Made by a ``Waiter``."""

    def __init__(self, waiter: Waiter, work: Work) -> None:
        self._waiter = waiter
        self._work = work
        self._asked = False
        self._over = threading.Event()
        self._error: RuntimeError | None = None

    def end(self) -> None:
        """In the thread: wait for the end, however long it takes."""
        try:
            self._work.wait()
        except RuntimeError as error:
            self._error = error
        self._over.set()

    def wait(self, timeout: timedelta) -> bool:
        """Wait for the end, or so long.

        Raises:
            RuntimeError: the connection has broken; or the time is up, and ``is_completed`` says so.
        """
        if not self._asked:
            self._asked = True
            self._waiter.ask(self)
        if not self._over.wait(timeout.total_seconds()):
            raise RuntimeError("not yet")
        if self._error is not None:
            raise self._error
        return True

    def is_completed(self) -> bool:
        """Return whether the rank has waited for it and it is over."""
        return self._over.is_set()
