import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from offhook.telephony.sip.messages.sdp import (
    MAX_FORMATS,
    MAX_LINES,
    MAX_MEDIA,
    MAX_SDP_CHARACTERS,
    Description,
    Media,
    Origin,
    RtpMap,
    SdpError,
    parse,
)

PHONE = """v=0
o=Desk Phone 3 2890844526 2890842807 IN IP4 10.47.16.5
s=A call
i=nothing we need
u=http://example.com/call
e=j.doe@example.com
c=IN IP4 198.51.100.7
b=CT:512
t=2873397496 2873404696
r=7d 1h 0 25h
z=2882844526 -1h
a=sendonly
a=tool:desk phone 1.0
m=audio 49170/2 RTP/AVP 0 96 101 8
i=speech
c=IN IP4 192.0.2.33
b=AS:80
b=TIAS:64000
a=rtpmap:0 PCMU/8000/1
a=rtpmap:96 Opus/48000/2
a=rtpmap:101 telephone-event/8000
a=fmtp:96 useinbandfec=1; stereo=0
a=fmtp:101 0-16
a=ptime:30
a=maxptime:60
a=rtcp:53020 IN IP4 203.0.113.9
a=rtcp-mux
a=x-vendor:what : this means
m=video 51372 RTP/AVPF 99
a=rtpmap:99 h263-1998/90000
a=recvonly
"""


def sdp(*lines: str) -> str:
    return "\r\n".join(("v=0", "o=- 1 1 IN IP4 192.0.2.1", "s=-", "t=0 0", *lines)) + "\r\n"


def audio(*lines: str) -> Media:
    """The only media of a description with these lines under it."""
    return parse(sdp("c=IN IP4 192.0.2.1", *lines)).resolved()[0]


def test_a_phones_description_is_read() -> None:
    description = parse(PHONE)
    assert description.origin == Origin(2890844526, 2890842807, "10.47.16.5", "Desk Phone 3")
    assert description.name == "A call"
    assert description.connection == "198.51.100.7"
    assert description.bandwidths == ("CT:512",)
    sound, picture = description.media
    assert (sound.kind, sound.port, sound.protocol) == ("audio", 49170, "RTP/AVP")
    assert sound.formats == ("0", "96", "101", "8")
    assert sound.connection == "192.0.2.33"
    assert sound.bandwidths == ("AS:80", "TIAS:64000")
    assert sound.payloads == {
        0: RtpMap("pcmu", 8000),
        96: RtpMap("opus", 48000, 2),
        101: RtpMap("telephone-event", 8000),
        8: RtpMap("pcma", 8000),
    }
    assert sound.fmtp == {96: "useinbandfec=1; stereo=0", 101: "0-16"}
    assert (sound.ptime, sound.maxptime) == (30, 60)
    assert sound.rtcp == (53020, "203.0.113.9")
    assert sound.rtcp_mux
    assert sound.attribute("x-vendor") == "what : this means"
    assert (picture.kind, picture.protocol, picture.rtcp_mux) == ("video", "RTP/AVPF", False)


def test_what_the_session_says_holds_where_a_media_says_nothing() -> None:
    sound, picture = parse(PHONE).resolved()
    assert (sound.connection, sound.direction) == ("192.0.2.33", "sendonly")
    assert (picture.connection, picture.direction) == ("198.51.100.7", "recvonly")


def test_certificate_and_ice_may_stand_at_the_session_level() -> None:
    text = sdp(
        "c=IN IP4 192.0.2.1",
        "a=fingerprint:SHA-256 ab:cd",
        "a=fingerprint:sha-1 ef:01",
        "a=setup:ACTPASS",
        "a=ice-ufrag:x",
        "m=audio 9 UDP/TLS/RTP/SAVPF 0",
        "m=audio 9 UDP/TLS/RTP/SAVPF 0",
        "a=fingerprint:sha-256 23:45",
    )
    first, second = parse(text).resolved()
    assert first.fingerprints == (("sha-256", "AB:CD"), ("sha-1", "EF:01"))
    assert (first.setup, first.attribute("ice-ufrag")) == ("actpass", "x")
    assert second.fingerprints == (("sha-256", "23:45"),)


def test_direction_is_both_ways_when_nothing_is_said() -> None:
    assert audio("m=audio 4000 RTP/AVP 0").direction == "sendrecv"
    assert audio("a=sendonly", "m=audio 4000 RTP/AVP 0", "a=sendrecv").direction == "sendrecv"


def test_static_types_need_no_rtpmap_and_other_numbers_do() -> None:
    assert audio("m=audio 4000 RTP/AVP 8 9 13 97 0 18").payloads == {
        8: RtpMap("pcma", 8000),
        9: RtpMap("g722", 8000),
        13: RtpMap("cn", 8000),
        0: RtpMap("pcmu", 8000),
    }


@pytest.mark.parametrize(
    ("value", "meaning"),
    [
        ("97 PCMU/8000", RtpMap("pcmu", 8000)),
        ("97 pcmu/8000/1", RtpMap("pcmu", 8000)),
        ("97  PCMU / 8000 ", RtpMap("pcmu", 8000)),
        ("97 opus/48000/2/x", RtpMap("opus", 48000, 2)),
        ("97 PCMU", None),
        ("97 PCMU/", None),
        ("97 /8000", None),
        ("97 PCMU/0", None),
        ("97 PCMU/8e3", None),
        ("97", None),
        ("", None),
        ("128 PCMU/8000", None),
        ("-1 PCMU/8000", None),
        ("９７ PCMU/8000", None),
        (f"97 PCMU/{'9' * 5000}", None),
    ],
)
def test_rtpmaps_in_all_their_spellings(value: str, meaning: RtpMap | None) -> None:
    media = audio("m=audio 4000 RTP/AVP 97", f"a=rtpmap:{value}")
    assert media.payloads.get(97) == meaning


def test_the_first_rtpmap_of_a_number_counts() -> None:
    media = audio("m=audio 4000 RTP/AVP 96 96", "a=rtpmap:96 opus/48000/2", "a=rtpmap:96 PCMU/8000")
    assert media.payloads == {96: RtpMap("opus", 48000, 2)}


def test_numbers_that_would_be_taken_for_rtcp_are_left_out() -> None:
    media = audio(
        "m=audio 4000 RTP/AVP 64 72 95 63 96 127 x 128 200",
        *(f"a=rtpmap:{number} opus/48000/2" for number in (64, 72, 95, 63, 96, 127, 128, 200)),
    )
    assert list(media.payloads) == [63, 96, 127]


@pytest.mark.parametrize(
    ("value", "meaning"),
    [
        ("53020", (53020, None)),
        ("53020 IN IP6 2001:db8::9", (53020, "2001:db8::9")),
        ("53020 IN IP4 224.2.1.1/127", (53020, "224.2.1.1")),
        ("53020 IN IP4", (53020, None)),
        ("0", None),
        ("65535", (65535, None)),
        ("65536", None),
        ("x", None),
        ("", None),
    ],
)
def test_rtcp_attributes(value: str, meaning: tuple[int, str | None] | None) -> None:
    assert audio("m=audio 4000 RTP/AVP 0", f"a=rtcp:{value}").rtcp == meaning


@pytest.mark.parametrize("ending", ["\r\n", "\n", "\r", "\n\r", "\r\n\r\n", " \r\n"])
def test_lines_may_end_in_any_way(ending: str) -> None:
    assert parse(PHONE.replace("\n", ending)) == parse(PHONE)


def test_the_last_line_needs_no_end() -> None:
    assert parse(PHONE.rstrip()) == parse(PHONE)
    assert parse(PHONE.encode().decode() + "\r\n\r\n") == parse(PHONE)


def test_unknown_lines_are_skipped_and_unknown_attributes_kept() -> None:
    media = audio(
        "m=audio 4000 RTP/AVP 0", "x=odd", "nonsense", "=", "", "a=", "a=new", "a=more: yes "
    )
    assert media.attributes == (("new", None), ("more", "yes"))


def test_a_description_without_origin_name_or_time_is_still_good() -> None:
    description = parse("v=0\r\nc=IN IP4 192.0.2.1\r\nm=audio 4000 RTP/AVP 0\r\n")
    assert description.origin is None
    assert description.media[0].port == 4000
    for origin in (
        "- x 1 IN IP4 h",
        "- 1 x IN IP4 h",
        "1 1 IN IP4 h",
        f"- 1 {'9' * 5000} IN IP4 h",
    ):
        assert parse(f"v=0\r\no={origin}\r\n").origin is None


def test_ipv6_and_multicast_addresses() -> None:
    assert parse(sdp("c=IN IP6 2001:db8::1")).connection == "2001:db8::1"
    assert parse(sdp("c=IN IP4 224.2.36.42/127/3")).connection == "224.2.36.42"
    assert "c=IN IP6 2001:db8::1\r\n" in str(Description(connection="2001:db8::1"))


def test_a_refused_stream_may_list_nothing() -> None:
    media = parse(sdp("m=video 0 RTP/AVP")).media[0]
    assert (media.port, media.formats) == (0, ())


@pytest.mark.parametrize(
    "text",
    [
        "",
        "\r\n",
        "hello",
        "v=1\r\n",
        "o=- 1 1 IN IP4 192.0.2.1\r\nv=0\r\n",
        sdp("m=audio"),
        sdp("m=audio 4000"),
        sdp("m=audio x RTP/AVP 0"),
        sdp("m=audio 65536 RTP/AVP 0"),
        sdp("m=audio -1 RTP/AVP 0"),
        sdp(f"m=audio {'9' * 5000} RTP/AVP 0"),
        sdp("m=äudio 4000 RTP/AVP 0"),
        sdp("m=audio 4000 RTP/AVP" + " 0" * (MAX_FORMATS + 1)),
        sdp("c=IN IP4"),
        sdp("c=192.0.2.1"),
        sdp("c=IN IP4 /127"),
        sdp(*["m=audio 4000 RTP/AVP 0"] * (MAX_MEDIA + 1)),
        sdp(*["a=x"] * MAX_LINES),
        sdp("a=" + "x" * MAX_SDP_CHARACTERS),
        "{}",
    ],
)
def test_what_is_no_description_is_refused(text: str) -> None:
    with pytest.raises(SdpError):
        parse(text)


def test_keys_are_not_shown() -> None:
    text = sdp("m=audio 4000 RTP/SAVP 0", "a=crypto:1 AES_CM_128_HMAC_SHA1_80 inline:SECRET")
    assert "SECRET" not in repr(parse(text))
    assert "SECRET" in str(parse(text))


WORDS = st.sampled_from(
    [
        *PHONE.splitlines(),
        "v=0",
        "a=sendrecv",
        "a=rtpmap:",
        "a=:x",
        "a= : ",
        "m=audio 0 RTP/AVP",
        "m=AUDIO 5 rtp/savp 0 8 0",
        "c=IN IP6 ::1",
        "o=x 00 01 IN IP4 h",
        "s=",
        "b=",
        "a=crypto:1 X inline:",
        "a=RtpMap:0 PCMU/8000",
    ]
)
ENDINGS = st.sampled_from(["\r\n", "\n", "\r", "\x0b", "\x85", "\u2028", " ", ""])
LINES = st.lists(st.tuples(WORDS | st.text(max_size=12), ENDINGS), max_size=20)
TEXTS = LINES.map(lambda lines: "v=0\r\n" + "".join(word + ending for word, ending in lines))


def read_all(media: Media) -> tuple[object, ...]:
    return (
        media.payloads,
        media.fmtp,
        media.ptime,
        media.maxptime,
        media.rtcp,
        media.setup,
        media.fingerprints,
    )


@given(TEXTS | st.text(max_size=200))
def test_any_text_is_read_the_same_again_or_refused(text: str) -> None:
    try:
        description = parse(text)
    except SdpError:
        return
    assert parse(str(description)) == description
    for media in description.resolved():
        assert set(media.payloads) <= set(range(128))
        assert media.direction in ("sendrecv", "sendonly", "recvonly", "inactive")
        read_all(media)


@pytest.mark.slow
@pytest.mark.parametrize(
    "piece", ["a=x\n", "a=rtpmap:96 opus/48000/2\n", ": ", "0 ", "\r", "=", "a=" + "b=" * 40 + "\n"]
)
@pytest.mark.parametrize("start", ["v=0\n", "v=0\nm=audio 4000 RTP/AVP ", "v=0\nm=audio 1 x 0\na="])
def test_long_texts_take_no_longer_than_their_length(start: str, piece: str) -> None:
    def seconds(length: int) -> float:
        text = (start + piece * length)[:length]
        began = time.process_time()
        try:
            for media in parse(text).resolved():
                read_all(media)
        except SdpError:
            pass
        return time.process_time() - began

    # A quadratic reader would need seconds.
    assert min(seconds(MAX_SDP_CHARACTERS) for _ in range(3)) < 0.25
