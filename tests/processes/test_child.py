"""Child processes: how they begin, what they write, and that none is left."""

import asyncio
import gc
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
import uvloop

from offhook.processes.child_io import LINE_BYTES, Child, ChildFailed, until_silent
from tests.support.processes import gone
from tests.support.waiting import HANGS_S, until
from tests.web.workers.workers import ROOT

LOOPS = (asyncio.run, uvloop.run)
on_both_loops = pytest.mark.parametrize("run", LOOPS, ids=("asyncio", "uvloop"))
Run = Callable[[Coroutine[Any, Any, None]], None]
FOR_EVER = "import time; time.sleep(3600)"
HAS_A_CHILD = f"""
import subprocess, sys
child = subprocess.Popen([sys.executable, "-S", "-c", {FOR_EVER!r}])
print(child.pid, flush=True)
"""


def python(script: str, **options: Any) -> Child:
    return Child((sys.executable, "-S", "-c", script), **options)


def line_of(child: Child) -> bytes:
    """Blocks."""
    assert child.stdout is not None
    line = b""
    while not line.endswith(b"\n"):
        line += child.stdout.read(1)
    return line


# --- the end of its parent ---

PARENT = f"""
import os, signal, subprocess, sys, threading, time
from offhook.processes.child_io import Child
FOR_EVER = {FOR_EVER!r}
HUNG_IN_ORDER = "import sys; sys.path[:] = " + repr(sys.path) + '''
from offhook.processes.child_io import end_with_input
end_with_input(0.2)
while True:
    pass
'''

def start(script, **options):
    started.append(Child((sys.executable, "-c", script), **options))

started = []
start(FOR_EVER)
start(FOR_EVER, stdin=subprocess.PIPE)
os.kill(started[-1].pid, signal.SIGSTOP)
start(HUNG_IN_ORDER, stdin=subprocess.PIPE, ends_in_order=True)
thread = threading.Thread(target=start, args=(FOR_EVER,))
thread.start()
thread.join()
time.sleep(0.3)
print(*(child.pid for child in started if child.poll() is None), flush=True)
time.sleep(3600)
"""


async def test_nothing_is_left_when_the_parent_is_killed() -> None:
    """Not a child that is stopped, one that hangs, and one whose thread has ended before."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with Child((sys.executable, "-c", PARENT), stdout=subprocess.PIPE, env=environment) as parent:
        pids = [int(pid) for pid in line_of(parent).split()]
        assert len(pids) == 4
        os.kill(parent.pid, signal.SIGKILL)
    await until(lambda: all(map(gone, pids)))


async def test_whoever_is_left_of_its_group_ends_with_it() -> None:
    child = python(HAS_A_CHILD, stdout=subprocess.PIPE)
    grandchild = int(line_of(child))
    await child.until_ended()  # though the grandchild has its output open
    assert child.how_ended == "ended with status 0"
    await until(lambda: gone(grandchild))
    await child.end()


@on_both_loops
def test_a_child_that_does_not_end_is_killed_with_its_group(run: Run) -> None:
    async def scene() -> None:
        stubborn = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        child = python(
            stubborn + HAS_A_CHILD + FOR_EVER, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        writer = await child.writer()
        grandchild = int(await (await child.reader(child.stdout)).readline())
        writer.close()
        child.terminate()
        assert not await child.ends_within(0.1)
        await child.end(0.1)
        assert child.poll() == -signal.SIGKILL
        assert child.how_ended.startswith("was killed by signal 9")
        await until(lambda: gone(grandchild))

    run(scene())


@pytest.mark.parametrize(
    ("script", "how"),
    [
        ("raise SystemExit(3)", "ended with status 3"),
        ("import os; os.kill(os.getpid(), 11)", "was killed by signal 11 (SIGSEGV)"),
        ("import os; os.kill(os.getpid(), 40)", "was killed by signal 40 (of no name)"),
    ],
)
async def test_how_it_has_ended_is_said_in_words(script: str, how: str) -> None:
    child = python(script)
    await child.until_ended()
    assert child.how_ended == how


async def test_without_a_word_of_the_kernel_it_is_looked_whether_it_has_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delattr(os, "pidfd_open", raising=False)
    child = python("raise SystemExit(3)")
    await child.until_ended()
    assert child.poll() == 3


async def test_a_command_that_does_not_exist_is_an_error() -> None:
    for start in (lambda: Child(("/nonexistent",)), in_a_thread):
        with pytest.raises(FileNotFoundError):
            start()


def in_a_thread() -> None:
    errors: list[OSError] = []

    def start() -> None:
        try:
            Child(("/nonexistent",))
        except OSError as error:
            errors.append(error)

    thread = threading.Thread(target=start)
    thread.start()
    thread.join(HANGS_S)
    raise errors[0]


# --- its beginning ---


async def test_a_child_that_never_becomes_ready_is_an_error_in_time() -> None:
    child = python(FOR_EVER)
    with pytest.raises(ChildFailed, match=r"^was not ready within 0.1 s$"):
        await child.until_ready(asyncio.Event().wait(), 0.1)
    await child.end()


async def test_one_that_ends_before_it_is_ready_says_how() -> None:
    child = python("raise SystemExit(3)")
    with pytest.raises(ChildFailed, match=r"^ended with status 3 before it was ready$"):
        await child.until_ready(asyncio.Event().wait(), HANGS_S)


async def test_one_that_is_ready_goes_on() -> None:
    child = python("print('ready', flush=True)\n" + FOR_EVER, stdout=subprocess.PIPE)
    reader = await child.reader(child.stdout)
    await child.until_ready(reader.readline(), HANGS_S)
    assert child.poll() is None
    await child.end()


ANSWERS = (
    f"import sys; sys.path[:] = {sys.path!r}"
    + """
import os, subprocess
from offhook.processes.child_io import inherited_sockets
first, second = inherited_sockets()
assert inherited_sockets() == []
first.accept()[0].send(b"first")
second.accept()[0].send(b"second")
"""
)


def test_sockets_that_listen_are_inherited_and_lose_no_connection() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as one,
        socket.create_server(("127.0.0.1", 0)) as other,
    ):
        waiting = [socket.create_connection(each.getsockname()) for each in (one, other)]
        with Child((sys.executable, "-c", ANSWERS), sockets=(one, other)) as child:
            for connection in waiting:
                connection.settimeout(HANGS_S)
            assert [connection.recv(99) for connection in waiting] == [b"first", b"second"]
            assert child.wait(HANGS_S) == 0
        for connection in waiting:
            connection.close()


# --- its input and output ---


async def test_its_input_is_open_as_long_as_it_runs() -> None:
    child = python("import sys; sys.exit(len(sys.stdin.read()))", stdin=subprocess.PIPE)
    (await child.writer()).write(b"four")
    gc.collect()
    assert not await child.ends_within(0.3)
    child._writer.close()
    await child.until_ended()
    assert child.how_ended == "ended with status 4"


WRITES = f"""
import sys
for number in range(int(sys.argv[1]) // 1000):
    sys.stderr.write("a line\\n" * 1000)
sys.stderr.write("x" * {4 * LINE_BYTES} + "\\n")
sys.stderr.write("last\\n")
"""


@pytest.mark.parametrize("lines", [20_000, pytest.param(1_000_000, marks=pytest.mark.slow)])
@on_both_loops
def test_a_million_lines_hold_up_nobody(run: Run, lines: int) -> None:
    async def scene() -> None:
        child = Child((sys.executable, "-c", WRITES, str(lines)), stderr=subprocess.PIPE)
        turns = read = most = longest = 0
        reading = True

        async def take_turns() -> None:
            nonlocal turns, most
            before = 0
            while reading:
                turns, most, before = turns + 1, max(most, read - before), read
                await asyncio.sleep(0)

        others = asyncio.create_task(take_turns())
        async for line in child.error_lines():
            read += 1
            longest = max(longest, len(line))
        reading = False
        await others
        assert line == b"last\n"
        assert read >= lines
        assert longest <= LINE_BYTES
        assert most <= 2  # lines between two turns of another task
        await child.end()

    run(scene())


# --- whether it is alive ---


async def test_a_child_is_silent_when_its_beats_cease_and_not_before_they_begin() -> None:
    beats = 0
    waiting = asyncio.create_task(until_silent(lambda: beats, 0.01, 3))
    await asyncio.sleep(0.1)
    assert not waiting.done()  # it loads
    for _ in range(10):
        beats += 1
        await asyncio.sleep(0.015)
        assert not waiting.done()
    await asyncio.wait_for(waiting, HANGS_S)


def test_a_child_is_in_no_group_of_the_terminal() -> None:
    with python(FOR_EVER) as child:
        assert os.getpgid(child.pid) == os.getsid(child.pid) == child.pid
        assert Path(f"/proc/{child.pid}/fd/0").readlink() == Path(os.devnull)
        child.kill()
