"""What `engine = "auto"` and "small" mean: the first engine whose needs this machine meets.

Without one, the stand-ins go on.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from offhook.pipeline.engines.shared.model.instructions import Instructions
from offhook.pipeline.speech.engine_spec import ANY, EngineSpec, Kind, Need, PublishedModel
from offhook.pipeline.speech.engines import of_name, specs, stand_in
from offhook.web.config.config import Config
from offhook.web.config.engines import SMALL

GIB = 1 << 30


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
    """Packages of engines that are installed."""
    offline: bool = False
    """Whether nothing may be downloaded ([engines] offline or HF_HUB_OFFLINE)."""
    cached: frozenset[str] = frozenset()
    """Models that need no download."""


@dataclass(frozen=True)
class Choice:
    """An engine for a kind of work; `why` is one sentence for the operator."""

    engine: str
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


def rows_of(kind: Kind, engine: str = "auto") -> Iterator[tuple[EngineSpec, Need]]:
    """Yields what "small" or, with any other engine, "auto" means, the best first. Costs:
    docs/which-engine.md."""
    for spec in specs(kind):
        for need in spec.needs:
            if need.small or engine != SMALL:
                yield spec, need


def model_for(spec: EngineSpec, need: Need, language: str) -> str:
    """Returns the model of a row for a language, "" if there is none."""
    models: Mapping[str, str] = need.models or {ANY: spec.model}
    return models.get(language or "en", models.get(ANY, ""))


def lacks(spec: EngineSpec, need: Need, machine: Machine, language: str) -> str:
    """Returns what the machine lacks for an engine, in words; empty if nothing."""
    name = spec.name
    missing = [package for package in spec.packages if package not in machine.packages]
    cores = need.cores_with_vnni if machine.instructions is Instructions.VNNI else need.cores
    model = model_for(spec, need, language)
    if machine.gpu_bytes < need.gpu_gib * GIB:
        return f"{name} needs a GPU with {need.gpu_gib:g} GB"
    if missing:
        return f"{name} needs {', '.join(missing)}, not installed here (`make cpu`)"
    if not model:
        return f"{name} has no model for the language {language!r}"
    if machine.memory_bytes < need.memory_gib * GIB:
        return f"{name} needs {need.memory_gib:g} GB of memory"
    if machine.cores < cores:
        return f"{name} needs {cores} cores like these"
    if machine.offline and model not in machine.cached:
        return f"{model} is not on this machine, and nothing may be downloaded"
    return ""


def choose(kind: Kind, machine: Machine, language: str = "", engine: str = "auto") -> Choice:
    """Returns what "auto" or "small" means on this machine and for a language, an ISO 639 code
    ("" for English)."""
    lacking = ""
    for spec, need in rows_of(kind, engine):
        if not (lacking := lacks(spec, need, machine, language)):
            model = model_for(spec, need, language)
            return Choice(spec.name, model, _why(need, machine))
    return Choice(stand_in(kind).name, "", lacking)


def choice_for(config: Config, kind: Kind, machine: Machine, engine: str = "") -> Choice:
    """Returns the choice for [asr] or [tts] of a configuration, or what "auto" or "small" would
    mean there."""
    section = config.asr if kind == "asr" else config.tts
    if section.device == "cpu":
        machine = replace(machine, gpu_bytes=0)
    code = section.language.partition("-")[0].lower()
    return choose(kind, machine, code, engine or section.engine)


def _why(need: Need, machine: Machine) -> str:
    if need.gpu_gib:
        return f"this machine has a GPU with {machine.gpu_bytes / GIB:.0f} GB"
    cores = f"{machine.cores} core{'s' * (machine.cores > 1)} ({machine.instructions.value})"
    memory = f"{machine.memory_bytes / GIB:.0f} GB of memory ({need.memory_gib:g} are enough)"
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
