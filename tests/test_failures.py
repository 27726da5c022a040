"""Failures of real ranks as they are in life: one clear error within seconds, nothing left behind, the next run fine.

``pytest tests/test_failures.py --rounds 20`` makes each of them so many times in a row.
"""

import contextlib
import os
import random
import signal
import sys
import tempfile
import threading
import time
from pathlib import Path

import psutil
import pytest
import torch
from jupyter_client.manager import start_new_kernel
from test_mismatch import crossing

import tpviz
from tpviz import CollectiveMismatch, RankError

X = 100 * torch.arange(12.0).reshape(3, 4) + 1
SECONDS = 15
"""Within which an error must have come, with the start of new processes, on a busy machine."""


def rank_processes(of=None):
    """Return the rank processes that this process, or another, has started."""
    return [child for child in psutil.Process(of).children(recursive=True) if runs(child) == "rank"]


def templates(of=None):
    """Return the processes from which it has ranks forked."""
    return [child for child in psutil.Process(of).children() if runs(child) == "template"]


def runs(process):
    """What of tpviz a process runs: a forked rank has its template's command line."""
    with contextlib.suppress(psutil.Error):
        words = " ".join(process.cmdline())
        if "tpviz.rank_process" in words:
            return "rank"
        if "fork_on_demand" in words:
            return "rank" if "fork_on_demand" in " ".join(process.parent().cmdline()) else "template"
    return None


def folders():
    return set(Path(tempfile.gettempdir()).glob("tpviz-*"))


@pytest.fixture(autouse=True, scope="module")
def nothing_is_left(tmp_path_factory):
    tpviz.shutdown()
    threads = threading.active_count()
    own = str(tmp_path_factory.mktemp("temporary"))  # other programs on this machine may have ranks, too
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tempfile, "tempdir", own)
        patch.setenv("TMPDIR", own)
        yield
        tpviz.shutdown()
        assert folders() == set()
    assert rank_processes() == templates() == []
    assert threading.active_count() <= threads


def works(backend="gloo"):
    run = tpviz.run(lambda comm: comm.all_reduce(X.to(comm.device)), backend=backend)
    assert all(torch.equal(output, 2 * X) for output in run.outputs)


def fails(program, error=RankError, backend="gloo"):
    """Run a program that must fail; return the message, and the error."""
    works(backend)
    start = time.monotonic()
    with pytest.raises(error) as caught:
        tpviz.run(program, backend=backend)
    assert time.monotonic() - start < SECONDS
    assert rank_processes() == []
    works(backend)
    return str(caught.value), caught.value


def test_a_rank_raises(round_):
    def program(comm):
        if comm.rank == 1:
            return 1 // 0
        return comm.all_reduce(X)

    text, error = fails(program)
    assert text.startswith("rank 1: ZeroDivisionError: integer division or modulo by zero")
    assert "rank 0: waits in all_reduce" in text
    assert error.rank == 1
    assert isinstance(error.__cause__, ZeroDivisionError)
    assert isinstance(error, CollectiveMismatch)
    assert "return 1 // 0" in error.__cause__.__notes__[0]


def test_a_program_that_calls_itself_without_end():
    def program(comm):
        return program(comm)

    text, error = fails(program)
    assert text.startswith("rank 0: RecursionError")
    assert len(error.__cause__.__notes__[0].splitlines()) <= 22


def held_up(stopped, held):
    """Stop some of the ranks' processes now and then, as a busy machine does, for longer than a look takes."""
    chance = random.Random(0)
    while not stopped.wait(chance.uniform(0, 0.05)):
        ranks = rank_processes()
        some = chance.sample(ranks, chance.randint(0, len(ranks)))
        for suspend in (True, False):
            for process in some:
                with contextlib.suppress(psutil.Error):
                    process.suspend() if suspend else process.resume()
            time.sleep(chance.uniform(0.1, 0.6) if suspend else 0)
        held.extend(some)


def errands(comm):
    """Collectives, a group's too, and what two ranks send each other; some ranks are done before others."""
    x = X + comm.rank
    after, before = (comm.rank + 1) % comm.world_size, (comm.rank - 1) % comm.world_size
    found = [comm.sendrecv(x, after, before), comm.all_reduce(x), comm.split(comm.rank % 2).all_gather(x)]
    if comm.rank == 0:
        comm.send(x, 1)
    return [*found, comm.recv(0)] if comm.rank == 1 else found


def test_ranks_that_a_busy_machine_holds_up(round_):
    expected = tpviz.run(errands, ranks=4)
    stopped, held = threading.Event(), []
    thread = threading.Thread(target=held_up, args=(stopped, held))
    thread.start()
    try:
        for _time in range(4):
            run = tpviz.run(errands, ranks=4, backend="gloo")
            assert list(run.trace) == list(expected.trace)
            for mine, its in zip(run.outputs, expected.outputs, strict=True):
                assert all(map(torch.equal, mine, its))
    finally:
        stopped.set()
        thread.join()
    assert held


def test_a_rank_raises_while_another_computes(round_):
    def program(comm):
        if comm.rank == 1:
            raise KeyError("weight")
        while True:
            torch.ones(100, 100).sum()

    text, _error = fails(program)
    assert "rank 1: KeyError: 'weight'" in text
    assert "rank 0: was still at work, and was stopped" in text


def test_a_rank_is_killed(round_):
    def program(comm):
        comm.barrier()
        if comm.rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        return comm.all_reduce(X)

    text, error = fails(program)
    assert "rank 1: its process was killed (SIGKILL)" in text
    assert "rank 0: waits in all_reduce" in text
    assert error.rank == 1


@pytest.mark.parametrize("way", ["sys.exit", "os._exit"])
def test_a_rank_exits(way, round_):
    def program(comm):
        if comm.rank == 0:
            sys.exit(3) if way == "sys.exit" else os._exit(3)
        return comm.all_reduce(X)

    text, _error = fails(program)
    assert text.startswith("rank 0: SystemExit: 3" if way == "sys.exit" else "rank 0: its process ended")
    assert "3" in text


@pytest.mark.parametrize("where", ["collective", "program"])
def test_an_interrupt(where, round_):
    def program(comm):
        if where == "collective":
            if comm.rank == 0:
                comm.all_reduce(X)
            time.sleep(1000)
        while True:
            torch.ones(10).sum()

    works()
    # Who starts the tests in the background may have had interrupts ignored.
    handler = signal.signal(signal.SIGINT, signal.default_int_handler)
    start = time.monotonic()
    timer = threading.Timer(1, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        tpviz.run(program, backend="gloo")
    timer.join()
    signal.signal(signal.SIGINT, handler)
    assert time.monotonic() - start < SECONDS
    assert rank_processes() == []
    works()


@pytest.mark.filterwarnings("ignore::tpviz.CallSiteWarning")
def test_mismatched_collectives(round_):
    fails(lambda comm: comm.all_reduce(X) if comm.rank else comm.all_gather(X), CollectiveMismatch)
    fails(lambda comm: comm.all_reduce(torch.ones(3, 4 + comm.rank)), CollectiveMismatch)
    fails(lambda comm: comm.all_reduce(torch.ones(300, 400 + comm.rank)), CollectiveMismatch)
    text, _error = fails(crossing, CollectiveMismatch)
    assert "opposite order" in text


def test_a_rank_that_stays_away(round_):
    text, _error = fails(lambda comm: comm.all_reduce(X) if comm.rank else None, CollectiveMismatch)
    assert "rank 0: has returned" in text
    assert "rank 1: waits in all_reduce" in text


def test_results_and_arguments_that_do_not_pickle(round_):
    lock = threading.Lock()

    def uses(comm):
        return lock.locked()

    works()
    processes = rank_processes()
    with pytest.raises(TypeError, match="lock cannot be sent"):
        tpviz.run(uses, backend="gloo")
    with pytest.raises(TypeError, match="args cannot be sent"):
        tpviz.run(lambda comm, x: x, backend="gloo", args=(lock,))
    assert len(processes) == 2
    text, _error = fails(lambda comm: threading.Lock() if comm.rank else comm.world_size)
    assert text.startswith("rank 1: TypeError: what the program returned cannot be sent")


class Stubborn(Exception):
    def __init__(self, one, two):
        super().__init__(f"{one} and {two}")


def test_an_exception_that_does_not_survive_being_sent(round_):
    def program(comm):
        raise Stubborn("this", "that")

    text, _error = fails(program)
    assert text.startswith("rank 0: Stubborn: this and that")


@pytest.mark.skipif(sys.platform != "linux", reason="ranks are forked on Linux only")
def test_ranks_are_forked_from_one_process_that_may_be_killed():
    works()
    (template,) = templates()
    fails(lambda comm: 1 // 0)
    assert templates() == [template], "it outlives the ranks"
    template.kill()
    vanish([template])
    works()
    assert templates() != [template]
    assert len(rank_processes()) == 2


def test_ranks_see_the_environment_of_the_moment_in_which_they_start(monkeypatch):
    tpviz.shutdown()
    for value in ("one", "two"):
        monkeypatch.setenv("TPVIZ_TEST", value)
        assert tpviz.run(lambda comm: os.environ["TPVIZ_TEST"], backend="gloo").outputs == [value, value]
        with pytest.raises(RankError):
            tpviz.run(lambda comm: 1 // 0, backend="gloo")


def test_a_result_of_a_gigabyte():
    run = tpviz.run(lambda comm: torch.full((1 << 27,), float(comm.rank)) if comm.rank else 0, backend="gloo")
    assert run.outputs[1].nbytes == 1 << 29
    del run
    run = tpviz.run(lambda comm: torch.ones(1 << 30, dtype=torch.uint8) if comm.rank else 0, backend="gloo")
    assert run.outputs[1].nbytes == 1 << 30
    assert bool(run.outputs[1][-1] == 1)


def test_what_ranks_print_is_shown_with_their_number(capfd):
    def program(comm):
        print("one", end=" ")
        print("line")
        print(f"I am {comm.rank}", file=sys.stderr)
        sys.stdout.write("no end of line")
        os.write(1, b"not shown\n")

    tpviz.run(program, backend="gloo")
    shown = capfd.readouterr()
    assert shown.out == "".join(f"rank {rank}: one line\nrank {rank}: no end of line\n" for rank in (0, 1))
    assert shown.err == "rank 0: I am 0\nrank 1: I am 1\n"


def test_what_a_rank_printed_before_it_failed_is_shown(capsys):
    def program(comm):
        print("before")
        raise ValueError

    with pytest.raises(RankError):
        tpviz.run(program, backend="gloo")
    assert capsys.readouterr().out == "rank 0: before\nrank 1: before\n"


# In a kernel

CELL = """
import tpviz, torch
from tpviz.example import X
print(tpviz.run(lambda comm: comm.all_reduce(X), backend="gloo"))
"""
HANGS = """
def program(comm):
    import time
    time.sleep(1000) if comm.rank else comm.all_reduce(X)
tpviz.run(program, backend="gloo")
"""


class Kernel:
    def __init__(self):
        self.manager, self.client = start_new_kernel(kernel_name="python3")
        self.pid = self.manager.provisioner.process.pid

    def run(self, cell):
        said = []

        def hear(message):
            content = message["content"]
            said.append(content.get("text") or content.get("ename") or "")

        self.client.execute_interactive(cell, output_hook=hear, timeout=60)
        return "".join(said)

    def ranks(self):
        return rank_processes(self.pid)

    def end(self):
        self.client.stop_channels()
        if self.manager.is_alive():
            self.manager.shutdown_kernel(now=True)


@pytest.fixture
def kernels():
    made = []

    def make():
        made.append(Kernel())
        return made[-1]

    yield make
    for kernel in made:
        kernel.end()


def vanish(processes):
    _gone, left = psutil.wait_procs(processes, timeout=SECONDS)
    return left == []


def test_the_cell_run_twice_and_two_kernels_at_once(kernels):
    one, two = kernels(), kernels()
    for kernel in (one, two, one, two):
        assert kernel.run(CELL) == "Run on 2 ranks (gloo), 1 collective\n"
    assert len(one.ranks()) == len(two.ranks()) == 2


def test_an_interrupt_of_the_kernel(kernels):
    kernel = kernels()
    kernel.run(CELL)
    before = kernel.ranks()
    timer = threading.Timer(1, kernel.manager.interrupt_kernel)
    timer.start()
    assert "KeyboardInterrupt" in kernel.run(HANGS)
    assert vanish(before)
    assert kernel.ranks() == []
    assert "1 collective" in kernel.run(CELL)


@pytest.mark.parametrize("busy", [False, True], ids=["idle", "busy"])
@pytest.mark.parametrize("end", ["kill", "shutdown"])
def test_a_kernel_that_ends_leaves_nothing(end, busy, kernels):
    tpviz.shutdown()
    kernel = kernels()
    kernel.run(CELL)
    ranks = kernel.ranks()
    assert len(ranks) == 2
    if busy:
        kernel.client.execute(HANGS)
        time.sleep(1)
    if end == "kill":
        os.kill(kernel.pid, signal.SIGKILL)
    else:
        kernel.manager.shutdown_kernel(now=busy)
    assert vanish(ranks)
    deadline = time.monotonic() + SECONDS
    while folders() and time.monotonic() < deadline:
        time.sleep(0.1)
    assert folders() == set()


# In a script


def test_a_script_needs_no_guard_and_ends(tmp_path):
    import subprocess

    script = tmp_path / "script.py"
    script.write_text(CELL + "print('end')\n")
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "Run on 2 ranks (gloo), 1 collective\nend\n"
    assert done.stderr == ""
