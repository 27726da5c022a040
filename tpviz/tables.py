"""Shapes, numbers and tables in words: plain text, and HTML that looks the same in every theme (trace; no logic)."""

import html
import unicodedata
from collections.abc import Sequence

from tpviz.i18n import _

_CARD = "color:#1f2933;background:#f5f7fa;border-collapse:collapse;margin:4px 0"
_CELL = "padding:6px 14px;text-align:left;color:#1f2933"
_ROW = "background:#ffffff;border-top:1px solid #d5dbe1"


def shape_text(shape: Sequence[int]) -> str:
    """Return a shape in words: 3×4 for a matrix, (2,) for a vector, as torch writes it."""
    if len(shape) == 1:
        return f"({shape[0]},)"
    return "×".join(map(str, shape)) or _("a scalar")


def size_text(size: int) -> str:
    """Return a number of bytes with the largest unit that it fills, of powers of 1024: ``48 MiB``."""
    units = ("B", "KiB", "MiB", "GiB", "TiB")
    power = min((max(size, 1).bit_length() - 1) // 10, len(units) - 1)
    return f"{size / 1024**power:.4g} {units[power]}"


def three(number: float) -> str:
    """A number in three digits, or in as many as stand before its point."""
    return f"{number:,.0f}" if abs(number) >= 99.95 else f"{number:#.3g}".rstrip(".")


class Table:
    """Headings and rows of text; without rows, one sentence that says so."""

    def __init__(self, headings: Sequence[str], rows: Sequence[Sequence[str]], empty: str = "") -> None:
        self.headings = tuple(headings)
        self.rows = tuple(map(tuple, rows))
        self._empty = empty

    def text(self) -> str:
        """Return the table as lines of plain text."""
        if not self.rows:
            return self._empty
        lines = [self.headings, *self.rows]
        widths = [max(map(_width, column)) for column in zip(*lines, strict=True)]
        return "\n".join(
            "  ".join(cell + " " * (width - _width(cell)) for cell, width in zip(line, widths, strict=True)).rstrip()
            for line in lines
        )

    def html(self) -> str:
        """Return the table as HTML."""
        if not self.rows:
            return f'<p style="{_CARD};{_CELL}">{html.escape(self._empty)}</p>'
        head = "".join(f'<th scope="col" style="{_CELL}">{html.escape(cell)}</th>' for cell in self.headings)
        body = "".join(
            f'<tr style="{_ROW}">' + "".join(f'<td style="{_CELL}">{html.escape(cell)}</td>' for cell in row) + "</tr>"
            for row in self.rows
        )
        return f'<table style="{_CARD}"><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>'

    __repr__ = text
    _repr_html_ = html


def _width(text: str) -> int:
    """Return the columns that a text takes in a terminal: a Chinese character takes two."""
    return sum(2 if unicodedata.east_asian_width(character) in "WF" else 1 for character in text)
