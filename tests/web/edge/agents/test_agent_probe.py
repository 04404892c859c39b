"""A language model that would fail every call is found before anybody calls: by the doctor, and by
/readyz where that is wanted."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from loguru import logger

from offhook.pipeline.conversation.agents.kinds import model_probe_io
from offhook.pipeline.conversation.agents.kinds.model_probe_io import examine_chat
from offhook.pipeline.engines.embedded import here_io
from offhook.pipeline.speech.errors import EngineError
from offhook.web.app.doctor import report_io
from offhook.web.config.config import Agent, Config
from offhook.web.edge import agent_probe_io
from offhook.web.edge.agent_probe_io import AgentProbes
from tests.support.ports import free_port

SOON = 60
KEY = "sk-test-0123456789abcdefghij"
Answer = Callable[[web.Request], Awaitable[web.StreamResponse]]
YES = {"choices": [{"index": 0, "message": {"role": "assistant", "content": "Yes"}}]}


class ModelServer:
    """A chat server at `url` of which a test decides what it answers."""

    def __init__(self) -> None:
        self.answer: Answer = says(YES)
        self.asked: list[dict[str, Any]] = []
        self.url = ""

    async def handle(self, request: web.Request) -> web.StreamResponse:
        self.asked.append(await request.json())
        return await self.answer(request)


@asynccontextmanager
async def model_server() -> AsyncIterator[ModelServer]:
    scripted = ModelServer()
    app = web.Application()
    app.router.add_post("/v1/chat/completions", scripted.handle)
    async with TestServer(app) as server:
        scripted.url = str(server.make_url("/v1"))
        yield scripted


def says(body: Any, status: int = 200, kind: str = "application/json") -> Answer:
    async def answer(request: web.Request) -> web.Response:
        text = body if isinstance(body, str) else json.dumps(body)
        return web.Response(text=text, status=status, content_type=kind)

    return answer


def refuses(status: int, message: str) -> Answer:
    return says({"error": {"message": message, "type": "invalid_request_error"}}, status)


async def hangs(request: web.Request) -> web.StreamResponse:
    await asyncio.sleep(SOON)
    raise AssertionError


async def drips(request: web.Request) -> web.StreamResponse:
    response = web.StreamResponse()
    await response.prepare(request)
    while True:
        await response.write(b" ")
        await asyncio.sleep(0.01)


async def breaks_off(request: web.Request) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Length": "1000"})
    await response.prepare(request)
    await response.write(b'{"choices": [')
    assert request.transport is not None
    request.transport.close()
    return response


FAULTS: dict[str, tuple[Answer, str]] = {
    "wrong model": (
        refuses(404, "The model `gpt-9` does not exist"),
        r"not found \(404\): The model `gpt-9` does not exist: mend \[agents.sales\] model, or",
    ),
    "nested": (says("data: " + "[" * 60_000, kind="text/event-stream"), "not as a chat API does"),
    "html": (says("<html>Welcome</html>", kind="text/html"), "the response is not valid JSON"),
    "html and 404": (says("<html>Nothing</html>", 404, "text/html"), r"not found \(404\): .*/v1"),
    "no key": (
        refuses(401, f"Incorrect API key provided: {KEY}"),
        r"it wants a valid API key \(401: Incorrect API key.*\): set \[agents.sales\] api_key",
    ),
    "no credit": (refuses(429, "insufficient_quota"), "429"),
    "broken": (refuses(500, "CUDA out of memory"), r"it has failed \(500: CUDA out of memory\)"),
    "an error inside": (says({"error": {"message": "no slot"}}), r"it refuses \(no slot\)"),
    "another API": (says({"status": "ok"}), "answers, but not as a chat API does"),
    "no choice": (says({"choices": []}), "answers, but not as a chat API does"),
    "a list": (says([1]), "not a JSON object"),
    "plain words": (says("no such page", 404, "text/plain"), r"not found \(404\): no such page"),
    "endless words": (refuses(400, "x" * 100_000), r"it refuses \(400\)"),
    "long words": (refuses(400, "x" * 10_000), r"it refuses \(400: x{20,}…\)"),
    "breaks off": (breaks_off, "closed the connection early|invalid HTTP response"),
    "hangs": (hangs, "it took longer than 0.5 s"),
    "drips": (drips, "it took longer than 0.5 s"),
}


@pytest.mark.parametrize("fault", FAULTS)
async def test_a_model_that_does_not_answer_is_named_with_its_servers_words(
    fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(model_probe_io, "ANSWER_S", 0.5 if fault in ("hangs", "drips") else SOON)
    async with model_server() as server:
        server.answer, words = FAULTS[fault]
        host = server.url.partition("//")[2]
        url = f"http://me:{KEY}@{host}"  # beside a key nobody is sent it
        agent = Agent(kind="openai", base_url=url, api_key=KEY, model="gpt-9")
        with pytest.raises(EngineError, match=words) as failed:
            await examine_chat("agents.sales", agent, None)
    told = str(failed.value)
    assert told.startswith(f"the model server at http://{host}: ")
    assert KEY not in told
    assert len(told) < 1000
    assert [asked["model"] for asked in server.asked] == ["gpt-9"]


@pytest.mark.parametrize(
    "answer",
    [
        says(YES),
        says("\ufeff" + json.dumps(YES)),
        says({"choices": [{"message": {"content": None}, "finish_reason": "length"}]}),
        says(f": hello\n\ndata: {json.dumps(YES)}\n\ndata: [DONE]\n\n", kind="text/event-stream"),
    ],
)
async def test_a_model_that_answers_is_well(answer: Answer) -> None:
    async with model_server() as server:
        server.answer = answer
        agent = Agent(kind="openai", base_url=server.url, model="tiny")
        host = server.url.partition("//")[2].partition("/")[0]
        assert await examine_chat("agent", agent, None) == f"tiny at {host}, answers"
    [asked] = server.asked
    assert asked["max_tokens"] == model_probe_io.ANSWER_TOKENS


async def test_a_model_is_asked_as_calls_ask_it_and_its_headers_are_in_no_message() -> None:
    """As Azure wants it: the key in a header, the version in the query."""

    async def answer(request: web.Request) -> web.StreamResponse:
        assert request.query["api-version"] == "2025-01-01"
        return await refuses(401, f"no such key: {request.headers['api-key']}")(request)

    async with model_server() as server:
        server.answer = answer
        address: dict[str, Any] = {
            "headers": {"api-key": "azure-0123456789"},
            "query": {"api-version": "2025-01-01"},
        }
        agent = Agent(kind="openai", base_url=server.url, model="gpt-9", **address)
        with pytest.raises(EngineError, match="no such key") as failed:
            await examine_chat("agent", agent, None)
    assert "azure-0123456789" not in str(failed.value)


async def test_a_model_that_wants_another_name_of_the_limit_is_asked_again() -> None:
    async def answer(request: web.Request) -> web.StreamResponse:
        if "max_tokens" in await request.json():
            words = "Unsupported parameter: 'max_tokens'. Use 'max_completion_tokens' instead."
            return await refuses(400, words)(request)
        return await says(YES)(request)

    async with model_server() as server:
        server.answer = answer
        agent = Agent(kind="openai", base_url=server.url, model="o9")
        await examine_chat("agent", agent, None)
    assert ["max_completion_tokens" in asked for asked in server.asked] == [False, True]


async def test_readyz_waits_for_a_token_and_the_log_says_why(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(agent_probe_io, "PROBE_S", 0.02)
    monkeypatch.setattr(agent_probe_io, "RETRY_S", 0.02)
    said: list[str] = []
    sink = logger.add(lambda message: said.append(message.record["message"]))
    async with model_server() as server:
        agents = {
            "well": Agent(kind="openai", base_url=server.url, model="a", ready_probe=True),
            "unasked": Agent(kind="openai", base_url="http://127.0.0.1:9", model="b"),
        }
        probes = AgentProbes(Config(agents=agents))
        assert probes.gone == ["well"]
        probes.start()
        async with asyncio.timeout(SOON):
            while probes.gone:
                await asyncio.sleep(0.02)
            server.answer = refuses(404, "The model `a` does not exist")
            while not probes.gone:
                await asyncio.sleep(0.02)
        await probes.close()
    logger.remove(sink)
    assert {asked["model"] for asked in server.asked} == {"a"}
    assert any("The model `a` does not exist: mend [agents.well] model" in line for line in said)


def test_the_doctor_asks_every_agent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("_opus", "_vad", "_smart_turn"):
        monkeypatch.setattr(report_io, name, lambda: "not asked")
    for name in ("_pocketsphinx", "_flite", "_espeak"):
        monkeypatch.setattr(here_io, name, lambda: "not asked")
    monkeypatch.chdir(tmp_path)
    closed = f"http://127.0.0.1:{free_port()}/v1"
    text = f"""[agents.well]\nkind = "openai"\nmodel = "tiny"\nbase_url = "URL"
        [agents.lost]\nkind = "openai"\nmodel = "tiny"\nbase_url = "{closed}"\nfallback = "well"
        [agents.gone]\nkind = "openai"\nmodel = "tiny"\nbase_url = "{closed}"
        [agents.nameless]\nkind = "openai"\nmodel = "x"\nbase_url = "http://nobody.invalid/v1"
        [agents.slashless]\nkind = "openai"\nmodel = "x"\nbase_url = "ROOT"
        """

    async def examined() -> list[report_io.Finding]:
        async with model_server() as server:
            written = text.replace("URL", server.url)
            (tmp_path / "offhook.toml").write_text(written.replace("ROOT", server.url[:-3]))
            return await asyncio.to_thread(report_io.examine, None)

    found = {f.subject: f for f in asyncio.run(examined()) if f.subject.startswith("agent")}
    assert {name: finding.verdict for name, finding in found.items()} == {
        "agent well": "ok",
        "agent lost": "note",
        "agent gone": "fails",
        "agent nameless": "fails",
        "agent slashless": "fails",
    }
    assert found["agent lost"].detail.endswith("; well answers instead")
    assert f"at {closed}: no server responds there" in found["agent gone"].detail
    assert "nobody.invalid" in found["agent nameless"].detail
    assert "which mostly ends with /v1" in found["agent slashless"].detail
