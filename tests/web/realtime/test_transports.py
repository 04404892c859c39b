"""One script of events by WebSocket, by WebRTC and beside a phone call: the conversation is the
same, and so is the record of the call."""

import asyncio
import json
import random
import re
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from openai import AsyncOpenAI

from offhook.media.pcm import Pcm
from offhook.web.app.cli.caller_io import ScriptedCall
from offhook.web.config.server import Recording
from tests.pipeline.conversation.phone import calls, chunk, model, says, stream
from tests.support.waiting import HANGS_S
from tests.web.edge.test_call_control import KEY, Program
from tests.web.realtime.test_openai_python import Conversation, question
from tests.web.realtime.test_phone import TOOL, edge_of_program
from tests.web.realtime.test_webrtc import Peer

ANSWERS = (
    [calls("stock", what="bells")],
    [says("There are twelve bells in the shop.")],
    [says("aside")],
    [says("In writing.")],
)
OTHER = re.compile(r"session\.created|output_audio_buffer\..*|response\.output_audio\.delta")
"""Events that depend on who plays the audio, and who opened the session."""
OF_THE_LINE = (
    *("at_ms", "spans", "total_ms", "silence_ms", "statistics", "reason", "variables"),
    *("edge", "direction", "caller", "caller_name", "called", "trunk", "headers", "call_id"),
)
"""Fields of a call's record that depend on how and when it came."""


Transport = Callable[[AsyncOpenAI, Program, str], AbstractAsyncContextManager[Any]]
"""Connects, and gives what openai-python's connection does."""

__all__ = ["question"]


class Listener(ScriptedCall):
    """A caller who says nothing."""

    async def _converse(self) -> None:
        await self.leg.until_closed()


class Channel:
    """The data channel of a peer, as a connection of openai-python's."""

    def __init__(self, peer: Peer) -> None:
        self._peer = peer

    async def recv_bytes(self) -> str:
        return await self._peer.inbox.get()

    async def send(self, event: dict[str, Any]) -> None:
        self._peer.send(**event)


@asynccontextmanager
async def by_websocket(openai: AsyncOpenAI, program: Program, phone: str) -> AsyncIterator[Any]:
    async with openai.realtime.connect(model="model") as connection:
        yield connection


@asynccontextmanager
async def by_webrtc(openai: AsyncOpenAI, program: Program, phone: str) -> AsyncIterator[Any]:
    peer = Peer()
    await peer.call(f"{openai.base_url}realtime/calls", {"model": "model"}, KEY)
    await peer.until("session.created")
    try:
        yield Channel(peer)
    finally:
        await peer.close()


@asynccontextmanager
async def by_phone(openai: AsyncOpenAI, program: Program, phone: str) -> AsyncIterator[Any]:
    calling = asyncio.create_task(Listener(phone, []).run())
    call_id = (await program.event()).data.call_id
    await openai.realtime.calls.accept(call_id, type="realtime", model="model")
    async with openai.realtime.connect(call_id=call_id) as connection:
        yield connection
    await openai.realtime.calls.hangup(call_id)
    await asyncio.wait_for(calling, HANGS_S)


async def run_script(talk: Conversation, *, played: bool) -> list[Any]:
    """Returns the items of the conversation at its end. `played`: by the server."""

    async def responded(**response: Any) -> Any:
        await talk.send(type="response.create", response=response)
        return (await talk.until("response.done")).response.output[0]

    await talk.update(instructions="Sell bells.", tools=[TOOL])
    await talk.say("Have you got bells?")
    call = await responded()
    output = {"type": "function_call_output", "call_id": call.call_id, "output": "12"}
    text = [{"type": "input_text", "text": "It is Sunday."}]
    note = {"type": "message", "role": "system", "id": "note", "content": text}
    await talk.send(type="conversation.item.create", item=output)
    await talk.send(type="conversation.item.create", item=note, previous_item_id="root")
    spoken = await responded()
    if played:
        await talk.until("output_audio_buffer.stopped")
    await responded(conversation="none", metadata={"of": "nobody"}, input=[])
    cut = {"item_id": spoken.id, "content_index": 0, "audio_end_ms": 900}
    await talk.send(type="conversation.item.truncate", **cut)
    await talk.say("And in writing?")
    await responded(output_modalities=["text"])
    await talk.send(type="conversation.item.truncate", **{**cut, "audio_end_ms": 90_000})
    await talk.send(type="conversation.item.delete", item_id="note")
    await talk.until("conversation.item.deleted")
    items = []
    for event in talk.of("conversation.item.added"):
        if event.item.id != "note":
            await talk.send(type="conversation.item.retrieve", item_id=event.item.id)
            items.append((await talk.until("conversation.item.retrieved")).item)
    return items


def without_ids(items: list[Any]) -> list[Any]:
    """What remains of items when ids, and audio that was sent in events, are left out."""
    left_out = {"id": True, "call_id": True, "content": {"__all__": {"audio"}}}
    return [item.model_dump(exclude=left_out, exclude_none=True) for item in items]


def record_of(file: Path) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    [taken] = [line for line in lines if line.get("kind") == "tokens_used"]  # by what was not said
    assert (taken["input_tokens"], taken["output_tokens"]) == (9, 3)
    lines.remove(taken)  # which may come before or after what is still being said
    return [{k: v for k, v in line.items() if k not in OF_THE_LINE} for line in lines[1:]]


async def test_one_script_is_one_conversation_by_every_transport(tmp_path: Path) -> None:
    found = []
    for transport in (by_websocket, by_webrtc, by_phone):
        directory, program = tmp_path / transport.__name__, Program()
        recorded = partial(
            edge_of_program, recording=Recording(enabled="always", directory=directory)
        )
        async with (
            model(*ANSWERS) as there,
            program.running(),
            recorded(there, program.url) as (url, phone),
            AsyncOpenAI(base_url=url, api_key=KEY) as openai,
            transport(openai, program, phone) as connection,
        ):
            talk = Conversation(connection)
            items = await run_script(talk, played=transport is not by_websocket)
            [record] = directory.glob("*.jsonl")
            async with asyncio.timeout(HANGS_S):
                while "agent_turn" not in record.read_text():  # its audio is played by now
                    await asyncio.sleep(0.1)
        kinds = [event.type for event in talk.events if not OTHER.fullmatch(event.type)]
        found.append((without_ids(items), kinds, record_of(record)))
    of_websocket, of_webrtc, of_phone = found
    assert of_websocket == of_webrtc == of_phone
    items, kinds, events = of_phone
    assert [item["type"] for item in items].count("message") == 4
    kept = items[3]["content"][0]["transcript"]
    assert "There are twelve bells in the shop.".startswith(f"{kept} ")
    assert kinds.count("response.created") == kinds.count("response.done") == 4
    assert [event["kind"] for event in events] == [
        "call_started",
        "recording_started",
        "agent_turn",
        "call_ended",
        "end",
    ]


SEEDS = [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, 12))]


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("transport", [by_websocket, by_webrtc])
async def test_whatever_the_order_every_response_ends_once(
    question: Pcm, transport: Transport, seed: int
) -> None:
    """Events that come while others are being carried out, and a model that takes its time."""
    chance, program = random.Random(seed), Program()

    async def answer(request: web.Request) -> web.StreamResponse:
        response = await stream(request)
        for word in ["One", "two", "three", "four", "five", "six."]:
            await response.write(chunk(says(f"{word} ")))
            await asyncio.sleep(chance.random() / 20)
        await response.write(b"data: [DONE]\n\n")
        return response

    async with (
        model() as there,
        program.running(),
        edge_of_program(there, program.url) as (url, phone),
        AsyncOpenAI(base_url=url, api_key=KEY) as openai,
        transport(openai, program, phone) as connection,
    ):
        there.ill = answer
        talk = Conversation(connection)

        async def read() -> None:
            while True:
                await talk.until("response.done")

        reading = asyncio.create_task(read())

        def open_ids() -> set[str]:
            return {e.response.id for e in talk.of("response.created")} - {
                e.response.id for e in talk.of("response.done")
            }

        async def cancel() -> None:
            await talk.send(type="response.cancel")

        async def create(**response: Any) -> None:
            await talk.send(type="response.create", response=response)

        async def create_two() -> None:
            await create()
            await create()

        async def create_and_cancel() -> None:
            await create()
            await cancel()

        async def speak() -> None:
            if transport is by_websocket:
                await talk.append(question)

        async def update() -> None:
            modality = chance.choice(["text", "audio"])
            session = {"type": "realtime", "output_modalities": [modality]}
            await talk.send(type="session.update", session=session)

        async def clear() -> None:
            await talk.send(type="output_audio_buffer.clear")

        beside = partial(create, conversation="none")
        written = partial(create, output_modalities=["text"])
        steps = (cancel, create, create_two, create_and_cancel, speak, update, clear)
        for _ in range(40):
            await chance.choice((*steps, beside, written))()
            await asyncio.sleep(chance.choice((0, 0, 0.02, 0.2)))
        async with asyncio.timeout(HANGS_S):
            while open_ids() or not talk.of("response.done"):
                assert not reading.done(), reading
                await asyncio.sleep(0.1)
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)
    done = [event.response.id for event in talk.of("response.done")]
    assert len(done) == len(set(done))
    assert not open_ids()
    known = {"conversation_already_has_active_response", "response_cancel_not_active"}
    known |= {"invalid_event_for_transport", "rate_limit_exceeded"}
    assert {event.error.code for event in talk.of("error")} <= known


async def test_a_response_that_is_cleared_ends_and_the_next_one_is_heard() -> None:
    """A client need not cancel what it clears."""

    async def count(request: web.Request) -> web.StreamResponse:
        response = await stream(request)
        for sentence in ("One two three. ", "Four five six. "):
            await response.write(chunk(says(sentence)))
        await asyncio.sleep(HANGS_S)
        return response

    program = Program()
    async with (
        model() as there,
        program.running(),
        edge_of_program(there, program.url) as (url, phone),
        AsyncOpenAI(base_url=url, api_key=KEY) as openai,
        by_webrtc(openai, program, phone) as connection,
    ):
        there.ill = count
        talk = Conversation(connection)
        await talk.send(type="response.create")
        await talk.until("output_audio_buffer.started")
        await talk.send(type="output_audio_buffer.clear")
        assert (await talk.until("response.done")).response.status == "cancelled"
        await talk.until("output_audio_buffer.cleared")
        there.answers.append([says("Seven.")])
        await talk.send(type="response.create")
        await talk.until("output_audio_buffer.stopped")
    assert talk.of("response.done")[-1].response.status == "completed"
