"""`[speech]` and `[realtime]`: what programs may ask of the server."""

from typing import Annotated, Any

from pydantic import (
    Field,
    field_validator,
    model_validator,
)

from offhook.web.config.section import Secret, Section, each
from offhook.web.http.access import is_loopback
from offhook.web.http.networks import private_network


class Realtime(Section):
    """Realtime sessions of programs and pages."""

    frozen: Annotated[
        frozenset[str],
        each(r"[a-z_]+(\.[a-z_]+)*", "not a field, as instructions or audio.output.voice"),
    ] = frozenset()
    """Fields of the session object that holders of a client secret cannot change, dotted, and all
    below them: ["instructions", "tools", "audio.output"]."""
    mcp_servers: Annotated[
        frozenset[str], each(r"https?://[^/?#@*\s]+", "not an origin, as https://mcp.example")
    ] = frozenset()
    """Origins of the MCP servers that this server connects to when a session's tools ask for it,
    e.g. https://mcp.example. Empty by default, because the addresses come from clients. Needs the
    extra `mcp`."""


class SpeechKey(Section):
    """A program with access to the speech API."""

    name: str
    """Name of the program in logs and metrics."""
    key: Secret
    """Bearer token of the program."""
    max_requests: int = Field(0, ge=0)
    """Maximum concurrent requests; further ones get 429 with Retry-After. 0: only the global
    limit."""
    requests_per_minute: int = Field(0, ge=0)
    """Maximum requests per minute; further ones get 429 with Retry-After. 0: unlimited."""


class Speech(Section):
    """The speech API for programs."""

    enabled: bool = True
    """Whether `offhook serve` also offers the speech API."""
    transcriptions: int = Field(4, ge=1)
    """Maximum concurrent file transcriptions; further ones wait in the queue."""
    speeches: int = Field(16, ge=1)
    """Maximum concurrent speech syntheses; further ones wait in the queue."""
    queue: int = Field(32, ge=0)
    """Maximum requests of each kind waiting in the queue; further ones get 503 with Retry-After."""
    streams: int = Field(64, ge=1)
    """Maximum concurrent WebSockets of each kind; further ones are refused with 503 and
    Retry-After, or with the error `full` on the socket."""
    max_upload_mb: int = Field(512, ge=1)
    """Maximum size of an uploaded file in MB; a larger one is refused with 413."""
    max_audio_minutes: float = Field(240, gt=0)
    """Maximum duration of an uploaded file in minutes; a longer one is refused with 400."""
    lenient: bool = False
    """Whether unknown fields in requests are ignored instead of rejected."""
    aliases: dict[str, str] = Field({})
    """Aliases for names that programs send: "transcription" or "speech" for the local model of that
    kind, or the name of a voice ("" for the default)."""
    keys: tuple[SpeechKey, ...] = ()
    """Keys besides [server] api_key; without any key the API is open to everyone who can
    connect."""
    translate_url: str = ""
    """URL of an OpenAI-compatible chat server, http://host:port/v1, that translates transcripts
    into English; empty: only English audio can be "translated"."""
    translate_model: str = ""
    """Name of the chat model at that server."""
    translate_api_key: Secret = ""
    """Bearer token for that server."""
    wyoming: str = Field(
        "",
        pattern=r"^((\[[0-9a-fA-F:.]+\]|[^\s:\[\]]+):)?[0-9]{1,5}$|^$",
        examples=["10300", "0.0.0.0:10300"],
    )
    """Address at which Home Assistant and other Wyoming clients reach the engines: a port of this
    machine, as 10300, or HOST:PORT; empty: none."""
    wyoming_networks: tuple[str, ...] = ()
    """Private networks whose machines may connect there besides this one, as 192.168.1.0/24. The
    protocol has neither keys nor encryption."""

    @field_validator("wyoming", mode="before")
    @classmethod
    def _may_be_a_port(cls, address: Any) -> Any:
        return str(address) if type(address) is int else address

    @field_validator("wyoming_networks")
    @classmethod
    def _are_private(cls, networks: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(str(private_network(text)) for text in networks)

    @model_validator(mode="after")
    def _names_its_networks(self) -> "Speech":
        if not self.wyoming:
            return self
        host, port = self.wyoming_address
        if port > 65535:
            raise ValueError(f"wyoming: {port} is no port")
        if not is_loopback(host) and not self.wyoming_networks:
            raise ValueError(
                f"wyoming: at {host} other machines could connect, and the protocol has no keys: "
                'set wyoming_networks to those that may, as ["192.168.1.0/24"]'
            )
        return self

    @property
    def wyoming_address(self) -> tuple[str, int]:
        """Host and port of `wyoming`."""
        host, _, port = self.wyoming.rpartition(":")
        return host.strip("[]") or "127.0.0.1", int(port)
