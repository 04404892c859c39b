"""Both paths do the same with all that a carrier's WebSocket brings, and send the same."""

import asyncio
import json
from base64 import b64encode
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from offhook.media import native
from offhook.media.rtp import receiver
from offhook.telephony.carriers.leg_io import CarrierLeg
from offhook.telephony.carriers.streams import connections_io, packets, websocket_io
from offhook.telephony.carriers.streams.connections_io import Connection
from offhook.telephony.carriers.streams.frames import Opcode
from offhook.telephony.carriers.streams.stream import CarrierStream
from offhook.telephony.carriers.streams.websocket_io import StreamSocket
from offhook.telephony.carriers.telnyx.stream import TelnyxStream
from offhook.telephony.carriers.twilio.stream import TwilioStream
from tests.media.native.paths import Twins, needs_compiled
from tests.media.native.test_packets import TICK_S, members, tone, values
from tests.telephony.carriers.masked import sent

pytestmark = needs_compiled

FORMAT = {"encoding": "PCMA", "sample_rate": 8000, "channels": 1}
STARTS: dict[type[CarrierStream], dict[str, Any]] = {
    TwilioStream: {"start": {"streamSid": "MZ1", "callSid": "CA1"}},
    TelnyxStream: {"stream_id": "t", "start": {"call_control_id": "v", "media_format": FORMAT}},
}


class Wire:
    def __init__(self) -> None:
        self.sent: list[bytes] = []

    def write(self, data: bytes) -> None:
        self.sent.append(data)

    def get_write_buffer_size(self) -> int:
        return 0

    def get_extra_info(self, name: str) -> None:
        return None

    def is_closing(self) -> bool:
        return False

    def close(self) -> None: ...

    abort = close


class Line:
    """A leg and its socket."""

    def __init__(self, make: type[CarrierStream], loop: asyncio.AbstractEventLoop) -> None:
        self.wire, self.socket, self.stream = Wire(), StreamSocket(), make()
        self.socket._transport = self.wire  # type: ignore[assignment]
        self.socket._connection = Connection(
            self.wire,  # type: ignore[arg-type]
            self.socket._receive,
        )
        self.socket._ended = SimpleNamespace(set=lambda: None)  # type: ignore[assignment]
        self.leg = CarrierLeg("call", self.stream, self.socket.send)
        self.socket._leg = self.leg
        self.leg.open(self.socket._read, self.socket._write)
        self.keys = ""
        self.leg.listener = self  # type: ignore[assignment]

    def on_connected(self) -> None: ...

    def on_closed(self, reason: object) -> None: ...

    def on_dtmf(self, digit: str) -> None:
        self.keys += digit

    def state(self) -> dict[str, Any]:
        """All that it knows."""
        self.socket._flush()
        leg, reader = self.leg, self.socket._reader
        known = {
            "closed": leg.closed,
            "malformed": self.stream.malformed,
            "keys": self.keys,
            "form": self.stream.form and (self.stream.form.literals, self.stream.form.fields),
            "frames": (bytes(reader._buffer), bytes(reader._message), reader._opcode),
            "sent": self.wire.sent,
            "statistics": leg.statistics(),
        }
        if leg._in is None or leg._out is None:
            return known
        r, b, parts = leg._in.receiver, leg._in.receiver._buffer, ("stats", "reception", "_buffer")
        parts += ("_ready", "_steady", "_steady_type")
        return {
            **known,
            "packetizer": values(leg._in.packetizer, members(native.Packetizer)),
            "receiver": values(r, members(native.Receiver, *parts)),
            "buffer": values(b, members(native.JitterBuffer)),
            "stats": values(r.stats, members(native.ReceiverStats)),
            "reception": values(leg._in.reception, members(native.Reception)),
            "position": leg._out.position,
            "played": leg.playout.sent,
        }


class Pair:
    """The two lines, and the carrier's messages to both."""

    def __init__(self, make: type[CarrierStream], monkeypatch: pytest.MonkeyPatch) -> None:
        self.make, self.now, self.chunk, self.ms, self.sequence = make, 100.0, 1, 0, 1
        monkeypatch.setattr(websocket_io, "monotonic", lambda: self.now)
        loop = SimpleNamespace(call_soon=lambda call: None)
        monkeypatch.setattr(connections_io.asyncio, "get_running_loop", lambda: loop)
        self.twins = Twins(lambda: Line(make, loop))  # type: ignore[arg-type]
        self.text({"event": "start", **STARTS[make]})

    def feed(self, data: bytes) -> None:
        self.twins.do(lambda line: line.socket.feed_data(data))

    def text(self, message: dict[str, Any]) -> None:
        self.feed(sent(Opcode.TEXT, json.dumps(message).encode()))

    def media(self, sound: bytes = b"", **changed: Any) -> bytes:
        """A message, as bytes of text."""
        self.sequence += 1
        self.chunk += 1
        self.ms += 20
        sound = sound or tone(80, self.chunk).tobytes()
        number = "sequenceNumber" if self.make is TwilioStream else "sequence_number"
        key, name = ("streamSid", "MZ1") if self.make is TwilioStream else ("stream_id", "t")
        body = {
            "track": "inbound",
            "chunk": str(self.chunk),
            "timestamp": str(self.ms),
            "payload": b64encode(sound).decode(),
            **changed,
        }
        message = {"event": "media", number: str(self.sequence), "media": body, key: name}
        return json.dumps(message, separators=(",", ":")).encode()

    def tick(self) -> None:
        self.now += TICK_S
        heard: list[np.ndarray] = []

        def one(line: Line) -> None:
            line.leg.begin_tick()
            line.leg.receive_tick(self.now)
            line.leg.send_tick(self.now)
            heard.append(line.leg.sound_in)

        self.twins.do(one)
        np.testing.assert_array_equal(*heard)

    def same(self) -> None:
        assert self.twins.compiled.state() == self.twins.python.state()


@pytest.fixture(params=STARTS)
def pair(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Pair:
    return Pair(request.param, monkeypatch)


def test_the_usual_messages_are_read_and_written_compiled(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    for i in range(100):
        pair.feed(sent(Opcode.TEXT, pair.media(), bytes((i, 2, 3, 4))))
        pair.twins.do(lambda line, i=i: line.leg.playout.write(tone(480, i)))
        pair.tick()
        pair.same()
        if i == 10:
            line = pair.twins.compiled
            assert isinstance(line.leg._in.packetizer, packets.CompiledPacketizer)
            assert isinstance(line.leg._in.receiver, receiver.CompiledReceiver)
            monkeypatch.setattr(line.leg, "receive", None)
            monkeypatch.setattr(line.leg._out._encoder, "encode", None)
    assert pair.twins.python.leg.media_reader is None
    assert len(pair.twins.python.wire.sent) > 80


SIZES = st.sampled_from((160, 160, 160, 1, 80, 240, 320, 4100))
STEPS = st.one_of(
    st.tuples(st.just("media"), st.integers(1, 30), SIZES),
    st.tuples(st.just("burst"), st.integers(1, 4), st.integers(0, 2000)),
    st.tuples(st.just("chunk"), st.integers(0, 10**18) | st.integers(-3, 3), st.booleans()),
    st.tuples(st.just("ms"), st.integers(0, 10**18) | st.integers(-100, 100), st.booleans()),
    st.tuples(
        st.just("field"),
        st.sampled_from(("chunk", "timestamp", "payload", "track")),
        st.none()
        | st.integers(-1, 10**19)
        | st.text("0123456789=A/+ -", max_size=20)
        | st.sampled_from(("outbound", "QUI=", "QQ==", "Q===", "QQ=Q", "QUJD" * 2733, "0" * 18)),
    ),
    st.tuples(st.just("edit"), st.integers(0, 420), st.sampled_from(('"', "0", "\\", "é", "}"))),
    st.tuples(st.just("raw"), st.binary(max_size=12), st.none()),
    st.tuples(
        st.just("control"), st.sampled_from((Opcode.PING, Opcode.PONG, Opcode.CLOSE)), st.none()
    ),
    st.tuples(st.just("fragments"), st.integers(0, 400), st.booleans()),
    st.tuples(st.just("mark"), st.integers(0, 9), st.none()),
    st.tuples(st.just("key"), st.sampled_from("5#"), st.none()),
    st.tuples(st.just("stop"), st.none(), st.none()),
    st.tuples(st.just("stall"), st.integers(1, 20), st.none()),
    st.tuples(st.just("say"), st.integers(0, 5000), st.none()),
    st.tuples(st.just("cut"), st.booleans(), st.none()),
    st.tuples(st.just("tick"), st.integers(1, 30), st.none()),
)


@pytest.mark.parametrize("make", STARTS)
@given(script=st.lists(STEPS, max_size=30))
@example([("media", 3, 160), ("ms", 10**18, True), ("media", 3, 160), ("ms", 0, True)])
@example([("media", 3, 160), ("burst", 4, 300), ("media", 3, 160)])
@example([("media", 3, 160), ("fragments", 100, True), ("media", 3, 160)])
def test_whatever_happens(make: type[CarrierStream], script: list[Any]) -> None:
    with pytest.MonkeyPatch.context() as monkeypatch:
        pair = Pair(make, monkeypatch)
        for step in script:
            _do(pair, *step)
            pair.same()


def _do(pair: Pair, what: str, one: Any, two: Any) -> None:
    match what:
        case "media":
            for _ in range(one):
                pair.feed(sent(Opcode.TEXT, pair.media(bytes(two) if two != 160 else b"")))
                pair.tick()
        case "burst":
            data = b"".join(sent(Opcode.TEXT, pair.media()) for _ in range(one))
            pair.feed(data[:two])
            pair.feed(data[two:])
            pair.tick()
        case "chunk" | "ms":
            value = one if two else max(0, getattr(pair, what) + one)
            setattr(pair, what, min(abs(value), 10**18 - 100))
        case "field":
            pair.feed(sent(Opcode.TEXT, pair.media(**{one: two})))
        case "edit":
            text = pair.media().decode()
            pair.feed(sent(Opcode.TEXT, (text[:one] + two + text[one + 1 :]).encode()))
        case "raw":
            pair.feed(one)
        case "control":
            pair.feed(sent(one, b""))
        case "fragments":
            text = pair.media()
            pair.feed(sent(Opcode.TEXT, text[:one], fin=False))
            if two:
                pair.feed(sent(Opcode.PING, b"x"))
            pair.feed(sent(Opcode.CONTINUATION, text[one:]))
        case "mark":
            pair.text({"event": "mark", "mark": {"name": f"1.{one * 2400}"}})
        case "key":
            pair.text({"event": "dtmf", "dtmf": {"digit": one}})
        case "stop":
            pair.text({"event": "stop"})
        case "stall":
            pair.twins.do(lambda line: line.leg.unread_since(pair.now))
            pair.now += one * TICK_S
            for _ in range(one):
                pair.feed(sent(Opcode.TEXT, pair.media()))
            pair.twins.do(lambda line: line.socket._read())
            pair.twins.do(lambda line: line.leg.unread_since(None))
        case "say":
            pair.twins.do(lambda line: line.leg.playout.write(tone(one, one)))
        case "cut":
            if one:
                pair.twins.do(lambda line: line.leg.playout.flush())
            else:
                pair.twins.do(lambda line: line.leg.playout.pause())
                pair.tick()
                pair.twins.do(lambda line: line.leg.playout.resume())
        case "tick":
            for _ in range(one):
                pair.tick()
