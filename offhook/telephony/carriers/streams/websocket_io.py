"""The WebSocket that a carrier opened, as one leg's line.

Nothing waits here: no task is woken for each 20 ms of each call, which would cost as much as the
sound itself. What comes is read in the next tick of the leg, which is when its sound is wanted,
and what the leg says in a tick is written once the ticks of all legs are done: so the same code
runs for many lines in a row, and the processor has it at hand.
"""

import asyncio
import contextlib
from base64 import b64decode, b64encode
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from hashlib import sha1
from time import monotonic

from aiohttp import web
from loguru import logger

from offhook.media.end_reason import End
from offhook.telephony.call_record import EndedBy
from offhook.telephony.carriers.leg_io import CarrierLeg
from offhook.telephony.carriers.streams.frames import (
    Close,
    CloseCode,
    Control,
    FrameReader,
    Opcode,
    Ping,
    Pong,
    Violation,
    close_payload,
    control_frame,
    frame,
)
from offhook.telephony.carriers.streams.stream import CarrierError, Message

WRITE_BUFFER_BYTES = 128 * 1024
"""What waits to be sent, some 4 s of sound in JSON with its marks. A carrier that does not read
for so long has lost the call."""
MAX_MESSAGE_BYTES = 512 * 1024
"""More than a message of any provider has; the socket is closed (1009) on what is longer."""
UNREAD_BYTES = 64 * 1024
"""What waits for a tick; more is read at once."""
HEARTBEAT_S = 20.0
"""Without a word of the far end before we ask for one by a ping: a carrier whose machine is gone
says nothing, and one whose caller is silent may not either."""
PONG_S = 10.0
"""For its answer."""
CLOSE_S = 2.0
"""For the far end to close after us."""

_ACCEPT = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
"""What proves that a server understood the handshake (RFC 6455 §1.3)."""


def handshake(request: web.Request, protocols: tuple[str, ...]) -> dict[str, str]:
    """The headers that accept a WebSocket (RFC 6455 §4.2.2); of the protocols the first that the
    client names too. Raises HTTPBadRequest, and HTTPUpgradeRequired for other versions than 13."""
    headers = request.headers
    connection = {name.strip().lower() for name in headers.get("Connection", "").split(",")}
    if headers.get("Upgrade", "").strip().lower() != "websocket" or "upgrade" not in connection:
        raise web.HTTPBadRequest(text="a WebSocket is expected here")
    if headers.get("Sec-WebSocket-Version", "").strip() != "13":
        version = {"Sec-WebSocket-Version": "13"}
        raise web.HTTPUpgradeRequired(text="WebSocket version 13 is spoken here", headers=version)
    key = headers.get("Sec-WebSocket-Key", "").strip()
    try:
        fits = len(b64decode(key, validate=True)) == 16
    except ValueError:
        fits = False
    if not fits:
        raise web.HTTPBadRequest(text="Sec-WebSocket-Key is not 16 bytes in base64")
    accept = b64encode(sha1(key.encode() + _ACCEPT).digest()).decode()
    answer = {"Upgrade": "websocket", "Connection": "Upgrade", "Sec-WebSocket-Accept": accept}
    offered = [n.strip() for n in headers.get("Sec-WebSocket-Protocol", "").split(",")]
    if (chosen := next((name for name in protocols if name in offered), None)) is not None:
        answer["Sec-WebSocket-Protocol"] = chosen
    return answer


class StreamSocket:
    """Feeds a leg what comes, and sends what the leg says at once."""

    def __init__(self, protocols: tuple[str, ...] = ()) -> None:
        self.response = web.StreamResponse(status=101)
        """What the request's handler returns in the end."""
        self._protocols = protocols
        self._request: web.Request | None = None
        self._transport: asyncio.Transport | None = None
        self._reader = FrameReader(MAX_MESSAGE_BYTES)
        self._leg: CarrierLeg | None = None
        self._unread: list[tuple[float, bytes]] = []
        """What came since the last tick, and when, in monotonic seconds."""
        self._unread_bytes = 0
        self._unsent: list[bytes] = []
        """What is to be written in this turn of the loop."""
        self._heard_at = 0.0
        """Monotonic seconds of the last bytes."""
        self._beat: asyncio.TimerHandle | None = None
        self._closing = False
        """Our close frame is sent: nothing may follow it."""
        self._ended = asyncio.Event()
        """The far end closed too, or is gone."""

    async def accept(self, request: web.Request) -> None:
        """Raises HTTPException for what is no WebSocket."""
        self.response.headers.update(handshake(request, self._protocols))
        self.response.force_close()  # it is no HTTP any more
        await self.response.prepare(request)
        request.protocol.keep_alive(False)
        self._request, self._transport = request, request.transport

    def send(self, message: Message) -> None:
        """At once, and not at all when the socket is closed. Closes the line when too much
        waits."""
        self._write(frame(message))

    def _write(self, data: bytes) -> None:
        if self._transport is None or self._closing:
            return
        if not self._unsent:
            asyncio.get_running_loop().call_soon(self._flush)
        self._unsent.append(data)

    def _flush(self) -> None:
        transport, unsent = self._transport, self._unsent
        if not unsent:
            return
        data = unsent[0] if len(unsent) == 1 else b"".join(unsent)
        unsent.clear()
        if transport is None or transport.is_closing():
            return
        if transport.get_write_buffer_size() > WRITE_BUFFER_BYTES:
            self._hang_up(End.CARRIER_SILENT + " read", "transport")
            return
        transport.write(data)

    @asynccontextmanager
    async def line(self, leg: CarrierLeg) -> AsyncIterator[None]:
        """Within it the leg hears and speaks. At the end what was said last is still sent, and
        the socket is closed, as it is when the leg closes first or the far end does."""
        assert self._request is not None
        self._leg = leg
        leg.open(self._read)
        self._heard_at = monotonic()
        self._beat_in(HEARTBEAT_S)
        self._request.protocol.set_parser(self)  # type: ignore[arg-type]
        if self._transport is None:
            self.feed_eof()
        try:
            yield
        finally:
            leg.close("the server closed the stream")
            await self._finish()

    async def _finish(self) -> None:
        """Close, in order where the far end lets us."""
        assert self._beat is not None
        self._read()
        transport = self._transport
        self._close(CloseCode.NORMAL)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_S):
                await self._ended.wait()
        self._beat.cancel()
        if transport is not None and not self._ended.is_set():
            transport.abort()

    # --- what comes: as aiohttp's protocol hands it over ---

    def feed_data(self, data: bytes) -> tuple[bool, bytes]:
        """Some bytes of the connection; says that it goes on, and that all were taken."""
        leg = self._leg
        assert leg is not None
        self._heard_at = now = monotonic()
        self._unread.append((now, data))
        self._unread_bytes += len(data)
        if not leg.ticks or leg.closed is not None or self._unread_bytes > UNREAD_BYTES:
            self._read()
        return False, b""

    def feed_eof(self) -> None:
        """The connection is gone."""
        self._read()
        self._transport = None
        self._hang_up(End.STREAM_CLOSED, "remote")
        self._ended.set()

    def _read(self) -> None:
        """Give the leg what came."""
        if not self._unread:
            return
        leg, unread = self._leg, self._unread
        assert leg is not None
        self._unread, self._unread_bytes = [], 0
        try:
            for now, data in unread:
                for item in self._reader.receive(data):
                    if isinstance(item, tuple):
                        self._take(item)
                    else:
                        leg.receive(item, now)
        except CarrierError as error:
            leg.close(str(error), "transport")
        except Exception:
            logger.exception("{}: the line failed", leg.call_id)
            leg.close(End.LINE_FAILED)

    def _take(self, item: Control) -> None:
        match item:
            case Ping(payload):
                self._write(control_frame(Opcode.PONG, payload))
            case Pong():
                pass
            case Close(code):
                self._end(code, End.STREAM_CLOSED, "remote")
            case Violation(code, text):
                self._end(code, End.SOCKET + f": {text}", "transport")

    def _end(self, code: int, reason: str, ended_by: EndedBy) -> None:
        """Nothing more is read. The server is to close the connection (RFC 6455 §7.1.1)."""
        self._hang_up(reason, ended_by)
        self._close(code)
        self._ended.set()
        if self._transport is not None:
            self._transport.close()

    def _hang_up(self, reason: str, ended_by: EndedBy) -> None:
        if self._leg is not None:
            self._leg.close(reason, ended_by)

    def _close(self, code: int) -> None:
        self._write(control_frame(Opcode.CLOSE, close_payload(code)))
        self._flush()
        self._closing = True

    # --- whether the far end is there ---

    def _beat_in(self, seconds: float) -> None:
        self._beat = asyncio.get_running_loop().call_later(seconds, self._check)

    def _check(self) -> None:
        silent = monotonic() - self._heard_at
        if silent < HEARTBEAT_S:
            self._beat_in(HEARTBEAT_S - silent)
        elif silent < HEARTBEAT_S + PONG_S:
            self._write(control_frame(Opcode.PING))
            self._beat_in(HEARTBEAT_S + PONG_S - silent)
        else:
            self._hang_up(End.CARRIER_SILENT + " answer", "timeout")
            if self._transport is not None:
                self._transport.abort()
