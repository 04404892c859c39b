"""What the tones of an answered line mean: beeps, fax machines, ringing, busy, announcements."""

from collections.abc import Callable
from enum import StrEnum

from offhook.media.telephone_tones.steady_tones import Tone

SILENCE_MS = 200
"""Silence that follows a machine's beep."""
MIN_BEEP_MS, MAX_BEEP_MS = 90, 1700
"""Length of a beep."""
LOWEST_HZ, HIGHEST_HZ = 380.0, 2150.0
"""Of a beep."""
CED_HZ, CED_MS = 2100.0, 1800
"""A fax machine that answers (ITU-T T.30), and how much of its tone, 2.6 s at least, is heard."""
CNG_HZ, CNG_MS = 1100.0, (400, 620)
"""One that calls: half a second every three."""
INFORMATION_HZ = ((913.8, 985.2, 950.0), (1370.6, 1428.5, 1400.0), (1776.7, 1800.0))
"""The three tones before an announcement (ITU-T E.180, T1.401)."""
INFORMATION_MS = (180, 480)
INFORMATION_GAP_MS = 120
RINGING: tuple[tuple[float, ...], ...] = ((425.0,), (460.0,), (440.0, 480.0), (400.0, 450.0))
"""Ringing tones; two lines 40 Hz apart are seen as one between them."""
MIN_RINGING_MS = 380
BUSY: tuple[tuple[float, ...], ...] = ((425.0,), (480.0, 620.0), (400.0,))
BUSY_MS = (180, 620)
"""Length of a busy or congestion tone, and of its pause."""
BUSY_TONES = 3
"""Tones in a row that make it one."""
NEAR_HZ = 16.0


class Sign(StrEnum):
    BEEP = "beep"
    FAX = "fax"
    CALLING_FAX = "calling_fax"
    """Or a beep like it."""
    INFORMATION = "information"
    BUSY_OR_BEEP = "busy_or_beep"
    RINGING = "ringing"
    BUSY = "busy"


class ToneSigns:
    """The tones of one line so far."""

    def __init__(self) -> None:
        self._last: Tone | None = None
        """The last one that was long enough to be any."""
        self._beep: Tone | None = None
        """What may be a beep if silence follows."""
        self._information = 0
        """Tones of the three that were heard in a row."""
        self._pulses = 0
        """Busy tones in a row."""
        self._is_fax = False

    def step(
        self, ended: Tone | None, sounding: Tone | None, now_ms: int, *, silent: bool
    ) -> Sign | None:
        """Take a tone that has ended and the one that sounds; `silent`: neither it nor a voice is
        heard."""
        if sounding is not None and sounding.has(CED_HZ) and sounding.lasted_ms >= CED_MS:
            if self._is_fax:
                return None
            self._is_fax = True
            return Sign.FAX
        if sounding is not None and _is_ringing(sounding) and sounding.lasted_ms > BUSY_MS[1]:
            return Sign.RINGING
        if ended is not None and ended.lasted_ms >= MIN_BEEP_MS:
            return self._receive(ended)
        if self._beep is not None and not silent and now_ms - self._beep.ended_ms > 60:
            self._beep = None
        elif self._beep is not None and silent and now_ms - self._beep.ended_ms >= SILENCE_MS:
            beep, self._beep = self._beep, None
            if _is_busy(beep):
                return Sign.BUSY_OR_BEEP
            is_fax = beep.has(CNG_HZ, within=38.0) and _within(beep.lasted_ms, CNG_MS)
            return Sign.CALLING_FAX if is_fax else Sign.BEEP
        return None

    def _receive(self, tone: Tone) -> Sign | None:
        last, self._last = self._last, tone
        gap = None if last is None else tone.began_ms - last.ended_ms
        if self._is_next_information(tone, gap):
            self._information += 1
            if self._information == len(INFORMATION_HZ):
                self._information, self._beep = 0, None
                return Sign.INFORMATION
        else:
            self._information = int(_is_near(tone, INFORMATION_HZ[0]))
        if _is_busy(tone):
            follows = gap is not None and _within(gap, BUSY_MS)
            self._pulses = self._pulses + 1 if follows else 1
            if self._pulses == BUSY_TONES:
                return Sign.BUSY
        else:
            self._pulses = 0
        self._beep = tone if _is_beep(tone) else None
        return Sign.RINGING if _is_ringing(tone) and tone.lasted_ms > BUSY_MS[1] else None

    def _is_next_information(self, tone: Tone, gap: int | None) -> bool:
        return (
            _is_near(tone, INFORMATION_HZ[self._information])
            and _within(tone.lasted_ms, INFORMATION_MS)
            and (self._information == 0 or (gap is not None and gap <= INFORMATION_GAP_MS))
        )


def _within(value: int, limits: tuple[int, int]) -> bool:
    return limits[0] <= value <= limits[1]


def _is_near(tone: Tone, frequencies: tuple[float, ...]) -> bool:
    return any(tone.has(frequency, within=NEAR_HZ) for frequency in frequencies)


def _is_busy(tone: Tone) -> bool:
    is_one = any(tone.has(*busy, within=NEAR_HZ) for busy in BUSY)
    return is_one and _within(tone.lasted_ms, BUSY_MS)


def _is_ringing(tone: Tone) -> bool:
    is_one: Callable[[tuple[float, ...]], bool] = lambda f: tone.has(*f, within=NEAR_HZ)  # noqa: E731
    return tone.lasted_ms >= MIN_RINGING_MS and any(map(is_one, RINGING))


def _is_beep(tone: Tone) -> bool:
    single = len(tone.frequencies) == 1
    ringing = _is_ringing(tone) and tone.lasted_ms > BUSY_MS[1]
    return (
        single
        and not ringing
        and LOWEST_HZ <= tone.frequencies[0] <= HIGHEST_HZ
        and _within(tone.lasted_ms, (MIN_BEEP_MS, MAX_BEEP_MS))
    )
