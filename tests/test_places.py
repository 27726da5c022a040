"""The links to where notebooks run, and the set-up cell."""

import ast
import sys
from pathlib import Path

import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

import tpviz
from tools import notebooks, places

ON_COLAB = {"torch", "numpy", "matplotlib", "ipywidgets", "IPython", "traitlets"}
"""What tpviz imports and Colab has; what it lacks the set-up cell fetches. As googlecolab/backend-info lists it."""


@pytest.fixture
def fork(tmp_path, monkeypatch):
    """A copy of pyproject.toml that names another repository."""
    project = (places.ROOT / "pyproject.toml").read_text(encoding="utf-8")
    (tmp_path / "pyproject.toml").write_text(project.replace(places.repository(), "ada/my.fork"), encoding="utf-8")
    monkeypatch.setattr(places, "ROOT", tmp_path)
    return tmp_path


def test_one_line_names_the_repository(fork):
    notebook = fork / "notebooks" / "00-a.ipynb"
    assert places.repository() == "ada/my.fork"
    assert places.binder(notebook) == "https://mybinder.org/v2/gh/ada/my.fork/HEAD?labpath=notebooks%2F00-a.ipynb"
    colab = "https://colab.research.google.com/github/ada/my.fork/blob/HEAD/notebooks/00-a.ipynb"
    assert places.colab(notebook) == colab
    assert '"https://github.com/ada/my.fork"' in places.setup()


def test_another_host_is_refused(tmp_path, monkeypatch):
    text = '[project]\nname = "x"\n[project.urls]\nRepository = "https://example.org/a/b"\n'
    (tmp_path / "pyproject.toml").write_text(text, encoding="utf-8")
    monkeypatch.setattr(places, "ROOT", tmp_path)
    with pytest.raises(ValueError, match=r"https://github\.com/OWNER/NAME"):
        places.repository()


def test_the_set_up_cell_fetches_what_colab_lacks():
    imported = set()
    for path in Path(tpviz.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module] if isinstance(node, ast.ImportFrom) and node.module and not node.level else []
            imported |= {name.partition(".")[0] for name in names}
    fetched = {name.removesuffix(".py") for name in places.COLAB_LACKS}
    assert imported - set(sys.stdlib_module_names) - {"tpviz"} == ON_COLAB | fetched
    assert "--no-deps" in places.setup(), "Colab's own PyTorch would be replaced"


def test_it_stands_before_the_first_code_cell_once():
    title, code = new_markdown_cell("# T"), new_code_cell("x = 1", execution_count=1)
    once = notebooks.with_setup(new_notebook(cells=[title, code]))
    assert [cell.source for cell in once.cells] == ["# T", places.setup(), "x = 1"]
    assert once.cells[1].metadata.slideshow.slide_type == "skip"
    assert notebooks.with_setup(once) == once
    astray = new_notebook(cells=[once.cells[0], once.cells[2], once.cells[1]])
    assert [cell.source for cell in notebooks.with_setup(astray).cells] == ["# T", places.setup(), "x = 1"]
    text = new_notebook(cells=[title])
    assert notebooks.with_setup(text) == text


def test_a_notebook_without_it_is_told(tmp_path):
    path = tmp_path / "99-some.ipynb"
    nb = notebooks.normalised(new_notebook(cells=[new_code_cell("x = 1", execution_count=1)]))
    notebooks.write(path, nb)
    assert "its first code cell is not the set-up cell" in "\n".join(notebooks.problems(path))
    nb = notebooks.with_setup(nb)
    nb.cells[0].source = "import sys"
    notebooks.write(path, nb)
    assert "cell 1 (setup): it differs from tools/places.py" in "\n".join(notebooks.problems(path))


def test_added_it_moves_the_counts_and_renewed_it_leaves_all_else(tmp_path, monkeypatch):
    path = tmp_path / "99-some.ipynb"
    notebooks.write(path, new_notebook(cells=[new_code_cell("len(In) - 1", id="count")]))
    assert notebooks.main(["run", str(path)]) == 0
    assert notebooks.read(path).cells[0].outputs[0].data["text/plain"] == "1"
    assert notebooks.main(["setup", str(path)]) == 0
    setup, count = notebooks.read(path).cells
    assert (setup.id, setup.execution_count, setup.outputs) == ("setup", 1, []), "nothing happens but on Colab"
    assert (count.execution_count, count.outputs[0].data["text/plain"]) == (2, "2")
    monkeypatch.setattr(places, "setup", lambda: "import sys")
    monkeypatch.setattr(notebooks, "execute", None)
    before = path.read_bytes()
    assert notebooks.main(["setup", str(path)]) == 0
    nb = notebooks.read(path)
    assert (nb.cells[0].source, nb.cells[0].execution_count, nb.cells[1]) == ("import sys", 1, count)
    assert path.read_bytes() != before


def test_it_stays_the_same_as_text():
    nb = notebooks.normalised(notebooks.with_setup(new_notebook(cells=[new_code_cell("x = 1", id="x")])))
    written = notebooks.to_text(nb)
    assert "# %pip install" in written
    assert notebooks.from_text(written, nb) == nb
    assert notebooks.is_set_up(notebooks.filled(notebooks.from_text(notebooks.SKELETON)))
