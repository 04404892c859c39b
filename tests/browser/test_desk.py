"""Desks: phones of extensions in web pages, of which Chromium plays several at a real server."""

from pathlib import Path

import pytest

from tests.browser.conftest import serving

pytestmark = pytest.mark.browser

PEOPLE = {"101": "Ann", "102": "Bob", "103": "Cleo"}


def config(folder: Path, more: str = "") -> str:
    """The file of a server with three extensions, and an agent at 500."""
    people = "".join(
        f'[sip.extensions.{number}]\npassword = "pass-{number}"\nname = "{name}"\n'
        for number, name in PEOPLE.items()
    )
    file = folder / "offhook.toml"
    file.write_text(
        f"""
[agent]
kind = "silent"

[sip]
udp = 0
tcp = 0

{people}
[[sip.routes]]
called = "500"
{more}"""
    )
    return str(file)


async def test_a_team_calls_holds_and_transfers(tmp_path, drive):
    async with serving("--config", config(tmp_path)) as server:
        told = await drive("desk.mjs", url=server.url)
        assert not server.faults()
    said = told["said"]
    assert said == {
        **dict.fromkeys((name for name in said if name.startswith("axe")), []),
        "talk": [620, 440],
        "muted": 0,
        "held": 0,
        "again": [620, 440],
        "transferred": [740, 440],
        "asked": [740, 0],
        "consulted": [740, 440],
        "declined": "Bob: Declined.",
        "missed": "Ann: Missed.",
        "unknown": "999: You may not call this number.",
    }
    keys = [line["key"] for line in server.events("key_pressed")]
    assert keys == ["4", "2", "#"]
    assert not told["troubles"]
