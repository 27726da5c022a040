"""Operands: checked tensors, their placements, and the block that each rank holds (diagrams; no drawing).

Every wrong input to a figure ends here or in the figure's own first lines, in an error that says what was expected,
what came, and what to do. PyTorch's placements are recognised by their methods, since their module is slow to import.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from tpviz.chunking import chunk_offsets, chunk_sizes
from tpviz.diagrams.grammar import MOST_RANKS, SUBSCRIPTS
from tpviz.diagrams.numbers import number_texts
from tpviz.i18n import _
from tpviz.tables import shape_text

MOST_ROWS, MOST_COLUMNS = 16, 20
"""A larger matrix is drawn as a shape without its numbers: on a slide nobody could read them."""

_SUBSCRIPTS = str.maketrans("0123456789", SUBSCRIPTS)


class Placement(Protocol):
    """What this package reads of PyTorch's placements (``torch.distributed.tensor``)."""

    def is_shard(self, dim: int | None = None) -> bool:
        """Whether each rank holds a slice (along ``dim``)."""

    def is_replicate(self) -> bool:
        """Whether every rank holds the whole."""

    def is_partial(self, reduce_op: str | None = None) -> bool:
        """Whether the ranks' tensors have to be reduced to get the whole."""


class RunLike(Protocol):
    """What this package reads of a ``tpviz.Run``."""

    @property
    def outputs(self) -> Sequence[Any]:
        """One value a rank."""

    @property
    def trace(self) -> Sequence[Any]:
        """The events."""


Outputs = RunLike | Sequence[Tensor]
"""A run whose outputs are tensors, or one tensor a rank."""


class Layout(Enum):
    """The placement of a matrix. It has the methods of PyTorch's placements, so that either may be given."""

    REPLICATE = "replicate"
    ROWS = 0
    COLUMNS = 1
    PARTIAL = "partial"

    def is_shard(self, dim: int | None = None) -> bool:
        """Whether each rank holds a slice (along ``dim``)."""
        return self is Layout.ROWS or self is Layout.COLUMNS if dim is None else self.value == dim

    def is_replicate(self) -> bool:
        """Whether every rank holds the whole."""
        return self is Layout.REPLICATE

    def is_partial(self, reduce_op: str | None = None) -> bool:
        """Whether the ranks' matrices have to be summed to get the whole."""
        return self is Layout.PARTIAL and reduce_op in (None, "sum")

    @property
    def dim(self) -> int | None:
        """The dimension that is cut."""
        return self.value if self.is_shard() else None


REPLICATE, ROWS, COLUMNS, PARTIAL = Layout


class Block(NamedTuple):
    """What one rank holds of a matrix: its numbers, its shape, and where it begins in the whole."""

    texts: list[list[str]]
    """Empty where the matrix is too large for its numbers to be shown."""
    rows: int
    columns: int
    row: int = 0
    column: int = 0

    @property
    def empty(self) -> bool:
        """Whether the rank holds nothing."""
        return not (self.rows and self.columns)


@dataclass(frozen=True, slots=True)
class Operand:
    """A matrix on several ranks."""

    name: str
    layout: Layout
    rows: int
    columns: int
    blocks: list[Block]
    gradient: bool = False
    """Whether it is a gradient, which has a second outline."""

    @property
    def shape(self) -> str:
        """The whole's shape in words."""
        return f"{self.rows}×{self.columns}"

    @property
    def large(self) -> bool:
        """Whether the numbers are left out."""
        return is_large(self.rows, self.columns)

    def only_row(self, row: int) -> "Operand":
        """The same with this row alone (no rows may be cut)."""
        blocks = [Block(block.texts[row : row + 1], 1, block.columns, 0, block.column) for block in self.blocks]
        return replace(self, rows=1, blocks=blocks)

    def local_name(self, rank: int) -> str:
        """The name of what this rank holds: W₁ where it is the rank's own, W where it is the whole."""
        return self.name if self.layout is REPLICATE else subscripted(self.name, rank)

    def description(self) -> str:
        """Name, shape and layout, for a text alternative."""
        name, shape, ranks = self.name, self.shape, len(self.blocks)
        if self.layout is PARTIAL:
            message = _("{name} ({shape}, a partial sum on every rank)")
        elif self.layout is REPLICATE or ranks == 1:
            message = _("{name} ({shape}, whole)") if ranks == 1 else _("{name} ({shape}, whole on every rank)")
        elif self.layout is ROWS:
            message = _("{name} ({shape}, cut by rows into {sizes})")
        else:
            message = _("{name} ({shape}, cut by columns into {sizes})")
        sizes = ", ".join(str(block.rows if self.layout is ROWS else block.columns) for block in self.blocks)
        return message.format(name=name, shape=shape, sizes=sizes)


def is_large(rows: int, columns: int) -> bool:
    """Whether a matrix is too large for its numbers to be shown."""
    return rows > MOST_ROWS or columns > MOST_COLUMNS


def subscripted(name: str, rank: int) -> str:
    """The name of a rank's part: W₁ of W, and W₂,₁ of W₂."""
    comma = "," if name and name[-1] in SUBSCRIPTS else ""
    return f"{name}{comma}{str(rank).translate(_SUBSCRIPTS)}"


def typeset(name: str) -> str:
    """A name whose digits are indices as it is written: W₁ for "W1", Y₀ for "Y_0", W₁,₀ for "W1_0"."""
    base, indices = re.fullmatch(r"(.*?)((?:_?\d+)*)", name, re.DOTALL).groups()  # type: ignore[union-attr]
    for index in re.findall(r"\d+", indices):
        base = subscripted(base, int(index))
    return base


def checked_tensor(value: object, what: str) -> Tensor:
    """The value as a real, dense matrix (a vector is one row)."""
    if not isinstance(value, Tensor):
        message = _("{what} must be a torch.Tensor, but is a {type}.")
        if isinstance(value, (tuple, list)) and any(isinstance(item, Tensor) for item in value):
            message += " " + _("Pick the tensor out of it, for instance [output[0] for output in run.outputs].")
        elif isinstance(value, (tuple, list, int, float)):
            message += " " + _("Make it one with torch.tensor(...).")
        raise TypeError(message.format(what=what, type=type(value).__name__))
    if value.ndim > 2:
        message = _("{what} must be a matrix or a vector, but has shape {shape}: choose a slice of it, such as x[0].")
        raise ValueError(message.format(what=what, shape=shape_text(value.shape)))
    if value.is_complex() or value.layout != torch.strided or value.is_meta:
        message = _("{what} must be a dense tensor of real numbers, but is {dtype}, {layout}, on {device}.")
        raise TypeError(message.format(what=what, dtype=value.dtype, layout=value.layout, device=value.device))
    return value.detach().reshape(1, -1) if value.ndim < 2 else value.detach()


def entries(matrix: Tensor) -> list[list[str]]:
    """The numbers of a matrix as text; nothing where it is too large to be read."""
    return [] if is_large(*matrix.shape) else number_texts(matrix.tolist())


def values_of(outputs: object) -> Any:
    """A run's outputs; what is no run, as it is."""
    return getattr(outputs, "outputs", outputs)


def outputs_of(outputs: Outputs, what: str) -> list[Tensor]:
    """One matrix a rank, from a run or a list."""
    values = values_of(outputs)
    if isinstance(values, Tensor) or not isinstance(values, Sequence) or not values:
        message = _("{what} must be a run or a list with one tensor a rank, but is a {type}.")
        raise TypeError(message.format(what=what, type=type(values).__name__))
    check_ranks(len(values))
    name = _("{what} of rank {rank}")
    return [checked_tensor(value, name.format(what=what, rank=rank)) for rank, value in enumerate(values)]


def check_ranks(ranks: int) -> None:
    """Refuse more ranks than there are colours."""
    if ranks > MOST_RANKS:
        message = _("a figure shows up to {most} ranks, and these are {ranks}: draw a smaller run.")
        raise ValueError(message.format(most=MOST_RANKS, ranks=ranks))


def read_layout(placement: object, what: str) -> Layout:
    """One of PyTorch's placements, as far as a matrix has it."""
    if isinstance(placement, (tuple, list)) and len(placement) == 1:  # DTensor.placements, on a one-dimensional mesh
        placement = placement[0]
    if hasattr(placement, "is_shard") and hasattr(placement, "is_partial") and hasattr(placement, "is_replicate"):
        if placement.is_replicate():
            return REPLICATE
        if placement.is_partial():
            return PARTIAL
        dim = getattr(placement, "dim", None)
        if placement.is_shard() and dim in (0, 1, -1, -2):
            return COLUMNS if dim % 2 else ROWS
    message = _("{what}'s placement must be Replicate(), Shard(0), Shard(1) or Partial(), but is {placement!r}.")
    raise TypeError(message.format(what=what, placement=placement))


def operand(name: str, value: Tensor | Outputs, layout: Layout, ranks: int) -> Operand:
    """A matrix on the ranks, from the whole or from what each rank holds."""
    if isinstance(value, Tensor):
        found = _cut(name, checked_tensor(value, name), layout, ranks)
    else:
        found = _assembled(name, outputs_of(value, name), layout, ranks)
    if not (found.rows and found.columns):
        raise ValueError(_("{name} is {shape}: it has no entry to draw.").format(name=name, shape=found.shape))
    return found


def _cut(name: str, whole: Tensor, layout: Layout, ranks: int) -> Operand:
    rows, columns = whole.shape
    texts = entries(whole)
    if layout is PARTIAL:
        message = _("{name} is a partial sum: each rank has its own, so give a list with one tensor a rank.")
        raise TypeError(message.format(name=name))
    if layout is REPLICATE:
        return Operand(name, layout, rows, columns, [Block(texts, rows, columns)] * ranks)
    size = rows if layout is ROWS else columns
    blocks = []
    for offset, length in zip(chunk_offsets(size, ranks), chunk_sizes(size, ranks), strict=True):
        if layout is ROWS:
            blocks.append(Block(texts[offset : offset + length], length, columns, row=offset))
        else:
            blocks.append(Block([line[offset : offset + length] for line in texts], rows, length, column=offset))
    return Operand(name, layout, rows, columns, blocks)


def _assembled(name: str, parts: list[Tensor], layout: Layout, ranks: int) -> Operand:
    if len(parts) != ranks:
        message = _("{name} has {parts} tensors for {ranks} ranks: give one a rank.")
        raise ValueError(message.format(name=name, parts=len(parts), ranks=ranks))
    whole, dim = list(parts[0].shape), layout.dim
    expected = [whole] * ranks
    if dim is not None:
        whole[dim] = sum(part.shape[dim] for part in parts)
        expected = [[size, whole[1]] if dim == 0 else [whole[0], size] for size in chunk_sizes(whole[dim], ranks)]
    for rank, (part, shape) in enumerate(zip(parts, expected, strict=True)):
        if list(part.shape) != shape:
            message = _("{name} of rank {rank} is {shape}, where {expected} is expected: {reason}")
            reason = (
                _("{placement} of {whole} over {ranks} ranks is cut so.").format(
                    placement=f"Shard({dim})", whole=shape_text(whole), ranks=ranks
                )
                if dim is not None
                else _("it has the shape of rank 0's.")
            )
            text = message.format(
                name=name, rank=rank, shape=shape_text(part.shape), expected=shape_text(shape), reason=reason
            )
            raise ValueError(text)
    return laid_out(name, parts, layout)


def laid_out(name: str, parts: Sequence[Tensor], layout: Layout) -> Operand:
    """A matrix on the ranks, from parts that follow each other along the dimension that the layout cuts."""
    lines = (
        [line for part in parts for line in part.tolist()] if not any(is_large(*part.shape) for part in parts) else []
    )
    texts = number_texts(lines)
    blocks, row, column, begin = [], 0, 0, 0
    for part in parts:
        high, wide = part.shape
        blocks.append(Block(texts[begin : begin + high], high, wide, row, column))
        begin += high
        row += high * (layout is ROWS)
        column += wide * (layout is COLUMNS)
    high, wide = parts[0].shape
    return Operand(name, layout, row or high, column or wide, blocks)


def checked_entry(entry: tuple[int, int], rows: int, columns: int, name: str) -> tuple[int, int]:
    """The row and the column of an entry that exists."""
    i, j = entry
    if i not in range(rows) or j not in range(columns):
        message = _("entry={entry} is outside of {y}, which is {shape}: rows are 0 to {row}, columns 0 to {column}.")
        bounds = {"row": rows - 1, "column": columns - 1}
        raise IndexError(message.format(entry=(i, j), y=name, shape=shape_text((rows, columns)), **bounds))
    return i, j
