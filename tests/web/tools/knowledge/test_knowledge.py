"""Agents that answer by documents."""

import asyncio
import os
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from loguru import logger

from offhook.media.leg import CallInfo
from offhook.web.app.cli.chat_io import chat
from offhook.web.config.agents import Agent
from offhook.web.config.config import Config, ConfigError
from offhook.web.config.knowledge import Knowledge
from offhook.web.edge.edge_io import Edge
from offhook.web.edge.reload_io import use
from offhook.web.edge.text.text_edge_io import TextEdge, conversation, text_edge
from offhook.web.tools.knowledge import knowledge_io
from offhook.web.tools.knowledge.knowledge_io import KnowledgeBase
from tests.pipeline.conversation.phone import Model, calls, model, says
from tests.support.waiting import HANGS_S, until
from tests.web.edge.agents.test_agent import Page, called, said_by_flite
from tests.web.edge.agents.test_realtime_agent import agent_at, elsewhere
from tests.web.tools.test_http_tool import shop

pytestmark = pytest.mark.asyncio(loop_scope="module")
CHAIN = "A new chain costs 35 euros."


@pytest.fixture
def papers(tmp_path: Path) -> Path:
    folder = tmp_path / "papers"
    folder.mkdir()
    (folder / "prices.md").write_text(f"# Repairs\n\n{CHAIN}\n")
    (folder / "hours.txt").write_text("We open at nine and close at six.")
    return folder


@pytest.fixture
def written() -> Iterator[list[str]]:
    """What is logged."""
    lines: list[str] = []
    sink = logger.add(lambda message: lines.append(message.record["message"]), level="INFO")
    yield lines
    logger.remove(sink)


# --- the documents ---


@asynccontextmanager
async def base_of(folder: Path, **settings: Any) -> AsyncIterator[KnowledgeBase]:
    """Documents that have been read, and are read again when a test wants it."""
    base = KnowledgeBase((str(folder),), Knowledge(**settings))
    await base.refresh()
    try:
        yield base
    finally:
        await base.close()


async def sources(base: KnowledgeBase, query: str) -> list[str]:
    return [one.source for one in await base.find(query, 5)]


async def test_a_file_that_changes_is_read_again_and_no_other(
    papers: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[str] = []
    async with base_of(papers) as base:
        reads = knowledge_io.Reader._read
        monkeypatch.setattr(
            *(knowledge_io.Reader, "_read"),
            lambda self, name, path: read.append(name) or reads(self, name, path),  # type: ignore[func-returns-value]
        )
        await base.refresh()
        assert read == []
        (papers / "prices.md").write_text("# Repairs\n\nA saddle costs 50 euros.\n\nMore.\n")
        (papers / "new.md").write_text("Helmets are free.")
        (papers / "hours.txt").rename(papers / "times.txt")
        await base.refresh()
        assert read == ["new.md", "prices.md", "times.txt"]
        assert await sources(base, "chain") == []
        assert await sources(base, "saddle") == ["prices.md, line 3"]
        assert await sources(base, "helmets") == ["new.md, line 1"]
        assert await sources(base, "open") == ["times.txt, line 1"]
        (papers / "new.md").unlink()
        await base.refresh()
        assert await sources(base, "helmets") == []
        assert base.documents.files == 2


async def test_the_old_index_answers_while_files_are_read(
    papers: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with base_of(papers) as base:
        go_on, loop = asyncio.Event(), asyncio.get_running_loop()
        reads = knowledge_io.Reader._read

        def slow(self: Any, name: str, path: Path) -> Any:
            asyncio.run_coroutine_threadsafe(go_on.wait(), loop).result(HANGS_S)
            return reads(self, name, path)

        monkeypatch.setattr(knowledge_io.Reader, "_read", slow)
        (papers / "prices.md").write_text("A saddle costs 50 euros.")
        reading = asyncio.create_task(base.refresh())
        assert await sources(base, "chain") == ["prices.md, line 3"]
        go_on.set()
        await reading
        assert await sources(base, "chain") == []


async def test_a_folder_that_is_gone_leaves_what_was_read(papers: Path, written: list[str]) -> None:
    async with base_of(papers) as base:
        away = papers.with_name("away")
        os.rename(papers, away)
        for _ in range(2):
            await base.refresh()
            assert await sources(base, "chain") == ["prices.md, line 3"]
        said = f"knowledge {papers}: No such file or directory; what was read before is used"
        assert written.count(said) == 1
        os.rename(away, papers)
        await base.refresh()
        assert base.documents.files == 2


async def test_files_that_are_skipped_are_said_once(papers: Path, written: list[str]) -> None:
    (papers / "photo.png").write_bytes(b"x")
    (papers / "empty.md").write_text("")
    async with base_of(papers) as base:
        assert base.documents.skipped.keys() == {"photo.png", "empty.md"}
        os.utime(papers / "prices.md")
        await base.refresh()
    assert sum("empty.md: skipped: is empty" in line for line in written) == 1


async def test_passages_are_limited(papers: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(knowledge_io, "MAX_PASSAGES", 1)
    async with base_of(papers) as base:
        assert base.documents.passages == 1
        assert "prices.md" in base.documents.skipped
        (papers / "hours.txt").unlink()
        await base.refresh()
        assert await sources(base, "chain") == ["prices.md, line 3"]


# --- vectors ---


class Vectors:
    """A server of embeddings: a direction for each of some words."""

    MEANINGS = (("chain", "drive"), ("open", "close", "evening"))

    def __init__(self) -> None:
        self.inputs: list[str] = []
        self.keys: list[str] = []
        self.ill = False

    async def answer(self, request: web.Request) -> web.Response:
        asked = await request.json()
        self.keys.append(request.headers.get("Authorization", ""))
        if self.ill:
            return web.json_response({"error": "the key a-key is broken"}, status=500)
        assert request.path == "/v1/embeddings"
        assert asked["model"] == "m"
        self.inputs += asked["input"]
        made = [[0.1, *(self._has(text, one) for one in self.MEANINGS)] for text in asked["input"]]
        data = [{"index": at, "embedding": vector} for at, vector in enumerate(made)]
        return web.json_response({"data": data[::-1]})

    @staticmethod
    def _has(text: str, meaning: tuple[str, ...]) -> float:
        return float(any(word in text for word in meaning))


def at(url: str) -> dict[str, str]:
    return {
        "embeddings_url": f"{url}/v1",
        "embeddings_model": "m",
        "embeddings_api_key": "a-key",
    }


async def test_vectors_find_other_words_and_are_made_once(papers: Path) -> None:
    server = Vectors()
    async with shop(server.answer) as url, base_of(papers, **at(url)) as base:
        assert server.keys == ["Bearer a-key"]
        assert len(server.inputs) == 2
        assert await sources(base, "drive") == ["prices.md, line 3", "hours.txt, line 1"]
        assert server.inputs[2:] == ["drive"]
        (papers / "hours.txt").write_text("We close in the evening.")
        await base.refresh()
        assert server.inputs[3:] == ["hours.txt\nWe close in the evening."]
        assert (await sources(base, "open"))[0] == "hours.txt, line 1"


async def test_without_the_server_words_are_searched_and_it_is_said_once(
    papers: Path, written: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    server = Vectors()
    async with shop(server.answer) as url, base_of(papers, **at(url)) as base:
        server.ill = True
        for _ in range(3):
            assert await sources(base, "drive") == []
            assert await sources(base, "chain") == ["prices.md, line 3"]
        asked = len(server.keys)
        assert asked == 2  # for the documents, and for the first search
        monkeypatch.setattr(base, "_no_vectors_until", 0.0)
        assert await sources(base, "chain") == ["prices.md, line 3"]
        said = [line for line in written if "searched by words alone" in line]
        assert len(said) == 1
        assert "status 500" in said[0]
        assert "a-key" not in said[0]
        server.ill = False
        monkeypatch.setattr(base, "_no_vectors_until", 0.0)
        assert (await sources(base, "drive"))[0] == "prices.md, line 3"


@pytest.mark.parametrize(
    "response",
    [
        b"no JSON",
        b"[]",
        b'{"data": []}',
        b'{"data": [{"index": 0, "embedding": [1, "x"]}, {"index": 1, "embedding": [1, 2]}]}',
        b'{"data": [{"index": 0, "embedding": [1]}, {"index": 1, "embedding": [1, 2]}]}',
        b'{"data": [{"index": 0, "embedding": [0]}, {"index": 1, "embedding": [0]}]}',
        b'{"data": [{"index": 0, "embedding": [1e999]}, {"index": 1, "embedding": [1]}]}',
    ],
)
async def test_any_response_is_borne(papers: Path, written: list[str], response: bytes) -> None:
    async def answer(request: web.Request) -> web.Response:
        return web.Response(body=response, content_type="application/json")

    async with shop(answer) as url, base_of(papers, **at(url)) as base:
        assert await sources(base, "chain") == ["prices.md, line 3"]
    assert any("the embeddings server fails: the response has" in line for line in written)


# --- calls ---


def agent(endpoint: Model, papers: Path, **more: Any) -> Agent:
    about = {"kind": "openai", "base_url": endpoint.url, "model": "m", "greeting": "Hello."}
    return Agent.model_validate({**about, "knowledge": str(papers), **more})


@asynccontextmanager
async def text_edge_of(one: Agent, **more: Any) -> AsyncIterator[TextEdge]:
    async with text_edge(Config(agents={"desk": one}, **more)) as edge:
        yield edge


async def test_the_model_searches_by_a_tool(papers: Path) -> None:
    found: list[str] = []
    async with model() as endpoint:
        search = calls("search_knowledge", query="price of a chain")
        endpoint.answers = [[search], [says("35 euros.")]]
        async with (
            text_edge_of(agent(endpoint, papers)) as edge,
            conversation(edge, "desk", CallInfo(edge="text"), found.append) as talk,
        ):
            await talk.listen()
            exchange = await talk.say("What does a new chain cost?")
        (result,) = endpoint.results()
    assert exchange.text == "35 euros."
    assert result == {"passages": [{"source": "prices.md, line 3 (Repairs)", "text": CHAIN}]}
    assert exchange.sources == ["prices.md, line 3 (Repairs)"]
    assert found == ["finds in the documents: prices.md, line 3 (Repairs)"]
    assert CHAIN not in str(endpoint.requests[0])


@pytest.mark.parametrize(
    ("arguments", "result"),
    [
        (
            {"query": "zeppelin"},
            {"passages": [], "note": "nothing in the documents has these words"},
        ),
        ({"query": " "}, {"error": "query is missing: what to look for"}),
        ({"words": "chain"}, {"error": "query is missing: what to look for"}),
    ],
)
async def test_the_model_is_told_that_nothing_is_found(
    papers: Path, arguments: dict[str, Any], result: dict[str, Any]
) -> None:
    async with model() as endpoint:
        endpoint.answers = [[calls("search_knowledge", **arguments)], [says("No.")]]
        async with (
            text_edge_of(agent(endpoint, papers)) as edge,
            conversation(edge, "desk", CallInfo(edge="text"), lambda text: None) as talk,
        ):
            await talk.listen()
            await talk.say("Well?")
        assert endpoint.results() == [result]


async def test_passages_are_in_the_request_and_not_in_the_conversation(papers: Path) -> None:
    async with (
        model([says("35 euros.")], [says("At nine.")]) as endpoint,
        text_edge_of(agent(endpoint, papers, knowledge_in_prompt=True)) as edge,
        conversation(edge, "desk", CallInfo(edge="text"), lambda text: None) as talk,
    ):
        await talk.listen()
        first = await talk.say("What does a new chain cost?")
        second = await talk.say("When do you open?")
        said = str(talk.call.context.messages)
    assert first.sources == ["prices.md, line 3 (Repairs)"]
    assert second.sources == ["hours.txt, line 1"]
    asked = [request["messages"][-1]["content"] for request in endpoint.requests]
    assert len(asked) == 2
    assert f"[prices.md, line 3 (Repairs)]\n{CHAIN}" in asked[0]
    assert asked[0].endswith("What does a new chain cost?")
    assert "nine and close" in asked[1]
    assert CHAIN not in str(endpoint.requests[1]["messages"])
    assert CHAIN not in said


async def test_sources_are_in_the_log(edge: Edge, papers: Path, written: list[str]) -> None:
    page = Page()
    async with model([says("At nine.")]) as endpoint:
        one = agent(endpoint, papers, knowledge_in_prompt=True)
        async with knowing(edge, one), called(edge, {"desk": one}, page):
            await until(lambda: page.words() == "Hello.")
            page.hear(type="send-text", id="1", data={"content": "When do you open?"})
            await until(lambda: page.words().endswith("At nine."))
    (line,) = [line for line in written if "passages_found" in line]
    assert 'sources=["hours.txt, line 1"] by="prompt"' in line
    assert "open" not in line  # words of callers are in the log only if that is wanted


async def test_a_speech_to_speech_model_searches_too(edge: Edge, papers: Path) -> None:
    search = [calls("search_knowledge", query="chain")]
    async with model([says("Hello.")], search, [says("It is 35.")]) as there:
        async with elsewhere(there) as wire:
            one = agent_at(wire, knowledge=(str(papers),))
            async with knowing(edge, one), called(edge, {"desk": one}) as page:
                await until(lambda: page.words() == "Hello.")
                page.feed(said_by_flite("What is the price of a chain?"))
                await until(lambda: page.words().endswith("It is 35."))
        assert there.results()[0]["passages"][0]["text"] == CHAIN


@asynccontextmanager
async def knowing(edge: Edge, one: Agent) -> AsyncIterator[None]:
    """Has an edge read an agent's documents."""
    edge.agents.use(Config(agents={"desk": one}))
    await edge.agents._tools.started()
    yield
    edge.agents.use(Config())


async def test_chat_shows_the_sources(papers: Path) -> None:
    shown: list[str] = []
    async with model() as endpoint:
        endpoint.answers = [[calls("search_knowledge", query="chain")], [says("35 euros.")]]
        config = Config(agents={"desk": agent(endpoint, papers)})
        assert await chat(config, "desk", ["What does a chain cost?"], shown.append)
    assert "  [finds in the documents: prices.md, line 3 (Repairs)]" in shown
    assert any(line.startswith("  -> search_knowledge") for line in shown)


async def test_a_reload_brings_other_documents(papers: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    (other / "a.md").write_text("A chain costs nothing.")
    async with model() as endpoint:
        endpoint.answers = [[calls("search_knowledge", query="chain")], [says("Nothing.")]]
        async with text_edge_of(agent(endpoint, papers)) as edge:
            with pytest.raises(ConfigError, match=r"agents\.desk\.knowledge: .*no: No such file"):
                use(edge, Config(agents={"desk": agent(endpoint, tmp_path / "no")}))
            use(edge, Config(agents={"desk": agent(endpoint, other)}))
            await edge.agents._tools.started()
            async with conversation(edge, "desk", CallInfo(edge="text"), lambda text: None) as talk:
                await talk.listen()
                exchange = await talk.say("What does a chain cost?")
    assert exchange.sources == ["a.md, line 1"]
