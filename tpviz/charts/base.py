"""A chart's card, its panels and how its series look: what all charts are made with (charts).

A chart draws the numbers that it is given and computes none. It uses matplotlib's figures without pyplot, which would
keep them, and settings of its own, whatever the reader's are; so the same numbers give the same SVG.
"""

import html
import io
import math
import re
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from tpviz.diagrams import grammar
from tpviz.diagrams.drawing import Drawing

# The SVG names the reader's fonts; matplotlib measures text in one that it brings along.
_MEASURED_IN = "DejaVu Sans"
_SETTINGS: dict[str, Any] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "tpviz",
    "font.family": _MEASURED_IN,
    "font.size": 22,
    **dict.fromkeys(("text.color", "axes.labelcolor", "xtick.color", "ytick.color"), grammar.INK),
    "hatch.linewidth": 2,
}
_NO_METADATA = dict.fromkeys(("Creator", "Date", "Format", "Type"))
_SIZE = re.compile(r'width="(\d+)pt" height="(\d+)pt"')


def chart(height: int, alt: str, draw: Callable[[Figure], None]) -> Drawing:
    """A chart of a slide's width. In what is drawn, one unit of a point is one px."""
    width = grammar.SLIDE_WIDTH
    text = io.StringIO()
    with mpl.rc_context(), warnings.catch_warnings():
        mpl.rcdefaults()
        mpl.rcParams.update(_SETTINGS)  # type: ignore[arg-type]  # its keys are known one by one
        # A character that this font lacks is shown in the reader's.
        warnings.filterwarnings("ignore", r"Glyph \d+ .* missing from font")
        figure = Figure(figsize=(width / 72, height / 72), dpi=72, facecolor=grammar.CARD, edgecolor=grammar.CARD_EDGE)
        figure.patch.set_linewidth(2)
        draw(figure)
        figure.savefig(text, format="svg", metadata=_NO_METADATA)
    svg = text.getvalue()
    svg = svg[svg.index("<svg") :].replace(f"'{_MEASURED_IN}'", grammar.FONT)
    svg = _SIZE.sub(rf'width="\1" height="\2" role="img" aria-label="{html.escape(alt)}"', svg, count=1)
    return Drawing(svg, alt, width, height)


class Panel(NamedTuple):
    """A place on a chart, in px from the card's upper left corner."""

    left: float
    top: float
    width: float
    height: float

    def axes(self, figure: Figure, **settings: Any) -> Axes:
        """Return axes that fill it."""
        across, down = 72 * figure.get_figwidth(), 72 * figure.get_figheight()
        bottom = down - self.top - self.height
        place = (self.left / across, bottom / down, self.width / across, self.height / down)
        return figure.add_axes(place, **settings)


def write(figure: Figure, x: float, y: float, text: str, **settings: Any) -> None:
    """Write a text at a place in px from the card's upper left corner; y is its middle."""
    across, down = 72 * figure.get_figwidth(), 72 * figure.get_figheight()
    figure.text(x / across, 1 - y / down, text, **({"va": "center"} | settings))


@dataclass(frozen=True, slots=True)
class Look:
    """How the parts of one series look: colour, edge and hatch, so that none of them says it alone."""

    fill: str
    edge: str
    hatch: str = ""

    @property
    def bar(self) -> dict[str, Any]:
        """The settings of a bar."""
        return {"facecolor": self.fill, "edgecolor": self.edge, "hatch": self.hatch, "linewidth": 2}


# Okabe-Ito's orange and bluish green with their pale tints: no figure of two ranks uses these hues for a rank. Green is
# what a rank computes or keeps of the model, orange what its activations cost.
_DARK_GREEN, _DARK_ORANGE = "#00704f", "#7a5400"
GREEN = Look("#5fc4a5", _DARK_GREEN)
DARK_GREEN = Look(_DARK_GREEN, "#003d2b")
PALE_GREEN = Look("#def2eb", _DARK_GREEN, "/")
ORANGE = Look("#e69f00", _DARK_ORANGE)
PALE_ORANGE = Look("#fcefcf", _DARK_ORANGE, "\\")
GREY = Look(grammar.NEUTRAL, grammar.NEUTRAL_EDGE)
ABSENT = Look(grammar.CARD, grammar.ABSENT)

SMALL = 20
"""The size of ticks and of what stands beside bars, in px."""


OUTSIDE: dict[str, Any] = {"textcoords": "offset points", "annotation_clip": False}
"""The settings of an annotation that may stand outside of its panel."""


def frame(axes: Axes) -> None:
    """Leave the two axes' lines, and pale lines to read values by."""
    axes.set_axisbelow(True)
    axes.grid(color=grammar.CARD_EDGE, linewidth=1.5)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    for side in ("left", "bottom"):
        axes.spines[side].set(color=grammar.NEUTRAL_EDGE, linewidth=1.5)
    axes.tick_params(labelsize=SMALL, length=0, pad=8)


def ticks(axes: Axes, along: str, places: Sequence[float], labels: Sequence[str]) -> None:
    """Set the ticks of the "x" or the "y" axis, and no small ones between."""
    (axes.set_xticks if along == "x" else axes.set_yticks)(places, labels)


def apart(heights: Sequence[float], nearest: float) -> list[float]:
    """Return the heights of names, moved up where two are nearer to each other than ``nearest``."""
    found = list(heights)
    lowest = -math.inf
    for number in sorted(range(len(found)), key=lambda each: found[each]):
        found[number] = max(found[number], lowest)
        lowest = found[number] + nearest
    return found


_SWATCH = 30


def legend(
    figure: Figure, left: float, top: float, names: Sequence[str], looks: Sequence[Look], step: float | None = None
) -> None:
    """Write the series' names beside a swatch of each: in a row, or below each other with ``step`` px between."""
    across, down = 72 * figure.get_figwidth(), 72 * figure.get_figheight()
    for name, look in zip(names, looks, strict=True):
        place = (left / across, 1 - (top + _SWATCH * 0.8) / down)
        swatch = Rectangle(place, _SWATCH / across, _SWATCH * 0.8 / down, transform=figure.transFigure, **look.bar)
        figure.add_artist(swatch)
        write(figure, left + _SWATCH + 10, top + _SWATCH * 0.4, name, size=SMALL)
        if step is None:
            left += _SWATCH + 10 + 1.15 * grammar.text_width(name, "label") + 22
        else:
            top += step
