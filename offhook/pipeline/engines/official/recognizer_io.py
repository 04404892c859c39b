"""Qwen3-ASR through the official `qwen-asr` package: a reference for our engine, and a fallback.

It runs in its own environment (`make qwen-asr-official`), because the package pins transformers.

It recognizes whole utterances, one at a time on one thread, live ones first. With vLLM installed
(the package's extra `vllm`) it streams like the package: every 2 s all audio so far is recognized
again. With transformers there are no partials.

Known fault of qwen-asr 0.0.6: without flash-attn its encoder does not restrict attention to the 8 s
windows it was trained with, so texts of longer utterances may differ from all others.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from importlib.util import find_spec
from time import monotonic
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
from loguru import logger

from offhook.media.pcm import RATE_IN, Pcm
from offhook.pipeline.engines.hub.hub_io import find
from offhook.pipeline.engines.shared.asr_models import AsrModels
from offhook.pipeline.speech.errors import EngineError, UnsupportedRequest
from offhook.pipeline.speech.recognizer import (
    DEFAULT_OPTIONS,
    Final,
    Partial,
    Progress,
    Recognizer,
    StreamOptions,
    Word,
)
from offhook.pipeline.speech.streams.languages import CODES, NAMES
from offhook.pipeline.speech.streams.priority_semaphore_io import Priority, PrioritySemaphore
from offhook.pipeline.speech.streams.retry import AttemptFailed
from offhook.pipeline.speech.streams.rolling_text import agreement, samples
from offhook.pipeline.speech.streams.transcript import open_tail, polish
from offhook.pipeline.speech.streams.utterance_stream_io import (
    Tell,
    UtteranceStream,
    WholeUtterance,
    known_language,
)

CHUNK_S = 2.0
"""Audio in s between two streaming updates, the package's default."""
MAX_TOKENS = 512
"""Token limit of one utterance; a minute of fast speech has about 300."""
MIN_HEARD_MS = 100
WARM_UP_MS = 500
GPU_MEMORY = 0.6
"""Share of GPU memory that vLLM allocates."""
T = TypeVar("T")
Sound = npt.NDArray[np.float32]


class OfficialRecognizer(Recognizer):
    """The official package as a `Recognizer`. It supports no second model and no precision other
    than bf16; anything else raises EngineError."""

    name = "qwen3-asr-official"
    languages = tuple(NAMES)
    """BCP 47 tags."""

    def __init__(self, models: AsrModels, progress: Progress) -> None:
        if models.final_model or models.precision not in ("auto", "bf16"):
            raise EngineError(f"{self.name} has one model in its own precision, bf16")
        self._models = models
        self._progress = progress
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=self.name)
        self._turns = PrioritySemaphore(1)
        self._model: Any = None

    async def start(self) -> None:
        """Loads the model and warms it up with half a second of silence. Raises EngineError."""
        silence = np.zeros(WARM_UP_MS * RATE_IN // 1000, np.float32)
        try:
            await self._run(self._load)
            await self._run(lambda: self._transcribe(silence, DEFAULT_OPTIONS))
        except AttemptFailed as failed:
            raise EngineError(self.explain(failed)) from failed

    async def open(self, options: StreamOptions = DEFAULT_OPTIONS) -> UtteranceStream:
        if options.language_code and options.language_code not in NAMES:
            raise UnsupportedRequest(
                f"Qwen3-ASR does not know the language {options.language_code!r}"
            )
        if options.words and not self._models.aligner:
            raise UnsupportedRequest(
                "word times need a forced aligner: --aligner Qwen/Qwen3-ForcedAligner"
            )
        return UtteranceStream(self, options)

    @property
    def whole_turns(self) -> bool:
        return not self._streams

    async def close(self) -> None:
        """Closes the engine; the utterance being recognized runs to its end."""
        self._thread.shutdown(wait=False, cancel_futures=True)

    # --- for its streams ---

    async def recognize(
        self, utterance: WholeUtterance, options: StreamOptions, tell: Tell
    ) -> Final:
        """Recognizes one utterance. Raises AttemptFailed."""
        if self._streams and options.live and not options.words:
            return await self._recognize_live(utterance, options, tell)
        await utterance.until_finished()
        if utterance.audio_ms < MIN_HEARD_MS:
            return Final("", utterance.audio_ms, language=known_language("", options.language_code))
        sound = _floats(samples(utterance.pcm))
        async with self._turns.turn(Priority.LIVE if options.live else Priority.FILE):
            started = monotonic()
            final = await self._run(lambda: self._transcribe(sound, options))
        shift = utterance.start * 1000 // RATE_IN
        words = (Word(w.text, w.start_ms + shift, w.end_ms + shift) for w in final.words)
        timing = utterance.final_timing(started)
        return Final(final.text, utterance.audio_ms, tuple(words), final.language, timing=timing)

    def explain(self, failed: AttemptFailed) -> str:
        return f"{self.name}: {failed}"

    async def _recognize_live(
        self, utterance: WholeUtterance, options: StreamOptions, tell: Tell
    ) -> Final:
        """Recognizes one utterance with the package's own streaming. Raises AttemptFailed."""
        language = NAMES[options.language_code] if options.language_code else None
        state = await self._run(
            lambda: self._model.init_streaming_state(
                context=options.context, language=language, chunk_size_sec=CHUNK_S
            )
        )
        last = ""
        step, fed = int(CHUNK_S * RATE_IN) * 2, 0
        while not utterance.is_finished or len(utterance.pcm) - fed >= step:
            if len(utterance.pcm) - fed < step:
                await utterance.news()
                continue
            sound = _floats(samples(utterance.pcm[fed : fed + step]))
            fed = utterance.sent = fed + step
            async with self._turns.turn(Priority.PARTIAL):
                started = monotonic()
                await self._run(partial(self._model.streaming_transcribe, sound, state))
            text = polish(state.text)
            text = text[: len(text) - open_tail(text)]
            timing = utterance.partial_timing(fed, fed, started)
            tell(Partial(text, agreement(last, text), fed // 2 * 1000 // RATE_IN, timing))
            last = text
        sound = _floats(samples(utterance.pcm[fed:]))
        async with self._turns.turn(Priority.LIVE):
            started = monotonic()
            await self._run(partial(self._model.streaming_transcribe, sound, state))
            await self._run(partial(self._model.finish_streaming_transcribe, state))
        code = known_language(CODES.get(state.language, ""), options.language_code)
        timing = utterance.final_timing(started)
        return Final(polish(state.text), utterance.audio_ms, language=code, timing=timing)

    # --- on its thread ---

    async def _run(self, work: Callable[[], T]) -> T:
        """Runs `work` on the model's thread. Raises AttemptFailed."""
        try:
            return await asyncio.get_running_loop().run_in_executor(self._thread, work)
        except (RuntimeError, ValueError, OSError, ImportError) as error:
            raise AttemptFailed(
                " ".join(str(error).split()) or repr(error), hopeless=True
            ) from error

    @property
    def _streams(self) -> bool:
        return bool(self._model.backend == "vllm")

    def _load(self) -> None:
        self._progress(0.1, "importing qwen-asr")
        import torch
        from qwen_asr import Qwen3ASRModel

        device = self._models.device
        if device == "auto":
            device = "cuda" if torch.cuda.is_available() else "cpu"
        dtype = torch.bfloat16 if device == "cuda" else torch.float32
        placed: dict[str, Any] = {"dtype": dtype, "device_map": device}
        models = self._models
        folder = str(find(models.model, hub=models.hub))
        aligner = str(find(models.aligner, hub=models.hub)) if models.aligner else None
        given: dict[str, Any] = {"forced_aligner": aligner, "forced_aligner_kwargs": placed}
        self._progress(0.3, f"loading {self._models.model}")
        if device == "cuda" and find_spec("vllm") is not None:
            given["gpu_memory_utilization"] = GPU_MEMORY
            self._model = Qwen3ASRModel.LLM(folder, max_new_tokens=MAX_TOKENS, **given)
            return
        if device == "cuda" and find_spec("flash_attn") is not None:
            placed["attn_implementation"] = "flash_attention_2"
        else:
            logger.warning(
                "{} runs without flash-attn: texts of utterances over 8 s may differ", self.name
            )
        self._model = Qwen3ASRModel.from_pretrained(
            folder, max_new_tokens=MAX_TOKENS, **given, **placed
        )

    def _transcribe(self, sound: Sound, options: StreamOptions) -> Final:
        """Recognizes a whole utterance; word times are relative to its start."""
        (heard,) = self._model.transcribe(
            (sound, RATE_IN),
            context=options.context,
            language=NAMES[options.language_code] if options.language_code else None,
            return_time_stamps=options.words,
        )
        words = tuple(
            Word(item.text, round(item.start_time * 1000), round(item.end_time * 1000))
            for item in heard.time_stamps or ()
        )
        code = CODES.get(heard.language.partition(",")[0], "")
        audio_ms = len(sound) * 1000 // RATE_IN
        text = polish(heard.text)
        return Final(text, audio_ms, words, known_language(code, options.language_code))


def _floats(pcm: Pcm) -> Sound:
    return pcm.astype(np.float32) / np.float32(32768)
