"""Sends the sound of a recording, or a part of it, opened on the way if it is sealed."""

import re

from aiohttp import web
from loguru import logger

from offhook.media.sealing.files_io import StoredFile
from offhook.media.sealing.keyring import KeyFault
from offhook.media.sealing.sealed import SealFault
from offhook.web.config.server import Recording
from offhook.web.edge.calls.records_io import CallRecords
from offhook.web.edge.calls.stored_sound_io import Sound
from offhook.web.edge.http_io import error
from offhook.web.records.bucket.faults import BucketFault, NotInBucket
from offhook.web.records.bucket.places import in_bucket, is_encrypted

PIECE_BYTES = 64 * 1024
"""Of a file that are read, opened if it is encrypted, and sent at once."""
_RANGE = re.compile(r"bytes=([0-9]{0,18})-([0-9]{0,18})", re.IGNORECASE)
"""One range of bytes (RFC 9110 §14.1.2). Several are answered as none, with all of it."""
INCOMPLETE = {"Offhook-Recording": "incomplete"}
"""Says that a sealed file has no end: the call goes on, or the file was cut off."""
HEADERS = {"Content-Type": "audio/ogg", "Cache-Control": "no-store"}


async def send_sound(
    request: web.Request, place: str, recording: Recording, records: CallRecords
) -> web.StreamResponse:
    """Returns the response to a request for a recording, or for a range of its bytes."""
    bucket = records.bucket if in_bucket(place) and not is_encrypted(place) else None
    if bucket is not None and bucket.settings.links and request.method == "GET":
        raise web.HTTPFound(bucket.link(place), headers={"Cache-Control": "no-store"})
    sound = Sound(place, recording, records)
    try:
        stored = await sound.open()
    except (KeyFault, SealFault, ValueError, OSError) as fault:
        return _unplayable(place, fault)
    try:
        return await _send(request, sound, stored, requested_range(request))
    finally:
        stored.close()


def _unplayable(place: str, fault: Exception) -> web.Response:
    line = logger.bind(a_minute=type(fault).__name__)
    line.error("{} cannot be played: {}", place, fault)
    if isinstance(fault, NotInBucket):
        return error(404, f"the recording cannot be played: {fault}")
    status = 503 if isinstance(fault, BucketFault) else 409
    return error(status, f"the recording cannot be played: {fault}")


def requested_range(request: web.Request) -> slice | None:
    """Returns the bytes that a request asks for; None for all of them. A header that is malformed,
    or of another unit, counts as none (RFC 9110 §14.2), and so does one with a validator, as no
    answer has any."""
    found = _RANGE.fullmatch(request.headers.get("Range", "").strip())
    if found is None or request.method != "GET" or "If-Range" in request.headers:
        return None
    first, last = (int(digits) if digits else None for digits in found.groups())
    if first is None:  # the last so many
        return None if last is None else slice(-last, None) if last else slice(0, 0)
    if last is None:
        return slice(first, None)
    return slice(first, last + 1) if first <= last else None


async def _send(
    request: web.Request, sound: Sound, stored: StoredFile, asked: slice | None
) -> web.StreamResponse:
    length = stored.length
    start, stop, _ = (asked or slice(None)).indices(length)
    if asked is not None and start >= stop:
        unsatisfied = {"Content-Range": f"bytes */{length}"}
        return error(416, "the recording has no such bytes", **unsatisfied)
    try:
        piece = await sound.read(stored, start, min(stop, start + PIECE_BYTES))
    except (SealFault, OSError) as fault:
        return _unplayable(sound.place, fault)
    response = web.StreamResponse(headers={**HEADERS, "Accept-Ranges": "bytes"})
    if not stored.complete:
        response.headers.update(INCOMPLETE)
    if asked is not None:
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
            piece = await sound.read(stored, start, min(stop, start + PIECE_BYTES))
        except (SealFault, OSError) as fault:
            logger.error("{} cannot be played from byte {} on: {}", sound.place, start, fault)
            raise ConnectionError("the rest of the recording cannot be read") from fault
    return response
