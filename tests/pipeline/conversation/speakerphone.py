"""A caller with a speakerphone that cancels no echo, on a clock of the test: both ends, their
jitter buffers and codecs are real; the network, the room and the load of the machine are not."""

import subprocess
from collections import deque
from functools import cache

import numpy as np
import numpy.typing as npt
import pytest

from benchmarks.servers.scripted import ScriptedRecognizer, ScriptedRecognizerStream
from offhook.media.codecs.resample import Resampler
from offhook.media.leg import CallInfo
from offhook.media.pcm import PACKET_MS, RATE_IN, RATE_OUT, SAMPLES_OUT, Pcm
from offhook.media.rtp.rtp_leg import RtpFormat, RtpLeg
from offhook.pipeline.speech.recognizer import DEFAULT_OPTIONS, Final, Partial, StreamOptions
from offhook.pipeline.speech.synthesizer import DEFAULT_VOICE, Speech, Synthesizer, VoiceOptions
from tests.media.lines import FULL, NARROW

Sound = npt.NDArray[np.float64]

TICK = PACKET_MS / 1000
SPEECH_LEVEL = -22.0
"""dBFS, of the agent's voice and of the caller's."""
FORMATS: dict[str, RtpFormat] = {"webrtc": FULL, "sip": NARROW}


@cache
def spoken(voice: str, text: str) -> Pcm:
    """A Flite voice at 24 kHz."""
    try:
        run = subprocess.run(
            ["flite", "-voice", voice, "-t", text, "-o", "/dev/stdout"],
            check=True,
            capture_output=True,
        )
    except FileNotFoundError:
        pytest.skip("needs the flite command")
    pcm = np.frombuffer(run.stdout[44 : len(run.stdout) // 2 * 2], np.int16)
    spectrum = np.fft.rfft(pcm.astype(float))
    size = len(pcm) * RATE_OUT // RATE_IN
    sound = np.fft.irfft(spectrum, size) * size / len(pcm)
    return at_level(sound, SPEECH_LEVEL).clip(-32768, 32767).astype(np.int16)


def at_level(sound: Sound, level: float) -> Sound:
    """Mean level of the parts within 30 dB of the loudest, dBFS."""
    power = (sound[: len(sound) // 480 * 480].reshape(-1, 480) ** 2).mean(1)
    loud = np.sqrt(power[power > power.max() / 1000].mean())
    return np.asarray(sound * 10 ** (level / 20) * 32768 / loud)


class Voice(Synthesizer):
    """Speaks by Flite's `slt`, each text once."""

    name = "flite"

    async def start(self) -> None:
        pass

    def voices(self) -> list[str]:
        return []

    def open(self, options: VoiceOptions = DEFAULT_VOICE) -> "VoiceStream":
        return VoiceStream()

    async def close(self) -> None:
        pass


class VoiceStream:
    def __init__(self) -> None:
        self._text = ""

    def write(self, text: str) -> None:
        self._text += text

    def end(self) -> None:
        pass

    def cancel(self) -> None:
        pass

    async def __aiter__(self):  # type: ignore[no-untyped-def]
        words = self._text.split()
        pcm = spoken("slt", self._text)
        ends = [len(pcm) * (i + 1) // len(words) for i in range(len(words))]
        for word, start, end in zip(words, [0, *ends], ends, strict=False):
            yield Speech(pcm[start:end], f"{word} ")


class Ear(ScriptedRecognizer):
    """Understands the caller, and makes other words of the agent's voice coming back: the worst a
    recogniser can do."""

    def __init__(self, phone: "Speakerphone") -> None:
        self._phone = phone

    async def open(self, options: StreamOptions = DEFAULT_OPTIONS) -> "EarStream":
        return EarStream(self._phone)


class EarStream(ScriptedRecognizerStream):
    def __init__(self, phone: "Speakerphone") -> None:
        super().__init__()
        self._phone = phone
        self._echo = self._caller = 0
        """ms of either."""

    def feed(self, pcm: Pcm) -> None:
        super_ms = len(pcm) * 1000 // RATE_IN
        self._ms += super_ms
        caller = min(super_ms, self._phone.caller_ms(super_ms))
        self._caller += caller
        self._echo += super_ms - caller
        self._events.put_nowait(Partial(self._text(), 0, self._ms))

    def _text(self) -> str:
        """A word every 300 ms."""
        garbage = ["the", "king", "marches", "often", "westward", "without", "baggage"]
        caller = ["stop", "please", "when", "are", "you", "open", "tomorrow"]
        return " ".join(garbage[: self._echo // 300] + caller[: self._caller // 250])

    def finish(self) -> None:
        self._events.put_nowait(Final(self._text(), self._ms))
        self._ms = self._echo = self._caller = 0

    def cancel(self) -> None:
        self._ms = self._echo = self._caller = 0


class Room:
    """A loudspeaker without bass and a room, and then a delay."""

    def __init__(self, level: float, delay_ms: int, seed: int, rt60: float = 0.15) -> None:
        rng = np.random.default_rng(seed)
        time = np.arange(int(RATE_OUT * rt60)) / RATE_OUT
        room = rng.standard_normal(len(time)) * np.exp(-6.9 * time / rt60)
        room *= 0.7 / np.sqrt((room**2).sum())
        room[0] += 1
        size = 2 * len(room)
        hz = np.maximum(np.fft.rfftfreq(size, 1 / RATE_OUT), 1)
        room = np.fft.irfft(np.fft.rfft(room, size) / (1 + (250 / hz) ** 4), size)[: len(room)]
        voice = spoken("slt", "Thank you for calling. We are open from nine to six today.")
        heard = np.convolve(voice.astype(float), room)[: len(voice)]
        power = (heard**2).mean() / (voice.astype(float) ** 2).mean()
        self._taps = room * 10 ** (level / 20) / np.sqrt(power)
        self._tail = np.zeros(len(room) - 1)
        self._line: deque[Sound] = deque(
            np.zeros(SAMPLES_OUT) for _ in range(delay_ms // PACKET_MS)
        )

    def returns(self, sound: Sound) -> Sound:
        """20 ms in, and 20 ms of earlier sound out."""
        out = np.convolve(sound, self._taps)
        out[: len(self._tail)] += self._tail
        self._tail = out[len(sound) :].copy()
        self._line.append(out[: len(sound)])
        return self._line.popleft()


class _End(RtpLeg):
    """One end of the line. What it sends arrives after the network's delay."""

    def __init__(self, name: str, format: RtpFormat, ssrc: int, rng: np.random.Generator) -> None:
        super().__init__(name)
        self.arriving: deque[tuple[float, bytes]] = deque()
        self.far: _End
        self.time = 0.0
        self.jitter = 0.005
        self._rng = rng
        self._open(format, ssrc, 0.0)

    def _send_rtp(self, packet: bytes) -> None:
        at = self.time + 0.01 + self._rng.uniform(0, self.jitter)
        self.far.arriving.append(
            (max(at, self.far.arriving[-1][0] if self.far.arriving else 0), packet)
        )

    def _send_rtcp(self, packet: bytes) -> None:
        pass

    def read(self) -> None:
        while self.arriving and self.arriving[0][0] <= self.time:
            self.receive_rtp(self.arriving.popleft()[1], self.time)

    def send_message(self, text: str) -> bool:
        return False

    async def hang_up(self, reason: str) -> None:
        self.close(reason)


class _Telephone(_End):
    """The caller's: says what its microphone hears."""

    def __init__(self, format: RtpFormat, room: Room, rng: np.random.Generator) -> None:
        super().__init__("telephone", format, 2, rng)
        self.voice: deque[Pcm] = deque()
        self.spoke: deque[bool] = deque(maxlen=200)
        """In the last ticks."""
        self._room = room
        self._up = Resampler(RATE_IN, RATE_OUT)

    def _next_packet(self) -> Pcm:
        sound = self._room.returns(self._up.process(self.sound_in).astype(float))
        self.spoke.append(bool(self.voice))
        if self.voice:
            sound = sound + self.voice.popleft()
        noise = self._rng.standard_normal(SAMPLES_OUT) * 20
        return np.asarray((sound + noise).clip(-32768, 32767), np.int16)


class Speakerphone(_End):
    """The server's leg of a call from one. Each `tick` is 20 ms of everybody's time; on a busy
    machine the server misses some and makes them up at once, as its packet clock does."""

    LAG_TICKS = 8
    """From the caller's mouth to the server's ear, for `caller_ms`."""

    def __init__(
        self, edge: str, level: float, delay_ms: int, seed: int = 0, busy: bool = False
    ) -> None:
        rng = np.random.default_rng(seed)
        super().__init__("speakerphone", FORMATS[edge], 1, rng)
        self.info = CallInfo(edge=edge)
        self.telephone = _Telephone(FORMATS[edge], Room(level, delay_ms, seed), rng)
        self.far, self.telephone.far = self.telephone, self
        self._busy = busy
        if busy:
            self.jitter = self.telephone.jitter = 0.03
        self._due = 0
        self._stall = 0
        """Ticks until the event loop wakes."""

    def tick(self, now: float) -> None:
        self.time = self.telephone.time = round(self.time + TICK, 6)
        self.telephone.read()
        super(_End, self.telephone).tick(self.time)
        self._due += 1
        if self._busy and not self._stall and self._rng.random() < 0.015:
            self._stall = int(self._rng.integers(2, 14))
        if self._stall:
            self._stall -= 1
            return
        self.read()
        for _ in range(self._due):
            super().tick(self.time)
        self._due = 0

    def caller_says(self, text: str) -> None:
        pcm = spoken("rms", text)
        self.telephone.voice.extend(
            pcm[: len(pcm) // SAMPLES_OUT * SAMPLES_OUT].reshape(-1, SAMPLES_OUT)
        )

    def caller_ms(self, last_ms: int) -> int:
        """How long the caller spoke in the last so many ms that were heard."""
        ticks = list(self.telephone.spoke)[: -self.LAG_TICKS]
        return PACKET_MS * sum(ticks[-(last_ms // PACKET_MS) :])
