"""A maintainer's tool: writes what README.md shows of the code: its picture, the notebooks, the links to run them.

`python -m tools.readme` runs EXAMPLE, stores the picture that comes out in docs/, and fills the parts of README.md that
stand between `<!-- NAME: ... -->` and `<!-- end -->`. The repository that the links lead to is the one of
`[project.urls]` in pyproject.toml: the one line to change in a fork.
"""

import ast
import re
from typing import TYPE_CHECKING, Any

from tools import notebooks
from tools.places import ROOT, binder, colab, repository

if TYPE_CHECKING:
    from tpviz.diagrams import Drawing

README = ROOT / "README.md"
PICTURE = ROOT / "docs" / "column-parallel.svg"

EXAMPLE = """\
import tpviz
from tpviz.example import W, X


def program(comm):  # what each rank runs
    Wi = tpviz.shard(W, 1, comm)  # its columns of W
    return X @ Wi


run = tpviz.run(program, ranks=2)
tpviz.diagrams.column_parallel(X, W, run)
"""


def picture() -> "Drawing":
    """What the example shows, as a notebook's cell would."""
    *body, last = ast.parse(EXAMPLE).body
    assert isinstance(last, ast.Expr)
    names: dict[str, Any] = {}
    exec(compile(ast.Module(body, []), "<README>", "exec"), names)
    drawing: Drawing = eval(compile(ast.Expression(last.value), "<README>", "eval"), names)
    return drawing


def table() -> str:
    """The notebooks, what each answers, and where it runs without an installation."""
    rows = ["| Notebook | What it answers | |", "|---|---|---|"]
    for each in notebooks.lessons():
        link = each.path.relative_to(ROOT).as_posix()
        places = f"[Binder]({binder(each.path)}) [Colab]({colab(each.path)})"
        rows.append(f"| [{each.heading}]({link}) | {each.question} | {places} |")
    return "\n".join(rows)


def parts() -> dict[str, str]:
    """The generated parts of README.md, by name."""
    figure = f"![{picture().alt}]({PICTURE.relative_to(ROOT).as_posix()})"
    first = notebooks.NOTEBOOKS / "00-start-here.ipynb"
    return {
        "picture": f"```python\n{EXAMPLE}```\n\n{figure}",
        "notebooks": table(),
        "binder": f"Open the first notebook [on Binder]({binder(first)}) or [on Colab]({colab(first)}): "
        f"those of `{repository()}`.",
    }


def fill(text: str, contents: dict[str, str], file: str = "README.md") -> str:
    """A text in which each of these parts has the content that is given."""
    for name, content in contents.items():
        begin, *others = re.findall(rf"<!-- {name}: [^\n]*-->\n", text) or [None]
        if begin is None or others:
            raise ValueError(f"{file} needs one part that begins with <!-- {name}: ... -->")
        before, _, rest = text.partition(begin)
        _, end, after = rest.partition("<!-- end -->")
        text = f"{before}{begin}{content}\n{end}{after}"
    return text


def filled(text: str) -> str:
    """The text of README.md with its generated parts as they are now."""
    return fill(text, parts())


def main() -> None:
    """Write both files."""
    PICTURE.parent.mkdir(exist_ok=True)
    PICTURE.write_text(picture().svg, encoding="utf-8", newline="\n")
    README.write_text(filled(README.read_text(encoding="utf-8")), encoding="utf-8", newline="\n")


if __name__ == "__main__":
    main()
