"""Exercises about amounts (checks): a number is right within 1%, a choice where the model supports it."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tpviz.exercises import values
from tpviz.exercises.pattern import Case, Difference, FunctionExercise, ValueExercise
from tpviz.i18n import _

NEAR = 0.01
"""Numbers that differ by less, as a share of the right one, are the same: rounded, or added in another order."""


def _near(one: float, other: float) -> bool:
    return math.isclose(one, other, rel_tol=NEAR)


@dataclass(frozen=True, kw_only=True)
class AmountExercise(ValueExercise):
    """The answer is a number, as the learner rounds it."""

    def evaluate(self, answer: Any, case: Case) -> object:
        """The number; the right one, or a misconception's, for any that is near it."""
        plain = super().evaluate(answer, case)
        known = [self.reference, *(each.code for each in self.misconceptions)]
        if values.is_number(plain):
            return next((number for number in known if _near(plain, number)), plain)
        return plain


@dataclass(frozen=True, kw_only=True)
class AmountFunctionExercise(FunctionExercise):
    """The answer is a function that returns a number, whatever the order in which it computes."""

    shown: Callable[[float], str]
    """How a result is written in an answer."""
    terms: Callable[[Case], str]
    """What the right result of a case is made of."""

    def evaluate(self, answer: Any, case: Case) -> object:
        """What the function returns, in 4 digits."""
        found = super().evaluate(answer, case)
        return float(f"{found:.4g}") if values.is_number(found) and math.isfinite(found) else found

    def difference(self, expected: object, got: object, case: Case) -> Difference:
        """Two numbers in the words of the exercise, anything else as elsewhere."""
        if not (values.is_number(expected) and values.is_number(got) and math.isfinite(got)):
            return super().difference(expected, got, case)
        fields = {"got": self.shown(got), "expected": self.shown(expected)}
        text = _("Tried on {case}: your result is {got}; it should be {expected}, {terms}.")
        return Difference(text.format(case=case.label, terms=self.terms(case), **fields), fields)


@dataclass(frozen=True, kw_only=True)
class BestExercise(ValueExercise):
    """The answer is a choice that has a price. It is right if no choice is cheaper by more than ``slack``."""

    form: str
    """What an answer looks like, said to one that does not."""
    known: Callable[[object], bool]
    """Whether a value has the form."""
    impossible: Callable[[Any], str | None]
    """Why a choice cannot be made at all."""
    price: Callable[[Any], float]
    """What a choice costs; less is better."""
    choices: Callable[[], list[Any]]
    """All choices that are possible."""
    fields: Callable[[Any, Any], dict[str, str]]
    """What is said of a choice and of the best one: fields of ``slower`` and of the misconceptions' sentences."""
    slower: str
    """Said of a choice that is no misconception."""
    slack: float
    nearly: Callable[[Any], str] | None = None
    """What is said of a right choice other than the solution's, where its reason is another one."""

    def praise(self, answer: object) -> str:
        """Why this choice is right, be it the solution's or as good."""
        plain = values.plain(answer)
        if self.nearly is None or values.same(self.reference, plain):
            return super().praise(answer)
        return self.nearly(plain)

    @property
    def best(self) -> Any:
        """The choice with the least price; the answer that the solution shows may cost a little more."""
        return min(self.choices(), key=self.price)

    def evaluate(self, answer: Any, case: Case) -> object:
        """The choice; the solution's for any that is nearly as good."""
        plain = super().evaluate(answer, case)
        if not self.known(plain) or self.impossible(plain) is not None:
            return plain
        return self.reference if self.price(self.best) >= (1 - self.slack) * self.price(plain) else plain

    def difference(self, expected: object, got: object, case: Case) -> Difference:
        """What is wrong with the form, why it is impossible, or what it costs beside the best."""
        if not self.known(got):
            return Difference(_("{form} This is {value}.").format(form=_(self.form), value=values.shown(got)))
        if (reason := self.impossible(got)) is not None:
            return Difference(reason, self.fields(None, self.best))
        fields = self.fields(got, self.best)
        return Difference(_(self.slower).format(**fields), fields)
