"""Diagrams: SVG figures drawn from tensors that were computed and runs that were recorded (diagrams)."""

from tpviz.diagrams.drawing import Drawing
from tpviz.diagrams.products import column_parallel, matmul, row_parallel

__all__ = ["Drawing", "column_parallel", "matmul", "row_parallel"]
