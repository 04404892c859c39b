"""Answers a recognizer's streams whether turns are over: on the GPU that has their audio anyway, in
a thread and on a CUDA stream beside those of the recognition."""

from collections.abc import Hashable, Sequence
from functools import partial

import numpy as np
import torch
from loguru import logger
from torch import Tensor

from offhook.media.pcm import Pcm
from offhook.pipeline.engines.shared.graphs import Fields, Size, Stage, capture_all
from offhook.pipeline.engines.shared.model.smart_turn import SmartTurnModel, fill
from offhook.pipeline.speech.vad.smart_turn_io import SAMPLES, TurnQuestions, model_file

BATCH_LADDER = (1, 2, 4, 8, 16)
"""Captured sizes. Larger ones take more memory for the scores of attention, 15 MB a question, and
hardly less time a question."""
MAX_WAITING = 64
"""Maximum waiting streams, four batches; a further question gets no answer, and the turn is judged
without it."""
SAMPLES_PER_INT = 4
"""Samples in an integer of a stage."""


class TurnJudge(TurnQuestions):
    """Smart Turn on a device. `load` comes first."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        super().__init__(BATCH_LADDER[-1], MAX_WAITING, partial(_begin, device))
        self._model: SmartTurnModel
        self._stage: Stage

    def load(self) -> None:
        """Loads and captures the model. Blocks; raises OSError, ValueError, EngineError."""
        self._thread.submit(self._load).result()

    async def probability(self, pcm: Pcm, call: Hashable) -> float | None:
        try:
            return await super().probability(pcm, call)
        except Exception as error:  # whatever happens, somebody waits for an answer
            logger.error("the end-of-turn model failed: {}", error)
            return None

    @torch.inference_mode()
    def _load(self) -> None:
        self._model = SmartTurnModel(self._device)
        on_gpu = self._device.type == "cuda"
        sizes = [Size(count) for count in BATCH_LADDER] if on_gpu else []
        self._stage = Stage("end of turn", self._run, _layout, sizes, self._device)
        stream = torch.cuda.current_stream() if on_gpu else None
        capture_all([(self._stage, stream)], True, lambda fraction, doing: None)

    def _run(self, fields: Fields, size: Size) -> Tensor:
        pcm = fields["pcm"].view(torch.int16).view(size.items, SAMPLES)
        return self._model.probabilities(pcm)

    @torch.inference_mode()
    def judge_all(self, questions: Sequence[Pcm]) -> Sequence[float]:
        size = self._stage.fit(Size(len(questions)))
        pcm = self._stage.fields(size)["pcm"].view(np.int16).reshape(size.items, SAMPLES)
        fill(pcm, questions)
        found: list[float] = self._stage.launch(size)[: len(questions)].tolist()
        return found


def _layout(size: Size) -> dict[str, int]:
    return {"pcm": size.items * SAMPLES // SAMPLES_PER_INT}


def _begin(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.set_stream(torch.cuda.Stream(device))
    else:
        torch.set_num_threads(1)


def turn_judge(device: torch.device) -> TurnJudge | None:
    """Returns the judge of a recognizer on this device, not loaded yet. None on a CPU, where it
    would take more time than in the edge, and where the model is not installed."""
    if device.type != "cuda":
        return None
    try:
        model_file()
    except OSError as error:
        logger.info("edges judge by themselves whether turns are over: {}", error)
        return None
    return TurnJudge(device)
