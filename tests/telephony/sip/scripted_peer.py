"""A far end by hand: it says what the test says, over a real socket, and nothing by itself.

Real phones behave; what an edge must stand is told message by message. Messages are written and
read by the project's own grammar, which has tests of its own.
"""

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from time import monotonic

import aiohttp

from offhook.telephony import call_progress_io
from offhook.telephony.sip import (
    call_io,
    endpoint_io,
    following_io,
    incoming_calls_io,
    invites_io,
    media_watch_io,
    offers_io,
    outgoing_calls_io,
    recovered_calls_io,
    server_lookup_io,
    stack_io,
    transfer_io,
)
from offhook.telephony.sip.endpoint_io import SipEndpoint
from offhook.telephony.sip.messages.framing import StreamFramer
from offhook.telephony.sip.messages.headers import Headers
from offhook.telephony.sip.messages.message import Request, Response, parse_message, respond, sdp_of
from offhook.telephony.sip.messages.uri import Uri
from offhook.telephony.sip.network.stream_io import trusting
from tests.support.waiting import HANGS_S
from tests.telephony.sip.phones import port_of

Header = tuple[str, str]
HOST = "127.0.0.1"
MODULES = (
    call_io,
    call_progress_io,
    endpoint_io,
    following_io,
    incoming_calls_io,
    invites_io,
    offers_io,
    outgoing_calls_io,
    recovered_calls_io,
    server_lookup_io,
    stack_io,
    transfer_io,
)
"""Those that read the clock of signalling."""

numbers = itertools.count(1)


class Peer:
    """One socket, or one connection, and what a user agent keeps of a call."""

    def __init__(self, transport: str, send: Callable[[bytes], None], local: tuple[str, int]):
        self.transport = transport
        self.host, self.port = local
        self.uri = f"sip:far@{self.host}:{self.port}"
        self.contact = f"<{self.uri}>"
        self.log: list[Request | Response] = []
        """All that came, in order."""
        self.closed = asyncio.Event()
        """The connection is gone."""
        self.cseq = 0
        self.call_id = f"call-{next(numbers)}"
        self.tag = "far"
        self.their_tag = ""
        self.target = f"sip:agent@{HOST}"
        """Where our requests within the call go: their Contact."""
        self.routes: list[str] = []
        self._invite: Request | None = None
        self._send = send
        self._waiting: list[Request | Response] = []
        self._replies: dict[tuple[str, str], Response] = {}
        """Our final replies, by branch and method."""
        self._came = asyncio.Event()

    def go_on_with(self, other: "Peer") -> None:
        """The call of another, from here: the same phone, after its way was dropped."""
        self.call_id, self.tag, self.their_tag = other.call_id, other.tag, other.their_tag
        self.target, self.routes, self.cseq = other.target, other.routes, other.cseq

    # --- in ---

    def receive(self, data: bytes) -> None:
        message = parse_message(data)
        if isinstance(message, Request):
            again = self._replies.get((message.via.branch or "", message.method))
            if again is not None:  # sent again before our reply arrived, as on a busy machine
                self.send(again)
                return
        self.log.append(message)
        self._waiting.append(message)
        self._came.set()

    async def _next(self, fits: Callable[[Request | Response], bool], what: str) -> object:
        try:
            async with asyncio.timeout(HANGS_S):
                while True:
                    for message in self._waiting:
                        if fits(message):
                            self._waiting.remove(message)
                            return message
                    self._came.clear()
                    await self._came.wait()
        except TimeoutError:
            raise AssertionError(f"no {what} came, but {self.came}") from None

    async def response(self, status: int, method: str = "") -> Response:
        """The next with that status, to that method."""

        def fits(message: Request | Response) -> bool:
            of = isinstance(message, Response) and message.status == status
            return of and method in ("", message.cseq.method)

        response = await self._next(fits, f"{status}")
        assert isinstance(response, Response)
        return response

    async def accepted(self, request: Request) -> Response:
        """The 200 to this request, as one to an INVITE before may be repeated until its ACK."""
        while (response := await self.response(200, request.method)).cseq != request.cseq:
            pass
        return response

    async def asked(self, method: str) -> Request:
        """The next request of that method; repeats too, until it is answered."""
        request = await self._next(
            lambda m: isinstance(m, Request) and m.method == method, f"{method}"
        )
        assert isinstance(request, Request)
        return request

    @property
    def came(self) -> list[str | int]:
        """What came so far: methods and statuses."""
        return [m.method if isinstance(m, Request) else m.status for m in self.log]

    # --- out ---

    def send(self, message: Request | Response) -> None:
        self._send(message.serialize())

    def send_bytes(self, data: bytes) -> None:
        self._send(data)

    def request(
        self,
        method: str,
        *headers: Header,
        sdp: str | None = None,
        body: tuple[str, str] = ("", ""),
        cseq: int | None = None,
        branch: str = "",
        to_tag: str | None = None,
    ) -> Request:
        """Make one of this call. `body`: its type and itself."""
        if cseq is None:
            self.cseq += 1
            cseq = self.cseq
        tag = self.their_tag if to_tag is None else to_tag
        fields = Headers()
        via = f"SIP/2.0/{self.transport} {self.host}:{self.port};branch="
        fields.add("Via", via + (branch or f"z9hG4bKfar{next(numbers)}") + ";rport")
        for route in self.routes:
            fields.add("Route", route)
        fields.add("From", f"<{self.uri}>;tag={self.tag}")
        fields.add("To", f"<sip:agent@{HOST}>" + (f";tag={tag}" if tag else ""))
        fields.add("Call-ID", self.call_id)
        fields.add("CSeq", f"{cseq} {method}")
        fields.add("Contact", self.contact)
        for name, value in (("Max-Forwards", "70"), *headers):
            fields.set(name, value)
        kind, text = ("application/sdp", sdp) if sdp is not None else body
        if text:
            fields.add("Content-Type", kind)
        return Request(method, Uri.parse(self.target), fields, text.encode())

    def ask(self, method: str, *headers: Header, **options: object) -> Request:
        """Make a request and send it."""
        request = self.request(method, *headers, **options)  # type: ignore[arg-type]
        self.send(request)
        return request

    def invite(self, sdp: str | None = None, *headers: Header) -> Request:
        self._invite = self.ask("INVITE", *headers, sdp=sdp)
        return self._invite

    def learn(self, message: Request | Response) -> None:
        """The dialog, from a 2xx to our INVITE or from their INVITE."""
        if isinstance(message, Response):
            self.their_tag = message.to.tag
        else:
            self.their_tag, self.call_id = message.from_.tag, message.call_id
        if message.contacts:
            self.target = str(message.contacts[0].uri)

    def ack(self, response: Response, sdp: str | None = None) -> None:
        """To a 2xx."""
        self.learn(response)
        self.ask("ACK", sdp=sdp, cseq=response.cseq.number)

    def ack_refusal(self, response: Response) -> None:
        """To any other final response to the last INVITE, hop by hop (RFC 3261 §17.1.1.3)."""
        assert self._invite is not None
        cseq, branch = response.cseq.number, response.via.branch or ""
        self.ask("ACK", cseq=cseq, branch=branch, to_tag=response.to.tag)

    def cancel(self) -> None:
        assert self._invite is not None
        invite = self._invite
        self.ask("CANCEL", cseq=invite.cseq.number, branch=invite.via.branch or "", to_tag="")

    def reply(
        self,
        request: Request,
        status: int,
        *headers: Header,
        sdp: str | None = None,
        tag: str | None = None,
    ) -> Response:
        fields = list(headers)
        if 100 < status < 300 and "Contact" not in dict(headers):
            fields.append(("Contact", self.contact))
        response = respond(
            request,
            status,
            to_tag=self.tag if tag is None else tag,
            headers=fields,
            body=(sdp or "").encode(),
            content_type="application/sdp" if sdp else "",
        )
        if status >= 200:
            self._replies[request.via.branch or "", request.method] = response
        self.send(response)
        return response

    # --- calls ---

    async def call(self, sdp: str | None, *headers: Header) -> str:
        """Call them and be answered; their SDP."""
        self.invite(sdp, *headers)
        answer = await self.response(200)
        self.ack(answer)
        return sdp_of(answer) or ""

    async def take(self, sdp: str, *headers: Header) -> Request:
        """Take the call that comes."""
        invite = await self.asked("INVITE")
        self.learn(invite)
        self.reply(invite, 200, *headers, sdp=sdp)
        await self.asked("ACK")
        return invite

    async def hang_up(self, *headers: Header) -> None:
        self.ask("BYE", *headers)
        await self.response(200, "BYE")

    async def is_hung_up(self) -> Request:
        """By them."""
        bye = await self.asked("BYE")
        self.reply(bye, 200)
        return bye


class _Datagrams(asyncio.DatagramProtocol):
    """Sends to where the last datagram came from, or to where it is told."""

    transport: asyncio.DatagramTransport

    def __init__(self) -> None:
        self.remote = (HOST, 9)
        self.peer: Peer | None = None

    def connection_made(self, transport: asyncio.DatagramTransport) -> None:  # type: ignore[override]
        self.transport = transport
        self.peer = Peer("UDP", self._send, transport.get_extra_info("sockname"))

    def _send(self, data: bytes) -> None:
        self.transport.sendto(data, self.remote)

    def datagram_received(self, data: bytes, addr: tuple[str, int]) -> None:
        self.remote = addr
        if self.peer is not None and data.strip():
            self.peer.receive(data)


@asynccontextmanager
async def udp_peer(
    sip: SipEndpoint | None = None, local: str = "", remote: str = ""
) -> AsyncIterator[Peer]:
    """One that calls `sip`, or waits to be called; at HOST, both, if not said otherwise."""
    transport, protocol = await asyncio.get_running_loop().create_datagram_endpoint(
        _Datagrams, local_addr=(local or HOST, 0)
    )
    if sip is not None:
        protocol.remote = remote or HOST, port_of(sip, "UDP")
    assert protocol.peer is not None
    try:
        yield protocol.peer
    finally:
        transport.close()


@asynccontextmanager
async def tcp_peer(sip: SipEndpoint, trusted: Path | None = None) -> AsyncIterator[Peer]:
    """One that connects to `sip`; with a certificate that it trusts, over TLS."""
    way, tls = ("TCP", None) if trusted is None else ("TLS", trusting(trusted))
    reader, writer = await asyncio.open_connection(HOST, port_of(sip, way), ssl=tls)
    peer = Peer(way, writer.write, writer.get_extra_info("sockname")[:2])
    peer.contact = f"<{peer.uri};transport={way.lower()}>"
    framer = StreamFramer()

    async def read() -> None:
        while data := await reader.read(65536):
            for piece in framer.receive(data):
                if isinstance(piece, bytes):
                    peer.receive(piece)
        peer.closed.set()

    reading = asyncio.create_task(read())
    try:
        yield peer
    finally:
        reading.cancel()
        writer.close()
        await asyncio.gather(reading, return_exceptions=True)


@asynccontextmanager
async def ws_peer(sip: SipEndpoint, trusted: Path | None = None) -> AsyncIterator[Peer]:
    """A browser's, which nobody can connect to (RFC 7118 §5); with a certificate that it trusts,
    over WSS."""
    way, tls = ("WS", True) if trusted is None else ("WSS", trusting(trusted))
    async with aiohttp.ClientSession() as http:
        url = f"{'http' if trusted is None else 'https'}://{HOST}:{port_of(sip, way)}"
        async with http.ws_connect(url, protocols=["sip"], ssl=tls) as socket:
            sending: set[asyncio.Task[None]] = set()

            def send(data: bytes) -> None:
                sending.add(asyncio.create_task(socket.send_str(data.decode())))

            peer = Peer(way, send, (HOST, 9))
            peer.contact = "<sip:far@df7jal23ls0d.invalid;transport=ws>"

            async def read() -> None:
                async for message in socket:
                    peer.receive(message.data.encode())

            reading = asyncio.create_task(read())
            try:
                yield peer
            finally:
                reading.cancel()
                await asyncio.gather(reading, *sending, return_exceptions=True)


class Time:
    """The clock of an endpoint's signalling, which a test may put forward. Sound goes by the real
    one."""

    def __init__(self, monkeypatch: object) -> None:
        self._ahead = 0.0
        for module in MODULES:
            monkeypatch.setattr(module, "monotonic", self.now)  # type: ignore[attr-defined]
        # Sound has not been silent for as long as this clock says.
        monkeypatch.setattr(media_watch_io, "MEDIA_CHECK_INTERVAL_S", 1e6)  # type: ignore[attr-defined]

    def now(self) -> float:
        return monotonic() + self._ahead

    async def passes(self, sip: SipEndpoint, seconds: float) -> None:
        """Every timer that is due within has fired, in order, and what was sent has arrived."""
        await asyncio.sleep(0.003)  # what was said before has arrived
        end = self.now() + seconds
        while (timer := sip.user_agent.get_timer()) is not None and timer <= end:
            self._ahead += max(0.0, timer - self.now())
            sip.stack._due()
            await asyncio.sleep(0.003)
        self._ahead += max(0.0, end - self.now())
        await asyncio.sleep(0.003)
