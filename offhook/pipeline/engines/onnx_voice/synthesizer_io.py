"""Kokoro and Piper as a `Synthesizer`: natural voices for a CPU, without torch.

The phonemes are eSpeak NG's, which runs in a process of its own (`embedded.espeak_worker`); the
models run in ONNX Runtime. They tell no times of words, so that words end where their share of the
letters does.
"""

import os
import re
from itertools import accumulate
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
from loguru import logger

from offhook.media.pcm import Pcm
from offhook.pipeline.engines.embedded.embedded_speech_io import (
    EmbeddedSynthesizer,
    Sound,
    voiced_span,
)
from offhook.pipeline.engines.embedded.espeak_io import EspeakChild
from offhook.pipeline.engines.hub import hub_io
from offhook.pipeline.engines.onnx_voice.spec import KOKORO_FILES
from offhook.pipeline.engines.onnx_voice.voices import PIPER_NAME, OnnxVoice, read_voice
from offhook.pipeline.engines.shared.progress import Bar
from offhook.pipeline.engines.shared.recognition.cpu_streams import CPU_LOAD
from offhook.pipeline.engines.shared.tts_models import TtsModels
from offhook.pipeline.speech.errors import EngineError
from offhook.pipeline.speech.recognizer import Progress
from offhook.pipeline.speech.text.markup import IPA_BEGINS, IPA_ENDS
from offhook.pipeline.speech.text.spoken_text import TextReader, with_rules

PIPER_VOICES = "rhasspy/piper-voices"
MAX_THREADS = 4
"""Maximum threads of a voice in ONNX Runtime; further cores are not used."""
MAX_SPEAKING = 16
"""Maximum replies of such a voice that speak at once, however fast the CPU is."""
OPEN_PER_SPEAKING = 4
"""Replies that may be open for each that the CPU follows: most are being heard, or wait for
text."""
_MARKS = ".,;:!?…—"
PUNCTUATION = re.compile(
    rf"{IPA_BEGINS}[^{IPA_ENDS}]*{IPA_ENDS}[{_MARKS}]*|[^{_MARKS}{IPA_BEGINS}]*[{_MARKS}]*"
)
"""Matches words, or one in IPA, and the marks behind them, which phonemes are spoken with."""


class OnnxSynthesizer(EmbeddedSynthesizer):
    """A voice of Kokoro or Piper. Replies take turns clause by clause."""

    takes_ipa = True
    max_streams: int | None = None
    """Replies that may be open, once that is known."""

    def __init__(
        self, family: str, models: TtsModels, progress: Progress = lambda fraction, doing: None
    ) -> None:
        """`family`: "kokoro" or "piper". Raises EngineError for a setting that it lacks."""
        self.name = f"{family.title()} ({models.model})"
        super().__init__()
        if models.device == "cuda":
            raise EngineError(f"{self.name} runs on the CPU here: set the device to cpu or auto")
        self.spoken = {}
        self._family, self._models = family, models
        self._bar = Bar(progress, 1)
        self._cost = 0.0
        """Time in s that a second of the last clause took."""
        self._voice: OnnxVoice
        self._session: Any
        self._espeak = EspeakChild()

    async def start(self) -> None:
        await super().start()
        speaking = max(1, min(MAX_SPEAKING, int(CPU_LOAD / self._cost)))
        self.max_streams = OPEN_PER_SPEAKING * speaking
        logger.info(
            "{}: {:.2f} s for a second of speech on this CPU, {} replies speak at once",
            *(self.name, self._cost, speaking),
        )
        if self._cost > CPU_LOAD:
            logger.warning("{} is too slow for calls on this CPU: its voice has holes", self.name)

    def load(self) -> None:
        """Downloads and loads the model, and starts eSpeak NG. Raises EngineError."""
        import onnxruntime

        name = Path(self._models.model).name.removesuffix(".onnx")
        self._voice = read_voice(self._family, self._folder(), name)
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = max(1, min(MAX_THREADS, os.cpu_count() or 1))
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        try:
            self._session = onnxruntime.InferenceSession(
                str(self._voice.onnx), options, providers=["CPUExecutionProvider"]
            )
        except Exception as error:  # whatever the library raises for a damaged file
            reason = " ".join(str(error).split())
            raise EngineError(f"{self._voice.onnx} cannot be loaded: {reason}") from error
        self._shapes = {each.name: each.shape for each in self._session.get_inputs()}
        self.spoken = {name: of.languages for name, of in self._voice.speakers.items()}
        self._espeak.start()

    def _folder(self) -> Path:
        """Returns the folder of the voice, downloading it."""
        model = self._models.model
        path = Path(model).expanduser()
        if path.suffix == ".onnx" and path.is_file():
            return path.parent
        reading = self._bar.reading(model)
        if self._family == "kokoro" or path.is_dir():
            return hub_io.find(model, reading, self._models.hub, KOKORO_FILES)
        if (name := PIPER_NAME.fullmatch(model)) is None:
            raise EngineError(
                f"{model} is no voice of Piper, such as en_US-joe-medium, nor a folder"
            )
        inside = "/".join((*name.group("language", "tag", "speaker", "quality"), f"{model}.onnx"))
        files = (inside, f"{inside}.json")
        folder = hub_io.find(PIPER_VOICES, reading, self._models.hub, files)
        return (folder / inside).parent

    def sound(self, words: list[str], voice: str, speed: float = 1.0) -> Sound:
        began = perf_counter()
        tokens, most = self._tokens(" ".join(words), voice), self._voice.longest
        pieces = [tokens[at : at + most] for at in range(0, len(tokens), most)]
        pcm = np.concatenate([np.zeros(0, np.int16), *(self._run(p, voice, speed) for p in pieces)])
        start, stop = voiced_span(pcm, self._voice.rate) if len(pcm) else (0, 0)
        letters = list(accumulate(max(1, sum(map(str.isalnum, word))) for word in words))
        ends = [start + (stop - start) * at // letters[-1] for at in letters]
        self._cost = (perf_counter() - began) * self._voice.rate / max(1, len(pcm))
        return Sound(pcm, self._voice.rate, ends)

    def _tokens(self, text: str, voice: str) -> list[int]:
        parts = [part for part in PUNCTUATION.findall(text) if part.strip()]
        read = [part for part in parts if IPA_BEGINS not in part]
        phonemes = iter(self._espeak.phonemes(read, self._voice.speakers[voice].espeak))
        spoken = (
            part[1 : part.index(IPA_ENDS)] if IPA_BEGINS in part else next(phonemes)
            for part in parts
        )
        marks = (part[len(part.rstrip(".,;:!?…—")) :][:1] for part in parts)
        joined = " ".join(f"{p}{mark}" for p, mark in zip(spoken, marks, strict=True))
        return self._voice.tokens(joined, voice)

    def _run(self, tokens: list[int], voice: str, speed: float) -> Pcm:
        try:
            given = self._voice.inputs(tokens, voice, speed, self._shapes)
            (sound, *_) = self._session.run(None, given)
        except Exception as error:  # whatever the library raises for a model of another kind
            reason = " ".join(str(error).split())
            raise EngineError(f"{self.name} does not speak: {reason}") from error
        samples = np.clip(np.asarray(sound, np.float32).ravel(), -1, 1)
        pcm: Pcm = np.rint(samples * 32767).astype(np.int16)
        return pcm

    def _gain(self, voice: str) -> float:
        """Speakers of a model are about as loud as each other, and measuring one takes seconds."""
        return super()._gain(self.voice_of(""))

    def _reader(self, language: str, normalise: bool = True) -> TextReader:
        return TextReader(with_rules(language), normalise, ipa=True)

    async def close(self) -> None:
        await super().close()
        self._espeak.end()


def kokoro(models: TtsModels, progress: Progress) -> OnnxSynthesizer:
    """Raises EngineError for a setting that it lacks."""
    return OnnxSynthesizer("kokoro", models, progress)


def piper(models: TtsModels, progress: Progress) -> OnnxSynthesizer:
    """Raises EngineError for a setting that it lacks."""
    return OnnxSynthesizer("piper", models, progress)
