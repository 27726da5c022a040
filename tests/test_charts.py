"""Charts: what they are given stands in them, the same numbers give the same SVG, and colour is never alone."""

import logging
import re
import subprocess
import sys
import warnings
import xml.etree.ElementTree as ElementTree

import matplotlib as mpl
import pytest

from tpviz import charts, memory
from tpviz.diagrams import Drawing
from tpviz.memory import LayerForward

ZERO3 = memory.zero3_forward(4, 4, 8, ranks=2)
COLUMN = memory.column_forward(4, 4, 8, ranks=2)
SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture(scope="module")
def chart():
    return charts.layer_forward(ZERO3, COLUMN)


def texts(drawing):
    return ["".join(node.itertext()).strip() for node in ElementTree.fromstring(drawing.svg).iter(f"{SVG}text")]


def bars(drawing):
    """Length and fill of each bar from top to bottom."""
    root = ElementTree.fromstring(drawing.svg)
    in_patterns = {path for pattern in root.iter(f"{SVG}pattern") for path in pattern}
    found = []
    for path in root.iter(f"{SVG}path"):
        edge = re.search("stroke: (#7a5400|#00704f)", path.get("style", ""))
        if edge and path not in in_patterns:
            numbers = [float(number) for number in re.findall(r"[\d.]+", path.get("d"))]
            xs, ys = numbers[::2], numbers[1::2]
            found.append((min(ys), max(xs) - min(xs), re.search("fill: ([^;]+)", path.get("style"))[1]))
    return [(length, fill) for _top, length, fill in sorted(found)]


def test_it_is_a_figure_like_the_others(chart):
    assert isinstance(chart, Drawing)
    assert chart.width == 1280
    root = ElementTree.fromstring(chart.svg)
    assert (root.get("width"), root.get("height")) == (str(chart.width), str(chart.height))
    assert root.get("role") == "img"
    assert root.get("aria-label") == chart.alt
    assert chart.svg.startswith("<svg")


def test_the_numbers_that_it_is_given_stand_in_it(chart):
    assert texts(chart) == [
        *("ZeRO-3", "64 bytes", "column split", "64 bytes"),
        *("ZeRO-3", "128 bytes", "column split", "64 bytes"),
        *("ZeRO-3", "128 operations", "column split", "128 operations"),
        *("weight that is stored", "weight present during the", "matmul", "arithmetic"),
    ]
    other = charts.layer_forward(LayerForward(1_000_000, 2, 3), LayerForward(4, 5, 6))
    assert {"1,000,000 bytes", "2 bytes", "3 operations", "4 bytes", "5 bytes", "6 operations"} <= set(texts(other))


def test_the_sentence_says_them_too(chart):
    assert chart.alt == (
        "One rank's share of a layer's forward, with ZeRO-3 and with the column split: "
        "weight that is stored, 64 bytes and 64 bytes; weight present during the matmul, 128 bytes and 64 bytes; "
        "arithmetic, 128 operations and 128 operations."
    )


def test_bars_are_as_long_as_their_numbers_and_bytes_have_one_scale(chart):
    lengths = [length for length, _fill in bars(chart)]
    assert lengths == pytest.approx(
        [lengths[2] / 2, lengths[2] / 2, lengths[2], lengths[2] / 2, lengths[2], lengths[2]]
    )


def test_hatch_tells_the_series_apart_and_strength_the_difference(chart):
    fills = [fill for _length, fill in bars(chart)]
    zero3, column = fills[::2], fills[1::2]
    assert all(fill.startswith("#") for fill in zero3)
    assert all(fill.startswith("url(#") for fill in column)
    assert zero3[0] == zero3[2] != zero3[1]
    assert column[0] == column[2] != column[1]


def test_the_same_numbers_give_the_same_svg_whatever_the_settings_are(chart, monkeypatch):
    with mpl.rc_context({"svg.fonttype": "path", "font.size": 7, "lines.linewidth": 9, "svg.hashsalt": None}):
        assert charts.layer_forward(ZERO3, COLUMN) == chart
        assert mpl.rcParams["font.size"] == 7, "the reader's settings are left as they were"
    assert not re.search(r"\d{4}-\d\d-\d\d|Matplotlib|metadata", chart.svg)


def test_a_new_process_draws_the_same(chart):
    code = (
        "from tpviz import charts, memory;"
        "print(charts.layer_forward(memory.zero3_forward(4, 4, 8, 2), memory.column_forward(4, 4, 8, 2)).svg, end='')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == chart.svg


def test_text_takes_the_readers_fonts(chart):
    families = set(re.findall("font-family: ([^;]+)", chart.svg))
    [family] = families
    for face in ("Arial", "PingFang SC", "Microsoft YaHei", "Noto Sans CJK SC", "sans-serif"):
        assert face in family
    assert set(re.findall(r"<text[^>]*fill: (#\w+)", chart.svg)) == {"#1f2933"}
    assert all(float(size) >= 22 for size in re.findall(r"font-size: ([\d.]+)px", chart.svg))


def test_chinese_words_bring_no_warning(monkeypatch, caplog):
    monkeypatch.setattr(charts.bars, "_", lambda message: "矩阵" + "".join(re.findall(r"{\w+}", message)))
    with warnings.catch_warnings(), caplog.at_level(logging.WARNING):
        warnings.simplefilter("error")
        drawn = charts.layer_forward(ZERO3, COLUMN)
    assert not caplog.records
    assert "矩阵" in drawn.svg


def test_no_pyplot_and_nothing_before_the_first_chart():
    code = (
        "import sys, tpviz, tpviz.exercises; assert 'matplotlib' not in sys.modules;"
        "tpviz.charts.layer_forward(tpviz.memory.zero3_forward(4, 4, 8, 2), tpviz.memory.column_forward(4, 4, 8, 2));"
        "assert 'matplotlib.pyplot' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
