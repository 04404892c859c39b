"""A Pipecat pipeline and all its tasks, from its start to its end, however early that comes.

Pipecat cleans a pipeline up that is cancelled before its StartFrame has come through, all its
processors side by side: one may be started by another that is still to be cleaned up, and its tasks
then have nobody to end them. Here they have.
"""

import asyncio
from collections.abc import Callable, Iterable
from typing import Any

from pipecat.pipeline.worker import PipelineWorker
from pipecat.processors.frame_processor import FrameProcessor
from pipecat.utils.base_object import BaseObject
from pipecat.workers.runner import WorkerRunner

from offhook.media.tasks_io import end_all

CANCEL_S = 5.0
"""Seconds for a cancelled pipeline to end by itself. One that has a processor which holds it up is
then ended task by task."""


class RunningPipeline:
    """One pipeline, which runs from `start` until it ends by itself or is closed."""

    def __init__(self, worker: PipelineWorker, name: str, *others: BaseObject) -> None:
        """`others` have event handlers beside those of the pipeline's processors."""
        self._worker, self._name = worker, name
        self._others = others
        # A separate runner per call: Pipecat's runner keeps state of every worker it ever ran.
        self._runner = WorkerRunner(handle_sigint=False, check_dangling_tasks=False)
        self._running: asyncio.Task[None] | None = None

    async def start(self, ended: Callable[[], None]) -> None:
        """`ended` is called when the pipeline has; it may never have started."""
        await self._runner.add_workers(self._worker)
        self._running = asyncio.create_task(self._runner.run(), name=f"run {self._name}")
        self._running.add_done_callback(lambda running: ended())

    async def close(self) -> None:
        """Cancel the pipeline, and wait until all its tasks have ended."""
        if self._running is not None:
            await self._worker.cancel()
            await asyncio.wait((self._running,), timeout=CANCEL_S)
        await end_all(self._tasks)

    def _tasks(self) -> Iterable[asyncio.Task[Any]]:
        """Return the tasks of the pipeline's processors, and those of event handlers."""
        if self._running is not None:
            yield self._running
        yield from self._runner.task_manager.current_tasks()
        processors = self._worker._iter_processors(self._worker.pipeline, FrameProcessor)
        for owner in (self._worker, *self._others, *processors):
            for _, task in owner._event_tasks:
                yield task
