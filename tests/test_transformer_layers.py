"""The parallel Transformer against an unsharded one of PyTorch's own modules: loss, logits, every gradient, ledger."""

from collections import Counter
from dataclasses import replace

import pytest
import torch
from torch.nn import functional

import tpviz
from tpviz.blocks import ParallelTransformer, ParallelTransformerLayer, TransformerConfig
from tpviz.dense import DenseTransformer
from tpviz.dropout import DropoutStreams
from tpviz.layers import reduce_replicated_gradients
from tpviz.parameters import load_whole_state_dict, whole_gradients, whole_state_dict
from tpviz.strategies import Strategy, layer_collectives
from tpviz.transformers import Transformer, activation_bytes

BASE = TransformerConfig(
    hidden=24, heads=12, layers=2, vocabulary=36, sequence=13, init_std=0.5, dtype=torch.float64
)  # fmt: skip
CONFIGS = {
    "GPT": BASE,
    "GPT, untied, no bias": replace(BASE, tied=False, bias=False),
    "Llama": replace(BASE, gated=True, norm="rms", kv_heads=4, ffn_hidden=60, bias=False, tied=False),
    "two heads of K and V": replace(BASE, kv_heads=2),
    "one head of K and V, both ways": replace(BASE, kv_heads=1, causal=False, gated=True),
}


def data(config, rows=12, batch=2):
    generator = torch.Generator().manual_seed(8)
    tokens = torch.randint(config.vocabulary, (rows + 1, batch), generator=generator)
    target = tokens[1:].clone()
    target[1, 0] = -100
    return tokens[:-1], target


def dense(config, rows=12):
    """A model whose parameters are all drawn, those that start as ones and zeros too, and what one step finds."""
    with torch.random.fork_rng():
        torch.manual_seed(2)
        model = DenseTransformer(config)
    generator = torch.Generator().manual_seed(9)
    for parameter in model.parameters():
        parameter.data += 0.3 * torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
    tokens, target = data(config, rows)
    logits = model(tokens)
    loss = functional.cross_entropy(logits.flatten(0, 1), target.flatten())
    loss.backward()
    norm = torch.nn.utils.get_total_norm([parameter.grad for parameter in model.parameters()])
    return model, logits.detach(), loss.detach(), norm


def step(comm, config, state, tokens, target):
    model = ParallelTransformer(config, comm)
    load_whole_state_dict(model, state)
    logits = model(tokens)
    loss = tpviz.vocab_parallel_cross_entropy(logits, target, comm)
    loss.backward()
    reduce_replicated_gradients(model, comm)
    norm = tpviz.gradient_norm(model, comm)
    whole = comm.all_gather(logits.detach())
    return whole, loss, norm, whole_gradients(model), bool(tpviz.check_replicated(model, comm=comm))


def is_close(got, expected):
    return got.shape == expected.shape and bool((got - expected).abs().max() <= 1e-10 * expected.abs().max())


def agrees(outputs, config, rows=12):
    model, logits, loss, norm = dense(config, rows)
    gradients = {name: parameter.grad for name, parameter in model.named_parameters()}
    for got_logits, got_loss, got_norm, got_gradients, replicated in outputs:
        assert is_close(got_logits, logits)
        assert is_close(got_loss, loss)
        assert is_close(got_norm, norm)
        assert got_gradients.keys() == gradients.keys()
        assert [name for name in gradients if not is_close(got_gradients[name], gradients[name])] == []
        assert replicated


# Plain, sequence parallel, and with X gathered again.
WAYS = {"plain": (False, True), "rows": (True, True), "rows, gathered again": (True, False)}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    ("name", "ranks"),
    [
        (name, ranks)
        for name, config in CONFIGS.items()
        for ranks in (1, 2, 3, 4)
        if ranks != 3 or config.kv_heads in (None, 1)  # else neither divides the other
    ],
)
def test_parity_with_the_unsharded_model(name, ranks, way):
    sequence_parallel, keep_gathered = WAYS[way]
    config = replace(CONFIGS[name], sequence_parallel=sequence_parallel, keep_gathered=keep_gathered)
    state = dense(config)[0].state_dict()
    run = tpviz.run(step, ranks=ranks, args=(config, state, *data(config)))
    agrees(run.outputs, config)


def test_rows_that_do_not_divide():
    config = replace(BASE, sequence_parallel=True)
    run = tpviz.run(step, ranks=3, args=(config, dense(config, 11)[0].state_dict(), *data(config, 11)))
    agrees(run.outputs, config, 11)


@pytest.mark.parametrize("sequence_parallel", [False, True])
def test_processes_find_what_simulated_ranks_find(sequence_parallel):
    config = replace(CONFIGS["one head of K and V, both ways"], sequence_parallel=sequence_parallel)
    arguments = (config, dense(config)[0].state_dict(), *data(config))
    simulated, real = (tpviz.run(step, ranks=2, backend=backend, args=arguments) for backend in ("simulated", "gloo"))
    agrees(real.outputs, config)
    for mine, theirs in zip(simulated.outputs, real.outputs, strict=True):
        for one, other in zip(mine[:3], theirs[:3], strict=True):
            assert (one - other).abs().max() <= 1e-12
    assert len(simulated.trace) == len(real.trace)
    for one, other in zip(simulated.trace, real.trace, strict=True):
        assert one == other


@pytest.mark.parametrize("sequence_parallel", [False, True])
def test_replicas_agree_with_dropout_too(sequence_parallel):
    """Case 24, in a model: what is replicated is dropped alike, and rows and heads each by a mask of their own."""
    config, (tokens, target) = replace(BASE, dropout=0.3, sequence_parallel=sequence_parallel), data(BASE)

    def program(comm):
        model = ParallelTransformer(config, comm, seed=4)
        seen = []
        hook = lambda _module, _x, y: seen.append(y.detach() == 0)  # noqa: E731
        model.layers[0].attention_dropout.register_forward_hook(hook)
        model.loss(tokens, target).backward()
        reduce_replicated_gradients(model, comm)
        return bool(tpviz.check_replicated(model, comm=comm)), seen[0]

    (agree, mask), (again, other) = tpviz.run(program).outputs
    assert agree
    assert again
    assert torch.equal(mask, other) != sequence_parallel
    assert len(mask) == len(tokens) // (2 if sequence_parallel else 1)


def test_any_number_of_ranks_starts_from_the_same_model():
    """Case 25: whole, then sliced; and a checkpoint of 2 ranks is one of 3."""

    def program(comm):
        torch.manual_seed(3)
        model = ParallelTransformer(replace(BASE, kv_heads=1), comm)
        return whole_state_dict(model), torch.rand(1)

    ((expected, after),) = tpviz.run(program, ranks=1).outputs
    for ranks in (2, 3, 4):
        for state, drawn in tpviz.run(program, ranks=ranks).outputs:
            assert all(torch.equal(state[name], expected[name]) for name in expected)
            assert torch.equal(drawn, after)


def test_a_checkpoint_of_another_model_is_refused():
    def program(comm, change):
        model = ParallelTransformer(BASE, comm)
        state = whole_state_dict(model)
        change(state)
        load_whole_state_dict(model, state)

    with pytest.raises(tpviz.RankError, match=r"has extra that the module has not, and lacks -\."):
        tpviz.run(program, args=(lambda state: state.update(extra=torch.ones(1)),))
    with pytest.raises(tpviz.RankError, match=r"norm\.weight: .* is \(3,\), but it should be \(24,\)"):
        tpviz.run(program, args=(lambda state: state.update({"norm.weight": torch.ones(3)}),))


# The ledger

MODEL = Transformer(hidden=16, heads=8, layers=1, sequence=8, vocabulary=32)
BATCH = 2


def layer_program(comm, config, batch=BATCH):
    """One layer's forward and backward; returns the bytes that autograd kept, without parameters."""
    streams = DropoutStreams(5, comm) if config.dropout else None
    layer = ParallelTransformerLayer(config, comm, streams)
    rows = MODEL.sequence // comm.world_size if config.sequence_parallel else MODEL.sequence
    x = torch.randn(rows, batch, config.hidden, dtype=config.dtype, requires_grad=True)
    parameters = {parameter.untyped_storage().data_ptr() for parameter in layer.parameters()}
    kept = {}

    def pack(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in parameters:
            kept[storage.data_ptr()] = storage
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        y = layer(x)
    (y * torch.arange(y.numel()).view(y.shape)).sum().backward()
    reduce_replicated_gradients(layer, comm)
    return sum(storage.nbytes() for storage in kept.values())


def config_of(**options):
    return TransformerConfig(MODEL.hidden, MODEL.heads, **options)


def bytes_by_kind(events):
    totals = Counter()
    for event in events:
        totals[event.kind, event.phase] += event.payload_bytes
    return totals


@pytest.mark.parametrize("sequence_parallel", [False, True])
@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_a_layer_sends_what_the_cost_model_says(ranks, sequence_parallel):
    run = tpviz.run(layer_program, ranks=ranks, args=(config_of(sequence_parallel=sequence_parallel),))
    foretold = Counter()
    strategy = Strategy(ranks, sequence_parallel=sequence_parallel)
    for kind, phase, size, _over in layer_collectives(MODEL, strategy, BATCH, 4):
        foretold[kind, phase] += size
    assert bytes_by_kind(run.trace) == foretold


def test_two_and_two_all_reduces_or_four_and_four_of_the_same_bytes():
    plain = tpviz.run(layer_program, ranks=4, args=(config_of(),)).trace
    counts = Counter((event.kind, event.phase) for event in plain)
    assert counts == {("all_reduce", "forward"): 2, ("all_reduce", "backward"): 2}
    cut = tpviz.run(layer_program, ranks=4, args=(config_of(sequence_parallel=True),)).trace
    cut = [event for event in cut if event.phase != "gradients"]
    counts = Counter((event.kind, event.phase) for event in cut)
    assert counts == dict.fromkeys(
        [(kind, phase) for kind in ("all_gather", "reduce_scatter") for phase in ("forward", "backward")], 2
    )
    assert sum(event.wire_bytes for event in cut) == sum(event.wire_bytes for event in plain)


def test_case_31_gathering_again_costs_an_all_gather_for_each_column_layer():
    kept, again = (
        tpviz.run(layer_program, ranks=4, args=(config_of(sequence_parallel=True, keep_gathered=keep),))
        for keep in (True, False)
    )
    extra = bytes_by_kind(again.trace) - bytes_by_kind(kept.trace)
    activation = MODEL.sequence * BATCH * MODEL.hidden * 4
    assert extra == {("all_gather", "backward"): 2 * activation}
    assert len(again.trace) == len(kept.trace) + 2
    # What it buys: three quarters of the two column layers' X need not be kept.
    assert kept.outputs[0] - again.outputs[0] == 2 * activation * 3 // 4


@pytest.mark.parametrize("ranks", [1, 2, 4])
@pytest.mark.parametrize("sequence_parallel", [False, True])
def test_a_rank_keeps_what_korthikantis_formula_says(ranks, sequence_parallel):
    """Exactly, in bfloat16; beside it each norm's mean and deviation, and the causal mask, a byte an entry."""
    options = {"sequence_parallel": sequence_parallel, "keep_gathered": False, "dtype": torch.bfloat16}
    run = tpviz.run(layer_program, ranks=ranks, args=(config_of(dropout=0.25, **options),))
    rows = MODEL.sequence * BATCH // (ranks if sequence_parallel else 1)
    beside = 2 * 2 * rows * torch.bfloat16.itemsize + MODEL.sequence**2
    formula = activation_bytes(MODEL, BATCH, ranks, sequence_parallel)
    assert [output - beside for output in run.outputs] == [formula] * ranks


def test_the_ends_send_two_all_reduces_and_the_losss_two_small_ones():
    config, (tokens, target) = replace(BASE, layers=0), data(BASE)

    def program(comm):
        ParallelTransformer(config, comm).loss(tokens, target).backward()

    activation, row = tokens.numel() * config.hidden * 8, tokens.numel() * 8
    trace = tpviz.run(program, ranks=4).trace
    assert [(event.kind, event.phase, event.payload_bytes) for event in trace] == [
        ("all_reduce", "forward", activation),
        ("all_reduce", "forward", row),
        ("all_reduce", "forward", 2 * row),
        ("all_reduce", "backward", activation),
    ]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"heads": 6}, "heads=6 on 4 ranks"),
        ({"heads": 10}, "hidden=24 and heads=10"),
        ({"kv_heads": 5}, "heads=12 and kv_heads=5"),
        ({"kv_heads": 6}, "kv_heads=6 on 4 ranks"),
        ({"vocabulary": 38}, "num_embeddings=38 on 4 ranks"),
        ({"ffn_hidden": 50}, "ffn_hidden=50 on 4 ranks"),
        ({"norm": "batch"}, "norm='batch' is unknown; expected one of layer, rms"),
    ],
)
def test_a_configuration_that_cannot_be_cut_is_refused(change, message):
    with pytest.raises((tpviz.RankError, ValueError), match=message):
        tpviz.run(lambda comm: ParallelTransformer(replace(BASE, **change), comm), ranks=4)


def test_a_sequence_without_positions_is_refused():
    tokens = torch.zeros(14, 2, dtype=torch.int64)
    with pytest.raises(tpviz.RankError, match="14 tokens, but positions are learned for sequence=13"):
        tpviz.run(lambda comm: ParallelTransformer(BASE, comm)(tokens))
