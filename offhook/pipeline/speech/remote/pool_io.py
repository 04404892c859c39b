"""The workers of one kind: their clients, lists, polls and pings.

With one fixed address nothing is polled; if it is not a socket of this machine, its silence is
still noticed, since another worker may be behind it. With several, /readyz of those that this edge
uses is polled, so that choosing one costs no request.
"""

import asyncio
import secrets
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from time import monotonic
from typing import Any, Protocol, TypeVar

import aiohttp
from loguru import logger

from offhook.media.tasks_io import TaskSet
from offhook.pipeline.speech.remote.pool import (
    LOOK_S,
    Action,
    PooledWorker,
    WorkerAddress,
    WorkerEvent,
    WorkerPool,
    WorkerState,
)
from offhook.pipeline.speech.remote.worker_client_io import (
    LOST,
    START_TIMEOUT_S,
    WorkerClient,
    WorkerForbidden,
    WorkerRefused,
    is_hopeless,
    starting,
)
from offhook.pipeline.speech.remote.worker_list_io import UNIX, Resolver, WorkerList, resolve
from offhook.pipeline.speech.remote.worker_protocol import ErrorCode

POLL_S = 1.0
"""Interval in s at which /readyz of a worker is polled."""
POLL_TIMEOUT_S = 0.5
"""Time limit in s for the answer to a poll; then the worker counts as one that has not answered."""
CONNECT_TIMEOUT_S = 1.0
"""Time limit in s for connecting, where there are other workers; then another one is tried."""
READY_TIMEOUT_S = 5.0
"""Time limit in s for the first message of a worker that has loaded, where there are others; then
another one is tried."""
ATTEMPTS = 4
"""Workers tried in a row before the caller is told."""
EDGE = secrets.token_hex(8)
"""Random name of this process, for the choice of its subset."""
UNLISTED = "no worker is listed there"
T = TypeVar("T", bound="Greeting")
Socket = aiohttp.ClientWebSocketResponse


class Greeting(Protocol):
    """The first message of a worker that has loaded."""

    @property
    def id(self) -> str:
        """Returns the random name of its process; empty if it does not say how free it is."""

    @property
    def free(self) -> float: ...


class WorkerStream(Protocol):
    """A stream on a worker, from `Workers.join` to `leave`. Its calls must not block."""

    def is_awaited(self) -> bool:
        """Whether a result is due from the worker."""

    def ping(self) -> None:
        """Sends a ping."""

    def replay(self) -> bool:
        """Sends what has no result to another worker as well, or by another connection if there is
        one address, and returns whether it was not doing so already."""

    def move(self) -> bool:
        """Goes to another worker when no result is due, and returns whether it was not doing so
        already."""


class Workers:
    """The workers at `urls`, see `worker_list_io`. `kind` is asr or tts."""

    def __init__(
        self, kind: str, urls: str | Sequence[str], api_key: str, resolver: Resolver = resolve
    ) -> None:
        self.kind = kind
        given = (urls,) if isinstance(urls, str) else tuple(urls)
        self.url = ", ".join(given)
        """All of them, for messages."""
        self._api_key = api_key
        self._list = WorkerList(given, resolver)
        self._pool = WorkerPool(EDGE)
        self._clients: dict[WorkerAddress, WorkerClient] = {}
        self._streams: dict[WorkerAddress, set[WorkerStream]] = {}
        self._answers: dict[WorkerAddress, dict[str, Any]] = {}
        """The last body of /readyz."""
        self._polling: set[WorkerAddress] = set()
        self._listed: asyncio.Task[None] | None = None
        """The first reading of the list."""
        self._tasks = TaskSet()
        self._http: aiohttp.ClientSession | None = None
        self._update_list()

    @property
    def several(self) -> bool:
        """Whether there is more than one."""
        return len(self._pool.workers) > 1

    def counts(self) -> dict[str, int]:
        """Returns the number of workers in each state."""
        return {state.value: count for state, count in self._pool.counts().items()}

    # --- for streams ---

    def choose(self, avoid: Collection[WorkerClient] = ()) -> WorkerClient | None:
        """Returns the worker for a new stream, at once; None if there is none but those to
        avoid."""
        chosen = self._pool.choose({client.address for client in avoid})
        return self._client(chosen.address) if chosen is not None else None

    def choose_among(self, clients: Collection[WorkerClient]) -> WorkerClient | None:
        """Returns the one of `clients` for a new stream; None if none of them is ready."""
        if not self.several:
            return next(iter(clients), None)
        addresses = {client.address for client in clients}
        chosen = self._pool.choose(self._pool.workers.keys() - addresses)
        if chosen is None or chosen.state not in (WorkerState.READY, WorkerState.UNKNOWN):
            return None
        return next((client for client in clients if client.address == chosen.address), None)

    def has_ready(self, avoid: Collection[WorkerClient] = ()) -> bool:
        """Returns whether a worker may take a stream, but for those to avoid."""
        return self._pool.has_ready({client.address for client in avoid})

    async def connect(
        self,
        path: str,
        query: Mapping[str, str],
        ready: Callable[[Socket], Awaitable[T]],
        avoid: Collection[WorkerClient] = (),
        *,
        autoping: bool = True,
    ) -> tuple[WorkerClient, Socket, T]:
        """Opens a stream, at the next worker if one refuses, and returns it with what `ready` made
        of its first message. Raises any of LOST."""
        await self.start()
        tried = list(avoid)
        error: Exception = ConnectionError(UNLISTED)
        for _ in range(ATTEMPTS):
            client = self.choose(tried)
            if client is None:
                break
            tried.append(client)
            try:
                socket = await client.connect(path, query, autoping=autoping)
                try:
                    async with asyncio.timeout(self._ready_timeout_s(client)):
                        greeting = await ready(socket)
                        if greeting.id:
                            self._pool.receive_free(client.address, greeting.free)
                        return client, socket, greeting
                except BaseException:
                    with suppress(*LOST):
                        await socket.close()
                    raise
            except LOST as failed:
                error = failed
                self.report_failure(client, failed)
                if isinstance(failed, WorkerForbidden) or is_hopeless(failed):
                    break
        raise error

    async def ask(
        self, method: str, path: str, form: aiohttp.FormData | None = None
    ) -> aiohttp.ClientResponse:
        """Sends a request to any worker and returns the response, which the caller closes. Raises
        any of LOST."""
        await self.start()
        client = self.choose()
        if client is None:
            raise ConnectionError(UNLISTED)
        return await client.ask(method, path, form)

    def report(self, client: WorkerClient, event: WorkerEvent) -> None:
        """Reports what a stream has seen of its worker. DATA is cheap enough for every message."""
        if self.several or event is WorkerEvent.DATA:
            self._change(client.address, event)

    def report_failure(self, client: WorkerClient, error: BaseException) -> None:
        """Reports why a stream could not be opened or has ended."""
        if not isinstance(error, WorkerRefused):
            self.report(client, WorkerEvent.LOST)
        elif error.code is ErrorCode.FULL:
            self.report(client, WorkerEvent.FULL)
        elif error.code is ErrorCode.STOPPING:
            self.report(client, WorkerEvent.DRAINING)

    def join(self, client: WorkerClient, stream: WorkerStream) -> None:
        self._streams.setdefault(client.address, set()).add(stream)

    def leave(self, client: WorkerClient, stream: WorkerStream) -> None:
        self._streams.get(client.address, set()).discard(stream)

    # --- for who starts it ---

    @contextmanager
    def starting(self, demands: str) -> Iterator[None]:
        """See `worker_client_io.starting`."""
        with starting(self.kind, self.url, demands):
            yield

    async def start(self) -> None:
        """Reads the list for the first time, and keeps it and the polls going."""
        if self._listed is None:
            self._listed = asyncio.create_task(self._start(), name="worker list")
        await asyncio.shield(self._listed)

    async def readiness(self) -> tuple[bool, dict[str, Any]]:
        """Returns whether a worker has loaded, and the body of its /readyz; without a request if a
        poll has said so."""
        await self.start()
        if self.several:
            for worker in self._pool.watched():
                if worker.state is WorkerState.READY and worker.address in self._answers:
                    return True, self._answers[worker.address]
        client = self.choose()
        return (False, {}) if client is None else await client.readiness()

    async def close(self) -> None:
        if self._listed is not None:
            self._listed.cancel()
            await asyncio.gather(self._listed, return_exceptions=True)
        await self._tasks.close()
        if self._http is not None:
            await self._http.close()
        for client in self._clients.values():
            await client.close()
        self._clients.clear()
        self._listed = self._http = None

    # --- the list ---

    async def _start(self) -> None:
        if self._list.refresh_s is not None:
            self._http = aiohttp.ClientSession()
            await self._list.refresh(self._http)
            self._update_list()
            self._tasks.spawn(self._refresh(self._list.refresh_s, self._http), "worker list")
        if self._list.refresh_s is not None or self.several:
            self._tasks.spawn(self._poll(), "worker polls")
        if not (self.url.startswith(UNIX) and self._list.refresh_s is None):
            self._tasks.spawn(self._look(), "worker looks")

    async def _refresh(self, interval_s: float, http: aiohttp.ClientSession) -> None:
        while True:
            await asyncio.sleep(interval_s)
            await self._list.refresh(http)
            self._update_list()

    def _update_list(self) -> None:
        before = self._pool.workers.keys() | set()
        self._pool.replace_list(self._list.addresses, monotonic())
        if before and (added := self._pool.workers.keys() - before):
            logger.info("{} workers listed: {}", self.kind, ", ".join(sorted(map(str, added))))

    def _client(self, address: WorkerAddress) -> WorkerClient:
        client = self._clients.get(address)
        if client is None:
            client = WorkerClient(self.kind, address.url, self._api_key, address.ip)
            self._clients[address] = client
        if self.several:
            client.connect_timeout_s = CONNECT_TIMEOUT_S
        return client

    def _ready_timeout_s(self, client: WorkerClient) -> float:
        worker = self._pool.workers.get(client.address)
        if worker is not None and worker.state is WorkerState.READY and self.several:
            return READY_TIMEOUT_S
        return START_TIMEOUT_S

    async def _forget_unused(self) -> None:
        for worker in list(self._pool.workers.values()):
            if not worker.listed and not self._streams.get(worker.address):
                self._pool.forget(worker.address)
                self._streams.pop(worker.address, None)
                self._answers.pop(worker.address, None)
                if (client := self._clients.pop(worker.address, None)) is not None:
                    await client.close()

    # --- polls ---

    async def _poll(self) -> None:
        while True:
            if self.several:
                polled = self._pool.watched()
                used = (address for address, streams in self._streams.items() if streams)
                workers = self._pool.workers
                polled += [workers[a] for a in used if a in workers and workers[a] not in polled]
                self._pool.expire(polled, monotonic())
                for worker in polled:
                    if worker.listed and worker.address not in self._polling:
                        self._polling.add(worker.address)
                        self._tasks.spawn(self._poll_one(worker.address), "worker poll")
            await self._forget_unused()
            await asyncio.sleep(POLL_S)

    async def _poll_one(self, address: WorkerAddress) -> None:
        try:
            async with asyncio.timeout(POLL_TIMEOUT_S):
                is_ready, state = await self._client(address).readiness()
        except TimeoutError:
            is_ready, state = False, {}
        finally:
            self._polling.discard(address)
        streams, most = state.get("streams"), state.get("max_streams")
        free, share = state.get("free"), 0.0
        if isinstance(streams, int) and isinstance(most, int) and most > 0:
            share = 1 / most
            free = free if isinstance(free, int | float) else 1 - streams / most
        free = float(free) if isinstance(free, int | float) else 1.0
        if is_ready:
            self._answers[address] = state
            self._pool.receive_free(address, free, share)
            event = WorkerEvent.READY if free > 0 else WorkerEvent.FULL
        elif state:
            event = WorkerEvent.DRAINING if state.get("draining") else WorkerEvent.LOADING
        else:
            event = WorkerEvent.UNANSWERED
        self._change(address, event)

    # --- the streams ---

    async def _look(self) -> None:
        while True:
            await asyncio.sleep(LOOK_S)
            for worker in list(self._pool.workers.values()):
                if streams := self._streams.get(worker.address):
                    self._look_at(worker, list(streams))

    def _look_at(self, worker: PooledWorker, streams: list[WorkerStream]) -> None:
        now, before = monotonic(), worker.state
        awaited = [stream for stream in streams if stream.is_awaited()]
        action = self._pool.look(worker, bool(awaited), now)
        self._log(worker, before)
        if awaited and worker.silent_looks:
            awaited[0].ping()
        acting = awaited if action is Action.REPLAY else streams
        for stream in acting if action is not Action.STAY else ():
            if not self._pool.may_move(now):
                break
            if stream.replay() if action is Action.REPLAY else stream.move():
                self._pool.count_move()

    def _change(self, address: WorkerAddress, event: WorkerEvent) -> None:
        worker = self._pool.workers.get(address)
        if worker is not None:
            before = worker.state
            self._pool.receive(address, event, monotonic())
            self._log(worker, before)

    def _log(self, worker: PooledWorker, before: WorkerState) -> None:
        if worker.state is not before:
            bad = worker.state in (WorkerState.SUSPECTED, WorkerState.GONE)
            words = "{}the {} worker at {} is {}"
            mark = "x " if bad else ""
            level = "WARNING" if bad else "INFO"
            logger.log(level, words, mark, self.kind, worker.address, worker.state.value)
