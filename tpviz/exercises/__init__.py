"""The exercises of the notebooks (checks): `exercises.check("01-merge", merge)` says right, wrong, and why.

What was answered right is noted beside the notebooks; `exercises.path()` shows it, and what comes next.

Each notebook's exercises are a module `nb…` of this package with a tuple `EXERCISES`; a new one is found by its name.
"""

import importlib
import pkgutil
from collections import Counter
from dataclasses import replace
from functools import cache
from pathlib import Path

from tpviz.exercises import lessons, record
from tpviz.exercises.again import Again
from tpviz.exercises.feedback import Feedback, Notice
from tpviz.exercises.judging import judge
from tpviz.exercises.pattern import Exercise
from tpviz.exercises.trail import Trail
from tpviz.i18n import _

__all__ = ["Again", "Feedback", "Notice", "Trail", "check", "get", "ids", "path", "reset", "restore"]

_NOTHING = object()

_wrong_answers: Counter[str] = Counter()
"""How many wrong answers in a row an exercise got in this kernel: each brings one more hint."""


@cache
def _registry() -> dict[str, Exercise]:
    found: dict[str, Exercise] = {}
    for module in pkgutil.iter_modules(__path__):
        if module.name.startswith("nb"):
            for exercise in importlib.import_module(f"{__name__}.{module.name}").EXERCISES:
                if exercise.id in found:
                    raise ValueError(f"two exercises have the id {exercise.id}")
                found[exercise.id] = exercise
    return found


def ids() -> list[str]:
    """The ids of all exercises, notebook by notebook."""
    return list(_registry())


def get(exercise: str) -> Exercise:
    """The exercise of this id: its stub, solution, hints and misconceptions."""
    try:
        return _registry()[exercise]
    except KeyError:
        raise LookupError(
            _("There is no exercise {name}; there are {ids}.").format(name=exercise, ids=", ".join(ids()))
        ) from None


def check(exercise: str, answer: object = _NOTHING) -> Feedback:
    """Say whether the answer is right, and if not, why not; a repeated wrong answer brings the next hint, folded."""
    asked = get(exercise)
    if answer is _NOTHING:
        line = f'exercises.check("{exercise}", {asked.name})'
        return Feedback(exercise, "wrong", (_("The check needs your answer: `{line}`").format(line=line),))
    feedback = judge(asked, answer)
    if feedback.status == "right":
        del _wrong_answers[exercise]
        record.add(exercise)
    if feedback.status != "wrong":
        return feedback
    _wrong_answers[exercise] += 1
    return replace(feedback, hints=tuple(asked.hints[: _wrong_answers[exercise] - 1]))


def reset(exercise: str) -> Again:
    """Begin an exercise anew: the cell that runs this turns into the stub.

    A right answer is no longer counted, and the hints begin at the first.
    """
    again = Again(exercise, get(exercise).stub)
    del _wrong_answers[exercise]
    record.forget(exercise)
    again.put_in_cell()
    return again


def path() -> Trail:
    """All lessons in reading order: what is done, what comes next, how long it takes; each links to its notebook.

    A ``LookupError`` says so where there are no lessons: neither in the working folder nor beside tpviz.
    """
    folder = lessons.folder()
    if folder is None:
        raise LookupError(
            _("There are no lessons here. Open this notebook in the folder that {name} lies in.").format(
                name=lessons.FIRST
            )
        )
    return Trail(tuple(lessons.lessons(folder)), record.right(), is_kept=record.is_kept())


def restore(source: str = record.DOWNLOAD) -> Notice:
    """Bring back what a downloaded record holds: from its file, or from its text. What is noted here stays.

    A file is looked for from the working folder on.
    """
    try:
        text = source if "{" in source else Path(source).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return Notice(_("There is no file `{name}` here: nothing was changed.").format(name=source))
    new, all_of_it = record.merge(text), record.facts(text)
    if new:
        return Notice(_("Back again: {exercises}.").format(exercises=", ".join(new)), is_good=True)
    if not all_of_it:
        return Notice(_("There is no right answer in it: nothing was changed."))
    if all_of_it.keys() <= record.right().keys():
        return Notice(_("All of it is noted here already: nothing was changed."))
    return Notice(_("The folder of the notebooks takes no file: nothing can be kept here."))
