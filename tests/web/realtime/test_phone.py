"""Calls of a phone and of a carrier that a program answers: by webhook, accept and a side-band of
openai-python."""

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import numpy as np
import pytest
from aiohttp.test_utils import TestServer
from openai import AsyncOpenAI
from websockets.exceptions import ConnectionClosedOK

from benchmarks.carriers.far_ends.far_end import CallFacts
from benchmarks.carriers.far_ends.far_end_io import FarEndCall
from benchmarks.carriers.far_ends.far_end_json import Twilio
from offhook.media.pcm import RATE_IN, RATE_OUT, Pcm, dbfs
from offhook.pipeline.conversation.turns import user_turn_io
from offhook.telephony.sip.trunks.trunks import SipSettings
from offhook.web.app.callers.caller_leg import AUDIBLE_DBFS
from offhook.web.app.cli.caller_io import ScriptedCall, ScriptLine, spoken, trimmed
from offhook.web.config.config import Agent, Config
from offhook.web.config.server import Server, WebRtc
from offhook.web.edge.edge_io import Edge
from offhook.web.edge.server_io import application
from offhook.web.workers.engines.engines_io import open_synthesizer
from tests.pipeline.conversation.phone import COUNT, Model, calls, model, says
from tests.support.ports import free_port
from tests.support.waiting import HANGS_S
from tests.telephony.carriers.rest.fake_rest import FakeRest
from tests.web.edge.phones import served
from tests.web.edge.test_call_control import KEY, SECRET, Program
from tests.web.edge.test_carriers import carriers, stream_url, webhook
from tests.web.realtime.test_openai_python import Conversation

LINES = ("How many bells have you got?", "Stop please, what are your opening hours?")
TOOL = {
    "type": "function",
    "name": "stock",
    "description": "How many are in stock.",
    "parameters": {"type": "object", "properties": {"what": {"type": "string"}}},
}
EDGE_S = 0.5
"""How exact the beginning and the end of sound are, and of words that are synthesized alone: the
last of them is longer than in the middle of a sentence."""


def agents_of(hook: str, there: Model) -> dict[str, Any]:
    """Calls are those of the program at `hook`, which may have the model answer."""
    return {
        "agent": Agent(kind="webhook", url=hook, secrets=[SECRET]),
        "agents": {
            "model": Agent(kind="openai", base_url=there.url, model="scripted", think_ahead=False)
        },
    }


@asynccontextmanager
async def edge_of_program(there: Model, hook: str, **more: Any) -> AsyncIterator[tuple[str, str]]:
    """A server whose phone calls are those of the program at `hook`; gives its URL and its
    phone. `more`: of its configuration."""
    phones = SipSettings(udp=free_port(), tcp=None, allow_anonymous=True)
    config = Config(
        **agents_of(hook, there),
        webrtc=WebRtc(addresses=["127.0.0.1"]),
        server=Server(port=0, api_key=KEY),
        sip=phones,
        **more,
    )
    edge = Edge(config)
    await edge.start()
    server = TestServer(application(edge))
    await server.start_server()
    try:
        yield str(server.make_url("/v1")), f"sip:desk@127.0.0.1:{phones.udp}"
    finally:
        await server.close()
        await edge.close()


class PatientCall(ScriptedCall):
    """A call of one who waits however late a busy machine answers, and leaves the hanging up to the
    other end."""

    async def _within(self, event: asyncio.Event, seconds: float) -> bool:
        return await super()._within(event, max(seconds, HANGS_S))

    async def _converse(self) -> None:
        await super()._converse()
        await self.leg.until_closed()


async def lines_of(*texts: str) -> list[ScriptLine]:
    voice = open_synthesizer()
    await voice.start()
    lines = [ScriptLine(text, trimmed(await spoken(voice, text))) for text in texts]
    await voice.close()
    return lines


def loud_s(pcm: Pcm, rate: int, gap_s: float = 0.9) -> list[float]:
    """Seconds of sound in each stretch of it: pauses within one do not count."""
    size = rate // 50
    packets = pcm[: len(pcm) // size * size].reshape(-1, size)
    loud = [dbfs(packet) > AUDIBLE_DBFS for packet in packets]
    stretches: list[list[int]] = []
    for at in np.flatnonzero(loud).tolist():
        if not stretches or at - stretches[-1][-1] > gap_s * 50:
            stretches.append([])
        stretches[-1].append(at)
    return [len(stretch) / 50 for stretch in stretches]


async def direct(talk: Conversation, kept: dict[str, Any]) -> None:
    """What the program does with the call."""
    await talk.update(tools=[TOOL], audio={"input": {"transcription": {"model": "whisper-1"}}})
    await talk.send(type="response.create")
    (call,) = (
        await talk.until(
            "response.done",
            lambda event: event.response.output[0].type == "function_call",
        )
    ).response.output
    kept["tool"] = call.arguments
    output = {"type": "function_call_output", "call_id": call.call_id, "output": "fifteen"}
    await talk.send(type="conversation.item.create", item=output)
    await talk.send(type="response.create")
    counted = await talk.until("conversation.item.truncated")
    await talk.send(type="conversation.item.retrieve", item_id=counted.item_id)
    item = (await talk.until("conversation.item.retrieved")).item
    kept["counted"] = item.content[0].transcript
    await talk.until("output_audio_buffer.stopped")
    heard = talk.of("conversation.item.input_audio_transcription.completed")
    kept["heard"] = [event.transcript for event in heard]


async def test_a_program_talks_calls_a_tool_is_interrupted_and_hangs_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(user_turn_io, "WORDS_LATE_MS", 60_000)
    answers = (
        [says("Good morning.")],
        [calls("stock", what="bells")],
        [says(COUNT)],
        [says("From nine to six.")],
    )
    program, kept = Program(), dict[str, Any]()
    lines = await lines_of(*LINES)
    async with (
        model(*answers) as there,
        program.running(),
        edge_of_program(there, program.url) as (url, phone),
        AsyncOpenAI(base_url=url, api_key=KEY) as openai,
    ):
        call = PatientCall(phone, lines, interrupt_after=2.5)
        calling = asyncio.create_task(call.run())
        call_id = (await program.event()).data.call_id
        accepted = {"type": "realtime", "model": "model", "instructions": "You sell bells."}
        await openai.realtime.calls.accept(call_id, **accepted)
        async with (
            asyncio.timeout(3 * HANGS_S),
            openai.realtime.connect(call_id=call_id) as beside,
        ):
            await direct(Conversation(beside), kept)
        await openai.realtime.calls.hangup(call_id)
        await asyncio.wait_for(calling, HANGS_S)
    assert kept["tool"] == '{"what": "bells"}'
    assert len(kept["heard"]) == 2
    assert "hours" in kept["heard"][1] or "stop" in kept["heard"][1]
    assert there.requests[0]["messages"][0]["content"] == "You sell bells."
    known = [message.get("content") for message in there.requests[-1]["messages"]]
    assert kept["counted"] in known
    assert COUNT.startswith(kept["counted"])

    # The phone's own recording has these words, and of the next one a part at most, between the
    # greeting and the last answer. A busy machine makes pauses in them.
    words, told = COUNT.split(), len(kept["counted"].split())
    counted = " ".join(words[:told]), " ".join(words[: told + 1])
    lines = await lines_of("Good morning.", "From nine to six.", *counted)
    greeting_s, answer_s, told_s, more_s = (sum(loud_s(line.pcm, RATE_OUT)) for line in lines)
    played_s = sum(loud_s(np.concatenate(call.leg.heard), RATE_IN)) - greeting_s - answer_s
    assert told_s - EDGE_S < played_s < more_s + EDGE_S


async def test_a_carriers_call_is_talked_with_and_transferred(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(user_turn_io, "WORDS_LATE_MS", 60_000)
    monkeypatch.setattr("tests.web.edge.phones.bot", None)
    answers = (
        [says("Good morning.")],
        [calls("stock", what="bells")],
        [says("Fifteen. I put you through.")],
    )
    program, (line,) = Program(), await lines_of(LINES[0])
    async with FakeRest() as rest, model(*answers) as there, program.running():
        known, placed = rest.settings("twilio"), rest.call("twilio")
        names = ("account", "secret", "rest_url", "number")
        twilio = {"provider": "twilio", **{name: getattr(known, name) for name in names}}
        server_table = {"port": 0, "drain_seconds": 0, "api_key": KEY}
        config = carriers(twilio, server=server_table, **agents_of(program.url, there))
        async with served(config) as server:
            text = await webhook(server, "twilio", placed.id)
            url, parameters = stream_url("twilio", text)
            call = FarEndCall(Twilio(CallFacts(call_id=placed.id, parameters=parameters)))
            await call.start(url)
            openai = AsyncOpenAI(base_url=f"{server.url}/v1", api_key=KEY, max_retries=0)
            call_id = (await program.event()).data.call_id
            await openai.realtime.calls.accept(call_id, type="realtime", model="model")
            async with (
                asyncio.timeout(3 * HANGS_S),
                openai.realtime.connect(call_id=call_id) as beside,
            ):
                talk = Conversation(beside)
                transcribed = {"input": {"transcription": {"model": "whisper-1"}}}
                await talk.update(tools=[TOOL], audio=transcribed)
                await talk.send(type="response.create")
                await talk.until("output_audio_buffer.stopped")
                call.say(line.pcm, RATE_OUT)
                (wanted,) = (await talk.until("response.done")).response.output
                output = {
                    "type": "function_call_output",
                    "call_id": wanted.call_id,
                    "output": "fifteen",
                }
                await talk.send(type="conversation.item.create", item=output)
                await talk.send(type="response.create")
                await talk.until("output_audio_buffer.stopped")
                heard = talk.of("conversation.item.input_audio_transcription.completed")
                await openai.realtime.calls.refer(call_id, target_uri="tel:+4930123456")
                with suppress(ConnectionClosedOK):
                    await talk.until("error")
            await call.close()
            await openai.close()
    assert wanted.arguments == '{"what": "bells"}'
    assert len(heard) == 1
    assert "how many" in heard[0].transcript
    assert "+4930123456" in placed.transferred
    assert talk.of("error") == []
    # Two replies; a busy machine leaves a hole in one.
    assert len(loud_s(call.far_end.player.sound(), call.far_end.rate)) >= 2


@pytest.mark.slow
async def test_the_example_answers_the_phone() -> None:
    answers = (
        [says("Good morning.")],
        [calls("stock", article="bells")],
        [says("We have twelve bells.")],
    )
    port = free_port()
    async with (
        model(*answers) as there,
        edge_of_program(there, f"http://127.0.0.1:{port}/") as (url, phone),
    ):
        program = await asyncio.create_subprocess_exec(
            *(sys.executable, "examples/phone_program.py"),
            env={
                **os.environ,
                "OFFHOOK_URL": url,
                "OFFHOOK_KEY": KEY,
                "WEBHOOK_SECRET": SECRET,
                "PORT": str(port),
            },
        )
        try:
            await until_listening(port)
            call = ScriptedCall(phone, await lines_of(LINES[0]))
            await asyncio.wait_for(call.run(), 2 * HANGS_S)
        finally:
            program.terminate()
            await program.wait()
    assert len(loud_s(np.concatenate(call.leg.heard), RATE_IN)) == 2
    last = there.requests[-1]["messages"]
    assert last[-1] == {"role": "tool", "tool_call_id": last[-1]["tool_call_id"], "content": "12"}


async def until_listening(port: int) -> None:
    async with asyncio.timeout(HANGS_S):
        while True:
            try:
                _, writer = await asyncio.open_connection("127.0.0.1", port)
            except ConnectionError:
                await asyncio.sleep(0.05)
            else:
                return writer.close()
