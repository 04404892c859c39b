"""Loads Pocket TTS, measures what it costs here and warms up a `PocketEngine`."""

from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from statistics import median
from time import perf_counter

import torch
from loguru import logger

from offhook.pipeline.engines.hub import hub_io
from offhook.pipeline.engines.pocket.engine import STREAMS_PER_ROW, PocketEngine
from offhook.pipeline.engines.pocket.messages import PocketEvent
from offhook.pipeline.engines.pocket.model.checkpoint import load_model
from offhook.pipeline.engines.pocket.model.config import FRAMES_PER_S, config_named
from offhook.pipeline.engines.pocket.model.model import PocketModel
from offhook.pipeline.engines.pocket.model.voices import VoiceState
from offhook.pipeline.engines.pocket.runner import PocketRunner
from offhook.pipeline.engines.pocket.spec import REPOSITORY, files
from offhook.pipeline.engines.shared.asr_models import Precision
from offhook.pipeline.engines.shared.device_io import claim_thread
from offhook.pipeline.engines.shared.model.int8 import Instructions, instructions
from offhook.pipeline.engines.shared.progress import Bar
from offhook.pipeline.engines.shared.tts_models import TtsModels
from offhook.pipeline.speech.errors import EngineError
from offhook.pipeline.speech.recognizer import Progress

PRECISIONS: tuple[Precision, ...] = ("auto", "fp32", "int8")
LOAD = 0.7
"""Share of the time that a CPU may spend on replies that all speak at once."""
MOST_ROWS = 32
"""Maximum live replies that speak at once."""
FILE_ROWS = 1
COST_ROWS = (1, 2, 4, 8)
"""Rows of the steps that are timed."""
COST_RUNS = 3
COST_TOKENS = 20

Cpu = torch.device("cpu")


class PocketLoading:
    """Loads what `TtsModels` names. `load` runs in the inference thread."""

    model: PocketModel

    def __init__(self, models: TtsModels, progress: Progress) -> None:
        """Raises EngineError if the device or the precision is not supported."""
        if models.device == "cuda":
            raise EngineError("Pocket TTS runs on a CPU: set the device to cpu or auto")
        if models.precision not in PRECISIONS:
            known = ", ".join(PRECISIONS)
            raise EngineError(f"Pocket TTS has the precisions {known}, not {models.precision}")
        self.streams: int | None = None
        """Replies that may be open, once that is known."""
        self._models = models
        self._bar = Bar(progress, 1)

    def load(
        self, tell: Callable[[PocketEvent], None], fail: Callable[[int, EngineError], None]
    ) -> PocketEngine[VoiceState]:
        """Loads and warms up the model. All memory is allocated before the first
        reply. Raises EngineError."""
        claim_thread(Cpu)
        int8 = int8_of(self._models.precision)
        self.model = model = self._read(int8)
        probe = self._runner(COST_ROWS[-1])
        probe.warm_up(self._bar.warming())
        measured = measured_steps(probe, model)
        del probe
        live = affordable_rows(measured)
        self.streams = STREAMS_PER_ROW * live
        rows = live + FILE_ROWS
        by = f" in int8 by {int8.value}" if int8 else ""
        logger.info(
            "{}{}: {} replies at once, {:.1f} ms of CPU a frame of 80 ms alone, {:.1f} ms of {}",
            *(self._models.model, by, live, measured[0][1], measured[-1][1], measured[-1][0]),
        )
        steps = all_steps(measured, rows)
        engine = PocketEngine(self._runner(rows), live, steps, tell, fail)
        return engine

    def _read(self, int8: Instructions | None) -> PocketModel:
        """Raises EngineError."""
        name = self._models.model
        folder = found(name, self._bar.reading(name), self._models.hub)
        return load_model(folder, Cpu, int8)

    def _runner(self, rows: int) -> PocketRunner:
        return PocketRunner(self.model, rows)


def found(
    model: str, progress: Callable[[int, int], None] = lambda done, total: None, hub: str = ""
) -> Path:
    """Returns the folder of a model: one of CONFIGS, with "@" and a revision if wanted, or a folder
    on this machine. Downloads what is not cached. Raises EngineError."""
    folder = Path(model).expanduser()
    if folder.is_dir():
        return folder
    config_named(model)
    name, _, revision = model.partition("@")
    repository = f"{REPOSITORY}@{revision}" if revision else REPOSITORY
    return hub_io.find(repository, progress, hub, files(name)) / f"languages/{name}"


def int8_of(precision: Precision) -> Instructions | None:
    return None if precision == "fp32" else instructions()


def measured_steps(runner: PocketRunner, model: PocketModel) -> list[tuple[int, float]]:
    """Returns pairs (rows in a step, ms) for some numbers of rows, measured on this machine."""
    voice, tokens = model.voice(), [0] * COST_TOKENS
    for row in range(runner.rows):
        runner.begin(row, voice, tokens, row, model.config.temperature)
    steps, most = [], 0.0
    for rows in COST_ROWS:
        times = []
        for _ in range(COST_RUNS + 1):
            began = perf_counter()
            runner.step(range(rows))
            times.append(perf_counter() - began)
        most = max(most, 1000 * median(times[1:]))  # no more rows are faster than fewer
        steps.append((rows, most))
    return steps


def affordable_rows(measured: Sequence[tuple[int, float]]) -> int:
    """Returns the replies that can speak at once: 1 at least."""
    frame_ms = 1000 / FRAMES_PER_S
    if measured[0][1] > frame_ms:
        logger.warning("this CPU is slower than speech: replies will have holes")
    for rows in range(MOST_ROWS, 0, -1):
        if _step_ms(measured, rows) <= LOAD * frame_ms:
            return rows
    return 1


def all_steps(measured: Sequence[tuple[int, float]], rows: int) -> list[tuple[int, float]]:
    """Returns pairs (rows in a step, ms) for all numbers of rows."""
    return [(count, _step_ms(measured, count)) for count in range(1, rows + 1)]


def _step_ms(measured: Sequence[tuple[int, float]], rows: int) -> float:
    """Interpolates, and continues the line from the first to the last beyond."""
    for (few, short), (many, long) in pairwise(measured):
        if few <= rows <= many:
            return short + (long - short) * (rows - few) / (many - few)
    (first, least), (last, most) = measured[0], measured[-1]
    return most + (most - least) / (last - first) * (rows - last)
