"""Waiting among processes: what ends late ended well, and what broke is told from what takes long."""

from datetime import timedelta

import pytest
import torch.distributed as dist

from tpviz.standing import Board, PeerLost, Unmet
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


class HandedOver:
    """A work for which no wait was long enough, so many times."""

    def __init__(self, times):
        self.left = times

    def wait(self, timeout):
        self.left -= 1
        if self.left >= 0:
            raise RuntimeError("Operation timed out!")
        return True

    def is_completed(self):
        return self.left < 0


RANKS = range(3)
NEEDS = tuple((rank, "meeting", 2) for rank in RANKS)


@pytest.fixture
def boards():
    store = dist.HashStore()
    return [Board(store, "run", rank, len(RANKS)) for rank in RANKS]


def waiting(*needs):
    return lambda: {"words": "waits", "needs": needs}


@pytest.mark.parametrize("state", ["ended", "raised", "waiting"])
def test_who_has_come_to_the_meeting_may_be_gone_before_its_last_numbers_are_handed_over(state, boards):
    for board in boards:
        board.come_to("meeting")
        board.come_to("meeting")
    boards[1].post("ended", "has returned")
    boards[2].post(state, "is elsewhere", needs=(((1, "another meeting", 1),),))
    boards[0].wait([HandedOver(5)], waiting(NEEDS))


def test_who_has_ended_without_coming_to_the_meeting_is_not_waited_for(boards):
    for board in boards:
        board.come_to("meeting")
    boards[0].come_to("meeting")
    boards[1].come_to("meeting")
    boards[1].post("ended", "has returned")
    boards[2].post("ended", "has returned")
    with pytest.raises(Unmet, match="some ranks have returned"):
        boards[0].wait([HandedOver(5)], waiting(NEEDS))


def test_one_side_of_two_is_enough_to_go_on(boards):
    sent, taken = ((1, "sent", 1),), ((2, "taken", 1),)
    boards[1].post("ended")
    boards[2].post("ended")
    with pytest.raises(Unmet):
        boards[0].wait([HandedOver(5)], waiting(sent, taken))
    boards[2].come_to("taken")
    boards[2].post("ended")
    boards[0].wait([HandedOver(5)], waiting(sent, taken))


def test_who_needs_nobody_any_more_goes_on(boards):
    boards[1].post("ended")
    boards[2].post("ended")
    boards[0].wait([HandedOver(5)], waiting(()))


def test_who_runs_is_waited_for(boards):
    boards[1].post("ended")
    boards[2].post("running")
    boards[0].wait([HandedOver(5)], waiting(NEEDS))
