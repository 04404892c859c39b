"""Carriers at the front door: each provider's webhook and stream, by far ends written from the
providers' documents; what is refused; calls that we place."""

import asyncio
import base64
import hashlib
import hmac
import json
import os
import re
from contextlib import asynccontextmanager
from urllib.parse import urlencode
from xml.etree import ElementTree

import aiohttp
import numpy as np
import pytest

from benchmarks.carriers.far_ends.far_end import CallFacts
from benchmarks.carriers.far_ends.far_end_asterisk import AudioSocket, ChanWebSocket
from benchmarks.carriers.far_ends.far_end_binary import Genesys, Vonage
from benchmarks.carriers.far_ends.far_end_io import FarEndCall
from benchmarks.carriers.far_ends.far_end_json import Exotel, Plivo, Telnyx, Twilio
from benchmarks.carriers.far_ends.webhook import BY_WEBHOOK
from offhook.media.pcm import RATE_IN, RATE_OUT
from offhook.telephony.carriers.auth.answers import Answers
from offhook.web.config.config import Config, ConfigError
from offhook.web.edge.edge_io import Edge
from tests.attack.carriers import (
    HOSTS,
    PROXIES,
    REPLAYS,
    operators_host_names,
    status_of,
    streams_behind_proxies,
    webhook_replays,
)
from tests.support.listening import Listening
from tests.support.waiting import HANGS_S
from tests.telephony.carriers.rest.fake_rest import FakeRest
from tests.telephony.sip.phones import is_tone
from tests.web.edge.phones import TABLE, served

pytestmark = pytest.mark.asyncio

TOKEN = "0123456789abcdef0123456789abcdef"
FORM = "application/x-www-form-urlencoded"
OUR_TONE, THEIR_TONE = 880, 440
FAR_ENDS = {
    "twilio": Twilio,
    "telnyx": Telnyx,
    "plivo": Plivo,
    "vonage": Vonage,
    "exotel": Exotel,
    "genesys": Genesys,
    "audiosocket": AudioSocket,
    "chan_websocket": ChanWebSocket,
}


def tone(hz, rate, seconds):
    return (8000 * np.sin(2 * np.pi * hz / rate * np.arange(int(rate * seconds)))).astype(np.int16)


def carriers(*tables, **more):
    """A configuration with these; unsigned, unless they say otherwise."""
    listed = [{"insecure": True, "port": 0, **table} for table in tables]
    return Config.model_validate({**TABLE, "carriers": listed, **more})


@asynccontextmanager
async def talking(config, monkeypatch, bot=None):
    """A server whose bot says a tone for a second, and what the bot's legs heard."""
    talks = []

    async def talk(arguments):
        leg = arguments.webrtc_connection
        leg.keys, leg.sounds = "", []

        def press(key):
            leg.keys += key

        leg.listener = Listening(on_dtmf=press)
        leg.listen(lambda heard, said, now: leg.sounds.append(heard.copy()))
        talks.append(leg)
        leg.playout.write(tone(OUR_TONE, RATE_OUT, 1.5))
        await leg.until_closed()

    monkeypatch.setattr("tests.web.edge.phones.bot", bot or talk)
    async with served(config) as server:
        yield server, talks


async def webhook(server, provider, call_id="CA17", status=200, path="voice", **fields):
    """What a provider that knows of a call is answered."""
    names = {
        "vonage": {"uuid": call_id, "from": "491701", "to": "493099"},
        "plivo": {"CallUUID": call_id, "From": "491701", "To": "493099", "Event": "StartApp"},
        "exotel": {"CallSid": call_id, "CallFrom": "491701", "CallTo": "493099"},
    }.get(provider, {"CallSid": call_id, "From": "+491701", "To": "+493099"})
    url, asked = f"/carriers/{provider}/{path}", {**names, **fields}
    if provider == "exotel":
        answer = await server.client.get(f"{url}?{urlencode(asked)}")
    elif provider == "vonage":
        answer = await server.client.post(url, json=asked)
    else:
        answer = await server.client.post(url, data=asked)
    assert answer.status == status, await answer.text()
    return await answer.text()


def stream_url(provider, text):
    """The URL in it, and the custom parameters."""
    if provider == "vonage":
        endpoint = json.loads(text)[0]["endpoint"][0]
        return endpoint["uri"], endpoint["headers"]
    if provider == "exotel":
        return json.loads(text)["url"], {}
    stream = next(ElementTree.fromstring(text).iter("Stream"))
    url = stream.text if provider == "plivo" else stream.get("url")
    return url, {p.get("name"): p.get("value") for p in stream.iter("Parameter")}


async def where(server, provider):
    """Whom the far end connects to, and what it is told."""
    if provider == "audiosocket":
        host, port = server.edge.carriers.bound[provider]
        return f"tcp://{host}:{port}", {}
    if provider not in BY_WEBHOOK:
        return f"{server.url.replace('http', 'ws')}/carriers/{provider}/stream", {}
    return stream_url(provider, await webhook(server, provider))


def far_end(provider, parameters=()):
    kind = FAR_ENDS[provider]
    if provider in BY_WEBHOOK:
        return kind(CallFacts(call_id="CA17", parameters=dict(parameters)))
    return kind()


def loud(blocks, rate):
    """What is loud of sound in blocks, by 20 ms: on a busy machine there are gaps."""
    sound = np.concatenate([np.zeros(0, np.int16), *blocks])
    packets = sound[: len(sound) // (rate // 50) * (rate // 50)].reshape(-1, rate // 50)
    return packets[np.abs(packets).max(axis=1, initial=0) > 1000].ravel()


def records(path):
    """What was written down about the calls that ended."""
    return [json.loads(line) for line in path.read_text().splitlines()]


# --- every provider ---


@pytest.mark.parametrize("provider", FAR_ENDS)
async def test_both_ends_hear_each_other(provider, monkeypatch, tmp_path):
    calls = tmp_path / "calls.jsonl"
    config = carriers({"provider": provider}, log={"calls": calls})
    async with talking(config, monkeypatch) as (server, talks):
        url, parameters = await where(server, provider)
        call = FarEndCall(far_end(provider, parameters))
        call.say(tone(THEIR_TONE, 16_000, 3), 16_000)
        await call.start(url)
        rate = call.far_end.rate
        async with asyncio.timeout(HANGS_S):
            while len(loud(call.far_end.player.played, rate)) < 1.4 * rate:
                await asyncio.sleep(0.05)
            while not talks or len(loud(talks[0].sounds, RATE_IN)) < 1.5 * RATE_IN:
                await asyncio.sleep(0.05)
        listed = (await server.get("/calls"))["calls"]
        assert [(c["edge"], c["state"], c["trunk"]) for c in listed] == [
            (provider, "answered", provider)
        ]
        if provider in BY_WEBHOOK:
            assert "491701" in listed[0]["caller"]
            assert "493099" in listed[0]["called"]
        call.far_end.press("5")
        leg = talks[0]
        async with asyncio.timeout(HANGS_S):
            while not leg.keys:
                await asyncio.sleep(0.02)
            await call.close()
            while (await server.get("/calls"))["calls"]:
                await asyncio.sleep(0.02)
    assert is_tone(loud(leg.sounds, RATE_IN)[:RATE_IN], RATE_IN, THEIR_TONE)
    played = loud(call.far_end.player.played, rate)
    assert 1.4 * rate <= len(played) < 1.7 * rate
    assert is_tone(played[:rate], rate, OUR_TONE)
    assert leg.keys == "5"
    assert not call.far_end.faults
    assert server.edge.carriers.calls.in_progress() == []
    [record] = records(calls)
    assert (record["edge"], record["trunk"]) == (provider, provider)
    assert (record["direction"], record["ended_by"], record["status"]) == ("inbound", "remote", 200)
    assert record["duration_seconds"] > 0
    assert record["packets_received"] > 5  # a message each: of 20 to 200 ms
    assert record["packets_sent"] > 0
    assert record["codec"]
    assert record["mos"] > 1
    if provider in BY_WEBHOOK:
        assert record["remote_call_id"] == "CA17"
        assert "491701" in record["caller"]


@pytest.mark.parametrize("provider", ["twilio", "telnyx", "plivo", "vonage", "exotel", "genesys"])
async def test_the_agent_hangs_up(provider, monkeypatch, tmp_path):
    async def brief(arguments):
        await asyncio.sleep(0.3)

    calls = tmp_path / "calls.jsonl"
    config = carriers({"provider": provider}, log={"calls": calls})
    async with talking(config, monkeypatch, brief) as (server, _):
        url, parameters = await where(server, provider)
        call = FarEndCall(far_end(provider, parameters))
        await call.start(url)
        await asyncio.wait_for(call.ended.wait(), HANGS_S)
        await call.close()
        assert server.edge.carriers.calls.in_progress() == []
    assert [record["ended_by"] for record in records(calls)] == ["local"]


# --- who may ---


def signature(url, fields=(), token=TOKEN):
    text = url + "".join(k + v for k, v in sorted(dict(fields).items()))
    return base64.b64encode(hmac.digest(token.encode(), text.encode(), hashlib.sha1)).decode()


async def test_twilio_signs_webhook_and_stream(monkeypatch):
    signed = {"provider": "twilio", "secret": TOKEN, "account": "AC1", "insecure": False}
    async with talking(carriers(signed), monkeypatch) as (server, talks):
        url = f"{server.url}/carriers/twilio/voice"
        fields = {"CallSid": "CA17", "From": "+491701", "To": "+493099"}

        async def asked(sign, **more):
            headers = {"X-Twilio-Signature": sign} if sign else {}
            return await server.client.post(url, data={**fields, **more}, headers=headers)

        assert (await asked("")).status == 403
        assert (await asked(signature(url, fields, "another"))).status == 403
        assert (await asked(signature(url, fields), To="+1900")).status == 403
        answer = await asked(signature(url, fields))
        assert answer.status == 200
        stream, parameters = stream_url("twilio", await answer.text())
        facts = CallFacts(call_id="CA17", parameters=parameters)
        for headers in ({}, {"X-Twilio-Signature": signature(stream, token="another")}):
            with pytest.raises(ConnectionError):
                await FarEndCall(Twilio(facts)).start(stream, headers)
        good = {"X-Twilio-Signature": signature(stream)}
        call = FarEndCall(Twilio(facts))
        await call.start(stream, good)
        async with asyncio.timeout(HANGS_S):
            while not talks:
                await asyncio.sleep(0.02)
        with pytest.raises(ConnectionError):  # replayed
            await FarEndCall(Twilio(facts)).start(stream, good)
        assert talks[0].info.caller == "+491701"
        await call.close()
        refused = re.search(r'refused_total{reason="unsigned"} (\d+)', await server.metrics())
        assert refused
        assert int(refused[1]) == 6


async def test_a_ticket_works_once_and_only_for_its_call(monkeypatch):
    async with talking(carriers({"provider": "plivo"}), monkeypatch) as (server, talks):
        url, _ = stream_url("plivo", await webhook(server, "plivo"))
        other = FarEndCall(Plivo(CallFacts(call_id="another")))
        await other.start(url)
        await asyncio.wait_for(other.ended.wait(), HANGS_S)
        await other.close()
        with pytest.raises(ConnectionError):
            await FarEndCall(Plivo(CallFacts(call_id="CA17"))).start(url)
        with pytest.raises(ConnectionError):
            await FarEndCall(Plivo(CallFacts(call_id="CA17"))).start(url[:-4] + "AAAA")
        assert not talks


async def test_a_page_in_a_browser_cannot_open_a_stream(monkeypatch):
    config = carriers({"provider": "chan_websocket"})
    async with talking(config, monkeypatch) as (server, _):
        url, _ = await where(server, "chan_websocket")
        with pytest.raises(ConnectionError):
            await FarEndCall(ChanWebSocket()).start(url, {"Origin": "https://evil.example"})


async def test_unknown_carriers_and_configurations_that_do_not_fit(monkeypatch):
    async with talking(carriers({"provider": "twilio"}), monkeypatch) as (server, _):
        for path in ("nobody/voice", "twilio/stream", "nobody/stream"):
            assert (await server.client.get(f"/carriers/{path}")).status in (403, 404)
        assert (await server.client.post("/carriers/twilio/voice", data={"a": "b"})).status == 400
    for wrong in (
        {"carriers": [{"provider": "twilio"}]},
        {"carriers": [{"provider": "nobody", "secret": "x"}]},
        {"carriers": [{"provider": "twilio", "insecure": True}] * 2},
        {"carriers": [{"provider": "twilio", "insecure": True, "agent": "none"}]},
        {"server": {"host": "0.0.0.0"}, "carriers": [{"provider": "twilio", "insecure": True}]},
    ):
        with pytest.raises(ValueError, match="carrier"):
            Config.model_validate(wrong)


async def test_a_port_that_is_taken_is_said_so():
    first = Edge(carriers({"provider": "audiosocket"}), bot=lambda arguments: asyncio.sleep(0))
    await first.start()
    port = first.carriers.bound["audiosocket"][1]
    second = Edge(
        carriers({"provider": "audiosocket", "port": port}), bot=lambda a: asyncio.sleep(0)
    )
    with pytest.raises(ConfigError, match=r"carriers: .*in use"):
        await second.start()
    await first.close()


# --- how much ---


async def test_when_all_lines_are_busy_the_provider_is_told_in_its_words(monkeypatch):
    config = carriers({"provider": "twilio", "max_calls": 1}, {"provider": "genesys"})
    async with talking(config, monkeypatch) as (server, _):
        url, parameters = await where(server, "twilio")
        call = FarEndCall(far_end("twilio", parameters))
        await call.start(url)
        assert "<Reject" in await webhook(server, "twilio", "CA18")
        await call.close()
        async with asyncio.timeout(HANGS_S):
            while server.edge.carriers.calls.in_progress():
                await asyncio.sleep(0.02)
        server.edge.draining = True
        assert "<Reject" in await webhook(server, "twilio", "CA19")
        genesys, _ = await where(server, "genesys")
        async with server.client.get(genesys.replace("ws", "http", 1)) as answer:
            assert answer.status == 503
            assert int(answer.headers["Retry-After"]) > 0


@pytest.mark.parametrize(
    ("said", "why"),
    [
        (['{"event":"media","media":{"payload":"AAAA"}}'], "start"),
        (["x" * 1_000_000], "message|bytes|socket|long"),
        ([b"\x00" * 100], "closed|binary|text|start"),
        ([], "did not start"),
    ],
)
async def test_a_stream_that_is_none_ends_and_others_go_on(monkeypatch, said, why):
    async with talking(carriers({"provider": "twilio"}), monkeypatch) as (server, talks):
        good_url, parameters = stream_url("twilio", await webhook(server, "twilio", "CA17"))
        good = FarEndCall(Twilio(CallFacts(call_id="CA17", parameters=parameters)))
        await good.start(good_url)
        async with asyncio.timeout(HANGS_S):
            while not talks:
                await asyncio.sleep(0.02)
        monkeypatch.setattr("offhook.web.edge.carriers.calls_io.START_S", 0.5)
        url, _ = stream_url("twilio", await webhook(server, "twilio", "CA18"))
        async with aiohttp.ClientSession() as http, http.ws_connect(url) as socket:
            for message in said:
                send = socket.send_str if isinstance(message, str) else socket.send_bytes
                await send(message)
            closed = await socket.receive(timeout=HANGS_S)
            assert closed.type in (aiohttp.WSMsgType.CLOSE, aiohttp.WSMsgType.CLOSED)
        bad = list(server.edge.carriers.calls.by_id.values())[-1]
        async with asyncio.timeout(HANGS_S):
            while bad.state != "ended":
                await asyncio.sleep(0.02)
        assert re.search(why, bad.progress[-1].reason), bad.progress
        assert good.far_end.closed is None
        assert len(talks) == 1
        await good.close()


# --- placing calls ---


async def test_a_call_is_placed_rings_talks_and_is_hung_up(monkeypatch):
    async with FakeRest() as rest:
        known = rest.settings("twilio")
        table = {
            "provider": "twilio",
            "account": known.account,
            "secret": known.secret,
            "rest_url": rest.url,
            "number": known.number,
            "public_url": "http://127.0.0.1:1",
        }
        async with talking(carriers(table), monkeypatch) as (server, talks):
            asked = {"carrier": "twilio", "to": "+491701234567", "variables": {"order": 17}}
            answer = await server.client.post("/calls", json=asked)
            assert answer.status == 201, await answer.text()
            call_id = (await answer.json())["call_id"]
            following = asyncio.create_task(server.events(call_id))
            [placed] = rest.calls.values()
            assert placed.values["To"] == "+491701234567"
            path = f"status/{call_id}"
            await webhook(server, "twilio", placed.id, path=path, CallStatus="ringing")
            text = await webhook(server, "twilio", placed.id, path=f"voice/{call_id}")
            url, parameters = stream_url("twilio", text)
            call = FarEndCall(Twilio(CallFacts(call_id=placed.id, parameters=parameters)))
            await call.start(server.url.replace("http", "ws") + url.partition(":1")[2])
            shown = await server.state(call_id, "answered")
            assert (shown["direction"], shown["called"]) == ("outbound", "+491701234567")
            async with asyncio.timeout(HANGS_S):
                while not talks:
                    await asyncio.sleep(0.02)
            assert talks[0].info.variables["order"] == 17
            await server.client.delete(f"/calls/{call_id}")
            assert [e["state"] for e in await following] == [
                "dialing",
                "ringing",
                "answered",
                "ended",
            ]
            await asyncio.wait_for(call.ended.wait(), HANGS_S)
            assert placed.state == "completed"
            await call.close()


async def test_what_the_carrier_says_of_who_answers_is_in_the_record(monkeypatch):
    async with FakeRest() as rest:
        known = rest.settings("twilio")
        table = {
            "provider": "twilio",
            "account": known.account,
            "secret": known.secret,
            "rest_url": rest.url,
            "number": known.number,
            "public_url": "http://127.0.0.1:1",
            "asks_who_answers": True,
        }
        async with talking(carriers(table), monkeypatch) as (server, talks):
            call_id = await server.place(
                "+491701234567", carrier="twilio", machine_detection="detect"
            )
            [placed] = rest.calls.values()
            assert placed.values["MachineDetection"] == "Enable"
            path = f"status/{call_id}"
            await webhook(server, "twilio", placed.id, path=path, AnsweredBy="machine_start")
            text = await webhook(server, "twilio", placed.id, path=f"voice/{call_id}")
            url, parameters = stream_url("twilio", text)
            call = FarEndCall(Twilio(CallFacts(call_id=placed.id, parameters=parameters)))
            await call.start(server.url.replace("http", "ws") + url.partition(":1")[2])
            async with asyncio.timeout(HANGS_S):
                while not talks:
                    await asyncio.sleep(0.02)
            assert talks[0].answer_status.by_carrier == "machine"
            assert talks[0].answer_status.mode == "detect"
            await call.close()


@pytest.mark.parametrize(
    ("said", "status"), [("busy", 486), ("no-answer", 480), ("failed", 500), ("canceled", 487)]
)
async def test_a_call_that_nobody_takes_ends_with_the_reason(monkeypatch, said, status):
    async with FakeRest() as rest:
        known = rest.settings("twilio")
        table = {
            "provider": "twilio",
            "account": known.account,
            "secret": known.secret,
            "rest_url": rest.url,
            "number": known.number,
            "public_url": "http://localhost",
        }
        async with talking(carriers(table), monkeypatch) as (server, _):
            call_id = await server.place("+491701234567", carrier="twilio")
            [placed] = rest.calls.values()
            await webhook(server, "twilio", placed.id, path=f"status/{call_id}", CallStatus=said)
            events = await server.events(call_id)
            assert [(e["state"], e["status"]) for e in events] == [
                ("dialing", 0),
                ("ended", status),
            ]
            record = (await server.get(f"/calls/{call_id}"))["record"]
            assert (record["direction"], record["status"]) == ("outbound", status)
            assert (record["remote_call_id"], record["called"]) == (placed.id, "+491701234567")
            assert (record["answered"], record["ended_by"]) == (None, "remote")


async def test_calls_that_cannot_be_placed_say_why(monkeypatch):
    async with FakeRest() as rest:
        known = rest.settings("twilio", secret="f" * 32)
        table = {
            "provider": "twilio",
            "account": known.account,
            "secret": known.secret,
            "rest_url": rest.url,
            "number": known.number,
            "public_url": "http://localhost",
        }
        config = carriers(table, {"provider": "chan_websocket"}, {"provider": "plivo"})
        async with talking(config, monkeypatch) as (server, _):
            to = "+491701234567"
            for fields, words in (
                ({"carrier": "nobody"}, "no carrier is called"),
                ({"carrier": "chan_websocket"}, "cannot be asked"),
                ({"carrier": "plivo"}, "public_url"),
                ({"carrier": "twilio"}, "credentials"),
                ({"carrier": "twilio", "trunk": "x"}, "SIP"),
                ({}, "carrier"),
                ({"carrier": "twilio", "agent": "nobody"}, "no agent"),
            ):
                assert words in await server.refused(400, to=to, **fields)
            assert server.edge.carriers.calls.in_progress() == []


async def test_a_caller_is_transferred(monkeypatch):
    """Plivo asks for the markup of it; the others are told at once."""

    async def transferring(arguments):
        await arguments.webrtc_connection.transfer("+14155551212")

    async with FakeRest() as rest:
        for provider in ("twilio", "plivo", "vonage"):
            known = rest.settings(provider)
            table = {
                "provider": provider,
                "account": known.account,
                "secret": known.secret,
                "api_key": known.api_key,
                "rest_url": rest.url,
                "public_url": "http://127.0.0.1:1",
            }
            async with talking(carriers(table), monkeypatch, transferring) as (server, _):
                placed = rest.call(provider)
                url, parameters = stream_url(provider, await webhook(server, provider, placed.id))
                facts = CallFacts(call_id=placed.id, parameters=parameters)
                call = FarEndCall(FAR_ENDS[provider](facts))
                await call.start(server.url.replace("http", "ws") + url.partition(":1")[2])
                async with asyncio.timeout(HANGS_S):
                    while not (asked := [a for a in rest.asked if a.provider == provider]):
                        await asyncio.sleep(0.02)
                assert "14155551212" in str(asked[0].values)
                if provider == "plivo":
                    asked = asked[0].values["aleg_url"].partition(":1")[2]
                    answer = await server.client.post(asked, data={"CallUUID": placed.id})
                    dial = ElementTree.fromstring(await answer.text())[0]
                    assert [(e.tag, e.text) for e in dial] == [("Number", "14155551212")]
                    assert dial.get("action").endswith(asked.partition("?")[0])
                await call.close()


# --- strangers ---


async def test_a_replayed_webhook_is_one_call_and_then_none(monkeypatch):
    signed = {"provider": "twilio", "secret": TOKEN, "account": "AC1", "insecure": False}
    async with talking(carriers(signed), monkeypatch) as (server, _):
        got = await webhook_replays(server.url, HANGS_S, TOKEN)
        assert got == f"1 calls of {REPLAYS} webhooks, 0 refused"
        assert len(server.edge.carriers.calls.by_id) == 1
        server.edge.carriers.by_name["twilio"].answers = Answers()  # a minute later
        got = await webhook_replays(server.url, HANGS_S, TOKEN)
        assert got == f"0 calls of {REPLAYS} webhooks, {REPLAYS} refused"
        assert len(server.edge.carriers.calls.by_id) == 1


@pytest.mark.parametrize("provider", BY_WEBHOOK)
async def test_a_webhook_that_is_repeated_is_no_second_call(provider, monkeypatch):
    """Providers ask again when they have not got the answer, also while the first is at work."""
    async with talking(carriers({"provider": provider}), monkeypatch) as (server, talks):
        again = (webhook(server, provider) for _ in range(5))
        answers = {await webhook(server, provider), *await asyncio.gather(*again)}
        assert len(answers) == 1
        assert len(server.edge.carriers.calls.in_progress()) == 1
        assert await webhook(server, provider, "CA18") not in answers
        url, parameters = stream_url(provider, answers.pop())
        call = FarEndCall(far_end(provider, parameters))
        await call.start(url)
        async with asyncio.timeout(HANGS_S):
            while not talks:
                await asyncio.sleep(0.02)
        await call.close()


async def test_what_is_written_of_callers_only_our_user_can_read(monkeypatch, tmp_path):
    calls, recordings = tmp_path / "calls.jsonl", tmp_path / "recordings"
    config = carriers(
        {"provider": "twilio"},
        log={"calls": calls},
        recording={"enabled": True, "directory": recordings},
    )
    umask = os.umask(0)
    try:
        async with talking(config, monkeypatch) as (server, talks):
            url, parameters = await where(server, "twilio")
            call = FarEndCall(far_end("twilio", parameters))
            await call.start(url)
            async with asyncio.timeout(HANGS_S):
                while not talks:
                    await asyncio.sleep(0.02)
                await call.close()
                while not calls.exists():
                    await asyncio.sleep(0.02)
    finally:
        os.umask(umask)
    written = {path.name: oct(path.stat().st_mode & 0o777) for path in tmp_path.rglob("*")}
    assert {"calls.jsonl", "recordings"} <= written.keys()
    assert {name: mode for name, mode in written.items() if mode[-2:] != "00"} == {}


async def test_an_address_is_no_password_behind_any_proxy(monkeypatch):
    """A stranger whose proxy stands at an address that needs no password is no Asterisk."""
    table = {"provider": "chan_websocket", "insecure": False}
    async with talking(carriers(table), monkeypatch) as (server, talks):
        got = await streams_behind_proxies(server.url, HANGS_S)
        assert got == f"refused {len(PROXIES) + 2} of {len(PROXIES) + 2} with 400, 403"
        assert talks == []
        direct = FarEndCall(ChanWebSocket())
        await direct.start(f"{server.url.replace('http', 'ws')}/carriers/chan_websocket/stream")
        async with asyncio.timeout(HANGS_S):
            while not talks:
                await asyncio.sleep(0.02)
        await direct.close()


async def test_a_name_that_begins_like_this_machines_is_another(monkeypatch):
    async with talking(carriers({"provider": "chan_websocket"}), monkeypatch) as (server, _):
        got = await operators_host_names(server.url, HANGS_S)
        assert got == f"refused {len(HOSTS)} of {len(HOSTS)} with 403"
        own = server.url.removeprefix("http://")
        for host in (own, "localhost", "LOCALHOST:1", "[::1]:7860", "127.0.0.1:"):
            assert await status_of(server.url, "/calls", (("Host", host),)) == 200
