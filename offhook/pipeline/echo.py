"""Is what comes in the agent's own voice coming back?

The last 320 ms heard are explained, as far as they can be, by a short filter over what was sent:
a loudspeaker, a room and a line are linear enough for that, a person is not in what was sent at
all. The delay is the peak of the whitened cross-correlation (Knapp and Carter 1976); from there
a 40 ms impulse response is fitted by regularised least squares, early taps free and late taps
held down as a room decays. What the filter leaves over is the person. All at 4 kHz, where most
of a voice's energy lies, codecs keep the waveform and the fit costs about 2 ms.

Sans-io. Two copies a tick; everything else happens when somebody asks.
"""

import numpy as np
import numpy.typing as npt

from offhook.media.pcm import PACKET_MS, RATE_IN, RATE_OUT, SAMPLES_IN, SAMPLES_OUT, Pcm

ECHO = 0.9
"""At this likeness and above it is echo alone: 99.7 % of echoes are, no person without echo, and
of people as loud as their echo 12 % in the first tenth of a second and 3 % later. Ask again."""
MAX_DELAY_MS = 800
"""The longest way out and back that is searched: two jitter buffers, a phone, a room."""

_RATE = 4000
_HEARD_TICKS = 320 // PACKET_MS
_SENT_TICKS = 1200 // PACKET_MS
_MAX_LAG = MAX_DELAY_MS * _RATE // 1000
_TAPS = 40 * _RATE // 1000
_LEAD = 8
"""Taps before the correlation's peak, which need not be the first arrival."""
_DECAY = 50
"""Taps after which the penalty grows by e, as a small room's energy falls."""
_RIDGE = 0.003
_SILENCE = (10 ** (-50 / 20) * 32768) ** 2
"""Power below which the sent sound explains nothing, however much it were amplified."""
_NOISE = (10 ** (-58 / 20) * 32768) ** 2
"""Power that is left over by any line and no sign of a person."""

Floats = npt.NDArray[np.float32]


class _Ring:
    """The last ticks of one direction, zeros before the first."""

    def __init__(self, ticks: int, samples: int) -> None:
        self._ticks = np.zeros((ticks, samples), np.int16)
        self._next = 0

    def add(self, pcm: Pcm | None) -> None:
        self._ticks[self._next] = 0 if pcm is None else pcm
        self._next = (self._next + 1) % len(self._ticks)

    def last(self) -> Floats:
        return np.roll(self._ticks, -self._next, axis=0).ravel().astype(np.float32)


class EchoDetector:
    """One call: what was sent and what was heard, tick by tick."""

    def __init__(self) -> None:
        self._sent = _Ring(_SENT_TICKS, SAMPLES_OUT)
        self._heard = _Ring(_HEARD_TICKS, SAMPLES_IN)

    def sent(self, pcm: Pcm | None) -> None:
        """Take the 480 samples put on the wire in this tick; None when nothing was."""
        self._sent.add(pcm)

    def heard(self, pcm: Pcm) -> None:
        """Take the 320 samples heard in this tick."""
        self._heard.add(pcm)

    def likeness(self) -> float:
        """How much of the last 320 ms heard is the sent sound returning: 0 none, 1 all of it.

        A voice with the echo beneath it scores by the echo's share of the energy. Costs about
        2 ms, so ask when a voice is suspected while or just after the agent speaks.
        """
        sent = _decimate(self._sent.last(), RATE_OUT)
        heard = _decimate(self._heard.last(), RATE_IN)
        noise = _NOISE * len(heard)
        energy = float(heard @ heard) - noise
        if energy <= 0 or float(sent @ sent) < _SILENCE * len(heard):
            return 0.0
        rest = _unexplained(sent, heard, _delay(sent, heard))
        left = max(0.0, float(rest @ rest) - noise)
        return max(0.0, 1 - left / energy)


def _decimate(sound: Floats, rate: int) -> Floats:
    """To 4 kHz by cutting the spectrum, with a slope of 300 Hz instead of a cliff that rings."""
    size = len(sound) * _RATE // rate
    spectrum = np.fft.rfft(sound)[: size // 2 + 1]
    slope = 300 * size // _RATE
    spectrum[-slope:] *= np.linspace(1, 0, slope, dtype=np.float32)
    return np.fft.irfft(spectrum, size).astype(np.float32) * np.float32(size / len(sound))


def _delay(sent: Floats, heard: Floats) -> int:
    """Samples by which `heard` follows `sent`; both end now."""
    cross = np.fft.rfft(sent) * np.conj(np.fft.rfft(heard, len(sent)))
    # Half whitened: without it the voice's own pitch is the peak, with all of it the noise is.
    strength = np.sqrt(np.abs(cross))
    cross /= strength + np.float32(1e-3) * strength.max()
    # The correlation's index is where in `sent` the heard sound would begin.
    undelayed = len(sent) - len(heard)
    likely = np.abs(np.fft.irfft(cross, len(sent))[undelayed - _MAX_LAG : undelayed + 1])
    return _MAX_LAG - int(np.argmax(likely))


def _unexplained(sent: Floats, heard: Floats, delay: int) -> Floats:
    """What is left of `heard` after the best filter of `_TAPS` taps around `delay`."""
    first = len(sent) - len(heard) - delay + _LEAD - (_TAPS - 1)
    reach = np.pad(sent, (0, _LEAD))[first : first + len(heard) + _TAPS - 1]
    # A row a sample, a column a tap, the latest arrival first.
    taps = np.lib.stride_tricks.sliding_window_view(reach, _TAPS)
    late = np.arange(_TAPS - 1, -1, -1, dtype=np.float32) - _LEAD
    normal = taps.T @ taps
    power = max(float(np.trace(normal)) / _TAPS, _SILENCE * len(heard))
    normal.flat[:: _TAPS + 1] += _RIDGE * power * np.exp(np.maximum(late, 0) / _DECAY)
    return heard - taps @ np.linalg.solve(normal, taps.T @ heard)
