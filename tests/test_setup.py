"""study.py, the environments that must agree, and what Binder would do."""

import ast
import contextlib
import importlib.metadata
import io
import json
import os
import re
import runpy
import shutil
import signal
import subprocess
import sys
import time
import tomllib
import urllib.error
import urllib.request
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

import study

ROOT = Path(study.__file__).parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
EXTRAS = PROJECT["optional-dependencies"]


def checkout(tmp_path):
    """The project as a fresh clone has it: the working tree without what is made in it."""
    made = shutil.ignore_patterns(".git", ".venv", "build", "__pycache__", "*.egg-info", ".*_cache", ".hypothesis")
    return Path(shutil.copytree(ROOT, tmp_path / "a clone", ignore=made))


# An old Python


@pytest.mark.parametrize("version", [(3, 6, 15), (3, 10, 13)])
@pytest.mark.parametrize("newer", [True, False])
def test_an_old_python_is_told_what_to_do(version, newer, monkeypatch):
    monkeypatch.setattr(sys, "version_info", version)
    monkeypatch.setattr(subprocess, "getstatusoutput", lambda command: (int(not newer or "3.12" not in command), ""))
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(ROOT / "study.py"), run_name="__main__")
    assert f"needs Python 3.11 or newer, and this is Python 3.{version[1]}" in ended.value.code
    assert ("Try: python3.12 study.py" if newer else "https://www.python.org/downloads/") in ended.value.code


def test_the_check_is_reached():
    source = (ROOT / "study.py").read_text(encoding="utf-8")
    tree = ast.parse(source, feature_version=(3, 7))  # the oldest that ast knows
    check = next(index for index, node in enumerate(tree.body) if isinstance(node, ast.If))
    before = [node for node in tree.body[:check] if not isinstance(node, ast.Import | ast.ImportFrom)]
    assert [ast.unparse(node) for node in before[1:]] == ["NEEDED = (3, 11)"]


@pytest.mark.parametrize("minor", range(6, 11))
def test_with_a_real_old_python(minor):
    command = f"python3.{minor}"
    if subprocess.getstatusoutput(f"{command} -c pass")[0] != 0:
        pytest.skip(f"no {command} on this machine")
    result = subprocess.run([command, ROOT / "study.py"], capture_output=True, text=True)
    assert result.returncode == 1
    assert f"this is Python 3.{minor}" in result.stderr


def test_needed_version_is_the_projects():
    assert PROJECT["requires-python"] == ">={}.{}".format(*study.NEEDED)


# Installing, on a machine that is only pretended


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """A place for .venv, and what was run for it; `pip` says how pip ends, and what it writes in its log."""
    monkeypatch.setattr(study, "ROOT", tmp_path)
    for name, place in [("VENV", ".venv"), ("LOG", "build/install.log"), ("LOCK", "build/study.lock")]:
        monkeypatch.setattr(study, name, tmp_path / place)
    monkeypatch.setattr(study, "STATE", tmp_path / ".venv" / "study.json")
    monkeypatch.setattr(study, "PYTHON", tmp_path / ".venv" / "python")
    for name in ("pyproject.toml", "constraints.txt"):
        (tmp_path / name).write_text(name, encoding="utf-8")
    made = SimpleNamespace(venvs=0, installed=[], environment={}, pip=lambda: 0, log="", version="3.11", cpu=False)

    def run(command, **options):
        if "venv" in command:
            made.venvs += 1
            study.PYTHON.touch()
            return 0
        assert command[:3] == [str(study.PYTHON), "-m", "pip"]
        assert study.read_state() == {"state": "installing"}
        made.installed.append(command[command.index("install") + 1 :])
        made.environment = options["env"]
        study.LOG.write_text(made.log, encoding="utf-8")
        return made.pip()

    monkeypatch.setattr(study, "run", run)
    monkeypatch.setattr(study, "venv_version", lambda: made.version if study.PYTHON.exists() else None)
    monkeypatch.setattr(study, "offer_cpu", lambda: made.cpu)
    return made


def test_once_installed_nothing_is_done(machine):
    study.install(set(), cpu=False)
    assert machine.venvs == 1
    (arguments,) = machine.installed
    assert arguments[:2] == ["-c", "constraints.txt"]
    assert arguments[-2:] == ["-e", "."]
    study.install(set(), cpu=False)
    assert (machine.venvs, len(machine.installed)) == (1, 1)


def test_what_tests_need_is_added_and_stays(machine):
    study.install(set(), cpu=False)
    study.install({"test"}, cpu=False)
    assert machine.installed[1][-2:] == ["-e", ".[test]"]
    study.install(set(), cpu=False)
    study.install({"test"}, cpu=False)
    assert (machine.venvs, len(machine.installed)) == (1, 2)
    (study.ROOT / "constraints.txt").write_text("changed", encoding="utf-8")
    study.install(set(), cpu=False)
    assert machine.installed[2][-2:] == ["-e", ".[test]"]


@pytest.mark.parametrize("name", ["pyproject.toml", "constraints.txt"])
def test_a_change_of_what_is_wanted_is_installed(name, machine):
    study.install(set(), cpu=False)
    (study.ROOT / name).write_text("changed", encoding="utf-8")
    study.install(set(), cpu=False)
    assert (machine.venvs, len(machine.installed)) == (1, 2)


def test_another_python_or_place_is_installed_for(machine, monkeypatch):
    study.install(set(), cpu=False)
    machine.version = "3.12"
    study.install(set(), cpu=False)
    assert len(machine.installed) == 2
    before = study.fingerprint("3.12")
    monkeypatch.setattr(study, "ROOT", study.ROOT / "moved")
    study.ROOT.mkdir()
    for name in ("pyproject.toml", "constraints.txt"):
        (study.ROOT / name).write_text(name, encoding="utf-8")
    assert study.fingerprint("3.12") != before


def test_an_interrupted_installation_is_made_anew(machine, capsys):
    def interrupt():
        raise KeyboardInterrupt

    machine.pip = interrupt
    with pytest.raises(KeyboardInterrupt):
        study.install(set(), cpu=False)
    (study.VENV / "half a package").touch()
    machine.pip = lambda: 0
    study.install(set(), cpu=False)
    assert machine.venvs == 2
    assert not (study.VENV / "half a package").exists()
    assert ".venv is not whole" in capsys.readouterr().err


def test_a_venv_without_its_python_is_made_anew(machine):
    study.install(set(), cpu=False)
    study.PYTHON.unlink()
    study.install(set(), cpu=False)
    assert (machine.venvs, len(machine.installed)) == (2, 2)


def test_a_venv_that_somebody_made_is_kept_and_installed_into(machine):
    study.VENV.mkdir()
    study.PYTHON.touch()
    (study.VENV / "theirs").touch()
    study.install(set(), cpu=False)
    assert (machine.venvs, len(machine.installed)) == (0, 1)
    assert (study.VENV / "theirs").exists()


def test_a_failure_before_anything_changed_keeps_what_worked(machine):
    study.install(set(), cpu=False)
    before = study.read_state()
    (study.ROOT / "constraints.txt").write_text("changed", encoding="utf-8")
    machine.pip = lambda: 1
    machine.log = "2026-12-01T05:38:12,564   Installing collected packages: setuptools\nNewConnectionError\n"
    with pytest.raises(study.Trouble, match="Connect to the network"):
        study.install(set(), cpu=False)
    assert study.read_state() == before
    machine.log = "2026-12-01T05:38:48,947 Installing collected packages: torch\nNo space left on device\n"
    with pytest.raises(study.Trouble, match="disk is full"):
        study.install(set(), cpu=False)
    assert study.read_state() == {"state": "installing"}


@pytest.mark.parametrize(
    ("log", "advice"),
    [
        ("urllib3 NewConnectionError: [Errno -2]\nNo matching distribution found for torch==2.13.0", "Connect to the"),
        ("OSError: [Errno 28] No space left on device", "disk is full"),
        ("SSLError(SSLCertVerificationError(1, '[SSL: CERTIFICATE_VERIFY_FAILED]", "PIP_CERT"),
        (
            "torch==2.13.0 (from versions: none)\nERROR: No matching distribution found for torch==2.13.0",
            "no PyTorch for this Python",
        ),
        ("HINT: your system does not have Windows Long Path support enabled", "short folder"),
        ("PermissionError: [WinError 5] Access is denied: 'torch_cpu.dll'", "Close JupyterLab"),
        ("something never seen", "All that pip said is in"),
    ],
)
def test_a_failure_says_what_to_do(log, advice, machine):
    machine.pip, machine.log = lambda: 1, log
    with pytest.raises(study.Trouble, match=re.escape(advice)):
        study.install(set(), cpu=False)


def test_no_space(machine, monkeypatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=0.4e9))
    with pytest.raises(study.Trouble, match=r"0\.4 GB free .* takes about"):
        study.install(set(), cpu=False)
    assert not study.VENV.exists()


@pytest.mark.parametrize("missing", ["venv", "ensurepip"])
def test_no_venv_module(missing, machine, monkeypatch):
    find = study.importlib.util.find_spec
    monkeypatch.setattr(study.importlib.util, "find_spec", lambda name: None if name == missing else find(name))
    with pytest.raises(study.Trouble, match="apt install python{}.{}-venv".format(*sys.version_info[:2])):
        study.install(set(), cpu=False)


def test_pips_own_settings_are_left_to_pip(machine, monkeypatch):
    monkeypatch.setenv("PIP_INDEX_URL", "https://mirror.example/simple")
    monkeypatch.setenv("HTTPS_PROXY", "http://proxy.example:3128")
    study.install(set(), cpu=False)
    assert machine.environment["PIP_INDEX_URL"] == "https://mirror.example/simple"
    assert machine.environment["HTTPS_PROXY"] == "http://proxy.example:3128"
    assert not {"--isolated", "--index-url", "-i", "--extra-index-url"} & set(machine.installed[0])


# PyTorch without CUDA


def test_only_pytorch_comes_from_its_index(machine):
    study.install(set(), cpu=True)
    first, second = machine.installed
    assert first[-4:] == ["--no-deps", "--extra-index-url", "https://download.pytorch.org/whl/cpu", "torch"]
    assert "constraints.txt" in first
    assert "--extra-index-url" not in second
    (study.ROOT / "constraints.txt").write_text("a newer torch", encoding="utf-8")
    study.install(set(), cpu=False)
    assert machine.installed[2] == first, "who took it once gets it again"


def test_it_is_offered_when_torch_is_fetched_first(machine):
    machine.cpu = True
    study.install(set(), cpu=False)
    assert "--no-deps" in machine.installed[0]


@pytest.mark.parametrize(
    ("platform", "nvidia", "source", "answer", "cpu", "said"),
    [
        ("linux", False, False, "\n", True, True),
        ("linux", False, False, "n\n", False, True),
        ("linux", False, False, None, False, True),
        ("linux", True, False, "\n", False, False),
        ("linux", False, True, "\n", False, False),
        ("darwin", False, False, "\n", False, False),
        ("win32", False, False, "\n", False, False),
    ],
)
def test_when_it_is_offered(platform, nvidia, source, answer, cpu, said, monkeypatch, capsys):
    monkeypatch.setattr(sys, "platform", platform)
    monkeypatch.setattr(study, "has_nvidia", lambda: nvidia)
    monkeypatch.setattr(study, "names_a_source", lambda: source)
    stdin = io.StringIO(answer or "")
    monkeypatch.setattr(stdin, "isatty", lambda: answer is not None)
    monkeypatch.setattr(sys, "stdin", stdin)
    assert study.offer_cpu() == cpu
    assert ("--cpu" in capsys.readouterr().err) == said


@pytest.mark.parametrize(
    ("setting", "value", "named"),
    [
        ("PIP_INDEX_URL", "https://mirror.example/simple", True),
        ("PIP_EXTRA_INDEX_URL", "https://download.pytorch.org/whl/cpu", True),
        ("PIP_FIND_LINKS", "/wheels", True),
        ("PIP_NO_INDEX", "1", True),
        ("PIP_DEFAULT_TIMEOUT", "60", False),
    ],
)
def test_whether_pip_has_been_told_where_to_look(setting, value, named, monkeypatch):
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv(setting, value)
    monkeypatch.setattr(study, "PYTHON", Path(sys.executable))
    assert study.names_a_source() == named


# The command line


@pytest.fixture
def asked(monkeypatch):
    """What main would install and run."""
    seen = []
    monkeypatch.setattr(study, "install", lambda extras, cpu: seen.append((sorted(extras), cpu)))
    monkeypatch.setattr(study, "run", lambda command, **options: seen.append(command) or 7)
    monkeypatch.setattr(study, "only_one", contextlib.nullcontext)
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    return seen


def test_without_arguments_the_first_notebook_opens(asked):
    assert study.main([]) == 7
    installed, command = asked
    assert installed == ([], False)
    assert command[:3] == [str(study.PYTHON), "-m", "jupyterlab"]
    assert "--ServerApp.ip=127.0.0.1" in command
    assert "--LabApp.default_url=/lab/tree/00-start-here.ipynb" in command
    assert "--no-browser" not in command
    assert not any("token" in word or "password" in word for word in command)


def test_arguments_for_jupyterlab_and_pytest(asked):
    study.main(["--no-browser", "--cpu", "--", "--port=9999"])
    assert asked[0] == ([], True)
    assert "--no-browser" in asked[1]
    assert asked[1][-1] == "--port=9999"
    assert study.main(["test", "--", "-k", "column", "-x"]) == 7
    assert asked[2:] == [(["publish", "test"], False), [str(study.PYTHON), "-m", "pytest", "-k", "column", "-x"]]


@pytest.mark.parametrize("what", study.PUBLISHED)
def test_what_is_made_of_the_notebooks(what, asked):
    assert study.main([what, "--", "notebooks/00-start-here.ipynb"]) == 7
    command = [str(study.PYTHON), "-m", f"tools.{what}", "notebooks/00-start-here.ipynb"]
    assert asked == [(["publish"], False), command]


def test_every_extra_that_is_asked_for_exists():
    assert set().union(*study.EXTRAS.values()) == set(EXTRAS)


def test_all_tests_are_shared_among_workers(asked):
    assert study.main(["test"]) == 7
    assert asked == [(["publish", "test"], False), [str(study.PYTHON), "-m", "pytest", *study.WORKERS]]


def test_the_interpreter_alone_on_standard_output(asked, capsys):
    assert study.main(["python"]) == 0
    assert capsys.readouterr().out == f"{study.PYTHON}\n"


def test_an_unknown_command_is_refused(asked):
    with pytest.raises(SystemExit):
        study.main(["tests"])
    assert asked == []


def test_ctrl_c_ends_jupyterlab_well_and_an_installation_with_a_word(asked, monkeypatch, capsys):
    def interrupt(*_arguments, **_options):
        raise KeyboardInterrupt

    monkeypatch.setattr(study, "run", interrupt)
    assert study.main([]) == 0
    monkeypatch.setattr(study, "install", interrupt)
    assert study.main([]) == 130
    assert "run study.py again" in capsys.readouterr().err


def test_one_at_a_time(tmp_path):
    program = (
        "import study, sys, time, pathlib\n"
        f"study.LOCK = pathlib.Path({str(tmp_path / 'lock')!r})\n"
        "with study.only_one():\n    print('in', flush=True); time.sleep(float(sys.argv[1])); print('out', flush=True)"
    )
    start = {"cwd": ROOT, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    first = subprocess.Popen([sys.executable, "-c", program, "1"], **start)
    assert first.stdout.readline() == "in\n"
    second = subprocess.Popen([sys.executable, "-c", program, "0"], **start)
    assert second.stdout.readline() == "in\n"
    assert first.poll() is not None or first.stdout.readline() == "out\n"
    first.communicate(timeout=10)
    assert "waiting" in second.communicate(timeout=10)[1]


# For real


def test_a_broken_venv_and_no_network(tmp_path):
    place = checkout(tmp_path)
    (place / ".venv" / "bin").mkdir(parents=True)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PIP_")}
    environment |= {"PIP_CONFIG_FILE": os.devnull, "PIP_RETRIES": "0", "PIP_INDEX_URL": "http://127.0.0.1:9/simple"}
    result = subprocess.run(
        [sys.executable, "study.py", "python"], cwd=place, env=environment, capture_output=True, text=True, timeout=120
    )
    assert result.returncode == 1
    assert result.stdout == ""
    assert ".venv is not whole" in result.stderr
    assert "Connect to the network" in result.stderr
    assert "Traceback" not in result.stderr
    assert json.loads((place / ".venv" / "study.json").read_text(encoding="utf-8")) == {"state": "installing"}


@pytest.mark.skipif(study.WINDOWS, reason="Windows knows no signals to ignore")
def test_what_does_not_listen_is_ended(monkeypatch):
    monkeypatch.setattr(study, "STOP_SECONDS", 0.2)
    deaf = (
        "import os, signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); "
        "signal.signal(signal.SIGINT, signal.SIG_IGN); os.kill(os.getppid(), signal.SIGINT); time.sleep(60)"
    )
    began = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        study.run([sys.executable, "-c", deaf])
    assert time.monotonic() - began < 10


@pytest.mark.skipif(study.WINDOWS, reason="sends Ctrl-C to a group of processes as POSIX does")
def test_jupyterlab_opens_on_loopback_with_a_token_and_ends_on_ctrl_c(tmp_path):
    program = (
        "import pathlib, signal, sys, study; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "study.PYTHON = pathlib.Path(sys.executable); sys.exit(study.lab(['--port=0'], browser=False))"
    )
    runtime = tmp_path / "runtime"
    process = subprocess.Popen(
        [sys.executable, "-c", program],
        cwd=ROOT,
        env={**os.environ, "JUPYTER_RUNTIME_DIR": str(runtime), "JUPYTER_CONFIG_DIR": str(tmp_path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        deadline = time.monotonic() + 60
        while not list(runtime.glob("jpserver-*-open.html")) and process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.1)
        server = json.loads(next(runtime.glob("jpserver-*.json")).read_text(encoding="utf-8"))
        assert server["url"].startswith("http://127.0.0.1:")
        assert Path(server["root_dir"]) == study.NOTEBOOKS
        with pytest.raises(urllib.error.HTTPError, match="403"):
            urllib.request.urlopen(f"{server['url']}api/contents")
        with urllib.request.urlopen(f"{server['url']}api/contents?token={server['token']}") as answer:
            assert answer.status == 200
    finally:
        os.killpg(process.pid, signal.SIGINT)
        out, _ = process.communicate(timeout=60)
    assert process.returncode == 0, out
    assert f"{server['url']}lab/tree/00-start-here.ipynb?token={server['token']}" in out
    assert out.endswith("JupyterLab has ended.\n")


# What is installed where


def requirements(lines):
    return {canonicalize_name(requirement.name): requirement for requirement in map(Requirement, lines)}


def pinned():
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    return requirements(line for line in lines if line and not line.startswith("#"))


@pytest.mark.parametrize("group", ["dependencies", *EXTRAS])
def test_every_requirement_is_pinned_within_its_range(group):
    pins = pinned()
    for name, requirement in requirements(EXTRAS.get(group) or PROJECT["dependencies"]).items():
        (pin,) = pins[name].specifier
        assert pin.operator == "==", name
        assert requirement.specifier.contains(pin.version), name


def test_what_is_tested_is_what_is_pinned():
    for name, requirement in pinned().items():
        version = Version(importlib.metadata.version(name))
        assert requirement.specifier.contains(version.public), f"{name} {version} is installed; run study.py test"


def environment():
    return yaml.safe_load((ROOT / "binder" / "environment.yml").read_text(encoding="utf-8"))


def test_both_environments_are_the_same():
    assert (ROOT / "environment.yml").read_bytes() == (ROOT / "binder" / "environment.yml").read_bytes()


def test_the_environment_is_in_step_with_the_project():
    conda = {"torch": "pytorch-cpu", "matplotlib": "matplotlib-base"}
    wanted = [
        f"{conda.get(requirement.name, requirement.name)}{requirement.specifier}"
        for requirement in map(Requirement, PROJECT["dependencies"])
    ]
    python, pip, *packages = environment()["dependencies"]  # a pip section would be a mapping in this list
    assert packages == wanted
    assert pip == "pip"
    version = re.fullmatch(r"python=(3\.\d+)", python)[1]
    assert PROJECT["requires-python"].removeprefix(">=") <= version
    assert environment()["channels"] == ["conda-forge", "nodefaults"]


def test_what_binder_would_do(tmp_path):
    place = checkout(tmp_path)
    command = [sys.executable, "-m", "repo2docker", "--no-build", "--debug", "."]
    result = subprocess.run(command, cwd=place, capture_output=True, text=True, timeout=120)
    assert result.returncode == 0, result.stderr
    steps = result.stdout + result.stderr
    used = steps.index('env update -p ${NB_PYTHON_PREFIX} --file "binder/environment.yml"')
    copied = steps.index("COPY --chown=0:0 src/ ${REPO_DIR}/")
    added = steps.index("RUN ./binder/postBuild")
    assert used < copied < added, "packages are installed before the sources are copied, and stay cached"
    assert os.access(place / "binder" / "postBuild", os.X_OK)
    assert "pip install --no-cache-dir --no-deps -e ." in (place / "binder" / "postBuild").read_text(encoding="utf-8")


def test_who_has_begun_is_led_to_the_index(tmp_path, monkeypatch):
    monkeypatch.setattr(study, "PROGRESS", tmp_path / ".progress.jsonl")
    assert "--LabApp.default_url=/lab/tree/00-start-here.ipynb" in study.lab_command(browser=True)
    study.PROGRESS.touch()
    assert "--LabApp.default_url=/lab/tree/0-index.ipynb" in study.lab_command(browser=True)
    assert {study.FIRST_NOTEBOOK, study.INDEX} <= {path.name for path in study.NOTEBOOKS.iterdir()}
