"""``python -m tpviz module:function``: runs a rank program from the command line, also under torchrun (run).

    python -m tpviz my_module:program --ranks 2 --backend gloo
    torchrun --nproc-per-node 2 -m tpviz my_module:program
    torchrun --nnodes 2 --node-rank 0 --rdzv-endpoint host:29400 --nproc-per-node 8 -m tpviz my_module:program

The program is a function ``program(comm) -> value``; the module is looked for in the working directory too. What the
ranks returned and the table of what they sent are printed once, by rank 0.
"""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Callable
from typing import Any

from tpviz.i18n import _
from tpviz.launched import is_launched
from tpviz.running import BACKENDS, run


def main(arguments: list[str] | None = None) -> None:
    """Run the program that the command line names."""
    parser = argparse.ArgumentParser(
        prog="python -m tpviz", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("program", metavar="module:function")
    parser.add_argument("--ranks", type=int, help="the number of ranks: 2, or the launcher's")
    parser.add_argument("--backend", choices=BACKENDS, default="auto")
    given = parser.parse_args(arguments)
    try:
        program = _program(given.program)
    except ValueError as error:
        parser.error(str(error))
    done = run(program, ranks=given.ranks, backend=given.backend)
    if is_launched() and not _is_first():
        return
    for rank, output in enumerate(done.outputs):
        print(_("rank {rank}: {error}").format(rank=rank, error=output))
    print(done)
    print(done.trace)


def _program(name: str) -> Callable[..., Any]:
    """Return the function that ``module:function`` names."""
    module, colon, function = name.partition(":")
    if not (module and colon and function):
        raise ValueError(_("{name!r}: expected module:function, such as my_module:program.").format(name=name))
    if "" not in sys.path:
        sys.path.insert(0, "")
    try:
        found = getattr(importlib.import_module(module), function, None)
    except ModuleNotFoundError as error:
        if error.name != module:  # a module that this one imports
            raise
        raise ValueError(_("no module {module!r} in this folder or on Python's path.").format(module=module)) from None
    if not callable(found):
        raise ValueError(_("module {module!r} has no function {function!r}.").format(module=module, function=function))
    return found  # type: ignore[no-any-return]


def _is_first() -> bool:
    import torch.distributed as dist

    return not dist.is_initialized() or dist.get_rank() == 0


if __name__ == "__main__":
    main()
