"""Exercises of which it counts too what is sent (checks): right is only who sends no more than the solution does."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from tpviz.exercises import values
from tpviz.exercises.pattern import Case, Difference, ProgramExercise
from tpviz.i18n import _
from tpviz.trace import Trace


@dataclass(frozen=True, slots=True)
class Kinds:
    """An answer of which it is asked what it sends, not what it computes: a remark's probe."""

    program: Any


def wire_bytes(trace: Trace) -> float:
    """What one rank sends in a run whose events all ranks take part in, in bytes."""
    return sum(event.wire_bytes for event in trace)


def _kinds(trace: Trace) -> list[str]:
    return [event.kind for event in trace]


@dataclass(frozen=True, kw_only=True)
class TrafficExercise(ProgramExercise):
    """The answer is a rank program that is right only if it sends no more than the solution does."""

    weigh: Callable[[Trace], float]
    """What of a trace is to be small."""
    too_much: str
    """Said where the numbers are right and too much is sent: {sent} is what, {got} its weight."""

    def evaluate(self, answer: Any, case: Case) -> object:
        """What each rank returns; where all of it is right also what is sent, and its weight.

        Who sends other things of no more weight has sent what the solution sends.
        """
        if type(answer) is Kinds:
            return _kinds(self.run(answer.program, case).trace)
        best = self.run(self.reference, replace(case, args=values.copied(case.args)))
        mine = self.run(answer, case)
        if not values.same(best.outputs, mine.outputs):
            return mine.outputs
        enough, weight = self.weigh(best.trace), self.weigh(mine.trace)
        if weight <= enough:
            return [*best.outputs, _kinds(best.trace), enough]
        return [*best.outputs, _kinds(mine.trace), weight]

    def difference(self, expected: object, got: object, case: Case) -> Difference:
        """The difference on the first rank whose output is wrong; where none is, what is sent for nothing."""
        assert isinstance(expected, list)
        assert isinstance(got, list)
        if len(got) == case.ranks:
            return super().difference(expected, got, case)
        (needed, enough), (sent, weight) = expected[case.ranks :], got[case.ranks :]
        fields = {"sent": ", ".join(sent), "got": values.number(weight), "expected": values.number(enough)}
        sentence = _(self.too_much).format(case=case.label, **fields)
        extra: list[str] = list((Counter(sent) - Counter(needed)).elements())
        if extra and Counter(needed) <= Counter(sent):
            sentence = _("{sentence} Not needed: {extra}.").format(sentence=sentence, extra=", ".join(extra))
        return Difference(sentence, fields)
