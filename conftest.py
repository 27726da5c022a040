"""Pytest, for all tests: nbval counts cells as JupyterLab does, workers take whole files, no answer is noted."""

import os
from typing import Any

import pytest
from nbval.kernel import RunningKernel

LONGEST = (
    "tests/browser/test_jupyterlab.py",
    "tests/test_notebooks_on_gloo.py",
    "tests/test_launched.py",
    "tests/test_notebooks.py",
    "tests/test_failures.py",
    "tests/test_real_ranks.py",
)
"""The files that take longest, the longest first: a worker that began one of them last would keep the run waiting."""


def _execute_and_count(self: Any, cell_input: str, allow_stdin: bool | None = None) -> str:
    """Execute a cell's input, as nbval's own method does, but with a history: without one each cell would be In [1].

    A trace names the learner's line as ``cell [6], line 3``, so a stored output depends on the count.
    """
    return str(self.kc.execute(cell_input, allow_stdin=allow_stdin, stop_on_error=False))


RunningKernel.execute_cell_input = _execute_and_count

# No test notes that an exercise was answered, or sees that it was; kernels inherit it.
os.environ["TPVIZ_PROGRESS"] = "off"


def pytest_addoption(parser: Any) -> None:
    """Add the option of tests/test_failures.py."""
    parser.addoption("--rounds", type=int, default=1, help="how often each failure of real ranks is made")


def pytest_generate_tests(metafunc: Any) -> None:
    """Repeat what takes ``round_``."""
    if "round_" in metafunc.fixturenames:
        metafunc.parametrize("round_", range(metafunc.config.getoption("--rounds")))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: Any, log: Any) -> Any:
    """Give a worker whole files, as they come: a notebook's cells share a kernel, and a module's tests their ranks."""
    from xdist.scheduler import LoadFileScheduling

    config.option.loadscopereorder = False
    return LoadFileScheduling(config, log)


def pytest_collection_modifyitems(config: Any, items: list[pytest.Item]) -> None:
    """Where workers share the tests, let the long files come first."""
    if hasattr(config, "workerinput"):
        items.sort(key=lambda item: _turn(item.nodeid.partition("::")[0]))


def _turn(file: str) -> int:
    return LONGEST.index(file) if file in LONGEST else len(LONGEST)
