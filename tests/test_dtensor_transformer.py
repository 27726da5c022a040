"""A parallel Transformer's layer against PyTorch's own plan for it, on two real gloo processes, from the same weights.

The plan is the one of PyTorch's tutorial: column and row layers, and under sequence parallelism SequenceParallel norms.
"""

from collections import Counter

import pytest
import torch
from gloo_ranks import on_gloo
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.debug import CommDebugMode
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)
from torch.nn import functional

import tpviz
from tpviz.blocks import ParallelTransformerLayer, TransformerConfig
from tpviz.communicator import Communicator
from tpviz.layers import reduce_replicated_gradients
from tpviz.parameters import load_whole_state_dict, whole_gradients

RANKS, HIDDEN, HEADS = 2, 12, 4
SIZE = HIDDEN // HEADS
ROWS = (False, True)


class Attention(nn.Module):
    """Its rows first, (sequence, batch, hidden); Q, K and V are layers of their own, as a plan needs them."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v, self.projection = (nn.Linear(HIDDEN, HIDDEN) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        parts = (layer(x) for layer in (self.q, self.k, self.v))
        q, k, v = (part.view(*part.shape[:2], -1, SIZE).permute(1, 2, 0, 3) for part in parts)
        attended = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.projection(attended.permute(2, 0, 1, 3).flatten(2))  # type: ignore[no-any-return]


class MLP(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(HIDDEN, 4 * HIDDEN), nn.Linear(4 * HIDDEN, HIDDEN)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(functional.gelu(self.up(x)))  # type: ignore[no-any-return]


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention_norm, self.mlp_norm = nn.LayerNorm(HIDDEN), nn.LayerNorm(HIDDEN)
        self.attention, self.mlp = Attention(), MLP()

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.attention_norm(x))
        return x + self.mlp(self.mlp_norm(x))  # type: ignore[no-any-return]


def numbers(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def whole() -> tuple[Layer, Tensor, Tensor]:
    """Return the whole layer, X and dY, the same wherever it is called."""
    layer = Layer().double()
    for index, parameter in enumerate(layer.parameters()):
        parameter.data = numbers(*parameter.shape, seed=index)
    return layer, numbers(6, 2, HIDDEN, seed=100), numbers(6, 2, HIDDEN, seed=101)


def fused(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Rename PyTorch's tensors to ours: Q, K and V as one."""
    found = {name: tensor for name, tensor in tensors.items() if name.split(".")[1] not in ("q", "k", "v")}
    for kind in ("weight", "bias"):
        found[f"attention.qkv.{kind}"] = torch.cat([tensors[f"attention.{part}.{kind}"] for part in "qkv"])
    return found


Found = tuple[dict[str, Tensor], Counter[tuple[str, str]]]


def theirs() -> dict[bool, Found]:
    mesh = init_device_mesh("cpu", (RANKS,))
    return {rows: _theirs(rows, mesh) for rows in ROWS}  # type: ignore[no-untyped-call]


def _theirs(rows, mesh):  # type: ignore[no-untyped-def]
    layer, x, cotangent = whole()
    outside = Shard(0) if rows else Replicate()
    entry = {"input_layouts": outside, "desired_input_layouts": Replicate()}
    plan = {
        "attention": PrepareModuleInput(**entry),
        "mlp": PrepareModuleInput(**entry),
        **{f"attention.{part}": ColwiseParallel() for part in "qkv"},
        "mlp.up": ColwiseParallel(),
        **{name: RowwiseParallel(output_layouts=outside) for name in ("attention.projection", "mlp.down")},
    }
    if rows:
        plan |= {
            name: SequenceParallel(sequence_dim=0, use_local_output=True) for name in ("attention_norm", "mlp_norm")
        }
    layer = parallelize_module(layer, mesh, plan)
    mine, cotangent = (distribute_tensor(each, mesh, [outside]).to_local().detach() for each in (x, cotangent))
    mine.requires_grad_()
    with CommDebugMode() as forward:
        y = layer(mine)
    with CommDebugMode() as backward:
        y.backward(cotangent)
    names = {"all_gather_into_tensor": "all_gather", "reduce_scatter_tensor": "reduce_scatter"}
    counts = Counter()
    for phase, mode in (("forward", forward), ("backward", backward)):
        for op, count in mode.get_comm_counts().items():
            kind = str(op).rpartition(".")[2]
            counts[names.get(kind, kind), phase] += count
    gradients = {
        name: (grad.full_tensor() if isinstance(grad := parameter.grad, DTensor) else grad).clone()
        for name, parameter in layer.named_parameters()
    }
    return fused(gradients) | {"y": y.detach(), "dx": mine.grad}, counts


def ours(comm: Communicator, rows: bool) -> dict[str, Tensor]:
    reference, x, cotangent = whole()
    config = TransformerConfig(HIDDEN, HEADS, sequence_parallel=rows, dtype=torch.float64)
    layer = ParallelTransformerLayer(config, comm)
    load_whole_state_dict(layer, fused(reference.state_dict()))
    mine, gradient = (tpviz.shard(each, 0, comm) if rows else each.clone() for each in (x, cotangent))
    y = layer(mine.requires_grad_())
    y.backward(gradient)
    reduce_replicated_gradients(layer, comm)
    assert mine.grad is not None
    return whole_gradients(layer) | {"y": y, "dx": mine.grad}


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> list[dict[bool, Found]]:
    return on_gloo(theirs, tmp_path_factory.mktemp("gloo"), RANKS)


@pytest.mark.parametrize("rows", ROWS)
def test_the_layer_is_parallelize_modules(rows: bool, reference: list[dict[bool, Found]]) -> None:
    run = tpviz.run(ours, ranks=RANKS, args=(rows,))
    mine = Counter((event.kind, event.phase) for event in run.trace if event.phase in ("forward", "backward"))
    for found, (expected, counts) in zip(run.outputs, (each[rows] for each in reference), strict=True):
        assert found.keys() == expected.keys()
        wrong = [
            name for name in found if (found[name] - expected[name]).abs().max() > 1e-10 * expected[name].abs().max()
        ]
        assert wrong == []
        assert mine == counts
