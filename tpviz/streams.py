"""Random streams and modes: what a thread must set so that a rank computes as if it were a process (communicators)."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import torch

_CPU = torch.device("cpu")
_AUTOCAST_DEVICES = ("cpu", "cuda")


class Streams:
    """torch's process-global random generators: the CPU's, and CUDA's where it is in use when this is made.

    Python's and NumPy's generators are not among them: swapping those costs 10 and 75 times as much.
    """

    def __init__(self) -> None:
        self._cpu = torch.default_generator
        self._cuda = torch.cuda.default_generators if torch.cuda.is_initialized() else ()  # type: ignore[no-untyped-call]

    def states(self) -> Any:
        """Return the generators' states."""
        if not self._cuda:
            return self._cpu.get_state()
        return [self._cpu.get_state(), *(generator.get_state() for generator in self._cuda)]

    def put(self, states: Any) -> None:
        """Put the generators into these states."""
        if not self._cuda:
            self._cpu.set_state(states)
            return
        for generator, state in zip((self._cpu, *self._cuda), states, strict=True):
            generator.set_state(state)


class Modes:
    """The caller's grad mode, inference mode, autocast and default device, which torch keeps for each thread."""

    def __init__(self) -> None:
        # A default device is a mode on this stack, and to ask for it costs 8 µs.
        self.device = torch.get_default_device() if torch._C._len_torch_function_stack() else _CPU
        self._grad = torch.is_grad_enabled()
        self._inference = torch.is_inference_mode_enabled()
        self._autocast = [device for device in _AUTOCAST_DEVICES if torch.is_autocast_enabled(device)]
        self._dtypes = [torch.get_autocast_dtype(device) for device in self._autocast]
        self._cache = torch.is_autocast_cache_enabled()
        self._plain = not self._inference and not self._autocast and self.device.type == "cpu"

    def call(self, function: Callable[..., Any], *args: Any) -> Any:
        """Call a function in the caller's modes, in a thread that may still be in those of its last program."""
        torch.set_grad_enabled(self._grad)
        result = function(*args) if self._plain else self.call_in_modes(function, *args)
        if torch._C._len_torch_function_stack():  # the program has set a default device, and left it so
            torch.set_default_device(None)
        return result

    def call_in_modes(self, function: Callable[..., Any], *args: Any) -> Any:
        """Call a function in the caller's inference mode, autocast and default device."""
        with contextlib.ExitStack() as stack:
            if self._inference:
                stack.enter_context(torch.inference_mode())
            for device, dtype in zip(self._autocast, self._dtypes, strict=True):
                stack.enter_context(torch.autocast(device, dtype=dtype, cache_enabled=self._cache))
            if self.device.type != "cpu":
                stack.enter_context(self.device)
            return function(*args)
