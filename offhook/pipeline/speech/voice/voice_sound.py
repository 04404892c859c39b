"""Post-processes a voice model's audio: trims silence, normalizes loudness and changes the speed.

All audio is 24 kHz. It is processed in 20 ms blocks counted from the start of the reply, so the
output does not depend on how the input was chunked.
"""

from fractions import Fraction

import av
import numpy as np
import numpy.typing as npt

from offhook.media.pcm import RATE_OUT, Pcm

BLOCK = RATE_OUT // 50
LEVEL_RMS = 3677.0
"""Target level while speaking, -19 dBFS, which averages -20 with the pauses."""
SILENCE_RMS = 104.0
"""Silence threshold, -50 dBFS; quieter sound is inaudible next to speech."""
SPEECH_RMS = 184.0
"""Speech threshold, -45 dBFS; quieter blocks do not count for the voice's loudness."""
SPEECH_POWER = SPEECH_RMS**2
SPEECH_RANGE = 0.1
"""The same threshold relative to the voice's level (-20 dB)."""
LEVEL_BLOCKS = 150
"""Time constant of the level: 3 s of speech."""
GAIN_STEP = 10 ** (3 / 20 / 50)
"""Maximum gain change per speech block: 3 dB a second."""
LEAST_GAIN, MOST_GAIN = 0.25, 4.0
KNEE = 0.8 * 32767
"""Samples up to here are unchanged; above, they are compressed to stay below CEILING."""
CEILING = 0.99 * 32767
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
_RAMP = (np.arange(BLOCK, dtype=np.float32) + 1) / BLOCK
_NOTHING = np.empty(0, np.int16)


class VoiceSound:
    """Processes the audio of one reply. `gain` is the final gain of the voice's last reply, 1 for a
    new voice; `speed`, 0.5..2, keeps the pitch."""

    def __init__(self, speed: float = 1.0, gain: float = 1.0) -> None:
        self.gain = gain
        self._speed = speed
        self._power = 0.0
        self._blocks = 0
        self._begin()

    def _begin(self) -> None:
        self._rest = _NOTHING
        self._lead = _Lead()
        self._tempo = Tempo(self._speed) if self._speed != 1 else None
        self._outlet = _Outlet()

    def starved(self, starved: bool) -> None:
        """Sets whether the voice waits for text. While it does, only whole words are emitted: audio
        after the last gap waits for more."""
        self._outlet.starved = starved

    def push(self, pcm: Pcm) -> Pcm:
        """Adds samples and returns those ready to play, usually all."""
        if len(self._rest):
            pcm = np.concatenate([self._rest, pcm])
        whole = len(pcm) // BLOCK * BLOCK
        self._rest = pcm[whole:]
        return self._outlet.push(self._process(pcm[:whole]))

    def finish(self) -> Pcm:
        """Returns the last samples, without trailing silence. What is pushed afterwards begins
        anew, but for the gain: leading silence is dropped again."""
        sound = self._process(self._rest)
        if self._tempo:
            sound = np.concatenate([sound, self._tempo.finish()])
        last = np.concatenate([self._outlet.push(sound), self._outlet.finish()])
        self._begin()
        return last

    def _process(self, pcm: Pcm) -> Pcm:
        if not len(pcm):
            return _NOTHING
        sound = self._lead.push(self._levelled(pcm.astype(np.float32)))
        return self._tempo.push(sound) if self._tempo else sound

    def _levelled(self, sound: Float) -> Pcm:
        """Applies the current gain, which follows the voice slowly."""
        if len(sound) % BLOCK == 0:
            rows = sound.reshape(-1, BLOCK)
            powers = (np.einsum("ij,ij->i", rows, rows) / BLOCK).tolist()
            gains = [self.gain, *map(self._next_gain, powers)]
            edges = np.array(gains, np.float32)[:, None]
            rows *= edges[:-1] + (edges[1:] - edges[:-1]) * _RAMP
        else:
            sound *= self.gain
        return _bent(sound)

    def _next_gain(self, power: float) -> float:
        """Returns the gain after a block with this power (mean square)."""
        level = self._power / (self._blocks or 1)
        if power < SPEECH_POWER or power < level * SPEECH_RANGE**2:
            return self.gain
        if self._blocks == LEVEL_BLOCKS:
            self._power -= level
        else:
            self._blocks += 1
        self._power += power
        wanted = LEVEL_RMS / (self._power / self._blocks) ** 0.5
        lowest, highest = self.gain / GAIN_STEP, self.gain * GAIN_STEP
        wanted = lowest if wanted < lowest else highest if wanted > highest else wanted
        self.gain = min(max(wanted, LEAST_GAIN), MOST_GAIN)
        return self.gain


class SilenceTrimmer:
    """Drops the silence before and after what is said, except LEAD and TAIL."""

    def __init__(self) -> None:
        self._lead, self._outlet = _Lead(), _Outlet()

    def push(self, pcm: Pcm) -> Pcm:
        """Adds 24 kHz samples and returns those that are certainly not at the end."""
        return self._outlet.push(self._lead.push(pcm))

    def finish(self) -> Pcm:
        """Returns the last samples; nothing may be pushed afterwards."""
        return self._outlet.finish()


def _powers(sound: Pcm) -> Float:
    """Returns the mean squares of the frames; an incomplete last one counts as complete."""
    rows = sound.astype(np.float32)
    if len(rows) % FRAME:
        rows = np.pad(rows, (0, -len(rows) % FRAME))
    rows = rows.reshape(-1, FRAME)
    powers: Float = np.einsum("ij,ij->i", rows, rows) / FRAME
    return powers


def _bent(sound: Float) -> Pcm:
    """Compresses peaks and returns integer samples without clipping. Modifies `sound`."""
    size = float(max(sound.max(), -sound.min()))
    if size > KNEE:
        over = np.abs(sound) > KNEE
        loud = sound[over]
        room = CEILING - KNEE
        sound[over] = np.sign(loud) * (KNEE + room * np.tanh((np.abs(loud) - KNEE) / room))
    np.rint(sound, out=sound)
    return sound.astype(np.int16)


class _Lead:
    """Drops leading silence except for a short faded-in lead."""

    def __init__(self) -> None:
        self._over = False
        self._held = _NOTHING

    def push(self, sound: Pcm) -> Pcm:
        if self._over:
            return sound
        sound = np.concatenate([self._held, sound])
        heard = np.flatnonzero(_powers(sound) > SILENCE_RMS**2)
        if not len(heard):
            self._held = sound[-LEAD:]
            return _NOTHING
        self._over = True
        start = int(heard[0]) * FRAME
        sound = sound[max(0, start - LEAD) :].copy()
        fade = min(FADE, start)
        sound[:fade] = sound[:fade] * np.linspace(0, 1, fade)
        return sound


class Tempo:
    """Changes the tempo at constant pitch with FFmpeg's atempo (waveform-similarity overlap-add).

    It retains 50 ms until `finish`.
    """

    def __init__(self, speed: float) -> None:
        graph = av.filter.Graph()
        self._source = graph.add_abuffer(
            format="s16", sample_rate=RATE_OUT, layout="mono", time_base=Fraction(1, RATE_OUT)
        )
        self._sink = graph.add("abuffersink")
        tempo = graph.add("atempo", str(speed))
        self._source.link_to(tempo)
        tempo.link_to(self._sink)
        graph.configure()
        self._graph = graph
        self._samples = 0

    def push(self, pcm: Pcm) -> Pcm:
        if not len(pcm):
            return _NOTHING
        frame = av.AudioFrame.from_ndarray(pcm[None], format="s16", layout="mono")
        frame.sample_rate, frame.pts = RATE_OUT, self._samples
        self._samples += len(pcm)
        self._source.push(frame)
        return self._pull()

    def finish(self) -> Pcm:
        if not self._samples:
            return _NOTHING
        self._source.push(None)
        return self._pull()

    def _pull(self) -> Pcm:
        pieces = [_NOTHING]
        while True:
            try:
                frame = self._sink.pull()
            except (av.error.BlockingIOError, av.error.EOFError):
                return np.concatenate(pieces)
            assert isinstance(frame, av.AudioFrame)
            pieces.append(frame.to_ndarray()[0])


class _Outlet:
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
            self._powers += _powers(held[known * FRAME : frames * FRAME]).tolist()
        going = max(self._last_loud(), frames - HELD_SILENCE // FRAME)
        if self.starved:
            going = min(going, self._last_gap())
        del self._powers[:going]
        self._held = held[going * FRAME :]
        return held[: going * FRAME]

    def finish(self) -> Pcm:
        """Returns the rest up to shortly after the last audible frame, faded out."""
        self._powers = _powers(self._held).tolist()
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
