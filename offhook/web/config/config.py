"""The configuration: `offhook.toml`, overridden by the environment, validated at start.

`OFFHOOK_SERVER_PORT=8080` overrides `port` in `[server]`. Unknown keys and invalid values stop the
server with a line each, which names the file's line or the variable, and the remedy.
"""

import ipaddress
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self, TypeAlias, get_args
from urllib.parse import urlsplit

from pydantic import (
    AfterValidator,
    BaseModel,
    Field,
    PrivateAttr,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)

from offhook.pipeline.conversation.agents.frontdesk_business import DEMO, Business
from offhook.pipeline.conversation.agents.kinds import kinds
from offhook.pipeline.conversation.agents.kinds.agent_kind import AgentKind
from offhook.pipeline.conversation.turns.turn import TurnSettings
from offhook.pipeline.engines.shared.asr_models import AsrModels, Device, Precision
from offhook.pipeline.engines.shared.tts_models import NO_CACHE, TtsModels
from offhook.pipeline.speech.engine_spec import Kind
from offhook.pipeline.speech.engines import (
    is_known,
    names,
    names_on_gpu,
    stand_in,
    with_setting,
)
from offhook.pipeline.speech.enhancement.enhancer import EnhancementSettings, SuppressionMode
from offhook.pipeline.speech.recognizer import (
    UPDATE_MS,
    UPDATE_MS_MAX,
    UPDATE_MS_MIN,
    StreamOptions,
)
from offhook.pipeline.speech.streams.priority_semaphore_io import MAX_REQUESTS
from offhook.pipeline.speech.synthesizer import MAX_SPEED, MIN_SPEED, VoiceOptions
from offhook.pipeline.speech.vad.turn_model_io import SMART_TURN, WORDS, is_turn_model
from offhook.telephony.carriers.providers import checked
from offhook.telephony.carriers.settings import CarrierSettings
from offhook.telephony.sip.trunks.trunks import SipSettings, read_address
from offhook.web.config.agents import DEFAULT
from offhook.web.config.agents import Agent as Agent
from offhook.web.config.environment import overrides
from offhook.web.config.faults import booleans_for_numbers, faults_of
from offhook.web.config.hours import Hours, faults_of_hours
from offhook.web.config.knowledge import Knowledge
from offhook.web.config.mcp import McpServer, McpTools
from offhook.web.config.prices import Prices
from offhook.web.config.pronunciation import Pronouncing
from offhook.web.config.section import Secret, Section, or_plugin
from offhook.web.config.toml_text import KeyPath, TomlText, read_toml
from offhook.web.http.access import AccessPolicy, Key, Role, Scope, is_loopback
from offhook.web.http.logs import Log as Log
from offhook.web.http.networks import private_network
from offhook.web.http.overload import LATE_MS
from offhook.web.http.shares import Shares

if TYPE_CHECKING:
    from offhook.media.codecs.opus import OpusSettings

DEFAULT_FILE = Path("offhook.toml")
MAX_CALLS = 256
"""Maximum of `server.max_calls`; a configuration with more is refused."""
OPENAI = "openai"
AUTO = "auto"
SMALL = "small"
AUTOMATIC = (AUTO, SMALL)
"""Engines that bring in another one in place of the embedded one."""

if TYPE_CHECKING:
    AsrEngine: TypeAlias = str
    TtsEngine: TypeAlias = str
else:
    AsrEngine = Annotated[Literal[*names("asr"), SMALL, AUTO], or_plugin(partial(is_known, "asr"))]
    TtsEngine = Annotated[Literal[*names("tts"), AUTO], or_plugin(partial(is_known, "tts"))]
    """embedded: Flite if its library is installed; without it, and for languages that it does not
    speak, eSpeak NG if its wheel is. openai: an external server with OpenAI's audio API. auto: the
    best that this machine can run, see `engines.choice`."""
TRANSPORTS = ("udp", "tcp", "tls", "ws", "wss")


class ConfigError(ValueError):
    """Raised for an invalid configuration; the message has a line per error, with its place, its
    key and the remedy."""


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
    """New calls are refused with 503, as of an overloaded process, while one in a hundred packets
    of those in progress leaves later than this, in ms: callers hear gaps then. 0: never for that
    reason."""
    max_call_minutes: float = Field(120, gt=0)
    """Maximum duration of a call in minutes, in case nobody hangs up; then the caller hears an
    announcement and the call ends. Realtime sessions last as long as their call."""
    api_key: Secret = ""
    """If set, callers must send it, or a token from `POST /tokens`, as a bearer token."""
    admin_key: Secret = ""
    """The operator's key for /calls, /sip/trace and /tokens. Without it they accept only direct
    connections from this machine."""
    admin_listen: str = ""
    """Separate address of the operator's routes: unix:PATH or host:port on this machine."""
    names: frozenset[str] = frozenset()
    """Host names of the server besides its addresses and localhost. Without an api_key, requests
    for other names are refused, which prevents DNS rebinding."""
    origins: frozenset[str] = frozenset()
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

    @field_validator("origins")
    @classmethod
    def _are_origins(cls, origins: frozenset[str]) -> frozenset[str]:
        for origin in origins:
            if not re.fullmatch(r"[a-z][a-z0-9+.-]*://[^/?#@*\s]+", origin):
                raise ValueError(f"{origin!r} is not an origin, as https://app.example")
        return origins

    @model_validator(mode="after")
    def _roles_have_keys_of_their_own(self) -> "Server":
        if self.admin_key and self.admin_key == self.api_key:
            raise ValueError("admin_key: callers have this key (api_key)")
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


class Engines(Section):
    hub: str = Field(
        "",
        pattern=r"^(modelscope|(https?|insecure\+http)://[^?#@\s]+)?$",
        examples=["https://hub.example", "modelscope"],
    )
    """Download source of models: the URL of a Hugging Face hub mirror, or "modelscope"; empty: the
    hub itself or HF_ENDPOINT. A mirror without encryption, beyond this machine, is written
    "insecure+http://…", and gets no token. A model name may include a revision: "Qwen/…@main"."""
    offline: bool = False
    """Whether nothing is downloaded: only models that are on this machine are used."""

    @model_validator(mode="before")
    @classmethod
    def _keys_have_moved(cls, table: Any) -> Any:
        names = table if isinstance(table, dict) else ()
        old = [name.partition("_") for name in names if name.startswith(("asr", "tts"))]
        if old:
            moved = (f"{kind}{_}{key} is now [{kind}] {key or 'engine'}" for kind, _, key in old)
            raise ValueError(", ".join(moved))
        return table


WORKER_URL = r"https?://[^/]+/?|unix:.+|https?://[^/?#@\s]+/[^#\s]+"
"""A worker, or a URL with a path that lists workers."""
ALL = "all"
"""The device of a worker for each GPU."""
FIXED_BY_AUTO = ("model", "url", "idle_seconds", "preload")
"""Keys of [asr] and [tts] that auto decides: its workers are local and stay loaded."""


class SpeechEngine(Section):
    """Settings common to [asr] and [tts]."""

    KIND: ClassVar[Kind]
    engine: str
    model: str = ""
    """A hub id or a folder; empty: the engine's default."""
    device: Literal[Device, "all"] = "auto"
    """all: a worker for each GPU of this machine, kept loaded; calls are spread over them by
    load."""
    python: str = ""
    """Python of the environment with the official package, for qwen3-asr-official and
    qwen3-tts-official; empty: the one created by `make qwen-asr-official` or `make
    qwen-tts-official`."""
    url: str | tuple[str, ...] = ""
    """URL of an external worker, http://host:port or unix:PATH, or several: a list, a host with
    several addresses, or an http URL with a path that answers with JSON, {"workers": [{"url":
    "http://10.0.0.5:7870"}]}. Workers have their own engine, model and device settings. With
    openai: URL of an OpenAI-compatible audio server, e.g. http://host:port/v1, with `model` as its
    model."""
    api_key: Secret = ""
    """API key of that worker or server."""
    max_requests: int = Field(MAX_REQUESTS, ge=1)
    """Maximum concurrent requests to an OpenAI-compatible server; further ones wait, and files
    yield to calls."""
    idle_seconds: float = Field(600, ge=0)
    """Time in s without calls after which a local worker stops and frees its memory; 0: never."""
    preload: bool | None = None
    """Whether the server is ready only once the worker has loaded. By default true with `url`; a
    local worker is started by the first call, whose speech is buffered meanwhile."""

    @property
    def torch_device(self) -> Device:
        """Returns the device of one worker."""
        return "cuda" if self.device == "all" else self.device

    @property
    def on_gpu(self) -> bool:
        """Returns whether the engine takes a share of a GPU's memory."""
        return self.engine in names_on_gpu()

    @property
    def automatic(self) -> bool:
        """Returns whether another engine is brought in here, in place of the embedded one."""
        return self.engine in AUTOMATIC and not self.url

    @property
    def urls(self) -> tuple[str, ...]:
        return self.url if isinstance(self.url, tuple) else (self.url,) if self.url else ()

    @field_validator("url")
    @classmethod
    def _is_address(
        cls, given: str | tuple[str, ...], known: ValidationInfo
    ) -> str | tuple[str, ...]:
        urls = given if isinstance(given, tuple) else (given,) if given else ()
        if known.data.get("engine") == OPENAI:
            if isinstance(given, tuple):
                raise ValueError("openai has one server, not a list")
            if given and not re.fullmatch(r"https?://[^/?#@\s]+(/[^?#@\s]*)?", given):
                raise ValueError("not http://host:port/v1")
        elif any(not re.fullmatch(WORKER_URL, url) or url.endswith("/v1") for url in urls):
            raise ValueError("not http://host:port or unix:PATH, nor a URL that lists workers")
        return given[0] if isinstance(given, tuple) and len(given) == 1 else given or ""

    @model_validator(mode="after")
    def _fits_the_engine(self) -> Self:
        if faults := list(self._faults()):
            raise ValueError("\n".join(faults))
        return self

    def _faults(self) -> Iterator[str]:
        given = {n for n, f in type(self).model_fields.items() if getattr(self, n) != f.default}
        if self.engine == OPENAI and not self.url:
            yield "url is required, e.g. http://host:port/v1"
        if self.engine == AUTO:
            for key in FIXED_BY_AUTO:
                if key in given:
                    yield f"{key} is for an engine that is named, not for auto"
        if self.engine == SMALL and "model" in given and not self.url:
            yield "model is for an engine that is named, not for small"
        if self.engine == SMALL and self.device == "cuda" and not self.url:
            yield "device is for engines that can use a GPU, not for small"
        if self.device == ALL and not self.on_gpu:
            yield f"device all is for {', '.join(names_on_gpu())}, not for {self.engine}"
        for key in sorted(given):
            engines = with_setting(self.KIND, key)
            if key in stand_in(self.KIND).settings:
                engines += AUTOMATIC
            if engines and self.engine not in engines and not self.url:
                yield f"{key} is for {' and '.join(engines)}, not for {self.engine}"


class Asr(SpeechEngine):
    KIND = "asr"
    engine: AsrEngine = "small"
    """small: PocketSphinx, until the model of sherpa for the language (71 MB) has come; new calls
    then use that. auto: the best that this machine can run, likewise. Or one of another package:
    its name, or module:Class (docs/your-engine.md)."""
    processes: int = Field(1, ge=1)
    """Number of PocketSphinx processes."""
    final_model: str = ""
    """A larger model for final texts; empty: `model`."""
    aligner: str = ""
    """Forced aligner for word timestamps, available to API clients; empty: none."""
    precision: Precision = AsrModels.precision
    max_batch_latency_ms: float = Field(AsrModels.max_batch_latency_ms, ge=0, le=1000)
    """Time in ms that Nemotron's batches may wait for more streams."""
    update_ms: int = Field(UPDATE_MS, ge=UPDATE_MS_MIN, le=UPDATE_MS_MAX)
    """Audio between two partial transcripts, in ms; smaller values reduce the number of calls that
    an engine can handle."""
    partials: bool = True
    """Whether an OpenAI-compatible server without streams is asked for words while the caller
    speaks, with a request every `update_ms`. Without, only how long callers speak tells whether
    they interrupt the agent."""
    whole_turns: bool = True
    """Whether an OpenAI-compatible server without streams is sent the whole turn again when the
    caller goes on after a pause; else it recognizes the parts one by one."""
    context: str = ""
    """Names and words to expect."""
    language: str = ""
    """BCP 47 tag, e.g. "en" or "pt-BR"; empty: detected."""
    noise_suppression: SuppressionMode = EnhancementSettings.noise_suppression
    """On calls with steady noise, before the voice activity detection and PocketSphinx; "on": on
    all calls and for every recognizer."""
    automatic_gain: bool = EnhancementSettings.automatic_gain
    """Amplify callers who are quieter than -36 dBFS, by up to 30 dB."""

    def models(self, hub: str) -> AsrModels:
        return AsrModels(
            self.model,
            self.torch_device,
            self.final_model,
            self.aligner,
            self.precision,
            self.max_batch_latency_ms,
            hub,
        )

    @model_validator(mode="after")
    def _has_options(self) -> Self:
        self.options()
        return self

    def options(self) -> StreamOptions:
        return StreamOptions(self.update_ms, self.context, self.language or None)

    def enhancement(self) -> EnhancementSettings:
        return EnhancementSettings(self.noise_suppression, self.automatic_gain)


class Tts(SpeechEngine, Pronouncing):
    KIND = "tts"
    engine: TtsEngine = "embedded"
    """Or one of another package: its name, or module:Class (docs/your-engine.md)."""
    voices: str = ""
    """Folder of cloned and described voices; empty: the default folder."""
    audio_cache: str = ""
    """URL of a Redis with the short replies of all workers, redis://host:port/db or unix:///path;
    empty: a cache in each worker; "off": no cache."""
    audio_cache_mb: int = Field(TtsModels.audio_cache_mb, ge=1, le=65_536)
    """Size of a process' own cache of short replies, in MB, of which 64 are 23 minutes of
    speech."""
    voice: str = ""
    """Name of the voice; empty: the engine's default."""
    language: str = ""
    """ISO 639 code, e.g. "en"; empty: detected from the text."""
    instructions: str = ""
    """How to speak, in words, for engines that support it."""
    speed: float = Field(1.0, ge=MIN_SPEED, le=MAX_SPEED)
    precision: Literal["auto", "fp32", "int8"] = "auto"
    """Number format of Pocket TTS; auto: int8."""
    normalise: bool = False
    """Whether an OpenAI-compatible server is sent numbers, dates and signs as words, as
    `language` reads them (empty: as in English), and no markup. The other engines always read
    so."""

    @field_validator("audio_cache")
    @classmethod
    def _is_redis(cls, url: str) -> str:
        if url not in ("", NO_CACHE) and not re.match("(rediss?|unix)://.", url):
            raise ValueError('not redis://host:port/db, unix:///path or "off"')
        return url

    def models(self, hub: str) -> TtsModels:
        return TtsModels(
            *(self.model, self.torch_device, self.voices, self.audio_cache, self.audio_cache_mb),
            *(hub, self.precision),
        )

    @model_validator(mode="after")
    def _has_options(self) -> Self:
        self.options()
        return self

    def options(self) -> VoiceOptions:
        return VoiceOptions(self.voice, self.language, self.instructions, self.speed)


class Realtime(Section):
    """Realtime sessions of programs and pages."""

    frozen: frozenset[str] = frozenset()
    """Fields of the session object that holders of a client secret cannot change, dotted, and all
    below them: ["instructions", "tools", "audio.output"]."""
    mcp_servers: frozenset[str] = frozenset()
    """Origins of the MCP servers that this server connects to when a session's tools ask for it,
    e.g. https://mcp.example. Empty by default, because the addresses come from clients. Needs the
    extra `mcp`."""

    @field_validator("mcp_servers")
    @classmethod
    def _are_origins(cls, servers: frozenset[str]) -> frozenset[str]:
        for origin in servers:
            if not re.fullmatch(r"https?://[^/?#@*\s]+", origin):
                raise ValueError(f"{origin!r} is not an origin, as https://mcp.example")
        return servers

    @field_validator("frozen")
    @classmethod
    def _are_fields(cls, frozen: frozenset[str]) -> frozenset[str]:
        for name in frozen:
            if not re.fullmatch(r"[a-z_]+(\.[a-z_]+)*", name):
                raise ValueError(f"{name!r} is not a field, as instructions or audio.output.voice")
        return frozen


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


class Recording(Section):
    enabled: bool = False
    """Whether every call is recorded in stereo (caller left, agent right) with a timeline."""
    directory: Path = Path("recordings")
    """Folder of the recordings."""
    keys: bool = False
    """Whether the timeline says which keys a caller pressed: card numbers and PINs too. The log
    never does."""


def _turn_model(choice: str) -> str:
    if not is_turn_model(choice):
        names = f'"{SMART_TURN}", "{WORDS}"'
        files = "a file that ends in .onnx, or package.module:Name"
        raise ValueError(f'must be {names}, {files}, not "{choice}"')
    return choice


@dataclass(frozen=True)
class TurnTaking(TurnSettings):
    model: Annotated[str, AfterValidator(_turn_model)] = SMART_TURN
    """What hears whether a silent caller has finished: "smart-turn", asked of a worker with a GPU
    that has it, and else here; "words": nothing, silence and the words decide alone; an ONNX file;
    or package.module:Name, an object of an installed Python package (docs/embedded.md)."""


class Tracing(Section):
    otlp_endpoint: str = ""
    """OTLP endpoint for OpenTelemetry traces; empty: tracing is off."""


class Config(Section):
    server: Server = Server()
    webrtc: WebRtc = WebRtc()
    opus: Opus = Opus()
    engines: Engines = Engines()
    asr: Asr = Asr()
    tts: Tts = Tts()
    agent: Agent = Agent()
    agents: dict[str, Agent] = Field({})
    """Further agents by name, selected by a route or a program."""
    mcp: dict[str, McpServer] = Field({})
    """Servers of tools by the Model Context Protocol, named by the tools of agents. They need the
    extra `mcp`."""
    hours: dict[str, Hours] = Field({})
    """When agents answer, and who does at other times."""
    prices: dict[str, Prices] = Field({})
    """What the models of agents cost, by their names: with them records and metrics say what calls
    cost."""
    knowledge: Knowledge = Knowledge()
    """How the documents of agents (`knowledge`) are searched."""
    sip: SipSettings | None = None
    """Phones over SIP; without this table there are none."""
    carriers: tuple[Annotated[CarrierSettings, AfterValidator(checked)], ...] = ()
    """Carriers that deliver calls as media streams."""
    speech: Speech = Speech()
    realtime: Realtime = Realtime()
    recording: Recording = Recording()
    log: Log = Log()
    tracing: Tracing = Tracing()
    turn: TurnTaking = TurnTaking()
    """The end-of-turn model, and times of turn-taking in milliseconds."""
    frontdesk: Business = DEMO
    """The business that the front desk represents."""
    _places: Mapping[KeyPath, str] = PrivateAttr(default_factory=dict)

    @property
    def places(self) -> Mapping[KeyPath, str]:
        """Returns where keys come from, such as "offhook.toml:3" or "OFFHOOK_SERVER_PORT", of a
        configuration that was loaded."""
        return self._places

    @field_validator("sip", mode="before")
    @classmethod
    def _transports_can_be_off(cls, table: Any) -> Any:
        """Converts `udp = false` to None, which TOML lacks."""
        if not isinstance(table, dict):
            return table
        given = {name: table[name] for name in TRANSPORTS if name in table}
        for name, value in given.items():
            if value is True:
                raise ValueError(f"{name} must be a port, or false for none")
        off = [name for name, value in given.items() if value is False or value == "false"]
        return {**table, **dict.fromkeys(off)}

    @field_validator("sip")
    @classmethod
    def _addresses_are_numeric(cls, sip: SipSettings | None) -> SipSettings | None:
        if sip is not None:
            for name in ("host", "public_address"):
                address = getattr(sip, name)
                if read_address(address) is None and (address or name == "host"):
                    raise ValueError(f"{name} is not a numeric address: {address!r}")
        return sip

    @model_validator(mode="after")
    def _sections_fit(self) -> "Config":
        rules = (
            *(self._faults_of_phones, partial(self.faults_between_agents, kinds.OURS.get)),
            *(self._faults_of_programs, self._faults_of_carriers, self._faults_of_tools),
            lambda: faults_of_hours(self.hours, {DEFAULT, *self.agents}),
        )
        if faults := [fault for rule in rules for fault in rule()]:
            raise ValueError("\n".join(faults))
        return self

    def named_agents(self) -> dict[str, Agent]:
        """Returns all agents by the names of their tables."""
        return {"agent": self.agent} | {f"agents.{n}": one for n, one in self.agents.items()}

    def agent_called(self, name: str) -> Agent | None:
        """Returns the named agent, "agent" being [agent]; None if there is none."""
        return self.agents.get(name, self.agent if name == DEFAULT else None)

    def _faults_of_phones(self) -> Iterator[str]:
        for index, route in enumerate(self.sip.routes if self.sip is not None else ()):
            if route.agent and route.agent not in self.agents:
                yield f"sip.routes.{index}.agent: no agent is called {route.agent!r}"
        if self.sip is not None and self.sip.recovery_seconds and not self.server.redis:
            yield "sip.recovery_seconds needs redis of [server]"

    def faults_between_agents(
        self, kind_of: Callable[[str], AgentKind | None] = kinds.kind_of
    ) -> Iterator[str]:
        """Yields what is wrong with fallbacks and hand-overs; a kind that is None may be any."""
        for where, agent in self.named_agents().items():
            kind = kind_of(agent.kind)
            if agent.fallback:
                other = self.agents.get(agent.fallback)
                of_other = None if other is None else kind_of(other.kind)
                if other is None:
                    yield f"{where}.fallback: no agent is called {agent.fallback!r}"
                elif other is agent or (kind and of_other and not of_other.stands_in_for(kind)):
                    yield f"{where}.fallback: {agent.fallback!r} cannot answer in its place"
            for name in agent.handoffs:
                other = self.agent_called(name)
                of_other = None if other is None else kind_of(other.kind)
                if other is None:
                    yield f"{where}.handoffs: no agent is called {name!r}"
                elif other is agent:
                    yield f"{where}.handoffs: {name!r} is the agent itself"
                elif of_other is not None and not of_other.converses:
                    yield f"{where}.handoffs: {name!r} cannot take a call over"

    def _faults_of_tools(self) -> Iterator[str]:
        for where, agent in self.named_agents().items():
            for index, tool in enumerate(agent.tools):
                if isinstance(tool, McpTools) and tool.mcp not in self.mcp:
                    there = ", ".join(self.mcp) or "none"
                    words = f"no MCP server is called {tool.mcp!r} (there: {there})"
                    yield f"{where}.tools.{index}.mcp: {words}"

    def _faults_of_programs(self) -> Iterator[str]:
        rings = self.sip.ring_seconds if self.sip is not None else 60
        for where, agent in self.named_agents().items():
            kind = kinds.OURS.get(agent.kind)
            if kind is not None and not kind.answers and agent.accept_seconds > rings:
                words = f"{where}.accept_seconds is longer than phones ring"
                yield f"{words} ([sip] ring_seconds, {rings:g})"

    def _faults_of_carriers(self) -> Iterator[str]:
        names = [carrier.name for carrier in self.carriers]
        if twice := {name for name in names if names.count(name) > 1}:
            yield f"carriers: two are called {', '.join(sorted(twice))}"
        for index, carrier in enumerate(self.carriers):
            if carrier.agent and carrier.agent not in self.agents:
                yield f"carriers.{index}.agent: no agent is called {carrier.agent!r}"
            if carrier.insecure and not self.server.local:
                yield f"carriers.{index}: {carrier.name} is insecure: for a local server only"

    def access(self, *, local: bool | None = None, gateway: bool = False) -> AccessPolicy:
        """Returns the access policy. `local` is whether only this machine can connect, if [server]
        host does not determine it; `gateway` means a server without calls."""
        server = self.server
        for_speech: frozenset[Scope] = frozenset(("speech",))
        keys = [Key(key.name, key.key, for_speech) for key in self.speech.keys]
        if server.api_key:
            keys.append(Key("server", server.api_key))
        public = {urlsplit(c.public_url).netloc for c in self.carriers if c.public_url}
        with_key = Role.SPEECH if gateway else Role.OPERATOR
        return AccessPolicy(
            local=server.local if local is None else local,
            names=server.names,
            origins=server.origins,
            keys=tuple(keys),
            admin_key=server.admin_key,
            admin_listen=server.admin_listen,
            metrics=Role.PUBLIC if server.metrics == "open" else with_key,
            proxies=tuple(map(ipaddress.ip_network, server.proxies)),
            carrier_hosts=frozenset(public),
        )


def _keys(kind: Any) -> tuple[str, ...]:
    """Returns the keys of a section that has fixed ones."""
    for part in (kind, *get_args(kind)):
        if isinstance(part, type) and issubclass(part, BaseModel):
            return tuple(part.model_fields)
        if isinstance(part, type) and is_dataclass(part):
            return tuple(field.name for field in fields(part))
    return ()


def _text_of(file: Path) -> str:
    """Returns the text of a file in UTF-8, with or without a byte order mark. Raises
    ConfigError."""
    try:
        content = file.read_bytes()
    except OSError as error:
        raise ConfigError(f"{file}: {error.strerror}") from error
    if content.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise ConfigError(f"{file}: is UTF-16: save it as UTF-8")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise ConfigError(f"{file}:{line}: is not UTF-8: save it as UTF-8") from error


def file_of(path: Path | None) -> Path | None:
    """Returns the file that `load` reads: `path`, otherwise offhook.toml if it exists."""
    return path or (DEFAULT_FILE if DEFAULT_FILE.exists() else None)


def load(path: Path | None, environment: Mapping[str, str] = os.environ) -> Config:
    """Loads the file (see `file_of`) and the environment. Raises ConfigError with all errors."""
    file = file_of(path)
    read = read_toml(_text_of(file)) if file is not None else TomlText()
    places: dict[KeyPath, str] = {at: f"{file}:{line}" for at, line in read.lines.items()}
    faults = [f"{file}:{line}: {words}" for line, words in read.faults]
    sections = {name: _keys(field.annotation) for name, field in Config.model_fields.items()}
    values, of_variables = overrides(environment, sections)
    for (section, key), (name, value) in values.items():
        if not isinstance(read.table.setdefault(section, {}), dict):
            of_variables.append(f"{name}: [{section}] is not a table to which a key can be added")
            continue
        read.table[section][key] = value
        below = [at for at in places if at[:2] == (section, key)]
        for at in below:
            del places[at]
        places[section, key] = name
    faults += of_variables
    faults += booleans_for_numbers(read.table, Config, places)
    try:
        config = Config.model_validate(read.table)
        config._places = places
    except ValidationError as error:
        faults += faults_of(error, Config, places)
    if faults:
        raise ConfigError("\n".join(sorted(faults, key=_line_of)))
    return config


def _line_of(fault: str) -> int:
    """Returns the line of the file that a fault begins with; faults without one come last."""
    found = re.match(r"[^ ]*?:(\d+): ", fault)
    return int(found[1]) if found else sys.maxsize
