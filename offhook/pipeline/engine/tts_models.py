"""Which models speak here."""

from dataclasses import dataclass

from offhook.pipeline.engine.asr_models import Device

VOICES = "~/.local/share/offhook/voices"
NO_CACHE = "off"
"""In place of a Redis's address: no reply is kept, here or elsewhere."""


@dataclass(frozen=True)
class TtsModels:
    """What is loaded, and where."""

    model: str
    """A folder or the name of a hub repository, which may end with a revision: talker, code
    predictor and codec."""
    device: Device = "auto"
    voices: str = ""
    """Folder of the voices that were cloned or described; empty: the usual one, VOICES."""
    audio_cache: str = ""
    """A Redis with the short replies of all workers, redis://host:port/db or unix:///path; empty:
    this process remembers its own; "off": nothing is remembered."""
    hub: str = ""
    """As `AsrModels.hub`."""
