"""What strangers try at the phones' ports: SIP over UDP, TCP and TLS, and RTP."""

import asyncio
import re
import ssl
import struct
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import cast
from urllib.parse import urlsplit

STRANGER = "127.0.0.2"
"""The address of who attacks; that of the caller is 127.0.0.1."""
ORDERED = 50
"""Packets in order, more than any latch asks for."""
_ANSWER_S = 10.0
"""Seconds for an answer; then the attacker gives up."""


class _Socket(asyncio.DatagramProtocol):
    """A UDP socket that keeps what arrives."""

    def __init__(self) -> None:
        self.received: asyncio.Queue[bytes] = asyncio.Queue(10_000)
        self.transport: asyncio.DatagramTransport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.DatagramTransport, transport)

    def datagram_received(self, data: bytes, source: tuple[str, int]) -> None:
        if not self.received.full():
            self.received.put_nowait(data)

    @property
    def port(self) -> int:
        port: int = self.transport.get_extra_info("sockname")[1]
        return port


@asynccontextmanager
async def _opened(host: str) -> AsyncIterator[_Socket]:
    loop = asyncio.get_running_loop()
    transport, protocol = await loop.create_datagram_endpoint(_Socket, local_addr=(host, 0))
    try:
        yield protocol
    finally:
        transport.close()


class Caller:
    """A phone at 127.0.0.1 that calls and sends no RTP: what a muted or slow one does."""

    def __init__(self, sip: _Socket, rtp: _Socket, server: tuple[str, int]) -> None:
        self._sip, self.rtp, self._server = sip, rtp, server
        self._call_id = uuid.uuid4().hex
        self._to = f"<sip:agent@{server[0]}>"
        self.rtp_port = 0
        """The server's, as its answer says."""

    def _request(self, method: str, cseq: int, body: str = "") -> bytes:
        host, port = "127.0.0.1", self._sip.port
        lines = [
            f"{method} sip:agent@{self._server[0]}:{self._server[1]} SIP/2.0",
            f"Via: SIP/2.0/UDP {host}:{port};branch=z9hG4bK{uuid.uuid4().hex};rport",
            "Max-Forwards: 70",
            f"From: <sip:caller@{host}:{port}>;tag=caller",
            f"To: {self._to}",
            f"Call-ID: {self._call_id}",
            f"CSeq: {cseq} {method}",
            f"Contact: <sip:caller@{host}:{port}>",
            *(["Content-Type: application/sdp"] if body else []),
            f"Content-Length: {len(body)}",
            "",
            body,
        ]
        return "\r\n".join(lines).encode()

    async def call(self) -> None:
        """Returns once the call is answered and acknowledged. Raises ConnectionError if it is not,
        and TimeoutError."""
        sdp = (
            "v=0\r\no=- 1 1 IN IP4 127.0.0.1\r\ns=-\r\nc=IN IP4 127.0.0.1\r\nt=0 0\r\n"
            f"m=audio {self.rtp.port} RTP/AVP 0\r\n"
        )
        self._send("INVITE", 1, sdp)
        async with asyncio.timeout(_ANSWER_S):
            while True:
                text = (await self._sip.received.get()).decode(errors="replace")
                status = int(text.split(" ", 2)[1]) if text.startswith("SIP/2.0 ") else 0
                if status >= 300:
                    raise ConnectionError(f"refused with {status}")
                if status == 200:
                    break
        found = re.search(r"^m=audio (\d+)", text, re.MULTILINE)
        to = re.search(r"^To: *(.*?)\r$", text, re.MULTILINE)
        if found is None or to is None:
            raise ConnectionError("an answer without audio")
        self.rtp_port, self._to = int(found[1]), to[1]
        self._send("ACK", 1)

    def speak(self, data: bytes) -> None:
        """Sends RTP from the address in its SDP."""
        self.rtp.transport.sendto(data, (self._server[0], self.rtp_port))

    def hang_up(self) -> None:
        self._send("BYE", 2)

    def _send(self, method: str, cseq: int, body: str = "") -> None:
        self._sip.transport.sendto(self._request(method, cseq, body), self._server)


@asynccontextmanager
async def calling(server: tuple[str, int]) -> AsyncIterator[Caller]:
    """A call of a silent phone, answered. Raises ConnectionError and TimeoutError."""
    async with _opened("127.0.0.1") as sip, _opened("127.0.0.1") as rtp:
        caller = Caller(sip, rtp, server)
        await caller.call()
        try:
            yield caller
        finally:
            caller.hang_up()


def rtp(number: int, ssrc: int = 0xBAD) -> bytes:
    """20 ms of silence in G.711."""
    header = struct.pack("!BBHII", 0x80, 0, number & 0xFFFF, number * 160 & 0xFFFF_FFFF, ssrc)
    return header + b"\xff" * 160


async def voice_before_the_caller_speaks(
    base: str, seconds: float, sip_port: int, stranger_at: str = STRANGER
) -> str:
    """Sends packets in order to the port of a caller who has sent none yet, for the agent's
    voice."""
    server = urlsplit(base).hostname or "127.0.0.1", sip_port
    async with calling(server) as caller, _opened(stranger_at) as stranger:
        for number in range(ORDERED):
            stranger.transport.sendto(rtp(number), (server[0], caller.rtp_port))
            await asyncio.sleep(min(seconds / ORDERED, 0.02))
        return f"got {stranger.received.qsize()} of the agent's packets"


async def slow_tls_clients(
    base: str, seconds: float, tls_port: int, sources: int = 12, each: int = 100
) -> str:
    """Opens TLS connections from many addresses that say half a ClientHello, and then a byte a
    second."""
    server = urlsplit(base).hostname or "127.0.0.1", tls_port
    hello = _client_hello()
    writers: list[asyncio.StreamWriter] = []
    try:
        for source in range(sources):
            for _ in range(each):
                with suppress(OSError):
                    here = (f"127.0.1.{1 + source}", 0)
                    _, writer = await asyncio.open_connection(*server, local_addr=here)
                    writer.write(hello[: len(hello) // 2])
                    writers.append(writer)
        asked = await _tls_options(server)
        for second in range(int(seconds)):
            for writer in writers:
                at = len(hello) // 2 + second
                writer.write(hello[at : at + 1])
            await asyncio.sleep(1.0)
        return f"{len(writers)} connections; another client {asked}"
    finally:
        for writer in writers:
            writer.transport.abort()


def _client_hello() -> bytes:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    with suppress(ssl.SSLWantReadError):
        context.wrap_bio(incoming, outgoing, server_hostname="voice.example").do_handshake()
    return outgoing.read()


async def _tls_options(server: tuple[str, int]) -> str:
    """What an innocent client, of a trunk, is answered."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    host, port = server
    lines = [
        f"OPTIONS sips:{host}:{port} SIP/2.0",
        f"Via: SIP/2.0/TLS 127.0.0.1:9;branch=z9hG4bK{uuid.uuid4().hex};rport",
        "Max-Forwards: 70",
        "From: <sip:innocent@127.0.0.1>;tag=1",
        f"To: <sip:{host}>",
        f"Call-ID: {uuid.uuid4().hex}",
        "CSeq: 1 OPTIONS",
        "Content-Length: 0",
        "",
        "",
    ]
    try:
        async with asyncio.timeout(_ANSWER_S):
            reader, writer = await asyncio.open_connection(host, port, ssl=context)
            writer.write("\r\n".join(lines).encode())
            answer = (await reader.readline()).decode().strip()
            writer.transport.abort()
        return f"is answered {answer!r}" if answer else "is cut off"
    except (OSError, TimeoutError) as error:
        return f"fails: {type(error).__name__}"
