"""Qwen3-ASR."""

from typing import Literal

from offhook.pipeline.speech.engine_spec import (
    GPU_WORKER_MB,
    ON_GPU,
    SITE,
    TORCH_PACKAGES,
    Attribution,
    Cost,
    EngineSpec,
    Need,
    OnGpu,
    PublishedModel,
    Setting,
)
from offhook.pipeline.speech.streams.languages import NAMES

LANGUAGES = tuple(NAMES)
SETTINGS = (
    Setting(
        "CUDA graphs",
        "on: every stage at every size, captured before the first call",
        "a decode step of one stream 1.0 instead of 6.0 ms, of 32 1.5 instead of 6.7",
    ),
    Setting(
        "warm-up",
        "over every size, and with noise as loud as speech, before the first call",
        "the first update of 32 streams takes 11 instead of 834 ms",
    ),
    Setting(
        "attention",
        "kernels of its own (Triton), over pages and packed windows",
        "1.1 times as fast as torch's SDPA over full windows, 1.3 times over mixed ones",
    ),
    Setting(
        "torch.compile",
        "off: the kernels are fused by hand",
        "it makes an encoder layer 7 % faster, a decoder layer 17 % slower",
    ),
    Setting(
        "TF32",
        "off: the filters of the mel are the only fp32 product, all else is bf16",
        "no effect",
    ),
    Setting("cudnn.benchmark", "off", "no effect"),
    Setting(
        "copies",
        "from page-locked buffers that take turns, not waited for",
        "32 s of sound 0.03 instead of 0.08 ms",
    ),
    Setting("inference thread", "one of its own", "a hand-over and back 21 instead of 38 µs"),
    Setting(
        "garbage collection",
        "frozen after warm-up; no collection or empty_cache per update",
        "an update 3.5 instead of 44 ms",
    ),
    Setting("CPU threads", "1 beside the inference thread's own", "no effect"),
    Setting(
        "ONNX Runtime, TensorRT",
        "not used",
        "not measured; an encoder four times as fast would save 6 or 7 % of an update",
    ),
)


def _model(
    name: str, bytes: int, revision: str, does: Literal["asr", "word times"] = "asr"
) -> PublishedModel:
    name, hears = f"Qwen/{name}", does == "asr"
    return PublishedModel(
        *(name, "qwen3-asr", does, LANGUAGES if hears else (), "Apache-2.0", revision, bytes, name),
        described="" if hears else "11 languages",
    )


QWEN3_ASR = EngineSpec(
    "qwen3-asr",
    "asr",
    "Qwen3-ASR",
    "offhook.pipeline.engines.qwen3_asr.recognizer_io:Qwen3Recognizer",
    packages=TORCH_PACKAGES,
    make="qwen",
    settings=frozenset({"final_model", "aligner", "precision"}),
    model="Qwen/Qwen3-ASR-0.6B",
    models=(
        _model("Qwen3-ASR-0.6B", 1_876_091_704, "5eb144179a02acc5e5ba31e748d22b0cf3e303b0"),
        _model("Qwen3-ASR-0.6B-hf", 1_564_928_088, "7f1569a48a89f3e3f4dc3a5c9d28bddd903bc76c"),
        _model(
            *("Qwen3-ASR-1.7B", 4_220_320_824 + 478_200_688),
            "7278e1e70fe206f11671096ffdd38061171dd6e5",
        ),
        _model("Qwen3-ASR-1.7B-hf", 4_076_193_080, "bcd2b5b7f32b480ab5790554cfa8347f246a14f3"),
        _model(
            *("Qwen3-ForcedAligner-0.6B", 1_835_544_544),
            *("c7cbfc2048c462b0d63a45797104fc9db3ad62b7", "word times"),
        ),
        _model(
            *("Qwen3-ForcedAligner-0.6B-hf", 1_835_545_960),
            *("c07281df297b9905d24a508279258cccf987a064", "word times"),
        ),
    ),
    languages=LANGUAGES,
    needs=(Need(gpu_gib=8),),
    costs=(
        Cost("GPU", 450, ON_GPU, "1.7B", GPU_WORKER_MB),
        Cost("GPU", 700, ON_GPU, "", GPU_WORKER_MB),
    ),
    on_gpu=OnGpu(
        "offhook.pipeline.engines.qwen3_asr.gpu:size",
        "streams",
        "on a CPU a few callers at once are heard",
        SETTINGS,
        "offhook bench asr --parts settings",
    ),
    attribution=Attribution("Qwen", f"{SITE}/Qwen"),
)
