"""From what a voice model makes to what is played: no silence around it, one loudness, any speed.

All 24 kHz. The sound goes through in blocks of 20 ms counted from the reply's beginning, so what
comes out does not depend on how it came in.
"""

from fractions import Fraction

import av
import numpy as np
import numpy.typing as npt

from offhook.media.pcm import RATE_OUT, Pcm

BLOCK = RATE_OUT // 50
LEVEL_RMS = 3677.0
"""-19 dBFS while the voice speaks, which makes -20 with the pauses between its words."""
SILENCE_RMS = 104.0
"""-50 dBFS: below it nothing is heard beside speech."""
SPEECH_RMS = 184.0
"""-45 dBFS: what is below it says nothing about the voice's loudness."""
SPEECH_RANGE = 0.1
"""Of the voice's level so far (-20 dB): likewise."""
LEVEL_BLOCKS = 150
"""Of speech, 3 s: how long the level remembers."""
GAIN_STEP = 10 ** (3 / 20 / 50)
"""The most that the gain changes in a block of speech: 3 dB a second."""
LEAST_GAIN, MOST_GAIN = 0.25, 4.0
KNEE = 0.8 * 32767
"""Up to here a sample is what it is; above, it is bent so that it stays under CEILING."""
CEILING = 0.99 * 32767
LEAD = RATE_OUT // 100
"""Kept before the first block that is heard: soft consonants begin there."""
TAIL = RATE_OUT // 20
"""Kept after the last."""
FADE = RATE_OUT // 200
HELD_SILENCE = RATE_OUT * 400 // 1000
"""Silence held back because it may be the end. More goes out: it is a pause."""
FRAME = RATE_OUT // 100
QUIET_RMS = 412.0
"""-38 dBFS: a frame of 10 ms below it may be a gap between words."""
GAP_FRAMES = 5
"""As many quiet ones in a row are a gap; a stop within a word is shorter, most of the time."""
MOST_HELD = RATE_OUT * 1500 // 1000
"""Sound held back for want of a gap; of more, the quietest frame of so much is taken for one."""

Float = npt.NDArray[np.float32]
_RAMP = (np.arange(BLOCK, dtype=np.float32) + 1) / BLOCK
_NOTHING = np.empty(0, np.int16)


class VoiceSound:
    """The sound of one reply. `gain` is that with which the voice's last reply ended, 1 for a voice
    not heard before; `speed`, 0.5..2, keeps the pitch."""

    def __init__(self, speed: float = 1.0, gain: float = 1.0) -> None:
        self.gain = gain
        self._rest = _NOTHING
        self._leading = True
        self._lead = _NOTHING
        self._power = 0.0
        self._blocks = 0
        self._tempo = Tempo(speed) if speed != 1 else None
        self._outlet = _Outlet()

    def starved(self, starved: bool) -> None:
        """Whether the voice waits for text. While it does, only whole words go out: what is after
        the last gap between words waits for more."""
        self._outlet.starved = starved

    def push(self, pcm: Pcm) -> Pcm:
        """The next samples; returns those ready to be played, all of them as a rule."""
        if len(self._rest):
            pcm = np.concatenate([self._rest, pcm])
        whole = len(pcm) // BLOCK * BLOCK
        self._rest = pcm[whole:]
        return self._outlet.push(self._process(pcm[:whole]))

    def finish(self) -> Pcm:
        """The last samples, without the silence after the last that is heard."""
        sound = self._process(self._rest)
        if self._tempo:
            sound = np.concatenate([sound, self._tempo.finish()])
        return np.concatenate([self._outlet.push(sound), self._outlet.finish()])

    def _process(self, pcm: Pcm) -> Pcm:
        if not len(pcm):
            return _NOTHING
        sound = self._levelled(pcm.astype(np.float32))
        if self._leading:
            sound = self._without_lead(sound)
        return self._tempo.push(sound) if self._tempo else sound

    def _levelled(self, sound: Float) -> Pcm:
        """With the gain of this moment, which follows the voice slowly."""
        blocks = -(-len(sound) // BLOCK)
        edges = np.empty(blocks + 1, np.float32)
        edges[0] = self.gain
        if blocks * BLOCK == len(sound):
            rows = sound.reshape(blocks, BLOCK)
            powers = (np.einsum("ij,ij->i", rows, rows) / BLOCK).tolist()
            for number, power in enumerate(powers, 1):
                edges[number] = self._next_gain(power)
            rows *= edges[:-1, None] + np.diff(edges)[:, None] * _RAMP
        else:
            sound *= self.gain
        return _bent(sound)

    def _next_gain(self, power: float) -> float:
        """The gain after a block of so much power (mean square)."""
        level = self._power / max(1, self._blocks)
        if power < SPEECH_RMS**2 or power < level * SPEECH_RANGE**2:
            return self.gain
        if self._blocks == LEVEL_BLOCKS:
            self._power -= level
        else:
            self._blocks += 1
        self._power += power
        wanted = LEVEL_RMS / (self._power / self._blocks) ** 0.5
        wanted = min(max(wanted, self.gain / GAIN_STEP), self.gain * GAIN_STEP)
        self.gain = min(max(wanted, LEAST_GAIN), MOST_GAIN)
        return self.gain

    def _without_lead(self, sound: Pcm) -> Pcm:
        """Nothing until something is heard; then a little before it, faded in, and all from there
        on."""
        sound = np.concatenate([self._lead, sound])
        heard = np.flatnonzero(_powers(sound) > SILENCE_RMS**2)
        if not len(heard):
            self._lead = sound[-LEAD:]
            return _NOTHING
        self._leading = False
        start = int(heard[0]) * FRAME
        sound = sound[max(0, start - LEAD) :].copy()
        fade = min(FADE, start)
        sound[:fade] = sound[:fade] * np.linspace(0, 1, fade)
        return sound


def _powers(sound: Pcm) -> Float:
    """Mean squares of the frames; a last one that is not whole counts as whole."""
    frames = -(-len(sound) // FRAME)
    padded = np.zeros(frames * FRAME, np.float32)
    padded[: len(sound)] = sound
    rows = padded.reshape(frames, FRAME)
    powers: Float = np.einsum("ij,ij->i", rows, rows) / FRAME
    return powers


def _bent(sound: Float) -> Pcm:
    """Whole samples, of which none is clipped. Changes `sound`."""
    size = float(max(sound.max(), -sound.min()))
    if size > KNEE:
        over = np.abs(sound) > KNEE
        loud = sound[over]
        room = CEILING - KNEE
        sound[over] = np.sign(loud) * (KNEE + room * np.tanh((np.abs(loud) - KNEE) / room))
    np.rint(sound, out=sound)
    return sound.astype(np.int16)


class Tempo:
    """Faster or slower at the same pitch, by FFmpeg's atempo (waveform-similarity overlap-add).

    Half a tenth of a second stays in it until `finish`.
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
    """Lets the sound go, but for silence that may be the end and, while starved, half words."""

    def __init__(self) -> None:
        self.starved = False
        self._held = _NOTHING
        self._powers: list[float] = []
        """Mean squares of the whole frames of what is held."""

    def push(self, pcm: Pcm) -> Pcm:
        """Whole frames, all but those that are held back."""
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
        """Up to a little after the last that is heard, faded out."""
        self._powers = _powers(self._held).tolist()
        heard = self._last_loud() * FRAME
        sound = self._held[: heard + TAIL].copy()
        fade = min(FADE, len(sound) - heard)
        if fade > 0:
            sound[-fade:] = sound[-fade:] * np.linspace(1, 0, fade)
        return sound

    def _last_loud(self) -> int:
        """The number of frames up to the last that is heard."""
        for number in range(len(self._powers), 0, -1):
            if self._powers[number - 1] > SILENCE_RMS**2:
                return number
        return 0

    def _last_gap(self) -> int:
        """The number of frames up to the end of the last gap between words."""
        gap, end = 0, 0
        for number, power in enumerate(self._powers, 1):
            gap = gap + 1 if power < QUIET_RMS**2 else 0
            if gap >= GAP_FRAMES:
                end = number
        first = len(self._powers) - MOST_HELD // FRAME
        if end < first:
            end = first + int(np.argmin(self._powers[first:])) + 1
        return end
