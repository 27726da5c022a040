"""Numbers as the diagrams write them: short, stable text, and where each character stands (diagrams; no drawing)."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import accumulate, chain

from tpviz.diagrams.grammar import CELL, DIGIT_PITCH, SIZES

MINUS = "−"
_LARGE = 1e6
_PITCHES = {MINUS: 13, ".": 7}
_BASELINE = round(CELL / 2 + 0.36 * SIZES["digit"])


Line = tuple[int, int, Sequence[str]]
"""A row, a column, and the numbers that stand there one after another."""


def number_texts(rows: Sequence[Sequence[float]]) -> list[list[str]]:
    """Write a matrix's entries with as many decimals as they need, two at most.

    All entries get the same number of decimals, so that their points stand in line. What six digits cannot hold, or
    two decimals would show as zero, is written with an exponent.
    """
    integers = _integers(rows)
    if integers is not None:
        return [[str(value).replace("-", MINUS) for value in row] for row in integers]
    decimals = max(map(_decimals, chain.from_iterable(rows)))
    return [[_text(value, decimals) for value in row] for row in rows]


def _integers(rows: Sequence[Sequence[float]]) -> list[list[int]] | None:
    """The entries as integers, if all of them are and none is long."""
    try:
        integers = [[int(value) for value in row] for row in rows]
    except (ValueError, OverflowError):  # not a number, infinity
        return None
    values = [0, *chain.from_iterable(integers)]
    return integers if integers == rows and min(values) > -_LARGE and max(values) < _LARGE else None


def number_text(value: float) -> str:
    """Write one number."""
    return _text(value, _decimals(value))


def _decimals(value: float) -> int:
    if not math.isfinite(value) or value == int(value) or _needs_exponent(value):
        return 0
    return 1 if math.isclose(value, round(value, 1), rel_tol=1e-6) else 2


def _needs_exponent(value: float) -> bool:
    return abs(value) >= _LARGE or 0 < abs(value) < 0.005


def _text(value: float, decimals: int) -> str:
    if math.isnan(value):
        return "nan"
    if math.isinf(value):
        text = "∞"
    elif _needs_exponent(value):
        mantissa, _, exponent = f"{abs(value):.1e}".partition("e")
        text = f"{mantissa.removesuffix('.0')}e{int(exponent)}".replace("-", MINUS)
    else:
        text = f"{abs(value):.{decimals}f}"
    return MINUS + text if value < 0 else text


def _advance(character: str) -> int:
    return _PITCHES.get(character, DIGIT_PITCH)


def _digits_width(number: str) -> int:
    return sum(map(_advance, number.removeprefix(MINUS)))


@cache
def _centers(number: str) -> list[int]:
    """Where the characters' centres are, from the end of the number."""
    ends = accumulate(map(_advance, reversed(number)))
    return [_advance(character) // 2 - end for character, end in zip(reversed(number), ends, strict=True)][::-1]


@dataclass(frozen=True, slots=True)
class Cells:
    """The cells of a matrix of numbers: how wide they are, and where each character stands (whole px).

    Numbers are flush right, so that digits of one place stand under each other; a minus hangs to their left.
    """

    width: int
    digits_end: int
    """From a cell's left edge to the right end of its number."""

    @staticmethod
    def of(numbers: Iterable[str]) -> "Cells":
        """The cells that hold all of these numbers: a matrix's, or those of all its shards."""
        numbers = set(numbers)
        digits = max(map(_digits_width, numbers), default=0)
        hanging = _advance(MINUS) if any(number.startswith(MINUS) for number in numbers) else 0
        width = max(CELL, digits + hanging + 12)
        # A little to the right of the middle: signed and unsigned numbers look centred together, no minus is cramped.
        return Cells(width, (width + digits) // 2 + 2 * hanging // 5)

    def place(self, lines: Sequence[Line], x: int, y: int) -> tuple[str, str, str]:
        """Return the text of these numbers, and its characters' centres x and baselines y as SVG writes lists.

        x and y are those of the matrix's upper left corner. Spaces are in the text too, so that it reads as numbers.
        """
        columns = max(column + len(texts) for _row, column, texts in lines)
        ends = [x + self.digits_end + column * self.width for column in range(columns)]
        # Most numbers are one digit, with or without a minus: where these stand, and the space after each.
        digit = [f"{end - DIGIT_PITCH // 2} {end}" for end in ends]
        signed = [f"{end + _centers(MINUS + '0')[0]} {place}" for end, place in zip(ends, digit, strict=True)]
        numbers: list[str] = []
        xs: list[str] = []
        ys: list[str] = []
        for row, column, texts in lines:
            characters = len(texts)
            for place, text in enumerate(texts, column):
                characters += len(text)
                if len(text) == 1:
                    xs.append(digit[place])
                elif len(text) == 2 and text[0] == MINUS:
                    xs.append(signed[place])
                else:
                    xs += [str(ends[place] + center) for center in (*_centers(text), 0)]
            ys.append(f"{y + row * CELL + _BASELINE} " * characters)
            numbers += texts
        return " ".join(numbers), " ".join(xs).rpartition(" ")[0], "".join(ys)[:-1].rpartition(" ")[0]
