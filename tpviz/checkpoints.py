"""``Checkpoint``: where a training stands, whole, so that any number of ranks can go on from it (layers)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from os import PathLike
from typing import Self

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from tpviz.parameters import load_whole_state_dict, own_parameters, own_part_of, whole_of, whole_state_dict


@dataclass(frozen=True)
class Checkpoint:
    """Whole parameters, and what the optimizer keeps for each, by the parameter's name."""

    step: int
    """Steps made so far."""
    parameters: dict[str, Tensor]
    optimizer: dict[str, dict[str, Tensor]]
    """Adam's two moments and its count of steps; empty before the first step."""

    @classmethod
    def gathered(cls, step: int, module: nn.Module, optimizer: Optimizer) -> Self:
        """Return where the ranks stand, on each of them; every rank of the group must call it.

        One all-gather for each sharded parameter, and one for each of its two moments, in the phase "other".
        """
        return cls(step, whole_state_dict(module), whole_optimizer_state(module, optimizer))

    def load_into(self, module: nn.Module, optimizer: Optimizer) -> None:
        """Copy this rank's parts into ``module`` and ``optimizer``; nothing is sent.

        ``ValueError`` where the parameters are another model's (``load_whole_state_dict``).
        """
        load_whole_state_dict(module, self.parameters)
        load_whole_optimizer_state(module, optimizer, self.optimizer)

    def save(self, path: str | PathLike[str]) -> None:
        """Write it as a file of plain tensors, in which nothing is left of how many ranks there were."""
        torch.save(asdict(self), path)

    @classmethod
    def load(cls, path: str | PathLike[str]) -> Self:
        """Read what ``save`` has written, into the CPU's memory."""
        return cls(**torch.load(path, map_location="cpu", weights_only=True))


def whole_optimizer_state(module: nn.Module, optimizer: Optimizer) -> dict[str, dict[str, Tensor]]:
    """Gather what ``optimizer`` keeps for each parameter below ``module``, on every rank.

    What is shaped like its parameter is cut like it; the rest, such as a count of steps, is the same on all ranks.
    Source: PyTorch's ``get_optimizer_state_dict`` with ``full_state_dict``.
    """
    return {
        name: {
            key: whole_of(part, own, value) if value.shape == parameter.shape else value.clone()
            for key, value in optimizer.state.get(parameter, {}).items()
        }
        for name, part, own, parameter in own_parameters(module)
    }


def load_whole_optimizer_state(
    module: nn.Module, optimizer: Optimizer, state: Mapping[str, Mapping[str, Tensor]]
) -> None:
    """Give ``optimizer`` this rank's part of what ``whole_optimizer_state`` has gathered."""
    for name, part, own, parameter in own_parameters(module):
        whole = state.get(name, {})
        cut = {key: _own(part, own, value, parameter) for key, value in whole.items()}
        if cut:
            optimizer.state[parameter] = cut


def _own(part: nn.Module, name: str, value: Tensor, parameter: Tensor) -> Tensor:
    if value.ndim != parameter.ndim:
        return value.clone()
    return own_part_of(part, name, value).to(parameter.device)
