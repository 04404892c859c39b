"""Metrics of callers who wait for a person."""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

OUTCOMES = ("answered", "abandoned", "too_long", "full", "callback", "not_reached")
"""Accepted by a person, hung up, waited for too long, the queue was full, is called back, and was
called back in vain."""
BUCKETS_S = (5, 10, 20, 30, 60, 120, 300, 600, 1200, 1800, 3600)


class QueueMetrics:
    def __init__(self, registry: CollectorRegistry) -> None:
        self.waiting = Gauge(
            "offhook_queue_waiting",
            "Callers who wait at this server, with those whom it is to call back",
            ["queue"],
            registry=registry,
        )
        self._left = Counter(
            "offhook_queue_left_total",
            "Callers who wait no longer, by what came of it",
            ["queue", "outcome"],
            registry=registry,
        )
        self._waited = Histogram(
            "offhook_queue_wait_seconds",
            "How long callers waited until a person accepted them",
            ["queue"],
            buckets=BUCKETS_S,
            registry=registry,
        )
        self._in_time = Counter(
            "offhook_queue_answered_in_time_total",
            "Callers whom a person accepted within service_seconds of the queue",
            ["queue"],
            registry=registry,
        )

    def begin(self, queue: str) -> None:
        """Show the series of a queue from the start."""
        self.waiting.labels(queue)
        self._waited.labels(queue)
        self._in_time.labels(queue)
        for outcome in OUTCOMES:
            self._left.labels(queue, outcome)

    def count(self, queue: str, outcome: str, waited_s: float, within_s: float) -> None:
        """A caller waits no longer. `within_s` is the time in which one should be answered."""
        self._left.labels(queue, outcome).inc()
        if outcome == "answered":
            self._waited.labels(queue).observe(waited_s)
            if waited_s <= within_s:
                self._in_time.labels(queue).inc()
