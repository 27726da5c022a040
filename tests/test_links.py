"""No dead link: in the notebooks, docs/ and README.md each relative link leads to a file and to a heading of it."""

import re
from urllib.parse import unquote, urlsplit

import pytest

from tools import notebooks

ROOT = notebooks.ROOT
FILES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")), *sorted(notebooks.NOTEBOOKS.glob("*.ipynb"))]

_CODE = re.compile(r"```.*?```|`[^`\n]*`", re.DOTALL)
_LINK = re.compile(r"\]\(<?([^)\s>]+)>?(?: \"[^\"]*\")?\)|(?:href|src)=\"([^\"]+)\"|<(https?://[^>\s]+)>")
_HEADING = re.compile(r"^#+ (.+?) *#*$", re.MULTILINE)


def text_of(path):
    """What a file says in Markdown, without code."""
    if path.suffix != ".ipynb":
        return _CODE.sub("", path.read_text(encoding="utf-8"))
    cells = [cell.source for cell in notebooks.read(path).cells if cell.cell_type == "markdown"]
    return _CODE.sub("", "\n\n".join(cells))


def links(text):
    return ["".join(found) for found in _LINK.findall(text)]


def anchors(path):
    """The anchors of a file's headings: JupyterLab's, and GitHub's in lower case."""
    ids = {f"cell-id={cell.id}" for cell in notebooks.read(path).cells} if path.suffix == ".ipynb" else set()
    source = path.read_text(encoding="utf-8") if path.suffix != ".ipynb" else text_of(path)
    for heading in _HEADING.findall(source):
        plain = re.sub(r"[*`]|\]\([^)]*\)|\[", "", heading).strip()
        ids |= {plain.replace(" ", "-"), re.sub(r"[^\w\- ]", "", plain).lower().replace(" ", "-")}
    return ids


def problem(link, path):
    """What is wrong with a link in a file; None where it is alive."""
    parts = urlsplit(link)
    if parts.scheme:
        fine = parts.scheme == "https" and re.fullmatch(r"([\w-]+\.)+[a-z]{2,}", parts.hostname or "")
        return None if fine else "it is no https address"
    target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
    if not target.is_relative_to(ROOT) or not target.exists():
        return "there is no such file"
    if parts.fragment and unquote(parts.fragment) not in anchors(target):
        return "the file has no such heading"
    return None


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_every_link_is_alive(path):
    assert {link: said for link in links(text_of(path)) if (said := problem(link, path))} == {}


@pytest.mark.parametrize(
    ("link", "said"),
    [
        ("tpviz/layers.py", None),
        ("notebooks/01-column-parallel.ipynb", None),
        ("notebooks/01-column-parallel.ipynb#Remember", None),
        ("#start", None),
        ("https://arxiv.org/abs/1909.08053", None),
        ("notebooks/01-colum.ipynb", "no such file"),
        ("../elsewhere.md", "no such file"),
        ("notebooks/01-column-parallel.ipynb#Forget", "no such heading"),
        ("#stop", "no such heading"),
        ("http://arxiv.org/abs/1909.08053", "no https"),
        ("https://arxiv", "no https"),
        ("https:/arxiv.org", "no https"),
    ],
)
def test_a_dead_link_is_found(link, said):
    found = problem(link, ROOT / "README.md")
    assert found is None if said is None else said in found


def test_links_are_seen():
    text = 'See [a](b.md), <https://c.example/d>, <img src="e.svg" alt="f"> and `[g](h)`.'
    assert links(_CODE.sub("", text)) == ["b.md", "https://c.example/d", "e.svg"]
    assert sum(len(links(text_of(path))) for path in FILES) > 150
