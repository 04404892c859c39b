"""Those whom a campaign calls, at one address: by their numbers they answer, are machines, are
busy, do not answer, or refuse; over real SIP and RTP."""

import asyncio
import itertools
import re
import socket
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from struct import pack

import numpy as np

from offhook.media.tasks_io import TaskSet
from offhook.telephony.sip.messages.headers import Headers
from offhook.telephony.sip.messages.message import Request, parse_message, respond
from offhook.telephony.sip.messages.uri import Uri

HOST = "127.0.0.1"
PACKET_S, PACKET_SAMPLES = 0.02, 160
FAX_HZ = 2100
STATUSES = {"busy": 486, "no answer": 480, "refused": 603, "failed": 503}
PATIENCE_S = 30.0
"""Time in s after which a machine, and whoever hears nothing of us any more, hangs up."""
numbers = itertools.count(1)


def fax_tone() -> bytes:
    """20 ms of it in µ-law (G.711), with whole periods."""
    times = np.arange(PACKET_SAMPLES) / 8000
    tone = 8000 * np.sin(2 * np.pi * FAX_HZ * times)
    size = np.abs(tone).astype(int) + 132
    exponent = np.floor(np.log2(size)).astype(int) - 7
    mantissa = (size >> (exponent + 3)) & 15
    sign = np.where(tone < 0, 128, 0)
    return bytes((~(sign | exponent << 4 | mantissa) & 255).astype(np.uint8))


@dataclass
class Callee:
    """Somebody's phone in a call."""

    invite: Request
    number: str
    kind: str
    over: asyncio.Event = field(default_factory=asyncio.Event)
    confirmed: asyncio.Event = field(default_factory=asyncio.Event)


class Callees(asyncio.DatagramProtocol):
    """`kind_of` returns what somebody does who is called for the nth time, from 0: "human",
    "machine", or one of STATUSES."""

    def __init__(self, kind_of: Callable[[str, int], str], talks_s: float = 0.1) -> None:
        self.called: list[tuple[float, str, str]] = []
        """Times on a steady clock, numbers and kinds of all calls."""
        self.at_once = self.most_at_once = 0
        """Calls now, of the server as it was started last, and the most there were."""
        self._kind_of, self._talks_s = kind_of, talks_s
        self._calls: dict[str, Callee] = {}
        self._times: Counter[str] = Counter()
        self._tasks = TaskSet()
        self._transport: asyncio.DatagramTransport
        self._tone = fax_tone()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[str]:
        """Gives its host:port."""
        loop = asyncio.get_running_loop()
        self._transport, _ = await loop.create_datagram_endpoint(lambda: self, local_addr=(HOST, 0))
        try:
            yield self.address
        finally:
            await self._tasks.close()
            self._transport.close()

    @property
    def address(self) -> str:
        return f"{HOST}:{self._transport.get_extra_info('sockname')[1]}"

    def kinds(self) -> Counter[str]:
        """How often each kind was called."""
        return Counter(kind for _, _, kind in self.called)

    def times_of(self) -> Counter[str]:
        """How often each number was called."""
        return Counter(number for _, number, _ in self.called)

    def server_died(self) -> None:
        """Calls of the one before are nobody's any more."""
        self.at_once = 0
        for call in self._calls.values():
            call.over.set()
        self._calls.clear()

    def datagram_received(self, data: bytes, source: tuple[str, int]) -> None:
        with suppress(ValueError):
            message = parse_message(data)
            if isinstance(message, Request):
                self._receive(message, source)

    def _receive(self, request: Request, source: tuple[str, int]) -> None:
        call = self._calls.get(request.call_id)
        match request.method:
            case "INVITE" if call is None:
                self._tasks.spawn(self._answer(request, source), "a callee")
            case "ACK" if call is not None:
                call.confirmed.set()
            case "BYE":
                self._send(respond(request, 200), source)
                if call is not None:
                    call.over.set()
            case "OPTIONS" | "CANCEL":
                self._send(respond(request, 200), source)

    def _send(self, message: object, to: tuple[str, int]) -> None:
        self._transport.sendto(message.serialize(), to)  # type: ignore[attr-defined]

    async def _answer(self, invite: Request, source: tuple[str, int]) -> None:
        number = invite.uri.user
        kind = self._kind_of(number, self._times[number])
        self._times[number] += 1
        self.called.append((time.monotonic(), number, kind))
        call = self._calls[invite.call_id] = Callee(invite, number, kind)
        self.at_once += 1
        self.most_at_once = max(self.at_once, self.most_at_once)
        self._send(respond(invite, 180, to_tag="far"), source)
        if kind in STATUSES:
            self._send(respond(invite, STATUSES[kind], to_tag="far"), source)
        else:
            await self._talk(call, source)
        if self._calls.get(invite.call_id) is call:
            self.at_once -= 1  # its id is remembered, for what is sent again

    async def _talk(self, call: Callee, source: tuple[str, int]) -> None:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sound:
            sound.bind((HOST, 0))
            port, contact = sound.getsockname()[1], [("Contact", f"<sip:far@{self.address}>")]
            sdp = (
                f"v=0\r\no=- 1 1 IN IP4 {HOST}\r\ns=-\r\nc=IN IP4 {HOST}\r\nt=0 0\r\n"
                f"m=audio {port} RTP/AVP 0\r\na=rtpmap:0 PCMU/8000\r\n"
            ).encode()
            answer = respond(
                *(call.invite, 200),
                to_tag="far",
                headers=contact,
                body=sdp,
                content_type="application/sdp",
            )
            while not call.confirmed.is_set() and not call.over.is_set():
                self._send(answer, source)
                with suppress(TimeoutError):
                    await asyncio.wait_for(call.confirmed.wait(), 0.5)
            if call.kind == "machine":
                await self._send_tone(call, sound)
            else:
                with suppress(TimeoutError):
                    await asyncio.wait_for(call.over.wait(), self._talks_s)
        if not call.over.is_set():
            self._hang_up(call, source)

    async def _send_tone(self, call: Callee, sound: socket.socket) -> None:
        offered = call.invite.body.decode()
        [port] = re.findall(r"m=audio (\d+) ", offered)
        ssrc = next(numbers)
        for packet in range(round(PATIENCE_S / PACKET_S)):
            if call.over.is_set():
                return
            head = pack("!BBHII", 0x80, 0, packet, packet * PACKET_SAMPLES, ssrc)
            with suppress(OSError):  # the server is gone
                sound.sendto(head + self._tone, (HOST, int(port)))
            await asyncio.sleep(PACKET_S)

    def _hang_up(self, call: Callee, source: tuple[str, int]) -> None:
        invite, headers = call.invite, Headers()
        headers.add("Via", f"SIP/2.0/UDP {self.address};branch=z9hG4bKfar{next(numbers)};rport")
        headers.add("From", f"{invite.headers.get('To')};tag=far")
        headers.add("To", invite.headers.get("From") or "")
        headers.add("Call-ID", invite.call_id)
        headers.add("CSeq", "1 BYE")
        headers.add("Max-Forwards", "70")
        target = str(invite.contacts[0].uri)
        self._send(Request("BYE", Uri.parse(target), headers, b""), source)
