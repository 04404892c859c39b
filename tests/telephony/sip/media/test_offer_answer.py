import time
from base64 import b64encode
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from offhook.telephony.sip.media.offer_answer import (
    Direction,
    Dtls,
    MediaNegotiation,
    MediaPlan,
    MediaSettings,
    NotAcceptable,
    Sdes,
    SdpError,
    wants_ice,
)
from offhook.telephony.sip.messages.sdp import DIRECTIONS, Description, parse
from tests.telephony.sip.descriptions import (
    CRYPTO,
    DTLS_OFFER,
    FINGERPRINT,
    OTHER_FINGERPRINT,
    PLAIN,
    SECURE,
    answer,
    end,
    sdp,
    sound,
)


def version(text: str) -> int:
    origin = parse(text).origin
    assert origin is not None
    return origin.version


def body(text: str) -> Description:
    return replace(parse(text), origin=None)


# --- where to ---


def test_a_medias_own_address_goes_before_the_sessions() -> None:
    plan = answer(end(), "m=audio 5000 RTP/AVP 0", "c=IN IP4 198.51.100.3")
    assert plan.remote == ("198.51.100.3", 5000)
    assert plan.remote_rtcp == ("198.51.100.3", 5001)


def test_a_private_address_is_kept() -> None:
    assert answer(end(), "m=audio 5000 RTP/AVP 0", address="10.0.0.7").remote == ("10.0.0.7", 5000)


def test_ipv6_on_both_sides() -> None:
    us = MediaNegotiation(PLAIN, "2001:db8::1", 4000, 4001, 1)
    text = us.answer(sdp("m=audio 5000 RTP/AVP 0", address="2001:db8::9"))
    assert "c=IN IP6 2001:db8::1\r\n" in text
    assert us.plan is not None
    assert us.plan.remote == ("2001:db8::9", 5000)


@pytest.mark.parametrize(
    "address", ["2001:db8::9", "phone.example.com", "224.2.1.1/127", "255.255.255.255", "1.2.3.400"]
)
def test_addresses_we_cannot_send_to_are_refused(address: str) -> None:
    with pytest.raises(NotAcceptable) as refused:
        end().answer(sdp("m=audio 5000 RTP/AVP 0", address=address))
    assert refused.value.warning.startswith("301 ")


def test_a_sound_without_any_address_is_no_description() -> None:
    with pytest.raises(SdpError):
        end().answer("v=0\r\nm=audio 5000 RTP/AVP 0\r\n")


@pytest.mark.parametrize(
    ("lines", "rtcp"),
    [
        (("a=rtcp:6000",), ("192.0.2.9", 6000)),
        (("a=rtcp:6000 IN IP4 198.51.100.3",), ("198.51.100.3", 6000)),
        (("a=rtcp:6000 IN IP4 224.2.1.1",), ("192.0.2.9", 6000)),
        (("a=rtcp:6000 IN IP6 2001:db8::9",), ("192.0.2.9", 6000)),
        (("a=rtcp:0",), ("192.0.2.9", 5001)),
        (("a=rtcp:6000", "a=rtcp-mux"), ("192.0.2.9", 5000)),
    ],
)
def test_where_rtcp_goes(lines: Sequence[str], rtcp: tuple[str, int]) -> None:
    plan = answer(end(), "m=audio 5000 RTP/AVP 0", *lines)
    assert plan.remote_rtcp == rtcp


def test_rtcp_has_the_stream_s_port_only_when_both_ends_say_so() -> None:
    us = end()
    assert sound(us.answer(sdp("m=audio 5000 RTP/AVP 0", "a=rtcp-mux"))).rtcp_mux
    assert us.plan is not None
    assert us.plan.rtcp_mux
    assert not sound(us.answer(sdp("m=audio 5000 RTP/AVP 0"))).rtcp_mux
    us = end()
    us.offer()
    assert not us.accept(sdp("m=audio 5000 RTP/AVP 0")).rtcp_mux
    assert us.accept(sdp("m=audio 5000 RTP/AVP 0", "a=rtcp-mux")).rtcp_mux


def test_the_last_port_has_no_next_one() -> None:
    assert answer(end(), "m=audio 65535 RTP/AVP 0").remote_rtcp == ("192.0.2.9", 65535)


# --- several streams ---


def test_streams_we_do_not_take_are_refused_in_their_places() -> None:
    us = end()
    text = us.answer(
        sdp(
            "b=AS:2000",
            "m=video 6000 RTP/AVP 96 97",
            "b=AS:1900",
            "a=rtpmap:96 H264/90000",
            "m=audio 5000 RTP/AVP 18",
            "m=audio 0 RTP/AVP 0",
            "m=audio 5002 RTP/AVP 0",
            "m=audio 5004 RTP/AVP 8",
            "m=application 7000 TCP/BFCP *",
            "m=image 0 udptl",
        )
    )
    streams = [(m.kind, m.port, m.protocol, m.formats) for m in parse(text).media]
    assert streams == [
        ("video", 0, "RTP/AVP", ("96",)),
        ("audio", 0, "RTP/AVP", ("18",)),
        ("audio", 0, "RTP/AVP", ("0",)),
        ("audio", 4000, "RTP/AVP", ("0",)),
        ("audio", 0, "RTP/AVP", ("8",)),
        ("application", 0, "TCP/BFCP", ("*",)),
        ("image", 0, "udptl", ("0",)),
    ]
    assert us.plan is not None
    assert us.plan.remote == ("192.0.2.9", 5002)


def test_our_next_offer_keeps_the_streams_in_their_places() -> None:
    us = end()
    us.answer(sdp("m=video 6000 RTP/AVP 96", "m=audio 5000 RTP/AVP 0"))
    streams = [(m.kind, m.port) for m in parse(us.offer("sendonly")).media]
    assert streams == [("video", 0), ("audio", 4000)]
    plan = us.accept(sdp("m=video 0 RTP/AVP 96", "m=audio 5000 RTP/AVP 0", "a=recvonly"))
    assert plan.direction == "sendonly"
    with pytest.raises(NotAcceptable):
        us.accept(sdp("m=audio 5000 RTP/AVP 0"))


def test_the_stream_in_use_is_kept_when_another_would_fit_too() -> None:
    us = end()
    answer(us, "m=audio 0 RTP/AVP 0", "m=audio 5002 RTP/AVP 0")
    plan = answer(us, "m=audio 5000 RTP/AVP 0", "m=audio 5002 RTP/AVP 0")
    assert plan.remote[1] == 5002
    plan = answer(us, "m=audio 5000 RTP/AVP 0", "m=audio 0 RTP/AVP 0")
    assert plan.remote[1] == 5000


def test_the_stream_in_use_is_kept_when_another_is_encrypted() -> None:
    encrypted = "m=audio 5002 RTP/SAVP 0", CRYPTO
    us = end(replace(PLAIN, srtp="optional"))
    assert answer(us, "m=audio 5000 RTP/AVP 0", *encrypted).remote[1] == 5002
    us = end(replace(PLAIN, srtp="optional"))
    answer(us, "m=audio 5000 RTP/AVP 0")
    assert answer(us, "m=audio 5000 RTP/AVP 0", *encrypted).remote[1] == 5000


@pytest.mark.parametrize(
    ("lines", "code"),
    [
        ((), 304),
        (("m=video 5000 RTP/AVP 96",), 304),
        (("m=audio 0 RTP/AVP 0",), 304),
        (("m=audio 5000 RTP/AVP 18",), 305),
        (("m=audio 5000 RTP/AVP x",), 305),
        (("m=audio 5000 udp 0",), 302),
        (("m=audio 5000 TCP/RTP/AVP 0",), 302),
        (("m=audio 5000 udp 0", "m=audio 5002 RTP/AVP 18"), 302),
    ],
)
def test_offers_with_nothing_for_us_are_refused_with_the_reason(
    lines: Sequence[str], code: int
) -> None:
    us = end()
    with pytest.raises(NotAcceptable) as refused:
        us.answer(sdp(*lines))
    assert refused.value.status == 488
    assert refused.value.warning.startswith(f"{code} ")
    assert us.plan is None


def test_a_stream_ended_in_mid_call_is_refused_and_the_call_is_as_before() -> None:
    us = end()
    before = answer(us, "m=audio 5000 RTP/AVP 0")
    with pytest.raises(NotAcceptable):
        us.answer(sdp("m=audio 0 RTP/AVP 0"))
    with pytest.raises(SdpError):
        us.answer("nonsense")
    assert us.plan == before


# --- hold ---

HOLDS: list[tuple[Sequence[str], str, Direction]] = [
    (("m=audio 5000 RTP/AVP 0", "a=sendonly"), "192.0.2.9", "recvonly"),
    (("m=audio 5000 RTP/AVP 0", "a=inactive"), "192.0.2.9", "inactive"),
    (("m=audio 5000 RTP/AVP 0",), "0.0.0.0", "recvonly"),
    (("m=audio 5000 RTP/AVP 0", "a=sendonly"), "0.0.0.0", "recvonly"),
    (("m=audio 5000 RTP/AVP 0", "a=inactive"), "0.0.0.0", "inactive"),
    (("m=audio 5000 RTP/AVP 0", "a=recvonly"), "0.0.0.0", "inactive"),
    (("a=sendonly", "m=audio 5000 RTP/AVP 0"), "192.0.2.9", "recvonly"),
    (("m=audio 5000 RTP/AVP 0", "c=IN IP4 hold.invalid"), "192.0.2.9", "recvonly"),
]


@pytest.mark.parametrize(("lines", "address", "direction"), HOLDS)
def test_the_far_end_holds_and_comes_back(
    lines: Sequence[str], address: str, direction: Direction
) -> None:
    us = end()
    usual = sdp("m=audio 5000 RTP/AVP 0")
    us.answer(usual)
    for _ in range(2):  # a hold may be said twice
        text = us.answer(sdp(*lines, address=address, version=2))
        assert sound(text).direction == direction
        assert us.plan is not None
        assert us.plan.direction == direction
    # Some come back without counting the version up.
    assert sound(us.answer(usual)).direction == "sendrecv"
    assert us.plan.direction == "sendrecv"
    assert us.plan.remote == ("192.0.2.9", 5000)


def test_an_unspecified_ipv6_address_is_hold_too() -> None:
    us = MediaNegotiation(PLAIN, "2001:db8::1", 4000, 4001, 1)
    for address in ("::", "0:0::0"):
        plan = answer(us, "m=audio 5000 RTP/AVP 0", address=address)
        assert (plan.direction, plan.remote) == ("recvonly", ("::", 5000))


def test_coming_back_by_an_invite_without_description() -> None:
    us = end()
    answer(us, "m=audio 5000 RTP/AVP 0", "a=sendonly")
    assert sound(us.offer()).direction == "sendrecv"
    assert us.accept(sdp("m=audio 5000 RTP/AVP 0")).direction == "sendrecv"


def test_we_hold_and_come_back() -> None:
    us = end()
    answer(us, "m=audio 5000 RTP/AVP 0")
    assert sound(us.offer("sendonly")).direction == "sendonly"
    assert us.accept(sdp("m=audio 5000 RTP/AVP 0", "a=recvonly")).direction == "sendonly"
    assert sound(us.offer()).direction == "sendrecv"
    assert us.accept(sdp("m=audio 5000 RTP/AVP 0")).direction == "sendrecv"


def test_while_we_hold_a_new_offer_does_not_end_it() -> None:
    us = end()
    answer(us, "m=audio 5000 RTP/AVP 0")
    us.offer("sendonly")
    us.accept(sdp("m=audio 5000 RTP/AVP 0", "a=recvonly"))
    assert us.wanted == "sendonly"
    assert answer(us, "m=audio 5000 RTP/AVP 0").direction == "sendonly"
    assert answer(us, "m=audio 5000 RTP/AVP 0", "a=sendonly").direction == "inactive"


def test_an_answer_cannot_give_more_than_the_offer_asked() -> None:
    us = end()
    us.offer("sendonly")
    assert us.accept(sdp("m=audio 5000 RTP/AVP 0", "a=sendrecv")).direction == "sendonly"


def test_a_refused_hold_leaves_the_call_as_it_was() -> None:
    us = end()
    before = answer(us, "m=audio 5000 RTP/AVP 0")
    us.offer("sendonly")
    us.rollback()
    assert (us.plan, us.wanted) == (before, "sendrecv")
    assert answer(us, "m=audio 5000 RTP/AVP 0").direction == "sendrecv"
    with pytest.raises(SdpError):
        us.accept(sdp("m=audio 5000 RTP/AVP 0"))


# --- changes in mid-call ---


def test_the_version_counts_up_only_with_a_change() -> None:
    us = end(MediaSettings())
    offer = sdp("m=audio 5000 RTP/AVP 0", CRYPTO)
    first = us.answer(offer)
    assert us.answer(offer) == first
    assert version(first) == 1
    second = us.offer()
    assert version(second) == 2
    us.accept(sdp("m=audio 5000 RTP/AVP 0", CRYPTO))
    assert us.offer() == second
    assert version(us.offer("sendonly")) == 3
    us.rollback()
    assert version(us.answer(offer)) == 4
    assert {parse(text).origin.session_id for text in (first, second)} == {77}


def test_a_caller_offers_the_same_again() -> None:
    us = end(MediaSettings())
    first = us.offer()
    plan = us.accept(sdp("m=audio 5000 RTP/AVP 0", CRYPTO))
    assert us.offer() == first
    assert us.accept(sdp("m=audio 5000 RTP/AVP 0", CRYPTO)) == plan


def test_port_and_address_change() -> None:
    us = end()
    answer(us, "m=audio 5000 RTP/AVP 0")
    plan = answer(us, "m=audio 5100 RTP/AVP 0", address="192.0.2.77")
    assert plan.remote == ("192.0.2.77", 5100)


def test_codec_change_still_hears_the_old_codec_for_a_moment() -> None:
    us = end()
    answer(us, "m=audio 5000 RTP/AVP 0")
    plan = answer(us, "m=audio 5000 RTP/AVP 96", "a=rtpmap:96 opus/48000/2")
    assert plan.codec.name == "opus"
    assert plan.receive == {96: "opus", 0: "pcmu"}
    plan = answer(us, "m=audio 5000 RTP/AVP 96", "a=rtpmap:96 opus/48000/2")
    assert plan.receive == {96: "opus"}


def test_payload_type_change_follows_the_far_end() -> None:
    us = end()
    answer(us, "m=audio 5000 RTP/AVP 96", "a=rtpmap:96 opus/48000/2")
    text = us.answer(sdp("m=audio 5000 RTP/AVP 120", "a=rtpmap:120 opus/48000/2"))
    assert sound(text).formats == ("120",)
    assert us.plan is not None
    assert us.plan.codec.payload_type == 120
    assert us.plan.receive == {96: "opus", 120: "opus"}


def test_our_numbers_stay_through_the_call() -> None:
    us = end()
    answer(
        us,
        "m=audio 5000 RTP/AVP 0 105 110",
        "a=rtpmap:105 telephone-event/8000",
        "a=rtpmap:110 speex/8000",
    )
    numbers = {rtpmap.name: n for n, rtpmap in sound(us.offer()).payloads.items()}
    assert next(iter(numbers)) == "pcmu"  # what is in use comes first
    assert (numbers["opus"], numbers["pcmu"]) == (111, 0)
    events = [n for n, r in sound(us.offer()).payloads.items() if r.name == "telephone-event"]
    assert events == [96, 105]  # 110 is theirs for something else
    us.accept(sdp("m=audio 5000 RTP/AVP 0"))
    assert [
        n for n, r in sound(us.offer()).payloads.items() if r.name == "telephone-event"
    ] == events


def test_formats_without_a_free_number_are_left_out_of_our_offer_until_there_is_one() -> None:
    us = end()
    numbers = range(96, 128)
    answer(
        us,
        "m=audio 5000 RTP/AVP 0 " + " ".join(map(str, numbers)),
        *(f"a=rtpmap:{n} speex/{n}000" for n in numbers),
    )
    assert sound(us.offer()).formats == ("0", "9", "8")
    plan = answer(
        us,
        "m=audio 5000 RTP/AVP 97 98",
        "a=rtpmap:97 opus/48000/2",
        "a=rtpmap:98 telephone-event/48000",
    )
    assert (plan.codec.payload_type, plan.events_out) == (97, (98, 48000))
    assert sound(us.offer()).formats == ("97", "9", "0", "8", "98", "101")


# --- browsers ---


def test_a_browsers_offer_is_told_by_ice_and_certificate() -> None:
    ice = ("a=ice-ufrag:x", "a=ice-pwd:y", "a=rtcp-mux")
    assert wants_ice(sdp(*DTLS_OFFER, *ice))
    assert not wants_ice(sdp(*DTLS_OFFER, *ice[:2]))  # on two ports
    assert wants_ice(sdp(*ice[:2], DTLS_OFFER[1], "m=audio 9 UDP/TLS/RTP/SAVPF 0", ice[2]))
    assert not wants_ice(sdp(*DTLS_OFFER))
    assert wants_ice(sdp("m=video 5000 RTP/AVP 96", *DTLS_OFFER, *ice))
    assert not wants_ice(sdp("m=audio 5000 RTP/AVP 0", *ice))
    assert not wants_ice(sdp("m=audio 5000 RTP/SAVP 0", CRYPTO, *ice))
    assert not wants_ice("nonsense")


# --- two of us ---


def crossed(a: MediaPlan, b: MediaPlan) -> bool:
    """Whether the keys of both ends fit together."""
    if isinstance(a.security, Sdes) and isinstance(b.security, Sdes):
        return (a.security.tag, a.security.suite, a.security.local_key, a.security.remote_key) == (
            b.security.tag,
            b.security.suite,
            b.security.remote_key,
            b.security.local_key,
        )
    if isinstance(a.security, Dtls) and isinstance(b.security, Dtls):
        return {a.security.role, b.security.role} == {"client", "server"}
    return a.security is None and b.security is None


MIRROR = {"sendrecv": "sendrecv", "sendonly": "recvonly", "recvonly": "sendonly"}


def assert_matching(a: MediaNegotiation, b: MediaNegotiation) -> None:
    assert a.plan is not None
    assert b.plan is not None
    for sender, receiver in ((a.plan, b.plan), (b.plan, a.plan)):
        assert receiver.receive[sender.codec.payload_type] == sender.codec.name
        if sender.events_out:
            number, rate = sender.events_out
            assert receiver.events_in[number] == rate
        assert sender.rtcp_mux
        assert sender.direction == MIRROR.get(receiver.direction, "inactive")
    assert a.plan.codec.name == b.plan.codec.name
    assert (a.plan.events_out is None) == (b.plan.events_out is None)
    assert a.plan.remote == ("192.0.2.1", 6000)
    assert b.plan.remote == ("192.0.2.1", 4000)
    assert crossed(a.plan, b.plan)


def exchange(offerer: MediaNegotiation, answerer: MediaNegotiation, wanted: Direction) -> bool:
    offer = offerer.offer(wanted)
    try:
        text = answerer.answer(offer)
    except NotAcceptable:
        offerer.rollback()
        return False
    assert text.isascii()
    offerer.accept(text)
    return True


CODECS = st.permutations(["opus", "g722", "pcmu", "pcma"]).flatmap(
    lambda names: st.integers(1, 4).map(lambda n: tuple(names[:n]))
)
LINES = st.builds(
    MediaSettings,
    codecs=CODECS,
    srtp=st.sampled_from(["off", "optional", "required"]),
    dtls=st.booleans(),
    ptime_ms=st.sampled_from([10, 20, 30, 40, 60]),
)
STEPS = st.lists(st.tuples(st.booleans(), st.sampled_from(DIRECTIONS)), min_size=1, max_size=6)


@given(LINES, LINES, STEPS)
def test_two_ends_always_come_to_the_same_or_to_nothing(
    one: MediaSettings, other: MediaSettings, steps: list[tuple[bool, Direction]]
) -> None:
    a, b = end(one, FINGERPRINT), end(other, OTHER_FINGERPRINT, port=6000)
    common = set(one.codecs) & set(other.codecs)
    protection = {one.srtp, other.srtp}
    possible = bool(common) and protection != {"off", "required"}
    for a_offers, wanted in steps:
        before = a.plan, b.plan
        if exchange(*((a, b) if a_offers else (b, a)), wanted):
            assert_matching(a, b)
            assert possible
            assert a.plan is not None
            assert (a.plan.security is None) == ("off" in protection)
        else:
            assert (a.plan, b.plan) == before
            assert not possible


@given(LINES, LINES, st.booleans(), STEPS)
def test_nothing_changes_through_a_call_but_what_is_asked_for(
    one: MediaSettings, other: MediaSettings, a_calls: bool, steps: list[tuple[bool, Direction]]
) -> None:
    a, b = end(one), end(other, port=6000)
    if not exchange(*((a, b) if a_calls else (b, a)), "sendrecv"):
        return
    first = a.plan, b.plan
    for a_offers, wanted in steps:
        assert exchange(*((a, b) if a_offers else (b, a)), wanted)
        for plan, before in zip((a.plan, b.plan), first, strict=True):
            assert plan is not None
            assert before is not None
            assert (plan.codec, plan.security) == (before.codec, before.security)


def test_an_invite_without_description_can_connect_us_to_somebody_else() -> None:
    us, first, second = end(MediaSettings()), end(SECURE, port=6000), end(PLAIN, port=6000)
    assert exchange(first, us, "sendrecv")
    assert us.plan is not None
    assert us.plan.codec.name == "opus"
    assert exchange(us, end(MediaSettings(codecs=("pcma",)), port=6000), "sendrecv")
    assert us.plan.codec.name == "pcma"
    assert isinstance(us.plan.security, Sdes)
    offer = us.offer()
    with pytest.raises(NotAcceptable):
        second.answer(offer)  # the call was RTP/SAVP and stays it


# --- hostile text ---

PIECES = st.sampled_from(
    [
        "c=IN IP4 192.0.2.9",
        "c=IN IP4 0.0.0.0",
        "c=IN IP6 ::1",
        "c=IN IP4 999",
        "m=audio 5000 RTP/AVP 0 8 96 101",
        "m=audio 5002 RTP/SAVP 0 96 13",
        "m=audio 5004 UDP/TLS/RTP/SAVPF 96",
        "m=audio 0 RTP/AVP 0",
        "m=video 6000 RTP/AVP 97",
        "m=x 1 y",
        CRYPTO,
        "a=crypto:1 x",
        f"a=fingerprint:{OTHER_FINGERPRINT}",
        "a=setup:actpass",
        "a=setup:",
        "a=rtpmap:96 opus/48000/2",
        "a=rtpmap:101 telephone-event/8000",
        "a=rtpmap:0 telephone-event/48000",
        "a=rtpmap:13 PCMA/8000",
        "a=fmtp:96",
        "a=ptime:60",
        "a=maxptime:0",
        "a=rtcp:1 IN IP4",
        "a=rtcp-mux",
        "a=inactive",
        "a=\udcff",
    ]
)


@given(st.lists(st.lists(PIECES | st.text(max_size=10), max_size=12), min_size=1, max_size=4))
def test_any_text_is_answered_or_refused(texts: list[list[str]]) -> None:
    us = end(MediaSettings(), FINGERPRINT)
    for lines in texts:
        text = sdp(*lines)
        for take in (us.answer, us.accept):
            if take == us.accept:
                us.offer()
            before = us.plan
            try:
                said = take(text)
            except (SdpError, NotAcceptable):
                assert us.plan == before
                continue
            assert us.plan is not None
            assert (
                us.plan.codec.name in us.plan.receive.values()
                or set(us.plan.receive) & set(us.plan.events_in) == set()
            )
            if isinstance(said, str):
                assert said.isascii()
                assert body(said).media
        wants_ice(text)


@pytest.mark.slow
def test_the_worst_description_is_answered_in_time() -> None:
    maps = [f"a=rtpmap:{96 + n % 32} telephone-event/8000" for n in range(400)]
    streams = ["m=audio 5000 RTP/AVP " + " ".join(["99"] * 127)] * 31
    prints = [f"a=fingerprint:sha-256 {':'.join(['A1'] * 32)}"] * 100
    text = sdp(*prints, *streams, *maps, CRYPTO)
    us = end(SECURE)
    began = time.process_time()
    with pytest.raises(NotAcceptable):
        us.answer(text)
    assert time.process_time() - began < 0.25


# --- continued by another server ---


def moved(us: MediaNegotiation, line: MediaSettings = PLAIN) -> tuple[MediaNegotiation, str]:
    """Another server's end of the same call, and its offer."""
    saved = us.saved()
    assert saved is not None
    assert "inline" not in saved.description
    there = MediaNegotiation(
        line, "192.0.2.50", 6000, 6001, 99, make_key=lambda size: bytes([7]) * size
    )
    there.restore(saved)
    return there, there.offer()


def test_another_servers_offer_keeps_payload_types_and_session() -> None:
    us = end(MediaSettings(srtp="off", codecs=("opus", "pcmu")))
    lines = "m=video 7000 RTP/AVP 99", "m=audio 5000 RTP/AVP 120 96"
    attributes = "a=rtpmap:120 opus/48000/2", "a=rtpmap:96 telephone-event/48000"
    first = us.answer(sdp(*lines, *attributes))
    there, text = moved(us, MediaSettings(srtp="off", codecs=("opus", "pcmu")))
    before, after = parse(first).origin, parse(text).origin
    assert before is not None
    assert after is not None
    assert after == replace(before, version=before.version + 1)
    video, audio = parse(text).media
    assert (video.kind, video.port) == ("video", 0)
    assert audio.formats[0] == "120"
    assert audio.payloads[96].name == "telephone-event"
    assert parse(text).connection == "192.0.2.50"
    assert audio.port == 6000
    plan = there.accept(sdp("m=video 0 RTP/AVP 99", lines[1], *attributes))
    assert (plan.codec.name, plan.codec.payload_type) == ("opus", 120)
    assert plan.remote == ("192.0.2.9", 5000)


@pytest.mark.parametrize("profile", ["RTP/SAVP", "RTP/AVP"])
def test_another_server_makes_a_new_key_of_the_same_suite(profile: str) -> None:
    us = end(MediaSettings())
    line = f"m=audio 5000 {profile} 0"
    answer(us, line, CRYPTO)
    there, text = moved(us, MediaSettings())
    media = sound(text)
    assert media.protocol == profile
    assert media.attribute_values("crypto") == [
        f"1 AES_CM_128_HMAC_SHA1_80 inline:{b64encode(bytes([7]) * 30).decode()}"
    ]
    plan = there.accept(sdp(line, CRYPTO))
    assert isinstance(plan.security, Sdes)
    assert plan.security.local_key == bytes([7]) * 30


def test_a_call_with_dtls_or_without_an_answer_is_not_continued() -> None:
    us = end(MediaSettings(), FINGERPRINT)
    assert us.saved() is None
    us.answer(sdp(*DTLS_OFFER))
    assert us.saved() is None


def test_a_call_is_not_continued_against_the_settings() -> None:
    plain, secure = end(), end(SECURE)
    answer(plain, "m=audio 5000 RTP/AVP 0")
    answer(secure, "m=audio 5000 RTP/SAVP 0", CRYPTO)
    with pytest.raises(NotAcceptable):
        moved(plain, SECURE)
    with pytest.raises(NotAcceptable):
        moved(secure, PLAIN)
    saved = secure.saved()
    assert saved is not None
    for forged in (
        replace(saved, suite="ROT13"),
        replace(saved, suite=""),
        replace(saved, description=saved.description.replace("m=audio 4000", "m=audio 0")),
        replace(saved, description="v=0\r\n"),
        replace(saved, description="x" * 70_000),
    ):
        with pytest.raises((NotAcceptable, SdpError)):
            end(SECURE).restore(forged)
