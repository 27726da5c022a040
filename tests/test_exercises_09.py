"""The exercises of notebook 09: what learners write, right and wrong, and that the answers hold on real ranks."""

import functools
import subprocess
import sys

import pytest
import torch
import torch.distributed as dist
from answers import said_right, said_wrong
from torch.distributed.tensor import Partial, Replicate, Shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel

import tpviz
from tpviz import exercises
from tpviz.exercises import nb09_real_ranks
from tpviz.watching import pretended_ranks

# What is said of values


@pytest.mark.parametrize(
    ("name", "answer", "misconception", "said"),
    [
        ("09-seen", (1, 2), "shared", "threads of one process"),
        ("09-seen", [2, 1.0], "shared, other order", "a list each"),
        ("09-seen", torch.tensor([2, 2]), "both see both", "no collective is called"),
        ("09-seen", [0, 0], "not there", "sent along with the program"),
        ("09-seen", [1, 0], None, "It is not [1, 0]."),
        ("09-seen", 1, None, "An answer of the form […, …] is needed."),
        ("09-servers", [1, 16, 8], "one command", "starts nothing on another machine"),
        ("09-servers", (16, 16, 8), "a command for each process", "eight processes with one command"),
        ("09-servers", [2, 16, 0], "numbered anew", "*local* rank"),
        ("09-servers", [2, 2, 1], "one process for each server", "each server has eight"),
        ("09-servers", [2, 8, 8], "the first server's only", "Two commands"),
        ("09-servers", [2, 16, 9], "counted from 1", "Ranks begin at 0"),
        ("09-servers", [2, 16, 7], "the last of the first server", "the last rank on the first server"),
        ("09-servers", [2, 16, 1], "the server's number", "`--node-rank 1`"),
        ("09-servers", [8, 16, 8], "a command for each GPU", "one command starts a process for each"),
        ("09-servers", [2, 16, 10], None, "It is not [2, 16, 10]."),
        ("09-servers", [2, 16], None, "An answer of the form […, …, …] is needed."),
    ],
)
def test_what_is_said_of_a_value(name, answer, misconception, said):
    found, text = said_wrong(name, answer)
    assert (found, said in text) == (misconception, True), text


@pytest.mark.parametrize(("name", "answer"), [("09-seen", (1.0, 1)), ("09-servers", torch.tensor([2, 16, 8]))])
def test_the_same_value_in_another_form_is_right(name, answer):
    assert said_right(name, answer) == ()


def test_processes_have_a_list_each():
    seen = []

    def look(comm):
        seen.append(comm.rank)
        return len(seen)

    real = tpviz.run(look, ranks=2, backend="gloo").outputs
    assert (real, seen) == (exercises.get("09-seen").reference, [])
    shared = next(each for each in exercises.get("09-seen").misconceptions if each.name == "shared")
    assert tpviz.run(look, ranks=2).outputs == shared.code


# A step in which nobody stays away


def asked_first(comm, w, grad):
    spoilt = comm.all_reduce((~torch.isfinite(grad)).any().float(), op="max")
    return w if spoilt else w - comm.all_reduce(grad, op="mean")


def gathered(comm, w, grad):
    everyones = comm.all_gather(grad[None], dim=0)
    return w - everyones.mean(dim=0) if everyones.isfinite().all() else w


def divided(comm, w, grad):
    mean = comm.all_reduce(grad) / comm.world_size
    return torch.where(mean.isfinite().all(), w - mean, w)


@pytest.mark.parametrize("step", [asked_first, gathered, divided])
def test_a_step_that_all_take_or_none_is_right(step):
    assert said_right("09-step", step) == ()


def returns_early(comm, w, grad):
    if not grad.isfinite().all():
        return w
    return w - comm.all_reduce(grad, op="mean")


def decides_by_its_own(comm, w, grad):
    mean = comm.all_reduce(grad, op="mean")
    return w if grad.isinf().any() else w - mean


def asked_and_stayed_away(comm, w, grad):
    if grad.isinf().any():
        comm.broadcast(w)
    return w - comm.all_reduce(grad, op="mean")


def by_rank_0s(comm, w, grad):
    total = comm.all_reduce(grad, op="mean")
    return w - total if comm.broadcast(grad).isfinite().all() else w


def entry_by_entry(comm, w, grad):
    mean = comm.all_reduce(grad) / comm.world_size
    return w - torch.where(mean.isfinite(), mean, 0)


def if_deciding(is_fit):
    def step(comm, w, grad):
        mean = comm.all_reduce(grad, op="mean")
        return w - mean if is_fit(mean) else w

    return step


@pytest.mark.parametrize(
    ("step", "misconception", "said"),
    [
        (returns_early, "stays away", "that rank skips the collective"),
        (decides_by_its_own, "own check", "copies no more"),
        (lambda comm, w, grad: w - comm.all_reduce(grad) / comm.world_size, "no check", "nobody looks"),
        (lambda comm, w, grad: w - comm.all_reduce(grad.nan_to_num(0, 0, 0), op="mean"), "zeros", "fewer gradients"),
        (lambda comm, w, grad: w.clone(), "never", "No step is ever taken"),
        (lambda comm, w, grad: w - grad.nan_to_num(0, 0, 0), "own step", "nothing is sent"),
        (asked_and_stayed_away, None, "the ranks do not meet"),
        (by_rank_0s, "rank 0's", "rank 0's gradient was finite"),
        (entry_by_entry, "entry by entry", "w must stay whole"),
        (if_deciding(lambda mean: mean.isfinite().any()), "any", "One ∞ is enough to skip"),
        (if_deciding(lambda mean: mean[0].isfinite()), "one entry", "the first entry only"),
        (if_deciding(lambda mean: mean[-1].isfinite()), "any", "although an entry of the mean is ∞"),
        (if_deciding(lambda mean: not mean.isinf().any()), "not infinite", "use `isfinite`"),
        (if_deciding(lambda mean: not mean.isinf().all()), "not infinite", "use `isfinite`"),
        (lambda comm, w, grad: 1 // comm.rank, None, "ZeroDivisionError"),
    ],
)
def test_what_is_said_of_a_step(step, misconception, said):
    found, text = said_wrong("09-step", step)
    assert (found, said in text) == (misconception, True), text


def test_ranks_that_do_not_meet_are_told_so():
    def other_call(comm, w, grad):
        return comm.all_gather(grad) if comm.rank else comm.all_reduce(grad)

    found, text = said_wrong("09-step", other_call)
    assert found is None
    assert "the ranks do not meet" in text


def test_the_step_on_real_ranks():
    exercise = exercises.get("09-step")
    for case in exercise.cases():
        if case.ranks == 2:
            program = functools.partial(held_on, exercise.function)
            real = tpviz.run(program, ranks=2, backend="gloo", args=case.args).outputs
            assert all(map(torch.equal, real, exercise.evaluate(exercise.function, case)))
    with pytest.raises(tpviz.CollectiveMismatch, match="rank 1: has returned"):
        tpviz.run(functools.partial(held_on, returns_early), ranks=2, backend="gloo", args=case_with_infinity())


def held_on(program, comm, w, grads):
    return program(comm, w, grads[comm.rank])


def case_with_infinity():
    return next(
        case.args for case in exercises.get("09-step").cases() if case.ranks == 2 and case.args[1][1].isinf().all()
    )


# A plan


COLUMN, ROW, WHOLE = ColwiseParallel, RowwiseParallel, Replicate()


@pytest.mark.parametrize(
    "plan",
    [
        {"gate": COLUMN(), "up": COLUMN(), "down": ROW()},
        {"down": ROW(), "up": COLUMN(), "gate": COLUMN()},
        {"gate": COLUMN(output_layouts=Shard(1)), "up": COLUMN(input_layouts=WHOLE), "down": ROW(output_layouts=WHOLE)},
    ],
)
def test_the_plan_that_sends_least_is_right_however_it_is_written(plan):
    assert said_right("09-plan", plan) == ()


@pytest.mark.parametrize(
    ("plan", "misconception", "said"),
    [
        (
            {
                "gate": COLUMN(output_layouts=WHOLE),
                "up": COLUMN(output_layouts=WHOLE),
                "down": ROW(input_layouts=WHOLE),
            },
            "as it was",
            "432 bytes of payload are sent, and 144 will do",
        ),
        (
            dict.fromkeys(("gate", "up", "down"), COLUMN(output_layouts=WHOLE)),
            "columns only",
            "432 bytes of payload where 144",
        ),
        (dict.fromkeys(("gate", "up", "down"), COLUMN()), "columns without layouts", "PyTorch refuses it"),
        (
            {"gate": ROW(input_layouts=WHOLE), "up": ROW(input_layouts=WHOLE), "down": COLUMN(output_layouts=WHOLE)},
            "rows first",
            "Rows first leaves partial sums",
        ),
        (
            {"gate": COLUMN(output_layouts=WHOLE), "up": COLUMN(output_layouts=WHOLE), "down": ROW()},
            "only down mended",
            "gate and up still gather",
        ),
        (dict.fromkeys(("gate", "up", "down"), ROW()), "rows without layouts", "gate expects its input cut"),
        ({"gate": ROW(), "up": ROW(), "down": COLUMN()}, "rows without layouts", "x is whole"),
        ({"gate": COLUMN(), "up": COLUMN(), "down": ROW}, None, "needs its brackets: RowwiseParallel()"),
        (
            lambda: {"gate": COLUMN(output_layouts=WHOLE), "up": COLUMN(output_layouts=WHOLE)},
            None,
            "a rank holds 64 numbers of weights, and 48 will do",
        ),
        ({}, "nothing", "holds all 96 numbers"),
        ({"up": COLUMN(), "down": ROW()}, "gate forgotten", "gate leaves all 8 columns"),
        ({"gate": COLUMN(), "down": ROW()}, "up forgotten", "up leaves all 8 columns"),
        (
            {"gate": COLUMN(), "up": COLUMN(output_layouts=WHOLE), "down": ROW()},
            "up forgotten",
            "where gate leaves fewer",
        ),
        (
            {"gate": COLUMN(output_layouts=WHOLE), "up": COLUMN(output_layouts=WHOLE)},
            None,
            "down is missing from your plan",
        ),
        (
            {"gate": COLUMN(), "up": COLUMN(), "down": ROW(output_layouts=Shard(1))},
            None,
            "a rank ends with [3, 2] of Y, and it should have [3, 4]",
        ),
        (
            {"gate": COLUMN(), "up": COLUMN(), "down": ROW(output_layouts=Partial())},
            None,
            "without all_reduce (down, forward) there are partial sums",
        ),
        ({"gate": COLUMN(), "Up": COLUMN(), "down": ROW()}, None, 'no module "Up"; it has gate, up, down.'),
        ({0: COLUMN()}, None, "The model has no module 0"),
        ([COLUMN(), COLUMN(), ROW()], None, "A plan is needed, a dictionary"),
        ({"gate": "columns", "up": COLUMN(), "down": ROW()}, None, "your code ended in TypeError"),
    ],
)
def test_what_is_said_of_a_plan(plan, misconception, said, caplog):
    found, text = said_wrong("09-plan", plan)
    assert (found, said in text) == (misconception, True), text
    assert caplog.records == []


def test_a_plan_with_a_hole_waits():
    assert exercises.check("09-plan", {"gate": ..., "up": COLUMN(), "down": ROW()}).status == "unattempted"


def test_a_plan_is_not_tried_where_torch_distributed_runs():
    with pretended_ranks(2):
        _found, text = said_wrong("09-plan", {})
    assert "destroy_process_group" in text
    assert not dist.is_initialized()


def test_the_solutions_plan_gives_the_dense_numbers_on_real_ranks():
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import parallelize_module

    def program(comm):
        plan = {"gate": COLUMN(), "up": COLUMN(), "down": ROW()}
        model = parallelize_module(nb09_real_ranks._gated(), init_device_mesh("cpu", (2,)), plan)
        return model(tpviz.example.X)

    dense = nb09_real_ranks._gated()(tpviz.example.X)
    assert all(torch.equal(output, dense) for output in tpviz.run(program, ranks=2, backend="gloo").outputs)


def test_the_first_check_does_not_wait_for_dtensor():
    script = (
        "import sys; from tpviz import exercises; exercises.check('09-seen', [1, 1]); exercises.get('09-step').stub; "
        "print('torch.distributed.tensor' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
