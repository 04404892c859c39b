"""The speech benchmark judges as it says, all of its parts run, and a slow machine looks slow."""

import json
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from benchmarks.speech.texts import SENTENCES, even_words, frames_of, words  # noqa: E402
from benchmarks.voices import (  # noqa: E402
    tts,
    tts_frame,
    tts_parts,
    tts_peers,
    tts_runners,
)
from benchmarks.voices.listening import Listener, Tally  # noqa: E402
from benchmarks.voices.tts_load import Reply, Served, serve  # noqa: E402
from benchmarks.voices.tts_peers import PeerFailed  # noqa: E402
from benchmarks.voices.tts_runners import Machine, Planned, new_voice, usual_voices  # noqa: E402
from offhook.pipeline.engines.qwen3_tts.engine import TtsEngine  # noqa: E402
from offhook.pipeline.engines.qwen3_tts.model.codec import QWEN3_CODEC  # noqa: E402
from offhook.pipeline.engines.qwen3_tts.model.config import QWEN3_TTS_0_6B, QWEN3_TTS_1_7B  # noqa: E402
from offhook.pipeline.engines.qwen3_tts.simulated import Ends  # noqa: E402
from offhook.pipeline.engines.shared.synthesis.messages import (  # noqa: E402
    FRAME_SAMPLES,
    Ended,
    EngineEvent,
    Prompt,
    PromptPosition,
    Reason,
    Sampling,
    Spoken,
    Step,
)
from tests.pipeline.engines.qwen3_tts.stage import CONFIG, COST, Stage  # noqa: E402


@pytest.fixture(autouse=True)
def single() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def simulated(buckets: Sequence[int] = (1, 4, 16, 64)) -> Machine:
    return tts_runners.ready("0.6B", buckets, 1, True, lambda fraction, doing: None)


def rows(capsys: pytest.CaptureFixture[str], *arguments: str) -> list[dict[str, Any]]:
    assert tts.main(["--simulated", "--json", *arguments]) == 0
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


# --- what is judged, and how ---


def test_silence_is_counted_as_it_is_heard() -> None:
    tally = Tally()
    listener = Listener(tally, buffer=0.08)
    listener.hear(1, 10.0)  # heard from 10.08 to 10.16
    listener.hear(1, 10.15)  # to 10.24
    assert not tally.gaps
    listener.hear(4, 10.25)  # 10 ms late, to 10.57
    listener.hear(1, 10.74)  # 170 ms late
    assert tally.gaps == pytest.approx([0.01, 0.17])
    assert tally.late_frames == 1 + 3
    assert tally.late_share == 4 / 7
    assert listener.unheard(10.78) == pytest.approx(0.04)


def test_what_is_heard_before_counting_counts_for_the_playing_alone() -> None:
    tally = Tally()
    tally.counting = False
    listener = Listener(tally, buffer=0.0)
    listener.hear(1, 0.0)
    listener.hear(1, 1.0)
    tally.counting = True
    listener.hear(1, 1.2)
    assert tally.frames == 1
    assert tally.gaps == pytest.approx([0.12])


class Ending:
    """A runner whose model says that it is over in every frame."""

    slots, pages, ring, max_batch = 4, 8, 32, 4

    def __getattr__(self, name: str) -> Any:
        return lambda *arguments: None

    def step(self, steps: Sequence[Step]) -> Any:
        class Codes:
            ready = staticmethod(lambda: True)

            def __call__(self) -> list[int]:
                return [QWEN3_TTS_0_6B.codec_eos] * len(steps)

        return Codes()


@pytest.mark.parametrize("tokens", [1, 2, 7])
def test_a_segment_ends_where_its_text_says_and_nowhere_before(tokens: int) -> None:
    config = QWEN3_TTS_0_6B
    planned = Planned(Ending(), config)  # type: ignore[arg-type]
    for count in (1, tokens):  # the slot's next segment is planned anew
        planned.begin(2, 1, Sampling())
        texts = [5] * count + [config.tts_eos] + [config.tts_pad] * 40
        ends = []
        for frame, text in enumerate(texts):
            other, own = planned.step([Step(1, 7, frame, frame), Step(2, text, frame, frame)])()
            assert other != config.codec_eos
            ends.append(own == config.codec_eos)
        assert ends.index(True) == frames_of(count)
        assert all(ends[frames_of(count) :])


def test_a_text_before_its_frames_ends_where_it_says_too() -> None:
    config = QWEN3_TTS_0_6B
    planned = Planned(Ending(), config)  # type: ignore[arg-type]
    planned.begin(2, 1, Sampling())
    rows = [PromptPosition(token, config.codec_pad) for token in (5, 6, 7, config.tts_eos)]
    planned.prefill([Prompt(2, 9, rows)])
    steps = [planned.step([Step(2, config.tts_pad, frame, 13 + frame)])() for frame in range(20)]
    assert [codes[0] == config.codec_eos for codes in steps].index(True) == frames_of(3)


def test_floors_are_those_of_the_published_sizes() -> None:
    # 4.3 TB/s over 0.887 GB (2.83 GB) of the talker and 15 times 0.16 GB of the predictor.
    assert tts_frame.step_floor(QWEN3_TTS_0_6B).ms(1) == pytest.approx(0.77, abs=0.01)
    assert tts_frame.step_floor(QWEN3_TTS_1_7B).ms(1) == pytest.approx(1.24, abs=0.02)
    codec = tts_frame.codec_floor(QWEN3_CODEC, 1)
    assert codec.products * 2 == pytest.approx(4.96e9, rel=0.01)
    assert codec.weights * 2 == pytest.approx(207e6, rel=0.05)


def test_texts_are_as_long_as_they_should_be() -> None:
    said = [words(sentence, QWEN3_TTS_0_6B) for sentence in SENTENCES]
    seconds = [0.08 * frames_of(sum(len(word.tokens) for word in each)) for each in said]
    assert 4.0 < np.mean(seconds) < 5.0
    assert min(seconds) > 2.0
    assert max(seconds) < 8.0


def test_new_voices_are_new() -> None:
    voices = [new_voice(QWEN3_TTS_1_7B, i) for i in range(50)]
    assert len({voice.key for voice in voices}) == 50
    assert len(voices[0].rows) > len(usual_voices(QWEN3_TTS_1_7B)[0].rows)


# --- parts ---


@pytest.mark.slow
def test_all_parts_can_be_rehearsed(capsys: pytest.CaptureFixture[str]) -> None:
    said = rows(
        capsys,
        *("--buckets", "1,4,16,64", "--points", "20,50", "--seconds", "3", "--settle", "2"),
        *("--requests", "4@5,4@5/words,4@5/file", "--tokens", "2,50"),
        *("--voices", "6", "--minutes", "1"),
    )
    parts = {}
    for row in said:
        parts.setdefault(row["part"], []).append(row)
    assert [row["held"] for row in parts["voices"]] == ["yes", "yes"]
    assert parts["voices held"][0]["voices"] == 50
    for row in parts["open"]:
        assert row["requests"] > 10
        assert row["underruns"] == row["refused"] == row["silent"] == 0
        assert row["first_p95_ms"] < 60
        assert row["published_p95_ms"] == 31.6
    whole, _, file = parts["open"]
    assert file["all_p95_ms"] < 1000
    assert whole["all_p95_ms"] is None
    assert whole["peak"] > file["peak"]  # who listens takes as long as the speech
    by_case = {(row["tokens_a_second"], row["given"]): row for row in parts["llm"]}
    assert all(row["not_spoken"] == row["frames_off"] == 0 for row in parts["llm"])
    slow = by_case[2, "tokens"]
    assert slow["first_p95_ms"] < 50
    assert slow["waits_each"] > 10  # the voice is held, token by token
    assert by_case[2, "sentences"]["first_p50_ms"] == pytest.approx(5500, abs=50)
    (barge,) = parts["barge"]
    assert barge["cancels"] > 2
    assert barge["wasted_frames_most"] <= 10
    assert barge["first_p95_ms"] < 50
    (hour,) = parts["hour"]
    assert hour["frames_off"] == hour["tokens_back"] == hour["guard_ends"] == 0
    assert hour["ended"] == 6
    (memory,) = parts["hour memory"]
    assert memory["pages_kept"] == memory["slots_kept"] == 0
    (marks,) = parts["marks"]
    assert abs(marks["last_tenth_p50_ms"]) < 300


@pytest.mark.slow
def test_requests_go_through_the_sockets_of_a_worker(capsys: pytest.CaptureFixture[str]) -> None:
    point = ("--model", "tiny", "--parts", "open", "--buckets", "1,8", "--requests", "1@2")
    assert tts.main(["--json", *point, "--through", "gateway,socket"]) == 0
    _, within, *doors = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [row["through"] for row in doors] == ["socket", "gateway"]
    for row in doors:
        assert row["requests"] == within["requests"]
        assert row["failed"] == 0, row["fault"]
        assert row["cpu_ms"] > 0


def test_a_rehearsal_has_no_sockets() -> None:
    with pytest.raises(ValueError, match="no sockets"):
        tts.main(["--simulated", "--through", "http"])


def test_a_machine_too_slow_holds_few(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(tts_runners.SIMULATED_MS, "0.6B", (30.0, 2.0))
    said = rows(
        capsys,
        *("--parts", "voices", "--buckets", "1,8,64", "--points", "4,50"),
        *("--seconds", "4", "--settle", "2"),
    )
    few, many, held = said[1:]
    assert (few["held"], many["held"]) == ("yes", "no")
    assert many["late_share"] > 0.2
    assert many["longest_gap_ms"] > 50
    assert held["voices"] == 4


def test_requests_beyond_the_slots_are_refused() -> None:
    serving = serve(simulated((1, 6)))
    replies = [Reply(serving, Tally()) for _ in range(4)]
    text = even_words(4, 4, QWEN3_TTS_0_6B)
    for reply in replies:
        reply.say(usual_voices(QWEN3_TTS_0_6B)[0], text)
    serving.run(10.0, lambda: all(reply.over for reply in replies))
    assert [reply.refused for reply in replies] == [False, False, True, True]
    assert [reply.listener.frames for reply in replies] == [14, 14, 0, 0]


def test_more_voices_than_the_largest_batch_take_turns(capsys: pytest.CaptureFixture[str]) -> None:
    tts.main(
        ["--simulated", "--parts=voices", "--buckets=1,16", "--points=40", "--seconds=2", "--json"]
    )
    row = next(r for r in map(json.loads, capsys.readouterr().out.splitlines()) if "held" in r)
    assert (row["voices"], row["held"]) == (40, "yes")


def test_a_table_is_readable(capsys: pytest.CaptureFixture[str]) -> None:
    tts_parts.llm(simulated(), [50], as_json=False)
    head, *lines = capsys.readouterr().out.strip().splitlines()
    assert head.startswith("llm: text comes token by token")
    assert len({len(line) for line in lines}) == 1


# --- the engine in its thread ---


@pytest.fixture(scope="module")
def tiny() -> Machine:
    torch.set_num_threads(1)
    return tts_runners.ready("tiny", (1, 6), 1, False, lambda fraction, doing: None)


def test_a_reply_in_real_time(tiny: Machine) -> None:
    serving = serve(tiny)
    tally = Tally()
    reply = Reply(serving, tally, live=False)
    reply.say(usual_voices(tiny.config)[0], even_words(2, 2, tiny.config))
    serving.run(20.0, lambda: reply.over)
    serving.close()
    assert reply.reason is Reason.SPOKEN
    assert reply.listener.frames == frames_of(2)
    assert 0 < tally.engine_ms[0] <= tally.first_ms[0] < 20_000
    assert serving.engine.slots_left == serving.engine.slots == 2
    assert serving.busy > 0


def test_stages_are_timed_without_a_gpu_too(
    tiny: Machine, capsys: pytest.CaptureFixture[str]
) -> None:
    tts_frame.stages(tiny, repeats=1, kernels=0, as_json=True)
    first, *_, prefix = map(json.loads, capsys.readouterr().out.splitlines())
    assert first["streams"] == 1
    assert first["step_wall_ms"] > first["step_floor_ms"] > 0
    assert first["step_ms"] is None  # there is no graph to replay
    assert prefix["part"] == "prefix"


@pytest.mark.parametrize("where", ["engine", "client"])
def test_what_breaks_is_raised(tiny: Machine, where: str) -> None:
    def break_down() -> None:
        raise RuntimeError("the string broke")

    serving = serve(tiny)
    assert isinstance(serving, Served)
    if where == "engine":
        serving.order(break_down)
    else:
        serving.at(serving.now(), break_down)
    with pytest.raises(RuntimeError, match="the string broke"):
        serving.run(5.0)
    serving.close()


@pytest.mark.slow
def test_a_peer_that_is_not_there_says_so() -> None:
    with pytest.raises(PeerFailed, match=r"qwen-tts is not installed|No module"):
        tts_peers.official_frame_ms("tiny", "/nonexistent", 1)


@pytest.mark.parametrize("model_ends", [lambda segment: False, lambda segment: True])
def test_a_plan_ends_what_random_weights_do_not(model_ends: Ends) -> None:
    stage = Stage(ends=model_ends)
    planned = Planned(stage.runner, CONFIG)
    told: list[EngineEvent] = []
    engine = TtsEngine(planned, CONFIG, COST, told.append, 8)
    stage.engine = engine
    number = stage.speak(20)
    stage.run()
    assert sum(len(t.pcm) for t in told if isinstance(t, Spoken)) == 70 * FRAME_SAMPLES
    assert told[-1] == Ended(number, Reason.SPOKEN)
