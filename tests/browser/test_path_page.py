"""The learner's path in a real JupyterLab: a right answer is noted, the index shows it, and a stub comes back."""

import json
import shutil

import pytest

from tools import browser, notebooks
from tpviz import exercises
from tpviz.exercises import record

pytestmark = pytest.mark.browser

PREDICT = "00-predict-all-reduce"


def set_source(notebook, cell, source):
    """Type into a cell, and run it as Ctrl+Enter does."""
    notebook.page.evaluate(
        """([id, source]) => {
            const content = window.jupyterapp.shell.currentWidget.content;
            content.activeCellIndex = content.widgets.findIndex(cell => cell.model.id === id);
            content.activeCell.model.sharedModel.setSource(source);
        }""",
        [cell, source],
    )
    notebook._within(browser.RUN_TIMEOUT, "window.jupyterapp.commands.execute('notebook:run-cell')")
    notebook.wait_idle()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("notebooks")
    for path in notebooks.NOTEBOOKS.glob("0*.ipynb"):
        shutil.copy(path, folder)
    return folder


def test_noted_shown_downloaded_and_taken_back(chromium, folder, monkeypatch):
    monkeypatch.setenv(record.VARIABLE, str(folder / record.FILE))
    cell, exercise = f"exercise-{PREDICT.lower()}", exercises.get(PREDICT)
    with browser.jupyterlab(folder) as server:
        with browser.open_notebook(chromium, server, "00-start-here.ipynb") as notebook:
            notebook.run_all()
            assert not (folder / record.FILE).exists()
            set_source(notebook, cell, exercise.solution)
            assert list(record.facts((folder / record.FILE).read_text(encoding="utf-8"))) == [PREDICT]

        with browser.open_notebook(chromium, server, "0-index.ipynb") as notebook:
            notebook.run_all()
            assert notebook.problems() == []
            notebook.screenshots("0-index-begun")
            with notebook.page.expect_download() as download:
                notebook.page.locator("a[download]").click()
            assert download.value.suggested_filename == record.DOWNLOAD
            download.value.save_as(folder / record.DOWNLOAD)
            notebook.page.locator("a", has_text="00 · ").click()
            notebook.page.wait_for_url("**/00-start-here.ipynb")

        with browser.open_notebook(chromium, server, "00-start-here.ipynb") as notebook:
            set_source(notebook, "imports", "from tpviz import exercises")
            set_source(notebook, cell, f'exercises.reset("{PREDICT}")')
            notebook.page.wait_for_function(
                "([id, stub]) => window.jupyterapp.shell.currentWidget.content.widgets.find("
                "cell => cell.model.id === id).model.sharedModel.getSource() === stub",
                arg=[cell, exercise.stub],
            )
            last = (folder / record.FILE).read_text(encoding="utf-8").splitlines()[-1]
            assert json.loads(last) == {"exercise": PREDICT, "right": None}

        with browser.open_notebook(chromium, server, "0-index.ipynb") as notebook:
            notebook.run_all()
            assert record.facts((folder / record.FILE).read_text(encoding="utf-8")).keys() == {PREDICT}
