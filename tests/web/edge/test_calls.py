"""Calls by HTTP: placed, listed, followed, hung up; what is refused; what was said on the wire."""

import asyncio
import json
import socket
from contextlib import asynccontextmanager

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from offhook.signaling.peer_io import PeerLeg
from offhook.telephony.sip.capture.pcap import PCAP
from offhook.telephony.sip.outgoing_calls_io import Dial
from offhook.telephony.sip.trunks.trunks import Trunk
from offhook.web.config.config import Config
from offhook.web.edge import calls_io, refusals
from offhook.web.edge.calls import records_io
from tests.support.waiting import HANGS_S
from tests.telephony.sip.capture.readers import packets_of
from tests.telephony.sip.phones import endpoint, port_of
from tests.web.edge.phones import TABLE, ScriptedPhone, configured, served

pytestmark = pytest.mark.asyncio

AUTHORIZED = {"Authorization": "Bearer sesame"}


@asynccontextmanager
async def with_phone(*statuses, **sip):
    """A server, and a phone at its trunk that answers INVITEs so."""
    phone = ScriptedPhone(*statuses)
    async with phone.running() as where, served(configured(where, **sip)) as server:
        yield server, phone


@asynccontextmanager
async def with_far_end(**sip):
    """A server, and an endpoint at its trunk that takes calls and says a tone."""
    async with endpoint() as (far, host):
        where = f"127.0.0.1:{port_of(far, 'UDP')}"
        async with served(configured(where, **sip)) as server:
            yield server, far, host


def states(events):
    return [event["state"] for event in events]


# --- placing ---


async def test_a_call_is_placed_followed_listed_and_hung_up():
    async with with_far_end() as (server, _, host):
        answer = await server.client.post("/calls", json={"to": "100", "agent": "desk"})
        assert answer.status == 201
        placed = await answer.json()
        assert placed["state"] == "dialing"
        assert answer.headers["Location"] == f"/calls/{placed['call_id']}"
        following = asyncio.create_task(server.events(placed["call_id"]))
        await host.talk()
        call = await server.state(placed["call_id"], "answered")
        assert call.pop("seconds") < HANGS_S
        assert call == {
            "call_id": placed["call_id"],
            "state": "answered",
            "edge": "sip",
            "direction": "outbound",
            "caller": "4711",
            "called": "100",
            "tenant": "",
            "diverted_from": "",
            "trunk": "pbx",
            "agent": "desk",
        }
        listed = (await server.get("/calls"))["calls"]
        assert [(c["call_id"], c["state"]) for c in listed] == [(placed["call_id"], "answered")]
        answer = await server.client.delete(f"/calls/{placed['call_id']}")
        assert answer.status == 200
        events = await following
        assert states(events) == ["dialing", "answered", "ended"]
        assert events[-1]["reason"] == calls_io.HANG_UP_REASON
        ended = await server.state(placed["call_id"], "ended")
        assert (ended["called"], ended["agent"]) == ("100", "desk")
        async with asyncio.timeout(HANGS_S):
            while not host.records:
                await asyncio.sleep(0.02)
        assert host.records[0].ended_by == "remote"


async def test_the_invite_says_what_was_asked_for():
    async with with_phone(404) as (server, phone):
        asked = {"caller": "+49 30 1", "caller_name": 'A "B"', "headers": {"X-Order": "17"}}
        await server.place("030/12-34", **asked)
        invite = await phone.asked("INVITE")
        assert invite.uri.user == "0301234"
        assert invite.from_.display_name == 'A "B"'
        assert invite.from_.uri.user == "+49 30 1"
        assert invite.headers.get("X-Order") == "17"


@pytest.mark.parametrize(
    ("statuses", "seen", "status", "says"),
    [
        ((180, 486), ["dialing", "ringing", "ended"], 486, "busy"),
        ((404,), ["dialing", "ended"], 404, "no such number"),
        ((180, 603), ["dialing", "ringing", "ended"], 603, "603"),
    ],
)
async def test_who_does_not_answer_says_why(statuses, seen, status, says):
    async with with_phone(*statuses) as (server, _):
        events = await server.events(await server.place("100"))
        assert states(events) == seen
        assert events[-1]["status"] == status
        assert says in events[-1]["reason"]


async def test_nobody_rings_for_longer_than_asked():
    async with with_phone(180) as (server, phone):
        events = await server.events(await server.place("100", ring_seconds=0.3))
        assert states(events) == ["dialing", "ringing", "ended"]
        assert "no answer after 0.3 s" in events[-1]["reason"]
        await phone.asked("CANCEL")


async def test_a_call_that_rings_is_given_up():
    async with with_phone(180) as (server, phone):
        call_id = await server.place("100")
        await server.state(call_id, "ringing")
        await server.client.delete(f"/calls/{call_id}")
        await phone.asked("CANCEL")
        ended = await server.state(call_id, "ended")
        assert (ended["status"], ended["reason"]) == (487, calls_io.HANG_UP_REASON)


async def test_a_call_that_is_given_up_before_it_is_known_where_to_is_not_made():
    async with with_phone(180) as (server, phone):
        resolver, known = server.sip.lookup.resolver, asyncio.Event()
        resolve = resolver.resolve

        async def slowly(uri, transport):
            await known.wait()
            return await resolve(uri, transport)

        resolver.resolve = slowly
        call_id = await server.place("100")
        await server.client.delete(f"/calls/{call_id}")
        known.set()
        await server.state(call_id, "ended")
        assert states(await server.events(call_id)) == ["dialing", "ended"]
        assert not [r for r in phone.requests if r.method == "INVITE"]


# --- what is refused ---


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({}, "to: Field required"),
        ({"to": ""}, "to: "),
        ({"to": 100}, "to: "),
        ({"to": "1\r\nX: y"}, "to: "),
        ({"to": "1" * 300}, "to: "),
        ({"to": "a b!"}, "not a number"),
        ({"to": "sip:"}, "not a host"),
        ({"to": "1", "trunk": "none"}, "no trunk called 'none'"),
        ({"to": "1", "agent": "none"}, "no agent is called 'none' (there: desk)"),
        ({"to": "1", "headers": {"From": "x"}}, "'From': only custom headers"),
        (
            {"to": "1", "headers": {"X-A": "1\r\n2"}},
            "X-A: the value contains unprintable characters",
        ),
        ({"to": "1", "headers": {"X-A": 5}}, "headers.X-A: "),
        ({"to": "1", "headers": {f"X-{n}": "" for n in range(50)}}, "headers: "),
        ({"to": "1", "headers": {"X-A": "y" * 300}}, "headers: "),
        ({"to": "1", "ring_seconds": 0}, "ring_seconds: "),
        ({"to": "1", "ring_seconds": 1e9}, "ring_seconds: "),
        ({"to": "1", "variables": []}, "variables: "),
        ({"to": "1", "nubmer": "2"}, "nubmer: "),
    ],
)
async def test_what_is_wrong_with_a_call_is_named(server, fields, says):
    assert says in await server.refused(400, **fields)
    assert (await server.get("/calls")) == {"calls": []}


@pytest.fixture
async def server():
    async with with_phone(404) as (running, _):
        yield running


async def test_what_is_not_json_is_400_and_what_a_form_sends_415(server):
    kind = {"Content-Type": "application/json"}
    for body in (b"{", b"[]", b"\xff", b"null", b"[" * 10_000, b'{"to": "\\ud800"}'):
        assert (await server.client.post("/calls", data=body, headers=kind)).status == 400
    assert (await server.client.post("/calls", data=b"to=1")).status == 415


async def test_when_all_lines_are_taken_callers_are_told_when_to_try_again():
    async with with_phone(180) as (server, _):
        calls = [await server.place("100") for _ in range(3)]
        answer = await server.client.post("/calls", json={"to": "100"})
        assert answer.status == 503
        assert answer.headers["Retry-After"] == str(refusals.RETRY_AFTER_S)
        assert 'offhook_calls_refused_total{reason="full"} 1.0' in await server.metrics()
        await server.client.delete(f"/calls/{calls[0]}")
        await server.state(calls[0], "ended")
        await server.place("100")


async def test_without_phones_there_is_nothing_to_call_with():
    async with served(Config.model_validate(TABLE)) as server:
        assert "no [sip]" in await server.refused(409, to="100")
        assert (await server.client.get("/sip/trace")).status == 409
        assert await server.get("/calls") == {"calls": []}
        assert "offhook_sip" not in await server.metrics()


async def test_calls_that_are_not_there_are_404(server):
    for path in ("/calls/nobody", "/calls/nobody/events", "/calls/%00"):
        assert (await server.client.get(path)).status == 404
    assert (await server.client.delete("/calls/nobody")).status == 404


async def test_who_has_no_key_learns_of_no_call(server):
    call_id = await server.place("100")
    config = server.edge.config
    keyed = config.server.model_copy(update={"admin_key": "sesame"})
    server.edge.config = config.model_copy(update={"server": keyed})
    paths = ("/calls", f"/calls/{call_id}", f"/calls/{call_id}/events", "/sip/trace")
    for path in paths:
        assert (await server.client.get(path)).status == 401
        assert (await server.client.get(path, headers=AUTHORIZED)).status == 200
    for headers, status in (({}, 401), (AUTHORIZED, 200)):
        answer = await server.client.delete(f"/calls/{call_id}", headers=headers)
        assert answer.status == status
    assert (await server.client.post("/calls", json={"to": "1"})).status == 401
    answer = await server.client.post("/calls", json={"to": "1"}, headers=AUTHORIZED)
    assert answer.status == 201
    page = {"Origin": "https://evil.example", **AUTHORIZED}
    assert (await server.client.get("/calls", headers=page)).status == 403


fields = st.dictionaries(
    st.sampled_from(["to", "trunk", "caller", "caller_name", "agent", "variables", "headers"]),
    st.one_of(
        st.text(max_size=12),
        st.sampled_from(["100", "pbx", "desk", "sip:a@127.0.0.1", "tel:1", "sips:x", "sip:[::1]"]),
        st.dictionaries(st.sampled_from(["X-A", "X-B", "a"]), st.text(max_size=6), max_size=2),
        st.integers(),
        st.none(),
    ),
)


@given(fields)
@settings(
    max_examples=60,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
async def test_no_json_is_a_500(server, fields):
    answer = await server.client.post("/calls", json=fields)
    assert answer.status in (201, 400, 503)


# --- following ---


async def test_a_call_that_has_ended_can_be_asked_about_until_many_others_have(monkeypatch):
    monkeypatch.setattr(records_io, "ENDED_CALLS", 2)
    async with with_phone(180, 486) as (server, _):
        calls = []
        for _ in range(3):
            calls.append(await server.place("100"))
            assert states(await server.events(calls[-1]))[-1] == "ended"
            await server.state(calls[-1], "ended")
            await asyncio.sleep(0.05)
        for call_id in calls[1:]:
            call = await server.get(f"/calls/{call_id}")
            assert (call["status"], call["record"]["status"]) == (486, 486)
            assert states(await server.events(call_id)) == ["dialing", "ringing", "ended"]
            assert (await server.client.delete(f"/calls/{call_id}")).status == 200
        assert (await server.client.get(f"/calls/{calls[0]}")).status == 404


async def test_a_reader_hears_from_us_in_silence_and_may_leave(monkeypatch):
    monkeypatch.setattr(calls_io, "KEEP_ALIVE_S", 0.05)
    async with with_phone(180) as (server, _):
        call_id = await server.place("100")
        call = server.sip.calls[call_id]
        answer = await server.client.get(f"/calls/{call_id}/events")
        read = b""
        async with asyncio.timeout(HANGS_S):
            while read.count(b"\n\n:\n\n") < 2:
                read += await answer.content.readany()
        assert b"ringing" in read
        assert len(call.history._readers) == 1
        answer.close()
        async with asyncio.timeout(HANGS_S):
            while call.history._readers:
                await asyncio.sleep(0.02)
        assert call.state == "ringing"


async def test_who_comes_late_is_told_everything():
    async with with_phone(180) as (server, _):
        call_id = await server.place("100")
        await server.state(call_id, "ringing")
        following = asyncio.create_task(server.events(call_id))
        await asyncio.sleep(0.1)
        await server.client.delete(f"/calls/{call_id}")
        assert states(await following) == ["dialing", "ringing", "ended"]


async def test_readers_are_told_when_the_server_ends():
    async with with_phone(180) as (server, phone):
        call_id = await server.place("100")
        await server.state(call_id, "ringing")
        following = asyncio.create_task(server.events(call_id))
        await asyncio.sleep(0.1)
        await server.edge.close()
        events = await following
        assert events[-1]["reason"] == "the server is shutting down"
        await phone.asked("CANCEL")


# --- other calls ---


async def test_a_call_that_came_in_is_there_too():
    config = configured("127.0.0.1:9")
    trunk = Trunk("us", server=f"127.0.0.1:{config.sip.udp}")
    async with served(config) as server, endpoint(trunks=(trunk,)) as (far, _):
        call = far.dial(Dial("200", caller="0301"))
        async with asyncio.timeout(HANGS_S):
            while not (calls := (await server.get("/calls"))["calls"]):
                await asyncio.sleep(0.02)
        assert calls[0]["direction"] == "inbound"
        assert (calls[0]["caller"], calls[0]["called"]) == ("0301", "200")
        await server.state(calls[0]["call_id"], "answered")
        await server.client.delete(f"/calls/{calls[0]['call_id']}")
        last = [progress async for progress in call.events()][-1]
        assert calls_io.HANG_UP_REASON in last.reason


async def test_a_browsers_call_is_listed_followed_and_hung_up(server):
    leg = PeerLeg("caller")
    offer = {"sdp": await leg.offer(), "type": "offer"}
    call_id = (await (await server.client.post("/api/offer", json=offer)).json())["pc_id"]
    (call,) = (await server.get("/calls"))["calls"]
    assert (call["call_id"], call["edge"], call["direction"]) == (call_id, "webrtc", "inbound")
    following = asyncio.create_task(server.events(call_id))
    await asyncio.sleep(0.1)
    assert (await server.client.delete(f"/calls/{call_id}")).status == 200
    events = await following
    assert states(events) == ["dialing", "ended"]
    assert events[-1]["reason"] == calls_io.HANG_UP_REASON
    await leg.hang_up("test over")
    async with asyncio.timeout(HANGS_S):
        while (await server.get("/calls"))["calls"]:
            await asyncio.sleep(0.02)


async def test_a_server_that_ends_tells_the_far_end_why():
    async with with_far_end() as (server, _, host):
        await server.place("100")
        await host.talk()
        await server.state(next(iter(server.sip.calls)), "answered")
        await server.edge.close()
        async with asyncio.timeout(HANGS_S):
            while not host.records:
                await asyncio.sleep(0.02)
        assert "the server is shutting down" in host.records[0].end_reason


async def test_a_record_that_cannot_be_written_harms_nobody(tmp_path):
    async with with_phone(486, calls=tmp_path / "nowhere" / "calls.jsonl") as (server, _):
        call_id = await server.place("100")
        await server.state(call_id, "ended")
        async with asyncio.timeout(HANGS_S):
            while server.sip.calls:
                await asyncio.sleep(0.02)
        assert (await server.get(f"/calls/{call_id}"))["state"] == "ended"


async def test_each_call_leaves_a_line(tmp_path):
    path = tmp_path / "calls.jsonl"
    async with with_phone(486, calls=path) as (server, _):
        for to in ("100", "200"):
            await server.events(await server.place(to))
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [(line["called"], line["status"]) for line in lines] == [("100", 486), ("200", 486)]


# --- the wire ---


async def test_what_was_said_of_a_call_is_shown():
    async with with_phone(180, 486) as (server, phone):
        one, two = await server.place("100"), await server.place("200")
        for call_id in (one, two):
            await server.events(call_id)
        everything = await (await server.client.get("/sip/trace")).text()
        assert everything.count("INVITE sip:100@") == everything.count("INVITE sip:200@") == 1
        sip_call_id = (await phone.asked("INVITE")).call_id
        for asked in (one, sip_call_id):
            text = await (await server.client.get(f"/sip/trace?call={asked}")).text()
            assert "INVITE sip:100@" in text
            assert "486 Busy Here" in text
            assert "sip:200@" not in text
        found = await server.get(f"/sip/trace?call={one}", Accept="application/json")
        assert {m["call_id"] for m in found["messages"]} == {sip_call_id}
        answer = await server.client.get(f"/sip/trace?call={one}", headers={"Accept": PCAP})
        assert answer.content_type == PCAP
        packets = packets_of(await answer.read())
        assert len(packets) == len(found["messages"])
        assert {sip_call_id.encode() in packet.payload for packet in packets} == {True}
        assert "No messages" in await (await server.client.get("/sip/trace?call=x")).text()


# --- what Prometheus sees ---


async def test_what_phones_do_is_counted():
    async with with_far_end() as (server, _, host):
        call_id = await server.place("100")
        await host.talk()
        await server.state(call_id, "answered")
        text = await server.metrics()
        assert "offhook_sip_calls 1.0" in text
        assert "offhook_sip_setup_seconds_count 1.0" in text
        leg = server.sip.calls[call_id].leg
        leg.refused_packets, leg.srtp_failures = 3, 2
        host.talks[0].leg.close("done")
        await server.state(call_id, "ended")
        async with asyncio.timeout(HANGS_S):
            while "offhook_sip_calls 0.0" not in (text := await server.metrics()):
                await asyncio.sleep(0.02)
        assert 'offhook_sip_requests_total{method="BYE"} 1.0' in text
        assert 'offhook_sip_responses_total{class="2xx"}' in text
        assert 'offhook_sip_packets_refused_total{reason="source"} 3.0' in text
        assert 'offhook_sip_packets_refused_total{reason="srtp"} 2.0' in text
        assert "offhook_sip_transactions" in text


@pytest.mark.parametrize("unknown", ["drop", "refuse"])
async def test_strangers_and_noise_are_counted(unknown):
    trunk = {"name": "elsewhere", "addresses": ["192.0.2.1"]}
    async with served(configured("", unknown=unknown, trunks=[trunk])) as server:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as stranger:
            stranger.bind(("127.0.0.1", 0))
            port = stranger.getsockname()[1]
            options = (
                "OPTIONS sip:x@127.0.0.1 SIP/2.0\r\n"
                f"Via: SIP/2.0/UDP 127.0.0.1:{port};branch=z9hG4bKa\r\nMax-Forwards: 70\r\n"
                "From: <sip:a@b>;tag=1\r\nTo: <sip:x@y>\r\nCall-ID: q\r\nCSeq: 1 OPTIONS\r\n\r\n"
            )
            for text in (options, "what is this noise?\r\n\r\n"):
                stranger.sendto(text.encode(), ("127.0.0.1", server.port))
        outcome = {"drop": "dropped", "refuse": "refused"}[unknown]
        async with asyncio.timeout(HANGS_S):
            while "offhook_sip_malformed_total 1.0" not in (text := await server.metrics()):
                await asyncio.sleep(0.02)
        assert f'offhook_sip_strangers_total{{outcome="{outcome}"}} 1.0' in text
        assert 'offhook_sip_requests_total{method="OPTIONS"} 1.0' in text


async def test_how_a_registration_is_doing_is_shown():
    phone = ScriptedPhone(register=403)
    async with phone.running() as where:
        trunk = {"name": "pbx", "server": where, "username": "u", "register": True}
        async with served(configured(where, trunks=[trunk])) as server:
            await phone.asked("REGISTER")
            wanted = 'offhook_sip_registration{state="failed",trunk="pbx"} 1.0'
            async with asyncio.timeout(HANGS_S):
                while wanted not in await server.metrics():
                    await asyncio.sleep(0.02)
