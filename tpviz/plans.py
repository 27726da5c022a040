"""Plans: layouts for a network, their price, the trace that they foretell, and the program that runs them (layouts).

``plan`` searches for the cheapest; a plan explains itself edge by edge, and runs on any backend.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.distributed.tensor.placement_types import Placement, Replicate, Shard
from torch.nn import functional

from tpviz.communicator import Communicator
from tpviz.conversions import COLUMNS, ROWS, SHARED, WHOLE, Conversion, Flow
from tpviz.costs import Link
from tpviz.i18n import _, ngettext
from tpviz.planner import (
    FREE,
    Accountant,
    Choice,
    Network,
    NoPlan,
    Price,
    Prices,
    Step,
    every_choice,
    is_number,
    search,
    status,
)
from tpviz.rules import PLACEMENTS, str_of
from tpviz.running import Run, run
from tpviz.sharding import shard
from tpviz.tables import Table
from tpviz.trace import Trace

__all__ = ["NoPlan", "Plan", "every_plan", "plan"]

NODE = Prices(Link(5e-6, 2e11), 2e14)
"""Where nothing else is said: ranks joined by a link of 5 µs and 200 GB/s one way, each doing 200 TFLOP/s."""

COMPUTE: Mapping[str, Any] = {
    "matmul": torch.matmul,
    "add": torch.add,
    "add_bias": torch.add,
    "multiply": torch.mul,
    "scale": lambda x: 2 * x,
    "relu": torch.relu,
    "gelu": functional.gelu,
    "silu": functional.silu,
    "square": torch.square,
    "softmax": lambda x: torch.softmax(x, -1),
    "layer_norm": lambda x, weight: functional.layer_norm(x, x.shape[-1:], weight),
    "rms_norm": lambda x, weight: functional.rms_norm(x, x.shape[-1:], weight),
    "transpose": lambda x: x.T,
}
"""What the operators of a network compute; ``scale`` doubles."""


class Foretold(NamedTuple):
    """A collective that a plan will do."""

    kind: str
    phase: str
    payload_bytes: int
    tensor: str


class _Move(NamedTuple):
    """A conversion of a tensor, done before a step (or behind the last one) since this one asks for it."""

    tensor: str
    conversion: Conversion
    before_step: int


@dataclass(frozen=True)
class Plan:
    """Layouts for a network, from its input's placement to its output's."""

    network: Network
    ranks: int
    start: Flow
    end: Flow
    choices: tuple[Choice, ...]
    moves: tuple[_Move, ...]
    """The conversions, in the order in which they are done."""
    price: Price
    dtype: torch.dtype

    @property
    def seconds(self) -> float:
        """How long the collectives and the matmuls take, forward and backward, by the model."""
        return self.price.seconds

    @property
    def weight_bytes(self) -> int:
        """The bytes of weights that a rank holds."""
        return self.price.weight_bytes

    def foretold(self) -> list[Foretold]:
        """Return the collectives that a run of this plan records: forward, backward, and those of the gradients."""
        forward: list[Foretold] = []
        backward: list[Foretold] = []
        for tensor, conversion, _step in self.moves:
            for phase, kind, found in (
                ("forward", conversion.forward, forward),
                ("backward", conversion.backward, backward),
            ):
                if kind is not None:
                    payload = conversion.payload(phase, self.network.shapes[tensor], self.dtype.itemsize, self.ranks)
                    found.append(Foretold(kind, phase, payload, tensor))
        # Autograd goes back the way that forward came, last step first.
        return [*forward, *backward[::-1], *self._summed_gradients()]

    def _summed_gradients(self) -> Iterator[Foretold]:
        for name, flow in self._weights():
            if flow == SHARED:
                size = torch.Size(self.network.shapes[name]).numel() * self.dtype.itemsize
                yield Foretold("all_reduce", "gradients", size, name)

    def _weights(self) -> Iterator[tuple[str, Flow]]:
        for step, choice in zip(self.network.steps, self.choices, strict=True):
            for name, flow in zip(step.inputs, choice.inputs, strict=True):
                if name in self.network.weights:
                    yield name, flow

    def agrees(self, trace: Trace) -> bool:
        """Whether a trace has the collectives that the plan foretells, in order: kind, phase and payload."""
        came = [(event.kind, event.phase, event.payload_bytes) for event in trace if event.phase != "other"]
        return came == [each[:3] for each in self.foretold()]

    # Running

    def program(self, comm: Communicator, given: Mapping[str, Tensor], cotangent: Tensor) -> dict[str, Tensor]:
        """Run the plan on one rank: a rank program.

        Args:
            comm: the ranks that the plan is for.
            given: the whole input and weights, by name.
            cotangent: the gradient of the loss with respect to the whole output.

        Returns what this rank holds of the output, by its name, and of the gradients, as "dX" and so on.
        """
        self._check(given, cotangent)
        network = self.network
        leaves = {network.input: _own(given[network.input], self.start.value, comm)}
        leaves |= {name: _own(given[name], flow.value, comm) for name, flow in self._weights()}
        held = {(network.input, self.start): leaves[network.input]}
        moves = list(self.moves)

        def move(number: int) -> None:
            while moves and moves[0].before_step == number:
                tensor, conversion, _number = moves.pop(0)
                held[tensor, conversion.after] = conversion.apply(held[tensor, conversion.before], comm)

        for number, (step, choice) in enumerate(zip(network.steps, self.choices, strict=True)):
            move(number)
            inputs = [
                leaves[name] if name in network.weights else held[name, flow]
                for name, flow in zip(step.inputs, choice.inputs, strict=True)
            ]
            held[step.output, choice.output] = COMPUTE[step.operator](*inputs)
        move(len(network.steps))
        output = held[network.output, self.end]
        torch.autograd.backward(output, _own(cotangent, self.end.gradient, comm).detach())
        for name, flow in self._weights():
            if flow == SHARED:
                leaves[name].grad = comm.all_reduce(_gradient(leaves[name]), phase="gradients")
        found = {f"d{name}": _gradient(leaf) for name, leaf in leaves.items()}
        return {network.output: output.detach(), **found}

    def run(self, given: Mapping[str, Tensor], cotangent: Tensor, backend: str = "simulated") -> Run:
        """Run the plan on its ranks (see ``program``)."""
        self._check(given, cotangent)
        return run(self.program, ranks=self.ranks, backend=backend, args=(dict(given), cotangent))

    def _check(self, given: Mapping[str, Tensor], cotangent: Tensor) -> None:
        """Refuse what is not of the network's names and shapes."""
        shapes, output = self.network.shapes, self.network.output
        if not isinstance(given, Mapping):
            raise TypeError(_("given: expected tensors by their names, not {type}.").format(type=type(given).__name__))
        missing = ", ".join(name for name in self.network.given if name not in given)
        if missing:
            message = _("given lacks {missing}: the network needs a whole tensor for each of {names}.")
            raise ValueError(message.format(missing=missing, names=", ".join(self.network.given)))
        for name in self.network.given:
            what = _("{name} is given whole").format(name=name)
            _check_tensor(what, given[name], shapes[name])
        what = _("the cotangent is the gradient of the whole output, {name}").format(name=output)
        _check_tensor(what, cotangent, shapes[output])

    def placements(self) -> dict[str, Placement]:
        """How the ranks hold what ``program`` returns: the output, and every gradient."""
        found = {self.network.output: self.end.value, f"d{self.network.input}": self.start.gradient}
        return found | {f"d{name}": flow.value for name, flow in self._weights()}

    # In words

    def table(self) -> Table:
        """Return the plan step by step: what each takes and gives, and which collectives stand before it."""
        rows = []
        for number, (step, choice) in enumerate(zip(self.network.steps, self.choices, strict=True)):
            inputs = ", ".join(f"{name}: {flow}" for name, flow in zip(step.inputs, choice.inputs, strict=True))
            rows.append([step.output, step.operator, *self._traffic(number), inputs, str(choice.output)])
        rows.append([_("end"), "", *self._traffic(len(self.network.steps)), "", str(self.end)])
        headings = [_("step"), _("operator"), _("sent before it, forward"), _("backward"), _("takes"), _("gives")]
        return Table(headings, rows)

    def _traffic(self, number: int) -> list[str]:
        here = [each for each in self.moves if each.before_step == number]
        forward = ", ".join(f"{each.conversion.forward} {each.tensor}" for each in here if each.conversion.forward)
        backward = ", ".join(f"{each.conversion.backward} d{each.tensor}" for each in here if each.conversion.backward)
        return [forward or "–", backward or "–"]

    def explain(self) -> list[str]:
        """Return a sentence for each edge of the network: what passes as it is, and what is converted, and why."""
        sentences = []
        for number, (step, choice) in enumerate(zip(self.network.steps, self.choices, strict=True)):
            for name, flow in zip(step.inputs, choice.inputs, strict=True):
                if name not in self.network.weights:
                    sentences.append(self._edge(name, step, flow, number))
        sentences.append(self._edge(self.network.output, None, self.end, len(self.network.steps)))
        for name, flow in self._weights():
            if flow == SHARED:
                message = _(
                    "d{name}: {name} is whole on every rank, and each knows a part of its gradient: all_reduce."
                )
                sentences.append(message.format(name=name))
        return sentences

    def _edge(self, name: str, step: Step | None, flow: Flow, number: int) -> str:
        goal = _("the end") if step is None else step.output
        moves = [each.conversion for each in self.moves if each.before_step == number and each.tensor == name]
        made = {each.after: each for each in moves}
        path: list[Conversion] = []
        wanted = flow
        while wanted in made:
            path.insert(0, made[wanted])
            wanted = path[0].before
        if not path:
            return _("{name} → {goal}: {flow}, as it is.").format(name=name, goal=goal, flow=flow)
        whys = " ".join(f"{each.before} → {each.after}. {_(each.why)}" for each in path)
        return _("{name} → {goal}: {whys}").format(name=name, goal=goal, whys=whys)

    def __repr__(self) -> str:
        count = self.price.events
        events = ngettext("{n} collective", "{n} collectives", count).format(n=count)
        message = _("Plan on {ranks} ranks: {events}, {time}, {bytes} bytes of weights a rank")
        head = message.format(ranks=self.ranks, events=events, time=_time_text(self.seconds), bytes=self.weight_bytes)
        return f"{head}\n{self.table().text()}"

    def _repr_html_(self) -> str:
        head, _newline, _rest = repr(self).partition("\n")
        return f"<p>{head}</p>{self.table().html()}"


def _check_tensor(what: str, tensor: object, shape: tuple[int, ...]) -> None:
    if not isinstance(tensor, Tensor):
        message = _("{what}: expected a tensor, got {type}.")
        raise TypeError(message.format(what=what, type=type(tensor).__name__))
    if tensor.shape != shape:
        message = _("{what}: expected the shape {expected}, got {came}.")
        raise ValueError(message.format(what=what, expected=shape, came=tuple(tensor.shape)))


def _own(whole: Tensor, placement: Placement, comm: Communicator) -> Tensor:
    """This rank's part of a given tensor, as a leaf."""
    if isinstance(placement, Shard):
        return shard(whole, placement.dim, comm).requires_grad_()
    return whole.detach().clone().to(comm.device).requires_grad_()


def _time_text(seconds: float) -> str:
    """A time in words; what would be rounded to nothing says so."""
    if 0 < seconds < 5e-8:
        return _("< 0.1 µs")
    return f"{1e6 * seconds:.1f} µs"


def _gradient(leaf: Tensor) -> Tensor:
    return torch.zeros_like(leaf) if leaf.grad is None else leaf.grad


def _flow(placement: Placement, what: str) -> Flow:
    flows: dict[Placement, Flow] = {Replicate(): WHOLE, Shard(0): ROWS, Shard(1): COLUMNS}
    if not isinstance(placement, Placement) or placement not in flows:
        message = _("{what} must be Replicate(), Shard(0) or Shard(1), not {placement!r}.")
        kind = ValueError if isinstance(placement, Placement) else TypeError
        raise kind(message.format(what=what, placement=placement))
    return flows[placement]


def _check_layouts(layouts: Mapping[str, Placement], network: Network) -> None:
    """Refuse layouts of other tensors, and what is no placement of a matrix."""
    if not isinstance(layouts, Mapping):
        raise TypeError(
            _("layouts are a dictionary such as {example}, not {type}.").format(
                example='{"A": Shard(1)}', type=type(layouts).__name__
            )
        )
    computed = [step.output for step in network.steps]
    unknown = ", ".join(sorted(str(name) for name in layouts if name not in computed))
    if unknown:
        message = _("layouts names {names}, which no step computes; the steps compute {known}.")
        raise ValueError(message.format(names=unknown, known=", ".join(computed)))
    for name, placement in layouts.items():
        if not isinstance(placement, Placement) or placement not in PLACEMENTS:
            message = _("layouts: {name} cannot lie like {placement!r}; expected one of {known}.")
            kind = ValueError if isinstance(placement, Placement) else TypeError
            known = "Replicate(), Shard(0), Shard(1), Partial()"
            raise kind(message.format(placement=placement, name=name, known=known))


def plan(
    steps: Sequence[Sequence[str]],
    shapes: Mapping[str, Sequence[int] | torch.Size],
    *,
    ranks: int = 2,
    start: Placement = Replicate(),  # noqa: B008 (placements are immutable)
    end: Placement = Replicate(),  # noqa: B008
    memory_limit: float | None = None,
    layouts: Mapping[str, Placement] | None = None,
    prices: Prices = NODE,
    dtype: torch.dtype = torch.float32,
) -> Plan:
    """Return the cheapest plan for a network.

    Args:
        steps: each as (output, operator, *inputs): ``[("A", "matmul", "X", "W1"), ("H", "relu", "A"), ...]``.
        shapes: of the input and of the weights.
        ranks: how many ranks the layouts are for.
        start: how the input lies, and its gradient shall lie.
        end: how the output shall lie, and its gradient will lie.
        memory_limit: how many bytes of weights a rank may hold. Without one, and with a fast enough rank, it may be
            cheapest to hold all of them everywhere and send nothing.
        layouts: placements of some steps' outputs, fixed beforehand: the cheapest plan that has them.
        prices: of the link and of the arithmetic.
        dtype: of all tensors.

    Raises ``NoPlan`` where none holds to the conditions.
    """
    network, accountant, ends = _prepared(steps, shapes, ranks, start, end, memory_limit, prices, dtype)
    if layouts is not None:
        _check_layouts(layouts, network)
    found = _assembled(accountant, *ends, search(accountant, *ends, memory_limit, layouts), dtype)
    assert found is not None
    return found


def every_plan(
    steps: Sequence[Sequence[str]],
    shapes: Mapping[str, Sequence[int] | torch.Size],
    *,
    ranks: int = 2,
    start: Placement = Replicate(),  # noqa: B008
    end: Placement = Replicate(),  # noqa: B008
    memory_limit: float | None = None,
    prices: Prices = NODE,
    dtype: torch.dtype = torch.float32,
) -> list[Plan]:
    """Return every plan for a small network, the cheapest first: one for each way to choose the steps' layouts."""
    network, accountant, ends = _prepared(steps, shapes, ranks, start, end, memory_limit, prices, dtype)
    found = (_assembled(accountant, *ends, combination, dtype) for combination in every_choice(network))
    plans = [each for each in found if each is not None and (memory_limit is None or each.weight_bytes <= memory_limit)]
    return sorted(plans, key=lambda each: each.price)


def _prepared(
    steps: Sequence[Sequence[str]],
    shapes: Mapping[str, Sequence[int] | torch.Size],
    ranks: int,
    start: Placement,
    end: Placement,
    memory_limit: float | None,
    prices: Prices,
    dtype: torch.dtype,
) -> tuple[Network, Accountant, tuple[Flow, Flow]]:
    if not isinstance(ranks, int) or isinstance(ranks, bool) or ranks < 1:
        raise ValueError(_("ranks={ranks!r}: expected a whole number, 1 or more.").format(ranks=ranks))
    if not isinstance(prices, Prices):
        raise TypeError(_("prices={prices!r}: expected Prices(Link(latency, bandwidth), flops).").format(prices=prices))
    if not isinstance(dtype, torch.dtype):
        raise TypeError(_("dtype={dtype!r}: expected one of PyTorch's, such as torch.float32.").format(dtype=dtype))
    if memory_limit is not None and not is_number(memory_limit):
        message = _("memory_limit={limit!r}: expected a number of bytes, or None for no limit.")
        raise TypeError(message.format(limit=memory_limit))
    network = Network.of(steps, shapes)
    ends = _flow(start, "start"), _flow(end, "end")
    return network, Accountant(network, ranks, prices, dtype.itemsize), ends


def _assembled(
    accountant: Accountant, start: Flow, end: Flow, chosen: Sequence[Choice], dtype: torch.dtype
) -> Plan | None:
    """The plan of these choices: the conversions that they need, in the order in which they are asked for."""
    network = accountant.network
    produced = {network.input: start}
    needed: dict[str, list[tuple[Flow, int]]] = {network.input: []}
    price = FREE
    for number, (step, choice) in enumerate(zip(network.steps, chosen, strict=True)):
        price = price.plus(accountant.step(step, choice))
        for name, flow in zip(step.inputs, choice.inputs, strict=True):
            if name not in network.weights:
                needed[name].append((flow, number))
        produced[step.output], needed[step.output] = choice.output, []
    needed[network.output].append((end, len(network.steps)))
    moves: list[tuple[int, int, _Move]] = []
    for name, flow in produced.items():
        tree = accountant.tree(name, status(flow, *(each for each, _number in needed[name])))
        if tree is None:
            return None
        price = price.plus(tree[0])
        made = {each.after: each for each in tree[1]}
        for goal, number in needed[name]:
            path = []
            while goal in made:
                path.append(made.pop(goal))
                goal = path[-1].before
            for each in reversed(path):
                place = len(moves)
                moves.append((number, place, _Move(name, each, number)))
    ordered = tuple(move for _number, _place, move in sorted(moves, key=lambda each: each[:2]))
    return Plan(network, accountant.ranks, start, end, tuple(chosen), ordered, price, dtype)


def summary(plans: Sequence[Plan], most: int = 10) -> Table:
    """Return a table of plans: how each step's output lies, the collectives, the time, and the weights' bytes.

    ``most`` is how many rows it may have; of no plans it is a sentence that says so.
    """
    if not isinstance(most, int) or isinstance(most, bool) or most < 1:
        raise ValueError(_("most={most!r}: expected a whole number of rows, 1 or more.").format(most=most))
    if not plans:
        return Table([], [], empty=_("There is no plan that holds to the conditions."))
    names = [step.output for step in plans[0].network.steps]
    rows = [
        [
            str(number),
            *(str_of(choice.output.value) for choice in each.choices),
            str(each.price.events),
            _time_text(each.seconds),
            f"{each.weight_bytes} B",
        ]
        for number, each in enumerate(plans[:most], 1)
    ]
    return Table(["", *names, _("collectives"), _("time"), _("weights, one rank")], rows)
