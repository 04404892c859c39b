"""What a line takes for heard is what the provider's far end played, over a way that takes time.

Both sides on one simulated clock: our line with the provider's stream, and a far end written from
the provider's documents.
"""

from random import Random

import numpy as np
import pytest

from benchmarks.carriers.far_ends.far_end_asterisk import ChanWebSocket
from benchmarks.carriers.far_ends.far_end_io import FAR_ENDS
from benchmarks.carriers.far_ends.far_end_json import Telnyx
from offhook.media.pcm import RATE_IN, SAMPLES_IN, dbfs
from tests.support.listening import Listening
from tests.telephony.carriers.simulated import LOUD, STREAMS, Simulated, loud_sound

CUTS = ("twilio", "telnyx", "plivo", "exotel", "vonage", "chan_websocket")
"""Providers that play marks back and let sound be taken back."""
DELAY_MS, JITTER_MS = 60, 20
BUFFER_MS = 150
"""The far end's jitter buffer, where nothing else is said."""
CLOSE_MS = 65
"""Two ticks of two clocks, and the jitter."""


def talking(provider: str, ms: int = 6000, seed: int = 1) -> Simulated:
    """The line is up and has begun to say `ms` of sound."""
    far_end = FAR_ENDS[provider](jitter_ms=BUFFER_MS if provider in CUTS else None)
    line = Simulated(provider, DELAY_MS, JITTER_MS, seed, far_end)
    line.run(1.0)
    assert line.leg.connected
    line.leg.playout.begin()
    line.leg.playout.write(loud_sound(ms))
    line.leg.playout.end()
    return line


@pytest.mark.parametrize("provider", STREAMS)
def test_all_that_is_said_is_played_without_holes_and_by_the_rules(provider: str) -> None:
    line = talking(provider, 3000)
    line.run(4.0)
    assert line.counted_ms == 3000
    assert abs(line.played_ms - 3000) <= 5
    assert not line.far_end.faults
    assert line.leg.stream.malformed == 0
    if provider != "audiosocket":  # no jitter buffer is there, and its lead is short
        assert line.far_end.player.holes == 0


@pytest.mark.parametrize("provider", CUTS)
def test_a_reply_that_is_cut_was_heard_as_far_as_it_is_counted(provider: str) -> None:
    chance = Random(7)
    for seed in range(4):
        line = talking(provider, seed=seed)
        line.run(chance.uniform(0.8, 4.0))
        line.leg.playout.flush()
        counted = line.counted_ms
        line.run(1.5)
        assert counted > 500
        assert abs(counted - line.played_ms) <= CLOSE_MS


def test_of_genesys_nothing_tells_how_far_it_is_but_the_clock() -> None:
    line = talking("genesys")
    line.run(2.0)
    line.leg.playout.flush()
    counted = line.counted_ms
    line.run(1.5)
    assert -CLOSE_MS <= counted - line.played_ms <= 60 + CLOSE_MS  # of its jitter buffer


def test_of_audiosocket_what_was_sent_ahead_is_played_after_the_cut() -> None:
    line = talking("audiosocket")
    line.run(2.0)
    line.leg.playout.flush()
    counted = line.counted_ms
    line.run(1.5)
    assert -line.leg.stream.lead_ms - 20 <= counted - line.played_ms <= 0


@pytest.mark.parametrize("provider", [*CUTS, "genesys"])
def test_silence_comes_with_the_first_message_after_a_cut(provider: str) -> None:
    line = talking(provider)
    line.run(2.0)
    line.leg.playout.pause()
    cut = line.now
    line.run(1.0)
    loud = np.flatnonzero(np.abs(line.far_end.player.sound()) > LOUD)
    assert line.far_end.opened_at is not None
    last = line.far_end.opened_at + loud[-1] / line.far_end.rate
    assert last - cut <= (DELAY_MS + JITTER_MS + 40) / 1000


@pytest.mark.parametrize("provider", [*CUTS, "genesys"])
def test_after_a_pause_it_goes_on_where_it_was_cut(provider: str) -> None:
    line = talking(provider, 4000)
    for _ in range(2):
        line.run(1.3)
        line.leg.playout.pause()
        line.run(0.7)
        line.leg.playout.resume()
    line.run(4.0)
    assert line.counted_ms == 4000
    allowed = 2 * (CLOSE_MS if provider != "genesys" else 60 + CLOSE_MS)
    assert abs(line.played_ms - 4000) <= allowed
    assert not line.far_end.faults


@pytest.mark.parametrize("provider", CUTS)
def test_sound_that_was_held_up_on_its_way_is_not_counted_before_it_is_played(
    provider: str,
) -> None:
    line = talking(provider, 8000)
    line.run(1.5)
    line.stall(0.8)
    line.run(2.5)
    line.leg.playout.flush()
    counted = line.counted_ms
    line.run(1.5)
    assert abs(counted - line.played_ms) <= CLOSE_MS + 20


@pytest.mark.parametrize("provider", STREAMS)
def test_the_caller_is_heard(provider: str) -> None:
    line = Simulated(provider, DELAY_MS, JITTER_MS)
    line.run(1.0)
    heard: list[np.ndarray] = []
    line.leg.listen(lambda pcm, said, now: heard.append(pcm))
    rate = line.far_end.rate
    said = (8000 * np.sin(2 * np.pi * 440 * np.arange(rate) / rate)).astype(np.int16)
    line.far_end.say(said)
    line.run(2.0)
    loud = [pcm for pcm in heard if dbfs(pcm) > -20]
    assert 48 <= len(loud) <= 52
    middle = np.concatenate(loud[5:45])
    spectrum = np.abs(np.fft.rfft(middle * np.hanning(len(middle))))
    assert abs(np.argmax(spectrum) * RATE_IN / len(middle) - 440) < 5
    assert len(middle) == 40 * SAMPLES_IN


def test_sound_of_telnyx_out_of_order_is_put_in_order() -> None:
    line = Simulated("telnyx", DELAY_MS, far_end=Telnyx(disorder=0.1))
    heard: list[np.ndarray] = []
    line.leg.listen(lambda pcm, said, now: heard.append(pcm))
    line.run(3.0)  # by then the jitter buffer knows
    line.far_end.say((8000 * np.sin(2 * np.pi * 440 * np.arange(8 * 5000) / 8000)).astype(np.int16))
    line.run(6.0)
    loud = [pcm for pcm in heard if dbfs(pcm) > -20]
    assert 248 <= len(loud) <= 252
    sound = np.concatenate(loud[5:-5])
    energy = np.abs(np.fft.rfft(sound * np.hanning(len(sound)))) ** 2
    hz = np.arange(len(energy)) * RATE_IN / len(sound)
    assert energy[np.abs(hz - 440) < 10].sum() > 0.999 * energy.sum()


def test_keys_and_the_end_of_the_call_arrive() -> None:
    for provider in STREAMS:
        line = Simulated(provider, DELAY_MS)
        pressed: list[str] = []
        line.leg.listener = Listening(on_dtmf=pressed.append)
        line.run(1.0)
        line.far_end.press("7")
        line.run(0.5)
        assert pressed == ["7"], provider


def test_an_asterisk_that_speaks_words_is_understood_too() -> None:
    line = Simulated("chan_websocket", DELAY_MS, far_end=ChanWebSocket(plain=True))
    line.run(1.0)
    line.leg.playout.write(loud_sound(2000))
    line.run(1.0)
    line.leg.playout.flush()
    counted = line.counted_ms
    line.run(1.0)
    assert abs(counted - line.played_ms) <= CLOSE_MS
    assert not line.far_end.faults
