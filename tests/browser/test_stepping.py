"""Figures to step through, in a real Chromium: alive with no kernel and no network, by keyboard; else the still."""

import nbformat
import pytest
from nbconvert import HTMLExporter, SlidesExporter

from tools import browser

pytestmark = pytest.mark.browser

CELL = """import tpviz
from tpviz import diagrams, widgets
from tpviz.example import W, X, dY
wholes = {"X": X, "Y": X @ W, "dY": dY, "G": dY @ W.T, "dX": dY @ W.T}
run, _row = widgets.compute_both_layers(2)
figure = diagrams.stepper(run, wholes, "X → @ W → Y", "dY → @ Wᵀ → G → all_reduce → dX")
figure"""
names: dict = {}
exec(CELL, names)
FIGURE = names["figure"]
LAST = len(FIGURE.steps) - 1

STATE = """figure => {
    const root = figure.shadowRoot;
    return {said: root.querySelector('output').textContent, slider: +root.querySelector('input').value,
        opacities: [...root.querySelectorAll('[data-step]')].map(group => +getComputedStyle(group).opacity),
        disabled: [...root.querySelectorAll('button')].map(button => button.disabled)};
}"""


@pytest.fixture
def page(chromium, tmp_path):
    """A page of two such figures and a paragraph, with any request but its own, and any complaint, a failure."""
    path = tmp_path / "page.html"
    paragraph = '<p class="name" id="text">text</p>'
    path.write_text(f"<!doctype html><meta charset=utf-8>{paragraph}{FIGURE.html}{FIGURE.html}", encoding="utf-8")
    opened, complaints = chromium.new_page(), []
    opened.on("request", lambda request: request.url == path.as_uri() or complaints.append(request.url))
    opened.on("console", lambda message: complaints.append(message.text))
    opened.on("pageerror", lambda error: complaints.append(str(error)))
    opened.goto(path.as_uri())
    yield opened
    assert [each for each in complaints if not each.startswith("data:")] == []
    opened.close()


def state(page, number=0):
    return page.locator("[data-steps]").nth(number).evaluate(STATE)


def test_every_key_steps_and_says_what_happens(page):
    page.keyboard.press("Tab")
    at = 0
    for key, expected in (
        ("ArrowRight", 1),
        ("PageDown", 2),
        ("ArrowLeft", 1),
        ("End", LAST),
        ("ArrowRight", LAST),
        ("PageUp", LAST - 1),
        ("Home", 0),
        ("ArrowLeft", 0),
        ("Control+ArrowRight", 0),
        ("Alt+End", 0),
    ):
        page.keyboard.press(key)
        at = expected
        now = state(page)
        assert now["said"] == FIGURE.steps[at], key
        assert now["slider"] == at
        assert now["opacities"][at] == 1
        assert all(opacity > 0.5 for opacity in now["opacities"][: at + 1])
        assert all(opacity < 0.2 for opacity in now["opacities"][at + 1 :])
        assert now["disabled"] == [at == 0, at == LAST]
        assert page.evaluate("document.activeElement.hasAttribute('data-steps')")
    assert state(page, 1)["slider"] == 0, "the other figure stands still"


def test_buttons_and_slider_step_too(page):
    first, second = (page.locator("[data-steps]").nth(number) for number in (0, 1))
    first.get_by_role("button", name="one step on").click()
    assert state(page)["slider"] == 1
    first.get_by_role("button", name="one step back").click()
    assert state(page)["slider"] == 0
    second.get_by_role("slider", name="step").fill(str(LAST))
    assert state(page, 1)["said"] == FIGURE.steps[LAST]
    assert state(page)["slider"] == 0


def test_no_style_leaks_and_the_figure_has_its_sentence(page):
    # .name is bold and italic in the figure.
    assert page.locator("#text").evaluate("text => getComputedStyle(text).fontWeight") == "400"
    assert page.get_by_role("group", name=f"Step through: {FIGURE.drawing.alt}").count() == 2
    assert page.locator("[data-steps] output[aria-live=polite]").count() == 2
    assert page.locator("img").count() == 0


def test_without_scripts_the_still_stands_there(chromium, tmp_path):
    path = tmp_path / "page.html"
    path.write_text(f"<!doctype html><meta charset=utf-8>{FIGURE.html}", encoding="utf-8")
    context = chromium.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(path.as_uri())
    assert page.get_by_role("img", name=FIGURE.drawing.alt).is_visible()
    assert page.get_by_role("button").count() == 0
    context.close()


# Slides load reveal.js from elsewhere, which there is not here: the figure does not wait for it.
@pytest.mark.parametrize("exporter", [HTMLExporter(template_name="basic"), SlidesExporter()], ids=["html", "slides"])
def test_alive_in_what_nbconvert_exports(exporter, chromium, tmp_path):
    output = nbformat.v4.new_output("execute_result", FIGURE._repr_mimebundle_(), execution_count=1)
    nb = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(CELL, outputs=[output], execution_count=1)])
    body, _resources = exporter.from_notebook_node(nb)
    path = tmp_path / "exported.html"
    path.write_text(f"<!doctype html><meta charset=utf-8>{body}", encoding="utf-8")
    page = chromium.new_page()
    page.goto(path.as_uri(), wait_until="commit")
    page.locator("[data-steps]").press("End")
    assert state(page)["said"] == FIGURE.steps[LAST]
    page.close()


def test_in_jupyterlab_the_still_before_trust_and_alive_after_a_run(chromium, tmp_path):
    output = nbformat.v4.new_output("execute_result", FIGURE._repr_mimebundle_(), execution_count=1)
    cells = [
        nbformat.v4.new_markdown_cell("# A heading"),
        nbformat.v4.new_code_cell(CELL, outputs=[output], execution_count=1),
        nbformat.v4.new_code_cell("1 + 1"),
    ]
    nb = nbformat.v4.new_notebook(cells=cells, metadata={"kernelspec": {"name": "python3", "display_name": "Python 3"}})
    nbformat.write(nb, tmp_path / "steps.ipynb")
    with (
        browser.jupyterlab(tmp_path) as server,
        browser.open_notebook(chromium, server, "steps.ipynb") as notebook,
    ):
        assert not notebook.trusted()
        assert notebook.page.get_by_role("img", name=FIGURE.drawing.alt).is_visible()
        assert notebook.page.locator("[data-steps]").get_by_role("button").count() == 0
        notebook.run_all()
        assert notebook.problems() == []
        figure = notebook.page.locator("[data-steps]")
        figure.focus()
        active = "window.jupyterapp.shell.currentWidget.content.activeCellIndex"
        before = notebook.page.evaluate(active)
        for _press in range(3):
            notebook.page.keyboard.press("ArrowRight")
        assert figure.evaluate(STATE)["slider"] == 3
        assert notebook.page.evaluate(active) == before
        assert figure.is_visible()
