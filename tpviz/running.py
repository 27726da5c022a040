"""``run``: takes a rank program, runs it on a backend's ranks, and returns their outputs and the trace (run)."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from tpviz import simulated
from tpviz.i18n import N_, _, ngettext
from tpviz.trace import Trace

BACKENDS = ("simulated", "gloo", "nccl", "auto")

_NCCL, _GLOO = N_("nccl, as each rank has a GPU"), N_("gloo, as GPUs are fewer than ranks")


@dataclass(frozen=True)
class Run:
    """What a run leaves: each rank's output (detached) and the record of every collective."""

    outputs: list[Any]
    trace: Trace
    backend: str = "simulated"
    """What the ranks were: "simulated" ones, or processes that used "gloo" or "nccl"."""
    why: str = ""
    """Where "auto" chose the backend: why this one."""

    def __repr__(self) -> str:
        ranks, events = len(self.outputs), len(self.trace)
        number = ngettext("Run on {n} rank", "Run on {n} ranks", ranks).format(n=ranks)
        backend = self.why or ("" if self.backend == "simulated" else self.backend)
        return ", ".join(
            [
                f"{number} ({backend})" if backend else number,
                ngettext("{n} collective", "{n} collectives", events).format(n=events),
            ]
        )


def run(
    program: Callable[..., Any], ranks: int | None = None, backend: str = "simulated", args: tuple[Any, ...] = ()
) -> Run:
    """Run ``program(comm, *args)`` on every rank and return a ``Run``.

    ``comm`` is the rank's ``Communicator``. Tensors that the program captures from outside, and those in ``args``, are
    each rank's own copies. Each rank starts from the caller's random state, which is left untouched, and in the
    caller's grad mode, inference mode, autocast and default device.

    ``ranks`` is 2 if left out. ``backend`` says what the ranks are: "simulated" ones in this process; "gloo", processes
    on this machine's CPUs; "nccl", processes with a GPU each; "auto", "nccl" where there are that many GPUs, else
    "simulated" (the ``Run`` says which, and why). Outputs of processes come back in the CPU's memory, and what ranks
    print is shown with their number: rank 0's at once, the others' when the run is over.

    Where a launcher such as torchrun has started this process as one of several, the process *is* a rank of "gloo",
    "nccl" or "auto" (then "nccl" or "gloo"). ``ranks`` is then the launcher's number, or left out; rank 0's ``Run`` has
    all outputs, another rank's its own, in its place, and None in the others'.

    Raises ``RankError`` where a rank's program raises (from the original exception) or its process ends, and
    ``CollectiveMismatch`` where the ranks do not meet.
    """
    __tracebackhide__ = True  # IPython and pytest: the reader's traceback is about the reader's lines
    if not callable(program):
        raise TypeError(_("run takes a function program(comm), not {type}.").format(type=type(program).__name__))
    if ranks is not None and (not isinstance(ranks, int) or isinstance(ranks, bool) or ranks < 1):
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
    if backend == "simulated":
        return Run(*simulated.Simulation(program, tuple(args), ranks or 2).run())
    return _run_on_real_ranks(program, ranks, backend, tuple(args))


def _run_on_real_ranks(program: Callable[..., Any], ranks: int | None, backend: str, args: tuple[Any, ...]) -> Run:
    # Loaded when first needed: who only simulates needs none of it.
    from tpviz import launched, playing

    __tracebackhide__ = True
    if playing.is_playing():
        raise RuntimeError(_("a rank's program can run only simulated ranks: it is one of the real ones itself."))
    if launched.is_launched():
        size = launched.world_size()
        if ranks not in (None, size):
            message = _("ranks={ranks}, but the launcher has started {size} processes: leave ranks out.")
            raise ValueError(message.format(ranks=ranks, size=size))
        why = ""
        if backend == "auto":
            backend, why = ("nccl", _NCCL) if launched.gpus_suffice() else ("gloo", _GLOO)
        return Run(*launched.run_as_rank(program, args, backend), backend, _(why) if why else "")
    number, gpus, why = ranks or 2, torch.cuda.device_count(), ""
    if backend == "auto":
        if gpus < number:
            why = _("simulated, as GPUs are fewer than ranks: {gpus}").format(gpus=gpus)
            return Run(*simulated.Simulation(program, args, number).run(), why=why)
        backend, why = "nccl", _(_NCCL)
    if backend == "nccl" and gpus < number:
        message = _(
            "backend='nccl' gives each rank a GPU of its own: {ranks} ranks need {ranks}, and this machine has {gpus}."
            " Use fewer ranks, or backend='gloo' or 'simulated'."
        )
        raise ValueError(message.format(ranks=number, gpus=gpus))
    from tpviz.processes import run_on_processes

    return Run(*run_on_processes(program, args, number, backend), backend, why)


def shutdown() -> None:
    """End the idle threads and processes that earlier runs left for the next one."""
    simulated.shutdown()
    processes = sys.modules.get("tpviz.processes")
    if processes is not None:
        processes.end_idle()
