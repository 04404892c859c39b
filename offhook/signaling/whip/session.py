"""Sessions of WHIP and WHEP: what a PATCH does, and how long an ended session is remembered
(RFC 9725 §4.2 and §4.3).

    POST → created → its leg connects → DELETE, or its leg closes → ended → forgotten

While an ended session is remembered it answers DELETE with 200, because clients repeat it; all else
is 404, and so is everything later.
"""

import re
import secrets
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum
from typing import Generic, TypeVar

from offhook.signaling.whip.fragment import Fragment
from offhook.signaling.whip.offer import MediaLine, Protocol

TOMBSTONE_S = 60.0
"""Time in s for which an ended session is remembered."""
MAX_TOMBSTONES = 1000
"""Maximum ended sessions that are remembered; the oldest are forgotten."""

L = TypeVar("L")


class Match(Enum):
    """What an If-Match header (RFC 9110 §13.1.1) says of the session's ICE."""

    NONE = "absent"
    ANY = "*"
    CURRENT = "current"
    STALE = "stale"


class Generation(Enum):
    """Which ICE session a fragment is of, by its ufrag. One without a ufrag is of the current."""

    CURRENT = "current"
    NEW = "new"


class PatchAction(Enum):
    TRICKLE = 204
    RESTART = 200
    STALE = 412
    """Precondition Failed"""
    UNCONDITIONAL = 428
    """Precondition Required"""


PATCHES: dict[tuple[Generation, Match], PatchAction] = {
    (Generation.CURRENT, Match.CURRENT): PatchAction.TRICKLE,
    # mediamtx's pages send "*" with every candidate, so only the ufrag tells a restart.
    (Generation.CURRENT, Match.ANY): PatchAction.TRICKLE,
    # Clients in Go, Python and JavaScript leave the header out.
    (Generation.CURRENT, Match.NONE): PatchAction.TRICKLE,
    (Generation.CURRENT, Match.STALE): PatchAction.STALE,
    (Generation.NEW, Match.ANY): PatchAction.RESTART,
    (Generation.NEW, Match.CURRENT): PatchAction.RESTART,
    # It may be a late one of an ICE session before this.
    (Generation.NEW, Match.NONE): PatchAction.UNCONDITIONAL,
    (Generation.NEW, Match.STALE): PatchAction.STALE,
}
"""What a PATCH does (RFC 9725 §4.3.1 and §4.3.2)."""


@dataclass(eq=False)
class Session(Generic[L]):
    """One session and its leg. The id is a capability: who knows it may end the session."""

    protocol: Protocol
    room: str
    """The shared id of a publisher and its players."""
    media: MediaLine
    """The offer's first m-line; all are in one bundle."""
    leg: L
    id: str = field(default_factory=lambda: secrets.token_urlsafe(24))
    etag: str = field(default_factory=lambda: new_etag())
    """Entity tag of the ICE session."""
    remote_ufrag: str = ""

    def __post_init__(self) -> None:
        self.remote_ufrag = self.media.ufrag

    @property
    def path(self) -> str:
        """The session's URL."""
        return f"/{self.protocol.value}/{self.room}/{self.id}"

    def match(self, header: str | None) -> Match:
        """Returns what an If-Match header says; None if there is none."""
        if header is None or not header.strip():
            return Match.NONE
        if header.strip().strip('"') == "*":
            return Match.ANY
        # A weak tag never matches: If-Match compares strongly.
        tags = re.findall(r'(W/)?"([^"]*)"', header)
        return Match.CURRENT if ("", self.etag.strip('"')) in tags else Match.STALE

    def action(self, fragment: Fragment, if_match: str | None) -> PatchAction:
        """Returns what a PATCH with this fragment and header does."""
        same = fragment.ufrag in ("", self.remote_ufrag)
        generation = Generation.CURRENT if same else Generation.NEW
        return PATCHES[generation, self.match(if_match)]

    def restarted(self, ufrag: str) -> None:
        """Records an ICE restart: another tag, so that what is late of the old ICE is refused."""
        self.remote_ufrag, self.etag = ufrag, new_etag()


def new_etag() -> str:
    """Returns a strong entity tag."""
    return f'"{secrets.token_hex(8)}"'


class SessionTable(Generic[L]):
    """The sessions of a process by their paths, and those that ended lately. `now` is monotonic
    time in s."""

    def __init__(self) -> None:
        self._sessions: dict[str, Session[L]] = {}
        self._ended: dict[str, float] = {}

    def __iter__(self) -> Iterator[Session[L]]:
        """Iterates over the sessions that have not ended."""
        return iter(tuple(self._sessions.values()))

    def add(self, session: Session[L]) -> None:
        self._sessions[session.path] = session

    def find(self, path: str) -> Session[L] | None:
        """Returns a session that has not ended."""
        return self._sessions.get(path)

    def publisher(self, room: str) -> Session[L] | None:
        """Returns the WHIP session of a room."""
        found = (s for s in self if s.room == room and s.protocol is Protocol.WHIP)
        return next(found, None)

    def end(self, session: Session[L], now: float) -> None:
        """Ends a session; idempotent."""
        if self._sessions.pop(session.path, None) is not None:
            self._ended[session.path] = now
        self._forget(now)

    def has_ended(self, path: str, now: float) -> bool:
        """Returns whether a session ended lately."""
        self._forget(now)
        return path in self._ended

    def _forget(self, now: float) -> None:
        while self._ended:
            path, ended_at = next(iter(self._ended.items()))
            if len(self._ended) <= MAX_TOMBSTONES and now - ended_at < TOMBSTONE_S:
                return
            del self._ended[path]
