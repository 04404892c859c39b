"""The console in Chromium and Firefox: calls found and heard, live words, who may do what."""

import asyncio
import json
import os
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from offhook.media.recording_io import OggOpusFile
from offhook.web.campaigns.recipients import recipient
from offhook.web.records.analyses import SETTLES_S, Found
from offhook.web.records.entries import Entry, Happened
from offhook.web.records.store import CallStore, Writer
from tests.browser.conftest import serving
from tests.browser.firefox_io import Firefox, firefox
from tests.support.ports import free_port
from tests.support.waiting import HANGS_S
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
    people = [recipient("+4930001"), recipient("+4930002")]
    elsewhere_too = {"agent": "of another server"}  # so nobody is called from here
    store.campaigns.add("spring", {"name": EVIL, **elsewhere_too}, people, now)
    store.campaigns.add("winter", {"name": "winter", **elsewhere_too}, people, now - 1, paused=True)
    store.close()
    return url


def environment_of(folder: Path) -> dict[str, str]:
    """A server with these calls, and a trunk that is down and has markup for a name."""
    trunk, port = {"name": EVIL, "server": "nowhere.invalid"}, str(free_port())
    return {
        "OFFHOOK_RECORDS_URL": filled(folder),
        "OFFHOOK_RECORDS_SPOOL": str(folder / "spool"),
        "OFFHOOK_SERVER_ADMIN_KEY": KEY,
        "OFFHOOK_SERVER_READER_KEY": READER,
        "OFFHOOK_SIP_UDP": port,
        "OFFHOOK_SIP_TCP": port,
        "OFFHOOK_SIP_TRUNKS": json.dumps([trunk]),
        "OFFHOOK_SIP_EXTENSIONS": json.dumps({"101": {"password": "secret", "name": EVIL}}),
    }


@asynccontextmanager
async def talking(url: str) -> AsyncIterator[None]:
    """The caller of the call that goes on says something more again and again."""

    async def talk() -> None:
        store = CallStore(url)
        for number in count(1):
            await asyncio.to_thread(
                store.write, [said("live", number, "caller", f"still here {number}")], HERE, 0
            )
            await asyncio.sleep(0.5)

    task = asyncio.create_task(talk())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_the_console(tmp_path: Path, drive: Callable[..., Any]) -> None:
    environment = environment_of(tmp_path)
    async with (
        serving(**environment) as server,
        talking(environment["OFFHOOK_RECORDS_URL"]),
    ):
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
    assert "#/history/?" in seen["link"]
    assert "state=live" in seen["link"]
    assert "trunk=line" in seen["link"]
    assert seen["again"] == [1, "live", "line"]
    assert seen["offered"] >= 4
    assert seen["bars"] == [2, 1]
    assert "the slowest after 400" in seen["picture"]
    assert seen["record"] == 12
    name, scenario = seen["scenario"]
    assert name == "hostile.yaml"
    assert yaml.safe_load(scenario)["scenarios"]
    assert seen["shared"].startswith("I will")
    assert seen["last"] in ("hello there", *(f"still here {number}" for number in range(10_000)))
    assert seen["asked"] == [True, False]  # words come by themselves
    assert "hang-up" in seen["focused"]
    trunk, extension = seen["trunks"]
    assert EVIL in extension
    assert "no phone registered" in extension
    assert EVIL in trunk
    assert "nowhere.invalid" in trunk
    assert any("pocketsphinx" in engine for engine in seen["engines"])
    assert any("frontdesk" in agent for agent in seen["agents"])
    assert EVIL in seen["campaigns"][0]
    assert "0\u00a0of\u00a02" in seen["campaigns"][0]
    assert ("paused" in seen["paused"], seen["focusedAction"]) == (True, "Pause winter")
    assert ("2 cancelled" in seen["cancelled"], seen["actions"]) == (True, ["Report"])
    assert seen["report"][0] == "spring.csv"
    assert "'+4930001,UTC,cancelled" in seen["report"][1]
    assert seen["forgotten"] == "The words of this call have been deleted."
    assert seen["cookie"] == ""
    assert seen["session"] == [True, "Strict", "/"]
    assert seen["after"] == 401
    assert seen["reader"] == {
        "look": 200,
        "trunks": 200,
        "listen": 403,
        "forget": 403,
        "end": 403,
    } | {
        "campaigns": 200,
        "resume": 403,
        "buttons": 0,
    }
    kept = CallStore(environment["OFFHOOK_RECORDS_URL"])
    assert kept.timeline("c1") == []
    kept.close()
    assert any("listens to the recording" in line["message"] for line in server.log)


FINDINGS = """axe.run().then(({ violations }) => violations.flatMap(({ id, nodes }) =>
  nodes.map(({ target, failureSummary }) => `${id} at ${target}: ${failureSummary}`)))"""


async def look(page: Firefox, axe: str) -> list[str]:
    """What axe finds in the page as it is."""
    await page.evaluate(f"(() => {{ {axe} }})()")
    found: list[str] = await page.evaluate(FINDINGS)
    return found


async def go(page: Firefox, view: str, shown: str) -> None:
    """Goes to a view, and waits for what it shows."""
    await page.evaluate(f"location.hash = {json.dumps(view)}")
    await page.until(f"document.querySelector({json.dumps(shown)})", HANGS_S)


@pytest.mark.slow
async def test_the_console_in_firefox(program: str, packages: Path, tmp_path: Path) -> None:
    environment = environment_of(tmp_path)
    axe = await asyncio.to_thread((packages / "axe-core" / "axe.min.js").read_text)
    profile = tmp_path / "profile"
    profile.mkdir()
    async with (
        serving(**environment) as server,
        talking(environment["OFFHOOK_RECORDS_URL"]),
        firefox(program, profile) as page,
    ):
        await page.goto(f"{server.url}/console")
        await page.until("document.querySelector('#key')", HANGS_S)
        findings = await look(page, axe)
        await page.evaluate(f"document.querySelector('#key').value = {json.dumps(KEY)}")
        await page.click(".sign-in button")
        await page.until("document.querySelector('tbody tr')", HANGS_S)
        findings += await look(page, axe)
        await go(page, "#/history/?text=lost+card", "tbody tr:only-child")
        await go(page, "#/call/hostile", ".story li.caller")
        words = await page.evaluate(
            "[...document.querySelectorAll('.story .words')].map((each) => each.textContent)"
        )
        await page.click(".player-row button")
        await page.until("document.querySelector('.waveform')", HANGS_S)
        await page.click(".story li.agent button.at")
        await page.until("document.querySelector('audio').currentTime > 1", HANGS_S)
        await page.until("document.querySelector('.story .now')", HANGS_S)
        bars = await page.evaluate("document.querySelectorAll('.axis-picture .caller').length")
        findings += await look(page, axe)
        await go(page, "#/live", ".last")
        last = "document.querySelector('.last-turns li:last-child .last').textContent"
        before = await page.evaluate(last)
        await page.until(f"{last} !== {json.dumps(before)}", HANGS_S)
        findings += await look(page, axe)
        views = {"trunks": ".badge[data-state=down]", "engines": ".badge", "agents": "tbody code"}
        for view, shown in {**views, "numbers": ".chart rect"}.items():
            await go(page, f"#/{view}", shown)
            findings += await look(page, axe)
        ran = await page.evaluate("globalThis.ran ?? ''")
        troubles = [text for text in page.troubles if "401" not in text]
    assert findings == troubles == []
    assert words == [f"I have lost my card {EVIL}", "I will block it now", ARABIC]
    assert (bars, ran) == (2, "")
