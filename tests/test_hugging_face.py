"""The parallel models against Hugging Face's GPT-2 and a layer of its Llama, from the same weights.

`transformers` is no dependency of this project: these tests skip where it is not installed.
"""

import re

import pytest
import torch
from torch.nn import functional

import tpviz
from tpviz.parameters import load_whole_state_dict, whole_gradients

transformers = pytest.importorskip("transformers", reason="transformers is not installed")

RANKS = (1, 2, 4)
GPT2_NAMES = {
    r"^transformer\.wte\.": "embedding.",
    r"^transformer\.wpe\.": "positions.",
    r"^transformer\.ln_f\.": "norm.",
    r"^transformer\.h\.": "layers.",
    r"\.ln_1\.": ".attention_norm.",
    r"\.ln_2\.": ".mlp_norm.",
    r"\.attn\.c_attn\.": ".attention.qkv.",
    r"\.attn\.c_proj\.": ".attention.projection.",
    r"\.mlp\.c_fc\.": ".mlp.up.",
    r"\.mlp\.c_proj\.": ".mlp.down.",
}


LLAMAS = 1e-5
"""Its norm and its softmax are in float32 whatever the model's dtype is."""


def is_close(got, expected, tolerance=1e-10):
    return got.shape == expected.shape and bool((got - expected).abs().max() <= tolerance * expected.abs().max())


def numbers(*shape, seed):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def drawn(model):
    """The model in float64, every parameter drawn: norms and biases, too."""
    model = model.double()
    for seed, parameter in enumerate(model.parameters()):
        parameter.data = 0.3 * numbers(*parameter.shape, seed=seed)
    return model


def from_gpt2(named):
    """GPT-2's tensors under the names here; its Conv1D keeps weights as (in, out)."""
    found = {}
    for name, tensor in named:
        turned = tensor.T if re.search(r"(c_attn|c_proj|c_fc)\.weight$", name) else tensor
        for pattern, ours in GPT2_NAMES.items():
            name = re.sub(pattern, ours, name)
        found[name] = turned
    return found


@pytest.mark.parametrize("sequence_parallel", [False, True])
@pytest.mark.parametrize("ranks", RANKS)
def test_gpt2(ranks, sequence_parallel):
    theirs = transformers.GPT2Config(
        vocab_size=20, n_positions=9, n_embd=16, n_layer=2, n_head=4, activation_function="gelu",
        resid_pdrop=0, embd_pdrop=0, attn_pdrop=0, attn_implementation="eager",
    )  # fmt: skip
    model = drawn(transformers.GPT2LMHeadModel(theirs))
    tokens = torch.randint(20, (9, 3), generator=torch.Generator().manual_seed(1))
    logits = model(tokens[:-1].T).logits
    loss = functional.cross_entropy(logits.flatten(0, 1), tokens[1:].T.flatten())
    loss.backward()
    state = {name: value.detach() for name, value in from_gpt2(model.named_parameters()).items()}
    gradients = from_gpt2((name, value.grad) for name, value in model.named_parameters())
    config = tpviz.TransformerConfig(
        hidden=16,
        heads=4,
        layers=2,
        vocabulary=20,
        sequence=9,
        dtype=torch.float64,
        sequence_parallel=sequence_parallel,
    )

    def program(comm):
        mine = tpviz.ParallelTransformer(config, comm)
        load_whole_state_dict(mine, state)
        parts = mine(tokens[:-1])
        found = tpviz.vocab_parallel_cross_entropy(parts, tokens[1:], comm)
        found.backward()
        tpviz.reduce_replicated_gradients(mine, comm)
        return comm.all_gather(parts.detach()), found, whole_gradients(mine)

    for found_logits, found_loss, found_gradients in tpviz.run(program, ranks).outputs:
        assert is_close(found_logits, logits.detach().transpose(0, 1))
        assert is_close(found_loss, loss.detach())
        assert found_gradients.keys() == gradients.keys()
        assert [name for name in gradients if not is_close(found_gradients[name], gradients[name])] == []


@pytest.mark.parametrize("ranks", RANKS)
def test_a_layer_of_llama(ranks):
    """RMSNorm, SwiGLU and grouped queries; with the rotation by 0, since there are no rotary positions here."""
    theirs = transformers.LlamaConfig(
        hidden_size=16, intermediate_size=24, num_attention_heads=4, num_key_value_heads=2, rms_norm_eps=1e-5,
        attn_implementation="eager",
    )  # fmt: skip
    layer = drawn(transformers.models.llama.modeling_llama.LlamaDecoderLayer(theirs, layer_idx=0))
    x, cotangent = numbers(2, 5, 16, seed=50).requires_grad_(), numbers(2, 5, 16, seed=51)
    mask = torch.full((5, 5), float("-inf"), dtype=torch.float64).triu(1)[None, None]
    unturned = torch.ones(1, 5, 4, dtype=torch.float64), torch.zeros(1, 5, 4, dtype=torch.float64)
    y = layer(x, attention_mask=mask, position_embeddings=unturned)
    y = y[0] if isinstance(y, tuple) else y
    y.backward(cotangent)
    own = dict(layer.named_parameters())

    def fused(tensors):
        qkv = [tensors[f"self_attn.{part}_proj.weight"] for part in "qkv"]
        gate_up = [tensors[f"mlp.{part}_proj.weight"] for part in ("gate", "up")]
        return {
            "attention_norm.weight": tensors["input_layernorm.weight"],
            "attention.qkv.weight": torch.cat(qkv),
            "attention.projection.weight": tensors["self_attn.o_proj.weight"],
            "mlp_norm.weight": tensors["post_attention_layernorm.weight"],
            "mlp.up.weight": torch.cat(gate_up),
            "mlp.down.weight": tensors["mlp.down_proj.weight"],
        }

    state = fused({name: value.detach() for name, value in own.items()})
    gradients = fused({name: value.grad for name, value in own.items()})
    config = tpviz.TransformerConfig(
        hidden=16, heads=4, kv_heads=2, ffn_hidden=24, gated=True, norm="rms", bias=False, dtype=torch.float64
    )
    start, expected, dx = x.detach().transpose(0, 1), y.detach().transpose(0, 1), x.grad.transpose(0, 1)

    def program(comm):
        mine = tpviz.ParallelTransformerLayer(config, comm)
        load_whole_state_dict(mine, state)
        own_x = start.clone().requires_grad_()
        found = mine(own_x)
        found.backward(cotangent.transpose(0, 1))
        return found, own_x.grad, whole_gradients(mine)

    for found, found_dx, found_gradients in tpviz.run(program, ranks).outputs:
        assert is_close(found, expected, LLAMAS)
        assert is_close(found_dx, dx, LLAMAS)
        assert found_gradients.keys() == gradients.keys()
        assert [name for name in gradients if not is_close(found_gradients[name], gradients[name], LLAMAS)] == []
