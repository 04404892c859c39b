"""The gate before an engine: words pass, silence does not, and times are those of all the sound."""

import asyncio
from collections.abc import AsyncIterator

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from offhook.media.pcm import RATE_IN, Pcm
from offhook.pipeline.engines.embedded.pocketsphinx_io import PocketSphinxRecognizer
from offhook.pipeline.speech.errors import EngineError
from offhook.pipeline.speech.recognizer import Final, Partial, Recognizer, StreamOptions, Word
from offhook.pipeline.speech.streams.speech_gate import (
    AFTER_WINDOWS,
    BEFORE_WINDOWS,
    OPEN_PROBABILITY,
    SpeechGate,
    Splices,
)
from offhook.pipeline.speech.streams.speech_gate_io import GatedRecognizer, GatedStream
from tests.support.waiting import HANGS_S
from tests.web.speech_api.recordings import QUESTION, spoken, tone

GATED = StreamOptions(gate=True)


def silence(seconds: float) -> Pcm:
    return np.zeros(int(seconds * RATE_IN), np.int16)


def hiss(seconds: float, dbfs: float = -55.0) -> Pcm:
    noise = np.random.default_rng(7).normal(0, 32768 * 10 ** (dbfs / 20), int(seconds * RATE_IN))
    return noise.astype(np.int16)


class Noting(Recognizer):
    """An engine that notes what it is given; its words are where the sound is loud."""

    name = "noting"

    def __init__(self) -> None:
        self.streams: list[NotingStream] = []

    async def start(self) -> None: ...

    async def open(self, options: StreamOptions = GATED) -> "NotingStream":
        assert not options.gate
        self.streams.append(NotingStream())
        return self.streams[-1]

    async def close(self) -> None: ...


class NotingStream:
    def __init__(self) -> None:
        self.calls: list[str] = []
        self.pcm: list[Pcm] = []
        self.closed = False
        self._begin = self._fed = 0
        self._events: asyncio.Queue[Partial | Final | EngineError] = asyncio.Queue()

    @property
    def seconds(self) -> float:
        return self._fed / RATE_IN

    def say(self, event: Partial | Final | EngineError) -> None:
        self._events.put_nowait(event)

    def feed(self, pcm: Pcm) -> None:
        self.pcm.append(pcm)
        self._fed += len(pcm)

    def finish(self) -> None:
        self.calls.append("finish")
        sound = np.concatenate(self.pcm)[self._begin :]
        loud = np.flatnonzero(np.abs(sound) > 500) + self._begin
        words = (Word("x", int(loud[0]) // 16, int(loud[-1]) // 16),) if len(loud) else ()
        self.say(Final("x", len(sound) // 16, words))
        self._begin = self._fed

    def cancel(self) -> None:
        self.calls.append("cancel")
        self._begin = self._fed

    async def events(self) -> AsyncIterator[Partial | Final]:
        while True:
            event = await self._events.get()
            if isinstance(event, EngineError):
                raise event
            yield event

    async def close(self) -> None:
        self.closed = True


async def heard(
    recognizer: Recognizer, utterances: list[Pcm], options: StreamOptions = GATED, piece: int = 320
) -> list[Partial | Final]:
    """All events of a stream that hears these."""
    stream = await recognizer.open(options)
    found: list[Partial | Final] = []
    try:
        for pcm in utterances:
            for at in range(0, len(pcm), piece):
                stream.feed(pcm[at : at + piece])
                await asyncio.sleep(0)
            stream.finish()
        left = len(utterances)
        async with asyncio.timeout(HANGS_S):
            async for event in stream.events():
                found.append(event)
                left -= isinstance(event, Final) and not event.continues
                if not left:
                    break
    finally:
        await stream.close()
    return found


def finals(events: list[Partial | Final]) -> list[Final]:
    return [event for event in events if isinstance(event, Final)]


# --- which windows pass ---


@given(st.lists(st.sampled_from([0.0, OPEN_PROBABILITY, 1.0, OPEN_PROBABILITY - 0.01])))
def test_speech_passes_with_what_is_around_it(probabilities: list[float]) -> None:
    gate = SpeechGate()
    given_windows = [
        int(pcm[0])
        for number, probability in enumerate(probabilities)
        for pcm in gate.window(np.array([number], np.int16), probability)
    ]
    assert given_windows == sorted(set(given_windows))
    speech = [n for n, p in enumerate(probabilities) if p >= OPEN_PROBABILITY]
    wanted = {
        near
        for at in speech
        for near in range(at - BEFORE_WINDOWS, at + AFTER_WINDOWS + 1)
        if 0 <= near < len(probabilities)
    }
    assert set(given_windows) == wanted


@given(
    st.lists(st.tuples(st.integers(0, 5), st.integers(1, 5)), min_size=1, max_size=12),
    st.integers(0, 11),
)
def test_places_are_those_of_the_stream(pieces: list[tuple[int, int]], forgotten: int) -> None:
    splices = Splices()
    stream: list[int] = []
    at = 0
    before = 0
    for number, (gap, samples) in enumerate(pieces):
        if number == forgotten:
            before = len(stream)
            splices.forget_before(before)
        at += gap
        splices.give(at, samples)
        stream += range(at, at + samples)
        at += samples
    assert splices.given == len(stream)
    for place in range(before, len(stream)):
        assert splices.start(place) == stream[place]
        assert splices.end(place + 1) == stream[place] + 1


# --- with the model ---


async def test_a_stream_that_does_not_ask_gets_the_engines_own() -> None:
    engine = Noting()
    recognizer = GatedRecognizer(engine)
    assert await recognizer.open(StreamOptions()) is engine.streams[0]
    assert recognizer.name == "noting"
    await recognizer.close()


@pytest.mark.parametrize("piece", [160, 512, 1601, 48_000])
async def test_silence_is_left_out_and_times_stay(piece: int) -> None:
    engine = Noting()
    recognizer = GatedRecognizer(engine)
    word = spoken("opening hours")
    # A word must not begin or end more than this from where it is.
    begin = int(np.flatnonzero(np.abs(word) > 500)[0])
    end = int(np.flatnonzero(np.abs(word) > 500)[-1])
    utterances = [np.concatenate((hiss(2), word, hiss(3))), np.concatenate((silence(1), word))]
    first, second = finals(await heard(recognizer, utterances, piece=piece))
    [stream] = engine.streams
    assert [first.audio_ms, second.audio_ms] == [len(pcm) // 16 for pcm in utterances]
    assert abs(first.words[0].start_ms - (2000 + begin // 16)) <= 1
    assert abs(first.words[0].end_ms - (2000 + end // 16)) <= 1
    offset = len(utterances[0]) // 16 + 1000
    assert abs(second.words[0].start_ms - (offset + begin // 16)) <= 1
    around = 2 * (BEFORE_WINDOWS + AFTER_WINDOWS + 4) * 0.032
    assert 2 * len(word) / RATE_IN <= stream.seconds <= 2 * len(word) / RATE_IN + around
    given_sound = np.concatenate(stream.pcm).astype(np.int64)
    whole = word.astype(np.int64)
    assert any(
        np.array_equal(given_sound[at : at + len(whole)], whole)
        for at in range(len(given_sound) - len(whole) + 1)
        if given_sound[at + begin] == whole[begin]
    )
    assert stream.closed
    await recognizer.close()


@pytest.mark.parametrize("sound", [silence(2), hiss(2), tone(2)], ids=["silence", "hiss", "tone"])
async def test_what_is_no_speech_is_answered_at_once_and_never_given(sound: Pcm) -> None:
    engine = Noting()
    recognizer = GatedRecognizer(engine)
    stream = await recognizer.open(StreamOptions(gate=True, update_ms=80))
    events = stream.events()
    covered = []
    for at in range(0, len(sound), 1600):
        stream.feed(sound[at : at + 1600])
        async with asyncio.timeout(HANGS_S):
            partial = await anext(events)
        assert isinstance(partial, Partial)
        assert (partial.text, partial.stable_chars) == ("", 0)
        covered.append(partial.audio_ms)
    assert covered == sorted(covered)
    assert covered[0] == 96
    assert covered[-1] >= 1900
    stream.finish()
    async with asyncio.timeout(HANGS_S):
        while isinstance(event := await anext(events), Partial):
            pass
    assert event == Final("", 2000)
    await stream.close()
    assert engine.streams[0].seconds == 0
    assert engine.streams[0].calls == []
    await recognizer.close()


async def test_many_streams_are_judged_as_each_alone() -> None:
    recognizer = GatedRecognizer(Noting())
    word = spoken("hours")
    spoken_at = [
        [np.concatenate((hiss(0.1 + 0.13 * number), word, hiss(1.0)))] for number in range(5)
    ]
    sounds = [*spoken_at, *([hiss(1.5)] for _ in range(4))]
    alone = [finals(await heard(recognizer, sound)) for sound in sounds]
    together = await asyncio.gather(*(heard(recognizer, sound) for sound in sounds))
    assert [finals(events) for events in together] == alone
    assert [bool(final.text) for [final] in alone] == [True] * 5 + [False] * 4
    await recognizer.close()


async def test_words_so_far_are_told_while_the_speaker_is_silent() -> None:
    """And cover the silence, so that nothing seems unheard."""
    engine = Noting()
    recognizer = GatedRecognizer(engine)
    stream = await recognizer.open(GATED)
    stream.feed(spoken("opening hours"))
    stream.feed(silence(1))
    [inner] = engine.streams
    async with asyncio.timeout(HANGS_S):
        while inner.seconds < len(spoken("opening hours")) / RATE_IN:
            await asyncio.sleep(0.01)
    inner.say(Partial("opening hours", 7, 500))
    events = stream.events()
    stream.feed(silence(3))
    async with asyncio.timeout(HANGS_S):
        while (partial := await anext(events)).audio_ms < 3000 or not partial.text:
            assert isinstance(partial, Partial)
    assert isinstance(partial, Partial)
    assert (partial.text, partial.stable_chars) == ("opening hours", 7)
    await stream.close()
    await recognizer.close()


async def test_finals_come_in_the_order_spoken() -> None:
    engine = Noting()
    recognizer = GatedRecognizer(engine)
    word = spoken("hours")
    utterances = [silence(0.5), word, silence(0.5), silence(0.01), word, np.zeros(0, np.int16)]
    events = finals(await heard(recognizer, utterances))
    assert [final.text for final in events] == ["", "x", "", "", "x", ""]
    assert [final.audio_ms for final in events] == [len(pcm) // 16 for pcm in utterances]
    assert engine.streams[0].calls == ["finish", "finish"]
    await recognizer.close()


async def test_a_cancelled_utterance_leaves_nothing_behind() -> None:
    engine = Noting()
    recognizer = GatedRecognizer(engine)
    word = spoken("hours")
    stream = await recognizer.open(GATED)
    stream.feed(silence(1))
    stream.cancel()
    stream.feed(word)
    [inner] = engine.streams
    async with asyncio.timeout(HANGS_S):
        while not inner.seconds:
            await asyncio.sleep(0.01)
    stream.cancel()
    assert inner.calls == ["cancel"]
    stream.feed(word)
    stream.finish()
    async with asyncio.timeout(HANGS_S):
        while isinstance(event := await anext(aiter(stream.events())), Partial):
            pass
    assert event.audio_ms == len(word) // 16
    begin = int(np.flatnonzero(np.abs(word) > 500)[0])
    assert abs(event.words[0].start_ms - (1000 + (len(word) + begin) // 16)) <= 1
    await stream.close()
    await recognizer.close()


async def test_an_engine_that_fails_within_is_told() -> None:
    engine = Noting()
    recognizer = GatedRecognizer(engine)
    stream = await recognizer.open(GATED)
    engine.streams[0].say(EngineError("it broke"))
    with pytest.raises(EngineError, match="it broke"):
        await asyncio.wait_for(anext(aiter(stream.events())), HANGS_S)
    await stream.close()
    await recognizer.close()


async def test_a_long_utterance_in_several_finals_counts_all_its_sound() -> None:
    engine = Noting()
    recognizer = GatedRecognizer(engine)
    stream = await recognizer.open(GATED)
    sound = np.concatenate((silence(2), spoken(QUESTION), silence(2)))
    stream.feed(sound)
    [inner] = engine.streams
    async with asyncio.timeout(HANGS_S):
        while inner.seconds < len(spoken(QUESTION)) / RATE_IN + 0.5:
            await asyncio.sleep(0.01)
    inner.say(Final("tell me", 1000, continues=True))
    inner._begin = RATE_IN
    stream.finish()
    found = []
    async with asyncio.timeout(HANGS_S):
        async for event in stream.events():
            if isinstance(event, Final):
                found.append(event)
                if not event.continues:
                    break
    assert [final.continues for final in found] == [True, False]
    assert abs(sum(final.audio_ms for final in found) - len(sound) // 16) <= 1
    await stream.close()
    await recognizer.close()


@settings(max_examples=15)
@given(st.lists(st.sampled_from(["word", "gap", "finish", "cancel"]), max_size=8))
def test_whatever_is_said_every_utterance_has_its_final(steps: list[str]) -> None:
    word = spoken("hours")

    async def run() -> tuple[list[Final], int]:
        engine = Noting()
        recognizer = GatedRecognizer(engine)
        stream = await recognizer.open(GATED)
        assert isinstance(stream, GatedStream)
        wanted = 0
        for step in [*steps, "finish"]:
            match step:
                case "word":
                    stream.feed(word)
                case "gap":
                    stream.feed(silence(0.1))
                    await asyncio.sleep(0)
                case "finish":
                    stream.finish()
                    wanted += 1
                case "cancel" if stream.queue.open is not None:
                    stream.cancel()
        found: list[Final] = []
        events = stream.events()
        async with asyncio.timeout(HANGS_S):
            while len(found) < wanted:
                event = await anext(events)
                if isinstance(event, Final):
                    found.append(event)
        await stream.close()
        await recognizer.close()
        return found, wanted

    found, wanted = asyncio.run(run())
    assert len(found) == wanted


async def test_the_embedded_engine_hears_the_same_words_with_less_work() -> None:
    engine = PocketSphinxRecognizer(1)
    await engine.start()
    fed = 0
    opens = engine.open

    async def counted(options: StreamOptions = GATED) -> object:
        stream = await opens(options)
        feed = stream.feed

        def count(pcm: Pcm) -> None:
            nonlocal fed
            fed += len(pcm)
            feed(pcm)

        stream.feed = count  # type: ignore[method-assign]
        return stream

    engine.open = counted  # type: ignore[method-assign, assignment]
    recognizer = GatedRecognizer(engine)
    utterances = [np.concatenate((silence(1.5), spoken(), silence(1.5)))]
    plain = finals(await heard(recognizer, utterances, StreamOptions()))
    whole, fed = fed, 0
    gated = finals(await heard(recognizer, utterances))
    await recognizer.close()
    assert whole == sum(map(len, utterances))
    assert fed < 0.75 * whole
    for one, other in zip(plain, gated, strict=True):
        assert one.audio_ms == other.audio_ms
        said = set(QUESTION.split())
        assert len(said & set(other.text.split())) >= len(said & set(one.text.split()))
