"""One call: a leg, its user-turn controller, an agent and a voice, as one Pipecat pipeline."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from time import monotonic
from typing import Any, Literal

from loguru import logger
from pipecat.frames.frames import (
    EndFrame,
    LLMRunFrame,
    TTSSpeakFrame,
    UserIdleTimeoutUpdateFrame,
)
from pipecat.pipeline.pipeline import Pipeline
from pipecat.pipeline.worker import PipelineParams, PipelineWorker
from pipecat.processors.aggregators.llm_context import LLMContext
from pipecat.processors.aggregators.llm_response_universal import (
    AssistantTurnStoppedMessage,
    LLMContextAggregatorPair,
    LLMUserAggregatorParams,
)
from pipecat.processors.frame_processor import FrameProcessor
from pipecat.processors.frameworks.rtvi import RTVIProcessor
from pipecat.processors.frameworks.rtvi.models import ClientMessage
from pipecat.transports.base_transport import TransportParams
from pipecat.turns.user_turn_strategies import ExternalUserTurnStrategies
from pipecat.workers.runner import WorkerRunner

from offhook.media.end_reason import End, EndReason
from offhook.media.leg import Leg, LegError
from offhook.media.pcm import RATE_IN, RATE_OUT
from offhook.media.tasks_io import TaskSet
from offhook.pipeline.conversation.agents.agent_faults import Action, Fault, Place
from offhook.pipeline.conversation.call_info import as_dict
from offhook.pipeline.conversation.digits import GatherOptions
from offhook.pipeline.conversation.events import (
    AgentFailed,
    AgentTurn,
    CallEnded,
    CallerTurn,
    CallHeld,
    CallResumed,
    CallStarted,
    CallTransferred,
    Event,
    Interrupted,
    TransferFailed,
)
from offhook.pipeline.conversation.rtvi_io import Rtvi
from offhook.pipeline.conversation.sentences import USUAL_LANGUAGE, Occasion, sentence
from offhook.pipeline.conversation.services_io import OffhookSTT, OffhookTTS
from offhook.pipeline.conversation.transport_io import HeardFrame, LegTransport, TransportListener
from offhook.pipeline.conversation.user_turn_io import TurnDetection, UserTurnController
from offhook.pipeline.speech.recognizer import DEFAULT_OPTIONS, Recognizer, StreamOptions
from offhook.pipeline.speech.synthesizer import DEFAULT_VOICE, Synthesizer, VoiceOptions

CALL_REQUEST = "call"
"""The request of an RTVI client (client-message) that is answered: with what the call is."""
IDLE_S = 12
"""Silence from both sides after which the agent is told that the caller says nothing."""
HOLD_S = 120
"""An agent that keeps a caller on hold longer has forgotten them: the caller is taken back."""
SENTENCE_S = 15
"""A sentence not heard by then is not waited for: the voice has failed, too."""
TRANSFER_ENDS_S = 1
"""A line that closed may have been closed by its transfer, which says so no later than this."""
"""Why a call ended in which something of ours was raised that nothing is there for."""

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
    standby: FrameProcessor | None = None
    """Answers the LLMContextFrames that the processor pushes on instead of answering them."""


@dataclass
class Engines:
    """The speech engines that all calls of a process share."""

    turn_detection: TurnDetection
    recognizer: Recognizer
    synthesizer: Synthesizer
    hearing: StreamOptions = DEFAULT_OPTIONS
    speaking: VoiceOptions = DEFAULT_VOICE

    async def close(self) -> None:
        await self.recognizer.close()
        await self.synthesizer.close()
        await self.turn_detection.smart_turn.close()
        await self.turn_detection.vad.close()


Absence = Literal["held", "on hold", "being transferred"]
"""Why the caller is not there: the far end holds the line, or the agent does, or is leaving."""


class Call(TransportListener):
    """Runs from the answer to the goodbye. `run` returns when all is torn down.

    A transfer ends the agent's part. The line may stay up then, as a bridge between the caller and
    the target; the call lasts as long as the line.
    """

    def __init__(
        self,
        leg: Leg,
        engines: Engines,
        make_agent: Callable[["Call"], Agent],
        limit_s: float | None = None,
        tracing: bool = False,
        sentences: Mapping[Occasion, str] | None = None,
    ) -> None:
        """`sentences`: in place of those of `sentences.SENTENCES`."""
        self.leg = leg
        self.listeners: list[Callable[[Event], None]] = []
        self.end_reason: EndReason = End.AGENT_HUNG_UP
        self._engines = engines
        self._limit_s = limit_s
        self._tracing = tracing
        self._sentences = sentences
        self._agent = make_agent(self)
        self._turn = 0
        self._finished = asyncio.Event()
        """The agent's part is over."""
        self._absences: set[Absence] = set()
        self._transfer: asyncio.Task[LegError | None] | None = None
        self._transferred = False
        self._hold_limit: asyncio.Task[None] | None = None
        self._saying = TaskSet()
        """Sentences that nobody waits for."""
        self.context = LLMContext(tools=self._agent.tools) if self._agent.tools else LLMContext()
        self._hearing: UserTurnController
        self._stt: OffhookSTT
        self._transport: LegTransport
        self._worker: PipelineWorker

    def emit(self, event: Event) -> None:
        if isinstance(event, CallerTurn):
            self._turn = event.turn
        elif isinstance(event, Interrupted):
            self._agent.on_cut(event.heard)
        for listener in self.listeners:
            listener(event)

    def agent_failed(self, fault: Fault, place: Place, action: Action) -> None:
        self.emit(AgentFailed(self.leg.heard_ms, fault, place, action))

    @property
    def away(self) -> bool:
        """Nobody is there: the line is on hold or being transferred."""
        return bool(self._absences)

    # --- what the agent may do with the line ---

    async def hang_up(self, reason: str = "") -> None:
        """The agent ends the call: what it has said so far is still heard."""
        self.end_reason = EndReason.of(reason or self.end_reason)
        await self._worker.queue_frame(EndFrame())

    async def wait_until_heard(self) -> bool:
        """Wait until the caller has heard what the agent has said so far, and say whether its
        present answer had any words. An interruption cancels who waits in a tool of Pipecat's; a
        caller on hold is not waited for."""
        if "on hold" not in self._absences:
            frame = HeardFrame()
            await self._agent.processor.push_frame(frame)
            await frame.heard.wait()
        return self._hearing.reply.written

    def sentence(self, occasion: Occasion) -> str:
        """What to say then, in the language of the voice, else in the one heard last."""
        speaking, hearing = self._engines.speaking, self._engines.hearing
        languages = speaking.language, self._hearing.language, hearing.language, USUAL_LANGUAGE
        return sentence(occasion, next(filter(None, languages)) or "", self._sentences)

    async def say(self, text: str, *, instead: bool = False) -> None:
        """Say a text without asking the agent: after what it has said so far, or `instead` of what
        it is saying or about to say. Returns when the caller has heard it or has interrupted it,
        after SENTENCE_S at the latest."""
        spoken = HeardFrame()
        spoken.interruptible = False  # it tells of the end whatever that is
        if instead:
            self._hearing.interrupt()
            self._stt.queue(TTSSpeakFrame(text))
            self._stt.queue(spoken)
        else:
            await self._agent.processor.push_frame(TTSSpeakFrame(text))
            await self._agent.processor.push_frame(spoken)
        with suppress(TimeoutError):
            async with asyncio.timeout(SENTENCE_S):
                await spoken.heard.wait()

    async def end_with_a_word(self) -> None:
        """Say that the server ends the call, in place of whatever is being said. Who is on hold or
        being transferred is not there to hear it."""
        if not self.away:
            await self.say(self.sentence(Occasion.CLOSING), instead=True)

    def _excuse(self, occasion: Occasion) -> None:
        self._saying.spawn(self.say(self.sentence(occasion)), f"say {occasion}")

    async def transfer(self, target: str) -> None:
        """Hand the caller over to `target`, a number or SIP address, and end the agent's part.
        Raises LegError, which says why not, and the conversation goes on."""
        if self._transfer is not None and not self._transfer.done():
            raise LegError("a transfer is under way")
        # A task of the call's own: what waits for it may be cancelled, the transfer may not.
        self._transfer = asyncio.create_task(
            self._hand_over(target), name=f"transfer {self.leg.call_id}"
        )
        refused = await asyncio.shield(self._transfer)
        if refused is not None:
            raise refused

    async def _hand_over(self, target: str) -> LegError | None:
        self._leave("being transferred")
        try:
            await self.leg.transfer(target)
        except LegError as error:
            self.emit(TransferFailed(self.leg.heard_ms, target, str(error)))
            return error
        finally:
            self._return("being transferred")
        self._transferred = True
        self.end_reason = End.TRANSFERRED + f" to {target}"
        self.emit(CallTransferred(self.leg.heard_ms, target))
        self._finished.set()
        return None

    async def hold(self) -> None:
        """Put the caller on hold, for HOLD_S at most. Raises LegError."""
        if "on hold" in self._absences:
            raise LegError("the caller is on hold already")
        await self.leg.hold()
        self._leave("on hold")
        self.emit(CallHeld(self.leg.heard_ms, "agent"))
        self._hold_limit = asyncio.create_task(self._end_hold(), name=f"hold {self.leg.call_id}")

    async def _end_hold(self) -> None:
        await asyncio.sleep(HOLD_S)
        logger.warning("{}: on hold for {} s: taken back", self.leg.call_id, HOLD_S)
        self._hold_limit = None
        try:
            await self.resume()
        except LegError as error:
            logger.error("{}: x the caller stays on hold: {}", self.leg.call_id, error)

    async def resume(self) -> None:
        """Take the caller back from hold. Raises LegError."""
        if "on hold" not in self._absences:
            raise LegError("the caller is not on hold")
        await self.leg.resume()
        if self._hold_limit is not None:
            self._hold_limit.cancel()
            self._hold_limit = None
        self._return("on hold")
        self.emit(CallResumed(self.leg.heard_ms, "agent"))

    def gather(self, terms: GatherOptions) -> None:
        """How the next keys of the caller make a turn."""
        self._hearing.digits.expect(terms)

    # --- keys, and hold by the far end ---

    def on_key(self, key: str) -> None:
        self._hearing.press(key)

    def on_held(self, held: bool) -> None:
        if held:
            self._leave("held")
            self.emit(CallHeld(self.leg.heard_ms, "caller"))
        else:
            self._return("held")
            self.emit(CallResumed(self.leg.heard_ms, "caller"))

    def _leave(self, why: Absence) -> None:
        self._absences.add(why)
        self._hearing.away = True

    def _return(self, why: Absence) -> None:
        self._absences.discard(why)
        self._hearing.away = bool(self._absences)

    # --- life ---

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        limit = self._limit_s
        deadline = None if limit is None else loop.time() + limit
        await self._converse(deadline)
        if self._transferred:
            try:
                await self._until(self.leg.until_closed(), deadline)
            finally:
                await self._end()

    async def _converse(self, deadline: float | None) -> None:
        """The agent's part."""
        engines = self._engines
        stream = await engines.recognizer.open(engines.hearing)
        hearing = self._hearing = UserTurnController(
            self.leg, engines.turn_detection, stream, self.emit, self._excuse
        )
        self._worker = self._build(hearing)
        names = self._agent.name, engines.recognizer.name, engines.synthesizer.name
        self.emit(CallStarted(self.leg.heard_ms, *names, **as_dict(self.leg.info)))
        # A runner of its own: Pipecat's runner keeps what it knows of every worker it ever had.
        runner = WorkerRunner(handle_sigint=False)
        running = asyncio.create_task(runner.run(auto_end=False), name=f"run {self.leg.call_id}")
        try:
            await runner.add_workers(self._worker)
            await self._until(self._finished.wait(), deadline)
        except Exception:
            self.end_reason = End.SERVER_FAILED
            raise
        finally:
            await self._settle()
            self._transport.listener = TransportListener()
            await hearing.close()
            if self._transferred:
                self._transport.output().handed_over = True
            else:
                # While the line is up, so that the caller's program is told why it ends.
                await self._end()
            await self._worker.cancel()
            await runner.end()
            await running

    async def _until(self, over: Awaitable[object], deadline: float | None) -> None:
        try:
            async with asyncio.timeout_at(deadline):
                await over
        except TimeoutError:
            self.end_reason = End.TOO_LONG

    async def _settle(self) -> None:
        """Nothing of the agent's doing goes on alone."""
        transfer = self._transfer
        if transfer is not None:
            await asyncio.wait((transfer,), timeout=TRANSFER_ENDS_S)
        for task in (transfer, self._hold_limit):
            if task is not None:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
        await self._saying.close()

    async def _end(self) -> None:
        reason = self.end_reason if self._transferred else self.leg.closed or self.end_reason
        self.emit(CallEnded(self.leg.heard_ms, reason, self.leg.statistics().as_dict()))
        await self.leg.hang_up(self.end_reason)

    def _build(self, hearing: UserTurnController) -> PipelineWorker:
        leg, engines = self.leg, self._engines
        transport = LegTransport(leg, TransportParams(audio_out_enabled=True))
        self._transport, transport.listener = transport, self
        transport.output().reply = hearing.reply
        self._stt = OffhookSTT(hearing)
        idle = IDLE_S if self._agent.on_idle is not None else 0
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
                self._stt,
                user,
                *self._processors(),
                OffhookTTS(engines.synthesizer, hearing, engines.speaking),
                transport.output(),
                assistant,
            ]
        )
        worker = PipelineWorker(
            pipeline,
            params=PipelineParams(audio_in_sample_rate=RATE_IN, audio_out_sample_rate=RATE_OUT),
            enable_turn_tracking=self._tracing,
            enable_tracing=self._tracing,
            conversation_id=leg.call_id,
            rtvi_processor=Rtvi(),
            idle_timeout_secs=None,
            cancel_runner_on_idle_timeout=False,
        )

        @transport.event_handler("on_client_connected")
        async def on_client_connected(transport: LegTransport, leg: Leg) -> None:
            await worker.queue_frame(LLMRunFrame())

        @transport.event_handler("on_client_disconnected")
        async def on_client_disconnected(transport: LegTransport, leg: Leg) -> None:
            self._finished.set()

        @worker.rtvi.event_handler("on_client_message")
        async def on_client_message(rtvi: RTVIProcessor, message: ClientMessage) -> None:
            """A request of the caller's program: one that nobody answered would time out there."""
            if message.type == CALL_REQUEST:
                await rtvi.send_server_response(message, self._about())
            else:
                there = f"there is only {CALL_REQUEST!r}"
                error = f"{message.type[:80]!r} is not a request of this server: {there}"
                await rtvi.send_error_response(message, error)

        @worker.event_handler("on_pipeline_finished")
        async def on_pipeline_finished(worker: PipelineWorker, frame: Any) -> None:
            self._finished.set()

        @user.event_handler("on_user_turn_idle")
        async def on_user_turn_idle(aggregator: Any) -> None:
            if self._absences:  # nobody there to be silent: wait anew
                await worker.queue_frame(UserIdleTimeoutUpdateFrame(idle))
            elif self._agent.on_idle is not None:
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

    def _about(self) -> dict[str, Any]:
        """What the caller's program may know of the call."""
        return {
            "call_id": self.leg.call_id,
            "agent": self._agent.name,
            "hears": self._engines.recognizer.name,
            "speaks": self._engines.synthesizer.name,
            "seconds": self.leg.heard_ms / 1000,
        }

    def _processors(self) -> list[FrameProcessor]:
        agent = self._agent
        return [agent.processor, agent.standby] if agent.standby else [agent.processor]

    def on_first_packet(self) -> None:
        """The turn's latency is known."""
        watch = self._hearing.watch
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
