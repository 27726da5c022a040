"""The exercises: solutions pass, stubs wait, every misconception gets its own answer, and nothing crashes a check."""

import ast
import html
import itertools
import re
from collections import Counter

import numpy as np
import pytest
import torch
from colours import contrast
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import tpviz
from tools import notebooks
from tpviz import example, exercises
from tpviz.exercises import pattern, values
from tpviz.exercises.judging import judge

IDS = exercises.ids()
MISCONCEPTIONS = [
    pytest.param(name, misconception, id=f"{name}: {misconception.name}")
    for name in IDS
    for misconception in exercises.get(name).misconceptions
]
REMARKS = [
    pytest.param(name, remark, id=f"{name}: {remark.name}") for name in IDS for remark in exercises.get(name).remarks
]


def run_cell(source):
    """What a notebook's cell shows: the value of its last line."""
    *body, last = ast.parse(source).body
    names = {"torch": torch, "tpviz": tpviz, "exercises": exercises}
    exec(compile(ast.Module(body, []), "<cell>", "exec"), names)
    return eval(compile(ast.Expression(last.value), "<cell>", "eval"), names)


# The registry


def test_each_notebook_has_two_to_four_exercises():
    counts = Counter(name.split("-")[0] for name in IDS)
    assert set(counts) == {each.number for each in notebooks.lessons()}
    assert set(counts.values()) <= {2, 3, 4}


def test_an_unknown_exercise_is_named():
    with pytest.raises(LookupError, match=r"no exercise 01-mrege; there are .*01-merge"):
        exercises.get("01-mrege")


@pytest.mark.parametrize("name", IDS)
def test_stub_waits(name):
    feedback = run_cell(exercises.get(name).stub)
    assert feedback.status == "unattempted"
    assert feedback.text == "○ Not attempted yet. Put your answer in place of `...` and run this cell again."
    assert feedback == run_cell(exercises.get(name).stub)


@pytest.mark.parametrize("name", IDS)
def test_solution_is_right(name):
    exercise = exercises.get(name)
    feedback = run_cell(exercise.solution)
    assert feedback.status == "right"
    assert feedback.sentences == (exercise.right,)


@pytest.mark.parametrize("name", IDS)
def test_stub_is_the_solution_but_for_the_hole(name):
    exercise = exercises.get(name)
    stub, solution = exercise.stub.splitlines(), exercise.solution.splitlines()
    hole = [line for line in stub if "..." in line and '"""' not in line]
    assert len(hole) == 1
    at = stub.index(hole[0])
    assert solution[:at] == stub[:at]
    assert solution[at - len(stub) + 1 :] == stub[at + 1 :]
    assert 1 <= len(solution) - len(stub) + 1 <= 4, "the learner writes one to four lines"
    assert "..." not in "".join(line for line in solution if '"""' not in line)
    assert len(solution) <= 15
    assert not any(pattern.HOLE in line for line in stub + solution)


@pytest.mark.parametrize(("name", "misconception"), MISCONCEPTIONS)
def test_misconception_gets_its_own_answer(name, misconception):
    feedback = exercises.check(name, misconception.code)
    assert feedback.status == "wrong"
    assert feedback.misconception == misconception.name
    [sentence] = feedback.sentences
    # The sentence is the misconception's, with every field filled in.
    gaps = re.split(r"\{\w+\}", misconception.answer)
    assert re.fullmatch("(.+)".join(map(re.escape, gaps)), sentence)
    assert "{" not in sentence
    assert exercises.get(name).right not in sentence


@pytest.mark.parametrize("name", IDS)
def test_misconceptions_differ(name):
    misconceptions = exercises.get(name).misconceptions
    assert len(misconceptions) >= 2
    assert len({m.name for m in misconceptions}) == len(misconceptions)


@pytest.mark.parametrize(("name", "remark"), REMARKS)
def test_remarks_are_made_on_right_answers(name, remark):
    exercise = exercises.get(name)
    assert exercises.check(name, remark.code).sentences == (exercise.right, remark.answer)
    assert exercises.check(name, exercise.reference).sentences == (exercise.right,)


@pytest.mark.parametrize("name", IDS)
def test_choices_that_are_wrong_are_all_answered(name):
    exercise = exercises.get(name)
    if type(exercise.reference) is str:
        choices = set(re.findall(r'"([^"]+)"', exercise.ask))
        assert choices == {exercise.reference, *(m.code for m in exercise.misconceptions)}


@pytest.mark.parametrize("name", [name for name in IDS if isinstance(exercises.get(name), pattern.ProgramExercise)])
def test_programs_run_on_2_and_on_4_ranks(name):
    assert {2, 4} <= {case.ranks for case in exercises.get(name).cases()}


# What learners write, beyond the stored answers


@pytest.mark.parametrize(
    "merge",
    [
        lambda shards: torch.hstack(shards),
        lambda shards: torch.stack(shards, dim=1).flatten(1),
        lambda shards: torch.cat([shard.T for shard in shards]).T,
        lambda shards: torch.cat(tuple(shards), -1).requires_grad_(),
        lambda shards: torch.nn.Parameter(torch.cat(shards, 1)),
        torch.hstack,
    ],
)
def test_any_way_to_the_right_value_is_right(merge):
    assert exercises.check("01-merge", merge).status == "right"


@pytest.mark.parametrize(
    "program",
    [
        lambda comm, Xi, Wi, b: comm.all_reduce(Xi @ Wi + (b if comm.rank == 0 else 0)),
        lambda comm, Xi, Wi, b: comm.all_reduce(Xi @ Wi + b * (comm.rank == comm.world_size - 1)),
    ],
)
def test_a_bias_on_one_rank_is_right_without_a_remark(program):
    feedback = exercises.check("02-bias", program)
    assert feedback.status == "right"
    assert len(feedback.sentences) == 1


def dx_with(forward):
    """The program of 04b-f as a learner completes it."""

    def program(comm, X, W, dY):
        X = X.clone().requires_grad_()
        Wi, dYi = tpviz.shard(W, 1, comm), tpviz.shard(dY, 1, comm)
        Yi = forward(comm, X, Wi)
        if not torch.equal(Yi, X @ Wi):  # an assert as pytest rewrites it would say more than the notebook's
            raise AssertionError("forward has changed")
        Yi.backward(dYi)
        return X.grad

    return program


def step_by_optimizer(comm, X, W, dY, lr):
    Xi = tpviz.shard(X, 1, comm)
    Wi = torch.nn.Parameter(tpviz.shard(W, 0, comm))
    (Xi @ Wi).backward(dY)
    torch.optim.SGD([Wi], lr=lr).step()
    return Wi.detach()


def dp_mean_by_hand(comm, X, dY, tp):
    rows_of_x = X.chunk(comm.world_size // tp)[comm.rank // tp]
    rows_of_dy = dY.chunk(comm.world_size // tp)[comm.rank // tp]
    dp_group = comm.split(comm.rank % tp)
    dWi = rows_of_x.T @ rows_of_dy.chunk(tp, dim=1)[comm.rank % tp]
    return dp_group.all_reduce(dWi, phase="gradients") / dp_group.world_size


def derivative_by_autograd(x, w1, w2, w3):
    x = torch.tensor(x, requires_grad=True)
    (x * w1 * x * w2 * x * w3).backward()
    return x.grad.item()


@pytest.mark.parametrize(
    ("name", "answer"),
    [
        ("03-dx", lambda comm, Wi, dYi: comm.all_reduce((Wi @ dYi.T).T)),
        ("03-dw", lambda comm, X, dYi: torch.einsum("bi,bo->io", X, dYi)),
        ("03-dw", lambda comm, X, dYi: tpviz.shard(X.T @ comm.all_gather(dYi), 1, comm)),
        ("04-three-paths", derivative_by_autograd),
        ("04-three-paths", lambda x, w1, w2, w3: 3 * x**2 * w1 * w2 * w3),
        ("04-twice", lambda x, w: 2 * x + w),
        ("04b-f", dx_with(lambda comm, X, Wi: torch.mm(tpviz.copy_to_region(X, comm), Wi))),
        ("04b-g", lambda comm, dY: dY.clone()),
        ("05-dx-row", lambda comm, Wi, dY: comm.all_gather(Wi @ dY.T, dim=0).T),
        ("05-step", step_by_optimizer),
        ("05b-mean", dp_mean_by_hand),
    ],
)
def test_another_way_to_the_right_gradient_is_right_without_a_remark(name, answer):
    assert exercises.check(name, answer).sentences == (exercises.get(name).right,)


@pytest.mark.parametrize(
    ("name", "code", "misconception"),
    [
        # Written for the two ranks of the running example only.
        ("01-merge", lambda shards: shards[0] + shards[1], "sum"),
        ("01-merge", lambda shards: torch.cat(shards, dim=0).reshape(3, 8), "reshaped"),
        ("01-merge", lambda shards: torch.cat((shards[1], shards[0]), dim=1), "swapped"),
        ("01-merge", lambda shards: torch.cat((shards[0], shards[1]), dim=1), "first two"),
        ("01-owner", lambda row, column, columns, n: column % 2 if n == 2 else column % n, "dealt out"),
        ("01-weight", lambda X, weight, rank, n: X @ weight.chunk(n, 1)[rank].T, "dim 1"),
        ("01-weight", lambda X, weight, rank, n: X @ weight.chunk(n, 1)[rank], "dim 1, turned"),
        ("02-part-of-x", lambda comm, X, Wi: comm.all_reduce(X @ Wi), "whole"),
        ("02-part-of-x", lambda comm, X, Wi: comm.all_reduce(X.chunk(comm.world_size, 1)[comm.rank] @ Wi), "blocks"),
        (
            "02-merge",
            lambda comm, Xi, Wi: torch.cat([comm.broadcast(Xi @ Wi), comm.broadcast(Xi @ Wi, 1)], 1),
            "concatenated",
        ),
        # The notebook's own matrices, as a learner finds them there: a rank has only its part of them.
        ("02-merge", lambda comm, Xi, Wi: example.X @ example.W, "all of W"),
        ("02-merge", lambda comm, Xi, Wi: comm.all_reduce(example.X @ example.W) / comm.world_size, "all of W"),
        ("02-bias", lambda comm, Xi, Wi, b: example.X @ example.W + b, "all of W"),
        ("03-dx", lambda comm, Wi, dYi: comm.all_reduce(dYi @ Wi.T) * comm.world_size, "summed twice"),
        ("03-dx", lambda comm, Wi, dYi: comm.all_gather((Wi @ dYi.T).T), "concatenated"),
        ("03-dw", lambda comm, X, dYi: X.T @ comm.all_gather(dYi), "whole"),
        ("04-three-paths", lambda x, w1, w2, w3: x * w2 * x * w3 * w1, "mean"),
        ("04-twice", lambda x, w: x * x + x * w, "multiplied"),
        # Its backward adds, as it should; its forward does too, which only the line below the hole notices.
        ("04b-f", dx_with(lambda comm, X, Wi: tpviz.reduce_from_region(X, comm, "sharded") @ Wi), "forward changed"),
        ("04b-f", dx_with(lambda comm, X, Wi: tpviz.reduce_from_region(X @ Wi, comm)), "forward changed"),
        ("04b-f", dx_with(lambda comm, X, Wi: tpviz.gather_from_region(X @ Wi, comm)), "forward changed"),
        ("04b-g", lambda comm, dY: dY * comm.world_size, "summed"),
        ("05-dx-part", lambda comm, Wi, dY: dY @ Wi.T * comm.world_size, None),
        ("05-dx-row", lambda comm, Wi, dY: (Wi @ dY.T).T, "own part"),
        ("05-step", lambda comm, X, W, dY, lr: W - lr * X.T @ dY, "whole"),
        ("05b-mean", lambda comm, X, dY, tp: comm.all_reduce(X.T @ dY)[:, : dY.shape[1] // tp], None),
        ("00-present", (32, 32.0), "stored"),
        ("00-present", torch.tensor([32, 32]), "stored"),
        ("00-arithmetic", " Column split ", "column split"),
    ],
)
def test_recognised_by_what_it_computes(name, code, misconception):
    feedback = exercises.check(name, code)
    assert feedback.status == "wrong"
    assert feedback.misconception == misconception


@pytest.mark.parametrize(
    ("name", "answer"),
    [
        ("01-predict-messages", 0.0),
        ("00-present", (128, 32)),
        ("00-present", torch.tensor([128.0, 32.0])),
        ("A-reduce-scatter", ((31,), [42])),
        ("A-reduce-scatter", [torch.tensor([31]), torch.tensor([42])]),
        ("00-arithmetic", "Equal"),
        ("A-which", "AllReduce"),
        ("A-which", "all-reduce "),
    ],
)
def test_the_same_value_in_another_form_is_right(name, answer):
    assert exercises.check(name, answer).status == "right"


@pytest.mark.parametrize(
    ("name", "answer", "said"),
    [
        ("01-predict-messages", "0", "A number is needed, without quotes."),
        ("01-predict-messages", False, "A plain number is needed, not False."),
        ("01-predict-messages", None, "A plain number is needed, not None."),
        ("01-predict-messages", [0], "A plain number is needed, not a list of 1."),
        ("01-predict-messages", float("nan"), "It is not nan."),
        ("01-predict-messages", -(10**50), "It is not a very large number."),
        ("00-arithmetic", "nobody", "“nobody” is not one of the choices: "),
        ("00-arithmetic", 2, "One of these words is needed, in quotes: "),
        ("00-present", [128], "An answer of the form […, …] is needed."),
        ("00-present", [True, 64], "An answer of the form […, …] is needed."),
        ("00-present", {128, 64}, "An answer of the form […, …] is needed."),
        ("00-present", ["128", 32], "Numbers are needed, without quotes: […, …]."),
        ("00-present", ["ZeRO-3"], "Numbers are needed, without quotes: […, …]."),
        ("00-present", [127, -3], "It is not [127, −3]."),
        ("00-present", [128, -3], "It is not [128, −3]. The first number is right."),
        ("B-kept", (384, 1, 192, 2), "It is not [384, 1, 192, 2]. The first and third numbers are right."),
        ("B-kept", [384, 288, 1, 96.0], "It is not [384, 288, 1, 96]. The first, second and fourth numbers are right."),
        ("10b-verdict", [1, 1, 1, 0], "It is not [1, 1, 1, 0]. 1 of the 4 numbers is right."),
        ("10-holders", [0, 0, 0, 1], "It is not [0, 0, 0, 1]. 3 of the 4 numbers are right."),
        ("A-reduce-scatter", [[31], [0]], "It is not [[31], [0]]."),
        ("A-reduce-scatter", [10, 12], "An answer of the form [[…], […]] is needed."),
    ],
)
def test_what_is_said_of_a_value(name, answer, said):
    feedback = exercises.check(name, answer)
    assert feedback.status == "wrong"
    assert feedback.sentences[0].startswith(said)
    if not said.endswith(" "):
        assert feedback.sentences == (said,)


def right_merge(shards):
    return torch.cat(shards, dim=1)


class Subclass(torch.Tensor):
    """Says yes to every comparison."""

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        if func in (torch.equal, torch.Tensor.equal):
            return True
        return super().__torch_function__(func, types, args, kwargs or {})


TRIED = "Tried on the running example on 2 ranks"


@pytest.mark.parametrize(
    ("merge", "said"),
    [
        (lambda shards: None, f"{TRIED}: your result is None. Does the function end in `return`?"),
        (lambda shards: right_merge(shards).tolist(), f"{TRIED}: your result is a list of 3; it should be a tensor of"),
        (lambda shards: right_merge(shards).numpy(), "your result is an object of type ndarray; it should be a tensor"),
        (lambda shards: right_merge(shards).as_subclass(Subclass), "your result is an object of type Subclass;"),
        (lambda shards: right_merge(shards).double(), f"{TRIED}: your result has dtype float64; it should be float32."),
        (lambda shards: right_merge(shards).int(), "dtype int32"),
        (lambda shards: right_merge(shards)[None], "has shape 1×3×8; it should be 3×8."),
        (lambda shards: right_merge(shards)[:1], "has shape 1×8; it should be 3×8."),
        (lambda shards: right_merge(shards)[..., :1].expand(3, 8) * 0 + right_merge(shards)[0], "row 1, column 0 is"),
        (lambda shards: right_merge(shards).sum(), "your result is a single number; its shape should be 3×8."),
        (lambda shards: torch.zeros(1).expand(2**40, 2**20), "has shape 1099511627776×1048576; it should be 3×8."),
        (lambda shards: right_merge(shards) + float("nan"), "row 0, column 0 is nan; it should be −1."),
        (
            lambda shards: right_merge(shards).index_fill(1, torch.tensor(7), 0.5),
            "row 0, column 7 is 0.5; it should be 0.",
        ),
        (lambda shards: right_merge(shards).to("meta"), "a tensor of an unusual kind, whose entries cannot be read."),
        (lambda shards: 3, "your result is 3; it should be a tensor of shape 3×8."),
    ],
)
def test_what_is_said_of_a_result(merge, said):
    feedback = exercises.check("01-merge", merge)
    assert feedback.status == "wrong"
    assert said in feedback.text


def test_a_float_is_no_rank():
    said = exercises.check("01-owner", lambda row, column, columns, n: float(column // (columns // n))).text
    assert "your result is the float 0.0; it should be the int 0." in said


def test_what_is_said_of_a_rank():
    def program(comm, Xi, Wi):
        result = comm.all_reduce(Xi @ Wi)
        return result if comm.rank == 0 else result.T

    said = exercises.check("02-merge", program).text
    assert f"{TRIED}: what rank 1 returns has shape 8×3; it should be 3×8." in said


def fails(shards):
    wide = shards[0].shape
    return wide[7]  # the learner's own line


def test_an_exception_is_shown_with_the_learners_line():
    feedback = exercises.check("01-merge", fails)
    assert feedback.status == "wrong"
    first, second = feedback.sentences
    assert first == f"{TRIED}, your code ended in IndexError: tuple index out of range."
    line = fails.__code__.co_firstlineno + 2
    assert re.fullmatch(
        rf"It happened at .*test_exercises\.py:{line}: `return wide\[7\]  # the learner's own line`", second
    )


def test_an_exception_on_a_rank_is_shown_with_its_line():
    def program(comm, Xi, Wi):
        return Xi @ Wi / (1 // (1 - comm.rank))

    feedback = exercises.check("02-merge", program)
    assert f"{TRIED}, your code ended in RankError: rank 1: ZeroDivisionError" in feedback.text
    assert "`return Xi @ Wi / (1 // (1 - comm.rank))`" in feedback.text


def test_ranks_that_do_not_meet_are_named():
    def program(comm, Xi, Wi):
        return comm.all_reduce(Xi @ Wi) if comm.rank == 0 else Xi @ Wi

    feedback = exercises.check("02-merge", program)
    assert "CollectiveMismatch" in feedback.text
    assert feedback.html.count("<br>") >= 3, "a line for each rank"


@pytest.mark.parametrize(
    ("name", "answer", "said"),
    [
        ("01-merge", lambda: 1, "calls your function as `merge(shards)`, which ended in TypeError"),
        ("01-merge", lambda a, b: 1, "calls your function as `merge(shards)`, which ended in TypeError"),
        ("02-merge", lambda comm: 1, "calls your function as `all_of_y(comm, Xi, Wi)`, which ended in TypeError"),
        ("01-merge", torch.zeros(3, 8), "needs the function itself, `merge` with nothing behind it, and got a tensor"),
        ("01-merge", None, "needs the function itself, `merge` with nothing behind it, and got None"),
    ],
)
def test_what_is_no_function_of_that_form(name, answer, said):
    feedback = exercises.check(name, answer)
    assert feedback.status == "wrong"
    assert said in feedback.text


def test_no_answer_at_all():
    assert '`exercises.check("01-merge", merge)`' in exercises.check("01-merge").text


@pytest.mark.parametrize(
    "answer",
    [
        lambda shards: torch.cat(..., dim=1),
        lambda shards: [...],
        lambda shards: shards[0] + ...,
    ],
)
def test_a_hole_that_is_left_is_not_a_wrong_answer(answer):
    assert exercises.check("01-merge", answer).status == "unattempted"


def test_writing_into_the_input_damages_nothing():
    def in_place(shards):
        for shard in shards:
            shard.zero_()
        shards.clear()
        return torch.zeros(3, 8)

    for _again in range(2):
        assert exercises.check("01-merge", in_place).status == "wrong"
        assert exercises.check("01-merge", right_merge).sentences == (exercises.get("01-merge").right,)


def test_a_right_answer_that_writes_into_its_input_is_told():
    def in_place(shards):
        result = torch.cat(shards, dim=1)
        shards[0].zero_()
        return result

    feedback = exercises.check("01-merge", in_place)
    assert feedback.status == "right"
    assert "writes into its input" in feedback.text


def test_damage_to_the_running_example_does_not_reach_the_checks():
    kept = {name: getattr(example, name).clone() for name in ("X", "X4", "W", "dY", "dY4")}
    try:
        for name in kept:
            getattr(example, name).zero_()
        for name, misconception in (parameter.values for parameter in MISCONCEPTIONS):
            assert exercises.check(name, misconception.code).misconception == misconception.name
        for name in IDS:
            assert exercises.check(name, exercises.get(name).reference).status == "right"
    finally:
        for name, tensor in kept.items():
            getattr(example, name).copy_(tensor)


def test_random_numbers_of_the_notebook_are_left_alone():
    torch.manual_seed(0)
    expected = torch.rand(3)
    torch.manual_seed(0)
    exercises.check("01-merge", lambda shards: torch.rand(3, 8))
    assert torch.equal(torch.rand(3), expected)


def test_a_wrong_answer_is_answered_alike_each_time():
    def wrong(shards):
        return torch.cat(shards, dim=1) + 1

    assert len({judge(exercises.get("01-merge"), wrong).text for _ in range(3)}) == 1


def test_an_interrupt_is_an_interrupt():
    def interrupted(shards):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        exercises.check("01-merge", interrupted)


# Hints


def test_each_repeated_wrong_answer_brings_one_more_hint():
    def wrong(shards):
        return shards[0]

    hints = exercises.get("01-merge").hints
    shown = [exercises.check("01-merge", wrong).hints for _ in range(len(hints) + 2)]
    assert [len(h) for h in shown] == [*range(len(hints) + 1), len(hints)]
    assert shown[-1] == tuple(hints)
    assert exercises.check("01-merge", ...).hints == ()
    assert exercises.check("01-merge", right_merge).hints == ()
    assert exercises.check("01-merge", wrong).hints == ()


def test_hints_are_folded():
    for _ in range(3):
        feedback = exercises.check("01-merge", lambda shards: shards[0])
    assert feedback.html.count("<details") == 2
    assert "open" not in feedback.html
    assert "<summary" in feedback.html
    assert "Hint 2" in feedback.html


# The card


@pytest.mark.parametrize(
    ("answer", "verdict"), [(..., "○ Not attempted yet."), (0, "✓ Right."), (1, "✗ Not right yet.")]
)
def test_card(answer, verdict):
    feedback = exercises.check("01-predict-messages", answer)
    bundle = feedback._repr_mimebundle_()
    assert set(bundle) == {"text/html", "text/plain"}
    assert bundle["text/plain"] == feedback.text == repr(feedback)
    assert feedback.text.startswith(verdict)
    assert f"<b>{verdict}</b>" in feedback.html
    assert "<style" not in feedback.html, "JupyterLab removes it from a notebook that it does not trust"
    assert "<script" not in feedback.html
    text = html.unescape(re.sub("<[^>]+>", "", feedback.html))
    assert text.replace(" ", "") == feedback.text.replace(" ", "").replace("`", "")
    colours = re.findall(r"(?<![-\w])(background|color):(#\w{6})", feedback.html)
    backgrounds = {c for kind, c in colours if kind == "background"}
    inks = {c for kind, c in colours if kind == "color"}
    assert backgrounds
    assert inks
    assert min(contrast(a, b) for a, b in itertools.product(backgrounds, inks)) >= 4.5
    [edge] = re.findall(r"border-left:6px solid (#\w{6})", feedback.html)
    assert contrast(edge, "#ffffff") >= 3


def test_a_learners_text_is_not_markup():
    feedback = exercises.check("00-arithmetic", "<img src=x onerror=alert(1)>")
    assert "<img" not in feedback.html
    assert "&lt;img" in feedback.html


# The source that all follows from


@pytest.mark.parametrize(
    ("source", "stub", "solution"),
    [
        ("def f(x):\n    return x + 1  # hole", "def f(x):\n    return ...", "def f(x):\n    return x + 1"),
        (
            "def f(x):\n    y = [i for i in x]  # hole\n    return y",
            "def f(x):\n    y = ...\n    return y",
            "def f(x):\n    y = [i for i in x]\n    return y",
        ),
        (
            "def f(x):\n    for i in x:  # hole\n        i += 1  # hole\n    return x  # hole\n",
            "def f(x):\n    return ...",
            "def f(x):\n    for i in x:\n        i += 1\n    return x",
        ),
    ],
)
def test_stub_and_solution_come_from_one_source(source, stub, solution):
    assert pattern.split_hole(source) == (stub, solution)


@pytest.mark.parametrize("source", ["def f(x):\n    return x", "def f(x):\n    x.add_(1)  # hole\n    return x"])
def test_a_source_without_a_hole_is_refused(source):
    with pytest.raises(ValueError, match="no hole"):
        pattern.split_hole(source)


# Whatever comes


class Liar:
    """Equal to everything, of every type."""

    __class__ = torch.Tensor

    def __eq__(self, other):
        return True

    __hash__ = None


class Raiser:
    """Raises whatever is asked of it."""

    def __getattribute__(self, name):
        raise RuntimeError(name)

    def _raise(self, *args):
        raise RuntimeError

    __eq__ = __bool__ = __len__ = __iter__ = __str__ = __repr__ = __float__ = __int__ = __getitem__ = _raise
    __hash__ = None


class NamelessType(type):
    @property
    def __name__(cls):
        raise RuntimeError

    def __repr__(cls):
        raise RuntimeError


class Nameless(metaclass=NamelessType):
    pass


class Mute(Exception):
    def __str__(self):
        raise RuntimeError


class TrueNumber(int):
    def __eq__(self, other):
        return True

    __hash__ = None


class TrueList(list):
    def __eq__(self, other):
        return True

    __hash__ = None


class TrueText(str):
    def casefold(self):
        return "equal"

    strip = casefold


def endless():
    while True:
        yield 0


def itself():
    ring = []
    ring.append(ring)
    return ring


def escaped():
    left = []
    torch.vmap(lambda x: (left.append(x), x)[1])(torch.ones(3, 2))
    return left[0]


def bare():
    array = np.empty(1, dtype=object)
    array[0] = Raiser()
    return array


ODD = {
    "liar": Liar,
    "raiser": Raiser,
    "nameless": Nameless,
    "nameless type": lambda: Nameless,
    "true number": lambda: TrueNumber(3),
    "true list": TrueList,
    "true text": lambda: TrueText("x"),
    "ring": itself,
    "list of odd": lambda: [Liar(), Raiser()],
    "pair of odd": lambda: [Nameless(), TrueNumber()],
    "dict": lambda: {"a": Raiser()},
    "endless": endless,
    "set": lambda: {1, 2},
    "bytes": lambda: b"0",
    "complex": lambda: 1j,
    "infinity": lambda: float("inf"),
    "nan": lambda: float("nan"),
    "large": lambda: 10**5000,
    "long text": lambda: "<b>" * 10**5,
    "surrogate": lambda: "\ud800",
    "array": lambda: np.zeros((3, 8), dtype=np.float32),
    "array of objects": bare,
    "numpy number": lambda: np.int64(3),
    "subclass": lambda: torch.zeros(3, 8).as_subclass(Subclass),
    "sparse": lambda: torch.zeros(3, 8).to_sparse(),
    "meta": lambda: torch.zeros(3, 8, device="meta"),
    "nested": lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.jagged),
    "nested, strided": lambda: torch._nested_tensor_from_tensor_list([torch.ones(2), torch.ones(3)]),
    "quantized": lambda: torch.quantize_per_tensor(torch.zeros(3, 8), 0.1, 0, torch.qint8),
    "complex tensor": lambda: torch.zeros(3, 8, dtype=torch.complex64),
    "bool tensor": lambda: torch.zeros(3, 8, dtype=torch.bool),
    "empty": lambda: torch.zeros(0, 8),
    "scalar": lambda: torch.tensor(7.0),
    "huge": lambda: torch.zeros(1).expand(2**40, 2**20),
    "negative view": lambda: torch.zeros(3, 8, dtype=torch.complex64).conj().imag,
    "inference": lambda: torch.inference_mode()(torch.zeros)(3, 8),
    "escaped": escaped,
    "module": lambda: torch.nn.Linear(4, 8),
    "type": lambda: torch.Tensor,
    "function": lambda: len,
}
# Hypothesis itself looks at the values that it draws.
UNSPEAKABLE = {"raiser", "nameless", "list of odd", "pair of odd", "dict", "array of objects"}
ERRORS = [
    SystemExit(3),
    GeneratorExit(),
    RecursionError(),
    MemoryError(),
    StopIteration(),
    BaseException("base"),
    Mute(),
    ValueError("x" * 10**6),
    KeyError(Raiser),
]


def representatives():
    """One exercise of each kind: of each form of answer and type of result."""
    kinds = {}
    for name in IDS:
        exercise = exercises.get(name)
        result = exercise.evaluate(exercise.reference, exercise.cases()[0])
        inner = type(result[0]) if type(result) is list else None
        kinds.setdefault((type(exercise), type(result), inner), name)
    return list(kinds.values())


def refused(name, answer):
    feedback = exercises.check(name, answer)
    assert feedback.status == "wrong", feedback.text
    assert feedback.sentences
    assert all(feedback.sentences)
    assert len(feedback.text) < 2000
    assert feedback.html


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", ODD)
@pytest.mark.parametrize("name", representatives())
def test_no_value_crashes_a_check_or_passes_it(name, kind):
    value = ODD[kind]()
    refused(name, value)
    refused(name, lambda *args: value)


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("name", representatives())
def test_no_exception_crashes_a_check(name, error):
    def raises(*args):
        raise error

    refused(name, raises)


def test_endless_recursion_ends():
    def deeper(shards):
        return deeper(shards)

    assert "RecursionError" in exercises.check("01-merge", deeper).text


TENSORS = st.builds(
    lambda shape, dtype, fill: torch.full(shape, fill).to(dtype),
    st.lists(st.integers(0, 9), max_size=4),
    st.sampled_from([torch.float32, torch.float64, torch.int64, torch.bool, torch.float16, torch.complex64]),
    st.floats(-9, 9),
)
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.complex_numbers()
    | st.text()
    | st.binary()
    | TENSORS
    | TENSORS.map(lambda tensor: tensor.numpy())
    | st.sampled_from([kind for kind in ODD if kind not in UNSPEAKABLE]).map(lambda kind: ODD[kind]()),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.lists(inner, max_size=4).map(tuple)
        | st.dictionaries(st.text(max_size=3), inner, max_size=3)
    ),
    max_leaves=6,
)


def right_value(name, value):
    reference = exercises.get(name).reference
    return not callable(reference) and values.same(reference, values.plain(value))


@pytest.mark.filterwarnings("ignore")
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(name=st.sampled_from(IDS), value=VALUES, wrapped=st.booleans())
def test_no_object_crashes_a_check(name, value, wrapped):
    if wrapped:
        refused(name, lambda *args: value)
    elif not right_value(name, value):
        refused(name, value)


@pytest.mark.filterwarnings("ignore")
@settings(max_examples=100, deadline=None)
@given(value=VALUES)
def test_any_value_has_words(value):
    for words in (values.in_words(value), values.shown(value), values.type_name(value)):
        assert len(words) < 200
    values.plain(value)
    values.has_hole(value)
