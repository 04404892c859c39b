"""PocketSphinx in its worker: what a caller's words become, whatever happens to the worker."""

import asyncio
import json
import os
import signal
import sys
import wave
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import pytest_asyncio
from hypothesis import given
from hypothesis import strategies as st

from offhook.media.pcm import RATE_IN, Pcm
from offhook.pipeline.engines.embedded import pocketsphinx_io
from offhook.pipeline.engines.embedded.espeak_io import EspeakSynthesizer
from offhook.pipeline.engines.embedded.pocketsphinx_io import (
    MAX_LOSSES,
    PocketSphinxRecognizer,
    PocketSphinxStream,
    StableText,
)
from offhook.pipeline.engines.embedded.pocketsphinx_worker import (
    Frame,
    FrameError,
    FrameReader,
    Kind,
    Listener,
    clean_word,
    new_decoder,
)
from offhook.pipeline.speech.recognizer import Final, Partial
from offhook.pipeline.speech.streams import utterance_queue
from tests.support.waiting import HANGS_S

# One recognizer for the module, and so one loop: each worker costs half a second of loading.
in_module_loop = pytest.mark.asyncio(loop_scope="module")

SPEECH = Path(os.environ.get("OFFHOOK_SPEECH", Path(__file__).parents[5] / "shared" / "speech"))
needs_speech = pytest.mark.skipif(not SPEECH.is_dir(), reason="no recorded speech here")


def recording(name: str) -> Pcm:
    with wave.open(str(SPEECH / f"{name}.wav")) as file:
        return np.frombuffer(file.readframes(file.getnframes()), np.int16)


@pytest.fixture(scope="module")
def phrase() -> Pcm:
    """A second or two of made speech at 16 kHz: some words, whichever they are."""
    sound = EspeakSynthesizer().sound(["go", "forward", "ten", "meters"], "en-us")
    places = np.arange(0, len(sound.pcm) - 1, sound.rate / RATE_IN)
    return np.interp(places, np.arange(len(sound.pcm)), sound.pcm).astype(np.int16)


@pytest.fixture(scope="module")
def listener() -> Listener:
    return Listener()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def recognizer() -> AsyncIterator[PocketSphinxRecognizer]:
    recognizer = PocketSphinxRecognizer(processes=1)
    await recognizer.start()
    yield recognizer
    await recognizer.close()


async def finals(stream: PocketSphinxStream, count: int) -> list[Final]:
    events = stream.events()
    found: list[Final] = []
    async with asyncio.timeout(HANGS_S):
        while len(found) < count:
            event = await anext(events)
            if isinstance(event, Final):
                found.append(event)
    return found


def decode(listener: Listener, *frames: Frame) -> list[Frame]:
    for frame in frames:
        listener.receive(frame)
    told = []
    while frame := listener.decode():
        told.append(frame)
    return told


async def hear(stream: PocketSphinxStream, pcm: Pcm) -> Final:
    for start in range(0, len(pcm), 1600):
        stream.feed(pcm[start : start + 1600])
    stream.finish()
    (final,) = await finals(stream, 1)
    return final


@needs_speech
@pytest.mark.speech
@in_module_loop
async def test_streaming_hears_what_a_decoder_given_the_file_hears(
    recognizer: PocketSphinxRecognizer,
) -> None:
    decoder = new_decoder()
    stream = await recognizer.open()
    await hear(stream, recording("card_3"))
    for name in ("something", "card_1"):
        pcm = recording(name)
        decoder.reinit_feat()
        decoder.set_cmn(stream._mean)
        decoder.start_utt()
        for start in range(0, len(pcm), 1600):
            decoder.process_raw(pcm[start : start + 1600].tobytes())
        decoder.end_utt()
        final = await hear(stream, pcm)
        assert final.text == decoder.hyp().hypstr
        assert final.audio_ms == len(pcm) * 1000 // RATE_IN
    assert final.text == "ten of clubs"
    starts = [word.start_ms for word in final.words]
    assert starts == sorted(starts)
    assert final.words[-1].end_ms - final.words[0].start_ms < final.audio_ms


@needs_speech
@pytest.mark.speech
@in_module_loop
async def test_a_caller_is_understood_from_the_first_utterance(
    recognizer: PocketSphinxRecognizer,
) -> None:
    spoken = {
        "goforward": "go forward ten meters",
        "card_1": "ten of clubs",
        "card_3": "seven of clubs",
    }
    missed = []
    for name, words in spoken.items():
        final = await hear(await recognizer.open(), recording(name))
        missed += [word for word in words.split() if word not in final.text.split()]
    assert len(missed) <= 1, missed


@in_module_loop
async def test_utterances_follow_one_another_and_cancel_drops_one(
    recognizer: PocketSphinxRecognizer, phrase: Pcm
) -> None:
    stream = await recognizer.open()
    stream.feed(phrase)
    stream.finish()
    stream.feed(phrase[:8000])
    stream.cancel()
    stream.finish()
    stream.feed(phrase)
    stream.finish()
    first, nothing, last = await finals(stream, 3)
    assert first.text
    assert last.text
    assert (nothing.text, nothing.audio_ms) == ("", 0)
    assert last.words[0].start_ms >= (len(phrase) + 8000) * 1000 // RATE_IN


@in_module_loop
async def test_a_crash_is_not_heard(recognizer: PocketSphinxRecognizer, phrase: Pcm) -> None:
    undisturbed, disturbed = await recognizer.open(), await recognizer.open()
    undisturbed.feed(phrase)
    undisturbed.finish()
    (expected,) = await finals(undisturbed, 1)
    disturbed.feed(phrase[:16000])
    async for event in disturbed.events():
        assert isinstance(event, Partial)
        break
    (worker,) = recognizer._workers
    worker.kill()
    disturbed.feed(phrase[16000:])
    disturbed.finish()
    assert await finals(disturbed, 1) == [expected]
    assert worker.exited.is_set()


@in_module_loop
@pytest.mark.parametrize(
    "when",
    [pytest.param("before the utterance", marks=pytest.mark.slow), "in the middle of it"],
)
async def test_a_worker_that_hangs_is_not_heard(
    recognizer: PocketSphinxRecognizer, phrase: Pcm, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    undisturbed, disturbed = await recognizer.open(), await recognizer.open()
    undisturbed.feed(phrase)
    undisturbed.finish()
    (expected,) = await finals(undisturbed, 1)
    monkeypatch.setattr(pocketsphinx_io, "PING_S", 0.3)
    lost = recognizer.losses["hung"]
    (worker,) = recognizer._workers
    assert worker.child is not None
    if when == "before the utterance":
        os.kill(worker.child.pid, signal.SIGSTOP)
        disturbed.feed(phrase[:16000])
    else:
        disturbed.feed(phrase[:16000])
        async for event in disturbed.events():
            assert isinstance(event, Partial)
            break
        os.kill(worker.child.pid, signal.SIGSTOP)
    disturbed.feed(phrase[16000:])
    disturbed.finish()
    assert await finals(disturbed, 1) == [expected]
    assert recognizer.losses["hung"] == lost + 1
    assert worker.exited.is_set()


@in_module_loop
async def test_a_worker_that_is_only_idle_is_left_alone(
    recognizer: PocketSphinxRecognizer, phrase: Pcm, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pocketsphinx_io, "PING_S", 0.05)
    lost = sum(recognizer.losses.values())
    stream = await recognizer.open()
    stream.feed(phrase[:16000])
    await asyncio.sleep(pocketsphinx_io.MAX_UNANSWERED * 0.3)  # nothing more to decode
    stream.feed(phrase[16000:])
    stream.finish()
    (final,) = await finals(stream, 1)
    assert final.text
    await asyncio.sleep(0.3)
    assert sum(recognizer.losses.values()) == lost


BUSY_ONCE = """
import sys, time
from pathlib import Path
from offhook.pipeline.engines.embedded import pocketsphinx_worker

marker, seconds = Path(sys.argv[1]), float(sys.argv[2])
decode = pocketsphinx_worker.Listener.decode

def busy(listener):
    if not marker.exists():
        marker.touch()
        begun = time.process_time()
        while time.process_time() - begun < seconds:
            pass
    return decode(listener)

pocketsphinx_worker.Listener.decode = busy
pocketsphinx_worker.main()
"""


@pytest.mark.parametrize(
    ("busy_s", "hung"), [("1.5", 0), pytest.param("inf", 1, marks=pytest.mark.slow)]
)
async def test_a_worker_that_is_only_slow_is_left_alone_and_an_endless_loop_is_ended(
    phrase: Pcm, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, busy_s: str, hung: int
) -> None:
    command = (sys.executable, "-c", BUSY_ONCE, str(tmp_path / "begun"), busy_s)
    monkeypatch.setattr(pocketsphinx_io, "COMMAND", command)
    monkeypatch.setattr(pocketsphinx_io, "PING_S", 0.5)
    monkeypatch.setattr(pocketsphinx_io, "MAX_SILENT_CPU_S", 3.0)
    recognizer = PocketSphinxRecognizer(processes=1)
    await recognizer.start()
    stream = await recognizer.open()
    stream.feed(phrase)
    stream.finish()
    (final,) = await finals(stream, 1)
    assert final.text
    assert sum(recognizer.losses.values()) == recognizer.losses["hung"] == hung
    await stream.close()
    await recognizer.close()


@in_module_loop
async def test_an_utterance_that_no_worker_survives_is_given_up(
    recognizer: PocketSphinxRecognizer, phrase: Pcm
) -> None:
    stream = await recognizer.open()
    stream.feed(phrase)
    for _ in range(MAX_LOSSES):
        (worker,) = recognizer._workers
        await worker.ready.wait()
        worker.kill()
        await worker.exited.wait()
    assert [(final.text, final.lost) for final in await finals(stream, 1)] == [("", True)]


@in_module_loop
async def test_an_endless_utterance_is_bounded(
    recognizer: PocketSphinxRecognizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(utterance_queue, "MAX_UTTERANCE_S", 1)
    monkeypatch.setattr(utterance_queue, "MAX_KEPT_S", 3)
    stream = await recognizer.open()
    for _ in range(5):
        stream.feed(np.zeros(RATE_IN, np.int16))
    stream.finish()
    assert [final.audio_ms for final in await finals(stream, 3)] == [1000, 1000, 1000]


async def test_close_ends_the_worker_and_the_events(phrase: Pcm) -> None:
    recognizer = PocketSphinxRecognizer(processes=1)
    await recognizer.start()
    (worker,) = recognizer._workers
    assert worker.child is not None
    # A signal to all processes of the server is not its business.
    os.kill(worker.child.pid, signal.SIGINT)
    stream = await recognizer.open()
    stream.feed(phrase)
    await stream.close()
    assert [event async for event in stream.events()] == []
    await recognizer.close()
    assert worker.child.poll() == 0


def result(frame: Frame) -> dict[str, Any]:
    """Of a final, without when it was decoded."""
    told = json.loads(frame.payload)
    return {name: told[name] for name in ("samples", "words", "mean")}


def test_a_noise_says_nothing_of_the_caller(listener: Listener) -> None:
    hum = (np.random.default_rng(1).normal(0, 30, RATE_IN)).astype(np.int16).tobytes()
    frames = (Frame(30, Kind.BEGIN), Frame(30, Kind.AUDIO, hum), Frame(30, Kind.FINISH))
    result = json.loads(decode(listener, *frames)[-1].payload)
    assert (result["words"], result["mean"]) == ([], "")


def test_a_backlog_does_not_starve_the_others(listener: Listener, phrase: Pcm) -> None:
    long, short = np.resize(phrase, 2 * RATE_IN).tobytes(), phrase[: RATE_IN // 2].tobytes()
    told = decode(
        listener,
        *(Frame(1, Kind.BEGIN), Frame(1, Kind.AUDIO, long), Frame(1, Kind.FINISH)),
        *(Frame(2, Kind.BEGIN), Frame(2, Kind.AUDIO, short), Frame(2, Kind.FINISH)),
    )
    assert [frame.utterance for frame in told[:4]] == [1, 2, 1, 2]
    assert [frame.utterance for frame in told if frame.kind is Kind.FINAL] == [2, 1]


def test_the_text_does_not_depend_on_how_the_sound_came(listener: Listener, phrase: Pcm) -> None:
    pcm = phrase.tobytes()
    results = []
    for number, step in enumerate((640, len(pcm)), 10):
        blocks = [pcm[at : at + step] for at in range(0, len(pcm), step)]
        told = decode(listener, Frame(number, Kind.BEGIN))
        for block in blocks:
            told += decode(listener, Frame(number, Kind.AUDIO, block))
        results.append(result(decode(listener, Frame(number, Kind.FINISH))[-1]))
    assert results[0] == results[1]
    assert results[0]["words"]


def test_cancelled_in_the_midst_leaves_the_decoder_clean(listener: Listener, phrase: Pcm) -> None:
    pcm = phrase.tobytes()
    whole = (Frame(21, Kind.AUDIO, pcm), Frame(21, Kind.FINISH))
    expected = result(decode(listener, Frame(21, Kind.BEGIN), *whole)[-1])
    decode(listener, Frame(20, Kind.BEGIN), Frame(20, Kind.AUDIO, pcm))
    assert decode(listener, Frame(20, Kind.CANCEL), *whole) == []
    assert result(decode(listener, Frame(21, Kind.BEGIN), *whole)[-1]) == expected


FRAMES = st.lists(
    st.builds(Frame, st.integers(0, 2**32 - 1), st.sampled_from(Kind), st.binary(max_size=50)),
    max_size=8,
)


@given(FRAMES, st.integers(1, 20))
def test_frames_survive_any_chunking(frames: list[Frame], step: int) -> None:
    data = b"".join(map(bytes, frames))
    reader = FrameReader()
    chunks = [data[at : at + step] for at in range(0, len(data), step)]
    assert [frame for chunk in chunks for frame in reader.receive(chunk)] == frames


@given(st.binary(max_size=200))
def test_noise_is_an_error_or_nothing(data: bytes) -> None:
    try:
        frames = list(FrameReader().receive(data))
    except FrameError:
        return
    assert data.startswith(b"".join(map(bytes, frames)))


@given(st.lists(st.lists(st.sampled_from("abc"), max_size=5).map(" ".join), max_size=30))
def test_stable_text_is_never_taken_back(hypotheses: list[str]) -> None:
    stable = StableText()
    shown = ""
    for hypothesis in hypotheses:
        text, chars = stable.update(hypothesis)
        assert text.startswith(shown)
        assert chars <= len(text)
        shown = text[:chars]


def test_text_is_stable_when_three_hypotheses_agree() -> None:
    stable = StableText()
    for hypothesis in ("go", "go for", "go forward"):
        text, chars = stable.update(hypothesis)
    assert (text, chars) == ("go forward", 2)
    assert stable.update("no forward ten") == ("go forward ten", 2)


@pytest.mark.parametrize(
    ("entry", "word"),
    [("the(2)", "the"), ("<sil>", ""), ("[NOISE]", ""), ("++UM++", ""), ("</s>", ""), ("a", "a")],
)
def test_clean_word(entry: str, word: str) -> None:
    assert clean_word(entry) == word
