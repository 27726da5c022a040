# mypy: allow-untyped-defs, allow-untyped-calls
"""The exercises of notebook 08c, this machine (checks). They work on given numbers, whatever was measured."""

from tpviz.costs import Link, collective_seconds
from tpviz.exercises.amounts import AmountExercise, AmountFunctionExercise
from tpviz.exercises.pattern import Case, Misconception
from tpviz.i18n import N_, _

LINK = Link(60e-6, 1e9)
"""What the two timings that the notebook gives were made of."""
PAYLOADS = (20_000, 120_000)


def timings() -> tuple[float, float]:
    """The microseconds of an AllReduce on 2 ranks, of each payload."""
    small, large = (1e6 * collective_seconds("all_reduce", payload, 2, LINK) for payload in PAYLOADS)
    return small, large


def _latency() -> float:
    """From the two timings, as the learner has to find it."""
    small, large = timings()
    a_byte = (large - small) / (PAYLOADS[1] - PAYLOADS[0])
    return round((small - PAYLOADS[0] * a_byte) / 2, 6)


ALPHA = AmountExercise(
    id="08c-alpha",
    variable="alpha",
    answer=_latency,
    ask="microseconds",
    right=N_(
        "100,000 bytes more take 100 µs more. So the 20,000 bytes are 20 µs, and 120 µs are left for two messages."
    ),
    hint_sentences=(
        N_("What do the 100,000 bytes cost that the second AllReduce has more?"),
        N_("Take the bytes' time from the first timing. On 2 ranks a ring has two messages, one after the other."),
    ),
    misconceptions=(
        Misconception(
            "one message",
            120,
            N_(
                "That is what is left when the bytes' time is gone. It is the latency of two messages: 2(n − 1) on n "
                "ranks."
            ),
        ),
        Misconception(
            "the smaller timing",
            140,
            N_("That is the whole first timing. Its 20,000 bytes took a part of it, and it had two messages."),
        ),
        Misconception(
            "bytes for nothing",
            70,
            N_("You halved the first timing. Its 20,000 bytes took a part of it: take that away first."),
        ),
        Misconception(
            "the difference",
            100,
            N_("That is what 100,000 bytes cost. The latency is what would be left of an AllReduce of no bytes."),
        ),
    ),
)


def speed_up(computing, sending):
    """How many times as fast 2 ranks are: seconds of one rank, seconds to send."""
    two = computing / 2 + sending  # hole
    return computing / two


def _cases() -> list[Case]:
    def case(computing: float, sending: float) -> Case:
        label = _("{computing:g} ms of computing and {sending:g} ms of sending")
        return Case((computing / 1e3, sending / 1e3), label.format(computing=computing, sending=sending))

    return [case(10, 1), case(2, 1), case(1, 2)]


def _terms(case: Case) -> str:
    computing, sending = (1e3 * seconds for seconds in case.args)
    text = _("{computing:g} ms on one rank over {half:g} + {sending:g} ms on two")
    return text.format(computing=computing, half=computing / 2, sending=sending)


SPEED_UP = AmountFunctionExercise(
    id="08c-speed-up",
    function=speed_up,
    inputs=_cases,
    shown=lambda times: _("{times:.4g} times as fast").format(times=times),
    terms=_terms,
    right=N_("Each rank computes half, and then waits for all that is sent. Above 1, two ranks pay."),
    hint_sentences=(
        N_("Each of two ranks computes half. And does each send half of what is sent?"),
        N_("Nothing overlaps: the time of two ranks is a sum."),
    ),
    misconceptions=(
        Misconception(
            "twice as fast",
            lambda computing, sending: 2.0,
            N_(
                "Twice as fast is what it would be without sending. Tried on {case}, you say {got}, and it is "
                "{expected}."
            ),
        ),
        Misconception(
            "nothing halved",
            lambda computing, sending: computing / (computing + sending),
            N_("Your two ranks compute all of it, each. Tried on {case}, you say {got}, and it is {expected}."),
        ),
        Misconception(
            "all halved",
            lambda computing, sending: computing / ((computing + sending) / 2),
            N_(
                "You halved the sending, too. Both ranks take part in each AllReduce, and both wait for all of it. "
                "Tried on {case}, you say {got}, and it is {expected}."
            ),
        ),
        Misconception(
            "hidden",
            lambda computing, sending: computing / max(computing / 2, sending),
            N_(
                "You let the sending hide behind the computing. The next operator needs the sum, so it waits. Tried on "
                "{case}, you say {got}, and it is {expected}."
            ),
        ),
    ),
)

EXERCISES = (ALPHA, SPEED_UP)
