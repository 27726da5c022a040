"""The site: whole, with no dead link, and in a real Chromium alive with no kernel and no network, from a file."""

import functools
import http.server
import re
import subprocess
import sys
import threading
from pathlib import Path
from urllib.parse import unquote, urldefrag

import pytest
from axe_playwright_python.sync_playwright import Axe
from bs4 import BeautifulSoup

from tools import browser, notebooks, site

pytestmark = pytest.mark.browser

NOTEBOOKS = [each.path.stem for each in notebooks.lessons()]
DOCUMENTS = sorted(path.relative_to(site.DOCS).with_suffix(".html").as_posix() for path in site.DOCS.rglob("*.md"))
PAGES = [
    "index.html",
    "search.html",
    *(f"notebooks/{stem}.html" for stem in NOTEBOOKS),
    *(f"docs/{name}" for name in DOCUMENTS),
]
SOME = PAGES[::4]
"""Where axe looks at both themes; it takes seconds a page, and what differs between themes is the same on all."""
SCREENS = browser.SCREENS / "site"
AXE = Axe()


@pytest.fixture(scope="module", autouse=True)
def built():
    result = subprocess.run([sys.executable, "-m", "tools.site"], cwd=site.ROOT, capture_output=True, text=True)
    assert (result.returncode, result.stderr) == (0, ""), "it builds without a warning"
    assert re.fullmatch(r"build/site/index\.html: \d+ pages, \d+\.\d MB, built in \d+\.\d s\n", result.stdout)


# What it is made of


@functools.cache
def soup(page):
    return BeautifulSoup((site.SITE / page).read_text(encoding="utf-8"), "html.parser")


@functools.cache
def anchors(page):
    return {element["id"] for element in soup(page).select("[id]")}


def test_links_out_of_the_site_lead_to_the_repository():
    text = "[a](../tpviz/layers.py) [b](01-column-parallel.ipynb) [c](https://a.example/b) [d](#here) [e](../docs/x.md)"
    led = site.outward(text, notebooks.NOTEBOOKS)
    assert led == text.replace("../tpviz", f"https://github.com/{site.places.repository()}/blob/HEAD/tpviz")


@pytest.mark.parametrize("stem", NOTEBOOKS)
def test_nothing_of_a_notebook_is_lost(stem):
    nb, page = notebooks.read(notebooks.NOTEBOOKS / f"{stem}.ipynb"), soup(f"notebooks/{stem}.html")
    code = [cell for cell in nb.cells if cell.cell_type == "code" and "setup" not in notebooks.tags(cell)]
    sources = [pre.get_text() for pre in page.select(".cell_input pre")]
    assert [source.strip() for source in sources] == [cell.source.strip() for cell in code]
    outputs = [output for cell in code for output in cell.outputs]
    richest = [output.get("data", {}) for output in outputs]
    stored = [BeautifulSoup(data["text/html"], "html.parser") for data in richest if "text/html" in data]
    shown = page.select(".cell_output .output.text_html")
    assert [each.get_text().split() for each in shown] == [each.get_text().split() for each in stored]
    for tag, attribute in (("img", "alt"), ("img", "src"), ("[data-steps]", "data-steps")):
        expected = [found[attribute] for each in stored for found in each.select(tag)]
        assert [found[attribute] for each in shown for found in each.select(tag)] == expected
    assert len(page.select("article script")) == sum(len(each.select("script")) for each in stored)
    texts = [output.text for output in outputs if output.output_type == "stream"]
    texts += [data["text/plain"] for data in richest if data.keys() == {"text/plain"}]
    lines = {pre.get_text().strip() for pre in page.select(".cell_output pre")}
    assert {text.strip() for text in texts} <= lines
    assert len(page.select(".cell_output math")) == sum("text/latex" in data for data in richest)
    folds = sum(cell.source.count("<details>") for cell in nb.cells if cell.cell_type == "markdown")
    assert len(page.select("article details:not(.hide)")) == folds
    assert len(page.select("article details.hide")) == sum("folded" in notebooks.tags(cell) for cell in code)


@pytest.mark.parametrize("page", PAGES)
def test_no_link_is_dead(page):
    place = (site.SITE / page).parent
    for element in soup(page).select("[href], [src]"):
        address, anchor = urldefrag(element.get("href") or element.get("src"))
        if address.startswith("data:"):
            continue
        if address.startswith(("http:", "https:")):
            assert element.name == "a", f"loaded from elsewhere: {element}"
            continue
        target = (place / unquote(address.partition("?")[0])).resolve() if address else site.SITE / page
        assert target.is_relative_to(site.SITE), address
        assert target.is_file(), address
        if anchor and target.suffix == ".html":
            assert unquote(anchor) in anchors(target.relative_to(site.SITE).as_posix()), f"{address}#{anchor}"


def test_the_index_says_what_each_is():
    page = soup("index.html")
    for stem in NOTEBOOKS:
        one = notebooks.lesson(notebooks.NOTEBOOKS / f"{stem}.ipynb")
        link = page.select_one(f'dt a[href="notebooks/{stem}.html"]')
        assert link.get_text() == one.heading
        said = " ".join(link.find_parent("dt").find_next_sibling("dd").get_text().split())
        assert f"{one.minutes} minutes · {one.kind}" in said
    for name in DOCUMENTS:
        assert page.select_one(f'article a[href="docs/{name}"]') is not None
    assert "python3 study.py" in page.article.get_text()


@pytest.mark.parametrize("stem", NOTEBOOKS)
def test_every_page_says_how_to_get_a_kernel(stem):
    said = soup(f"notebooks/{stem}.html").select_one(".admonition")
    assert "python3 study.py" in said.get_text()
    assert said.select_one("a")["href"] == site.places.binder(notebooks.NOTEBOOKS / f"{stem}.ipynb")


# In a browser


@pytest.fixture(scope="module")
def offline(chromium):
    context = chromium.new_context(offline=True, reduced_motion="reduce", viewport={"width": 1280, "height": 900})
    yield context
    context.close()


@pytest.fixture
def opened(offline, built):
    """Opens a page of the site; a request that leaves its folder or fails, and any complaint, is a failure."""
    complaints, page = [], offline.new_page()

    def failed(request):
        if request.failure != "net::ERR_ABORTED":  # the page was left before its icon had come
            complaints.append(f"{request.failure}: {request.url[:200]}")

    allowed = (f"{site.SITE.as_uri()}/", "data:")
    page.on("request", lambda request: request.url.startswith(allowed) or complaints.append(request.url))
    page.on("requestfailed", failed)
    page.on("console", lambda message: message.type == "log" or complaints.append(message.text))
    page.on("pageerror", lambda error: complaints.append(str(error)))

    def open_(name):
        page.goto(f"{site.SITE.as_uri()}/{name}")
        return page

    yield open_
    page.close()
    assert complaints == []


def set_theme(page, theme):
    page.evaluate("theme => { document.body.dataset.theme = theme; }", theme)


def findings(page):
    """What axe finds that is serious; it is not to fetch the style sheets once more, which a file may not."""
    found = AXE.run(page, options={"resultTypes": ["violations"], "preload": False}).response["violations"]
    return [
        f"{rule['id']}: {node['target']} {node['failureSummary']}"
        for rule in found
        if rule["impact"] in ("serious", "critical")
        for node in rule["nodes"]
    ]


def overflow(page):
    """By how many px something stands out of the text's column: Furo hides that, or scrolls the whole column."""
    return page.evaluate(
        """Math.max(...[document.documentElement, ...document.querySelectorAll('.page, .main, .content')]
            .map(box => box.scrollWidth - box.clientWidth))"""
    )


@pytest.mark.parametrize("name", PAGES)
def test_a_page(name, opened):
    page = opened(name)
    images = "[...document.images].map(image => [image.alt, image.complete && image.naturalWidth])"
    assert [alt for alt, width in page.evaluate(images) if not alt.strip() or not width] == []
    SCREENS.mkdir(parents=True, exist_ok=True)
    for width, theme in ((1280, "light"), (390, "dark")):
        page.set_viewport_size({"width": width, "height": 900})
        set_theme(page, theme)
        assert overflow(page) <= 0, f"{width} px"
        if theme == "dark" or name in SOME:
            assert findings(page) == []
        height = page.evaluate("document.documentElement.scrollHeight")
        browser.photograph(page, SCREENS / f"{Path(name).stem}-{theme}-{width}.jpg", height=height)


def test_an_open_solution_stays_in_the_page_and_is_readable(opened):
    page = opened("notebooks/06-two-layers.html")
    page.set_viewport_size({"width": 390, "height": 900})
    for fold in page.locator("article details").all():
        fold.evaluate("fold => { fold.open = true; }")
    page.wait_for_timeout(50)  # the boxes that scroll are looked for when the event has come
    assert overflow(page) <= 0
    assert findings(page) == []


def test_figures_step_by_keyboard(opened):
    page = opened("notebooks/06-two-layers.html")
    figure = page.locator("[data-steps]").first
    said = "figure => figure.shadowRoot.querySelector('output').textContent"
    figure.focus()
    seen = [figure.evaluate(said)]
    for _press in range(3):
        page.keyboard.press("ArrowRight")
        seen.append(figure.evaluate(said))
    assert len(set(seen)) == 4
    page.keyboard.press("Home")
    assert figure.evaluate(said) == seen[0]
    assert page.url.endswith("notebooks/06-two-layers.html")


def test_the_theme_is_chosen_and_kept(opened):
    page = opened(PAGES[2])
    ground = "getComputedStyle(document.body).backgroundColor"
    button = page.locator("button.theme-toggle:visible")
    seen = {page.evaluate("document.body.dataset.theme"): page.evaluate(ground)}
    for _press in range(3):
        button.click()
        seen[page.evaluate("document.body.dataset.theme")] = page.evaluate(ground)
    assert seen.keys() == {"auto", "light", "dark"}
    assert seen["light"] != seen["dark"]
    while page.evaluate("document.body.dataset.theme") != "dark":
        button.click()
    page.locator("a.next-page").click()
    assert page.evaluate(ground) == seen["dark"]


def test_previous_and_next_lead_through_all_pages(opened):
    page = opened("index.html")
    hrefs = {}
    for name in PAGES:
        content = soup(name)
        folder = (site.SITE / name).parent
        for way in ("next-page", "prev-page"):
            link = content.select_one(f"a.{way}")
            if link is not None:
                hrefs[name, way] = (folder / link["href"]).resolve().relative_to(site.SITE).as_posix()
    walked = ["index.html"]
    while (after := hrefs.get((walked[-1], "next-page"))) is not None:
        assert hrefs[after, "prev-page"] == walked[-1]
        walked.append(after)
    assert sorted(walked) == sorted(set(PAGES) - {"search.html"})
    page.locator("a.next-page").click()
    assert page.url == (site.SITE / walked[1]).as_uri()


def test_a_search_finds(opened):
    page = opened("search.html?q=planner")
    page.locator("#search-results a", has_text="07b").first.wait_for()


def test_served_from_a_folder(chromium):
    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=site.SITE)) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        home, page, complaints = f"http://127.0.0.1:{server.server_port}/", chromium.new_page(), []
        page.on("request", lambda request: request.url.startswith((home, "data:")) or complaints.append(request.url))
        page.on("response", lambda response: response.status < 400 or complaints.append(response.url))
        page.on("console", lambda message: complaints.append(message.text))
        page.goto(home)
        page.locator("a.next-page").click()
        assert page.get_by_role("heading", level=1).is_visible()
        page.close()
        server.shutdown()
    assert complaints == []
