"""One call: a leg, its ears, an agent and a voice, put together as a Pipecat pipeline."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from time import monotonic
from typing import Any

from loguru import logger
from pipecat.frames.frames import EndFrame, LLMRunFrame
from pipecat.pipeline.pipeline import Pipeline
from pipecat.pipeline.worker import PipelineParams, PipelineWorker
from pipecat.processors.aggregators.llm_context import LLMContext
from pipecat.processors.aggregators.llm_response_universal import (
    AssistantTurnStoppedMessage,
    LLMContextAggregatorPair,
    LLMUserAggregatorParams,
)
from pipecat.processors.frame_processor import FrameProcessor
from pipecat.transports.base_transport import TransportParams
from pipecat.turns.user_turn_strategies import ExternalUserTurnStrategies
from pipecat.workers.runner import WorkerRunner

from offhook.media.leg import Leg
from offhook.media.pcm import RATE_IN, RATE_OUT
from offhook.pipeline.events import (
    AgentTurn,
    CallEnded,
    CallerTurn,
    CallStarted,
    Event,
    Interrupted,
)
from offhook.pipeline.hearing_io import Ears, Hearing
from offhook.pipeline.recognizer import DEFAULT_OPTIONS, Recognizer, StreamOptions
from offhook.pipeline.services_io import OffhookSTT, OffhookTTS
from offhook.pipeline.synthesizer import DEFAULT_VOICE, Synthesizer, VoiceOptions
from offhook.pipeline.transport_io import LegTransport

IDLE_SECONDS = 12
"""Silence from both sides after which the agent is told that the caller says nothing."""

CONTEXT_MESSAGES = 400
"""A conversation longer than this forgets its older half: an endless call must not grow without
bound, and no model answers in time with so much to read."""


@dataclass
class Agent:
    """What answers: a Pipecat LLM service or any processor that takes its place."""

    name: str
    processor: FrameProcessor
    tools: list[Any] = field(default_factory=list)
    on_cut: Callable[[str], None] = lambda heard: None
    """Told which of its words were heard when it was interrupted."""
    on_idle: Callable[[], Awaitable[None]] | None = None
    """Called when nobody has spoken for a while."""


@dataclass
class Engines:
    """What all calls of the process share."""

    ears: Ears
    recognizer: Recognizer
    synthesizer: Synthesizer
    hearing: StreamOptions = DEFAULT_OPTIONS
    speaking: VoiceOptions = DEFAULT_VOICE

    async def close(self) -> None:
        await self.recognizer.close()
        await self.synthesizer.close()
        await self.ears.smart_turn.close()
        await self.ears.vad.close()


class Call:
    """Runs from the answer to the goodbye. `run` returns when all is torn down."""

    def __init__(
        self,
        leg: Leg,
        engines: Engines,
        make_agent: Callable[["Call"], Agent],
        limit_seconds: float | None = None,
        tracing: bool = False,
    ) -> None:
        self.leg = leg
        self.listeners: list[Callable[[Event], None]] = []
        self.end_reason = "the agent hung up"
        self._engines = engines
        self._limit_seconds = limit_seconds
        self._tracing = tracing
        self._agent = make_agent(self)
        self._turn = 0
        self._finished = asyncio.Event()
        self.context = LLMContext(tools=self._agent.tools) if self._agent.tools else LLMContext()
        self._worker: PipelineWorker

    def emit(self, event: Event) -> None:
        if isinstance(event, CallerTurn):
            self._turn = event.turn
        elif isinstance(event, Interrupted):
            self._agent.on_cut(event.heard)
        for listener in self.listeners:
            listener(event)

    async def hang_up(self) -> None:
        """The agent ends the call: what it has said so far is still heard."""
        await self._worker.queue_frame(EndFrame())

    async def run(self) -> None:
        engines = self._engines
        stream = await engines.recognizer.open(engines.hearing)
        hearing = Hearing(self.leg, engines.ears, stream, self.emit)
        self._worker = self._build(hearing)
        names = self._agent.name, engines.recognizer.name, engines.synthesizer.name
        self.emit(CallStarted(self.leg.heard_ms, *names))
        # A runner of its own: Pipecat's runner keeps what it knows of every worker it ever had.
        runner = WorkerRunner(handle_sigint=False)
        running = asyncio.create_task(runner.run(auto_end=False), name=f"run {self.leg.call_id}")
        try:
            await runner.add_workers(self._worker)
            async with asyncio.timeout(self._limit_seconds):
                await self._finished.wait()
        except TimeoutError:
            self.end_reason = "the call reached its longest duration"
        finally:
            await hearing.close()
            statistics = self.leg.statistics().as_dict()
            reason = self.leg.closed or self.end_reason
            # While the line is up, so that the caller's program is told why it ends.
            self.emit(CallEnded(self.leg.heard_ms, reason, statistics))
            await self.leg.hang_up(self.end_reason)
            await self._worker.cancel()
            await runner.end()
            await running

    def _build(self, hearing: Hearing) -> PipelineWorker:
        leg, engines = self.leg, self._engines
        transport = LegTransport(leg, TransportParams(audio_out_enabled=True))
        output = transport.output()
        output.reply = hearing.reply
        output.on_first_packet = lambda: self._first_packet(hearing)
        idle = IDLE_SECONDS if self._agent.on_idle is not None else 0
        user, assistant = LLMContextAggregatorPair(
            self.context,
            user_params=LLMUserAggregatorParams(
                user_turn_strategies=ExternalUserTurnStrategies(enable_interruptions=False),
                user_idle_timeout=idle,
                empty_user_turn=None,
            ),
        )
        pipeline = Pipeline(
            [
                transport.input(),
                OffhookSTT(hearing),
                user,
                self._agent.processor,
                OffhookTTS(engines.synthesizer, hearing, engines.speaking),
                output,
                assistant,
            ]
        )
        worker = PipelineWorker(
            pipeline,
            params=PipelineParams(audio_in_sample_rate=RATE_IN, audio_out_sample_rate=RATE_OUT),
            enable_turn_tracking=self._tracing,
            enable_tracing=self._tracing,
            conversation_id=leg.call_id,
            idle_timeout_secs=None,
            cancel_runner_on_idle_timeout=False,
        )

        @transport.event_handler("on_client_connected")
        async def on_client_connected(transport: LegTransport, leg: Leg) -> None:
            await worker.queue_frame(LLMRunFrame())

        @transport.event_handler("on_client_disconnected")
        async def on_client_disconnected(transport: LegTransport, leg: Leg) -> None:
            self._finished.set()

        @worker.event_handler("on_pipeline_finished")
        async def on_pipeline_finished(worker: PipelineWorker, frame: Any) -> None:
            self._finished.set()

        @user.event_handler("on_user_turn_idle")
        async def on_user_turn_idle(aggregator: Any) -> None:
            if self._agent.on_idle is not None:
                await self._agent.on_idle()

        @assistant.event_handler("on_assistant_turn_stopped")
        async def on_assistant_turn_stopped(
            aggregator: Any, message: AssistantTurnStoppedMessage
        ) -> None:
            if len(self.context.messages) > CONTEXT_MESSAGES:
                self.context.set_messages(_newer_half(self.context.messages))
            if message.content:
                text, cut = message.content, message.interrupted
                self.emit(AgentTurn(leg.heard_ms, self._turn, text, cut))

        return worker

    def _first_packet(self, hearing: Hearing) -> None:
        """The first sound of a reply goes out: the turn's latency is known."""
        watch = hearing.watch
        if watch.turn and not watch.complete:
            watch.stamp("first_packet", monotonic())
            latency = watch.latency(self.leg.heard_ms)
            logger.debug("{}: turn {} in {} ms", self.leg.call_id, watch.turn, latency.total_ms)
            self.emit(latency)


def _newer_half(messages: list[Any]) -> list[Any]:
    """From a turn of the caller on: a tool's result must not be parted from its call."""
    half = messages[len(messages) // 2 :]
    starts = (i for i, m in enumerate(half) if isinstance(m, dict) and m.get("role") == "user")
    return half[next(starts, 0) :]
