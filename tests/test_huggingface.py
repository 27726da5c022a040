"""Hugging Face's GPT-2 and a Llama layer as references: their weights, cut over ranks, give their numbers.

``transformers`` is no dependency of tpviz. Where it is not installed these tests skip; to run them:
``pip install --no-deps`` it and what it imports, so that torch stays as it is, then pytest on this file.
"""

import pytest
import torch
from torch.nn import functional

import tpviz
from tpviz.blocks import ParallelTransformer, ParallelTransformerLayer, TransformerConfig
from tpviz.parameters import load_whole_state_dict, whole_gradients

pytest.importorskip("transformers", reason="transformers is not installed: it is a reference here, no dependency")

HIDDEN, HEADS, TOKENS, BATCH = 24, 4, 7, 2


def is_close(got, expected, within=1e-10):
    return got.shape == expected.shape and bool((got - expected).abs().max() <= within * expected.abs().max())


def drawn(module):
    """The module in float64, every parameter drawn: those that start as ones and zeros would hide a mix-up."""
    generator = torch.Generator().manual_seed(7)
    module = module.double().eval()
    for parameter in module.parameters():
        parameter.data = 0.4 * torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
    return module


def differing(got, expected, within=1e-10):
    assert got.keys() == expected.keys()
    return [name for name in expected if not is_close(got[name], expected[name], within)]


# GPT-2, whole: embeddings, layers, the tied output

CONFIG = TransformerConfig(HIDDEN, HEADS, layers=2, vocabulary=36, sequence=TOKENS, dtype=torch.float64)

PARTS = {"ln_1": "attention_norm", "attn.c_attn": "attention.qkv", "attn.c_proj": "attention.projection"}
PARTS |= {"ln_2": "mlp_norm", "mlp.c_fc": "mlp.up", "mlp.c_proj": "mlp.down"}
NAMES = {"transformer.wte.": "embedding.", "transformer.wpe.": "positions.", "transformer.ln_f.": "norm."}
NAMES |= {f"transformer.h.{n}.{theirs}.": f"layers.{n}.{ours}." for n in range(2) for theirs, ours in PARTS.items()}


def gpt2():
    from transformers import GPT2Config, GPT2LMHeadModel

    sizes = {"vocab_size": CONFIG.vocabulary, "n_positions": TOKENS, "n_embd": HIDDEN, "n_layer": 2, "n_head": HEADS}
    # GPT-2 approximates GELU by a tanh; tpviz has the exact one.
    config = GPT2Config(**sizes, activation_function="gelu", attn_implementation="eager")
    return drawn(GPT2LMHeadModel(config))


def in_our_names(theirs):
    """Their tensors by our names. All their linear layers are Conv1D, whose weight is nn.Linear's transposed."""
    ours = {}
    for name, tensor in theirs.items():
        prefix = next(each for each in NAMES if name.startswith(each))
        linear = ".c_" in name and name.endswith("weight")
        ours[NAMES[prefix] + name.removeprefix(prefix)] = (tensor.T if linear else tensor).detach().clone()
    return ours


def gpt2_step(comm, config, state, tokens, target):
    model = ParallelTransformer(config, comm)
    load_whole_state_dict(model, state)
    logits = model(tokens)
    loss = tpviz.vocab_parallel_cross_entropy(logits, target, comm)
    loss.backward()
    tpviz.reduce_replicated_gradients(model, comm)
    return comm.all_gather(logits.detach()), loss, whole_gradients(model)


@pytest.mark.parametrize("sequence_parallel", [False, True])
@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_gpt2_is_hugging_faces(ranks, sequence_parallel):
    model, generator = gpt2(), torch.Generator().manual_seed(3)
    tokens, target = torch.randint(CONFIG.vocabulary, (2, TOKENS, BATCH), generator=generator)
    logits = model(tokens.T).logits.transpose(0, 1)  # theirs is batch × sequence
    loss = functional.cross_entropy(logits.flatten(0, 1), target.flatten())
    loss.backward()
    parameters = dict(model.named_parameters())
    state, gradients = (
        in_our_names({name: getattr(each, kind) for name, each in parameters.items()}) for kind in ("data", "grad")
    )
    config = TransformerConfig(**{**vars(CONFIG), "sequence_parallel": sequence_parallel})
    for got, got_loss, got_gradients in tpviz.run(gpt2_step, ranks=ranks, args=(config, state, tokens, target)).outputs:
        assert is_close(got, logits)
        assert is_close(got_loss, loss)
        assert differing(got_gradients, gradients) == []


# A layer of Llama: RMSNorm, SwiGLU, grouped queries. All tokens at position 0, where no rotary embedding rotates them

WITHIN = 1e-5
"""Its norms and its softmax compute in float32, whatever the weights are in."""


def llama_layer(kv_heads):
    from transformers import LlamaConfig
    from transformers.models.llama.modeling_llama import LlamaDecoderLayer

    sizes = {"hidden_size": HIDDEN, "intermediate_size": 32, "num_attention_heads": HEADS}
    config = LlamaConfig(**sizes, num_key_value_heads=kv_heads, rms_norm_eps=1e-5, attn_implementation="eager")
    return drawn(LlamaDecoderLayer(config, layer_idx=0))


def fused(layer, kind):
    """The layer's tensors, or their gradients, by our names: Q, K and V one below the other, gate and up too."""
    attention, mlp = layer.self_attn, layer.mlp
    parts = {
        "attention_norm.weight": [layer.input_layernorm],
        "attention.qkv.weight": [attention.q_proj, attention.k_proj, attention.v_proj],
        "attention.projection.weight": [attention.o_proj],
        "mlp_norm.weight": [layer.post_attention_layernorm],
        "mlp.up.weight": [mlp.gate_proj, mlp.up_proj],
        "mlp.down.weight": [mlp.down_proj],
    }
    return {name: torch.cat([getattr(each.weight, kind) for each in found]) for name, found in parts.items()}


@pytest.mark.parametrize(("kv_heads", "ranks"), [(4, 1), (4, 4), (2, 2), (2, 4), (1, 4)])
def test_a_llama_layer_is_hugging_faces(kv_heads, ranks):
    layer, generator = llama_layer(kv_heads), torch.Generator().manual_seed(5)
    x, dy = torch.randn(2, TOKENS, BATCH, HIDDEN, generator=generator, dtype=torch.float64)
    theirs = x.transpose(0, 1).clone().requires_grad_()
    still = torch.ones(BATCH, TOKENS, HIDDEN // HEADS, dtype=torch.float64)
    later = torch.full((1, 1, TOKENS, TOKENS), -torch.inf, dtype=torch.float64).triu(1)
    y = layer(theirs, attention_mask=later, position_embeddings=(still, torch.zeros_like(still)))
    y.backward(dy.transpose(0, 1))
    state, gradients, dx = fused(layer, "data"), fused(layer, "grad"), theirs.grad.transpose(0, 1)

    def program(comm):
        options = {"kv_heads": kv_heads, "ffn_hidden": 32, "gated": True, "norm": "rms", "bias": False}
        ours = ParallelTransformerLayer(TransformerConfig(HIDDEN, HEADS, **options, dtype=torch.float64), comm)
        load_whole_state_dict(ours, state)
        mine = x.clone().requires_grad_()
        out = ours(mine)
        out.backward(dy)
        return out, mine.grad, whole_gradients(ours)

    for got, got_dx, got_gradients in tpviz.run(program, ranks=ranks).outputs:
        assert is_close(got, y.detach().transpose(0, 1), WITHIN)
        assert is_close(got_dx, dx, WITHIN)
        assert differing(got_gradients, gradients, WITHIN) == []
