from collections.abc import Sequence
from dataclasses import replace

import pytest

from offhook.telephony.sip.media.offer_answer import (
    MediaNegotiation,
    MediaSettings,
    NotAcceptable,
    SdpError,
)
from tests.telephony.sip.descriptions import CRYPTO, PLAIN, answer, end, sdp, sound


def test_an_offer_lists_all_we_speak_in_our_order() -> None:
    text = end(MediaSettings(ptime_ms=40)).offer()
    media = sound(text)
    assert text.startswith("v=0\r\no=- 77 1 IN IP4 192.0.2.1\r\n")
    assert (media.port, media.protocol, media.direction) == (4000, "RTP/AVP", "sendrecv")
    names = [(rtpmap.name, rtpmap.clock_rate) for rtpmap in media.payloads.values()]
    assert names == [
        ("opus", 48000),
        ("g722", 8000),
        ("pcmu", 8000),
        ("pcma", 8000),
        ("telephone-event", 48000),
        ("telephone-event", 8000),
    ]
    assert media.rtcp_mux
    assert media.ptime == 40
    assert media.payloads[111].channels == 2
    assert media.attribute("rtcp") is None


def test_an_offer_without_opus_has_no_48_khz_events() -> None:
    media = sound(end(MediaSettings(codecs=("pcma",), srtp="off")).offer())
    formats = [(rtpmap.name, rtpmap.clock_rate) for rtpmap in media.payloads.values()]
    assert formats == [("pcma", 8000), ("telephone-event", 8000)]


def test_what_we_want_of_a_format_is_said_in_offer_and_answer() -> None:
    us = end(replace(PLAIN, opus_fmtp="useinbandfec=1"))
    text = us.offer()
    assert sound(text).fmtp == {111: "useinbandfec=1", 110: "0-15", 101: "0-15"}
    assert sound(end().answer(text)).fmtp == {
        111: "minptime=10;useinbandfec=1;stereo=0",
        110: "0-15",
    }
    assert sound(end(replace(PLAIN, opus_fmtp="")).offer()).fmtp == {110: "0-15", 101: "0-15"}


def test_rtcp_elsewhere_than_the_next_port_is_said() -> None:
    us = MediaNegotiation(PLAIN, "192.0.2.1", 4000, 4500, 1)
    assert sound(us.offer()).rtcp == (4500, None)
    assert sound(us.answer(sdp("m=audio 5000 RTP/AVP 0"))).rtcp == (4500, None)
    assert sound(us.answer(sdp("m=audio 5000 RTP/AVP 0", "a=rtcp-mux"))).rtcp is None


def test_an_answer_has_the_callers_first_codec_we_speak_with_the_callers_numbers() -> None:
    us = end()
    text = us.answer(
        sdp(
            "m=audio 5000 RTP/AVP 18 97 8 0 101",
            "a=rtpmap:18 G729/8000",
            "a=rtpmap:97 opus/48000/2",
            "a=fmtp:97 maxaveragebitrate=20000;useinbandfec=1",
            "a=rtpmap:101 telephone-event/8000",
            "a=fmtp:101 0-16",
        )
    )
    assert sound(text).formats == ("97", "101")
    plan = us.plan
    assert plan is not None
    assert (plan.codec.name, plan.codec.payload_type, plan.codec.clock_rate) == ("opus", 97, 48000)
    assert plan.codec.fmtp == "maxaveragebitrate=20000;useinbandfec=1"
    assert plan.receive == {97: "opus", 8: "pcma", 0: "pcmu"}
    assert plan.remote == ("192.0.2.9", 5000)
    assert plan.remote_rtcp == ("192.0.2.9", 5001)
    assert (plan.rtcp_mux, plan.direction, plan.security) == (False, "sendrecv", None)


def test_static_types_without_rtpmap_are_known() -> None:
    plan = answer(end(), "m=audio 5000 RTP/AVP 9 8")
    assert (plan.codec.name, plan.codec.payload_type, plan.codec.clock_rate) == ("g722", 9, 8000)


@pytest.mark.parametrize(
    ("rtpmap", "codec"),
    [
        ("0 PCMU/8000/1", "pcmu"),
        ("0 pcmu/8000", "pcmu"),
        ("0 PCMU", "pcmu"),
        ("0 nonsense", "pcmu"),
        ("0 PCMA/8000", "pcma"),
    ],
)
def test_odd_rtpmaps_of_static_types(rtpmap: str, codec: str) -> None:
    plan = answer(end(), "m=audio 5000 RTP/AVP 0", f"a=rtpmap:{rtpmap}")
    assert (plan.codec.name, plan.codec.payload_type) == (codec, 0)


@pytest.mark.parametrize("encoding", ["PCMU/8000/2", "PCMU/16000", "opus/16000/2", "speex/8000"])
def test_formats_of_another_rate_or_more_channels_are_not_ours(encoding: str) -> None:
    with pytest.raises(NotAcceptable) as refused:
        end().answer(sdp("m=audio 5000 RTP/AVP 97", f"a=rtpmap:97 {encoding}"))
    assert refused.value.status == 488
    assert refused.value.warning.startswith('305 offhook "')


@pytest.mark.parametrize(
    ("lines", "offered"),
    [
        (
            ("m=audio 5000 RTP/AVP 18 4 101", "a=rtpmap:101 telephone-event/8000"),
            "G729/8000, G723/8000",
        ),
        (
            ("m=audio 5000 RTP/AVP 96 97", "a=rtpmap:96 AMR-WB/16000", "a=rtpmap:97 AMR/8000/1"),
            "amr-wb/16000, amr/8000",
        ),
        (("m=audio 5000 RTP/AVP 96 13", 'a=rtpmap:96 a"b/8000'), 'a\\"b/8000'),
        (("m=audio 5000 RTP/AVP 96 999 x",), "none that is known"),
    ],
)
def test_a_refusal_names_what_is_offered_and_what_we_speak(
    lines: Sequence[str], offered: str
) -> None:
    with pytest.raises(NotAcceptable) as refused:
        end(MediaSettings(codecs=("pcma", "opus"))).answer(sdp(*lines))
    assert refused.value.warning == (
        f'305 offhook "Incompatible media format: no codec in common: offered {offered}, '
        'we speak PCMA/8000, opus/48000/2"'
    )


def test_mono_opus_is_answered_as_it_was_spelled_and_offered_so_again() -> None:
    us = end()
    offer = sdp("m=audio 5000 RTP/AVP 97", "a=rtpmap:97 opus/48000/1")
    assert sound(us.answer(offer)).payloads[97].channels == 1
    assert sound(us.offer()).payloads[97].channels == 1


def test_the_answers_first_codec_is_what_we_send() -> None:
    us = end()
    us.offer()
    plan = us.accept(sdp("m=audio 5000 RTP/AVP 8 0 101", "a=rtpmap:101 telephone-event/8000"))
    assert (plan.codec.name, plan.codec.payload_type) == ("pcma", 8)
    assert plan.events_out == (101, 8000)
    assert plan.receive == {111: "opus", 9: "g722", 0: "pcmu", 8: "pcma"}


def test_an_answer_with_other_numbers_than_the_offer_is_sent_with_those() -> None:
    us = end()
    us.offer()
    plan = us.accept(
        sdp(
            "m=audio 5000 RTP/AVP 120 121",
            "a=rtpmap:120 opus/48000/2",
            "a=rtpmap:121 telephone-event/48000",
        )
    )
    assert plan.codec.payload_type == 120
    assert plan.events_out == (121, 48000)
    assert (plan.receive[111], plan.receive[120]) == ("opus", "opus")
    assert (plan.events_in[110], plan.events_in[121]) == (48000, 48000)


def test_numbers_that_mean_one_thing_there_and_another_here_mean_ours_when_they_arrive() -> None:
    us = end()
    us.offer()
    plan = us.accept(
        sdp(
            "m=audio 5000 RTP/AVP 110 111",
            "a=rtpmap:110 opus/48000/2",
            "a=rtpmap:111 telephone-event/48000",
        )
    )
    assert (plan.codec.payload_type, plan.events_out) == (110, (111, 48000))
    assert plan.receive[111] == "opus"
    assert plan.events_in[110] == 48000


def test_an_answer_that_does_not_repeat_the_rtpmap_of_our_numbers_is_understood() -> None:
    us = end()
    us.offer()
    plan = us.accept(sdp("m=audio 5000 RTP/AVP 111 110"))
    assert (plan.codec.name, plan.events_out) == ("opus", (110, 48000))


@pytest.mark.parametrize(
    "lines",
    [
        ("m=audio 0 RTP/AVP 0",),
        ("m=video 5000 RTP/AVP 0",),
        (),
        ("m=audio 5000 RTP/AVP 18",),
        ("m=audio 5000 RTP/AVP",),
    ],
)
def test_an_answer_that_leaves_no_sound_is_refused_and_nothing_changes(
    lines: Sequence[str],
) -> None:
    us = end()
    us.offer()
    with pytest.raises(NotAcceptable):
        us.accept(sdp(*lines))
    assert us.plan is None
    us.offer()
    assert us.accept(sdp("m=audio 5000 RTP/AVP 0")).codec.name == "pcmu"


def test_an_answer_may_come_twice() -> None:
    us = end(MediaSettings())
    us.offer()
    early = us.accept(sdp("m=audio 5000 RTP/AVP 0", CRYPTO))
    assert us.accept(sdp("m=audio 5000 RTP/AVP 0", CRYPTO)) == early
    forked = us.accept(sdp("m=audio 6000 RTP/AVP 8", address="192.0.2.50"))
    assert (forked.remote, forked.codec.name, forked.security) == (
        ("192.0.2.50", 6000),
        "pcma",
        None,
    )


def test_an_answer_to_no_offer_is_no_description() -> None:
    us = end()
    with pytest.raises(SdpError):
        us.accept(sdp("m=audio 5000 RTP/AVP 0"))
    answer(us, "m=audio 5000 RTP/AVP 0")
    with pytest.raises(SdpError):
        us.accept(sdp("m=audio 5000 RTP/AVP 0"))


# --- keys and comfort noise ---


def test_of_two_event_formats_the_codecs_clock_decides() -> None:
    events = (
        "a=rtpmap:96 opus/48000/2",
        "a=rtpmap:97 telephone-event/8000",
        "a=rtpmap:98 telephone-event/48000",
    )
    us = end()
    plan = answer(us, "m=audio 5000 RTP/AVP 96 0 97 98", *events)
    assert plan.events_out == (98, 48000)
    assert plan.events_in == {97: 8000, 98: 48000}
    plan = answer(end(), "m=audio 5000 RTP/AVP 0 96 97 98", *events)
    assert plan.events_out == (97, 8000)


def test_events_of_another_clock_are_better_than_none() -> None:
    us = end()
    text = us.answer(
        sdp(
            "m=audio 5000 RTP/AVP 96 97",
            "a=rtpmap:96 opus/48000/2",
            "a=rtpmap:97 telephone-event/8000",
        )
    )
    assert us.plan is not None
    assert us.plan.events_out == (97, 8000)
    assert sound(text).formats == ("96", "97")


def test_without_events_in_the_offer_there_are_none_in_the_answer() -> None:
    us = end()
    assert sound(us.answer(sdp("m=audio 5000 RTP/AVP 0"))).formats == ("0",)
    assert us.plan is not None
    assert (us.plan.events_out, us.plan.events_in) == (None, {})


def test_comfort_noise_is_answered_where_it_is_offered_and_always_understood() -> None:
    us = end()
    assert sound(us.answer(sdp("m=audio 5000 RTP/AVP 0 13"))).formats == ("0", "13")
    plan = answer(end(), "m=audio 5000 RTP/AVP 0 98", "a=rtpmap:98 CN/8000")
    assert plan.comfort_noise == {13, 98}
    plan = answer(end(), "m=audio 5000 RTP/AVP 0 99", "a=rtpmap:99 CN/16000")
    assert plan.comfort_noise == {13}
    plan = answer(end(), "m=audio 5000 RTP/AVP 13", "a=rtpmap:13 PCMU/8000")
    assert plan.comfort_noise == set()
    assert "CN" not in end().offer()


# --- packet length ---


@pytest.mark.parametrize(
    ("lines", "milliseconds"),
    [
        ((), 20),
        *(((f"a=ptime:{ms}",), ms) for ms in (10, 20, 30, 40, 60)),
        (("a=ptime:50",), 20),
        (("a=ptime:15",), 20),
        (("a=ptime:0",), 20),
        (("a=ptime:200",), 20),
        (("a=ptime:x",), 20),
        (("a=ptime:60", "a=maxptime:40"), 40),
        (("a=ptime:60", "a=maxptime:50"), 40),
        (("a=maxptime:10",), 10),
        (("a=maxptime:5",), 10),
        (("a=maxptime:150",), 20),
    ],
)
def test_packets_are_as_long_as_the_far_end_asks(lines: Sequence[str], milliseconds: int) -> None:
    us = end()
    text = us.answer(sdp("m=audio 5000 RTP/AVP 0", *lines))
    assert us.plan is not None
    assert us.plan.ptime_ms == milliseconds
    assert sound(text).ptime == milliseconds
    us = end()
    us.offer()
    assert us.accept(sdp("m=audio 5000 RTP/AVP 0", *lines)).ptime_ms == milliseconds


def test_our_own_packet_length_holds_where_nothing_is_asked() -> None:
    assert answer(end(replace(PLAIN, ptime_ms=30)), "m=audio 5000 RTP/AVP 0").ptime_ms == 30
