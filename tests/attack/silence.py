"""Connections that are opened, hold a line or a stream, and say nothing, or next to nothing."""

import asyncio
import base64
import json
import struct
from collections import Counter
from urllib.parse import urlsplit
from uuid import uuid4

import aiohttp

MOST = 80
"""Connections that an attack tries to open: more than a server has places."""
GONE = (aiohttp.WSMsgType.CLOSE, aiohttp.WSMsgType.CLOSED, aiohttp.WSMsgType.CLOSING)
UPDATE: dict[str, object] = {"type": "session.update", "session": {"type": "realtime"}}
SOUND: dict[str, object] = {
    "type": "input_audio_buffer.append",
    "audio": base64.b64encode(bytes(4800)).decode(),
}
"""A tenth of a second."""


async def silent_conversations(
    base: str, seconds: float, address: str = "", opened: asyncio.Event | None = None
) -> str:
    """Realtime sessions that send no byte."""
    path = "/v1/realtime?model=gpt-realtime"
    return await sockets(base, seconds, path, address=address, opened=opened)


async def configured_conversations(
    base: str, seconds: float, address: str = "", opened: asyncio.Event | None = None
) -> str:
    """Realtime sessions that are configured, and then nothing."""
    return await sockets(base, seconds, "/v1/realtime", [UPDATE], address, opened)


async def short_conversations(
    base: str, seconds: float, address: str = "", opened: asyncio.Event | None = None
) -> str:
    """Realtime sessions with a tenth of a second of sound, and then nothing."""
    path = "/v1/realtime?model=gpt-realtime"
    return await sockets(base, seconds, path, [SOUND], address, opened)


async def silent_transcriptions(
    base: str, seconds: float, address: str = "", opened: asyncio.Event | None = None
) -> str:
    """Realtime transcription sessions that send no byte."""
    path = "/v1/realtime?intent=transcription"
    return await sockets(base, seconds, path, address=address, opened=opened)


async def silent_recognizers(
    base: str, seconds: float, address: str = "", opened: asyncio.Event | None = None
) -> str:
    """Streams of /ws/transcribe that send no sound."""
    return await sockets(base, seconds, "/ws/transcribe", address=address, opened=opened)


async def silent_voices(
    base: str, seconds: float, address: str = "", opened: asyncio.Event | None = None
) -> str:
    """Streams of /ws/speak that send no text."""
    return await sockets(base, seconds, "/ws/speak", address=address, opened=opened)


async def silent_requests(
    base: str, seconds: float, address: str = "", opened: asyncio.Event | None = None
) -> str:
    """Streams of /v1/audio/speech/ws that send no request."""
    return await sockets(base, seconds, "/v1/audio/speech/ws", address=address, opened=opened)


async def sockets(
    base: str,
    seconds: float,
    path: str,
    messages: list[dict[str, object]] | None = None,
    address: str = "",
    opened: asyncio.Event | None = None,
    headers: dict[str, str] | None = None,
) -> str:
    """Opens WebSockets, sends each the messages, and waits. `address`: as a proxy says it; `opened`
    is set once all were tried."""
    given = {**(headers or {}), **({"X-Forwarded-For": address} if address else {})}
    refused: Counter[int] = Counter()
    there: list[aiohttp.ClientWebSocketResponse] = []
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector, headers=given) as http:
        for _ in range(MOST):
            try:
                socket = await http.ws_connect(base + path)
                for message in messages or []:
                    await socket.send_str(json.dumps(message))
                there.append(socket)
            except aiohttp.WSServerHandshakeError as refusal:
                refused[refusal.status] += 1
        if opened is not None:
            opened.set()
        await asyncio.sleep(seconds)
        staying = sum([not await _is_closed(socket) for socket in there])
        for socket in there:
            await socket.close()
    others = ", ".join(f"{count} refused with {status}" for status, count in refused.items())
    return f"{staying} of {MOST} open after {seconds:g} s, {len(there)} accepted, {others}"


async def _is_closed(socket: aiohttp.ClientWebSocketResponse) -> bool:
    while True:
        try:
            message = await socket.receive(0.05)
        except TimeoutError:
            return False
        if message.type in GONE:
            return True


async def silent_asterisks(
    base: str, seconds: float, port: int, opened: asyncio.Event | None = None
) -> str:
    """AudioSocket connections that send their UUID, and no sound."""
    host = urlsplit(base).hostname or "127.0.0.1"
    connections = []
    for _ in range(MOST):
        try:
            reader, writer = await asyncio.open_connection(host, port)
        except ConnectionError:
            continue
        writer.write(struct.pack(">BH", 1, 16) + uuid4().bytes)
        connections.append((reader, writer))
    if opened is not None:
        opened.set()
    await asyncio.sleep(seconds)
    staying = 0
    for reader, writer in connections:
        try:
            async with asyncio.timeout(0.5):
                while await reader.read(1 << 16):
                    await asyncio.sleep(0)  # our silence, without an end
        except TimeoutError:
            staying += 1
        except ConnectionError:
            pass
        writer.close()
    return f"{staying} of {MOST} open after {seconds:g} s"


async def silent_wyoming_clients(
    base: str, seconds: float, port: int, opened: asyncio.Event | None = None
) -> str:
    """Clients of the Wyoming protocol that ask nothing."""
    host = urlsplit(base).hostname or "127.0.0.1"
    connections = [await asyncio.open_connection(host, port) for _ in range(MOST)]
    if opened is not None:
        opened.set()
    await asyncio.sleep(seconds)
    staying = sum(not reader.at_eof() for reader, _ in connections)
    for _, writer in connections:
        writer.close()
    return f"{staying} of {MOST} open after {seconds:g} s"
