"""The poster: what the tool makes is what is stored, and one sheet of paper holds it."""

import re
from xml.etree import ElementTree

import pytest
import torch

import tpviz
from tools import browser, poster
from tpviz.diagrams import grammar

SVG = poster.POSTER.read_text(encoding="utf-8")


def test_the_stored_poster_is_what_the_tool_makes():
    assert poster.poster() == SVG, "run python -m tools.poster"


def test_it_is_one_whole_picture():
    root = ElementTree.fromstring(SVG)
    assert root.attrib["aria-label"].startswith("Tensor parallelism on one page")
    figures = root.findall("{http://www.w3.org/2000/svg}svg")
    assert len(figures) == 5
    assert all(figure.attrib["aria-label"] for figure in figures)
    for box in [*figures, *root.findall("{http://www.w3.org/2000/svg}rect[@x]")]:
        x, y, width, height = (float(box.attrib[name]) for name in ("x", "y", "width", "height"))
        assert 0 <= x < x + width <= poster.WIDTH
        assert 0 <= y < y + height <= poster.HEIGHT
    assert len(SVG) < 60_000


def test_digits_are_readable_on_a3():
    for figure in re.findall(r'<svg x="\d+" y="\d+" width="(\d+)" height="\d+" viewBox="0 0 (\d+)', SVG):
        shown, drawn = map(int, figure)
        points = grammar.SIZES["digit"] * shown / drawn * 420 / poster.WIDTH / 25.4 * 72
        assert points >= 9


def test_a_run_that_is_not_the_dense_one_makes_no_poster():
    whole = poster.wholes()
    run = tpviz.run(poster.two_layers, ranks=2)
    assert poster.checked(run, whole) is run
    with pytest.raises(AssertionError):
        poster.checked(run, {**whole, "dX": torch.zeros(3, 4)})


@pytest.mark.browser
@pytest.mark.skipif(browser.find_chromium() is None, reason="no Chromium on this machine; Debian: apt install chromium")
def test_it_prints_on_one_sheet(tmp_path):
    poster.write_pdf(SVG, tmp_path / "poster.pdf")
    content = (tmp_path / "poster.pdf").read_bytes()
    boxes = re.findall(rb"/MediaBox\s*\[\s*0 0 ([\d.]+) ([\d.]+)", content)
    assert [tuple(round(float(side)) for side in box) for box in boxes] == [(1684, 1191)]
