"""A maintainer's tool: the list of what the notebooks show, and whether a cell really asserts what it claims.

The list is notebooks/claims.toml. A cell that shows a claim carries its id as a tag and holds an assertion that would
fail if the claim were false.
"""

import ast
import re
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from nbformat import NotebookNode

LIST = Path(__file__).resolve().parent.parent / "notebooks" / "claims.toml"

_ID = re.compile(r"C\d\d")


@dataclass(frozen=True)
class Claim:
    """One sentence that notebooks show by computing it."""

    id: str
    sentence: str
    notebooks: tuple[str, ...]
    """The numbers that the names of the notebooks begin with, the first being where the claim is introduced."""


@cache
def load(path: Path = LIST) -> dict[str, Claim]:
    """The list, by id."""
    entries = tomllib.loads(path.read_text(encoding="utf-8"))
    return {name: Claim(name, entry["sentence"], tuple(entry["notebooks"])) for name, entry in entries.items()}


def number(path: Path) -> str:
    """What a notebook's name begins with: 04b of 04b-mirrors.ipynb."""
    return path.stem.partition("-")[0]


def claimed(cell: NotebookNode) -> list[str]:
    """The claims that a cell says it shows."""
    return [tag for tag in cell.metadata.get("tags", []) if _ID.fullmatch(tag)]


def notebook_problems(path: Path, nb: NotebookNode) -> list[str]:
    """Claims that the list promises of this notebook and no cell shows, and claims that the list does not know of."""
    shown = {claim for cell in nb.cells if cell.cell_type == "code" for claim in claimed(cell)}
    promised = {claim.id for claim in load().values() if number(path) in claim.notebooks}
    spoken = {claim for cell in nb.cells if cell.cell_type != "code" for claim in claimed(cell)}
    return [
        *(f"{claim} is to be shown here, and no code cell is tagged with it" for claim in sorted(promised - shown)),
        *(f"{claim} is shown here, which notebooks/claims.toml does not say" for claim in sorted(shown - promised)),
        *(f"{claim} is tagged on a cell of text, which can show nothing" for claim in sorted(spoken)),
    ]


def _statements(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """The statements that run when the cell runs, and whose failure is the cell's failure."""
    for statement in body:
        match statement:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                continue
            case ast.If(test=ast.Constant()) | ast.While(test=ast.Constant()):
                continue
            case ast.Try(handlers=[_, *_]):
                yield from _statements(statement.orelse + statement.finalbody)
            case ast.With(items=[ast.withitem(context_expr=ast.Call(func=f))]) if "suppress" in ast.unparse(f):
                continue
            case _:
                yield statement
                for part in ("body", "orelse", "finalbody"):
                    yield from _statements(getattr(statement, part, []))


def _can_fail(test: ast.expr) -> bool:
    """Whether an expression can be false: it looks at something, and does not compare it with itself."""
    match test:
        case ast.Tuple() | ast.List() | ast.Dict() | ast.Set() | ast.JoinedStr() | ast.Lambda():
            return False
        case ast.Compare(left=left, comparators=[right]) | ast.Call(args=[left, right, *_]):
            if ast.dump(left) == ast.dump(right):
                return False
        case ast.BoolOp(op=ast.Or(), values=values):
            return all(_can_fail(value) for value in values)
        case ast.BoolOp(op=ast.And(), values=values):
            return any(_can_fail(value) for value in values)
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            return _can_fail(operand)
    return any(isinstance(node, ast.Name) for node in ast.walk(test))


def _is_assertion(statement: ast.stmt) -> bool:
    match statement:
        case ast.Assert(test=test):
            return _can_fail(test)
        case ast.Expr(value=ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name), args=[_, *_]) as call):
            return name.startswith("assert_") and _can_fail(call)
    return False


def asserts(source: str) -> bool:
    """Whether a cell holds an assertion that runs with it and could fail."""
    lines = ["" if line.lstrip().startswith(("%", "!")) else line for line in source.splitlines()]
    return any(_is_assertion(statement) for statement in _statements(ast.parse("\n".join(lines)).body))
