"""What is told of Pocket TTS without loading it."""

from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from offhook.pipeline.engines.pocket.model.config import config_named
from offhook.pipeline.engines.pocket.model.licences import LICENCES, listed
from offhook.pipeline.engines.pocket.spec import CORES, POCKET
from offhook.pipeline.speech.engine_spec import Abilities, Check


def abilities(model: str) -> Abilities:
    """Raises EngineError for an unknown model."""
    language, folder = config_named(model).language, Path(model).expanduser()
    here = {path.stem for path in (folder / "embeddings").glob("*.safetensors")}
    names = [name for name in listed(language) if not folder.is_dir() or name in here]
    return Abilities.of_voices(dict.fromkeys(names, (language,)), LICENCES)


def checks(model: str, language: str) -> Iterator[Check]:
    yield Check(", model", lambda: describe_model(model))
    yield Check(", voices", lambda: describe_voices(model))


def describe_model(model: str) -> str:
    """Returns the language, cost and licence of a model, by name or folder. Raises EngineError."""
    config = config_named(model)
    name = Path(model).name.partition("@")[0]
    size = next(size for size in CORES if size in name)
    cost = f"about {CORES[size]:g} of a core while it speaks"
    published = POCKET.published(name)
    licence = published.licence if published else "CC-BY-4.0"
    return f"{model}: {config.language}, {cost}, weights {licence}"


def describe_voices(model: str) -> str:
    """Returns the voices by licence, of a folder those that it has. Raises EngineError."""
    by_licence = defaultdict(list)
    for name in abilities(model).voices:
        by_licence[LICENCES[name]].append(name)
    return "; ".join(f"{licence}: {', '.join(names)}" for licence, names in by_licence.items())
