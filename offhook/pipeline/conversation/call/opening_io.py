"""How a call begins: with a greeting, with what it continues, or once it is known who answered."""

from typing import TYPE_CHECKING

from pipecat.frames.frames import LLMRunFrame
from pipecat.processors.aggregators.llm_context import LLMContext

from offhook.media.leg import Leg
from offhook.media.tasks_io import TaskSet
from offhook.pipeline.conversation.answering.policy import AnswerPolicy
from offhook.pipeline.conversation.call.announcements_io import Announcements
from offhook.pipeline.conversation.call.history import History
from offhook.pipeline.conversation.sentences import Occasion
from offhook.pipeline.speech.vad.vad_io import VadBatch

if TYPE_CHECKING:
    from offhook.pipeline.conversation.call.answer_watch_io import AnswerWatch, Watched


class Opening:
    """Of one call."""

    def __init__(
        self,
        leg: Leg,
        tasks: TaskSet,
        announcements: Announcements,
        history: History,
        occasion: Occasion,
    ) -> None:
        """`tasks` are those of the call. `occasion` is what the sentence with which a conversation
        goes on is about."""
        self.watch: AnswerWatch | None = None
        """Finds out who has answered; None: that is not asked."""
        self._leg, self._tasks, self._announcements = leg, tasks, announcements
        self._history, self._occasion = history, occasion

    @property
    def waits(self) -> bool:
        """Whether the agent waits until it is known who has answered."""
        return self.watch is not None and self.watch.waits

    def watch_answer(self, call: "Watched", vad: VadBatch, policy: AnswerPolicy) -> None:
        """Have the agent wait until that is known. To be called before the call runs."""
        from offhook.pipeline.conversation.call.answer_watch_io import AnswerWatch

        self.watch = AnswerWatch(call, self._announcements, vad, policy, self._tasks)

    @property
    def _context(self) -> LLMContext:
        return self._history.context

    async def begin(self) -> None:
        """Begin: the line is up, and the pipeline too."""
        agent, messages = self._announcements.agent, self._history.transcript()
        is_answered = bool(messages) and messages[-1][0] == "assistant"
        is_returned = self._occasion is Occasion.NOT_TRANSFERRED
        if is_returned and agent.on_returned is not None:
            await agent.on_returned()
        elif is_answered or is_returned:
            self._announcements.excuse(self._occasion)
        elif self.watch is not None:
            self._tasks.spawn(self.watch.run(), f"who answers {self._leg.call_id}")
        elif (agent.greeting or agent.notice) and not messages:
            begin = self._announcements.begin(self._context)
            self._tasks.spawn(begin, f"greet {self._leg.call_id}")
        else:  # the agent greets the caller, or answers what is unanswered
            await self._announcements.pipeline.worker.queue_frame(LLMRunFrame())
