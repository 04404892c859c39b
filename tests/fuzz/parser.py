"""Damaged SIP messages through the parser and the framer of streams.

Nothing but a MessageError may come of it, what was understood must be readable in full and again
after being written. The same damage goes through the framer in pieces.
"""

import random
import sys
import time
from contextlib import suppress

from offhook.telephony.sip.messages.framing import FramingError, StreamFramer
from offhook.telephony.sip.messages.headers import MAX_LINE_BYTES
from offhook.telephony.sip.messages.message import (
    MAX_MESSAGE_BYTES,
    Message,
    MessageError,
    parse_message,
    respond,
    sdp_of,
)
from tests.fuzz.damage import damage
from tests.fuzz.result import Result, resident_kb
from tests.support.sip_messages import TORTURE, TYPICAL

PROPERTIES = tuple(name for name, value in vars(Message).items() if isinstance(value, property))
"""Of a message, and all of them are read."""


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


def run(messages: int, seed: int, show: bool = False) -> Result:
    """Push that many through; progress goes to standard error."""
    chance = random.Random(seed)
    seeds = [*TYPICAL.values(), *TORTURE.values()]
    result = Result("parser", messages)
    warm, resident = max(1, messages // 10), 0.0
    for number in range(messages):
        data = damage(seeds, chance)
        started = time.thread_time()
        try:
            result.counts[read(data)] += 1
            result.counts["framed"] += frame(data, chance)
        except Exception as error:  # whatever it is, it is what this looks for
            result.raised(error, data)
        took = time.thread_time() - started
        result.spent += took
        if took * 1000 > result.slowest_ms and (again := _parse_ms(data)) > result.slowest_ms:
            result.slowest_ms, result.slowest = again, repr(data)
        if number + 1 == warm:
            resident = resident_kb()
        if show and (number + 1) % 50_000 == 0:
            print(f"{number + 1} messages, {resident_kb():.0f} KB resident", file=sys.stderr)
    result.finish(resident)
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
