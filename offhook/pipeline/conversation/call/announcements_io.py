"""What a call says without asking its agent: the greeting, our own sentences, and what it says when
nobody speaks."""

import asyncio
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any

from pipecat.frames.frames import LLMRunFrame, TTSSpeakFrame
from pipecat.processors.aggregators.llm_context import LLMContext

from offhook.media.playout import Playout
from offhook.media.tasks_io import TaskSet
from offhook.pipeline.conversation.call.agent import IDLE_S, Agent, Engines
from offhook.pipeline.conversation.call.call_pipeline_io import CallPipeline
from offhook.pipeline.conversation.call.followed_language import FollowedLanguage
from offhook.pipeline.conversation.call.silences import Silences
from offhook.pipeline.conversation.sentences import USUAL_LANGUAGE, Occasion, excuses, sentence
from offhook.pipeline.conversation.transport_io import HeardFrame
from offhook.pipeline.conversation.turns.user_turn_io import UserTurnController

SENTENCE_S = 15
"""Timeout in seconds for a sentence to be played; after it the voice is assumed to have failed
too."""


class Announcements:
    """The announcements of one call."""

    def __init__(
        self,
        tasks: TaskSet,
        playout: Playout,
        language: FollowedLanguage,
        agent: Agent,
        engines: Engines,
        sentences: Mapping[Occasion, str] | None,
    ) -> None:
        """`tasks` are those of the call. `sentences` replaces those of `sentences.SENTENCES`."""
        self._tasks, self._language, self._playout = tasks, language, playout
        self.fillers: set[str] = set()
        """What was said while tools ran: no answers of the agent's model."""
        self.hearing: UserTurnController
        self.pipeline: CallPipeline
        """Set when the call begins, as `hearing`."""
        self.change(agent, engines, sentences)

    def change(
        self, agent: Agent, engines: Engines, sentences: Mapping[Occasion, str] | None
    ) -> None:
        """Speak for another agent from now on."""
        self._agent, self._engines, self._sentences = agent, engines, sentences
        self._language.change(agent, engines)
        self.silences = Silences(agent.silences)
        self.greeted = asyncio.Event()
        """Set when the fixed greeting has been played."""
        self.has_unspoken = False
        """Whether the voice has made no sound of something: our sentences are then in its own
        language, or the usual one, whatever the caller speaks."""

    @property
    def agent(self) -> Agent:
        return self._agent

    @property
    def idle_s(self) -> float:
        """Seconds until the agent is to break the silence; 0: it does not."""
        return self.silences.after_s or (IDLE_S if self._agent.on_idle is not None else 0)

    def sentence(self, occasion: Occasion) -> str:
        """Return the sentence for the occasion, in the voice's language or else the one last
        recognized."""
        speaking, hearing = self._language.speaking, self._engines.hearing
        languages = [speaking.language, self.hearing.language, hearing.language, USUAL_LANGUAGE]
        if self.has_unspoken:
            languages = [speaking.language, USUAL_LANGUAGE]
        own = self._sentences if self._language.is_first else None
        return sentence(occasion, next(filter(None, languages)) or "", own)

    def excuses(self) -> Iterator[str]:
        """Yield all sentences that the call may have spoken in the agent's place."""
        yield from excuses(self._sentences)
        yield from self.fillers

    async def say(
        self, text: str, occasion: Occasion | None = None, *, instead: bool = False
    ) -> None:
        """Speak a text, see `Call.say`."""
        if occasion is not None and not self._language.is_first:
            text = self.sentence(occasion)
        spoken = HeardFrame()
        spoken.interruptible = False  # it tells of the end whatever that is
        if instead:
            self.hearing.interrupt()
            self.pipeline.stt.queue(TTSSpeakFrame(text))
            self.pipeline.stt.queue(spoken)
        else:
            await self._speak(TTSSpeakFrame(text), spoken)
        with suppress(TimeoutError):
            async with asyncio.timeout(SENTENCE_S):
                await spoken.heard.wait()

    async def say_whole(self, text: str, within_s: float) -> bool:
        """Speak a text that nobody may interrupt; return whether it was played to its end, within
        so many seconds."""
        before, self.has_unspoken = self._playout.sent, False
        spoken = HeardFrame()  # not set if it is dropped
        played = await self._speak_whole(TTSSpeakFrame(text), spoken, within_s)
        return played and self._playout.sent > before and not self.has_unspoken

    async def _speak_whole(self, text: TTSSpeakFrame, spoken: HeardFrame, within_s: float) -> bool:
        """Speak a text that nobody may interrupt; return whether it was heard within so many
        seconds."""
        self.hearing.agent.interruptible = False
        try:
            await self._speak(text, spoken)
            async with asyncio.timeout(within_s):
                await spoken.heard.wait()
        except TimeoutError:
            return False
        finally:
            self.hearing.agent.interruptible = True
        return True

    async def _speak(self, text: TTSSpeakFrame, spoken: HeardFrame) -> None:
        await self._agent.processor.push_frame(text)
        await self._agent.processor.push_frame(spoken)

    def excuse(self, occasion: Occasion) -> None:
        """Speak a sentence of our own; nobody waits for its end."""
        self._tasks.spawn(self.say(self.sentence(occasion)), f"say {occasion}")

    def blames_agent(self, text: str, *, begun: bool) -> bool:
        """The voice has made no sound of a text of the agent, or of a sentence of our own; return
        whether the agent has failed by that."""
        before, self.has_unspoken = self.has_unspoken, True
        if any(text.endswith(excuse) for excuse in self.excuses()):
            if not before:  # perhaps it can say that in its own language
                self.excuse(Occasion.TROUBLE)
            return False
        if self._agent.on_unspoken is not None:
            self._agent.on_unspoken(begun)
            return False
        return True

    async def begin(self, context: LLMContext) -> None:
        """Begin the conversation: with the notice, then with the greeting, fixed or the agent's
        own, unless the caller has been answered meanwhile."""
        if self._agent.notice:
            await self.notify()
            if self.hearing.watch.turn:
                return
        if self._agent.greeting:
            await self.greet(context)
        else:
            await self.pipeline.worker.queue_frame(LLMRunFrame())

    async def notify(self) -> None:
        """Speak the notice, if there is one: it is no part of the conversation, and nobody can talk
        over it."""
        if not self._agent.notice:
            return
        notice = TTSSpeakFrame(self._agent.notice, append_to_context=False)
        spoken = HeardFrame()
        spoken.interruptible = False
        await self._speak_whole(notice, spoken, SENTENCE_S)

    async def greet(self, context: LLMContext) -> None:
        """Speak the fixed greeting; returns when it was played or interrupted."""
        spoken = HeardFrame(heard=self.greeted)
        spoken.interruptible = False
        if not self._agent.greeting_interruptible:
            # Who speaks meanwhile is answered before it is over, by an agent that must know of it.
            self.hearing.agent.interruptible = False
            greeted: Any = {"role": "assistant", "content": self._agent.greeting}
            context.add_message(greeted)
        await self._speak(TTSSpeakFrame(self._agent.greeting), spoken)
        await self.greeted.wait()
        self.hearing.agent.interruptible = True

    async def say_goodbye(self) -> None:
        """Speak the last words of a call that has become too long, in place of current speech."""
        words = self._agent.goodbye or self.sentence(Occasion.CLOSING)
        await self.say(words, Occasion.CLOSING, instead=True)

    def end_silence(self) -> None:
        """The caller has spoken."""
        if self.silences.spoken():
            self._tasks.spawn(self._await_silence(), "await silence")

    async def _await_silence(self) -> None:
        """Have the next step of a silence taken when it is due."""
        await self.pipeline.wait_for_silence(self.silences.after_s)

    async def break_silence(self) -> bool:
        """Take the step of a silence that is due; return whether the call ends with it."""
        step = self.silences.step()
        if step is None:
            return False
        await self._await_silence()
        if step.say:
            await self.say(step.say, Occasion.STILL_THERE)
        if step.hang_up and self._agent.goodbye:
            await self.say(self._agent.goodbye, Occasion.CLOSING)
        return step.hang_up and self.silences.lasts and not self.hearing.reply.cut
