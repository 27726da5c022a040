# mypy: allow-untyped-defs, allow-untyped-calls
"""The exercises of notebook 04b, copy and sum are mirrors (checks). The functions are shown as they stand here."""

import torch

import tpviz
from tpviz.exercises.inputs import W, X, dY, example, integers, product
from tpviz.exercises.pattern import Case, Misconception, ProgramExercise, Remark, ValueExercise
from tpviz.i18n import N_


def _layer_cases() -> list[Case]:
    return [
        example(X, W, dY, ranks=2),
        example(X, W, dY, ranks=4),
        product(integers(2, 5), integers(5, 9), integers(2, 9, start=6), sizes=(2, 5, 9), ranks=3),
    ]


def dx_by_autograd(comm, X, W, dY):
    """dX on each rank, by autograd through the column layer."""
    X = X.clone().requires_grad_()
    Wi, dYi = tpviz.shard(W, 1, comm), tpviz.shard(dY, 1, comm)
    Yi = tpviz.copy_to_region(X, comm) @ Wi  # hole
    assert torch.equal(Yi, X @ Wi), "forward has changed"
    Yi.backward(dYi)
    return X.grad


def _by_autograd(forward):
    """The program with another forward."""

    def program(comm, X, W, dY):
        X = X.clone().requires_grad_()
        Wi, dYi = tpviz.shard(W, 1, comm), tpviz.shard(dY, 1, comm)
        Yi = forward(comm, X, Wi)
        assert torch.equal(Yi, X @ Wi), "forward has changed"
        Yi.backward(dYi)
        return X.grad

    return program


def _f(comm, x):
    return tpviz.copy_to_region(x, comm)


PLACE_F = ProgramExercise(
    id="04b-f",
    function=dx_by_autograd,
    inputs=_layer_cases,
    right=N_("f stands where one X becomes a copy for each rank: forward it does nothing, backward it adds."),
    hint_sentences=(
        N_("Where does one X become several? There the paths part, and there backward has to add."),
        N_("Yi is X @ Wi as before. Only X passes through something first."),
        N_("`tpviz.copy_to_region(X, comm)` is f applied to X."),
    ),
    misconceptions=(
        Misconception(
            "no f",
            _by_autograd(lambda comm, X, Wi: X @ Wi),
            N_(
                "Forward is right, and so is the gradient of Wi. But autograd sees one rank only: on rank {rank}, "
                "{place} of dX is {got}, this rank's contribution, and it should be {expected}. Nobody adds."
            ),
        ),
        Misconception(
            "f twice",
            _by_autograd(lambda comm, X, Wi: _f(comm, _f(comm, X)) @ Wi),
            N_(
                "f stands there twice, so backward adds twice. The first sum makes dX, the same on each rank; the "
                "second adds that up, once for each rank. Tried on {case}, {place} is {got}, and it should be "
                "{expected}."
            ),
        ),
        Misconception(
            "f behind the layer",
            _by_autograd(lambda comm, X, Wi: _f(comm, X @ Wi)),
            N_(
                "f stands behind the product, so backward adds up the ranks' dYi, before they meet Wi. Those are about "
                "different columns of Y. No shape tells: {place} is {got}, and it should be {expected}. f belongs where"
                " X is copied."
            ),
        ),
        Misconception(
            "forward changed",
            _by_autograd(lambda comm, X, Wi: tpviz.reduce_from_region(X, comm) @ Wi),
            N_(
                "Your Yi is not X @ Wi any more, and the line below the hole notices: {error}. Forward has nothing to "
                "add and nothing to gather: X is whole on each rank. What you need copies in forward, and adds in "
                "backward."
            ),
        ),
        Misconception(
            "a plain collective",
            _by_autograd(lambda comm, X, Wi: comm.all_reduce(X) @ Wi),
            N_(
                "A plain collective knows no backward, and says so: {error} Here another operator is needed, whose "
                "forward only copies."
            ),
        ),
    ),
)


def _gradient_cases() -> list[Case]:
    return [
        example(dY, ranks=2),
        example(dY, ranks=4),
        product(integers(2, 7), sizes=(2, 5, 7), ranks=3),
    ]


def backward_of_g(comm, dY):
    """The gradient of this rank's partial sum, if dY is the gradient of the sum."""
    return dY  # hole


def _ranks_differ(program):
    """The program with a dY that is another one on each rank: shows what is sent in vain."""
    return lambda comm, dY: program(comm, dY * (comm.rank + 1))


_IN_VAIN = N_("One thing: you send something, and it changes nothing, since all ranks have the same dY already.")

BACKWARD_OF_G = ProgramExercise(
    id="04b-g",
    function=backward_of_g,
    inputs=_gradient_cases,
    right=N_(
        "Y = Y0 + Y1: when an entry of Y0 grows by 1, so does Y. Each rank's gradient is dY as it is, and nothing is "
        "sent. Summed forward, copied backward."
    ),
    hint_sentences=(
        N_("Y = Y0 + Y1. If one entry of Y0 grows by 1, by how much does that entry of Y grow?"),
        N_("Each rank already has dY. What is left to do?"),
    ),
    misconceptions=(
        Misconception(
            "summed",
            lambda comm, dY: comm.all_reduce(dY),
            N_(
                "You added in backward too. All ranks have the same dY, so the sum is as many times too large as there "
                "are ranks: tried on {case}, {place} is {got}, and it should be {expected}. It is right where each rank"
                " has a loss of its own and all losses are added up; here the loss counts once."
            ),
        ),
        Misconception(
            "divided",
            lambda comm, dY: dY / comm.world_size,
            N_(
                "You divided dY among the ranks. But a step of 1 in any rank's share moves Y by a whole step, not by a "
                "part of it: {place} is {got}, and it should be {expected}."
            ),
        ),
        Misconception(
            "rank 0 only",
            lambda comm, dY: dY if comm.rank == 0 else torch.zeros_like(dY),
            N_(
                "That the loss counts once does not mean that one rank has it. Rank {rank}'s share moves Y as much as "
                "rank 0's: {place} is {got}, and it should be {expected}."
            ),
        ),
        Misconception(
            "own columns",
            lambda comm, dY: tpviz.shard(dY, 1, comm),
            N_(
                "You cut dY, which gives {got_shape}. Each rank's share of Y is as large as Y, so its gradient is too: "
                "{expected_shape}."
            ),
        ),
        Misconception(
            "gathered",
            lambda comm, dY: comm.all_gather(dY),
            N_(
                "You put the ranks' dY side by side, {got_shape}. They are all the same dY, and the gradient of a "
                "rank's share is as large as the share: {expected_shape}."
            ),
        ),
    ),
    remarks=(
        Remark("mean", lambda comm, dY: comm.all_reduce(dY, op="mean"), _IN_VAIN, probe=_ranks_differ),
        Remark("broadcast", lambda comm, dY: comm.broadcast(dY), _IN_VAIN, probe=_ranks_differ),
    ),
)


def _factor(ranks: int) -> int:
    """How many times too large dX is with f twice."""
    twice = _by_autograd(lambda comm, X, Wi: _f(comm, _f(comm, X)) @ Wi)
    wrong, right = (tpviz.run(program, ranks, args=(X, W, dY)).outputs[0] for program in (twice, dx_by_autograd))
    factor = int(wrong[0, 0] / right[0, 0])
    assert torch.equal(wrong, factor * right)
    return factor


F_TWICE = ValueExercise(
    id="04b-twice",
    variable="factors",
    answer=lambda: [_factor(2), _factor(4)],
    ask="on 2 ranks, on 4 ranks",
    hole="[..., ...]",
    right=N_("The first sum makes dX, on each rank. The second adds n tensors that are all dX: n times dX."),
    hint_sentences=(
        N_("After the first sum each rank has dX, and it is right. What does a second sum add up?"),
        N_("On 2 ranks the second sum is dX + dX. On 4 ranks it is?"),
    ),
    misconceptions=(
        Misconception(
            "no effect",
            [1, 1],
            N_(
                "You say that a second sum does no harm once the ranks agree. A mean would do none. A sum of equal "
                "tensors is a multiple of them."
            ),
        ),
        Misconception(
            "twice",
            [2, 2],
            N_(
                "Right on 2 ranks, where twice and once for each rank are the same number. On 4 ranks the second sum "
                "has 4 terms, each of them dX."
            ),
        ),
        Misconception(
            "both sums",
            [4, 16],
            N_(
                "You counted the factor n for each of the two sums. The first sum adds different contributions, and "
                "makes dX itself, not n times dX. Only the second adds equal things."
            ),
        ),
        Misconception(
            "twice n",
            [4, 8],
            N_(
                "You took 2n: n for the ranks, and 2 for the two sums. The first sum makes dX itself, and the second n "
                "times that."
            ),
        ),
    ),
)


def _by_convention(consumer: str) -> list[int]:
    """dL/dx on each of two ranks, for y = all_reduce((rank + 1) · x) and L = y."""

    def program(comm):
        x = torch.tensor(1.0, requires_grad=True)
        y = tpviz.reduce_from_region((comm.rank + 1) * x, comm, consumer)
        y.backward()
        return x.grad

    return [int(gradient) for gradient in tpviz.run(program, ranks=2).outputs]


CONVENTION = ValueExercise(
    id="04b-convention",
    variable="gradients",
    answer=lambda: [_by_convention("replicated"), _by_convention("sharded")],
    ask="loss counts once: rank 0, rank 1; once per rank: rank 0, rank 1",
    hole="[[..., ...], [..., ...]]",
    right=N_(
        "Counted once, L = y, and rank r's x moves it by r + 1. Counted once per rank, there are two such losses, and x"
        " moves both: twice as much. Both are right, for different losses."
    ),
    hint_sentences=(
        N_("y = 1 · x of rank 0 + 2 · x of rank 1. If rank 1's x grows by 1, by how much does y grow?"),
        N_("Once per rank: rank 0 has a loss y, rank 1 has a loss y, and both count. In which of them is rank 0's x?"),
    ),
    misconceptions=(
        Misconception(
            "swapped",
            [[2, 4], [1, 2]],
            N_(
                "You have the two the wrong way round. Counted once, one y is to be differentiated; counted once per "
                "rank, there are two, and each x is in both."
            ),
        ),
        Misconception(
            "always once",
            [[1, 2], [1, 2]],
            N_(
                "[1, 2] is right for a loss that counts once. If each rank's loss counts, rank 0's x is in rank 0's "
                "loss and in rank 1's, since y went to both."
            ),
        ),
        Misconception(
            "always per rank",
            [[2, 4], [2, 4]],
            N_(
                "[2, 4] is right if each rank's loss counts. If the loss counts once, the y on rank 1 is a copy of the "
                "y on rank 0, not a second loss."
            ),
        ),
        Misconception(
            "one x",
            [[3, 3], [6, 6]],
            N_(
                "You added over the ranks, as if both had one x. y = 1 · x of rank 0 + 2 · x of rank 1: two variables, "
                "each with its own gradient."
            ),
        ),
        Misconception(
            "one x, once",
            [[3, 3], [3, 3]],
            N_(
                "You added over the ranks, as if both had one x. Each rank has its own: y = 1 · x of rank 0 + 2 · x of "
                "rank 1. And if each rank's loss counts, each x is in two losses."
            ),
        ),
        Misconception(
            "only one rank doubled",
            [[1, 2], [2, 2]],
            N_("If each rank's loss counts, each x is in both losses, so both gradients double, 1 to 2 and 2 to 4."),
        ),
        Misconception(
            "summed too late",
            [[1, 2], [3, 3]],
            N_(
                "Counted once per rank, you added 1 and 2 over the ranks. What backward adds is the gradient of y, "
                "1 + 1 = 2, on each rank. Then it passes through the rank's own factor, 1 or 2."
            ),
        ),
        Misconception(
            "without the factor",
            [[1, 1], [2, 2]],
            N_(
                "That is the gradient of what each rank brings to the sum. On rank 1 that is 2 · x, so x's own gradient"
                " is twice as large."
            ),
        ),
        Misconception(
            "halved",
            [[0.5, 1], [1, 2]],
            N_(
                "You divided a loss that counts once among the two ranks. When rank 1's x grows by 1, y grows by 2, and"
                " so does the loss."
            ),
        ),
    ),
)

EXERCISES = (PLACE_F, BACKWARD_OF_G, F_TWICE, CONVENTION)
