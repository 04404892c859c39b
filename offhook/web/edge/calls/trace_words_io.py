"""Keeps what was said out of traces: Pipecat's spans have instructions, conversations, answers and
transcripts as text."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from opentelemetry.trace import Status

from offhook.web.http.logs import masked

NAMES = frozenset(
    (
        *("conversation.id", "conversation.type", "turn.type", "language", "voice_id"),
        *("gen_ai.provider.name", "gen_ai.request.model", "gen_ai.operation.name"),
        *("gen_ai.output.type", "service.operation", "tool_choice"),
    )
)
"""Attributes whose text is none that was said. All others with a text count as words: a later
Pipecat may have new ones."""


class WordGuard(SpanExporter):
    """Exports spans without words, or with numbers masked as in the log."""

    def __init__(self, exporter: SpanExporter, has_words: Callable[[], bool]) -> None:
        self._exporter, self._has_words = exporter, has_words

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        has_words = self._has_words()
        return self._exporter.export([_shown(span, has_words) for span in spans])

    def shutdown(self) -> None:
        self._exporter.shutdown()

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        return self._exporter.force_flush(timeout_millis)


def _shown(span: ReadableSpan, has_words: bool) -> ReadableSpan:
    """Returns a span without its events and descriptions of errors, which may repeat what a server
    was sent."""
    return ReadableSpan(
        span.name,
        span.context,
        span.parent,
        span.resource,
        attributes=attributes_of(span.attributes or {}, has_words),
        links=span.links,
        kind=span.kind,
        status=Status(span.status.status_code),
        start_time=span.start_time,
        end_time=span.end_time,
        instrumentation_scope=span.instrumentation_scope,
    )


def attributes_of(attributes: Mapping[str, Any], has_words: bool) -> dict[str, Any]:
    """Returns the attributes that may leave."""
    shown: dict[str, Any] = {}
    for name, value in attributes.items():
        if name in NAMES or isinstance(value, bool | int | float):
            shown[name] = value
        elif has_words:
            shown[name] = _masked(value) if isinstance(value, str) else list(map(_masked, value))
    return shown


def _masked(value: Any) -> Any:
    return masked(value) if isinstance(value, str) else value
