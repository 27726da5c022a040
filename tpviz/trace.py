"""The trace: the ordered record of every collective of a run, never written by hand, and its table (trace)."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, overload

import torch

from tpviz.i18n import _
from tpviz.tables import Table, shape_text

if TYPE_CHECKING:
    from torch.distributed.tensor.placement_types import Placement

LayoutName = tuple[str, Any] | None
"""A placement without PyTorch's class, slow to import: ("Shard", dim), ("Partial", op), ("Replicate", None)."""

_COLUMNS = ("kind", "ranks", "phase", "shape", "payload_bytes", "source")


def wire_factor(kind: str, ranks: int) -> float:
    """Return the share of the payload that one rank sends in a ring of ``ranks`` ranks.

    All-reduce 2(n-1)/n; all-gather, reduce-scatter, all-to-all, gather and scatter (n-1)/n; broadcast, reduce and send
    1; nothing in a group of one. Source: nccl-tests, PERFORMANCE.md ("Bus bandwidth").
    """
    if ranks == 1 or kind == "barrier":
        return 0.0
    if kind in ("broadcast", "reduce", "send"):
        return 1.0
    share = (ranks - 1) / ranks
    return 2 * share if kind == "all_reduce" else share


def _placement(name: LayoutName) -> Placement | None:
    if name is None:
        return None
    # Loaded when a layout is first asked for: the module alone costs a third of `import torch`.
    from torch.distributed.tensor import placement_types

    kind, argument = name
    placement = getattr(placement_types, kind)
    return placement() if argument is None else placement(argument)  # type: ignore[no-any-return]


class Event(NamedTuple):
    """One collective: one call of a group, or one send/recv pair.

    ``ranks`` are global rank numbers. ``shape`` and ``payload_bytes`` (bytes) are of the whole array that the call is
    about: the gathered result, the input of a reduce-scatter, one rank's input of an all-to-all.
    """

    kind: str
    ranks: tuple[int, ...]
    phase: str
    shape: tuple[int, ...]
    dtype: torch.dtype | None
    payload_bytes: int
    source: str
    options: tuple[str | None, int | None, int | None]
    """The reduction, the dimension, and an all-to-all's dimension to concatenate along."""

    def layout_names(self) -> tuple[LayoutName, LayoutName]:
        """Return the placements before and after, by name: what PyTorch would call the input and the result."""
        reduction, dim, other_dim = self.options
        replicate: LayoutName = ("Replicate", None)
        partial: LayoutName = ("Partial", "avg" if reduction == "mean" else reduction)
        names: dict[str, tuple[LayoutName, LayoutName]] = {
            "all_reduce": (partial, replicate),
            "all_gather": (("Shard", dim), replicate),
            "reduce_scatter": (partial, ("Shard", dim)),
            "all_to_all": (("Shard", other_dim), ("Shard", dim)),
            "broadcast": (None, replicate),
        }
        # A shard whose dimension nobody stated is no placement.
        before, after = (None if name == ("Shard", None) else name for name in names.get(self.kind, (None, None)))
        return before, after

    @property
    def wire_bytes(self) -> float:
        """Bytes that one rank sends in a ring (a float, not rounded)."""
        return self.payload_bytes * wire_factor(self.kind, len(self.ranks))

    @property
    def layout_before(self) -> Placement | None:
        """PyTorch's placement of the input over the group; None where no placement describes it (a broadcast's)."""
        return _placement(self.layout_names()[0])

    @property
    def layout_after(self) -> Placement | None:
        """PyTorch's placement of the result over the group."""
        return _placement(self.layout_names()[1])

    def to_dict(self) -> dict[str, Any]:
        """Return the event as plain JSON values; layouts and the dtype as text: "Shard(0)", "float32"."""
        row: dict[str, Any] = {
            name: getattr(self, name) for name in ("kind", "phase", "payload_bytes", "wire_bytes", "source")
        }
        row["ranks"], row["shape"] = list(self.ranks), list(self.shape)
        row["dtype"] = None if self.dtype is None else str(self.dtype).removeprefix("torch.")
        for name, layout in zip(("layout_before", "layout_after"), self.layout_names(), strict=True):
            row[name] = layout_text(layout) or None
        return row


def layout_text(name: LayoutName) -> str:
    """Return a layout as PyTorch writes it: "Shard(0)"; "" for none."""
    if name is None:
        return ""
    kind, argument = name
    return kind if argument is None else f"{kind}({argument})"


def _cell_text(event: Event, column: str) -> str:
    if column.startswith("layout"):
        return layout_text(event.layout_names()[column == "layout_after"])
    value = getattr(event, column)
    if column == "shape":
        return shape_text(value) if value else ""
    if column == "ranks":
        return ", ".join(map(str, value))
    if column == "dtype":
        return "" if value is None else str(value).removeprefix("torch.")
    if column.endswith("_bytes"):
        return f"{value if isinstance(value, int) else format(value, 'g')} B"
    return str(value)


class Trace(Sequence[Event]):
    """The events of a run in the order in which the baton completed them; shows itself as a table."""

    def __init__(self, events: Sequence[Event], warnings: Sequence[str] = ()) -> None:
        self._events = tuple(events)
        self.warnings = tuple(warnings)
        """What the run warned of: ranks that met in one collective from different lines."""

    @overload
    def __getitem__(self, index: int) -> Event: ...
    @overload
    def __getitem__(self, index: slice) -> Trace: ...
    def __getitem__(self, index: int | slice) -> Event | Trace:
        """Return one event, or the trace of a slice of them."""
        if isinstance(index, slice):
            return Trace(self._events[index], self.warnings)
        return self._events[index]

    def __len__(self) -> int:
        return len(self._events)

    def __iter__(self) -> Iterator[Event]:
        return iter(self._events)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Trace) and self._events == other._events

    def __hash__(self) -> int:
        return hash(self._events)

    def to_json(self) -> str:
        """Return the events as a JSON list, one object an event."""
        return json.dumps([event.to_dict() for event in self._events], indent=1)

    def table(self, *extra: str) -> Table:
        """Return the table with further columns: "dtype", "wire_bytes", "layout_before", "layout_after"."""
        names = _heading_texts()
        for column in extra:
            if column not in names:
                message = _("no column {column!r}; the columns are {known}.")
                raise ValueError(message.format(column=column, known=", ".join(names)))
        columns = (*_COLUMNS[:-1], *extra, _COLUMNS[-1])
        rows = [[str(number), *(_cell_text(event, column) for column in columns)] for number, event in enumerate(self)]
        empty = _("No collective: nothing was sent between ranks.")
        return Table(["#", *(names[column] for column in columns)], rows, empty)

    def __repr__(self) -> str:
        return self.table().text()

    def _repr_html_(self) -> str:
        return self.table().html()


def _heading_texts() -> dict[str, str]:
    return {
        "kind": _("collective"),
        "ranks": _("ranks"),
        "phase": _("phase"),
        "shape": _("shape"),
        "dtype": _("dtype"),
        "payload_bytes": _("payload"),
        "wire_bytes": _("wire, one rank"),
        "layout_before": _("layout before"),
        "layout_after": _("layout after"),
        "source": _("line"),
    }
