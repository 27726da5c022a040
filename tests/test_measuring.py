"""This machine measured: what is predicted adds up, and what is measured is positive. No time is asserted."""

import math

import pytest
import torch

import tpviz
from benchmarks.cost import HELD_OUT
from tpviz import measuring
from tpviz.costs import Link
from tpviz.fitting import Stretch, Waiting
from tpviz.machines import LAPTOP
from tpviz.measuring import Measured, Size, measure, measure_with, predict, time_steps

SMALL, LARGE = Link(1e-4, 1e9), Link(2e-4, 2e9)
MACHINE = LAPTOP._replace(
    peak=1e9, sustained=1.0, half=0, memory_bandwidth=1e10, streaming=1.0, launch=1e-6, ranks_per_node=2, inside=LARGE
)
MADE_UP = Measured(2, "gloo", MACHINE, (Stretch(4096, SMALL), Stretch(math.inf, LARGE)), Waiting(0.1, 1e-3), 0.0)


def test_one_rank_by_hand():
    spent = predict(MADE_UP, Size(10, 20, 40), 1)
    assert spent.matmuls == pytest.approx(6 * (1e-6 + 2 * 10 * 20 * 40 / 1e9), rel=1e-12)
    assert spent.elementwise == pytest.approx(2e-6 + 5 * 10 * 40 * 4 / 1e10, rel=1e-12)
    assert spent.tensor_parallel == 0


@pytest.mark.parametrize(("rows", "link"), [(10, SMALL), (100, LARGE)])
def test_two_ranks_by_hand(rows, link):
    spent = predict(MADE_UP, Size(rows, 20, 40))
    computed = 6 * (1e-6 + 2 * rows * 20 * 20 / 1e9) + 2e-6 + 5 * rows * 20 * 4 / 1e10
    assert spent.matmuls + spent.elementwise == pytest.approx(computed, rel=1e-12)
    sent = 2 * link.latency + rows * 20 * 4 / link.bandwidth
    assert spent.tensor_parallel == pytest.approx(2 * (sent + min(1e-3, 0.05 * computed)), rel=1e-12)


def test_waiting_ends_somewhere():
    assert Waiting(0.5, 1e-3).seconds(1.0) == 1e-3
    assert Waiting(0.5, 1e-3).seconds(1e-3) == 5e-4


def test_the_table_says_what_was_fitted():
    text = MADE_UP.table().text()
    assert "α, AllReduce (to 4 KiB)" in text
    assert "100 µs" in text
    assert "2.00 GB/s" in text


def test_what_is_held_out_is_not_timed_by_itself():
    timed = measuring.TIMED["gloo"]
    shapes = {tuple(sorted(shape)) for shape in timed.matmuls}
    assert len(HELD_OUT) >= 12
    assert len(set(HELD_OUT)) == len(HELD_OUT)
    for size in HELD_OUT:
        assert size.rows * size.width * timed.dtype.itemsize not in timed.payloads
        for ranks in (1, 2):
            assert tuple(sorted((size.rows, size.width, size.hidden // ranks))) not in shapes


def test_a_step_is_what_it_says():
    """Its two AllReduces, forward and backward, of X's size; alone it sends nothing."""

    def program(comm, count):
        ((_key, alone), (_other, joined)) = measuring._steps(comm, torch.float32, [Size(3, 4, 8)])
        (alone if count == 1 else joined)()

    trace = tpviz.run(program, args=(2,)).trace
    assert [(event.kind, event.phase, event.payload_bytes) for event in trace] == [
        ("all_reduce", "forward", 48),
        ("all_reduce", "backward", 48),
    ]
    assert len(tpviz.run(program, args=(1,)).trace) == 0


def test_real_ranks_are_measured():
    told = []
    size = Size(24, 40, 80)
    measured, times = measure_with([size], seconds=0.1, progress=lambda spent, of: told.append((spent, of)))
    assert len(told) >= 2
    assert told[-1] == (0.1, 0.1)
    numbers = [measured.machine.peak, measured.machine.half, measured.machine.stream, measured.machine.launch]
    numbers += [number for stretch in measured.stretches for number in stretch.link]
    numbers += [*times.values(), predict(measured, size).seconds, predict(measured, size, 1).seconds]
    assert all(math.isfinite(number) and number >= 0 for number in numbers)
    assert all(number > 0 for number in times.values())
    assert measured.stretches[0].link.latency > 0
    assert measured.stretches[-1].up_to == math.inf
    assert set(times) == {(size, 1), (size, 2)}


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: measure(backend="simulated"), "expected one of 'gloo', 'nccl'"),
        (lambda: measure(ranks=1), "expected 2 or more"),
        (lambda: predict(MADE_UP, Size(3, 4, 8), 4), "expected 1 or 2"),
        (
            lambda: predict(MADE_UP, Size(3, 4, 7)),
            "3×4×7: expected positive sizes, and hidden to be a multiple of the 2",
        ),
        (lambda: time_steps([Size(0, 4, 8)]), "expected positive sizes"),
    ],
)
def test_what_cannot_be_measured(call, said):
    with pytest.raises(ValueError, match=said):
        call()
