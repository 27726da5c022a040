"""The chunk rule: how many entries of a dimension each rank gets (part of the communicators; no torch).

PyTorch's ``Shard(dim)`` cuts like ``torch.chunk``, but gives every rank a shard, an empty one where nothing is left:
6 columns on 4 ranks are 2, 2, 2, 0 (``torch.chunk`` returns only three chunks). Source:
``Shard.local_shard_size_and_offset`` in ``torch/distributed/tensor/placement_types.py``.
"""


def chunk(size: int, ranks: int, rank: int) -> tuple[int, int]:
    """Return where a rank's entries begin and how many they are; an empty shard begins at ``size``."""
    step = -(-size // ranks)
    begin = min(size, rank * step)
    return begin, min(step, size - begin)


def chunk_sizes(size: int, ranks: int) -> list[int]:
    """Return how many of ``size`` entries each of ``ranks`` ranks holds; the sizes add up to ``size``."""
    return [chunk(size, ranks, rank)[1] for rank in range(ranks)]


def chunk_offsets(size: int, ranks: int) -> list[int]:
    """Return where each rank's entries begin."""
    return [chunk(size, ranks, rank)[0] for rank in range(ranks)]
