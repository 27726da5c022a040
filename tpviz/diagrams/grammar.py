"""The visual grammar of the diagrams: colours, type, sizes and how wide a text is (diagrams; no drawing).

A rank's colour is the same in every figure and never the only sign of it: a number badge stands beside it. The eight
hues are Okabe and Ito's (https://jfly.uni-koeln.de/color/), which readers with a colour vision deficiency tell apart.
"""

import math
import re
import unicodedata
from dataclasses import dataclass
from functools import cache

INK = "#1f2933"
MUTED = "#52606d"
CARD = "#ffffff"
CARD_EDGE = "#d5dbe1"
ABSENT = "#6a7683"
NEUTRAL = "#eceff3"
NEUTRAL_EDGE = "#5b6675"


@dataclass(frozen=True, slots=True)
class RankColors:
    """How a rank looks: the hue itself, what is written on it, and the fills and the edge made from it."""

    solid: str
    on_solid: str
    edge: str
    """At least 4.5:1 against the card. A light hue has a dark edge, since it would be lost as a line."""
    tint: str
    lane: str


RANKS = (
    RankColors("#0072b2", CARD, "#0072b2", "#cfe4f2", "#f3f8fc"),
    RankColors("#d55e00", CARD, "#b04c00", "#f9dccb", "#fef7f2"),
    RankColors("#009e73", CARD, "#00704f", "#c8eadf", "#f1faf7"),
    RankColors("#cc79a7", INK, "#98406f", "#f3d6e6", "#fdf6fa"),
    RankColors("#e69f00", INK, "#7a5400", "#f9dfa0", "#fefaf0"),
    RankColors("#56b4e9", INK, "#0b4f7d", "#aadcf8", "#f2fafe"),
    RankColors("#f0e442", INK, "#625b00", "#f8f3a4", "#fefdf0"),
    RankColors("#000000", CARD, "#000000", "#c3c6ca", "#f4f4f5"),
)
MOST_RANKS = len(RANKS)

MARGIN = 16
"""Between the card's edge and what is on it."""
CELL = 40
"""The least width and the height of a matrix entry."""
FRAME = 11
"""How far the hatched frame of a partial sum stands out from its digits' cells."""
TWIN = 5
"""How far the second outline of a gradient stands out from the first."""
LABEL = 36
"""The height of the line above a block that names it."""
SLIDE_WIDTH, SLIDE_HEIGHT = 1280, 720
WIDEST = 1600
"""A figure that would be wider with its numbers (a learner's own large ones) is drawn without them."""

DIGIT_PITCH = 14
"""From one digit of a number to the next; each is centred on its own place, so that no font shifts a column."""

SIZES = {"digit": 24, "name": 24, "op": 30, "number": 24, "mini": 18, "label": 20, "note": 18, "caption": 20, "sub": 17}
"""The type size in px of each class of text."""
SMALLEST_ON_SOLID = 19
"""For white on a rank's colour, which has 3:1: that is enough for bold type from 14 pt, 18.66 px (WCAG 1.4.3)."""
BOLD = frozenset({"name", "number", "mini", "label", "sub"})

SUBSCRIPTS = "₀₁₂₃₄₅₆₇₈₉"

FONT = "Helvetica Neue,Arial,Liberation Sans,PingFang SC,Microsoft YaHei,Noto Sans CJK SC,sans-serif"
_SHEET = (
    f"text{{font-family:{FONT};fill:{INK};font-variant-numeric:tabular-nums}}"
    + "".join(f".{name}{{font-size:{size}px}}" for name, size in SIZES.items())
    + ",".join(f".{name}" for name in sorted(BOLD))
    + "{font-weight:700}"
    + ".name,.sub{font-style:italic}"
    + f".note,.op{{fill:{MUTED}}}"
    + ".c{text-anchor:middle}.e{text-anchor:end}"
    + f".w{{fill:{CARD}}}.mini.w{{font-size:{SMALLEST_ON_SOLID}px}}.card{{fill:{CARD};stroke:{CARD_EDGE}}}"
    + f".absent{{fill:none;stroke:{ABSENT};stroke-width:1.5;stroke-dasharray:5 4}}"
    + ".block,.partial,.mark{stroke-width:2.5;stroke-linejoin:round}.solid,.pill{stroke-width:2}"
    + f".neutral{{fill:{NEUTRAL};stroke:{NEUTRAL_EDGE}}}"
    + f".neutral.partial{{fill:#fff}}.neutral.mark{{fill:{MUTED};stroke:{INK}}}"
    + f".neutral.frame{{fill:{NEUTRAL_EDGE};stroke:none}}"
    + ".hatch{fill:url(#hatch)}"
    + ".twin{stroke-width:1.5}.path{stroke-width:3;stroke-linecap:round;stroke-linejoin:round}"
    + f".neutral.twin,.neutral.path{{fill:none}}.neutral.path{{stroke:{MUTED}}}"
    + f".rail{{fill:none;stroke:{CARD_EDGE};stroke-width:2}}.shade{{fill:#dde2e8}}"
    + f".bar,.tag{{fill:{INK}}}.node{{fill:{CARD};stroke:{INK};stroke-width:2.5}}"
    + f".rule{{fill:none;stroke:{INK};stroke-width:3}}"
    + f".thin{{fill:none;stroke:{MUTED};stroke-width:1.5}}"
    + f".arrow{{fill:none;stroke:{MUTED};stroke-width:3;stroke-linejoin:round;stroke-linecap:round}}"
)


@cache
def stylesheet(ranks: int) -> str:
    """The rules of all classes, for figures of so many ranks."""
    sheet = _SHEET
    for rank, colors in enumerate(RANKS[:ranks]):
        r = f".r{rank}"
        sheet += (
            f"{r}{{fill:{colors.tint};stroke:{colors.edge}}}"
            f"{r}.lane{{fill:{colors.lane}}}"
            f"{r}.solid,{r}.mark{{fill:{colors.solid}}}"
            f"{r}.partial{{fill:{colors.lane}}}"
            f"{r}.frame{{fill:{colors.edge};stroke:none}}"
            f"{r}.twin,{r}.path{{fill:none}}"
        )
    return sheet


_WORD = re.compile("[^ \u2e80-\uffef]+ *|.")
"""A word with the spaces after it, or one character of Chinese, Japanese or Korean, which break anywhere."""


_WIDTHS = {
    **dict.fromkeys(" !'(),-./:;I[]fijlrt|", 0.31),
    **dict.fromkeys("ABCDEGHKNOPQRSUVXYwΣ", 0.74),
    **dict.fromkeys("MWm@%&", 0.95),
    **dict.fromkeys(SUBSCRIPTS, 0.4),
}
"""Widths in em of the Latin faces of the stack, rounded up; 0.56 is most other letters' and the digits'."""


@cache
def text_width(text: str, style: str) -> int:
    """How many px wide a text of a class is at most; a CJK character counts as two, and is a whole em."""
    em = sum(
        1 if unicodedata.east_asian_width(character) in "WF" else _WIDTHS.get(character, 0.57) for character in text
    )
    return math.ceil(em * SIZES[style] * (1.06 if style in BOLD else 1))


def wrapped(text: str, style: str, width: int) -> list[str]:
    """The lines of a text that may not be wider than so much; a word that is wider stands alone."""
    lines = [""]
    for word in _WORD.findall(text):
        if lines[-1] and text_width((lines[-1] + word).rstrip(), style) > width:
            lines.append("")
        lines[-1] += word
    return [line.rstrip() for line in lines]
