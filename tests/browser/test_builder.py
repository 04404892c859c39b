"""The builder of the page, in Chromium: an agent's settings for one call, its flow as the call
moves through it, and what goes to its model."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.browser.conftest import microphone, serving
from tests.pipeline.conversation.phone import calls, model, says

pytestmark = pytest.mark.browser

FLOW = """initial = "reason"
global_functions = ["end_call"]

[nodes.reason]
task = "Find out what the caller wants."
[[nodes.reason.functions]]
name = "wants"
description = "Call this as soon as you know."
parameters = {what = "what the caller wants"}
next_by = "what"
next = {booking = "day", person = "workshop"}

[nodes.day]
task = "Ask which day suits the caller."
functions = [{name = "other", description = "Something else.", next = "reason"}]

[nodes.workshop]
pre_actions = [{say = "One moment."}, {transfer = "+4930555100"}]
"""
KEY = "sk-not-to-be-seen"


def table(url: str, flow: Path) -> str:
    return f"""
[agents.repairs]
kind = "openai"
base_url = "{url}"
model = "m"
api_key = "{KEY}"
greeting = "Hello there."
instructions = "You answer the telephone of a workshop."
flow = "{flow}"
"""


async def test_an_agent_is_built_on_the_page(drive: Callable[..., Any], tmp_path: Path) -> None:
    flow, config = tmp_path / "flow.toml", tmp_path / "offhook.toml"
    flow.write_text(FLOW)
    wav = await microphone(tmp_path / "microphone.wav", [1.0])
    async with model() as endpoint:
        endpoint.answers = [[calls("wants", what="booking")], [says("Which day?")]]
        config.write_text(table(endpoint.url, flow))
        async with serving("--config", str(config)) as server:
            seen = await drive(
                "builder_page.mjs",
                url=f"{server.url}/",
                microphone=str(wav),
                pictures=str(tmp_path),
            )
    assert seen["findings"] == []
    assert [trouble for trouble in seen["troubles"] if "400" not in trouble] == []
    assert seen["panel"] <= 390

    assert seen["agents"] == ["the usual agent (frontdesk)", "repairs (openai)"]
    assert seen["usual"] == ["Greeting", "Goodbye", "Voice", "Speed", "Language"]
    assert {"slt", "rms"} <= {*seen["voices"]}
    assert seen["suggested"] == "builder-voices"
    assert {*seen["nodes"]} == {"reason", "day", "workshop"}
    assert seen["listed"] == ["reasonfirst", "day", "workshop"]
    assert seen["focused"] == "day"
    assert seen["status"] == (
        "Your next call here has another greeting, temperature. Other callers have not."
    )
    assert seen["toml"] == '[agents.repairs]\ngreeting = "Ahoy there."\ntemperature = 0.5\n'
    assert "temperature: must be a number from 0 to 2, not 9" in seen["refused"]

    assert (seen["begins"], seen["first"]) == (["reason"], "step")
    assert (seen["goesOn"], seen["here"], seen["after"]) == (["day"], ["day"], [])
    assert seen["requests"] >= 2
    assert "You answer the telephone of a workshop." in seen["request"]
    assert "I want to book a repair." in seen["request"]
    assert '"temperature": 0.5' in seen["request"]
    assert "wants" in seen["function"]
    assert '"what": "booking"' in seen["function"]
    assert '"status": "done"' in seen["function"]
    assert KEY not in json.dumps(seen)
    assert not seen["ofCallers"]
    assert config.read_text() == table(endpoint.url, flow)  # nothing is saved
