import struct
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from offhook.telephony.carriers.audiosocket.stream import (
    FIRST_SOUND_TIMEOUT_MS,
    MAX_MALFORMED,
    RATES,
    AudioSocketStream,
)
from offhook.telephony.carriers.streams.stream import (
    Answer,
    CarrierError,
    DtmfReceived,
    Event,
    Format,
    Sound,
    Started,
    Stopped,
)

UUID_TEXT = "6f1e9f5c-3a52-4c0b-9d0e-5b7a3f2c1d00"
UUID = bytes.fromhex("01 0010 6f1e9f5c3a524c0b9d0e5b7a3f2c1d00")
SILENCE = b"\x10\x01\x40" + bytes(320)
"""20 ms at 8 kHz."""
SLIN = Format("l16", 8000)
STARTED = Started(UUID_TEXT, UUID_TEXT, SLIN, SLIN)


def frame(kind: int, payload: bytes = b"") -> bytes:
    return bytes([kind]) + struct.pack(">H", len(payload)) + payload


def pcm(samples: int, first: int = 0) -> bytes:
    return struct.pack(f"<{samples}h", *range(first, first + samples))


CALL = (
    UUID
    + frame(0x10, pcm(160))
    + frame(0x03, b"5")
    + frame(0x10, pcm(160, 160))
    + frame(0x10, pcm(160, 320))
    + frame(0x03, b"#")
    + frame(0x00)
)
"""As Asterisk's application sends it."""
CALL_EVENTS = [
    Answer(SILENCE),
    STARTED,
    Sound(pcm(160)),
    DtmfReceived("5"),
    Sound(pcm(320, 160)),
    DtmfReceived("#"),
    Stopped("Asterisk hung up"),
]


def up(kind: int = 0x10) -> AudioSocketStream:
    """A stream that has been started."""
    stream = AudioSocketStream()
    stream.receive(UUID + frame(kind, pcm(1)))
    assert stream.started
    return stream


def joined(events: list[Event]) -> list[Event]:
    """With sound that follows sound put together, however it was cut."""
    whole: list[Event] = []
    for event in events:
        if isinstance(event, Sound) and whole and isinstance(whole[-1], Sound):
            whole[-1] = Sound(whole[-1].payload + event.payload)
        else:
            whole.append(event)
    return whole


def fed(pieces: list[bytes]) -> list[Event]:
    stream = AudioSocketStream()
    return joined([event for piece in pieces for event in stream.receive(piece)])


def test_a_call_is_told_from_its_uuid_to_its_end() -> None:
    assert fed([CALL]) == CALL_EVENTS


def test_a_frame_may_be_cut_at_any_byte() -> None:
    for place in range(1, len(CALL)):
        assert fed([CALL[:place], CALL[place:]]) == CALL_EVENTS


def test_a_call_may_come_a_byte_at_a_time() -> None:
    assert fed([bytes([byte]) for byte in CALL]) == CALL_EVENTS


@given(st.lists(st.integers(1, len(CALL) - 1), max_size=20, unique=True))
def test_the_same_is_told_however_the_stream_is_cut(places: list[int]) -> None:
    cuts = [0, *sorted(places), len(CALL)]
    assert fed([CALL[start:end] for start, end in pairwise(cuts)]) == CALL_EVENTS


@pytest.mark.parametrize(("kind", "rate"), [(0x10, 8000), (0x12, 16000), (0x13, 24000)])
def test_the_first_sound_decides_the_rate_of_both_directions(kind: int, rate: int) -> None:
    stream = AudioSocketStream()
    stream.receive(UUID)
    coding = Format("l16", rate)
    assert stream.receive(frame(kind, pcm(7))) == [
        Started(UUID_TEXT, UUID_TEXT, coding, coding),
        Sound(pcm(7)),
    ]
    assert stream.sound(pcm(2)) == [frame(kind, pcm(2))]


@pytest.mark.parametrize("kind", [0x11, 0x14, 0x15, 0x16, 0x17, 0x18])
def test_a_rate_that_is_not_ours_is_told_with_its_remedy(kind: int) -> None:
    with pytest.raises(CarrierError, match=rf"{RATES[kind]} Hz.*c\(slin16\)"):
        AudioSocketStream().receive(UUID + frame(kind, pcm(7)))


def test_the_rates_are_those_that_asterisk_has() -> None:
    assert list(RATES) == list(range(0x10, 0x19))
    assert list(RATES.values()) == [8000, 12000, 16000, 24000, 32000, 44100, 48000, 96000, 192000]


def test_silence_answers_the_uuid_and_fills_the_wait_for_the_first_sound() -> None:
    stream = AudioSocketStream()
    assert stream.receive(b"") == []
    assert stream.receive(UUID) == [Answer(SILENCE)]
    assert stream.receive(b"") == [Answer(SILENCE)]
    assert stream.receive(frame(0x12, pcm(3)))[-1] == Sound(pcm(3))
    assert stream.receive(b"") == []


def test_a_caller_who_brings_no_sound_is_taken_to_be_silent_at_8_khz() -> None:
    stream = AudioSocketStream()
    stream.receive(UUID)
    waited = [stream.receive(b"") for _ in range(FIRST_SOUND_TIMEOUT_MS // 20)]
    assert waited == [[Answer(SILENCE)]] * (len(waited) - 1) + [[STARTED]]
    assert stream.receive(b"") == []
    assert stream.receive(frame(0x10, pcm(2))) == [Sound(pcm(2))]


def test_the_longest_frame_is_65535_bytes_and_its_half_sample_is_dropped() -> None:
    stream = up()
    whole = frame(0x10, bytes(65535))
    assert stream.receive(whole[:-1]) == []
    assert stream.receive(whole[-1:]) == [Sound(bytes(65534))]


def test_frames_without_sound_are_passed_over() -> None:
    stream = AudioSocketStream()
    stream.receive(UUID)
    assert stream.receive(frame(0x10) + frame(0x12, b"\x01")) == []
    assert not stream.started
    stream = up()
    assert stream.receive(frame(0x10) + frame(0x11)) == []
    assert stream.receive(frame(0x10, b"\x01")) == []
    assert stream.receive(frame(0x10, pcm(1))) == [Sound(pcm(1))]


def test_the_rate_cannot_change_within_a_call() -> None:
    with pytest.raises(CarrierError, match="from 8000 to 16000 Hz"):
        up().receive(frame(0x12, pcm(4)))


@pytest.mark.parametrize("digit", "0123456789*#ABCD")
def test_keys_are_told(digit: str) -> None:
    assert up().receive(frame(0x03, digit.encode())) == [DtmfReceived(digit)]
    assert up().receive(frame(0x03, digit.lower().encode())) == [DtmfReceived(digit)]


@pytest.mark.parametrize("payload", [b"", b"12", b"x", b"\xff", b"f"])
def test_what_is_no_key_is_counted(payload: bytes) -> None:
    stream = up()
    assert stream.receive(frame(0x03, payload)) == []
    assert stream.malformed == 1


@pytest.mark.parametrize("kind", [0x02, 0x04, 0x0F, 0x19, 0x7F, 0xFE])
def test_frames_that_are_not_known_are_passed_over_and_counted(kind: int) -> None:
    stream = up()
    sound = frame(0x10, pcm(1))
    events = stream.receive(sound + frame(kind, b"x" * 300) + sound + frame(kind))
    assert joined(events) == [Sound(pcm(1) * 2)]
    assert stream.malformed == 2


def test_a_stream_of_nothing_but_unknown_frames_is_given_up() -> None:
    stream = up()
    stream.receive(frame(0x20) * MAX_MALFORMED)
    with pytest.raises(CarrierError, match="invalid AudioSocket frames received"):
        stream.receive(frame(0x20))


@pytest.mark.parametrize(
    ("payload", "reason"),
    [
        (b"", "Asterisk gave up: error 0"),
        (b"\x01", "Asterisk gave up: the caller hung up"),
        (b"\x02", "Asterisk gave up: forwarding failed"),
        (b"\x04", "Asterisk gave up: out of memory"),
        (b"\x03", "Asterisk gave up: the caller hung up, forwarding failed"),
        (b"\x40more", "Asterisk gave up: error 64"),
    ],
)
def test_an_error_of_asterisk_ends_the_call(payload: bytes, reason: str) -> None:
    stream = up()
    events = stream.receive(frame(0x10, pcm(1)) + frame(0xFF, payload) + frame(0x03, b"1"))
    assert events == [Sound(pcm(1)), Stopped(reason)]


def test_after_the_end_nothing_is_heard() -> None:
    stream = up()
    assert stream.receive(b"\x00\x00\x00") == [Stopped("Asterisk hung up")]
    assert stream.receive(frame(0x10, pcm(1)) + b"garbage") == []


def test_the_end_is_told_before_a_payload_that_it_should_not_have() -> None:
    assert up().receive(b"\x00\xff\xff") == [Stopped("Asterisk hung up")]


def test_asterisk_may_hang_up_before_any_sound() -> None:
    stream = AudioSocketStream()
    assert stream.receive(UUID + frame(0x00)) == [Answer(SILENCE), Stopped("Asterisk hung up")]


@pytest.mark.parametrize(
    "data",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        b"\x16\x03\x01",
        frame(0x00),
        SILENCE,
        frame(0x03, b"1"),
        frame(0x01, bytes(15)),
        frame(0x01, bytes(17)),
        b"\x01\xff\xff",
        b"\x10",
    ],
)
def test_what_begins_without_a_uuid_is_given_up_at_once(data: bytes) -> None:
    with pytest.raises(CarrierError):
        AudioSocketStream().receive(data)


def test_the_uuid_may_be_said_twice_but_not_changed() -> None:
    stream = up()
    assert stream.receive(UUID) == []
    with pytest.raises(CarrierError, match="a second UUID"):
        stream.receive(frame(0x01, bytes(16)))


def test_text_is_no_audiosocket() -> None:
    with pytest.raises(CarrierError):
        AudioSocketStream().receive("MEDIA_START")


def test_sound_of_ours_goes_out_as_it_is_with_its_length() -> None:
    stream = up()
    assert stream.sound(pcm(160)) == [b"\x10\x01\x40" + pcm(160)]
    long = pcm(100) * 700
    messages = stream.sound(long)
    assert len(messages) == 3
    received = up().receive(b"".join(m for m in messages if isinstance(m, bytes)))
    assert joined(received) == [Sound(long)]


def test_hanging_up_is_a_frame_of_kind_0() -> None:
    assert up().hang_up("done") == [b"\x00\x00\x00"]


def test_sound_cannot_be_taken_back_or_asked_after() -> None:
    stream = up()
    assert not stream.clears
    assert not stream.acknowledges
    assert stream.needs_silence
    assert stream.lead_ms <= 60
    assert stream.clear() == stream.mark("1.0") == []


frames = st.builds(
    frame,
    st.one_of(st.integers(0, 255), st.sampled_from([0x01, 0x03, 0x10, 0x10, 0x10, 0x12, 0xFF])),
    st.one_of(st.binary(max_size=40), st.sampled_from([b"1", UUID[3:], bytes(320)])),
)


@given(st.booleans(), st.lists(st.one_of(frames, st.binary(max_size=30)), max_size=30))
def test_whatever_comes_a_call_starts_once_and_before_its_sound(
    uuid: bool, pieces: list[bytes]
) -> None:
    stream = AudioSocketStream()
    events: list[Event] = []
    try:
        events += stream.receive(UUID) if uuid else []
        for piece in pieces:
            events += stream.receive(piece)
    except CarrierError:
        pass
    starts = [i for i, event in enumerate(events) if isinstance(event, Started)]
    sounds = [i for i, event in enumerate(events) if isinstance(event, Sound)]
    assert len(starts) <= 1
    assert all(starts and i > starts[0] for i in sounds)
    stops = [i for i, event in enumerate(events) if isinstance(event, Stopped)]
    assert stops in ([], [len(events) - 1])
