"""What a WHIP or WHEP client may offer."""

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from offhook.signaling.whip.offer import (
    MAX_LINES,
    OfferRefusal,
    Protocol,
    check_offer,
    ipv4_first,
)

SESSION = "v=0\r\no=- 1 1 IN IP4 127.0.0.1\r\ns=-\r\nt=0 0\r\n"


def audio(direction: str = "sendonly", mid: str = "0") -> str:
    return (
        f"m=audio 9 UDP/TLS/RTP/SAVPF 111\r\na=mid:{mid}\r\na=ice-ufrag:abcd\r\n"
        f"a={direction}\r\na=rtpmap:111 opus/48000/2\r\n"
    )


def video(direction: str = "sendonly", mid: str = "1") -> str:
    return audio(direction, mid).replace("m=audio", "m=video")


BUNDLE = "a=group:BUNDLE 0 1\r\n"
CHANNELS = "m=application 9 UDP/DTLS/SCTP webrtc-datachannel\r\na=mid:2\r\na=sctp-port:5000\r\n"


@pytest.mark.parametrize("direction", ["sendonly", "sendrecv"])
def test_a_publisher_sends(direction: str) -> None:
    [media] = check_offer(SESSION + audio(direction), Protocol.WHIP)
    assert (media.kind, media.ufrag) == ("audio", "abcd")


@pytest.mark.parametrize("direction", ["recvonly", "sendrecv"])
def test_a_player_receives(direction: str) -> None:
    check_offer(SESSION + audio(direction), Protocol.WHEP)


def test_one_video_line_in_the_bundle_may_stand_beside() -> None:
    check_offer(SESSION + BUNDLE + audio() + video(), Protocol.WHIP)
    check_offer(SESSION + BUNDLE + video("recvonly") + audio("recvonly"), Protocol.WHEP)


def test_data_channels_in_the_bundle_may_stand_beside() -> None:
    """mediamtx's player opens one."""
    sdp = SESSION + BUNDLE.replace("0 1", "0 1 2") + video("recvonly") + audio("recvonly")
    offered = check_offer(sdp + CHANNELS, Protocol.WHEP)
    assert [media.kind for media in offered] == ["video", "audio", "application"]


def test_a_bundle_may_name_an_m_line_that_is_not_there() -> None:
    """FFmpeg does, publishing audio alone."""
    check_offer(SESSION + BUNDLE + audio(), Protocol.WHIP)


def test_credentials_and_direction_may_be_those_of_the_session() -> None:
    plain = SESSION + "a=ice-ufrag:wxyz\r\na=recvonly\r\nm=audio 9 UDP/TLS/RTP/SAVPF 111\r\n"
    assert check_offer(plain, Protocol.WHEP)[0].ufrag == "wxyz"
    with pytest.raises(OfferRefusal):
        check_offer(plain, Protocol.WHIP)


@pytest.mark.parametrize(
    ("sdp", "status", "why"),
    [
        ("", 400, "v=0"),
        ("{}", 400, "v=0"),
        (SESSION, 400, "no m-line"),
        (SESSION + audio().replace("a=ice-ufrag:abcd\r\n", ""), 400, "ice-ufrag"),
        (SESSION + "a=x\r\n" * MAX_LINES, 400, "lines"),
        (SESSION + audio("recvonly"), 422, "sendonly or sendrecv, not recvonly"),
        (SESSION + audio("inactive"), 422, "not inactive"),
        (SESSION + video(), 422, "audio only"),
        (SESSION + BUNDLE + audio() + audio(mid="1"), 422, "audio only"),
        (SESSION + audio() + CHANNELS, 422, "bundled"),
        (SESSION + BUNDLE + audio() + CHANNELS + CHANNELS, 422, "audio only"),
        (SESSION + audio() + "m=image 9 udptl t38", 422, "audio only"),
        (SESSION + audio() + video(), 422, "bundled"),
    ],
)
def test_everything_else_is_refused(sdp: str, status: int, why: str) -> None:
    with pytest.raises(OfferRefusal, match=why) as refusal:
        check_offer(sdp, Protocol.WHIP)
    assert refusal.value.status == status


pieces = st.sampled_from(
    [SESSION, BUNDLE, audio(), video(), "m=", "a=mid\r\n", "a=sendonly:1", "\r\n", "v=0\r\n"]
)


@given(st.lists(st.one_of(pieces, st.text(max_size=30)), max_size=8), st.sampled_from(Protocol))
def test_anything_is_taken_or_refused(texts: list[str], protocol: Protocol) -> None:
    with contextlib.suppress(OfferRefusal):
        assert check_offer("".join(texts), protocol)


def test_ipv4_candidates_come_first() -> None:
    """FFmpeg checks only the first host candidate."""
    v6 = "a=candidate:1 1 udp 9 2001:db8::1 5000 typ host\r\n"
    tcp = "a=candidate:2 1 tcp 9 192.0.2.1 5000 typ host tcptype passive\r\n"
    v4 = "a=candidate:3 1 udp 9 192.0.2.1 5000 typ host\r\n"
    other = "a=candidate:4 1 udp 9 192.0.2.2 5000 typ host\r\n"
    answer = "v=0\r\nm=audio\r\n{}a=end-of-candidates\r\n"
    assert ipv4_first(answer.format(v6 + tcp + v4 + other)) == answer.format(v4 + other + v6 + tcp)
