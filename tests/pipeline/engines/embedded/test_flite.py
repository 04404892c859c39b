"""Flite: what is heard of a reply, and that its marks are where its words end."""

import asyncio
import ctypes
import itertools
from functools import cache

import numpy as np
import pocketsphinx
import pytest
import soxr
from hypothesis import given, settings
from hypothesis import strategies as st

from offhook.media.pcm import RATE_IN, RATE_OUT, dbfs
from offhook.pipeline.engines.embedded.embedded_speech_io import MAX_WAITING_CHARS
from offhook.pipeline.engines.embedded.flite_io import FliteSynthesizer
from offhook.pipeline.speech.synthesizer import (
    DEFAULT_VOICE,
    Speech,
    TextTooLong,
    UnknownVoice,
    VoiceOptions,
)

try:
    ctypes.CDLL("libflite.so.1")
except OSError:
    pytest.skip("libflite1 is not installed", allow_module_level=True)

REPLY = (
    "Good morning, this is the front desk. We are open from nine in the morning, and the doctor "
    "will see you on Friday. Your total is $25, with the parking at 10:30 a.m. Is that all right?"
)
WORDS = ("hello", "Dr.", "$3,000.50", "10:30", "7%", "well-known", "it’s", "é", "&", "a_b", "3/4")
SIGNS = ("—", "...", "😀", "#5", "(so)", "“quoted”", "*bold*", "bob@x.com", "C++", "\n", "?!")


async def say(*chunks: str, options: VoiceOptions = DEFAULT_VOICE) -> list[Speech]:
    synthesizer = FliteSynthesizer()
    await synthesizer.start()
    reply = synthesizer.open(options)
    for chunk in chunks:
        reply.write(chunk)
    reply.end()
    pieces = [piece async for piece in reply]
    await synthesizer.close()
    return pieces


def sound(pieces: list[Speech]) -> np.ndarray:
    return np.concatenate([piece.pcm for piece in pieces])


@cache
def decoder() -> pocketsphinx.Decoder:
    return pocketsphinx.Decoder(samprate=RATE_IN, loglevel="FATAL", fwdflat=False, maxhmmpf=3000)


def hear(pcm: np.ndarray) -> list[str]:
    """What PocketSphinx hears of 24 kHz sound. Without silence before it, it misses the onset."""
    silence = np.zeros(RATE_IN // 5, np.int16)
    at_16k = np.concatenate([silence, soxr.resample(pcm, RATE_OUT, RATE_IN), silence])
    decoder().reinit_feat()
    decoder().start_utt()
    decoder().process_raw(at_16k.tobytes())
    decoder().end_utt()
    hypothesis = decoder().hyp()
    return hypothesis.hypstr.split() if hypothesis else []


async def test_the_sound_up_to_a_mark_has_the_words_up_to_it() -> None:
    pieces = await say("The weather in the city is very cold today and people stay at home.")
    words = [number for number, piece in enumerate(pieces) if piece.text]
    assert len(words) == 14
    for count in (5, 14):
        heard = hear(sound(pieces[: words[count - 1] + 1]))
        assert abs(len(heard) - count) <= 1, (count, heard)
        spoken = [piece.text.strip(" .").lower() for piece in pieces if piece.text][:count]
        assert sum(map(str.__eq__, spoken, heard)) >= 0.6 * count, (count, heard)


async def test_a_reply_is_understood() -> None:
    heard = hear(sound(await say("We are open from nine in the morning. The doctor will see you.")))
    assert {"from", "nine", "morning", "doctor", "will", "see", "you"} <= set(heard)


async def test_loud_enough_not_clipped_and_at_once() -> None:
    pcm = sound(await say(REPLY))
    assert abs(dbfs(pcm) + 20) < 2
    assert np.abs(pcm.astype(int)).max() < 31_000
    first_loud = np.flatnonzero(np.abs(pcm.astype(int)) > 300)[0]
    assert first_loud < RATE_OUT * 20 // 1000
    assert len(pcm) - np.flatnonzero(np.abs(pcm.astype(int)) > 300)[-1] < RATE_OUT * 60 // 1000


@pytest.mark.parametrize("speed", [0.5, 2.0])
async def test_speed_stretches_words_and_pauses_and_lasts_one_reply(speed: float) -> None:
    usual = await say(REPLY)
    pieces = await say(REPLY, options=VoiceOptions(speed=speed))
    assert len(sound(pieces)) == pytest.approx(len(sound(usual)) / speed, rel=0.05)
    for usual_piece, piece in zip(usual, pieces, strict=True):
        assert piece.text == usual_piece.text
        if not piece.text:
            assert len(piece.pcm) == len(usual_piece.pcm) / speed
    assert len(sound(await say(REPLY))) == pytest.approx(len(sound(usual)), rel=0.01)


@pytest.mark.parametrize("voice", ["slt", "rms", "awb"])
@pytest.mark.parametrize("text", ["Yes.", "Okay.", "Five.", "See you.", "Hello.", "Three."])
@pytest.mark.parametrize("speed", [0.5, 1.0, 2.0])
def test_all_is_silent_before_the_first_phone(voice: str, text: str, speed: float) -> None:
    made = FliteSynthesizer().sound(text.split(), voice, speed)
    heard = np.flatnonzero(made.pcm)[0]
    loud = np.flatnonzero(np.abs(made.pcm) > np.abs(made.pcm).max() / 10)[0]
    assert heard > 0.03 * made.rate / speed
    assert 0 < loud - heard < 0.25 * made.rate / speed + 0.03 * made.rate


async def test_another_voice_is_another_sound() -> None:
    by_rms = await say("Good morning.", options=VoiceOptions("rms"))
    assert len(sound(by_rms)) != len(sound(await say("Good morning.")))


async def test_no_click_where_sound_meets_silence() -> None:
    pieces = await say(REPLY)
    pauses_ms = [len(piece.pcm) * 1000 // RATE_OUT for piece in pieces if not piece.text]
    assert pauses_ms == [120, 250, 120, 250, 250]
    spoken = [
        list(group) for text, group in itertools.groupby(pieces, lambda p: bool(p.text)) if text
    ]
    for clause in map(sound, spoken):
        assert abs(int(clause[0])) < 200
        assert abs(int(clause[-1])) < 200


def pauses(pcm: np.ndarray) -> int:
    """Counts the silences of at least 80 ms within the sound."""
    frame = RATE_OUT // 100
    loud = np.abs(pcm[: len(pcm) // frame * frame].reshape(-1, frame).astype(int)).max(axis=1) > 300
    runs = [(quiet, len(list(run))) for quiet, run in itertools.groupby(~loud)]
    return sum(quiet and length >= 8 for quiet, length in runs[1:-1])


@pytest.mark.parametrize(
    ("text", "groups"),
    [
        ("It is 0800 123 456 now", 3),
        ("It is 555-123-4567 now", 3),
        ("Your code is 48219374", 2),
        ("Pay $12,345.67 now", 3),
        ("It is DE89 3704 0044 0532 0130 00", 6),
    ],
)
async def test_digits_to_write_down_are_in_groups_with_pauses(text: str, groups: int) -> None:
    assert pauses(sound(await say(text))) >= groups - 1


@settings(max_examples=5)
@given(st.lists(st.sampled_from(WORDS + SIGNS), max_size=8), st.sampled_from(["", ".", ", ", "\n"]))
def test_the_pieces_are_the_text(words: list[str], end: str) -> None:
    text = "  " + " ".join(words) + end
    pieces = asyncio.run(say(*text.partition(" ")))
    assert "".join(piece.text for piece in pieces) == text


async def test_the_first_clause_is_heard_before_the_rest_is_written() -> None:
    synthesizer = FliteSynthesizer()
    reply = synthesizer.open()
    reply.write("Good morning, this")
    pieces = aiter(reply)
    assert [(await anext(pieces)).text for _ in range(2)] == ["Good ", "morning, "]
    rest = asyncio.ensure_future(anext(pieces))
    await asyncio.sleep(0)
    assert not rest.done(), "a reply without text to say waits"
    reply.write(" is the desk.")
    reply.end()
    assert (await rest).text == ""
    assert "".join([piece.text async for piece in pieces]) == "this is the desk."
    await synthesizer.close()


async def test_cancel_ends_the_reply_in_the_midst_of_a_clause() -> None:
    synthesizer = FliteSynthesizer()
    reply = synthesizer.open()
    reply.write(REPLY)
    heard = []
    async for piece in reply:
        heard.append(piece.text)
        if len(heard) == 4:
            reply.cancel()
    assert len(heard) == 4
    waiting = synthesizer.open()
    end = asyncio.ensure_future(anext(aiter(waiting), None))
    await asyncio.sleep(0)
    waiting.cancel()
    assert await end is None
    await synthesizer.close()


async def test_two_replies_take_turns() -> None:
    synthesizer = FliteSynthesizer()
    order: list[int] = []

    async def listen(number: int) -> None:
        reply = synthesizer.open()
        reply.write(REPLY)
        reply.end()
        async for piece in reply:
            if not piece.text:
                order.append(number)

    await asyncio.gather(listen(1), listen(2))
    await synthesizer.close()
    assert order[:4] in ([1, 2, 1, 2], [2, 1, 2, 1])


async def test_refuses_an_unknown_voice_and_endless_text() -> None:
    synthesizer = FliteSynthesizer()
    with pytest.raises(UnknownVoice, match="flite has no voice 'nobody', only slt, rms, awb"):
        synthesizer.open(VoiceOptions("nobody"))
    with pytest.raises(ValueError, match="flite speaks en, not 'de'"):
        synthesizer.open(VoiceOptions(language="de"))
    with pytest.raises(TextTooLong):
        synthesizer.open().write("a " * MAX_WAITING_CHARS)
    await synthesizer.close()
