"""The parallel layers against PyTorch's ``parallelize_module`` on two real gloo processes, from the same whole layers.

Every rank's part of Y, dX and each weight's and bias's gradient is compared, and how many collectives each sent.
"""

from collections import Counter, OrderedDict
from collections.abc import Mapping
from typing import Any, NamedTuple

import pytest
import torch
from gloo_ranks import on_gloo
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Placement, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.debug import CommDebugMode
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

import tpviz
from tpviz.communicator import Communicator
from tpviz.layers import ColumnParallelLinear, RowParallelLinear, reduce_replicated_gradients
from tpviz.layouts import distribute

RANKS = 2


class Layer(NamedTuple):
    """One layer's options, in our words and in PyTorch's."""

    ours: Mapping[str, Any] = {}
    theirs: Mapping[str, Any] = {}


class Plan(NamedTuple):
    x: Placement
    y: Placement
    column: Layer | None = None
    row: Layer | None = None


ROWS_IN = Layer({"sequence_parallel": True}, {"input_layouts": Shard(0)})
ROWS_OUT = Layer({"sequence_parallel": True}, {"output_layouts": Shard(0)})
PLANS = {
    "column": Plan(Replicate(), Shard(1), column=Layer()),
    "column, gathered": Plan(
        Replicate(), Replicate(), column=Layer({"gather_output": True}, {"output_layouts": Replicate()})
    ),
    "column, rows in": Plan(Shard(0), Shard(1), column=ROWS_IN),
    "row": Plan(Shard(1), Replicate(), row=Layer()),
    "row, whole in": Plan(
        Replicate(), Replicate(), row=Layer({"input_is_parallel": False}, {"input_layouts": Replicate()})
    ),
    "row, rows out": Plan(Shard(1), Shard(0), row=ROWS_OUT),
    "pair": Plan(Replicate(), Replicate(), column=Layer(), row=Layer()),
    "pair, rows": Plan(Shard(0), Shard(0), column=ROWS_IN, row=ROWS_OUT),
}


class Case(NamedTuple):
    plan: str
    even: bool
    bias: bool
    exact: bool
    """Integers, compared to the bit."""

    def __str__(self) -> str:
        words = (self.even, "even", "uneven"), (self.bias, "bias", "no bias"), (self.exact, "integers", "random")
        return "; ".join([self.plan, *(yes if given else no for given, yes, no in words)])

    def numbers(self, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
        if self.exact:
            return torch.randint(-4, 5, shape, generator=generator).double()
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    def whole(self) -> tuple[dict[str, nn.Linear], Tensor, Tensor]:
        """Return the whole layers, X and dY, the same wherever it is called."""
        plan, generator = PLANS[self.plan], torch.Generator().manual_seed(5)
        rows, inputs, hidden, outputs = (4, 6, 8, 2) if self.even else (3, 5, 7, 9)
        hidden = hidden if plan.column and plan.row else (outputs if plan.column else inputs)
        layers = dict[str, nn.Linear]()
        if plan.column:
            layers["column"] = nn.Linear(inputs, hidden, self.bias, dtype=torch.float64)
        if plan.row:
            layers["row"] = nn.Linear(hidden, outputs, self.bias, dtype=torch.float64)
        for parameter in nn.ModuleDict(layers).parameters():
            parameter.data = self.numbers(tuple(parameter.shape), generator)
        return layers, self.numbers((rows, inputs), generator), self.numbers((rows, outputs), generator)


CASES = [
    Case(plan, even, bias, exact)
    for plan in PLANS
    for even in (True, False)
    for bias in (True, False)
    for exact in (True, False)
]


class Found(NamedTuple):
    """What one rank found: y, dx and the parameters' gradients by their name, and the collectives by kind and phase."""

    tensors: dict[str, Tensor]
    collectives: Counter[tuple[str, str]]


def stacked(layers: Mapping[str, nn.Module]) -> nn.Sequential:
    """Return the layers as one module, with ReLU between the two of a pair."""
    first, *rest = layers.items()
    return nn.Sequential(OrderedDict([first, *([("relu", nn.ReLU())] if rest else []), *rest]))


def tensors_of(model: nn.Module, y: Tensor, x: Tensor) -> dict[str, Tensor]:
    gradients = {name: parameter.grad for name, parameter in [("x", x), *model.named_parameters()]}
    tensors = {"y": y} | {f"d{name}": grad for name, grad in gradients.items() if grad is not None}
    return {name: local(tensor).detach().clone() for name, tensor in tensors.items()}


def local(tensor: Tensor) -> Tensor:
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


# PyTorch's side, in processes of its own


def theirs(case: Case, mesh: DeviceMesh) -> Found:
    """Return what this rank finds with PyTorch's plan.

    ``from_local`` without a shape takes all shards to be of one size. So where sizes do not divide, DTensors go in and
    out of each layer; else local tensors do, as they do by default.
    """
    plan, (layers, x, cotangent) = PLANS[case.plan], case.whole()
    styles = {"column": (ColwiseParallel, plan.column), "row": (RowwiseParallel, plan.row)}
    styled = {
        name: style(**layer.theirs, use_local_output=case.even) for name, (style, layer) in styles.items() if layer
    }
    model = parallelize_module(stacked(layers), mesh, styled)
    mine = local(distribute_tensor(x, mesh, [plan.x])).detach().requires_grad_()
    cotangent = local(distribute_tensor(cotangent, mesh, [plan.y]))
    with measured() as forward:
        entry = mine if case.even else DTensor.from_local(mine, mesh, [plan.x], shape=x.shape, stride=x.stride())
        y = local(model(entry))
    with measured() as backward:
        torch.autograd.backward(y, cotangent)
    return Found(tensors_of(model, y, mine), counted("forward", forward) + counted("backward", backward))


def measured() -> CommDebugMode:
    return CommDebugMode()  # type: ignore[no-untyped-call]


def counted(phase: str, mode: CommDebugMode) -> Counter[tuple[str, str]]:
    names = {"all_gather_into_tensor": "all_gather", "reduce_scatter_tensor": "reduce_scatter"}
    counts = {str(op).rpartition(".")[2]: count for op, count in mode.get_comm_counts().items()}
    return Counter({(names.get(op, op), phase): count for op, count in counts.items()})


def all_cases() -> dict[Case, Found]:
    mesh = init_device_mesh("cpu", (RANKS,))
    return {case: theirs(case, mesh) for case in CASES}


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> list[dict[Case, Found]]:
    """Return what each of PyTorch's ranks found in all cases: starting the processes takes longer than all of them."""
    return on_gloo(all_cases, tmp_path_factory.mktemp("gloo"), RANKS)


# Ours, on simulated ranks


def ours(case: Case) -> list[Found]:
    plan, (whole, x, cotangent) = PLANS[case.plan], case.whole()
    xs, cotangents = distribute(x, plan.x, RANKS), distribute(cotangent, plan.y, RANKS)

    def program(comm: Communicator) -> dict[str, Tensor]:
        layers = dict[str, nn.Module]()
        if plan.column:
            layers["column"] = ColumnParallelLinear.from_linear(whole["column"], comm, **plan.column.ours)
        if plan.row:
            layers["row"] = RowParallelLinear.from_linear(whole["row"], comm, **plan.row.ours)
        model, mine = stacked(layers), xs[comm.rank].clone().requires_grad_()
        y = model(mine)
        torch.autograd.backward(y, cotangents[comm.rank])
        # PyTorch adds a row layer's bias to the partial sums, before the reduce-scatter, so that it meets all rows;
        # Megatron-LM and we after it, so that its gradient is a share until now.
        reduce_replicated_gradients(model, comm)
        return tensors_of(model, y, mine)

    run = tpviz.run(program, ranks=RANKS)
    collectives = Counter((event.kind, event.phase) for event in run.trace if event.phase != "gradients")
    return [Found(output, collectives) for output in run.outputs]


def is_close(mine: Tensor, its: Tensor) -> bool:
    return mine.shape == its.shape and bool((mine - its).abs().max() <= 1e-12 * its.abs().max())


@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_layers_are_parallelize_modules(case: Case, reference: list[dict[Case, Found]]) -> None:
    for mine, its in zip(ours(case), (found[case] for found in reference), strict=True):
        assert mine.tensors.keys() == its.tensors.keys()
        same = torch.equal if case.exact else is_close
        wrong = [name for name, tensor in mine.tensors.items() if not same(tensor, its.tensors[name])]
        assert wrong == []
        assert mine.collectives == its.collectives
