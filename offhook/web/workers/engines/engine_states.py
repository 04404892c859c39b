"""How the engines of a process are, for the operator: which of them new calls use, whether they are
ready and why not, how many streams they have, and how fast they answer."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from prometheus_client import Histogram

from offhook.pipeline.conversation.call_io import Engines
from offhook.pipeline.speech.engine_spec import Kind
from offhook.pipeline.speech.engines import spec_of
from offhook.pipeline.speech.recognizer import Recognizer
from offhook.pipeline.speech.remote.recognizer_io import RemoteRecognizer
from offhook.pipeline.speech.remote.synthesizer_io import RemoteSynthesizer
from offhook.pipeline.speech.synthesizer import Synthesizer
from offhook.web.config.config import Config
from offhook.web.workers.engines.call_engines_io import CallEngines, public_name

ANSWERS: Mapping[Kind, str] = {"asr": "asr_final", "tts": "tts_first_audio"}
"""The part of an answer's time that is an engine's."""
FROM_WORST = ("failed", "offered", "starting", "downloading", "loading", "ready")
"""States, as that of several processes is the worst of theirs."""


def engine_states(
    engines: CallEngines, config: Config, used: Iterable[Engines], spans: Histogram
) -> list[dict[str, Any]]:
    """Returns the engines of a process. `used` are those of its calls, and `spans` the parts of
    the times of their answers, in s by `span`."""
    calls = list(used)
    streams: dict[Kind, Counter[str]] = {
        "asr": Counter(public_name(each.recognizer.name) for each in calls),
        "tts": Counter(public_name(each.synthesizer.name) for each in calls),
    }
    in_use = engines.names()
    states: list[dict[str, Any]] = []
    configured: Sequence[tuple[Kind, Recognizer | Synthesizer]] = (
        ("asr", engines.configured.recognizer),
        ("tts", engines.configured.synthesizer),
    )
    for kind, engine in configured:
        states.append({"kind": kind, **_configured(kind, engine, config)})
        for auto in engines.auto:
            if auto.worker.kind == kind:
                report = auto.report()
                shown = ("engine", "model", "title", "state", "doing", "fraction", "retry_s")
                why = report["fault"] or report["why"]
                states.append({"kind": kind, **{name: report[name] for name in shown}, "why": why})
    for state in states:
        kind, name = state["kind"], state["engine"]
        state["in_use"] = in_use[kind] == name
        state["streams"] = streams[kind][name]
        answers, median = median_of(spans, ANSWERS[kind]) if state["in_use"] else (0, None)
        state["answers"], state["latency_ms"] = answers, median
    return states


def _configured(kind: Kind, engine: Recognizer | Synthesizer, config: Config) -> dict[str, Any]:
    """Returns the engine of the configuration, or the one that stands in for it meanwhile."""
    section = config.asr if kind == "asr" else config.tts
    name = public_name(engine.name) or section.engine
    state = {"engine": name, "title": "", "state": "ready", "why": "", "fraction": 1.0}
    state |= {"model": "" if section.automatic else section.model, "doing": "", "retry_s": 0}
    if isinstance(engine, RemoteRecognizer | RemoteSynthesizer):
        counts = {word: n for word, n in engine.workers.counts().items() if n}
        return {**state, "workers": counts, **_of_workers(counts, idles=section.preload is False)}
    if not section.url:
        spec = spec_of(kind, name)
        state |= {"title": spec.title, "model": state["model"] or spec.model}
    return {**state, "max_streams": getattr(engine, "max_streams", None)}


def _of_workers(counts: Mapping[str, int], *, idles: bool) -> dict[str, str]:
    """Returns the state of an engine in workers, and why it is that one."""
    if counts.get("ready") or counts.get("full"):
        full = counts.get("full") and not counts.get("ready")
        return {"state": "ready", "why": "all workers are full" if full else ""}
    if counts.get("loading"):
        return {"state": "loading", "why": ""}
    if counts.get("suspected") or counts.get("gone") or not counts:
        return {"state": "failed", "why": "no worker answers: see its log, and the url here"}
    if idles:
        return {"state": "offered", "why": "its worker starts with the first call"}
    return {"state": "starting", "why": "nothing has been heard of its worker yet"}


def median_of(spans: Histogram, span: str) -> tuple[int, int | None]:
    """Returns how many times a part of an answer was measured, and its median in ms, interpolated
    in its bucket; None of nothing."""
    buckets = [
        (float(sample.labels["le"]), int(sample.value))
        for family in spans.collect()
        for sample in family.samples
        if sample.name.endswith("_bucket") and sample.labels["span"] == span
    ]
    number = buckets[-1][1] if buckets else 0
    if not number:
        return 0, None
    below, count_below = 0.0, 0
    for most, count in buckets:
        if 2 * count >= number:
            if most == float("inf"):
                return number, round(1000 * below)
            share = (number / 2 - count_below) / (count - count_below)
            return number, round(1000 * (below + share * (most - below)))
        below, count_below = most, count
    return number, None


def merged(states: Iterable[Sequence[dict[str, Any]]]) -> list[dict[str, Any]]:
    """Merges the engines of several processes: streams are added, and of different states the
    worst is shown."""
    found: dict[tuple[str, ...], dict[str, Any]] = {}
    for state in (each for of_process in states for each in of_process):
        key = state["kind"], state["engine"], state["model"]
        if key not in found:
            found[key] = dict(state)
            continue
        one = found[key]
        worse = FROM_WORST.index(state["state"]) < FROM_WORST.index(one["state"])
        changed = {"streams": one["streams"] + state["streams"], **_latency(one, state)}
        found[key] = {**(state if worse else one), **changed}
    return list(found.values())


def _latency(one: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    """Returns about what the median is of answers in two processes."""
    number = one["answers"] + other["answers"]
    if not one["answers"] or not other["answers"]:
        latency = one["latency_ms"] if one["answers"] else other["latency_ms"]
    else:
        parts = (each["answers"] * each["latency_ms"] for each in (one, other))
        latency = round(sum(parts) / number)
    return {"answers": number, "latency_ms": latency}
