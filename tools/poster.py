"""A maintainer's tool: the whole story on one page, put together from figures of runs that it makes.

`python -m tools.poster` writes docs/poster.svg and, printed by Chromium on A2 (which scales to A3), build/poster.pdf.
"""

import html
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

import tpviz
from tools import browser
from tpviz import diagrams
from tpviz.diagrams import Drawing, grammar
from tpviz.diagrams.canvas import Box, Canvas, middle
from tpviz.diagrams.exchange import NAMES
from tpviz.example import W1, W2, W, X, dY
from tpviz.i18n import _
from tpviz.tables import shape_text, size_text

ROOT = Path(__file__).resolve().parent.parent
POSTER = ROOT / "docs" / "poster.svg"
PDF = ROOT / "build" / "poster.pdf"

WIDTH, HEIGHT = 2660, 1881
"""In px, in the proportions of a sheet of DIN A; on A2 a px is 0.22 mm, and a digit 15 points high."""
SHEET = ("594mm", "420mm")
RANKS = 2
MANY = 8
"""Ranks on which the two layers send as often as on two."""

_MARGIN, _GAP, _PAD = 44, 28, 30
_TOP = 168
"""Where the panels begin, below the title."""
_HEADING, _LINE = 46, 34
_LEAST_SCALE = 0.97
_STYLE = (
    ".page{fill:#eef2f6}.panel{fill:#ffffff;stroke:#c3ccd5;stroke-width:1.5}"
    ".title{font-size:66px;font-weight:700}.lead{font-size:30px;fill:#3e4c59}"
    ".heading{font-size:32px;font-weight:700}.said{font-size:25px;fill:#3e4c59}.step{font-size:30px;font-weight:700}"
    ".small{font-size:20px;fill:#52606d}.disc{fill:#1f2933}"
)
_OWN = re.compile(r'<style>.*?</style>|<defs>.*?</defs>|<rect class="card"[^>]*/>', re.DOTALL)
_OPENING = re.compile(r"<svg [^>]*>")


# The runs


def column(comm: tpviz.Communicator) -> Tensor:
    """The column layer: this rank's columns of Y."""
    return X @ tpviz.shard(W, 1, comm)


def row(comm: tpviz.Communicator) -> Tensor:
    """The row layer before its sum: this rank's partial sum of Y."""
    return tpviz.shard(X, 1, comm) @ tpviz.shard(W, 0, comm)


def contribution(comm: tpviz.Communicator) -> Tensor:
    """The column layer backward, before its sum: what this rank's columns say of dX."""
    return tpviz.shard(dY, 1, comm) @ tpviz.shard(W, 1, comm).T


def two_layers(comm: tpviz.Communicator) -> dict[str, Tensor]:
    """A column layer, ReLU, a row layer, forward and backward: all that this rank holds on the way."""
    x = X.clone().requires_grad_()
    first, second = (tpviz.shard(weight, dim, comm).requires_grad_() for weight, dim in ((W1, 1), (W2, 0)))
    inner = tpviz.copy_to_region(x, comm) @ first
    hidden = torch.relu(inner)
    partial = hidden @ second
    y = tpviz.reduce_from_region(partial, comm)
    inner.retain_grad()
    hidden.retain_grad()
    y.backward(upstream())  # type: ignore[no-untyped-call]
    values = {"X": x, "A": inner, "H": hidden, "Z": partial, "Y": y, "dY": upstream()}
    gradients = {"dH": hidden.grad, "dA": inner.grad, "dX": x.grad, "dW1": first.grad, "dW2": second.grad}
    assert all(gradient is not None for gradient in gradients.values())
    return {**values, **gradients, "G": inner.grad @ first.T}  # type: ignore[dict-item, operator]


def upstream() -> Tensor:
    """What arrives at the end of the two layers, as large as their Y."""
    return dY[:, : W2.shape[1]].clone()


def wholes() -> dict[str, Tensor]:
    """The two layers on one rank."""
    inner = X @ W1
    hidden = torch.relu(inner)
    y, d_hidden = hidden @ W2, upstream() @ W2.T
    d_inner = d_hidden * (inner > 0)
    d_x = d_inner @ W1.T
    forward = {"X": X, "A": inner, "H": hidden, "Z": y, "Y": y}
    return {**forward, "dY": upstream(), "dH": d_hidden, "dA": d_inner, "G": d_x, "dX": d_x}


def checked(run: tpviz.Run, whole: Mapping[str, Tensor]) -> tpviz.Run:
    """The run of two layers, which is what one rank computes, and which sends once each way on many ranks, too."""
    for outputs in run.outputs:
        assert all(torch.equal(outputs[name], whole[name]) for name in ("Y", "dX"))
    for ranks in (RANKS, MANY):
        trace = tpviz.run(two_layers, ranks=ranks).trace
        assert [(event.kind, event.phase) for event in trace] == [("all_reduce", "forward"), ("all_reduce", "backward")]
    return run


# The panels


@dataclass(frozen=True)
class Panel:
    """One step of the story."""

    heading: str
    said: str
    figure: Drawing

    def lines(self, width: int) -> list[str]:
        """What is said, in lines as wide as the panel."""
        scale = 25 / grammar.SIZES["caption"]
        return grammar.wrapped(self.said, "caption", round((width - 2 * _PAD) / scale))

    def height(self, width: int) -> int:
        """The least height: with the figure a little smaller than on a slide."""
        text = _PAD + _HEADING + _LINE * len(self.lines(width))
        return text + round(self.figure.height * _LEAST_SCALE) + _PAD // 2

    def drawn(self, box: Box, number: int) -> Iterator[str]:
        """The panel's SVG."""
        yield _box(box)
        x, y = box.x + _PAD, box.y + _PAD + 24
        yield f'<circle class="disc" cx="{x + 20}" cy="{y - 10}" r="23"/>'
        yield _text(x + 20, y, str(number), "step w c")
        yield _text(x + 60, y, self.heading, "heading")
        for line in self.lines(box.width):
            y += _LINE
            yield _text(x + 60, y + 8, line, "said")
        room = Box(box.x + _PAD, y + 22, box.width - 2 * _PAD, box.bottom - y - 32)
        scale = min(room.width / self.figure.width, room.height / self.figure.height)
        width, height = round(self.figure.width * scale), round(self.figure.height * scale)
        yield nested(self.figure, Box(room.center_x - width // 2, room.center_y - height // 2, width, height))


def nested(figure: Drawing, box: Box) -> str:
    """A figure inside of the page, which has its styles already."""
    inside = _OWN.sub("", figure.svg)
    place = f'x="{box.x}" y="{box.y}" width="{box.width}" height="{box.height}"'
    view = f'viewBox="0 0 {figure.width} {figure.height}"'
    return _OPENING.sub(f'<svg {place} {view} role="img" aria-label="{html.escape(figure.alt)}">', inside, count=1)


def _box(box: Box) -> str:
    return f'<rect class="panel" x="{box.x}" y="{box.y}" width="{box.width}" height="{box.height}" rx="14"/>'


def _text(x: int, y: int, text: str, style: str) -> str:
    return f'<text class="{style}" x="{x}" y="{y}">{html.escape(text, quote=False)}</text>'


def panels() -> list[Panel]:
    """The four steps of the story, each from its run."""
    forward, summed = tpviz.run(column, ranks=RANKS), tpviz.run(row, ranks=RANKS)
    backward = tpviz.run(contribution, ranks=RANKS)
    assert torch.equal(torch.cat(forward.outputs, dim=1), X @ W)
    assert torch.equal(sum(summed.outputs[1:], summed.outputs[0]), X @ W)
    assert not forward.trace
    whole = wholes()
    both = checked(tpviz.run(two_layers, ranks=RANKS), whole)
    return [
        Panel(
            _("Cut W by columns: each rank has columns of Y"),
            _("Every rank reads all of X. Side by side the parts are Y; nobody needs to send anything."),
            diagrams.column_parallel(X, W, forward),
        ),
        Panel(
            _("Cut W by rows: each rank has a partial sum of Y"),
            _("Each Z is as large as Y, and misses the other rank's products. An AllReduce adds them to Y."),
            diagrams.row_parallel(X, W, summed, names=("X", "W", "Z")),
        ),
        Panel(
            _("Column layer backward: copied forward, summed backward"),
            _("X went to both ranks, so both know a part of how the loss depends on it. dX is the sum: an AllReduce."),
            diagrams.contributions(backward, dY @ W.T, dY),
        ),
        Panel(
            _("Column, ReLU, row: one AllReduce forward, one backward"),
            _("The column layer leaves H cut by columns, as the row layer wants it: between them nothing crosses."),
            diagrams.journey(
                both,
                whole,
                "X → @ W1 → A → ReLU → H → @ W2 → Z → all_reduce → Y",
                "dY → @ W2ᵀ → dH → ⊙ mask → dA → @ W1ᵀ → G → all_reduce → dX",
            ),
        ),
    ]


# Below them


def legend() -> Drawing:
    """How the figures show what a rank holds."""
    canvas = Canvas()
    meanings = (_("a shard, in its place"), _("the whole, on every rank"), _("a partial sum"), _("a gradient"))
    second = 86 + max(grammar.text_width(words, "caption") for words in meanings[::2]) + 30
    width = second + 86 + max(grammar.text_width(words, "caption") for words in meanings[1::2])
    for index, words in enumerate(meanings):
        x, y = index % 2 * second, 14 + index // 2 * 72
        block = Box(x + 34, y, 34, 48)
        if index == 0:
            canvas.box("absent", Box(x, y, 68, 48))
            canvas.box("block", block, 1)
        elif index == 1:
            canvas.box("block", Box(x, y, 68, 48), "neutral")
        elif index == 2:
            canvas.frame(Box(x + 8, y + 8, 52, 32), 8, 0)
        else:
            canvas.box("twin", Box(x, y, 68, 48), 1)
            canvas.box("block", Box(x, y, 68, 48).grown(-grammar.TWIN), 1)
        canvas.text(x + 86, middle(y + 24, "label"), words, "caption")
    return canvas.drawing(width, 148, _("The signs: {signs}.").format(signs=", ".join(meanings)))


def ledger() -> list[Sequence[str]]:
    """What the two layers send, as the run recorded it."""
    rows: list[Sequence[str]] = [(_("sent"), _("phase"), _("shape"), _("payload"))]
    for event in tpviz.run(two_layers, ranks=RANKS).trace:
        phases = {"forward": _("forward"), "backward": _("backward")}
        size = size_text(event.payload_bytes)
        rows.append((NAMES[event.kind], phases[event.phase], shape_text(event.shape), size))
    return rows


def remember() -> list[str]:
    """What to take home."""
    return [
        _("Columns give shards, rows give partial sums."),
        _("What is copied forward is summed backward."),
        _("A rank's weight gradient is its own: it never travels."),
    ]


def _below(box: Box) -> Iterator[str]:
    """The ledger, the signs, and what to remember, side by side."""
    width = (box.width - 2 * _GAP) // 3
    first, second, third = (Box(box.x + index * (width + _GAP), box.y, width, box.height) for index in range(3))
    title = _("The ledger of step 4, the same count on {ranks} ranks").format(ranks=MANY)
    yield from _titled(first, title)
    for number, cells in enumerate(ledger()):
        for x, cell in zip((0, 230, 420, 560), cells, strict=True):
            yield _text(first.x + _PAD + x, first.y + 94 + number * 42, cell, "said" if number else "small")
    yield from _titled(second, _("How to read the figures"))
    signs = legend()
    scale = min((width - 2 * _PAD) / signs.width, (second.height - 80) / signs.height)
    yield nested(signs, Box(second.x + _PAD, second.y + 68, round(signs.width * scale), round(signs.height * scale)))
    yield from _titled(third, _("What to remember"))
    for number, sentence in enumerate(remember()):
        yield _text(third.x + _PAD, third.y + 100 + number * 46, sentence, "said")


def _titled(box: Box, title: str) -> Iterator[str]:
    yield _box(box)
    yield _text(box.x + _PAD, box.y + 50, title, "heading")


# The page


def poster() -> str:
    """The whole page as SVG."""
    width = (WIDTH - 2 * _MARGIN - _GAP) // 2
    told = panels()
    left, right = told[:2], told[2:]
    bottom = _TOP + max(sum(panel.height(width) for panel in side) for side in (left, right)) + _GAP
    parts: list[str] = []
    for side, x, number in ((left, _MARGIN, 1), (right, _MARGIN + width + _GAP, 3)):
        spare = bottom - _TOP - _GAP - sum(panel.height(width) for panel in side)
        y = _TOP
        for index, panel in enumerate(side):
            height = panel.height(width) + spare // len(side)
            parts += panel.drawn(Box(x, y, width, height), number + index)
            y += height + _GAP
    below = Box(_MARGIN, bottom + _GAP, WIDTH - 2 * _MARGIN, HEIGHT - _MARGIN - bottom - _GAP)
    parts += _below(below)
    alt = _("Tensor parallelism on one page: {steps}.").format(steps="; ".join(panel.heading for panel in told))
    lead = _("Two ranks compute Y = X W. What does each compute and hold, and when do they have to talk?")
    source = _("Every number comes from a run: python -m tools.poster")
    hatch = '<pattern id="hatch" patternUnits="userSpaceOnUse" patternTransform="rotate(45)" width="7" height="7">'
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}"'
            f' role="img" aria-label="{html.escape(alt)}">',
            f"<style>{grammar.stylesheet(RANKS)}{_STYLE}</style>",
            f'<defs>{hatch}<rect width="3" height="7" fill="#ffffff"/></pattern></defs>',
            f'<rect class="page" width="{WIDTH}" height="{HEIGHT}"/>',
            _text(_MARGIN, 92, _("Tensor parallelism on one page"), "title"),
            _text(_MARGIN, 142, lead, "lead"),
            _text(WIDTH - _MARGIN, 142, source, "small e"),
            *parts,
            "</svg>",
            "",
        ]
    )


def write_pdf(svg: str, target: Path) -> None:
    """Print the page on A2, on one sheet."""
    width, height = SHEET
    style = f"@page{{size:{width} {height};margin:0}}body{{margin:0}}body>svg{{display:block;width:100vw;height:auto}}"
    page = f"<!doctype html><style>{style}</style>{svg}"
    target.parent.mkdir(exist_ok=True)
    with browser.chromium() as chromium:
        opened = chromium.new_page()
        opened.set_content(page)
        opened.pdf(path=target, width=width, height=height, print_background=True, page_ranges="1")


def main() -> int:
    """Write both files."""
    svg = poster()
    POSTER.write_text(svg, encoding="utf-8", newline="\n")
    print(POSTER.relative_to(ROOT))
    try:
        write_pdf(svg, PDF)
    except browser.BrowserError as error:
        print(f"without a PDF: {error}", file=sys.stderr)
        return 1
    print(PDF.relative_to(ROOT))
    return 0


if __name__ == "__main__":
    sys.exit(main())
