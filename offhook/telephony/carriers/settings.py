"""The settings of one carrier: provider, credentials, formats and limits."""

import re
from dataclasses import dataclass, field
from ipaddress import ip_address, ip_network
from typing import Literal
from urllib.parse import SplitResult, urlsplit

PORT = 9019
"""TCP port used in Asterisk's own examples."""
LOCAL_ADDRESSES = ("127.0.0.0/8", "::1")

_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,62}")
_LOCALHOST = "localhost"


@dataclass(frozen=True, slots=True)
class CarrierSettings:
    """A carrier's settings. Raises ValueError if they are inconsistent; what they must be for its
    provider, that one's `Provider` checks. No secret in the repr."""

    provider: str
    """Who it is: a name of the table below, or of another package's entry point."""
    name: str = ""
    """Used in our URLs; "" for the provider's name."""
    account: str = ""
    """Id of the account or application at the provider; see the table below."""
    secret: str = field(default="", repr=False)
    """What proves that requests are the provider's; see the table below."""
    api_key: str = field(default="", repr=False)
    """What the provider's REST API is used with, if that is not `secret`; see the table below."""
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
    machine_detection: Literal["off", "detect", "message"] | None = None
    """What is done about who answers the calls that we place here, if the one who places a call
    does not say: nothing, the agent is told, or a message is left on a machine. By default as the
    agent has it."""
    asks_who_answers: bool = False
    """Whether the provider is asked as well who answers such a call, as this carrier or whoever
    places it has it; providers have a price for that."""
    dtmf_tones: bool = False
    """Whether keys are heard as tones in the audio, for numbers whose carrier reports none."""
    addresses: tuple[str, ...] = LOCAL_ADDRESSES
    """IP addresses and networks (CIDR) from which Asterisk needs no password."""
    port: int = PORT
    """TCP port, where the provider connects to one of its own; 0 for any free one."""
    signature_v2: bool = False
    """Accept requests that have only the provider's older signature, V2, which covers neither the
    query nor the fields: whoever reads one such request on its way can change what it says."""
    insecure: bool = False
    """Accept unsigned requests, from this machine only: for tests."""

    def __post_init__(self) -> None:
        if not self.name:
            object.__setattr__(self, "name", self.provider)
        elif not _NAME.fullmatch(self.name):
            raise ValueError(f"carrier {self.name!r}: use a-z, 0-9, - and _, at most 63")
        self._check_values()
        self._check_urls()

    def _check_values(self) -> None:
        for name in ("account", "number", "agent"):
            if not getattr(self, name).isprintable():
                raise self.wrong(f"{name} contains unprintable characters")
        if self.machine_detection not in (None, "off", "detect", "message"):
            raise self.wrong("machine_detection must be off, detect or message")
        if self.max_calls < 0:
            raise self.wrong("max_calls must not be negative")
        if self.port not in range(65536):
            raise self.wrong(f"port must be 0..65535, not {self.port}")
        try:
            for address in self.addresses:
                ip_network(address, strict=False)
        except ValueError as error:
            raise self.wrong(f"addresses: {error}") from None

    def _check_urls(self) -> None:
        if self.public_url:
            parts = self._url("public_url")
            if parts.scheme != "https" and not _is_local(parts.hostname):
                raise self.wrong("public_url must be https, or calls would be unencrypted")
            if self.insecure and not _is_local(parts.hostname):
                raise self.wrong("insecure is for this machine only, not for a public_url")
        if self.rest_url:
            parts = self._url("rest_url")
            if parts.scheme != "https" and not _is_local(parts.hostname):
                raise self.wrong("rest_url must be https: it receives our credentials")

    def _url(self, name: str) -> SplitResult:
        text: str = getattr(self, name)
        try:
            parts = urlsplit(text)
            whole = parts.hostname and parts.port != 0  # .port raises if it is invalid
        except ValueError:
            raise self.wrong(f"{name} is not a URL") from None
        # Do not show the text: it may be a URL with a password.
        if parts.username is not None or parts.password is not None:
            raise self.wrong(f"{name} must not contain a password")
        if parts.scheme not in ("https", "http") or not whole or not text.isascii():
            raise self.wrong(f'{name} must be a URL such as "https://voice.example.org"')
        if parts.query or parts.fragment or not text.isprintable() or " " in text:
            raise self.wrong(f"{name} must not have a query, a fragment or spaces")
        return parts

    def wrong(self, what: str) -> ValueError:
        """Return what to raise about these settings."""
        return ValueError(f"carrier {self.name!r}: {what}")


def _is_local(host: str | None) -> bool:
    if not host or host == _LOCALHOST:
        return bool(host)
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False
