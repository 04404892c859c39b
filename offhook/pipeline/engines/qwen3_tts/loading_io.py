"""Loads Qwen3-TTS, divides GPU memory and warms up a `TtsEngine`."""

from collections import deque
from collections.abc import Callable
from dataclasses import asdict
from itertools import accumulate
from pathlib import Path
from statistics import median
from time import perf_counter

import torch
from loguru import logger

from offhook.pipeline.engines.hub import hub_io
from offhook.pipeline.engines.qwen3_tts.engine import TtsEngine
from offhook.pipeline.engines.qwen3_tts.gpu import (
    CODEC_FRAMES,
    PAGES_PER_VOICE,
    PREFIX_PAGES,
    SynthesisPlan,
    synthesis_plan,
)
from offhook.pipeline.engines.qwen3_tts.model import checkpoint as tts_checkpoint
from offhook.pipeline.engines.qwen3_tts.model.codec import Codec, CodecConfig
from offhook.pipeline.engines.qwen3_tts.model.codec_weights import PREFIX, load_codec
from offhook.pipeline.engines.qwen3_tts.model.config import TtsConfig
from offhook.pipeline.engines.qwen3_tts.model.model import Qwen3Tts
from offhook.pipeline.engines.qwen3_tts.runner import REFERENCES, STREAM_LADDER, TtsRunner
from offhook.pipeline.engines.qwen3_tts.segment_prefill import PREFIX_SLOTS
from offhook.pipeline.engines.qwen3_tts.voices_io import Encode, load_encoders
from offhook.pipeline.engines.shared.capacity import followed
from offhook.pipeline.engines.shared.device_io import (
    choose_device,
    claim_thread,
    dtype_of,
    memory_budget,
)
from offhook.pipeline.engines.shared.model import checkpoint
from offhook.pipeline.engines.shared.pages import PAGE_SIZE
from offhook.pipeline.engines.shared.progress import Bar
from offhook.pipeline.engines.shared.qwen3.tokenizer import TextTokenizer
from offhook.pipeline.engines.shared.synthesis.messages import (
    FRAME_S,
    PIECE_FRAMES,
    EngineEvent,
    Launched,
    Piece,
    Prompt,
    PromptPosition,
    RunnerProtocol,
    Sampling,
    SpeechCost,
    Step,
)
from offhook.pipeline.engines.shared.tts_models import TtsModels
from offhook.pipeline.speech.errors import EngineError
from offhook.pipeline.speech.recognizer import Progress

CODEC = "speech_tokenizer"
CPU_STREAMS = 4
CPU_PREFIX_PAGES = 12
COST_RUNS, CPU_COST_RUNS = 6, 2
COST_STREAMS, CPU_COST_STREAMS = 32, 2
"""Streams with which the codec is timed."""
COST_PAGES = 4
"""KV pages per stream when steps are timed: 15 s of speech."""
COST_ROWS = 128
LOAD = 0.91
"""Share of the time that steps and the codec may take when all streams speak. On an H200 1,789
voices (0.6B) and some 1,650 (1.7B) follow from it: 1,800 of either were held."""


class TtsLoading:
    """Loads everything that `TtsModels` names. `load` runs in the inference thread."""

    config: TtsConfig
    tokenizer: TextTokenizer
    model: Qwen3Tts
    encode: Encode | None
    """Encoder for cloned voices; None if the model does not support them."""

    def __init__(
        self, models: TtsModels, progress: Progress, codec_dtype: torch.dtype | None = None
    ) -> None:
        """`codec_dtype` is the compute type of the codec; None: the model's. Raises EngineError if
        the device does not exist."""
        self.models = models
        self.device = choose_device(models.device)
        self._dtype = dtype_of(self.device)
        self._codec_dtype = codec_dtype or self._dtype
        self._bar = Bar(progress, 2)
        self.streams: int | None = None
        """Streams that may speak at once, once that is known."""

    def load(self, tell: Callable[[EngineEvent], None]) -> TtsEngine:
        """Loads and warms up the model. All memory is allocated before the first
        reply. Raises EngineError."""
        claim_thread(self.device)
        codec = self._read()
        plan = self._plan(codec)
        batches = [n for n in STREAM_LADDER if n <= plan.batch]
        slots = plan.streams + PREFIX_SLOTS
        runner = TtsRunner(
            *(self.model, codec, slots, plan.pages),
            batches=batches,
            codec_frames=plan.codec_frames,
        )
        runner.warm_up(self._bar.warming())
        cost = measured_cost(runner)
        streams = plan.streams
        if self.device.type == "cuda":
            streams = min(streams, voices_followed(cost))
        self.streams = streams
        logger.info(
            "{}: {} streams of {} that fit in memory, {} pages, {:.1f} ms a frame of one, {:.1f} "
            "ms of {}, codec {:.1f} ms",
            *(self.models.model, streams, plan.streams, plan.pages, cost.steps[0][1]),
            *(cost.steps[-1][1], cost.steps[-1][0], cost.codec_ms),
        )
        engine = TtsEngine(self._driven(runner), self.config, cost, tell, self._prefix_pages)
        return engine

    def _driven(self, runner: TtsRunner) -> RunnerProtocol:
        """Returns the runner as the engine drives it."""
        return runner

    def sampling(self) -> Sampling:
        """Returns the checkpoint's generation settings."""
        return Sampling(**asdict(self.config.generation))

    @property
    def _prefix_pages(self) -> int:
        return CPU_PREFIX_PAGES if self.device.type == "cpu" else PREFIX_PAGES

    def _plan(self, codec: Codec) -> SynthesisPlan:
        """Returns what fits in memory."""
        most = self.models.max_streams
        if self.device.type == "cpu":
            streams = min(most or CPU_STREAMS, CPU_STREAMS)
            pages = streams * PAGES_PER_VOICE + CPU_PREFIX_PAGES + 1
            return SynthesisPlan(streams, pages, STREAM_LADDER[-1], CODEC_FRAMES[0])
        room = memory_budget(self.device, self.models.memory_share)
        c, state = self.config, codec.new_state(1).bytes_per_slot
        spare = PREFIX_SLOTS + REFERENCES * (c.kind == "base")
        return synthesis_plan(room, c, codec.config, state, STREAM_LADDER, spare, most)

    def _read(self) -> Codec:
        name = self.models.model
        folder = hub_io.find(name, self._bar.reading(name), self.models.hub)
        self.tokenizer = TextTokenizer.load(folder)
        self.model = tts_checkpoint.load_model(
            folder, self.device, self._dtype, self._bar.reading(name)
        )
        self.config = self.model.config
        _check_tokens(self.tokenizer, self.config)
        cloning = self.config.kind == "base"
        self.encode = load_encoders(folder, self.device.type) if cloning else None
        return read_codec(folder / CODEC, self.device, self._codec_dtype)


def read_codec(folder: Path, device: torch.device, dtype: torch.dtype) -> Codec:
    """Loads the codec from a checkpoint's folder `speech_tokenizer`. Raises EngineError."""
    config = CodecConfig.from_json(checkpoint.read_json(folder / "config.json"))
    tensors = {}
    for path in set(checkpoint.find_tensors(folder).values()):
        with checkpoint.opened(path) as file:
            names = (name for name in file.keys() if name.startswith(PREFIX))  # noqa: SIM118
            tensors.update({name: file.get_tensor(name) for name in names})
    return load_codec(tensors, config, device, dtype)


def _check_tokens(tokenizer: TextTokenizer, config: TtsConfig) -> None:
    ids = [*tokenizer.encode("assistant\n"), tokenizer.im_start, tokenizer.im_end]
    if max(ids) >= config.text_vocab:
        raise EngineError(
            f"the tokenizer has tokens beyond the model's {config.text_vocab}: it is of another"
        )


# --- what it costs ---


def measured_cost(runner: TtsRunner) -> SpeechCost:
    """Measures the cost of steps, codec launches and prefills on this machine, using free slots and
    pages."""
    on_gpu = runner.device.type == "cuda"
    runs = COST_RUNS if on_gpu else CPU_COST_RUNS
    sizes = [size.items for size in runner.step_stage.sizes] or [1, runner.max_batch]
    counts = sorted({min(n, runner.max_batch) for n in sizes})
    steps = [(n, *_paced(_stepping(runner, n), runs)) for n in counts]
    many = min(runner.max_batch, COST_STREAMS if on_gpu else CPU_COST_STREAMS)
    frames = PIECE_FRAMES[-1]
    (one, one_launch), (all_, all_launch) = (
        _paced(_decoding(runner, n, count), runs) for n, count in ((1, 1), (many, frames))
    )
    short, long = (_prefill_ms(runner, rows, runs) for rows in (1, COST_ROWS))
    launch_ms = steps[0][2] + one_launch
    launch_stream_ms = (steps[-1][2] - steps[0][2]) / max(1, counts[-1] - 1)
    launch_stream_ms += (all_launch - one_launch) / max(1, many - 1)
    return SpeechCost(
        # No size is faster than a smaller one, whatever was measured.
        steps=list(zip(counts, accumulate((ms for _, ms, _ in steps), max), strict=True)),
        codec_ms=one,
        codec_frame_ms=max(0.0, all_ - one) / max(1, many * frames - 1),
        prefill_ms=short,
        prefill_row_ms=max(0.0, long - short) / (COST_ROWS - 1),
        launch_ms=launch_ms,
        launch_stream_ms=max(0.0, launch_stream_ms),
    )


def voices_followed(cost: SpeechCost) -> int:
    """Returns how many streams that all speak at once can have a frame every 80 ms, in steps and
    codec launches of the largest size."""
    streams, step_ms = cost.steps[-1]
    sound_ms = cost.codec_ms + (streams - 1) * cost.codec_frame_ms
    return followed(step_ms + sound_ms, streams, 1000 * FRAME_S, LOAD)


def _paced(launch: Callable[[], Launched[object]], runs: int) -> tuple[float, float]:
    """Returns the ms per launch on a busy device, and the host's ms per launch."""
    launch()()
    under_way: deque[Launched[object]] = deque()
    launching = 0.0
    began = perf_counter()
    for _ in range(runs):
        if len(under_way) == 2:
            under_way.popleft()()
        at = perf_counter()
        under_way.append(launch())
        launching += perf_counter() - at
    while under_way:
        under_way.popleft()()
    took = perf_counter() - began
    return 1000 * took / runs, 1000 * launching / runs


def _stepping(runner: TtsRunner, streams: int) -> Callable[[], Launched[object]]:
    position = COST_PAGES * PAGE_SIZE - 1
    for slot in range(1, streams + 1):
        first = 1 + (slot * COST_PAGES) % max(1, runner.pages - COST_PAGES)
        runner.assign(slot, range(first, first + COST_PAGES))
        runner.begin(slot, slot, Sampling())
    steps = [Step(slot, 0, 0, position) for slot in range(1, streams + 1)]
    return lambda: runner.step(steps)


def _decoding(runner: TtsRunner, streams: int, frames: int) -> Callable[[], Launched[object]]:
    pieces = [Piece(slot, 0, frames) for slot in range(1, streams + 1)]
    return lambda: runner.decode(pieces)


def _prefill_ms(runner: TtsRunner, rows: int, runs: int) -> float:
    prompt = Prompt(1, 0, [PromptPosition(0)] * rows)
    times = []
    for _ in range(runs):
        began = perf_counter()
        runner.prefill([prompt])
        runner.synchronize()
        times.append(perf_counter() - began)
    return 1000 * median(times)
