"""Training on ranks is training on one device: losses, norms, parameters and the optimizer's state, step by step."""

import runpy
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from tpviz import corpus
from tpviz.checkpoints import Checkpoint
from tpviz.dense import DenseTransformer
from tpviz.progress import portions
from tpviz.training import STEPS_A_RUN, TINY, Recipe, complete, train, train_dense

ROOT = Path(__file__).resolve().parent.parent
STEPS = 24
TOLERANCE = 1e-9
PLAIN = replace(TINY, dtype=torch.float64)
CONFIGS = {
    "plain": PLAIN,
    "rows": replace(PLAIN, sequence_parallel=True, bias=True),
    "rows, gathered again": replace(PLAIN, sequence_parallel=True, keep_gathered=False),
    "Llama, rows": replace(
        PLAIN, gated=True, norm="rms", kv_heads=2, ffn_hidden=96, bias=False, tied=False, sequence_parallel=True
    ),
}


def furthest(one, other):
    return max(abs(mine - theirs) for mine, theirs in zip(one, other, strict=True))


def same_state(one: Checkpoint, other: Checkpoint):
    assert one.step == other.step
    assert one.parameters.keys() == other.parameters.keys() == one.optimizer.keys() == other.optimizer.keys()
    for name, value in one.parameters.items():
        if name.endswith("qkv.bias"):  # K's third has no gradient but rounding, and Adam makes steps of it
            continue
        assert torch.allclose(value, other.parameters[name], rtol=0, atol=TOLERANCE), name
        mine, theirs = one.optimizer[name], other.optimizer[name]
        assert mine.keys() == theirs.keys() == {"step", "exp_avg", "exp_avg_sq"}
        for key, moment in mine.items():
            assert torch.allclose(moment, theirs[key], rtol=0, atol=TOLERANCE), (name, key)


@pytest.fixture(scope="module")
def dense():
    return {name: train_dense(Recipe(config), STEPS) for name, config in CONFIGS.items()}


@pytest.mark.parametrize("ranks", [1, 2, 4])
@pytest.mark.parametrize("name", CONFIGS)
def test_ranks_train_as_one_device_does(name, ranks, dense):
    found = train(Recipe(CONFIGS[name]), STEPS, ranks)
    assert furthest(found.losses, dense[name].losses) < TOLERANCE
    assert furthest(found.norms, dense[name].norms) < TOLERANCE
    same_state(found.checkpoint, dense[name].checkpoint)


@pytest.mark.parametrize("name", ["plain", "rows"])
def test_processes_train_as_one_device_does(name, dense):
    found = train(Recipe(CONFIGS[name]), STEPS, 2, "gloo")
    assert furthest(found.losses, dense[name].losses) < TOLERANCE
    same_state(found.checkpoint, dense[name].checkpoint)


def test_it_learns(dense):
    losses = dense["plain"].losses
    assert sum(losses[-4:]) / 4 < losses[0] - 1


def test_any_number_of_ranks_goes_on_from_a_file(tmp_path, dense):
    """Two ranks, then four, then processes, then one device."""
    recipe, losses, point = Recipe(CONFIGS["plain"]), [], Recipe(CONFIGS["plain"]).start()
    ways = [{"ranks": 2}, {"ranks": 4}, {"ranks": 2, "backend": "gloo"}, None]
    for way in ways:
        steps = STEPS // len(ways)
        done = train_dense(recipe, steps, point) if way is None else train(recipe, steps, start=point, **way)
        losses += done.losses
        done.checkpoint.save(tmp_path / "checkpoint.pt")
        point = Checkpoint.load(tmp_path / "checkpoint.pt")
    assert furthest(losses, dense["plain"].losses) < TOLERANCE
    same_state(point, dense["plain"].checkpoint)


def test_without_the_optimizers_state_it_goes_another_way(dense):
    recipe = Recipe(CONFIGS["plain"])
    half = train(recipe, STEPS // 2, 2)
    forgetful = replace(half.checkpoint, optimizer={})
    again = train(recipe, STEPS // 2, 2, start=forgetful)
    assert furthest(half.losses + again.losses, dense["plain"].losses) > 1e-3


def test_a_checkpoint_of_another_model_is_refused():
    start = Recipe(replace(PLAIN, layers=1)).start()
    with pytest.raises(Exception, match=r"lacks layers\.1\.attention\.projection\.weight"):
        train(Recipe(PLAIN), 1, start=start)


def test_float32_is_as_far_from_float64_on_ranks_as_on_one_device(dense):
    recipe = Recipe(TINY)
    one, two = (
        furthest(each.losses, dense["plain"].losses) for each in (train_dense(recipe, STEPS), train(recipe, STEPS))
    )
    assert 0 < one < 1e-5
    assert 0 < two < 4 * one


def test_both_precisions_start_from_the_same_numbers():
    single, double = (Recipe(config).start().parameters for config in (TINY, PLAIN))
    for name, value in single.items():
        assert value.dtype == torch.float32
        assert double[name].dtype == torch.float64
        assert torch.equal(value.double(), double[name])


def test_a_training_leaves_torchs_stream_alone():
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    recipe = Recipe(PLAIN)
    recipe.start()
    train(recipe, 1)
    assert torch.equal(torch.rand(3), expected)


def test_the_trace_is_of_the_first_run():
    trace = train(Recipe(PLAIN), STEPS_A_RUN + 1).trace
    forward = [event for event in trace if event.phase == "forward"]
    backward = [event for event in trace if event.phase == "backward"]
    norms = [event for event in trace if event.phase == "gradients"]
    # Forward an embedding's, 2 a layer, 2 of the loss; backward one of the output layer, 2 a layer.
    assert (len(forward), len(backward)) == (STEPS_A_RUN * (1 + 2 * 2 + 2), STEPS_A_RUN * (1 + 2 * 2))
    assert len(norms) == STEPS_A_RUN


def test_it_writes_on_after_words(dense):
    written = complete(Recipe(PLAIN), dense["plain"].checkpoint, "two ranks ", 40)
    assert written.startswith("two ranks ")
    assert len(written) == 50
    model = DenseTransformer(PLAIN)
    model.load_state_dict(dense["plain"].checkpoint.parameters)
    likeliest = model(corpus.encode("two ranks ").unsqueeze(1))[-1, 0, : len(corpus.characters())].argmax()
    assert written[10] == corpus.characters()[likeliest]


# The text


def test_windows_are_the_text_and_what_follows_it():
    words, following = corpus.batch(3, 20, 5, seed=1)
    assert words.shape == following.shape == (20, 5)
    assert torch.equal(words[1:], following[:-1])
    for window in words.T:
        assert corpus.decode(window) in corpus.text()
    assert not torch.equal(words, corpus.batch(4, 20, 5, seed=1)[0])
    assert not torch.equal(words, corpus.batch(3, 20, 5, seed=2)[0])
    assert torch.equal(words, corpus.batch(3, 20, 5, seed=1)[0])


def test_characters_have_numbers_below_the_vocabulary():
    numbers = corpus.encode(corpus.text())
    assert corpus.decode(numbers) == corpus.text()
    assert numbers.max() < len(corpus.characters()) < corpus.VOCABULARY
    with pytest.raises(ValueError, match="'QW' does not occur"):
        corpus.encode("WhoQ")


def test_the_reference_refuses_dropout():
    with pytest.raises(ValueError, match=r"dropout=0\.1: the dense reference"):
        DenseTransformer(replace(PLAIN, dropout=0.1))


# The bar


def test_portions_add_up_and_are_told():
    told = []
    assert list(portions(25, 10, lambda done, of: told.append((done, of)))) == [10, 10, 5]
    assert told == [(10, 25), (20, 25), (25, 25)]


def test_a_terminals_bar_is_gone_at_the_end(monkeypatch, capsys):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    list(portions(20, 10, None))
    shown = capsys.readouterr().err.split("\r")
    assert any("10/20" in line for line in shown)
    assert shown[-2].strip() == shown[-1] == ""


def test_without_a_terminal_there_is_none(capsys):
    list(portions(20, 10, None))
    assert capsys.readouterr() == ("", "")


# The script


def test_the_script_compares_all_ways(tmp_path):
    command = [sys.executable, "examples/train_tiny.py", "--steps", "12", "--chart", str(tmp_path / "losses.svg")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count(": yes") == 3
    assert (tmp_path / "losses.svg").read_text().startswith("<svg")


def test_the_script_runs_under_torchrun():
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "examples/train_tiny.py"]
    done = subprocess.run([*command, "--steps", "4"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("torchrun's 2 ranks") == 2  # one rank speaks: float64 and float32
    assert done.stdout.count(": yes") == 2


def test_the_script_finds_what_is_no_rounding(monkeypatch, capsys):
    script = runpy.run_path(str(ROOT / "examples/train_tiny.py"))
    real = script["train"]

    def wrong(*args, **options):
        found = real(*args, **options)
        return found._replace(losses=[loss + 1e-8 for loss in found.losses])

    names = script["main"].__globals__
    monkeypatch.setitem(names, "train", wrong)
    monkeypatch.setitem(names, "ways", lambda: [names["Way"]("2 simulated ranks", 2, "simulated")])
    monkeypatch.setattr(sys, "argv", ["train_tiny.py", "--steps", "2"])
    assert script["main"]() == 1
    assert "within 1e-09 of one device's: NO" in capsys.readouterr().out
