"""Starts the processes of ranks: on Linux forked from one that has loaded PyTorch, which takes no time (communicators).

A process that loads PyTorch takes seconds, and so would the first run of a kernel and each run after a failure. The
template has loaded it, and nothing else: it has no threads, no process group and no GPU, which a fork would break. It
ends when whoever started it does, however that happens; and so do the ranks, whose standard input ends then.
"""

from __future__ import annotations

import gc
import json
import os
import pickle
import signal
import socket
import subprocess
import sys
import time
import traceback
from collections.abc import Mapping
from contextlib import suppress
from typing import IO, Protocol

from tpviz.i18n import _

_PATH = "import json, sys; sys.path[:] = json.loads(sys.argv.pop()); "
_RANK = _PATH + "from tpviz.rank_process import main; main()"
_TEMPLATE = _PATH + "from tpviz.forking import fork_on_demand; fork_on_demand()"
_LOOK_SECONDS = 0.01

_template: _Template | None = None


class Process(Protocol):
    """What is used of ``subprocess.Popen``."""

    stdin: IO[bytes] | None
    stdout: IO[bytes] | None

    def poll(self) -> int | None:
        """Return the exit status, or None while the process lives."""

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end; return the exit status, or raise ``subprocess.TimeoutExpired``."""

    def kill(self) -> None:
        """End the process at once."""


def start_rank(folder: str, errors: IO[bytes], environment: Mapping[str, str]) -> Process:
    """Start the process of a rank, which writes its errors to a file; it obeys what comes on its standard input."""
    global _template
    if sys.platform != "linux":
        return subprocess.Popen(
            [sys.executable, "-c", _RANK, folder, json.dumps(sys.path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            env=environment,
            # An interrupt of the kernel is the kernel's: it ends the ranks itself.
            start_new_session=os.name == "posix",
            creationflags=getattr(subprocess, "CREATE_NEW_PROCESS_GROUP", 0),
        )
    if _template is None or not _template.is_alive():
        _template = _Template()
    return _template.fork(folder, errors, environment)


def end_template() -> None:
    """End the process from which ranks are forked."""
    global _template
    template, _template = _template, None
    if template is not None:
        template.end()


class _Template:
    """The process from which ranks are forked."""

    def __init__(self) -> None:
        self._socket, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with its:
            self._process = subprocess.Popen(
                [sys.executable, "-c", _TEMPLATE, str(its.fileno()), json.dumps(sys.path)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=[its.fileno()],
                start_new_session=True,
            )

    def is_alive(self) -> bool:
        """Return whether the process lives."""
        return self._process.poll() is None

    def fork(self, folder: str, errors: IO[bytes], environment: Mapping[str, str]) -> _Forked:
        """Return a new rank's process."""
        orders, its_orders = _pipe()
        its_replies, replies = _pipe()
        try:
            socket.send_fds(self._socket, [b"fork"], [orders.fileno(), replies.fileno(), errors.fileno()])
            pid = int(self._answer())
        finally:
            orders.close()
            replies.close()
        pickle.dump((folder, dict(environment)), its_orders)
        its_orders.flush()
        return _Forked(self, pid, its_orders, its_replies)

    def status(self, pid: int) -> int | None:
        """Return the exit status of a rank's process, or None while it lives."""
        try:
            self._socket.send(b"%d" % pid)
            return json.loads(self._answer())  # type: ignore[no-any-return]
        except OSError:
            return -signal.SIGKILL  # it died with the template: by itself neither ever does

    def _answer(self) -> bytes:
        answer = self._socket.recv(64)
        if not answer:
            raise ConnectionError(_("the process from which ranks are forked is gone; the next run starts a new one."))
        return answer

    def end(self) -> None:
        """End the process."""
        self._socket.close()
        self._process.wait()


class _Forked:
    """A rank's process that the template has forked."""

    def __init__(self, template: _Template, pid: int, stdin: IO[bytes], stdout: IO[bytes]) -> None:
        self.stdin: IO[bytes] | None = stdin
        self.stdout: IO[bytes] | None = stdout
        self._template = template
        self._pid = pid
        self._status: int | None = None

    def poll(self) -> int | None:
        if self._status is None:
            self._status = self._template.status(self._pid)
        return self._status

    def wait(self, timeout: float | None = None) -> int:
        deadline = None if timeout is None else time.monotonic() + timeout
        while (status := self.poll()) is None:
            if deadline is not None and time.monotonic() > deadline:
                raise subprocess.TimeoutExpired(f"rank process {self._pid}", timeout or 0)
            time.sleep(_LOOK_SECONDS)
        return status

    def kill(self) -> None:
        if self.poll() is None:  # until its status was asked for, no other process gets its number
            with suppress(ProcessLookupError):
                os.kill(self._pid, signal.SIGKILL)


def _pipe() -> tuple[IO[bytes], IO[bytes]]:
    """Return the end of a pipe to read from, and the one to write to."""
    source, sink = os.pipe()
    return os.fdopen(source, "rb"), os.fdopen(sink, "wb")


# In the template


def fork_on_demand() -> None:
    """Load what a rank needs; then fork, and say how ranks have ended, until nobody can ask any more."""
    import tpviz.rank_process  # noqa: F401

    gc.freeze()  # what is loaded stays shared by all processes
    asked = socket.socket(fileno=int(sys.argv[1]))
    while True:
        request, given, *_others = socket.recv_fds(asked, 64, 3)
        if not request:
            os._exit(0)
        if request != b"fork":
            pid, status = os.waitpid(int(request), os.WNOHANG)
            asked.send(json.dumps(os.waitstatus_to_exitcode(status) if pid else None).encode())
            continue
        pid = os.fork()
        if pid == 0:
            asked.close()
            _become_rank(given)
        for number in given:
            os.close(number)
        asked.send(b"%d" % pid)


def _become_rank(given: list[int]) -> None:
    """In the forked process: be what a new one for a rank would be, to the end."""
    try:
        os.setsid()
        for standard, number in enumerate(given):
            os.dup2(number, standard)
            os.close(number)
        folder, environment = pickle.load(sys.stdin.buffer)
        os.environ.clear()
        os.environ.update(environment)
        sys.argv[1:] = [folder]
        from tpviz.rank_process import main

        main()
    except EOFError:  # whoever asked for it is gone
        os._exit(0)
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(1)
