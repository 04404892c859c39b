"""`[server]`, `[webrtc]`, `[opus]`, `[recording]` and `[tracing]`: the process and its lines."""

import ipaddress
import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, Self

from pydantic import (
    BeforeValidator,
    Field,
    field_validator,
    model_validator,
)

from offhook.media.line_recording import Wanted
from offhook.web.config.section import Secret, Section, each
from offhook.web.http.access import is_loopback
from offhook.web.http.overload import LATE_MS
from offhook.web.http.shares import Shares

if TYPE_CHECKING:
    from offhook.media.codecs.opus import OpusSettings
    from offhook.media.sealing.keyring import Keyring

MAX_CALLS = 256
"""Maximum of `server.max_calls`; a configuration with more is refused."""


class Server(Section):
    host: str = "127.0.0.1"
    """Address to listen on; by default only this machine can connect."""
    port: int = Field(7860, ge=0, le=65535)
    """TCP port of HTTP and WebSockets, the page included; 0 for any free port."""
    processes: int = Field(1, ge=1, le=64)
    """Edge processes sharing the port; calls are spread over them."""
    max_calls: int = Field(20, ge=1, le=MAX_CALLS)
    """Maximum calls per process; further callers get 503 with Retry-After."""
    share_per_address: float = Field(Shares.per_address, gt=0, le=1)
    """Share of a process's lines, and of its streams of each kind, that callers from one address
    without an API key may have at a time, two at least; further ones get 429 with Retry-After. 1:
    all, where everybody comes from one address. This machine's own address is not counted."""
    share_per_key: float = Field(Shares.per_key, gt=0, le=1)
    """The same of callers with one API key, from whatever address."""
    proxies: tuple[str, ...] = ()
    """Networks of the proxies in front, besides this machine's own, as 10.0.0.0/8: callers are
    counted by the address in their X-Forwarded-For."""
    max_lateness_ms: float = Field(LATE_MS, ge=0)
    """New calls are refused with 503, as of an overloaded process, while one in twenty packets of
    those in progress leaves later than this, in ms: callers hear gaps then. 0: never for that
    reason."""
    max_call_minutes: float = Field(120, gt=0)
    """Maximum duration of a call in minutes, in case nobody hangs up; then the caller hears an
    announcement and the call ends. Realtime sessions last as long as their call."""
    api_key: Secret = ""
    """If set, callers must send it, or a token from `POST /tokens`, as a bearer token."""
    admin_key: Secret = ""
    """The operator's key for /calls, /sip/trace and /tokens. Without it they accept only direct
    connections from this machine."""
    reader_key: Secret = ""
    """Key of those who may look at the calls that are kept, in the console and at /calls, but
    neither listen to recordings nor change anything."""
    admin_listen: str = ""
    """Separate address of the operator's routes: unix:PATH or host:port on this machine."""
    names: frozenset[str] = frozenset()
    """Host names of the server besides its addresses and localhost. Without an api_key, requests
    for other names are refused, which prevents DNS rebinding."""
    origins: Annotated[
        frozenset[str],
        each(r"[a-z][a-z0-9+.-]*://[^/?#@*\s]+", "not an origin, as https://app.example"),
    ] = frozenset()
    """Origins of other sites whose pages may call, e.g. https://app.example."""
    metrics: Literal["open", "key"] = "open"
    """Who may read /metrics, which has counts and times: anyone, or only holders of a key (with
    calls, the operator's). /healthz and /readyz are always public."""
    drain_seconds: float = Field(30, ge=0)
    """Maximum time in s that calls may continue after SIGTERM; then the remaining callers hear an
    announcement and are disconnected."""
    redis: Secret = ""
    """URL of a Redis shared with other servers, redis://host:port/db or unix:///path: calls are
    saved there after each turn, and continue at another server if this one ends or fails; empty:
    they end with it."""

    @property
    def local(self) -> bool:
        """Whether only this machine can connect."""
        return is_loopback(self.host)

    @property
    def shares(self) -> Shares:
        return Shares(self.share_per_address, self.share_per_key)

    @field_validator("proxies")
    @classmethod
    def _are_networks(cls, networks: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(str(ipaddress.ip_network(text)) for text in networks)  # raises ValueError

    @field_validator("admin_listen")
    @classmethod
    def _is_of_this_machine(cls, address: str) -> str:
        here = r"unix:.+|(localhost|127\.[\d.]+|\[::1\]):\d{1,5}"
        if address and not re.fullmatch(here, address):
            raise ValueError("not unix:PATH, nor host:port of this machine, as 127.0.0.1:7861")
        return address

    @field_validator("names")
    @classmethod
    def _are_names(cls, names: frozenset[str]) -> frozenset[str]:
        for name in names:
            if not re.fullmatch(r"[\w.-]+", name):
                raise ValueError(f"{name!r} is not a host's name, as voice.example.org")
        return frozenset(name.lower() for name in names)

    @model_validator(mode="after")
    def _roles_have_keys_of_their_own(self) -> "Server":
        if self.admin_key and self.admin_key == self.api_key:
            raise ValueError("admin_key: callers have this key (api_key)")
        if self.reader_key and not self.admin_key:
            raise ValueError("reader_key: only beside an admin_key; without, this machine reads")
        if self.reader_key and self.reader_key in (self.admin_key, self.api_key):
            raise ValueError("reader_key: another role has this key")
        return self

    @property
    def url(self) -> str:
        """URL of the server from this machine, if the port is not 0."""
        host = "localhost" if self.host in ("0.0.0.0", "::", "") else self.host
        return f"http://[{host}]:{self.port}" if ":" in host else f"http://{host}:{self.port}"

    @property
    def operator_url(self) -> str:
        """Address of the operator's routes from this machine: http://host:port or unix:PATH."""
        if self.admin_listen.startswith("unix:"):
            return self.admin_listen
        return f"http://{self.admin_listen}" if self.admin_listen else self.url


class IceServer(Section):
    urls: str | list[str]
    """URLs of one server, e.g. turn:turn.example.org or stun:stun.example.org."""
    username: str | None = None
    credential: str | None = Field(None, repr=False)


class WebRtc(Section):
    ice_servers: list[IceServer] = Field([])
    """STUN and TURN servers for both sides."""
    addresses: list[str] = Field([])
    """Local addresses offered to callers; empty: all addresses of this machine."""
    port: int = Field(0, ge=0, le=65535)
    """Port of the audio of all calls, UDP and, for callers whose firewalls block UDP, TCP; further
    processes use the ports after it. 0: a free UDP port for each call."""
    public_address: str = ""
    """IP address offered to callers instead of the local ones, if this machine is behind a NAT that
    forwards the port to it."""
    ping_timeout_seconds: float = Field(15, gt=0)
    """Time in s after which a caller who has disappeared is disconnected."""

    @field_validator("public_address")
    @classmethod
    def _is_an_address(cls, address: str) -> str:
        if address:
            ipaddress.ip_address(address)  # raises ValueError with the reason
        return address

    @model_validator(mode="after")
    def _can_be_forwarded(self) -> Self:
        if self.public_address and not self.port:
            raise ValueError("public_address needs a port that the NAT forwards: set port as well")
        return self


class Opus(Section):
    bitrate: int = Field(48_000, ge=6_000, le=128_000)
    """Bit rate of outgoing audio in bit/s. Below 48000 encoding takes three times the CPU time."""
    complexity: int = Field(5, ge=0, le=10)
    """Encoder complexity, from 0 (least CPU) to 10 (best quality)."""
    fec: bool = True
    """Whether in-band forward error correction is sent (RFC 6716 §2.1.7)."""
    dtx: bool = True

    """Whether transmission stops during silence (discontinuous transmission)."""

    def settings(self) -> "OpusSettings":
        from offhook.media.codecs.opus import (
            OpusSettings,  # with libav, for which only edges have use
        )

        return OpusSettings(self.bitrate, self.complexity, self.fec, self.dtx)


def _mode(enabled: object) -> object:
    """Reads what was once true or false, also of the environment."""
    if enabled is True or (isinstance(enabled, str) and enabled.lower() == "true"):
        return "always"
    if enabled is False or (isinstance(enabled, str) and enabled.lower() == "false"):
        return "never"
    return enabled


class Recording(Section):
    enabled: Annotated[Wanted, BeforeValidator(_mode)] = "never"
    """Which calls are recorded in stereo (caller left, agent right) with a timeline: always,
    on_demand (once the agent or a program has started it) or never. `record` of an agent is for its
    calls alone; true and false are always and never."""
    notice: str = Field("", max_length=500, examples=["This call is recorded."])
    """What callers hear when they are recorded, before the agent's first words; nobody can talk
    over it. `sentences.recorded` of an agent replaces it. Empty: nothing."""
    pause_key: str = Field("", pattern=r"^[0-9*#A-D]?$", examples=["*"])
    """Key with which a caller pauses and resumes the recording; the agent does not get it. Empty:
    none."""
    directory: Path = Path("recordings")
    """Folder of the recordings."""
    key: Secret = ""
    """Key with which recordings are encrypted: 32 bytes in base64, as `offhook calls key` makes
    one. Without it nobody can play them. Empty, and without `key_file`: they are not encrypted."""
    key_file: Path | None = None
    """File with that key, in place of `key`. After it may come older ones, a line each, with which
    older recordings can be played."""
    keys: bool = False
    """Whether the timeline says which keys a caller pressed: card numbers and PINs too. The log
    never does."""

    @model_validator(mode="after")
    def _has_keys(self) -> Self:
        if self.key and self.key_file is not None:
            raise ValueError("key and key_file exclude each other")
        if self.key:
            self._keyring(self.key, "key")
        return self

    def keyring(self) -> "Keyring | None":
        """Reads the keys; None: recordings are not encrypted. Raises ValueError."""
        if self.key_file is None:
            return self._keyring(self.key, "key") if self.key else None
        try:
            text = self.key_file.expanduser().read_text()
        except (OSError, UnicodeDecodeError) as error:
            why = error.strerror if isinstance(error, OSError) else "is no text"
            raise ValueError(f"key_file {self.key_file}: {why}") from error
        return self._keyring(text, f"key_file {self.key_file}")

    @staticmethod
    def _keyring(text: str, where: str) -> "Keyring":
        from offhook.media.sealing.keyring import KeyFault, Keyring

        try:
            return Keyring.parse(text)
        except KeyFault as fault:
            raise ValueError(f"{where}: {fault}") from fault


class Tracing(Section):
    otlp_endpoint: str = ""
    """OTLP endpoint for OpenTelemetry traces; empty: tracing is off. What was said is in them where
    [log] `words` has it logged."""
