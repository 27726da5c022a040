"""How large tpviz is: on disk the packages that it needs, and in memory a visit on Binder, which has 2 GB.

`python -m benchmarks.footprint` prints the megabytes of each package as it is installed here; then the memory of a
Python that has imported what the first notebook imports, and the most that JupyterLab's server and all that runs under
it (the kernel, processes of real ranks) took while a notebook was run in a real Chromium. The exit code is 1 if that is
more than Binder has. `python -m benchmarks.footprint notebooks/03-backward.ipynb` runs other notebooks.

Megabytes are 10^6 bytes. Memory that processes share counts once (PSS) where the system tells it, as Linux does.
"""

import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

import psutil
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tools import notebooks, places
from tools.browser import BrowserError, chromium, jupyterlab, open_notebook

BINDER_MB = 2000
"""What mybinder.org gives to a session."""
NOTEBOOKS = [notebooks.NOTEBOOKS / f"{name}.ipynb" for name in ("00-start-here", "09-real-ranks")]
"""The first one, and the one with the most processes."""
LARGE_MB = 1
SECONDS = 0.2
"""Between two looks at the memory."""


def installed(requirements: Sequence[str]) -> dict[str, float]:
    """The megabytes of each distribution that these requirements bring, by name, caches left out."""
    sizes: dict[str, float] = {}
    waiting = list(requirements)
    while waiting:
        requirement = Requirement(waiting.pop())
        name = canonicalize_name(requirement.name)
        if name in sizes or (requirement.marker and not requirement.marker.evaluate({"extra": ""})):
            continue
        with suppress(PackageNotFoundError):  # what a variant asks for that is not the one installed here
            found = distribution(name)
            files = [Path(str(file.locate())) for file in found.files or [] if file.suffix != ".pyc"]
            sizes[name] = sum(file.stat().st_size for file in files if file.exists()) / 1e6
            waiting += found.requires or []
    return sizes


def memory(processes: Sequence[psutil.Process]) -> float:
    """The megabytes that these processes take together."""
    total = 0
    for process in processes:
        with suppress(psutil.Error):  # it has ended
            info = process.memory_full_info()
            total += getattr(info, "pss", info.rss)
    return total / 1e6


def imported(notebook: Path) -> float:
    """The megabytes of a Python that has imported what the notebook imports."""
    (cell,) = [cell for cell in notebooks.read(notebook).cells if cell.get("id") == "imports"]
    program = f"{cell.source}\nimport time; print('imported', flush=True); time.sleep(600)"
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, cwd=places.ROOT) as process:
        assert process.stdout is not None
        process.stdout.readline()
        taken = memory([psutil.Process(process.pid)])
        process.kill()
    return taken


@dataclass
class Peak:
    """The most memory that was seen, by process: JupyterLab's server, and what runs below it."""

    server: float = 0
    below: float = 0
    processes: int = 0
    over: threading.Event = field(default_factory=threading.Event)

    def watch(self, server: psutil.Process) -> None:
        """Look until it is over."""
        while not self.over.wait(SECONDS):
            children = server.children(recursive=True)
            sizes = memory([server]), memory(children)
            if sum(sizes) > self.server + self.below:
                self.server, self.below, self.processes = *sizes, len(children)


@contextmanager
def watched() -> Iterator[Peak]:
    """The most memory that the JupyterLab below this process takes within the block."""
    (server,) = [child for child in psutil.Process().children() if "tools.browser" in child.cmdline()]
    peak = Peak()
    thread = threading.Thread(target=peak.watch, args=(server,))
    thread.start()
    try:
        yield peak
    finally:
        peak.over.set()
        thread.join()


def visited(path: Path) -> Peak:
    """The memory of a visit: JupyterLab starts, and all cells of the notebook are run."""
    with tempfile.TemporaryDirectory(prefix="tpviz-footprint-") as folder:
        shutil.copy(path, folder)
        with (
            jupyterlab(Path(folder)) as server,
            watched() as peak,
            chromium() as browser,
            open_notebook(browser, server, path.name) as notebook,
        ):
            notebook.run_all()
            if problems := notebook.problems():
                raise BrowserError("\n".join(problems))
    return peak


def main(arguments: Sequence[str]) -> int:
    """Print packages, imports and visits."""
    sizes = installed(places.project()["dependencies"])
    small = {name: size for name, size in sizes.items() if size < LARGE_MB}
    print("on disk                             MB")
    for name, size in sorted(sizes.items(), key=lambda item: -item[1]):
        if name not in small:
            print(f"  {name:28} {size:8.1f}")
    print(f"  {f'{len(small)} smaller ones':28} {sum(small.values()):8.1f}")
    print(f"  {f'all {len(sizes)}':28} {sum(sizes.values()):8.1f}\n")
    paths = [Path(argument) for argument in arguments] or NOTEBOOKS
    print(f"in memory                           MB   of Binder's {BINDER_MB}")
    taken = imported(paths[0])
    print(f"  {'imports of ' + paths[0].stem:28} {taken:8.0f} {taken / BINDER_MB:8.2f}")
    largest = 0.0
    for path in paths:
        peak = visited(path)
        most = peak.server + peak.below
        largest = max(largest, most)
        print(f"  {path.stem:28} {most:8.0f} {most / BINDER_MB:8.2f}", end="")
        print(f"   at most: server {peak.server:.0f}, {peak.processes} processes below it {peak.below:.0f}", flush=True)
    return 1 if largest > BINDER_MB else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
