"""Conversions: each right in numbers, adjoint backward, and priced as its trace says; DTensor's redistribute agrees."""

import itertools
import re

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.debug import CommDebugMode
from torch.testing._internal.distributed.fake_pg import FakeStore

import tpviz
from tpviz import conversions
from tpviz.chunking import chunk
from tpviz.conversions import ADDENDS, COLUMNS, CONVERSIONS, FLOWS, ROWS, SHARED, WHOLE, conversion
from tpviz.costs import Link, collective_seconds, ring_steps
from tpviz.layouts import Partial, Replicate, Shard, distribute, full
from tpviz.rules import str_of
from tpviz.sharding import shard

PLACEMENTS = (Replicate(), Shard(0), Shard(1), Partial())
RANKS = [1, 2, 3, 4, 8]
# Of 8 and of 3 ranks some have nothing of 5 rows or 6 columns; 8 × 8 is cut evenly.
SHAPES = [(5, 6), (8, 8), (3, 2)]


def name_of(value):
    return f"{value.before} to {value.after}" if isinstance(value, conversions.Conversion) else str(value)


def integers(shape, seed):
    return torch.randint(-9, 10, shape, generator=torch.Generator().manual_seed(seed)).double()


def held(whole, placement, ranks, seed):
    """What the ranks hold; the addends of a partial sum are random."""
    if not isinstance(placement, Partial):
        return distribute(whole, placement, ranks)
    addends = [integers(whole.shape, seed + rank) for rank in range(1, ranks)]
    return [whole - sum(addends), *addends] if addends else [whole]


def converted(each, whole, cotangent, ranks):
    """The run of one conversion, forward and backward, whose ranks return the result and the gradient."""
    parts = held(whole, each.before.value, ranks, seed=100)
    cotangents = held(cotangent, each.after.gradient, ranks, seed=200)

    def program(comm):
        mine = parts[comm.rank].clone().requires_grad_()
        result = each.apply(mine, comm)
        result.backward(cotangents[comm.rank])
        return result.detach(), mine.grad

    return tpviz.run(program, ranks=ranks)


# Numbers and traces


@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize("each", CONVERSIONS.values(), ids=name_of)
def test_a_conversion_changes_the_layout_and_not_the_whole(each, ranks):
    """The function of the whole is the identity, so its adjoint is, too: the gradient is the cotangent, laid anew."""
    for shape in SHAPES:
        whole, cotangent = integers(shape, 1), integers(shape, 2)
        outputs = converted(each, whole, cotangent, ranks).outputs
        assert torch.equal(full([result for result, _gradient in outputs], each.after.value), whole)
        assert torch.equal(full([gradient for _result, gradient in outputs], each.before.gradient), cotangent)


@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize("each", CONVERSIONS.values(), ids=name_of)
def test_the_trace_is_the_one_foretold(each, ranks):
    for shape in SHAPES:
        trace = converted(each, integers(shape, 1), integers(shape, 2), ranks).trace
        came = [(event.phase, event.kind, event.payload_bytes) for event in trace]
        kinds = {"forward": each.forward, "backward": each.backward}
        assert came == [(p, kind, each.payload(p, shape, 8, ranks)) for p, kind in kinds.items() if kind is not None]
        assert tuple(event.kind for event in trace) == each.kinds()
        assert sum(event.wire_bytes for event in trace) == each.wire_bytes(shape, 8, ranks)
        link = Link(3e-6, 7e9)
        seconds = sum(collective_seconds(event.kind, event.payload_bytes, ranks, link) for event in trace)
        assert each.seconds(shape, 8, ranks, link) == pytest.approx(seconds, rel=1e-12)


def test_what_is_not_sent_has_no_payload():
    assert CONVERSIONS[WHOLE, SHARED].payload("forward", (5, 6), 8, 4) == 0
    assert CONVERSIONS[SHARED, ROWS].wire_bytes((5, 6), 8, 4) == 0


@pytest.mark.parametrize(
    ("pair", "forward", "backward", "wire"),
    [
        # 6 × 8 numbers of 4 bytes, 192 in all, on 4 ranks: an all-gather sends 3/4 of them, an all-reduce 2 · 3/4.
        ((WHOLE, SHARED), 0, 192, 288),
        ((ADDENDS, WHOLE), 192, 0, 288),
        ((ADDENDS, SHARED), 192, 192, 576),
        ((ADDENDS, ROWS), 192, 192, 288),
        ((COLUMNS, SHARED), 192, 192, 288),
        ((ROWS, WHOLE), 192, 0, 144),
        ((SHARED, COLUMNS), 0, 0, 0),
        # Rank 0 has 2 of the 6 rows, 64 bytes, and backward 2 of the 8 columns, 48.
        ((ROWS, COLUMNS), 64, 48, 84),
        ((COLUMNS, ROWS), 48, 64, 84),
    ],
)
def test_prices_by_hand(pair, forward, backward, wire):
    each = CONVERSIONS[pair]
    assert each.payload("forward", (6, 8), 4, 4) == forward
    assert each.payload("backward", (6, 8), 4, 4) == backward
    assert each.wire_bytes((6, 8), 4, 4) == wire


def test_there_is_a_conversion_wherever_one_is_of_use():
    missing = {pair for pair in itertools.permutations(FLOWS, 2) if pair not in CONVERSIONS}
    assert missing == {(flow, ADDENDS) for flow in FLOWS if flow != ADDENDS} | {(SHARED, WHOLE)}
    for (before, after), each in CONVERSIONS.items():
        assert (each.before, each.after) == (before, after)
        assert each.why.endswith(".")


# By placements

CLASSIC = {Replicate(): WHOLE, Shard(0): ROWS, Shard(1): COLUMNS, Partial(): ADDENDS}


@pytest.mark.parametrize("consumer", ["replicated", "sharded"])
@pytest.mark.parametrize(("before", "after"), list(itertools.product(PLACEMENTS, repeat=2)))
def test_a_conversion_is_found_by_its_placements(before, after, consumer):
    start, end = CLASSIC[before], CLASSIC[after]
    if end == WHOLE and consumer == "sharded":
        end = SHARED
    if start == end:
        found = conversion(before, after, consumer)
        assert found[:2] == (start, end)
        assert found.kinds() == ()
        assert found.why == "Nothing to do."
    elif end == ADDENDS:
        message = f"{str_of(before)} → Partial is none of the conversions here. It would send nothing: "
        with pytest.raises(ValueError, match=f"^{re.escape(message)}.* add it after their sum"):
            conversion(before, after, consumer)
    else:
        assert conversion(before, after, consumer) is CONVERSIONS[start, end]
        assert consumer == "sharded" or conversion(before, after) is CONVERSIONS[start, end]


@pytest.mark.parametrize("placement", PLACEMENTS, ids=str_of)
def test_nothing_to_do_does_nothing(placement):
    whole, cotangent = integers((5, 6), 1), integers((5, 6), 2)
    run = converted(conversion(placement, placement), whole, cotangent, 2)
    assert len(run.trace) == 0
    assert torch.equal(full([result for result, _gradient in run.outputs], placement), whole)


@pytest.mark.parametrize("before", PLACEMENTS[:3], ids=str_of)
def test_into_addends_there_is_a_way_that_sends_nothing(before):
    """As the refusal says: zeros where a rank has nothing (or should have nothing) make addends of any layout."""
    whole = integers((5, 6), 1)

    def program(comm):
        mine = torch.zeros_like(whole)
        if before == Replicate() and comm.rank == 0:
            mine += whole
        if isinstance(before, Shard):
            begin, length = chunk(whole.shape[before.dim], comm.world_size, comm.rank)
            mine.narrow(before.dim, begin, length).add_(shard(whole, before.dim, comm))
        return mine

    run = tpviz.run(program, ranks=4)
    assert len(run.trace) == 0
    assert torch.equal(full(run.outputs, Partial()), whole)


@pytest.mark.parametrize(
    ("ask", "kind", "message"),
    [
        (
            lambda: conversion(Shard(2), Replicate()),
            TypeError,
            "Shard(dim=2) is no placement of a matrix; expected one",
        ),
        (lambda: conversion(Replicate(), Partial("max")), TypeError, "Partial(max) is no placement of a matrix"),
        (lambda: conversion("Shard(0)", Replicate()), TypeError, "'Shard(0)' is no placement of a matrix"),
        (lambda: conversion(Shard(0), Replicate(), "both"), ValueError, "consumer='both' is unknown: replicated or"),
        (lambda: conversion(Shard(0), Shard(0), "both"), ValueError, "consumer='both' is unknown"),
        (lambda: conversion([Shard(0)], Replicate()), TypeError, "[Shard(dim=0)] is no placement of a matrix"),
        (lambda: conversion(Replicate(), {}), TypeError, "{} is no placement of a matrix"),
        (lambda: conversion(Shard(0), Shard(0), ["both"]), ValueError, "consumer=['both'] is unknown"),
        (lambda: conversion(Replicate(), Partial()), ValueError, "add it after their sum, or on one rank only."),
        (lambda: conversion(Shard(1), Partial()), ValueError, "each rank fills its shard up with zeros."),
    ],
)
def test_wrong_questions(ask, kind, message):
    with pytest.raises(kind, match=re.escape(message)):
        ask()


# DTensor


@pytest.fixture(scope="module")
def mesh():
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    yield init_device_mesh("cpu", (2,))
    dist.destroy_process_group()


# Where DTensor sends something else (before, after, consumer): what it sends, forward and backward, and why.
DIFFERENT = {
    **{
        (Shard(dim), Shard(1 - dim), "replicated"): (
            (["all_gather"], ["all_gather"]),
            "gloo has no all-to-all, so on CPUs DTensor gathers and cuts; on GPUs it sends an all-to-all",
        )
        for dim in (0, 1)
    },
    (Partial(), Replicate(), "sharded"): (
        (["all_reduce"], []),
        "DTensor leaves an addend's gradient a partial sum until somebody needs it whole; here every addend's is whole",
    ),
}
# What neither takes; DTensor makes addends of a whole by itself only, inside of operators, with nothing sent.
REFUSED = "redistributing to Partial is for internal use only"


def as_dtensor(placement, mesh):
    sizes = [2 if placement == Shard(0) else 4, 4 if placement == Shard(1) else 8]
    return DTensor.from_local(torch.ones(sizes), mesh, [placement], run_check=False).detach()


def kinds_of(mode):
    names = {"all_gather_into_tensor": "all_gather", "reduce_scatter_tensor": "reduce_scatter"}
    counts = {str(op).rpartition(".")[2]: count for op, count in mode.get_comm_counts().items()}
    return sorted(names.get(op, op) for op, count in counts.items() for _call in range(count))


def by_dtensor(before, after, consumer, mesh):
    """The collectives that DTensor sends, forward and backward.

    A whole tensor that each rank uses for a share of its own is a local tensor there, whose gradient is said to be
    ``Partial``.
    """
    x = as_dtensor(before, mesh).requires_grad_()
    with CommDebugMode() as forward:
        y = x.redistribute(mesh, [after])
        if consumer == "sharded" and after == Replicate():
            y = y.to_local(grad_placements=[Partial()])
    cotangent = as_dtensor(CLASSIC[after].gradient, mesh) if isinstance(y, DTensor) else torch.ones_like(y)
    with CommDebugMode() as backward:
        torch.autograd.grad(y, [x], cotangent)
    return kinds_of(forward), kinds_of(backward)


@pytest.mark.parametrize("consumer", ["replicated", "sharded"])
@pytest.mark.parametrize(("before", "after"), list(itertools.product(PLACEMENTS, repeat=2)))
def test_dtensor_sends_the_same(before, after, consumer, mesh):
    if after == Partial() and before != after:
        with pytest.raises(RuntimeError, match=REFUSED):
            by_dtensor(before, after, consumer, mesh)
        return
    theirs = by_dtensor(before, after, consumer, mesh)
    found = conversion(before, after, consumer)
    ours = [found.forward] if found.forward else [], [found.backward] if found.backward else []
    case = before, after, "sharded" if after == Replicate() and consumer == "sharded" else "replicated"
    if case in DIFFERENT:
        assert theirs == DIFFERENT[case][0] != ours
    else:
        assert theirs == ours


# Costs

LINK = Link(latency=2e-6, bandwidth=1e9)


@pytest.mark.parametrize(
    ("kind", "ranks", "microseconds"),
    [
        # 8000 bytes take 8 µs at 1 GB/s, and a message 2 µs.
        ("all_reduce", 2, 2 * 1 * 2 + 2 * 8 / 2),
        ("all_reduce", 4, 2 * 3 * 2 + 2 * 8 * 3 / 4),
        ("all_reduce", 8, 2 * 7 * 2 + 2 * 8 * 7 / 8),
        ("all_gather", 2, 1 * 2 + 8 / 2),
        ("all_gather", 4, 3 * 2 + 8 * 3 / 4),
        ("reduce_scatter", 4, 3 * 2 + 8 * 3 / 4),
        ("all_to_all", 4, 3 * 2 + 8 * 3 / 4),
        ("reduce_scatter", 8, 7 * 2 + 8 * 7 / 8),
        ("broadcast", 4, 3 * 2 + 8),
        ("send", 2, 2 + 8),
        ("send", 8, 2 + 8),
        ("barrier", 4, 0),
    ],
)
def test_time_by_hand(kind, ranks, microseconds):
    assert collective_seconds(kind, 8000, ranks, LINK) == pytest.approx(microseconds * 1e-6, rel=1e-12)


@pytest.mark.parametrize("kind", ["all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "send"])
def test_one_rank_takes_no_time_and_no_bytes_only_latency(kind):
    assert collective_seconds(kind, 8000, 1, LINK) == 0
    assert collective_seconds(kind, 0, 4, LINK) == ring_steps(kind, 4) * LINK.latency


@pytest.mark.parametrize("ranks", [2, 3, 8])
def test_an_all_reduce_is_a_reduce_scatter_and_an_all_gather(ranks):
    parts = [collective_seconds(kind, 8000, ranks, LINK) for kind in ("reduce_scatter", "all_gather")]
    assert collective_seconds("all_reduce", 8000, ranks, LINK) == pytest.approx(sum(parts), rel=1e-12)


@pytest.mark.parametrize(("size", "ranks"), [(8, 0), (8, -1), (-1, 2)])
def test_no_ranks_and_negative_sizes_are_refused(size, ranks):
    message = f"ranks={ranks}, payload_bytes={size}: expected at least one rank, and no negative size."
    with pytest.raises(ValueError, match=re.escape(message)):
        collective_seconds("all_reduce", size, ranks, LINK)


# Words


def test_the_table_has_every_conversion():
    found = conversions.table((6, 8), ranks=4)
    assert [row[:2] for row in found.rows] == [(str(each.before), str(each.after)) for each in CONVERSIONS.values()]
    cells = {row[:2]: row[2:] for row in found.rows}
    assert cells["Shard(0)", "Shard(1)"] == ("all_to_all, 64 B", "all_to_all, 48 B")
    assert cells["Replicate, gradient Partial", "Shard(0)"] == ("–", "–")
    assert "time" not in found.headings
    timed = conversions.table((6, 8), torch.float64, 4, Link(1e-6, 1e9))
    # 2 · 3 µs, and 2 · 3/4 of 384 bytes at 1 GB/s.
    assert timed.headings[-1] == "time"
    assert timed.rows[0][2:] == ("–", "all_reduce, 384 B", "576 B", "6.6 µs")


def test_flows_in_words():
    assert [str(flow) for flow in FLOWS] == [
        *("Replicate", "Replicate, gradient Partial", "Shard(0)", "Shard(1)", "Partial"),
    ]
