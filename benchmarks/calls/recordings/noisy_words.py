"""Words and turns in noise: each recording in a call with a caller's level and a kind of noise.

Turn detection, noise suppression, gain and PocketSphinx are those of a call; only the line is none,
so that a call takes as long as its recognition. Three ways are compared: without enhancement, with
it before the voice activity detection alone, and before the recognizer, too.
"""

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np

from benchmarks.speech.noises import STEADY, at_level, babble, mixed
from benchmarks.speech.transcript import prefix_distances, words
from offhook.media.leg import Leg
from offhook.media.pcm import PACKET_MS, RATE_IN, SAMPLES_IN, Pcm
from offhook.pipeline.conversation.events import (
    CallerAmplified,
    CallerTurn,
    Event,
    NoiseSuppressed,
    SpeechStarted,
)
from offhook.pipeline.conversation.turns.user_turn_io import TurnDetection, UserTurnController
from offhook.pipeline.engines.embedded.pocketsphinx_io import PocketSphinxRecognizer
from offhook.pipeline.speech.enhancement.enhancer import EnhancementSettings
from offhook.pipeline.speech.recognizer import Final, Partial, RecognizerStream
from offhook.pipeline.speech.vad.smart_turn_io import SmartTurn
from offhook.pipeline.speech.vad.vad_io import VadBatch

KINDS = (*STEADY, "babble")
WAYS = {
    "off": (EnhancementSettings("off", automatic_gain=False), ""),
    "detector": (EnhancementSettings(), ""),
    "both": (EnhancementSettings(), "pocketsphinx"),
}
"""Settings, and the name of the recognizer by which it is decided what that gets."""
LEAD_S = 3
"""Noise before the speech, as during a greeting,"""
TAIL_S = 3
"""and after it, in which the turn has to end."""
ONSET_S = 0.3
"""A start of speech so long before the first sample still belongs to it."""
SPEED = 4
"""Of a call while somebody is recognized, in which PocketSphinx keeps up."""
LINE_DBFS = -75.0
"""Noise of the line itself."""


class RecordedLeg(Leg):
    """Hears a recording."""

    def __init__(self, pcm: Pcm) -> None:
        super().__init__("recorded")
        self._pcm = pcm

    def _receive(self, now: float) -> Pcm:
        at = self.ticks * SAMPLES_IN
        return self._pcm[at : at + SAMPLES_IN]

    def _send(self, said: Pcm | None, now: float) -> None:
        pass

    def send_message(self, text: str) -> bool:
        return True


class FollowedStream:
    """A recognizer's stream that says whether it has work."""

    def __init__(self, stream: RecognizerStream) -> None:
        self._stream = stream
        self.fed: list[Pcm] = []
        self.listening = False
        self.finals_due = 0

    def feed(self, pcm: Pcm) -> None:
        self.listening = True
        self.fed.append(pcm)
        self._stream.feed(pcm)

    def finish(self) -> None:
        self.finals_due += 1
        self.listening = False
        self._stream.finish()

    def cancel(self) -> None:
        self.listening = False
        self._stream.cancel()

    async def events(self) -> AsyncIterator[Partial | Final]:
        async for event in self._stream.events():
            if isinstance(event, Final) and not event.continues:
                self.finals_due -= 1
            yield event

    async def close(self) -> None:
        await self._stream.close()


@dataclass
class CallResult:
    text: str = ""
    turns: int = 0
    false_starts: int = 0
    """Starts of speech where nobody spoke."""
    ended: bool = False
    """Whether the turn ended within TAIL_S."""
    suppressed_ms: int = 0
    gain: float = 0.0
    """The first, in dB."""
    fed: list[Pcm] = field(default_factory=list, repr=False)
    """What the recognizer got."""


async def call(
    pcm: Pcm,
    speech: tuple[float, float],
    way: str,
    turns: TurnDetection,
    engine: PocketSphinxRecognizer,
) -> CallResult:
    """A call of nothing but this audio, whose speech is between two times in s."""
    settings, name = WAYS[way]
    turns.enhancement = settings
    events: list[Event] = []
    leg, stream = RecordedLeg(pcm), FollowedStream(await engine.open())
    hearing = UserTurnController(leg, turns, stream, events.append, print, name)
    for tick in range(len(pcm) // SAMPLES_IN):
        leg.tick(tick * PACKET_MS / 1000)
        turns.vad.run()
        hearing.reply.busy = False  # nobody answers
        await asyncio.sleep(PACKET_MS / 1000 / SPEED if stream.listening else 0)
        while stream.finals_due or turns.vad._due or hearing.asks_for_the_end:
            await asyncio.sleep(0.001)
    await hearing.close()
    result = _result(events, speech, len(pcm) * 1000 // RATE_IN)
    result.fed = stream.fed
    return result


def _result(events: list[Event], speech: tuple[float, float], length_ms: int) -> CallResult:
    result = CallResult()
    start_ms, end_ms = speech[0] * 1000, speech[1] * 1000
    since = None
    for event in events:
        match event:
            case SpeechStarted(at_ms):
                result.false_starts += not start_ms - ONSET_S * 1000 <= at_ms <= end_ms
            case CallerTurn(at_ms, _, text):
                result.turns += 1
                result.text = f"{result.text} {text}".strip()
                result.ended |= at_ms > end_ms
            case CallerAmplified(_, gain):
                result.gain = result.gain or gain
            case NoiseSuppressed(at_ms, on):
                if on:
                    since = at_ms
                elif since is not None:
                    result.suppressed_ms += at_ms - since
                    since = None
    if since is not None:
        result.suppressed_ms += length_ms - since
    return result


@dataclass
class Row:
    noise: str
    snr: float
    level: float
    way: str
    words: int = 0
    wrong: int = 0
    calls: int = 0
    turns: int = 0
    false_starts: int = 0
    ended: int = 0
    suppressed_percent: float = 0.0


async def measure(
    recordings: dict[Path, tuple[Pcm, str]],
    kinds: list[str],
    ratios: list[float],
    level: float,
    ways: list[str],
    seeds: int,
) -> list[Row]:
    engine = PocketSphinxRecognizer(1)
    await engine.start()
    turns = TurnDetection(VadBatch(), SmartTurn())
    rows = []
    for kind in kinds:
        for snr in ratios if kind != "none" else [float("inf")]:
            found = {way: Row(kind, snr, level, way) for way in ways}
            for seed in range(seeds):
                for number, (path, (speech, reference)) in enumerate(recordings.items()):
                    rng = np.random.default_rng([seed, number, int(min(snr, 99))])
                    others = [pcm for other, (pcm, _) in recordings.items() if other != path]
                    pcm = line(speech, kind, snr, level, rng, others)
                    span = (LEAD_S, LEAD_S + last_loud(speech) / RATE_IN)
                    for way, row in found.items():
                        got = await call(pcm, span, way, turns, engine)
                        reference_words = reference.lower().split()
                        row.calls += 1
                        row.words += len(reference_words)
                        row.wrong += prefix_distances(words(got.text), reference_words)[-1]
                        row.turns += got.turns
                        row.false_starts += got.false_starts
                        row.ended += got.ended
                        row.suppressed_percent += (
                            100 * got.suppressed_ms / (len(pcm) * 1000 / RATE_IN)
                        )
            for row in found.values():
                row.suppressed_percent /= row.calls
                rows.append(row)
                _tell(row)
    await engine.close()
    await turns.close()
    return rows


def last_loud(speech: Pcm) -> int:
    """The end of the last tick within 25 dB of the loudest."""
    ticks = speech[: len(speech) // SAMPLES_IN * SAMPLES_IN].reshape(-1, SAMPLES_IN)
    power = np.mean(ticks.astype(float) ** 2, axis=1)
    return (int(np.flatnonzero(power > power.max() / 316)[-1]) + 1) * SAMPLES_IN


def line(
    speech: Pcm, kind: str, snr: float, level: float, rng: np.random.Generator, others: list[Pcm]
) -> Pcm:
    lead, tail = np.zeros(LEAD_S * RATE_IN), np.zeros(TAIL_S * RATE_IN)
    sound = np.concatenate((lead, at_level(speech, level), tail))
    sound += rng.standard_normal(len(sound)) * 32768 * 10 ** (LINE_DBFS / 20)
    noise = None
    if kind == "babble":
        noise = babble(len(sound), rng, others)
    elif kind != "none":
        noise = STEADY[kind](len(sound), rng)
    return mixed(sound, noise, snr, level)


def _tell(row: Row) -> None:
    print(
        f"{row.noise:7} {row.snr:4.0f} dB {row.level:4.0f} dBFS {row.way:9} "
        f"wrong {100 * row.wrong / row.words:5.1f} %  calls {row.calls} turns {row.turns} "
        f"ended {row.ended} false starts {row.false_starts} "
        f"suppressed {row.suppressed_percent:3.0f} %",
        flush=True,
    )


def run(
    recordings: dict[Path, tuple[Pcm, str]],
    kinds: list[str],
    ratios: list[float],
    level: float,
    ways: list[str],
    seeds: int,
    as_json: bool,
) -> int:
    rows = asyncio.run(measure(recordings, kinds, ratios, level, ways, seeds))
    if as_json:
        print(json.dumps([asdict(row) for row in rows], indent=1))
    return 0
