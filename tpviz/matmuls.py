"""The roofline: how long a matmul takes, and how much slower a small one is for its size (matmuls)."""

from __future__ import annotations

import numpy as np

from tpviz.costs import Amount
from tpviz.machines import Machine


def efficiency(m: Amount, k: Amount, n: Amount, machine: Machine) -> Amount:
    """Return the share of the machine's peak at which it multiplies m×k by k×n, when memory does not hold it up.

        sustained · m/(m + half) · k/(k + half) · n/(n + half)

    ``half``, the machine's, is the size at which a dimension costs half the speed (Hockney and Jesshope 1981, "Parallel
    Computers": the half-performance length n½). Of a tile's side T, rounding up to whole tiles wastes T/2 on average,
    and d/(d + T/2) of what is computed is of use: for the GPUs' usual 128 that is 64. Along k, a tile's loop has to
    fill and drain its pipeline, of about the same length.
    """
    half = machine.half
    return machine.sustained * (m / (m + half)) * (k / (k + half)) * (n / (n + half))


def matmul_seconds(m: Amount, k: Amount, n: Amount, machine: Machine, count: Amount = 1) -> Amount:
    """Return the seconds of ``count`` matmuls, m×k by k×n, done by one kernel on one rank, in the machine's dtype.

        launch + max(2·m·k·n / (peak · efficiency), bytes of the three matrices / (memory bandwidth · streaming))

    Each may be an array, for maps. Source: Williams, Waterman and Patterson 2009, "Roofline", CACM 52(4).
    """
    arithmetic = 2 * m * k * n / (machine.peak * efficiency(m, k, n, machine))
    memory = machine.dtype.itemsize * (m * k + k * n + m * n) / machine.stream
    return machine.launch + count * np.maximum(arithmetic, memory)
