"""Streaming models of sherpa-onnx (https://k2-fsa.github.io/sherpa/onnx/) as a `Recognizer`.

A model that sherpa-onnx finds wrong ends the process. So use it in a worker, whose end the server
reports and survives; see `web.workers.local_worker_io`.
"""

import os
from collections.abc import Callable
from time import perf_counter

import numpy as np
from loguru import logger

from offhook.media.pcm import RATE_IN, Pcm
from offhook.pipeline.engines.shared.asr_models import AsrModels
from offhook.pipeline.engines.shared.capacity import open_streams
from offhook.pipeline.engines.shared.inference_io import Command
from offhook.pipeline.engines.shared.progress import Bar
from offhook.pipeline.engines.shared.recognition.cpu_streams import measured_streams
from offhook.pipeline.engines.shared.recognition.streams_io import (
    EngineOptions,
    EngineRecognizer,
    Tell,
)
from offhook.pipeline.engines.sherpa.engine import LARGEST_BATCH, SherpaEngine
from offhook.pipeline.engines.sherpa.model import SherpaStreams, check_version
from offhook.pipeline.engines.sherpa.model_files import SherpaModel, find_model
from offhook.pipeline.speech.errors import EngineError, UnsupportedRequest
from offhook.pipeline.speech.recognizer import Progress, StreamOptions
from offhook.pipeline.speech.streams.languages import UNKNOWN

MAX_STREAMS = 64
"""Maximum live streams of a model of sherpa-onnx in use at once, however fast the CPU is. More
may be open, as nobody speaks all the time; further ones are refused with EngineOverloaded."""
MAX_FILES = 4
"""Maximum files that a model of sherpa-onnx transcribes at once, besides the live streams; further
ones are refused with EngineOverloaded."""
MAX_THREADS = 4
"""Maximum threads of a large model of sherpa-onnx; further cores are not used."""


class SherpaRecognizer(EngineRecognizer):
    """A model of sherpa-onnx on the CPU, shared by all streams of the process. Raises EngineError
    if an option is unsupported."""

    languages: tuple[str, ...] = ()
    """BCP 47 tags of the model's languages, once it has loaded; empty: unknown."""
    max_streams: int | None = None
    """Streams that the CPU follows when all are in use, once it has loaded."""
    max_open_streams: int | None = None
    """Streams that may be open, in use or not, once that is known."""

    def __init__(
        self, models: AsrModels, progress: Progress = lambda fraction, doing: None
    ) -> None:
        super().__init__(f"sherpa-onnx ({models.model})", self._load_model)
        for name, value in (("second model", models.final_model), ("aligner", models.aligner)):
            if value:
                raise EngineError(f"sherpa-onnx has no {name} here: leave {value} out")
        if models.device == "cuda":
            raise EngineError("sherpa-onnx runs on the CPU here: set the device to cpu or auto")
        if models.precision != "auto":
            raise EngineError("sherpa-onnx has the precision of the model's files: leave it out")
        self._models = models
        self._bar = Bar(progress, 1)

    def _load_model(self, tell: Tell, submit: Callable[[Command], None]) -> "SherpaOptions":
        """Downloads, loads and warms up the model. Raises EngineError."""
        check_version()
        name = self._models.model
        model = find_model(name, self._bar.reading(name), self._models.hub)
        self.languages = model.languages or languages_of_prompts(model)
        threads = self._threads(model)
        warming = self._bar.warming()
        warming(0.0, model.family)
        streams = SherpaStreams(model, threads)
        batch = LARGEST_BATCH if _has_batches(streams) else 1
        most = measured_streams(
            lambda count: _decode_s(streams, count, batch), model.chunk_ms / 1000, MAX_STREAMS
        )
        self.max_streams = most
        self.max_open_streams = open_streams(most)
        logger.info(
            "{}: {}, {} threads, {} streams, {} of them in use at once{}",
            *(name, model.describe(), threads, self.max_open_streams, most),
            "" if batch > 1 else ", one after the other: this export has no batches",
        )
        warming(1.0, model.family)
        engine = SherpaEngine(
            streams,
            *(model.chunk_ms, model.tail_ms, model.frame_ms),
            *(self.max_open_streams, MAX_FILES),
            tell,
            batch,
        )
        return SherpaOptions(engine, model)

    @staticmethod
    def _threads(model: SherpaModel) -> int:
        """Returns one thread for a small model, which more would only slow down together."""
        cores = os.cpu_count() or 1
        return max(1, min(MAX_THREADS, cores // 2)) if model.is_large else 1


def languages_of_prompts(model: SherpaModel) -> tuple[str, ...]:
    """Returns the languages that the model is told; none if it is told none."""
    return tuple(sorted({prompt.partition("-")[0] for prompt in model.prompts}))


class SherpaOptions(EngineOptions):
    """Opens streams of the engine with the options of a `RecognizerStream`."""

    def __init__(self, engine: SherpaEngine, model: SherpaModel) -> None:
        super().__init__(engine)
        self._engine, self._model = engine, model

    def open(self, options: StreamOptions) -> int:
        """Opens a stream. Raises UnsupportedRequest or EngineOverloaded."""
        tag, code = options.language, options.language_code
        if tag is None or code is None:
            (only,) = self._model.languages if len(self._model.languages) == 1 else (UNKNOWN,)
            return self._engine.open(options, language=only)
        return self._engine.open(options, self._prompt(tag, code), code)

    def _prompt(self, tag: str, code: str) -> str:
        """Returns the language for the model; empty if it is not told one. Raises
        UnsupportedRequest."""
        languages, prompts = self._model.languages, self._model.prompts
        if prompts:
            languages = languages_of_prompts(self._model)
            if tag.lower() in prompts:
                return tag
            if code in languages:
                return code
        elif not languages or code in languages:
            return ""
        raise UnsupportedRequest(
            f"this model hears {', '.join(languages)}, not {tag!r}: another language needs another "
            "model"
        )


def _noise(model: SherpaModel) -> Pcm:
    """Returns sound that is enough for one chunk."""
    samples = (model.chunk_ms + model.tail_ms) * RATE_IN // 1000
    loud = np.random.default_rng(0).standard_normal(samples) * 3000
    noise: Pcm = loud.astype(np.int16)
    return noise


def _has_batches(streams: SherpaStreams) -> bool:
    """Whether the model can decode several streams at once; some exports have one only. Raises
    EngineError if it can decode none."""
    for count in (1, 2):
        try:
            _decode_s(streams, count, count)
        except (RuntimeError, IndexError) as error:
            if count > 1:
                return False
            reason = " ".join(str(error).split())
            raise EngineError(f"the {streams.model.family} does not run: {reason}") from error
    return True


def _decode_s(streams: SherpaStreams, count: int, batch: int) -> float:
    """Returns the time in s to decode one chunk of so many streams."""
    opened = [streams.open() for _ in range(count)]
    for stream in opened:
        streams.feed(stream, _noise(streams.model))
    began = perf_counter()
    for at in range(0, count, batch):
        streams.decode(opened[at : at + batch])
    return perf_counter() - began
