"""One call: a leg, its user-turn controller, an agent and a voice as one Pipecat pipeline."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, replace
from time import monotonic
from typing import Any, Literal

from loguru import logger
from pipecat.frames.frames import EndFrame, Frame
from pipecat.transports.base_transport import TransportParams

from offhook.media.end_reason import End, EndReason
from offhook.media.leg import Leg
from offhook.media.pcm import PACKET_MS
from offhook.media.tasks_io import TaskSet
from offhook.pipeline.conversation.agents.agent_faults import Action, Fault, Place
from offhook.pipeline.conversation.agents.prompt import TAKEN_OVER
from offhook.pipeline.conversation.call.absence_io import Absence, Connect
from offhook.pipeline.conversation.call.agent import Agent as Agent
from offhook.pipeline.conversation.call.agent import Engines as Engines
from offhook.pipeline.conversation.call.announcements_io import Announcements
from offhook.pipeline.conversation.call.call_pipeline_io import (
    AgentChangeFrame,
    CallPipeline,
    CallPipelineListener,
)
from offhook.pipeline.conversation.call.followed_language import FollowedLanguage
from offhook.pipeline.conversation.call.history import History, Message
from offhook.pipeline.conversation.call.opening_io import Opening
from offhook.pipeline.conversation.call.responses import Responses
from offhook.pipeline.conversation.call.time_limit_io import TimeLimit
from offhook.pipeline.conversation.call_info import as_dict
from offhook.pipeline.conversation.digits import GatherOptions
from offhook.pipeline.conversation.events import (
    AgentFailed,
    AgentTurn,
    AnswerDropped,
    CallEnded,
    CallerTurn,
    CallStarted,
    CallTransferred,
    Event,
    Interrupted,
    PassagesFound,
)
from offhook.pipeline.conversation.passages import Passage
from offhook.pipeline.conversation.pipeline_io import RunningPipeline
from offhook.pipeline.conversation.sentences import Occasion
from offhook.pipeline.conversation.services_io import OffhookTTS
from offhook.pipeline.conversation.transport_io import HeardFrame, LegTransport, TransportListener
from offhook.pipeline.conversation.turns.turn import TurnState
from offhook.pipeline.conversation.turns.user_turn_io import UserTurnController
from offhook.pipeline.conversation.turns.utterance_feed import UserAudioListener

LISTENS_S = 15
"""Maximum seconds for which an agent that takes a call over waits for a caller who is speaking;
then it begins all the same."""
NOTICE_S = 2
"""Seconds for the agent's part to end once the line has closed; then it is ended. What the caller
sent last comes before: keys, messages."""


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


class Call(TransportListener, CallPipelineListener):
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
        self._limit = TimeLimit(limit_s, before_s)
        self._tracing = tracing
        self._agent = make_agent(self)
        self._turn = 0
        self._finished = asyncio.Event()
        """Set when the agent's part is over."""
        self.cue = ""
        """What the agent's model is told where an agent has spoken last and it is to go on."""
        self._transferred = False
        tasks = self._tasks = TaskSet()
        """Tasks that nothing awaits, such as those speaking a sentence."""
        self.absence = Absence(
            leg, tasks, self.emit, lambda away: self.hearing.agent.set_away(away)
        )
        self.language = FollowedLanguage(leg, self.emit, self.on_pause)
        self._announcements = Announcements(
            tasks, leg.playout, self.language, self._agent, engines, sentences
        )
        self._history = History(history, self._agent.tools)
        self.context = self._history.context
        self.opening = Opening(leg, tasks, self._announcements, self._history, opening)
        self.hearing: UserTurnController
        """Detects the caller's turns; exists while the call runs."""
        self.responses: Responses
        """Exists as long."""
        self._transport: LegTransport
        self._pipeline: CallPipeline

    @property
    def voice(self) -> OffhookTTS:
        return self._pipeline.voice

    def emit(self, event: Event) -> None:
        if isinstance(event, CallerTurn):
            self._turn = event.turn
            self._announcements.end_silence()
        elif isinstance(event, AgentTurn):
            self._announcements.greeted.set()
        elif isinstance(event, Interrupted):
            self._agent.on_cut(event.heard)
        for listener in self.listeners:
            listener(event)
        if isinstance(event, CallerTurn):
            self.language.turn(event.text, self.hearing.language)

    def agent_failed(self, fault: Fault, place: Place, action: Action, cause: str = "") -> None:
        self.emit(AgentFailed(self.leg.heard_ms, fault, place, action, cause))

    def queue(self, frame: Frame) -> None:
        """Push a frame to the agent as if it came from the line."""
        self._pipeline.stt.queue(frame)

    def answer_dropped(self, characters: int) -> None:
        """An answer that was begun in a pause of the caller is none; the voice had prepared so many
        characters of it."""
        self.emit(AnswerDropped(self.leg.heard_ms, characters))

    def passages_found(
        self, text: str, passages: Sequence[Passage], by: Literal["tool", "prompt"]
    ) -> None:
        """The model answers by these passages of its documents."""
        sources = tuple(one.title for one in passages)
        self.emit(PassagesFound(self.leg.heard_ms, text, sources, by))

    @property
    def duration_s(self) -> float:
        """Duration in s of the call so far, with what it continues."""
        return self._limit.before_s + self.leg.heard_ms / 1000

    @property
    def away(self) -> bool:
        """Whether the caller is on hold or being transferred."""
        return bool(self.absence)

    # --- what the agent may do with the line ---

    async def hang_up(self, reason: str = "") -> None:
        """End the call from the agent's side, after what it has said so far was played."""
        self.end_reason = EndReason.of(reason or self.end_reason)
        await self._pipeline.worker.queue_frame(EndFrame())

    async def wait_until_heard(self) -> bool:
        """Wait until the agent's speech so far was played; return whether its current reply had any
        words. A Pipecat tool waiting here is cancelled by an interruption; returns at once while
        the caller is on hold."""
        if not self.absence.on_hold:
            frame = HeardFrame()
            await self._agent.processor.push_frame(frame)
            await frame.heard.wait()
        return self.hearing.reply.written

    def sentence(self, occasion: Occasion) -> str:
        """Return the sentence for the occasion, in the voice's language or else the one last
        recognized."""
        return self._announcements.sentence(occasion)

    def excuses(self) -> Iterator[str]:
        """Yield all sentences that the call may have spoken in the agent's place."""
        return self._announcements.excuses()

    @property
    def fillers(self) -> set[str]:
        """What was said while tools ran: no answers of the agent's model."""
        return self._announcements.fillers

    def note_unspoken(self) -> None:
        """The voice has made no sound of something, see `Announcements`."""
        self._announcements.has_unspoken = True

    async def say(
        self, text: str, occasion: Occasion | None = None, *, instead: bool = False
    ) -> None:
        """Speak a text without asking the agent: after what it has said so far, or with `instead`
        in place of it; in another language than the agent's first, the sentence for `occasion`.
        Returns when the text was played or interrupted, after SENTENCE_S at the latest."""
        await self._announcements.say(text, occasion, instead=instead)

    async def end_with_a_word(self) -> None:
        """Announce to a caller who is there that the server ends the call, in place of speech."""
        if not self.away:
            await self.say(self.sentence(Occasion.CLOSING), instead=True)

    def on_unspoken(self, text: str, begun: bool) -> None:
        if self._announcements.blames_agent(text, begun=begun):
            place = Place.SPEAKING if begun else Place.START
            self.agent_failed(Fault.UNSPEAKABLE, place, Action.SAY)
            if not self.is_directed:
                self._announcements.excuse(Occasion.BROKEN_OFF if begun else Occasion.TROUBLE)

    @property
    def is_aloud(self) -> bool:
        """Whether the agent's answer is spoken: what a program asks for may be text alone."""
        direction = self._agent.direction
        return direction is None or direction.request is None or direction.request.spoken

    @property
    def is_directed(self) -> bool:
        """Whether a program directs the conversation."""
        return self._agent.direction is not None

    async def transfer(self, target: str, by: Connect | None = None) -> None:
        """Transfer the caller to `target`, or connect the line with `by`, and end the agent's part.
        Raises LegError if that fails; the conversation then continues."""
        output = self._transport.output()
        await self.absence.transfer(target, output.hand_over, self._end_transferred, by)

    def _end_transferred(self, target: str) -> None:
        self._transferred = True
        self.end_reason = End.TRANSFERRED + f" to {target}"
        self.emit(CallTransferred(self.leg.heard_ms, target))
        self._finished.set()

    # --- another agent ---

    async def change_agent(self, change: AgentChangeFrame) -> None:
        """Have another agent continue the call after what this one has said so far. The successor
        is awaited once that was heard; what the caller says from then on is for the new agent,
        which begins by itself."""
        await self._agent.processor.push_frame(change)

    async def _change_agent(self, change: AgentChangeFrame) -> None:
        try:
            await self._put_in_place(change)
        except Exception:
            logger.exception("{}: no agent takes the call over", self.leg.call_id)
            self.end_reason = End.SERVER_FAILED
            self._finished.set()

    async def _put_in_place(self, change: AgentChangeFrame) -> None:
        """Put another agent into the place of this one, which has been heard to its end."""
        self._pipeline.hold_agent()
        self._agent = replace(self._agent, think_ahead=lambda text: None)
        before, hearing = len(self.context.messages), self.engines.hearing
        successor = await change.successor()
        self.engines = successor.engines
        self._agent, self.cue = successor.make_agent(self), TAKEN_OVER
        agent = self._agent
        self._history.hand_over(before, agent.tools, keeps=successor.keeps_history)
        self._announcements.change(agent, self.engines, successor.sentences)
        await self._pipeline.change_voice(self.engines)
        stream = await self.engines.reopen(hearing, self.leg.call_id)
        turns, audio = self.engines.turn_detection, agent.user_audio or UserAudioListener()
        await self.hearing.change(audio, stream, turns.settings)
        await self._pipeline.replace_agent(agent, self._announcements.idle_s, change)
        with suppress(TimeoutError):
            async with asyncio.timeout(LISTENS_S):
                while self.hearing.state in (TurnState.HEARING, TurnState.ENDING):
                    await asyncio.sleep(PACKET_MS / 1000)
        if await self._pipeline.begin_successor(self.context, agent):
            await self._announcements.greet(self.context)

    async def hold(self) -> None:
        """Put the caller on hold for at most HOLD_S. Raises LegError."""
        await self.absence.hold()

    async def resume(self) -> None:
        """Resume a caller on hold. Raises LegError."""
        await self.absence.resume()

    def gather(self, terms: GatherOptions) -> None:
        """Set how the caller's next keys form a turn."""
        self.hearing.keys.expect(terms)

    # --- keys, and hold by the far end ---

    def on_key(self, key: str) -> None:
        if not self.absence.aside:
            self.hearing.press(key)

    def on_held(self, held: bool) -> None:
        self.absence.set_held(held)

    # --- life ---

    async def run(self) -> None:
        self._limit.start()
        try:
            await self._converse()
            if self._transferred:
                await self._until(self.leg.until_closed())
        finally:
            if self._transferred:
                await self._end()

    async def _converse(self) -> None:
        """Run the agent's part of the call."""
        turns, recognizer = self.engines.turn_detection, self.engines.recognizer
        stream = await recognizer.open(self.engines.hearing)
        emit, excuse = self.emit, self._announcements.excuse
        self.hearing = UserTurnController(self.leg, turns, stream, emit, excuse, recognizer.name)
        self._announcements.hearing = self.hearing
        async with AsyncExitStack() as end:
            end.push_async_callback(self._tasks.close)
            try:
                await self._run_pipeline(end)
            except Exception:
                self.end_reason = End.SERVER_FAILED
                raise
            finally:
                await self._settle()
                await self.hearing.close()

    async def _run_pipeline(self, end: AsyncExitStack) -> None:
        """Run the pipeline until the agent's part is over; `end` ends it."""
        engines, hearing = self.engines, self.hearing
        if self._agent.user_audio is not None:
            hearing.utterances.listener = self._agent.user_audio
        self._transport = LegTransport(self.leg, TransportParams(audio_out_enabled=True))
        self._transport.listener = self
        self._pipeline = CallPipeline(
            self.leg,
            hearing,
            self._transport,
            self.context,
            self,
            agent=self._agent,
            engines=engines,
            language=self.language,
            idle_s=self._announcements.idle_s,
            tracing=self._tracing,
        )
        self._announcements.pipeline = self._pipeline
        if self.opening.watch is not None:
            self._pipeline.hold_agent()
        self.responses = Responses(self._agent.direction, hearing, self.queue)
        pipeline = RunningPipeline(self._pipeline.worker, self.leg.call_id, self._transport)
        end.push_async_callback(pipeline.close)
        # While the line is up, so that the client receives the reason of the end.
        end.push_async_callback(self._end_unless_transferred)
        names = self._agent.name, engines.recognizer.name, engines.synthesizer.name
        self.emit(CallStarted(self.leg.heard_ms, *names, **as_dict(self.leg.info)))
        await pipeline.start(self._pipeline_ended)
        self._tasks.spawn(self._follow_line(), f"line {self.leg.call_id}")
        await self._until(self._finished.wait())
        if self.end_reason is End.TOO_LONG and not self.away:
            await self._announcements.say_goodbye()

    def _pipeline_ended(self) -> None:
        if not self._finished.is_set():  # it has not even started, or would have said so
            self.end_reason = End.SERVER_FAILED
            self._finished.set()

    async def _follow_line(self) -> None:
        """End the agent's part if it does not notice that the line has closed."""
        await self.leg.until_closed()
        await asyncio.sleep(NOTICE_S)
        self._finished.set()

    async def _until(self, over: Awaitable[object]) -> None:
        if await self._limit.wait_for(over):
            self.end_reason = End.TOO_LONG

    async def _settle(self) -> None:
        """Finish or cancel the background tasks of the agent's part."""
        await self.absence.settle()
        await self._tasks.close()
        self._transport.listener = TransportListener()

    async def _end_unless_transferred(self) -> None:
        if not self._transferred:
            await self._end()

    async def _end(self) -> None:
        reason = self.end_reason if self._transferred else self.leg.closed or self.end_reason
        self.emit(CallEnded(self.leg.heard_ms, reason, self.leg.statistics().as_dict()))
        await self.leg.hang_up(self.end_reason)

    # --- what happens in the pipeline ---

    async def on_connected(self) -> None:
        await self.opening.begin()

    def on_over(self) -> None:
        self._finished.set()

    def on_agent_change(self, change: AgentChangeFrame) -> None:
        self._tasks.spawn(self._change_agent(change), f"change the agent {self.leg.call_id}")

    async def on_idle(self) -> None:
        if self.away or self.opening.waits:  # restart the idle timer
            await self._pipeline.wait_for_silence(self._announcements.idle_s)
        elif self._agent.silences:
            self._tasks.spawn(self._break_silence(), f"silence {self.leg.call_id}")
        elif self._agent.on_idle is not None:
            await self._agent.on_idle()

    async def on_reply(self, text: str, cut: bool) -> None:
        self._history.bound()
        if not text:
            return
        turn, heard = self._turn, text
        if not self._announcements.greeted.is_set() and not self._agent.greeting_interruptible:
            turn = 0
            self._history.drop_last(text)
        if cut and self._agent.played_words is not None:
            heard = await self._agent.played_words(text)
            self._history.correct(text, heard)
        self.emit(AgentTurn(self.leg.heard_ms, turn, heard, cut))

    def on_pause(self, text: str) -> None:
        if not self.opening.waits:
            self._agent.think_ahead(text)

    def about(self) -> dict[str, Any]:
        return {
            "call_id": self.leg.call_id,
            "agent": self._agent.name,
            "hears": self.engines.recognizer.name,
            "speaks": self.engines.synthesizer.name,
            "seconds": self.leg.heard_ms / 1000,
        }

    def transcript(self) -> list[Message]:
        """Return the conversation as it was heard, without the calls of tools."""
        return self._history.transcript()

    def dialog(self) -> dict[str, Any]:
        """Return the state that the agent has beside the conversation, as JSON."""
        return self._agent.dialog()

    async def _break_silence(self) -> None:
        if await self._announcements.break_silence():
            await self.hang_up(End.CALLER_SILENT)

    def on_first_packet(self) -> None:
        """Record the latency of the turn."""
        watch = self.hearing.watch
        if watch.turn and not watch.complete:
            watch.stamp("first_packet", monotonic())
            latency = watch.latency(self.leg.heard_ms)
            logger.debug("{}: turn {} in {} ms", self.leg.call_id, watch.turn, latency.total_ms)
            self.emit(latency)
