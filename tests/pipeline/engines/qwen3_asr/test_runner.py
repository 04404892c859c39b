"""What the runner writes for a launch is what each stream by itself would have it write."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

torch = pytest.importorskip("torch")

from torch import Tensor  # noqa: E402

from offhook.pipeline.engines.qwen3_asr.model.checkpoint import random_model  # noqa: E402
from offhook.pipeline.engines.qwen3_asr.passes import Pass, Second, Span, Stem  # noqa: E402
from offhook.pipeline.engines.qwen3_asr.runner import (  # noqa: E402
    RING_S,
    RING_WINDOWS,
    TABLE_WIDTH,
    WINDOW_TOKENS,
    Runner,
)
from offhook.pipeline.engines.shared.graphs import Size, Stage  # noqa: E402
from tests.pipeline.engines.shared.model import tiny  # noqa: E402

STREAMS = 8
Lists = dict[str, list[int]]


class Recorded(Stage):
    """A stage that computes nothing, and what was written for its launch."""

    def __init__(self, of: Stage) -> None:
        super().__init__(of.name, of._run, of._layout, (), torch.device("cpu"))
        self.written: Lists = {}

    def fields(self, size: Size) -> dict[str, Any]:
        self._fields = super().fields(size)
        return self._fields

    def launch(self, size: Size) -> Tensor:
        self.written = {name: values.tolist() for name, values in self._fields.items()}
        return torch.zeros(2, size.groups or size.items, dtype=torch.int64)


@pytest.fixture(scope="module")
def runner() -> Runner:
    runner = Runner(random_model(tiny.CONFIG, "cpu", torch.float32), STREAMS, 200)
    for name in ("mel", "stem", "encoder", "prefill", "verify"):
        setattr(runner, f"{name}_stage", Recorded(getattr(runner, f"{name}_stage")))
    for slot in range(1, STREAMS + 1):
        runner.assign(slot, range(10 * slot, 10 * slot + 5))
    return runner


ids = st.lists(st.integers(1, 99), max_size=6)
spans = st.lists(st.builds(Span, st.integers(0, 40), st.integers(0, WINDOW_TOKENS)), max_size=3)
passes = st.lists(
    st.tuples(ids, spans, ids, ids, st.booleans(), st.integers(0, 300)),
    min_size=1,
    max_size=STREAMS,
).map(
    lambda streams: [
        Pass(
            slot,
            encode=audio,
            start=start,
            before=before,
            audio=audio,
            after=[100 + slot, *after] if decode else [],
            draft=draft if decode else [],
            decode=decode,
        )
        for slot, (before, audio, after, draft, decode, start) in enumerate(streams, 1)
    ]
)


def written(runner: Runner, stage: str) -> Lists:
    recorded = getattr(runner, f"{stage}_stage")
    assert isinstance(recorded, Recorded)
    return recorded.written


@given(passes)
def test_a_prefill_is_that_of_each_stream_after_another(runner: Runner, batch: list[Pass]) -> None:
    runner.prefill(batch)
    want: Lists = {name: [] for name in ("ids", "audio", "positions", "owner", "pages")}
    want |= {"slots": [], "lengths": [], "starts": [0]}
    for number, p in enumerate(batch):
        rows = [
            1 + (p.slot * RING_WINDOWS + span.window % RING_WINDOWS) * WINDOW_TOKENS + token
            for span in p.audio
            for token in range(span.tokens)
        ]
        text = p.after + p.draft
        want["ids"] += p.before + [0] * len(rows) + text
        want["audio"] += [0] * len(p.before) + rows + [0] * len(text)
        want["positions"] += range(p.start, p.start + p.tokens)
        want["owner"] += [number] * p.tokens
        want["pages"] += [*range(10 * p.slot, 10 * p.slot + 5), *[0] * (TABLE_WIDTH - 5)]
        want["slots"].append(p.slot)
        want["lengths"].append(p.start + p.tokens)
        want["starts"].append(want["starts"][-1] + p.tokens)
    # One group more, for padding.
    want["starts"].append(want["starts"][-1])
    for name, more in (("slots", 1), ("lengths", 1), ("pages", TABLE_WIDTH)):
        want[name] += [0] * more
    assert written(runner, "prefill") == want


@given(passes.filter(lambda batch: any(p.decode for p in batch)))
def test_drafts_are_verified_where_they_were_read(runner: Runner, batch: list[Pass]) -> None:
    runner.prefill(batch)
    names = ("rows", "positions", "owner", "sequence", "expected", "slots", "first")
    want: Lists = {name: [] for name in names}
    end = 0
    for p in batch:
        end += p.tokens
        if p.decode:
            want["first"].append(len(want["rows"]))
            want["rows"] += range(end - p.rows, end)
            want["positions"] += range(p.start + p.tokens - p.rows, p.start + p.tokens)
            want["owner"] += [p.slot] * p.rows
            want["sequence"] += [len(want["slots"])] * p.rows
            want["expected"] += [*p.draft, -1]
            want["slots"].append(p.slot)
    assert written(runner, "verify") == want


@given(passes.filter(lambda batch: any(p.encode for p in batch)))
def test_encoded_windows_follow_one_another(runner: Runner, batch: list[Pass]) -> None:
    runner.encode(batch)
    stem: list[int] = []
    heard: list[int] = []
    starts = [0]
    for p in batch:
        for span in p.encode:
            for token in range(span.tokens):
                second = (span.window * 8 + token // 13) % RING_S
                stem.append((p.slot * RING_S + second) * 13 + token % 13)
                window = p.slot * RING_WINDOWS + span.window % RING_WINDOWS
                heard.append(window * WINDOW_TOKENS + token)
            starts.append(len(stem))
    assert written(runner, "encoder") == {"stem": stem, "heard": heard, "starts": starts}


def test_seconds_are_followed_by_silence(runner: Runner) -> None:
    pcm = np.arange(1, 961, dtype=np.int16)
    batch = [
        Pass(2, [Second(25, pcm, 4)], [Stem(25, 4, 0.5)]),
        Pass(3, [Second(0, pcm[:400], 1)], [Stem(0, 1, -1.5), Stem(23, 100, 2.0)]),
    ]
    runner.mel(batch)
    mel = written(runner, "mel")
    assert (mel["frames"], mel["row"]) == ([4, 1], [2 * RING_S + 1, 3 * RING_S])
    sound = np.array(mel["pcm"]).view(np.int16).reshape(2, -1)
    assert np.array_equal(sound[0, :960], pcm)
    assert np.array_equal(sound[1, :400], pcm[:400])
    assert not sound[0, 960:].any()
    assert not sound[1, 400:].any()
    runner.encode(batch)
    stems = written(runner, "stem")
    assert stems["row"] == [2 * RING_S + 1, 3 * RING_S, 3 * RING_S + 23]
    assert stems["frames"] == [4, 1, 100]
    assert np.array(stems["maximum"]).view(np.float64).tolist() == [0.5, -1.5, 2.0]
