"""Every notebook with its solutions typed in; its rank programs run on real ranks too, and what comes is compared."""

import pytest
from jupyter_client.manager import start_new_kernel

from tools import notebooks

NOTEBOOKS = sorted(notebooks.NOTEBOOKS.glob("*.ipynb"))
ON_ITS_OWN = "09"
"""It runs on gloo by itself, and shows a program that differs there on purpose."""

# In the kernel, before the first cell: every simulated run that a cell, a widget or a check makes is made on gloo's
# processes too. A failure must have the same words; what runs inside of a rank's program stays there.
BOTH = '''
import dataclasses
import sys
import warnings
import torch
import tpviz
from tpviz import running
from tpviz.simulated import _playing

compared, different = 0, []

def _close(one, other):
    """Integers are exact. What was rounded may be summed in another order: half of its digits count."""
    if torch.equal(one, other) or not one.is_floating_point() or one.shape != other.shape:
        return torch.equal(one, other)
    if bool((one == one.round()).all() and (other == other.round()).all()):
        return False
    half = torch.finfo(one.dtype).eps ** 0.5
    return torch.allclose(one, other, rtol=half, atol=half * float(other.abs().max()))

def _same(one, other):
    if isinstance(one, torch.Tensor):
        return one.dtype == other.dtype and _close(one, other)
    if isinstance(one, float) and isinstance(other, float):
        return _close(torch.tensor(one), torch.tensor(other))
    if dataclasses.is_dataclass(one):
        return type(one) is type(other) and _same(vars(one), vars(other))
    if isinstance(one, (tuple, list)):
        return len(one) == len(other) and all(map(_same, one, other))
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(_same(one[name], other[name]) for name in one)
    return one == other

def _made(backend, program, ranks, args):
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return _run(program, ranks=ranks, backend=backend, args=args)
    except Exception as error:
        return f"{type(error).__name__}: {error}"

def _both(program, ranks=None, backend="simulated", args=()):
    global compared
    if backend == "simulated" and getattr(_playing, "rank", None) is None:
        one, other = (_made(name, program, ranks, args) for name in ("simulated", "gloo"))
        same = one == other if isinstance(one, str) or isinstance(other, str) else (
            _same(one.outputs, other.outputs) and one.trace == other.trace
        )
        if not same:  # told at the end, since a check takes any error for the learner's
            different.append(f"simulated: {one}\\ngloo: {other}")
        compared += 1
        if not isinstance(one, str):
            return one
    return _run(program, ranks=ranks, backend=backend, args=args)

_run = running.run
for _module in [module for name, module in sys.modules.items() if name.partition(".")[0] == "tpviz"]:
    if getattr(_module, "run", None) is _run:
        _module.run = _both
'''
RESET = """
for _name in [_name for _name in globals() if not _name.startswith("_") and _name not in _kept]:
    del globals()[_name]
import tpviz
compared, different = 0, []
"""
REPORT = """
assert not different, different
print(compared)
"""
SECONDS = 120


class Kernel:
    """One kernel for all notebooks, and one start of the ranks' processes."""

    def __init__(self):
        self.manager, self.client = start_new_kernel(kernel_name="python3", cwd=str(NOTEBOOKS[0].parent))

    def run(self, source):
        """Run a cell; return what it prints, what its last line shows, and its error."""
        said, shown = [], []

        def hear(message):
            if message["header"]["msg_type"] == "stream":
                said.append(message["content"]["text"])
            elif message["header"]["msg_type"] == "execute_result":
                shown.append(message["content"]["data"]["text/plain"])

        reply = self.client.execute_interactive(source, output_hook=hear, timeout=SECONDS, stop_on_error=False)
        content = reply["content"]
        error = "".join(content["traceback"]) if content["status"] == "error" else ""
        return "".join(said), "".join(shown), error


@pytest.fixture(scope="module")
def kernel():
    one = Kernel()
    assert one.run(BOTH + "_kept = set(globals())") == ("", "", "")
    yield one
    one.client.stop_channels()
    one.manager.shutdown_kernel()


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_the_solutions_and_the_rank_programs_on_gloo(path, kernel):
    nb = notebooks.filled(notebooks.read(path), solved=True)
    cells = [cell for cell in nb.cells if cell.cell_type == "code"]
    kernel.run(RESET)
    for cell in cells:
        _said, answer, error = kernel.run(cell.source)
        assert bool(error) == ("raises-exception" in notebooks.tags(cell)), error
        if notebooks.tagged(cell, "exercise:") is not None:
            assert answer.startswith("✓"), answer
    if not path.stem.startswith(ON_ITS_OWN):
        said, _shown, error = kernel.run(REPORT)
        assert error == ""
        assert int(said) >= sum("tpviz.run(" in cell.source for cell in cells)
