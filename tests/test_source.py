"""How a call site is named: a cell by its count, under the IPython of JupyterLab and under the older one of Colab."""

import sys
from types import SimpleNamespace

import pytest

from tpviz import source

CELLS = ["", "import tpviz", "run()", "import tpviz", "x = 1"]


def file_name(code):
    """The name that ipykernel compiles a cell under: it hangs on what the cell says alone."""
    return f"/tmp/ipykernel_4711/{sum(map(ord, code))}.py"


def new_shell():
    counts = {file_name(code): count for count, code in enumerate(CELLS)}
    name = lambda file: ("Cell", f"In[{counts[file]}]") if file in counts else None  # noqa: E731
    return SimpleNamespace(compile=SimpleNamespace(format_code_name=name))


def old_shell():
    history = SimpleNamespace(input_hist_raw=CELLS, input_hist_parsed=[code + "\n" for code in CELLS])
    compiler = SimpleNamespace(get_code_name=lambda raw, transformed, number: file_name(raw))
    return SimpleNamespace(history_manager=history, compile=compiler)


@pytest.mark.parametrize("shell", [new_shell(), old_shell()], ids=["IPython 9", "IPython 7"])
def test_a_cell_is_named_by_its_count(shell, monkeypatch):
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: shell))
    assert source.describe((file_name("run()"), 7)) == "cell [2], line 7"
    assert source.describe((file_name("import tpviz"), 1)) == "cell [3], line 1", "run twice: the latest"
    assert source.describe(("/elsewhere/program.py", 5)) == "/elsewhere/program.py:5"
