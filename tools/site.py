"""A maintainer's tool: the notebooks as a website to read, with no kernel and no network: `python -m tools.site`.

Sphinx, MyST-NB and Furo make the pages, in build/site/, of what is stored in the notebooks; nothing is run. What they
read is laid out first, in build/site-source/: the notebooks with a word on top about what needs a kernel, all of docs/,
and an index. build/slides/ is taken along where it is.
"""

import re
import shutil
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import nbformat
from docutils import nodes
from nbformat import NotebookNode
from sphinx.application import Sphinx

from tools import notebooks, places, typeset
from tpviz.exercises.lessons import Lesson
from tpviz.i18n import _

ROOT = notebooks.ROOT
DOCS = ROOT / "docs"
SLIDES = ROOT / "build" / "slides"
SITE = ROOT / "build" / "site"
SOURCE = ROOT / "build" / "site-source"
STATIC = Path(__file__).parent / "site_static"

_WORDS_OF_LINK = re.compile(r"\[([^]]*)\]\([^)]*\)")
_LINK = re.compile(r"\]\(([^)\s#:]+)")


# What Sphinx reads


def outward(text: str, folder: Path) -> str:
    """Markdown whose links to files that are no part of the site lead to the repository."""

    def led(match: re.Match[str]) -> str:
        target = (folder / match[1]).resolve()
        inside = target.suffix == ".ipynb" or target.is_relative_to(DOCS)
        if inside or not target.exists() or not target.is_relative_to(ROOT):
            return match[0]
        return f"](https://github.com/{places.repository()}/blob/HEAD/{target.relative_to(ROOT).as_posix()}"

    return _LINK.sub(led, text)


def slides_link(path: Path, up: str) -> str:
    """A link to the notebook's slides, where they are built; Sphinx does not know of them, so it is HTML."""
    if not (SLIDES / f"{path.stem}.html").exists():
        return ""
    return f'<a href="{up}slides/{path.stem}.html">{_("Slides")}</a>'


def notice(path: Path) -> NotebookNode:
    """What a reader can do on the notebook's page, and where to do the rest."""
    words = _(
        "You read what is stored in the notebook. Figures to step through work here; exercises and sliders need a "
        "kernel: run `python3 study.py` on your computer, or [open this notebook on Binder]({binder})."
    ).format(binder=places.binder(path))
    text = f":::{{admonition}} {_('To read, and to run')}\n:class: note\n{words} {slides_link(path, '../')}\n:::"
    return nbformat.v4.new_markdown_cell(text)


def staged(path: Path) -> NotebookNode:
    """The notebook as Sphinx gets it."""
    nb = notebooks.read(path)
    nb.cells.insert(1, notice(path))
    nb.cells = [cell for cell in nb.cells if "setup" not in notebooks.tags(cell)]  # nothing runs on a page
    for cell in nb.cells:
        if cell.cell_type == "markdown":
            cell.source = outward(cell.source, path.parent)
        elif "folded" in notebooks.tags(cell):
            cell.metadata.tags.append("hide-input")  # MyST-NB's word for it
    return nb


def index(entries: Sequence[Lesson], documents: Sequence[str]) -> str:
    """The first page, in MyST Markdown."""
    core = [each for each in entries if each.kind == "core"]
    minutes = sum(each.minutes for each in core)
    lines = [
        "# tpviz",
        _(
            "Which part of a layer does each GPU compute, what does it hold afterwards, and when do they have to talk? "
            "These notebooks answer with numbers small enough to check by hand."
        ),
        _(
            "Start with [the first one](notebooks/{first}). The {count} core notebooks take {minutes} minutes; the "
            "others go deeper, and can be skipped."
        ).format(first=entries[0].path.name, count=len(core), minutes=minutes),
        f"## {_('The notebooks')}",
    ]
    for each in entries:
        facts = _("{minutes} minutes · {level}").format(minutes=each.minutes, level=each.kind)
        name = f"[{each.heading}](notebooks/{each.path.name})"
        slides = slides_link(each.path, "")
        question = _WORDS_OF_LINK.sub(r"\1", each.question)  # its links start from another folder
        lines.append(f"{name}\n: {question}\n\n  *{facts}*{slides and f' · {slides}'}")
    if documents:
        lines += [f"## {_('To look things up')}", "\n".join(f"- [](docs/{name})" for name in documents)]
    lines += [
        f"## {_('To run them')}",
        _(
            "These pages are for reading. To run the cells, answer the exercises and move the sliders, get [the "
            "notebooks themselves](https://github.com/{repository}) and run `python3 study.py` in their folder; it "
            "needs Python 3.11 or newer, 3 GB of disk and no GPU. Or [open the first one on Binder]({binder}), with "
            "nothing to install."
        ).format(repository=places.repository(), binder=places.binder(entries[0].path)),
        _toctree(_("Notebooks"), [f"notebooks/{each.path.name}" for each in entries]),
    ]
    if documents:
        lines.append(_toctree(_("To look things up"), [f"docs/{name}" for name in documents]))
    return "\n\n".join(lines) + "\n"


def _toctree(caption: str, names: Sequence[str]) -> str:
    return "\n".join([":::{toctree}", ":hidden:", f":caption: {caption}", "", *names, ":::"])


def lay_out(source: Path) -> None:
    """Write what Sphinx reads."""
    shutil.rmtree(source, ignore_errors=True)
    everything = notebooks.lessons()
    for each in everything:
        notebooks.write(source / "notebooks" / each.path.name, staged(each.path))
    shutil.copytree(DOCS, source / "docs")
    documents = sorted(path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md"))
    for name in documents:
        text = (DOCS / name).read_text(encoding="utf-8")
        (source / "docs" / name).write_text(outward(text, (DOCS / name).parent), encoding="utf-8", newline="\n")
    (source / "index.md").write_text(index(everything, documents), encoding="utf-8", newline="\n")


# Sphinx


def settings() -> dict[str, Any]:
    """Sphinx's settings: nothing is run, and no page asks for anything from elsewhere."""
    return {
        "project": "tpviz",
        "extensions": ["myst_nb", "sphinx.ext.githubpages", "tools.site"],
        "nb_execution_mode": "off",
        "nb_execution_cache_path": str(SOURCE / "cache"),
        "nb_code_prompt_show": _("Show the code"),
        "nb_code_prompt_hide": _("Hide the code"),
        "myst_enable_extensions": ["amsmath", "colon_fence", "deflist", "dollarmath", "strikethrough"],
        "myst_heading_anchors": 4,
        "myst_update_mathjax": False,
        "suppress_warnings": ["myst.strikethrough"],  # says that it works in HTML only
        "smartquotes": False,
        "html_theme": "furo",
        "html_title": "tpviz",
        "html_math_renderer": "mathml",
        "html_favicon": str(STATIC / "icon.svg"),
        "html_static_path": [str(STATIC)],
        "html_css_files": ["site.css"],
        "html_js_files": [("site.js", {"defer": "defer"})],
        "html_copy_source": False,
        "html_show_copyright": False,
        "html_show_search_summary": False,  # would be fetched, which a page opened from a file may not
        "html_use_index": False,
        "html_theme_options": {
            "light_css_variables": {"color-brand-primary": "#005a8c", "color-brand-content": "#005a8c"},
            "dark_css_variables": {"color-brand-primary": "#7cc4ee", "color-brand-content": "#7cc4ee"},
        },
    }


def _inline_math(translator: Any, node: nodes.math) -> None:
    translator.body.append(typeset.formula(node.astext()))
    raise nodes.SkipNode


def _block_math(translator: Any, node: nodes.math_block) -> None:
    translator.body.append(f'<div class="math">{typeset.formula(node.astext(), block=True)}</div>')
    raise nodes.SkipNode


def _dark_code(app: Sphinx) -> None:
    app.config.pygments_dark_style = "a11y-dark"


def _level_captions(_app: Sphinx, _page: str, _template: str, context: dict[str, Any], _doctree: Any) -> None:
    """Give the side bar's captions the level that a heading has to have: Sphinx leaves it out."""
    tree = context["furo_navigation_tree"]
    context["furo_navigation_tree"] = tree.replace('role="heading"', 'role="heading" aria-level="2"')


def setup(app: Sphinx) -> dict[str, Any]:
    """Sphinx's hook: formulas become MathML while the pages are written."""
    # Furo knows this setting only once it is loaded as the theme, and looks at it at the usual priority, 500.
    app.connect("builder-inited", _dark_code, priority=100)
    app.connect("html-page-context", _level_captions, priority=600)  # behind Furo's
    app.add_html_math_renderer("mathml", (_inline_math, None), (_block_math, None))
    return {"parallel_read_safe": True, "parallel_write_safe": True}


def build() -> int:
    """Build the site anew; how many warnings there were, each told on standard error."""
    lay_out(SOURCE)
    shutil.rmtree(SITE, ignore_errors=True)
    sphinx = Sphinx(SOURCE, None, SITE, SOURCE / "doctrees", "html", settings(), status=None, freshenv=True, parallel=2)
    sphinx.build()
    if SLIDES.exists():
        shutil.copytree(SLIDES, SITE / "slides")
    return sphinx._warncount


def main() -> int:
    """Build it, and say what came out."""
    began = time.perf_counter()
    warnings = build()
    took = time.perf_counter() - began
    files = [path for path in SITE.rglob("*") if path.is_file()]
    pages = sum(path.suffix == ".html" for path in files)
    size = sum(path.stat().st_size for path in files) / 1e6
    print(f"{(SITE / 'index.html').relative_to(ROOT)}: {pages} pages, {size:.1f} MB, built in {took:.1f} s")
    return 1 if warnings else 0


if __name__ == "__main__":
    sys.exit(main())
