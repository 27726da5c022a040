"""The running example: the small integers that every notebook uses (data, no logic).

Y = X @ W with X of B x 4 and W of 4 x 8. The entries are fixed by hand: no row, column or shard repeats another,
and some products are negative, so that ReLU has something to cut and a swapped shard shows. Everything is float32,
in which sums and products of small integers are exact in any order.
"""

import torch

X = torch.tensor([[1, 2, 0, -1], [0, 1, 3, 2], [2, -1, 1, 0]], dtype=torch.float32)
"""The input, B x 4 with B = 3."""

X4 = torch.cat([X, torch.tensor([[-1.0, 0, 2, 1]])])
"""The input with B = 4, for the places where rows are split."""

W = torch.tensor(
    [[1, 0, 2, -1, 1, 3, 0, 1], [0, 2, 1, 1, -1, 0, 2, 0], [1, -1, 0, 2, 0, 1, 1, -2], [2, 1, -1, 0, 1, 0, -1, 1]],
    dtype=torch.float32,
)
"""The weight of the single layer, 4 x 8; also the first weight, W1, of the two-layer MLP."""

W1 = W

W2 = torch.tensor(
    [
        [1, 0, -1, 2],
        [0, 1, 1, -1],
        [2, -1, 0, 1],
        [-1, 1, 2, 0],
        [1, 2, -1, 0],
        [0, -2, 1, 1],
        [1, 1, 0, -1],
        [-1, 0, 1, 3],
    ],
    dtype=torch.float32,
)
"""The second weight of the two-layer MLP, 8 x 4."""

dY = torch.tensor(
    [[3, 2, 1, 0, 1, -1, 0, 0], [0, -1, 0, 1, 1, -1, -2, 1], [2, 0, 1, 1, -1, -1, 1, -2]], dtype=torch.float32
)
"""What arrives from downstream in backward: the gradient of the loss with respect to Y = X @ W, 3 x 8."""

dY4 = torch.cat([dY, torch.tensor([[-2.0, 1, 1, 0, -1, 1, 1, 1]])])
"""The same for Y = X4 @ W, 4 x 8, for the places where rows are split."""
