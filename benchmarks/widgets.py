"""How long a learner waits: from a key press on a widget's slider until the picture on the screen is another.

`python -m benchmarks.widgets` opens each widget of tpviz in a real JupyterLab in a real Chromium, moves each of its
sliders by the arrow keys, and prints the median and the 90th percentile of 20 key presses, in milliseconds. A press
ends when the new picture is decoded and the browser draws its next frame. The exit code is 1 if a median is above 50,
or above 150 for the charts, which matplotlib draws.

The first line is a slider that only swaps two pictures which are there already: what JupyterLab and the machine take
by themselves.
"""

import statistics
import sys
import tempfile
import time
from pathlib import Path

import nbformat
from playwright.sync_api import Locator

from tools.browser import BrowserError, Notebook, chromium, jupyterlab, open_notebook
from tools.notebooks import KERNELSPEC

READY = """import ipywidgets
svg = "<svg xmlns=%22http://www.w3.org/2000/svg%22 width=%22{n}0%22 height=%2210%22/>"
pictures = [f"<img alt='{n}' src='data:image/svg+xml,{svg.format(n=n)}'>" for n in "12"]
slider, picture = ipywidgets.IntSlider(max=5, description="ready"), ipywidgets.HTML(pictures[0])
slider.observe(lambda change: setattr(picture, "value", pictures[change["new"] % 2]), "value")
ipywidgets.VBox([slider, picture])"""
CHARTS = ("layer_times", "speed_map", "ways")
"""Drawn by matplotlib, and therefore slower."""
WIDGETS = (
    *("column_entry", "row_entry", "work", "collectives"),
    *("contributions", "paths", "copies", "both_layers", "mesh", "addends"),
    *CHARTS,
)
PRESSES = 20
WARM_UP = 3
PAUSE = 0.1
"""Seconds that a learner looks before the next press."""
LIMIT_MS, CHART_LIMIT_MS = 50, 150

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


def measured() -> dict[str, list[float]]:
    """The times of each slider of each widget, by its label."""
    cells = ["from tpviz import widgets", READY, *(f"widgets.{name}()" for name in WIDGETS)]
    nb = nbformat.v4.new_notebook(
        cells=[nbformat.v4.new_code_cell(cell) for cell in cells], metadata={"kernelspec": KERNELSPEC}
    )
    found: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory(prefix="tpviz-widgets-") as folder:
        nbformat.write(nb, Path(folder) / "widgets.ipynb")
        with (
            jupyterlab(Path(folder)) as server,
            chromium() as browser,
            open_notebook(browser, server, "widgets.ipynb") as notebook,
        ):
            notebook.run_all()
            if problems := notebook.problems():
                raise BrowserError("\n".join(problems))
            areas = notebook.page.locator(".jp-OutputArea-output", has=notebook.page.locator(".jupyter-widgets img"))
            for name, area in zip(["nothing to compute", *WIDGETS], areas.all(), strict=True):
                labels = area.locator(".widget-label").all_inner_texts()
                for label, slider in zip(labels, area.get_by_role("slider").all(), strict=False):
                    found[f"{name}, {label}"] = presses(notebook, slider)
    return found


def main() -> int:
    """Print a line for each slider."""
    slow = 0
    print(f"{'widget, slider':28}  median   p90   (ms, {PRESSES} key presses)")
    for label, times in measured().items():
        median, p90 = statistics.median(times), statistics.quantiles(times, n=10)[-1]
        slow += median > (CHART_LIMIT_MS if label.startswith(CHARTS) else LIMIT_MS)
        print(f"{label:28}  {median:6.0f}  {p90:4.0f}")
    return 1 if slow else 0


if __name__ == "__main__":
    sys.exit(main())
