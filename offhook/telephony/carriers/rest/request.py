"""What the REST of all providers has in common: a request, who asks, what may be dialled, and what
goes wrong.

Nothing is sent here: a provider's module makes a RestRequest and reads the answer to it.
"""

import json
import re
from abc import ABC, abstractmethod
from base64 import b64encode, urlsafe_b64encode
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, ClassVar
from urllib.parse import quote, urlencode
from uuid import uuid4

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.padding import PKCS1v15
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from offhook.media.leg import LegError
from offhook.telephony.carriers.settings import CarrierSettings

Answer = dict[str, Any]
"""The JSON object that a provider answered with; {} when it was none."""

JWT_S = 900
"""How long a token of ours is good for: enough for clocks that differ by minutes."""
MAX_DETAIL_CHARS = 200
"""Of a provider's own words, in an error of ours."""

_NUMBER = re.compile(r"\+[1-9][0-9]{5,14}")
_KEY = re.compile(r"[\x21-\x7e]+")
_CALLER = re.compile(r"\+?[0-9]{3,15}")
# Less than RFC 3261 §25.1 allows. "?" would add header fields, "%" may hide anything; "," is
# dialled as DTMF by some, "<" separates numbers to others.
_SIP_URI = re.compile(
    r"sips?:[A-Za-z0-9._~+*-]{1,80}@"
    r"(?:[A-Za-z0-9](?:[A-Za-z0-9.-]{0,251}[A-Za-z0-9])?|\[[0-9A-Fa-f:.]{2,45}\])"
    r"(?::[0-9]{1,5})?"
    r"(?:;[A-Za-z0-9_.-]{1,40}(?:=[A-Za-z0-9_.+~-]{1,80})?){0,8}"
)
# No ".": it could climb up the path of a URL.
_ID = re.compile(r"[A-Za-z0-9_:=-]{1,200}")


class RestError(LegError):
    """The provider did not do what it was asked; the text says why and what to do about it."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status
        """Of HTTP; 0 when nothing was asked or nothing answered."""


@dataclass(frozen=True, slots=True)
class Basic:
    """A user and a password (RFC 7617)."""

    user: str = field(repr=False)
    password: str = field(repr=False)

    def header(self, now: float) -> str:
        """The Authorization header field; `now` is the time in s since 1970."""
        return "Basic " + b64encode(f"{self.user}:{self.password}".encode()).decode()


@dataclass(frozen=True, slots=True)
class Bearer:
    """A key that is shown as it is (RFC 6750)."""

    key: str = field(repr=False)

    def header(self, now: float) -> str:
        """As Basic.header. Raises RestError for what cannot be a key."""
        if not _KEY.fullmatch(self.key):
            raise RestError(0, "api_key has characters in it that no API key has")
        return f"Bearer {self.key}"


@dataclass(frozen=True, slots=True)
class Application:
    """A Vonage application, which signs a token of its own for each request (RS256, RFC 7519)."""

    application_id: str
    private_key: str = field(repr=False)
    """PEM."""

    def header(self, now: float) -> str:
        """As Basic.header. Raises RestError when the key is none."""
        claims = {
            "application_id": self.application_id,
            "iat": int(now),
            "exp": int(now) + JWT_S,
            "jti": str(uuid4()),
        }
        parts = [_base64url(json.dumps(part).encode()) for part in (_JWT_HEADER, claims)]
        signature = _private_key(self.private_key).sign(
            ".".join(parts).encode(), PKCS1v15(), SHA256()
        )
        return "Bearer " + ".".join((*parts, _base64url(signature)))


_JWT_HEADER = {"alg": "RS256", "typ": "JWT"}

Auth = Basic | Bearer | Application


@lru_cache(maxsize=8)
def _private_key(pem: str) -> RSAPrivateKey:
    try:
        key = load_pem_private_key(pem.encode(), None)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        key = None
    if not isinstance(key, RSAPrivateKey):
        raise RestError(0, "Vonage: api_key is not the application's private key (RSA, as PEM)")
    return key


def _base64url(data: bytes) -> str:
    return urlsafe_b64encode(data).decode().rstrip("=")


@dataclass(frozen=True, slots=True)
class RestRequest:
    """One request, ready but for its Authorization. No secret stands in its text."""

    method: str
    url: str
    auth: Auth
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""


@dataclass(frozen=True, slots=True)
class Dial:
    """A call that we want placed. Raises RestError for what cannot be dialled."""

    to: str
    """E.164 ("+14155551212") or a SIP URI."""
    caller: str
    """Our caller id: digits, with "+" or without as the provider wants it."""
    webhook_url: str
    """Asked by the provider for what to do once the call is answered."""
    status_url: str = ""
    """Told how the call goes; "" for nobody."""
    ring_seconds: float = 60.0
    stream_url: str = ""
    """wss://, where the sound is to go at once, for those who can do so without asking."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "to", destination(self.to))
        if not self.caller:
            raise RestError(0, "there is no caller id to call with: set the carrier's number")
        if not _CALLER.fullmatch(self.caller):
            raise RestError(0, f"{self.caller[:40]!r} is no caller id: digits, perhaps after a +")

    def rings(self, least: int, most: int) -> int:
        """How long to ring, in whole seconds, within what the provider takes."""
        return round(min(max(self.ring_seconds, least), most))


def destination(text: str) -> str:
    """A number (E.164, "tel:" before it or not) or SIP URI that a call can go to, as it is sent.

    Nothing else comes through, so that it can stand in a form, in JSON, in XML or in a query and
    means one call and nothing more. Raises RestError.
    """
    text = text.strip().removeprefix("tel:")
    if not _NUMBER.fullmatch(text) and not _SIP_URI.fullmatch(text):
        raise RestError(
            0, f"{text[:80]!r} cannot be called: write +14155551212 or sip:user@host.example"
        )
    return text


def is_sip(address: str) -> bool:
    return address.startswith("sip")


class Api(ABC):
    """One provider's REST. What it makes raises RestError when the settings do not do."""

    title: ClassVar[str]
    """The provider's name for people."""
    default_url: ClassVar[str]
    credentials: ClassVar[str]
    """What to look at when the provider does not know us."""
    problems: ClassVar[Mapping[str, str]] = {}
    """The provider's error codes, in words that say what to do."""
    ended: ClassVar[frozenset[str]] = frozenset()
    """Its error codes for a call that has ended."""
    ends_calls: ClassVar[bool] = True
    """Its REST can end a call; if not, the end of the stream does."""

    def __init__(self, settings: CarrierSettings) -> None:
        self.settings = settings

    @abstractmethod
    def dial(self, call: Dial) -> RestRequest: ...
    @abstractmethod
    def hang_up(self, call_id: str) -> RestRequest: ...
    @abstractmethod
    def transfer(self, call_id: str, target: str) -> RestRequest: ...

    @abstractmethod
    def auth(self) -> Auth: ...
    @abstractmethod
    def call_id(self, answer: Answer) -> object:
        """What the answer to `dial` calls the new call; may be anything."""

    @abstractmethod
    def problem(self, answer: Answer) -> tuple[object, object]:
        """The code and the words of an error; may be anything."""

    def read_dial(self, status: int, body: bytes) -> str:
        """The provider's id of the call. Raises RestError."""
        answer = read_object(body)
        if not _succeeded(status):
            raise self._error(status, answer)
        call_id = self.call_id(answer)
        if not isinstance(call_id, str) or not _ID.fullmatch(call_id):
            raise RestError(
                status,
                f"{self.title} took the call but its answer has no id of it: is rest_url right?",
            )
        return call_id

    def read_hang_up(self, status: int, body: bytes) -> None:
        """A call that has ended already is hung up. Raises RestError."""
        answer = read_object(body)
        if not _succeeded(status) and not self._has_ended(status, answer):
            raise self._error(status, answer)

    def read_transfer(self, status: int, body: bytes) -> None:
        """Raises RestError."""
        answer = read_object(body)
        if _succeeded(status):
            return
        if self._has_ended(status, answer):
            raise RestError(status, f"{self.title}: the call has ended and cannot be transferred")
        raise self._error(status, answer)

    def need(self, name: str) -> str:
        """The setting. Raises RestError when it is not set."""
        value: str = getattr(self.settings, name)
        if not value:
            raise RestError(
                0,
                f"{self.title} needs {name} of the carrier {self.settings.name!r} for this: "
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
        """To the parts of a path, which are escaped."""
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

    def _has_ended(self, status: int, answer: Answer) -> bool:
        code, words = self.problem(answer)
        # A 404 in words that are not the provider's comes from a wrong rest_url.
        return str(code) in self.ended or (status == 404 and bool(code or words))

    def _error(self, status: int, answer: Answer) -> RestError:
        code, words = (readable(value) for value in self.problem(answer))
        text = self.problems.get(code) or self._in_words(status)
        said = " ".join(part for part in (code, words) if part)
        return RestError(status, f"{self.title}: {text}" + (f" (it says: {said})" if said else ""))

    def _in_words(self, status: int) -> str:
        """What HTTP says of itself (RFC 9110 §15)."""
        match status:
            case 401:
                return f"wrong credentials: check {self.credentials}"
            case 402:
                return "the account has no credit left: top it up"
            case 403:
                return "the account may not do this: check what it is allowed to do"
            case 404:
                return "what was asked for is not there: check account and rest_url"
            case 429:
                return "too many requests at once: try again in some seconds"
            case _ if 300 <= status < 400:
                return f"it sends us elsewhere (HTTP {status}): check rest_url"
            case _ if status >= 500:
                return f"its service fails (HTTP {status}): try again later"
            case _:
                return f"it refuses the request (HTTP {status})"


def _succeeded(status: int) -> bool:
    return 200 <= status < 300


def path_id(text: str, what: str = "a call") -> str:
    """The id of a call, or of `what`, that is about to stand in a URL. Raises RestError."""
    if not _ID.fullmatch(text):
        raise RestError(0, f"{readable(text)[:40]!r} is not the id of {what}")
    return text


def read_object(body: bytes) -> Answer:
    try:
        value = json.loads(body)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def readable(value: object) -> str:
    """Text, a number, or what else JSON holds, on one line that a log can take."""
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
