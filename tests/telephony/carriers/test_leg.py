"""A carrier's stream as the line that agents know: what each end hears and is told."""

import asyncio
import gc
import weakref
from dataclasses import replace

import numpy as np
import pytest

from offhook.media.codecs.codec import CodecError
from offhook.media.codecs.g711 import PcmaDecoder, PcmaEncoder, PcmuDecoder, PcmuEncoder
from offhook.media.codecs.l16 import L16Decoder, L16Encoder
from offhook.media.codecs.opus import OpusDecoder, OpusEncoder
from offhook.media.leg import LegError
from offhook.media.pcm import SAMPLES_OUT, dbfs
from offhook.telephony.carriers import leg_io as leg_module
from offhook.telephony.carriers.leg_io import CarrierLeg
from offhook.telephony.carriers.streams.stream import (
    Answer,
    CarrierError,
    Cleared,
    DtmfReceived,
    Format,
    Held,
    Played,
    Sound,
    Stopped,
)
from tests.media.lines import loudest, tone
from tests.support.listening import Listening
from tests.telephony.carriers.carrier import STARTED, Call, Line, ScriptedStream, Way, spoken

FORMATS = [
    (Format("pcmu", 8000), PcmuEncoder, PcmuDecoder),
    (Format("pcma", 8000), PcmaEncoder, PcmaDecoder),
    (Format("l16", 8000), lambda: L16Encoder(8000), lambda: L16Decoder(8000)),
    (Format("l16", 16000, True), lambda: L16Encoder(16000, True), lambda: L16Decoder(16000, True)),
    (Format("l16", 24000), lambda: L16Encoder(24000), lambda: L16Decoder(24000)),
    (Format("opus", 48000), OpusEncoder, OpusDecoder),
]


@pytest.fixture
def line():
    return Line(format=Format("l16", 24_000))


class Control:
    """The provider's REST API."""

    def __init__(self, asked, error=None):
        self.asked, self.error = asked, error

    def started(self, leg, started):
        pass

    async def hang_up(self):
        self.asked.append("REST hang up")
        if self.error:
            raise LegError(self.error)

    async def transfer(self, target):
        self.asked.append(f"REST transfer {target}")
        if self.error:
            raise LegError(self.error)


class Starts:
    """A provider's call that only begins."""

    def __init__(self, started):
        self.started = started


# --- the beginning ---


def test_a_stream_that_starts_connects_the_line_and_says_who_calls():
    told_of = []
    line = Line(control=Starts(lambda leg, started: told_of.append((started, leg.connected))))
    line.leg.listener = Listening(on_connected=lambda: told_of.append("connected"))
    line.leg.open()
    assert line.sent == ["hello"]
    line.tick(3)
    assert not line.leg.connected
    started = replace(STARTED, parameters={"k": "v"})
    line.take(started)
    assert told_of == [(started, False), "connected"]
    info = line.leg.info
    assert (info.edge, info.caller, info.called) == ("scripted", "+15550001", "+15550002")
    assert info.variables == {"k": "v"}


def test_a_call_refused_as_it_starts_is_neither_connected_nor_answered():
    line, keys = Line(control=Starts(lambda leg, started: leg.close("busy"))), []
    line.leg.listener = Listening(on_dtmf=keys.append)
    line.stream.receive = lambda data: [STARTED, Answer("ANSWER"), DtmfReceived("1")]
    line.leg.receive("", 0.0)
    assert not line.leg.connected
    assert (line.sent, keys) == ([], [])


def test_a_rate_that_is_not_understood_ends_the_stream_with_the_reason():
    with pytest.raises(CarrierError, match=r"scripted: l16: sample rate 44100 Hz is not"):
        Line(format=Format("l16", 44_100))


def test_before_it_starts_the_line_is_silent_and_says_nothing():
    line = Line()
    line.leg.playout.write(spoken(0, 100))
    line.tick(3)
    assert not np.concatenate(line.heard).any()
    assert line.sent == []
    assert line.leg.statistics().packets_received == 0


# --- in ---


@pytest.mark.parametrize(("format", "encoder", "decoder"), FORMATS, ids=lambda part: str(part)[:40])
def test_a_tone_is_heard_and_said_as_it_is_in_every_format(format, encoder, decoder):
    line, coder = Line(format=format), encoder()
    sound = tone(500)
    line.leg.playout.begin()
    line.leg.playout.write(sound)
    for start in range(0, len(sound), SAMPLES_OUT):
        line.take(Sound(coder.encode(sound[start : start + SAMPLES_OUT])))
        line.tick()
    assert loudest(np.concatenate(line.heard[10:])) == pytest.approx(500, abs=3)
    ear = decoder()
    said = np.concatenate([ear.decode(message) for message in line.sounds])
    assert len(said) == 16_000
    assert loudest(said[1600:]) == pytest.approx(500, abs=3)


@pytest.mark.parametrize("ms", [10, 20, 30, 60, 100, 500])
def test_messages_of_any_length_are_heard_without_a_gap(ms):
    line, coder = Line(format=Format("pcmu", 8000)), PcmuEncoder()
    payload = b"".join(coder.encode(block) for block in np.split(np.tile(tone(500), 4), 400))
    size, every = ms * 8, ms / 20
    due = 0.0
    for tick in range(190):
        while due <= tick:
            line.take(Sound(payload[:size]), after_ms=(due - tick) * 20)
            payload, due = payload[size:], due + every
        line.tick()
    assert line.leg.statistics().concealed_ms == 0
    assert line.leg.statistics().buffer_ms <= 40
    assert all(dbfs(heard) > -25 for heard in line.heard[5:])
    assert loudest(np.concatenate(line.heard[5:])) == pytest.approx(500, abs=3)


def test_messages_out_of_order_are_heard_in_order():
    coder = PcmuEncoder()
    payloads = [coder.encode(block) for block in np.split(np.tile(tone(500), 2), 100)]
    order = list(range(100))
    for at in range(41, 95, 7):  # once the buffer has seen what to expect
        order[at], order[at + 1] = order[at + 1], order[at]
    straight, mixed = (Line(format=Format("pcmu", 8000)) for _ in range(2))
    for tick in range(100):
        straight.take(Sound(payloads[tick], tick + 1))
        mixed.take(Sound(payloads[order[tick]], order[tick] + 1))
        straight.tick()
        mixed.tick()
    mixed.tick(10)
    assert mixed.leg.statistics().concealed_ms <= 20
    assert mixed.leg.statistics().packets_received == 100
    heard = np.concatenate(mixed.heard[55:95])
    assert loudest(heard) == pytest.approx(500, abs=3)
    power = np.abs(np.fft.rfft(heard * np.hanning(len(heard)))) ** 2
    at = int(np.argmax(power))
    assert power[at - 8 : at + 9].sum() / power.sum() > 0.98


def test_half_a_sample_and_sound_that_is_none_are_passed_over():
    line = Line(format=Format("l16", 8000))
    for payload in (b"\x01", b"\x01\x02\x03", bytes(319), bytes(320)):
        line.take(Sound(payload))
        line.tick()
    line.tick(20)
    line = Line(format=Format("opus", 48_000))
    line.take(Sound(b"\xff\xff\xff"), Sound(b"\x00"))
    line.tick(20)
    assert not np.concatenate(line.heard).any()


def test_events_of_the_stream_reach_whoever_listens(line):
    told_of = []
    line.leg.listener = Listening(
        on_dtmf=told_of.append, on_held=told_of.append, on_closed=told_of.append
    )
    line.take(DtmfReceived("5"), Held(True), Held(True), Held(False), Answer("pong"), Cleared())
    assert told_of == ["5", True, False]
    assert line.sent == ["pong"]
    line.take(Stopped("the caller hung up"))
    assert told_of[3:] == ["the caller hung up"]
    line.stream.receive = None
    line.leg.receive("anything", 1.0)


# --- keys ---


def test_keys_are_told_one_after_the_other(line):
    line.leg.send_dtmf("1a,#")
    line.tick()
    assert line.sent == ["press 1"]
    pressed = {}
    for tick in range(1, 60):
        line.tick()
        for message in line.sent[len(pressed) + 1 :]:
            pressed[message] = tick
    assert pressed == {"press A": 10, "press #": 45}


def test_keys_that_cannot_be_pressed_are_refused(line):
    with pytest.raises(LegError, match="'X' is not a DTMF digit"):
        line.leg.send_dtmf("1x")
    line.tick()
    assert line.sent == []
    with pytest.raises(LegError, match="not connected"):
        Line().leg.send_dtmf("1")


def test_a_provider_that_takes_no_keys_says_so(line):
    def press(digit):
        raise LegError("this line cannot send DTMF")

    line.stream.press = press
    with pytest.raises(LegError, match="cannot send DTMF"):
        line.leg.send_dtmf("1")
    line.tick(2)


# --- the end ---


async def test_hanging_up_waits_for_the_last_words_then_tells_stream_and_provider(line):
    asked = line.sent
    line.leg._control = Control(asked)
    line.leg.playout.write(spoken(0, 60))
    line.tick(8)
    marks = [message.split()[1] for message in line.sent if str(message).startswith("mark")]
    ending = asyncio.create_task(line.leg.hang_up("bye"))
    await asyncio.sleep(0.05)
    assert asked[-1].startswith("mark")
    line.take(*map(Played, marks))
    await asyncio.sleep(0.05)
    assert asked[-1] == "bye bye"
    line.take(Stopped("they closed"))
    await ending
    assert line.leg.closed == "bye"
    again = len(asked)
    await line.leg.hang_up("once more")
    assert len(asked) == again


async def test_a_call_that_goes_on_without_its_stream_is_hung_up(line, monkeypatch):
    monkeypatch.setattr(leg_module, "HANG_UP_TIMEOUT_S", 0.01)
    asked = []
    line.leg._control = Control(asked)
    await line.leg.hang_up("bye")
    assert line.sent == ["bye bye"]
    assert asked == ["REST hang up"]
    broken = Line(control=Control(asked), format=Format("pcmu", 8000))
    broken.leg.close("the socket broke")
    await broken.leg.hang_up("bye")
    assert asked == ["REST hang up"] * 2
    assert broken.leg.closed == "the socket broke"
    assert broken.sent == []


async def test_a_call_that_the_far_end_ended_is_left_alone(line):
    asked = []
    line.leg._control = Control(asked)
    line.take(Stopped("the caller hung up"))
    await line.leg.hang_up("bye")
    assert (asked, line.sent, line.leg.closed) == ([], [], "the caller hung up")


async def test_a_hang_up_that_the_provider_refuses_closes_the_line_all_the_same(
    line, monkeypatch, caplog
):
    monkeypatch.setattr(leg_module, "HANG_UP_TIMEOUT_S", 0.01)
    line.leg._control = Control([], "401: wrong credentials")
    await line.leg.hang_up("bye")
    assert line.leg.closed == "bye"
    assert "401: wrong credentials" in caplog.text


async def test_a_call_is_transferred_by_the_provider_and_not_hung_up_after(line):
    with pytest.raises(LegError, match="cannot be transferred"):
        await line.leg.transfer("+15550003")
    asked = []
    line.leg._control = control = Control(asked, "busy")
    with pytest.raises(LegError, match="busy"):
        await line.leg.transfer("+15550003")
    control.error = None
    await line.leg.transfer("+15550003")
    line.leg.close("the provider closed the socket")
    await line.leg.hang_up("over")
    assert asked == ["REST transfer +15550003"] * 2


def test_a_closed_line_sends_nothing_whatever_is_asked(line):
    line.leg.playout.write(spoken(0, 1000))
    line.tick(3)
    before = len(line.sent)
    line.leg.close("gone")
    line.leg.playout.flush()
    line.leg.playout.write(spoken(0, 1000))
    line.tick(3)
    assert len(line.sent) == before
    assert not line.leg.send_message("text")


def test_a_line_that_ended_is_gone_without_a_collection():
    class Socket:
        def __init__(self):
            self.leg = CarrierLeg("call", ScriptedStream(), self.send)

        def send(self, message):
            pass

    gc.disable()
    try:
        socket = Socket()
        socket.leg.close("over")
        gone = weakref.ref(socket), weakref.ref(socket.leg)
        del socket
        assert [ref() for ref in gone] == [None, None]
    finally:
        gc.enable()


# --- how it is doing ---


def test_statistics_tell_of_both_directions():
    call = Call(Way(40), Way(50))
    payload = bytes(960)
    call.speak(6000)
    for number in range(300):
        call.run(20)
        if number % 10:
            call.event(Sound(payload, number, number * 20))
    told_of = call.leg.statistics()
    assert told_of.packets_received == 270
    assert told_of.packets_lost == 29
    assert 0.05 < told_of.loss < 0.15
    assert told_of.round_trip_ms == pytest.approx(90, abs=2)
    assert told_of.packets_sent == 300
    assert 1.0 < told_of.mos < 4.5
    with pytest.raises(CodecError):
        L16Decoder(11_025)
