"""A synthesizer behind OpenAI's API: whatever the server does, no word is lost."""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import numpy as np
import pytest

from offhook.media.pcm import RATE_OUT
from offhook.pipeline.speech.errors import EngineError
from offhook.pipeline.speech.openai import synthesizer_io as openai_synthesizer_io
from offhook.pipeline.speech.openai.synthesizer_io import OpenAiSpeech, OpenAiSynthesizer
from offhook.pipeline.speech.streams import retry
from offhook.pipeline.speech.synthesizer import Speech, TextTooLong, UnknownVoice, VoiceOptions
from offhook.pipeline.speech.voice.clauses import SENTENCE_PAUSE_MS, WORD_PAUSE_MS
from offhook.pipeline.speech.voice.silence import LEAD, TAIL
from tests.pipeline.speech.openai.openai_server import (
    WORD,
    OpenAiStub,
    cut_after,
    endless,
    openai_stub,
    says,
    stands_still,
    status,
    tones,
)
from tests.support.waiting import HANGS_S, until

TEXT = "One, two. Three four five, six seven. Eight nine."


@asynccontextmanager
async def synthesizer_of(stub: OpenAiStub, **how: Any) -> AsyncIterator[OpenAiSynthesizer]:
    synthesizer = OpenAiSynthesizer(stub.url, **how)
    yield synthesizer
    await synthesizer.close()


async def spoken(stream: OpenAiSpeech) -> list[Speech]:
    async with asyncio.timeout(HANGS_S):
        return [piece async for piece in stream]


def sound_of(pieces: list[Speech]) -> list[int]:
    """What is heard, without the pauses."""
    sound = np.concatenate([np.zeros(0, np.int16), *(piece.pcm for piece in pieces)])
    return sound[sound != 0].tolist()


def pauses_ms(pieces: list[Speech]) -> list[int]:
    """Those before, between and after the words."""
    silent = np.concatenate([piece.pcm for piece in pieces]) == 0
    edges = np.flatnonzero(np.diff(np.concatenate([[False], silent, [False]]).astype(int)))
    return [int(ms) for ms in (edges[1::2] - edges[::2]) * 1000 // RATE_OUT]


def said(stream: OpenAiSpeech, text: str) -> OpenAiSpeech:
    stream.write(text)
    stream.end()
    return stream


async def test_every_word_is_said_and_marked_where_it_ends() -> None:
    async with openai_stub() as stub, synthesizer_of(stub) as synthesizer:
        pieces = await spoken(said(synthesizer.open(), TEXT))
    assert "".join(piece.text for piece in pieces) == TEXT
    assert sound_of(pieces) == tones(TEXT).tolist()
    inputs = [asked.fields["input"] for asked in stub.of("speak")]
    assert inputs == ["One, two.", "Three four five, six seven.", "Eight nine."]


async def test_marks_are_exact_where_a_clause_ends() -> None:
    async with openai_stub() as stub, synthesizer_of(stub) as synthesizer:
        pieces = await spoken(said(synthesizer.open(), TEXT))
    heard, samples = "", 0
    ends = {}
    for piece in pieces:
        heard += piece.text
        samples += len(piece.pcm)
        ends.setdefault(heard, samples)
    assert ends["One, two. "] == 2 * WORD
    pause = SENTENCE_PAUSE_MS * RATE_OUT // 1000
    assert ends["One, two. Three four five, six seven. "] == 7 * WORD + pause


@pytest.mark.parametrize("silence_s", [0.0, 0.3])
async def test_silence_around_a_clause_is_replaced_by_the_pause_of_a_speaker(
    silence_s: float,
) -> None:
    text = "One, two. Three four five, six seven. Eight nine. Ten " + "eleven " * 40 + "twelve."
    async with openai_stub(silence_s=silence_s) as stub, synthesizer_of(stub) as synthesizer:
        pieces = await spoken(said(synthesizer.open(), text))
    assert len(sound_of(pieces)) == pytest.approx(len(tones(text)), abs=RATE_OUT // 20)
    assert "".join(piece.text for piece in pieces) == text
    around = (LEAD + TAIL) * 1000 // RATE_OUT if silence_s else 0
    between = [SENTENCE_PAUSE_MS] * 3 + [WORD_PAUSE_MS]
    wanted = [pause + around for pause in between]
    found = pauses_ms(pieces)
    if silence_s:
        assert found.pop(0) <= LEAD * 1000 // RATE_OUT
        assert found.pop() <= TAIL * 1000 // RATE_OUT
    assert found == pytest.approx(wanted, abs=5)


async def test_a_clause_that_is_silent_is_over() -> None:
    async with openai_stub() as stub, synthesizer_of(stub) as synthesizer:
        stub.faults.append(says(bytes(RATE_OUT), "audio/pcm"))
        pieces = await spoken(said(synthesizer.open(), "One, two. Three four."))
    assert "".join(piece.text for piece in pieces) == "One, two. Three four."
    assert sound_of(pieces) == tones("Three four.").tolist()
    assert len(stub.asked) == 1


async def test_what_the_server_does_not_read_itself_is_sent_as_words() -> None:
    text = "It costs $12.50, on **2024-01-15**. 🙂 See you at 9:30."
    async with openai_stub() as stub, synthesizer_of(stub, normalise=True) as synthesizer:
        pieces = await spoken(said(synthesizer.open(), text))
        as_it_is = VoiceOptions(normalise=False)
        await spoken(said(synthesizer.open(as_it_is), "At 9:30."))
    assert "".join(piece.text for piece in pieces) == text
    inputs = [asked.fields["input"] for asked in stub.of("speak")]
    assert " ".join(inputs[:-1]) == (
        "It costs twelve dollars and fifty cents, on January fifteenth, twenty twenty-four. "
        "See you at nine thirty."
    )
    assert inputs[-1] == "At 9:30."


async def test_marks_inside_a_clause_follow_its_letters_when_all_of_it_is_there() -> None:
    async with openai_stub() as stub, synthesizer_of(stub) as synthesizer:
        stream = said(synthesizer.open(), "aaaa bbbb cccc dddd")
        await until(lambda: stub.asked and stub.asked[0].done)
        await asyncio.sleep(0.1)
        pieces = await spoken(stream)
    assert [piece.text for piece in pieces] == ["aaaa ", "bbbb ", "cccc ", "dddd"]
    assert [len(piece.pcm) for piece in pieces] == pytest.approx([WORD] * 4, rel=0.1)


async def test_the_first_sound_comes_before_the_clause_is_whole() -> None:
    async with openai_stub(word_s=0.2) as stub, synthesizer_of(stub) as synthesizer:
        stream = said(synthesizer.open(), "One two three four")
        async for piece in stream:
            assert len(piece.pcm)
            assert not stub.asked[0].done
            break
        stream.cancel()


async def test_words_are_marked_while_the_clause_still_comes() -> None:
    async with openai_stub(word_s=0.05) as stub, synthesizer_of(stub) as synthesizer:
        synthesizer.letters_per_s = 60.0
        early = []
        async for piece in said(synthesizer.open(), "One two three four five six seven"):
            early.append(piece.text and not stub.asked[0].done)
    assert sum(map(bool, early)) >= 3


async def test_text_is_spoken_as_it_is_written() -> None:
    async with openai_stub() as stub, synthesizer_of(stub) as synthesizer:
        stream = synthesizer.open()
        stream.write("Hello there. And")
        await until(lambda: stub.asked and stub.asked[0].done)
        assert [asked.fields["input"] for asked in stub.asked] == ["Hello there."]
        stream.write(" more.")
        stream.end()
        pieces = await spoken(stream)
    assert "".join(piece.text for piece in pieces) == "Hello there. And more."


async def test_the_next_clause_is_made_while_this_one_is_spoken() -> None:
    async with openai_stub(word_s=0.1) as stub, synthesizer_of(stub) as synthesizer:
        await spoken(said(synthesizer.open(), "One two three four five six seven. " * 4))
        assert stub.most == 2


async def test_no_more_is_asked_for_while_much_waits_to_be_taken(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(openai_synthesizer_io, "MAX_UNREAD_S", 0.5)
    async with openai_stub() as stub, synthesizer_of(stub) as synthesizer:
        text = "One two three four. " * 10
        stream = said(synthesizer.open(), text)
        await asyncio.sleep(0.4)
        assert len(stub.asked) <= 3
        pieces = await spoken(stream)
    assert sound_of(pieces) == tones(text).tolist()


async def test_what_says_nothing_is_not_asked_for() -> None:
    async with openai_stub() as stub, synthesizer_of(stub) as synthesizer:
        pieces = await spoken(said(synthesizer.open(), "Yes. — \n\n*** \n"))
        assert not sound_of([*await spoken(said(synthesizer.open(), "  ")), *pieces[1:]])
    assert "".join(piece.text for piece in pieces) == "Yes. — \n\n*** \n"
    assert len(stub.asked) == 1


async def test_a_reply_without_text_ends() -> None:
    async with openai_stub() as stub, synthesizer_of(stub) as synthesizer:
        stream = synthesizer.open()
        stream.end()
        assert await spoken(stream) == []
    assert not stub.asked


async def test_cancelling_aborts_the_request_and_ends_the_iteration() -> None:
    async with openai_stub(word_s=0.1) as stub, synthesizer_of(stub) as synthesizer:
        stream = said(synthesizer.open(), "One two three four five six seven eight.")
        async for _ in stream:
            stream.cancel()
        await until(lambda: not stub.now)
        assert not stub.asked[0].done
        await until(lambda: not stream.tasks)


async def test_options_reach_the_server() -> None:
    options = VoiceOptions("nova", "de", "in a whisper", 1.5, normalise=False, seed=7)
    async with openai_stub() as stub, synthesizer_of(stub, model="m") as synthesizer:
        await spoken(said(synthesizer.open(options), "Hallo."))
    assert stub.asked[0].fields == {
        "model": "m",
        "input": "Hallo.",
        "voice": "nova",
        "response_format": "pcm",
        "speed": 1.5,
        "instructions": "in a whisper",
        "stream": True,
        "language": "de",
        "normalise": False,
        "seed": 7,
    }


async def test_a_server_with_openais_fields_only_gets_only_those() -> None:
    async with openai_stub(own_fields_only=True) as stub, synthesizer_of(stub) as synthesizer:
        for _ in range(2):
            pieces = await spoken(said(synthesizer.open(VoiceOptions(language="en")), "Yes."))
            assert sound_of(pieces) == tones("Yes.").tolist()
    assert ["stream" in asked.fields for asked in stub.asked] == [True, False, False]


async def test_sound_at_another_rate_is_made_24_khz() -> None:
    async with openai_stub(rate=12_000) as stub, synthesizer_of(stub) as synthesizer:
        pieces = await spoken(said(synthesizer.open(), "One two three."))
    assert len(sound_of(pieces)) == pytest.approx(3 * WORD, abs=20)


@pytest.mark.parametrize(
    "voices",
    [{"voices": ["ann", "bob"]}, {"data": [{"id": "ann"}, {"name": "bob"}]}],
    ids=["names", "objects"],
)
async def test_the_servers_voices_are_known_after_the_start(voices: Any) -> None:
    async with openai_stub(voices=voices) as stub, synthesizer_of(stub) as synthesizer:
        await synthesizer.start()
        assert synthesizer.voices() == ["ann", "bob"]
        await spoken(said(synthesizer.open(), "Hi."))
        assert stub.asked[-1].fields["voice"] == "ann"
        with pytest.raises(UnknownVoice, match="no voice 'eve', only ann, bob"):
            synthesizer.open(VoiceOptions("eve"))


async def test_a_server_without_a_list_of_voices_is_asked_for_openais_usual_one() -> None:
    async with openai_stub() as stub, synthesizer_of(stub) as synthesizer:
        await synthesizer.start()
        assert synthesizer.voices() == []
        assert stub.asked[0].fields["voice"] == "alloy"
        synthesizer.open(VoiceOptions("anything")).cancel()


async def test_too_much_text_is_refused() -> None:
    async with openai_stub() as stub, synthesizer_of(stub) as synthesizer:
        stream = synthesizer.open()
        with pytest.raises(TextTooLong):
            stream.write("word " * 20_001)
        stream.cancel()


# --- what goes wrong ---

PASSING = {
    "500": status(500),
    "503": status(503, "loading", Retry_After="0.2"),
    "429": status(429, "slow down", Retry_After="0.2"),
    "cut before the sound": cut_after(b"", "audio/pcm"),
    "nothing": says(b"", "audio/pcm"),
}


@pytest.mark.parametrize("fault", PASSING.values(), ids=PASSING)
async def test_a_fault_that_passes_costs_no_word(fault: Any) -> None:
    async with openai_stub() as stub, synthesizer_of(stub) as synthesizer:
        stub.faults.append(fault)
        pieces = await spoken(said(synthesizer.open(), TEXT))
    assert "".join(piece.text for piece in pieces) == TEXT
    assert sound_of(pieces) == tones(TEXT).tolist()


async def test_a_clause_that_is_cut_in_the_middle_goes_on_at_the_words_without_mark() -> None:
    text = "One two three four five six."
    async with openai_stub() as stub, synthesizer_of(stub) as synthesizer:
        synthesizer.letters_per_s = 30.0  # a word of three letters takes a tenth
        stub.faults.append(cut_after(tones("One two three four").tobytes(), "audio/pcm"))
        pieces = await spoken(said(synthesizer.open(), text))
    assert "".join(piece.text for piece in pieces) == text
    again = stub.asked[-1].fields["input"]
    assert text.endswith(again)
    assert 0 < len(again) < len(text)
    before = next(n for n, piece in enumerate(pieces) if piece.text == "six.")
    assert sum(len(piece.pcm) for piece in pieces[: before + 1]) >= 6 * WORD - 10


async def test_sound_that_nobody_has_taken_is_not_said_twice() -> None:
    text = "One two three four five six."
    async with openai_stub() as stub, synthesizer_of(stub) as synthesizer:
        stub.faults.append(cut_after(tones("One two three four").tobytes(), "audio/pcm"))
        stream = said(synthesizer.open(), text)
        await until(lambda: stub.asked and stub.asked[-1].done)
        await asyncio.sleep(0.1)
        pieces = await spoken(stream)
    assert sound_of(pieces) == tones(text).tolist()


async def test_a_server_that_is_always_cut_is_given_up_but_not_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(retry, "LOSSES_S", 2.0)
    async with openai_stub() as stub, synthesizer_of(stub) as synthesizer:
        stub.faults += [cut_after(tones("One").tobytes(), "audio/pcm")] * 9
        with pytest.raises(EngineError, match="closed the connection early"):
            await spoken(said(synthesizer.open(), "Onetwothree."))
        assert len(stub.faults) == 9 - (retry.MAX_LOSSES + 1)


HOPELESS = {
    "400": (status(400, "input is odd"), "input is odd"),
    "JSON": (says(b'{"ok": true}', "application/json"), "application/json instead of sound"),
    "a page": (says(b"<html>", "text/html"), "text/html instead of sound"),
    "WAV": (says(b"RIFF" + bytes(99), "audio/wav"), "sends WAV, though raw PCM"),
    "MP3": (says(b"\xff\xfb" + bytes(99), "audio/mpeg"), "sends MP3, though raw PCM"),
    "never ending": (endless(bytes(1 << 16), "audio/pcm"), "is too long"),
}


@pytest.mark.parametrize(("fault", "words"), HOPELESS.values(), ids=HOPELESS)
async def test_what_cannot_be_ends_the_reply_with_the_reason(
    fault: Any, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(openai_synthesizer_io, "MAX_CLAUSE_S", 5)
    async with openai_stub() as stub, synthesizer_of(stub) as synthesizer:
        stub.faults += [fault] * 4
        with pytest.raises(EngineError, match=words) as raised:
            await spoken(said(synthesizer.open(), "Hello."))
        assert stub.url in str(raised.value)


async def test_what_was_made_before_a_fault_is_still_heard() -> None:
    async with openai_stub() as stub, synthesizer_of(stub) as synthesizer:
        stream = synthesizer.open()
        stream.write("One two. Thr")
        await until(lambda: stub.asked and stub.asked[0].done)
        stub.faults += [status(400)] * 2
        stream.write("ee.")
        stream.end()
        text = ""
        with pytest.raises(EngineError):  # noqa: PT012
            async for piece in stream:
                text += piece.text
    assert text == "One two. "


async def test_a_server_that_stands_still_is_given_up_in_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(openai_synthesizer_io, "SOUND_TIMEOUT_S", 0.2)
    monkeypatch.setattr(openai_synthesizer_io, "GIVE_UP_S", 0.4)
    async with openai_stub() as stub, synthesizer_of(stub) as synthesizer:
        stub.faults += [stands_still()] * 9
        with pytest.raises(EngineError, match=r"took longer than 0\.2 s"):
            await spoken(said(synthesizer.open(), "Hello."))


async def test_sound_that_stops_in_the_middle_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(openai_synthesizer_io, "BODY_TIMEOUT_S", 0.3)
    monkeypatch.setattr(openai_synthesizer_io, "GIVE_UP_S", 0.5)
    async with openai_stub(word_s=0.9) as stub, synthesizer_of(stub) as synthesizer:
        with pytest.raises(EngineError, match=r"took longer than 0\.3 s"):
            await spoken(said(synthesizer.open(), "Hello, you."))


async def test_a_wrong_key_is_named_and_never_written(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    async with (
        openai_stub(key="sesame") as stub,
        synthesizer_of(stub, api_key="sk-my-secret") as synthesizer,
    ):
        with pytest.raises(EngineError, match=r"valid API key.*\[tts\] api_key") as raised:
            await synthesizer.start()
    assert "sk-my-secret" not in str(raised.value) + caplog.text


async def test_closing_ends_replies_in_progress() -> None:
    async with openai_stub(word_s=0.2) as stub:
        synthesizer = OpenAiSynthesizer(stub.url)
        reading = asyncio.create_task(spoken(said(synthesizer.open(), TEXT)))
        await until(lambda: stub.now)
        await synthesizer.close()
        with pytest.raises(EngineError, match="closed"):
            await reading


async def test_nothing_is_left_of_many_replies() -> None:
    async with openai_stub() as stub, synthesizer_of(stub) as synthesizer:
        for _ in range(20):
            await spoken(said(synthesizer.open(), "Yes."))
        assert not synthesizer._streams
        turns = synthesizer._server.turns
        assert (turns._running, turns._waiting) == (0, [])
