"""Qwen3-TTS through the official `qwen-tts` package: a reference for our engine, and a fallback.

It runs in its own environment (`make qwen-tts-official`), because the package pins transformers.

It speaks clause by clause on one thread, each completed before its first sample, because the
package does not stream. Word positions are estimated in proportion to letters within the clause.
"""

import asyncio
import sys
import types
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from typing import Any

import numpy as np

from offhook.media.pcm import RATE_OUT, Pcm
from offhook.pipeline.engines.embedded.embedded_speech_io import EmbeddedSpeech, written_words
from offhook.pipeline.engines.hub.hub_io import find
from offhook.pipeline.engines.qwen3_tts.prompts import LANGUAGES
from offhook.pipeline.engines.shared.tts_models import TtsModels
from offhook.pipeline.speech.errors import EngineError
from offhook.pipeline.speech.recognizer import Progress
from offhook.pipeline.speech.synthesizer import (
    DEFAULT_VOICE,
    Speech,
    Synthesizer,
    UnknownVoice,
    VoiceOptions,
)

OF_ANOTHER_CODEC = ("sox", "torchaudio", "torchaudio.compliance", "torchaudio.compliance.kaldi")
"""Imports of the package for a 25 Hz codec that no published model uses."""
FRAMES_PER_CHAR, MORE_FRAMES = 3, 50
"""Frame budget of 80 ms frames, so that a voice that does not stop is cut off."""
NO_SOUND = np.zeros(0, np.int16)
KINDS = ("custom_voice", "voice_design")


class OfficialSynthesizer(Synthesizer):
    """A CustomVoice model, whose speakers are the voices, or a VoiceDesign model, whose voice is
    described by the instructions."""

    name = "qwen3-tts-official"

    def __init__(self, models: TtsModels, progress: Progress) -> None:
        self._models = models
        self._progress = progress
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=self.name)
        self._model: Any = None
        self._voices: list[str] = []
        self._languages: list[str] = []

    def voices(self) -> list[str]:
        return list(self._voices)

    async def start(self) -> None:
        """Loads the model. Raises EngineError."""
        try:
            await asyncio.get_running_loop().run_in_executor(self._thread, self._load)
        except (RuntimeError, ValueError, OSError, ImportError) as error:
            words = " ".join(str(error).split()) or repr(error)
            raise EngineError(f"{self.name}: {words}") from error

    def open(self, options: VoiceOptions = DEFAULT_VOICE) -> EmbeddedSpeech:
        if options.voice and options.voice.lower() not in self._voices:
            names = ", ".join(self._voices) or "none"
            raise UnknownVoice(f"{self.name} has no voice {options.voice!r}, only {names}")
        if options.language and LANGUAGES.get(options.language) not in self._languages:
            raise ValueError(f"{self.name} does not speak {options.language!r}")
        if options.speed != 1.0:
            raise ValueError(f"{self.name} speaks at its own speed only")
        return EmbeddedSpeech(
            lambda words: self._speak("".join(word.text for word in words), options), self._thread
        )

    async def close(self) -> None:
        self._thread.shutdown(wait=False, cancel_futures=True)

    # --- on its thread ---

    def _load(self) -> None:
        """Raises EngineError, RuntimeError, ValueError, OSError, ImportError."""
        self._progress(0.1, "importing qwen-tts")
        import torch

        _stand_in()
        from qwen_tts import Qwen3TTSModel

        device = self._models.device
        if device == "auto":
            device = "cuda" if torch.cuda.is_available() else "cpu"
        placed: dict[str, Any] = {
            "dtype": torch.bfloat16 if device == "cuda" else torch.float32,
            "device_map": device,
        }
        if device == "cuda" and find_spec("flash_attn") is not None:
            placed["attn_implementation"] = "flash_attention_2"
        self._progress(0.3, f"loading {self._models.model}")
        folder = find(self._models.model, hub=self._models.hub)
        self._model = Qwen3TTSModel.from_pretrained(str(folder), **placed)
        kind = self._model.model.tts_model_type
        if kind not in KINDS:
            raise EngineError(
                f"{self.name} speaks with models of the kinds {' and '.join(KINDS)}, not {kind}: "
                "cloned voices are for the engine qwen3-tts"
            )
        if kind == "custom_voice":
            self._voices = self._model.get_supported_speakers() or []
        self._languages = self._model.get_supported_languages() or []

    def _speak(self, clause: str, options: VoiceOptions) -> list[Speech]:
        """Synthesizes a clause into pieces whose texts concatenate to it. Raises EngineError."""
        words = written_words(clause) or [clause]
        if not any(map(str.isalnum, clause)):
            return [Speech(NO_SOUND, clause)]
        import torch

        if options.seed is not None:
            torch.manual_seed(options.seed % (1 << 63))
        given: dict[str, Any] = {
            "language": LANGUAGES.get(options.language, "auto"),
            "max_new_tokens": FRAMES_PER_CHAR * len(clause) + MORE_FRAMES,
        }
        try:
            if self._voices:
                speaker = options.voice.lower() or self._voices[0]
                sounds, rate = self._model.generate_custom_voice(
                    clause.strip(), speaker, instruct=options.instructions or None, **given
                )
            else:
                sounds, rate = self._model.generate_voice_design(
                    clause.strip(), options.instructions, **given
                )
        except (RuntimeError, ValueError) as error:
            raise EngineError(f"{self.name}: {' '.join(str(error).split())}") from error
        if rate != RATE_OUT:
            raise EngineError(f"{self.name}: its codec makes {rate} Hz, not {RATE_OUT}")
        pcm = np.rint(np.clip(sounds[0], -1, 1) * 32767).astype(np.int16)
        return _marked(pcm, words)


def _marked(pcm: Pcm, words: list[str]) -> list[Speech]:
    ends = np.cumsum([len(word.strip()) for word in words])
    cuts = ends[:-1] * len(pcm) // max(1, int(ends[-1]))
    return [Speech(sound, word) for sound, word in zip(np.split(pcm, cuts), words, strict=True)]


def _stand_in() -> None:
    """Installs empty modules for imports of the package that are not used."""
    import transformers  # noqa: F401  # must be imported first: it checks whether they exist

    missing = {name for name in OF_ANOTHER_CODEC if "." not in name and not _is_there(name)}
    for name in OF_ANOTHER_CODEC:
        if name.partition(".")[0] in missing:
            sys.modules[name] = types.ModuleType(name)


def _is_there(name: str) -> bool:
    return name in sys.modules or find_spec(name) is not None
