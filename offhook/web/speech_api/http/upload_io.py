"""Receives a multipart form: the file to a private folder on disk, the fields to memory."""

import asyncio
import re
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

from aiohttp import BodyPartReader, MultipartReader, web
from aiohttp.http_exceptions import HttpProcessingError

from offhook.web.http.connection_io import allow_body
from offhook.web.speech_api.admission import ByteBudget
from offhook.web.speech_api.errors import ApiError
from offhook.web.speech_api.http.file_transcription_io import RawPcm
from offhook.web.speech_api.http.form_io import MALFORMED, name_of, reader_of
from offhook.web.speech_api.http.transcription_request import FIELDS

BLOCK_BYTES = 1 << 16
WRITE_BYTES = 1 << 20
"""Bytes written to disk at a time."""
MAX_FIELDS = 128
"""Maximum fields of a form; with more it is refused with 400."""
MAX_FIELD_BYTES = 1 << 16
"""Maximum size of a field other than the file; with a longer one the form is refused with 400."""
MAX_FIELDS_BYTES = 1 << 18
"""Maximum total size of all fields with their headers; beyond it the form is refused with 400 or
413."""
STALL_S = 30.0
"""Time in s without data after which an upload is aborted with 408."""
LEAST_BYTES_PER_S = 4096
"""Minimum average rate of an upload."""
RAW_RATES = (8_000, 192_000)
"""Minimum and maximum rate in Hz of raw PCM; any other is refused with 400."""
MAX_RAW_CHANNELS = 8
"""Maximum channels of raw PCM; with more it is refused with 400."""


@dataclass
class Upload:
    """An uploaded file and its form fields."""

    path: Path
    size: int = 0
    """Size in bytes."""
    raw: RawPcm | None = None
    """The format if the type is audio/pcm, which does not describe itself."""
    fields: list[tuple[str, str]] = field(default_factory=list)
    """All fields, before and after the file."""


@asynccontextmanager
async def receive(request: web.Request, most_bytes: int, room: ByteBudget) -> AsyncIterator[Upload]:
    """Receives the form and yields its file, which exists until the end of the block and counts
    towards `room`. Raises ApiError: 400 and 415 for an invalid form or no file, 408 if it stalls,
    413 if it announces or exceeds `most_bytes`, 503 if `room` is exhausted."""
    if request.content_type != "multipart/form-data":
        words = "send multipart/form-data with the field file, as: curl -F file=@NAME"
        raise ApiError(415, words)
    if (request.content_length or 0) > most_bytes + MAX_FIELDS_BYTES:
        raise _too_large(most_bytes)
    allow_body(request, most_bytes + MAX_FIELDS_BYTES)
    # Private, and removed whatever happens.
    with tempfile.TemporaryDirectory(prefix="offhook-upload-") as folder:
        form = _Form(request, Path(folder), most_bytes, room)
        try:
            upload = await form.read()
            if upload is None:
                raise ApiError(400, "no file: send it in the field file", "file")
            yield upload
        finally:
            room.release(form.kept)


def _too_large(most_bytes: int) -> ApiError:
    words = f"the file is larger than {most_bytes >> 20} MB, the most taken here"
    return ApiError(413, words, "file")


class _Form:
    def __init__(
        self, request: web.Request, folder: Path, most_bytes: int, room: ByteBudget
    ) -> None:
        self.kept = 0
        """Bytes reserved in `room`."""
        self._room = room
        self._request = request
        self._folder = folder
        self._most_bytes = most_bytes
        self._fields: list[tuple[str, str]] = []
        self._field_bytes = 0
        self._received = 0
        self._began = time.monotonic()

    async def read(self) -> Upload | None:
        """Returns None if there is no file. Raises ApiError."""
        upload: Upload | None = None
        try:
            reader = reader_of(self._request)
            while (part := await self._next(reader)) is not None:
                if (name := name_of(part)) != "file":
                    await self._read_field(part, name)
                elif upload is not None:
                    raise ApiError(400, "more than one file: send one", "file")
                else:
                    upload = await self._read_file(part)
        except MALFORMED as error:
            why = error.message if isinstance(error, HttpProcessingError) else str(error)
            words = f"the body is not complete multipart/form-data ({why.strip()[:200]})"
            raise ApiError(400, words) from error
        if upload is not None:
            upload.fields = self._fields
        return upload

    async def _next(self, reader: MultipartReader) -> BodyPartReader | None:
        async with self._timeout():
            part = await reader.next()
        if part is None or isinstance(part, BodyPartReader):
            return part
        raise ValueError("a form within the form")

    async def _block(self, part: BodyPartReader) -> bytes:
        """Raises ApiError 408."""
        async with self._timeout():
            block = await part.read_chunk(BLOCK_BYTES)
        self._received += len(block)
        took = time.monotonic() - self._began - STALL_S
        if took > 0 and self._received < took * LEAST_BYTES_PER_S:
            raise ApiError(408, f"the upload is slower than {LEAST_BYTES_PER_S} bytes a second")
        return block

    @asynccontextmanager
    async def _timeout(self) -> AsyncIterator[None]:
        try:
            async with asyncio.timeout(STALL_S):
                yield
        except TimeoutError as error:
            raise ApiError(408, f"nothing of the upload came for {STALL_S:g} s") from error

    async def _read_field(self, part: BodyPartReader, name: str) -> None:
        if not name:
            raise ValueError("a part has no name")
        if name == "file[]" or (part.filename is not None and name not in FIELDS):
            words = f"{name[:64]} is a file: send one, in the field file"
            raise ApiError(400, words, name[:64])
        if len(self._fields) >= MAX_FIELDS:
            raise ApiError(400, f"there are more than {MAX_FIELDS} fields")
        data = bytearray()
        while not part.at_eof():
            data += await self._block(part)
            if len(data) > MAX_FIELD_BYTES:
                raise ApiError(400, f"a field is longer than {MAX_FIELD_BYTES} bytes", name[:64])
        self._field_bytes += len(name) + len(data)
        if self._field_bytes > MAX_FIELDS_BYTES:
            raise ApiError(400, f"the fields are longer than {MAX_FIELDS_BYTES} bytes together")
        try:
            self._fields.append((name, data.decode()))
        except UnicodeDecodeError as error:
            raise ApiError(400, "this field is not valid UTF-8", name[:64]) from error

    async def _read_file(self, part: BodyPartReader) -> Upload:
        if part.filename is None and "Content-Type" not in part.headers:
            words = "file is text rather than a file: with curl, use -F file=@NAME"
            raise ApiError(400, words, "file")
        # FFmpeg uses the file extension if the content is ambiguous.
        suffix = re.search(r"\.[A-Za-z0-9]{1,8}$", part.filename or "")
        path = self._folder / f"upload{suffix[0].lower() if suffix else ''}"
        upload = Upload(path, raw=_raw_pcm(part.headers.get("Content-Type", "")))
        try:
            with path.open("wb") as file:
                upload.size = await self._write(part, file)
        except ConnectionError:  # of the client
            raise
        except OSError as error:
            words = f"the file cannot be kept: {error.strerror or error}"
            raise ApiError(503, words, retry_after_s=30) from error
        if not upload.size:
            raise ApiError(400, "the file is empty", "file")
        return upload

    async def _write(self, part: BodyPartReader, file: BinaryIO) -> int:
        size, waiting = 0, bytearray()
        while not part.at_eof():
            block = await self._block(part)
            size += len(block)
            if size > self._most_bytes:
                raise _too_large(self._most_bytes)
            self._room.reserve(len(block))
            self.kept += len(block)
            waiting += block
            if len(waiting) >= WRITE_BYTES:
                await asyncio.to_thread(file.write, waiting)
                waiting = bytearray()
        await asyncio.to_thread(file.write, waiting)
        return size


def _raw_pcm(content_type: str) -> RawPcm | None:
    """Parses audio/pcm;rate=24000;channels=1; None for another type. Raises ApiError."""
    kind, *parameters = (part.strip() for part in content_type.lower().split(";"))
    if kind != "audio/pcm":
        return None
    given = dict(part.partition("=")[::2] for part in parameters)
    rate, channels = given.get("rate", ""), given.get("channels", "1")
    if not (rate.isdecimal() and RAW_RATES[0] <= int(rate[:9]) <= RAW_RATES[1]):
        least, most = RAW_RATES
        words = f"raw PCM needs its rate, {least} to {most} Hz: type=audio/pcm;rate=16000"
        raise ApiError(400, words, "file")
    if not (channels.isdecimal() and 1 <= int(channels[:9]) <= MAX_RAW_CHANNELS):
        raise ApiError(400, f"channels of audio/pcm is not 1 to {MAX_RAW_CHANNELS}", "file")
    return RawPcm(int(rate), int(channels))
