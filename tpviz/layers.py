"""``ColumnParallelLinear`` and ``RowParallelLinear``: one linear layer, its weight cut over the ranks (layers).

Names, arguments and communication are Megatron-LM's (Shoeybi et al. 2019, arXiv 1909.08053, section 3;
``megatron/core/tensor_parallel/layers.py``), those of sequence parallelism Korthikanti et al.'s (2022, arXiv
2205.05198, section 4.2.2). Whatever a layer sends is a conjugate operator's, in both directions.

A weight is stored as ``nn.Linear`` stores it, (out_features, in_features), so the columns of the W of Y = X W are
rows of ``weight``. Sizes that do not divide follow the chunk rule, empty shards included: 6 features on 4 ranks are
2, 2, 2 and 0.
"""

from __future__ import annotations

from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn
from torch.nn import functional

from tpviz.chunking import chunk
from tpviz.communicator import Communicator
from tpviz.i18n import _
from tpviz.operators import (
    copy_to_region,
    gather_from_region,
    linear_of_gathered,
    reduce_from_region,
    reduce_scatter_to_region,
    scatter_to_region,
)
from tpviz.parameters import ShardedModule
from tpviz.tables import shape_text

Device = torch.device | str | None


class _ParallelLinear(ShardedModule):
    """What the two have in common: slices of an ``nn.Linear``, and the way back to it."""

    _switch: ClassVar[str]
    """The option that only one of the two has."""

    weight: nn.Parameter
    bias: nn.Parameter | None

    def __init__(
        self,
        in_features: int,
        out_features: int,
        comm: Communicator,
        bias: bool,
        sequence_parallel: bool,
        device: Device,
        dtype: torch.dtype | None,
    ) -> None:
        super().__init__()
        self.in_features = in_features
        self.out_features = out_features
        self.comm = comm
        self.sequence_parallel = sequence_parallel
        device = comm.device if device is None else device
        self._keep(nn.Linear(in_features, out_features, bias, device, dtype), device)

    def _keep(self, whole: nn.Linear, device: Device) -> None:
        """Take this rank's part of the whole layer's parameters, in memory of its own."""
        for name in ("weight", "bias"):
            parameter = getattr(whole, name)
            if parameter is not None:
                part = self.own_part(name, parameter.detach())
                parameter = nn.Parameter(part.to(device), parameter.requires_grad)
            self.register_parameter(name, parameter)

    @classmethod
    def from_linear(cls, linear: nn.Linear, comm: Communicator, **options: Any) -> Self:
        """Return the layer that computes what ``linear``, the same on every rank, computes.

        Each rank copies its slices to ``comm.device``, with ``linear``'s dtype; what is frozen stays frozen. No random
        number is drawn and nothing is sent. ``options`` are the constructor's: ``sequence_parallel`` and its like.
        """
        sizes = (linear.in_features, linear.out_features)
        options |= {"bias": linear.bias is not None, "device": "meta", "dtype": linear.weight.dtype}
        layer = cls(*sizes, comm, **options)
        layer._keep(linear, comm.device)
        return layer

    def to_linear(self) -> nn.Linear:
        """Gather the shards, and return the whole layer on every rank: a plain ``nn.Linear`` with tensors of its own.

        Every rank of the group must call it. It is also the way to a checkpoint that any number of ranks can load:
        ``layer.to_linear().state_dict()``, and back by ``from_linear``. (The layer's own ``state_dict()`` is this
        rank's shards.)
        """
        sizes, bias = (self.in_features, self.out_features), self.bias is not None
        whole = nn.Linear(*sizes, bias, device="meta", dtype=self.weight.dtype)
        for name, parameter in self.named_parameters(recurse=False):
            gathered = self.whole_of(name, parameter.detach())
            whole.register_parameter(name, nn.Parameter(gathered, parameter.requires_grad))
        return whole

    def _check_input(self, x: Tensor, expected: int, remedy: str) -> None:
        if x.shape[-1:] != (expected,):
            message = _("{layer} on {ranks} ranks: x is {shape}, but its last dimension should be {expected}.")
            names = {"layer": type(self).__name__, "ranks": self.comm.world_size}
            raise ValueError(message.format(**names, shape=shape_text(x.shape), expected=expected) + " " + remedy)
        if self.sequence_parallel and x.ndim < 2:
            message = _("{layer} with sequence_parallel cuts dimension 0 of x, which has only its features.")
            raise ValueError(message.format(layer=type(self).__name__))

    def extra_repr(self) -> str:
        """Return the sizes of the whole layer, the options, and which rank's part this is."""
        shown = {"in_features": self.in_features, "out_features": self.out_features, "bias": self.bias is not None}
        shown |= {name: getattr(self, name) for name in (self._switch, "sequence_parallel")}
        shown |= {"rank": self.comm.rank, "world_size": self.comm.world_size}
        return ", ".join(f"{name}={value}" for name, value in shown.items())


class ColumnParallelLinear(_ParallelLinear):
    """Y = X W + b, with W and b cut by columns, the output features: rank i computes Yi = X Wi + bi.

    Forward sends nothing; backward one all-reduce, of the ranks' contributions dYi Wiᵀ to dX, and none where X needs no
    gradient (``copy_to_region``, f). The gradients of ``weight`` and ``bias`` are complete where they are.

    Shapes, with in = ``in_features``, out = ``out_features``, n ranks, ``...`` any dimensions:
        ``x`` (..., in), replicated; the result (..., out/n), a shard of the last dimension.
        ``weight`` (out/n, in), a shard along 0 of ``nn.Linear``'s; ``bias`` (out/n).

    ``gather_output``: the result is the whole, (..., out), on every rank, for one and the same computation there, whose
    loss counts once (``gather_from_region``: all-gather forward, slice backward).

    ``sequence_parallel``: ``x`` is this rank's rows, a shard along dimension 0; instead of f, all rows are gathered
    (``gather_from_region(dim=0, consumer="sharded")``: all-gather forward, reduce-scatter backward).

    ``keep_gathered=False``, under ``sequence_parallel``: backward needs all rows of X for dW. By default they are kept
    from forward, (..., in) on every rank. So, only this rank's rows are kept, and backward gathers them again: one more
    all-gather, in the phase "backward" (Korthikanti et al. 2022, section 4.2.2; what Megatron-LM does).

    The whole layer is initialised as ``nn.Linear`` does, then sliced: ranks seeded alike, any number of them, start
    from the ``nn.Linear`` of that seed, and have drawn the same random numbers. ``device`` is ``comm.device`` by
    default.

    Source: Megatron-LM 2019 (arXiv 1909.08053), section 3; ``megatron/core/tensor_parallel/layers.py``.
    """

    shard_dims: ClassVar = {"weight": 0, "bias": 0}
    _switch: ClassVar = "gather_output"

    def __init__(
        self,
        in_features: int,
        out_features: int,
        comm: Communicator,
        bias: bool = True,
        gather_output: bool = False,
        sequence_parallel: bool = False,
        device: Device = None,
        dtype: torch.dtype | None = None,
        keep_gathered: bool = True,
    ) -> None:
        super().__init__(in_features, out_features, comm, bias, sequence_parallel, device, dtype)
        self.gather_output = gather_output
        self.keep_gathered = keep_gathered

    def forward(self, x: Tensor) -> Tensor:
        """Return Yi, or with ``gather_output`` the whole Y."""
        self._check_input(x, self.in_features, _("It takes all features; gather_from_region joins shards of them."))
        weight, bias = self.effective_parameters()
        y = column_linear(x, weight, bias, self.comm, self.sequence_parallel, self.keep_gathered)
        return gather_from_region(y, self.comm) if self.gather_output else y

    def effective_parameters(self) -> tuple[Tensor, Tensor | None]:
        """Return the weight and the bias that X meets: ``weight`` and ``bias`` themselves."""
        return self.weight, self.bias


def column_linear(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    comm: Communicator,
    sequence_parallel: bool,
    keep_gathered: bool,
) -> Tensor:
    """Return X Wi + bi, of an X that is replicated or this rank's rows: ``ColumnParallelLinear`` says what is sent."""
    if sequence_parallel and not keep_gathered:
        return linear_of_gathered(x, weight, bias, comm)
    x = gather_from_region(x, comm, dim=0, consumer="sharded") if sequence_parallel else copy_to_region(x, comm)
    return functional.linear(x, weight, bias)


class RowParallelLinear(_ParallelLinear):
    """Y = X W + b, with X cut by columns and W by rows, the input features: Y = X0 W0 + X1 W1 + ... + b.

    Forward sends one all-reduce, of the ranks' partial sums Xi Wi; backward nothing (``reduce_from_region``, g): every
    rank holds the whole dY, and dXi = dY Wiᵀ is the whole gradient of Xi. ``bias`` is replicated, and added once, after
    the sum.

    Shapes, with in = ``in_features``, out = ``out_features``, n ranks, ``...`` any dimensions:
        ``x`` (..., in/n), a shard of the last dimension; the result (..., out), replicated, for one and the same
        computation on every rank, whose loss counts once.
        ``weight`` (out, in/n), a shard along 1 of ``nn.Linear``'s; ``bias`` (out).

    ``input_is_parallel=False``: ``x`` is the whole, (..., in), and replicated; each rank takes its shard
    (``scatter_to_region``: slice forward, all-gather backward).

    ``sequence_parallel``: the result is this rank's rows, a shard along dimension 0; instead of g, the partial sums are
    reduce-scattered (``reduce_scatter_to_region(dim=0)``: reduce-scatter forward, all-gather backward). Then ``bias``
    meets this rank's rows only, and so does its gradient, here and in every replicated parameter that works on rows
    (a LayerNorm's). After backward, ``reduce_replicated_gradients`` adds these gradients up.

    Initialisation and ``device``: see ``ColumnParallelLinear``.

    Source: Megatron-LM 2019 (arXiv 1909.08053), section 3; ``megatron/core/tensor_parallel/layers.py``.
    """

    shard_dims: ClassVar = {"weight": 1}
    _switch: ClassVar = "input_is_parallel"

    def __init__(
        self,
        in_features: int,
        out_features: int,
        comm: Communicator,
        bias: bool = True,
        input_is_parallel: bool = True,
        sequence_parallel: bool = False,
        device: Device = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(in_features, out_features, comm, bias, sequence_parallel, device, dtype)
        self.input_is_parallel = input_is_parallel

    def forward(self, x: Tensor) -> Tensor:
        """Return Y, or with ``sequence_parallel`` this rank's rows of it."""
        if self.input_is_parallel:
            features = chunk(self.in_features, self.comm.world_size, self.comm.rank)[1]
            self._check_input(x, features, _("It takes this rank's shard; input_is_parallel=False takes all features."))
        else:
            self._check_input(x, self.in_features, _("With input_is_parallel=False it takes all features."))
            x = scatter_to_region(x, self.comm)
        y = functional.linear(x, self.weight)
        if self.sequence_parallel:
            y = reduce_scatter_to_region(y, self.comm, dim=0)
        else:
            y = reduce_from_region(y, self.comm)
        # Under autocast y is in the lower precision; nn.Linear casts its bias to it as well.
        return y if self.bias is None else y + self.bias.to(y.dtype)


def reduce_replicated_gradients(module: nn.Module, comm: Communicator) -> None:
    """Add up, over the ranks, the gradients of the replicated parameters that work on this rank's rows only.

    Under sequence parallelism each rank has other rows, so the gradient of a parameter that all ranks hold is a sum of
    which each rank has its rows' share. Call it once after backward (after the last one, where gradients accumulate),
    on every rank. One all-reduce for each such parameter with a gradient, in the phase "gradients".

    They are found in the modules below ``module`` whose ``sequence_parallel`` is True: the layers here, of which only
    a row layer's ``bias`` is replicated, and any other so marked: ``norm = nn.LayerNorm(4)`` by
    ``norm.sequence_parallel = True``. (Megatron-LM marks the parameters instead, in ``layers.py``, and adds up in
    ``megatron/core/distributed/finalize_model_grads.py``; deepcopy drops a parameter's marks, not a module's.)
    """
    seen: set[nn.Parameter] = set()
    for part in module.modules():
        if not getattr(part, "sequence_parallel", False):
            continue
        for name, parameter in part.named_parameters(recurse=False):
            if name not in getattr(part, "shard_dims", ()) and parameter.grad is not None and parameter not in seen:
                seen.add(parameter)
                parameter.grad = comm.all_reduce(parameter.grad.detach(), phase="gradients")
