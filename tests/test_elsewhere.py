"""tpviz in a Python that does not have it: what Binder's postBuild, Colab's set-up cell and a wheel bring there."""

import os
import shutil
import subprocess
import sysconfig
import tarfile
import venv
import zipfile
from pathlib import Path
from types import SimpleNamespace

import nbclient
import pytest
from jupyter_client.manager import AsyncKernelManager
from nbformat.v4 import new_code_cell, new_notebook

from tools import notebooks, places

pytestmark = pytest.mark.skipif(os.name == "nt", reason="links to the packages that are there; Windows asks who may")

# No network is needed: setuptools is there.
OFFLINE = {"PIP_NO_BUILD_ISOLATION": "0", "PIP_NO_INDEX": "1"}
NOT_A_CHECKOUTS = (".git", ".venv", "build", "__pycache__", "*.egg-info", ".*_cache", ".hypothesis")


@pytest.fixture
def elsewhere(tmp_path):
    """A fresh clone of the project, and a Python with all that is installed here but tpviz."""
    clone = shutil.copytree(places.ROOT, tmp_path / "clone", ignore=shutil.ignore_patterns(*NOT_A_CHECKOUTS))
    packages = tmp_path / "packages"
    packages.mkdir()
    for entry in Path(sysconfig.get_path("purelib")).iterdir():
        if "tpviz" not in entry.name and entry.suffix != ".pth":
            (packages / entry.name).symlink_to(entry)
    venv.create(tmp_path / "venv", symlinks=True)
    python = tmp_path / "venv" / "bin" / "python"
    own = Path(sysconfig.get_path("purelib", vars={"base": str(tmp_path / "venv")}))
    (own / "packages.pth").write_text(str(packages), encoding="utf-8")
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | OFFLINE
    environment["PATH"] = f"{python.parent}{os.pathsep}{environment['PATH']}"
    return SimpleNamespace(clone=Path(clone), python=python, own=own, environment=environment)


def run(elsewhere, command, cwd):
    result = subprocess.run(command, cwd=cwd, env=elsewhere.environment, capture_output=True, text=True, timeout=300)
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


def test_it_is_not_there_before(elsewhere, tmp_path):
    look = "import importlib.util, torch; print(importlib.util.find_spec('tpviz'))"
    assert run(elsewhere, [elsewhere.python, "-c", look], tmp_path) == "None\n"


def test_binders_post_build_leaves_the_clone_importable(elsewhere, tmp_path):
    run(elsewhere, [elsewhere.clone / "binder" / "postBuild"], elsewhere.clone)
    found = run(elsewhere, [elsewhere.python, "-c", "import tpviz; print(tpviz.__file__)"], tmp_path)
    assert Path(found.strip()) == elsewhere.clone / "tpviz" / "__init__.py"


def test_a_wheel_and_a_source_distribution_hold_all_files(elsewhere, tmp_path):
    package = elsewhere.clone / "tpviz"
    files = {path.relative_to(elsewhere.clone).as_posix() for path in package.rglob("*") if path.is_file()}
    assert {"tpviz/data/ranks.txt", "tpviz/locale/tpviz.pot", "tpviz/py.typed"} <= files
    command = [elsewhere.python, "-m", "pip", "wheel", "--no-deps", "--wheel-dir", tmp_path, "."]
    run(elsewhere, command, elsewhere.clone)
    (wheel,) = tmp_path.glob("*.whl")
    assert {name for name in zipfile.ZipFile(wheel).namelist() if name.startswith("tpviz/")} == files
    build = f"from setuptools import build_meta; build_meta.build_sdist({str(tmp_path)!r})"
    run(elsewhere, [elsewhere.python, "-c", build], elsewhere.clone)
    (archive,) = tmp_path.glob("*.tar.gz")
    with tarfile.open(archive) as contents:
        names = {name.partition("/")[2] for name in contents.getnames()}
    assert files <= names


@pytest.mark.skipif(shutil.which("git") is None, reason="the cell has pip ask git for the repository")
def test_the_set_up_cell_makes_the_first_notebook_run_on_colab(elsewhere, tmp_path, monkeypatch):
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@b.c"]
    for command in (["init", "-q"], ["add", "-A"], ["commit", "-q", "-m", "all"]):
        subprocess.run([*git, *command], cwd=elsewhere.clone, check=True)
    # Stands for GitHub, without a change to the cell.
    there = {"KEY": f"url.{elsewhere.clone.as_uri()}.insteadOf", "VALUE": f"https://github.com/{places.repository()}"}
    environment = elsewhere.environment | {f"GIT_CONFIG_{name}_0": value for name, value in there.items()}
    pretend = new_code_cell("import sys, types\nsys.modules['google.colab'] = types.ModuleType('google.colab')")
    first = notebooks.read(notebooks.NOTEBOOKS / "00-start-here.ipynb")
    cells = [cell for cell in first.cells if cell.cell_type == "code"][:4]
    nb = new_notebook(cells=[pretend, *cells])
    manager = AsyncKernelManager(kernel_name="python3")
    manager.kernel_spec.argv[0] = str(elsewhere.python)
    client = nbclient.NotebookClient(nb, km=manager, timeout=300, resources={"metadata": {"path": str(tmp_path)}})
    client.execute(env=environment | {"GIT_CONFIG_COUNT": "1"})
    ran = client.nb.cells[1:]
    assert ran[0].source == places.setup()
    assert [output.data["text/plain"] for output in ran[2].outputs] == ["['rank 0 of 2', 'rank 1 of 2']"]
    assert (elsewhere.own / "tpviz" / "data" / "ranks.txt").exists()
    assert not list(elsewhere.own.glob("torch*")), "the PyTorch that was there is left"
