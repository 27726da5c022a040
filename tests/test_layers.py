"""The parallel layers against nn.Linear: Y, dX, dW and db, on any number of ranks, to the bit."""

import copy

import pytest
import torch
from torch import nn

import tpviz
from tpviz.layers import ColumnParallelLinear, RowParallelLinear, reduce_replicated_gradients

RANKS = (1, 2, 3, 4, 8)
SIZES = [(5, 7), (8, 3), (4, 8)]


def numbers(rows, columns, start=0):
    return ((torch.arange(rows * columns) + start) * 7 % 17 - 8).reshape(rows, columns).float()


def whole_layer(inputs, outputs, bias=True):
    linear = nn.Linear(inputs, outputs, bias)
    with torch.no_grad():
        linear.weight.copy_(numbers(outputs, inputs, 3))
        if bias:
            linear.bias.copy_(torch.arange(outputs).float() - 2)
    return linear


def dense(linear, x, cotangent):
    linear = copy.deepcopy(linear)
    x = x.clone().requires_grad_()
    y = linear(x)
    y.backward(cotangent)
    return y.detach(), x.grad, linear.weight.grad, None if linear.bias is None else linear.bias.grad


@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize(("inputs", "outputs"), SIZES)
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("gather_output", [True, False])
def test_column(ranks, inputs, outputs, bias, gather_output):
    linear, x, cotangent = whole_layer(inputs, outputs, bias), numbers(6, inputs), numbers(6, outputs, 5)

    def program(comm):
        layer = ColumnParallelLinear.from_linear(linear, comm, gather_output=gather_output)
        mine = x.clone().requires_grad_()
        y = layer(mine)
        y.backward(cotangent if gather_output else tpviz.shard(cotangent, 1, comm))
        return y, mine.grad, layer.weight.grad, layer.bias.grad if bias else None

    run = tpviz.run(program, ranks=ranks)
    y, dx, dw, db = dense(linear, x, cotangent)
    ys, dxs, dws, dbs = zip(*run.outputs, strict=True)
    assert all(torch.equal(part, y) for part in ys) if gather_output else torch.equal(torch.cat(ys, 1), y)
    assert all(torch.equal(part, dx) for part in dxs)
    assert torch.equal(torch.cat(dws, 0), dw)
    assert db is None or torch.equal(torch.cat(dbs), db)
    kinds = [(event.kind, event.phase) for event in run.trace]
    assert kinds == [("all_gather", "forward")] * gather_output + [("all_reduce", "backward")]


@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize(("inputs", "outputs"), SIZES)
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("input_is_parallel", [True, False])
def test_row(ranks, inputs, outputs, bias, input_is_parallel):
    linear, x, cotangent = whole_layer(inputs, outputs, bias), numbers(6, inputs), numbers(6, outputs, 5)

    def program(comm):
        layer = RowParallelLinear.from_linear(linear, comm, input_is_parallel=input_is_parallel)
        mine = (tpviz.shard(x, 1, comm) if input_is_parallel else x.clone()).requires_grad_()
        y = layer(mine)
        y.backward(cotangent)
        return y, mine.grad, layer.weight.grad, layer.bias.grad if bias else None

    run = tpviz.run(program, ranks=ranks)
    y, dx, dw, db = dense(linear, x, cotangent)
    ys, dxs, dws, dbs = zip(*run.outputs, strict=True)
    assert all(torch.equal(part, y) for part in ys)
    assert torch.equal(torch.cat(dxs, 1), dx) if input_is_parallel else all(torch.equal(part, dx) for part in dxs)
    assert torch.equal(torch.cat(dws, 1), dw)
    assert db is None or all(torch.equal(part, db) for part in dbs)
    kinds = [(event.kind, event.phase) for event in run.trace]
    assert kinds == [("all_reduce", "forward")] + [("all_gather", "backward")] * (not input_is_parallel)


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_sequence_parallel_pair_with_b_4(ranks):
    """nanotron#46: a test that looked at dW only passed; every gradient is compared here."""
    first, second = whole_layer(5, 8), whole_layer(8, 3)
    x, cotangent = numbers(4, 5), numbers(4, 3, 5)

    def program(comm):
        column = ColumnParallelLinear.from_linear(first, comm, sequence_parallel=True)
        row = RowParallelLinear.from_linear(second, comm, sequence_parallel=True)
        mine = tpviz.shard(x, 0, comm).requires_grad_()
        y = row(torch.relu(column(mine)))
        y.backward(tpviz.shard(cotangent, 0, comm))
        unsynchronised = row.bias.grad.clone()
        reduce_replicated_gradients(nn.Sequential(column, row), comm)
        return y, mine.grad, column.weight.grad, row.weight.grad, row.bias.grad, unsynchronised

    run = tpviz.run(program, ranks=ranks)
    model = nn.Sequential(copy.deepcopy(first), nn.ReLU(), copy.deepcopy(second))
    whole = x.clone().requires_grad_()
    y = model(whole)
    y.backward(cotangent)
    ys, dxs, dw1s, dw2s, db2s, shares = zip(*run.outputs, strict=True)
    assert torch.equal(torch.cat(ys), y)
    assert torch.equal(torch.cat(dxs), whole.grad)
    assert torch.equal(torch.cat(dw1s, 0), model[0].weight.grad)
    assert torch.equal(torch.cat(dw2s, 1), model[2].weight.grad)
    assert all(torch.equal(db, model[2].bias.grad) for db in db2s)
    assert ranks == 1 or not torch.equal(shares[0], model[2].bias.grad)


@pytest.mark.parametrize("kind", [ColumnParallelLinear, RowParallelLinear])
@pytest.mark.parametrize("ranks", RANKS)
def test_any_number_of_ranks_starts_from_the_same_layer_and_merges_into_it(kind, ranks):
    torch.manual_seed(4)
    expected = nn.Linear(6, 5)
    after = torch.rand(2)
    torch.manual_seed(4)

    def program(comm):
        layer = kind(6, 5, comm)
        state = copy.deepcopy(layer.state_dict())
        layer.load_state_dict(state)
        merged = layer.to_linear()
        return merged.weight, merged.bias, torch.rand(2)

    for weight, bias, drawn in tpviz.run(program, ranks=ranks).outputs:
        assert torch.equal(weight, expected.weight)
        assert torch.equal(bias, expected.bias)
        assert torch.equal(drawn, after)


def test_x_that_is_data_costs_nothing_in_backward():
    linear = whole_layer(5, 8)

    def program(comm):
        ColumnParallelLinear.from_linear(linear, comm)(numbers(6, 5)).sum().backward()

    assert len(tpviz.run(program).trace) == 0


@pytest.mark.parametrize("kind", [ColumnParallelLinear, RowParallelLinear])
def test_a_wrong_input_is_named(kind):
    with pytest.raises(tpviz.RankError, match="3×7"):
        tpviz.run(lambda comm: kind(6, 4, comm)(torch.ones(3, 7)))
