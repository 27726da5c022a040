"""Ranks that torchrun has started, on one node and on two: the same outputs and trace as simulated, errors that end."""

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

import tpviz
from tpviz.example import W1, W2, X

PROGRAMS = """
import os, sys
import torch, tpviz
from tpviz.example import W1, W2, X

def mlp(comm):
    x = X.clone().requires_grad_()
    w1, w2 = tpviz.shard(W1, 1, comm).requires_grad_(), tpviz.shard(W2, 0, comm).requires_grad_()
    z = tpviz.reduce_from_region(torch.relu(tpviz.copy_to_region(x, comm) @ w1) @ w2, comm)
    z.backward(X - 1)
    return z, x.grad, w1.grad, w2.grad

def mesh(comm):
    row, column = comm.split(comm.rank // 2), comm.split(comm.rank % 2)
    return row.all_reduce(X + comm.rank), column.all_gather(X * comm.rank)

def raises(comm):
    if comm.rank == 1:
        return {}["weight"]
    return comm.all_reduce(X)

def stays_away(comm):
    return comm.all_reduce(X) if comm.rank else None

def differs(comm):
    return comm.all_reduce(torch.ones(300, 400 + comm.rank))

def unsendable(comm):
    return (_ for _ in ()) if comm.rank else 0

def large(comm):
    return comm.all_reduce(torch.ones(700, 900))
"""
SCRIPT = (
    PROGRAMS
    + """
import json
if __name__ == "__main__":
    found = [tpviz.run(program, backend="gloo") for program in (mlp, large, mlp)]
    run = found[-1]
    mine = int(os.environ["RANK"])
    facts = [run.trace.to_json(), [output is not None for output in run.outputs], run.outputs[mine][0].tolist()]
    with open(f"{sys.argv[1]}/{mine}", "w") as file:
        json.dump(facts, file)
"""
)
SECONDS = 60


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "programs.py").write_text(PROGRAMS)
    (tmp_path / "script.py").write_text(SCRIPT)
    return tmp_path


def launched(folder, *arguments, prefix=()):
    """Start torchrun; its processes end with it."""
    command = [*prefix, sys.executable, "-m", "torch.distributed.run", *arguments]
    paths = {"PYTHONPATH": str(Path(tpviz.__file__).parents[1]), "OMP_NUM_THREADS": "1", "LC_ALL": "C"}
    return subprocess.Popen(
        command,
        cwd=folder,
        env={**os.environ, **paths},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def torchrun(folder, *arguments, nproc=2):
    start = time.monotonic()
    process = launched(folder, "--standalone", f"--nproc-per-node={nproc}", *arguments)
    try:
        said, _none = process.communicate(timeout=SECONDS)
    finally:
        process.kill()
    return process.returncode, said, time.monotonic() - start


def simulated():
    def program(comm):
        x = X.clone().requires_grad_()
        w1, w2 = tpviz.shard(W1, 1, comm).requires_grad_(), tpviz.shard(W2, 0, comm).requires_grad_()
        z = tpviz.reduce_from_region(torch.relu(tpviz.copy_to_region(x, comm) @ w1) @ w2, comm)
        z.backward(X - 1)
        return z

    return tpviz.run(program)


def check_files(folder, ranks=2):
    expected = json.loads(simulated().trace.to_json())
    for rank in range(ranks):
        trace, has_output, z = json.loads((folder / str(rank)).read_text())
        events = json.loads(trace)
        assert {event.pop("source") for event in events} == {"script.py:9"}
        assert events == [{name: value for name, value in event.items() if name != "source"} for event in expected]
        assert has_output == [rank in (0, other) for other in range(ranks)]
        assert torch.equal(torch.tensor(z), torch.relu(X @ W1) @ W2)


def test_a_script(folder):
    code, said, _seconds = torchrun(folder, "script.py", str(folder))
    assert code == 0, said
    check_files(folder)


def test_a_world_that_the_script_has_made_itself(folder):
    script = folder / "script.py"
    own = "import torch.distributed as dist\n    dist.init_process_group('gloo')\n    found"
    text = SCRIPT.replace("    found =", f"    {own} =") + "    dist.barrier()\n    dist.destroy_process_group()\n"
    script.write_text(text)
    code, said, _seconds = torchrun(folder, "script.py", str(folder))
    assert code == 0, said
    check_files(folder)


def test_a_program_of_a_module(folder):
    code, said, _seconds = torchrun(folder, "-m", "tpviz", "programs:mesh", "--backend=gloo", nproc=4)
    assert code == 0, said
    assert "Run on 4 ranks (gloo), 4 collectives" in said
    assert said.count("Run on") == 1
    assert "rank 3: " in said
    without = subprocess.run(
        [sys.executable, "-m", "tpviz", "programs:mesh", "--ranks=4", "--backend=simulated"],
        capture_output=True, text=True, cwd=folder, check=True,
    )  # fmt: skip
    assert without.stdout.splitlines()[-5:] == said.strip().splitlines()[-5:]


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("raises", ["rank 1: KeyError: 'weight'", "rank 0: waits in all_reduce"]),
        ("stays_away", ["CollectiveMismatch", "rank 0: has returned", "rank 1: waits in all_reduce"]),
        ("differs", ["do not agree on the shape", "300×400", "300×401", "programs.py:"]),
        ("unsendable", ["rank 1: TypeError: what the program returned cannot be sent"]),
    ],
)
def test_a_failure_ends_all_ranks_with_the_reason(name, words, folder):
    code, said, seconds = torchrun(folder, "-m", "tpviz", f"programs:{name}", "--backend=gloo")
    assert code == 1, said
    assert [word for word in words if word not in said] == []
    assert seconds < 30


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("programs", "expected module:function"),
        ("nothing_here:program", "no module 'nothing_here'"),
        ("programs:nothing", "has no function 'nothing'"),
    ],
)
def test_a_program_that_is_not_there(given, words, folder):
    done = subprocess.run([sys.executable, "-m", "tpviz", given], capture_output=True, text=True, cwd=folder)
    assert done.returncode == 2
    assert words in done.stderr


def test_ranks_must_be_the_launchers(folder):
    code, said, _seconds = torchrun(folder, "-m", "tpviz", "programs:mlp", "--backend=gloo", "--ranks=4")
    assert code == 1
    assert "ranks=4, but the launcher has started 2 processes" in said


ROOT = Path(__file__).parents[1]
EXAMPLES = [
    ["examples.two_layers:program", "--ranks=4", "--backend=gloo"],
    ["examples.two_layers:program", "--ranks=8"],
]


@pytest.mark.parametrize("arguments", EXAMPLES, ids=" ".join)
def test_the_example_of_two_layers(arguments):
    done = subprocess.run([sys.executable, "-m", "tpviz", *arguments], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    assert "2 collectives" in done.stdout
    dense = X.clone().requires_grad_()
    (torch.relu(dense @ W1) @ W2).square().sum().backward()
    assert done.stdout.count(repr(dense.grad).splitlines()[0]) == int(arguments[1][-1])


def test_the_example_of_a_watched_plan_on_real_ranks_and_on_pretended_ones():
    pretended = subprocess.run([sys.executable, "examples/watch_a_plan.py"], capture_output=True, text=True, cwd=ROOT)
    code, real, _seconds = torchrun(ROOT, "examples/watch_a_plan.py")
    assert (pretended.returncode, code) == (0, 0)
    assert "4 × all_gather + 4 × all_reduce" in real
    assert real.strip() == pretended.stdout.strip().replace("8 ranks", "2 ranks")


def free_port():
    import socket

    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


def two_nodes(folder, address, prefixes):
    script = ["script.py", str(folder)]
    endpoint = f"--rdzv-endpoint={address}:{free_port()}"
    common = ["--nnodes=2", "--nproc-per-node=1", "--rdzv-backend=c10d", "--rdzv-id=tpviz", endpoint]
    nodes = [
        launched(folder, *common, f"--rdzv-conf=is_host={int(first)}", f"--local-addr={own}", *script, prefix=prefix)
        for first, (prefix, own) in zip((True, False), prefixes, strict=True)
    ]
    try:
        said = [node.communicate(timeout=SECONDS)[0] for node in nodes]
    finally:
        for node in nodes:
            node.kill()
    assert [node.returncode for node in nodes] == [0, 0], said
    check_files(folder)


def test_two_nodes(folder):
    two_nodes(folder, "127.0.0.1", [((), "127.0.0.1")] * 2)


def run_quietly(*command):
    return subprocess.run(command, capture_output=True).returncode == 0


@pytest.fixture
def namespaces():
    """Two network namespaces, each with an end of one cable, where this machine allows them."""
    names = [f"tpviz-{os.getpid()}-{number}" for number in (1, 2)]
    ends = [f"tpv{os.getpid() % 100000}{letter}" for letter in "ab"]
    if shutil.which("ip") is None or not all(run_quietly("ip", "netns", "add", name) for name in names):
        for name in names:
            run_quietly("ip", "netns", "del", name)
        pytest.skip("this machine allows no network namespaces")
    try:
        steps = [["ip", "link", "add", ends[0], "type", "veth", "peer", "name", ends[1]]]
        for name, end, address in zip(names, ends, ("10.77.0.1", "10.77.0.2"), strict=True):
            inside = ["ip", "-n", name]
            steps += [["ip", "link", "set", end, "netns", name], [*inside, "addr", "add", f"{address}/24", "dev", end]]
            steps += [[*inside, "link", "set", end, "up"], [*inside, "link", "set", "lo", "up"]]
        if not all(run_quietly(*step) for step in steps):
            pytest.skip("this machine joins no network namespaces")
        yield [(("ip", "netns", "exec", name), end) for name, end in zip(names, ends, strict=True)]
    finally:
        for name in names:
            run_quietly("ip", "netns", "del", name)


def test_two_nodes_in_two_network_namespaces(folder, namespaces):
    prefixes = [
        ((*prefix, "env", f"GLOO_SOCKET_IFNAME={end}"), address)
        for (prefix, end), address in zip(namespaces, ("10.77.0.1", "10.77.0.2"), strict=True)
    ]
    two_nodes(folder, "10.77.0.1", prefixes)
