"""A carrier in memory, on a clock of its own: a buffer that it plays from, and the network before
it. Sound tells where it is, so that what was played can be told."""

from collections import deque
from dataclasses import replace

import numpy as np

from offhook.telephony.carriers.leg_io import CarrierLeg
from offhook.telephony.carriers.streams.stream import CarrierStream, Format, Played, Started
from tests.support.listening import Listening

RATE = 24
"""Samples a ms, uncoded, so that nothing is lost on the way."""
PLAIN = Format("l16", 24_000)
STARTED = Started("stream 1", "call 1", PLAIN, PLAIN, caller="+15550001", called="+15550002")


def spoken(start_ms, ms):
    """Sound whose every sample tells its ms, counted from 1."""
    return np.repeat(np.arange(start_ms, start_ms + ms) % 30_000 + 1, RATE).astype(np.int16)


def told(message):
    """The ms of the sound in a message; 0 for silence."""
    ms = np.frombuffer(message, "<i2").reshape(-1, RATE)[:, -1].astype(int)
    if (ms[:6] > 0).all():  # after a cut sound rises within 5 ms: there it tells too little
        ms[:5] = ms[5] - np.arange(5, 0, -1)
    return ms.tolist()


class ScriptedStream(CarrierStream):
    """Hands on the events it is given; what it is to say are plain words."""

    provider = "scripted"
    acknowledges = True
    clears = True

    def __init__(self):
        self.events = deque()

    def receive(self, data):
        return [self.events.popleft()]

    def sound(self, payload):
        return [payload]

    def mark(self, name):
        return [f"mark {name}"]

    def clear(self):
        return ["clear"]

    def press(self, digit):
        return [f"press {digit}"]

    def hang_up(self, reason):
        return [f"bye {reason}"]

    def opening(self):
        return ["hello"]


class Line:
    """A leg whose messages are kept."""

    def __init__(self, stream=None, control=None, format=None):
        self.stream = stream or ScriptedStream()
        self.sent, self.heard, self.ticks = [], [], 0
        self.leg = CarrierLeg("call", self.stream, self.sent.append, control)
        self.leg.listen(lambda heard, said, now: self.heard.append(heard))
        if format is not None:
            self.take(replace(STARTED, format_in=format, format_out=format))

    def take(self, *events, after_ms=0):
        for event in events:
            self.stream.events.append(event)
            self.leg.receive("", self.ticks * 0.02 + after_ms / 1000)

    def tick(self, count=1):
        for _ in range(count):
            self.leg.tick(self.ticks * 0.02)
            self.ticks += 1

    @property
    def sounds(self):
        return [message for message in self.sent if isinstance(message, bytes)]


class Way:
    """One direction of a TCP connection: messages come late but in order."""

    def __init__(self, delay_ms, jitter_ms=0, stalls=(), seed=1):
        self._delay, self._jitter = delay_ms, jitter_ms
        self._stalls = stalls
        self._random = np.random.default_rng(seed)
        self._under_way = deque()
        self._last = 0.0

    def send(self, message, ms):
        ms += self._delay + self._random.uniform(0, self._jitter)
        for start, end in self._stalls:
            ms = end if start <= ms < end else ms
        self._last = max(self._last, ms)
        self._under_way.append((self._last, message))

    def arrived(self, ms):
        while self._under_way and self._under_way[0][0] <= ms:
            yield self._under_way.popleft()[1]


class Call:
    """A leg, the network and the far end, ms by ms."""

    def __init__(self, out=None, back=None, start_ms=0, frozen=(), stream=None, least_ms=0):
        """`start_ms`: how long the far end waits before it plays from an empty buffer. `least_ms`:
        how much sound it waits for. `frozen`: spans in which it plays nothing."""
        self.out, self.back = out or Way(20), back or Way(20)
        self._start, self._frozen = start_ms, frozen
        self._least, self._playing = least_ms, False
        self.ms = 0
        self.stream = stream or ScriptedStream()
        self.sent = []
        """Every message with the ms it was sent at."""
        self.played = []
        """The ms of sound played, one entry a ms; 0 for silence."""
        self.leg = CarrierLeg("call", self.stream, self._send)
        self.marks = []
        self.leg.playout.listener = Listening(
            on_mark=lambda mark, position: self.marks.append(mark)
        )
        self.said = []
        self.leg.listen(lambda heard, said, now: self.said.append(said))
        self.most_queued = 0
        self._queue = deque()
        """ms of sound and marks at the far end."""
        self._waited = 0
        self.event(STARTED)

    def event(self, event):
        """Something comes from the far end."""
        self.stream.events.append(event)
        self.leg.receive("", self.ms / 1000)

    def _send(self, message):
        self.sent.append((self.ms, message))
        self.out.send(message, self.ms)

    def run(self, ms, then=lambda: None):
        for _ in range(ms):
            self._step()
            then()

    def _step(self):
        for message in self.out.arrived(self.ms):
            self._take(message)
        self._play()
        for name in self.back.arrived(self.ms):
            self.event(Played(name))
        if self.ms % 20 == 0:
            self.leg.tick(self.ms / 1000)
        self.ms += 1

    def _take(self, message):
        if isinstance(message, bytes):
            self._queue.extend(told(message))
        elif message == "clear":
            for mark in self._queue:
                if isinstance(mark, str):
                    self._come_back(mark)
            self._queue.clear()
        elif message.startswith("mark "):
            self._queue.append(message.removeprefix("mark "))
        self.most_queued = max(self.most_queued, self.queued)

    @property
    def queued(self):
        """ms of sound at the far end."""
        return sum(isinstance(entry, int) for entry in self._queue)

    def _come_back(self, mark):
        self.back.send(mark, self.ms)

    def _play(self):
        while self._queue and isinstance(self._queue[0], str):
            self._come_back(self._queue.popleft())
        if any(start <= self.ms < end for start, end in self._frozen):
            return
        if not self._queue:
            self._waited, self._playing = 0, False
        elif self._waited < self._start:
            self._waited += 1
        elif self._playing or self.queued >= self._least:
            self._playing = True
            self.played.append(self._queue.popleft())

    # --- what a test wants to know ---

    @property
    def counted(self):
        """ms of sound that we take for played."""
        return self.leg.playout.sent / RATE

    def heard(self):
        """ms of sound that were played."""
        return sum(ms > 0 for ms in self.played)

    def speak(self, ms, start_ms=0, words_ms=50):
        """An utterance with a mark every so often, each its end in ms."""
        playout = self.leg.playout
        playout.begin()
        for start in range(start_ms, start_ms + ms, words_ms):
            playout.write(spoken(start, words_ms), mark=start + words_ms)
        playout.end()

    def interrupt(self):
        """The caller breaks in: ms counted as heard, ms that really were, and the words."""
        self.leg.playout.flush()
        counted, words = self.counted, len(self.marks)
        self.run(2000)
        return counted, self.heard(), words

    def said_ms(self, start=0):
        """The ms of all sound sent, by the message, from one message on."""
        return [told(message) for _, message in self.sent[start:] if isinstance(message, bytes)]
