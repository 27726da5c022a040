"""The slides in a real Chromium with no network: nothing is cut, every key walks, and they print.

What each slide looked like stays in build/screens/slides/, for a person to look at.
"""

import re
from contextlib import contextmanager

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

from tools import browser, notebooks, slides

pytestmark = pytest.mark.browser

LESSONS = notebooks.lessons()
NOTEBOOKS = [each.path for each in LESSONS]
each_notebook = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
SCREENS = browser.SCREENS / "slides"
LARGEST_BYTES = 3_000_000

# What is wrong with a slide as it stands there, by what can be seen alone: each piece of text and each picture stands
# inside its block, blocks stand apart, inside the slide and above its foot, and all is large enough. Lengths are in
# the pixels of a slide of 1280 by 720.
LOOK = """slide => {
    const page = slide.querySelector('.page');
    const outer = page.getBoundingClientRect(), unit = outer.width / 1280;
    const at = box => ({left: (box.left - outer.left) / unit, right: (box.right - outer.left) / unit,
        top: (box.top - outer.top) / unit, bottom: (box.bottom - outer.top) / unit});
    const inside = (a, b) =>
        a.left > b.left - 1.5 && a.right < b.right + 1.5 && a.top > b.top - 1.5 && a.bottom < b.bottom + 1.5;
    const found = [];
    if (Math.abs(outer.height / unit - 720) > 1) found.push(`it is ${outer.height / unit} high`);
    // Each with the boxes by which it is clipped.
    const pieces = function* (node, clips = []) {
        if (node.nodeType === Node.TEXT_NODE && node.data.trim()) {
            const range = document.createRange();
            range.selectNodeContents(node);
            for (const box of range.getClientRects()) yield [node.data.trim().slice(0, 30), at(box), clips];
        } else if (['IMG', 'svg', 'math'].includes(node.nodeName)) {
            yield [node.nodeName, at(node.getBoundingClientRect()), clips];
        } else if (!['SCRIPT', 'STYLE'].includes(node.nodeName) && node.className !== 'fragment step') {
            if (node instanceof Element && getComputedStyle(node).overflow !== 'visible')
                clips = [...clips, at(node.getBoundingClientRect())];
            for (const child of [...node.childNodes, ...(node.shadowRoot?.childNodes ?? [])])
                yield* pieces(child, clips);
        }
    };
    const room = {left: 0, right: 1280, top: 0, bottom: 694};
    for (const [name, box] of pieces(page)) if (!inside(box, room)) found.push(`off the slide: ${name}`);
    const blocks = [...slide.querySelectorAll('header, .block')];
    for (const block of blocks) {
        const own = at(block.getBoundingClientRect());
        for (const [name, box, clips] of pieces(block))
            if (![own, ...clips].every(clip => inside(box, clip))) found.push(`cut off: ${name}`);
        for (const other of blocks) {
            const box = at(other.getBoundingClientRect());
            if (block !== other && own.left < box.right - 1 && box.left < own.right - 1 &&
                own.top < box.bottom - 1 && box.top < own.bottom - 1) found.push(`overlaps: ${other.className}`);
        }
    }
    const least = (what, pixels) => {
        for (const element of slide.querySelectorAll(what)) {
            const size = parseFloat(getComputedStyle(element).fontSize);
            if (size < pixels) found.push(`${what} in ${size} px`);
        }
    };
    least('.code pre, .out pre, .out td', 18);
    least('.text', 21);
    const again = page.classList.contains('again');
    for (const block of slide.querySelectorAll('.figure')) {
        const alive = block.querySelector('[data-steps]')?.shadowRoot;
        const picture = alive ? alive.querySelector('svg') : block.querySelector('img');
        const box = at(picture.getBoundingClientRect());
        const [width, height] = picture.naturalWidth ? [picture.naturalWidth, picture.naturalHeight]
            : [picture.width.baseVal.value, picture.height.baseVal.value];
        const scale = Math.min((box.right - box.left) / width, (box.bottom - box.top) / height);
        if (scale < (again ? 0.5 : 0.7)) found.push(`a figure at ${scale.toFixed(2)} of its size`);
    }
    for (const pre of slide.querySelectorAll('.code pre')) {
        const lines = pre.textContent.trimEnd().split('\\n').length;
        if (lines > 15) found.push(`${lines} lines of code`);
    }
    return found;
}"""

# A slide with all that appears on it.
GO = """number => {
    const {h, v} = Reveal.getIndices(Reveal.getSlides()[number]);
    Reveal.slide(h, v, 99);
}"""
VISIT = f"""() => Reveal.getSlides().flatMap((slide, index) => {{
    ({GO})(index);
    return ({LOOK})(slide).map(problem => `slide ${{index + 1}}: ${{problem}}`);
}})"""

WHERE = """() => [Reveal.getSlides().indexOf(Reveal.getCurrentSlide()),
    ...[...Reveal.getCurrentSlide().querySelectorAll('[data-steps]')]
        .map(figure => +figure.shadowRoot.querySelector('input').value)]"""


@contextmanager
def opened(chromium, file, query=""):
    """The deck, laid out, in a window of 1280 by 720; what it complains of or asks the network for is a failure."""
    context = chromium.new_context(viewport={"width": 1280, "height": 720}, offline=True)
    page, complaints = context.new_page(), []
    address = file.as_uri()
    page.on("request", lambda request: request.url.startswith((address, "data:")) or complaints.append(request.url))
    page.on("console", lambda message: complaints.append(message.text))
    page.on("pageerror", lambda error: complaints.append(str(error)))
    try:
        page.goto(address + query)
        page.wait_for_selector("body[data-ready]")
        yield page
        assert complaints == []
    finally:
        context.close()


@pytest.fixture(scope="module")
def decks(tmp_path_factory):
    return {file.stem: file for file in slides.build(NOTEBOOKS, tmp_path_factory.mktemp("slides"))}


def photograph(page, name):
    SCREENS.mkdir(parents=True, exist_ok=True)
    for old in SCREENS.glob(f"{name}-[0-9][0-9].*"):
        old.unlink()
    for number in range(page.evaluate("Reveal.getTotalSlides()")):
        page.evaluate(f"({GO})({number})")
        browser.photograph(page, SCREENS / f"{name}-{number + 1:02}.jpg")


@each_notebook
def test_nothing_is_cut_and_every_key_press_leads_on(path, chromium, decks):
    file = decks[path.stem]
    assert file.stat().st_size <= LARGEST_BYTES
    with opened(chromium, file) as page:
        assert page.evaluate(VISIT) == []
        photograph(page, path.stem)
        page.set_viewport_size({"width": 1920, "height": 1080})
        page.wait_for_function("document.querySelector('.present .present .page').getBoundingClientRect().width > 1900")
        assert page.evaluate(VISIT) == []

        page.evaluate("Reveal.slide(0, 0, -1)")
        presses = page.evaluate("""() => Reveal.getSlides().map(slide =>
            new Set([...slide.querySelectorAll('.fragment')].map(each => each.dataset.fragmentIndex)).size + 1)
            .reduce((one, other) => one + other) - 1""")
        page.evaluate(
            f"seen = [({WHERE})()]; for (const event of ['slidechanged', 'fragmentshown'])"
            f" Reveal.on(event, () => seen.push(({WHERE})()))"
        )
        for _press in range(presses):
            page.keyboard.press("PageDown")
        seen = page.evaluate("seen.map(([slide]) => slide)")
        assert seen == sorted(seen)
        assert set(seen) == set(range(page.evaluate("Reveal.getTotalSlides()")))
        assert len(seen) == presses + 1
        assert page.evaluate("Reveal.isLastSlide() && !Reveal.availableFragments().next")


STEPPED = [path for path in NOTEBOOKS if "data-steps" in path.read_text(encoding="utf-8")]


@pytest.mark.parametrize("path", STEPPED, ids=lambda path: path.stem)
def test_a_remote_walks_a_figure_first(path, chromium, decks):
    with opened(chromium, decks[path.stem]) as page:
        slide = page.evaluate("""() => {
            const slide = Reveal.getSlides().find(slide => slide.querySelector('[data-steps]'));
            const {h, v} = Reveal.getIndices(slide);
            Reveal.slide(h, v, -1);
            return Reveal.getSlides().indexOf(slide);
        }""")
        figure = page.locator(".present [data-steps]").first
        last = figure.evaluate("figure => JSON.parse(figure.dataset.steps).steps.length - 1")
        for step in range(1, last + 1):
            page.keyboard.press("PageDown")
            assert page.evaluate(WHERE) == [slide, step]
        page.keyboard.press("PageUp")
        assert page.evaluate(WHERE) == [slide, last - 1]
        figure.get_by_role("button", name="one step back").click()
        figure.get_by_role("button", name="one step back").click()
        assert page.evaluate(WHERE) == [slide, last - 3]
        for step in (last - 2, last - 1, last):  # the figure has the focus now
            page.keyboard.press("PageDown")
            assert page.evaluate(WHERE) == [slide, step]
        page.keyboard.press("PageDown")
        assert page.evaluate(WHERE)[0] == slide + 1
        page.keyboard.press("PageUp")
        assert page.evaluate(WHERE) == [slide, last]


@pytest.mark.parametrize("path", [NOTEBOOKS[0], *STEPPED], ids=lambda path: path.stem)
def test_prints_a_page_for_each_slide(path, chromium, decks):
    with opened(chromium, decks[path.stem], "?print-pdf") as page:
        page.wait_for_selector("html.reveal-print .pdf-page")
        found = page.evaluate(f"() => [...document.querySelectorAll('.pdf-page > section')].flatMap({LOOK})")
        assert found == []
        seen = "each => getComputedStyle(each).opacity === '1' && getComputedStyle(each).visibility === 'visible'"
        assert page.evaluate(f"[...document.querySelectorAll('.block, .answer')].every({seen})")
        steps = (
            "[...document.querySelectorAll('[data-steps]')].flatMap(each => [...each.shadowRoot.querySelectorAll('g')])"
        )
        assert page.evaluate(f"{steps}.every({seen})")
        number = page.locator(".pdf-page").count()
        pdf = page.pdf(prefer_css_page_size=True, print_background=True)
        assert len(re.findall(rb"/Type\s*/Page\b", pdf)) == number
        boxes = {tuple(map(float, box.split())) for box in re.findall(rb"/MediaBox\s*\[([^\]]*)\]", pdf)}
        assert {(round(width / 0.75), round(height / 0.75)) for _x, _y, width, height in boxes} == {(1280, 720)}


def test_the_speaker_reads_hints_and_solution(chromium, decks):
    with opened(chromium, decks["01-column-parallel"]) as page:
        page.evaluate("""() => {
            const {h, v} = Reveal.getIndices(document.querySelector('aside.notes').closest('section'));
            Reveal.slide(h, v);
        }""")
        with page.expect_popup() as popup:
            page.keyboard.press("s")
        notes = popup.value.locator(".speaker-controls-notes .value")
        notes.get_by_text("Solution").wait_for()
        assert "Hint 1" in notes.inner_text()


def test_the_index_leads_to_every_deck(chromium, tmp_path):
    file = tmp_path / "index.html"
    file.write_text(slides.index(LESSONS), encoding="utf-8")
    page = chromium.new_page()
    page.goto(file.as_uri())
    links = page.locator("a").evaluate_all("links => links.map(link => link.getAttribute('href'))")
    assert links == [f"{path.stem}.html" for path in NOTEBOOKS]
    page.close()


# The eye itself


def deck_of(tmp_path, *cells):
    """A deck of a title and a slide."""
    cells = [new_markdown_cell("# Title"), *cells]
    for cell, kind in zip(cells, ["slide", "slide", "-"], strict=False):
        cell.metadata = nbformat.from_dict({"slideshow": {"slide_type": kind}})
    file = tmp_path / "deck.html"
    file.write_text(slides.deck(new_notebook(cells=cells)), encoding="utf-8")
    return file


def test_what_cannot_fit_is_noticed(chromium, tmp_path):
    long = new_output("stream", text="\n".join(f"line {number}" for number in range(60)))
    with opened(chromium, deck_of(tmp_path, new_code_cell("print()", outputs=[long]))) as page:
        assert any(re.search(r"pre.* in \d+.* px", problem) for problem in page.evaluate(VISIT))


@pytest.mark.parametrize(
    ("style", "problem"),
    [
        (".text { font-size: 90px !important }", "off the slide"),
        (".code pre { width: 150px; overflow: hidden }", "cut off"),
        (".body { gap: 0 } .code { margin-top: -60px }", "overlaps"),
        (".code pre { font-size: 12px !important }", "in 12 px"),
        (".figure img { max-width: 30% !important; max-height: 30% !important }", "of its size"),
    ],
)
def test_what_is_cut_or_small_is_noticed(style, problem, chromium, tmp_path):
    square = "data:image/svg+xml,%3Csvg xmlns=%22http://www.w3.org/2000/svg%22 width=%22400%22 height=%22300%22/%3E"
    picture = f'<img alt="a square" src="{square}">'
    output = new_output("display_data", {"text/html": picture, "text/plain": "a square"})
    words = "One thought, at most thirty words beside the figure, and some more of them. " * 4
    cells = (
        new_markdown_cell(f"## A slide\n\n{words}"),
        new_code_cell("a = [0, 1, 2, 3, 4]  # a comment", outputs=[output]),
    )
    with opened(chromium, deck_of(tmp_path, *cells)) as page:
        assert page.evaluate(VISIT) == []
        page.add_style_tag(content=style)
        assert any(problem in found for found in page.evaluate(VISIT))
