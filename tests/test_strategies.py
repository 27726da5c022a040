"""The anchor: what the model says a layer sends, and keeps, is what a run of that layer on simulated ranks records."""

import re
from collections import Counter

import numpy as np
import pytest
import torch
from torch.func import functional_call
from torch.nn import functional
from torch.utils.checkpoint import checkpoint, set_checkpoint_early_stop

import tpviz
from tpviz.layers import reduce_replicated_gradients
from tpviz.memory import model_states
from tpviz.strategies import Strategy, layer_collectives, rank_bytes, sent_bytes, strategy_name
from tpviz.trace import wire_factor
from tpviz.transformers import Transformer, activation_bytes, end_activation_bytes

MODEL = Transformer(hidden=16, heads=8, layers=1, sequence=8, vocabulary=32)
BATCH = 2
FLOAT32 = 4


class Layer(torch.nn.Module):
    """A Transformer's layer of tpviz's parallel layers; x is (sequence, batch, hidden), so that dim 0 may be cut."""

    def __init__(self, comm, sequence_parallel):
        super().__init__()
        h, options = MODEL.hidden, {"sequence_parallel": sequence_parallel}
        self.norms = torch.nn.ModuleList([torch.nn.LayerNorm(h), torch.nn.LayerNorm(h)])
        for norm in self.norms:
            norm.sequence_parallel = sequence_parallel
        self.qkv = tpviz.ColumnParallelLinear(h, 3 * h, comm, **options)
        self.projection = tpviz.RowParallelLinear(h, h, comm, **options)
        self.up = tpviz.ColumnParallelLinear(h, 4 * h, comm, **options)
        self.down = tpviz.RowParallelLinear(4 * h, h, comm, **options)
        self.heads = MODEL.heads // comm.world_size

    def forward(self, x):
        qkv = self.qkv(self.norms[0](x))
        rows, batch = qkv.shape[:2]
        q, k, v = qkv.view(rows, batch, self.heads, -1).permute(1, 2, 0, 3).chunk(3, dim=-1)
        attended = functional.scaled_dot_product_attention(q, k, v).permute(2, 0, 1, 3)
        x = x + self.projection(attended.reshape(rows, batch, -1))
        return x + self.down(functional.gelu(self.up(self.norms[1](x))))


def program(comm, strategy):
    """One step of the layer under a strategy; returns how many bytes of parameters the rank has of it."""
    t, stage = strategy.tensor, strategy.stage
    across, group = comm.split(comm.rank % t), comm.split(comm.rank // t)
    torch.manual_seed(group.rank)
    layer = Layer(group, strategy.sequence_parallel)
    names = [name for name, _parameter in layer.named_parameters()]
    flat = torch.nn.utils.parameters_to_vector(layer.parameters()).detach()
    rows = MODEL.sequence // t if strategy.sequence_parallel else MODEL.sequence
    x = torch.ones(rows, BATCH, MODEL.hidden, requires_grad=True)

    def forward(x):
        if strategy.recompute == "full":
            return checkpoint(layer, x, use_reentrant=False)
        return layer(x)

    if stage == 3:
        shard = tpviz.shard(flat, 0, across)
        whole = across.all_gather(shard, dim=0, phase="forward").requires_grad_()
        sizes = [parameter.numel() for parameter in layer.parameters()]
        shapes = [parameter.shape for parameter in layer.parameters()]
        pieces = [piece.view(shape) for piece, shape in zip(whole.split(sizes), shapes, strict=True)]
        y = functional_call(layer, dict(zip(names, pieces, strict=True)), (x,))
        assert torch.equal(across.all_gather(shard, dim=0, phase="backward"), whole)
        gradient = torch.autograd.grad(y.sum(), [whole, x])[0]
    else:
        with set_checkpoint_early_stop(False):
            forward(x).sum().backward()
        reduce_replicated_gradients(layer, group)
        gradient = torch.nn.utils.parameters_to_vector(parameter.grad for parameter in layer.parameters())
    if stage == 0:
        flat -= across.all_reduce(gradient, phase="gradients")
    else:
        mine = tpviz.shard(flat, 0, across) - across.reduce_scatter(gradient, dim=0, phase="gradients")
        if stage < 3:
            flat = across.all_gather(mine, dim=0, phase="other")
    return flat.numel() * FLOAT32


def recorded(trace, strategy):
    """The bytes that rank 0 has to do with, payload and wire, by collective, phase and direction of the mesh."""
    payload, wire = Counter(), Counter()
    for event in trace:
        if 0 in event.ranks and len(event.ranks) > 1:
            over = "tensor" if event.ranks == tuple(range(strategy.tensor)) else "data"
            key = event.kind, event.phase, over
            payload[key] += event.payload_bytes
            wire[key] += event.wire_bytes
    return payload, wire


def foretold(strategy):
    """The model's bytes. A trace knows no phase of its own for what recomputation repeats and for an update."""
    payload, wire = Counter(), Counter()
    ranks = {"tensor": strategy.tensor, "data": strategy.data}
    for kind, phase, size, over in layer_collectives(MODEL, strategy, BATCH, FLOAT32):
        key = kind, {"recompute": "forward", "update": "other"}.get(phase, phase), over
        payload[key] += size
        wire[key] += size * wire_factor(kind, ranks[over])
    return payload, wire


STRATEGIES = [
    *(Strategy(t, sequence_parallel=sp, recompute=again) for t in (1, 2, 4, 8) for sp in (False, True)
      for again in ("none", "full")),
    *(Strategy(1, d, stage) for d in (2, 4, 8) for stage in range(4)),
    *(Strategy(t, d, stage) for t, d in ((2, 2), (2, 4), (4, 2)) for stage in range(4)),
]  # fmt: skip


@pytest.mark.parametrize("strategy", STRATEGIES, ids=str)
def test_the_model_sends_what_a_run_records(strategy):
    run = tpviz.run(program, ranks=strategy.ranks, args=(strategy,))
    assert run.outputs == [MODEL.rank_layer_parameters(strategy.tensor) * FLOAT32] * strategy.ranks
    assert recorded(run.trace, strategy) == foretold(strategy)


def test_sequence_parallelism_sends_as_many_bytes():
    """C32: other layouts, other collectives; an all-reduce is a reduce-scatter and an all-gather."""
    plain, cut = (foretold(Strategy(4, sequence_parallel=sp))[1] for sp in (False, True))
    extra = 6 * MODEL.hidden * FLOAT32 * wire_factor("all_reduce", 4)
    assert sum(cut.values()) - extra == sum(plain.values())
    kinds = {kind for kind, phase, _over in cut if phase != "gradients"}
    assert kinds == {"all_gather", "reduce_scatter"}


@pytest.mark.parametrize("tensor", [2, 4, 8])
def test_narayanans_traffic(tensor):
    """Elements for each GPU and micro-batch: layers · 8·b·s·h·(t − 1)/t (arXiv 2104.04473, section 3.2)."""
    elements = 8 * BATCH * MODEL.sequence * MODEL.hidden * (tensor - 1) / tensor
    assert sum(foretold(Strategy(tensor))[1].values()) == elements * FLOAT32


BIG = Transformer(4096, 32, 32, 2048)


@pytest.mark.parametrize("strategy", [Strategy(8, 4, 3, True, "selective"), Strategy(1, 8, 2), Strategy(2)], ids=str)
def test_what_a_rank_keeps(strategy):
    t, sp = strategy.tensor, strategy.sequence_parallel
    found = rank_bytes(BIG, strategy, 1)
    own = 32 * ((12 * 4096**2 + 7 * 4096) / t + 6 * 4096) + 51200 * 4096 / t + 2048 * 4096
    assert found.states == model_states(own, strategy.data, strategy.stage)
    assert found.gathered == (4 * BIG.rank_layer_parameters(t) if strategy.stage == 3 else 0)
    kept = activation_bytes(BIG, 1, t, sp, strategy.recompute)
    assert found.activations == 32 * kept + end_activation_bytes(BIG, 1, t, sp)
    assert found.total == found.states.total + found.gathered + found.activations


def test_full_recomputation_keeps_one_layer_whole():
    kept = rank_bytes(BIG, Strategy(recompute="full"), 1).activations
    assert kept == 32 * 2 * 2048 * 4096 + activation_bytes(BIG, 1) + end_activation_bytes(BIG, 1)


@pytest.mark.parametrize(
    ("ask", "message"),
    [
        (lambda: Strategy(0), "tensor=0, data=1: expected at least one rank in each direction."),
        (lambda: Strategy(recompute="Full"), "recompute='Full': expected one of none, selective, full."),
        (lambda: activation_bytes(BIG, 1, recompute="all"), "recompute='all': expected one of"),
        (lambda: Strategy(1, 2, 4), "ZeRO has the stages 0, 1, 2 and 3, not 4."),
        (lambda: rank_bytes(BIG, Strategy(64), 1), "heads=32 on 64 ranks: each takes as many, so choose a TP degree"),
        (
            lambda: layer_collectives(Transformer(16, 8, 1, 6), Strategy(4, sequence_parallel=True), 1),
            "sequence=6 on 4 ranks",
        ),
    ],
)
def test_wrong_questions(ask, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        ask()


@pytest.mark.parametrize("micro_batch", [1, 4])
@pytest.mark.parametrize(
    "strategy",
    [Strategy(), Strategy(8), Strategy(1, 8, 3), Strategy(2, 4, 1), Strategy(4, 2, 0, sequence_parallel=True)],
    ids=strategy_name,
)
def test_what_a_rank_sends_is_what_its_layers_and_the_ends_send(strategy, micro_batch):
    model = Transformer(1024, 16, 3, 512)
    ranks = {"tensor": strategy.tensor, "data": strategy.data}
    expected = {"tensor": 0.0, "data": 0.0}
    for each in layer_collectives(model, strategy, micro_batch):
        expected[each.over] += 3 * wire_factor(each.kind, ranks[each.over]) * each.payload_bytes
    t, d = strategy.tensor, strategy.data
    expected["tensor"] += 2 * 2 * (t - 1) / t * 2 * micro_batch * 512 * 1024
    times = 3 if strategy.stage == 3 else 2
    expected["data"] += times * (d - 1) / d * 2 * model.rank_end_parameters(t)
    assert sent_bytes(model, strategy, micro_batch)._asdict() == pytest.approx(expected)


def test_names_of_strategies():
    names = [strategy_name(each) for each in (Strategy(), Strategy(1, 8, 3), Strategy(8), Strategy(8, 4, 1))]
    assert names == ["DP", "FSDP", "TP 8", "TP 8 × ZeRO-1 4"]


def test_the_points_of_a_map_may_lie_between_models():
    model = Transformer(np.array([1000.0, 1024.0]), np.array([15.6, 16.0]), 1, np.array([512.5, 512.0]))
    Strategy(8, sequence_parallel=True).check(model)
    with pytest.raises(ValueError, match="heads=12"):
        Strategy(8).check(Transformer(768, 12, 12, 1024))
