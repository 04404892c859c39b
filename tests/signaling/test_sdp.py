"""Offers are answered, and the call works, or refused in SDP's terms before anything is opened."""

import asyncio
import random
import re

import pytest
from aiortc.sdp import SessionDescription

from offhook.signaling.peer_io import PeerLeg
from offhook.signaling.sdp import OfferError, check_answer, check_candidate, check_offer
from tests.attack.webrtc import PYTHONS, broken
from tests.signaling.test_peer import call

pytestmark = pytest.mark.usefixtures("loopback", "nothing_left")

BROWSERS = """v=0\r
o=- 4611731400430051336 2 IN IP4 127.0.0.1\r
s=-\r
t=0 0\r
a=group:BUNDLE 0 1 2\r
a=extmap-allow-mixed\r
a=msid-semantic: WMS 4cd4\r
m=audio 9 UDP/TLS/RTP/SAVPF 111 63 9 0 8 13 110 126\r
c=IN IP4 0.0.0.0\r
a=rtcp:9 IN IP4 0.0.0.0\r
a=candidate:1 1 udp 2113937151 4dc0bd64-0d0b-4f4c-9d8d-0001.local 50000 typ host generation 0\r
a=candidate:2 1 tcp 1518280447 192.0.2.7 9 typ host tcptype active generation 0 network-id 1\r
a=candidate:3 1 udp 1677729535 203.0.113.9 61000 typ srflx raddr 0.0.0.0 rport 0\r
a=ice-ufrag:tW/+\r
a=ice-pwd:kP0sUT8EwVDkfgKrEy+/aaaa\r
a=ice-options:trickle\r
a=fingerprint:sha-256 {fingerprint}\r
a=setup:actpass\r
a=mid:0\r
a=extmap:1 urn:ietf:params:rtp-hdrext:ssrc-audio-level\r
a=extmap:14/sendonly urn:ietf:params:rtp-hdrext:sdes:mid\r
a=sendrecv\r
a=msid:4cd4 8f2e\r
a=rtcp-mux\r
a=rtcp-rsize\r
a=rtpmap:111 opus/48000/2\r
a=rtcp-fb:111 transport-cc\r
a=fmtp:111 minptime=10;useinbandfec=1\r
a=rtpmap:63 red/48000/2\r
a=fmtp:63 111/111\r
a=rtpmap:9 G722/8000\r
a=rtpmap:0 PCMU/8000\r
a=rtpmap:8 PCMA/8000\r
a=rtpmap:13 CN/8000\r
a=rtpmap:110 telephone-event/48000\r
a=rtpmap:126 telephone-event/8000\r
a=ssrc:3735928559 cname:user@host\r
a=ssrc:3735928559 msid:4cd4 8f2e\r
m=video 0 UDP/TLS/RTP/SAVPF 96\r
c=IN IP4 0.0.0.0\r
a=bundle-only\r
a=ice-ufrag:tW/+\r
a=ice-pwd:kP0sUT8EwVDkfgKrEy+/aaaa\r
a=fingerprint:sha-256 {fingerprint}\r
a=setup:actpass\r
a=mid:1\r
a=recvonly\r
a=rtcp-mux\r
a=rtpmap:96 VP8/90000\r
a=rtcp-fb:96 goog-remb\r
a=rtcp-fb:* ccm fir\r
m=application 9 UDP/DTLS/SCTP webrtc-datachannel\r
c=IN IP6 ::\r
a=ice-ufrag:tW/+\r
a=ice-pwd:kP0sUT8EwVDkfgKrEy+/aaaa\r
a=fingerprint:SHA-256 {fingerprint}\r
a=setup:actpass\r
a=mid:2\r
a=sctp-port:5000\r
a=max-message-size:262144\r
""".format(fingerprint=":".join(["5C"] * 32))
"""As Chromium and Firefox write them."""


def test_a_browsers_offer_passes():
    check_offer(BROWSERS)
    # Firefox has what is common to all m-lines before the first.
    common = r"a=(fingerprint:|ice-ufrag:|ice-pwd:|setup:).*\r\n"
    lines = "".join(line.group() for line in re.finditer(common, BROWSERS.split("m=")[1]))
    firefox = re.sub(common, "", BROWSERS, flags=re.IGNORECASE)
    check_offer(firefox.replace("m=audio", lines + "m=audio"))


@pytest.mark.parametrize(
    ("line", "instead", "why"),
    [
        ("a=fingerprint", "a=x", r"m-line 1 \(audio\) has no a=fingerprint \(RFC 8842 §5.1\)"),
        ("a=ice-pwd", "a=x", r"m-line 1 \(audio\) has no ICE password: a=ice-pwd \(RFC 8839"),
        ("a=ice-ufrag", "a=x", r"has no ICE username fragment: a=ice-ufrag \(RFC 8839 §5.4\)"),
        ("a=setup", "a=x", r"m-line 1 \(audio\) has no a=setup \(RFC 8842"),
        ("a=setup:actpass", "a=setup:holdconn", "has a=setup:holdconn; a=setup is actpass or act"),
        ("a=rtcp-mux", "a=x", "has no RTCP mux: a=rtcp-mux"),
        ("a=mid", "a=x", r"m-line 1 \(audio\) has no a=mid \(RFC 8843"),
        ("a=mid:2", "a=mid:0", "two m-lines have the same a=mid"),
        ("BUNDLE 0 1 2", "BUNDLE 0 1 7", "no m-line has the mid '7' of the BUNDLE group"),
        ("BUNDLE 0 1 2", "BUNDLE 0 0", "the BUNDLE group names a mid twice"),
        ("a=sctp-port:5000", "a=x", r"m-line 3 \(application\) has no a=sctp-port \(RFC 8841"),
        ("a=sctp-port:5000", "a=sctp-port:0", "a=sctp-port:0 is not a port"),
        ("a=rtpmap:111 opus/48000/2", "a=x", "a=fmtp:111 .* has no a=rtpmap"),
        ("sha-256", "sha-1", "has no a=fingerprint of sha-256, sha-384, sha-512|hash's length"),
        ("5C:5C:5C", "5C:5C", "a=fingerprint:sha-256 5C:.*… is not HASH HEX:HEX:…"),
        ("50000 typ", "500000 typ", "a=candidate:1 1 udp .* is not FOUNDATION COMPONENT"),
        ("203.0.113.9", "fe80::1%eth0", "a=candidate:3 .* is not FOUNDATION COMPONENT"),
        ("UDP/TLS/RTP/SAVPF 111", "RTP/AVP 111", "is RTP/AVP, and not SRTP over DTLS"),
        ("m=video", "m=text", "m-line 2 .text. is neither audio, video nor data channels"),
        ("SAVPF 111 63", "SAVPF 111 72", r"m-line 1 \(audio\) has the format 72"),
        ("m=audio 9 ", "m=audio 99999 ", "has the port 99999"),
        ("v=0", "v=1", "v=1 is not v=0"),
        ("c=IN IP4 0.0.0.0", "c=IN X", "c=IN X is not IN IP4|IP6 ADDRESS"),
        ("minptime=10", "minptime=ten", "a=fmtp:111 minptime=ten.* is not FORMAT PARAMETERS"),
        ("a=mid:0", "a=mid:\x1b[31m\ud800", "a=mid:�.31m� is not a token"),
    ],
)
def test_a_refusal_says_what_is_missing_or_wrong(line, instead, why):
    with pytest.raises(OfferError, match=why) as refusal:
        check_offer(BROWSERS.replace(line, instead))
    assert not PYTHONS.search(str(refusal.value))
    assert str(refusal.value).encode().decode().isprintable()


def test_aiortc_reads_what_passes_however_lines_are_mixed():
    chance, passed = random.Random(7), 0
    refusals: list[str] = []
    odd = [line for _, sdp in broken(BROWSERS) for line in sdp.split("\r\n") if len(line) < 400]
    for _ in range(3000):
        lines = BROWSERS.split("\r\n")
        for _ in range(chance.randint(1, 4)):
            at = chance.randrange(len(lines))
            match chance.randrange(4):
                case 0:
                    del lines[at]
                case 1:
                    lines.insert(at, chance.choice(odd))
                case 2:
                    lines[at] = lines[at][: chance.randint(0, len(lines[at]))]
                case 3:
                    lines[at] = lines[at].replace(chance.choice("0 :=/1a"), chance.choice(" :x-\t"))
        sdp = "\r\n".join(lines)
        try:
            check_offer(sdp)
        except OfferError as error:
            refusals.append(str(error))
            continue
        passed += 1
        for media in SessionDescription.parse(sdp).media:
            assert media.dtls is not None
            assert media.dtls.fingerprints
            assert media.ice.usernameFragment
            assert media.ice.password
    assert passed > 300
    assert not [words for words in refusals if PYTHONS.search(words) or not words.isprintable()]


def test_an_answer_has_chosen_a_role():
    with pytest.raises(OfferError, match="a=setup is active or passive here"):
        check_answer(BROWSERS)
    check_answer(BROWSERS.replace("actpass", "active"))


@pytest.mark.parametrize(
    "value",
    ["", "1 1 udp 1 192.0.2.1 9", "1 1 udp 1 192.0.2.1 70000 typ host", "1 -1 udp 1 h 9 typ host"],
)
def test_a_candidate_has_all_its_fields(value):
    with pytest.raises(OfferError, match="a=candidate:"):
        check_candidate(value)


async def test_an_offer_of_which_a_line_is_broken_is_answered_or_refused_in_words():
    caller = PeerLeg("caller")
    offer = await caller.offer()
    await caller.hang_up("")
    refused = []
    for what, sdp in broken(offer):
        leg = PeerLeg("callee")
        try:
            await leg.answer(sdp)
        except OfferError as error:
            refused.append(f"{what}: {error}")
        await asyncio.sleep(0)
        await leg.hang_up("")
    assert len(refused) > 200
    assert not [words for words in refused if PYTHONS.search(words)]


async def test_who_offers_no_bundle_is_answered_without():
    async with call(lambda sdp: re.sub(r"a=group:BUNDLE.*\r\n", "", sdp)) as (caller, callee):
        assert "BUNDLE" not in caller._pc.remoteDescription.sdp
        assert "BUNDLE" in callee._pc.localDescription.sdp
