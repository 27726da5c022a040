"""``shard``: this rank's slice of a whole tensor (communicators)."""

from torch import Tensor

from tpviz.chunking import chunk
from tpviz.communicator import Communicator, check_tensor, dimension


def shard(x: Tensor, dim: int, comm: Communicator) -> Tensor:
    """Return this rank's slice of ``x`` along ``dim``: a detached copy, on ``comm.device``.

    The sizes follow PyTorch's ``Shard(dim)``: 8 columns on 2 ranks are 4 and 4, 6 on 4 ranks are 2, 2, 2 and 0.
    """
    check_tensor("shard", x)
    return own_slice(x.detach() if x.requires_grad else x, dimension("dim", dim, x), comm).to(comm.device)


def own_slice(x: Tensor, dim: int, comm: Communicator) -> Tensor:
    """Return this rank's slice of ``x`` along ``dim``, counted from the front, in new memory."""
    begin, length = chunk(x.shape[dim], comm.world_size, comm.rank)
    return x.narrow(dim, begin, length).clone()
