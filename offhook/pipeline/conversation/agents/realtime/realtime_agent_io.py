"""The agent `realtime`: a speech-to-speech model behind OpenAI's Realtime API, at OpenAI or at
another offhook.

The caller's turns are ours: turn detection, barge-in, captions and records are those of every call.
The model gets the audio of each turn as it is spoken, and its end; what it says is played like
synthesized speech, so that playout knows what was heard of it. Whatever else belongs to the
conversation (keys, sentences of ours, results of tools, all of it after a reconnection) is added
from the call's context as text.
"""

import asyncio
import re
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np
from loguru import logger
from pipecat.frames.frames import (
    BotStoppedSpeakingFrame,
    Frame,
    FunctionCallFromLLM,
    InterruptionFrame,
    LLMContextFrame,
    LLMFullResponseEndFrame,
    LLMTextFrame,
    StartFrame,
    TTSSpeakFrame,
)
from pipecat.processors.aggregators.llm_context import LLMContext
from pipecat.processors.frame_processor import FrameDirection
from pipecat.services.llm_service import LLMService
from pipecat.services.settings import LLMSettings
from pipecat.utils.types import is_given

from offhook.media.codecs.resample import Resampler
from offhook.media.pcm import RATE_IN, RATE_OUT, Pcm
from offhook.media.tasks_io import TaskSet
from offhook.media.untrusted_json import read_json
from offhook.pipeline.conversation.agents.agent_faults import (
    Action,
    AgentFailure,
    Decision,
    Fault,
    Limits,
)
from offhook.pipeline.conversation.agents.realtime.realtime_link_io import (
    RealtimeLink,
    RealtimeModel,
)
from offhook.pipeline.conversation.agents.realtime.realtime_session import (
    SAMPLES_PER_MS,
    AudioDelta,
    ErrorReported,
    RealtimeSession,
    RemoteResponse,
    Report,
    ResponseDone,
    ResponseFailed,
    TextDelta,
    UsageReported,
    WordsPlayed,
)
from offhook.pipeline.conversation.agents.realtime.realtime_speech_io import RemoteSpeech
from offhook.pipeline.conversation.agents.supervision_io import Supervision
from offhook.pipeline.conversation.call_info import model_instructions
from offhook.pipeline.conversation.call_io import Agent, Call
from offhook.pipeline.conversation.call_tools_io import ANYWHERE, call_tools
from offhook.pipeline.conversation.sentences import Occasion
from offhook.pipeline.conversation.services_io import SpokenResponseStartFrame
from offhook.pipeline.conversation.turns.utterance_feed import UserAudioListener
from offhook.pipeline.conversation.turns.words import words
from offhook.pipeline.speech.voice.word_marks import Pace

RENEW_S = 50 * 60.0
"""Age in s at which a session is replaced, in a moment when nobody speaks: OpenAI ends sessions
after 60 minutes."""
_NOTHING = np.zeros(0, np.int16)
QUIET_POLL_S = 1.0
"""How often such a moment is looked for, in s."""
PLAYED_WORDS_S = 1.0
"""Time limit in s for the server's account of an interrupted reply; then our estimate of what was
played is used."""
MAX_PLAYING = 8
"""Responses that may wait to be played; the oldest is forgotten, and an interruption no longer
truncates it."""
NO_WORDS = "…"
"""Stands for speech that came without a transcript."""
CANCELLED = "CANCELLED"
"""Output of a function that an interruption has cancelled, as Pipecat has it."""
_IN_PROGRESS = "IN_PROGRESS"
_SEGMENT = re.compile(r"(?s).{1,200}(?:(?<=\s)|\Z)|.{1,200}")
"""Splits a long transcript, whose cost in Pipecat grows with its square."""
_KEYS = re.compile(r"\[pressed [^\]]*\]")
_NO_SETTINGS: dict[str, Any] = dict.fromkeys(
    field.name for field in fields(LLMSettings) if field.name != "extra"
)
_LOST = frozenset(
    {
        Fault.UNREACHABLE,
        Fault.NO_NAME,
        Fault.UNAUTHORIZED,
        Fault.NO_MODEL,
        Fault.REFUSED,
        Fault.BAD_ANSWER,
        Fault.FIRST_TOKEN_LATE,
        Fault.STALLED,
        Fault.UNEXPECTED,
    }
)
"""Faults after which the session is not used any more."""


@dataclass(frozen=True)
class RealtimeAgentSettings(RealtimeModel):
    instructions: str
    voice: str = ""
    """One of the model's voices; empty: its default."""
    transfers: Sequence[str] = ANYWHERE
    """Targets to which it may transfer: numbers, addresses or patterns; empty: none."""
    limits: Limits = field(default_factory=Limits)
    gives_up_to: str = ""
    """Target to which the caller is transferred when the agent gives up; empty: the call ends."""


@dataclass
class _Reply:
    """A response that may not be played to its end."""

    response: RemoteResponse
    link: RealtimeLink
    start: SpokenResponseStartFrame
    audible: bool = False
    """Audio of it was passed on."""

    def played(self, sent: int) -> int:
        """Returns the samples of it that were played, of `sent` ones in the call."""
        utterance = self.start.utterance
        if utterance is None or utterance.begins_at is None:
            return 0
        return min(max(0, sent - utterance.begins_at), self.response.samples)


class _Mirror:
    """What of the call's context the server of one link knows."""

    def __init__(self) -> None:
        self.last: Any = None
        """The last message that is known there, or has been sent."""
        self.spoken: list[str] = []
        """The user's turns that were committed as audio and are not in the context yet."""


class _Realtime(LLMService[Any], UserAudioListener):
    """Stands where a language model does; runs its tools with Pipecat."""

    def __init__(
        self, settings: RealtimeAgentSettings, instructions: str, call: Call, standby: bool
    ) -> None:
        super().__init__(
            settings=LLMSettings(**{**_NO_SETTINGS, "model": settings.model}),
        )
        self._about = settings
        self._instructions = instructions
        self._call = call
        self._standby = standby
        self._supervision = Supervision(
            *(self, call, settings.limits, standby, settings.gives_up_to),
            secrets=settings.options.secrets(),
        )
        self._faults = self._supervision.faults
        self._link: RealtimeLink | None = None
        self._mirror = _Mirror()
        self._connected_at = 0.0
        self._closing = TaskSet()
        """Links being closed."""
        self._renewing: asyncio.Task[None] | None = None
        self._pace = Pace()
        """Of the model's voice."""
        self._resampler = Resampler(RATE_IN, RATE_OUT)
        self._rest = _NOTHING
        self._turn_open = False
        """The user's turn has audio that was not committed."""
        self._replies: list[_Reply] = []
        """Responses that may not be played to their end."""
        self._played: tuple[RemoteResponse, asyncio.Future[str]] | None = None
        """The response just interrupted, and what was played of it once the server has told."""

    # --- life ---

    async def start(self, frame: StartFrame) -> None:
        await super().start(frame)
        self._connect()
        self._renewing = self.create_task(self._renew(), "renew")

    async def cleanup(self) -> None:
        if self._renewing is not None:
            await self.cancel_task(self._renewing)
        await self._supervision.close()
        self._disconnect()
        await asyncio.gather(*self._closing, return_exceptions=True)
        await super().cleanup()

    def _connect(self) -> RealtimeLink:
        """Returns the link, a new one if the one before is over."""
        if self._link is None or self._link.session.over:
            self._disconnect()
            self._link, self._mirror = self._new_link(), _Mirror()
            self._connected_at = self._now()
        return self._link

    def _new_link(self) -> RealtimeLink:
        about = self._about
        session = RealtimeSession(
            self._prompt, _tools(self._call.context), about.voice, about.limits.answer_characters
        )
        return RealtimeLink(about, session, self._receive_report)

    @property
    def _prompt(self) -> str:
        """The instructions: a program that directs the call may have its own."""
        return self._settings.system_instruction or self._instructions

    def _disconnect(self) -> None:
        link, self._link = self._link, None
        if link is not None:
            self._closing.spawn(link.close(), "close a realtime link")

    async def _renew(self) -> None:
        """Replaces the session before the server ends it."""
        while True:
            await asyncio.sleep(QUIET_POLL_S)
            aged = self._link is not None and self._now() - self._connected_at >= RENEW_S
            if aged and self._is_quiet():
                logger.debug("{}: the realtime session is renewed", self._call.leg.call_id)
                self._disconnect()
                self._connect()
                self._send_context(self._call.context)

    def _is_quiet(self) -> bool:
        playing = self._call.leg.playout
        busy = self._call.hearing.reply.busy or playing.speaking or playing.queued
        return not (self._turn_open or busy or self._mirror.spoken)

    # --- the caller's audio ---

    def on_audio(self, pcm: Pcm) -> None:
        if self._faults.fell_back or self._supervision.gave_up:
            return
        if not self._turn_open:
            self._turn_open = True
            self._resampler, self._rest = Resampler(RATE_IN, RATE_OUT), _NOTHING
            self._connect()
        if self._link is None:
            return
        whole = np.concatenate((self._rest, pcm)) if len(self._rest) else pcm
        even = len(whole) // 2 * 2
        self._rest = whole[even:]
        if even:
            self._link.session.append(self._resampler.process(whole[:even]))
            self._link.flush()

    def on_discard(self) -> None:
        self._turn_open = False
        if self._link is not None:
            self._link.session.clear()
            self._link.flush()

    def on_commit(self, text: str) -> None:
        self._turn_open = False
        if self._link is None or not self._link.session.commit():
            return
        self._mirror.spoken.append(text)
        for keys in _KEYS.findall(text):
            self._link.session.add_message("user", keys)
        self._link.flush()

    # --- one turn ---

    async def process_frame(self, frame: Frame, direction: FrameDirection) -> None:
        if isinstance(frame, LLMContextFrame) and self._supervision.gave_up:
            return
        if isinstance(frame, InterruptionFrame):
            await self._supervision.stop_waiting()
        await super().process_frame(frame, direction)  # an interruption ends the turn in progress
        if isinstance(frame, InterruptionFrame):
            self._cut()
        elif isinstance(frame, BotStoppedSpeakingFrame):
            self._forget_played()
        if isinstance(frame, LLMContextFrame):
            await self._answer(frame.context)
        else:
            await self.push_frame(frame, direction)

    async def _answer(self, context: LLMContext) -> None:
        await self._supervision.begin(context)
        faults, decision = self._faults, None
        if faults.over:
            decision = self._failed(AgentFailure(Fault.TOO_MANY_ROUNDS, f"{faults.rounds}"), False)
        elif not faults.fell_back:
            decision = await self._answer_remotely(context)
        if decision is not None:
            await self._explain(decision)
        elif faults.fell_back:
            await self.push_frame(LLMContextFrame(context))

    async def _answer_remotely(self, context: LLMContext) -> Decision | None:
        """Has the model answer; returns what to tell the caller if it fails."""
        speech = RemoteSpeech(self._pace)
        start = SpokenResponseStartFrame(speech)
        await self.push_frame(start)
        reply: _Reply | None = None
        try:
            while not self._faults.fell_back:
                reply = self._request(context, start)
                try:
                    await self._relay(reply, speech)
                except Exception as error:
                    decision = self._failed(error, reply.audible)
                    if decision.action is Action.CUT:
                        speech.finish()
                    if decision.action not in (Action.RETRY, Action.FALL_BACK):
                        return decision
                    await asyncio.sleep(decision.pause_s)
                else:
                    break
        except asyncio.CancelledError:
            speech.cancel()
            raise
        finally:
            speech.fail("the Realtime model has failed")
            await self.push_frame(LLMFullResponseEndFrame())
        if not self._faults.fell_back and reply is not None:
            if reply.audible:
                self._faults.answered()
            await self._call_functions(reply.response, context)
        return None

    def _request(self, context: LLMContext, start: SpokenResponseStartFrame) -> _Reply:
        """Requests a response to the context."""
        link = self._connect()
        link.session.configure(self._prompt, _tools(context))
        self._send_context(context)
        reply = _Reply(link.session.respond(), link, start)
        link.flush()
        self._replies = [*self._replies[1 - MAX_PLAYING :], reply]
        return reply

    async def _relay(self, reply: _Reply, speech: RemoteSpeech) -> None:
        """Passes a response on while it is generated. Raises AgentFailure."""
        response, between = reply.response, self._about.limits.between_tokens_seconds
        by = self._faults.first_token_by(self._now())
        text = ""  # not passed on: before the audio, which may not come, and half a word
        while True:
            try:
                async with asyncio.timeout_at(by):
                    event = await reply.link.next_event()
            except TimeoutError as error:
                fault = Fault.STALLED if reply.audible else Fault.FIRST_TOKEN_LATE
                raise AgentFailure(fault, "no audio") from error
            if event.response not in (response, None):
                continue
            match event:
                case AudioDelta(pcm=pcm):
                    await self._supervision.spoke()
                    speech.add(pcm)
                    reply.audible = True
                case TextDelta(text=delta):
                    text += delta
                case ResponseDone():
                    await self._pass_on(text)
                    return await self._complete(event, speech)
                case ResponseFailed(fault=fault, words=description):
                    raise AgentFailure(fault, description)
            if reply.audible:
                by = self._now() + between
                end = 1 + max(text.rfind(" "), text.rfind("\n"))
                await self._pass_on(text[:end])
                text = text[end:]

    async def _pass_on(self, text: str) -> None:
        for segment in _SEGMENT.findall(text):
            await self.push_frame(LLMTextFrame(segment))

    async def _complete(self, done: ResponseDone, speech: RemoteSpeech) -> None:
        """Ends a response that is complete. Raises AgentFailure if there is nothing in it, or a
        function call that is not one."""
        response, usage = done.response, done.usage
        if usage is not None:
            self._supervision.used(self._about.model, usage)
            await self.start_llm_usage_metrics(usage)
        for call in response.calls:
            if not isinstance(_parsed(call.arguments), dict):
                raise AgentFailure(Fault.BAD_TOOL_CALL, f"arguments of {call.name}")
        if not (response.samples or response.calls or self._supervision.has_spoken):
            raise AgentFailure(Fault.EMPTY, "an empty answer")
        if response.samples and not response.transcript.strip():
            await self.push_frame(LLMTextFrame(NO_WORDS))
        speech.finish()

    async def _call_functions(self, response: RemoteResponse, context: LLMContext) -> None:
        calls = [
            FunctionCallFromLLM(
                context=context,
                tool_call_id=call.call_id,
                function_name=call.name,
                arguments=_parsed(call.arguments),
            )
            for call in response.calls
        ]
        await self.run_function_calls(calls)

    def _receive_report(self, report: Report) -> None:
        match report:
            case WordsPlayed(response, text):
                of, played = self._played or (None, None)
                if of is response and played is not None and not played.done():
                    played.set_result(text)
            case UsageReported(usage):
                self._supervision.used(self._about.model, usage)
            case ErrorReported(description):
                logger.debug("{}: realtime server: {}", self._call.leg.call_id, description)

    # --- the conversation ---

    def _send_context(self, context: LLMContext) -> None:
        """Adds what the server does not know of the context."""
        link, mirror = self._link, self._mirror
        assert link is not None
        session = link.session
        messages: list[Any] = [m for m in context.messages if isinstance(m, dict)]
        latest = range(len(messages) - 1, -1, -1)
        known = next((i for i in latest if messages[i] == mirror.last), -1)
        transcripts = [words(response.transcript) for response in session.responses]
        calls = {call.call_id for response in session.responses for call in response.calls}
        for message in messages[known + 1 :]:
            role, content = message["role"], str(message.get("content") or "")
            for call in message.get("tool_calls", ()):
                if call["id"] not in calls:
                    function = call["function"]
                    session.add_call(call["id"], function["name"], function["arguments"])
            if role == "user":
                if content in mirror.spoken:
                    mirror.spoken.remove(content)
                elif content:
                    session.add_message("user", content)
            elif role == "assistant" and content:
                own = words(content)
                if not any(text[: len(own)] == own for text in transcripts):
                    session.add_message("assistant", content)
            elif role in ("system", "developer") and content:
                session.add_message("system", content)
            mirror.last = message
        mirror.spoken.clear()
        self._send_outputs(session, messages)
        link.flush()

    def _send_outputs(self, session: RealtimeSession, messages: Sequence[Any]) -> None:
        """Adds the outputs of functions; of those that were never run, that they are cancelled."""
        outputs = {
            message["tool_call_id"]: str(message.get("content"))
            for message in messages
            if message["role"] == "tool"
        }
        for call_id in tuple(session.open_calls):
            output = outputs.get(call_id, CANCELLED)
            if output != _IN_PROGRESS:
                session.add_output(call_id, output)

    # --- interruptions ---

    def _cut(self) -> None:
        """Tells the server what was heard of the replies that the caller has interrupted."""
        sent = self._call.leg.playout.sent
        replies, self._replies = self._replies, []
        for reply in replies:
            played = reply.played(sent)
            reply.link.session.cut(reply.response, played)
            reply.link.flush()
            if played >= SAMPLES_PER_MS and reply.link.session.keeps_words:
                self._played = reply.response, asyncio.get_running_loop().create_future()

    def _forget_played(self) -> None:
        sent = self._call.leg.playout.sent
        self._replies = [
            reply for reply in self._replies if reply.played(sent) < max(1, reply.response.samples)
        ]

    async def played_words(self, estimate: str) -> str:
        """Returns what was played of the reply just interrupted: as the server has it, if it keeps
        the words of a truncated item."""
        if self._played is None:
            return estimate
        _, played = self._played
        await asyncio.wait((played,), timeout=PLAYED_WORDS_S)
        self._played = None
        return (played.done() and played.result()) or estimate

    # --- faults ---

    def _failed(self, error: Exception, speaking: bool) -> Decision:
        fault = error.fault if isinstance(error, AgentFailure) else Fault.UNEXPECTED
        about = self._about
        if fault in _LOST:
            self._disconnect()
        decision = self._supervision.failed(
            error, fault, 0.0, speaking=speaking, model=about.model, base_url=about.base_url
        )
        if fault in _LOST and self._standby and decision.action is Action.SAY:
            self._faults.fall_back(self._now())
        return decision

    async def _explain(self, decision: Decision) -> None:
        """Tells the caller."""
        match decision:
            case Decision(Action.SAY, Occasion() as occasion):
                await self.push_frame(TTSSpeakFrame(self._call.sentence(occasion)))
            case Decision(Action.TRANSFER | Action.GOODBYE, Occasion() as occasion):
                self._supervision.part(occasion)

    @staticmethod
    def _now() -> float:
        return asyncio.get_running_loop().time()


def _tools(context: LLMContext) -> list[dict[str, Any]]:
    """Returns the functions that the model may call."""
    tools = context.tools
    return [t.to_default_dict() for t in tools.standard_tools] if is_given(tools) else []


def _parsed(arguments: str) -> Any:
    """Returns the arguments of a function; None if they are no JSON."""
    try:
        return read_json(arguments or "{}")
    except ValueError:
        return None


def realtime_agent(
    settings: RealtimeAgentSettings, call: Call, standby: Agent | None = None
) -> Agent:
    """Creates an agent whose model hears and speaks itself, informed about the caller, with tools
    for controlling the call; `standby` answers when it fails."""
    instructions = model_instructions(settings.instructions, call.leg.info)
    service = _Realtime(settings, instructions, call, standby is not None)
    agent = Agent(
        "realtime",
        service,
        call_tools(call, settings.transfers, settings.limits.tool_seconds),
        user_audio=service,
        played_words=service.played_words,
    )
    if standby is not None:
        agent.on_cut, agent.standby = standby.on_cut, standby.processor
    return agent
