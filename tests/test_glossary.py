"""The glossary: all bold words of the notebooks, and no lesson uses a word before one that defines it."""

import re
from dataclasses import dataclass

import pytest

from tools import notebooks
from tpviz.exercises import lessons

GLOSSARY = notebooks.ROOT / "docs" / "glossary.md"
LESSONS = lessons.lessons(notebooks.NOTEBOOKS)
NUMBERS = [lesson.number for lesson in LESSONS]

_ROW = re.compile(r"\| (?P<word>[^|]+) \| (?P<said>[^|]+) \| \[(?P<number>\w+)\]\(\.\./notebooks/(?P<file>[^)]+)\) \|")
_BOLD = re.compile(r"\*\*(.+?)\*\*", re.DOTALL)
_CODE = re.compile(r"```.*?```|`[^`]*`", re.DOTALL)

EVERYDAY = {
    "key",
    "value",
    "loss",
    "norm",
    "path",
    "passes",
    "plan",
    "scores",
    "waiting",
    "linear",
    "mask",
    "degree",
    "dY",
}
"""Words that plain English, or the mathematics that a reader brings along, uses too: their first place says nothing."""
NO_TERMS = {
    "Shift + Enter",
    "Rounding shrinks with the precision; a bug does not.",
    "activations",
    "whole",
    "by rows",
    "fits",
    "fitted",
}
"""Bold for another reason, or a form of a word that is in the glossary."""


@dataclass(frozen=True)
class Text:
    """A cell of text as it is looked through: without code, and with the notebooks that it links to."""

    plain: str
    bold: frozenset[str]
    links: frozenset[str]


def normal(word):
    """A word as it is compared: without case, backticks and line breaks."""
    return " ".join(word.strip("`").split()).lower()


def texts(lesson):
    sources = [cell.source for cell in notebooks.read(lesson.path).cells if cell.cell_type == "markdown"]
    return [as_text(source) for source in sources if not source.startswith("<details>")]


def as_text(source):
    bold = frozenset(normal(found) for found in _BOLD.findall(source) if not found.endswith(":"))
    return Text(_CODE.sub(" ", source), bold, frozenset(re.findall(r"\]\((\w+)-[\w-]+\.ipynb", source)))


TEXTS = {lesson.number: texts(lesson) for lesson in LESSONS}
ENTRIES = [_ROW.fullmatch(line) for line in GLOSSARY.read_text(encoding="utf-8").splitlines() if line[:2] == "| "][1:]
WORDS = [entry["word"] for entry in ENTRIES]


def defining(word):
    return [number for number in NUMBERS if any(normal(word) in text.bold for text in TEXTS[number])]


def known(number, wanted):
    """Whether a reader of this lesson has met one of the wanted, all of the core before it being read."""
    needs, seen = [number], set()
    while needs:
        one = needs.pop()
        if one in seen or one not in NUMBERS:
            continue
        seen.add(one)
        needs += next(lesson for lesson in LESSONS if lesson.number == one).needs
    core = {lesson.number for lesson in LESSONS[: NUMBERS.index(number)] if lesson.is_core}
    return bool((seen | core) & set(wanted))


def forward_references(word, told=TEXTS):
    """The lessons that use a word with neither a definition before it, nor one in it, nor a link to one."""
    where = defining(word)
    pattern = re.compile(rf"(?<![\w-]){re.escape(normal(word))}(s|es)?(?![\w-])", re.IGNORECASE)
    found = []
    for number in NUMBERS:
        uses = [text for text in told[number] if pattern.search(" ".join(text.plain.replace("*", "").split()))]
        if uses and number not in where and not known(number, where) and not uses[0].links & set(where):
            found.append(number)
    return found


def test_it_is_a_table_in_alphabetical_order():
    assert None not in ENTRIES
    assert len(ENTRIES) > 50
    assert sorted(WORDS, key=lambda word: normal(word).replace("α", "a")) == WORDS


@pytest.mark.parametrize("entry", ENTRIES, ids=WORDS)
def test_an_entry_names_the_first_notebook_that_defines_it(entry):
    assert entry["said"].endswith(".")
    assert entry["said"].count(". ") == 0, "one sentence"
    assert entry["file"].startswith(f"{entry['number']}-")
    assert (notebooks.NOTEBOOKS / entry["file"]).is_file()
    assert entry["number"] == defining(entry["word"])[0]


@pytest.mark.parametrize("number", NUMBERS)
def test_every_bold_word_is_in_it(number):
    bold = {word for text in TEXTS[number] for word in text.bold}
    assert bold <= {normal(word) for word in (*WORDS, *NO_TERMS)}


@pytest.mark.parametrize("word", [word for word in WORDS if word not in EVERYDAY])
def test_no_word_is_used_before_it_is_defined(word):
    assert forward_references(word) == []


def test_a_forward_reference_is_found():
    told = {number: [] for number in NUMBERS} | {"00": [as_text("Partial\nsums, of course.")]}
    assert forward_references("partial sum", told) == ["00"]
    told["00"] = [as_text("Partial sums are the subject of [02](02-row-parallel.ipynb).")]
    assert forward_references("partial sum", told) == []
    told["00"] = [as_text("`partial sum`")]
    assert forward_references("partial sum", told) == []
