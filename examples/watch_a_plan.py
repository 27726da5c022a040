"""What a ``parallelize_module`` plan sends, module by module: with no GPU at all, or under torchrun on real ranks.

python examples/watch_a_plan.py
torchrun --nproc-per-node 2 examples/watch_a_plan.py
"""

import os
from collections.abc import Mapping

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import Replicate
from torch.distributed.tensor.parallel import ColwiseParallel, ParallelStyle, RowwiseParallel, parallelize_module

import tpviz
from tpviz.watching import pretended_ranks

PLANS: Mapping[str, dict[str, ParallelStyle]] = {
    "up by columns, down by rows": {"*.up": ColwiseParallel(), "*.down": RowwiseParallel()},
    "the same, gathered and cut again in between": {
        "*.up": ColwiseParallel(output_layouts=Replicate()),
        "*.down": RowwiseParallel(input_layouts=Replicate()),
    },
}


class Block(nn.Module):
    """A block with a residual connection: x + down(relu(up(x)))."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        """Return a tensor shaped like ``x``."""
        y: Tensor = x + self.down(torch.relu(self.up(x)))
        return y


def show(mesh: DeviceMesh) -> None:
    """Watch one training step with each plan; print the table of what its modules sent."""
    for name, plan in PLANS.items():
        model = nn.Sequential(*(Block(64) for _layer in range(4))).to(mesh.device_type)
        parallelize_module(model, mesh, plan)
        with tpviz.watch(model) as watched:
            loss = model(torch.ones(16, 64, device=mesh.device_type)).square().mean()
            loss.backward()
        if mesh.get_rank() == 0:
            print(f"{name}, {mesh.size()} ranks\n{watched}\n")


def main() -> None:
    """Take the ranks of torchrun, or pretend that there are 8."""
    if "WORLD_SIZE" not in os.environ:
        with pretended_ranks(8) as mesh:
            return show(mesh)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    show(init_device_mesh(device, (int(os.environ["WORLD_SIZE"]),)))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
