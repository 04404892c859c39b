"""Stock Pipecat's turn-taking on the same utterances: its Silero VAD, Smart Turn and stop strategy
(`turn_analyzer_user_turn_stop_strategy.py`) at their defaults, with a recognizer that knows the
words and has them final so long after the VAD's end of speech.

VAD and end-of-turn model are Pipecat's classes, fed 20 ms at a time; the strategy, which waits by
the machine's clock, is followed here step by step: a turn ends once the model says so, or after
3 s of silence, and a final transcript with words has come.
"""

import time
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
from loguru import logger
from pipecat.audio.turn.base_turn_analyzer import EndOfTurnState
from pipecat.audio.turn.smart_turn import base_smart_turn
from pipecat.audio.turn.smart_turn.local_smart_turn_v3 import LocalSmartTurnAnalyzerV3
from pipecat.audio.vad.silero import SileroVADAnalyzer
from pipecat.audio.vad.vad_analyzer import VADState

from benchmarks.turn_taking.engines import KNOWN_MS, MS, plain
from benchmarks.turn_taking.play import AFTER_MS, JUDGES_MS, Heard
from benchmarks.turn_taking.script import Utterance
from offhook.media.pcm import PACKET_MS, RATE_IN, SAMPLES_IN


class _Call:
    def __init__(self, utterance: Utterance, reply_ms: int, latency_ms: int) -> None:
        self.heard = Heard(utterance)
        self._reply_ms, self._latency_ms = reply_ms, latency_ms
        self._now = 0
        self._vad = SileroVADAnalyzer()
        self._turn = LocalSmartTurnAnalyzerV3()
        self._vad.set_sample_rate(RATE_IN)
        self._turn.set_sample_rate(RATE_IN)
        self._turn.update_vad_start_secs(self._vad.params.start_secs)
        self._speaking = False
        self._ends_at: int | None = None
        """When the turn ends, in ms; None: the model expects more."""
        self._final_at = 0
        self._sounds_at: int | None = None
        """When the agent will be heard."""
        self._from = 0
        """Sample up to which words were given to the agent."""

    async def play(self) -> Heard:
        monotonic = SimpleNamespace(
            monotonic=lambda: self._now / 1000, perf_counter=time.perf_counter
        )
        clock: Any = base_smart_turn
        clock.time, usual = monotonic, clock.time
        try:
            sound = np.pad(self.heard.utterance.sound, (0, AFTER_MS * MS))
            for at in range(0, len(sound) - SAMPLES_IN + 1, SAMPLES_IN):
                await self._step(sound[at : at + SAMPLES_IN].tobytes())
        finally:
            clock.time = usual
            await self._vad.cleanup()
            await self._turn.cleanup()
        return self.heard

    async def _step(self, packet: bytes) -> None:
        self._now += PACKET_MS
        state = await self._vad.analyze_audio(packet)
        if state is VADState.SPEAKING and not self._speaking:
            self._speaking, self._ends_at = True, None
            self._sounds_at = None  # who speaks interrupts the agent
        stopped = state is VADState.QUIET and self._speaking
        if stopped:
            self._speaking, self._final_at = False, self._now + self._latency_ms
        over = self._turn.append_audio(packet, self._speaking) is EndOfTurnState.COMPLETE
        if stopped:
            over = (await self._turn.analyze_end_of_turn())[0] is EndOfTurnState.COMPLETE
        if over:
            self._ends_at = self._now + (JUDGES_MS if stopped else 0)
        if self._ends_at is not None and self._now >= max(self._ends_at, self._final_at):
            self._end_turn()
        if self._sounds_at is not None and self._now >= self._sounds_at:
            self.heard.sounds.append(self._now)
            self._sounds_at = None

    def _end_turn(self) -> None:
        end = self._now * MS
        middles = ((w, (w.start + w.end) // 2) for w in self.heard.utterance.words)
        words = [plain(w.text) for w, middle in middles if self._from <= middle < end]
        self._ends_at = None
        if words:
            self._from = end
            self.heard.commits.append((self._now, " ".join(words)))
            self._sounds_at = self._now + self._reply_ms


async def play_stock(
    said: Sequence[Utterance], reply_ms: int, latency_ms: int | None
) -> list[Heard]:
    """Plays the utterances, each on a call of its own. The times are those of the agent's answers
    and of the recognizer's finals."""
    logger.disable("pipecat")
    final_ms = KNOWN_MS if latency_ms is None else latency_ms
    return [await _Call(one, reply_ms, final_ms).play() for one in said]
