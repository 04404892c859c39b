"""One voice, and every stage by itself: `frame` of `offhook bench tts`, see there."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from benchmarks.recognition.stages import ARITHMETIC, BANDWIDTH, by_kernel, gpu_ms
from benchmarks.speech.texts import Talk, even_words
from benchmarks.table import Table, percentile
from benchmarks.voices.listening import Tally
from benchmarks.voices.tts_load import Reply, Serving, serve
from benchmarks.voices.tts_parts import heat
from benchmarks.voices.tts_peers import PeerFailed, official_frame_ms
from benchmarks.voices.tts_runners import Machine, new_voice, usual_voices
from offhook.pipeline.engines.qwen3_tts.model.codec import DILATIONS, TAPS, WIDENING, CodecConfig
from offhook.pipeline.engines.qwen3_tts.model.config import TtsConfig
from offhook.pipeline.engines.qwen3_tts.prompts import VoicePrompt
from offhook.pipeline.engines.qwen3_tts.runner import MAX_CODEC_FRAMES, TtsRunner
from offhook.pipeline.engines.shared.pages import PAGE_SIZE
from offhook.pipeline.engines.shared.qwen3.config import DecoderConfig
from offhook.pipeline.engines.shared.synthesis.messages import (
    FRAME_S,
    PIECE_FRAMES,
    Piece,
    Prompt,
    PromptPosition,
    Sampling,
    Step,
)

CONTEXT_PAGES = 4
"""KV cache of each stream when steps are timed: 20 s of speech."""
PREFIX_ROWS = 10
PAUSE_S = 0.03
"""Between two starts: nothing is under way."""
LOOP_WORDS = 60


# --- the least it can take ---


@dataclass(frozen=True)
class Floor:
    """bf16 weights read once for a batch, keys and values once for each stream, multiplications at
    the full rate."""

    weights: float
    """Numbers read in any case."""
    products: float
    """Multiplications of each stream."""
    cached: float = 0.0
    """Numbers of each stream."""

    def ms(self, streams: int) -> float:
        read = 2 * (self.weights + self.cached * streams) / BANDWIDTH
        return 1000 * max(read, 2 * self.products * streams / ARITHMETIC)


def _body(c: DecoderConfig) -> int:
    """Weights of its layers."""
    heads = (2 * c.heads + 2 * c.kv_heads) * c.head_dim
    return c.layers * (c.hidden_size * heads + 3 * c.hidden_size * c.ffn)


def step_floor(config: TtsConfig) -> Floor:
    """Of a frame: the talker once, the predictor for each of the other codebooks, as its weights
    are more than the cache of the GPU holds."""
    t, p = config.talker, config.predictor
    talker = _body(t) + config.codec_vocab * t.hidden_size
    times = config.codebooks - 1
    head = config.codebook_size * p.hidden_size
    projection = t.hidden_size * p.hidden_size if p.hidden_size != t.hidden_size else 0
    weights = talker + projection + times * (_body(p) + head)
    cached = 2 * t.layers * t.kv_heads * t.head_dim * CONTEXT_PAGES * PAGE_SIZE
    # Its first forward has two positions.
    return Floor(weights, weights + _body(p), cached)


def codec_floor(c: CodecConfig, frames: int) -> Floor:
    layers = c.layers * (4 * c.hidden_size * c.heads * c.head_dim + 3 * c.hidden_size * c.ffn)
    # Embedding, first convolution and both projections are multiplied out when it is loaded.
    weights = products = layers
    rate, inputs = 1, c.hidden_size
    for ratio in c.upsampling_ratios:
        # A transposed convolution of `ratio` taps, then ConvNeXt.
        wide = ratio * inputs * c.latent_dim
        block = 2 * WIDENING * c.latent_dim**2 + TAPS * c.latent_dim
        weights += wide + block
        products += rate * wide + rate * ratio * block
        rate, inputs = rate * ratio, c.latent_dim
    channels = c.decoder_dim
    weights += TAPS * c.latent_dim * channels
    products += rate * TAPS * c.latent_dim * channels
    for ratio in c.upsample_rates:
        narrow = channels // 2
        wide = channels * narrow * 2 * ratio
        residual = len(DILATIONS) * (TAPS + 1) * narrow**2
        weights += wide + residual
        products += rate * wide + rate * ratio * residual
        rate, channels = rate * ratio, narrow
    weights += TAPS * channels
    products += rate * TAPS * channels
    cached = 2 * c.layers * c.window * c.heads * c.head_dim
    return Floor(weights, products * frames, cached)


# --- stages ---


def wall_ms(run: Callable[[], Any], repeats: int) -> float:
    """Median of a call, with everything."""
    times = []
    for _ in range(repeats + 2):
        began = time.perf_counter()
        run()
        times.append(1000 * (time.perf_counter() - began))
    return percentile(times[2:], 50)


def steps_of(runner: TtsRunner, streams: int) -> list[Step]:
    """A frame of each, with CONTEXT_PAGES of the cache before it."""
    for slot in range(1, streams + 1):
        first = 1 + (slot * CONTEXT_PAGES) % max(1, runner.pages - CONTEXT_PAGES)
        runner.assign(slot, range(first, first + CONTEXT_PAGES))
        runner.begin(slot, slot, Sampling())
    position = CONTEXT_PAGES * PAGE_SIZE - 1
    return [Step(slot, 0, 0, position) for slot in range(1, streams + 1)]


def _stepped(runner: TtsRunner, steps: Sequence[Step]) -> None:
    runner.step(steps)()


def stages(machine: Machine, repeats: int, kernels: int, as_json: bool) -> None:
    runner = machine.runner
    assert runner is not None
    columns = (
        "streams step_ms step_floor_ms step_wall_ms codec_1_ms codec_2_ms codec_4_ms codec_8_ms "
        "codec_1_floor_ms codec_8_floor_ms"
    )
    note = (
        "ms of the GPU for a frame of each stream, replayed alone; codec: for so many frames of "
        "each. floor: weights read once at 4.3 TB/s, products at 790 TFLOP/s"
    )
    table = Table("stages", note, columns, as_json)
    step_least = step_floor(machine.config)
    codec_least = {n: codec_floor(runner.codec.config, n) for n in PIECE_FRAMES}
    for streams, _ in machine.cost.steps:
        steps = steps_of(runner, streams)
        row = {
            "streams": streams,
            "step_wall_ms": wall_ms(partial(_stepped, runner, steps), repeats),
            "step_ms": gpu_ms(runner.step_stage, repeats),
            "step_floor_ms": step_least.ms(streams),
            "codec_1_floor_ms": codec_least[1].ms(streams),
            "codec_8_floor_ms": codec_least[8].ms(streams),
        }
        for frames, stage in runner.codec_stages.items():
            if streams * frames <= MAX_CODEC_FRAMES:  # else it is several launches
                runner.decode([Piece(s.slot, 0, frames) for s in steps])()
                row[f"codec_{frames}_ms"] = gpu_ms(stage, repeats)
        table.row(**row)
        _kernels(runner, streams, kernels, as_json)
    _prefill(runner, repeats, as_json)


def _kernels(runner: TtsRunner, streams: int, most: int, as_json: bool) -> None:
    """Which kernels of a step and of the codec take longest."""
    for name, stage in (("step", runner.step_stage), ("codec", runner.codec_stages[1])):
        rows = by_kernel(stage, most)
        if rows:
            title = f"{name} of {streams}"
            table = Table(
                title, "kernels in a graph, replayed alone", "ms launches kernel", as_json
            )
            for row in rows:
                table.row(**row)


def _prefill(runner: TtsRunner, repeats: int, as_json: bool) -> None:
    """What a stream needs before its first frame."""
    runner.assign(1, [1, 2])
    rows = [PromptPosition(i, i) for i in range(PREFIX_ROWS)]
    runner.prefill([Prompt(1, 0, rows)])
    runner.copy([1], [2])
    runner.synchronize()
    note = f"ms of the GPU: a voice's prefix of {PREFIX_ROWS} rows, and its copy for a hot voice"
    Table("prefix", note, "prefill_ms copy_ms", as_json).row(
        prefill_ms=gpu_ms(runner.prefill_stage, repeats),
        copy_ms=gpu_ms(runner.copy_stage, repeats),
    )


# --- one voice ---


def one_voice(machine: Machine, repeats: int, peers: str | None, as_json: bool) -> None:
    runner = machine.runner
    assert runner is not None
    table = Table("frame", "ms for 80 ms of one voice", "ms of_real_time what", as_json)

    def row(what: str, ms: float) -> None:
        table.row(what=what, ms=ms, of_real_time=ms / 1000 / FRAME_S)

    steps = steps_of(runner, 1)
    pieces = [Piece(1, 0, 1)]

    def both() -> None:
        step, sound = runner.step(steps), runner.decode(pieces)
        step()
        sound()

    both()
    step_least, codec_least = step_floor(machine.config), codec_floor(runner.codec.config, 1)
    row("step, GPU", gpu_ms(runner.step_stage, repeats))
    row("step, floor", step_least.ms(1))
    row("codec, GPU", gpu_ms(runner.codec_stages[1], repeats))
    row("codec, floor", codec_least.ms(1))
    row("step, launched and awaited", wall_ms(partial(_stepped, runner, steps), repeats))
    row("step and codec, launched and awaited", wall_ms(both, repeats))
    row("engine in its loop, not paced", _loop_ms(machine))
    if peers is not None:
        try:
            row("official package without codec, eager", official_frame_ms(machine.model, peers))
        except PeerFailed as error:
            table.row(what=f"official package: {error}")


def _loop_ms(machine: Machine) -> float:
    voice = usual_voices(machine.config)[0]
    with serve(machine) as serving:
        heat(serving, [voice])
        reply = Reply(serving, Tally(), live=False)
        reply.say(voice, even_words(LOOP_WORDS, LOOP_WORDS, machine.config))
        serving.run(60.0, lambda: reply.over)
    if reply.ended is None:
        return float("nan")
    return 1000 * (reply.ended - reply.asked) / reply.listener.frames


# --- from text to sound ---


def starts(machine: Machine, count: int, as_json: bool) -> None:
    columns = "voice starts prefix_rows first_p50_ms first_p95_ms engine_p50_ms engine_p95_ms"
    note = (
        "from a whole text to its first 80 ms of sound, nobody else there. hot: the voice was "
        "heard before; cold: never. first: as its client has it; engine: in the inference thread"
    )
    table = Table("first sound", note, columns, as_json)
    config = machine.config
    hot = usual_voices(config)[0]
    for name in ("hot", "cold"):
        voices = [hot if name == "hot" else new_voice(config, i) for i in range(count)]
        with serve(machine) as serving:
            heat(serving, [hot])
            tally = _starts(serving, voices)
        table.row(
            voice=name,
            starts=len(tally.first_ms),
            prefix_rows=_mean([len(voice.rows) for voice in voices]),
            first_p50_ms=percentile(tally.first_ms, 50),
            first_p95_ms=percentile(tally.first_ms, 95),
            engine_p50_ms=percentile(tally.engine_ms, 50),
            engine_p95_ms=percentile(tally.engine_ms, 95),
        )


def _starts(serving: Serving, voices: Sequence[VoicePrompt]) -> Tally:
    tally = Tally()
    talk = Talk(serving.machine.config, 3)
    for voice in voices:
        reply = Reply(serving, tally)
        reply.say(voice, talk.sentence())
        serving.run(10.0, partial(_begun, reply))
        reply.cancel()
        serving.run(PAUSE_S)
    return tally


def _begun(reply: Reply) -> bool:
    return reply.first is not None


def _mean(values: Sequence[int]) -> float:
    return sum(values) / len(values)
