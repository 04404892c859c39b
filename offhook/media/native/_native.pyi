"""What module.c and its neighbours offer; the Python classes say what it means."""

from collections.abc import Callable, Mapping

from offhook.media.pcm import Pcm
from offhook.media.rtp.jitter import Arrival, Queued
from offhook.media.rtp.rtp import RtpPacket

CONSTANTS: dict[str, float]
"""Those that must equal Python's."""

def use_types(arrivals: tuple[Arrival, ...], queued: type[Queued]) -> None:
    """Sets what JitterBuffer returns."""

def request_times(fd: int) -> None:
    """Has the kernel note when the data of a connection arrives."""

def mean_square(pcm: Pcm) -> float:
    """Mean square of a sound."""

def mix_unlimited(sounds: list[Pcm], ceiling: int) -> Pcm | None:
    """Sum of sounds of one length, at most a tick at 24 kHz; None if a sample of it would be beyond
    the ceiling, or they are longer."""

def read_stream(fd: int, now: float, reader: MediaReader | None) -> tuple[bytes, float] | None:
    """Reads what has arrived at a connection, at most 64 KiB, without waiting. Has `reader` read
    what it can, and returns the rest and when the last of it arrived; None if nothing is left; no
    bytes at the end of the connection, or if it is broken. `now` is in monotonic seconds."""

def write_stream(fd: int, data: bytes) -> int:
    """Writes to a connection without waiting. Returns how many bytes it has taken; 0 also if it is
    broken."""

class Fir:
    def __init__(self, taps: object, up: int, down: int) -> None: ...
    def process(self, pcm: Pcm) -> Pcm: ...

class History:
    _concealed: int
    def _append_history(self, pcm: Pcm) -> None: ...
    def _history(self) -> Pcm: ...

class G711Decoder:
    def __init__(self, levels: object, fir: Fir | None, history: object) -> None: ...
    def decode(self, payload: bytes) -> Pcm: ...

class G711Encoder:
    def __init__(self, codes: object, fir: Fir | None) -> None: ...
    def encode(self, pcm: Pcm) -> bytes: ...

class G722Decoder:
    def __init__(self, history: object) -> None: ...
    def decode(self, payload: bytes) -> Pcm: ...

class G722Encoder:
    def __init__(self, fir: Fir | None) -> None: ...
    def encode(self, pcm: Pcm) -> bytes: ...

class OpusDecoder:
    def __init__(self, memory: object, decode: int, count: int) -> None: ...
    def take_failure(self) -> int: ...

class OpusEncoder:
    def __init__(self, memory: object, encode: int) -> None: ...

class JitterBuffer:
    clock_rate: int
    packet_ticks: int
    position: int | None
    repairable: bool
    dropped: int
    def __init__(self, clock_rate: int) -> None: ...
    def __len__(self) -> int: ...
    @property
    def target(self) -> float: ...
    @property
    def head(self) -> Queued | None: ...
    def pop(self) -> Queued: ...
    def backlog(self) -> float: ...
    def slack(self, timestamp: int, now: float) -> float: ...
    def skip_non_audio(self, sequence_number: int) -> int | None: ...
    def is_behind(self, sequence_number: int) -> bool: ...
    def insert(self, packet: RtpPacket, now: float) -> Arrival: ...

class Reception:
    def receive(self, sequence_number: int, timestamp: int | None, now: float) -> None: ...

class ReceiverStats: ...

class Receiver:
    _steady: G711Decoder | G722Decoder | OpusDecoder | None
    _steady_type: int
    def accept(self, data: bytes, now: float) -> bool: ...
    def _pull_steady(self, now: float) -> Pcm | None: ...

class Port:
    def __init__(
        self,
        fd: int,
        receive: Callable[[bytes, tuple[str, int], float], None],
        leg: object,
        transport: object,
        latch: object,
    ) -> None: ...

class Ports:
    def __init__(self, epoll: int, ports: Mapping[int, Port]) -> None: ...
    def read(self, now: float, waited: bool) -> int:
        """Read the ports at which something has arrived, at most READY_PORTS; returns how many.
        `waited` as of SharedPort."""

class Sender:
    _compiled: G711Encoder | G722Encoder | OpusEncoder | None
    def _steady(self, pcm: Pcm | None, now: float) -> bytes | None: ...

class Srtp:
    def __init__(
        self, session: object, state: int, protect: int, unprotect: int, unprotect_rtcp: int
    ) -> None: ...
    def protect(self, packet: bytes) -> bytes | None: ...

class Inbound:
    def __init__(self, leg: object, srtp: Srtp) -> None: ...

class SharedPort:
    def __init__(
        self,
        fd: int,
        paths: Mapping[tuple[str, int], object],
        receive: Callable[[bytes, tuple[str, int], float], None],
    ) -> None: ...
    def read(self, now: float, waited: bool) -> int:
        """Read what has arrived, at most DRAIN_DATAGRAMS; returns how many. `waited`: they may have
        waited, and have arrived when the kernel says so; else `now`."""

class Packetizer: ...

class MediaReader:
    def __init__(
        self,
        literals: tuple[bytes, ...],
        fields: str,
        packetizer: Packetizer,
        receiver: Receiver,
    ) -> None:
        """`literals` and `fields` of MediaForm."""
    def read(self, data: bytes, now: float) -> int:
        """Receive the whole media messages of the form at the start of a WebSocket's data, between
        two frames. Returns how many bytes they are; what follows is Python's."""

class MediaWriter:
    def __init__(self, before: bytes, after: bytes, encoder: G711Encoder) -> None:
        """`before` and `after`: the text around the payload of a media message."""
    def frame(self, pcm: Pcm) -> bytes:
        """Encode sound at 24 kHz, at most 120 ms, into a WebSocket frame with a media message."""
