"""``ParallelTransformerLayer`` and ``ParallelTransformer``, a tiny language model of parallel layers (layers)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from tpviz.attention import ParallelAttention, parallel_dropout
from tpviz.chunking import chunk
from tpviz.communicator import Communicator
from tpviz.dropout import DropoutStreams
from tpviz.i18n import _
from tpviz.layers import ColumnParallelLinear
from tpviz.mlp import ParallelMLP
from tpviz.norms import LayerNorm, RMSNorm
from tpviz.vocabulary import VocabParallelEmbedding, vocab_parallel_cross_entropy

NORMS = {"layer": LayerNorm, "rms": RMSNorm}


@dataclass(frozen=True)
class TransformerConfig:
    """What a model is, on any number of ranks. The names are Megatron-LM's or its papers'; the default is GPT-2's."""

    hidden: int
    heads: int
    layers: int = 1
    vocabulary: int = 256
    sequence: int = 64
    """The longest sequence: how many positions are learned."""
    kv_heads: int | None = None
    """Heads of K and V; as many as of Q by default."""
    ffn_hidden: int | None = None
    """The MLP's width; 4·hidden by default."""
    gated: bool = False
    """SwiGLU instead of GELU."""
    norm: str = "layer"
    """"layer" or "rms"."""
    bias: bool = True
    causal: bool = True
    tied: bool = True
    """The output layer's weight is the embedding's."""
    dropout: float = 0.0
    sequence_parallel: bool = False
    keep_gathered: bool = True
    """Under ``sequence_parallel``: keep all rows of a column layer's X for backward, or gather them again."""
    init_std: float = 0.02
    """Of the embeddings. Linear layers start as ``nn.Linear`` does."""
    dtype: torch.dtype | None = None

    def __post_init__(self) -> None:
        if self.norm not in NORMS:
            message = _("norm={norm!r} is unknown; expected one of {known}.")
            raise ValueError(message.format(norm=self.norm, known=", ".join(NORMS)))


class ParallelTransformerLayer(nn.Module):
    """x + Attention(norm(x)), then x + MLP(norm(x)): a Transformer's layer, its norms first.

    Forward sends two all-reduces of x's size, backward two. ``config.sequence_parallel``: two all-gathers and two
    reduce-scatters forward, and the same backward; x is this rank's rows throughout, so norms, dropouts and residuals
    work on 1/n of it. With ``keep_gathered=False`` backward sends two all-gathers more. After backward
    ``reduce_replicated_gradients`` adds up the gradients of norms and of row layers' biases.

    Shapes: ``x`` (sequence, batch, hidden), replicated, and so is the result; under ``sequence_parallel`` both are
    shards along dimension 0. Errors: see ``ParallelAttention`` and ``ParallelMLP``.

    ``config.dropout`` acts on the attention's weights, and before each residual; ``streams`` are what it draws from.

    Sources: Megatron-LM 2019, arXiv 1909.08053, section 3; Korthikanti et al. 2022, arXiv 2205.05198, section 4.2.2;
    ``megatron/core/transformer/transformer_layer.py``.
    """

    def __init__(self, config: TransformerConfig, comm: Communicator, streams: DropoutStreams | None = None) -> None:
        super().__init__()
        rows = config.sequence_parallel
        options: dict[str, Any] = {"bias": config.bias, "dtype": config.dtype, "sequence_parallel": rows}
        options |= {"keep_gathered": config.keep_gathered}
        norm = NORMS[config.norm]
        self.attention_norm = norm(config.hidden, comm, rows, dtype=config.dtype)
        self.attention = ParallelAttention(
            config.hidden, config.heads, comm, config.kv_heads,
            causal=config.causal, dropout=config.dropout, streams=streams, **options,
        )  # fmt: skip
        self.mlp_norm = norm(config.hidden, comm, rows, dtype=config.dtype)
        self.mlp = ParallelMLP(config.hidden, comm, config.ffn_hidden, config.gated, **options)
        self.attention_dropout = parallel_dropout(config.dropout, streams, sharded=rows)
        self.mlp_dropout = parallel_dropout(config.dropout, streams, sharded=rows)

    def forward(self, x: Tensor) -> Tensor:
        """Return the layer's output, of x's shape."""
        x = x + self.attention_dropout(self.attention(self.attention_norm(x)))
        return x + self.mlp_dropout(self.mlp(self.mlp_norm(x)))  # type: ignore[no-any-return]


class ParallelTransformer(nn.Module):
    """A small language model: embeddings of words and positions, layers, a norm, and the logits of this rank's words.

    Beside its layers' it sends: forward an all-reduce (the words' rows), backward one (dX of the output layer), and two
    small ones for the loss (``vocab_parallel_cross_entropy``). ``config.sequence_parallel``: a reduce-scatter and an
    all-gather instead, in each direction; then the rows between the ends are cut, of positions too.

    Shapes: ``tokens`` (sequence, batch), integers, replicated; the logits (sequence, batch, vocabulary/n), a shard of
    the last dimension, of all rows. ``seed`` starts the streams of dropout. Weights come from torch's own stream,
    whole, then sliced: ranks seeded alike, any number of them, start from the same model.

    ``ValueError``: sizes that the ranks do not divide, and a sequence longer than ``config.sequence``.

    Source: Megatron-LM, ``megatron/core/models/gpt/gpt_model.py``.
    """

    def __init__(self, config: TransformerConfig, comm: Communicator, seed: int = 0) -> None:
        super().__init__()
        self.config, self.comm = config, comm
        rows, streams = config.sequence_parallel, DropoutStreams(seed, comm) if config.dropout else None
        words = nn.Embedding(config.vocabulary, config.hidden, device=comm.device, dtype=config.dtype)
        nn.init.normal_(words.weight, std=config.init_std)
        self.embedding = VocabParallelEmbedding.from_embedding(words, comm, sequence_parallel=rows)
        self.positions = nn.Embedding(config.sequence, config.hidden, device=comm.device, dtype=config.dtype)
        nn.init.normal_(self.positions.weight, std=config.init_std)
        self.positions.sequence_parallel = rows  # type: ignore[assignment]  # for reduce_replicated_gradients
        self.embedding_dropout = parallel_dropout(config.dropout, streams, sharded=rows)
        self.layers = nn.ModuleList(ParallelTransformerLayer(config, comm, streams) for _index in range(config.layers))
        self.norm = NORMS[config.norm](config.hidden, comm, rows, dtype=config.dtype)
        self.output = None if config.tied else ColumnParallelLinear(
            config.hidden, config.vocabulary, comm, bias=False, sequence_parallel=rows,
            dtype=config.dtype, keep_gathered=config.keep_gathered,
        )  # fmt: skip

    def forward(self, tokens: Tensor) -> Tensor:
        """Return the logits of this rank's words."""
        if len(tokens) > self.config.sequence:
            message = _("{length} tokens, but positions are learned for sequence={sequence}.")
            raise ValueError(message.format(length=len(tokens), sequence=self.config.sequence))
        ranks = (self.comm.world_size, self.comm.rank) if self.config.sequence_parallel else (1, 0)
        first, length = chunk(len(tokens), *ranks)
        x = self.embedding(tokens) + self.positions.weight[first : first + length].unsqueeze(1)
        x = self.embedding_dropout(x)
        for layer in self.layers:
            x = layer(x)
        x = self.norm(x)
        if self.output is None:
            return self.embedding.logits(x, self.config.keep_gathered)
        return self.output(x)  # type: ignore[no-any-return]

    def loss(self, tokens: Tensor, target: Tensor) -> Tensor:
        """Return the mean cross-entropy of the words that follow: ``target`` (sequence, batch), replicated."""
        return vocab_parallel_cross_entropy(self(tokens), target, self.comm)
