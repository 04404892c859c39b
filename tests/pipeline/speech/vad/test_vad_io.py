"""Many calls through one session: the same answers as alone, in order, and bounded when late."""

import asyncio
from collections.abc import AsyncIterator

import numpy as np
import pytest

from offhook.media.pcm import SAMPLES_IN, Pcm, dbfs
from offhook.pipeline.speech.vad.vad_io import (
    MAX_LATE_WINDOWS,
    QUIET_WINDOWS,
    SILENT_WINDOWS,
    WINDOW,
    Floats,
    VadBatch,
    VadStream,
)


def hum(seconds: float, seed: int) -> Pcm:
    """Pulses through noise: enough like a voice to move the model's state about."""
    rng = np.random.default_rng(seed)
    n = int(seconds * 16_000)
    pulses = np.zeros(n)
    pulses[:: int(rng.integers(80, 160))] = 1
    rise = np.sin(np.arange(n) / 16_000 * rng.uniform(2, 6)) ** 2
    tube = np.exp(-np.arange(200) / 25) * np.cos(np.arange(200) * rng.uniform(0.15, 0.4))
    sound = np.convolve(pulses, tube)[:n] * rise + rng.normal(0, 0.01, n)
    return np.asarray(sound * 9000, np.int16)


class Call:
    def __init__(self, batch: VadBatch) -> None:
        self.probabilities: list[float] = []
        self.levels: list[float] = []
        self.ends: list[int] = []
        self.stream: VadStream = batch.open(self.take)

    def as_judged(self, sound: Pcm) -> Pcm:
        """`sound` behind what fills up the first window."""
        return np.concatenate((np.zeros(self.stream._lead, np.int16), sound))

    def take(self, probability: float, level: float, end_sample: int) -> None:
        self.probabilities.append(probability)
        self.levels.append(level)
        self.ends.append(end_sample)


@pytest.fixture
async def batch() -> AsyncIterator[VadBatch]:
    vad = VadBatch()
    yield vad
    vad.close()


async def idle(batch: VadBatch) -> None:
    """Until no batch is due. Nobody but the calls is told when one is done."""
    while batch._due:
        await asyncio.sleep(0)


def same(found: list[float] | Floats, alone: Floats) -> bool:
    """A batch adds up its products in another order than a single window."""
    return len(found) == len(alone) and np.allclose(found, alone, rtol=0, atol=1e-5)


async def play(batch: VadBatch, calls: list[Call], sounds: list[Pcm]) -> None:
    """20 ms ticks; call i joins i ticks late, so that windows of all phases share batches."""
    ticks = max(len(s) // SAMPLES_IN + i for i, s in enumerate(sounds))
    for tick in range(ticks):
        for i, (call, sound) in enumerate(zip(calls, sounds, strict=True)):
            if tick >= i:
                call.stream.feed(sound[(tick - i) * SAMPLES_IN : (tick - i + 1) * SAMPLES_IN])
        batch.run()
        await idle(batch)


async def test_batched_answers_are_those_of_single_runs(batch: VadBatch) -> None:
    sounds = [hum(1.0 + 0.2 * i, i) for i in range(7)]
    calls = [Call(batch) for _ in sounds]
    await play(batch, calls, sounds)
    for call, sound in zip(calls, sounds, strict=True):
        judged = call.as_judged(sound)
        alone = batch.probabilities(judged)
        assert same(call.probabilities, alone)
        lead = call.stream._lead
        assert call.ends == [(i + 1) * WINDOW - lead for i in range(len(alone))]
        assert call.levels[3] == pytest.approx(dbfs(judged[3 * WINDOW : 4 * WINDOW]), abs=0.01)
    assert np.ptp(batch.probabilities(sounds[0])) > 0.01


async def test_windows_of_all_calls_end_at_the_same_ticks(batch: VadBatch) -> None:
    calls = [Call(batch) for _ in range(5)]
    batches = 0
    for tick in range(40):
        for late, call in enumerate(calls):
            if tick >= late:
                call.stream.feed(hum(0.02, tick))
        before = [len(call.ends) for call in calls]
        batch.run()
        await idle(batch)
        told = [len(call.ends) > n for call, n in zip(calls, before, strict=True)]
        batches += any(told)
        assert tick < 6 or len(set(told)) == 1
    assert batches == 40 * SAMPLES_IN // WINDOW


async def test_silence_is_not_judged_and_speech_after_it_is_as_after_a_little(
    batch: VadBatch,
) -> None:
    speech = hum(1.024, 2)
    silence = np.zeros(WINDOW * 50, np.int16)
    call = Call(batch)
    await play(batch, [call], [np.concatenate((speech, silence, speech))])
    little = batch.probabilities(
        np.concatenate((speech, silence[: WINDOW * SILENT_WINDOWS], speech))
    )
    found = np.array(call.probabilities, np.float32)
    first, second = len(speech) // WINDOW + SILENT_WINDOWS, len(speech) // WINDOW + 50
    assert same(found[:first], little[:first])
    assert not found[first:second].any()
    assert same(found[second:], little[first : first + len(found) - second])
    assert call.ends == [(i + 1) * WINDOW for i in range(len(found))]
    assert max(call.levels[first:second]) < -80


async def test_long_silence_makes_the_state_fresh(batch: VadBatch) -> None:
    speech = hum(0.64, 7)
    silence = np.zeros(WINDOW * (QUIET_WINDOWS + 30), np.int16)
    calls = [Call(batch), Call(batch)]
    await play(batch, calls, [np.concatenate((hum(1.024, 2), silence, speech)), hum(4.6, 8)])
    fresh = batch.probabilities(np.concatenate((silence[: WINDOW * SILENT_WINDOWS], speech)))
    found = np.array(calls[0].probabilities, np.float32)[32 + QUIET_WINDOWS + 30 :]
    assert len(found) > 15
    assert same(found, fresh[SILENT_WINDOWS:][: len(found)])


async def test_the_state_is_fresh_for_the_next_call(batch: VadBatch) -> None:
    sound = hum(0.5, 9)
    first = Call(batch)
    await play(batch, [first], [hum(1.0, 3)])
    first.stream.close()
    first.stream.close()
    second = Call(batch)
    await play(batch, [second], [sound])
    alone = batch.probabilities(second.as_judged(sound))
    assert same(second.probabilities, alone)


async def test_call_closed_while_its_window_is_judged_hears_nothing(batch: VadBatch) -> None:
    gone = Call(batch)
    gone.stream.feed(hum(0.032, 1))
    batch.run()
    gone.stream.close()
    sound = hum(0.5, 4)
    heir = Call(batch)
    await idle(batch)
    await play(batch, [heir], [sound])
    assert gone.probabilities == []
    alone = batch.probabilities(heir.as_judged(sound))
    assert same(heir.probabilities, alone)


async def test_late_windows_wait_in_order(batch: VadBatch) -> None:
    """Half a second arrives while nobody runs the batch: nothing is lost."""
    sound = hum(0.5, 5)
    call = Call(batch)
    for at in range(0, len(sound), SAMPLES_IN):
        call.stream.feed(sound[at : at + SAMPLES_IN])
    batch.run()
    await idle(batch)
    assert same(call.probabilities, batch.probabilities(sound))
    assert call.stream.dropped == 0


async def test_more_than_a_second_late_drops_the_oldest_and_counts(batch: VadBatch) -> None:
    sound = hum(3.2, 6)
    call = Call(batch)
    for at in range(0, len(sound), SAMPLES_IN):
        call.stream.feed(sound[at : at + SAMPLES_IN])
    batch.run()
    await idle(batch)
    assert len(call.ends) == MAX_LATE_WINDOWS
    assert call.stream.dropped == len(sound) // WINDOW - MAX_LATE_WINDOWS
    assert call.ends == list(range(call.ends[0], len(sound) + 1, WINDOW))
    newest = sound[call.ends[-1] - WINDOW : call.ends[-1]]
    assert call.levels[-1] == pytest.approx(dbfs(newest), abs=0.01)
