"""The lines of a benchmark's callers: recordings, or texts that a synthesizer speaks."""

import numpy as np

from benchmarks.speech.recordings import Packets, recorded, resample
from offhook.media.codecs.codec import Encoder
from offhook.media.codecs.opus import OpusEncoder, OpusSettings
from offhook.media.pcm import RATE_IN, RATE_OUT, SAMPLES_OUT, Pcm
from offhook.pipeline.speech.synthesizer import VoiceOptions
from offhook.web.app.cli.caller_io import spoken, trimmed
from offhook.web.workers.engines.engines_io import open_synthesizer

CONVERSATION = (
    "What are your opening hours?",
    "Are you open on Sunday?",
    "Where are you?",
    "What can you do?",
    "What time is it?",
)
"""Questions to the front desk."""
TEXTS = ("Tell me about yourself.", "What are your opening hours?", "Where are you?")
"""Spoken if there are no recordings."""
LINE_S = (1.0, 3.5)
"""Range of lengths in s of the recordings used as lines."""


async def voiced(*texts: str, apart: bool = False) -> dict[str, Pcm]:
    """Returns the texts as the configured synthesizer speaks them, 24 kHz samples without silence
    around them; `apart` in another voice than the agent's, where there is one."""
    synthesizer = open_synthesizer()
    await synthesizer.start()
    voice = VoiceOptions("rms" if apart and synthesizer.name == "flite" else "")
    try:
        return {text: trimmed(await spoken(synthesizer, text, voice)) for text in texts}
    finally:
        await synthesizer.close()


def short_recordings() -> list[Pcm]:
    """Returns the recordings that are as long as a line, 24 kHz samples."""
    least, most = (round(seconds * RATE_IN) for seconds in LINE_S)
    return [
        trimmed(resample(pcm, RATE_IN, RATE_OUT)) for pcm in recorded() if least <= len(pcm) <= most
    ]


async def caller_lines() -> list[Pcm]:
    """Returns lines of callers, 24 kHz samples: recordings, or spoken texts if there are none."""
    return short_recordings() or list((await voiced(*TEXTS)).values())


def quiet_room() -> Pcm:
    """Returns a second of a room in which nobody speaks, 24 kHz samples."""
    return np.random.default_rng(1).integers(-8, 9, RATE_OUT).astype(np.int16)


def encode(pcm: Pcm, encoder: Encoder) -> Packets:
    """Encodes 24 kHz samples to 20 ms each; the last is zero-padded."""
    frames = -(-len(pcm) // SAMPLES_OUT)
    padded = np.zeros(frames * SAMPLES_OUT, np.int16)
    padded[: len(pcm)] = pcm
    return tuple(encoder.encode(frame) for frame in padded.reshape(frames, SAMPLES_OUT))


def opus(loss: float = 0.0) -> OpusEncoder:
    """Returns an encoder that sends silence too, prepared for a share of its packets to be lost."""
    encoder = OpusEncoder(OpusSettings(dtx=False))
    encoder.set_loss(loss)
    return encoder
