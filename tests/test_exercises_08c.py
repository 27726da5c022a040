"""The exercises of notebook 08c: what learners write, right and wrong."""

import math

import pytest
from answers import said_wrong

from tpviz import exercises
from tpviz.exercises import nb08c_machine


def test_the_timings_are_round():
    assert nb08c_machine.timings() == pytest.approx((140, 240), rel=1e-12)


@pytest.mark.parametrize("answer", [60, 60.0, 59.9, (140 - 20) / 2])
def test_right_latencies(answer):
    assert exercises.check("08c-alpha", answer).status == "right"


@pytest.mark.parametrize(
    ("answer", "misconception", "said"),
    [
        (120, "one message", "two messages"),
        (140, "the smaller timing", "whole first timing"),
        (70, "bytes for nothing", "take that away first"),
        (100, "the difference", "no bytes"),
        (0, None, "It is not 0."),
        (60e-6, None, "It is not"),
        (math.nan, None, "nan"),
        ("60", None, "without quotes"),
        (True, None, "not True"),
    ],
)
def test_what_is_said_of_wrong_latencies(answer, misconception, said):
    found, text = said_wrong("08c-alpha", answer)
    assert (found, said in text) == (misconception, True), text


@pytest.mark.parametrize(
    "function",
    [lambda c, s: c / (c / 2 + s), lambda c, s: 2 * c / (c + 2 * s), lambda c, s: 1 / (0.5 + s / c)],
)
def test_other_ways_to_the_speed_up(function):
    assert exercises.check("08c-speed-up", function).status == "right"


@pytest.mark.parametrize(
    ("function", "misconception", "said"),
    [
        (lambda c, s: 2, "twice as fast", "without sending"),
        (lambda c, s: c / (c + s), "nothing halved", "all of it, each"),
        (lambda c, s: 2 * c / (c + s), "all halved", "wait for all of it"),
        (lambda c, s: c / max(c / 2, s), "hidden", "needs the sum"),
        (lambda c, s: c / 2 + s, None, "1.667 times as fast"),
        (lambda c, s: None, None, "is None"),
        (lambda c, s: c / 0, None, "ZeroDivisionError"),
        (1.5, None, "The check needs the function itself"),
    ],
)
def test_what_is_said_of_other_functions(function, misconception, said):
    found, text = said_wrong("08c-speed-up", function)
    assert (found, said in text) == (misconception, True), text
