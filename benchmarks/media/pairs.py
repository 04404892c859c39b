"""Pairs of peers that talk to each other on loopback, as a child of a benchmark: what sound costs.

    offhook   two PeerLegs on one packet clock
    aiortc    two RTCPeerConnections with audio tracks, 48 kHz in 20 ms frames

Every peer says the same buzz in Opus and hears the other's. Says one line of JSON and ends.
"""

import argparse
import asyncio
import fractions
import os
import threading
import time
from collections.abc import Callable

import numpy as np
from aiortc import MediaStreamTrack, RTCPeerConnection
from aiortc.mediastreams import MediaStreamError
from av import AudioFrame

from benchmarks.processes.process import Footprint, OwnCost, say
from benchmarks.servers.scripted import word_sound
from benchmarks.speech.recordings import resample
from offhook.media.clock_io import PacketClock
from offhook.media.pcm import RATE_OUT, Pcm
from offhook.signaling.peer_io import PeerLeg, use_addresses
from offhook.web.config.config import Log
from offhook.web.http.logs_io import set_up
from offhook.web.http.loop_io import run

RATE = 48_000
SAMPLES = RATE // 50
SETTLE_S = 3.0
CONNECT_S = 20


class Buzz(MediaStreamTrack):
    """The buzz as an aiortc source, paced by itself as aiortc's own are."""

    kind = "audio"

    def __init__(self) -> None:
        super().__init__()
        self._sound = np.tile(resample(word_sound(), RATE_OUT, RATE), 2)
        self._timestamp = 0
        self._start = time.time()

    async def recv(self) -> AudioFrame:
        wait = self._start + self._timestamp / RATE - time.time()
        if wait > 0:
            await asyncio.sleep(wait)
        at = self._timestamp % (len(self._sound) // 2)
        frame = AudioFrame.from_ndarray(self._sound[None, at : at + SAMPLES], layout="mono")
        frame.sample_rate, frame.pts = RATE, self._timestamp
        frame.time_base = fractions.Fraction(1, RATE)
        self._timestamp += SAMPLES
        return frame


class OffhookPairs:
    def __init__(self) -> None:
        self.heard = 0
        """20 ms pieces of sound heard by all."""
        self._clock = PacketClock()
        self._legs: list[PeerLeg] = []

    async def add(self) -> None:
        number = len(self._legs)
        caller, callee = PeerLeg(f"caller {number}"), PeerLeg(f"callee {number}")
        await caller.accept(await callee.answer(await caller.offer()))
        while not (caller.connected and callee.connected):
            await asyncio.sleep(0.02)
        for leg in (caller, callee):
            self._legs.append(leg)
            leg.listen(self._speaker(leg))
            self._clock.add(leg)

    def _speaker(self, leg: PeerLeg) -> Callable[[Pcm, Pcm | None, float], None]:
        """Keeps a leg talking and counts what it hears."""
        sound = word_sound()

        def tick(heard: Pcm, said: Pcm | None, now: float) -> None:
            if leg.playout.queued < len(sound):
                leg.playout.write(sound)
            self.heard += int(heard[::16].any())

        return tick

    async def close(self) -> None:
        for leg in self._legs:
            self._clock.remove(leg)
        await asyncio.gather(*(leg.hang_up("done") for leg in self._legs))


class AiortcPairs:
    def __init__(self) -> None:
        self.heard = 0
        self._peers: list[RTCPeerConnection] = []
        self._drains: set[asyncio.Task[None]] = set()

    async def add(self) -> None:
        caller, callee = RTCPeerConnection(), RTCPeerConnection()
        for peer in (caller, callee):
            self._peers.append(peer)
            peer.addTrack(Buzz())
            peer.on("track", self._drain)
        await caller.setLocalDescription(await caller.createOffer())
        await callee.setRemoteDescription(caller.localDescription)
        await callee.setLocalDescription(await callee.createAnswer())
        await caller.setRemoteDescription(callee.localDescription)
        while {caller.connectionState, callee.connectionState} != {"connected"}:
            await asyncio.sleep(0.02)

    def _drain(self, track: MediaStreamTrack) -> None:
        async def drain() -> None:
            try:
                while True:
                    await track.recv()
                    self.heard += 1
            except MediaStreamError:
                pass

        self._drains.add(asyncio.create_task(drain()))

    async def close(self) -> None:
        await asyncio.gather(*(peer.close() for peer in self._peers))


async def measure(kind: str, pairs: int, seconds: float) -> dict[str, object]:
    use_addresses(["127.0.0.1"])
    made = OffhookPairs() if kind == "offhook" else AiortcPairs()
    try:
        async with asyncio.timeout(CONNECT_S + pairs):
            for _ in range(pairs):
                await made.add()
                await asyncio.sleep(0.013)
        own = OwnCost()
        watching = asyncio.create_task(own.watch())
        await asyncio.sleep(SETTLE_S)
        own.begin()
        heard, wall = made.heard, time.perf_counter()
        await asyncio.sleep(seconds)
        wall = time.perf_counter() - wall
        cost = own.read()
        watching.cancel()
        footprint = Footprint.of(os.getpid())
        return {
            "kind": kind,
            "pairs": pairs,
            "cpu_percent": cost["cpu_percent"],
            "cpu_per_peer_percent": round(cost["cpu_percent"] / pairs / 2, 2),
            "heard_per_s": round((made.heard - heard) / wall / pairs / 2, 1),
            "lag_ms": cost["lag_ms"],
            "threads": threading.active_count(),
            "rss_mb": footprint.rss_mb,
        }
    finally:
        await made.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kind", choices=("offhook", "aiortc"))
    parser.add_argument("--pairs", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=10)
    arguments = parser.parse_args()
    set_up(Log(level="WARNING"))
    say(run(measure(arguments.kind, arguments.pairs, arguments.seconds)))


if __name__ == "__main__":
    main()
