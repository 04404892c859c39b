"""Callers who leave a message, and those who leave none. The line and the pipeline are real, the
clock is the test's."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.answers.scenes import silence
from benchmarks.answers.voices import trimmed, voices_of
from offhook.media.end_reason import End
from offhook.media.leg import CallInfo
from offhook.media.pcm import RATE_OUT, SAMPLES_OUT, Pcm
from offhook.pipeline.conversation.agents.kinds import kinds
from offhook.pipeline.conversation.agents.kinds.agent_kind import AgentContext, Shared
from offhook.pipeline.conversation.agents.kinds.voicemail import VOICEMAIL, VoicemailSettings
from offhook.pipeline.conversation.call_io import Agent, Call
from offhook.pipeline.conversation.events import AgentTurn, CallEnded, VoicemailLeft
from tests.pipeline.conversation.phone import Phone, PhoneLeg, Words, phone_call
from tests.telephony.sip.phones import write_tone

pytestmark = pytest.mark.asyncio
GREETING = "Ann is not here. Please leave a message after the tone."
ASKED = "Please call me back tomorrow."
TONE_HZ = 1000


@cache
def said(text: str) -> Pcm:
    """The text as Flite reads it, 16 kHz."""
    return trimmed(voices_of("en")[0][1](text)).astype(np.int16)


class Line(PhoneLeg):
    """A call that was diverted from 101; it keeps what it hears of us."""

    def __init__(self) -> None:
        super().__init__(CallInfo("sip", caller="+49301", called="5550101", diverted_from="101"))
        self.heard: list[Pcm] = []

    def _send(self, said: Pcm | None, now: float) -> None:
        super()._send(said, now)
        if said is not None:
            self.heard.append(said)

    def has_heard(self, hz: int) -> bool:
        """Whether this tone was among it, for a fifth of a second."""
        sound = np.concatenate(self.heard[-60:] or [np.zeros(1, np.int16)]).astype(float)
        width = RATE_OUT // 5
        for at in range(0, len(sound) - width, SAMPLES_OUT):
            spectrum = np.abs(np.fft.rfft(sound[at : at + width] * np.hanning(width)))
            if spectrum.max() > 1e6 and abs(int(spectrum.argmax()) * 5 - hz) <= 10:
                return True
        return False


@dataclass
class Table:
    greeting: str
    settings: dict[str, Any]


@asynccontextmanager
async def mailbox(*words: str, greeting: str = GREETING, **settings: Any) -> AsyncIterator[Phone]:
    def make(call: Call) -> Agent:
        about = AgentContext(
            call,
            VoicemailSettings(**settings),
            *(None, "", greeting, Shared(), lambda done: None),
        )
        return replace(VOICEMAIL.make(about), greeting=greeting)

    async with phone_call(make, Line(), Words(*words, *[""] * 9)) as phone:
        yield phone


async def tone(phone: Phone) -> None:
    """Until the caller has heard the tone, and it is over."""
    line: Any = phone.leg
    await phone.until(lambda: line.has_heard(TONE_HZ))
    await phone.pass_ms(600)


async def speak(phone: Phone, text: str) -> None:
    phone.leg.feed(np.concatenate((said(text), silence(1500).astype(np.int16))))
    await phone.until(lambda: not phone.leg.sound)


def left(phone: Phone) -> list[tuple[str, str, str]]:
    return [(e.mailbox, e.caller, e.text) for e in phone.of(VoicemailLeft)]


async def test_a_message_is_kept_with_its_words_for_whom_the_call_was() -> None:
    async with mailbox(ASKED) as phone:
        await phone.until(lambda: phone.of(AgentTurn))
        assert phone.of(AgentTurn)[0].text == GREETING
        await tone(phone)
        await speak(phone, ASKED)
        phone.leg.close(End.CALLER_HUNG_UP)
        await phone.until(lambda: phone.of(CallEnded))
    assert left(phone) == [("101", "+49301", ASKED)]
    kinds_in_order = [type(event) for event in phone.events]
    assert kinds_in_order.index(VoicemailLeft) < kinds_in_order.index(CallEnded)
    assert phone.of(VoicemailLeft)[0].seconds > 1


async def test_who_hangs_up_at_the_tone_has_left_nothing() -> None:
    async with mailbox() as phone:
        await tone(phone)
        phone.leg.close(End.CALLER_HUNG_UP)
        await phone.until(lambda: phone.of(CallEnded))
    assert left(phone) == []


async def test_who_hangs_up_during_the_greeting_has_left_nothing() -> None:
    async with mailbox() as phone:
        await phone.until(lambda: phone.speaking)
        phone.leg.close(End.CALLER_HUNG_UP)
        await phone.until(lambda: phone.of(CallEnded))
    assert left(phone) == []


async def test_a_key_ends_the_message() -> None:
    async with mailbox(ASKED) as phone:
        await tone(phone)
        await speak(phone, ASKED)
        await phone.press("#")
        await phone.until(lambda: phone.of(CallEnded))
    assert left(phone) == [("101", "+49301", ASKED)]
    assert phone.of(CallEnded)[0].reason == End.MESSAGE_LEFT


@pytest.mark.parametrize("spoken", [True, False])
async def test_silence_ends_the_call(spoken: bool) -> None:
    async with mailbox(ASKED) as phone:
        await tone(phone)
        if spoken:
            await speak(phone, ASKED)
        await phone.until(lambda: phone.of(CallEnded))
    assert bool(left(phone)) == spoken
    assert phone.of(CallEnded)[0].reason == (End.MESSAGE_LEFT if spoken else End.CALLER_SILENT)


async def test_a_message_is_no_longer_than_it_may_be() -> None:
    async with mailbox(*[ASKED] * 9, max_seconds=5) as phone:
        await tone(phone)
        for _ in range(8):
            phone.leg.feed(said(ASKED))
        await phone.until(lambda: phone.of(CallEnded))
    [message] = phone.of(VoicemailLeft)
    assert message.seconds < 20
    assert phone.of(CallEnded)[0].reason == End.MESSAGE_LEFT


async def test_a_greeting_may_be_a_file(tmp_path: Path) -> None:
    file = tmp_path / "greeting.wav"
    await asyncio.to_thread(write_tone, file, 440, 8000, 1)
    async with mailbox(ASKED, greeting="", greeting_file=str(file)) as phone:
        line: Any = phone.leg
        await phone.until(lambda: line.has_heard(440))
        await tone(phone)
        await speak(phone, ASKED)
        phone.leg.close(End.CALLER_HUNG_UP)
        await phone.until(lambda: phone.of(CallEnded))
    assert left(phone) == [("101", "+49301", ASKED)]


async def test_a_file_that_cannot_be_played_leaves_the_tone(tmp_path: Path) -> None:
    file = tmp_path / "greeting.wav"
    file.write_bytes(b"RIFF")
    async with mailbox(ASKED, greeting="", greeting_file=str(file)) as phone:
        await tone(phone)
        await speak(phone, ASKED)
        await phone.press("#")
        await phone.until(lambda: phone.of(CallEnded))
    assert left(phone) == [("101", "+49301", ASKED)]


@pytest.mark.parametrize(
    ("greeting", "settings", "fault"),
    [
        ("", {}, "needs greeting"),
        ("Hi.", {"length": 3}, "there is no such key as length"),
        ("Hi.", {"max_seconds": 1}, "max_seconds"),
        ("", {"greeting_file": "nowhere.wav"}, "no such file"),
    ],
)
async def test_settings_that_do_not_fit_are_named(
    greeting: str, settings: dict[str, Any], fault: str
) -> None:
    faults = list(kinds.OURS["voicemail"].faults(Table(greeting, settings)))
    assert any(fault in one for one in faults)
