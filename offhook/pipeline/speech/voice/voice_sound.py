"""Post-processes a voice model's audio: trims silence, normalizes loudness and changes the speed.

All audio is 24 kHz. It is processed in 20 ms blocks counted from the start of the reply, so the
output does not depend on how the input was chunked.
"""

from fractions import Fraction

import av
import numpy as np
import numpy.typing as npt

from offhook.media.pcm import RATE_OUT, Pcm
from offhook.pipeline.speech.voice.silence import Lead, Outlet

BLOCK = RATE_OUT // 50
LEVEL_RMS = 3677.0
"""Target level while speaking, -19 dBFS, which averages -20 with the pauses."""
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
        self._lead = Lead()
        self._tempo = Tempo(self._speed) if self._speed != 1 else None
        self._outlet = Outlet()

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
