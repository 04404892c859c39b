"""Selects the speech synthesis model."""

from dataclasses import dataclass

from offhook.pipeline.engines.shared.asr_models import Device, Precision
from offhook.pipeline.engines.shared.capacity import SHARED

VOICES = "~/.local/share/offhook/voices"
CACHE_MB = 64
"""Default size of a cache of replies in MB: 23 minutes of speech."""
NO_CACHE = "off"
"""Disables the reply cache, in place of a Redis URL."""


@dataclass(frozen=True)
class TtsModels:
    """The model to load, and its settings."""

    model: str
    """Folder or hub repository, optionally with a revision, of talker, code predictor and codec.
    For Pocket TTS a folder or a name such as "english", see `pocket.model.config`."""
    device: Device = "auto"
    voices: str = ""
    """Folder of cloned and described voices; empty: the default, VOICES."""
    audio_cache: str = ""
    """URL of a Redis with the short replies of all workers, redis://host:port/db or unix:///path;
    empty: a cache in this process; "off": no cache."""
    audio_cache_mb: int = CACHE_MB
    """Size of the cache in this process, in MB."""
    hub: str = ""
    """Download source, see `AsrModels.hub`."""
    precision: Precision = "auto"
    """Number format of Pocket TTS: "fp32", or "int8", which "auto" means."""
    max_streams: int = 0
    """Streams that will speak at most, for which memory is taken; 0: as many as fit."""
    memory_share: float = SHARED
    """Share of the GPU's memory that may be taken, weights included."""
