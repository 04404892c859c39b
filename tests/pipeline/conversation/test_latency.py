"""Where the time of a turn went, to the millisecond and without a gap."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from offhook.pipeline.conversation.events import TurnLatency
from offhook.pipeline.conversation.latency import STAMPS, TurnStopwatch

TURN = {
    "packet_in": 10.000,
    "speech_end": 10.100,
    "asr_final": 10.250,
    "turn_decided": 10.260,
    "llm_first_token": 10.300,
    "tts_first_audio": 10.390,
    "first_packet": 10.400,
}


def stopwatch(stamps, silence_ms=260):
    watch = TurnStopwatch(3, silence_ms)
    for name, at in stamps.items():
        watch.stamp(name, at)
    return watch


def test_spans_follow_one_another_and_are_named_by_their_end():
    latency = stopwatch(TURN).latency(5000)
    spans = (
        ("speech_end", 100),
        ("asr_final", 150),
        ("turn_decided", 10),
        ("llm_first_token", 40),
        ("tts_first_audio", 90),
        ("first_packet", 10),
    )
    assert latency == TurnLatency(5000, 3, spans, 400, 260)


def test_the_order_is_that_of_time():
    """The recogniser may be done only after the turn was decided."""
    late = stopwatch({**TURN, "asr_final": 10.280}).latency(0)
    assert [name for name, _ in late.spans][:3] == ["speech_end", "turn_decided", "asr_final"]
    assert dict(late.spans)["asr_final"] == 20


def test_what_was_before_the_turn_is_no_span():
    early = stopwatch({**TURN, "asr_final": 9.5}).latency(0)
    assert "asr_final" not in dict(early.spans)
    assert sum(ms for _, ms in early.spans) == early.total_ms == 400


def test_the_first_stamp_of_a_name_counts():
    watch = stopwatch(TURN)
    watch.stamp("llm_first_token", 99.0)
    watch.stamp("first_packet", 99.0)
    assert watch.latency(0).total_ms == 400


def test_a_turn_is_complete_with_its_first_and_last_stamp():
    watch = TurnStopwatch(1, 0)
    watch.stamp("llm_first_token", 1.0)  # a greeting: no caller spoke before it
    watch.stamp("first_packet", 1.1)
    assert not watch.complete
    watch = stopwatch({"packet_in": 1.0})
    assert not watch.complete
    watch.stamp("first_packet", 1.5)
    assert watch.complete
    assert watch.latency(0).spans == (("first_packet", 500),)


def test_silence_waited_on_purpose_is_never_more_than_the_whole():
    assert stopwatch(TURN, silence_ms=900).latency(0).silence_ms == 400


@given(
    st.fixed_dictionaries(
        {"packet_in": st.just(100.0), "first_packet": st.floats(110, 120)},
        optional={name: st.floats(95, 110) for name in STAMPS[1:-1]},
    )
)
def test_spans_add_up_to_the_total(stamps):
    latency = stopwatch(stamps).latency(0)
    assert all(ms >= 0 for _, ms in latency.spans)
    assert latency.spans[-1][0] == "first_packet"
    # Each is rounded by itself.
    assert sum(ms for _, ms in latency.spans) == pytest.approx(latency.total_ms, abs=3.5)
    kept = {name for name, at in stamps.items() if at >= 100.0} - {"packet_in"}
    assert {name for name, _ in latency.spans} == kept
