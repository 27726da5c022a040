"""``run``: takes a rank program, runs it on a backend's ranks, and returns their outputs and the trace (run)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tpviz.i18n import _, ngettext
from tpviz.simulated import Simulation
from tpviz.trace import Trace

BACKENDS = ("simulated",)


@dataclass(frozen=True)
class Run:
    """What a run leaves: each rank's output (detached) and the record of every collective."""

    outputs: list[Any]
    trace: Trace

    def __repr__(self) -> str:
        ranks, events = len(self.outputs), len(self.trace)
        return ", ".join(
            [
                ngettext("Run on {n} rank", "Run on {n} ranks", ranks).format(n=ranks),
                ngettext("{n} collective", "{n} collectives", events).format(n=events),
            ]
        )


def run(program: Callable[..., Any], ranks: int = 2, backend: str = "simulated", args: tuple[Any, ...] = ()) -> Run:
    """Run ``program(comm, *args)`` on every rank and return a ``Run``.

    ``comm`` is the rank's ``Communicator``. Tensors that the program captures from outside, and those in ``args``, are
    each rank's own copies, as they would be in processes. Each rank starts from the caller's random state, which is
    left untouched, and in the caller's grad mode, inference mode, autocast and default device.

    Raises ``RankError`` where a rank's program raises (from the original exception) and ``CollectiveMismatch`` where
    the ranks do not meet.
    """
    __tracebackhide__ = True  # IPython and pytest: the reader's traceback is about the reader's lines
    if not callable(program):
        raise TypeError(_("run takes a function program(comm), not {type}.").format(type=type(program).__name__))
    if not isinstance(ranks, int) or isinstance(ranks, bool) or ranks < 1:
        raise ValueError(_("ranks={ranks!r}: expected a whole number, 1 or more.").format(ranks=ranks))
    if backend not in BACKENDS:
        known = ", ".join(map(repr, BACKENDS))
        raise ValueError(
            _("backend={backend!r} is unknown; expected one of {known}.").format(backend=backend, known=known)
        )
    if not isinstance(args, (tuple, list)):  # a tensor would be unpacked into its rows
        raise TypeError(
            _("args takes a tuple of the program's further arguments, such as args=(x,), not {type}.").format(
                type=type(args).__name__
            )
        )
    outputs, trace = Simulation(program, tuple(args), ranks).run()
    return Run(outputs, trace)
