"""A maintainer's tool: fills docs/teacher.md with what the notebooks and the checks know.

`python -m tools.teacher` writes the parts that stand between `<!-- NAME: ... -->` and `<!-- end -->`: how long each
notebook takes, what to ask the room, what it may answer, and what to reply. The replies are the checks' own, filled
with the numbers that the wrong answers give. The lectures' plans are written by hand; the tests look for the slides
that they name in the notebooks.
"""

import re
from collections.abc import Iterator

from nbformat import NotebookNode

from tools import notebooks, places, readme
from tpviz import exercises
from tpviz.exercises.judging import misconception_answer
from tpviz.exercises.lessons import Lesson
from tpviz.exercises.pattern import Exercise, ValueExercise

PAGE = notebooks.ROOT / "docs" / "teacher.md"

_LINK = re.compile(r"\]\((?=[\w.-]+\.ipynb)")
_HEADING = re.compile(r"\A#+ [^\n]*\n+")


def link(each: Lesson, text: str | None = None) -> str:
    """A link to a notebook from the page."""
    return f"[{text or each.heading}](../notebooks/{each.path.name})"


# What is asked


def asked(nb: NotebookNode, exercise: str) -> str:
    """The text in front of an exercise, without its heading."""
    place = next(at for at, cell in enumerate(nb.cells) if f"exercise:{exercise}" in notebooks.tags(cell))
    texts = [
        cell.source
        for cell in nb.cells[:place]
        if cell.cell_type == "markdown" and notebooks.tagged(cell, "solution:") is None
    ]
    return _LINK.sub("](../notebooks/", _HEADING.sub("", texts[-1]))


def remembered(nb: NotebookNode) -> str:
    """What a notebook wants to leave behind: the lines of its last slide."""
    [text] = [cell.source for cell in nb.cells if cell.source.startswith("## Remember\n")]
    return _LINK.sub("](../notebooks/", _HEADING.sub("", text))


# What is answered


def aloud(exercise: Exercise) -> bool:
    """Whether a room can answer without a keyboard: with a number, a word or a short list."""
    return isinstance(exercise, ValueExercise) and isinstance(exercise.reference, (int, float, str, list))


def said(value: object) -> str:
    """An answer of that kind, as code."""
    if isinstance(value, float):
        return f"`{value:g}`"
    return f"`{value}`" if isinstance(value, str) else f"`{value!r}`".replace("'", '"')


def row(*texts: str) -> str:
    """A row of a table."""
    cells = (text.replace("|", r"\|").replace("\n", "<br>") for text in texts)
    return f"| {' | '.join(cells)} |"


def answers(exercise: Exercise) -> str:
    """The wrong answers of an exercise, and what the check replies."""
    spoken = aloud(exercise)
    lines = [row("You hear" if spoken else "You see", "You say"), "|---|---|"]
    for each in exercise.misconceptions:
        lines.append(row(said(each.code) if spoken else each.name, misconception_answer(exercise, each)))
    return "\n".join(lines)


def solution(exercise: Exercise) -> str:
    """The right answer, and why it is right."""
    if aloud(exercise):
        return f"Right: {said(exercise.reference)}. {exercise.praise(exercise.reference)}"
    code = exercise.solution.rpartition("\n\nexercises.check")[0]
    return f"```python\n{code}\n```\n\n{exercise.praise(exercise.reference)}"


def folded(title: str, text: str) -> str:
    """Markdown behind a click."""
    return f"<details>\n<summary>{title}</summary>\n\n{text}\n\n</details>"


def talked_through(nb: NotebookNode, ids: list[str]) -> Iterator[str]:
    """Exercises with what is asked, what is right and what is not."""
    for each in map(exercises.get, ids):
        yield f"**{each.id}.** {asked(nb, each.id)}\n\n{solution(each)}\n\n{answers(each)}"


# Parts of the page


def section(each: Lesson) -> str:
    """A core notebook: what needs no keyboard lies open, the rest is folded."""
    nb = notebooks.read(each.path)
    ids = [found for cell in nb.cells if (found := notebooks.tagged(cell, "exercise:"))]
    spoken = [found for found in ids if aloud(exercises.get(found))]
    typed = [found for found in ids if found not in spoken]
    parts = [
        f"### {link(each)}",
        f"*{each.minutes} minutes.* **Ask the room:** {each.question}",
        "The room should leave with:",
        remembered(nb),
        *talked_through(nb, spoken),
    ]
    if typed:
        parts.append(folded(f"At the keyboard: {', '.join(typed)}", "\n\n".join(talked_through(nb, typed))))
    return "\n\n".join(parts)


def further(each: Lesson) -> str:
    """Another notebook: its question, and the rest folded."""
    nb = notebooks.read(each.path)
    ids = [found for cell in nb.cells if (found := notebooks.tagged(cell, "exercise:"))]
    return "\n\n".join(
        [
            f"### {link(each)}",
            f"*{each.minutes} minutes, {each.kind}.* **Ask the room:** {each.question}",
            folded(f"Wrong answers: {', '.join(ids)}", "\n\n".join(talked_through(nb, ids))),
        ]
    )


def times(found: list[Lesson]) -> str:
    """How long the notebooks take a reader, and what is core."""
    core = [each for each in found if each.kind == "core"]
    others = [each for each in found if each.kind != "core"]
    lines = ["| To read alone | Minutes |", "|---|---|"]
    lines += [row(link(each), str(each.minutes)) for each in core]
    lines.append(row(f"the {len(core)} core notebooks", str(sum(each.minutes for each in core))))
    rest = ", ".join(f"{link(each, each.number)} {each.minutes}" for each in others)
    return "\n".join(lines) + f"\n\nThe others, in minutes: {rest}."


def parts() -> dict[str, str]:
    """The generated parts of the page, by name."""
    found = notebooks.lessons()
    core = [each for each in found if each.kind == "core"]
    return {
        "binder": f"[The first notebook on Binder]({places.binder(core[0].path)}).",
        "minutes": times(found),
        "core": "\n\n".join(map(section, core)),
        "further": "\n\n".join(further(each) for each in found if each not in core),
    }


def filled(text: str) -> str:
    """The text of the page with its generated parts as they are now."""
    return readme.fill(text, parts(), "docs/teacher.md")


def main() -> None:
    """Write the page."""
    PAGE.write_text(filled(PAGE.read_text(encoding="utf-8")), encoding="utf-8", newline="\n")


if __name__ == "__main__":
    main()
