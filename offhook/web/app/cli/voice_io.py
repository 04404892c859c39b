"""`offhook voice`: voices cloned from recordings, for workers with the same model."""

import asyncio
from contextlib import closing
from pathlib import Path

import numpy as np

from offhook.media.pcm import Pcm
from offhook.pipeline.engines.qwen3_tts.replies_io import voice_store
from offhook.pipeline.engines.qwen3_tts.voices import READ_S, Voice
from offhook.pipeline.engines.qwen3_tts.voices_io import Cloning, load_encoders, voice_folder
from offhook.pipeline.engines.shared.tts_models import TtsModels
from offhook.pipeline.speech.engines import cloner
from offhook.pipeline.speech.recognizer import Progress
from offhook.pipeline.speech.synthesizer import UnknownVoice
from offhook.pipeline.speech.voice_cloning import VoiceError
from offhook.web.speech_api.http.file_transcription_io import FileError, of_path, opened
from offhook.web.workers.engines.engines_io import check_engine

CONSENT_RULE = (
    "a voice belongs to the person who speaks with it, and a clone says in it whatever it is told: "
    "ask the speaker of the recording, and give --consent when they have agreed"
)


async def add(
    models: TtsModels,
    name: str,
    path: Path,
    progress: Progress,
    *,
    consent: bool,
    text: str = "",
    language: str = "",
) -> Voice:
    """Clones the speaker of an audio or video file, whose transcript is `text` if known. Loads only
    the model's encoders, on the CPU. Raises VoiceError, FileError, EngineError."""
    if not consent:
        raise VoiceError(CONSENT_RULE)
    pcm, rate = await asyncio.to_thread(read_recording, path)
    check_engine("tts", cloner().name)
    progress(0.0, "importing torch")
    from offhook.pipeline.engines.hub import hub_io
    from offhook.pipeline.engines.qwen3_tts.model import checkpoint as tts_checkpoint

    def found(done: int, total: int | None) -> None:
        progress(done / total if total else 0.0, f"reading {models.model}")

    folder = await asyncio.to_thread(hub_io.find, models.model, found, models.hub)
    config = tts_checkpoint.read_config(folder)
    store = voice_store(models, config)
    store.check_clone(name, language, consent, replace=False)
    progress(0.5, "loading the encoders")
    encode = await asyncio.to_thread(load_encoders, folder, "cpu")
    progress(0.8, "listening to the voice")
    cloning = Cloning(store, lambda reference: asyncio.to_thread(encode, reference))
    voice = await cloning.clone(name, pcm, rate, consent=consent, text=text, language=language)
    progress(1.0, "done")
    return voice


def read_recording(path: Path) -> tuple[Pcm, int]:
    """Returns mono samples of a file and their rate in Hz, as far as needed. Raises FileError."""
    blocks: list[Pcm] = []
    rate = samples = 0
    with closing(of_path(path, opened(path).blocks())) as decoded:
        for block, rate, _ in decoded:
            blocks.append(block)
            samples += len(block)
            if samples > READ_S * rate:
                break
    if not samples:
        raise FileError(f"{path}: there is no sound in it")
    return np.concatenate(blocks), rate


def kept(models: TtsModels) -> list[Voice]:
    """Returns the cloned and described voices of a model, by name."""
    return voice_folder(models).voices()


def remove(models: TtsModels, name: str) -> None:
    """Raises UnknownVoice, and ValueError for an invalid name."""
    if not voice_folder(models).remove(name.lower()):
        raise UnknownVoice(f"there is no voice {name} of {models.model}: see offhook voice list")
