"""What the workshop's callers say on lines: in a voice of this machine, and with a mark in each
sentence, by which this recognizer understands it."""

import re
from collections.abc import AsyncGenerator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from pipecat.frames.frames import Frame, TTSAudioRawFrame

from offhook.pipeline.speech.synthesizer import VoiceOptions
from offhook.web.app.evals.services_io import CallerVoice
from offhook.web.workers.engines.engines_io import open_synthesizer
from tests.support.marks import Ears, marked

SUITE = Path(__file__).parent / "suite"
PLAYED = ("It is seven.", "Thank you, goodbye.")
"""What callers say whom the model plays, and nobody in the suite does."""
_WRITTEN = (
    one for file in SUITE.glob("*.yaml") for one in re.findall('user: "(.*)"', file.read_text())
)
MARKS_HZ = {text: 1900 + 40 * n for n, text in enumerate(sorted({*_WRITTEN, *PLAYED}))}
VOICE = {"factory": f"{__name__}.marked_voice"}
EARS = {"engine": f"{__name__}:SuiteEars"}


class SuiteEars(Ears):
    """Is an engine of a configuration: `engine = "module:SuiteEars"`."""

    def __init__(self, models: object, progress: object) -> None:
        super().__init__(MARKS_HZ)


class MarkedVoice(CallerVoice):
    """Speaks in one breath: a pause might end the turn on a busy machine."""

    async def run_tts(self, text: str, context_id: str) -> AsyncGenerator[Frame | None, None]:
        breath = re.sub("[.,?]", "", text)
        async for frame in super().run_tts(breath, context_id):
            if isinstance(frame, TTSAudioRawFrame):
                voice = np.frombuffer(frame.audio, np.int16)
                frame.audio = marked(voice, frame.sample_rate, MARKS_HZ[text]).tobytes()
            yield frame


def marked_voice(config: Mapping[str, Any]) -> MarkedVoice:
    return MarkedVoice(open_synthesizer(), VoiceOptions())
