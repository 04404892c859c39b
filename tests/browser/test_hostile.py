"""Markup and script in everything that the page and the button show, in a real browser: nothing
runs, nothing is loaded, and no words become an element."""

from collections.abc import Callable
from typing import Any

import pytest

from offhook.web.config.config import Agent
from tests.browser.test_late import sites
from tests.pipeline.conversation.phone import model, says

pytestmark = pytest.mark.browser

SAID = "Hello <img src=x onerror=ran('said')> <script>ran('said')</script> there."
LABEL = "<svg/onload=ran('label')>\"'>"


async def test_no_words_run_on_a_page(drive: Callable[..., Any]) -> None:
    async with model(*([says(SAID)] for _ in range(60))) as there:
        agent = Agent(kind="openai", base_url=there.url, model="scripted", think_ahead=False)
        async with sites(label=LABEL, agent=agent) as (own, button):
            seen = await drive("hostile.mjs", own=own, button=button)
    assert (seen["ran"], seen["loaded"], seen["made"], seen["troubles"]) == ([], [], [], [])
    assert seen["shown"] > 15
    assert seen["button"] == {"label": LABEL, "colour": "rgb(27, 110, 69)"}
    assert seen["framed"] == "chrome-error://chromewebdata/"
    assert seen["inFrame"] == "idle"
