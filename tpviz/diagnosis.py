"""The words of a mismatch: which rank stands where, what they disagree on, what to do (communicators; words only)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tpviz.chunking import chunk_sizes
from tpviz.communicator import Call
from tpviz.i18n import _
from tpviz.source import Site, describe

Stand = tuple[int, str]
"""A rank's number and where it stands."""


def lines(headline: str, stands: Iterable[Stand], remedy: str = "") -> str:
    """Return a message: a headline, one line a rank, and what to do."""
    rows = [f"  {_rank(number)}: {stand}" for number, stand in sorted(stands)]
    return "\n".join([headline, *rows, *([remedy] if remedy else [])])


def waiting(call: Call, ranks: Sequence[int]) -> str:
    """Return where a rank stands that waits in a collective (or a send) of a group."""
    return _("waits in {call} among ranks {ranks}, at {site}").format(
        call=call.text(), ranks=_numbers(ranks), site=describe(call.site)
    )


def calling(call: Call) -> str:
    """Return where a rank stands that has come to a collective."""
    return _("{call}, at {site}").format(call=call.text(), site=describe(call.site))


def raised(error: BaseException) -> str:
    """Return an exception as its rank's line names it."""
    text = str(error)
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def disagreement(calls: Sequence[Call]) -> str | None:
    """Return what the calls of one group disagree on, or None; the first difference is the one named."""
    first = calls[0].agreement()
    for call in calls[1:]:
        other = call.agreement()
        if other != first:
            names = Call.agreement_names()
            return next(name for name, mine, yours in zip(names, first, other, strict=True) if mine != yours)
    return None


def uneven(calls: Sequence[Call]) -> str | None:
    """Return why shards that differ along a dimension are no shards of one whole, or None if they are."""
    first = calls[0]
    dim = {"all_gather": first.dim, "all_to_all": first.other_dim}.get(first.kind)
    if dim is None:
        return None
    sizes = [call.tensor.shape[dim] for call in calls if call.tensor is not None]
    expected = chunk_sizes(sum(sizes), len(sizes))
    if sizes == expected:
        return None
    message = _(
        "the shape along dim {dim}: sizes {sizes} are not how Shard({dim}) cuts {whole} over {ranks} ranks, which is {expected}"
    )
    return message.format(
        dim=dim, sizes=_numbers(sizes), whole=sum(sizes), ranks=len(sizes), expected=_numbers(expected)
    )


def sites(numbers: Sequence[int], calls: Sequence[Call]) -> str:
    """Return which ranks came from which line: ``ranks 0, 2 at cell [3], line 4; rank 1 at cell [3], line 6``."""
    by_site: dict[Site, list[int]] = {}
    for number, call in zip(numbers, calls, strict=True):
        by_site.setdefault(call.site, []).append(number)
    return "; ".join(
        _("{ranks} at {site}").format(ranks=_rank(*ranks), site=describe(site)) for site, ranks in by_site.items()
    )


def _rank(*numbers: int) -> str:
    return (
        _("rank {number}").format(number=numbers[0])
        if len(numbers) == 1
        else _("ranks {numbers}").format(numbers=_numbers(numbers))
    )


def _numbers(numbers: Iterable[int]) -> str:
    return ", ".join(map(str, numbers))
