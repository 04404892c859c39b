"""Runs a worker as a child process of the server, started and stopped on demand.

The server listens on a Unix socket in a private folder; the child inherits the socket and accepts.
Edges can connect at any time: connections made while there is no child, or while it loads, wait in
the socket's queue, which also triggers the start. All edge processes of a server share the child.

The child's side is `worker_child_io`.
"""

import asyncio
import json
import math
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
from collections import deque
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import replace
from itertools import product
from pathlib import Path

from loguru import logger

from offhook.pipeline.engines.shared.capacity import ALONE, SHARED
from offhook.pipeline.speech.engine_spec import KINDS, Kind
from offhook.pipeline.speech.engines import has_trait, stand_in
from offhook.pipeline.speech.errors import EngineError
from offhook.pipeline.speech.remote.worker_list_io import UNIX
from offhook.processes.child_io import Child, until_silent
from offhook.processes.restarts import Backoff, Restarts
from offhook.web.config.config import Config, ConfigError
from offhook.web.config.engines import ALL, AUTO, AUTOMATIC, SMALL, Asr, Tts
from offhook.web.http.listening_io import BACKLOG
from offhook.web.workers.engines.abilities_io import faults_of, meanwhile
from offhook.web.workers.engines.choice import AutoWorker, Choice, choice_for
from offhook.web.workers.engines.engines_io import (
    at_hand,
    check_engine,
    is_embedded,
    own_python,
    with_usual_model,
)
from offhook.web.workers.engines.machine_io import gpus, is_cached, look
from offhook.web.workers.worker_child_io import (
    FAILED,
    HEARTBEAT,
    HEARTBEAT_S,
    UNREACHABLE,
    ChildSettings,
)
from offhook.web.workers.worker_io import BROKEN

RESTART_S = 0.1
"""Delay in s before a crashed child is restarted; doubled by each crash of the last
CRASH_WINDOW_S."""
MAX_CRASHES = 4
"""Crashes within CRASH_WINDOW_S that disable the child: for GIVEN_UP_S its connections are refused
with the reason."""
CRASH_WINDOW_S = 300.0
"""Period in s in which MAX_CRASHES crashes, or one permanent error, disable the child."""
GIVEN_UP_S = 60.0
"""Time in s for which connections are then rejected; afterwards the child is started once more."""
AUTO_RETRY_S = 10.0
"""Time in s for which a child of an engine of `auto` stays disabled, as something always waits for
it; doubled by each failure up to AUTO_RETRY_MAX_S."""
AUTO_RETRY_MAX_S = 600.0
"""Maximum time in s for which a child of an engine of `auto` stays disabled; then it is started
again."""
END_S = 5.0
"""Time limit in s for the child to exit when asked; then it is killed."""
MAX_MISSED_BEATS = 6
"""Missed heartbeats after which a loaded child counts as hung and is killed."""
LAST_WORDS = 5
"""Last lines of the child's output, kept for the error message."""
SOURCE_LINE = re.compile(r"^\S+\.(?:cc|h):\w+:\d+ ")
"""Where in its source a library is, before what it says."""
MAX_REQUEST_BYTES = 1 << 16
"""Maximum bytes of a request that are read before it is refused, so that the client gets the
answer; the connection of a longer one may be reset."""
REQUEST_TIMEOUT_S = 1.0
"""Time limit in s for the request of a connection that is refused; then it is closed unanswered."""
REJECTED = (
    b"HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\n"
    b"Connection: close\r\nContent-Length: %d\r\n\r\n"
)
COMMAND = (sys.executable, "-m", "offhook.web.workers.worker_child_io")


class LocalWorker:
    """Manages the child; `run` runs until cancelled."""

    def __init__(
        self,
        settings: ChildSettings,
        listening: socket.socket,
        given_up: Backoff,
        name: str = "",
        at_once: bool = False,
        calm: bool = False,
    ) -> None:
        """`given_up` has the times for which connections are rejected. With `at_once` no connection
        is waited for. `calm`: another engine does the work meanwhile, so attempts that fail for
        lack of a network are only of interest to who debugs them."""
        self._settings = settings
        self._name = name or f"{settings.kind} worker"
        self._listening = listening
        self._at_once = at_once
        self._calm = calm
        self._unreachable = False
        """Whether the model of the last child could not be downloaded."""
        self._restarts = Restarts(RESTART_S, CRASH_WINDOW_S, MAX_CRASHES)
        self._last_words: deque[str] = deque(maxlen=LAST_WORDS)
        self._library_words: deque[str] = deque(maxlen=LAST_WORDS)
        """As `_last_words`, of what libraries wrote while the current child loaded."""
        self._given_up = given_up
        self._given_up_until = 0.0
        self._why = ""
        self._beats = 0
        """Heartbeats of the current child."""
        self._hung = False
        """Whether it was killed because there were none."""

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await self._until_wanted()
            if loop.time() < self._given_up_until:
                await self._reject()
                continue
            child = await self._run_once()
            if child.poll() == 0:
                logger.info("{} ended: nobody needs it now", self._name)
            else:
                await asyncio.sleep(self._crashed(child, loop.time()))

    async def _until_wanted(self) -> None:
        """Waits until a connection is waiting to be accepted, or the child may be started without
        one."""
        loop = asyncio.get_running_loop()
        pause = self._given_up_until - loop.time() if self._at_once else None
        wanted = asyncio.Event()
        loop.add_reader(self._listening, wanted.set)
        try:
            async with asyncio.timeout(pause):
                await wanted.wait()
        except TimeoutError:
            pass
        finally:
            loop.remove_reader(self._listening)

    async def _reject(self) -> None:
        """Answers a waiting connection's request with the reason why there is no worker."""
        loop = asyncio.get_running_loop()
        left = self._given_up_until - loop.time()
        told = {"error": self._why, "retry_s": round(max(0.0, left)), "offline": self._unreachable}
        body = json.dumps(told).encode()
        with suppress(OSError), self._listening.accept()[0] as connection:
            connection.setblocking(False)
            # A client that is answered before it has sent all of its request may see a reset only.
            async with asyncio.timeout(REQUEST_TIMEOUT_S):
                await loop.sock_recv(connection, MAX_REQUEST_BYTES)
            connection.send(REJECTED % len(body) + body)

    def _crashed(self, child: Child, now: float) -> float:
        """Returns the delay in s before the child may be restarted."""
        status = child.poll()
        how = "hung and was killed" if self._hung else child.how_ended
        refused = self._refused(status)
        last = refused or next(reversed(self._last_words), "it left no word")
        self._unreachable = status == UNREACHABLE
        fault = bool(refused) or status in (FAILED, UNREACHABLE)
        if (pause := self._restarts.next_s(now, fault=fault)) < math.inf:
            logger.error("{} {}: {}", self._name, how, last)
            return pause
        given_up_s = self._given_up.next_s()
        self._why = f"the {self._name} {how}, given up for {given_up_s:g} s: {last}"
        # Where another engine does the work meanwhile, who watches says what it means.
        logger.log("DEBUG" if self._calm else "ERROR", "{}", self._why)
        self._given_up_until = now + given_up_s
        return 0.0

    def _refused(self, status: int | None) -> str:
        """Returns why the model ended the child; empty if something else did."""
        by_others = status in (FAILED, UNREACHABLE, BROKEN, -signal.SIGKILL, -signal.SIGTERM)
        may = has_trait(self._settings.engine, "ends with a wrong model")
        if not may or self._beats or by_others:
            return ""
        words = " ".join(SOURCE_LINE.sub("", line) for line in self._library_words)
        model = self._settings.models.model
        return f"the model {model} was refused: {words or 'without a word'}"

    @property
    def _calmly(self) -> bool:
        """Returns whether this is one more attempt without a network, or was."""
        return self._calm and self._unreachable

    async def _run_once(self) -> Child:
        """Returns a child that has ended."""
        settings = self._settings
        child = Child(
            (settings.python or COMMAND[0], *COMMAND[1:]),
            stdin=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, "CUDA_VISIBLE_DEVICES": settings.gpu} if settings.gpu else None,
            sockets=(self._listening,),
        )
        line = logger.bind(worker=settings.kind, pid=child.pid)
        level = "DEBUG" if self._calmly else "INFO"
        line.log(level, "{} started (pid {}): {}", self._name, child.pid, settings.engine)
        self._beats, self._hung = 0, False
        self._library_words.clear()
        relaying = asyncio.create_task(self._relay(child), name=f"{self._name} log")
        watching = asyncio.create_task(self._watch(child), name=f"{self._name} watch")
        try:
            (await child.writer()).write(settings.to_json() + b"\n")
            await child.until_ended()
            await asyncio.wait((relaying,), timeout=END_S)
            return child
        finally:
            watching.cancel()
            if self._beats:
                child.terminate()
                await child.end(END_S + settings.drain_seconds)
            else:  # loading, perhaps for minutes
                await child.end()
            relaying.cancel()
            await asyncio.gather(watching, relaying, return_exceptions=True)

    async def _watch(self, child: Child) -> None:
        """Kills a child that hangs, which nothing else would end."""
        await until_silent(lambda: self._beats, HEARTBEAT_S, MAX_MISSED_BEATS)
        logger.error("{} hangs: it is killed, and started again", self._name)
        self._hung = True
        self._last_words.append("it did not answer")
        child.kill()

    async def _relay(self, child: Child) -> None:
        """Relays the child's standard error to our log."""
        async for data in child.error_lines():
            if data == HEARTBEAT:
                self._beats += 1
                self._given_up.reset()
                self._unreachable = False
                continue
            ours, level, message, trace = _log_line(data.decode(errors="replace").rstrip())
            if level != "INFO":  # what went well is no reason for the end
                self._last_words.append(message)
            if not ours and message:
                self._library_words.append(message)
            line = logger.bind(worker=self._settings.kind)
            if trace:
                line = line.bind(exception=trace)
            if self._calmly and level == "INFO":
                level = "DEBUG"
            line.log(level, "{}: {}", self._name, message)


def _log_line(line: str) -> tuple[bool, str, str, str]:
    """Returns whether a line is our own JSON or arbitrary output of a library, and its level, text
    and traceback."""
    try:
        record = json.loads(line)
        message, trace = record["message"] + "", str(record.get("exception", ""))
        return True, str(record["level"]), message, trace
    except (ValueError, TypeError, KeyError):
        return False, "WARNING", line, ""


@asynccontextmanager
async def on_demand(
    settings: ChildSettings,
    retry_s: float = GIVEN_UP_S,
    retry_max_s: float = GIVEN_UP_S,
    *,
    calm: bool = False,
) -> AsyncIterator[str]:
    """Provides such a worker on demand while inside; yields its address. A child that is given up
    is started once more after `retry_s`, doubled by each failure up to `retry_max_s`. `calm` as of
    `LocalWorker`."""
    with (
        tempfile.TemporaryDirectory(prefix="offhook-") as folder,  # mode 0700
        socket.socket(socket.AF_UNIX) as listening,
    ):
        path = str(Path(folder) / f"{settings.kind}.sock")
        listening.bind(path)
        listening.listen(BACKLOG)
        listening.setblocking(False)
        running = asyncio.create_task(
            LocalWorker(settings, listening, Backoff(retry_s, retry_max_s), calm=calm).run(),
            name=f"{settings.kind} worker",
        )
        try:
            yield UNIX + path
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)


@asynccontextmanager
async def local_workers(config: Config, *, gateway: bool = False) -> AsyncIterator[Config]:
    """Provides the local workers required by `config` on demand while inside; yields the
    configuration with their addresses. Raises EngineError if one cannot run here.

    An edge runs the embedded engines itself, a `gateway` runs none.
    """
    async with AsyncExitStack() as workers:
        here: dict[str, object] = {}
        urls: dict[str, list[str]] = {}
        for settings in _wanted(config, gateway):
            if not settings.python:
                check_engine(settings.kind, settings.engine)
            section: Asr | Tts = getattr(config, settings.kind)
            url = await workers.enter_async_context(on_demand(settings))
            reached: dict[str, object] = {"url": url, "preload": bool(section.preload)}
            if settings.gpu:  # one of several
                urls.setdefault(settings.kind, []).append(url)
                reached["url"] = tuple(urls[settings.kind])
            here[settings.kind] = section.model_copy(update=reached)
        yield config.model_copy(update=here) if here else config


@asynccontextmanager
async def auto_workers(config: Config) -> AsyncIterator[list[AutoWorker]]:
    """Provides workers for the engines that `auto` and `small` choose, also for better ones than
    those configured, which the operator may prefer; yields those that are not embedded, the best of
    a kind first."""
    kinds = [kind for kind in KINDS if _may_choose(config, kind)]
    async with AsyncExitStack() as stack:
        machine = await asyncio.to_thread(look) if kinds else None
        workers: list[AutoWorker] = []
        for kind, engine in product(kinds, AUTOMATIC):
            assert machine is not None
            section: Asr | Tts = getattr(config, kind)
            choice, wanted = choice_for(config, kind, machine, engine), section.engine == engine
            if wanted:
                _say_what_is_missing(config, kind, choice)
            if choice.embedded or not (wanted or engine == AUTO):
                continue
            if known := [w for w in workers if w.kind == kind and w.choice.model == choice.model]:
                known[0].wanted |= wanted
                continue
            requests = config.speech.transcriptions if kind == "asr" else config.speech.speeches
            streams = _streams(config, False, requests)
            models = replace(
                section.models(config.engines.hub), model=choice.model, max_streams=streams
            )
            settings = ChildSettings(choice.engine, models, streams, 0, config.log.level)
            url = await stack.enter_async_context(
                on_demand(settings, AUTO_RETRY_S, AUTO_RETRY_MAX_S, calm=True)
            )
            worse = meanwhile(config, kind)
            workers.append(AutoWorker(kind, choice, url, wanted, worse))
        yield workers


def _say_what_is_missing(config: Config, kind: Kind, choice: Choice) -> None:
    """Logs why an embedded engine stays, and what it or the chosen engine cannot do. Raises
    ConfigError where nobody asked for another engine, and the one that stays cannot."""
    faults = faults_of(config, kind, choice.engine, choice.model)
    if choice.embedded:
        logger.info("auto: {} stays: {}", choice.engine, choice.why)
        if faults and getattr(config, kind).engine == SMALL:
            raise ConfigError("\n".join(faults))
    for fault in faults:
        logger.warning("auto: {}", fault)


def _may_choose(config: Config, kind: Kind) -> bool:
    section: Asr | Tts = getattr(config, kind)
    return not section.url and (section.automatic or section.engine == stand_in(kind).name)


def with_choices(config: Config) -> Config:
    """Returns the configuration with the engines that `auto` means, for a server without embedded
    engines. Takes a moment if one is auto."""
    chosen: dict[str, object] = {}
    for kind in KINDS:
        section: Asr | Tts = getattr(config, kind)
        if section.automatic:
            choice = choice_for(config, kind, look())
            if section.engine == SMALL and not (choice.published and is_cached(choice.published)):
                # Its first request would wait for the download.
                why = f"{choice.model} is not on this machine: offhook models pull {SMALL}"
                choice = Choice(stand_in(kind).name, "", why)
            name = f"{choice.engine} {choice.model}".rstrip()
            logger.info("{}: {}, as {}", section.engine, name, choice.why)
            updated = {"engine": choice.engine, "model": choice.model}
            chosen[kind] = section.model_copy(update=updated)
    return config.model_copy(update=chosen)


def _wanted(config: Config, gateway: bool = False) -> Iterator[ChildSettings]:
    sections: tuple[tuple[Kind, Asr | Tts, int], ...] = (
        ("asr", config.asr, config.speech.transcriptions),
        ("tts", config.tts, config.speech.speeches),
    )
    on_gpu = sum(not s.url and s.on_gpu and s.device != "cpu" for _, s, _ in sections)
    share = SHARED if on_gpu > 1 else ALONE
    for kind, section, requests in sections:
        engine = section.engine
        if not section.url and (gateway or not is_embedded(kind, engine)):
            if isinstance(section, Tts):
                with suppress(EngineError):  # the worker says so when it is wanted
                    engine = at_hand(section.engine, section.language)
            models = with_usual_model(kind, engine, section.models(config.engines.hub))
            streams = _streams(config, gateway, requests)
            models = replace(models, max_streams=streams, memory_share=share)
            python = own_python(kind, engine, section.python)
            level = config.log.level
            settings = ChildSettings(engine, models, streams, section.idle_seconds, level, python)
            if section.device == ALL:
                yield from of_all_gpus(settings)
            else:
                yield settings


def of_all_gpus(settings: ChildSettings) -> Iterator[ChildSettings]:
    """Yields the settings of a worker for each GPU of this machine; they stay loaded, since edges
    ask all of them whether they are ready. Raises EngineError if there is none."""
    found = gpus()
    if not found:
        raise EngineError(f'[{settings.kind}] device = "all": this machine has no NVIDIA GPU')
    for gpu in found:
        yield replace(settings, gpu=gpu, idle_seconds=0)


def _streams(config: Config, gateway: bool, requests: int) -> int:
    """Returns twice the maximum concurrent use, since a finished request may still hold its
    stream."""
    calls = 0 if gateway else config.server.max_calls
    programs = requests + config.speech.streams if gateway or config.speech.enabled else 0
    processes = 1 if gateway else config.server.processes
    return 2 * processes * (calls + programs)
