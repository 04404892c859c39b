"""Decodes the recording for a voice clone from any common audio file."""

from typing import BinaryIO

import numpy as np

from offhook.media.codecs.downmix import MonoConverter
from offhook.media.pcm import Pcm
from offhook.pipeline.engine.tts.voices import MAX_RATE, MIN_RATE, READ_S
from offhook.pipeline.speech.voice_cloning import VoiceError

FORMATS = (
    *("aac", "aiff", "amr", "asf", "avi", "caf", "flac", "matroska", "mov", "mp3", "mpegts"),
    *("ogg", "wav"),
)
"""Accepted container formats. Playlists and the like are excluded, because they refer to other
files and hosts."""
MAX_CHANNELS = 8
"""Maximum channels of a recording to be cloned; one with more is refused."""


def read_recording(file: BinaryIO) -> tuple[Pcm, int]:
    """Returns mono int16 samples and their rate in Hz, at most slightly more than READ_S seconds.
    Takes a core for about 100 ms. Raises VoiceError."""
    import av  # a server that clones nobody does without

    blocks: list[Pcm] = []
    rate = samples = 0
    options = {"format_whitelist": ",".join(FORMATS)}
    try:
        with av.open(file, "r", metadata_errors="replace", options=options) as container:
            if not container.streams.audio:
                raise VoiceError("there is no audio track in the recording")
            mono: MonoConverter | None = None
            for frame in container.decode(audio=0):
                rate = frame.sample_rate
                if not MIN_RATE <= rate <= MAX_RATE or frame.layout.nb_channels > MAX_CHANNELS:
                    raise VoiceError(
                        f"the recording is of {rate} Hz and {frame.layout.nb_channels} channels, "
                        f"not of {MIN_RATE} to {MAX_RATE} Hz and {MAX_CHANNELS} channels at most"
                    )
                mono = mono or MonoConverter(frame)
                for block in mono.convert(frame):
                    blocks.append(block)
                    samples += len(block)
                if samples > READ_S * rate:
                    break
    except (av.FFmpegError, OSError, ValueError) as error:
        raise VoiceError(f"the recording is no audio or video that can be read: {error}") from error
    if not samples:
        raise VoiceError("there is no sound in the recording")
    return np.concatenate(blocks), rate
