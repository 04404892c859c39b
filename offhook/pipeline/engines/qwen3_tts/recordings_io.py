"""Decodes the recording for a voice clone from any common audio file."""

import tempfile
from contextlib import closing

import numpy as np

from offhook.media.files.decoding_io import DecoderUnavailable, Decoding
from offhook.media.files.formats import FileError
from offhook.media.pcm import Pcm
from offhook.pipeline.engines.qwen3_tts.voices import MAX_RATE, MIN_RATE, READ_S
from offhook.pipeline.speech.errors import EngineError
from offhook.pipeline.speech.voice_cloning import VoiceError


def read_recording(data: bytes) -> tuple[Pcm, int]:
    """Returns mono int16 samples and their rate in Hz, at most slightly more than READ_S seconds.
    Takes about 100 ms. Raises VoiceError, and EngineError if nothing can be decoded now."""
    blocks: list[Pcm] = []
    rate = samples = 0
    try:
        with tempfile.TemporaryFile() as file:
            file.write(data)
            file.flush()
            decoding = Decoding(file)
        with closing(decoding.blocks()) as decoded:
            for block, rate, _ in decoded:
                if not MIN_RATE <= rate <= MAX_RATE:
                    raise VoiceError(
                        f"the recording is of {rate} Hz, not of {MIN_RATE} to {MAX_RATE} Hz"
                    )
                blocks.append(block)
                samples += len(block)
                if samples > READ_S * rate:
                    break
    except FileError as error:
        raise VoiceError(f"the recording: {error}") from error
    except DecoderUnavailable as error:
        raise EngineError(str(error)) from error
    if not samples:
        raise VoiceError("there is no sound in the recording")
    return np.concatenate(blocks), rate
