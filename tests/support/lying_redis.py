"""A TCP server in Redis's place, which answers what nobody asked: wrong types, too much, half of
it, nothing."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass

ENDLESS_BYTES = 300_000_000
"""What an answer without an end has, so that a test does."""
SILENT_S = 60.0
DRIP_S = 0.2
BLOCK = 1 << 16


def bulk(data: bytes) -> bytes:
    return b"$%d\r\n%b\r\n" % (len(data), data)


def _echo(command: list[bytes]) -> bytes:
    return b"*%d\r\n" % len(command) + b"".join(map(bulk, command))


def _hello(command: list[bytes], answer: bytes) -> bytes:
    """Lies only once a client has introduced itself."""
    if command[0].upper() == b"HELLO":
        return b"%2\r\n" + bulk(b"server") + bulk(b"redis") + bulk(b"proto") + b":3\r\n"
    return b"+OK\r\n" if command[0].upper() == b"CLIENT" else answer


LIES: dict[str, bytes | Callable[[list[bytes]], bytes]] = {
    "OK to everything": b"+OK\r\n",
    "0 to everything": b":0\r\n",
    "1 to everything": b":1\r\n",
    "a huge number": b":9" + b"9" * 5000 + b"\r\n",
    "nothing": b"$-1\r\n",
    "no array": b"*-1\r\n",
    "an empty array": b"*0\r\n",
    "an empty value": b"$0\r\n\r\n",
    "arrays of numbers": b"*2\r\n:7\r\n*2\r\n:1\r\n:2\r\n",
    "pairs of numbers": b"*2\r\n*2\r\n:1\r\n:2\r\n*2\r\n:3\r\n:4\r\n",
    "calls that are none": b"*2\r\n" + (b"*2\r\n" + bulk(b"c") + bulk(b'{"v": 1}')) * 2,
    "ten thousand calls": b"*10000\r\n" + (b"*2\r\n" + bulk(b"c") + bulk(b"{}")) * 10_000,
    "JSON that is none": bulk(b'{"v": 1, "agent": '),
    "JSON nested deeply": bulk(b"[" * 8000),
    "what it was asked": _echo,
    "loading": b"-LOADING Redis is loading the dataset in memory\r\n",
    "moved": b"-MOVED 3999 127.0.0.1:1\r\n",
    "read only": b"-READONLY You can't write against a read only replica.\r\n",
    "no password": b"-NOAUTH Authentication required.\r\n",
    "out of memory": b"-OOM command not allowed when used memory > 'maxmemory'.\r\n",
    "an error of 5 MB": b"-ERR " + b"x" * 5_000_000 + b"\r\n",
    "an error that forges a log": b"-ERR \x1b[2J2026-01-01 ERROR forged\r\n",
    "half an answer": b"$10\r\nabc",
    "half a type": b"*",
    "no type": b"?what\r\n",
    "HTTP": b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n",
    "negative sizes": b"$-7\r\n*-7\r\n",
    "a size that is none": b"$abc\r\n",
    "arrays in arrays": b"*1\r\n" * 100_000,
    "a value of 3 GB": b"$3000000000\r\n",
    "an array without an end": b"*2000000000\r\n",
    "two answers for one": b"+OK\r\n+OK\r\n",
    "silence": b"",
}
"""Answers to each command, by what they are; those without an end go on."""
ENDLESS = {"a value of 3 GB": b"x" * BLOCK, "an array without an end": b":1\r\n" * (BLOCK // 4)}


@dataclass
class LyingRedis:
    lie: str
    url: str = ""
    commands: int = 0
    sent: int = 0
    """Bytes of answers without an end that were taken."""


@asynccontextmanager
async def lying_redis(lie: str, introduces: bool = True) -> AsyncIterator[LyingRedis]:
    """Serves one of LIES, "gone" (connections are closed) or "slow" (a byte now and then). It does
    so from the first command on, or `introduces` itself first as Redis does."""
    liar = LyingRedis(lie)
    connections: set[asyncio.Task[None]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        connections.add(task)
        with suppress(OSError, asyncio.IncompleteReadError, asyncio.CancelledError, ValueError):
            while lie != "gone":
                command = await _command(reader)
                liar.commands += 1
                await answer(command, writer)
        writer.close()

    async def answer(command: list[bytes], writer: asyncio.StreamWriter) -> None:
        if lie == "slow":
            for byte in b"$100000\r\n" + b"x" * 1000:
                writer.write(bytes([byte]))
                await writer.drain()
                await asyncio.sleep(DRIP_S)
            return
        told = LIES[lie]
        data = told(command) if callable(told) else told
        plain = introduces and _hello(command, data) != data
        writer.write(_hello(command, data) if plain else data)
        await writer.drain()
        if lie in ENDLESS and not plain:
            while liar.sent < ENDLESS_BYTES:
                writer.write(ENDLESS[lie])
                liar.sent += BLOCK
                await writer.drain()
        if not data:
            await asyncio.sleep(SILENT_S)

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    liar.url = f"redis://127.0.0.1:{server.sockets[0].getsockname()[1]}/0"
    try:
        yield liar
    finally:
        server.close()
        for task in connections:
            task.cancel()
        await asyncio.gather(*connections, return_exceptions=True)


async def _command(reader: asyncio.StreamReader) -> list[bytes]:
    """RESP: an array of bulk strings."""
    count = int((await reader.readuntil(b"\r\n"))[1:])
    command = []
    for _ in range(count):
        size = int((await reader.readuntil(b"\r\n"))[1:])
        command.append((await reader.readexactly(size + 2))[:-2])
    return command
