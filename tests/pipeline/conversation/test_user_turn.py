"""What listening to a call leaves behind."""

import gc
import tracemalloc

import numpy as np

from offhook.bench.scripted import ScriptedRecognizer
from offhook.media.leg import Leg, LegStatistics
from offhook.media.pcm import RATE_IN, SAMPLES_IN, Pcm
from offhook.pipeline.conversation.user_turn_io import TurnDetection, UserTurnController
from offhook.pipeline.speech.vad.smart_turn_io import SECONDS, SmartTurn
from offhook.pipeline.speech.vad.vad_io import VadBatch


class SilentLeg(Leg):
    def _receive(self, now: float) -> Pcm:
        return np.zeros(SAMPLES_IN, np.int16)

    def _send(self, said: Pcm | None, now: float) -> None:
        pass

    def send_message(self, text: str) -> bool:
        return True

    def statistics(self) -> LegStatistics:
        return LegStatistics()

    async def hang_up(self, reason: str) -> None:
        self.close(reason)


async def test_the_sound_of_a_call_that_ended_does_not_wait_for_the_collector() -> None:
    turn_detection = TurnDetection(VadBatch(), SmartTurn())
    leg = SilentLeg("call")
    gc.disable()
    tracemalloc.start()
    try:
        hearing = UserTurnController(
            leg, turn_detection, await ScriptedRecognizer().open(), print, print
        )
        leg.tick(0.02)
        in_the_call, _ = tracemalloc.get_traced_memory()
        await hearing.close()
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
        gc.enable()
        await turn_detection.smart_turn.close()
        turn_detection.vad.close()
    assert in_the_call - after > SECONDS * RATE_IN * 2
