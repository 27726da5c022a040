"""The words of a mismatch: which rank stands where, what they disagree on, what to do (communicators; words only)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from torch import Tensor

from tpviz.chunking import chunk_sizes
from tpviz.communicator import Call
from tpviz.i18n import _
from tpviz.source import Site, describe, raising_site

Stands = Mapping[int, str]
"""Where each rank stands, in words, by the rank's number."""


def lines(headline: str, stands: Stands, remedy: str = "") -> str:
    """Return a message: a headline, one line a rank, and what to do."""
    rows = [f"  {_rank(number)}: {stands[number]}" for number in sorted(stands)]
    return "\n".join([headline, *rows, *([remedy] if remedy else [])])


def mismatch(stands: Stands, ranks: Sequence[int], calls: Sequence[Call], difference: str) -> str:
    """Return the message for ranks that met in one collective and do not mean the same."""
    return lines(
        _("the ranks met in one collective but do not agree on {difference}:").format(difference=difference),
        {**stands, **{number: _calling(call) for number, call in zip(ranks, calls, strict=True)}},
        _(
            "Every rank of a group must call the same collective with the same options; without this check, real"
            " ranks would hang here or return wrong numbers."
        ),
    )


def crossing(stands: Stands, ranks: Sequence[int], calls: Sequence[Call], i: int, j: int) -> str:
    """Return the message for two ranks (by their place in the group) that met crosswise: A then B, B then A."""
    both = {ranks[i]: (calls[j], calls[i]), ranks[j]: (calls[i], calls[j])}
    order = _("first {first}, then {then}")
    crossed = {
        number: order.format(first=describe(first.site), then=_calling(then)) for number, (first, then) in both.items()
    }
    return lines(
        _("ranks {i} and {j} make two calls in opposite order; each would take the other's result for its own:").format(
            i=ranks[i], j=ranks[j]
        ),
        {**stands, **{number: _calling(call) for number, call in zip(ranks, calls, strict=True)}, **crossed},
        _("Every rank of a group must call the same collectives in the same order."),
    )


def stuck(stands: Stands, returned: bool, sending: bool) -> str:
    """Return the message for ranks of which none can go on; some may have returned, some wait in a send or a recv."""
    if returned:
        headline = _("some ranks have returned while others wait for them in a collective:")
        remedy = _("Every rank of a group must call the group's collectives, also one that has nothing to add.")
    elif sending:
        headline = _("the ranks wait for each other, and none can go on:")
        remedy = _("A send waits for its recv: let one side send while the other receives, or use sendrecv.")
    else:
        headline = _("the ranks wait in different collectives, and none can go on:")
        remedy = _("Every rank of a group must call the same collectives in the same order.")
    return lines(headline, stands, remedy)


def different_lines(ranks: Sequence[int], calls: Sequence[Call]) -> str:
    """Return the warning for ranks that met in one collective from different lines."""
    by_site: dict[Site, list[int]] = {}
    for number, call in zip(ranks, calls, strict=True):
        by_site.setdefault(call.site, []).append(number)
    where = "; ".join(
        _("{ranks} at {site}").format(ranks=_rank(*some), site=describe(site)) for site, some in by_site.items()
    )
    message = _(
        "the ranks met in one {kind} from different lines: {where}. Right if they branch by rank on purpose; else two"
        " calls may be swapped whose shapes agree by accident."
    )
    return message.format(kind=calls[0].kind, where=where)


def waiting(call: Call, ranks: Sequence[int]) -> str:
    """Return where a rank stands that waits in a collective (or a send) of a group."""
    return _("waits in {call} among ranks {ranks}, at {site}").format(
        call=call.text(), ranks=_numbers(ranks), site=describe(call.site)
    )


def _calling(call: Call) -> str:
    """Return where a rank stands that has come to a collective."""
    return _("{what}, at {site}").format(what=call.text(), site=describe(call.site))


def has_raised(error: BaseException) -> str:
    """Return where a rank stands that has raised."""
    words = _("raised {error}").format(error=raised(error))
    site = raising_site(error)
    return words if site is None else _("{what}, at {site}").format(what=words, site=describe(site))


def raised(error: BaseException | None) -> str:
    """Return an exception in words."""
    try:
        text = str(error)
    except Exception:  # the learner's own class: its fault must not hide the error
        text = ""
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def disagreement(calls: Sequence[Call]) -> str:
    """Return what the calls of one group, which differ, disagree on; the first difference is the one named."""
    first = calls[0].agreement()
    for call in calls[1:]:
        if call.agreement() != first:
            entries = zip(Call.agreement_names(), first, call.agreement(), strict=True)
            return next(name for name, mine, yours in entries if mine != yours)
    raise AssertionError("the calls agree")


def uneven(call: Call, tensors: Sequence[Tensor]) -> str | None:
    """Return why shards that differ along a dimension are no shards of one whole, or None if they are."""
    if call.kind == "all_gather":
        dim = call.dim or 0
    elif call.kind == "all_to_all":
        dim = call.other_dim or 0
    else:
        return None
    sizes = [tensor.shape[dim] for tensor in tensors]
    expected = chunk_sizes(sum(sizes), len(sizes))
    if sizes == expected:
        return None
    message = _(
        "the shape along dim {dim}: sizes {sizes} are not how Shard({dim}) cuts {whole} over {ranks} ranks, which is"
        " {expected}"
    )
    return message.format(
        dim=dim, sizes=_numbers(sizes), whole=sum(sizes), ranks=len(sizes), expected=_numbers(expected)
    )


def _rank(*numbers: int) -> str:
    return (
        _("rank {number}").format(number=numbers[0])
        if len(numbers) == 1
        else _("ranks {numbers}").format(numbers=_numbers(numbers))
    )


def _numbers(numbers: Iterable[int]) -> str:
    return ", ".join(map(str, numbers))
