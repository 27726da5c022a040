"""The two-layer MLP of notebook 06 as a rank program, for any number of ranks that divides 8, and any backend.

python -m tpviz examples.two_layers:program --ranks 4 --backend gloo
torchrun --nproc-per-node 2 -m tpviz examples.two_layers:program
"""

import torch

import tpviz
from tpviz.communicator import Communicator
from tpviz.example import W1, W2, X


def program(comm: Communicator) -> torch.Tensor:
    """Run what one rank runs, forward and backward, and return the gradient of X."""
    x = X.to(comm.device, copy=True).requires_grad_()
    w1 = tpviz.shard(W1, 1, comm).requires_grad_()
    w2 = tpviz.shard(W2, 0, comm).requires_grad_()
    h = torch.relu(tpviz.copy_to_region(x, comm) @ w1)
    z = tpviz.reduce_from_region(h @ w2, comm)
    z.square().sum().backward()  # type: ignore[no-untyped-call]
    assert x.grad is not None
    return x.grad
