"""A maintainer's tool: collects the sentences of package and tools in the catalogue that translators start from.

`python -m tools.catalogue` writes `tpviz/locale/tpviz.pot`. The file depends on the sentences and on
nothing else: no date, no file or line, a fixed order. So it changes when a sentence does, and a test can require that
it is up to date.
"""

import io
from pathlib import Path

from babel.messages.catalog import Catalog
from babel.messages.extract import extract_from_file
from babel.messages.pofile import write_po

ROOT = Path(__file__).resolve().parent.parent
TEMPLATE = ROOT / "tpviz" / "locale" / "tpviz.pot"
PLACES = (ROOT / "tpviz", ROOT / "tools")
KEYWORDS = {"_": None, "N_": None, "ngettext": (1, 2)}
COMMENT_TAG = "Translators:"
# Babel's own header carries the date of the run and its version.
HEADER = r"""# The sentences that a reader of tpviz sees outside of the notebooks' own text.
# Written by `python -m tools.catalogue`.
msgid ""
msgstr ""
"Project-Id-Version: tpviz\n"
"MIME-Version: 1.0\n"
"Content-Type: text/plain; charset=UTF-8\n"
"Content-Transfer-Encoding: 8bit\n"

"""


def template(*places: Path) -> str:
    """The text of the catalogue's template, from the Python files of these folders, or of PLACES."""
    catalog = Catalog()
    for path in sorted(path for place in places or PLACES for path in place.rglob("*.py")):
        for _line, message, comments, _context in extract_from_file("python", path, KEYWORDS, [COMMENT_TAG]):
            catalog.add(message, auto_comments=comments)
    body = io.BytesIO()
    write_po(body, catalog, omit_header=True, no_location=True, sort_output=True, width=100)
    return HEADER + body.getvalue().decode("utf-8")


def main() -> None:
    """Write the template, and say how many sentences it holds."""
    text = template()
    TEMPLATE.parent.mkdir(exist_ok=True)
    TEMPLATE.write_text(text, encoding="utf-8", newline="\n")
    print(f"{TEMPLATE.relative_to(ROOT)}: {text.count(chr(10) + 'msgid ') - 1} sentences")


if __name__ == "__main__":
    main()
