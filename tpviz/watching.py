"""Watching: what a PyTorch program sends between its ranks, module by module, as a trace (watching).

Every call of a collective passes PyTorch's dispatcher, whoever makes it: a plan of ``parallelize_module``, DTensor, a
functional collective, ``torch.distributed`` itself. There it is recorded, with the module and the line it belongs to.
"""

from __future__ import annotations

import logging
import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.module_tracker import ModuleTracker

from tpviz.dispatched import NAMESPACES, communication, is_silent
from tpviz.i18n import _
from tpviz.source import Site, call_site, describe
from tpviz.tables import Table, size_text
from tpviz.trace import Event, Trace, layout_text

PHASES = ("forward", "backward", "other")


class Place(NamedTuple):
    """Where in the model an event happened."""

    module: str | None
    """The innermost module's name, as ``named_modules`` gives it: "" is the model itself, None outside of it."""
    recomputed: bool = False
    """Whether it is a checkpointed forward's, which backward runs again."""


class Sent(NamedTuple):
    """What a module sent in one phase; ``modules`` that differ only in a number and sent the same are one."""

    modules: tuple[str | None, ...]
    phase: str
    recomputed: bool
    events: tuple[Event, ...]
    """Those of one of the modules, in their order."""

    @property
    def name(self) -> str:
        """The modules' name in words: ``layers.0–31.mlp.down``."""
        first, last = self.modules[0], self.modules[-1]
        if first is None:
            return _("outside of the model")
        if first == "":
            return _("the model itself")
        if len(self.modules) == 1 or last is None:
            return first
        before, number, after = _numbered(first)
        return f"{before}{number}–{_numbered(last)[1]}{after}"

    @property
    def payload_bytes(self) -> int:
        """What all of these modules sent, in bytes."""
        return len(self.modules) * sum(event.payload_bytes for event in self.events)

    def kinds(self) -> Counter[str]:
        """How many collectives of each kind all of these modules sent."""
        kinds = Counter(event.kind for event in self.events)
        return Counter({kind: len(self.modules) * count for kind, count in kinds.items()})


class Watched:
    """What a watched program sent; shows itself as a table of its modules.

    Attributes:
        model: the model that was watched.
    """

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self._recorded: list[tuple[Event, Place]] = []
        self._unknown: dict[str, None] = {}

    def add(self, event: Event, place: Place) -> None:
        """Take an event into the record."""
        self._recorded.append((event, place))

    def add_unknown(self, operator: str) -> None:
        """Take note of an operator of torch.distributed that cannot be read."""
        self._unknown[operator] = None

    @property
    def trace(self) -> Trace:
        """The events, in the order in which this rank called the collectives."""
        message = _("not recorded: {operator}, whose arguments tpviz does not know how to read.")
        warnings = [message.format(operator=operator) for operator in self._unknown]
        return Trace([event for event, _place in self._recorded], warnings)

    @property
    def places(self) -> tuple[Place, ...]:
        """Where each event of the trace happened: the module, and whether it was recomputed."""
        return tuple(place for _event, place in self._recorded)

    def sent(self) -> list[Sent]:
        """Return what each module sent in each phase: in the model's order, what is outside of the model last."""
        events: dict[tuple[str | None, str, bool], list[Event]] = {}
        for event, (module, recomputed) in self._recorded:
            events.setdefault((module, event.phase, recomputed), []).append(event)
        order: dict[str | None, int] = {name: at for at, (name, _each) in enumerate(self.model.named_modules())}
        order[None] = len(order)
        keys = sorted(events, key=lambda key: (order[key[0]], PHASES.index(key[1]), not key[2]))
        return _joined([Sent((key[0],), key[1], key[2], tuple(events[key])) for key in keys])

    def modules(self) -> Table:
        """Return the table of the modules that sent something: what, how many bytes, and which layouts it changed.

        Layers that differ only in their number and sent the same are one row: ``layers.0–31.mlp.down``. Its collectives
        and bytes are those of all of them.
        """
        rows = []
        for sent in self.sent():
            phase = _phase_text(sent.phase, sent.recomputed)
            layouts = " + ".join(dict.fromkeys(filter(None, map(_change_text, sent.events))))
            lines = ", ".join(dict.fromkeys(event.source for event in sent.events))
            rows.append([sent.name, phase, _counts_text(sent.kinds()), size_text(sent.payload_bytes), layouts, lines])
        if len(rows) > 1:
            for phase in PHASES:
                events = [event for event in self.trace if event.phase == phase]
                if events:
                    counts = _counts_text(Counter(event.kind for event in events))
                    size = size_text(sum(event.payload_bytes for event in events))
                    rows.append([_("in all"), _phase_text(phase), counts, size, "", ""])
        headings = [_("module"), _("phase"), _("sent"), _("payload"), _("layout before → after"), _("line")]
        return Table(headings, rows, _("No collective: nothing was sent between ranks."))

    def __repr__(self) -> str:
        return self.modules().text()

    def _repr_html_(self) -> str:
        return self.modules().html()


@contextmanager
def watch(model: nn.Module) -> Iterator[Watched]:
    """Record every collective that the lines in the ``with`` block call, and the module of ``model`` it belongs to.

    It goes around an existing training step as it stands, which is why it is a context manager: no line of the step
    moves into a function, and where the step raises, what was sent before is there to be looked at::

        with tpviz.watch(model) as watched:
            loss = model(x).sum()
            loss.backward()
            optimizer.step()
        watched           # the table of the modules
        watched.trace     # the events

    Each process records what its own rank calls; the watching itself sends nothing.

    - The phase is "forward" in the forward of the model or of one of its modules, "backward" while autograd runs, and
      "other" outside of both: a loss function, an optimizer's step, gradient clipping.
    - A collective of backward belongs to the module, and has the line, whose forward made the node that autograd runs.
    - A checkpointed forward that backward runs again sends again: recorded in the phase "backward", with
      ``places[index].recomputed``.
    - ``shape`` and ``payload_bytes`` are of what is sent. Where a dimension does not divide, DTensor pads its shards
      to one size, so that they are larger than the tensor.
    - The dimension of an all-gather or a reduce-scatter is in ``options`` where a functional collective or DTensor
      states it. ``torch.distributed``'s own move blocks without saying what becomes of them: None, and no layout.
    - An operator of torch.distributed that is not known is named in ``trace.warnings``. Watch the model before
      ``torch.compile``: not all that a compiled graph calls passes the dispatcher.

    Args:
        model: the module, after ``parallelize_module``.

    Raises:
        TypeError: ``model`` is no module.
    """
    if not isinstance(model, nn.Module):
        raise TypeError(_("watch takes the model, an nn.Module, not {type}.").format(type=type(model).__name__))
    watched = Watched(model)
    with ExitStack() as stack:
        recorder = _Recorder(watched)
        for name, module in model.named_modules():
            # Outside of the hooks in which a plan converts layouts: these belong to the module.
            enter = module.register_forward_pre_hook(recorder.entering(name), prepend=True)
            leave = module.register_forward_hook(recorder.leaving(name), always_call=True)
            stack.callback(enter.remove)
            stack.callback(leave.remove)
        # All of autograd in this thread: sequence numbers count per thread.
        stack.enter_context(torch.autograd.set_multithreading_enabled(False))
        stack.enter_context(recorder)
        yield watched


@contextmanager
def pretended_ranks(ranks: int) -> Iterator[DeviceMesh]:
    """Make this process rank 0 of ``ranks`` that do not exist, to see what a plan sends with no GPU and no process.

    In the ``with`` block torch.distributed is initialised with PyTorch's "fake" backend: every collective returns at
    once. Kinds, ranks, shapes, bytes and layouts are those that rank 0 would see; **the values are meaningless**. They
    must not decide what the program calls. Two more things differ from GPUs: on the CPU DTensor makes an all-gather of
    a change from one sharded dimension to another, where NCCL has an all-to-all; and a collective that would hang or
    fail does neither. ``DistributedDataParallel`` cannot be watched on them (PyTorch 2.13's backend has no result for
    it); on real ranks it can, and ``fully_shard`` on both.

    Yields:
        The mesh of all ranks; other meshes can be made by ``init_device_mesh``.

    Raises:
        ValueError: ``ranks`` is no whole number above 0.
        RuntimeError: torch.distributed is initialised already.
    """
    if not isinstance(ranks, int) or isinstance(ranks, bool) or ranks < 1:
        raise ValueError(_("ranks={ranks!r}: expected a whole number, 1 or more.").format(ranks=ranks))
    if dist.is_initialized():
        message = _(
            "torch.distributed is initialised here already, with {size} ranks ({backend}): watch on them as they are, "
            "or call torch.distributed.destroy_process_group() before."
        )
        raise RuntimeError(message.format(size=dist.get_world_size(), backend=dist.get_backend()))
    # Its module registers the backend; that PyTorch does so itself is new in 2.12.
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=ranks)
    # For shapes that do not fit DTensor writes a page to the log; the exception says the same.
    logger = logging.getLogger("torch._subclasses.fake_tensor")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        yield init_device_mesh("cpu", (ranks,))
    finally:
        logger.setLevel(level)
        if dist.is_initialized():
            dist.destroy_process_group()


class _Here(NamedTuple):
    """Where the program is."""

    phase: str
    place: Place
    site: Site


class _Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Sees every operator call; keeps the modules whose forward is running, and whose nodes autograd made when.

    Autograd numbers its nodes in the order in which a thread makes them. ``_marks`` has the number reached at each
    operator call and at each module's beginning and end; so a node's number says where its forward was.
    """

    def __init__(self, watched: Watched) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._watched = watched
        self._running: list[str] = []
        self._numbers = [_next_number()]
        self._marks: list[tuple[Place, Site | None]] = [(Place(None), None)]
        self._owners = {
            id(parameter): name
            for name, module in watched.model.named_modules()
            for parameter in module.parameters(recurse=False)
        }
        self._autograd = ModuleTracker()  # asked for is_bw only

    def entering(self, name: str) -> Any:
        """Return the hook that is called before a module's forward."""

        def hook(_module: nn.Module, _args: Any) -> None:
            self._mark(*self._marks[-1])
            self._running.append(name)

        return hook

    def leaving(self, name: str) -> Any:
        """Return the hook that is called after a module's forward, also where that raises."""

        def hook(_module: nn.Module, _args: Any, _output: Any) -> None:
            self._mark(Place(name, self._autograd.is_bw), self._marks[-1][1])
            if self._running and self._running[-1] == name:
                self._running.pop()

        return hook

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Call the operator, and record it if it is a collective."""
        here = self._here()
        self._mark(here.place, here.site)
        if any(issubclass(each, DTensor) for each in types):
            return NotImplemented  # DTensor's turn: what it calls comes here again, as plain operators
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        if getattr(func, "namespace", None) in NAMESPACES and not is_silent(func):
            self._record(here, func, args, kwargs, result)
        return result

    def _record(self, here: _Here, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], result: Any) -> None:
        found = communication(func, args, kwargs, result)
        if found is None:
            self._watched.add_unknown(str(func))
            return
        kind, ranks, shape, dtype, payload, options = found
        event = Event(kind, ranks, here.phase, shape, dtype, payload, describe(here.site), options)
        self._watched.add(event, here.place)

    def _here(self) -> _Here:
        in_backward = self._autograd.is_bw
        if self._running:
            return _Here("backward" if in_backward else "forward", Place(self._running[-1], in_backward), call_site())
        if not in_backward:
            return _Here("other", Place(None), call_site())
        place, site = self._forward_of(torch._C._current_autograd_node())
        return _Here("backward", place, site or call_site())

    def _forward_of(self, node: Any) -> tuple[Place, Site | None]:
        """Return where the forward was of the node that autograd runs."""
        variable = getattr(node, "variable", None)
        if isinstance(variable, Tensor):  # it accumulates a leaf's gradient, and has no number
            return Place(self._owners.get(id(variable))), None
        at = len(self._numbers) if node is None else bisect_right(self._numbers, node._sequence_nr())
        if at == len(self._numbers):
            return Place(None), None
        place, site = self._marks[at]
        return Place(place.module), site

    def _mark(self, place: Place, site: Site | None) -> None:
        number = _next_number()
        if number > self._numbers[-1]:
            self._numbers.append(number)
            self._marks.append((place, site))


def _next_number() -> int:
    """Return the number that autograd's next node in this thread will have."""
    return torch.autograd._get_sequence_nr()  # type: ignore[attr-defined]


def _numbered(name: str | None) -> tuple[str, int, str]:
    """Cut a module's name at its first number: ``layers.3.mlp`` is ("layers.", 3, ".mlp")."""
    match = re.match(r"((?:.*?\.)??)(\d+)((?:\..*)?)$", name or "")
    return (match[1], int(match[2]), match[3]) if match else (name or "", -1, "")


def _joined(rows: Sequence[Sent]) -> list[Sent]:
    """Join the rows of modules that have consecutive numbers, are otherwise named alike, and sent the same."""
    joined: list[Sent] = []
    places: dict[tuple[Any, ...], int] = {}
    for row in rows:
        before, number, after = _numbered(row.modules[0])
        said = tuple((event.kind, event.ranks, event.shape, event.dtype, event.options) for event in row.events)
        key = (row.modules[0] is None, before, after, row.phase, row.recomputed, said)
        at = places.get(key)
        if at is not None and number == _numbered(joined[at].modules[-1])[1] + 1:
            joined[at] = joined[at]._replace(modules=joined[at].modules + row.modules)
        else:
            places[key] = len(joined)
            joined.append(row)
    return joined


def _phase_text(phase: str, recomputed: bool = False) -> str:
    return _("backward, recomputing") if recomputed else phase


def _change_text(event: Event) -> str:
    before, after = event.layout_names()
    return f"{layout_text(before)} → {layout_text(after)}" if before and after else ""


def _counts_text(counts: Counter[str]) -> str:
    """Return counted kinds in words: ``2 × all_gather + all_reduce``."""
    return " + ".join(kind if count == 1 else f"{count} × {kind}" for kind, count in counts.items())
