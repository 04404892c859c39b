"""The last seconds of a stream are those that were added, wherever they are in the ring."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from offhook.media.pcm import RATE_IN
from offhook.pipeline.speech.streams.recent_audio import RecentAudio
from offhook.pipeline.speech.vad.smart_turn_io import SECONDS

SIZE = SECONDS * RATE_IN
LENGTHS = st.lists(st.sampled_from([0, 1, 320, 1600, 5 * RATE_IN, SIZE, SIZE + 7]), max_size=8)


@given(LENGTHS, st.integers(-2 * SIZE, SIZE), st.integers(-SIZE, SIZE))
def test_a_slice_is_what_is_left_of_those_samples(lengths: list[int], start: int, end: int) -> None:
    recent, added = RecentAudio(), np.zeros(0, np.int16)
    for length in lengths:
        pcm = np.arange(len(added), len(added) + length, dtype=np.int64).astype(np.int16)
        recent.add(pcm)
        added = np.concatenate((added, pcm))
    assert recent.end == len(added)
    start, end = start + recent.end, end + recent.end
    kept = range(max(0, recent.end - SIZE), recent.end)
    expected = added[max(start, kept.start) : max(0, min(end, kept.stop))]
    assert np.array_equal(recent.slice(start, end), expected)


def test_once_closed_it_has_its_place_and_no_sound() -> None:
    recent = RecentAudio()
    recent.add(np.ones(1600, np.int16))
    recent.close()
    assert recent.end == 1600
    assert len(recent.slice(0, 1600)) == 0
