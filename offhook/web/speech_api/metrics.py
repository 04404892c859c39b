"""Prometheus metrics of the speech API. Times are in seconds."""

from collections.abc import Iterable
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from offhook.pipeline.speech.streams.languages import NAMES
from offhook.web.speech_api.admission import KINDS, Admission, Kind

SHORT = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 1, 2, 3, 5, 10, 30)
OTHER = "other"
OF_RECORDING = "of a recording"
"""Label of a voice that is cloned for one request."""
MAX_VOICES = 50
"""Maximum voices with a label of their own in the metrics; further ones are counted as `other`."""
LENGTHS = ((100, "short"), (1000, "medium"))
"""Most characters of a text for each label; longer ones are `long`."""
LONG = (0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1800)


@dataclass(frozen=True)
class Labels:
    """What a request was about, as labels of metrics; empty: unknown, or it does not matter."""

    format: str = ""
    voice: str = ""
    language: str = ""
    length: str = ""

    @classmethod
    def of_speech(cls, format: str, voice: str, language: str, text: str) -> "Labels":
        """Returns the labels of a text that is spoken."""
        length = next((name for most, name in LENGTHS if len(text) <= most), "long")
        return cls(format, voice, language, length)


class SpeechMetrics:
    """The metrics, in a registry that may hold others."""

    def __init__(self, registry: CollectorRegistry, admission: Admission) -> None:
        self.registry = registry
        name = "offhook_speech"
        self.requests = Counter(
            f"{name}_requests_total", "Requests answered", ["endpoint", "status"], registry=registry
        )
        self.request = Histogram(
            f"{name}_request_seconds",
            "From the request's head to the end of its answer",
            ["endpoint", "status"],
            buckets=LONG,
            registry=registry,
        )
        self.queue = Histogram(
            f"{name}_queue_seconds",
            "Waiting for a turn",
            ["kind"],
            buckets=SHORT,
            registry=registry,
        )
        self.inference = Histogram(
            f"{name}_inference_seconds",
            "From the engine's being there to its last result; of speech with voice and length",
            ["kind", "voice", "language", "length"],
            buckets=LONG,
            registry=registry,
        )
        self.encode = Histogram(
            f"{name}_encode_seconds",
            "From the engine's last result to the encoder's",
            ["format"],
            buckets=SHORT,
            registry=registry,
        )
        self.first_byte = Histogram(
            f"{name}_first_byte_seconds",
            "From the request's head to the first byte of its answer's body",
            ["endpoint"],
            buckets=SHORT,
            registry=registry,
        )
        audio = Counter(
            f"{name}_audio_seconds_total", "Sound heard and made", ["kind"], registry=registry
        )
        self.audio = {kind: audio.labels(kind) for kind in KINDS}
        self.cancelled = Counter(
            f"{name}_cancelled_total",
            "Requests whose client left before the end",
            ["endpoint"],
            registry=registry,
        )
        for kind in KINDS:
            self.queue.labels(kind)
        self._voices: set[str] = set()
        registry.register(QueueCollector(admission))

    def count_inference(self, kind: Kind, labels: Labels, seconds: float) -> None:
        """Counts the time that an engine took for a request."""
        voice, language = labels.voice, labels.language
        if len(self._voices) < MAX_VOICES:
            self._voices.add(voice)
        if voice not in self._voices:
            voice = OTHER
        if language and language not in NAMES:
            language = OTHER
        self.inference.labels(kind, voice, language, labels.length).observe(seconds)


class QueueCollector(Collector):
    """Waiting and running requests, collected on each scrape."""

    def __init__(self, admission: Admission) -> None:
        self._lanes = admission.lanes

    def collect(self) -> Iterable[Metric]:
        waiting = _gauge("waiting", "Requests waiting now")
        running = _gauge("running", "Requests running now")
        streams = _gauge("streams", "WebSockets now")
        for kind, lane in self._lanes.items():
            waiting.add_metric([kind], len(lane.waiting))
            running.add_metric([kind], len(lane.running))
            streams.add_metric([kind], len(lane.streams))
        yield from (waiting, running, streams)


def _gauge(name: str, text: str) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"offhook_speech_{name}", text, labels=["kind"])
