"""What somebody at a desk sees and does beside the calls of a queue, in Chromium."""

from pathlib import Path

import pytest

from tests.browser.conftest import serving
from tests.browser.test_desk import config

pytestmark = pytest.mark.browser

HOSTILE = '<img src=x onerror="document.title=1"><script>document.title=2</script>'
QUEUE = '[queues.support]\nmembers = ["ext:101"]\nwrap_up_seconds = 600\n'
THROUGH = 'kind = "announcement"\ngreeting = "I put you through."\n'
THROUGH += 'settings = {transfer = "queue:support"}'


def with_queue(folder: Path) -> str:
    """The file of a server whose agent puts everybody through to a queue."""
    file = Path(config(folder, QUEUE))
    file.write_text(file.read_text().replace('kind = "silent"', THROUGH))
    return str(file)


async def test_a_caller_of_a_queue_is_accepted_with_a_click_and_noted(tmp_path, drive):
    store = {
        "OFFHOOK_RECORDS_URL": f"sqlite:///{tmp_path}/calls.db",
        "OFFHOOK_RECORDS_SPOOL": str(tmp_path / "spool"),
    }
    async with serving("--config", with_queue(tmp_path), **store) as server:
        told = await drive("desk_screen.mjs", url=server.url, hostile=HOSTILE)
        assert [fault for fault in server.faults() if "PocketSphinx" not in fault] == []
    said = told["said"]
    assert said == {
        **{name: [] for name in said if name.startswith("axe")},
        "briefing": "Hello, I have a call for you from Bob, 102.",
        "who": "Bob, 102",
        "words": said["words"],
        "with an agent": False,
        "passed on": "Bob: Passed on.",
        "talk": [620, 440],
        "without ann": [740, 620],
        "history": [f"101: {HOSTILE}", "101: Wants to be called back"],
        "ran": ["Desk \u00b7 offhook", 0],
    }
    assert "I put you through." in said["words"]
    assert not told["troubles"]
