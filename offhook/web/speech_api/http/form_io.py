"""Reads a small multipart form into memory. Files for transcription go to disk: `upload_io`."""

import asyncio
from collections.abc import Callable
from typing import Any, cast

from aiohttp import BodyPartReader, MultipartReader, StreamReader, hdrs, web
from aiohttp.http_exceptions import HttpProcessingError

from offhook.web.http.connection_io import allow_body
from offhook.web.speech_api.errors import ApiError, size_in_words, too_large

MALFORMED = (ValueError, RuntimeError, AssertionError, LookupError, HttpProcessingError)
"""Exceptions of aiohttp's reader for an invalid form."""
MAX_PARTS = 32
"""Maximum parts of a form; more are refused with 400."""
MAX_NAME_BYTES = 1024
"""Maximum Content-Disposition of a part, refused with 400 if it is longer: to read its parameters
takes time by the square of its length."""
MAX_LINES = 2048
"""Maximum lines of a form beside the contents of its parts: headers, boundaries, and what stands
before the first. With more it is refused with 400: aiohttp reads all lines that have come at once,
and a chunk of line breaks would hold the loop for a third of a second."""
FORM_S = 60.0
"""Time limit in s for a whole form; a slower one is refused with 408."""
READ_BYTES = 1 << 16


async def read_form(
    request: web.Request, most_bytes: int, most_of_part: Callable[[str], int]
) -> dict[str, bytes]:
    """Returns the parts of a multipart/form-data body by name, as they were sent: nothing is
    decompressed or decoded. The body may have `most_bytes`, and a part what `most_of_part` returns
    for its name. Raises ApiError: 400 for an invalid form, 408, 413 and 415, or what `most_of_part`
    raises."""
    if request.content_type != "multipart/form-data":
        raise ApiError(415, f"the body is {request.content_type[:80]}, not multipart/form-data")
    if (request.content_length or 0) > most_bytes:
        raise too_large(most_bytes)
    allow_body(request, most_bytes)
    try:
        async with asyncio.timeout(FORM_S):
            return await _read_parts(request, most_of_part)
    except TimeoutError as error:
        raise ApiError(408, f"the body did not come within {FORM_S:g} s") from error
    except web.HTTPRequestEntityTooLarge as error:
        raise too_large(most_bytes) from error
    except MALFORMED as error:
        raise ApiError(400, "the body is broken, and no multipart/form-data") from error


async def _read_parts(request: web.Request, most_of_part: Callable[[str], int]) -> dict[str, bytes]:
    reader = reader_of(request)
    parts: dict[str, bytes] = {}
    while (part := await reader.next()) is not None:
        name = name_of(part) if isinstance(part, BodyPartReader) else ""
        if not isinstance(part, BodyPartReader) or not name or len(parts) >= MAX_PARTS:
            raise ApiError(400, f"the body is no form of up to {MAX_PARTS} fields with names")
        if name in parts:
            raise ApiError(400, f"{name[:80]} comes twice", name[:80])
        parts[name] = await _read(part, name, most_of_part(name))
    return parts


def reader_of(request: web.Request) -> MultipartReader:
    """Returns a reader of the form's parts. Raises ValueError if it has no boundary; so does the
    reader after MAX_LINES."""
    return MultipartReader(request.headers, cast(StreamReader, _FewLines(request.content)))


class _FewLines:
    """A body of which MAX_LINES can be read as lines."""

    def __init__(self, content: StreamReader) -> None:
        self._content = content
        self._left = MAX_LINES

    def __getattr__(self, name: str) -> Any:
        return getattr(self._content, name)

    async def readline(self, **limits: int) -> bytes:
        self._left -= 1
        if self._left < 0:
            raise ValueError(f"more than {MAX_LINES} lines beside the contents of its parts")
        return await self._content.readline(**limits)


def name_of(part: BodyPartReader) -> str:
    """Returns the name of a form's field; empty if it has none. Raises ApiError 400."""
    if len(part.headers.get(hdrs.CONTENT_DISPOSITION, "")) > MAX_NAME_BYTES:
        words = f"the Content-Disposition of a part has more than {MAX_NAME_BYTES} bytes"
        raise ApiError(400, words)
    return part.name or ""


async def _read(part: BodyPartReader, name: str, most_bytes: int) -> bytes:
    data = bytearray()
    while chunk := await part.read_chunk(READ_BYTES):
        data += chunk
        if len(data) > most_bytes:
            raise ApiError(
                413, f"{name[:80]} is larger than {size_in_words(most_bytes)}", name[:80]
            )
    return bytes(data)
