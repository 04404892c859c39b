"""Pipecat's own JavaScript client, as it comes from npm, against our server, in a page of another
site, which has a token for the call."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.browser.conftest import WAIT, bundled, microphone, page_of_another_site, serving

pytestmark = pytest.mark.browser


@pytest.fixture
def bundle(packages: Path, tmp_path: Path) -> Path:
    """The client and its transport as one script."""
    return bundled(packages, "client.js", tmp_path)


def texts(call: dict[str, Any], event: str) -> list[str]:
    return [data["text"] for name, data in call["told"] if name == event]


async def test_the_stock_client_calls(
    drive: Callable[..., Any], bundle: Path, tmp_path: Path
) -> None:
    wav = await microphone(tmp_path / "caller.wav", (6.5, "What are your opening hours?", 60.0))
    keys = {"OFFHOOK_SERVER_API_KEY": "nobody's", "OFFHOOK_SERVER_ADMIN_KEY": "the operator's"}
    async with (
        page_of_another_site(bundle) as url,
        serving(**keys, OFFHOOK_SERVER_ORIGINS=json.dumps([url])) as server,
        aiohttp.ClientSession(server.url) as operator,
    ):
        headers = {"Authorization": "Bearer the operator's"}
        async with operator.post("/tokens", json={}, headers=headers) as made:
            token = (await made.json())["token"]
        report = await drive(
            "client_calls.mjs", url=f"{url}/", microphone=str(wav), server=server.url, key=token
        )
    assert report["troubles"] == []
    assert server.faults() == []

    for call in (report["talk"], report["camera"]):
        assert call["ready"]["version"].startswith("2.")
        assert call["states"] == ["ready", "disconnected"]
        assert call["loudness"] > 0.02
        names = [name for name, _ in call["told"]]
        # The page of a busy machine may ask whether the agent is ready after its first words.
        assert {"botReady", "botTtsText"} <= {*names}
        assert "deviceError" not in names
        assert "error" not in names

    talk = report["talk"]
    finals = [
        data["text"] for name, data in talk["told"] if name == "userTranscript" and data["final"]
    ]
    assert finals == [event["text"] for event in server.events("caller_turn")]
    heard = {*finals[0].split()} & {"what", "are", "your", "opening", "hours"}
    assert len(heard) > 1  # what a small recogniser may hear on a busy machine
    turns = [e["text"] for e in server.events("agent_turn") if e["call"] == server.calls()[0]]
    assert " ".join(texts(talk, "botTtsText")) == " ".join(turns)
    greeting, hours, place = (text for text in turns if text != WAIT)
    assert greeting.startswith("Good")  # of a busy machine, the caller interrupts it
    assert "hours" in hours
    assert "Harbour Street" in place
    assert talk["microphone"] is False
    assert talk["about"]["call_id"] == server.calls()[0]
    assert talk["about"]["agent"] == "frontdesk"
    assert "'what is this' is not a request" in talk["unknown"]["error"]
