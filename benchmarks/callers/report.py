"""The report of `offhook bench calls`: one HTML file without anything from elsewhere, its plots
inline SVG, in the reader's light or dark colours."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from html import escape

import numpy as np

from benchmarks.callers.records import KINDS, TurnRecord
from benchmarks.callers.summary import Noticed, Result, Summary, stages
from benchmarks.processes.usage import Samples

WIDTH, HEIGHT = 640, 220
LEFT, RIGHT, TOP, BOTTOM = 56, 12, 22, 30
COLOURS = 8
MAX_POINTS = 1500
"""Points of a series; more are thinned out."""

STYLE = """
:root { color-scheme: light dark; --ink: #1c2024; --soft: #60646c; --grid: #e0e3e6; --back: #fff;
  --c0: #1f6fb2; --c1: #c2571a; --c2: #2e8b57; --c3: #8a3fa0; --c4: #b0862b; --c5: #c03a5b;
  --c6: #4a7a8c; --c7: #6b6b2e; }
@media (prefers-color-scheme: dark) { :root { --ink: #e8eaed; --soft: #9aa0a6; --grid: #33383d;
  --back: #16181b; --c0: #6cb2ee; --c1: #f0935a; --c2: #6cc795; --c3: #c58ada; --c4: #dcb75f;
  --c5: #ef7f99; --c6: #87b8ca; --c7: #b5b56c; } }
body { font: 15px/1.45 system-ui, sans-serif; color: var(--ink); background: var(--back);
  max-width: 1340px; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.15rem; margin-top: 2.2rem; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
td, th { padding: .25rem .7rem; border-bottom: 1px solid var(--grid); text-align: right; }
td:first-child, th:first-child { text-align: left; }
.plots { display: flex; flex-wrap: wrap; gap: 1rem; } figure { margin: 0; }
figcaption { font-weight: 600; } .soft, .tick { color: var(--soft); fill: var(--soft); }
.scroll { overflow-x: auto; }
svg { display: block; max-width: 100%; height: auto; } svg text { font: 11px system-ui, sans-serif;
  fill: var(--ink); } svg .tick { fill: var(--soft); } .grid { stroke: var(--grid); }
.limit { color: var(--c5); font-weight: 600; }
.mark { stroke: var(--c5); stroke-dasharray: 4 3; }
"""


@dataclass(frozen=True)
class Series:
    name: str
    points: Sequence[tuple[float, float]]


def ticks(most: float) -> list[float]:
    """Returns round values from 0 to at least `most`, about five."""
    if most <= 0:
        return [0.0, 1.0]
    rough = most / 4
    scale = 10 ** np.floor(np.log10(rough))
    step = float(next(m * scale for m in (1, 2, 2.5, 5, 10) if m * scale >= rough * 0.999))
    return [step * n for n in range(int(np.ceil(most / step - 1e-9)) + 1)]


def _number(value: float) -> str:
    return f"{value:.10g}"


class _Axes:
    def __init__(self, most_x: float, most_y: float, unit_x: str, unit_y: str) -> None:
        self.ticks_x, self.ticks_y = ticks(most_x), ticks(most_y)
        self._most_x = most_x or 1.0
        self._most_y = self.ticks_y[-1]
        self._units = unit_x, unit_y

    def x(self, value: float) -> float:
        return round(LEFT + (WIDTH - LEFT - RIGHT) * value / self._most_x, 1)

    def y(self, value: float) -> float:
        return round(HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * value / self._most_y, 1)

    def svg(self) -> list[str]:
        parts = []
        for value in self.ticks_y:
            y = self.y(value)
            parts.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y}" y2="{y}"/>')
            parts.append(
                f'<text class="tick" x="{LEFT - 6}" y="{y + 4}" text-anchor="end">'
                f"{_number(value)}</text>"
            )
        for value in self.ticks_x:
            if value <= self._most_x * 1.001:
                parts.append(
                    f'<text class="tick" x="{self.x(value)}" y="{HEIGHT - BOTTOM + 15}" '
                    f'text-anchor="middle">{_number(value)}</text>'
                )
        unit_x, unit_y = self._units
        parts.append(
            f'<text class="tick" x="{WIDTH - RIGHT}" y="{HEIGHT - 3}" text-anchor="end">'
            f"{escape(unit_x)}</text>"
            f'<text class="tick" x="4" y="{TOP - 10}">{escape(unit_y)}</text>'
        )
        return parts


def _figure(title: str, parts: Sequence[str], names: Sequence[str], height: int = HEIGHT) -> str:
    legend = " ".join(
        f'<span style="color:var(--c{n % COLOURS})">&#9632;</span> {escape(name)}'
        for n, name in enumerate(names)
    )
    return (
        f"<figure><figcaption>{escape(title)}</figcaption>"
        f'<svg viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" role="img" '
        f'aria-label="{escape(title)}">{"".join(parts)}</svg>'
        f'<div class="soft">{legend}</div></figure>'
    )


def _thinned(points: Sequence[tuple[float, float]]) -> Sequence[tuple[float, float]]:
    return points[:: max(1, len(points) // MAX_POINTS)]


def plot(
    title: str,
    series: Sequence[Series],
    unit_x: str,
    unit_y: str,
    dots: bool = False,
    mark: float | None = None,
    most_x: float | None = None,
) -> str:
    """Returns a figure with lines or dots; `mark` is a place on the x axis, which ends at `most_x`,
    by default the largest of the points."""
    if most_x is None:
        most_x = max((x for s in series for x, _ in s.points), default=1.0)
    most_y = max((y for s in series for _, y in s.points), default=1.0)
    axes = _Axes(most_x, most_y, unit_x, unit_y)
    parts = axes.svg()
    for number, one in enumerate(series):
        colour = f"var(--c{number % COLOURS})"
        places = [(axes.x(x), axes.y(y)) for x, y in _thinned(one.points)]
        if dots:
            circles = "".join(f'<circle cx="{x}" cy="{y}" r="2.4"/>' for x, y in places)
            parts.append(f'<g fill="{colour}" fill-opacity=".6">{circles}</g>')
        elif places:
            path = " ".join(f"{x},{y}" for x, y in places)
            parts.append(
                f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="1.6"/>'
            )
    if mark is not None:
        x = axes.x(mark)
        parts.append(f'<line class="mark" x1="{x}" x2="{x}" y1="{TOP}" y2="{HEIGHT - BOTTOM}"/>')
    return _figure(title, parts, [one.name for one in series])


def distribution(title: str, kinds: Sequence[tuple[str, Sequence[float]]], unit: str) -> str:
    """Returns a figure of the share of the values up to each value."""
    series = []
    for name, values in kinds:
        if values:
            shares = np.linspace(0, 100, min(len(values), 200))
            found = np.percentile(values, shares)
            points = zip(np.round(found, 1).tolist(), shares.tolist(), strict=True)
            series.append(Series(name, list(points)))
    return plot(title, series, unit, "% of them", dots=False) if series else ""


def waterfall(title: str, steps: Sequence[tuple[str, float]]) -> str:
    """Returns a figure of stages one after another; ms each."""
    if not steps:
        return ""
    row = 26
    height = TOP + row * len(steps) + BOTTOM
    total = sum(ms for _, ms in steps) or 1.0
    left = 130
    scale = (WIDTH - left - 70) / total
    parts, at = [], 0.0
    for number, (name, ms) in enumerate(steps):
        x, y = round(left + at * scale, 1), TOP + row * number
        width = max(1.0, round(ms * scale, 1))
        parts.append(f'<text x="{left - 8}" y="{y + 16}" text-anchor="end">{escape(name)}</text>')
        parts.append(
            f'<rect x="{x}" y="{y + 4}" width="{width}" height="{row - 8}" '
            f'fill="var(--c{number % COLOURS})"/>'
        )
        parts.append(f'<text class="tick" x="{x + width + 5}" y="{y + 16}">{ms:.0f} ms</text>')
        at += ms
    parts.append(f'<text class="tick" x="{left}" y="{height - 8}">in all {total:.0f} ms</text>')
    return _figure(title, parts, [], height)


def _rows(head: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    cells = "".join(f"<th>{escape(name)}</th>" for name in head)
    body = "".join(
        "<tr>" + "".join(f"<td>{escape(str(cell))}</td>" for cell in row) + "</tr>" for row in rows
    )
    return f'<div class="scroll"><table><tr>{cells}</tr>{body}</table></div>'


def _three(values: dict[str, float]) -> str:
    return " / ".join(f"{values[q]:.0f}" for q in ("p50", "p95", "p99")) if values else "-"


_SUMMARY: Sequence[tuple[str, Callable[[Summary], object]]] = (
    ("callers", lambda s: s.name),
    ("calls", lambda s: s.calls),
    ("refused", lambda s: sum(s.refused.values())),
    ("cut by the server", lambda s: s.cut),
    ("turns answered", lambda s: f"{s.answered} of {s.turns}"),
    ("set-up, ms", lambda s: _three(s.setup_ms)),
    ("end of speech to first sound, ms", lambda s: _three(s.response_ms)),
    ("silent after an interruption, ms", lambda s: _three(s.stop_ms)),
    ("holes a minute of voice", lambda s: s.holes_per_minute),
    (
        "words right, lost, twice, wrong, inaudible",
        lambda s: ", ".join(map(str, s.recognized.values())),
    ),
    ("MOS mean, least", lambda s: f"{s.mos.get('mean', '-')}, {s.mos.get('least', '-')}"),
)


def _calls_up(result: Result) -> list[tuple[float, float]]:
    changes = []
    for call in result.report.calls:
        if call.setup_ms is not None:
            changes.append((call.began + call.setup_ms / 1000, 1))
            if call.ended is not None:
                changes.append((call.ended, -1))
    up, points = 0, [(0.0, 0.0)]
    for at, change in sorted(changes):
        points.append((round(at - result.began, 2), float(up)))
        up += change
        points.append((round(at - result.began, 2), float(up)))
    return points


def _by_kind(result: Result, value: Callable[[TurnRecord], float | None]) -> list[Series]:
    series = []
    for kind in KINDS:
        points = [
            (round(turn.at - result.began, 1), round(found, 1))
            for turn in result.report.turns
            if turn.kind == kind and (found := value(turn)) is not None
        ]
        if points:
            series.append(Series(kind, sorted(points)))
    return series


def _response(turn: TurnRecord) -> float | None:
    return None if turn.key else turn.response_ms


def _longest_hole(turn: TurnRecord) -> float | None:
    return max(turn.holes_ms, default=None)


def _over_time(result: Result, samples: Sequence[Samples], memory: bool) -> list[Series]:
    return [
        Series(
            one.name,
            [
                (round(at - result.began, 1), mb if memory else percent)
                for at, percent, mb in zip(one.at, one.percent, one.mb, strict=True)
            ],
        )
        for one in samples
    ]


def _section(result: Result) -> str:
    mark = None if result.fault_at is None else result.fault_at - result.began
    over_time = partial(plot, unit_x="s", mark=mark, most_x=result.seconds)
    responses = _by_kind(result, _response)
    figures = [
        over_time("Calls at once", [Series("calls", _calls_up(result))], unit_y="calls"),
        over_time("End of speech to first sound", responses, unit_y="ms", dots=True),
        distribution(
            "End of speech to first sound: share of the turns",
            [(one.name, [y for _, y in one.points]) for one in responses],
            "ms",
        ),
        waterfall("Stages of a turn, mean, by the server's account", stages(result.report.turns)),
    ]
    finals = _by_kind(result, lambda turn: turn.final_ms)
    if finals:
        figures.append(
            over_time("End of speech to final transcript", finals, unit_y="ms", dots=True)
        )
    if holes := _by_kind(result, _longest_hole):
        figures.append(over_time("Longest hole in a reply", holes, unit_y="ms", dots=True))
    if result.processes:
        for title, unit, memory in (("CPU", "% of a core", False), ("Memory", "MB", True)):
            series = _over_time(result, result.processes, memory)
            figures.append(over_time(f"{title} of each process", series, unit_y=unit))
    if result.gpus:
        for title, unit, memory in (("GPU in use", "%", False), ("GPU memory", "MB", True)):
            series = _over_time(result, result.gpus, memory)
            figures.append(over_time(title, series, unit_y=unit))
    head = [name for name, _ in _SUMMARY]
    rows = [[cell(summary) for _, cell in _SUMMARY] for summary in result.summaries()]
    limit = f"<p class='limit'>{escape(result.limit)}</p>" if result.limit else ""
    callers = [
        (
            *(number, process.cpu_percent, process.lag_ms["p99"]),
            *(process.late_ms.get(q, "-") for q in ("p50", "p95", "p99", "max")),
        )
        for number, process in enumerate(result.report.processes, 1)
    ]
    columns = ("callers", "CPU, % of a core", "loop lag p99, ms")
    late = tuple(f"packets late {q}, ms" for q in ("p50", "p95", "p99", "max"))
    options = ", ".join(f"{name} {value}" for name, value in result.options.items())
    return (
        f"<h2>{escape(result.name)}</h2><p class='soft'>{escape(options)}</p>"
        f"{limit}{_rows(head, rows)}<p class='soft'>Three numbers are p50 / p95 / p99.</p>"
        f'<div class="plots">{"".join(figures)}</div>'
        f"{_rows((*columns, *late), callers)}"
    )


def _faults(rows: Sequence[Noticed]) -> str:
    if not rows:
        return ""
    head = (
        *(
            "run",
            "calls then up",
            "words",
            "lost",
            "said twice",
            "wrong",
            "inaudible",
            "finals later, ms p99",
            "max",
        ),
        *("longest silence in the voice, ms", "voice lost", "twice", "unanswered", "calls cut"),
        "back after, ms",
    )
    table = [
        (
            *(r.run, r.calls, r.words, r.lost, r.twice, r.wrong, r.inaudible),
            *(r.final_late_ms.get("p99", "-"), r.final_late_ms.get("max", "-"), r.silence_ms),
            *(r.voice_lost, r.voice_twice, r.unanswered, r.cut),
            "-" if r.back_ms is None else r.back_ms,
        )
        for r in rows
    ]
    return f"<h2>What callers noticed</h2>{_rows(head, table)}"


def page(results: Sequence[Result], rows: Sequence[Noticed] = ()) -> str:
    """Returns the whole page."""
    sections = "".join(map(_section, results))
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>offhook bench calls</title><style>{STYLE}</style></head><body>"
        f"<h1>offhook bench calls</h1>{_faults(rows)}{sections}"
        "<p class='soft'>All times are those at the callers. The mean opinion score is an estimate "
        "by the E-model (ITU-T G.107) from the codec, from the packets lost, late or dropped on "
        "purpose, and from the delay of packet, codec, jitter buffer and, where RTCP measures it, "
        "the network.</p></body></html>"
    )
