"""The call button for the pages of other sites, on one."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from openai import AsyncOpenAI

from offhook.pipeline.conversation.agents.prompt import BEGINNING
from offhook.web.config.config import Agent, Config, Server, WebRtc
from offhook.web.edge.edge_io import Edge
from offhook.web.edge.server_io import application
from tests.browser.conftest import microphone
from tests.pipeline.conversation.phone import Model, model, says

pytestmark = pytest.mark.browser

KEY = "zelkova-18"


@asynccontextmanager
async def site(
    voice: str, client: AsyncOpenAI, agent: str, heard: Callable[[], bool]
) -> AsyncIterator[tuple[str, list[str]]]:
    """A site whose page has the button; gives its URL, and the secrets that it made. It answers
    /heard once the agent's model was asked."""
    made: list[str] = []

    async def page(request: web.Request) -> web.Response:
        script = f'<script src="{voice}/embed.js" data-agent="{agent}" data-secret="/secret">'
        head = '<!doctype html><title>Shop</title><link rel="icon" href="data:,">'
        return web.Response(text=f"{head}{script}</script>", content_type="text/html")

    async def secret(request: web.Request) -> web.Response:
        session = {"type": "realtime", "model": agent}
        made.append((await client.realtime.client_secrets.create(session=session)).value)
        return web.json_response({"value": made[-1]})

    async def wait(request: web.Request) -> web.Response:
        while not heard():
            await asyncio.sleep(0.1)
        return web.Response()

    app = web.Application()
    app.router.add_get("/", page)
    app.router.add_get("/heard", wait)
    app.router.add_post("/secret", secret)
    server = TestServer(app)
    await server.start_server()
    try:
        yield f"http://localhost:{server.port}", made
    finally:
        await server.close()


def questions(there: Model) -> list[str]:
    """What the model was asked by the caller, as opposed to notices of silence."""
    messages = there.requests[-1]["messages"] if there.requests else []
    said = [message["content"] for message in messages if message["role"] == "user"]
    return [text for text in said if text != BEGINNING]


async def test_a_button_on_a_page_calls_the_agent(
    drive: Callable[..., Any], tmp_path: Path
) -> None:
    line = str(await microphone(tmp_path / "line.wav", ("What are your opening hours?",)))
    answers = [says("Good morning, here is the shop.")], [says("From nine to six.")]
    async with model(*answers) as there:
        origins: set[str] = set()
        config = Config(
            agents={"sales": Agent(kind="openai", base_url=there.url, model="scripted")},
            server=Server(port=0, api_key=KEY, origins=["http://localhost:1"]),
            webrtc=WebRtc(addresses=["127.0.0.1"]),
        )
        edge = Edge(config)
        await edge.start()
        server = TestServer(application(edge))
        await server.start_server()
        url = str(server.make_url("")).rstrip("/")
        client = AsyncOpenAI(base_url=f"{url}/v1", api_key=KEY)
        try:
            heard = partial(questions, there)
            async with client, site(url, client, "sales", lambda: bool(heard())) as (page, made):
                origins.add(page)
                about = config.server.model_copy(update={"origins": frozenset(origins)})
                edge.config = config.model_copy(update={"server": about})
                seen = await drive("embed_page.mjs", url=f"{page}/", line=line)
                assert not [key for key in made if not key.startswith("ek_")]
        finally:
            await server.close()
            await edge.close()
    assert seen["troubles"] == []
    assert seen["label"] == "Talk to us"
    assert seen["loudness"] > 0.02
    assert seen["talking"] == "Hang up"
    assert seen["ended"] == ["Talk to us", ""]
    assert "hours" in heard()[0]
