"""Fits: from made-up times come the numbers that these were made of, noise and outliers notwithstanding."""

import numpy as np
import pytest

from tpviz.costs import Link, ring_seconds
from tpviz.fitting import Waiting, fit_cuts, fit_line, fit_link, fit_matmuls
from tpviz.machines import LAPTOP
from tpviz.matmuls import matmul_seconds

PAYLOADS = [64, 1024, 3072, 4096, 16384, 65536, 2**18, 2**20, 2**22]
MATMULS = [(m, k, n) for m in (16, 64, 256) for k in (16, 256) for n in (16, 64, 1024)]


def noisy(times, share=0.03):
    return np.asarray(times) * (1 + share * np.random.default_rng(0).standard_normal(len(times)))


def test_a_line_through_noise_and_outliers():
    times = noisy([100e-6 + size / 1e9 for size in PAYLOADS])
    times[[2, 6]] *= 5
    line = fit_line(PAYLOADS, times)
    assert line.start == pytest.approx(100e-6, rel=0.05)
    assert line.slope == pytest.approx(1e-9, rel=0.05)


def test_a_line_has_no_negative_number():
    assert fit_line([1, 2, 3], [3.0, 2.0, 1.0])[:2] == (pytest.approx(2, rel=0.5), 0)
    start, slope, _error = fit_line([1, 2, 3], [1.0, 4.0, 7.0])
    assert start == 0
    assert 1 < slope < 2.5


@pytest.mark.parametrize(("x", "seconds"), [([1], [1.0]), ([1, 2], [1.0]), ([1, 2], [1.0, 0.0]), ([1, 2], [1, np.nan])])
def test_no_line(x, seconds):
    with pytest.raises(ValueError, match="two points or more"):
        fit_line(x, seconds)


def test_a_kink_is_found_and_none_invented():
    assert fit_cuts(PAYLOADS, noisy([100e-6 + size / 1e9 for size in PAYLOADS])) == []
    paths = [100e-6 if size <= 3072 else 300e-6 + size / 1e9 for size in PAYLOADS]
    assert fit_cuts(PAYLOADS, noisy(paths)) == [3]


@pytest.mark.parametrize("ranks", [2, 4])
def test_a_link_comes_back_with_its_waiting(ranks):
    link, waiting = Link(50e-6, 1e9), Waiting(0.2, 1e-3)
    points = [(size, computed) for computed in (0.0, 1e-3, 2e-2) for size in PAYLOADS]
    times = [ring_seconds("all_reduce", size, ranks, link) + waiting.seconds(own) for size, own in points]
    stretches, found = fit_link(*zip(*points, strict=True), noisy(times), ranks)
    assert len(stretches) == 1
    assert stretches[0].link.latency == pytest.approx(50e-6, rel=0.1)
    assert stretches[0].link.bandwidth == pytest.approx(1e9, rel=0.1)
    assert found.share == 0.2
    assert found.longest == pytest.approx(1e-3, rel=0.01)


def test_matmuls_come_back():
    machine = LAPTOP._replace(peak=1e11, sustained=1.0, half=8, memory_bandwidth=1e15, launch=1e-6)
    times = noisy([float(matmul_seconds(*shape, machine)) for shape in MATMULS])
    times[3] *= 4
    peak, half = fit_matmuls(MATMULS, times)
    assert peak == pytest.approx(1e11, rel=0.1)
    assert half == pytest.approx(8, rel=0.3)
