"""A small text of this project's own as numbers, for a tiny model: a word is one character (transformers)."""

from __future__ import annotations

from functools import cache
from importlib.resources import files

import torch
from torch import Tensor

from tpviz.i18n import _

VOCABULARY = 32
"""Words that a model of it has: those that occur, and some that never do, so that 2, 4 and 8 ranks divide them.

Source: Megatron-LM pads likewise (``--make-vocab-size-divisible-by``).
"""


@cache
def text() -> str:
    """Return the text, a page long: small letters, spaces, full stops, commas and new lines."""
    return (files("tpviz") / "data" / "ranks.txt").read_text(encoding="utf-8")


@cache
def characters() -> str:
    """Return the characters that occur, in order; a word's number is its place here."""
    return "".join(sorted(set(text())))


def encode(words: str) -> Tensor:
    """Return the characters' numbers, int64; ``ValueError`` where one does not occur in the text."""
    unknown = sorted(set(words) - set(characters()))
    if unknown:
        message = _("{unknown!r} does not occur in the text. It has these characters: {known!r}.")
        raise ValueError(message.format(unknown="".join(unknown), known=characters()))
    return torch.tensor([characters().index(word) for word in words])


def decode(numbers: Tensor) -> str:
    """Return the characters of numbers; those of no character as ``?``."""
    known = characters()
    return "".join(known[number] if number < len(known) else "?" for number in numbers.tolist())


def batch(step: int, sequence: int, size: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Return the words and, for each, the one that follows: both (sequence, size), the same wherever it is called.

    It depends on its arguments alone, so any rank can make it, and a training can go on from any step.
    """
    numbers = encode(text())
    generator = torch.Generator().manual_seed(1_000_003 * seed + step)
    starts = torch.randint(len(numbers) - sequence, (size,), generator=generator)
    rows = numbers[starts + torch.arange(sequence + 1).unsqueeze(1)]
    return rows[:-1], rows[1:]
