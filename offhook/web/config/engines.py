"""`[engines]`, `[asr]`, `[tts]` and `[turn]`: what hears, speaks and ends turns."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self, TypeAlias

from pydantic import (
    AfterValidator,
    Field,
    ValidationInfo,
    field_validator,
    model_validator,
)

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
from offhook.web.config.pronunciation import Pronouncing
from offhook.web.config.section import Secret, Section, or_plugin

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


WORKER_URL = r"https?://[^/]+/?|unix:.+|https?://[^/?#@\s]+/[^#\s]+"
"""A worker, or a URL with a path that lists workers."""


ALL = "all"
"""The device of a worker for each GPU."""


FIXED_BY_AUTO = ("model", "url", "idle_seconds", "preload")
"""Keys of [asr] and [tts] that auto decides: its workers are local and stay loaded."""


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

    def options(self) -> StreamOptions | VoiceOptions:
        """Returns how its streams are opened. Raises ValueError."""
        raise NotImplementedError

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
        self.options()
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

    def options(self) -> VoiceOptions:
        return VoiceOptions(self.voice, self.language, self.instructions, self.speed)


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
