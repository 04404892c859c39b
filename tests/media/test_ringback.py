"""What a caller hears while it rings elsewhere, tick by tick."""

from functools import partial

import numpy as np
import pytest

from offhook.media.pcm import RATE_IN, RATE_OUT, SAMPLES_IN, SAMPLES_OUT
from offhook.media.ringback import EARLY_GAP_S, EARLY_PAUSE_S, Ringback
from offhook.media.telephone_tones.tones import repeat

OURS, THEIRS = 425, 620
TICK_S = 0.02


def tone(hz, rate, samples):
    return (8000 * np.sin(2 * np.pi * hz * np.arange(samples) / rate)).astype(np.int16)


class Waiting:
    """A caller, and a far end that may play something before it answers."""

    def __init__(self):
        ours = tone(OURS, RATE_OUT, RATE_OUT)  # a second, that is repeated without a seam
        self.ringback = Ringback(partial(repeat, ours))
        self.now = self.last_packet_at = 0.0
        self.ticks = 0

    def hears(self, seconds, far=None):
        """What the caller hears, by frequency; 0 is silence. `far`: "silent" packets, a tone, or
        None for no packets."""
        heard = []
        for _ in range(round(seconds / TICK_S)):
            early = np.zeros(SAMPLES_IN, np.int16)
            if far is not None:
                self.last_packet_at = self.now
            if far == "sound":
                start = self.ticks % 50 * SAMPLES_IN
                early = tone(THEIRS, RATE_IN, RATE_IN)[start : start + SAMPLES_IN]
            self.ringback.receive(early, self.last_packet_at, self.now)
            heard.append(next(self.ringback))
            self.now += TICK_S
            self.ticks += 1
        assert all(len(tick) == SAMPLES_OUT for tick in heard)
        return [frequency(tick) for tick in heard]


def frequency(tick):
    if np.abs(tick).max() < 100:
        return 0
    spectrum = np.abs(np.fft.rfft(tick * np.hanning(len(tick)), 8 * len(tick)))
    peak = float(np.argmax(spectrum)) * RATE_OUT / (8 * len(tick))
    return min((OURS, THEIRS), key=lambda hz: abs(hz - peak))


@pytest.fixture
def waiting():
    return Waiting()


def test_ours_is_heard_without_end(waiting):
    assert set(waiting.hears(3)) == {OURS}


def test_theirs_is_heard_instead_once_it_is_audible(waiting):
    assert set(waiting.hears(1, "silent")) == {OURS}
    assert set(waiting.hears(1, "sound")[1:]) == {THEIRS}


def test_a_pause_of_their_ringing_tone_is_theirs(waiting):
    waiting.hears(1, "sound")
    assert set(waiting.hears(5, "silent")[1:]) == {0}
    assert set(waiting.hears(1, "sound")[1:]) == {THEIRS}


@pytest.mark.parametrize(("far", "seconds"), [(None, EARLY_GAP_S), ("silent", EARLY_PAUSE_S)])
def test_ours_is_heard_again_when_theirs_has_stopped(waiting, far, seconds):
    waiting.hears(1, "sound")
    heard = waiting.hears(seconds + 1, far)
    assert heard[1:].index(OURS) == pytest.approx(seconds / TICK_S, abs=2)
    assert set(heard[-40:]) == {OURS}


def test_ours_begins_anew_after_theirs(waiting):
    begun = []

    def begin():
        begun.append(waiting.now)
        return repeat(tone(OURS, RATE_OUT, RATE_OUT))

    waiting.ringback = Ringback(begin)
    waiting.hears(1)
    waiting.ringback.end_early()  # there were none
    waiting.hears(1, "sound")
    waiting.ringback.end_early()
    assert len(begun) == 2
    assert set(waiting.hears(1)) == {OURS}
