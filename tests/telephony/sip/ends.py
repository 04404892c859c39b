"""Ends of calls for the tests of the SIP leg: two legs joined, and a phone made by hand."""

import asyncio
import itertools
import re
import socket
from contextlib import asynccontextmanager
from unittest import mock

import numpy as np

from offhook.media.codecs.g711 import PcmuDecoder, PcmuEncoder
from offhook.media.pcm import RATE_IN, RATE_OUT, SAMPLES_OUT
from offhook.media.rtp.rtp import RtpPacket
from offhook.telephony.sip.media import sdes
from offhook.telephony.sip.media.keying import Keying
from offhook.telephony.sip.media.leg_io import SipLeg
from offhook.telephony.sip.media.offer_answer import MediaSettings
from tests.support.waiting import until

LOW, HIGH = 48_400, 48_799
SUITES = tuple(sdes.SUITES)
CODECS = ("opus", "g722", "pcmu", "pcma")
SAID_DBFS = 20 * np.log10(8000 / np.sqrt(2))
NOWHERE = "127.0.0.9"
"""A far end's address that its packets do not come from."""


def tone(hz, seconds, peak=8000):
    time = np.arange(int(seconds * RATE_OUT)) / RATE_OUT
    return (peak * np.sin(2 * np.pi * hz * time)).astype(np.int16)


def frequency(pcm, rate=RATE_IN):
    spectrum = np.abs(np.fft.rfft(pcm * np.hanning(len(pcm)), 8 * len(pcm)))
    return float(np.argmax(spectrum)) * rate / (8 * len(pcm))


def decibels(pcm):
    return 20 * np.log10(max(1.0, np.sqrt(np.mean(pcm.astype(float) ** 2))))


class Ear:
    """All that a leg hears from now on."""

    def __init__(self, leg):
        self.heard = []
        self.stop = leg.listen(lambda heard, said, now: self.heard.append(heard))

    def last(self, seconds):
        count = round(seconds * 50)
        return np.concatenate(self.heard[-count:]) if self.heard else np.zeros(0, np.int16)


async def hears(leg, hz, level=SAID_DBFS, seconds=60.0):
    """Until the leg hears this tone at this level, for 160 ms."""
    ear = Ear(leg)

    def heard():
        sound = ear.last(0.16)
        return abs(frequency(sound) - hz) < 5 and abs(decibels(sound) - level) < 3

    try:
        await until(lambda: len(ear.heard) >= 8 and heard(), seconds)
    except TimeoutError:
        sound = ear.last(0.16)
        what = f"{frequency(sound):.0f} Hz at {decibels(sound):.0f} dB" if len(sound) else "nothing"
        raise AssertionError(f"{leg.call_id} heard {what}, not {hz} Hz") from None
    finally:
        ear.stop()


async def hears_nothing(leg, seconds=0.3):
    await asyncio.sleep(0.1)  # for what was under way
    ear = Ear(leg)
    await asyncio.sleep(seconds)
    ear.stop()
    assert decibels(np.concatenate(ear.heard)) < 10


async def talk(a, b, first=440, second=880):
    """A tone each way, judged by what is heard."""
    a.playout.write(tone(first, 20))  # a busy machine has holes in it
    b.playout.write(tone(second, 20))
    await asyncio.gather(hears(b, first), hears(a, second))
    a.playout.flush()
    b.playout.flush()


class OffersDtls(Keying):
    """Our own end offers DTLS only when all else was refused; phones do at once."""

    setup = "actpass"

    @property
    def profiles(self):
        return ("UDP/TLS/RTP/SAVP",)

    def first_offer(self, profile):
        return ("fingerprint", self.fingerprint), ("setup", self.setup)


class OffersActive(OffersDtls):
    setup = "active"


def offer_dtls(leg, kind=OffersDtls):
    old = leg.negotiation._keying
    leg.negotiation._keying = kind(old.policy, old.fingerprint, old.address, old.make_key)


async def new_leg(ports, name, codecs=CODECS, srtp="off", dtls=True):
    leg = SipLeg(name, MediaSettings(codecs=codecs, srtp=srtp, dtls=dtls), ports, "127.0.0.1")
    await leg.bind()
    return leg


async def call(ports, clock, codec="pcmu", security="", change=lambda sdp: sdp, name=""):
    """Two legs in a call: the one that offered, the one that answered."""
    srtp = "required" if security else "off"
    codecs = (codec, *(other for other in CODECS if other != codec))
    dtls = security.startswith("dtls")
    a = await new_leg(ports, f"{name}caller", codecs, srtp, dtls)
    b = await new_leg(ports, f"{name}callee", codecs, srtp, dtls)
    if dtls:
        offer_dtls(a, OffersActive if security.endswith("active") else OffersDtls)
        offer = a.offer()
    else:
        with mock.patch.object(sdes, "OFFERED_SUITES", (security,)):
            offer = a.offer()
    a.accept(change(b.answer(change(offer))))
    for leg in (a, b):
        leg.connect()
        clock.add(leg)
    return a, b


def reoffer(a, b, change=lambda sdp: sdp, direction="sendrecv"):
    a.accept(b.answer(change(a.offer(direction))))


class FarEnd:
    """A phone with a socket, PCMU and a will of its own."""

    def __init__(self, ssrc=0xFA4, srtp=None, seed=1000):
        self.sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.sock.setblocking(False)
        self.sock.bind(("127.0.0.1", 0))
        self.address = self.sock.getsockname()
        self.ssrc, self.number, self.srtp = ssrc, seed, srtp
        self.received = []
        self.reports = []
        self._encoder = PcmuEncoder()
        self._phase = 0
        asyncio.get_running_loop().add_reader(self.sock, self._read)

    def _read(self):
        data = self.sock.recv(2048)
        (self.reports if 192 <= data[1] <= 223 else self.received).append(data)

    def sdp(self, host="127.0.0.1", port=None, extra="", protocol="RTP/AVP", direction="sendrecv"):
        port = port or self.address[1]
        return (
            f"v=0\r\no=- 1 {next(versions)} IN IP4 {host}\r\ns=-\r\nc=IN IP4 {host}\r\nt=0 0\r\n"
            f"m=audio {port} {protocol} 0 101\r\na=rtpmap:101 telephone-event/8000\r\n"
            f"{extra}a={direction}\r\n"
        )

    def packet(self, hz=440):
        """The next 20 ms of a tone."""
        time = (np.arange(SAMPLES_OUT) + self._phase) / RATE_OUT
        self._phase += SAMPLES_OUT
        self.number += 1
        payload = self._encoder.encode((8000 * np.sin(2 * np.pi * hz * time)).astype(np.int16))
        numbers = self.number & 0xFFFF, self.number * 160 & 0xFFFF_FFFF
        data = RtpPacket(0, *numbers, self.ssrc, payload).serialize()
        return self.srtp.protect(data) if self.srtp else data

    async def play(self, leg, hz=440, seconds=0.6, via=None):
        for _ in range(round(seconds * 50)):
            (via or self).sock.sendto(self.packet(hz), ("127.0.0.1", leg._transport.sockets.port))
            await asyncio.sleep(0.02)

    def heard(self):
        """The sound of all packets received."""
        decoder = PcmuDecoder()
        plain = [self.srtp.unprotect(d) if self.srtp else d for d in self.received]
        return np.concatenate([decoder.decode(RtpPacket.parse(data).payload) for data in plain])

    def close(self):
        asyncio.get_running_loop().remove_reader(self.sock)
        self.sock.close()


versions = itertools.count(1)


@asynccontextmanager
async def far_ends(count, **options):
    ends = [FarEnd(ssrc=0xFA4 + number, **options) for number in range(count)]
    try:
        yield ends
    finally:
        for end in ends:
            end.close()


async def answered(ports, clock, sdp, srtp="off"):
    """A leg that has answered this offer."""
    leg = await new_leg(ports, "leg", ("pcmu",), srtp)
    clock.add(leg)
    leg.answer(sdp)
    leg.connect()
    return leg


async def plays(end, leg, hz, via=None):
    """The far end plays a tone until the leg hears it."""
    playing = asyncio.create_task(end.play(leg, hz, 3, via))
    try:
        await hears(leg, hz)
    finally:
        playing.cancel()
        await asyncio.gather(playing, return_exceptions=True)


def crypto(suite, key, tag=1):
    return f"a=crypto:{sdes.Crypto(tag, suite, key)}\r\n"


def key_in(sdp):
    return sdes.parse_crypto(re.search(r"a=crypto:(.*)\r", sdp)[1]).key
