"""README.md shows what the code does: its picture, its notebooks, its commands."""

import importlib.util
import re
import shlex

import pytest

import study
from tools import notebooks, places, readme

TEXT = readme.README.read_text(encoding="utf-8")


def test_the_generated_parts_are_current():
    assert readme.filled(TEXT) == TEXT, "run python -m tools.readme"


def test_the_picture_is_what_the_example_draws():
    assert readme.PICTURE.read_text(encoding="utf-8") == readme.picture().svg, "run python -m tools.readme"
    assert f"]({readme.PICTURE.relative_to(places.ROOT).as_posix()})" in TEXT


def test_every_notebook_is_listed():
    for path in notebooks.NOTEBOOKS.glob("*.ipynb"):
        assert f"](notebooks/{path.name})" in TEXT


def test_the_repository_is_named_by_the_tool_alone():
    by_hand = re.sub(r"<!-- (\w+): .*?<!-- end -->", "", TEXT, flags=re.DOTALL)
    assert places.repository() not in by_hand


def commands(program):
    """The arguments of each call of the program that README.md shows, in a block or in a sentence."""
    blocks = re.findall(r"^```sh\n(.*?)^```", TEXT, re.DOTALL | re.MULTILINE)
    spans = re.findall(r"`([^`]+)`", re.sub(r"^```.*?^```", "", TEXT, flags=re.DOTALL | re.MULTILINE))
    calls = [line for block in blocks for line in block.splitlines()] + [" ".join(span.split()) for span in spans]
    found = [shlex.split(call.partition(program)[2]) for call in calls if program in call]
    assert found
    return found


def test_commands_of_study(monkeypatch):
    monkeypatch.setattr(study, "install", lambda extras, cpu: None)
    monkeypatch.setattr(study, "run", lambda command, **options: 0)
    monkeypatch.setattr(study.signal, "signal", lambda *_: None)
    for arguments in commands("study.py"):
        assert study.main(arguments) == 0


def test_commands_of_the_tools():
    for module, *arguments in commands("python -m "):
        assert importlib.util.find_spec(module) is not None, module
        if module == "tools.notebooks":
            assert arguments[0] in [*notebooks.COMMANDS, "check"]


def test_a_part_that_is_missing_is_named():
    with pytest.raises(ValueError, match="needs one part that begins with <!-- picture"):
        readme.filled("no parts at all")
