"""Is what comes in the agent's own voice coming back?

The last 320 ms heard are explained, as far as they can be, by a short filter over what was sent:
a loudspeaker, a room and a line are linear enough for that, a person is not in what was sent at
all. The delay is the peak of the whitened cross-correlation (Knapp and Carter 1976); from there
a 40 ms impulse response is fitted by regularised least squares, early taps free and late taps
held down as a room decays. What the filter leaves over is the person. All at 4 kHz, where most
of a voice's energy lies, codecs keep the waveform and a fit costs less than a millisecond.

Jitter buffers stretch the sound whenever packets come late, and then one filter fits before and
another after: of pure echo on a busy machine a third is not explained so. What fails is therefore
cut into overlapping pieces with a delay and a filter each; first with delays not far from that of
the whole, and where the line is known for its echo, with delays not far from the line's.

Sans-io. Two copies a tick; everything else happens when somebody asks.
"""

from collections import deque
from functools import cache

import numpy as np
import numpy.typing as npt

from offhook.media.pcm import PACKET_MS, RATE_IN, RATE_OUT, SAMPLES_IN, SAMPLES_OUT, Pcm

ECHO = 0.9
"""Likeness from which it is echo alone: true for 99.7 % of echoes, never for a person without echo,
and of people as loud as their echo for 12 % in the first tenth of a second and 3 % later, so check
again."""
ECHO_HARDLY = 0.3
"""Likeness below which the piecewise fit is skipped: of the echoes it would find 0.1 % are below,
and of persons 70 %, which halves their cost."""
ECHO_IN_PIECES = 0.94
"""Threshold of the piecewise fit: met by two thirds of the echoes that a single filter misses while
both jitter buffers stretch, and by 0.4 % of persons without echo."""
ECHO_ON_LINE = 0.8
"""Threshold of the piecewise fit near the line's delay: met by no person without echo, and by 5 %
of people as loud as their echo."""
MAX_DELAY_MS = 1200
"""Maximum round-trip delay searched: two jitter buffers, a phone, a room."""

_RATE = 4000
_HEARD_TICKS = 320 // PACKET_MS
_LATE_TICKS = 1000 // PACKET_MS
_SENT_TICKS = (MAX_DELAY_MS + 400) // PACKET_MS
_MAX_LAG = MAX_DELAY_MS * _RATE // 1000
_TAPS = 40 * _RATE // 1000
_PIECE_TAPS = 25 * _RATE // 1000
_PIECE = 80 * _RATE // 1000
_PIECE_STEP = 40 * _RATE // 1000
"""Pieces overlap by half: if the delay jumps within one, its neighbours explain both sides."""
_PIECE_SPAN = 80 * _RATE // 1000
"""Maximum difference of a piece's delay from that of the whole."""
_LINE_SPAN = 150 * _RATE // 1000
"""Maximum difference from the line's delay."""
_DELAYS = 5
"""Number of recent delays whose median is the line's delay,"""
_DELAYS_LEAST = 3
"""of which at least this many"""
_DELAYS_SPREAD = 50 * _RATE // 1000
"""must be within this range of it: a voice much like the agent's is sometimes taken for echo, but
each time at another delay."""
_REPEATS_TICKS = 1000 // PACKET_MS
"""Maximum time between two echoes that confirm each other."""
_LEAD = 8
"""Filter taps before the correlation's peak, which may not be the first arrival."""
_DECAY = 50
"""Taps after which the penalty grows by e, like the energy decay of a small room."""
_RIDGE = 0.003
_SILENCE = (10 ** (-50 / 20) * 32768) ** 2
"""Power below which the sent audio explains nothing, however amplified."""
_NOISE = (10 ** (-58 / 20) * 32768) ** 2
"""Residual power that any line has, and which is no sign of a person."""

Floats = npt.NDArray[np.float32]


class _Ring:
    """The last ticks of one direction; zeros before the first."""

    def __init__(self, ticks: int, samples: int) -> None:
        self._ticks = np.zeros((ticks, samples), np.int16)
        self._next = 0

    def add(self, pcm: Pcm | None) -> None:
        self._ticks[self._next] = 0 if pcm is None else pcm
        self._next = (self._next + 1) % len(self._ticks)

    def last(self, ticks: int, ago: int) -> Floats:
        """Returns `ticks` ticks that end `ago` ticks before now."""
        at = np.arange(self._next - ago - ticks, self._next - ago) % len(self._ticks)
        return self._ticks[at].ravel().astype(np.float32)


class EchoDetector:
    """Detects echo in one call from what was sent and received, tick by tick."""

    def __init__(self) -> None:
        self._sent = _Ring(_SENT_TICKS + _LATE_TICKS, SAMPLES_OUT)
        self._heard = _Ring(_HEARD_TICKS + _LATE_TICKS, SAMPLES_IN)
        self._delays: deque[int] = deque(maxlen=_DELAYS)
        """Delays of recently found echo, in samples."""
        self.repeats = False
        """Whether the echo found last came at the delay of one found just before, as a line's
        does."""
        self._ticks = 0
        self._found_at = -_REPEATS_TICKS - 1
        """Tick at which echo was last found."""

    def sent(self, pcm: Pcm | None) -> None:
        """Adds the 480 samples sent in this tick; None if nothing was sent."""
        self._sent.add(pcm)

    def add_received(self, pcm: Pcm) -> None:
        """Adds the 320 samples received in this tick."""
        self._heard.add(pcm)
        self._ticks += 1

    def likeness(self) -> float:
        """Returns how much of the last 320 ms received is returning sent audio, 0 to 1.

        A voice over an echo scores by the echo's share of the energy. It costs about 1 ms, so call
        it when a voice is suspected while or just after the agent speaks.
        """
        return _whole(*self._last(0))[0]

    def is_echo(self, ago: int = 0) -> bool:
        """Returns whether 320 ms of received audio, up to `ago` ticks ago (at most a second), are
        returning sent audio and nothing else."""
        sent, heard = self._last(min(ago, _LATE_TICKS))
        likeness, delay = _whole(sent, heard)
        found = likeness >= ECHO
        if ECHO_HARDLY <= likeness < ECHO:
            likeness, delay = _in_pieces(sent, heard, delay, _PIECE_SPAN)
            found = likeness >= ECHO_IN_PIECES
        if not found and (line := self._line()) is not None:
            likeness, delay = _in_pieces(sent, heard, line, _LINE_SPAN)
            found = likeness >= ECHO_ON_LINE
        if found:
            soon = self._ticks - self._found_at <= _REPEATS_TICKS
            self.repeats = soon and abs(self._delays[-1] - delay) <= _DELAYS_SPREAD
            self._found_at = self._ticks
            self._delays.append(delay)
        return found

    @property
    def delay_ms(self) -> int:
        """Recent delay from sent to received; 0 if no echo was found."""
        return int(np.median(self._delays)) * 1000 // _RATE if self._delays else 0

    def _line(self) -> int | None:
        """The line's delay in samples, if known."""
        if len(self._delays) < _DELAYS_LEAST:
            return None
        delay = int(np.median(self._delays))
        agree = sum(abs(other - delay) <= _DELAYS_SPREAD for other in self._delays)
        return delay if agree >= _DELAYS_LEAST else None

    def _last(self, ago: int) -> tuple[Floats, Floats]:
        """Returns sent and received audio, both ending `ago` ticks before now."""
        sent, heard = self._sent.last(_SENT_TICKS, ago), self._heard.last(_HEARD_TICKS, ago)
        return _decimate(sent, RATE_OUT), _decimate(heard, RATE_IN)


def _decimate(sound: Floats, rate: int) -> Floats:
    """Decimates to 4 kHz by truncating the spectrum with a slope of 300 Hz, which avoids
    ringing."""
    size = len(sound) * _RATE // rate
    spectrum = np.fft.rfft(sound)[: size // 2 + 1]
    slope = 300 * size // _RATE
    spectrum[-slope:] *= np.linspace(1, 0, slope, dtype=np.float32)
    return np.fft.irfft(spectrum, size).astype(np.float32) * np.float32(size / len(sound))


def _whole(sent: Floats, heard: Floats) -> tuple[float, int]:
    """Fits one filter with any delay."""
    return _explained(sent, heard, len(heard), len(heard), _TAPS, (0, _MAX_LAG))


def _in_pieces(sent: Floats, heard: Floats, delay: int, span: int) -> tuple[float, int]:
    """Fits a filter to each piece, with delays near the given one."""
    lags = max(0, delay - span), min(_MAX_LAG, delay + span)
    return _explained(sent, heard, _PIECE, _PIECE_STEP, _PIECE_TAPS, lags)


def _explained(
    sent: Floats, heard: Floats, size: int, step: int, taps: int, lags: tuple[int, int]
) -> tuple[float, int]:
    """Returns the share of `heard` explained by filters of `taps` over `sent`, one for each piece
    of `size` samples starting every `step`, and the median of their delays, which are within
    `lags`. Where pieces overlap, the better fit counts."""
    noise = _NOISE * len(heard)
    energy = float(heard @ heard) - noise
    if energy <= 0 or float(sent @ sent) < _SILENCE * len(heard):
        return 0.0, 0
    left, delays = np.full(len(heard) // step, np.inf, np.float32), []
    for start in range(0, len(heard) - size + 1, step):
        piece, until = heard[start : start + size], sent[: len(sent) - len(heard) + start + size]
        delays.append(_delay(until, piece, *lags))
        rest = _unexplained(until, piece, delays[-1], taps).reshape(-1, step)
        part = left[start // step : (start + size) // step]
        np.minimum(part, (rest * rest).sum(1), out=part)
    unexplained = max(0.0, float(left.sum()) - noise)
    return max(0.0, 1 - unexplained / energy), int(np.median(delays))


def _delay(sent: Floats, heard: Floats, least: int, most: int) -> int:
    """Returns the samples by which `heard` follows `sent`; both end now."""
    sent = sent[max(0, len(sent) - len(heard) - most) : len(sent) - least]
    cross = np.fft.rfft(sent) * np.conj(np.fft.rfft(heard, len(sent)))
    # Half whitened: without whitening the voice's pitch dominates, with full whitening the noise.
    strength = np.sqrt(np.abs(cross))
    cross /= strength + np.float32(1e-3) * strength.max()
    # The correlation's index is where in `sent` the received audio would begin.
    undelayed = len(sent) - len(heard)
    likely = np.abs(np.fft.irfft(cross, len(sent))[: undelayed + 1])
    return least + undelayed - int(np.argmax(likely))


def _unexplained(sent: Floats, heard: Floats, delay: int, count: int) -> Floats:
    """Returns the residual of `heard` after the best filter of `count` taps around `delay`."""
    first = len(sent) - len(heard) - delay + _LEAD - (count - 1)
    reach = np.pad(sent, (0, _LEAD))[first : first + len(heard) + count - 1]
    # Taps in the order of `reach`: the latest arrival first.
    late = np.arange(count - 1, -1, -1, dtype=np.float32) - _LEAD
    normal = _covariance(reach, count)
    power = max(float(np.trace(normal)) / count, _SILENCE * len(heard))
    normal.flat[:: count + 1] += _RIDGE * power * np.exp(np.maximum(late, 0) / _DECAY)
    taps = np.linalg.solve(normal, np.correlate(reach, heard, "valid"))
    return heard - np.correlate(reach, taps, "valid")


def _covariance(sound: Floats, count: int) -> Floats:
    """Returns the products of the windows of `sound` that start at 0 to `count` - 1, as long as
    possible.

    Consecutive windows share all but one sample at either end, so each diagonal is a running sum,
    far cheaper than a matrix product.
    """
    size = len(sound) - count + 1
    # A row per window, a column by the offset of the other.
    windows = np.lib.stride_tricks.sliding_window_view(np.pad(sound, (0, count)), count)
    products = np.empty((count, count), np.float32)
    products[0] = np.correlate(sound, sound[:size], "valid")
    products[1:] = sound[size:, None] * windows[size : size + count - 1]
    products[1:] -= sound[: count - 1, None] * windows[: count - 1]
    np.cumsum(products, axis=0, out=products)
    return products.take(_places(count))


@cache
def _places(count: int) -> npt.NDArray[np.intp]:
    """Returns where `_covariance`'s products have that of windows i and j."""
    i, j = np.indices((count, count))
    return np.asarray(np.minimum(i, j) * count + abs(i - j), np.intp)
