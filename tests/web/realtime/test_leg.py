"""The leg of a WebSocket session: bursts in, packets out."""

import base64
import json
import weakref
from typing import Any

import numpy as np
import pytest

from offhook.media.pcm import PACKET_MS, RATE_IN, RATE_OUT, SAMPLES_IN, Pcm
from offhook.web.realtime import leg_io
from offhook.web.realtime.call_io import RealtimeCall, RealtimeCallState
from offhook.web.realtime.conversation.conversation import RealtimeConversation
from offhook.web.realtime.conversation.scope import Transport
from offhook.web.realtime.leg_io import (
    GRACE_MS,
    MAX_BACKLOG_S,
    MAX_HELD_MS,
    MAX_PACKETS_A_TICK,
    READ_AHEAD,
    Backlog,
    SocketLeg,
)
from offhook.web.realtime.protocol.conversation_session import ConversationSession
from offhook.web.speech_api.sockets.input_resampler import InputResampler


def ramp(packets: float, start: int = 1) -> np.ndarray:
    return np.arange(start, start + round(packets * SAMPLES_IN)).astype(np.int16)


def heard(leg: SocketLeg) -> list[np.ndarray]:
    packets: list[np.ndarray] = []
    leg.listen(lambda pcm, said, now: None if leg.idle else packets.append(pcm))
    return packets


def test_audio_is_read_packet_by_packet_whatever_its_pieces() -> None:
    leg = SocketLeg("a")
    packets = heard(leg)
    for at in range(0, 3 * SAMPLES_IN, 77):
        leg.feed(ramp(3)[at : at + 77])
    for n in range(3):
        leg.tick(n * 0.02)
    np.testing.assert_array_equal(np.concatenate(packets), ramp(3))


def test_a_pause_of_the_network_is_no_silence_but_a_longer_one_is() -> None:
    leg = SocketLeg("a")
    packets = heard(leg)
    leg.feed(ramp(1))
    for n in range(GRACE_MS // 20):
        leg.tick(n * 0.02)
    assert len(packets) == 1
    leg.tick(1.0)
    assert len(packets) == 2
    assert not packets[-1].any()


def test_a_client_that_is_waited_for_is_never_heard_as_silent() -> None:
    leg = SocketLeg("a")
    packets = heard(leg)
    leg.waits_for_input = True
    for n in range(500):
        leg.tick(n * 0.02)
    assert packets == []


def test_what_came_early_is_read_faster_than_real_time() -> None:
    leg = SocketLeg("a")
    packets = heard(leg)
    leg.feed(ramp(100))
    ticks = 0
    while len(packets) < 100:
        leg.tick(ticks * 0.02)
        ticks += 1
    assert ticks < 100 / MAX_PACKETS_A_TICK + READ_AHEAD / SAMPLES_IN + 1
    np.testing.assert_array_equal(np.concatenate(packets), ramp(100))


def test_missed_ticks_that_run_at_once_read_a_packet_each() -> None:
    """The voice detector does not run between them, and keeps a second of sound."""
    leg = SocketLeg("a")
    packets = heard(leg)
    leg.feed(ramp(100))
    for _ in range(25):
        leg.tick(0.5)
    assert len(packets) == 25 + MAX_PACKETS_A_TICK - 1
    leg.tick(0.52)
    assert len(packets) == 25 + 2 * MAX_PACKETS_A_TICK - 1


def test_an_action_comes_after_the_audio_before_it() -> None:
    leg = SocketLeg("a")
    packets = heard(leg)
    seen: list[int] = []
    leg.feed(ramp(2.5))
    leg.when_read(lambda: seen.append(len(packets)))
    leg.feed(ramp(1, 9000))
    for n in range(5):
        leg.tick(n * 0.02)
    assert seen == [2]  # half a packet is no packet
    assert packets[2][0] == 9000


def test_a_backlog_has_a_bound_and_can_be_cleared() -> None:
    leg = SocketLeg("a")
    packets = heard(leg)
    second = np.zeros(RATE_IN, np.int16)
    for _ in range(MAX_BACKLOG_S):
        leg.feed(second)
    with pytest.raises(Backlog):
        leg.feed(second)
    leg.clear()
    leg.feed(ramp(1))
    leg.tick(0.0)
    np.testing.assert_array_equal(packets[0], ramp(1))


async def test_a_client_is_told_that_its_audio_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    class Told:
        def __init__(self) -> None:
            self.events: list[dict[str, Any]] = []

        def send(self, text: str) -> None:
            self.events.append(json.loads(text))

        def close(self, code: int, reason: str) -> None: ...

    monkeypatch.setattr(leg_io, "MAX_BACKLOG_S", 1)
    call = RealtimeCall(RealtimeConversation(ConversationSession(), Transport.WEBSOCKET))
    call._actions._leg = call.leg = SocketLeg("a")
    owner, other = Told(), Told()
    number = call.attach(owner, owner=True)
    call.attach(other, owner=False)
    call._enter(RealtimeCallState.ACTIVE)
    audio = base64.b64encode(bytes(2 * RATE_OUT)).decode()
    for _ in range(2):  # a second each, of which one fits
        await call.receive(
            number, json.dumps({"type": "input_audio_buffer.append", "audio": audio})
        )
    (error,) = (event["error"] for event in owner.events if event["type"] == "error")
    assert (error["code"], error["param"]) == ("rate_limit_exceeded", "audio")
    assert not other.events
    await call.close()


def test_minutes_in_one_event_are_resampled_as_they_are_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sizes: list[int] = []

    class Watched(InputResampler):
        def process(self, pcm: Pcm) -> Pcm:
            sizes.append(len(pcm))
            return super().process(pcm)

    monkeypatch.setattr(leg_io, "InputResampler", Watched)
    leg = SocketLeg("a")
    packets = heard(leg)
    t = np.arange(60 * RATE_OUT) / RATE_OUT
    tone = (9000 * np.sin(2 * np.pi * 440 * t)).astype(np.int16)
    leg.feed(tone, RATE_OUT)
    assert sizes == []
    leg.tick(0.0)
    assert sum(sizes) <= RATE_OUT // 2
    for n in range(1, 60 * 50):
        leg.tick(n * 0.02)
    assert sum(sizes) == len(tone)
    whole = InputResampler(RATE_OUT).process(tone)[: 59 * RATE_IN]
    np.testing.assert_array_equal(np.concatenate(packets)[: len(whole)], whole)


def test_chunks_of_a_sample_count_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leg_io, "FULL_S", 20)
    leg, sample = SocketLeg("a"), ramp(1 / SAMPLES_IN)
    for _ in range(RATE_IN):
        leg.feed(sample, 48_000)
    assert not leg.is_ahead
    for _ in range(19 * RATE_IN + 1):
        leg.feed(sample, 48_000)
    assert leg.is_ahead


def test_what_was_not_read_is_freed_when_the_call_ends() -> None:
    leg = SocketLeg("a")
    pcm = ramp(100)
    appended = weakref.ref(pcm)
    leg.feed(pcm)
    del pcm
    assert appended() is not None
    leg.close("left")
    assert appended() is None


def test_what_came_early_waits_while_words_of_what_was_read_are_due() -> None:
    leg = SocketLeg("a")
    packets = heard(leg)
    leg.feed(ramp(300))
    leg.tick(0.0)
    read = len(packets)
    assert read == MAX_PACKETS_A_TICK
    assert leg.hurries
    leg.may_hurry = lambda: False
    for n in range(1, 1 + MAX_HELD_MS // PACKET_MS):
        leg.tick(n * 0.02)
    assert len(packets) == read
    leg.tick(100.0)  # a recognizer that says nothing does not end the call
    assert len(packets) == read + 1
    leg.may_hurry = lambda: True
    leg.tick(100.02)
    assert len(packets) == read + 1 + MAX_PACKETS_A_TICK
