"""The messages of RFC 4475 sent to our edge over UDP and TCP: what it answers, that it lives."""

import asyncio
import re
import socket

import pytest

from tests.support.sip_messages import TORTURE
from tests.support.waiting import HANGS_S
from tests.telephony.sip.messages.test_torture import RFC_FILES
from tests.telephony.sip.phones import endpoint, port_of

OUTCOMES = {
    200: "badaspec badbranch baddate baddn esc01 inv2543 longreq lwsdisp semiuri transports zeromf",
    400: "clerr escruri insuf ltgtruri lwsruri lwsstart mcl01 mismatch01 mismatch02 multi01 ncl "
    "quotbal regbadct scalar02 trws",
    # A REGISTER or a MESSAGE that is understood: neither is for us.
    405: "cparam01 cparam02 dblreq escnull mpart01 regaut01 regescrt unksm2",
    406: "sdp01",
    415: "invut",
    416: "novelsc unkscm",
    420: "bext01",
    481: "wsinv",  # it has a To tag, and there is no such call
    501: "esc02 intmeth",
    505: "badvers",
    # Responses to nothing, and a request of which it cannot be told where it came from.
    None: "badinv01 bcast bigcode noreason scalarlg unreason",
}
CLOSED = 0
"""A stream whose messages cannot be told apart: without a Content-Length, with two (§18.3)."""
QUIET_S = 0.2
"""No answer in this time is none."""


def outcome(name: str, data: bytes, transport: str) -> set[int]:
    if transport == "TCP":
        lengths = re.findall(rb"^(?:content-length|l)[ \t]*:\s*(\S+)", data, re.MULTILINE | re.I)
        if (len(lengths) != 1 and name != "dblreq") or name == "ncl":
            return {CLOSED}
        if name == "clerr":  # waits for the rest of the body
            return set()
        if name == "dblreq":  # two messages: the second is an INVITE
            return {405, 200} if lengths[-1] != b"150" else {405, CLOSED}  # and a remainder
    status = next(status for status, names in OUTCOMES.items() if name in names.split())
    return {status} if status else set()


def rfc_messages() -> dict[str, bytes]:
    if not RFC_FILES.is_dir():
        return {}
    found = {file.stem: file.read_bytes() for file in RFC_FILES.glob("*.dat")}
    found["baddn"] += b"\r\n" if not found["baddn"].endswith(b"\r\n\r\n") else b""
    return found


def through(data: bytes, transport: str, port: int, number: int) -> bytes:
    """As it comes by a proxy on this machine, to which the answer goes back."""
    start, end, rest = data.partition(b"\r\n")
    via = f"Via: SIP/2.0/{transport} 127.0.0.1:{port};branch=z9hG4bKtorture{number};rport"
    return start + end + via.encode() + end + rest


async def statuses(receive, wanted: set[int]) -> set[int]:
    """Of all responses that come: at least until those that are wanted have come, and until none
    comes any more."""
    found: set[int] = set()
    while True:
        waits_s = HANGS_S if wanted - found else 0.03 if found - {100} else QUIET_S
        try:
            data = await asyncio.wait_for(receive(), waits_s)
        except (TimeoutError, OSError):
            break
        if not data:
            found.add(CLOSED)
            break
        found |= {int(code) for code in re.findall(rb"^SIP/2.0 (\d{3}) ", data, re.MULTILINE)}
    return found - {100}  # where an answer takes long


async def over_udp(port: int, data: bytes, number: int, wanted: set[int]) -> set[int]:
    loop = asyncio.get_running_loop()
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.setblocking(False)
        sock.bind(("127.0.0.1", 0))
        message = through(data, "UDP", sock.getsockname()[1], number)
        await loop.sock_sendto(sock, message, ("127.0.0.1", port))
        return await statuses(lambda: loop.sock_recv(sock, 65536), wanted)


async def over_tcp(port: int, data: bytes, number: int, wanted: set[int]) -> set[int]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        own = writer.get_extra_info("sockname")[1]
        writer.write(through(data, "TCP", own, number))
        return await statuses(lambda: reader.read(65536), wanted)
    finally:
        writer.close()


ALIVE = (
    b"OPTIONS sip:127.0.0.1 SIP/2.0\r\nFrom: <sip:a@127.0.0.1>;tag=1\r\nTo: <sip:127.0.0.1>\r\n"
    b"Call-ID: alive-%d\r\nCSeq: 1 OPTIONS\r\nMax-Forwards: 70\r\nContent-Length: 0\r\n\r\n"
)


@pytest.mark.parametrize(
    ("transport", "source"),
    [
        ("UDP", "rfc"),
        ("TCP", "own"),
        pytest.param("UDP", "own", marks=pytest.mark.slow),
        pytest.param("TCP", "rfc", marks=pytest.mark.slow),
    ],
)
async def test_every_message_has_its_outcome_and_the_edge_lives(transport, source):
    messages = TORTURE if source == "own" else rfc_messages()
    if not messages:
        pytest.skip("the RFC's files are not at hand")
    send = over_udp if transport == "UDP" else over_tcp
    async with endpoint() as (sip, _):
        port = port_of(sip, transport)
        found = {}
        wanted = {name: outcome(name, data, transport) for name, data in messages.items()}
        for number, (name, data) in enumerate(sorted(messages.items())):
            found[name] = await send(port, data, number, wanted[name])
            alive = await send(port, ALIVE % number, 1000 + number, {200})
            assert alive == {200}, f"dead after {name}"
    assert found == wanted
    assert len(found) == 49
