"""Servers and recognizers that tests start are forked from a process that has imported what they
are made of, or has loaded their model, which takes longer than most tests.

`subprocess.Popen` of their commands asks that process for a child, which becomes our own and
starts the command as Python would. Where anything else about it is unusual, it is started as
always.
"""

import ctypes
import gc
import json
import os
import runpy
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import cache, partial
from importlib import import_module
from typing import Any

from loguru import logger

from offhook.processes.child_io import _end_with
from tests.support.environment import environment

OFFHOOK = "offhook"
PYTHON = sys.executable
POCKETSPHINX = "offhook.pipeline.engines.embedded.pocketsphinx_worker"
MODULES = (
    "offhook.web.app.cli.main",
    "offhook.web.config.config",
    "offhook.web.edge.processes_io",
    "offhook.web.edge.server_io",
    "offhook.web.workers.engines.machine_io",
    "offhook.web.workers.gateway_io",
    "offhook.web.workers.worker_io",
    "offhook.web.http.logs_io",
)
"""What its commands import."""
READ_LATE = ("OFFHOOK_", "PYTEST_", "PYTHONPATH", "TMPDIR")
"""Beginnings of the names of variables that mean nothing to a module being imported."""
REQUEST_BYTES = 1 << 18
NETWORK = "/proc/thread-self/ns/net"
PR_SET_CHILD_SUBREAPER = 36
_libc = ctypes.CDLL(None)
_execute_child = subprocess.Popen._execute_child  # type: ignore[attr-defined]


class Template:
    """The process that those of a module are forked from. It ends with this one, which closes its
    socket; not with the thread that happens to need the first of them."""

    def __init__(self, module: str) -> None:
        variables = environment()
        self._variables, self._path = _read_early(variables), variables["PYTHONPATH"]
        self._network = os.readlink(NETWORK)
        self._lock = threading.Lock()
        self._ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        _libc.prctl(PR_SET_CHILD_SUBREAPER, 1)  # children of its children that have ended are ours
        with theirs:
            self._process = subprocess.Popen(
                [PYTHON, "-m", __name__, str(theirs.fileno()), module],
                env=variables,
                pass_fds=[theirs.fileno()],
            )

    def fits(self, variables: Mapping[str, str]) -> bool:
        """Returns whether a process with this environment, in the network that this thread is in,
        has what the template has."""
        if os.readlink(NETWORK) != self._network:
            return False
        if variables.get("PYTHONPATH", self._path) != self._path:
            return False  # it may find other packages
        return _read_early(variables) == self._variables

    def fork(self, request: dict[str, Any], files: Sequence[int]) -> int:
        """Returns the id of a new child of ours, with these files for standard input, output and
        error."""
        with self._lock:
            socket.send_fds(self._ours, [json.dumps(request).encode()], list(files))
            pid = int(self._ours.recv(REQUEST_BYTES))
        assert pid, "the process could not be started: what it wrote says why"
        return pid


def _read_early(variables: Mapping[str, str]) -> dict[str, str]:
    return {name: of for name, of in variables.items() if not name.startswith(READ_LATE)}


template = cache(Template)


def fork_servers() -> None:
    """Has `subprocess` start them so, for the rest of this process."""
    subprocess.Popen._execute_child = _start  # type: ignore[attr-defined]


def _start(self: Any, args: Any, executable: Any, preexec_fn: Any, *rest: Any) -> None:
    names = _execute_child.__code__.co_varnames[4 : _execute_child.__code__.co_argcount]
    of = dict(zip(names, rest, strict=True))
    variables = os.environ if of["env"] is None else of["env"]
    ends_with_us = getattr(preexec_fn, "func", None) is _end_with
    arguments = [] if isinstance(args, str) else [*map(os.fspath, args)]
    module = arguments[2] if arguments[:2] == [PYTHON, "-m"] else ""
    usual = (
        module in (OFFHOOK, POCKETSPHINX)
        and (preexec_fn is None or ends_with_us)
        and not of["pass_fds"]
        and template(module).fits(variables)
    )
    if not usual:
        _execute_child(self, args, executable, preexec_fn, *rest)
        return
    request = {
        "arguments": arguments[3:],
        "folder": os.fspath(of["cwd"] or os.getcwd()),
        "variables": dict(variables),
        "parent": os.getpid(),
        "ending": preexec_fn.args if ends_with_us else None,
        "session": of["start_new_session"],
    }
    ends = (of["p2cread"], of["c2pwrite"], of["errwrite"])
    files = [own if end == -1 else end for own, end in enumerate(ends)]
    self.pid = template(module).fork(request, files)
    self._child_created = True
    self._close_pipe_fds(*(of[n] for n in names if n[:3] in ("p2c", "c2p", "err")))


def _next(requests: socket.socket) -> dict[str, Any]:
    """Returns a request in the process that has been forked for it, and never in the template."""
    while True:
        data, files, *_ = socket.recv_fds(requests, REQUEST_BYTES, 3)
        if not data:
            sys.exit()
        if (between := os.fork()) == 0:
            if os.fork():
                os._exit(0)
            request: dict[str, Any] = json.loads(data)
            for number, file in enumerate(files):
                os.dup2(file, number)
                os.close(file)
            return request
        os.waitpid(between, 0)
        for file in files:
            os.close(file)


def _become(request: dict[str, Any], requests: socket.socket) -> None:
    """Does to this process what comes before a command's first line of Python."""
    while os.getppid() != request["parent"]:
        time.sleep(0.001)
    if request["ending"] is not None:
        _end_with(*request["ending"])
    if request["session"]:
        os.setsid()
    os.chdir(request["folder"])
    os.environ.clear()
    os.environ.update(request["variables"])
    sys.argv = ["offhook", *request["arguments"]]
    logger.add(sys.stderr)
    sys.path[0] = request["folder"]
    requests.send(str(os.getpid()).encode())
    requests.close()


def _server() -> Callable[[], object]:
    """Imports what a server is made of; returns what runs one."""
    logger.remove()  # what is logged on an import comes after a server has set up its log
    for module in MODULES:
        import_module(module)
    return partial(runpy.run_module, OFFHOOK, run_name="__main__", alter_sys=True)


def _recognizer() -> Callable[[], object]:
    """Loads a model; returns what runs a worker with it, whose further decoders load their own."""
    worker: Any = import_module(POCKETSPHINX)
    new_decoder, loaded = worker.new_decoder, [worker.new_decoder()]

    def run() -> None:
        worker.new_decoder = lambda: loaded.pop() if loaded else new_decoder()
        with suppress(BrokenPipeError):
            worker.main()

    return run


def main() -> None:
    requests = socket.socket(fileno=int(sys.argv[1]))
    run = _server() if sys.argv[2] == OFFHOOK else _recognizer()
    gc.collect()
    gc.freeze()  # its pages stay shared
    request = _next(requests)
    try:
        _become(request, requests)
    except BaseException:
        requests.send(b"0")
        raise
    run()


if __name__ == "__main__":
    main()
