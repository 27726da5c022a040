"""A maintainer's tool: executes notebooks, brings them into one normal form, and checks that they are in it.

    python -m tools.notebooks run notebooks/01-*.ipynb      fill the exercises in, execute, write in normal form
    python -m tools.notebooks check                         say what is wrong with all notebooks; changes nothing
    python -m tools.notebooks text notebooks/01-*.ipynb     write build/01-*.py, to be edited without a browser
    python -m tools.notebooks from-text build/01-*.py       and back; outputs of unchanged cells stay
    python -m tools.notebooks new notebooks/03-backward.ipynb
    python -m tools.notebooks setup notebooks/*.ipynb       add the set-up cell (then execute) or renew it

The normal form is what makes stored outputs a regression test and a diff readable: each cell has a name that says what
it is and that never changes, counts run 1..n, and nothing is stored that differs between two runs or two machines.

In a text file `# %%` starts a code cell and `# %% [markdown]` a cell of text, whose lines begin with `# `. Behind it
stand `slide="slide"` (see SLIDE_TYPES), `tags=["C05"]` and `id="..."`. A new cell needs no id: it gets one made from
its first words, and then keeps it.

Tags: `C05` is a claim of notebooks/claims.toml, which the cell asserts; `exercise:ID` is a code cell that is filled
with the stub of `tpviz.exercises.get(ID)`, `solution:ID` a cell of text that is filled with its hints and solution,
folded; `setup` is the first code cell, which `tools.places` fills and which makes the notebook run on Google Colab;
`raises-exception` is a code cell that ends in an error on purpose; the source of a code cell that is `folded`
is shown after a click only.
"""

import argparse
import copy
import os
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import jupytext
import nbclient
import nbformat
from nbformat import NotebookNode

from tools import claims, places
from tpviz.exercises import lessons as tpviz_lessons
from tpviz.exercises.lessons import Lesson

ROOT = Path(__file__).resolve().parent.parent
NOTEBOOKS = ROOT / "notebooks"
TEXTS = ROOT / "build"
INDEX = NOTEBOOKS / "0-index.ipynb"
"""The one notebook that is no lesson: it lists the lessons, and asks nothing."""

CELL_TIMEOUT = 60
"""Seconds. A kernel that died would otherwise keep everyone waiting."""
LONGEST_CODE = 15
"""Lines of a code cell: what fits on a slide beside what it shows."""
EXERCISES = range(2, 5)
"""How many exercises a notebook has."""

SETUP = {"tags": ["folded", "setup"], "slideshow": {"slide_type": "skip"}}
"""How the set-up cell is marked: nothing to read, and not on the slides."""

SLIDE_TYPES = {
    "slide": "starts a slide",
    "subslide": "starts a slide below the last one",
    "fragment": "appears on the current slide at the next key press",
    "-": "belongs to what stands before it",
    "notes": "is shown to the speaker only",
    "skip": "is not on the slides",
}
KERNELSPEC = {"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"}
# What JupyterLab, nbconvert and GitHub colour the code by before any kernel runs. The version would change with
# whoever ran the notebook last.
LANGUAGE_INFO = {
    "file_extension": ".py",
    "mimetype": "text/x-python",
    "name": "python",
    "pygments_lexer": "ipython3",
}
WIDGET_VIEW = "application/vnd.jupyter.widget-view+json"
PERCENT = {"extension": ".py", "format_name": "percent"}

_RANDOM_ID = re.compile(r"[0-9a-f]{8}|[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_IMG = re.compile(r"<img\b[^>]*>")
_ALT = re.compile(r"""\balt=("[^"]+"|'[^']+')""")
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")
_UNSTABLE = {
    "an address": re.compile(r"\b0x[0-9a-f]{6,}\b"),
    "a process id": re.compile(r"ipykernel_\d+|\bpid\W{0,2}\d+", re.IGNORECASE),
    "a random id": re.compile(r"\b[0-9a-f]{32}\b|\b[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}\b"),
    "a path of one machine": re.compile(
        r"(?<![\w.>~])(/(home|root|Users|work|tmp|usr|opt|var|private)/\w|~/\w|[A-Za-z]:\\\w)"
    ),
}


class Refused(Exception):
    """What was asked for cannot be done; the message says what to do instead."""


def lesson(path: Path) -> Lesson:
    """What a notebook says of itself in its first cell."""
    found = tpviz_lessons.lesson(path)
    if found is None:
        raise ValueError(f"{path.name}: its first cell has no line *10 minutes · core · you need: ...*")
    if not found.question.endswith("?"):
        raise ValueError(f"{path.name}: its first cell does not end in the question that the notebook answers")
    return found


def lessons() -> list[Lesson]:
    """The notebooks that teach, all but the index, in the order of reading."""
    return tpviz_lessons.in_order(lesson(path) for path in NOTEBOOKS.glob("*.ipynb") if path != INDEX)


# The normal form


def tags(cell: NotebookNode) -> list[str]:
    """The tags of a cell."""
    return list(cell.metadata.get("tags", []))


def tagged(cell: NotebookNode, prefix: str) -> str | None:
    """What stands behind the prefix in the cell's tag, if it has such a tag."""
    return next((tag.removeprefix(prefix) for tag in tags(cell) if tag.startswith(prefix)), None)


def slug(cell: NotebookNode) -> str:
    """A readable name for a cell, from its exercise or from its first words."""
    for kind in ("exercise", "solution"):
        if (exercise := tagged(cell, f"{kind}:")) is not None:
            words = [kind, exercise]
            break
    else:
        lines = [line for line in cell.source.splitlines() if line.strip()]
        if cell.cell_type == "code":
            lines = [line for line in lines if not line.startswith(("import ", "from ", "%"))] or lines
        words = re.findall(r"[A-Za-z0-9]+", lines[0])[:5] if lines else []
    name = re.sub(r"[^a-z0-9]+", "-", " ".join(words).lower()).strip("-")[:40].strip("-")
    return name or ("text" if cell.cell_type == "markdown" else cell.cell_type)


def ids(nb: NotebookNode) -> list[str]:
    """One name for each cell: its own where it is not random and not taken, else one made from what it says."""
    own = [cell.get("id", "") for cell in nb.cells]
    kept = {name: index for index, name in reversed(list(enumerate(own))) if name and not _RANDOM_ID.fullmatch(name)}
    taken, result = set(kept), []
    for index, (cell, name) in enumerate(zip(nb.cells, own, strict=True)):
        if kept.get(name) != index:
            base = name = slug(cell)
            number = 2
            while name in taken or _RANDOM_ID.fullmatch(name):
                name = f"{base}-{number}"
                number += 1
            taken.add(name)
        result.append(name)
    return result


def _merged(outputs: list[NotebookNode]) -> list[NotebookNode]:
    """Neighbouring pieces of the same stream as one: where it was cut depends on time."""
    result: list[NotebookNode] = []
    for output in outputs:
        if output.output_type == "stream" and result and result[-1].get("name") == output.name:
            result[-1].text += output.text
        else:
            result.append(output)
    return result


def _output(output: NotebookNode, count: int | None) -> NotebookNode:
    """An output without what only the session that made it could use."""
    output.pop("transient", None)
    if output.output_type == "execute_result":
        output.execution_count = count
    if "data" in output:
        # A widget's model lives in the kernel that made it. Beside a still picture the reference would only hide the
        # picture behind "model not found"; the next run brings the widget back.
        if len({"text/html", "image/svg+xml", "image/png"} & set(output.data)) > 0:
            output.data.pop(WIDGET_VIEW, None)
        output.metadata = NotebookNode({key: output.metadata[key] for key in output.metadata if key in output.data})
    return output


def normalised(nb: NotebookNode) -> NotebookNode:
    """The notebook in normal form; a function of the notebook alone, and its own fixed point."""
    nb = copy.deepcopy(nb)
    nb.metadata = NotebookNode({"kernelspec": dict(KERNELSPEC), "language_info": dict(LANGUAGE_INFO)})
    nb.nbformat, nb.nbformat_minor = 4, 5
    count = 0
    for cell, name in zip(nb.cells, ids(nb), strict=True):
        cell.id = name
        cell.source = cell.source.strip("\n")
        metadata: dict[str, Any] = {}
        if names := tags(cell):
            metadata["tags"] = sorted(set(names))
        if "folded" in names:
            metadata["jupyter"] = {"source_hidden": True}
        if slide := cell.metadata.get("slideshow", {}).get("slide_type"):
            metadata["slideshow"] = {"slide_type": slide}
        cell.metadata = nbformat.from_dict(metadata)
        if cell.cell_type == "code":
            if cell.execution_count is not None:
                count += 1
                cell.execution_count = count
            cell.outputs = _merged([_output(output, cell.execution_count) for output in cell.outputs])
    return nb


def dumps(nb: NotebookNode) -> str:
    """The notebook as it is stored: sorted keys, indented by 1, one line a line, a newline at the end."""
    return str(nbformat.writes(nb)).rstrip("\n") + "\n"


def read(path: Path) -> NotebookNode:
    """The notebook of a file."""
    return nbformat.read(path, as_version=4)


def write(path: Path, nb: NotebookNode) -> None:
    """Store the notebook, the same bytes on every system."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(dumps(nb), encoding="utf-8", newline="\n")


# Exercises


def _folded(title: str, body: str) -> str:
    return f"<details>\n<summary>{title}</summary>\n\n{body.strip()}\n\n</details>"


def exercise_source(cell: NotebookNode, *, solved: bool = False) -> str | None:
    """What a cell of an exercise has to hold, from the exercise's one source; None for any other cell."""
    asked, answered = tagged(cell, "exercise:"), tagged(cell, "solution:")
    name = asked if asked is not None else answered
    if name is None:
        return None
    # Imports torch, which takes seconds that a notebook without exercises need not wait for.
    from tpviz import exercises
    from tpviz.i18n import _

    exercise = exercises.get(name)
    if asked is not None:
        return str(exercise.solution if solved else exercise.stub).strip("\n")
    hints = [_folded(_("Hint {number}").format(number=number), hint) for number, hint in enumerate(exercise.hints, 1)]
    return "\n".join([*hints, _folded(_("Solution"), f"```python\n{exercise.solution.strip()}\n```")])


def filled(nb: NotebookNode, *, solved: bool = False) -> NotebookNode:
    """The notebook with each exercise's stub (or its solution, as a learner would type it in) in its place."""
    nb = copy.deepcopy(nb)
    for cell in nb.cells:
        source = places.setup() if "setup" in tags(cell) else exercise_source(cell, solved=solved)
        if source is not None and source != cell.source:
            cell.source = source
    return nb


# The set-up cell


def is_set_up(nb: NotebookNode) -> bool:
    """Whether the first code cell is the set-up cell; a notebook of text alone needs none."""
    first = next((cell for cell in nb.cells if cell.cell_type == "code"), None)
    return first is None or "setup" in tags(first)


def with_setup(nb: NotebookNode) -> NotebookNode:
    """The notebook with its set-up cell as it has to be, right before its first code cell if it had none."""
    nb = copy.deepcopy(nb)
    if not is_set_up(nb):
        nb.cells = [cell for cell in nb.cells if "setup" not in tags(cell)]
        first = next(index for index, cell in enumerate(nb.cells) if cell.cell_type == "code")
        nb.cells.insert(first, nbformat.v4.new_code_cell(id="setup", metadata=nbformat.from_dict(SETUP)))
    for cell in nb.cells:
        if "setup" in tags(cell):
            cell.source = places.setup()
    return nb


# Execution


def _portable(text: str) -> str:
    """A traceback without the place where this machine keeps the project, its packages and Python."""
    for place in (ROOT, next(p for p in map(Path, sys.path) if p.name == "site-packages"), Path(os.__file__).parent):
        for written in (str(place), str(place).replace(str(Path.home()), "~", 1)):
            text = text.replace(written + os.sep, "")
    return text


def execute(nb: NotebookNode, folder: Path = NOTEBOOKS) -> NotebookNode:
    """The notebook run from top to bottom in a fresh kernel, in its own folder, in the words of the code.

    Nothing is noted as answered, and nothing that was is read: what is stored is what a learner begins with.
    """
    nb = copy.deepcopy(nb)
    client = nbclient.NotebookClient(
        nb,
        timeout=CELL_TIMEOUT,
        kernel_name=KERNELSPEC["name"],
        record_timing=False,
        extra_arguments=["--log-level=ERROR"],
        resources={"metadata": {"path": str(folder)}},
    )
    client.execute(env={**os.environ, "LANGUAGE": "en", "TPVIZ_PROGRESS": "off"})
    for cell in nb.cells:
        for output in cell.get("outputs", []):
            if output.output_type == "error":
                output.traceback = [_portable(line) for line in output.traceback]
    return nb


# Checks


def _texts(output: NotebookNode) -> Iterator[str]:
    """All that an output says, in each of its forms."""
    values: list[Any] = [output.get("text"), output.get("ename"), output.get("evalue"), *output.get("traceback", [])]
    values += output.get("data", {}).values()
    yield from (_COLOURS.sub("", value) for value in values if isinstance(value, str))


def _output_problems(output: NotebookNode) -> Iterator[str]:
    for what, pattern in _UNSTABLE.items():
        for text in _texts(output):
            if match := pattern.search(text):
                yield f"its output holds {what}, which differs at the next run: {match.group()!r}"
    data = output.get("data", {})
    if WIDGET_VIEW in data:
        yield "a widget that leaves no still picture (its bundle has neither text/html nor an image)"
    html = data.get("text/html", "")
    if any(kind.startswith("image/") for kind in data) and "<img" not in html:
        yield "a figure that JupyterLab hides in a notebook from elsewhere (no <img> in text/html)"
    if any(not _ALT.search(img) for img in _IMG.findall(html)):
        yield "an <img> without a text alternative (alt)"
    if html and not data.get("text/plain", "").strip():
        yield "an output without its sentence in text/plain"


def _cell_problems(cell: NotebookNode) -> Iterator[str]:
    slide = cell.metadata.get("slideshow", {}).get("slide_type")
    if slide not in SLIDE_TYPES:
        yield f"its slide type is {slide!r}, not one of {', '.join(SLIDE_TYPES)}"
    if not cell.source.strip():
        yield "it is empty"
    try:
        source = exercise_source(cell)
    except LookupError as error:
        yield f"no such exercise: {error}"
    else:
        if source is not None and source != cell.source:
            yield "it differs from its exercise in tpviz/exercises"
    if "setup" in tags(cell) and cell.source != places.setup():
        yield "it differs from tools/places.py; `python -m tools.notebooks setup` renews it"
    if cell.cell_type == "markdown" and any(not _ALT.search(img) for img in _IMG.findall(cell.source)):
        yield "an <img> without a text alternative (alt)"
    if cell.cell_type != "code":
        return
    if (lines := len(cell.source.splitlines())) > LONGEST_CODE:
        yield f"{lines} lines of code; {LONGEST_CODE} fit on a slide"
    if cell.execution_count is None:
        yield "it was not executed"
    raised = any(output.output_type == "error" for output in cell.outputs)
    if raised != ("raises-exception" in tags(cell)):
        yield "it ended in an error" if raised else "it is tagged raises-exception and ended well"
    for claim in claims.claimed(cell):
        if not claims.asserts(cell.source):
            yield f"it claims {claim} and asserts nothing that could be false"
    for output in cell.outputs:
        yield from _output_problems(output)


def _exercise_problems(path: Path, nb: NotebookNode) -> Iterator[str]:
    from tpviz import exercises

    asked = [name for cell in nb.cells if (name := tagged(cell, "exercise:")) is not None]
    answered = [name for cell in nb.cells if (name := tagged(cell, "solution:")) is not None]
    if path.name == INDEX.name:
        if asked:
            yield "the index asks exercises, and is no lesson"
    elif len(asked) not in EXERCISES:
        yield f"{len(asked)} exercises; a notebook has {EXERCISES.start} to {EXERCISES.stop - 1}"
    if sorted(asked) != sorted(answered):
        yield f"the exercises are {sorted(asked)}, and there are solutions of {sorted(answered)}"
    for name in exercises.ids():
        if name.startswith(f"{claims.number(path)}-") and name not in asked:
            yield f"exercise {name} of tpviz/exercises is not asked"


def problems(path: Path) -> list[str]:
    """What is wrong with a stored notebook, one line each; nothing where it is as it has to be."""
    text = path.read_text(encoding="utf-8")
    nb = nbformat.reads(text, as_version=4)
    found = []
    if dumps(normalised(nb)) != text:
        found.append("it is not in normal form")
    if not is_set_up(nb):
        found.append("its first code cell is not the set-up cell; `python -m tools.notebooks setup` adds it")
    found += _exercise_problems(path, nb)
    for number, cell in enumerate(nb.cells, 1):
        found += [f"cell {number} ({cell.get('id', 'no id')}): {problem}" for problem in _cell_problems(cell)]
    return [f"{path.name}: {problem}" for problem in found + claims.notebook_problems(path, nb)]


# Text and back


def to_text(nb: NotebookNode) -> str:
    """The sources of a notebook as a Python file in the percent format."""
    nb = copy.deepcopy(nb)
    for cell in nb.cells:
        metadata = {"id": cell.id, **cell.metadata}
        if slide := metadata.pop("slideshow", {}).get("slide_type"):
            metadata["slide"] = slide
        cell.metadata = nbformat.from_dict(metadata)
        if cell.cell_type == "code":
            cell.outputs = []
    nb.metadata = nbformat.from_dict(
        {"jupytext": {"notebook_metadata_filter": "-all", "cell_metadata_filter": "slide,tags,id,-all"}}
    )
    return str(jupytext.writes(nb, PERCENT))


def from_text(text: str, before: NotebookNode | None = None) -> NotebookNode:
    """The notebook of a text file, in normal form, with the outputs that unchanged cells had before."""
    nb = jupytext.reads(text, PERCENT)
    ran = {cell.id: cell for cell in before.cells if cell.cell_type == "code"} if before else {}
    for cell in nb.cells:
        cell.id = cell.metadata.pop("id", "")
        if slide := cell.metadata.pop("slide", None):
            cell.metadata["slideshow"] = {"slide_type": slide}
        old = ran.get(cell.id)
        if cell.cell_type == "code" and old is not None and old.source == cell.source:
            cell.outputs, cell.execution_count = old.outputs, old.execution_count
    return normalised(nb)


def text_path(notebook: Path) -> Path:
    """Where the text of a notebook is edited."""
    return TEXTS / f"{notebook.stem}.py"


def _sources(nb: NotebookNode) -> list[tuple[str, str, str]]:
    return [(cell.id, cell.cell_type, cell.source) for cell in nb.cells]


def _keep_newer(target: Path, source: Path, nb: NotebookNode, force: bool) -> None:
    """Refuse to overwrite work: the target is newer than what it would be written from, and says something else."""
    if force or not target.exists() or target.stat().st_mtime <= source.stat().st_mtime:
        return
    other = read(target) if target.suffix == ".ipynb" else from_text(target.read_text(encoding="utf-8"))
    if _sources(other) != _sources(nb):
        raise Refused(f"{target} is newer than {source} and differs from it; --force overwrites it")


# The skeleton of a new notebook: design.md's order.
SKELETON = """\
# %% [markdown] id="title" slide="slide"
# # TITLE
#
# 10 minutes · core · needs: notebook ...
#
# The question that the reader would ask.

# %% id="setup" tags=["folded", "setup"] slide="skip"

# %% [markdown] id="predict" slide="fragment"
# ## Predict
#
# A prediction that costs a second, before anything is computed.

# %% [markdown] id="your-lines" slide="slide"
# ## What one rank does

# %% id="program" slide="-"
# the learner's few lines

# %% [markdown] id="run" slide="subslide"
# ## Run it

# %% [markdown] id="look" slide="slide"
# ## Look
#
# Things to notice:

# %% [markdown] id="vary" slide="slide"
# ## Move one thing

# %% [markdown] id="check" slide="slide"
# ## Check yourself

# %% [markdown] id="remember" slide="slide"
# ## What to remember

# %% [markdown] id="real-world" slide="slide"
# ## Where it is in the real world
"""


# The commands


def _executed(path: Path, nb: NotebookNode) -> None:
    try:
        nb = execute(nb, path.resolve().parent)
    except nbclient.exceptions.CellExecutionError as error:
        raise Refused(f"{path}: a cell failed; the notebook is left as it was\n{error}") from None
    write(path, normalised(nb))
    print(f"{path}: executed")
    for problem in problems(path):
        print(f"  {problem}")


def _run(path: Path, _force: bool) -> None:
    _executed(path, filled(read(path)))


def _setup(path: Path, _force: bool) -> None:
    before = read(path)
    nb = with_setup(before)
    if len(nb.cells) != len(before.cells) or not is_set_up(before):
        _executed(path, filled(nb))  # the counts move, and there are outputs that name a cell by its count
    else:
        # It does nothing here, whatever it says: what is stored stays right.
        write(path, normalised(nb))
        print(f"{path}: set up")


def _text(path: Path, force: bool) -> None:
    nb, target = normalised(read(path)), text_path(path)
    _keep_newer(target, path, nb, force)
    target.parent.mkdir(exist_ok=True)
    target.write_text(to_text(nb), encoding="utf-8", newline="\n")
    print(target)


def _from_text(path: Path, force: bool) -> None:
    target = NOTEBOOKS / f"{path.stem}.ipynb"
    nb = from_text(path.read_text(encoding="utf-8"), read(target) if target.exists() else None)
    _keep_newer(target, path, nb, force)
    write(target, nb)
    print(target)


def _new(path: Path, force: bool) -> None:
    if path.exists() and not force:
        raise Refused(f"{path} exists; --force overwrites it")
    write(path, filled(from_text(SKELETON)))
    print(path)


def _check(paths: Sequence[Path]) -> int:
    found = [problem for path in paths for problem in problems(path)]
    print("\n".join(found) if found else f"{len(paths)} notebooks are as they have to be")
    return 1 if found else 0


COMMANDS = {"run": _run, "text": _text, "from-text": _from_text, "new": _new, "setup": _setup}


def main(arguments: Sequence[str] | None = None) -> int:
    """Carry out one command; only the files named are ever changed."""
    assert __doc__ is not None
    parser = argparse.ArgumentParser(
        prog="python -m tools.notebooks", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("command", choices=[*COMMANDS, "check"])
    parser.add_argument("files", nargs="*", type=Path)
    parser.add_argument("--force", action="store_true", help="overwrite what is newer")
    options = parser.parse_intermixed_args(arguments)
    if options.command == "check":
        return _check(options.files or sorted(NOTEBOOKS.glob("*.ipynb")))
    if not options.files:
        parser.error(f"{options.command} needs the files that it may change")
    try:
        for path in options.files:
            COMMANDS[options.command](path, options.force)
    except Refused as refusal:
        print(refusal, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
