"""An hour of speech in every voice, as fast as it can be made: what grows, and what is lost."""

from collections.abc import Sequence
from typing import Protocol

from benchmarks.processes.memory import held
from benchmarks.speech.texts import FRAMES_PER_TOKEN, Word, even_words, frames_of
from benchmarks.table import Table, progress
from benchmarks.voices.listening import Tally
from benchmarks.voices.tts_load import Reply, Serving, serve
from benchmarks.voices.tts_runners import Machine, usual_voices
from offhook.pipeline.engines.qwen3_tts.prompts import VoicePrompt
from offhook.pipeline.engines.shared.synthesis.messages import FRAME_S, FRAME_SAMPLES, Spoken

SENTENCE, PARAGRAPH = 16, 64
"""Words of a token each. A paragraph is one segment."""
AHEAD_TOKENS = 128
"""Written and not yet in the model, at least."""
SETTLED = 0.1
"""Part of the speech after which memory is looked at first."""


class Follower(Protocol):
    """Follows what a narrator writes and hears."""

    def written(self, said: Sequence[Word]) -> None: ...

    def heard(self, frames: int) -> None: ...


class Narrator:
    """Reads paragraph after paragraph."""

    def __init__(
        self, serving: Serving, voice: VoicePrompt, tokens: int, marks: Follower | None = None
    ) -> None:
        """`tokens`: in all."""
        self.reply = Reply(serving, Tally(), live=False, heard=self._heard)
        self.faults = 0
        """Pieces whose tokens did not go on."""
        self._tokens = tokens
        self._written = 0
        self._taken = 0
        self._marks = marks
        self._paragraph = even_words(PARAGRAPH, SENTENCE, serving.machine.config)
        self.reply.open(voice)
        self._write()

    def _write(self) -> None:
        while self._written < self._tokens and self._written - self._taken < AHEAD_TOKENS:
            said = self._paragraph[: self._tokens - self._written]
            self._written += len(said)
            if self._marks is not None:
                self._marks.written(said)
            self.reply.write(said, end=self._written == self._tokens)

    def _heard(self, spoken: Spoken) -> None:
        self.faults += spoken.tokens < self._taken
        self._taken = spoken.tokens
        if self._marks is not None:
            self._marks.heard(len(spoken.pcm) // FRAME_SAMPLES)
        self._write()

    @property
    def frames_off(self) -> float:
        return abs(self.reply.listener.frames - frames_of(self._tokens))

    @property
    def share(self) -> float:
        return self.reply.listener.frames / frames_of(self._tokens)


def tokens_in(minutes: float) -> int:
    return round(minutes * 60 / FRAME_S / FRAMES_PER_TOKEN)


def run_through(
    serving: Serving, narrators: list[Narrator], from_share: float, limit: float
) -> None:
    """To the end of all, or for `limit` s."""
    began = serving.now()
    for tenth in range(round(10 * from_share) + 1, 11):
        _run_to(serving, narrators, tenth / 10, began + limit)
        progress(f"{tenth * 10} % after {serving.now() - began:.0f} s")
    left = max(0.0, began + limit - serving.now())
    serving.run(left, lambda: all(narrator.reply.over for narrator in narrators))


def _run_to(serving: Serving, narrators: list[Narrator], share: float, end: float) -> None:
    def there() -> bool:
        return min(narrator.share for narrator in narrators) >= share

    serving.run(max(0.0, end - serving.now()), there)


def hour(machine: Machine, voices: int, minutes: float, limit: float, as_json: bool) -> None:
    """`limit`: s after which it is given up."""
    usual = usual_voices(machine.config)
    with serve(machine) as serving:
        engine = serving.engine
        pages, slots = engine.pages_left, engine.slots_left
        began = serving.now()
        narrators = [
            Narrator(serving, usual[i % len(usual)], tokens_in(minutes)) for i in range(voices)
        ]
        _run_to(serving, narrators, SETTLED, began + limit)
        first, first_mib = held(), machine.device_mib()
        run_through(serving, narrators, SETTLED, limit)
        took = serving.now() - began
        last, last_mib = held(), machine.device_mib()
    counters = engine.counters
    seconds = sum(narrator.reply.listener.frames for narrator in narrators) * FRAME_S
    row = {
        "voices": voices,
        "minutes_each": seconds / 60 / voices,
        "ended": sum(narrator.reply.over for narrator in narrators),
        "took_s": took,
        "times_real": seconds / took,
        "frames_off": max(narrator.frames_off for narrator in narrators),
        "tokens_back": sum(narrator.faults for narrator in narrators),
        "segments": counters.segments,
        "wasted_frames": counters.wasted_frames,
        "guard_ends": counters.early_ends + counters.budget_ends + counters.silence_ends,
    }
    note = f"{minutes:g} minutes in every voice, not paced. guard ends: segments the engine cut"
    Table("hour", note, " ".join(row), as_json).row(**row)
    memory = {
        "pages_kept": pages - engine.pages_left,
        "slots_kept": slots - engine.slots_left,
        "device_first_mib": first_mib,
        "device_last_mib": last_mib,
        "rss_first_mib": first.rss_mb,
        "rss_last_mib": last.rss_mb,
        "malloc_grown_kib": (last.malloc_bytes - first.malloc_bytes) / 1024,
        "objects_grown": last.objects - first.objects,
    }
    note = f"first: after {SETTLED:.0%} of the speech; kept: when all have ended"
    Table("hour memory", note, " ".join(memory), as_json).row(**memory)
