"""What `offhook doctor` says of Pocket TTS, without loading it."""

from collections import defaultdict
from pathlib import Path

from offhook.pipeline.models.hub.catalogue import CATALOGUE
from offhook.pipeline.models.pocket.config import config_named
from offhook.pipeline.models.pocket.licences import LICENCES
from offhook.web.engines.abilities_io import abilities

CORES = {"": 0.16, "_24l": 0.35, "_18m": 0.09, "_7m": 0.07, "_2m": 0.04}
"""Share of a core with VNNI that one reply takes in int8 while it speaks, by the size in a model's
name; see docs/pocket.md. Each of several at once takes less, a CPU without VNNI more."""


def describe_model(model: str) -> str:
    """Returns the language, cost and licence of a model, by name or folder. Raises EngineError."""
    config = config_named(model)
    name = Path(model).name.partition("@")[0]
    size = next((size for size in CORES if size and size in name), "")
    cost = f"about {CORES[size]:g} of a core while it speaks"
    licences = {m.name: m.licence for m in CATALOGUE if m.engine == "pocket"}
    return f"{model}: {config.language}, {cost}, weights {licences.get(name, 'CC-BY-4.0')}"


def describe_voices(model: str) -> str:
    """Returns the voices by licence, of a folder those that it has. Raises EngineError."""
    by_licence = defaultdict(list)
    for name in abilities("pocket", model).voices:
        by_licence[LICENCES[name]].append(name)
    return "; ".join(f"{licence}: {', '.join(names)}" for licence, names in by_licence.items())
