"""Ways to spoil a message: any of its bytes, or, of SIP, what has a meaning in it."""

import random
import re
from collections.abc import Callable, Sequence

PLACES = (1, 1, 1, 1, 2, 2, 3, 6)
"""How many of one message are damaged."""
REPEATS = (1, 1, 1, 1, 2, 2, 30, 300)
"""How often a piece of a message that is doubled comes again."""
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


def damage(
    seeds: Sequence[bytes], chance: random.Random, meaningful: Sequence[bytes] = MEANINGFUL
) -> bytes:
    """One of the seeds, damaged in some places; `meaningful` has a meaning in them."""
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
            data[start:start] = chance.choice(meaningful)
        elif kind == 4:
            data[start : start + 1] = chance.choice(meaningful)
        else:
            other = chance.choice(seeds)
            data[start:] = other[chance.randrange(len(other)) :]
    return bytes(data)


# --- what has a meaning ---

METHODS = tuple(
    b"INVITE ACK BYE CANCEL OPTIONS PRACK UPDATE INFO REFER NOTIFY MESSAGE SUBSCRIBE REGISTER"
    b" PUBLISH invite x-odd".split()
)
STATUSES = tuple(
    b"100 180 181 183 199 200 202 204 299 300 302 380 400 401 403 404 405 407 408 415 420 421 422"
    b" 423 430 480 481 486 487 488 491 500 501 503 580 600 603 606 699".split()
)
NUMBERS = (
    *b"0 00 1 2 3 7 -1 +1 65535 65536 2147483647 2147483648 4294967295 4294967296".split(),
    *b"99999999999 1e3 0x10 1.5".split(),
    b"",
    b"9" * 400,
    "٣".encode(),
)
TAGS = (b"", b"0", b"other", b"a" * 3000, b'"x y"', "ä".encode(), b"%00", b"z9hG4bK")
LINES = tuple(
    line.encode()
    for line in (
        "Require: 100rel",
        "Require: timer",
        "Require: odd, odd",
        "Supported: 100rel, timer, replaces",
        "Supported: ",
        "RSeq: 1",
        "RSeq: 4294967295",
        "RAck: 1 1 INVITE",
        "RAck: 99999999999 1 x",
        "Session-Expires: 1;refresher=uac",
        "Session-Expires: 90;refresher=uas",
        "Session-Expires: 99999999999;refresher=who",
        "Min-SE: 99999999999",
        "Min-SE: 3600",
        "Retry-After: " + "9" * 40,
        "Retry-After: 2 (soon);duration=1",
        'Reason: SIP ;;; cause=,,; text="\\',
        'Reason: Q.850;cause=16;text="' + "\\" * 99 + '"',
        "Record-Route: <sip:strict.example>, <sip:loose.example;lr>",
        "Record-Route: " + ",".join(["<sip:198.51.100.9;lr>"] * 90),
        "Route: <sip:198.51.100.1;lr>",
        "Contact: *",
        "Contact: <tel:+1555>",
        "Contact: <sip:x@[2001:db8::99]:1;transport=tls>",
        "Contact: <sips:x@198.51.100.2;maddr=224.0.0.1;transport=ws>",
        "Contact: <sip:%0d%0aX:%20y@nowhere.example;transport=sctp>",
        "Contact: <sip:nowhere.invalid;%0d%0a=%00;method=BYE?Subject=x>",
        "Allow: UPDATE",
        "Allow: ",
        "Refer-To: <sip:a@b.example?Replaces=%00%0d%0a>",
        "Refer-To: <sip:a@198.51.100.2;method=BYE>",
        "Refer-To: <tel:112>",
        "Refer-Sub: false",
        "Event: refer;id=9",
        "Event: presence",
        "Subscription-State: terminated;reason=giveup",
        "Expires: 0",
        "Expires: 1",
        "Max-Forwards: 0",
        'WWW-Authenticate: Digest realm="r", nonce="n", qop="auth,auth-int"',
        'WWW-Authenticate: Digest realm="%0a\\"", nonce="\\\\", stale=true, algorithm=SHA-256-sess',
        'Proxy-Authenticate: Digest realm="r", nonce="n", opaque="\\"", algorithm=MD5-sess',
        "Proxy-Authenticate: Digest",
        'Proxy-Authenticate: Digest realm="", nonce="' + "n" * 4000 + '"',
        'Authorization: Digest username="office",realm="",nonce="ä",uri="",response="",nc=ffffffff',
        "Replaces: a;to-tag=b;from-tag=c",
        "Replaces: ;;;to-tag",
        "Content-Type: application/dtmf-relay",
        "Content-Type: application/dtmf",
        'Content-Type: multipart/mixed;boundary=""',
        "Content-Type: multipart/mixed;boundary=part",
        "Content-Encoding: gzip",
        "Content-Disposition: session;handling=optional",
        "Accept: text/plain",
        "Min-Expires: 4000000000",
        "Warning: 399 x",
    )
)
"""Of header fields, each of which says something that is not usual there."""
ASKING: tuple[tuple[bytes, bytes], ...] = (
    (b"422", b"Min-SE: 3600"),
    (b"422", b"Min-SE: 99999999999"),
    (b"401", b'WWW-Authenticate: Digest realm="r", nonce="n", qop="auth"'),
    (b"407", b'Proxy-Authenticate: Digest realm="q", nonce="m", stale=true'),
    (b"503", b"Retry-After: 3"),
    (b"423", b"Min-Expires: 600"),
    (b"302", b"Contact: <sip:elsewhere@198.51.100.2>"),
    (b"183", b"Require: 100rel\r\nRSeq: 7"),
    (b"180", b"Require: 100rel\r\nRSeq: 8"),
    (b"491", b"Retry-After: 1"),
    (b"481", b"Reason: SIP;cause=481"),
    (b"200", b"Session-Expires: 90;refresher=uac"),
    (b"200", b"Session-Expires: 90;refresher=uas"),
)
"""Statuses that want something to be done, with the header field that says what."""
NAMED = (b"Via", b"From", b"To", b"Call-ID", b"CSeq", b"Contact", b"RAck", b"RSeq", b"Route")
"""Header fields whose values are exchanged for another message's."""
LONG = (300, 3_000, 9_000, 60_000)
"""Bytes."""

_NUMBER = re.compile(rb"[0-9]+")
_TAG = re.compile(rb"((?:tag|branch)=)([^;>\s,]*)")

Lines = list[bytes]
Twist = Callable[[Lines, Lines, random.Random], None]


def _at(lines: Lines, chance: random.Random) -> int:
    """A header line's place."""
    return chance.randrange(1, len(lines)) if len(lines) > 1 else 0


def _named(lines: Lines, name: bytes) -> int | None:
    places = (i for i, line in enumerate(lines) if line.partition(b":")[0].lower() == name.lower())
    return next(places, None)


def _line_of_another(lines: Lines, other: Lines, chance: random.Random) -> None:
    lines.insert(_at(lines, chance), other[_at(other, chance)])


def _value_of_another(lines: Lines, other: Lines, chance: random.Random) -> None:
    name = chance.choice(NAMED)
    here, there = _named(lines, name), _named(other, name)
    if here is not None and there is not None:
        lines[here] = other[there]


def _drop(lines: Lines, other: Lines, chance: random.Random) -> None:
    del lines[_at(lines, chance)]


def _repeat(lines: Lines, other: Lines, chance: random.Random) -> None:
    at = _at(lines, chance)
    lines[at:at] = [lines[at]] * chance.choice((1, 1, 2, 40, 120))


def _shuffle(lines: Lines, other: Lines, chance: random.Random) -> None:
    rest = lines[1:]
    chance.shuffle(rest)
    lines[1:] = rest


def _add(lines: Lines, other: Lines, chance: random.Random) -> None:
    lines.insert(_at(lines, chance), chance.choice(LINES))


def _replace(lines: Lines, other: Lines, chance: random.Random) -> None:
    """One that stands only once is said otherwise."""
    line = chance.choice(LINES)
    here = _named(lines, line.partition(b":")[0])
    if here is None:
        lines.append(line)
    else:
        lines[here] = line


def _lengthen(lines: Lines, other: Lines, chance: random.Random) -> None:
    at = _at(lines, chance)
    place = chance.randrange(len(lines[at]) + 1)
    filler = chance.choice((b"a", b";a=b", b" ", b"%41", b'\\"', b",<sip:a@b>"))
    size = chance.choice(LONG)
    lines[at] = lines[at][:place] + (filler * size)[:size] + lines[at][place:]


def _number(lines: Lines, other: Lines, chance: random.Random) -> None:
    at = chance.randrange(len(lines))
    found = list(_NUMBER.finditer(lines[at]))
    if found:
        start, end = chance.choice(found).span()
        lines[at] = lines[at][:start] + chance.choice(NUMBERS) + lines[at][end:]


def _tag(lines: Lines, other: Lines, chance: random.Random) -> None:
    at = [i for i, line in enumerate(lines) if _TAG.search(line)]
    if at:
        i = chance.choice(at)
        lines[i] = _TAG.sub(rb"\g<1>" + chance.choice(TAGS).replace(b"\\", b""), lines[i], count=1)


def _start(lines: Lines, other: Lines, chance: random.Random) -> None:
    """Another status, or another method, mostly in CSeq too."""
    words = lines[0].split(b" ")
    if words[0].startswith(b"SIP/"):
        words[1:2] = [chance.choice(STATUSES)]
    else:
        words[0], before = chance.choice(METHODS), words[0]
        cseq = _named(lines, b"CSeq")
        if cseq is not None and chance.random() < 0.9:
            lines[cseq] = lines[cseq].replace(before, words[0])
    lines[0] = b" ".join(words)


def _asking(lines: Lines, other: Lines, chance: random.Random) -> None:
    status, line = chance.choice(ASKING)
    words = lines[0].split(b" ")
    if words[0].startswith(b"SIP/"):
        lines[0] = b" ".join((words[0], status, *words[2:]))
        lines.insert(1, line)


def _start_of_another(lines: Lines, other: Lines, chance: random.Random) -> None:
    lines[0] = other[0]


TWISTS: tuple[Twist, ...] = (
    _line_of_another,
    _value_of_another,
    _drop,
    _repeat,
    _shuffle,
    _add,
    _add,
    _add,
    _replace,
    _replace,
    _lengthen,
    _number,
    _number,
    _tag,
    _start,
    _start,
    _asking,
    _asking,
    _start_of_another,
)
DAMAGED = 0.3
"""Of the twists: any bytes, not what they mean."""
BODIES = 0.1
"""Messages whose body is another's, cut off or gone."""
LIES = 0.1
"""Messages whose Content-Length stays as it was."""


def twist(data: bytes, other: bytes, chance: random.Random) -> bytes:
    """A message with a few things changed; `other` is one that has what may be taken over."""
    if chance.random() < DAMAGED:
        return damage((data, data, other), chance)
    head, _, body = data.partition(b"\r\n\r\n")
    other_head, _, other_body = other.partition(b"\r\n\r\n")
    lines, others = head.split(b"\r\n"), other_head.split(b"\r\n")
    for _ in range(chance.choice((1, 1, 1, 2, 3))):
        if lines:
            chance.choice(TWISTS)(lines, others, chance)
    if chance.random() < BODIES:
        body = chance.choice((other_body, other_body, body[: len(body) // 2], b"", body * 3))
        kind, usual = _named(others, b"Content-Type"), _named(lines, b"Content-Type")
        if body is other_body and kind is not None and usual is None and lines:
            lines.append(others[kind])
    length = _named(lines, b"Content-Length")
    if length is not None and chance.random() > LIES:
        lines[length] = b"Content-Length: %d" % len(body)
    return b"\r\n".join(lines) + b"\r\n\r\n" + body


def storm(data: bytes, copies: int, chance: random.Random) -> list[bytes]:
    """The message again and again, each another one to whoever counts: in its branch, its number,
    its tag, or all of these."""
    what = chance.choice((b"branch", b"CSeq", b"RSeq", b"tag", b"Call-ID", b"all"))
    found = []
    for number in range(copies):
        copy = data
        if what in (b"branch", b"all"):
            copy = copy.replace(b"branch=z9hG4bK", b"branch=z9hG4bK%d." % number, 1)
        if what in (b"tag", b"all"):
            copy = copy.replace(b";tag=", b";tag=%d." % number, 1)
        if what in (b"Call-ID",):
            copy = copy.replace(b"Call-ID: ", b"Call-ID: %d." % number, 1)
        if what in (b"CSeq", b"RSeq", b"all"):
            copy = re.sub(
                rb"(CSeq|RSeq|RAck): ([0-9]{1,9})",
                lambda m, n=number: b"%s: %d" % (m[1], int(m[2]) + n),  # type: ignore[misc]
                copy,
            )
        found.append(copy)
    return found
