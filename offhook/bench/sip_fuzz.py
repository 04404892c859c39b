"""Damaged SIP messages through the parser and the framer: does anything raise, hang or grow?

    python -m offhook.bench.sip_fuzz --messages 1000000 [--seed 1] [--json]

Each message is one of those in sip_messages with bytes flipped, left out, doubled, exchanged for
what has a meaning in SIP, or spliced with another message. Nothing but a MessageError may come of
it, what was understood must be readable in full and again after being written, and it may not take
longer than a few milliseconds. The same damage goes through the framer of streams in pieces.
"""

import argparse
import gc
import json
import random
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path

from offhook.bench.sip_messages import TORTURE, TYPICAL
from offhook.telephony.sip.framing import FramingError, StreamFramer
from offhook.telephony.sip.headers import MAX_LINE_BYTES
from offhook.telephony.sip.message import (
    MAX_MESSAGE_BYTES,
    Message,
    MessageError,
    parse_message,
    respond,
    sdp_of,
)

MAX_PARSE_MS = 10.0
"""Of processor time, for one message: longer is a hang."""
MAX_GROWTH_KB = 1024
"""Of the resident size after the first tenth, which fills the caches of the interpreter."""
PLACES = (1, 1, 1, 1, 2, 2, 3, 6)
"""How many of one message are damaged."""
REPEATS = (1, 1, 1, 1, 2, 2, 30, 300)
"""How often a piece of a message that is doubled comes again."""
PROPERTIES = tuple(name for name, value in vars(Message).items() if isinstance(value, property))
"""Of a message, and all of them are read."""
MEANINGFUL = (
    *(bytes([byte]) for byte in b'\r\n\t\0",;:<>@?&=%\\/[]()*-. \x7f\x80\xff'),
    b"\r\n",
    b"\r\n ",
    b"\r\n\r\n",
    b'"\\',
    b"%00",
    b"%0d%0a",
    b"99999999999999999999999",
    b"-1",
    b"z9hG4bK",
    b"SIP/2.0",
    b"Via: ",
    b"l: 0\r\n",
    b"Content-Length: 10\r\n",
    b"\xc3\xa4",
    b"\xed\xa0\x80",
    b'"' * 40,
    b"," * 40,
    b";a" * 40,
    b"<" * 40,
)


@dataclass
class Result:
    messages: int = 0
    parsed: int = 0
    """Damaged, and still messages."""
    answerable: int = 0
    """Refused with a response."""
    framed: int = 0
    """Messages the framer cut out."""
    per_second: float = 0.0
    slowest_ms: float = 0.0
    slowest: str = ""
    """The message of that time."""
    exceptions: list[str] = field(default_factory=list)
    """The first few that are not a MessageError or FramingError, with their message."""
    growth_kb: float = 0.0

    @property
    def passed(self) -> bool:
        return not (
            self.exceptions or self.slowest_ms > MAX_PARSE_MS or self.growth_kb > MAX_GROWTH_KB
        )


def damage(seeds: Sequence[bytes], chance: random.Random) -> bytes:
    """One of the seeds, damaged in some places."""
    data = bytearray(chance.choice(seeds))
    for _ in range(chance.choice(PLACES)):
        start = chance.randrange(len(data) + 1)
        end = min(len(data), start + min(int(chance.expovariate(1 / 12)), 200))
        kind = chance.randrange(6)
        if kind == 0 and start < len(data):
            data[start] ^= 1 << chance.randrange(8)
        elif kind == 1:
            del data[start:end]
        elif kind == 2:
            data[start:start] = data[start:end] * chance.choice(REPEATS)
        elif kind == 3:
            data[start:start] = chance.choice(MEANINGFUL)
        elif kind == 4:
            data[start : start + 1] = chance.choice(MEANINGFUL)
        else:
            other = chance.choice(seeds)
            data[start:] = other[chance.randrange(len(other)) :]
    return bytes(data)


def read(data: bytes) -> str:
    """Parse as a server does, and read all that can be: "parsed", "answerable" or "dropped"."""
    try:
        message = parse_message(data)
    except MessageError as error:
        if error.request is None:
            return "dropped"
        respond(error.request, error.status, error.reason, to_tag="t").serialize()
        return "answerable"
    for name in PROPERTIES:
        getattr(message, name)
    sdp_of(message)
    written = message.serialize()
    if written.find(b"\r\n") > MAX_LINE_BYTES or len(written) > MAX_MESSAGE_BYTES:
        return "parsed"  # it was at the limits, and the escapes it lacked have made it longer
    again = parse_message(written)
    if [getattr(again, name) for name in PROPERTIES] != [
        getattr(message, name) for name in PROPERTIES
    ]:
        raise AssertionError("the message is another one after it was written")
    return "parsed"


def frame(data: bytes, chance: random.Random) -> int:
    """Messages that come out of a stream that brings this in up to three pieces."""
    framer = StreamFramer()
    cuts = sorted(chance.randrange(len(data) + 1) for _ in range(chance.randrange(3)))
    messages = 0
    for start, end in zip([0, *cuts], [*cuts, len(data)], strict=True):
        try:
            messages += sum(isinstance(piece, bytes) for piece in framer.receive(data[start:end]))
        except FramingError:
            break
    return messages


def run(messages: int, seed: int, show: bool) -> Result:
    """Push that many through; progress goes to standard error."""
    chance = random.Random(seed)
    seeds = [*TYPICAL.values(), *TORTURE.values()]
    result = Result(messages)
    warm, spent, resident = max(1, messages // 10), 0.0, 0.0
    for number in range(messages):
        data = damage(seeds, chance)
        started = time.thread_time()
        try:
            outcome = read(data)
            result.framed += frame(data, chance)
        except Exception as error:  # whatever it is, it is what this looks for
            outcome = ""
            if len(result.exceptions) < 20:
                result.exceptions.append(f"{error!r} from {data!r}")
        took = time.thread_time() - started
        spent += took
        result.parsed += outcome == "parsed"
        result.answerable += outcome == "answerable"
        if took * 1000 > result.slowest_ms and (again := _parse_ms(data)) > result.slowest_ms:
            result.slowest_ms, result.slowest = again, repr(data)
        if number + 1 == warm:
            resident = _resident_kb()
        if show and (number + 1) % 50_000 == 0:
            print(f"{number + 1} messages, {_resident_kb():.0f} KB resident", file=sys.stderr)
    result.per_second = round(messages / spent)
    result.growth_kb = _resident_kb() - resident
    return result


def _parse_ms(data: bytes) -> float:
    """Processor time of parsing it, the least of three: once, the garbage collector may have had
    its turn, which is not the message's doing."""
    times = []
    for _ in range(3):
        started = time.thread_time()
        with suppress(MessageError):
            parse_message(data)
        times.append(time.thread_time() - started)
    return round(min(times) * 1000, 3)


def _resident_kb() -> float:
    gc.collect()
    fields = Path("/proc/self/statm").read_text().split()
    return int(fields[1]) * 4.0


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser("offhook bench sip_fuzz", description=__doc__)
    parser.add_argument("--messages", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args(argv)
    result = run(arguments.messages, arguments.seed, show=not arguments.json)
    if arguments.json:
        print(json.dumps(asdict(result) | {"passed": result.passed}))
    else:
        print(
            f"{result.messages} damaged messages: {result.parsed} still messages, "
            f"{result.answerable} refused with a response; {result.framed} cut out of streams\n"
            f"{result.per_second:.0f} a second, slowest {result.slowest_ms} ms, "
            f"grown by {result.growth_kb:.0f} KB, exceptions: {len(result.exceptions)}"
        )
        for line in result.exceptions:
            print(line)
        if result.slowest_ms > MAX_PARSE_MS:
            print(f"slowest: {result.slowest[:2000]}")
    return 0 if result.passed else 1


if __name__ == "__main__":
    raise SystemExit(main())
