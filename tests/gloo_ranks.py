"""Real gloo processes for tests: each runs one function as a rank of torch.distributed, and leaves what it found."""

import os
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.multiprocessing.spawn import spawn

SECONDS = 120
LOOPBACK = {"linux": "lo", "darwin": "lo0"}


def on_gloo(program: Callable[[], Any], folder: Path, ranks: int = 2) -> list[Any]:
    """Return what each rank's ``program()`` returned; ``program`` is a function that a module has by its name."""
    deadline = time.monotonic() + SECONDS
    context = spawn(_on_process, (program, str(folder), ranks), ranks, join=False, daemon=True)  # type: ignore[no-untyped-call]
    try:
        while not context.join(timeout=1):
            assert time.monotonic() < deadline, "The ranks' processes are not done."
    finally:
        for process in context.processes:
            process.kill()
            process.join()
    return [torch.load(folder / str(rank), weights_only=False) for rank in range(ranks)]


def _on_process(rank: int, program: Callable[[], Any], folder: str, ranks: int) -> None:
    torch.set_num_threads(1)
    if sys.platform in LOOPBACK:
        os.environ["GLOO_SOCKET_IFNAME"] = LOOPBACK[sys.platform]
    store = dist.FileStore(f"{folder}/store", ranks)  # type: ignore[attr-defined]
    patience = timedelta(seconds=SECONDS / 2)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=ranks, timeout=patience)
    torch.save(program(), f"{folder}/{rank}")
    dist.destroy_process_group()
