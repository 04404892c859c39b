"""A whole call over the loopback: a scripted caller talks with the front desk."""

import asyncio
import json
import os
import socket
import wave
from pathlib import Path

import av
import numpy as np
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from offhook.media.clock_io import PacketClock
from offhook.media.codecs.resample import Resampler
from offhook.media.pcm import RATE_IN, RATE_OUT
from offhook.pipeline.conversation.events import CallerTurn, Interrupted
from offhook.pipeline.conversation.latency import STAMPS
from offhook.pipeline.conversation.turns import user_turn_io
from offhook.signaling.peer_io import PeerLeg
from offhook.signaling.smallwebrtc import Offer
from offhook.telephony.sip.trunks.trunks import SipSettings
from offhook.web.app.cli import main as cli
from offhook.web.app.cli.caller_io import (
    CallError,
    ScriptedCall,
    ScriptLine,
    TurnReport,
    read_audio,
    spoken,
    trimmed,
)
from offhook.web.config.config import Agent, Config
from offhook.web.config.server import Recording, Server, WebRtc
from offhook.web.edge.calls.live_call_io import LiveCall
from offhook.web.edge.edge_io import Edge
from offhook.web.edge.server_io import application
from offhook.web.workers.engines.engines_io import open_synthesizer
from tests.pipeline.conversation.speakerphone import Room
from tests.pipeline.conversation.speakerphone import spoken as flite
from tests.support.ports import free_port
from tests.support.waiting import HANGS_S

pytestmark = pytest.mark.usefixtures("loopback")


@pytest.fixture(autouse=True)
def patient(monkeypatch):
    """Nobody is asked to wait because the machine is busy."""
    monkeypatch.setattr(user_turn_io, "WORDS_LATE_MS", 60_000)


async def line(text):
    synthesizer = open_synthesizer()
    await synthesizer.start()
    pcm = trimmed(await spoken(synthesizer, text))
    await synthesizer.close()
    return ScriptLine(text, pcm)


def open_files():
    return len(os.listdir("/proc/self/fd"))


async def until_gone(edge):
    async with asyncio.timeout(HANGS_S):
        while edge.calls:
            await asyncio.sleep(0.02)


async def test_one_call_from_the_offer_to_the_recording(tmp_path):
    """Says one line, is understood, gets an answer; then everything is torn down."""
    faults = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda loop, context: faults.append(context))
    config = Config(
        webrtc=WebRtc(addresses=["127.0.0.1"]),
        server=Server(port=0),
        recording=Recording(enabled="always", directory=tmp_path / "calls"),
    )
    question = await line("Are you open on Sunday?")
    edge = Edge(config)
    before_all = asyncio.all_tasks()
    await edge.start()
    server = TestServer(application(edge))
    await server.start_server()
    try:
        files = open_files()
        shown = []
        call = ScriptedCall(str(server.make_url("/")), [question], show=shown.append)
        report = await call.run()
        await until_gone(edge)
        assert edge.clock._handle is None
        assert edge.metrics.calls._value.get() == 0
        assert open_files() <= files + 4  # the kept-alive HTTP connection, the recording's two
    finally:
        await server.close()
        await edge.close()
    assert asyncio.all_tasks() <= before_all
    assert faults == []
    (timeline,) = (tmp_path / "calls").glob("*.jsonl")
    events = [json.loads(text) for text in timeline.read_text().splitlines()]
    heard_well(report, events)
    timed_well(report, events)
    recorded_well(tmp_path / "calls")
    assert any("on sunday" in text for text in shown)
    call.save(tmp_path / "caller")
    assert json.loads((tmp_path / "caller" / "report.json").read_text())["turns"]
    with wave.open(str(tmp_path / "caller" / "agent.wav")) as file:
        assert file.getframerate() == 16_000
        assert file.getnframes() > 16_000 * 4


def heard_well(report, events):
    """Both ends agree on what was said."""
    assert report.greeting
    assert report.ended_by == "caller"
    (turn,) = report.turns
    assert "on sunday" in turn.heard.lower()
    assert "closed on sunday" in turn.reply.lower()
    kinds = [event["kind"] for event in events]
    assert kinds[-2:] == ["call_ended", "end"]
    assert "call_started" in kinds
    assert events[-2]["reason"] == "the caller hung up"
    assert [e["text"] for e in events if e["kind"] == "caller_turn"] == [turn.heard]
    assert (
        turn.reply.split()[:3]
        == [e["text"] for e in events if e["kind"] == "agent_turn"][-1].split()[:3]
    )
    statistics = report.statistics
    assert statistics["packets_lost"] == 0
    assert statistics["packets_received"] > 50
    assert 1 < statistics["mos"] < 4.5


def timed_well(report, events):
    """The server's spans follow one another, and agree with what the caller measures."""
    (latency,) = (event for event in events if event["kind"] == "turn_latency")
    spans, total = latency["spans"], latency["total_ms"]
    assert {name for name, _ in spans} == set(STAMPS[1:])
    assert spans[-1][0] == "first_packet"
    assert sum(ms for _, ms in spans) == pytest.approx(total, abs=4)
    (turn,) = report.turns
    told = turn.latency
    assert told["total_ms"] == total
    assert [[span["name"], span["ms"]] for span in told["spans"]] == spans
    assert turn.response_ms == pytest.approx(total, abs=250)


def recorded_well(directory):
    """Both sides can be heard."""
    (sound,) = directory.glob("*.ogg")
    with av.open(str(sound)) as container:
        pcm = np.concatenate([f.to_ndarray() for f in container.decode(audio=0)], axis=1)
    stereo = pcm.reshape(-1, 2) if pcm.shape[0] == 1 else pcm.T
    loud = np.abs(stereo.astype(float)).max(axis=0)
    assert (loud > 0.05 * (32_768 if stereo.dtype == np.int16 else 1)).all()


@pytest.mark.parametrize(
    "kind", ["a file is in the way", pytest.param("read-only", marks=pytest.mark.slow)]
)
async def test_a_call_that_cannot_be_recorded_is_held_all_the_same(tmp_path, kind):
    directory = tmp_path / "calls" / "today"
    if kind == "read-only":  # which the system's own file system is for root, too
        directory = Path("/proc/calls")
    else:
        (tmp_path / "calls").write_text("")
    config = Config(
        webrtc=WebRtc(addresses=["127.0.0.1"]),
        server=Server(port=0),
        recording=Recording(enabled="always", directory=directory),
    )
    edge = Edge(config)
    await edge.start()
    server = TestServer(application(edge))
    await server.start_server()
    try:
        report = await ScriptedCall(str(server.make_url("/")), []).run()
        await until_gone(edge)
        assert report.greeting
        assert report.ended_by == "caller"
        assert edge.metrics.recordings.failed._value.get() == 1
        failed = edge.metrics.calls_failed.labels("the server failed")
        assert failed._value.get() == 0
    finally:
        await server.close()
        await edge.close()


async def test_what_fails_before_the_first_tick_is_a_failed_call(monkeypatch):
    edge = Edge(Config(webrtc=WebRtc(addresses=["127.0.0.1"])))
    await edge.start()
    server = TestServer(application(edge))
    await server.start_server()

    def broken(agent, call):
        raise OSError("too many open files")

    monkeypatch.setattr(edge.agents, "make", broken)
    try:
        report = await ScriptedCall(str(server.make_url("/")), []).run()
        assert report.ended_by == "server"
        await until_gone(edge)
        assert edge.metrics.calls_failed.labels("the server failed")._value.get() == 1
        assert edge.metrics.calls._value.get() == 0
    finally:
        await server.close()
        await edge.close()


async def test_calls_leave_nothing_behind_while_the_server_goes_on():
    edge = Edge(Config(webrtc=WebRtc(addresses=["127.0.0.1"]), agent=Agent(kind="silent")))
    await edge.start()
    clock, left = PacketClock(), []
    try:
        for _ in range(2):
            leg = PeerLeg("caller")
            answer, _ = await edge.browsers.offer(Offer(await leg.offer(), None, False, {}))
            await leg.accept(answer)
            clock.add(leg)
            async with asyncio.timeout(HANGS_S):
                while not edge.metrics.calls._value.get() or leg.ticks < 10:
                    await asyncio.sleep(0.01)
            await leg.hang_up("goodbye")
            clock.remove(leg)
            await until_gone(edge)
            await asyncio.sleep(0.1)
            left.append((len(asyncio.all_tasks()), open_files()))
    finally:
        await edge.close()
    assert left[0] == left[1]


# --- calls that cannot be made ---


async def refusal(url, **options):
    call = ScriptedCall(url, [], **options)
    with pytest.raises(CallError) as caught:
        await call.run()
    assert call.leg.closed
    return str(caught.value)


@pytest.mark.usefixtures("nothing_left")
async def of_server(messages, *, ends=False):
    """What a caller shows who has said something, after messages of the server."""
    shown = []
    call = ScriptedCall("http://localhost", [], show=shown.append)
    call._turn = TurnReport("Hello.")
    call.report.turns.append(call._turn)
    listening = asyncio.create_task(call._listen(None))
    for kind, data in messages:
        await asyncio.sleep(0)  # the listener sees each event by itself
        await asyncio.sleep(0)
        call.on_message(json.dumps({"label": "rtvi-ai", "type": kind, "data": data}))
        await asyncio.sleep(0.05)
    if ends:
        call.leg.close("the test is over")
    async with asyncio.timeout(60):
        await listening
    return shown


async def test_the_answer_is_waited_for_after_a_filler():
    spoken_one = ("bot-started-speaking", {}), ("bot-stopped-speaking", {})
    shown = await of_server(
        [
            ("bot-llm-started", {}),
            *(spoken_one[0], ("bot-tts-text", {"text": "One moment."}), spoken_one[1]),
            *(spoken_one[0], ("bot-tts-text", {"text": "We close at six."})),
            *(("bot-llm-stopped", {}), spoken_one[1]),
        ]
    )
    assert shown == ["agent: One moment. We close at six."]


@pytest.mark.parametrize(
    ("message", "says"),
    [
        (("error", {"error": "the agent has failed", "fatal": False}), "the agent has failed"),
        (("server-message", {"type": "goodbye", "reason": "full"}), "the call has ended: full"),
    ],
)
async def test_without_an_answer_the_servers_reason_is_shown(message, says):
    assert await of_server([message], ends=True) == [f"  no answer: {says}"]


async def test_no_server_is_said_so():
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{nobody.getsockname()[1]}"
        assert f"no offhook server at {url}/api/offer" in await refusal(url)


@pytest.mark.usefixtures("nothing_left")
@pytest.mark.parametrize("url", ["localhost:7860", "nonsense", "ftp://localhost/"])
async def test_an_address_that_is_none_is_said_so(url):
    assert "no offhook server at" in await refusal(url)


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (
            web.json_response(
                {"error": "all lines are busy"}, status=503, headers={"Retry-After": "7"}
            ),
            "503: all lines are busy; try again in 7 s",
        ),
        (web.json_response({"error": "a valid API key"}, status=401), "401: a valid API key"),
        (web.Response(text="<html>Bad Gateway", status=502), "no offhook server at"),
        (web.Response(body=b"\xff", status=200), "no offhook server at"),
        (web.json_response([1]), "no offhook server at"),
        (web.json_response({"type": "answer"}), "no offhook server at"),
    ],
)
async def test_a_refusal_is_handed_on_with_its_reason(answer, says):
    keys = []

    async def offer(request):
        keys.append(request.headers.get("Authorization"))
        return answer

    app = web.Application()
    app.router.add_post("/api/offer", offer)
    async with TestServer(app) as server:
        assert says in await refusal(str(server.make_url("/")), api_key="k")
    assert keys == ["Bearer k"]


def test_the_command_line_says_what_is_wrong_in_one_line(capsys, tmp_path):
    for arguments, says in (
        (["call", "http://127.0.0.1:9"], "no offhook server at http://127.0.0.1:9/api/offer"),
        (["call", "http://127.0.0.1:9", "--play", str(tmp_path / "no.wav")], "cannot read"),
        (["call", "http://127.0.0.1:9", "--say", ""], "nothing to say"),
    ):
        assert cli.main(arguments) == 1
        error = capsys.readouterr().err.strip().splitlines()[-1]
        assert error.startswith("offhook: ")
        assert says in error


@pytest.mark.parametrize("arguments", [["call", "box:7860"], ["dial", "--url", "box:7860", "1"]])
def test_an_address_without_http_is_named(arguments, capsys):
    with pytest.raises(SystemExit):
        cli.main(arguments)
    assert capsys.readouterr().err.endswith("'box:7860' is no URL: write http://box:7860\n")


# --- sound from files ---


@pytest.mark.parametrize(("rate", "channels"), [(8000, 1), (16_000, 1), (44_100, 2), (48_000, 2)])
def test_any_file_becomes_24_khz_mono(tmp_path, rate, channels):
    time = np.arange(rate) / rate
    tone = (8000 * np.sin(2 * np.pi * 440 * time)).astype("<i2")
    path = tmp_path / "tone.wav"
    with wave.open(str(path), "wb") as file:
        file.setnchannels(channels)
        file.setsampwidth(2)
        file.setframerate(rate)
        file.writeframes(np.repeat(tone, channels).tobytes())
    pcm = read_audio(path)
    assert pcm.dtype == np.int16
    assert len(pcm) == pytest.approx(RATE_OUT, abs=50)
    spectrum = np.abs(np.fft.rfft(pcm))
    assert np.argmax(spectrum) * RATE_OUT / len(pcm) == pytest.approx(440, abs=2)


def test_a_file_that_is_no_sound_is_said_so(tmp_path):
    path = tmp_path / "no.wav"
    for content in (b"", b"hello", b"RIFF\xff\xff\xff\xffWAVEfmt "):
        path.write_bytes(content)
        with pytest.raises(CallError, match="cannot read"):
            read_audio(path)


def test_silence_at_the_ends_is_not_counted():
    quiet, sound = np.zeros(500, np.int16), np.full(100, -5000, np.int16)
    assert len(trimmed(np.concatenate([quiet, sound, quiet, sound, quiet]))) == 700
    assert len(trimmed(quiet)) == 500
    assert len(trimmed(np.zeros(0, np.int16))) == 0
    assert len(trimmed(np.full(10, -32768, np.int16))) == 10


async def test_a_call_that_is_cancelled_while_it_connects_frees_the_line(monkeypatch):
    edge = Edge(Config(webrtc=WebRtc(addresses=["127.0.0.1"]), agent=Agent(kind="silent")))
    await edge.start()
    server = TestServer(application(edge))
    await server.start_server()

    async def forgotten(leg, sdp):
        """The answer is not used: no connection comes of it."""

    monkeypatch.setattr(PeerLeg, "accept", forgotten)
    try:
        call = asyncio.create_task(ScriptedCall(str(server.make_url("/")), []).run())
        async with asyncio.timeout(HANGS_S):
            while not edge.legs:
                await asyncio.sleep(0.01)
        await asyncio.sleep(0.2)  # for the answer to have come
        call.cancel()
        await asyncio.gather(call, return_exceptions=True)
        assert call.cancelled()
        await until_gone(edge)
    finally:
        await server.close()
        await edge.close()


# --- a speakerphone ---


def put_on_speaker(leg, level, delay_ms):
    """What the caller hears goes into its microphone again, by a room, and nothing cancels it."""
    room, up, take = Room(level, delay_ms, seed=1), Resampler(RATE_IN, RATE_OUT), leg._take

    def microphone():
        sound = room.returns(up.process(leg.sound_in).astype(float))
        said = take()
        return (sound if said is None else sound + said).clip(-32768, 32767).astype(np.int16)

    leg._take = microphone


@pytest.mark.slow
@pytest.mark.parametrize(("level", "delay_ms"), [(-20, 50), (-12, 150), (-6, 400)])
@pytest.mark.parametrize("kind", ["webrtc", "sip"])
async def test_a_call_from_a_speakerphone(kind, level, delay_ms):
    """In real time, with the real recogniser: every interruption is the caller's, and both are
    heard."""
    lines = (
        "What are your opening hours?",
        "Tell me about yourself.",
        "Stop please, where are you?",
    )
    lines = [ScriptLine(text, trimmed(flite("rms", text))) for text in lines]
    phones = SipSettings(udp=free_port(), tcp=None, allow_anonymous=True) if kind == "sip" else None
    edge = Edge(Config(webrtc=WebRtc(addresses=["127.0.0.1"]), server=Server(port=0), sip=phones))
    events = []

    class WatchedCall(LiveCall):
        def report(self, event):
            events.append(event)
            super().report(event)

    edge.call_class = WatchedCall
    await edge.start()
    try:
        async with TestServer(application(edge)) as server:
            sip = f"sip:desk@127.0.0.1:{phones.udp}" if phones else ""
            call = ScriptedCall(sip or str(server.make_url("/")), lines, interrupt_after=2.5)
            put_on_speaker(call.leg, level, delay_ms)
            await call.run()
    finally:
        await edge.close()
    cuts = [event for event in events if isinstance(event, Interrupted)]
    turns = [event.text for event in events if isinstance(event, CallerTurn)]
    assert len(cuts) == 2
    assert len(turns) == 3
    assert "opening hours" in turns[0]
    assert "yourself" in turns[1]
    assert "where are you" in turns[2] or "stop" in turns[2]


async def test_a_call_that_a_stop_cuts_off_hears_that_it_ends():
    config = Config(
        webrtc=WebRtc(addresses=["127.0.0.1"]),
        server=Server(port=0, drain_seconds=1),
        agent=Agent(kind="silent"),
    )
    edge = Edge(config)
    await edge.start()
    server = TestServer(application(edge))
    await server.start_server()
    call = ScriptedCall(str(server.make_url("/")), [])
    running = asyncio.create_task(call.run())
    try:
        async with asyncio.timeout(HANGS_S):
            while not edge.conversations or not call.leg.connected:
                await asyncio.sleep(0.02)
            await edge.drain()
        said = [e["data"]["text"] for e in call.report.events if e["type"] == "bot-tts-text"]
        assert " ".join(said).startswith("Sorry, we have to end this call now.")
        assert call.leg.closed is None or not edge.conversations
    finally:
        await edge.close()
        await server.close()
        await asyncio.gather(running, return_exceptions=True)
