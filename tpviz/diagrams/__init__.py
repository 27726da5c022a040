"""Diagrams: SVG figures drawn from tensors that were computed and runs that were recorded (diagrams)."""

from tpviz.diagrams.dividing import two_cuts
from tpviz.diagrams.drawing import Drawing
from tpviz.diagrams.exchange import collective
from tpviz.diagrams.inner import inner_product
from tpviz.diagrams.merging import concatenation, summation
from tpviz.diagrams.products import column_parallel, matmul, row_parallel
from tpviz.diagrams.side_by_side import matrices, matrix

__all__ = [
    "Drawing",
    "collective",
    "column_parallel",
    "concatenation",
    "inner_product",
    "matmul",
    "matrices",
    "matrix",
    "row_parallel",
    "summation",
    "two_cuts",
]
