"""Conversations of the unmodified openai-python with a real edge: its recogniser, its voice, and a
scripted language model."""

import asyncio
import base64
import json
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
import soxr
from aiohttp.test_utils import TestServer
from openai import AsyncOpenAI
from openai.types.realtime import RealtimeServerEvent
from pydantic import TypeAdapter
from websockets.exceptions import ConnectionClosed

from offhook.media.pcm import RATE_OUT, Pcm
from offhook.pipeline.speech.recognizer import Final
from offhook.pipeline.speech.streams.queued_stream_io import QueuedStream
from offhook.web.config.config import Agent, Config
from offhook.web.config.programs import Realtime
from offhook.web.config.server import Server
from offhook.web.edge.edge_io import Edge
from offhook.web.edge.server_io import application
from tests.pipeline.conversation.phone import Model, calls, chunk, model, says, stream
from tests.support.waiting import HANGS_S

PIXEL = bytes.fromhex(
    "89504e470d0a1a0a0000000d49484452000000010000000108000000003a7e9b550000000a494441"
    "54789c636000000002000148afa4710000000049454e44ae426082"
)
"""A PNG file."""
STRICT: TypeAdapter[Any] = TypeAdapter(RealtimeServerEvent)


class Conversation:
    """A connection of openai-python's, and all it received."""

    def __init__(self, connection: Any) -> None:
        self.connection = connection
        self.events: list[Any] = []

    async def until(self, kind: str, condition: Callable[[Any], bool] = lambda event: True) -> Any:
        """Receives up to an event of this type, each checked against OpenAI's types."""
        async with asyncio.timeout(HANGS_S):
            while True:
                raw = await self.connection.recv_bytes()
                event = STRICT.validate_json(raw, strict=True)
                self.events.append(event)
                if event.type == kind and condition(event):
                    return event

    def audio(self) -> bytes:
        """All that was said."""
        return b"".join(base64.b64decode(e.delta) for e in self.of("response.output_audio.delta"))

    def of(self, kind: str) -> list[Any]:
        return [event for event in self.events if event.type == kind]

    async def send(self, **event: Any) -> None:
        await self.connection.send(event)

    async def update(self, **session: Any) -> Any:
        await self.send(type="session.update", session={"type": "realtime", **session})
        return (await self.until("session.updated")).session

    async def say(self, text: str) -> None:
        part = {"type": "input_text", "text": text}
        item = {"type": "message", "role": "user", "content": [part]}
        await self.send(type="conversation.item.create", item=item)

    async def append(self, pcm: Pcm) -> None:
        for at in range(0, len(pcm), 4800):
            audio = base64.b64encode(pcm[at : at + 4800].tobytes()).decode()
            await self.send(type="input_audio_buffer.append", audio=audio)


@asynccontextmanager
async def conversation(
    there: Model,
    realtime: Realtime | None = None,
    server: Server | None = None,
    asks: str | None = "gpt-realtime",
    **agent: Any,
) -> AsyncIterator[Conversation]:
    """A session of a client that names `asks` as the model; None: that names none."""
    about = Agent(kind="openai", base_url=there.url, model="scripted", **agent)
    here = server or Server(port=0)
    edge = Edge(Config(agent=about, server=here, realtime=realtime or Realtime()))
    await edge.start()
    serving = TestServer(application(edge))
    await serving.start_server()
    client = AsyncOpenAI(base_url=str(serving.make_url("/v1")), api_key="none")
    try:
        named = {} if asks is None else {"model": asks}
        async with client.realtime.connect(**named) as connection:
            opened = Conversation(connection)
            if asks is None:  # it suits vLLM's clients too
                assert json.loads(await connection.recv_bytes())["type"] == "session.created"
            else:
                created = await opened.until("session.created")
                assert created.session.type == "realtime"
            yield opened
    finally:
        await client.close()
        await serving.close()
        await edge.close()


@pytest.fixture(scope="module")
def question() -> Pcm:
    """ "What are your opening hours" at 24 kHz, and then silence."""
    import shutil
    import subprocess
    import tempfile
    import wave

    if shutil.which("flite") is None:
        pytest.skip("needs the flite command")
    with tempfile.NamedTemporaryFile(suffix=".wav") as file:
        text = "What are your opening hours?"
        subprocess.run(["flite", "-voice", "slt", "-t", text, "-o", file.name], check=True)
        with wave.open(file.name) as said:
            rate = said.getframerate()
            pcm = np.frombuffer(said.readframes(said.getnframes()), np.int16)
    sound = soxr.resample(pcm, rate, RATE_OUT)
    return np.concatenate((sound, np.zeros(RATE_OUT, np.int16)))


async def test_a_turn_of_text() -> None:
    async with (
        model([says("We are open "), says("on Sunday.")]) as there,
        conversation(there) as talk,
    ):
        await talk.update(instructions="Be brief.", output_modalities=["text"])
        await talk.say("Are you open on Sunday?")
        await talk.send(type="response.create")
        done = await talk.until("response.done")
    assert done.response.status == "completed"
    assert done.response.output[0].content[0].text == "We are open on Sunday."
    assert talk.of("response.output_audio.delta") == []
    messages = there.requests[0]["messages"]
    assert messages[0] == {"role": "system", "content": "Be brief."}
    assert messages[-1] == {"role": "user", "content": "Are you open on Sunday?"}


async def test_the_first_event_begins_a_conversation_where_no_model_is_named() -> None:
    async with model([says("Yes.")]) as there, conversation(there, asks=None) as talk:
        session = await talk.update(output_modalities=["text"], instructions="Agree.")
        assert (session.type, session.instructions) == ("realtime", "Agree.")
        await talk.say("Is it open?")
        await talk.send(type="response.create")
        done = await talk.until("response.done")
        assert done.response.output[0].content[0].text == "Yes."
    assert talk.of("session.created") == []  # there was one before
    async with model() as there, conversation(there, asks=None) as talk:
        unknown = {"type": "realtime", "model": "nobody"}
        await talk.send(type="session.update", session=unknown)
        assert (await talk.until("error")).error.code == "model_not_found"
        with pytest.raises(ConnectionClosed) as closed:
            await talk.until("never")
        assert closed.value.rcvd is not None
        assert closed.value.rcvd.code == 4000


async def test_instructions_of_a_response_are_for_it_alone() -> None:
    async with (
        model([says("Yes.")], [says("No.")]) as there,
        conversation(there, instructions="Be brief.") as talk,
    ):
        await talk.update(output_modalities=["text"])
        await talk.send(type="response.create", response={"instructions": "Agree."})
        await talk.until("response.done")
        await talk.send(type="response.create")
        await talk.until("response.done")
    first, second = (request["messages"][0]["content"] for request in there.requests)
    assert first == "Agree."
    assert second.startswith("Be brief.")


async def test_a_turn_of_speech(question: Pcm) -> None:
    async with model([says("We are open on Sunday.")]) as there, conversation(there) as talk:
        await talk.update(
            audio={
                "input": {
                    "transcription": {"model": "whisper-1"},
                    "turn_detection": {"type": "server_vad"},
                }
            }
        )
        await talk.append(question)
        done = await talk.until("response.done")
    heard = talk.of("conversation.item.input_audio_transcription.completed")[0].transcript
    assert "opening" in heard or "hours" in heard
    assert done.response.output[0].content[0].transcript == "We are open on Sunday."
    pcm = talk.audio()
    assert len(pcm) / 2 / RATE_OUT > 0.8
    assert np.abs(np.frombuffer(pcm, np.int16)).max() > 1000
    kinds = [event.type for event in talk.events]
    order = [
        "input_audio_buffer.speech_started",
        "input_audio_buffer.speech_stopped",
        "input_audio_buffer.committed",
        "conversation.item.added",
        "response.created",
        "response.output_item.added",
        "response.content_part.added",
        "response.output_audio_transcript.delta",
        "response.output_audio.delta",
        "response.output_audio.done",
        "response.output_audio_transcript.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.done",
    ]
    assert [kind for kind in dict.fromkeys(kinds) if kind in order] == order


async def test_a_function_is_called_and_its_output_answered() -> None:
    tool = {
        "type": "function",
        "name": "stock",
        "description": "How many are in stock.",
        "parameters": {"type": "object", "properties": {"what": {"type": "string"}}},
    }
    answers = [calls("stock", what="bells")], [says("There are twelve.")]
    async with model(*answers) as there, conversation(there) as talk:
        await talk.update(tools=[tool], output_modalities=["text"])
        await talk.say("How many bells have you got?")
        await talk.send(type="response.create")
        done = await talk.until("response.done")
        (call,) = done.response.output
        assert (call.type, call.name, call.arguments) == (
            "function_call",
            "stock",
            '{"what": "bells"}',
        )
        output = {"type": "function_call_output", "call_id": call.call_id, "output": "12"}
        await talk.send(type="conversation.item.create", item=output)
        await talk.send(type="response.create")
        done = await talk.until("response.done")
    assert done.response.output[0].content[0].text == "There are twelve."
    roles = [message["role"] for message in there.requests[1]["messages"]]
    assert roles[-3:] == ["user", "assistant", "tool"]
    assert there.requests[1]["messages"][-1]["content"] == "12"


async def test_a_turn_is_committed_by_the_client(question: Pcm) -> None:
    async with model([says("From nine to six.")]) as there, conversation(there) as talk:
        detection = {"turn_detection": None, "transcription": {"model": "whisper-1"}}
        await talk.update(audio={"input": detection})
        await talk.append(question)
        await talk.send(type="input_audio_buffer.commit")
        await talk.until("conversation.item.input_audio_transcription.completed")
        assert talk.of("response.created") == []
        await talk.send(type="response.create")
        done = await talk.until("response.done")
    assert done.response.output[0].content[0].transcript == "From nine to six."


@pytest.mark.parametrize("detection", [{"type": "server_vad"}, None])
async def test_words_that_are_lost_are_a_transcription_that_failed(
    question: Pcm, monkeypatch: pytest.MonkeyPatch, detection: dict[str, str] | None
) -> None:
    events = QueuedStream.events

    async def lose(stream: QueuedStream[Any]) -> AsyncIterator[Final]:
        async for event in events(stream):
            if isinstance(event, Final):
                yield replace(event, text="", lost=True)

    monkeypatch.setattr(QueuedStream, "events", lose)
    async with model([says("Once more, please.")]) as there, conversation(there) as talk:
        asked = {"turn_detection": detection, "transcription": {"model": "whisper-1"}}
        await talk.update(audio={"input": asked})
        await talk.append(np.concatenate((question, np.zeros(2 * RATE_OUT, np.int16))))
        if detection is None:
            await talk.send(type="input_audio_buffer.commit")
        failed = await talk.until("conversation.item.input_audio_transcription.failed")
        (committed,) = talk.of("input_audio_buffer.committed")
        assert failed.item_id == committed.item_id
        assert failed.error.message == "the speech recognizer has failed"
        assert len(talk.of("input_audio_buffer.speech_stopped")) == (detection is not None)
        assert there.requests == []
        await talk.send(type="response.create")  # the session goes on
        assert (await talk.until("response.done")).response.status == "completed"


async def test_an_interrupted_answer_keeps_the_words_that_were_played() -> None:
    async with (
        model([says("One two three four five six seven eight nine ten.")]) as there,
        conversation(there) as talk,
    ):
        await talk.update()
        await talk.say("Count.")
        await talk.send(type="response.create")
        done = await talk.until("response.done")
        item = done.response.output[0]
        await talk.send(
            type="conversation.item.truncate",
            item_id=item.id,
            content_index=0,
            audio_end_ms=900,
        )
        await talk.until("conversation.item.truncated")
        await talk.send(type="conversation.item.retrieve", item_id=item.id)
        kept = (await talk.until("conversation.item.retrieved")).item.content[0].transcript
    assert kept
    assert "One two three four five six seven eight nine ten.".startswith(kept)
    assert len(kept.split()) < 6


async def test_a_response_beside_the_conversation() -> None:
    async with (
        model([says("sales")], [says("Good morning.")]) as there,
        conversation(there) as talk,
    ):
        await talk.update(output_modalities=["text"])
        await talk.say("I want to buy a bicycle.")
        aside = {"conversation": "none", "metadata": {"topic": "triage"}, "input": []}
        await talk.send(type="response.create", response=aside)
        done = await talk.until("response.done")
        assert done.response.metadata == {"topic": "triage"}
        assert done.response.output[0].content[0].text == "sales"
        await talk.send(type="response.create")
        done = await talk.until("response.done")
    assert done.response.output[0].content[0].text == "Good morning."
    assert "sales" not in str(there.requests[1]["messages"])


async def test_pings_are_answered() -> None:
    """Clients that ping, as openai-python does every 20 s, give up a connection without answers."""
    async with model() as there, conversation(there) as talk:
        answered = await talk.connection._connection.ping()
        await asyncio.wait_for(answered, HANGS_S)


async def test_a_response_beside_the_conversation_is_spoken_to_nobody_but_the_client(
    question: Pcm,
) -> None:
    async with (
        model([says("Mark my words.")], [says("From nine to six.")]) as there,
        conversation(there) as talk,
    ):
        await talk.update()
        aside = {"conversation": "none", "metadata": {"topic": "aside"}, "input": []}
        await talk.send(type="response.create", response=aside)
        await talk.append(question)  # the user speaks meanwhile, which cancels nothing
        done = await talk.until("response.done", lambda e: e.response.conversation_id)
        (aside,) = [e.response for e in talk.of("response.done") if not e.response.conversation_id]
        assert aside.status == done.response.status == "completed"
        assert aside.output[0].content[0].transcript == "Mark my words."
        assert (aside.usage.input_tokens, aside.usage.output_tokens) == (9, 3)
        deltas = talk.of("response.output_audio.delta")
        own = b"".join(base64.b64decode(e.delta) for e in deltas if e.response_id == aside.id)
        assert len(own) / 2 / RATE_OUT > 0.5
        assert np.abs(np.frombuffer(own, np.int16)).max() > 1000
        items = {e.item.id for e in talk.of("conversation.item.added")}
        assert aside.output[0].id not in items


async def test_a_response_beside_the_conversation_calls_functions_and_is_cancelled() -> None:
    async with (
        model([calls("stock", what="bells")], [says("One two three four five. " * 400)]) as there,
        conversation(there) as talk,
    ):
        tool = {"type": "function", "name": "stock", "parameters": {"type": "object"}}
        await talk.update(tools=[tool])
        await talk.send(type="response.create", response={"conversation": "none"})
        (call,) = (await talk.until("response.done")).response.output
        assert (call.type, call.name, call.arguments) == (
            "function_call",
            "stock",
            '{"what": "bells"}',
        )
        await talk.send(type="response.create", response={"conversation": "none"})
        delta = await talk.until("response.output_audio.delta")
        await talk.send(type="response.cancel", response_id=delta.response_id)
        done = await talk.until("response.done")
        assert (done.response.status, done.response.id) == ("cancelled", delta.response_id)


async def test_a_model_that_fails_ends_the_response_not_the_session() -> None:
    async with model() as there:

        async def refuse(request: Any) -> Any:
            from aiohttp import web

            return web.Response(status=400, text="no")

        there.ill = refuse
        async with conversation(there) as talk:
            await talk.update(output_modalities=["text"])
            await talk.send(type="response.create")
            done = await talk.until("response.done")
            assert done.response.status == "failed"
            await talk.update(instructions="again")
    assert talk.of("error") == []


async def test_what_is_wrong_is_said_and_nothing_else_happens() -> None:
    """Each with the client's event_id; the session, and its response, go on."""
    async with (
        model([says("One two three.")], [says("Four.")]) as there,
        conversation(there) as talk,
    ):
        await talk.update(audio={"output": {"voice": "marin"}})
        refused = partial(refused_event, talk)
        assert await refused(type="response.cancel") == ("response_cancel_not_active", None)
        await talk.send(type="response.create")
        second = await refused(type="response.create")
        assert second == ("conversation_already_has_active_response", None)
        spoken = (await talk.until("response.done")).response.output[0]
        cut: dict[str, Any] = {"type": "conversation.item.truncate", "content_index": 0}
        of_spoken, end = {**cut, "item_id": spoken.id}, "audio_end_ms"
        unknown = "item_truncate_invalid_item_id", "item_id"
        assert await refused(**of_spoken, audio_end_ms=60_000) == ("invalid_value", end)
        assert await refused(**cut, item_id="item_none", audio_end_ms=1) == unknown
        gone = {"type": "conversation.item.retrieve", "item_id": "item_none"}
        assert await refused(**gone) == ("item_retrieve_invalid_item_id", "item_id")
        late = {"type": "realtime", "audio": {"output": {"voice": "cedar"}}, "instructions": "No."}
        voice = "cannot_update_voice", "session.audio.output.voice"
        assert await refused(type="session.update", session=late) == voice
        untyped = {"type": "session.update", "session": {"instructions": "No."}}
        assert await refused(**untyped) == ("missing_required_parameter", "session.type")
        assert await refused(type="response.make") == ("invalid_value", "type")
        session = await talk.update()
        assert (session.audio.output.voice, session.instructions) == ("marin", "")
        await talk.send(type="conversation.item.retrieve", item_id=spoken.id)
        item = (await talk.until("conversation.item.retrieved")).item
        assert item.content[0].transcript == "One two three."
        assert len(base64.b64decode(item.content[0].audio)) == len(talk.audio())
        await talk.send(type="response.create")
        assert (await talk.until("response.done")).response.status == "completed"
    created = [event.response.id for event in talk.of("response.created")]
    assert created == [event.response.id for event in talk.of("response.done")]


async def refused_event(talk: Conversation, **event: Any) -> tuple[str | None, str | None]:
    """Code and param of the error that answers the event."""
    await talk.send(**event, event_id="mine")
    error = (await talk.until("error")).error
    assert error.event_id == "mine"
    return error.code, error.param


async def test_a_response_beside_one_that_runs() -> None:
    async def think(request: Any) -> Any:
        await asyncio.sleep(HANGS_S)

    async with model() as there, conversation(there, first_token_seconds=60) as talk:
        there.ill = think
        await talk.update(output_modalities=["text"])
        await talk.send(type="response.create")
        first = (await talk.until("response.created")).response.id
        await requested(there)
        there.answers.append([says("sales")])
        aside = {"conversation": "none", "metadata": {"topic": "triage"}}
        await talk.send(type="response.create", response=aside)
        beside = (await talk.until("response.done")).response
        assert (beside.metadata, beside.status) == ({"topic": "triage"}, "completed")
        await talk.send(type="response.cancel")
        main = (await talk.until("response.done")).response
        assert (main.id, main.status) == (first, "cancelled")
        assert main.status_details.reason == "client_cancelled"


async def test_an_image_is_shown_to_a_model_that_takes_images() -> None:
    url = f"data:image/png;base64,{base64.b64encode(PIXEL).decode()}"
    image = {"type": "input_image", "image_url": url, "detail": "low"}
    asked = {"type": "input_text", "text": "What is this?"}
    shown = {"type": "message", "role": "user", "content": [asked, image]}
    async with model([says("A dot.")]) as there:
        async with conversation(there, images=True) as talk:
            await talk.update(output_modalities=["text"])
            await talk.send(type="conversation.item.create", item=shown)
            await talk.send(type="response.create")
            done = await talk.until("response.done")
            assert done.response.output[0].content[0].text == "A dot."
        async with conversation(there) as talk:
            await talk.send(type="conversation.item.create", item=shown)
            assert "does not take images" in (await talk.until("error")).error.message
    assert there.requests[0]["messages"][-1]["content"] == [
        {"type": "text", "text": "What is this?"},
        {"type": "image_url", "image_url": {"url": url, "detail": "low"}},
    ]


async def test_a_session_that_lasts_too_long_expires() -> None:
    short = Server(port=0, max_call_minutes=1 / 60)
    async with (
        model([says("One two three four five. " * 20)]) as there,
        conversation(there, server=short) as talk,
    ):
        assert talk.of("session.created")[0].session.expires_at <= time.time() + 1
        await talk.send(type="response.create")
        error = (await talk.until("error")).error
        assert error.code == "session_expired"
        with pytest.raises(ConnectionClosed) as closed:
            await talk.until("never")
        assert closed.value.rcvd is not None
        assert closed.value.rcvd.code == 1001


async def test_who_goes_on_while_the_agent_thinks_is_answered_then(question: Pcm) -> None:
    async def think(request: Any) -> Any:
        await asyncio.sleep(HANGS_S)

    async with model() as there, conversation(there, first_token_seconds=60) as talk:
        there.ill = think
        await talk.update(audio={"input": {"turn_detection": {"type": "server_vad"}}})
        await talk.append(question)
        await talk.until("response.created")
        await requested(there)
        there.answers.append([says("From nine to six.")])
        await talk.append(question)
        dropped = (await talk.until("response.done")).response
        assert (dropped.status, dropped.status_details.reason) == ("cancelled", "turn_detected")
        done = (await talk.until("response.done")).response
        assert done.output[0].content[0].transcript == "From nine to six."
    for kind in ("speech_started", "speech_stopped", "committed"):
        assert len(talk.of(f"input_audio_buffer.{kind}")) == 2


async def requested(there: Model) -> None:
    """Waits until the model was asked."""
    async with asyncio.timeout(HANGS_S):
        while not there.requests:
            await asyncio.sleep(0.02)


@pytest.mark.parametrize("modality", ["text", "audio"])
async def test_what_follows_a_cancelled_response_is_whole(modality: str) -> None:
    async def think(request: Any) -> Any:
        response = await stream(request)
        await response.write(chunk(says("Nothing of this ")))
        await asyncio.sleep(HANGS_S)

    async with model() as there, conversation(there) as talk:
        there.ill = think
        await talk.update(output_modalities=[modality])
        await talk.send(type="response.create")
        await talk.until("response.output_item.added")
        there.answers.append([says("Two words.")])
        await talk.send(type="response.cancel")
        await talk.send(type="response.create")
        assert (await talk.until("response.done")).response.status == "cancelled"
        [item] = (await talk.until("response.done")).response.output
        assert (item.content[0].text or item.content[0].transcript) == "Two words."
