"""`offhook campaigns`: real commands against a real server."""

import csv
import json
from pathlib import Path
from typing import Any

import pytest

from offhook.web.config.config import Config
from offhook.web.config.records import Records
from tests.support.waiting import until
from tests.web.app.cli.test_dial import run
from tests.web.edge.callees import Callees
from tests.web.edge.phones import configured, served


def keeping(where: str, folder: Path) -> Config:
    url = f"sqlite:///{folder}/calls.db"
    records = Records.model_validate({"url": url, "spool": folder / "spool"})
    return configured(where).model_copy(update={"records": records})


async def words(server: Any, *arguments: str) -> str:
    """What a command writes, which succeeds."""
    code, lines, errors = await run("campaigns", *arguments, "--url", server.url)
    assert (code, errors) == (0, "")
    return "\n".join(lines)


@pytest.mark.asyncio
async def test_a_campaign_from_its_start_to_its_report(tmp_path: Path) -> None:
    file = tmp_path / "people.csv"
    file.write_text("number,id,name\n+4930001,a,Ada\n+4930002,b,Bob\n")
    far = Callees(lambda number, times: "busy" if number.endswith("2") else "human")
    async with far.running() as where, served(keeping(where, tmp_path), keeps=True) as server:
        options = ["--id", "spring", "--name", "Spring sale", "--at-once", "2", "--paused"]
        options += ["--window", "Mon-Sun 00:00-24:00", "--time-zone", "Europe/Berlin"]
        options += ["--retry", "busy=0", "--per-second", "20"]
        found = await words(server, "start", str(file), *options)
        assert found == "campaign spring is paused: 2 recipients"
        assert "Spring sale" in await words(server, "list")
        more = tmp_path / "more.json"
        more.write_text(json.dumps({"recipients": [{"number": "+4930003"}, {"number": "4"}]}))
        code, _, errors = await run("campaigns", "append", "spring", str(more), "--url", server.url)
        assert (code, "recipients.1.number: '4' is no number" in errors) == (1, True)
        found = await words(server, "append", "spring", str(file))
        assert found == "campaign spring: 0 added, 2 were there"
        assert await words(server, "resume", "spring") == "campaign spring is running"
        await until(lambda: len(far.called) == 2)

        shown: dict[str, Any] = {}
        while shown.get("state") != "completed":
            shown = json.loads(await words(server, "show", "spring", "--json"))
        assert shown["outcomes"] == {"answered": 1, "busy": 1}
        found = await words(server, "show", "spring")
        assert "campaign spring (Spring sale) is completed" in found
        assert "outcomes: 1 answered, 1 busy; 2 calls in all" in found
        rows = list(csv.DictReader((await words(server, "report", "spring")).splitlines()))
        assert [(row["id"], row["outcome"], row["name"]) for row in rows] == [
            ("a", "answered", "Ada"),
            ("b", "busy", "Bob"),
        ]
        code, _, errors = await run("campaigns", "pause", "spring", "--url", server.url)
        assert (code, errors) == (1, "offhook: the campaign is completed: it cannot pause\n")

        add = ["do-not-call", "--add", "0049 30 001", "--reason", "asked us to"]
        assert await words(server, *add) == "1 added, 0 were there"
        assert "asked us to" in await words(server, "do-not-call")
        remove = ["do-not-call", "--remove", "+49 30 001"]
        assert await words(server, *remove) == "1 removed"
        assert json.loads(await words(server, "do-not-call", "--json"))["total"] == 0
