"""A phone that sends well-formed packets of all kinds, and ways to spoil a packet."""

import random
import struct
from collections.abc import Callable, Sequence
from functools import cache

import numpy as np

from offhook.media.codecs.codec import Encoder
from offhook.media.codecs.g711 import PcmaEncoder, PcmuEncoder
from offhook.media.codecs.g722 import G722Encoder
from offhook.media.codecs.opus import OpusEncoder, OpusSettings
from offhook.media.pcm import RATE_OUT
from offhook.media.rtp.rtcp import RtcpSession, SentTotals
from offhook.media.rtp.rtp import RtpPacket
from offhook.telephony.sip.media import sdes
from offhook.telephony.sip.media.dtls_io import DtlsSrtp, local_fingerprint
from offhook.telephony.sip.media.latch import Address
from offhook.telephony.sip.media.srtp import SdesSrtp, SrtpError

HOSTS = ("198.51.100.7", "198.51.100.8")
SOUNDS = {0: ("pcmu", 8_000), 8: ("pcma", 8_000), 9: ("g722", 8_000), 111: ("opus", 48_000)}
"""Payload type → codec and clock rate in Hz."""
EVENTS = {101: 8_000, 110: 48_000}
NOISE = 13
PACKETS = 60
"""Made of each codec at a time, to be sent round and round."""
SECURED = ("", "", "", "sdes", "sdes", "dtls")
SIZES = (0, 1, 2, 3, 12, 40, 160, 161, 1200, 2000)
"""Bytes of a payload that is none."""
CHANGED = 0.05
"""Packets that go on otherwise: another codec, number, time, source."""
TURNED = 0.03
"""Packets that are spoiled before they are protected."""
TEXT = (
    "v=0\r\no=- 1 {version} IN IP4 {host}\r\ns=-\r\nc=IN IP4 {host}\r\nt=0 0\r\n"
    "m=audio {port} {protocol} {formats}\r\na=rtpmap:111 opus/48000/2\r\n"
    "a=rtpmap:101 telephone-event/8000\r\na=rtpmap:110 telephone-event/48000\r\n"
    "a=ptime:{ptime}\r\na={direction}\r\n{more}"
)


@cache
def payloads(codec: str) -> tuple[bytes, ...]:
    """Speech-like sound, 10 to 60 ms each, with silence in it."""
    makers: dict[str, Callable[[], Encoder]] = {
        "opus": lambda: OpusEncoder(OpusSettings()),
        "g722": G722Encoder,
        "pcmu": PcmuEncoder,
        "pcma": PcmaEncoder,
    }
    encoder, chance = makers[codec](), np.random.default_rng(1)
    encoder.set_loss(0.2)  # with redundancy
    found = []
    for number in range(PACKETS):
        ms = 20 if number % 6 else (10, 20, 40, 60)[number % 4]
        time = (np.arange(RATE_OUT * ms // 1000) + number * 480) / RATE_OUT
        level = 6000 * (number % 20 < 14)
        sound = level * np.sin(2 * np.pi * (150 + 20 * (number % 7)) * time)
        noise = chance.normal(0, 100, len(time))
        found.append(encoder.encode(np.asarray(sound + noise, np.int16)))
    return tuple(found)


class Phone:
    """The far end of one leg."""

    def __init__(
        self,
        chance: random.Random,
        codecs: Sequence[str],
        now: Callable[[], float],
        send: Callable[[bytes, bool], None],
    ) -> None:
        """`codecs` are those that the leg speaks; others are sent now and then all the same.
        `send` takes a datagram and whether it is for the port of RTCP."""
        self._chance = chance
        self._now = now
        self._send = send
        self._host = HOSTS[0]
        self._port = 5000
        self._version = 0
        self._security = chance.choice(SECURED)
        self._mux = True
        self._key = chance.randbytes(30)
        self._srtp: SdesSrtp | None = None
        self._dtls: DtlsSrtp | None = None
        self._usual = [number for number, (codec, _) in SOUNDS.items() if codec in codecs]
        self._payload_type = chance.choice(self._usual)
        self._number, self._timestamp = chance.getrandbits(16), chance.getrandbits(32)
        self._ssrc = chance.getrandbits(32)
        self._rtcp = RtcpSession(self._ssrc, "phone", 8000, now())
        self._packets = 0
        self._event: tuple[int, int, int] | None = None
        """Code, timestamp and packets so far of the key that is pressed."""

    def address(self, rtcp: bool) -> Address:
        return self._host, self._port + rtcp

    # --- offer and answer ---

    def offer(self) -> str:
        chance = self._chance
        self._move()
        more = "a=rtcp-mux\r\n" if self._mux else ""
        protocol = "RTP/AVP"
        match self._security:
            case "sdes":
                suite = "AES_CM_128_HMAC_SHA1_80"
                more += f"a=crypto:{sdes.Crypto(1, suite, self._key)}\r\n"
                protocol = chance.choice(("RTP/SAVP", "RTP/AVP"))
            case "dtls":
                setup = chance.choice(("actpass", "active", "passive"))
                more += f"a=fingerprint:{local_fingerprint()}\r\na=setup:{setup}\r\n"
                protocol = "UDP/TLS/RTP/SAVP"
        return self._text(protocol, more)

    def answer(self, offer: str) -> str:
        """To theirs, plain or with a key as they have it."""
        self._move()
        more = ""
        offered = [line for line in offer.split("\r\n") if line.startswith("a=crypto:")]
        protocol = offer.partition("m=audio ")[2].split(" ")[1]
        if offered and (crypto := sdes.parse_crypto(offered[0][len("a=crypto:") :])):
            key = self._chance.randbytes(len(crypto.key))
            answered = sdes.Crypto(crypto.tag, crypto.suite, key)
            more = f"a=crypto:{answered}\r\n"
            self._srtp = SdesSrtp(crypto.suite, key, crypto.key)
        return self._text(protocol, more)

    def answered(self, answer: str) -> None:
        """Their answer to our offer."""
        lines = answer.split("\r\n")
        found = (line[len("a=crypto:") :] for line in lines if line.startswith("a=crypto:"))
        crypto = next((c for c in map(sdes.parse_crypto, found) if c is not None), None)
        if crypto is not None:
            self._srtp = SdesSrtp(crypto.suite, self._key, crypto.key)
        elif "a=setup:active" in lines or "a=setup:passive" in lines:
            self._shake_hands("server" if "a=setup:active" in lines else "client")
        else:
            self._srtp = None

    def _shake_hands(self, role: str) -> None:
        if self._dtls is not None:
            self._dtls.close()
        function, _, digest = local_fingerprint().partition(" ")
        self._dtls = DtlsSrtp(
            "server" if role == "server" else "client",
            [(function, digest)],
            lambda data: self._send(data, False),
            self._use,
            lambda reason: None,
        )

    def _use(self, keys: SdesSrtp) -> None:
        self._srtp = keys

    def _move(self) -> None:
        """Some things are other than they were."""
        chance = self._chance
        self._version += 1
        self._mux = chance.random() < 0.7
        if chance.random() < 0.2:
            self._host = chance.choice(HOSTS)
        if chance.random() < 0.2:
            self._port = chance.randrange(1024, 60_000, 2)
        if chance.random() < 0.1:
            self._key = chance.randbytes(30)

    def _text(self, protocol: str, more: str) -> str:
        chance = self._chance
        formats = [0, 8, 9, 111, 13, 101, 110]
        chance.shuffle(formats)
        return TEXT.format(
            version=self._version,
            host=self._host if chance.random() < 0.95 else "0.0.0.0",
            port=self._port,
            protocol=protocol,
            formats=" ".join(map(str, formats)),
            ptime=chance.choice((10, 20, 30, 60)),
            direction=chance.choice(("sendrecv", "sendrecv", "sendrecv", "sendonly", "inactive")),
            more=more,
        )

    # --- packets ---

    def receive(self, data: bytes, rtcp: bool) -> None:
        """The leg has sent it."""
        if self._dtls is not None and data and 20 <= data[0] <= 63:
            self._dtls.receive(data)

    def tick(self) -> None:
        """20 ms."""
        chance = self._chance
        if chance.random() < CHANGED:
            self._change()
        roll = chance.random()
        if self._event is not None:
            self._press()
        elif roll < 0.85:
            self._speak()
        elif roll < 0.9:
            payload = bytes((chance.randrange(256),)) + chance.randbytes(chance.choice((0, 1, 10)))
            self._packet(NOISE, payload)
        elif roll < 0.93:
            self._event = chance.randrange(18), self._timestamp, 0
        elif roll < 0.95:
            self._send(chance.randbytes(chance.choice(SIZES)), chance.random() < 0.5)
        self._report()

    def close(self) -> None:
        if self._dtls is not None:
            self._dtls.close()

    def _speak(self) -> None:
        codec, rate = SOUNDS[self._payload_type]
        made = payloads(codec)
        self._packet(self._payload_type, made[self._packets % len(made)])
        self._timestamp += rate // 50

    def _press(self) -> None:
        assert self._event is not None
        code, timestamp, told = self._event
        number = self._chance.choice(list(EVENTS))
        end = 0x80 if told >= 5 else 0
        payload = struct.pack("!BBH", code, end | 10, min(160 * (told + 1), 0xFFFF))
        self._packet(number, payload, timestamp, marker=not told)
        self._timestamp += 160
        self._event = (code, timestamp, told + 1) if told < 8 else None

    def _change(self) -> None:
        chance = self._chance
        match chance.randrange(6):
            case 0:
                self._payload_type = chance.choice((*SOUNDS, *self._usual * 4))
            case 1:
                self._number += chance.choice((-200, -1, 1, 2, 5, 99, 101, 3001, 32_768))
            case 2:
                self._timestamp += chance.choice((-1, 1, -160, 320, 8_000, 400_000, 1 << 31))
            case 3:
                self._ssrc = chance.getrandbits(32)
            case 4:
                self._timestamp += chance.randrange(1 << 32)
            case 5:
                self._number = 65_530

    def _packet(
        self, payload_type: int, payload: bytes, timestamp: int | None = None, marker: bool = False
    ) -> None:
        at = self._timestamp if timestamp is None else timestamp
        packet = RtpPacket(
            payload_type, self._number & 0xFFFF, at & 0xFFFF_FFFF, self._ssrc, payload, marker
        )
        self._number += 1
        self._packets += 1
        data = packet.serialize()
        if self._chance.random() < TURNED:
            data = spoil(data, data, self._chance)
        self._send(self._protected(data, False), False)

    def _report(self) -> None:
        now = self._now()
        if now < self._rtcp.get_timer():
            return
        sent = SentTotals(self._packets, self._packets * 160, self._timestamp & 0xFFFF_FFFF)
        data = self._rtcp.reports_to_send(now, now, sent)
        if data is None:
            return
        if self._chance.random() < 0.1:
            data = self._rtcp.bye(now)
        if self._chance.random() < 0.3:
            data = spoil(data, data, self._chance)
        self._send(self._protected(data, True), not self._mux)

    def _protected(self, data: bytes, rtcp: bool) -> bytes:
        if self._srtp is None:
            return data
        try:
            return self._srtp.protect_rtcp(data) if rtcp else self._srtp.protect(data)
        except SrtpError:
            return data


def spoil(data: bytes, other: bytes, chance: random.Random) -> bytes:
    """A packet with something changed; `other` is one that has what may be taken over."""
    changed = bytearray(data)
    for _ in range(chance.choice((1, 1, 1, 2, 4))):
        at = chance.randrange(len(changed) + 1)
        match chance.randrange(9):
            case 0 if changed:
                changed[at % len(changed)] ^= 1 << chance.randrange(8)
            case 1:
                del changed[at:]
            case 2:
                del changed[at : at + chance.randrange(1, 20)]
            case 3:
                changed[at:at] = chance.randbytes(chance.choice((1, 4, 100, 1400)))
            case 4 if changed:  # padding, extension, sources, version
                changed[0] = chance.randrange(256)
            case 5 if len(changed) > 1:
                changed[1] = chance.choice((0, 8, 9, 13, 101, 110, 111, 127, 200, 201, 203, 72))
            case 6 if len(changed) >= 12:  # numbers and times
                start = chance.choice((2, 4, 8))
                changed[start : start + 4] = chance.randbytes(4)
            case 7:
                changed[12:] = chance.randbytes(chance.choice(SIZES))
            case 8:
                changed[at:] = other[at:]
    return bytes(changed[:2048])
