"""A browser whose server is killed, or drains, goes on at another one behind the same nginx."""

import asyncio
import json
import shutil
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.browser.conftest import Server, bundled, microphone, page_of_another_site, serving
from tests.deploy.test_nginx import MAIN
from tests.pipeline.speech.voice.test_audio_cache import redis_server
from tests.support.ports import free_port

pytestmark = [pytest.mark.browser, pytest.mark.slow]

SAVED_MS = 1500
"""After a reply, until the browser's server ends."""
FRONT = """
upstream edges {{
    server 127.0.0.1:{first};
    server 127.0.0.1:{second} backup;
}}
server {{
    listen 127.0.0.1:{port};
    proxy_connect_timeout 1s;
    proxy_http_version 1.1;
    proxy_buffering off;
    proxy_request_buffering on;
    proxy_next_upstream error timeout http_502 http_503 non_idempotent;
    proxy_set_header Host $http_host;
    location / {{ proxy_pass http://edges; }}
}}
"""


@asynccontextmanager
async def front(folder: Path, first: Server, second: Server) -> AsyncIterator[str]:
    """The address of an nginx before both, which prefers the first."""
    port = free_port()
    ports = {"first": urlsplit(first.url).port, "second": urlsplit(second.url).port}
    (folder / "offhook.conf").write_text(FRONT.format(port=port, **ports))
    (folder / "nginx.conf").write_text(MAIN.format(folder=folder))
    process = await asyncio.create_subprocess_exec(
        *("nginx", "-p", str(folder), "-c", str(folder / "nginx.conf"))
    )
    try:
        await asyncio.sleep(1)
        yield f"http://localhost:{port}"
    finally:
        process.terminate()
        await process.wait()


@asynccontextmanager
async def two(folder: Path, **environment: str) -> AsyncIterator[tuple[Server, Server, str]]:
    pytest.importorskip("redis")
    if shutil.which("nginx") is None:
        pytest.skip("nginx is not installed")
    with redis_server(folder) as redis:
        environment["OFFHOOK_SERVER_REDIS"] = redis
        async with (
            serving(**environment) as first,
            serving(**environment) as second,
            front(folder, first, second) as url,
        ):
            yield first, second, url


@pytest.mark.parametrize("how", ["SIGKILL", "SIGTERM"])
async def test_the_page_goes_on_at_another_server(
    drive: Callable[..., Any], tmp_path: Path, how: str
) -> None:
    wav = await microphone(tmp_path / "caller.wav", (120.0,))
    async with two(tmp_path) as (first, second, url):
        seen = await drive(
            "page_resume.mjs",
            url=f"{url}/",
            microphone=str(wav),
            server=first.pid,
            how=how,
            pause=SAVED_MS,
        )
        outcomes = [line["outcome"] for line in second.log if "outcome" in line]
        turns = [line["text"] for line in second.events("agent_turn")]
    sys.stderr.write(f"{how}: {seen}\n")
    assert outcomes == ["resumed"]
    assert len(first.calls()) == len(second.calls()) == 1
    assert turns[0].endswith("Please go on.")
    assert "number" in turns[1]  # of the caller whose name it was told
    assert seen["backAfter"] > 0


@pytest.mark.parametrize("how", ["SIGKILL", "SIGTERM"])
async def test_the_stock_client_goes_on_at_another_server(
    packages: Path, drive: Callable[..., Any], tmp_path: Path, how: str
) -> None:
    wav = await microphone(tmp_path / "caller.wav", (120.0,))
    bundle = bundled(packages, "client.js", tmp_path)
    async with (
        page_of_another_site(bundle) as page,
        two(tmp_path, OFFHOOK_SERVER_ORIGINS=json.dumps([page])) as (first, second, url),
    ):
        seen = await drive(
            "client_resume.mjs",
            url=f"{page}/",
            microphone=str(wav),
            front=url,
            server=first.pid,
            how=how,
            pause=SAVED_MS,
        )
        outcomes = [line["outcome"] for line in second.log if "outcome" in line]
    sys.stderr.write(f"stock client: {seen}\n")
    assert outcomes[0] == "resumed"
