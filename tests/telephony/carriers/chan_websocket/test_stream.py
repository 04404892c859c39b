import asyncio
import json
import string

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from offhook.telephony.carriers.chan_websocket.stream import (
    MAX_MESSAGE_BYTES,
    PASSTHROUGH_LEAD_MS,
    ChanWebSocketStream,
)
from offhook.telephony.carriers.leg_io import CarrierLeg
from offhook.telephony.carriers.streams.stream import (
    Answer,
    CarrierError,
    Cleared,
    Congested,
    DtmfReceived,
    Event,
    Format,
    Message,
    Played,
    Sound,
    Started,
)

CHANNEL = "WebSocket/offhook/0x7f3a1c0042b0"
START = (
    f"MEDIA_START connection_id:offhook channel:{CHANNEL} channel_id:pbx-1763766000.12 "
    "format:ulaw optimal_frame_size:160 ptime:20"
)
START_JSON = json.dumps(
    {
        "event": "MEDIA_START",
        "connection_id": "offhook",
        "channel": CHANNEL,
        "channel_id": "pbx-1763766000.12",
        "format": "slin16",
        "optimal_frame_size": 640,
        "ptime": 20,
        "channel_variables": {
            "DIALEDPEERNUMBER": "offhook/c(slin16)f(json)",
            "MEDIA_WEBSOCKET_CONNECTION_ID": "offhook",
            "MEDIA_WEBSOCKET_OPTIMAL_FRAME_SIZE": "640",
            "caller": "+4930123456",
            "called": "100",
        },
    }
)
PCMU = Format("pcmu", 8000)
PROBE = {False: "MARK_MEDIA probe", True: {"command": "MARK_MEDIA", "correlation_id": "probe"}}


def say(as_json: bool, event: str, **fields: object) -> str:
    """As Asterisk says it in either form."""
    if as_json:
        return json.dumps({"event": event, "channel_id": "pbx-1763766000.12", **fields})
    if "correlation_id" in fields:
        return f"{event} {fields['correlation_id']}".strip()
    return " ".join([event, *(f"{key}:{value}" for key, value in fields.items())])


def up(as_json: bool = False, marks: bool = True) -> ChanWebSocketStream:
    """A stream that has been started; `marks`: Asterisk has them."""
    stream = ChanWebSocketStream()
    stream.receive(START_JSON if as_json else START)
    if marks:
        probe = say(as_json, "MEDIA_MARK_PROCESSED", correlation_id="probe")
        assert stream.receive(probe) == []
    return stream


def commands(messages: list[Message]) -> list[object]:
    """JSON read, words as they are."""
    texts = [m for m in messages if isinstance(m, str)]
    assert len(texts) == len(messages)
    assert all(len(text.encode()) <= 128 for text in texts)
    return [json.loads(text) if text.startswith("{") else text for text in texts]


def answers(events: list[Event]) -> list[object]:
    return commands([event.message for event in events if isinstance(event, Answer)])


either = pytest.mark.parametrize("as_json", [False, True], ids=["words", "json"])


def test_a_start_in_words_tells_the_channel_and_its_format() -> None:
    events = ChanWebSocketStream().receive(START)
    assert events[0] == Started(CHANNEL, "pbx-1763766000.12", PCMU, PCMU)
    assert answers(events) == ["ANSWER", "MARK_MEDIA probe"]
    assert len(events) == 3


def test_a_start_in_json_tells_the_variables_of_the_channel_too() -> None:
    slin16 = Format("l16", 16000)
    events = ChanWebSocketStream().receive(START_JSON)
    assert events[0] == Started(
        CHANNEL,
        "pbx-1763766000.12",
        slin16,
        slin16,
        caller="+4930123456",
        called="100",
        parameters=json.loads(START_JSON)["channel_variables"],
    )
    assert answers(events) == [{"command": "ANSWER"}, PROBE[True]]


def test_the_first_versions_told_no_channel_id() -> None:
    start = START.replace("channel_id:pbx-1763766000.12 ", "")
    event = ChanWebSocketStream().receive(start)[0]
    assert isinstance(event, Started)
    assert event.call_id == event.stream_id == CHANNEL


def test_the_url_may_tell_who_calls() -> None:
    stream = ChanWebSocketStream({"caller": "alice", "called": "sales", "x": "1\n2"})
    event = stream.receive(START)[0]
    assert isinstance(event, Started)
    assert (event.caller, event.called) == ("alice", "sales")
    assert event.parameters == {"caller": "alice", "called": "sales", "x": "1 2"}


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("ulaw", PCMU),
        ("alaw", Format("pcma", 8000)),
        ("opus", Format("opus", 48000)),
        ("slin", Format("l16", 8000)),
        ("slin16", Format("l16", 16000)),
        ("slin24", Format("l16", 24000)),
    ],
)
def test_formats_go_by_the_names_that_asterisk_gives_them(name: str, expected: Format) -> None:
    event = ChanWebSocketStream().receive(START.replace("ulaw", name))[0]
    assert isinstance(event, Started)
    assert event.format_in == event.format_out == expected


@pytest.mark.parametrize("name", ["g722", "gsm", "slin12", "slin48", "g729", ""])
def test_a_format_that_is_not_ours_is_told_with_its_remedy(name: str) -> None:
    with pytest.raises(CarrierError, match=r"c\(slin16\)"):
        ChanWebSocketStream().receive(START.replace("ulaw", name))


def test_media_goes_as_it_is_both_ways() -> None:
    stream = up()
    assert stream.receive(b"\x7f" * 160) == [Sound(b"\x7f" * 160)]
    assert stream.receive(b"") == []
    assert stream.sound(b"\x7f" * 160) == [b"\x7f" * 160]


def test_media_that_a_busy_asterisk_sends_before_its_start_is_dropped() -> None:
    stream = ChanWebSocketStream()
    assert stream.receive(b"\x7f" * 160) == []
    assert isinstance(stream.receive(START)[0], Started)
    assert stream.receive(b"\x7f" * 160) == [Sound(b"\x7f" * 160)]


@either
def test_marks_come_back_by_their_names(as_json: bool) -> None:
    stream = up(as_json)
    [mark] = commands(stream.mark("3.4800"))
    expected = {"command": "MARK_MEDIA", "correlation_id": "3.4800"}
    assert mark == (expected if as_json else "MARK_MEDIA 3.4800")
    processed = say(as_json, "MEDIA_MARK_PROCESSED", correlation_id="3.4800")
    assert stream.receive(processed) == [Played("3.4800")]
    assert stream.receive(say(as_json, "MEDIA_MARK_PROCESSED", correlation_id="")) == []


@either
def test_marks_are_relied_on_once_one_has_come_back(as_json: bool) -> None:
    stream = up(as_json, marks=False)
    assert not stream.acknowledges
    assert stream.mark("1.480") == []
    assert up(as_json).acknowledges
    assert up(as_json).mark("1.480") != []
    assert not ChanWebSocketStream().acknowledges  # one stream tells nothing of another


@either
def test_what_is_queued_can_be_flushed(as_json: bool) -> None:
    expected = {"command": "FLUSH_MEDIA"} if as_json else "FLUSH_MEDIA"
    assert commands(up(as_json).clear()) == [expected]
    assert up(as_json).clears


@either
def test_hanging_up_is_a_command(as_json: bool) -> None:
    expected = {"command": "HANGUP"} if as_json else "HANGUP"
    assert commands(up(as_json).hang_up("done")) == [expected]
    assert ChanWebSocketStream().hang_up("never started") == []


@either
def test_a_full_queue_stops_us_until_it_is_shorter(as_json: bool) -> None:
    stream = up(as_json)
    assert stream.receive(say(as_json, "MEDIA_XOFF")) == [Congested(True)]
    assert stream.receive(say(as_json, "MEDIA_XON")) == [Congested(False)]


@either
def test_a_drained_queue_is_told(as_json: bool) -> None:
    assert up(as_json).receive(say(as_json, "QUEUE_DRAINED")) == [Cleared()]


@either
@pytest.mark.parametrize("digit", "0123456789*#ABCDd")
def test_keys_are_told(as_json: bool, digit: str) -> None:
    assert up(as_json).receive(say(as_json, "DTMF_END", digit=digit)) == [
        DtmfReceived(digit.upper())
    ]


def test_a_key_may_be_followed_by_the_channel() -> None:
    line = "DTMF_END digit:# channel_id:pbx-1763766000.12"
    assert up().receive(line) == [DtmfReceived("#")]


@either
@pytest.mark.parametrize("digit", ["", "12", "x", "\x00"])
def test_what_is_no_key_is_counted(as_json: bool, digit: str) -> None:
    stream = up(as_json)
    assert stream.receive(say(as_json, "DTMF_END", digit=digit)) == []
    assert stream.malformed == 1


@pytest.mark.parametrize(
    "line",
    [
        "STATUS channel_id:pbx-1.2 queue_length:43 xon_level:800 xoff_level:900 queue_full:false "
        "bulk_media:true media_paused:false",
        "MEDIA_BUFFERING_COMPLETED 61ea9311",
        "ERROR channel_id:pbx-1.2 error_text:Unable to parse JSON command",
        "SOMETHING_NEW a:b c",
        START,
    ],
)
def test_other_events_change_nothing(line: str) -> None:
    stream = up()
    assert stream.receive(line) == []
    assert stream.malformed == 0
    assert stream.clears
    assert stream.acknowledges


def test_events_before_the_start_are_passed_over() -> None:
    stream = ChanWebSocketStream()
    for line in ("MEDIA_XOFF", "DTMF_END digit:1", "QUEUE_DRAINED", "MEDIA_MARK_PROCESSED 1"):
        assert stream.receive(line) == []
    assert isinstance(stream.receive(START)[0], Started)


@pytest.mark.parametrize(
    "start",
    [
        START.replace("ulaw", "opus").replace("size:160", "size:0"),
        START + " passthrough:true unbuffered:false",
        START + " passthrough:false unbuffered:true",
        START_JSON[:-1] + ', "passthrough": true, "unbuffered": false}',
    ],
)
def test_sound_that_passes_through_is_sent_in_time_and_not_flushed(start: str) -> None:
    stream = ChanWebSocketStream()
    assert len(answers(stream.receive(start))) == 1
    assert not stream.acknowledges
    assert not stream.clears
    assert stream.lead_ms == PASSTHROUGH_LEAD_MS < ChanWebSocketStream.lead_ms
    assert stream.mark("1.480") == stream.clear() == []


@either
def test_an_asterisk_that_refuses_the_first_mark_passes_sound_through(as_json: bool) -> None:
    stream = up(as_json, marks=False)
    text = "MARK_MEDIA not supported in passthrough mode"
    assert stream.receive(say(as_json, "ERROR", channel_id="pbx-1.2", error_text=text)) == []
    assert not stream.clears
    assert stream.lead_ms == PASSTHROUGH_LEAD_MS


def test_frames_longer_than_our_messages_are_put_together_by_asterisk() -> None:
    stream = ChanWebSocketStream()
    start = START.replace("size:160 ptime:20", "size:240 ptime:30")
    assert answers(stream.receive(start))[-1] == "START_MEDIA_BUFFERING"
    assert commands(stream.clear()) == ["FLUSH_MEDIA", "START_MEDIA_BUFFERING"]
    ten = START.replace("size:160 ptime:20", "size:80 ptime:10")
    assert "START_MEDIA_BUFFERING" not in answers(ChanWebSocketStream().receive(ten))


def test_a_second_channel_on_the_same_socket_is_refused() -> None:
    stream = up()
    with pytest.raises(CarrierError, match="second channel"):
        stream.receive(START.replace("0x7f3a", "0x7f3b"))


@pytest.mark.parametrize("start", ["MEDIA_START", '{"event": "MEDIA_START", "format": "ulaw"}'])
def test_a_start_without_a_channel_is_refused(start: str) -> None:
    with pytest.raises(CarrierError, match="names no channel"):
        ChanWebSocketStream().receive(start)


def test_messages_that_are_too_long_are_not_read() -> None:
    stream = up()
    for message in ("MEDIA_XON " + "x" * MAX_MESSAGE_BYTES, bytes(MAX_MESSAGE_BYTES + 1)):
        with pytest.raises(CarrierError):
            stream.receive(message)


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        "{",
        "{}",
        '{"event": 1}',
        '{"event": ["MEDIA_XON"]}',
        "[]",
        "media_xon",
        "ä",
        "\ud800",
    ],
)
def test_what_is_no_event_is_counted(text: str) -> None:
    stream = up()
    assert stream.receive(text) == []
    assert stream.malformed == 1


def test_deeply_nested_json_is_counted() -> None:
    stream = up()
    assert stream.receive('{"event":' + "[" * 60_000) == []
    assert stream.malformed == 1


class Call:
    """A stream with its leg, ticked by hand; `said` is what goes to Asterisk."""

    def __init__(self) -> None:
        self.said: list[Message] = []
        self.now = 100.0
        self.leg = CarrierLeg("call", ChanWebSocketStream(), self.said.append)
        self.receive(START)
        self.receive("MEDIA_MARK_PROCESSED probe")
        assert self.sent() == ["ANSWER", "MARK_MEDIA probe"]

    def receive(self, message: Message) -> None:
        self.leg.receive(message, self.now)

    def tick(self) -> list[Message]:
        """What 20 ms bring."""
        self.now += 0.02
        self.leg.tick(self.now)
        return self.sent()

    def sent(self) -> list[Message]:
        said, self.said[:] = list(self.said), []
        return said


def media(messages: list[Message]) -> list[int]:
    return [len(message) for message in messages if isinstance(message, bytes)]


def test_a_leg_sends_whole_frames_ahead_and_flushes_them_when_it_is_broken_into() -> None:
    call = Call()
    call.leg.playout.write(np.full(24_000, 1000, np.int16))
    first = call.tick()
    assert media(first) == [160] * 6  # lead_ms
    assert any(isinstance(m, str) and m.startswith("MARK_MEDIA ") for m in first)
    for _ in range(10):
        assert set(media(call.tick())) <= {160}
    call.leg.playout.pause()
    assert call.sent() == ["FLUSH_MEDIA"]
    assert media([m for _ in range(10) for m in call.tick()]) == []


def test_a_leg_sends_nothing_while_asterisks_queue_is_full() -> None:
    call = Call()
    call.leg.playout.write(np.full(24_000, 1000, np.int16))
    call.tick()
    call.receive("MEDIA_XOFF")
    assert [m for _ in range(20) for m in call.tick()] == []
    call.receive("MEDIA_XON")
    assert media(call.tick())


async def test_a_leg_hangs_up_by_command() -> None:
    call = Call()
    hanging_up = asyncio.create_task(call.leg.hang_up("done"))
    await asyncio.sleep(0)
    assert call.sent() == ["HANGUP"]
    call.leg.close("the socket is closed")
    await hanging_up


names = st.sampled_from(
    [
        "MEDIA_START",
        "DTMF_END",
        "MEDIA_XOFF",
        "MEDIA_XON",
        "QUEUE_DRAINED",
        "STATUS",
        "ERROR",
        "MEDIA_MARK_PROCESSED",
        "MEDIA_BUFFERING_COMPLETED",
    ]
)
values = st.one_of(
    st.text(max_size=9),
    st.integers(),
    st.booleans(),
    st.none(),
    st.lists(st.integers(), max_size=2),
    st.sampled_from([CHANNEL, "ulaw", "slin16", "opus", "160", "5", "true"]),
)
keys = st.sampled_from(
    [
        "event",
        "channel",
        "channel_id",
        "format",
        "optimal_frame_size",
        "digit",
        "passthrough",
        "channel_variables",
        "correlation_id",
        "error_text",
    ]
)
noise = st.one_of(
    st.text(max_size=60),
    st.text(string.ascii_letters + " :{}", max_size=60),
    st.binary(max_size=40),
    st.builds(lambda e, f: json.dumps({"event": e, **f}), names, st.dictionaries(keys, values)),
    st.builds(lambda e, t: f"{e} {t}", names, st.text(max_size=40)),
    st.sampled_from([START, START_JSON, "DTMF_END digit:1", b"\xff" * 160]),
)


@given(st.lists(noise, max_size=25))
def test_whatever_comes_a_call_starts_once_and_before_its_sound(messages: list[Message]) -> None:
    stream = ChanWebSocketStream()
    events: list[Event] = []
    for message in messages:
        try:
            events += stream.receive(message)
        except CarrierError:
            break
        for said in (*stream.mark("1.2"), *stream.clear(), *stream.hang_up("")):
            assert isinstance(said, str)
    starts = [i for i, event in enumerate(events) if isinstance(event, Started)]
    sounds = [i for i, event in enumerate(events) if isinstance(event, Sound)]
    assert len(starts) <= 1
    assert all(starts and i > starts[0] for i in sounds)
