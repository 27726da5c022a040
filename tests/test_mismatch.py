"""Every way in which ranks can fail to meet ends at once in one error that names each rank, its operation, its line."""

import contextlib
import gc
import threading
import warnings
import weakref

import pytest
import torch

import tpviz
from tpviz import CallSiteWarning, CollectiveMismatch, RankError

X = 100 * torch.arange(12.0).reshape(3, 4) + 1


def kind(comm):
    return comm.all_reduce(X) if comm.rank == 0 else comm.all_gather(X)


def shape(comm):
    return comm.all_reduce(X if comm.rank == 0 else X[:2])


def dtype(comm):
    return comm.all_reduce(X if comm.rank == 0 else X.double())


def reduction(comm):
    return comm.all_reduce(X, op="sum" if comm.rank == 0 else "max")


def root(comm):
    return comm.broadcast(X, src=min(comm.rank, 1))


def dim(comm):
    return comm.reduce_scatter(torch.ones(4, 4), dim=min(comm.rank, 1))


def uneven_shards(comm):
    return comm.all_gather(torch.ones(3, 1 + comm.rank), dim=1)


def group(comm):
    half = comm.split(comm.rank // 2)
    return half.all_reduce(X) if comm.rank == 0 else comm.all_reduce(X)


def returns_early(comm):
    if comm.rank == 0:
        return comm.all_reduce(X)


def send_without_recv(comm):
    if comm.rank == 0:
        comm.send(X, dst=1)


def recv_without_send(comm):
    if comm.rank == 1:
        comm.recv(src=0)


def both_send(comm):
    peer = comm.rank ^ 1
    comm.send(X, dst=peer)
    return comm.recv(src=peer)


def cycle_across_groups(comm):
    left, right = comm.split(0), comm.split(0)
    for one in (left, right) if comm.rank == 0 else (right, left):
        one.barrier()


def gradient_on_one_rank_of_g(comm):
    x = X.clone().requires_grad_(comm.rank == 0)
    return tpviz.reduce_from_region(x, comm)


def gradient_on_one_rank_of_f(comm):
    x, w = X.clone().requires_grad_(comm.rank == 0), torch.ones(4, 2, requires_grad=True)
    (tpviz.copy_to_region(x, comm) @ w).sum().backward()


def crossing(comm):
    def a():
        return comm.all_reduce(X)

    def b():
        return comm.all_reduce(2 * X)

    return (a(), b()) if comm.rank == 0 else (b(), a())


MISMATCHES = [
    kind,
    shape,
    dtype,
    reduction,
    root,
    dim,
    uneven_shards,
    group,
    returns_early,
    send_without_recv,
    recv_without_send,
    both_send,
    cycle_across_groups,
    gradient_on_one_rank_of_g,
    gradient_on_one_rank_of_f,
    crossing,
]


def programs_left():
    return [t for t in threading.enumerate() if t.name == "tpviz rank" and t.is_alive()]


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("program", MISMATCHES, ids=lambda program: program.__name__)
def test_a_mismatch_names_every_rank_and_its_line(program, ranks):
    tpviz.shutdown()
    with pytest.raises(CollectiveMismatch) as caught:
        tpviz.run(program, ranks=ranks)
    text = str(caught.value)
    for rank in range(ranks):
        assert f"rank {rank}: " in text
    assert "test_mismatch.py:" in text
    assert not programs_left()  # after a failure its threads end too
    run = tpviz.run(lambda comm: comm.all_reduce(X), ranks=ranks)
    assert all(torch.equal(output, ranks * X) for output in run.outputs)


@pytest.mark.parametrize(
    ("program", "word"),
    [
        (kind, "kind"),
        (shape, "shape"),
        (dtype, "dtype"),
        (reduction, "op"),
        (root, "src"),
        (dim, "dim"),
        (uneven_shards, "Shard(1)"),
        (gradient_on_one_rank_of_g, "gradient"),
        (crossing, "opposite order"),
        (returns_early, "returned"),
        (both_send, "sendrecv"),
    ],
)
def test_a_mismatch_says_what_differs(program, word):
    with pytest.raises(CollectiveMismatch) as caught:
        tpviz.run(program)
    assert word in str(caught.value)


@pytest.mark.parametrize("first", [0, 1])
def test_a_rank_that_raises_while_others_wait_is_both_errors(first):
    def program(comm):
        if comm.rank == first:
            raise ValueError("no such row")
        return comm.all_reduce(X)

    with pytest.raises(CollectiveMismatch) as mismatch:
        tpviz.run(program)
    with pytest.raises(RankError, match=f"rank {first}: ValueError: no such row") as error:
        tpviz.run(program)
    assert error.value.rank == first
    assert isinstance(error.value.__cause__, ValueError)
    assert f"rank {1 - first}: waits in all_reduce" in str(mismatch.value)


def test_a_rank_that_raises_alone_is_a_rank_error():
    def program(comm):
        if comm.rank == 1:
            1 / 0  # noqa: B018

    with pytest.raises(RankError) as caught:
        tpviz.run(program)
    assert str(caught.value).startswith("rank 1: ZeroDivisionError: division by zero")
    assert not isinstance(caught.value, CollectiveMismatch)


def test_released_ranks_run_their_cleanup_one_after_the_other():
    cleaned = []

    def program(comm):
        try:
            comm.all_reduce(X) if comm.rank < 3 else comm.all_gather(X)
        finally:
            cleaned.append(comm.rank)

    with pytest.raises(CollectiveMismatch):
        tpviz.run(program, ranks=4)
    assert sorted(cleaned) == [0, 1, 2, 3]


def test_a_rank_that_swallows_everything_does_not_hold_the_run():
    def program(comm):
        for _ in range(5):
            with contextlib.suppress(BaseException):
                comm.all_reduce(X) if comm.rank == 0 else comm.barrier()

    with pytest.raises(CollectiveMismatch):
        tpviz.run(program)
    assert tpviz.run(lambda comm: comm.rank).outputs == [0, 1]


def test_a_failed_run_keeps_nothing_alive():
    kept = []

    def program(comm):
        local = torch.ones(1000)
        kept.append(weakref.ref(local))
        returns_early(comm)

    with pytest.raises(CollectiveMismatch):
        tpviz.run(program)
    gc.collect()
    assert [reference() for reference in kept] == [None, None]


def different_lines(comm):
    if comm.rank == 0:
        return comm.all_reduce(X)
    return comm.all_reduce(X)


def test_different_lines_warn_once_with_both_lines_and_in_the_trace():
    with pytest.warns(CallSiteWarning) as caught:
        run = tpviz.run(lambda comm: [different_lines(comm) for _ in range(3)], ranks=4)
    assert len(caught) == 1
    line = different_lines.__code__.co_firstlineno
    for text in (str(caught[0].message), run.trace.warnings[0]):
        assert f"test_mismatch.py:{line + 2}" in text
        assert f"test_mismatch.py:{line + 3}" in text
    assert len(run.trace.warnings) == 1


def test_one_line_does_not_warn():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run = tpviz.run(lambda comm: comm.all_gather(comm.all_reduce(X), dim=0), ranks=4)
    assert run.trace.warnings == ()


@pytest.mark.parametrize(
    ("call", "operator"),
    [
        (lambda comm, x: comm.all_reduce(x), "tpviz.reduce_from_region"),
        (lambda comm, x: comm.all_gather(x), "tpviz.gather_from_region"),
        (lambda comm, x: comm.reduce_scatter(x), "tpviz.reduce_scatter_to_region"),
        (lambda comm, x: comm.broadcast(x), "detach"),
        (lambda comm, x: comm.all_to_all(x, 0, 1), "detach"),
    ],
)
def test_a_plain_collective_refuses_what_requires_grad_and_names_the_operator(call, operator):
    def program(comm):
        return call(comm, torch.ones(4, 4, requires_grad=True))

    with pytest.raises(RankError) as caught:
        tpviz.run(program)
    assert operator in str(caught.value)
    with torch.no_grad():
        tpviz.run(program)


@pytest.mark.parametrize(
    "call",
    [
        lambda comm: comm.all_reduce([1, 2]),
        lambda comm: comm.all_reduce(X, op="product"),
        lambda comm: comm.all_reduce(torch.arange(3), op="mean"),
        lambda comm: comm.all_reduce(torch.ones(3, dtype=torch.bool)),
        lambda comm: comm.all_gather(X, dim=2),
        lambda comm: comm.broadcast(X, src=2),
        lambda comm: comm.send(X, dst=comm.rank),
        lambda comm: comm.all_reduce(X, phase="later"),
        lambda comm: comm.split([1]),
        lambda comm: comm.all_reduce(X.to_sparse()),
    ],
)
def test_bad_arguments_are_the_ranks_own_error(call):
    with pytest.raises(RankError) as caught:
        tpviz.run(call)
    assert isinstance(caught.value.__cause__, TypeError | ValueError)
