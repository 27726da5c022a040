"""The exercise pattern (checks): an exercise is defined once, as code that works, and all else follows from it.

The stub is the solution with a hole in it. What is right is what the solution computes, on every case; a
misconception is code too, and an attempt is recognised by what it computes, not by how it is written.
"""

import functools
import inspect
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

import tpviz
from tpviz.exercises import values
from tpviz.i18n import _, ngettext
from tpviz.tables import shape_text

HOLE = "# hole"
_HOLE_LINE = re.compile(rf"(?P<keep>\s*(?:return|\w[\w, ]* =) )(?P<hole>.+?)  {HOLE}")

LINE = 88
"""Characters of a line of code that fit on a slide."""


@dataclass(frozen=True, slots=True)
class Case:
    """One input that an answer is tried on."""

    args: tuple[Any, ...]
    label: str
    """What a reader is told of it: "the running example on 4 ranks"."""
    ranks: int = 1


@dataclass(frozen=True, slots=True)
class Misconception:
    """A wrong answer that a sensible person gives: as code, with the sentence that answers it.

    The sentence says what the answer would produce and how one would notice. Its fields are filled with what the code
    produces on the first case on which its value is wrong ({case}, {rank}, {place}, {got}, {expected}, {got_shape},
    {expected_shape}) and on the first on which it ends in an exception ({error}).
    """

    name: str
    code: Any
    answer: str


@dataclass(frozen=True, slots=True)
class Remark:
    """A right answer that deserves a word. What tells it from the others is what a probe of it computes."""

    name: str
    code: Any
    answer: str
    probe: Callable[[Any], Any]
    """Makes of an answer one that computes something else, in which the remarkable differs from the solution."""


@dataclass(frozen=True, slots=True)
class Difference:
    """How an outcome differs from what it should be: in a sentence, and in the fields of an answer's sentence."""

    sentence: str
    fields: Mapping[str, str] = field(default_factory=dict)


def split_hole(source: str) -> tuple[str, str]:
    """The stub and the solution of a function's source, whose lines marked `# hole` are the learner's to write.

    Marked lines that follow each other are one hole, of which the stub keeps the last line's `return` or `name =`.
    """
    stub: list[str] = []
    solution: list[str] = []
    marked = False
    for line in source.rstrip().splitlines():
        after_marked, marked = marked, line.endswith(HOLE)
        if not marked:
            stub.append(line)
            solution.append(line)
            continue
        if after_marked:
            stub.pop()
        match = _HOLE_LINE.fullmatch(line)
        stub.append(f"{match['keep']}..." if match else line)
        solution.append(line.removesuffix(HOLE).rstrip())
    text = "\n".join(stub)
    if "..." not in text or HOLE in text:
        raise ValueError(f"no hole of the form `return ...` or `name = ...` in:\n{source}")
    return text, "\n".join(solution)


@dataclass(frozen=True, kw_only=True)
class Exercise(ABC):
    """One exercise. Sentences are marked with `N_` where they are written, and translated when they are shown."""

    id: str
    right: str
    """Said when the answer is right: why it is."""
    hint_sentences: tuple[str, ...]
    misconceptions: tuple[Misconception, ...]
    remarks: tuple[Remark, ...] = ()

    @property
    def hints(self) -> list[str]:
        """The hints, from a nudge to nearly the answer."""
        return [_(hint) for hint in self.hint_sentences]

    @property
    def stub(self) -> str:
        """The cell as the learner finds it."""
        return self._cell(self._sources()[0])

    @property
    def solution(self) -> str:
        """The cell with the hole filled in."""
        return self._cell(self._sources()[1])

    def _cell(self, code: str) -> str:
        return f'{code}\n\nexercises.check("{self.id}", {self.name})'

    @property
    @abstractmethod
    def name(self) -> str:
        """The name that the learner's cell gives to the answer."""

    @abstractmethod
    def _sources(self) -> tuple[str, str]:
        """The code of the stub and of the solution."""

    @property
    @abstractmethod
    def reference(self) -> Any:
        """The answer that is right."""

    @abstractmethod
    def cases(self) -> list[Case]:
        """The inputs that an answer is tried on: the running example first. Made afresh at each call."""

    def praise(self, answer: object) -> str:  # an exercise with several right ones looks at it
        """Why an answer is right."""
        return _(self.right)

    @abstractmethod
    def evaluate(self, answer: Any, case: Case) -> object:
        """What the answer gives on a case, whose arguments it may write into."""

    @abstractmethod
    def refuse(self, answer: object) -> str | None:
        """Why this cannot be tried at all, if so."""

    @abstractmethod
    def difference(self, expected: object, got: object, case: Case) -> Difference:
        """How a value that is not the expected one differs from it."""


@dataclass(frozen=True, kw_only=True)
class FunctionExercise(Exercise):
    """The answer is a function of tensors or numbers."""

    function: Callable[..., Any]
    inputs: Callable[[], list[Case]]

    @property
    def name(self) -> str:
        """The function's name."""
        return self.function.__name__

    @property
    def call(self) -> str:
        """How the function is called: `merge(shards)`."""
        return f"{self.name}({', '.join(inspect.signature(self.function).parameters)})"

    def _sources(self) -> tuple[str, str]:
        return split_hole(inspect.getsource(self.function))

    @property
    def reference(self) -> Callable[..., Any]:
        """The solution itself."""
        return self.function

    def cases(self) -> list[Case]:
        """The inputs, as the exercise lists them."""
        return self.inputs()

    def evaluate(self, answer: Any, case: Case) -> object:
        """What the function returns."""
        return answer(*case.args)

    def refuse(self, answer: object) -> str | None:
        """A function can be called, a result can not."""
        if callable(answer):
            return None
        return _("The check needs the function itself, `{name}` with nothing behind it, and got {value}.").format(
            name=self.name, value=values.in_words(answer)
        )

    def difference(self, expected: object, got: object, case: Case) -> Difference:
        """Of what is wrong, the first that a reader would look at: the type, the shape, the dtype, an entry."""
        return _difference(expected, got, case, _("your result"))


@dataclass(frozen=True, kw_only=True)
class ProgramExercise(FunctionExercise):
    """The answer is a rank program: it is run on each case's number of ranks, and each rank's output counts."""

    held: Callable[..., tuple[Any, ...]] | None = None
    """What a rank has of a case's arguments, from the communicator and these. Without it, it has all of them."""

    def run(self, answer: Any, case: Case) -> tpviz.Run:
        """The run of an answer, in which each rank is given what it has."""
        # A partial, since a run looks into one for the tensors that the answer takes from the notebook.
        program = answer if self.held is None else functools.partial(_with_what_it_has, answer, self.held)
        return tpviz.run(program, ranks=case.ranks, args=case.args)

    def evaluate(self, answer: Any, case: Case) -> object:
        """What each rank returns."""
        return self.run(answer, case).outputs

    def difference(self, expected: object, got: object, case: Case) -> Difference:
        """The difference on the first rank whose output is wrong."""
        assert isinstance(expected, list)
        assert isinstance(got, list)
        rank = next(rank for rank in range(case.ranks) if not values.same(expected[rank], got[rank]))
        subject = _("what rank {rank} returns").format(rank=rank)
        found = _difference(expected[rank], got[rank], case, subject)
        return Difference(found.sentence, {**found.fields, "rank": str(rank)})


@dataclass(frozen=True, kw_only=True)
class ValueExercise(Exercise):
    """The answer is a number, a word or a short list: a prediction, a choice, a result written by hand."""

    variable: str
    answer: Callable[[], Any]
    """Computes the answer from the real thing."""
    ask: str
    """What the stub says behind the hole: the choices, or the form of the answer."""
    hole: str = "..."

    @property
    def name(self) -> str:
        """The variable's name."""
        return self.variable

    def _sources(self) -> tuple[str, str]:
        solution = f"{self.variable} = {self.reference!r}".replace("'", '"')
        stub = f"{self.variable} = {self.hole}"
        beside = f"{stub}  # {self.ask}"
        if len(beside) <= LINE:
            return beside, solution
        return f"# {self.ask}\n{stub}", f"# {self.ask}\n{solution}"

    @property
    def reference(self) -> Any:
        """The right value."""
        return self.answer()

    def cases(self) -> list[Case]:
        """There is nothing to try a value on."""
        return [Case((), "")]

    def evaluate(self, answer: Any, case: Case) -> object:
        """The value itself, a tuple or a tensor being as good as a list."""
        return values.plain(answer)

    def refuse(self, answer: object) -> str | None:
        """Any value can be compared."""
        return None

    def difference(self, expected: object, got: object, case: Case) -> Difference:
        """What is wrong with the form of the value, or that it is another one; never what it should be."""
        if values.is_number(expected) and not values.is_number(got):
            if type(got) is str:
                return Difference(_("A number is needed, without quotes."))
            return Difference(_("A plain number is needed, not {value}.").format(value=values.in_words(got)))
        if type(expected) is str and type(got) is not str:
            text = _("One of these words is needed, in quotes: {choices}. This is {value}.")
            return Difference(text.format(choices=self.ask, value=values.shown(got)))
        if type(expected) is str:
            text = _("“{text}” is not one of the choices: {choices}.")
            return Difference(text.format(text=values.shortened(str(got)), choices=self.ask))
        if type(expected) is list and not _same_form(expected, got):
            if type(got) is list and any(type(each) is str for each in got):
                return Difference(_("Numbers are needed, without quotes: {form}.").format(form=_form(expected)))
            return Difference(_("An answer of the form {form} is needed.").format(form=_form(expected)))
        sentence = _("It is not {value}.").format(value=values.shown(got))
        if type(expected) is list and type(got) is list and (right := _right_ones(expected, got)):
            sentence = _("{sentence} {right}").format(sentence=sentence, right=right)
        return Difference(sentence)


@dataclass(frozen=True, kw_only=True)
class YesNoExercise(ValueExercise):
    """The answer is a list of 1 for yes and 0 for no."""

    def evaluate(self, answer: Any, case: Case) -> object:
        """The list; True and False are as good."""
        plain = super().evaluate(answer, case)
        return [int(each) if type(each) is bool else each for each in plain] if type(plain) is list else plain


def _with_what_it_has(program: Any, held: Callable[..., tuple[Any, ...]], comm: tpviz.Communicator, *args: Any) -> Any:
    """A rank's part of a program that is given no more than the rank has."""
    return program(comm, *held(comm, *args))


def _same_form(expected: object, got: object) -> bool:
    if type(expected) is list:
        return type(got) is list and len(got) == len(expected) and all(map(_same_form, expected, got))
    return values.is_number(got)


def _right_ones(expected: list[Any], got: list[Any]) -> str:
    """Which numbers of a list are right, where some are; nothing of a list of lists.

    Of zeros and ones only how many: to name the right ones would say what the others are.
    """
    right = [place for place, (a, b) in enumerate(zip(expected, got, strict=True)) if values.same(a, b)]
    places = [_("first"), _("second"), _("third"), _("fourth"), _("fifth"), _("sixth"), _("seventh"), _("eighth")]
    if not right or len(got) > len(places) or not all(map(values.is_number, got)):
        return ""
    if {*expected, *got} <= {0, 1}:
        text = ngettext("{count} of the {all} numbers is right.", "{count} of the {all} numbers are right.", len(right))
        return text.format(count=len(right), all=len(got))
    *some, last = (places[each] for each in right)
    named = _("{some} and {last}").format(some=", ".join(some), last=last) if some else last
    text = ngettext("The {named} number is right.", "The {named} numbers are right.", len(right))
    return text.format(named=named)


def _form(expected: object) -> str:
    return f"[{', '.join(map(_form, expected))}]" if isinstance(expected, list) else "…"


def _difference(expected: object, got: object, case: Case, subject: str) -> Difference:
    where = {"case": case.label, "subject": subject}
    if values.is_number(expected) and values.is_number(got) and got == expected:
        text = _("Tried on {case}: {subject} is the float {got}; it should be the int {expected}.")
        fields = {"got": str(float(got)), "expected": values.number(expected)}
        return Difference(text.format(**where, **fields), fields)
    if values.is_tensor(expected) and values.is_tensor(got):
        if got.shape != expected.shape:
            fields = {"got_shape": shape_text(got.shape), "expected_shape": shape_text(expected.shape)}
            if got.dim() == 0:
                text = _("Tried on {case}: {subject} is a single number; its shape should be {expected_shape}.")
            else:
                text = _("Tried on {case}: {subject} has shape {got_shape}; it should be {expected_shape}.")
            return Difference(text.format(**where, **fields), fields)
        if got.dtype != expected.dtype:
            fields = {"got": _dtype(got), "expected": _dtype(expected)}
            text = _("Tried on {case}: {subject} has dtype {got}; it should be {expected}.")
            return Difference(text.format(**where, **fields), fields)
        if (entry := values.first_wrong(expected, got)) is not None:
            place, should, there = entry
            fields = {"place": values.place(place), "expected": values.number(should), "got": values.number(there)}
            text = _("Tried on {case}: in {subject}, {place} is {got}; it should be {expected}.")
            return Difference(text.format(**where, **fields), fields)
    fields = {"got": values.in_words(got), "expected": values.in_words(expected)}
    if got is None:
        text = _("Tried on {case}: {subject} is None. Does the function end in `return`?")
    elif values.is_tensor(got) and values.is_tensor(expected):
        text = _("Tried on {case}: {subject} is a tensor of an unusual kind, whose entries cannot be read.")
    else:
        text = _("Tried on {case}: {subject} is {got}; it should be {expected}.")
    return Difference(text.format(**where, **fields), fields)


def _dtype(tensor: torch.Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")
