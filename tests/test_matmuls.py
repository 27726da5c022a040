"""The roofline by hand, and that what is small is slow."""

import numpy as np
import pytest

from tpviz.machines import DGX_A100
from tpviz.matmuls import efficiency, matmul_seconds

MACHINE = DGX_A100._replace(peak=1e12, memory_bandwidth=1e11, sustained=0.8, half=64, streaming=0.5, launch=1e-6)


def test_half_the_speed_at_half():
    assert efficiency(64, 1e12, 1e12, MACHINE) == pytest.approx(0.4)
    assert efficiency(64, 64, 64, MACHINE) == pytest.approx(0.1)
    assert efficiency(1e12, 1e12, 1e12, MACHINE) == pytest.approx(0.8)


def test_held_up_by_arithmetic():
    # 2 · 512³ FLOP at 1 TFLOP/s · 0.8 · (512/576)³; the matrices' 1.5 MiB at 50 GB/s take a tenth of that.
    seconds = 1e-6 + 2 * 512**3 / (0.8e12 * (8 / 9) ** 3)
    assert matmul_seconds(512, 512, 512, MACHINE) == pytest.approx(seconds, rel=1e-12)
    assert matmul_seconds(512, 512, 512, MACHINE, count=3) - 1e-6 == pytest.approx(3 * (seconds - 1e-6), rel=1e-12)


def test_held_up_by_memory():
    # One row: 2 · 1024² FLOP take 0.2 ms at most, were it not for its 2 bytes · (1024² + 2 · 1024) at 50 GB/s.
    row = MACHINE._replace(half=0)
    assert matmul_seconds(1, 1024, 1024, row) == pytest.approx(1e-6 + 2 * (1024**2 + 2048) / 5e10, rel=1e-12)


@pytest.mark.parametrize("halved", [(4096, 1024, 4096), (4096, 4096, 1024), (1024, 4096, 4096)])
def test_a_quarter_of_the_work_takes_more_than_a_quarter_of_the_time(halved):
    assert matmul_seconds(*halved, DGX_A100) > matmul_seconds(4096, 4096, 4096, DGX_A100) / 4


def test_arrays_take_the_time_of_their_numbers():
    sizes = np.array([1.0, 64.0, 4096.0])
    expected = [matmul_seconds(m, 128, 256, DGX_A100) for m in sizes]
    assert np.array_equal(matmul_seconds(sizes, 128, 256, DGX_A100), expected)
