"""The Pipecat pipeline of one call: the leg, the recognizer, the agent and its voice."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from pipecat.frames.frames import (
    ControlFrame,
    Frame,
    LLMContextFrame,
    UserIdleTimeoutUpdateFrame,
)
from pipecat.pipeline.pipeline import Pipeline
from pipecat.pipeline.worker import PipelineParams, PipelineWorker
from pipecat.processors.aggregators.llm_context import LLMContext
from pipecat.processors.aggregators.llm_response_universal import (
    AssistantTurnStoppedMessage,
    LLMAssistantAggregator,
    LLMContextAggregatorPair,
    LLMUserAggregator,
    LLMUserAggregatorParams,
)
from pipecat.processors.frame_processor import FrameDirection, FrameProcessor
from pipecat.processors.frameworks.rtvi import RTVIProcessor
from pipecat.processors.frameworks.rtvi.models import ClientMessage
from pipecat.turns.user_turn_strategies import ExternalUserTurnStrategies

from offhook.media.leg import Leg
from offhook.media.pcm import RATE_IN, RATE_OUT
from offhook.pipeline.conversation.call.agent import Agent, Engines
from offhook.pipeline.conversation.call.agent_slot_io import AgentBeginsFrame, AgentSlot
from offhook.pipeline.conversation.call.followed_language import FollowedLanguage
from offhook.pipeline.conversation.events import CallerTyped
from offhook.pipeline.conversation.rtvi_io import PushesSeenOnce, Rtvi, with_functions
from offhook.pipeline.conversation.services_io import OffhookSTT, OffhookTTS
from offhook.pipeline.conversation.transport_io import LegTransport
from offhook.pipeline.conversation.turns.user_turn_io import UserTurnController

CALL_REQUEST = "call"
"""Type of the RTVI client-message that is answered with the call's details."""


@dataclass
class AgentChangeFrame(ControlFrame):
    """The agent's part ends here: behind it another one continues the call."""

    successor: Callable[[], Awaitable[Any]] = field(kw_only=True)
    in_place: asyncio.Event = field(default_factory=asyncio.Event, init=False)
    """Set when the other one has the place, and the one before is gone."""
    interruptible: bool = field(default=False, init=False)


class StandbyGate(FrameProcessor):
    """Behind a fallback: what asks for an answer from downstream, such as a tool's result, goes to
    the agent first, which passes it on if the fallback is to answer."""

    def __init__(self, agent: FrameProcessor) -> None:
        super().__init__()
        self._agent = agent

    async def process_frame(self, frame: Frame, direction: FrameDirection) -> None:
        await super().process_frame(frame, direction)
        if isinstance(frame, LLMContextFrame) and direction is FrameDirection.UPSTREAM:
            await self._agent.queue_frame(frame, direction)
        else:
            await self.push_frame(frame, direction)


def _processors(agent: Agent) -> list[FrameProcessor]:
    """Return the agent, and its fallback if that is a processor."""
    if agent.standby is None:
        return [agent.processor]
    return [agent.processor, agent.standby, StandbyGate(agent.processor)]


def _aggregators(
    context: LLMContext, idle_s: float
) -> tuple[LLMUserAggregator, LLMAssistantAggregator]:
    """Return what adds the words of both sides to the context."""
    pair = LLMContextAggregatorPair(
        context,
        user_params=LLMUserAggregatorParams(
            user_turn_strategies=ExternalUserTurnStrategies(enable_interruptions=False),
            user_idle_timeout=idle_s,
            empty_user_turn=None,
        ),
    )
    return pair.user(), pair.assistant()


class CallPipelineListener:
    """Receives what happens in a call's pipeline."""

    async def on_connected(self) -> None:
        """The line is up, and the pipeline too."""
        raise NotImplementedError

    def on_over(self) -> None:
        """The line has closed, or the pipeline has ended."""
        raise NotImplementedError

    def on_agent_change(self, change: AgentChangeFrame) -> None:
        """What the agent has said before the frame was heard."""
        raise NotImplementedError

    async def on_idle(self) -> None:
        """Nobody has spoken for as long as was asked for."""
        raise NotImplementedError

    async def on_reply(self, text: str, cut: bool) -> None:
        """A reply was heard, or what there is of one that was interrupted."""
        raise NotImplementedError

    def on_pause(self, text: str) -> None:
        """The caller's words so far may be the turn; none: the caller goes on."""
        raise NotImplementedError

    def on_unspoken(self, text: str, begun: bool) -> None:
        """The voice has made no sound of a text, see `OffhookTTS`."""
        raise NotImplementedError

    def about(self) -> dict[str, Any]:
        """Return the details of the call that the client may see."""
        raise NotImplementedError


class CallPipeline:
    """The processors of a call and the worker that runs them."""

    def __init__(
        self,
        leg: Leg,
        hearing: UserTurnController,
        transport: LegTransport,
        context: LLMContext,
        listener: CallPipelineListener,
        *,
        agent: Agent,
        engines: Engines,
        language: FollowedLanguage,
        idle_s: float,
        tracing: bool,
    ) -> None:
        """`idle_s` are the seconds of silence before `on_idle`; 0: it is not called."""
        direction = agent.direction
        self._listener = listener
        transport.output().reply = hearing.reply
        self.stt = OffhookSTT(hearing, direction, listener.on_pause)
        self.voice = OffhookTTS(
            *(engines.synthesizer, hearing, engines.speaking, listener.on_unspoken),
            lexicon=engines.lexicon,
        )
        language.voice = self.voice
        processors = _processors(agent)
        self._slot: AgentSlot | None = None
        """The agent's place; a call that a program directs has none."""
        middle: list[FrameProcessor]
        if direction is None:
            self._slot = AgentSlot(processors)
            middle = [self._slot, self.voice]
        else:
            middle = [direction.gate, *processors, direction.text, self.voice, direction.audio]
        user, assistant = _aggregators(context, idle_s)
        rtvi = None
        if leg.carries_messages:
            typed = partial(_note_typed, leg, hearing, language)
            rtvi = Rtvi(leg.send_message, hearing.agent.cut_by_typing, typed)
        processors = [transport.input(), self.stt, user, *middle, transport.output(), assistant]
        self.worker = PipelineWorker(
            Pipeline(processors),
            params=PipelineParams(
                audio_in_sample_rate=RATE_IN,
                audio_out_sample_rate=RATE_OUT,
                enable_usage_metrics=direction is not None,
            ),
            enable_turn_tracking=tracing,
            enable_tracing=tracing,
            conversation_id=leg.call_id,
            enable_rtvi=rtvi is not None,
            rtvi_processor=rtvi,
            rtvi_observer_params=None if leg.shown_to is None else with_functions(),
            idle_timeout_secs=None,
            cancel_runner_on_idle_timeout=False,
        )
        self._report_to(listener, transport, user, assistant)
        if rtvi is not None:
            rtvi.add_event_handler("on_client_message", self._answer_client)
            if not tracing:  # whose observers want to know more
                self.worker._observer = PushesSeenOnce(observers=self.worker._observer._observers)

    def _report_to(
        self,
        listener: CallPipelineListener,
        transport: LegTransport,
        user: LLMUserAggregator,
        assistant: LLMAssistantAggregator,
    ) -> None:
        worker = self.worker

        @transport.event_handler("on_client_connected")
        async def on_client_connected(transport: LegTransport, leg: Leg) -> None:
            await listener.on_connected()

        @transport.event_handler("on_client_disconnected")
        async def on_client_disconnected(transport: LegTransport, leg: Leg) -> None:
            listener.on_over()

        @worker.event_handler("on_pipeline_finished")
        async def on_pipeline_finished(worker: PipelineWorker, frame: Any) -> None:
            listener.on_over()

        worker.set_reached_downstream_filter((AgentChangeFrame,))

        @worker.event_handler("on_frame_reached_downstream")
        async def on_frame_reached_downstream(
            worker: PipelineWorker, frame: AgentChangeFrame
        ) -> None:
            listener.on_agent_change(frame)

        @user.event_handler("on_user_turn_idle")
        async def on_user_turn_idle(aggregator: Any) -> None:
            await listener.on_idle()

        @assistant.event_handler("on_assistant_turn_stopped")
        async def on_assistant_turn_stopped(
            aggregator: Any, message: AssistantTurnStoppedMessage
        ) -> None:
            await listener.on_reply(message.content, message.interrupted)

    async def _answer_client(self, rtvi: RTVIProcessor, message: ClientMessage) -> None:
        """Answer a request of the client; without an answer it would time out there."""
        if message.type == CALL_REQUEST:
            await rtvi.send_server_response(message, self._listener.about())
        else:
            there = f"there is only {CALL_REQUEST!r}"
            error = f"{message.type[:80]!r} is not a request of this server: {there}"
            await rtvi.send_error_response(message, error)

    async def wait_for_silence(self, idle_s: float) -> None:
        """Have `on_idle` called after so many seconds of silence from now on; 0: never."""
        await self.worker.queue_frame(UserIdleTimeoutUpdateFrame(idle_s))

    # --- another agent ---

    def hold_agent(self) -> None:
        """Keep turns from the agent, until another one begins."""
        self._place.hold()

    async def change_voice(self, engines: Engines) -> None:
        """Have what follows spoken as these say."""
        await self.voice.drop_ahead()
        self.voice.options = engines.speaking
        self.voice.speaker.lexicon = engines.lexicon

    async def replace_agent(self, agent: Agent, idle_s: float, change: AgentChangeFrame) -> None:
        """Put another agent into the place of the one before; `idle_s` as above."""
        await self._place.replace(_processors(agent))
        change.in_place.set()
        await self.wait_for_silence(idle_s)

    async def begin_agent(
        self, context: LLMContext, *, greets: bool, greeting_answers: bool = False
    ) -> bool:
        """Have the agent begin that has taken the place; return whether it is to greet the caller,
        since no turn was kept from it, or since with `greeting_answers` that is the answer."""
        begins = AgentBeginsFrame(context=context, greets=greets, greeting_answers=greeting_answers)
        self.stt.queue(begins)
        await begins.reached.wait()
        return begins.greets and (greeting_answers or not begins.answers)

    async def begin_successor(self, context: LLMContext, agent: Agent) -> bool:
        """The same of an agent that has taken the place of another one: a greeting that nobody may
        interrupt is said whatever the caller has said before."""
        whatever = not agent.greeting_interruptible
        return await self.begin_agent(
            context, greets=bool(agent.greeting), greeting_answers=whatever
        )

    @property
    def _place(self) -> AgentSlot:
        assert self._slot is not None
        return self._slot


def _note_typed(
    leg: Leg, hearing: UserTurnController, language: FollowedLanguage, text: str
) -> None:
    """Notes what the caller has typed."""
    hearing.emit(CallerTyped(leg.heard_ms, text))
    language.turn(text)
