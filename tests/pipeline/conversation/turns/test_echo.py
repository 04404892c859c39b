"""Echo or person, through synthetic rooms and real Opus, with synthetic and real voices."""

import shutil
import subprocess
from functools import cache
from itertools import groupby

import numpy as np
import numpy.typing as npt
import pytest

from offhook.media.codecs.opus import OpusDecoder, OpusEncoder
from offhook.media.pcm import RATE_OUT, SAMPLES_IN, SAMPLES_OUT, Pcm
from offhook.pipeline.conversation.turns.echo import ECHO, EchoDetector
from tests.pipeline.conversation.speakerphone import Speakerphone, spoken

Sound = npt.NDArray[np.float64]

AGENT = "Thank you for calling the front desk. Our opening hours are nine until six."
LONG = (
    "Good morning, this is the automatic front desk of Lighthouse Bicycles. We are a small bicycle "
    "shop by the harbour. How can I help you?",
    "Our opening hours are Monday to Friday from nine to six, Saturday from ten to two and Sunday "
    "closed. Every Saturday morning there is a free class on mending a flat tyre.",
)
CALLER = "No wait, that is not what I wanted to know. Could I speak to somebody else please?"


def resampled(pcm: npt.NDArray[np.generic], rate: int, to: int) -> Sound:
    """By the spectrum, of the whole sound at once."""
    size = len(pcm) * to // rate
    spectrum = np.fft.rfft(np.asarray(pcm, np.float64))
    bins = np.zeros(size // 2 + 1, np.complex128)
    keep = min(len(bins), len(spectrum))
    bins[:keep] = spectrum[:keep]
    return np.asarray(np.fft.irfft(bins, size) * size / len(pcm))


def at_level(sound: Sound, level: float) -> Sound:
    """Mean level of the parts within 30 dB of the loudest, dBFS."""
    power = (sound[: len(sound) // 320 * 320].reshape(-1, 320) ** 2).mean(1)
    loud = np.sqrt(power[power > power.max() / 1000].mean())
    return np.asarray(sound * 10 ** (level / 20) * 32768 / loud)


def int16(sound: Sound) -> Pcm:
    return sound.clip(-32768, 32767).astype(np.int16)


@cache
def said(voice: str, text: str) -> Sound:
    """flite's voice at 16 kHz, -22 dBFS."""
    if shutil.which("flite") is None:
        pytest.skip("needs the flite command")
    run = subprocess.run(
        ["flite", "-voice", voice, "-t", text, "-o", "/dev/stdout"], check=True, capture_output=True
    )
    pcm = np.frombuffer(run.stdout[44 : len(run.stdout) // 2 * 2], np.int16)
    return at_level(pcm.astype(float), -22)


def through_opus(pcm16k: Sound) -> Sound:
    encoder, decoder = OpusEncoder(), OpusDecoder()
    pcm = int16(resampled(pcm16k, 16_000, 24_000))
    packets = pcm[: len(pcm) // SAMPLES_OUT * SAMPLES_OUT].reshape(-1, SAMPLES_OUT)
    return np.concatenate([decoder.decode(encoder.encode(p)) for p in packets]).astype(float)


def echo(sound: Sound, level: float, rt60: float, delay_ms: float, narrow: bool = False) -> Sound:
    """Out through Opus, a loudspeaker without bass and a room, at `level` dB of the original."""
    rng = np.random.default_rng(int(delay_ms))
    time = np.arange(int(16_000 * rt60)) / 16_000
    room = rng.standard_normal(len(time)) * np.exp(-6.9 * time / rt60)
    room *= 0.7 / np.sqrt((room**2).sum())
    room[0] += 1
    size = len(sound) + len(room)
    hz = np.maximum(np.fft.rfftfreq(size, 1 / 16_000), 1)
    loudspeaker = 1 / (1 + (250 / hz) ** 4) / (1 + (hz / (3600 if narrow else 7000)) ** 8)
    spectrum = np.fft.rfft(through_opus(sound), size) * np.fft.rfft(room, size) * loudspeaker
    returned = at_level(np.fft.irfft(spectrum, size)[: len(sound)], -22 + level)
    return np.concatenate([np.zeros(int(delay_ms * 16) + 3), returned])[: len(sound)]


def likenesses(sent: Sound, heard: Sound) -> npt.NDArray[np.float64]:
    """Asked every 160 ms at which the last 100 ms are loud enough for a voice detector."""
    rng = np.random.default_rng(4)
    wire = int16(resampled(sent, 16_000, 24_000))
    mic = int16(through_opus(heard + rng.standard_normal(len(heard)) * 20))
    detector = EchoDetector()
    found = []
    for tick in range(len(mic) // SAMPLES_IN):
        detector.sent(wire[tick * SAMPLES_OUT : (tick + 1) * SAMPLES_OUT])
        detector.add_received(mic[tick * SAMPLES_IN : (tick + 1) * SAMPLES_IN])
        last = heard[max(0, (tick - 4) * SAMPLES_IN) : (tick + 1) * SAMPLES_IN]
        if tick % 8 == 0 and np.sqrt((last**2).mean()) > 100:
            found.append(detector.likeness())
    assert len(found) > 5
    return np.array(found)


def under(agent: Sound, caller: Sound) -> tuple[Sound, Sound]:
    """Both cut to the shorter."""
    size = min(len(agent), len(caller)) // 640 * 640
    return agent[:size], caller[:size]


@pytest.mark.parametrize(
    ("level", "rt60", "delay_ms", "narrow"),
    [(-6, 0.1, 40, False), (-12, 0.2, 150, True), (-20, 0.3, 330, False), (-25, 0.3, 610, True)],
)
def test_own_voice_from_a_loudspeaker_is_echo(
    level: float, rt60: float, delay_ms: float, narrow: bool
) -> None:
    agent = said("slt", AGENT)
    found = likenesses(agent, echo(agent, level, rt60, delay_ms, narrow))
    assert np.mean(found >= ECHO) > 0.9


def test_person_while_the_agent_speaks_is_no_echo() -> None:
    agent, caller = under(said("slt", AGENT), said("rms", CALLER))
    found = likenesses(agent, caller)
    assert found.max() < ECHO
    assert np.median(found) < 0.4


def test_person_over_the_echo_is_no_echo() -> None:
    agent, caller = under(said("slt", AGENT), said("rms", CALLER))
    found = likenesses(agent, echo(agent, -10, 0.2, 120) + caller)
    assert np.mean(found >= ECHO) < 0.05


def test_person_as_loud_as_the_echo_is_mostly_no_echo() -> None:
    agent, caller = under(said("slt", AGENT), said("rms", CALLER))
    found = likenesses(agent, echo(agent, 0, 0.2, 120) + caller)
    assert np.mean(found >= ECHO) < 0.1


def test_silence_either_way_is_no_echo() -> None:
    caller = said("rms", CALLER)
    detector = EchoDetector()
    for tick in range(60):
        detector.sent(None)
        detector.add_received(int16(caller[tick * SAMPLES_IN : (tick + 1) * SAMPLES_IN]))
    assert detector.likeness() == 0
    for _ in range(60):
        detector.sent(int16(np.resize(caller, SAMPLES_OUT)))
        detector.add_received(np.zeros(SAMPLES_IN, np.int16))
    assert detector.likeness() == 0


def test_echo_longer_ago_than_the_search_is_not_found() -> None:
    """A bound that is kept: what was sent 1.2 s ago is forgotten."""
    agent = said("slt", AGENT)
    found = likenesses(agent, echo(agent, -6, 0.1, 1300))
    assert found.max() < ECHO


def checks(edge: str, level: float, delay_ms: int, caller: Pcm | None = None) -> list[bool]:
    """Of 13 s on a busy machine, whose stalls and late packets make both jitter buffers stretch:
    each 100 ms, where the last of them are loud enough, whether it is echo."""
    leg = Speakerphone(edge, level, delay_ms, busy=True)
    detector, found = EchoDetector(), []

    def listen(heard: Pcm, sent: Pcm | None, now: float) -> None:
        detector.sent(sent)
        detector.add_received(heard)
        if leg.ticks % 5 == 0 and np.sqrt((heard.astype(float) ** 2).mean()) > 100:
            found.append(detector.is_echo())

    leg.listen(listen)
    leg.connect()
    leg.playout.begin()
    leg.playout.write(np.concatenate([spoken("slt", text) for text in LONG])[: 13 * RATE_OUT])
    leg.playout.end()
    if caller is not None:
        ticks = np.resize(caller, 13 * RATE_OUT // SAMPLES_OUT * SAMPLES_OUT)
        leg.telephone.voice.extend(ticks.reshape(-1, SAMPLES_OUT))
    for _ in range(13 * 50):
        leg.tick(0)
    assert len(found) > 50
    return found


def longest(found: list[bool], what: bool) -> int:
    """Checks in a row."""
    return max(len(list(run)) * (value is what) for value, run in groupby(found))


@pytest.mark.slow
def test_echo_that_jitter_buffers_stretch_is_echo() -> None:
    calls = [checks("webrtc", -12, 50), checks("sip", -6, 50), checks("sip", -6, 150)]
    assert np.concatenate(calls).mean() > 0.95
    assert max(longest(found, False) for found in calls) <= 2


@pytest.mark.parametrize("voice", ["rms", "slt"])
def test_person_heard_through_jitter_buffers_that_stretch_is_no_echo(voice: str) -> None:
    """Not even one with the agent's own synthetic voice, for long."""
    found = checks("webrtc", -90, 50, spoken(voice, CALLER))
    assert np.mean(found) < (0.2 if voice == "slt" else 0.02)
    assert longest(found, True) <= 3
