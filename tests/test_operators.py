"""The conjugate operators: values and every gradient against the unsharded computation, and each one's adjoint."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import tpviz

RANKS = (1, 2, 3, 4, 8)
X = torch.tensor([[1.0, 2, 0, -1, 3], [0, 1, 3, 2, -2], [2, -1, 1, 0, 4]])
W1 = (torch.arange(35.0).reshape(5, 7) * 3) % 11 - 5
W2 = (torch.arange(14.0).reshape(7, 2) * 5) % 7 - 3
DZ = torch.tensor([[1.0, -2], [3, 0], [-1, 2]])
DH = (torch.arange(21.0).reshape(3, 7) * 2) % 9 - 4


def dense_mlp():
    x, w1, w2 = (tensor.clone().requires_grad_() for tensor in (X, W1, W2))
    z = torch.relu(x @ w1) @ w2
    z.backward(DZ)
    return z.detach(), x.grad, w1.grad, w2.grad


@pytest.mark.parametrize("ranks", RANKS)
def test_the_mlp_equals_the_dense_one_in_every_gradient(ranks):
    def program(comm):
        x = X.clone().requires_grad_()
        w1, w2 = tpviz.shard(W1, 1, comm).requires_grad_(), tpviz.shard(W2, 0, comm).requires_grad_()
        z = tpviz.reduce_from_region(torch.relu(tpviz.copy_to_region(x, comm) @ w1) @ w2, comm)
        z.backward(DZ)
        return z, x.grad, w1.grad, w2.grad

    run = tpviz.run(program, ranks=ranks)
    z, dx, dw1, dw2 = dense_mlp()
    for output in run.outputs:
        assert torch.equal(output[0], z)
        assert torch.equal(output[1], dx)
    assert torch.equal(torch.cat([output[2] for output in run.outputs], dim=1), dw1)
    assert torch.equal(torch.cat([output[3] for output in run.outputs], dim=0), dw2)
    assert [(event.kind, event.phase) for event in run.trace] == [("all_reduce", "forward"), ("all_reduce", "backward")]


@pytest.mark.parametrize("ranks", RANKS)
def test_a_column_layer_whose_output_is_gathered(ranks):
    def program(comm):
        x, w = X.clone().requires_grad_(), tpviz.shard(W1, 1, comm).requires_grad_()
        h = tpviz.gather_from_region(tpviz.copy_to_region(x, comm) @ w, comm, dim=1)
        h.backward(DH)
        return h, x.grad, w.grad

    run = tpviz.run(program, ranks=ranks)
    for output in run.outputs:
        assert torch.equal(output[0], X @ W1)
        assert torch.equal(output[1], DH @ W1.T)
    assert torch.equal(torch.cat([output[2] for output in run.outputs], dim=1), X.T @ DH)


@pytest.mark.parametrize("ranks", RANKS)
def test_a_row_layer_whose_input_is_scattered(ranks):
    def program(comm):
        x, w = X.clone().requires_grad_(), tpviz.shard(W1, 0, comm).requires_grad_()
        h = tpviz.reduce_from_region(tpviz.scatter_to_region(x, comm, dim=1) @ w, comm)
        h.backward(DH)
        return h, x.grad, w.grad

    run = tpviz.run(program, ranks=ranks)
    for output in run.outputs:
        assert torch.equal(output[0], X @ W1)
        assert torch.equal(output[1], DH @ W1.T)
    assert torch.equal(torch.cat([output[2] for output in run.outputs], dim=0), X.T @ DH)


@pytest.mark.parametrize("ranks", RANKS)
def test_sequence_shards_through_gather_and_reduce_scatter(ranks):
    """The rows are cut outside of the two layers: all-gather in front, reduce-scatter behind."""

    def program(comm):
        x = tpviz.shard(X, 0, comm).requires_grad_()
        w1, w2 = tpviz.shard(W1, 1, comm).requires_grad_(), tpviz.shard(W2, 0, comm).requires_grad_()
        whole = tpviz.gather_from_region(x, comm, dim=0, consumer="sharded")
        z = tpviz.reduce_scatter_to_region(torch.relu(whole @ w1) @ w2, comm, dim=0)
        z.backward(tpviz.shard(DZ, 0, comm))
        return z, x.grad, w1.grad, w2.grad

    run = tpviz.run(program, ranks=ranks)
    for found, expected, dim in zip(zip(*run.outputs, strict=True), dense_mlp(), (0, 0, 1, 0), strict=True):
        assert torch.equal(torch.cat(found, dim=dim), expected)
    assert [(event.kind, event.phase) for event in run.trace] == [
        ("all_gather", "forward"),
        ("reduce_scatter", "forward"),
        ("all_gather", "backward"),
        ("reduce_scatter", "backward"),
    ]


def test_without_a_gradient_to_x_nothing_is_sent_in_backward():
    def program(comm):
        w = tpviz.shard(W1, 1, comm).requires_grad_()
        (tpviz.copy_to_region(X, comm) @ w).sum().backward()

    assert len(tpviz.run(program).trace) == 0


@pytest.mark.parametrize("ranks", [2, 3])
def test_both_conventions_of_the_loss(ranks):
    """pytorch#58005: y = all_reduce((rank + 1) * x), loss y. Counted once, or once by every rank."""

    def program(comm, consumer):
        x = torch.tensor(2.0, requires_grad=True)
        tpviz.reduce_from_region((comm.rank + 1) * x, comm, consumer=consumer).backward()
        return x.grad.item()

    assert tpviz.run(program, ranks, args=("replicated",)).outputs == list(range(1, ranks + 1))
    assert tpviz.run(program, ranks, args=("sharded",)).outputs == [ranks * (r + 1) for r in range(ranks)]


@pytest.mark.parametrize("ranks", [2, 3])
def test_both_consumers_of_a_gathered_tensor(ranks):
    """Megatron-LM#1635: all-gather, then a loss weighted by 1 + rank on every rank."""

    def program(comm, consumer, weighted):
        x = torch.ones(2, requires_grad=True)
        whole = tpviz.gather_from_region(x, comm, dim=0, consumer=consumer)
        (whole.sum() * (comm.rank + 1 if weighted else 1)).backward()
        return x.grad.tolist()

    assert tpviz.run(program, ranks, args=("replicated", False)).outputs == [[1, 1]] * ranks
    total = sum(range(1, ranks + 1))
    assert tpviz.run(program, ranks, args=("sharded", True)).outputs == [[total, total]] * ranks


def test_double_backward_through_f_and_g():
    def program(comm):
        x = X.clone().requires_grad_()
        w1, w2 = tpviz.shard(W1, 1, comm), tpviz.shard(W2, 0, comm)
        h = tpviz.copy_to_region(x, comm) @ w1
        z = tpviz.reduce_from_region((h * h) @ w2, comm)
        (dx,) = torch.autograd.grad(z, x, DZ, create_graph=True)
        (ddx,) = torch.autograd.grad(dx, x, 2 * X)
        return dx, ddx

    x = X.clone().requires_grad_()
    (dx,) = torch.autograd.grad(((x @ W1) ** 2) @ W2, x, DZ, create_graph=True)
    (ddx,) = torch.autograd.grad(dx, x, 2 * X)
    for output in tpviz.run(program, ranks=2).outputs:
        assert torch.equal(output[0], dx)
        assert torch.equal(output[1], ddx)


# name: (input is one per rank, output is one per rank). A replicated side has equal tensors and counts once; a side
# that is one per rank (shards, partial sums, copies of each rank's own) is summed over the ranks.
ADJOINTS = {
    "copy": (lambda x, comm, dim: tpviz.copy_to_region(x, comm), False, True),
    "reduce": (lambda x, comm, dim: tpviz.reduce_from_region(x, comm), True, False),
    "reduce, sharded": (lambda x, comm, dim: tpviz.reduce_from_region(x, comm, consumer="sharded"), True, True),
    "scatter": (lambda x, comm, dim: tpviz.scatter_to_region(x, comm, dim), False, True),
    "gather": (lambda x, comm, dim: tpviz.gather_from_region(x, comm, dim), True, False),
    "gather, sharded": (lambda x, comm, dim: tpviz.gather_from_region(x, comm, dim, "sharded"), True, True),
    "reduce-scatter": (lambda x, comm, dim: tpviz.reduce_scatter_to_region(x, comm, dim), True, True),
    "all-to-all": (lambda x, comm, dim: tpviz.all_to_all_region(x, comm, 1 - dim, dim), True, True),
}


def numbers(seed, shape):
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(-4, 5, shape, generator=generator).double()


@pytest.mark.parametrize("name", ADJOINTS)
@settings(max_examples=25, deadline=None, derandomize=True)
@given(
    ranks=st.integers(1, 5),
    rows=st.integers(1, 6),
    columns=st.integers(1, 6),
    dim=st.integers(0, 1),
    seed=st.integers(0, 99),
)
def test_the_adjoint_identity(name, ranks, rows, columns, dim, seed):
    operator, own_input, own_output = ADJOINTS[name]
    shards = name.startswith(("gather", "all"))

    def program(comm):
        x = numbers(seed + comm.rank * own_input * (not shards), (rows, columns))
        x = tpviz.shard(x, dim, comm) if shards else x
        x.requires_grad_()
        y = operator(x, comm, dim)
        cotangent = numbers(seed + 50 + comm.rank * own_output, tuple(y.shape))
        y.backward(cotangent)
        return (y.detach() * cotangent).sum(), (x.detach() * x.grad).sum()

    outputs = tpviz.run(program, ranks=ranks).outputs
    forward = [output[0] for output in outputs]
    backward = [output[1] for output in outputs]
    left = sum(forward) if own_output else forward[0]
    right = sum(backward) if own_input else backward[0]
    assert left == right


@pytest.mark.parametrize("ranks", RANKS)
def test_one_cut_turned_into_the_other_and_the_gradient_turned_back(ranks):
    def program(comm):
        rows = tpviz.shard(W1, 0, comm).requires_grad_()
        columns = tpviz.all_to_all_region(rows, comm, split_dim=1, concat_dim=0)
        columns.backward(tpviz.shard(3 * W1, 1, comm))
        return columns, rows.grad

    run = tpviz.run(program, ranks=ranks)
    assert torch.equal(torch.cat([output[0] for output in run.outputs], dim=1), W1)
    assert torch.equal(torch.cat([output[1] for output in run.outputs], dim=0), 3 * W1)
    assert [(event.kind, event.phase) for event in run.trace] == [("all_to_all", "forward"), ("all_to_all", "backward")]


@pytest.mark.parametrize("consumer", ["", "both", None, 1])
def test_an_unknown_consumer_is_refused(consumer):
    with pytest.raises(tpviz.RankError, match="replicated, sharded"):
        tpviz.run(lambda comm: tpviz.gather_from_region(X, comm, consumer=consumer))
