"""Phones of `offhook serve`: one process has them, every process knows them; and the end."""

import asyncio
import json
import os
import signal
import socket
from collections.abc import Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import aiohttp
import pytest

from offhook.signaling.peer_io import PeerLeg
from offhook.telephony.sip.outgoing_calls_io import Dial
from offhook.telephony.sip.trunks.trunks import Trunk
from tests.support.ports import free_port
from tests.support.waiting import HANGS_S
from tests.telephony.sip.phones import Baresip, endpoint, needs_baresip
from tests.web.edge.phones import ScriptedPhone
from tests.web.edge.test_processes import TwoProcesses

TRIES, MOST_LEGS = 12, 12
"""Requests of which each may reach either process."""
BOT = "async def bot(arguments):\n    await arguments.webrtc_connection.until_closed()\n"
FAR_PORT = free_port()


def serving(folder: Path, **settings: str) -> TwoProcesses:
    """Phones on a port of their own; what is at FAR_PORT is a trunk, and all of loopback."""
    (folder / "bot.py").write_text(BOT)
    trunks = [{"name": "far", "server": f"127.0.0.1:{FAR_PORT}", "addresses": ["127.0.0.1"]}]
    port = str(free_port())
    usual = {"SIP_UDP": port, "SIP_TCP": port, "SIP_TRUNKS": json.dumps(trunks)}
    return TwoProcesses(folder, "--bot", str(folder / "bot.py"), **{**usual, **settings})


def phone_port(server: TwoProcesses) -> int:
    lines = [line["message"] for line in server.lines()]
    (said,) = [line for line in lines if "listening for SIP at udp" in line]
    return int(said.partition(",")[0].rpartition(":")[2])


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TwoProcesses]:
    running = serving(tmp_path_factory.mktemp("phones"), SERVER_MAX_CALLS="16")
    yield running
    ended(running)


def ended(running: TwoProcesses) -> None:
    if running.process.poll() is None:
        running.process.kill()
    running.process.wait()


@asynccontextmanager
async def far_phone(*statuses: int):
    phone = ScriptedPhone(*statuses)
    async with phone.running(FAR_PORT):
        yield phone


async def events_of(server: TwoProcesses, call_id: str, begun: asyncio.Event) -> list[str]:
    """All of them, to the call's end. `begun`: set when the answer has."""
    async with (
        asyncio.timeout(HANGS_S),
        aiohttp.ClientSession(server.url) as http,
        http.get(f"/calls/{call_id}/events") as answer,
    ):
        assert answer.content_type == "text/event-stream"
        begun.set()
        lines = (await answer.text()).split("\n\n")
    return [json.loads(line[5:])["state"] for line in lines if line.startswith("data:")]


async def followed(server: TwoProcesses, call_id: str) -> asyncio.Task[list[str]]:
    """`events_of`, of which the first are there."""
    begun = asyncio.Event()
    following = asyncio.create_task(events_of(server, call_id, begun))
    await asyncio.wait_for(begun.wait(), HANGS_S)
    return following


async def test_phones_are_called_through_any_process(server):
    await server.ready()
    async with far_phone(180) as phone:
        for _ in range(TRIES):
            status, placed = await server.ask("POST", "/calls", to="100")
            assert status == 201, placed
            call_id = placed["call_id"]
            async with asyncio.timeout(HANGS_S):
                while (await server.ask("GET", f"/calls/{call_id}"))[1]["state"] != "ringing":
                    await asyncio.sleep(0.02)
            calls = (await server.ask("GET", "/calls"))[1]["calls"]
            assert [(c["call_id"], c["trunk"]) for c in calls] == [(call_id, "far")]
            following = await followed(server, call_id)
            assert (await server.ask("DELETE", f"/calls/{call_id}"))[0] == 200
            assert await following == ["dialing", "ringing", "ended"]
            assert (await server.ask("GET", f"/calls/{call_id}"))[1]["state"] == "ended"
        assert len({r.call_id for r in phone.requests if r.method == "INVITE"}) == TRIES


async def test_each_process_has_the_trace_and_says_what_is_wrong(server):
    for _ in range(TRIES):
        async with aiohttp.ClientSession(server.url) as http:
            async with http.get("/sip/trace") as answer:
                assert "INVITE sip:100@" in await answer.text()
            async with http.get("/sip/trace", headers={"Accept": "application/json"}) as answer:
                assert (await answer.json())["messages"]
        status, answer = await server.ask("POST", "/calls", to="a b!")
        assert (status, answer["error"]) == (400, "'a b!' is not a number")
        assert (await server.ask("GET", "/calls/nobody"))[0] == 404
        assert (await server.ask("GET", "/calls/2-nobody/events"))[0] == 404


async def test_browsers_calls_of_all_processes_are_there(server):
    legs, names = [], []
    while {name[:2] for name in names} != {"1-", "2-"}:  # the system chooses who takes a call
        assert len(legs) < MOST_LEGS
        legs.append(PeerLeg(f"caller {len(legs)}"))
        _, answer = await server.ask("POST", "/api/offer", sdp=await legs[-1].offer(), type="offer")
        await legs[-1].accept(answer["sdp"])  # one that does not come is given up
        names.append(answer["pc_id"])
    for leg in legs:
        assert await asyncio.wait_for(leg.until_connected(), HANGS_S)
    calls = (await server.ask("GET", "/calls"))[1]["calls"]
    assert {call["call_id"] for call in calls} == set(names)
    for name in names:
        following = await followed(server, name)
        assert (await server.ask("DELETE", f"/calls/{name}"))[0] == 200
        assert (await following)[-1] == "ended"
    for leg in legs:
        await leg.hang_up("test over")


async def test_only_the_first_process_counts_phones(server):
    samples = await server.samples("offhook_sip_calls")
    assert {sample.labels["process"] for sample in samples} == {"1"}


async def test_both_processes_end_with_a_call_up(server):
    async with far_phone(180) as phone:
        _, placed = await server.ask("POST", "/calls", to="100")
        await phone.asked("INVITE")
        following = await followed(server, placed["call_id"])
        server.process.terminate()
        with suppress(aiohttp.ClientError):  # two signals at once would be one
            await server.ready(503)
            server.process.terminate()
        await phone.asked("CANCEL")
        assert (await following)[-1] == "ended"
        ended = await asyncio.to_thread(server.process.wait, HANGS_S)
        assert ended in (0, -signal.SIGTERM)  # the second may find Python on its way out
    with pytest.raises(ProcessLookupError):
        os.kill(server.line("started")["pid"], 0)


@pytest.mark.slow
async def test_a_process_that_hangs_delays_nobodys_goodbye(tmp_path):
    server = serving(tmp_path)
    try:
        await server.ready()
        async with far_phone(180) as phone:
            await server.ask("POST", "/calls", to="100")
            await phone.asked("INVITE")
            os.kill(server.line("started")["pid"], signal.SIGSTOP)
            server.process.terminate()
            await asyncio.sleep(0.5)
            server.process.terminate()
            await phone.asked("CANCEL")
    finally:
        os.kill(server.line("started")["pid"], signal.SIGKILL)
        ended(server)


# --- the end of one process ---


@asynccontextmanager
async def one(folder: Path, drain_seconds: int):
    running = serving(folder, SERVER_PROCESSES="1", SERVER_DRAIN_SECONDS=str(drain_seconds))
    try:
        await running.ready()
        yield running
    finally:
        ended(running)


async def test_sigterm_says_goodbye_to_a_phone_and_says_why(tmp_path):
    async with one(tmp_path, 0) as server:
        trunk = Trunk("us", server=f"127.0.0.1:{phone_port(server)}")
        async with endpoint(trunks=(trunk,)) as (far, host):
            call = far.dial(Dial("100"))
            await host.talk(seconds=HANGS_S)
            server.process.send_signal(signal.SIGTERM)
            async with asyncio.timeout(HANGS_S):
                last = [progress async for progress in call.events()][-1]
            assert "the server is shutting down" in last.reason
            assert await asyncio.to_thread(server.process.wait, HANGS_S) == 0
            assert "Traceback" not in server.text()


@pytest.mark.slow
async def test_while_it_drains_a_call_goes_on_and_the_second_signal_ends_it(tmp_path):
    async with one(tmp_path, 60) as server:
        port = phone_port(server)
        trunk = Trunk("us", server=f"127.0.0.1:{port}")
        async with endpoint(trunks=(trunk,)) as (far, host):
            call = far.dial(Dial("100"))
            await host.talk(seconds=HANGS_S)
            server.process.send_signal(signal.SIGTERM)
            await server.ready(503)
            late = far.dial(Dial("200"))
            async with asyncio.timeout(HANGS_S):
                refused = [progress async for progress in late.events()][-1]
            assert refused.status == 503
            assert call.state == "answered"
            server.process.send_signal(signal.SIGTERM)
            async with asyncio.timeout(HANGS_S):
                last = [progress async for progress in call.events()][-1]
            assert "the server is shutting down" in last.reason
            assert await asyncio.to_thread(server.process.wait, HANGS_S) == 0
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as free:
        free.bind(("127.0.0.1", port))


@needs_baresip
async def test_a_real_phone_hears_that_the_call_is_over(tmp_path):
    (tmp_path / "server").mkdir()
    async with one(tmp_path / "server", 0) as server:
        phone = Baresip(tmp_path / "phone")
        async with phone.running():
            await phone.dial(f"sip:agent@127.0.0.1:{phone_port(server)}")
            server.process.send_signal(signal.SIGTERM)
            await phone.event("CALL_CLOSED", HANGS_S)
            assert await asyncio.to_thread(server.process.wait, HANGS_S) == 0
