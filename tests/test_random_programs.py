"""Random programs of the conjugate operators against the dense computation: the output and every leaf's gradient.

A program is a list of moves, each legal for the layout in which the last one left the activation. One interpreter
runs it, on a rank with tpviz's operators, densely with no operator at all. All numbers are integers in float64, so
that every comparison is to the bit.
"""

from collections import Counter
from collections.abc import Callable, Mapping
from typing import NamedTuple

import pytest
import torch
from hypothesis import HealthCheck, Phase, find, given, settings
from hypothesis import strategies as st
from torch import Tensor

import tpviz
from tpviz.communicator import Communicator
from tpviz.layouts import Partial, Placement, Replicate, Shard, distribute
from tpviz.sharding import own_slice

PROGRAMS = 4000  # of which at least 2,000 on several ranks, with a gradient that is not zero
DEPTH = 6
RANKS = 5
LARGEST = 2
SIZES = st.integers(1, 5)
SEEDS = st.integers(0, 9999)

Shape = tuple[int, ...]
Operator = Callable[[Tensor, Communicator], Tensor]

# How a tensor lies on the ranks, and how its gradient does. "own" is the same value on every rank, used by each for a
# computation of its own: f's result, or what is gathered or reduced for a sharded consumer.
LAYOUTS: dict[str, tuple[Placement, Placement]] = {
    "replicated": (Replicate(), Replicate()),
    "own": (Replicate(), Partial()),
    "rows": (Shard(0), Shard(0)),
    "columns": (Shard(1), Shard(1)),
    "partial": (Partial(), Replicate()),
}
CUTS = {"rows": 0, "columns": 1}


class Rule(NamedTuple):
    """A legal move: from one layout to another, with a leaf in a third, or what an operator sends."""

    name: str
    before: str
    after: str
    leaf: str = ""
    forward: str = ""
    backward: str = ""


OPERATORS: dict[str, Operator] = {
    "copy": tpviz.copy_to_region,
    "reduce": tpviz.reduce_from_region,
    "reduce, sharded": lambda x, comm: tpviz.reduce_from_region(x, comm, "sharded"),
    "scatter rows": lambda x, comm: tpviz.scatter_to_region(x, comm, 0),
    "scatter columns": tpviz.scatter_to_region,
    "gather rows": lambda x, comm: tpviz.gather_from_region(x, comm, 0),
    "gather columns": tpviz.gather_from_region,
    "gather rows, sharded": lambda x, comm: tpviz.gather_from_region(x, comm, 0, "sharded"),
    "gather columns, sharded": lambda x, comm: tpviz.gather_from_region(x, comm, consumer="sharded"),
    "reduce-scatter rows": tpviz.reduce_scatter_to_region,
    "reduce-scatter columns": lambda x, comm: tpviz.reduce_scatter_to_region(x, comm, 1),
    # No operator of tpviz's: where a rank goes on alone, it may take its slice with nothing sent in either direction.
    "slice rows": lambda x, comm: own_slice(x, 0, comm),
    "slice columns": lambda x, comm: own_slice(x, 1, comm),
}
OPERATOR_RULES = [
    Rule("copy", "replicated", "own", backward="all_reduce"),
    Rule("reduce", "partial", "replicated", forward="all_reduce"),
    Rule("reduce, sharded", "partial", "own", forward="all_reduce", backward="all_reduce"),
]
for _cut in CUTS:
    OPERATOR_RULES += [
        Rule(f"scatter {_cut}", "replicated", _cut, backward="all_gather"),
        Rule(f"gather {_cut}", _cut, "replicated", forward="all_gather"),
        Rule(f"gather {_cut}, sharded", _cut, "own", forward="all_gather", backward="reduce_scatter"),
        Rule(f"reduce-scatter {_cut}", "partial", _cut, forward="reduce_scatter", backward="all_gather"),
        Rule(f"slice {_cut}", "own", _cut),
    ]

# The second argument is the move's leaf, an earlier activation, or for a function of one argument x again.
ARITHMETIC: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "matmul": lambda x, leaf: x @ leaf,
    "plus": lambda x, leaf: x + leaf,
    "times": lambda x, leaf: x * leaf,
    "bias": lambda x, leaf: x + leaf,
    "plus earlier": lambda x, earlier: x + earlier,
    "times earlier": lambda x, earlier: x * earlier,
    "relu": lambda x, _x: torch.relu(x),
    "double": lambda x, _x: 2 * x,
    "transpose": lambda x, _x: x.T,
}
_TRANSPOSED = {"rows": "columns", "columns": "rows"}
# before, leaf, after: a leaf that is "own" is replicated and passes through f.
_MATMULS = [
    ("replicated", "replicated", "replicated"),
    ("own", "columns", "columns"),  # the column layer
    ("columns", "rows", "partial"),  # the row layer
    ("rows", "own", "rows"),
    ("own", "own", "own"),
    ("own", "partial", "partial"),
    ("partial", "own", "partial"),
]
_BIASES = {"replicated": "replicated", "own": "own", "rows": "own", "columns": "rows", "partial": "partial"}
ARITHMETIC_RULES = [
    *(Rule("matmul", before, after, leaf) for before, leaf, after in _MATMULS),
    *(Rule("plus", layout, layout, layout) for layout in LAYOUTS),
    *(Rule("bias", layout, layout, leaf) for layout, leaf in _BIASES.items()),
    *(Rule("times", layout, layout, "own" if layout == "partial" else layout) for layout in LAYOUTS),
    Rule("times", "own", "partial", "partial"),
    *(Rule("plus earlier", layout, layout) for layout in LAYOUTS),
    *(Rule("double", layout, layout) for layout in LAYOUTS),
    *(Rule("transpose", layout, _TRANSPOSED.get(layout, layout)) for layout in LAYOUTS),
    # What is not linear needs finished values.
    *(Rule(name, layout, layout) for name in ("relu", "times earlier") for layout in LAYOUTS if layout != "partial"),
]


class Leaf(NamedTuple):
    shape: Shape
    layout: str
    trained: bool
    seed: int
    through_f: bool = False


class Move(NamedTuple):
    rule: Rule
    shape: Shape
    """The whole activation's, before the move."""
    leaf: Leaf | None
    earlier: int | None


class Program(NamedTuple):
    ranks: int
    start: Leaf
    moves: list[Move]
    layout: str
    """The output's, as is the shape."""
    shape: Shape
    seed: int
    """The cotangent's."""

    def leaves(self) -> list[Leaf]:
        return [self.start, *(move.leaf for move in self.moves if move.leaf)]

    def is_trained(self) -> bool:
        return any(leaf.trained for leaf in self.leaves())


# Making a program


def leaf_shape(name: str, shape: Shape, width: int) -> Shape:
    """Return the shape of a move's leaf; ``width`` is free where a product has a new number of columns."""
    return {"matmul": (shape[1], width), "bias": shape[1:]}.get(name, shape)


def next_shape(name: str, shape: Shape, leaf: Leaf | None) -> Shape:
    if name == "transpose":
        return shape[::-1]
    return (shape[0], leaf.shape[1]) if name == "matmul" and leaf else shape


def legal_rules(rules: list[Rule], layout: str, moves: list[Move]) -> list[Rule]:
    """Return the rules for this layout; a second product of activations could leave the integers that are exact."""
    squared = any(move.rule.name == "times earlier" for move in moves)
    return [rule for rule in rules if rule.before == layout and not (squared and rule.name == "times earlier")]


@st.composite
def leaves(draw: st.DrawFn, shape: Shape, layout: str, through_f: bool = False) -> Leaf:
    trained = draw(st.sampled_from([True, True, True, False]))
    return Leaf(shape, "replicated" if through_f else layout, trained, draw(SEEDS), through_f)


@st.composite
def programs(draw: st.DrawFn) -> Program:
    layout = draw(st.sampled_from(sorted(LAYOUTS)))
    shape: Shape = (draw(SIZES), draw(SIZES))
    start = draw(leaves(shape, layout))
    history, moves = [(layout, shape)], list[Move]()
    for _step in range(draw(st.sampled_from(range(1, DEPTH + 1)))):
        # Drawn first, since there are fewer operators than ways to compute.
        rules = draw(st.sampled_from([OPERATOR_RULES, ARITHMETIC_RULES]))
        rule = draw(st.sampled_from(legal_rules(rules, layout, moves)))
        leaf = earlier = None
        if rule.leaf:
            leaf = draw(leaves(leaf_shape(rule.name, shape, draw(SIZES)), rule.leaf, rule.leaf == "own"))
        if rule.name.endswith("earlier"):
            earlier = draw(st.sampled_from([i for i, past in enumerate(history) if past == (layout, shape)]))
        moves.append(Move(rule, shape, leaf, earlier))
        layout, shape = rule.after, next_shape(rule.name, shape, leaf)
        history.append((layout, shape))
    return Program(draw(st.sampled_from(range(1, RANKS + 1))), start, moves, layout, shape, draw(SEEDS))


# Running it: the same steps on a rank and densely, where an operator is no operation


def interpret(program: Program, leaves: list[Tensor], operate: Callable[[str, Tensor], Tensor]) -> Tensor:
    history, rest = [leaves[0]], iter(leaves[1:])
    for move in program.moves:
        x, name = history[-1], move.rule.name
        other = x if move.earlier is None else history[move.earlier]
        if move.leaf:
            other = operate("copy", next(rest)) if move.leaf.through_f else next(rest)
        history.append(ARITHMETIC[name](x, other) if name in ARITHMETIC else operate(name, x))
    return history[-1]


class Found(NamedTuple):
    output: Tensor
    gradients: list[Tensor | None]
    """Of the leaves, in their order; None where one is frozen."""


def differentiate(
    program: Program, leaves: list[Tensor], cotangent: Tensor, operate: Callable[[str, Tensor], Tensor]
) -> Found:
    pairs = zip(program.leaves(), leaves, strict=True)
    leaves = [tensor.clone().requires_grad_(leaf.trained) for leaf, tensor in pairs]
    output = interpret(program, leaves, operate)
    if program.is_trained():
        torch.autograd.backward(output, cotangent)
    return Found(output.detach(), [leaf.grad for leaf in leaves])


def integers(seed: int, shape: Shape) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(-LARGEST, LARGEST + 1, shape, generator=generator).double()


def run_densely(program: Program) -> Found:
    wholes = [integers(leaf.seed, leaf.shape) for leaf in program.leaves()]
    return differentiate(program, wholes, integers(program.seed, program.shape), lambda _name, x: x)


def held(seed: int, shape: Shape, placement: Placement, ranks: int) -> list[Tensor]:
    """Return what the ranks hold of the tensor of that seed; partial sums are different on every rank."""
    whole = integers(seed, shape)
    if not isinstance(placement, Partial):
        return distribute(whole, placement, ranks)
    others = [integers(seed + 10_000 * rank, shape) for rank in range(1, ranks)]
    return [whole - sum(others, torch.zeros_like(whole)), *others]


def run_on_ranks(program: Program, operators: Mapping[str, Operator]) -> tuple[list[Found], tpviz.Trace]:
    parts = [held(leaf.seed, leaf.shape, LAYOUTS[leaf.layout][0], program.ranks) for leaf in program.leaves()]
    cotangents = held(program.seed, program.shape, LAYOUTS[program.layout][1], program.ranks)

    def on_rank(comm: Communicator) -> Found:
        mine = [part[comm.rank] for part in parts]
        return differentiate(program, mine, cotangents[comm.rank], lambda name, x: operators[name](x, comm))

    run = tpviz.run(on_rank, ranks=program.ranks)
    return run.outputs, run.trace


# Judging it


def is_held(parts: list[Tensor], placement: Placement, whole: Tensor) -> bool:
    if isinstance(placement, Partial):
        return all(part.shape == whole.shape for part in parts) and torch.equal(torch.stack(parts).sum(0), whole)
    expected = distribute(whole, placement, len(parts))
    return all(torch.equal(part, its) for part, its in zip(parts, expected, strict=True))


def gradient_is_held(parts: list[Tensor | None], placement: Placement, whole: Tensor | None) -> bool:
    there = [part for part in parts if part is not None]
    if whole is None:
        return not there
    return len(there) == len(parts) and is_held(there, placement, whole)


def wrong_tensors(program: Program, dense: Found, found: list[Found]) -> list[str]:
    """Return which tensors are not the dense computation's: the output, the gradients of leaves by their index."""
    value = LAYOUTS[program.layout][0]
    wrong = [] if is_held([one.output for one in found], value, dense.output) else ["output"]
    for i, leaf in enumerate(program.leaves()):
        parts = [one.gradients[i] for one in found]
        if not gradient_is_held(parts, LAYOUTS[leaf.layout][1], dense.gradients[i]):
            wrong.append(f"gradient of leaf {i}")
    return wrong


Expected = tuple[str, str, Shape]


def foretold(program: Program) -> list[Expected]:
    """Return kind, phase and whole shape of every collective: what is sent back for a gradient nobody wants is none."""
    forward, backward = list[Expected](), list[Expected]()
    wanted = program.start.trained
    for move in program.moves:
        if move.rule.forward:
            forward.append((move.rule.forward, "forward", move.shape))
        if move.rule.backward and wanted:
            backward.append((move.rule.backward, "backward", move.shape))
        if move.leaf and move.leaf.trained:
            wanted = True
            if move.leaf.through_f:
                backward.append(("all_reduce", "backward", move.leaf.shape))
    return forward + backward[::-1]


def ceiling(program: Program) -> float:
    """Return a bound on every number of the computation, partial sums included: all entries as large as they may be.

    With entries of at least 1 and no sign, a gradient grows on its way back, so the start's bounds those between.
    """
    largest_part = LARGEST * (2 * program.ranks - 1)
    leaves = [torch.full(leaf.shape, largest_part).double() for leaf in program.leaves()]
    everything = program._replace(start=program.start._replace(trained=True))
    cotangent = torch.full(program.shape, largest_part).double()
    output, gradients = differentiate(everything, leaves, cotangent, lambda _name, x: x)
    return max(float(tensor.abs().max()) for tensor in (output, *gradients) if tensor is not None)


# The tests


def test_every_gradient_of_random_programs() -> None:
    seen: Counter[object] = Counter()

    @settings(max_examples=PROGRAMS, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
    @given(program=programs())
    def check(program: Program) -> None:
        dense, (found, trace) = run_densely(program), run_on_ranks(program, OPERATORS)
        assert wrong_tensors(program, dense, found) == []
        assert [(event.kind, event.phase, event.shape) for event in trace] == foretold(program)
        assert trace.warnings == ()
        assert ceiling(program) <= 2**53
        telling = program.ranks > 1 and any(dw is not None and bool(dw.any()) for dw in dense.gradients)
        seen.update({("telling", telling), program.ranks, program.layout, *(move.rule for move in program.moves)})

    check()
    assert seen["telling", True] >= 2000
    things = [*range(1, RANKS + 1), *LAYOUTS, *OPERATOR_RULES, *ARITHMETIC_RULES]
    assert [thing for thing in things if seen[thing] < 25] == []


# What a learner may get wrong, each with the right forward; the test above would be worth nothing if it passed.
MUTANTS: dict[str, dict[str, Operator]] = {
    "f left out": {"copy": lambda x, comm: x},
    "g's gradient is added up": {"reduce": OPERATORS["reduce, sharded"]},
    "the sum's gradient is not added up": {"reduce, sharded": OPERATORS["reduce"]},
    "a slice for scatter": {"scatter columns": OPERATORS["slice columns"]},
    "the gathered's gradient is not added up": {"gather rows, sharded": OPERATORS["gather rows"]},
    "the gathered's gradient is added up": {"gather columns": OPERATORS["gather columns, sharded"]},
    "g and a slice for reduce-scatter": {
        "reduce-scatter rows": lambda x, comm: own_slice(tpviz.reduce_from_region(x, comm), 0, comm),
    },
}


@pytest.mark.parametrize("mutant", MUTANTS)
def test_a_wrong_operator_is_found_by_its_gradients(mutant: str) -> None:
    def wrong(program: Program) -> list[str]:
        found, _trace = run_on_ranks(program, OPERATORS | MUTANTS[mutant])
        return wrong_tensors(program, run_densely(program), found)

    search = settings(max_examples=PROGRAMS, deadline=None, derandomize=True, phases=[Phase.generate])
    program = find(programs(), lambda program: bool(wrong(program)), settings=search)
    assert "output" not in wrong(program)
    assert wrong_tensors(program, run_densely(program), run_on_ranks(program, OPERATORS)[0]) == []
