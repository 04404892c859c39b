"""The runner on a tiny model: whoever else is served, whatever was there before, a stream's frames
and its sound are those of a plain loop over the model and of the codec taken whole."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

torch = pytest.importorskip("torch")

from torch import Tensor  # noqa: E402

from offhook.media.pcm import Pcm  # noqa: E402
from offhook.pipeline.engines.qwen3_tts.engine import TtsEngine  # noqa: E402
from offhook.pipeline.engines.qwen3_tts.model.codec import Codec  # noqa: E402
from offhook.pipeline.engines.qwen3_tts.model.model import Qwen3Tts  # noqa: E402
from offhook.pipeline.engines.qwen3_tts.packing import codec_batches, cuts, prompt_batches, runs  # noqa: E402
from offhook.pipeline.engines.qwen3_tts.prompts import VoicePrompt  # noqa: E402
from offhook.pipeline.engines.qwen3_tts.runner import REFERENCES, RING, TtsRunner  # noqa: E402
from offhook.pipeline.engines.qwen3_tts.segment_prefill import PREFIX_SLOTS  # noqa: E402
from offhook.pipeline.engines.shared.graphs import Size, Stage  # noqa: E402
from offhook.pipeline.engines.shared.qwen3.body import Batch, KVCache  # noqa: E402
from offhook.pipeline.engines.shared.qwen3.sampling import Draw  # noqa: E402
from offhook.pipeline.engines.shared.synthesis.messages import (  # noqa: E402
    Break,
    EngineEvent,
    Piece,
    Prompt,
    PromptPosition,
    Sampling,
    SpeechCost,
    Spoken,
    Step,
)
from tests.pipeline.engines.qwen3_tts import tiny_tts  # noqa: E402
from tests.pipeline.engines.qwen3_tts.tiny_tts import CODEC  # noqa: E402

SLOTS, PAGES = 5, 24
CONFIG = replace(tiny_tts.CONFIG, kind="base")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Qwen3Tts:
    torch.set_num_threads(1)
    return tiny_tts.model(tiny_tts.write(tmp_path_factory.mktemp("tts"), CONFIG))


@pytest.fixture(scope="module")
def codec() -> Codec:
    return tiny_tts.codec(4)


@pytest.fixture
def runner(model: Qwen3Tts, codec: Codec) -> TtsRunner:
    return TtsRunner(model, codec, SLOTS, PAGES)


@dataclass
class Voice:
    """One stream: what it is told, and what the runner made of it."""

    slot: int
    pages: list[int]
    rows: list[PromptPosition]
    text: list[int]
    seed: int
    sampling: Sampling = field(default_factory=Sampling)
    vectors: Tensor | None = None
    reference: Tensor | None = None
    codes: list[int] = field(default_factory=list)
    pcm: list[Pcm] = field(default_factory=list)

    def begin(self, runner: TtsRunner) -> None:
        runner.assign(self.slot, self.pages)
        runner.begin(self.slot, self.seed, self.sampling, self.reference)

    def prompt(self) -> Prompt:
        return Prompt(self.slot, 0, self.rows, self.vectors)

    def step(self) -> Step:
        frame = len(self.codes)
        return Step(self.slot, self.text[frame], frame, len(self.rows) + frame)


def voice(slot: int, pages: list[int], length: int, frames: int, seed: int) -> Voice:
    rng = np.random.default_rng(seed)
    ids = rng.integers(0, CONFIG.text_vocab, length + frames).tolist()
    rows = [PromptPosition(text, i % 40 if i % 3 else -1) for i, text in enumerate(ids[:length])]
    return Voice(slot, pages, rows, ids[length:], seed)


@torch.inference_mode()
def alone(model: Qwen3Tts, codec: Codec, v: Voice) -> tuple[list[int], Pcm]:
    """The voice's first codes and its sound, by a plain loop; the sound as far as the codes are
    sound."""
    cache = KVCache(CONFIG.talker, 2, 512, "cpu", torch.float32)
    cache.k, cache.v = cache.k[:, 1:], cache.v[:, 1:]
    predictor = model.predictor_cache(1)
    table = torch.zeros(1, 1, dtype=torch.int32)

    def batch(first: int, count: int) -> Batch:
        positions = torch.arange(first, first + count)
        starts = torch.tensor([0, count], dtype=torch.int32)
        lengths = torch.tensor([first + count], dtype=torch.int32)
        return Batch(positions, positions, table, starts, lengths, count)

    text, codec_ids, vector = (torch.tensor(x) for x in zip(*v.rows, strict=True))
    vectors = torch.zeros(len(v.rows), CONFIG.talker.hidden_size)
    if v.vectors is not None:
        vectors[vector >= 0] = v.vectors[vector[vector >= 0]]
    model.talker(model.embed_prompt(text, codec_ids, vectors), batch(0, len(v.rows)), cache)
    s = v.sampling
    seen = torch.zeros(1, CONFIG.codec_vocab, dtype=torch.bool)
    before = model.nothing.clone()
    before[0] = CONFIG.codec_bos
    frames = []
    if v.reference is not None:
        before = v.reference[-1]
    for i, token in enumerate(v.text):
        draw = Draw(
            torch.tensor([v.seed]),
            torch.tensor([i]),
            torch.tensor([s.temperature]),
            torch.tensor([s.top_k]),
            torch.tensor([s.penalty]),
            seen,
            torch.tensor([s.predictor_temperature]),
            torch.tensor([s.predictor_top_k]),
        )
        x = model.embed(before[None], torch.tensor([token]))
        before = model.frame(x, batch(len(v.rows) + i, 1), cache, predictor, draw)[0]
        seen[0, before[0]] = True
        frames.append(before)
    codes = torch.stack(frames)
    heard = codes.clamp(max=CODEC.codebook_size - 1)
    if v.reference is not None:
        heard = torch.cat((v.reference, heard))
    sound = codec.decode(heard.T[None])[0, -1920 * len(frames) :]
    return codes[:, 0].tolist(), (sound * 32767).round().to(torch.int16).numpy()


def serve(runner: TtsRunner, voices: Sequence[Voice]) -> None:
    """Steps of all voices, each beginning one later than the one before; sound in pieces of every
    length, of each as much as there is."""
    for v in voices:
        v.begin(runner)
    runner.prefill([v.prompt() for v in voices])
    turn = 0
    while any(len(v.codes) < len(v.text) for v in voices):
        on = [v for i, v in enumerate(voices) if i <= turn and len(v.codes) < len(v.text)]
        launched = runner.step([v.step() for v in on])
        for v, code in zip(on, launched(), strict=True):
            v.codes.append(code)
        speak(runner, voices, 1 + turn % 8)
        turn += 1
    while any(len(v.codes) > len(v.pcm) for v in voices):
        speak(runner, voices, 8)


def speak(runner: TtsRunner, voices: Sequence[Voice], most: int) -> None:
    pieces = []
    for v in voices:
        left = min(most, len(v.codes) - len(v.pcm))
        if left:
            count = 1 << (left.bit_length() - 1)
            pieces.append((v, Piece(v.slot, len(v.pcm), count)))
    if pieces:
        launched = runner.decode([piece for _, piece in pieces])
        for (v, _), sound in zip(pieces, launched(), strict=True):
            v.pcm += list(sound.reshape(-1, 1920))


def check(model: Qwen3Tts, codec: Codec, v: Voice) -> None:
    codes, pcm = alone(model, codec, v)
    assert v.codes == codes
    near(np.concatenate(v.pcm), pcm)


def near(got: Pcm, want: Pcm) -> None:
    assert got.dtype == np.int16
    assert np.abs(want.astype(int)).max() > 1000  # something is heard
    assert np.abs(got.astype(int) - want.astype(int)).max() <= 2


def test_voices_together_sound_as_each_does_alone(
    runner: TtsRunner, model: Qwen3Tts, codec: Codec
) -> None:
    voices = [
        voice(1, [3, 4], 9, 36, 7),  # once around the ring
        voice(2, [9, 1], 60, 9, 8),  # over the end of a page
        voice(5, [20], 5, 14, 9),
    ]
    voices[1].sampling = Sampling(0.5, 5, 1.3, 1.2, 3)
    serve(runner, voices)
    assert len({tuple(v.codes) for v in voices}) == 3
    for v in voices:
        assert len(set(v.codes)) > 5
        check(model, codec, v)


def test_the_next_segment_of_a_slot_knows_nothing_of_the_one_before(
    runner: TtsRunner, model: Qwen3Tts, codec: Codec
) -> None:
    for seed in range(3):
        v = voice(1, [3, 4], 9, 13 + seed, seed)
        v.sampling = Sampling(penalty=4.0)
        serve(runner, [v])
        check(model, codec, v)


def test_a_cloned_voice_goes_on_where_its_reference_ends(
    runner: TtsRunner, model: Qwen3Tts, codec: Codec
) -> None:
    generator = torch.Generator().manual_seed(1)
    hidden = CONFIG.talker.hidden_size
    voices = []
    for i, length in enumerate((19, 33)):
        v = voice(1 + i, [3 * i + 3, 3 * i + 4], 20, 16, i)
        v.vectors = torch.randn(12, hidden, generator=generator)
        v.rows[4] = PromptPosition(vector=11)
        v.rows[6:10] = [
            PromptPosition(7, -1, 2),
            PromptPosition(-1, 8, 3),
            PromptPosition(9, 9, 4),
            PromptPosition(9, 9, 6),
        ]
        v.reference = torch.randint(0, CODEC.codebook_size, (length, 16), generator=generator)
        voices.append(v)
    voices.append(voice(4, [12, 13], 9, 16, 5))  # and one without
    serve(runner, voices)
    for v in voices:
        check(model, codec, v)
    # A reference is heard once; then the codec is only reminded of it.
    again = replace(voices[0], codes=[], pcm=[], seed=4, slot=3)
    launches = count(runner.codec_stages, lambda: again.begin(runner))
    assert launches == 0
    serve(runner, [again])
    check(model, codec, again)


def count(stages: Mapping[int, Stage], act: Callable[[], None]) -> int:
    """How often one of the stages is launched by what is done."""
    launched = 0
    with pytest.MonkeyPatch.context() as patch:
        for stage in stages.values():

            def launch(size: Size, before: Callable[[Size], Tensor] = stage.launch) -> Tensor:
                nonlocal launched
                launched += 1
                return before(size)

            patch.setattr(stage, "launch", launch)
        act()
    return launched


def test_a_reference_gives_way_to_those_used_later(
    runner: TtsRunner, model: Qwen3Tts, codec: Codec
) -> None:
    generator = torch.Generator().manual_seed(1)
    references = [
        torch.randint(0, CODEC.codebook_size, (3 + i, 16), generator=generator)
        for i in range(REFERENCES + 2)
    ]
    sampling = Sampling()
    for reference in references[:REFERENCES]:
        runner.begin(2, 0, sampling, reference)
    runner.begin(2, 0, sampling, references[0])
    for reference in references[REFERENCES:]:
        runner.begin(2, 0, sampling, reference)

    def launches(i: int) -> int:
        return count(runner.codec_stages, lambda: runner.begin(3, 0, sampling, references[i]))

    assert launches(0) == 0
    assert launches(1) == len(list(cuts(4))) == 1
    for i in (1, 3, 0):
        v = replace(voice(1, [1, 2], 9, 3, i), reference=references[i])
        serve(runner, [v])
        check(model, codec, v)


def test_a_copied_page_goes_on_as_the_one_it_is_of(
    runner: TtsRunner, model: Qwen3Tts, codec: Codec
) -> None:
    first = voice(1, [3, 4], 70, 6, 1)
    serve(runner, [first])
    runner.copy([3, 4], [11, 9])
    second = replace(first, slot=2, pages=[11, 9], codes=[], pcm=[], seed=9)
    runner.assign(2, [11, 9])
    runner.begin(2, 9, second.sampling)
    for _ in range(6):
        second.codes += runner.step([second.step()])()
        speak(runner, [second], 1)
    check(model, codec, second)


def test_two_steps_may_be_under_way(runner: TtsRunner, model: Qwen3Tts, codec: Codec) -> None:
    v = voice(1, [3, 4, 5], 9, 12, 1)
    v.begin(runner)
    runner.prefill([v.prompt()])
    launched = []
    for frame in range(12):
        step = Step(1, v.text[frame], frame, len(v.rows) + frame)
        launched.append(runner.step([step]))
        if len(launched) > 1:
            assert launched[-2].ready()
            v.codes += launched[-2]()
    v.codes += launched[-1]()
    sounds = [runner.decode([Piece(1, first, 4)]) for first in (0, 4)]
    v.pcm = [sound()[0] for sound in sounds]
    v.pcm += runner.decode([Piece(1, 8, 4)])()
    check(model, codec, v)


def test_a_frame_that_ends_a_segment_is_only_noise(
    runner: TtsRunner, model: Qwen3Tts, codec: Codec
) -> None:
    """Its first code is none of the codec's; what comes after it is right."""
    runner._ring[RING + 3] = CONFIG.codec_eos
    runner.begin(1, 0, Sampling())
    runner.decode([Piece(1, 0, 8)])()
    v = voice(1, [3, 4], 9, 4, 2)
    serve(runner, [v])
    check(model, codec, v)


# --- with the engine ---


def test_the_engine_says_what_the_model_says(
    runner: TtsRunner, model: Qwen3Tts, codec: Codec
) -> None:
    """Streams that come and go, whose text comes when it likes, one of them broken off: up to the
    end of its first segment each is the plain loop."""
    told: dict[int, list[Pcm]] = {}
    cost = SpeechCost([(1, 3.0), (PREFIX_SLOTS + 1, 4.0)], 1.0, 0.1, 1.0, 0.1)

    def tell(news: EngineEvent) -> None:
        if isinstance(news, Spoken):
            told.setdefault(news.number, []).append(news.pcm)

    slots = 3 + PREFIX_SLOTS
    runner = TtsRunner(model, codec, slots, 13 * 3 + 9)
    engine = TtsEngine(runner, CONFIG, cost, tell, prefix_pages=8)
    now = 0.0

    def run(turns: int) -> None:
        nonlocal now
        for _ in range(turns):
            engine.turn(now)
            now += 0.004

    voices, numbers = [], []
    for i in range(3):
        v = voice(1, [1, 2], 9 + i, 0, 20 + i)
        v.text = [30 + i + k for k in range(7)]
        prompt = VoicePrompt(i, tuple(v.rows))
        numbers.append(engine.open(prompt, v.sampling, v.seed, live=False))
        voices.append(v)
        engine.write(numbers[i], v.text[:3], Break.WORD, now)
        run(7)
    engine.cancel(numbers[1])
    broken = len(told.get(numbers[1], []))
    for at in range(3, 7):
        run(5)
        engine.write(numbers[0], voices[0].text[at : at + 1], Break.WORD, now)
    engine.write(numbers[2], voices[2].text[3:], Break.WORD, now)
    for i in (0, 2):
        engine.end(numbers[i], now)
    run(300)
    assert engine.streams == 0
    assert len(told.get(numbers[1], [])) == broken
    lengths = []
    for i in (0, 2):
        v = voices[i]
        v.text = [*v.text, CONFIG.tts_eos, *[CONFIG.tts_pad] * 12]
        codes, pcm = alone(model, codec, v)
        length = codes.index(CONFIG.codec_eos) if CONFIG.codec_eos in codes else len(codes)
        got = np.concatenate(told[numbers[i]])[: 1920 * length]
        near(got, pcm[: len(got)])
        lengths.append(len(got) // 1920)
    assert max(lengths) > 8


# --- packing ---


@given(st.lists(st.integers(1, 300), max_size=40), st.integers(1, 20))
def test_prompts_are_cut_where_they_fill_a_launch(lengths: list[int], most: int) -> None:
    prompts = [Prompt(1, 0, [PromptPosition()] * n) for n in lengths]
    batches = list(prompt_batches(prompts, 256, most))
    assert [p for batch in batches for p in batch] == prompts
    for batch in batches:
        assert len(batch) <= most
        assert sum(len(p.rows) for p in batch) <= 256 or len(batch) == 1
    for one, other in pairwise(batches):
        rows = sum(len(p.rows) for p in one) + len(other[0].rows)
        assert len(one) == most or rows > 256


@given(st.lists(st.integers(-1, 4), max_size=20))
def test_runs_of_vectors_are_the_vectors(vectors: list[int]) -> None:
    found = [-1] * len(vectors)
    for run in runs(vectors):
        for i in range(run.length):
            found[run.row + i] = run.vector + i
    assert found == vectors
    assert len(runs(list(range(7)))) == 1


@given(st.lists(st.sampled_from([1, 2, 4, 8]), max_size=60))
def test_every_piece_is_in_one_launch(counts: list[int]) -> None:
    pieces = [Piece(i, 0, n) for i, n in enumerate(counts)]
    batches = list(codec_batches(pieces, lambda frames: 32 // frames))
    assert sorted(i for _, batch in batches for i in batch) == list(range(len(counts)))
    for frames, batch in batches:
        assert all(counts[i] == frames for i in batch)
        assert frames * len(batch) <= 32
    assert [frames for frames, _ in batches] == sorted(frames for frames, _ in batches)


@given(st.integers(0, 400))
def test_a_reference_is_cut_without_gaps(frames: int) -> None:
    at = 0
    for first, n in cuts(frames):
        assert first == at
        at += n
    assert at == frames
