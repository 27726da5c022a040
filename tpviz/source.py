"""Call sites: the learner's line behind a collective (part of the communicators).

A call site is a pair (file name, line number): cheap to take, comparable. ``describe`` turns it into the words that
a reader sees. A kernel's file names carry its process id and differ at every start, so a notebook's cell is named by
its execution count instead.
"""

import os
import sys
from types import CodeType
from typing import Any

import torch

Site = tuple[str, int]

_HERE = os.path.dirname(os.path.abspath(__file__)) + os.sep
_TORCH = os.path.dirname(os.path.abspath(torch.__file__)) + os.sep
_INSIDE = (_HERE, _TORCH)
_REMEMBERED = "_tpviz_raising_site"

_program_callers: set[CodeType] = set()


def calls_programs(code: CodeType) -> None:
    """Mark a function of tpviz as one that calls rank programs: the search for a call site ends at its frame."""
    _program_callers.add(code)


def call_site() -> Site:
    """Return the first frame outside of tpviz and torch, as (file name, line number).

    A program that is itself part of tpviz (an exercise's solution) has no such frame below the one that called it;
    its own frame is the answer then.
    """
    frame = sys._getframe(1)
    program: Site = (frame.f_code.co_filename, frame.f_lineno)
    while True:
        code = frame.f_code
        if not code.co_filename.startswith(_INSIDE):
            return code.co_filename, frame.f_lineno
        if code in _program_callers or frame.f_back is None:
            return program
        program = (code.co_filename, frame.f_lineno)
        frame = frame.f_back


def is_inside(file: str) -> bool:
    """Return whether a file is one of tpviz's or torch's."""
    return file.startswith(_INSIDE)


def raising_site(error: BaseException) -> Site | None:
    """Return the last line outside of tpviz and torch that an exception came from."""
    site, traceback = getattr(error, _REMEMBERED, None), error.__traceback__
    while traceback is not None:
        file = traceback.tb_frame.f_code.co_filename
        if not file.startswith(_INSIDE):
            site = (file, traceback.tb_lineno)
        traceback = traceback.tb_next
    return site


def remember_raising_site(error: BaseException, site: Site | None) -> None:
    """Let ``raising_site`` know the line of an exception that comes from another process, without its traceback."""
    setattr(error, _REMEMBERED, site)


def _cell_count(shell: Any, file: str) -> str | None:
    """Return the execution count of the cell that was compiled under this file's name; None if none was."""
    if hasattr(shell.compile, "format_code_name"):
        name = shell.compile.format_code_name(file)  # ("Cell", "In[3]")
        return None if name is None else str(name[1].removeprefix("In[").removesuffix("]"))
    # IPython 7, which Google Colab runs, keeps no such list: the latest cell that would get this name is it.
    raw, transformed = shell.history_manager.input_hist_raw, shell.history_manager.input_hist_parsed
    for count in range(len(raw) - 1, 0, -1):
        if shell.compile.get_code_name(raw[count], transformed[count], count) == file:
            return str(count)
    return None


def name_and_line(site: Site) -> Site:
    """Return the site as a reader knows it: a notebook's cell by its number, a file below here by its relative path."""
    file, line = site
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    if shell is not None:
        count = _cell_count(shell, file)
        if count is not None:
            return f"cell [{count}]", line
    return os.path.relpath(file) if file.startswith(os.getcwd() + os.sep) else file, line


def describe(site: Site) -> str:
    """Return the site in words: ``cell [3], line 2`` in a notebook, ``file:line`` elsewhere."""
    file, line = name_and_line(site)
    return f"{file}, line {line}" if file.startswith("cell [") else f"{file}:{line}"
