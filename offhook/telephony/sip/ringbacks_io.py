"""The sounds of an endpoint's trunks for callers whose transfer rings."""

import asyncio
from collections.abc import Iterable, Iterator
from functools import partial
from itertools import repeat as again
from pathlib import Path

import numpy as np
from loguru import logger

from offhook.media.files.decoding_io import DecoderUnavailable
from offhook.media.files.formats import FileError
from offhook.media.files.sound_io import read_sound
from offhook.media.pcm import SAMPLES_OUT, Pcm
from offhook.media.ringback import Ringback
from offhook.media.telephone_tones.tones import play, repeat
from offhook.telephony.sip.messages.grammar import SipError
from offhook.telephony.sip.trunks.trunks import RINGBACK, TONES, Trunk

MAX_RINGBACK_S = 600.0
"""Maximum length in s of the sound of a ringback file, of which all is in memory, 29 MB; a longer
one is refused at the start."""
FORMS = 'write "eu", "us", "off" or the name of a sound file'

_SILENCE = np.zeros(SAMPLES_OUT, np.int16)


class Ringbacks:
    """Has each file's sound in memory, once."""

    def __init__(self) -> None:
        self._sounds: dict[Path, Pcm] = {}

    def of(self, trunk: Trunk | None) -> Ringback:
        """Return what a caller of the trunk hears, from its beginning; the usual tone if the file
        is not decoded."""
        chosen = trunk.ringback if trunk is not None else RINGBACK
        if isinstance(chosen, Path):
            if (sound := self._sounds.get(chosen)) is not None:
                return Ringback(partial(repeat, sound))
            chosen = RINGBACK
        return Ringback(_silence if chosen == "off" else partial(play, TONES[chosen].ringback))

    def check(self, trunks: Iterable[Trunk]) -> None:
        """Raises SipError if one of their files is not there."""
        for trunk, path in _files(trunks):
            if not path.is_file():
                raise _wrong(trunk, f"{path}: no such file: {FORMS}")

    async def load(self, trunks: Iterable[Trunk]) -> None:
        """Decode their files, in place of those before. Raises SipError, which names the trunk, and
        then nothing has changed."""
        sounds: dict[Path, Pcm] = {}
        for trunk, path in _files(trunks):
            if path not in sounds:
                try:
                    sounds[path] = await asyncio.to_thread(read_sound, path, MAX_RINGBACK_S)
                except (FileError, DecoderUnavailable) as error:
                    raise _wrong(trunk, f"{error}: {FORMS}") from error
        self._sounds = sounds

    async def reload(self, trunks: Iterable[Trunk]) -> None:
        """Do the same while calls go on; a file that cannot be decoded is logged."""
        try:
            await self.load(trunks)
        except SipError as error:
            logger.error("{}", error)


def _files(trunks: Iterable[Trunk]) -> Iterator[tuple[Trunk, Path]]:
    return ((trunk, trunk.ringback) for trunk in trunks if isinstance(trunk.ringback, Path))


def _silence() -> Iterator[Pcm]:
    return again(_SILENCE)


def _wrong(trunk: Trunk, what: str) -> SipError:
    return SipError(f"trunk {trunk.name!r}: ringback: {what}")
