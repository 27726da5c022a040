"""The exercises of notebook 11b: what is said of counts and bytes, right and wrong, and that the answers speak true."""

import pytest
import torch
from answers import said_right, said_wrong

import tpviz
from tpviz import exercises
from tpviz.exercises import nb11b_keeping


@pytest.mark.parametrize(
    ("name", "answer"),
    [
        ("11b-halves", (4, 4, 4, 4)),
        ("11b-kept", (10 + 24 / 8, 34 / 8)),
        ("11b-norm", 13.0),
        ("11b-norm", torch.tensor([9, 16, 144.0]).sum().sqrt().item()),
    ],
)
def test_the_same_value_in_another_form_is_right(name, answer):
    assert said_right(name, answer) == ()


@pytest.mark.parametrize(
    ("name", "answer", "misconception", "said"),
    [
        ("11b-halves", [2, 4, 3, 3], "AllReduce counted once", "two halves: count it twice"),
        ("11b-halves", [4, 4, 3, 3], "AllReduce counted once, but in the first", "one of the three collectives"),
        ("11b-halves", [4, 2, 1, 3], "forward alone, but in the first", "your other three"),
        ("11b-halves", [2, 2, 1, 3], "forward alone", "That is forward alone"),
        ("11b-halves", [2, 2, 3, 1], "backward alone", "That is backward alone"),
        ("11b-halves", [4, 8, 6, 6], "an AllReduce for every cut", "it is one half"),
        ("11b-halves", [4, 0, 2, 2], "nothing sent for rows", "a ReduceScatter behind"),
        ("11b-halves", [4, 2, 3, 3], "the way back forgotten", "its mirror"),
        ("11b-halves", [4, 2, 3, 3], "the way back forgotten", "The AllReduces are right"),
        ("11b-halves", [4, 4, 2, 2], "the side that is whole forgotten", "rows → rows is right"),
        ("11b-halves", [4, 2, 2, 2], "two each", "for Y in forward, for X in backward"),
        ("11b-halves", [4, 5, 6, 7], None, "It is not [4, 5, 6, 7]."),
        ("11b-kept", [4.25, 4.25], "all divided by TP", "34/8 is right for SP"),
        ("11b-kept", [34, 4.25], "nothing divided by TP", "SP is right"),
        ("11b-kept", [34, 34], "nothing divided", "one rank alone"),
        ("11b-kept", [25.25, 4.25], "the parts swapped", "24 + 10/8"),
        ("11b-kept", [13, 25.25], "SP for TP's part", "on top of TP"),
        ("11b-kept", [13, 3], "the 10 gone", "does not do away"),
        ("11b-kept", [13, 13.0], "SP changes nothing", "an eighth of the 10"),
        ("11b-kept", [13, 7.75], "X kept whole", "4 bytes, on every rank"),
        ("11b-kept", [13, 8.5], "SP on 4 ranks", "TP is right"),
        ("11b-kept", [13, 11.5], "SP on 4 ranks, X kept", "with X gathered again"),
        ("11b-kept", [13, 4.3], "rounded up", "not one decimal, two"),
        ("11b-kept", [13, 4.2], "rounded down", "not one decimal, two"),
        ("11b-kept", [16, 8.5], "on 4 ranks", "right on 4 ranks"),
        ("11b-kept", [4.25, 13], "in the other order", "first TP, then SP"),
        ("11b-kept", [1, 2], None, "It is not [1, 2]."),
        ("11b-norm", 17.69, "the replicated one counted twice", "The 12 is in it twice"),
        ("11b-norm", 12.37, "rank 0 alone", "what rank 0 has"),
        ("11b-norm", 12.65, "rank 1 alone", "what rank 1 has"),
        ("11b-norm", 5, "shards alone", "the shards alone"),
        ("11b-norm", 169, "not rooted", "its root"),
        ("11b-norm", 19, "added", "adds squares"),
        ("11b-norm", 25.02, "the norms added", "roots cannot"),
        ("11b-norm", 7.81, "the replicated one averaged", "no share of it"),
        ("11b-norm", 24.5, "the sum over ranks done again", "12 is the sum already"),
        ("11b-norm", "13", None, "without quotes"),
    ],
)
def test_what_is_said_of_a_value(name, answer, misconception, said):
    found, text = said_wrong(name, answer)
    assert (found, said in text) == (misconception, True), text


def test_the_wrong_counts_of_halves_are_what_the_runs_say_of_a_phase_or_of_collectives():
    """Counted of the runs, so that the sentences name the mistake that makes the number."""
    stored = {each.name: each.code for each in exercises.get("11b-halves").misconceptions}
    traces = [tpviz.run(nb11b_keeping._mlp, ranks=4, args=rows).trace for rows in nb11b_keeping.CONVENTIONS]
    for phase in ("forward", "backward"):
        events = [[event for event in trace if event.phase == phase] for trace in traces]
        counted = [sum(1 + (event.kind == "all_reduce") for event in some) for some in events]
        assert stored[f"{phase} alone"] == counted
    assert stored["AllReduce counted once"] == [len(trace) for trace in traces]
    assert stored["an AllReduce for every cut"][1:] == [2 * len(trace) for trace in traces[1:]]
