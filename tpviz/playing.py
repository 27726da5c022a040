"""Plays the rank of this process in one run: sets its random stream and modes, calls the program (communicators)."""

from __future__ import annotations

import pickle
import sys
import threading
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import cloudpickle
import torch
from torch.utils._pytree import tree_map_only

from tpviz import diagnosis
from tpviz.captured import Captured
from tpviz.distributed import Entry, Seat, World
from tpviz.i18n import _
from tpviz.simulated import detached
from tpviz.source import Site, raising_site
from tpviz.standing import PeerLost, Unmet
from tpviz.streams import Modes

_playing = threading.local()


@dataclass
class Outcome:
    """How a rank's program ended, in values that can be sent to another process."""

    kind: str
    """"returned", "raised", "unmet" (the ranks do not meet), "lost" (another rank's process is gone), or "gone"."""
    record: list[Entry] = field(default_factory=list)
    output: Any = None
    error: BaseException | None = None
    words: str = ""
    """What "unmet", "lost" and "gone" have to say."""
    site: Site | None = None
    """The learner's line that raised."""
    frames: Sequence[tuple[str, int, str]] = ()
    """The learner's frames behind an error: file, line and function."""


@dataclass
class Task:
    """What every rank of a run needs to know."""

    run: str
    program: Callable[..., Any]
    args: tuple[Any, ...]
    modes: Modes
    seed: int
    stream: torch.Tensor
    """The state of the caller's random generator."""

    @classmethod
    def of_caller(cls, run: str, program: Callable[..., Any], args: tuple[Any, ...]) -> Task:
        """Return the task of a program that is called in this thread's modes and random state."""
        return cls(run, program, args, Modes(), torch.initial_seed(), torch.get_rng_state())


def is_playing() -> bool:
    """Return whether this thread is in the middle of a rank's program."""
    return bool(getattr(_playing, "seat", None))


def play(world: World, task: Task) -> Outcome:
    """Run the program as this process's rank; never raises, whatever the program does."""
    seat = _playing.seat = Seat(world, task.run)
    callers = torch.get_rng_state()
    threaded = torch.autograd.is_multithreading_enabled()
    torch.autograd.set_multithreading_enabled(False)  # backward in the rank's own thread, on a GPU too
    try:
        return _played(seat, task)
    finally:
        seat.close()
        _playing.seat = None
        torch.autograd.set_multithreading_enabled(threaded)
        torch.set_rng_state(callers)


def _played(seat: Seat, task: Task) -> Outcome:
    torch.set_rng_state(task.stream)
    if seat.world.device.type == "cuda":
        torch.cuda.manual_seed(task.seed)
    try:
        # A module's tensors live on in this process; each run finds them as they were.
        captured = Captured(task.program, task.args)
        program, args, values = captured.copies()
        captured.put(values)
        try:
            comm = seat.communicator(tuple(range(seat.world.size)))
            output = _arrived(detached(task.modes.call(program, comm, *args)))
        finally:
            captured.put(captured.originals)
    except Unmet as unmet:
        return Outcome("unmet", seat.record, words=str(unmet))
    except PeerLost as lost:
        return Outcome("lost", seat.record, words=str(lost))
    except BaseException as error:
        seat.board.post("raised", diagnosis.has_raised(error))
        frames = [
            (frame.filename, frame.lineno or 0, frame.name) for frame in traceback.extract_tb(error.__traceback__)
        ]
        return Outcome("raised", seat.record, error=error, site=raising_site(error), frames=frames)
    seat.board.post("ended", _("has returned"))
    return Outcome("returned", seat.record, output)


def _arrived(output: Any) -> Any:
    """Return an output whose tensors are there: PyTorch's functional collectives, and DTensor, return before."""
    functional: Any = sys.modules.get("torch.distributed._functional_collectives")
    if functional is None:
        return output
    waiting = functional.AsyncCollectiveTensor
    return tree_map_only(waiting, waiting.wait, output)


def sendable(error: BaseException) -> BaseException:
    """Return an exception, or where it does not survive being sent, one that has its name and its text."""
    try:
        pickle.loads(cloudpickle.dumps(error))
    except Exception:
        name, _colon, text = diagnosis.raised(error).partition(": ")
        return type(name, (RuntimeError,), {})(text)  # type: ignore[no-any-return]
    return error


def unsendable(error: Exception) -> TypeError:
    """Return the error for an output that cannot be sent, for this reason."""
    message = _(
        "what the program returned cannot be sent to another process ({error}): return tensors, numbers and texts, or"
        " tuples, lists and dicts of them."
    )
    return TypeError(message.format(error=error))
