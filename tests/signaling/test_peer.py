"""Two ends of a call in one process, over real ICE, DTLS, SRTP and SCTP on the loopback."""

import asyncio
import contextlib
import inspect
import random
import re
import socket
from contextlib import asynccontextmanager

import aioice.ice
import numpy as np
import pytest
from aiortc import RTCPeerConnection, RTCSessionDescription, rtcdtlstransport
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from OpenSSL import SSL

from offhook.media.clock_io import PacketClock
from offhook.media.pcm import RATE_IN, RATE_OUT
from offhook.media.rtp import loss_window, rtcp
from offhook.media.rtp.rtp import RtpPacket
from offhook.signaling.ice.agent_io import on_malformed_stun
from offhook.signaling.message_channel_io import MESSAGE_BACKLOG, PONG
from offhook.signaling.peer_io import PeerLeg
from offhook.signaling.sdp import MAX_CANDIDATES, MAX_MEDIA_SECTIONS, OfferError
from tests.support.listening import Listening
from tests.support.waiting import HANGS_S, until

pytestmark = pytest.mark.usefixtures("loopback", "nothing_left")

"""Samples from saying to hearing: codec, packet and jitter buffer take 50 ms on a calm machine."""


def tone(hz, seconds, peak=10_000):
    time = np.arange(int(seconds * RATE_OUT)) / RATE_OUT
    return (peak * np.sin(2 * np.pi * hz * time)).astype(np.int16)


class Tap:
    """What one end heard."""

    def __init__(self, leg):
        self.heard = []
        leg.listen(lambda heard, said, now: self.heard.append(heard))

    def sound(self):
        return np.concatenate(self.heard) if self.heard else np.zeros(0, np.int16)

    def onset(self):
        """The sample of what was heard at which the first sound is."""
        loud = np.flatnonzero(np.abs(self.sound().astype(np.int32)) > 1500)
        return int(loud[0]) if len(loud) else None


def frequency(pcm):
    spectrum = np.abs(np.fft.rfft(pcm * np.hanning(len(pcm)), 8 * len(pcm)))
    return float(np.argmax(spectrum)) * RATE_IN / (8 * len(pcm))


def decibels(pcm):
    return 20 * np.log10(np.sqrt(np.mean(pcm.astype(float) ** 2)))


def only(payload_type, sdp):
    """The offer, with one codec left on its audio m-line."""
    lines = []
    for line in sdp.split("\r\n"):
        if line.startswith("m=audio"):
            line = " ".join([*line.split()[:3], str(payload_type)])
        if line.startswith(("a=rtpmap:", "a=fmtp:")) and f":{payload_type} " not in line:
            continue
        lines.append(line)
    return "\r\n".join(lines)


@asynccontextmanager
async def call(change=lambda sdp: sdp, ticking=True, caller=None, callee=None):
    """A connected call: the end that offered, the end that answered."""
    caller, callee = caller or PeerLeg("caller"), callee or PeerLeg("callee")
    clock = PacketClock()
    try:
        await caller.accept(await callee.answer(change(await caller.offer())))
        if ticking:
            clock.add(caller)
            clock.add(callee)
        await until(lambda: caller.connected and callee.connected)
        yield caller, callee
    finally:
        await asyncio.gather(caller.hang_up("test over"), callee.hang_up("test over"))
        clock.remove(caller)
        clock.remove(callee)


async def hears(listener, speaker, hz, seconds=0.5):
    """Say a tone at one end, return the middle of it as heard at the other."""
    tap = Tap(listener)
    speaker.playout.write(tone(hz, seconds))
    samples = int(seconds * RATE_IN)
    await until(lambda: (at := tap.onset()) is not None and len(tap.sound()) >= at + samples)
    start = tap.onset()
    return tap.sound()[start + samples // 4 : start + 3 * samples // 4]


# --- sound ---


async def test_each_end_hears_what_the_other_says():
    async with call() as (caller, callee):
        there, back = await asyncio.gather(hears(callee, caller, 440), hears(caller, callee, 1000))
    assert frequency(there) == pytest.approx(440, abs=3)
    assert frequency(back) == pytest.approx(1000, abs=3)
    said = 20 * np.log10(10_000 / np.sqrt(2))
    assert decibels(there) == pytest.approx(said, abs=1.5)
    assert decibels(back) == pytest.approx(said, abs=1.5)


@pytest.mark.parametrize(("payload_type", "name"), [(0, "PCMU"), (8, "PCMA"), (9, "G722")])
async def test_an_offer_of_an_old_codec_alone_is_answered_with_it(payload_type, name):
    answers = []

    class Callee(PeerLeg):
        async def answer(self, sdp):
            answers.append(await super().answer(sdp))
            return answers[0]

    async with call(lambda sdp: only(payload_type, sdp), callee=Callee("callee")) as (a, b):
        heard = await hears(b, a, 440, seconds=0.3)
        await until(lambda: a.statistics().packets_sent > 15)
        assert frequency(heard) == pytest.approx(440, abs=5)
        assert decibels(heard) == pytest.approx(decibels(tone(440, 0.1)), abs=1.5)
    assert f"a=rtpmap:{payload_type} {name}/8000" in answers[0]
    assert "opus" not in answers[0]


async def test_opus_is_negotiated_with_redundancy_and_mono():
    caller, callee = PeerLeg("caller"), PeerLeg("callee")
    offer = await caller.offer()
    answer = await callee.answer(offer)
    for sdp in (offer, answer):
        assert "a=rtpmap:96 opus/48000/2\r\na=fmtp:96 minptime=10;useinbandfec=1;stereo=0" in sdp
    await asyncio.gather(caller.hang_up(""), callee.hang_up(""))


async def test_an_m_line_without_direction_is_sendrecv():
    """RFC 8866 §6.7: what is not said is sendrecv."""
    async with call(lambda sdp: sdp.replace("a=sendrecv\r\n", "")) as (caller, callee):
        heard = await hears(caller, callee, 440, seconds=0.3)
        assert frequency(heard) == pytest.approx(440, abs=5)


async def test_a_stock_peer_with_video_gets_audio_and_an_inactive_video_line():
    stock, leg, clock = RTCPeerConnection(), PeerLeg("leg"), PacketClock()
    tracks = []
    stock.on("track", tracks.append)
    stock.addTransceiver("audio")
    stock.addTransceiver("video")
    stock.createDataChannel("chat")
    try:
        await stock.setLocalDescription(await stock.createOffer())
        answer = await leg.answer(stock.localDescription.sdp)
        audio, video, data = answer.split("m=")[1:]
        assert audio.startswith("audio")
        assert "a=sendrecv" in audio
        assert video.startswith("video")
        assert "a=inactive" in video
        assert data.startswith("application")
        await stock.setRemoteDescription(RTCSessionDescription(answer, "answer"))
        await until(lambda: leg.connected)
        clock.add(leg)
        leg.playout.write(tone(440, 2))
        heard = [np.zeros(0, np.int16)]
        while np.sum(np.abs(np.concatenate(heard)) > 1500) < 6000:
            frame = await asyncio.wait_for(tracks[0].recv(), HANGS_S)
            heard.append(frame.to_ndarray()[0, ::6])  # stereo at 48 kHz, interleaved
        assert np.max(np.abs(heard[-1])) == pytest.approx(10_000, rel=0.3)
    finally:
        await stock.close()
        await leg.hang_up("test over")
        clock.remove(leg)


async def test_a_second_offer_keeps_the_call_and_its_sound():
    async with call() as (caller, callee):
        await hears(callee, caller, 440, seconds=0.3)
        before = callee.statistics().packets_received
        await caller._pc.setLocalDescription(await caller._pc.createOffer())
        await caller.accept(await callee.answer(caller._pc.localDescription.sdp))
        await asyncio.sleep(0.1)
        heard = await hears(callee, caller, 1000, seconds=0.3)
        assert frequency(heard) == pytest.approx(1000, abs=5)
        assert callee.statistics().packets_received > before
        assert (caller.closed, callee.closed) == (None, None)


async def test_statistics_know_the_line(monkeypatch):
    monkeypatch.setattr(rtcp, "REPORT_INTERVAL_S", 0.15)
    monkeypatch.setattr(loss_window, "LOSS_WINDOW_S", 0.3)
    async with call() as (caller, callee):
        send, count = caller._datagram_out, iter(range(10**6))
        caller._datagram_out = lambda data: next(count) % 4 > 1 and send(data)  # half is lost
        caller.playout.write(tone(440, 3))
        await until(lambda: callee.statistics().loss > 0.1)
        await until(lambda: caller.statistics().remote_loss > 0.2)
        await until(lambda: callee.statistics().round_trip_ms is not None)
        here, there = caller.statistics(), callee.statistics()
    assert there.loss < 0.7
    assert there.packets_lost > 0
    assert there.packets_received < here.packets_sent
    assert min(there.round_trip_ms, there.jitter_ms) >= 0
    assert there.buffer_ms > 0
    assert 1 <= there.mos < here.mos <= 4.6


# --- keys ---

EVENTS = {
    "Chromium": ({110: 48_000, 126: 8_000}, (110, 48_000)),
    "Firefox": ({101: 8_000}, (101, 8_000)),
}
"""What browsers offer, and which of it goes with Opus."""


def with_events(clock_rates, sdp):
    """The offer, with these telephone events in place of its own."""
    own = [line.split(" ")[0][9:] for line in sdp.split("\r\n") if "telephone-event" in line]
    lines = []
    for line in sdp.split("\r\n"):
        if line.startswith("m=audio"):
            formats = [n for n in line.split()[3:] if n not in own]
            line = " ".join([*line.split()[:3], *formats, *map(str, clock_rates)])
        if "telephone-event" not in line:
            lines.append(line)
        if line.startswith("a=rtpmap:8 "):
            lines += [f"a=rtpmap:{n} telephone-event/{hz}" for n, hz in clock_rates.items()]
    return "\r\n".join(lines)


@pytest.mark.parametrize("browser", EVENTS)
async def test_the_telephone_events_of_an_offer_are_answered_and_used(browser):
    offered, used = EVENTS[browser]
    caller, callee = PeerLeg("caller"), PeerLeg("callee")
    keys, answers = [], []
    callee.listener = Listening(on_dtmf=keys.append)
    answer = callee.answer

    async def noted(sdp):
        answers.append(await answer(sdp))
        return answers[0]

    callee.answer = noted
    async with call(lambda sdp: with_events(offered, sdp), caller=caller, callee=callee):
        for payload_type, clock_rate in offered.items():
            assert f"a=rtpmap:{payload_type} telephone-event/{clock_rate}" in answers[0]
        assert answers[0].count("telephone-event") == len(offered)
        assert caller._format.events_out == callee._format.events_out == used
        caller.send_dtmf("15#5")
        await until(lambda: len(keys) == 4)
        await hears(callee, caller, 440, seconds=0.2)
    assert keys == ["1", "5", "#", "5"]


async def test_without_telephone_events_in_the_offer_keys_are_tones():
    async with call(lambda sdp: with_events({}, sdp)) as (caller, callee):
        assert caller._format.events_out is None
        tap = Tap(callee)
        caller.send_dtmf("5")
        await until(lambda: (at := tap.onset()) is not None and len(tap.sound()) > at + 1600)
        start = tap.onset()
        heard = tap.sound()[start + 160 : start + 1440].astype(float)
        spectrum = np.abs(np.fft.rfft(heard * np.hanning(len(heard)), 16_000))
        peaks = np.argmax(spectrum[600:1000]) + 600, np.argmax(spectrum[1000:1600]) + 1000
        assert peaks == (pytest.approx(770, abs=15), pytest.approx(1336, abs=15))


# --- the data channel ---


async def test_messages_go_both_ways_and_wait_for_the_channel():
    """What is said before the channel is open arrives in order; the oldest beyond the bound do
    not."""
    caller, callee = PeerLeg("caller"), PeerLeg("callee")
    got, back = [], []
    caller.listener = Listening(on_message=got.append)
    callee.listener = Listening(on_message=back.append)
    for number in range(MESSAGE_BACKLOG + 6):
        assert not callee.send_message(str(number))
    async with call(caller=caller, callee=callee):
        await until(lambda: len(got) == MESSAGE_BACKLOG)
        assert got == [str(n) for n in range(6, MESSAGE_BACKLOG + 6)]
        long = "ü" * 5000
        assert caller.send_message(long)
        assert callee.send_message("now")
        await until(lambda: back and got[-1] == "now")
        assert back == [long]
    assert not caller.send_message("too late")


async def test_datagrams_fit_a_path_of_1280_bytes():
    async with call() as (caller, callee):
        sizes = []
        connection = callee._pc.sctp.transport.transport._connection
        inner = connection.data_received
        connection.data_received = lambda data, at: (sizes.append(len(data)), inner(data, at))
        got = []
        callee.listener = Listening(on_message=got.append)
        caller.send_message("x" * 20_000)
        await until(lambda: got)
    assert max(sizes) <= 1280 - 40 - 8
    assert max(sizes) > 1000


async def test_a_peer_that_does_not_read_stops_getting_messages():
    async with call() as (caller, callee):
        got = []
        caller.listener = Listening(on_message=got.append)
        callee.send_message("ready")
        await until(lambda: got)
        caller._pc.sctp.transport.transport._connection.data_received = lambda data, at: None
        sent = 0
        while callee.send_message("x" * 10_000):
            sent += 1
            assert sent < 100
        assert sent > 20


# --- goodbye ---


@pytest.mark.parametrize("first", [0, 1])
async def test_hanging_up_is_noticed_at_the_other_end(first):
    async with call() as legs:
        told = []
        other = legs[1 - first]
        other.listener = Listening(on_closed=told.append)
        await legs[first].hang_up("goodbye")
        await until(lambda: other.closed)
        assert told == ["the caller hung up"]
        assert legs[first].closed == "goodbye"


async def test_the_last_message_arrives_before_the_line_goes():
    """The page learns why the call ended."""
    async with call() as (caller, callee):
        got = []
        caller.listener = Listening(on_message=got.append)
        callee.send_message("ready")
        await until(lambda: got)
        for number in range(20):
            assert callee.send_message(str(number))
        await callee.hang_up("the agent hung up")
        await until(lambda: caller.closed)
    assert got == ["ready", *map(str, range(20))]


async def test_a_dtls_goodbye_without_rtcp_is_enough():
    async with call() as (caller, callee):
        caller.send_bye = lambda now: None
        await caller.hang_up("goodbye")
        await until(lambda: callee.closed == "the caller hung up")


async def test_hanging_up_twice_at_once_and_again_is_hanging_up_once():
    async with call() as (caller, _):
        told = []
        caller.listener = Listening(on_closed=told.append)
        await asyncio.gather(caller.hang_up("one"), caller.hang_up("two"))
        await caller.hang_up("three")
        assert told == ["one"]


async def test_hanging_up_while_the_offer_is_answered_refuses_it_and_leaves_no_socket():
    caller = PeerLeg("caller")
    offer = await caller.offer()
    for steps in range(100):
        leg = PeerLeg("callee")
        answering = asyncio.create_task(leg.answer(offer))
        for _ in range(steps):
            await asyncio.sleep(0)
        if answering.done():
            break
        await leg.hang_up("replaced")
        with pytest.raises(OfferError):
            await answering
    assert steps > 10
    await leg.hang_up("done")
    await caller.hang_up("done")


async def test_a_cancelled_hang_up_is_cancelled_and_still_frees_the_peer():
    async with call() as (caller, _):
        task = asyncio.create_task(caller.hang_up("goodbye"))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await until(lambda: caller._pc.connectionState == "closed")


async def test_a_peer_that_vanished_is_noticed():
    """No goodbye, nothing more on the wire: cut the caller's end off."""
    async with call(callee=PeerLeg("callee", ping_timeout=0.4)) as (caller, callee):
        caller._datagram_out = lambda data: None
        caller._pc.sctp.transport.transport._connection.send = _swallow
        await until(lambda: callee.closed == "nothing heard from the caller")


async def _swallow(data):
    pass


async def test_pings_alone_hold_the_line_and_are_no_messages():
    callee = PeerLeg("callee", ping_timeout=0.3)
    got = []
    callee.listener = Listening(on_message=got.append)
    async with call(ticking=False, callee=callee) as (caller, _):
        for _ in range(10):
            caller.send_message("ping: 1")
            await asyncio.sleep(0.08)
        assert callee.closed is None
        assert callee.last_packet_at == 0
        await until(lambda: callee.closed == "nothing heard from the caller")
    assert got == []


async def test_a_ping_is_answered():
    """The page learns within seconds that the line is dead."""
    caller, callee = PeerLeg("caller"), PeerLeg("callee")
    got = []
    async with call(caller=caller, callee=callee):
        await until(lambda: caller.messages.channel.readyState == "open")
        caller.messages.channel.on("message", got.append)
        caller.send_message("ping: 1")
        await until(lambda: got)
    assert got == [PONG]


async def test_a_peer_that_never_connects_is_given_up(monkeypatch):
    monkeypatch.setattr("offhook.signaling.peer_io.CONNECT_TIMEOUT_S", 0.1)
    caller, callee = PeerLeg("caller"), PeerLeg("callee")
    await callee.answer(await caller.offer())
    await until(lambda: callee.closed == "the caller did not connect in time")
    await asyncio.gather(caller.hang_up(""), callee.hang_up(""))


# --- what should not be sent ---


async def test_garbage_on_the_media_port_is_counted_and_the_call_goes_on():
    rng = random.Random(3)
    async with call() as (caller, callee):
        pair = caller._pc.sctp.transport.transport._connection._nominated[1]
        number = pair.protocol.transport.get_extra_info("socket").fileno()
        with socket.fromfd(number, socket.AF_INET, socket.SOCK_DGRAM) as own:
            for size in (0, 1, 2, 11, 12, 60, 1500):
                for first in (0, 22, 64, 128, 144, 191, 192, 255):
                    data = bytes([first]) + rng.randbytes(size)
                    own.sendto(data[:size], pair.remote_addr)
            for size in (2, 20, 200):
                own.sendto(bytes([0x80, 200]) + rng.randbytes(size), pair.remote_addr)
        heard = await hears(callee, caller, 440, seconds=0.3)
        assert frequency(heard) == pytest.approx(440, abs=5)
        assert callee.srtp_failures > 12
        assert callee.malformed_packets >= 8  # the empty ones
        assert callee.closed is None


async def test_a_replayed_packet_is_not_heard_twice():
    async with call() as (caller, callee):
        send = caller._datagram_out
        caller._datagram_out = lambda data: [send(data) for _ in range(2)]
        await hears(callee, caller, 440, seconds=0.2)
        assert callee.srtp_failures > 5


rtp_header = st.builds(
    lambda first, rest, length: bytes([first]) + rest[:length],
    st.sampled_from([0x80, 0x90, 0xA0, 0xB5, 0x00, 0xC0]),
    st.binary(min_size=0, max_size=400),
    st.integers(0, 400),
)


class OpenLeg(PeerLeg):
    """With its codecs agreed, and no network."""

    def __init__(self):
        from offhook.media.codecs.opus import OpusDecoder, OpusEncoder
        from offhook.media.rtp.rtp_leg import RtpFormat

        super().__init__("fuzzed")
        self.sent = []
        self._open(RtpFormat("opus", {96: OpusDecoder}, OpusEncoder, 96, dtx=True), 1, now=0.0)

    def _send_rtp(self, packet):
        self.sent.append(packet)

    _send_rtcp = _send_rtp


@given(st.lists(st.one_of(st.binary(max_size=300), rtp_header), max_size=20))
@settings(max_examples=60, suppress_health_check=list(HealthCheck))
async def test_no_packet_raises(packets):
    leg = OpenLeg()
    sound = RtpPacket(96, 1, 960, 7, b"\xf8\xff\xfe")
    for number, data in enumerate(packets):
        now = number * 0.02
        leg.receive_rtp(data, now)
        leg.receive_rtcp(data, now)
        sound.sequence_number = number
        leg.receive_rtp(sound.serialize(), now)
        leg.tick(now)
    assert leg.statistics().packets_received <= 3 * len(packets)
    await leg.hang_up("")


# --- broken offers ---


@pytest.fixture(scope="module")
def real_offer():
    async def make():
        leg = PeerLeg("caller")
        sdp = await leg.offer()
        await leg.hang_up("")
        return sdp

    return asyncio.run(make()).replace("127.0.0.1", "127.0.0.2")


@st.composite
def mutations(draw):
    """Changes of a session description, line by line: (kind, line, other line, text)."""
    text = st.sampled_from(["", " ", "0", "-1", "99999999999", "٣", "\ud800", "a b c", "IN IP4 x"])
    change = st.tuples(
        st.sampled_from(["drop", "cut", "double", "swap", "value", "insert", "append"]),
        st.integers(0, 60),
        st.integers(0, 60),
        st.one_of(text, st.text(max_size=12)),
    )
    return draw(st.lists(change, min_size=1, max_size=4))


def mutate(sdp, changes):
    lines = sdp.split("\r\n")
    for kind, at, other, text in changes:
        at, other = at % len(lines), other % len(lines)
        match kind:
            case "drop" if len(lines) > 1:
                del lines[at]
            case "cut":
                lines[at] = lines[at][:other]
            case "double":
                lines.insert(at, lines[other])
            case "swap":
                lines[at], lines[other] = lines[other], lines[at]
            case "value":
                lines[at] = lines[at].partition(":")[0] + ":" + text
            case "insert":
                lines.insert(at, text)
            case "append":
                lines[at] += text
    return "\r\n".join(lines)


@given(changes=mutations())
@settings(
    max_examples=80,
    suppress_health_check=list(HealthCheck),
)
async def test_a_broken_offer_is_answered_or_refused(real_offer, changes):
    leg = PeerLeg("callee")
    try:
        answer = await leg.answer(mutate(real_offer, changes))
    except OfferError as error:
        answer = f"refused: {error}"
    finally:
        await leg.hang_up("test over")
    assert "m=audio" in answer or len(answer) > len("refused: ")


CANDIDATE = "a=candidate:1 1 udp 1 10.0.0.1 9 typ host\r\n"
AUDIO = "m=audio 9 UDP/TLS/RTP/SAVPF 0\r\n"


@pytest.mark.parametrize(
    ("sdp", "why"),
    [
        ("", "no audio m-line"),
        ("hello", "no audio m-line"),
        ("v=x\r\n" + AUDIO, "v=x is not v=0"),
        ("v=0\r\n" * 1000 + AUDIO, "more than 1000 lines"),
        (AUDIO * (MAX_MEDIA_SECTIONS + 1), "more than 8 m-lines"),
        (AUDIO + CANDIDATE * (MAX_CANDIDATES + 1), "more than 128 ICE candidates"),
        ("a=group:BUNDLE 7\r\n" + AUDIO, "no m-line has the mid '7'"),
        (AUDIO, "ICE username"),
    ],
)
async def test_a_refusal_says_why(sdp, why):
    leg = PeerLeg("callee")
    with pytest.raises(OfferError, match=why):
        await leg.answer(sdp)
    await leg.hang_up("")


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda sdp: sdp[: sdp.index("m=audio")] + sdp[sdp.index("m=application") :], "audio"),
        (lambda sdp: sdp.replace("opus", "speex").replace("/8000", "/16000"), "audio"),
        (lambda sdp: re.sub("opus|G722|PCM[UA]", "speex", sdp), "no audio codec in common"),
        (lambda sdp: sdp.replace("a=rtcp-mux\r\n", ""), "RTCP mux"),
        (lambda sdp: sdp.replace("a=ice-pwd", "a=nothing"), "ICE"),
    ],
)
async def test_what_cannot_be_answered_is_refused(real_offer, change, why):
    leg = PeerLeg("callee")
    with pytest.raises(OfferError, match=why):
        await leg.answer(change(real_offer))
    await leg.hang_up("")


async def test_an_offer_of_data_alone_is_refused():
    stock, leg = RTCPeerConnection(), PeerLeg("leg")
    stock.createDataChannel("chat")
    await stock.setLocalDescription(await stock.createOffer())
    with pytest.raises(OfferError, match="no audio m-line"):
        await leg.answer(stock.localDescription.sdp)
    await leg.hang_up("refused")
    await stock.close()


async def test_a_broken_second_offer_does_not_end_the_call(real_offer):
    async with call() as (caller, callee):
        for broken in ("", "m=audio 9 X", real_offer.replace("a=rtcp-mux\r\n", "")):
            with pytest.raises(OfferError):
                await callee.answer(broken)
        heard = await hears(callee, caller, 440, seconds=0.3)
        assert frequency(heard) == pytest.approx(440, abs=5)


async def test_offers_cannot_add_m_lines_without_end(real_offer):
    leg = PeerLeg("callee")
    for number in range(MAX_MEDIA_SECTIONS + 1):
        await leg.answer(with_mid(f"new{number}", real_offer))
    with pytest.raises(OfferError, match="m-lines"):
        await leg.answer(with_mid("new", real_offer))
    await leg.hang_up("")


def with_mid(mid, sdp):
    return sdp.replace("a=mid:0", f"a=mid:{mid}").replace("BUNDLE 0", f"BUNDLE {mid}")


async def test_two_offers_at_once_are_answered_or_refused(real_offer):
    leg = PeerLeg("callee")
    answers = await asyncio.gather(
        *(leg.answer(real_offer) for _ in range(4)), return_exceptions=True
    )
    assert all(isinstance(answer, str | OfferError) for answer in answers)
    assert any(isinstance(answer, str) for answer in answers)
    await leg.hang_up("")


async def test_a_broken_answer_is_refused():
    leg = PeerLeg("caller")
    offer = await leg.offer()
    for broken in ("", "v=x", offer, offer.replace("actpass", "active") + "m=audio 9 X 0\r\n"):
        with pytest.raises(OfferError):
            await leg.accept(broken)
    await leg.hang_up("")


@given(
    st.one_of(st.text(max_size=80), st.from_regex(r"candidate:\S+ \d+ udp \d+ \S+ \d+ typ \w+")),
    st.one_of(st.none(), st.sampled_from(["0", "1", "x"])),
    st.one_of(st.none(), st.integers(-2, 3)),
)
@settings(
    max_examples=60,
    suppress_health_check=list(HealthCheck),
)
async def test_any_candidate_is_taken_or_refused(real_offer, candidate, mid, index):
    leg = PeerLeg("callee")
    await leg.answer(real_offer)
    with contextlib.suppress(OfferError):
        await leg.ice.add_candidate(candidate, mid, index)
    await leg.hang_up("")


async def test_candidates_trickle_in_and_their_number_is_bounded():
    caller, callee = PeerLeg("caller"), PeerLeg("callee")
    trickled = []

    def held_back(sdp):
        lines = sdp.split("\r\n")
        trickled.extend(line[2:] for line in lines if line.startswith("a=candidate:"))
        return "\r\n".join(
            line for line in lines if not line.startswith(("a=candidate:", "a=end-of-candidates"))
        )

    answer = await callee.answer(held_back(await caller.offer()))
    await caller.accept(held_back(answer))
    with pytest.raises(OfferError, match="candidate"):
        await callee.ice.add_candidate("candidate:1 1 udp", "0", 0)
    await callee.ice.add_candidate(trickled[0], "0", 0)
    await callee.ice.add_candidate("", "0", 0)
    await until(lambda: callee.connected and caller.connected)
    for _ in range(MAX_CANDIDATES - 3):
        await callee.ice.add_candidate(trickled[0], "0", 0)
    with pytest.raises(OfferError, match="more than 128"):
        await callee.ice.add_candidate(trickled[0], "0", 0)
    await asyncio.gather(caller.hang_up(""), callee.hang_up(""))


# --- what we lean on ---


async def test_the_private_names_of_aiortc_and_aioice_are_where_we_lean_on_them():
    """A new version that moves one of these breaks the media path silently; read peer_io.py anew
    and only then change the pins."""
    from importlib.metadata import version

    assert (version("aiortc"), version("aioice")) == ("1.16.0", "0.13.0")
    assert "get_host_addresses(" in inspect.getsource(aioice.ice.Connection.gather_candidates)
    assert "_create_ssl_context(" in inspect.getsource(rtcdtlstransport.RTCDtlsTransport.start)
    certificate = rtcdtlstransport.RTCCertificate.generateCertificate()
    context = certificate._create_ssl_context(rtcdtlstransport.SRTP_PROFILES)
    assert context.set_options(0) & SSL.OP_NO_RENEGOTIATION
    async with call() as (caller, callee):
        for leg in (caller, callee):
            audio = leg._pc.getTransceivers()[0]
            dtls = audio.receiver.transport
            connection = dtls.transport._connection
            pair = connection._nominated[1]
            assert dtls._rx_srtp.unprotect
            assert leg._srtp_out._session is dtls._tx_srtp
            assert pair.remote_addr[0] == "127.0.0.1"
            assert pair.protocol.transport.sendto
            names = {"opus", "g722", "pcmu", "pcma", "telephone-event"}
            assert {c.name.lower() for c in audio._codecs} == names
            assert isinstance(audio.sender._ssrc, int)
            assert audio._offerDirection == "sendrecv"
            # Ours was called in place of theirs, and theirs is not running beside it.
            assert leg._opened
            assert connection.data_received.__module__ == "offhook.signaling.peer_io"
            assert audio.receiver.getSynchronizationSources() == []
            tasks = " ".join(str(task.get_coro()) for task in asyncio.all_tasks())
            assert "RTCRtpSender" not in tasks
            assert "RTCRtpReceiver" not in tasks
        before = connection._queue.qsize()
        await hears(callee, caller, 440, seconds=0.2)
        assert connection._queue.qsize() <= before  # no RTP goes aiortc's way


# --- datagrams of strangers ---


async def test_malformed_stun_is_counted_and_the_call_goes_on(caplog):
    """Each of these raised in aioice: a traceback in the log for every datagram of anybody."""
    counted = []
    on_malformed_stun(lambda: counted.append(1))
    faults = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, fault: faults.append(fault))
    header = bytes.fromhex("0001000821 12a442".replace(" ", "")) + bytes(12)
    short_priority = header + bytes.fromhex("0024000200000000")
    short_controlled = header + bytes.fromhex("8029000100000000")
    async with call() as (caller, callee):
        pair = callee._pc.sctp.transport.transport._connection._nominated[1]
        port = pair.protocol.transport.get_extra_info("sockname")
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as stranger:
            for _ in range(50):
                stranger.sendto(short_priority, port)
                stranger.sendto(short_controlled, port)
        await until(lambda: len(counted) == 100)
        heard = Tap(callee)
        caller.playout.write(tone(440, 0.5))
        await until(lambda: heard.onset() is not None)
    assert faults == []
    on_malformed_stun(lambda: None)
