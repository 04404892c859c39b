"""SCTP associations that keep within limits: aiortc's, with a receiving side of our own.

aiortc 1.16.0 keeps fragments in a list for each stream and looks through all of it at every chunk,
keeps no window, stays for ever at a parameter without length, and does as much work for an
acknowledgement as the peer asks. An `Association` stands where aiortc would make an
RTCSctpTransport, in the whole process. All private names of aiortc's SCTP that it relies on are in
this file; tests/signaling/test_sctp_io.py fails if one of them moves.
"""

from collections.abc import Callable
from struct import unpack_from
from time import monotonic
from typing import Any

import aiortc.rtcpeerconnection
import aiortc.rtcsctptransport as aiortc_sctp
from aiortc import RTCDataChannel, RTCSctpTransport
from loguru import logger

from offhook.media.budget import Budget
from offhook.signaling.sctp import DCEP, MAX_MESSAGE_BYTES, Data, Inbound, Message, SctpViolation

PAYLOAD_BYTES = 1100
"""Of a chunk that we send. aiortc's own makes datagrams of 1245 bytes, lost in some tunnels (IPv6,
VPNs)."""
MAX_CHANNELS = 16
"""Data channels open at a time, of which clients use one or two; another one aborts the
association."""
CHUNKS_PER_SECOND = 1000
"""Chunks of a peer that are handled; what comes beyond is dropped, and comes again, as on a narrow
line. It is a megabyte in a second, or so many messages."""
CHUNKS_AT_ONCE = 1000
"""Chunks that are handled at once after some silence: four messages of the largest size."""
MAX_CONTROL_CHUNKS = 4
"""Chunks other than DATA in a packet, of which each may be answered; a packet with more is
dropped."""
MAX_RECONFIG_PARAMETERS = 2
"""Maximum parameters of a RE-CONFIG chunk (RFC 6525 §3.1); a packet with more is dropped."""
MAX_IN_FLIGHT_BYTES = 64 * 1024
"""Maximum bytes sent and not acknowledged (the congestion window); more wait to be sent, which our
messages of a round trip never reach."""
BOOKED_BYTES = 256
"""Minimum that a chunk counts in that window, so that it has at most 256 chunks, as an
acknowledgement needs time for each of them; further chunks wait to be sent."""
PROTOCOL_VIOLATION = 13
"""Error cause of an ABORT (RFC 9260 §3.3.10.13), with the reason in words."""

_PARAMETER_HEADER_BYTES = 4
_OPEN = 3
_MASK = (1 << 32) - 1


def parameters(body: bytes) -> list[tuple[int, bytes]]:
    """Returns the type and value of each parameter of a chunk (RFC 9260 §3.2.1). Raises ValueError
    if one is shorter than its header, at which aiortc would stay for ever, or is cut off."""
    found, at = [], 0
    while at + _PARAMETER_HEADER_BYTES <= len(body):
        kind, length = unpack_from("!HH", body, at)
        if not _PARAMETER_HEADER_BYTES <= length <= len(body) - at:
            raise ValueError(f"a parameter of {length} bytes")
        found.append((kind, body[at + _PARAMETER_HEADER_BYTES : at + length]))
        at += (length + 3) & ~3
    return found


def _parse(data: bytes) -> tuple[int, int, int, list[aiortc_sctp.Chunk]]:
    """Parses a packet. Raises ValueError, whatever is wrong with it."""
    try:
        packet = _parse_packet(data)
    except Exception as error:  # struct.error of short chunks, …
        raise ValueError(str(error)) from error
    control = [chunk for chunk in packet[3] if not isinstance(chunk, aiortc_sctp.DataChunk)]
    if len(control) > MAX_CONTROL_CHUNKS:
        raise ValueError(f"more than {MAX_CONTROL_CHUNKS} chunks that are not data")
    for chunk in control:
        if isinstance(chunk, aiortc_sctp.ReconfigChunk):
            if len(chunk.params) > MAX_RECONFIG_PARAMETERS:
                raise ValueError(f"more than {MAX_RECONFIG_PARAMETERS} parameters")
        elif isinstance(chunk, aiortc_sctp.InitChunk) and len(packet[3]) > 1:
            raise ValueError("an INIT beside other chunks")
    return packet


class Association(RTCSctpTransport):
    """An association that is aborted when its peer breaks the protocol or a limit."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        self._inbound = Inbound(0)
        self._began_after: int | None = None
        super().__init__(*arguments, **options)
        self.call_id = ""
        """For the log."""
        self._refused = False
        self._reported = False
        """The log says that a message was too long for the peer."""
        self._budget = Budget(CHUNKS_PER_SECOND, CHUNKS_AT_ONCE)
        self._advertised_rwnd = self._inbound.window  # in our INIT

    @property
    def _last_received_tsn(self) -> int:
        """The cumulative TSN. To set it, as aiortc does at an INIT, is to begin anew, unless that
        INIT has come before: what was received stays received (RFC 9260 §5.2.2)."""
        return self._inbound.last_tsn

    @_last_received_tsn.setter
    def _last_received_tsn(self, tsn: int | None) -> None:
        if tsn is None or tsn != self._began_after:
            self._began_after, self._inbound = tsn, Inbound(tsn or 0)

    # --- packets in ---

    async def _handle_data(self, data: bytes) -> None:
        if self._refused:
            return
        try:
            await super()._handle_data(data)
        except ConnectionError:  # of DTLS, which ends
            raise
        except SctpViolation as violation:
            await self._refuse(str(violation))
        except Exception as error:  # aiortc asserts what a peer should not do
            await self._refuse(f"{type(error).__name__}: {error}")

    async def _refuse(self, reason: str) -> None:
        """Aborts the association for good (RFC 9260 §9.1)."""
        self._refused = True
        line = logger.bind(a_minute="SCTP")
        line.warning("{}: the data channels are closed: {}", self.call_id, reason)
        abort = aiortc_sctp.AbortChunk()
        abort.params.append((PROTOCOL_VIOLATION, reason.encode()[:PAYLOAD_BYTES]))
        await self._send_chunk(abort)
        self._set_state(self.State.CLOSED)

    async def _receive_chunk(self, chunk: aiortc_sctp.Chunk) -> None:
        if not self._refused and self._budget.spend(1, monotonic()):
            await super()._receive_chunk(chunk)

    async def _receive_data_chunk(self, chunk: aiortc_sctp.DataChunk) -> None:
        self._sack_needed = True
        data = Data(
            chunk.tsn,
            chunk.stream_id,
            chunk.protocol,
            bool(chunk.flags & aiortc_sctp.SCTP_DATA_FIRST_FRAG),
            bool(chunk.flags & aiortc_sctp.SCTP_DATA_LAST_FRAG),
            bool(chunk.flags & aiortc_sctp.SCTP_DATA_UNORDERED),
            chunk.user_data,
        )
        await self._deliver(self._inbound.receive(data))

    async def _receive_forward_tsn_chunk(self, chunk: aiortc_sctp.ForwardTsnChunk) -> None:
        self._sack_needed = True
        await self._deliver(self._inbound.skip(chunk.cumulative_tsn))

    async def _deliver(self, messages: list[Message]) -> None:
        for message in messages:
            await self._receive(message.stream, message.protocol, message.data)
        await self._reset_deferred_streams()

    async def _data_channel_receive(self, stream_id: int, pp_id: int, data: bytes) -> None:
        if pp_id == DCEP and data[0] == _OPEN:
            if stream_id in self._data_channels:
                raise SctpViolation(f"a second DATA_CHANNEL_OPEN on stream {stream_id}")
            if len(self._data_channels) >= MAX_CHANNELS:
                raise SctpViolation(f"more than {MAX_CHANNELS} data channels")
        elif pp_id == DCEP and stream_id not in self._data_channels:
            raise SctpViolation(f"no data channel is open on stream {stream_id}")
        await super()._data_channel_receive(stream_id, pp_id, data)

    def _data_channel_send(self, channel: RTCDataChannel, data: bytes | str) -> None:
        """Drops a message that is longer than the peer says to take (a=max-message-size)."""
        try:
            super()._data_channel_send(channel, data)
        except ValueError as error:
            if not self._reported:
                line = logger.bind(a_minute="max-message-size")
                line.warning("{}: a message is not sent: {}", self.call_id, error)
            self._reported = True

    # --- acknowledgements ---

    async def _send_sack(self) -> None:
        sack = aiortc_sctp.SackChunk()
        sack.cumulative_tsn = self._inbound.last_tsn
        sack.advertised_rwnd = self._inbound.window
        sack.gaps = self._inbound.gaps()
        sack.duplicates, self._inbound.duplicates = self._inbound.duplicates, []
        self._sack_needed = False
        await self._send_chunk(sack)

    async def _receive_sack_chunk(self, chunk: aiortc_sctp.SackChunk) -> None:
        """Leaves out gap blocks of what was never sent, and those that are not in order: aiortc
        goes through each TSN of each of them."""
        unacknowledged = (self._local_tsn - 1 - chunk.cumulative_tsn) & _MASK
        if unacknowledged > _MASK >> 1:
            raise SctpViolation("an acknowledgement of what was not sent")
        gaps, before = [], 0
        for first, last in chunk.gaps:
            if before < first <= last <= unacknowledged:
                gaps.append((first, last))
                before = last
        chunk.gaps = gaps
        await super()._receive_sack_chunk(chunk)
        self._cwnd = min(self._cwnd, MAX_IN_FLIGHT_BYTES)

    def _flight_size_increase(self, chunk: aiortc_sctp.DataChunk) -> None:
        chunk._book_size = max(chunk._book_size, BOOKED_BYTES)
        super()._flight_size_increase(chunk)


_parse_packet: Callable[[bytes], tuple[int, int, int, list[aiortc_sctp.Chunk]]]
_parse_packet = aiortc_sctp.parse_packet
aiortc_sctp.parse_packet = _parse
aiortc_sctp.decode_params = parameters
aiortc_sctp.USERDATA_MAX_LENGTH = PAYLOAD_BYTES
aiortc_sctp.LOCAL_MAX_MESSAGE_SIZE = MAX_MESSAGE_BYTES
aiortc.rtcpeerconnection.RTCSctpTransport = Association  # type: ignore[attr-defined]
