"""The judge (checks): tries an answer on every case, and says why a wrong one is wrong.

It never accepts a wrong answer and never fails itself: whatever an answer does, short of not ending, is an outcome.
"""

import linecache
import sysconfig
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from tpviz import source
from tpviz.exercises import values
from tpviz.exercises.feedback import Feedback
from tpviz.exercises.pattern import Case, Exercise, FunctionExercise, Misconception
from tpviz.i18n import _

_LONGEST_MESSAGE = 600
_NOT_THE_LEARNERS = (
    "<frozen ",
    *{str(Path(module).parent) for module in (source.__file__, torch.__file__)},
    *{sysconfig.get_paths()[kind] for kind in ("stdlib", "platstdlib", "purelib", "platlib")},
)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What an answer did on one case: it gave a value, or ended in an exception; it may have written into its input."""

    value: object = None
    error: BaseException | None = None
    wrote: bool = False

    @property
    def cause(self) -> BaseException | None:
        """The exception that the answer raised: a run wraps the one of a rank."""
        return self.error if self.error is None or self.error.__cause__ is None else self.error.__cause__

    @property
    def has_hole(self) -> bool:
        """Whether the `...` of a stub came out, or was computed with."""
        if self.cause is not None:
            return "ellipsis" in _message(self.cause)
        return values.has_hole(self.value)

    def agrees(self, other: "Outcome") -> bool:
        """Whether both are one value, or the same exception."""
        if self.cause is not None or other.cause is not None:
            return _message(self.cause) == _message(other.cause)
        return values.same(other.value, self.value)

    @property
    def is_telling(self) -> bool:
        """Whether two answers that agree in this alone are the same mistake: a lone number agrees by accident."""
        parts = self.value if type(self.value) is list else [self.value]
        return self.error is not None or any(values.is_tensor(part) and part.numel() > 1 for part in parts)


def _message(error: BaseException | None) -> str:
    """An exception in one bounded piece of text; its own `__str__` may raise."""
    if error is None:
        return ""
    try:
        text = str(error)
    except BaseException:
        text = ""
    name = values.type_name(error)
    return f"{name}: {values.shortened(text, _LONGEST_MESSAGE)}" if text else name


def _try(exercise: Exercise, answer: Any, cases: Sequence[Case]) -> list[Outcome]:
    """The outcome of an answer on each case. What it does to its arguments stays there."""
    outcomes = []
    for case in cases:
        args = values.copied(case.args)
        try:
            value = exercise.evaluate(answer, replace(case, args=args))
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            outcomes.append(Outcome(error=error))
        else:
            outcomes.append(Outcome(value, wrote=not values.same(list(case.args), list(args))))
    return outcomes


def judge(exercise: Exercise, answer: object) -> Feedback:
    """The feedback for an answer, without hints."""
    if values.has_hole(answer):
        return _unattempted(exercise)
    if (refusal := exercise.refuse(answer)) is not None:
        return Feedback(exercise.id, "wrong", (refusal,))
    cases = exercise.cases()
    # A learner's function may draw random numbers; what the rest of the notebook draws does not depend on it.
    with torch.random.fork_rng(devices=[]):
        expected = [Outcome(exercise.evaluate(exercise.reference, case)) for case in exercise.cases()]
        given = _try(exercise, answer, cases)
        if any(outcome.has_hole for outcome in given):
            return _unattempted(exercise)
        wrong = [index for index in range(len(cases)) if not given[index].agrees(expected[index])]
        if not wrong:
            sentences = _praise(exercise, answer)
            if any(outcome.wrote for outcome in given):
                sentences.append(_("Your function writes into its input: whoever uses it afterwards sees the change."))
            return Feedback(exercise.id, "right", tuple(sentences))
        misconception = _recognise(exercise, cases, given, wrong[0])
        if misconception is not None:
            sentence = misconception_answer(exercise, misconception, wrong[0])
            return Feedback(exercise.id, "wrong", (sentence,), misconception=misconception.name)
    case, outcome = cases[wrong[0]], given[wrong[0]]
    if outcome.error is not None:
        return Feedback(exercise.id, "wrong", _explain(exercise, case, outcome))
    difference = exercise.difference(expected[wrong[0]].value, outcome.value, case)
    return Feedback(exercise.id, "wrong", (difference.sentence,))


def _unattempted(exercise: Exercise) -> Feedback:
    sentence = _("Put your answer in place of `...` and run this cell again.")
    return Feedback(exercise.id, "unattempted", (sentence,))


def _praise(exercise: Exercise, answer: object) -> list[str]:
    """What is said to a right answer: why it is right, and what deserves a remark."""
    sentences = [exercise.praise(answer)]
    for remark in exercise.remarks:
        given, theirs = (_try(exercise, remark.probe(code), exercise.cases()) for code in (answer, remark.code))
        if all(a.agrees(b) for a, b in zip(given, theirs, strict=True)):
            sentences.append(_(remark.answer))
    return sentences


def _recognise(exercise: Exercise, cases: Sequence[Case], given: Sequence[Outcome], first: int) -> Misconception | None:
    """The misconception that gives what this answer gave: on all cases, or else up to the first that is wrong."""
    best, most = None, 0
    for misconception in exercise.misconceptions:
        theirs = _try(exercise, misconception.code, cases)
        agreeing = [a.agrees(b) for a, b in zip(given, theirs, strict=True)]
        if all(agreeing):
            return misconception
        if all(agreeing[: first + 1]) and given[first].is_telling and sum(agreeing) > most:
            best, most = misconception, sum(agreeing)
    return best


def misconception_answer(exercise: Exercise, misconception: Misconception, first: int = 0) -> str:
    """The sentence of a misconception, filled with what it produces from the case on where an answer was wrong."""
    fields: dict[str, str] = {}
    cases = exercise.cases()
    tried = list(zip(cases, _try(exercise, misconception.code, cases), strict=True))
    for case, outcome in [*tried[first:], *tried[:first]]:
        if outcome.error is not None:
            fields.setdefault("error", _message(outcome.cause))
            continue
        expected = Outcome(exercise.evaluate(exercise.reference, case))
        if "case" not in fields and not outcome.agrees(expected):
            fields |= {**exercise.difference(expected.value, outcome.value, case).fields, "case": case.label}
    return _(misconception.answer).format(**fields)


def _learners_line(error: BaseException) -> tuple[str, int] | None:
    """The last line, as (file name, number), that is neither tpviz's nor of a library: the learner's own."""
    found = None
    traceback = error.__traceback__
    while traceback is not None:
        file = traceback.tb_frame.f_code.co_filename
        if not file.startswith(_NOT_THE_LEARNERS):
            found = file, traceback.tb_lineno
        traceback = traceback.tb_next
    return found


def _explain(exercise: Exercise, case: Case, outcome: Outcome) -> tuple[str, ...]:
    """What happened where an answer ended in an exception, and in which of its lines."""
    assert outcome.error is not None
    assert outcome.cause is not None
    line = _learners_line(outcome.cause)
    if line is None and isinstance(exercise, FunctionExercise) and type(outcome.cause) is TypeError:
        text = _("The check calls your function as `{call}`, which ended in {error}")
        return (_closed(text.format(call=exercise.call, error=_message(outcome.cause))),)
    text = _("Tried on {case}, your code ended in {error}")
    sentences = [_closed(text.format(case=case.label, error=_message(outcome.error)))]
    if line is not None:
        code = values.shortened(linecache.getline(*line).strip(), 80)
        where = source.describe(line)
        text = _("It happened at {where}: `{code}`") if code else _("It happened at {where}.")
        sentences.append(text.format(where=where, code=code))
    return tuple(sentences)


def _closed(sentence: str) -> str:
    """A sentence that ends with an error's message, which may have a full stop of its own."""
    return sentence if sentence.endswith((".", "!", "?", "…", "。")) else f"{sentence}."
