"""The settings of one carrier: provider, credentials, formats and limits."""

import re
from base64 import b64decode
from collections.abc import Mapping
from dataclasses import dataclass, field
from ipaddress import ip_address, ip_network
from types import MappingProxyType
from typing import Literal, get_args
from urllib.parse import SplitResult, urlsplit

from offhook.telephony.carriers.streams.stream import Format

Provider = Literal[
    "twilio", "telnyx", "plivo", "vonage", "exotel", "genesys", "audiosocket", "chan_websocket"
]
Encoding = Literal["pcmu", "pcma", "l16", "opus"]

PROVIDERS: tuple[Provider, ...] = get_args(Provider)
SIGNING: tuple[Provider, ...] = ("twilio", "telnyx", "plivo", "vonage", "genesys")
"""Providers that sign their requests; the others use a password or a known address."""
AUDIOSOCKET_PORT = 9019
"""TCP port used in Asterisk's own examples."""
ED25519_KEY_BYTES = 32
LOCAL_ADDRESSES = ("127.0.0.0/8", "::1")

_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,62}")
_LOCALHOST = "localhost"

# Formats the provider's stream supports: encoding → rates in Hz. The first of each is the default.
# Those announced in the first message (Asterisk, Genesys) are not listed.
_FORMATS: Mapping[Provider, Mapping[Encoding, tuple[int, ...]]] = MappingProxyType(
    {
        "twilio": {"pcmu": (8000,)},
        "telnyx": {"pcmu": (8000,), "pcma": (8000,), "l16": (16000, 8000, 24000), "opus": (48000,)},
        "plivo": {"pcmu": (8000,), "l16": (16000, 8000)},
        "vonage": {"l16": (16000, 8000, 24000)},
        "exotel": {"l16": (8000, 16000, 24000)},
    }
)


@dataclass(frozen=True, slots=True)
class CarrierSettings:
    """A carrier's settings. Raises ValueError if they are inconsistent. No secret in the repr."""

    provider: Provider
    name: str = ""
    """Used in our URLs; "" for the provider's name."""
    account: str = ""
    """Twilio and Exotel: the account's SID; Plivo: the auth id; Telnyx: the TeXML application;
    Vonage: the application's id; Genesys: the organization; chan_websocket: the user."""
    secret: str = field(default="", repr=False)
    """Twilio and Plivo: the auth token; Telnyx: the public key of what it signs (base64); Vonage:
    the signature secret; Genesys: the client secret (base64); Exotel: the API token;
    chan_websocket: the password."""
    api_key: str = field(default="", repr=False)
    """Telnyx: the API key; Vonage: the application's private key (PEM, or its file's name); Exotel:
    the API key that the token belongs to; Genesys: the key it sends as X-API-KEY; Twilio: an API
    key's SID, a colon, its secret, to be used for its REST instead of the auth token."""
    number: str = ""
    """Caller ID of the calls we place, in the provider's notation."""
    public_url: str = ""
    """Base URL the provider uses, "https://voice.example.org"; "" for the request's host."""
    trust_proxy: bool = False
    """Trust X-Forwarded-Proto, -Host and -For: they come from our own proxy, as nobody else reaches
    this port."""
    agent: str = ""
    """Agent of the calls; "" for the default."""
    rest_url: str = ""
    """Base URL of the REST API; "" for the provider's own."""
    encoding: Literal["", "pcmu", "pcma", "l16", "opus"] = ""
    """Encoding to request; "" for the provider's best."""
    rate: int = 0
    """Sample rate in Hz; 0 for the encoding's default."""
    max_calls: int = 0
    """Limit of this carrier's calls, inbound and outbound, beyond which inbound ones are refused as
    busy and outbound ones fail; 0 for only the global limit."""
    dtmf_tones: bool = False
    """Whether keys are heard as tones in the audio, for numbers whose carrier reports none."""
    addresses: tuple[str, ...] = LOCAL_ADDRESSES
    """IP addresses and networks (CIDR) from which Asterisk needs no password."""
    port: int = AUDIOSOCKET_PORT
    """TCP port for AudioSocket; 0 for any free one."""
    signature_v2: bool = False
    """Plivo: accept requests without a V3 signature by their V2 signature, which covers neither the
    query nor the fields: whoever reads one such request on its way can change what it says."""
    insecure: bool = False
    """Accept unsigned requests, from this machine only: for tests."""

    def __post_init__(self) -> None:
        if self.provider not in PROVIDERS:
            raise ValueError(
                f"unknown provider {self.provider!r}: use one of {', '.join(PROVIDERS)}"
            )
        if not self.name:
            object.__setattr__(self, "name", self.provider)
        if not _NAME.fullmatch(self.name):
            raise ValueError(f"carrier {self.name!r}: use a-z, 0-9, - and _, at most 63")
        self._check_values()
        self._check_format()
        self._check_urls()
        self._check_secrets()

    def _check_values(self) -> None:
        for name in ("account", "number", "agent"):
            if not getattr(self, name).isprintable():
                raise self._wrong(f"{name} contains unprintable characters")
        if self.max_calls < 0:
            raise self._wrong("max_calls must not be negative")
        if self.port not in range(65536):
            raise self._wrong(f"port must be 0..65535, not {self.port}")
        try:
            for address in self.addresses:
                ip_network(address, strict=False)
        except ValueError as error:
            raise self._wrong(f"addresses: {error}") from None

    def _check_format(self) -> None:
        formats = _FORMATS.get(self.provider)
        if formats is None:
            if self.encoding or self.rate:
                raise self._wrong(f"{self.provider} sets the encoding: remove encoding and rate")
            return
        encoding = self.encoding if self.encoding != "" else next(iter(formats))
        if encoding not in formats:
            known = ", ".join(formats)
            raise self._wrong(f"encoding must be one of {known}, not {encoding!r}")
        if self.rate and self.rate not in formats[encoding]:
            known = ", ".join(map(str, sorted(formats[encoding])))
            raise self._wrong(f"rate must be one of {known} Hz, not {self.rate}")

    def _check_urls(self) -> None:
        if self.public_url:
            parts = self._url("public_url")
            if parts.scheme != "https" and not _is_local(parts.hostname):
                raise self._wrong("public_url must be https, or calls would be unencrypted")
            if self.insecure and not _is_local(parts.hostname):
                raise self._wrong("insecure is for this machine only, not for a public_url")
        if self.rest_url:
            parts = self._url("rest_url")
            if parts.scheme != "https" and not _is_local(parts.hostname):
                raise self._wrong("rest_url must be https: it receives our credentials")

    def _url(self, name: str) -> SplitResult:
        text: str = getattr(self, name)
        try:
            parts = urlsplit(text)
            whole = parts.hostname and parts.port != 0  # .port raises if it is invalid
        except ValueError:
            raise self._wrong(f"{name} is not a URL") from None
        # Do not show the text: it may be a URL with a password.
        if parts.username is not None or parts.password is not None:
            raise self._wrong(f"{name} must not contain a password")
        if parts.scheme not in ("https", "http") or not whole or not text.isascii():
            raise self._wrong(f'{name} must be a URL such as "https://voice.example.org"')
        if parts.query or parts.fragment or not text.isprintable() or " " in text:
            raise self._wrong(f"{name} must not have a query, a fragment or spaces")
        return parts

    def _check_secrets(self) -> None:
        if self.insecure or self.provider in ("audiosocket", "chan_websocket"):
            return
        if not self.secret:
            raise self._wrong("secret is required: it proves who calls")
        if self.provider in ("genesys", "exotel") and not self.api_key:
            raise self._wrong("api_key is required along with secret")
        if self.provider in ("genesys", "telnyx"):
            try:
                key = b64decode(self.secret, validate=True)
            except ValueError:
                raise self._wrong("secret is not base64") from None
            if self.provider == "telnyx" and len(key) != ED25519_KEY_BYTES:
                raise self._wrong("secret must be Telnyx's public key, 32 bytes in base64")

    def _wrong(self, what: str) -> ValueError:
        return ValueError(f"carrier {self.name!r}: {what}")

    @property
    def signs(self) -> bool:
        return self.provider in SIGNING

    @property
    def format(self) -> Format | None:
        """The format the provider is asked to send and accept; None if it chooses itself."""
        formats = _FORMATS.get(self.provider)
        if formats is None:
            return None
        encoding = self.encoding if self.encoding != "" else next(iter(formats))
        return Format(encoding, self.rate or formats[encoding][0])


def _is_local(host: str | None) -> bool:
    if not host or host == _LOCALHOST:
        return bool(host)
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False
