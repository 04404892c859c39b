"""Spoiled packets into a SipLeg: RTP of all codecs, key presses, comfort noise, RTCP, SRTP, DTLS.

The leg has no sockets and its clock only jumps. A phone sends it well-formed packets, which are
changed, mixed up and delayed on the way, before they are protected or after; now and then another
offer changes codec, keys, address or direction. Nothing may be raised, no packet and no tick take
long, and each tick bring 20 ms of sound.
"""

import asyncio
import random
import sys
import time
from collections import deque
from collections.abc import Callable, Collection
from unittest import mock

import numpy as np

from offhook.media.leg import LegError
from offhook.media.pcm import RATE_OUT, SAMPLES_IN, Pcm
from offhook.telephony.sip.media import leg_io, rtp_transport_io
from offhook.telephony.sip.media.latch import Address
from offhook.telephony.sip.media.leg_io import SipLeg
from offhook.telephony.sip.media.offer_answer import MediaSettings, NotAcceptable, SdpError
from offhook.telephony.sip.media.rtp_ports_io import Receiver, RtpPorts
from tests.fuzz.leftovers import sizes
from tests.fuzz.phone import Phone, spoil
from tests.fuzz.result import MAX_MESSAGE_MS, Result, resident_kb
from tests.support.listening import Listening

US = "192.0.2.1"
TICK = 0.02
TICKS = (20, 100, 250, 500)
"""Of one call, 20 ms each."""
SPOILED = (0.0, 0.02, 0.2, 0.6)
"""Of a call's packets."""
LOST, DOUBLED, LATE = 0.03, 0.03, 0.1
STORM, STORM_PACKETS = 0.0005, 300
REOFFERED, PRESSED, JUMPED = 0.01, 0.005, 0.002
"""In one tick."""
REST_S = 60.0
"""After the call, for its timers to run out: a handshake is given up after 31 s."""
MAX_KEPT = 160
"""Entries of any container in a leg."""
MAX_GROWTH_KB = 8192.0
"""Codecs and OpenSSL allocate in blocks of their own sizes, of which some stay."""
SAID = (8000 * np.sin(np.arange(RATE_OUT) / 9)).astype(np.int16)


class VirtualLoop(asyncio.SelectorEventLoop):
    """Its time is set by hand."""

    now = 1000.0

    def time(self) -> float:
        return self.now

    @property
    def timers(self) -> int:
        """That wait."""
        waiting: list[asyncio.TimerHandle] = self._scheduled  # type: ignore[attr-defined]
        return sum(not handle.cancelled() for handle in waiting)


class Sockets:
    """Of one leg: what arrives is handed in, what is sent goes to the phone."""

    port, rtcp_port = 40_000, 40_001

    def __init__(self, on_rtp: Receiver, on_rtcp: Receiver) -> None:
        self.on_rtp, self.on_rtcp = on_rtp, on_rtcp
        self.on_sent: Callable[[bytes, bool], None] = lambda data, rtcp: None
        self.closed = False

    def read_compiled(self, *arguments: object) -> None:
        pass

    def send_rtp(self, data: bytes, to: Address) -> None:
        self._send(data, to, False)

    def send_rtcp(self, data: bytes, to: Address) -> None:
        self._send(data, to, True)

    def _send(self, data: bytes, to: Address, rtcp: bool) -> None:
        if not self.closed:
            self.on_sent(data, rtcp)

    def close(self) -> None:
        self.closed = True


class Ports(RtpPorts):
    def __init__(self) -> None:
        self.made: Sockets | None = None

    async def open_pair(self, on_rtp: Receiver, on_rtcp: Receiver) -> Sockets:  # type: ignore[override]
        self.made = Sockets(on_rtp, on_rtcp)
        return self.made


class Control:
    """The leg's signalling, which does nothing."""

    async def hang_up(self, reason: str) -> None: ...
    async def transfer(self, target: str) -> None: ...
    async def hold(self) -> None: ...
    async def resume(self) -> None: ...
    def send_info_dtmf(self, digit: str) -> None: ...


class Call:
    """One leg and its phone."""

    def __init__(self, seed: int, loop: VirtualLoop, result: Result) -> None:
        self.watched: Collection[int] = ()
        """Numbers of packets and ticks whose times are noted in any case."""
        self.times: dict[int, float] = {}
        """ms that packets and ticks took, by their number: those that took too long."""
        self.loop = loop
        self._chance = chance = random.Random(seed)
        random.seed(seed)
        self._result = result
        self._ports = Ports()
        codecs = tuple(chance.sample(("opus", "g722", "pcmu", "pcma"), chance.randrange(1, 5)))
        settings = MediaSettings(codecs, srtp="optional" if chance.random() < 0.8 else "off")
        self.leg = SipLeg("fuzz", settings, self._ports, US)
        self.leg.listen(self._heard)
        self.leg.listener = Listening(on_dtmf=lambda digit: result.counts.update(["keys"]))
        self.leg.control = Control()
        self._spoiled = chance.choice(SPOILED)
        self._on_way: list[tuple[float, int, bytes, bool, Address]] = []
        self._recent: deque[bytes] = deque([b"\x80"], maxlen=50)
        self._count = 0
        self._phone = Phone(chance, codecs, loop.time, self._sent)

    # --- the call ---

    async def run(self) -> None:
        leg, chance = self.leg, self._chance
        await leg.bind()
        assert self._ports.made is not None
        self._ports.made.on_sent = self._phone.receive
        if chance.random() < 0.3:  # sound overtakes the answer
            leg.offer()
            await self._pass(chance.randrange(60))
        self._agree()
        leg.connect()
        await self._pass(chance.choice(TICKS))
        self._look()
        for what, number in (
            ("packets of sound", leg.statistics().packets_received),
            ("malformed", leg.malformed_packets),
            ("not authentic", leg.srtp_failures),
            ("not believed", leg.refused_packets),
            ("calls by " + (leg.srtp.partition(" ")[0] or "RTP"), 1),
        ):
            self._result.counts[what] += number
        self._phone.close()
        await leg.hang_up("over")
        self._on_way.clear()
        self.loop.now += REST_S
        for _ in range(3):
            await asyncio.sleep(0)

    async def _pass(self, ticks: int) -> None:
        chance, leg = self._chance, self.leg
        for _ in range(ticks):
            self.loop.now += TICK
            if chance.random() < JUMPED:
                self.loop.now += chance.expovariate(1 / 3)
            await asyncio.sleep(0)
            self._phone.tick()
            self._arrive()
            self._measured(lambda: leg.tick(self.loop.now), "a tick")
            roll = chance.random()
            if roll < REOFFERED and leg.codec:
                self._agree()
            elif roll < REOFFERED + PRESSED:
                self._press()
            elif roll < 0.05:
                leg.playout.write(SAID)
            leg.media_timeout(self.loop.now, 1, 1)

    def _agree(self) -> None:
        """They offer, or answer."""
        try:
            if self._chance.random() < 0.7:
                self._phone.answered(self.leg.answer(self._phone.offer()))
            else:
                self.leg.accept(self._phone.answer(self.leg.offer()))
        except (NotAcceptable, SdpError):
            self.leg.negotiation.rollback()
            self._result.counts["refused"] += 1

    def _press(self) -> None:
        try:
            self.leg.send_dtmf(self._chance.choice(("1", "23,#", "A")))
        except LegError:
            self._result.counts["keys refused"] += 1

    def _heard(self, heard: Pcm, said: Pcm | None, now: float) -> None:
        found = getattr(heard, "dtype", None), getattr(heard, "shape", None)
        if found != (np.int16, (SAMPLES_IN,)):
            raise AssertionError(f"a tick brought {heard!r}")
        self._result.counts["sounding ticks"] += bool(heard.any())

    # --- the way of the packets ---

    def _sent(self, data: bytes, rtcp: bool) -> None:
        """The phone sends it."""
        chance = self._chance
        if chance.random() < LOST:
            return
        copies = [data] * (2 if chance.random() < DOUBLED else 1)
        if chance.random() < STORM:
            copies += [data] * STORM_PACKETS
        for copy in copies:
            arriving = copy
            if chance.random() < self._spoiled:
                arriving = spoil(copy, chance.choice(self._recent), chance)
            delay = chance.choice((0.0, 0.03, 0.2, 2.0)) if chance.random() < LATE else 0.0
            self._count += 1
            source = self._phone.address(rtcp)
            if chance.random() < self._spoiled / 10:
                source = (f"203.0.113.{chance.randrange(20)}", chance.randrange(1, 65_536))
            at = self.loop.now + delay
            self._on_way.append((at, self._count, arriving, rtcp, source))
        self._recent.append(data)

    def _arrive(self) -> None:
        now, sockets = self.loop.now, self._ports.made
        assert sockets is not None
        due = sorted(packet for packet in self._on_way if packet[0] <= now)
        self._on_way = [packet for packet in self._on_way if packet[0] > now]
        for _, _, data, rtcp, source in due:
            receive = sockets.on_rtcp if rtcp else sockets.on_rtp
            self._result.messages += 1
            self._measured(lambda r=receive, d=data, s=source: r(d, s, now), data)  # type: ignore[misc]

    def _measured(self, action: Callable[[], object], about: object) -> None:
        self._count += 1
        started = time.thread_time()
        try:
            action()
        except Exception as error:
            self._result.raised(error, about)
        took = time.thread_time() - started
        self._result.spent += took
        if took * 1000 > MAX_MESSAGE_MS or self._count in self.watched:
            self.times[self._count] = round(took * 1000, 3)
        if took * 1000 > self._result.slowest_ms:
            self._result.slowest_ms, self._result.slowest = round(took * 1000, 3), repr(about)

    def _look(self) -> None:
        """What a leg keeps has a bound, whatever comes."""
        for path, number in sizes(self.leg, ("offhook.telephony", "offhook.media")).items():
            if number > MAX_KEPT and not path.startswith(".playout"):
                left = self._result.left
                left[f"leg{path}"] = max(number, left.get(f"leg{path}", 0))


async def _run(messages: int, seed: int, show: bool, result: Result) -> None:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualLoop)
    resident, number, shown = 0.0, 0, 0
    while result.messages < messages:
        number += 1
        call_seed = seed * 1_000_003 + number
        before, result.slowest_ms = (result.slowest_ms, result.slowest), 0.0
        call = Call(call_seed, loop, result)
        await call.run()
        if call.times:
            result.slowest_ms = await _measure_again(call_seed, loop, call.times)
        if before[0] > result.slowest_ms:
            result.slowest_ms, result.slowest = before
        del call
        if loop.timers:
            result.left["timers"] = loop.timers
        if not resident and result.messages >= messages // 10:
            resident = resident_kb()
        if show and result.messages >= shown + 50_000:
            shown = result.messages
            print(f"{shown} packets, {resident_kb():.0f} KB resident", file=sys.stderr)
    result.counts["calls"] = number
    result.finish(resident)


async def _measure_again(seed: int, loop: VirtualLoop, slow: dict[int, float]) -> float:
    """ms of what took longest, as it takes in a second and a third run of the same call: once,
    something else may have had its turn."""
    for _ in range(2):
        call = Call(seed, loop, Result("again"))
        call.watched = slow.keys()
        await call.run()
        slow = {n: min(ms, call.times.get(n, ms)) for n, ms in slow.items()}
    return max(slow.values())


def run(messages: int, seed: int, show: bool = False) -> Result:
    """Push that many packets through; progress goes to standard error."""
    result = Result("media", most_growth_kb=MAX_GROWTH_KB)
    loop = VirtualLoop()
    with (
        mock.patch.object(leg_io, "monotonic", loop.time),
        mock.patch.object(rtp_transport_io, "monotonic", loop.time),
        np.errstate(invalid="raise", divide="raise", over="raise"),
        asyncio.Runner(loop_factory=lambda: loop) as runner,
    ):
        runner.run(_run(messages, seed, show, result))
    return result
