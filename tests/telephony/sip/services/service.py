"""A telephony service on the internet, by hand: TLS both ways, and rules that calls must keep.

Each service has its rules in a class of its own. A request that breaks one is refused as the
service refuses it, and never reaches the test; all else is the test's to answer.
"""

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest

from offhook.telephony.sip.endpoint_io import SipEndpoint
from offhook.telephony.sip.messages.framing import StreamFramer
from offhook.telephony.sip.messages.message import Request, parse_message, respond
from offhook.telephony.sip.network import resolver_io
from tests.telephony.sip.phones import port_of
from tests.telephony.sip.scripted_peer import HOST, Header, Peer

Files = tuple[Path, Path]
"""A certificate and its key."""


class Caller(Peer):
    """The service's side of a call, which names itself as the service does."""

    def __init__(self, *arguments: object) -> None:
        super().__init__(*arguments)  # type: ignore[arg-type]
        self.to = f"sip:agent@{HOST}"
        self.record_routes: list[str] = []

    def request(self, method: str, *headers: Header, **options: object) -> Request:
        request = super().request(method, *headers, **options)  # type: ignore[arg-type]
        tag = request.to.tag
        request.headers.set("To", f"<{self.to}>" + (f";tag={tag}" if tag else ""))
        if method == "INVITE" and not tag:
            for route in self.record_routes:
                request.headers.add("Record-Route", route)
        return request


class Service:
    """One that listens by TLS at `host`, where its names lead, and connects to us."""

    asks_for_certificates = True
    allow = "INVITE,ACK,OPTIONS,CANCEL,BYE,NOTIFY"

    def __init__(self, identity: Files, authority: Path, host: str = HOST) -> None:
        self.identity, self.authority, self.host = identity, authority, host
        self.port = 0
        self.refused: list[tuple[str, int, str]] = []
        """Requests that broke a rule: method, status, reason."""
        self.probes: list[Request] = []
        """OPTIONS that kept them."""
        self.peer: Caller
        """Takes what belongs to no call known."""
        self._peers: list[Caller] = []
        self.connections: list[asyncio.StreamWriter] = []
        """Open ones, the one used last at the end."""
        self._reading: set[asyncio.Task[None]] = set()

    # --- rules ---

    def judge(self, request: Request, names: list[str]) -> tuple[int, str, list[Header]] | None:
        """How a request outside a dialog is refused; None if it keeps the rules. `names` are those
        of our certificate."""
        return None

    # --- connections ---

    def context(self) -> ssl.SSLContext:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(self.authority))
        context.load_cert_chain(*self.identity)
        if self.asks_for_certificates:
            context.verify_mode = ssl.CERT_REQUIRED
        return context

    @asynccontextmanager
    async def listening(self) -> AsyncIterator["Service"]:
        server = await asyncio.start_server(self._serve, self.host, 0, ssl=self.context())
        self.port = server.sockets[0].getsockname()[1]
        self.peer = self.new_call()
        try:
            yield self
        finally:
            server.close()
            for writer in self.connections:
                writer.close()
            for task in tuple(self._reading):
                task.cancel()
            await asyncio.gather(*self._reading, return_exceptions=True)

    def new_call(self) -> Caller:
        """A call that the service makes, or takes if it is the next to come."""
        self.peer = Caller("TLS", self._send, (self.host, self.port))
        self._peers.append(self.peer)
        return self.peer

    async def connect(self, sip: SipEndpoint, name: str, source: str = HOST) -> None:
        """To us, by our name, which our certificate must have."""
        context = ssl.create_default_context(cafile=str(self.authority))
        if self.asks_for_certificates:
            context.load_cert_chain(*self.identity)
        reader, writer = await asyncio.open_connection(
            HOST,
            port_of(sip, "TLS"),
            ssl=context,
            server_hostname=name,
            local_addr=(source, 0),
        )
        task = asyncio.create_task(self._serve(reader, writer))
        self._reading.add(task)
        task.add_done_callback(self._reading.discard)
        await asyncio.sleep(0)

    def hang_up_connections(self) -> None:
        for writer in self.connections:
            writer.close()
        self.connections.clear()

    def _send(self, data: bytes) -> None:
        self.connections[-1].write(data)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections.append(writer)
        framer = StreamFramer()
        certificate = writer.get_extra_info("peercert") or {}
        names = [value for kind, value in certificate.get("subjectAltName", ()) if kind == "DNS"]
        with suppress(OSError):
            while data := await reader.read(65536):
                for piece in framer.receive(data):
                    if isinstance(piece, bytes):
                        self._take(piece, writer, names)
        if writer in self.connections:
            self.connections.remove(writer)
        writer.close()

    def _take(self, data: bytes, writer: asyncio.StreamWriter, names: list[str]) -> None:
        if writer in self.connections:
            self.connections.remove(writer)
        self.connections.append(writer)
        message = parse_message(data)
        if isinstance(message, Request) and not message.to.tag and message.method != "ACK":
            broken = self.judge(message, names)
            if broken is not None:
                status, reason, headers = broken
                self.refused.append((message.method, status, reason))
                answer = respond(message, status, reason, to_tag="rule", headers=headers)
                writer.write(answer.serialize())
                return
            if message.method == "OPTIONS":
                self.probes.append(message)
                headers = [("Allow", self.allow)]
                answer = respond(message, 200, to_tag="probe", headers=headers)
                writer.write(answer.serialize())
                return
        if isinstance(message, Request) and message.method == "ACK" and message.to.tag == "rule":
            return
        its = (peer for peer in self._peers if peer.call_id == message.call_id)
        next(its, self.peer).receive(data)


def known_hosts(monkeypatch: pytest.MonkeyPatch, directory: Path, **hosts: str) -> None:
    """Names are found without DNS: `hosts` are addresses by name, with "_" for "."."""
    lines = [f"{address} {name.replace('_', '.')}" for name, address in hosts.items()]
    file = directory / "hosts"
    file.write_text("\n".join(lines) + "\n")
    monkeypatch.setattr(resolver_io, "HOSTS", file)
