"""Trains a tiny language model dense and on ranks from one start, and compares the losses of every step.

python examples/train_tiny.py                                    one device; 2 and 4 simulated ranks; 2 processes
torchrun --nproc-per-node 2 examples/train_tiny.py               one device; torchrun's ranks, GPUs where there are
python examples/train_tiny.py --sequence-parallel --chart build/losses.svg

In float64 the losses agree to 1e-9 over 200 steps, or it ends with status 1. In float32 it says how far each way is
from the float64 reference: where ranks are as far as one device is, rounding explains them.
"""

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import torch

from tpviz import charts
from tpviz.charts import Losses
from tpviz.checkpoints import Checkpoint
from tpviz.launched import is_launched, world_size
from tpviz.tables import Table
from tpviz.training import TINY, Recipe, Trained, train, train_dense

TOLERANCE = 1e-9
"""What losses in float64 may differ by."""
TIMES = 4
"""A way's rounding in float32 may be so many times that of one device: the same kind of error, drawn anew."""


class Way(NamedTuple):
    """One way to train; without a backend, PyTorch's own modules on one device."""

    name: str
    ranks: int | None = None
    backend: str = ""


DENSE = Way("one device")
SPEAKS = int(os.environ.get("RANK", 0)) == 0
"""Of torchrun's processes one speaks."""


def ways() -> list[Way]:
    """Return the ways that are compared with one device."""
    if is_launched():
        return [Way(f"torchrun's {world_size()} ranks", None, "auto")]
    return [
        Way("2 simulated ranks", 2, "simulated"),
        Way("4 simulated ranks", 4, "simulated"),
        Way("2 processes", 2, "gloo"),
    ]


def trained(way: Way, recipe: Recipe, steps: int) -> Trained:
    """Train from the recipe's start."""
    progress = None if SPEAKS else lambda _done, _of: None
    if way.backend:
        return train(recipe, steps, way.ranks, way.backend, progress=progress)
    return train_dense(recipe, steps, device="cuda" if torch.cuda.is_available() else "cpu", progress=progress)


def apart(one: list[float], other: list[float]) -> float:
    """Return the largest difference of a step's loss."""
    return max(abs(mine - theirs) for mine, theirs in zip(one, other, strict=True))


def handed_over(recipe: Recipe, steps: int, reference: list[float]) -> float:
    """Train half on 2 ranks, save, load on 4 and go on; return how far the losses are from the reference's."""
    half = steps // 2
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "checkpoint.pt"
        first = train(recipe, half, 2)
        first.checkpoint.save(path)
        second = train(recipe, steps - half, 4, start=Checkpoint.load(path))
    return apart(first.losses + second.losses, reference)


def main() -> int:
    """Train each way in float64 and in float32; print a table; return the status."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--steps", type=int, default=200)
    options.add_argument("--sequence-parallel", action="store_true", help="ranks cut the rows between layers, too")
    options.add_argument("--chart", type=Path, help="write the curves here, as an SVG")
    chosen = options.parse_args()
    config = replace(TINY, sequence_parallel=chosen.sequence_parallel)

    found: dict[tuple[Way, torch.dtype], list[float]] = {}
    rows = []
    for dtype in (torch.float64, torch.float32):
        recipe = Recipe(replace(config, dtype=dtype))
        for way in (DENSE, *ways()):
            begun = time.perf_counter()
            losses = found[way, dtype] = trained(way, recipe, chosen.steps).losses
            seconds = time.perf_counter() - begun
            away = apart(losses, found[DENSE, torch.float64])
            rows.append(
                (
                    way.name,
                    str(dtype).removeprefix("torch."),
                    f"{losses[0]:.4f}",
                    f"{losses[-1]:.4f}",
                    f"{away:.1e}",
                    f"{seconds:.1f} s",
                )
            )
    reference = found[DENSE, torch.float64]
    exact = all(apart(found[way, torch.float64], reference) <= TOLERANCE for way in ways())
    rounding = apart(found[DENSE, torch.float32], reference)
    explained = all(apart(found[way, torch.float32], reference) <= TIMES * rounding for way in ways())
    verdicts = {
        f"float64: every loss within {TOLERANCE:.0e} of one device's": exact,
        f"float32: no way further than {TIMES} times the rounding of one device": explained,
    }
    if not is_launched():
        taken_over = handed_over(Recipe(replace(config, dtype=torch.float64)), chosen.steps, reference)
        verdicts[f"2 ranks, a checkpoint, 4 ranks: within {TOLERANCE:.0e}, too"] = taken_over <= TOLERANCE
    if SPEAKS:
        _tell(chosen.steps, rows, verdicts)
    if SPEAKS and chosen.chart:
        _draw(chosen.chart, found, ways()[0])
    return 0 if all(verdicts.values()) else 1


def _tell(steps: int, rows: Sequence[Sequence[str]], verdicts: dict[str, bool]) -> None:
    headings = ("", "numbers", "first loss", "last loss", "furthest from float64", "took")
    print(f"{steps} steps\n{Table(headings, rows)}\n")
    for sentence, holds in verdicts.items():
        print(f"{sentence}: {'yes' if holds else 'NO'}")


def _draw(path: Path, found: dict[tuple[Way, torch.dtype], list[float]], way: Way) -> None:
    chosen = ((DENSE, torch.float64), (way, torch.float64), (way, torch.float32), (DENSE, torch.float32))
    named = [Losses(f"{way.name}, {str(dtype).removeprefix('torch.')}", found[way, dtype]) for way, dtype in chosen]
    path.write_text(charts.losses(named).svg, encoding="utf-8")
    print(f"\nThe curves are in {path}.")


if __name__ == "__main__":
    sys.exit(main())
