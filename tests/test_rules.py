"""Layout rules: true in numbers, forward and backward, on any number of ranks; and DTensor's own rules agree."""

import itertools

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.debug import CommDebugMode
from torch.testing._internal.distributed.fake_pg import FakeStore

from tpviz import rules
from tpviz.layouts import Partial, Replicate, Shard, distribute, full
from tpviz.rules import OPERATORS, every_ruling, passes

ROWS, FEATURES, OUT, WORDS = 5, 4, 6, 7

# What each operator computes; the second input's shape, or what it is.
COMPUTE = {
    "matmul": (lambda x, w: x @ w, (FEATURES, OUT)),
    "add": (lambda x, y: x + y, (ROWS, FEATURES)),
    "add_constant": (lambda x: x + 10, None),
    "add_bias": (lambda x, b: x + b, (FEATURES,)),
    "multiply": (lambda x, y: x * y, (ROWS, FEATURES)),
    "scale": (lambda x: 3 * x, None),
    "relu": (torch.relu, None),
    "gelu": (F.gelu, None),
    "silu": (F.silu, None),
    "square": (lambda x: x * x, None),
    "softmax": (lambda x: torch.softmax(x, -1), None),
    "layer_norm": (lambda x, w: F.layer_norm(x, (FEATURES,), w), (FEATURES,)),
    "rms_norm": (lambda x, w: F.rms_norm(x, (FEATURES,), w), (FEATURES,)),
    "sum": (lambda x: x.sum(-1), None),
    "transpose": (lambda x: x.T, None),
    "embedding": (lambda ids, table: F.embedding(ids, table), (WORDS, FEATURES)),
    "cross_entropy": (lambda x, targets: F.cross_entropy(x, targets, reduction="sum"), "targets"),
}
CASES = [(name, None) for name in COMPUTE] + [("sum", 0), ("softmax", 0)]


def with_dim(operator, dim):
    """The operator, over another dimension."""
    compute, other = COMPUTE[operator]
    if operator == "sum" and dim == 0:
        return lambda x: x.sum(0), other
    if operator == "softmax" and dim == 0:
        return lambda x: torch.softmax(x, 0), other
    return compute, other


def inputs_of(operator, seed):
    """Whole inputs; integers in float64."""
    generator = torch.Generator().manual_seed(seed)
    _compute, other = COMPUTE[operator]
    if operator == "embedding":
        first = torch.randint(0, WORDS, (ROWS,), generator=generator)
    else:
        first = torch.randint(-4, 5, (ROWS, FEATURES), generator=generator).double()
    if other is None:
        return [first]
    if other == "targets":
        return [first, torch.randint(0, FEATURES, (ROWS,), generator=generator)]
    return [first, torch.randint(-4, 5, other, generator=generator).double()]


def held(whole, placement, ranks, seed):
    """What the ranks hold; the addends of a partial sum are random."""
    if not isinstance(placement, Partial):
        return distribute(whole, placement, ranks)
    generator = torch.Generator().manual_seed(seed + 7)
    addends = [torch.randint(-4, 5, whole.shape, generator=generator).to(whole.dtype) for _rank in range(ranks - 1)]
    return [*addends, whole - sum(addends)] if addends else [whole]


def embedded(ids, table, placement, rank, ranks):
    """The embedding on one rank; with some rows of the table, zeros stand for the words of others."""
    if placement != Shard(0):
        return F.embedding(ids, table)
    size = -(-WORDS // ranks)
    mine = ids - rank * size
    inside = (mine >= 0) & (mine < len(table))
    found = F.embedding(mine.clamp(0, max(len(table) - 1, 0)), table) if len(table) else table.new_zeros(ROWS, FEATURES)
    return found * inside[:, None]


def on_one_rank(operator, dim, inputs, placements, rank, ranks):
    if operator == "embedding":
        return embedded(*inputs, placements[1], rank, ranks)
    compute, _other = with_dim(operator, dim)
    return compute(*inputs)


def close(got, expected):
    return torch.allclose(got, expected, rtol=1e-12, atol=1e-12)


PASSING = [(op, dim, ruling) for op, dim in CASES for ruling in every_ruling(op, dim) if ruling]
REFUSED = [(op, dim, ruling) for op, dim in CASES for ruling in every_ruling(op, dim) if not ruling]


def name_of(value):
    return "-".join(map(rules.str_of, value.inputs)) if isinstance(value, rules.Ruling) else str(value)


@pytest.mark.parametrize(("operator", "dim", "ruling"), PASSING, ids=name_of)
@settings(max_examples=12, deadline=None, derandomize=True)
@given(ranks=st.integers(1, 6), seed=st.integers(0, 999))
def test_what_passes_is_right_forward_and_backward(operator, dim, ruling, ranks, seed):
    wholes = [each.requires_grad_() if each.is_floating_point() else each for each in inputs_of(operator, seed)]
    expected = with_dim(operator, dim)[0](*wholes)
    cotangent = torch.randint(-3, 4, expected.shape, generator=torch.Generator().manual_seed(seed)).double()
    expected.backward(cotangent)
    possible = [None, Partial()] if ruling.output == Replicate() else [None]
    for gradient in possible:
        lies = rules.gradients(ruling)[0] if gradient is None else gradient
        parts = [held(whole.detach(), each, ranks, seed) for whole, each in zip(wholes, ruling.inputs, strict=True)]
        usual = Replicate() if isinstance(ruling.output, Partial) else ruling.output
        cotangents = held(cotangent, gradient or usual, ranks, seed + 1)
        outputs, found = [], []
        for rank in range(ranks):
            mine = [each[rank].requires_grad_() if each[rank].is_floating_point() else each[rank] for each in parts]
            output = on_one_rank(operator, dim, mine, ruling.inputs, rank, ranks)
            if output.requires_grad:
                output.backward(cotangents[rank])
            outputs.append(output.detach())
            found.append([torch.zeros_like(each) if each.grad is None else each.grad for each in mine])
        assert close(full(outputs, ruling.output), expected.detach())
        for place, lies in enumerate(rules.gradients(ruling, gradient)):
            if lies is not None:
                assert close(full([each[place] for each in found], lies), wholes[place].grad), (place, lies)


@pytest.mark.parametrize(("operator", "dim", "ruling"), REFUSED, ids=name_of)
def test_what_is_refused_does_not_work(operator, dim, ruling):
    """On 2 and on 4 ranks: the shapes do not fit, or what comes out is the whole in no placement."""
    assert ruling.reason
    for ranks, seed in itertools.product((2, 4), range(3)):
        wholes = inputs_of(operator, seed)
        expected = with_dim(operator, dim)[0](*wholes)
        parts = [held(whole, each, ranks, seed) for whole, each in zip(wholes, ruling.inputs, strict=True)]
        try:
            outputs = [
                on_one_rank(operator, dim, [each[rank] for each in parts], ruling.inputs, rank, ranks)
                for rank in range(ranks)
            ]
        except (RuntimeError, IndexError, ValueError):
            continue
        for placement in rules.PLACEMENTS:
            try:
                assert not close(full(outputs, placement), expected), (placement, ranks, seed)
            except (ValueError, IndexError, RuntimeError):
                continue


def test_every_operator_is_tested():
    assert {*COMPUTE, "dropout"} == set(OPERATORS)


@pytest.mark.parametrize(
    "operator", ["relu", "gelu", "silu", "square", "softmax", "layer_norm", "add_constant", "dropout"]
)
def test_a_partial_sum_passes_only_what_is_linear(operator):
    inputs = [Partial()] + [Replicate()] * (len(OPERATORS[operator].inputs) - 1)
    assert not passes(operator, *inputs)
    for linear in ("scale", "transpose", "sum"):
        assert passes(linear, Partial()).output == Partial()


# DTensor


@pytest.fixture(scope="module")
def mesh():
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    yield init_device_mesh("cpu", (2,))
    dist.destroy_process_group()


SHAPES = {"x": (4, 8), "y": (4, 8), "w": (8, 6), "b": (8,), "weight": (8,), "logits": (4, 8), "table": (6, 8)}
DTENSOR = {name: compute for name, (compute, _other) in COMPUTE.items()}
DTENSOR["layer_norm"] = lambda x, w: F.layer_norm(x, (8,), w)
DTENSOR["rms_norm"] = lambda x, w: F.rms_norm(x, (8,), w)

# Where DTensor needs a collective, or has no rule, for what is right without one (in numbers, above), and why.
ONLY_OURS = {
    ("layer_norm", Replicate(), Partial()): "DTensor reduces a norm's weight first; a partial weight is a plain factor",
    ("embedding", Replicate(), Partial()): "DTensor reduces the table first; looking rows up is linear in the table",
}

# And the other way round, beyond what a replicated input cut in passing explains.
ONLY_THEIRS = {
    (
        "rms_norm",
        Replicate(),
        Shard(0),
    ): "made of two operators there: whole rows are normalised, then cut as the weight",
}
# Where DTensor computes a whole gradient on every rank, and cuts it when it is accumulated; here it is a shard at once.
WHOLE_FIRST = ("sum", "embedding")


def as_dtensor(name, placement, mesh):
    sizes = list(SHAPES.get(name, (4,)))
    if isinstance(placement, Shard):
        sizes[placement.dim] //= 2
    values = torch.ones(sizes) if name in SHAPES else torch.zeros(sizes, dtype=torch.int64)
    tensor = DTensor.from_local(values, mesh, [placement], run_check=False).detach()
    return tensor.requires_grad_() if name in SHAPES else tensor


def by_dtensor(operator, placements, mesh):
    """What DTensor makes of these placements with nothing sent: output and inputs; None if it sends or fails."""
    known = OPERATORS[operator]
    inputs = [as_dtensor(name, each, mesh) for name, each in zip(known.inputs, placements, strict=True)]
    try:
        with CommDebugMode() as mode:
            output = DTENSOR[operator](*inputs)
    except RuntimeError:  # rms_norm of columns: "no valid strategy preserves this placement"
        return None
    return (output, inputs) if mode.get_total_counts() == 0 else None


def cut_on_the_spot(ruling):
    """What passes after replicated inputs have been cut, or made addends, which every rank can do by itself."""
    choices = [rules.PLACEMENTS if each == Replicate() else (each,) for each in ruling.inputs]
    for placements in itertools.product(*choices):
        try:
            yield passes(ruling.operator, *placements).output
        except TypeError:  # a vector has no dimension 1
            continue


# A mask's random numbers come from the ranks' streams, which DTensor synchronises on a GPU only.
@pytest.mark.parametrize("operator", [name for name in OPERATORS if name != "dropout"])
def test_dtensor_agrees_forward_and_backward(operator, mesh):
    for ruling in every_ruling(operator):
        theirs = by_dtensor(operator, ruling.inputs, mesh)
        if theirs is None:
            assert not ruling or (operator, *ruling.inputs) in ONLY_OURS
            continue
        output, inputs = theirs
        (placement,) = output.placements
        if not ruling:
            # A replicated tensor is the whole on each rank, so DTensor cuts it in passing. Here that is a conversion,
            # which costs an all-gather of the gradient.
            assert Replicate() in ruling.inputs
            known = (operator, *ruling.inputs) in ONLY_THEIRS
            assert known or any(placement == other for other in cut_on_the_spot(ruling))
            continue
        # A vocabulary-parallel embedding's partial sum carries a mask.
        assert placement == ruling.output or (operator == "embedding" and placement.is_partial())
        for gradient in [None, Partial()] if ruling.output == Replicate() else [None]:
            lies = gradient or (Replicate() if isinstance(ruling.output, Partial) else ruling.output)
            cotangent = DTensor.from_local(torch.ones_like(output.to_local()), mesh, [lies], run_check=False)
            learning = [each for each in inputs if each.requires_grad]
            with CommDebugMode() as mode:
                found = torch.autograd.grad(output, learning, cotangent, retain_graph=True)
            ours = [each for each in rules.gradients(ruling, gradient) if each is not None]
            if mode.get_total_counts() == 0:
                for mine, each in zip(ours, found, strict=True):
                    whole_first = operator in WHOLE_FIRST and each.placements[0] == Replicate()
                    assert each.placements[0] == mine or whole_first, (ruling, gradient)


def test_every_difference_from_dtensor_is_there(mesh):
    for operator, *placements in ONLY_OURS:
        assert passes(operator, *placements)
        assert by_dtensor(operator, placements, mesh) is None
    for operator, *placements in ONLY_THEIRS:
        ruling = passes(operator, *placements)
        assert not ruling
        output, _inputs = by_dtensor(operator, placements, mesh)
        assert output.placements[0] not in list(cut_on_the_spot(ruling))


# Words


def test_a_ruling_says_what_passes_and_why_not():
    assert repr(passes("matmul", Replicate(), Shard(1))) == (
        "matmul: Replicate · Shard(1) → Shard(1); backward: Shard(1) → Partial · Shard(1)"
    )
    refused = passes("relu", Partial())
    assert repr(refused).startswith("relu: Partial does not pass. The ranks hold addends")
    assert "✗" in refused._repr_html_()
    assert "✓" in passes("scale", Partial())._repr_html_()
    assert repr(rules.table("relu", "scale")).split("\n")[1].split() == [
        "relu",
        "Replicate",
        "Shard(0)",
        "Shard(1)",
        "–",
    ]


@pytest.mark.parametrize(
    ("call", "kind", "words"),
    [
        (lambda: passes("conv", Replicate()), ValueError, "'conv'"),
        (lambda: passes("matmul", Replicate()), ValueError, "x, w"),
        (lambda: passes("relu", Shard(2)), TypeError, "relu's x"),
        (lambda: passes("relu", Partial("max")), TypeError, "max"),
        (lambda: passes("add_bias", Replicate(), Shard(1)), TypeError, "add_bias's b"),
        (lambda: passes("relu", Replicate(), dim=1), ValueError, "no dim"),
        (lambda: rules.gradients(passes("relu", Partial())), ValueError, "addends"),
        (lambda: rules.gradients(passes("relu", Shard(1)), Replicate()), ValueError, r"Shard\(1\), not like Replicate"),
    ],
)
def test_wrong_questions(call, kind, words):
    with pytest.raises(kind, match=words):
        call()
