"""The child process in which PocketSphinx listens, and the bytes it exchanges with the server.

PocketSphinx holds the GIL while it decodes, so it may not live in the process of the packet clock.
Standard input and output carry frames: utterance (u32), kind (u8), length (u32), payload, all
little-endian. The worker knows nothing but utterances: all that outlives one (the cepstral mean,
which is the caller's microphone and line) goes back to the server with its result and comes again
with the caller's next utterance, which so may be placed on another worker.

Run as ``python -m offhook.pipeline.engines.embedded.pocketsphinx_worker``; it ends with its
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
"""Maximum bytes of a frame; with a longer one the worker exits, since the pipe is out of step."""

SLICE_BYTES = 3200
"""Bytes of 100 ms. The decoder always gets whole slices except for an utterance's last, because its
running cepstral mean changes between slices; so the text does not depend on chunking."""
SLICES_PER_TURN = 4
"""A long backlog is decoded 400 ms at a time, in turn with the other utterances."""
MAX_DECODERS = 8
"""Decoders of 100 MB each. With as many utterances in progress, further ones wait."""
PRIMING_SLICES = 15
"""A new speaker is first decoded with a default mean, for early partials. After 1.5 s, or at the
end if sooner, the mean is estimated from this audio and decoding restarts. Of 288 words 165 are
wrong with the default mean, 84 with the estimate, 85 with the mean of a known speaker; the passes
were tuned on these recordings. It costs 75 ms per speaker, and decoding 1.5 s twice."""
PRIMING_PASSES = 8
"""PocketSphinx weights the given mean like 5 s of speech; each pass moves it towards the audio."""
PRIMING_SEARCH = "priming"
PRIMING_GRAMMAR = "#JSGF V1.0; grammar priming; public <word> = a;"
"""The smallest possible search, since the passes only compute features."""
READ_BYTES = 1 << 16

SETTINGS: dict[str, Any] = {
    "samprate": 16000,
    "loglevel": "FATAL",
    # The second pass over the whole utterance, after its end.
    "fwdflat": False,
    # The default is 30 000; fewer than 3 000 cost accuracy.
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
    """To the worker: the cepstral mean as written by PocketSphinx, or empty."""
    AUDIO = 2
    """To the worker: 16 kHz mono int16, little-endian."""
    FINISH = 3
    CANCEL = 4
    READY = 5
    """From the worker, once: the first decoder is loaded."""
    PARTIAL = 6
    """From the worker: samples decoded (u32), start and end of the decoding (f64, s of the
    monotonic clock shared by all processes), then the text so far."""
    FINAL = 7
    """From the worker, JSON: samples, words [[text, start_ms, end_ms]], mean, started, done."""
    PING = 8
    """To the worker, which answers in its next turn."""
    PONG = 9


class Frame(NamedTuple):
    utterance: int
    kind: Kind
    payload: bytes = b""

    def __bytes__(self) -> bytes:
        return _HEADER.pack(self.utterance, self.kind, len(self.payload)) + self.payload


class FrameError(ValueError):
    """Raised for bytes that are not a frame: the two sides are of different versions."""


class FrameReader:
    """Splits a byte stream into frames."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def receive(self, data: bytes) -> Iterator[Frame]:
        """Adds bytes and yields the completed frames. Raises FrameError."""
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
    """Returns a dictionary entry as text: "the(2)", a second pronunciation, is "the"; silence,
    noise and sentence ends (<sil>, [NOISE], ++UM++, <s>) are empty."""
    if word[:1] in "<[" or word.startswith("++"):
        return ""
    return re.sub(r"\(\d+\)$", "", word)


class UndecodedAudio:
    """The undecoded audio of one utterance."""

    def __init__(self, number: int, mean: str) -> None:
        self.number = number
        self.known_mean = mean
        self.mean = mean
        """Empty for a new speaker, whose utterance is primed."""
        self.pcm = bytearray()
        self.heard = bytearray()
        """Audio that priming decodes again; kept until then."""
        self.finished = False
        self.samples = 0
        self.decoder: Decoder | None = None

    @property
    def drained(self) -> bool:
        return self.finished and not self.pcm

    @property
    def primable(self) -> bool:
        """Returns whether it is to be primed now."""
        return not self.mean and (len(self.heard) >= PRIMING_SLICES * SLICE_BYTES or self.drained)

    @property
    def ready(self) -> bool:
        return self.finished or len(self.pcm) >= SLICE_BYTES

    def next_slice(self) -> bytes:
        """Returns the next audio to decode; empty until there is a whole slice, or the end."""
        if self.primable or (len(self.pcm) < SLICE_BYTES and not self.finished):
            return b""
        piece = bytes(self.pcm[:SLICE_BYTES])
        del self.pcm[:SLICE_BYTES]
        self.samples += len(piece) // 2
        if not self.mean:
            self.heard += piece
        return piece

    def restart(self, mean: str) -> None:
        """Restarts decoding with the mean from priming."""
        self.mean = mean
        self.pcm[:0] = self.heard
        self.heard.clear()
        self.samples = 0


class Listener:
    """All utterances of one worker: frames in, frames out, one decoding turn at a time."""

    def __init__(self) -> None:
        self._utterances: dict[int, UndecodedAudio] = {}
        self._turns: deque[int] = deque()
        self._free = [new_decoder()]
        self._initial_mean: str = self._free[0].get_cmn()
        self._decoders = 1

    def receive(self, frame: Frame) -> None:
        """Handles a frame from the server; frames of unknown utterances are ignored."""
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
        """Runs one utterance's turn. Returns a frame for the server, or None if nothing is to be
        decoded."""
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
            # The noise estimate also belongs to the previous speaker: start without one.
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
        self._release(utterance)  # The decoder keeps its result until its next input.
        # Segments count frames of 10 ms and include their last one.
        words = [
            (word, segment.start_frame * 10, segment.end_frame * 10 + 10)
            for segment in decoder.seg() or ()
            if (word := clean_word(segment.word))
        ]
        # A cough or click says nothing about the speaker's voice.
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
    """Loads a decoder with the package's model: 0.4 s, 100 MB."""
    from pocketsphinx import Decoder

    decoder = Decoder(**SETTINGS)
    decoder.add_jsgf_string(PRIMING_SEARCH, PRIMING_GRAMMAR)
    return decoder


def main() -> None:
    # A service manager may signal all processes; the server stops this one.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    # At the server's own priority. Niceness 5 made the packet clock no more punctual (99 % of wakes
    # within 2 ms with 24 streams either way), and beside four busy processes on two cores it made
    # finals 53 s late instead of 7 s.
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
