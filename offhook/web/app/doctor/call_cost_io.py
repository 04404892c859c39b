"""Measures what the parts of a call cost on one core of this machine, in about three seconds."""

import asyncio
import socket
import time
from collections.abc import Callable
from statistics import median

import numpy as np
import pylibsrtp

from offhook.media.codecs.opus import OpusDecoder, OpusEncoder, OpusSettings
from offhook.media.pcm import PACKET_MS, RATE_IN, RATE_OUT, SAMPLES_OUT, Pcm
from offhook.media.playout import Playout
from offhook.media.rtp.receiver import AudioReceiver
from offhook.media.rtp.rtcp import RtcpSession
from offhook.media.rtp.rtp import RtpPacket
from offhook.media.rtp.sender import AudioSender
from offhook.pipeline.speech.vad.silero import CONTEXT, STATE
from offhook.pipeline.speech.vad.smart_turn_io import SECONDS, SmartTurn
from offhook.pipeline.speech.vad.vad import WINDOW
from offhook.pipeline.speech.vad.vad_io import FULL_SCALE, load_silero
from offhook.web.app.doctor.sizing import PartCosts
from offhook.web.http.loop_io import run as run_loop

ROUNDS = 5
"""Rounds per part. The median of their CPU times counts: other work on the machine makes some of
them slower."""
PACKETS = 200
VAD_CALLS = 25
"""Windows in a batch of the voice detector, as many as a process has calls."""
VAD_BATCHES = 20
PAUSES = 4
"""Judged in a round. In the first three the allocator still asks the system for memory."""
HOPS = 2000
KEY = bytes(range(44))
PAYLOAD_TYPE, SSRC = 111, 1
PACKET_S = PACKET_MS / 1000
OPUS_TICKS = 960
"""RTP timestamp units in 20 ms of Opus (RFC 7587 §4.1)."""
LEAST_S = 1e-7


def measure() -> PartCosts:
    """Raises OSError if a model is missing or the loopback interface cannot be used."""
    return PartCosts(
        _received_s() * 1e6, _sent_s() * 1e6, _vad_s() * 1e6, _turn_s() * 1e3, _hop_s() * 1e6
    )


def _typical_s(run: Callable[[], float], parts: int) -> float:
    """Returns the CPU time in s of one of the `parts` of a round; `run` returns that of a round.
    The first one warms up."""
    rounds = [run() for _ in range(1 + ROUNDS)][1:]
    return max(LEAST_S, median(rounds) / parts)


def _timed(work: Callable[[], object]) -> float:
    """Returns the CPU time in s of this thread."""
    began = time.thread_time()
    work()
    return time.thread_time() - began


def _speech(rate: int, seconds: float) -> Pcm:
    """Returns four syllables a second of a buzz with some noise, which codecs and models compute
    like speech."""
    t = np.arange(int(rate * seconds)) / rate
    buzz = sum(np.sin(2 * np.pi * 120 * k * t + k * k) / k for k in range(1, 16))
    noise = np.random.default_rng(1).normal(0, 0.2, len(t))
    syllables = np.sin(2 * np.pi * 2 * t) ** 2
    speech: Pcm = (4000 * syllables * (buzz + noise)).astype(np.int16)
    return speech


def _received_s() -> float:
    """Returns the CPU time in s of receiving 20 ms of a WebRTC call: a datagram from the kernel,
    SRTP, RTP, RTCP's counts, jitter buffer and Opus."""
    encoder = OpusEncoder(OpusSettings(dtx=False))
    payloads = [encoder.encode(frame) for frame in _frames()]
    packets = [
        RtpPacket(PAYLOAD_TYPE, number, number * OPUS_TICKS, SSRC, payload).serialize()
        for number, payload in enumerate(payloads)
    ]

    def run() -> float:
        protect, unprotect = _srtp()
        datagrams = [protect.protect(packet) for packet in packets]
        receiver = AudioReceiver({PAYLOAD_TYPE: OpusDecoder})
        rtcp = RtcpSession(2, "doctor", 48_000, 0.0)
        far, near = (socket.socket(socket.AF_INET, socket.SOCK_DGRAM) for _ in range(2))
        with far, near:
            near.bind(("127.0.0.1", 0))
            far.connect(near.getsockname())
            began = time.thread_time()
            for number, datagram in enumerate(datagrams):
                now = number * PACKET_S
                far.send(datagram)
                packet = RtpPacket.parse(unprotect.unprotect(near.recv(2048)))
                receiver.receive(packet, now)
                rtcp.receive_rtp(packet.ssrc, packet.sequence_number, packet.timestamp, now)
                receiver.pull(now + PACKET_S / 4)
        return time.thread_time() - began

    return _typical_s(run, PACKETS)


def _sent_s() -> float:
    """Returns the CPU time in s of sending 20 ms of a voice: playout, Opus, RTP, SRTP, and a
    datagram to the kernel."""
    frames = _frames()

    def run() -> float:
        protect, _ = _srtp()
        playout, sent = Playout(), list[bytes]()
        sender = AudioSender(OpusEncoder(), PAYLOAD_TYPE, SSRC, sent.append)
        far, near = (socket.socket(socket.AF_INET, socket.SOCK_DGRAM) for _ in range(2))
        with far, near:
            near.bind(("127.0.0.1", 0))
            far.connect(near.getsockname())
            began = time.thread_time()
            for number, frame in enumerate(frames):
                playout.write(frame)
                sender.tick(playout.pop(), number * PACKET_S)
                while sent:
                    far.send(protect.protect(sent.pop()))
                    near.recv(2048)
        return time.thread_time() - began

    return _typical_s(run, PACKETS)


def _frames() -> list[Pcm]:
    speech = _speech(RATE_OUT, PACKETS * PACKET_S)
    return list(speech.reshape(PACKETS, SAMPLES_OUT))


def _srtp() -> tuple[pylibsrtp.Session, pylibsrtp.Session]:
    """Returns both ends of a stream."""
    policy, profile = pylibsrtp.Policy, pylibsrtp.Policy.SRTP_PROFILE_AEAD_AES_256_GCM
    out = policy(KEY, policy.SSRC_ANY_OUTBOUND, srtp_profile=profile)
    into = policy(KEY, policy.SSRC_ANY_INBOUND, srtp_profile=profile)
    return pylibsrtp.Session(out), pylibsrtp.Session(into)


def _vad_s() -> float:
    """Returns the CPU time in s of a window of one call, among those of others."""
    model = load_silero()
    windows = _speech(RATE_IN, VAD_CALLS * (CONTEXT + WINDOW) / RATE_IN)
    rows = (windows * FULL_SCALE).reshape(VAD_CALLS, CONTEXT + WINDOW)
    states = np.zeros((VAD_CALLS, STATE), np.float32)

    def batches() -> None:
        for _ in range(VAD_BATCHES):
            model.run(rows, states)

    return _typical_s(lambda: _timed(batches), VAD_BATCHES * VAD_CALLS)


def _turn_s() -> float:
    """Returns the CPU time in s in which the end-of-turn model judges one pause."""
    model, speech = SmartTurn(), _speech(RATE_IN, SECONDS)

    def pauses() -> None:
        for _ in range(PAUSES):
            model.judge(speech)

    return _typical_s(lambda: _timed(pauses), PAUSES)


def _hop_s() -> float:
    """Returns the CPU time in s of handing something from a task of the event loop to another,
    as frames and events are."""

    async def hand_over() -> None:
        there: asyncio.Queue[int] = asyncio.Queue()
        back: asyncio.Queue[int] = asyncio.Queue()

        async def answer() -> None:
            for _ in range(HOPS):
                back.put_nowait(await there.get())

        answering = asyncio.create_task(answer())
        for number in range(HOPS):
            there.put_nowait(number)
            await back.get()
        await answering

    return _typical_s(lambda: _timed(lambda: run_loop(hand_over())), 2 * HOPS)
