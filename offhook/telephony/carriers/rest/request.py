"""What all providers' REST APIs share: requests, credentials, valid destinations and errors.

Nothing is sent here: a provider's module builds a RestRequest and parses the response.
"""

import json
import re
from abc import ABC, abstractmethod
from base64 import b64encode
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol
from urllib.parse import quote, urlencode

from offhook.media.answer_status import Mode
from offhook.media.leg import LegError
from offhook.telephony.carriers.settings import CarrierSettings
from offhook.telephony.carriers.streams.json_text import read_object
from offhook.telephony.carriers.streams.stream import Format

Response = dict[str, Any]
"""The JSON object of a provider's response; {} if it was none."""

MAX_DETAIL_CHARS = 200
"""Maximum length of a provider's error text quoted in ours; the rest is cut off."""

_NUMBER = re.compile(r"\+[1-9][0-9]{5,14}")
_KEY = re.compile(r"[\x21-\x7e]+")
_CALLER = re.compile(r"\+?[0-9]{3,15}")
# Stricter than RFC 3261 §25.1. "?" would add header fields, "%" may hide anything; "," is dialled
# as DTMF by some, "<" separates numbers for others.
_SIP_URI = re.compile(
    r"sips?:[A-Za-z0-9._~+*-]{1,80}@"
    r"(?:[A-Za-z0-9](?:[A-Za-z0-9.-]{0,251}[A-Za-z0-9])?|\[[0-9A-Fa-f:.]{2,45}\])"
    r"(?::[0-9]{1,5})?"
    r"(?:;[A-Za-z0-9_.-]{1,40}(?:=[A-Za-z0-9_.+~-]{1,80})?){0,8}"
)
# No ".", which could climb up the path of a URL.
_ID = re.compile(r"[A-Za-z0-9_:=-]{1,200}")


class RestError(LegError):
    """A REST operation failed; the text says why and what to do about it."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status
        """HTTP status; 0 if no response was received."""


@dataclass(frozen=True, slots=True)
class BasicAuth:
    """HTTP Basic authentication (RFC 7617)."""

    user: str = field(repr=False)
    password: str = field(repr=False)

    def header(self, now: float) -> str:
        """Return the value of the Authorization header; `now` is Unix time in seconds."""
        return "Basic " + b64encode(f"{self.user}:{self.password}".encode()).decode()


@dataclass(frozen=True, slots=True)
class BearerAuth:
    """HTTP Bearer authentication with an API key (RFC 6750)."""

    key: str = field(repr=False)

    def header(self, now: float) -> str:
        """Return the value of the Authorization header. Raises RestError for an invalid key."""
        if not _KEY.fullmatch(self.key):
            raise RestError(0, "api_key contains invalid characters")
        return f"Bearer {self.key}"


class Auth(Protocol):
    """Our credentials."""

    def header(self, now: float) -> str:
        """Return the value of the Authorization header; `now` is Unix time in seconds. Raises
        RestError if they are invalid."""


@dataclass(frozen=True, slots=True)
class RestRequest:
    """One request, complete but for its Authorization. Its repr shows no secret."""

    method: str
    url: str
    auth: Auth
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""


@dataclass(frozen=True, slots=True)
class DialRequest:
    """A call to place. Raises RestError if it cannot be dialled."""

    to: str
    """E.164 ("+14155551212") or a SIP URI."""
    caller: str
    """Our caller ID: digits, with or without "+" as the provider requires."""
    webhook_url: str
    """Requested by the provider when the call is answered."""
    status_url: str = ""
    """Receives the progress of the call; "" for none."""
    ring_seconds: float = 60.0
    stream_url: str = ""
    """wss:// URL the audio connects to directly, for providers that need no webhook."""
    detection: Mode | None = None
    """Whether the provider is to say at `status_url` who answers: at once ("detect"), or when a
    greeting has ended ("message")."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "to", destination(self.to))
        if not self.caller:
            raise RestError(0, "no caller ID: set the carrier's number")
        if not _CALLER.fullmatch(self.caller):
            raise RestError(0, f"{self.caller[:40]!r} is not a caller ID")

    @property
    def detects(self) -> bool:
        """Whether the provider is to say who answers."""
        return self.detection in ("detect", "message") and bool(self.status_url)

    def ring_timeout(self, min_s: int, max_s: int) -> int:
        """Return the ring timeout in whole seconds, within the provider's limits."""
        return round(min(max(self.ring_seconds, min_s), max_s))


def destination(text: str) -> str:
    """Return a valid number (E.164, with or without "tel:") or SIP URI, normalized.

    Nothing else passes, so the result is safe in a form, JSON, XML or a query and always means
    exactly one call. Raises RestError.
    """
    text = text.strip().removeprefix("tel:")
    if not _NUMBER.fullmatch(text) and not _SIP_URI.fullmatch(text):
        raise RestError(
            0,
            f"{text[:80]!r} is not a valid destination: use +14155551212 or sip:user@host.example",
        )
    return text


def is_sip(address: str) -> bool:
    return address.startswith("sip")


class Api(ABC):
    """One provider's REST API. Its methods raise RestError if settings are missing or invalid."""

    title: ClassVar[str]
    """The provider's display name."""
    default_url: ClassVar[str]
    credentials: ClassVar[str]
    """Settings to check when authentication fails."""
    error_messages: ClassVar[Mapping[str, str]] = {}
    """Messages for the provider's error codes that say what to do."""
    ended_codes: ClassVar[frozenset[str]] = frozenset()
    """Error codes that mean the call has already ended."""
    ends_calls: ClassVar[bool] = True
    """Whether the API can end a call; if not, the end of the stream does."""
    connects: ClassVar[bool] = False
    """Whether a call whose transfer has failed comes back by `connect`, instead of by the answer to
    the webhook that says so."""

    def __init__(self, settings: CarrierSettings) -> None:
        self.settings = settings

    @abstractmethod
    def dial(self, call: DialRequest) -> RestRequest: ...
    @abstractmethod
    def hang_up(self, call_id: str) -> RestRequest: ...
    @abstractmethod
    def transfer(self, call_id: str, target: str, outcome_url: str = "") -> RestRequest:
        """Build the request that connects the far end of a call to `target`. Once that has ended
        or failed the provider asks `outcome_url` what to do next, if it does that at all; "" for
        nowhere."""

    def connect(self, call_id: str, stream_url: str, form: Format) -> RestRequest:
        """Build the request that connects a call to a stream, both ways in this format."""
        raise NotImplementedError

    @abstractmethod
    def auth(self) -> Auth: ...
    @abstractmethod
    def call_id(self, answer: Response) -> object:
        """Return the call id from the response to `dial`; may be any JSON value."""

    @abstractmethod
    def read_error(self, answer: Response) -> tuple[object, object]:
        """Return code and text of an error response; may be any JSON values."""

    def read_dial(self, status: int, body: bytes) -> str:
        """Return the provider's call id. Raises RestError."""
        answer = read_object(body, len(body)) or {}
        if not _succeeded(status):
            raise self._error(status, answer)
        call_id = self.call_id(answer)
        if not isinstance(call_id, str) or not _ID.fullmatch(call_id):
            raise RestError(
                status,
                f"{self.title} accepted the call, but its response has no call id: check rest_url",
            )
        return call_id

    def read_hang_up(self, status: int, body: bytes) -> None:
        """Check a response to `hang_up`, for which an ended call is no error. Raises RestError."""
        answer = read_object(body, len(body)) or {}
        if not _succeeded(status) and not self._has_ended(status, answer):
            raise self._error(status, answer)

    def read_transfer(self, status: int, body: bytes) -> None:
        """Check the response to `transfer`. Raises RestError."""
        answer = read_object(body, len(body)) or {}
        if _succeeded(status):
            return
        if self._has_ended(status, answer):
            raise RestError(status, f"{self.title}: the call has ended and cannot be transferred")
        raise self._error(status, answer)

    def require(self, name: str) -> str:
        """Return the setting. Raises RestError if it is not set."""
        value: str = getattr(self.settings, name)
        if not value:
            raise RestError(
                0,
                f"{self.title} carrier {self.settings.name!r} needs {name} for this: "
                f"set {self.credentials}",
            )
        return value

    def request(
        self,
        method: str,
        *path: str,
        form: Iterable[tuple[str, str]] | None = None,
        json_body: Mapping[str, object] | None = None,
    ) -> RestRequest:
        """Build a request to a path, whose segments are escaped."""
        url = (self.settings.rest_url or self.default_url).rstrip("/")
        url += "".join("/" + quote(part, safe=":=") for part in path)
        headers = {"Accept": "application/json"}
        body = b""
        if form is not None:
            headers["Content-Type"] = "application/x-www-form-urlencoded"
            body = urlencode(list(form)).encode()
        elif json_body is not None:
            headers["Content-Type"] = "application/json"
            body = json.dumps(json_body).encode()
        return RestRequest(method, url, self.auth(), headers, body)

    def _has_ended(self, status: int, answer: Response) -> bool:
        code, words = self.read_error(answer)
        # A 404 without the provider's error format comes from a wrong rest_url.
        return str(code) in self.ended_codes or (status == 404 and bool(code or words))

    def _error(self, status: int, answer: Response) -> RestError:
        code, words = (readable(value) for value in self.read_error(answer))
        text = self.error_messages.get(code) or self._describe_status(status)
        said = " ".join(part for part in (code, words) if part)
        return RestError(status, f"{self.title}: {text}" + (f" (it said: {said})" if said else ""))

    def _describe_status(self, status: int) -> str:
        """A message for an HTTP status (RFC 9110 §15)."""
        match status:
            case 401:
                return f"wrong credentials: check {self.credentials}"
            case 402:
                return "the account has no credit left: top it up"
            case 403:
                return "permission denied: check what the account is allowed to do"
            case 404:
                return "not found: check account and rest_url"
            case 429:
                return "too many requests: try again in a few seconds"
            case _ if 300 <= status < 400:
                return f"unexpected redirect (HTTP {status}): check rest_url"
            case _ if status >= 500:
                return f"server error (HTTP {status}): try again later"
            case _:
                return f"the request was rejected (HTTP {status})"


def _succeeded(status: int) -> bool:
    return 200 <= status < 300


def path_id(text: str, what: str = "a call") -> str:
    """Check the id of a call, or of `what`, for use in a URL. Raises RestError."""
    if not _ID.fullmatch(text):
        raise RestError(0, f"{readable(text)[:40]!r} is not a valid id of {what}")
    return text


def readable(value: object) -> str:
    """Render text, a number or other JSON on one line, safe for a log."""
    if isinstance(value, dict | list):
        try:
            value = json.dumps(value)
        except RecursionError:
            return ""
    if not isinstance(value, str | int) or isinstance(value, bool):
        return ""
    text = str(value)
    if len(text) > MAX_DETAIL_CHARS:
        text = text[:MAX_DETAIL_CHARS] + "…"
    return "".join(c if c.isprintable() else " " for c in text).strip()
