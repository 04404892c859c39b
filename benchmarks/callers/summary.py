"""What callers noticed, in numbers."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from benchmarks.callers.records import KINDS, CallRecord, Kind, Report, TurnRecord
from benchmarks.processes.usage import Samples
from benchmarks.speech.number_words import WORD_MS, Comparison, compare
from benchmarks.table import percentiles
from offhook.pipeline.conversation.latency import STAMPS

HOLES_PER_MINUTE = 1.0
"""Maximum gaps per minute of the agent's speech for a number of calls to be held."""
ANSWERED = 0.95
"""Minimum share of the lines that are answered then."""
LATE_MS = 20.0
"""Lateness in ms of one percent of its callers' packets from which a process of callers is the
limit: a packet."""


def _known(values: Iterable[float | None]) -> list[float]:
    return [value for value in values if value is not None]


@dataclass(frozen=True)
class Summary:
    """One kind of callers, or all of them."""

    name: str
    calls: int
    """Calls that were connected."""
    refused: dict[str, int]
    cut: int
    """Calls ended by the server."""
    turns: int
    answered: int
    setup_ms: dict[str, float]
    response_ms: dict[str, float]
    """From the end of the caller's speech to the agent's first sound."""
    final_ms: dict[str, float]
    """From the end of the caller's speech to the final transcript."""
    interruptions: int
    stopped: int
    stop_ms: dict[str, float]
    keys: int
    keys_answered: int
    holes: int
    holes_per_minute: float
    """Of the agent's voice; without number words, of the calls."""
    hole_ms: dict[str, float]
    recognized: dict[str, int]
    """Number words of callers beside the server's transcripts: right, lost, twice, wrong, and those
    whose sound did not reach it."""
    spoken: dict[str, int]
    """Number words of transcripts, or of callers, beside those heard in replies that were heard to
    their end."""
    packets: int
    missing: int
    dropped: int
    late: int
    mos: dict[str, float]


def summarize(report: Report, kind: Kind | None = None) -> Summary:
    calls = [call for call in report.calls if kind in (None, call.kind)]
    turns = [turn for turn in report.turns if kind in (None, turn.kind)]
    connected = [call for call in calls if call.setup_ms is not None]
    lines = [turn for turn in turns if not turn.key]
    keys = [turn for turn in turns if turn.key]
    cuts = [turn for turn in lines if turn.interrupts]
    holes = [ms for turn in turns for ms in turn.holes_ms]
    mos = [call.mos for call in connected if call.mos is not None]
    minutes = _voice_minutes(turns) or sum(
        ((call.ended or call.began) - call.began) / 60 for call in connected
    )
    return Summary(
        name=kind or "all",
        calls=len(connected),
        refused=dict(Counter(call.refused for call in calls if call.refused)),
        cut=sum(call.ended_by == "server" for call in connected),
        turns=len(lines),
        answered=sum(turn.response_ms is not None for turn in lines),
        setup_ms=percentiles(_known(call.setup_ms for call in connected)),
        response_ms=percentiles(_known(turn.response_ms for turn in lines)),
        final_ms=percentiles(_known(turn.final_ms for turn in lines)),
        interruptions=len(cuts),
        stopped=sum(turn.stop_ms is not None for turn in cuts),
        stop_ms=percentiles(_known(turn.stop_ms for turn in cuts)),
        keys=len(keys),
        keys_answered=sum(turn.response_ms is not None for turn in keys),
        holes=len(holes),
        holes_per_minute=round(len(holes) / minutes, 2) if minutes else 0.0,
        hole_ms=percentiles(holes),
        recognized=asdict(recognized(calls)),
        spoken=asdict(spoken(lines)),
        packets=sum(call.packets for call in connected),
        missing=sum(call.missing for call in connected),
        dropped=sum(call.dropped for call in connected),
        late=sum(call.late for call in connected),
        mos={"mean": round(sum(mos) / len(mos), 2), "least": min(mos)} if mos else {},
    )


def _voice_minutes(turns: Sequence[TurnRecord]) -> float:
    return sum(len(turn.voice) for turn in turns) * WORD_MS / 60_000


def recognized(calls: Iterable[CallRecord]) -> Comparison:
    """Words of callers beside transcripts, where they are known."""
    total = Comparison()
    for call in calls:
        if call.words and call.transcript is not None:
            unheard = frozenset(call.inaudible)
            total += compare(call.words, call.transcript, unheard, call.due)
    return total


def spoken(turns: Iterable[TurnRecord]) -> Comparison:
    """Words given to the agent beside those heard from it."""
    total = Comparison()
    for turn in turns:
        if turn.words and turn.complete and not turn.inaudible:
            total += compare(turn.transcript or turn.words, turn.voice)
    return total


def stages(turns: Sequence[TurnRecord]) -> list[tuple[str, float]]:
    """Returns the mean ms of each stage of a turn in the order of time, as the server reports
    them."""
    with_spans = [turn.spans for turn in turns if turn.spans]
    if not with_spans:
        return []
    total: Counter[str] = Counter()
    for spans in with_spans:
        for span in spans:
            total[span["name"]] += span["ms"]
    return [(name, round(total[name] / len(with_spans), 1)) for name in STAMPS if name in total]


@dataclass(frozen=True)
class Noticed:
    """What callers noticed of a fault, or of none: a row of `offhook bench failover`."""

    run: str
    calls: int
    """Calls up when it happened."""
    words: int
    """Those whose sound reached the server."""
    lost: int
    twice: int
    wrong: int
    inaudible: int
    """Words whose sound did not reach the server, besides `words`."""
    unanswered: int
    cut: int
    final_late_ms: dict[str, float]
    """Final transcripts, later than the median without a fault."""
    silence_ms: float
    """The longest silence within the agent's voice."""
    voice_lost: int
    voice_twice: int
    back_ms: float | None = None
    """Longest time from the last packet of a call cut by the server to the caller's next one being
    connected, or until another server continues it."""


def noticed(run: str, report: Report, at: float, usual_final_ms: float) -> Noticed:
    """`at` is the time of the fault, or that at which it would have been."""
    lines = [turn for turn in report.turns if not turn.key]
    words, voice = recognized(report.calls), spoken(lines)
    finals = [turn.final_ms - usual_final_ms for turn in lines if turn.final_ms is not None]
    holes = [ms for turn in lines for ms in turn.holes_ms]
    return Noticed(
        run,
        sum(_was_up(call, at) for call in report.calls),
        words.right + words.lost + words.wrong,
        words.lost,
        words.twice,
        words.wrong,
        words.inaudible,
        sum(turn.response_ms is None for turn in lines),
        sum(call.ended_by == "server" for call in report.calls),
        percentiles(finals),
        max(holes, default=0.0),
        voice.lost,
        voice.twice,
        _back_ms(report),
    )


def _was_up(call: CallRecord, at: float) -> bool:
    if call.setup_ms is None:
        return False
    return call.began + call.setup_ms / 1000 <= at and (call.ended is None or at < call.ended)


def _back_ms(report: Report) -> float | None:
    """Returns the longest time in ms that a caller whose call the server cut was without one, or
    that a call took to go on elsewhere; None if there was neither."""
    times = [call.moved_ms for call in report.calls if call.moved_ms is not None]
    waiting: dict[str, float] = {}
    for call in sorted(report.calls, key=lambda call: call.began):
        caller = call.caller
        if call.setup_ms is not None and caller in waiting:
            times.append(1000 * (call.began - waiting.pop(caller)) + call.setup_ms)
        if call.ended_by == "server" and call.ended is not None:
            waiting[caller] = call.heard_until or call.ended
    return round(max(times), 1) if times else None


@dataclass
class Result:
    """One run."""

    name: str
    options: dict[str, Any]
    began: float
    seconds: float
    report: Report
    processes: list[Samples] = field(default_factory=list)
    gpus: list[Samples] = field(default_factory=list)
    fault_at: float | None = None

    @property
    def limit(self) -> str:
        """Returns why the callers themselves are the limit, a sentence; "" if they are not."""
        late = [process.late_ms.get("p99", 0.0) for process in self.report.processes]
        slow = [ms for ms in late if ms > LATE_MS]
        if not slow:
            return ""
        return (
            f"the load generator is the limit: {len(slow)} of {len(late)} processes of callers "
            f"sent 1 % of their packets over {LATE_MS:g} ms late, the slowest over "
            f"{max(slow):.0f}; what follows says little about the servers"
        )

    @property
    def holds(self) -> bool:
        """Whether the servers held the calls, by the criteria of `offhook bench edge`."""
        whole = self.summaries()[0]
        fine = whole.holes_per_minute <= HOLES_PER_MINUTE and not (whole.refused or whole.cut)
        return fine and whole.turns > 0 and whole.answered >= ANSWERED * whole.turns

    def summaries(self) -> list[Summary]:
        kinds = [kind for kind in KINDS if any(c.kind == kind for c in self.report.calls)]
        all_of_them = summarize(self.report)
        return [all_of_them, *(summarize(self.report, k) for k in kinds if len(kinds) > 1)]

    def as_dict(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "options": self.options,
            "seconds": round(self.seconds, 1),
            "summary": [asdict(summary) for summary in self.summaries()],
            "stages_ms": dict(stages(self.report.turns)),
            "processes": {s.name: _used(s) for s in self.processes},
            "gpus": {s.name: _used(s) for s in self.gpus},
            "callers": [asdict(process) for process in self.report.processes],
            "callers_are_the_limit": bool(self.limit),
            "holds": self.holds,
        }


def _used(samples: Samples) -> dict[str, float]:
    return {
        "percent_mean": round(float(np.mean(samples.percent)), 1),
        "percent_max": max(samples.percent),
        "mb_first": samples.mb[0],
        "mb_half": samples.mb[len(samples.mb) // 2],
        "mb_last": samples.mb[-1],
        "mb_max": max(samples.mb),
    }


def table(result: Result) -> str:
    """Returns the result as text."""
    lines = [f"{result.name}: {result.seconds:.0f} s"]
    if result.limit:
        lines.append(f"x {result.limit}")
    head = "".join(f"{name:>8}" for name in ("calls", "refused", "cut", "turns", "answ."))
    lines.append(
        f"{'':8}{head}{'set-up p50':>12}{'p95':>7}{'response p50':>14}{'p95':>7}{'p99':>7}"
        f"{'stop p50':>10}{'p95':>7}{'holes/min':>11}{'MOS':>6}{'least':>7}"
    )
    for s in result.summaries():
        answered = f"{s.answered / s.turns:.0%}" if s.turns else "-"
        counts = (s.calls, sum(s.refused.values()), s.cut, s.turns, answered)
        lines.append(
            f"{s.name:8}{''.join(f'{n:>8}' for n in counts)}"
            f"{_at(s.setup_ms, 'p50'):>12}{_at(s.setup_ms, 'p95'):>7}"
            f"{_at(s.response_ms, 'p50'):>14}{_at(s.response_ms, 'p95'):>7}"
            f"{_at(s.response_ms, 'p99'):>7}{_at(s.stop_ms, 'p50'):>10}{_at(s.stop_ms, 'p95'):>7}"
            f"{s.holes_per_minute:>11}{s.mos.get('mean', '-'):>6}{s.mos.get('least', '-'):>7}"
        )
    whole = result.summaries()[0]
    for name, words in (("recognized", whole.recognized), ("spoken", whole.spoken)):
        if any(words.values()):
            lines.append(f"words {name}: " + ", ".join(f"{n} {what}" for what, n in words.items()))
    if whole.interruptions or whole.keys:
        lines.append(
            f"interruptions that silenced the agent: {whole.stopped} of {whole.interruptions}; "
            f"keys answered: {whole.keys_answered} of {whole.keys}"
        )
    if whole.refused:
        lines.append("refused: " + ", ".join(f"{why} x {n}" for why, n in whole.refused.items()))
    for one in result.processes + result.gpus:
        used = _used(one)
        lines.append(
            f"{one.name:16}{used['percent_mean']:7.1f} % mean{used['percent_max']:7.1f} % max"
            f"{used['mb_first']:9.0f} -> {used['mb_half']:.0f} -> {used['mb_last']:.0f} MB"
        )
    for process in result.report.processes:
        lines.append(
            f"{'callers':16}{process.cpu_percent:7.1f} % of a core, "
            f"lag p99 {process.lag_ms['p99']} ms, packets late p99 "
            f"{_at(process.late_ms, 'p99')} ms, max {_at(process.late_ms, 'max')} ms"
        )
    return "\n".join(lines)


def _at(values: dict[str, float], name: str) -> str:
    return f"{values[name]:.0f}" if name in values else "-"


FAILOVER_HEAD = (
    f"{'(times in ms)':14}{'calls':>7}{'words':>7}{'lost':>6}{'twice':>7}{'wrong':>7}"
    f"{'inaud.':>8}{'final later p99':>17}{'max':>7}{'silence max':>13}{'voice lost':>12}"
    f"{'twice':>7}{'unansw.':>9}{'cut':>5}{'back':>8}"
)


def failover_row(row: Noticed) -> str:
    """Returns a line under FAILOVER_HEAD."""
    back = "-" if row.back_ms is None else f"{row.back_ms:.0f}"
    return (
        f"{row.run:14}{row.calls:7}{row.words:7}{row.lost:6}{row.twice:7}{row.wrong:7}"
        f"{row.inaudible:8}"
        f"{_at(row.final_late_ms, 'p99'):>17}{_at(row.final_late_ms, 'max'):>7}"
        f"{row.silence_ms:13.0f}{row.voice_lost:12}{row.voice_twice:7}{row.unanswered:9}"
        f"{row.cut:5}{back:>8}"
    )
