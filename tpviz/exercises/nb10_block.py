# mypy: allow-untyped-defs, allow-untyped-calls
"""The exercises of notebook 10, a Transformer block (checks). The program is shown as it stands here."""

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.nn import functional

import tpviz
from tpviz import widgets
from tpviz.blocks import ParallelTransformerLayer, TransformerConfig
from tpviz.exercises import values
from tpviz.exercises.inputs import integers
from tpviz.exercises.pattern import Case, Misconception, ProgramExercise, ValueExercise
from tpviz.i18n import N_, _


def _needs() -> str:
    """Change all numbers of heads 2 and 3: what of heads 0 and 1 changes?"""
    q, k, v = (integers(16, 2, start).reshape(4, 4, 2) for start in (0, 3, 7))  # 4 heads, 4 tokens
    before = functional.scaled_dot_product_attention(q, k, v)
    for part in (q, k, v):
        part[2:] += 1
    after = functional.scaled_dot_product_attention(q, k, v)
    return "nothing" if torch.equal(before[:2], after[:2]) and not torch.equal(before, after) else "K and V"


NEEDS = ValueExercise(
    id="10-needs",
    variable="needed",
    answer=_needs,
    ask='"nothing", "K and V", "the scores", "the other tokens"',
    right=N_(
        "A head compares tokens with each other, by its own columns of Q and K, and mixes its own columns of V. No "
        "other head's column is in any of its formulas."
    ),
    hint_sentences=(
        N_("Which indices does `q @ k.transpose(1, 2)` sum over? Which one only counts along, unmixed?"),
        N_("q, k and v have the shape heads × tokens × D. Every line of `attend` works on each head by itself."),
    ),
    misconceptions=(
        Misconception(
            "K and V",
            "K and V",
            N_(
                "A token does need the K and V of all *tokens*. But it needs them within the head: head 0 reads head "
                "0's columns of K and V, and rank 0 has these for all tokens, as it has all of X."
            ),
        ),
        Misconception(
            "the scores",
            "the scores",
            N_(
                "Each head has scores of its own, from its own Q and K. Softmax runs over tokens, within a head; no "
                "sum in it runs over heads."
            ),
        ),
        Misconception(
            "the other tokens",
            "the other tokens",
            N_(
                "Tokens do mix. But X is whole on every rank, so rank 0 has all tokens and computes all rows of its "
                "heads' K and V. What is cut is the columns."
            ),
        ),
    ),
)


def own_columns(comm, W):
    """This rank's columns of W = [Wq | Wk | Wv]: of Wq, then Wk, then Wv."""
    parts = W.chunk(3, dim=1)  # hole
    return torch.cat([tpviz.shard(part, 1, comm) for part in parts], dim=1)  # hole


def _cases() -> list[Case]:
    found = []
    for rows, columns, ranks in ((8, 24, 2), (8, 24, 4), (6, 18, 3), (12, 12, 2)):
        label = _("a weight of {rows}×{columns} on {ranks} ranks").format(rows=rows, columns=columns, ranks=ranks)
        found.append(Case((integers(rows, columns),), label, ranks))
    return found


def _own(comm, part):
    return tpviz.shard(part, 1, comm)


def _by_number(comm, W):
    """One column after the other is dealt out."""
    return torch.cat([part[:, comm.rank :: comm.world_size] for part in W.chunk(3, dim=1)], dim=1)


def _keys_whole(comm, W):
    q, k, v = W.chunk(3, dim=1)
    return torch.cat([_own(comm, q), k, v], dim=1)


def _together(comm, W):
    """[Q0 K0 V0 Q1 K1 V1 ...] of heads of two columns."""
    parts = torch.stack([_own(comm, part).unflatten(1, (-1, 2)) for part in W.chunk(3, dim=1)], dim=2)
    return parts.flatten(1)


def _not_joined(kind):
    return lambda comm, W: kind(_own(comm, part) for part in W.chunk(3, dim=1))


def _in_halves(comm, W):
    return torch.cat([part.chunk(2, dim=1)[comm.rank] for part in W.chunk(3, dim=1)], dim=1)


@dataclass(frozen=True, kw_only=True)
class ColumnsExercise(ProgramExercise):
    """W is float32. What comes out in float64 was made of the notebook's weights, whatever numbers these hold."""

    def run(self, answer: Any, case: Case) -> tpviz.Run:
        """The run of an answer, with zeros in place of float64's entries."""
        run = super().run(answer, case)
        return replace(run, outputs=[_without_entries(output) for output in run.outputs])


def _without_entries(output: object) -> object:
    if values.is_tensor(output) and output.dtype == torch.float64:
        return torch.zeros(output.shape, dtype=output.dtype)
    return output


CUT = ColumnsExercise(
    id="10-cut",
    function=own_columns,
    inputs=_cases,
    right=N_(
        "Each of the three parts is cut by itself, so that a rank has the columns of the same heads of Q, K and V. One "
        "matmul then gives all three."
    ),
    hint_sentences=(
        N_("Which columns of W are Q's, which K's, which V's? All three parts are as wide."),
        N_("Take the three apart: `W.chunk(3, dim=1)`. Which columns of each belong to this rank's heads?"),
        N_("Cut each of the three as before, by `tpviz.shard(part, 1, comm)`, and put them side by side."),
    ),
    misconceptions=(
        Misconception(
            "contiguous",
            lambda comm, W: tpviz.shard(W, 1, comm),
            N_(
                "You cut W as it lies. On 2 ranks, rank 0 gets all of Q and half of K, and rank 1 no Q at all. The "
                "shape is right, and every rank goes on with other columns than it thinks: no message, wrong numbers. "
                "Tried on {case}: {place} is {got}, and it should be {expected}."
            ),
        ),
        Misconception(
            "one part each",
            lambda comm, W: W.chunk(3, dim=1)[comm.rank],
            N_(
                "You gave a whole part to each rank: one has Q, one K, one V. A head needs all three of its own; to "
                "bring them together, ranks would have to send. And there are three parts for any number of ranks."
            ),
        ),
        Misconception(
            "K and V whole",
            _keys_whole,
            N_(
                "You cut Q and left K and V whole: {got_shape}, and it should be {expected_shape}. It would work, with "
                "heads picked out later. But each rank computes and keeps K and V of heads that it never uses."
            ),
        ),
        Misconception(
            "columns dealt out",
            _by_number,
            N_(
                "You dealt out single columns. That tears heads apart: a head's score is a sum over all its columns of "
                "Q and K. Tried on {case}: {place} is {got}, and it should be {expected}."
            ),
        ),
        Misconception(
            "head after head",
            _together,
            N_(
                "These are this rank's columns, in another order: Q, K and V of one head, then of the next. Megatron-LM"
                " stores them so. Here `chunk(3)` follows, which wants all of Q first, then K, then V."
            ),
        ),
        Misconception(
            "rows",
            lambda comm, W: tpviz.shard(W, 0, comm),
            N_(
                "You cut W's rows: {got_shape}, and it should be {expected_shape}. Rows are the features of X, which "
                "every rank has whole. Heads lie in the columns."
            ),
        ),
        Misconception(
            "below each other",
            lambda comm, W: torch.cat([_own(comm, part) for part in W.chunk(3, dim=1)]),
            N_(
                "You put the three below each other: {got_shape}, and it should be {expected_shape}. They are columns "
                "of one W, so they stand side by side: dim=1."
            ),
        ),
        *(
            Misconception(
                f"a {kind.__name__} of the three",
                _not_joined(kind),
                N_(
                    "These are the right columns, in three pieces: {got}. One matmul needs one matrix: put them side by"
                    " side, by `torch.cat(…, dim=1)`."
                ),
            )
            for kind in (list, tuple)
        ),
        Misconception(
            "two halves on any number of ranks",
            _in_halves,
            N_(
                "Right on 2 ranks. On 4 each part has four pieces, and you took two: {error}. Write `comm.world_size` "
                "in place of 2, or let `tpviz.shard` count."
            ),
        ),
        Misconception(
            "the notebook's weights",
            lambda comm, W: own_columns(comm, integers(8, 24).double()),
            N_(
                "The result is {got}, as the notebook's Wq, Wk and Wv are, and W is {expected}: the check gives your "
                "function other weights. Take the three parts of the argument: `W.chunk(3, dim=1)`."
            ),
        ),
    ),
)


def _layer(comm):
    layer = ParallelTransformerLayer(TransformerConfig(hidden=8, heads=4), comm)
    layer(torch.ones(2, 1, 8, requires_grad=True)).sum().backward()


def _ledger() -> list[int]:
    phases = [event.phase for event in tpviz.run(_layer, ranks=2).trace]
    return [phases.count("forward"), phases.count("backward")]


LEDGER = ValueExercise(
    id="10-ledger",
    variable="collectives",
    answer=_ledger,
    ask="in forward, in backward",
    hole="[..., ...]",
    right=N_(
        "Attention and MLP are a column layer and a row layer each. Forward sums behind each row layer, backward in "
        "front of each column layer."
    ),
    hint_sentences=(
        N_("Count for attention alone: QKV is a column layer, the projection a row layer. What does each send?"),
        N_("The MLP is 06 again. The norms and the + work on what every rank has whole."),
    ),
    misconceptions=(
        Misconception(
            "one for each layer",
            [4, 4],
            N_(
                "There are four parallel layers, and each sends once in all: QKV and up in backward only, projection "
                "and down in forward only."
            ),
        ),
        Misconception(
            "MLP only",
            [1, 1],
            N_(
                "That is the MLP. Attention's heads need nothing of each other, but its projection adds over all of "
                "them, and backward every head contributes to dX: one more each way."
            ),
        ),
        Misconception(
            "shared heads, or Q, K and V each",
            [2, 4],
            N_(
                "Forward is right. Backward, did you count sums for shared heads of K and V? Here no head is shared. Q,"
                " K and V are one column layer with one sum: a rank adds its own three contributions to dX before "
                "anything is sent."
            ),
        ),
        Misconception(
            "norms too",
            [4, 2],
            N_(
                "Norms send nothing: after an AllReduce every rank has whole rows, and each norms all of them, the same"
                " as the others."
            ),
        ),
        Misconception(
            "forward only",
            [2, 0],
            N_(
                "Forward is right. Backward, each rank has dX through its own heads only, and through its own features "
                "of the MLP: two sums."
            ),
        ),
        Misconception(
            "one column layer only",
            [2, 1],
            N_(
                "Forward is right, and backward mirrors it: both column layers, QKV and up, have contributions to add. "
                "A norm stands between the two, so one sum cannot do for both."
            ),
        ),
        Misconception(
            "inside attention",
            [3, 3],
            N_(
                "One each way is too many. Attention sends nothing for its scores: a head computes them from its own "
                "columns. So attention and MLP have one sum each."
            ),
        ),
        Misconception(
            "one at the end",
            [1, 2],
            N_(
                "The sum behind attention cannot wait for the MLP's: a norm comes between, and a norm of partial sums "
                "is another number (07)."
            ),
        ),
    ),
)


def _holders() -> list[int]:
    heads = [output[1][0].item() for output in widgets.compute_heads(4, 2).run.outputs]
    return [int(column - 2 * widgets.HEADS) // 2 for column in heads]


HOLDERS = ValueExercise(
    id="10-holders",
    variable="holds",
    answer=_holders,
    ask="on rank 0, 1, 2, 3: 0 for K₀, 1 for K₁",
    hole="[..., ..., ..., ...]",
    right=N_(
        "Q₀ to Q₃ read K₀, and they lie on ranks 0 and 1. So both hold K₀, each for two heads of Q, and their gradients"
        " of it are two shares of one sum."
    ),
    hint_sentences=(
        N_("8 heads of Q, 2 of K: how many heads of Q read K₀? Which are these?"),
        N_("Rank 1 has Q₂ and Q₃. Which head of K do these two read?"),
    ),
    misconceptions=(
        Misconception(
            "dealt in turn",
            [0, 1, 0, 1],
            N_(
                "Rank 1 has Q₂ and Q₃, which read K₀, as Q₀ to Q₃ all do. Dealt in turn it would hold K₁: shapes fit, "
                "no message, wrong numbers."
            ),
        ),
        Misconception(
            "one each",
            [0, 1, 2, 3],
            N_("There are two heads of K only, K₀ and K₁, for four ranks. Some must hold the same one."),
        ),
        Misconception(
            "K0 everywhere",
            [0, 0, 0, 0],
            N_("Ranks 2 and 3 have Q₄ to Q₇, and these read K₁."),
        ),
        Misconception(
            "heads of Q",
            [0, 2, 4, 6],
            N_("These are the first heads of Q on each rank. Four heads of Q share one of K: divide by 4."),
        ),
    ),
)

EXERCISES = (NEEDS, CUT, LEDGER, HOLDERS)
