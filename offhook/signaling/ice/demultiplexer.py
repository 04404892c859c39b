"""Shares a port among many ICE agents: finds the one that a datagram is for.

A STUN request is for the agent whose ufrag its USERNAME begins with (RFC 8445 §7.3), never for the
one that its source address belonged to, which may be in use by another call by now. Only a request
with the agent's MESSAGE-INTEGRITY, or a response with its peer's, makes the source address the
agent's; all that is no STUN (RFC 7983) goes by that address and the local one. Nothing is answered
here, and what is for nobody is dropped and counted.
"""

import secrets
import string
import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

from aioice import stun
from aioice.candidate import candidate_priority

Address = tuple[str, int]
"""IP address and port."""

UFRAG_CHARACTERS = 12
"""aioice's 4 collide among thousands of calls (RFC 8839 §5.4 asks for 24 bits of randomness)."""
PASSWORD_CHARACTERS = 24
"""At least 22 (RFC 8839 §5.4)."""
MAX_ADDRESSES = 64
"""Remote addresses that an agent may learn in its life, as aioice keeps each of them; packets and
checks from further ones are dropped and counted."""
SEARCH_INTERVAL_S = 0.01
"""Packets from unknown addresses in between are dropped without a look at their SSRC: a flood of
them costs next to nothing."""
TOMBSTONE_S = 10.0
"""How long checks of an ended call count as late and its ufrag is not used again."""
MAX_TOMBSTONES = 4096
"""Maximum names of ended sessions that are remembered; the oldest are forgotten."""

_HEADER = struct.Struct("!HHI")
_ATTRIBUTE = struct.Struct("!HH")
_HEADER_BYTES = 20
_RTP_HEADER_BYTES = 12
_CLASS = 0x0110
_REQUEST = 0x0000
_INDICATION = 0x0010
_USERNAME = 0x0006
_CHARACTERS = string.ascii_letters + string.digits
_PRIORITY = candidate_priority(1, "prflx")


class Receiver(Protocol):
    """An ICE agent that shares the port."""

    def receive_data(self, data: bytes) -> None:
        """Handles DTLS, SRTP or SRTCP from an address of the agent."""

    def receive_request(self, message: stun.Message, local: "Local", remote: Address) -> None:
        """Handles a connectivity check whose MESSAGE-INTEGRITY was right; it has a PRIORITY."""

    def receive_response(self, message: stun.Message, local: "Local", remote: Address) -> bool:
        """Handles the response to a request that was announced with `Demultiplexer.expect`. Returns
        whether its MESSAGE-INTEGRITY was right."""

    def close_local(self, local: "Local") -> None:
        """Forgets a local socket that was closed."""

    def sends(self, ssrc: int) -> bool:
        """Returns whether the peer's RTP has this SSRC."""

    def check_address(self, local: "Local", remote: Address) -> None:
        """Begins a connectivity check to an address from which the peer may send now."""


@dataclass(eq=False, slots=True)
class IceSession:
    """The credentials of an ICE agent, and the paths that it has learned."""

    receiver: Receiver
    ufrag: bytes
    password: bytes
    deliver: Callable[[bytes], None]
    """The receiver's `receive_data`."""
    paths: "set[tuple[Local, Address]]" = field(default_factory=set)
    learned: int = 0
    """Number of addresses learned so far, at most MAX_ADDRESSES."""
    checked: set[Address] = field(default_factory=set)
    """Addresses to which `check_address` was called, at most MAX_ADDRESSES."""


@dataclass(slots=True)
class Dropped:
    """Datagrams for nobody, by the reason."""

    malformed: int = 0
    """Begins like STUN and is none, or an attribute cannot be parsed."""
    unknown_ufrag: int = 0
    late: int = 0
    """A check of a call that has just ended."""
    unauthenticated: int = 0
    """A check with a wrong or no MESSAGE-INTEGRITY."""
    too_many_addresses: int = 0
    unexpected: int = 0
    """A STUN response to no request, or an indication."""
    unknown_address: int = 0
    """Neither STUN nor from an address of an agent."""


class Local:
    """A local socket: the remote addresses that agents have learned on it."""

    __slots__ = ("_demultiplexer", "_paths", "on_unused", "transport")

    def __init__(
        self, demultiplexer: "Demultiplexer", transport: Any, on_unused: Callable[[], None]
    ) -> None:
        self.transport = transport
        """What sends on the socket; not used here."""
        self.on_unused = on_unused
        """Called when the last agent with an address on it is removed."""
        self._demultiplexer = demultiplexer
        self._paths: dict[Address, IceSession] = {}

    @property
    def paths(self) -> dict[Address, IceSession]:
        """The owner of each remote address."""
        return self._paths

    def receive(self, data: bytes, remote: Address, now: float) -> None:
        """Hands a datagram to the agent that it is for. `now` is in s of any clock."""
        if data and data[0] > 3:  # no STUN (RFC 7983 §7)
            session = self._paths.get(remote)
            if session is not None:
                session.deliver(data)
            else:
                self._demultiplexer.receive_unknown(data, self, remote, now)
        else:
            self._demultiplexer.receive_stun(data, self, remote, now)


class Demultiplexer:
    """All agents of a port."""

    def __init__(self) -> None:
        self.dropped = Dropped()
        self._sessions: dict[bytes, IceSession] = {}
        self._expected: dict[bytes, IceSession] = {}
        """Agents that wait for a response, by its transaction id."""
        self._next_search = float("-inf")
        self._tombstones: dict[bytes, float] = {}
        """When ended ufrags may be forgotten, the earliest first."""

    def __len__(self) -> int:
        """Number of agents."""
        return len(self._sessions)

    def open_local(
        self, transport: Any = None, on_unused: Callable[[], None] = lambda: None
    ) -> Local:
        """Returns the receiving end of a new local socket."""
        return Local(self, transport, on_unused)

    def close_local(self, local: Local) -> None:
        """Unlearns all addresses of a socket that was closed."""
        for remote, session in local.paths.items():
            session.paths.discard((local, remote))
        local.paths.clear()

    def credentials(self) -> tuple[str, str]:
        """Returns a ufrag that no agent has or had lately, and a password."""
        while True:
            ufrag = random_credential(UFRAG_CHARACTERS)
            if ufrag.encode() not in self._sessions and ufrag.encode() not in self._tombstones:
                return ufrag, random_credential(PASSWORD_CHARACTERS)

    def register(self, receiver: Receiver, ufrag: str, password: str) -> IceSession:
        """Adds an agent. Raises ValueError if its ufrag is in use."""
        key = ufrag.encode()
        if key in self._sessions:
            raise ValueError(f"the ufrag {ufrag} is in use")
        session = IceSession(receiver, key, password.encode(), receiver.receive_data)
        self._tombstones.pop(key, None)
        self._sessions[key] = session
        return session

    def unregister(self, session: IceSession, now: float, heir: IceSession | None = None) -> None:
        """Removes an agent and all that it has learned; its addresses go to the heir, the same
        peer's agent after an ICE restart, if there is one. Idempotent."""
        if self._sessions.get(session.ufrag) is not session:
            return
        del self._sessions[session.ufrag]
        if heir is not None and self._sessions.get(heir.ufrag) is not heir:
            heir = None
        for local, remote in session.paths:
            if heir is None:
                del local.paths[remote]
                if not local.paths:
                    local.on_unused()
            else:
                local.paths[remote] = heir
                heir.paths.add((local, remote))
        session.paths.clear()
        for transaction_id in [t for t, of in self._expected.items() if of is session]:
            del self._expected[transaction_id]
        self._bury(session.ufrag, now)

    def _bury(self, ufrag: bytes, now: float) -> None:
        self._tombstones[ufrag] = now + TOMBSTONE_S
        while len(self._tombstones) > MAX_TOMBSTONES or self._tombstones[self._oldest()] < now:
            del self._tombstones[self._oldest()]

    def _oldest(self) -> bytes:
        return next(iter(self._tombstones))

    def expect(self, transaction_id: bytes, session: IceSession) -> None:
        """Announces a request that the agent sends."""
        self._expected[transaction_id] = session

    def forget(self, transaction_id: bytes) -> None:
        """Ends the wait for a response."""
        self._expected.pop(transaction_id, None)

    def receive_unknown(self, data: bytes, local: Local, remote: Address, now: float) -> None:
        """Drops a packet from an unknown address, and has it checked if the SSRC is a peer's: a NAT
        may have given the peer another port, and browsers do not notice for 2.5 s."""
        self.dropped.unknown_address += 1
        ssrc = ssrc_of(data) if now >= self._next_search else None
        if ssrc is None:
            return
        self._next_search = now + SEARCH_INTERVAL_S
        for session in self._sessions.values():
            if session.receiver.sends(ssrc):
                if remote in session.checked or len(session.checked) < MAX_ADDRESSES:
                    session.checked.add(remote)
                    session.receiver.check_address(local, remote)
                return

    def receive_stun(self, data: bytes, local: Local, remote: Address, now: float) -> None:
        """Hands a STUN message to the agent that it is for; drops it if there is none."""
        if len(data) < _HEADER_BYTES:
            self.dropped.malformed += 1
            return
        kind, length, cookie = _HEADER.unpack_from(data)
        if cookie != stun.COOKIE or length != len(data) - _HEADER_BYTES or length % 4:
            self.dropped.malformed += 1
        elif kind & _CLASS == _REQUEST:
            self._receive_request(data, local, remote, now)
        elif kind & _CLASS != _INDICATION and data[8:_HEADER_BYTES] in self._expected:
            self._receive_response(data, local, remote)
        else:
            self.dropped.unexpected += 1

    def _receive_request(self, data: bytes, local: Local, remote: Address, now: float) -> None:
        ufrag = _local_ufrag(data)
        session = self._sessions.get(ufrag)
        if session is None:  # a flood of these costs no more than this
            if self._tombstones.get(ufrag, 0.0) > now:
                self.dropped.late += 1
            else:
                self.dropped.unknown_ufrag += 1
            return
        message = self._parse(data)
        if message is None:
            return
        username = str(message.attributes.get("USERNAME", ""))
        if username.partition(":")[0].encode() != ufrag or not message.check_message_integrity(
            session.password
        ):
            self.dropped.unauthenticated += 1
            return
        if not self._learn(session, local, remote):
            return
        # RFC 8445 §7.1.1 requires it; FFmpeg before 8.1 leaves it out, and aioice needs it.
        message.attributes.setdefault("PRIORITY", _PRIORITY)
        session.receiver.receive_request(message, local, remote)

    def _receive_response(self, data: bytes, local: Local, remote: Address) -> None:
        session = self._expected[data[8:_HEADER_BYTES]]
        message = self._parse(data)
        if message is None:
            return
        if session.receiver.receive_response(message, local, remote):
            self._learn(session, local, remote)  # an ICE-lite peer sends no checks
        else:
            self.dropped.unauthenticated += 1

    def _parse(self, data: bytes) -> stun.Message | None:
        try:
            return stun.parse_message(data)
        except (ValueError, struct.error):  # the latter of short attributes of a fixed size
            self.dropped.malformed += 1
            return None

    def _learn(self, session: IceSession, local: Local, remote: Address) -> bool:
        """Makes the address the agent's, and nobody else's; False if it has too many."""
        owner = local.paths.get(remote)
        if owner is session:
            return True
        if session.learned >= MAX_ADDRESSES:
            self.dropped.too_many_addresses += 1
            return False
        if owner is not None:
            owner.paths.discard((local, remote))
        session.learned += 1
        session.paths.add((local, remote))
        local.paths[remote] = session
        return True


def ssrc_of(data: bytes) -> int | None:
    """Returns the SSRC of RTP or RTCP, protected or not; None of anything else (RFC 7983 §7)."""
    if len(data) < _RTP_HEADER_BYTES or not 127 < data[0] < 192:
        return None
    at = 4 if 192 <= data[1] <= 223 else 8  # of RTCP and of RTP (RFC 5761 §4)
    return int.from_bytes(data[at : at + 4], "big")


def random_credential(length: int) -> str:
    """Returns a ufrag or password of so many characters, with 5.9 bits of randomness each."""
    return "".join(secrets.choice(_CHARACTERS) for _ in range(length))


def _local_ufrag(data: bytes) -> bytes:
    """The part before the colon of the USERNAME of a STUN request; empty if there is none."""
    at, end = _HEADER_BYTES, len(data)
    while at + 4 <= end:
        kind, length = _ATTRIBUTE.unpack_from(data, at)
        at += 4
        if kind == _USERNAME:
            return data[at : at + length].partition(b":")[0]
        at += (length + 3) & ~3
    return b""
