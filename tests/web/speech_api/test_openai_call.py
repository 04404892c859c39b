"""A call whose engines are another offhook, reached by OpenAI's audio API."""

import pytest
from aiohttp.test_utils import TestServer

from offhook.pipeline.conversation.turns import user_turn_io
from offhook.web.app.cli.caller_io import ScriptedCall, ScriptLine, spoken, trimmed
from offhook.web.config.config import Config
from offhook.web.config.engines import Asr, Tts
from offhook.web.config.server import Server, WebRtc
from offhook.web.edge.edge_io import Edge
from offhook.web.edge.server_io import application
from offhook.web.workers.engines.engines_io import open_synthesizer
from tests.support.waiting import until
from tests.web.speech_api.conftest import Served

pytestmark = pytest.mark.asyncio(loop_scope="module")

QUESTION = "Are you open on Sunday?"


@pytest.mark.usefixtures("loopback")
async def test_a_call_on_engines_behind_openais_api(
    speech_server: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A busy machine's words are late: the caller would take the excuse for the reply and hang up.
    monkeypatch.setattr(user_turn_io, "WORDS_LATE_MS", 60_000)
    url = f"{speech_server.url}/v1"
    asr, tts = Asr(engine="openai", url=url), Tts(engine="openai", url=url)
    voice = open_synthesizer()
    await voice.start()
    line = ScriptLine(QUESTION, trimmed(await spoken(voice, QUESTION)))
    await voice.close()
    here = {"webrtc": WebRtc(addresses=["127.0.0.1"]), "server": Server(port=0)}
    config = Config(asr=asr, tts=tts, **here)
    edge = Edge(config)
    await edge.start()
    server = TestServer(application(edge))
    await server.start_server()
    try:
        await until(lambda: edge.ready)
        report = await ScriptedCall(str(server.make_url("/")), [line], show=lambda text: None).run()
    finally:
        await server.close()
        await edge.close()
    (turn,) = report.turns
    assert report.greeting
    assert "sunday" in turn.heard.lower()
    assert turn.reply  # to what was heard: a busy machine's recogniser may have misheard the rest
