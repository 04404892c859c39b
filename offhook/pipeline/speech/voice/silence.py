"""Silence around what a voice says: found, and left out. All audio is 24 kHz."""

import numpy as np
import numpy.typing as npt

from offhook.media.pcm import RATE_OUT, Pcm

SILENCE_RMS = 104.0
"""Silence threshold, -50 dBFS; quieter sound is inaudible next to speech."""
LEAD = RATE_OUT // 100
"""Audio kept before the first audible block, where soft consonants start."""
TAIL = RATE_OUT // 20
"""Audio kept after the last audible block."""
FADE = RATE_OUT // 200
HELD_SILENCE = RATE_OUT * 400 // 1000
"""Silence held back because it may be the end; longer silence is a pause and is emitted."""
FRAME = RATE_OUT // 100
QUIET_RMS = 412.0
"""Gap threshold, -38 dBFS: a quieter 10 ms frame may be a gap between words."""
GAP_FRAMES = 5
"""Consecutive quiet frames that make a gap; stops within words are usually shorter."""
MOST_HELD = RATE_OUT * 1500 // 1000
"""Audio held back for lack of a gap; beyond it the quietest frame counts as one."""

Float = npt.NDArray[np.float32]
_NOTHING = np.empty(0, np.int16)


class SilenceTrimmer:
    """Drops the silence before and after what is said, except LEAD and TAIL."""

    def __init__(self) -> None:
        self._lead, self._outlet = Lead(), Outlet()

    def push(self, pcm: Pcm) -> Pcm:
        """Adds 24 kHz samples and returns those that are certainly not at the end."""
        return self._outlet.push(self._lead.push(pcm))

    def finish(self) -> Pcm:
        """Returns the last samples; nothing may be pushed afterwards."""
        return self._outlet.finish()


class Lead:
    """Drops leading silence except for a short faded-in lead."""

    def __init__(self) -> None:
        self._over = False
        self._held = _NOTHING

    def push(self, sound: Pcm) -> Pcm:
        if self._over:
            return sound
        sound = np.concatenate([self._held, sound])
        heard = np.flatnonzero(powers(sound) > SILENCE_RMS**2)
        if not len(heard):
            self._held = sound[-LEAD:]
            return _NOTHING
        self._over = True
        start = int(heard[0]) * FRAME
        sound = sound[max(0, start - LEAD) :].copy()
        fade = min(FADE, start)
        sound[:fade] = sound[:fade] * np.linspace(0, 1, fade)
        return sound


class Outlet:
    """Passes audio on, except for silence that may be the end and, while starved, incomplete
    words."""

    def __init__(self) -> None:
        self.starved = False
        self._held = _NOTHING
        self._powers: list[float] = []
        """Mean squares of the complete frames held back."""

    def push(self, pcm: Pcm) -> Pcm:
        """Returns complete frames, except those held back."""
        held = np.concatenate([self._held, pcm]) if len(self._held) else pcm
        frames, known = len(held) // FRAME, len(self._powers)
        if frames > known:
            self._powers += powers(held[known * FRAME : frames * FRAME]).tolist()
        going = max(self._last_loud(), frames - HELD_SILENCE // FRAME)
        if self.starved:
            going = min(going, self._last_gap())
        del self._powers[:going]
        self._held = held[going * FRAME :]
        return held[: going * FRAME]

    def finish(self) -> Pcm:
        """Returns the rest up to shortly after the last audible frame, faded out."""
        self._powers = powers(self._held).tolist()
        heard = self._last_loud() * FRAME
        sound = self._held[: heard + TAIL].copy()
        fade = min(FADE, len(sound) - heard)
        if fade > 0:
            sound[-fade:] = sound[-fade:] * np.linspace(1, 0, fade)
        return sound

    def _last_loud(self) -> int:
        """Returns the number of frames up to the last audible one."""
        for number in range(len(self._powers), 0, -1):
            if self._powers[number - 1] > SILENCE_RMS**2:
                return number
        return 0

    def _last_gap(self) -> int:
        """Returns the number of frames up to the end of the last gap between words."""
        gap, end = 0, 0
        for number, power in enumerate(self._powers, 1):
            gap = gap + 1 if power < QUIET_RMS**2 else 0
            if gap >= GAP_FRAMES:
                end = number
        first = len(self._powers) - MOST_HELD // FRAME
        if end < first:
            end = first + int(np.argmin(self._powers[first:])) + 1
        return end


def powers(sound: Pcm) -> Float:
    """Returns the mean squares of the frames; an incomplete last one counts as complete."""
    rows = sound.astype(np.float32)
    if len(rows) % FRAME:
        rows = np.pad(rows, (0, -len(rows) % FRAME))
    rows = rows.reshape(-1, FRAME)
    powers: Float = np.einsum("ij,ij->i", rows, rows) / FRAME
    return powers
