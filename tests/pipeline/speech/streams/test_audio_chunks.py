"""Long recordings are cut where it is quiet, and nothing of them is lost."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from offhook.pipeline.speech.streams.audio_chunks import Samples, chunk, split

RATE = 16_000


def noise(seconds: float, seed: int = 0) -> np.ndarray[tuple[int], np.dtype[np.int16]]:
    return np.random.default_rng(seed).integers(-9000, 9000, int(seconds * RATE), dtype=np.int16)


@settings(max_examples=40)
@given(
    st.floats(0, 30),
    st.sampled_from([0.5, 1.0, 2.5, 7.0, 12.0]),
    st.sampled_from(["noise", "silence", "float"]),
)
def test_chunks_are_the_recording(seconds: float, most: float, kind: str) -> None:
    pcm: Samples = noise(seconds)
    if kind == "silence":
        pcm = np.zeros_like(pcm)
    elif kind == "float":
        pcm = (pcm / 32768).astype(np.float32)
    chunks = split(pcm, most)
    assert chunks[0][0] == 0
    assert chunks[-1][1] == len(pcm)
    assert all(end == start for (_, end), (start, _) in pairwise(chunks))
    lengths = [(end - start) / RATE for start, end in chunks]
    assert all(most / 2 <= length <= most + 5 for length in lengths[:-1])
    for start, end in chunks:
        piece = chunk(pcm, start, end)
        assert len(piece) == max(end - start, RATE // 2)
        assert piece.dtype == pcm.dtype
        assert np.array_equal(piece[: end - start], pcm[start:end])
        assert not piece[end - start :].any()


@settings(max_examples=25)
@given(st.lists(st.floats(0.3, 3.3), min_size=1, max_size=4), st.integers(0, 99))
def test_cuts_lie_in_the_pauses(offsets: list[float], seed: int) -> None:
    """The one pause within 5 s of where the cut should be is where it is."""
    pcm = noise(13.0 * (len(offsets) + 1), seed)
    start, pauses = 0.0, []
    for offset in offsets:
        pause = start + 12.0 - offset
        pcm[int(pause * RATE) : int((pause + 0.2) * RATE)] //= 100
        pauses.append(pause)
        start = pause
    cuts = [end / RATE for _, end in split(pcm, 12.0)[:-1]]
    for cut, pause in zip(cuts, pauses, strict=False):
        assert pause - 0.001 <= cut <= pause + 0.2


def test_the_quietest_sample_of_the_quietest_tenth() -> None:
    pcm = np.full(20 * RATE, 5000, np.int16)
    pcm[9 * RATE : 9 * RATE + 1600] = -50
    pcm[9 * RATE + 700] = 3
    assert split(pcm, 10.0)[0] == (0, 9 * RATE + 700)


def test_the_loudest_negative_sample_is_loud() -> None:
    pcm = np.full(20 * RATE, -32768, np.int16)
    pcm[10 * RATE : 11 * RATE] = 100
    assert 10 * RATE <= split(pcm, 10.0)[0][1] < 11 * RATE


def test_hours_are_read_only_near_the_cuts(tmp_path) -> None:  # type: ignore[no-untyped-def]
    path = tmp_path / "long.pcm"
    with path.open("wb") as file:
        file.truncate(2 * 3600 * 2 * RATE)
    chunks = split(np.memmap(path, np.int16, "r"), 1200)
    assert len(chunks) == 7
    assert sum(end - start for start, end in chunks) == 2 * 3600 * RATE


@pytest.mark.parametrize("samples", [0, 1, 7999, 8000, 8001])
def test_short_recordings_are_padded(samples: int) -> None:
    pcm = np.ones(samples, np.int16)
    assert split(pcm) == [(0, samples)]
    assert len(chunk(pcm, 0, samples)) == max(8000, samples)
