"""The far ends behave as the providers' documents say: what is tested against them counts."""

import asyncio
import base64
import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.carriers.far_ends.far_end import FarEnd, Message
from benchmarks.carriers.far_ends.far_end_asterisk import AudioSocket, ChanWebSocket
from benchmarks.carriers.far_ends.far_end_binary import Genesys, Vonage
from benchmarks.carriers.far_ends.far_end_io import FAR_ENDS, FarEndCall, Refused, Way, at_rate
from benchmarks.carriers.far_ends.far_end_json import Exotel, Plivo, Telnyx, Twilio
from benchmarks.carriers.far_ends.player import Player
from offhook.media.pcm import Pcm
from tests.support.waiting import HANGS_S, until


def tone(samples: int, start: int = 0) -> Pcm:
    return (8000 * np.sin(0.3 * np.arange(start, start + samples))).astype(np.int16)


def sent(far_end: FarEnd) -> list[dict[str, Any]]:
    """Text messages due, read."""
    return [json.loads(m) for m in far_end.messages_to_send() if isinstance(m, str)]


def events(far_end: FarEnd, key: str = "event") -> list[str]:
    """Those that are not the caller's sound."""
    return [str(m.get(key)) for m in sent(far_end) if m.get(key) != "media"]


class Clock:
    """Lets a far end's time pass, 20 ms at a time."""

    def __init__(self, far_end: FarEnd) -> None:
        self.far_end, self.now = far_end, 100.0
        far_end.open(self.now)

    def wait(self, ms: int) -> None:
        for _ in range(ms // 20):
            self.now += 0.02
            self.far_end.handle_timer(self.now + 1e-6)

    def receive(self, *messages: Message | dict[str, Any]) -> None:
        for message in messages:
            text = json.dumps(message) if isinstance(message, dict) else message
            self.far_end.receive(text, self.now)


def media(payload: bytes, **more: Any) -> dict[str, Any]:
    return {"event": "media", "media": {"payload": base64.b64encode(payload).decode()}, **more}


def of(far_end: FarEnd, message: dict[str, Any]) -> dict[str, Any]:
    return {"streamSid": far_end.facts.stream_id, **message}


def mark(far_end: FarEnd, name: str) -> dict[str, Any]:
    return of(far_end, {"event": "mark", "mark": {"name": name}})


def sound(far_end: FarEnd, ms: int) -> bytes:
    return far_end.encode(tone(far_end.rate * ms // 1000))


def heard(far_end: FarEnd) -> Pcm:
    """What was played, without the silence at its ends."""
    played = far_end.player.sound()
    loud = np.flatnonzero(np.abs(played) > 8)
    return played[loud[0] : loud[-1] + 1] if len(loud) else played[:0]


# --- the player ---


@given(st.lists(st.integers(1, 500), max_size=30), st.integers(0, 100), st.data())
def test_all_that_is_written_is_played_once_and_in_order(
    pieces: list[int], jitter_ms: int, data: st.DataObject
) -> None:
    player, now, position = Player(8000, jitter_ms), 0.0, 0
    for number, size in enumerate(pieces):
        player.write(np.arange(position + 1, position + size + 1, dtype=np.int16), now)
        position += size
        player.mark(str(number))
        if data.draw(st.booleans()):
            now += 0.02
            player.tick(now)
    for _ in range(110):
        now += 0.02
        player.tick(now)
    played = player.sound()
    assert played[played > 0].tolist() == list(range(1, position + 1))
    assert player.reached() == [str(n) for n in range(len(pieces))]
    assert player.queued == 0


def test_playing_begins_after_the_jitter_buffers_time_and_again_after_silence() -> None:
    player = Player(8000, 60)
    for begin in (0.0, 2.0):
        player.write(tone(320, 1), begin)
        loud = [player.tick(begin + 0.02 * n).any() for n in range(8)]
        assert loud == [False] * 3 + [True] * 2 + [False] * 3
        for n in range(8, 50):
            player.tick(begin + 0.02 * n)
    assert player.holes == 0


def test_a_hole_is_counted_where_sound_goes_on_and_not_where_it_ended() -> None:
    player = Player(8000)
    now = 0.0
    for frames, silent in ((2, 3), (2, 40), (1, 0)):
        player.write(tone(160 * frames), now)
        for _ in range(frames + silent):
            now += 0.02
            player.tick(now)
    assert (player.holes, player.hole_ticks) == (1, 3)


def test_a_mark_is_reached_when_the_sound_before_it_is_over() -> None:
    player = Player(8000)
    player.mark("nothing before")
    assert player.reached() == ["nothing before"]
    player.write(tone(320), 0)
    player.mark("forty")
    reached = []
    for n in range(1, 5):
        player.tick(n * 0.02)
        reached.append(player.reached())
    assert reached == [[], [], ["forty"], []]


def test_what_is_cleared_is_not_played_and_its_marks_are_told() -> None:
    player = Player(8000)
    player.write(tone(320), 0)
    player.mark("a")
    player.write(tone(320), 0)
    player.mark("b")
    player.tick(0.02)
    assert player.clear() == ["a", "b"]
    player.tick(0.04)
    assert np.count_nonzero(player.sound()) <= 160
    assert player.reached() == []


def test_sound_beyond_the_room_is_dropped() -> None:
    player = Player(8000, room_ms=100)
    player.write(tone(1000), 0)
    assert (player.queued, player.dropped) == (800, 200)


# --- all ---


@pytest.mark.parametrize("kind", FAR_ENDS.values(), ids=FAR_ENDS)
def test_whatever_an_application_sends_does_not_raise(kind: type[FarEnd]) -> None:
    @settings(max_examples=60)
    @given(st.lists(st.one_of(st.text(), st.binary(), _hostile()), max_size=6))
    def send(messages: list[Message]) -> None:
        clock = Clock(kind())
        for message in messages:
            clock.receive(message)
            clock.wait(20)

    send()


def _hostile() -> st.SearchStrategy[str]:
    """JSON with the right names and wrong values."""
    value = st.recursive(
        st.one_of(st.none(), st.integers(), st.text(max_size=3), st.just("barge_in")),
        lambda inner: st.one_of(
            st.lists(inner, max_size=2), st.dictionaries(st.sampled_from(NAMES), inner, max_size=3)
        ),
        max_leaves=6,
    )
    verb = st.sampled_from(VERBS)
    return st.builds(
        lambda verbs, more: json.dumps({**more, **verbs}),
        st.dictionaries(st.sampled_from(("event", "action", "type", "command")), verb),
        st.dictionaries(st.sampled_from(NAMES), value, max_size=5),
    )


NAMES = ("media", "payload", "mark", "name", "parameters", "entities", "seq", "correlation_id")
VERBS = ("media", "mark", "clear", "notify", "opened", "event", "disconnect", "playAudio", "closed")


@pytest.mark.parametrize("kind", [Twilio, Telnyx, Plivo, Vonage, AudioSocket, ChanWebSocket])
def test_the_caller_is_sent_as_spoken_and_silence_after(kind: type[FarEnd]) -> None:
    clock = Clock(kind())
    far_end = clock.far_end
    said = tone(far_end.rate // 10)
    far_end.say(said)
    far_end.messages_to_send()
    clock.wait(200)
    payloads = []
    for message in far_end.messages_to_send():
        if isinstance(message, bytes):
            payloads.append(message[3:] if isinstance(far_end, AudioSocket) else message)
        else:
            payloads.append(base64.b64decode(json.loads(message)["media"]["payload"]))
    got = far_end.decode(b"".join(payloads))
    assert len(payloads) == 10
    error = got[: len(said)].astype(int) - said
    assert np.abs(error).max() <= (0 if far_end.encoding == "l16" else 256)
    assert np.abs(got[len(said) :]).max() <= 8


# --- Twilio ---


def test_twilio_says_connected_and_start_then_numbers_everything_as_strings() -> None:
    clock = Clock(Twilio())
    clock.wait(60)
    connected, start, *rest = sent(clock.far_end)
    assert connected == {"event": "connected", "protocol": "Call", "version": "1.0.0"}
    assert start["start"]["mediaFormat"]["encoding"] == "audio/x-mulaw"
    assert [m["sequenceNumber"] for m in (start, *rest)] == ["1", "2", "3", "4"]
    assert [m["media"]["chunk"] for m in rest] == ["1", "2", "3"]
    assert [m["media"]["timestamp"] for m in rest] == ["0", "20", "40"]


def test_twilio_plays_messages_of_any_length_and_gives_back_marks_when_played() -> None:
    clock = Clock(Twilio(jitter_ms=60))
    far_end = clock.far_end
    payload = sound(far_end, 150)
    for piece in (payload[:7], payload[7:900], payload[900:]):
        clock.receive(of(far_end, media(piece)))
    clock.receive(mark(far_end, "end"))
    clock.wait(200)
    assert events(far_end) == ["connected", "start"]
    clock.wait(20)
    assert events(far_end) == ["mark"]
    assert heard(far_end).tolist() == far_end.decode(payload)[1:].tolist()
    assert not far_end.faults


def test_twilio_gives_back_all_marks_at_once_when_cleared() -> None:
    clock = Clock(Twilio())
    far_end = clock.far_end
    for name in ("a", "b", "c"):
        clock.receive(of(far_end, media(sound(far_end, 100))), mark(far_end, name))
    clock.wait(100)
    assert events(far_end) == ["connected", "start"]
    clock.receive(of(far_end, {"event": "clear"}))
    names = [m["mark"]["name"] for m in sent(far_end) if m["event"] == "mark"]
    assert names == ["a", "b", "c"]
    clock.wait(200)
    assert len(heard(far_end)) <= 8000 * 60 // 1000
    clock.receive(mark(far_end, "nothing queued"))
    assert events(far_end) == ["mark"]


def test_twilio_notices_what_is_not_its_protocol() -> None:
    clock = Clock(Twilio())
    clock.receive(b"\1\2", "nonsense", {"event": "playAudio", "streamSid": "other"})
    clock.receive(of(clock.far_end, {"event": "media", "media": {"payload": "!"}}))
    assert sorted(clock.far_end.faults) == [
        "a binary message",
        "a payload that is not base64",
        "a text message that is not a JSON object",
        "no streamSid of this stream",
        "unknown event playAudio",
    ]


def test_keys_and_the_end_are_told() -> None:
    clock = Clock(Twilio())
    clock.far_end.press("5")
    clock.far_end.hang_up()
    *_, dtmf, stop = sent(clock.far_end)
    assert dtmf["dtmf"] == {"track": "inbound_track", "digit": "5"}
    assert stop["event"] == "stop"
    assert clock.far_end.closed
    assert clock.far_end.get_timer() is None


# --- Telnyx, Exotel, Plivo ---


def test_telnyx_media_may_come_out_of_order_and_its_chunks_tell() -> None:
    clock = Clock(Telnyx(disorder=0.3))
    clock.wait(2000)
    chunks = [int(m["media"]["chunk"]) for m in sent(clock.far_end) if m["event"] == "media"]
    assert chunks != sorted(chunks)
    assert abs(len(chunks) - 100) <= 1
    assert sorted(chunks) == sorted(set(chunks))


def test_telnyx_asks_for_20_ms_at_least_in_a_message() -> None:
    clock = Clock(Telnyx(encoding="l16", rate=16_000))
    clock.receive(media(sound(clock.far_end, 20)), media(sound(clock.far_end, 10)))
    assert sum(clock.far_end.faults.values()) == 1


def test_exotel_speaks_and_asks_for_a_tenth_of_a_second_at_a_time() -> None:
    clock = Clock(Exotel())
    far_end = clock.far_end
    clock.wait(300)
    timestamps = [m["media"]["timestamp"] for m in sent(far_end) if m["event"] == "media"]
    assert timestamps == ["0", "100", "200"]
    stream = {"stream_sid": far_end.facts.stream_id}
    clock.receive(media(bytes(1600), **stream))
    assert not far_end.faults
    clock.receive(media(bytes(3300), **stream), media(bytes(960), **stream))
    assert sorted(far_end.faults) == [
        "a chunk of less than 100 ms",
        "a chunk that is no multiple of 320 bytes",
    ]


def test_an_exotel_piece_that_is_short_leaves_a_hole() -> None:
    clock = Clock(Exotel(jitter_ms=0))
    odd = np.full(1700, 1000, np.int16).tobytes()
    clock.receive(media(odd, stream_sid=clock.far_end.facts.stream_id))
    clock.wait(400)
    played = clock.far_end.player.sound()
    assert np.count_nonzero(played) == 1700
    assert clock.far_end.player.queued == 0


def test_plivo_tells_of_checkpoints_played_and_not_of_those_cleared() -> None:
    clock = Clock(Plivo(jitter_ms=0))
    far_end = clock.far_end
    stream = {"streamId": far_end.facts.stream_id}
    inner = {"contentType": "audio/x-mulaw", "sampleRate": 8000}
    for name in ("one", "two"):
        play = media(sound(far_end, 40))
        play["media"] |= inner
        clock.receive({**play, "event": "playAudio"})
        clock.receive({"event": "checkpoint", "name": name, **stream})
    clock.wait(60)
    told = [m for m in sent(far_end) if m["event"] == "playedStream"]
    assert [m["name"] for m in told] == ["one"]
    clock.receive({"event": "clearAudio", **stream})
    assert events(far_end) == ["clearedAudio"]
    clock.wait(100)
    assert events(far_end) == []
    clock.receive({"event": "sendDTMF", "dtmf": "12#", **stream})
    assert far_end.pressed == "12#"
    assert not far_end.faults
    clock.receive({"event": "playAudio", **media(bytes(160))})
    assert far_end.faults


# --- Vonage ---


def test_vonage_takes_20_ms_messages_and_about_a_minute_of_them() -> None:
    clock = Clock(Vonage())
    far_end = clock.far_end
    assert sent(far_end)[0]["content-type"] == "audio/l16;rate=16000"
    for _ in range(3100):
        far_end.receive(bytes(640), clock.now)
    assert far_end.player.queued == 3072 * 320
    assert far_end.player.dropped == 28 * 320
    assert not far_end.faults
    clock.receive(bytes(1280))
    assert far_end.faults == {"sound that is not 20 ms": 1}


def test_vonage_notifies_with_the_payload_and_says_when_it_cleared() -> None:
    clock = Clock(Vonage(jitter_ms=0))
    far_end = clock.far_end
    sent(far_end)
    clock.receive(sound(far_end, 20), {"action": "notify", "payload": {"mark": "0.480"}})
    clock.wait(40)
    assert sent(far_end) == [{"event": "websocket:notify", "payload": {"mark": "0.480"}}]
    clock.receive(sound(far_end, 20), {"action": "notify", "payload": {"mark": "2"}})
    clock.receive({"action": "clear"})
    clock.wait(40)
    assert sent(far_end) == [{"event": "websocket:cleared"}]


# --- Genesys ---


def reply(far_end: Genesys, number: int, kind: str, **parameters: Any) -> dict[str, Any]:
    head = {"version": "2", "id": far_end.facts.stream_id, "type": kind, "seq": number}
    return {**head, "clientseq": 1, "parameters": parameters}


OPENED = {
    "startPaused": False,
    "media": [{"type": "audio", "format": "PCMU", "channels": ["external"], "rate": 8000}],
}


def test_genesys_sends_nothing_but_open_until_it_is_opened() -> None:
    far_end = Genesys(jitter_ms=0)
    clock = Clock(far_end)
    clock.wait(400)
    (opening,) = far_end.messages_to_send()
    assert json.loads(opening)["type"] == "open"
    clock.receive(reply(far_end, 1, "opened", **OPENED))
    clock.wait(400)
    messages = far_end.messages_to_send()
    assert [len(m) for m in messages if isinstance(m, bytes)] == [1600, 1600]
    texts = [json.loads(m) for m in messages if isinstance(m, str)]
    assert [(m["type"], m["seq"], m["serverseq"]) for m in texts] == [("ping", 2, 1)]


def test_genesys_cuts_on_barge_in_and_tells_when_it_plays() -> None:
    far_end = Genesys(jitter_ms=0)
    clock = Clock(far_end)
    clock.receive(reply(far_end, 1, "opened", **OPENED))
    clock.receive(sound(far_end, 400))
    clock.wait(100)
    barge_in = reply(far_end, 2, "event", entities=[{"type": "barge_in", "data": {}}])
    clock.receive(barge_in)
    clock.wait(60)
    kinds = [m["type"] for m in sent(far_end) if m["type"].startswith("playback")]
    assert kinds == ["playback_started", "playback_completed"]
    assert len(heard(far_end)) <= 800
    assert not far_end.faults


def test_genesys_complains_of_more_than_five_messages_a_second_after_the_first() -> None:
    far_end = Genesys()
    clock = Clock(far_end)
    clock.receive(reply(far_end, 1, "opened", **OPENED))
    for _ in range(40):
        clock.receive(sound(far_end, 200))
        clock.wait(200)
    assert not far_end.faults
    for _ in range(40):
        clock.receive(sound(far_end, 40))
        clock.wait(40)
    assert far_end.faults["more than 5 messages of sound a second"] in range(5, 9)
    assert next(m["parameters"]["code"] for m in sent(far_end) if m["type"] == "error") == 429


def test_genesys_notices_wrong_numbers_and_closes_when_asked() -> None:
    far_end = Genesys()
    clock = Clock(far_end)
    clock.receive(reply(far_end, 2, "opened", **OPENED))
    assert far_end.faults == {"a message out of sequence": 1}
    clock.receive(reply(far_end, 1, "opened", **OPENED))
    outputs = {"outputVariables": {"intent": "billing"}}
    clock.receive(reply(far_end, 2, "disconnect", reason="completed", **outputs))
    assert sent(far_end)[-1]["type"] == "close"
    clock.receive(reply(far_end, 3, "closed"))
    assert far_end.closed
    assert far_end.outputs == {"intent": "billing"}


# --- Asterisk ---


def test_audiosocket_names_its_call_and_takes_packets_however_they_are_cut() -> None:
    far_end = AudioSocket()
    clock = Clock(far_end)
    assert far_end.messages_to_send()[0][:3] == b"\x01\x00\x10"
    payload = sound(far_end, 20)
    data = 2 * (b"\x10" + len(payload).to_bytes(2, "big") + payload)
    for n in range(0, len(data), 101):
        clock.receive(data[n : n + 101])
    clock.wait(60)
    assert np.count_nonzero(far_end.player.sound()) > 300
    far_end.press("#")
    assert far_end.messages_to_send()[-1] == b"\x03\x00\x01#"
    clock.receive(b"\0\0\0")
    assert far_end.closed


def test_audiosocket_plays_what_came_and_drops_what_is_too_much() -> None:
    clock = Clock(AudioSocket())
    for _ in range(40):
        clock.receive(b"\x10\x01\x40" + bytes(320))
    assert clock.far_end.player.dropped == 15 * 160


def chan(**options: Any) -> tuple[ChanWebSocket, Clock, Callable[..., None]]:
    far_end = ChanWebSocket(**options)
    clock = Clock(far_end)

    def command(name: str, **more: Any) -> None:
        clock.receive({"command": name, **more})

    return far_end, clock, command


def test_chan_websocket_says_its_format_in_words_or_json() -> None:
    far_end, _, _ = chan(encoding="l16", rate=16_000)
    (start,) = sent(far_end)
    assert (start["event"], start["format"], start["optimal_frame_size"]) == (
        "MEDIA_START",
        "slin16",
        640,
    )
    far_end, _, _ = chan(plain=True)
    (text,) = far_end.messages_to_send()
    assert isinstance(text, str)
    assert text.split()[0] == "MEDIA_START"
    assert "format:ulaw" in text
    assert "optimal_frame_size:160" in text


def test_chan_websocket_drops_what_is_no_whole_frame_unless_it_buffers() -> None:
    far_end, clock, command = chan()
    clock.receive(sound(far_end, 30))
    assert far_end.player.queued == 160
    assert far_end.faults
    command("START_MEDIA_BUFFERING")
    clock.receive(sound(far_end, 30), sound(far_end, 30))
    assert far_end.player.queued == 160 + 480
    clock.receive(sound(far_end, 10))
    command("STOP_MEDIA_BUFFERING", correlation_id="file")
    assert far_end.player.queued == 160 + 480 + 160
    clock.wait(140)
    last = [m for m in sent(far_end) if m["event"] == "MEDIA_BUFFERING_COMPLETED"]
    assert [m["correlation_id"] for m in last] == ["file"]


def test_chan_websocket_says_stop_at_900_frames_and_go_on_below_800() -> None:
    far_end, clock, _ = chan()
    for _ in range(11):
        clock.receive(sound(far_end, 2000))
    assert far_end.faults == {"sound when the queue was full": 1}
    assert events(far_end) == ["MEDIA_START", "MEDIA_XOFF"]
    clock.wait(4020)
    assert events(far_end) == []
    clock.wait(20)
    assert events(far_end) == ["MEDIA_XON"]


def test_chan_websocket_forgets_sound_and_marks_when_flushed_and_keeps_them_paused() -> None:
    far_end, clock, command = chan()
    clock.receive(sound(far_end, 100))
    command("MARK_MEDIA", correlation_id="a")
    command("PAUSE_MEDIA")
    clock.wait(200)
    assert not far_end.player.sound().any()
    command("CONTINUE_MEDIA")
    clock.wait(120)
    marks = [m for m in sent(far_end) if m["event"] == "MEDIA_MARK_PROCESSED"]
    assert [m["correlation_id"] for m in marks] == ["a"]
    clock.receive(sound(far_end, 100))
    command("MARK_MEDIA", correlation_id="b")
    command("REPORT_QUEUE_DRAINED")
    command("FLUSH_MEDIA")
    clock.wait(120)
    assert events(far_end) == ["QUEUE_DRAINED"]
    assert not far_end.faults


def test_chan_websocket_hangs_up_over_a_message_too_long() -> None:
    far_end, clock, _ = chan()
    clock.receive(bytes(65_501))
    assert far_end.closed


# --- over a connection ---


async def application(handler: Callable[[web.WebSocketResponse], Any]) -> TestServer:
    async def handle(request: web.Request) -> web.WebSocketResponse:
        socket = web.WebSocketResponse()
        await socket.prepare(request)
        await handler(socket)
        return socket

    app = web.Application()
    app.router.add_get("/stream", handle)
    server = TestServer(app)
    await server.start_server()
    return server


async def test_a_call_over_a_socket_is_played_late_by_the_way_and_kept(nothing_left: None) -> None:
    """The application echoes what it hears."""
    got: list[str] = []

    async def echo(socket: web.WebSocketResponse) -> None:
        async for message in socket:
            read = json.loads(message.data)
            got.append(read["event"])
            if read["event"] == "media":
                await socket.send_json({**read, "event": "media"})

    server = await application(echo)
    call = FarEndCall(Twilio(jitter_ms=40), Way(delay_ms=50, jitter_ms=10))
    try:
        await call.start(str(server.make_url("/stream").with_scheme("ws")))
        call.say(tone(2400), 24_000)
        await call.said()
        player = call.far_end.player
        await until(lambda: np.any(np.abs(player.sound()) > 1000))
        played = player.sound()
        # Two ways of 40 ms or more, and the jitter buffer.
        assert np.flatnonzero(np.abs(played) > 1000)[0] >= 8 * (2 * 40 + 40)
    finally:
        await call.close()
        await server.close()
    assert got[:2] == ["connected", "start"]
    assert got[-1] == "stop"


async def test_a_call_ends_when_the_application_closes_the_socket(nothing_left: None) -> None:
    async def close(socket: web.WebSocketResponse) -> None:
        await socket.receive()

    server = await application(close)
    call = FarEndCall(Twilio())
    await call.start(str(server.make_url("/stream").with_scheme("ws")))
    await asyncio.wait_for(call.ended.wait(), HANGS_S)
    await call.close()
    await server.close()


async def test_a_stream_that_is_not_taken_is_refused(nothing_left: None) -> None:
    server = await application(lambda socket: asyncio.sleep(0))
    with pytest.raises(Refused):
        await FarEndCall(Twilio()).start(str(server.make_url("/other").with_scheme("ws")))
    await server.close()
    with pytest.raises(Refused):
        await FarEndCall(AudioSocket()).start("tcp://127.0.0.1:1")


async def test_audiosocket_goes_over_tcp(nothing_left: None) -> None:
    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readexactly(19)
        while (head := await reader.readexactly(3))[0]:
            payload = await reader.readexactly(int.from_bytes(head[1:], "big"))
            writer.write(head + payload)
        writer.close()

    server = await asyncio.start_server(echo, "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()
    call = FarEndCall(AudioSocket())
    await call.start(f"tcp://{host}:{port}")
    call.say(at_rate(tone(2400), 8_000, 8_000), 8_000)
    await asyncio.sleep(0.5)
    await call.close()
    server.close()
    await server.wait_closed()
    assert np.abs(call.far_end.player.sound()).max() > 7000
