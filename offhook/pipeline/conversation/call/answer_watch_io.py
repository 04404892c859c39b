"""Finds out who has answered a call that we placed, and has it begin accordingly: the agent greets
a person, leaves a message on a machine, says to a screening service who calls, or hangs up.

    result               a person's agent        a message is to be left
    human, unknown       begins                  begins
    machine              waits for its end       waits for its end
    machine_end          is told, or hangs up    says the message, and hangs up
    screening            says who calls          says who calls
    menu                 is told, or hangs up    is told, or hangs up
    unavailable, fax     hangs up                hangs up

Nobody is hung up on for a result that is not certain: the agent begins instead.
"""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Protocol

from pipecat.processors.aggregators.llm_context import LLMContext

from offhook.media.answer_status import Result
from offhook.media.end_reason import End
from offhook.media.leg import Leg
from offhook.media.pcm import PACKET_MS, RATE_IN, Pcm
from offhook.media.tasks_io import TaskSet, first_of
from offhook.pipeline.conversation.answering.detector import (
    CORRECTED_MS,
    AnswerDetector,
    Verdict,
)
from offhook.pipeline.conversation.answering.policy import AnswerPolicy
from offhook.pipeline.conversation.call.announcements_io import Announcements
from offhook.pipeline.conversation.events import (
    AgentTurn,
    AnsweredBy,
    CallerPartial,
    CallerTurn,
    Event,
    MessageLeft,
    TurnDiscarded,
)
from offhook.pipeline.conversation.turns.turn import TurnState
from offhook.pipeline.speech.vad.vad_io import VadBatch

MACHINE_S = 120.0
"""Time in s from the answer after which a machine that still speaks is hung up on."""
ANNOUNCEMENT_S = 4.0
"""Time in s for an announcement to go on to say that a message can be left; then the call ends."""
FIRST_TURN_S = 4.0
"""Time in s for the words of a person's "Hello?"; then they are a turn like any other. A greeting
does not wait for them."""
GREETING_S = 8.0
"""Time limit in s for a person to end the first sentence; then the agent begins all the same."""
MESSAGE_S = 180.0
"""Time limit in s of a message on a machine; one that lasts longer is not left."""
PAUSE_S = 0.3
"""Pause in s behind a beep, before the message."""
MAX_VERDICTS = 16
"""Results of one call that wait to be acted on; the oldest are dropped."""

MACHINE = (
    "An answering machine has answered this call, and records from now on: nobody is there to "
    "answer questions."
)
MENU = (
    "A menu has answered this call, not a person: choose by the keys of the telephone, or by "
    "saying what it offers."
)
SCREENING = (
    "A screening service has answered this call and asks who calls and why: say both in one "
    "sentence, and then wait until a person or the service speaks."
)


class Watched(Protocol):
    """What the call provides."""

    leg: Leg
    listeners: list[Callable[[Event], None]]
    context: LLMContext

    def emit(self, event: Event) -> None: ...
    async def hang_up(self, reason: str = "") -> None: ...


class AnswerWatch:
    """Of one call; `run` from its beginning until it is certain who has answered."""

    def __init__(
        self,
        call: Watched,
        announcements: Announcements,
        vad: VadBatch,
        policy: AnswerPolicy,
        tasks: TaskSet,
    ) -> None:
        """`tasks` are those of the call."""
        self._tasks = tasks
        self._call, self._announcements = call, announcements
        self._policy = policy
        self._detector = AnswerDetector()
        self._vad = vad
        self._verdicts: asyncio.Queue[Verdict] = asyncio.Queue(MAX_VERDICTS)
        self._turned = asyncio.Event()
        """Set when a turn of whoever has answered has ended."""
        self._begun = False
        """Whether the agent has begun."""
        self._by_carrier: Result | None = None

    @property
    def waits(self) -> bool:
        """Whether the agent has not begun."""
        return not self._begun

    async def run(self) -> None:
        """Find out who has answered, and act on it."""
        leg, call = self._call.leg, self._call
        stream = self._vad.open(
            lambda p, level, end: self._note(self._detector.voice(p, end * 1000 // RATE_IN))
        )

        def tick(heard: Pcm, said: Pcm | None, now: float) -> None:
            if not leg.idle:
                self._note(self._detector.tick(heard))
                stream.feed(heard)
            if leg.answer_status.by_carrier is not self._by_carrier:
                self._by_carrier = leg.answer_status.by_carrier
                if self._by_carrier is not None:
                    self._note(self._detector.carrier(self._by_carrier))

        stop = leg.listen(tick)
        call.listeners.append(self._listen)
        try:
            await self._follow()
        finally:
            stop()
            stream.close()
            call.listeners.remove(self._listen)

    # --- what is heard ---

    def _listen(self, event: Event) -> None:
        match event:
            case CallerPartial(text=text):
                self._note(self._detector.words(text))
            case CallerTurn(text=text):
                self._turned.set()
                self._note(self._detector.words(text))
            case TurnDiscarded():
                self._turned.set()
            case AgentTurn(interrupted=False):
                self._detector.conversed = True

    def _note(self, verdict: Verdict | None) -> None:
        if verdict is None:
            return
        call, status = self._call, self._call.leg.answer_status
        status.result, status.after_ms = verdict.result, verdict.after_ms
        at_ms, result, after_ms = call.leg.heard_ms, verdict.result, verdict.after_ms
        call.emit(AnsweredBy(at_ms, result, after_ms, verdict.why, verdict.heard))
        if self._verdicts.full():
            self._verdicts.get_nowait()
        self._verdicts.put_nowait(verdict)

    # --- what follows ---

    async def _follow(self) -> None:
        last: Verdict | None = None
        while True:
            timeout_s = self._timeout_s(last)
            try:
                async with asyncio.timeout(timeout_s):
                    verdict = await self._verdicts.get()
            except TimeoutError:
                if last is not None and not self._begun:
                    await self._end(last)
                return
            last = verdict
            if await self._act(verdict):
                return

    def _timeout_s(self, last: Verdict | None) -> float | None:
        """Return how long to wait for another result; None: until there is one."""
        heard_s = self._detector.now_ms / 1000
        if last is None:
            return None  # the detector has a bound of its own
        if self._begun and last.result != "screening":
            return max(0.0, CORRECTED_MS / 1000 - heard_s)
        if last.result == "unavailable":
            return ANNOUNCEMENT_S
        return max(0.0, MACHINE_S - heard_s)

    async def _act(self, verdict: Verdict) -> bool:
        """Act on a result; return whether no other is awaited."""
        policy, certain = self._policy, verdict.certain
        match verdict.result:
            case "human" | "unknown":
                await self._begin_agent("", greets=True)
                return False
            case "machine":
                return await self._meet_machine(verdict)
            case "machine_end" if policy.mode == "message" and not (self._begun and not certain):
                beep = "beep" in verdict.why
                if certain or beep:
                    return await self._leave_message(beep=beep)
                await self._begin_agent("", greets=True)
                return False
            case "machine_end" if certain and not policy.on_machine:
                return await self._end(verdict)
            case "machine_end":
                note = f"{MACHINE}\n{policy.on_machine}" if certain else ""
                await self._begin_agent(note, greets=not certain)
                return certain
            case "screening":
                await self._answer_screening()
                return False
            case "menu" if policy.has_model:
                await self._begin_agent(MENU, greets=False)
                return False
            case "unavailable" if policy.mode == "message":
                return False  # a message can perhaps be left
            case _:
                return await self._end(verdict) if certain else False

    async def _meet_machine(self, verdict: Verdict) -> bool:
        if not verdict.certain:
            return False
        policy = self._policy
        if policy.mode == "detect" and not policy.on_machine:
            return await self._end(verdict)
        self._withdraw()
        return False

    def _withdraw(self) -> None:
        """Have the agent keep silent that has begun to speak to a machine."""
        if self._begun:
            self._begun = False
            self._announcements.hearing.interrupt()
            self._announcements.pipeline.hold_agent()

    async def _begin_agent(self, note: str, *, greets: bool) -> None:
        """Have the agent begin, with a `note` on who has answered."""
        announcements, context = self._announcements, self._call.context
        if note:
            self._inform(note)
        if self._begun:
            return
        self._begun = True
        greets = greets and bool(announcements.agent.greeting)
        await self._pause()
        if not self._verdicts.empty():  # it was no person after all
            self._begun = False
            return
        pipeline, ends = announcements.pipeline, announcements.hearing.end_turn()
        self._turned.clear()
        await announcements.notify()
        if greets:
            self._tasks.spawn(announcements.greet(context), f"greet {self._call.leg.call_id}")
        if ends:
            await self._first_words(over_greeting=greets)
        await pipeline.begin_agent(context, greets=greets, greeting_answers=True)

    async def _pause(self) -> None:
        """Wait until whoever is known by the first words has said the rest, or has gone on for a
        while."""
        with suppress(TimeoutError):
            async with asyncio.timeout(GREETING_S):
                while self._detector.speaks and self._verdicts.empty():
                    await asyncio.sleep(PACKET_MS / 1000)

    def _inform(self, note: str) -> None:
        """Tell the agent's model, in the first of its messages."""
        context = self._call.context
        line = {"role": "system", "content": note}
        context.set_messages([line, *context.messages])  # type: ignore[list-item]

    async def _first_words(self, *, over_greeting: bool) -> None:
        """Wait for the words of whoever waits for the agent; they do not interrupt its greeting,
        which answers them."""
        hearing, interruptible = self._announcements.hearing, over_greeting
        interruptible &= self._announcements.agent.greeting_interruptible
        if interruptible:
            hearing.agent.interruptible = False
        with suppress(TimeoutError):
            async with asyncio.timeout(FIRST_TURN_S):
                while not self._turned.is_set() and hearing.state is TurnState.ENDING:
                    await asyncio.sleep(PACKET_MS / 1000)
        if interruptible:
            hearing.agent.interruptible = True

    async def _answer_screening(self) -> None:
        policy, announcements = self._policy, self._announcements
        self._withdraw()
        await self._quiet()
        if policy.on_screening:
            await announcements.say_whole(policy.on_screening, MESSAGE_S)
            self._inform(f"{SCREENING} You have said: {policy.on_screening}")
            self._begun = True
            context = self._call.context
            await announcements.pipeline.begin_agent(context, greets=True, greeting_answers=True)
        elif policy.has_model:
            await self._begin_agent(SCREENING, greets=False)
        else:
            await self._begin_agent("", greets=True)

    async def _quiet(self) -> None:
        """Wait until whoever speaks has ended, or a while."""
        self._turned.clear()
        if self._announcements.hearing.state not in (TurnState.HEARING, TurnState.ENDING):
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(ANNOUNCEMENT_S):
                await self._turned.wait()

    async def _leave_message(self, *, beep: bool) -> bool:
        """Say the message, once more if the beep comes only then; return True."""
        self._withdraw()
        call, text = self._call, self._policy.message
        if beep:
            await asyncio.sleep(PAUSE_S)
        left = await (self._say(text) if beep else self._say_before_a_beep(text))
        if left and call.leg.closed is None:
            call.leg.answer_status.message_left = True
            call.emit(MessageLeft(call.leg.heard_ms, text))
            await call.hang_up(End.MESSAGE_LEFT)
        else:
            await call.hang_up(End.MACHINE_ANSWERED + ", and the message was not left")
        return True

    async def _say(self, text: str) -> bool:
        return await self._announcements.say_whole(text, MESSAGE_S)

    async def _say_before_a_beep(self, text: str) -> bool:
        """Say the message after a silence, and all of it again if the beep comes only then: the
        machine has nothing of it."""
        played, _ = await first_of(self._say(text), self._verdicts.get())
        if played is not None:
            return played
        self._announcements.hearing.interrupt()
        await asyncio.sleep(PAUSE_S)
        return await self._say(text)

    async def _end(self, verdict: Verdict) -> bool:
        """Hang up on what is no person; return True."""
        self._withdraw()
        await self._call.hang_up(End.MACHINE_ANSWERED + f" ({verdict.result})")
        return True
