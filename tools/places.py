"""A maintainer's tool: the repository, which one line names, and where its notebooks run with nothing installed."""

import re
import tomllib
from pathlib import Path
from typing import Any
from urllib.parse import quote

from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parent.parent

COLAB_LACKS = ("svg.py", "cloudpickle")
"""What of tpviz's requirements Google Colab's Python may lack. The rest it has, in versions that its pages rely on:
another ipykernel or ipywidgets would need a restart, another torch would be gigabytes without its GPU's driver."""

SETUP = """\
# On Google Colab: fetch tpviz, and leave the PyTorch that is there. Elsewhere: nothing.
import sys

if "google.colab" in sys.modules and "tpviz" not in sys.modules:
    repository = "{repository}"
    %pip install --quiet --no-deps {lacking} git+{{repository}}"""


def project() -> dict[str, Any]:
    """The table [project] of pyproject.toml."""
    content = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    return dict(content["project"])


def repository() -> str:
    """OWNER/NAME of the repository on GitHub."""
    match = re.fullmatch(r"https://github\.com/([\w.-]+/[\w.-]+?)(\.git)?/?", project()["urls"]["Repository"])
    if match is None:
        raise ValueError("[project.urls] Repository in pyproject.toml is not of the form https://github.com/OWNER/NAME")
    return match[1]


def binder(notebook: Path) -> str:
    """The address at which Binder opens a notebook, in JupyterLab."""
    path = quote(notebook.relative_to(ROOT).as_posix(), safe="")
    return f"https://mybinder.org/v2/gh/{repository()}/HEAD?labpath={path}"


def colab(notebook: Path) -> str:
    """The address at which Google Colab opens a notebook."""
    path = quote(notebook.relative_to(ROOT).as_posix())
    return f"https://colab.research.google.com/github/{repository()}/blob/HEAD/{path}"


def setup() -> str:
    """The set-up cell with which a notebook runs on Google Colab; it does nothing anywhere else."""
    asked = {requirement.name: requirement for requirement in map(Requirement, project()["dependencies"])}
    lacking = " ".join(f'"{asked[name]}"' for name in COLAB_LACKS)
    return SETUP.format(repository=f"https://github.com/{repository()}", lacking=lacking)
