"""Session timers: a call whose far end has gone silently comes to its end (RFC 4028).

Sans-io. One side refreshes the call by a re-INVITE or an UPDATE at half the agreed time; the other
ends it when no refresh comes.
"""

from dataclasses import dataclass
from enum import Enum, auto
from typing import Literal

from offhook.telephony.sip.messages.message import Message, Request, Response

Role = Literal["uac", "uas"]
LEAST_S = 90
"""RFC 4028 §4."""
MOST_S = 86_400
"""A longer time asked for is taken as this: a day without a sign of life is as good as none."""
RETRIES_MOST = 2
"""Answers to 422; every proxy on the way may ask for more once."""


class Due(Enum):
    REFRESH = auto()
    """Send a request that keeps the call alive."""
    EXPIRED = auto()
    """Nobody refreshed it: end the call."""


@dataclass(frozen=True, slots=True)
class SessionExpires:
    """The value of a Session-Expires header."""

    seconds: int
    refresher: Role | None

    @classmethod
    def of(cls, message: Message) -> "SessionExpires | None":
        """None without the header or with one that is not as it should be."""
        number, *parameters = (message.headers.get("Session-Expires") or "")[:256].split(";")
        seconds = _seconds(number)
        if seconds is None:
            return None
        refresher: Role | None = None
        for parameter in parameters:
            name, _, value = parameter.partition("=")
            if name.strip().lower() == "refresher":
                match value.strip().lower():
                    case "uac":
                        refresher = "uac"
                    case "uas":
                        refresher = "uas"
        return cls(seconds, refresher)

    def __str__(self) -> str:
        return f"{self.seconds};refresher={self.refresher}" if self.refresher else f"{self.seconds}"


class SessionTimer:
    """The timer of one call. `session_seconds`: what we ask for, 0 for none."""

    def __init__(self, session_seconds: int, min_se: int) -> None:
        self._wanted = max(session_seconds, min_se) if session_seconds else 0
        self._min_se = max(min_se, LEAST_S)
        self._their_min_se = 0
        self._retries = 0
        self._agreed: int | None = None
        self._we_refresh = False
        self._refresh_at: float | None = None
        self._expires_at: float | None = None

    @property
    def seconds(self) -> int | None:
        """What was agreed; None while the call does not expire."""
        return self._agreed

    @property
    def we_refresh(self) -> bool:
        return self._agreed is not None and self._we_refresh

    # --- requests of ours (§7) ---

    def request_headers(self) -> list[tuple[str, str]]:
        """For an INVITE or UPDATE: what we ask for, the roles as they are."""
        if not self._wanted and self._agreed is None:
            return []
        refresher: Role | None = None
        if self._agreed is not None:
            refresher = "uac" if self._we_refresh else "uas"
        seconds = max(self._agreed or self._wanted, self._their_min_se)
        headers = [("Session-Expires", str(SessionExpires(seconds, refresher)))]
        if self._their_min_se or self._min_se > LEAST_S:
            headers.append(("Min-SE", str(max(self._their_min_se, self._min_se))))
        return headers

    def too_short(self, response: Response) -> bool:
        """The 422 wants more: ask again with the new `request_headers` (§7.3)? False: not worth
        another round."""
        least = _seconds(response.headers.get("Min-SE") or "")
        if least is None or least <= self._their_min_se or self._retries >= RETRIES_MOST:
            return False
        self._retries += 1
        self._their_min_se = least
        if self._agreed is not None:
            self._agreed = max(self._agreed, least)
        return True

    def accepted(self, response: Response, now: float) -> None:
        """The 2xx to an INVITE or UPDATE of ours (§7.2)."""
        self._retries = 0
        agreed = SessionExpires.of(response)
        if agreed is None:
            self._agreed = self._refresh_at = self._expires_at = None
            return
        self._start(agreed.seconds, agreed.refresher != "uas", now)

    # --- requests of theirs (§9) ---

    def refusal(self, request: Request) -> list[tuple[str, str]] | None:
        """Headers for a 422 when the far end asks for too short a time and can learn better."""
        asked = SessionExpires.of(request)
        if asked is None or asked.seconds >= self._min_se or "timer" not in request.supported:
            return None
        return [("Min-SE", str(self._min_se))]

    def answer(self, request: Request, now: float) -> list[tuple[str, str]]:
        """Headers for the 2xx, by which the timer starts (§9, table 2)."""
        asked = SessionExpires.of(request)
        theirs = "timer" in request.supported
        least = _seconds(request.headers.get("Min-SE") or "") or 0
        if asked is None and not self._wanted:
            self._agreed = self._refresh_at = self._expires_at = None
            return []
        seconds = max(asked.seconds if asked else self._wanted, self._min_se, least)
        if asked is not None and self._wanted:
            seconds = max(min(seconds, self._wanted), self._min_se, least)
        if not theirs:
            refresher: Role = "uas"
        elif asked is not None and asked.refresher is not None:
            refresher = asked.refresher
        else:
            refresher = "uac" if asked is not None else "uas"
        self._start(seconds, refresher == "uas", now)
        headers = [("Session-Expires", str(SessionExpires(seconds, refresher)))]
        if refresher == "uac":
            headers.append(("Require", "timer"))
        return headers

    # --- time ---

    def _start(self, seconds: int, we_refresh: bool, now: float) -> None:
        """§10: half the time for a refresh; the end comes a little early, so that both sides do
        not let go at the same moment."""
        seconds = max(LEAST_S, seconds)  # less is the far end's mistake, and costs us most
        self._agreed = seconds
        self._we_refresh = we_refresh
        self._refresh_at = now + seconds / 2 if we_refresh else None
        self._expires_at = now + seconds - min(32.0, seconds / 3)

    def stop(self) -> None:
        self._agreed = self._refresh_at = self._expires_at = None

    def get_timer(self) -> float | None:
        return min((t for t in (self._refresh_at, self._expires_at) if t is not None), default=None)

    def handle_timer(self, now: float) -> Due | None:
        if self._expires_at is not None and now >= self._expires_at:
            self.stop()
            return Due.EXPIRED
        if self._refresh_at is not None and now >= self._refresh_at:
            self._refresh_at = None
            return Due.REFRESH
        return None

    def refresh_failed(self, now: float) -> None:
        """The refresh was refused for now: once more halfway to the end (§10)."""
        if self._we_refresh and self._expires_at is not None:
            self._refresh_at = now + max(1.0, (self._expires_at - now) / 2)


def _seconds(text: str) -> int | None:
    number = text.partition(";")[0].strip()
    if not (number.isascii() and number.isdigit()):
        return None
    return min(int(number), MOST_S) if len(number) <= 9 else MOST_S
