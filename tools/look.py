"""A maintainer's tool: pictures of notebooks as JupyterLab shows them, so that somebody can look at every page.

    python -m tools.look notebooks/01-*.ipynb            as a visitor finds it, before anything is run
    python -m tools.look notebooks/01-*.ipynb --run      after Run All Cells
    python -m tools.look ... --dark --width 480          another theme, a phone's width

The pictures are build/screens/NAME-01.png and so on, cut between cells. Whatever went wrong on the page is printed, and
makes the exit code 1. The notebooks themselves are not touched: JupyterLab gets copies.
"""

import argparse
import os
import shutil
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from tools.browser import BrowserError, chromium, jupyterlab, open_notebook


def look(paths: Sequence[Path], *, run: bool, dark: bool, width: int) -> int:
    """Take the pictures of each notebook; the number of problems seen on the pages."""
    problems = 0
    with TemporaryDirectory(prefix="tpviz-look-") as place:
        for path in paths:
            shutil.copy(path, place)
        with jupyterlab(Path(place), dark=dark) as server, chromium() as browser:
            for path in paths:
                with open_notebook(browser, server, path.name, width=width) as notebook:
                    if run:
                        notebook.run_all()
                    for picture in notebook.screenshots(path.stem):
                        print(os.path.relpath(picture))
                    for problem in notebook.problems():
                        problems += 1
                        print(f"  {path.name}: {problem}")
    return problems


def _stop(_number: int, _frame: object) -> None:
    sys.exit(143)  # unwinds, so that server and browser are ended


def main(arguments: Sequence[str] | None = None) -> int:
    """Read the command line and look."""
    assert __doc__ is not None
    parser = argparse.ArgumentParser(
        prog="python -m tools.look", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("notebooks", nargs="+", type=Path)
    parser.add_argument("--run", action="store_true", help="run all cells first")
    parser.add_argument("--dark", action="store_true", help="in JupyterLab's dark theme")
    parser.add_argument("--width", type=int, default=1280, help="of the window, in pixels (default: 1280)")
    options = parser.parse_args(arguments)
    signal.signal(signal.SIGTERM, _stop)
    try:
        return 1 if look(options.notebooks, run=options.run, dark=options.dark, width=options.width) else 0
    except BrowserError as error:
        print(error, file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
