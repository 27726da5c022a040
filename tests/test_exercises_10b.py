"""The exercises of 10b: other ways to be right, wrong answers and what is said to them, and the notebook's table."""

from pathlib import Path

import nbformat
import pytest
import torch
from answers import said_right, said_wrong
from torch.nn import functional

import tpviz
from tpviz.exercises.nb10b_vocabulary import DISTANCES

NOTEBOOK = Path(__file__).parents[1] / "notebooks" / "10b-vocabulary-and-training.ipynb"


def one_by_one(comm, rows, tokens):
    found = torch.zeros(len(tokens), rows.shape[1])
    for place, token in enumerate(tokens.tolist()):
        if token // len(rows) == comm.rank:
            found[place] = rows[token % len(rows)]
    return comm.all_reduce(found)


def by_ones(comm, rows, tokens):
    words = comm.rank * len(rows) + torch.arange(len(rows))
    return comm.all_reduce((tokens.unsqueeze(1) == words).float() @ rows)


def masked_afterwards(comm, rows, tokens):
    local = tokens - comm.rank * len(rows)
    found = rows[local.clamp(0, len(rows) - 1)]
    return comm.all_reduce(found.masked_fill(((local < 0) | (local >= len(rows))).unsqueeze(1), 0))


@pytest.mark.parametrize("program", [one_by_one, by_ones, masked_afterwards])
def test_rows_are_looked_up(program):
    assert said_right("10b-look-up", program) == ()


def test_the_table_gathered_sends_too_much():
    name, text = said_wrong("10b-look-up", lambda comm, rows, tokens: comm.all_gather(rows, dim=0)[tokens])
    assert name == "the table gathered"
    assert "128 bytes, and 48 will do" in text


def test_rows_in_two_messages_send_too_much():
    def twice(comm, rows, tokens):
        return comm.all_reduce(masked_afterwards(comm, rows, tokens), op="max")

    name, text = said_wrong("10b-look-up", twice)
    assert name is None
    assert "96 bytes, and 48 will do" in text


def test_what_is_not_superfluous_in_kind_is_not_called_so():
    def twice_as_long(comm, rows, tokens):
        words = comm.rank * len(rows) + torch.arange(len(rows))
        found = (tokens.unsqueeze(1) == words).float() @ rows
        return comm.all_reduce(torch.cat([found, found]))[: len(tokens)]

    name, text = said_wrong("10b-look-up", twice_as_long)
    assert name is None
    assert "96 bytes, and 48 will do: you send all_reduce." in text
    assert "Not needed" not in text


@pytest.mark.parametrize("last", [lambda rows: len(rows) - 1, lambda rows: 3])
def test_clamped_and_not_masked_is_seen(last):
    def clamped(comm, rows, tokens):
        local = tokens - comm.rank * len(rows)
        return comm.all_reduce(rows[local.clamp(0, last(rows))])

    name, text = said_wrong("10b-look-up", clamped)
    assert name == "clamped"
    assert "row 0, column 0 is 10, and it should be 6" in text


@pytest.mark.parametrize(
    "program",
    [
        lambda comm, rows, tokens: comm.all_reduce(rows[tokens]),
        lambda comm, rows, tokens: rows[tokens - comm.rank * len(rows)],
        lambda comm, rows, tokens: comm.all_gather(rows)[tokens],
    ],
)
def test_a_row_that_a_rank_does_not_have(program):
    name, text = said_wrong("10b-look-up", program)
    assert name == "outside of its rows"
    assert "index 6 is out of bounds for dimension 0 with size 4. Tokens that are another rank's" in text


def as_one(comm, scores, target):
    largest = comm.all_reduce(scores.max(), op="max")
    local = target - comm.rank * len(scores)
    shifted = scores - largest
    mine = shifted[local] if 0 <= local < len(scores) else torch.zeros(())
    total, chosen = comm.all_reduce(torch.stack([shifted.exp().sum(), mine]))
    return (total.log() - chosen).item()


def gathered(comm, scores, target):
    return functional.cross_entropy(comm.all_gather(scores), torch.tensor(target))


@pytest.mark.parametrize(
    "program",
    [as_one, lambda comm, *given: tpviz.vocab_parallel_cross_entropy(given[0][None], torch.tensor([given[1]]), comm)],
)
def test_the_loss(program):
    assert said_right("10b-loss", program) == ()


def test_log_sum_exp_of_ones_own_words_is_the_loss_over_them():
    def own(comm, scores, target):
        local = target - comm.rank * len(scores)
        mine = scores[local] if 0 <= local < len(scores) else torch.zeros(())
        largest = comm.all_reduce(scores.max(), op="max")
        return scores.logsumexp(0) - largest - comm.all_reduce(mine - largest * (0 <= local < len(scores)))

    name, text = said_wrong("10b-loss", own)
    assert name == "over its own words"
    assert "rank 1 returns 0.3133; it should be 0.4402" in text or "rank 0 returns" in text


def test_gathered_scores_are_too_much():
    name, text = said_wrong("10b-loss", gathered)
    assert name == "the scores gathered"
    assert "16 bytes, and 12 are enough" in text


def test_exponentials_that_overflow_are_named():
    def plain(comm, scores, target):
        local = target - comm.rank * len(scores)
        mine = scores[local] if 0 <= local < len(scores) else torch.zeros(())
        return comm.all_reduce(scores.exp().sum()).log() - comm.all_reduce(mine)

    name, text = said_wrong("10b-loss", plain)
    assert name == "without the largest"
    assert "inf" in text


def as_a_share(comm, scores, target):
    local = target - comm.rank * len(scores)
    largest = comm.all_reduce(scores.max(), op="max")
    mine = (scores[local] - largest).exp() if 0 <= local < len(scores) else torch.tensor(0.0)
    return -(comm.all_reduce(mine) / comm.all_reduce((scores - largest).exp().sum())).log()


def not_summed(comm, scores, target):
    local = target - comm.rank * len(scores)
    largest = comm.all_reduce(scores.max(), op="max")
    total = comm.all_reduce((scores - largest).exp().sum())
    return total.log() + largest - (scores[local] if 0 <= local < len(scores) else 0.0)


def taken_by_each(comm, scores, target):
    local = target - comm.rank * len(scores)
    largest = comm.all_reduce(scores.max(), op="max")
    mine = (scores[local] if 0 <= local < len(scores) else torch.zeros(())) - largest
    return comm.all_reduce((scores - largest).exp().sum()).log() - comm.all_reduce(mine)


def own_largest(comm, scores, target):
    local = target - comm.rank * len(scores)
    shifted = scores - scores.max()
    mine = shifted[local] if 0 <= local < len(scores) else torch.zeros(())
    return comm.all_reduce(shifted.exp().sum()).log() - comm.all_reduce(mine)


def list_of_one(comm, scores, target):
    local = target - comm.rank * len(scores)
    largest = comm.all_reduce(scores.max(), op="max")
    mine = scores[local : local + 1] - largest if 0 <= local < len(scores) else torch.zeros(1)
    return comm.all_reduce((scores - largest).exp().sum()).log() - comm.all_reduce(mine)


def asked_twice(comm, scores, target):
    comm.all_reduce(scores.max(), op="max")
    return tpviz.vocab_parallel_cross_entropy(scores[None], torch.tensor([target]), comm)


@pytest.mark.parametrize(
    ("program", "misconception", "said"),
    [
        (as_a_share, "exp of the target's score", "target 0, it gives inf; it should be 120.4"),
        (not_summed, "the target's rank alone, the largest put back", "rank 0 returns 4.44; it should be 0.4402"),
        (taken_by_each, "the largest taken by each rank", "it gives 4.44; it should be 0.4402"),
        (own_largest, "each its own largest", "it gives 1.006; it should be 0.4402"),
        (list_of_one, "a list of one", "a tensor of shape (1,)"),
        (asked_twice, "the largest asked for twice", "you send 16 bytes, and 12 are enough"),
    ],
)
def test_what_is_said_of_other_losses(program, misconception, said):
    name, text = said_wrong("10b-loss", program)
    assert (name, said in text) == (misconception, True), text
    assert "Not needed" not in text


def test_an_index_of_all_words_says_where():
    def of_all(comm, scores, target):
        largest = comm.all_reduce(scores.max(), op="max")
        return comm.all_reduce((scores - largest).exp().sum()).log() - scores[target] + largest

    name, text = said_wrong("10b-loss", of_all)
    assert name is None
    assert "rank 0: IndexError" in text


@pytest.mark.parametrize(
    ("answer", "name"), [([0, 1, 0, 0], "small is harmless"), ((0, 1, 1, 0), "large is a bug"), ([1, 1, 1, 0], None)]
)
def test_verdicts(answer, name):
    assert said_wrong("10b-verdict", answer)[0] == name
    said_right("10b-verdict", torch.tensor([0, 1, 0, 1]))
    said_right("10b-verdict", [False, True, False, True])


def test_the_notebook_shows_the_distances_that_are_judged():
    text = "\n".join(cell.source for cell in nbformat.read(NOTEBOOK, as_version=4).cells)

    def power(number):
        digit, exponent = f"{number:.0e}".split("e")
        return f"{digit} · 10" + str(int(exponent)).translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))

    for plan, (single, double) in DISTANCES.items():
        assert f"| {plan} | {power(single)} | {power(double)} |" in text
