"""OpenAI's agents SDK for JavaScript, as npm has it, in Realtime sessions with our agents."""

import asyncio
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from openai import AsyncOpenAI

from offhook.media.pcm import RATE_OUT
from offhook.pipeline.conversation.turns import user_turn_io
from offhook.web.config.server import Server
from offhook.web.edge.edge_io import Edge
from tests.browser.conftest import DRIVE_S, bundled, microphone, node, page_of_another_site
from tests.pipeline.conversation.phone import COUNT, Model, calls, model, says
from tests.support.ports import free_port
from tests.support.waiting import HANGS_S
from tests.web.realtime.test_phone import until_listening
from tests.web.realtime.test_webrtc import edge_for

pytestmark = pytest.mark.browser

LINES = "How many bells have you got?", "Stop, what are your hours?"
ANSWERS = (
    [says("Good morning.")],
    [calls("stock", what="bells")],
    [says("There are twelve bells.")],
    [says(COUNT)],
    [says("From nine to six.")],
    [calls("transfer_to_workshop")],
    [says("I mend it now.")],
)
KEY = "zelkova-18"
LONG_S = 300
"""Duration in s of a long call."""


def check(seen: dict[str, Any], there: Model) -> None:
    """What the session was told, and the model."""
    assert seen["errors"] == []
    assert seen["tools"] == ["bells"]
    assert seen["handoff"] == ["desk", "workshop"]
    said = [text for role, *_, text in seen["history"] if role == "assistant" and text]
    greeting, stock, counted, hours, workshop, *_ = said
    assert (greeting, stock) == ("Good morning.", "There are twelve bells.")
    assert COUNT.startswith(counted)
    assert 1 <= len(counted.split()) < len(COUNT.split())
    assert (hours, workshop) == ("From nine to six.", "I mend it now.")
    heard = [text for role, *_, text in seen["history"] if role == "user"]
    assert any("hours" in text for text in heard)
    last = there.requests[-1]["messages"]
    assert last[0]["content"] == "You repair."
    assert counted in [message.get("content") for message in last]  # what was played and no more


async def session_by_websocket(folder: Path, seconds: float = 0) -> dict[str, Any]:
    file = await microphone(folder / "question.wav", (LINES[1], 1.0), RATE_OUT)
    async with model(*ANSWERS) as there, edge_for(there) as (edge, url):
        where = f"{url.replace('http', 'ws')}?model=gpt-realtime"
        asked = {"url": where, "question": str(file), "seconds": seconds}
        seen: dict[str, Any] = await node("agents_realtime.mjs", limit_s=DRIVE_S + seconds, **asked)
        await until_idle(edge)
    check(seen, there)
    return seen


async def until_idle(edge: Edge) -> None:
    """Waits until the edge has no calls."""
    async with asyncio.timeout(HANGS_S):
        while edge.legs:
            await asyncio.sleep(0.05)


@pytest.mark.usefixtures("packages")
@pytest.mark.slow
async def test_a_session_by_websocket(tmp_path: Path) -> None:
    await session_by_websocket(tmp_path)


@pytest.mark.slow
@pytest.mark.usefixtures("packages")
async def test_a_long_session_by_websocket(tmp_path: Path) -> None:
    seen = await session_by_websocket(tmp_path, LONG_S)
    assert seen["turns"] > LONG_S / 15


@pytest.mark.parametrize("seconds", [0, pytest.param(LONG_S, marks=pytest.mark.slow)])
async def test_a_webrtc_call_from_a_page_of_another_site(
    drive: Callable[..., Any],
    packages: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    seconds: float,
) -> None:
    monkeypatch.setattr(user_turn_io, "WORDS_LATE_MS", 60_000)
    lines = [str(await microphone(tmp_path / f"{n}.wav", (line,))) for n, line in enumerate(LINES)]
    script = bundled(packages, "agents.js", tmp_path)
    async with page_of_another_site(script) as page, model(*ANSWERS) as there:
        server = Server(port=0, origins=[page])
        async with edge_for(there, server=server) as (edge, url):
            async with AsyncOpenAI(
                base_url=url.removesuffix("/realtime"), api_key="none"
            ) as openai:
                secret = await openai.realtime.client_secrets.create(
                    session={"type": "realtime", "instructions": "You are the desk."}
                )
            seen = await drive(
                "agents_page.mjs",
                limit_s=DRIVE_S + seconds,
                url=f"{page}/",
                calls=f"{url}/calls",
                secret=secret.value,
                lines=lines,
                seconds=seconds,
            )
            await until_idle(edge)
    assert seen["troubles"] == [], seen
    check(seen, there)
    assert seen["turns"] >= seconds / 15


@pytest.fixture
def example(packages: Path, tmp_path: Path) -> Path:
    """A copy of examples/agents_page, built as it says."""
    folder = tmp_path / "agents_page"
    shutil.copytree("examples/agents_page", folder)
    (folder / "node_modules").symlink_to(packages)
    subprocess.run(["npm", "run", "build"], check=True, capture_output=True, cwd=folder)
    return folder


@pytest.mark.slow
async def test_the_example_in_a_browser(
    drive: Callable[..., Any], example: Path, tmp_path: Path
) -> None:
    line, port = str(await microphone(tmp_path / "line.wav", (LINES[0],))), free_port()
    answers = ANSWERS[0], [calls("stock", article="bells")], ANSWERS[2]
    server = Server(port=0, api_key=KEY, origins=[f"http://localhost:{port}"])
    async with model(*answers) as there, edge_for(there, server=server) as (edge, url):
        settings = {"OFFHOOK_URL": url.removesuffix("/realtime"), "OFFHOOK_KEY": KEY}
        program = await asyncio.create_subprocess_exec(
            *(sys.executable, "server.py"),
            cwd=example,
            env={**os.environ, **settings, "PORT": str(port)},
        )
        try:
            await until_listening(port)
            seen = await drive("agents_example.mjs", url=f"http://localhost:{port}/", line=line)
        finally:
            program.terminate()
            await program.wait()
        await until_idle(edge)
    assert seen["troubles"] == []
    assert seen["said"][0] == "assistant: Good morning."
    assert seen["said"][-1] == "assistant: There are twelve bells."
    last = there.requests[-1]["messages"]
    assert last[0]["content"].startswith("You sell bicycle parts.")
    assert last[-1]["content"] == "12"
