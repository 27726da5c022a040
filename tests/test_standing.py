"""Waiting among processes: what ends late ended well, and what broke is told from what takes long."""

from datetime import timedelta

import pytest
import torch.distributed as dist

from tpviz.standing import Board, PeerLost
from tpviz.waiting import Waiter


class Late:
    """A work that ends, well or badly, in the moment between a wait that was too short and the look after it."""

    def __init__(self, error=None):
        self.waits = 0
        self.error = error

    def wait(self, timeout):
        self.waits += 1
        if self.waits == 1:
            raise RuntimeError("Operation timed out!")
        if self.error is not None:
            raise self.error
        return True

    def is_completed(self):
        return self.waits > 0


@pytest.fixture
def board():
    return Board(dist.HashStore(), "run", 0, 2)


def test_a_collective_that_ends_just_after_a_wait_has_ended_well(board):
    board.wait([Late()], dict)


def test_a_collective_that_breaks_just_after_a_wait_has_broken(board):
    with pytest.raises(PeerLost, match="reset by peer"):
        board.wait([Late(RuntimeError("Connection reset by peer"))], dict)


class Sent:
    """A send that the test lets end."""

    def __init__(self):
        self.wait = lambda: True


def test_a_send_that_ends_just_after_a_wait_has_ended_well(board):
    awaited = Waiter().awaited(Sent())
    awaited._asked = True  # no thread: it ends when this test says so
    too_short = awaited.wait

    def wait(timeout):
        try:
            return too_short(timedelta(0))
        finally:
            awaited.end()

    awaited.wait = wait
    board.wait([awaited], dict)
