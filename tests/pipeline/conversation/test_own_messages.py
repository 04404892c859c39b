"""Somebody who calls to hear the messages of a mailbox. The line and the pipeline are real, the
clock is the test's."""

import string
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.servers.scripted import ScriptedSynthesizer, ScriptedSynthesizerStream
from offhook.media.pcm import RATE_OUT, Pcm
from offhook.pipeline.conversation.agents.kinds.agent_kind import AgentContext, Shared
from offhook.pipeline.conversation.agents.kinds.voicemail import VOICEMAIL, VoicemailSettings
from offhook.pipeline.conversation.agents.mailbox import owner_io
from offhook.pipeline.conversation.agents.mailbox.mailbox import (
    KEYS,
    TRIES,
    Event,
    Inbox,
    InboxState,
    MailboxFault,
    Message,
)
from offhook.pipeline.conversation.agents.mailbox.phrases import (
    PHRASES,
    Phrase,
    introduction,
    phrase,
)
from offhook.pipeline.conversation.call_io import Agent, Call
from offhook.pipeline.conversation.events import CallEnded
from offhook.pipeline.speech.synthesizer import DEFAULT_VOICE, VoiceOptions
from tests.pipeline.conversation.phone import Phone, phone_call
from tests.pipeline.conversation.test_voicemail import Line

NOON = datetime(2026, 12, 1, 12, tzinfo=UTC)
MENU = phrase(Phrase.MENU, "en")


def message(name: str, *, heard: bool = False, text: str = "") -> Message:
    return Message(name, f"+4930{name}", datetime.now(UTC), text, heard)


class Kept:
    """A mailbox whose messages are tones."""

    def __init__(self, *messages: Message, fails: bool = False) -> None:
        self.kept, self.fails = list(messages), fails
        self.listened: list[str] = []
        self.without_sound: set[str] = set()

    async def messages(self) -> Sequence[Message]:
        if self.fails:
            raise MailboxFault("the disk is gone")
        return tuple(self.kept)

    async def listen(self, message: str) -> Pcm | None:
        self.listened.append(message)
        if message in self.without_sound:
            return None
        hz = 100 * int(message)
        return (8000 * np.sin(2 * np.pi * hz * np.arange(RATE_OUT) / RATE_OUT)).astype(np.int16)

    async def delete(self, message: str) -> None:
        if self.fails:
            raise MailboxFault("the disk is gone")
        self.kept = [one for one in self.kept if one.id != message]


class Voice(ScriptedSynthesizer):
    """Keeps what it is to say."""

    def __init__(self) -> None:
        self.said = ""

    def open(self, options: VoiceOptions = DEFAULT_VOICE) -> ScriptedSynthesizerStream:
        stream = super().open(options)
        write = stream.write

        def keep(text: str) -> None:
            self.said += f" {text}"
            write(text)

        stream.write = keep  # type: ignore[method-assign]
        return stream


@dataclass
class Table:
    time_zone: str = "UTC"


@asynccontextmanager
async def asked_for(kept: Kept) -> AsyncIterator[Phone]:
    def make(call: Call) -> Agent:
        about = AgentContext(
            *(call, VoicemailSettings(), Table(), "", "", Shared(), lambda done: None)
        )
        return VOICEMAIL.make(replace(about, mailbox=kept))

    async with phone_call(make, Line(), synthesizer=Voice()) as phone:
        yield phone


def said(phone: Phone) -> str:
    voice = phone.call.engines.synthesizer
    assert isinstance(voice, Voice)
    return " ".join(voice.said.split())


async def plays(phone: Phone, name: str) -> None:
    line: Any = phone.leg
    await phone.until(lambda: line.has_heard(100 * int(name)))


async def says(phone: Phone, text: str) -> None:
    await phone.until(lambda: text in said(phone))


async def test_messages_are_counted_and_played_each_with_its_caller_and_the_keys() -> None:
    kept = Kept(message("5"), message("9", heard=True))
    async with asked_for(kept) as phone:
        await says(phone, "New messages: 1. Heard messages: 1.")
        await plays(phone, "5")
        assert "Message 1, today at " in said(phone)
        assert "from +49305." in said(phone)
        await says(phone, MENU)
        await phone.press("3")
        await plays(phone, "9")
        await says(phone, "Message 2, today at ")
        await says(phone, MENU)
        await phone.press("3")
        await phone.until(lambda: phone.of(CallEnded))
        assert "There are no more messages. Goodbye." in said(phone)
    assert kept.listened == ["5", "9"]


async def test_one_is_heard_again_and_deleted_in_its_middle() -> None:
    kept = Kept(message("5"), message("9"))
    async with asked_for(kept) as phone:
        await plays(phone, "5")
        await phone.press("1")
        await phone.until(lambda: kept.listened == ["5", "5"])
        await plays(phone, "5")
        await phone.press("22", every_ms=0)
        await plays(phone, "9")
        assert [one.id for one in kept.kept] == ["9"]
        assert "Deleted. Message 2" in said(phone)
        await phone.press("2")
        await phone.until(lambda: phone.of(CallEnded))
    assert kept.kept == []


async def test_whoever_presses_nothing_hears_the_keys_again_and_then_goodbye(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(owner_io, "KEY_S", 0.1)
    async with asked_for(Kept(message("5"), message("9"))) as phone:
        await phone.until(lambda: phone.of(CallEnded))
        assert said(phone).count(MENU) == TRIES
        assert said(phone).endswith("Goodbye.")
        assert "no more" not in said(phone)


async def test_keys_pressed_ahead_count_and_others_do_nothing() -> None:
    kept = Kept(message("5"), message("6"), message("9"))
    async with asked_for(kept) as phone:
        await phone.press("*7#333", every_ms=20)  # the count, and two messages
        await plays(phone, "9")
    assert kept.listened[-1] == "9"


async def test_who_has_no_messages_hears_that() -> None:
    async with asked_for(Kept()) as phone:
        await phone.until(lambda: phone.of(CallEnded))
        assert said(phone) == "You have no messages. Goodbye."


async def test_what_fails_is_said() -> None:
    async with asked_for(Kept(fails=True)) as phone:
        await phone.until(lambda: phone.of(CallEnded))
        assert said(phone).startswith(phrase(Phrase.FAILED, "en"))
    kept = Kept(message("5"))
    async with asked_for(kept) as phone:
        await plays(phone, "5")
        kept.fails = True
        await phone.press("2")
        await phone.until(lambda: phone.of(CallEnded))
        assert phrase(Phrase.FAILED, "en") in said(phone)


async def test_what_was_kept_in_words_only_is_read_out() -> None:
    kept = Kept(message("5", text="call me back"), message("9"))
    kept.without_sound = {"5", "9"}
    async with asked_for(kept) as phone:
        await says(phone, "call me back")
        await phone.press("3")
        await says(phone, phrase(Phrase.UNPLAYABLE, "en"))


# --- without a line ---


@given(st.integers(0, 4), st.lists(st.sampled_from(list(Event))))
def test_an_inbox_ends_and_deletes_each_message_once(number: int, events: list[Event]) -> None:
    inbox = Inbox([message(str(one)) for one in range(number)])
    deleted = []
    for event in events:
        if inbox.state is InboxState.OVER:
            break
        if event is Event.SILENT and inbox.state is not InboxState.MENU:
            continue
        if event is Event.HEARD and inbox.state is InboxState.MENU:
            continue
        current = inbox.message
        if (gone := inbox.apply(event)) is not None:
            assert (gone, event) == (current, Event.DELETE)
            deleted.append(gone.id)
    assert len(deleted) == len(set(deleted))
    assert inbox.state is InboxState.OVER or inbox.message


def test_a_key_is_announced_in_every_language_and_nothing_is_missing() -> None:
    for language, phrases in PHRASES.items():
        assert phrases.keys() == set(Phrase), language
        assert all(key in phrases[Phrase.MENU] for key in KEYS), language
        for which, text in phrases.items():
            fields = {name for _, name, _, _ in string.Formatter().parse(text) if name}
            there = string.Formatter().parse(PHRASES["en"][which])
            assert fields == {name for _, name, _, _ in there if name}, (language, which)


@pytest.mark.parametrize(
    ("ago", "words"),
    [
        (timedelta(minutes=3), "Message 1, today at 11:57, from Ann."),
        (timedelta(hours=13), "Message 1, yesterday at 23:00, from Ann."),
        (timedelta(days=3, hours=2, minutes=55), "Message 1, 3 days ago at 9:05, from Ann."),
        (-timedelta(days=2), "Message 1, today at 12:00, from Ann."),  # of another clock
    ],
)
def test_when_it_was_left_is_said(ago: timedelta, words: str) -> None:
    left = Message("a", "Ann", NOON - ago, "", heard=False)
    assert introduction(1, left, NOON, "en-GB") == words


def test_a_caller_without_a_number_has_a_name() -> None:
    left = Message("a", "", NOON, "", heard=False)
    assert introduction(2, left, NOON, "de") == (
        "Nachricht 2, heute um 12:00 Uhr, von einer unbekannten Nummer."
    )
