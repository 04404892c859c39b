"""Nemotron against transformers' own streaming on tiny random checkpoints, fp32 on the CPU."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytest.importorskip("safetensors")

from offhook.media.pcm import RATE_IN, Pcm  # noqa: E402
from offhook.pipeline.engines.nemotron.model import checkpoint as nemotron_checkpoint  # noqa: E402
from offhook.pipeline.engines.nemotron.model.mel import NemotronMel  # noqa: E402
from offhook.pipeline.engines.nemotron.model.model import Nemotron, NemotronConfig  # noqa: E402
from offhook.pipeline.engines.nemotron.recognizer_io import measured_streams_of_gpu  # noqa: E402
from offhook.pipeline.engines.nemotron.runner import (  # noqa: E402
    Label,
    NemotronRunner,
    Part,
    chunk_begin,
    chunk_end,
    chunk_samples,
)
from offhook.pipeline.engines.nemotron.simulated import SimulatedLabels  # noqa: E402
from offhook.pipeline.engines.shared.model.int8 import instructions  # noqa: E402
from tests.pipeline.engines.nemotron.model import tiny as tiny_nemotron  # noqa: E402

torch.set_num_threads(1)
SLOTS = 6
FRAME = 1280


class Checkpoint:
    """The same files, as we and as transformers load them."""

    def __init__(self, folder: Path, config: NemotronConfig) -> None:
        tiny_nemotron.write(folder, config)
        self.model: Nemotron = nemotron_checkpoint.load_model(folder, "cpu", torch.float32)
        kinds = (transformers.NemotronAsrStreamingForRNNT, transformers.Nemotron3_5AsrForRNNT)
        self.reference = kinds[bool(config.prompts)].from_pretrained(folder).eval()
        self.processor = transformers.AutoProcessor.from_pretrained(folder)

    def said_by_reference(self, pcm: Pcm, lookahead: int, prompt: int) -> list[Label]:
        """Labels and their frames, of sound that is whole chunks long."""
        floats = torch.from_numpy(np.append(pcm, np.zeros(FRAME, np.int16)) / 32768)
        sound = self.processor.feature_extractor(floats.float().numpy(), sampling_rate=RATE_IN)
        mel = torch.as_tensor(np.asarray(sound["input_features"]))
        chunks = len(pcm) // FRAME // (lookahead + 1)

        def generated() -> Iterator[Any]:
            end = 1 + 8 * lookahead
            yield mel[:, :end]
            for _ in range(chunks - 1):
                yield mel[:, end : end + 8 * (lookahead + 1)]
                end += 8 * (lookahead + 1)

        asked = {"prompt_ids": torch.tensor([prompt])} if self.model.config.prompts else {}
        out = self.reference.generate(generated(), num_lookahead_tokens=lookahead, **asked)
        frames = (out.durations.cumsum(-1) - out.durations)[0].tolist()
        pairs = zip(frames[1:], out.sequences[0].tolist()[1:], strict=True)
        return [Label(frame, id) for frame, id in pairs if id != self.model.config.blank]


@pytest.fixture(
    scope="module", params=[pytest.param("English", marks=pytest.mark.slow), "multilingual"]
)
def checkpoint(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Checkpoint:
    config = tiny_nemotron.ENGLISH if request.param == "English" else tiny_nemotron.MULTILINGUAL
    return Checkpoint(tmp_path_factory.mktemp("tiny"), config)


def noise(chunks: int, frames: int, seed: int) -> Pcm:
    """Sound that is loud now and then."""
    rng = np.random.default_rng(seed)
    samples = chunks * frames * FRAME
    loud = 3000 * np.abs(np.sin(np.arange(samples) / 5000 + seed))
    pcm: Pcm = (rng.standard_normal(samples) * loud).astype(np.int16)
    return pcm


def part(pcm: Pcm, slot: int, position: int, frames: int, prompt: int = 0) -> Part:
    begin = chunk_begin(position)
    end = min(len(pcm), begin + chunk_samples(frames))
    sound = np.append(np.zeros(max(0, -begin), np.int16), pcm[max(0, begin) : end])
    return Part(slot, position, sound, prompt)


def said(runner: NemotronRunner, pcm: Pcm, lookahead: int, slot: int, prompt: int) -> list[Label]:
    """By the stream alone."""
    labels = []
    for position in range(0, len(pcm) // FRAME, lookahead + 1):
        one = part(pcm, slot, position, lookahead + 1, prompt)
        (new,) = runner.encode(lookahead, [one]).labels()
        labels += [Label(position + label.frame, label.id) for label in new]
    return labels


def test_every_mode_says_what_transformers_says_and_when(checkpoint: Checkpoint) -> None:
    runner = NemotronRunner(checkpoint.model, SLOTS)
    for lookahead in checkpoint.model.config.lookaheads:
        pcm = noise(max(3, 84 // (lookahead + 1)), lookahead + 1, lookahead)
        expected = checkpoint.said_by_reference(pcm, lookahead, prompt=9)
        assert len(expected) > 10
        assert said(runner, pcm, lookahead, 1, prompt=9) == expected


def test_streams_together_say_what_each_says_alone(checkpoint: Checkpoint) -> None:
    """At different places of utterances of different length, in slots that others had before."""
    runner = NemotronRunner(checkpoint.model, SLOTS)
    lookahead, frames = (
        checkpoint.model.config.lookaheads[1],
        checkpoint.model.config.lookaheads[1] + 1,
    )
    sounds = [noise(8 + 3 * i, frames, i) for i in range(4)]
    alone = [said(runner, pcm, lookahead, 5, i) for i, pcm in enumerate(sounds)]
    together: list[list[Label]] = [[] for _ in sounds]
    positions = [0] * len(sounds)
    turn = 0
    while True:
        turn += 1
        here = [
            i
            for i, pcm in enumerate(sounds)
            if positions[i] * FRAME < len(pcm) and (turn + i) % (i + 1) == 0
        ]
        if all(p * FRAME >= len(s) for p, s in zip(positions, sounds, strict=True)):
            break
        if not here:
            continue
        parts = [part(sounds[i], 1 + i, positions[i], frames, i) for i in here]
        for i, new in zip(here, runner.encode(lookahead, parts).labels(), strict=True):
            together[i] += [Label(positions[i] + label.frame, label.id) for label in new]
            positions[i] += frames
    assert together == alone


def test_what_was_measured_before_calls_leaves_nothing_in_them(checkpoint: Checkpoint) -> None:
    runner = NemotronRunner(checkpoint.model, SLOTS)
    lookahead = min(checkpoint.model.config.lookaheads)
    pcm = noise(20, lookahead + 1, 0)
    before = said(runner, pcm, lookahead, 1, prompt=9)
    assert measured_streams_of_gpu(runner, SimulatedLabels(), lookahead) >= 1
    assert said(runner, pcm, lookahead, 1, prompt=9) == before


@pytest.mark.parametrize(
    "config",
    [tiny_nemotron.MULTILINGUAL, pytest.param(tiny_nemotron.ENGLISH, marks=pytest.mark.slow)],
)
def test_in_8_bits_most_labels_are_those_in_32_and_company_changes_nothing(
    tmp_path: Path, config: NemotronConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("offhook.pipeline.engines.shared.model.int8.MIN_WEIGHTS", 0)
    folder = tiny_nemotron.write(tmp_path, config)
    exact = nemotron_checkpoint.load_model(folder, "cpu", torch.float32)
    model = nemotron_checkpoint.load_model(folder, "cpu", torch.float32, instructions())
    kinds = {type(layer).__name__ for layer in model.modules()}
    assert "Int8Linear" in kinds
    assert "Linear" not in kinds
    sounds = [noise(12, 7, i) for i in range(4)]
    runner = NemotronRunner(model, SLOTS)
    alone = [said(runner, pcm, 6, 5, i) for i, pcm in enumerate(sounds)]
    together: list[list[Label]] = [[] for _ in sounds]
    for position in range(0, 12 * 7, 7):
        parts = [part(pcm, 1 + i, position, 7, i) for i, pcm in enumerate(sounds)]
        for i, new in enumerate(runner.encode(6, parts).labels()):
            together[i] += [Label(position + label.frame, label.id) for label in new]
    assert together == alone
    pairs = zip(scores_first(model, sounds[0]), scores_first(exact, sounds[0]), strict=True)
    same = [ours == theirs for ours, theirs in pairs]
    assert len(same) > 100
    assert sum(same) > 0.9 * len(same)


def scores_first(model: Nemotron, pcm: Pcm) -> list[int]:
    """The labels that the model likes best where every other frame has said label 5: with one
    history, since random weights say something else after the first difference."""
    best: list[int] = []

    def pick(labels: torch.Tensor, position: torch.Tensor, at: torch.Tensor, count: torch.Tensor):  # type: ignore[no-untyped-def]
        best.extend(labels.tolist())
        says = ((position + at) % 2 == 0) & (count == 0)
        return torch.where(says, 5, model.config.blank)

    said(NemotronRunner(model, SLOTS, pick), pcm, 6, 1, 0)
    return best


def test_a_stream_that_says_more_than_a_launch_has_steps_for_says_it_all(
    checkpoint: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    bias = checkpoint.model.joint.scores.bias
    blank = checkpoint.model.config.blank
    before = bias[blank].item()
    pcm = noise(6, 1, 3)
    with torch.no_grad():
        bias[blank] = -100  # it never moves on by itself
    try:
        runner = NemotronRunner(checkpoint.model, SLOTS)
        labels = said(runner, pcm, 0, 2, 0)
    finally:
        with torch.no_grad():
            bias[blank] = before
    most = checkpoint.model.config.max_symbols
    assert [label.frame for label in labels] == sorted(list(range(6)) * most)


@pytest.mark.parametrize("frames", [1, 2, 7, 14])
def test_a_chunk_is_made_of_the_sound_that_its_frames_reach_over(frames: int) -> None:
    assert chunk_end(0, frames) == FRAME * (frames - 1) + 200
    assert chunk_end(5, frames) - chunk_end(5, 0) == FRAME * frames
    assert chunk_begin(100) + chunk_samples(frames) == chunk_end(100, frames)


def test_mel_is_that_of_transformers_to_the_end_of_the_sound(checkpoint: Checkpoint) -> None:
    pcm = noise(2, 7, 1)[:-300]
    extractor = checkpoint.processor.feature_extractor
    theirs = np.asarray(extractor(pcm / np.float32(32768), sampling_rate=RATE_IN)["input_features"])
    config = checkpoint.model.config
    mel = NemotronMel(config.encoder.mel_bins, "cpu", config.mel_in_bf16)
    before = np.concatenate([np.zeros(201), pcm, np.zeros(500)])
    length = torch.tensor([201 + len(pcm)])
    ours = mel(torch.from_numpy(before / 32768).float()[None], length)[0].numpy()
    frames = len(pcm) // 160
    np.testing.assert_allclose(ours[:frames], theirs[0, :frames], atol=1e-4)
