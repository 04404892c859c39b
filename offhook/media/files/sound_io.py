"""Reads the sound of a file that the operator names, whole."""

from pathlib import Path

import numpy as np

from offhook.media.files.decoding_io import DecoderUnavailable, Decoding
from offhook.media.files.formats import FileError
from offhook.media.pcm import RATE_OUT, Pcm
from offhook.media.playout import AUDIBLE


def read_sound(path: Path, most_s: float) -> Pcm:
    """Return the sound of a file as 24 kHz mono. Blocking: for threads. Raises FileError, which
    begins with the path, also if the file is silent or longer than `most_s`, and
    DecoderUnavailable."""
    try:
        with path.open("rb") as file:
            decoding = Decoding(file, RATE_OUT, most_s=most_s, name=path.name)
        blocks = [block for block, _, _ in decoding.blocks()]
    except DecoderUnavailable:
        raise
    except OSError as error:
        raise FileError(f"{path}: {(error.strerror or str(error)).lower()}") from error
    except FileError as error:
        raise FileError(f"{path}: {error}") from error
    sound = np.concatenate(blocks) if blocks else np.zeros(1, np.int16)
    if np.abs(sound.astype(np.int32)).max() <= AUDIBLE:
        raise FileError(f"{path}: there is only silence in it")
    return sound
