"""A progress bar that is gone when the work is done; outside of a notebook there is none (widgets)."""

import sys
import time
from collections.abc import Callable, Iterator

FEWEST = 2
"""Rounds, however long they take."""

Report = Callable[[float, float], object]
"""Is told how many seconds of how many are over."""


def rounds(seconds: float, report: Report | None) -> Iterator[int]:
    """Count rounds until ``seconds`` are over, and tell ``report``, or a bar in the notebook, after each of them.

    The bar clears the output of its cell when it goes.
    """
    if report is not None or not _in_a_notebook():
        yield from _told(seconds, report)
        return
    from IPython.display import clear_output, display
    from ipywidgets import FloatProgress

    bar = FloatProgress(min=0, max=seconds)
    display(bar)  # type: ignore[no-untyped-call]
    try:
        yield from _told(seconds, lambda spent, _seconds: setattr(bar, "value", spent))
    finally:
        bar.close()
        clear_output()  # type: ignore[no-untyped-call]


def _told(seconds: float, report: Report | None) -> Iterator[int]:
    start, spent, number = time.monotonic(), 0.0, 0
    while spent < seconds or number < FEWEST:
        yield number
        spent, number = time.monotonic() - start, number + 1
        if report is not None:
            report(min(spent, seconds), seconds)


def _in_a_notebook() -> bool:
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    return hasattr(shell, "kernel")
