"""Workers whose models have random weights of the real size, for benchmarks through sockets.

    python -m benchmarks.engines.random_workers asr|tts|nemotron --model 0.6B|1.7B|tiny \\
        --listen HOST:PORT [--max-streams N] [--memory-share SHARE]

asr         Qwen3-ASR; the tokens of a text are scripted (see engine/asr/simulated.py)
tts         Qwen3-TTS; a token takes 3.5 frames of 80 ms to say (see tts_runners.Planned), and its
            sound is noise
nemotron    Nemotron, in 0.6B or tiny; its labels are scripted (see engine/nemotron/simulated.py)

Everything else is `offhook worker`: routes, admission, engines, CUDA graphs. A JSON line on
standard output gives the address when the worker listens, and another says when it has loaded. The
model tiny is as large as a test needs, and runs on a CPU. A simulated voice has noise for sound
and takes as long as a cost model says, without a GPU: for what Python takes around it.
"""

import argparse
import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from time import monotonic
from typing import TYPE_CHECKING, Any

from loguru import logger

from offhook.media.tasks_io import first_of
from offhook.pipeline.engines.shared.asr_models import AsrModels
from offhook.pipeline.engines.shared.capacity import SHARED
from offhook.pipeline.engines.shared.tts_models import NO_CACHE, TtsModels
from offhook.pipeline.speech.recognizer import Progress, Recognizer
from offhook.pipeline.speech.synthesizer import Synthesizer
from offhook.web.config.config import Log
from offhook.web.http.listening_io import Address, Runner, listener
from offhook.web.http.logs_io import set_up
from offhook.web.http.stop_io import Stop
from offhook.web.speech_api.sockets.engine_metrics import AsrMetrics, TtsMetrics
from offhook.web.workers.worker_io import Worker, WorkerSettings, run_to_end, serve

if TYPE_CHECKING:
    from offhook.pipeline.engines.nemotron.model.model import NemotronConfig
    from offhook.pipeline.engines.qwen3_asr.model.model import AsrConfig

ENGINES = {"asr": "qwen3-asr", "tts": "qwen3-tts", "nemotron": "nemotron"}
SIMULATED_BUCKETS = (64, 256, 512, 1024)
"""Sizes of a simulated voice's steps."""
MODELS = ("0.6B", "1.7B", "tiny", "simulated")


def asr_config(model: str) -> "AsrConfig":
    from offhook.pipeline.engines.qwen3_asr.model.model import (
        QWEN3_ASR_0_6B,
        QWEN3_ASR_1_7B,
        AsrConfig,
        AsrDecoderConfig,
        EncoderConfig,
    )

    tiny = AsrConfig(
        EncoderConfig(d_model=32, layers=2, heads=2, ffn=48, output_dim=24, conv_channels=8),
        AsrDecoderConfig(24, 40, layers=2, heads=2, kv_heads=1, head_dim=16),
    )
    return {"0.6B": QWEN3_ASR_0_6B, "1.7B": QWEN3_ASR_1_7B, "tiny": tiny}[model]


def qwen3_asr(models: AsrModels, size: str, progress: Progress) -> Recognizer:
    from offhook.pipeline.engines.qwen3_asr.engine import Tokenizer
    from offhook.pipeline.engines.qwen3_asr.gpu import RecognitionPlan
    from offhook.pipeline.engines.qwen3_asr.loading_io import Loading
    from offhook.pipeline.engines.qwen3_asr.model.checkpoint import random_model
    from offhook.pipeline.engines.qwen3_asr.model.model import Qwen3Asr
    from offhook.pipeline.engines.qwen3_asr.recognizer_io import Qwen3Recognizer
    from offhook.pipeline.engines.qwen3_asr.simulated import (
        SimulatedRunner,
        Simulation,
        WordTokenizer,
    )
    from offhook.pipeline.engines.shared.capacity import MAX_FILES
    from offhook.pipeline.speech.streams.speech_gate_io import GatedRecognizer

    class RandomLoading(Loading):
        def _read(self, name: str) -> tuple[Qwen3Asr, Tokenizer]:
            return random_model(asr_config(size), self.device, self._dtype), WordTokenizer()

        def _runner(
            self, model: Qwen3Asr, tokenizer: Tokenizer, plan: RecognitionPlan, alone: bool
        ) -> SimulatedRunner:
            assert isinstance(tokenizer, WordTokenizer)
            slots = plan.streams + MAX_FILES
            return SimulatedRunner(model, slots, plan.pages, tokenizer, Simulation())

    class RandomQwen3(Qwen3Recognizer):
        loading = RandomLoading

    return GatedRecognizer(RandomQwen3(models, progress))


def nemotron(config: "NemotronConfig", models: AsrModels, progress: Progress) -> Recognizer:
    import torch

    from offhook.pipeline.engines.nemotron.model.checkpoint import random_model
    from offhook.pipeline.engines.nemotron.model.model import Nemotron
    from offhook.pipeline.engines.nemotron.recognizer_io import NemotronRecognizer
    from offhook.pipeline.engines.nemotron.runner import NemotronRunner
    from offhook.pipeline.engines.nemotron.simulated import (
        SimulatedLabels,
        SimulatedNemotron,
        Speech,
    )
    from offhook.pipeline.engines.nemotron.utterance import LabelText
    from offhook.pipeline.speech.streams.speech_gate_io import GatedRecognizer

    class RandomNemotron(NemotronRecognizer):
        def _read(self, dtype: torch.dtype) -> tuple[Nemotron, LabelText]:
            model = random_model(config, self._device, dtype, int8=self._int8)
            return model, SimulatedLabels()

        def _runner(self, model: Nemotron, streams: int) -> NemotronRunner:
            return SimulatedNemotron(model, streams, Speech())

    return GatedRecognizer(RandomNemotron(models, progress))


def nemotron_config(model: str) -> "NemotronConfig":
    """Raises ValueError for 1.7B, which Nemotron does not have."""
    from offhook.pipeline.engines.nemotron.model.checkpoint import NEMOTRON_0_6B
    from offhook.pipeline.engines.nemotron.model.model import EncoderConfig

    if model == "1.7B":
        raise ValueError("Nemotron has 0.6B parameters")
    if model == "0.6B":
        return NEMOTRON_0_6B
    encoder = EncoderConfig(hidden_size=32, layers=2, heads=2, ffn=48, subsampling_channels=8)
    return replace(NEMOTRON_0_6B, encoder=encoder, predictor_size=24)


def qwen3_tts(models: TtsModels, size: str, progress: Progress) -> Synthesizer:
    import torch

    from benchmarks.speech.word_tokenizer import WordTokenizer
    from benchmarks.voices.tts_runners import MODELS, Planned, codec_config, ready
    from offhook.pipeline.engines.qwen3_tts.engine import TtsEngine
    from offhook.pipeline.engines.qwen3_tts.loading_io import TtsLoading
    from offhook.pipeline.engines.qwen3_tts.model.checkpoint import random_model
    from offhook.pipeline.engines.qwen3_tts.model.codec import Codec
    from offhook.pipeline.engines.qwen3_tts.model.codec_weights import random_codec
    from offhook.pipeline.engines.qwen3_tts.runner import TtsRunner
    from offhook.pipeline.engines.qwen3_tts.synthesizer_io import Qwen3Synthesizer
    from offhook.pipeline.engines.shared.synthesis.messages import EngineEvent, RunnerProtocol

    class SimulatedLoading(TtsLoading):
        def load(self, tell: Callable[[EngineEvent], None]) -> TtsEngine:
            machine = ready("0.6B", SIMULATED_BUCKETS, 0, True, progress)
            self.config, self.encode = machine.config, None
            self.tokenizer = WordTokenizer(self.config)
            self.model = None  # type: ignore[assignment]  # for clones only
            return machine.engine(tell, monotonic)

    class RandomLoading(TtsLoading):
        def _read(self) -> Codec:
            self.config = MODELS[size]
            self.tokenizer = WordTokenizer(self.config)
            self.encode = None
            with torch.inference_mode():
                self.model = random_model(self.config, self.device, self._dtype)
                return random_codec(codec_config(size), self.device, self._codec_dtype)

        def _driven(self, runner: TtsRunner) -> RunnerProtocol:
            return Planned(runner, self.config)

    class RandomQwen3(Qwen3Synthesizer):
        loading = SimulatedLoading if size == "simulated" else RandomLoading

    return RandomQwen3(models, progress)


def worker(
    kind: str, model: str, settings: WorkerSettings, memory_share: float = SHARED
) -> Worker[Any]:
    """Returns a worker of the kind asr, tts or nemotron. Raises ValueError for a model that there
    is not."""
    most, name = settings.max_streams, settings.model
    if kind == "tts":
        voice = TtsModels(name, audio_cache=NO_CACHE, max_streams=most, memory_share=memory_share)
        return Worker(settings, lambda told: qwen3_tts(voice, model, told), TtsMetrics())
    models = AsrModels(name, max_streams=most, memory_share=memory_share)
    if kind == "asr":
        return Worker(settings, lambda told: qwen3_asr(models, model, told), AsrMetrics())
    config = nemotron_config(model)
    return Worker(settings, lambda told: nemotron(config, models, told), AsrMetrics())


def say(**fields: Any) -> None:
    print(json.dumps(fields), flush=True)


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.engines.random_workers",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("kind", choices=tuple(ENGINES))
    parser.add_argument("--model", choices=MODELS, default="0.6B")
    parser.add_argument("--listen", default="127.0.0.1:7870", metavar="HOST:PORT")
    parser.add_argument("--max-streams", type=int, default=0, metavar="N")
    parser.add_argument("--fronts", type=int, metavar="N", help="by the streams and cores")
    parser.add_argument("--memory-share", type=float, default=SHARED, metavar="SHARE")
    parser.add_argument("--drain-seconds", type=float, default=0.0)
    parser.add_argument("--log-level", default="INFO")
    a = parser.parse_args(argv)
    set_up(Log.model_validate({"level": a.log_level}))
    address = Address.parse(a.listen)
    settings = WorkerSettings(
        ENGINES[a.kind],
        f"random weights, {a.model}",
        a.max_streams,
        drain_seconds=a.drain_seconds,
        local=address.local,
        audio_cache=NO_CACHE,
        fronts=a.fronts,
    )

    async def work() -> None:
        stop = Stop()
        stop.on_signals()
        serving = worker(a.kind, a.model, settings, a.memory_share)

        async def listen(runner: Runner) -> str:
            where = await listener(address)(runner)
            say(listening=where)
            return where

        async def tell_ready() -> None:
            await serving.loading
            say(ready=True)
            await stop.end.wait()

        await first_of(serve(serving, listen, stop), tell_ready())

    if not address.local:
        logger.warning("anyone who can reach this worker may use it")
    run_to_end(work())


if __name__ == "__main__":
    main()
