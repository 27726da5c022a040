"""Colours: all that is written can be read, neighbours are told apart by everyone, and colour never says it alone."""

import itertools
import re
from itertools import pairwise

import pytest
import torch
from colours import DICHROMATS, TO_XYZ, contrast, lab
from test_diagrams import OTHER_FIGURES, Figure, notebook_figures

from tpviz import tables
from tpviz.charts import bars, base, curves, maps, times
from tpviz.charts.losses import _LINES, _REFERENCE
from tpviz.charts.ways import _KEPT_LOOKS, _SENT_LOOKS
from tpviz.diagrams import grammar, stepping
from tpviz.exercises import feedback

TEXT, LARGE, SHAPE = 4.5, 3, 3
"""WCAG 2.2 AA: contrast of text, of text from 24 px (bold: from 18.66 px), and of what shapes are known by."""
EYES = {**DICHROMATS, "all three": torch.eye(3, dtype=torch.float64).tolist()}


def apart(one, other):
    """The least distance of two colours (CIE76), to whomever sees them least apart."""
    return min(float(torch.dist(lab(one, seen), lab(other, seen))) for seen in EYES.values())


def over(color, ground, share):
    """A colour that lets its ground shine through."""
    pairs = zip(*([int(each[place : place + 2], 16) for place in (1, 3, 5)] for each in (color, ground)), strict=True)
    return "#" + "".join(f"{round(share * a + (1 - share) * b):02x}" for a, b in pairs)


def test_lightness_of_grey_is_known():
    assert lab("#ffffff", EYES["all three"]).tolist() == pytest.approx([100, 0, 0], abs=0.1)
    assert float(lab("#777777", EYES["all three"])[0]) == pytest.approx(50, abs=0.6)
    for matrix in DICHROMATS.values():
        assert torch.tensor(matrix).sum(dim=1).tolist() == pytest.approx([1, 1, 1], abs=1e-5), "grey stays grey"
    assert sum(TO_XYZ[1]) == pytest.approx(1)
    assert contrast("#ffffff", "#000000") == pytest.approx(21)


# Diagrams


@pytest.mark.parametrize("rank", range(grammar.MOST_RANKS))
def test_every_rank_is_legible(rank):
    colors = grammar.RANKS[rank]
    for fill in (colors.tint, colors.lane):
        assert contrast(grammar.INK, fill) >= 7
        assert contrast(colors.edge, fill) >= SHAPE
    assert contrast(grammar.MUTED, colors.lane) >= TEXT
    assert contrast(grammar.ABSENT, colors.lane) >= SHAPE
    assert contrast(colors.edge, grammar.CARD) >= TEXT


@pytest.mark.parametrize("rank", range(grammar.MOST_RANKS))
def test_what_is_written_on_a_ranks_full_colour_is_large_enough_for_it(rank):
    colors = grammar.RANKS[rank]
    found = contrast(colors.on_solid, colors.solid)
    if colors.on_solid == grammar.CARD:
        sizes = [grammar.SIZES["digit"] / 24, grammar.SIZES["number"] / 18.66, grammar.SMALLEST_ON_SOLID / 18.66]
        assert min(sizes) >= 1
        assert found >= LARGE
    else:
        assert colors.on_solid == grammar.INK
        assert found >= TEXT
    assert f".mini.w{{font-size:{grammar.SMALLEST_ON_SOLID}px}}" in grammar.stylesheet(8)


def test_the_colours_that_no_rank_has_are_legible():
    assert contrast(grammar.INK, grammar.NEUTRAL) >= 7
    assert contrast(grammar.NEUTRAL_EDGE, grammar.NEUTRAL) >= SHAPE
    assert contrast(grammar.ABSENT, grammar.CARD) >= SHAPE
    for ink, fill in (
        *((grammar.MUTED, grammar.CARD), (grammar.CARD, grammar.MUTED), (grammar.CARD, grammar.INK)),
        (grammar.INK, re.search(r"\.shade{fill:(#\w{6})}", grammar.stylesheet(1))[1]),
    ):
        assert contrast(ink, fill) >= TEXT


def test_everyone_tells_the_ranks_apart():
    for one, other in itertools.combinations(grammar.RANKS, 2):
        assert apart(one.solid, other.solid) > 15
    for one, other in pairwise(grammar.RANKS):  # lanes that lie beside each other
        assert apart(one.edge, other.edge) > 12


@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_wherever_a_rank_has_its_colour_its_number_stands_too(ranks):
    for name, drawing in notebook_figures(ranks).items():
        if not name.startswith("plan"):  # its signs for layouts have no ranks, and each has its name beside it
            _numbered(name, drawing)


def test_the_path_of_a_plan_is_thicker_than_what_it_passes_by():
    classes = [path.get("class") for path in Figure(notebook_figures(2)["plan"])._all("path")]
    assert {"path r0", "thin"} < set(classes)
    widths = {
        name: float(re.search(rf"\.{name}{{[^}}]*stroke-width:([\d.]+)", grammar._SHEET)[1])
        for name in ("path", "thin")
    }
    assert widths["path"] >= 2 * widths["thin"]


@pytest.mark.parametrize("name", OTHER_FIGURES)
def test_other_figures_number_their_ranks_too(name):
    _numbered(name, OTHER_FIGURES[name]())


def _numbered(name, drawing):
    figure = Figure(drawing)
    coloured = {each for path in figure._all("path") for each in re.findall(r"\br(\d)\b", path.get("class", ""))}
    written = " ".join(word.text for word in figure.words)
    missing = [n for n in coloured if not re.search(rf"(?<!\d){n}(?!\d)|{grammar.SUBSCRIPTS[int(n)]}", written)]
    assert not missing, name


# Figures to step through


@pytest.mark.parametrize("rank", range(grammar.MOST_RANKS))
def test_a_step_that_is_over_can_still_be_read(rank):
    colors = grammar.RANKS[rank]
    faded = {each: over(each, colors.lane, stepping.PAST) for each in (colors.tint, grammar.INK)}
    assert contrast(grammar.INK, faded[colors.tint]) >= TEXT
    assert contrast(grammar.MUTED, colors.lane) >= TEXT
    assert contrast(grammar.CARD, faded[grammar.INK]) >= LARGE
    assert grammar.SIZES["label"] >= 18.66
    assert "label" in grammar.BOLD
    assert re.search(r"\.past path {{? opacity", stepping._STYLE)
    assert not re.search(r"\.past {", stepping._STYLE)


def test_the_controls_of_a_stepper_can_be_read():
    rules = dict(re.findall(r"^([^{}\n]+) {([^}]*)}", stepping._STYLE, re.MULTILINE))
    ground = re.search(r"background: (#\w{6})", rules["button"])[1]
    assert contrast(grammar.INK, ground) >= TEXT
    assert contrast(re.search(r"border: 1px solid (#\w{6})", rules["button"])[1], grammar.CARD) >= SHAPE
    assert contrast(grammar.MUTED, grammar.CARD) >= TEXT
    assert contrast(re.search(r"outline: 3px solid (#\w{6})", stepping._STYLE)[1], grammar.CARD) >= SHAPE
    assert "animation" not in stepping._STYLE + grammar.stylesheet(8)
    assert "transition" not in stepping._STYLE + grammar.stylesheet(8)


# Charts

STACKS = {
    "what time is spent on": (base.GREEN, base.PALE_GREEN, base.ORANGE),
    "timelines": (base.GREEN, base.ABSENT, base.ORANGE, base.PALE_GREEN),
    "published": (base.DARK_GREEN, base.GREEN, base.PALE_GREEN),
    "foretold": (base.PALE_GREEN, base.DARK_GREEN),
    "kept": _KEPT_LOOKS,
    "sent": _SENT_LOOKS,
    "activations": (base.ORANGE, base.GREEN),
    "forward": tuple(base.Look(look.strong, look.edge, look.hatch) for look in bars._LOOKS),
    "forward, equal": tuple(base.Look(look.pale, look.edge, look.hatch) for look in bars._LOOKS),
}


@pytest.mark.parametrize("looks", STACKS.values(), ids=STACKS)
def test_parts_of_a_bar_differ_in_hatch_or_for_every_eye(looks):
    for one, other in itertools.combinations(looks, 2):
        assert one.hatch != other.hatch or apart(one.fill, other.fill) > 20, (one, other)
    for look in looks:
        assert contrast(look.edge, grammar.CARD) >= SHAPE


def test_bands_of_a_map_differ_in_lightness_not_in_hue():
    fills = [maps._SLOWER.fill, *maps._GREENS]
    lightness = [[float(lab(fill, seen)[0]) for fill in fills[1:]] for seen in EYES.values()]
    for each in lightness:
        assert all(light - dark > 4 for light, dark in pairwise(each))
    assert maps._SLOWER.hatch, "slower and faster are told apart by more than a shade"
    assert contrast("#000000", maps._GREENS[1]) >= SHAPE  # the line where both are equally fast


def test_lines_differ_in_dashes_and_names_can_be_read():
    for styles in (curves._STYLES, [(line.ink, str(line.dashes)) for line in _LINES]):
        assert len({style[1] for style in styles}) == len(styles)
        for ink, *_ in styles:
            assert contrast(ink, grammar.CARD) >= TEXT
    assert len({style[2] for style in curves._STYLES}) == len(curves._STYLES)
    assert _REFERENCE.width > 2 * max(line.width for line in _LINES)


def test_what_stands_on_a_chart_stands_on_a_plate():
    assert times._PLATE["facecolor"] == "white"
    for fill in maps._GREENS:
        assert contrast(grammar.INK, over(maps._LABEL["facecolor"], fill, maps._LABEL["alpha"])) >= TEXT
    assert contrast(base._SETTINGS["text.color"], grammar.CARD) >= TEXT


# Tables and checks


def test_tables_and_checks_can_be_read():
    for style in (tables._CARD, tables._ROW):
        assert contrast(grammar.INK, re.search(r"background:(#\w{6})", style)[1]) >= TEXT
    assert all(contrast(edge, "#ffffff") >= SHAPE for edge in feedback._EDGES.values())
    assert len(set(feedback._ICONS.values())) == len(feedback._ICONS), "an icon and a word say it too"
