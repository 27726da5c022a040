"""The exercises of the notebooks (checks): `exercises.check("01-merge", merge)` says right, wrong, and why.

Each notebook's exercises are a module `nb…` of this package with a tuple `EXERCISES`; a new one is found by its name.
"""

import importlib
import pkgutil
from collections import Counter
from dataclasses import replace
from functools import cache

from tpviz.exercises.feedback import Feedback
from tpviz.exercises.judging import judge
from tpviz.exercises.pattern import Exercise
from tpviz.i18n import _

__all__ = ["Feedback", "check", "get", "ids"]

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
    if feedback.status != "wrong":
        return feedback
    _wrong_answers[exercise] += 1
    return replace(feedback, hints=tuple(asked.hints[: _wrong_answers[exercise] - 1]))
