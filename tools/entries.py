"""A maintainer's tool: what the notebooks' title cells say of them, and the order in which they are read.

Numbered notebooks come by number; another one comes behind the last that it needs, or right before the one that its
title cell says to read it before.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from tools import notebooks, readme

_FACTS = re.compile(r"\*(\d+) minutes · ([^·*]+) · you need: ([^*]*)\*")
_NOTEBOOK_LINK = re.compile(r"\]\(([\w.-]+\.ipynb)\)")
_BEFORE = re.compile(r"\bbefore\s+\[[^]]*\]\(([\w.-]+\.ipynb)\)")


@dataclass(frozen=True)
class Entry:
    """A notebook, and what its title cell says about it."""

    path: Path
    title: str
    question: str
    minutes: int
    level: str
    needs: tuple[str, ...]
    """The file names of the notebooks that it builds on."""
    before: str | None
    """The file name of the notebook that it is to be read right before."""


def entry(path: Path) -> Entry:
    """What a notebook's title cell says."""
    nb = notebooks.read(path)
    facts = _FACTS.search(nb.cells[0].source)
    if facts is None:
        raise ValueError(f"{path.name}: its first cell has no line *10 minutes · core · you need: ...*")
    before = _BEFORE.search(facts[3])
    needs = tuple(name for name in _NOTEBOOK_LINK.findall(facts[3]) if before is None or name != before[1])
    level = " ".join(facts[2].split())
    return Entry(path, readme.title(nb), readme.question(nb), int(facts[1]), level, needs, before and before[1])


def in_order(entries: Iterable[Entry]) -> list[Entry]:
    """The order of reading."""
    entries = sorted(entries, key=lambda each: each.path.name)
    result = [each for each in entries if each.path.name[0].isdigit()]
    for each in entries:
        if each in result:
            continue
        names = [other.path.name for other in result]
        behind = [names.index(name) + 1 for name in each.needs if name in names]
        place = names.index(each.before) if each.before in names else max(behind, default=len(names))
        result.insert(place, each)
    return result
