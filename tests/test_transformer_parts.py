"""The parts of a parallel Transformer against PyTorch's modules, and the mistakes that people make with each.

A mistake is made on purpose, and its well-known wrong number stands beside the right one (cases.md).
"""

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional

import tpviz
from tpviz.attention import ParallelAttention
from tpviz.dropout import DropoutStreams, ParallelDropout
from tpviz.fused import MergedColumnParallelLinear, QKVParallelLinear
from tpviz.layers import ColumnParallelLinear, reduce_replicated_gradients
from tpviz.mlp import ParallelMLP, stacked
from tpviz.norms import LayerNorm, RMSNorm
from tpviz.operators import copy_to_region, linear_of_gathered, reduce_from_region
from tpviz.parameters import ShardedModule, whole_gradients
from tpviz.vocabulary import VocabParallelEmbedding, vocab_parallel_cross_entropy

RANKS = (1, 2, 4)


def numbers(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def filled(module):
    """The module in float64, with every parameter drawn, biases too."""
    module = module.double()
    for index, parameter in enumerate(module.parameters()):
        parameter.data = numbers(*parameter.shape, seed=100 + index)
    return module


def is_close(got, expected):
    return got.shape == expected.shape and bool((got - expected).abs().max() <= 1e-10 * expected.abs().max())


# Attention


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("ranks", RANKS)
def test_attention_is_multihead_attention(ranks, causal):
    whole = filled(nn.MultiheadAttention(12, 4))
    x, cotangent = numbers(5, 2, 12), numbers(5, 2, 12, seed=1)

    def program(comm):
        attention = ParallelAttention.from_multihead_attention(whole, comm, causal=causal)
        mine = x.clone().requires_grad_()
        y = attention(mine)
        y.backward(cotangent)
        return y, mine.grad, whole_gradients(attention)

    reference, copied = x.clone().requires_grad_(), copy.deepcopy(whole)
    mask = torch.ones(5, 5, dtype=torch.bool).triu(1) if causal else None
    y = copied(reference, reference, reference, attn_mask=mask, need_weights=False)[0]
    y.backward(cotangent)
    for got, dx, gradients in tpviz.run(program, ranks=ranks).outputs:
        assert is_close(got, y)
        assert is_close(dx, reference.grad)
        assert is_close(gradients["qkv.weight"], copied.in_proj_weight.grad)
        # Of which K's third is rounding: its bias shifts all of a row's scores by one number.
        assert is_close(gradients["qkv.bias"], copied.in_proj_bias.grad)
        assert is_close(gradients["projection.weight"], copied.out_proj.weight.grad)
        assert is_close(gradients["projection.bias"], copied.out_proj.bias.grad)


def test_a_contiguous_cut_of_qkv_is_silent_and_wrong():
    """Two heads of width 1, two ranks: rows Q0 Q1 K0 | K1 V0 V1, and the shapes fit."""
    weight = torch.arange(6.0)[:, None]

    def program(comm):
        linear = nn.Linear(1, 6, bias=False)
        linear.weight.data = weight
        by_head = QKVParallelLinear.from_linear(linear, comm, heads=2)
        contiguous = ColumnParallelLinear.from_linear(linear, comm)
        return by_head.weight.flatten().tolist(), contiguous.weight.flatten().tolist()

    assert tpviz.run(program).outputs == [([0, 2, 4], [0, 1, 2]), ([1, 3, 5], [3, 4, 5])]


def test_attention_cut_contiguously_gives_another_number():
    whole = filled(nn.MultiheadAttention(4, 2))
    x = numbers(3, 1, 4)

    def program(comm, contiguous):
        attention = ParallelAttention.from_multihead_attention(whole, comm)
        if contiguous:
            attention.qkv.weight.data = tpviz.shard(whole.in_proj_weight, 0, comm)
            attention.qkv.bias.data = tpviz.shard(whole.in_proj_bias, 0, comm)
        return attention(x)

    mask = torch.ones(3, 3, dtype=torch.bool).triu(1)
    expected = whole(x, x, x, attn_mask=mask, need_weights=False)[0]
    assert all(is_close(y, expected) for y in tpviz.run(program, args=(False,)).outputs)
    wrong = tpviz.run(program, args=(True,)).outputs
    assert torch.equal(wrong[0], wrong[1])  # replicas agree, so no check of replicas finds it
    assert not torch.allclose(wrong[0], expected, rtol=0.1)


def test_shared_heads_need_the_sum_of_their_ranks_gradients():
    """One head of K and V for two ranks: each alone finds the share of its own queries."""
    qkv, projection = filled(nn.Linear(4, 8)), filled(nn.Linear(4, 4))
    x = numbers(3, 1, 4)

    def program(comm, sharing):
        attention = ParallelAttention.from_linears(qkv, projection, comm, heads=2, kv_heads=1)
        if not sharing:
            attention.qkv.sharing = None
        attention(x).square().sum().backward()
        return attention.qkv.weight.grad[2:]  # after this rank's one head of Q, of width 2

    (expected, again), shares = (tpviz.run(program, args=(sharing,)).outputs for sharing in (True, False))
    assert torch.equal(expected, again)
    assert is_close(shares[0] + shares[1], expected)
    assert not torch.allclose(shares[0], expected, rtol=0.1)
    (whole,) = tpviz.run(program, ranks=1, args=(True,)).outputs
    assert is_close(expected, whole[2:])


@pytest.mark.parametrize(("heads", "kv_heads", "ranks"), [(4, 4, 2), (4, 2, 2), (4, 2, 4), (8, 1, 4), (6, 3, 3)])
def test_qkv_goes_back_to_the_whole(heads, kv_heads, ranks):
    linear = nn.Linear(3, (heads + 2 * kv_heads) * 2)

    def program(comm):
        whole = QKVParallelLinear.from_linear(linear, comm, heads=heads, kv_heads=kv_heads).to_linear()
        return whole.weight, whole.bias

    for weight, bias in tpviz.run(program, ranks=ranks).outputs:
        assert torch.equal(weight, linear.weight)
        assert torch.equal(bias, linear.bias)


def test_attention_of_what_is_no_plain_self_attention_is_refused():
    for odd in (nn.MultiheadAttention(4, 2, kdim=3), nn.MultiheadAttention(4, 2, add_bias_kv=True)):
        with pytest.raises(tpviz.RankError, match="Only self-attention is cut"):
            tpviz.run(lambda comm, odd=odd: ParallelAttention.from_multihead_attention(odd, comm))
    with pytest.raises(tpviz.RankError, match="this one has 2 dimensions"):
        tpviz.run(lambda comm: ParallelAttention(4, 2, comm)(torch.ones(3, 4)))


# MLP


@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("ranks", RANKS)
def test_mlp_from_whole_layers(ranks, gated):
    gate, up, down = filled(nn.Linear(6, 8)), filled(nn.Linear(6, 8)), filled(nn.Linear(8, 6))
    gate.weight.data.neg_()
    x, cotangent = numbers(5, 6), numbers(5, 6, seed=1)

    def program(comm):
        mlp = ParallelMLP.from_linears(up, down, comm, gate if gated else None)
        mine = x.clone().requires_grad_()
        y = mlp(mine)
        y.backward(cotangent)
        return y, mine.grad, whole_gradients(mlp)

    layers = copy.deepcopy((gate, up, down))
    reference = x.clone().requires_grad_()
    hidden = layers[1](reference)
    y = layers[2](functional.silu(layers[0](reference)) * hidden if gated else functional.gelu(hidden))
    y.backward(cotangent)
    first = layers[:2] if gated else layers[1:2]
    for got, dx, gradients in tpviz.run(program, ranks=ranks).outputs:
        assert is_close(got, y)
        assert is_close(dx, reference.grad)
        for name in ("weight", "bias"):
            assert is_close(gradients[f"up.{name}"], torch.cat([getattr(layer, name).grad for layer in first]))
            assert is_close(gradients[f"down.{name}"], getattr(layers[2], name).grad)


def test_each_rank_has_its_part_of_gate_and_of_up():
    gate, up = (nn.Linear(1, 4, bias=False) for _ in range(2))
    gate.weight.data, up.weight.data = torch.arange(4.0)[:, None], 10 + torch.arange(4.0)[:, None]

    def program(comm):
        merged = MergedColumnParallelLinear.from_linear(stacked(gate, up), comm, sizes=(4, 4))
        return merged.weight.flatten().tolist(), merged.to_linear().weight.flatten().tolist()

    whole = [0, 1, 2, 3, 10, 11, 12, 13]
    assert tpviz.run(program).outputs == [([0, 1, 10, 11], whole), ([2, 3, 12, 13], whole)]
    with pytest.raises(tpviz.RankError, match=r"sizes=\[4, 3\] add up to 7, but out_features=8"):
        tpviz.run(lambda comm: MergedColumnParallelLinear(1, 8, comm, sizes=(4, 3)))
    with pytest.raises(tpviz.RankError, match=r"sizes\[1\]=3 on 2 ranks"):
        tpviz.run(lambda comm: MergedColumnParallelLinear(1, 7, comm, sizes=(4, 3)))


@pytest.mark.parametrize("bias", [True, False])
def test_gathering_again_has_a_second_derivative(bias):
    x, weight, vector = numbers(4, 2, 3), numbers(4, 3), numbers(4, 2, 3, seed=3)

    def program(comm, again):
        rows, own = tpviz.shard(x, 0, comm).requires_grad_(), tpviz.shard(weight, 0, comm).requires_grad_()
        extra = own[:, 0].detach().clone().requires_grad_() if bias else None
        if again:
            y = linear_of_gathered(rows, own, extra, comm)
        else:
            y = functional.linear(tpviz.gather_from_region(rows, comm, dim=0, consumer="sharded"), own, extra)
        inputs = [rows, own, extra] if bias else [rows, own]
        first = torch.autograd.grad(y.pow(3).sum(), inputs, create_graph=True)
        penalty = (first[0] * tpviz.shard(vector, 0, comm)).sum() + first[1].pow(2).sum()
        return [*first, *torch.autograd.grad(penalty, inputs)]

    again, kept = (tpviz.run(program, args=(way,)).outputs for way in (True, False))
    for mine, expected in zip(again, kept, strict=True):
        assert all(is_close(one, other) for one, other in zip(mine, expected, strict=True))


# The vocabulary


@pytest.mark.parametrize("padding", [None, 0, 5, -1])
@pytest.mark.parametrize("ranks", RANKS)
def test_embedding_is_nn_embedding(ranks, padding):
    whole = filled(nn.Embedding(8, 3, padding_idx=padding))
    tokens, cotangent = torch.tensor([[0, 5, 7], [5, 2, 0], [1, 6, 4]]), numbers(3, 3, 3)

    def program(comm):
        layer = VocabParallelEmbedding.from_embedding(whole, comm)
        y = layer(tokens)
        y.backward(cotangent)
        return y, whole_gradients(layer)["weight"]

    copied = copy.deepcopy(whole)
    expected = copied(tokens)
    expected.backward(cotangent)
    run = tpviz.run(program, ranks=ranks)
    for y, gradient in run.outputs:
        assert torch.equal(y, expected)
        assert torch.equal(gradient, copied.weight.grad)
    assert [(event.kind, event.phase) for event in run.trace[:1]] == [("all_reduce", "forward")]
    assert all(event.phase == "other" for event in run.trace[1:])


@pytest.mark.parametrize("token", [-1, 8])
def test_a_token_that_no_rank_has_is_refused(token):
    with pytest.raises(tpviz.RankError, match=f"tokens has {token}, which is no word of a vocabulary of 8"):
        tpviz.run(lambda comm: VocabParallelEmbedding(8, 2, comm)(torch.tensor([1, token])))
    with pytest.raises(tpviz.RankError, match=f"target has {token}, which is no word of a vocabulary of 8"):
        tpviz.run(lambda comm: vocab_parallel_cross_entropy(torch.ones(1, 4), torch.tensor([token]), comm))


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("smoothing", [0.0, 0.3])
@pytest.mark.parametrize("ranks", RANKS)
def test_cross_entropy_is_pytorchs(ranks, smoothing, reduction):
    logits = 300 * numbers(6, 8)  # exp overflows without the maximum of all ranks
    target = torch.tensor([0, 3, -7, 7, 4, 5])
    options = {"ignore_index": -7, "reduction": reduction, "label_smoothing": smoothing}
    cotangent = numbers(6, seed=2) if reduction == "none" else torch.tensor(1.5, dtype=torch.float64)

    def program(comm):
        mine = tpviz.shard(logits, 1, comm).requires_grad_()
        loss = vocab_parallel_cross_entropy(mine, target, comm, **options)
        loss.backward(cotangent)
        return loss, mine.grad

    reference = logits.clone().requires_grad_()
    expected = functional.cross_entropy(reference, target, **options)
    expected.backward(cotangent)
    run = tpviz.run(program, ranks=ranks)
    losses, gradients = zip(*run.outputs, strict=True)
    assert all(is_close(loss, expected) for loss in losses)
    assert is_close(torch.cat(gradients, 1), reference.grad)
    assert [(event.kind, event.phase, event.options[0]) for event in run.trace] == [
        ("all_reduce", "forward", "max"),
        ("all_reduce", "forward", "sum"),
    ]


def test_case_15_softmax_of_local_logits():
    logits, target = torch.tensor([[1.0, 2.0, 3.0, 4.0]]), torch.tensor([3])

    def program(comm):
        mine = tpviz.shard(logits, 1, comm)
        right = vocab_parallel_cross_entropy(mine, target, comm)
        wrong = functional.cross_entropy(mine, target - 2) if comm.rank == 1 else torch.tensor(0.0)
        return right, comm.all_reduce(wrong)

    for right, wrong in tpviz.run(program).outputs:
        assert round(right.item(), 4) == 0.4402
        assert round(wrong.item(), 4) == 0.3133


def test_smoothing_over_local_words_gives_another_loss():
    logits, target = torch.tensor([[1.0, 2.0, 3.0, 4.0]]), torch.tensor([3])

    def program(comm):
        mine = tpviz.shard(logits, 1, comm)
        right = vocab_parallel_cross_entropy(mine, target, comm, label_smoothing=0.1)
        plain = vocab_parallel_cross_entropy(mine, target, comm)
        log_probabilities = mine - (plain + 4)  # plain is the logarithm of the sum, less the target's logit
        return right, 0.9 * plain - 0.1 * log_probabilities.mean()

    expected = functional.cross_entropy(logits, target, label_smoothing=0.1)
    (right, wrong), (_right, other) = tpviz.run(program).outputs
    assert torch.allclose(right, expected)
    assert not torch.allclose(wrong, expected, rtol=0.01)
    assert not torch.equal(wrong, other)  # and the ranks do not even agree


def test_half_precision_is_computed_in_float32_and_an_unknown_reduction_refused():
    logits, target = numbers(3, 4).bfloat16(), torch.tensor([0, 3, 1])
    run = tpviz.run(lambda comm: vocab_parallel_cross_entropy(tpviz.shard(logits, 1, comm), target, comm))
    assert torch.allclose(run.outputs[0], functional.cross_entropy(logits.float(), target))
    assert run.outputs[0].dtype == torch.float32
    with pytest.raises(tpviz.RankError, match="reduction='avg' is unknown; expected one of mean, sum, none"):
        tpviz.run(lambda comm: vocab_parallel_cross_entropy(torch.ones(1, 2), target[:1], comm, reduction="avg"))


# Norms, gradients


@pytest.mark.parametrize("kind", [LayerNorm, RMSNorm])
def test_case_10_a_norms_weights_see_their_rows_only(kind):
    """x 4×3 cut 2 + 2: the gradient is the ranks' sum; each has a share, and the mean is half of it."""
    x, cotangent = numbers(4, 3), numbers(4, 3, seed=1)
    whole = {LayerNorm: nn.LayerNorm, RMSNorm: nn.RMSNorm}[kind](3, eps=1e-5, dtype=torch.float64)
    reference = x.clone().requires_grad_()
    whole(reference).backward(cotangent)

    def program(comm):
        norm = kind(3, comm, sequence_parallel=True, dtype=torch.float64)
        mine = tpviz.shard(x, 0, comm).requires_grad_()
        norm(mine).backward(tpviz.shard(cotangent, 0, comm))
        share = norm.weight.grad.clone()
        mean = comm.all_reduce(share, op="mean", phase="gradients")
        reduce_replicated_gradients(norm, comm)
        return mine.grad, [parameter.grad for parameter in norm.parameters()], share, mean

    rows, gradients, shares, means = zip(*tpviz.run(program).outputs, strict=True)
    assert is_close(torch.cat(rows), reference.grad)
    for mine in gradients:
        assert all(is_close(got, parameter.grad) for got, parameter in zip(mine, whole.parameters(), strict=True))
    assert not is_close(shares[0], whole.weight.grad)
    assert is_close(2 * means[0], whole.weight.grad)


class Parts(ShardedModule):
    """A shard of two entries over two ranks, and one replicated entry."""

    shard_dims = {"cut": 0}  # noqa: RUF012

    def __init__(self, comm):
        super().__init__()
        self.comm = comm
        self.cut, self.same = nn.Parameter(torch.zeros(1)), nn.Parameter(torch.zeros(1))
        self.cut.grad = torch.tensor([3.0, 4.0])[comm.rank : comm.rank + 1]
        self.same.grad = torch.tensor([12.0])


def test_case_11_a_replicated_parameter_counts_once():
    def program(comm):
        parts = Parts(comm)
        squares = sum(parameter.grad.square().sum() for parameter in parts.parameters())
        twice = comm.all_reduce(squares).sqrt()
        norm = tpviz.clip_grad_norm(parts, comm, max_norm=6.5)
        return twice.item(), norm.item(), parts.cut.grad.item(), parts.same.grad.item()

    for rank, (twice, *found) in enumerate(tpviz.run(program).outputs):
        assert round(twice, 2) == 17.69
        assert found == pytest.approx([13.0, [1.5, 2.0][rank], 6.0])


def test_a_small_norm_is_left_as_it_is():
    def program(comm):
        parts = Parts(comm)
        tpviz.clip_grad_norm(parts, comm, max_norm=14)
        return parts.same.grad.item()

    assert tpviz.run(program).outputs == [12.0, 12.0]


# Dropout


def test_case_24_masks_agree_where_replicated_and_differ_where_sharded():
    x = torch.ones(8, 8)

    def program(comm):
        streams = DropoutStreams(7, comm)
        before = torch.get_rng_state()
        same, own = ParallelDropout(0.5, streams, sharded=False), ParallelDropout(0.5, streams, sharded=True)
        kept, drawn = same(x), own(x)
        assert torch.equal(torch.get_rng_state(), before)
        mine = x.clone().requires_grad_()
        same.eval()
        assert same(x) is x
        y = own(mine)
        y.sum().backward()
        return kept, drawn, y, mine.grad

    (kept, drawn, y, gradient), (again, other, _y, _gradient) = tpviz.run(program).outputs
    assert torch.equal(kept, again)
    assert not torch.equal(drawn, other)
    assert set(kept.unique().tolist()) == {0.0, 2.0}
    assert torch.equal(y, gradient)
    alone = tpviz.run(program, ranks=1).outputs[0][0]
    assert torch.equal(alone, kept)  # a replicated mask does not depend on the number of ranks


def test_case_24_the_wrong_streams():
    """Per-rank masks on what is replicated: replicas part. The shared stream on shards: equal masks, a pattern."""
    x = torch.ones(4, 6)

    def program(comm):
        streams = DropoutStreams(7, comm)
        return ParallelDropout(0.5, streams, sharded=True)(x), ParallelDropout(0.5, streams, sharded=False)(x[:2])

    outputs = tpviz.run(program).outputs
    assert not tpviz.check_replicated([replica for replica, _shard in outputs])
    assert torch.equal(outputs[0][1], outputs[1][1])


def test_dropout_is_the_same_on_processes():
    def program(comm):
        streams = DropoutStreams(7, comm)
        return [ParallelDropout(0.5, streams, sharded)(torch.ones(4, 6)) for sharded in (False, True)]

    simulated, real = (tpviz.run(program, backend=backend).outputs for backend in ("simulated", "gloo"))
    for mine, theirs in zip(simulated, real, strict=True):
        assert all(torch.equal(one, other) for one, other in zip(mine, theirs, strict=True))


def test_dropout_without_streams_or_with_p_1_is_refused():
    with pytest.raises(tpviz.RankError, match=r"dropout=0\.1 needs streams=DropoutStreams\(seed, comm\)"):
        tpviz.run(lambda comm: ParallelAttention(4, 2, comm, dropout=0.1))
    with pytest.raises(tpviz.RankError, match="p=1: the probability of dropping is at least 0 and less than 1"):
        tpviz.run(lambda comm: ParallelDropout(1, DropoutStreams(0, comm), sharded=False))


# Initialisation, rounding


def test_case_25_initialised_shard_by_shard():
    """Equal seeds give equal shards; and a shard's own fan-in, another scale."""
    h, ranks = 256, 4

    def program(comm):
        torch.manual_seed(1)
        wrong = nn.Linear(h // comm.world_size, h).weight
        torch.manual_seed(1)
        right = tpviz.RowParallelLinear(h, h, comm).weight
        return wrong, right

    torch.manual_seed(1)
    whole = nn.Linear(h, h).weight
    wrongs, rights = zip(*tpviz.run(program, ranks=ranks).outputs, strict=True)
    assert torch.equal(torch.cat(rights, 1), whole)
    assert torch.equal(wrongs[0], wrongs[1])
    assert (torch.cat(wrongs, 1).std() / whole.std()).item() == pytest.approx(ranks**0.5, rel=0.02)


def test_case_26_three_orders_of_one_sum():
    def program(comm, order):
        mine = torch.tensor([order[comm.rank]], dtype=torch.float32)
        return comm.all_reduce(mine).item()

    orders = (1e8, 1.0, -1e8), (1.0, 1e8, -1e8), (1e8, -1e8, 1.0)
    sums = [tpviz.run(program, ranks=3, args=(order,)).outputs[0] for order in orders]
    assert sums == [0.0, 0.0, 1.0]


def test_case_26_rounding_or_bug():
    """A float64 reference tells: both float32 results are as far from it; one with a mistake is much further."""
    mlp = [nn.Linear(64, 256), nn.Linear(256, 64)]
    for index, layer in enumerate(mlp):
        layer.weight.data, layer.bias.data = numbers(*layer.weight.shape, seed=index).float(), layer.bias.data * 0 + 1
    x = numbers(32, 64, seed=9).float()

    def program(comm, bias_everywhere):
        layer = ParallelMLP.from_linears(*mlp, comm)
        hidden = functional.gelu(layer.up(copy_to_region(x, comm)))
        if not bias_everywhere:
            return layer(x)
        return reduce_from_region(functional.linear(hidden, layer.down.weight, layer.down.bias), comm)

    def dense(layers, x):
        return layers[1](functional.gelu(layers[0](x)))

    reference = dense([copy.deepcopy(layer).double() for layer in mlp], x.double())

    def error(y):
        return ((y.double() - reference).abs().max() / reference.abs().max()).item()

    one, two = error(dense(mlp, x)), error(tpviz.run(program, args=(False,)).outputs[0])
    bug = error(tpviz.run(program, args=(True,)).outputs[0])
    rounding = torch.finfo(torch.float32).eps * 256**0.5
    assert one < rounding
    assert two < rounding
    assert bug > 100 * rounding
