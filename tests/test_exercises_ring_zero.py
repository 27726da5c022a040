"""The exercises of A2 and B: what learners write, right and wrong, and that the answers speak true."""

import pytest
import torch
from answers import said_right, said_wrong

import tpviz
from tpviz.exercises import nbA2_ring

# A2


def in_a_ring(step_total, way=1):
    """A ring reduce-scatter with its own step."""

    def program(comm, x):
        n, me = comm.world_size, comm.rank
        pieces = list(x.chunk(n))
        for step in range(n - 1):
            out, into = (me - step - 1) % n, (me - step - 2) % n
            arrived = comm.sendrecv(pieces[out], dst=(me + way) % n, src=(me - way) % n)
            pieces[into] = step_total(pieces[into], arrived)
        return pieces[me]

    return program


def sends_and_receives(comm, x):
    """Even ranks send first, odd ones receive first; on an odd number the last waits its turn."""
    n, me = comm.world_size, comm.rank
    pieces = list(x.chunk(n))
    for step in range(n - 1):
        out, into = (me - step - 1) % n, (me - step - 2) % n
        if me == 0:
            arrived = comm.recv((me - 1) % n)
            comm.send(pieces[out], (me + 1) % n)
        else:
            comm.send(pieces[out], (me + 1) % n)
            arrived = comm.recv((me - 1) % n)
        pieces[into] = arrived + pieces[into]
    return pieces[me]


@pytest.mark.parametrize(
    "program",
    [
        in_a_ring(lambda own, arrived: arrived + own),
        in_a_ring(lambda own, arrived: own.clone().add_(arrived)),
        in_a_ring(lambda own, arrived: torch.stack([own, arrived]).sum(0)),
        sends_and_receives,
    ],
)
def test_a_ring_reduce_scatter(program):
    assert said_right("A2-reduce-scatter", program) == ()


def built_in(comm, x):
    return comm.reduce_scatter(x)


def in_three_messages(comm, x):
    """Each rank sends to each other one what that one needs: as many bytes as a ring, and not to neighbours."""
    n, me = comm.world_size, comm.rank
    pieces = x.chunk(n)
    total = pieces[me]
    for k in range(1, n):
        total = total + comm.sendrecv(pieces[(me + k) % n], dst=(me + k) % n, src=(me - k) % n)
    return total


def whole_arrays_round(comm, x):
    n, me = comm.world_size, comm.rank
    total = arrived = x
    for _step in range(n - 1):
        arrived = comm.sendrecv(arrived, dst=(me + 1) % n, src=(me - 1) % n)
        total = total + arrived
    return total.chunk(n)[me]


def everything_at_once(comm, x):
    n, me = comm.world_size, comm.rank
    pieces = list(x.chunk(n))
    for step in range(n - 1):
        into = (me - step - 2) % n
        pieces[into] = pieces[into] + comm.sendrecv(x, dst=(me + 1) % n, src=(me - 1) % n)
    return pieces[me]


def exchanged(comm, x):
    n, me = comm.world_size, comm.rank
    pieces = list(x.chunk(n))
    for step in range(n - 1):
        out, into = (me - step - 1) % n, (me - step - 2) % n
        pieces[into] = pieces[out] + comm.sendrecv(pieces[into], dst=(me + 1) % n, src=(me - 1) % n)
    return pieces[me]


def doubled(comm, x):
    n, me = comm.world_size, comm.rank
    pieces = list(x.chunk(n))
    for step in range(n - 1):
        out, into = (me - step - 1) % n, (me - step - 2) % n
        pieces[into] = pieces[out] + comm.sendrecv(pieces[out], dst=(me + 1) % n, src=(me - 1) % n)
    return pieces[me]


def sent_what_is_added_to(comm, x):
    n, me = comm.world_size, comm.rank
    pieces = list(x.chunk(n))
    for step in range(1, n):
        into = (me - step - 1) % n
        pieces[into] = pieces[into] + comm.sendrecv(pieces[into], dst=(me + 1) % n, src=(me - 1) % n)
    return pieces[me]


def added_at_home(comm, x):
    n, me = comm.world_size, comm.rank
    pieces = list(x.chunk(n))
    for step in range(1, n):
        pieces[(me - step - 1) % n] = pieces[(me - step - 1) % n] + pieces[(me - step) % n]
    return pieces[me]


def doubled_at_home(comm, x):
    return x.chunk(comm.world_size)[comm.rank] * comm.world_size


def all_reduced(comm, x):
    n, me = comm.world_size, comm.rank
    pieces = list(x.chunk(n))
    for step in range(n - 1):
        pieces[(me - step - 2) % n] = comm.all_reduce(x).chunk(n)[(me - step - 2) % n]
    return pieces[me]


@pytest.mark.parametrize(
    ("program", "misconception", "said"),
    [
        (in_a_ring(lambda own, arrived: arrived), "not added", "took the place"),
        (in_a_ring(lambda own, arrived: own + arrived, way=-1), "the other way", "the rank before"),
        (exchanged, "indices exchanged", "about to be added to"),
        (doubled, "its own share doubled", "the piece that you sent"),
        (sent_what_is_added_to, "sends what it adds to", "`pieces[out]` is what goes"),
        (added_at_home, "nothing sent", "Nothing was sent: you added two pieces of one rank"),
        (doubled_at_home, None, "Nothing was sent. Tried on"),
        (everything_at_once, "the whole array", "You sent the whole array"),
        (all_reduced, "AllReduce", "Here you build it"),
        (built_in, None, "they came by reduce_scatter"),
        (in_three_messages, None, "another than the next one"),
        (whole_arrays_round, None, "one rank sends 48 bytes, and 16 will do"),
        (lambda comm, x: x.chunk(comm.world_size)[comm.rank], None, "position 0 is 1; it should be 33"),
        (lambda comm, x: comm.all_reduce(x), None, "shape (3,); it should be (1,)"),
        (lambda comm, x: comm.send(x, comm.rank), None, "your code ended in"),
        (lambda comm, x: comm.recv((comm.rank + 1) % comm.world_size), None, "CollectiveMismatch"),
        (lambda comm, x: None, None, "is None"),
        (lambda comm: None, None, "TypeError"),
        (torch.ones(3), None, "needs the function itself"),
    ],
)
def test_no_ring_reduce_scatter(program, misconception, said):
    name, text = said_wrong("A2-reduce-scatter", program)
    assert (name, said in text) == (misconception, True), text


def gathered_with(indices):
    def program(comm, piece):
        n, me = comm.world_size, comm.rank
        pieces = [piece] * n
        for step in range(n - 1):
            out, into = indices(me, step, n)
            pieces[into] = comm.sendrecv(pieces[out], dst=(me + 1) % n, src=(me - 1) % n)
        return torch.cat(pieces)

    return program


def last_arrived(comm, piece):
    n, me = comm.world_size, comm.rank
    pieces, out = {me: piece}, piece
    for step in range(1, n):
        out = pieces[(me - step) % n] = comm.sendrecv(out, dst=(me + 1) % n, src=(me - 1) % n)
    return torch.cat([pieces[rank] for rank in range(n)])


@pytest.mark.parametrize(
    "program",
    [
        gathered_with(lambda me, step, n: (me - step, me - step - 1)),  # Python counts from the end
        gathered_with(lambda me, step, n: ((me + n - step) % n, (me + n - 1 - step) % n)),
        last_arrived,
    ],
)
def test_a_ring_all_gather(program):
    assert said_right("A2-all-gather", program) == ()


@pytest.mark.parametrize(
    ("program", "misconception", "said"),
    [
        (gathered_with(lambda me, step, n: (me, (me - step - 1) % n)), "own each time", "over and over"),
        (gathered_with(lambda me, step, n: (me, me - 1)), "the same each time", "the same piece in every step"),
        (gathered_with(lambda me, step, n: ((me - step) % n,) * 2), "put where it was sent from", "one place before"),
        (
            gathered_with(lambda me, step, n: ((me - step - 1) % n, (me - step - 2) % n)),
            "the reduce-scatter's",
            "of the first half",
        ),
        (gathered_with(lambda me, step, n: ((me + step) % n, (me + step + 1) % n)), "the other way", "count upwards"),
        (gathered_with(lambda me, step, n: (me + step, me + step + 1)), None, "IndexError"),
        (lambda comm, piece: comm.all_gather(piece), None, "they came by all_gather"),
        (lambda comm, piece: piece, None, "shape (2,); it should be (6,)"),
    ],
)
def test_no_ring_all_gather(program, misconception, said):
    name, text = said_wrong("A2-all-gather", program)
    assert (name, said in text) == (misconception, True), text


def test_the_two_halves_make_an_all_reduce():
    def both(comm, x):
        return nbA2_ring.ring_all_gather(comm, nbA2_ring.ring_reduce_scatter(comm, x + comm.rank))

    x = torch.arange(8)
    for ranks in (2, 4, 8):
        run = tpviz.run(both, ranks=ranks, args=(x,))
        whole = tpviz.run(lambda comm: comm.all_reduce(x + comm.rank), ranks=ranks)
        assert all(torch.equal(a, b) for a, b in zip(run.outputs, whole.outputs, strict=True))
        assert set(nbA2_ring.sent_bytes(run.trace).values()) == {whole.trace[0].wire_bytes}


# B


def rows_of(comm, g):
    return comm.reduce_scatter(g, dim=0)


def joined(comm, wi):
    return comm.all_gather(wi, dim=0)


def a_step(scatter=rows_of, gather=joined):
    return lambda comm, w, mi, g: gather(comm, tpviz.shard(w, 0, comm) - (mi + scatter(comm, g)))


def from_pieces(comm, g):
    """Each piece to the rank that it belongs to, and added there: an all-to-all."""
    mine = comm.all_to_all(g, split_dim=0, concat_dim=1)
    return sum(mine.chunk(comm.world_size, dim=1))


@pytest.mark.parametrize(
    "step",
    [
        a_step(),
        a_step(scatter=from_pieces),
        lambda comm, w, mi, g: w - comm.all_gather(mi + comm.reduce_scatter(g), dim=0),
    ],
)
def test_a_step_of_zero(step):
    assert said_right("B-step", step) == ()


def gathered_gradients(comm, g):
    return tpviz.shard(sum(comm.all_gather(g, dim=0).chunk(comm.world_size)), 0, comm)


@pytest.mark.parametrize(
    ("step", "misconception", "said"),
    [
        (a_step(lambda comm, g: tpviz.shard(comm.all_reduce(g), 0, comm)), "AllReduce, then cut", "192 bytes, and 128"),
        (a_step(lambda comm, g: tpviz.shard(g, 0, comm)), "no sum", "have no say"),
        (a_step(lambda comm, g: comm.reduce_scatter(g, op="mean")), "the mean", "gradients add"),
        (a_step(gather=lambda comm, wi: wi), "not gathered", "2×8, and the others"),
        (a_step(gather=lambda comm, wi: comm.all_reduce(wi)), "new rows added", "different rows"),
        (a_step(gather=lambda comm, wi: comm.all_gather(wi)), "gathered beside each other", "along dim 0"),
        (a_step(gathered_gradients), None, "The weight is right."),
        (lambda comm, w, mi, g: w, None, "it should be"),
        (lambda comm, w, mi, g: w - mi, None, "your code ended in"),
        (lambda comm, w, mi, g: (w, mi), None, "a tuple of 2"),
        (lambda comm, w, mi, g: comm.broadcast(g, src=9), None, "your code ended in"),
        (lambda comm, w: w, None, "TypeError"),
        (3, None, "needs the function itself"),
    ],
)
def test_no_step_of_zero(step, misconception, said):
    name, text = said_wrong("B-step", step)
    assert (name, said in text) == (misconception, True), text


@pytest.mark.parametrize(
    ("name", "answer"),
    [
        ("A2-predict", " A third more"),
        ("A2-bytes", (5600, 1400)),
        ("A2-bytes", [5600.0, 1400]),
        ("A2-bytes", torch.tensor([5600, 1400])),
        ("B-sent", (192, 192.0, 288)),
        ("B-kept", torch.tensor([384, 288, 192, 96])),
    ],
)
def test_the_same_value_in_another_form_is_right(name, answer):
    assert said_right(name, answer) == ()


@pytest.mark.parametrize(
    ("name", "answer", "misconception", "said"),
    [
        ("A2-predict", "100 times as much", "100 times", "adds before passing on"),
        ("A2-predict", "twice as much", "twice", "at most"),
        ("A2-predict", "the same", "the same", "Nearly"),
        ("A2-predict", "half", None, "“half” is not one of the choices"),
        ("A2-predict", 4, None, "One of these words is needed"),
        ("A2-bytes", [6400, 1400], "itself too", "nothing to itself"),
        ("A2-bytes", [5600, 700], "one half", "one half"),
        ("A2-bytes", [5600, 1600], "a step too many", "7 steps"),
        ("A2-bytes", [5600, 11200], "whole arrays", "an eighth"),
        ("A2-bytes", [800, 1400], "once", "one other rank"),
        ("A2-bytes", [1400, 5600], "exchanged", "in the other order"),
        ("A2-bytes", (6400, 1600), "n for n − 1", "8, twice, where it is 7"),
        ("A2-bytes", [800, 100], "one step", "7 for each half"),
        ("A2-bytes", [44800, 11200], "all ranks", "all 8 ranks send together"),
        ("A2-bytes", [1400, 1400], None, "It is not [1400, 1400]."),
        ("A2-bytes", 5600, None, "An answer of the form […, …] is needed."),
        ("B-sent", [192, 96, 288], "one half for ZeRO-2", "gathering them costs"),
        ("B-sent", [192, 192, 192], "all alike", "Three halves"),
        ("B-sent", [192, 96, 96], "ZeRO saves bytes sent", "saves memory"),
        ("B-sent", [128, 256, 384], "payloads", "These are payloads"),
        ("B-sent", [1, 2, 3], None, "It is not [1, 2, 3]."),
        ("B-sent", "more", None, "An answer of the form […, …, …] is needed."),
        ("B-kept", [384, 320, 256, 192], "two ranks", "for 2 ranks"),
        ("B-kept", [384, 288, 192, 192], "the weight stays whole", "for a moment"),
        ("B-kept", (384, 96, 96, 96), "all cut at once", "Stage 1 cuts M alone"),
        ("B-kept", [288, 192, 96, 96], "counted from 0", "one stage ahead"),
        ("B-kept", [384], None, "An answer of the form […, …, …, …] is needed."),
    ],
)
def test_what_is_said_of_a_value(name, answer, misconception, said):
    found, text = said_wrong(name, answer)
    assert (found, said in text) == (misconception, True), text
