"""The voices of a remote worker, over HTTP (`voices_protocol`)."""

import asyncio
from collections.abc import AsyncIterator, Awaitable
from typing import TypeVar

import aiohttp
import numpy as np

from offhook.media.tasks_io import first_of
from offhook.pipeline.speech.remote.pool_io import Workers
from offhook.pipeline.speech.remote.requests_io import answer, failing, read_more
from offhook.pipeline.speech.remote.tts_protocol import MAX_WAITING_CHARS, query
from offhook.pipeline.speech.remote.voices_protocol import (
    CLONE_PATH,
    VOICES_PATH,
    error_of,
    parse_list,
    parse_voice,
)
from offhook.pipeline.speech.remote.worker_protocol import samples_of
from offhook.pipeline.speech.synthesizer import (
    KnownVoice,
    Speech,
    TextTooLong,
    UnknownVoice,
    VoiceOptions,
)
from offhook.pipeline.speech.voice_cloning import NAME, Sample

NO_SOUND = np.zeros(0, np.int16)
T = TypeVar("T")


class RemoteVoices:
    """Lists, adds and removes a worker's voices; see `VoiceCloner`."""

    def __init__(self, client: Workers) -> None:
        self._client = client

    async def known(self) -> list[KnownVoice]:
        async with failing(self._client):
            return parse_list(await answer(await self._client.ask("GET", VOICES_PATH), error_of))

    async def add(self, name: str, sample: Sample, language: str) -> KnownVoice:
        form = _form(sample, "audio_sample", {"name": name, "language": language})
        async with failing(self._client):
            return parse_voice(
                await answer(await self._client.ask("POST", VOICES_PATH, form), error_of)
            )

    async def remove(self, name: str) -> None:
        if not NAME.fullmatch(name):
            raise UnknownVoice(f"there is no voice {name[:80]!r}")
        async with failing(self._client):
            await answer(await self._client.ask("DELETE", f"{VOICES_PATH}/{name}"), error_of)


class RemoteClone:
    """A reply in a one-time cloned voice; implements `SynthesizerStream`. It is requested once the
    text is complete and has no word marks: the whole text comes at the end."""

    def __init__(self, client: Workers, sample: Sample, options: VoiceOptions) -> None:
        self._client = client
        self._sample = sample
        self._options = options
        self._text = ""
        self._complete = asyncio.Event()
        self._cancelled: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def write(self, text: str) -> None:
        if len(self._text) + len(text) > MAX_WAITING_CHARS:
            raise TextTooLong(f"more than {MAX_WAITING_CHARS} characters are waiting to be spoken")
        self._text += text

    def end(self) -> None:
        self._complete.set()

    def cancel(self) -> None:
        if not self._cancelled.done():
            self._cancelled.set_result(None)

    async def __aiter__(self) -> AsyncIterator[Speech]:
        await self._unless_cancelled(self._complete.wait())
        if self._text.strip():
            async with failing(self._client):
                async for data in self._sound():
                    yield Speech(samples_of(data), "")
        if self._text and not self._cancelled.done():
            yield Speech(NO_SOUND, self._text)

    async def _sound(self) -> AsyncIterator[bytes]:
        """Yields whole samples. Raises any of LOST, and errors of `error_of`."""
        response = await self._unless_cancelled(self._client.ask("POST", CLONE_PATH, self._form()))
        if response is None:
            return
        try:
            if response.status != 200:
                await answer(response, error_of)
            rest = b""
            while (data := await self._unless_cancelled(read_more(response))) is not None and data:
                data = rest + data
                whole = len(data) & ~1
                rest = data[whole:]
                yield data[:whole]
        finally:
            response.close()  # hangs up, unless everything was read

    def _form(self) -> aiohttp.FormData:
        more = {"input": self._text, "response_format": "pcm", **query(self._options)}
        for understood in ("live", "whole_text"):  # a clone always waits for the whole text
            more.pop(understood, None)
        return _form(self._sample, "file", more)

    async def _unless_cancelled(self, work: Awaitable[T]) -> T | None:
        done, _ = await first_of(work, asyncio.shield(self._cancelled))
        return done


def _form(sample: Sample, field: str, more: dict[str, str]) -> aiohttp.FormData:
    form = aiohttp.FormData()
    for name, value in more.items():
        form.add_field(name, value)
    form.add_field("text", sample.text)
    form.add_field("consent", str(sample.consent).lower())
    form.add_field(field, sample.file, filename="sample", content_type="application/octet-stream")
    return form
