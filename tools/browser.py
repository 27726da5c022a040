"""A maintainer's tool: a real JupyterLab in a real Chromium, for looking at notebooks and for the browser tests.

The server has a token, listens on loopback, and keeps its settings and signatures in a folder of its own: to it every
notebook is one from elsewhere, as to a learner who has just cloned. It ends when this process does, however that ends:
it holds the read end of a pipe, and leaves when the pipe breaks.
"""

import base64
import json
import os
import re
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, cast
from urllib.parse import quote

from playwright.sync_api import Browser, Locator, Page, Request, Route, ViewportSize, sync_playwright

ROOT = Path(__file__).resolve().parent.parent
SCREENS = ROOT / "build" / "screens"
START_TIMEOUT = 60
"""Seconds until the server answers: imports from a cold disk on two cores."""
RUN_TIMEOUT = 120
"""Seconds for a whole notebook."""
CHANGE_TIMEOUT = 10
"""Seconds until a picture has followed its slider, on a busy machine."""

WINDOW: ViewportSize = {"width": 1280, "height": 900}

CHROMIUM = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
APPLICATIONS = (
    "/Applications/Google Chrome.app/Contents/MacOS/Google Chrome",
    "/Applications/Chromium.app/Contents/MacOS/Chromium",
    r"C:\Program Files\Google\Chrome\Application\chrome.exe",
)
CHROMIUM_ARGUMENTS = (
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--disable-component-update",
    "--no-first-run",
)


class BrowserError(Exception):
    """JupyterLab or Chromium did not do what was asked; the message says what was seen."""


# The server


@dataclass(frozen=True)
class Server:
    """A running JupyterLab."""

    url: str
    token: str
    folder: Path
    """The folder whose notebooks it serves."""


def _settings(dark: bool) -> dict[str, dict[str, Any]]:
    """JupyterLab's user settings: nothing that asks the network, and every cell in the page at once."""
    return {
        "notebook-extension/tracker": {"windowingMode": "none", "scrollPastEnd": False},
        "apputils-extension/notification": {"fetchNews": "false", "checkForUpdates": False},
        "apputils-extension/themes": {"theme": "JupyterLab Dark" if dark else "JupyterLab Light"},
    }


def _leave_with_parent() -> None:
    """In the server's process: stop, kernels included, when the process that started it is gone."""
    sys.stdin.buffer.read()
    os.kill(os.getpid(), signal.SIGTERM)


def _serve(arguments: list[str]) -> None:
    from jupyterlab.labapp import LabApp

    threading.Thread(target=_leave_with_parent, daemon=True).start()
    LabApp.launch_instance(arguments)


def _wait_for_url(process: "subprocess.Popen[bytes]", runtime: Path, log: Path) -> str:
    """The address that the server has taken, as soon as it answers there."""
    deadline = time.monotonic() + START_TIMEOUT
    while process.poll() is None and time.monotonic() < deadline:
        for path in runtime.glob("jpserver-*.json"):
            try:
                facts = json.loads(path.read_text(encoding="utf-8"))
                # Its address is written down a moment before it listens there.
                socket.create_connection((facts["hostname"], facts["port"]), timeout=1).close()
            except (json.JSONDecodeError, OSError):
                continue
            return str(facts["url"])
        time.sleep(0.05)
    raise BrowserError(f"JupyterLab did not start:\n{log.read_text(encoding='utf-8', errors='replace')}")


@contextmanager
def jupyterlab(folder: Path, *, dark: bool = False) -> Iterator[Server]:
    """A JupyterLab that serves the folder; it and its kernels end with the block."""
    with TemporaryDirectory(prefix="tpviz-jupyter-", ignore_cleanup_errors=True) as place:
        home, token = Path(place), secrets.token_hex(16)
        for name, values in _settings(dark).items():
            path = home / "settings" / "@jupyterlab" / f"{name}.jupyterlab-settings"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps(values), encoding="utf-8")
        places = {
            "JUPYTER_CONFIG_DIR": "config",
            "JUPYTER_DATA_DIR": "data",
            "JUPYTER_RUNTIME_DIR": "runtime",
            "JUPYTERLAB_SETTINGS_DIR": "settings",
            "JUPYTERLAB_WORKSPACES_DIR": "workspaces",
            "IPYTHONDIR": "ipython",
        }
        environment = {**os.environ, **{name: str(home / part) for name, part in places.items()}}
        environment.setdefault("TPVIZ_PROGRESS", "off")  # what is looked at is what a learner begins with
        environment |= {"LANGUAGE": "en", "JUPYTER_TOKEN": token, "PYTHONPATH": str(ROOT)}
        log = home / "log"
        with log.open("wb") as log_file:
            process = subprocess.Popen(
                [
                    *(sys.executable, "-m", "tools.browser", "--no-browser", "--ip=127.0.0.1", "--port=0"),
                    *("--allow-root", "--expose-app-in-browser", "--LabApp.extension_manager=readonly"),
                    "--LanguageServerManager.autodetect=False",
                    f"--ServerApp.root_dir={folder.resolve()}",
                ],
                env=environment,
                stdin=subprocess.PIPE,
                stdout=log_file,
                stderr=subprocess.STDOUT,
            )
        assert process.stdin is not None
        try:
            yield Server(_wait_for_url(process, home / "runtime", log), token, folder)
        finally:
            process.stdin.close()
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


# The browser


def find_chromium() -> str | None:
    """A Chromium or Chrome of this machine."""
    found = next(filter(None, map(shutil.which, CHROMIUM)), None)
    return found or next((path for path in APPLICATIONS if Path(path).exists()), None)


def photograph(page: Page, path: Path, *, top: int = 0, height: int | None = None) -> None:
    """A picture of a page, or of a stripe of it, PNG or JPEG; Playwright's own take two to three times as long."""
    size = page.viewport_size
    assert size is not None
    height = height or size["height"]
    clip = {"x": 0, "y": top, "width": size["width"], "height": height, "scale": 1}
    asked: dict[str, Any] = {"format": "png"} if path.suffix == ".png" else {"format": "jpeg", "quality": 85}
    if top + height > size["height"]:  # else the page would be laid out anew for nothing
        asked["captureBeyondViewport"] = True
    camera = page.context.new_cdp_session(page)
    taken = camera.send("Page.captureScreenshot", {**asked, "clip": clip, "optimizeForSpeed": True})
    camera.detach()
    path.write_bytes(base64.b64decode(taken["data"]))


@contextmanager
def chromium() -> Iterator[Browser]:
    """A headless Chromium; it ends with the block."""
    executable = find_chromium()
    if executable is None:
        raise BrowserError(
            f"no Chromium on this machine (looked for {', '.join(CHROMIUM)}); Debian: apt install chromium"
        )
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=executable, args=list(CHROMIUM_ARGUMENTS))
        try:
            yield browser
        finally:
            browser.close()


@dataclass
class Notebook:
    """A notebook that is open in JupyterLab: what a visitor can see of it and do with it."""

    page: Page
    complaints: list[str] = field(default_factory=list)
    """What the page complained about in the console, and what it asked of the network."""

    def wait_open(self) -> None:
        """Wait until the notebook is on the page and its kernel answers."""
        self.page.wait_for_function(
            "() => window.jupyterapp?.shell.currentWidget?.sessionContext", timeout=START_TIMEOUT * 1000
        )
        self._within(
            START_TIMEOUT,
            """(async () => {
                const widget = window.jupyterapp.shell.currentWidget;
                await Promise.all([widget.context.ready, widget.revealed, widget.sessionContext.ready]);
                await widget.sessionContext.session.kernel.info;
            })()""",
        )
        self.settle()

    def turn_to(self, name: str) -> None:
        """Open another notebook in place of this one, whose kernel ends: JupyterLab itself need not start anew."""
        self.complaints.clear()
        self.page.set_viewport_size(WINDOW)
        self._within(
            START_TIMEOUT,
            f"""(async () => {{
                const app = window.jupyterapp, last = app.shell.currentWidget;
                await last.sessionContext.session.kernel.requestKernelInfo();  // its last question is answered, then
                void last.sessionContext.shutdown();  // takes a second, for which nobody need wait
                last.dispose();
                await app.commands.execute('docmanager:open', {{path: {json.dumps(name)}}});
            }})()""",
        )
        self.wait_open()

    def run_all(self) -> None:
        """Run all cells, as the menu's Run All Cells does, and wait until the kernel is idle and pictures are there."""
        self._within(RUN_TIMEOUT, "window.jupyterapp.commands.execute('notebook:run-all-cells')")
        self.wait_idle()
        self.settle()

    def _within(self, seconds: int, promise: str) -> None:
        """Wait for a promise of the page, which Playwright itself would wait for without an end."""
        late = self.page.evaluate(
            f"seconds => Promise.race([{promise}.then(() => false),"
            " new Promise(resolve => setTimeout(() => resolve(true), seconds * 1000))])",
            seconds,
        )
        if late:
            raise BrowserError(f"JupyterLab was not done after {seconds} s with {promise}")

    def wait_idle(self) -> None:
        """Wait until the kernel has nothing to do."""
        self.page.wait_for_selector('.jp-Notebook-ExecutionIndicator[data-status="idle"]', timeout=RUN_TIMEOUT * 1000)

    def settle(self) -> None:
        """Wait until all pictures are decoded and the page's height stands still."""
        self.page.evaluate(
            """async () => {
                await Promise.all([...document.images].map(image => image.decode().catch(() => null)));
                await document.fonts.ready;
                const height = () => document.querySelector('.jp-WindowedPanel-outer').scrollHeight;
                for (let last = -1, same = 0; same < 5;) {
                    await new Promise(requestAnimationFrame);
                    same = height() === last ? same + 1 : 0;
                    last = height();
                }
            }"""
        )

    def content(self) -> dict[str, Any]:
        """The notebook as it would be saved now."""
        return cast(dict[str, Any], self.page.evaluate("window.jupyterapp.shell.currentWidget.content.model.toJSON()"))

    def errors(self) -> list[str]:
        """What went wrong in cells that were not meant to: one line each."""
        return [
            f"cell {number} ({cell['id']}): {output['ename']}: {output['evalue']}"
            for number, cell in enumerate(self.content()["cells"], 1)
            if "raises-exception" not in cell["metadata"].get("tags", [])
            for output in cell.get("outputs", [])
            if output["output_type"] == "error"
        ]

    def pictures(self) -> list[dict[str, Any]]:
        """The pictures on the page: alt, natural width and width as shown, and the number of the cell.

        A figure that steps has its picture, an SVG, in a shadow tree.
        """
        return cast(
            list[dict[str, Any]],
            self.page.evaluate(
                """() => [...document.querySelectorAll('.jp-Notebook .jp-Cell')].flatMap((cell, index) =>
                    [...cell.querySelectorAll('img, [data-steps]')].flatMap(found => {
                        const image = found.shadowRoot ? found.shadowRoot.querySelector('svg') : found;
                        if (image.tagName === 'DIV') return [];  // its still is an image of its own
                        return [{alt: image.alt ?? image.getAttribute('aria-label'), cell: index + 1,
                            natural: image.naturalWidth ?? +image.getAttribute('width'),
                            shown: image.getBoundingClientRect().width}];
                    }))"""
            ),
        )

    def problems(self) -> list[str]:
        """All that is wrong with the page as it is now, one line each."""
        found = self.errors() + self.complaints
        for picture in self.pictures():
            for bad, problem in (
                (not picture["alt"].strip(), "without a text alternative"),
                (picture["natural"] == 0, f"that does not load: {picture['alt']!r}"),
                (picture["shown"] == 0, f"that is not visible: {picture['alt']!r}"),
            ):
                if bad:
                    found.append(f"cell {picture['cell']}: a picture {problem}")
        lost = self.page.get_by_text(re.compile("Error displaying widget|Loading widget"))
        return found + [f"a widget without its model: {text}" for text in lost.all_inner_texts()]

    def trusted(self) -> bool:
        """Whether JupyterLab trusts any of the outputs on the page."""
        cells = "window.jupyterapp.shell.currentWidget.content.widgets"
        return bool(self.page.evaluate(f"{cells}.some(cell => cell.model.type === 'code' && cell.model.trusted)"))

    def sliders(self) -> list[Locator]:
        """The sliders on the page that have a picture with them."""
        widgets = self.page.locator(".jp-OutputArea-output", has=self.page.locator(".jupyter-widgets img"))
        return widgets.locator("[role=slider]").all()

    def move(self, slider: Locator, times: int) -> list[float]:
        """Move a slider by its arrow keys, and back from where it ends.

        The answer is the milliseconds from each key press until the picture with it has changed; shorter than asked if
        it did not change.
        """
        slider.evaluate(
            """node => {
                const area = node.closest('.jp-OutputArea-output');
                const pictures = () => [...area.querySelectorAll('img')].map(image => image.src).join();
                let pressed = 0, before, done;
                node.expectChange = milliseconds => { node.changed = new Promise(resolve => {
                    done = resolve;
                    setTimeout(resolve, milliseconds, null);
                }); };
                node.addEventListener('keydown', () => { pressed = performance.now(); before = pictures(); }, true);
                new MutationObserver(() => {
                    if (pressed && pictures() !== before) { done(performance.now() - pressed); pressed = 0; }
                }).observe(area, {subtree: true, childList: true, attributes: true});
            }"""
        )
        key = "ArrowRight"
        measured: list[float] = []
        for _step in range(times):
            at, *ends = slider.evaluate(
                """(node, milliseconds) => {
                    node.expectChange(milliseconds);
                    return ['Now', 'Min', 'Max'].map(each => +node[`ariaValue${each}`]);
                }""",
                CHANGE_TIMEOUT * 1000,
            )
            if at in ends:
                key = "ArrowRight" if at == ends[0] else "ArrowLeft"
            slider.press(key)
            took = slider.evaluate("node => node.changed")
            if took is None:
                break
            measured.append(took)
        return measured

    def stretch(self) -> list[tuple[int, int]]:
        """Make the window as tall as the notebook; top and bottom of each cell, from the window's top."""
        size = self.page.viewport_size
        assert size is not None
        for _attempt in range(3):  # a scroll bar that goes may reflow the text
            missing = self.page.evaluate(
                """() => { const outer = document.querySelector('.jp-WindowedPanel-outer');
                           return outer.scrollHeight - outer.clientHeight; }"""
            )
            if missing <= 0:
                break
            size["height"] += missing
            self.page.set_viewport_size(size)
            self.settle()
        return cast(
            list[tuple[int, int]],
            self.page.evaluate(
                """() => [...document.querySelectorAll('.jp-Notebook .jp-Cell')].map(cell => {
                    const box = cell.getBoundingClientRect(); return [Math.floor(box.top), Math.ceil(box.bottom)]; })"""
            ),
        )

    def screenshots(self, name: str, *, height: int = 1600, folder: Path = SCREENS) -> list[Path]:
        """Pictures of the whole notebook, NAME-01.png and so on, cut between cells."""
        folder.mkdir(parents=True, exist_ok=True)
        for old in folder.glob(f"{name}-[0-9][0-9].png"):
            old.unlink()
        cells = self.stretch()
        size = self.page.viewport_size
        assert size is not None
        cuts = [0]
        for (_top, bottom), (_next_top, next_bottom) in zip(cells, [*cells[1:], (0, size["height"])], strict=True):
            if next_bottom - cuts[-1] > height:
                cuts.append(bottom)
        cuts = [*[cut for cut in cuts if cut < size["height"]], size["height"]]
        paths = []
        for number, (top, bottom) in enumerate(pairwise(cuts), 1):
            paths.append(folder / f"{name}-{number:02}.png")
            photograph(self.page, paths[-1], top=top, height=bottom - top)
        return paths


@contextmanager
def open_notebook(browser: Browser, server: Server, name: str, *, width: int = WINDOW["width"]) -> Iterator[Notebook]:
    """The notebook, opened alone as a visitor's browser opens it: a kernel starts, nothing is run."""
    context = browser.new_context(viewport={**WINDOW, "width": width}, reduced_motion="reduce")
    page = context.new_page()
    notebook = Notebook(page)

    def keep_home(route: Route, request: Request) -> None:
        if request.url.startswith((server.url, "data:", "blob:")):
            route.continue_()
        else:
            notebook.complaints.append(f"asks the network for {request.url}")
            route.abort()

    try:
        page.route(lambda url: not url.startswith(server.url), keep_home)
        page.on("pageerror", lambda error: notebook.complaints.append(f"a script failed: {error}"))
        page.goto(f"{server.url}doc/tree/{quote(name)}?token={server.token}")
        notebook.wait_open()
        yield notebook
    finally:
        context.close()


if __name__ == "__main__":
    _serve(sys.argv[1:])
