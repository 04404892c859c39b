"""What Prometheus scrapes parses, and counts what happened."""

import pytest
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from offhook.media.end_reason import End, EndReason
from offhook.media.leg import LegStatistics
from offhook.pipeline.conversation.events import (
    CallEnded,
    CallerAmplified,
    CallerTurn,
    CallStarted,
    Interrupted,
    NoiseSuppressed,
    PlayoutResumed,
    SpeechStarted,
    TurnLatency,
)
from offhook.pipeline.conversation.latency import STAMPS
from offhook.web.http.metrics import Metrics


class Line:
    """Two lines and a clock that can be turned."""

    def __init__(self):
        self.legs = []
        self.late_ms = 0.0
        self.metrics = Metrics(lambda: self.legs, lambda: self.late_ms)

    def samples(self):
        """{name: {labels: value}} of one scrape."""
        found = {}
        text = generate_latest(self.metrics.registry).decode()
        for family in text_string_to_metric_families(text):
            assert family.documentation
            for sample in family.samples:
                labels = tuple(sorted(sample.labels.items()))
                found.setdefault(sample.name, {})[labels] = sample.value
        return found

    def value(self, name, **labels):
        return self.samples()[name][tuple(sorted(labels.items()))]


@pytest.fixture
def line():
    return Line()


def test_before_the_first_call_every_series_is_there(line):
    samples = line.samples()
    for name in (
        "offhook_calls_in_progress",
        "offhook_turns_total",
        "offhook_interruptions_total",
        "offhook_false_interruptions_total",
        "offhook_noise_suppressed_total",
        "offhook_callers_amplified_total",
        "offhook_response_seconds_count",
        "offhook_tick_lateness_seconds",
    ):
        assert samples[name] == {(): 0}
    spans = {dict(labels)["span"] for labels in samples["offhook_response_span_seconds_count"]}
    assert spans == set(STAMPS[1:])


def test_calls_are_counted_and_gone_when_they_end(line):
    for _ in range(3):
        line.metrics.record(CallStarted(0, "frontdesk", "pocketsphinx", "flite"))
    assert line.value("offhook_calls_in_progress") == 3
    line.metrics.record(CallEnded(900, End.CALLER_HUNG_UP))
    assert line.value("offhook_calls_in_progress") == 2
    assert line.value("offhook_calls_ended_total", reason="the caller hung up") == 1
    line.metrics.refused.labels("full").inc()
    assert line.value("offhook_calls_refused_total", reason="full") == 1


@pytest.mark.parametrize(
    ("reason", "label", "failed"),
    [
        (End.CALLER_HUNG_UP, "the caller hung up", False),
        (End.TRANSFERRED + " to +4930123456", "transferred", False),
        (EndReason("Genesys says <whatever it likes>"), "another", False),
        (EndReason("the line failed, says the far end"), "another", False),
        (End.LINE_FAILED, "the line failed", True),
        (End.FAR_END + " does not answer any more", "the far end", True),
        (End.ASTERISK_LOST + ": [Errno 32]", "the connection to Asterisk broke", True),
    ],
)
def test_a_call_that_failed_is_told_from_one_that_ended(line, reason, label, failed):
    line.metrics.record(CallStarted(0, "frontdesk", "pocketsphinx", "flite"))
    line.metrics.record(CallEnded(900, reason))
    assert line.value("offhook_calls_ended_total", reason=label) == 1
    counted = sum(line.samples()["offhook_calls_failed_total"].values())
    assert counted == failed


def test_what_a_far_end_says_makes_no_series(line):
    before = len(line.samples()["offhook_calls_failed_total"])
    for number in range(50):
        line.metrics.record(CallEnded(900, EndReason(f"Out of order {number}")))
        line.metrics.record(CallEnded(900, End.TRANSFERRED + f" to {number}"))
    assert len(line.samples()["offhook_calls_ended_total"]) == 2
    assert len(line.samples()["offhook_calls_failed_total"]) == before


def test_turns_and_interruptions_are_counted(line):
    for event in (
        CallerTurn(100, 1, "hello"),
        CallerTurn(200, 2, "yes"),
        Interrupted(300, "I am", "open"),
        PlayoutResumed(400, ""),
        PlayoutResumed(500, "uh-huh"),
        SpeechStarted(600),
        NoiseSuppressed(700, True, -36.0),
        NoiseSuppressed(800, False, -70.0),
        CallerAmplified(900, 24.0),
    ):
        line.metrics.record(event)
    assert line.value("offhook_turns_total") == 2
    assert line.value("offhook_interruptions_total") == 1
    assert line.value("offhook_false_interruptions_total") == 2
    assert line.value("offhook_noise_suppressed_total") == 1
    assert line.value("offhook_callers_amplified_total") == 1


def test_latency_is_in_seconds_by_span(line):
    spans = (("speech_end", 100), ("turn_decided", 260), ("first_packet", 40))
    line.metrics.record(TurnLatency(1000, 1, spans, 400, 260))
    assert line.value("offhook_response_seconds_sum") == pytest.approx(0.4)
    assert line.value("offhook_response_seconds_bucket", le="0.4") == 1
    assert line.value("offhook_response_seconds_bucket", le="0.3") == 0
    sums = line.samples()["offhook_response_span_seconds_sum"]
    assert sums[(("span", "turn_decided"),)] == pytest.approx(0.26)
    assert sums[(("span", "asr_final"),)] == 0


def test_lines_are_told_by_mean_and_worst_and_silent_ones_do_not_count(line):
    line.legs = [
        LegStatistics(mos=4.4, loss=0.0, jitter_ms=2, buffer_ms=40),
        LegStatistics(mos=2.0, loss=0.2, jitter_ms=30, buffer_ms=120),
        LegStatistics(),
    ]
    assert line.value("offhook_line_mos", of="mean") == pytest.approx(3.2)
    assert line.value("offhook_line_mos", of="worst") == 2.0
    assert line.value("offhook_line_loss_ratio", of="worst") == 0.2
    assert line.value("offhook_line_jitter_seconds", of="mean") == pytest.approx(0.016)
    assert line.value("offhook_line_buffer_seconds", of="worst") == pytest.approx(0.12)
    line.legs = []
    assert "offhook_line_mos" not in line.samples()


def test_lateness_is_read_when_asked(line):
    line.late_ms = 12.5
    assert line.value("offhook_tick_lateness_seconds") == pytest.approx(0.0125)


def test_a_reason_is_a_sentence_in_the_log() -> None:
    assert f"reason={End.CALLER_HUNG_UP!r}" == "reason='the caller hung up'"
