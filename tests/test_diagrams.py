"""Diagrams: what a figure shows is what the tensors hold, in its place, legible, described, the same every time."""

import html.parser
import urllib.parse

from tpviz.diagrams import Drawing


class _ImageTag(html.parser.HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.images: list[dict[str, str | None]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag == "img"
        self.images.append(dict(attrs))


AWKWARD = '<svg xmlns="http://www.w3.org/2000/svg"><text fill="#1f2933">−1 &amp; 100% of\n"矩阵" \'</text></svg>'


def test_the_image_tag_carries_the_svg_and_the_sentence_unchanged() -> None:
    drawing = Drawing(AWKWARD, 'X is "3×4" & W <4×8>.', 700, 200)
    (image,) = _ImageTag(drawing.html).images
    assert image["alt"] == drawing.alt
    assert image["src"] is not None
    head, _, body = image["src"].partition(",")
    assert head == "data:image/svg+xml"
    assert urllib.parse.unquote(body) == AWKWARD
    assert body.isascii()
    assert not set(body) & set('<>"#&\n')


def test_a_notebook_gets_the_image_the_svg_and_the_sentence() -> None:
    drawing = Drawing(AWKWARD, "X is 3×4.", 700, 200)
    assert drawing._repr_mimebundle_() == {
        "text/html": drawing.html,
        "image/svg+xml": AWKWARD,
        "text/plain": "X is 3×4.",
    }
