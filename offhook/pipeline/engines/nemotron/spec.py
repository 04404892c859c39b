"""Nemotron streaming."""

from offhook.pipeline.speech.engine_spec import (
    ANY,
    GPU_WORKER_MB,
    IN_CALLS,
    ON_GPU,
    SITE,
    SOCKETS,
    TORCH_PACKAGES,
    WITHOUT_VNNI,
    Attribution,
    Cost,
    EngineSpec,
    Need,
    OnGpu,
    PublishedModel,
)

ENGLISH = "nvidia/nemotron-speech-streaming-en-0.6b"
LOCALES = "nvidia/nemotron-3.5-asr-streaming-0.6b"

NEMOTRON = EngineSpec(
    "nemotron",
    "asr",
    "Nemotron",
    "offhook.pipeline.engines.nemotron.recognizer_io:NemotronRecognizer",
    packages=TORCH_PACKAGES,
    make="qwen",
    settings=frozenset({"precision", "max_batch_latency_ms"}),
    model=ENGLISH,
    models=(
        PublishedModel(
            *(ENGLISH, "nemotron", "asr", ("en",), "NVIDIA Open Model License"),
            *("ebe59e5a817142986528bbbee5dba8db7b38ed50", 2_472_413_604, ENGLISH),
        ),
        PublishedModel(
            *(LOCALES, "nemotron", "asr", (), "OpenMDW-1.1"),
            *("ea30d66debe3740a08b573244286791d423d6b3e", 2_552_062_944, LOCALES),
            described="40 locales",
        ),
    ),
    needs=(Need({"en": ENGLISH, ANY: LOCALES}, memory_gib=3, cores=4, cores_with_vnni=2),),
    costs=(
        Cost("GPU", 1500, ON_GPU, memory_mb=GPU_WORKER_MB, process_streams=SOCKETS),
        Cost("core", 1 / 0.15, IN_CALLS, memory_mb=1440, vnni=True),
        Cost("core", 1 / 0.36, WITHOUT_VNNI, memory_mb=1440),
    ),
    on_gpu=OnGpu(
        "offhook.pipeline.engines.nemotron.gpu:size",
        "streams",
        "on a CPU a few callers at once are heard",
    ),
    attribution=Attribution("NVIDIA", f"{SITE}/nvidia"),
    traits=frozenset({"appends"}),
)
