"""The conjugate operators: collectives that autograd can follow, each with its stated backward (conjugate operators).

The names are Megatron-LM's (``megatron/core/tensor_parallel/mappings.py``). A backward is made of the conjugate
operator, so that it can itself be differentiated; it appears in the trace with phase "backward" and with the source
line of its forward.

What an operator's input and output are over the group decides the pair. A *replicated* tensor is the same on every
rank and counts once in the loss; the gradient of a replicated tensor that each rank used for its own share is a
partial sum until it is reduced.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd import Function
from torch.nn import functional

from tpviz.communicator import Communicator, call, check_reduction, check_tensor, dimension
from tpviz.i18n import _
from tpviz.sharding import own_slice
from tpviz.source import Site, call_site

CONSUMERS = ("replicated", "sharded")


def copy_to_region(x: Tensor, comm: Communicator) -> Tensor:
    """f: identity forward, all-reduce backward (Megatron-LM 2019, arXiv 1909.08053, section 3).

    ``x`` is replicated; each rank goes on to use it for its own share of the work. So the ranks' gradients are
    contributions to one and the same variable, and backward adds them up. Returns ``x`` with the same shape.
    """
    check_tensor("copy_to_region", x)
    return _copy(x, _Link(comm, call_site(), "forward"))


def reduce_from_region(x: Tensor, comm: Communicator, consumer: str = "replicated") -> Tensor:
    """g: all-reduce forward, identity backward (Megatron-LM 2019, section 3).

    ``x`` is each rank's partial sum; the result, of the same shape, is the sum, on every rank. ``consumer`` says what
    uses it: "replicated", the same computation on every rank whose loss counts once, so that every rank already holds
    the whole gradient; or "sharded", a computation of each rank's own whose losses add up, for which backward is an
    all-reduce too.
    """
    check_tensor("reduce_from_region", x)
    check_reduction("sum", x)
    return _reduce(x, _Link(comm, call_site(), "forward", sharded=_check_consumer(consumer)))


def scatter_to_region(x: Tensor, comm: Communicator, dim: int = -1) -> Tensor:
    """Slice forward, all-gather backward.

    ``x`` is replicated; the result is this rank's shard along ``dim`` (the chunk rule).
    """
    check_tensor("scatter_to_region", x)
    return _scatter(x, _Link(comm, call_site(), "forward", dimension("dim", dim, x)))


def gather_from_region(x: Tensor, comm: Communicator, dim: int = -1, consumer: str = "replicated") -> Tensor:
    """All-gather forward; backward a slice (``consumer="replicated"``) or a reduce-scatter (``consumer="sharded"``).

    ``x`` is this rank's shard along ``dim``; the result is the whole, on every rank. If the same computation follows on
    every rank and its loss counts once, the shard's gradient is a slice of the whole's; if each rank goes on with a
    computation of its own, the ranks' gradients add up first.
    """
    check_tensor("gather_from_region", x)
    along = dimension("dim", dim, x)
    return _gather(x, _Link(comm, call_site(), "forward", along, sharded=_check_consumer(consumer)))


def reduce_scatter_to_region(x: Tensor, comm: Communicator, dim: int = 0) -> Tensor:
    """Reduce-scatter forward, all-gather backward (Korthikanti et al. 2022, arXiv 2205.05198, section 4.2.2).

    ``x`` is each rank's partial sum of the whole; the result is this rank's shard along ``dim`` of the sum.
    """
    check_tensor("reduce_scatter_to_region", x)
    check_reduction("sum", x)
    return _reduce_scatter(x, _Link(comm, call_site(), "forward", dimension("dim", dim, x)))


def all_to_all_region(x: Tensor, comm: Communicator, split_dim: int, concat_dim: int) -> Tensor:
    """All-to-all forward, all-to-all with the dimensions swapped backward (Megatron-LM, ``mappings.all_to_all``).

    ``x`` is this rank's shard along ``concat_dim``; the result is its shard along ``split_dim``. Each rank sends each
    other one a piece, so the pieces' gradients go back the same way.
    """
    check_tensor("all_to_all_region", x)
    dims = dimension("split_dim", split_dim, x), dimension("concat_dim", concat_dim, x)
    return _all_to_all(x, _Link(comm, call_site(), "forward", *dims))


def linear_of_gathered(x: Tensor, weight: Tensor, bias: Tensor | None, comm: Communicator) -> Tensor:
    """All-gather forward, then a linear layer; backward a reduce-scatter, and the same all-gather once more.

    ``x`` (rows, ..., in) is this rank's shard along dimension 0; the result (all rows, ..., out) is
    ``functional.linear`` of all rows, for a ``weight`` (out, in) and a ``bias`` (out) of this rank's own. The values
    are those of ``gather_from_region(x, comm, dim=0, consumer="sharded")`` before ``functional.linear``. But that keeps
    all rows for the weight's gradient, this only ``x``, which backward gathers again where the weight needs one.

    Source: Korthikanti et al. 2022, arXiv 2205.05198, section 4.2.2; ``megatron/core/tensor_parallel/layers.py``,
    ``LinearWithGradAccumulationAndAsyncCommunication``.
    """
    check_tensor("linear_of_gathered", x)
    link = _Link(comm, call_site(), "forward", dimension("dim", 0, x), sharded=True)
    return _LinearOfGathered.apply(x, weight, bias, link)  # type: ignore[no-any-return, no-untyped-call]


def _check_consumer(consumer: object) -> bool:
    """Return whether the consumer is sharded."""
    if consumer not in CONSUMERS:
        message = _("consumer={consumer!r} is unknown; expected one of {known}.")
        raise ValueError(message.format(consumer=consumer, known=", ".join(CONSUMERS)))
    return consumer == "sharded"


class _Link(NamedTuple):
    """What an operator's forward hands on to its backward, in one argument, since autograd pays for each."""

    comm: Communicator
    site: Site
    phase: str
    dim: int | None = None
    other_dim: int | None = None
    sharded: bool = False

    def back(self) -> _Link:
        """Return the link of the backward, which belongs to the forward's line."""
        return self._replace(phase="backward")


def _collective(kind: str, x: Tensor, link: _Link, needs_grad: bool) -> Tensor:
    reduction = None if kind in ("all_gather", "all_to_all") else "sum"
    mine = call(kind, x, link.phase, link.site, reduction, link.dim, link.other_dim, needs_grad=needs_grad)
    return link.comm._exchange(mine)  # type: ignore[no-any-return]


# Each function below applies its class where a gradient is wanted, and else only computes: a Function costs as much
# as the arithmetic of a toy layer, and a backward without create_graph wants no gradient.


def _wanted(x: Tensor) -> bool:
    return x.requires_grad and torch.is_grad_enabled()


def _copy(x: Tensor, link: _Link) -> Tensor:
    return _Copy.apply(x, link) if _wanted(x) else x  # type: ignore[no-untyped-call]


def _reduce(x: Tensor, link: _Link) -> Tensor:
    if _wanted(x):
        return _Reduce.apply(x, link)  # type: ignore[no-any-return, no-untyped-call]
    return _collective("all_reduce", x, link, False)


def _scatter(x: Tensor, link: _Link) -> Tensor:
    if _wanted(x):
        return _Scatter.apply(x, link)  # type: ignore[no-any-return, no-untyped-call]
    return own_slice(x, link.dim or 0, link.comm)


def _gather(x: Tensor, link: _Link) -> Tensor:
    if _wanted(x):
        return _Gather.apply(x, link)  # type: ignore[no-any-return, no-untyped-call]
    return _collective("all_gather", x, link, False)


def _reduce_scatter(x: Tensor, link: _Link) -> Tensor:
    if _wanted(x):
        return _ReduceScatter.apply(x, link)  # type: ignore[no-any-return, no-untyped-call]
    return _collective("reduce_scatter", x, link, False)


def _all_to_all(x: Tensor, link: _Link) -> Tensor:
    if _wanted(x):
        return _AllToAll.apply(x, link)  # type: ignore[no-any-return, no-untyped-call]
    return _collective("all_to_all", x, link, False)


class _Copy(Function):
    """f: identity / all-reduce."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, link: _Link) -> Tensor:
        ctx.link = link
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        return _reduce(grad, ctx.link.back()), None


class _Reduce(Function):
    """g: all-reduce / identity, or all-reduce / all-reduce for a sharded consumer."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, link: _Link) -> Tensor:
        ctx.link = link
        return _collective("all_reduce", x, link, True)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        link = ctx.link
        return _reduce(grad, link.back()) if link.sharded else _copy(grad, link), None


class _Scatter(Function):
    """Slice / all-gather."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, link: _Link) -> Tensor:
        ctx.link = link
        return own_slice(x, link.dim or 0, link.comm)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        return _gather(grad, ctx.link.back()), None


class _Gather(Function):
    """All-gather / slice, or all-gather / reduce-scatter for a sharded consumer."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, link: _Link) -> Tensor:
        ctx.link = link
        return _collective("all_gather", x, link, True)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        conjugate = _reduce_scatter if ctx.link.sharded else _scatter
        return conjugate(grad, ctx.link.back()), None


class _ReduceScatter(Function):
    """Reduce-scatter / all-gather, whose consumer is sharded."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, link: _Link) -> Tensor:
        ctx.link = link
        return _collective("reduce_scatter", x, link, True)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        return _gather(grad, ctx.link.back()._replace(sharded=True)), None


class _LinearOfGathered(Function):
    """All-gather and a linear layer / all-gather, and reduce-scatter."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, link: _Link) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.link = link
        return functional.linear(_collective("all_gather", x, link, x.requires_grad), weight, bias)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        (x, weight), link = ctx.saved_tensors, ctx.link.back()
        dx = dweight = dbias = None
        # Under autocast grad is in the lower precision.
        if ctx.needs_input_grad[1]:
            gathered = _gather(x, link).to(grad.dtype)
            dweight = (grad.flatten(0, -2).T @ gathered.flatten(0, -2)).to(weight.dtype)
        if ctx.needs_input_grad[0]:
            dx = _reduce_scatter(grad @ weight.to(grad.dtype), link).to(x.dtype)
        if ctx.needs_input_grad[2]:
            dbias = grad.flatten(0, -2).sum(dim=0).to(weight.dtype)
        return dx, dweight, dbias, None


class _AllToAll(Function):
    """All-to-all / all-to-all with the dimensions swapped."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, link: _Link) -> Tensor:
        ctx.link = link
        return _collective("all_to_all", x, link, True)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        link = ctx.link.back()
        return _all_to_all(grad, link._replace(dim=link.other_dim, other_dim=link.dim)), None
