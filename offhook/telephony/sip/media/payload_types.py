"""Payload types of both sides (RFC 3264 §5.1, §6.1, RFC 3551).

Formats are identified by a key: a codec's name ("opus", "pcmu"), "telephone-event/8000" with its
clock rate (RFC 4733 §2.1), "cn" (RFC 3389). Their payload types are for sending, ours for
receiving.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace

from offhook.telephony.sip.messages.sdp import Media, RtpMap

CODECS = {
    "opus": RtpMap("opus", 48_000, 2),  # always stereo in SDP, whatever it carries (RFC 7587 §7)
    "g722": RtpMap("G722", 8_000),
    "pcmu": RtpMap("PCMU", 8_000),
    "pcma": RtpMap("PCMA", 8_000),
}
OTHER_STATIC_TYPES = {
    number: RtpMap(name, 8_000)
    for number, name in {3: "GSM", 4: "G723", 7: "LPC", 12: "QCELP", 15: "G728", 18: "G729"}.items()
}
"""Static payload types (RFC 3551 §6) that are not supported, for a refusal to name."""
MAX_NAMES = 8
"""Codecs of an offer that a refusal names; further ones are left out."""
EVENT = "telephone-event/"
EVENT_RATES = (48_000, 8_000)
EVENT_CODES = "0-15"
"""The sixteen DTMF digits (RFC 4733 §3.2)."""
COMFORT_NOISE = "cn"
CN = RtpMap("CN", 8_000)
COMFORT_NOISE_TYPE = 13

PACKET_MS = (10, 20, 30, 40, 60)
USUAL_PACKET_MS = 20

Numbering = Mapping[str, tuple[int, RtpMap]]
"""Key → our payload type and its rtpmap."""

FIRST_NUMBERS: Numbering = {
    "opus": (111, CODECS["opus"]),
    "g722": (9, CODECS["g722"]),
    "pcmu": (0, CODECS["pcmu"]),
    "pcma": (8, CODECS["pcma"]),
    f"{EVENT}48000": (110, RtpMap("telephone-event", 48_000)),
    f"{EVENT}8000": (101, RtpMap("telephone-event", 8_000)),
}
_FREE_NUMBERS = range(96, 128)
_NUMBERS = frozenset(map(str, range(128)))
_NO_CODECS = ("telephone-event", COMFORT_NOISE)


def key_of(rtpmap: RtpMap) -> str | None:
    """Return the key of a format; None if it is not supported. Opus is one codec whatever its
    channels."""
    name, clock_rate = rtpmap.name.lower(), rtpmap.clock_rate
    codec = CODECS.get(name)
    if codec and codec.clock_rate == clock_rate and (name == "opus" or rtpmap.channels == 1):
        return name
    if name == "telephone-event" and clock_rate in EVENT_RATES:
        return f"{EVENT}{clock_rate}"
    return COMFORT_NOISE if name == "cn" and clock_rate == CN.clock_rate else None


def listing(media: Media) -> dict[int, str]:
    """Return payload type → key of the supported formats in the m= line, in its order."""
    keys = ((number, key_of(rtpmap)) for number, rtpmap in media.payloads.items())
    return {number: key for number, key in keys if key}


def encoding_of(rtpmap: RtpMap) -> str:
    """Return a format as an rtpmap has it (RFC 8866 §6.6): "PCMU/8000", "opus/48000/2"."""
    channels = "" if rtpmap.channels == 1 else f"/{rtpmap.channels}"
    return f"{rtpmap.name}/{rtpmap.clock_rate}{channels}"


def offered_codecs(media: Media) -> list[str]:
    """Return the codecs in the m= line as rtpmaps have them, for a refusal."""
    known = OTHER_STATIC_TYPES | media.payloads
    listed = (known.get(int(text)) for text in media.formats if text in _NUMBERS)
    codecs = (rtpmap for rtpmap in listed if rtpmap and rtpmap.name.lower() not in _NO_CODECS)
    return list(dict.fromkeys(map(encoding_of, codecs)))[:MAX_NAMES]


def first_number(listed: Mapping[int, str], key: str) -> int | None:
    return next((number for number, known in listed.items() if known == key), None)


def event_rate(key: str) -> int | None:
    """Return the clock rate in Hz; None if the key is not a telephone event."""
    return int(key.removeprefix(EVENT)) if key.startswith(EVENT) else None


def choose_codec(listed: Mapping[int, str], allowed: Iterable[str]) -> tuple[int, str] | None:
    """Return the first codec they list that we may use: their preference counts (RFC 3264 §6.1)."""
    allowed = set(allowed)
    return next((pair for pair in listed.items() if pair[1] in allowed), None)


def choose_event(listed: Mapping[int, str], codec: str) -> tuple[int, int] | None:
    """Return payload type and clock rate of the telephone events to use with `codec`. They should
    share its clock rate (RFC 4733 §2.1); if that is not offered, another is better than none."""
    for rate in sorted(EVENT_RATES, key=lambda rate: rate != CODECS[codec].clock_rate):
        number = first_number(listed, f"{EVENT}{rate}")
        if number is not None:
            return number, rate
    return None


def adopt(numbers: Numbering, theirs: Media) -> Numbering:
    """Return our numbering after answering `theirs`: their numbers for what both support (RFC 3264
    §6.1), ours for the rest, moved if theirs took the number. What does not fit is left out."""
    adopted: dict[str, tuple[int, RtpMap]] = {}
    payloads = theirs.payloads
    for number, key in listing(theirs).items():
        if key in FIRST_NUMBERS:
            spelled = replace(FIRST_NUMBERS[key][1], channels=payloads[number].channels)
            adopted.setdefault(key, (number, spelled))
    taken = set(payloads) | {number for number, _ in numbers.values()}
    for key, first in FIRST_NUMBERS.items():
        if key in adopted:
            continue
        place: int | None
        place, rtpmap = numbers.get(key, first)
        if place in payloads or (key not in numbers and place in taken):
            place = next((free for free in _FREE_NUMBERS if free not in taken), None)
        if place is not None:
            taken.add(place)
            adopted[key] = place, rtpmap
    return adopted


def packet_ms(media: Media, usual: int) -> int:
    """Return ms of audio per packet we send: what they ask for if we support it, within their
    maxptime (RFC 8866 §6.4, §6.5)."""
    wanted = usual if media.ptime is None else media.ptime
    if wanted not in PACKET_MS:
        wanted = USUAL_PACKET_MS
    most = media.maxptime or PACKET_MS[-1]
    return max((ms for ms in PACKET_MS if ms <= min(wanted, most)), default=PACKET_MS[0])
