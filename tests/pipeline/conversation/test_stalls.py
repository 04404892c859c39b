"""What a caller says while the process stands still is heard as it was said: real packets, jitter
buffer and turn-taking in virtual time."""

import asyncio
import selectors
from collections import deque
from collections.abc import Callable, Hashable
from random import Random
from typing import Any

import pytest

from benchmarks.speech.lines import encode
from benchmarks.speech.number_words import LEAD_MS, NumberRecognizer, line, sound
from offhook.media.clock_io import PacketClock
from offhook.media.codecs.g711 import PcmuEncoder
from offhook.media.pcm import PACKET_MS, Pcm
from offhook.media.rtp.rtp import RtpPacket
from offhook.media.rtp.rtp_leg import RtpLeg
from offhook.pipeline.conversation.events import CallerTurn, Event
from offhook.pipeline.conversation.turns.user_turn_io import TurnDetection, UserTurnController
from offhook.pipeline.speech.enhancement.enhancer import EnhancementSettings
from offhook.pipeline.speech.vad.smart_turn_io import SmartTurn
from offhook.pipeline.speech.vad.vad_io import VadBatch
from tests.media.lines import NARROW, PCMU

TICK = PACKET_MS / 1000
WORDS = 12
BEGIN_S = 1.0
"""When the line begins."""
SILENCE = bytes([0xFF]) * 160


class Selector(selectors.DefaultSelector):
    """Waits in the loop's time."""

    def __init__(self, loop: "Loop") -> None:
        super().__init__()
        self._loop = loop

    def select(self, timeout: float | None = None) -> Any:
        self._loop.pass_time(timeout or 0.0)
        return super().select(0)


class Loop(asyncio.SelectorEventLoop):
    """Time passes while it waits, and when it stalls. As uvloop does, it runs timers, and what they
    call soon, before it looks at its sockets. Of each it reads one datagram a round."""

    def __init__(self) -> None:
        self.now = 1000.0
        super().__init__(Selector(self))
        self.arriving: deque[tuple[float, bytes]] = deque()
        """Datagrams of the one socket that there is, with the time of their arrival."""
        self.receive: Callable[[bytes, float], None]

    def time(self) -> float:
        return self.now

    def pass_time(self, seconds: float) -> None:
        """At most until a datagram arrives."""
        arrives = self.arriving[0][0] if self.arriving else float("inf")
        self.now = min(self.now + seconds, max(self.now, arrives))

    def _run_once(self) -> None:
        super()._run_once()  # type: ignore[misc]
        if self.arriving and self.arriving[0][0] <= self.now:
            self.receive(self.arriving.popleft()[1], self.now)


class SocketLeg(RtpLeg):
    """Nobody hears what it says."""

    def __init__(self, now: float) -> None:
        super().__init__("leg")
        self._open(NARROW, 1, now)

    def _send_rtp(self, packet: bytes) -> None:
        pass

    def _send_rtcp(self, packet: bytes) -> None:
        pass

    def send_message(self, text: str) -> bool:
        return False

    async def hang_up(self, reason: str) -> None:
        self.close(reason)


class Complete(SmartTurn):
    """Takes every pause for the end of a turn."""

    def __init__(self) -> None:
        pass

    def load(self) -> None:
        pass

    async def probability(self, pcm: Pcm, call: Hashable) -> float:
        return 1.0


async def turns(said: list[str], stalls: dict[float, float], suppressed: bool) -> list[str]:
    """Returns the turns heard when this line is said and the process stalls, by the seconds of
    these times. With `suppressed` nothing is sent between the first silence and the line."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, Loop)
    leg, clock = SocketLeg(loop.now), PacketClock(now=lambda: loop.now)
    start = loop.now
    begin = round(BEGIN_S / TICK)
    payloads = [SILENCE] * begin + list(encode(sound(said, lead_ms=LEAD_MS), PcmuEncoder()))
    payloads += [SILENCE] * round(3.0 / TICK)
    for place, payload in enumerate(payloads):
        if not suppressed or place < 10 or place >= begin:
            number = len(loop.arriving)
            packet = RtpPacket(PCMU, number, place * 160, 7, payload)
            loop.arriving.append((start + (place + 1) * TICK + 0.003, packet.serialize()))
    loop.receive = leg.receive_rtp
    enhancement = EnhancementSettings("off", automatic_gain=False)
    detection = TurnDetection(VadBatch(), Complete(), enhancement=enhancement)
    clock.after = detection.vad.run
    events: list[Event] = []
    hearing = UserTurnController(
        leg, detection, await NumberRecognizer().open(), events.append, lambda occasion: None
    )

    def stall(seconds: float) -> None:
        loop.now += seconds

    for at, seconds in stalls.items():
        loop.call_at(start + at, stall, seconds)
    clock.add(leg)
    await asyncio.sleep(len(payloads) * TICK + 2.0)
    clock.remove(leg)
    await hearing.close()
    detection.vad.close()
    return [event.text for event in events if isinstance(event, CallerTurn)]


def heard(said: list[str], stalls: dict[float, float], suppressed: bool = False) -> list[str]:
    with asyncio.Runner(loop_factory=Loop) as runner:
        return runner.run(turns(said, stalls, suppressed))


@pytest.mark.parametrize(
    "stall_s", [0.25, 0.9, *(pytest.param(s, marks=pytest.mark.slow) for s in (0.1, 0.5))]
)
def test_a_stall_neither_ends_a_turn_nor_changes_its_words(stall_s: float) -> None:
    said = line(WORDS, Random(stall_s))
    for step in range(15):
        at = BEGIN_S + 0.17 * step
        assert heard(said, {at: stall_s}) == [" ".join(said)], at


def test_stalls_one_after_another_change_no_word() -> None:
    said = line(WORDS, Random(1))
    assert heard(said, {BEGIN_S + 0.7 * step: 0.4 for step in range(4)}) == [" ".join(said)]


@pytest.mark.parametrize("stall_s", [1.4, 2.0, 3.0])
def test_a_long_stall_delays_words_and_loses_none(stall_s: float) -> None:
    said = line(WORDS, Random(stall_s))
    for at in (BEGIN_S - 0.5, BEGIN_S + 0.5, BEGIN_S + 1.7):
        assert heard(said, {at: stall_s}) == [" ".join(said)], at


def test_a_line_that_begins_in_a_long_stall_after_suppressed_silence_is_heard_whole() -> None:
    said = line(WORDS, Random(3))
    assert heard(said, {BEGIN_S - 0.2: 2.0}, suppressed=True) == [" ".join(said)]


def test_after_a_stall_too_long_the_turn_ends_with_the_line() -> None:
    """What is older than that is not played any more (`jitter.MAX_SPAN`)."""
    said = line(2 * WORDS, Random(2))
    [turn] = heard(said, {BEGIN_S + 0.5: 4.2})
    assert turn.split()[-4:] == said[-4:]
    assert len(turn.split()) < len(said)
