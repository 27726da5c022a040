"""Widgets without a browser: what is computed and drawn for every choice, and a shell that only passes it on."""

import itertools
import logging
import re

import ipywidgets
import pytest
import torch
from test_alternatives import faults

import tpviz
from tpviz import widgets
from tpviz.diagrams import Drawing
from tpviz.example import X4, W, X, dY, dY4
from tpviz.steps import layer_seconds, step
from tpviz.strategies import Strategy, rank_bytes
from tpviz.transformers import Transformer, activation_bytes

FACTORIES = (
    widgets.column_entry,
    widgets.row_entry,
    widgets.work,
    widgets.collectives,
    widgets.ring,
    widgets.contributions,
    widgets.paths,
    widgets.copies,
    widgets.both_layers,
    widgets.mesh,
    widgets.zero,
    widgets.heads,
    widgets.addends,
    widgets.layer_times,
    widgets.speed_map,
    widgets.ways,
    widgets.activations,
)
each_factory = pytest.mark.parametrize("factory", FACTORIES, ids=lambda factory: factory.__name__)
RANKS = (1, 2, 4, 8)


def picture(text):
    return Drawing(f"<svg>{text}</svg>", f"a picture of {text}", 10, 10)


def slider(value=0):
    return ipywidgets.IntSlider(value=value, min=0, max=9, description="a number")


# The shell


def test_controls_are_handed_to_compute_and_its_result_to_draw():
    seen = []

    def compute(**parameters):
        seen.append(parameters)
        return sum(parameters.values())

    shell = widgets.Shell(compute, lambda total: picture(f"<{total}>"), {"a": slider(1), "b": slider(2)})
    assert seen == [{"a": 1, "b": 2}]
    assert shell.picture.value == picture("<3>").html
    shell.controls["b"].value = 7
    assert seen[1:] == [{"a": 1, "b": 7}]
    assert shell.picture.value == picture("<8>").html
    assert shell.children[:-1] == (shell.controls["a"], shell.controls["b"], shell.picture)


def test_what_it_shows_is_also_a_still_picture():
    shell = widgets.Shell(lambda a: a, picture, {"a": slider(3)})
    bundle = shell._repr_mimebundle_()
    assert bundle["text/html"] == picture(3).html
    assert bundle["text/plain"] == "a picture of 3"
    assert bundle["application/vnd.jupyter.widget-view+json"]["model_id"] == shell.model_id
    shell.controls["a"].value = 4
    assert shell._repr_mimebundle_()["text/html"] == picture(4).html
    assert shell._repr_mimebundle_()["text/plain"] == "a picture of 4"


@pytest.mark.parametrize("where", ["compute", "draw"])
def test_an_error_is_a_sentence_in_the_pictures_place_until_the_next_move(where, caplog, capfd):
    def fragile(value):
        if value == 5:
            raise ValueError("no <5>")
        return value

    def compute(a):
        return fragile(a) if where == "compute" else a

    def draw(value):
        return picture(fragile(value) if where == "draw" else value)

    with caplog.at_level(logging.DEBUG):
        shell = widgets.Shell(compute, draw, {"a": slider(5)})
        for _again in range(2):
            assert shell.alt == "No picture for this choice. ValueError: no <5>"
            bundle = shell._repr_mimebundle_()
            assert bundle["text/plain"] == shell.alt
            assert bundle["text/html"] == shell.picture.value
            assert "ValueError: no &lt;5&gt;" in shell.picture.value
            assert "<img" not in shell.picture.value
            shell.controls["a"].value = 6
            assert shell.picture.value == picture(6).html
            shell.controls["a"].value = 5
    assert not [record for record in caplog.records if record.name != "asyncio"]
    assert capfd.readouterr() == ("", "")


def test_ranks_that_do_not_meet_are_named_in_the_pictures_place():
    def compute(a):
        return tpviz.run(lambda comm: comm.all_reduce(X) if comm.rank < a else comm.barrier()).outputs

    shell = widgets.Shell(compute, picture, {"a": slider(1)})
    assert "CollectiveMismatch" in shell.picture.value
    assert "rank 1" in shell.picture.value
    shell.controls["a"].value = 2
    assert "<img" in shell.picture.value


def test_an_interrupt_is_not_swallowed():
    def compute(a):
        if a:
            raise KeyboardInterrupt
        return a

    shell = widgets.Shell(compute, picture, {"a": slider(0)})
    with pytest.raises(KeyboardInterrupt):
        shell.controls["a"].value = 1


# The widgets


@each_factory
def test_every_control_is_a_labelled_slider(factory):
    controls = factory().controls
    assert controls
    for control in controls.values():
        # What JupyterLab leaves its arrow keys.
        assert isinstance(control, ipywidgets.IntSlider | ipywidgets.SelectionSlider)
        assert control.description.strip()
        assert control.continuous_update
        assert control.readout


def choices(control):
    if hasattr(control, "min"):
        return range(control.min, control.max + 1)
    # An option may have a label of its own.
    return [option[1] if type(option) is tuple else option for option in control.options]


@each_factory
def test_every_choice_has_a_picture(factory):
    shell = factory()
    pictures, sentences = set(), set()
    names, controls = zip(*shell.controls.items(), strict=True)
    for values in itertools.product(*map(choices, controls)):
        for control, value in zip(controls, values, strict=True):
            control.value = value
        assert shell.picture.value.startswith("<img"), (names, values, shell.alt)
        assert faults(shell.alt) == [], (values, shell.alt)
        pictures.add(shell.picture.value)
        sentences.add(shell.alt)
    assert len(pictures) == len(list(itertools.product(*map(choices, controls)))), "two choices look alike"
    assert len(sentences) > 1


@each_factory
def test_it_starts_alike_each_time(factory):
    first, second = (factory()._repr_mimebundle_() for _ in range(2))
    view = "application/vnd.jupyter.widget-view+json"
    assert {**first, view: None} == {**second, view: None}


@pytest.mark.parametrize("ranks", RANKS)
def test_column_entry(ranks):
    for row, column in itertools.product(range(3), range(8)):
        entry = widgets.compute_column_entry(row, column, ranks)
        assert torch.equal(torch.cat(entry.run.outputs, dim=1), X @ W)
        drawing = widgets.draw_column_entry(entry)
        assert f"entry [{row}, {column}] is lit up on rank {column // (8 // ranks)}" in drawing.alt


@pytest.mark.parametrize("ranks", RANKS)
def test_row_entry(ranks):
    for row, column in itertools.product(range(3), range(8)):
        entry = widgets.compute_row_entry(row, column, ranks)
        assert torch.equal(sum(entry.run.outputs), X @ W)
        assert entry.products.tolist() == [X[row, k].item() * W[k, column].item() for k in range(4)]
        total = int((X @ W)[row, column])
        drawing = widgets.draw_row_entry(entry)
        assert re.match(rf"Y\[{row}, {column}\] = {total}\b".replace("-", "−"), drawing.alt)


@pytest.mark.parametrize("ranks", RANKS)
def test_work(ranks):
    by_rows, by_columns = widgets.compute_work(ranks)
    assert torch.equal(torch.cat(by_rows.outputs, dim=0), X4 @ W)
    assert torch.equal(torch.cat(by_columns.outputs, dim=1), X4 @ W)
    assert [event.kind for event in by_rows.trace] == ["all_gather"]
    assert len(by_columns.trace) == 0


@pytest.mark.parametrize("ranks", RANKS[1:])
@pytest.mark.parametrize("collective", widgets.COLLECTIVES)
def test_collectives(collective, ranks):
    exchange = widgets.compute_collective(collective, ranks)
    numbers = torch.tensor([[10 * rank + i for i in range(ranks)] for rank in range(ranks)])
    assert torch.equal(torch.stack(exchange.before), numbers)
    expected = {
        "Broadcast": [numbers[0]] * ranks,
        "AllGather": [numbers.flatten()] * ranks,
        "AllReduce": [numbers.sum(dim=0)] * ranks,
        "ReduceScatter": list(numbers.sum(dim=0)[:, None]),
        "AllToAll": list(numbers.T),
    }[collective]
    assert all(torch.equal(a, b) for a, b in zip(exchange.run.outputs, expected, strict=True))
    [event] = exchange.run.trace
    assert event.kind.replace("_", "") == collective.lower()
    assert widgets.draw_collective(exchange).alt.startswith(collective)


@pytest.mark.parametrize("ranks", RANKS)
def test_contributions(ranks):
    for row, column in itertools.product(range(3), range(4)):
        found = widgets.compute_contributions(row, column, ranks)
        assert torch.equal(sum(found.run.outputs), dY @ W.T)
        values = ", ".join(str(int(part[row, column])) for part in found.run.outputs).replace("-", "−")
        assert f"at [{row}, {column}] they are {values}," in widgets.draw_contributions(found).alt


@pytest.mark.parametrize("x", [-2, 1, 3])
@pytest.mark.parametrize("loss", widgets.COMBINATIONS)
def test_whatever_the_loss_the_paths_add_up(loss, x):
    found = widgets.compute_paths(loss, x)
    assert found.values == [2 * x, 5 * x]
    assert found.total == pytest.approx(sum(found.contributions), rel=1e-6)
    products = [above * weight for above, weight in zip(found.upstream, found.weights, strict=True)]
    assert found.contributions == pytest.approx(products, rel=1e-6)
    h = 1e-3
    loss_at = widgets.COMBINATIONS[loss]
    ends = [loss_at(*(torch.tensor([2.0, 5.0], dtype=torch.float64) * (x + step))).item() for step in (h, -h)]
    assert found.total == pytest.approx((ends[0] - ends[1]) / (2 * h), rel=1e-3)


@pytest.mark.parametrize("ranks", [2, 4])
def test_f_so_often(ranks):
    assert torch.equal(sum(widgets.compute_copies(0, ranks).outputs), dY @ W.T)
    for times in (1, 2, 3):
        run = widgets.compute_copies(times, ranks)
        assert all(torch.equal(out, dY @ W.T * ranks ** (times - 1)) for out in run.outputs)
        assert len(run.trace) == times
        if times > 1:
            assert f"{ranks ** (times - 1)} times what it should be" in widgets.draw_copies(run).alt


@pytest.mark.parametrize("ranks", RANKS)
def test_both_layers(ranks):
    column, row = widgets.compute_both_layers(ranks)
    assert [(event.kind, event.phase) for event in column.trace] == [("all_reduce", "backward")]
    assert [(event.kind, event.phase) for event in row.trace] == [("all_reduce", "forward")]
    for run, dim in ((column, 1), (row, 0)):
        assert torch.equal(torch.cat([out["dW"] for out in run.outputs], dim=dim), X.T @ dY)


@pytest.mark.parametrize(("ranks", "tp"), list(itertools.product((4, 8), (1, 2, 4))))
def test_mesh(ranks, tp):
    run, _tp = widgets.compute_mesh(ranks, tp)
    dW = torch.cat([X4, X4.flip(0)]).T @ torch.cat([dY4, dY4.flip(0)])
    parts = torch.chunk(dW, tp, dim=1)
    assert all(torch.equal(out, parts[rank % tp]) for rank, out in enumerate(run.outputs))
    assert {event.ranks for event in run.trace if event.phase == "gradients"} == {
        tuple(range(first, ranks, tp)) for first in range(tp)
    }


@pytest.mark.parametrize(("stage", "ranks"), list(itertools.product(range(4), (2, 4))))
def test_zero(stage, ranks):
    run = widgets.compute_zero(stage, ranks)
    gradient = X4.T @ (X4 @ W - dY4)
    for rank, kept in enumerate(run.outputs):
        rows = [None if stage < first else rank for first in (3, 2, 1)]
        for (name, whole), row in zip((("W", W - gradient), ("dW", gradient), ("M", gradient)), rows, strict=True):
            if (name, stage) != ("dW", 1):
                assert torch.equal(kept[name], whole if row is None else whole.chunk(ranks)[row])
    if stage == 1:
        assert torch.equal(sum(kept["dW"] for kept in run.outputs), gradient)
    total = sum(tensor.nbytes for tensor in run.outputs[0].values())
    assert total == W.nbytes * (3 - stage + stage / ranks)
    assert f"in all {total} bytes." in widgets.draw_zero(run).alt
    kinds = [event.kind for event in run.trace]
    scattered = ["reduce_scatter", "all_gather"]
    assert kinds == [["all_reduce"], scattered, scattered, ["all_gather", "all_gather", "reduce_scatter"]][stage]


@pytest.mark.parametrize(("ranks", "kv_heads"), list(itertools.product((2, 4, 8), (8, 4, 2, 1))))
def test_heads(ranks, kv_heads):
    found = widgets.compute_heads(ranks, kv_heads)
    for rank, (q, k, v) in enumerate(found.run.outputs):
        assert q.tolist() == list(range(16 // ranks * rank, 16 // ranks * (rank + 1)))
        # Every head of Q finds the head of K that it reads, and the same head of V.
        read = {int(column) // 2 * kv_heads // 8 for column in q}
        assert {int(column - 16) // 2 for column in k} == read
        assert torch.equal(v - k, torch.full_like(k, 2 * kv_heads))
    assert f"8 heads of Q, {kv_heads} of K and of V" in widgets.draw_heads(found).alt


@pytest.mark.parametrize("ranks", [2, 3, 4, 8])
def test_ring(ranks):
    run = widgets.compute_ring(ranks)
    start = [torch.arange(1, ranks + 1) + 10 * rank for rank in range(ranks)]
    assert [held[0].tolist() for held in run.outputs] == [each.tolist() for each in start]
    assert all(torch.equal(held[-1], sum(start)) for held in run.outputs)
    assert len(run.trace) == 2 * (ranks - 1) * ranks


def test_addends():
    for function, z0, z1 in itertools.product(widgets.FUNCTIONS, (-4, 0, 1, 4), (-4, -2, 3)):
        found = widgets.compute_addends(function, z0, z1)
        f = widgets.FUNCTIONS[function]
        a, b = torch.tensor(float(z0)), torch.tensor(float(z1))
        error = f(a) + f(b) - f(a + b)
        assert found.errors[z1 + 4, z0 + 4] == error
        assert found.values == [f(a), f(b), f(a) + f(b), a + b, f(a + b)]
    assert not widgets.compute_addends("×2", 1, 1).errors.any()
    assert (widgets.compute_addends("+10", 1, 1).errors == 10).all()


@pytest.mark.parametrize("machine", widgets.LINKED)
def test_speed_map(machine):
    """Each point is the layer's own speed-up, and no colour says that 1 rank is faster where it is not."""
    found = widgets.compute_speed_map(machine, 8)
    assert found.speed_ups.shape == (len(found.tokens), len(found.hidden))
    row, column = 16, 20
    model = Transformer(found.hidden[column], found.hidden[column] / 64, 1, found.tokens[row])
    one, eight = (layer_seconds(model, widgets.LINKED[machine], Strategy(t), 1).seconds for t in (1, 8))
    assert found.speed_ups[row, column] == pytest.approx(one / eight)
    assert 0 < found.speed_ups.min() < 1 < found.speed_ups.max() < 8
    share = f"on {(found.speed_ups < 1).mean():.0%} of the map they are slower."
    assert share in widgets.draw_speed_map(found).alt


def test_layer_times():
    found = widgets.compute_layer_times(1024, "H100")
    times = [float(each.seconds) for each in found.spent]
    assert times.index(min(times)) == widgets.DEGREES.index(4)
    alt = widgets.draw_layer_times(found).alt
    assert "4 ranks 0.290 ms, 1.5 times as fast, 38% of it TP's collectives" in alt


@pytest.mark.parametrize("cluster", widgets.CLUSTERS)
def test_ways(cluster):
    """All ranks are used, memory and speed are the model's own, and a way that does not fit has no speed to show."""
    found = widgets.compute_ways("18.4B", cluster)
    assert len({way.name for way in found.found}) == 7
    machine, ranks = widgets.CLUSTERS[cluster]
    fsdp = next(way for way in found.found if way.name == "FSDP")
    strategy = Strategy(1, ranks, 3, recompute="selective")
    assert fsdp.kept == rank_bytes(widgets.SIZES["18.4B"], strategy, 1)
    assert fsdp.activations_sent == 0
    assert fsdp.speed == pytest.approx(ranks / step(widgets.SIZES["18.4B"], machine, strategy, 1).total)
    alt = widgets.draw_ways(found).alt
    assert alt.count("does not fit") == sum(way.kept.total > machine.memory for way in found.found) >= 1


@pytest.mark.parametrize("recompute", ["none", "selective"])
def test_activations(recompute):
    """Plain TP leaves a part on every rank; sequence parallel divides all of it."""
    found = widgets.compute_activations("18.4B", recompute)
    one = found.degrees[0].plain
    assert sum(one) == activation_bytes(widgets.SIZES["18.4B"], 1, recompute=recompute)
    for ranks, plain, cut in found.degrees:
        assert plain.outside == one.outside
        assert plain.inside == one.inside / ranks
        assert sum(cut) == sum(one) / ranks
    assert "8 ranks, TP and SP" in widgets.draw_activations(found).alt
