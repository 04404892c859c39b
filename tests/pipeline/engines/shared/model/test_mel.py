"""Log-mel frames: those of the reference feature extractor, whole and piece by piece."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch")

from offhook.media.pcm import Pcm  # noqa: E402
from offhook.pipeline.engines.shared.model import mel  # noqa: E402

torch.set_num_threads(1)
LOG_MEL = mel.LogMel()


def sound(samples: int, seed: int = 0) -> Pcm:
    """A gliding tone that comes and goes over soft noise: loud and quiet frames, sharp spectra."""
    rng = np.random.default_rng(seed)
    t = np.arange(samples) / 16_000
    tone = np.sin(2 * np.pi * (300 + 200 * t) * t) * np.sin(2 * np.pi * 1.3 * t) ** 2
    return (9000 * tone + rng.normal(0, 20, samples)).astype(np.int16)


def features(pcm: Pcm) -> dict[str, "torch.Tensor"]:
    """What the reference's extractor makes of a clip: `input_features`, `attention_mask`."""
    extractor = pytest.importorskip("transformers").Qwen3ASRFeatureExtractor(feature_size=128)
    made: dict[str, torch.Tensor] = extractor(
        pcm / np.float32(32768),
        sampling_rate=16_000,
        padding=True,
        return_attention_mask=True,
        return_tensors="pt",
    )
    return made


def whole(pcm: Pcm) -> "torch.Tensor":
    """[BINS, frames] of an utterance at once."""
    samples = mel.cut(pcm, 0, mel.frame_count(len(pcm)))
    return LOG_MEL(torch.from_numpy(samples / np.float32(32768))[None])[0]


def in_seconds(pcm: Pcm) -> "torch.Tensor":
    count = -(-mel.frame_count(len(pcm)) // 100)
    cuts = [mel.second(pcm, number) for number in range(count)]
    batch = torch.from_numpy(np.stack([samples for samples, _ in cuts]) / np.float32(32768))
    frames = LOG_MEL(batch)
    return torch.cat([m[:, :n] for m, (_, n) in zip(frames, cuts, strict=True)], 1)


@pytest.mark.parametrize("samples", [8000, 8001, 15_999, 16_000, 16_159, 16_161, 128_000, 200_077])
def test_equals_the_reference_extractor(samples: int) -> None:
    pcm = sound(samples)
    reference = features(pcm)
    frames = int(reference["attention_mask"].sum())
    ours = whole(pcm)
    assert ours.shape == (128, frames)
    scaled = mel.scale(ours[None], ours.max()[None])[0]
    torch.testing.assert_close(
        scaled, reference["input_features"][0, :, :frames], atol=2e-5, rtol=0
    )


def test_a_short_utterance_counts_as_half_a_second() -> None:
    pcm = sound(3000)
    reference = features(pcm)
    ours = whole(mel.lengthen(pcm))
    assert ours.shape[1] == int(reference["attention_mask"].sum()) == 50
    scaled = mel.scale(ours[None], ours.max()[None])[0]
    torch.testing.assert_close(scaled, reference["input_features"][0, :, :50], atol=2e-5, rtol=0)


def test_filters_equal_the_reference() -> None:
    audio = pytest.importorskip("transformers.audio_utils")
    reference = audio.mel_filter_bank(201, 128, 0.0, 8000.0, 16_000, "slaney", "slaney")
    np.testing.assert_allclose(mel.mel_filters(), reference, atol=1e-8)


def test_silence_is_the_floor() -> None:
    assert (whole(np.zeros(16_000, np.int16)) == mel.FLOOR).all()


@settings(max_examples=30)
@given(samples=st.integers(8000, 60_000), seed=st.integers(0, 9), data=st.data())
def test_any_frames_are_those_of_the_whole(samples: int, seed: int, data: st.DataObject) -> None:
    pcm = sound(samples, seed)
    expected = whole(pcm)
    first = data.draw(st.integers(0, expected.shape[1] - 1))
    end = data.draw(st.integers(first + 1, expected.shape[1]))
    # What lies before the first frame's reach may be gone, unless the start is reflected.
    skipped = data.draw(st.integers(0, max(0, first * 160 - 200)))
    samples_ = mel.cut(pcm[skipped:], first, end, skipped)
    assert len(samples_) == (end - first - 1) * 160 + 400
    frames = LOG_MEL(torch.from_numpy(samples_ / np.float32(32768))[None])[0]
    torch.testing.assert_close(frames, expected[:, first:end], atol=1e-4, rtol=0)


def final_seconds(samples: int) -> int:
    """Seconds whose frames more sound will not change. A second is final 40 samples after its end:
    until then its last frame holds reflected sound."""
    return max(0, samples - 40) // 16_000


@settings(max_examples=30)
@given(samples=st.integers(8000, 60_000), more=st.integers(1, 20_000))
def test_a_final_second_never_changes(samples: int, more: int) -> None:
    pcm = sound(samples + more)
    before, after = in_seconds(pcm[:samples]), in_seconds(pcm)
    final = 100 * final_seconds(samples)
    assert torch.equal(before[:, :final], after[:, :final])


def test_a_second_is_not_final_when_it_is_just_over() -> None:
    """Its last frame reaches 40 samples into the next."""
    pcm = sound(20_000)
    before, after = in_seconds(pcm[:16_000]), in_seconds(pcm)
    assert not torch.equal(before[:, :100], after[:, :100])


def test_seconds_together_are_the_whole() -> None:
    pcm = sound(50_123)
    torch.testing.assert_close(in_seconds(pcm), whole(pcm), atol=1e-4, rtol=0)
