"""How colours are seen: how well one is read on another, and what is left of a difference without one kind of cone."""

import torch
from torch import Tensor


def luminance(color: str) -> float:
    channels = (int(color[place : place + 2], 16) / 255 for place in (1, 3, 5))
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: str, other: str) -> float:
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


# Machado, Oliveira and Fernandes (2009), severity 1: what the three kinds of dichromats see, in linear RGB.
DICHROMATS = {
    "protanopia": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "deuteranopia": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.01182, 0.04294, 0.968881]],
    "tritanopia": [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.3039]],
}
TO_XYZ = [[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]]


def lab(color: str, seen: list[list[float]]) -> Tensor:
    """A colour in CIE L*a*b*, as a dichromat sees it."""
    rgb = torch.tensor([int(color[place : place + 2], 16) / 255 for place in (1, 3, 5)], dtype=torch.float64)
    linear = torch.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
    linear = (torch.tensor(seen, dtype=torch.float64) @ linear).clamp(0, 1)
    xyz = torch.tensor(TO_XYZ, dtype=torch.float64) @ linear / torch.tensor([0.9505, 1.0, 1.089], dtype=torch.float64)
    f = torch.where(xyz > 0.008856, xyz ** (1 / 3), 7.787 * xyz + 16 / 116)
    return torch.stack([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])
