"""Loads the Qwen3-ASR models, divides GPU memory among them and warms up a `Recognition`."""

from collections.abc import Callable
from time import perf_counter

import numpy as np
import torch
from loguru import logger

from offhook.pipeline.engines.hub import hub_io
from offhook.pipeline.engines.qwen3_asr.engine import AsrEngine, TextUpdate
from offhook.pipeline.engines.qwen3_asr.engine import Tokenizer as AsrTokenizer
from offhook.pipeline.engines.qwen3_asr.gpu import PREFILL_TOKENS, RecognitionPlan, recognition_plan
from offhook.pipeline.engines.qwen3_asr.model import checkpoint as asr_checkpoint
from offhook.pipeline.engines.qwen3_asr.model.model import Qwen3Asr
from offhook.pipeline.engines.qwen3_asr.model.quantize import quantize
from offhook.pipeline.engines.qwen3_asr.passes import SECOND_SAMPLES, Pass, Second, Span, Stem
from offhook.pipeline.engines.qwen3_asr.recognition import Recognition
from offhook.pipeline.engines.qwen3_asr.runner import SECOND_FRAMES, WINDOW_TOKENS, Runner
from offhook.pipeline.engines.qwen3_asr.scheduler import Cost
from offhook.pipeline.engines.qwen3_asr.word_times_io import Command, WordTimes
from offhook.pipeline.engines.shared.asr_models import AsrModels
from offhook.pipeline.engines.shared.capacity import (
    MAX_FILES,
    PAGES_PER_STREAM,
    followed,
    open_streams,
)
from offhook.pipeline.engines.shared.device_io import (
    choose_device,
    claim_thread,
    dtype_of,
    memory_budget,
    threads,
)
from offhook.pipeline.engines.shared.progress import Bar
from offhook.pipeline.engines.shared.qwen3.tokenizer import Tokenizer
from offhook.pipeline.speech.errors import EngineError
from offhook.pipeline.speech.recognizer import Final, Partial, Progress

REVISIONS = 48
"""Utterances that the second model processes at once; more wait. Each takes a batch or two, so this
serves many times as many streams."""
CPU_STREAMS = 8
COST_STREAMS = 16
LOAD_STREAMS = 32
"""Streams of the batch whose duration says how many a GPU follows; a full one has more."""
UPDATE_MS = 400
"""Interval of updates for which streams are admitted, the default of [asr] update_ms."""
DRAFT_TOKENS, DECODED = 12, 5
"""Draft of an update, and decode steps of a batch of them: at 4.5 tokens a second one stream needs
two or three, the one with the most as many as this."""
LOAD = 0.9
"""Share of the time that batches may take when all streams speak. On an H200 694 streams of 0.6B
follow from it: 700 were held with no update late, of 800 every 25th was merged with the next."""
LEAST_DIFFERENCE_MS = 0.01
"""Minimum difference in ms assumed between a batch of one stream and of many; on a busy machine
none may be measurable."""
WINDOW_S = 8
COST_RUNS = 4


class Loading:
    """Loads everything that `AsrModels` names. `load` runs in the inference thread."""

    def __init__(self, models: AsrModels, progress: Progress) -> None:
        """Raises EngineError if the device does not exist or an option is unsupported."""
        if models.precision == "int8":
            raise EngineError("int8 is for Nemotron on a CPU; Qwen3-ASR has int8-weights")
        self.models = models
        self.device = choose_device(models.device)
        self.word_times: WordTimes | None = None
        """The caller closes it."""
        self.streams: int | None = None
        """Streams that the device follows when all are in use, once that is known."""
        self.open_streams: int | None = None
        """Streams that may be open, in use or not, once that is known."""
        self._dtype = dtype_of(self.device, models.precision)
        wanted = (models.model, models.final_model, models.aligner)
        self._bar = Bar(progress, sum(map(bool, wanted)))

    def load(
        self, tell: Callable[[int, Partial | Final], None], submit: Callable[[Command], None]
    ) -> Recognition:
        """Loads and warms up the models; `submit` runs a command in this thread. All memory is
        allocated before the first call. Raises EngineError."""
        claim_thread(self.device)
        models = self.models
        first, tokenizer = self._read(models.model)
        second = None
        if models.final_model:
            second, other = self._read(models.final_model)
            if not _same_text(tokenizer, other):
                raise EngineError(
                    f"{models.final_model} and {models.model} do not share their tokens: the text "
                    "of one is no draft for the other"
                )
        if self.device.type == "cuda":
            torch.cuda.empty_cache()  # what reading needed; the rest is counted as taken
        if models.aligner:
            self.word_times = WordTimes(self.device, threads(self.device), submit)
            reading = self._bar.reading(models.aligner)
            folder = hub_io.find(models.aligner, reading, models.hub)
            self.word_times.load(folder, self._dtype)
        share = 0.5 if second else 1.0
        revising = None
        if second is not None:  # before the first engine, which takes the remaining memory
            streams = REVISIONS if self.device.type == "cuda" else CPU_STREAMS
            of = (models.final_model, second, tokenizer)
            revising = self._engine(*of, _plan(streams), share, alone=False)
        room = self._plan(first)
        hearing = self._engine(models.model, first, tokenizer, room, share)
        align = self.word_times.align if self.word_times else None
        recognition = Recognition(tell, hearing, revising, align)
        return recognition

    def _read(self, name: str) -> tuple[Qwen3Asr, AsrTokenizer]:
        folder = hub_io.find(name, self._bar.reading(name), self.models.hub)
        tokenizer = Tokenizer.load(folder)
        model = asr_checkpoint.load_model(folder, self.device, self._dtype)
        if model.config.classes is not None:
            raise EngineError(f"{name} is a forced aligner, not a recognition model")
        if self.models.precision in ("fp8-weights", "int8-weights"):
            quantize(model, self.models.precision)
        return model, tokenizer

    def _plan(self, model: Qwen3Asr) -> RecognitionPlan:
        """Returns what fits in memory."""
        most = self.models.max_streams
        if self.device.type == "cpu":
            return _plan(min(most or CPU_STREAMS, CPU_STREAMS))
        room = memory_budget(self.device, self.models.memory_share)
        return recognition_plan(room, model.config, most)

    def _engine(
        self,
        name: str,
        model: Qwen3Asr,
        tokenizer: AsrTokenizer,
        plan: RecognitionPlan,
        share: float,
        alone: bool = True,
    ) -> Callable[[Callable[[TextUpdate], None]], AsrEngine]:
        runner = self._runner(model, tokenizer, plan, alone)
        runner.warm_up(self._bar.warming(share))
        cost = measured_cost(runner)
        streams = plan.streams
        if alone and self.device.type == "cuda":
            self.streams = min(streams, measured_streams(runner))
            self.open_streams = streams = open_streams(self.streams, streams)
        elif alone:
            self.streams = self.open_streams = streams
        logger.info(
            "{}: {} streams, {} of them in use at once, of {} that fit in memory, {} pages, "
            "{:.1f} ms a batch",
            *(name, streams, self.streams or streams, plan.streams, plan.pages, cost.batch_ms),
        )
        most = (streams, MAX_FILES, runner.max_batch, runner.max_tokens)
        return lambda tell: AsrEngine(runner, tokenizer, plan.pages, cost, *most, tell)

    def _runner(
        self, model: Qwen3Asr, tokenizer: AsrTokenizer, plan: RecognitionPlan, alone: bool
    ) -> Runner:
        slots = plan.streams + MAX_FILES
        return Runner(model, slots, plan.pages, alone=alone, tokens=plan.tokens)


def _plan(streams: int) -> RecognitionPlan:
    """Returns a plan for so many streams however much memory there is."""
    return RecognitionPlan(streams, (streams + MAX_FILES) * PAGES_PER_STREAM + 1, PREFILL_TOKENS[0])


def _same_text(one: AsrTokenizer, other: AsrTokenizer) -> bool:
    sample = "language English 0123456789 The quick brown fox, naïve café, 你好世界, привет."
    return one.encode(sample) == other.encode(sample) and one.asr_text == other.asr_text


def measured_cost(runner: Runner) -> Cost:
    """Measures the cost of batches on this machine by timing one and several full windows on
    scratch memory."""
    noise = (np.random.default_rng(0).standard_normal(SECOND_SAMPLES) * 3000).astype(np.int16)

    def window(slot: int) -> Pass:
        heard = [Span(0, WINDOW_TOKENS)]
        seconds = [Second(i, noise, SECOND_FRAMES) for i in range(WINDOW_S)]
        stems = [Stem(i, SECOND_FRAMES, 1.0) for i in range(WINDOW_S)]
        return Pass(slot, seconds, stems, encode=heard, audio=heard, after=[0])

    def median_ms(streams: int) -> tuple[float, float]:
        passes = [window(1 + i) for i in range(streams)]
        times = []
        for _ in range(COST_RUNS + 1):
            began = perf_counter()
            runner.mel(passes)
            runner.encode(passes)
            runner.synchronize()
            encoded = perf_counter()
            runner.prefill(passes)()
            runner.decode([p.slot for p in passes])()
            times.append((encoded - began, perf_counter() - encoded))
        hear, read = np.median(1000 * np.array(times[1:]), axis=0)
        return float(hear), float(read)

    many = min(runner.streams, COST_STREAMS if runner.device.type == "cuda" else 2)
    (hear_one, read_one), (hear_many, read_many) = median_ms(1), median_ms(many)
    each = 1 / ((many - 1) * WINDOW_TOKENS)
    return Cost(
        hear_one + read_one,
        max(LEAST_DIFFERENCE_MS, hear_many - hear_one) * each,
        max(LEAST_DIFFERENCE_MS, read_many - read_one) * each,
    )


def measured_streams(runner: Runner) -> int:
    """Measures how many streams the GPU follows that all speak at once, on scratch memory: a batch
    of average updates, each half a window heard, a second of it new, a draft."""
    noise = (np.random.default_rng(0).standard_normal(SECOND_SAMPLES) * 3000).astype(np.int16)
    heard = [Span(0, WINDOW_TOKENS // 2)]
    count = min(runner.streams, LOAD_STREAMS, runner.max_batch)

    def update(slot: int) -> Pass:
        return Pass(
            slot,
            [Second(3, noise, SECOND_FRAMES)],
            [Stem(3, SECOND_FRAMES, 1.0)],
            encode=heard,
            start=9,
            audio=heard,
            after=list(range(20, 26)),
            draft=list(range(1000, 1000 + DRAFT_TOKENS)),
        )

    passes = [update(1 + i) for i in range(count)]
    slots = [p.slot for p in passes]
    times = []
    for _ in range(COST_RUNS + 1):
        began = perf_counter()
        runner.mel(passes)
        runner.encode(passes)
        runner.prefill(passes)()
        for _ in range(DECODED):
            runner.decode(slots)()
        times.append(perf_counter() - began)
    return followed(1000 * float(np.median(times[1:])), count, UPDATE_MS, LOAD)
