"""How many machines, cores and GPUs a number of calls needs.

The cost of a call is measured here, part by part (`call_cost_io`); what is none of those parts is
what it was on the machine where whole calls were measured, adjusted by the speed of this one. What
an engine follows is a table of measurements, unless its workers can be asked.
"""

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from math import ceil
from typing import Any

from offhook.pipeline.engines.shared.capacity import SPEAKS, speaking_at_once
from offhook.pipeline.engines.shared.model.instructions import Instructions
from offhook.pipeline.speech.engine_spec import MEASURED_ON, Cost, Kind
from offhook.pipeline.speech.engines import spec_of


@dataclass(frozen=True)
class Assumptions:
    """How people talk, and how full machines may be."""

    caller_speaks: float = SPEAKS
    """Share of a call."""
    agent_speaks: float = 0.45
    used: float = 0.70
    """Share of a core, an engine or a machine that is planned with; an edge takes no further calls
    beyond it."""
    deviations: float = 3.0
    """Of few calls more may speak at once than the rest leaves room for: as many as chance exceeds
    by so many standard deviations."""
    spare_machines: int = 1
    """Of each kind, so that one may fail or be upgraded."""
    turn_s: float = 8.0
    """Time in s from one reply to the next."""
    call_s: float = 180.0
    """Mean length of a call in s."""


@dataclass(frozen=True)
class PartCosts:
    """CPU time on one core."""

    received_us: float
    """20 ms of a WebRTC caller's sound, in µs."""
    sent_us: float
    """20 ms of the agent's voice, in µs."""
    vad_us: float
    """A window of 32 ms through the voice detector, in µs."""
    turn_ms: float
    """A pause through the end-of-turn model, in ms."""

    hop_us: float
    """Handing something from a task of the event loop to another, in µs."""

    def share(self, a: Assumptions) -> float:
        """Returns the share of a core that the parts of a call take, without the rest."""
        packets = 50e-6 * (self.received_us + a.agent_speaks * self.sent_us)
        return packets + 1e-6 * self.vad_us / 0.032 + 1e-3 * self.turn_ms / a.turn_s


REFERENCE = PartCosts(received_us=36, sent_us=134, vad_us=36, turn_ms=24, hop_us=2.17)
"""The parts on an AMD EPYC core, at the same time as REFERENCE_SHARE."""
REFERENCE_SHARE = 0.0321
"""Share of that core of a call, ten in a process: `offhook bench edge --calls 10 --no-search`."""
REFERENCE_CALL = Assumptions(agent_speaks=0.57, turn_s=7.5)
"""How its caller and the agent talked."""
LOOP_SHARE = 0.75
"""Of a call's CPU time, what the event loop's thread takes: one core is the most it has."""
PROCESS_MB, CALL_MB = 230, 3
"""Memory of an edge process, and of a call in it (docs/measured.md, calls on a CPU)."""
CELL_CALLS = 12_500
"""Calls that are run as one cell; see docs/scale.md."""


GPU_CORES = 2
"""Cores of a worker on a GPU: an event loop and a thread that packs batches."""


@dataclass(frozen=True)
class Host:
    """This machine: the unit in which machines are counted."""

    cores: int
    memory_bytes: int
    instructions: Instructions
    gpus: tuple[str, ...] = ()
    """Their names."""


@dataclass(frozen=True)
class Engine:
    """An engine of the configuration."""

    name: str
    cost: Cost | None
    """None if nothing is known of it."""


@dataclass(frozen=True)
class Needs:
    """What one kind of process needs for the calls, without spares."""

    part: str
    processes: int
    cores: float
    memory_gb: float
    gpus: int
    machines: int
    """Machines like this one, if no other part runs on them."""
    why: str


@dataclass(frozen=True)
class Sizing:
    """The answer for a number of calls."""

    calls: int
    call_share: float
    """Share of a core of this machine that a call takes of its edge."""
    new_calls_per_s: float
    """Little's law: the calls at once divided by their mean length."""
    needs: tuple[Needs, ...]
    cores: float
    memory_gb: float
    gpus: int
    """Of all parts, without spares."""
    machines: int
    """Machines like this one for what needs no GPU, the spare included."""
    gpu_machines: int
    """Machines with as many GPUs as this one, or with one, a spare of each kind included."""
    cells: int
    notes: tuple[str, ...]

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def call_share(parts: PartCosts, a: Assumptions) -> float:
    """Returns the share of a core of this machine that a call takes."""
    rest = REFERENCE_SHARE - REFERENCE.share(REFERENCE_CALL)
    return parts.share(a) + rest * parts.hop_us / REFERENCE.hop_us


def slowness(parts: PartCosts) -> float:
    """Returns how many times as long as the reference a core of this machine takes for a model."""
    return parts.turn_ms / REFERENCE.turn_ms


def at_once(calls: int, share: float, a: Assumptions) -> int:
    """Returns the streams to provide for `calls` that each use one for a `share` of the time."""
    chance = speaking_at_once(calls, share, a.deviations)
    return min(calls, ceil(max(calls * share / a.used, chance)))


def cost_of(
    kind: Kind, engine: str, model: str, instructions: Instructions, on_gpu: bool
) -> Cost | None:
    """Returns what an engine costs, on a GPU if it can use one and there is one; None if nothing is
    known of it."""
    costs = spec_of(kind, engine).costs
    units = {cost.unit for cost in costs}
    for cost in costs:
        right_unit = len(units) == 1 or (cost.unit == "GPU") is on_gpu
        right_cpu = not cost.vnni or instructions is Instructions.VNNI
        if right_unit and right_cpu and cost.model in model:
            return cost
    return None


def size(
    calls: int,
    parts: PartCosts,
    host: Host,
    engines: Mapping[Kind, Engine],
    a: Assumptions,
) -> Sizing:
    """Returns what `calls` at once need."""
    share = call_share(parts, a)
    needs = [_edges(calls, share, host, a)]
    for kind, engine in engines.items():
        speaking = a.caller_speaks if kind == "asr" else a.agent_speaks
        if engine.cost is not None:
            streams = at_once(calls, speaking, a)
            needs.append(_engine(kind, engine, engine.cost, streams, slowness(parts), host))
    on_cpu, on_gpu = ([n for n in needs if bool(n.gpus) is gpu] for gpu in (False, True))
    spares = a.spare_machines
    return Sizing(
        calls,
        share,
        calls / a.call_s,
        tuple(needs),
        sum(n.cores for n in needs),
        sum(n.memory_gb for n in needs),
        sum(n.gpus for n in needs),
        _machines(sum(n.cores for n in on_cpu), sum(n.memory_gb for n in on_cpu), host) + spares,
        sum(n.machines + spares for n in on_gpu),
        ceil(calls / CELL_CALLS),
        tuple(_notes(calls, engines, host, on_gpu)),
    )


def _edges(calls: int, share: float, host: Host, a: Assumptions) -> Needs:
    per_process = max(1, int(a.used / (share * LOOP_SHARE)))
    processes = ceil(calls / per_process)
    cores = calls * share / a.used
    memory = (processes * PROCESS_MB + calls * CALL_MB) / 1024
    why = f"{100 * share:.1f} % of a core a call, {per_process} calls a process"
    return Needs("edges", processes, cores, memory, 0, _machines(cores, memory, host), why)


def _engine(kind: Kind, engine: Engine, cost: Cost, streams: int, slow: float, host: Host) -> Needs:
    """Returns what an engine needs for so many streams, on cores `slow` times as slow."""
    part = f"{'recognition' if kind == 'asr' else 'voices'}, {engine.name}"
    who = f"{streams} {'callers' if kind == 'asr' else 'replies'} at once"
    if cost.unit == "core":
        cores = streams / cost.streams * slow
        processes = ceil(cores / host.cores)
        memory = processes * cost.memory_mb / 1024
        why = f"{who}, {cost.streams / slow:.1f} a core, {cost.source}"
        return Needs(part, processes, cores, memory, 0, _machines(cores, memory, host), why)
    units = ceil(streams / cost.streams)
    why = f"{who}, {cost.streams:.0f} a {cost.unit}, {cost.source}"
    if cost.unit == "worker":
        return Needs(part, units, 0.0, 0.0, 0, 0, why)
    of_unit = ceil(min(streams, cost.streams) / cost.process_streams) if cost.process_streams else 1
    processes = units * of_unit
    memory = processes * cost.memory_mb / 1024
    machines = ceil(units / max(1, len(host.gpus)))
    return Needs(part, processes, processes * GPU_CORES, memory, units, machines, why)


def _machines(cores: float, memory_gb: float, host: Host) -> int:
    return ceil(max(cores / host.cores, memory_gb * 2**30 / host.memory_bytes))


def _notes(
    calls: int, engines: Mapping[Kind, Engine], host: Host, on_gpu: list[Needs]
) -> Iterator[str]:
    for kind, engine in engines.items():
        if engine.cost is None:
            yield f"[{kind}] {engine.name}: nothing is measured of it, so it is not counted"
    others = [name for name in host.gpus if MEASURED_ON not in name]
    if on_gpu and (others or not host.gpus):
        here = f"this machine has {others[0]}" if others else "this machine has no GPU"
        yield f"GPUs are counted as {MEASURED_ON}, on which the engines were measured; {here}"
    if calls > CELL_CALLS:
        yield f"run it as cells of at most {CELL_CALLS} calls, each with a spare of its own"
    yield "the language model and, with phones, a pair of Kamailio are not counted"


# --- in words ---


def lines(sizing: Sizing, parts: PartCosts, host: Host, a: Assumptions) -> Iterator[str]:
    """Yields the report."""
    gpus = ", ".join(host.gpus) or "no GPU"
    memory = host.memory_bytes / 2**30
    yield f"{sizing.calls} calls at once, {sizing.new_calls_per_s:.1f} new ones a second"
    yield (
        f"assumed: callers speak {a.caller_speaks:.0%} of the time and the agent "
        f"{a.agent_speaks:.0%}, a turn each {a.turn_s:g} s, calls of {a.call_s:g} s, all used to "
        f"{a.used:.0%}, {a.spare_machines} spare machine of a kind"
    )
    yield f"this machine: {host.cores} cores, {memory:.0f} GB of memory, {gpus}"
    yield (
        f"measured on a core of it: 20 ms received {parts.received_us:.0f} µs, sent "
        f"{parts.sent_us:.0f} µs; voice detector {parts.vad_us:.0f} µs per 32 ms; end of turn "
        f"{parts.turn_ms:.0f} ms; a hop between tasks {parts.hop_us:.1f} µs"
    )
    yield ""
    wide = max(len(n.part) for n in sizing.needs)
    yield f"{'':{wide}} {'processes':>9} {'cores':>7} {'GB':>6} {'GPUs':>5}"
    for n in sizing.needs:
        yield (
            f"{n.part:{wide}} {n.processes:>9} {n.cores:>7.1f} {n.memory_gb:>6.1f} "
            f"{n.gpus or '-':>5}  {n.why}"
        )
    total = f"{'in all':{wide}} {'':>9} {sizing.cores:>7.1f} {sizing.memory_gb:>6.1f}"
    yield f"{total} {sizing.gpus or '-':>5}"
    yield ""
    yield f"machines like this one, a spare included: {sizing.machines}"
    if sizing.gpu_machines:
        gpus = f"{max(1, len(host.gpus))} GPU{'s' * (len(host.gpus) > 1)}"
        yield f"machines with {gpus}, a spare of each kind included: {sizing.gpu_machines}"
    for note in sizing.notes:
        yield f"note: {note}"
