"""The published models that the engines were made for: licences, sizes, and the commits tested.

Sizes are those of the weights as published, in bytes; tokenizers and settings are a few MB more.
"""

from dataclasses import dataclass
from typing import Literal

from offhook.pipeline.models.pocket.config import CONFIGS
from offhook.pipeline.models.pocket.licences import LICENCES
from offhook.pipeline.speech.streams.languages import NAMES

FILES = ("*.json", "*.safetensors", "merges.txt")
"""Files needed from a repository and its subfolders, unless the model names others."""
SHERPA_FILES = ("*.onnx", "*.data", "*.weights", "tokens.txt")
KOKORO = "onnx-community/Kokoro-82M-v1.0-ONNX"
KOKORO_FILES = ("onnx/model_quantized.onnx", "tokenizer.json", "voices/*.bin")
KOKORO_LANGUAGES = ("en", "es", "fr", "hi", "it", "pt")
POCKET = "kyutai/pocket-tts-without-voice-cloning"
POCKET_COMMIT = "a7056f505a4a8ca72d8b5fb1440071d6f1a35739"
CODEC_BYTES = 682_293_092
"""Of Qwen3-TTS: the weights in `speech_tokenizer`."""
SITE = "https://huggingface.co"
QWEN3_TTS_LANGUAGES = ("zh", "en", "ja", "ko", "de", "fr", "ru", "pt", "es", "it")
ASR_LANGUAGES = tuple(NAMES)


@dataclass(frozen=True)
class PublishedModel:
    name: str
    """What `model` in the configuration is: a hub id, or for Pocket TTS a language."""
    engine: str
    does: Literal["asr", "tts", "word times"]
    languages: tuple[str, ...]
    """ISO 639 codes; empty: the model says so once it has loaded."""
    licence: str
    """Of the weights."""
    revision: str
    bytes: int | None
    """To download and on the disk; None: not known without asking the hub."""
    repository: str
    files: tuple[str, ...] = FILES
    described: str = ""
    """What is known of its languages where they are not listed."""

    @property
    def languages_in_words(self) -> str:
        """Returns the only language, or the number of languages."""
        if len(self.languages) == 1:
            return self.languages[0]
        return self.described or f"{len(self.languages)} languages"

    @property
    def page(self) -> str:
        return f"{SITE}/{self.repository}"


def _qwen3(
    name: str, engine: str, does: Literal["asr", "tts", "word times"], bytes: int, revision: str
) -> PublishedModel:
    languages = {"asr": ASR_LANGUAGES, "tts": QWEN3_TTS_LANGUAGES, "word times": ()}[does]
    name, described = f"Qwen/{name}", "11 languages" if does == "word times" else ""
    return PublishedModel(
        name, engine, does, languages, "Apache-2.0", revision, bytes, name, described=described
    )


def _qwen3_tts(name: str, talker_bytes: int, revision: str) -> PublishedModel:
    codec_bytes = 682_293_092
    return _qwen3(
        f"Qwen3-TTS-12Hz-{name}", "qwen3-tts", "tts", talker_bytes + codec_bytes, revision
    )


def _nemotron(
    name: str, language: str, described: str, licence: str, bytes: int, revision: str
) -> PublishedModel:
    name, languages = f"nvidia/{name}", (language,) if language else ()
    return PublishedModel(
        name, "nemotron", "asr", languages, licence, revision, bytes, name, described=described
    )


def pocket_files(folder: str) -> tuple[str, ...]:
    """Returns the files of one language of POCKET: the model, and voices whose recordings may be
    used commercially."""
    inside = f"languages/{folder}"
    voices = (f"{inside}/embeddings/{voice}.safetensors" for voice in LICENCES)
    return f"{inside}/model.safetensors", f"{inside}/tokenizer.*", *voices


def _pocket(folder: str, language: str) -> PublishedModel:
    licence, files = "CC-BY-4.0", pocket_files(folder)
    return PublishedModel(
        folder, "pocket", "tts", (language,), licence, POCKET_COMMIT, None, POCKET, files
    )


def _kroko(language: str, bytes: int, revision: str) -> PublishedModel:
    name = f"csukuangfj/sherpa-onnx-streaming-zipformer-{language}-kroko-2025-08-06"
    licence = "CC-BY-SA-4.0"
    return PublishedModel(
        name, "sherpa", "asr", (language,), licence, revision, bytes, name, SHERPA_FILES
    )


CATALOGUE: tuple[PublishedModel, ...] = (
    _nemotron(
        *("nemotron-speech-streaming-en-0.6b", "en", ""),
        *("NVIDIA Open Model License", 2_472_413_604),
        "ebe59e5a817142986528bbbee5dba8db7b38ed50",
    ),
    _nemotron(
        *("nemotron-3.5-asr-streaming-0.6b", "", "40 locales", "OpenMDW-1.1", 2_552_062_944),
        "ea30d66debe3740a08b573244286791d423d6b3e",
    ),
    _kroko("en", 71_053_214, "572aaf4e2e0c603c3fc2a574d096e755a178faa1"),
    _kroko("de", 71_051_469, "887db3d083240198c2d2b99fb66cfcfe6948ced8"),
    _kroko("es", 155_838_792, "20cf7a4921613397841d31168796cade5b866585"),
    _kroko("fr", 71_052_319, "08b84b7b7cf519be9817e9c16919d96a7a8bad91"),
    *(_pocket(folder, config.language) for folder, config in CONFIGS.items()),
    PublishedModel(
        *(KOKORO, "kokoro", "tts", KOKORO_LANGUAGES, "Apache-2.0"),
        *("1939ad2a8e416c0acfeecc08a694d14ef25f2231", None, KOKORO, KOKORO_FILES),
    ),
    _qwen3(
        *("Qwen3-ASR-0.6B", "qwen3-asr", "asr", 1_876_091_704),
        "5eb144179a02acc5e5ba31e748d22b0cf3e303b0",
    ),
    _qwen3(
        *("Qwen3-ASR-0.6B-hf", "qwen3-asr", "asr", 1_564_928_088),
        "7f1569a48a89f3e3f4dc3a5c9d28bddd903bc76c",
    ),
    _qwen3(
        *("Qwen3-ASR-1.7B", "qwen3-asr", "asr", 4_220_320_824 + 478_200_688),
        "7278e1e70fe206f11671096ffdd38061171dd6e5",
    ),
    _qwen3(
        *("Qwen3-ASR-1.7B-hf", "qwen3-asr", "asr", 4_076_193_080),
        "bcd2b5b7f32b480ab5790554cfa8347f246a14f3",
    ),
    _qwen3(
        *("Qwen3-ForcedAligner-0.6B", "qwen3-asr", "word times", 1_835_544_544),
        "c7cbfc2048c462b0d63a45797104fc9db3ad62b7",
    ),
    _qwen3(
        *("Qwen3-ForcedAligner-0.6B-hf", "qwen3-asr", "word times", 1_835_545_960),
        "c07281df297b9905d24a508279258cccf987a064",
    ),
    _qwen3_tts("0.6B-CustomVoice", 1_811_626_576, "85e237c12c027371202489a0ec509ded67b5e4b5"),
    _qwen3_tts("0.6B-Base", 1_829_344_272, "5d83992436eae1d760afd27aff78a71d676296fc"),
    _qwen3_tts("1.7B-CustomVoice", 3_833_402_552, "0c0e3051f131929182e2c023b9537f8b1c68adfe"),
    _qwen3_tts("1.7B-VoiceDesign", 3_833_402_552, "5ecdb67327fd37bb2e042aab12ff7391903235d3"),
    _qwen3_tts("1.7B-Base", 3_857_413_744, "fd4b254389122332181a7c3db7f27e918eec64e3"),
)


def of_name(name: str) -> PublishedModel | None:
    """Returns the model that the configuration names so; a revision behind @ is left aside."""
    return next((model for model in CATALOGUE if model.name == name.partition("@")[0]), None)
