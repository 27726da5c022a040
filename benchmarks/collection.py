"""How long all notebooks take as tests, cell by cell by nbval: ``python -m benchmarks.collection``.

Each notebook's seconds, with its kernel's start, where one comes after the other; then all of them, so and on two
workers, in one run. The exit code is 1 if a cell fails, or if two workers take more than 120 seconds.
"""

import subprocess
import sys
import time
import xml.etree.ElementTree as ElementTree
from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory

from tools.notebooks import NOTEBOOKS, ROOT

LIMIT_SECONDS = 120


def tested(report: Path, *options: str) -> tuple[float, int]:
    """Run all notebooks; seconds and pytest's exit code. What each cell took is in the report."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--junitxml={report}", *options]
    start = time.perf_counter()
    done = subprocess.run([*command, str(NOTEBOOKS)], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    seconds = time.perf_counter() - start
    if done.returncode != 0:
        print(done.stdout)
    return seconds, done.returncode


def by_notebook(report: Path) -> Counter[str]:
    """Each notebook's milliseconds."""
    milliseconds: Counter[str] = Counter()
    for case in ElementTree.parse(report).iter("testcase"):
        milliseconds[case.get("classname", "")] += round(1000 * float(case.get("time", 0)))
    return milliseconds


def main() -> int:
    """Run them twice, and print."""
    with TemporaryDirectory() as folder:
        report = Path(folder, "report.xml")
        alone, failed = tested(report)
        for name, milliseconds in by_notebook(report).most_common():
            print(f"{milliseconds / 1000:6.1f} s  {name}")
        shared, failed_too = tested(report, "-n", "2")
    print(f"{alone:6.1f} s  one after the other")
    print(f"{shared:6.1f} s  on two workers (asked for: {LIMIT_SECONDS} s)")
    return int(bool(failed or failed_too) or shared > LIMIT_SECONDS)


if __name__ == "__main__":
    sys.exit(main())
