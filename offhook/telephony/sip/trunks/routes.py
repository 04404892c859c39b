"""Routes: which agent takes a call, or with which status it is refused.

Pure functions of the call; what changes with the time, and lists of callers, are asked of
`Conditions`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from hashlib import sha256
from typing import Protocol

from offhook.telephony.sip.messages.grammar import SipError, is_token


@dataclass(frozen=True)
class Route:
    """Routes calls that match every given condition to `agent`, or to `extension`, or refuses them.
    Patterns are case-insensitive globs."""

    agent: str = ""
    """Agent name; "" for the default."""
    extension: str = ""
    """Number of an extension whose phones ring, in place of an agent."""
    called: str = ""
    """Number called; "" for any."""
    caller: str = ""
    trunk: str = ""
    """The trunk's name; "" for any."""
    header: str = ""
    """"X-Name: pattern" for a header of the INVITE that the trunk passes on."""
    callers: str = ""
    """Name of a `[callers.NAME]` that has the caller; "" for any caller."""
    hours: str = ""
    """Name of an `[hours.NAME]` within which the call comes; "" for any time."""
    share: float = 100.0
    """Percentage of the callers who come to this route that it takes, always the same ones; callers
    without a number pass it by if it is less than 100."""
    refuse: int = 0
    """Status with which the calls are refused, such as 403, 486 (busy) or 603; 0: they are not."""

    def __post_init__(self) -> None:
        if self.header and not is_token(self.header.partition(":")[0].strip()):
            raise SipError(f'a route\'s header must be "Name: pattern", not {self.header!r}')
        if self.header and ":" not in self.header:
            raise SipError(f"a route's header needs a pattern after {self.header!r} and a colon")
        if not 0 < self.share <= 100:
            raise SipError(f"a route's share is a percentage over 0, up to 100, not {self.share:g}")
        if self.refuse and not 400 <= self.refuse <= 699:
            raise SipError(f"a route's refuse is a status from 400 to 699, not {self.refuse}")
        if self.agent and self.extension:
            raise SipError("a route has an agent or an extension, not both")
        if self.refuse and (named := self.agent or self.extension):
            raise SipError(f"a route with refuse goes nowhere, but it names {named!r}")


class RoutedCall(Protocol):
    """The properties of a call that routes match."""

    @property
    def called(self) -> str: ...
    @property
    def caller(self) -> str: ...
    @property
    def trunk(self) -> str: ...
    @property
    def headers(self) -> Mapping[str, str]: ...


class Conditions(Protocol):
    """Answers what routes ask that is not in the call."""

    def is_within(self, hours: str) -> bool:
        """Return whether now is within the named hours."""

    def is_listed(self, callers: str, caller: str) -> bool:
        """Return whether the named list of callers has this one."""


class NoConditions:
    """Of an endpoint whose owner has neither hours nor lists: no route that asks for them
    matches."""

    def is_within(self, hours: str) -> bool:
        return False

    def is_listed(self, callers: str, caller: str) -> bool:
        return False


def route(
    routes: Sequence[Route], call: RoutedCall, conditions: Conditions | None = None
) -> Route | None:
    """Return the first route that matches the call."""
    asked = conditions or NoConditions()
    for candidate in routes:
        if (
            _matches(candidate.called, call.called)
            and _matches(candidate.caller, call.caller)
            and candidate.trunk in ("", call.trunk)
            and _header_matches(candidate.header, call.headers)
            and (not candidate.callers or asked.is_listed(candidate.callers, call.caller))
            and (not candidate.hours or asked.is_within(candidate.hours))
            and _has_share(candidate, call.caller)
        ):
            return candidate
    return None


def _has_share(candidate: Route, caller: str) -> bool:
    """Whether the caller is among those that the route takes. Callers are spread by a hash with the
    agent's name, so that trials of two agents have different callers."""
    if candidate.share >= 100:
        return True
    return bool(caller) and place_of(caller, candidate.agent) < candidate.share


def place_of(caller: str, agent: str) -> float:
    """Return the place of a caller among all, from 0 to below 100: always the same for an agent."""
    digest = sha256(f"{agent}\n{caller.lower()}".encode("utf-8", "surrogateescape")).digest()
    return int.from_bytes(digest[:6], "big") / 2**48 * 100


def _matches(pattern: str, text: str) -> bool:
    return not pattern or fnmatchcase(text.lower(), pattern.lower())


def _header_matches(rule: str, headers: Mapping[str, str]) -> bool:
    name, _, pattern = rule.partition(":")
    wanted = name.strip().lower()
    return not wanted or any(
        _matches(pattern.strip(), value) for key, value in headers.items() if key.lower() == wanted
    )
