"""A speech engine over a simulated runner, on a clock that stands still while it works."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np

from offhook.pipeline.engines.qwen3_tts.engine import TtsEngine
from offhook.pipeline.engines.qwen3_tts.prompts import VoicePrompt
from offhook.pipeline.engines.qwen3_tts.simulated import Ends, SimulatedRunner, SimulatedSegment
from offhook.pipeline.engines.shared.synthesis.messages import (
    FRAME_SAMPLES,
    Break,
    Ended,
    EngineEvent,
    PromptPosition,
    Reason,
    Sampling,
    SpeechCost,
    Spoken,
    Starved,
)

CODEC_EOS, TTS_EOS, TTS_PAD = 2150, 8001, 8000
CONFIG: Any = SimpleNamespace(codec_eos=CODEC_EOS, tts_eos=TTS_EOS, tts_pad=TTS_PAD)
FIRST_WORD = 10_000
"""Tokens of text count from here; what is not text is less."""
SIZES = (1, 2, 4, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512)
COST = SpeechCost([(n, 3 + 0.04 * n) for n in SIZES], 1.5, 0.02, 1.0, 0.02)
"""A GPU on which a frame takes 3 ms, and 256 frames 13 ms."""
VOICES = [
    VoicePrompt("short", tuple(PromptPosition(i) for i in range(1, 11))),
    VoicePrompt("instructed", tuple(PromptPosition(i) for i in range(100, 190))),
    VoicePrompt(
        "cloned",
        tuple(PromptPosition(i) for i in range(200, 215)),
        vectors="vectors",
        open=tuple(PromptPosition(vector=i) for i in range(40)),
        reference="codes",
    ),
    VoicePrompt(
        "wordy",
        tuple(PromptPosition(i) for i in range(300, 320)),
        lead=(320, 321, 322),
        reference="codes",
    ),
    VoicePrompt("read ahead", tuple(PromptPosition(i) for i in range(400, 412)), beside_text=7),
]
PREFIX_PAGES = 8


def ends_after(frames_per_token: float, tts_eos: int) -> Ends:
    """The model speaks so many frames a token, and ends when it knows that the text does."""

    def ends(segment: SimulatedSegment) -> bool:
        texts = segment.texts
        if segment.context and segment.context[-1].text == tts_eos:
            beside = segment.context[-1].codec
            tokens = sum(row.codec == beside for row in segment.context) - 1
            return len(texts) > frames_per_token * tokens
        if tts_eos not in texts:
            return False
        return len(texts) > frames_per_token * texts.index(tts_eos)

    return ends


class Stage:
    def __init__(
        self,
        slots: int = 40,
        pages: int = 600,
        cost: SpeechCost = COST,
        ends: Ends | None = None,
        quiet: Callable[[SimulatedSegment, int], bool] = lambda segment, frame: False,
    ) -> None:
        self.now = 0.0
        self.told: list[tuple[float, EngineEvent]] = []
        self.runner = SimulatedRunner(
            slots + 4,
            pages,
            cost,
            lambda: self.now,
            CODEC_EOS,
            ends or ends_after(3.5, TTS_EOS),
            quiet,
        )
        self._cost = cost
        self.engine = TtsEngine(self.runner, CONFIG, cost, self._hear, PREFIX_PAGES)
        self.written: dict[int, int] = {}
        """Tokens of each stream."""

    def _hear(self, told: EngineEvent) -> None:
        self.told.append((self.now, told))

    # --- streams ---

    def open(self, voice: VoicePrompt = VOICES[0], live: bool = True, seed: int = 1) -> int:
        number = self.engine.open(voice, Sampling(), seed, live)
        self.written[number] = 0
        return number

    def write(self, number: int, tokens: int = 1, ends: Break = Break.WORD) -> None:
        """A word of so many tokens; no token of a stream is there twice."""
        first = FIRST_WORD + self.written[number]
        self.engine.write(number, range(first, first + tokens), ends, self.now)
        self.written[number] += tokens

    def say(self, number: int, words: int, sentence: int = 14) -> None:
        """Text of words of one token, in sentences of so many, with a comma in the middle."""
        for word in range(1, words + 1):
            last = word % sentence == 0 or word == words
            comma = word % sentence == sentence // 2
            self.write(number, 1, Break.SENTENCE if last else Break.CLAUSE if comma else Break.WORD)

    def end(self, number: int) -> None:
        self.engine.end(number, self.now)

    def speak(self, words: int = 20, voice: VoicePrompt = VOICES[0], live: bool = True) -> int:
        """A stream with a text that is there as a whole."""
        number = self.open(voice, live)
        self.say(number, words)
        self.end(number)
        return number

    # --- time ---

    def run(self, seconds: float = float("inf")) -> None:
        """For so long, or until nothing is left to do."""
        until = self.now + seconds
        while True:
            launched = len(self.runner.batches)
            if self.engine.turn(self.now):
                if len(self.runner.batches) > launched:
                    self.now += self._cost.launch_ms / 1000
                    self.now += len(self.runner.batches[-1]) * self._cost.launch_stream_ms / 1000
                continue
            timer = self.engine.timer()
            if timer is None or timer > until:
                if seconds < float("inf"):
                    self.now = max(self.now, until)
                return
            self.now = max(self.now + 1e-5, timer)

    # --- what was heard ---

    def spoken(self, number: int) -> list[tuple[float, Spoken]]:
        return [(t, e) for t, e in self.told if isinstance(e, Spoken) and e.number == number]

    def frames(self, number: int) -> list[tuple[int, int]]:
        """Of each frame heard: the segment, by its number in the runner, and the frame in it."""
        found = []
        for _, spoken in self.spoken(number):
            assert len(spoken.pcm) % FRAME_SAMPLES == 0
            assert spoken.first_frame == len(found)
            rows = -spoken.pcm.reshape(-1, FRAME_SAMPLES)[:, :2].astype(np.int64)
            found += [(int(segment), int(frame)) for segment, frame in rows]
        return found

    def segments(self, number: int) -> list[tuple[SimulatedSegment, int]]:
        """Of the stream, and how many frames of each were heard; none is heard in part, twice, or
        among another's."""
        lengths: dict[int, int] = {}
        for segment, frame in self.frames(number):
            assert frame == lengths.get(segment, 0)
            assert segment == max([segment, *lengths])
            lengths[segment] = frame + 1
        return [(self.runner.segments[segment], length) for segment, length in lengths.items()]

    def text(self, number: int) -> list[int]:
        """Tokens of text, from 0, that were in the model for what was heard."""
        tokens = []
        for segment, length in self.segments(number):
            tokens += [row.text for row in segment.context] + segment.texts[:length]
        return [token - FIRST_WORD for token in tokens if token >= FIRST_WORD]

    def reason(self, number: int) -> Reason | None:
        reasons = [e.reason for _, e in self.told if isinstance(e, Ended) and e.number == number]
        assert len(reasons) <= 1
        return reasons[0] if reasons else None

    def starved(self, number: int) -> list[float]:
        return [t for t, e in self.told if isinstance(e, Starved) and e.number == number]

    def first_sound(self, number: int) -> float:
        return self.spoken(number)[0][0]

    def seconds(self, number: int) -> float:
        return len(self.frames(number)) * 0.08

    def all_free(self) -> bool:
        """No slot and no page is kept."""
        taken = PREFIX_PAGES + 1  # and the scratch page
        return (
            self.engine.streams == 0
            and self.engine.slots_left == self.engine.slots
            and self.engine.pages_left == self.runner.pages - taken
        )
