"""`offhook dial` and `offhook sip-trace`: real commands against a real server."""

import asyncio
import json
import os
import re
import signal
import sys
from asyncio.subprocess import PIPE, Process
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from offhook.web.app.cli import dial_io
from offhook.web.app.cli.dial_io import DialProgress, in_words
from offhook.web.edge import calls_io, server_io
from offhook.web.http.listening_io import Runner
from tests.support.waiting import HANGS_S
from tests.telephony.sip.capture.readers import packets_of
from tests.telephony.sip.phones import Baresip, endpoint, needs_baresip, port_of
from tests.web.edge.phones import ScriptedPhone, configured, served

ROOT = Path(__file__).parents[4]


async def command(*arguments: str) -> Process:
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "offhook", *arguments), cwd=ROOT, stdout=PIPE, stderr=PIPE
    )


async def end_of(process: Process) -> tuple[int, list[str], str]:
    """Exit code, lines of output, errors."""
    async with asyncio.timeout(HANGS_S):
        output, errors = await process.communicate()
    return process.returncode, (output or b"").decode().splitlines(), errors.decode()


async def run(*arguments: str) -> tuple[int, list[str], str]:
    return await end_of(await command(*arguments))


async def says(process: Process, text: str) -> None:
    """Wait for a line with it."""
    async with asyncio.timeout(HANGS_S):
        while text not in (line := (await process.stdout.readline()).decode()):
            assert line, (await process.stderr.read()).decode()


@asynccontextmanager
async def with_phone(*statuses):
    phone = ScriptedPhone(*statuses)
    async with phone.running() as where, served(configured(where)) as server:
        yield server, phone


@pytest.mark.parametrize("end", [signal.SIGINT, signal.SIGTERM])
async def test_a_call_is_shown_in_words_and_hung_up_with_the_command(end):
    async with endpoint() as (far, host):
        async with served(configured(f"127.0.0.1:{port_of(far, 'UDP')}")) as server:
            process = await command("dial", "100", "--url", server.url)
            await says(process, "answered after")
            await host.talk(seconds=HANGS_S)
            process.send_signal(end)
            code, lines, errors = await end_of(process)
            assert (code, errors) == (0, "")
            assert re.fullmatch(rf"ended after \d+\.\d s: {calls_io.HANG_UP_REASON}", lines[-1])
            assert not server.sip.calls
        assert host.records[0].ended_by == "remote"


async def test_who_is_busy_is_said_so_and_the_exit_code_says_no():
    async with with_phone(180, 486) as (server, _):
        code, lines, _ = await run("dial", "100", "--url", server.url)
    assert code == 1
    assert re.fullmatch(r"dialing \(call [0-9a-f]{12}\)", lines[0])
    assert lines[1] == "ringing"
    assert lines[2].startswith("busy")
    assert len(lines) == 3


async def test_all_that_can_be_said_of_a_call_arrives_and_json_is_a_line_each():
    async with with_phone(180, 404) as (server, phone):
        options = ["--trunk", "pbx", "--caller", "99", "--caller-name", "Shop", "--json"]
        options += ["--agent", "desk", "--ring-seconds", "7", "--header", "X-Order=17=a"]
        options += ["--variable", "name=Ann", "--variable", "order=1"]
        dialled = []
        place = server.edge.dial
        server.edge.dial = lambda dial: (dialled.append(dial), place(dial))[1]
        code, lines, _ = await run("dial", "100", "--url", server.url, *options)
        invite = await phone.asked("INVITE")
    assert code == 1
    events = [json.loads(line) for line in lines]
    assert [event["state"] for event in events] == ["dialing", "ringing", "ended"]
    assert events[-1]["status"] == 404
    assert (invite.from_.uri.user, invite.from_.display_name) == ("99", "Shop")
    assert invite.headers.get("X-Order") == "17=a"
    assert dialled[0].variables == {"name": "Ann", "order": "1"}
    assert (dialled[0].agent, dialled[0].ring_seconds) == ("desk", 7)


async def test_what_the_server_refuses_is_said_in_one_line():
    async with with_phone(404) as (server, _):
        for options, says in (
            (
                ["100", "--trunk", "x"],
                "offhook: no trunk called 'x' has a server for outbound calls",
            ),
            (["a b!"], "offhook: 'a b!' is not a number"),
        ):
            code, lines, errors = await run("dial", *options, "--url", server.url)
            assert (code, lines) == (1, [])
            assert errors.startswith(says)
            assert len(errors.splitlines()) == 1
        config = server.edge.config
        keyed = config.server.model_copy(update={"admin_key": "sesame"})
        server.edge.config = config.model_copy(update={"server": keyed})
        code, _, errors = await run("dial", "100", "--url", server.url, "--admin-key", "x")
        assert "[server] admin_key" in errors
        code, lines, _ = await run("dial", "100", "--url", server.url, "--admin-key", "sesame")
        assert lines[-1].startswith("no such number")


async def test_the_server_of_this_machine_is_found_by_its_configuration(tmp_path):
    async with with_phone(404) as (server, _):
        port = server.url.rpartition(":")[2]
        config = tmp_path / "other.toml"
        config.write_text(f'[server]\nhost = "0.0.0.0"\nport = {port}\nadmin_key = "sesame"\n')
        keys = {"admin_key": "sesame", "api_key": "simsim"}
        keyed = server.edge.config.server.model_copy(update=keys)
        server.edge.config = server.edge.config.model_copy(update={"server": keyed})
        _, lines, errors = await run("dial", "100", "--config", str(config))
        assert lines[-1].startswith("no such number"), errors
        _, lines, errors = await run("sip-trace", "--config", str(config))
        assert any("INVITE sip:" in line for line in lines), errors
        where = ["--url", f"{server.url}/v1", "--admin-key", "sesame"]
        _, lines, errors = await run("sip-trace", *where)
        assert any("INVITE sip:" in line for line in lines), errors
        environment = {**os.environ, "OFFHOOK_SERVER_PORT": port, "PYTHONPATH": str(ROOT)}
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "offhook", "call", "--api-key", "wrong"),
            cwd=tmp_path,
            env=environment,
            stderr=PIPE,
        )
        _, _, errors = await end_of(process)
        assert "a valid API key is required" in errors


async def test_the_operators_socket_is_the_only_way_when_there_is_one(tmp_path, monkeypatch):
    path = tmp_path / "admin.sock"
    async with with_phone(404) as (server, _):
        config = server.edge.config
        own = config.server.model_copy(update={"admin_listen": f"unix:{path}"})
        server.edge.config = config.model_copy(update={"server": own})
        runner = Runner(server_io.application(server.edge, "admin"))
        await server_io.listen_for_operator(own, runner)
        try:
            assert path.stat().st_mode & 0o777 == 0o600
            code, _, errors = await run("dial", "100", "--url", server.url)
            assert (code, f"at unix:{path}" in errors) == (1, True)
            _, lines, _ = await run("dial", "100", "--url", f"unix:{path}")
            assert lines[-1].startswith("no such number")
            monkeypatch.setenv("OFFHOOK_SERVER_ADMIN_LISTEN", f"unix:{path}")
            code, lines, _ = await run("sip-trace")
            assert code == 0
            assert "INVITE" in "\n".join(lines)
        finally:
            await runner.cleanup()


async def test_where_no_server_is_that_is_said():
    code, _, errors = await run("dial", "100", "--url", "http://127.0.0.1:9")
    assert code == 1
    assert "no offhook server answers at http://127.0.0.1:9" in errors
    code, _, errors = await run("dial", "100", "--variable", "x")
    assert code == 2
    assert "'x' is not NAME=VALUE" in errors


@asynccontextmanager
async def pretending(events):
    """Another server, which answers as one of ours until it is asked to hang up."""
    app = web.Application()

    async def place(request):
        return web.json_response({"call_id": "c", "state": "dialing"}, status=201)

    async def hang_up(request):
        await asyncio.sleep(HANGS_S)
        return web.Response()

    app.router.add_post("/calls", place)
    app.router.add_get("/calls/c/events", events)
    app.router.add_delete("/calls/c", hang_up)
    async with TestServer(app) as server:
        yield str(server.make_url("/"))


async def test_a_server_that_goes_away_in_a_call_is_noticed():
    async def events(request):
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        await response.write(b'data: {"state": "ringing", "status": 180, "reason": ""}\n\n')
        return response

    async with pretending(events) as url:
        code, lines, errors = await run("dial", "100", "--url", url)
    assert (code, lines) == (1, ["ringing"])
    assert "ended what it was telling of the call" in errors


async def test_a_second_ctrl_c_does_not_wait():
    async def events(request):
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        await response.write(b'data: {"state": "ringing", "status": 180, "reason": ""}\n\n')
        await asyncio.sleep(HANGS_S)
        return response

    async with pretending(events) as url:
        process = await command("dial", "100", "--url", url)
        await says(process, "ringing")
        process.send_signal(signal.SIGINT)
        await asyncio.sleep(0.3)
        assert process.returncode is None
        process.send_signal(signal.SIGINT)
        code, _, errors = await end_of(process)
    assert (code, errors) == (130, "")


async def test_an_answer_that_is_none_of_ours_is_said_so():
    async with TestServer(web.Application()) as server:
        code, _, errors = await run("sip-trace", "--url", str(server.make_url("/")))
    assert code == 1
    assert "404 Not Found: is that an offhook server?" in errors


async def test_the_trace_of_a_call_is_printed():
    async with with_phone(180, 486) as (server, _):
        call_id = await server.place("100")
        await server.events(call_id)
        await server.events(await server.place("200"))
        _, lines, _ = await run("sip-trace", "--url", server.url)
        assert sum("INVITE sip:" in line for line in lines) == 2
        _, lines, _ = await run("sip-trace", call_id, "--url", server.url)
        assert "SIP/2.0 486 Busy Here" in lines
        assert not [line for line in lines if "sip:200@" in line]
        _, lines, _ = await run("sip-trace", call_id, "--url", server.url, "--json")
        messages = json.loads("\n".join(lines))["messages"]
        assert messages[0]["first_line"].startswith("INVITE sip:100@")


async def test_the_trace_of_a_call_is_written_as_pcap(tmp_path):
    async with with_phone(180, 486) as (server, _):
        call_id = await server.place("100")
        await server.events(call_id)
        await server.events(await server.place("200"))
        file = tmp_path / "call.pcap"
        where = ["--url", server.url, "--pcap", str(file)]
        code, lines, errors = await run("sip-trace", call_id, *where)
        assert (code, lines, errors) == (0, [], "")
        packets = packets_of(file.read_bytes())
        firsts = [packet.payload.split(b"\r\n")[0] for packet in packets]
        assert firsts[0].startswith(b"INVITE sip:100@")
        assert firsts[-2:] == [b"SIP/2.0 486 Busy Here", firsts[0].replace(b"INVITE", b"ACK")]
        where[-1] = str(tmp_path / "nowhere" / "call.pcap")
        code, _, errors = await run("sip-trace", *where)
        assert code == 1
        assert "nowhere" in errors


async def test_a_server_that_writes_no_pcap_is_said_so(tmp_path):
    async def trace(request: web.Request) -> web.Response:
        return web.Response(text="No messages.\n")

    app = web.Application()
    app.router.add_get("/sip/trace", trace)
    async with TestServer(app) as server:
        url = str(server.make_url("/"))
        code, _, errors = await run("sip-trace", "--url", url, "--pcap", str(tmp_path / "x"))
    assert code == 1
    assert "writes no pcap" in errors


@needs_baresip
async def test_a_real_phone_is_called_and_hangs_up(tmp_path):
    phone = Baresip(tmp_path / "phone", account=";answermode=auto")
    async with phone.running(), served(configured(f"127.0.0.1:{phone.port}")) as server:
        process = await command("dial", phone.uri, "--url", server.url)
        await says(process, "answered after")
        await phone.hang_up()
        code, lines, _ = await end_of(process)
    assert code == 0
    assert re.fullmatch(r"ended after \d+\.\d s: .*hung up.*", lines[-1])


def test_silence_is_no_end_of_the_server():
    assert dial_io.SILENCE_S >= 3 * calls_io.KEEP_ALIVE_S


@pytest.mark.parametrize(
    ("state", "answered_at", "line"),
    [
        ("dialing", None, "dialing (call c)"),
        ("early_media", None, "there is sound before the answer"),
        ("answered", 4.25, "answered after 4.2 s"),
        ("ended", 1.0, "ended after 3.2 s: gone"),
        ("ended", None, "gone"),
    ],
)
def test_each_state_reads_as_a_line(state, answered_at, line):
    assert in_words(DialProgress("c", state, 0, "gone", 4.25), answered_at) == line
