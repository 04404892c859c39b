"""Callers who leave at once, by every way into a call: nothing of them stays, and nobody else hears
of it."""

import asyncio
import gc
import os
import tracemalloc
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import aioice.ice
import pytest
import pytest_asyncio
from loguru import logger

from offhook.media.clock_io import PacketClock
from offhook.media.tasks_io import unended
from offhook.signaling import peer_io
from offhook.web.config.config import Config
from offhook.web.edge.admission_io import CallAdmission
from offhook.web.edge.edge_io import Edge
from offhook.web.edge.server_io import application
from offhook.web.http.listening_io import Runner
from tests.attack import endings
from tests.support.ports import free_port
from tests.telephony.carriers.rest.fake_rest import FakeRest
from tests.telephony.carriers.rest.fake_rest_words import TOKEN, TWILIO_SID

pytestmark = pytest.mark.asyncio(loop_scope="module")

SOON_S = 120
"""Far more than what must happen takes."""
LOOK_S = 0.05
STARTED = 2
"""Files of what the first crowd of callers may start: workers of a recognizer."""
FEW, MANY = 50, 500
"""Callers of a test, and of a slow one."""
WARM_UP = 150
CONNECT_S = 1
"""In place of the seconds that a caller who vanishes keeps a line."""
MEMORY_SHARE = 1.1
USUAL = "did not connect in time", "timed out waiting for task to cancel"
"""Of lines that may be written: about a caller who vanishes, and by Pipecat where the machine is so
busy that ending a task takes a second."""

Attack = Callable[..., Awaitable[str]]


@dataclass
class Target:
    """A server in this process, and what it has written and left."""

    edge: Edge
    base: str
    sip_port: int
    lines: list[str] = field(default_factory=list)
    """Of the log, from warnings on."""
    faults: list[str] = field(default_factory=list)
    """What the event loop reports: exceptions that nobody took, tasks that nobody ended."""
    files: int = 0
    tasks: set[asyncio.Task[Any]] = field(default_factory=set)

    async def attacked(self, attack: Attack, most: int, seed: int = 0) -> str:
        ports: dict[str, int] = {}
        if attack is endings.phones:
            ports = {"sip_port": self.sip_port}
        elif attack is endings.audiosockets:
            assert self.edge.carriers is not None
            ports = {"port": self.edge.carriers.bound["audiosocket"][1]}
        return await attack(self.base, SOON_S * most / FEW, most, seed, **ports)

    def look(self) -> None:
        """What there is from now on is not to grow."""
        self.lines.clear()
        self.faults.clear()
        self.files, self.tasks = open_files(), asyncio.all_tasks()

    def left(self) -> set[asyncio.Task[Any]]:
        return asyncio.all_tasks() - self.tasks - {asyncio.current_task()}

    async def is_as_before(self) -> None:
        left: object = None
        for _ in range(round(SOON_S / LOOK_S)):
            files = open_files() - self.files
            left = (
                list(self.edge.calls),
                [task.get_name() for task in self.left()],
                max(0, files - STARTED),
            )
            if not any(left):
                break
            await asyncio.sleep(LOOK_S)
        else:
            pytest.fail(f"left: {left}")
        gc.collect()
        await asyncio.sleep(0)
        assert not self.faults, self.faults[:3]
        others = [line for line in self.lines if not any(words in line for words in USUAL)]
        assert not others, others[:3]
        assert not unended()


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


@asynccontextmanager
async def standing(**table: Any) -> AsyncIterator[Target]:
    host_addresses, sip_port = aioice.ice.get_host_addresses, free_port()
    async with FakeRest() as rest:
        twilio = {"account": TWILIO_SID, "secret": TOKEN, "rest_url": rest.url}
        carriers = [
            {"provider": "chan_websocket", "account": "asterisk", "insecure": True},
            {"provider": "twilio", "insecure": True, **twilio},
            {"provider": "audiosocket", "insecure": True, "port": 0},
        ]
        config = Config.model_validate(
            {
                "server": {"port": 0, "max_calls": 200, "drain_seconds": 0, "max_lateness_ms": 0},
                "webrtc": {"addresses": ["127.0.0.1"], "ping_timeout_seconds": CONNECT_S},
                "sip": {
                    "udp": sip_port,
                    "tcp": 0,
                    "trunks": [{"name": "pbx", "server": "127.0.0.1:9", "options_seconds": 0}],
                },
                "carriers": carriers,
                **table,
            }
        )
        edge = Edge(config)
        await edge.start()
        runner = Runner(application(edge))
        await runner.setup()
        try:
            await runner.listen("127.0.0.1", 0)
            yield Target(edge, f"http://127.0.0.1:{runner.addresses[0][1]}", sip_port)
        finally:
            await edge.close()
            await runner.cleanup()
            aioice.ice.get_host_addresses = host_addresses


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def target() -> AsyncIterator[Target]:
    """One for all tests of this file; what starts with the first callers is there already."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(peer_io, "CONNECT_TIMEOUT_S", CONNECT_S)
        monkeypatch.setattr(PacketClock, "recent_lateness_ms", lambda clock: 0.0)
        # The callers are in this process too: what they take of its time is not the server's load.
        monkeypatch.setattr(CallAdmission, "sheds", lambda room, calls: False)
        monkeypatch.setattr("offhook.web.edge.admission_io.FEW_CALLS", 1000)
        async with standing() as server:
            sink = logger.add(server.lines.append, level="WARNING", format="{level} {message}")

            def note(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
                server.faults.append(f"{context['message']}: {context.get('exception')!r}")

            asyncio.get_running_loop().set_exception_handler(note)
            for attack in ATTACKS:
                await server.attacked(attack, 4)
            server.look()
            await asyncio.sleep(2 * CONNECT_S)
            yield server
            logger.remove(sink)


ATTACKS = (
    endings.browsers,
    endings.realtime_peers,
    endings.publishers,
    endings.realtime_sockets,
    endings.speech_sockets,
    endings.carrier_sockets,
    endings.audiosockets,
    endings.phones,
    endings.requests,
)


@pytest.mark.parametrize("attack", ATTACKS)
async def test_callers_who_leave_at_once_leave_nothing(target: Target, attack: Attack) -> None:
    target.look()
    ends = await target.attacked(attack, FEW, seed=1)
    assert "no answer" not in ends, ends
    await target.is_as_before()


@pytest.mark.slow
@pytest.mark.parametrize("attack", ATTACKS)
async def test_however_many_they_are(target: Target, attack: Attack) -> None:
    target.look()
    ends = await target.attacked(attack, MANY, seed=2)
    assert "no answer" not in ends, ends
    await target.is_as_before()


@pytest.mark.slow
@pytest.mark.parametrize("attack", [endings.realtime_sockets, endings.carrier_sockets])
async def test_their_memory_comes_back(target: Target, attack: Attack) -> None:
    target.look()
    tracemalloc.start()
    try:
        await target.attacked(attack, WARM_UP, seed=3)
        await target.is_as_before()
        before = tracemalloc.get_traced_memory()[0] + 20_000_000  # the process has more than that
        await target.attacked(attack, 1000, seed=4)
        await target.is_as_before()
        assert tracemalloc.get_traced_memory()[0] + 20_000_000 <= MEMORY_SHARE * before
    finally:
        tracemalloc.stop()
