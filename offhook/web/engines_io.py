"""Which engines the configuration names."""

from dataclasses import replace
from importlib.util import find_spec
from typing import Literal

from loguru import logger

from offhook.pipeline.engine.asr_models import AsrModels
from offhook.pipeline.espeak_io import EspeakSynthesizer
from offhook.pipeline.flite_io import FliteSynthesizer
from offhook.pipeline.pocketsphinx_io import PocketSphinxRecognizer
from offhook.pipeline.recognizer import EngineError, Progress, Recognizer
from offhook.pipeline.synthesizer import Synthesizer

AsrEngine = Literal["pocketsphinx", "qwen3-asr"]
ASR_MODELS: dict[AsrEngine, str] = {
    "pocketsphinx": "en-us",
    "qwen3-asr": "Qwen/Qwen3-ASR-0.6B",
}
"""What is loaded unless another model is named."""
QWEN3_PACKAGES = ("torch", "safetensors", "tokenizers", "huggingface_hub")
"""What Qwen3-ASR needs beyond requirements.lock; the extra `qwen` of pyproject.toml."""


def check_recognizer(engine: AsrEngine) -> None:
    """Whether what the engine needs is installed, without loading it. Raises EngineError."""
    missing = [name for name in QWEN3_PACKAGES if find_spec(name) is None]
    if engine == "qwen3-asr" and missing:
        raise EngineError(
            f"Qwen3-ASR needs {', '.join(missing)}, not installed here: pip install "
            f"{' '.join(missing)}, or set [engines] asr_url to a worker on a machine that has them"
        )


def with_usual_model(engine: AsrEngine, models: AsrModels) -> AsrModels:
    return replace(models, model=models.model or ASR_MODELS[engine])


def open_recognizer(
    engine: AsrEngine,
    models: AsrModels,
    progress: Progress = lambda fraction, doing: None,
) -> Recognizer:
    """A recogniser of this process, not started yet. Raises EngineError. Takes seconds when it
    imports torch."""
    check_recognizer(engine)
    models = with_usual_model(engine, models)
    if engine == "qwen3-asr":
        progress(0.0, "importing torch")
        from offhook.pipeline.engine.affinity_io import cap_threads

        cap_threads()
        from offhook.pipeline.engine.asr_io import Qwen3Recognizer

        return Qwen3Recognizer(models, progress)
    if models.model != ASR_MODELS[engine]:
        known = ASR_MODELS[engine]
        raise EngineError(f"PocketSphinx has the model {known} only, not {models.model}")
    return PocketSphinxRecognizer()


async def open_synthesizer(wanted: str) -> Synthesizer:
    """`flite`, `espeak`, or `auto`: Flite where its library is, else eSpeak NG. Raises
    EngineError."""
    if wanted != "espeak":
        flite = FliteSynthesizer()
        try:
            await flite.start()
            return flite
        except EngineError as error:
            if wanted == "flite":
                raise
            logger.warning("{}; eSpeak NG speaks instead", error)
    espeak = EspeakSynthesizer()
    await espeak.start()
    return espeak
