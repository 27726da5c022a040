"""The exercises of notebook 11: what learners write, right and wrong, and that the answers speak true."""

import pytest
import torch
from answers import said_right, said_wrong

import tpviz
from tpviz.exercises import nb11_sequence


def own_norm(comm, Zi, normed):
    Yi = comm.reduce_scatter(Zi)
    return comm.all_gather(nb11_sequence.normed(Yi), dim=0)


def row_by_row(comm, Zi, normed):
    Yi = comm.reduce_scatter(Zi)
    return comm.all_gather(torch.cat([normed(Yi[[i]]) for i in range(len(Yi))]), dim=0)


def from_pieces(comm, Zi, normed):
    mine = comm.all_to_all(Zi, split_dim=0, concat_dim=1)
    return comm.all_gather(normed(sum(mine.chunk(comm.world_size, dim=1))), dim=0)


@pytest.mark.parametrize("program", [row_by_row, from_pieces])
def test_between_two_layers(program):
    assert said_right("11-between", program) == ()


@pytest.mark.parametrize(
    ("program", "misconception", "said"),
    [
        (lambda comm, Z, normed: normed(comm.all_reduce(Z)), "AllReduce", "4 rows where its share is 2"),
        (
            lambda comm, Z, normed: normed(comm.all_gather(comm.reduce_scatter(Z), dim=0)),
            "AllReduce",
            "4 rows where its share is 2",
        ),
        (
            lambda comm, Z, normed: comm.all_gather(normed(tpviz.shard(comm.all_reduce(Z), 0, comm)), dim=0),
            "AllReduce, then cut",
            "192 bytes, and 128",
        ),
        (nb11_sequence._padded, "cut, then AllReduce", "192 bytes, and 128 will do. Your AllReduce adds rows to zeros"),
        (
            lambda comm, Z, normed: comm.reduce_scatter(normed(comm.all_gather(Z, dim=0)), dim=0),
            "the halves swapped",
            "First sum and scatter",
        ),
        (
            lambda comm, Z, normed: comm.all_gather(comm.reduce_scatter(normed(Z)), dim=0),
            "normed before the sum",
            "not linear",
        ),
        (lambda comm, Z, normed: comm.all_gather(normed(comm.reduce_scatter(Z, dim=1))), "cut by features", "dim 0"),
        (
            lambda comm, Z, normed: comm.all_gather(normed(tpviz.shard(Z, 0, comm)), dim=0),
            "no sum",
            "nothing was added",
        ),
        (lambda comm, Z, normed: normed(comm.reduce_scatter(Z)), "not gathered", "2×8"),
        (lambda comm, Z, normed: comm.all_gather(normed(comm.reduce_scatter(Z))), "gathered beside each other", "2×16"),
        (
            lambda comm, Z, normed: comm.all_reduce(normed(comm.reduce_scatter(Z))),
            "own rows added up",
            "rank 0's rows to rank 1's, 2×8",
        ),
        (
            lambda comm, Z, normed: comm.all_gather(
                normed(tpviz.shard(comm.all_gather(Z[None], dim=0).sum(0), 0, comm)), dim=0
            ),
            "partial sums gathered",
            "192 bytes, and 128 will do. Every rank has every partial sum",
        ),
        (
            lambda comm, Z, normed: normed(comm.all_gather(Z[None], dim=0).sum(0)),
            "partial sums gathered, all rows normed",
            "4 rows where its share is 2",
        ),
        (
            lambda comm, Z, normed: normed(comm.all_gather(normed(comm.reduce_scatter(Z)), dim=0)),
            "normed twice",
            "6 rows where the share is 2",
        ),
        (own_norm, None, "rank 0 hands `normed` 0 rows, and its share is 2"),
        (lambda comm, Z, normed: Z, None, "it should be"),
        (lambda comm, Z, normed: None, None, "is None"),
        (lambda comm, Z: Z, None, "TypeError"),
        (3, None, "needs the function itself"),
    ],
)
def test_not_between_two_layers(program, misconception, said):
    name, text = said_wrong("11-between", program)
    assert (name, said in text) == (misconception, True), text


def test_the_rows_are_normalised_to_whole_numbers_and_no_half_of_one_is():
    rows = nb11_sequence._even(6)
    whole = nb11_sequence.normed(rows)
    assert set(whole.unique().tolist()) == {-1.0, 1.0}
    reference = torch.nn.functional.layer_norm(rows, (8,), eps=0)
    assert torch.allclose(whole, reference, atol=1e-6)
    for half in (slice(0, 4), slice(4, 8)):
        assert not (nb11_sequence.normed(rows[:, half]) == whole[:, half]).any()


@pytest.mark.parametrize(
    "program",
    [
        lambda comm, dN, U: comm.all_reduce((dN * U).sum(0)),
        lambda comm, dN, U: comm.all_reduce(torch.einsum("ij,ij->j", dN, U)),
        lambda comm, dN, U: comm.all_gather(comm.reduce_scatter((dN * U).sum(0))),
    ],
)
def test_gain(program):
    assert said_right("11-gain", program) == ()


@pytest.mark.parametrize(
    ("program", "misconception", "said"),
    [
        (lambda comm, dN, U: (dN * U).sum(0), "not synchronised", "on rank 0 is −2, and it should be −8"),
        (lambda comm, dN, U: comm.all_reduce((dN * U).sum(0)) / comm.world_size, "mean", "1/n as fast"),
        (
            lambda comm, dN, U: comm.all_reduce((dN * U).sum(0)) * comm.world_size,
            "summed twice",
            "n times as much: −16 for −8",
        ),
        (lambda comm, dN, U: (comm.all_reduce(dN) * U).sum(0), "dN summed first", "different tokens"),
        (lambda comm, dN, U: comm.all_gather((dN * U).sum(0)), "concatenated", "shares of the same numbers"),
        (lambda comm, dN, U: comm.all_gather(dN * U).sum(0), "concatenated", "along the features, (8,)"),
        (
            lambda comm, dN, U: comm.all_reduce(dN * U).sum(0),
            "added over the ranks first",
            "row by row, and the rows afterwards: tried on 4 rows on 2 ranks, a rank sends 32 bytes, and 16 will do",
        ),
        (lambda comm, dN, U: (dN * U).sum(0) * comm.world_size, "the own share n times", "is −4, and it should be −8"),
        (lambda comm, dN, U: comm.all_reduce(dN).sum(0), "the shift's gradient", "gradient of the shift"),
        (lambda comm, dN, U: comm.all_reduce(dN * U), "rows kept", "one gain for all rows"),
        (lambda comm, dN, U: comm.reduce_scatter((dN * U).sum(0)), "cut", "a part of the sum"),
        (
            lambda comm, dN, U: (comm.all_gather(dN, dim=0) * comm.all_gather(U, dim=0)).sum(0),
            "rows gathered",
            "a rank sends 64 bytes, and 16 will do",
        ),
        (
            lambda comm, dN, U: comm.all_gather(dN * U, dim=0).sum(0),
            "products gathered",
            "a rank sends 32 bytes, and 16 will do",
        ),
        (
            lambda comm, dN, U: comm.all_gather((dN * U).sum(0)[None], dim=0).sum(0),
            "shares gathered",
            "on 4 ranks, it is 48 bytes, and 24 will do",
        ),
        (
            lambda comm, dN, U: (comm.all_reduce((dN * U).sum(0)), comm.all_reduce(dN))[0],
            None,
            "a rank sends 48 bytes, and 16 will do",
        ),
        (lambda comm, dN, U: comm.all_reduce((dN * U).sum(0, keepdim=True)), "a row of its own", "1×4"),
        (lambda comm, dN, U: comm.all_reduce((dN * U).sum(1)), "over the features", "one number for each row"),
        (lambda comm, dN, U: comm.all_reduce(dN.sum(0) * U.sum(0)), "product of sums", "another row's U"),
        (lambda comm, dN, U: comm.all_reduce(dN.sum(0)), "the shift's gradient", "meets its row of U first"),
        (lambda comm, dN, U: comm.all_reduce(U.sum(0)), None, "it should be"),
        (torch.ones(4), None, "needs the function itself"),
    ],
)
def test_no_gain(program, misconception, said):
    name, text = said_wrong("11-gain", program)
    assert (name, said in text) == (misconception, True), text


def test_the_same_bytes_in_another_form_are_right():
    assert said_right("11-bytes", (96, 48.0, 48)) == ()


@pytest.mark.parametrize(
    ("answer", "misconception", "said"),
    [
        ([96, 96, 96], "each as much as the whole", "AllReduce *is* these two"),
        ([64, 64, 64], "payloads", "the payload"),
        ([64, 32, 32], "two ranks", "on 2 ranks"),
        ([64, 48, 48], "half the payload", "add them up"),
        ([48, 48, 48], "AllReduce for half", "a quarter of the sum"),
        ([48, 24, 24], "AllReduce once round", "one half"),
        ([96, 48, 16], "AllGather sends its own piece", "passes on the pieces"),
        ([96, 16, 16], "one piece in each half", "add up to it"),
        ([16, 16, 16], "one piece", "in one step"),
        ([128, 64, 64], "without (n−1)/n", "3 of the 4"),
        ([192, 48, 48], "everyone to everyone", "each of 3 others"),
        ([192, 192, 48], "everyone to everyone, in ReduceScatter too", "3 steps in ReduceScatter, 6 in AllReduce"),
        ([64, 48, 16], "AllReduce moves the array once", "more than the array once"),
        ([96, 96, 48], "ReduceScatter as an AllReduce", "leaves it a quarter"),
        ([128, 48, 48], "AllReduce twice the array", "once for each half"),
        ([1, 2, 3], None, "It is not [1, 2, 3]."),
    ],
)
def test_what_is_said_of_other_bytes(answer, misconception, said):
    name, text = said_wrong("11-bytes", answer)
    assert (name, said in text) == (misconception, True), text
