"""The charts of 08 and 08b: the numbers that they are given stand in them, in words too, and colour is never alone."""

import re
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from itertools import pairwise

import numpy as np
import pytest

from tpviz import charts
from tpviz.charts import maps
from tpviz.charts.base import ABSENT, DARK_GREEN, GREEN, GREY, ORANGE, PALE_GREEN
from tpviz.diagrams import Drawing
from tpviz.memory import GB, ModelStates
from tpviz.published import Comparison, Row
from tpviz.steps import Phase
from tpviz.strategies import RankBytes
from tpviz.tables import three
from tpviz.timelines import Task

SVG = "{http://www.w3.org/2000/svg}"
HIDDEN, TOKENS = [1024, 2048, 4096, 8192], [128, 256, 512]


def speed_map(lowest=0.5, ranks=8, marks=()):
    speeds = np.linspace(lowest, ranks - 1, 12).reshape(3, 4)
    return charts.speed_map(HIDDEN, TOKENS, speeds, ranks, "a machine", marks)


def breakdowns():
    spent = [Phase(8e-3, 2e-3, 0.0), Phase(4e-3, 1e-3, 3e-3), Phase(3e-3, 1e-3, 8e-3)]
    return charts.breakdowns([1, 2, 4], spent, "a layer")


def timelines():
    tp = [Task("attention", 0, False, 0.0, 4e-3), Task("AllReduce", 0, True, 4e-3, 6e-3)]
    fsdp = [Task("gather", 0, True, 0.0, 1e-3), Task("layer", 0, False, 1e-3, 4e-3)]
    return charts.timelines([("TP", tp), ("FSDP", fsdp)])


def efficiencies():
    curves = [charts.Curve("small", [1, 0.5, 0.2]), charts.Curve("large", [1, 0.9, 0.21])]
    return charts.efficiencies([charts.Against("ranks", [1, 2, 4], [1, 4], curves)], "some layers")


def published():
    first = Comparison("plain", "%", (Row("1.2B on 1 GPU", 100, 100.0), Row("8.3B on 8 GPUs", 77, 87.04)))
    return charts.published([first], ["plain model"])


def way(name, parts, sent=(0.0, 0.0), speed=2.0):
    weights, gradients, optimizer, gathered, activations = (GB * part for part in parts)
    kept = RankBytes(ModelStates(weights, gradients, optimizer), gathered, activations)
    return charts.Way(name, kept, GB * sent[0], GB * sent[1], speed)


def ways():
    found = [
        way("DP", (20, 20, 120, 0, 10), (0, 3)),
        way("FSDP", (2, 2, 15, 1, 10), (0, 4.5), 34.14),
        way("TP 8", (2, 2, 15, 0, 5), (4, 0), 16.0),
    ]
    return charts.ways(found, 80 * GB, "a model, a cluster")


def foretold():
    return charts.foretold([charts.Foretold("3×4×8", 9e-4, 1e-3), charts.Foretold("64×128×512", 2.2e-3, 2e-3)])


def losses():
    first = [3.0, 2.0, 1.0]
    others = {"2 ranks": first, "float32": [3.0, 2.0, 1.0 + 3e-7], "with a mistake": [3.25, 2.5, 1.5]}
    return charts.losses([charts.Losses("one device", first), *(charts.Losses(*each) for each in others.items())])


def activations():
    one, shared, cut = (charts.KeptBytes(*(GB * part for part in parts)) for parts in ((5, 12), (5, 6), (2.5, 6)))
    return charts.activations([charts.Degree(1, one, one), charts.Degree(2, shared, cut)], "a layer")


EVERY = (speed_map, breakdowns, timelines, efficiencies, published, ways, foretold, losses, activations)
each = pytest.mark.parametrize("draw", EVERY, ids=lambda draw: draw.__name__)


def texts(drawing):
    return ["".join(node.itertext()).strip() for node in ElementTree.fromstring(drawing.svg).iter(f"{SVG}text")]


@each
def test_they_are_figures_like_the_others(draw):
    drawing = draw()
    assert isinstance(drawing, Drawing)
    assert drawing.width == 1280
    assert 200 < drawing.height <= 720
    root = ElementTree.fromstring(drawing.svg)
    assert root.get("role") == "img"
    assert root.get("aria-label") == drawing.alt
    assert drawing.alt.endswith(".")
    assert draw() == drawing


@each
def test_all_text_can_be_read_from_the_last_row(draw):
    sizes = [float(size) for size in re.findall(r"font-size: ([\d.]+)px", draw().svg)]
    assert sizes
    assert min(sizes) >= 18


def test_a_new_process_draws_the_same():
    code = (
        "import sys; sys.path.insert(0, 'tests'); import test_cost_charts as t;"
        "print('|'.join(draw().svg for draw in t.EVERY), end='')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "|".join(draw().svg for draw in EVERY)


def test_the_map_says_where_one_rank_is_faster():
    drawing = speed_map(0.5)
    assert "slower than 1 rank" in texts(drawing)
    assert "6 to 8 times as fast" in texts(drawing)
    assert "the largest: 7.0 times" in drawing.svg
    assert "from 0.5 to 7.0" in drawing.alt
    assert "on 8% of the map they are slower." in drawing.alt
    assert {"1,024", "8,192", "128", "512"} <= set(texts(drawing))


def test_the_map_has_the_same_colours_for_the_same_speeds():
    few, many = speed_map(ranks=4), speed_map(ranks=16)
    assert "3 to 4 times as fast" in texts(few)
    assert "4 to 6 times as fast" not in texts(few)
    assert "12 to 16 times as fast" in texts(many)
    legends = [[text for text in texts(drawing) if "times as fast" in text] for drawing in (few, many)]
    assert legends[1][: len(legends[0])] == legends[0]
    for fill in maps._GREENS[:4]:
        assert fill in few.svg


def test_the_maps_colours_are_told_apart_by_how_dark_they_are():
    luminances = [sum(int(fill[i : i + 2], 16) for i in (1, 3, 5)) for fill in maps._GREENS]
    assert luminances == sorted(luminances, reverse=True)
    assert all(a - b > 30 for a, b in pairwise(luminances))


def test_a_map_with_no_slower_place_is_drawn_too():
    assert "on 0% of the map" in speed_map(1.2).alt


def test_models_stand_on_the_map():
    assert "7.5B" in texts(speed_map(marks=[charts.Mark("7.5B", 4096, 256)]))


def test_breakdowns_name_the_fastest():
    drawing = breakdowns()
    assert {"10.0 ms", "8.00 ms, 1.2 times as fast", "12.0 ms, 0.8 times as fast"} <= set(texts(drawing))
    assert "4 ranks 12.0 ms, 0.8 times as fast, 67% of it TP's collectives" in drawing.alt
    bold = re.findall(r'<text style="[^"]*(?:700|bold)[^"]*"[^>]*>([^<]+)<', drawing.svg)
    assert [text for text in bold if " ms" in text] == ["8.00 ms, 1.2 times as fast"]


def test_timelines_say_who_waits():
    drawing = timelines()
    assert "TP: 10.0 ms, 60% of it waiting; FSDP: 5.00 ms, 20% of it waiting" in drawing.alt
    assert {"computing", "waiting", "AllReduce of activations", "gather of weights"} <= set(texts(drawing))


def test_names_of_curves_do_not_lie_on_each_other():
    heights = [float(y) for y in re.findall(r' y="([\d.]+)"[^>]*>(?:small|large)<', efficiencies().svg)]
    assert len(heights) == 2
    assert abs(heights[0] - heights[1]) >= 22
    assert "small from 100% to 20%, large from 100% to 21%" in efficiencies().alt


def test_what_a_curve_cannot_pass_is_drawn():
    curves = [charts.Curve("small", [0.1, 0.2], limit=0.33)]
    drawing = charts.efficiencies([charts.Against("link", [1, 2], [1], curves)], "some layers")
    assert "small from 10% to 20% of at most 33%" in drawing.alt


def test_published_prints_every_error():
    assert {"77%", "87.0%, error +10.0", "100%, error +0.0"} <= set(texts(published()))
    assert "plain model, off by at most 10.0" in published().alt


def test_ways_say_what_fits():
    drawing = ways()
    assert "DP 170 and 3.00 GB, does not fit; FSDP 30.0 and 4.50 GB, 34.1; TP 8 24.0 and 4.00 GB, 16.0" in drawing.alt
    assert {"card: 80 GB", "does not fit", "170 GB", "34.1", "4.50 GB"} <= set(texts(drawing))
    assert texts(drawing).count("does not fit") == 1


def test_a_bar_that_is_cut_off_is_said_to_be():
    assert "a rank keeps (a cut bar is longer)" in texts(ways())
    whole = charts.ways([way("FSDP", (2, 2, 15, 1, 10), (0, 4.5))], 80 * GB, "a model, a cluster")
    assert "a rank keeps" in texts(whole)


def test_ways_of_which_none_fits():
    drawing = charts.ways([way("DP", (200, 200, 900, 0, 10), (0, 3))], 80 * GB, "a model, a cluster")
    assert "DP 1,310 and 3.00 GB, does not fit" in drawing.alt


def test_activations_print_every_size():
    drawing = activations()
    assert "1 rank 17.0; 2 ranks, TP 11.0; 2 ranks, TP and SP 8.50." in drawing.alt
    assert {"17.0 GB", "11.0 GB, 1.5 times less", "8.50 GB, 2.0 times less"} <= set(texts(drawing))


def test_foretold_prints_both_times_and_the_error():
    drawing = foretold()
    assert {"0.900 ms, error −10%", "1.00 ms", "2.20 ms, error +10%", "2.00 ms"} <= set(texts(drawing))
    assert "3×4×8 predicted 0.900 ms, measured 1.00" in drawing.alt


def test_losses_say_how_far_apart_they_are():
    assert "over 3 steps, from 3.00 to 1.00, and how far from it others are: 2 ranks" in losses().alt
    assert "2 ranks at most 0; float32 at most 3 · 10⁻⁷; with a mistake at most 5 · 10⁻¹." in losses().alt
    assert {"loss", "how far from: one device", "equal", "10⁻¹⁵", "10⁻⁵", "10⁰", "step"} <= set(texts(losses()))


def test_names_of_losses_do_not_lie_on_each_other():
    named = [
        (name, float(y)) for y, name in re.findall(r' y="([\d.]+)"[^>]*>(one device|2 ranks|float32)<', losses().svg)
    ]
    heights = sorted(y for _name, y in named)
    assert len(heights) == 5
    assert all(below - above >= 22 for above, below in pairwise(heights) if below - above < 100)


def test_series_differ_in_more_than_colour():
    """Beside each other on a bar: by hatch, or by how dark they are."""

    def dark(look):
        return sum(int(look.fill[i : i + 2], 16) for i in (1, 3, 5)) / 3

    for looks in ((GREEN, PALE_GREEN, ORANGE), (DARK_GREEN, GREEN, PALE_GREEN, GREY, ORANGE), (GREEN, ABSENT)):
        for one, other in pairwise(looks):
            assert one.hatch != other.hatch or abs(dark(one) - dark(other)) > 40
    assert DARK_GREEN.fill != ORANGE.fill
    assert abs(dark(DARK_GREEN) - dark(ORANGE)) > 40


@pytest.mark.parametrize(
    ("number", "text"),
    [(0.4321, "0.432"), (9.996, "10.0"), (12.34, "12.3"), (99.96, "100"), (1260.4, "1,260"), (3, "3.00"), (0, "0.00")],
)
def test_three_digits(number, text):
    assert three(number) == text
