"""What `import tpviz` brings along, and in which direction the modules depend on each other."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import tpviz

PACKAGE = Path(tpviz.__file__).parent

# Lower pieces first; a module may import what stands before it (design.md: notebooks -> widgets -> diagrams, charts ->
# run, trace, layouts -> communicators -> torch).
ORDER = [
    {"i18n", "errors", "chunking", "source", "tables", "memory", "example"},
    {"trace"},
    {"communicator"},
    {"sharding", "moving", "streams", "workers", "captured", "diagnosis", "differences", "dispatched"},
    {"simulated", "operators"},
    {"wire", "standing", "waiting"},
    {"transfers"},
    {"distributed"},
    {"playing"},
    {"outcomes", "rank_process"},
    {"forking"},
    {"processes", "launched"},
    {
        "progress",
        "costs",
        "fitting",
        "machines",
        "matmuls",
        "transformers",
        "strategies",
        "steps",
        "timelines",
        "published",
        "corpus",
    },
    {"running", "parameters", "layouts", "replicas", "rules", "watching", "measuring"},
    {"layers", "gradients", "norms", "dropout"},
    {"fused", "vocabulary"},
    {"mlp", "attention"},
    {"blocks"},
    {"dense", "checkpoints"},
    {"training"},
    {"conversions"},
    {"planner"},
    {"plans"},
    {"diagrams", "charts"},
    {"exercises", "widgets", "__main__"},
]


def level(module):
    return next((number for number, names in enumerate(ORDER) if module.split(".")[0] in names), None)


def imports(path):
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("tpviz"):
            rest = node.module.removeprefix("tpviz").removeprefix(".")
            yield from [rest] if rest else [alias.name for alias in node.names]


@pytest.mark.parametrize("path", sorted(PACKAGE.rglob("*.py")), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_dependencies_point_one_way(path):
    module = ".".join(path.relative_to(PACKAGE).with_suffix("").parts).removesuffix(".__init__")
    if module == "__init__":
        return
    own = level(module)
    assert own is not None, f"{module} stands in no piece of ORDER"
    for imported in imports(path):
        other = level(imported)
        if other is not None:
            assert other <= own, f"{module} imports {imported}"


def test_importing_tpviz_loads_nothing_heavy():
    heavy = ("torch.distributed.tensor", "matplotlib", "ipywidgets", "IPython", "svg")
    script = f"import sys, tpviz; print([name for name in {heavy} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_every_public_name_exists():
    for name in tpviz.__all__:
        assert getattr(tpviz, name) is not None
    for name in ("layouts", "diagrams", "example"):
        assert getattr(tpviz, name).__name__ == f"tpviz.{name}"
    with pytest.raises(AttributeError, match="simulate"):
        tpviz.simulate  # noqa: B018
