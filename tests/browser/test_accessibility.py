"""Sliders, checks and figures to step through for who sees or hears otherwise, in a real JupyterLab.

`test_jupyterlab` has axe look at every notebook; here is what axe cannot know.
"""

import nbformat
import pytest
from barriers import serious

from tools import browser, notebooks

pytestmark = pytest.mark.browser

CELLS = (
    "from tpviz import exercises, widgets",
    "widgets.collectives()",
    'exercises.check("01-predict-messages", 2)\nexercises.check("01-predict-messages", 1)',
    'exercises.check("01-predict-messages", 0)',
)


@pytest.fixture(scope="module")
def notebook(chromium, tmp_path_factory):
    folder = tmp_path_factory.mktemp("notebooks")
    cells = [nbformat.v4.new_code_cell(cell) for cell in CELLS]
    nb = nbformat.v4.new_notebook(cells=cells, metadata={"kernelspec": notebooks.KERNELSPEC})
    nbformat.write(nb, folder / "shown.ipynb")
    with browser.jupyterlab(folder) as server, browser.open_notebook(chromium, server, "shown.ipynb") as opened:
        opened.run_all()
        yield opened


def test_a_slider_says_its_name_and_its_choice(notebook):
    slider = notebook.page.get_by_role("slider", name="collective")
    assert slider.get_attribute("aria-valuetext") == "AllGather"
    for key, choice in (("ArrowRight", "AllReduce"), ("ArrowRight", "ReduceScatter"), ("ArrowLeft", "AllReduce")):
        slider.press(key)
        notebook.page.get_by_role("img", name=f"{choice}, ranks").wait_for()
        assert slider.get_attribute("aria-valuetext") == choice
    assert notebook.page.get_by_role("slider", name="ranks").get_attribute("aria-valuetext") == "2"


def test_the_controls_are_read_before_the_picture_that_they_change(notebook):
    order = notebook.page.locator(".tpviz-widget").evaluate(
        "box => [...box.querySelectorAll('[role=slider], img[alt]:not([alt=\"\"])')].map(each => each.tagName)"
    )
    assert order == ["DIV", "DIV", "IMG"]


def test_the_tab_key_goes_from_slider_to_slider(notebook):
    notebook.page.get_by_role("slider", name="collective").focus()
    for _press in range(3):  # what the slider shows can be typed into, and stands between
        notebook.page.keyboard.press("Tab")
        if name := notebook.page.evaluate("document.activeElement.getAttribute('aria-label')"):
            break
    assert name == "ranks"


def test_axe_finds_nothing_serious_in_answers_right_and_wrong(notebook):
    assert notebook.page.get_by_text("Not right yet.").count() == 1
    assert notebook.page.get_by_text("Hint 1").count() == 1
    assert serious(notebook.page) == []
