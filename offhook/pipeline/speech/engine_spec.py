"""What is known of an engine outside its own folder: an `EngineSpec` stands beside each.

Importing a spec loads no engine: what takes more than a table is the import path of a function,
"module:name", as of an entry point.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal, NamedTuple

from offhook.pipeline.speech.errors import EngineError
from offhook.pipeline.speech.recognizer import Progress

Kind = Literal["asr", "tts"]
KINDS: tuple[Kind, ...] = ("asr", "tts")
ANY = "*"
"""Any language that is not named."""
SITE = "https://huggingface.co"
FILES = ("*.json", "*.safetensors", "merges.txt")
"""Files needed from a repository and its subfolders, unless the model names others."""
TORCH_PACKAGES = ("torch", "safetensors", "tokenizers", "huggingface_hub")
"""Packages of the engines with a model in torch (the extra `qwen`)."""
TEXT_PACKAGES = ("babel", "budoux", "num2words", "py3langid")
"""Packages that read a text in a language, for engines that speak."""


@dataclass(frozen=True)
class PublishedModel:
    """A model on a hub. Sizes are those of the weights as published; tokenizers and settings are a
    few MB more."""

    name: str
    """What `model` in the configuration is: a hub id, or what the engine calls it."""
    engine: str
    does: Literal["asr", "tts", "word times"]
    languages: tuple[str, ...]
    """ISO 639 codes; empty: the model says so once it has loaded."""
    licence: str
    """Of the weights."""
    revision: str
    """The commit that was tested."""
    bytes: int | None
    """To download and on the disk; None: not known without asking the hub."""
    repository: str
    files: tuple[str, ...] = FILES
    described: str = ""
    """What is known of its languages where they are not listed."""

    @property
    def languages_in_words(self) -> str:
        """Returns the only language, or the number of languages."""
        if len(self.languages) == 1:
            return self.languages[0]
        return self.described or f"{len(self.languages)} languages"

    @property
    def page(self) -> str:
        return f"{SITE}/{self.repository}"


@dataclass(frozen=True)
class Abilities:
    """What an engine can do with a model."""

    languages: tuple[str, ...] = ()
    """ISO 639 codes; empty: known once it has loaded."""
    voices: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """The languages of each voice; empty: known once it has loaded."""
    licences: Mapping[str, str] = field(default_factory=dict)
    """The licences of voices' recordings, where they are not the model's."""

    @classmethod
    def of_voices(
        cls, voices: Mapping[str, tuple[str, ...]], licences: Mapping[str, str] | None = None
    ) -> "Abilities":
        """Returns the abilities of an engine whose voices speak these languages."""
        codes = dict.fromkeys(code for spoken in voices.values() for code in spoken)
        return cls(tuple(codes), voices, licences or {})


@dataclass(frozen=True)
class Need:
    """What a machine must have for `auto` to choose an engine, with some of its models."""

    models: Mapping[str, str] = field(default_factory=dict)
    """Models by ISO 639 code of the language; empty: the engine's usual model, for ANY."""
    gpu_gib: float = 0
    memory_gib: float = 0
    cores: int = 1
    cores_with_vnni: int = 1
    """Cores that are enough with VNNI, which makes products of 8-bit numbers 2 to 3 times as
    fast."""
    small: bool = False
    """Whether `small` means it too."""


@dataclass(frozen=True)
class Cost:
    """What an engine follows in real time: the people who speak, or the voices that do."""

    unit: Literal["GPU", "core", "worker"]
    streams: float
    """Streams per unit, all of them in use all the time."""
    source: str
    model: str = ""
    """Part of the model's name; of a spec's costs the first that fits counts."""
    memory_mb: int = 0
    """Memory of a process."""
    process_streams: int = 0
    """Maximum streams of one process; 0: no limit below that of the unit."""
    vnni: bool = False
    """Whether it is for CPUs with VNNI only."""


MEASURED_ON = "H200"
"""The GPU that engines were measured on."""
ON_GPU = f"measured on an NVIDIA {MEASURED_ON}"
IN_CALLS = "measured in calls on a CPU with VNNI"
ALONE_ON_CPU = "measured alone on a CPU with VNNI"
WITHOUT_VNNI = "estimated for a CPU without VNNI"
GPU_WORKER_MB = 4000
"""Memory of a worker on a GPU."""
SOCKETS = 500
"""Streams whose messages, one in 80 ms, one worker process was measured to carry."""


class Check(NamedTuple):
    """Something that the doctor finds out about an engine, without loading a model."""

    about: str
    """What of it, behind "hearing" or "speaking", e.g. ", voices"; empty: the engine itself."""
    ask: Callable[[], str]
    """Returns what is found. Raises EngineError."""
    without: str | None = None
    """What happens if it fails; None: it may not."""


class Setting(NamedTuple):
    """A setting of a GPU or of torch."""

    name: str
    doing: str
    """What the engine does."""
    effect: str
    """The measured effect."""


@dataclass(frozen=True)
class OnGpu:
    """An engine that takes a share of a GPU's memory."""

    size: str
    """Import path of a function of a model that returns its `reckoned.ModelSize`. Raises
    EngineError if that is not known. May import torch."""
    unit: str
    """What fits beside a model: "streams" or "voices at once"."""
    slow: str
    """What a CPU means for it, for the operator."""
    settings: tuple[Setting, ...] = ()
    """Settings of the GPU that were measured."""
    measured_by: str = ""
    """The command that measured them."""


@dataclass(frozen=True)
class Attribution:
    """Who made the models of an engine."""

    name: str
    url: str


Trait = Literal["appends", "wants noise suppressed", "ends with a wrong model", "takes IPA"]
"""appends: final texts begin with the stable text of their partials, which others may revise.
wants noise suppressed: it makes fewer errors on suppressed audio, while neural ones are trained on
noisy speech and get the line's own. ends with a wrong model: its library ends the process then, and
to start it again is no use. takes IPA: its voices speak phonemes in IPA."""


@dataclass(frozen=True)
class EngineSpec:
    """An engine: what configuration, command line, doctor, `auto`, page and workers know of it."""

    name: str
    """As the configuration has it."""
    kind: Kind
    title: str
    """As people are told."""
    opens: str = ""
    """Import path of its class, or of a function, called with its models (`AsrModels` or
    `TtsModels`) and a `Progress`; it returns a `Recognizer` or `Synthesizer`, not yet started.
    Empty: it is a server elsewhere, or several engines."""
    packages: tuple[str, ...] = ()
    """Modules that it needs."""
    make: str = ""
    """The target of `make` that installs them."""
    own_environment: str = ""
    """The module of a package that needs an environment of its own, named after it."""
    embedded: bool = False
    """Whether it is small enough for the process that handles calls."""
    settings: frozenset[str] = frozenset()
    """Keys of [asr] or [tts] that it has and some others have not."""
    model: str = ""
    """Its usual model."""
    models: tuple[PublishedModel, ...] = ()
    files: tuple[str, ...] = FILES
    """Files of its models that are not published."""
    only_models: tuple[str, ...] | None = None
    """All its models, if it brings them along."""
    repository: str = ""
    """The repository of all its models, if they are known by other names."""
    languages: tuple[str, ...] = ()
    """ISO 639 codes of a model that is not published; empty: known once it has loaded."""
    abilities_of: str = ""
    """Import path of a function of a model that returns its `Abilities`; empty: `languages`, or
    those of the published model."""
    needs: tuple[Need, ...] = ()
    """What it takes for `auto`, the best first."""
    costs: tuple[Cost, ...] = ()
    on_gpu: OnGpu | None = None
    attribution: Attribution | None = None
    checks: str = ""
    """Import path of a function of a model and a language that yields `Check`s."""
    means: str = ""
    """Import path of a function of a language, an ISO 639 code or empty, that returns the name of
    the engine that this one means here. Raises EngineError if there is none."""
    weak_on_phones: str = ""
    """Why another one should hear callers on phones."""
    cloning_model: str = ""
    """A model with which it clones voices; empty: it clones none."""
    traits: frozenset[Trait] = frozenset()

    def published(self, model: str) -> PublishedModel | None:
        """Returns what is known of a model of its own; a revision behind @ is left aside."""
        name = model.partition("@")[0]
        return next((known for known in self.models if known.name == name), None)

    def abilities(self, model: str = "") -> Abilities:
        """Returns what is known of it with a model, "" for its usual one. Raises EngineError for a
        model that it does not have."""
        model = model or self.model
        self.check_model(model)
        if self.abilities_of:
            found: Abilities = imported(self.abilities_of)(model)
            return found
        published = self.published(model)
        return Abilities(published.languages if published else self.languages)

    def checked(self, model: str, language: str) -> Iterable[Check]:
        """Returns what the doctor may find out about it."""
        found: Iterable[Check] = imported(self.checks)(model, language) if self.checks else ()
        return found

    def check_model(self, model: str) -> None:
        """Raises EngineError for a model that it does not bring along; "" is its usual one."""
        known = self.only_models
        if model and known is not None and model not in known:
            only = f"the model {', '.join(known)} only" if known else "voices and no models"
            raise EngineError(f"{self.name} has {only}, not {model}")

    def check_packages(self) -> None:
        """Raises EngineError if packages that it needs are not installed here, without importing
        one."""
        missing = [package for package in self.packages if find_spec(package) is None]
        if not missing:
            return
        how = f"`make {self.make}`, or " if self.make else ""
        raise EngineError(
            f"{self.title} needs {', '.join(missing)}, not installed here: {how}"
            f"pip install {' '.join(missing)}, or set [{self.kind}] url to a worker on a "
            "machine that has them"
        )

    def on_hub(self, model: str) -> str:
        """Returns where a model is found: the model itself, or the repository that has it."""
        _, at, revision = model.partition("@")
        if not self.repository or Path(model).expanduser().is_dir():
            return model
        return f"{self.repository}{at}{revision}"

    def here(self, language: str = "") -> str:
        """Returns the name of the engine that this one means here for a language, an ISO 639 code;
        of most the own one. Raises EngineError if there is none."""
        return str(imported(self.means)(language)) if self.means else self.name

    def open(self, models: Any, progress: Progress) -> Any:
        """Returns the engine, not yet started. May take seconds. Raises EngineError."""
        return imported(self.opens)(models, progress)


def imported(path: str) -> Any:
    """Returns what an import path names. Raises EngineError."""
    module, _, name = path.partition(":")
    try:
        return getattr(import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise EngineError(f"{path} cannot be imported: {error}") from error
