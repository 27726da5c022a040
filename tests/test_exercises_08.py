"""The exercises of notebooks 08 and 08b: what learners write, right and wrong, and that the answers speak true."""

import math

import numpy as np
import pytest
import torch
from answers import said_right, said_wrong

from tpviz import exercises, widgets
from tpviz.exercises import nb08_cost, nb08b_both
from tpviz.exercises.amounts import BestExercise
from tpviz.memory import GB
from tpviz.published import throughput_2021
from tpviz.steps import layer_seconds
from tpviz.strategies import Strategy

# 08


@pytest.mark.parametrize(
    ("name", "answer"),
    [
        ("08-fastest", 4),
        ("08-fastest", 4.0),
        ("08-fastest", torch.tensor([4.0]).max().item()),
        ("08-boxes", 4),
        ("08-wire", 1200),
        ("08-wire", 1200.0),
        ("08-wire", 2 * 3 / 4 * 800),
        ("08b-kept", 13),
        ("08b-kept", 10 + 24 / 8),
        ("08b-kept", 12.99),
    ],
)
def test_right_values(name, answer):
    assert said_right(name, answer) == ()


@pytest.mark.parametrize(
    ("name", "answer", "misconception", "said"),
    [
        ("08-fastest", 8, "8 ranks are 8 times as fast", "Eight ranks are 1.2 times as fast as one here"),
        ("08-fastest", 1, "sending never pays", "in 0.432 ms"),
        ("08-fastest", 2, None, "On 2, the layer takes 0.310 ms"),
        ("08-fastest", 16, None, "at most 8 ranks"),
        ("08-fastest", 3, None, "1, 2, 4, 8 or 16"),
        ("08-fastest", True, None, "This is True."),
        ("08-fastest", "4", None, "This is the text “4”."),
        ("08-fastest", [4], None, "This is [4]."),
        ("08-boxes", 16, "as many as there are", "sending takes 17.4 ms"),
        ("08-boxes", 8, "as in a DGX", "8 ranks are two boxes"),
        ("08-boxes", 1, "no slow link at all", "one rank takes 28.7 ms"),
        ("08-boxes", 2, None, "With the best number of ranks it takes 12.7 ms."),
        ("08-boxes", math.nan, None, "A number of ranks is needed"),
        ("08-wire", 800, "payload", "200 bytes more often than 4 times"),
        ("08-wire", 600, "one half", "one half of an AllReduce"),
        ("08-wire", 1600, "twice", "comes close to"),
        ("08-wire", 200, "one piece", "one message"),
        ("08-wire", 2400, "to everybody", "half of it"),
        ("08-wire", 4800, "all ranks together", "all four ranks"),
        ("08-wire", 1400, "once more than needed", "7 messages"),
        ("08-wire", 400, "two pieces", "A half takes 3"),
        ("08-wire", 1000, None, "It is not 1000."),
        ("08-wire", math.inf, None, "It is not inf."),
        ("08-wire", "1200", None, "without quotes"),
        ("08-wire", True, None, "A plain number is needed, not True."),
        ("08b-kept", 4.25, "divided by all ranks", "every rank keeps all of it"),
        ("08b-kept", 34, "nothing divided", "divided by 8"),
        ("08b-kept", 3, "inside only", "10 MB outside"),
        ("08b-kept", 25.25, "the other way round", "H is cut"),
        ("08b-kept", 10, "outside only", "is kept, too"),
        ("08b-kept", 14.25, "outside twice", "outside twice"),
        ("08b-kept", 11.25, "outside for inside", "left out the 24 MB"),
        ("08b-kept", 27, "inside twice", "inside twice"),
        ("08b-kept", 272, None, "It is not 272."),
    ],
)
def test_what_is_said_of_wrong_values(name, answer, misconception, said):
    found, text = said_wrong(name, answer)
    assert (found, said in text) == (misconception, True), text


@pytest.mark.parametrize(
    ("exercise", "model", "machine", "degrees"),
    [
        ("08-fastest", nb08_cost.SMALL, nb08_cost.DGX_H100, (1, 2, 4, 8)),
        ("08-boxes", nb08_cost.LARGE, nb08_cost.PCIE_BOX, nb08_cost.DEGREES),
    ],
)
def test_a_degree_is_right_where_the_model_knows_no_better_one(exercise, model, machine, degrees):
    seconds = {t: float(layer_seconds(model, machine, Strategy(t), 1).seconds) for t in degrees}
    for degree, own in seconds.items():
        right = exercises.check(exercise, degree).status == "right"
        assert right == (own <= min(seconds.values()) / 0.98)


@pytest.mark.parametrize(
    "function",
    [
        lambda payload, ranks, latency, printed: 2 * (ranks - 1) * (latency + payload / ranks / (printed / 2)),
        lambda payload, ranks, latency, printed: (
            2 * (ranks - 1) * latency + 4 * (ranks - 1) / ranks * payload / printed
        ),
        lambda p, n, a, b: sum([a + p / n * 2 / b] * 2 * (n - 1)),
    ],
)
def test_other_ways_to_count_seconds_are_right(function):
    assert said_right("08-seconds", function) == ()


def test_the_payload_alone_is_right_on_two_ranks_only():
    name, text = said_wrong("08-seconds", lambda p, n, a, b: 2 * (n - 1) * a + 2 * p / b)
    assert name == "payload for wire"
    assert "52.26 µs, and it is 55.76 µs" in text


@pytest.mark.parametrize(
    ("function", "misconception", "said"),
    [
        (lambda p, n, a, b: 2 * (n - 1) * a + 2 * (n - 1) / n * p / b, "both ways", "adds up both directions"),
        (lambda p, n, a, b: 2 * (n - 1) * a + p / b, "payload, both ways", "Two things."),
        (lambda p, n, a, b: a + 2 * (n - 1) / n * p / (b / 2), "one message", "paid the latency once"),
        (lambda p, n, a, b: 2 * (n - 1) / n * p / (b / 2), "no latency", "You counted bytes only"),
        (lambda p, n, a, b: 2 * (n - 1) * (a + 2 * p / b), "whole tensor in each message", "one piece of n"),
        (
            lambda p, n, a, b: 1.0,
            None,
            "your result is 1e+06 µs; it should be 55.76 µs, 47.6 µs of latency and 8.156 µs of bytes.",
        ),
        (lambda p, n, a, b: 2 * (n - 1) * a + 2 * (n - 1) / n * p * (b / 2), None, "8.156 µs of bytes"),
        (lambda p, n, a, b: (n - 1) * a + (n - 1) / n * p / (b / 2), None, "47.6 µs of latency"),
        (lambda p, n, a, b: n * a + 2 * (n - 1) / n * p / (b / 2), None, "47.6 µs of latency"),
        (lambda p, n, a, b: 2 * (n - 1) * a + 2 * (n - 1) / n * p / (2 * b), None, "8.156 µs of bytes"),
        (lambda p, n, a, b: math.nan, None, "your result is nan"),
        (lambda p, n, a, b: None, None, "is None. Does the function end in `return`?"),
        (lambda p, n, a, b: "fast", None, "is the text “fast”"),
        (lambda p, n, a, b: torch.tensor(1.0), None, "a tensor that holds one number"),
        (lambda p, n, a, b: 1 / 0, None, "ZeroDivisionError"),
        (lambda p, n: p, None, "The check calls your function as"),
        (5.58e-5, None, "The check needs the function itself"),
    ],
)
def test_what_is_said_of_other_functions(function, misconception, said):
    found, text = said_wrong("08-seconds", function)
    assert (found, said in text) == (misconception, True), text


def test_numbers_in_the_sentences_of_08():
    spent = {t: nb08_cost._spent(nb08_cost.SMALL, nb08_cost.DGX_H100, t) for t in (1, 8)}
    assert f"{float(spent[1].seconds / spent[8].seconds):.1f}" == "1.2"
    inside, between = nb08_cost.PCIE_BOX.inside.bandwidth, nb08_cost.PCIE_BOX.between.bandwidth
    assert inside / between == pytest.approx(10, rel=0.01)
    assert nb08_cost.PCIE_BOX.ranks_per_node == 4
    box, two = (nb08_cost._spent(nb08_cost.LARGE, nb08_cost.PCIE_BOX, t) for t in (4, 8))
    saved = box.matmuls + box.elementwise - two.matmuls - two.elementwise
    assert two.tensor_parallel - box.tensor_parallel > saved
    assert nb08_cost.WIRE.reference == 6 * 200


# 08b

CLUSTERS = {"08b-node": nb08b_both.NODE, "08b-boxes": nb08b_both.BOXES, "08b-wide": nb08b_both.WIDE}


@pytest.mark.parametrize("name", CLUSTERS)
def test_every_choice_that_the_model_supports_is_right_and_no_other(name):
    """All ways to spread over the ranks, the impossible ones too, held against the model itself."""
    cluster = CLUSTERS[name]
    ranks = cluster.ranks
    speeds, tried = {}, []
    for tensor in (t for t in range(1, ranks + 1) if ranks % t == 0):
        for stage in range(4):
            choice = (tensor, ranks // tensor, stage)
            tried.append(choice)
            try:
                kept, speed = nb08b_both._judged(cluster, choice)
            except ValueError:
                continue
            if kept.total <= cluster.machine.memory:
                speeds[choice] = speed
    best = max(speeds.values())
    right = {choice for choice in tried if exercises.check(name, list(choice)).status == "right"}
    assert right == {choice for choice, speed in speeds.items() if speed >= 0.85 * best}
    assert tuple(exercises.get(name).reference) in right
    for choice in set(tried) - right:
        assert len(exercises.check(name, choice).sentences[0]) > 20


def test_which_choices_those_are():
    """The lessons: FSDP on one node, no TP over a slow link, TP of at least a node where a layer is too large."""
    right = {
        name: {choice[0] for choice in nb08b_both.possible(cluster) if exercises.check(name, choice).status == "right"}
        for name, cluster in CLUSTERS.items()
    }
    assert right == {"08b-node": {1, 2}, "08b-boxes": {1}, "08b-wide": {8, 16, 32}}


@pytest.mark.parametrize(
    ("name", "answer"),
    [("08b-node", (1, 8, 3)), ("08b-node", torch.tensor([2, 4, 3])), ("08b-boxes", [1.0, 32.0, 1.0])],
)
def test_the_same_choice_in_another_form(name, answer):
    assert said_right(name, answer) == ()


@pytest.mark.parametrize(
    ("name", "answer", "misconception", "said"),
    [
        ("08b-node", [8, 1, 0], "TP everywhere", "trains 10.8 sequences a second"),
        ("08b-node", [1, 8, 0], "plain DP", "more than the 80 GB"),
        ("08b-node", [2, 4, 0], None, "TP 2 × DP 4: a rank would keep 112 GB"),
        ("08b-node", [4, 2, 0], None, "TP 4 × DP 2 fits, and trains 13.8 sequences a second"),
        ("08b-node", [4, 2, 3], None, "waits 14.6 ms for TP"),
        ("08b-node", [8, 1, 3], None, "waits 20.9 ms for TP"),
        ("08b-node", [1, 8, 1], None, "ZeRO-1: a rank would keep 85.5 GB"),
        ("08b-node", [2, 2, 3], None, "2 × 2 is not 8"),
        ("08b-node", [1, 8, 4], None, "ZeRO has the stages 0, 1, 2 and 3, not 4."),
        ("08b-node", [0, 8, 3], None, "Both degrees are at least 1"),
        ("08b-node", [-1, -8, 3], None, "Both degrees are at least 1"),
        ("08b-node", [10**400, 1, 3], None, "a very large number × 1 is not 8"),
        ("08b-node", [1, 8], None, "A list of three whole numbers is needed"),
        ("08b-node", [1, 8, "FSDP"], None, "A list of three whole numbers is needed"),
        ("08b-node", [True, 8, 3], None, "A list of three whole numbers is needed"),
        ("08b-node", [1.5, 8, 3], None, "A list of three whole numbers is needed"),
        ("08b-node", "FSDP", None, "This is the text “FSDP”."),
        ("08b-node", None, None, "This is None."),
        ("08b-node", {"tp": 1}, None, "This is an object of type dict."),
        ("08b-node", Strategy(1, 8, 3), None, "This is an object of type Strategy."),
        ("08b-node", np.array([1, 8, 3]), None, "This is an object of type ndarray."),
        ("08b-boxes", [1, 32, 3], "FSDP as always", "trains 4.38 sequences a second"),
        ("08b-boxes", [4, 8, 3], "TP in each box", "PCIe is slow"),
        ("08b-boxes", [4, 8, 0], "TP in each box, with DP", "PCIe is slow"),
        ("08b-boxes", [1, 32, 0], "plain DP", "16 bytes of every parameter"),
        ("08b-boxes", [32, 1, 0], None, "40 heads, which 32 ranks cannot share evenly"),
        ("08b-boxes", [2, 16, 2], None, "sequences, "),
        ("08b-wide", [256, 1, 3], None, "waits 185 ms for TP"),
        ("08b-wide", [64, 4, 0], None, "waits 164 ms for TP"),
        ("08b-wide", [1, 256, 3], "FSDP alone", "more ranks do not help"),
        ("08b-wide", [8, 32, 0], "TP inside, copies outside", "Cut these, too."),
        ("08b-wide", [4, 64, 3], None, "A card has 80 GB."),
    ],
)
def test_what_is_said_of_choices(name, answer, misconception, said):
    found, text = said_wrong(name, answer)
    assert (found, said in text) == (misconception, True), text


@pytest.mark.parametrize(
    ("name", "answer", "said"),
    [
        ("08b-node", [1, 8, 3], "each card runs a whole layer well"),
        ("08b-node", [1, 8, 2], "ZeRO-2 reaches 89% of the best, too close"),
        ("08b-node", [2, 4, 3], "no card computes a whole layer"),
        ("08b-boxes", [1, 32, 1], "keeps the gradients whole"),
        ("08b-wide", [8, 32, 3], "stays on NVLink"),
        ("08b-wide", [16, 16, 3], "TP 16 spans 2 nodes"),
        ("08b-wide", [32, 8, 3], "The smallest TP that fits is 8"),
    ],
)
def test_a_right_choice_is_given_its_own_reason(name, answer, said):
    feedback = exercises.check(name, answer)
    assert feedback.status == "right"
    assert said in feedback.text


@pytest.mark.parametrize("name", CLUSTERS)
def test_choices_that_are_left_open_wait(name):
    assert exercises.check(name, [8, ..., ...]).status == "unattempted"


def test_numbers_in_the_sentences_of_08b():
    wide = nb08b_both.WIDE
    assert f"{2 * wide.model.layer_parameters / GB:.0f}" == "103"
    assert f"{2 * wide.model.rank_layer_parameters(8) / GB:.0f}" == "13"
    assert wide.machine.memory == 80 * GB
    assert wide.machine.ranks_per_node == 8
    assert nb08b_both.NODE.model not in widgets.SIZES.values()
    assert f"{float(nb08b_both.NODE.model.parameters) / 1e9:.0f}" == "13"
    assert (nb08b_both._kept(1), nb08b_both._kept(8)) == (34, 13)
    assert throughput_2021().worst_share == pytest.approx(0.16, abs=0.005)


@pytest.mark.parametrize("name", ["08-fastest", "08-boxes", *CLUSTERS])
def test_the_solution_is_as_good_as_the_best(name):
    exercise = exercises.get(name)
    assert isinstance(exercise, BestExercise)
    assert exercise.price(exercise.best) >= (1 - exercise.slack) * exercise.price(exercise.reference)
    assert said_right(name, exercise.best) == ()
