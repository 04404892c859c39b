"""Spoiled session descriptions through MediaNegotiation: calls of two ends that offer and answer,
now the one and now the other, while what is said is changed on the way.

Nothing but SdpError and NotAcceptable may come of it, and then all is as it was before. A plan must
be one that a line can be set up by, an answer one to this offer. Where nothing was changed, both
ends must have agreed.
"""

import random
import sys
import time
from collections import deque
from collections.abc import Callable
from ipaddress import ip_address
from typing import TypeVar

from offhook.media.codecs.opus import OpusSettings
from offhook.telephony.sip.media.offer_answer import (
    Direction,
    Dtls,
    MediaNegotiation,
    MediaPlan,
    MediaSettings,
    NotAcceptable,
    Sdes,
    SdpError,
    is_hold,
    remaining_profiles,
    wants_ice,
)
from offhook.telephony.sip.media.payload_types import PACKET_MS
from offhook.telephony.sip.media.rtp_format import format_of
from offhook.telephony.sip.media.srtp import SdesSrtp
from offhook.telephony.sip.messages.sdp import Description, Media, parse
from tests.fuzz.damage import NUMBERS, damage
from tests.fuzz.result import MAX_MESSAGE_MS, Result, resident_kb

CODECS = ("opus", "g722", "pcmu", "pcma")
DIRECTIONS: tuple[Direction, ...] = ("sendrecv", "sendrecv", "sendonly", "recvonly", "inactive")
EXCHANGES = (1, 2, 5, 20)
"""Of one call; of one in LONG_ONE, LONG."""
LONG, LONG_ONE = 300, 200
OFFER_SPOILED, ANSWER_SPOILED = 0.7, 0.5
FROM_ELSEWHERE = 0.15
"""Descriptions that are not the other end's, but somebody's, or one of before."""
POOL = 200
Taken = TypeVar("Taken", str, MediaPlan)
FINGERPRINT = "sha-256 " + ":".join(["5A"] * 32)
KEY = "d0RmdmcmVCspeEc3QGZiNWpVLFJhQX1cfHAwJSoj"

_HEAD = "v=0\r\no=- 1 1 IN IP4 192.0.2.9\r\ns=-\r\nc=IN IP4 192.0.2.9\r\nt=0 0\r\n"
SEEDS = (
    _HEAD + "m=audio 4000 RTP/AVP 0 8 101\r\na=rtpmap:101 telephone-event/8000\r\na=ptime:30\r\n",
    _HEAD + "m=audio 4000 RTP/AVP 18 9 13 100\r\na=rtpmap:100 opus/48000/2\r\na=maxptime:20\r\n"
    "a=fmtp:100 maxaveragebitrate=9000;useinbandfec=1\r\na=rtcp:4009 IN IP4 192.0.2.8\r\n",
    _HEAD + f"m=audio 4000 RTP/SAVP 0\r\na=crypto:3 AES_CM_128_HMAC_SHA1_80 inline:{KEY}|2^31\r\n"
    f"m=audio 4000 RTP/AVP 0\r\nm=video 5000 RTP/AVP 99\r\na=rtpmap:99 H264/90000\r\n",
    _HEAD.replace("192.0.2.9", "0.0.0.0") + "m=audio 4000 RTP/AVP 8\r\na=sendonly\r\n",
    _HEAD + f"a=fingerprint:{FINGERPRINT}\r\na=setup:actpass\r\na=ice-ufrag:x\r\na=ice-pwd:y\r\n"
    "m=audio 9 UDP/TLS/RTP/SAVPF 111 110 9 0\r\na=rtcp-mux\r\na=rtpmap:111 opus/48000/2\r\n"
    "a=rtpmap:110 telephone-event/48000\r\na=candidate:1 1 UDP 1 192.0.2.9 4000 typ host\r\n",
    "v=0\r\no=x y 1 1 IN IP6 ::1\r\ns= \r\nc=IN IP6 2001:db8::9/3\r\nt=0 0\r\na=inactive\r\n"
    "m=audio 4000/2 RTP/AVPF 96 97\r\na=rtpmap:96 pcma/8000/1\r\na=rtpmap:97 G722/8000\r\n",
    "v=0\nm=audio 4000 RTP/AVP 0\nc=IN IP4 phone.invalid\n",
)
"""Of phones and browsers."""
LINES = (
    "a=rtpmap:0 opus/48000/2",
    "a=rtpmap:8 telephone-event/8000",
    "a=rtpmap:111 CN/8000",
    "a=rtpmap:96 PCMU/8000/2",
    "a=rtpmap:127 PCMU/999999",
    "a=fmtp:111 maxaveragebitrate=" + "9" * 300,
    "a=ptime:0",
    "a=ptime:1000",
    "a=maxptime:5",
    "a=rtcp:0",
    "a=rtcp:1 IN IP4 224.0.0.1",
    "a=rtcp-mux",
    "a=sendonly",
    "a=recvonly",
    "a=inactive",
    "a=setup:active",
    "a=setup:passive",
    "a=setup:holdconn",
    f"a=fingerprint:{FINGERPRINT}",
    "a=fingerprint:md5 00",
    "a=fingerprint:",
    f"a=crypto:1 AES_CM_128_HMAC_SHA1_80 inline:{KEY}",
    f"a=crypto:9 AES_CM_128_HMAC_SHA1_32 inline:{KEY}|1:1",
    f"a=crypto:2 AEAD_AES_256_GCM inline:{KEY} KDR=1",
    "a=crypto:1 AEAD_AES_128_GCM inline:====",
    "c=IN IP4 0.0.0.0",
    "c=IN IP4 255.255.255.255",
    "c=IN IP4 239.1.1.1/127",
    "c=IN IP6 ::",
    "c=IN IP6 fe80::1%eth0",
    "c=IN IP4 host.example",
    "c=IN",
    "m=audio 0 RTP/AVP 0",
    "m=audio 65535 RTP/AVP 0 0 0 8 8",
    "m=audio 4000 RTP/SAVP 0",
    "m=audio 4000 UDP/TLS/RTP/SAVP 111",
    "m=audio 4000 RTP/AVP " + " ".join(map(str, range(128))),
    "m=video 4000 RTP/AVP 99",
    "m=image 4000 udptl t38",
    "m=audio",
    "o=",
    "b=AS:" + "9" * 100,
    "=",
    "a=",
    "a=:",
    "v=1",
)


def spoil(text: str, other: str, chance: random.Random) -> str:
    """A description with a few things changed; `other` is one that has what may be taken over."""
    if chance.random() < 0.3:
        data = text.encode("utf-8", "surrogateescape")
        another = other.encode("utf-8", "surrogateescape")
        return damage((data, data, another or data), chance).decode("utf-8", "surrogateescape")
    lines, others = text.split("\r\n"), other.split("\r\n")
    for _ in range(chance.choice((1, 1, 2, 3, 6))):
        at = chance.randrange(len(lines) + 1)
        match chance.randrange(8):
            case 0:
                del lines[at : at + 1]
            case 1:
                lines[at:at] = lines[at : at + 1] * chance.choice((1, 1, 40, 900))
            case 2:
                lines[at:at] = [chance.choice(others)]
            case 3:
                chance.shuffle(lines)
            case 4 if at < len(lines):
                words = lines[at].split(" ")
                words[chance.randrange(len(words))] = chance.choice(NUMBERS).decode()
                lines[at] = " ".join(words)
            case 5 if at < len(lines):
                lines[at] += chance.choice(" ;/:") * 3 + "x" * chance.choice((1, 4000, 70_000))
            case _:
                lines.insert(at, chance.choice(LINES))
    return "\r\n".join(lines)


class Call:
    """Two ends."""

    def __init__(self, chance: random.Random, pool: deque[str], result: Result) -> None:
        self._chance = chance
        self._pool = pool
        self._result = result
        hosts = chance.choice((("192.0.2.1", "192.0.2.2"), ("2001:db8::1", "2001:db8::2")))
        self._ends = tuple(self._end(host) for host in hosts)
        self._said: dict[MediaNegotiation, Description] = {}

    def _end(self, host: str) -> MediaNegotiation:
        chance = self._chance
        settings = MediaSettings(
            tuple(chance.sample(CODECS, chance.randrange(1, 5))),
            srtp=chance.choice(("off", "optional", "optional", "required")),
            dtls=chance.random() < 0.7,
            ptime_ms=chance.choice(PACKET_MS),
        )
        port = chance.randrange(1024, 65_534)
        rtcp = port + 1 if chance.random() < 0.8 else 9
        return MediaNegotiation(settings, host, port, rtcp, 7, FINGERPRINT, chance.randbytes)

    def exchange(self) -> None:
        """One offer, and what is answered."""
        chance = self._chance
        ends = list(self._ends)
        chance.shuffle(ends)
        asking, asked = ends
        profile = chance.choice((None, *asking.profiles))
        offer = asking.offer(chance.choice(DIRECTIONS), profile)
        self._is_renewed(asking, offer)
        told = self._on_the_way(offer, OFFER_SPOILED)
        wants_ice(told)
        answer = self._take(asked, lambda: asked.answer(told), told)
        if answer is None:
            asking.rollback()
            remaining_profiles(asking.profiles, self._on_the_way(offer, OFFER_SPOILED))
            return
        self._is_renewed(asked, answer)
        self._fits(told, answer)
        back = self._on_the_way(answer, ANSWER_SPOILED)
        for _ in range(chance.choice((1, 1, 2))):
            plan = self._take(asking, lambda: asking.accept(back), back)
        if plan is None:
            asking.rollback()
        elif (told, back) == (offer, answer):
            self._agree(asking.plan, asked.plan)
        if chance.random() < 0.05:
            asked.rollback()
            self._take(asked, lambda: asked.accept(back), back)

    def _on_the_way(self, text: str, spoiled: float) -> str:
        chance = self._chance
        self._pool.append(text)
        if chance.random() < FROM_ELSEWHERE:
            text = chance.choice((*SEEDS, *self._pool))
        if chance.random() < spoiled:
            return spoil(text, chance.choice((*SEEDS, *self._pool)), chance)
        return text

    def _take(self, end: MediaNegotiation, take: Callable[[], Taken], text: str) -> Taken | None:
        """Measured; None when it was refused."""
        before = end._agreed, end._offered, end._version
        result = self._result
        result.messages += 1
        started = time.thread_time()
        taken: Taken | None = None
        try:
            taken = take()
        except (NotAcceptable, SdpError) as error:
            result.counts[type(error).__name__] += 1
        took = time.thread_time() - started
        result.spent += took
        if took * 1000 > result.slowest_ms:
            again = _parse_ms(text) if took * 1000 > MAX_MESSAGE_MS else took * 1000
            if again > result.slowest_ms:
                result.slowest_ms, result.slowest = round(again, 3), repr(text)
        if taken is None:
            if (end._agreed, end._offered, end._version) != before:
                raise AssertionError("what was refused has changed something")
            return None
        result.counts["taken"] += 1
        self._holds(text)
        if end.plan is not None:
            check(end.plan, end._settings)
        return taken

    def _holds(self, text: str) -> None:
        try:
            is_hold(text)
        except SdpError as error:
            raise AssertionError("it was taken, and is none") from error

    def _is_renewed(self, end: MediaNegotiation, text: str) -> None:
        """The version counts the changes of what is said, and nothing else (RFC 3264 §8)."""
        said, before = parse(text), self._said.get(end)
        self._said[end] = said
        assert said.origin is not None
        if before is None or before.origin is None:
            return
        counted = said.origin.version - before.origin.version
        if counted != (said.media != before.media):
            raise AssertionError(f"the version counts {counted} for {text!r}")

    def _fits(self, offer: str, answer: str) -> None:
        """As many streams as were offered, in their order, and one of them is taken (§6)."""
        asked, given = parse(offer).resolved(), parse(answer).media
        same = [(m.kind, m.protocol) for m in asked] == [(m.kind, m.protocol) for m in given]
        taken = [(a, g) for a, g in zip(asked, given, strict=False) if g.port]
        if not same or len(taken) != 1:
            raise AssertionError(f"no answer to {offer!r}: {answer!r}")
        theirs, ours = taken[0]
        if not theirs.port or not set(ours.formats) <= {_plain(f) for f in theirs.formats}:
            raise AssertionError(f"something else than was offered in {offer!r}: {answer!r}")
        if ours.direction not in _ALLOWED[theirs.direction]:
            raise AssertionError(f"{ours.direction} for {theirs.direction}")

    def _agree(self, one: MediaPlan | None, other: MediaPlan | None) -> None:
        if one is None or other is None or one.codec.name != other.codec.name:
            raise AssertionError(f"{one} is not {other}")
        if one.codec.payload_type not in other.receive:
            raise AssertionError(f"{one} is not heard by {other}")
        keys = one.security, other.security
        match keys:
            case Sdes() as a, Sdes() as b if a.local_key == b.remote_key:
                return
            case Dtls() as a, Dtls() as b if a.role != b.role:
                return
            case None, None:
                return
        raise AssertionError("their keys do not fit")


_ALLOWED = {
    "sendrecv": ("sendrecv", "sendonly", "recvonly", "inactive"),
    "sendonly": ("recvonly", "inactive"),
    "recvonly": ("sendonly", "inactive"),
    "inactive": ("inactive",),
}
"""RFC 3264 §6.1."""


def _plain(number: str) -> str:
    """Of a payload type, as we write it."""
    return number.lstrip("0") or "0" if number.isascii() and number.isdigit() else number


def check(plan: MediaPlan, settings: MediaSettings) -> None:
    """Whether a line can be set up by it."""
    for host, port in (plan.remote, plan.remote_rtcp):
        ip_address(host)
        assert 0 < port < 65_536, plan
    numbers = {plan.codec.payload_type, *plan.receive, *plan.events_in, *plan.comfort_noise}
    if plan.events_out is not None:
        numbers.add(plan.events_out[0])
    assert all(0 <= n < 64 or 96 <= n < 128 for n in numbers), plan
    assert {plan.codec.name, *plan.receive.values()} <= set(settings.codecs), plan
    assert plan.receive, plan
    assert plan.ptime_ms in PACKET_MS, plan
    format_of(plan, OpusSettings())
    match plan.security:
        case Sdes(_, suite, local_key, remote_key, local_mki, remote_mki):
            SdesSrtp(suite, local_key, remote_key, local_mki, remote_mki)
            assert settings.srtp != "off"
        case Dtls(fingerprints, role):
            assert fingerprints, plan
            assert role in ("client", "server"), plan
        case None:
            assert settings.srtp != "required"


def _parse_ms(text: str) -> float:
    """Processor time of reading it and asking all of its media, the least of three."""
    times = []
    for _ in range(3):
        started = time.thread_time()
        try:
            for media in parse(text).resolved():
                _read(media)
        except SdpError:
            pass
        times.append(time.thread_time() - started)
    return min(times) * 1000


def _read(media: Media) -> object:
    return media.payloads, media.fmtp, media.fingerprints, media.rtcp, media.ptime, media.maxptime


def run(messages: int, seed: int, show: bool = False) -> Result:
    """Push that many through; progress goes to standard error."""
    chance = random.Random(seed)
    result = Result("sdp")
    pool: deque[str] = deque(maxlen=POOL)
    warm, resident, shown = max(1, messages // 10), 0.0, 0
    while result.messages < messages:
        call = Call(chance, pool, result)
        long = chance.randrange(LONG_ONE) == 0
        for _ in range(LONG if long else chance.choice(EXCHANGES)):
            try:
                call.exchange()
            except Exception as error:
                result.raised(error, pool[-1])
                break
        if not resident and result.messages >= warm:
            resident = resident_kb()
        if show and result.messages >= shown + 50_000:
            shown = result.messages
            print(f"{shown} messages, {resident_kb():.0f} KB resident", file=sys.stderr)
    result.finish(resident)
    return result
