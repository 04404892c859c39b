"""Session timers (RFC 4028): end a call whose far end has silently disappeared.

Sans-io. One side refreshes the call by a re-INVITE or UPDATE at half the session interval; the
other ends it if no refresh comes.
"""

from dataclasses import dataclass
from enum import Enum, auto
from typing import Literal

from offhook.telephony.sip.messages.message import Message, Request, Response

Role = Literal["uac", "uas"]
MIN_INTERVAL_S = 90
"""Shortest session interval (RFC 4028 §4)."""
MAX_INTERVAL_S = 86_400
"""Longest session interval in s; requests for more are reduced to a day."""
MAX_RETRIES = 2
"""Retries after a 422, as every proxy on the path may require more once; after that the 422 counts
as the final answer."""


class Due(Enum):
    REFRESH = auto()
    """Send a request that refreshes the session."""
    EXPIRED = auto()
    """No refresh came: end the call."""


@dataclass(frozen=True, slots=True)
class SessionExpires:
    """The value of a Session-Expires header."""

    seconds: int
    refresher: Role | None

    @classmethod
    def of(cls, message: Message) -> "SessionExpires | None":
        """Parse the header; None if it is missing or malformed."""
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
    """The session timer of one call. `session_seconds` is the interval we request, 0 for none."""

    def __init__(self, session_seconds: int, min_se: int) -> None:
        self._wanted = max(session_seconds, min_se) if session_seconds else 0
        self._min_se = max(min_se, MIN_INTERVAL_S)
        self._their_min_se = 0
        self._retries = 0
        self._agreed: int | None = None
        self._we_refresh = False
        self._refresh_at: float | None = None
        self._expires_at: float | None = None

    @property
    def seconds(self) -> int | None:
        """Negotiated interval in seconds; None while the call does not expire."""
        return self._agreed

    @property
    def we_refresh(self) -> bool:
        return self._agreed is not None and self._we_refresh

    # --- outbound requests (§7) ---

    def request_headers(self) -> list[tuple[str, str]]:
        """Return headers for an INVITE or UPDATE: the interval we request, with the current
        roles."""
        if not self._wanted and self._agreed is None:
            return []
        refresher: Role | None = None
        if self._agreed is not None:
            refresher = "uac" if self._we_refresh else "uas"
        seconds = max(self._agreed or self._wanted, self._their_min_se)
        headers = [("Session-Expires", str(SessionExpires(seconds, refresher)))]
        if self._their_min_se or self._min_se > MIN_INTERVAL_S:
            headers.append(("Min-SE", str(max(self._their_min_se, self._min_se))))
        return headers

    def too_short(self, response: Response) -> bool:
        """Handle a 422. Returns whether to retry with the new `request_headers` (§7.3)."""
        least = _seconds(response.headers.get("Min-SE") or "")
        if least is None or least <= self._their_min_se or self._retries >= MAX_RETRIES:
            return False
        self._retries += 1
        self._their_min_se = least
        if self._agreed is not None:
            self._agreed = max(self._agreed, least)
        return True

    def accepted(self, response: Response, now: float) -> None:
        """Apply the 2xx to our INVITE or UPDATE (§7.2)."""
        self._retries = 0
        agreed = SessionExpires.of(response)
        if agreed is None:
            self._agreed = self._refresh_at = self._expires_at = None
            return
        self._start(agreed.seconds, agreed.refresher != "uas", now)

    # --- inbound requests (§9) ---

    def refusal(self, request: Request) -> list[tuple[str, str]] | None:
        """Return headers for a 422 if the far end requests too short an interval and supports
        timers."""
        asked = SessionExpires.of(request)
        if asked is None or asked.seconds >= self._min_se or "timer" not in request.supported:
            return None
        return [("Min-SE", str(self._min_se))]

    def answer(self, request: Request, now: float) -> list[tuple[str, str]]:
        """Return headers for the 2xx, which starts the timer (§9, table 2)."""
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
        """Refresh at half the interval (§10); expire a little early, so that the sides do not end
        the call at the same moment."""
        seconds = max(
            MIN_INTERVAL_S, seconds
        )  # less is the far end's mistake, and would cost us most
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
        """The refresh failed for now: retry halfway to the expiry (§10)."""
        if self._we_refresh and self._expires_at is not None:
            self._refresh_at = now + max(1.0, (self._expires_at - now) / 2)


def _seconds(text: str) -> int | None:
    number = text.partition(";")[0].strip()
    if not (number.isascii() and number.isdigit()):
        return None
    return min(int(number), MAX_INTERVAL_S) if len(number) <= 9 else MAX_INTERVAL_S
