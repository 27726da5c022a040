"""How long a step of a figure takes in JupyterLab: from a key press until the browser draws its next frame with it.

`python -m benchmarks.stepper_jupyterlab` runs a notebook of figures to step through on 2, 4 and 8 ranks in a real
JupyterLab in a real Chromium, presses the arrow key, and prints the median and the 90th percentile of 20 presses, in
milliseconds. The exit code is 1 if a median is above 30. `benchmarks.stepper` does the same on a page of its own.
"""

import statistics
import sys
import tempfile
from pathlib import Path

import nbformat

from benchmarks.stepper import LIMIT_MS, PRESSES, figure, presses
from tools.browser import BrowserError, chromium, jupyterlab, open_notebook
from tools.notebooks import KERNELSPEC

RANKS = (2, 4, 8)


def measured() -> dict[int, list[float]]:
    """The times of the figure on so many ranks."""
    cells = ["from benchmarks.stepper import figure", *(f"figure({ranks})" for ranks in RANKS)]
    nb = nbformat.v4.new_notebook(
        cells=[nbformat.v4.new_code_cell(cell) for cell in cells], metadata={"kernelspec": KERNELSPEC}
    )
    with tempfile.TemporaryDirectory(prefix="tpviz-stepper-") as folder:
        nbformat.write(nb, Path(folder) / "steppers.ipynb")
        with (
            jupyterlab(Path(folder)) as server,
            chromium() as browser,
            open_notebook(browser, server, "steppers.ipynb") as notebook,
        ):
            notebook.run_all()
            if problems := notebook.problems():
                raise BrowserError("\n".join(problems))
            figures = zip(RANKS, notebook.page.locator("[data-steps]").all(), strict=True)
            return {ranks: presses(shown, len(figure(ranks).steps) - 1) for ranks, shown in figures}


def main() -> int:
    """Print a line for each number of ranks."""
    slow = 0
    print(f"{'figure':12}  median   p90   (ms, {PRESSES} key presses in JupyterLab; limit {LIMIT_MS})")
    for ranks, times in measured().items():
        median, p90 = statistics.median(times), statistics.quantiles(times, n=10)[-1]
        slow += median > LIMIT_MS
        print(f"{ranks} ranks".ljust(12) + f"  {median:6.1f}  {p90:4.1f}")
    return 1 if slow else 0


if __name__ == "__main__":
    sys.exit(main())
