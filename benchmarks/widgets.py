"""How long a learner waits: from a key press on a slider or a figure until the picture on the screen is another.

`python -m benchmarks.widgets` opens what stands in the notebooks in a real JupyterLab in a real Chromium: each widget,
and the notebooks that have figures to step through. It moves each slider and each figure by the arrow keys, and prints
the median and the 90th percentile of 20 key presses in milliseconds, the goal, and the median divided by the goal. A
press ends when the new picture is decoded and the browser draws its next frame. The exit code is 1 if a median is above
its goal: 50 for a diagram, 150 for a chart, which matplotlib draws, 30 for a step of a figure. Words behind the command
choose the lines whose names hold one of them: `python -m benchmarks.widgets ring speed_map`.

The first line is a slider that only swaps two pictures which are there already: what JupyterLab and the machine take
by themselves.
"""

import re
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import nbformat
from playwright.sync_api import Browser, Locator

from benchmarks import stepper
from tools import notebooks
from tools.browser import BrowserError, Notebook, Server, chromium, jupyterlab, open_notebook
from tpviz import widgets
from tpviz.widgets import costs

READY = """import ipywidgets
svg = "<svg xmlns=%22http://www.w3.org/2000/svg%22 width=%22{n}0%22 height=%2210%22/>"
pictures = [f"<img alt='{n}' src='data:image/svg+xml,{svg.format(n=n)}'>" for n in "12"]
slider, picture = ipywidgets.IntSlider(max=5, description="ready"), ipywidgets.HTML(pictures[0])
slider.observe(lambda change: setattr(picture, "value", pictures[change["new"] % 2]), "value")
ipywidgets.VBox([slider, picture])"""
PRESSES = 20
WARM_UP = 3
PAUSE = 0.1
"""Seconds that a learner looks before the next press."""
GOALS = {"diagram": 50, "chart": 150, "step": stepper.LIMIT_MS}
"""Milliseconds."""
NOTHING = "nothing to compute"


class Line(NamedTuple):
    """What was moved, of which kind, and how long each press took in ms."""

    name: str
    kind: str
    times: list[float]

    @property
    def ratio(self) -> float:
        """The median divided by the goal."""
        return statistics.median(self.times) / GOALS[self.kind]


# What stands in the notebooks


def used_widgets() -> list[str]:
    """The names of the widgets, in the notebooks' order."""
    found = [
        name
        for path in sorted(notebooks.NOTEBOOKS.glob("*.ipynb"))
        for cell in notebooks.read(path).cells
        if cell.cell_type == "code"
        for name in re.findall(r"\bwidgets\.(\w+)\(\)", cell.source)
    ]
    return list(dict.fromkeys(found))


def with_steppers() -> list[Path]:
    """The notebooks that have figures to step through."""
    paths = sorted(notebooks.NOTEBOOKS.glob("*.ipynb"))
    return [path for path in paths if "data-steps" in path.read_text(encoding="utf-8")]


def kind_of(widget: str) -> str:
    """Whether matplotlib draws it."""
    return "chart" if getattr(widgets, widget).__module__ == costs.__name__ else "diagram"


# Measuring

# `window.press` is a promise of how long the next key press takes. The picture is looked for anew each time, since a
# new <img> takes the place of the old one. Nothing polls: on a machine of two cores that slows down what is measured.
WATCH = """handle => {
    const area = handle.closest('.jp-OutputArea-output');
    const picture = () => area.querySelector('img');
    window.press = new Promise(resolve => {
        let pressed, before;
        handle.addEventListener('keydown', () => { pressed = performance.now(); before = picture().src; },
            {capture: true, once: true});
        const observer = new MutationObserver(async () => {
            if (pressed === undefined || picture().src === before) return;
            observer.disconnect();
            await picture().decode();
            requestAnimationFrame(() => resolve(performance.now() - pressed));
        });
        observer.observe(area, {subtree: true, childList: true, attributes: true});
    });
}"""


def presses(notebook: Notebook, slider: Locator) -> list[float]:
    """Milliseconds of so many key presses on a slider, back and forth between its ends."""
    last = float(slider.get_attribute("aria-valuemax") or 0)
    key, times = "ArrowRight", []
    for _press in range(WARM_UP + PRESSES):
        key = {0.0: "ArrowRight", last: "ArrowLeft"}.get(float(slider.get_attribute("aria-valuenow") or 0), key)
        slider.evaluate(WATCH)
        slider.press(key)
        times.append(float(notebook.page.evaluate("window.press")))
        time.sleep(PAUSE)
    return times[WARM_UP:]


def run(notebook: Notebook) -> None:
    """Run all cells, with nothing gone wrong."""
    notebook.run_all()
    if problems := notebook.problems():
        raise BrowserError("\n".join(problems))


def of_widgets(browser: Browser, server: Server, names: Sequence[str]) -> Iterator[Line]:
    """Each slider of each widget, all of them in one notebook."""
    cells = ["from tpviz import widgets", READY, *(f"widgets.{name}()" for name in names)]
    nb = nbformat.v4.new_notebook(
        cells=[nbformat.v4.new_code_cell(cell) for cell in cells], metadata={"kernelspec": notebooks.KERNELSPEC}
    )
    nbformat.write(nb, server.folder / "widgets.ipynb")
    with open_notebook(browser, server, "widgets.ipynb") as notebook:
        run(notebook)
        areas = notebook.page.locator(".jp-OutputArea-output", has=notebook.page.locator(".jupyter-widgets img"))
        for name, area in zip([NOTHING, *names], areas.all(), strict=True):
            sliders = area.get_by_role("slider").all()
            labels = area.locator(".widget-label").all_inner_texts()  # those of the sliders come first
            for label, slider in zip(labels, sliders, strict=False):
                kind = "diagram" if name == NOTHING else kind_of(name)
                yield Line(f"{name}, {label}", kind, presses(notebook, slider))


def of_steppers(browser: Browser, server: Server, path: Path) -> Iterator[Line]:
    """Each figure to step through of a notebook."""
    (server.folder / path.name).write_bytes(path.read_bytes())
    with open_notebook(browser, server, path.name) as notebook:
        run(notebook)
        for number, shown in enumerate(notebook.page.locator("[data-steps]").all(), 1):
            last = int(shown.locator("input").get_attribute("max") or 0)
            yield Line(f"{path.name.partition('-')[0]}, figure {number}", "step", stepper.presses(shown, last))


def measured(words: Sequence[str]) -> Iterator[Line]:
    """The lines whose names hold one of the words; without words, all of them."""

    def wanted(name: str) -> bool:
        return not words or any(word in name for word in words)

    with (
        tempfile.TemporaryDirectory(prefix="tpviz-widgets-") as folder,
        jupyterlab(Path(folder)) as server,
        chromium() as browser,
    ):
        if names := [name for name in used_widgets() if wanted(name)]:
            yield from of_widgets(browser, server, names)
        for path in with_steppers():
            if wanted(path.stem):
                yield from of_steppers(browser, server, path)


def main(words: Sequence[str]) -> int:
    """Print a line for each slider and each figure."""
    print(f"{'what is moved':34}  median   p90  goal  ratio   (ms, {PRESSES} key presses)")
    slow = 0
    for line in measured(words):
        median, p90 = statistics.median(line.times), statistics.quantiles(line.times, n=10)[-1]
        slow += line.ratio > 1
        print(f"{line.name:34}  {median:6.0f}  {p90:4.0f}  {GOALS[line.kind]:4}  {line.ratio:5.2f}", flush=True)
    return 1 if slow else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
