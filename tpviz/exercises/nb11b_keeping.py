# mypy: allow-untyped-defs, allow-untyped-calls
"""The exercises of notebook 11b, what a rank keeps (checks): halves counted, bytes kept, the gradient's norm."""

import torch

import tpviz
from tpviz.exercises.amounts import AmountExercise
from tpviz.exercises.inputs import W2, X4, W, dY4
from tpviz.exercises.pattern import Misconception, ValueExercise
from tpviz.i18n import N_
from tpviz.transformers import Transformer, activation_parts

# The halves that four conventions send

CONVENTIONS = ((False, False), (True, True), (False, True), (True, False))
"""Whether X comes by rows, and whether Y leaves by rows."""
_HALVES = {"all_reduce": 2, "all_gather": 1, "reduce_scatter": 1}


def _mlp(comm, rows_in, rows_out):
    x = (tpviz.shard(X4, 0, comm) if rows_in else X4.clone()).requires_grad_()
    whole = tpviz.gather_from_region(x, comm, 0, "sharded") if rows_in else tpviz.copy_to_region(x, comm)
    partial = torch.relu(whole @ tpviz.shard(W, 1, comm)) @ tpviz.shard(W2, 0, comm)
    leave = tpviz.reduce_scatter_to_region if rows_out else tpviz.reduce_from_region
    dY = dY4[:, :4]
    leave(partial, comm).backward(tpviz.shard(dY, 0, comm) if rows_out else dY)


def _counts() -> list[int]:
    traces = [tpviz.run(_mlp, ranks=2, args=rows).trace for rows in CONVENTIONS]
    return [sum(_HALVES[event.kind] for event in trace) for trace in traces]


HALVES = ValueExercise(
    id="11b-halves",
    variable="halves",
    answer=_counts,
    ask="whole → whole, rows → rows, whole → rows, rows → whole",
    hole="[4, ..., ..., ...]",
    right=N_(
        "Each time a half for X and one for Y, forward and backward. The layouts decide where the halves stand, not "
        "how many there are."
    ),
    hint_sentences=(
        N_("X by rows: forward gathers it. What must backward do with the contributions to dX?"),
        N_("Y leaves by rows: forward sums and scatters. dY comes by rows, too: what does the row layer need of it?"),
        N_(
            "X whole: dX is an AllReduce in backward, two halves. Y whole: an AllReduce in forward. Add up each "
            "convention, both ways."
        ),
    ),
    misconceptions=(
        Misconception(
            "AllReduce counted once",
            [2, 4, 3, 3],
            N_("You counted collectives. An AllReduce is two halves: count it twice."),
        ),
        Misconception(
            "AllReduce counted once, but in the first",
            [4, 4, 3, 3],
            N_(
                "The first two are right. In each of the others one of the three collectives is an AllReduce, and that "
                "is two halves."
            ),
        ),
        Misconception(
            "forward alone, but in the first",
            [4, 2, 1, 3],
            N_("The first counts both ways; your other three count forward alone. What does backward send?"),
        ),
        Misconception("forward alone", [2, 2, 1, 3], N_("That is forward alone. What does backward send?")),
        Misconception("backward alone", [2, 2, 3, 1], N_("That is backward alone. What does forward send?")),
        Misconception(
            "an AllReduce for every cut",
            [4, 8, 6, 6],
            N_(
                "You counted every collective as an AllReduce. Where rows come or leave, it is one half: an AllGather "
                "or a ReduceScatter."
            ),
        ),
        Misconception(
            "nothing sent for rows",
            [4, 0, 2, 2],
            N_(
                "You counted nothing where the rows are cut. But a column layer wants all rows of X, and a row layer "
                "leaves partial sums of all rows: an AllGather in front, a ReduceScatter behind."
            ),
        ),
        Misconception(
            "the way back forgotten",
            [4, 2, 3, 3],
            N_(
                "The AllReduces are right, two halves each. Where X comes or Y leaves by rows you counted forward "
                "alone. Each half has its mirror in backward: where forward gathers, backward sums and scatters, and "
                "where forward scatters, backward gathers."
            ),
        ),
        Misconception(
            "the side that is whole forgotten",
            [4, 4, 2, 2],
            N_(
                "rows → rows is right. In the other two you counted the side by rows, and the side that is whole has "
                "its AllReduce, two halves: X whole, dX is a sum over the ranks, in backward; Y whole, Y is one, in "
                "forward."
            ),
        ),
        Misconception(
            "two each",
            [4, 2, 2, 2],
            N_(
                "By rows there is a half in forward and its mirror in backward, for X as for Y. Where X or Y is whole, "
                "there is an AllReduce, two halves: for Y in forward, for X in backward."
            ),
        ),
    ),
)


# What a rank keeps


def _kept() -> list[float]:
    """Bytes for each of the s·b·h entries, on 8 ranks, without the scores."""
    model = Transformer(hidden=16, heads=8, layers=1, sequence=8)
    entries = model.sequence * model.hidden
    return [float(sum(activation_parts(model, 1, 8, by_rows, "selective")) / entries) for by_rows in (False, True)]


KEPT = ValueExercise(
    id="11b-kept",
    variable="kept",
    answer=lambda: [int(number) if number.is_integer() else number for number in _kept()],
    ask="bytes an entry of X: TP, then SP",
    hole="[..., ...]",
    right=N_(
        "TP keeps 10 whole and an eighth of 24; SP an eighth of all 34. More ranks bring TP down to 10 and no further."
    ),
    hint_sentences=(
        N_("Which tensors in the table are the same on 1 rank and on 4? They would be the same on 8."),
        N_("TP: 10 stay, and 24 are divided by 8. And with sequence parallel, which of the two is divided?"),
    ),
    misconceptions=(
        Misconception(
            "all divided by TP",
            [4.25, 4.25],
            N_(
                "34/8 is right for SP. Plain TP does not divide what stands in front of the column layers and behind "
                "the row layers: all rows of it are on every rank."
            ),
        ),
        Misconception(
            "nothing divided by TP",
            [34, 4.25],
            N_("SP is right. TP divides something, too: what is between its column layer and its row layer."),
        ),
        Misconception(
            "nothing divided", [34, 34], N_("That is what one rank alone keeps. See what the table divides by 4.")
        ),
        Misconception(
            "the parts swapped",
            [25.25, 4.25],
            N_("That is 24 + 10/8: the other way round. Which tensors in the table are the same on 4 ranks as on 1?"),
        ),
        Misconception(
            "SP for TP's part",
            [13, 25.25],
            N_("TP is right. SP comes on top of TP: the 24 stay divided, and the 10 are divided, too."),
        ),
        Misconception(
            "the 10 gone",
            [13, 3],
            N_("TP is right. SP divides the 10 by 8; it does not do away with them."),
        ),
        Misconception(
            "SP changes nothing", [13, 13], N_("TP is right. With SP a rank keeps an eighth of the 10, too.")
        ),
        Misconception(
            "X kept whole",
            [13, 7.75],
            N_(
                "That is SP with X kept: all rows of the two column layers' X, 4 bytes, on every rank. Here they are "
                "gathered again."
            ),
        ),
        Misconception(
            "SP on 4 ranks", [13, 8.5], N_("TP is right. 8.5 is what SP keeps on 4 ranks; the question is about 8.")
        ),
        Misconception(
            "SP on 4 ranks, X kept",
            [13, 11.5],
            N_(
                "TP is right. 11.5 is what SP keeps on 4 ranks, with X kept; the question is about 8, with X gathered "
                "again."
            ),
        ),
        Misconception("rounded up", [13, 4.3], N_("TP is right, and so is SP, but rounded: not one decimal, two.")),
        Misconception("rounded down", [13, 4.2], N_("TP is right, and so is SP, but cut short: not one decimal, two.")),
        Misconception("on 4 ranks", [16, 8.5], N_("That is right on 4 ranks. The question is about 8.")),
        Misconception(
            "in the other order", [4.25, 13], N_("Both numbers are right, in the other order: first TP, then SP.")
        ),
    ),
)


# The gradient's norm


def _once() -> float:
    def program(comm):
        own = torch.tensor([3.0, 4.0])[comm.rank]
        return (comm.all_reduce(own**2) + 12**2).sqrt()

    return float(tpviz.run(program).outputs[0])


NORM = AmountExercise(
    id="11b-norm",
    variable="norm",
    answer=lambda: int(_once()),
    ask="of the whole model's gradient",
    right=N_("√(3² + 4² + 12²). The shards are different parameters, the 12 is one and the same: it counts once."),
    hint_sentences=(
        N_("Write down the gradient of the whole model, as one rank alone would have it. How many numbers has it?"),
        N_("The model has three parameters, with gradients 3, 4 and 12."),
    ),
    misconceptions=(
        Misconception(
            "the replicated one counted twice",
            313**0.5,
            N_(
                "That is √(3² + 12² + 4² + 12²): each rank added up all that it has, and the ranks' sums were added. "
                "The 12 is in it twice. On 8 ranks it would be in it 8 times, and clipping would cut the more, the more"
                " ranks there are."
            ),
        ),
        Misconception(
            "rank 0 alone",
            153**0.5,
            N_("That is √(3² + 12²), what rank 0 has. Rank 1 would clip by another number, and copies would part."),
        ),
        Misconception(
            "rank 1 alone",
            160**0.5,
            N_("That is √(4² + 12²), what rank 1 has. Rank 0 would clip by another number, and copies would part."),
        ),
        Misconception(
            "shards alone",
            5,
            N_("That is √(3² + 4²), the shards alone. The replicated parameter is one of the model's, too: once."),
        ),
        Misconception(
            "the sum over ranks done again",
            601**0.5,
            N_("That is √(3² + 4² + 24²). You added the gain's gradient over the ranks again; 12 is the sum already."),
        ),
        Misconception("not rooted", 169, N_("That is the sum of the squares. The norm is its root.")),
        Misconception("added", 19, N_("A norm adds squares, and takes the root of the sum.")),
        Misconception(
            "the norms added",
            153**0.5 + 160**0.5,
            N_(
                "You added the two ranks' norms. Squares can be added up over the ranks, roots cannot; and the 12 is "
                "in both."
            ),
        ),
        Misconception(
            "the replicated one averaged",
            61**0.5,
            N_(
                "That is √(3² + 4² + 6²). The 12 is after the sum over the ranks: it is the gradient, and no share of "
                "it to be halved."
            ),
        ),
    ),
)

EXERCISES = (HALVES, KEPT, NORM)
