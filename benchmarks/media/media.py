"""`offhook bench media`: what 20 ms of sound cost, and how long they take.

Three parts: every step of our packet path in process, without network; pairs of peers on loopback
beside aiortc's own audio path; the echo round trip through the whole edge beside stock Pipecat.
"""

import asyncio
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass

import numpy as np
import pylibsrtp

from benchmarks.command import command
from benchmarks.media.echo import at_the_ears, at_the_packets
from benchmarks.processes.process import child
from benchmarks.speech.lines import encode, opus
from benchmarks.speech.recordings import TICKS, load_speech
from benchmarks.table import percentiles
from offhook.media.clock_io import PacketClock
from offhook.media.codecs.opus import OpusDecoder, OpusEncoder
from offhook.media.codecs.resample import Resampler
from offhook.media.leg import Leg
from offhook.media.pcm import RATE_IN, RATE_OUT, SAMPLES_IN, SAMPLES_OUT, Pcm
from offhook.media.playout import Playout
from offhook.media.rtp.receiver import AudioReceiver
from offhook.media.rtp.rtcp import RtcpSession
from offhook.media.rtp.rtp import RtpPacket
from offhook.media.rtp.sender import AudioSender
from offhook.web.config.config import Log
from offhook.web.http.logs_io import set_up
from offhook.web.http.loop_io import run as run_loop

PACKETS = 3000
"""A minute of speech."""
PAIRS = (1, 5, 10)
PAIR_S = 10.0
ECHO_S = 30.0
CLOCK_LEGS = 20
PT, SSRC = 111, 1
_KEY = bytes(range(44))
_NOTHING = np.zeros(SAMPLES_IN, np.int16)


@dataclass(frozen=True)
class Step:
    """One step of the path of one packet."""

    direction: str
    name: str
    us: float
    """Median CPU time."""
    p99_us: float


class Timer:
    """Times one call of something after another."""

    def __init__(self, direction: str, name: str) -> None:
        self._direction, self._name = direction, name
        self._ns: list[int] = []

    def add(self, started: int) -> int:
        """Since `started`; returns the time now."""
        now = time.thread_time_ns()
        self._ns.append(now - started)
        return now

    def step(self, cost_ns: float) -> Step:
        times = (np.array(self._ns) - cost_ns) / 1000
        p50, p99 = np.percentile(times, (50, 99))
        return Step(self._direction, self._name, round(float(p50), 1), round(float(p99), 1))


def _clock_cost_ns() -> float:
    """What it costs to look at the clock."""
    timer = Timer("", "")
    started = time.thread_time_ns()
    for _ in range(2000):
        started = timer.add(started)
    return timer.step(0).us * 1000


def _srtp() -> tuple[pylibsrtp.Session, pylibsrtp.Session]:
    """Both ends of a stream, under the profile that our DTLS prefers."""
    policy, profile = pylibsrtp.Policy, pylibsrtp.Policy.SRTP_PROFILE_AEAD_AES_256_GCM
    out = policy(_KEY, policy.SSRC_ANY_OUTBOUND, srtp_profile=profile)
    into = policy(_KEY, policy.SSRC_ANY_INBOUND, srtp_profile=profile)
    return pylibsrtp.Session(out), pylibsrtp.Session(into)


def inbound(payloads: Sequence[bytes]) -> list[Step]:
    """A packet's way in, from the datagram to 320 samples."""
    names = ("SRTP unprotect", "RTP parse", "jitter buffer insert", "RTCP count", "pull + decode")
    timers = [Timer("in", name) for name in names]
    unprotect, parse, insert, count, pull = timers
    protect, session = _srtp()
    receiver = AudioReceiver({PT: OpusDecoder})
    rtcp = RtcpSession(2, "bench", 48_000, 0.0)
    for i, payload in enumerate(payloads):
        now = i * 0.02
        wire = protect.protect(
            RtpPacket(PT, i & 0xFFFF, i * TICKS & 0xFFFFFFFF, SSRC, payload).serialize()
        )
        at = time.thread_time_ns()
        data = session.unprotect(wire)
        at = unprotect.add(at)
        packet = RtpPacket.parse(data)
        at = parse.add(at)
        receiver.receive(packet, now)
        at = insert.add(at)
        rtcp.receive_rtp(packet.ssrc, packet.sequence_number, packet.timestamp, now)
        at = count.add(at)
        receiver.pull(now + 0.005)
        pull.add(at)
    cost = _clock_cost_ns()
    return [timer.step(cost) for timer in timers]


def outbound(speech: Pcm) -> list[Step]:
    """20 ms on their way out, from the playout to the datagram."""
    timers = [Timer("out", name) for name in ("playout", "encode + RTP", "SRTP protect")]
    take, encode_rtp, protect = timers
    session, _ = _srtp()
    sent: list[bytes] = []
    playout = Playout()
    sender = AudioSender(OpusEncoder(), PT, SSRC, sent.append)
    for start in range(0, len(speech) - SAMPLES_OUT + 1, SAMPLES_OUT):
        if not playout.queued:
            playout.write(speech[start : start + 50 * SAMPLES_OUT])
        at = time.thread_time_ns()
        pcm = playout.pop()
        at = take.add(at)
        sender.tick(pcm, start / RATE_OUT)
        at = encode_rtp.add(at)
        if sent:
            session.protect(sent.pop())
            protect.add(at)
    cost = _clock_cost_ns()
    return [timer.step(cost) for timer in timers]


class _Mute(Leg):
    """A leg that does nothing: what is left is the tick itself."""

    def _receive(self, now: float) -> Pcm:
        return _NOTHING

    def _send(self, said: Pcm | None, now: float) -> None:
        pass

    def send_message(self, text: str) -> bool:
        return False

    async def hang_up(self, reason: str) -> None:
        pass


async def clock(seconds: float) -> list[Step]:
    """What the packet clock itself costs, on a running loop: of a call among many, and alone."""
    steps = []
    for legs in (1, CLOCK_LEGS):
        running = PacketClock()
        mutes = [_Mute(str(i)) for i in range(legs)]
        for leg in mutes:
            running.add(leg)
        cpu = time.process_time_ns()
        await asyncio.sleep(seconds)
        us = (time.process_time_ns() - cpu) / 1000 / sum(leg.ticks for leg in mutes)
        for leg in mutes:
            running.remove(leg)
        name = f"clock + tick, {legs} call{'s' * (legs > 1)}"
        steps.append(Step("both", name, round(us, 1), float("nan")))
    return steps


def echo_resampling(packets: int = 500) -> Step:
    timer, resampler = Timer("echo", "resample 16 -> 24 kHz"), Resampler(RATE_IN, RATE_OUT)
    for _ in range(packets):
        at = time.thread_time_ns()
        resampler.process(_NOTHING)
        timer.add(at)
    return timer.step(_clock_cost_ns())


def steps(packets: int = PACKETS, clock_s: float = 2.0) -> list[Step]:
    speech = load_speech(packets // 50)
    path = [*inbound(encode(speech, opus(0.05))), *outbound(speech), echo_resampling()]
    return [*path, *run_loop(clock(clock_s))]


async def pairs(kind: str, count: int, seconds: float) -> dict[str, object]:
    arguments = ("--pairs", str(count), "--seconds", str(seconds))
    async with child("benchmarks.media.pairs", kind, *arguments) as running:
        return running.hello


@dataclass(frozen=True)
class EchoRow:
    server: str
    way: str
    """"packets" or "ears": see `echo`."""
    chirps: int
    round_trip_ms: dict[str, float]


async def echo(server: str, seconds: float) -> list[EchoRow]:
    """A fresh server, one client after the other."""
    rows = []
    async with child(f"benchmarks.servers.{server}_server", "echo") as running:
        url = f"http://127.0.0.1:{running.hello['port']}"
        for way, client in (("packets", at_the_packets), ("ears", at_the_ears)):
            times = await client(url, seconds)
            found = percentiles(times)
            if times:
                found = {"min": round(min(times), 1), **found}
            rows.append(EchoRow(server, way, len(times), found))
    return rows


def _print_steps(found: Sequence[Step]) -> None:
    print(f"{'':5}{'per 20 ms, microseconds of one core':38}{'p50':>8}{'p99':>8}")
    for step in found:
        print(f"{step.direction:5}{step.name:38}{step.us:8.1f}{step.p99_us:8.1f}")
    for direction in ("in", "out"):
        us = sum(step.us for step in found if step.direction == direction)
        print(f"{direction:5}{'sum':38}{us:8.1f}  = {us / 200:.2f} % of a core")


def run(
    as_json: bool,
    pair_counts: Sequence[int] = PAIRS,
    pair_seconds: float = PAIR_S,
    echo_seconds: float = ECHO_S,
) -> int:
    """Print the three parts as they come. Returns 0."""
    show: Callable[..., None] = (lambda *a, **k: None) if as_json else print
    found = steps()
    if not as_json:
        _print_steps(found)
    show(
        f"\n{'pairs':>6} {'peer':9}{'% core':>8}{'/peer':>7}{'heard/s':>9}{'lag p99':>9}{'thr.':>6}"
    )

    async def over_loopback() -> tuple[list[dict[str, object]], list[EchoRow]]:
        rows = []
        for count in pair_counts:
            for kind in ("offhook", "aiortc"):
                row = await pairs(kind, count, pair_seconds)
                rows.append(row)
                lag = row["lag_ms"]
                assert isinstance(lag, dict)
                show(
                    f"{count:>6} {kind:9}{row['cpu_percent']:>8}{row['cpu_per_peer_percent']:>7}"
                    f"{row['heard_per_s']:>9}{lag['p99']:>9}{row['threads']:>8}",
                    flush=True,
                )
        show(f"\n{'echo round trip, ms':28}{'n':>4}{'min':>8}{'p50':>8}{'p95':>8}{'max':>8}")
        echoes = []
        for server in ("edge", "stock"):
            for one in await echo(server, echo_seconds):
                echoes.append(one)
                t = one.round_trip_ms
                times = "".join(f"{t.get(k, 0):8.1f}" for k in ("min", "p50", "p95", "max"))
                show(f"{server:7}at the {one.way:14}{one.chirps:>4}{times}", flush=True)
        return rows, echoes

    rows, echoes = run_loop(over_loopback())
    if as_json:
        plain = {
            "steps": [{k: None if v != v else v for k, v in asdict(s).items()} for s in found],
            "pairs": rows,
            "echo": [asdict(row) for row in echoes],
        }
        print(json.dumps(plain))
    return 0


def main(argv: Sequence[str] | None = None) -> int:
    parser = command("media", __doc__)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--pairs", default=",".join(map(str, PAIRS)), metavar="N,N,...")
    parser.add_argument("--pair-seconds", type=float, default=PAIR_S)
    parser.add_argument("--echo-seconds", type=float, default=ECHO_S)
    arguments = parser.parse_args(argv)
    set_up(Log(level="WARNING"))
    counts = [int(number) for number in arguments.pairs.split(",")]
    return run(arguments.json, counts, arguments.pair_seconds, arguments.echo_seconds)


if __name__ == "__main__":
    raise SystemExit(main())
