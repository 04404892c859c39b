"""The console in Chromium: found calls, one call with its sound, numbers, who may do what."""

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from offhook.media.recording_io import OggOpusFile
from offhook.web.records.analyses import SETTLES_S, Found
from offhook.web.records.entries import Entry, Happened
from offhook.web.records.store import CallStore, Writer
from tests.browser.conftest import serving
from tests.web.records.made_calls import HERE, begun, call_of, over, said

pytestmark = pytest.mark.browser

KEY, READER = "the-operators-key", "the-readers-key"
EVIL = '<img src=x onerror="globalThis.ran=1"><script>globalThis.ran=1</script>'
ARABIC = "أريد أن أغير موعدي"


def hostile_call(now: float, recording: Path) -> list[Entry]:
    """A call in which everything that comes from outside is markup."""
    events = [
        Happened("hostile", 0, 500, "speech_started", {}),
        said("hostile", 1, "caller", f"I have lost my card {EVIL}", 2000),
        Happened(
            "hostile", 2, 2400, "turn_latency", {"turn": 1, "spans": [["x", 9]], "total_ms": 400}
        ),
        Happened("hostile", 3, 3000, "interrupted", {"heard": "I will", "unheard": "block it now"}),
        said("hostile", 4, "agent", "I will", 3100),
        said("hostile", 5, "caller", ARABIC, 4000),
        Happened(
            "hostile",
            6,
            4100,
            "tool_used",
            {"name": EVIL, "arguments": EVIL, "result": EVIL, "took_ms": 12, "failed": False},
        ),
        Happened("hostile", 7, 4500, "language_changed", {"language": EVIL, "before": "en"}),
        Happened("hostile", 8, 4600, "something_new", {"field": EVIL}),
        Happened("hostile", 9, 0, "recording_started", {"by": "settings", "notice": EVIL}),
        Happened("hostile", 10, 4700, "recording_paused", {"by": "operator"}),
        Happened("hostile", 11, 5700, "recording_resumed", {"by": "operator"}),
    ]
    outside = {"caller_name": EVIL, "called": EVIL, "variables": {EVIL: EVIL}}
    return [
        begun("hostile", now - 300, agent=EVIL, **outside),
        *events,
        over("hostile", now - 290, recording=str(recording)),
    ]


def judged() -> Found:
    """What a model has found that says what callers want it to."""
    criterion = {"name": "found", "criterion": EVIL, "verdict": "failure", "reason": EVIL}
    result = {
        "summary": f"A card is lost. {EVIL}",
        "criteria": [{**criterion, "at_ms": 2000, "turn": 1}],
        "extracted": {"card": EVIL, "street": None},
        "model": EVIL,
        "cost": 0.25,
    }
    return Found("failure", result, {"found": "failure"}, 0.25)


def filled(folder: Path) -> str:
    """A store with calls of the last days, and one that goes on."""
    url, now = f"sqlite:///{folder}/calls.db", time.time()
    store = CallStore(url, (), lambda agents: EVIL if EVIL in agents else "")
    store.prepare()
    for number in range(60):
        store.write(
            call_of(f"c{number}", "what are your hours", at=now - 600 - 7200 * number),
            HERE,
            now,
        )
    sound = OggOpusFile(folder / "hostile.ogg")
    beep = (8000 * np.sin(np.arange(24_000 * 6) / 20)).astype(np.int16)
    sound.write(np.stack([beep, beep // 2], axis=1).reshape(-1))
    sound.finish()
    store.write(hostile_call(now, folder / "hostile.ogg"), HERE, now)
    [waiting] = store.analyses.claim({EVIL}, HERE.server, now + SETTLES_S)
    store.analyses.finish(waiting, judged(), now)
    elsewhere = Writer("elsewhere:7860")
    store.write([begun("live", now - 30), said("live", 0, "caller", "hello there")], elsewhere, now)
    store.seen(elsewhere, now + 86_400)
    store.close()
    return url


async def test_the_console(tmp_path: Path, drive: Callable[..., Any]) -> None:
    environment = {
        "OFFHOOK_RECORDS_URL": filled(tmp_path),
        "OFFHOOK_RECORDS_SPOOL": str(tmp_path / "spool"),
        "OFFHOOK_SERVER_ADMIN_KEY": KEY,
        "OFFHOOK_SERVER_READER_KEY": READER,
    }
    async with serving(**environment) as server:
        url = f"{server.url}/console"
        pictures = os.environ.get("TEST_PICTURES", "")
        keys = {"key": KEY, "reader": READER}
        found = await drive("console.mjs", url=url, call="c1", pictures=pictures, **keys)
    assert found["axe"] == found["troubles"] == []
    seen = found["seen"]
    assert (found["ran"], seen["ran"]) == ("", "")
    assert "neither the operator" in seen["fault"]
    assert (seen["calls"], seen["more"]) == (50, 62)
    assert EVIL in seen["row"]
    assert EVIL in seen["failed"]
    for words in ("Failure", f"A card is lost. {EVIL}", "found 0:02.0", "cost 0.2500"):
        assert words in seen["analysis"]
    assert seen["words"] == [f"I have lost my card {EVIL}", "I will block it now", ARABIC]
    assert seen["unheard"] == "block it now"
    assert any(f"Tool {EVIL}" in one for one in seen["done"])
    assert "answered in 400" in seen["latency"]
    assert seen["painted"]
    assert seen["silences"].endswith("; paused 0:04.7 to 0:05.7")
    assert any("Recording paused, by the operator" in one for one in seen["done"])
    assert seen["now"].startswith("I will")
    assert "Calls" in seen["cards"]
    assert seen["last"] == "hello there"
    assert seen["forgotten"] == "The words of this call have been deleted."
    assert seen["cookie"] == ""
    assert seen["session"] == [True, "Strict", "/"]
    assert seen["after"] == 401
    assert seen["reader"] == {"look": 200, "listen": 403, "forget": 403, "end": 403}
    kept = CallStore(environment["OFFHOOK_RECORDS_URL"])
    assert kept.timeline("c1") == []
    kept.close()
    assert any("listens to the recording" in line["message"] for line in server.log)
