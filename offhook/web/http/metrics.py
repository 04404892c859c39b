"""Prometheus metrics. Series are named after what they measure; times are in seconds."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Literal, get_args

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from offhook.media.end_reason import FAILURES, EndReason
from offhook.media.leg import LegStatistics
from offhook.media.tasks_io import unended
from offhook.pipeline.conversation.agents.agent_faults import FAULT_ACTIONS
from offhook.pipeline.conversation.events import (
    AgentChanged,
    AgentFailed,
    AnswerDropped,
    CallEnded,
    CallerAmplified,
    CallerTurn,
    CallStarted,
    Event,
    Interrupted,
    LanguageChanged,
    NoiseSuppressed,
    PlayoutResumed,
    TokensUsed,
    TurnLatency,
)
from offhook.pipeline.conversation.latency import STAMPS
from offhook.pipeline.conversation.turns.end_questions_io import TurnAnswerer
from offhook.pipeline.speech.recognizer import Loss
from offhook.signaling.ice.agent_io import on_malformed_stun
from offhook.signaling.ice.port_io import IcePort
from offhook.telephony.sip.endpoint_io import SipEndpoint
from offhook.telephony.sip.media.leg_io import SipLeg

LATENCY_BUCKETS = (0.01, 0.02, 0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.7, 1, 1.5, 2, 3, 5, 10)

SETUP_BUCKETS = (0.05, 0.1, 0.2, 0.5, 1, 2, 3, 5, 7, 10, 15, 20, 30, 45, 60)
"""Buckets of call setup times in s: people answer in seconds, we in milliseconds."""

Reason = Literal[
    "draining",
    "loading",
    "full",
    "tenant",
    "foreign",
    "connecting",
    "share",
    "late",
    "busy",
    "ports",
    "unsigned",
]
"""Why calls are refused; `tenant`: the call's tenant has all lines that it may have; `foreign`: the
agent or the extension is another tenant's; `share`: the caller's address, key or secret has all
lines that it may have; `late` and `busy` mean overload: packets of calls in progress leave late, or
the event loop has no time left for another call; `ports`: no UDP port could be opened; `unsigned`:
a carrier's request without valid authentication."""


class LegCollector(Collector):
    """Live statistics of the legs, collected on each scrape so that the media path keeps none."""

    def __init__(self, legs: Callable[[], Iterable[LegStatistics]]) -> None:
        self._legs = legs

    def collect(self) -> Iterable[Metric]:
        legs = [leg for leg in self._legs() if leg.mos is not None]
        for name, text, values in (
            ("mos", "Estimated mean opinion score", [leg.mos or 0.0 for leg in legs]),
            ("loss_ratio", "Sound concealed, last seconds", [leg.loss for leg in legs]),
            ("jitter_seconds", "Interarrival jitter", [leg.jitter_ms / 1000 for leg in legs]),
            ("buffer_seconds", "Jitter buffer delay", [leg.buffer_ms / 1000 for leg in legs]),
        ):
            family = GaugeMetricFamily(f"offhook_line_{name}", text, labels=["of"])
            if values:
                family.add_metric(["mean"], sum(values) / len(values))
                worst = min(values) if name == "mos" else max(values)
                family.add_metric(["worst"], worst)
            yield family


class PhoneCollector(Collector):
    """Counters of the SIP endpoint, collected on each scrape."""

    def __init__(self, sip: SipEndpoint) -> None:
        self._sip = sip

    def collect(self) -> Iterable[Metric]:
        agent = self._sip.user_agent
        counts, access = agent.counts, agent.access
        strangers = {"dropped": access.dropped, "refused": access.refused}
        yield _counter("requests", "Requests received", "method", counts.requests)
        yield _counter("responses", "Responses sent and received", "class", counts.responses)
        yield _counter("strangers", "Requests of nobody we know", "outcome", strangers)
        malformed = "Messages that could not be understood"
        yield CounterMetricFamily("offhook_sip_malformed", malformed, counts.malformed)
        transactions = agent.transactions
        yield GaugeMetricFamily("offhook_sip_transactions", "Transactions now", transactions)
        yield GaugeMetricFamily("offhook_sip_calls", "Calls of phones now", len(self._sip.lines))
        registrations = GaugeMetricFamily(
            "offhook_sip_registration",
            "1 for the state it is in: registering, registered, failed or unregistered",
            labels=["trunk", "state"],
        )
        for status in self._sip.registrations():
            registrations.add_metric([status.trunk, status.standing], 1)
        yield registrations


class LossCollector(Collector):
    """Loss counters of the recognizers, collected on each scrape."""

    def __init__(self) -> None:
        self.of: list[Mapping[Loss, int]] = []

    def collect(self) -> Iterable[Metric]:
        text = "Times the recogniser was lost while it heard somebody, and heard them again"
        family = CounterMetricFamily("offhook_recognizer_losses", text, labels=["how"])
        for how in get_args(Loss):
            family.add_metric([how], sum(losses.get(how, 0) for losses in self.of))
        yield family


class TurnAnswerCollector(Collector):
    """Who said whether turns were over, collected on each scrape."""

    def __init__(self, answers: Mapping[TurnAnswerer, int]) -> None:
        self._answers = answers

    def collect(self) -> Iterable[Metric]:
        text = (
            "Questions whether a turn was over, by who was asked: the recognizer's engine, the "
            "edge's model as that was late, or the edge's model alone"
        )
        family = CounterMetricFamily("offhook_turn_questions", text, labels=["answered"])
        for answerer in get_args(TurnAnswerer):
            family.add_metric([answerer], self._answers.get(answerer, 0))
        yield family


@dataclass(frozen=True)
class EngineInUse:
    """What a new call would use for one kind of work, "asr" or "tts"."""

    kind: str
    engine: str
    state: str = ""
    """State of the engine that `auto` brings in; empty without one."""
    fraction: float = 0.0
    """How far that one has loaded, 0..1."""


class EngineCollector(Collector):
    """The engines of new calls, collected on each scrape."""

    def __init__(self, engines: Callable[[], Iterable[EngineInUse]]) -> None:
        self._engines = engines

    def collect(self) -> Iterable[Metric]:
        used = GaugeMetricFamily(
            "offhook_engine_in_use", "1 for the engine of new calls", labels=["kind", "engine"]
        )
        states = GaugeMetricFamily(
            "offhook_auto_engine", "1 for the state it is in", labels=["kind", "state"]
        )
        loaded = GaugeMetricFamily(
            "offhook_auto_engine_loaded_ratio", "How far it has come and loaded", labels=["kind"]
        )
        for engine in self._engines():
            used.add_metric([engine.kind, engine.engine], 1)
            if engine.state:
                states.add_metric([engine.kind, engine.state], 1)
                loaded.add_metric([engine.kind], engine.fraction)
        yield from (used, states, loaded)


class IcePortCollector(Collector):
    """Datagrams dropped at the port of all WebRTC calls, collected on each scrape."""

    def __init__(self, port: IcePort) -> None:
        self._port = port

    def collect(self) -> Iterable[Metric]:
        text = "Datagrams and packets at the port of WebRTC that were for nobody or did not leave"
        family = CounterMetricFamily("offhook_webrtc_dropped", text, labels=["reason"])
        for reason, count in asdict(self._port.demultiplexer.dropped).items():
            family.add_metric([reason], count)
        family.add_metric(["unsent"], sum(udp.unsent for udp in self._port.sockets.values()))
        yield family


def _counter(name: str, text: str, label: str, values: Mapping[str, int]) -> Metric:
    family = CounterMetricFamily(f"offhook_sip_{name}", text, labels=[label])
    for value, count in values.items():
        family.add_metric([value], count)
    return family


def _begin(metric: Counter | Histogram, labels: Iterable[str]) -> None:
    """Shows the series of these labels from the start, also those that have counted nothing."""
    for label in labels:
        metric.labels(label)


class RecordingMetrics:
    """What becomes of recordings, on this machine and in their bucket."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.failed = Counter(
            "offhook_recordings_failed_total",
            "Recordings that could not be begun or went no further; the calls went on",
            registry=registry,
        )
        self.uploaded = Counter(
            "offhook_recordings_uploaded_total",
            "Recordings that have arrived in the bucket",
            registry=registry,
        )
        self.waiting = Gauge(
            "offhook_recordings_waiting",
            "Recordings that wait for the bucket: on this machine to be uploaded, of all servers "
            "to be deleted there",
            ["work"],
            registry=registry,
        )
        for work in ("upload", "deletion"):
            self.waiting.labels(work)
        self.bucket_works = Gauge(
            "offhook_bucket_works",
            "1 while the bucket of recordings does what it is asked for, also without one",
            registry=registry,
        )
        self.bucket_works.set(1)


class RecordMetrics:
    """What is kept of calls, and done for those that are kept."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.lost = Counter(
            "offhook_records_lost_total",
            "Entries of calls that could neither be written to the database nor to the disk",
            registry=registry,
        )
        self.written = Counter(
            "offhook_records_written_total",
            "Entries of calls written to the database",
            registry=registry,
        )
        self.analyses = Counter(
            "offhook_analyses_total",
            "Analyses of calls by what came of them; retry: the model failed, and is asked again",
            ["outcome"],
            registry=registry,
        )
        _begin(self.analyses, ("success", "failure", "unknown", "done", "error", "retry"))
        self.campaign_calls = Counter(
            "offhook_campaign_calls_total",
            "Calls of campaigns by what became of them; of all campaigns and tenants",
            ["outcome"],
            registry=registry,
        )


class Metrics:
    """Metrics of all calls, updated from their events."""

    def __init__(
        self,
        legs: Callable[[], Iterable[LegStatistics]],
        lateness_ms: Callable[[], float],
        task_count: Callable[[], int] = lambda: 0,
        overloaded: Callable[[], bool] = lambda: False,
    ) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        self._count_calls()
        self.recordings = RecordingMetrics(self.registry)
        self.records = RecordMetrics(self.registry)
        self._count_turns()
        self._count_agents()
        self._measure_responses()
        self._watch(
            (
                "offhook_tick_lateness_seconds",
                "99th percentile of how late packets left, last ten seconds",
                lambda: lateness_ms() / 1000,
            ),
            (
                "offhook_overloaded",
                "1 while new calls are refused because packets of those in progress leave late",
                overloaded,
            ),
            ("offhook_tasks", "Tasks of the event loop", task_count),
            (
                "offhook_tasks_unended",
                "Tasks that go on though their owners have cancelled them",
                unended,
            ),
        )
        malformed = self._counter(
            "offhook_stun_malformed_total",
            "Datagrams to the ports of WebRTC that are no STUN, though they look like it",
        )
        on_malformed_stun(malformed.inc)
        self.registry.register(LegCollector(legs))
        self._losses: LossCollector | None = None

    def _counter(self, name: str, description: str, labels: Iterable[str] = ()) -> Counter:
        return Counter(name, description, labels, registry=self.registry)

    def _watch(self, *gauges: tuple[str, str, Callable[[], float]]) -> None:
        """Adds gauges, which are read on each scrape: name, description, what reads it."""
        for name, description, read in gauges:
            Gauge(name, description, registry=self.registry).set_function(read)

    def _count_calls(self) -> None:
        """Adds the counters of calls and their ends."""
        self.calls = Gauge("offhook_calls_in_progress", "Calls now", registry=self.registry)
        self.calls_total = self._counter("offhook_calls_ended_total", "Calls ended", ["reason"])
        self.calls_failed = self._counter(
            "offhook_calls_failed_total",
            "Calls ended against everybody's will, also counted as ended",
            ["reason"],
        )
        self.refused = self._counter("offhook_calls_refused_total", "Calls refused", ["reason"])
        _begin(self.calls_failed, FAILURES)
        _begin(self.refused, get_args(Reason))

    def _count_turns(self) -> None:
        """Adds the counters of callers' turns and sound."""
        self.turns = self._counter("offhook_turns_total", "Turns of callers")
        self.interruptions = self._counter(
            "offhook_interruptions_total", "Replies that callers cut"
        )
        self.false_interruptions = self._counter(
            "offhook_false_interruptions_total",
            "Pauses of the agent that turned out to be for nothing",
        )
        self.noisy_lines = self._counter(
            "offhook_noise_suppressed_total",
            "Times that the noise suppression of a call was switched on",
        )
        self.quiet_callers = self._counter(
            "offhook_callers_amplified_total", "Times that a quiet caller was amplified"
        )

    def _measure_responses(self) -> None:
        """Adds the histograms of the response time."""
        self.response = Histogram(
            "offhook_response_seconds",
            "From the caller's last sound to the agent's first packet",
            buckets=LATENCY_BUCKETS,
            registry=self.registry,
        )
        self.span = Histogram(
            "offhook_response_span_seconds",
            "Part of the response time that ends with the event named",
            ["span"],
            buckets=LATENCY_BUCKETS,
            registry=self.registry,
        )
        _begin(self.span, STAMPS[1:])

    def _count_agents(self) -> None:
        """Adds the counters of what agents do."""
        self.handoffs = self._counter(
            "offhook_agent_handoffs_total",
            "Times that an agent has handed a call over to another one",
        )
        self.language_changes = self._counter(
            "offhook_language_changes_total",
            "Calls that went on in another language of their agent",
            ["language"],
        )
        self.tokens = self._counter(
            "offhook_model_tokens_total",
            "Tokens of language models, as their servers report them; those that were in a "
            "server's cache are counted as input too",
            ["model", "kind"],
        )
        self.cost = self._counter(
            "offhook_model_cost_total",
            "What these tokens cost, by the prices of the configuration",
            ["model"],
        )
        self.answers_dropped = self._counter(
            "offhook_agent_answers_dropped_total",
            "Answers that a language model began in a pause of the caller for nothing",
        )
        self.characters_dropped = self._counter(
            "offhook_agent_characters_dropped_total",
            "Characters of these answers that the voice had prepared",
        )
        self.agent_errors = self._counter(
            "offhook_agent_errors_total",
            "Failures of agents' language models and tools, by what was done about them",
            ["kind", "action"],
        )
        for fault, action in FAULT_ACTIONS:
            self.agent_errors.labels(fault, action)

    def add_resumption(self, saves: Callable[[], bool]) -> Callable[[str], None]:
        """Registers the metrics of calls that continue at another server; call it once. `saves`
        says whether calls are being saved. Returns what counts a caller who comes back."""
        return self._add_continuation(
            saves,
            "offhook_calls_saved",
            "1 while calls are saved so that another server can continue them",
            "offhook_calls_resumed_total",
            "Callers who came back from another server, by whether their call continued",
            ("resumed", "ended", "unknown", "refused", "unavailable"),
        )

    def add_recovery(self, saves: Callable[[], bool]) -> Callable[[str], None]:
        """Registers the metrics of phone calls that continue at another server; call it once.
        `saves` says whether they are saved. Returns what counts those that continue here."""
        return self._add_continuation(
            saves,
            "offhook_phone_calls_saved",
            "1 while phone calls are saved so that another server can continue them",
            "offhook_phone_calls_recovered_total",
            "Phone calls of other servers that this one was to continue, by outcome",
            ("recovered", "lost", "refused"),
        )

    def _add_continuation(
        self,
        saves: Callable[[], bool],
        saved: str,
        saved_help: str,
        continued: str,
        continued_help: str,
        outcomes: Iterable[str],
    ) -> Callable[[str], None]:
        """Registers a gauge of whether calls are saved and a counter of those that continue."""
        self._watch((saved, saved_help, lambda: float(saves())))
        counter = self._counter(continued, continued_help, ["outcome"])
        _begin(counter, outcomes)
        return lambda outcome: counter.labels(outcome).inc()

    def add_ice_port(self, port: IcePort) -> None:
        """Registers the counters of the port of all WebRTC calls; call it once."""
        self.registry.register(IcePortCollector(port))

    def add_recognizer_losses(self, losses: Mapping[Loss, int]) -> None:
        """Registers a recognizer's loss counters."""
        if self._losses is None:
            self._losses = LossCollector()
            self.registry.register(self._losses)
        self._losses.of.append(losses)

    def add_turn_answers(self, answers: Mapping[TurnAnswerer, int]) -> None:
        """Registers the counters of `TurnDetection.answers`; call it once."""
        self.registry.register(TurnAnswerCollector(answers))

    def add_engines(self, engines: Callable[[], Iterable[EngineInUse]]) -> None:
        """Registers the engines of new calls; call it once."""
        self.registry.register(EngineCollector(engines))

    def add_phone_collector(self, sip: SipEndpoint) -> None:
        """Registers the SIP endpoint's counters; call it once, if there are phones."""
        setup = Histogram(
            "offhook_sip_setup_seconds",
            "From INVITE to answer",
            buckets=SETUP_BUCKETS,
            registry=self.registry,
        )
        sip.hooks.on_setup = setup.observe
        self._packets = self._counter(
            "offhook_sip_packets_refused_total",
            "Packets of media that were not believed, of calls that have ended",
            ["reason"],
        )
        _begin(self._packets, ("source", "srtp"))
        self.registry.register(PhoneCollector(sip))

    def count_call(self, leg: SipLeg) -> None:
        """Counts a phone call that has ended."""
        self._packets.labels("source").inc(leg.refused_packets)
        self._packets.labels("srtp").inc(leg.srtp_failures)

    def count_call_end(self, reason: EndReason) -> None:
        """Counts a call's end, whether or not an agent was ever started."""
        self.calls_total.labels(reason.end).inc()
        if reason.end in FAILURES:
            self.calls_failed.labels(reason.end).inc()

    def record(self, event: Event) -> None:
        match event:
            case CallStarted():
                self.calls.inc()
            case CallEnded(reason=reason):
                self.calls.dec()
                self.count_call_end(reason)
            case CallerTurn():
                self.turns.inc()
            case Interrupted():
                self.interruptions.inc()
            case NoiseSuppressed(on=True):
                self.noisy_lines.inc()
            case CallerAmplified():
                self.quiet_callers.inc()
            case AgentChanged():
                self.handoffs.inc()
            case LanguageChanged(language=language):
                self.language_changes.labels(language).inc()
            case AgentFailed(fault=fault, action=action):
                self.agent_errors.labels(fault, action).inc()
            case TokensUsed(model=model):
                self.tokens.labels(model, "input").inc(event.input_tokens)
                self.tokens.labels(model, "cached").inc(event.cached_tokens)
                self.tokens.labels(model, "output").inc(event.output_tokens)
            case AnswerDropped(characters=characters):
                self.answers_dropped.inc()
                self.characters_dropped.inc(characters)
            case PlayoutResumed():
                self.false_interruptions.inc()
            case TurnLatency(spans=spans, total_ms=total):
                self.response.observe(total / 1000)
                for name, ms in spans:
                    self.span.labels(name).observe(ms / 1000)
