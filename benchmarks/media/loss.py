"""What a bad network does to heard speech: our receive path beside aiortc's, on the same packets.

A network of one sender is simulated in its own time: packets leave every 20 ms, some are lost or
late, a receiver pulls every 20 ms. Everything follows from the seed, nothing from the machine.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from functools import cache
from random import Random

import numpy as np
import numpy.typing as npt
from aiortc.codecs.opus import OpusDecoder as AiortcOpusDecoder
from aiortc.jitterbuffer import JitterBuffer as AiortcJitterBuffer
from aiortc.jitterbuffer import JitterFrame
from aiortc.rtp import RtpPacket as AiortcRtpPacket

from benchmarks.command import command
from benchmarks.speech.lines import encode, opus
from benchmarks.speech.recordings import TICKS, Packets, load_speech, resample
from offhook.media.codecs.opus import OpusDecoder
from offhook.media.pcm import RATE_IN, SAMPLES_IN, Pcm
from offhook.media.rtp.receiver import AudioReceiver
from offhook.media.rtp.rtp import RtpPacket

PACKET_S = 0.020
PULL_PHASES_S = (0.002, 0.007, 0.012, 0.017)
"""How long after a punctual packet the receiver pulls. It cannot choose, so all are tried."""
SEED = 1
EVENT = 475
"""The packet to which the single events happen, 9.5 s in: amid a word of the recordings."""
SEARCH = 320
"""Samples to either side in which received sound is looked for, to compare it."""
ACTIVE_RMS = 300.0
"""Frames of the clean decode below this are not compared: they hold no speech."""
BEND_FLOOR = 200.0
"""Bends of the wave below this are not heard as clicks even in silence."""
SNR_LIMITS = (-10.0, 35.0)
"""dB. Segmental SNR is the mean over frames within these limits."""


@dataclass(frozen=True)
class Impairment:
    """What happens to the packets on their way."""

    name: str
    loss: float = 0.0
    """Share of packets lost at random."""
    lost: tuple[int, ...] = ()
    late: dict[int, float] = field(default_factory=dict)
    """Extra delay in ms by packet index."""
    jitter_ms: float = 0.0
    """Width of a uniform delay, or the mean of a gamma one."""
    gamma: bool = False
    reordered: float = 0.0
    """Share of packets that come 25 ms late, after their successor."""

    def arrivals(self, packets: int, seed: int = SEED) -> list[tuple[float, int]]:
        """(arrival in s, packet index), by arrival. Packet i leaves at i x 20 ms."""
        random = Random(seed)
        out = []
        for i in range(packets):
            lost = random.random() < self.loss or i in self.lost
            ms = self.late.get(i, 0.0)
            if self.jitter_ms:
                ms += (
                    random.gammavariate(2, self.jitter_ms / 2)
                    if self.gamma
                    else random.uniform(0, self.jitter_ms)
                )
            if random.random() < self.reordered:
                ms += 25
            if not lost:
                out.append((i * PACKET_S + ms / 1000, i))
        return sorted(out)


SCENARIOS = (
    Impairment("none"),
    Impairment("1 packet lost", lost=(EVENT,)),
    Impairment("1 packet 70 ms late", late={EVENT: 70}),
    Impairment("1 packet 210 ms late", late={EVENT: 210}),
    Impairment("3 packets lost", lost=(EVENT, EVENT + 1, EVENT + 2)),
    Impairment("1 % loss", loss=0.01),
    Impairment("5 % loss", loss=0.05),
    Impairment("30 ms jitter", jitter_ms=30),
    Impairment("30 ms gamma jitter", jitter_ms=30, gamma=True),
    Impairment("30 ms jitter + 5 % loss", jitter_ms=30, loss=0.05),
    Impairment("5 % reordered", reordered=0.05),
)


@dataclass
class Result:
    """What was heard. Delays in ms are of the sound against its leaving the sender."""

    path: str
    scenario: str
    before_ms: float
    """Delay in the second before the event."""
    after_2s_ms: float
    after_10s_ms: float
    mean_ms: float
    hole_ms: float
    """Longest time without sound from a packet."""
    concealed: float
    """Share of the sound that came from no packet: invented or silent in our path, left out in
    aiortc's, whose holes come on top."""
    discarded: float
    """Packets that came and were not played."""
    fec_recovered: float
    lost_snr_db: float
    """Mean SNR over the lost packets with speech in them, against the clean decode."""
    segmental_snr_db: float
    """Mean SNR over all packets with speech in them."""
    click: float
    """The sharpest bend of the wave against the clean decode's near it: `click`."""


_AVERAGED = (
    *("before_ms", "after_2s_ms", "after_10s_ms", "mean_ms"),
    *("concealed", "discarded", "fec_recovered", "lost_snr_db", "segmental_snr_db"),
)


@dataclass
class _Heard:
    """The outcome of one path, before it is judged."""

    received: Pcm  # 16 kHz, as a recogniser gets it
    placed: dict[int, int]  # packet index -> sample of `received` where its sound begins
    sources: list[int]  # by 20 ms of `received`: the packet they come from
    delays: list[tuple[float, float]]  # (s when sent, s of delay), by packet
    hole_s: float
    concealed: float
    discarded: int
    fec_recovered: int = 0


_Path = Callable[[Packets, Impairment, float], _Heard]


@cache
def decode(packets: Packets) -> Pcm:
    """What an undisturbed receiver hears, 16 kHz."""
    decoder = OpusDecoder()
    return np.concatenate([decoder.decode(packet) for packet in packets])


def hear(packets: Packets, impairment: Impairment) -> Pcm:
    """The 16 kHz sound our receive path makes of the impaired packets."""
    return _ours(packets, impairment, PULL_PHASES_S[0]).received


def hear_aiortc(packets: Packets, impairment: Impairment) -> Pcm:
    """The same of aiortc's, its frames one after another as Pipecat takes them."""
    return _aiortc(packets, impairment, 0.0).received


def simulate(packets: Packets, impairment: Impairment) -> Result:
    """Our receive path under one impairment: the mean over PULL_PHASES_S of everything, but the
    largest hole and click."""
    results = [_judge(packets, impairment, _ours, phase) for phase in PULL_PHASES_S]
    mean = {
        name: float(np.mean([getattr(result, name) for result in results])) for name in _AVERAGED
    }
    return Result(
        path="offhook",
        scenario=impairment.name,
        hole_ms=max(result.hole_ms for result in results),
        click=max(result.click for result in results),
        **mean,
    )


def simulate_aiortc(packets: Packets, impairment: Impairment) -> Result:
    """aiortc's receive path under one impairment. It has no pull: packets push sound out."""
    return _judge(packets, impairment, _aiortc, 0.0)


def _judge(packets: Packets, impairment: Impairment, path: _Path, phase: float) -> Result:
    heard = path(packets, impairment, phase)
    clean = _clean(packets, path)
    arrived = {i for _, i in impairment.arrivals(len(packets))}
    by_packet = _snr_by_packet(clean, heard, packets)
    lost = [snr for i, snr in by_packet.items() if i not in arrived]
    event = EVENT * PACKET_S
    return Result(
        path="aiortc",
        scenario=impairment.name,
        before_ms=_mean_delay(heard, event - 1, event),
        after_2s_ms=_mean_delay(heard, event + 2, event + 2.5),
        after_10s_ms=_mean_delay(heard, event + 10, event + 10.5),
        mean_ms=_mean_delay(heard, 1, len(packets) * PACKET_S),
        hole_ms=heard.hole_s * 1000,
        concealed=heard.concealed,
        discarded=heard.discarded,
        fec_recovered=heard.fec_recovered,
        lost_snr_db=float(np.mean(lost)) if lost else float("nan"),
        segmental_snr_db=float(np.mean(list(by_packet.values()))),
        click=_click_against(clean, heard, len(packets)),
    )


def _click_against(clean: _Heard, heard: _Heard, packets: int) -> float:
    """`click` of what was heard, against the same path undisturbed; without the recording's ends,
    where a spectrum's resampling rings."""
    block = {source: k for k, source in enumerate(clean.sources)}
    kept = [k for k, source in enumerate(heard.sources) if 100 <= source < packets - 50]
    sources = [block[heard.sources[k]] for k in kept]
    first, last = kept[0], kept[-1] + 1
    assert kept == list(range(first, last))
    return click(heard.received[first * SAMPLES_IN : last * SAMPLES_IN], sources, clean.received)


@cache
def _clean(packets: Packets, path: _Path) -> _Heard:
    return path(packets, SCENARIOS[0], PULL_PHASES_S[0])


def _ours(packets: Packets, impairment: Impairment, phase: float) -> _Heard:
    receiver = AudioReceiver({111: OpusDecoder})
    stats = receiver.stats
    out: list[Pcm] = []
    placed: dict[int, int] = {}
    sources: list[int] = []
    delays: list[tuple[float, float]] = []
    hole = longest = 0.0
    before: int | None = None
    for now, arrivals in _pulls(packets, impairment, phase):
        for at, i in arrivals:
            receiver.receive(RtpPacket(111, i & 0xFFFF, i * TICKS, 1, packets[i]), at)
        sounded = stats.played_packets + stats.fec_recovered
        out.append(receiver.pull(now))
        hole = 0.0 if stats.played_packets + stats.fec_recovered > sounded else hole + PACKET_S
        if stats.played_packets:
            longest = max(longest, hole)
        timestamp = receiver.timestamp
        if timestamp is not None and timestamp != before:
            # the next pull, 20 ms from now, begins with the sound of this timestamp
            delays.append((timestamp / 48000, now + PACKET_S - timestamp / 48000))
            placed[round(timestamp / TICKS)] = (
                len(out) * SAMPLES_IN - (timestamp - round(timestamp / TICKS) * TICKS) // 3
            )
        before = timestamp
        sources.append(max(0, round((timestamp or 0) / TICKS) - 1))
    return _Heard(
        received=np.concatenate(out),
        sources=sources,
        placed=placed,
        delays=delays,
        hole_s=longest,
        concealed=stats.concealed_samples / stats.played_samples,
        discarded=stats.late,
        fec_recovered=stats.fec_recovered,
    )


def _pulls(
    packets: Packets, impairment: Impairment, phase: float
) -> Iterator[tuple[float, list[tuple[float, int]]]]:
    """Every pull's time, and what arrived since the one before; until all sound has left."""
    arrivals = impairment.arrivals(len(packets))
    taken = 0
    for pull in range(len(packets)):
        now = pull * PACKET_S + phase
        end = taken
        while end < len(arrivals) and arrivals[end][0] <= now:
            end += 1
        yield now, arrivals[taken:end]
        taken = end


def _aiortc(packets: Packets, impairment: Impairment, phase: float) -> _Heard:
    buffer = AiortcJitterBuffer(capacity=16, prefetch=4)
    decoder = AiortcOpusDecoder()
    sound: list[npt.NDArray[np.float64]] = []
    placed: dict[int, int] = {}
    sources: list[int] = []
    outputs: list[tuple[float, int]] = []
    arrivals = impairment.arrivals(len(packets))
    for at, i in arrivals:
        packet = AiortcRtpPacket(payload_type=111, sequence_number=i & 0xFFFF, timestamp=i * TICKS)
        packet._data = packets[i]  # type: ignore[attr-defined]
        _, frame = buffer.add(packet)
        if frame is None:
            continue
        placed[frame.timestamp // TICKS] = len(sound) * SAMPLES_IN
        outputs.append((at, frame.timestamp // TICKS))
        for decoded in decoder.decode(JitterFrame(frame.data, frame.timestamp)):
            stereo = decoded.to_ndarray()  # type: ignore[attr-defined]
            stereo = stereo.reshape(-1, 2)
            sound.append(stereo.mean(axis=1))
            sources.append(frame.timestamp // TICKS)
    times = [at for at, _ in outputs]
    played = len(outputs)
    waiting = sum(1 for packet in buffer._packets if packet is not None)
    return _Heard(
        received=resample(np.concatenate(sound), 48000, RATE_IN),
        sources=sources,
        placed=placed,
        delays=[(i * PACKET_S, at - i * PACKET_S) for at, i in outputs],
        hole_s=max(0.0, float(np.max(np.diff(times))) - PACKET_S),
        concealed=1 - played / (len(packets) - waiting),
        discarded=len(arrivals) - waiting - played,
    )


def _mean_delay(heard: _Heard, start: float, end: float) -> float:
    """ms, over the sound that left the sender between two times."""
    delays = [delay for sent, delay in heard.delays if start <= sent < end]
    return 1000 * float(np.mean(delays)) if delays else float("nan")


def click(received: Pcm, sources: list[int], clean: Pcm) -> float:
    """The sharpest bend (second difference) of the wave in each 20 ms of `received`, against the
    sharpest within 40 ms of the same place in `clean`: the largest such ratio. `sources` names
    the packet each 20 ms come from. About 1 without clicks."""
    bends = _bends(received)
    return float((bends / _allowed_bends(clean)[sources[: len(bends)]]).max())


def _bends(pcm: Pcm) -> npt.NDArray[np.float64]:
    """The sharpest bend of every 20 ms, the joint to the 20 ms before included."""
    bends = np.abs(np.diff(pcm.astype(np.float64), 2, prepend=(pcm[0], pcm[0])))
    peaks: npt.NDArray[np.float64] = (
        bends[: len(bends) // SAMPLES_IN * SAMPLES_IN].reshape(-1, SAMPLES_IN).max(axis=1)
    )
    return peaks


def _allowed_bends(clean: Pcm) -> npt.NDArray[np.float64]:
    """Of every packet of a clean decode, the sharpest bend from two before to two after it."""
    around = np.lib.stride_tricks.sliding_window_view(np.pad(_bends(clean), 2), 5)
    allowed: npt.NDArray[np.float64] = around.max(axis=1) + BEND_FLOOR
    return allowed


def _snr_by_packet(clean: _Heard, heard: _Heard, packets: Packets) -> dict[int, float]:
    """SNR in dB of each packet of speech in what was heard, against the undisturbed path's."""
    result = {}
    for i, at in clean.placed.items():
        reference = clean.received[at - SAMPLES_IN : at + 2 * SAMPLES_IN].astype(np.float64)
        wanted = reference[SAMPLES_IN : 2 * SAMPLES_IN]
        if not 100 <= i < len(packets) - 50 or np.sqrt(np.mean(wanted**2)) < ACTIVE_RMS:
            continue
        result[i] = _snr(reference, heard.received, heard.placed.get(i))
    return result


def _snr(reference: npt.NDArray[np.float64], received: Pcm, at: int | None) -> float:
    """SNR of the middle third of `reference` where it fits best around sample `at`."""
    if at is None:
        return 0.0
    wanted = reference[SAMPLES_IN : 2 * SAMPLES_IN]
    low, high = SNR_LIMITS
    if np.array_equal(received[at : at + SAMPLES_IN], wanted):
        return high
    start = max(0, at - SAMPLES_IN - SEARCH)
    area = received[start : at + 2 * SAMPLES_IN + SEARCH].astype(np.float64)
    if len(area) <= len(reference):
        return 0.0
    energy = np.cumsum(np.concatenate(([0.0], area**2)))
    energies = energy[len(reference) :] - energy[: -len(reference)]
    fits = np.correlate(area, reference, "valid") / np.sqrt(energies + 1)
    best = int(np.argmax(fits)) + SAMPLES_IN
    noise = float(np.sum((area[best : best + SAMPLES_IN] - wanted) ** 2))
    return float(np.clip(10 * np.log10(np.sum(wanted**2) / (noise + 1e-9)), low, high))


@dataclass
class Drift:
    """An hour with a sender whose clock is off."""

    ppm: float
    seconds: float
    start_ms: float
    """Mean delay over the first minute..."""
    end_ms: float
    """...and over the last."""
    least_ms: float
    most_ms: float
    accelerated_ms: float
    expanded_ms: float
    concealed_ms: float
    click: float
    """The sharpest bend of the wave against the clean decode's near it: `click`."""


def drift(packets: Packets, ppm: float, seconds: float = 3600.0) -> Drift:
    """Our path with a sender `ppm` parts per million slow, saying `packets` over and over."""
    receiver = AudioReceiver({111: OpusDecoder})
    interval = PACKET_S * (1 + ppm * 1e-6)
    pulls = round(seconds / PACKET_S)
    delays = np.zeros(pulls)
    allowed = _allowed_bends(decode(packets * 2))[len(packets) :]
    before, sharpest, i = np.zeros(2, np.int16), 0.0, 0
    for pull in range(pulls):
        now = pull * PACKET_S + PULL_PHASES_S[0]
        while i * interval <= now:
            packet = RtpPacket(
                111, i & 0xFFFF, i * TICKS & 0xFFFFFFFF, 1, packets[i % len(packets)]
            )
            receiver.receive(packet, i * interval)
            i += 1
        pcm = receiver.pull(now)
        delays[pull] = receiver.stats.delay_ms
        if receiver.stats.played_packets > len(packets):  # the joint to the start is unlike others
            bends = np.abs(np.diff(np.concatenate((before, pcm)).astype(np.float64), 2))
            source = round((receiver.timestamp or 0) / TICKS) - 1
            sharpest = max(sharpest, float(bends.max()) / allowed[source % len(packets)])
        before = pcm[-2:]
    minute = round(60 / PACKET_S)
    stats = receiver.stats
    return Drift(
        ppm=ppm,
        seconds=seconds,
        start_ms=float(delays[2:minute].mean()),
        end_ms=float(delays[-minute:].mean()),
        least_ms=float(delays[2:].min()),
        most_ms=float(delays[2:].max()),
        accelerated_ms=stats.accelerated_samples * 1000 / RATE_IN,
        expanded_ms=stats.expanded_samples * 1000 / RATE_IN,
        concealed_ms=stats.concealed_samples * 1000 / RATE_IN,
        click=sharpest,
    )


def run(as_json: bool) -> int:
    """Print every scenario for both paths, and the hours with drift. Returns 0."""
    packets = encode(load_speech(), opus(0.05))
    results = [
        simulation(packets, impairment)
        for impairment in SCENARIOS
        for simulation in (simulate, simulate_aiortc)
    ]
    drifts = [drift(packets, ppm) for ppm in (50.0, -200.0)]
    if as_json:
        print(json.dumps({"loss": _plain(results), "drift": _plain(drifts)}))
        return 0
    print(
        f"{'scenario':24}{'path':9}{'before':>7}{'+2 s':>6}{'+10 s':>6}{'mean':>6}{'hole':>6}"
        f"{'concealed':>10}{'disc.':>6}{'FEC':>5}{'lost dB':>8}{'seg dB':>7}{'click':>6}"
    )
    for r in results:
        print(
            f"{r.scenario:24}{r.path:9}{r.before_ms:7.0f}{r.after_2s_ms:6.0f}"
            f"{r.after_10s_ms:6.0f}{r.mean_ms:6.0f}{r.hole_ms:6.0f}{r.concealed:10.2%}"
            f"{r.discarded:6.0f}{r.fec_recovered:5.0f}{r.lost_snr_db:8.1f}{r.segmental_snr_db:7.1f}"
            f"{r.click:6.2f}"
        )
    for d in drifts:
        print(
            f"\n{d.ppm:+.0f} ppm over {d.seconds:.0f} s: delay {d.start_ms:.1f} ms in the first "
            f"minute, {d.end_ms:.1f} in the last, {d.least_ms:.1f} to {d.most_ms:.1f} between; "
            f"{d.accelerated_ms:.0f} ms taken out, {d.expanded_ms:.0f} put in, "
            f"{d.concealed_ms:.0f} concealed; click {d.click:.2f}"
        )
    return 0


def _plain(rows: list[Result] | list[Drift]) -> list[dict[str, object]]:
    """Rows for JSON, which has no NaN."""
    return [{k: None if v != v else v for k, v in asdict(row).items()} for row in rows]


def main(argv: Sequence[str] | None = None) -> int:
    parser = command("loss", __doc__)
    parser.add_argument("--json", action="store_true")
    return run(parser.parse_args(argv).json)
