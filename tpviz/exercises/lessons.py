"""The lessons (checks): what the notebooks of a folder say of themselves, in the order in which they are read."""

import json
import os
import re
from dataclasses import dataclass
from pathlib import Path

import tpviz

FIRST = "00-start-here.ipynb"
"""A folder that holds it is one of lessons."""
SIDE_ROOMS = {"A": "00", "A2": "07b", "B": "A2"}
"""Behind which lesson a side room is read; all others are read by their numbers."""

_TITLE = re.compile(r"# (?P<number>\w+) · (?P<title>.+)")
_FACTS = re.compile(r"\*(?P<minutes>\d+) minutes · (?P<kind>[^·]+) · you need: (?P<needs>.+)\*", re.DOTALL)
_LINK = re.compile(r"\((\w+)-[\w-]+\.ipynb\)")


@dataclass(frozen=True, slots=True)
class Lesson:
    """A notebook that teaches: what its first cell says, and where its exercises are."""

    path: Path
    number: str
    title: str
    minutes: int
    kind: str
    """``core``, ``deeper``, ``side room`` and the like, in the notebook's words."""
    needs: tuple[str, ...]
    """The numbers of the lessons that it names among what the reader needs."""
    question: str
    """What it answers, in Markdown."""
    exercises: dict[str, str]
    """The id of each exercise, and that of the cell that asks it."""

    @property
    def heading(self) -> str:
        """Number and title."""
        return f"{self.number} · {self.title}"

    @property
    def is_core(self) -> bool:
        """Whether it belongs to what everybody reads."""
        return self.kind == "core"


def folder() -> Path | None:
    """Where the reader's lessons are: the working folder, which Jupyter sets to the notebook's; else tpviz's own."""
    for place in (Path.cwd(), Path(tpviz.__file__).parent.parent / "notebooks"):
        if (place / FIRST).is_file():
            return place
    return None


def lesson(path: Path) -> Lesson | None:
    """The lesson of a file; None for a notebook that is none: it has no line of minutes, kind and needs."""
    try:
        cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
        first = "".join(cells[0]["source"])
    except (OSError, ValueError, LookupError, TypeError):  # being written, or not a notebook at all
        return None
    title, facts = _TITLE.match(first), _FACTS.search(first)
    if title is None or facts is None:
        return None
    asked = {
        tag.removeprefix("exercise:"): str(cell.get("id", ""))
        for cell in cells
        for tag in cell.get("metadata", {}).get("tags", [])
        if tag.startswith("exercise:")
    }
    return Lesson(
        path=path,
        number=title["number"],
        title=title["title"].strip(),
        minutes=int(facts["minutes"]),
        kind=" ".join(facts["kind"].split()),
        needs=tuple(_LINK.findall(facts["needs"])),
        question=" ".join(first.split("\n\n")[-1].split()),
        exercises=asked,
    )


def reading_order(number: str) -> tuple[str, ...]:
    """A key by which the numbers of lessons sort as they are read."""
    before = SIDE_ROOMS.get(number)
    return (number,) if before is None else (*reading_order(before), number)


def lessons(place: Path) -> list[Lesson]:
    """All lessons of a folder, in the order in which they are read."""
    found = [one for name in sorted(os.listdir(place)) if name.endswith(".ipynb") and (one := lesson(place / name))]
    return sorted(found, key=lambda one: reading_order(one.number))
