# mypy: allow-untyped-defs, allow-untyped-calls
"""The exercises of notebook 04, why a sum (checks). The functions are shown as they stand here."""

from typing import Any

import torch

from tpviz.exercises import values
from tpviz.exercises.pattern import Case, FunctionExercise, Misconception, ValueExercise
from tpviz.i18n import N_


def _derivative() -> int:
    """For x = 3, w1 = 2 and w2 = 5."""
    x = torch.tensor(3.0, requires_grad=True)
    y1, y2 = x * 2, x * 5
    (y1 * y2).backward()
    assert x.grad is not None
    return int(x.grad)


PREDICT = ValueExercise(
    id="04-predict",
    variable="derivative",
    answer=_derivative,
    ask="7, 30, 60 or 900",
    right=N_(
        "Through y1: y2 · w1 = 15 · 2 = 30. Through y2: y1 · w2 = 6 · 5 = 30. x moves both, so 60; and L = 10x² says "
        "the same."
    ),
    hint_sentences=(
        N_("y1 = 6 and y2 = 15. If x grows a little, y1 grows twice as much. What does that do to L = y1 · y2?"),
        N_("Through y1 the answer is 15 · 2 = 30. y2 grows at the same time."),
    ),
    misconceptions=(
        Misconception(
            "multiplied",
            900,
            N_(
                "You multiplied the two paths. One multiplies along a path, and adds over the paths. Move x from 3 to "
                "3.1: L goes from 90 to 96.1. That is 61 for each unit of x, nowhere near 900."
            ),
        ),
        Misconception(
            "one path",
            30,
            N_(
                "That is one path: what L feels when x moves y1 alone, or y2 alone. x moves both at once, and each of "
                "them changes L."
            ),
        ),
        Misconception(
            "L adds",
            7,
            N_(
                "7 is w1 + w2, right for L = y1 + y2. Here L is a product: when y1 grows by 1, L grows by y2, which is "
                "15."
            ),
        ),
        Misconception(
            "weights multiplied",
            10,
            N_(
                "10 is w1 · w2. It leaves out that L is a product: how much a change of y1 counts depends on y2, which "
                "is 15."
            ),
        ),
        Misconception(
            "without x",
            21,
            N_(
                "You added what L feels about y1, 15, and about y2, 6. The first step of each path is missing: y1 "
                "grows w1 times as fast as x, and y2 w2 times."
            ),
        ),
        Misconception(
            "L itself",
            90,
            N_("90 is L. The question is how fast L changes when x does."),
        ),
    ),
)


def _cases(names: str, *inputs: tuple[float, ...]) -> list[Case]:
    """Cases labelled with the numbers themselves: "x = 3, w = 2"."""
    return [
        Case(numbers, ", ".join(f"{name} = {values.number(n)}" for name, n in zip(names.split(), numbers, strict=True)))
        for numbers in inputs
    ]


def three_paths(x, w1, w2, w3):
    """dL/dx for L = y1 · y2 · y3, path by path."""
    y1, y2, y3 = x * w1, x * w2, x * w3
    path1 = y2 * y3 * w1  # hole
    path2 = y1 * y3 * w2  # hole
    path3 = y1 * y2 * w3  # hole
    return path1 + path2 + path3  # hole


def _of_three_paths(combine: Any) -> Any:
    """The same with the contributions of the three paths put together in another way."""

    def answer(x, w1, w2, w3):
        y1, y2, y3 = x * w1, x * w2, x * w3
        return combine(y2 * y3 * w1, y1 * y3 * w2, y1 * y2 * w3)

    return answer


THREE_PATHS = FunctionExercise(
    id="04-three-paths",
    function=three_paths,
    # Not x = 3 alone, where L itself is as large as the derivative, nor x = 1, where one path is as large as L.
    inputs=lambda: _cases("x w1 w2 w3", (4.0, 2.0, 1.0, -1.0), (2.0, 1.0, -3.0, 4.0), (-1.0, 2.0, 3.0, 7.0)),
    right=N_("Multiplied along each path, added over the three: x branches three times, so there are three terms."),
    hint_sentences=(
        N_("First the path x → y1 → L alone. How fast does y1 grow with x, and how fast does L grow with y1?"),
        N_("With y2 and y3 held still, L grows y2 · y3 times as fast as y1. So this path contributes y2 · y3 · w1."),
        N_("The other two paths look alike. x moves y1, y2 and y3 at once: what happens to the three contributions?"),
    ),
    misconceptions=(
        Misconception(
            "multiplied",
            _of_three_paths(lambda path1, path2, path3: path1 * path2 * path3),
            N_(
                "You multiplied the three paths. One multiplies along a path, and adds over the paths. With {case} you "
                "get {got}; the derivative is {expected}. Move x by 0.001 and look at L: that tells the two apart."
            ),
        ),
        Misconception(
            "two paths",
            _of_three_paths(lambda path1, path2, path3: path1 + path2),
            N_(
                "One path is missing: with {case} you get {got}, and the derivative is {expected}. x reaches L by way "
                "of y3 too."
            ),
        ),
        Misconception(
            "mean",
            _of_three_paths(lambda path1, path2, path3: (path1 + path2 + path3) / 3),
            N_(
                "With {case} you get {got}, a third of the derivative, {expected}. It is the mean of the three paths, "
                "and here also each of them alone. They are not three guesses: x moves y1, y2 and y3 at once."
            ),
        ),
        Misconception(
            "L adds",
            lambda x, w1, w2, w3: w1 + w2 + w3,
            N_(
                "w1 + w2 + w3 is right for L = y1 + y2 + y3. Here L is a product: when y1 grows by 1, L grows by "
                "y2 · y3. With {case} you get {got}; the derivative is {expected}."
            ),
        ),
        Misconception(
            "without x",
            lambda x, w1, w2, w3: x * w2 * x * w3 + x * w1 * x * w3 + x * w1 * x * w2,
            N_(
                "You added what L feels about y1, y2 and y3. The first step of each path is missing: y1 grows w1 times "
                "as fast as x. With {case} you get {got}; the derivative is {expected}."
            ),
        ),
        Misconception(
            "one partner",
            lambda x, w1, w2, w3: x * w2 * w1 + x * w3 * w2 + x * w1 * w3,
            N_(
                "Each of your terms has one partner only. With y2 and y3 held still, L grows y2 · y3 times as fast as "
                "y1: both stand in the path. With {case} you get {got}; the derivative is {expected}."
            ),
        ),
        Misconception(
            "L itself",
            lambda x, w1, w2, w3: x * w1 * x * w2 * x * w3,
            N_("That is L, {got} with {case}. How fast L changes when x does is {expected}."),
        ),
    ),
)


def used_twice(x, w):
    """dy/dx for y = a · x, where a = x + w: x is used twice, in a and beside it."""
    a = x + w
    by_way_of_a = x * 1  # hole
    beside_a = a  # hole
    return by_way_of_a + beside_a  # hole


TWICE = FunctionExercise(
    id="04-twice",
    function=used_twice,
    inputs=lambda: _cases("x w", (3.0, 2.0), (-1.0, 4.0), (5.0, -2.0)),
    right=N_(
        "By way of a: x · 1. By the other use: a. Two uses are two paths, also where one of them is longer; y = x² + "
        "x·w says the same, 2x + w."
    ),
    hint_sentences=(
        N_("Draw the arrows: x → a → y, and x → y. How many ways lead from x to y?"),
        N_("Hold the x beside a still: a grows as fast as x, and y grows x times as fast as a."),
        N_("Now hold a still: y = a · x grows a times as fast as x. x moves both at once."),
    ),
    misconceptions=(
        Misconception(
            "a still",
            lambda x, w: x + w,
            N_(
                "You held a still, but a holds an x too. With {case} you get {got}; the derivative is {expected}. What "
                "is missing is the path by way of a."
            ),
        ),
        Misconception(
            "only by way of a",
            lambda x, w: x,
            N_(
                "That is the path by way of a alone. With {case} you get {got}; the derivative is {expected}. The x "
                "beside a moves too. Code that writes a gradient where it should add one makes this mistake."
            ),
        ),
        Misconception(
            "multiplied",
            lambda x, w: x * (x + w),
            N_(
                "You multiplied the two uses, which gives y itself. With {case} you get {got}; the derivative is "
                "{expected}. One multiplies along a path, and adds over the paths, also when one path is longer."
            ),
        ),
        Misconception(
            "a counts 1",
            lambda x, w: x + w + 1,
            N_(
                "By way of a you took only the first step, x → a, which is 1. The second is missing: y grows x times "
                "as fast as a. With {case} you get {got}; the derivative is {expected}."
            ),
        ),
    ),
)

WHY = ValueExercise(
    id="04-why",
    variable="because",
    answer=lambda: "x branches",
    ask='"L adds", "outputs are concatenated", "x branches", "gradients are averaged"',
    right=N_(
        "One x, several uses: each is a path to the loss, and the paths' contributions add, whatever happens to y1 and "
        "y2 later."
    ),
    hint_sentences=(
        N_("The sum was there for y1 + y2, for y1 · y2 and for sin(y1) · y2. What did the three have in common?"),
        N_("Look at the beginning of the graph, not at its end."),
    ),
    misconceptions=(
        Misconception(
            "L adds",
            "L adds",
            N_(
                "L = y1 · y2 adds nothing, and there was a sum all the same: 30 + 30. How L puts y1 and y2 together "
                "decides how large the terms are, not that they are added."
            ),
        ),
        Misconception(
            "concatenated",
            "outputs are concatenated",
            N_(
                "That the outputs stand side by side is why nothing was added in forward. In the scalar example nothing"
                " was put side by side, and there was a sum all the same."
            ),
        ),
        Misconception(
            "averaged",
            "gradients are averaged",
            N_(
                "Nothing is averaged here. A mean is for several estimates of one number; the paths are parts of one "
                "number, and 30 + 30 is 60."
            ),
        ),
    ),
)

EXERCISES = (PREDICT, THREE_PATHS, TWICE, WHY)
