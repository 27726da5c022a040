"""How long a step of a figure takes: from a key press until the browser draws its next frame with it.

`python -m benchmarks.stepper` opens figures to step through on 2, 4 and 8 ranks on a page in a real Chromium, with no
kernel, presses the arrow key, and prints the median and the 90th percentile of 20 presses, in milliseconds. The exit
code is 1 if a median is above 30.
"""

import statistics
import sys
import tempfile
import time
from pathlib import Path

from playwright.sync_api import Locator

from tools.browser import chromium
from tpviz import diagrams, widgets
from tpviz.diagrams.stepping import Stepper
from tpviz.example import W, X, dY

PRESSES = 20
WARM_UP = 3
PAUSE = 0.1
"""Seconds that a learner looks before the next press."""
LIMIT_MS = 30

WATCH = """figure => {
    const root = figure.shadowRoot, said = () => root.querySelector('.count').textContent;
    window.press = new Promise(resolve => {
        figure.addEventListener('keydown', event => {
            const pressed = event.timeStamp, before = said();
            // A frame's callback comes before it is drawn; the next one's after.
            const drawn = () => requestAnimationFrame(() => resolve(performance.now() - pressed));
            const look = () => requestAnimationFrame(said() === before ? look : drawn);
            requestAnimationFrame(() => said() === before ? look() : drawn());
        }, {capture: true, once: true});
    });
}"""


def figure(ranks: int) -> Stepper:
    """The column layer, there and back."""
    wholes = {"X": X, "Y": X @ W, "dY": dY, "G": dY @ W.T, "dX": dY @ W.T}
    run, _row = widgets.compute_both_layers(ranks)
    return diagrams.stepper(run, wholes, "X → @ W → Y", "dY → @ Wᵀ → G → all_reduce → dX")


def presses(shown: Locator, last: int) -> list[float]:
    """Milliseconds of so many key presses, back and forth between the first step and the last."""
    times, at, way = [], 0, 1
    for _press in range(WARM_UP + PRESSES):
        way = {0: 1, last: -1}.get(at, way)
        at += way
        shown.evaluate(WATCH)
        shown.press("ArrowRight" if way > 0 else "ArrowLeft")
        times.append(float(shown.page.evaluate("window.press")))
        time.sleep(PAUSE)
    return times[WARM_UP:]


def main() -> int:
    """Print a line for each number of ranks."""
    slow = 0
    print(f"{'figure':12}  median   p90   (ms, {PRESSES} key presses; limit {LIMIT_MS})")
    with tempfile.TemporaryDirectory(prefix="tpviz-stepper-") as folder, chromium() as browser:
        for ranks in (2, 4, 8):
            stepper = figure(ranks)
            path = Path(folder) / f"{ranks}.html"
            path.write_text(f"<!doctype html><meta charset=utf-8>{stepper.html}", encoding="utf-8")
            page = browser.new_page()
            page.goto(path.as_uri())
            times = presses(page.locator("[data-steps]"), len(stepper.steps) - 1)
            page.close()
            median, p90 = statistics.median(times), statistics.quantiles(times, n=10)[-1]
            slow += median > LIMIT_MS
            print(f"{ranks} ranks".ljust(12) + f"  {median:6.1f}  {p90:4.1f}")
    return 1 if slow else 0


if __name__ == "__main__":
    sys.exit(main())
