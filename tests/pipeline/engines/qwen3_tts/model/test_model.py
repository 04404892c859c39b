"""Qwen3-TTS against the published package (data/qwen3_tts.npz), and a stream in a batch against
the same stream alone."""

from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("safetensors")

from torch import Tensor  # noqa: E402

from offhook.pipeline.engines.qwen3_tts.model import checkpoint as tts_checkpoint  # noqa: E402
from offhook.pipeline.engines.qwen3_tts.model.config import (  # noqa: E402
    QWEN3_TTS_0_6B,
    QWEN3_TTS_1_7B,
    TtsConfig,
)
from offhook.pipeline.engines.qwen3_tts.model.model import Qwen3Tts  # noqa: E402
from offhook.pipeline.engines.shared.qwen3 import sampler  # noqa: E402
from offhook.pipeline.engines.shared.qwen3.body import Batch, KVCache  # noqa: E402
from offhook.pipeline.engines.shared.qwen3.sampling import Draw  # noqa: E402
from tests.pipeline.engines.qwen3_tts.model import tiny_tts  # noqa: E402
from tests.pipeline.engines.qwen3_tts.model.make_model_golden import (  # noqa: E402
    CASES,
    FRAMES,
    GOLDEN,
    LOGIT_CODES,
    LOGIT_FRAMES,
    ROLE,
    Case,
)

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
CLOSE = {"atol": 2e-5, "rtol": 1e-4}
PAGE_SIZE = 16
PAGES = 6
"""Of a stream."""
BATCH_FRAMES = 5
Golden = dict[str, Any]


@pytest.fixture(autouse=True)
def _device() -> Iterator[None]:
    with torch.device(DEVICE) if DEVICE == "cuda" else nullcontext():
        yield


@pytest.fixture(scope="module")
def golden() -> Golden:
    torch.set_num_threads(1)
    with np.load(GOLDEN) as file:
        return {name: torch.from_numpy(file[name]).to(DEVICE) for name in file.files}


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Qwen3Tts]:
    """By size, loaded from checkpoints."""
    loaded = {}
    for config in (tiny_tts.CONFIG, tiny_tts.WIDE):
        folder = tiny_tts.write(tmp_path_factory.mktemp(config.size), config)
        loaded[config.size] = tts_checkpoint.load_model(folder, DEVICE, torch.float32)
    return loaded


# --- streams ---


@dataclass
class Prompt:
    """What a stream is told before its first frame, and then with every frame."""

    text: list[int]
    codec: list[int]
    vectors: Tensor
    before: Tensor
    """The codes that stand before the first frame, int64 [16]."""
    words: list[int]


def prompt_of(case: Case, model: Qwen3Tts) -> Prompt:
    c = case.config
    language = c.languages.get(case.language, 0)
    dialect = c.dialects.get(case.speaker)
    if dialect:
        language = c.languages[str(dialect)]
    tags = [c.think, c.think_bos, language, c.think_eos]
    if not language:
        tags = [c.nothink, c.think_bos, c.think_eos]
    voice = [c.speakers[case.speaker]] if case.speaker else [-1] * bool(case.voice)
    begin = [*(case.instructions or []), *ROLE]
    codec = [*[-1] * len(begin), *tags, *voice, c.codec_pad]
    text = [*begin, *[c.tts_pad] * len(tags + voice), c.tts_bos]
    vectors = torch.zeros(len(text), c.talker.hidden_size)
    if case.voice:
        vectors[-2] = torch.tensor(case.voice)
    before = model.nothing
    before[0] = c.codec_bos
    words = [*case.text, c.tts_eos]
    if case.reference and case.reference_codes:
        frames = torch.cat([before[None], torch.tensor(case.reference_codes)])
        words = [*case.reference, *words]
        words += [c.tts_pad] * (len(frames) - len(words))
        before, known = frames[-1], len(frames) - 1
        text, words = text + words[:known], words[known:]
        codec += [-1] * known
        vectors = torch.cat([vectors, model.embed_frames(frames[:-1])])
    if case.whole:
        text, codec = text + words, codec + [c.codec_pad] * len(words)
        vectors = torch.cat([vectors, torch.zeros(len(words), c.talker.hidden_size)])
        words = []
    return Prompt(text, codec, vectors, before, words)


class Streams:
    """Streams of one model, each in pages that lie scattered, one frame of all at a time."""

    def __init__(self, model: Qwen3Tts, cases: list[Case]) -> None:
        self.model, self.cases = model, cases
        count = len(cases)
        c = model.config
        self.cache = KVCache(c.talker, 1 + PAGES * count, PAGE_SIZE, DEVICE, torch.float32)
        self.table = 1 + torch.arange(PAGES * count).view(PAGES, count).T.contiguous()
        self.predictor_cache = model.predictor_cache(count + 3)
        prompts = [prompt_of(case, model) for case in cases]
        self.positions = torch.tensor([len(p.text) for p in prompts])
        self.prefill(prompts)
        self.codes = torch.stack([p.before for p in prompts])
        self.words = [iter(p.words) for p in prompts]
        self.seen = torch.zeros(count, c.codec_vocab, dtype=torch.bool)
        self.frames = 0

    def slots(self, stream: Tensor, positions: Tensor) -> Tensor:
        return self.table[stream, positions // PAGE_SIZE] * PAGE_SIZE + positions % PAGE_SIZE

    def prefill(self, prompts: list[Prompt]) -> None:
        counts = self.positions
        x = self.model.embed_prompt(
            torch.tensor([t for p in prompts for t in p.text]),
            torch.tensor([t for p in prompts for t in p.codec]),
            torch.cat([p.vectors for p in prompts]),
        )
        stream = torch.arange(len(prompts)).repeat_interleave(counts)
        positions = torch.cat([torch.arange(n) for n in counts.tolist()])
        starts = torch.cat([torch.zeros(1, dtype=torch.int64), counts.cumsum(0)])
        batch = Batch(
            positions=positions,
            slots=self.slots(stream, positions),
            page_table=self.table.int(),
            q_starts=starts.int(),
            kv_lengths=counts.int(),
            max_q=int(counts.max()),
        )
        self.model.talker(x, batch, self.cache)

    def step(self) -> Tensor:
        """The next frame of all, [B, 16]."""
        count, pad = len(self.cases), self.model.config.tts_pad
        stream = torch.arange(count)
        batch = Batch(
            positions=self.positions,
            slots=self.slots(stream, self.positions),
            page_table=self.table.int(),
            q_starts=torch.arange(count + 1).int(),
            kv_lengths=(self.positions + 1).int(),
            max_q=1,
        )
        words = torch.tensor([next(w, pad) for w in self.words])
        x = self.model.embed(self.codes, words)
        draw = self.draw()
        self.codes = self.model.frame(x, batch, self.cache, self.predictor_cache, draw)
        self.seen[stream, self.codes[:, 0]] = True
        self.positions = self.positions + 1
        self.frames += 1
        return self.codes

    def draw(self) -> Draw:
        g, count = self.model.config.generation, len(self.cases)
        return Draw(
            seeds=torch.tensor([case.seed for case in self.cases]),
            frames=torch.full((count,), self.frames),
            temperature=torch.full((count,), g.temperature),
            top_k=torch.full((count,), g.top_k),
            penalty=torch.full((count,), g.penalty),
            seen=self.seen,
            predictor_temperature=torch.full((count,), g.predictor_temperature),
            predictor_top_k=torch.full((count,), g.predictor_top_k),
        )


def say(model: Qwen3Tts, case: Case, most: int = FRAMES) -> tuple[Tensor, bool]:
    """The frames of one stream alone, and whether it ended by itself."""
    streams = Streams(model, [case])
    frames: list[Tensor] = []
    while len(frames) <= most:
        frames.append(streams.step()[0])
        if frames[-1][0] == model.config.codec_eos:
            return torch.stack(frames[:-1]), True
    return torch.stack(frames[:-1]), False


# --- against the package ---


@pytest.mark.parametrize("name", CASES)
def test_codes_equal_the_package(models: dict[str, Qwen3Tts], golden: Golden, name: str) -> None:
    case = CASES[name]
    codes, ended = say(models[case.config.size], case)
    assert codes.tolist() == golden[f"{name}/codes"].tolist()
    assert ended == bool(golden[f"{name}/ended"])


def test_the_goldens_are_worth_something(golden: Golden) -> None:
    """Some end by themselves, and what they say differs from frame to frame."""
    assert 0 < sum(bool(golden[f"{name}/ended"]) for name in CASES) < len(CASES)
    for name in CASES:
        assert all(len(codebook.unique()) > 5 for codebook in golden[f"{name}/codes"].T)


@pytest.mark.parametrize("name", CASES)
def test_logits_equal_the_package(
    models: dict[str, Qwen3Tts], golden: Golden, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All 16 of each frame, with the package's codes told before them."""
    case = CASES[name]
    streams = Streams(models[case.config.size], [case])
    told = iter(golden[f"{name}/codes"].flatten().tolist())
    heard: list[Tensor] = []

    def next_told(logits: Tensor, *_: object) -> Tensor:
        heard.append(logits[0])
        return torch.tensor([next(told)])

    monkeypatch.setattr(sampler, "sample_first", next_told)
    monkeypatch.setattr(sampler, "sample", next_told)
    for _ in range(LOGIT_FRAMES):
        streams.step()
    first = torch.stack(heard[::16])[:, :LOGIT_CODES]
    others = torch.stack([h for i, h in enumerate(heard) if i % 16]).unflatten(0, (-1, 15))
    assert first.std() > 0.5 < others.std()
    torch.testing.assert_close(first, golden[f"{name}/first"], **CLOSE)
    torch.testing.assert_close(others, golden[f"{name}/others"], **CLOSE)


# --- batches ---


def test_streams_in_a_batch_say_what_each_says_alone(models: dict[str, Qwen3Tts]) -> None:
    for size, model in models.items():
        cases = [case for case in CASES.values() if case.config.size == size]
        cases.append(replace(cases[0], seed=99))
        alone = [say(model, case, BATCH_FRAMES)[0] for case in cases]
        streams = Streams(model, cases)
        together = torch.stack([streams.step() for _ in range(BATCH_FRAMES)], 1)
        for frames, own in zip(together, alone, strict=True):
            assert torch.equal(frames[: len(own)], own)


def test_another_seed_says_something_else(models: dict[str, Qwen3Tts]) -> None:
    case = CASES["cloned"]
    one, other = (say(models["1b7"], replace(case, seed=seed), 1)[0] for seed in (1, 2))
    assert not torch.equal(one[0], other[0])


def test_the_predictor_forgets_the_frame_before(models: dict[str, Qwen3Tts]) -> None:
    """What its cache holds when a frame begins does not matter."""
    model = models["1b7"]
    cache = model.predictor_cache(2)
    hidden = torch.randn(2, model.config.talker.hidden_size)
    draw = Streams(model, [CASES["cloned"]] * 2).draw()
    first = torch.tensor([3, 60])
    once = model.predict(hidden, first, cache, draw)
    cache.k.fill_(9.0)
    cache.v.fill_(9.0)
    assert torch.equal(model.predict(hidden, first, cache, draw), once)


# --- embeddings ---


TEXTS_AND_CODES = [([5, 6, -1, -1], [-1, 2, 64, -1]), ([0, -1, 311, 7], [0, 63, -1, 1087])]


@pytest.mark.parametrize(("text", "codec"), TEXTS_AND_CODES)
def test_nothing_adds_nothing(
    models: dict[str, Qwen3Tts], text: list[int], codec: list[int]
) -> None:
    model = models["1b7"]
    vectors = torch.randn(4, model.config.talker.hidden_size)
    together = model.embed_prompt(torch.tensor(text), torch.tensor(codec), vectors)
    first = model.cut(model.embeddings)[0]
    for row, t, c, vector in zip(together, text, codec, vectors, strict=True):
        want = vector.clone()
        want += model.text[t] if t >= 0 else 0
        want += first[c] if c >= 0 else 0
        torch.testing.assert_close(row, want)
    assert (model.embed_frames(model.nothing[None]) == 0).all()


# --- real sizes ---


@pytest.mark.parametrize(
    ("config", "talker", "predictor"),
    [(QWEN3_TTS_0_6B, 443.5e6, 78.6e6), (QWEN3_TTS_1_7B, 1415.6e6, 78.6e6)],
)
def test_real_sizes(config: TtsConfig, talker: float, predictor: float) -> None:
    """Parameters as counted from the published checkpoints: layers and the talker's head, and the
    predictor's layers."""
    with torch.device("meta"):
        model = Qwen3Tts(config)
    layers = sum(p.numel() for p in model.talker.parameters())
    assert layers + model.head.numel() == pytest.approx(talker, rel=1e-3)
    small = sum(p.numel() for p in model.predictor.parameters())
    assert small == pytest.approx(predictor, rel=1e-3)


def test_a_random_model_says_something() -> None:
    for config in (tiny_tts.CONFIG, tiny_tts.WIDE):
        model = tts_checkpoint.random_model(config, DEVICE, torch.float32, seed=3)
        codes, _ = say(model, replace(CASES["cloned"], config=config, voice=None), 3)
        assert codes.max() < 64
        assert len(codes.unique()) > 20


def test_rotations_stay_exact_in_bfloat16(tmp_path: Path) -> None:
    folder = tiny_tts.write(tmp_path, tiny_tts.WIDE)
    model = tts_checkpoint.load_model(folder, DEVICE, torch.bfloat16)
    assert {p.dtype for p in model.parameters()} == {torch.bfloat16}
    assert model.predictor_tables.dtype == torch.bfloat16
    assert model.predictor.cos.dtype == model.talker.cos.dtype == torch.float32
