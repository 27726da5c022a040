"""The process of one rank that ``processes.py`` starts: plays the run that it is told, one after the other.

It is told what to do on its standard input, which ends when the process that started it does, however that happens;
then this one ends too. What it has to say goes through what was its standard output.
"""

from __future__ import annotations

import io
import os
import pickle
import queue
import shutil
import sys
import threading
from contextlib import suppress
from dataclasses import dataclass
from typing import BinaryIO

import cloudpickle
import torch
import torch.distributed as dist
from torch.utils._pytree import tree_map_only

from tpviz.distributed import BACKENDS, TIMEOUT, World
from tpviz.playing import Outcome, Task, play, sendable, unsendable


@dataclass(frozen=True)
class Order:
    """What a rank's process is told to do."""

    rank: int
    world_size: int
    backend: str
    new_world: bool
    """Whether the ranks must find each other first."""
    store: str
    """The file in which they do."""
    task: str
    """The file of the run's ``Task``."""
    outcome: str
    """The file into which the rank's ``Outcome`` goes."""
    path: tuple[str, ...]
    """Where modules are found."""
    folder: str
    """The working directory."""


def main() -> None:
    """Obey orders until the standard input ends."""
    replies = _Replies(os.fdopen(os.dup(1), "wb"))
    os.dup2(2, 1)  # what a library prints by itself goes where its errors go
    orders: queue.SimpleQueue[Order] = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(sys.stdin.buffer, orders, sys.argv[1]), daemon=True).start()
    sys.stdin = io.StringIO()
    sys.stdout, sys.stderr = _Printed(replies, "stdout"), _Printed(replies, "stderr")
    world = None
    while True:
        order = orders.get()
        try:
            if world is None or order.new_world:
                world = _join(order)
            _leave(_obey(order, world), order)
        except BaseException as error:  # a fault in here, or a disk that is full: the learner must hear of it
            _leave(Outcome("raised", error=sendable(error)), order)
        sys.stdout.end_line()
        sys.stderr.end_line()
        replies.send("done", None)


def _join(order: Order) -> World:
    """Make the world of an order, and leave the one before."""
    if dist.is_initialized():
        dist.destroy_process_group()
    torch.set_num_threads(max(1, (os.cpu_count() or 1) // order.world_size))
    device = torch.device("cpu")
    if order.backend == "nccl":
        device = torch.device("cuda", order.rank)
        torch.cuda.set_device(device)
    store = dist.FileStore(order.store, order.world_size)  # type: ignore[attr-defined]
    dist.init_process_group(
        BACKENDS[order.backend], store=store, rank=order.rank, world_size=order.world_size, timeout=TIMEOUT
    )
    assert dist.group.WORLD is not None
    return World(dist.group.WORLD, store, device, order.backend)


def _obey(order: Order, world: World) -> Outcome:
    """Play the rank, and return how that ended, in the CPU's memory: the reader of it has no GPU in use."""
    sys.path[:] = order.path
    os.chdir(order.folder)
    task: Task = torch.load(order.task, map_location=world.device, weights_only=False)
    task.stream = task.stream.cpu()
    outcome = play(world, task)
    outcome.output = tree_map_only(torch.Tensor, torch.Tensor.cpu, outcome.output)
    return outcome


def _leave(outcome: Outcome, order: Order) -> None:
    """Write down how a run ended; what cannot be written becomes an error that says so."""
    if outcome.error is not None:
        outcome.error = sendable(outcome.error)
    try:
        torch.save(outcome, order.outcome, pickle_module=cloudpickle)
    except Exception as error:
        torch.save(Outcome("raised", outcome.record, error=unsendable(error)), order.outcome, pickle_module=cloudpickle)


def _listen(source: BinaryIO, orders: queue.SimpleQueue[Order], folder: str) -> None:
    """Hand on the orders that come; end the process when no more can come."""
    with suppress(EOFError, OSError, pickle.UnpicklingError):
        while True:
            orders.put(pickle.load(source))
    shutil.rmtree(folder, ignore_errors=True)  # whoever started this process may not have been able to
    os._exit(0)


class _Replies:
    """Messages to the process that started this one."""

    def __init__(self, sink: BinaryIO) -> None:
        self._sink = sink
        self._lock = threading.Lock()

    def send(self, kind: str, what: str | None) -> None:
        """Send one message, whole."""
        with self._lock, suppress(BrokenPipeError):
            pickle.dump((kind, what), self._sink)
            self._sink.flush()


class _Printed(io.TextIOBase):
    """What the program prints, sent line by line."""

    encoding = "utf-8"

    def __init__(self, replies: _Replies, name: str) -> None:
        self._replies = replies
        self._name = name
        self._begun = ""

    def writable(self) -> bool:
        """Return that this can be written to."""
        return True

    def write(self, text: str) -> int:
        """Send the lines that are whole."""
        whole, newline, begun = (self._begun + text).rpartition("\n")
        self._begun = begun
        if newline:
            self._replies.send(self._name, whole)
        return len(text)

    def end_line(self) -> None:
        """Send what has no end of line."""
        if self._begun:
            self.write("\n")
