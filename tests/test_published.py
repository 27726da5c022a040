"""The models beside published figures. Errors that are measured here are facts, kept as they are: see each docstring.

`pytest -s -k tables tests/test_published.py` prints every table.
"""

import pytest

from tpviz import published
from tpviz.memory import GB
from tpviz.published import DGX_2H, STRONG_2019, calibrated, fitted_bandwidth, fitted_host

WEAK, STRONG = published.weak_scaling(), published.strong_scaling()
PLAIN, LINK, COUNTED, HOST = range(4)


def has_errors(comparison, *expected):
    """Whether the errors are these, as printed here; machines may differ in the last digit of a fit."""
    digit = 0.1 if comparison.unit in ("%", "TFLOP/s") else 0.01
    return [row.error for row in comparison.rows] == pytest.approx(expected, abs=0.6 * digit)


def test_ten_parameter_counts():
    rows = published.parameters_2021().rows
    assert len(rows) == 10
    assert all(round(row.model, 1) == row.published for row in rows)


def test_zeros_four_figures():
    assert [round(row.model, 1) for row in published.zero_memory().rows] == [120, 31.4, 16.6, 1.9]


def test_weak_scaling_with_nothing_fitted():
    """At most 11 points with the plain model. Counted terms change it by little: what fails is not small matmuls."""
    assert WEAK[PLAIN].worst <= 11
    assert has_errors(WEAK[PLAIN], 0, 2.0, 10.5, 10.0)
    assert has_errors(WEAK[COUNTED], 0, 3.1, 10.1, 8.3)


def test_weak_scaling_with_one_parameter():
    """At most 5 points: with the link fitted to these very figures, and, foretold, with the host's time fitted to one
    figure of strong scaling."""
    assert fitted_bandwidth() == pytest.approx(66 * GB, rel=0.01)
    assert fitted_host() == pytest.approx(8.2e-3, rel=0.01)
    for variant in (LINK, HOST):
        assert WEAK[variant].worst <= 5
    assert has_errors(WEAK[LINK], 0, -1.5, 2.8, -1.5)
    assert has_errors(WEAK[HOST], 0, -1.5, 0.1, -2.8)


def test_strong_scaling_fails_until_there_is_time_that_tp_does_not_divide():
    """The plain model says 6.2 on 8 GPUs, not 2.98; a slower link 4.9, small matmuls 5.2: none explains it. With the
    host's time, fitted to 2 GPUs, 4 and 8 are foretold within 5% (2.41 and 3.12 against 2.34 and 2.98)."""
    assert [round(STRONG[variant].rows[-1].model, 1) for variant in (PLAIN, LINK, COUNTED)] == [6.2, 4.9, 5.2]
    assert has_errors(STRONG[HOST], 0, 0, 0.065, 0.135)
    assert STRONG[HOST].worst_share <= 0.05


def test_fits_give_what_they_were_fitted_to():
    assert STRONG[HOST].rows[1].model == pytest.approx(STRONG_2019[2], abs=1e-3)
    for host in (0.0, fitted_host()):
        machine = calibrated(host)
        assert machine._replace(sustained=DGX_2H.sustained, host=0.0) == DGX_2H
    assert all(comparison.rows[0].model == pytest.approx(100, abs=1e-3) for comparison in WEAK)
    best = sum(row.error**2 for row in WEAK[LINK].rows)
    for factor in (0.98, 1.02):
        rows = published._weak(published.plain_seconds(factor * fitted_bandwidth()))
        assert sum(row.error**2 for row in rows) > best


def test_weak_scaling_with_data_parallelism_is_not_met():
    """Not within 5 points, whether gradients are summed after backward or behind it: 2.5B on 128 GPUs fell by 12 points
    from 64 times fewer, the others by 3 or 4, and no term here does that."""
    after, behind = published.weak_scaling_with_data()
    assert has_errors(after, 0.8, 5.7, -3.7, -10.1)
    assert has_errors(behind, 3.7, 10.2, 2.8, -0.2)


def test_the_table_of_2021():
    """Within 16%, always too fast: an A100's matmuls are taken to reach 80% of their peak, nothing is fitted, and sends
    between stages are left out."""
    table = published.throughput_2021()
    assert has_errors(table, 18.8, 16.1, 9.8, 9.7, 9.6, 22.2, 17.4, 21.2, 21.4, 12.1)
    assert table.worst_share <= 0.16


def test_the_tables_of_sequence_parallelism():
    """A layer within 6%, an iteration within 11%, nothing fitted; and what each technique gains, in sign and size."""
    layers, iterations = published.layers_2022(), published.iterations_2022()
    assert has_errors(layers, -0.34, 0.3, -0.44, -0.52, -0.34, 0.06, -0.34, 0.12, -0.44, -0.7)
    assert layers.worst_share <= 0.062
    assert has_errors(iterations, -0.07, -0.12, -0.94, -1.22, -1.55, -2.53, 0.81, -0.14)
    assert iterations.worst_share <= 0.11
    gains = [
        (before.model / after.model, before.published / after.published)
        for before, after in zip(iterations.rows[::2], iterations.rows[1::2], strict=True)
    ]
    assert all(model == pytest.approx(measured, abs=0.1) for model, measured in gains)


TABLES = [
    "zero_memory",
    "weak_scaling",
    "strong_scaling",
    "weak_scaling_with_data",
    "parameters_2021",
    "throughput_2021",
    "layers_2022",
    "iterations_2022",
]


@pytest.mark.parametrize("name", TABLES)
def test_tables_show_every_error(name):
    found = getattr(published, name)()
    for comparison in found if isinstance(found, list) else [found]:
        table = comparison.table()
        print(f"\n{table.text()}\n")
        assert [row[0] for row in table.rows] == [row.case for row in comparison.rows]
        assert [row[3] for row in table.rows] == [f"{row.error:+.2f}" for row in comparison.rows]
