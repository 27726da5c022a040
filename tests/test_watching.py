"""Watching: what a PyTorch plan sends, by module, phase and line, agrees with PyTorch's own counter and with ours."""

import functools
import inspect
import logging
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from gloo_ranks import on_gloo
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard
from torch.distributed.tensor.debug import CommDebugMode
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)
from torch.utils.checkpoint import checkpoint

import tpviz
from tpviz.layers import ColumnParallelLinear, RowParallelLinear
from tpviz.watching import Place, Watched, pretended_ranks, watch

BATCH, LENGTH, WIDTH, HIDDEN = 2, 8, 16, 32
WHOLE = BATCH * LENGTH * WIDTH * 4
"""The bytes of one activation."""


class MLP(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(WIDTH, HIDDEN)
        self.down = nn.Linear(HIDDEN, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        hidden = torch.relu(self.up(x))
        return self.down(hidden)


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.out = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (each(x).unflatten(-1, (-1, 2)).transpose(1, 2) for each in (self.q, self.k, self.v))
        heads = nn.functional.scaled_dot_product_attention(q, k, v)
        return self.out(heads.transpose(1, 2).flatten(-2))


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.attention = Attention()
        self.mlp = MLP()

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm(x))
        return x + self.mlp(x)


class Stack(nn.Module):
    def __init__(self, layers: int, block: Callable[[], nn.Module] = Block, checkpointed: bool | None = None) -> None:
        super().__init__()
        self.layers = nn.ModuleList(block() for _ in range(layers))
        self.reentrant = checkpointed

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x) if self.reentrant is None else checkpoint(layer, x, use_reentrant=self.reentrant)  # type: ignore[assignment]
        return x


def rows() -> Shard:
    return Shard(1)


PAIR = {"up": ColwiseParallel, "down": RowwiseParallel}
SEQUENCE: Mapping[str, Callable[[], Any]] = {
    "norm": SequenceParallel,
    "attention": lambda: PrepareModuleInput(input_layouts=rows(), desired_input_layouts=Replicate()),
    **{f"attention.{name}": ColwiseParallel for name in "qkv"},
    "attention.out": lambda: RowwiseParallel(output_layouts=rows()),
    "mlp.up": lambda: ColwiseParallel(input_layouts=rows()),
    "mlp.down": lambda: RowwiseParallel(output_layouts=rows()),
}
HEADS: Mapping[str, Callable[[], Any]] = {
    **{f"attention.{name}": ColwiseParallel for name in "qkv"},
    "attention.out": RowwiseParallel,
    **{f"mlp.{name}": style for name, style in PAIR.items()},
}
Row = tuple[str, str, dict[str, int], int]
# A model and its plan, and by hand: each module's and phase's collectives and the bytes of one of its whole arrays.
PLANS: dict[str, tuple[Callable[[], nn.Module], Mapping[str, Callable[[], Any]], list[Row]]] = {
    "pair": (
        MLP,
        PAIR,
        [("up", "backward", {"all_reduce": 1}, WHOLE), ("down", "forward", {"all_reduce": 1}, WHOLE)],
    ),
    "gathered": (
        MLP,
        {"up": lambda: ColwiseParallel(output_layouts=Replicate())},
        [
            ("up", "forward", {"all_gather": 1}, 2 * WHOLE),
            ("up", "backward", {"all_reduce": 1}, WHOLE),
        ],
    ),
    "wrong: both split by columns": (
        MLP,
        {
            "up": ColwiseParallel,
            "down": lambda: ColwiseParallel(input_layouts=Shard(-1), output_layouts=Replicate()),
        },
        [
            ("up", "backward", {"all_reduce": 1}, WHOLE),
            ("down", "forward", {"all_gather": 2}, 2 * WHOLE + WHOLE),
            ("down", "backward", {"reduce_scatter": 1}, 2 * WHOLE),
        ],
    ),
    "attention": (
        Block,
        HEADS,
        [
            *((f"attention.{name}", "backward", {"all_reduce": 1}, WHOLE) for name in "qkv"),
            ("attention.out", "forward", {"all_reduce": 1}, WHOLE),
            ("mlp.up", "backward", {"all_reduce": 1}, WHOLE),
            ("mlp.down", "forward", {"all_reduce": 1}, WHOLE),
        ],
    ),
    "sequence": (
        Block,
        SEQUENCE,
        [
            ("attention", "forward", {"all_gather": 1}, WHOLE),
            ("attention", "backward", {"reduce_scatter": 1}, WHOLE),
            ("attention.out", "forward", {"reduce_scatter": 1}, WHOLE),
            ("attention.out", "backward", {"all_gather": 1}, WHOLE),
            ("mlp.up", "forward", {"all_gather": 1}, WHOLE),
            ("mlp.up", "backward", {"reduce_scatter": 1}, WHOLE),
            ("mlp.down", "forward", {"reduce_scatter": 1}, WHOLE),
            ("mlp.down", "backward", {"all_gather": 1}, WHOLE),
        ],
    ),
}


def step(name: str, mesh: DeviceMesh, counter: CommDebugMode | None = None) -> Watched:
    """Watch one forward and backward of a plan, also counted by PyTorch where a counter is given."""
    build, plan, _rows = PLANS[name]
    model = parallelize_module(build(), mesh, {module: style() for module, style in plan.items()})
    length = LENGTH // mesh.size() if name == "sequence" else LENGTH
    x = torch.ones(BATCH, length, WIDTH, requires_grad=True)
    with watch(model) as watched, counter or torch.enable_grad():
        y = model.up(x) if name == "gathered" else model(x)  # type: ignore[operator]
        y.sum().backward()
    return watched


def found(watched: Watched) -> list[Row]:
    return [(sent.name, sent.phase, dict(sent.kinds()), sent.payload_bytes) for sent in watched.sent()]


@pytest.mark.parametrize("name", PLANS)
@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_each_module_sent_in_each_phase_what_is_computed_by_hand(name: str, ranks: int) -> None:
    with pretended_ranks(ranks) as mesh:
        watched = step(name, mesh)
    assert found(watched) == PLANS[name][2]
    assert {event.ranks for event in watched.trace} == {tuple(range(ranks))}
    assert {event.dtype for event in watched.trace} == {torch.float32}
    assert watched.trace.warnings == ()


def all_plans() -> dict[str, Watched]:
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    recorded = {}
    for name in PLANS:
        watched = step(name, mesh)
        recorded[name] = [watched.trace.to_json(), watched.places, found(watched)]
    return recorded  # type: ignore[return-value]


def test_on_real_ranks_every_rank_records_the_same_and_what_the_pretended_ones_do(tmp_path: Any) -> None:
    first, second = on_gloo(all_plans, tmp_path)
    assert first == second
    with pretended_ranks(2):
        assert all_plans() == first


PYTORCHS_NAMES = {"all_gather_into_tensor": "all_gather", "reduce_scatter_tensor": "reduce_scatter"}


@pytest.mark.parametrize("name", PLANS)
def test_pytorchs_own_counter_counts_the_same(name: str) -> None:
    counter = CommDebugMode()  # type: ignore[no-untyped-call]
    with pretended_ranks(4) as mesh:
        watched = step(name, mesh, counter)
    top = "" if name == "gathered" else type(watched.model).__name__
    checked = 0
    for module, phases in counter.comm_module_counts.items():
        # In backward it says of a module's parts only which one ran last.
        inner = [] if name == "gathered" or module == "Global" else [*watched.model.get_submodule(
            module.removeprefix(top).removeprefix(".")).children()]  # fmt: skip
        for phase in ("forward", "backward") if inner or module == "Global" else ("forward",):
            theirs = Counter({PYTORCHS_NAMES.get(str(op).rpartition(".")[2], str(op).rpartition(".")[2]): count
                              for op, count in phases[phase].items()})  # fmt: skip
            below = module.removeprefix(top).removeprefix(".") if top and module != "Global" else ""
            ours = Counter(
                event.kind
                for event, place in zip(watched.trace, watched.places, strict=True)
                if event.phase == phase and f"{place.module}.".startswith(f"{below}." if below else "")
            )
            assert ours == theirs, (module, phase)
            checked += 1
    assert checked > 1


def test_a_plan_sends_what_our_layers_send_on_simulated_ranks() -> None:
    whole = MLP()

    def program(comm: tpviz.Communicator) -> None:
        up = ColumnParallelLinear.from_linear(whole.up, comm)
        down = RowParallelLinear.from_linear(whole.down, comm)
        down(torch.relu(up(torch.ones(BATCH, LENGTH, WIDTH, requires_grad=True)))).sum().backward()

    ours = tpviz.run(program, ranks=4).trace
    with pretended_ranks(4) as mesh:
        theirs = step("pair", mesh).trace
    assert [event._replace(source="") for event in theirs] == [event._replace(source="") for event in ours]


def test_layouts_before_and_after_are_the_plans() -> None:
    with pretended_ranks(2) as mesh:
        trace = step("sequence", mesh).trace
    changes = [(event.kind, event.layout_before, event.layout_after) for event in trace]
    gather = ("all_gather", Shard(1), Replicate())
    scatter = ("reduce_scatter", Partial("sum"), Shard(1))
    assert changes == [gather, scatter, gather, scatter, gather, scatter, gather, scatter]
    assert {event.shape for event in trace} == {(BATCH, LENGTH, WIDTH)}


def test_where_a_dimension_does_not_divide_the_padding_is_sent_too() -> None:
    with pretended_ranks(4) as mesh, watch(nn.Identity()) as watched:
        DTensor.from_local(torch.ones(2, 3), mesh, [Shard(1)], shape=torch.Size((2, 10)), stride=(10, 1)).full_tensor()
    assert [(event.shape, event.payload_bytes) for event in watched.trace] == [((2, 12), 96)]


def lines_of(function: Callable[..., Any]) -> list[str]:
    """The places of a function's lines as a trace names them."""
    lines, first = inspect.getsourcelines(function)
    return [f"{MLP.forward.__code__.co_filename}:{first + number}" for number in range(len(lines))]


def test_an_event_has_the_line_of_its_modules_forward_in_backward_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir("/")
    with pretended_ranks(2) as mesh:
        forward, backward = step("pair", mesh).trace
    _def, up, down = lines_of(MLP.forward)
    assert forward.source.endswith(down.lstrip("/"))
    assert backward.source.endswith(up.lstrip("/"))


def test_nested_layers_that_send_the_same_are_one_row_and_the_totals_are_below() -> None:
    with pretended_ranks(8) as mesh:
        model = Stack(3, MLP)
        for layer in model.layers:
            parallelize_module(layer, mesh, {name: style() for name, style in PAIR.items()})
        with watch(model) as watched:
            model(torch.ones(BATCH, LENGTH, WIDTH, requires_grad=True)).sum().backward()
    table = watched.modules()
    assert [row[:4] for row in table.rows] == [
        ("layers.0–2.up", "backward", "3 × all_reduce", "3 KiB"),
        ("layers.0–2.down", "forward", "3 × all_reduce", "3 KiB"),
        ("in all", "forward", "3 × all_reduce", "3 KiB"),
        ("in all", "backward", "3 × all_reduce", "3 KiB"),
    ]
    assert table.rows[0][4] == "Partial(sum) → Replicate"
    assert repr(watched) == table.text()
    assert watched.trace[0].to_dict()["layout_after"] == "Replicate"


@pytest.mark.parametrize("reentrant", [False, True])
def test_a_checkpointed_forward_sends_again_in_backward(reentrant: bool) -> None:
    with pretended_ranks(2) as mesh:
        model = Stack(2, MLP, reentrant)
        for layer in model.layers:
            parallelize_module(layer, mesh, {name: style() for name, style in PAIR.items()})
        with watch(model) as watched:
            model(torch.ones(BATCH, LENGTH, WIDTH, requires_grad=True)).sum().backward()
    happened = Counter(
        (place.module, event.phase, place.recomputed)
        for event, place in zip(watched.trace, watched.places, strict=True)
    )
    expected = {("down", "forward", False): 1, ("up", "backward", False): 1}
    if reentrant or happened["layers.0.down", "backward", True]:
        # The other kind stops once what backward needs is there: in a process that has done nothing else, before down's
        # result is reduced; in some others, after. Then it was sent, and the record must say so for both layers.
        expected[("down", "backward", True)] = 1
    assert happened == {
        (f"layers.{layer}.{name}", phase, again): count
        for layer in (0, 1)
        for (name, phase, again), count in expected.items()
    }
    assert any(row[1] == "backward, recomputing" for row in watched.modules().rows) == (
        ("down", "backward", True) in expected
    )


def test_what_is_called_outside_of_the_modules_and_of_autograd_is_other() -> None:
    with pretended_ranks(4) as mesh:
        model = parallelize_module(MLP(), mesh, {name: style() for name, style in PAIR.items()})
        optimizer = torch.optim.SGD(model.parameters())
        with watch(model) as watched:
            model(torch.ones(BATCH, WIDTH)).sum().backward()
            norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            assert isinstance(norm, DTensor)
            norm.full_tensor()
            optimizer.step()
    assert {event.phase for event in watched.trace} == {"forward", "other"}
    assert {place.module for event, place in zip(watched.trace, watched.places, strict=True)
            if event.phase == "other"} == {None}  # fmt: skip
    assert watched.modules().rows[-3][0] == "outside of the model"


def test_a_mesh_of_tensor_and_data_parallel_ranks_names_each_groups_ranks() -> None:
    with pretended_ranks(4):
        mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
        model = parallelize_module(MLP(), mesh["tp"], {name: style() for name, style in PAIR.items()})
        with watch(model) as watched:
            model(torch.ones(BATCH, WIDTH, requires_grad=True)).sum().backward()
            gradient = model.up.weight.grad
            assert isinstance(gradient, DTensor)
            dist.all_reduce(gradient.to_local(), dist.ReduceOp.AVG, group=mesh.get_group("dp"))
    facts = [(event.ranks, event.phase, event.options[0]) for event in watched.trace]
    assert facts == [((0, 1), "forward", "sum"), ((0, 1), "backward", "sum"), ((0, 2), "other", "mean")]
    assert watched.trace[2].shape == (HIDDEN // 2, WIDTH)


def test_a_gradients_own_hook_belongs_to_the_parameters_module() -> None:
    with pretended_ranks(2):
        model = MLP()
        model.down.weight.register_post_accumulate_grad_hook(lambda parameter: dist.all_reduce(parameter.grad))
        with watch(model) as watched:
            model(torch.ones(BATCH, WIDTH)).sum().backward()
    assert (watched.places, watched.trace[0].phase) == ((Place("down"),), "backward")


def part() -> Tensor:
    return torch.ones(4, 2)


def parts() -> list[Tensor]:
    return [part() for _ in range(4)]


# What is called on 4 pretended ranks; kind, ranks, shape of the whole, options.
EVERYONE = (0, 1, 2, 3)
NOTHING = (None, None, None)
CALLS: dict[str, tuple[Callable[[], Any], tuple[Any, ...]]] = {
    "all_reduce": (
        lambda: dist.all_reduce(part(), dist.ReduceOp.MAX),
        ("all_reduce", EVERYONE, (4, 2), ("max", None, None)),
    ),
    "all_gather": (lambda: dist.all_gather(parts(), part()), ("all_gather", EVERYONE, (4, 4, 2), NOTHING)),
    "all_gather_into_tensor": (
        lambda: dist.all_gather_into_tensor(torch.ones(16, 2), part()),
        ("all_gather", EVERYONE, (16, 2), NOTHING),
    ),
    "reduce_scatter": (
        lambda: dist.reduce_scatter(part(), parts()),
        ("reduce_scatter", EVERYONE, (4, 4, 2), ("sum", None, None)),
    ),
    "reduce_scatter_tensor": (
        lambda: dist.reduce_scatter_tensor(torch.ones(1, 2), part(), dist.ReduceOp.AVG),
        ("reduce_scatter", EVERYONE, (4, 2), ("mean", None, None)),
    ),
    "all_to_all": (lambda: dist.all_to_all(parts(), parts()), ("all_to_all", EVERYONE, (4, 4, 2), NOTHING)),
    "all_to_all, uneven": (
        lambda: dist.all_to_all(*([torch.ones(size, 2) for size in (4, 4, 4, 3)] for _ in range(2))),
        ("all_to_all", EVERYONE, (30,), NOTHING),
    ),
    "all_to_all_single": (
        lambda: dist.all_to_all_single(part(), part()),
        ("all_to_all", EVERYONE, (4, 2), NOTHING),
    ),
    "broadcast": (lambda: dist.broadcast(part(), 1), ("broadcast", EVERYONE, (4, 2), NOTHING)),
    "reduce": (lambda: dist.reduce(part(), 1), ("reduce", EVERYONE, (4, 2), ("sum", None, None))),
    "gather": (lambda: dist.gather(part(), parts(), 0), ("gather", EVERYONE, (4, 4, 2), NOTHING)),
    "scatter": (lambda: dist.scatter(part(), parts(), 0), ("scatter", EVERYONE, (4, 4, 2), NOTHING)),
    "send": (lambda: dist.send(part(), 2), ("send", (0, 2), (4, 2), NOTHING)),
    "recv": (lambda: dist.recv(part(), 3), ("send", (3, 0), (4, 2), NOTHING)),
    "barrier": (dist.barrier, ("barrier", EVERYONE, (), NOTHING)),
    "functional all_reduce": (
        lambda: functional.all_reduce(part(), "avg", dist.group.WORLD),
        ("all_reduce", EVERYONE, (4, 2), ("mean", None, None)),
    ),
    "functional all_gather": (
        lambda: functional.all_gather_tensor(part(), 1, dist.group.WORLD),
        ("all_gather", EVERYONE, (4, 8), (None, 1, None)),
    ),
    "functional reduce_scatter": (
        lambda: functional.reduce_scatter_tensor(torch.ones(3, 8), "sum", 1, dist.group.WORLD),
        ("reduce_scatter", EVERYONE, (3, 8), ("sum", 1, None)),
    ),
    "functional all_to_all": (
        lambda: functional.all_to_all_single(part(), None, None, dist.group.WORLD),
        ("all_to_all", EVERYONE, (4, 2), NOTHING),
    ),
    "functional all_to_all with a gradient": (
        lambda: functional.all_to_all_single_autograd(part().requires_grad_(), None, None, dist.group.WORLD),
        ("all_to_all", EVERYONE, (4, 2), NOTHING),
    ),
    "functional broadcast": (
        lambda: functional.broadcast(part(), 0, dist.group.WORLD),
        ("broadcast", EVERYONE, (4, 2), NOTHING),
    ),
    "functional all_reduce_coalesced": (
        lambda: functional.all_reduce_coalesced([part(), torch.ones(3)], "sum", dist.group.WORLD),
        ("all_reduce", EVERYONE, (11,), ("sum", None, None)),
    ),
    "functional all_gather, coalesced": (
        lambda: functional.all_gather_into_tensor_coalesced([part(), torch.ones(1)], dist.group.WORLD),
        ("all_gather", EVERYONE, (36,), NOTHING),
    ),
    "the operator itself": (
        lambda: torch.ops._c10d_functional.all_gather_into_tensor(part(), 4, dist.group.WORLD.group_name),
        ("all_gather", EVERYONE, (16, 2), NOTHING),
    ),
    "all-to-all of layouts, as on GPUs": (
        lambda: torch.ops._dtensor.shard_dim_alltoall(part().to("meta"), 0, 1, dist.group.WORLD.group_name),
        ("all_to_all", EVERYONE, (4, 2), (None, 1, 0)),
    ),
}


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize("name", CALLS)
def test_every_collective_of_pytorch_is_read(name: str) -> None:
    call, expected = CALLS[name]
    with pretended_ranks(4), watch(nn.Identity()) as watched:
        call()
    (event,) = watched.trace
    kind, ranks, shape, options = expected
    assert (event.kind, event.ranks, event.shape, event.options) == (kind, ranks, shape, options)
    assert event.payload_bytes == (4 * torch.Size(shape).numel() if kind != "barrier" else 0)
    assert (event.phase, watched.places) == ("other", (Place(None),))
    assert watched.trace.table("layout_before", "layout_after").text()
    assert isinstance(event.to_dict()["wire_bytes"], float)


def test_an_operator_that_cannot_be_read_is_named() -> None:
    with pretended_ranks(2), watch(nn.Identity()) as watched:
        dist.irecv(part())
    assert len(watched.trace) == 0
    assert "c10d.recv_any_source_" in watched.trace.warnings[0]


def test_a_real_payload_is_written_out_in_the_trace_and_with_a_unit_by_module() -> None:
    with pretended_ranks(2), watch(nn.Identity()) as watched:
        dist.all_reduce(torch.ones(1024, 640))
    assert "  2621440 B  " in watched.trace.table().text()
    assert watched.modules().rows[0][3] == "2.5 MiB"


class Failing(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        dist.all_reduce(x)
        raise ZeroDivisionError


def hooks_of(model: nn.Module) -> list[int]:
    return [len(each._forward_hooks) + len(each._forward_pre_hooks) for each in model.modules()]


def test_what_was_sent_before_an_exception_is_kept_and_nothing_stays_active() -> None:
    model = nn.Sequential(nn.Identity(), Failing())

    def failing_step() -> Watched:
        with watch(model) as watched:
            try:
                model(part())
            except ZeroDivisionError:
                dist.all_reduce(part())
                seen.append(watched)
                raise
        return watched

    seen = list[Watched]()
    with pretended_ranks(2):
        with pytest.raises(ZeroDivisionError):
            failing_step()
        dist.all_reduce(part())
    assert seen[0].places == (Place("1"), Place(None))
    assert [event.phase for event in seen[0].trace] == ["forward", "other"]
    assert hooks_of(model) == [0, 0, 0]
    assert torch.utils._python_dispatch._get_current_dispatch_mode() is None
    assert torch.autograd.is_multithreading_enabled()


def test_nothing_sent_is_said() -> None:
    with watch(MLP()) as watched:
        watched.model(torch.ones(2, WIDTH)).sum().backward()
    assert repr(watched) == "No collective: nothing was sent between ranks."


def test_pretended_ranks_leave_nothing_behind() -> None:
    for ranks in (8, 2, 8):
        with pretended_ranks(ranks) as mesh:
            assert (mesh.size(), dist.get_rank(), dist.get_world_size()) == (ranks, 0, ranks)
            assert len(step("pair", mesh).trace) == 2
        assert not dist.is_initialized()
    with pytest.raises(ZeroDivisionError), pretended_ranks(2):
        raise ZeroDivisionError
    assert not dist.is_initialized()


def test_what_pytorch_refuses_on_pretended_ranks_it_says_in_the_exception_alone(
    caplog: pytest.LogCaptureFixture,
) -> None:
    logger = logging.getLogger("torch._subclasses.fake_tensor")
    level = logger.level
    with pretended_ranks(2) as mesh:
        model = parallelize_module(MLP(), mesh, {"up": ColwiseParallel(), "down": ColwiseParallel()})
        with pytest.raises(RuntimeError, match="must have same reduction dim"):
            model(torch.ones(2, WIDTH))
    assert caplog.records == []
    assert logger.level == level


@pytest.fixture
def initialised() -> Iterator[None]:
    with pretended_ranks(2):
        yield


def test_pretended_ranks_refuse_where_torch_distributed_runs(initialised: None) -> None:
    with pytest.raises(RuntimeError, match=r"2 ranks \(fake\).*destroy_process_group"), pretended_ranks(4):
        pass
    assert dist.get_world_size() == 2


@pytest.mark.parametrize("ranks", [0, True, 2.0])
def test_pretended_ranks_are_a_whole_number(ranks: Any) -> None:
    with pytest.raises(ValueError, match="expected a whole number"), pretended_ranks(ranks):
        pass


def test_only_a_module_is_watched() -> None:
    with pytest.raises(TypeError, match="takes the model"), watch(functools.partial(print)):  # type: ignore[arg-type]
        pass
