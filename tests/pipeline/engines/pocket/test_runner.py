"""Clauses side by side in one Pocket TTS: each sounds as if it were alone."""

from collections.abc import Iterator
from functools import cache
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("safetensors")
pytest.importorskip("tokenizers")

from offhook.media.pcm import Pcm  # noqa: E402
from offhook.pipeline.engines.pocket.model import published  # noqa: E402
from offhook.pipeline.engines.pocket.model.checkpoint import load_model  # noqa: E402
from offhook.pipeline.engines.pocket.model.config import frame_limit  # noqa: E402
from offhook.pipeline.engines.pocket.model.model import PocketModel  # noqa: E402
from offhook.pipeline.engines.pocket.model.sizes import PocketSizes  # noqa: E402
from offhook.pipeline.engines.pocket.runner import PocketRunner  # noqa: E402
from offhook.pipeline.engines.shared.model.int8 import instructions  # noqa: E402
from tests.support import pocket_checkpoint  # noqa: E402

torch.set_num_threads(1)

TEXTS = (
    "hello there, how are you today",
    "the cat",
    "your order number is 0123, one moment please",
    "we are open until seventeen hours",
)
FRAMES = 12


@cache
def wide(int8: bool) -> PocketModel:
    """Returns a model whose layers are just wide enough for 8 bits."""
    with pytest.MonkeyPatch.context() as patch:
        sizes = published.SIZES["english"]
        layer = sizes.lm.layer._replace(width=768, heads=12, kv_heads=12, ffn=768)
        flow = sizes.lm.flow._replace(width=64, depth=2)
        lm = sizes.lm._replace(layers=1, vocabulary=200, layer=layer, flow=flow)
        small = published.SIZES["english_2m_refl_2026-10"].decoder
        other = PocketSizes(lm, small._replace(context=sizes.decoder.context))
        patch.setitem(published.SIZES, "english", other)
        return published.random_model("english", int8=instructions() if int8 else None)


@pytest.fixture(params=["english", "english_7m_2026-10"])
def model(tmp_path: Path, request: pytest.FixtureRequest) -> PocketModel:
    if request.param != "english":
        pytest.importorskip("sentencepiece")
    return load_model(pocket_checkpoint.write(tmp_path, request.param, end_logit=-10.0))


def begin(runner: PocketRunner, row: int, clause: int) -> None:
    model = runner.model
    voice = model.voices[clause % len(model.voices)]
    runner.begin(row, model.voice(voice), model.tokenizer.encode(TEXTS[clause]), seed=clause)


def alone(runner: PocketRunner, clause: int, frames: int = FRAMES, row: int = 0) -> Pcm:
    begin(runner, row, clause)
    return np.concatenate([runner.step([row])[0].pcm for _ in range(frames)])


def together(runner: PocketRunner) -> list[Pcm]:
    """Runs each clause in another row: they begin one after the other, and change their order."""
    spoken: list[list[Pcm]] = [[] for _ in TEXTS]
    rows = (3, 0, 2, 1)
    for step in range(FRAMES + len(TEXTS)):
        if step < len(TEXTS):
            begin(runner, rows[step], step)
        clauses = [c for c in range(len(TEXTS)) if c <= step and len(spoken[c]) < FRAMES]
        clauses = clauses[step % 3 :] + clauses[: step % 3]
        frames = runner.step([rows[clause] for clause in clauses]) if clauses else []
        for clause, frame in zip(clauses, frames, strict=True):
            spoken[clause].append(frame.pcm)
    return [np.concatenate(frames) for frames in spoken]


def test_in_8_bits_a_clause_sounds_the_same_in_any_company() -> None:
    """Bit by bit."""
    runner = PocketRunner(wide(int8=True), rows=4)
    for clause, pcm in enumerate(together(runner)):
        assert np.array_equal(pcm, alone(runner, clause)), clause
        assert np.abs(pcm).max() > 0


def test_in_fp32_company_changes_less_than_can_be_heard(model: PocketModel) -> None:
    runner = PocketRunner(model, rows=4)
    for clause, pcm in enumerate(together(runner)):
        expected = alone(runner, clause)
        assert np.abs(pcm.astype(int) - expected).max() <= 1, clause
        assert np.abs(pcm).max() > 1000


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_gpu_says_the_same(tmp_path: Path) -> None:
    folder = pocket_checkpoint.write(tmp_path, end_logit=-10.0)
    here, there = (
        together(PocketRunner(load_model(folder, device), rows=4)) for device in ("cpu", "cuda")
    )
    for ours, theirs in zip(here, there, strict=True):
        assert np.abs(ours.astype(int) - theirs).max() < 40  # -58 dBFS: products are in fp32


def test_layers_that_cannot_be_packed_say_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Packed layers are those of oneDNN, which is not everywhere."""
    folder = pocket_checkpoint.write(tmp_path, end_logit=-10.0)
    packed = together(PocketRunner(load_model(folder), rows=4))
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: False)
    for ours, theirs in zip(packed, together(PocketRunner(load_model(folder), 4)), strict=True):
        assert np.abs(ours.astype(int) - theirs).max() <= 2


def test_8_bits_are_close_to_fp32() -> None:
    latents = []
    for int8 in (False, True):
        runner = PocketRunner(wide(int8), rows=1)
        alone(runner, 0, frames=1)
        latents.append(runner._latents[0].clone())
    error = (latents[1] - latents[0]).norm() / latents[0].norm()
    assert 0 < error < 0.01


def test_a_row_keeps_nothing_of_its_last_clause(model: PocketModel) -> None:
    runner, other = PocketRunner(model, rows=1), PocketRunner(model, rows=1)
    alone(runner, 2, frames=20)
    assert np.array_equal(alone(runner, 1), alone(other, 1))


def test_a_seed_decides_the_noise(model: PocketModel) -> None:
    def said(seed: int, temperature: float | None = None) -> bytes:
        runner = PocketRunner(model, rows=1)
        tokens = model.tokenizer.encode(TEXTS[0])
        runner.begin(0, model.voice(), tokens, seed, temperature)
        return b"".join(runner.step([0])[0].pcm.tobytes() for _ in range(3))

    assert said(1) == said(1) != said(2)
    assert said(1, temperature=0.0) == said(2, temperature=0.0)


def lengths(model: PocketModel, *clauses: str) -> Iterator[int]:
    runner = PocketRunner(model, rows=1)
    for clause in clauses:
        runner.begin(0, model.voice(), model.tokenizer.encode(clause), seed=0)
        frames = 1
        while not runner.step([0])[0].ended:
            frames += 1
        yield frames


def test_a_clause_ends_some_frames_after_the_model_says_so(tmp_path: Path) -> None:
    """The model does from the first frame on, when the seventh is the first that counts; a clause
    of few words has two frames more."""
    model = load_model(pocket_checkpoint.write(tmp_path))
    assert list(lengths(model, TEXTS[0], TEXTS[1])) == [9, 11]


def test_a_clause_without_an_end_is_cut(model: PocketModel) -> None:
    tokens = model.tokenizer.encode("a")
    assert list(lengths(model, "a")) == [frame_limit(len(tokens))]


def test_the_longest_clause_fits_and_a_longer_one_is_refused(tmp_path: Path) -> None:
    model = load_model(pocket_checkpoint.write(tmp_path, end_logit=-10.0))
    runner = PocketRunner(model, rows=2)
    most = model.config.max_tokens
    runner.begin(1, model.voice("alba"), [5] * most, seed=0)
    for _ in range(model.config.max_frames - 1):
        assert not runner.step([1])[0].ended
    assert runner.step([1])[0].ended
    for tokens in ([], [5] * (most + 1)):
        with pytest.raises(ValueError, match=f"not of 1 to {most}"):
            runner.begin(1, model.voice(), tokens, seed=0)


def test_a_clause_fades_in(model: PocketModel) -> None:
    """What a decoder says at its start is heard as a click."""
    pcm = alone(PocketRunner(model, rows=1), 0, frames=1)
    assert pcm[0] == 0
    assert np.abs(pcm[:12]).max() < np.abs(pcm[120:]).max() / 5


def test_all_sizes_of_a_batch_are_warmed_up(model: PocketModel) -> None:
    progress: list[tuple[float, str]] = []
    PocketRunner(model, rows=2).warm_up(lambda share, what: progress.append((share, what)))
    assert progress == [(0.0, "1 voices"), (0.5, "2 voices")]
