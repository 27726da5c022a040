"""Real ranks that a launcher has started, such as torchrun: the running process is a rank (communicators).

The world is joined, not made: one node or many, gloo or NCCL, as the launcher's environment says.
"""

from __future__ import annotations

import atexit
import itertools
import os
import pickle
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any

import cloudpickle
import torch
import torch.distributed as dist

# Its functions have the world as their default argument. Loaded when a world is there (a tensor on the meta device does
# it), they would keep that world, and its threads, to the process's end, which then now and then is an abort.
import torch.distributed.nn
from torch.distributed.rendezvous import rendezvous
from torch.utils._pytree import tree_map_only

from tpviz.distributed import BACKENDS, TIMEOUT, World
from tpviz.i18n import _
from tpviz.outcomes import GRACE_SECONDS, conclude
from tpviz.playing import Outcome, Task, play, sendable, unsendable
from tpviz.standing import Store, read, write
from tpviz.trace import Trace

_ENVIRONMENT = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
_worlds: dict[str, World] = {}
_runs = itertools.count()


def is_launched() -> bool:
    """Return whether this process is one of several that a launcher started, or that have met already."""
    if dist.is_initialized():
        return dist.get_backend() != "fake"  # pretended ranks (watching.py)
    return all(name in os.environ for name in _ENVIRONMENT)


def world_size() -> int:
    """Return the number of processes that the launcher started."""
    return dist.get_world_size() if dist.is_initialized() else int(os.environ["WORLD_SIZE"])


def gpus_suffice() -> bool:
    """Return whether each process of this node has a GPU of its own."""
    return torch.cuda.device_count() >= int(os.environ.get("LOCAL_WORLD_SIZE", world_size()))


def run_as_rank(program: Callable[..., Any], args: tuple[Any, ...], backend: str) -> tuple[list[Any], Trace]:
    """Run ``program(comm, *args)`` as this process's rank; return the outputs that this process has, and the trace.

    Rank 0 has the outputs of all ranks; another has its own in its place, and None in the others'.
    """
    __tracebackhide__ = True
    world = _worlds.get(backend)
    if world is None:
        world = _worlds[backend] = _join(backend)
    run = f"launched-{backend}-{next(_runs)}"
    outcome = play(world, Task.of_caller(run, program, args))
    if outcome.kind in ("unmet", "lost"):
        # A collective that will never end keeps torch's threads, and with them the process, from ending.
        atexit.register(_end_at_once)
    output = _packed(outcome)
    trace = conclude(_all_outcomes(world, run, outcome))
    gathered: list[Any] | None = [None] * world.size if world.rank == 0 else None
    dist.gather_object(output, gathered, group=world.group, group_dst=0)
    outputs = [None if packed is None else pickle.loads(packed) for packed in gathered or [None] * world.size]
    outputs[world.rank] = outcome.output
    return outputs, trace


def _join(backend: str) -> World:
    """Join the world that the launcher has prepared, or the one in which this process is already."""
    device = torch.device("cpu")
    if backend == "nccl":
        device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
        torch.cuda.set_device(device)
    made = not dist.is_initialized()
    if made:
        store, rank, size = next(iter(rendezvous("env://", timeout=TIMEOUT)))
        dist.init_process_group(BACKENDS[backend], store=store, rank=rank, world_size=size, timeout=TIMEOUT)
        group = dist.group.WORLD
    else:
        store = dist.distributed_c10d._get_default_store()
        group = dist.new_group(backend=BACKENDS[backend], timeout=TIMEOUT)
    assert group is not None
    atexit.register(_leave, made)
    return World(group, store, device, backend)


def _leave(made: bool) -> None:
    """Leave the worlds; the one that this module has made ends."""
    for world in _worlds.values():
        world.leave()
    _worlds.clear()
    if made and dist.is_initialized():  # the program may have left it itself
        dist.destroy_process_group()


def _end_at_once() -> None:
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(1)


def _packed(outcome: Outcome) -> bytes | None:
    """Return the output as bytes, in the CPU's memory; an output that cannot be sent makes the outcome an error."""
    try:
        return bytes(cloudpickle.dumps(tree_map_only(torch.Tensor, torch.Tensor.cpu, outcome.output)))
    except Exception as error:
        outcome.kind, outcome.error = "raised", unsendable(error)
        return None


def _all_outcomes(world: World, run: str, mine: Outcome) -> list[Outcome]:
    """Return how the run ended on each rank; who has failed does not wait long for the others."""
    keys = [f"tpviz/{run}/outcome/{rank}" for rank in range(world.size)]
    sent = replace(mine, output=None, error=None if mine.error is None else sendable(mine.error))
    write(world.store, keys[world.rank], cloudpickle.dumps(sent))
    failed_at = None
    while True:
        try:
            world.store.wait(keys, timedelta(seconds=0.5))
            break
        except RuntimeError:  # a time-out
            known = _known(world.store, keys)
            if failed_at is None and any(outcome.kind != "returned" for outcome in known.values()):
                failed_at = time.monotonic()
            if failed_at is not None and time.monotonic() > failed_at + GRACE_SECONDS:
                break
    known = _known(world.store, keys)
    known[world.rank] = mine
    at_work = Outcome("stopped", words=_("was still at work"))
    return [known.get(rank, at_work) for rank in range(world.size)]


def _known(store: Store, keys: list[str]) -> dict[int, Outcome]:
    return {rank: read(store, key) for rank, key in enumerate(keys) if store.check([key])}
