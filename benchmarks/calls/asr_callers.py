"""Callers of `asr_call`, as its child: each speaks lines and pauses over a WebRTC call of its own.

Says its offers, a line each, takes as many answers from standard input, talks, and says when each
line began and ended, by the monotonic clock that all processes of the machine share.
"""

import argparse
import asyncio
import json
from collections.abc import Sequence
from random import Random
from time import monotonic

import numpy as np

from benchmarks.processes.process import input_lines, say
from benchmarks.speech.recordings import VOWELS_S, babbled, recorded
from offhook.media.clock_io import PacketClock
from offhook.media.codecs.opus import OpusSettings
from offhook.media.codecs.resample import Resampler
from offhook.media.pcm import RATE_IN, RATE_OUT, SAMPLES_OUT, Pcm
from offhook.media.playout import PlayoutListener
from offhook.pipeline.speech.vad.vad import WINDOW, SpeechSettings
from offhook.pipeline.speech.vad.vad_io import VadBatch
from offhook.signaling.peer_io import PeerLeg, use_addresses
from offhook.web.http.loop_io import run

PAUSE_S = (1.4, 2.0)
"""Longer than any silence that ends a turn whose words do not break off."""
STAGGER_S = 3.0
"""Callers begin within this time, each at its own moment."""
GOLDEN_RATIO = 0.618
AHEAD_SAMPLES = 10 * RATE_OUT
"""What a caller is to say is written this far ahead."""
LEAD_WINDOWS = 4
CONNECT_S = 30
HUM = 8
"""Amplitude of the line's noise in pauses."""


def voiced(vad: VadBatch, pcm: Pcm) -> Pcm:
    """From a little before the first window with a voice to the end of the last: breath and noise
    would blur when the line ends."""
    voices = np.flatnonzero(vad.probabilities(pcm) >= SpeechSettings().stop_probability)
    return pcm[max(0, voices[0] - LEAD_WINDOWS) * WINDOW : (voices[-1] + 1) * WINDOW]


def lines(speech: Sequence[Pcm]) -> list[Pcm]:
    """24 kHz."""
    vad = VadBatch()
    return [Resampler(RATE_IN, RATE_OUT).process(voiced(vad, pcm)) for pcm in speech]


class Caller(PlayoutListener):
    """Says one line after another, each number of caller from another one on."""

    def __init__(self, number: int, lines: Sequence[Pcm]) -> None:
        # Browsers send silence too, unless told otherwise.
        self.leg = PeerLeg(f"caller {number}", opus=OpusSettings(dtx=False))
        self.said: list[list[float]] = []
        """When the first and the last packet of each line was sent, in s; without the latter while
        it is being said."""
        self._lines, self._next = lines, number
        self._random = Random(number)
        self._delay = number * GOLDEN_RATIO % 1 * STAGGER_S
        self._written = 0
        self.leg.playout.listener = self

    def start(self) -> None:
        self._write(self._hum(self._delay), "begin")
        self.leg.listen(self._tick)

    def _tick(self, heard: Pcm, said: Pcm | None, now: float) -> None:
        if self.leg.playout.queued < AHEAD_SAMPLES:
            line = self._lines[self._next % len(self._lines)]
            self._next += 1
            self._write(line, "end")
            self._write(self._hum(self._random.uniform(*PAUSE_S), self._written), "begin")

    def _write(self, pcm: Pcm, mark: str) -> None:
        self._written += len(pcm)
        self.leg.playout.write(pcm, mark)

    def _hum(self, seconds: float, after: int = 0) -> Pcm:
        """Up to the end of a packet, so that lines begin with one."""
        packets = round(seconds * RATE_OUT / SAMPLES_OUT)
        samples = packets * SAMPLES_OUT + -after % SAMPLES_OUT
        return np.random.default_rng(samples).integers(-HUM, HUM + 1, samples).astype(np.int16)

    def on_mark(self, mark: object, position: int) -> None:
        if mark == "begin":
            self.said.append([])
        self.said[-1].append(monotonic())


async def talk(calls: int, seconds: float) -> None:
    use_addresses(["127.0.0.1"])
    speech = recorded()
    said = lines(speech or [babbled(seconds) for seconds in VOWELS_S])
    callers = [Caller(number, said) for number in range(calls)]
    clock = PacketClock()
    try:
        for caller in callers:
            say({"offer": await caller.leg.offer()})
        answers = await input_lines()
        for caller in callers:
            await caller.leg.accept(json.loads(await answers.readline())["answer"])
        async with asyncio.timeout(CONNECT_S):
            while not all(caller.leg.connected for caller in callers):
                await asyncio.sleep(0.02)
        for caller in callers:
            caller.start()
            clock.add(caller.leg)
        say({"recorded": bool(speech), "lines_s": [round(len(x) / RATE_OUT, 1) for x in said]})
        await asyncio.sleep(seconds)
        late = {f"p{q}": round(clock.lateness_ms(q), 2) for q in (50, 99)}
        say({"said": [caller.said for caller in callers], "late_ms": late})
        await answers.read()
    finally:
        for caller in callers:
            clock.remove(caller.leg)
        await asyncio.gather(*(caller.leg.hang_up("done") for caller in callers))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--calls", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=15.0)
    arguments = parser.parse_args()
    run(talk(arguments.calls, arguments.seconds))


if __name__ == "__main__":
    main()
