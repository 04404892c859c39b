"""The official packages of Qwen, each in an environment of its own."""

from offhook.pipeline.speech.engine_spec import SITE, Attribution, EngineSpec
from offhook.pipeline.speech.streams.languages import NAMES

QWEN = Attribution("Qwen", f"{SITE}/Qwen")

QWEN3_ASR_OFFICIAL = EngineSpec(
    "qwen3-asr-official",
    "asr",
    "the official Qwen3-ASR",
    "offhook.pipeline.engines.official.recognizer_io:OfficialRecognizer",
    own_environment="qwen_asr",
    settings=frozenset({"python", "aligner"}),
    model="Qwen/Qwen3-ASR-0.6B",
    languages=tuple(NAMES),
    attribution=QWEN,
)
QWEN3_TTS_OFFICIAL = EngineSpec(
    "qwen3-tts-official",
    "tts",
    "the official Qwen3-TTS",
    "offhook.pipeline.engines.official.synthesizer_io:OfficialSynthesizer",
    own_environment="qwen_tts",
    settings=frozenset({"python"}),
    model="Qwen/Qwen3-TTS-12Hz-0.6B-CustomVoice",
    attribution=QWEN,
)
