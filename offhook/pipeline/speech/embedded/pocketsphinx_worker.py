"""The child process in which PocketSphinx listens, and the bytes it exchanges with the server.

PocketSphinx holds the GIL while it decodes, so it may not live in the process of the packet clock.
Standard input and output carry frames: utterance (u32), kind (u8), length (u32), payload, all
little-endian. The worker knows nothing but utterances: all that outlives one (the cepstral mean,
which is the caller's microphone and line) goes back to the server with its result and comes again
with the caller's next utterance, which so may be placed on another worker.

Run as ``python -m offhook.pipeline.speech.embedded.pocketsphinx_worker``; it ends with its
standard input.
"""

import contextlib
import json
import os
import re
import select
import signal
import struct
import time
from collections import deque
from collections.abc import Iterator
from enum import IntEnum
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from pocketsphinx import Decoder

_HEADER = struct.Struct("<IBI")
_PARTIAL = struct.Struct("<Idd")
MAX_PAYLOAD = 1 << 24

SLICE_BYTES = 3200
"""100 ms. The decoder is always given whole slices until the last one of an utterance: its running
cepstral mean moves between slices, so the text does not depend on how the sound was fed."""
SLICES_PER_TURN = 4
"""A long backlog is decoded 400 ms at a time, in turn with the other utterances."""
MAX_DECODERS = 8
"""100 MB each. With as many utterances in progress, a further one waits for a decoder."""
PRIMING_SLICES = 15
"""A caller not heard before is decoded at once, for the partials, with a mean that fits nobody.
After 1.5 s, or at the end if sooner, the mean is taken from this sound and decoding begins anew. Of
288 words 165 are wrong with the first mean, 84 with this one, 85 with the mean of a caller known
for long; the passes were chosen on these same recordings. It costs 75 ms once a caller, and
decoding 1.5 s twice."""
PRIMING_PASSES = 8
"""PocketSphinx counts the mean it is given as 5 s of speech; each pass moves it by the sound."""
PRIMING_SEARCH = "priming"
PRIMING_GRAMMAR = "#JSGF V1.0; grammar priming; public <word> = a;"
"""The least that can be searched for, as the passes are made for the features alone."""
READ_BYTES = 1 << 16
NICENESS = 5
"""The packet clock of the server comes before the recogniser."""

SETTINGS: dict[str, Any] = {
    "samprate": 16000,
    "loglevel": "FATAL",
    # The second pass over the whole utterance, after its end.
    "fwdflat": False,
    # The default is 30 000; fewer than 3 000 cost words.
    "maxhmmpf": 3000,
}
"""What the settings cost, as words wrong of 288 (11 recordings, each clean, at 20 dB SNR and
through the telephone's 4 kHz), CPU time per second of sound, and of ``end_utt`` (95 %):

========  ============  ==========================  =====  ====  ======
fwdflat   maxhmmpf      else                        wrong  CPU   end
========  ============  ==========================  =====  ====  ======
yes       30000         (the default)               31.6%  0.33  600 ms
no        30000                                     29.9%  0.31  125 ms
no        5000                                      30.2%  0.18  102 ms
no        3000          **chosen**                  29.5%  0.13   67 ms
no        3000          no bestpath                 31.6%  0.15   23 ms
no        3000          pl_window 10                31.6%  0.18   79 ms
no        3000          ds 2                        38.9%  0.12   79 ms
no        2000                                      32.6%  0.13   55 ms
no        1500                                      39.6%  0.11   33 ms
========  ============  ==========================  =====  ====  ======

The choice costs nothing that so few words could show: two points either way are chance, and it was
made on these same recordings. The times are from a busy machine: a fifth either way is chance too.
With priming, from ``finish`` to the `Final` took 110 ms (95 %), 265 ms for a caller's first
utterance.
"""


class Kind(IntEnum):
    BEGIN = 1
    """To the worker. Payload: the cepstral mean as PocketSphinx writes it, or nothing."""
    AUDIO = 2
    """To the worker. 16 kHz mono int16, little-endian."""
    FINISH = 3
    CANCEL = 4
    READY = 5
    """From the worker, once: the first decoder is loaded."""
    PARTIAL = 6
    """From the worker: samples decoded (u32), when this decoding began and ended (f64, s of the
    monotonic clock, which all processes share), then the text so far."""
    FINAL = 7
    """From the worker. JSON: samples, words [[text, start_ms, end_ms]], mean, started, done."""
    PING = 8
    """To the worker, which answers in its next turn whatever it is doing."""
    PONG = 9


class Frame(NamedTuple):
    utterance: int
    kind: Kind
    payload: bytes = b""

    def __bytes__(self) -> bytes:
        return _HEADER.pack(self.utterance, self.kind, len(self.payload)) + self.payload


class FrameError(ValueError):
    """Bytes that are no frame: the two ends are not the same program."""


class FrameReader:
    """Bytes as they come to whole frames."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def receive(self, data: bytes) -> Iterator[Frame]:
        """Take bytes, yield the frames completed. Raises FrameError."""
        self._buffer += data
        place = 0
        while len(self._buffer) - place >= _HEADER.size:
            utterance, kind, length = _HEADER.unpack_from(self._buffer, place)
            if not Kind.BEGIN <= kind <= Kind.PONG or length > MAX_PAYLOAD:
                raise FrameError(f"pocketsphinx worker: kind {kind}, {length} bytes")
            start, end = place + _HEADER.size, place + _HEADER.size + length
            if end > len(self._buffer):
                break
            yield Frame(utterance, Kind(kind), bytes(self._buffer[start:end]))
            place = end
        del self._buffer[:place]


def pack_partial(samples: int, started: float, done: float, text: str) -> bytes:
    return _PARTIAL.pack(samples, started, done) + text.encode()


def unpack_partial(payload: bytes) -> tuple[int, float, float, str]:
    return *_PARTIAL.unpack_from(payload), payload[_PARTIAL.size :].decode()


def clean_word(word: str) -> str:
    """A dictionary entry as text: "the(2)", a second pronunciation, is "the"; silence, noise and
    sentence ends (<sil>, [NOISE], ++UM++, <s>) are nothing."""
    if word[:1] in "<[" or word.startswith("++"):
        return ""
    return re.sub(r"\(\d+\)$", "", word)


class UndecodedAudio:
    """The sound of one utterance that is not decoded yet."""

    def __init__(self, number: int, mean: str) -> None:
        self.number = number
        self.known_mean = mean
        self.mean = mean
        """Empty: the caller was not heard before, and the utterance is to be primed."""
        self.pcm = bytearray()
        self.heard = bytearray()
        """What priming decodes again; kept until then."""
        self.finished = False
        self.samples = 0
        self.decoder: Decoder | None = None

    @property
    def drained(self) -> bool:
        return self.finished and not self.pcm

    @property
    def primable(self) -> bool:
        """Whether it is to be primed now."""
        return not self.mean and (len(self.heard) >= PRIMING_SLICES * SLICE_BYTES or self.drained)

    @property
    def ready(self) -> bool:
        return self.finished or len(self.pcm) >= SLICE_BYTES

    def next_slice(self) -> bytes:
        """The next sound to decode; empty until there is a whole slice, or the end."""
        if self.primable or (len(self.pcm) < SLICE_BYTES and not self.finished):
            return b""
        piece = bytes(self.pcm[:SLICE_BYTES])
        del self.pcm[:SLICE_BYTES]
        self.samples += len(piece) // 2
        if not self.mean:
            self.heard += piece
        return piece

    def restart(self, mean: str) -> None:
        """Primed: the mean is known, and what was heard is to be decoded again."""
        self.mean = mean
        self.pcm[:0] = self.heard
        self.heard.clear()
        self.samples = 0


class Listener:
    """All utterances of one worker: frames in, frames out, a turn of decoding at a time."""

    def __init__(self) -> None:
        self._utterances: dict[int, UndecodedAudio] = {}
        self._turns: deque[int] = deque()
        self._free = [new_decoder()]
        self._initial_mean: str = self._free[0].get_cmn()
        self._decoders = 1

    def receive(self, frame: Frame) -> None:
        """Take a frame from the server; one for an utterance that is gone is ignored."""
        if frame.kind is Kind.BEGIN:
            begun = UndecodedAudio(frame.utterance, frame.payload.decode())
            self._utterances[begun.number] = begun
            self._turns.append(frame.utterance)
        elif utterance := self._utterances.get(frame.utterance):
            if frame.kind is Kind.AUDIO:
                utterance.pcm += frame.payload
            elif frame.kind is Kind.FINISH:
                utterance.finished = True
            elif frame.kind is Kind.CANCEL:
                self._release(utterance)

    def decode(self) -> Frame | None:
        """Give one utterance its turn. Returns what to tell the server of it, or None when none
        has a turn to take."""
        for _ in range(len(self._turns)):
            utterance = self._utterances[self._turns[0]]
            self._turns.rotate(-1)
            if utterance.ready and (decoder := self._decoder_of(utterance)):
                return self._turn(utterance, decoder)
        return None

    def _decoder_of(self, utterance: UndecodedAudio) -> "Decoder | None":
        if utterance.decoder is None:
            if not self._free:
                if self._decoders == MAX_DECODERS:
                    return None
                self._free.append(new_decoder())
                self._decoders += 1
            utterance.decoder = self._free.pop()
            # The estimate of the noise too is the last caller's: begin without one.
            utterance.decoder.reinit_feat()
            utterance.decoder.set_cmn(utterance.mean or self._initial_mean)
            utterance.decoder.start_utt()
        return utterance.decoder

    def _turn(self, utterance: UndecodedAudio, decoder: "Decoder") -> Frame:
        started = time.monotonic()
        for _ in range(SLICES_PER_TURN):
            if piece := utterance.next_slice():
                decoder.process_raw(piece)
        if utterance.mean and utterance.drained:
            return self._final(utterance, decoder, started)
        hypothesis = decoder.hyp()
        text = (
            " ".join(filter(None, map(clean_word, hypothesis.hypstr.split()))) if hypothesis else ""
        )
        partial = pack_partial(utterance.samples, started, time.monotonic(), text)
        if utterance.primable:
            self._prime(utterance, decoder)
        return Frame(utterance.number, Kind.PARTIAL, partial)

    def _prime(self, utterance: UndecodedAudio, decoder: "Decoder") -> None:
        decoder.end_utt()
        search, mean = decoder.current_search(), self._initial_mean
        decoder.activate_search(PRIMING_SEARCH)
        decoder.reinit_feat()
        for _ in range(PRIMING_PASSES):
            decoder.set_cmn(mean)
            decoder.start_utt()
            if utterance.heard:
                decoder.process_raw(bytes(utterance.heard), no_search=True)
            mean = decoder.get_cmn(True)
            decoder.end_utt()
        decoder.set_cmn(mean)
        decoder.activate_search(search)
        decoder.start_utt()
        utterance.restart(mean)

    def _final(self, utterance: UndecodedAudio, decoder: "Decoder", started: float) -> Frame:
        self._release(utterance)  # The decoder keeps its result until it is given the next one.
        # Segments count frames of 10 ms and include their last one.
        words = [
            (word, segment.start_frame * 10, segment.end_frame * 10 + 10)
            for segment in decoder.seg() or ()
            if (word := clean_word(segment.word))
        ]
        # A cough or a click says nothing of the caller's voice.
        mean = decoder.get_cmn() if words else utterance.known_mean
        result = {
            "samples": utterance.samples,
            "words": words,
            "mean": mean,
            "started": started,
            "done": time.monotonic(),
        }
        return Frame(utterance.number, Kind.FINAL, json.dumps(result).encode())

    def _release(self, utterance: UndecodedAudio) -> None:
        del self._utterances[utterance.number]
        self._turns.remove(utterance.number)
        if utterance.decoder is not None:
            utterance.decoder.end_utt()
            self._free.append(utterance.decoder)


def new_decoder() -> "Decoder":
    """Load a decoder with the model of the package: 0.4 s, 100 MB."""
    from pocketsphinx import Decoder

    decoder = Decoder(**SETTINGS)
    decoder.add_jsgf_string(PRIMING_SEARCH, PRIMING_GRAMMAR)
    return decoder


def main() -> None:
    # An interrupt at the terminal reaches the whole process group; ending us is the server's part.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    os.nice(NICENESS)
    standard_input, standard_output = 0, os.fdopen(1, "wb", buffering=0)
    reader, listener = FrameReader(), Listener()
    standard_output.write(bytes(Frame(0, Kind.READY)))
    busy = False
    while True:
        while select.select([standard_input], [], [], 0 if busy else None)[0]:
            data = os.read(standard_input, READ_BYTES)
            if not data:
                return
            for frame in reader.receive(data):
                if frame.kind is Kind.PING:
                    standard_output.write(bytes(Frame(0, Kind.PONG)))
                else:
                    listener.receive(frame)
            busy = True
        told = listener.decode()
        busy = told is not None
        if told:
            standard_output.write(bytes(told))


if __name__ == "__main__":
    with contextlib.suppress(BrokenPipeError):
        main()
