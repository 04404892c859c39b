"""The page at `/`, as a caller uses it: call, talk, interrupt, type, hang up."""

import re
import subprocess
import wave
from collections.abc import Callable
from operator import itemgetter
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest

from offhook.web.http.logs import MASK
from tests.browser.conftest import HERE, WAIT, microphone, serving
from tests.support.waiting import HANGS_S

pytestmark = pytest.mark.browser

LINES = (
    "What are your opening hours?",
    "Tell me about yourself.",
    "Stop, what are your opening hours?",
)
NAMES = {"caller": "You", "agent": "Agent"}
PRESSED = re.compile(r"\[pressed ([\d#*]+)\] ?")
"""Keys as a turn of the caller has them, or masked as in the log."""
STRIP_PX = 8.5 * 16
SILENT_HINT = (
    "Nothing is heard from “Fake Default Audio Input”. Is it switched off, or the wrong one?"
)
SPANS = {
    "Silence noticed": "speech_end",
    "Final words": "asr_final",
    "Turn decided": "turn_decided",
    "Agent’s first word": "llm_first_token",
    "First sound": "tts_first_audio",
    "First packet": "first_packet",
}


def answers(turns: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The agent's turns without its asking to wait, which a busy machine adds: before an answer or
    as a turn of its own, said to its end or interrupted."""
    texts = [(turn, turn["text"].removeprefix(WAIT).strip()) for turn in turns]
    return [turn | {"text": text} for turn, text in texts if not WAIT.startswith(text)]


def words(turns: list[dict[str, Any]]) -> str:
    return " ".join(turn["text"] for turn in turns)


@pytest.mark.parametrize("script", ["page_parts.mjs", "desk_parts.mjs"])
def test_the_parts_of_the_page(packages: Path, tmp_path: Path, script: str) -> None:
    """States, refusals, silence, transcripts, SIP: in node, without a browser."""
    out = tmp_path / "parts.mjs"
    bundle = ["--bundle", "--format=esm", "--platform=node", f"--outfile={out}"]
    for command in ([packages / ".bin/esbuild", HERE / script, *bundle], ["node", out]):
        done = subprocess.run([*map(str, command)], capture_output=True, text=True, timeout=HANGS_S)
        assert done.returncode == 0, done.stderr


def loud_s(path: Path) -> float:
    """How much of a recording is sound and not silence."""
    with av.open(str(path)) as file:
        frames = [frame.to_ndarray().ravel() for frame in file.decode(audio=0)]
        return sum(len(f) / rate_of(file) for f in frames if np.abs(f).max() > 0.01)


def rate_of(file: Any) -> int:
    stream = file.streams.audio[0]
    return int(stream.rate * stream.channels)


async def test_a_call_from_the_page(drive: Callable[..., Any], tmp_path: Path) -> None:
    """What the page shows is what the server's log says happened."""
    lines = [str(await microphone(tmp_path / f"{n}.wav", [line])) for n, line in enumerate(LINES)]
    async with serving(OFFHOOK_LOG_LEVEL="DEBUG") as server:
        seen = await drive("page_call.mjs", url=f"{server.url}/", lines=lines, folder=str(tmp_path))
    assert seen["troubles"] == []
    assert seen["findings"] == []
    assert server.faults() == []
    assert set(seen["links"]) == {200}
    assert seen["loudness"] > 0.02
    assert seen["muted"] == "You are muted"
    of_a_busy_machine = {"Fair", "Poor", "Slow answers"}
    assert seen["quality"] in {"Excellent", "Good", *of_a_busy_machine}
    assert seen["title"] == "In a call – offhook"
    assert seen["warned"] == "beforeunload"

    first, second = server.events("call_ended")
    caller = [turn for turn in seen["turns"] if turn["who"] == "caller"]
    spoken = [turn for turn in seen["turns"] if turn["who"] == "agent"]
    agent = answers(spoken)
    heard = [event for event in server.events("caller_turn") if event["call"] == first["call"]]
    said = [event for event in server.events("agent_turn") if event["call"] == first["call"]]
    # Two turns that no answer parted are one on the page; a busy machine has keys in two turns.
    assert PRESSED.sub(MASK, words(caller)) == PRESSED.sub(MASK, f"{words(heard)} Goodbye")
    assert "".join(PRESSED.findall(words(caller))) == "422#"
    assert seen["pressed"] == "422#"
    assert len(server.events("dtmf")) == 4  # the log does not say which
    assert [turn["text"] for turn in agent] == [turn["text"] for turn in answers(said)]
    assert {"hours", "opening"} & {*words(caller).split()}  # what a small recogniser may hear
    assert seen["partial"]

    interrupted = server.events("interrupted")[0]
    # The first one: a busy machine, whose words come late, is interrupted again.
    cut = next(turn for turn in agent if turn["unheard"])
    assert cut["text"] == interrupted["heard"]
    assert cut["struck"] == "line-through"
    assert cut["lines"] == pytest.approx(1, abs=0.1)
    assert cut["unheard"].startswith(interrupted["unheard"])

    latencies = server.events("turn_latency")
    assert len(latencies) >= 4  # more where a busy machine has heard a sentence as two turns
    scale = max(1000, *(latency["total_ms"] for latency in latencies))  # of all bars
    for latency, turn in zip(latencies, filter(itemgetter("total"), spoken), strict=True):
        assert turn["total"] == f"answered in {latency['total_ms'] / 1000:.1f}\u00a0s"
        assert turn["width"] / STRIP_PX == pytest.approx(latency["total_ms"] / scale, abs=0.02)
        shown = [(SPANS[name], ms) for name, ms, _ in turn["spans"]]
        assert shown == [(name, f"{ms} ms") for name, ms in latency["spans"]]
        assert len({colour for _, _, colour in turn["spans"]}) == len(turn["spans"])

    assert {"user-transcription", "server-message turn-latency", "key #"} <= {*seen["events"]}
    assert [title.partition(",")[0] for title in seen["folds"][:2]] == ["Beginning", "Turn 1"]
    assert {*seen["filtered"]} == {"server-message turn-latency"}
    assert seen["faultsOnly"] == 0
    assert re.search(rf"\[0:\d\d\] You: {re.escape(caller[0]['text'])}", seen["words"])
    assert seen["hidden"] == []
    beginnings = dict.fromkeys(
        f"{NAMES[turn['who']]}: {turn['text'][:12]}" for turn in seen["turns"]
    )
    captions = [
        line[: len(words)] for line in seen["captions"] for words in beginnings if words in line
    ]
    assert list(dict.fromkeys(captions)) == list(beginnings)  # in the order of speaking
    assert f"not heard: {cut['unheard']}]" in seen["words"]
    assert loud_s(Path(seen["sound"])) > 5

    assert re.match(r"The agent hung up\u00a0· \d+:", seen["end"])
    assert first["reason"] == "the agent hung up"
    assert re.match(r"You hung up\u00a0· \d+:", seen["secondEnd"])
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


async def test_an_outage_is_told_within_seconds(drive: Callable[..., Any], tmp_path: Path) -> None:
    wav = await microphone(tmp_path / "caller.wav", (60.0,))
    async with serving() as server:
        seen = await drive(
            "page_outage.mjs", url=f"{server.url}/", microphone=str(wav), server=server.pid
        )
    assert seen["troubles"] == []
    assert seen["findings"] == []
    assert seen["stalled"] == {
        "status": "No answer from the server",
        "phase": "No answer",
        "quality-word": "No answer",
        "hint": "Nothing has come from the server for some seconds. "
        "The call goes on if it comes back.",
    }
    assert seen["stalledTitle"] == "No answer from the server – offhook"
    assert seen["noticedAfter"] > 0
    assert seen["killed"] == "The server went away"
    assert "network works" in seen["words"]
    assert seen["killedTroubles"] == []
    # On a slow machine the caller has been silent for so long that the page says that.
    assert seen["back"]["hint"] in ("", SILENT_HINT)
    assert seen["back"]["word"] != "No answer"


@pytest.mark.slow
async def test_what_the_page_says_in_each_of_its_states(
    drive: Callable[..., Any], tmp_path: Path
) -> None:
    """Refusals for what they are, and no alarm over a browser that keeps sound from the page."""
    wav = await microphone(tmp_path / "caller.wav", ("One two three four five.", 60.0))
    async with serving() as server:
        seen = await drive(
            "page_states.mjs",
            url=f"{server.url}/",
            microphone=str(wav),
            pictures=str(tmp_path),
        )
    assert seen["findings"] == []
    assert [trouble for trouble in seen["troubles"] if "503" not in trouble] == []
    assert seen["answers"] == (
        "The front desk answers. It hears with pocketsphinx and speaks with flite."
    )
    assert seen["volume"] == 0.5
    assert seen["speakers"] > 1
    assert seen["refusals"] == {
        "full": "All lines are busy",
        "connecting": "Many are calling at this moment",
        "overloaded": "The server is overloaded",
        "loading": "The server is still starting",
        "draining": "The server is shutting down",
    }
    assert seen["retry"] == "Try again in 7 s."
    assert seen["asleep"] == ""
    assert seen["title"] == "Call ended – offhook"


LONG = "I would like to tell you about my bicycle, which I bought from you last year,"
SENTENCES = (
    "and the first thing is that the chain makes a noise whenever I ride up the hill,",
    "and then the brakes are not as good as they were when it was new,",
    "and I have been wondering if somebody could look at the wheels as well,",
    "because the one in front is not round any more after I rode over a stone,",
)


@pytest.mark.slow
async def test_words_keep_coming_for_more_than_a_minute_of_speech(
    drive: Callable[..., Any], tmp_path: Path
) -> None:
    wav = await microphone(tmp_path / "caller.wav", (6.5, LONG, *SENTENCES * 5, 60.0))
    with wave.open(str(wav)) as file:
        spoken_s = int(file.getnframes() / file.getframerate() - 66.5)
    assert spoken_s > 65
    async with serving() as server:
        seen = await drive(
            "page_long.mjs", url=f"{server.url}/", microphone=str(wav), seconds=spoken_s
        )
    assert seen["troubles"] == []
    words = [at["words"] for at in seen["lengths"]]
    for earlier, later in zip(words, words[8:], strict=False):
        assert later > earlier
    assert all(at["seen"] for at in seen["lengths"])
    assert words[-1] > 800
