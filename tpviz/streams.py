"""Random streams and modes: what a thread must set so that a rank computes as if it were a process (communicators)."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch
from torch import Tensor

_AUTOCAST_DEVICES = ("cpu", "cuda")


def stream_states() -> list[Tensor]:
    """Return the states of torch's process-global generators: the CPU's, and CUDA's where it is in use.

    Python's and NumPy's generators are not among them: swapping those costs 10 and 75 times as much.
    """
    states = [torch.default_generator.get_state()]
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        states += [generator.get_state() for generator in torch.cuda.default_generators]
    return states


def set_stream_states(states: list[Tensor]) -> None:
    """Put the generators into these states; those of a device that came into use since then stay as they are."""
    torch.default_generator.set_state(states[0])
    if len(states) > 1:
        for generator, state in zip(torch.cuda.default_generators, states[1:], strict=True):
            generator.set_state(state)


class Modes:
    """The caller's grad mode, inference mode, autocast and default device, which torch keeps for each thread."""

    def __init__(self) -> None:
        self.device = torch.get_default_device()
        self._grad = torch.is_grad_enabled()
        self._inference = torch.is_inference_mode_enabled()
        self._autocast = [device for device in _AUTOCAST_DEVICES if torch.is_autocast_enabled(device)]
        self._dtypes = [torch.get_autocast_dtype(device) for device in self._autocast]
        self._cache = torch.is_autocast_cache_enabled()
        self._plain = not self._inference and not self._autocast and self.device.type == "cpu"

    @contextlib.contextmanager
    def entered(self) -> Iterator[None]:
        """Put the current thread into the caller's modes."""
        # Always set: the thread's last program may have left another grad mode behind.
        torch.set_grad_enabled(self._grad)
        if self._plain:
            yield
            return
        with contextlib.ExitStack() as stack:
            if self._inference:
                stack.enter_context(torch.inference_mode())
            for device, dtype in zip(self._autocast, self._dtypes, strict=True):
                stack.enter_context(torch.autocast(device, dtype=dtype, cache_enabled=self._cache))
            if self.device.type != "cpu":
                stack.enter_context(self.device)
            yield
