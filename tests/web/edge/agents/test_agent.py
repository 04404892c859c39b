"""An agent with a language model, as the edge runs it: what fails, and who gets to know."""

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import datetime
from time import monotonic
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np
import pytest
import soxr
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer
from loguru import logger

from offhook.media.end_reason import End
from offhook.media.leg import CallInfo
from offhook.media.pcm import RATE_IN, RATE_OUT, Pcm
from offhook.pipeline.conversation.agents.prompt import BEGINNING
from offhook.pipeline.conversation.call_io import Call
from offhook.pipeline.conversation.events import Event, Interrupted
from offhook.pipeline.conversation.rtvi_io import FAULT
from offhook.pipeline.conversation.sentences import SENTENCES, Occasion
from offhook.pipeline.conversation.turns import user_turn_io as hearing_io
from offhook.pipeline.engines.embedded import pocketsphinx_io
from offhook.pipeline.engines.embedded.flite_io import FliteSynthesizer
from offhook.pipeline.engines.embedded.pocketsphinx_io import PocketSphinxRecognizer
from offhook.pipeline.speech.streams.speech_gate_io import GatedRecognizer
from offhook.web.config.config import Agent, ConfigError, load
from offhook.web.edge import agent_probe_io
from offhook.web.edge.agent_probe_io import AgentProbes
from offhook.web.edge.edge_io import Edge
from offhook.web.edge.server_io import application
from offhook.web.http import logs
from offhook.web.http.logs_io import set_up
from tests.pipeline.conversation.agents.test_agent_faults import FAULTS, SECRET
from tests.pipeline.conversation.phone import PhoneLeg, chunk, model, says
from tests.support.waiting import HANGS_S, until
from tests.web.conftest import CONFIG
from tests.web.edge.agents.test_agent_probe import model_server, refuses

pytestmark = pytest.mark.asyncio(loop_scope="module")
LATE_S = 5
"""On a machine that does much else."""


class Page(PhoneLeg):
    """A line with a program at its end that keeps what it is told."""

    def __init__(self) -> None:
        super().__init__()
        self.told: list[dict[str, Any]] = []

    @property
    def carries_messages(self) -> bool:
        return True

    def send_message(self, text: str) -> bool:
        self.told.append(json.loads(text))
        return True

    def hear(self, **message: Any) -> None:
        """The program says something."""
        assert self.listener is not None
        self.listener.on_message(json.dumps({"label": "rtvi-ai", **message}))

    def words(self) -> str:
        """What the agent said."""
        said = [m["data"]["text"] for m in self.told if m.get("type") == "bot-tts-text"]
        return " ".join(said)


@asynccontextmanager
async def called(
    edge: Edge, agents: dict[str, Agent], leg: PhoneLeg | None = None, **config: Any
) -> AsyncIterator[Any]:
    """A call to the first of the agents, on a line that is a Page unless it is given."""
    edge.config = CONFIG.model_copy(update={"agents": agents, **config})
    leg = leg or Page()
    call = asyncio.create_task(edge.run_call(leg, next(iter(agents))))
    leg.connect()
    try:
        yield leg
    finally:
        leg.close("the test is over")
        await asyncio.wait_for(call, HANGS_S)
        edge.config = CONFIG


def errors(edge: Edge, kind: str, action: str) -> float:
    labels = {"kind": kind, "action": action}
    return edge.metrics.registry.get_sample_value("offhook_agent_errors_total", labels) or 0.0


async def test_every_line_of_a_call_has_its_id(
    edge: Edge, capsys: pytest.CaptureFixture[str]
) -> None:
    set_up(logs.Log(level="DEBUG", json_lines=True))
    async with model() as endpoint:
        endpoint.ill = FAULTS["401"].silent
        agent = Agent(kind="openai", base_url=endpoint.url, api_key=SECRET, model="scripted")
        async with called(edge, {"ill": agent}) as page:
            await until(lambda: page.words() == SENTENCES["en"][Occasion.GREETING])
    written = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    set_up(logs.Log(level="ERROR"))
    of_call = [line for line in written if page.call_id in line["message"]]
    assert {line.get("call") for line in of_call} == {page.call_id}
    assert any("the language model" in line["message"] for line in of_call)


async def test_neither_the_caller_nor_the_log_gets_what_the_server_wrote(
    edge: Edge, capsys: pytest.CaptureFixture[str]
) -> None:
    set_up(logs.Log(level="DEBUG"))
    before = errors(edge, "unauthorized", "sentence")
    async with model() as endpoint:
        endpoint.ill = FAULTS["401"].silent
        agent = Agent(kind="openai", base_url=endpoint.url, api_key=SECRET, model="scripted")
        async with called(edge, {"ill": agent}) as page:
            greeting = SENTENCES["en"][Occasion.GREETING]
            await until(lambda: page.words() == greeting)
    told, written = json.dumps(page.told), capsys.readouterr().err
    set_up(logs.Log(level="ERROR"))
    assert "Incorrect API key" not in told
    assert not [message for message in page.told if message.get("type") == "error"]
    for text in (told, written):
        assert SECRET not in text
        assert SECRET[3:] not in text
    assert "unauthorized" in written
    assert errors(edge, "unauthorized", "sentence") == before + 1


async def test_an_error_inside_the_pipeline_is_told_to_the_caller_in_our_words(
    edge: Edge, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a synthesiser's or a transport's, which Pipecat passes on as it is."""

    async def broken(*arguments: Any, **options: Any) -> Any:
        raise RuntimeError(f"https://user:{SECRET}@tts.example/v1 says no")
        yield

    async with model([says("hello")]) as endpoint:
        agent = Agent(kind="openai", base_url=endpoint.url, model="scripted")
        async with called(edge, {"well": agent}) as page:
            from offhook.pipeline.conversation.services_io import OffhookTTS

            monkeypatch.setattr(OffhookTTS, "run_tts", broken)
            await until(lambda: any(m.get("type") == "error" for m in page.told))
    assert {m["data"]["error"] for m in page.told if m.get("type") == "error"} == {FAULT}
    assert SECRET not in json.dumps(page.told)


async def test_the_front_desk_answers_for_a_model_that_is_gone(edge: Edge) -> None:
    agents = {
        "ill": Agent(kind="openai", base_url="http://127.0.0.1:9/v1", model="m", fallback="desk"),
        "desk": Agent(kind="frontdesk"),
    }
    before = errors(edge, "unreachable", "fall_back")
    async with called(edge, agents) as page:
        await until(lambda: "Lighthouse" in page.words())
    assert errors(edge, "unreachable", "fall_back") == before + 1


@pytest.mark.parametrize("version", ["2.1.0", "2.2.0"])
async def test_a_client_is_told_the_callers_words_in_messages_that_it_knows(
    edge: Edge, version: str
) -> None:
    async with model([says("Hello.")], [says("Nine to six.")]) as endpoint:
        agent = Agent(kind="openai", base_url=endpoint.url, model="scripted")
        async with called(edge, {"desk": agent}) as page:
            await until(lambda: page.words() == "Hello.")
            page.hear(type="client-ready", id="1", data={"version": version})
            page.hear(type="send-text", id="2", data={"content": "When are you open?"})
            await until(lambda: "Nine to six." in page.words())
    kinds = [message["type"] for message in page.told]
    assert kinds.index("bot-ready") < kinds.index("bot-tts-text", kinds.index("bot-ready"))
    assert ("user-input" in kinds) is (version == "2.2.0")
    assert "user-llm-text" in kinds


async def test_typing_over_the_agent_interrupts_it_as_speech_does(edge: Edge) -> None:
    story = "One two three four five six seven eight nine ten eleven twelve."
    async with model([says(story)], [says("Nine to six.")]) as endpoint:
        agent = Agent(kind="openai", base_url=endpoint.url, model="scripted")
        async with called(edge, {"desk": agent}) as page:
            events: list[Event] = []
            await until(lambda: page.call_id in edge.conversations)
            edge.conversations[page.call_id].listeners.append(events.append)  # type: ignore[union-attr]
            await until(lambda: "three" in page.words())
            page.hear(type="send-text", id="1", data={"content": "When are you open?"})
            await until(lambda: "Nine to six." in page.words())
    [cut] = [event for event in events if isinstance(event, Interrupted)]
    assert cut.heard.startswith("One two three")
    assert cut.unheard
    # Of what a busy machine has not synthesized yet, nothing is known.
    assert story.startswith(f"{cut.heard} {cut.unheard}")


async def test_calls_share_their_connections_to_the_model(edge: Edge) -> None:
    """Each call would begin with a handshake otherwise."""
    peers: list[Any] = []

    async def answer(request: web.Request) -> web.StreamResponse:
        assert request.transport is not None
        peers.append(request.transport.get_extra_info("peername"))
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        await response.write(chunk(says("hello")) + b"data: [DONE]\n\n")
        return response

    async with model() as endpoint:
        endpoint.ill = answer
        agents = {"well": Agent(kind="openai", base_url=endpoint.url, model="scripted")}
        for count in range(1, 6):
            async with called(edge, agents) as page:
                await until(lambda page=page: page.words() == "hello")
            assert len(peers) == count
    assert len(set(peers)) == 1


class Punctual(PhoneLeg):
    """Knows how late its packets were."""

    latest = 0.0
    last: float | None = None

    def _send(self, said: Pcm | None, now: float) -> None:
        super()._send(said, now)
        moment = monotonic()
        if self.last is not None:
            self.latest = max(self.latest, moment - self.last - 0.02)
        self.last = moment


@pytest.mark.parametrize("tokens", [2_000, pytest.param(10_000, marks=pytest.mark.slow)])
async def test_a_long_answer_without_punctuation_stops_nobody_else(edge: Edge, tokens: int) -> None:
    other = Punctual()
    other.call_id = "other"
    agents = {"wordy": Agent(kind="openai", model="m", answer_characters=100_000)}
    async with (
        model([says("word ") for _ in range(tokens)]) as endpoint,
        TestClient(TestServer(application(edge))) as client,
    ):
        agents["wordy"] = agents["wordy"].model_copy(update={"base_url": endpoint.url})
        async with called(edge, {"silent": Agent(kind="silent")}, other):
            await until(lambda: other.last is not None)
            async with called(edge, agents) as page:
                slowest = 0.0
                done: float | None = None
                until_then = monotonic() + 100
                while done is None or monotonic() < done + LATE_S:
                    assert monotonic() < until_then
                    asked = monotonic()
                    assert (await client.get("/healthz")).status == 200
                    slowest = max(slowest, monotonic() - asked)
                    await asyncio.sleep(0.05)
                    if done is None and any(m["type"] == "bot-llm-stopped" for m in page.told):
                        done = monotonic()
    assert sum(m["type"] == "bot-llm-text" for m in page.told) == tokens
    # Each was half a minute and more when every token cost as much as all before it.
    assert slowest < LATE_S
    assert other.latest < LATE_S


async def test_own_sentences_are_said_with_what_is_known_of_the_call(edge: Edge) -> None:
    agent = Agent(
        kind="openai",
        base_url="http://127.0.0.1:9/v1",
        model="m",
        sentences={"greeting": "Ahoy {{caller}}!"},
    )
    page = Page()
    page.info = CallInfo(edge="sip", caller="Ann")
    async with called(edge, {"ill": agent}, page):
        await until(lambda: page.words() == "Ahoy Ann!")


async def test_with_a_voice_that_the_engine_does_not_have_the_callers_hear_its_own(
    edge: Edge,
) -> None:
    """Engines elsewhere are asked with the first call only."""
    lines: list[str] = []
    sink = logger.add(lines.append, format="{message}")
    async with called(edge, {"desk": Agent(greeting="Hello.", voice="nobody")}) as page:
        await until(lambda: page.words() == "Hello.")
    logger.remove(sink)
    fault = "flite has no voice 'nobody', only slt, rms, awb: the engine's own voice speaks instead"
    assert [line.strip() for line in lines if "voice" in line] == [fault]


async def test_readyz_says_when_the_model_is_gone(
    edge: Edge, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(agent_probe_io, "PROBE_S", 0.02)
    monkeypatch.setattr(agent_probe_io, "RETRY_S", 0.02)
    usual = edge.agents.probes
    async with model_server() as server:
        agent = Agent(kind="openai", base_url=server.url, model="stub", ready_probe=True)
        edge.agents.probes = AgentProbes(CONFIG.model_copy(update={"agent": agent}))
        async with TestClient(TestServer(application(edge))) as client:
            response = await client.get("/readyz")
            assert response.status == 503
            assert (await response.json())["agents_without_model"] == ["agent"]
            edge.agents.probes.start()
            await until(lambda: not edge.agents.probes.gone)
            assert (await client.get("/readyz")).status == 200
            for refusal in (refuses(404, "no such model"), refuses(401, "no such key")):
                well, server.answer = server.answer, refusal
                await until(lambda: edge.agents.probes.gone)
                assert (await client.get("/readyz")).status == 503
                server.answer = well
                await until(lambda: not edge.agents.probes.gone)
        await edge.agents.probes.close()
    edge.agents.probes = usual


@pytest.mark.parametrize("is_operators", [True, False])
async def test_only_the_operators_page_is_told_why_the_model_fails(
    edge: Edge, is_operators: bool
) -> None:
    async with model_server() as server:
        server.answer = refuses(404, f"The model `gone` does not exist for {SECRET}")
        agent = Agent(kind="openai", base_url=server.url, api_key=SECRET, model="gone")
        page = Page()
        page.is_operators = is_operators
        async with called(edge, {"ill": agent}, page):
            await until(lambda: page.words() == SENTENCES["en"][Occasion.GREETING])
    told = [m["data"] for m in page.told if m.get("type") == "server-message"]
    failed = [data for data in told if data["type"] == "agent-failed"]
    assert SECRET not in json.dumps(page.told)
    if not is_operators:
        assert failed
        assert all("reason" not in data for data in failed)
        assert "does not exist" not in json.dumps(page.told)
        return
    host = server.url.partition("//")[2].partition("/")[0]
    assert failed[0]["fault"] == "no_model"
    assert failed[0]["reason"].startswith(f"no_model: gone at {host}: ")
    assert "404" in failed[0]["reason"]
    assert "The model `gone` does not exist" in failed[0]["reason"]


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("[agent]\nkind = 'openai'\nfallback = 'nobody'", "no agent is called 'nobody'"),
        ("[agent]\nfallback = 'b'\n[agents.b]", 'fallback: only for kind = "openai", "realtime"'),
        ("[agents.a]\nkind = 'openai'\nfallback = 'a'", "agents.a.fallback: 'a' cannot answer"),
        ("[agent.sentences]\nhowdy = 'x'", "agent.sentences.howdy"),
        ("[agent]\nfirst_token_seconds = 0", "agent.first_token_seconds"),
        ("[agent]\nturn = {end_silense = 1}", "agent.turn: end_silense: [turn] has no such time"),
        ("[agent]\nturn = {end_silence = true}", "agent.turn: end_silence: must be a whole number"),
        ("[agent]\nturn = {model = 'words'}", "agent.turn: model: [turn] has no such time"),
        ("[agent]\nnoise_suppression = 'maybe'", "agent.noise_suppression"),
    ],
)
async def test_what_is_wrong_with_an_agent_is_named(tmp_path: Any, text: str, names: str) -> None:
    path = tmp_path / "offhook.toml"
    path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        load(path, {})
    assert names in str(caught.value)


@pytest.mark.parametrize(
    ("late_ms", "ping_s"),
    [
        (1000, 0.6),
        pytest.param(hearing_io.WORDS_LATE_MS, pocketsphinx_io.PING_S, marks=pytest.mark.slow),
    ],
)
async def test_a_caller_whose_recogniser_hangs_is_asked_to_wait_and_then_answered(
    edge: Edge, monkeypatch: pytest.MonkeyPatch, late_ms: int, ping_s: float
) -> None:
    monkeypatch.setattr(hearing_io, "WORDS_LATE_MS", late_ms)
    monkeypatch.setattr(pocketsphinx_io, "PING_S", ping_s)
    gate = edge.engines.configured.recognizer
    assert isinstance(gate, GatedRecognizer)
    recognizer = gate.engine
    assert isinstance(recognizer, PocketSphinxRecognizer)
    hung = recognizer.losses["hung"]
    question = await asyncio.to_thread(said_by_flite, "When are you open?")
    wait = SENTENCES["en"][Occasion.WAIT]
    async with model([says("Hello.")], [says("At nine.")]) as endpoint:
        how = {"base_url": endpoint.url, "model": "scripted", "think_ahead": False}
        agent = Agent(kind="openai", **how)
        async with called(edge, {"well": agent}) as page:
            await until(lambda: page.words() == "Hello." and not page.playout.speaking)
            page.feed(question)
            half = len(page.sound) // 2
            await until(lambda: len(page.sound) <= half)
            for worker in recognizer._workers:
                assert worker.child is not None
                os.kill(worker.child.pid, signal.SIGSTOP)
            await until(lambda: page.words() == f"Hello. {wait}")
            await until(lambda: page.words() == f"Hello. {wait} At nine.")
    assert "when are you" in endpoint.requests[-1]["messages"][-1]["content"]
    assert recognizer.losses["hung"] == hung + 1


def said_by_flite(text: str) -> Pcm:
    pieces = FliteSynthesizer().speak(text, "slt")
    pcm = np.concatenate([piece.pcm for piece in pieces])
    return np.rint(soxr.resample(pcm.astype(np.float32), RATE_OUT, RATE_IN)).astype(np.int16)


async def test_an_agent_has_its_own_greeting_voice_and_words_of_the_call(edge: Edge) -> None:
    async with model([says("Of course.")]) as endpoint:
        agent = Agent(
            kind="openai",
            base_url=endpoint.url,
            model="scripted",
            greeting="Hello {{header.x-name}}, you call {{called}}.",
            instructions="You talk to {{caller}}, who has plan {{plan}} of {{shop}}, at {{time}}.",
            variables={"plan": "basic", "shop": "ours"},
            time_zone="Asia/Kathmandu",
            language="en-GB",
            voice="rms",
            speed=1.2,
            context="Lindqvist",
            noise_suppression="off",
        )
        info = CallInfo(edge="sip", caller="+49301", called="100", headers={"X-Name": "Ann"})
        page = Page()
        page.info = replace(info, variables={"plan": "gold", "other": "no"})
        zone = ZoneInfo("Asia/Kathmandu")  # 5:45 h from UTC, so at no time that of this machine
        times = {f"{datetime.now(zone):%H:%M}"}
        async with called(edge, {"desk": agent}, page):
            await until(lambda: page.words() == "Hello Ann, you call 100.")
            call = edge.conversations[page.call_id]
            times.add(f"{datetime.now(zone):%H:%M}")
            assert endpoint.requests == []
            page.hear(type="send-text", id="1", data={"content": "My bike, please."})
            await until(lambda: page.words().endswith("Of course."))
    (asked,) = endpoint.requests
    system, begins, greeted, user = (message["content"] for message in asked["messages"])
    begins_with = "You talk to +49301, who has plan gold of ours, at "
    assert system.startswith(tuple(f"{begins_with}{time}." for time in times))
    assert begins == BEGINNING
    assert greeted == "Hello Ann, you call 100."
    assert user == "My bike, please."
    assert isinstance(call, Call)
    speaking, hearing = call.engines.speaking, call.engines.hearing
    assert (speaking.voice, speaking.language, speaking.speed) == ("rms", "en", 1.2)
    assert (hearing.language, hearing.context) == ("en-GB", "Lindqvist")
    assert call.engines.turn_detection.enhancement.noise_suppression == "off"


async def test_a_call_is_no_longer_than_its_agent_allows(edge: Edge) -> None:
    agent = Agent(greeting="Hello.", goodbye="Time is up.", max_minutes=0.05)
    page = Page()
    edge.config = CONFIG.model_copy(update={"agents": {"short": agent}})
    call = asyncio.create_task(edge.run_call(page, "short"))
    page.connect()
    await asyncio.wait_for(call, HANGS_S)
    edge.config = CONFIG
    assert page.closed == End.TOO_LONG
    assert page.words() == "Hello. Time is up."
