"""A campaign over HTTP, whose calls reach real far ends over SIP."""

import asyncio
import csv
import io
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import ClientSession, web

from benchmarks.carriers.far_ends.far_end import CallFacts
from benchmarks.carriers.far_ends.far_end_io import FarEndCall
from benchmarks.carriers.far_ends.far_end_json import Twilio
from offhook.media.leg import CallInfo
from offhook.web.config.agents import Agent
from offhook.web.config.config import Config
from offhook.web.config.tools import HttpTool
from offhook.web.edge.server_io import application
from tests.pipeline.conversation.phone import calls, model, says
from tests.support.ports import free_port
from tests.support.waiting import HANGS_S, until
from tests.telephony.carriers.rest.fake_rest import FakeRest
from tests.web.edge.agents.test_agent import Page, called
from tests.web.edge.callees import Callees
from tests.web.edge.phones import Served
from tests.web.edge.scripted_edge import ScriptedEdge
from tests.web.edge.test_carriers import stream_url, webhook

pytestmark = pytest.mark.asyncio
CSV = {"Content-Type": "text/csv"}
SOON = {name: {"times": 1, "after_minutes": 0} for name in ("busy", "failed")}
SOON |= {name: {"times": 0} for name in ("machine", "no_answer")}
AT_ONCE = 4


def kind_of(number: str, times: int) -> str:
    """By the last two digits: 11 people, 3 machines, and so on."""
    place = int(number[-2:])
    if place < 11:
        return "human"
    if place < 14:
        return "machine"
    kinds = ("busy", "busy", "no answer", "refused", "failed", "busy")
    if place == 19 and times:
        return "human"  # who was busy at first
    return kinds[place - 14]


@asynccontextmanager
async def serving(
    folder: Path, far: str, carriers: Sequence[Any] = (), **trunk: Any
) -> AsyncIterator[Served]:
    port = free_port()
    table = {
        "server": {"port": 0, "drain_seconds": 0, "max_calls": 10},
        "agent": {"greeting": "Hello."},
        "agents": {"caller": {"greeting": "Hello {{name}}.", "variables": {"name": "you"}}},
        "records": {"url": f"sqlite:///{folder}/calls.db", "spool": folder / "spool"},
        "carriers": carriers,
        "sip": {
            "udp": port,
            "tcp": port,
            "trunks": [{"name": "pbx", "server": far, "machine_detection": "detect", **trunk}],
        },
    }
    config = Config.model_validate(table)
    edge = ScriptedEdge(config)
    edge.records.open_store(config)
    await edge.start()
    runner = web.AppRunner(application(edge), access_log=None, handle_signals=False)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        async with ClientSession(url) as client:
            assert edge.records.kept is not None
            kept = edge.records.kept
            await until(lambda: kept.ready)
            yield Served(edge, client, url)
    finally:
        await edge.close()
        await runner.cleanup()


async def post(server: Served, path: str, status: int = 200, **body: Any) -> Any:
    answer = await server.client.post(path, json=body)
    assert answer.status == status, await answer.text()
    return await answer.json()


async def is_over(server: Served, campaign: str) -> dict[str, Any]:
    found: dict[str, Any] = {}

    async def look() -> bool:
        found.update(await server.get(f"/campaigns/{campaign}"))
        return bool(found["ended"])

    async with asyncio.timeout(HANGS_S):
        while not await look():
            await asyncio.sleep(0.1)
    return found


async def test_twenty_are_called_within_the_limits_and_each_has_an_outcome(tmp_path: Path) -> None:
    far = Callees(kind_of)
    async with far.running() as where, serving(tmp_path, where, max_calls=3) as server:
        numbers = [f"+49301234{place:02}" for place in range(20)]
        recipients = [
            {"number": number, "id": f"r{place}", "variables": {"name": f"n{place}"}}
            for place, number in enumerate(numbers)
        ]
        settings = {"agent": "caller", "at_once": AT_ONCE, "per_second": 20, "retries": SOON}
        begun = await post(
            server, "/campaigns", 201, name="Spring", recipients=recipients, **settings
        )
        assert (begun["added"], begun["known"], begun["state"]) == (20, 0, "running")
        found = await is_over(server, begun["campaign_id"])
        assert found["state"] == "completed"
        assert found["outcomes"] == {
            "answered": 12,
            "busy": 2,
            "failed": 1,
            "machine": 3,
            "no_answer": 1,
            "refused": 1,
        }
        assert found["calls"] == 20 + 4  # the busy and the failed once more
        counted = server.edge.metrics.registry.get_sample_value
        for outcome, calls_of_it in (("answered", 12), ("machine", 3), ("busy", 5), ("failed", 2)):
            labels = {"outcome": outcome}
            assert counted("offhook_campaign_calls_total", labels) == calls_of_it
        times_of = far.times_of()
        twice = {number for number, times in times_of.items() if times == 2}
        assert twice == {numbers[place] for place in (14, 15, 18, 19)}
        assert len(times_of) == 20
        assert far.most_at_once <= 3  # the trunk has fewer lines than the campaign may use
        answer = await server.client.get(f"/campaigns/{begun['campaign_id']}/report.csv")
        assert answer.content_type == "text/csv"
        rows = list(csv.DictReader(io.StringIO(await answer.text())))
        assert [row["id"] for row in rows] == [f"r{place}" for place in range(20)]
        assert [row["outcome"] for row in rows[:14]] == ["answered"] * 11 + ["machine"] * 3
        assert rows[3]["name"] == "n3"
        call = await server.get(f"/calls/{rows[12]['call_id']}/record")
        assert (call["called"], call["record"]["answered_by"]) == (numbers[12], "fax")
        assert (call["agent"], call["variables"]) == ("caller", {"name": "n12"})


async def test_a_carrier_places_the_calls(tmp_path: Path) -> None:
    async with FakeRest() as rest:
        known = rest.settings("twilio")
        own = {name: getattr(known, name) for name in ("account", "secret", "number")}
        here = {"rest_url": rest.url, "public_url": "http://127.0.0.1:1", "insecure": True}
        carrier = {"provider": "twilio", "port": 0, **own, **here}
        async with serving(tmp_path, "127.0.0.1:9", [carrier]) as server:
            numbers = ["+4917012345601", "+4917012345602", "+4917012345603"]
            begun = await post(
                *(server, "/campaigns", 201),
                recipients=[{"number": number} for number in numbers],
                carrier="twilio",
                agent="caller",
                per_second=20,
                retries={name: {"times": 0} for name in ("busy", "no_answer")},
            )
            await until(lambda: len(rest.calls) == 3)
            theirs = {placed.values["To"]: placed.id for placed in rest.calls.values()}
            assert server.edge.carriers is not None
            in_progress = server.edge.carriers.calls.in_progress()
            ours = {call.info.called: call.call_id for call in in_progress}
            for number, status in zip(numbers, ("busy", "no-answer"), strict=False):
                path = f"status/{ours[number]}"
                await webhook(server, "twilio", theirs[number], path=path, CallStatus=status)
            answered = numbers[2]
            text = await webhook(server, "twilio", theirs[answered], path=f"voice/{ours[answered]}")
            url, parameters = stream_url("twilio", text)
            facts = CallFacts(call_id=theirs[answered], parameters=parameters)
            person = FarEndCall(Twilio(facts))
            await person.start(server.url.replace("http", "ws") + url.partition(":1")[2])
            await until(lambda: server.edge.conversations)
            await person.close()
            found = await is_over(server, begun["campaign_id"])
            assert found["outcomes"] == {"answered": 1, "busy": 1, "no_answer": 1}
            assert not person.far_end.faults


async def test_a_campaign_waits_for_lines_and_can_be_paused_appended_to_and_cancelled(
    tmp_path: Path,
) -> None:
    far = Callees(lambda number, times: "human", talks_s=300)
    async with far.running() as where, serving(tmp_path, where) as server:
        body = "number;name\n+4930001;Ada\n+4930002;Bob\n+4930003;Cy\n"
        path = "/campaigns?id=spring&at_once=1&per_second=20&windows=daily+00:00-24:00"
        path += "&time_zone=Europe/Berlin&machine_detection=off"
        answer = await server.client.post(path, data=body, headers=CSV)
        assert answer.status == 201, await answer.text()
        assert answer.headers["Location"] == "/campaigns/spring"
        await until(lambda: far.called)
        path = "/campaigns/spring"
        assert (await post(server, path, action="pause"))["state"] == "paused"
        [call] = [call for call in server.sip.calls.values()]
        assert call.call_id in json.dumps(await server.get("/calls"))
        more = "number\n+4930003\n+4930004\n"
        answer = await server.client.post(f"{path}/recipients", data=more, headers=CSV)
        assert await answer.json() == {"campaign_id": "spring", "added": 1, "known": 1}
        await server.client.delete(f"/calls/{call.call_id}")
        assert (await post(server, path, action="resume"))["state"] == "running"
        await until(lambda: len(far.called) == 2)
        assert far.most_at_once == 1
        assert (await post(server, path, action="cancel"))["state"] == "cancelled"
        [call] = [call for call in server.sip.calls.values() if call.state != "ended"]
        await server.client.delete(f"/calls/{call.call_id}")
        found = await is_over(server, "spring")
        assert (found["state"], found["outcomes"]) == ("cancelled", {"answered": 2})
        assert found["states"]["cancelled"] == 2
        words = await post(server, path, 409, action="resume")
        assert words["error"] == "the campaign is cancelled: it cannot resume"
        assert len((await server.get("/campaigns"))["campaigns"]) == 1


async def test_numbers_on_the_do_not_call_list_are_not_called(tmp_path: Path) -> None:
    far = Callees(lambda number, times: "human")
    async with far.running() as where, serving(tmp_path, where) as server:
        added = await post(server, "/do-not-call", numbers=["0049 30 001"], reason="asked us to")
        assert added == {"added": 1, "known": 0}
        recipients = [{"number": "+4930001"}, {"number": "+4930002"}]
        begun = await post(server, "/campaigns", 201, recipients=recipients, per_second=20)
        found = await is_over(server, begun["campaign_id"])
        assert [number for _, number, _ in far.called] == ["+4930002"]
        assert (found["states"]["blocked"], found["states"]["done"]) == (1, 1)
        listed = await server.get("/do-not-call")
        assert (listed["numbers"][0]["number"], listed["total"]) == ("0049 30 001", 1)
        added = await post(server, "/do-not-call/+4930001", reason="said so in the call")
        assert added == {"added": 0, "known": 1}
        words = await post(server, "/do-not-call/ann", 400)
        assert words["error"].startswith("number: 'ann' is no number")
        words = await post(server, "/do-not-call/4711", 400, number="4712")
        assert words["error"].startswith("number: is unknown")
        answer = await server.client.delete("/do-not-call/+4930001")
        assert answer.status == 200
        assert (await server.client.delete("/do-not-call/+4930001")).status == 404


async def test_an_agent_adds_whoever_it_talks_to(tmp_path: Path) -> None:
    async with serving(tmp_path, "127.0.0.1:9") as server, model() as endpoint:
        endpoint.answers = [[calls("do_not_call", reason="never again")], [says("I am sorry.")]]
        tool = HttpTool(
            name="do_not_call",
            description="Use it when they say that they do not want to be called again.",
            parameters={"reason": "what they have said, in short"},
            url=f"{server.url}/do-not-call/{{{{called}}}}",
        )
        endpoint_of = {"kind": "openai", "base_url": endpoint.url, "model": "m"}
        agent = Agent.model_validate({**endpoint_of, "greeting": "Hello.", "tools": (tool,)})
        page = Page()
        page.info = CallInfo(edge="sip", direction="outbound", called="+4930001")
        async with called(server.edge, {"desk": agent}, page):
            await until(lambda: page.words() == "Hello.")
            page.hear(type="send-text", id="1", data={"content": "Do not call me again."})
            await until(lambda: page.words().endswith("I am sorry."))
        [listed] = (await server.get("/do-not-call"))["numbers"]
        assert (listed["number"], listed["reason"]) == ("+4930001", "never again")


@pytest.mark.parametrize(
    ("body", "fault"),
    [
        ({}, "recipients: a list is wanted"),
        ({"recipients": [{"number": "ann"}]}, "recipients.0.number: 'ann' is no number"),
        ({"agent": "nobody"}, "no agent is called 'nobody'"),
        ({"trunk": "other"}, "trunk: none that can call others is called 'other' (pbx)"),
        ({"carrier": "twilio"}, "carrier: none that can call others"),
        ({"at_once": 0}, "at_once: Input should be greater than or equal to 1"),
        ({"windows": ["9-18"], "time_zone": "UTC"}, "windows: '9-18' is no time of the week"),
        ({"windows": ["daily 09:00-18:00"]}, "time_zone: windows and holidays need one"),
        ({"id": "a/b"}, "id: String should match pattern"),
        ({"machine_detection": "message"}, "message: what is to be left on a machine?"),
        ({"every": 1}, "every: Extra inputs are not permitted"),
        ({"headers": {"X-A": "b" * 300}}, "headers: X-A is over 256 characters"),
    ],
)
async def test_what_is_wrong_with_a_campaign_is_named(
    tmp_path: Path, body: dict[str, Any], fault: str
) -> None:
    body = body and {"recipients": [{"number": "4711"}], **body}
    async with serving(tmp_path, "127.0.0.1:9") as server:
        words = await post(server, "/campaigns", 400, **body)
        assert words["error"].startswith(fault)
        assert await server.get("/campaigns") == {"campaigns": []}


async def test_forged_files_change_nothing(tmp_path: Path) -> None:
    async with serving(tmp_path, "127.0.0.1:9") as server:
        for data, fault in (
            (b"number\n" + b"+4930123\n" * 1_200_000, "the body has over 8 MiB"),
            (b"number,number\n1,2\n", "line 1, column 2: 'number' is the name of column 1 too"),
            (b"number\n=cmd()\n", "line 2, column 1 (number): '=cmd()' is no number"),
            (b"number\n+49\0\n", "line 2, column 1: a NUL is no text"),
            (b"number\n+4930123\xff\n", "line 2, column 1: is no text in UTF-8"),
        ):
            answer = await server.client.post("/campaigns", data=data, headers=CSV)
            assert answer.status == 400
            assert (await answer.json())["error"].startswith(fault)
        answer = await server.client.post("/campaigns", data=b"number\n4711\n")
        assert answer.status == 415
        assert await server.get("/campaigns") == {"campaigns": []}
        assert (await server.client.get("/campaigns/none")).status == 404
        assert (await server.client.get("/campaigns/none/report.csv")).status == 404


async def test_without_a_store_there_are_no_campaigns(tmp_path: Path) -> None:
    edge = ScriptedEdge(Config.model_validate({"server": {"port": 0}}))
    runner = web.AppRunner(application(edge), access_log=None, handle_signals=False)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    async with ClientSession(url) as client:
        answer = await client.get("/campaigns")
        assert answer.status == 409
        assert "[records] url" in (await answer.json())["error"]
    await runner.cleanup()
