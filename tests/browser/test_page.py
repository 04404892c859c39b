"""The page at `/`, as a caller uses it: call, talk, interrupt, type, hang up."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.browser.conftest import microphone, serving

pytestmark = pytest.mark.browser

SCRIPT = (
    *(6.5, "What are your opening hours?"),
    *(10.0, "Tell me about yourself."),
    *(5.0, "Stop, what are your opening hours?"),
    60.0,
)
SPANS = {
    "Silence noticed": "speech_end",
    "Final words": "asr_final",
    "Turn decided": "turn_decided",
    "Agent’s first word": "llm_first_token",
    "First sound": "tts_first_audio",
    "First packet": "first_packet",
}


def words(turns: list[dict[str, Any]]) -> str:
    return " ".join(turn["text"] for turn in turns)


async def test_a_call_from_the_page(drive: Callable[..., Any], tmp_path: Path) -> None:
    """What the page shows is what the server's log says happened."""
    wav = await microphone(tmp_path / "caller.wav", SCRIPT)
    async with serving() as server:
        seen = await drive(
            "page_call.mjs", url=f"{server.url}/", microphone=str(wav), pictures=str(tmp_path)
        )
    assert seen["troubles"] == []
    assert server.faults() == []
    assert set(seen["links"]) == {200}
    assert seen["loudness"] > 0.02
    assert seen["muted"] == "You are muted"
    assert seen["quality"] in ("Excellent", "Good")

    first, second = server.events("call_ended")
    caller = [turn for turn in seen["turns"] if turn["who"] == "caller"]
    agent = [turn for turn in seen["turns"] if turn["who"] == "agent"]
    heard = [event for event in server.events("caller_turn") if event["call"] == first["call"]]
    said = [event for event in server.events("agent_turn") if event["call"] == first["call"]]
    # Two turns that no answer parted are one on the page.
    assert words(caller) == f"{words(heard)} Goodbye"
    assert [turn["text"] for turn in agent] == [event["text"] for event in said]
    assert "hours" in caller[0]["text"]
    assert seen["partial"]
    assert "nine to six" in agent[3]["text"]

    interrupted = server.events("interrupted")[0]
    assert agent[2]["text"] == interrupted["heard"]
    assert agent[2]["struck"] == "line-through"
    assert agent[2]["unheard"].startswith(interrupted["unheard"])
    assert [turn["unheard"] for turn in agent if turn is not agent[2]] == [""] * 4

    for latency, turn in zip(server.events("turn_latency"), agent[1:4], strict=True):
        assert turn["total"] == f"{latency['total_ms']} ms"
        shown = [(SPANS[name], ms) for name, ms, _ in turn["spans"]]
        assert shown == [(name, f"{ms} ms") for name, ms in latency["spans"]]
        assert len({colour for _, _, colour in turn["spans"]}) == len(turn["spans"])

    assert seen["end"].startswith("The agent hung up\u00a0· 0:")
    assert first["reason"] == "the agent hung up"
    assert seen["secondEnd"].startswith("You hung up\u00a0· 0:0")
    assert second["reason"] == "the caller hung up"


async def test_a_server_that_wants_a_key_is_called_with_it(
    drive: Callable[..., Any], tmp_path: Path
) -> None:
    wav = await microphone(tmp_path / "caller.wav", (20.0,))
    key = "zelkova-17"
    async with serving(OFFHOOK_SERVER_API_KEY=key) as server:
        seen = await drive(
            "page_key.mjs",
            url=f"{server.url}/",
            microphone=str(wav),
            pictures=str(tmp_path),
            key=key,
        )
    assert seen["asked"] == "This server wants a key"
    assert seen["refused"] == "That key is not the right one"
    assert seen["kept"] == 0  # in the tab alone
    assert [trouble for trouble in seen["troubles"] if "401" not in trouble] == []
    assert len(seen["troubles"]) == 2
    assert [event["reason"] for event in server.events("call_ended")] == ["the caller hung up"] * 2
    assert key not in str(server.log)
