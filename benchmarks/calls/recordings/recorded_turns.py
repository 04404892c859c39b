"""How often the end-of-turn model is asked, and what comes of it, on recorded speech.

Each recording is a call, as it is and with a pause of several lengths at every other word, of which
the caller has not finished speaking. Turn detection is that of a call; the recognizer knows the
words and when they end, and tells them as late as one does. Nobody waits: a call takes as long as
its models.
"""

import asyncio
import json
import threading
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from pocketsphinx import Decoder

from benchmarks.calls.recordings.noisy_words import RecordedLeg, last_loud
from benchmarks.command import command
from benchmarks.servers.scripted import ScriptedRecognizer
from benchmarks.speech.recordings import no_recordings, read_16k, references, speech_folder
from offhook.media.pcm import PACKET_MS, RATE_IN, SAMPLES_IN, Pcm
from offhook.pipeline.conversation.events import CallerTurn, Event
from offhook.pipeline.conversation.turns import end_questions_io
from offhook.pipeline.conversation.turns.turn import TurnSettings
from offhook.pipeline.conversation.turns.user_turn_io import TurnDetection, UserTurnController
from offhook.pipeline.conversation.turns.utterance_feed import FEED_MS
from offhook.pipeline.speech.enhancement.enhancer import EnhancementSettings
from offhook.pipeline.speech.recognizer import Final, Partial
from offhook.pipeline.speech.remote.recognizer_io import RemoteRecognizer
from offhook.pipeline.speech.streams.recent_audio import RecentAudio
from offhook.pipeline.speech.vad.smart_turn_io import (
    SAMPLES,
    SharedTurnModel,
    SmartTurn,
    TurnQuestions,
    log_mel,
)
from offhook.pipeline.speech.vad.vad_io import VadBatch
from offhook.web.http.listening_io import Address, listener
from offhook.web.speech_api.sockets.engine_metrics import AsrMetrics
from offhook.web.workers.routes_io import listening
from offhook.web.workers.worker_io import Worker, WorkerSettings

PAUSES_MS = (200, 300, 400, 600, 900)
"""Of a caller who thinks; longer ones are answered by most people, too."""
PARTIAL_LATE_MS = 300
"""Time in ms from the end of a word to the partial transcript with it,"""
FINAL_LATE_MS = 80
"""and from the request for the final transcript to it."""
LEAD_MS, TAIL_MS = 1000, 2000
BEFORE_S = 3
"""Length in s of an earlier turn, if there is one."""
PATIENCE_MS = 60_000
"""Nobody waits, so that the recognizer has time."""
BEGINNINGS = (0.4, 0.5, 0.55, 0.6, 0.7, 0.8, 0.9, 1.0)
"""Shares of a recording that are compared,"""
SILENCE_MS = 160
"""and the silence after them at which the model is asked."""
LINE_RMS = 4.0
"""Noise of the line itself."""
MS = RATE_IN // 1000
FRAME_MS = 10
"""Of the aligner."""


@dataclass(frozen=True)
class Word:
    text: str
    end: int
    """In samples."""


def align(pcm: Pcm, text: str) -> list[Word]:
    """Finds where each word of a recording ends."""
    decoder = Decoder(samprate=RATE_IN, loglevel="FATAL")
    decoder.set_align_text(text)
    decoder.start_utt()
    decoder.process_raw(pcm.tobytes(), full_utt=True)
    decoder.end_utt()
    return [
        Word(segment.word.partition("(")[0], (segment.end_frame + 1) * FRAME_MS * MS)
        for segment in decoder.seg()
        if not segment.word.startswith("<")
    ]


class KnownWords:
    """A recognizer's stream that knows what is said on a leg."""

    def __init__(
        self, leg: RecordedLeg, words: list[Word], model: SharedTurnModel | None = None
    ) -> None:
        """`model` judges turns by what the stream was fed, as workers do."""
        self._leg, self._words = leg, words
        self._model = model
        self._fed = RecentAudio()
        self._events: asyncio.Queue[Partial | Final | None] = asyncio.Queue()
        self._told = 0
        """Words of finished utterances."""
        self._text = ""
        self._finals_at: list[int] = []

    @property
    def _now(self) -> int:
        return self._leg.ticks * SAMPLES_IN

    def _until(self, position: int) -> str:
        ended = sum(word.end <= position for word in self._words)
        return " ".join(word.text for word in self._words[self._told : ended])

    @property
    def judges_turns(self) -> bool:
        return self._model is not None

    async def turn_probability(self) -> float | None:
        assert self._model is not None
        end = self._fed.end
        return await self._model.probability(self._fed.slice(end - SAMPLES, end), self)

    def feed(self, pcm: Pcm) -> None:
        self._fed.add(pcm)
        text = self._until(self._now - PARTIAL_LATE_MS * MS)
        if text != self._text:
            self._text = text
            self._events.put_nowait(Partial(text, 0, self._now // MS))

    def finish(self) -> None:
        self._finals_at.append(self._now + FINAL_LATE_MS * MS)

    def tick(self) -> None:
        while self._finals_at and self._finals_at[0] <= self._now:
            at = self._finals_at.pop(0) - FINAL_LATE_MS * MS
            self._events.put_nowait(Final(self._until(at), at // MS))
            self._skip(at)

    def cancel(self) -> None:
        self._skip(self._now)

    def _skip(self, position: int) -> None:
        self._told = sum(word.end <= position for word in self._words)
        self._text = ""

    async def events(self) -> AsyncIterator[Partial | Final]:
        while (event := await self._events.get()) is not None:
            yield event

    async def close(self) -> None:
        self._events.put_nowait(None)


class CountedModel(SmartTurn):
    """Counts questions and their CPU time."""

    asked = 0
    cpu_s = 0.0

    def judge(self, pcm: Pcm) -> float:
        began = time.thread_time()
        probability = super().judge(pcm)
        self.asked += 1
        self.cpu_s += time.thread_time() - began
        return probability


@dataclass
class Row:
    """Calls with pauses of one length, or none."""

    pause_ms: int
    calls: int = 0
    questions: int = 0
    cpu_s: float = 0.0
    early: int = 0
    """Calls in which a turn ended before the caller did."""
    late_ms: list[int] = field(default_factory=list)
    """From the end of the speech to the end of the turn."""

    def line(self) -> str:
        p50, p95 = np.percentile(self.late_ms, (50, 95)) if self.late_ms else (0, 0)
        kind = f"pause {self.pause_ms} ms" if self.pause_ms else "no pause"
        return (
            f"{kind:13} calls {self.calls:3}  questions {self.questions:3}, "
            f"{self.cpu_s:5.2f} s  ended early {self.early:3}, after {p50:.0f} ms (p50), "
            f"{p95:.0f} ms (p95)"
        )


async def call(
    pcm: Pcm, words: list[Word], turns: TurnDetection, settings: TurnSettings, by_engine: bool
) -> list[int]:
    """Returns when turns ended, in ms. `by_engine`: as the recognizer judges."""
    events: list[Event] = []
    leg = RecordedLeg(pcm)
    stream = KnownWords(leg, words, turns.model if by_engine else None)
    turns.settings = settings
    turns.enhancement = EnhancementSettings("off", automatic_gain=False)
    hearing = UserTurnController(leg, turns, stream, events.append, lambda _: None)
    for tick in range(len(pcm) // SAMPLES_IN):
        leg.tick(tick * PACKET_MS / 1000)
        turns.vad.run()
        stream.tick()
        hearing.reply.busy = False  # nobody answers
        await asyncio.sleep(0)
        while turns.vad._due or hearing.asks_for_the_end:
            await asyncio.sleep(0)
    await hearing.close()
    return [event.at_ms for event in events if isinstance(event, CallerTurn)]


async def measure(
    settings: TurnSettings, pauses_ms: Sequence[int], by_engine: bool, after: bool
) -> list[Row]:
    """`after`: each call begins with another turn."""
    end_questions_io.ASK_ENGINE_MS = PATIENCE_MS
    model = CountedModel()
    turns = TurnDetection(VadBatch(), model)
    rows = [Row(0), *(Row(ms) for ms in pauses_ms)]
    rng = np.random.default_rng(1)
    recordings = references(speech_folder())
    before = read_16k(next(iter(recordings)))[-BEFORE_S * RATE_IN :] if after else None
    for path, text in recordings.items():
        speech = read_16k(path)
        words = align(speech, text)
        for row in rows:
            for at in range(1, len(words) - 1, 2) if row.pause_ms else (len(words),):
                pcm, shifted, end = _line(speech, words, at, row.pause_ms, rng, before)
                asked, cpu_s = model.asked, model.cpu_s
                ended = await call(pcm, shifted, turns, settings, by_engine)
                row.calls += 1
                row.questions += model.asked - asked
                row.cpu_s += model.cpu_s - cpu_s
                end_ms = end // MS
                row.early += any(ms < end_ms for ms in ended)
                row.late_ms += [ms - end_ms for ms in ended if ms >= end_ms][:1]
    await model.close()
    turns.vad.close()
    return rows


def _line(
    speech: Pcm,
    words: list[Word],
    at: int,
    pause_ms: int,
    rng: np.random.Generator,
    before: Pcm | None,
) -> tuple[Pcm, list[Word], int]:
    """Returns a call with a pause before word number `at`, its words, and the end of speech.
    `before` is a turn at its beginning, whose words nobody knows."""
    cut = words[at - 1].end if at < len(words) else len(speech)
    lead, pause, tail = (np.zeros(ms * MS, np.int16) for ms in (LEAD_MS, pause_ms, TAIL_MS))
    if before is not None:
        lead = np.concatenate((lead, before, lead, lead))
    sound = np.concatenate((lead, speech[:cut], pause, speech[cut:], tail)).astype(float)
    sound += rng.normal(0, LINE_RMS, len(sound))
    shifted = [
        replace(word, end=word.end + len(lead) + (len(pause) if number >= at else 0))
        for number, word in enumerate(words)
    ]
    end = len(lead) + len(pause) + last_loud(speech)
    return np.clip(sound, -32768, 32767).astype(np.int16), shifted, end


def cost(batches: Sequence[int], times: int) -> list[tuple[int, float, float]]:
    """Returns the CPU time in ms of a question's features and of its share of a run of the model,
    by the number of questions in a run."""
    model, speech = SmartTurn(), read_16k(next(iter(references(speech_folder()))))
    found = []
    for size in batches:
        features_s, run_s = [], []
        for _ in range(times):
            began = time.thread_time()
            features = log_mel(speech)
            features_s.append(time.thread_time() - began)
            batch = np.repeat(features, size, 0)
            began = time.thread_time()
            model._model.run({"input_features": batch}, ["logits"])
            run_s.append((time.thread_time() - began) / size)
        found.append((size, float(np.median(features_s)) * 1e3, float(np.median(run_s)) * 1e3))
    return found


def compare() -> list[str]:
    """Returns how far the model of workers with a GPU is from that of edges, here on a CPU, with
    its roundings to 8 bits and without."""
    import torch

    from offhook.pipeline.engines.shared.model import onnx_program
    from offhook.pipeline.engines.shared.model.smart_turn import SmartTurnModel, fill

    silence = np.zeros(SILENCE_MS * MS, np.int16)
    said = [
        np.concatenate((speech[: int(len(speech) * part)], silence))
        for speech in map(read_16k, references(speech_folder()))
        for part in BEGINNINGS
    ]
    sounds = np.zeros((len(said), SAMPLES), np.int16)
    fill(sounds, said)
    edge = SmartTurn()
    of_edge = np.array([edge.judge(pcm) for pcm in said])
    lines = []
    rounding = onnx_program.rounding
    for name, rounds in (("with roundings", rounding), ("without", lambda *_: lambda value: value)):
        onnx_program.rounding = rounds
        model = SmartTurnModel(torch.device("cpu"))
        with torch.inference_mode():
            found = np.array(
                [float(model.probabilities(row[None])[0]) for row in torch.tensor(sounds)]
            )
        off = np.abs(found - of_edge)
        others = int(((found > 0.5) != (of_edge > 0.5)).sum())
        lines.append(
            f"{name}: {others} of {len(said)} decided otherwise, off by {off.mean():.3f} on "
            f"average, {off.max():.2f} at most"
        )
    onnx_program.rounding = rounding
    return lines


class Hears(ScriptedRecognizer):
    """Recognizes nothing, and says at once that turns are over."""

    turns: "Over | None" = None

    def __init__(self) -> None:
        self.turns = Over(max_batch=64, max_waiting=64)


class Over(TurnQuestions):
    def judge_all(self, questions: Sequence[Pcm]) -> Sequence[float]:
        return [1.0] * len(questions)


def serve_worker(path: str, ready: threading.Event) -> None:
    """Runs a worker on a Unix socket, in a thread of its own."""

    async def serve() -> None:
        worker = Worker(WorkerSettings("scripted", ""), lambda _: Hears(), AsrMetrics())
        access = worker.of_worker.access()
        async with listening(worker, lambda: access, [listener(Address.parse(f"unix:{path}"))]):
            ready.set()
            await asyncio.Event().wait()

    asyncio.run(serve())


async def asking(times: int) -> float:
    """Returns the CPU time in ms that a question to a worker takes in an edge, with the audio that
    goes ahead of it."""
    with TemporaryDirectory() as folder:
        path, ready = f"{folder}/worker", threading.Event()
        threading.Thread(target=serve_worker, args=(path, ready), daemon=True).start()
        await asyncio.to_thread(ready.wait)
        recognizer = RemoteRecognizer(f"unix:{path}")
        await recognizer.start()
        stream, pcm = await recognizer.open(), np.zeros(FEED_MS * MS, np.int16)
        while not stream.judges_turns:
            await asyncio.sleep(0.01)
        spent = []
        for _ in range(times):
            began = time.thread_time()
            stream.feed(pcm)
            if await stream.turn_probability() != 1.0:
                raise RuntimeError("the worker did not answer")
            spent.append(time.thread_time() - began)
            stream.cancel()
        await stream.close()
        await recognizer.close()
        return float(np.median(spent)) * 1e3


def main(argv: Sequence[str] | None = None) -> int:
    parser = command("recorded_turns", __doc__)
    parser.add_argument("--json", action="store_true")
    parser.add_argument(
        "--cost", action="store_true", help="of a question: alone, in batches, to a worker"
    )
    parser.add_argument("--compare", action="store_true", help="a worker's model with an edge's")
    parser.add_argument("--engine", action="store_true", help="ask the recognizer, as with a GPU")
    parser.add_argument("--after", action="store_true", help="begin calls with another turn")
    parser.add_argument("--pauses", default=",".join(map(str, PAUSES_MS)), help="ms")
    parser.add_argument("--set", action="append", default=[], help="NAME=MS of [turns]")
    arguments = parser.parse_args(argv)
    if not Path(speech_folder()).exists():
        parser.error(no_recordings())
    if arguments.cost:
        for size, features_ms, run_ms in cost((1, 2, 4, 8), 20):
            print(f"{size} in a run: features {features_ms:.1f} ms, model {run_ms:.1f} ms each")
        print(f"asking a worker: {asyncio.run(asking(300)):.2f} ms")
        return 0
    if arguments.compare:
        print("\n".join(compare()))
        return 0
    changes = dict(change.split("=") for change in arguments.set)
    given: dict[str, Any] = {name: int(ms) for name, ms in changes.items()}
    settings = replace(TurnSettings(), **given)
    pauses = [int(ms) for ms in arguments.pauses.split(",") if ms]
    rows = asyncio.run(measure(settings, pauses, arguments.engine, arguments.after))
    if arguments.json:
        print(json.dumps([asdict(row) for row in rows], indent=1))
        return 0
    for row in rows:
        print(row.line())
    return 0
