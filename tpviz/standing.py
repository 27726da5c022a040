"""Where each rank stands, posted in a store that all ranks see: who waits long enough finds out that nobody can go on.

A collective among processes ends when the last rank comes, and says nothing of one that never will. So a rank that has
waited for a moment posts whom it needs where, a rank whose program is over posts that, and each that still waits looks
at all postings. Where everyone needs someone who waits elsewhere, or has ended without having come there, nobody will
ever go on. No time-out decides: a rank that computes for an hour has posted nothing, and is waited for. So is what was
sent, however late a busy machine hands it over.
"""

from __future__ import annotations

import pickle
import time
from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Any, NamedTuple, Protocol

from tpviz import diagnosis

PATIENCE = timedelta(seconds=0.2)
"""How long a rank waits before it posts, and between two looks."""

_BETWEEN_LOOKS_SECONDS = 0.05


class Store(Protocol):
    """What is used of ``torch.distributed.Store``."""

    def set(self, key: str, value: str, /) -> None:
        """Set a key."""

    def get(self, key: str, /) -> bytes:
        """Return a key's value."""

    def check(self, keys: list[str], /) -> bool:
        """Return whether the keys exist."""

    def wait(self, keys: list[str], timeout: timedelta, /) -> None:
        """Wait until the keys exist, or raise."""


def write(store: Store, key: str, pickled: bytes) -> None:
    """Put a pickled value into a store, as text, since it takes nothing else."""
    store.set(key, pickled.hex())


def read(store: Store, key: str) -> Any:
    """Return the value that ``write`` has put there."""
    return pickle.loads(bytes.fromhex(store.get(key).decode()))


class Work(Protocol):
    """What is used of ``torch.distributed.Work``: a collective that is under way."""

    def wait(self, timeout: timedelta, /) -> bool:
        """Wait for the end, or raise."""

    def is_completed(self) -> bool:
        """Return whether it is over."""


Point = Hashable
"""A point that a rank's program passes again and again, such as the collectives of a group."""

Needs = tuple[tuple[int, Point, int], ...]
"""Which ranks have to have come to which points, and how often, so that a rank that waits can go on."""


class Standing(NamedTuple):
    """Where a rank stands. ``number`` counts its postings, so that two looks can tell whether it has moved."""

    number: int
    state: str
    """"running", "waiting", "ended" or "raised"."""
    words: str
    passed: Mapping[Point, int]
    """How often it has come to which points. Who is there has sent what the others need from it there."""
    needs: tuple[Needs, ...] = ()
    """What it waits for: it goes on, or a step further, as soon as one of these is met."""
    is_direct: bool = False
    """Whether it waits for a send or a recv."""


class Unmet(BaseException):
    """The ranks do not meet: unwinds this rank's program with the message for the reader, who never sees this class."""


class PeerLost(BaseException):
    """The connection to another rank has broken, since its process is gone; never seen by a reader."""


class Board:
    """The postings of one run, and this rank's own."""

    def __init__(self, store: Store, run: str, rank: int, world_size: int) -> None:
        self._store = store
        self._keys = [f"tpviz/{run}/{number}" for number in range(world_size)]
        self._rank = rank
        self._number = 0
        self._passed: Counter[Point] = Counter()

    def come_to(self, point: Point) -> int:
        """Note that this rank has come to a point; return how often it has by now."""
        self._passed[point] += 1
        return self._passed[point]

    def times(self, point: Point) -> int:
        """Return how often this rank has come to a point."""
        return self._passed[point]

    def post(self, state: str, words: str = "", **details: object) -> None:
        """Post where this rank stands."""
        self._number += 1
        standing = Standing(self._number, state, words, dict(self._passed), **details)  # type: ignore[arg-type]
        write(self._store, self._keys[self._rank], pickle.dumps(tuple(standing)))

    def wait(self, works: Sequence[Work], where: Callable[[], dict[str, object]]) -> None:
        """Wait for works of ``torch.distributed``; ``where`` gives this rank's posting, if it has to wait long.

        Raises ``Unmet`` where nobody can go on, and ``PeerLost`` where a connection breaks.
        """
        posted: dict[str, object] | None = None
        for work in works:
            while not self._over(work):
                words = where()
                if words != posted:
                    self.post("waiting", **words)  # type: ignore[arg-type]
                    posted = words
                self._look()
        if posted is not None:
            self.post("running")  # before this rank goes on: see _look

    @staticmethod
    def _over(work: Work) -> bool:
        """Wait for a moment; return whether a work is over."""
        with suppress(RuntimeError):
            return work.wait(PATIENCE)
        if not work.is_completed():
            return False
        # It broke, or it ended well just after the moment was up; waiting for what is over tells which, at once.
        try:
            return work.wait(PATIENCE)
        except RuntimeError as error:
            raise PeerLost(str(error)) from error

    def _look(self) -> None:
        """Raise ``Unmet`` if nobody can go on.

        No rank goes on before it has overwritten its posting. So where two looks see the same, each rank stood as
        posted in between, or has just been let go by ranks that had come to where it needs them; those say so.
        """
        first = self._all()
        if first is None or not _nobody_can_go_on(first):
            return
        time.sleep(_BETWEEN_LOOKS_SECONDS)
        if self._all() == first:
            raise Unmet(_words(first))

    def _all(self) -> list[Standing] | None:
        """Return all ranks' postings, or None where a rank has posted nothing yet: it computes."""
        standings = []
        for key in self._keys:
            if not self._store.check([key]):
                return None
            standings.append(Standing(*read(self._store, key)))
        return standings


def _words(standings: Sequence[Standing]) -> str:
    stands = {rank: standing.words for rank, standing in enumerate(standings)}
    ended = any(standing.state in ("ended", "raised") for standing in standings)
    return diagnosis.stuck(stands, ended, any(standing.is_direct for standing in standings))


def _nobody_can_go_on(standings: Sequence[Standing]) -> bool:
    return all(
        standing.state != "running" and not any(_are_met(needs, standings) for needs in standing.needs)
        for standing in standings
    )


def _are_met(needs: Needs, standings: Sequence[Standing]) -> bool:
    """Return whether all have come to where they are needed, though they may be far beyond, or have ended, by now."""
    return all(standings[rank].passed.get(point, 0) >= times for rank, point, times in needs)
