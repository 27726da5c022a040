"""The record (checks): which exercises were answered right, and when, in a small file beside the notebooks.

It holds an exercise's id and the day of its right answer, nothing else: no answer and no wrong try. Each line is one
fact, appended by a single write, so that notebooks open at the same time lose nothing of each other's, and a line that
cannot be read costs that line alone. `TPVIZ_PROGRESS` names another file, or says `off`; without it, a notebook's
kernel alone keeps a record.
"""

import json
import os
import re
import threading
from collections.abc import Iterable
from datetime import date
from pathlib import Path

from tpviz import playing
from tpviz.exercises import lessons
from tpviz.progress import in_a_notebook

VARIABLE = "TPVIZ_PROGRESS"
OFF = "off"
FILE = ".progress.jsonl"
DOWNLOAD = "tpviz-progress.jsonl"
"""The name of the file as it is downloaded, and brought back."""

_EXERCISE = re.compile(r"\w+(-\w+)+")
_DAY = re.compile(r"\d{4}-\d\d-\d\d")


def place() -> Path | None:
    """The file of the record; None where there is none to be kept."""
    if (named := os.environ.get(VARIABLE)) is not None:
        return None if named == OFF else Path(named)
    folder = lessons.folder()
    return None if folder is None or not in_a_notebook() else folder / FILE


def facts(text: str) -> dict[str, str]:
    """The day of each right answer, by exercise: a later line takes an earlier one back. Lines of no sense are none."""
    found: dict[str, str] = {}
    for line in text.splitlines():
        try:
            fact = json.loads(line)
            exercise, day = str(fact["exercise"]), fact["right"]
        except (ValueError, LookupError, TypeError, RecursionError):
            continue
        if day is None:
            found.pop(exercise, None)
        elif _EXERCISE.fullmatch(exercise) and _DAY.fullmatch(str(day)):
            found.setdefault(exercise, str(day))
    return found


def lines(days: dict[str, str]) -> str:
    """The record of these facts, as a file holds it."""
    return "".join(_line(exercise, day) for exercise, day in days.items())


def right() -> dict[str, str]:
    """The day of the right answer to each exercise that has one."""
    file = place()
    try:
        return {} if file is None else facts(file.read_text(encoding="utf-8", errors="replace"))
    except OSError:
        return {}


def is_kept() -> bool:
    """Whether a right answer is kept; True too where a record is not wanted."""
    file = place()
    return file is None or os.access(file if file.exists() else file.parent, os.W_OK)


def add(exercise: str) -> None:
    """Note that an exercise was answered right today, unless it is noted already."""
    if exercise not in right():
        _append([_line(exercise, date.today().isoformat())])


def forget(exercise: str) -> None:
    """Take an exercise's right answer back."""
    if exercise in right():
        _append([_line(exercise, None)])


def merge(other: str) -> list[str]:
    """Take over what another record has and this one lacks; the exercises that are new."""
    here = right()
    new = {exercise: day for exercise, day in facts(other).items() if exercise not in here}
    _append(_line(exercise, day) for exercise, day in new.items())
    return [exercise for exercise in new if exercise in right()]


def _line(exercise: str, day: str | None) -> str:
    return json.dumps({"exercise": exercise, "right": day}) + "\n"


def _append(new: Iterable[str]) -> None:
    """Append in one write. A place that takes none is no reason to disturb a learner, who is told by the path."""
    file, added = place(), "".join(new)
    # A rank, which several threads or processes play, is not the learner, who runs a cell.
    if file is None or not added or playing.is_playing() or threading.current_thread() is not threading.main_thread():
        return
    try:
        with file.open("ab+", buffering=0) as record:
            if record.seek(0, os.SEEK_END):
                record.seek(-1, os.SEEK_END)
                if record.read(1) != b"\n":  # a line that was cut short keeps its harm to itself
                    added = "\n" + added
            record.write(added.encode())
    except OSError:
        return
