"""The learner's path: what is noted of right answers, what the index shows of it, and the way back to a stub."""

import json
import re
import subprocess
import sys
import threading
from datetime import date
from pathlib import Path

import pytest

import tpviz
from tools import notebooks
from tpviz import exercises
from tpviz.exercises import lessons, record

DAY = date.today().isoformat()
RIGHT = "00-predict-all-reduce"
LESSONS = lessons.lessons(notebooks.NOTEBOOKS)


@pytest.fixture
def noted(tmp_path, monkeypatch):
    file = tmp_path / record.FILE
    monkeypatch.setenv(record.VARIABLE, str(file))
    return file


def answer(name=RIGHT, tried=None):
    exercise = exercises.get(name)
    return exercises.check(name, exercise.reference if tried is None else tried)


# What is noted


def test_a_right_answer_is_noted_once_with_its_day(noted):
    answer()
    answer()
    assert [json.loads(line) for line in noted.read_text().splitlines()] == [{"exercise": RIGHT, "right": DAY}]


@pytest.mark.parametrize("tried", [..., "nonsense"])
def test_nothing_else_is_noted(tried, noted):
    assert answer(tried=tried).status != "right"
    assert not noted.exists()


@pytest.mark.parametrize("environment", ["off", None])
def test_no_test_and_no_script_notes_anything(environment, tmp_path, monkeypatch):
    # Without a word in the environment it is the notebook's kernel that keeps a record, and pytest is none.
    monkeypatch.chdir(tmp_path)
    (tmp_path / lessons.FIRST).touch()
    monkeypatch.delenv(record.VARIABLE) if environment is None else monkeypatch.setenv(record.VARIABLE, environment)
    answer()
    assert record.place() is None
    assert record.is_kept()
    assert not (tmp_path / record.FILE).exists()
    assert not (notebooks.NOTEBOOKS / record.FILE).is_file() or RIGHT not in record.right()


def test_a_rank_notes_nothing(noted):
    run = tpviz.run(lambda comm: answer().status, ranks=2)
    assert run.outputs == ["right", "right"]
    run = tpviz.run(_answers_on_a_rank, ranks=2, backend="gloo")
    assert run.outputs == ["right", "right"]
    assert not noted.exists()


def _answers_on_a_rank(comm):
    exercise = exercises.get("00-predict-all-reduce")
    return exercises.check("00-predict-all-reduce", exercise.reference).status


def test_notebooks_open_at_once_lose_nothing(noted):
    script = (
        "import sys; from tpviz.exercises import record\n"
        "for number in range(200): record.add(f'{sys.argv[1]}-{number}')"
    )
    writers = [subprocess.Popen([sys.executable, "-c", script, name], cwd=notebooks.ROOT) for name in ("A", "B")]
    assert [writer.wait() for writer in writers] == [0, 0]
    assert len(record.right()) == 400


@pytest.mark.parametrize(
    "broken",
    [
        b"{",
        b"\xff\xfe\x00",
        b"[]\n",
        b"null\n3\n",
        b'{"exercise": 3, "right": []}\n',
        b'{"exercise": "00-x", "right": "<script>"}\n',
        b'{"exercise": "<b>", "right": "2026-01-01"}\n',
        b"[" * 100_000,
    ],
)
def test_a_broken_file_recovers(broken, noted):
    noted.write_bytes(b'{"exercise": "01-merge", "right": "2026-01-01"}\n' + broken)
    assert record.right() == {"01-merge": "2026-01-01"}
    answer()
    assert record.right() == {"01-merge": "2026-01-01", RIGHT: DAY}


@pytest.mark.parametrize("obstacle", ["no folder", "a folder in its place"])
def test_a_place_that_takes_no_file_disturbs_nobody(obstacle, tmp_path, monkeypatch):
    file = tmp_path / "gone" / "record"
    if obstacle == "a folder in its place":
        file.mkdir(parents=True)
    monkeypatch.setenv(record.VARIABLE, str(file))
    assert answer().status == "right"
    assert record.right() == {}
    exercises.reset(RIGHT)
    if obstacle == "no folder":
        assert "takes no file" in exercises.path().text


def test_where_the_record_lies(tmp_path, monkeypatch):
    monkeypatch.delenv(record.VARIABLE)
    monkeypatch.setattr(record, "in_a_notebook", lambda: True)
    monkeypatch.chdir(tmp_path)
    assert record.place() == notebooks.NOTEBOOKS / record.FILE, "a notebook from elsewhere counts for tpviz's own"
    (tmp_path / lessons.FIRST).touch()
    assert record.place() == tmp_path / record.FILE, "copied lessons have a record of their own"


# The way back


def test_reset_forgets_and_gives_the_stub(noted):
    answer()
    answer("00-arithmetic", "TP")
    again = exercises.reset(RIGHT)
    assert record.right() == {}
    assert again.stub == exercises.get(RIGHT).stub
    assert again.stub in repr(again)
    exercises.reset("00-arithmetic")
    assert answer("00-arithmetic", "TP").hints == (), "the hints begin at the first"
    with pytest.raises(LookupError, match="There is no exercise 01-mrege"):
        exercises.reset("01-mrege")


def test_reset_puts_the_stub_into_the_cell(monkeypatch):
    asked = []
    shell = type("Shell", (), {"set_next_input": lambda self, text, replace: asked.append((text, replace))})()
    monkeypatch.setitem(sys.modules, "IPython", type("IPython", (), {"get_ipython": staticmethod(lambda: shell)}))
    exercises.reset("01-merge")
    assert asked == [(exercises.get("01-merge").stub, True)]


def test_a_record_comes_back(noted, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / lessons.FIRST).touch()
    answer()
    exercises.reset(RIGHT)
    answer("00-arithmetic")
    saved = record.lines(record.right())
    (tmp_path / record.DOWNLOAD).write_text(saved, encoding="utf-8")
    noted.write_text('{"exercise": "01-merge", "right": "2026-01-01"}\n', encoding="utf-8")
    assert repr(exercises.restore()) == "Back again: 00-arithmetic."
    assert record.right() == {"01-merge": "2026-01-01", "00-arithmetic": DAY}
    assert "noted here already" in repr(exercises.restore(saved))
    assert "no right answer in it" in repr(exercises.restore("{}"))
    assert "There is no file `else`" in repr(exercises.restore("else"))
    monkeypatch.setenv(record.VARIABLE, str(tmp_path / "no" / "folder"))
    assert "takes no file" in repr(exercises.restore(saved))


# The lessons and their order


def test_every_notebook_but_the_index_is_a_lesson():
    assert notebooks.lessons() == LESSONS
    assert notebooks.INDEX.is_file()
    assert lessons.lesson(notebooks.INDEX) is None


def test_the_index_sorts_first():
    assert min(path.name for path in notebooks.NOTEBOOKS.glob("*.ipynb")) == notebooks.INDEX.name


@pytest.mark.parametrize("lesson", LESSONS, ids=lambda lesson: lesson.number)
def test_what_a_lesson_says_of_itself(lesson):
    nb = notebooks.read(lesson.path)
    first = nb.cells[0].source
    assert first.startswith(f"# {lesson.heading}\n\n*{lesson.minutes} minutes · {lesson.kind}")
    assert lesson.question.split() == first.rpartition("\n\n")[2].split()
    assert lesson.path.name.startswith(f"{lesson.number}-")
    asked = {notebooks.tagged(cell, "exercise:"): cell.id for cell in nb.cells if notebooks.tagged(cell, "exercise:")}
    assert lesson.exercises == asked


def test_what_a_lesson_needs_is_read_before():
    read, there = [], {lesson.number for lesson in LESSONS}
    for lesson in LESSONS:
        assert set(lesson.needs) & there <= set(read), f"{lesson.number} needs {lesson.needs}, after {read}"
        read.append(lesson.number)
    assert read.index("A2") < read.index("08")


def some_lesson(number, needs=(), before=None):
    return lessons.Lesson(Path(f"{number}.ipynb"), number, "Some", 10, "core", tuple(needs), before, "Why?", {})


def test_side_rooms_stand_where_they_are_needed():
    rooms = [some_lesson("E"), some_lesson("D", ["C"], before="03"), some_lesson("C", ["01"])]
    numbered = [some_lesson(f"0{number}") for number in range(1, 4)]
    numbers = [lesson.number for lesson in lessons.in_order([*rooms, *numbered])]
    assert numbers == ["01", "C", "02", "D", "03", "E"]


@pytest.mark.parametrize(
    "content", ["", "{", "[]", '{"cells": []}', '{"cells": [{"source": "# A · b"}]}', '{"cells": 3}']
)
def test_what_is_no_lesson_is_passed_over(content, tmp_path):
    (tmp_path / "00-x.ipynb").write_text(content, encoding="utf-8")
    assert lessons.lessons(tmp_path) == []


# The index


def test_a_fresh_learner_begins_at_the_first(monkeypatch):
    monkeypatch.chdir(notebooks.NOTEBOOKS)
    trail = exercises.path()
    assert trail.next is trail.lessons[0]
    assert trail.lessons[0].number == "00"
    assert trail.text.splitlines()[1].endswith("0 of 3 exercises right  ← next")
    assert "download" not in trail.html
    stored = next(cell for cell in notebooks.read(notebooks.INDEX).cells if cell.id == "path").outputs[0]
    assert stored.data["text/html"] == trail.html, "run python -m tools.notebooks run notebooks/0-index.ipynb"


def test_what_is_done_and_what_is_next(noted):
    for name in exercises.ids():
        if name.startswith("00-"):
            record.add(name)
    record.add("01-merge")
    trail = exercises.path()
    signs = {line.split()[1]: line[0] for line in trail.text.splitlines()[1:]}
    assert (signs["00"], signs["01"], signs["02"]) == ("✓", "◐", "○")
    assert trail.next.number == "01", "a side room can be skipped"
    core = [lesson for lesson in LESSONS if lesson.is_core]
    minutes = sum(lesson.minutes for lesson in core[1:])
    assert trail.summary == [f"Core: 1 of {len(core)} notebooks done, about {minutes} minutes left."]
    for name in exercises.ids():
        record.add(name)
    assert exercises.path().next is None


def test_after_the_core_come_the_others(noted):
    for lesson in LESSONS:
        if lesson.is_core:
            for name in lesson.exercises:
                record.add(name)
    assert exercises.path().next.number == "A"


def test_links_lead_to_notebooks_and_cells(monkeypatch):
    monkeypatch.chdir(notebooks.NOTEBOOKS)
    links = re.findall(r'href="([^"#]+)(?:#cell-id=([^"]+))?"', exercises.path().html)
    assert len(links) == len(LESSONS) + sum(len(lesson.exercises) for lesson in LESSONS)
    for name, cell in links:
        nb = notebooks.read(notebooks.NOTEBOOKS / name)
        assert not cell or cell in {other.id for other in nb.cells}
    monkeypatch.chdir(notebooks.ROOT)
    assert 'href="notebooks/00-start-here.ipynb"' in exercises.path().html


def test_the_download_is_the_record(noted):
    from urllib.parse import unquote

    record.add("01-merge")
    (address,) = re.findall(r'href="data:text/plain;charset=utf-8,([^"]+)"', exercises.path().html)
    assert record.facts(unquote(address)) == {"01-merge": DAY}


def test_without_lessons_it_says_where_they_are(tmp_path, monkeypatch):
    monkeypatch.setattr(lessons, "folder", lambda: None)
    with pytest.raises(LookupError, match=r"the folder that 00-start-here\.ipynb lies in"):
        exercises.path()


def test_a_check_from_another_thread_notes_nothing(noted):
    thread = threading.Thread(target=answer)
    thread.start()
    thread.join()
    assert not noted.exists()
