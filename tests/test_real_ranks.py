"""Real ranks, processes that use gloo: the same outputs and the same trace as simulated ranks, to the bit."""

import contextlib
import time

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from hypothesis import HealthCheck, given, settings
from test_mismatch import MISMATCHES
from test_random_programs import OPERATORS, Program, programs, run_on_ranks

import tpviz
from tpviz import wire
from tpviz.example import W1, W2, X, dY4
from tpviz.layers import ColumnParallelLinear, RowParallelLinear
from tpviz.processes import _Member
from tpviz.standing import PATIENCE

RANKS = (4, 1, 2, 3)  # the largest first: processes are kept
LARGE = wire.SLOT_BYTES  # entries: more than a slot has room for
FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
OTHERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool, torch.complex64)


def same(mine, its):
    if isinstance(mine, torch.Tensor):
        return mine.dtype == its.dtype and torch.equal(mine, its)
    if isinstance(mine, (tuple, list)):
        return len(mine) == len(its) and all(map(same, mine, its))
    return mine == its


def both(program, ranks=2, args=()):
    simulated = tpviz.run(program, ranks=ranks, args=args)
    real = tpviz.run(program, ranks=ranks, args=args, backend="gloo")
    assert same(real.outputs, simulated.outputs)
    assert list(real.trace) == list(simulated.trace)
    return real


def numbers(rank, *shape, dtype=torch.float32):
    """Return small integers that no other rank has, so that float16 adds them exactly."""
    size = torch.Size(shape).numel()
    return ((torch.arange(size) * 7 + 3 * rank) % 13 - 6).reshape(shape).to(dtype)


@pytest.mark.parametrize("ranks", RANKS)
def test_the_mlp(ranks):
    def program(comm):
        x = X.clone().requires_grad_()
        w1, w2 = tpviz.shard(W1, 1, comm).requires_grad_(), tpviz.shard(W2, 0, comm).requires_grad_()
        z = tpviz.reduce_from_region(torch.relu(tpviz.copy_to_region(x, comm) @ w1) @ w2, comm)
        z.backward(dY4[:3, :4])
        return z, x.grad, w1.grad, w2.grad

    run = both(program, ranks)
    assert run.backend == "gloo"
    assert [event.phase for event in run.trace] == ["forward", "backward"]
    assert f"({run.backend})" in repr(run)


def shift(comm):
    return comm.sendrecv(X, (comm.rank + 1) % comm.world_size, (comm.rank - 1) % comm.world_size)


def pass_to_rank_1(comm):
    return comm.send(X, dst=1) if comm.rank == 0 else comm.recv(src=0) if comm.rank == 1 else None


def give_to_all(comm):
    return comm.all_reduce(X)


@pytest.mark.parametrize("late", [0, 1])
@pytest.mark.parametrize("call", [shift, pass_to_rank_1, give_to_all])
def test_a_rank_that_computes_for_longer_than_the_others_wait_between_two_looks_is_waited_for(call, late):
    def program(comm):
        first = call(comm)
        if comm.rank == late:
            time.sleep(3 * PATIENCE.total_seconds())
        return first, call(comm), call(comm)

    both(program, 3)


@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize("columns", [3, LARGE + 1])
def test_every_collective_small_and_large_even_and_uneven(columns, ranks):
    def program(comm):
        x = numbers(comm.rank, 3, columns)
        own = tpviz.shard(numbers(0, 3, columns), 1, comm)
        found = [comm.all_reduce(x, op) for op in ("sum", "mean", "max", "min")]
        found += [comm.reduce_scatter(x, 1), comm.reduce_scatter(x, 0, "max"), comm.all_gather(own, 1)]
        found += [comm.all_gather(x, 0), comm.broadcast(x, comm.world_size - 1)]
        found.append(comm.all_to_all(own, split_dim=0, concat_dim=1))
        comm.barrier()
        if comm.world_size > 1:
            found.append(comm.sendrecv(x, (comm.rank + 1) % comm.world_size, (comm.rank - 1) % comm.world_size))
            if comm.rank == 0:
                comm.send(x.T, dst=1)
            elif comm.rank == 1:
                found.append(comm.recv(src=0))
        return found, x

    both(program, ranks)


@pytest.mark.parametrize("dtype", [*FLOATS, *OTHERS], ids=str)
@pytest.mark.parametrize("columns", [3, 80_000])
def test_every_dtype(dtype, columns):
    ops = ["sum"] if dtype != torch.bool else []
    ops += ["max", "min"] if dtype != torch.complex64 else []
    ops += ["mean"] if dtype in FLOATS else []

    def program(comm):
        x = numbers(comm.rank, 2, columns, dtype=dtype)
        found = [comm.all_reduce(x, op) for op in ops] + [comm.reduce_scatter(x, op=op) for op in ops]
        return (
            *found,
            comm.all_gather(x),
            comm.broadcast(x),
            comm.all_to_all(x, 0, 1),
            comm.sendrecv(x, 1 - comm.rank, 1 - comm.rank),
        )

    both(program)


@pytest.mark.parametrize("shape", [(), (0,), (0, 4), (2, 1, 3)])
def test_odd_shapes(shape):
    both(lambda comm: (comm.all_reduce(numbers(comm.rank, *shape)), comm.broadcast(numbers(comm.rank, *shape))))


def test_empty_shards_and_shapes_that_differ():
    def program(comm):
        return comm.all_gather(tpviz.shard(torch.arange(12.0).reshape(2, 6), 1, comm), 1)

    both(program, 4)


@pytest.mark.parametrize("size", [3, 2 * LARGE])
def test_rows_and_columns_of_a_mesh(size):
    def program(comm):
        row, column = comm.split(comm.rank // 2), comm.split(("column", comm.rank % 2))
        x = numbers(comm.rank, size)
        again = row.split("all")  # of the same ranks as row
        return (
            row.all_reduce(x),
            column.all_gather(x),
            again.all_reduce(2 * x),
            row.sendrecv(x, 1 - row.rank, 1 - row.rank),
        )

    run = both(program, 4)
    assert {event.ranks for event in run.trace if event.kind != "send"} == {(0, 1), (2, 3), (0, 2), (1, 3)}


def test_layers_and_double_backward():
    def program(comm):
        torch.manual_seed(3)
        column = ColumnParallelLinear(4, 8, comm, dtype=torch.float64)
        row = RowParallelLinear(8, 4, comm, dtype=torch.float64)
        x = X.double().requires_grad_()
        (dx,) = torch.autograd.grad(row(torch.relu(column(x))).square().sum(), x, create_graph=True)
        dx.square().sum().backward()
        return dx, x.grad, *(parameter.grad for parameter in [*column.parameters(), *row.parameters()])

    both(program)


def test_what_a_functional_collective_returns_is_waited_for():
    def program(comm):
        big = functional.all_reduce(torch.ones(300, 400), "sum", dist.group.WORLD)
        return {"big": big, "in a tuple": (functional.all_reduce(X * (comm.rank + 1), "sum", dist.group.WORLD),)}

    for output in tpviz.run(program, ranks=2, backend="gloo").outputs:
        assert type(output["big"]) is torch.Tensor
        assert torch.equal(output["big"], torch.full((300, 400), 2.0))
        assert torch.equal(output["in a tuple"][0], 3 * X)


@pytest.mark.parametrize("ranks", [2, 3])
def test_random_programs(ranks, monkeypatch):
    @settings(max_examples=60, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
    @given(program=programs())
    def check(program: Program):
        program = program._replace(ranks=ranks)
        simulated = run_on_ranks(program, OPERATORS)
        with monkeypatch.context() as patch:
            patch.setattr(tpviz, "run", lambda *args, run=tpviz.run, **options: run(*args, backend="gloo", **options))
            real = run_on_ranks(program, OPERATORS)
        assert same(real[0], simulated[0])
        assert list(real[1]) == list(simulated[1])

    check()


def test_programs_find_what_a_notebook_gives_them():
    offset = torch.tensor([10.0])

    class Scale(torch.nn.Module):  # of no importable module, as what a cell defines
        def forward(self, x):
            return 3 * x + offset

    scale = Scale()
    run = both(lambda comm, y: (comm.all_reduce(scale(X) + y), Scale), args=(torch.ones(4),))
    assert run.outputs[0][1] is Scale


def test_random_streams_and_modes():
    torch.manual_seed(11)
    state = torch.get_rng_state()

    def program(comm):
        mine = torch.rand(2)
        torch.manual_seed(comm.rank)
        return mine, torch.rand(2), torch.is_grad_enabled(), torch.is_inference_mode_enabled(), torch.ones(2) @ X[:2]

    both(program)
    with torch.no_grad():
        both(program)
    with torch.inference_mode():
        both(program)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert both(program).outputs[0][4].dtype == torch.bfloat16
    assert torch.equal(torch.get_rng_state(), state)


TABLE = torch.zeros(2)


def test_what_a_run_writes_in_place_the_next_one_does_not_see():
    def program(comm):
        global TABLE
        TABLE += 1 + comm.rank
        tpviz.example.W.add_(1)
        return TABLE, tpviz.example.W[0, 0]

    both(program)
    both(program)
    assert torch.equal(TABLE, torch.zeros(2))


def test_ranks_that_meet_from_different_lines_are_warned_of():
    def program(comm):
        if comm.rank == 0:
            return comm.all_reduce(X)
        return comm.all_reduce(X)

    for backend in ("simulated", "gloo"):
        with pytest.warns(tpviz.CallSiteWarning) as caught:
            run = tpviz.run(program, backend=backend)
        assert len(run.trace.warnings) == len(caught) == 1
    assert "rank 0 at" in run.trace.warnings[0]


@pytest.mark.filterwarnings("ignore::tpviz.CallSiteWarning")
@pytest.mark.parametrize("program", MISMATCHES, ids=lambda program: program.__name__)
def test_a_mismatch_is_told_in_the_same_words(program):
    ranks = 4 if program.__name__ == "group" else 2

    def text(backend):
        with pytest.raises(tpviz.CollectiveMismatch) as caught:
            tpviz.run(program, ranks=ranks, backend=backend)
        return str(caught.value)

    assert text("gloo") == text("simulated")


def test_large_tensors_that_disagree_are_found_before_a_number_is_used():
    def program(comm):
        return comm.all_reduce(torch.ones(5, LARGE + comm.rank))

    with pytest.raises(tpviz.CollectiveMismatch, match="shape"):
        tpviz.run(program, backend="gloo")


def test_a_communicator_dies_with_its_run():
    kept = []

    def program(comm):
        kept.append(comm)
        return len(kept)

    def user(comm):
        import threading

        errors = []

        def use():
            try:
                comm.barrier()
            except RuntimeError as error:
                errors.append(str(error))

        thread = threading.Thread(target=use)
        thread.start()
        thread.join()
        return errors

    assert tpviz.run(program, backend="gloo").outputs == [1, 1]
    assert "another thread" in tpviz.run(user, backend="gloo").outputs[0][0]
    with pytest.raises(tpviz.RankError, match="cannot be sent to another process"):
        tpviz.run(lambda comm: comm, backend="gloo")


def test_processes_are_kept_and_ended_on_demand(monkeypatch):
    started = []
    monkeypatch.setattr(
        _Member, "__init__", lambda self, *args, init=_Member.__init__: started.append(init(self, *args))
    )
    tpviz.shutdown()
    for ranks in (2, 1, 3, 2):
        tpviz.run(lambda comm: comm.all_reduce(X), ranks=ranks, backend="gloo")
    assert len(started) == 3
    tpviz.shutdown()
    tpviz.run(lambda comm: comm.all_reduce(X), backend="gloo")
    assert len(started) == 5


def test_a_module_that_was_edited_is_loaded_anew(tmp_path, monkeypatch):
    import importlib
    import os
    import time

    monkeypatch.syspath_prepend(str(tmp_path))
    module = tmp_path / "my_programs_for_ranks.py"
    module.write_text("def program(comm):\n    return 1\n")
    mine = importlib.import_module("my_programs_for_ranks")
    assert tpviz.run(mine.program, backend="gloo").outputs == [1, 1]
    module.write_text("def program(comm):\n    return comm.world_size * 10\n")
    os.utime(module, (time.time() + 2, time.time() + 2))
    importlib.invalidate_caches()
    mine = importlib.reload(mine)
    assert tpviz.run(mine.program, backend="gloo").outputs == [20, 20]


def test_auto_says_which_it_chose():
    run = tpviz.run(lambda comm: comm.world_size, ranks=2, backend="auto")
    gpus = torch.cuda.device_count()
    assert run.backend == ("nccl" if gpus >= 2 else "simulated")
    assert repr(run).startswith(
        "Run on 2 ranks (nccl, as each rank has a GPU)"
        if gpus >= 2
        else f"Run on 2 ranks (simulated, as GPUs are fewer than ranks: {gpus})"
    )


def test_bad_backends():
    with pytest.raises(ValueError, match="'gloo'"):
        tpviz.run(lambda comm: 0, backend="mpi")
    gpus = torch.cuda.device_count()
    with pytest.raises(ValueError, match=f"this machine has {gpus}"):
        tpviz.run(lambda comm: 0, ranks=gpus + 1, backend="nccl")


def test_a_rank_runs_no_real_ranks_of_its_own():
    def program(comm):
        inner = tpviz.run(lambda comm: comm.all_reduce(torch.ones(1)), ranks=3).outputs
        with contextlib.suppress(RuntimeError):
            tpviz.run(lambda comm: 0, backend="gloo")
            return "it did"
        return inner

    assert same(tpviz.run(program, backend="gloo").outputs[0], [torch.tensor([3.0])] * 3)
