# mypy: allow-untyped-defs, allow-untyped-calls
"""The exercises of notebook 10, a Transformer block (checks). Programs are shown as they stand here."""

from collections import Counter, defaultdict

import torch

import tpviz
from tpviz.exercises.inputs import integers
from tpviz.exercises.nb06_two_layers import TrafficExercise
from tpviz.exercises.pattern import Case, Misconception, ProgramExercise, ValueExercise
from tpviz.i18n import N_, _
from tpviz.trace import Trace


def _most_sent(trace: Trace) -> float:
    """What the rank that sends most sends, in bytes."""
    sent: dict[int, float] = defaultdict(float)
    for event in trace:
        for rank in event.ranks[:1] if event.kind == "send" else event.ranks:
            sent[rank] += event.wire_bytes
    return max(sent.values(), default=0)


# The fused weight


def own_columns(comm, WQKV):
    """This rank's columns of [WQ | WK | WV]: its heads' share of each part."""
    parts = WQKV.chunk(3, dim=1)
    return torch.cat([tpviz.shard(part, 1, comm) for part in parts], dim=1)  # hole


def _fused(rows: int, heads: int, width: int, ranks: int) -> Case:
    label = _("{heads} heads of {width} features on {ranks} ranks").format(heads=heads, width=width, ranks=ranks)
    return Case((integers(rows, 3 * heads * width),), label, ranks)


def _head_by_head(comm, WQKV):
    """Q, K and V of the first head, then of the next: right heads in another order."""
    parts = [tpviz.shard(part, 1, comm) for part in WQKV.chunk(3, dim=1)]
    return torch.stack([part.unflatten(1, (-1, 2)) for part in parts], dim=2).flatten(1)


BY_HEAD = ProgramExercise(
    id="10-by-head",
    function=own_columns,
    inputs=lambda: [_fused(4, 4, 2, ranks=2), _fused(4, 4, 2, ranks=4), _fused(2, 6, 2, ranks=3)],
    right=N_(
        "Each part is cut by itself, so a rank has Q, K and V of the same heads, and can do all of attention with them."
    ),
    hint_sentences=(
        N_("A head needs its own Q, its own K and its own V. Which columns of the whole are that for rank 0?"),
        N_("Cut each of the three by columns, as in 01. Then put this rank's three shares side by side."),
        N_("`torch.cat([...], dim=1)` of `tpviz.shard(part, 1, comm)` for each part."),
    ),
    misconceptions=(
        Misconception(
            "contiguous",
            lambda comm, WQKV: tpviz.shard(WQKV, 1, comm),
            N_(
                "The shape is right. But you cut the whole thing at once: rank 0 has all of Q and some of K, the last "
                "rank has V. The next line takes the first third for Q, and finds columns of K in it. Nothing fails; "
                "the numbers are another model's. Tried on {case}, {place} is {got}; it should be {expected}."
            ),
        ),
        Misconception(
            "by rows",
            lambda comm, WQKV: tpviz.shard(WQKV, 0, comm),
            N_("You cut rows, {got_shape}. X is whole here: QKV is a column layer, and each rank has all rows."),
        ),
        Misconception(
            "one below the other",
            lambda comm, WQKV: torch.cat([tpviz.shard(part, 1, comm) for part in WQKV.chunk(3, dim=1)]),
            N_("The three shares are right, and stand below each other, {got_shape}: `dim=1` sets them side by side."),
        ),
        Misconception(
            "head by head",
            _head_by_head,
            N_(
                "The heads are right, in another order: Q, K, V of one head, then of the next. Megatron-LM keeps them "
                "so on purpose, and splits them so, too. Here the next line takes the first third for Q."
            ),
        ),
        Misconception(
            "a part for each rank",
            lambda comm, WQKV: WQKV.chunk(3, dim=1)[comm.rank % 3],
            N_(
                "You gave one rank all of WQ, the next all of WK. Then no rank has Q, K and V of any head, and each "
                "would have to ask the others for the rest. Give each rank some heads of all three."
            ),
        ),
        Misconception(
            "features dealt",
            lambda comm, WQKV: torch.cat([part[:, comm.rank :: comm.world_size] for part in WQKV.chunk(3, 1)], dim=1),
            N_(
                "You dealt single columns, one by one. A head's columns belong together: half of a head's scores is no "
                "use to any rank. Tried on {case}, {place} is {got}; it should be {expected}."
            ),
        ),
        Misconception(
            "Q alone cut",
            lambda comm, WQKV: torch.cat([tpviz.shard(WQKV.chunk(3, 1)[0], 1, comm), *WQKV.chunk(3, 1)[1:]], 1),
            N_("Q is cut, and K and V are whole: each rank does every head's K and V again. Cut them as well."),
        ),
    ),
)


# The ledger of a layer


def _layer(comm):
    config = tpviz.TransformerConfig(hidden=8, heads=4)
    x = torch.ones(2, 1, 8, requires_grad=True)
    tpviz.ParallelTransformerLayer(config, comm)(x).sum().backward()


def _all_reduces() -> list[int]:
    counts = Counter(event.phase for event in tpviz.run(_layer, ranks=4).trace)
    return [counts["forward"], counts["backward"]]


LEDGER = ValueExercise(
    id="10-ledger",
    variable="all_reduces",
    answer=_all_reduces,
    ask="forward, backward",
    hole="[..., ...]",
    right=N_(
        "Attention is a column layer and a row layer, and so is the MLP. Each pair has one AllReduce at its end "
        "forward, and one at its beginning backward."
    ),
    hint_sentences=(
        N_("The layer has two pairs of a column and a row layer. What did 06 count for one pair?"),
        N_("One each way for a pair. Norms, softmax and GELU send nothing."),
    ),
    misconceptions=(
        Misconception(
            "one for each matrix",
            [4, 4],
            N_("Four weights are cut: QKV, projection, up, down. But between the two of a pair nothing is sent."),
        ),
        Misconception(
            "Q, K and V apart",
            [6, 6],
            N_("Q, K and V are one column layer, whose results stay where they are. Only the ends of pairs send."),
        ),
        Misconception(
            "one pair",
            [1, 1],
            N_("That is one pair's ledger, 06's. A layer has two pairs: attention, and the MLP."),
        ),
        Misconception(
            "forward only",
            [2, 0],
            N_(
                "Forward is right. Backward the copies of X at each pair's beginning become a sum: G(0) + G(1), as in "
                "03."
            ),
        ),
        Misconception(
            "twice backward",
            [2, 4],
            N_(
                "Backward does twice the arithmetic, and does not send twice: weight gradients stay where they are, "
                "and of dX there is one sum a pair."
            ),
        ),
        Misconception(
            "one too few forward",
            [1, 2],
            N_("Backward is right. Forward, attention's row layer sums too, not the MLP's alone: one for each pair."),
        ),
        Misconception(
            "one too few backward",
            [2, 1],
            N_("Forward is right. Backward each pair's beginning has a sum of its own: X was copied there, twice."),
        ),
        Misconception(
            "three for three",
            [3, 3],
            N_("Heads never ask each other, so softmax needs none. Two pairs, two AllReduces each way."),
        ),
    ),
)


# Shared heads


def shared_gradient(comm, dWKi):
    """The whole gradient of WK's columns for the head that this rank holds.

    Ranks 0 and 1 hold the same head, ranks 2 and 3 another one, and so on.
    dWKi: the share that comes from this rank's own queries.
    """
    sharing = comm.split(comm.rank // 2)  # hole
    return sharing.all_reduce(dWKi)  # hole


def _shares(rows: int, columns: int, ranks: int) -> Case:
    label = _("a gradient of {rows}×{columns} on {ranks} ranks").format(rows=rows, columns=columns, ranks=ranks)
    return Case(([integers(rows, columns, start=3 + 5 * rank) for rank in range(ranks)],), label, ranks)


SHARED = TrafficExercise(
    id="10-shared",
    function=shared_gradient,
    inputs=lambda: [_shares(4, 2, ranks=4), _shares(2, 3, ranks=8), _shares(2, 2, ranks=2)],
    held=lambda comm, shares: (shares[comm.rank],),
    weigh=_most_sent,
    too_much=N_(
        "The gradient is right. Tried on {case}, one rank sends {got} bytes, and {expected} will do: you send {sent}."
    ),
    right=N_(
        "The ranks that hold one head are copies of it: forward copied, backward summed, and only among themselves."
    ),
    hint_sentences=(
        N_("Two ranks use the same WK, each for its own queries. By the chain rule, what is its gradient?"),
        N_("A sum, over the ranks that share the head. `comm.split(color)` makes a group of those with one color."),
        N_("`comm.rank // 2` is 0 for ranks 0 and 1, and 1 for ranks 2 and 3."),
    ),
    misconceptions=(
        Misconception(
            "left alone",
            lambda comm, dWKi: dWKi,
            N_(
                "That is the share of this rank's queries. The two copies of one head get different gradients, and "
                "part after the first step. Tried on {case}, {place} is {got} on rank {rank}; it should be {expected}."
            ),
        ),
        Misconception(
            "over all ranks",
            lambda comm, dWKi: comm.all_reduce(dWKi),
            N_(
                "You summed over all ranks, and so over other heads, too. Only the ranks that hold this head have "
                "shares of its gradient."
            ),
        ),
        Misconception(
            "the wrong neighbours",
            lambda comm, dWKi: comm.split(comm.rank % 2).all_reduce(dWKi),
            N_("Your groups are 0, 2, ... and 1, 3, ...: ranks of other heads. Ranks 0 and 1 share one: `rank // 2`."),
        ),
        Misconception(
            "the mean",
            lambda comm, dWKi: comm.split(comm.rank // 2).all_reduce(dWKi, op="mean"),
            N_("You averaged. Each rank's queries are different terms of the loss: their shares add up."),
        ),
        Misconception(
            "gathered",
            lambda comm, dWKi: comm.split(comm.rank // 2).all_gather(dWKi),
            N_("You set the shares side by side, {got_shape}. They are shares of the same numbers, {expected_shape}."),
        ),
    ),
)

EXERCISES = (BY_HEAD, LEDGER, SHARED)
