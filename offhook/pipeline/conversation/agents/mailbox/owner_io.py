"""Plays the messages of a mailbox to whom they are for, who goes on, deletes and repeats by keys.
See `mailbox` for what follows what."""

import asyncio
from collections.abc import Coroutine
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any
from zoneinfo import ZoneInfo

from loguru import logger
from pipecat.frames.frames import Frame, LLMContextFrame
from pipecat.processors.frame_processor import FrameDirection

from offhook.media.tasks_io import first_of
from offhook.pipeline.conversation.agents.agents_io import SilentAgent
from offhook.pipeline.conversation.agents.mailbox.mailbox import (
    KEYS,
    Event,
    Inbox,
    InboxState,
    Mailbox,
    MailboxFault,
    Message,
)
from offhook.pipeline.conversation.agents.mailbox.phrases import (
    Phrase,
    count,
    introduction,
    phrase,
)
from offhook.pipeline.conversation.agents.mailbox.playing_io import play, speak
from offhook.pipeline.conversation.call_io import Call
from offhook.pipeline.conversation.events import Dtmf
from offhook.pipeline.conversation.events import Event as CallEvent

KEY_S = 8.0
"""Time in s for a key after they were announced; then they are announced again."""
MAX_KEYS = 16
"""Keys pressed ahead; further ones are ignored."""


class Owner(SilentAgent):
    """In the place of a language model, in the call of somebody who asks for messages."""

    def __init__(self, call: Call, mailbox: Mailbox, time_zone: str) -> None:
        super().__init__()
        self._call, self._mailbox = call, mailbox
        self._zone = ZoneInfo(time_zone) if time_zone else None
        self._keys: asyncio.Queue[Event] = asyncio.Queue(MAX_KEYS)
        self._before = ""
        """Said first with what is said next."""
        self._playing: asyncio.Task[None] | None = None
        call.listeners.append(self._listen)

    @property
    def _language(self) -> str:
        call = self._call
        return call.language.speaking.language or call.engines.hearing.language or ""

    def _listen(self, event: CallEvent) -> None:
        if isinstance(event, Dtmf) and event.digit in KEYS and not self._keys.full():
            self._keys.put_nowait(KEYS[event.digit])

    async def process_frame(self, frame: Frame, direction: FrameDirection) -> None:
        await super().process_frame(frame, direction)
        if isinstance(frame, LLMContextFrame) and self._playing is None:
            self._playing = self.create_task(self._play_messages(), "play messages")

    async def cleanup(self) -> None:
        if self._playing is not None:
            await self.cancel_task(self._playing)
        await super().cleanup()

    async def _play_messages(self) -> None:
        try:
            messages = await self._mailbox.messages()
        except MailboxFault as fault:
            self._failed(fault)
            messages = ()
        else:
            self._before = count(messages, self._language)
        inbox = Inbox(messages)
        while inbox.state is not InboxState.OVER:
            deleted = inbox.apply(await self._event(inbox))
            if deleted is not None:
                await self._delete(deleted)
        if messages and inbox.is_at_end:
            self._before += " " + phrase(Phrase.END, self._language)
        await self._say(phrase(Phrase.GOODBYE, self._language))
        await self._call.hang_up()

    async def _delete(self, message: Message) -> None:
        try:
            await self._mailbox.delete(message.id)
            self._before = phrase(Phrase.DELETED, self._language)
            while not self._keys.empty():  # one pressed twice deletes one message
                self._keys.get_nowait()
        except MailboxFault as fault:
            self._failed(fault)

    def _failed(self, fault: MailboxFault) -> None:
        logger.error("{}: messages by phone: {}", self._call.leg.call_id, fault)
        self._before = phrase(Phrase.FAILED, self._language)

    # --- what is heard ---

    async def _event(self, inbox: Inbox) -> Event:
        """Have what the state asks for heard; return the key pressed meanwhile, or that it was."""
        if inbox.state is InboxState.COUNT:
            return await self._unless_key(self._say(""))
        if inbox.state is InboxState.MESSAGE:
            return await self._unless_key(self._play(inbox.number, inbox.message))
        event = await self._unless_key(self._say(phrase(Phrase.MENU, self._language)))
        if event is not Event.HEARD:
            return event
        with suppress(TimeoutError):
            async with asyncio.timeout(KEY_S):
                return await self._keys.get()
        return Event.SILENT

    async def _unless_key(self, sound: Coroutine[Any, Any, None]) -> Event:
        _, pressed = await first_of(sound, self._keys.get())
        return pressed or Event.HEARD

    async def _say(self, text: str) -> None:
        words, self._before = f"{self._before} {text}".strip(), ""
        await speak(self._call, words)

    async def _play(self, number: int, message: Message) -> None:
        sound = asyncio.ensure_future(self._mailbox.listen(message.id))
        try:
            now = datetime.now(UTC).astimezone(self._zone)
            await self._say(introduction(number, message, now, self._language))
            try:
                pcm = await sound
            except MailboxFault as fault:
                logger.error("{}: message {}: {}", self._call.leg.call_id, message.id, fault)
                pcm = None
        finally:
            sound.cancel()
        if pcm is not None:
            await play(self._call.leg, pcm)
        else:
            await self._say(message.text or phrase(Phrase.UNPLAYABLE, self._language))
