"""`offhook models`: which models are here and which could be, their download and their removal."""

import difflib
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from offhook.pipeline.engines.hub import cache_io, download_io, hub_io, hugging_face_io
from offhook.pipeline.engines.hub.download_io import in_words
from offhook.pipeline.speech.engine_spec import FILES, KINDS, SITE, Kind, PublishedModel
from offhook.pipeline.speech.engines import all_specs, catalogue
from offhook.pipeline.speech.errors import EngineError
from offhook.web.config.config import Config
from offhook.web.config.engines import AUTOMATIC
from offhook.web.workers.engines import machine_io
from offhook.web.workers.engines.choice import Choice, choice_for
from offhook.web.workers.engines.engines_io import usual_model

LEAST_LIKE = 0.5
"""Likeness of names, 0 to 1, from which one is proposed for another."""
PROPOSED = 3
TELL_S = 0.5
"""Interval in s between two lines of progress in JSON."""
DOES = {"asr": "hears", "tts": "speaks", "word times": "times words"}


@dataclass(frozen=True)
class Target:
    """A model as the user names it, and its files on a hub."""

    name: str
    repository: str
    revision: str
    files: tuple[str, ...]
    published: PublishedModel | None = None

    @property
    def model(self) -> str:
        """As `hub_io.find` takes it."""
        return f"{self.repository}@{self.revision}" if self.revision else self.repository


@dataclass(frozen=True)
class Listed:
    target: Target
    used: tuple[str, ...]
    """Keys of the configuration that name it."""
    bytes: int | None
    """To download; None: unknown."""
    here: int
    complete: bool

    @property
    def state(self) -> str:
        if self.complete:
            return "here"
        return f"{in_words(self.here)} here" if self.here else "-"

    @property
    def size(self) -> str:
        return in_words(self.bytes) if self.bytes else "unknown"

    def as_dict(self) -> dict[str, Any]:
        """Returns what `offhook models list --json` tells."""
        known, target = self.target.published, self.target
        return {
            "name": target.name,
            "engine": known.engine if known else None,
            "does": known.does if known else None,
            "languages": known.languages_in_words if known else None,
            "bytes": self.bytes,
            "bytes_here": self.here,
            "complete": self.complete,
            "licence": known.licence if known else None,
            "revision": target.revision or (known.revision if known else None),
            "page": f"{SITE}/{target.repository}",
            "used_by": list(self.used),
        }


class Models:
    """The models of a configuration and of the catalogue. `hub` is as in [engines] hub."""

    def __init__(self, config: Config, hub: str = "") -> None:
        self._config = config
        self._hub = hub or config.engines.hub
        self._modelscope = self._hub == hub_io.MODELSCOPE

    def used(self) -> dict[str, list[str]]:
        """Returns the models that the configuration names, and its keys for each."""
        asr, tts = self._config.asr, self._config.tts
        named = [] if asr.url else [("asr", "model", asr.model or usual_model("asr", asr.engine))]
        named += [] if asr.url else [("asr", "final_model", asr.final_model)]
        named += [] if asr.url else [("asr", "aligner", asr.aligner)]
        named += [] if tts.url else [("tts", "model", tts.model or usual_model("tts", tts.engine))]
        automatic = {"asr": asr.automatic, "tts": tts.automatic}
        if any(automatic.values()):
            named += [
                (kind, "engine", choice.model)
                for kind, choice in self._choices()
                if automatic[kind]
            ]
        used: dict[str, list[str]] = {}
        for section, key, name in named:
            if _of_catalogue(name) or "/" in name:
                used.setdefault(name, []).append(f"[{section}] {key}")
        return used

    def list(self, ask: bool = True) -> list[Listed]:
        """Returns the models of the catalogue, and others that the configuration names. Asks the
        hub for unknown sizes if `ask`."""
        used = self.used()
        targets = [_target(model.name) for model in catalogue()]
        targets += [
            self.target(name)
            for name in used
            if not _of_catalogue(name) and not Path(name).expanduser().is_dir()
        ]
        listed = []
        for target in targets:
            if target is None:
                continue
            found = self._presence(target)
            size = target.published.bytes if target.published else None
            if size is None and ask:
                size = self._bytes(target)
                ask = size is not None  # one attempt: without a network each would wait
            keys = [key for name in used if _same(name, target) for key in used[name]]
            listed.append(Listed(target, tuple(keys), size, found.bytes, found.complete))
        return listed

    def target(self, name: str) -> Target:
        """Returns the model that the user means: a name of the catalogue, with or without its
        organization, an engine for its usual model, or any id of a hub. Raises EngineError with
        the nearest names."""
        name = name.strip().rstrip("/")
        if target := _target(name):
            return target
        if name in AUTOMATIC:
            raise EngineError(f"{name} is no model, it chooses some: see offhook models list")
        if any(spec.embedded and spec.name == name for spec in all_specs()):
            raise EngineError(f"{name} comes with its package: there is nothing to download")
        repository, _, revision = name.partition("@")
        parts = repository.split("/")
        if len(parts) == 2 and all(parts) and not name.startswith((".", "/", "~")):
            return Target(name, repository, revision, self._files(name))
        raise EngineError(f"there is no model {name!r}{near(name)}: see offhook models list")

    def _files(self, name: str) -> tuple[str, ...]:
        """Returns the files of a model that is not published: of the engine that the configuration
        uses it with, or whose name is in the model's."""
        used = (self._config.asr.engine, self._config.tts.engine) if name in self.used() else ()
        others = (spec for spec in all_specs() if spec.files != FILES)
        found = (spec.files for spec in others if spec.name in name or spec.name in used)
        return next(found, FILES)

    def targets(self, name: str) -> Sequence[Target]:
        """Returns the models to download for a name, which may be "auto" or "small". Raises
        EngineError."""
        name = name.strip()
        return self._chosen(name) if name in AUTOMATIC else (self.target(name),)

    def _chosen(self, engine: str) -> Sequence[Target]:
        """Returns the models that `engine = "auto"` or "small" means on this machine. Raises
        EngineError if it means none."""
        choices = [choice for _, choice in self._choices(engine)]
        if all(choice.embedded for choice in choices):
            raise EngineError(
                f"{engine} has nothing to download here: "
                + "; ".join(choice.why for choice in choices if choice.why)
            )
        return tuple(self.target(choice.model) for choice in choices if not choice.embedded)

    def _choices(self, engine: str = "") -> Sequence[tuple[Kind, Choice]]:
        machine = machine_io.look()
        return [(kind, choice_for(self._config, kind, machine, engine)) for kind in KINDS]

    def pull(self, target: Target, progress: Callable[[int, int], None]) -> Path:
        """Downloads a model. Raises EngineError."""
        try:
            return hub_io.find(target.model, progress, self._hub, target.files)
        except EngineError as error:
            if target.published:
                raise
            raise EngineError(f"{error}{near(target.name)}") from error

    def remove(self, target: Target) -> int:
        """Returns the bytes that are free again. Raises EngineError if nothing is here."""
        if not self._presence(target).bytes:
            raise EngineError(f"nothing of {target.name} is here{near(target.name)}")
        revision = self._revision(target)
        return cache_io.remove(target.repository, revision, self._modelscope, target.files)

    def here(self, target: Target) -> int:
        """Returns the bytes of a model on the disk."""
        return self._presence(target).bytes

    def cache(self) -> str:
        """Says where models are downloaded to with how much room, or what downloading needs."""
        target = _target(catalogue()[0].name)
        assert target is not None
        try:
            store = cache_io.store_of(
                target.repository, self._revision(target) or "0" * 40, self._modelscope
            )
        except ImportError:
            return "to download them: `make cpu`, or pip install huggingface_hub"
        folder = store.folder.parents[2] if store else Path()
        return f"downloaded to {folder}, whose disk has {download_io.free(folder)} free"

    def _revision(self, target: Target) -> str:
        if self._modelscope:
            return target.revision
        return target.revision or hub_io.usual_revision(target.repository)

    def _presence(self, target: Target) -> cache_io.Presence:
        revision = self._revision(target)
        return cache_io.presence(target.repository, revision, self._modelscope, target.files)

    def _bytes(self, target: Target) -> int | None:
        if self._modelscope:
            return None
        revision = self._revision(target)
        return hugging_face_io.bytes_of(target.repository, revision, self._hub, target.files)


def _of_catalogue(name: str) -> PublishedModel | None:
    wanted = name.partition("@")[0].lower()
    usual = {spec.name: spec.model for spec in all_specs() if spec.model}
    wanted = usual.get(wanted, wanted).lower()
    for model in catalogue():
        full = model.name.lower()
        if wanted in (full, full.rpartition("/")[2]):
            return model
    return None


def _target(name: str) -> Target | None:
    if not (model := _of_catalogue(name)):
        return None
    revision = name.partition("@")[2]
    return Target(model.name, model.repository, revision, model.files, model)


def _same(name: str, target: Target) -> bool:
    model = _of_catalogue(name)
    return model is target.published if model else name == target.name


def near(name: str) -> str:
    """Returns a half sentence with the names that are most like this one, or nothing."""
    known = {model.name.lower(): model.name for model in catalogue()}
    known |= {full.rpartition("/")[2]: model for full, model in known.items()}
    known |= {spec.name: spec.name for spec in all_specs() if _of_catalogue(spec.model)}
    wanted = name.partition("@")[0].lower()
    like = [model for short, model in known.items() if wanted and wanted in short]
    like += [known[short] for short in difflib.get_close_matches(wanted, known, 9, LEAST_LIKE)]
    nearest = list(dict.fromkeys(like))[:PROPOSED]
    return f" (did you mean {' or '.join(nearest)}?)" if nearest and name not in nearest else ""


def table(models: Sequence[Listed]) -> Iterator[str]:
    """Returns the lines of `offhook models list`."""
    by_engine: dict[str, list[Listed]] = {}
    for model in models:
        known = model.target.published
        heading = f"{known.engine} {DOES[known.does]}" if known else "named by the configuration"
        by_engine.setdefault(heading, []).append(model)
    for heading, rows in by_engine.items():
        yield f"{heading}:"
        cells = [
            (
                row.target.name,
                row.target.published.languages_in_words if row.target.published else "",
                row.size,
                row.state,
                row.target.published.licence if row.target.published else "see its page",
                f"used: {', '.join(row.used)}" if row.used else "",
            )
            for row in rows
        ]
        widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
        for cell in cells:
            pairs = zip(cell, widths, strict=True)
            yield "  " + "  ".join(text.ljust(width) for text, width in pairs).rstrip()


class PullLines:
    """Progress of a download as objects for JSON lines."""

    def __init__(self, tell: Callable[[dict[str, Any]], None]) -> None:
        self._tell = tell
        self.begin(None)

    def begin(self, name: str | None) -> None:
        """Tells of another model from now on."""
        self._name, self._at = name, 0.0

    def progress(self, done: int, total: int) -> None:
        now = time.monotonic()
        if now - self._at >= TELL_S or done == total:
            self._at = now
            self.say(state="downloading", bytes=done, total=total)

    def say(self, **told: Any) -> None:
        self._tell({"model": self._name, **told})
