"""The notebooks as they are stored, and the tool that keeps them so."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

from tools import claims, notebooks
from tpviz import exercises

NOTEBOOKS = sorted(notebooks.NOTEBOOKS.glob("*.ipynb"))
each_notebook = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)

SLIDE = {"slideshow": {"slide_type": "slide"}}
IMG = '<img alt="a square" src="data:image/svg+xml,%3Csvg%2F%3E">'


def stored(tmp_path, nb, name="99-some.ipynb"):
    path = tmp_path / name
    notebooks.write(path, nb)
    return path


def code(source="x = 1", outputs=(), count=1, tags=(), **more):
    metadata = {**SLIDE, **({"tags": list(tags)} if tags else {})}
    return new_code_cell(source, outputs=list(outputs), execution_count=count, metadata=metadata, **more)


def text(source="Some text.", tags=(), **more):
    return new_markdown_cell(source, metadata={**SLIDE, **({"tags": list(tags)} if tags else {})}, **more)


def shown(**data):
    kinds = {"plain": "text/plain", "html": "text/html", "svg": "image/svg+xml", "view": notebooks.WIDGET_VIEW}
    return new_output("display_data", {kinds[kind]: value for kind, value in data.items()})


def found(tmp_path, *cells):
    """What is wrong with these cells, beyond what is wrong with any notebook that consists of them alone."""
    path = stored(tmp_path, notebooks.normalised(new_notebook(cells=list(cells))))
    of_all = ("exercises; a notebook has", "its first code cell is not the set-up cell")
    return [problem for problem in notebooks.problems(path) if not any(words in problem for words in of_all)]


# The stored notebooks


def test_there_are_notebooks():
    assert NOTEBOOKS


@each_notebook
def test_as_it_has_to_be(path):
    assert notebooks.problems(path) == []


@each_notebook
def test_normal_form_is_a_fixed_point(path):
    once = notebooks.normalised(notebooks.read(path))
    assert notebooks.dumps(notebooks.normalised(once)) == notebooks.dumps(once)


@each_notebook
def test_text_and_back(path):
    nb = notebooks.read(path)
    assert notebooks.dumps(notebooks.from_text(notebooks.to_text(nb), nb)) == path.read_text(encoding="utf-8")


def test_every_exercise_has_its_notebook():
    # Exercises may be written before their notebook is; `tools.notebooks check` then requires that it asks them all.
    planned = {number for claim in claims.load().values() for number in claim.notebooks}
    numbers = {claims.number(path) for path in NOTEBOOKS} | planned
    # 04b goes deeper into what 04 shows, and need show no claim of its own.
    assert {name.split("-")[0].rstrip("bc") for name in exercises.ids()} <= {number.rstrip("bc") for number in numbers}


def test_a_title_cell_that_does_not_say_enough_is_named(tmp_path):
    first = "# 99 · Title\n\n*10 minutes · core · you need: nothing*\n\nWhy\nso?"
    assert notebooks.lesson(stored(tmp_path, new_notebook(cells=[text(first)]))).question == "Why so?"
    for wrong, why in (
        (f"{first} Read on.", "does not end in the question"),
        ("# 99 · Title\n\nWhy?", r"has no line \*10 minutes"),
    ):
        with pytest.raises(ValueError, match=rf"99-some\.ipynb: its first cell {why}"):
            notebooks.lesson(stored(tmp_path, new_notebook(cells=[text(wrong)])))


# What is wrong with a notebook is said


def test_nothing_wrong(tmp_path):
    assert found(tmp_path, text(), code("x", [shown(plain="a square", html=IMG, svg="<svg/>")])) == []


def test_normal_form_is_required(tmp_path):
    path = tmp_path / "99-some.ipynb"
    nb = notebooks.normalised(new_notebook(cells=[text()]))
    path.write_text(json.dumps(nb), encoding="utf-8")
    assert "99-some.ipynb: it is not in normal form" in notebooks.problems(path)


def test_a_stripped_notebook_tests_nothing(tmp_path):
    (problem,) = found(tmp_path, code(count=None))
    assert "it was not executed" in problem


@pytest.mark.parametrize("path", NOTEBOOKS[:1], ids=lambda path: path.stem)
def test_a_stripped_copy_fails(path, tmp_path):
    nb = notebooks.read(path)
    for cell in nb.cells:
        if cell.cell_type == "code":
            cell.outputs, cell.execution_count = [], None
    codes = sum(cell.cell_type == "code" for cell in nb.cells)
    problems = notebooks.problems(stored(tmp_path, nb, path.name))
    assert sum("it was not executed" in problem for problem in problems) == codes > 0


@pytest.mark.parametrize(
    ("shows", "what"),
    [
        ("<object object at 0x7f8b1c0d2e30>", "an address"),
        ("/tmp/ipykernel_4711/1.py:1: UserWarning: mind", "a process id"),
        ("pid: 4711", "a process id"),
        ("<IPY_MODEL_0123456789abcdef0123456789abcdef>", None),
        ("model 0123456789abcdef0123456789abcdef", "a random id"),
        ("File \x1b[32m/home/ada/tpviz/x.py:11", "a path of one machine"),
        (r"C:\Users\Ada", "a path of one machine"),
        ("tensor([[1., 0.]])  3/4  a/b  0x10", None),
        ("File tpviz/x.py:11, in f", None),
    ],
)
def test_what_differs_at_the_next_run_is_refused(shows, what, tmp_path):
    problems = found(tmp_path, code("x", [new_output("stream", name="stdout", text=shows)]))
    assert any(f"holds {what}" in problem for problem in problems) if what else problems == []


@pytest.mark.parametrize(
    ("cell", "problem"),
    [
        (code("a = 1\n" * 16), "16 lines of code"),
        (code(""), "it is empty"),
        (new_code_cell("x", execution_count=1), "its slide type is None"),
        (text('<img src="x.png">'), "without a text alternative"),
        (code("x", [shown(plain="a", html='<img alt="" src="x">')]), "without a text alternative"),
        (code("x", [shown(plain="a", svg="<svg/>")]), "hides in a notebook from elsewhere"),
        (code("x", [shown(html=IMG)]), "without its sentence"),
        (code("x", [shown(plain="a", view={"model_id": "1"})]), "no still picture"),
        (code("1 / 0", [new_output("error", ename="E", evalue="e", traceback=[])]), "it ended in an error"),
        (code("x", tags=["raises-exception"]), "ended well"),
        (code("...", tags=["exercise:no-such"]), "no such exercise"),
        (code("...", tags=["exercise:01-merge"]), "differs from its exercise"),
        (text("...", tags=["solution:01-merge"]), "differs from its exercise"),
        (code("print(1)", tags=["C01"]), "asserts nothing"),
        (code("assert x", tags=["C01"]), "claims.toml does not say"),
        (text(tags=["C01"]), "can show nothing"),
    ],
)
def test_what_is_wrong_with_a_cell_is_said(cell, problem, tmp_path):
    assert problem in "\n".join(found(tmp_path, cell))


def test_exercises_are_filled_in_and_complete(tmp_path):
    names = [name for name in exercises.ids() if name.startswith("01-")]
    cells = [cell for name in names for cell in (code(tags=[f"exercise:{name}"]), text(tags=[f"solution:{name}"]))]
    nb = notebooks.filled(new_notebook(cells=cells))
    path = stored(tmp_path, notebooks.normalised(nb), "01-some.ipynb")
    assert "exercise" not in "\n".join(notebooks.problems(path))
    assert nb.cells[0].source == exercises.get(names[0]).stub
    assert exercises.get(names[0]).solution in nb.cells[1].source
    assert nb.cells[1].source.count("<details>") == nb.cells[1].source.count("</details>") > 1
    del nb.cells[0]
    problems = "\n".join(notebooks.problems(stored(tmp_path, notebooks.normalised(nb), "01-some.ipynb")))
    assert f"exercise {names[0]} of tpviz/exercises is not asked" in problems
    assert "there are solutions of" in problems


# The normal form


def test_names_of_cells():
    nb = new_notebook(
        cells=[
            text("# Start here: *stored*, or computed?", id="0123abcd"),
            code("import torch\n\nrun = tpviz.run(program)", id="1b4e28ba-2fa1-11d2-883f-0016d3cca427"),
            code("...", tags=["exercise:01-merge"], id="aaaaaaaa"),
            text("Twice", id="twice"),
            text("Twice", id="twice-again"),
            text("Twice", id="00000000"),
            text("文字", id="11111111"),
            text("Kept", id="a-name-of-its-own"),
        ]
    )
    nb.cells[4].id = "twice"  # as after copying a cell
    names = ["start-here-stored-or-computed", "run-tpviz-run-program", "exercise-01-merge", "twice", "twice-2"]
    assert notebooks.ids(nb) == [*names, "twice-3", "text", "a-name-of-its-own"]
    nb.cells.insert(3, text("Twice", id="22222222"))
    assert notebooks.ids(nb) == [*names[:3], "twice-2", "twice", "twice-3", "twice-4", "text", "a-name-of-its-own"]


def test_what_only_a_session_can_use_is_dropped():
    cell = code(
        "x",
        [
            new_output("stream", name="stdout", text="a"),
            new_output("stream", name="stdout", text="b\n"),
            new_output("stream", name="stderr", text="c\n"),
            new_output("execute_result", {"text/plain": "x"}, execution_count=7, metadata={"collapsed": True}),
            shown(plain="w", html=IMG, view={"model_id": "1"}),
        ],
        count=7,
    )
    cell.metadata |= {"execution": {"iopub.execute_input": "2026-01-01"}, "collapsed": True, "trusted": True}
    nb = new_notebook(cells=[cell, code(count=None), code(count=9)], metadata={"widgets": {"a": 1}, "toc": {}})
    after = notebooks.normalised(nb)
    assert set(after.metadata) == {"kernelspec", "language_info"}
    assert "version" not in after.metadata.language_info
    assert [cell.execution_count for cell in after.cells] == [1, None, 2]
    cell = after.cells[0]
    assert cell.metadata == SLIDE
    assert [output.get("text") for output in cell.outputs[:2]] == ["ab\n", "c\n"]
    assert cell.outputs[2].execution_count == 1
    assert cell.outputs[2].metadata == {}
    assert set(cell.outputs[3].data) == {"text/plain", "text/html"}
    assert notebooks.dumps(notebooks.normalised(after)) == notebooks.dumps(after)
    assert nb.cells[0].execution_count == 7, "the argument is left alone"


def test_a_folded_cell_hides_its_source_only():
    nb = notebooks.normalised(new_notebook(cells=[code("x", tags=["folded"]), code("y")]))
    assert nb.cells[0].metadata.jupyter == {"source_hidden": True}
    assert "jupyter" not in nb.cells[1].metadata
    assert notebooks.from_text(notebooks.to_text(nb), nb) == nb


def test_stored_as_text_that_diffs_well():
    stored = notebooks.dumps(notebooks.normalised(new_notebook(cells=[text("Größe ≥ 2\nzwei")])))
    assert stored.endswith("}\n")
    assert ' "cells": [\n' in stored
    assert '    "Größe ≥ 2\\n",\n    "zwei"\n' in stored
    content = json.loads(stored)
    assert json.dumps(content, sort_keys=True) == json.dumps(content)


# Text and back


def test_text_keeps_all_and_unchanged_outputs():
    nb = notebooks.normalised(
        new_notebook(
            cells=[
                text("# Title\n\nA *line*, and `# %%` in it.", tags=["C01"]),
                code("a = 1\nprint(a)", [new_output("stream", name="stdout", text="1\n")], tags=["C05", "C06"]),
                code("%time b = 2", [new_output("stream", name="stdout", text="2\n")], count=2),
                code('s = """\n# %% not a cell\n"""', count=3),
            ]
        )
    )
    written = notebooks.to_text(nb)
    assert '# %% [markdown] id="title" tags=["C01"] slide="slide"' in written
    assert notebooks.from_text(written, nb) == nb
    changed = notebooks.from_text(written.replace("a = 1", "a = 2"), nb)
    assert changed.cells[1].id == nb.cells[1].id
    assert changed.cells[1].outputs == []
    assert changed.cells[1].execution_count is None
    assert changed.cells[2].outputs == nb.cells[2].outputs


def test_newer_work_is_not_overwritten(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(notebooks, "NOTEBOOKS", tmp_path / "notebooks")
    monkeypatch.setattr(notebooks, "TEXTS", tmp_path / "build")
    notebook = tmp_path / "notebooks" / "99-some.ipynb"
    written = tmp_path / "build" / "99-some.py"
    assert notebooks.main(["new", str(notebook)]) == 0
    assert notebooks.main(["new", str(notebook)]) == 1
    assert notebooks.main(["text", str(notebook)]) == 0
    before = notebook.read_bytes()
    written.write_text(written.read_text(encoding="utf-8").replace("## Predict", "## Guess"), encoding="utf-8")
    assert notebooks.main(["text", str(notebook)]) == 1
    assert "is newer than" in capsys.readouterr().err
    assert notebooks.main(["from-text", str(written)]) == 0
    assert notebook.read_bytes() == before.replace(b"## Predict", b"## Guess")
    notebook.write_bytes(before)
    assert notebooks.main(["from-text", str(written)]) == 1
    assert notebook.read_bytes() == before
    assert notebooks.main(["from-text", "--force", str(written)]) == 0
    assert notebook.read_bytes() != before


# Running


def test_run_writes_normal_form_and_leaves_a_failed_notebook_alone(tmp_path, capsys):
    good = stored(tmp_path, new_notebook(cells=[text("# T"), code("print('é')", count=None)]), "98-good.ipynb")
    assert notebooks.main(["run", str(good)]) == 0
    ran = notebooks.read(good)
    assert ran.cells[1].outputs[0].text == "é\n"
    assert good.read_text(encoding="utf-8") == notebooks.dumps(notebooks.normalised(ran))
    bad = stored(tmp_path, new_notebook(cells=[code("1 / 0", count=None)]), "97-bad.ipynb")
    before = bad.read_bytes()
    assert notebooks.main(["run", str(bad)]) == 1
    assert "ZeroDivisionError" in capsys.readouterr().err
    assert bad.read_bytes() == before


def test_an_intended_error_names_no_place_of_this_machine(tmp_path):
    source = "import json\nfrom tpviz import chunking\njson.loads('[')"
    nb = notebooks.execute(new_notebook(cells=[code(source, count=None, tags=["raises-exception"])]), tmp_path)
    (output,) = nb.cells[0].outputs
    assert output.ename == "JSONDecodeError"
    assert "json/decoder.py" in "\n".join(output.traceback)
    assert found(tmp_path, *nb.cells) == []


def nbval(path, *options):
    command = [sys.executable, "-m", "pytest", "-q", "--nbval", "--nbval-current-env", "-p", "no:cacheprovider"]
    return subprocess.run([*command, *options, str(path)], capture_output=True, text=True, cwd=path.parent)


def test_a_changed_output_is_caught(tmp_path):
    figure = f"display({{'text/plain': 'a square', 'text/html': {IMG!r}}}, raw=True)"
    nb = new_notebook(cells=[code("print(3)", count=None), code(figure, count=None)])
    nb = notebooks.normalised(notebooks.execute(nb, tmp_path))
    good = nbval(stored(tmp_path, nb))
    assert "2 passed" in good.stdout, good.stdout
    nb.cells[0].outputs[0].text = "999\n"
    nb.cells[1].outputs[0].data["text/html"] = IMG.replace("svg%2F", "svg%20%2F")
    bad = nbval(stored(tmp_path, nb))
    assert "2 failed" in bad.stdout, bad.stdout


def test_nbval_is_part_of_every_test_run(pytestconfig):
    assert pytestconfig.option.nbval
    assert pytestconfig.option.nbval_current_env
    assert pytestconfig.option.nbval_cell_timeout == notebooks.CELL_TIMEOUT
    assert str(notebooks.NOTEBOOKS.name) in pytestconfig.getini("testpaths")


def test_workers_take_whole_notebooks_and_the_long_files_first(tmp_path, pytestconfig):
    # Each of the cells needs the one before, in its own kernel.
    cells = [code(f"x{n + 1} = x{n} + 1\nprint(x{n + 1})" if n else "x1 = 1", count=None) for n in range(6)]
    nb = notebooks.normalised(notebooks.execute(new_notebook(cells=cells), tmp_path))
    for number in range(3):
        path = stored(tmp_path, nb, f"{number}.ipynb")
    shutil.copy(notebooks.ROOT / "conftest.py", tmp_path)
    done = nbval(path.parent, "-n", "2")
    assert "18 passed" in done.stdout, done.stdout
    root = pytestconfig.pluginmanager.get_plugin(str(notebooks.ROOT / "conftest.py"))
    assert all((notebooks.ROOT / file).is_file() for file in root.LONGEST)


# What is shown


def test_the_list_of_claims():
    listed = claims.load()
    assert list(listed) == [f"C{number:02}" for number in range(1, 38)]
    for claim in listed.values():
        assert claim.sentence.endswith(".")
        assert len(claim.sentence) <= 120
        assert claim.notebooks
        assert all(re.fullmatch(r"\d\db?", number) for number in claim.notebooks)


def test_a_promised_claim_has_its_cell(tmp_path):
    cell = code("assert x == 1", tags=["C10", "C11", "C12"])
    path = stored(tmp_path, notebooks.normalised(new_notebook(cells=[cell])), "02-row.ipynb")
    assert any("C13 is to be shown here" in problem for problem in notebooks.problems(path))
    assert not any("C12" in problem for problem in notebooks.problems(path))


@pytest.mark.parametrize(
    "source",
    [
        "assert x == 1",
        "assert torch.equal(X @ W, Y), 'differs'",
        "torch.testing.assert_close(dX, G0 + G1)",
        "for rank in range(2):\n    assert outputs[rank].shape == (3, 4)",
        "with torch.no_grad():\n    assert not x.requires_grad",
        "%time y = 2\nassert y == 2",
        "try:\n    work()\nexcept ValueError:\n    failed = True\nassert failed",
    ],
)
def test_an_assertion(source):
    assert claims.asserts(source)


@pytest.mark.parametrize(
    "source",
    [
        "print(x == 1)",
        "assert True",
        "assert 1 == 1",
        "assert 'words'",
        "assert (x == 1, 'always true')",
        "assert [x]",
        "assert f'{x}'",
        "assert x == x",
        "assert torch.equal(Y, Y)",
        "assert x or True",
        "assert not False",
        "# assert x == 1",
        "def never():\n    assert x == 1",
        "if False:\n    assert x == 1",
        "try:\n    assert x == 1\nexcept AssertionError:\n    pass",
        "with contextlib.suppress(AssertionError):\n    assert x == 1",
        "np.testing.assert_allclose(Y, Y)",
        "assert_ready()",
    ],
)
def test_no_assertion(source):
    assert not claims.asserts(source)


# The tool's own commands


def test_check_says_and_returns_it(tmp_path, capsys):
    path = stored(tmp_path, notebooks.normalised(new_notebook(cells=[code(count=None)])))
    assert notebooks.main(["check", str(path)]) == 1
    assert "it was not executed" in capsys.readouterr().out


def test_only_named_files_change(tmp_path):
    with pytest.raises(SystemExit):
        notebooks.main(["run"])
    assert list(Path(tmp_path).iterdir()) == []


def test_the_skeleton_is_a_notebook(tmp_path):
    nb = notebooks.from_text(notebooks.SKELETON)
    nbformat.validate(nb)
    assert {cell.metadata.slideshow.slide_type for cell in nb.cells} <= set(notebooks.SLIDE_TYPES)
