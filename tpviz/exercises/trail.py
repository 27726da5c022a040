"""The trail (checks): the lessons in reading order, with what is done and what comes next, as a page with links."""

import html
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from urllib.parse import quote

from tpviz.exercises import record
from tpviz.exercises.feedback import INK, Shown
from tpviz.exercises.lessons import Lesson
from tpviz.i18n import _

_MUTED, _LINE, _BLUE, _GREEN = "#52606d", "#d5dbe1", "#0072b2", "#00704f"
_CARD = (
    f"border:1px solid #9aa5b1;border-radius:6px;background:#ffffff;color:{INK};padding:14px 18px;margin:4px 0;"
    "max-width:58em;line-height:1.45"
)
_EMPHASIS = re.compile(r"\*\*?([^*]+)\*\*?")
# How far a lesson is: not begun, begun, done. The shape of the sign carries the meaning, its colour repeats it.
_SIGNS = ("○", "◐", "✓")
_COLOURS = (_MUTED, _BLUE, _GREEN)


@dataclass(frozen=True, repr=False)
class Trail(Shown):
    """The lessons, and the day of each right answer by exercise; the last line of a cell shows it."""

    lessons: tuple[Lesson, ...]
    right: Mapping[str, str]
    is_kept: bool = True
    """False where the folder takes no record, which the reader then is told."""

    def count(self, lesson: Lesson) -> int:
        """How many exercises of a lesson were answered right."""
        return sum(exercise in self.right for exercise in lesson.exercises)

    def is_done(self, lesson: Lesson) -> bool:
        """Whether all of them were."""
        return self.count(lesson) == len(lesson.exercises)

    @cached_property
    def next(self) -> Lesson | None:
        """The first lesson that is not done: of the core, and when that is done, of the others."""
        open_ones = [lesson for lesson in self.lessons if not self.is_done(lesson)]
        return next((lesson for lesson in open_ones if lesson.is_core), open_ones[0] if open_ones else None)

    @property
    def summary(self) -> list[str]:
        """What is done and what comes next, in sentences."""
        core = [lesson for lesson in self.lessons if lesson.is_core]
        left = sum(lesson.minutes for lesson in core if not self.is_done(lesson))
        done = sum(map(self.is_done, core))
        told = _("Core: {done} of {all} notebooks done, about {left} minutes left.")
        sentences = [told.format(done=done, all=len(core), left=left)]
        if not self.is_kept:
            sentences.append(_("The folder of the notebooks takes no file: what you do now will not be remembered."))
        return sentences

    def _sign(self, lesson: Lesson) -> int:
        return 2 if self.is_done(lesson) else 1 if self.count(lesson) else 0

    def _facts(self, lesson: Lesson) -> str:
        told = _("{minutes} min") if lesson.is_core else _("{minutes} min · {kind}")
        return told.format(minutes=lesson.minutes, kind=lesson.kind)

    @property
    def text(self) -> str:
        """The trail as plain text."""
        lines = list(self.summary)
        for lesson in self.lessons:
            row = _("{sign} {heading} ({facts}): {right} of {all} exercises right")
            told = row.format(
                sign=_SIGNS[self._sign(lesson)],
                heading=lesson.heading,
                facts=self._facts(lesson),
                right=self.count(lesson),
                all=len(lesson.exercises),
            )
            lines.append(told + (_("  ← next") if lesson is self.next else ""))
        return "\n".join(lines)

    def _dots(self, lesson: Lesson) -> str:
        """One link for each exercise, to its cell."""
        dots = []
        for exercise, cell in lesson.exercises.items():
            day = self.right.get(exercise)
            title = exercise if day is None else _("{exercise}: right on {day}").format(exercise=exercise, day=day)
            style = f"text-decoration:none;color:{_MUTED if day is None else _GREEN};font-size:18px;padding:0 3px"
            dots.append(
                f'<a href="{_address(lesson)}#cell-id={quote(cell)}" title="{html.escape(title)}" style="{style}">'
                f"{'○' if day is None else '●'}</a>"
            )
        return "".join(dots)

    def _row(self, lesson: Lesson) -> str:
        is_next, sign = lesson is self.next, self._sign(lesson)
        background = "#eaf3fa" if is_next else "#ffffff"
        cell = f"padding:7px 10px;text-align:left;vertical-align:top;background:{background};color:{INK}"
        size, weight, indent = ("1.05em", 700, 8) if lesson.is_core else ("0.95em", 400, 38)
        badge = (
            f' <span style="background:{_BLUE};color:#ffffff;border-radius:9px;padding:1px 9px;font-size:0.85em;'
            f'font-weight:700">{html.escape(_("next"))}</span>'
            if is_next
            else ""
        )
        title = (
            f'<a href="{_address(lesson)}" style="color:#0b4f7d;font-weight:{weight};font-size:{size}">'
            f"{html.escape(lesson.heading)}</a>{badge}"
        )
        minutes = html.escape(_("{minutes} min").format(minutes=lesson.minutes))
        kind = (
            "" if lesson.is_core else f'<div style="color:{_MUTED};font-size:0.93em">{html.escape(lesson.kind)}</div>'
        )
        question = f'<div style="color:{_MUTED};font-size:0.93em">{_markup(lesson.question)}</div>'
        return (
            f'<tr style="border-top:1px solid {_LINE};background:{background}">'
            f'<td style="{cell};white-space:nowrap">'
            f'<span style="color:{_COLOURS[sign]};font-size:1.2em;font-weight:700">{_SIGNS[sign]}</span></td>'
            f'<td style="{cell};padding-left:{indent}px;width:100%">{title}{question}</td>'
            f'<td style="{cell};min-width:7em">{minutes}{kind}</td>'
            f'<td style="{cell};white-space:nowrap">{self._dots(lesson)}</td></tr>'
        )

    @property
    def html(self) -> str:
        """The trail as a table, all styles inline."""
        summary = "".join(f'<p style="margin:0 0 8px">{html.escape(sentence)}</p>' for sentence in self.summary)
        rows = "".join(map(self._row, self.lessons))
        table = f'<table style="border-collapse:collapse;background:#ffffff;margin:0">{rows}</table>'
        return f'<div style="{_CARD}">{summary}{table}{self._download()}</div>'

    def _download(self) -> str:
        """The record as a link that needs no server: nothing where nothing is noted."""
        if not self.right:
            return ""
        address = f"data:text/plain;charset=utf-8,{quote(record.lines(dict(self.right)))}"
        link = html.escape(_("Download your progress"))
        return (
            f'<p style="margin:10px 0 0"><a download="{record.DOWNLOAD}" href="{address}" style="color:#0b4f7d">'
            f"{link}</a> ({record.DOWNLOAD})</p>"
        )


def _address(lesson: Lesson) -> str:
    """The address of a lesson, from the notebook that shows the trail."""
    return quote(os.path.relpath(lesson.path).replace(os.sep, "/"))


def _markup(question: str) -> str:
    """A question's Markdown as HTML: it has emphasis, and nothing else."""
    return _EMPHASIS.sub(r"<em>\1</em>", html.escape(question, quote=False))
