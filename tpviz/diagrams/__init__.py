"""Diagrams: SVG figures drawn from tensors that were computed and runs that were recorded (diagrams)."""

from tpviz.diagrams.drawing import Drawing

__all__ = ["Drawing"]
