"""What the benchmark's engine runs on: the model with random weights at the real dimensions, or a
simulation that takes as long as a cost model says; and voices for it.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from benchmarks.speech.texts import frames_of
from benchmarks.speech.word_tokenizer import WordTokenizer
from offhook.media.pcm import Pcm
from offhook.pipeline.engines.qwen3_tts.engine import TtsEngine
from offhook.pipeline.engines.qwen3_tts.gpu import (
    CODEC_FRAMES,
    PAGES_PER_VOICE,
    PREFIX_PAGES,
    synthesis_plan,
)
from offhook.pipeline.engines.qwen3_tts.loading_io import measured_cost, voices_followed
from offhook.pipeline.engines.qwen3_tts.model.checkpoint import random_model
from offhook.pipeline.engines.qwen3_tts.model.codec import QWEN3_CODEC, CodecConfig
from offhook.pipeline.engines.qwen3_tts.model.codec_weights import random_codec
from offhook.pipeline.engines.qwen3_tts.model.config import (
    QWEN3_TTS_0_6B,
    QWEN3_TTS_1_7B,
    TtsConfig,
)
from offhook.pipeline.engines.qwen3_tts.prompts import (
    VoicePrompt,
    follows_instructions,
    named_voice,
)
from offhook.pipeline.engines.qwen3_tts.runner import TtsRunner
from offhook.pipeline.engines.qwen3_tts.segment_prefill import PREFIX_SLOTS
from offhook.pipeline.engines.qwen3_tts.simulated import Simulated, SimulatedRunner
from offhook.pipeline.engines.shared.capacity import ALONE
from offhook.pipeline.engines.shared.device_io import (
    choose_device,
    claim_thread,
    dtype_of,
    memory_budget,
)
from offhook.pipeline.engines.shared.qwen3.config import DecoderConfig
from offhook.pipeline.engines.shared.synthesis.messages import (
    FRAME_SAMPLES,
    MIN_FRAMES,
    EngineEvent,
    Launched,
    Piece,
    Prompt,
    RunnerProtocol,
    Sampling,
    SpeechCost,
    Step,
)
from offhook.web.http.loop_io import YOUNG_OF_STREAMS, freeze_loaded_objects

_TINY = DecoderConfig(32, 48, layers=2, heads=4, kv_heads=2, head_dim=16)
TINY = replace(
    QWEN3_TTS_1_7B,
    talker=replace(_TINY, hidden_size=48),
    predictor=replace(_TINY, layers=1),
    text_vocab=1024,
    codebook_size=64,
    tts_pad=1000,
    tts_bos=1001,
    tts_eos=1002,
)
"""To see that all of this runs."""
TINY_CODEC = CodecConfig(
    codebook_size=64,
    codebook_dim=16,
    hidden_size=16,
    ffn=24,
    layers=2,
    heads=2,
    head_dim=8,
    window=12,
    latent_dim=16,
    decoder_dim=32,
)
MODELS = {"0.6B": QWEN3_TTS_0_6B, "1.7B": QWEN3_TTS_1_7B, "tiny": TINY}
SIMULATED_MS = {"0.6B": (3.0, 0.02), "1.7B": (4.0, 0.03), "tiny": (1.0, 0.01)}
"""Of a simulated step: for none, and for each stream in it. Nothing measured."""
PROMPT_ROWS = (16, 64, 256, 512)
"""Sizes of prefills that are captured; the engine asks for no more at once."""
NEVER = 1 << 30
NOISE: Pcm = np.random.default_rng(0).normal(0, 3000, 8 * FRAME_SAMPLES).astype(np.int16)
"""Sound of the largest piece: what is done with it takes as long as with speech."""


def codec_config(model: str) -> CodecConfig:
    return TINY_CODEC if model == "tiny" else QWEN3_CODEC


class PlannedCodes:
    """See `speaking.Launched`."""

    def __init__(self, codes: Launched[Sequence[int]], over: Sequence[int], end: int) -> None:
        self.ready = codes.ready
        self._codes = codes
        self._over = over
        self._end = end

    def __call__(self) -> Sequence[int]:
        codes = self._codes()
        end = self._end
        if end in codes:
            codes = [0 if code == end else code for code in codes]
        if self._over:
            codes = list(codes)
            for i in self._over:
                codes[i] = end
        return codes


class Planned:
    """A runner whose model seems to know how long its text takes: the first code that it reports is
    the end in the frame behind `frames_of` the tokens of the segment, and in none before.
    `slots`: as many as it owns up to, its own by default."""

    def __init__(self, runner: RunnerProtocol, config: TtsConfig, slots: int = 0) -> None:
        self.slots = slots or runner.slots
        self.pages, self.ring, self.max_batch = runner.pages, runner.ring, runner.max_batch
        self.assign, self.copy, self.decode = runner.assign, runner.copy, runner.decode
        self._runner = runner
        self._spent, self._end = config.tts_eos, config.codec_eos
        self._ends = [NEVER] * (runner.slots + 1)

    def begin(
        self, slot: int, seed: int, sampling: Sampling, reference: object | None = None
    ) -> None:
        self._ends[slot] = NEVER
        self._runner.begin(slot, seed, sampling, reference)

    def prefill(self, prompts: Sequence[Prompt]) -> None:
        for prompt in prompts:
            if prompt.rows[-1].text == self._spent:  # a whole text before the frames
                self._end_after(prompt.slot, len(prompt.rows) - 1)
        self._runner.prefill(prompts)

    def _end_after(self, slot: int, tokens: int) -> None:
        self._ends[slot] = max(MIN_FRAMES, frames_of(tokens))

    def step(self, steps: Sequence[Step]) -> PlannedCodes:
        ends, spent = self._ends, self._spent
        for slot, text, frame, _ in steps:
            if text == spent:
                self._end_after(slot, frame)
        over = [i for i, (slot, _, frame, _) in enumerate(steps) if frame >= ends[slot]]
        return PlannedCodes(self._runner.step(steps), over, self._end)


class Rehearsing(SimulatedRunner):
    """Without the record that tests read, for it goes on for hours."""

    def step(self, steps: Sequence[Step]) -> Simulated[Sequence[int]]:
        for record in (self.segments, self.batches, self.pieces, self.prefills):
            record.clear()
        return super().step(steps)

    def _sound(self, piece: Piece) -> Pcm:
        super()._sound(piece)
        return NOISE[: piece.count * FRAME_SAMPLES].copy()


@dataclass
class Machine:
    """A model that is ready; engines are made of it one after another."""

    model: str
    config: TtsConfig
    streams: int
    pages: int
    cost: SpeechCost
    runner: TtsRunner | None
    """None: simulated."""

    @property
    def simulated(self) -> bool:
        return self.runner is None

    def engine(
        self, tell: Callable[[EngineEvent], None], clock: Callable[[], float], streams: int = 0
    ) -> TtsEngine:
        """`streams`: at once, instead of all there may be. `clock`: of a simulated runner."""
        runner: RunnerProtocol = self.runner or Rehearsing(
            self.streams + PREFIX_SLOTS,
            self.pages,
            self.cost,
            clock,
            self.config.codec_eos,
            lambda segment: False,
        )
        planned = Planned(runner, self.config, streams and streams + PREFIX_SLOTS)
        return TtsEngine(planned, self.config, self.cost, tell, PREFIX_PAGES)

    def synchronize(self) -> None:
        if self.runner is not None:
            self.runner.synchronize()

    def device_mib(self) -> float:
        """Taken on the device by everybody; nan without a GPU."""
        if self.runner is None or self.runner.device.type != "cuda":
            return float("nan")
        free, total = torch.cuda.mem_get_info()
        return round((total - free) / 2**20, 1)


def ready(
    model: str,
    buckets: Sequence[int],
    most: int,
    simulated: bool,
    progress: Callable[[float, str], None],
) -> Machine:
    """`buckets`: sizes of batches, ascending; kernels are compiled for each, which takes seconds.
    `most`: streams that may speak at once, or as many more as the largest batch has room for."""
    config = MODELS[model]
    streams = max(most, buckets[-1] - PREFIX_SLOTS)
    pages = PAGES_PER_VOICE * streams + PREFIX_PAGES + 1
    if simulated:
        none_ms, each_ms = SIMULATED_MS[model]
        steps = [(n, none_ms + each_ms * n) for n in buckets]
        cost = SpeechCost(steps, 0.5, 0.015, 1.0, 0.01)
        return Machine(model, config, streams, pages, cost, None)
    device = choose_device("auto")
    claim_thread(device)
    dtype = dtype_of(device)
    with torch.inference_mode():
        weights = random_model(config, device, dtype)
        codec = random_codec(codec_config(model), device, dtype)
    frames = CODEC_FRAMES[0]
    if device.type == "cuda":
        room, state = memory_budget(device, ALONE), codec.new_state(1).bytes_per_slot
        plan = synthesis_plan(
            *(room, config, codec.config, state, buckets, PREFIX_SLOTS), most=streams
        )
        streams, pages, frames = plan.streams, plan.pages, plan.codec_frames
        buckets = [n for n in buckets if n <= plan.batch]
    # Fewer sizes than the engine captures when it serves.
    slots = streams + PREFIX_SLOTS
    of = (weights, codec, slots, pages)
    runner = TtsRunner(*of, batches=buckets, prompts=PROMPT_ROWS, codec_frames=frames)
    runner.warm_up(progress)
    cost = measured_cost(runner)
    freeze_loaded_objects(YOUNG_OF_STREAMS)  # as a worker
    return Machine(model, config, streams, pages, cost, runner)


# --- voices ---


def usual_voices(config: TtsConfig) -> list[VoicePrompt]:
    """The model's own, in English."""
    tokenizer = WordTokenizer(config)
    return [named_voice(config, tokenizer, name, "en") for name in sorted(config.speakers)]


def new_voice(config: TtsConfig, number: int) -> VoicePrompt:
    """One that was not heard before: spoken as new instructions say, where the model follows
    any."""
    instructions = f"Speak warmly and without haste, like somebody who has read {number} books."
    name = sorted(config.speakers)[number % len(config.speakers)]
    told = instructions if follows_instructions(config) else ""
    voice = named_voice(config, WordTokenizer(config), name, "en", told)
    return replace(voice, key=("new", number))


def description(machine: Machine) -> dict[str, Any]:
    """Of what was measured on."""
    steps = " ".join(f"{streams}:{ms:.2f}" for streams, ms in machine.cost.steps)
    if machine.runner is None:
        return {"device": "simulated", "step_ms_by_streams": steps}
    device = machine.runner.device
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"
    return {
        "device": name.replace(" ", "_"),
        "torch": torch.__version__,
        "step_ms_by_streams": steps,
        "fit": machine.streams,
        "followed": voices_followed(machine.cost),
        "device_mib": machine.device_mib(),
    }
