"""The lessons (checks): what the notebooks of a folder say of themselves, in the order in which they are read."""

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import tpviz

FIRST = "00-start-here.ipynb"
"""A folder that holds it is one of lessons."""

_TITLE = re.compile(r"# (?P<number>\w+) · (?P<title>.+)")
_FACTS = re.compile(r"\*(?P<minutes>\d+) minutes · (?P<kind>[^·]+) · you need: (?P<needs>.+)\*", re.DOTALL)
_LINK = re.compile(r"\]\((\w+)-[\w-]+\.ipynb\)")
_BEFORE = re.compile(r"\bbefore\s+\[[^]]*\]\((\w+)-[\w-]+\.ipynb\)")


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
    """The numbers of the lessons that it builds on."""
    before: str | None
    """The number of the lesson that it is to be read right before."""
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
    before = _BEFORE.search(facts["needs"])
    return Lesson(
        path=path,
        number=title["number"],
        title=title["title"].strip(),
        minutes=int(facts["minutes"]),
        kind=" ".join(facts["kind"].split()),
        needs=tuple(_LINK.findall(_BEFORE.sub("", facts["needs"]))),
        before=before and before[1],
        question=" ".join(first.split("\n\n")[-1].split()),
        exercises=asked,
    )


def in_order(found: Iterable[Lesson]) -> list[Lesson]:
    """The order of reading: by number, and a side room, which has a letter, where it is needed or can first be read."""
    by_number = sorted(found, key=lambda one: one.number)
    result = [one for one in by_number if one.number[0].isdigit()]
    for room in by_number:
        if room in result:
            continue
        numbers = [one.number for one in result]
        behind = [numbers.index(number) + 1 for number in room.needs if number in numbers]
        place = numbers.index(room.before) if room.before in numbers else max(behind, default=len(numbers))
        result.insert(place, room)
    return result


def lessons(place: Path) -> list[Lesson]:
    """All lessons of a folder, in the order in which they are read."""
    return in_order(one for path in place.glob("*.ipynb") if (one := lesson(path)) is not None)
