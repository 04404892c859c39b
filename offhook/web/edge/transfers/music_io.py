"""The music of callers who wait, by the files that the configuration names."""

import asyncio
from collections.abc import Iterable, Iterator
from pathlib import Path

from loguru import logger

from offhook.media.files.decoding_io import DecoderUnavailable
from offhook.media.files.formats import FileError
from offhook.media.files.sound_io import read_sound
from offhook.media.hold_music import hold_music
from offhook.media.pcm import Pcm
from offhook.media.telephone_tones.tones import repeat

MAX_MUSIC_S = 600.0
"""Maximum length in s of a music file, of which all is in memory, 29 MB; of a longer one callers
hear nothing, but our own tones."""


class Music:
    """Has each file's sound in memory, once."""

    def __init__(self) -> None:
        self._sounds: dict[str, Pcm] = {}

    async def load(self, files: Iterable[str]) -> None:
        """Decode files that were not decoded before. One that cannot be is logged: the caller hears
        our own tones."""
        for file in {*files} - self._sounds.keys() - {""}:
            try:
                self._sounds[file] = await asyncio.to_thread(_sound_of, file)
            except (FileError, DecoderUnavailable) as error:
                logger.error("music: {}: callers hear tones instead", error)

    def of(self, file: str) -> Iterator[Pcm]:
        """Return the music of a file from its beginning, 480 samples at a time, without end."""
        sound = self._sounds.get(file)
        return repeat(hold_music() if sound is None else sound)


def _sound_of(file: str) -> Pcm:
    return read_sound(Path(file).expanduser(), MAX_MUSIC_S)
