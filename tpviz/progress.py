"""A progress bar that is gone when the work is done: in a notebook, in a terminal, and nowhere else (widgets)."""

import contextlib
import sys
import time
from collections.abc import Callable, Iterator

FEWEST = 2
"""Rounds, however long they take."""
_WIDTH = 40

Report = Callable[[float, float], object]
"""Is told how much of how much is over: seconds, or steps."""


def rounds(seconds: float, report: Report | None) -> Iterator[int]:
    """Count rounds until ``seconds`` are over, and tell ``report``, or else a bar, after each of them.

    In a notebook the bar clears the output of its cell when it goes.
    """
    with _reported(seconds, report) as told:
        start, spent, number = time.monotonic(), 0.0, 0
        while spent < seconds or number < FEWEST:
            yield number
            spent, number = time.monotonic() - start, number + 1
            told(min(spent, seconds), seconds)


def portions(total: int, size: int, report: Report | None) -> Iterator[int]:
    """Cut ``total`` into portions of ``size``, the last one smaller, and tell ``report``, or else a bar, after each."""
    with _reported(total, report) as told:
        for first in range(0, total, size):
            portion = min(size, total - first)
            yield portion
            told(first + portion, total)


@contextlib.contextmanager
def _reported(maximum: float, report: Report | None) -> Iterator[Report]:
    if report is not None:
        yield report
    elif in_a_notebook():
        with _widget(maximum) as told:
            yield told
    elif sys.stderr.isatty():
        with _line() as told:
            yield told
    else:
        yield lambda _done, _of: None


@contextlib.contextmanager
def _widget(maximum: float) -> Iterator[Report]:
    from IPython.display import clear_output, display
    from ipywidgets import FloatProgress

    bar = FloatProgress(min=0, max=maximum)
    display(bar)  # type: ignore[no-untyped-call]
    try:
        yield lambda done, _of: setattr(bar, "value", done)
    finally:
        bar.close()
        clear_output()  # type: ignore[no-untyped-call]


@contextlib.contextmanager
def _line() -> Iterator[Report]:
    def told(done: float, of: float) -> None:
        filled = round(_WIDTH * done / of)
        print(f"\r[{'#' * filled:<{_WIDTH}}] {done:.0f}/{of:.0f}", end="", file=sys.stderr, flush=True)

    try:
        yield told
    finally:
        print("\r" + " " * (_WIDTH + 20) + "\r", end="", file=sys.stderr, flush=True)


def in_a_notebook() -> bool:
    """Whether this is a notebook's kernel."""
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    return hasattr(shell, "kernel")
