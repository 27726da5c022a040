"""Planner and plans: optimal by another's count, right in numbers, foretelling their own trace, and clear in words."""

import heapq
import itertools
import random
import re
from fractions import Fraction
from math import prod
from typing import NamedTuple

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import tpviz
from tpviz import example
from tpviz.conversions import ADDENDS, COLUMNS, CONVERSIONS, ROWS, SHARED, WHOLE, Flow
from tpviz.costs import Link, collective_seconds
from tpviz.errors import RankError
from tpviz.layouts import Partial, Replicate, Shard, full
from tpviz.planner import KNOWN, Network, NoPlan, Prices
from tpviz.plans import every_plan, plan, summary
from tpviz.rules import OPERATORS, gradients, passes

ENDS = {Replicate(): WHOLE, Shard(0): ROWS, Shard(1): COLUMNS}

# What the operators compute, in plain torch; all but those behind the line keep integers integers.
DENSE = {
    "matmul": lambda x, w: x @ w,
    "add": lambda x, y: x + y,
    "add_bias": lambda x, b: x + b,
    "multiply": lambda x, y: x * y,
    "scale": lambda x: x + x,
    "relu": lambda x: torch.where(x > 0, x, 0),
    "square": lambda x: x * x,
    "transpose": lambda x: x.transpose(0, 1),
    # Rounded:
    "gelu": F.gelu,
    "silu": lambda x: x * torch.sigmoid(x),
    "softmax": lambda x: torch.softmax(x, 1),
    "layer_norm": lambda x, w: F.layer_norm(x, (x.shape[1],), w),
    "rms_norm": lambda x, w: F.rms_norm(x, (x.shape[1],), w),
}
ROUNDED = {"gelu", "silu", "softmax", "layer_norm", "rms_norm"}
GATED = [("A", "matmul", "X", "W1"), ("B", "matmul", "X", "W2"), ("S", "silu", "A"), ("M", "multiply", "S", "B")]
GATED += [("Y", "matmul", "M", "W3")]


def test_every_operator_is_tested():
    assert {*DENSE} == {*KNOWN}


# Random networks


class Case(NamedTuple):
    """A network, and where it is to run."""

    steps: list
    shapes: dict
    ranks: int
    start: Replicate | Shard
    end: Replicate | Shard

    def conditions(self):
        return {"ranks": self.ranks, "start": self.start, "end": self.end}


def output_shape(operator, shapes):
    known = {"matmul": (shapes[0][0], shapes[-1][-1]), "transpose": shapes[0][::-1]}
    return known.get(operator, shapes[0])


def matrices(known, given):
    return [name for name in known if name == "X" or name not in given]


def second_input(draw, operator, first, known, given):
    """The name of an operator's second input, made if it is a weight; None if there is no fitting one."""
    shape, others = known[first], matrices(known, given)
    if operator in ("add", "multiply"):
        return draw.choice([name for name in others if known[name] == shape])
    if operator == "matmul" and draw.random() < 0.2:
        # X as the right factor would be taken for a weight.
        fitting = [name for name in others if known[name][0] == shape[1] and name != "X"]
        return draw.choice(fitting) if fitting else None
    name, columns = f"W{len(given)}", draw.choice([*shape, draw.randint(1, 9)])
    known[name] = (shape[1], columns) if operator == "matmul" else shape[1:]
    given.add(name)
    return name


def network(draw, count, operators):
    """Steps and shapes at random; None if they have several ends."""
    known, given, steps, open_ends = {"X": (draw.randint(1, 9), draw.randint(1, 9))}, {"X"}, [], {"X"}
    for number in range(count):
        operator = draw.choice(operators)
        # Mostly an end is taken up; else there would be as many as steps.
        first = draw.choice(sorted(open_ends) if draw.random() < 0.8 else matrices(known, given))
        inputs = [first]
        if len(OPERATORS[operator].inputs) == 2:
            inputs.append(second_input(draw, operator, first, known, given))
            if inputs[-1] is None:
                return None
        output = f"T{number}"
        known[output] = output_shape(operator, [known[name] for name in inputs])
        open_ends = open_ends.difference(inputs) | {output}
        steps.append((output, operator, *inputs))
    return (steps, {name: known[name] for name in sorted(given)}) if len(open_ends) == 1 else None


def gated(draw):
    """A gated MLP, half of the time with a norm before it or a residual connection around it."""
    rows, features, hidden = (draw.randint(1, 9) for _size in range(3))
    shapes = {"X": (rows, features), "W1": (features, hidden), "W2": (features, hidden), "W3": (hidden, features)}
    steps = list(GATED)
    match draw.randrange(4):
        case 0:
            steps = [("N", "rms_norm", "X", "V"), *[tuple("N" if x == "X" else x for x in step) for step in steps]]
            shapes["V"] = (features,)
        case 1:
            steps.append(("Z", "add", "X", "Y"))
    return steps, shapes


def random_case(draw, most=6, most_ranks=8, operators=KNOWN):
    """A chain, a graph or a gated MLP, between ends as they come."""
    # A matmul is drawn as often as three others together, for it is what matters.
    common = [*operators, "matmul", "matmul", "add", "relu"]
    count, found = draw.randint(1, most), None
    if most >= 6 and draw.random() < 0.08:
        found = gated(draw)
    while found is None:
        found = network(draw, count, common)
    return Case(*found, draw.randint(1, most_ranks), draw.choice([*ENDS]), draw.choice([*ENDS]))


# The planner against every combination: rules and conversions are the same, all else is written here once more


def ways_through(operator, weights):
    """Every (flows of the inputs, flow of the output) by the rules; ``weights`` says which inputs are weights."""
    for placements in itertools.product((Replicate(), Shard(0), Shard(1), Partial()), repeat=len(weights)):
        if any(weight and isinstance(each, Partial) for weight, each in zip(weights, placements, strict=True)):
            continue
        try:
            ruling = passes(operator, *placements)
        except TypeError:  # a vector has no dimension 1
            continue
        for flow in (WHOLE, SHARED, ROWS, COLUMNS, ADDENDS):
            if flow.value == ruling.output:
                back = gradients(ruling, flow.gradient)
                yield tuple(map(Flow, placements, back)), flow


def ticks(seconds):
    return round(seconds / 1e-15)


def ceil_sizes(shape, placement, ranks):
    """The sizes of the largest shard."""
    dim = placement.dim if isinstance(placement, Shard) else None
    return [-(-size // ranks) if place == dim else size for place, size in enumerate(shape)]


def conversion_price(each, shape, ranks, link):
    """Time and number of collectives of one conversion."""
    seconds = 0.0
    for kind, cut in ((each.forward, each.before.value), (each.backward, each.after.gradient)):
        if kind is not None:
            sizes = ceil_sizes(shape, cut, ranks) if kind == "all_to_all" else shape
            seconds += collective_seconds(kind, 4 * prod(sizes), ranks, link)
    return ticks(seconds), (each.forward is not None) + (each.backward is not None)


def cheapest_reach(produced, needed, costs):
    """Dijkstra over the sets of flows that are there: the least price of having all the needed; None if impossible."""
    queue, done, counter = [((0, 0), 0, frozenset({produced}))], set(), itertools.count(1)
    while queue:
        price, _number, there = heapq.heappop(queue)
        if needed <= there:
            return price
        if there in done:
            continue
        done.add(there)
        for (before, after), (time, events) in costs.items():
            if before in there and after not in there:
                item = (price[0] + time, price[1] + events), next(counter), there | {after}
                heapq.heappush(queue, item)
    return None


class BruteForce:
    """Every combination of a network's choices, with its price: (time, collectives) and the bytes of weights."""

    def __init__(self, case, prices):
        self.case, self.prices, self.shapes, self.reached = case, prices, dict(case.shapes), {}
        self.weights = {*case.shapes} - {"X"}
        self.output = case.steps[-1][0]
        self.last_use = {name: n for n, step in enumerate(case.steps) for name in step[2:]}
        for output, operator, *inputs in case.steps:
            self.shapes[output] = output_shape(operator, [self.shapes[name] for name in inputs])
        self.options = [self._options(*step) for step in case.steps]
        self.found = []
        self._walk(0, {}, (0, 0, 0), [])

    def _options(self, _output, operator, *inputs):
        ways = ways_through(operator, [name in self.weights for name in inputs])
        return [(flows, output, self._own_price(operator, inputs, flows)) for flows, output in ways]

    def _own_price(self, operator, inputs, flows):
        time, events, memory, ranks = 0, 0, 0, self.case.ranks
        if operator == "matmul":
            x, w = (ceil_sizes(self.shapes[name], flow.value, ranks) for name, flow in zip(inputs, flows, strict=True))
            # Y = XW, dX = dY Wᵀ, dW = Xᵀ dY: each multiplies and adds as often as X has entries, times W's columns.
            time += ticks(3 * 2.0 * x[0] * x[1] * w[1] / self.prices.flops)
        for name, flow in zip(inputs, flows, strict=True):
            if name in self.weights:
                memory += 4 * prod(ceil_sizes(self.shapes[name], flow.value, ranks))
                if flow == SHARED:
                    payload = 4 * prod(self.shapes[name])
                    time += ticks(collective_seconds("all_reduce", payload, ranks, self.prices.link))
                    events += 1
        return time, events, memory

    def _reach(self, name, produced, needed):
        key = shape, *_rest = self.shapes[name], produced, needed
        if key not in self.reached:
            ranks, link = self.case.ranks, self.prices.link
            costs = {pair: conversion_price(each, shape, ranks, link) for pair, each in CONVERSIONS.items()}
            self.reached[key] = cheapest_reach(produced, needed, costs)
        return self.reached[key]

    def _walk(self, number, asked, price, chosen):
        """Go through all choices from a step on. Only what is impossible is cut off, never what is dear."""
        case = self.case
        if number == len(case.steps):
            tail = self._reach(self.output, chosen[-1], frozenset({ENDS[case.end]}))
            if tail is not None:
                self.found.append(((price[0] + tail[0], price[1] + tail[1]), price[2], tuple(f.value for f in chosen)))
            return
        produced = {step[0]: flow for step, flow in zip(case.steps, chosen, strict=False)} | {"X": ENDS[case.start]}
        inputs = case.steps[number][2:]
        for flows, output, own in self.options[number]:
            total, here = tuple(map(sum, zip(price, own, strict=True))), dict(asked)
            for name, flow in zip(inputs, flows, strict=True):
                here[name] = here.get(name, frozenset()) | {flow}
            settled = [name for name in {*inputs} - self.weights if self.last_use[name] == number]
            paid = [self._reach(name, produced[name], here[name]) for name in settled]
            if None not in paid:
                total = tuple(map(sum, zip(total, *((*each, 0) for each in paid), strict=True)))
                self._walk(number + 1, here, total, [*chosen, output])

    def best(self, limit=None, layouts=None):
        """The least price under the conditions, as the planner compares them; None if there is no plan."""
        places = {step[0]: number for number, step in enumerate(self.case.steps)}
        prices = (
            (*price, memory)
            for price, memory, placements in self.found
            if (limit is None or memory <= limit)
            and all(placements[places[name]] == placement for name, placement in (layouts or {}).items())
        )
        return min(prices, default=None)


PRICES = {
    "latency": Prices(Link(1e-5, 1e15), 1e20),
    "bandwidth": Prices(Link(0.0, 1e6), 1e20),
    "arithmetic": Prices(Link(1e-12, 1e15), 1e6),
    "all alike": Prices(Link(1e-6, 1e8), 1e9),
}


def planned(case, prices, **conditions):
    """The planner's price; None if it says that there is no plan."""
    try:
        return tuple(plan(case.steps, case.shapes, **case.conditions(), prices=prices, **conditions).price)
    except NoPlan:
        return None


def some_limits(draw, brute):
    """Limits: none, too little, and two of the totals that a combination has, or one byte below."""
    totals = sorted({memory for _price, memory, _placements in brute.found}) or [0]
    return {None, 0, min(totals) - 1, *draw.sample([total - less for total in totals for less in (0, 1)], 2)}


# 4 × 150 networks, each under three to five conditions; about 20 s on one core.
@pytest.mark.parametrize("dominates", PRICES)
def test_no_combination_of_choices_is_cheaper(dominates):
    draw, prices, found = random.Random(dominates), PRICES[dominates], []
    for _case in range(150):
        case = random_case(draw)
        brute = BruteForce(case, prices)
        for limit in some_limits(draw, brute):
            found.append(planned(case, prices, memory_limit=limit))
            assert found[-1] == brute.best(limit), (case, limit)
        layouts = {step[0]: draw.choice([*ENDS, Partial()]) for step in draw.sample(case.steps, 1)}
        assert planned(case, prices, layouts=layouts) == brute.best(layouts=layouts), (case, layouts)
    assert found.count(None) >= 50, "cases without a plan"
    assert len(found) - found.count(None) >= 300


def test_every_plan_is_every_combination_the_cheapest_first():
    draw, prices = random.Random("every plan"), PRICES["all alike"]
    for _case in range(60):
        case = random_case(draw, most=3)
        brute = BruteForce(case, prices)
        limit = draw.choice([*sorted(some_limits(draw, brute) - {None}), None])
        plans = every_plan(case.steps, case.shapes, **case.conditions(), prices=prices, memory_limit=limit)
        expected = [(*price, memory) for price, memory, _placements in brute.found if limit is None or memory <= limit]
        assert [tuple(each.price) for each in plans] == sorted(expected)
        assert len({each.choices for each in plans}) == len(plans)
        assert plans == [] or plans[0].price == planned(case, prices, memory_limit=limit)


# Known answers

MLP = [("A", "matmul", "X", "W1"), ("H", "relu", "A"), ("Y", "matmul", "H", "W2")]
WEIGHTS = {"W1": example.W1, "W2": example.W2}
HALF = sum(weight.nbytes for weight in WEIGHTS.values()) // 2


def shapes_of(**tensors):
    return {name: tensor.shape for name, tensor in tensors.items()}


def collectives(found):
    return [(each.kind, each.phase, each.tensor) for each in found.foretold()]


@pytest.mark.parametrize("ranks", [2, 4])
def test_column_relu_row_is_found(ranks):
    found = plan(MLP, shapes_of(X=example.X, **WEIGHTS), ranks=ranks, memory_limit=2 * HALF / ranks)
    first, relu, second = found.choices
    assert first == ((SHARED, COLUMNS), COLUMNS)
    assert relu == ((COLUMNS,), COLUMNS)
    assert second == ((COLUMNS, ROWS), ADDENDS)
    assert collectives(found) == [("all_reduce", "forward", "Y"), ("all_reduce", "backward", "X")]
    assert found.weight_bytes == 2 * HALF // ranks
    assert "W1: Shard(1)" in found.table().text()


def test_sequence_parallelism_is_found():
    ends = {"start": Shard(0), "end": Shard(0)}
    found = plan(MLP, shapes_of(X=example.X4, **WEIGHTS), **ends, memory_limit=HALF)
    assert collectives(found) == [
        *[("all_gather", "forward", "X"), ("reduce_scatter", "forward", "Y")],
        *[("all_gather", "backward", "Y"), ("reduce_scatter", "backward", "X")],
    ]


MORE = {"W2": (4, 8), "W3": (8, 4)}


@pytest.mark.parametrize(
    ("steps", "more", "as_it_is"),
    [
        ([*MLP, ("Z", "add", "X", "Y")], {}, ["Z"]),
        (GATED, MORE, ["B"]),
        ([*GATED, ("Z", "add", "X", "Y")], MORE, ["B", "Z"]),
    ],
    ids=["residual", "gated", "gated, residual"],
)
def test_a_shared_input_is_copied_once(steps, more, as_it_is):
    shapes = shapes_of(X=example.X, **WEIGHTS) | more
    half = 4 * sum(prod(shape) for name, shape in shapes.items() if name != "X") // 2
    found = plan(steps, shapes, memory_limit=half)
    assert found.weight_bytes == half
    assert collectives(found) == [("all_reduce", "forward", "Y"), ("all_reduce", "backward", "X")]
    assert [move.conversion.operator for move in found.moves] == ["copy_to_region", "reduce_from_region"]
    passing = [re.match(r"X → (\w+): .* as it is\.$", sentence) for sentence in found.explain()]
    assert [match.group(1) for match in passing if match] == as_it_is


def test_without_a_limit_and_with_a_fast_rank_nothing_is_sent():
    found = plan(MLP, shapes_of(X=example.X, **WEIGHTS))
    assert found.foretold() == []
    assert found.weight_bytes == 2 * HALF


# Plans that run


def numbers(shape, generator):
    """Small integers, and no zero: what is missing shows."""
    values = torch.randint(1, 4, tuple(shape), generator=generator) * (
        1 - 2 * torch.randint(0, 2, tuple(shape), generator=generator)
    )
    return values.double()


def dense(steps, given, cotangent):
    """The output and all gradients, by plain autograd on whole tensors; and the largest number on the way."""
    known = {name: tensor.clone().requires_grad_() for name, tensor in given.items()}
    for output, operator, *inputs in steps:
        known[output] = DENSE[operator](*[known[name] for name in inputs])
        known[output].retain_grad()
    last = steps[-1][0]
    known[last].backward(cotangent)
    most = max(each.abs().max().item() for tensor in known.values() for each in (tensor.detach(), tensor.grad))
    return {last: known[last].detach(), **{f"d{name}": known[name].grad for name in given}}, most


def is_right(got, expected, exact, most):
    """To the bit for integers; else to 1e-12 of the largest number on the way, since norms cancel."""
    if exact:
        return torch.equal(got, expected)
    return got.shape == expected.shape and bool((got - expected).abs().max() <= 1e-12 * most)


def check_by_running(steps, found, seed):
    """Run a plan on random integers; check its trace, its output and every gradient; say whether to the bit."""
    generator = torch.Generator().manual_seed(seed)
    given = {name: numbers(shape, generator) for name, shape in found.network.given.items()}
    cotangent = numbers(found.network.shapes[steps[-1][0]], generator)
    expected, most = dense(steps, given, cotangent)
    exact = not ROUNDED & {step[1] for step in steps} and most < 2**40
    run = found.run(given, cotangent)
    came = [(event.kind, event.phase, event.payload_bytes) for event in run.trace]
    assert came == [each[:3] for each in found.foretold()], steps
    assert found.agrees(run.trace)
    assert len(run.trace) == found.price.events
    assert found.placements().keys() == expected.keys()
    for name, placement in found.placements().items():
        whole = full([output[name] for output in run.outputs], placement)
        assert is_right(whole, expected[name], exact, most), (name, steps, found)
    held = [sum(output[f"d{name}"].nbytes for name in found.network.weights) for output in run.outputs]
    assert max(held, default=0) == found.weight_bytes
    return exact


def cheapest_of(draw, case):
    """The optima under random prices, with less and less memory."""
    conditions = case.conditions() | {"dtype": torch.float64, "prices": PRICES[draw.choice([*PRICES])]}
    everywhere = plan(case.steps, case.shapes, **conditions).weight_bytes
    for share in (1.0, 0.8, 0.5):
        try:
            found = plan(case.steps, case.shapes, **conditions, memory_limit=everywhere * share)
        except NoPlan:
            return
        assert found.weight_bytes <= everywhere * share
        yield found


def any_of(draw, case):
    plans = every_plan(case.steps, case.shapes, **case.conditions(), dtype=torch.float64)
    return draw.sample(plans, min(len(plans), 4))


def fixed_beforehand(draw, case):
    """The optimum with two of the outputs' placements given, if there is one."""
    layouts = {step[0]: draw.choice([*ENDS, Partial()]) for step in draw.sample(case.steps, min(2, len(case.steps)))}
    try:
        found = plan(case.steps, case.shapes, **case.conditions(), layouts=layouts, dtype=torch.float64)
    except NoPlan:
        return
    values = {step[0]: choice.output.value for step, choice in zip(case.steps, found.choices, strict=True)}
    assert layouts.items() <= values.items()
    yield found


EXACT = [operator for operator in KNOWN if operator not in ROUNDED]


# Where any choices are taken, the networks are small enough to go through all of them.
@pytest.mark.parametrize(
    ("source", "most", "plans"), [(cheapest_of, 6, 200), (any_of, 4, 400), (fixed_beforehand, 6, 150)]
)
def test_plans_run_and_are_right(source, most, plans):
    draw, exact, sent, ran = random.Random(source.__name__), 0, 0, 0
    for seed in itertools.count():
        case = random_case(draw, most=most, most_ranks=5, operators=draw.choice([KNOWN, EXACT]))
        for found in source(draw, case):
            exact += check_by_running(case.steps, found, seed)
            sent += bool(found.foretold())
            ran += 1
        if ran >= plans:
            break
    # That it is not all rounding, and not all without a collective.
    assert exact >= plans / 3
    assert sent >= plans / 2


def test_another_trace_does_not_agree():
    found = plan(MLP, shapes_of(X=example.X, **WEIGHTS), memory_limit=HALF)
    given = {"X": example.X, **WEIGHTS}
    run = found.run(given, torch.ones(3, 4))
    assert found.agrees(run.trace)
    assert not found.agrees(list(run.trace)[:1])
    assert not found.agrees(list(run.trace)[::-1])
    rows = plan(MLP, shapes_of(X=example.X4, **WEIGHTS), memory_limit=HALF)
    assert not rows.agrees(run.trace), "one row more, so another payload"


# Wrong questions

KNOWN_SHAPES = {"X": (3, 4), "W": (4, 4)}
LINEAR = ("Y", "matmul", "X", "W")
NAMES = "expected an output, an operator and its inputs, such as ('A', 'matmul', 'X', 'W')."
SIZES = "expected positive whole numbers, such as (3, 4)."


@pytest.mark.parametrize(
    ("steps", "shapes", "message"),
    [
        (
            [("Y", "dropout", "X")],
            {"X": (3, 4)},
            f"'dropout' is no operator of a network; expected one of {', '.join(KNOWN)}.",
        ),
        ([("Y", "matmul", "X")], KNOWN_SHAPES, "Y: matmul takes 2 inputs, x, w, not 1."),
        ([("Y", "relu", "X", "W")], KNOWN_SHAPES, "Y: relu takes 1 input, x, not 2."),
        ([("Y", "relu", "A")], KNOWN_SHAPES, "Y needs A, which is neither given nor computed before."),
        ([("Y", "relu", "Y")], KNOWN_SHAPES, "Y needs Y, which is neither given nor computed before."),
        ([LINEAR, ("Y", "relu", "X")], KNOWN_SHAPES, "Y is there twice."),
        ([("X", "relu", "X")], {"X": (3, 4)}, "X is there twice."),
        ([LINEAR], {"X": (3, 4), "W": (5, 6)}, "Y: matmul of (3, 4), (5, 6) does not fit; expected (n, k), (k, m)."),
        ([LINEAR], {"X": (3, 4), "W": (4,)}, "Y: matmul of (3, 4), (4,) does not fit; expected (n, k), (k, m)."),
        (
            [("Y", "add_bias", "X", "W")],
            KNOWN_SHAPES,
            "Y: add_bias of (3, 4), (4, 4) does not fit; expected (n, k), (k,).",
        ),
        (
            [("T", "transpose", "X"), ("Y", "add", "X", "T")],
            {"X": (3, 4)},
            "Y: add of (3, 4), (4, 3) does not fit; expected (n, k), (n, k).",
        ),
        ([("Y", "relu", "X")], {"X": (4,)}, "Y: relu of (4,) does not fit; expected (n, k)."),
        ([("Y", "transpose", "X")], {"X": (4,)}, "Y: transpose of (4,) does not fit; expected (n, k)."),
        ([("Y", "relu", "X")], KNOWN_SHAPES, "W is given, and no step uses it."),
        (
            [("Y", "add", "X", "W")],
            {"X": (4, 4), "W": (4, 4)},
            "a network has one input and one output; this one has the inputs X, W, the outputs Y.",
        ),
        (
            [LINEAR, ("Z", "relu", "X")],
            KNOWN_SHAPES,
            "a network has one input and one output; this one has the inputs X, the outputs Y, Z.",
        ),
        ([], {}, "a network has one input and one output; this one has the inputs –, the outputs –."),
        (
            [("Y", "matmul", "X", "X")],
            {"X": (4, 4)},
            "a network has one input and one output; this one has the inputs –, the outputs Y.",
        ),
        (
            [("Z", "add", "X", "W"), ("Y", "matmul", "Z", "W")],
            {"X": (4, 4), "W": (4, 4)},
            "W is a weight, and Z takes it as y, which has to come from the input.",
        ),
        # Under a second name it would be no weight either.
        (
            [LINEAR, ("Z", "add", "Y", "W")],
            {"X": (4, 4), "W": (4, 4)},
            "W is a weight, and Z takes it as y, which has to come from the input.",
        ),
        (
            [LINEAR, ("Z", "matmul", "Y", "W")],
            KNOWN_SHAPES,
            "the weight W is used by Y and by Z: give it under two names, one for each; its gradient is the sum of "
            "theirs.",
        ),
        (
            [("Y", "relu")],
            {"X": (3, 4)},
            f"step 1 is ('Y', 'relu'): {NAMES}",
        ),
        ([LINEAR, ("Z",)], KNOWN_SHAPES, f"step 2 is ('Z',): {NAMES}"),
        ([LINEAR, ()], KNOWN_SHAPES, f"step 2 is (): {NAMES}"),
        ([("", "relu", "X")], {"X": (3, 4)}, f"step 1 is ('', 'relu', 'X'): {NAMES}"),
        ([LINEAR], {"X": (3, 0), "W": (0, 4)}, f"X has the shape (3, 0): {SIZES}"),
        ([LINEAR], {"X": (3, 4), "W": (4, 0)}, f"W has the shape (4, 0): {SIZES}"),
        ([LINEAR], {"X": (3, 4), "W": (4, -4)}, f"W has the shape (4, -4): {SIZES}"),
        ([LINEAR], {"X": (3, 4), "W": (4, 3.5)}, f"W has the shape (4, 3.5): {SIZES}"),
        ([LINEAR], {"X": (3, 4), "W": [4, True]}, f"W has the shape [4, True]: {SIZES}"),
        ([LINEAR], {"X": (3, 4), "W": ()}, f"W has the shape (): {SIZES}"),
        ([LINEAR], {"X": "34", "W": (4, 4)}, f"X has the shape 34: {SIZES}"),
    ],
)
def test_what_is_no_network(steps, shapes, message):
    for ask in (Network.of, plan, every_plan):
        with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
            ask(steps, shapes)


@pytest.mark.parametrize(
    ("steps", "shapes", "message"),
    [
        (["YreluX"], {"X": (3, 4)}, f"step 1 is 'YreluX': {NAMES}"),
        (("Y", "relu", "X"), {"X": (3, 4)}, f"step 1 is 'Y': {NAMES}"),
        ([3], {"X": (3, 4)}, f"step 1 is 3: {NAMES}"),
        ([("Y", "relu", ["X"])], {"X": (3, 4)}, f"step 1 is ('Y', 'relu', ['X']): {NAMES}"),
        ([("Y", ["relu"], "X")], {"X": (3, 4)}, f"step 1 is ('Y', ['relu'], 'X'): {NAMES}"),
        ([(["Y"], "relu", "X")], {"X": (3, 4)}, f"step 1 is (['Y'], 'relu', 'X'): {NAMES}"),
        ([LINEAR], [(3, 4), (4, 4)], 'shapes are a dictionary such as {"X": (3, 4), "W": (4, 8)}, not list.'),
        (
            [LINEAR],
            {"X": example.X, "W": (4, 4)},
            "X: expected a shape, such as (3, 4), not Tensor. A tensor's shape is its .shape.",
        ),
        (
            [LINEAR],
            {"X": (3, 4), "W": 4},
            "W: expected a shape, such as (3, 4), not int. A tensor's shape is its .shape.",
        ),
    ],
)
def test_what_is_not_even_a_question(steps, shapes, message):
    for ask in (Network.of, plan, every_plan):
        with pytest.raises(TypeError, match=f"^{re.escape(message)}$"):
            ask(steps, shapes)


def test_a_weight_that_two_steps_use_can_be_given_under_two_names():
    """As the message says: the gradient is then the sum of two."""
    steps = [("A", "matmul", "X", "W1"), ("Y", "matmul", "A", "W2")]
    found = plan(steps, {"X": (3, 4), "W1": (4, 4), "W2": (4, 4)}, memory_limit=64, dtype=torch.float64, ranks=4)
    generator = torch.Generator().manual_seed(1)
    x, w, cotangent = (numbers(shape, generator) for shape in ((3, 4), (4, 4), (3, 4)))
    outputs = found.run({"X": x, "W1": w, "W2": w}, cotangent).outputs
    first, second = (
        full([output[f"d{name}"] for output in outputs], found.placements()[f"d{name}"]) for name in ("W1", "W2")
    )
    w.requires_grad_()
    (x @ w @ w).backward(cotangent)
    assert torch.equal(first + second, w.grad)


PLACEMENTS = "expected one of Replicate(), Shard(0), Shard(1), Partial()."
NO_LIMIT = "expected a number of bytes, or None for no limit."
POSITIVE, SECONDS = "expected a positive number", "expected a number of seconds, 0 or more."


@pytest.mark.parametrize(
    ("conditions", "kind", "message"),
    [
        ({"ranks": 0}, ValueError, "ranks=0: expected a whole number, 1 or more."),
        ({"ranks": True}, ValueError, "ranks=True: expected a whole number, 1 or more."),
        ({"ranks": 2.0}, ValueError, "ranks=2.0: expected a whole number, 1 or more."),
        ({"start": Partial()}, ValueError, "start must be Replicate(), Shard(0) or Shard(1), not Partial(sum)."),
        ({"end": Shard(2)}, ValueError, "end must be Replicate(), Shard(0) or Shard(1), not Shard(dim=2)."),
        ({"start": "Shard(0)"}, TypeError, "start must be Replicate(), Shard(0) or Shard(1), not 'Shard(0)'."),
        ({"end": [Shard(0)]}, TypeError, "end must be Replicate(), Shard(0) or Shard(1), not [Shard(dim=0)]."),
        (
            {"layouts": {"A": Shard(1), "B": Shard(1), "X": Shard(1), 3: Shard(0)}},
            ValueError,
            "layouts names 3, B, X, which no step computes; the steps compute A, H, Y.",
        ),
        ({"layouts": {"A": Shard(5)}}, ValueError, f"layouts: A cannot lie like Shard(dim=5); {PLACEMENTS}"),
        ({"layouts": {"A": Partial("max")}}, ValueError, f"layouts: A cannot lie like Partial(max); {PLACEMENTS}"),
        ({"layouts": {"A": "Shard(1)"}}, TypeError, f"layouts: A cannot lie like 'Shard(1)'; {PLACEMENTS}"),
        ({"layouts": {"A": [Shard(1)]}}, TypeError, f"layouts: A cannot lie like [Shard(dim=1)]; {PLACEMENTS}"),
        ({"layouts": {"A": None}}, TypeError, f"layouts: A cannot lie like None; {PLACEMENTS}"),
        ({"layouts": [Shard(1)]}, TypeError, 'layouts are a dictionary such as {"A": Shard(1)}, not list.'),
        ({"memory_limit": "127"}, TypeError, f"memory_limit='127': {NO_LIMIT}"),
        ({"memory_limit": True}, TypeError, f"memory_limit=True: {NO_LIMIT}"),
        ({"memory_limit": float("nan")}, TypeError, f"memory_limit=nan: {NO_LIMIT}"),
        ({"dtype": "float32"}, TypeError, "dtype='float32': expected one of PyTorch's, such as torch.float32."),
        ({"prices": 1e12}, TypeError, "prices=1000000000000.0: expected Prices(Link(latency, bandwidth), flops)."),
        (
            {"prices": Prices(2e11, 2e14)},
            TypeError,
            "prices: link=200000000000.0: expected Link(latency=5e-6, bandwidth=2e11).",
        ),
        *(
            (
                {"prices": Prices(Link(0, 1), bad)},
                ValueError,
                f"prices: flops={bad!r}: {POSITIVE}, of operations a second.",
            )
            for bad in (0, -1.0, float("nan"), "fast", None, True)
        ),
        *(
            (
                {"prices": Prices(Link(0, bad), 1)},
                ValueError,
                f"prices: bandwidth={bad!r}: {POSITIVE}, of bytes a second.",
            )
            for bad in (0, -2e11, float("nan"), "fast")
        ),
        *(
            ({"prices": Prices(Link(bad, 1), 1)}, ValueError, f"prices: latency={bad!r}: {SECONDS}")
            for bad in (-1e-9, float("inf"), float("nan"), "5 µs")
        ),
        (
            {"memory_limit": 127},
            NoPlan,
            "there is no plan in which no rank holds more than 127 bytes of weights.",
        ),
        ({"layouts": {"H": Partial()}}, NoPlan, "there is no plan with H: Partial."),
        (
            {"layouts": {"A": Replicate(), "H": Shard(1)}, "memory_limit": 8},
            NoPlan,
            "there is no plan with A: Replicate, H: Shard(1) in which no rank holds more than 8 bytes of weights.",
        ),
    ],
)
def test_what_cannot_be_planned(conditions, kind, message):
    with pytest.raises(kind, match=f"^{re.escape(message)}$") as caught:
        plan(MLP, shapes_of(X=example.X, **WEIGHTS), **conditions)
    assert type(caught.value) is kind


def test_numbers_of_other_libraries_are_numbers():
    ours = plan(MLP, {"X": (3, 4), "W1": (4, 8), "W2": (8, 4)}, memory_limit=128, prices=Prices(Link(0, 1), 1))
    shapes = {"X": [np.int64(3), 4], "W1": torch.Size((4, 8)), "W2": (8, 4)}
    prices = Prices(Link(np.float32(0), np.int64(1)), Fraction(1))
    theirs = plan(MLP, shapes, memory_limit=np.float64(128), prices=prices)
    assert theirs.price == ours.price
    assert theirs.network.shapes == ours.network.shapes


GIVEN = {"X": example.X, **WEIGHTS}


@pytest.mark.parametrize(
    ("given", "cotangent", "kind", "message"),
    [
        (
            {"W1": example.W1},
            example.X,
            ValueError,
            "given lacks X, W2: the network needs a whole tensor for each of X, W1, W2.",
        ),
        (GIVEN | {"X": example.X.T}, example.X, ValueError, "X is given whole: expected the shape (3, 4), got (4, 3)."),
        (
            # What a rank holds is no whole.
            GIVEN | {"W1": example.W1[:, :4]},
            example.X,
            ValueError,
            "W1 is given whole: expected the shape (4, 8), got (4, 4).",
        ),
        (GIVEN | {"W2": 3}, example.X, TypeError, "W2 is given whole: expected a tensor, got int."),
        ([*GIVEN.values()], example.X, TypeError, "given: expected tensors by their names, not list."),
        (
            GIVEN,
            torch.ones(3, 2),
            ValueError,
            "the cotangent is the gradient of the whole output, Y: expected the shape (3, 4), got (3, 2).",
        ),
        (
            GIVEN,
            torch.tensor(1.0),
            ValueError,
            "the cotangent is the gradient of the whole output, Y: expected the shape (3, 4), got ().",
        ),
        (
            GIVEN,
            None,
            TypeError,
            "the cotangent is the gradient of the whole output, Y: expected a tensor, got NoneType.",
        ),
    ],
)
def test_what_a_plan_is_not_run_on(given, cotangent, kind, message):
    found = plan(MLP, shapes_of(X=example.X, **WEIGHTS), memory_limit=HALF)
    with pytest.raises(kind, match=f"^{re.escape(message)}$"):
        found.run(given, cotangent)
    # On the ranks as well, and every rank says the same.
    with pytest.raises(RankError) as caught:
        tpviz.run(found.program, ranks=2, args=(given, cotangent))
    assert type(caught.value.__cause__) is kind
    assert str(caught.value.__cause__) == message


def test_more_may_be_given_than_the_network_needs():
    found = plan(MLP, shapes_of(X=example.X, **WEIGHTS), memory_limit=HALF)
    assert found.agrees(found.run(GIVEN | {"W3": example.W1}, torch.ones(3, 4)).trace)


# Words


def random_plans(seed, cases=60):
    """Some plans of each of some random networks."""
    draw = random.Random(seed)
    for _case in range(cases):
        case = random_case(draw, most=4)
        plans = every_plan(case.steps, case.shapes, **case.conditions())
        yield from draw.sample(plans, min(len(plans), 4))


def edges(network):
    """(tensor, goal, step) of every use of a tensor that is no weight."""
    steps = enumerate(network.steps)
    inner = [(name, step.output, number) for number, step in steps for name in step.inputs]
    return [
        *(edge for edge in inner if edge[0] not in network.weights),
        (network.output, "the end", len(network.steps)),
    ]


def summed_gradients(found):
    return [each.tensor for each in found.foretold() if each.phase == "gradients"]


def test_explain_has_a_sentence_for_each_edge():
    for found in random_plans("sentences"):
        uses, sentences, summed = edges(found.network), found.explain(), summed_gradients(found)
        assert len(sentences) == len(uses) + len(summed)
        for name, sentence in zip(summed, sentences[len(uses) :], strict=True):
            assert sentence.startswith(f"d{name}: ")
            assert sentence.endswith("all_reduce.")
        for (name, goal, number), sentence in zip(uses, sentences, strict=False):
            assert sentence.startswith(f"{name} → {goal}: ")
            here = [each.conversion for each in found.moves if (each.tensor, each.before_step) == (name, number)]
            if not here:
                assert sentence.endswith(", as it is.")
            if uses.count((name, goal, number)) == 1:  # else see the next test
                assert all(f"{each.before} → {each.after}. {each.why}" in sentence for each in here)


def test_an_edge_that_passes_is_not_explained_by_another_ones_conversion():
    steps = [("A", "matmul", "X", "W"), ("M", "multiply", "A", "A")]
    layouts = {"A": Partial(), "M": Partial()}
    found = plan(steps, {"X": (3, 4), "W": (4, 4)}, start=Shard(1), layouts=layouts)
    assert found.choices[1].inputs == (SHARED, ADDENDS)
    converted = CONVERSIONS[ADDENDS, SHARED]
    assert [sentence for sentence in found.explain() if sentence.startswith("A → M")] == [
        f"A → M: Partial → Replicate, gradient Partial. {converted.why}",
        "A → M: Partial, as it is.",
    ]


def path_to(flow, moves):
    """The conversions among these that end in a flow, and follow each other."""
    for last in moves:
        if last.after == flow:
            return [*path_to(last.before, moves), last]
    return []


def test_each_edge_is_explained_by_the_way_to_its_own_flow():
    # Twice the same tensor, and none of the steps' layouts is left out.
    steps = [("A", "matmul", "X", "W"), ("M", "multiply", "A", "A"), ("Y", "add", "M", "M")]
    shapes, several = {"X": (3, 4), "W": (4, 4)}, 0
    for start in ENDS:
        for found in every_plan(steps, shapes, start=start, end=Shard(1)):
            flows = [flow for choice in found.choices[1:] for flow in choice.inputs]
            for number, (sentence, flow) in enumerate(zip(found.explain()[1:5], flows, strict=True)):
                name, step = ("A", 1) if number < 2 else ("M", 2)
                here = [each.conversion for each in found.moves if (each.tensor, each.before_step) == (name, step)]
                path = path_to(flow, here)
                words = " ".join(f"{each.before} → {each.after}. {each.why}" for each in path)
                assert sentence == f"{name} → {'AMY'[step]}: " + (words or f"{flow}, as it is.")
                several += len(path) < len(here)
    assert several >= 20, "edges beside another one's conversions"


def test_the_table_has_every_step_and_every_collective():
    for found in random_plans("tables"):
        rows, foretold = found.table().rows, found.foretold()
        assert [row[0] for row in rows] == [*(step.output for step in found.network.steps), "end"]
        words = [word for row in rows for cell in row[2:4] if cell != "–" for word in cell.split(", ")]
        names = [f"{each.kind} {'d' * (each.phase == 'backward')}{each.tensor}" for each in foretold]
        assert sorted([*words, *(f"all_reduce {name}" for name in summed_gradients(found))]) == sorted(names)
        assert len(foretold) == found.price.events
        for step, choice, row in zip(found.network.steps, found.choices, rows, strict=False):
            assert row[4] == ", ".join(f"{name}: {flow}" for name, flow in zip(step.inputs, choice.inputs, strict=True))
            assert row[5] == str(choice.output)
        assert all(cell in found._repr_html_() and cell in repr(found) for row in rows for cell in row)


def test_a_plan_says_what_it_costs():
    found = plan(MLP, shapes_of(X=example.X, **WEIGHTS), memory_limit=HALF)
    head = "Plan on 2 ranks: 2 collectives, 20.0 µs, 128 bytes of weights a rank"
    assert repr(found).split("\n")[0] == head
    assert found._repr_html_().startswith(f"<p>{head}</p><table")
    # Two all-reduces on two ranks, each 2 · 5 µs and 48 bytes; the matmuls' 2 · 3 · 2 · 3 · 4 · 4 operations.
    assert found.seconds == pytest.approx(20e-6 + 2 * 48 / 2e11 + 576 / 2e14, rel=1e-9)
    nothing = plan(MLP, shapes_of(X=example.X, **WEIGHTS))
    assert repr(nothing).startswith("Plan on 2 ranks: 0 collectives, < 0.1 µs, 256 bytes")


def test_a_summary_lists_plans_the_cheapest_first():
    plans = every_plan(MLP, shapes_of(X=example.X, **WEIGHTS))
    table = summary(plans, most=5)
    assert table.headings == ("", "A", "H", "Y", "collectives", "time", "weights, one rank")
    assert [row[0] for row in table.rows] == ["1", "2", "3", "4", "5"]
    assert table.rows[0][1:] == ("Replicate", "Replicate", "Replicate", "0", "< 0.1 µs", "256 B")
    for row, found in zip(table.rows, plans, strict=False):
        time = f"{1e6 * found.seconds:.1f} µs" if found.foretold() else "< 0.1 µs"
        assert row[4:] == (str(len(found.foretold())), time, f"{found.weight_bytes} B")
    assert len(summary(plans).rows) == 10
    assert len(summary(plans[:3]).rows) == 3


def test_a_summary_of_nothing_says_so():
    none = every_plan(MLP, shapes_of(X=example.X, **WEIGHTS), memory_limit=1)
    assert none == []
    assert repr(summary(none)) == "There is no plan that holds to the conditions."
    assert "There is no plan that holds to the conditions." in summary(none)._repr_html_()


@pytest.mark.parametrize("most", [0, -1, 2.0, True, None, "5"])
def test_a_summary_has_a_whole_number_of_rows(most):
    plans = [plan(MLP, shapes_of(X=example.X, **WEIGHTS))]
    message = f"most={most!r}: expected a whole number of rows, 1 or more."
    for some in (plans, []):
        with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
            summary(some, most)
