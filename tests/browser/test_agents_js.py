"""OpenAI's agents SDK for JavaScript, as npm has it, in Realtime sessions with our agents."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from openai import AsyncOpenAI

from offhook.media.pcm import RATE_OUT
from offhook.web.config.config import Server
from tests.browser.conftest import bundled, microphone, node, page_of_another_site
from tests.pipeline.conversation.phone import calls, model, says
from tests.web.realtime.test_webrtc import edge_for

pytestmark = pytest.mark.browser

QUESTION = "What are your opening hours?"


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
        seen = await node("agents_realtime.mjs", **asked)
    assert seen["errors"] == []
    assert seen["tools"] == ["bells"]
    assert seen["handoff"] == ["desk", "workshop"]
    assert seen["audio"] > 2 * RATE_OUT
    said = [text for role, text in seen["history"] if role == "assistant" and text]
    assert said == ["There are twelve bells.", "We are open from nine to six.", "I mend it now."]
    heard = [text for role, text in seen["history"] if role == "user"]
    assert "hours" in heard[1]
    assert there.requests[-1]["messages"][0]["content"] == "You repair."


COUNT = "One two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen."


async def test_a_webrtc_call_from_a_page_of_another_site(
    drive: Callable[..., Any], packages: Path, tmp_path: Path
) -> None:
    lines = [
        str(await microphone(tmp_path / f"{n}.wav", (line,)))
        for n, line in enumerate(("How many bells have you got?", "Stop, what are your hours?"))
    ]
    answers = (
        [says("Good morning.")],
        [calls("stock", what="bells")],
        [says("There are twelve bells.")],
        [says(COUNT)],
        [says("From nine to six.")],
    )
    script = bundled(packages, "agents.js", tmp_path)
    async with page_of_another_site(script) as page, model(*answers) as there:
        server = Server(port=0, origins=[page])
        async with edge_for(there, server=server) as (_, url):
            async with AsyncOpenAI(
                base_url=url.removesuffix("/realtime"), api_key="none"
            ) as openai:
                session = {"type": "realtime", "instructions": "You are the desk."}
                secret = await openai.realtime.client_secrets.create(session=session)
            asked = {"calls": f"{url}/calls", "secret": secret.value, "lines": lines}
            seen = await drive("agents_page.mjs", url=f"{page}/", **asked)
    assert (seen["errors"], seen["troubles"]) == ([], [])
    assert seen["tools"] == ["bells"]
    said = [text for role, _, text in seen["history"] if role == "assistant" and text]
    greeting, stock, counted, hours = said
    assert greeting == "Good morning."
    assert stock == "There are twelve bells."
    assert COUNT.startswith(counted)
    assert 1 <= len(counted.split()) < 12
    assert hours == "From nine to six."
    heard = there.requests[-1]["messages"]
    assert counted in [message.get("content") for message in heard]  # what was played and no more
