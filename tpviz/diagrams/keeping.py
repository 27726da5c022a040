"""What each rank keeps: its part of every tensor in its place, and the bytes that it takes (diagrams)."""

from collections.abc import Mapping
from dataclasses import replace

from torch import Tensor

from tpviz.diagrams.blocks import LANE_HEAD, LANE_PAD, Grid, draw_block, draw_lane, sum_text
from tpviz.diagrams.canvas import Box, Canvas, middle, pill_width
from tpviz.diagrams.drawing import Drawing
from tpviz.diagrams.grammar import MARGIN, TWIN, text_width
from tpviz.diagrams.operands import PARTIAL, Operand, RunLike, check_ranks, operand, read_layout, typeset
from tpviz.i18n import _

_WIDTH, _HEIGHT = 152, 64
"""The size of a whole tensor."""
_FRAME = 8
_PAD = 12
_LANE = _HEIGHT + 2 * (_FRAME + TWIN + _PAD)
_BETWEEN = 8
_TITLE = 40
_GAP = 26
"""Between what belongs to one tensor and the next."""


def kept(run: RunLike, wholes: Mapping[str, Tensor]) -> Drawing:
    """Draw what each rank keeps of some tensors, one column for each, with its bytes, and their sum.

    How a tensor lies on the ranks is recognised from the numbers: whole, cut, or a partial sum.

    Args:
        run: a run whose ranks each returned a dict with a tensor for each of these names.
        wholes: the whole tensors by name, in the order of the columns; a name that starts with d is a gradient's.
    """
    from tpviz.layouts import recognise  # brings PyTorch's DTensor along

    check_ranks(len(run.outputs))
    shown, sizes = [], []
    for name, whole in wholes.items():
        if not all(isinstance(output, Mapping) and name in output for output in run.outputs):
            raise ValueError(_("each rank must return a dict that has {name} in it.").format(name=name))
        parts = [output[name] for output in run.outputs]
        placement = recognise(parts, whole)
        if placement is None:
            message = _(
                "what the ranks returned as {name} is not the whole: no replicas, no shards, no partial sums of it."
            )
            raise ValueError(message.format(name=name))
        found = operand(name, parts, read_layout(placement, name), len(parts))
        shown.append(replace(found, gradient=name.startswith("d")))
        sizes.append([part.nbytes for part in parts])
    return _draw(shown, sizes)


def _bytes(number: int) -> str:
    return _("{bytes} bytes").format(bytes=number)


def _draw(shown: list[Operand], sizes: list[list[int]]) -> Drawing:
    """Draw a lane for each rank, of whose tensors these are the bytes."""
    canvas = Canvas()
    ranks = len(sizes[0])
    totals = [sum(column[rank] for column in sizes) for rank in range(ranks)]
    note = max(text_width(_bytes(size), "note") for column in sizes for size in column)
    badge = max((pill_width(sum_text(ranks - 1, ranks)) for each in shown if each.layout is PARTIAL), default=0)
    side = max(note, badge)
    column_width = _WIDTH + 2 * (_FRAME + TWIN) + 8 + side + _GAP
    sum_x = MARGIN + LANE_HEAD + len(shown) * column_width
    right = sum_x + max(text_width(text, "label") for text in (*map(_bytes, totals), _("in all"))) + LANE_PAD + 8
    canvas.text(sum_x, middle(MARGIN + 14, "label"), _("in all"), "label")
    for rank in range(ranks):
        lane = Box(MARGIN, MARGIN + _TITLE + rank * (_LANE + _BETWEEN), right - MARGIN, _LANE)
        draw_lane(canvas, lane, rank)
        for index, each in enumerate(shown):
            x = MARGIN + LANE_HEAD + index * column_width + _FRAME + TWIN
            if rank == 0:
                name = typeset(each.name)
                canvas.name(x + (_WIDTH - text_width(name, "name")) // 2, middle(MARGIN + 14, "name"), name)
            grid = Grid(_WIDTH / each.columns, _HEIGHT / each.rows, None)
            draw_block(canvas, each, rank, grid, x, lane.center_y - _HEIGHT // 2, frame=_FRAME)
            x += _WIDTH + _FRAME + TWIN + 8
            partial = each.layout is PARTIAL
            if partial:
                canvas.pill(x, lane.center_y - 17, sum_text(rank, ranks), rank)
            y = lane.center_y + 17 * partial
            canvas.text(x, middle(y, "note"), _bytes(sizes[index][rank]), "note")
        canvas.text(sum_x, middle(lane.center_y, "label"), _bytes(totals[rank]), "label")
    bottom = MARGIN + _TITLE + ranks * (_LANE + _BETWEEN) - _BETWEEN
    alt = _("What each rank keeps: {tensors}; in all {bytes} bytes.").format(
        tensors=", ".join(each.description() for each in shown),
        bytes=", ".join(map(str, dict.fromkeys(totals))),
    )
    return canvas.drawing(right + MARGIN, bottom + MARGIN, alt)
