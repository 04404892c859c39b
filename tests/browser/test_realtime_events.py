"""OpenAI's agents SDK for JavaScript, as npm has it, reads every event of our conversations."""

import inspect
import json
import subprocess
from pathlib import Path

import pytest

from tests.browser.conftest import HERE
from tests.support.waiting import HANGS_S
from tests.web.realtime.conversation import client, test_mcp, test_orders, test_truncation

pytestmark = pytest.mark.browser

UNKNOWN = [
    "input_audio_buffer.dtmf_event_received",
    "input_audio_buffer.timeout_triggered",
    "response.mcp_call.failed",
]
"""Events of OpenAI's server that this SDK has no schema for, and passes on as they are."""


@pytest.mark.usefixtures("packages")
def test_every_event_has_the_form_that_the_sdk_expects(monkeypatch: pytest.MonkeyPatch) -> None:
    frames = list[str]()

    def collected(text: str) -> client.Event:
        frames.append(text)
        event: client.Event = json.loads(text)
        return event

    monkeypatch.setattr(client, "checked", collected)
    for module in (test_orders, test_mcp, test_truncation):
        for name, test in inspect.getmembers(module, inspect.isfunction):
            if name.startswith("test_") and not inspect.signature(test).parameters:
                test()
    done = subprocess.run(
        ["node", "realtime_events.mjs"],
        cwd=Path(HERE),
        input="\n".join(frames),
        capture_output=True,
        text=True,
        timeout=HANGS_S,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["wrong"] == []
    assert found["unknown"] == UNKNOWN
    assert found["missed"] == ["conversation.created"]  # which OpenAI's server does not send
