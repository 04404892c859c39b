"""One call's SIP as a file that others read."""

import socket
from pathlib import Path

import pytest

from offhook.telephony.sip.capture.packet import Captured
from offhook.telephony.sip.capture.pcap import capture
from offhook.telephony.sip.messages.flow import Flow, TransportName
from offhook.telephony.sip.trace import Trace
from tests.telephony.sip.capture.readers import needs_tshark, packets_of, tshark

NOON = 1_795_262_400.0
OURS, THEIRS = ("10.0.0.1", 5060), ("192.0.2.7", 5070)
OURS6, THEIRS6 = ("2001:db8::1", 5060), ("2001:db8::2", 5070)
SDP = (
    "v=0\r\no=- 1 1 IN IP4 192.0.2.7\r\ns=-\r\nc=IN IP4 192.0.2.7\r\nt=0 0\r\n"
    "m=audio 4000 RTP/AVP 0\r\n"
)
INVITE = (
    "INVITE sip:agent@10.0.0.1 SIP/2.0\r\n"
    "Via: SIP/2.0/UDP 192.0.2.7:5070;branch=z9hG4bK1\r\nMax-Forwards: 70\r\n"
    "From: <sip:ann@192.0.2.7>;tag=a\r\nTo: <sip:agent@10.0.0.1>\r\nCall-ID: one@192.0.2.7\r\n"
    "CSeq: 1 INVITE\r\nContact: <sip:ann@192.0.2.7:5070>\r\nContent-Type: application/sdp\r\n"
    f"Content-Length: {len(SDP)}\r\n\r\n{SDP}"
).encode()
RINGING = (
    b"SIP/2.0 180 Ringing\r\nVia: SIP/2.0/UDP 192.0.2.7:5070;branch=z9hG4bK1\r\n"
    b"From: <sip:ann@192.0.2.7>;tag=a\r\nTo: <sip:agent@10.0.0.1>;tag=b\r\n"
    b"Call-ID: one@192.0.2.7\r\nCSeq: 1 INVITE\r\nContent-Length: 0\r\n\r\n"
)


def traced(flow: Flow, *messages: tuple[bytes, bool]) -> Trace:
    trace = Trace(10)
    for number, (data, sent) in enumerate(messages):
        trace.record(data, flow, sent, NOON + number / 1000)
    return trace


@pytest.mark.parametrize(("ours", "theirs"), [(OURS, THEIRS), (OURS6, THEIRS6)])
def test_messages_over_udp_are_datagrams_between_their_addresses(ours, theirs):
    trace = traced(Flow("UDP", theirs, ours), (INVITE, False), (RINGING, True))
    first, second = packets_of(trace.as_pcap())
    assert (first.source, first.destination) == (theirs, ours)
    assert (second.source, second.destination) == (ours, theirs)
    assert first.protocol == second.protocol == socket.IPPROTO_UDP
    assert (first.payload, second.payload) == (INVITE, RINGING)
    assert first.time == NOON
    assert round(second.time - NOON, 6) == 0.001


@pytest.mark.parametrize("transport", ["TCP", "TLS", "WS", "WSS"])
def test_messages_over_streams_are_segments_in_order(transport: TransportName):
    flow = Flow(transport, THEIRS, OURS, 3)
    trace = traced(flow, (INVITE, False), (RINGING, True), (RINGING, True), (INVITE, False))
    packets = packets_of(trace.as_pcap())
    assert {packet.protocol for packet in packets} == {socket.IPPROTO_TCP}
    assert [p.payload for p in packets] == [INVITE, RINGING, RINGING, INVITE]
    theirs, ours = 1, 1
    for packet in packets:
        sent = (theirs, ours) if packet.source == THEIRS else (ours, theirs)
        assert (packet.sequence, packet.acknowledged) == sent
        if packet.source == THEIRS:
            theirs += len(packet.payload)
        else:
            ours += len(packet.payload)


def test_one_call_is_picked_out_of_many():
    trace = traced(Flow("UDP", THEIRS, OURS), (INVITE, False))
    trace.record(INVITE.replace(b"one@", b"two@"), Flow("UDP", THEIRS, OURS), False, NOON)
    (packet,) = packets_of(trace.as_pcap("two@"))
    assert b"Call-ID: two@" in packet.payload
    assert len(packets_of(trace.as_pcap())) == 2
    assert packets_of(trace.as_pcap("three@")) == []


def test_secrets_are_masked_and_what_is_left_is_still_a_message():
    key = "d0RmdmcmVCspeEc3QGZiNWpVLFJhQX1cfHAwJSoj"
    secret = INVITE.replace(
        b"m=audio", f"a=crypto:1 AES_CM_128_HMAC_SHA1_80 inline:{key}\r\nm=audio".encode()
    ).replace(
        b"Max-Forwards", b'Authorization: Digest username="a",response="c2VjcmV0"\r\nMax-Forwards'
    )
    digits = INVITE.replace(b"INVITE", b"INFO").replace(b"application/sdp", b"application/dtmf")
    trace = traced(Flow("UDP", THEIRS, OURS), (secret, False), (digits, False))
    for packet in packets_of(trace.as_pcap()):
        assert key.encode() not in packet.payload
        assert b"c2VjcmV0" not in packet.payload
        head, body = packet.payload.split(b"\r\n\r\n", 1)
        assert f"Content-Length: {len(body)}".encode() in head
    assert b"m=audio" not in packet.payload


def test_times_between_two_seconds_stay_in_their_second():
    packet = Captured(NOON + 0.9999999, "UDP", THEIRS, OURS, b"x")
    assert packets_of(capture([packet]))[0].time == NOON + 1


def test_packets_of_every_length_have_right_checksums():
    for length in (0, 1, 2, 3, 1499, 16_384):
        payload = bytes(range(256)) * (length // 256 + 1)
        packet = Captured(NOON, "UDP", THEIRS, OURS, payload[:length])
        (read,) = packets_of(capture([packet]))
        assert read.payload == payload[:length]


@needs_tshark
@pytest.mark.parametrize("transport", ["UDP", "TCP", "TLS", "WSS"])
@pytest.mark.parametrize(
    ("ours", "theirs"), [(OURS, THEIRS), (OURS6, THEIRS6), (("10.0.0.1", 5061), THEIRS)]
)
def test_wireshark_reads_the_call(tmp_path: Path, transport, ours, theirs):
    file = tmp_path / "call.pcap"
    trace = traced(Flow(transport, theirs, ours, 1), (INVITE, False), (RINGING, True))
    file.write_bytes(trace.as_pcap())
    layer = "udp" if transport == "UDP" else "tcp"
    ip = "ipv6" if ":" in ours[0] else "ip"
    fields = (f"{ip}.src", f"{layer}.srcport", "sip.Method", "sip.Status-Code", "sip.Call-ID")
    checks = ["-o", "ip.check_checksum:TRUE", "-o", f"{layer}.check_checksum:TRUE"]
    asked = [part for name in (*fields, "_ws.expert.message") for part in ("-e", name)]
    rows = tshark(file, *checks, *asked)
    assert rows == [
        [theirs[0], str(theirs[1]), "INVITE", "", "one@192.0.2.7", ""],
        [ours[0], str(ours[1]), "", "180", "one@192.0.2.7", ""],
    ]
