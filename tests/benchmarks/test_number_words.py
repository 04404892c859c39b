"""Words that are levels are counted exactly, over codecs and through a real worker."""

import asyncio
from collections.abc import Callable
from contextlib import AsyncExitStack
from functools import partial
from random import Random

import numpy as np
import pytest

from benchmarks.callers.caller import inaudible
from benchmarks.processes.own_server import free_port, is_ready, started
from benchmarks.speech import number_words as nw
from offhook.media.codecs.g711 import PcmuDecoder, PcmuEncoder
from offhook.media.codecs.opus import OpusDecoder, OpusEncoder, OpusSettings
from offhook.media.codecs.resample import Resampler
from offhook.media.pcm import RATE_IN, RATE_OUT, SAMPLES_IN, SAMPLES_OUT, Pcm
from offhook.pipeline.conversation.latency import VOICE_GAP_MS
from offhook.pipeline.speech.recognizer import Final, StreamOptions
from offhook.pipeline.speech.vad.vad import SpeechDetector, SpeechStop
from offhook.pipeline.speech.vad.vad_io import VadBatch
from offhook.web.config.engines import Asr, Tts
from offhook.web.workers.engines.remote_engines_io import recognizer_of, synthesizer_of
from tests.support.waiting import HANGS_S

LINES = 30
QUIET = np.random.default_rng(1).integers(-8, 9, RATE_OUT // 5).astype(np.int16)


def opus(pcm: Pcm) -> Pcm:
    encoder, decoder = OpusEncoder(OpusSettings(dtx=False)), OpusDecoder()
    return np.concatenate([decoder.decode(encoder.encode(p)) for p in frames(pcm)])


def g711(pcm: Pcm) -> Pcm:
    encoder, decoder = PcmuEncoder(), PcmuDecoder()
    return np.concatenate([decoder.decode(encoder.encode(p)) for p in frames(pcm)])


def resampled(pcm: Pcm) -> Pcm:
    return Resampler(RATE_OUT, RATE_IN).process(pcm)


def frames(pcm: Pcm) -> list[Pcm]:
    return list(pcm[: len(pcm) // SAMPLES_OUT * SAMPLES_OUT].reshape(-1, SAMPLES_OUT))


@pytest.mark.parametrize("way", [opus, g711, resampled])
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("pitch_hz", [nw.CALLER_HZ, nw.AGENT_HZ])
def test_every_word_is_heard_once(way: Callable[[Pcm], Pcm], seed: int, pitch_hz: float) -> None:
    said = nw.line(30, Random(seed))
    heard = nw.WordCounter()
    pcm = nw.sound(said, lead_ms=nw.LEAD_MS, pitch_hz=pitch_hz)
    heard.feed(way(np.concatenate((QUIET, pcm, QUIET))))
    assert heard.text() == " ".join(said)


def test_pieces_of_any_length_make_the_same_words() -> None:
    said = nw.line(20, Random(5))
    pcm, heard, chance = nw.sound(said, RATE_IN), nw.WordCounter(), Random(1)
    while len(pcm):
        size = chance.randrange(1, 700)
        heard.feed(pcm[:size])
        pcm = pcm[size:]
    assert heard.text() == " ".join(said)


@pytest.mark.parametrize("seed", range(4))
def test_a_packet_lost_here_and_there_hides_no_word_but_its_own(seed: int) -> None:
    """Concealed by Opus, as in a receiver."""
    chance, said = Random(seed), nw.line(30, Random(seed))
    encoder, decoder = OpusEncoder(OpusSettings(dtx=False)), OpusDecoder()
    encoder.set_loss(0.05)
    pcm = np.concatenate((QUIET, nw.sound(said, lead_ms=nw.LEAD_MS), QUIET))
    heard, lost = nw.WordCounter(), list[int]()
    was_lost = False
    for number, frame in enumerate(frames(pcm), -len(QUIET) // SAMPLES_OUT):
        packet = encoder.encode(frame)
        if was_lost:
            recovered = decoder.recover(packet, 320)
            heard.feed(decoder.conceal(320) if recovered is None else recovered)
        was_lost = not was_lost and chance.random() < 0.02
        if was_lost:
            lost.append(number)
        else:
            heard.feed(decoder.decode(packet))
    assert len(lost) >= 2
    levels = [nw.level_of(word) for word in said]
    found = nw.compare(levels, heard.levels, inaudible(30, lost, ()))
    assert found == nw.Comparison(right=found.right, inaudible=30 - found.right)
    assert found.right >= 28


def test_the_end_of_a_line_repeated_is_said_twice() -> None:
    said = nw.line(20, Random(6))
    heard = nw.WordCounter()
    heard.feed(nw.sound([*said, *said[-4:]], RATE_IN, lead_ms=nw.LEAD_MS))
    levels = [nw.level_of(word) for word in said]
    assert nw.compare(levels, heard.levels).twice == 4


@pytest.mark.parametrize("way", [opus, g711])
async def test_the_voice_activity_detector_takes_all_of_a_call_for_speech(
    way: Callable[[Pcm], Pcm],
) -> None:
    """Else words are lost that no part of the server has lost: what the detector has heard before
    counts, so that a line is said often, with silence as long as a reply between."""
    vad, chance, detector = VadBatch(), Random(0), SpeechDetector()
    events: list[object] = []
    pauses: list[int] = []
    """ms without voice within lines, at each window."""
    begins = 0

    def window(probability: float, level: float, end: int) -> None:
        events.extend(detector.window(probability, level, end))
        if end > begins + nw.LEAD_MS * RATE_IN // 1000:
            pauses.append(detector.silence_ms)

    stream, fed = vad.open(window), 0
    words = [nw.NUMBERS[level] for level in (4, 1, 5, 4, 3, 4, 2, 3, 5, 2)]
    said = nw.sound(words, lead_ms=nw.LEAD_MS)
    for _ in range(LINES):
        quiet = np.resize(QUIET, SAMPLES_OUT * chance.randint(110, 196))
        begins = fed + len(quiet) * RATE_IN // RATE_OUT
        heard = way(np.concatenate((quiet, said)))
        for start in range(0, len(heard), SAMPLES_IN):
            stream.feed(heard[start : start + SAMPLES_IN])
            vad.run()
            await asyncio.sleep(0)
        fed += len(heard)
    # Once a line, and the last has not ended.
    assert sum(isinstance(event, SpeechStop) for event in events) == LINES - 1
    assert max(pauses) <= VOICE_GAP_MS


def test_what_was_lost_and_said_twice_is_counted() -> None:
    assert nw.compare([1, 2, 3, 4], [1, 2, 3, 4]) == nw.Comparison(right=4)
    assert nw.compare([1, 2, 3, 4], [1, 2, 4]) == nw.Comparison(right=3, lost=1)
    assert nw.compare([1, 2, 3], [1, 2, 1, 2, 3]) == nw.Comparison(right=3, twice=2)
    assert nw.compare([1, 2, 3], [1, 5, 3]) == nw.Comparison(right=2, wrong=1)
    assert nw.compare([], []) == nw.Comparison()


def test_words_that_no_one_could_hear_are_no_errors() -> None:
    assert nw.compare([1, 2, 3], [1, 2, 3], {1}) == nw.Comparison(right=3)
    assert nw.compare([1, 2, 3], [1, 3], {1}) == nw.Comparison(right=2, inaudible=1)
    assert nw.compare([1, 2, 3], [1, 5, 3], {1}) == nw.Comparison(right=2, inaudible=1)
    assert nw.compare([1, 2, 3], [1, 2, 2, 3], {1}) == nw.Comparison(right=3)
    assert nw.compare([1, 2, 3, 4], [1, 3], {1}) == nw.Comparison(right=2, lost=1, inaudible=1)
    again = nw.compare([1, 2, 3], [1, 2, 3, 1, 2, 3], {1})
    assert again == nw.Comparison(right=3, twice=3)


def test_words_that_were_not_due_may_be_missing() -> None:
    assert nw.compare([1, 2, 3, 4], [1, 2], due=2) == nw.Comparison(right=2)
    assert nw.compare([1, 2, 3, 4], [1, 2, 3], due=2) == nw.Comparison(right=3)
    assert nw.compare([1, 2, 3, 4], [1, 3, 4], due=2) == nw.Comparison(right=3, lost=1)
    assert nw.compare([1, 2, 3, 4], [1], due=2) == nw.Comparison(right=1, lost=1)


async def test_real_workers_hear_and_speak_the_words() -> None:
    """Words through an ASR worker's process, and its text through a TTS worker's."""
    urls = {kind: f"127.0.0.1:{free_port()}" for kind in ("asr", "tts")}
    module = "benchmarks.speech.number_words"
    async with AsyncExitStack() as workers:
        for kind, address in urls.items():
            there = partial(is_ready, f"http://{address}")
            options = (kind, "--listen", address, "--pace", "0")
            worker = started(options, there, 90, "no worker", module=module)
            await workers.enter_async_context(worker)
        recognizer = recognizer_of(Asr(url=f"http://{urls['asr']}"))
        synthesizer = synthesizer_of(Tts(url=f"http://{urls['tts']}"))
        try:
            async with asyncio.timeout(HANGS_S):
                await recognizer.start()
                await synthesizer.start()
                said = nw.line(25, Random(9))
                stream = await recognizer.open(StreamOptions(update_ms=200))
                pcm = nw.sound(said, RATE_IN)
                for start in range(0, len(pcm), 320):
                    stream.feed(pcm[start : start + 320])
                stream.finish()
                async for event in stream.events():
                    if isinstance(event, Final):
                        break
                await stream.close()
                assert event.text == " ".join(said)
                reply = synthesizer.open()
                reply.write(" ".join(nw.letters(event.text)))
                reply.end()
                pieces = [speech async for speech in reply]
                heard = nw.WordCounter()
                heard.feed(resampled(np.concatenate([p.pcm for p in pieces])))
                assert heard.text() == " ".join(said)
                assert "".join(p.text for p in pieces).split() == nw.letters(event.text)
        finally:
            await recognizer.close()
            await synthesizer.close()
