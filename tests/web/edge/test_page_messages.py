"""What the page, or another RTVI client, is told of a call, in its order."""

import asyncio
import json
from time import monotonic
from typing import Any

import pytest

from offhook.pipeline.conversation.events import Event
from offhook.web.edge.calls.page_messages import for_the_page
from tests.pipeline.conversation.phone import Answerer, PhoneLeg, phone_call

pytestmark = pytest.mark.usefixtures("nothing_left")
TEXT = "one two three four five six seven eight nine ten eleven twelve thirteen fourteen"
PACKETS = 5
"""Played each time that the pipeline moves on: it is slower than the sound, as on a busy
machine."""
TYPED = {
    "label": "rtvi-ai",
    "type": "send-text",
    "id": "1",
    "data": {"content": "stop", "options": {"run_immediately": True, "audio_response": True}},
}


class PageLeg(PhoneLeg):
    """A line with a data channel: what is sent there is kept."""

    def __init__(self) -> None:
        super().__init__()
        self.told: list[tuple[str, Any]] = []

    @property
    def carries_messages(self) -> bool:
        return True

    def send_message(self, text: str) -> bool:
        message = json.loads(text)
        self.told.append((message["type"], message.get("data")))
        return True

    def report(self, event: Event) -> None:
        if (data := for_the_page(event)) is not None:
            self.told.append(("server-message", data))

    def words(self) -> list[str]:
        """The agent's words, and the interruptions among them: `|` of RTVI, and ours."""
        words = []
        for kind, data in self.told:
            if kind == "bot-tts-text":
                words.append(data["text"])
            elif kind == "bot-interrupted":
                words.append("|")
            elif kind == "server-message" and data["type"] == "interrupted":
                words.append(f"{data['heard']} / {data['unheard']}")
        return words


@pytest.mark.parametrize("how", ["by voice", "by typing"])
async def test_no_word_follows_the_interruption_of_its_reply(how: str) -> None:
    """Not even one that is played in the same moment: clients would take it for the next reply."""
    agent, leg = Answerer(TEXT, "yes"), PageLeg()
    async with phone_call(lambda call: agent.agent(), leg) as phone:
        phone.call.listeners.append(leg.report)
        reply = phone.call.hearing.reply
        await phone.until(lambda: len(reply.spoken.split()) >= 2)
        before = reply.spoken
        if how == "by voice":
            while reply.spoken == before:
                leg.tick(monotonic())
            phone.call.hearing.interrupt()
            await phone.until(lambda: "|" in leg.words())
            phone.call.hearing.press("#")
        else:
            leg.listener.on_message(json.dumps(TYPED))
            while "|" not in leg.words():
                for _ in range(PACKETS):
                    leg.tick(monotonic())
                await asyncio.sleep(0)
        await phone.until(lambda: "yes" in leg.words())
    *heard, bar, known, last = leg.words()
    assert heard == TEXT.split()[: len(heard)]
    assert len(heard) >= 3
    assert (bar, last) == ("|", "yes")
    assert known.startswith(f"{' '.join(heard)} / ")
    assert TEXT.startswith(known.replace(" / ", " "))
