"""Trains a tiny language model, dense or on any ranks, each from the same checkpoint (run).

A training is runs of a few steps, each of which starts from the checkpoint that the last one left. So it can change
from two ranks to four in the middle, and a progress bar needs nothing from the ranks.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.optim import AdamW

from tpviz import corpus
from tpviz.blocks import ParallelTransformer, TransformerConfig
from tpviz.checkpoints import Checkpoint
from tpviz.communicator import Communicator
from tpviz.dense import DenseTransformer
from tpviz.gradients import clip_grad_norm
from tpviz.layers import reduce_replicated_gradients
from tpviz.progress import Report, portions
from tpviz.running import run
from tpviz.trace import Trace

STEPS_A_RUN = 10

TINY = TransformerConfig(
    hidden=64, heads=4, layers=2, vocabulary=corpus.VOCABULARY, sequence=32, init_std=0.1, bias=False
)
"""Small enough for 200 steps in seconds, and large enough to learn some of the text.

Without biases: attention's result does not depend on K's bias. Its gradient is rounding alone, of which Adam makes
steps of full size, so that two equal trainings would end with parameters that differ.
"""


@dataclass(frozen=True)
class Recipe:
    """What is trained, and how: AdamW on windows of the text, gradients clipped."""

    config: TransformerConfig = field(default_factory=lambda: TINY)
    windows: int = 8
    """Pieces of the text, of ``config.sequence`` characters, in a step."""
    learning_rate: float = 3e-3
    max_norm: float = 1.0
    """Gradients are scaled so that their norm is at most this."""
    seed: int = 0
    """Of the start and of the windows."""

    def words(self, step: int) -> tuple[Tensor, Tensor]:
        """Return a step's characters and those that follow them, the same on every rank."""
        return corpus.batch(step, self.config.sequence, self.windows, self.seed)

    def start(self) -> Checkpoint:
        """Return the parameters that every way of training starts from; torch's own stream is left as it is.

        They are drawn in float32 whatever the configuration's dtype, so that a float64 training starts from the same.
        """
        with torch.random.fork_rng():
            torch.manual_seed(self.seed)
            model = DenseTransformer(replace(self.config, dtype=torch.float32))
        return Checkpoint(0, model.to(self.config.dtype).state_dict(), {})


class Trained(NamedTuple):
    """What a training leaves."""

    losses: list[float]
    """The loss of each step, before it."""
    norms: list[float]
    """The gradients' norm of each step, before they are clipped."""
    checkpoint: Checkpoint
    trace: Trace | None = None
    """Of the first step's run; None without ranks."""


def train_dense(
    recipe: Recipe,
    steps: int,
    start: Checkpoint | None = None,
    device: torch.device | str = "cpu",
    progress: Report | None = None,
) -> Trained:
    """Train PyTorch's own modules on one device, from ``start`` (the recipe's by default)."""

    def some(checkpoint: Checkpoint, count: int) -> Trained:
        model = DenseTransformer(recipe.config, device)
        clip = lambda: nn.utils.clip_grad_norm_(model.parameters(), recipe.max_norm)  # noqa: E731
        return _steps(recipe, model, clip, checkpoint, count, device)

    return _in_runs(some, start or recipe.start(), steps, progress)


def train(
    recipe: Recipe,
    steps: int,
    ranks: int | None = None,
    backend: str = "simulated",
    start: Checkpoint | None = None,
    progress: Report | None = None,
) -> Trained:
    """Train on ranks, from ``start`` (the recipe's by default). ``ranks`` and ``backend`` are ``run``'s.

    ``progress(done, of)`` is called after every few steps; without it a notebook shows a bar while it trains.
    """

    def some(checkpoint: Checkpoint, count: int) -> Trained:
        done = run(train_on_rank, ranks, backend, (recipe, checkpoint, count))
        # A launched process has its own rank's output only.
        mine: Trained = next(output for output in done.outputs if output is not None)
        return mine._replace(trace=done.trace)

    return _in_runs(some, start or recipe.start(), steps, progress)


def train_on_rank(comm: Communicator, recipe: Recipe, start: Checkpoint, steps: int) -> Trained:
    """Train what one rank trains, as a rank program: its part of the model and of the optimizer's state."""
    model = ParallelTransformer(recipe.config, comm)

    def clip() -> Tensor:
        reduce_replicated_gradients(model, comm)
        return clip_grad_norm(model, comm, recipe.max_norm)

    return _steps(recipe, model, clip, start, steps, comm.device)


def complete(recipe: Recipe, checkpoint: Checkpoint, words: str, length: int) -> str:
    """Return ``words`` and ``length`` characters more, each the likeliest after those before it."""
    model = DenseTransformer(recipe.config)
    model.load_state_dict(checkpoint.parameters)
    numbers = corpus.encode(words)
    with torch.no_grad():
        for _more in range(length):
            logits = model(numbers[-recipe.config.sequence :].unsqueeze(1))[-1, 0]
            likeliest = logits[: len(corpus.characters())].argmax()
            numbers = torch.cat([numbers, likeliest.unsqueeze(0)])
    return corpus.decode(numbers)


def _steps(
    recipe: Recipe,
    model: nn.Module,
    clip: Callable[[], Tensor],
    start: Checkpoint,
    steps: int,
    device: torch.device | str,
) -> Trained:
    """Make some steps; ``clip`` completes the gradients, clips them and returns their norm."""
    optimizer = AdamW(model.parameters(), lr=recipe.learning_rate)
    start.load_into(model, optimizer)
    losses, norms = [], []
    for step in range(start.step, start.step + steps):
        optimizer.zero_grad()
        loss = model.loss(*(each.to(device) for each in recipe.words(step)))  # type: ignore[operator]
        loss.backward()
        norms.append(clip())
        losses.append(loss.detach())
        optimizer.step()
    found, sizes = torch.stack(losses).tolist(), torch.stack(norms).tolist()
    return Trained(found, sizes, Checkpoint.gathered(start.step + steps, model, optimizer))


def _in_runs(
    some: Callable[[Checkpoint, int], Trained], start: Checkpoint, steps: int, progress: Report | None
) -> Trained:
    found = Trained([], [], start)
    for count in portions(steps, STEPS_A_RUN, progress):
        done = some(found.checkpoint, count)
        found = Trained(
            found.losses + done.losses, found.norms + done.norms, done.checkpoint, found.trace or done.trace
        )  # fmt: skip
    return found
