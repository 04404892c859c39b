"""A caller who does not wait, on the page and by embed.js's button: hanging up, calling again and
leaving while a permission or an answer is still to come."""

import json
import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from html import escape
from pathlib import Path
from time import time
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from offhook.web.config.config import Config
from offhook.web.config.server import Server
from offhook.web.edge.edge_io import Edge
from offhook.web.edge.server_io import application
from tests.browser.conftest import HERE
from tests.browser.firefox_io import firefox

pytestmark = pytest.mark.browser

NOTHING = "idle, 0 microphones, 0 connections, 0 screens"
RIGHT = re.compile(
    f"{NOTHING}|talking, 1 microphones, 1 connections, [01] screens|0 more offers|1 cancelled|"
    "its own is measured|0 more sounds are measured|(?!The microphone is blocked).*[….]"
)
"""What may be told of a call while it goes on or another does."""


def strict(voice: str) -> dict[str, str]:
    """The policy of a site that allows this server's button what it needs, and nothing else
    (docs/call-control.md)."""
    policy = (
        f"default-src 'none'; script-src {voice}; connect-src 'self' {voice}; img-src data:; "
        "require-trusted-types-for 'script'; trusted-types 'none'"
    )
    return {"Content-Security-Policy": policy, "Cross-Origin-Embedder-Policy": "require-corp"}


@asynccontextmanager
async def sites(label: str = "Call", **settings: Any) -> AsyncIterator[tuple[str, str]]:
    """The URL of a server's page, and that of a site with its button, whose policy is strict; the
    site's /frames has both in frames."""
    voice = ""

    async def page(request: web.Request) -> web.Response:
        data = f'data-secret="/secret" data-label="{escape(label)}"'
        script = f'<script src="{voice}embed.js" {data}></script>'
        head = '<!doctype html><title>Shop</title><link rel="icon" href="data:,">'
        text = f"{head}<body>{script}</body>"
        return web.Response(text=text, content_type="text/html", headers=strict(voice))

    async def frames(request: web.Request) -> web.Response:
        urls = (voice, f"http://127.0.0.1:{site.port}/")
        text = "".join(f'<iframe src="{url}"></iframe>' for url in urls)
        return web.Response(text=f"<!doctype html>{text}", content_type="text/html")

    async def secret(request: web.Request) -> web.Response:
        value, _ = edge.programs.secrets.create({"type": "realtime"}, "", 600, time())
        return web.json_response({"value": value})

    app = web.Application()
    app.router.add_get("/", page)
    app.router.add_get("/frames", frames)
    app.router.add_post("/secret", secret)
    site = TestServer(app)
    await site.start_server()
    button = f"http://localhost:{site.port}"
    config = Config(server=Server(port=0, max_calls=20, origins=[button]), **settings)
    edge = Edge(config)
    await edge.start()
    server = TestServer(application(edge))
    await server.start_server()
    voice = f"http://localhost:{server.port}/"
    try:
        yield voice, button
    finally:
        await server.close()
        await edge.close()
        await site.close()


def faults(seen: dict[str, list[str]]) -> dict[str, list[str]]:
    """The calls that left something open, or disturbed another one."""
    return {
        name: told
        for name, told in seen.items()
        if told[-1] != NOTHING or not all(map(RIGHT.fullmatch, told))
    }


@pytest.mark.slow
async def test_a_caller_who_does_not_wait(drive: Callable[..., Any]) -> None:
    async with sites() as (page, button):
        seen = await drive("late_calls.mjs", own=page, button=button)
    assert faults(seen["own"]) == {}
    assert faults(seen["button"]) == {}
    assert seen["troubles"] == []
    assert len(seen["own"]) > 30
    assert len(seen["button"]) > 20


@pytest.mark.slow
async def test_a_caller_who_does_not_wait_in_firefox(program: str, tmp_path: Path) -> None:
    """All but the attempt to go on: in Firefox a connection cannot be made to look as if it had
    failed."""
    scripts = "\n".join((HERE / name).read_text() for name in ("late.js", "late_calls.js"))
    told: dict[str, dict[str, list[str]]] = {"own": {}, "button": {}}
    async with sites() as (own, button), firefox(program, tmp_path) as page:
        await page.before_every_page(f"() => {{ if (!navigator.mediaDevices) return; {scripts} }}")
        for where, url in (("own", own), ("button", f"{button}/")):
            await page.goto(url)
            names = await page.evaluate(f"Object.keys(scenarios({where!r}))")
            for name in (name for name in names if "attempt to go on" not in name):
                run = f"scenarios({where!r})[{json.dumps(name)}]()"
                hangs = "new Promise((then) => setTimeout(then, 30000, ['it hangs']))"
                told[where][name] = await page.evaluate(f"Promise.race([{run}, {hangs}])")
                if told[where][name][-1] != NOTHING:
                    await page.goto(url)
    assert faults(told["own"]) == {}
    assert faults(told["button"]) == {}
    assert len(told["own"]) > 30
