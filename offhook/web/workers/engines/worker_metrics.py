"""The workers of engines that have several, by state, for /healthz and Prometheus."""

from collections.abc import Iterable

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from offhook.pipeline.speech.remote.pool_io import Workers
from offhook.pipeline.speech.remote.recognizer_io import RemoteRecognizer
from offhook.pipeline.speech.remote.synthesizer_io import RemoteSynthesizer


class WorkerCollector(Collector):
    """Counts the workers of those of `engines` that are reached by a list or a name."""

    def __init__(self, *engines: object) -> None:
        self._workers: list[Workers] = [
            engine.workers
            for engine in engines
            if isinstance(engine, RemoteRecognizer | RemoteSynthesizer)
        ]

    def health(self) -> dict[str, dict[str, int]]:
        """Returns the number of workers in each state, by kind; nothing where there is only one."""
        return {
            workers.kind: {state: count for state, count in workers.counts().items() if count}
            for workers in self._workers
            if workers.several
        }

    def collect(self) -> Iterable[Metric]:
        family = GaugeMetricFamily(
            "offhook_workers",
            "Speech workers that this process knows of, where there are several",
            labels=["kind", "state"],
        )
        for workers in self._workers:
            for state, count in workers.counts().items() if workers.several else ():
                family.add_metric([workers.kind, state], count)
        if family.samples:
            yield family
