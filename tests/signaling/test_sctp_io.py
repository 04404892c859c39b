"""Associations over a real line, and the joints of aiortc 1.16.0's SCTP that `sctp_io` relies on.

The tests of names fail when a new version has moved its joint: read sctp_io.py anew, then change
the pins.
"""

import asyncio
import inspect
import re
from functools import partial
from importlib.metadata import version

import aiortc.rtcpeerconnection
import aiortc.rtcsctptransport as aiortc_sctp
import pytest
from aiortc import RTCSctpTransport

from offhook.signaling.event_channel_io import MAX_INBOX_CHARACTERS, EventChannel
from offhook.signaling.peer_io import PeerLeg
from offhook.signaling.sctp import MAX_MESSAGE_BYTES
from offhook.signaling.sctp_io import Association, parameters
from tests.signaling.test_peer import call
from tests.support.listening import Listening
from tests.support.waiting import HANGS_S, until

pytestmark = pytest.mark.usefixtures("loopback", "nothing_left")


def source(name):
    return inspect.getsource(getattr(RTCSctpTransport, name))


def test_what_is_replaced_is_there_and_is_called():
    assert version("aiortc") == "1.16.0"
    replaced = {
        name
        for name, value in vars(Association).items()
        if callable(value) and not name.startswith("__") and name not in ("_refuse", "_deliver")
    }
    for name in replaced:
        ours, theirs = getattr(Association, name), getattr(RTCSctpTransport, name)
        assert [*inspect.signature(ours).parameters] == [*inspect.signature(theirs).parameters]
    everything = inspect.getsource(RTCSctpTransport)
    for name in replaced - {"_handle_data", "_data_channel_send"}:
        assert f"self.{name}(" in everything
    assert "_data_channel_send(self, data)" in inspect.getsource(aiortc.RTCDataChannel.send)
    assert "parse_packet(data)" in source("_handle_data")
    assert "decode_params(body)" in inspect.getsource(aiortc_sctp.BaseParamsChunk.__init__)
    assert "decode_params(body[16:])" in inspect.getsource(aiortc_sctp.BaseInitChunk.__init__)
    assert "USERDATA_MAX_LENGTH" in source("_send")
    assert "LOCAL_MAX_MESSAGE_SIZE" in source("getCapabilities")
    assert "RTCSctpTransport(dtlsTransport)" in inspect.getsource(aiortc.rtcpeerconnection)


def test_nobody_else_reads_what_aiortc_keeps_of_chunks():
    """All that looks at its lists of fragments and at TSNs in them is replaced."""
    of_lists = {"_inbound_streams", "_sack_misordered", "_sack_duplicates", "_advertised_rwnd"}
    replaced = {"_receive_data_chunk", "_receive_forward_tsn_chunk", "_send_sack"}
    helpers = {"_mark_received", "_get_inbound_stream", "__init__"}
    for name, method in inspect.getmembers(RTCSctpTransport, inspect.isfunction):
        used = {m for m in of_lists if re.search(rf"self\.{m}\b", inspect.getsource(method))}
        if name not in replaced | helpers:
            assert used <= {"_advertised_rwnd"} or name == "_reset_deferred_streams", name
    assert "self._inbound_streams.pop(stream_id, None)" in source("_reset_deferred_streams")
    for name in ("_mark_received", "_get_inbound_stream"):
        callers = [
            n
            for n, method in inspect.getmembers(RTCSctpTransport, inspect.isfunction)
            if f"self.{name}(" in inspect.getsource(method)
        ]
        assert set(callers) <= replaced


async def test_every_association_of_the_process_is_one_of_ours():
    async with call() as (caller, callee):
        assert type(caller._pc.sctp) is type(callee._pc.sctp) is Association
        assert (caller._pc.sctp.call_id, callee._pc.sctp.call_id) == ("caller", "callee")
        assert caller._pc.sctp._advertised_rwnd == 2 * MAX_MESSAGE_BYTES


@pytest.mark.parametrize("body", [b"\0\1\0\0", b"\0\1\0\3", b"\0\1\0\5", b"\0\1\0\4\0\2\0\0"])
def test_a_parameter_of_another_length_than_it_has_is_refused(body):
    with pytest.raises(ValueError, match="a parameter of"):
        parameters(body)


def test_parameters_are_read_as_aiortc_writes_them():
    given = [(7, b""), (9, b"abc"), (0xC000, b"abcd"), (1, b"a")]
    assert parameters(aiortc_sctp.encode_params(given)) == given


class Hearing(PeerLeg):
    """An end that keeps its messages."""

    def __init__(self, name):
        super().__init__(name)
        self.got = []
        self.listener = Listening(on_message=self.got.append)


async def test_a_message_of_the_largest_size_comes_and_a_longer_one_closes_the_channel():
    caller, callee = PeerLeg("caller"), Hearing("callee")
    async with call(caller=caller, callee=callee):
        await until(lambda: caller.messages.channel.readyState == "open")
        text = "ü" * (MAX_MESSAGE_BYTES // 2)
        caller.send_message(text)
        await until(lambda: callee.got)
        assert callee.got == [text]
        caller._pc.sctp._remote_max_message_size = 0  # a peer that ignores our SDP
        caller.send_message(text + "x")
        await until(lambda: caller.messages.channel.readyState == "closed")
        assert callee.messages.channel.readyState == "closed"
        assert callee.got == [text]
        assert not callee.send_message("{}")
        heard = callee.statistics().packets_received
        await until(lambda: callee.statistics().packets_received > heard + 5)  # the call goes on
    assert f"a=max-message-size:{MAX_MESSAGE_BYTES}" in callee._pc.localDescription.sdp


async def test_a_line_that_loses_and_repeats_packets_delivers_every_message():
    caller, callee = PeerLeg("caller"), Hearing("callee")
    async with call(caller=caller, callee=callee):
        await until(lambda: caller.messages.channel.readyState == "open")
        dtls, count = caller._pc.sctp.transport, 0
        send = dtls._send_data

        async def lossy(data):
            nonlocal count
            count += 1
            if count % 5:
                await send(data)
            if count % 7 == 0:
                await send(data)

        dtls._send_data = lossy
        sent = [f"{n} " + "x" * (n * 97 % 9000) for n in range(60)]
        for text in sent:
            caller.send_message(text)
        await until(lambda: len(callee.got) == len(sent))
        assert callee.got == sent
        dtls._send_data = send


async def test_messages_longer_than_the_peer_takes_are_dropped_and_the_call_goes_on():
    caller, callee = Hearing("caller"), PeerLeg("callee")
    change = partial(re.sub, r"a=max-message-size:\d+", "a=max-message-size:9")
    async with call(change, caller=caller, callee=callee):
        await until(
            lambda: (
                callee.messages.channel is not None and callee.messages.channel.readyState == "open"
            )
        )
        callee.send_message("more than nine bytes")
        callee.send_message("nine")
        await until(lambda: caller.got)
        assert caller.got == ["nine"]
        assert callee.closed is None


async def test_a_program_that_sends_faster_than_it_is_served_loses_its_channel():
    class Channel:
        readyState, bufferedAmount, closed = "open", 0, False

        def on(self, event, handler):
            setattr(self, f"on_{event}", handler)

        def close(self):
            self.closed = True

    channel = Channel()
    events = EventChannel(channel)
    served = []

    async def serve(text):
        served.append(len(text))

    text = "x" * (MAX_INBOX_CHARACTERS // 16)
    for _ in range(16):
        channel.on_message(text)
    assert not channel.closed
    channel.on_message("y")
    assert channel.closed
    await asyncio.wait_for(events.run(serve), HANGS_S)
    assert served == [len(text)] * 16


async def test_packets_that_come_again_with_the_init_begin_nothing_anew(monkeypatch):
    """A peer sends its INIT again when the answer is late, as from a busy machine."""
    caller, callee, packets = PeerLeg("caller"), Hearing("callee"), []
    handle = Association._handle_data

    async def keep(association, data):
        if association.call_id == "callee":
            packets.append(data)
        await handle(association, data)

    monkeypatch.setattr(Association, "_handle_data", keep)
    async with call(caller=caller, callee=callee):
        await until(lambda: caller.messages.channel.readyState == "open")
        caller.send_message("once")
        await until(lambda: callee.got)
        chunks = [chunk for data in packets for chunk in aiortc_sctp.parse_packet(data)[3]]
        assert any(type(chunk) is aiortc_sctp.InitChunk for chunk in chunks)
        for data in tuple(packets):
            await handle(callee._pc.sctp, data)
        caller.send_message("twice")
        await until(lambda: len(callee.got) > 1)
        assert callee.got == ["once", "twice"]
        assert caller.messages.channel.readyState == "open"
