"""A progress bar that is gone when the work is done; outside of a notebook there is none (widgets)."""

import sys
from collections.abc import Callable, Iterable, Iterator

Report = Callable[[int, int], object]
"""Is told how many parts of how many are done."""


def parts(count: int, report: Report | None) -> Iterator[int]:
    """Count to ``count`` and tell ``report``, or a bar in the notebook, after each part."""
    if report is not None:
        yield from _told(range(count), count, report)
        return
    if not _in_a_notebook():
        yield from range(count)
        return
    from IPython.display import clear_output, display
    from ipywidgets import IntProgress

    bar = IntProgress(0, 0, count)
    display(bar)  # type: ignore[no-untyped-call]
    try:
        yield from _told(range(count), count, lambda done, _count: setattr(bar, "value", done))
    finally:
        bar.close()
        clear_output()  # type: ignore[no-untyped-call]


def _told(numbers: Iterable[int], count: int, report: Report) -> Iterator[int]:
    for number in numbers:
        yield number
        report(number + 1, count)


def _in_a_notebook() -> bool:
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    return hasattr(shell, "kernel")
