"""Diagrams: SVG figures drawn from tensors that were computed and runs that were recorded (diagrams)."""

from tpviz.diagrams.branching import branches
from tpviz.diagrams.comparing import compared
from tpviz.diagrams.contributing import contributions
from tpviz.diagrams.dense import dense_backward
from tpviz.diagrams.dividing import two_cuts
from tpviz.diagrams.drawing import Drawing
from tpviz.diagrams.exchange import collective
from tpviz.diagrams.heads import qkv_cuts
from tpviz.diagrams.inner import inner_product
from tpviz.diagrams.journey import backward_pair, journey, stepper, two_ways
from tpviz.diagrams.keeping import kept
from tpviz.diagrams.merging import concatenation, summation
from tpviz.diagrams.meshes import mesh
from tpviz.diagrams.modules import modules
from tpviz.diagrams.operating import operators
from tpviz.diagrams.planes import addends_map
from tpviz.diagrams.products import column_parallel, matmul, row_parallel
from tpviz.diagrams.ring import ring, ring_stepper
from tpviz.diagrams.routes import layout_path
from tpviz.diagrams.side_by_side import matrices, matrix

__all__ = [
    "Drawing",
    "addends_map",
    "backward_pair",
    "branches",
    "collective",
    "column_parallel",
    "compared",
    "concatenation",
    "contributions",
    "dense_backward",
    "inner_product",
    "journey",
    "kept",
    "layout_path",
    "matmul",
    "matrices",
    "matrix",
    "mesh",
    "modules",
    "operators",
    "qkv_cuts",
    "ring",
    "ring_stepper",
    "row_parallel",
    "stepper",
    "summation",
    "two_cuts",
    "two_ways",
]
