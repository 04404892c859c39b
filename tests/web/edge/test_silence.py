"""Whoever says nothing, or comes often, leaves lines and streams to others."""

import asyncio
import contextlib
import io
import json
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from loguru import logger

from offhook.media import silence_io
from offhook.pipeline.speech.remote.worker_protocol import ACCEPT_HEADER, DRAINING
from offhook.web.config.config import Config
from offhook.web.edge.edge_io import Edge
from offhook.web.edge.server_io import application
from offhook.web.http import shares
from offhook.web.http.access import USUAL_SESSIONS
from offhook.web.http.listening_io import Runner
from offhook.web.http.logs import Log
from offhook.web.http.logs_io import set_up
from tests.attack import silence
from tests.support.waiting import HANGS_S, until
from tests.web.edge.test_attacks import UPGRADE
from tests.web.edge.test_processes import TwoProcesses

LINES = 20
STRANGER = "203.0.113.9"
INNOCENT = "198.51.100.7"
TABLE: dict[str, Any] = {
    "server": {"host": "0.0.0.0", "port": 0, "drain_seconds": 0, "max_calls": LINES},
    "webrtc": {"addresses": ["127.0.0.1"]},
    "agent": {"kind": "silent"},
    "tts": {"engine": "espeak"},
}
ADDRESSED = {
    silence.silent_conversations: "/v1/realtime?model=gpt-realtime",
    silence.configured_conversations: "/v1/realtime?model=gpt-realtime",
    silence.short_conversations: "/v1/realtime?model=gpt-realtime",
    silence.silent_transcriptions: "/v1/realtime?intent=transcription",
    silence.silent_recognizers: "/ws/transcribe",
    silence.silent_voices: "/ws/speak",
    silence.silent_requests: "/v1/audio/speech/ws",
}
"""Attacks by addresses, each with the door that others use meanwhile."""


@asynccontextmanager
async def serving(**changes: Any) -> AsyncIterator[tuple[Edge, str]]:
    """An edge and its address."""
    table = {**TABLE, **changes}
    table["server"] = {**TABLE["server"], **changes.get("server", {})}
    edge = Edge(Config.model_validate(table))
    await edge.start()
    runner = Runner(application(edge))
    await runner.setup()
    await runner.listen("127.0.0.1", 0)
    try:
        yield edge, f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await edge.close()
        await runner.cleanup()


def in_use(edge: Edge) -> int:
    """Lines that are, but for those that are being left."""
    assert len(edge.legs) <= 2 * LINES
    return sum(leg.closed is None for leg in edge.legs)


async def accepted(base: str, path: str, **headers: str) -> int:
    """The status of a WebSocket's upgrade, which is then closed."""
    async with aiohttp.ClientSession(headers=headers) as http:
        try:
            async with asyncio.timeout(HANGS_S), http.ws_connect(base + path):
                return 101
        except aiohttp.WSServerHandshakeError as refusal:
            return refusal.status


@pytest.mark.parametrize("attack", ADDRESSED, ids=lambda attack: attack.__name__)
async def test_one_address_leaves_lines_and_streams_to_others(attack: Any) -> None:
    opened = asyncio.Event()
    async with serving() as (edge, base):
        attacking = asyncio.create_task(attack(base, 0.5, STRANGER, opened))
        async with asyncio.timeout(HANGS_S):
            await opened.wait()
        assert await accepted(base, ADDRESSED[attack], **{"X-Forwarded-For": INNOCENT}) == 101
        assert in_use(edge) <= LINES / 2 + 1
        await attacking


async def test_one_address_is_counted_by_all_that_it_does() -> None:
    """Sound makes a session one that does not wait; it is still the address's."""
    async with serving() as (edge, base):
        path, caller = "/v1/realtime?model=gpt-realtime", {"X-Forwarded-For": STRANGER}
        async with aiohttp.ClientSession(headers=caller) as http:
            there = []
            for _ in range(LINES // 2):
                there.append(await http.ws_connect(base + path))
                await there[-1].send_json(silence.SOUND)
                await until(lambda: not any(leg.waits for leg in edge.legs))
            async with http.get(base + path, headers=UPGRADE) as refusal:
                error = (await refusal.json())["error"]
                assert (refusal.status, error["code"]) == (429, "rate_limit_exceeded")
                assert "share_per_address of [server]" in error["message"]
                assert refusal.headers["Retry-After"]
            async with http.post(base + "/start", json={}) as refusal:
                assert (refusal.status, (await refusal.json())["reason"]) == (429, "share")
        assert edge.metrics.refused.labels("share")._value.get() == 2


SILENT = [attack for attack in ADDRESSED if attack is not silence.short_conversations]


@pytest.mark.parametrize("attack", SILENT, ids=lambda attack: attack.__name__)
async def test_who_may_represent_anyone_makes_room_for_others(
    attack: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From this machine, where a proxy may be, all that say nothing are alike: the one that was
    silent for the longest leaves."""
    monkeypatch.setattr(shares, "PATIENCE_S", 0.5)
    opened = asyncio.Event()
    async with serving() as (edge, base):
        attacking = asyncio.create_task(attack(base, 1.5, "", opened))
        async with asyncio.timeout(HANGS_S):
            await opened.wait()
            assert in_use(edge) <= LINES / 2
            while await accepted(base, ADDRESSED[attack]) != 101:
                await asyncio.sleep(0.1)
        await attacking


@pytest.mark.parametrize("attack", SILENT, ids=lambda attack: attack.__name__)
async def test_silence_writes_a_few_lines_of_log(attack: Any) -> None:
    stream = io.StringIO()
    async with serving() as (edge, base):
        with contextlib.redirect_stderr(stream):
            set_up(Log())
            try:
                await attack(base, 0.5, STRANGER)
                await until(lambda: not edge.legs)
            finally:
                logger.remove()
                logging.basicConfig(handlers=[logging.NullHandler()], force=True)
    lines = stream.getvalue().splitlines()
    assert len(lines) <= 6, lines


# --- how long somebody may say nothing ---


async def last_event(socket: aiohttp.ClientWebSocketResponse) -> tuple[dict[str, Any], int | None]:
    """The last message, and the code of the close."""
    message: dict[str, Any] = {}
    async with asyncio.timeout(HANGS_S):
        async for received in socket:
            if received.type is aiohttp.WSMsgType.TEXT:
                message = json.loads(received.data)
    return message, socket.close_code


@pytest.mark.parametrize(
    ("path", "sent", "code", "closed"),
    [
        ("/v1/realtime?model=gpt-realtime", None, "session_idle", 1001),
        ("/v1/realtime?model=gpt-realtime", silence.UPDATE, "session_idle", 1001),
        ("/v1/realtime?model=gpt-realtime", silence.SOUND, "session_idle", 1001),
        ("/v1/realtime?intent=transcription", None, "idle", 1008),
        ("/v1/realtime?intent=transcription", silence.SOUND, "idle", 1008),
        ("/ws/transcribe", None, "idle", 1008),
        ("/ws/transcribe", {"type": "flush"}, "idle", 1008),
        ("/ws/speak", None, "idle", 1008),
        ("/ws/speak", {"type": "text", "text": "Hello"}, "idle", 1008),
        ("/v1/audio/speech/ws", None, "idle", 1008),
    ],
)
async def test_a_silent_client_is_told_and_disconnected(
    path: str, sent: Any, code: str, closed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(silence_io, "FIRST_S", 0.3)
    monkeypatch.setattr(silence_io, "QUIET_S", 0.5)
    async with serving() as (edge, base), aiohttp.ClientSession() as http:
        socket = await http.ws_connect(base + path)
        if sent is not None:
            await socket.send_json(sent)
        message, close_code = await last_event(socket)
        said = message.get("error", message)
        limit = "for 0.5 s" if sent is not None else "within 0.3 s"
        assert said["code"] == code
        assert f"neither sound nor an event came {limit}" in said["message"]
        assert close_code == closed
        await until(lambda: not edge.legs)


async def test_pings_are_no_use_of_a_stream_but_those_of_our_servers_stay(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(silence_io, "FIRST_S", 0.3)
    async with serving() as (_, base), aiohttp.ClientSession() as http:
        stranger = await http.ws_connect(base + "/ws/speak", heartbeat=0.1)
        kept = await http.ws_connect(base + "/ws/speak", headers={ACCEPT_HEADER: DRAINING})
        message, _ = await last_event(stranger)
        assert message["code"] == "idle"
        await kept.send_json({"type": "text", "text": "Hello."})
        await kept.send_json({"type": "end"})
        async with asyncio.timeout(HANGS_S):
            while (await kept.receive()).type is not aiohttp.WSMsgType.BINARY:
                pass


async def test_silent_asterisks_take_some_lines_and_are_hung_up_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(silence_io, "FIRST_S", 1.0)
    opened = asyncio.Event()
    carriers = [{"provider": "audiosocket", "port": 0}]
    async with serving(carriers=carriers) as (edge, base):
        assert edge.carriers is not None
        port = edge.carriers.bound["audiosocket"][1]
        attack = silence.silent_asterisks(base, 3.5, port, opened)
        attacking = asyncio.create_task(attack)
        async with asyncio.timeout(HANGS_S):
            await opened.wait()
            assert await accepted(base, "/v1/realtime?model=gpt-realtime") in (101, 503)
            await until(lambda: edge.legs)
            assert in_use(edge) <= LINES / 2
            assert (await attacking).startswith("0 of")


# --- keys, secrets and tokens ---


async def open_sockets(base: str, path: str, key: str) -> int:
    """How many of five are accepted."""
    async with aiohttp.ClientSession(headers={"Authorization": f"Bearer {key}"}) as http:
        there = []
        for _ in range(5):
            with contextlib.suppress(aiohttp.WSServerHandshakeError):
                there.append(await http.ws_connect(base + path))
        return len(there)


@pytest.mark.parametrize(("body", "most"), [({}, USUAL_SESSIONS), ({"max_sessions": 1}, 1)])
async def test_a_secret_and_a_token_open_as_many_sessions_as_they_may(
    body: dict[str, int], most: int
) -> None:
    keys = {"api_key": "key", "admin_key": "operator"}
    async with serving(server=keys) as (_, base):
        path, operator = "/v1/realtime?model=gpt-realtime", {"Authorization": "Bearer operator"}
        async with aiohttp.ClientSession(base, headers=operator) as http:
            async with http.post("/v1/realtime/client_secrets", json=body) as answer:
                secret = (await answer.json())["value"]
            async with http.post("/tokens", json=body) as answer:
                token = (await answer.json())["token"]
        assert await open_sockets(base, path, secret) == most
        assert await open_sockets(base, path, token) == most
        assert await open_sockets(base, path, "key") == 5
        assert await open_sockets(base, "/ws/speak", "key") == 5


async def test_a_keys_share_is_of_all_that_come_with_it() -> None:
    async with serving(server={"api_key": "key", "share_per_key": 0.1}) as (_, base):
        assert await open_sockets(base, "/v1/realtime?model=gpt-realtime", "key") == LINES * 0.1


# --- several processes ---


async def test_processes_that_share_a_port_have_a_share_each(tmp_path: Path) -> None:
    settings = {"SERVER_HOST": "0.0.0.0", "SERVER_MAX_CALLS": "8", "AGENT_KIND": "silent"}
    server = TwoProcesses(tmp_path, **settings)
    try:
        await server.ready()
        opened, path = asyncio.Event(), "/v1/realtime?model=gpt-realtime"
        attack = silence.short_conversations(server.url, 2.0, STRANGER, opened)
        attacking = asyncio.create_task(attack)
        async with asyncio.timeout(HANGS_S):
            await opened.wait()
            assert (await server.ready())["calls"] <= 8  # half of each one's
            for _ in range(4):
                assert await accepted(server.url, path, **{"X-Forwarded-For": INNOCENT}) == 101
            await attacking
    finally:
        server.process.terminate()
        await asyncio.to_thread(server.process.wait)
