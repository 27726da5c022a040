"""``check_replicated`` and ``difference``: what differs is named, with its rank, place, size and factor."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import tpviz
from tpviz.example import W, X, dY

RANKS = (1, 2, 3, 4, 8)


@pytest.mark.parametrize("ranks", RANKS)
def test_replicas_that_agree(ranks):
    report = tpviz.check_replicated(tpviz.run(lambda comm: X @ W, ranks=ranks), "Y")
    assert report
    assert report.names == ("Y",)
    assert repr(report) == f"Y is the same on {ranks} rank{'s' * (ranks > 1)}."


@settings(max_examples=100, deadline=None, derandomize=True)
@given(ranks=st.integers(2, 6), data=st.data())
def test_one_changed_entry_is_found(ranks, data):
    rank, row, column = (data.draw(st.integers(low, high)) for low, high in ((0, ranks - 1), (0, 2), (0, 7)))
    held = [(X @ W).clone() for _rank in range(ranks)]
    held[rank][row, column] += 100
    report = tpviz.check_replicated(held, "Y")
    assert not report
    assert {found.rank for found in report.disagreements} == ({rank} if rank else set(range(1, ranks)))
    for found in report.disagreements:
        assert found.difference.place == (row, column)
        assert found.difference.largest == 100
        assert found.difference.differing == 1


@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_inside_a_program_every_rank_gets_the_report_of_the_finished_run(ranks):
    def contribution(comm):
        G = tpviz.shard(dY, 1, comm) @ tpviz.shard(W, 1, comm).T
        return G, tpviz.check_replicated(G, "G", comm)

    outputs = tpviz.run(contribution, ranks=ranks).outputs
    after = tpviz.check_replicated([G for G, _ in outputs], "G")
    for _, inside in outputs:
        assert not inside
        assert [d.difference[:5] for d in inside.disagreements] == [d.difference[:5] for d in after.disagreements]


def test_a_module_shards_are_left_out_and_gradients_are_looked_at():
    torch.manual_seed(0)

    def training(comm, healthy):
        model = nn.Sequential(
            nn.LayerNorm(4), tpviz.ColumnParallelLinear(4, 8, comm), tpviz.RowParallelLinear(8, 4, comm)
        )
        model(X).backward(dY[:, :4] * (1 if healthy else comm.rank + 1))
        return tpviz.check_replicated(model, "model", comm)

    for report in tpviz.run(training, args=(True,)).outputs:
        assert report
        assert report.names == tuple(f"model.{name}" for name in _replicated_names())
    for report in tpviz.run(training, args=(False,)).outputs:
        assert {found.name for found in report.disagreements} >= {"model.2.bias.grad"}
        bias = next(found for found in report.disagreements if found.name == "model.2.bias.grad")
        assert bias.reason == "2 times rank 0's"
        assert not any(found.name.endswith(("weight", "bias")) for found in report.disagreements)


def _replicated_names():
    return [f"{name}{kind}" for name in ("0.weight", "0.bias", "2.bias") for kind in ("", ".grad")]


def test_a_gradient_on_some_ranks_only():
    def program(comm):
        norm = nn.LayerNorm(4)
        if comm.rank == 1:
            norm(X).backward(dY[:, :4])
        return tpviz.check_replicated(norm, comm=comm)

    for report in tpviz.run(program, ranks=3).outputs:
        assert [(found.name, found.rank, found.reason) for found in report.disagreements] == [
            ("weight.grad", 1, "rank 0 has none"),
            ("bias.grad", 1, "rank 0 has none"),
        ]


def test_nested_outputs_other_shapes_and_missing_ones():
    held = [{"a": X, "b": (X, W)}, {"a": X, "b": (W, W)}, {"a": X}]
    report = tpviz.check_replicated(held)
    assert [(found.name, found.rank, found.reason) for found in report.disagreements] == [
        ("b[0]", 1, "its shape is 4×8, rank 0's 3×4"),
        ("b[0]", 2, "it has none"),
        ("b[1]", 2, "it has none"),
    ]
    assert "b[0]" in report._repr_html_()


@pytest.mark.parametrize("values", [X, [], "ab", 3, [1, 2], {"a": X}])
def test_what_holds_no_tensors_of_several_ranks_is_refused(values):
    with pytest.raises(TypeError, match="check_replicated"):
        tpviz.check_replicated(values)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("factor", [2, 4, 0.5, -1, 1 / 3])
def test_the_factor_is_named(dtype, factor):
    torch.manual_seed(1)
    right = torch.randn(5, 7, dtype=dtype)
    found = tpviz.difference(right * factor, right)
    assert found.factor == pytest.approx(factor, rel=float(128 * torch.finfo(dtype).eps))
    names = {2: "2", 4: "4", 0.5: "1/2", -1: "−1", 1 / 3: "1/3"}
    if dtype == torch.float64:
        assert str(found) == f"Every entry is {names[factor]} times what it should be."


def test_a_bias_added_too_often_and_a_single_wrong_entry():
    bias = torch.tensor([1.0, 2, 3, 4])
    assert str(tpviz.difference(X + 3 * bias, X)) == "Every row is off by (3, 6, 9, 12)."
    wrong = X.clone()
    wrong[2, 1] = 7
    assert str(tpviz.difference(wrong, X)) == "1 of 12 entries differs, at [2, 1]: 7, where −1 is expected."
    assert str(tpviz.difference(X, X)) == "All 12 entries are equal."


def test_rounding_is_no_factor_and_not_a_number_equals_itself():
    right = torch.tensor([1.0, 3.0, 7.0], dtype=torch.float64)
    rounded = right * (1 + 2**-52)
    assert tpviz.difference(rounded, right).factor is None
    odd = torch.tensor([float("nan"), 1, float("inf")])
    assert not tpviz.difference(odd, odd.clone()).differing
    found = tpviz.difference(odd, torch.tensor([float("nan"), 1, 2]))
    assert (found.differing, found.place, found.factor) == (1, (2,), None)
    assert tpviz.difference(torch.tensor([1.0, float("nan")]), torch.tensor([5.0, 1.0])).place == (1,)
    assert not tpviz.difference(torch.zeros(0, 3), torch.zeros(0, 3)).differing


def test_tensors_that_cannot_be_compared():
    with pytest.raises(ValueError, match="3×4 cannot be compared with 4×8"):
        tpviz.difference(X, W)
    with pytest.raises(TypeError, match="complex"):
        tpviz.difference(X + 0j, X)
