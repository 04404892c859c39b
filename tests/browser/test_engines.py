"""The engines of `auto` on the page: the operator takes the offer, and sees how far it is."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.hub_stand_in import Hub, running

pytest.importorskip("torch")
# A transformers that knows no Nemotron does not do.
auto_server = pytest.importorskip("tests.support.auto_server", exc_type=ImportError)


@pytest.mark.browser
@pytest.mark.slow
async def test_the_operator_takes_the_offer_and_sees_how_far_it_is(
    drive: Callable[..., Any], tmp_path: Path
) -> None:
    """The pictures are in tmp_path: offer.png, downloading.png, ready.png."""
    models = auto_server.repositories(tmp_path / "hub")
    with running(Hub(others=models, bytes_per_second=1 << 20)) as hub:
        settings = auto_server.environment(hub, tmp_path / "cache")
        engines = ("nemotron", "pocket")
        async with auto_server.serving(tmp_path, engines=engines, **settings) as (url, _, _):
            seen = await drive(
                "page_engines.mjs",
                url=f"{url}/",
                pictures=str(tmp_path),
                becomes="It hears with nemotron and speaks with pocket.",
            )
    assert seen["troubles"] == []
    assert seen["findings"] == []
    assert seen["offer"] == "Better speech, 2.5 GB"
    assert seen["details"] == (
        "This machine could hear with Nemotron (nvidia/nemotron-speech-streaming-en-0.6b, "
        "2.5 GB to download, NVIDIA Open Model License) and speak with Pocket TTS (english, "
        "CC-BY-4.0). Calls go on meanwhile, and new ones use what is ready."
    )
    assert "Nemotron, to hear with: downloading 2.5 GB" in seen["downloading"]
    assert "It hears with pocketsphinx" in seen["hears"]
