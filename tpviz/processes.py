"""Real ranks for a notebook: one process a rank, kept for the next run while all is well (communicators).

Each rank has a process of its own and keeps it: a pool gives work to whoever is free, but the processes of a world
have met, and each is the rank that it is. A process is told its orders on its standard input, so it knows at once, on
any system, when whoever started it is gone. Programs are sent by value (cloudpickle), since a notebook's cells are in
no module. After any failure all processes end, and the next run starts new ones.
"""

from __future__ import annotations

import atexit
import os
import pickle
import queue
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

import cloudpickle
import torch

from tpviz.captured import Captured, is_library_file
from tpviz.forking import end_template, start_rank
from tpviz.i18n import _
from tpviz.outcomes import GRACE_SECONDS, conclude
from tpviz.playing import Outcome, Task
from tpviz.rank_process import Order
from tpviz.trace import Trace

_GOODBYE_SECONDS = 2.0
_LOOPBACK = {"linux": "lo", "darwin": "lo0"}
_LAUNCHERS = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")

_one_run = threading.Lock()
_crew: Crew | None = None


def run_on_processes(
    program: Callable[..., Any], args: tuple[Any, ...], ranks: int, backend: str
) -> tuple[list[Any], Trace]:
    """Run ``program(comm, *args)`` on processes of this machine; return each rank's output and the trace."""
    global _crew
    __tracebackhide__ = True
    Captured(program, args)  # refuses what no other process could have
    with _one_run:
        if _crew is not None and not _crew.is_fit():
            _end()
        if _crew is None:
            _crew = Crew()
        try:
            outcomes = _crew.run(program, args, ranks, backend)
            trace = conclude(outcomes)
        except BaseException:
            _end(at_once=True)
            raise
    return [outcome.output for outcome in outcomes], trace


def end_idle() -> None:
    """End the processes that wait for a next run."""
    with _one_run:
        _end()
        end_template()


def _end(at_once: bool = False) -> None:
    global _crew
    crew, _crew = _crew, None
    if crew is not None:
        crew.end(at_once)


class _Member:
    """One rank's process, and the thread that hears it."""

    def __init__(self, rank: int, folder: str, messages: queue.SimpleQueue[tuple[int, str, str | None]]) -> None:
        self.errors = Path(folder, f"{rank}.err")
        environment = {name: value for name, value in os.environ.items() if name not in _LAUNCHERS}
        if sys.platform in _LOOPBACK:
            for library in ("GLOO", "NCCL"):
                environment[f"{library}_SOCKET_IFNAME"] = _LOOPBACK[sys.platform]
        with self.errors.open("wb") as errors:
            self._process = start_rank(folder, errors, environment)
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self.orders: IO[bytes] = self._process.stdin
        threading.Thread(target=self._hear, args=(rank, self._process.stdout, messages), daemon=True).start()

    @staticmethod
    def _hear(rank: int, source: IO[bytes], messages: queue.SimpleQueue[tuple[int, str, str | None]]) -> None:
        with source, suppress(EOFError, OSError, pickle.UnpicklingError):
            while True:
                messages.put((rank, *pickle.load(source)))
        messages.put((rank, "gone", None))

    def tell(self, order: Order) -> None:
        """Send an order; a process that is gone is found out by ``_hear``."""
        with suppress(OSError):
            pickle.dump(order, self.orders)
            self.orders.flush()

    def is_alive(self) -> bool:
        """Return whether the process lives."""
        return self._process.poll() is None

    def how_it_ended(self) -> str:
        """Return how the process ended, in words, with what it had to say."""
        code = self._process.wait()
        said = self.errors.read_text(errors="replace").strip().splitlines()[-3:]
        if code < 0:
            names = {number.value: number.name for number in signal.Signals}
            words = _("its process was killed ({signal}).").format(signal=names.get(-code, -code))
        else:
            words = _("its process ended in the middle of the program, with exit status {code}.").format(code=code)
        return " ".join([words, *said])

    def end(self, at_once: bool) -> None:
        """Let the process end by itself, or at once."""
        if at_once:
            self._process.kill()
        with suppress(OSError):
            self.orders.close()
        try:
            self._process.wait(_GOODBYE_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


class Crew:
    """The processes, the folder through which tasks and outcomes go, and the world that the processes are in."""

    def __init__(self) -> None:
        self._folder = tempfile.mkdtemp(prefix="tpviz-")
        self._members: list[_Member] = []
        self._messages: queue.SimpleQueue[tuple[int, str, str | None]] = queue.SimpleQueue()
        self._world: tuple[int, str] | None = None
        self._worlds = self._runs = 0
        self._born = time.time()

    def is_fit(self) -> bool:
        """Return whether all processes live, and the modules that they may have imported are as they were."""
        return all(member.is_alive() for member in self._members) and not any(
            changed > self._born for changed in _times_of_modules()
        )

    def run(self, program: Callable[..., Any], args: tuple[Any, ...], ranks: int, backend: str) -> list[Outcome]:
        """Run a program on the first so many ranks; return how it ended on each of them."""
        self._runs += 1
        task = str(Path(self._folder, "task"))
        _save(Task.of_caller(str(self._runs), program, args), task)
        while len(self._members) < ranks:
            self._members.append(_Member(len(self._members), self._folder, self._messages))
        new_world = self._world != (ranks, backend)
        if new_world:
            self._world = ranks, backend
            self._worlds += 1
        store = str(Path(self._folder, f"store-{self._worlds}"))
        for rank in range(ranks):
            outcome = self._outcome_path(rank)
            order = Order(rank, ranks, backend, new_world, store, task, outcome, tuple(sys.path), os.getcwd())
            self._members[rank].tell(order)
        return self._gather(ranks)

    def _gather(self, ranks: int) -> list[Outcome]:
        outcomes: dict[int, Outcome] = {}
        printed: list[list[tuple[str, str]]] = [[] for _rank in range(ranks)]
        failed_at = None
        try:
            while len(outcomes) < ranks:
                try:
                    rank, kind, what = self._messages.get(timeout=0.2)
                except queue.Empty:
                    if failed_at is not None and time.monotonic() > failed_at + GRACE_SECONDS:
                        break
                    continue
                if rank >= ranks:  # a process that this run does without
                    continue
                if kind in ("stdout", "stderr"):
                    if rank == 0:
                        _show(0, kind, what or "")
                    else:
                        printed[rank].append((kind, what or ""))
                    continue
                outcomes[rank] = self._outcome(rank) if kind == "done" else self._gone(rank)
                if outcomes[rank].kind != "returned" and failed_at is None:
                    failed_at = time.monotonic()
        finally:
            for rank, some in enumerate(printed):
                for kind, text in some:
                    _show(rank, kind, text)
        stopped = Outcome("stopped", words=_("was still at work, and was stopped"))
        return [outcomes.get(rank, stopped) for rank in range(ranks)]

    def _outcome_path(self, rank: int) -> str:
        return str(Path(self._folder, f"outcome-{rank}"))

    def _outcome(self, rank: int) -> Outcome:
        path = self._outcome_path(rank)
        outcome: Outcome = torch.load(path, weights_only=False)
        Path(path).unlink()
        return outcome

    def _gone(self, rank: int) -> Outcome:
        return Outcome("gone", words=self._members[rank].how_it_ended())

    def end(self, at_once: bool) -> None:
        """End all processes."""
        for member in self._members:
            member.end(at_once)
        shutil.rmtree(self._folder, ignore_errors=True)


def _save(task: Task, path: str) -> None:
    try:
        torch.save(task, path, pickle_module=cloudpickle)
    except Exception as error:
        message = _("{name} cannot be sent to another process ({error}): make it inside of the program instead.")
        raise TypeError(message.format(name=_culprit(task), error=error)) from error


def _culprit(task: Task) -> str:
    """Return the name of what keeps a task from being sent."""
    function = task.program
    code = getattr(function, "__code__", None)
    candidates: list[tuple[str, Any]] = [("args", task.args)]
    if code is not None:
        cells = getattr(function, "__closure__", None) or ()
        candidates += [(name, cell) for name, cell in zip(code.co_freevars, cells, strict=True)]
        namespace = getattr(function, "__globals__", {})
        candidates += [(name, namespace[name]) for name in code.co_names if name in namespace]
    for name, value in candidates:
        try:
            cloudpickle.dumps(getattr(value, "cell_contents", value))
        except Exception:
            return name
    return _("the program")


def _show(rank: int, kind: str, text: str) -> None:
    stream = sys.stdout if kind == "stdout" else sys.stderr
    for line in text.split("\n"):
        print(_("rank {rank}: {error}").format(rank=rank, error=line), file=stream)


def _times_of_modules() -> Iterator[float]:
    """Yield when the files of the learner's own modules were last changed."""
    for module in list(sys.modules.values()):
        file = getattr(module, "__file__", None)
        if file and not is_library_file(file):
            with suppress(OSError):
                yield os.path.getmtime(file)


def _forget() -> None:
    """In a forked process: the ranks are its parent's."""
    global _crew, _one_run
    _crew, _one_run = None, threading.Lock()


atexit.register(end_idle)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
