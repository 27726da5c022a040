"""The notebooks in a real JupyterLab and a real Chromium: as a visitor finds them, then run, then played with.

What the pages looked like when they had run stays in build/screens/, for a person to look at.
"""

import contextlib
import shutil
import subprocess
import sys
import time
import urllib.error
import urllib.request

import pytest
from barriers import serious

from tools import browser, notebooks

pytestmark = pytest.mark.browser


NOTEBOOKS = sorted(notebooks.NOTEBOOKS.glob("*.ipynb"))
each_notebook = pytest.mark.parametrize("name", [path.name for path in NOTEBOOKS])


@pytest.fixture(scope="module")
def lab(chromium, tmp_path_factory):
    """One page of JupyterLab, in which one notebook is open after the other."""
    folder = tmp_path_factory.mktemp("notebooks")
    for path in NOTEBOOKS:
        shutil.copy(path, folder)
    with (
        browser.jupyterlab(folder) as server,
        browser.open_notebook(chromium, server, NOTEBOOKS[0].name) as notebook,
    ):
        yield notebook


def stored_pictures(name):
    nb = notebooks.read(notebooks.NOTEBOOKS / name)
    outputs = [output for cell in nb.cells for output in cell.get("outputs", [])]
    return sum(output.get("data", {}).get("text/html", "").count("<img") for output in outputs)


@each_notebook
def test_found_run_and_moved(name, lab):
    lab.turn_to(name)
    assert not lab.trusted(), "a visitor's JupyterLab does not trust what it has not run"
    assert len(lab.pictures()) >= stored_pictures(name)
    assert lab.problems() == []

    lab.run_all()
    assert lab.problems() == []
    assert all(cell["execution_count"] for cell in lab.content()["cells"] if cell["cell_type"] == "code")
    assert len(lab.pictures()) >= stored_pictures(name)
    assert serious(lab.page) == []

    for number, slider in enumerate(lab.sliders(), 1):
        # How fast is measured by `python -m benchmarks.widgets`: a time is no test on a busy machine.
        steps = slider.evaluate("node => Math.min(10, 1 + node.ariaValueMax - node.ariaValueMin)")  # each choice once
        assert len(lab.move(slider, steps)) == steps, f"slider {number}: its picture did not change"
    assert lab.problems() == []
    lab.screenshots(name.removesuffix(".ipynb"))  # last: in a window as tall as the notebook each frame takes long


def test_a_server_ends_with_what_started_it(tmp_path):
    program = (
        "import pathlib, sys, time; from tools.browser import jupyterlab\n"
        "with jupyterlab(pathlib.Path(sys.argv[1])) as server: print(server.url, flush=True); time.sleep(60)"
    )
    starter = subprocess.Popen([sys.executable, "-c", program, tmp_path], cwd=notebooks.ROOT, stdout=subprocess.PIPE)
    url = starter.stdout.readline().decode().strip()
    urllib.request.urlopen(f"{url}api").close()
    starter.kill()
    starter.communicate()
    deadline = time.monotonic() + 10
    with contextlib.suppress(urllib.error.URLError, ConnectionError):
        while time.monotonic() < deadline:
            urllib.request.urlopen(f"{url}api").close()
            time.sleep(0.1)
        pytest.fail("the server is still there")
