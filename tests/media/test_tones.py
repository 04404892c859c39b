"""Tones are what networks and telephones know: by their spectrum, their cadence, their level."""

from itertools import islice, pairwise

import numpy as np
import pytest

from offhook.media.pcm import RATE_OUT, SAMPLES_OUT, dbfs
from offhook.media.telephone_tones.dtmf import DIGIT_TICKS, DIGITS, DtmfTick
from offhook.media.telephone_tones.tones import EU, US, dtmf, play

FULL_SCALE_SINE_DBFS = -3.01


def heard(cadence, ms):
    blocks = list(islice(play(cadence), ms // 20))
    assert {(block.dtype, len(block)) for block in blocks} == {(np.dtype(np.int16), SAMPLES_OUT)}
    return np.concatenate(blocks)


def frequencies(pcm):
    """Hz of the peaks within 20 dB of the highest, and the share of the power they make up."""
    size = 1 << 15
    power = np.abs(np.fft.rfft(pcm * np.blackman(len(pcm)), size)) ** 2
    inner = power[1:-1]
    peaks = np.flatnonzero((inner > power[:-2]) & (inner >= power[2:])) + 1
    peaks = [int(n) for n in peaks if power[n] > power.max() / 100]
    near = np.zeros(len(power), bool)
    for n in peaks:
        near[max(0, n - 120) : n + 120] = True
    return [round(n * RATE_OUT / size) for n in peaks], power[near].sum() / power.sum()


def spans(pcm):
    """(ms of sound or silence, frequencies) in turn, measured in windows of 5 ms."""
    blocks = pcm[: len(pcm) // 120 * 120].reshape(-1, 120)
    loud = np.abs(blocks).max(axis=1) > 300
    edges = [0, *(np.flatnonzero(np.diff(loud)) + 1).tolist(), len(loud)]
    out = []
    for start, end in pairwise(edges):
        piece = pcm[start * 120 : end * 120]
        out.append(((end - start) * 5, frequencies(piece)[0] if loud[start] else []))
    return out


@pytest.mark.parametrize(
    ("cadence", "hz", "on", "off"),
    [
        (US.ringback, [440, 480], 2000, 4000),
        (US.busy, [480, 620], 500, 500),
        (US.congestion, [480, 620], 250, 250),
        (EU.ringback, [425], 1000, 4000),
        (EU.busy, [425], 500, 500),
        (EU.congestion, [425], 250, 250),
    ],
)
def test_call_progress_tones(cadence, hz, on, off):
    found = spans(heard(cadence, 2 * (on + off)))
    assert [ms for ms, _ in found] == pytest.approx([on, off, on, off], abs=5)
    for _, sounding in found[::2]:
        assert sounding == pytest.approx(hz, abs=2)
    sounding = heard(cadence, on)
    assert dbfs(sounding) == pytest.approx(-10 - 3.14 + FULL_SCALE_SINE_DBFS, abs=0.3)
    assert frequencies(sounding)[1] > 0.99


@pytest.mark.parametrize("tones", [US, EU])
def test_special_information_is_three_rising_tones(tones):
    pcm = heard(tones.special_information, 4000)
    thirds = [pcm[RATE_OUT * n * 33 // 100 :][: RATE_OUT * 33 // 100] for n in range(3)]
    assert [frequencies(third)[0] for third in thirds] == [[950], [1400], [1800]]
    assert [ms for ms, _ in spans(pcm)] == pytest.approx([990, 1000, 990, 1000, 20], abs=10)


ROWS = {697: "123A", 770: "456B", 852: "789C", 941: "*0#D"}
COLUMNS = (1209, 1336, 1477, 1633)


@pytest.mark.parametrize("digit", DIGITS)
def test_a_key_is_two_tones_for_100_ms_and_a_pause_for_100(digit):
    ticks = [dtmf(DtmfTick(digit, tick)) for tick in range(DIGIT_TICKS)]
    assert [tick is None for tick in ticks] == [False] * 5 + [True] * 5
    assert {len(tick) for tick in ticks[:5]} == {SAMPLES_OUT}
    sound = np.concatenate(ticks[:5])
    low, high = frequencies(sound)[0]
    row = min(ROWS, key=lambda hz: abs(hz - low))
    column = min(COLUMNS, key=lambda hz: abs(hz - high))
    assert (low, high) == pytest.approx((row, column), rel=0.005)
    assert ROWS[row][COLUMNS.index(column)] == digit
    assert frequencies(sound)[1] > 0.99
    assert dbfs(sound[480:-480]) == pytest.approx(-4.9 - 3.14 + FULL_SCALE_SINE_DBFS, abs=0.5)


def test_no_tone_begins_or_ends_with_a_click():
    for sound in (np.concatenate([dtmf(DtmfTick("5", n)) for n in range(5)]), heard(US.busy, 500)):
        assert abs(int(sound[0])) < 50
        assert abs(int(sound[-1])) < 50
