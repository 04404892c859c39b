"""Qwen3-TTS."""

from offhook.pipeline.speech.engine_spec import (
    GPU_WORKER_MB,
    ON_GPU,
    SITE,
    SOCKETS,
    TEXT_PACKAGES,
    TORCH_PACKAGES,
    Attribution,
    Cost,
    EngineSpec,
    Need,
    OnGpu,
    PublishedModel,
)

LANGUAGES = ("zh", "en", "ja", "ko", "de", "fr", "ru", "pt", "es", "it")
CODEC_BYTES = 682_293_092
"""Of the weights in `speech_tokenizer`."""
USUAL = "Qwen/Qwen3-TTS-12Hz-0.6B-CustomVoice"


def _model(name: str, talker_bytes: int, revision: str) -> PublishedModel:
    name, bytes = f"Qwen/Qwen3-TTS-12Hz-{name}", talker_bytes + CODEC_BYTES
    return PublishedModel(
        *(name, "qwen3-tts", "tts", LANGUAGES, "Apache-2.0", revision, bytes, name)
    )


QWEN3_TTS = EngineSpec(
    "qwen3-tts",
    "tts",
    "Qwen3-TTS",
    "offhook.pipeline.engines.qwen3_tts.synthesizer_io:Qwen3Synthesizer",
    packages=TORCH_PACKAGES + TEXT_PACKAGES,
    make="qwen",
    model=USUAL,
    models=(
        _model("0.6B-CustomVoice", 1_811_626_576, "85e237c12c027371202489a0ec509ded67b5e4b5"),
        _model("0.6B-Base", 1_829_344_272, "5d83992436eae1d760afd27aff78a71d676296fc"),
        _model("1.7B-CustomVoice", 3_833_402_552, "0c0e3051f131929182e2c023b9537f8b1c68adfe"),
        _model("1.7B-VoiceDesign", 3_833_402_552, "5ecdb67327fd37bb2e042aab12ff7391903235d3"),
        _model("1.7B-Base", 3_857_413_744, "fd4b254389122332181a7c3db7f27e918eec64e3"),
    ),
    needs=(Need(dict.fromkeys(LANGUAGES, USUAL), gpu_gib=8),),
    costs=(
        Cost("GPU", 1440, ON_GPU, "1.7B", GPU_WORKER_MB, SOCKETS),
        Cost("GPU", 1500, ON_GPU, "", GPU_WORKER_MB, SOCKETS),
    ),
    on_gpu=OnGpu(
        "offhook.pipeline.engines.qwen3_tts.gpu:size",
        "voices at once",
        "on a CPU a second of speech takes many",
    ),
    cloning_model="Qwen/Qwen3-TTS-12Hz-0.6B-Base",
    attribution=Attribution("Qwen", f"{SITE}/Qwen"),
)
