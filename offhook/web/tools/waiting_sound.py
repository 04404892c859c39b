"""What callers hear while a tool runs: a sound file, again and again."""

from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

from offhook.media.files.decoding_io import DecoderUnavailable
from offhook.media.files.formats import FileError
from offhook.media.files.sound_io import read_sound
from offhook.media.pcm import RATE_OUT, Pcm
from offhook.media.telephone_tones.tones import repeat
from offhook.web.config.config import ConfigError

MAX_SOUND_S = 60.0
"""Maximum length in s of the sound of a tool, which is in memory, 3 MB; a longer one is refused at
the start."""
MAX_SOUNDS = 64
"""Sounds that are in memory at most; further ones are read again when they are played."""


def waiting_sound(file: str) -> Iterator[Pcm]:
    """Returns the sound of a file as 480 samples at 24 kHz a tick, without end."""
    return repeat(_read(file))


def length_of(file: str) -> str:
    """Reads a file and returns how long its sound is. Raises ConfigError."""
    try:
        return f"{file}: {len(_read(file)) / RATE_OUT:.1f} s"
    except (FileError, DecoderUnavailable) as error:
        raise ConfigError(f"sound of a tool: {error}") from error


@lru_cache(MAX_SOUNDS)
def _read(file: str) -> Pcm:
    return read_sound(Path(file).expanduser(), MAX_SOUND_S)
