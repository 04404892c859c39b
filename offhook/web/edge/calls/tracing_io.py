"""Optional OpenTelemetry traces: a conversation, its turns, and in each the STT, LLM and TTS spans
that Pipecat creates."""

import time
from collections.abc import Callable
from importlib.util import find_spec

from offhook.pipeline.conversation.events import TurnLatency
from offhook.web.config.config import ConfigError
from offhook.web.config.server import Tracing

NEEDED = ("opentelemetry.sdk", "opentelemetry.exporter.otlp.proto.http")


def set_up(tracing: Tracing, has_words: Callable[[], bool]) -> None:
    """Starts exporting to the configured endpoint, if there is one. `has_words` says whether what
    was said may be in it now. Raises ConfigError if the packages are not installed."""
    if not tracing.otlp_endpoint:
        return
    try:
        missing = [name for name in NEEDED if find_spec(name) is None]
    except ModuleNotFoundError:
        missing = list(NEEDED)
    if missing:
        raise ConfigError(
            "tracing.otlp_endpoint needs OpenTelemetry: run .venv/bin/pip install "
            "opentelemetry-sdk opentelemetry-exporter-otlp-proto-http"
        )
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from pipecat.utils.tracing.setup import setup_tracing

    from offhook.web.edge.calls.trace_words_io import WordGuard

    exporter = OTLPSpanExporter(f"{tracing.otlp_endpoint.rstrip('/')}/v1/traces")
    setup_tracing("offhook", WordGuard(exporter, has_words))


def latency_spans(call_id: str, event: TurnLatency) -> None:
    """Emits the response time of one turn as a span, ending now, with a child per part."""
    from opentelemetry import trace

    tracer = trace.get_tracer("offhook")
    at = time.time_ns() - event.total_ms * 1_000_000
    attributes: dict[str, str | int] = {"conversation.id": call_id, "turn.number": event.turn}
    whole = tracer.start_span("response", start_time=at, attributes=attributes)
    context = trace.set_span_in_context(whole)
    for name, ms in event.spans:
        part = tracer.start_span(name, context, start_time=at, attributes={"ms": ms})
        at += ms * 1_000_000
        part.end(at)
    whole.end(at)
