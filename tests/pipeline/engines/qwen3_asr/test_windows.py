"""The audio of an utterance comes in pieces; the model hears it as if it had come whole."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from offhook.media.pcm import Pcm
from offhook.pipeline.engines.qwen3_asr.windows import (
    MAX_PENDING,
    MAX_PIECES,
    ROOM,
    WINDOW_FRAMES,
    Windows,
    encoder_tokens,
    final_frames,
    samples_for,
)
from offhook.pipeline.speech.errors import AudioOverrun


def ramp(samples: int) -> Pcm:
    return np.random.default_rng(samples).integers(-32768, 32767, samples, dtype=np.int16)


def framed(pcm: Pcm) -> Pcm:
    """Whole clip: reflected at both ends, a frame of 400 every 160, the last left out."""
    if len(pcm) <= 200:
        return np.empty((0, 400), np.int16)
    padded = np.pad(pcm, 200, mode="reflect")
    return np.lib.stride_tricks.sliding_window_view(padded, 400)[::160][: len(pcm) // 160]


@pytest.mark.parametrize(
    ("samples", "ended", "frames"),
    [
        (0, True, 0),
        (200, True, 0),
        (201, True, 1),
        (201, False, 1),
        (359, False, 1),
        (360, False, 2),
        (16_000, False, 99),
        (16_000, True, 100),
        (16_040, False, 100),
    ],
)
def test_frames(samples: int, ended: bool, frames: int) -> None:
    assert final_frames(samples, ended) == frames


@given(st.integers(2, 10_000))
def test_frames_need_their_samples(frames: int) -> None:
    assert final_frames(samples_for(frames), ended=False) == frames
    assert final_frames(samples_for(frames) - 1, ended=False) == frames - 1


@pytest.mark.parametrize(
    ("frames", "tokens"),
    [(0, 0), (1, 1), (8, 1), (9, 2), (99, 13), (100, 13), (101, 14), (800, 104), (1650, 215)],
)
def test_encoder_tokens(frames: int, tokens: int) -> None:
    assert encoder_tokens(frames) == tokens


cuts = st.lists(st.integers(1, 60_000), min_size=1, max_size=8)


@settings(max_examples=60)
@given(cuts, st.lists(st.booleans(), min_size=8, max_size=8))
def test_any_pieces_make_the_same_frames(pieces: list[int], update: list[bool]) -> None:
    """Frame for frame, what the updates give is what the whole clip gives."""
    pcm = ramp(sum(pieces))
    windows = Windows()
    heard: dict[int, Pcm] = {}
    fed = 0
    for i, piece in enumerate(pieces):
        windows.feed(pcm[fed : fed + piece])
        fed += piece
        ended = i == len(pieces) - 1
        if not (update[i] or ended):
            continue
        step = windows.step(ended=ended)
        assert step.ended == ended
        assert step.audio_ms == 10 * final_frames(fed, ended)
        for window in step.windows:
            assert len(window.pcm) == (window.frames - window.first - 1) * 160 + 400
            assert window.first <= window.known < window.frames
            assert window.seconds.start == window.first // 100
            assert window.complete == (window is not step.windows[-1] or window.frames == 800)
            views = np.lib.stride_tricks.sliding_window_view(window.pcm, 400)[::160]
            for frame, view in enumerate(views, window.index * WINDOW_FRAMES + window.first):
                assert frame not in heard or np.array_equal(heard[frame], view)
                heard[frame] = view
        assert windows.completed == final_frames(fed, ended) // WINDOW_FRAMES
    whole = framed(pcm)
    assert sorted(heard) == list(range(len(whole)))
    assert all(np.array_equal(heard[i][1:], frame[1:]) for i, frame in enumerate(whole))


@settings(max_examples=40)
@given(cuts)
def test_memory_is_one_second_and_a_half_frame(pieces: list[int]) -> None:
    windows = Windows()
    for piece in pieces * 3:
        windows.feed(np.zeros(piece, np.int16))
        windows.step()
        held = windows.samples - windows._offset
        assert held <= 16_000 + 400
        assert len(windows._buffer) <= 16_000 + 400 + max(pieces) + ROOM


def test_tiny_pieces_are_joined() -> None:
    pcm = ramp(1000)
    windows = Windows()
    for sample in pcm:
        windows.feed(np.array([sample]))
        assert len(windows._fed) <= MAX_PIECES
    (window,) = windows.step(ended=True).windows
    assert np.array_equal(window.pcm[200:1000], pcm[:800])


def test_a_louder_frame_changes_all_seconds_of_its_window() -> None:
    windows = Windows()
    windows.feed(ramp(16_000 * 3))
    (first,) = windows.step().windows
    assert windows.to_convolve(first, 1.0) == range(3)
    windows.feed(ramp(8_000))
    (second,) = windows.step().windows
    assert windows.to_convolve(second, 1.0) == range(2, 4)  # 2.99 s had been final
    windows.feed(ramp(8_000))
    (third,) = windows.step().windows
    assert windows.to_convolve(third, 1.5) == range(4)
    windows.feed(ramp(16_000 * 5))
    fourth, fifth = windows.step().windows
    assert windows.to_convolve(fourth, 1.2) == range(3, 8)
    assert windows.to_convolve(fifth, 2.0) == range(1)


def test_an_update_may_take_a_part() -> None:
    windows = Windows()
    windows.feed(ramp(16_000 * 20))
    step = windows.step(end=samples_for(WINDOW_FRAMES))
    assert [(w.index, w.frames) for w in step.windows] == [(0, 800)]
    step = windows.step(ended=True)
    assert [(w.index, w.known, w.frames) for w in step.windows] == [(1, 0, 800), (2, 0, 400)]
    assert [w.tokens for w in step.windows] == [104, 52]
    assert step.encoder_tokens == 156


def test_positions_close_up_when_windows_are_dropped() -> None:
    windows = Windows()
    for second in range(45):
        windows.feed(ramp(16_000))
        step = windows.step()
        if second == 40:
            assert windows.completed == 5
            windows.drop(3)
    assert step.windows[0].index == 5
    assert step.windows[0].position == 2 * 104


def test_nothing_new() -> None:
    windows = Windows()
    assert windows.step().windows == ()
    windows.feed(ramp(500))
    assert len(windows.step().windows) == 1
    windows.feed(ramp(10))
    assert windows.step().windows == ()


def test_what_no_update_takes_has_a_bound() -> None:
    windows = Windows()
    windows.feed(np.zeros(MAX_PENDING - 10, np.int16))
    with pytest.raises(AudioOverrun, match="room for 10"):
        windows.feed(np.zeros(11, np.int16))
    windows.step()
    assert windows.room == MAX_PENDING
