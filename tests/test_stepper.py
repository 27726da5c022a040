"""Figures to step through: what is said at each step is what happens there, and each step is a group of the picture."""

import re
import subprocess
import sys

import pytest

import tpviz
from tpviz import diagrams, widgets
from tpviz.example import W, X, dY

COLUMN = ("X → @ W → Y", "dY → @ Wᵀ → G → all_reduce → dX")
ROW = ("X → @ W → Z → all_reduce → Y", "dY → @ Wᵀ → dX")
WHOLES = {"X": X, "Y": X @ W, "Z": X @ W, "dY": dY, "G": dY @ W.T, "dX": dY @ W.T}


def stepper(layer, ranks=2):
    column, row = widgets.compute_both_layers(ranks)
    return diagrams.stepper(column, WHOLES, *COLUMN) if layer == "column" else diagrams.stepper(row, WHOLES, *ROW)


@pytest.mark.parametrize("ranks", [2, 4])
def test_each_step_says_what_happens(ranks):
    assert stepper("column", ranks).steps == (
        "Forward. X is whole on every rank.",
        "@ W, on each rank. Each rank has its columns of Y. Nothing crosses.",
        "Backward. Each rank has its columns of dY.",
        "@ Wᵀ, on each rank. G is a partial sum on every rank. Nothing crosses. dW stays where it is.",
        "AllReduce, 48 bytes. dX is whole on every rank.",
    )
    assert stepper("row", ranks).steps == (
        "Forward. Each rank has its columns of X.",
        "@ W, on each rank. Z is a partial sum on every rank. Nothing crosses.",
        "AllReduce, 96 bytes. Y is whole on every rank.",
        "Backward. dY is whole on every rank.",
        "@ Wᵀ, on each rank. Each rank has its columns of dX. Nothing crosses. dW stays where it is.",
    )


@pytest.mark.parametrize("ranks", [2, 4, 8])
@pytest.mark.parametrize("layer", ["column", "row"])
def test_each_step_is_a_group_of_the_picture(layer, ranks):
    shown = stepper(layer, ranks)
    groups = re.findall(r'<g data-step="(\d+)"', shown.drawing.svg)
    assert groups == [str(number + 1) for number in range(len(shown.steps))]


def test_a_step_shows_its_bar_and_its_tensor_and_the_still_shows_all():
    shown = stepper("column")
    parts = re.split(r"<g data-step=", shown.drawing.svg)
    assert [">AllReduce, 48" in part for part in parts] == [False, False, False, False, False, True]
    still = diagrams.journey(widgets.compute_both_layers(2)[0], WHOLES, *COLUMN)
    assert still.alt == shown.drawing.alt
    assert (still.width, still.height) == (shown.drawing.width, shown.drawing.height)


def test_a_notebook_gets_the_still_with_its_sentence_and_a_script_that_loads_nothing():
    shown = stepper("row")
    bundle = shown._repr_mimebundle_()
    assert set(bundle) == {"text/html", "text/plain"}
    assert bundle["text/plain"] == shown.drawing.alt
    assert bundle["text/html"].count("<img ") == 1
    assert f'<img alt="{shown.drawing.alt}"' in bundle["text/html"]
    script = bundle["text/html"].split("<script>")[1]
    assert not re.search(r"https?:|import\(|fetch|src=", script)


def test_it_is_the_same_text_in_every_process():
    program = "import sys; sys.path.insert(0, 'tests'); import test_stepper; print(test_stepper.stepper('column').html)"
    other = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, encoding="utf-8"
    )
    assert other.stdout == stepper("column").html + "\n"


def test_the_steps_need_the_run_to_have_them():
    column, _row = widgets.compute_both_layers(2)
    with pytest.raises(ValueError, match="the run recorded"):
        diagrams.stepper(column, WHOLES, *ROW)
    with pytest.raises(ValueError, match="each rank must return it"):
        diagrams.stepper(tpviz.run(lambda comm: X), WHOLES, "X → @ W → Y", "dY")
