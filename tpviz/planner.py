"""The planner: the cheapest layouts for a network of operators, by exact search, and the price of any others (layouts).

A network is a list of steps, each an operator of ``rules.OPERATORS``; tensors have rows and features. For every step a
*choice* says how its inputs, its weight and its output lie, forward and backward: the rules say which choices there
are. Between a tensor's producer and its consumers the conversions of ``conversions.py`` are done, each at most once,
however many consumers there are. What is counted: the collectives in both directions and those that add up gradients
of replicated weights (α–β), the matmuls' arithmetic, and the bytes of weights that one rank holds.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import product
from math import prod
from typing import NamedTuple

import torch
from torch.distributed.tensor.placement_types import Partial, Placement, Replicate, Shard

from tpviz.chunking import chunk_sizes
from tpviz.conversions import ADDENDS, COLUMNS, CONVERSIONS, FLOWS, ROWS, Conversion, Flow
from tpviz.costs import Link, collective_seconds
from tpviz.i18n import _
from tpviz.rules import OPERATORS, Ruling, gradients, passes, str_of

R, PARTIAL = Replicate(), Partial()
KNOWN = (
    *("matmul", "add", "add_bias", "multiply", "scale", "relu", "gelu", "silu", "square"),
    *("softmax", "layer_norm", "rms_norm", "transpose"),
)
"""The operators that a network may have: those between matrices, without random numbers."""
_TICK = 1e-15
"""Prices are added as whole femtoseconds, so that no order of summation makes a difference."""


class Step(NamedTuple):
    """One operator of a network: the name of its output, the operator, the names of its inputs."""

    output: str
    operator: str
    inputs: tuple[str, ...]


class Choice(NamedTuple):
    """How a step's tensors lie: a flow for each input (a weight is an input), and one for the output."""

    inputs: tuple[Flow, ...]
    output: Flow


class Prices(NamedTuple):
    """What a plan is charged for: the link between the ranks, and the arithmetic of one rank (operations a second)."""

    link: Link
    flops: float


@dataclass(frozen=True)
class Network:
    """Steps, in an order in which they can be done, and the shapes of what is given: the input and the weights."""

    steps: tuple[Step, ...]
    given: Mapping[str, tuple[int, ...]]
    weights: frozenset[str]
    shapes: Mapping[str, tuple[int, ...]]
    """Of every tensor, given or computed."""

    @staticmethod
    def of(steps: Sequence[Sequence[str]], shapes: Mapping[str, Sequence[int] | torch.Size]) -> Network:
        """Check a network: each step as (output, operator, *inputs), and the shapes of the input and the weights.

        A given tensor is a weight where an operator takes it as one; exactly one is left as the input, and exactly one
        output is used by no other step.
        """
        given = {name: tuple(shape) for name, shape in shapes.items()}
        known: dict[str, tuple[int, ...]] = dict(given)
        checked, weights = [], set()
        for output, operator, *inputs in steps:
            if operator not in KNOWN:
                message = _("{operator!r} is no operator of a network; expected one of {known}.")
                raise ValueError(message.format(operator=operator, known=", ".join(KNOWN)))
            names = OPERATORS[operator].inputs
            if len(inputs) != len(names):
                message = _("{output}: {operator} takes {expected} inputs, {names}, not {came}.")
                numbers = {"expected": len(names), "came": len(inputs), "names": ", ".join(names)}
                raise ValueError(message.format(output=output, operator=operator, **numbers))
            for name, role in zip(inputs, names, strict=True):
                if name not in known:
                    message = _("{output} needs {name}, which is neither given nor computed before.")
                    raise ValueError(message.format(output=output, name=name))
                if name in given and role == OPERATORS[operator].weight:
                    weights.add(name)
            if output in known:
                raise ValueError(_("{output} is there twice.").format(output=output))
            known[output] = _shape(output, operator, [known[name] for name in inputs])
            checked.append(Step(output, operator, tuple(inputs)))
        network = Network(tuple(checked), given, frozenset(weights), known)
        network._check()
        return network

    def _check(self) -> None:
        inputs = [name for name in self.given if name not in self.weights]
        used = {name for step in self.steps for name in step.inputs}
        ends = [step.output for step in self.steps if step.output not in used]
        for name in self.given:
            if name not in used:
                raise ValueError(_("{name} is given, and no step uses it.").format(name=name))
        if len(inputs) != 1 or len(ends) != 1:
            message = _("a network has one input and one output; this one has the inputs {inputs}, the outputs {ends}.")
            raise ValueError(message.format(inputs=", ".join(inputs) or "–", ends=", ".join(ends) or "–"))
        for step in self.steps:
            for name, role in zip(step.inputs, OPERATORS[step.operator].inputs, strict=True):
                if name in self.weights and role != OPERATORS[step.operator].weight:
                    message = _("{name} is a weight, and {output} takes it as {role}.")
                    raise ValueError(message.format(name=name, output=step.output, role=role))
                if name in self.weights and sum(name in other.inputs for other in self.steps) > 1:
                    raise ValueError(_("the weight {name} is used by two steps: give it twice.").format(name=name))

    @cached_property
    def input(self) -> str:
        """The name of the tensor that is given and is no weight."""
        return next(name for name in self.given if name not in self.weights)

    @property
    def output(self) -> str:
        """The name of the tensor that no step uses."""
        used = {name for step in self.steps for name in step.inputs}
        return next(step.output for step in self.steps if step.output not in used)

    @cached_property
    def last_use(self) -> Mapping[str, int]:
        """Of every tensor that is no weight, the number of the last step that uses it; the output's is beyond all."""
        found = {self.output: len(self.steps)}
        for number, step in enumerate(self.steps):
            found.update((name, number) for name in step.inputs if name not in self.weights)
        return found


def _shape(output: str, operator: str, shapes: list[tuple[int, ...]]) -> tuple[int, ...]:
    first = shapes[0]
    result: tuple[int, ...]
    if operator == "matmul":
        expected = len(first) == len(shapes[1]) == 2 and first[1] == shapes[1][0]
        result = (first[0], shapes[1][-1])
    elif operator == "transpose":
        expected, result = len(first) == 2, first[::-1]
    else:
        sizes = {"add": first, "multiply": first}.get(operator, first[-1:])
        expected, result = len(first) == 2 and all(shape == sizes for shape in shapes[1:]), first
    if not expected:
        message = _("{output}: {operator} of {shapes} does not fit.")
        raise ValueError(message.format(output=output, operator=operator, shapes=", ".join(map(str, shapes))))
    return result


# What a step can do


def choices(network: Network, step: Step) -> list[Choice]:
    """Return every way in which a step's tensors may lie, by the rules."""
    return list(_choices(step.operator, tuple(name in network.weights for name in step.inputs)))


@lru_cache
def _choices(operator: str, weights: tuple[bool, ...]) -> tuple[Choice, ...]:
    known = OPERATORS[operator]
    possible: list[Sequence[Placement]] = []
    for name, weight in zip(known.inputs, weights, strict=True):
        shards = [Shard(0)] if name in known.vectors else [Shard(0), Shard(1)]
        possible.append([R, *shards] if weight else [R, *shards, PARTIAL])
    found = []
    for placements in product(*possible):
        ruling = passes(operator, *placements)
        if not ruling:
            continue
        for gradient in (R, PARTIAL) if ruling.output == R else (None,):
            found.append(_choice(ruling, gradient))
    return tuple(found)


def _choice(ruling: Ruling, gradient: Placement | None) -> Choice:
    assert ruling.output is not None
    back = [each for each in gradients(ruling, gradient) if each is not None]
    flows = {flow.value: flow for flow in (ROWS, COLUMNS, ADDENDS)}
    output = flows[ruling.output] if gradient is None else Flow(R, gradient)
    return Choice(tuple(Flow(value, each) for value, each in zip(ruling.inputs, back, strict=True)), output)


# What a tensor's conversions cost


@lru_cache
def trees(produced: Flow, needed: frozenset[Flow]) -> tuple[tuple[Conversion, ...], ...]:
    """Return the ways to make the needed flows of a produced one: each as a set of conversions, each done once."""
    others = [flow for flow in FLOWS if flow != produced]
    wanted = needed - {produced}
    found = []
    for chosen in product((False, True), repeat=len(others)):
        nodes = [flow for flow, inside in zip(others, chosen, strict=True) if inside]
        if not wanted <= set(nodes):
            continue
        ways = [
            [c for c in CONVERSIONS.values() if c.after == node and c.before in (produced, *nodes)] for node in nodes
        ]
        for way in product(*ways):
            if _is_tree(produced, way) and all(
                each.after in wanted or any(other.before == each.after for other in way) for each in way
            ):
                found.append(way)
    return tuple(found)


def _is_tree(root: Flow, way: Sequence[Conversion]) -> bool:
    reached, left = {root}, list(way)
    while left:
        ready = [each for each in left if each.before in reached]
        if not ready:
            return False
        reached.update(each.after for each in ready)
        left = [each for each in left if each not in ready]
    return True


class Price(NamedTuple):
    """What something costs; prices of parts add up. Compared by time, then by the number of collectives."""

    ticks: int
    """Femtoseconds."""
    events: int
    weight_bytes: int

    def plus(self, other: Price) -> Price:
        """The price of both."""
        return Price(self.ticks + other.ticks, self.events + other.events, self.weight_bytes + other.weight_bytes)

    @property
    def seconds(self) -> float:
        """The time."""
        return self.ticks * _TICK


FREE = Price(0, 0, 0)


class Accountant:
    """Prices of a network's parts, for a number of ranks, a link and a speed. Looks nothing up twice."""

    def __init__(self, network: Network, ranks: int, prices: Prices, itemsize: int) -> None:
        self.network, self.ranks, self.prices, self.itemsize = network, ranks, prices, itemsize
        self._trees: dict[
            tuple[tuple[int, ...], Flow, frozenset[Flow]], tuple[Price, tuple[Conversion, ...]] | None
        ] = {}

    def _ticks(self, seconds: float) -> int:
        return round(seconds / _TICK)

    def tree(self, tensor: str, produced: Flow, needed: frozenset[Flow]) -> tuple[Price, tuple[Conversion, ...]] | None:
        """Return the cheapest conversions of a tensor, with their price; None if there is no way."""
        shape = self.network.shapes[tensor]
        key = shape, produced, needed
        if key not in self._trees:
            priced = [(self._tree_price(shape, way), way) for way in trees(produced, needed)]
            self._trees[key] = min(priced, key=lambda each: each[0]) if priced else None
        return self._trees[key]

    def _tree_price(self, shape: tuple[int, ...], way: Sequence[Conversion]) -> Price:
        ticks = sum(self._ticks(each.seconds(shape, self.itemsize, self.ranks, self.prices.link)) for each in way)
        return Price(ticks, sum(len(each.kinds()) for each in way), 0)

    def step(self, step: Step, choice: Choice) -> Price:
        """Return what a step costs by itself: its arithmetic, its weight, and the sum of its weight's gradients."""
        total = Price(self._ticks(self._arithmetic(step, choice) / self.prices.flops), 0, 0)
        for name, flow in zip(step.inputs, choice.inputs, strict=True):
            if name in self.network.weights:
                total = total.plus(self._weight(self.network.shapes[name], flow))
        return total

    def _weight(self, shape: tuple[int, ...], flow: Flow) -> Price:
        size = prod(shape) * self.itemsize
        if isinstance(flow.value, Shard):
            dim = flow.value.dim
            return Price(0, 0, size // shape[dim] * max(chunk_sizes(shape[dim], self.ranks)))
        if flow.gradient == R:
            return Price(0, 0, size)
        return Price(self._ticks(collective_seconds("all_reduce", size, self.ranks, self.prices.link)), 1, size)

    def _arithmetic(self, step: Step, choice: Choice) -> float:
        """Return the operations of one rank's matmul and of its two gradients (the others are not counted)."""
        if step.operator != "matmul":
            return 0.0
        sizes = [list(self.network.shapes[name]) for name in step.inputs]
        for size, flow in zip(sizes, choice.inputs, strict=True):
            if isinstance(flow.value, Shard):
                size[flow.value.dim] = max(chunk_sizes(size[flow.value.dim], self.ranks))
        return 3 * 2.0 * sizes[0][0] * sizes[0][1] * sizes[1][1]


# The search

_Status = tuple[Flow, frozenset[Flow]]
"""Of a tensor that some step will still use: how it was produced, and which flows have been asked for so far."""


class _Label(NamedTuple):
    """A way to have come so far: its price, and by which choices."""

    price: Price
    choice: Choice | None
    before: _Label | None


class NoPlan(ValueError):
    """No plan holds to the conditions."""


def search(
    accountant: Accountant,
    start: Flow,
    end: Flow,
    memory_limit: float | None = None,
    layouts: Mapping[str, Placement] | None = None,
) -> list[Choice]:
    """Return the choices of the cheapest plan: the least time, then the fewest collectives, then the least memory.

    It goes through the steps in order, and keeps for each state of the tensors that are still to be used the ways that
    no other one beats, in time or in memory: exact, and as cheap as the network is narrow. ``layouts`` fixes the
    placements of some outputs.
    """
    network = accountant.network
    live: tuple[tuple[str, _Status], ...] = ((network.input, (start, frozenset())),)
    front: dict[tuple[tuple[str, _Status], ...], list[_Label]] = {live: [_Label(FREE, None, None)]}
    for number, step in enumerate(network.steps):
        reached: dict[tuple[tuple[str, _Status], ...], list[_Label]] = {}
        wanted = None if layouts is None else layouts.get(step.output)
        possible = [
            (choice, accountant.step(step, choice))
            for choice in choices(network, step)
            if wanted is None or choice.output.value == wanted
        ]
        for state, labels in front.items():
            for choice, own in possible:
                after = _advance(accountant, number, step, dict(state), choice)
                if after is None:
                    continue
                statuses, price = after
                price = price.plus(own)
                reached.setdefault(statuses, []).extend(
                    _Label(label.price.plus(price), choice, label) for label in labels
                )
        front = {state: _unbeaten(labels, memory_limit) for state, labels in reached.items()}
    finished: list[_Label] = []
    for ((_name, (flow, _needed)),), labels in front.items():
        tree = accountant.tree(network.output, flow, frozenset({end}))
        if tree is not None:
            finished += [label._replace(price=label.price.plus(tree[0])) for label in labels]
    if not finished:
        raise NoPlan(_no_plan(memory_limit, layouts))
    label: _Label | None = min(finished, key=lambda each: each.price)
    found = []
    while label is not None and label.choice is not None:
        found.append(label.choice)
        label = label.before
    return found[::-1]


def _no_plan(memory_limit: float | None, layouts: Mapping[str, Placement] | None) -> str:
    sentence = _("there is no plan")
    if layouts:
        names = ", ".join(f"{name}: {str_of(placement)}" for name, placement in layouts.items())
        sentence = _("{sentence} with {layouts}").format(sentence=sentence, layouts=names)
    if memory_limit is not None:
        message = _("{sentence} in which no rank holds more than {limit:g} bytes of weights")
        sentence = message.format(sentence=sentence, limit=memory_limit)
    return _("{sentence}.").format(sentence=sentence)


def _advance(
    accountant: Accountant, number: int, step: Step, live: dict[str, _Status], choice: Choice
) -> tuple[tuple[tuple[str, _Status], ...], Price] | None:
    """Return the state after a step, and the price of the conversions that are settled by it; None if it cannot be."""
    network, price = accountant.network, FREE
    for name, flow in zip(step.inputs, choice.inputs, strict=True):
        if name in network.weights:
            continue
        produced, needed = live[name]
        live[name] = produced, needed | {flow}
        if accountant.tree(name, *live[name]) is None:
            return None
    for name in {name for name in step.inputs if name not in network.weights}:
        if network.last_use[name] == number:
            tree = accountant.tree(name, *live.pop(name))
            assert tree is not None
            price = price.plus(tree[0])
    live[step.output] = choice.output, frozenset()
    return tuple(sorted(live.items(), key=lambda item: item[0])), price


def _unbeaten(labels: list[_Label], memory_limit: float | None) -> list[_Label]:
    """The labels that no other one beats in both time and memory; without a limit only the best counts."""
    if memory_limit is None:
        return [min(labels, key=lambda label: label.price)]
    kept: list[_Label] = []
    for label in sorted(labels, key=lambda label: (label.price.weight_bytes, label.price)):
        if label.price.weight_bytes <= memory_limit and (not kept or label.price[:2] < kept[-1].price[:2]):
            kept.append(label)
    return kept


def every_choice(network: Network) -> Iterator[list[Choice]]:
    """Yield every combination of choices, possible or not: for small networks."""
    for combination in product(*(choices(network, step) for step in network.steps)):
        yield list(combination)
