"""What real ranks did, put together: the trace of a run, or the error that it ends in (communicators).

Each rank has kept a record of its calls. They are made once more on simulated ranks, without the numbers: so the events
come in the order in which the baton would complete them, and a mismatch is told in the same words as in simulation.
"""

from __future__ import annotations

import linecache
from collections.abc import Sequence
from typing import Any

from torch import Tensor

from tpviz import diagnosis
from tpviz.communicator import Call, Communicator
from tpviz.errors import AbandonedByRank, CollectiveMismatch, RankError
from tpviz.i18n import _
from tpviz.playing import Outcome
from tpviz.simulated import Simulation
from tpviz.source import describe, is_inside, remember_raising_site
from tpviz.trace import Trace
from tpviz.wire import call_of

GRACE_SECONDS = 2.0
"""How long the other ranks may take to tell where they stand, once one has failed."""

_MOST_FRAMES = 10  # of a program that called itself without end there are a thousand


def conclude(outcomes: Sequence[Outcome]) -> Trace:
    """Return the trace of a run whose ranks ended so, or raise what went wrong."""
    __tracebackhide__ = True
    for outcome in outcomes:
        if outcome.error is not None:
            remember_raising_site(outcome.error, outcome.site)
            outcome.error.__traceback__ = None
            if outcome.frames:
                outcome.error.add_note(_frames_text(outcome))
    first = next((rank for rank, outcome in enumerate(outcomes) if outcome.kind in ("gone", "raised")), None)
    if first is not None and any(outcome.kind in ("gone", "stopped") for outcome in outcomes):
        raise _rank_error(first, outcomes)  # what a process did that is gone is not known
    trace = _replayed(outcomes)
    for rank, outcome in enumerate(outcomes):
        if outcome.kind == "unmet":
            raise CollectiveMismatch(outcome.words)
        if outcome.kind == "lost":
            raise RankError(_stand(outcome), rank)
    return trace


class _Replay(Simulation):
    """A run whose collectives have no results: nobody reads them, and torch takes long to learn how to add nothing."""

    @staticmethod
    def _results(call: Call, tensors: list[Tensor]) -> Sequence[Any]:
        return [None] * len(tensors)


def _replayed(outcomes: Sequence[Outcome]) -> Trace:
    """Make the ranks' calls on simulated ranks, and let those raise that raised; return the trace."""
    __tracebackhide__ = True

    # Written inside of this function, and in tpviz, it is not searched for captured tensors (captured.py).
    def program(comm: Communicator) -> None:
        outcome = outcomes[comm.rank]
        communicators = [comm]
        for entry in outcome.record:
            result = communicators[entry.communicator]._exchange(call_of(entry.facts, entry.color))
            if isinstance(result, Communicator):
                communicators.append(result)
        if outcome.error is not None:
            raise outcome.error

    try:
        return _Replay(program, (), len(outcomes)).run()[1]
    except RankError as error:
        if error.__cause__ is not None:
            error.__cause__.__traceback__ = None  # which would show this function
        raise


def _rank_error(rank: int, outcomes: Sequence[Outcome]) -> RankError:
    """Return the error for a rank that raised or whose process is gone, where not all records are known."""
    outcome = outcomes[rank]
    what = outcome.words if outcome.error is None else diagnosis.raised(outcome.error)
    message = _("rank {rank}: {error}").format(rank=rank, error=what)
    stands = {number: _stand(other) for number, other in enumerate(outcomes) if other.error or number != rank}
    waited = any(other.kind in ("lost", "unmet") for other in outcomes)
    error = (AbandonedByRank if waited else RankError)(message + diagnosis.lines("", stands), rank)
    error.__cause__ = outcome.error
    return error


def _stand(outcome: Outcome) -> str:
    """Return where a rank stood at the end of a failed run."""
    if outcome.error is not None:
        return diagnosis.has_raised(outcome.error)
    if outcome.kind == "returned":
        return _("has returned")
    if outcome.record and outcome.kind in ("lost", "unmet"):
        entry = outcome.record[-1]
        return diagnosis.waiting(call_of(entry.facts, entry.color), entry.ranks)
    return outcome.words


def _frames_text(outcome: Outcome) -> str:
    """Return the learner's frames behind an error in another process, the last one innermost, as Python shows them."""
    frames = [frame for frame in outcome.frames if not is_inside(frame[0])]
    rows = [_("In the rank's own process, from the outermost call to the innermost:")]
    if len(frames) > _MOST_FRAMES:
        rows.append(_("  ... {number} more").format(number=len(frames) - _MOST_FRAMES))
    for file, line, function in frames[-_MOST_FRAMES:]:
        rows.append(f"  {describe((file, line))}, {function}")
        source = linecache.getline(file, line).strip()
        rows += [f"    {source}"] if source else []
    return "\n".join(rows)
