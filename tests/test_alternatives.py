"""Who hears a figure hears one sentence: every stored figure of every notebook, and every choice of every widget."""

import html
import re

import pytest

from tools import notebooks

IMAGE = re.compile(r"<img\b[^>]*>")
RAW = re.compile(r"[<>{}_]|\btensor\(|\b0x|\b(?:None|True|False|nan|inf)\b|\d\.\d{5}")
"""What a computer writes and nobody says."""
LENGTHS = range(30, 450)


def faults(sentence):
    """What keeps a text alternative from being one sentence that can be listened to."""
    found = []
    if not re.match(r"[A-Z0-9]", sentence) or not sentence.endswith("."):
        found.append("is no sentence from a capital to a full stop")
    if re.search(r"[.!?]\s", sentence):
        found.append("is more than one sentence")
    if raw := RAW.search(sentence):
        found.append(f"has {raw[0]!r} in it")
    if len(sentence) not in LENGTHS:
        found.append(f"has {len(sentence)} characters")
    return found


@pytest.mark.parametrize("path", sorted(notebooks.NOTEBOOKS.glob("*.ipynb")), ids=lambda path: path.stem)
def test_every_stored_figure_is_one_sentence(path):
    for cell in notebooks.read(path).cells:
        for data in (output.get("data", {}) for output in cell.get("outputs", [])):
            images = IMAGE.findall(data.get("text/html", ""))
            said = [html.unescape(re.search(r'\balt="([^"]*)"', image)[1]) for image in images]
            for sentence in said:
                assert faults(sentence) == [], (cell.id, sentence)
            if len(said) == 1:
                assert data["text/plain"] == said[0], cell.id
            assert html.unescape(data.get("image/svg+xml", "")).count("aria-label") == ("image/svg+xml" in data)


@pytest.mark.parametrize(
    "sentence",
    [
        *("", "x", "one rank holds all of Y, which is 3×4 and whole.", "One rank holds all of Y, which is 3×4"),
        *("Rank 0 holds all of Y. Rank 1 holds nothing at all.", "Rank 0 holds tensor([1, 2]), and rank 1 nothing."),
        *("Rank 0 holds 0.333333 of it, and rank 1 all the rest.", "What {name} holds is whole on both of the ranks."),
        "Rank 0 holds " + "one, " * 100 + "and rank 1 two.",
    ],
)
def test_what_is_no_sentence_is_found(sentence):
    assert faults(sentence)
