"""Pytest, for all tests: nbval counts a notebook's cells as JupyterLab does."""

from typing import Any

from nbval.kernel import RunningKernel


def _execute_and_count(self: Any, cell_input: str, allow_stdin: bool | None = None) -> str:
    """Execute a cell's input, as nbval's own method does, but with a history: without one each cell would be In [1].

    A trace names the learner's line as ``cell [6], line 3``, so a stored output depends on the count.
    """
    return str(self.kc.execute(cell_input, allow_stdin=allow_stdin, stop_on_error=False))


RunningKernel.execute_cell_input = _execute_and_count


def pytest_addoption(parser: Any) -> None:
    """Add the option of tests/test_failures.py."""
    parser.addoption("--rounds", type=int, default=1, help="how often each failure of real ranks is made")


def pytest_generate_tests(metafunc: Any) -> None:
    """Repeat what takes ``round_``."""
    if "round_" in metafunc.fixturenames:
        metafunc.parametrize("round_", range(metafunc.config.getoption("--rounds")))
