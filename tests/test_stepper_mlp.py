"""The figure to step through two layers, there and back: what its steps say, against the run that was recorded."""

import html
import json
import re

import pytest

import tpviz
from tpviz import diagrams
from tpviz.example import W1, W2, X, dY

DY = dY[:, :4]
A = X @ W1
H = A.relu()
Y = H @ W2
DH = DY @ W2.T
DA = DH * (A > 0)
DX = DA @ W1.T
WHOLES = {"X": X, "A": A, "H": H, "Z": Y, "Y": Y, "dY": DY, "dH": DH, "dA": DA, "G": DX, "dX": DX}
FORWARD = "X → @ W1 → A → ReLU → H → @ W2 → Z → all_reduce → Y"
BACKWARD = "dY → @ W2ᵀ → dH → ⊙ mask → dA → @ W1ᵀ → G → all_reduce → dX"


def mlp(comm):
    x = X.clone().requires_grad_()
    w1, w2 = (tpviz.shard(w, dim, comm).requires_grad_() for w, dim in ((W1, 1), (W2, 0)))
    a = tpviz.copy_to_region(x, comm) @ w1
    h = a.relu()
    z = h @ w2
    y = tpviz.reduce_from_region(z, comm)
    for kept in (a, h):
        kept.retain_grad()
    y.backward(DY)
    values = {"X": x, "A": a, "H": h, "Z": z, "Y": y}
    gradients = {"dY": DY, "dH": h.grad, "dA": a.grad, "G": a.grad @ w1.T, "dX": x.grad}
    return {**values, **gradients, "dW1": w1.grad, "dW2": w2.grad}


@pytest.fixture(params=[2, 4], ids=["2 ranks", "4 ranks"])
def run(request):
    return tpviz.run(mlp, ranks=request.param)


def test_each_step_of_two_layers_says_what_happens_in_order(run):
    assert diagrams.stepper(run, WHOLES, FORWARD, BACKWARD).steps == (
        "Forward. X is whole on every rank.",
        "@ W₁, on each rank. Each rank has its columns of A. Nothing crosses.",
        "ReLU, on each rank. Each rank has its columns of H. Nothing crosses.",
        "@ W₂, on each rank. Z is a partial sum on every rank. Nothing crosses.",
        "AllReduce, 48 bytes. Y is whole on every rank.",
        "Backward. dY is whole on every rank.",
        "@ W₂ᵀ, on each rank. Each rank has its columns of dH. Nothing crosses. dW₂ stays where it is.",
        "⊙ mask, on each rank. Each rank has its columns of dA. Nothing crosses.",
        "@ W₁ᵀ, on each rank. G is a partial sum on every rank. Nothing crosses. dW₁ stays where it is.",
        "AllReduce, 48 bytes. dX is whole on every rank.",
    )


def test_the_bytes_that_are_said_are_those_recorded(run):
    steps = diagrams.stepper(run, WHOLES, FORWARD, BACKWARD).steps
    said = [int(count) for step in steps for count in re.findall(r"(\d+) bytes", step)]
    assert said == [event.payload_bytes for event in run.trace]


def test_its_steps_are_numbered_in_the_picture_and_in_what_the_script_reads(run):
    shown = diagrams.stepper(run, WHOLES, FORWARD, BACKWARD)
    numbers = [str(number) for number in range(1, len(shown.steps) + 1)]
    groups = re.findall(r'<g data-step="(\d+)"', shown.drawing.svg)
    assert sorted(groups, key=int) == numbers, "one group a step"
    data = re.search(r'data-steps="([^"]*)"', shown.html)
    assert json.loads(html.unescape(data[1]))["steps"] == list(shown.steps)


def test_the_still_stands_in_the_figure_with_its_sentence(run):
    shown = diagrams.stepper(run, WHOLES, FORWARD, BACKWARD)
    bundle = shown._repr_mimebundle_()
    assert bundle["text/plain"] == shown.drawing.alt
    assert shown.drawing.html in bundle["text/html"]
    assert bundle["text/html"].count(f'alt="{html.escape(shown.drawing.alt)}"') == 1
