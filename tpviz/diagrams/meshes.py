"""A mesh of ranks, and what its rows and its columns send each other (diagrams)."""

from collections.abc import Sequence

from tpviz.diagrams.blocks import draw_lane
from tpviz.diagrams.canvas import Box, Canvas, middle
from tpviz.diagrams.drawing import Drawing
from tpviz.diagrams.exchange import NAMES
from tpviz.diagrams.grammar import MARGIN, text_width
from tpviz.diagrams.operands import RunLike, check_ranks
from tpviz.i18n import _
from tpviz.trace import Event

_WIDTH, _HEIGHT = 146, 116
"""A rank's tile."""
_ACROSS, _DOWN = 140, 96
"""The room for a bridge between two tiles."""
_INTO = -5
"""How far a bridge stays away from the tiles that it joins."""
_HALF = 30
"""Half the height of a bridge with words on it."""
_LINK = 6
"""Half the thickness of what carries a collective on to a further tile."""
_LINE = 24
_TITLE = 34


def mesh(run: RunLike, tp: int) -> Drawing:
    """Draw the ranks of a run as a mesh, a row for each tensor-parallel group, with what each group sent.

    What the trace recorded for the ranks of a row is a dark bar along it (TP), for the ranks of a column a light bar
    down it (DP); a collective of any other group is refused.

    Args:
        run: the run; rank r stands in row r // tp and column r % tp.
        tp: how many ranks a tensor-parallel group has.
    """
    ranks = len(run.outputs)
    check_ranks(ranks)
    if not isinstance(tp, int) or tp < 1 or ranks % tp:
        message = _("tp={tp} does not divide {ranks} ranks into rows.")
        raise ValueError(message.format(tp=tp, ranks=ranks))
    rows = [tuple(range(first, first + tp)) for first in range(0, ranks, tp)]
    columns = [tuple(range(first, ranks, tp)) for first in range(tp)]
    along: dict[tuple[int, ...], list[Event]] = {}
    for event in run.trace:
        if event.kind not in NAMES or len(event.ranks) == 1:
            continue
        if event.ranks not in (*rows, *columns):
            message = _("{kind} among ranks {ranks} is neither along a row nor along a column of the mesh.")
            raise ValueError(message.format(kind=event.kind, ranks=", ".join(map(str, event.ranks))))
        along.setdefault(event.ranks, []).append(event)
    return _Mesh(rows, columns, along).drawing()


class _Mesh:
    """The layout of the figure: a grid of tiles, bars along its rows and down its columns."""

    def __init__(
        self,
        rows: Sequence[tuple[int, ...]],
        columns: Sequence[tuple[int, ...]],
        along: dict[tuple[int, ...], list[Event]],
    ) -> None:
        self.rows, self.columns, self.along = rows, columns, along
        words = [word for group in along for word in self._words(group)]
        self.across = max(_ACROSS, max((text_width(word, "label") for word in words), default=0) + 28 - 2 * _INTO)

    def _words(self, group: tuple[int, ...]) -> list[str]:
        """What the group sent: the collectives and their payload."""
        events = self.along[group]
        name = _("TP") if group in self.rows else _("DP")
        size = _("{bytes} bytes").format(bytes=sum(event.payload_bytes for event in events))
        kinds = " + ".join(dict.fromkeys(NAMES[event.kind] for event in events))
        count = "" if len(events) == 1 else f"{len(events)} × "
        return [f"{name}: {count}{kinds}", size]

    def drawing(self) -> Drawing:
        """Draw the tiles, then the bridges between them."""
        canvas = Canvas()
        side = max(text_width(self._copy(number), "label") for number in range(len(self.rows))) + 14
        left, top = MARGIN + side, MARGIN + _TITLE
        for place in range(len(self.columns)):
            title = _("shard {number}").format(number=place)
            canvas.text(self._tile(0, place, left, top).center_x, middle(MARGIN + 13, "label"), title, "label", "c")
        for number, row in enumerate(self.rows):
            first = self._tile(number, 0, left, top)
            canvas.text(MARGIN, middle(first.center_y, "label"), self._copy(number), "label")
            for place, rank in enumerate(row):
                tile = self._tile(number, place, left, top)
                draw_lane(canvas, tile, rank, _WIDTH)
                if place and row in self.along:
                    half = _HALF if place == 1 else _LINK
                    bridge = Box(tile.x - self.across - _INTO, tile.center_y - half, self.across + 2 * _INTO, 2 * half)
                    canvas.rounded("bar", bridge, min(10, half))
                    if place == 1:
                        self._write(canvas, bridge, row, "w")
                if number and self.columns[place] in self.along:
                    for x in (tile.center_x - 8, tile.center_x + 8):
                        canvas.line("rule", (x, tile.y - _DOWN + 4), (x, tile.y - 4))
                    if number == 1:
                        bridge = Box(tile.x - 10, tile.y - _DOWN // 2 - _HALF, _WIDTH + 20, 2 * _HALF)
                        canvas.box("node", bridge)
                        self._write(canvas, bridge, self.columns[place], "")
        last = self._tile(len(self.rows) - 1, len(self.columns) - 1, left, top)
        return canvas.drawing(last.right + MARGIN + 10, last.bottom + MARGIN, self._alt())

    def _copy(self, number: int) -> str:
        return _("copy {number}").format(number=number)

    def _tile(self, row: int, column: int, left: int, top: int) -> Box:
        return Box(left + column * (_WIDTH + self.across), top + row * (_HEIGHT + _DOWN), _WIDTH, _HEIGHT)

    def _write(self, canvas: Canvas, bridge: Box, group: tuple[int, ...], color: str) -> None:
        """Write on a group's first bridge; what leads on to further ranks is of the same collective."""
        words = self._words(group)
        y = bridge.center_y - len(words) * _LINE // 2
        for word in words:
            canvas.text(bridge.center_x, middle(y + _LINE // 2, "label"), word, "label", "c", color)
            y += _LINE

    def _alt(self) -> str:
        shape = {"rows": len(self.rows), "columns": len(self.columns)}
        said = []
        for group in (*self.rows, *self.columns):
            if group in self.along:
                ranks = ", ".join(map(str, group))
                said.append(_("ranks {ranks} {words}").format(ranks=ranks, words=", ".join(self._words(group))))
        if not said:
            return _("A mesh of {rows} by {columns} ranks, between which nothing crosses.").format(**shape)
        return _("A mesh of {rows} by {columns} ranks: {said}.").format(**shape, said="; ".join(said))
