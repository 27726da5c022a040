"""A finished figure as a notebook shows it (diagrams and charts): SVG text, one sentence in words, and an image tag."""

import html
import re
from collections.abc import Container
from dataclasses import dataclass

LEAST_SCALE = 0.5
"""On a phone a figure is scaled down so far and then scrolls sideways, so that its digits keep 12 px."""

_NOT_PLAIN = re.compile(r"[^ -~]")


def _data_uri(svg: str) -> str:
    """The SVG as a data URI that may stand in a double-quoted attribute, readable where it can be."""
    for character in '%<>"#&':  # "%" first: the others bring new ones
        svg = svg.replace(character, f"%{ord(character):02X}")
    for character in set(_NOT_PLAIN.findall(svg)):
        svg = svg.replace(character, "".join(f"%{byte:02X}" for byte in character.encode()))
    return f"data:image/svg+xml,{svg}"


@dataclass(frozen=True, slots=True)
class Drawing:
    """An SVG figure with its text alternative; the last line of a cell shows it.

    A notebook that JupyterLab does not trust shows an image whose source is a data URI, and nothing else of what SVG
    could be stored as; hence ``html``. It is text, not base64, so that a diff and nbval read it.
    """

    svg: str
    alt: str
    width: int
    """The natural width in px: for the notebooks' own figures at most 1280, a slide's."""
    height: int

    @property
    def html(self) -> str:
        """The image tag: as wide as drawn, narrower where the page is, with the sentence for who cannot see it."""
        style = f"max-width:100%;min-width:{round(self.width * LEAST_SCALE)}px;height:auto"
        return f'<img alt="{html.escape(self.alt)}" width="{self.width}" style="{style}" src="{_data_uri(self.svg)}">'

    def _repr_mimebundle_(
        self, include: Container[str] | None = None, exclude: Container[str] | None = None
    ) -> dict[str, str]:
        return {"text/html": self.html, "image/svg+xml": self.svg, "text/plain": self.alt}
