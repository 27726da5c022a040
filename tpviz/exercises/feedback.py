"""What a check answers (checks): one card with an icon, a word, and why."""

import html
import re
from abc import ABC, abstractmethod
from collections.abc import Container
from dataclasses import dataclass
from typing import Literal

from tpviz.i18n import _

Status = Literal["unattempted", "right", "wrong"]

INK = "#1f2933"
# Okabe-Ito: blue, bluish green, vermillion. They mark the edge only; the icon and the word carry the meaning.
_EDGES: dict[Status, str] = {"unattempted": "#0072b2", "right": "#009e73", "wrong": "#d55e00"}
_ICONS: dict[Status, str] = {"unattempted": "○", "right": "✓", "wrong": "✗"}
_CODE = re.compile(r"`([^`]+)`")


def _markup(sentence: str) -> str:
    """A sentence as HTML: what stands between backticks is code, and lines stay lines."""
    style = f"background:#eef1f4;color:{INK};padding:0 3px;border-radius:3px;font-family:monospace"
    markup = _CODE.sub(rf'<code style="{style}">\1</code>', html.escape(sentence, quote=False))
    return markup.replace("\n", "<br>")


def card(status: Status, content: str) -> str:
    """The card: opaque and light, whatever the page's theme, all styles inline (JupyterLab removes the others)."""
    style = (
        f"border:1px solid #9aa5b1;border-left:6px solid {_EDGES[status]};border-radius:4px;"
        f"background:#ffffff;color:{INK};padding:8px 14px;margin:4px 0;max-width:46em;line-height:1.5"
    )
    return f'<div style="{style}">{content}</div>'


class Shown(ABC):
    """What the last line of a cell shows: HTML where the page can show it, else plain text."""

    __slots__ = ()

    @property
    @abstractmethod
    def text(self) -> str:
        """What it says, as plain text."""

    @property
    @abstractmethod
    def html(self) -> str:
        """The same as HTML."""

    def __repr__(self) -> str:
        return self.text

    def _repr_mimebundle_(
        self, include: Container[str] | None = None, exclude: Container[str] | None = None
    ) -> dict[str, str]:
        return {"text/html": self.html, "text/plain": self.text}


@dataclass(frozen=True, slots=True, repr=False)
class Notice(Shown):
    """One sentence on a card."""

    sentence: str
    is_good: bool = False

    @property
    def text(self) -> str:
        """The sentence."""
        return self.sentence

    @property
    def html(self) -> str:
        """The card."""
        return card("right" if self.is_good else "unattempted", _markup(self.sentence))


@dataclass(frozen=True, slots=True, repr=False)
class Feedback(Shown):
    """The answer to one attempt, as the last line of a cell shows it."""

    exercise: str
    status: Status
    sentences: tuple[str, ...]
    hints: tuple[str, ...] = ()
    """The hints offered with it, folded."""
    misconception: str | None = None
    """The name of the misconception that the attempt was recognised as."""

    @property
    def word(self) -> str:
        """The verdict in words."""
        words = {"unattempted": _("Not attempted yet."), "right": _("Right."), "wrong": _("Not right yet.")}
        return words[self.status]

    def _folds(self) -> list[tuple[str, str]]:
        return [(_("Hint {number}").format(number=number), hint) for number, hint in enumerate(self.hints, 1)]

    @property
    def text(self) -> str:
        """The card as plain text."""
        lines = [" ".join([_ICONS[self.status], self.word, *self.sentences])]
        return "\n".join(lines + [f"{title}: {hint}" for title, hint in self._folds()])

    @property
    def html(self) -> str:
        """The card."""
        first, *others = self.sentences
        verdict = f"<b>{_ICONS[self.status]} {html.escape(self.word)}</b>"
        parts = [f'<p style="margin:0">{verdict} {_markup(first)}</p>']
        parts += [f'<p style="margin:6px 0 0">{_markup(sentence)}</p>' for sentence in others]
        parts += [
            f'<details style="margin:6px 0 0"><summary style="cursor:pointer">{html.escape(title)}</summary>'
            f'<p style="margin:2px 0 0">{_markup(hint)}</p></details>'
            for title, hint in self._folds()
        ]
        return card(self.status, "".join(parts))
