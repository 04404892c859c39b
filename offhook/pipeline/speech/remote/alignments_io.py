"""The alignment of a text by a remote worker, over HTTP (`alignments_protocol`)."""

import aiohttp

from offhook.media.pcm import RATE_IN, Pcm
from offhook.pipeline.speech.recognizer import Word
from offhook.pipeline.speech.remote.alignments_protocol import (
    ALIGNMENTS_PATH,
    error_of,
    parse_words,
)
from offhook.pipeline.speech.remote.pool_io import Workers
from offhook.pipeline.speech.remote.requests_io import answer, failing
from offhook.pipeline.speech.remote.worker_protocol import bytes_of


async def align(workers: Workers, pcm: Pcm, text: str, language: str) -> tuple[Word, ...]:
    """Asks a worker when the words of a text are spoken; see `AlignsText`."""
    form = aiohttp.FormData({"text": text, "language": language})
    kind = f"audio/pcm;rate={RATE_IN}"
    form.add_field("file", bytes_of(pcm), filename="audio.pcm", content_type=kind)
    async with failing(workers):
        return parse_words(await answer(await workers.ask("POST", ALIGNMENTS_PATH, form), error_of))
