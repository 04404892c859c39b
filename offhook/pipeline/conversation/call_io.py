"""One call: a leg, its user-turn controller, an agent and a voice as one Pipecat pipeline."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field, replace
from time import monotonic
from typing import Any, Literal

from loguru import logger
from pipecat.frames.frames import (
    ControlFrame,
    EndFrame,
    Frame,
    LLMContextFrame,
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
from pipecat.processors.frame_processor import FrameDirection, FrameProcessor
from pipecat.processors.frameworks.rtvi import RTVIProcessor
from pipecat.processors.frameworks.rtvi.models import ClientMessage
from pipecat.transports.base_transport import TransportParams
from pipecat.turns.user_turn_strategies import ExternalUserTurnStrategies

from offhook.media.end_reason import End, EndReason
from offhook.media.leg import Leg, LegError
from offhook.media.pcm import PACKET_MS, RATE_IN, RATE_OUT
from offhook.media.tasks_io import TaskSet
from offhook.pipeline.conversation.agent_slot_io import AgentBeginsFrame, AgentSlot
from offhook.pipeline.conversation.agents.agent_faults import Action, Fault, Place
from offhook.pipeline.conversation.call_info import as_dict
from offhook.pipeline.conversation.digits import GatherOptions
from offhook.pipeline.conversation.directed_io import Direction, Infer, ResponseRequest
from offhook.pipeline.conversation.events import (
    AgentFailed,
    AgentTurn,
    AnswerDropped,
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
from offhook.pipeline.conversation.pipeline_io import RunningPipeline
from offhook.pipeline.conversation.rtvi_io import PushesSeenOnce, Rtvi
from offhook.pipeline.conversation.sentences import USUAL_LANGUAGE, Occasion, excuses, sentence
from offhook.pipeline.conversation.services_io import OffhookSTT, OffhookTTS
from offhook.pipeline.conversation.silences import Silences, SilenceStep
from offhook.pipeline.conversation.transport_io import HeardFrame, LegTransport, TransportListener
from offhook.pipeline.conversation.turns.turn import TurnState
from offhook.pipeline.conversation.turns.user_turn_io import (
    TurnDetection,
    UserAudioListener,
    UserTurnController,
)
from offhook.pipeline.speech.errors import EngineError
from offhook.pipeline.speech.recognizer import DEFAULT_OPTIONS, Recognizer, StreamOptions
from offhook.pipeline.speech.synthesizer import DEFAULT_VOICE, Synthesizer, VoiceOptions

CALL_REQUEST = "call"
"""Type of the RTVI client-message that is answered with the call's details."""
IDLE_S = 12
"""Seconds of silence from both sides after which the agent is notified that the caller is idle."""
HOLD_S = 120
"""Maximum seconds an agent can keep a caller on hold before the call is resumed."""
SENTENCE_S = 15
"""Timeout in seconds for a sentence to be played; after it the voice is assumed to have failed
too."""
LISTENS_S = 15
"""Maximum seconds for which an agent that takes a call over waits for a caller who is speaking;
then it begins all the same."""
TRANSFER_ENDS_S = 1
"""Seconds to wait, after the line closes, for the transfer that may have closed it to report so."""
NOTICE_S = 2
"""Seconds for the agent's part to end once the line has closed; then it is ended. What the caller
sent last comes before: keys, messages."""

CONTEXT_MESSAGES = 400
"""Maximum messages of the conversation; beyond it the older half is dropped, which bounds the
memory and the prompt of an endless call."""


@dataclass
class Agent:
    """What answers the caller: a Pipecat LLM service, or any processor in its place."""

    name: str
    processor: FrameProcessor
    tools: list[Any] = field(default_factory=list)
    on_cut: Callable[[str], None] = lambda heard: None
    """Called at an interruption with the words of the reply that were heard."""
    on_unspoken: Callable[[bool], None] | None = None
    """Called when the voice has made no sound of a reply, or of its end (True); None: the caller
    hears an apology."""
    on_idle: Callable[[], Awaitable[None]] | None = None
    """Called when nobody has spoken for IDLE_S."""
    on_returned: Callable[[], Awaitable[None]] | None = None
    """Called when the call continues one whose transfer has failed; None: the caller hears a
    sentence."""
    think_ahead: Callable[[str], None] = lambda text: None
    """Called in a pause with the caller's words so far, which may be the turn, and with none when
    the caller goes on."""
    standby: FrameProcessor | None = None
    """Fallback that answers the LLMContextFrames that `processor` passes on unanswered."""
    direction: Direction | None = None
    """Set if the agent answers only on request."""
    takes_images: bool = False
    """Whether messages may have images."""
    infer: Infer | None = None
    """Answers outside the conversation; None for an agent that is no language model."""
    user_audio: UserAudioListener | None = None
    """Receives the audio of the caller's turns."""
    played_words: Callable[[str], Awaitable[str]] | None = None
    """Returns what was played of the reply just interrupted, given our estimate of it."""
    dialog: Callable[[], dict[str, Any]] = dict
    """Returns the state that the agent has beside the conversation, as JSON."""
    restore: Callable[[dict[str, Any]], None] = lambda dialog: None
    """Restores what `dialog` returned at another server. Raises ValueError, changing nothing."""
    greeting: str = ""
    """First words, spoken without asking the agent; empty: it finds its own."""
    greeting_interruptible: bool = True
    silences: Sequence[SilenceStep] = ()
    """What happens when nobody speaks; replaces `on_idle`."""
    goodbye: str = ""
    """Last words before the call is ended by a silence or its maximum length; empty: none, and the
    usual sentence."""


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


@dataclass
class Engines:
    """The speech engines shared by all calls of a process."""

    turn_detection: TurnDetection
    recognizer: Recognizer
    synthesizer: Synthesizer
    hearing: StreamOptions = DEFAULT_OPTIONS
    speaking: VoiceOptions = DEFAULT_VOICE

    async def close(self) -> None:
        await self.recognizer.close()
        await self.synthesizer.close()
        await self.turn_detection.close()


Message = tuple[Literal["user", "assistant"], str]
"""Who spoke, and the words."""


@dataclass(frozen=True)
class Successor:
    """The agent that continues a call in the place of another."""

    make_agent: Callable[["Call"], Agent]
    engines: Engines
    """Those of the call before, with how this agent wants to hear and speak."""
    sentences: Mapping[Occasion, str] | None = None
    """See `Call`."""
    keeps_history: bool = True
    """Whether it knows what was said before."""


@dataclass
class AgentChangeFrame(ControlFrame):
    """The agent's part ends here: behind it another one continues the call."""

    successor: Callable[[], Awaitable[Successor]] = field(kw_only=True)
    interruptible: bool = field(default=False, init=False)


Absence = Literal["held", "on hold", "being transferred"]
"""Why the caller is away: on hold by the far end, on hold by the agent, or being transferred."""


class Call(TransportListener):
    """One call from answer to hangup; `run` returns when everything is torn down.

    A transfer ends the agent's part. The line may then stay up as a bridge between the caller and
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
        history: Sequence[Message] = (),
        opening: Occasion = Occasion.RESUMED,
        before_s: float = 0,
    ) -> None:
        """`sentences` replaces those of `sentences.SENTENCES`. `history` is the conversation that
        this call continues with the sentence for `opening`, after `before_s` seconds, which count
        for `limit_s`."""
        self.leg = leg
        self.listeners: list[Callable[[Event], None]] = []
        self.end_reason: EndReason = End.AGENT_HUNG_UP
        self.engines = engines
        self._limit_s = limit_s
        self._before_s = before_s
        self._opening = opening
        self._tracing = tracing
        self._sentences = sentences
        self._agent = make_agent(self)
        self._silences = Silences(self._agent.silences)
        self._greeted = asyncio.Event()
        """Set when the fixed greeting has been played."""
        self._turn = 0
        self._finished = asyncio.Event()
        """Set when the agent's part is over."""
        self.taken_over = False
        """Whether the agent is not the one that the call began with."""
        self.has_unspoken = False
        """Whether the voice has made no sound of something: our sentences are then in its own
        language, or the usual one, whatever the caller speaks."""
        self._absences: set[Absence] = set()
        self._transfer: asyncio.Task[LegError | None] | None = None
        self._transferred = False
        self._hold_limit: asyncio.Task[None] | None = None
        self._tasks = TaskSet()
        """Tasks that nothing awaits, such as those speaking a sentence."""
        self.fillers: set[str] = set()
        """What was said while tools ran: no answers of the agent's model."""
        self.context = LLMContext(tools=self._agent.tools) if self._agent.tools else LLMContext()
        self.context.set_messages(_messages(history))
        self.hearing: UserTurnController
        """Detects the caller's turns; exists while the call runs."""
        self.voice: OffhookTTS
        self._stt: OffhookSTT
        self._slot: AgentSlot
        """The agent's place; a call that a program directs has none."""
        self._transport: LegTransport
        self._worker: PipelineWorker

    def emit(self, event: Event) -> None:
        if isinstance(event, CallerTurn):
            self._turn = event.turn
            if self._silences.spoken():
                self._tasks.spawn(self._await_silence(), "await silence")
        elif isinstance(event, AgentTurn):
            self._greeted.set()
        elif isinstance(event, Interrupted):
            self._agent.on_cut(event.heard)
        for listener in self.listeners:
            listener(event)

    def agent_failed(self, fault: Fault, place: Place, action: Action, cause: str = "") -> None:
        self.emit(AgentFailed(self.leg.heard_ms, fault, place, action, cause))

    def queue(self, frame: Frame) -> None:
        """Push a frame to the agent as if it came from the line."""
        self._stt.queue(frame)

    def answer_dropped(self, characters: int) -> None:
        """An answer that was begun in a pause of the caller is none; the voice had prepared so many
        characters of it."""
        self.emit(AnswerDropped(self.leg.heard_ms, characters))

    @property
    def duration_s(self) -> float:
        """Duration in s of the call so far, with what it continues."""
        return self._before_s + self.leg.heard_ms / 1000

    @property
    def away(self) -> bool:
        """Whether the caller is on hold or being transferred."""
        return bool(self._absences)

    # --- what the agent may do with the line ---

    async def hang_up(self, reason: str = "") -> None:
        """End the call from the agent's side, after what it has said so far was played."""
        self.end_reason = EndReason.of(reason or self.end_reason)
        await self._worker.queue_frame(EndFrame())

    async def wait_until_heard(self) -> bool:
        """Wait until the agent's speech so far was played; return whether its current reply had any
        words. A Pipecat tool waiting here is cancelled by an interruption; returns at once while
        the caller is on hold."""
        if "on hold" not in self._absences:
            frame = HeardFrame()
            await self._agent.processor.push_frame(frame)
            await frame.heard.wait()
        return self.hearing.reply.written

    def sentence(self, occasion: Occasion) -> str:
        """Return the sentence for the occasion, in the voice's language or else the one last
        recognized."""
        speaking, hearing = self.engines.speaking, self.engines.hearing
        languages = [speaking.language, self.hearing.language, hearing.language, USUAL_LANGUAGE]
        if self.has_unspoken:
            languages = [speaking.language, USUAL_LANGUAGE]
        return sentence(occasion, next(filter(None, languages)) or "", self._sentences)

    def excuses(self) -> Iterator[str]:
        """Yield all sentences that the call may have spoken in the agent's place."""
        yield from excuses(self._sentences)
        yield from self.fillers

    async def say(self, text: str, *, instead: bool = False) -> None:
        """Speak a text without asking the agent: after what it has said so far, or with `instead`
        in place of it. Returns when the text was played or interrupted, after SENTENCE_S at the
        latest."""
        spoken = HeardFrame()
        spoken.interruptible = False  # it tells of the end whatever that is
        if instead:
            self.hearing.interrupt()
            self._stt.queue(TTSSpeakFrame(text))
            self._stt.queue(spoken)
        else:
            await self._speak(text, spoken)
        with suppress(TimeoutError):
            async with asyncio.timeout(SENTENCE_S):
                await spoken.heard.wait()

    async def _speak(self, text: str, spoken: HeardFrame) -> None:
        await self._agent.processor.push_frame(TTSSpeakFrame(text))
        await self._agent.processor.push_frame(spoken)

    async def end_with_a_word(self) -> None:
        """Announce that the server ends the call, in place of current speech. Does nothing while
        the caller is on hold or being transferred."""
        if not self.away:
            await self.say(self.sentence(Occasion.CLOSING), instead=True)

    async def _greet(self) -> None:
        """Speak the fixed greeting; returns when it was played or interrupted."""
        spoken = HeardFrame(heard=self._greeted)
        spoken.interruptible = False
        if not self._agent.greeting_interruptible:
            # Who speaks meanwhile is answered before it is over, by an agent that must know of it.
            self.hearing.interruptible = False
            greeted: Any = {"role": "assistant", "content": self._agent.greeting}
            self.context.add_message(greeted)
        await self._speak(self._agent.greeting, spoken)
        await self._greeted.wait()
        self.hearing.interruptible = True

    async def _await_silence(self) -> None:
        """Have the next step of a silence taken when it is due."""
        await self._worker.queue_frame(UserIdleTimeoutUpdateFrame(self._silences.after_s))

    async def _break_silence(self) -> None:
        """Take the step of a silence that is due."""
        step = self._silences.step()
        if step is None:
            return
        await self._await_silence()
        if step.say:
            await self.say(step.say)
        if step.hang_up and self._agent.goodbye:
            await self.say(self._agent.goodbye)
        if step.hang_up and self._silences.lasts and not self.hearing.reply.cut:
            await self.hang_up(End.CALLER_SILENT)

    def _excuse(self, occasion: Occasion) -> None:
        self._tasks.spawn(self.say(self.sentence(occasion)), f"say {occasion}")

    def _reply_unspoken(self, text: str, begun: bool) -> None:
        """The voice has made no sound of a text of the agent, or of a sentence of our own."""
        before, self.has_unspoken = self.has_unspoken, True
        if any(text.endswith(excuse) for excuse in self.excuses()):
            if not before:  # perhaps it can say that in its own language
                self._excuse(Occasion.TROUBLE)
        elif self._agent.on_unspoken is not None:
            self._agent.on_unspoken(begun)
        else:
            place = Place.SPEAKING if begun else Place.START
            self.agent_failed(Fault.UNSPEAKABLE, place, Action.SAY)
            if not self.is_directed:
                self._excuse(Occasion.BROKEN_OFF if begun else Occasion.TROUBLE)

    @property
    def is_aloud(self) -> bool:
        """Whether the agent's answer is spoken: what a program asks for may be text alone."""
        direction = self._agent.direction
        return direction is None or direction.request is None or direction.request.spoken

    @property
    def is_directed(self) -> bool:
        """Whether a program directs the conversation."""
        return self._agent.direction is not None

    async def transfer(self, target: str) -> None:
        """Transfer the caller to `target`, a number or SIP address, and end the agent's part.
        Raises LegError if the transfer fails; the conversation then continues."""
        if self._transfer is not None and not self._transfer.done():
            raise LegError("a transfer is under way")
        # A task of the call: cancelling whatever awaits it must not cancel the transfer.
        self._transfer = self._tasks.spawn(self._hand_over(target), f"transfer {self.leg.call_id}")
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
        else:
            self._transport.output().hand_over()
        finally:
            self._return("being transferred")
        self._transferred = True
        self.end_reason = End.TRANSFERRED + f" to {target}"
        self.emit(CallTransferred(self.leg.heard_ms, target))
        self._finished.set()
        return None

    # --- another agent ---

    async def change_agent(self, successor: Callable[[], Awaitable[Successor]]) -> None:
        """Have another agent continue the call after what this one has said so far. `successor` is
        awaited once that was heard; what the caller says from then on is for the new agent, which
        begins by itself."""
        await self._agent.processor.push_frame(AgentChangeFrame(successor=successor))

    async def _change_agent(self, find: Callable[[], Awaitable[Successor]]) -> None:
        try:
            await self._put_in_place(find)
        except Exception:
            logger.exception("{}: no agent takes the call over", self.leg.call_id)
            self.end_reason = End.SERVER_FAILED
            self._finished.set()

    async def _put_in_place(self, find: Callable[[], Awaitable[Successor]]) -> None:
        """Put another agent into the place of this one, which has been heard to its end."""
        self._slot.hold()
        self._agent = replace(self._agent, think_ahead=lambda text: None)
        before = len(self.context.messages)
        successor = await find()
        messages: list[Any] = list(self.context.messages)
        history = _messages(_words(messages[:before])) if successor.keeps_history else []
        hearing = self.engines.hearing
        self.engines, self._sentences = successor.engines, successor.sentences
        self._agent, self.taken_over = successor.make_agent(self), True
        self.context.set_messages([*history, *messages[before:]])
        self.context.set_tools(self._agent.tools)
        self._silences, self._greeted = Silences(self._agent.silences), asyncio.Event()
        self.has_unspoken = False
        await self.voice.drop_ahead()
        self.voice.options = self.engines.speaking
        await self._change_recognizer(hearing)
        await self._slot.replace(self._agent_processors())
        await self._worker.queue_frame(UserIdleTimeoutUpdateFrame(self._idle_s))
        with suppress(TimeoutError):
            async with asyncio.timeout(LISTENS_S):
                while self.hearing.state in (TurnState.HEARING, TurnState.ENDING):
                    await asyncio.sleep(PACKET_MS / 1000)
        begins = AgentBeginsFrame(context=self.context, greets=bool(self._agent.greeting))
        self._stt.queue(begins)
        await begins.reached.wait()
        if begins.greets and not begins.answers:
            await self._greet()

    async def _change_recognizer(self, before: StreamOptions) -> None:
        """Have the recognizer hear as the agent wants, which is new."""
        engines, stream = self.engines, None
        if engines.hearing != before:
            try:
                stream = await engines.recognizer.open(engines.hearing)
            except EngineError as error:
                logger.warning("{}: the recognizer goes on as before: {}", self.leg.call_id, error)
        await self.hearing.change(self._agent.user_audio or UserAudioListener(), stream)

    async def hold(self) -> None:
        """Put the caller on hold for at most HOLD_S. Raises LegError."""
        if "on hold" in self._absences:
            raise LegError("the caller is on hold already")
        await self.leg.hold()
        self._leave("on hold")
        self.emit(CallHeld(self.leg.heard_ms, "agent"))
        self._hold_limit = self._tasks.spawn(self._end_hold(), f"hold {self.leg.call_id}")

    async def _end_hold(self) -> None:
        await asyncio.sleep(HOLD_S)
        logger.warning("{}: on hold for {} s: taken back", self.leg.call_id, HOLD_S)
        self._hold_limit = None
        try:
            await self.resume()
        except LegError as error:
            logger.error("{}: the caller stays on hold: {}", self.leg.call_id, error)

    async def resume(self) -> None:
        """Resume a caller on hold. Raises LegError."""
        if "on hold" not in self._absences:
            raise LegError("the caller is not on hold")
        await self.leg.resume()
        if self._hold_limit is not None:
            self._hold_limit.cancel()
            self._hold_limit = None
        self._return("on hold")
        self.emit(CallResumed(self.leg.heard_ms, "agent"))

    def gather(self, terms: GatherOptions) -> None:
        """Set how the caller's next keys form a turn."""
        self.hearing.digits.expect(terms)

    # --- for a program that directs the conversation ---

    def respond(self, request: ResponseRequest) -> None:
        """Ask the agent, which must have a `direction`, for a response in place of any before."""
        assert self._agent.direction is not None
        self._agent.direction.wanted = request.response_id
        self.hearing.reply.busy = True
        self._stt.queue(request)

    def cancel_response(self, response_id: str) -> None:
        """Stop generating and playing a response."""
        assert self._agent.direction is not None
        self._agent.direction.cancel(response_id)
        self.hearing.interrupt()

    def leave_unanswered(self) -> None:
        """Give the floor back after a turn that no response follows."""
        self.hearing.reply.busy = False

    # --- keys, and hold by the far end ---

    def on_key(self, key: str) -> None:
        self.hearing.press(key)

    def on_held(self, held: bool) -> None:
        if held:
            self._leave("held")
            self.emit(CallHeld(self.leg.heard_ms, "caller"))
        else:
            self._return("held")
            self.emit(CallResumed(self.leg.heard_ms, "caller"))

    def _leave(self, why: Absence) -> None:
        self._absences.add(why)
        self.hearing.away = True

    def _return(self, why: Absence) -> None:
        self._absences.discard(why)
        self.hearing.away = bool(self._absences)

    # --- life ---

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        limit = self._limit_s
        deadline = None if limit is None else loop.time() + max(0.0, limit - self._before_s)
        try:
            await self._converse(deadline)
            if self._transferred:
                await self._until(self.leg.until_closed(), deadline)
        finally:
            if self._transferred:
                await self._end()

    async def _converse(self, deadline: float | None) -> None:
        """Run the agent's part of the call."""
        engines = self.engines
        stream = await engines.recognizer.open(engines.hearing)
        self.hearing = UserTurnController(
            self.leg,
            engines.turn_detection,
            stream,
            self.emit,
            self._excuse,
            engines.recognizer.name,
        )
        async with AsyncExitStack() as end:
            end.push_async_callback(self._tasks.close)
            try:
                await self._run_pipeline(end, deadline)
            except Exception:
                self.end_reason = End.SERVER_FAILED
                raise
            finally:
                await self._settle()
                await self.hearing.close()

    async def _run_pipeline(self, end: AsyncExitStack, deadline: float | None) -> None:
        """Run the pipeline until the agent's part is over; `end` ends it."""
        engines, hearing = self.engines, self.hearing
        hearing.audio_listener = self._agent.user_audio or hearing.audio_listener
        self._worker = self._build(hearing)
        pipeline = RunningPipeline(self._worker, self.leg.call_id, self._transport)
        end.push_async_callback(pipeline.close)
        # While the line is up, so that the client receives the reason of the end.
        end.push_async_callback(self._end_unless_transferred)
        names = self._agent.name, engines.recognizer.name, engines.synthesizer.name
        self.emit(CallStarted(self.leg.heard_ms, *names, **as_dict(self.leg.info)))
        await pipeline.start(self._pipeline_ended)
        self._tasks.spawn(self._follow_line(), f"line {self.leg.call_id}")
        await self._until(self._finished.wait(), deadline)
        if self.end_reason is End.TOO_LONG and not self.away:
            words = self._agent.goodbye or self.sentence(Occasion.CLOSING)
            await self.say(words, instead=True)

    def _pipeline_ended(self) -> None:
        if not self._finished.is_set():  # it has not even started, or would have said so
            self.end_reason = End.SERVER_FAILED
            self._finished.set()

    async def _follow_line(self) -> None:
        """End the agent's part if it does not notice that the line has closed."""
        await self.leg.until_closed()
        await asyncio.sleep(NOTICE_S)
        self._finished.set()

    async def _until(self, over: Awaitable[object], deadline: float | None) -> None:
        try:
            async with asyncio.timeout_at(deadline):
                await over
        except TimeoutError:
            self.end_reason = End.TOO_LONG

    async def _settle(self) -> None:
        """Finish or cancel the background tasks of the agent's part."""
        if self._transfer is not None:
            await asyncio.wait((self._transfer,), timeout=TRANSFER_ENDS_S)
        await self._tasks.close()
        self._transport.listener = TransportListener()

    async def _end_unless_transferred(self) -> None:
        if not self._transferred:
            await self._end()

    async def _end(self) -> None:
        reason = self.end_reason if self._transferred else self.leg.closed or self.end_reason
        self.emit(CallEnded(self.leg.heard_ms, reason, self.leg.statistics().as_dict()))
        await self.leg.hang_up(self.end_reason)

    def _build(self, hearing: UserTurnController) -> PipelineWorker:
        leg, engines = self.leg, self.engines
        transport = LegTransport(leg, TransportParams(audio_out_enabled=True))
        self._transport, transport.listener = transport, self
        transport.output().reply = hearing.reply
        self._stt = OffhookSTT(
            hearing, self._agent.direction, lambda text: self._agent.think_ahead(text)
        )
        self.voice = OffhookTTS(
            engines.synthesizer, hearing, engines.speaking, self._reply_unspoken
        )
        user, assistant = LLMContextAggregatorPair(
            self.context,
            user_params=LLMUserAggregatorParams(
                user_turn_strategies=ExternalUserTurnStrategies(enable_interruptions=False),
                user_idle_timeout=self._idle_s,
                empty_user_turn=None,
            ),
        )
        pipeline = Pipeline(
            [
                transport.input(),
                self._stt,
                user,
                *self._processors(self.voice),
                transport.output(),
                assistant,
            ]
        )
        rtvi = Rtvi(leg.send_message, hearing.cut_reply) if leg.carries_messages else None
        worker = PipelineWorker(
            pipeline,
            params=PipelineParams(
                audio_in_sample_rate=RATE_IN,
                audio_out_sample_rate=RATE_OUT,
                enable_usage_metrics=self._agent.direction is not None,
            ),
            enable_turn_tracking=self._tracing,
            enable_tracing=self._tracing,
            conversation_id=leg.call_id,
            enable_rtvi=rtvi is not None,
            rtvi_processor=rtvi,
            idle_timeout_secs=None,
            cancel_runner_on_idle_timeout=False,
        )

        @transport.event_handler("on_client_connected")
        async def on_client_connected(transport: LegTransport, leg: Leg) -> None:
            messages = self.transcript()
            is_answered = bool(messages) and messages[-1][0] == "assistant"
            is_returned = self._opening is Occasion.NOT_TRANSFERRED
            if is_returned and self._agent.on_returned is not None:
                await self._agent.on_returned()
            elif is_answered or is_returned:
                self._excuse(self._opening)
            elif self._agent.greeting and not messages:
                self._tasks.spawn(self._greet(), f"greet {leg.call_id}")
            else:  # the agent greets the caller, or answers what is unanswered
                await worker.queue_frame(LLMRunFrame())

        @transport.event_handler("on_client_disconnected")
        async def on_client_disconnected(transport: LegTransport, leg: Leg) -> None:
            self._finished.set()

        @worker.event_handler("on_pipeline_finished")
        async def on_pipeline_finished(worker: PipelineWorker, frame: Any) -> None:
            self._finished.set()

        worker.set_reached_downstream_filter((AgentChangeFrame,))

        @worker.event_handler("on_frame_reached_downstream")
        async def on_frame_reached_downstream(
            worker: PipelineWorker, frame: AgentChangeFrame
        ) -> None:
            name = f"change the agent {leg.call_id}"
            self._tasks.spawn(self._change_agent(frame.successor), name)

        @user.event_handler("on_user_turn_idle")
        async def on_user_turn_idle(aggregator: Any) -> None:
            if self._absences:  # the caller is away: restart the idle timer
                await worker.queue_frame(UserIdleTimeoutUpdateFrame(self._idle_s))
            elif self._agent.silences:
                self._tasks.spawn(self._break_silence(), f"silence {leg.call_id}")
            elif self._agent.on_idle is not None:
                await self._agent.on_idle()

        @assistant.event_handler("on_assistant_turn_stopped")
        async def on_assistant_turn_stopped(
            aggregator: Any, message: AssistantTurnStoppedMessage
        ) -> None:
            if len(self.context.messages) > CONTEXT_MESSAGES:
                self.context.set_messages(_newer_half(self.context.messages))
            if message.content:
                text, cut, turn = message.content, message.interrupted, self._turn
                if not self._greeted.is_set() and not self._agent.greeting_interruptible:
                    turn = 0
                    self._drop_last(text)
                if cut and self._agent.played_words is not None:
                    text = await self._agent.played_words(text)
                    self._correct(message.content, text)
                self.emit(AgentTurn(leg.heard_ms, turn, text, cut))

        if rtvi is not None:
            rtvi.add_event_handler("on_client_message", self._answer_client)
            if not self._tracing:  # whose observers want to know more
                worker._observer = PushesSeenOnce(observers=worker._observer._observers)
        return worker

    async def _answer_client(self, rtvi: RTVIProcessor, message: ClientMessage) -> None:
        """Answer a request of the client; without an answer it would time out there."""
        if message.type == CALL_REQUEST:
            await rtvi.send_server_response(message, self._about())
        else:
            there = f"there is only {CALL_REQUEST!r}"
            error = f"{message.type[:80]!r} is not a request of this server: {there}"
            await rtvi.send_error_response(message, error)

    def _correct(self, estimate: str, text: str) -> None:
        """Corrects what the conversation says of the last reply."""
        for message in reversed(self.context.messages):
            if isinstance(message, dict) and message.get("content") == estimate:
                message["content"] = text
                break

    def _drop_last(self, text: str) -> None:
        """Drop the greeting where it comes for the second time: the conversation begins with it."""
        messages: list[Any] = list(self.context.messages)
        found = [n for n, m in enumerate(messages) if n and m.get("content") == text]
        if found:
            self.context.set_messages(messages[: found[-1]] + messages[found[-1] + 1 :])

    def transcript(self) -> list[Message]:
        """Return the conversation as it was heard, without the calls of tools."""
        return _words(self.context.messages)

    def dialog(self) -> dict[str, Any]:
        """Return the state that the agent has beside the conversation, as JSON."""
        return self._agent.dialog()

    def _about(self) -> dict[str, Any]:
        """Return the details of the call that the client may see."""
        return {
            "call_id": self.leg.call_id,
            "agent": self._agent.name,
            "hears": self.engines.recognizer.name,
            "speaks": self.engines.synthesizer.name,
            "seconds": self.leg.heard_ms / 1000,
        }

    def _processors(self, voice: FrameProcessor) -> list[FrameProcessor]:
        """Return the agent and its voice, with what stands around them."""
        agent, direction = self._agent_processors(), self._agent.direction
        if direction is None:
            self._slot = AgentSlot(agent)
            return [self._slot, voice]
        return [direction.gate, *agent, direction.text, voice, direction.audio]

    def _agent_processors(self) -> list[FrameProcessor]:
        """Return the agent, and its fallback if that is a processor."""
        agent = self._agent
        if agent.standby is None:
            return [agent.processor]
        return [agent.processor, agent.standby, StandbyGate(agent.processor)]

    @property
    def _idle_s(self) -> float:
        """Seconds until the agent is to break the silence; 0: it does not."""
        return self._silences.after_s or (IDLE_S if self._agent.on_idle is not None else 0)

    def on_first_packet(self) -> None:
        """Record the latency of the turn."""
        watch = self.hearing.watch
        if watch.turn and not watch.complete:
            watch.stamp("first_packet", monotonic())
            latency = watch.latency(self.leg.heard_ms)
            logger.debug("{}: turn {} in {} ms", self.leg.call_id, watch.turn, latency.total_ms)
            self.emit(latency)


def _messages(words: Iterable[Message]) -> list[Any]:
    """Return what was said as messages of a context."""
    return [{"role": role, "content": text} for role, text in words]


def _words(messages: Iterable[Any]) -> list[Message]:
    """Return what was said in messages of a context, without the calls of tools."""
    found: list[Message] = []
    for message in messages:
        if not isinstance(message, dict):
            continue
        role, content = message.get("role"), message.get("content")
        if isinstance(content, list):
            texts = (part.get("text") for part in content if isinstance(part, dict))
            content = " ".join(text for text in texts if isinstance(text, str))
        if role in ("user", "assistant") and isinstance(content, str) and content:
            found.append((role, content))
    return found


def _newer_half(messages: list[Any]) -> list[Any]:
    """Return the newer half, starting with a user message so that no tool result loses its call."""
    half = messages[len(messages) // 2 :]
    starts = (i for i, m in enumerate(half) if isinstance(m, dict) and m.get("role") == "user")
    return half[next(starts, 0) :]
