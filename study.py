"""Set-up: makes .venv, installs tpviz into it, and opens the notebooks or runs the tests. Needs Python alone.

    python3 study.py                      open JupyterLab: the first notebook, later the index
    python3 study.py --no-browser         the same, with its address printed instead of a browser opened
    python3 study.py test                 install what tests need, and run all tests
    python3 study.py test -- -k column    what stands behind -- goes to pytest (or to JupyterLab)
    python3 study.py slides               each notebook as slides: build/slides/index.html
    python3 study.py site                 all notebooks as pages to read: build/site/index.html
    python3 study.py python               print the interpreter to select in VS Code or another editor

The first call takes minutes, the next ones seconds, and once all is installed no network is needed. On Linux, --cpu
fetches PyTorch's build for CPUs, which is smaller by gigabytes. pip's own settings are honoured: PIP_INDEX_URL,
proxies, mirrors, pip.conf.
"""

import argparse
import contextlib
import hashlib
import importlib.util
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Any

NEEDED = (3, 11)
if sys.version_info < NEEDED:  # Python 3.6 and newer get as far as here: the whole file keeps to their syntax
    newer = [f"python3.{minor}" for minor in range(20, NEEDED[1] - 1, -1)]
    newer = [name for name in newer if subprocess.getstatusoutput(name + " -c pass")[0] == 0]
    sys.exit(
        "tpviz needs Python 3.{} or newer, and this is Python {}.{} ({}).\n".format(
            NEEDED[1], *sys.version_info[:2], sys.executable
        )
        + (
            f"There is a newer one here. Try: {newer[0]} study.py"
            if newer
            else "Get one from https://www.python.org/downloads/ and run study.py with it: python3.13 study.py"
        )
    )

ROOT = Path(__file__).resolve().parent
VENV = ROOT / ".venv"
WINDOWS = os.name == "nt"
PYTHON = VENV / ("Scripts/python.exe" if WINDOWS else "bin/python")
STATE = VENV / "study.json"
"""What is installed. While an installation is under way it says so, and thus after one that was interrupted."""
LOG = ROOT / "build" / "install.log"
LOCK = ROOT / "build" / "study.lock"
NOTEBOOKS = ROOT / "notebooks"
FIRST_NOTEBOOK, INDEX = "00-start-here.ipynb", "0-index.ipynb"
PROGRESS = NOTEBOOKS / ".progress.jsonl"
"""What the checks note. Who has begun is led to the index, which says what is next."""

PUBLISHED = ("slides", "site")
"""What is made of the notebooks, each by the tool of its name."""
EXTRAS = {"test": {"test", "publish"}, **{name: {"publish"} for name in PUBLISHED}}
"""What a command needs beyond what notebooks import: groups of pyproject.toml."""

CPU_INDEX = "https://download.pytorch.org/whl/cpu"
SPACE_GB = 2.5
"""What an installation with PyTorch's build for CPUs needs while it runs: .venv, pip's cache, unpacked archives."""
WORKERS = ("-n", str(min(4, (os.cpu_count() or 1) + 1)))
"""How pytest shares all tests among workers: one more than CPUs, since tests of failures and of browsers wait now and
then, and no more than the longest files keep busy."""
STOP_SECONDS = 10
"""How long a program that was told to stop may take: JupyterLab waits for its kernels."""

NO_NETWORK = (
    "The packages could not be fetched. Connect to the network and try again; what was fetched is kept.\n"
    "Behind a proxy, set HTTPS_PROXY=http://host:port; with a mirror, PIP_INDEX_URL=https://..."
)
# What pip's log says, and what to do about it: the first that fits is told.
ADVICE = (
    (
        ("No space left on device", "not enough space on the disk"),
        "The disk is full. Free about 3 GB and try again.",
    ),
    (
        ("Windows Long Path support",),
        r"A path is too long for Windows. Move the project to a short folder, such as C:\tpviz, and try again.",
    ),
    (
        ("CERTIFICATE_VERIFY_FAILED", "SSLError"),
        "The connection could not be trusted. Where a company inspects it, name its certificate: PIP_CERT=file.pem.",
    ),
    (
        (
            "NewConnectionError",
            "NameResolutionError",
            "ConnectTimeoutError",
            "ReadTimeoutError",
            "ProxyError",
            "Connection refused",
            "Network is unreachable",
        ),
        NO_NETWORK,
    ),
    (
        ("No matching distribution found for torch",),
        "There is no PyTorch for this Python on this system. The Pythons that it is built for are listed at\n"
        "https://pypi.org/project/torch/#files: run study.py with one of these after deleting .venv.",
    ),
    (("(from versions: none)",), NO_NETWORK),  # with PIP_RETRIES=0 pip does not say why
    (
        ("Permission denied", "Access is denied"),
        "Close JupyterLab and editors that use .venv, and try again.",
    ),
)


class Trouble(Exception):
    """Something that the user can do something about; the message says what."""


def say(text: str) -> None:
    """Tell what is going on. Standard output is kept for what was asked for."""
    print(text, file=sys.stderr, flush=True)


def run(command: Sequence[str], **options: Any) -> int:
    """Run a program to its end, and let it not outlive this one; its exit code."""
    process = subprocess.Popen(command, **options)
    try:
        return process.wait()
    except KeyboardInterrupt:
        await_end(process)  # the terminal told it, too
        raise
    finally:
        for stop in (process.terminate, process.kill):
            if process.poll() is None:
                stop()
                await_end(process)


def await_end(process: subprocess.Popen[bytes]) -> None:
    """Give a program that was told to stop the time for it."""
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(STOP_SECONDS)


# What is installed


def fingerprint(version: str) -> str:
    """Stands for all that decides what is installed; where it differs from the last one, pip has to be asked again."""
    files = [(ROOT / name).read_text(encoding="utf-8") for name in ("pyproject.toml", "constraints.txt")]
    # An editable installation points to this folder; it may have been moved.
    return hashlib.sha256("\0".join([version, str(ROOT), *files]).encode()).hexdigest()


def read_state() -> dict[str, Any]:
    """What the last call noted; empty where .venv is not from here."""
    try:
        state = json.loads(STATE.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return state if isinstance(state, dict) else {}


def write_state(state: dict[str, Any]) -> None:
    """Note it, at once or not at all."""
    draft = STATE.with_suffix(".new")
    draft.write_text(json.dumps(state), encoding="utf-8")
    draft.replace(STATE)


def venv_version() -> str | None:
    """The version of .venv's Python; None if it does not run, has no pip, or is too old."""
    look = f"import sys, pip; print('%d.%d' % sys.version_info[:2], sys.version_info >= {NEEDED})"
    try:
        answer = subprocess.run(
            [str(PYTHON), "-c", look], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, timeout=60, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    version, _, fits = answer.stdout.decode().strip().partition(" ")
    return version if fits == "True" else None


# Installing


def make_venv() -> None:
    """Make .venv anew."""
    if importlib.util.find_spec("ensurepip") is None or importlib.util.find_spec("venv") is None:
        raise Trouble(
            "This Python comes without its venv module, which study.py needs.\n"
            "On Debian and Ubuntu: sudo apt install python{}.{}-venv. Then try again.".format(*sys.version_info[:2])
        )
    # The Python of .venv itself could not make .venv anew.
    base = getattr(sys, "_base_executable", None) or sys.executable
    say("Making .venv with Python {}.{}.{} ({}) ...".format(*sys.version_info[:3], base))
    try:
        if VENV.is_symlink() or VENV.is_file():
            VENV.unlink()
        elif VENV.exists():
            shutil.rmtree(str(VENV))
        VENV.mkdir()
        write_state({"state": "installing"})
    except OSError as error:
        raise Trouble(f"{error}\nClose JupyterLab and editors that use .venv, and try again.") from error
    if run([base, "-m", "venv", str(VENV)], stdout=sys.stderr) != 0 or venv_version() is None:
        raise Trouble(f"{base} could not make a virtual environment in {VENV}.")


def pip_install(arguments: Sequence[str]) -> None:
    """Let pip install within the project's constraints and by the user's settings; it shows its own progress."""
    LOG.parent.mkdir(exist_ok=True)
    LOG.write_text("", encoding="utf-8")
    # A setting that asks for --user could not be met in a virtual environment.
    environment = {**os.environ, "PIP_USER": "0", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    command = [str(PYTHON), "-m", "pip", "--log", str(LOG), "install", "-c", "constraints.txt"]
    if not sys.dont_write_bytecode:
        # Python compiles what it imports, when it does; compiling all of PyTorch here would take a third of the time.
        command.append("--no-compile")
    if run([*command, *arguments], cwd=str(ROOT), env=environment, stdout=sys.stderr) != 0:
        log = LOG.read_text(encoding="utf-8", errors="replace")
        advice = next((advice for signs, advice in ADVICE if any(sign in log for sign in signs)), "")
        raise Trouble(f"pip could not install tpviz. {advice}\nAll that pip said is in {LOG}")


def changed_something() -> bool:
    """Whether pip got as far as changing .venv: before that it only looks for packages and fetches them."""
    # What it writes about a build, which has a place of its own, is indented.
    return (
        re.search(r",\d+ Installing collected packages", LOG.read_text(encoding="utf-8", errors="replace")) is not None
    )


def has_nvidia() -> bool:
    """Whether an NVIDIA GPU is there, as far as its driver shows."""
    places = ("/proc/driver/nvidia/version", "/dev/nvidiactl", "/usr/lib/wsl/lib/nvidia-smi")
    return shutil.which("nvidia-smi") is not None or any(Path(place).exists() for place in places)


def names_a_source() -> bool:
    """Whether pip's settings say where packages come from: whoever set them has decided about PyTorch, too."""
    command = [str(PYTHON), "-m", "pip", "config", "list"]
    listed = subprocess.run(command, stdout=subprocess.PIPE, check=False).stdout.decode(errors="replace")
    keys = [line.partition("=")[0] for line in listed.splitlines()]
    return any(key.endswith(("index-url", "find-links", "no-index")) for key in keys)


def offer_cpu() -> bool:
    """Before gigabytes of CUDA come to a machine that cannot use them: say so, and ask where somebody can answer."""
    if not sys.platform.startswith("linux") or has_nvidia() or names_a_source():
        return False
    say("There is no NVIDIA GPU here, and PyTorch's usual build for Linux brings gigabytes of CUDA. --cpu avoids them.")
    if not (sys.stdin and sys.stdin.isatty()):
        return False
    sys.stderr.write(f"Take the build for CPUs instead, from {CPU_INDEX}? [Y/n] ")
    sys.stderr.flush()
    return not sys.stdin.readline().strip().lower().startswith("n")


@contextlib.contextmanager
def only_one() -> Iterator[None]:
    """Let one study.py at a time change .venv; others wait."""
    LOCK.parent.mkdir(exist_ok=True)
    with LOCK.open("a+b") as lock:
        if not _lock(lock, wait=False):
            say("Another study.py is at work on .venv; waiting for it ...")
            while not _lock(lock, wait=True):
                pass
        yield


def _lock(lock: IO[bytes], *, wait: bool) -> bool:
    """Take the lock, which the system gives back when this program ends, however it ends."""
    try:
        if sys.platform == "win32":
            import msvcrt

            lock.seek(0)
            msvcrt.locking(lock.fileno(), msvcrt.LK_LOCK if wait else msvcrt.LK_NBLCK, 1)
        else:
            import fcntl

            fcntl.flock(lock, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except OSError:
        return False
    return True


def install(extras: set[str], *, cpu: bool) -> None:
    """Bring .venv to what is wanted; quick where it is there already."""
    state, version = read_state(), venv_version()
    whole = version is not None and state.get("state") != "installing"
    had = set(state.get("extras", []))
    if whole and version is not None and had >= extras and state.get("fingerprint") == fingerprint(version):
        return
    if not whole:
        free = shutil.disk_usage(str(ROOT)).free / 1e9
        if free < SPACE_GB:
            raise Trouble(
                f"There are {free:.1f} GB free for {ROOT}, and the installation takes about {SPACE_GB} GB.\n"
                "Free some space, or move the project to another disk."
            )
        if VENV.exists():
            say(".venv is not whole: an installation was interrupted, or its Python is gone.")
        make_venv()
    # Who once took the build for CPUs gets it again when PyTorch's version changes.
    cpu = cpu or bool(state.get("cpu")) or (not whole and offer_cpu())
    extras = extras | had
    say("Installing tpviz and what it needs into .venv; the first time this takes a few minutes ...")
    write_state({"state": "installing"})
    try:
        if cpu:
            # On its own and without what it needs, so that nothing but PyTorch comes from PyTorch's index.
            pip_install(["--no-deps", "--extra-index-url", CPU_INDEX, "torch"])
        pip_install(["-e", f".[{','.join(sorted(extras))}]" if extras else "."])
    except Trouble:
        if whole and not changed_something():
            write_state(state)
        raise
    version = venv_version()
    assert version is not None
    write_state({"state": "installed", "extras": sorted(extras), "cpu": cpu, "fingerprint": fingerprint(version)})
    say("Installed.")


# What can be asked for


def lab_command(*, browser: bool) -> list[str]:
    """JupyterLab on the first notebook or the index, for this machine only; its token it makes itself."""
    notebook = INDEX if PROGRESS.is_file() else FIRST_NOTEBOOK
    command = [
        *(str(PYTHON), "-m", "jupyterlab", "--log-level=WARN"),
        *("--ServerApp.ip=127.0.0.1", "--ServerApp.answer_yes=True"),
        "--LanguageServerManager.autodetect=False",  # it would look for thirty servers, by npm among others
        *(f"--ServerApp.root_dir={NOTEBOOKS}", f"--LabApp.default_url=/lab/tree/{notebook}"),
    ]
    if not browser:
        command.append("--no-browser")
    if not WINDOWS and os.geteuid() == 0:
        command.append("--allow-root")  # root is usual in containers
    return command


def lab(arguments: Sequence[str], *, browser: bool) -> int:
    """Run JupyterLab until Ctrl-C."""
    say("Opening JupyterLab; Ctrl-C here ends it ...")
    try:
        return run([*lab_command(browser=browser), *arguments], cwd=str(ROOT))
    except KeyboardInterrupt:
        say("JupyterLab has ended.")
        return 0


def test(arguments: Sequence[str]) -> int:
    """Run all tests: units, each cell of each notebook, and JupyterLab in a browser where there is Chromium.

    Workers share them. Where some are chosen there are none: each would have to start, and to look for all tests.
    """
    say("Running the tests ...")
    return run([str(PYTHON), "-m", "pytest", *(arguments or WORKERS)], cwd=str(ROOT))


def publish(what: str, arguments: Sequence[str]) -> int:
    """Make slides or the site of the notebooks."""
    say(f"Making the {what} ...")
    return run([str(PYTHON), "-m", f"tools.{what}", *arguments], cwd=str(ROOT))


def _terminated(_number: int, _frame: object) -> None:
    sys.exit(143)


def main(arguments: Sequence[str]) -> int:
    """Set up what is missing, then do what was asked."""
    own, passed = list(arguments), []
    if "--" in own:
        split = own.index("--")
        own, passed = own[:split], own[split + 1 :]
    parser = argparse.ArgumentParser(
        prog="study.py", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("command", nargs="?", choices=["lab", *EXTRAS, "python"], default="lab")
    parser.add_argument("--cpu", action="store_true", help="take PyTorch's build for CPUs when installing")
    parser.add_argument("--no-browser", action="store_true", help="print JupyterLab's address, open no browser")
    options = parser.parse_args(own)
    signal.signal(signal.SIGTERM, _terminated)
    try:
        with only_one():
            install(EXTRAS.get(options.command, set()), cpu=options.cpu)
        if options.command == "python":
            print(PYTHON)
            return 0
        if options.command == "test":
            return test(passed)
        if options.command in PUBLISHED:
            return publish(options.command, passed)
        return lab(passed, browser=not options.no_browser)
    except Trouble as trouble:
        say(f"\n{trouble}")
        return 1
    except KeyboardInterrupt:
        say("\nStopped. What was fetched is kept; run study.py again to go on.")
        return 130


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
