"""Formulas of memory and arithmetic (a model of what ranks hold; computes no tensor): ZeRO's stages, and one layer.

Bytes are bytes, a GB is 10⁹ of them, and one multiplication or one addition is one floating-point operation (FLOP).
"""

from dataclasses import dataclass

from tpviz.i18n import _

GB = 10**9
STAGES = range(4)


@dataclass(frozen=True)
class ModelStates:
    """What training keeps on one rank between two steps, in bytes; activations are not part of it."""

    parameters: float
    gradients: float
    optimizer: float

    @property
    def total(self) -> float:
        """The sum of the three, in bytes."""
        return self.parameters + self.gradients + self.optimizer


def model_states(parameters: float, ranks: int, stage: int, optimizer_bytes: int = 12) -> ModelStates:
    """The model states of one rank under ZeRO, in bytes, for a number of parameters Ψ on n ranks.

    Mixed-precision training with Adam keeps 2Ψ bytes of parameters (fp16), 2Ψ of gradients (fp16) and KΨ of optimizer
    states, K = ``optimizer_bytes`` = 12: the fp32 parameters, momentum and variance, 4 bytes each. Stage 0 keeps all
    of it on every rank; stage 1 divides the optimizer states by n, stage 2 the gradients too, stage 3 (FSDP) the
    parameters too:

        stage 0   2Ψ + 2Ψ + KΨ          stage 2   2Ψ + (2Ψ + KΨ)/n
        stage 1   2Ψ + 2Ψ + KΨ/n        stage 3   (2Ψ + 2Ψ + KΨ)/n

    Source: Rajbhandari et al., ZeRO, arXiv 1910.02054, section 3.1 and figure 1.
    """
    if stage not in STAGES:
        raise ValueError(_("ZeRO has the stages 0, 1, 2 and 3, not {stage}.").format(stage=stage))
    shares = [1 / ranks if stage >= first else 1.0 for first in (3, 2, 1)]
    sizes = (2 * parameters, 2 * parameters, optimizer_bytes * parameters)
    return ModelStates(*(size * share for size, share in zip(sizes, shares, strict=True)))


@dataclass(frozen=True)
class LayerForward:
    """What the forward of one layer Y = X W asks of one rank."""

    stored_bytes: int
    """The weight that the rank keeps, in bytes."""
    present_bytes: int
    """The weight that it has in memory while it multiplies, in bytes."""
    flops: int
    """Its multiplications and additions: 2 for each entry of X's rows, times each column of Y, times in_features."""


def zero3_forward(rows: int, in_features: int, out_features: int, ranks: int, element_bytes: int = 4) -> LayerForward:
    """The forward of a layer on one of n ranks under ZeRO-3 (FSDP): all of W for a moment, a share of the rows.

    Stored in·out/n elements; present in·out, gathered for the matmul and freed after it; 2·(rows/n)·in·out FLOP.
    Source: ZeRO, arXiv 1910.02054, section 5.3.
    """
    return LayerForward(
        stored_bytes=_share(in_features * out_features, ranks, "in_features × out_features") * element_bytes,
        present_bytes=in_features * out_features * element_bytes,
        flops=2 * _share(rows, ranks, "rows") * in_features * out_features,
    )


def column_forward(rows: int, in_features: int, out_features: int, ranks: int, element_bytes: int = 4) -> LayerForward:
    """The forward of a column-parallel layer on one of n ranks: its columns of W, all rows.

    Stored and present in·(out/n) elements; 2·rows·in·(out/n) FLOP.
    Source: Shoeybi et al., Megatron-LM, arXiv 1909.08053, section 3.
    """
    columns = _share(out_features, ranks, "out_features")
    weight = in_features * columns * element_bytes
    return LayerForward(stored_bytes=weight, present_bytes=weight, flops=2 * rows * in_features * columns)


def _share(size: int, ranks: int, name: str) -> int:
    """What each rank gets of a size that they divide evenly."""
    if size % ranks:
        text = _("{name} = {size} does not divide into {ranks} equal parts.")
        raise ValueError(text.format(name=name, size=size, ranks=ranks))
    return size // ranks
