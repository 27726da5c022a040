"""Layout rules: which placements pass through an operator, forward and backward, and why others do not (layouts).

A placement *passes* if each rank can apply the operator to what it holds, sending nothing, and what it gets is again
the whole in some placement. Backward asks the same of the gradients.

Tensors have rows and features (dimensions 0 and 1), as everywhere in this collection. The rules agree with DTensor's
own (``torch/distributed/tensor/_ops``); ``tests/test_rules.py`` compares them and lists the differences.
"""

from __future__ import annotations

import html
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import product
from typing import NamedTuple

from torch.distributed.tensor.placement_types import Partial, Placement, Replicate, Shard

from tpviz.i18n import N_, _
from tpviz.tables import Table

__all__ = ["OPERATORS", "Ruling", "every_ruling", "gradients", "passes"]

R, ROWS, COLUMNS, PARTIAL = Replicate(), Shard(0), Shard(1), Partial()
PLACEMENTS: tuple[Placement, ...] = (R, ROWS, COLUMNS, PARTIAL)

Verdict = Placement | str
"""A placement, or the reason why there is none (a message of the catalogue)."""
Gradients = tuple[Placement | None, ...]
"""The placement of each input's gradient; None for an input that has none."""


@dataclass(frozen=True, slots=True)
class Operator:
    """An operator: what it takes, and its rules."""

    inputs: tuple[str, ...]
    forward: Callable[..., Verdict]
    """From the inputs' placements (and ``dim``, where the operator has one) to the output's."""
    backward: Callable[..., Gradients]
    """From the output's placement, its gradient's and the inputs' placements to the inputs' gradients'."""
    linear: bool = False
    """Whether f(a + b) = f(a) + f(b) in the first input, so that a partial sum passes."""
    takes_dim: bool = False
    weight: str = ""
    """Which of the inputs is a weight."""
    vectors: tuple[str, ...] = ()
    """Which of the inputs have one dimension only."""


class Ruling(NamedTuple):
    """What the rules say of an operator and its inputs' placements. It is true where these pass."""

    operator: str
    inputs: tuple[Placement, ...]
    output: Placement | None
    reason: str
    """Why the placements do not pass; empty where they do."""

    def __bool__(self) -> bool:
        return self.output is not None

    def backward(self, gradient: Placement | None = None) -> Gradients:
        """Return the placements of the inputs' gradients, for that of the output's (see ``gradients``)."""
        return gradients(self, gradient)

    def __repr__(self) -> str:
        """One or two sentences."""
        inputs = " · ".join(map(str_of, self.inputs))
        if self.output is None:
            message = _("{operator}: {inputs} does not pass. {reason}")
            return message.format(operator=self.operator, inputs=inputs, reason=self.reason)
        message = _("{operator}: {inputs} → {output}; backward: {gradient} → {gradients}")
        return message.format(
            operator=self.operator,
            inputs=inputs,
            output=str_of(self.output),
            gradient=str_of(_usual_gradient(self.output)),
            gradients=" · ".join("–" if each is None else str_of(each) for each in self.backward()),
        )

    def _repr_html_(self) -> str:
        """The same on a card."""
        sign = "✓" if self else "✗"
        style = "color:#1f2933;background:#f5f7fa;padding:8px 14px;border-left:4px solid"
        edge = "#00704f" if self else "#b04c00"
        return f'<p style="{style} {edge}">{sign} {html.escape(repr(self))}</p>'


def str_of(placement: Placement) -> str:
    """A placement as PyTorch's documentation writes it: Replicate, Shard(1), Partial."""
    return f"Shard({placement.dim})" if isinstance(placement, Shard) else type(placement).__name__


def _usual_gradient(output: Placement) -> Placement:
    """How the gradient of a tensor lies in the classic layout: a partial sum's is whole on every rank."""
    return R if isinstance(output, Partial) else output


# Reasons why not

_NOT_LINEAR = N_("The ranks hold addends, and f(a) + f(b) is not f(a + b): the sum has to come first.")
_ADDED_OFTEN = N_("Every rank would add it to its own addend, so the sum would hold it once for each rank.")
_NEEDS_ROW = N_("A row is needed whole, with all of its features, and no rank has more than its shard of it.")
_TWO_PRODUCTS = N_("A product of two sums is not the sum of the products: at most one factor may be a partial sum.")
_CUT_DIFFERENTLY = N_("Entry by entry, both must be cut alike: rank 0 would meet numbers from other places.")
_INNER = N_("The shapes on a rank do not fit: the left's features meet the right's rows, and one of them is cut.")
_TWO_DIMS = N_("The result would be cut twice, by rows and by columns, and the ranks hold one block each of four.")
_BLOCKS = N_("Each rank would multiply its rows by its own columns only; the other blocks of the result are missing.")
_MASKS = N_("The operator draws random numbers: it passes only if all ranks draw the same ones.")
_ADDEND_AND_FINISHED = N_("A partial sum and a finished value cannot be added entry by entry on each rank.")


# Forward: one function for each kind of operator. Backward: the gradient's placement, given the output's.


def _entrywise(x: Placement) -> Verdict:
    return _NOT_LINEAR if isinstance(x, Partial) else x


def _linear(x: Placement) -> Verdict:
    return x


def _add_constant(x: Placement) -> Verdict:
    return _ADDED_OFTEN if isinstance(x, Partial) else x


def _same(output: Placement, gradient: Placement, *inputs: Placement) -> Gradients:
    return tuple(gradient for _input in inputs)


def _add(x: Placement, y: Placement) -> Verdict:
    if x == y:
        return x
    return _ADDEND_AND_FINISHED if PARTIAL in (x, y) else _CUT_DIFFERENTLY


def _multiply(x: Placement, y: Placement) -> Verdict:
    if isinstance(x, Partial) and isinstance(y, Partial):
        return _TWO_PRODUCTS
    if {x, y} == {R, PARTIAL}:
        return PARTIAL
    return x if x == y else _CUT_DIFFERENTLY


def _multiply_backward(output: Placement, gradient: Placement, x: Placement, y: Placement) -> Gradients:
    if isinstance(output, Partial):  # the whole factor's gradient is a sum over the addends of the other
        return tuple(R if isinstance(each, Partial) else PARTIAL for each in (x, y))
    return gradient, gradient


def _add_bias(x: Placement, b: Placement) -> Verdict:
    if x == b == PARTIAL:
        return PARTIAL
    if isinstance(x, Partial):
        return _ADDED_OFTEN
    if isinstance(b, Partial):
        return _ADDEND_AND_FINISHED
    # b has one dimension, the features: its shard is Shard(0).
    needed = ROWS if x == COLUMNS else R
    return x if b == needed else _CUT_DIFFERENTLY


def _add_bias_backward(output: Placement, gradient: Placement, x: Placement, b: Placement) -> Gradients:
    # The bias of a rank that has some rows only learns from these: its gradient is a partial sum.
    found: dict[Placement, Placement] = {ROWS: PARTIAL, COLUMNS: ROWS}
    return gradient, found.get(output, gradient)


_MATMUL: dict[tuple[Placement, Placement], Placement] = {
    (R, R): R,
    (R, COLUMNS): COLUMNS,
    (ROWS, R): ROWS,
    (COLUMNS, ROWS): PARTIAL,
    (PARTIAL, R): PARTIAL,
    (R, PARTIAL): PARTIAL,
}


def _matmul(x: Placement, w: Placement) -> Verdict:
    if (x, w) in _MATMUL:
        return _MATMUL[x, w]
    if (x, w) == (PARTIAL, PARTIAL):
        return _TWO_PRODUCTS
    if (x, w) == (ROWS, COLUMNS):
        return _BLOCKS
    if PARTIAL in (x, w) and (x == ROWS or w == COLUMNS):
        return _TWO_DIMS
    return _INNER


def _matmul_backward(output: Placement, gradient: Placement, x: Placement, w: Placement) -> Gradients:
    if (x, w) == (R, R):
        return gradient, gradient
    found: dict[tuple[Placement, Placement], Gradients] = {
        (R, COLUMNS): (PARTIAL, COLUMNS),
        (ROWS, R): (ROWS, PARTIAL),
        (COLUMNS, ROWS): (COLUMNS, ROWS),
        (PARTIAL, R): (R, PARTIAL),
        (R, PARTIAL): (PARTIAL, R),
    }
    return found[x, w]


def _over_features(x: Placement) -> Verdict:
    if isinstance(x, Partial):
        return _NOT_LINEAR
    return _NEEDS_ROW if x == COLUMNS else x


def _norm(x: Placement, weight: Placement) -> Verdict:
    over = _over_features(x)
    if (x, weight) == (R, PARTIAL):
        return PARTIAL  # the weight is a factor
    return over if isinstance(over, str) or weight == R else _CUT_DIFFERENTLY


def _norm_backward(output: Placement, gradient: Placement, x: Placement, weight: Placement) -> Gradients:
    if isinstance(output, Partial):
        return PARTIAL, R
    return gradient, PARTIAL if output == ROWS else gradient


def _softmax(x: Placement, dim: int = 1) -> Verdict:
    if isinstance(x, Partial):
        return _NOT_LINEAR
    return _NEEDS_ROW if x == Shard(dim % 2) else x


def _dropout(x: Placement) -> Verdict:
    return _MASKS if isinstance(x, Partial) else x


def _sum(x: Placement, dim: int = 1) -> Verdict:
    if isinstance(x, Shard):
        # The dimension that is summed over disappears; the other one becomes dimension 0.
        return PARTIAL if x == Shard(dim % 2) else ROWS
    return x


def _sum_backward(output: Placement, gradient: Placement, x: Placement) -> Gradients:
    return (x,) if isinstance(x, Shard) else (gradient,)


def _transpose(x: Placement) -> Verdict:
    return Shard(1 - x.dim) if isinstance(x, Shard) else x


def _transpose_backward(output: Placement, gradient: Placement, x: Placement) -> Gradients:
    return (x if isinstance(x, Shard) else gradient,)


def _embedding(ids: Placement, table: Placement) -> Verdict:
    # ids are one for each row. A rank that has some rows of the table answers for their ids, and with zeros for the
    # others: addends.
    found: dict[tuple[Placement, Placement], Placement] = {
        (R, R): R,
        (ROWS, R): ROWS,
        (R, COLUMNS): COLUMNS,
        (R, ROWS): PARTIAL,
        (R, PARTIAL): PARTIAL,
    }
    if (ids, table) in found:
        return found[ids, table]
    if isinstance(ids, Partial):
        return _NOT_LINEAR
    return _TWO_DIMS if ids == ROWS else _CUT_DIFFERENTLY


def _embedding_backward(output: Placement, gradient: Placement, ids: Placement, table: Placement) -> Gradients:
    found: dict[tuple[Placement, Placement], Placement] = {
        (ROWS, R): PARTIAL,
        (R, COLUMNS): COLUMNS,
        (R, ROWS): ROWS,
        (R, PARTIAL): R,
    }
    return None, found.get((ids, table), gradient)


def _cross_entropy(logits: Placement, targets: Placement) -> Verdict:
    # The loss is summed over the rows, as one number: of some rows, it is a part of the sum.
    if (logits, targets) == (ROWS, ROWS):
        return PARTIAL
    over = _over_features(logits)
    if isinstance(over, str):
        return over
    return R if (logits, targets) == (R, R) else _CUT_DIFFERENTLY


def _cross_entropy_backward(output: Placement, gradient: Placement, logits: Placement, targets: Placement) -> Gradients:
    return logits if isinstance(logits, Shard) else gradient, None


OPERATORS: dict[str, Operator] = {
    "matmul": Operator(("x", "w"), _matmul, _matmul_backward, linear=True, weight="w"),
    "add": Operator(("x", "y"), _add, _same, linear=True),
    "add_constant": Operator(("x",), _add_constant, _same),
    "add_bias": Operator(("x", "b"), _add_bias, _add_bias_backward, weight="b", vectors=("b",)),
    "multiply": Operator(("x", "y"), _multiply, _multiply_backward, linear=True),
    "scale": Operator(("x",), _linear, _same, linear=True),
    "relu": Operator(("x",), _entrywise, _same),
    "gelu": Operator(("x",), _entrywise, _same),
    "silu": Operator(("x",), _entrywise, _same),
    "square": Operator(("x",), _entrywise, _same),
    "dropout": Operator(("x",), _dropout, _same),
    "softmax": Operator(("x",), _softmax, _same, takes_dim=True),
    "layer_norm": Operator(("x", "weight"), _norm, _norm_backward, weight="weight", vectors=("weight",)),
    "rms_norm": Operator(("x", "weight"), _norm, _norm_backward, weight="weight", vectors=("weight",)),
    "sum": Operator(("x",), _sum, _sum_backward, linear=True, takes_dim=True),
    "transpose": Operator(("x",), _transpose, _transpose_backward, linear=True),
    "embedding": Operator(("ids", "table"), _embedding, _embedding_backward, weight="table", vectors=("ids",)),
    "cross_entropy": Operator(("logits", "targets"), _cross_entropy, _cross_entropy_backward, vectors=("targets",)),
}
"""``scale`` multiplies by a number, ``add_constant`` adds one; a sum and a softmax are over the features by default."""


def passes(operator: str, *placements: Placement, dim: int | None = None) -> Ruling:
    """Say whether these placements of an operator's inputs pass through it with nothing sent, and what comes out.

    Args:
        operator: one of ``OPERATORS``.
        placements: one of PyTorch's placements for each input, such as ``Replicate(), Shard(1)`` for a matmul.
        dim: the dimension of a sum or a softmax.
    """
    if operator not in OPERATORS:
        message = _("there are no rules for {operator!r}; there are for {known}.")
        raise ValueError(message.format(operator=operator, known=", ".join(OPERATORS)))
    known = OPERATORS[operator]
    if len(placements) != len(known.inputs):
        message = _("{operator} has the inputs {inputs}: expected {expected} placements, got {came}.")
        counts = {"expected": len(known.inputs), "came": len(placements)}
        raise ValueError(message.format(operator=operator, inputs=", ".join(known.inputs), **counts))
    for name, placement in zip(known.inputs, placements, strict=True):
        possible = _possible(name in known.vectors)
        if placement not in possible:
            message = _("{placement!r} is no placement of {operator}'s {name}; expected one of {possible}.")
            names = ", ".join(map(str_of, possible))
            raise TypeError(message.format(placement=placement, operator=operator, name=name, possible=names))
    if dim is not None and not known.takes_dim:
        raise ValueError(_("{operator} takes no dim.").format(operator=operator))
    verdict = known.forward(*placements) if dim is None else known.forward(*placements, dim=dim)
    if isinstance(verdict, str):
        return Ruling(operator, placements, None, _(verdict))
    return Ruling(operator, placements, verdict, "")


def gradients(ruling: Ruling, gradient: Placement | None = None) -> Gradients:
    """Return how the inputs' gradients lie, if the output's lies like ``gradient``.

    Left out, it is what follows in the classic layout: a shard's gradient is a shard, a whole's and a partial sum's is
    whole on every rank. A whole output whose gradient is ``Partial()`` was used by each rank for its own share.
    """
    if ruling.output is None:
        raise ValueError(_("what does not pass forward has no backward: {reason}").format(reason=ruling.reason))
    gradient = _usual_gradient(ruling.output) if gradient is None else gradient
    possible = (R, PARTIAL) if ruling.output == R else (_usual_gradient(ruling.output),)
    if gradient not in possible:
        message = _("the gradient of {output} lies like {possible}, not like {gradient}.")
        names = " or ".join(map(str_of, possible))
        raise ValueError(message.format(output=str_of(ruling.output), possible=names, gradient=str_of(gradient)))
    return OPERATORS[ruling.operator].backward(ruling.output, gradient, *ruling.inputs)


def _possible(vector: bool) -> tuple[Placement, ...]:
    return (R, ROWS, PARTIAL) if vector else PLACEMENTS


def every_ruling(operator: str, dim: int | None = None) -> Iterator[Ruling]:
    """Yield the ruling on every combination of placements."""
    known = OPERATORS[operator]
    for placements in product(*(_possible(name in known.vectors) for name in known.inputs)):
        yield passes(operator, *placements, dim=dim)


def table(*operators: str) -> Table:
    """Return a table of what each placement becomes in operators of one input: a placement, or "–" for no passage."""
    rows = []
    for operator in operators:
        verdicts = [passes(operator, placement) for placement in PLACEMENTS]
        rows.append([operator, *(str_of(verdict.output) if verdict.output else "–" for verdict in verdicts)])
    return Table(["", *map(str_of, PLACEMENTS)], rows)
