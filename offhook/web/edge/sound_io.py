"""Sends the sound of a recording, or a part of it, opened on the way if it is sealed."""

import asyncio
from pathlib import Path

from aiohttp import web
from loguru import logger

from offhook.media.sealing.files_io import StoredFile
from offhook.media.sealing.keyring import KeyFault
from offhook.media.sealing.names import SUFFIX
from offhook.media.sealing.sealed import SealFault
from offhook.web.config.server import Recording
from offhook.web.edge.http_io import error

PIECE_BYTES = 64 * 1024
"""Of a sealed file that are read, opened and sent at once."""
HEADERS = {"Content-Type": "audio/ogg", "Cache-Control": "no-store"}


async def send_sound(request: web.Request, path: Path, recording: Recording) -> web.StreamResponse:
    """Returns the response to a request for a recording, or for a range of its bytes."""
    if not path.name.endswith(SUFFIX):
        return web.FileResponse(path, headers=HEADERS)
    try:
        stored = await asyncio.to_thread(_opened, path, recording)
    except (KeyFault, SealFault, ValueError, OSError) as fault:
        return _unplayable(path, fault)
    try:
        return await _send(request, path, stored)
    finally:
        stored.close()


def _unplayable(path: Path, fault: Exception) -> web.Response:
    line = logger.bind(a_minute=type(fault).__name__)
    line.error("{} cannot be played: {}", path, fault)
    return error(409, f"the recording cannot be played: {fault}")


def _opened(path: Path, recording: Recording) -> StoredFile:
    return StoredFile(path, recording.keyring())


async def _send(request: web.Request, path: Path, stored: StoredFile) -> web.StreamResponse:
    length = stored.length
    try:
        start, stop, _ = request.http_range.indices(length)
    except ValueError:
        start = stop = length
    if "Range" in request.headers and start >= stop:
        unsatisfied = {"Content-Range": f"bytes */{length}"}
        return error(416, "the recording has no such bytes", **unsatisfied)
    try:
        piece = await asyncio.to_thread(stored.read, start, min(stop, start + PIECE_BYTES))
    except (SealFault, OSError) as fault:
        return _unplayable(path, fault)
    response = web.StreamResponse(headers={**HEADERS, "Accept-Ranges": "bytes"})
    if "Range" in request.headers:
        response.set_status(206)
        response.headers["Content-Range"] = f"bytes {start}-{stop - 1}/{length}"
    response.content_length = stop - start
    await response.prepare(request)
    if request.method == "HEAD":
        return response
    while piece:
        await response.write(piece)
        start += len(piece)
        try:
            piece = await asyncio.to_thread(stored.read, start, min(stop, start + PIECE_BYTES))
        except (SealFault, OSError) as fault:
            logger.error("{} cannot be played from byte {} on: {}", path, start, fault)
            raise ConnectionError("the rest of the recording cannot be read") from fault
    return response
