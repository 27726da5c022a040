"""The figures of a Transformer block: a fused weight cut by head, and a block's operators with what crosses."""

import re

import pytest
import torch
from test_diagrams import BLOCK, Figure, block, taken_heads

import tpviz
from tpviz import diagrams
from tpviz.diagrams import grammar

NUMBERS = torch.arange(24)[None]  # 4 heads of Q, of K and of V, two columns each


def contiguous(comm):
    return tpviz.shard(NUMBERS, 1, comm).chunk(3, dim=1)


def by_head(comm):
    return torch.cat([tpviz.shard(part, 1, comm) for part in NUMBERS.chunk(3, dim=1)], dim=1).chunk(3, dim=1)


def lane_of(figure, rank):
    (lane,) = figure.boxes("lane", f"r{rank}")
    return lane


def inside(lane, boxes):
    return [box for box in boxes if lane.holds(box)]


# A fused weight


def test_whose_each_head_is_and_what_it_is_taken_for():
    figure = Figure(diagrams.qkv_cuts({"Cut by head": tpviz.run(by_head)}, 4))
    for rank in range(2):
        lane, blocks = lane_of(figure, rank), figure.boxes("block", f"r{rank}")
        assert len(inside(lane, blocks)) == 6
        assert len([box for box in blocks if not lane.holds(box)]) == 6  # of the whole's twelve
    assert figure.boxes("mark") == []
    assert figure.drawing.alt == (
        "What each rank takes for Q, K and V: Cut by head, rank 0 Q₀ Q₁ | K₀ K₁ | V₀ V₁, rank 1 Q₂ Q₃ | K₂ K₃ | V₂ V₃."
    )


def test_heads_that_are_taken_for_others_are_marked():
    figure = Figure(diagrams.qkv_cuts({"Contiguous": tpviz.run(contiguous)}, 4))
    marked = [len(inside(lane_of(figure, rank), figure.boxes("mark", f"r{rank}"))) for rank in range(2)]
    assert marked == [4, 4]  # Q2 Q3 as K and K0 K1 as V; K2 K3 as Q and V0 V1 as K
    assert {word.text for word in figure.words if word.white} >= {"Q₂", "Q₃", "K₀", "K₁", "K₂", "K₃", "V₀", "V₁"}
    assert "rank 0 Q₀ Q₁ | Q₂ Q₃ | K₀ K₁, rank 1 K₂ K₃ | V₀ V₁ | V₂ V₃." in figure.drawing.alt


def test_a_cut_through_heads_shows_its_halves():
    figure = Figure(diagrams.qkv_cuts({"Contiguous": tpviz.run(contiguous, 8)}, 4))
    widths = {box.width for box in figure.boxes("block", "r1")}
    assert len(widths) == 2
    assert max(widths) == 2 * min(widths)
    assert "rank 1 Q₁ | Q₂ | Q₂," in figure.drawing.alt


@pytest.mark.parametrize(("ranks", "kv_heads", "sharing"), [(4, 4, 1), (4, 2, 2), (8, 2, 4), (8, 1, 8)])
def test_a_head_that_ranks_share_has_a_stripe_for_each(ranks, kv_heads, sharing):
    figure = Figure(diagrams.qkv_cuts({"Cut by head": taken_heads(ranks, kv_heads)}, 8, kv_heads))
    neutral = [box for box in figure.boxes("block", "neutral") if box.width < 100]
    assert len(neutral) == (2 * kv_heads if sharing > 1 else 0)
    stripes = [
        box
        for rank in range(ranks)
        for box in figure.boxes("block", f"r{rank}")
        if any(box.y == whole.y + whole.height and whole.x <= box.x < whole.x + whole.width for whole in neutral)
    ]
    assert len(stripes) == len(neutral) * sharing
    assert sum(box.width for box in stripes) == sum(box.width for box in neutral)


def test_two_ways_stand_beside_each_other_on_a_slide():
    both = {"Cut by head": tpviz.run(by_head), "Contiguous": tpviz.run(contiguous)}
    drawing = diagrams.qkv_cuts(both, 4)
    assert drawing.width <= grammar.SLIDE_WIDTH
    figure = Figure(drawing)
    upper = [figure.says(title)[0].box for title in both]
    assert upper[0].y == upper[1].y
    assert upper[0].x < upper[1].x


@pytest.mark.parametrize(
    ("draw", "kind", "words"),
    [
        (lambda: diagrams.qkv_cuts({}, 4), ValueError, ["nothing to draw"]),
        (lambda: diagrams.qkv_cuts({"a": NUMBERS}, 4), TypeError, ["three vectors", "Tensor"]),
        (lambda: diagrams.qkv_cuts({"a": [[NUMBERS]]}, 4), TypeError, ["three vectors", "rank 0 returned a list"]),
        (lambda: diagrams.qkv_cuts({"a": tpviz.run(by_head)}, 5), ValueError, ["24", "15"]),
    ],
)
def test_what_cannot_be_drawn_of_a_weight_is_said(draw, kind, words):
    with pytest.raises(kind) as caught:
        draw()
    assert [word for word in words if word not in str(caught.value)] == []


# A block


@pytest.mark.parametrize("ranks", [2, 3, 4, 8])
def test_bars_stand_where_the_run_recorded_a_collective(ranks):
    run = tpviz.run(block, ranks)
    figure = Figure(diagrams.operators(run, BLOCK))
    bars = [box for box in figure.boxes("bar") if box.height > 40]
    assert len(bars) == len(run.trace) == 2
    lanes = sorted(box for color in range(ranks) for box in figure.boxes("lane", f"r{color}"))
    assert len(lanes) == 2 * ranks
    for bar, directions in zip(sorted(bars, key=lambda box: box.y), (lanes[:ranks], lanes[ranks:]), strict=True):
        assert sum(bar.overlap(lane) > 0 for lane in directions) == ranks
    if ranks <= 3:  # with operators' names
        names = [word for word in figure.words if word.text in ("norm", "up", "down")]
        forward, backward = names[: 3 * ranks], names[3 * ranks :]
        down, norm = (
            next(w.box for w in part if w.text == name) for part, name in ((forward, "down"), (backward, "norm"))
        )
        left = min(bars, key=lambda box: box.x)
        assert left == max(bars, key=lambda box: box.y)  # backward's stands behind the norm
        assert norm.x + norm.width < left.x
        assert down.x + down.width < max(bars).x


@pytest.mark.parametrize("ranks", [2, 4])
def test_what_all_ranks_do_alike_is_grey(ranks):
    figure = Figure(diagrams.operators(tpviz.run(block, ranks), BLOCK))
    assert len(figure.boxes("block", "neutral")) == 2 * ranks  # the norm, forward and backward
    for rank in range(ranks):
        assert len(figure.boxes("block", f"r{rank}")) == 4  # up and down
        assert len(figure.boxes("twin", f"r{rank}")) == 2
    assert "on their own part the ranks do up, down" in figure.drawing.alt
    assert "forward: AllReduce after down; backward: AllReduce after up." in figure.drawing.alt


def test_a_replica_that_differs_is_seen():
    """Case 1 in a picture: without the operator in front, the norm's backward is no longer the same on every rank."""

    def forgetful(comm):
        values = block(comm)
        if comm.rank:
            values["dN"] = values["dN"] + 1
        return values

    figure = Figure(diagrams.operators(tpviz.run(forgetful), BLOCK))
    assert len(figure.boxes("block", "neutral")) == 2


def test_rows_go_through_as_sequence_parallelism_sends_them():
    whole = torch.arange(16.0).view(4, 4)

    def program(comm):
        x = tpviz.shard(whole, 0, comm).requires_grad_()
        y = tpviz.gather_from_region(x, comm, dim=0, consumer="sharded")
        z = y @ torch.eye(4) * (1 + comm.rank)
        a = tpviz.reduce_scatter_to_region(z, comm, dim=0)
        values = {"X": x, "Y": y, "Z": z, "A": a}
        for tensor in values.values():
            tensor.retain_grad()
        a.sum().backward()
        return values | {f"d{name}": tensor.grad for name, tensor in values.items()}

    drawing = diagrams.operators(
        tpviz.run(program), "X → gather_from_region → Y → twice → Z → reduce_scatter_to_region → A"
    )
    assert "forward: AllGather after -, ReduceScatter after twice" in drawing.alt
    assert "backward: AllGather after -, ReduceScatter after twice" in drawing.alt


@pytest.mark.parametrize(
    ("path", "words"),
    [
        (BLOCK.replace("copy_to_region", "copy"), ["backward", "[]", "['all_reduce']"]),
        (BLOCK.replace("+ X", "+ Q"), ["adds Q"]),
        (BLOCK.replace("→ H", "→ Hidden"), ["dict that has Hidden"]),
        ("X → norm", ["must alternate"]),
    ],
)
def test_what_cannot_be_drawn_of_a_block_is_said(path, words):
    with pytest.raises(ValueError, match=".*".join(map(re.escape, words))):
        diagrams.operators(tpviz.run(block), path)
