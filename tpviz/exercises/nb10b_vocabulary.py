# mypy: allow-untyped-defs, allow-untyped-calls
"""The exercises of notebook 10b: the vocabulary cut, and rounding or bug (checks). Programs are shown as they are."""

from dataclasses import dataclass, replace
from typing import Any

import torch

import tpviz
from tpviz.exercises import values
from tpviz.exercises.inputs import integers
from tpviz.exercises.pattern import Case, Misconception, YesNoExercise
from tpviz.exercises.traffic import TrafficExercise
from tpviz.i18n import N_, _
from tpviz.sharding import shard
from tpviz.trace import Trace


def _payload(trace: Trace) -> float:
    return sum(event.payload_bytes for event in trace)


# Looking up


def look_up(comm, rows, tokens):
    """The tokens' rows of the whole table, from this rank's rows of it."""
    local = tokens - comm.rank * len(rows)
    mine = (local >= 0) & (local < len(rows))
    found = rows[local * mine] * mine.unsqueeze(1)  # hole
    return comm.all_reduce(found)  # hole


def _rows(comm, table, tokens):
    return shard(table, 0, comm), tokens


def _table(words: int, width: int, tokens: list[int], ranks: int) -> Case:
    label = _("a table of {words} words on {ranks} ranks, tokens {tokens}")
    label = label.format(words=words, ranks=ranks, tokens=tokens)
    return Case((integers(words, width), torch.tensor(tokens)), label, ranks)


def _look_up_with(found, merge=lambda comm, found: comm.all_reduce(found)):
    """A look-up with another way to find this rank's rows, and to join the ranks'."""

    def program(comm, rows, tokens):
        local = tokens - comm.rank * len(rows)
        mine = (local >= 0) & (local < len(rows))
        return merge(comm, found(rows, local, mine))

    return program


def _masked(rows, local, mine):
    return rows[local * mine] * mine.unsqueeze(1)


LOOK_UP = TrafficExercise(
    id="10b-look-up",
    function=look_up,
    inputs=lambda: [
        _table(8, 4, [1, 6, 2], ranks=2),
        _table(8, 4, [7, 0, 4, 4], ranks=4),
        _table(6, 2, [3, 2, 5, 0], ranks=3),
    ],
    held=_rows,
    weigh=_payload,
    too_much=N_("The rows are right. Tried on {case}, you send {got} bytes, and {expected} will do: you send {sent}."),
    right=N_(
        "The rank that has a word gives its row, the others give zeros, and the sum is the row: a row layer, whose X"
        " has a single 1 in each row."
    ),
    hint_sentences=(
        N_("`mine` says which tokens this rank has. What should it give for the others, so that a sum finds the row?"),
        N_("`rows[local]` fails, or wraps around, for another rank's token. `local * mine` makes that token a 0."),
        N_("Then zeros where it is not this rank's: `* mine.unsqueeze(1)`. And one AllReduce."),
    ),
    misconceptions=(
        Misconception(
            "not masked",
            _look_up_with(lambda rows, local, mine: rows[local * mine]),
            N_(
                "For another rank's token you give your row 0, and the sum adds it to the right one. Tried on {case}, "
                "{place} is {got}, and it should be {expected}. Shapes say nothing about it."
            ),
        ),
        Misconception(
            "clamped",
            _look_up_with(lambda rows, local, mine: rows[local.clamp(0, len(rows) - 1)]),
            N_(
                "For another rank's token you give your first row or your last, and the sum adds it to the right one. "
                "Tried on {case}, {place} is {got}, and it should be {expected}. `mine` says whose rows to leave out."
            ),
        ),
        Misconception(
            "outside of its rows",
            _look_up_with(lambda rows, local, mine: rows[local]),
            N_(
                "You ask for a row that is not there: {error}. Tokens that are another rank's fall outside of this "
                "rank's rows; below 0 they wrap around, without a message. `mine` says which ones they are. (And "
                "`all_gather` joins columns, unless it is told dim=0.)"
            ),
        ),
        Misconception(
            "wrapped around",
            _look_up_with(lambda rows, local, mine: rows[local % len(rows)]),
            N_(
                "Each rank finds a row for each token: the right one on one rank, some other word's on the others. "
                "Added up, {place} is {got}, and it should be {expected}."
            ),
        ),
        Misconception(
            "its own tokens only",
            _look_up_with(lambda rows, local, mine: rows[local[mine]]),
            N_(
                "You kept this rank's tokens only, so the ranks' results have different shapes and cannot be added. "
                "Keep a row for every token, and fill it with zeros where the token is another rank's."
            ),
        ),
        Misconception(
            "not summed",
            _look_up_with(_masked, lambda comm, found: found),
            N_(
                "Each rank has the rows of its own words, and zeros for the others. The next layer needs all of them on"
                " every rank."
            ),
        ),
        Misconception(
            "side by side",
            _look_up_with(_masked, lambda comm, found: comm.all_gather(found)),
            N_("You set the ranks' rows beside each other, {got_shape}. They are addends of one {expected_shape}."),
        ),
        Misconception(
            "one below the other",
            _look_up_with(_masked, lambda comm, found: comm.all_gather(found, dim=0)),
            N_("You set the ranks' rows below each other, {got_shape}. They are addends of one {expected_shape}."),
        ),
        Misconception(
            "the table gathered",
            lambda comm, rows, tokens: comm.all_gather(rows, dim=0)[tokens],
            N_(
                "The rows are right. But you gathered the whole table, which was cut because it is large: tried on "
                "{case}, {got} bytes, and {expected} will do."
            ),
        ),
        Misconception(
            "the mean",
            _look_up_with(_masked, lambda comm, found: comm.all_reduce(found, op="mean")),
            N_("The mean divides the one row that is there by the ranks: {place} is {got}, not {expected}."),
        ),
    ),
)


# The loss


def surprise(comm, scores, target):
    """The loss of one word, from this rank's scores; target: its number among all."""
    local = target - comm.rank * len(scores)
    has_it = 0 <= local < len(scores)
    largest = comm.all_reduce(scores.max(), op="max")
    total = comm.all_reduce((scores - largest).exp().sum())  # hole
    chosen = scores[local] - largest if has_it else torch.zeros(())  # hole
    return total.log() - comm.all_reduce(chosen)  # hole


@dataclass(frozen=True, kw_only=True)
class RoundedExercise(TrafficExercise):
    """Ranks return numbers that are not whole: they count in 4 digits."""

    def run(self, answer: Any, case: Case) -> tpviz.Run:
        """The run of an answer; its outputs are numbers in 4 digits where they are numbers."""
        run = super().run(answer, case)
        return replace(run, outputs=[_rounded(output) for output in run.outputs])


def _rounded(output: object) -> object:
    if not (values.is_tensor(output) and output.numel() == 1 and output.is_floating_point()):
        return _four_digits(output) if type(output) is float else output
    number = _four_digits(output.item())
    return torch.full(output.shape, number) if output.dim() else number


def _four_digits(number: float) -> float:
    return float(f"{number:.4g}")


def _scores(scores: list[float], target: int, ranks: int) -> Case:
    label = _("scores {scores} on {ranks} ranks, target {target}")
    label = label.format(scores=[round(score) for score in scores], ranks=ranks, target=target)
    return Case((torch.tensor(scores), target), label, ranks)


def _own_scores(comm, scores, target):
    return shard(scores, 0, comm), target


def _surprise_with(total, chosen, join=lambda comm, chosen: comm.all_reduce(chosen)):
    """The loss with another sum of exponentials, or another way to come by the target's score."""

    def program(comm, scores, target):
        largest = comm.all_reduce(scores.max(), op="max")
        summed = total(comm, scores, largest)
        local = target - comm.rank * len(scores)
        has_it = 0 <= local < len(scores)
        own = chosen(scores, local, largest) if has_it else torch.zeros(())
        return summed.log() - join(comm, own)

    return program


def _sum(comm, scores, largest):
    return comm.all_reduce((scores - largest).exp().sum())


def _score(scores, local, largest):
    return scores[local] - largest


def _raw(comm, scores, target):
    local = target - comm.rank * len(scores)
    return scores[local] if 0 <= local < len(scores) else torch.zeros(())


def _put_back(comm, scores, chosen):
    """The logarithm of the whole sum, less what is made of the target's score."""
    largest = comm.all_reduce(scores.max(), op="max")
    return _sum(comm, scores, largest).log() + largest - chosen(largest)


def _asked_twice(comm, scores, target):
    comm.all_reduce(scores.max(), op="max")
    return tpviz.vocab_parallel_cross_entropy(scores[None], torch.tensor([target]), comm)


_NOT_SUMMED = N_(
    "The rank that has the target is right. The others took 0 for its score: tried on {case}, rank {rank} returns "
    "{got}; it should be {expected}. Ranks that disagree about the loss train different models."
)


SURPRISE = RoundedExercise(
    id="10b-loss",
    function=surprise,
    inputs=lambda: [
        _scores([1.0, 2.0, 3.0, 4.0], 3, ranks=2),
        _scores([2.0, 0.0, 1.0, 5.0, 4.0, 3.0, 1.0, 2.0], 2, ranks=4),
        _scores([120.0, 90.0, 118.0, 100.0], 2, ranks=2),
        _scores([0.0, 120.0, 119.0, 118.0], 0, ranks=2),
    ],
    held=_own_scores,
    weigh=_payload,
    too_much=N_(
        "The loss is right. Tried on {case}, you send {got} bytes, and {expected} will do, three numbers, however many "
        "words there are: you send {sent}."
    ),
    right=N_(
        "The largest score, the sum, the target's score: three numbers for each word, and no rank has seen the others' "
        "scores."
    ),
    hint_sentences=(
        N_("The sum is over all words. Each rank can add up the exponentials of its own; `largest` is everybody's."),
        N_("That sum is an AllReduce of `(scores - largest).exp().sum()`."),
        N_("One rank has the target. What should the others give, so that a sum finds its score?"),
        N_("`scores[local] - largest` where `has_it`, else `torch.zeros(())`: one more AllReduce."),
    ),
    misconceptions=(
        Misconception(
            "over its own words",
            _surprise_with(lambda comm, scores, largest: (scores - largest).exp().sum(), _score),
            N_(
                "Each rank divides by the sum over its own words: as if the others' words could not come next. Tried on"
                " {case}, rank {rank} returns {got}; it should be {expected}."
            ),
        ),
        Misconception(
            "the largest taken once",
            _surprise_with(_sum, lambda scores, local, largest: scores[local]),
            N_(
                "You took `largest` from the scores in the sum, and not from the target's: the loss is off by exactly "
                "that. Tried on {case}, it gives {got}; it should be {expected}."
            ),
        ),
        Misconception(
            "without the largest",
            _surprise_with(
                lambda comm, scores, largest: comm.all_reduce(scores.exp().sum()),
                lambda scores, local, largest: scores[local],
            ),
            N_(
                "On small scores it is right. exp(120) is more than float32 can hold: it is inf, and so is the loss. "
                "That is what `largest` is taken away for, from every score."
            ),
        ),
        Misconception(
            "each its own largest",
            _surprise_with(
                lambda comm, scores, largest: comm.all_reduce((scores - scores.max()).exp().sum()),
                lambda scores, local, largest: scores[local] - scores.max(),
            ),
            N_(
                "Each rank took away the largest of its own scores. These are different numbers, so what is left cannot"
                " be added: tried on {case}, it gives {got}; it should be {expected}. `largest` is everybody's."
            ),
        ),
        Misconception(
            "its own largest in the sum",
            _surprise_with(lambda comm, scores, largest: comm.all_reduce((scores - scores.max()).exp().sum()), _score),
            N_(
                "In the sum each rank took away the largest of its own scores. These are different numbers, so the "
                "ranks' sums do not add up: tried on {case}, it gives {got}; it should be {expected}. `largest` is "
                "everybody's."
            ),
        ),
        Misconception(
            "exp of the target's score",
            _surprise_with(
                _sum,
                lambda scores, local, largest: (scores[local] - largest).exp(),
                lambda comm, chosen: comm.all_reduce(chosen).log(),
            ),
            N_(
                "On most scores it is right. Where the target lies 120 below the largest, exp(−120) is 0 in float32, "
                "and its logarithm −inf. Keep the target's score as a score, and take exp for the sum only. Tried on "
                "{case}, it gives {got}; it should be {expected}."
            ),
        ),
        Misconception(
            "logarithms added",
            _surprise_with(
                lambda comm, scores, largest: comm.all_reduce((scores - largest).exp().sum().log()).exp(), _score
            ),
            N_(
                "You added the ranks' logarithms. The logarithm of a sum is no sum of logarithms: add up first, then "
                "take `.log()` once. Tried on {case}, it gives {got}; it should be {expected}."
            ),
        ),
        Misconception(
            "the largest added again",
            lambda comm, scores, target: surprise(comm, scores, target) + comm.all_reduce(scores.max(), op="max"),
            N_(
                "`largest` is taken from the scores in the sum and from the target's, so it cancels. You put it back "
                "once too often: {got}; it should be {expected}."
            ),
        ),
        Misconception(
            "the scores gathered",
            lambda comm, scores, target: torch.nn.functional.cross_entropy(
                comm.all_gather(scores), torch.tensor(target)
            ),
            N_(
                "The loss is right, and every rank has seen every score: with 50,000 words, 50,000 numbers for each "
                "token. Three will do. Tried on {case}, {got} bytes, and {expected} are enough."
            ),
        ),
        Misconception(
            "the largest asked for twice",
            _asked_twice,
            N_(
                "The loss is right, and `largest` is asked for twice: `vocab_parallel_cross_entropy` finds it itself. "
                "Tried on {case}, you send {got} bytes, and {expected} are enough."
            ),
        ),
        Misconception(
            "the target's rank alone, the largest put back",
            lambda comm, scores, target: _put_back(comm, scores, lambda largest: _raw(comm, scores, target)),
            _NOT_SUMMED,
        ),
        Misconception(
            "the largest taken by each rank",
            lambda comm, scores, target: _put_back(
                comm, scores, lambda largest: largest + comm.all_reduce(_raw(comm, scores, target) - largest)
            ),
            N_(
                "Every rank takes `largest` away, also those that do not have the target, and the sum adds up all of "
                "that. Tried on {case}, it gives {got}; it should be {expected}. What these give is 0."
            ),
        ),
        Misconception(
            "a list of one",
            lambda comm, scores, target: surprise(comm, scores, target)[None],
            N_("The loss is right, as {got}. One number is needed, not a list of one: `scores[local]` is a number."),
        ),
        Misconception(
            "the target's rank alone",
            _surprise_with(_sum, _score, lambda comm, chosen: chosen),
            _NOT_SUMMED,
        ),
        Misconception(
            "the largest again",
            _surprise_with(_sum, _score, lambda comm, chosen: comm.all_reduce(chosen, op="max")),
            N_(
                "The others give 0, and the target's score less the largest is at most 0: the larger of the two is 0. "
                "Tried on {case}, it gives {got}; it should be {expected}. Add."
            ),
        ),
    ),
)


# Rounding or bug

DISTANCES: dict[str, tuple[float, float]] = {
    "A": (3e-7, 4e-16),
    "B": (2e-3, 2e-3),
    "C": (5e-5, 9e-14),
    "D": (2e-7, 2e-7),
}
"""Of four programs: how far the loss is from one device's in float32 and in float64, as the notebook shows it."""


VERDICT = YesNoExercise(
    id="10b-verdict",
    variable="bug",
    answer=lambda: [int(double > single / 1000) for single, double in DISTANCES.values()],
    ask="A, B, C, D: 1 for a bug, 0 for rounding",
    hole="[..., ..., ..., ...]",
    right=N_(
        "Rounding shrinks with the precision, by nine digits here: A and C. What stays is none, however small it is: B,"
        " and D, where something is computed in float32 still, or left out."
    ),
    hint_sentences=(
        N_("float64 has nine digits more than float32. What does rounding do when you change to it?"),
        N_("Look along each row: which distance shrinks by many digits, and which stays?"),
    ),
    misconceptions=(
        Misconception(
            "small is harmless",
            [0, 1, 0, 0],
            N_(
                "B, yes. D is as small as A, but it does not shrink in float64: that is no rounding of float64. "
                "Something there is still float32, or a small term is missing."
            ),
        ),
        Misconception(
            "large is a bug",
            [0, 1, 1, 0],
            N_(
                "C is larger than A in float32, and shrinks by nine digits all the same: a longer sum, or larger "
                "numbers. D is small and does not shrink at all."
            ),
        ),
        Misconception(
            "all but A",
            [0, 1, 1, 1],
            N_("B and D, yes. C shrinks by nine digits in float64: its sums are longer than A's, and it is rounding."),
        ),
        Misconception(
            "any difference",
            [1, 1, 1, 1],
            N_(
                "Then no two GPUs could ever agree: sums in another order round differently. Look at what float64 does "
                "to each."
            ),
        ),
        Misconception(
            "all rounding",
            [0, 0, 0, 0],
            N_("Look at B again: float64 has nine digits more, and its distance is what it was. Rounding shrinks."),
        ),
        Misconception(
            "the other way round",
            [1, 0, 1, 0],
            N_("It is the other way round: what shrinks in float64 is rounding, and what stays is a bug."),
        ),
    ),
)

EXERCISES = (LOOK_UP, SURPRISE, VERDICT)
