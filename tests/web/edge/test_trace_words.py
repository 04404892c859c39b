"""Traces have what was said only where the log has it."""

from collections.abc import Sequence
from typing import Any

import pytest

sdk = pytest.importorskip("opentelemetry.sdk.trace")

from opentelemetry.sdk.trace import ReadableSpan, TracerProvider  # noqa: E402
from opentelemetry.sdk.trace.export import (  # noqa: E402
    SimpleSpanProcessor,
    SpanExporter,
    SpanExportResult,
)
from opentelemetry.trace import Status, StatusCode  # noqa: E402

from offhook.web.edge.calls.trace_words_io import WordGuard  # noqa: E402


class Collector(SpanExporter):
    """Keeps what would leave."""

    def __init__(self) -> None:
        self.spans: list[ReadableSpan] = []

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        self.spans += spans
        return SpanExportResult.SUCCESS

    def shutdown(self) -> None: ...


@pytest.mark.parametrize("has_words", [False, True])
def test_words_leave_where_they_are_logged(has_words: bool) -> None:
    there = Collector()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(WordGuard(there, lambda: has_words)))
    tracer = provider.get_tracer("offhook")
    said: dict[str, Any] = {
        "input": "[{'role': 'user', 'content': 'my card is 4111 1111 1111 1111'}]",
        "transcript": "hello Ada",
        "settings.instruction": "be kind to Ada",
        "tools.names": ["order", "Ada"],
    }
    kept: dict[str, Any] = {
        "conversation.id": "call",
        "gen_ai.request.model": "m",
        "metrics.ttfb": 0.25,
        "turn.number": 3,
    }
    with tracer.start_as_current_span("llm", attributes={**said, **kept}) as parent:
        parent.record_exception(ValueError("Ada is not known"))
        parent.set_status(Status(StatusCode.ERROR, "Ada is not known"))
        tracer.start_span("part").end()
    part, llm = there.spans
    assert (llm.name, llm.context) == ("llm", parent.get_span_context())
    assert part.parent is not None
    assert part.parent.span_id == parent.get_span_context().span_id
    assert llm.status.status_code is StatusCode.ERROR
    attributes = dict(llm.attributes or {})
    assert {name: attributes[name] for name in kept} == kept
    everything = llm.to_json()
    assert ("hello Ada" in everything) == has_words
    assert ("be kind to Ada" in everything) == has_words
    assert "4111" not in everything
    assert "is not known" not in everything
    assert attributes.keys() == (kept | said if has_words else kept).keys()
