"""What `engine = "auto"` and "small" mean: a table of engines, and of what a machine must have for
each.

The first row that fits is chosen; without one, the embedded engines go on.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from offhook.pipeline.models.hub.catalogue import QWEN3_TTS_LANGUAGES, PublishedModel, of_name
from offhook.pipeline.models.instructions import Instructions
from offhook.web.config.config import SMALL, AsrEngine, Config, TtsEngine
from offhook.web.engines.engines_io import MODELS, NEEDED

Kind = Literal["asr", "tts"]
KINDS: tuple[Kind, ...] = ("asr", "tts")
GIB = 1 << 30
ANY = "*"
"""Any language that is not named."""


@dataclass(frozen=True)
class Machine:
    """What the choice depends on; see `machine_io.look`."""

    cores: int
    """Cores that this process may use."""
    memory_bytes: int
    """Memory that this process may use."""
    instructions: Instructions = Instructions.OTHER
    gpu_bytes: int = 0
    """Memory of the largest GPU that torch can use; 0 without one."""
    packages: frozenset[str] = frozenset()
    """The packages of NEEDED that are installed."""
    offline: bool = False
    """Whether nothing may be downloaded ([engines] offline or HF_HUB_OFFLINE)."""
    cached: frozenset[str] = frozenset()
    """Models that need no download."""


@dataclass(frozen=True)
class Choice:
    """An engine for a kind of work; `why` is one sentence for the operator."""

    engine: AsrEngine | TtsEngine
    model: str
    """Empty for an embedded engine."""
    why: str

    @property
    def embedded(self) -> bool:
        return not self.model

    @property
    def published(self) -> PublishedModel | None:
        """Returns what is known of the model: its size, its licence."""
        return of_name(self.model)


@dataclass(frozen=True)
class Row:
    """An engine and what it needs."""

    engine: str
    models: Mapping[str, str] = field(default_factory=dict)
    """Models by ISO 639 code of the language; empty: the engine's usual model, for ANY."""
    gpu_gib: float = 0
    memory_gib: float = 0
    cores: int = 1
    cores_with_vnni: int = 1
    """Cores that are enough with VNNI, which makes products of 8-bit numbers 2 to 3 times as
    fast."""
    small: bool = False
    """Whether "small" means it too."""

    def model_for(self, language: str) -> str:
        """Returns the model for a language, "" if there is none."""
        models = self.models or {ANY: MODELS.get(self.engine, "")}  # type: ignore[call-overload]
        return str(models.get(language or "en", models.get(ANY, "")))

    def lacks(self, machine: Machine, language: str) -> str:
        """Returns what the machine lacks for this engine, in words; empty if nothing."""
        needed = NEEDED.get(self.engine, ("", (self.engine,)))[1]
        missing = [package for package in needed if package not in machine.packages]
        cores = self.cores_with_vnni if machine.instructions is Instructions.VNNI else self.cores
        model = self.model_for(language)
        if machine.gpu_bytes < self.gpu_gib * GIB:
            return f"{self.engine} needs a GPU with {self.gpu_gib:g} GB"
        if missing:
            return f"{self.engine} needs {', '.join(missing)}, not installed here (`make cpu`)"
        if not model:
            return f"{self.engine} has no model for the language {language!r}"
        if machine.memory_bytes < self.memory_gib * GIB:
            return f"{self.engine} needs {self.memory_gib:g} GB of memory"
        if machine.cores < cores:
            return f"{self.engine} needs {cores} cores like these"
        if machine.offline and model not in machine.cached:
            return f"{model} is not on this machine, and nothing may be downloaded"
        return ""


NEMOTRON = {
    "en": "nvidia/nemotron-speech-streaming-en-0.6b",
    ANY: "nvidia/nemotron-3.5-asr-streaming-0.6b",
}
SHERPA = {
    language: f"csukuangfj/sherpa-onnx-streaming-zipformer-{language}-kroko-2025-08-06"
    for language in ("en", "de", "es", "fr")
}
QWEN3_TTS = dict.fromkeys(QWEN3_TTS_LANGUAGES, MODELS["qwen3-tts"])
POCKET = {
    "en": "english",
    "fr": "french",
    "de": "german",
    "es": "spanish",
    "it": "italian",
    "pt": "portuguese",
    "nl": "dutch",
}
POCKET_SMALL = {"en": "english_18m_refl_2026-10"}
ROWS: Mapping[Kind, Sequence[Row]] = {
    "asr": (
        Row("qwen3-asr", gpu_gib=8),
        Row("nemotron", NEMOTRON, memory_gib=3, cores=4, cores_with_vnni=2),
        Row("sherpa", SHERPA, memory_gib=0.5, small=True),
    ),
    "tts": (
        Row("qwen3-tts", QWEN3_TTS, gpu_gib=8),
        Row("pocket", POCKET, memory_gib=2, cores=4, cores_with_vnni=2),
        Row("pocket", POCKET_SMALL, memory_gib=1),
    ),
}
"""Best first. Costs: docs/which-engine.md."""
EMBEDDED_OF: Mapping[Kind, AsrEngine | TtsEngine] = {"asr": "pocketsphinx", "tts": "embedded"}


def rows_of(kind: Kind, engine: str) -> Sequence[Row]:
    """Returns the rows that "small" or, with any other engine, "auto" means."""
    return [row for row in ROWS[kind] if row.small or engine != SMALL]


def choose(kind: Kind, machine: Machine, language: str = "", engine: str = "auto") -> Choice:
    """Returns what "auto" or "small" means on this machine and for a language, an ISO 639 code
    ("" for English)."""
    lacks = ""
    for row in rows_of(kind, engine):
        if not (lacks := row.lacks(machine, language)):
            model = row.model_for(language)
            return Choice(row.engine, model, _why(row, machine))  # type: ignore[arg-type]
    return Choice(EMBEDDED_OF[kind], "", lacks)


def choice_for(config: Config, kind: Kind, machine: Machine, engine: str = "") -> Choice:
    """Returns the choice for [asr] or [tts] of a configuration, or what "auto" or "small" would
    mean there."""
    section = config.asr if kind == "asr" else config.tts
    if section.device == "cpu":
        machine = replace(machine, gpu_bytes=0)
    code = section.language.partition("-")[0].lower()
    return choose(kind, machine, code, engine or section.engine)


def _why(row: Row, machine: Machine) -> str:
    if row.gpu_gib:
        return f"this machine has a GPU with {machine.gpu_bytes / GIB:.0f} GB"
    cores = f"{machine.cores} core{'s' * (machine.cores > 1)} ({machine.instructions.value})"
    memory = f"{machine.memory_bytes / GIB:.0f} GB of memory ({row.memory_gib:g} are enough)"
    gpu = "no GPU" if not machine.gpu_bytes else "no large GPU"
    return f"this machine has {cores}, {memory} and {gpu}"


@dataclass
class AutoWorker:
    """A worker for an engine that was chosen, started by the first connection to it."""

    kind: Kind
    choice: Choice
    url: str
    wanted: bool
    """Whether the configuration or the operator wants it; otherwise it is only on offer."""
    meanwhile: str = ""
    """What is wrong with the embedded engine as long as it has to do, for the operator."""
