"""A Transformer in numbers: its parameters, and a layer's matmuls, operations and bytes of activations (transformers).

GPT's shape: attention with ``heads`` heads, an MLP four times as wide as the model, learned positions, and an embedding
that is also the output layer. Symbols as in the papers: h hidden, a heads, l layers, s sequence, V vocabulary, b
micro-batch (sequences that a rank works on at once), t TP degree. Sizes and b may be arrays, for maps.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple, get_args

from tpviz.costs import Amount
from tpviz.i18n import _

Recompute = Literal["none", "selective", "full"]
"""What backward computes again instead of keeping it: nothing, the core of attention, or the whole layer."""


def check_recompute(recompute: str) -> None:
    """Refuse a word that is no way to recompute."""
    if recompute not in get_args(Recompute):
        message = _("recompute={recompute!r}: expected one of {known}.")
        raise ValueError(message.format(recompute=recompute, known=", ".join(get_args(Recompute))))


@dataclass(frozen=True)
class Transformer:
    """A configuration. The vocabulary's default is Megatron-LM's, padded."""

    hidden: Amount
    heads: Amount
    layers: int
    sequence: int
    vocabulary: int = 51200

    @property
    def layer_parameters(self) -> Amount:
        """12h² + 13h: four h×h matrices of attention, two 4h×h of the MLP, their biases, and two LayerNorms."""
        return 12 * self.hidden**2 + 13 * self.hidden

    @property
    def end_parameters(self) -> Amount:
        """(V + s)·h: the embeddings of words and of positions."""
        return (self.vocabulary + self.sequence) * self.hidden

    @property
    def parameters(self) -> Amount:
        """12·l·h²·(1 + 13/(12h) + (V + s)/(12·l·h)).

        Source: Narayanan et al. 2021, arXiv 2104.04473, equation 2.
        """
        return self.layers * self.layer_parameters + self.end_parameters

    def rank_layer_parameters(self, tensor: int) -> Amount:
        """A rank's parameters of one layer: matrices and columns' biases divided by t, the other 6h on every rank.

        (12h² + 7h)/t + 6h. Source: Megatron-LM 2019, arXiv 1909.08053, section 3.
        """
        return (12 * self.hidden**2 + 7 * self.hidden) / tensor + 6 * self.hidden

    def rank_end_parameters(self, tensor: int) -> Amount:
        """A rank's parameters of the two ends: the words' embedding divided by t, the positions' on every rank."""
        return self.vocabulary * self.hidden / tensor + self.sequence * self.hidden


class Matmul(NamedTuple):
    """So many ``copies`` of a matmul of m×k by k×n, done by one kernel."""

    name: str
    m: Amount
    k: Amount
    n: Amount
    copies: Amount = 1

    @property
    def flops(self) -> Amount:
        """2·m·k·n each, multiplications and additions."""
        return 2 * self.m * self.k * self.n * self.copies


def linear_matmuls(model: Transformer, micro_batch: Amount, tensor: int) -> tuple[Matmul, ...]:
    """A rank's matmuls with weights in a layer's forward: columns, rows, columns, rows."""
    rows, h = micro_batch * model.sequence, model.hidden
    return (
        Matmul("QKV", rows, h, 3 * h / tensor),
        Matmul("projection", rows, h / tensor, h),
        Matmul("MLP up", rows, h, 4 * h / tensor),
        Matmul("MLP down", rows, 4 * h / tensor, h),
    )


def core_matmuls(model: Transformer, micro_batch: Amount, tensor: int) -> tuple[Matmul, ...]:
    """A rank's matmuls of attention's core, for each of its heads: Q Kᵀ, and the weights by V."""
    s, width, copies = model.sequence, model.hidden / model.heads, micro_batch * model.heads / tensor
    return Matmul("scores", s, width, s, copies), Matmul("context", s, s, width, copies)


def step_flops(model: Transformer, batch: Amount, recompute: Recompute = "none") -> Amount:
    """The matmuls' operations (FLOP) in a training step of ``batch`` sequences, on all ranks together.

    Backward takes twice forward's, and recomputation once what it repeats; the output layer is never repeated:

        none        72·b·s·l·h²·(1 + s/(6h) + V/(12·l·h))
        selective   72·b·s·l·h²·(1 + 2s/(9h) + V/(12·l·h))
        full        96·b·s·l·h²·(1 + s/(6h) + V/(16·l·h))

    Sources: full: Narayanan et al. 2021, arXiv 2104.04473, equation 3; none: Korthikanti et al. 2022, arXiv 2205.05198,
    appendix A. Selective repeats a core of 4·b·s²·h a layer.
    """
    check_recompute(recompute)
    tokens, h = batch * model.sequence, model.hidden
    core = 4 * tokens * model.sequence * h
    forward = 24 * tokens * h**2 + core
    again = {"none": 0 * forward, "selective": core, "full": forward}[recompute]
    return model.layers * (3 * forward + again) + 6 * tokens * h * model.vocabulary


class Traffic(NamedTuple):
    """Bytes that element-wise kernels move in one layer of one rank."""

    outside: Amount
    """LayerNorm, dropout, residual: of all rows on every rank, unless sequence parallelism divides them."""
    mlp: Amount
    core: Amount


def forward_traffic(model: Transformer, micro_batch: Amount, tensor: int, sequence_parallel: bool) -> Traffic:
    """Count what a forward's element-wise kernels read and write, activations of 2 bytes, dropout masks of 1.

    Two LayerNorms (2 + 2 bytes an entry) and two fused bias-dropout-residuals (2 + 2 + 2 + 1), together 22·s·b·h;
    GeLU on 4h features (2 + 2), 16·s·b·h/t; softmax (2 + 2) and its dropout (2 + 2 + 1), 9·a·s²·b/t. Kernels are fused
    as in Narayanan et al. 2021, arXiv 2104.04473, section 4.2.
    """
    return _traffic(model, micro_batch, tensor, sequence_parallel, (22, 16, 9))


def backward_traffic(model: Transformer, micro_batch: Amount, tensor: int, sequence_parallel: bool) -> Traffic:
    """Count what a backward's element-wise kernels read and write (see ``forward_traffic``).

    Two each of LayerNorm (dy, x, dx: 6), dropout (dy, mask, dx: 5) and the sum where the residual branches off (6),
    34·s·b·h; GeLU (dy, x, dx: 6) 24·s·b·h/t; softmax (dy, y, dx: 6) and its dropout (5), 11·a·s²·b/t.
    """
    return _traffic(model, micro_batch, tensor, sequence_parallel, (34, 24, 11))


def _traffic(
    model: Transformer, micro_batch: Amount, tensor: int, sequence_parallel: bool, passes: tuple[int, int, int]
) -> Traffic:
    tokens = micro_batch * model.sequence
    outside, mlp, core = passes
    return Traffic(
        outside * tokens * model.hidden / (tensor if sequence_parallel else 1),
        mlp * tokens * model.hidden / tensor,
        core * model.heads * model.sequence * tokens / tensor,
    )


class Activations(NamedTuple):
    """Bytes that a rank keeps of one layer from forward until backward."""

    outside: Amount
    """The inputs of norms and of column layers, and the masks of the dropouts before the residuals."""
    inside: Amount
    """What TP cuts: Q, K and V, attention's core, the inputs of row layers and of GeLU."""


def activation_bytes(
    model: Transformer,
    micro_batch: Amount,
    tensor: int = 1,
    sequence_parallel: bool = False,
    recompute: Recompute = "none",
) -> Amount:
    """The bytes that a rank keeps of one layer from forward until backward: the sum of ``activation_parts``.

        none                        s·b·h·(10 + 24/t + 5·a·s/(h·t))
        none, sequence parallel     s·b·h/t·(34 + 5·a·s/h)
        selective                   the same without 5·a·s/h: s·b·h·(10 + 24/t), or 34·s·b·h/t
        full                        2·s·b·h

    Source: Korthikanti et al. 2022, arXiv 2205.05198, table 2; activations of 2 bytes.
    """
    parts = activation_parts(model, micro_batch, tensor, sequence_parallel, recompute)
    return parts.outside + parts.inside


def activation_parts(
    model: Transformer, micro_batch: Amount, tensor: int, sequence_parallel: bool, recompute: Recompute = "none"
) -> Activations:
    """``activation_bytes`` in two parts: what plain TP leaves whole on every rank, and what it cuts."""
    check_recompute(recompute)
    whole = micro_batch * model.sequence * model.hidden
    if recompute == "full":
        return Activations(2 * whole, 0)
    core = 5 * model.heads * model.sequence**2 * micro_batch if recompute == "none" else 0
    return Activations(10 * whole / (tensor if sequence_parallel else 1), (24 * whole + core) / tensor)


def end_activation_bytes(
    model: Transformer, micro_batch: Amount, tensor: int = 1, sequence_parallel: bool = False
) -> Amount:
    """The bytes kept at the two ends: the embedding's dropout mask, the inputs of the last norm and layer, the logits.

    (1 + 2 + 2)·s·b·h, divided by t under sequence parallelism, and 4·s·b·V/t in float32.
    Source: Korthikanti et al. 2022, arXiv 2205.05198, section 4.3, without pipeline.
    """
    tokens = micro_batch * model.sequence
    return 5 * tokens * model.hidden / (tensor if sequence_parallel else 1) + 4 * tokens * model.vocabulary / tensor
