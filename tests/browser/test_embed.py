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

from offhook.media.end_reason import End
from offhook.media.leg import Leg
from offhook.pipeline.conversation.agents.prompt import BEGINNING
from offhook.web.config.config import Agent, Config
from offhook.web.config.server import IceServer, Server, WebRtc
from offhook.web.edge.edge_io import Edge
from offhook.web.edge.server_io import application
from tests.browser.conftest import microphone
from tests.pipeline.conversation.phone import Model, model, says

pytestmark = pytest.mark.browser

KEY = "zelkova-18"
STUN = "stun:127.0.0.1:9"
THEIRS = {"error": {"message": "no agent is called 'x': there are sales, billing"}}
REFUSALS = [{"status": status, "json": THEIRS} for status in (404, 503, 500)]
SORRY = "Anrufe sind zurzeit nicht möglich. Bitte versuchen Sie es später noch einmal."
READ = [
    SORRY,
    "Alle Leitungen sind besetzt. Bitte versuchen Sie es gleich noch einmal.",
    SORRY,
    "Der Anruf kam nicht zustande. Bitte prüfen Sie Ihre Internetverbindung.",
    "Bitte erlauben Sie dieser Seite das Mikrofon und rufen Sie noch einmal an.",
    "Es wurde kein Mikrofon gefunden, oder ein anderes Programm benutzt es.",
]
"""What a visitor reads of these refusals, without the network, and of a microphone that is denied
or missing."""


@asynccontextmanager
async def site(
    voice: str, client: AsyncOpenAI, agent: str, heard: Callable[[], bool], edge: Edge
) -> AsyncIterator[tuple[str, list[str]]]:
    """A site whose German page has the button; gives its URL, and the secrets that it made. It
    answers /heard once the agent's model was asked, and /left with the reason once the call is over
    that was up when its page /other was opened. `edge` is the server's."""
    made: list[str] = []
    called: list[Leg] = []

    async def page(request: web.Request) -> web.Response:
        data = f'data-agent="{agent}" data-secret="/secret" data-hang-up="Ende"'
        head = (
            '<!doctype html><html lang="de-AT"><title>Shop</title><link rel="icon" href="data:,">'
        )
        body = f'<main><h1>Shop</h1><script src="{voice}/embed.js" {data}></script></main>'
        return web.Response(text=f"{head}{body}", content_type="text/html")

    async def secret(request: web.Request) -> web.Response:
        session = {"type": "realtime", "model": agent}
        made.append((await client.realtime.client_secrets.create(session=session)).value)
        return web.json_response({"value": made[-1]})

    async def wait(request: web.Request) -> web.Response:
        while not heard():
            await asyncio.sleep(0.1)
        return web.Response()

    async def other(request: web.Request) -> web.Response:
        called.extend(edge.legs)
        head = '<!doctype html><title>Empty</title><link rel="icon" href="data:,">'
        return web.Response(text=head, content_type="text/html")

    async def left(request: web.Request) -> web.Response:
        await called[-1].until_closed()
        return web.Response(text=called[-1].closed)

    app = web.Application()
    app.router.add_get("/", page)
    app.router.add_get("/heard", wait)
    app.router.add_get("/other", other)
    app.router.add_get("/left", left)
    app.router.add_post("/secret", secret)
    server = TestServer(app)
    await server.start_server()
    try:
        yield f"http://localhost:{server.port}", made
    finally:
        await server.close()


def questions(there: Model) -> list[str]:
    """What the model was asked by the caller, as opposed to notices of silence."""
    messages = [message for request in there.requests for message in request["messages"]]
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
            agents={
                "sales": Agent(
                    kind="openai", base_url=there.url, model="scripted", think_ahead=False
                )
            },
            server=Server(port=0, api_key=KEY, origins=["http://localhost:1"]),
            webrtc=WebRtc(addresses=["127.0.0.1"], ice_servers=[IceServer(urls=STUN)]),
        )
        edge = Edge(config)
        await edge.start()
        server = TestServer(application(edge))
        await server.start_server()
        url = str(server.make_url("")).rstrip("/")
        client = AsyncOpenAI(base_url=f"{url}/v1", api_key=KEY)
        try:
            heard = partial(questions, there)
            its = site(url, client, "sales", lambda: bool(heard()), edge)
            async with client, its as (page, made):
                origins.add(page)
                about = config.server.model_copy(update={"origins": frozenset(origins)})
                edge.config = config.model_copy(update={"server": about})
                seen = await drive("embed_page.mjs", url=f"{page}/", line=line, refusals=REFUSALS)
                assert not [key for key in made if not key.startswith("ek_")]
        finally:
            await server.close()
            await edge.close()
    assert seen["troubles"] == []
    assert seen["findings"] == []
    assert seen["label"] == "Mit uns sprechen"
    assert seen["refused"] == READ
    assert seen["iceServers"] == [{"urls": STUN}]
    assert seen["loudness"] > 0.02
    assert seen["talking"] == ["Ende", "Stummschalten"]
    assert seen["muted"] == "Ton an"
    assert seen["ended"] == ["Mit uns sprechen", "", False]
    assert "hours" in heard()[0]
    changes = [(each["state"], each["reason"], each["muted"]) for each in seen["changes"]]
    refused = [("calling", "", False), ("idle", "microphone-missing", False)]
    talked = [(s, "", False) for s in ("calling", "talking")]
    assert changes[-6:] == [*refused, *talked, ("talking", "", True), ("idle", "hung-up", False)]
    # Not a connection that was lost, which is noticed later.
    assert seen["reason"] == End.CALLER_HUNG_UP
