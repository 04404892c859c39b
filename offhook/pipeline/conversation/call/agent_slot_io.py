"""The place of a call's agent in its pipeline, which another agent may take while the call goes
on."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field

from pipecat.frames.frames import (
    CancelFrame,
    ControlFrame,
    EndFrame,
    Frame,
    LLMContextFrame,
    StartFrame,
)
from pipecat.pipeline.pipeline import Pipeline, PipelineSink
from pipecat.processors.aggregators.llm_context import LLMContext
from pipecat.processors.frame_processor import FrameDirection, FrameProcessor

from offhook.media.tasks_io import TaskSet


@dataclass
class AgentBeginsFrame(ControlFrame):
    """The agent that has taken a slot begins: with an answer to the context, unless it greets the
    caller and no turn was kept from it. It stands between the turns before and those behind it."""

    context: LLMContext = field(kw_only=True)
    greets: bool = field(kw_only=True)
    greeting_answers: bool = field(kw_only=True, default=False)
    """Whether the greeting is the answer to a turn that was kept from it."""
    answers: bool = field(default=False, init=False)
    """Whether a turn was kept from it."""
    reached: asyncio.Event = field(default_factory=asyncio.Event, init=False)
    """Set when it has come to the slot."""
    interruptible: bool = field(default=False, init=False)


class AgentSlot(Pipeline):
    """The processors of the agent, as one processor. Those that take their place are started before
    anything reaches them; frames wait for it."""

    def __init__(self, processors: Sequence[FrameProcessor]) -> None:
        super().__init__(processors, sink=PipelineSink(self._leave))
        self._start: StartFrame | None = None
        """With which the pipeline was started."""
        self._replacing: asyncio.Task[None] | None = None
        """The last replacement; None while the first agent is here."""
        self._started = asyncio.Event()
        """Set when the processors that take a place have started."""
        self._holds = self._held_back = False
        """Whether turns are kept from the agent, and whether there was one."""
        self._tasks = TaskSet()
        """Replacements, and processors being cleaned up."""

    def hold(self) -> None:
        """Keep turns from the agent, until an AgentBeginsFrame."""
        self._holds, self._held_back = True, False

    async def replace(self, processors: Sequence[FrameProcessor]) -> None:
        """Put these processors into the place of those before, which are cleaned up; returns when
        they have started. Whatever those before still say is dropped."""
        # A task of its own: cancelled half-way, it would leave processors that nobody ends.
        self._replacing = self._tasks.spawn(self._replace(processors), f"replace {self}")
        await asyncio.shield(self._replacing)

    async def _replace(self, processors: Sequence[FrameProcessor]) -> None:
        assert self._start is not None
        assert self._setup is not None
        before = self._processors[1:-1]
        before[0]._prev = before[-1]._next = None
        self._tasks.spawn(self._cleanup_processors(before), f"clean up {self}")
        self._processors = [self._source, *processors, self._sink]
        self._link_processors()
        self._started.clear()
        await self._setup_processors(processors, self._setup)
        await processors[0].queue_frame(self._start)
        await self._started.wait()

    async def _leave(self, frame: Frame, direction: FrameDirection) -> None:
        if isinstance(frame, StartFrame) and self._replacing is not None:
            self._started.set()  # whoever comes behind the agent has started before
        else:
            await self.push_frame(frame, direction)

    async def process_frame(self, frame: Frame, direction: FrameDirection) -> None:
        if isinstance(frame, StartFrame):
            self._start = frame
        elif isinstance(frame, LLMContextFrame) and self._holds:
            self._held_back = True
            return
        elif isinstance(frame, AgentBeginsFrame):
            self._holds, frame.answers = False, self._held_back
            frame.reached.set()
            if frame.greets and (frame.greeting_answers or not frame.answers):
                return
            frame = LLMContextFrame(frame.context)
        elif isinstance(frame, EndFrame | CancelFrame) and self._replacing is not None:
            await asyncio.wait((self._replacing,))  # one that has not started would not end
        await super().process_frame(frame, direction)

    async def cleanup(self) -> None:
        await super().cleanup()
        await asyncio.gather(*self._tasks, return_exceptions=True)
