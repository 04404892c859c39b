"""Nemotron streaming ASR as a `Recognizer`."""

from collections.abc import Callable
from time import perf_counter

import numpy as np
import torch
from loguru import logger

from offhook.media.pcm import RATE_IN
from offhook.pipeline.engines.hub import hub_io
from offhook.pipeline.engines.nemotron.engine import NemotronEngine
from offhook.pipeline.engines.nemotron.gpu import label_streams
from offhook.pipeline.engines.nemotron.model import checkpoint as nemotron_checkpoint
from offhook.pipeline.engines.nemotron.model.model import Nemotron, NemotronConfig
from offhook.pipeline.engines.nemotron.model.tokenizer import LabelTokenizer
from offhook.pipeline.engines.nemotron.runner import NemotronRunner, Part, chunk_samples
from offhook.pipeline.engines.nemotron.utterance import FRAME_MS, LabelText
from offhook.pipeline.engines.shared.asr_models import AsrModels, Precision
from offhook.pipeline.engines.shared.capacity import MAX_FILES, followed, open_streams
from offhook.pipeline.engines.shared.device_io import (
    choose_device,
    claim_thread,
    dtype_of,
    memory_budget,
)
from offhook.pipeline.engines.shared.inference_io import Command
from offhook.pipeline.engines.shared.model.instructions import Instructions
from offhook.pipeline.engines.shared.model.int8 import instructions
from offhook.pipeline.engines.shared.progress import Bar
from offhook.pipeline.engines.shared.recognition.cpu_streams import COST_STREAMS, measured_streams
from offhook.pipeline.engines.shared.recognition.streams_io import (
    EngineOptions,
    EngineRecognizer,
    Tell,
)
from offhook.pipeline.engines.shared.recognition.turns_io import turn_judge
from offhook.pipeline.speech.errors import EngineError, UnsupportedRequest
from offhook.pipeline.speech.recognizer import Progress, StreamOptions

CPU_STREAMS = 64
"""Maximum live streams on a CPU."""
CPU_FILES = 4
GPU_RUNS = 5
GPU_LOAD = 0.3
"""Share of the time that full batches of a GPU may take, packed and read, when all streams speak:
texts grow, and sound does not come in full batches. On one machine with an H100 streams of 80 ms
were held up to a share of 0.42, on another, with slower cores, not quite up to 0.31."""
CPU_LOOKAHEAD = 6
"""Least right context in frames on a CPU: each chunk reads all the weights, so chunks of 80 ms cost
six times as much as chunks of 560 ms."""


class NemotronRecognizer(EngineRecognizer):
    """Nemotron on one device, shared by all streams of the process. Raises EngineError if the
    device does not exist or an option is unsupported."""

    languages: tuple[str, ...] = ()
    """BCP 47 tags of the model's languages, once it has loaded."""
    max_streams: int | None = None
    """Streams that the device follows when all are in use, once it has loaded."""
    max_open_streams: int | None = None
    """Streams that may be open, in use or not, once that is known."""

    def __init__(
        self, models: AsrModels, progress: Progress = lambda fraction, doing: None
    ) -> None:
        super().__init__(f"Nemotron ({models.model})", self._load_model)
        for name, value in (("second model", models.final_model), ("aligner", models.aligner)):
            if value:
                raise EngineError(f"Nemotron has no {name}: leave {value} out")
        self._models = models
        self._device = choose_device(models.device)
        self.turns = turn_judge(self._device)
        self._int8 = _int8(models.precision, self._device)
        self._bar = Bar(progress, 1)

    def _load_model(self, tell: Tell, submit: Callable[[Command], None]) -> "NemotronOptions":
        """Loads and warms up the model. All memory is allocated before the first call.
        Raises EngineError."""
        claim_thread(self._device)
        dtype = dtype_of(self._device, self._models.precision)
        model, tokenizer = self._read(dtype)
        self.languages = tuple(model.config.languages) or ("en",)
        on_cpu = self._device.type == "cpu"
        files, lookaheads = MAX_FILES, model.config.lookaheads
        if on_cpu:
            files = CPU_FILES
            lookaheads = tuple(r for r in lookaheads if r >= CPU_LOOKAHEAD) or lookaheads[-1:]
            probe = self._runner(model, COST_STREAMS)  # state for CPU_STREAMS would be a gigabyte
            streams = measured_cpu_streams(probe, min(lookaheads))
        else:
            room = memory_budget(self._device, self._models.memory_share)
            streams = label_streams(room, model.config, self._models.max_streams)
        runner = self._runner(model, streams + files)
        runner.warm_up(self._bar.warming())
        fit = self.max_streams = streams
        if not on_cpu:
            of_gpu = measured_streams_of_gpu(runner, tokenizer, min(lookaheads))
            self.max_streams = min(fit, of_gpu)
            streams = open_streams(self.max_streams, fit)
        self.max_open_streams = streams
        by = f" in int8 by {self._int8.value}" if self._int8 else ""
        logger.info(
            "{}{}: {} streams, {} of them in use at once, of {} that fit",
            *(self._models.model, by, streams, self.max_streams, fit),
        )
        wait = self._models.max_batch_latency_ms / 1000
        engine = NemotronEngine(runner, tokenizer, streams, files, tell, wait)
        return NemotronOptions(engine, model.config, lookaheads)

    def _read(self, dtype: torch.dtype) -> tuple[Nemotron, LabelText]:
        """Raises EngineError."""
        name = self._models.model
        folder = hub_io.find(name, self._bar.reading(name), self._models.hub)
        model = nemotron_checkpoint.load_model(folder, self._device, dtype, self._int8)
        tokenizer = LabelTokenizer.load(folder)
        if tokenizer.vocab_size < model.config.blank:
            raise EngineError(
                f"the tokenizer of {name} has {tokenizer.vocab_size} pieces, the model "
                f"{model.config.blank} labels: they are not of the same model"
            )
        return model, tokenizer

    def _runner(self, model: Nemotron, streams: int) -> NemotronRunner:
        return NemotronRunner(model, streams)


class NemotronOptions(EngineOptions):
    """Opens streams of the engine with the options of a `RecognizerStream`."""

    def __init__(
        self, engine: NemotronEngine, config: NemotronConfig, lookaheads: tuple[int, ...]
    ) -> None:
        super().__init__(engine)
        self._engine, self._config, self._lookaheads = engine, config, lookaheads

    def open(self, options: StreamOptions) -> int:
        """Opens a stream. Raises UnsupportedRequest or EngineOverloaded."""
        prompt = self._prompt(options)
        lookahead = lookahead_of(self._lookaheads, options)
        language = options.language_code or ("" if self._config.prompts else "en")
        return self._engine.open(lookahead, options.live, prompt, options.timing, language)

    def _prompt(self, options: StreamOptions) -> int:
        c, tag, code = self._config, options.language, options.language_code
        if not c.prompts:
            if code not in (None, "en"):
                raise UnsupportedRequest(f"this model hears English only, not {tag!r}")
            return 0
        if tag is None or code is None:
            return c.default_prompt
        if tag not in c.languages and code not in c.languages:
            known = ", ".join(sorted(c.languages))
            raise UnsupportedRequest(f"this model does not know {tag!r}; it knows {known}")
        return c.languages.get(tag, c.languages.get(code, 0))


def lookahead_of(lookaheads: tuple[int, ...], options: StreamOptions) -> int:
    """Returns the right context of a stream: for live audio the largest that fits its update_ms,
    since that has the fewest errors; for a file the largest."""
    if not options.live:
        return max(lookaheads)
    fit = [r for r in lookaheads if (r + 1) * FRAME_MS <= options.update_ms]
    return max(fit, default=min(lookaheads))


def _int8(precision: Precision, device: torch.device) -> Instructions | None:
    """Returns the CPU's 8-bit instructions if the precision asks for them. Raises EngineError if
    Nemotron does not have the precision on this device."""
    on_cpu = device.type == "cpu"
    possible = ("auto", "fp32", "bf16", "int8") if on_cpu else ("auto", "bf16")
    if precision not in possible:
        where = "a CPU" if on_cpu else "a GPU"
        known = ", ".join(possible)
        raise EngineError(f"Nemotron on {where} has the precisions {known}, not {precision}")
    return instructions() if on_cpu and precision in ("auto", "int8") else None


def measured_cpu_streams(runner: NemotronRunner, lookahead: int) -> int:
    """Returns the live streams that this machine's CPU can follow."""
    noise = np.random.default_rng(0).standard_normal(chunk_samples(lookahead + 1)) * 3000
    pcm = noise.astype(np.int16)

    def batch_s(streams: int) -> float:
        parts = [Part(1 + i, 0, pcm) for i in range(streams)]
        began = perf_counter()
        runner.encode(lookahead, parts).labels()
        return perf_counter() - began

    return measured_streams(batch_s, (lookahead + 1) * FRAME_MS / 1000, CPU_STREAMS)


def measured_streams_of_gpu(runner: NemotronRunner, tokenizer: LabelText, lookahead: int) -> int:
    """Returns the live streams that the GPU and the thread that packs its batches follow with this
    right context, the least: with a larger one they follow more. Measured with two full batches,
    one of which is packed while the other is computed, in an engine whose state is scratch."""
    frames = lookahead + 1
    count = min(2 * runner.largest[lookahead], runner.streams)
    engine = NemotronEngine(runner, tokenizer, count, 0, lambda stream, event: None)
    streams = [engine.open(lookahead) for _ in range(count)]
    samples = frames * FRAME_MS * RATE_IN // 1000
    pcm = (np.random.default_rng(0).standard_normal(samples) * 3000).astype(np.int16)
    times = []
    for _ in range(GPU_RUNS + 2):
        began = perf_counter()
        for stream in streams:
            engine.feed(stream, pcm, began)
        while engine.turn(perf_counter):
            pass
        times.append(perf_counter() - began)
    ms = 1000 * float(np.median(times[2:]))  # the first chunk needs more sound than one has
    return followed(ms, count, frames * FRAME_MS, GPU_LOAD)
