"""``ShardedModule``: which of a module's parameters are shards, and the way from the whole to a part and back (layers).

A layer's own ``state_dict()`` is this rank's part of it. ``whole_state_dict`` is what any number of ranks can load.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import ClassVar

import torch
from torch import Tensor, nn

from tpviz.communicator import Communicator
from tpviz.i18n import _
from tpviz.sharding import own_slice
from tpviz.tables import shape_text


class ShardedModule(nn.Module):
    """A module that knows which of its own parameters are shards over ``comm``, and along which dim."""

    shard_dims: ClassVar[Mapping[str, int]] = {}
    """Which parameters are shards over the module's group, and along which dim; the others are replicated."""

    comm: Communicator

    def own_part(self, name: str, whole: Tensor) -> Tensor:
        """Return this rank's part of a whole parameter, in memory of its own."""
        dim = self.shard_dims.get(name)
        return whole.clone() if dim is None else own_slice(whole, dim, self.comm)

    def whole_of(self, name: str, part: Tensor) -> Tensor:
        """Gather a parameter, or its gradient, from the ranks' parts; every rank of the group must call it."""
        dim = self.shard_dims.get(name)
        return part.clone() if dim is None else self.comm.all_gather(part, dim)

    def counted_part(self, name: str, part: Tensor) -> Tensor:
        """Return what of a shard this rank counts in a sum over the ranks: all of it, unless ranks share rows."""
        return part


def equal_share(name: str, size: int, ranks: int) -> int:
    """Return how many of ``size`` each rank takes, all as many; refuse a size that does not divide, naming both."""
    if size % ranks:
        message = _(
            "{name}={size} on {ranks} ranks: they cannot be shared equally. Choose a number that {ranks} divides."
        )
        raise ValueError(message.format(name=name, size=size, ranks=ranks))
    return size // ranks


def own_parameters(module: nn.Module) -> Iterator[tuple[str, nn.Module, str, nn.Parameter]]:
    """Yield each parameter once: its full name, the module that owns it, its name there, and itself.

    A parameter that two modules share, as tied embeddings do, is the first one's.
    """
    seen: set[nn.Parameter] = set()
    for path, part in module.named_modules():
        for name, parameter in part.named_parameters(recurse=False):
            if parameter not in seen:
                seen.add(parameter)
                yield f"{path}.{name}" if path else name, part, name, parameter


def whole_state_dict(module: nn.Module) -> dict[str, Tensor]:
    """Gather every shard below ``module``; return the whole parameters by name, on every rank.

    Every rank of the group must call it. One all-gather for each sharded parameter, in the phase "other".
    """
    return {name: whole_of(part, own, value.detach()) for name, part, own, value in own_parameters(module)}


def whole_gradients(module: nn.Module) -> dict[str, Tensor]:
    """Return the whole gradients by parameter's name, as ``whole_state_dict`` does; without those that are None."""
    found = ((name, part, own, value.grad) for name, part, own, value in own_parameters(module))
    return {name: whole_of(part, own, grad.detach()) for name, part, own, grad in found if grad is not None}


def load_whole_state_dict(module: nn.Module, state: Mapping[str, Tensor]) -> None:
    """Copy this rank's part of each whole parameter into ``module``; nothing is sent.

    Refused: names that differ from the module's, and a whole parameter of another shape.
    """
    parameters = list(own_parameters(module))
    names = {name for name, *_rest in parameters}
    if names != state.keys():
        message = _("The state has {extra} that the module has not, and lacks {missing}.")
        extra, missing = (", ".join(sorted(each)) or "-" for each in (state.keys() - names, names - state.keys()))
        raise ValueError(message.format(extra=extra, missing=missing))
    for name, part, own, parameter in parameters:
        whole = state[name].detach()
        value = own_part_of(part, own, whole)
        if value.shape != parameter.shape:
            message = _("{name}: this rank's part of {whole} is {part}, but it should be {expected}.")
            shapes = {"whole": whole.shape, "part": value.shape, "expected": parameter.shape}
            raise ValueError(message.format(name=name, **{key: shape_text(each) for key, each in shapes.items()}))
        with torch.no_grad():
            parameter.copy_(value)


def own_part_of(part: nn.Module, name: str, whole: Tensor) -> Tensor:
    """Cut a tensor as a module's own parameter of this name is cut; a copy where that is no shard."""
    return part.own_part(name, whole) if isinstance(part, ShardedModule) else whole.clone()


def whole_of(part: nn.Module, name: str, tensor: Tensor) -> Tensor:
    """Gather what is cut like a module's own parameter of this name; a copy where that is no shard."""
    return part.whole_of(name, tensor) if isinstance(part, ShardedModule) else tensor.clone()
