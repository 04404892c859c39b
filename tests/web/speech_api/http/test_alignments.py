"""When the words of a known text are spoken, over HTTP and from another server."""

from typing import Any

import aiohttp
import numpy as np
import pytest

from offhook.media.pcm import RATE_IN, Pcm
from offhook.pipeline.speech.errors import EngineError, UnsupportedRequest
from offhook.pipeline.speech.recognizer import Word
from offhook.pipeline.speech.remote.recognizer_io import RemoteRecognizer
from offhook.pipeline.speech.streams.speech_gate_io import GatedRecognizer
from tests.web.speech_api.conftest import Quick, ScriptedRecognizer, at_once
from tests.web.speech_api.recordings import tone, wav

PATH = "/v1/audio/alignments"


class Aligner(ScriptedRecognizer):
    """Spreads the words of a text over its sound; speaks no Swedish."""

    async def align(self, pcm: Pcm, text: str, language: str) -> tuple[Word, ...]:
        if language == "sv":
            raise UnsupportedRequest("words of 'sv' cannot be aligned, only of de, en")
        words, audio_ms = text.split(), len(pcm) * 1000 // RATE_IN
        each = audio_ms // len(words)
        return tuple(Word(word, i * each, (i + 1) * each) for i, word in enumerate(words))


def aligning(quick: Quick) -> None:
    quick.server.engines["transcription"] = at_once(Aligner(), "scripted", "scripted-ears")


async def ask(quick: Quick, sound: bytes, **fields: str) -> tuple[int, dict[str, Any]]:
    form = aiohttp.FormData(fields)
    form.add_field("file", sound, filename="a.wav")
    async with quick.client.post(PATH, data=form) as response:
        return response.status, await response.json()


async def test_each_word_has_its_times(quick_server: Quick) -> None:
    aligning(quick_server)
    answer = await ask(quick_server, wav(tone(2)), text="It is ten.", language="en-US")
    words = [("It", 0.0, 0.666), ("is", 0.666, 1.332), ("ten.", 1.332, 1.998)]
    assert answer == (
        200,
        {
            "language": "english",
            "duration": 2.0,
            "text": "It is ten.",
            "words": [{"word": w, "start": start, "end": end} for w, start, end in words],
        },
    )


@pytest.mark.parametrize(
    ("fields", "message", "param"),
    [
        ({"text": "hej", "language": "sv"}, "words of 'sv' cannot be aligned", None),
        ({"text": "hello", "language": ""}, "language is empty", "language"),
        ({"text": "hello", "language": "klingonish"}, "language is", "language"),
        ({"text": "", "language": "en"}, "text", "text"),
        ({"language": "en"}, "text", "text"),
        ({"text": "hello", "language": "en", "colour": "red"}, "no field 'colour'", "colour"),
    ],
)
async def test_what_cannot_be_aligned_is_refused_in_words(
    fields: dict[str, str], message: str, param: str | None, quick_server: Quick
) -> None:
    aligning(quick_server)
    status, answer = await ask(quick_server, wav(tone(1)), **fields)
    assert (status, answer["error"]["param"]) == (400, param)
    assert message in answer["error"]["message"]


async def test_a_file_is_not_too_long_and_has_sound(quick_server: Quick) -> None:
    aligning(quick_server)
    fields = {"text": "hello", "language": "en"}
    status, answer = await ask(quick_server, wav(tone(181)), **fields)
    assert status == 400
    assert "3 minutes" in answer["error"]["message"]
    status, answer = await ask(quick_server, b"no sound", **fields)
    assert (status, answer["error"]["param"]) == (400, "file")


async def test_an_engine_without_an_aligner_says_what_has_one(quick_server: Quick) -> None:
    gated = GatedRecognizer(ScriptedRecognizer())
    for engine in (ScriptedRecognizer(), gated):
        quick_server.server.engines["transcription"] = at_once(engine, "scripted", "ears")
        status, answer = await ask(quick_server, wav(tone(1)), text="hello", language="en")
        assert (status, answer["error"]["code"]) == (400, "cannot_align")
        assert "qwen3-asr" in answer["error"]["message"]


async def test_a_worker_elsewhere_aligns(quick_server: Quick) -> None:
    remote = RemoteRecognizer(quick_server.url)
    pcm = np.zeros(RATE_IN, np.int16)
    with pytest.raises(UnsupportedRequest, match="aligns no text"):
        await remote.align(pcm, "Grüß Gott", "de")
    aligning(quick_server)
    words = await remote.align(pcm, "Grüß Gott", "de")
    assert words == (Word("Grüß", 0, 500), Word("Gott", 500, 1000))
    with pytest.raises(UnsupportedRequest, match="words of 'sv'"):
        await remote.align(pcm, "hej", "sv")
    await remote.close()
    nobody = RemoteRecognizer("http://127.0.0.1:9")
    with pytest.raises(EngineError):
        await nobody.align(pcm, "hello", "en")
    await nobody.close()
