"""Published measurements as data, and what the models say of the same runs, with every error (published).

Nothing here is adjusted until it fits: a parameter that was fitted is named in its comparison's title, with what it was
fitted to, and everything else is a machine's printed figure or a counted one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import NamedTuple

from tpviz.costs import Amount, Link, collective_seconds
from tpviz.i18n import _, ngettext
from tpviz.machines import DGX_2H, DGX_A100, NVLINK_STEP, Machine, group_seconds
from tpviz.memory import GB, STAGES, model_states
from tpviz.steps import layer_phase, step
from tpviz.strategies import Strategy
from tpviz.tables import Table
from tpviz.transformers import Transformer, step_flops


class Row(NamedTuple):
    """One figure: what it is of, what was published, and what a model says; both in the comparison's unit."""

    case: str
    published: float
    model: float

    @property
    def error(self) -> float:
        """What the model says too much."""
        return self.model - self.published


class Comparison(NamedTuple):
    """Published figures beside a model's."""

    title: str
    unit: str
    """What the figures are in: "%" (then errors are points), "×", "TFLOP/s", "ms", "s", "GB", "B" (10⁹)."""
    rows: tuple[Row, ...]

    @property
    def worst(self) -> float:
        """The largest error of all, without its sign, in the unit."""
        return max(abs(row.error) for row in self.rows)

    @property
    def worst_share(self) -> float:
        """The largest error as a share of what was published."""
        return max(abs(row.error) / row.published for row in self.rows)

    def table(self) -> Table:
        """Return the rows as a table: published, model, error, and the error's share of what was published."""
        rows = [
            [
                each.case,
                f"{each.published:g}",
                f"{each.model:.4g}",
                f"{each.error:+.2f}",
                f"{each.error / each.published:+.0%}",
            ]
            for each in self.rows
        ]
        unit = self.unit
        headings = [self.title, _("published, {unit}").format(unit=unit), _("model, {unit}").format(unit=unit)]
        return Table(
            [*headings, _("error, points") if unit == "%" else _("error, {unit}").format(unit=unit), "%"], rows
        )


def _on(size: str, gpus: int) -> str:
    return ngettext("{size} on {gpus} GPU", "{size} on {gpus} GPUs", gpus).format(size=size, gpus=gpus)


# ZeRO (arXiv 1910.02054), figure 1: 7.5 · 10⁹ parameters, 64 ranks, GB by stage.
ZERO_GB = (120, 31.4, 16.6, 1.9)


def zero_memory() -> Comparison:
    """Return ZeRO's figure 1: model states of one rank, GB."""
    found = (model_states(7.5e9, 64, stage).total / GB for stage in STAGES)
    names = (_("stage {stage}").format(stage=stage) for stage in STAGES)
    return Comparison(_("ZeRO, 7.5B on 64 GPUs"), "GB", tuple(map(Row, names, ZERO_GB, found)))


# Megatron-LM 2019 (arXiv 1909.08053)


class _Shoeybi(NamedTuple):
    """A row of table 1 with figure 5's efficiencies (%): with TP on ``gpus``, and with 64 such groups as well."""

    size: str
    hidden: int
    heads: int
    layers: int
    gpus: int
    tensor: float
    both: float

    @property
    def model(self) -> Transformer:
        return Transformer(self.hidden, self.heads, self.layers, sequence=1024)


MEGATRON_2019 = (
    _Shoeybi("1.2B", 1536, 16, 40, 1, 100, 96),
    _Shoeybi("2.5B", 1920, 20, 54, 2, 95, 83),
    _Shoeybi("4.2B", 2304, 24, 64, 4, 82, 79),
    _Shoeybi("8.3B", 3072, 32, 72, 8, 77, 74),
)
STRONG_2019 = {1: 1.0, 2: 1.64, 4: 2.34, 8: 2.98}
"""Appendix, table 8: the speed of the 1.2B model on so many GPUs, as a multiple of one's; batch 8."""
BASELINE_2019 = 39e12
"""FLOP/s of the 1.2B model on one GPU, full recomputation counted: what 100% is."""
BATCH_2019 = 8

Seconds = Callable[[Transformer, int], float]
"""The seconds of a step of a model on a number of GPUs with TP."""


def plain_seconds(bandwidth: Amount) -> Seconds:
    """The plain model: all operations at one GPU's measured speed, divided by t, and six all-reduces a layer.

    F/(t · 39 TFLOP/s) + 6·l·(2(t−1)·α + 2(t−1)/t · S/bandwidth), S = 2·b·s·h bytes: two each in forward, in its
    recomputation, and backward.
    """
    link = Link(NVLINK_STEP, bandwidth)

    def seconds(model: Transformer, gpus: int) -> float:
        payload = 2 * BATCH_2019 * model.sequence * float(model.hidden)
        sent = 6 * model.layers * collective_seconds("all_reduce", payload, gpus, link)
        return float(step_flops(model, BATCH_2019, "full")) / (gpus * BASELINE_2019) + sent

    return seconds


def full_seconds(machine: Machine) -> Seconds:
    """The model of ``steps.step``: matmuls by their sizes, element-wise work, host, TP's collectives, optimizer."""

    def seconds(model: Transformer, gpus: int) -> float:
        return float(step(model, machine, Strategy(gpus, recompute="full"), BATCH_2019).total)

    return seconds


@cache
def fitted_bandwidth() -> float:
    """Bytes a second, one-way, with which the plain model misses weak scaling least (the squares of its errors)."""

    def squares(bandwidth: float) -> float:
        return sum(row.error**2 for row in _weak(plain_seconds(bandwidth)))

    low, high = 10e9, 300e9
    while high - low > 1e6:
        third = (high - low) / 3
        low, high = (low, high - third) if squares(low + third) < squares(high - third) else (low + third, high)
    return (low + high) / 2


@cache
def calibrated(host: float) -> Machine:
    """A DGX-2H on which the 1.2B model runs at the 39 TFLOP/s that were measured: what ``sustained`` makes up for."""
    model = MEGATRON_2019[0].model
    wanted = float(step_flops(model, BATCH_2019, "full")) / BASELINE_2019

    def machine(sustained: float) -> Machine:
        return DGX_2H._replace(sustained=sustained, host=host)

    return machine(_root(lambda share: wanted - full_seconds(machine(share))(model, 1), 0.05, 2))


@cache
def fitted_host() -> float:
    """Seconds a layer that no degree divides, fitted to one figure of strong scaling, 1.64 on 2 GPUs, and no other."""

    def missing(host: float) -> float:
        return STRONG_2019[2] - _speed(full_seconds(calibrated(host)), 2)

    return _root(missing, 0.0, 0.02)


def _root(rising: Callable[[float], float], low: float, high: float) -> float:
    """Where a function that rises passes 0, by bisection."""
    for _step in range(30):
        middle = (low + high) / 2
        low, high = (middle, high) if rising(middle) < 0 else (low, middle)
    return (low + high) / 2


def _speed(seconds: Seconds, gpus: int) -> float:
    model = MEGATRON_2019[0].model
    return seconds(model, 1) / seconds(model, gpus)


def _efficiency(seconds: float, model: Transformer, gpus: int) -> float:
    return 100 * float(step_flops(model, BATCH_2019, "full")) / (gpus * BASELINE_2019 * seconds)


def _weak(seconds: Seconds) -> tuple[Row, ...]:
    return tuple(
        Row(_on(run.size, run.gpus), run.tensor, _efficiency(seconds(run.model, run.gpus), run.model, run.gpus))
        for run in MEGATRON_2019
    )


def _variants() -> tuple[tuple[str, Seconds], ...]:
    bandwidth, host = fitted_bandwidth(), fitted_host()
    fitted = _("plain, link fitted to weak scaling: {bandwidth:.0f} GB/s").format(bandwidth=bandwidth / GB)
    waiting = _("and host fitted to strong scaling on 2 GPUs: {host:.1f} ms a layer").format(host=1e3 * host)
    return (
        (_("plain, 150 GB/s one-way"), plain_seconds(DGX_2H.inside.bandwidth)),
        (fitted, plain_seconds(bandwidth)),
        (_("with small matmuls and undivided work, 150 GB/s"), full_seconds(calibrated(0.0))),
        (waiting, full_seconds(calibrated(host))),
    )


def weak_scaling() -> list[Comparison]:
    """Return Megatron-LM's weak scaling with TP (figure 5), beside one model after the other; %, errors in points.

    The plain model has no fitted parameter, the second one: the link. The third has none again (but ``sustained``,
    which stands for the measured 39 TFLOP/s as in the plain model), and its further terms are counted: matmuls are
    slower when they are small, and LayerNorm, dropout and residual are done by every rank for all rows. The fourth has
    one, the host's time, which was fitted to a figure of strong scaling: here it foretells. That it is a time a layer
    was chosen with these figures in sight: a time a step explains strong scaling as well, and says 98, 90, 83%.
    """
    return [Comparison(title, "%", _weak(seconds)) for title, seconds in _variants()]


def strong_scaling() -> list[Comparison]:
    """Return the 1.2B model's strong scaling (table 8), beside one model after the other; multiples of one GPU's speed.

    A slower link does not explain it, small matmuls and undivided element-wise work explain a part. What is left is
    time that does not shrink with t. In 2019 each layer's checkpoint kept and set the GPUs' random states, which waits
    for the GPU, and each kernel was launched from Python; a year later the same model ran at 62.4 TFLOP/s instead of 39
    on the same GPU by better software alone (https://nv-adlr.github.io/MegatronLMV1), so that 0.77 of its 2.06 seconds
    a step had been the software's. How much of it does not shrink is nowhere printed: it is fitted, to the figure of 2
    GPUs (0.33 s a step); those of 4 and 8 are foretold.
    """
    return [
        Comparison(
            title, "×", tuple(Row(_on("1.2B", t), speed, _speed(seconds, t)) for t, speed in STRONG_2019.items())
        )
        for title, seconds in _variants()
    ]


def weak_scaling_with_data() -> list[Comparison]:
    """Return Megatron-LM's weak scaling with TP and 64 data-parallel groups (figure 5); %, errors in points.

    Nothing is fitted to these figures. The sum of gradients follows backward, as in 2019, or runs behind it; the truth
    of a link shared by 16 GPUs may lie between. Published efficiency falls by 12 points from TP alone where the
    gradients of a rank are largest (2.5B), and by 3 elsewhere, which no term of this model does.
    """
    machine = calibrated(fitted_host())
    titles = (_("gradients after backward"), _("gradients behind backward"))
    found: list[list[Row]] = [[], []]
    for run in MEGATRON_2019:
        spent = step(run.model, machine, Strategy(run.gpus, 64, recompute="full"), BATCH_2019)
        for rows, seconds in zip(found, (spent.total + spent.hidden, spent.total), strict=True):
            efficiency = _efficiency(float(seconds), run.model, run.gpus)
            rows.append(Row(_on(run.size, 64 * run.gpus), run.both, efficiency))
    return [Comparison(title, "%", tuple(rows)) for title, rows in zip(titles, found, strict=True)]


# Narayanan et al. 2021 (arXiv 2104.04473), and Korthikanti et al. 2022 (arXiv 2205.05198)

A100_MEASURED = DGX_A100._replace(inside=Link(NVLINK_STEP, 235 * GB))
"""A DGX A100 on whose NVLink an all-reduce reaches what nccl-tests measured, 235 of 300 GB/s one-way."""


class Pipeline(NamedTuple):
    """Stages of layers that work on micro-batches in turn; ``chunks``, the interleaving, is a stage's pieces."""

    stages: int
    micro_batches: int
    chunks: int


def pipeline_seconds(
    model: Transformer, machine: Machine, strategy: Strategy, micro_batch: int, pipeline: Pipeline
) -> float:
    """Return a step's seconds with a pipeline: (m + (p − 1)/v) micro-batches of the slowest stage, then the rest.

    The slowest stage is the last, which computes the logits as well. The rest is the sum of gradients and the
    optimizer's step. The sends between stages are left out. Bubble: Narayanan et al. 2021, sections 2.2.1 and 2.2.2.
    """
    stages, count, chunks = pipeline
    stage = replace(model, layers=model.layers // stages)
    spent = step(stage, machine, replace(strategy, data=1), micro_batch)
    t = strategy.tensor
    gradients = 2 * (stage.layers * stage.rank_layer_parameters(t) + stage.rank_end_parameters(t))
    summed = group_seconds(machine, "all_reduce", gradients, strategy.data, stride=t)
    one = spent.total - spent.optimizer
    return float((count + (stages - 1) / chunks) * one + summed + spent.optimizer)


class _Narayanan(NamedTuple):
    """A row of table 1; micro-batch and interleaving from Megatron-LM, ``examples/sc21/run_table_1.sh``."""

    size: float
    heads: int
    hidden: int
    layers: int
    tensor: int
    stages: int
    gpus: int
    batch: int
    tflops: int
    micro_batch: int
    chunks: int

    @property
    def model(self) -> Transformer:
        return Transformer(self.hidden, self.heads, self.layers, sequence=2048)


MEGATRON_2021 = (
    _Narayanan(1.7, 24, 2304, 24, 1, 1, 32, 512, 137, 16, 1),
    _Narayanan(3.6, 32, 3072, 30, 2, 1, 64, 512, 138, 16, 1),
    _Narayanan(7.5, 32, 4096, 36, 4, 1, 128, 512, 142, 16, 1),
    _Narayanan(18.4, 48, 6144, 40, 8, 1, 256, 1024, 135, 8, 1),
    _Narayanan(39.1, 64, 8192, 48, 8, 2, 512, 1536, 138, 4, 1),
    _Narayanan(76.1, 80, 10240, 60, 8, 4, 1024, 1792, 140, 2, 3),
    _Narayanan(145.6, 96, 12288, 80, 8, 8, 1536, 2304, 148, 2, 2),
    _Narayanan(310.1, 128, 16384, 96, 8, 16, 1920, 2160, 155, 1, 2),
    _Narayanan(529.6, 128, 20480, 105, 8, 35, 2520, 2520, 163, 1, 3),
    _Narayanan(1008.0, 160, 25600, 128, 8, 64, 3072, 3072, 163, 1, 1),
)


def parameters_2021() -> Comparison:
    """Return the ten parameter counts of the 2021 table, in 10⁹."""
    rows = (Row(f"{run.size:g}B", run.size, float(run.model.parameters) / 1e9) for run in MEGATRON_2021)
    return Comparison(_("parameters, 2021"), "B", tuple(rows))


def throughput_2021() -> Comparison:
    """Return the 2021 table's TFLOP/s of a GPU, full recomputation counted; nothing is fitted."""
    rows = []
    for run in MEGATRON_2021:
        strategy = Strategy(run.tensor, run.gpus // (run.tensor * run.stages), recompute="full")
        pipeline = Pipeline(run.stages, run.batch // (strategy.data * run.micro_batch), run.chunks)
        seconds = pipeline_seconds(run.model, A100_MEASURED, strategy, run.micro_batch, pipeline)
        tflops = float(step_flops(run.model, run.batch, "full")) / (run.gpus * seconds * 1e12)
        rows.append(Row(_on(f"{run.size:g}B", run.gpus), run.tflops, tflops))
    return Comparison(_("a GPU's speed, 2021"), "TFLOP/s", tuple(rows))


MODEL_22B = Transformer(6144, 64, 48, sequence=2048)
LAYER_2022 = (
    (Strategy(8), 7.7, 11.9),
    (Strategy(8, sequence_parallel=True), 7.2, 11.8),
    (Strategy(8, recompute="full"), 7.7, 19.5),
    (Strategy(8, recompute="selective"), 7.7, 13.2),
    (Strategy(8, sequence_parallel=True, recompute="selective"), 7.2, 13.1),
)
"""Table 4: a layer of the 22B model, TP on 8 GPUs, micro-batch 4; ms forward, and backward with recomputation."""


def layers_2022() -> Comparison:
    """Return the sequence-parallel paper's milliseconds of a layer; nothing is fitted."""
    names = {
        "none": _("no recomputation"),
        "selective": _("selective recomputation"),
        "full": _("full recomputation"),
    }
    rows = []
    for strategy, forward, backward in LAYER_2022:
        name = names[strategy.recompute]
        if strategy.sequence_parallel:
            name = _("{name}, sequence parallel").format(name=name)
        phases = [
            1e3 * float(layer_phase(MODEL_22B, A100_MEASURED, strategy, 4, phase).seconds)
            for phase in ("forward", "recompute", "backward")
        ]
        rows.append(Row(_("{name}: forward").format(name=name), forward, phases[0]))
        rows.append(Row(_("{name}: backward").format(name=name), backward, phases[1] + phases[2]))
    return Comparison(_("a layer of 22B on 8 GPUs, 2022"), "ms", tuple(rows))


class _Korthikanti(NamedTuple):
    """A row of tables 3 and 5: seconds of an iteration with full recomputation, and with both techniques instead.

    Batches (4, and one sequence a GPU) and interleaving are from memory of table 3. With them the published seconds
    are 41.7, 51.4, 56.0 and 56.3% of the GPUs' peak, recomputed operations not counted; the paper's abstract prints
    54.2% for the 530B model on eight times as many GPUs.
    """

    size: str
    model: Transformer
    micro_batch: int
    pipeline: Pipeline
    before: float
    after: float


SEQUENCE_PARALLEL_2022 = (
    _Korthikanti("22B", MODEL_22B, 4, Pipeline(1, 1, 1), 1.42, 1.10),
    _Korthikanti("175B", Transformer(12288, 96, 96, 2048), 1, Pipeline(8, 64, 3), 18.13, 13.75),
    _Korthikanti("530B", Transformer(20480, 128, 105, 2048), 1, Pipeline(35, 280, 3), 49.05, 37.83),
    _Korthikanti("1T", Transformer(25600, 160, 128, 2048), 1, Pipeline(64, 512, 1), 94.42, 71.49),
)


def iterations_2022() -> Comparison:
    """Return the sequence-parallel paper's seconds of an iteration; nothing is fitted."""
    ways = (
        (_("full recomputation"), Strategy(8, recompute="full")),
        (_("sequence parallel, selective"), Strategy(8, sequence_parallel=True, recompute="selective")),
    )
    rows = [
        Row(
            f"{run.size}, {name}",
            published,
            pipeline_seconds(run.model, A100_MEASURED, way, run.micro_batch, run.pipeline),
        )
        for run in SEQUENCE_PARALLEL_2022
        for (name, way), published in zip(ways, (run.before, run.after), strict=True)
    ]
    return Comparison(_("an iteration, 2022"), "s", tuple(rows))
