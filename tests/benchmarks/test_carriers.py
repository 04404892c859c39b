"""The benchmarks of carriers' streams measure what they say."""

import asyncio
import base64
import json
from collections.abc import Callable
from pathlib import Path

import aiohttp
import numpy as np
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from benchmarks.carriers import carriers
from benchmarks.carriers import load as carrier_load
from benchmarks.carriers import turns as carrier_turns
from benchmarks.carriers.callers import Callers, Spoken
from benchmarks.carriers.ear import Ear, is_loud, lateness
from benchmarks.carriers.far_ends.far_end import CallFacts
from benchmarks.carriers.far_ends.far_end_io import FAR_ENDS, Refused
from benchmarks.carriers.far_ends.far_end_json import Twilio
from benchmarks.carriers.far_ends.webhook import read_json
from benchmarks.carriers.leg_io import FarEndLeg
from benchmarks.carriers.words import Spoken as SpokenReply
from benchmarks.carriers.words import compare, played_until_ms
from offhook.media.clock_io import PacketClock
from offhook.media.codecs.g711 import PcmuEncoder
from offhook.media.pcm import RATE_IN, RATE_OUT, Pcm, dbfs
from offhook.telephony.carriers.settings import CarrierSettings
from offhook.web.app.callers.twilio.stream_io import Marks
from offhook.web.app.callers.twilio.webhook_io import (
    Answer,
    Application,
    find_stream,
    read_xml,
    twilio_signature,
)
from offhook.web.config.config import load
from tests.support.waiting import HANGS_S, until

QUIET = PcmuEncoder().encode(np.zeros(480, np.int16))
VOICE = bytes([0x10] * 160)


def speech(seconds: float, seed: int = 1) -> Pcm:
    """16 kHz: never the same twice."""
    noise = np.random.default_rng(seed).standard_normal(int(RATE_IN * seconds))
    return (3000 * np.convolve(noise, np.ones(4) / 2, "same")).clip(-32768, 32767).astype(np.int16)


# --- dialling ---


def test_a_webhook_is_signed_as_twilio_documents_it() -> None:
    form = {
        "CallSid": "CA1234567890ABCDE",
        "Caller": "+14158675309",
        "Digits": "1234",
        "From": "+14158675309",
        "To": "+18005551212",
    }
    url = "https://mycompany.com/myapp.php?foo=1&bar=2"
    assert twilio_signature("12345", url, form) == "RSOYDt4T1cUTdK1PDd93/VVr8B8="


def test_answers_of_all_kinds_are_read() -> None:
    twilio = '<Response><Connect><Stream url="wss://a/b"><Parameter name="k" value="v"/></Stream>'
    assert read_xml(f"{twilio}</Connect></Response>") == Answer("wss://a/b", {"k": "v"})
    plivo = '<Response><Stream bidirectional="true" extraHeaders="a=1,b=2">wss://a/b</Stream>'
    assert read_xml(f"{plivo}</Response>") == Answer("wss://a/b", {"a": "1", "b": "2"})
    assert read_xml('<Response><Reject reason="busy"/></Response>') == Answer(instead="Reject")
    endpoint = {"type": "websocket", "uri": "wss://a/b", "headers": {"k": "v"}}
    ncco = [{"action": "connect", "endpoint": [endpoint]}]
    assert read_json(json.dumps(ncco)) == Answer("wss://a/b", {"k": "v"})
    assert read_json('{"url": "wss://a/b"}') == Answer("wss://a/b", instead="no url")
    assert read_json("[]").stream_url == ""
    for text in ("nonsense", "<Other/>"):
        with pytest.raises(ValueError, match="not"):
            read_xml(text)


async def test_a_call_that_gets_no_stream_is_refused(nothing_left: None) -> None:
    async def reject(request: web.Request) -> web.Response:
        return web.Response(text="<Response><Reject/></Response>", content_type="text/xml")

    app = web.Application()
    app.router.add_post("/voice", reject)
    server = TestServer(app)
    await server.start_server()
    async with aiohttp.ClientSession() as http:
        for path, reason in (("/voice", "Reject instead of a stream"), ("/other", "404")):
            there = Application(str(server.make_url(path)), "secret")
            with pytest.raises(Refused, match=reason):
                await find_stream(http, there, CallFacts())
    await server.close()


# --- judging what comes back ---


def feed(ear: Ear, times: list[float], payload: Callable[[int], bytes] = lambda n: QUIET) -> None:
    for n, at in enumerate(times):
        ear.take(payload(n), at)


def test_late_messages_and_holes_are_told_apart_from_sound_that_comes_later_for_good() -> None:
    ear = Ear()
    feed(ear, [0.02 * n + (0.03 if n == 60 else 0) for n in range(100)])
    judged = ear.judge()
    late = np.concatenate(judged.late)
    assert (judged.messages, judged.holes) == (100, 0)
    assert np.count_nonzero(late > 0.02) == 1
    feed(ear, [10 + 0.02 * n + (0.2 if n >= 50 else 0) for n in range(200)])
    judged = ear.judge()
    assert judged.holes == 1
    assert np.count_nonzero(np.concatenate(judged.late) > 0.02) == 49  # of the second after it


def test_lateness_is_counted_from_the_most_punctual_of_the_second_before() -> None:
    assert lateness(np.array([0.0, 0.01, -0.01, 0.0])).tolist() == [0.0, 0.01, 0.0, 0.01]


def test_an_echo_is_timed_from_a_lines_first_sound_to_its_being_played() -> None:
    ear = Ear()
    for n in range(150):
        now = 0.02 * n
        ear.say(60 <= n < 90, now)
        ear.take(VOICE if 65 <= n < 95 else QUIET, now + 0.001)
    (echo,) = ear.judge().echo_ms
    assert echo == pytest.approx(100 + 60 + 1, abs=1)
    assert is_loud(VOICE)
    assert not is_loud(QUIET)


def test_marks_are_due_when_their_sound_was_played_and_all_at_once_when_cleared() -> None:
    ear, marks = Ear(), Marks()
    marks.add("first", max(0.0, ear.play_until))
    assert marks.reached(0.0) == ["first"]
    feed(ear, [1.0, 1.0])
    marks.add("a", ear.play_until)
    assert marks.reached(1.05) == []
    assert marks.reached(1.101) == ["a"]
    feed(ear, [2.0, 2.0])
    marks.add("b", ear.play_until)
    ear.clear(2.0)
    assert (ear.play_until, marks.clear()) == (2.0, ["b"])


# --- words ---


def test_where_what_was_played_ends_in_a_reply_is_found_by_its_sound() -> None:
    reply = speech(6)
    cut = reply[: RATE_IN * 5 // 2]
    played = np.concatenate((np.zeros(5000, np.int16), cut // 2, np.zeros(9000, np.int16)))
    assert played_until_ms(reply, played) == pytest.approx(2500, abs=1)
    assert played_until_ms(reply, speech(2, seed=2)) is None
    assert played_until_ms(reply, np.zeros(RATE_IN, np.int16)) is None


@pytest.mark.parametrize(
    ("context", "off", "off_ms"),
    [
        ("one two three", 0, 0.0),
        ("one two three four", 0, 300.0),
        ("one two three four five", 1, 900.0),
        ("one two", -1, -100.0),
        ("", -3, -1500.0),
    ],
)
def test_words_of_the_context_are_compared_with_those_played(
    context: str, off: int, off_ms: float
) -> None:
    reply = SpokenReply(speech(4), (600.0, 1200.0, 2000.0, 2400.0, 3000.0))
    exact = compare(reply, reply.pcm[: RATE_IN * 21 // 10], context)
    assert exact is not None
    assert (exact.words_off, exact.off_ms) == (off, pytest.approx(off_ms, abs=1))


# --- callers ---


async def echo(socket: web.WebSocketResponse) -> None:
    """As Pipecat would: sound back, nothing else; and a mark at the beginning."""
    stream = ""
    async for message in socket:
        read = json.loads(message.data)
        if read["event"] == "start":
            stream = read["streamSid"]
            assert read["start"]["callSid"].startswith("CA")
        elif read["event"] == "media":
            media = {"payload": read["media"]["payload"]}
            await socket.send_json({"event": "media", "streamSid": stream, "media": media})
            if read["media"]["chunk"] == "5":
                mark = {"event": "mark", "streamSid": stream, "mark": {"name": "five"}}
                await socket.send_json(mark)


async def test_callers_count_calls_sound_echo_and_marks(nothing_left: None) -> None:
    async def stream(request: web.Request) -> web.WebSocketResponse:
        socket = web.WebSocketResponse()
        await socket.prepare(request)
        await echo(socket)
        return socket

    app = web.Application()
    app.router.add_get("/stream", stream)
    server = TestServer(app)
    await server.start_server()
    quiet, voice = (Spoken(base64.b64encode(p).decode(), is_loud(p)) for p in (QUIET, VOICE))
    async with aiohttp.ClientSession() as http:
        there = Application(stream=str(server.make_url("/stream").with_scheme("ws")))
        callers = Callers(there, 100.0, [[*[quiet] * 30, *[voice] * 30]], http)
        filled = await callers.fill(3)
        assert filled["up"] == filled["calls"] == 3
        async with asyncio.timeout(HANGS_S):
            while (report := callers.report())["messages"] <= 3 * 80 or not report["echo_ms"]:
                await asyncio.sleep(0.1)
        assert (await callers.empty())["left"] == 0
        await callers.close()
    await server.close()
    assert report["marks"] == 3
    assert report["cut"] == 0
    assert report["messages"] <= report["sent"]
    assert report["echo_ms"]["p50"] > 0


async def test_a_scripted_callers_line_hears_what_its_far_end_played(nothing_left: None) -> None:
    async def stream(request: web.Request) -> web.WebSocketResponse:
        socket = web.WebSocketResponse()
        await socket.prepare(request)
        await echo(socket)
        return socket

    app = web.Application()
    app.router.add_get("/stream", stream)
    server = TestServer(app)
    await server.start_server()
    leg, clock = FarEndLeg(Twilio()), PacketClock()
    await leg.dial(str(server.make_url("/stream").with_scheme("ws")))
    clock.add(leg)
    t = np.arange(RATE_OUT // 2) / RATE_OUT
    leg.playout.write((8000 * np.sin(2 * np.pi * 440 * t)).astype(np.int16))

    def is_over() -> bool:
        loud = [dbfs(pcm) > -20 for pcm in leg.heard]
        return any(loud) and not any(loud[-10:])

    await until(is_over)
    clock.remove(leg)
    await leg.hang_up("done")
    await server.close()
    loud = [pcm for pcm in leg.heard if dbfs(pcm) > -20]
    assert 23 <= len(loud) <= 27
    assert leg.speech_arrivals
    assert leg.closed == "done"
    played = leg.far_end.player.played
    assert len(played) == len(leg.heard)


# --- the command ---


def test_what_cannot_be_measured_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments, said in (
        (["load", "--servers", "other"], "no such server: other"),
        (["load", "--calls", "1,100000"], "one process holds"),
        (["turns", "--providers", "other"], "no such provider: other"),
    ):
        with pytest.raises(SystemExit):
            carriers.main(arguments)
        assert said in capsys.readouterr().err


def test_the_configuration_of_the_turns_is_taken(tmp_path: Path) -> None:
    file = tmp_path / "offhook.toml"
    file.write_text(carrier_turns.configuration(9019))
    found = load(file, {}).carriers
    assert {c.provider for c in found} == set(FAR_ENDS)
    assert [c.provider for c in found if c.insecure] == [
        *("telnyx", "plivo", "exotel", "vonage", "genesys")
    ]
    assert all(isinstance(c, CarrierSettings) for c in found)


def test_each_provider_is_reached_where_it_would_look() -> None:
    where = {
        name: carrier_turns.application(name, "http://127.0.0.1:1", 2)
        for name in carrier_turns.PROVIDERS
    }
    assert where["twilio"].webhook == "http://127.0.0.1:1/carriers/twilio/voice"
    assert where["genesys"].stream == "ws://127.0.0.1:1/carriers/genesys/stream"
    assert where["audiosocket"].stream == "tcp://127.0.0.1:2"


@pytest.mark.slow
async def test_load_is_measured_on_the_real_server() -> None:
    rows = await carrier_load.load("echo", [2], 5.0, 3.0, False, lambda row: None)
    held, churn = rows
    assert (held.calls, held.cut, held.refused) == (2, 0, {})
    assert held.sound_percent > 90
    assert 5 < held.marks_per_second < 15
    assert held.mark_round_trip_ms
    assert held.cpu_per_call_percent > 0
    assert churn.setups > 5
    assert carrier_load.line(held)


@pytest.mark.slow
async def test_load_is_measured_on_two_processes_that_share_a_port() -> None:
    rows = await carrier_load.load("echo", [6], 5.0, 3.0, False, lambda row: None, processes=2)
    held = rows[0]
    assert (held.calls, held.cut, held.refused) == (6, 0, {})
    assert len(held.spread) == 2
    assert min(held.spread) >= 2
    assert held.sound_percent > 90
    assert carrier_load.line(held).startswith("echo x2")
