"""docs/teacher.md says what the notebooks and the checks say, and its lectures show slides that exist and keep time."""

import re
from itertools import pairwise

import pytest

from tools import notebooks, teacher
from tpviz import exercises

TEXT = teacher.PAGE.read_text(encoding="utf-8")
NOTEBOOKS = {each.number: notebooks.read(each.path) for each in notebooks.lessons()}
PLANS = dict(re.findall(r"^## ([^\n]*\(\d+ minutes\))\n(.*?)(?=^## )", TEXT, re.DOTALL | re.MULTILINE))
NOTEBOOKS_OF = {
    "Lecture 1": ["00", "01", "02"],
    "Lecture 2": ["03", "04", "05"],
    "Lecture 3": ["06", "07"],
    "The talk": ["01", "02", "03", "06"],
}
ROW = re.compile(r"^\| (\d+)–(\d+) \| (\w+): ([^|]+) \| [^|]+ \|$", re.MULTILINE)


def test_the_generated_parts_are_current():
    assert teacher.filled(TEXT) == TEXT, "run python -m tools.teacher"


@pytest.mark.parametrize("title", PLANS)
def test_a_plan_fills_its_time_with_slides_that_exist(title):
    rows = [(int(start), int(end), *rest) for start, end, *rest in ROW.findall(PLANS[title])]
    assert len(rows) == PLANS[title].count("\n| ") - 1, "a row of another form"
    minutes = int(re.search(r"\((\d+) minutes\)", title)[1])
    assert rows[0][0] == 0
    assert rows[-1][1] == minutes
    assert all(start < end for start, end, *_ in rows)
    assert all(one[1] == other[0] for one, other in pairwise(rows))
    for _start, _end, number, slides in rows:
        headings = [c.source.partition("\n")[0].lstrip("# ") for c in NOTEBOOKS[number].cells if c.source[:2] == "##"]
        for slide in slides.split("; "):
            assert slide == "title" or slide in headings, (number, slide)


def test_each_lecture_has_its_notebooks_in_order():
    assert [title.partition(":")[0].partition(" (")[0] for title in PLANS] == list(NOTEBOOKS_OF)
    for plan, numbers in zip(PLANS.values(), NOTEBOOKS_OF.values(), strict=True):
        assert list(dict.fromkeys(row[2] for row in ROW.findall(plan))) == numbers


def test_every_exercise_and_every_wrong_answer_is_answered():
    ids = [id for nb in NOTEBOOKS.values() for cell in nb.cells if (id := notebooks.tagged(cell, "exercise:"))]
    assert sorted(re.findall(r"^\*\*(\w+-[\w-]+)\.\*\* ", TEXT, re.MULTILINE)) == sorted(ids)
    replies = re.findall(r"^\| You (?:hear|see) \| You say \|\n\|---\|---\|\n((?:\| .*\n)+)", TEXT, re.MULTILINE)
    counts = sum(table.count("\n") for table in replies)
    assert counts == sum(len(exercises.get(id).misconceptions) for id in ids)
    assert not re.search(r"\bat 0x|<function|\{(got|expected|case|place|error)\b", TEXT)


def test_a_bar_does_not_end_a_cell():
    assert teacher.row("a | b", "two\nlines") == r"| a \| b | two<br>lines |"


def test_links_lead_to_files():
    for target in re.findall(r"\]\((?!https?:)([^)#]+)\)", TEXT):
        assert (teacher.PAGE.parent / target).is_file(), target
