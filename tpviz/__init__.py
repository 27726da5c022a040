"""tpviz: tensor parallelism on ranks that run, with pictures drawn from the run.

A learner writes the few lines that one rank runs, ``program(comm) -> value``; ``tpviz.run`` runs them on every rank.
"""

import importlib
from typing import TYPE_CHECKING, Any

from tpviz.attention import ParallelAttention
from tpviz.blocks import ParallelTransformer, ParallelTransformerLayer, TransformerConfig
from tpviz.communicator import Communicator
from tpviz.differences import Difference, difference
from tpviz.dropout import DropoutStreams, ParallelDropout
from tpviz.errors import CallSiteWarning, CollectiveMismatch, RankError
from tpviz.fused import MergedColumnParallelLinear, QKVParallelLinear
from tpviz.gradients import clip_grad_norm, gradient_norm
from tpviz.layers import ColumnParallelLinear, RowParallelLinear, reduce_replicated_gradients
from tpviz.mlp import ParallelMLP
from tpviz.norms import LayerNorm, RMSNorm
from tpviz.operators import (
    all_to_all_region,
    copy_to_region,
    gather_from_region,
    reduce_from_region,
    reduce_scatter_to_region,
    scatter_to_region,
)
from tpviz.parameters import load_whole_state_dict, whole_gradients, whole_state_dict
from tpviz.replicas import Replicas, check_replicated
from tpviz.running import Run, run, shutdown
from tpviz.sharding import shard
from tpviz.trace import Event, Trace
from tpviz.vocabulary import VocabParallelEmbedding, vocab_parallel_cross_entropy

if TYPE_CHECKING:
    from tpviz.watching import watch

# Loaded when first used: they bring PyTorch's DTensor, matplotlib or ipywidgets along.
_SUBMODULES = ("charts", "diagrams", "example", "exercises", "layouts", "memory", "watching", "widgets")
_FUNCTIONS = {"watch": "watching"}

__all__ = [
    "CallSiteWarning",
    "CollectiveMismatch",
    "ColumnParallelLinear",
    "Communicator",
    "Difference",
    "DropoutStreams",
    "Event",
    "LayerNorm",
    "MergedColumnParallelLinear",
    "ParallelAttention",
    "ParallelDropout",
    "ParallelMLP",
    "ParallelTransformer",
    "ParallelTransformerLayer",
    "QKVParallelLinear",
    "RMSNorm",
    "RankError",
    "Replicas",
    "RowParallelLinear",
    "Run",
    "Trace",
    "TransformerConfig",
    "VocabParallelEmbedding",
    "all_to_all_region",
    "check_replicated",
    "clip_grad_norm",
    "copy_to_region",
    "difference",
    "gather_from_region",
    "gradient_norm",
    "load_whole_state_dict",
    "reduce_from_region",
    "reduce_replicated_gradients",
    "reduce_scatter_to_region",
    "run",
    "scatter_to_region",
    "shard",
    "shutdown",
    "vocab_parallel_cross_entropy",
    "watch",
    "whole_gradients",
    "whole_state_dict",
]


def __getattr__(name: str) -> Any:
    if name in _SUBMODULES:
        return importlib.import_module(f"tpviz.{name}")
    if name in _FUNCTIONS:
        return getattr(importlib.import_module(f"tpviz.{_FUNCTIONS[name]}"), name)
    raise AttributeError(f"module 'tpviz' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*__all__, *_SUBMODULES])
