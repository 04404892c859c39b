"""The benchmark of streaming finds where the time of a text went, with clients of its own."""

import json
import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.speech import stream
from benchmarks.speech.recordings import VOWELS_S, babbled, phrases
from benchmarks.speech.stream_callers import Failed, LatencyRecorder, Plan
from benchmarks.speech.stream_result import PARTS, Result
from offhook.media.pcm import RATE_IN
from tests.pipeline.speech.test_timing import Timed, worker
from tests.web.workers.workers import served

PLAN = Plan("http://x", "", 0, 1, update_ms=80, chunk_ms=20, at=0.0, stagger_s=0, until=9.0)
STAGES = {"buffering_ms": 60.0, "queued_ms": 4.0, "gpu_ms": 5.0, "routed_ms": 2.0, "sent_ms": 1.0}


def said(result: Result, seconds: float = 1.0, counts: bool = True) -> LatencyRecorder:
    """One utterance that begins at 10 s, of which each piece left when it was spoken."""
    notes = LatencyRecorder(PLAN, result)
    utterance = notes.begin(10.0, counts)
    utterance.sent = [10 + 0.02 * (at + 1) for at in range(round(seconds / 0.02))]
    utterance.flushed = 10 + seconds
    return notes


def partial(audio_ms: int, text: str = "go", **more: object) -> dict[str, object]:
    event = {"type": "partial", "utterance": 0, "text": text, "audio_ms": audio_ms}
    return {**event, "timing": STAGES, **more}


def test_the_first_text_is_split_into_where_it_was() -> None:
    result = Result()
    notes = said(result)
    notes.record(partial(80, " "), 10.095)
    notes.record(partial(160), 10.175)
    notes.record(partial(240), 10.255)
    [first] = result.firsts
    assert vars(first) == pytest.approx(
        {
            "total": 175.0,
            "audio": 160.0,
            "network": 3.0,
            "queued": 4.0,
            "gpu": 5.0,
            "routed": 2.0,
            "sent": 1.0,
            "update": 2,
            "sound": 160,
        }
    )


def test_sound_that_came_while_a_text_was_queued_is_not_waited_for_twice() -> None:
    result = Result()
    said(result).record(partial(400, timing={**STAGES, "queued_ms": 300.0}), 10.42)
    [first] = result.firsts
    assert (first.audio, first.network, first.queued) == pytest.approx((112.0, 0.0, 300.0))


@given(
    st.integers(1, 999),
    st.floats(0, 500),
    st.lists(st.floats(0, 300), min_size=4, max_size=4),
    st.booleans(),
)
def test_the_parts_of_a_first_text_are_the_whole(
    audio_ms: int, later_ms: float, stages: list[float], final: bool
) -> None:
    result = Result()
    timing = dict(zip(("queued_ms", "gpu_ms", "routed_ms", "sent_ms"), stages, strict=True))
    kind = "final" if final else "partial"
    now = 11.0 + later_ms / 1000
    said(result).record(partial(audio_ms, type=kind, timing={"buffering_ms": 0.0, **timing}), now)
    [first] = result.firsts
    parts = [getattr(first, part) for part in PARTS]
    assert sum(parts) == pytest.approx(first.total)
    assert first.network >= -1e-6


def test_a_text_of_several_updates_is_late_for_the_older_ones() -> None:
    result = Result()
    notes = said(result)
    notes.record(partial(80), 10.15)  # 70 ms after its sound: in time
    notes.record(partial(320), 10.33)  # 10, 90 and 170 ms after three updates' sound
    notes.record(partial(320), 10.34)  # nothing new
    assert (result.due, result.late) == (4, 2)
    assert [update.total for update in result.updates] == pytest.approx([70.0, 10.0])
    notes.record(partial(400), 10.49)  # 90 ms
    assert (result.due, result.late) == (5, 3)


def test_finals_are_timed_from_the_flush_and_texts_that_never_came_are_counted() -> None:
    result = Result()
    notes = said(result)
    notes.record(partial(1000, "", type="final", continues=True), 11.1)
    assert notes.waiting == 1
    notes.record(partial(1000, "", type="final"), 11.2)
    assert notes.waiting == 0
    assert result.finals == pytest.approx([200.0])
    assert (result.without_text, result.firsts) == (1, [])
    with pytest.raises(Failed, match="a final of utterance 0, which there is not"):
        notes.record(partial(1000, "", type="final"), 11.3)


def test_what_is_said_before_all_have_begun_does_not_count() -> None:
    result = Result()
    notes = said(result, counts=False)
    notes.record(partial(80), 10.1)
    notes.record(partial(1000, type="final"), 11.1)
    assert result == Result()


def test_a_result_is_the_same_after_its_way_between_processes() -> None:
    result = Result()
    notes = said(result)
    notes.record(partial(80), 10.1)
    notes.record(partial(1000, type="final"), 11.1)
    result.fail("gone")
    again = Result.of(json.loads(json.dumps(result.as_json())))
    assert again == result
    again.add(result)
    assert (len(again.firsts), len(again.updates), again.due) == (2, 2, 2)
    assert again.errors == {"gone": 2}
    assert again.later_rows()[0]["errors"] == 2


# --- what is said ---


def test_phrases_begin_and_end_with_their_voice() -> None:
    voice = babbled(1.0)
    quiet = np.random.default_rng(1).integers(-9, 10, RATE_IN // 2).astype(np.int16)
    click = np.full(100, 20_000, np.int16)
    found = phrases([np.concatenate((quiet, click, quiet, voice, quiet, voice, quiet, click))])
    assert [len(pcm) / RATE_IN for pcm in found] == pytest.approx([1.0, 1.0], abs=0.15)
    for pcm in found:
        assert np.abs(pcm[:160]).max() > 500
    assert len(phrases([babbled(0.3)])) == 1, "a recording is never left out altogether"
    assert len(phrases([babbled(seconds) for seconds in VOWELS_S])) == 3


# --- whole ---


@pytest.fixture
def shortly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OFFHOOK_SPEECH", "/nowhere")  # it babbles, a second at a time
    monkeypatch.setattr(stream, "CALLERS", 2)
    monkeypatch.setattr(stream, "CONNECT_S", 0.3)
    monkeypatch.setattr(stream, "STAGGER_S", 0.5)
    monkeypatch.setattr(stream, "FILES", 2)


@pytest.mark.usefixtures("shortly")
@pytest.mark.slow
async def test_callers_find_how_long_a_worker_took() -> None:
    made, _ = worker(Timed())
    async with served(made) as (client, _):
        url = str(client.make_url("")).rstrip("/")
        a = stream._parser().parse_args(["--url", url, "--update-ms", "80", "--seconds", "2"])
        a.server = url
        began = time.monotonic()
        found = await stream.point(3, a)
        assert time.monotonic() - began < 15
    assert not found.errors
    assert len(found.finals) >= 3
    row = found.first_rows()[0]
    # The engine tells of a word with the first piece of 20 ms, which it says took it 20 ms.
    assert 20 <= row["first_ms"] < 80
    assert row["gpu_ms"] == pytest.approx(10, abs=0.1)
    assert (row["update_no"], row["sound_ms"]) == (1, 20)
    later = found.later_rows()[0]
    assert later["updates"] > 100
    assert later["client_late_ms"] < 50


@pytest.mark.usefixtures("shortly")
async def test_callers_that_are_refused_say_why() -> None:
    made, _ = worker(Timed())
    made.draining = True
    async with served(made) as (client, _):
        a = stream._parser().parse_args(["--seconds", "0.1"])
        a.server = str(client.make_url("")).rstrip("/")
        found = await stream.point(1, a)
    assert found.errors == {"stopping: the server is stopping: connect again": 1}
    assert found.later_rows()[0]["late_percent"] != found.later_rows()[0]["late_percent"]


@pytest.mark.slow
@pytest.mark.usefixtures("shortly")
def test_the_command_starts_a_worker_and_prints_rows(capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--concurrency", "1", "--seconds", "1.5", "--update-ms", "100", "--file", "0.5"]
    assert stream.main([*options, "--engine", "pocketsphinx", "--json"]) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    parts = [(row["part"], row.get("of", row.get("way"))) for row in rows]
    quantiles = ("p50", "p95", "p99")
    assert parts == [
        *(("first text", of) for of in quantiles),
        *(("updates and finals", of) for of in quantiles),
        ("file", "POST"),
        ("file", "WebSocket"),
    ]
    assert rows[3]["finals"] >= 1
    assert rows[3]["final_ms"] > 0
    assert rows[3]["errors"] == 0
    assert all(row["p50_ms"] > 0 and row["errors"] == 0 for row in rows[-2:])


def test_a_worker_that_does_not_load_says_why(capsys: pytest.CaptureFixture[str]) -> None:
    assert stream.main(["--concurrency", "1", "--engine", "ears"]) == 1
    said = capsys.readouterr().err
    assert "the worker does not load" in said
    assert "invalid choice: 'ears'" in said
