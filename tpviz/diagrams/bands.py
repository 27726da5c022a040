"""Bands: a fused weight as named bands of rows, and which of them each rank holds, way by way (diagrams)."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from torch import Tensor

from tpviz.diagrams.blocks import draw_lane
from tpviz.diagrams.canvas import Box, Canvas, middle
from tpviz.diagrams.drawing import Drawing
from tpviz.diagrams.grammar import MARGIN, SLIDE_WIDTH, text_width
from tpviz.diagrams.operands import RunLike, check_ranks
from tpviz.i18n import _

_HEAD = 64
"""The room of a lane's badge."""
_LANE, _BETWEEN = 58, 8
_BAND = 40
"""The height of a band."""
_GAP, _APART = 4, 22
"""Between two bands, and between the parts that are fused."""
_TITLE, _SECTION = 42, 18
_WIDEST = 84


class _Part(NamedTuple):
    """Bands that belong together, such as all of Q's."""

    names: tuple[str, ...]
    first: int


def bands(parts: Mapping[str, int], ways: Mapping[str, RunLike]) -> Drawing:
    """Draw which bands of a fused weight each rank holds: its own in its colour, what several ranks hold in grey.

    Args:
        parts: how many bands each part of the whole has, part below part: ``{"Q": 4, "K": 2, "V": 2}``. All bands have
            as many rows.
        ways: by title a run whose ranks each returned the numbers of the whole weight's rows that they hold, in their
            order, as a tensor or a list; each rank holds whole bands.
    """
    shown = _parts(parts)
    count = sum(parts.values())
    held = {title: _held(run, count) for title, run in ways.items()}
    width = min(_WIDEST, (SLIDE_WIDTH - 2 * MARGIN - _HEAD - len(parts) * _APART) // count - _GAP)
    places = _places(shown, width)
    canvas, y, said = Canvas(), MARGIN, []
    right = places[-1] + width + 16
    for title, ranks in held.items():
        canvas.text(MARGIN, middle(y + _TITLE // 2 - 4, "label"), title, "label")
        right = max(right, MARGIN + text_width(title, "label"))
        y += _TITLE
        for rank, mine in enumerate(ranks):
            lane = Box(MARGIN, y, places[-1] + width + 16 - MARGIN, _LANE)
            draw_lane(canvas, lane, rank, _HEAD)
            for part in shown:
                for offset, name in enumerate(part.names):
                    number = part.first + offset
                    box = Box(places[number], lane.center_y - _BAND // 2, width, _BAND)
                    if number not in mine:
                        canvas.box("absent", box)
                        continue
                    canvas.box("block", box, "neutral" if sum(number in other for other in ranks) > 1 else rank)
                    canvas.text(box.center_x, middle(box.center_y, "label"), name, "label", "c")
            y = lane.bottom + _BETWEEN
        y += _SECTION - _BETWEEN
        said.append(_("{title}: {ranks}").format(title=title, ranks="; ".join(_in_words(ranks, shown))))
    alt = _("Bands of {parts} on the ranks. {ways}.").format(parts=", ".join(parts), ways=". ".join(said))
    return canvas.drawing(right + MARGIN, y - _SECTION + MARGIN, alt)


def _parts(parts: Mapping[str, int]) -> list[_Part]:
    first, found = 0, []
    for name, count in parts.items():
        found.append(_Part(tuple(f"{name}{number}" for number in range(count)), first))
        first += count
    return found


def _held(run: RunLike, count: int) -> list[list[int]]:
    """Return each rank's bands by number, in its order."""
    check_ranks(len(run.outputs))
    rows = [_numbers(output) for output in run.outputs]
    size, rest = divmod(max(max(each, default=0) for each in rows) + 1, count)
    found = []
    for rank, mine in enumerate(rows):
        firsts = mine[::size] if size else []
        whole = [row for first in firsts for row in range(first, first + size)]
        if rest or whole != mine or any(first % size for first in firsts):
            message = _("rank {rank} holds rows {rows}, which are no whole bands of {count}.")
            raise ValueError(message.format(rank=rank, rows=mine, count=count))
        found.append([first // size for first in firsts])
    return found


def _numbers(output: Any) -> list[int]:
    values = output.flatten().tolist() if isinstance(output, Tensor) else list(output)
    return [int(value) for value in values]


def _places(parts: Sequence[_Part], width: int) -> list[int]:
    """Return the x of each band."""
    x, found = MARGIN + _HEAD, []
    for part in parts:
        for _name in part.names:
            found.append(x)
            x += width + _GAP
        x += _APART - _GAP
    return found


def _in_words(ranks: Sequence[Sequence[int]], parts: Sequence[_Part]) -> list[str]:
    names = [name for part in parts for name in part.names]
    return [
        _("rank {rank} holds {bands}").format(rank=rank, bands=" ".join(names[number] for number in mine))
        for rank, mine in enumerate(ranks)
    ]
