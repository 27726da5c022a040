"""The Chromium of the browser tests: required where TPVIZ_REQUIRE_BROWSER says so, else skipped where there is none."""

import os

import pytest

from tools import browser


# Of a module only: Playwright keeps an event loop running in this thread, and nbval's kernels are not to see it.
@pytest.fixture(scope="module")
def chromium():
    if browser.find_chromium() is None:
        problem = "no Chromium on this machine; Debian: apt install chromium"
        if os.environ.get("TPVIZ_REQUIRE_BROWSER") == "1":
            pytest.fail(problem)
        pytest.skip(problem)
    with browser.chromium() as running:
        yield running
