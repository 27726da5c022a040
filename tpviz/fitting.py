"""Fits: the parameters of the cost model that come nearest to times that were taken (costs).

Every error counts as a share of the time, so that microseconds count as much as milliseconds; and sums of errors are
made small rather than of their squares, so that a few times that something else disturbed count little.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations, pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tpviz.costs import Link, ring_steps
from tpviz.i18n import _
from tpviz.trace import wire_factor

_ITERATIONS = 25
_SMALLEST = 1e-3
"""A share of the time; smaller errors are no smaller in weight."""
_FEWEST = 3
"""Payloads on a stretch: any two lie on a line."""
_MOST = 3
_GAIN, _GOOD = 0.7, 0.04
"""One more line must bring the error below this share of what it was, since two lines always fit better than one; and
where the mean error is as small as noise there is nothing to mend."""
_HALVES = np.geomspace(0.5, 256, 50)
_LONGEST = np.geomspace(1e-5, 1e-2, 13)
_SHARES = (0.05, 0.1, 0.2, 0.4, 0.8)


class Line(NamedTuple):
    """``start + slope`` · x, and the sum of its errors as shares of the times."""

    start: float
    slope: float
    error: float


class Stretch(NamedTuple):
    """A link as it is for payloads up to so many bytes: larger ones take another path, or leave a cache."""

    up_to: float
    link: Link


class Waiting(NamedTuple):
    """What a collective takes longer because its ranks computed before: none of them is ready at the same moment."""

    share: float
    """Of the seconds computed since the last collective."""
    longest: float
    """Seconds, however long they computed."""

    def seconds(self, computed: float) -> float:
        """Return what is waited after so many seconds of computing."""
        return min(self.longest, self.share * computed)


def fit_line(x: ArrayLike, seconds: ArrayLike, of: ArrayLike | None = None) -> Line:
    """Return the line with the least sum of relative errors; neither of its numbers is negative.

    ``of`` are the times that errors are shares of, if not ``seconds``. Source: iteratively reweighted least squares
    (Schlossmacher 1973, "An Iterative Technique for Absolute Deviations Curve Fitting").
    """
    along, times = np.asarray(x, float), np.asarray(seconds, float)
    whole = times if of is None else np.asarray(of, float)
    if len(along) < 2 or len(along) != len(times) or not np.isfinite(times).all() or (whole <= 0).any():
        message = _("a line is fitted to two points or more, whose times are positive: got {x} and {seconds}.")
        raise ValueError(message.format(x=along.tolist(), seconds=times.tolist()))
    weights = 1 / whole**2
    start = slope = 0.0
    for _round in range(_ITERATIONS):
        start, slope = _weighted(along, times, weights)
        errors = np.abs(start + slope * along - times) / whole
        weights = 1 / whole**2 / np.maximum(errors, _SMALLEST)
    return Line(start, slope, float(np.sum(np.abs(start + slope * along - times) / whole)))


def _weighted(x: NDArray[np.float64], y: NDArray[np.float64], weights: NDArray[np.float64]) -> tuple[float, float]:
    """Weighted least squares, at the edge of what is allowed where a number would be negative."""
    middle_x, middle_y = np.average(x, weights=weights), np.average(y, weights=weights)
    spread = float(np.sum(weights * (x - middle_x) ** 2))
    slope = float(np.sum(weights * (x - middle_x) * (y - middle_y))) / spread if spread else 0.0
    if slope <= 0:
        return max(float(middle_y), 0.0), 0.0
    start = float(middle_y - slope * middle_x)
    if start >= 0:
        return start, slope
    return 0.0, max(float(np.sum(weights * x * y) / np.sum(weights * x * x)), 0.0)


def fit_cuts(payloads: Sequence[float], seconds: Sequence[float]) -> list[int]:
    """Return where the line has kinks: payloads, in rising order, from each of which on another line fits."""
    best: tuple[float, list[int]] | None = None
    for lines in range(1, min(_MOST, len(payloads) // _FEWEST) + 1):
        if best is not None and best[0] < _GOOD * len(payloads):
            break
        found = min(_split(payloads, seconds, lines))
        if best is None or found[0] < _GAIN * best[0]:
            best = found
    assert best is not None, "no payloads"
    return best[1]


def _split(payloads: Sequence[float], seconds: Sequence[float], lines: int) -> list[tuple[float, list[int]]]:
    """Every way to cut the payloads, with its error."""
    ways = []
    for cuts in combinations(range(_FEWEST, len(payloads)), lines - 1):
        pieces = list(pairwise([0, *cuts, len(payloads)]))
        if all(end - begin >= _FEWEST for begin, end in pieces):
            errors = (fit_line(payloads[begin:end], seconds[begin:end]).error for begin, end in pieces)
            ways.append((sum(errors), list(cuts)))
    return ways


def fit_link(
    payloads: Sequence[float], computed: Sequence[float], seconds: Sequence[float], ranks: int
) -> tuple[tuple[Stretch, ...], Waiting]:
    """Return α and β of an AllReduce by payload, and what it waits for ranks that computed before.

    ``seconds`` are the AllReduce's alone; ``computed`` what the ranks computed before it, 0 for a part of them. Kinks
    are looked for where nothing was computed; then all is fitted together, and errors are shares of both.
    """
    sizes, before, times = (np.asarray(each, float) for each in (payloads, computed, seconds))
    at_once = [(size, time) for size, own, time in zip(sizes, before, times, strict=True) if own == 0]
    known = sorted(at_once)
    cuts = fit_cuts([size for size, _time in known], [time for _size, time in known])
    ends = [known[cut - 1][0] for cut in cuts] + [float("inf")]
    pieces = [(sizes > begin) & (sizes <= end) for begin, end in pairwise([-1.0, *ends])]
    found: list[tuple[float, Waiting, list[Line]]] = []
    for waiting in [Waiting(0.0, 0.0), *(Waiting(share, longest) for share in _SHARES for longest in _LONGEST)]:
        alone = times - np.minimum(waiting.longest, waiting.share * before)
        lines = [fit_line(sizes[piece], alone[piece], (times + before)[piece]) for piece in pieces]
        found.append((sum(line.error for line in lines), waiting, lines))
    _error, waiting, lines = min(found)
    steps, factor = ring_steps("all_reduce", ranks), wire_factor("all_reduce", ranks)
    # A slope of 0 is a link that is too quick for these payloads to tell how quick.
    links = [Link(line.start / steps, factor / max(line.slope, 1e-15)) for line in lines]
    return tuple(Stretch(end, link) for end, link in zip(ends, links, strict=True)), waiting


def fit_matmuls(shapes: Sequence[tuple[int, int, int]], seconds: Sequence[float]) -> tuple[float, float]:
    """Return the peak (FLOP/s) and ``half`` of ``matmuls.efficiency`` that come nearest to matmuls of m×k by k×n."""
    m, k, n = np.asarray(shapes, float).T
    # For each half, the time is a line over the work that it makes of the arithmetic.
    fits = [(fit_line(2 * (m + half) * (k + half) * (n + half), seconds), half) for half in _HALVES]
    line, half = min(fits, key=lambda fit: fit[0].error)
    return 1 / max(line.slope, 1e-18), float(half)
