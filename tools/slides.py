"""A maintainer's tool: each notebook as slides, one HTML file that needs nothing but a browser.

    python -m tools.slides                            all notebooks: build/slides/NAME.html, and an index.html
    python -m tools.slides notebooks/01-*.ipynb       one of them

What is a slide, what appears at the next key press and what only the speaker sees is said by the notebook's own cells
(tools.notebooks, SLIDE_TYPES). An answer waits for a key press in any case: what stands behind an exercise on its
slide, and what code printed or drew below a text with a question in it. A solution that is a fragment takes the place
of its stub; hints and solutions are among the speaker's notes. How the parts of a slide share its room is settled
by slides.js in the reader's browser, whose fonts decide; what does not fit goes on a slide of its own.
"""

import argparse
import html
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path

from nbformat import NotebookNode

from tools import notebooks, typeset
from tpviz.exercises.lessons import Lesson

HERE = Path(__file__).resolve().parent
SLIDES = notebooks.ROOT / "build" / "slides"
REVEAL = files("sphinx_revealjs") / "_static" / "revealjs"
"""reveal.js as its authors release it, carried by a package of PyPI: pip fetches it once, and then it is here."""

_HEADING = re.compile(r"\A\s*<h([12])\b[^>]*>(.*?)</h\1>", re.DOTALL)
_NOTEBOOK_LINK = re.compile(r'(<a [^>]*href=")(?!\w+:)([^"#]*)\.ipynb([^"]*")')
_DETAILS = re.compile(r"</?(details|summary)>")


@dataclass
class Block:
    """A piece of a slide that is laid out as a whole."""

    kind: str
    """`text`, `code`, `out` (what code printed) or `figure`."""
    html: str
    step: int = 0
    """After how many key presses it is there."""
    answer: str = ""
    """Of an exercise: its solution, which takes the stub's place one key press later."""


@dataclass
class Slide:
    """One slide as the notebook has it; the browser may make two of it."""

    heading: str = ""
    blocks: list[Block] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    below: bool = False
    """Whether it stands below the slide before it."""


# From cells to slides


def text_html(cell: NotebookNode) -> str:
    """A cell of text, whose links to other notebooks lead to their slides."""
    return _NOTEBOOK_LINK.sub(r"\1\2.html\3", typeset.markdown(cell.source))


def lines(text: str) -> str:
    """Printed text, each line an element of its own: what is wrapped is to look so."""
    return "<pre>" + "".join(f"<div>{line}</div>" for line in text.rstrip("\n").split("\n")) + "</pre>"


def code_block(source: str) -> Block:
    """Code as a room reads it: the empty lines between definitions are half as many."""
    return Block("code", typeset.code_html(re.sub(r"\n{3,}", "\n\n", source)))


def output_block(output: NotebookNode) -> Block:
    """What a cell printed, returned or ended with, in the form that a page shows best."""
    if output.output_type == "stream":
        return Block("out", lines(typeset.terminal_html(output.text)))
    if output.output_type == "error":
        # Where the program was is for the one who mends it; a room reads the last line.
        return Block("out error", lines(html.escape(f"{output.ename}: {output.evalue}")))
    data = output.data
    if "text/html" in data:
        return Block("figure" if "<img" in data["text/html"] else "out", data["text/html"])
    if "text/latex" in data:
        return Block("out", typeset.latex_html(data["text/latex"]))
    return Block("out", lines(html.escape(data["text/plain"])))


def cell_blocks(cell: NotebookNode) -> Iterator[Block]:
    """The pieces that a cell brings to its slide."""
    if cell.cell_type == "markdown":
        yield Block("text", text_html(cell))
        return
    if "folded" not in notebooks.tags(cell):
        yield code_block(cell.source)
    if notebooks.tagged(cell, "exercise:") is None:  # to a stub the checker only says that it is one
        yield from map(output_block, cell.outputs)


def unfolded(cell: NotebookNode) -> str:
    """The hints and the solution of an exercise, for the one who knows them anyway."""
    return _DETAILS.sub(
        lambda tag: "<b>" if tag[0] == "<summary>" else "</b>" if tag[1] == "summary" else "", text_html(cell)
    )


def solution_html(cell: NotebookNode) -> str:
    """The solution of an exercise without its hints."""
    return code_block(cell.source.rpartition("```python\n")[2].partition("\n```")[0]).html


def slides(nb: NotebookNode) -> list[Slide]:
    """The slides of a notebook, in order."""
    found: list[Slide] = []
    step = 0
    asked: Block | None = None
    """The exercise that was asked on this slide just now."""
    question = False
    """Whether a text of this slide has asked what no output has answered yet."""
    for cell in nb.cells:
        kind = cell.metadata.slideshow.slide_type
        if kind in ("slide", "subslide") or not found:
            heading = found[-1].heading if kind == "subslide" and found else ""
            found.append(Slide(heading, below=kind == "subslide"))
            step, asked, question = 0, None, False
        slide = found[-1]
        solution = notebooks.tagged(cell, "solution:") is not None
        if solution or kind == "notes":
            slide.notes.append(unfolded(cell))
        if kind in ("skip", "notes"):
            continue
        if kind == "fragment" or asked:
            step += 1
        if solution and asked:
            asked.answer = solution_html(cell)
            continue
        blocks = list(cell_blocks(cell))
        for block in blocks:
            if question and block.kind in ("out", "figure"):
                step, question = step + 1, False
            block.step = step
        question = question or (cell.cell_type == "markdown" and "?" in cell.source)
        first = blocks[0] if blocks else None
        if first and not slide.blocks and (match := _HEADING.match(first.html)):
            slide.heading, first.html = match[2], first.html[match.end() :]
        asked = first if notebooks.tagged(cell, "exercise:") is not None else None
        question = question and asked is None
        slide.blocks += [block for block in blocks if block.html.strip()]
    return found


# From slides to a page


def block_html(block: Block) -> str:
    """A piece of a slide, with the key press at which it appears."""
    inner = block.html
    if block.answer:
        inner = f'<div>{block.html}</div><div class="answer" data-at="{block.step + 1}">{block.answer}</div>'
    return f'<div class="block {block.kind}" data-at="{block.step}">{inner}</div>'


def section(slide: Slide, *, title: bool) -> str:
    """A slide, not yet laid out."""
    level = 1 if title else 2
    parts = [f'<section{" class=title" if title else ""}><div class="page">']
    if slide.heading:
        parts.append(f"<header><h{level}>{slide.heading}</h{level}></header>")
    parts.append('<div class="body">')
    parts += map(block_html, slide.blocks)
    parts.append("</div></div>")
    if slide.notes:
        parts.append(f'<aside class="notes">{"<hr>".join(slide.notes)}</aside>')
    parts.append("</section>")
    return "".join(parts)


def _inline(script: str) -> str:
    """A script as it may stand inside a page."""
    return "<script>" + re.sub(r"</(?=script)", r"<\\/", script, flags=re.IGNORECASE) + "</script>"


def page(title: str, body: str, *, style: str = "", scripts: Sequence[str] = ()) -> str:
    """A whole HTML file."""
    return "\n".join(
        [
            '<!doctype html><html lang="en"><head><meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>{html.escape(title)}</title><style>{style}</style></head><body>",
            body,
            *map(_inline, scripts),
            "</body></html>\n",
        ]
    )


def deck(nb: NotebookNode) -> str:
    """The slides of a notebook as one HTML file."""
    groups: list[str] = []
    for number, slide in enumerate(slides(nb)):
        written = section(slide, title=number == 0)
        if slide.below and groups:
            groups[-1] += written
        else:
            groups.append(written)
    title = str(nb.cells[0].source).partition("\n")[0].lstrip("# ")
    stacks = "\n".join(f"<section>{group}</section>" for group in groups)
    body = f'<div class="reveal"><div class="slides">{stacks}</div><footer>{html.escape(title)}</footer></div>'
    reveal = [(REVEAL / part).read_text(encoding="utf-8") for part in ("dist/reveal.js", "plugin/notes/notes.js")]
    own = (HERE / "slides.css").read_text(encoding="utf-8")
    style = (REVEAL / "dist" / "reveal.css").read_text(encoding="utf-8") + typeset.CODE_CSS + own
    return page(title, body, style=style, scripts=[*reveal, (HERE / "slides.js").read_text(encoding="utf-8")])


def index(lessons: Sequence[Lesson]) -> str:
    """The page that leads to all decks."""
    rows = []
    for each in lessons:
        question = typeset.markdown(each.question)
        rows.append(f'<li><a href="{each.path.stem}.html">{html.escape(each.heading)}</a>{question}</li>')
    style = (HERE / "slides.css").read_text(encoding="utf-8")
    keys = (
        "<p>PageDown or a presenter's remote goes on, PageUp back; S opens the speaker's notes, Esc shows all slides, "
        "F fills the screen. For a PDF, add <code>?print-pdf</code> to a deck's address and print it.</p>"
    )
    return page("tpviz: slides", f"<main><h1>tpviz: slides</h1>{keys}<ul>{''.join(rows)}</ul></main>", style=style)


def build(paths: Sequence[Path], folder: Path = SLIDES) -> list[Path]:
    """Write the decks of notebooks; where they are."""
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for path in paths:
        written.append(folder / f"{path.stem}.html")
        written[-1].write_text(deck(notebooks.read(path)), encoding="utf-8", newline="\n")
    return written


def main(arguments: Sequence[str] | None = None) -> int:
    """Read the command line and write the slides."""
    assert __doc__ is not None
    parser = argparse.ArgumentParser(
        prog="python -m tools.slides", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("notebooks", nargs="*", type=Path)
    options = parser.parse_args(arguments)
    everything = notebooks.lessons()
    for path in build(options.notebooks or [each.path for each in everything]):
        print(path)
    (SLIDES / "index.html").write_text(index(everything), encoding="utf-8", newline="\n")
    print(SLIDES / "index.html")
    return 0


if __name__ == "__main__":
    sys.exit(main())
