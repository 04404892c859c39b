"""The documents' way to play speech in a page, as it stands there, in a browser."""

import re
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import aiohttp
import pytest

from offhook.media.pcm import RATE_OUT
from tests.browser.conftest import ROOT, serving

pytestmark = pytest.mark.browser

TEXT = 12 * "Good morning, this is the front desk. How can I help you? "
"""More sound than a browser keeps for a page that is slow to read: it comes in pieces."""


async def test_a_page_plays_speech_as_it_comes(drive: Callable[..., Any]) -> None:
    [code] = re.findall(
        r"^```js\n(.*?)^```", (ROOT / "docs/speech-api.md").read_text(), re.DOTALL | re.MULTILINE
    )
    async with serving() as server, aiohttp.ClientSession() as http:
        seen = await drive("documented_page.mjs", url=f"{server.url}/", code=code, text=TEXT)
        path = f"{server.url}/v1/audio/speech/pcm"
        async with http.post(path, json={"input": TEXT}) as response:
            samples = len(await response.read()) // 2
    # Chromium tells this of a body that a page has read piece by piece to its end.
    assert set(seen["troubles"]) <= {f"{path}: net::ERR_ABORTED"}
    pieces = seen["pieces"]
    assert len(pieces) > 1
    # Flite's pauses differ by some ms from reply to reply; a piece is hundreds.
    played_s = sum(piece["seconds"] for piece in pieces)
    assert played_s == pytest.approx(samples / RATE_OUT, abs=0.1)
    assert max(piece["loudest"] for piece in pieces) > 0.1
    assert not any(piece["late"] for piece in pieces)
    for one, next_ in pairwise(pieces):
        assert next_["at"] >= one["at"] + one["seconds"] - 1e-6
