"""The canvas: collects shapes and texts, and turns them into a `Drawing` (diagrams; knows no tensor).

svg.py spends about 20 µs on one of its own elements, looking through 60 attributes. So shapes of one class become one
path and a matrix's digits one text, both elements of few attributes: a figure stays below 2 ms, and its file small.
Layers, not the order of the calls, decide what covers what.
"""

from __future__ import annotations

import html
from collections import defaultdict
from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple

import svg

from tpviz.diagrams.drawing import Drawing
from tpviz.diagrams.grammar import CARD, RANKS, SIZES, SUBSCRIPTS, stylesheet, text_width

Color = int | Literal["neutral", ""]
"""A rank's colour, the grey of what is the same on every rank, or what the layer itself says."""
Anchor = Literal["", "c", "e"]
"""Where a text's x is: at its start, its centre, its end."""

_LAYERS = (
    *("lane", "solid", "shade", "rail"),
    *("absent", "frame", "hatch", "block", "partial", "twin", "mark"),
    *("bar", "path", "pill", "thin", "rule", "arrow", "node", "tag"),
)
"""From the lowest to the topmost; texts lie above them all."""

_HATCH = svg.Defs(
    elements=[
        svg.Pattern(
            id="hatch",
            patternUnits="userSpaceOnUse",
            width=7,
            height=7,
            patternTransform=[svg.Rotate(45)],
            elements=[svg.Rect(width=3, height=7, fill=CARD)],
        )
    ]
)
"""White stripes, laid over a frame in any colour."""


_PLAIN_DIGITS = str.maketrans(SUBSCRIPTS, "0123456789")


_BASELINES = {style: round(0.36 * size) for style, size in SIZES.items()}


def middle(center_y: int, style: str) -> int:
    """The baseline that sets a text of this class in the middle of a line."""
    return center_y + _BASELINES[style]


class Box(NamedTuple):
    """A rectangle on the canvas. All coordinates are whole px: they are sharp, and written quickly."""

    x: int
    y: int
    width: int
    height: int

    @property
    def right(self) -> int:
        """The x of the right edge."""
        return self.x + self.width

    @property
    def bottom(self) -> int:
        """The y of the lower edge."""
        return self.y + self.height

    @property
    def center_x(self) -> int:
        """The x of the middle."""
        return self.x + self.width // 2

    @property
    def center_y(self) -> int:
        """The y of the middle."""
        return self.y + self.height // 2

    def grown(self, by: int) -> Box:
        """The same, larger by so much on each side."""
        return Box(self.x - by, self.y - by, self.width + 2 * by, self.height + 2 * by)


@dataclass
class _Path(svg.Element):
    """A path of many shapes: svg.py's own has 60 attributes, and an object for each command."""

    element_name: ClassVar[str] = "path"
    class_: str = ""
    d: str = ""

    def as_dict(self) -> dict[str, str]:
        """The attributes as they are written; there are no others to look through."""
        return {"class": self.class_, "d": self.d}


@dataclass
class _Text(svg.Element):
    """A text whose characters may each have their own place: svg.py's own has one x and one y."""

    element_name: ClassVar[str] = "text"
    class_: str = ""
    x: str = ""
    y: str = ""
    turned: bool = False
    """Whether the text is read from below to above, turned about its place."""

    def as_dict(self) -> dict[str, str]:
        """The attributes as they are written; there are no others to look through."""
        written = {"class": self.class_, "x": self.x, "y": self.y}
        return {**written, "transform": f"rotate(-90 {self.x} {self.y})"} if self.turned else written


class _Group:
    """What belongs together: paths of one class, texts, and single characters."""

    def __init__(self) -> None:
        self.paths: defaultdict[tuple[str, Color], list[str]] = defaultdict(list)
        self.texts: list[svg.Element] = []
        self.characters: defaultdict[tuple[str, str], list[tuple[str, int, int]]] = defaultdict(list)

    def elements(self) -> list[svg.Element]:
        """The SVG elements, the lowest layer first."""
        texts = list(self.texts)
        for (style, color), places in self.characters.items():
            characters, xs, ys = zip(*places, strict=True)
            texts.append(
                _Text(
                    text=html.escape("".join(characters), quote=False),
                    class_=_classes(style, "c", color),
                    x=" ".join(map(str, xs)),
                    y=" ".join(map(str, ys)),
                )
            )
        paths = sorted(self.paths.items(), key=lambda item: _LAYERS.index(item[0][0]))
        return [*(_Path(class_=_path_class(*key), d="".join(subpaths)) for key, subpaths in paths), *texts]


class Canvas:
    """A figure in the making: what is added to it is in px from the card's upper left corner."""

    def __init__(self) -> None:
        self._groups = {0: _Group()}
        self._group = self._groups[0]

    def step(self, number: int) -> None:
        """Let what follows belong to a step of the figure: a group of its own, which can be shown by itself."""
        self._group = self._groups.setdefault(number, _Group())

    def box(self, layer: str, box: Box, color: Color = "") -> None:
        """Add a rectangle."""
        x, y, width, height = box
        self._group.paths[layer, color].append(f"M{x} {y}h{width}v{height}h-{width}z")

    def rounded(self, layer: str, box: Box, radius: int, color: Color = "") -> None:
        """Add a rectangle with round corners; a pill where the radius is half of its height."""
        x, y, width, height = box
        across, down, turn = width - 2 * radius, height - 2 * radius, f"a{radius} {radius} 0 0 1 "
        self._group.paths[layer, color].append(
            f"M{x + radius} {y}h{across}{turn}{radius} {radius}v{down}{turn}-{radius} {radius}"
            f"h-{across}{turn}-{radius}-{radius}v-{down}{turn}{radius}-{radius}z"
        )

    def line(self, layer: str, *points: tuple[int, int]) -> None:
        """Add a line through the points."""
        self._group.paths[layer, ""].append("M" + "L".join(f"{x} {y}" for x, y in points))

    def arrow(self, x: int, to_x: int, y: int, color: Color = "") -> None:
        """Add a level arrow that ends at ``to_x``, grey or in a rank's colour."""
        back = -9 if to_x > x else 9
        self._group.paths["arrow" if color == "" else "path", color].append(
            f"M{x} {y}H{to_x}m{back}-7l{-back} 7l{back} 7"
        )

    def rise(self, x: int, y: int, to_y: int) -> None:
        """Add an upright arrow that ends at ``to_y``."""
        back = 9 if to_y < y else -9
        self._group.paths["arrow", ""].append(f"M{x} {y}V{to_y}m-7 {back}l7 {-back} 7 {back}")

    def curve(self, start: tuple[int, int], end: tuple[int, int], color: Color, bow: int = 0) -> None:
        """Add an arrow that leaves and arrives level, and swings from one height to another between.

        With ``bow`` it swings out so far to one side, past what lies between.
        """
        (x, y), (to_x, to_y) = start, end
        turn, back = (x + to_x) // 2, -9 if to_x > x else 9
        first, second = (
            (f"{x + bow} {y - bow}", f"{to_x - bow} {to_y - bow}") if bow else (f"{turn} {y}", f"{turn} {to_y}")
        )
        self._group.paths["path", color].append(f"M{x} {y}C{first} {second} {to_x} {to_y}m{back}-7l{-back} 7l{back} 7")

    def frame(self, inner: Box, thickness: int, color: Color) -> None:
        """Add a box with the hatched frame of a partial sum around it."""
        outer = inner.grown(thickness)
        self.box("frame", outer, color)
        self.box("hatch", outer)
        self.box("partial", inner, color)

    def badge(self, x: int, y: int, rank: int, radius: int = 22) -> None:
        """Add a rank's number on a disc in its colour."""
        turn = f"a{radius} {radius} 0 1 0 "
        self._group.paths["solid", rank].append(f"M{x - radius} {y}{turn}{2 * radius} 0{turn}-{2 * radius} 0z")
        style = "number" if radius >= 20 else "mini"
        on_solid = "w" if RANKS[rank].on_solid == CARD else ""
        self.character(str(rank), x, middle(y, style), style, on_solid)

    def node(self, x: int, y: int, sign: str, radius: int) -> None:
        """Add a sign on a white disc: where paths meet."""
        turn = f"a{radius} {radius} 0 1 0 "
        self._group.paths["node", ""].append(f"M{x - radius} {y}{turn}{2 * radius} 0{turn}-{2 * radius} 0z")
        self.character(sign, x, middle(y, "number"), "number")

    def pill(self, x: int, center_y: int, text: str, color: Color) -> int:
        """Add a short text in an outlined pill that begins at x; return the pill's width."""
        width = pill_width(text)
        self.rounded("pill", Box(x, center_y - 14, width, 28), 14, color)
        self.text(x + width // 2, middle(center_y, "mini"), text, "mini", "c")
        return width

    def text(self, x: int, y: int, text: str, style: str, anchor: Anchor = "", color: str = "") -> None:
        """Add a text whose baseline is at y."""
        self._group.texts.append(
            _Text(text=html.escape(text, quote=False), class_=_classes(style, anchor, color), x=str(x), y=str(y))
        )

    def upright(self, center_x: int, center_y: int, text: str, style: str, color: str = "") -> None:
        """Add a text centred on a place and read from below to above."""
        x = str(center_x + _BASELINES[style])
        escaped = html.escape(text, quote=False)
        self._group.texts.append(
            _Text(text=escaped, class_=_classes(style, "c", color), x=x, y=str(center_y), turned=True)
        )

    def character(self, character: str, x: int, y: int, style: str, color: str = "") -> None:
        """Add a single character centred on x; all of one class become one text."""
        self._group.characters[style, color].append((character, x, y))

    def name(self, x: int, y: int, name: str) -> None:
        """Add a matrix's name; its subscript is set by hand, since few italics have subscript digits."""
        base = name.rstrip(SUBSCRIPTS + ",")
        width = text_width(base, "name")
        if len(base) == 1:
            self.character(base, x + width // 2, y, "name")
        else:
            self.text(x, y, base, "name")
        x += width
        for character in name[len(base) :]:
            width = text_width(character.translate(_PLAIN_DIGITS), "sub")
            self.character(character.translate(_PLAIN_DIGITS), x + width // 2, y + 5, "sub")
            x += width

    def digits(self, text: str, xs: str, ys: str, color: str = "") -> None:
        """Add a matrix's numbers as one text, with the centre x and the baseline y of each character."""
        self._group.texts.append(_Text(text=text, class_=_classes("digit", "c", color), x=xs, y=ys))

    def drawing(self, width: int, height: int, alt: str) -> Drawing:
        """Return the figure on its card; each step's shapes and texts are a group that has its number."""
        layers = {layer for group in self._groups.values() for layer in group.paths}
        ranks = max((color + 1 for _layer, color in layers if isinstance(color, int)), default=0)
        elements: list[svg.Element] = [
            svg.Style(text=stylesheet(ranks)),
            svg.Rect(x=0.5, y=0.5, width=width - 1, height=height - 1, rx=8, class_=["card"]),
            *self._groups[0].elements(),
            *(
                svg.G(elements=group.elements(), data={"step": number})
                for number, group in sorted(self._groups.items())
                if number
            ),
        ]
        if ("hatch", "") in layers:
            elements.insert(1, _HATCH)
        root = svg.SVG(
            width=width,
            height=height,
            viewBox=svg.ViewBoxSpec(0, 0, width, height),
            extra={"role": "img", "aria-label": html.escape(alt)},
            elements=elements,
        )
        return Drawing(str(root), alt, width, height)


def _path_class(layer: str, color: Color) -> str:
    return _classes(layer, f"r{color}" if isinstance(color, int) else color)


def _classes(*names: str) -> str:
    return " ".join(filter(None, names))


def pill_width(text: str) -> int:
    """The width of the pill that holds this text."""
    return text_width(text, "mini") + 22
