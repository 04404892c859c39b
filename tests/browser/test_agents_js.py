"""OpenAI's agents SDK for JavaScript, as npm has it, in Realtime sessions with our agents."""

import asyncio
import json
from pathlib import Path

import pytest

from offhook.media.pcm import RATE_OUT
from tests.browser.conftest import HERE, microphone
from tests.pipeline.conversation.phone import calls, model, says
from tests.web.realtime.test_webrtc import edge_for

pytestmark = pytest.mark.browser

QUESTION = "What are your opening hours?"
LIMIT_S = 150


@pytest.mark.usefixtures("packages")
async def test_a_session_by_websocket(tmp_path: Path) -> None:
    file = await microphone(tmp_path / "question.wav", (QUESTION, 1.0), RATE_OUT)
    answers = (
        [calls("stock", what="bells")],
        [says("There are twelve bells.")],
        [says("We are open from nine to six.")],
        [calls("transfer_to_workshop")],
        [says("I mend it now.")],
    )
    async with model(*answers) as there, edge_for(there) as (_, url):
        asked = {"url": f"{url.replace('http', 'ws')}?model=gpt-realtime", "question": str(file)}
        process = await asyncio.create_subprocess_exec(
            *("node", "agents_realtime.mjs", json.dumps(asked)),
            cwd=HERE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        out, err = await asyncio.wait_for(process.communicate(), LIMIT_S)
    assert process.returncode == 0, err.decode()
    seen = json.loads(out)
    assert seen["errors"] == []
    assert seen["tools"] == ["bells"]
    assert seen["handoff"] == ["desk", "workshop"]
    assert seen["audio"] > 2 * RATE_OUT
    said = [text for role, text in seen["history"] if role == "assistant" and text]
    assert said == ["There are twelve bells.", "We are open from nine to six.", "I mend it now."]
    heard = [text for role, text in seen["history"] if role == "user"]
    assert "hours" in heard[1]
    assert there.requests[-1]["messages"][0]["content"] == "You repair."
