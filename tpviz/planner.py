"""The planner: the cheapest layouts for a network of operators, by exact search, and the price of any others (layouts).

A network is a list of steps, each an operator of ``rules.OPERATORS``; tensors have rows and features. For every step a
*choice* says how its inputs, its weight and its output lie, forward and backward: the rules say which choices there
are. Between a tensor's producer and its consumers the conversions of ``conversions.py`` are done, each at most once,
however many consumers there are. What is counted: the collectives in both directions and those that add up gradients
of replicated weights (α–β), the matmuls' arithmetic, and the bytes of weights that one rank holds.

The plan found is optimal over these conversions. Some that would send nothing are not among them, such as those into
addends (see ``conversions.CONVERSIONS``): with them another plan might be cheaper still.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import product
from math import inf, isnan, prod
from numbers import Integral, Real
from operator import itemgetter
from typing import Any, NamedTuple, cast

import torch
from torch.distributed.tensor.placement_types import Partial, Placement, Replicate, Shard

from tpviz.chunking import chunk_sizes
from tpviz.conversions import ADDENDS, COLUMNS, CONVERSIONS, FLOWS, ROWS, Conversion, Flow
from tpviz.costs import Link, collective_seconds
from tpviz.i18n import _, ngettext
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

    def check(self) -> None:
        """Refuse what would make time negative, infinite or no number."""
        flops, link = self.flops, cast(Any, self.link)
        if not isinstance(link, Link):
            example = "Link(latency=5e-6, bandwidth=2e11)"
            raise TypeError(_("prices: link={link!r}: expected {example}.").format(link=link, example=example))
        if not is_number(flops) or flops <= 0:
            message = _("prices: flops={flops!r}: expected a positive number, of operations a second.")
            raise ValueError(message.format(flops=flops))
        if not is_number(link.bandwidth) or link.bandwidth <= 0:
            message = _("prices: bandwidth={bandwidth!r}: expected a positive number, of bytes a second.")
            raise ValueError(message.format(bandwidth=link.bandwidth))
        if not is_number(link.latency) or not 0 <= link.latency < inf:
            message = _("prices: latency={latency!r}: expected a number of seconds, 0 or more.")
            raise ValueError(message.format(latency=link.latency))


def is_number(value: object) -> bool:
    """Whether something is a real number, and neither a truth value nor NaN."""
    return not isinstance(value, bool) and isinstance(value, Real) and not isnan(value)


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
        given = _given(shapes)
        known: dict[str, tuple[int, ...]] = dict(given)
        checked, weights = [], set()
        for number, step in enumerate(steps, 1):
            output, operator, *inputs = _entries(step, number)
            if operator not in KNOWN:
                message = _("{operator!r} is no operator of a network; expected one of {known}.")
                raise ValueError(message.format(operator=operator, known=", ".join(KNOWN)))
            names = OPERATORS[operator].inputs
            if len(inputs) != len(names):
                message = ngettext(
                    "{output}: {operator} takes {expected} input, {names}, not {came}.",
                    "{output}: {operator} takes {expected} inputs, {names}, not {came}.",
                    len(names),
                )
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
        uses = [
            (name, step.output, role == OPERATORS[step.operator].weight, role)
            for step in self.steps
            for name, role in zip(step.inputs, OPERATORS[step.operator].inputs, strict=True)
            if name in self.weights
        ]
        for name, output, as_weight, role in uses:
            if not as_weight:
                message = _("{name} is a weight, and {output} takes it as {role}, which has to come from the input.")
                raise ValueError(message.format(name=name, output=output, role=role))
        for name in self.given:
            outputs = [output for used, output, _as_weight, _role in uses if used == name]
            if len(outputs) > 1:
                message = _(
                    "the weight {name} is used by {first} and by {second}: give it under two names, one for each; its "
                    "gradient is the sum of theirs."
                )
                raise ValueError(message.format(name=name, first=outputs[0], second=outputs[1]))

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


def _given(shapes: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    """The shapes as tuples of positive whole numbers."""
    if not isinstance(shapes, Mapping):
        raise TypeError(
            _("shapes are a dictionary such as {example}, not {type}.").format(
                example='{"X": (3, 4), "W": (4, 8)}', type=type(shapes).__name__
            )
        )
    found = {}
    for name, shape in shapes.items():
        if not isinstance(shape, Sequence):
            message = _("{name}: expected a shape, such as (3, 4), not {type}. A tensor's shape is its .shape.")
            raise TypeError(message.format(name=name, type=type(shape).__name__))
        whole = all(not isinstance(size, bool) and isinstance(size, Integral) for size in shape)
        if not shape or not whole or min(shape) < 1:
            message = _("{name} has the shape {shape}: expected positive whole numbers, such as (3, 4).")
            raise ValueError(message.format(name=name, shape=shape))
        found[name] = tuple(map(int, shape))
    return found


def _entries(step: Any, number: int) -> Sequence[str]:
    """A step's entries: three names or more."""
    message = _("step {number} is {step!r}: expected an output, an operator and its inputs, such as {example}.")
    words = message.format(number=number, step=step, example=("A", "matmul", "X", "W"))
    if isinstance(step, str) or not isinstance(step, Sequence) or not all(isinstance(entry, str) for entry in step):
        raise TypeError(words)
    if len(step) < 3 or not all(step):
        raise ValueError(words)
    return step


def _shape(output: str, operator: str, shapes: list[tuple[int, ...]]) -> tuple[int, ...]:
    """The shape of a step's output."""
    first = shapes[0]
    result: tuple[int, ...]
    if operator == "matmul":
        fits = len(first) == len(shapes[1]) == 2 and first[1] == shapes[1][0]
        expected, result = "(n, k), (k, m)", (first[0], shapes[1][-1])
    elif operator == "transpose":
        fits, expected, result = len(first) == 2, "(n, k)", first[::-1]
    else:
        alike = operator in ("add", "multiply")
        fits = len(first) == 2 and all(shape == (first if alike else first[1:]) for shape in shapes[1:])
        expected, result = ", ".join(["(n, k)", *["(n, k)" if alike else "(k,)" for _shape in shapes[1:]]]), first
    if not fits:
        message = _("{output}: {operator} of {shapes} does not fit; expected {expected}.")
        words = {"shapes": ", ".join(map(str, shapes)), "expected": expected}
        raise ValueError(message.format(output=output, operator=operator, **words))
    return result


# What a step can do


def choices(network: Network, step: Step) -> list[Choice]:
    """Return every way in which a step's tensors may lie, by the rules."""
    return list(_choices(step.operator, tuple(name in network.weights for name in step.inputs)))


@cache
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

Status = int
"""How a tensor was produced, and which flows it is needed in: a bit for each flow, twice over (see ``status``)."""
_BITS = {flow: 1 << number for number, flow in enumerate(FLOWS)}
_CONVERSIONS = tuple(CONVERSIONS.values())


def status(produced: Flow, *needed: Flow) -> Status:
    """Return the number of a status. One more needed flow is one more bit: ``status | _BITS[flow]``."""
    return _BITS[produced] << len(FLOWS) | sum(_BITS[flow] for flow in {*needed})


@cache
def trees(tensor: Status) -> tuple[tuple[int, ...], ...]:
    """Return the ways to make the needed flows of the produced one.

    Each is a set of conversions, each done once, as their places in ``CONVERSIONS``.
    """
    produced, wanted = tensor >> len(FLOWS), tensor % (1 << len(FLOWS))
    wanted &= ~produced
    edges = [(place, _BITS[each.before], _BITS[each.after]) for place, each in enumerate(_CONVERSIONS)]
    others = [bit for bit in _BITS.values() if bit != produced]
    found = []
    for chosen in product((False, True), repeat=len(others)):
        nodes = [bit for bit, inside in zip(others, chosen, strict=True) if inside]
        there = produced | sum(nodes)
        if wanted & ~there:
            continue
        into = [[edge for edge in edges if edge[2] == node and edge[1] & there] for node in nodes]
        for way in product(*into):
            left_from = sum({before for _place, before, _after in way})
            if not sum(nodes) & ~(wanted | left_from) and _is_tree(produced, way):
                found.append(tuple(place for place, _before, _after in way))
    return tuple(found)


def _is_tree(root: int, way: Sequence[tuple[int, int, int]]) -> bool:
    """Whether all edges (place, before, after), one into each node, hang together with the root."""
    reached, left = root, way
    while left:
        waiting = [edge for edge in left if not edge[1] & reached]
        if len(waiting) == len(left):
            return False
        reached |= sum(after for _place, before, after in left if before & reached)
        left = waiting
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
        prices.check()
        self.network, self.ranks, self.prices, self.itemsize = network, ranks, prices, itemsize
        self._conversions: dict[tuple[int, ...], list[Price]] = {}
        self._trees: dict[tuple[tuple[int, ...], Status], tuple[Price, tuple[Conversion, ...]] | None] = {}

    def _ticks(self, seconds: float) -> int:
        return round(seconds / _TICK)

    def tree(self, tensor: str, which: Status) -> tuple[Price, tuple[Conversion, ...]] | None:
        """Return the cheapest conversions of a tensor, with their price; None if there is no way."""
        shape = self.network.shapes[tensor]
        if (shape, which) not in self._trees:
            self._trees[shape, which] = self._cheapest_tree(shape, which)
        return self._trees[shape, which]

    def _cheapest_tree(self, shape: tuple[int, ...], which: Status) -> tuple[Price, tuple[Conversion, ...]] | None:
        if shape not in self._conversions:
            self._conversions[shape] = [self._conversion_price(shape, each) for each in _CONVERSIONS]
        prices = self._conversions[shape]
        priced = [
            (sum(prices[place].ticks for place in way), sum(prices[place].events for place in way), way)
            for way in trees(which)
        ]
        if not priced:
            return None
        ticks, events, way = min(priced, key=itemgetter(0, 1))
        return Price(ticks, events, 0), tuple(_CONVERSIONS[place] for place in way)

    def _conversion_price(self, shape: tuple[int, ...], conversion: Conversion) -> Price:
        seconds = conversion.seconds(shape, self.itemsize, self.ranks, self.prices.link)
        return Price(self._ticks(seconds), len(conversion.kinds()), 0)

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

_State = tuple[Status, ...]
"""The statuses of the tensors that some step will still use, in which they have been needed so far."""


class _Way(NamedTuple):
    """A way to do a step: the statuses of what lives on of its inputs, and its output's; its price; its choice."""

    after: _State
    ticks: int
    events: int
    weight_bytes: int
    choice: Choice


class _Label(NamedTuple):
    """A way to have come so far: its price, and by which choices."""

    ticks: int
    events: int
    weight_bytes: int
    choice: Choice | None
    before: _Label | None


# What labels are compared by. Their prices are no objects of their own, since there may be tens of thousands.
_TIME_FIRST, _MEMORY_FIRST = itemgetter(0, 1, 2), itemgetter(2, 0, 1)


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
    options = [_options(accountant, step, (layouts or {}).get(step.output)) for step in network.steps]
    live = [network.input]
    front: dict[_State, list[_Label]] = {(status(start),): [_Label(0, 0, 0, None, None)]}
    for number, step in enumerate(network.steps):
        # This step takes some of the live tensors, the others wait; what it takes for the last time lives no longer.
        taken = [name for name in live if name in step.inputs]
        waiting = [name for name in live if name not in step.inputs]
        taken_at, waiting_at = ([live.index(name) for name in names] for names in (taken, waiting))
        live = [*waiting, *(name for name in taken if network.last_use[name] > number), step.output]
        ways: dict[_State, list[_Way]] = {}
        reached: dict[_State, list[_Label]] = {}
        for state, labels in front.items():
            here = tuple([state[place] for place in taken_at])
            rest = tuple([state[place] for place in waiting_at])
            if here not in ways:
                ways[here] = _ways(accountant, number, options[number], dict(zip(taken, here, strict=True)))
            for after, ticks, events, size, choice in ways[here]:
                reached.setdefault(rest + after, []).extend(
                    [
                        _Label(label.ticks + ticks, label.events + events, label.weight_bytes + size, choice, label)
                        for label in labels
                        if memory_limit is None or label.weight_bytes + size <= memory_limit
                    ]
                )
        front = {state: _unbeaten(labels, memory_limit) for state, labels in reached.items()}
    finished: list[_Label] = []
    for (last,), labels in front.items():
        tree = accountant.tree(network.output, last | _BITS[end])
        if tree is not None:
            ticks, events, _size = tree[0]
            finished += [each._replace(ticks=each.ticks + ticks, events=each.events + events) for each in labels]
    if not finished:
        raise NoPlan(_no_plan(memory_limit, layouts))
    label: _Label | None = min(finished, key=_TIME_FIRST)
    found = []
    while label is not None and label.choice is not None:
        found.append(label.choice)
        label = label.before
    return found[::-1]


def _options(accountant: Accountant, step: Step, wanted: Placement | None) -> list[tuple[Choice, Price]]:
    """The choices of a step whose output lies as wanted, and what they cost by themselves."""
    return [
        (choice, accountant.step(step, choice))
        for choice in choices(accountant.network, step)
        if wanted is None or choice.output.value == wanted
    ]


def _ways(
    accountant: Accountant, number: int, options: list[tuple[Choice, Price]], taken: Mapping[str, Status]
) -> list[_Way]:
    """The possible ways to do a step that takes tensors of these statuses, with the conversions that it settles."""
    network = accountant.network
    step = network.steps[number]
    found: list[_Way] = []
    for choice, price in options:
        asked = dict(taken)
        for name, flow in zip(step.inputs, choice.inputs, strict=True):
            if name in asked:
                asked[name] |= _BITS[flow]
        ways = [accountant.tree(name, which) for name, which in asked.items()]
        if None in ways:
            continue
        staying = []
        for (name, which), tree in zip(asked.items(), ways, strict=True):
            assert tree is not None
            if network.last_use[name] > number:
                staying.append(which)
            else:
                price = price.plus(tree[0])
        found.append(_Way((*staying, status(choice.output)), *price, choice))
    return found


def _no_plan(memory_limit: float | None, layouts: Mapping[str, Placement] | None) -> str:
    sentence = _("there is no plan")
    if layouts:
        names = ", ".join(f"{name}: {str_of(placement)}" for name, placement in layouts.items())
        sentence = _("{sentence} with {layouts}").format(sentence=sentence, layouts=names)
    if memory_limit is not None:
        message = _("{sentence} in which no rank holds more than {limit:g} bytes of weights")
        sentence = message.format(sentence=sentence, limit=memory_limit)
    return _("{sentence}.").format(sentence=sentence)


def _unbeaten(labels: list[_Label], memory_limit: float | None) -> list[_Label]:
    """The labels that no other one beats in both time and memory; without a limit only the best counts."""
    if memory_limit is None:
        return [min(labels, key=_TIME_FIRST)]
    kept: list[_Label] = []
    for label in sorted(labels, key=_MEMORY_FIRST):
        if not kept or label[:2] < kept[-1][:2]:
            kept.append(label)
    return kept


def every_choice(network: Network) -> Iterator[list[Choice]]:
    """Yield every combination of choices, possible or not: for small networks."""
    for combination in product(*(choices(network, step) for step in network.steps)):
        yield list(combination)
