"""Runs the forced aligner in its own thread, beside the recognition thread."""

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import torch
from loguru import logger

from offhook.media.pcm import Pcm
from offhook.pipeline.engines.qwen3_asr.model.aligner import ForcedAligner
from offhook.pipeline.engines.qwen3_asr.model.alignment import AlignmentError
from offhook.pipeline.speech.errors import UnsupportedRequest
from offhook.pipeline.speech.recognizer import Word

Command = Callable[[], None]


class WordTimes:
    """Finds word times of utterances, one after another.

    `submit` runs a command in the engine's thread, where results are delivered and errors raised.
    The backlog is bounded by the audio that a stream may have pending.
    """

    def __init__(
        self, device: torch.device, threads: int, submit: Callable[[Command], None]
    ) -> None:
        self._device = device
        self._submit = submit
        self._aligner: ForcedAligner
        self._thread = ThreadPoolExecutor(
            1, "word-times", initializer=self._begin, initargs=(threads,)
        )

    def _begin(self, threads: int) -> None:
        torch.set_num_threads(threads)
        if self._device.type == "cuda":
            torch.cuda.set_stream(torch.cuda.Stream(self._device))

    def load(self, folder: Path, dtype: torch.dtype) -> None:
        """Loads the aligner and warms it up with the longest utterance. Blocks; raises
        EngineError."""
        self._thread.submit(self._load, folder, dtype).result()

    def _load(self, folder: Path, dtype: torch.dtype) -> None:
        self._aligner = ForcedAligner.load(folder, self._device, dtype)
        if self._device.type == "cuda":
            self._aligner.warm_up()

    def align(
        self, pcm: Pcm, text: str, language: str, told: Callable[[Sequence[Word]], None]
    ) -> None:
        """Starts aligning without blocking; `told` later receives the words, or none if alignment
        fails."""

        def report(aligned: Future[Sequence[Word]]) -> None:
            if not aligned.cancelled():
                self._submit(lambda: told(aligned.result()))

        self._thread.submit(self._words, pcm, text, language).add_done_callback(report)

    async def words_of(self, pcm: Pcm, text: str, language: str) -> tuple[Word, ...]:
        """Returns the words of a known text with their times, once those asked for before are
        done. Raises UnsupportedRequest for what cannot be aligned."""
        try:
            return await asyncio.wrap_future(
                self._thread.submit(lambda: self._aligner.align(pcm, text, language))
            )
        except AlignmentError as error:
            raise UnsupportedRequest(str(error)) from error

    def _words(self, pcm: Pcm, text: str, language: str) -> Sequence[Word]:
        try:
            return self._aligner.align(pcm, text, language)
        except AlignmentError as error:
            logger.warning("no word times: {}", error)
            return ()

    def close(self) -> None:
        self._thread.shutdown(wait=False, cancel_futures=True)
