"""A Transformer's numbers against PyTorch's own count, and Korthikanti's table 2 exactly."""

from fractions import Fraction

import numpy as np
import pytest
import torch
from torch.nn import functional
from torch.utils.flop_counter import FlopCounterMode

from tpviz.transformers import (
    Transformer,
    activation_bytes,
    backward_traffic,
    core_matmuls,
    end_activation_bytes,
    forward_traffic,
    linear_matmuls,
    step_flops,
)

SMALL = Transformer(hidden=16, heads=4, layers=3, sequence=8, vocabulary=32)


class Layer(torch.nn.Module):
    """A GPT layer of PyTorch's parts."""

    def __init__(self, model):
        super().__init__()
        h = model.hidden
        self.heads = model.heads
        self.norms = torch.nn.ModuleList([torch.nn.LayerNorm(h), torch.nn.LayerNorm(h)])
        self.qkv, self.projection = torch.nn.Linear(h, 3 * h), torch.nn.Linear(h, h)
        self.up, self.down = torch.nn.Linear(h, 4 * h), torch.nn.Linear(4 * h, h)

    def forward(self, x):
        b, s, h = x.shape
        qkv = self.qkv(self.norms[0](x)).view(b, s, self.heads, 3, h // self.heads)
        q, k, v = (qkv[:, :, :, i].transpose(1, 2) for i in range(3))
        weights = (q @ k.transpose(2, 3)).softmax(-1)
        x = x + self.projection((weights @ v).transpose(1, 2).reshape(b, s, h))
        return x + self.down(functional.gelu(self.up(self.norms[1](x))))


def test_parameters_are_those_of_pytorchs_layer():
    counted = sum(parameter.numel() for parameter in Layer(SMALL).parameters())
    assert counted == SMALL.layer_parameters
    assert SMALL.parameters == 3 * counted + (32 + 8) * 16


@pytest.mark.parametrize("tensor", [1, 2, 4])
def test_a_ranks_parameters(tensor):
    assert SMALL.rank_layer_parameters(1) == SMALL.layer_parameters
    assert SMALL.rank_end_parameters(1) == SMALL.end_parameters
    # Two rows' biases and two LayerNorms are on every rank.
    copies = (tensor - 1) * 6 * 16
    assert tensor * SMALL.rank_layer_parameters(tensor) == SMALL.layer_parameters + copies


def test_operations_are_those_that_pytorch_counts():
    x = torch.zeros(2, 8, 16, requires_grad=True)
    layer = Layer(SMALL)
    with FlopCounterMode(display=False) as forward:
        y = layer(x)
    with FlopCounterMode(display=False) as backward:
        y.sum().backward()
    matmuls = linear_matmuls(SMALL, 2, 1) + core_matmuls(SMALL, 2, 1)
    assert sum(each.flops for each in matmuls) == forward.get_total_flops()
    assert backward.get_total_flops() == 2 * forward.get_total_flops()
    logits = 6 * 2 * 8 * 16 * 32
    assert step_flops(SMALL, 2) == 3 * 3 * forward.get_total_flops() + logits
    assert step_flops(SMALL, 2, "full") == 3 * 4 * forward.get_total_flops() + logits


@pytest.mark.parametrize("tensor", [1, 2, 4])
def test_ranks_share_the_operations(tensor):
    for matmuls in (linear_matmuls, core_matmuls):
        shares = [each.flops for each in matmuls(SMALL, 2, tensor)]
        assert [tensor * share for share in shares] == [each.flops for each in matmuls(SMALL, 2, 1)]


def test_published_forms_of_the_operations():
    b, s, h, layers, v = 4, 2048, 6144, 48, 51200
    model = Transformer(h, 64, layers, s, v)
    whole = b * s * layers * h**2
    forms = {
        "none": 72 * whole * (1 + Fraction(s, 6 * h) + Fraction(v, 12 * layers * h)),
        "selective": 72 * whole * (1 + Fraction(2 * s, 9 * h) + Fraction(v, 12 * layers * h)),
        "full": 96 * whole * (1 + Fraction(s, 6 * h) + Fraction(v, 16 * layers * h)),
    }
    assert {name: step_flops(model, b, name) for name in forms} == forms


@pytest.mark.parametrize(("h", "a"), [(6144, 64), (12288, 96), (20480, 128), (25600, 160)])
@pytest.mark.parametrize("t", [1, 2, 4, 8])
def test_korthikantis_table_2(h, a, t):
    s, b = 2048, 4
    model = Transformer(h, a, 1, s)
    sbh, core = s * b * h, Fraction(5 * a * s, h)
    assert activation_bytes(model, b) == sbh * (34 + core)
    assert activation_bytes(model, b, t) == sbh * (10 + Fraction(24, t) + core / t)
    assert activation_bytes(model, b, t, sequence_parallel=True) == Fraction(sbh, t) * (34 + core)
    assert activation_bytes(model, b, t, recompute="selective") == sbh * (10 + Fraction(24, t))
    assert activation_bytes(model, b, t, sequence_parallel=True, recompute="selective") == Fraction(34 * sbh, t)
    assert activation_bytes(model, b, t, recompute="full") == 2 * sbh
    assert end_activation_bytes(model, b, t, sequence_parallel=True) == Fraction(sbh, t) * (
        1 + 4 * (1 + Fraction(51200, h))
    )


def test_traffic_by_hand():
    # 16 tokens of 16 features; 4 heads of 8 × 8 weights for each of 2 sequences.
    entries, weights = 16 * 16, 2 * 4 * 64
    assert forward_traffic(SMALL, 2, 1, False) == (22 * entries, 16 * entries, 9 * weights)
    assert backward_traffic(SMALL, 2, 4, False) == (34 * entries, 24 * entries / 4, 11 * weights / 4)
    assert forward_traffic(SMALL, 2, 4, True).outside == 22 * entries / 4


def test_sizes_may_be_arrays():
    sizes = np.array([16.0, 32.0])
    models = [Transformer(size, 4, 3, 8) for size in sizes]
    many = Transformer(sizes, 4, 3, 8)
    assert list(many.parameters) == [one.parameters for one in models]
    assert list(activation_bytes(many, 2, 2)) == [activation_bytes(one, 2, 2) for one in models]
