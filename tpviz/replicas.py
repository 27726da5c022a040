"""``check_replicated``: do the ranks hold the same tensors, where they are said to be replicated? (layouts)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from tpviz.communicator import Communicator
from tpviz.differences import Difference, difference, factor_text, number_text
from tpviz.i18n import _, ngettext
from tpviz.running import Run
from tpviz.tables import Table, shape_text


class Disagreement(NamedTuple):
    """One rank that does not hold what rank 0 holds."""

    name: str
    rank: int
    difference: Difference | None
    """How its tensor differs from rank 0's; None where only one of the two has a tensor, or the shapes differ."""
    reason: str
    """What was found, in words."""


class Replicas:
    """What ``check_replicated`` found. It is true where all replicas agree, and shows itself as a table where not."""

    def __init__(self, names: Sequence[str], ranks: int, disagreements: Sequence[Disagreement]) -> None:
        self.names = tuple(names)
        """What was compared."""
        self.ranks = ranks
        self.disagreements = tuple(disagreements)

    def __bool__(self) -> bool:
        return not self.disagreements

    def table(self) -> Table:
        """Return the table: a row for each tensor and rank that does not agree with rank 0."""
        names = ngettext("{names} is the same on {ranks}.", "{names} are the same on {ranks}.", len(self.names))
        ranks = ngettext("{n} rank", "{n} ranks", self.ranks).format(n=self.ranks)
        empty = names.format(names=", ".join(self.names), ranks=ranks)
        headings = (_("tensor"), _("rank"), _("entries that differ"), _("most at"), _("it has"), _("rank 0 has"), "")
        rows = [[name, str(rank), *_cells(found), reason] for name, rank, found, reason in self.disagreements]
        return Table(headings, rows, empty)

    def __repr__(self) -> str:
        return self.table().text()

    def _repr_html_(self) -> str:
        return self.table().html()


def check_replicated(values: Any, name: str = "", comm: Communicator | None = None) -> Replicas:
    """Compare what should be the same on every rank; return a report that is true if it is, and else says where not.

    After a run, ``values`` is the run, or a list with one value a rank: a tensor, or a dict, list or tuple of tensors,
    of which each is compared. ``name`` is what they are called.

    Inside a rank program, ``comm`` is the group, and ``values`` this rank's value, or an ``nn.Module``: of this, the
    replicated parameters (all but those that a layer's ``shard_dims`` names) and their gradients. Every rank of the
    group must call it, and each gets the same report. It sends each tensor from rank 0 by a broadcast, and what was
    found by an all-gather; both stand in the trace with the phase "other".

    The comparison is to the bit: replicas that do the same arithmetic hold the same bits, and those that do not drift
    apart. Ranks are numbered within the group.
    """
    if comm is not None:
        return _inside(dict(_named_tensors(values, name)), comm)
    outputs = list(values.outputs) if isinstance(values, Run) else values
    if isinstance(outputs, Tensor | str | Mapping) or not isinstance(outputs, Sequence) or not outputs:
        message = _(
            "check_replicated takes a run or a list with one value a rank, not {type}; in a program, pass comm."
        )
        raise TypeError(message.format(type=type(outputs).__name__))
    held = [dict(_named_tensors(output, name)) for output in outputs]
    names = list(dict.fromkeys(key for each in held for key in each))
    if not names:
        raise TypeError(_("check_replicated found no tensor in what the ranks returned."))
    found = []
    for key in names:
        for rank, each in enumerate(held[1:], 1):
            mine, theirs = each.get(key), held[0].get(key)
            if mine is None or theirs is None:
                found.append(Disagreement(key, rank, None, _missing(mine is None, theirs is None)))
            elif mine.shape != theirs.shape:
                message = _("its shape is {mine}, rank 0's {theirs}")
                reason = message.format(mine=shape_text(mine.shape), theirs=shape_text(theirs.shape))
                found.append(Disagreement(key, rank, None, reason))
            elif (differs := difference(mine, theirs)).differing:
                found.append(Disagreement(key, rank, differs, _in_words(differs)))
    return Replicas(names, len(outputs), found)


def _named_tensors(value: Any, name: str) -> Iterator[tuple[str, Tensor | None]]:
    """The tensors in a value, each with its name; a parameter's gradient may be None."""
    if isinstance(value, nn.Module):
        yield from _replicated_parameters(value, name)
    elif isinstance(value, Tensor):
        yield name or _("the tensor"), value
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from _named_tensors(item, f"{name}.{key}" if name else str(key))
    elif isinstance(value, list | tuple):
        for index, item in enumerate(value):
            yield from _named_tensors(item, f"{name}[{index}]")


def _replicated_parameters(module: nn.Module, prefix: str) -> Iterator[tuple[str, Tensor | None]]:
    for path, part in module.named_modules(prefix=prefix):
        for own, parameter in part.named_parameters(recurse=False):
            if own not in getattr(part, "shard_dims", ()):
                full_name = f"{path}.{own}" if path else own
                yield full_name, parameter
                yield f"{full_name}.grad", parameter.grad


def _inside(named: Mapping[str, Tensor | None], comm: Communicator) -> Replicas:
    """The check among running ranks, which compare with rank 0's tensors and tell each other what they found."""
    if not named:
        raise TypeError(_("check_replicated found no tensor to compare: give a tensor, several, or an nn.Module."))
    present = torch.tensor([[tensor is not None for tensor in named.values()]], device=comm.device)
    everywhere = comm.all_gather(present.to(torch.int64), dim=0).tolist()
    found = []
    for index, (name, tensor) in enumerate(named.items()):
        has = [bool(row[index]) for row in everywhere]
        if not all(has):
            differing = [rank for rank in range(1, len(has)) if has[rank] != has[0]]
            found += [Disagreement(name, rank, None, _missing(has[0], has[rank])) for rank in differing]
            continue
        assert tensor is not None
        found += _compared(name, tensor.detach(), comm)
    return Replicas([name for name, tensor in named.items() if tensor is not None], comm.world_size, found)


def _compared(name: str, tensor: Tensor, comm: Communicator) -> Iterator[Disagreement]:
    mine = difference(tensor, comm.broadcast(tensor))
    nothing = float("nan")
    place = (*mine.place, *[-1] * (tensor.ndim - len(mine.place)))
    facts = [mine.differing, mine.got, mine.expected, nothing if mine.factor is None else mine.factor, *place]
    told = comm.all_gather(torch.tensor([facts], dtype=torch.float64, device=comm.device), dim=0)
    for rank, (differing, got, expected, factor, *index) in enumerate(told.tolist()):
        if differing:
            where = tuple(map(int, index))
            differs = Difference(
                tensor.numel(), int(differing), where, got, expected, None if factor != factor else factor, None
            )
            yield Disagreement(name, rank, differs, _in_words(differs))


def _missing(mine: bool, theirs: bool) -> str:
    return _("it has none") if mine and not theirs else _("rank 0 has none")


def _in_words(found: Difference) -> str:
    if found.factor is None:
        return ""
    return _("{factor} times rank 0's").format(factor=factor_text(found.factor))


def _cells(found: Difference | None) -> list[str]:
    if found is None:
        return ["", "", "", ""]
    count = _("{differing} of {entries}").format(differing=found.differing, entries=found.entries)
    return [count, str(list(found.place)), number_text(found.got), number_text(found.expected)]
