"""Copies of SIP and RTCP at a HEP collector."""

import asyncio
import json
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from ipaddress import ip_address

import pytest
from aiortc.rtp import RtcpReceiverInfo, RtcpRrPacket, RtcpSenderInfo, RtcpSrPacket

from offhook.telephony.sip.capture.hep import encode, reports_as_json
from offhook.telephony.sip.capture.hep_io import HepExport
from offhook.telephony.sip.capture.hep_settings import HepSettings
from offhook.telephony.sip.capture.packet import Captured
from offhook.telephony.sip.messages.flow import Flow
from offhook.telephony.sip.messages.grammar import SipError
from offhook.telephony.sip.trace import Trace
from tests.support.ports import free_port
from tests.support.waiting import until
from tests.telephony.sip.capture.readers import chunks_of
from tests.telephony.sip.phones import endpoint
from tests.telephony.sip.scripted_peer import udp_peer
from tests.telephony.sip.scripted_sound import sound

NOON = 1_795_262_400.25
OURS, THEIRS = ("10.0.0.1", 5060), ("192.0.2.7", 5070)
SETTINGS = HepSettings("127.0.0.1:9060", agent_id=2001, auth_key="myhep")
INVITE = b"INVITE sip:agent@10.0.0.1 SIP/2.0\r\nCall-ID: one\r\nCSeq: 1 INVITE\r\n\r\n"


@asynccontextmanager
async def collector() -> AsyncIterator[tuple[str, list[dict[int, bytes]]]]:
    """Its address, and the chunks of what came."""
    came: list[dict[int, bytes]] = []

    class Receiver(asyncio.DatagramProtocol):
        def datagram_received(self, data: bytes, addr: object) -> None:
            came.append(chunks_of(data))

    loop = asyncio.get_running_loop()
    transport, _ = await loop.create_datagram_endpoint(Receiver, local_addr=("127.0.0.1", 0))
    try:
        yield f"127.0.0.1:{transport.get_extra_info('sockname')[1]}", came
    finally:
        transport.close()


@pytest.mark.parametrize(
    ("hosts", "family", "kinds"),
    [
        (("192.0.2.7", "10.0.0.1"), 2, (3, 4)),
        (("2001:db8::2", "2001:db8::1"), 10, (5, 6)),
    ],
)
@pytest.mark.parametrize(("transport", "protocol"), [("UDP", 17), ("TCP", 6), ("TLS", 6)])
def test_a_message_has_the_chunks_of_the_specification(hosts, family, kinds, transport, protocol):
    source, destination = (hosts[0], 5070), (hosts[1], 5060)
    packet = Captured(NOON, transport, source, destination, INVITE)
    chunks = chunks_of(encode(packet, 1, "one", SETTINGS))
    assert chunks == {
        1: bytes([family]),
        2: bytes([protocol]),
        kinds[0]: ip_address(hosts[0]).packed,
        kinds[1]: ip_address(hosts[1]).packed,
        7: struct.pack("!H", 5070),
        8: struct.pack("!H", 5060),
        9: struct.pack("!I", 1_795_262_400),
        10: struct.pack("!I", 250_000),
        11: b"\x01",
        12: struct.pack("!I", 2001),
        14: b"myhep",
        15: INVITE,
        17: b"one",
    }


def test_without_a_key_none_is_sent():
    chunks = chunks_of(encode(Captured(NOON, "UDP", OURS, THEIRS, b""), 5, "", HepSettings("x")))
    assert 14 not in chunks
    assert 17 not in chunks
    assert chunks[11] == b"\x05"


@pytest.mark.parametrize(
    ("given", "address"),
    [
        ("10.0.0.7", ("10.0.0.7", 9060)),
        ("homer.example:9061", ("homer.example", 9061)),
        ("[2001:db8::7]:9060", ("2001:db8::7", 9060)),
    ],
)
def test_the_collector_is_a_host_and_mostly_a_port(given, address):
    assert HepSettings(given).address == address


@pytest.mark.parametrize(
    "given", [{"collector": ""}, {"collector": "a b"}, {"collector": "x:99999"}]
)
def test_what_is_no_collector_is_said_so(given):
    with pytest.raises(SipError, match="hep: collector"):
        HepSettings(**given)
    with pytest.raises(SipError, match="agent_id"):
        HepSettings("x", agent_id=2**32)


BLOCK = RtcpReceiverInfo(
    ssrc=7, fraction_lost=12, packets_lost=-3, highest_sequence=70_000, jitter=80, lsr=9, dlsr=10
)


def test_reports_become_json_with_homers_names():
    info = RtcpSenderInfo(
        ntp_timestamp=5 << 32 | 6, rtp_timestamp=160, packet_count=50, octet_count=8000
    )
    data = bytes(RtcpSrPacket(ssrc=1, sender_info=info, reports=[BLOCK]))
    data += bytes(RtcpRrPacket(ssrc=2, reports=[]))
    sender, receiver = map(json.loads, reports_as_json(data))
    assert sender == {
        "sender_information": {
            "ntp_timestamp_sec": 5,
            "ntp_timestamp_usec": 6,
            "rtp_timestamp": 160,
            "packets": 50,
            "octets": 8000,
        },
        "ssrc": 1,
        "type": 200,
        "report_count": 1,
        "report_blocks": [
            {
                "source_ssrc": 7,
                "fraction_lost": 12,
                "packets_lost": -3,
                "highest_seq_no": 70_000,
                "ia_jitter": 80,
                "lsr": 9,
                "dlsr": 10,
            }
        ],
    }
    assert receiver == {"ssrc": 2, "type": 201, "report_count": 0, "report_blocks": []}
    assert reports_as_json(b"\x80") == []


async def test_a_calls_messages_and_reports_arrive_under_its_call_id():
    async with collector() as (address, came):
        hep = HepSettings(address, agent_id=5)
        async with endpoint(hep=hep) as (sip, host), udp_peer(sip) as far:
            with sound() as line:
                secret = ("Authorization", 'Digest username="a",response="c2VjcmV0"')
                await far.call(line.sdp(), secret)
                await host.talk()
                await until(lambda: any(c[11] == b"\x05" for c in came))
                await far.hang_up()
            await until(lambda: any(b"200 OK" in c[15] and b"BYE" in c[15] for c in came))
        messages = [c for c in came if c[11] == b"\x01"]
        words = [c[15].split(b" ")[:2] for c in messages]
        said = [second if first == b"SIP/2.0" else first for first, second in words]
        assert [one for one in said if one != b"100"] == [
            *(b"INVITE", b"200", b"ACK", b"BYE", b"200")
        ]
        assert {c[17].decode() for c in came} == {far.call_id}
        assert {c[12] for c in came} == {struct.pack("!I", 5)}
        assert {c[3] for c in came} == {c[4] for c in came} == {ip_address("127.0.0.1").packed}
        assert not [c for c in came if b"c2VjcmV0" in c[15]]
        invite = messages[0]
        assert struct.unpack("!H", invite[7])[0] == far.port
        report = next(json.loads(c[15]) for c in came if c[11] == b"\x05")
        assert report["type"] in (200, 201)


async def test_messages_are_copied_where_none_are_kept():
    async with collector() as (address, came):
        settings = {"hep": HepSettings(address), "trace_messages": 0}
        async with endpoint(**settings) as (sip, _), udp_peer(sip) as far:
            far.ask("OPTIONS")
            await far.response(200)
            await until(lambda: len(came) == 2)
            assert sip.stack.trace.as_dicts() == []


async def test_calls_go_on_without_the_collector():
    """Nobody listens at its port: the kernel says so (ICMP), and no call notices."""
    hep = HepSettings(f"127.0.0.1:{free_port()}")
    async with endpoint(hep=hep) as (sip, host), udp_peer(sip) as far:
        with sound() as line:
            await far.call(line.sdp())
            await host.talk()
            await far.hang_up()
        assert sip.stack.hep.dropped > 0
    assert [record.status for record in host.records] == [200]


async def test_a_name_that_does_not_resolve_costs_its_copies_alone():
    hep = HepSettings("collector.invalid")
    async with endpoint(hep=hep) as (sip, _), udp_peer(sip) as far:
        far.ask("OPTIONS")
        await far.response(200)
        assert sip.stack.hep.dropped == 2


async def test_a_collector_by_name_is_found():
    async with collector() as (address, came):
        export = HepExport()
        export.use(HepSettings(f"localhost:{address.partition(':')[2]}"))
        trace = Trace(1)
        trace.export = export.send_message

        def copied() -> bool:
            trace.record(INVITE, Flow("UDP", THEIRS, OURS), False, NOON)
            return bool(came)

        await until(copied)
        await export.close()


async def test_a_reload_changes_the_collector():
    async with collector() as (first, came), collector() as (second, came_there):
        async with endpoint(hep=HepSettings(first)) as (sip, _), udp_peer(sip) as far:
            far.ask("OPTIONS")
            await far.response(200)
            await until(lambda: len(came) == 2)
            sip.reload(replace(sip.stack.settings, hep=HepSettings(second)))
            far.ask("OPTIONS")
            await far.response(200)
            await until(lambda: len(came_there) == 2)
            sip.reload(replace(sip.stack.settings, hep=None))
            far.ask("OPTIONS")
            await far.response(200)
            assert sip.stack.trace.export is None
        assert (len(came), len(came_there)) == (2, 2)
