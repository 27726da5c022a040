"""Figures to step through in a real Chromium, beside test_stepping: the focus, the keys, the styles of the page."""

import nbformat
import pytest
from nbconvert import HTMLExporter

from tpviz import diagrams, widgets
from tpviz.example import W, X, dY

pytestmark = pytest.mark.browser

WHOLES = {"X": X, "Y": X @ W, "Z": X @ W, "dY": dY, "G": dY @ W.T, "dX": dY @ W.T}
COLUMN_RUN, ROW_RUN = widgets.compute_both_layers(2)
COLUMN = diagrams.stepper(COLUMN_RUN, WHOLES, "X → @ W → Y", "dY → @ Wᵀ → G → all_reduce → dX")
ROW = diagrams.stepper(ROW_RUN, WHOLES, "X → @ W → Z → all_reduce → Y", "dY → @ Wᵀ → dX")
LAST = len(COLUMN.steps) - 1
CELL = """from tpviz import diagrams, widgets
from tpviz.example import W, X, dY
wholes = {"X": X, "Y": X @ W, "dY": dY, "G": dY @ W.T, "dX": dY @ W.T}
run, _row = widgets.compute_both_layers(2)
diagrams.stepper(run, wholes, "X → @ W → Y", "dY → @ Wᵀ → G → all_reduce → dX")"""

# What the page has of its own: elements that the figure's styles would change if they got out.
OWN = """<p class="name label">text <output>1</output> <button>press</button> <input type="range"></p>
<div class="frame"><div class="panel"><span class="count">2</span></div></div>
<svg width="9" height="9"><g data-step="3"><text class="digit" y="9">3</text></g></svg>"""
OWN_STYLES = """() => [...document.querySelectorAll('#own, #own *')].map(element =>
    [element.tagName, ...[...getComputedStyle(element)].map(name => getComputedStyle(element)[name])].join())"""
LOOKS = """figure => [...figure.shadowRoot.querySelectorAll('*')].map(element => {
    const style = getComputedStyle(element);
    return [element.tagName, style.opacity, style.display, style.fill, style.backgroundColor,
        style.borderTopWidth].join();
})"""
STEP = "figure => +figure.shadowRoot.querySelector('input').value"


def page_of(tmp_path, body, name="page.html"):
    path = tmp_path / name
    path.write_text(f"<!doctype html><meta charset=utf-8><body>{body}", encoding="utf-8")
    return path.as_uri()


@pytest.fixture
def visit(chromium):
    """Opens an address with the network off; any request but its own, and any complaint, fails the test."""
    context, complaints = chromium.new_context(offline=True), []

    def open_page(url):
        page = context.new_page()
        page.on("request", lambda request: request.url in (url,) or complaints.append(request.url))
        page.on("console", lambda message: complaints.append(message.text))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.goto(url)
        return page

    yield open_page
    assert [complaint for complaint in complaints if not complaint.startswith("data:")] == []
    context.close()


@pytest.mark.parametrize(("name", "way", "end"), [("one step on", 1, LAST), ("one step back", -1, 0)])
def test_the_focus_stays_in_the_figure_where_a_button_ends(name, way, end, visit, tmp_path):
    page = visit(page_of(tmp_path, COLUMN.html))
    figure = page.locator("[data-steps]")
    figure.press("Home" if way > 0 else "End")
    button = figure.get_by_role("button", name=name)
    button.focus()
    for _press in range(LAST):
        page.keyboard.press("Enter")
    assert button.is_disabled()
    assert figure.evaluate(STEP) == end
    assert page.evaluate("document.activeElement.hasAttribute('data-steps')")
    page.keyboard.press("ArrowLeft" if way > 0 else "ArrowRight")
    assert figure.evaluate(STEP) == end - way, "the keys still step"


def test_the_slider_takes_the_same_keys_and_says_the_step_that_is_shown(visit, tmp_path):
    page = visit(page_of(tmp_path, COLUMN.html))
    figure = page.locator("[data-steps]")
    slider = figure.get_by_role("slider", name="step")
    slider.focus()
    for key, step in (("ArrowRight", 1), ("PageDown", 2), ("End", LAST), ("PageUp", LAST - 1), ("Home", 0)):
        page.keyboard.press(key)
        assert figure.evaluate(STEP) == step, key
        assert slider.get_attribute("aria-valuetext") == figure.locator(".count").inner_text()
        assert slider.get_attribute("aria-valuetext").startswith(f"{step + 1} ")
        assert slider.evaluate("node => node.getRootNode().activeElement === node"), "the focus stays"


def test_keys_that_are_the_browsers_are_left_to_it(visit, tmp_path):
    page = visit(page_of(tmp_path, COLUMN.html))
    page.evaluate("""() => {
        window.left = [];
        addEventListener('keydown', event => {
            if (!['Control', 'Alt', 'Meta'].includes(event.key)) window.left.push(event.defaultPrevented);
            event.preventDefault();  // the page is not to go back in its history
        });
    }""")
    figure = page.locator("[data-steps]")
    figure.press("ArrowRight")
    assert page.evaluate("window.left") == [], "a key that steps goes no further"
    for key in ("Control+ArrowRight", "Alt+ArrowLeft", "Meta+ArrowRight", "Meta+End", "ArrowDown", "a"):
        figure.press(key)
        assert figure.evaluate(STEP) == 1, key
    assert page.evaluate("window.left") == [False] * 6


def test_two_figures_step_alone(visit, tmp_path):
    page = visit(page_of(tmp_path, COLUMN.html + ROW.html))
    first, second = page.locator("[data-steps]").all()
    first.press("End")
    second.press("ArrowRight")
    assert first.locator("output").inner_text() == COLUMN.steps[LAST]
    assert second.locator("output").inner_text() == ROW.steps[1]


def test_no_style_gets_out_and_none_gets_in(visit, tmp_path):
    own = f'<div id="own">{OWN}</div>'
    before = visit(page_of(tmp_path, own, "without.html")).evaluate(OWN_STYLES)
    with_figure = visit(page_of(tmp_path, own + COLUMN.html, "with.html"))
    assert with_figure.evaluate(OWN_STYLES) == before
    plain = with_figure.locator("[data-steps]").evaluate(LOOKS)
    style = (
        "<style>[data-step] {opacity: 1 !important} button, input {display: none !important}"
        " .frame, .panel {background: red !important; border: 9px solid !important}"
        " svg * {fill: lime !important}</style>"
    )
    styled = visit(page_of(tmp_path, style + COLUMN.html, "styled.html"))
    assert styled.locator("[data-steps]").evaluate(LOOKS) == plain


def test_with_scripts_off_nothing_of_the_machinery_shows(chromium, tmp_path):
    context = chromium.new_context(java_script_enabled=False, offline=True)
    page = context.new_page()
    page.goto(page_of(tmp_path, COLUMN.html))
    assert page.get_by_role("img", name=COLUMN.drawing.alt).bounding_box()["width"] > 100
    assert page.locator("body").inner_text().strip() == ""
    assert page.locator("button, input, output").count() == 0
    context.close()


def test_an_export_is_alive_and_asks_for_nothing(visit, tmp_path):
    body, _resources = HTMLExporter(template_name="basic").from_notebook_node(notebook())
    page = visit(page_of(tmp_path, body))
    page.locator("[data-steps]").press("PageDown")
    assert page.get_by_role("status").inner_text() == COLUMN.steps[1]


def notebook():
    output = nbformat.v4.new_output("execute_result", COLUMN._repr_mimebundle_(), execution_count=1)
    cells = [
        nbformat.v4.new_markdown_cell("# A heading"),
        nbformat.v4.new_code_cell(CELL, outputs=[output], execution_count=1),
        nbformat.v4.new_markdown_cell("## Another"),
        nbformat.v4.new_code_cell("1 + 1"),
    ]
    kernel = {"name": "python3", "display_name": "Python 3"}
    return nbformat.v4.new_notebook(cells=cells, metadata={"kernelspec": kernel})
