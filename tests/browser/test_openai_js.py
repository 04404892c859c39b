"""OpenAI's own JavaScript client, as it comes from npm, against our speech API and in Realtime
conversations."""

import json
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from offhook.media.pcm import RATE_OUT
from offhook.web.config.server import Server
from tests.browser.conftest import (
    bundled,
    microphone,
    node,
    page_of_another_site,
    serving,
)
from tests.pipeline.conversation.phone import model, says
from tests.telephony.sip.phones import write_certificate
from tests.web.realtime.test_webrtc import edge_for

pytestmark = pytest.mark.browser

QUESTION = "What are your opening hours?"
WORDS = {"what", "are", "your", "opening", "hours"}


def words(text: str) -> set[str]:
    return set(text.lower().strip("?.\n ").split())


@pytest.mark.slow
async def test_the_stock_client_hears_and_speaks(packages: Path, tmp_path: Path) -> None:
    file = await microphone(tmp_path / "question.wav", [0.3, QUESTION, 0.5])
    async with serving() as server:
        asked = {"url": f"{server.url}/v1", "file": str(file), "text": QUESTION}
        said = await node("openai_speech.mjs", **asked)
    assert "whisper-1" in said["models"]
    for heard in (said["json"], said["text"], said["translation"], said["verbose"]["text"]):
        assert len(words(heard) & WORDS) >= 4, heard
    assert "-->" in said["srt"]
    assert said["vtt"].startswith("WEBVTT")
    assert said["verbose"]["words"][0]["start"] < said["verbose"]["words"][-1]["end"]
    assert said["verbose"]["segments"]
    *deltas, done = said["events"]
    assert {event["type"] for event in deltas} == {"transcript.text.delta"}
    assert done["type"] == "transcript.text.done"
    assert "".join(event["delta"] for event in deltas).strip() == done["text"]

    pcm = said["speech"]["pcm"]
    assert pcm["bytes"] > 2 * RATE_OUT
    for name, type_ in (("mp3", "audio/mpeg"), ("opus", "audio/ogg"), ("wav", "audio/wav")):
        assert said["speech"][name]["type"].startswith(type_)
        assert 1000 < said["speech"][name]["bytes"] <= pcm["bytes"] + 100
    *pieces, end = said["sse"]
    assert {piece["type"] for piece in pieces} == {"speech.audio.delta"}
    assert sum(piece["bytes"] for piece in pieces) == pcm["bytes"]
    assert end["type"] == "speech.audio.done"

    voice, empty, model, language = said["errors"]
    assert (voice["status"], voice["param"]) == (400, "voice")
    assert (empty["status"], empty["param"]) == (400, "input")
    assert (model["status"], model["code"]) == (404, "model_not_found")
    assert (language["status"], language["param"]) == (400, "language")


@pytest.mark.slow
async def test_the_stock_client_in_a_page_of_another_site(
    drive: Callable[..., Any], packages: Path, tmp_path: Path
) -> None:
    async with (
        page_of_another_site(bundled(packages, "openai.js", tmp_path)) as url,
        serving(
            OFFHOOK_SERVER_ORIGINS=json.dumps([url]), OFFHOOK_SERVER_API_KEY="sesame"
        ) as server,
    ):
        asked = {"server": server.url, "key": "sesame", "text": QUESTION}
        report = await drive("openai_page.mjs", url=f"{url}/", **asked)
        elsewhere = url.replace("localhost", "127.0.0.1")
        refused = await drive("openai_page.mjs", url=f"{elsewhere}/", **asked)
    assert server.faults() == []
    answers = report["answers"]
    assert "error" not in answers, report
    assert "whisper-1" in answers["models"]
    assert answers["id"]
    assert answers["bytes"] > 1000
    assert len(words(answers["heard"]) & WORDS) >= 4
    assert answers["refused"] == {"status": 400, "param": "voice"}
    assert answers["first"] == "session.created"
    # Chromium writes of the refusal that was asked for, and of nothing else.
    assert [trouble for trouble in report["troubles"] if "400" not in trouble] == []
    assert "Connection error" in refused["answers"]["error"]
    assert any("CORS" in trouble for trouble in refused["troubles"])


@pytest.mark.usefixtures("packages")
async def test_conversations_over_tls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the class for Node, and by the one for pages, of which a client secret is a sub-protocol;
    those of the beta are refused in words."""
    certificate, key = write_certificate(tmp_path)
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(certificate, key)
    monkeypatch.setenv("NODE_EXTRA_CA_CERTS", str(certificate))
    answers = [[says("Good morning.")], [says("In writing.")]] * 2
    here = Server(port=0, api_key="sesame-and-more")
    async with model(*answers) as there, edge_for(there, here, tls) as (_, url):
        flag = "--experimental-websocket"  # Node 20 has none otherwise
        asked = {"url": url.removesuffix("/realtime"), "key": here.api_key}
        seen = await node("openai_realtime.mjs", flag, **asked)
    for one in (seen["ws"], seen["websocket"]):
        assert one["errors"] == []
        assert one["said"] == ["Good morning.", "In writing."]
        assert one["bytes"] > RATE_OUT
        assert one["types"][0] == "session.created"
        assert one["code"] == 1000
    for one in seen["beta"]:
        assert (one["errors"], one["code"]) == (["beta_api_shape_disabled"], 4000)
        assert one["types"] == ["error"]
