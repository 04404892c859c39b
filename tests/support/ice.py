"""Stock aiortc peers that call a port, and a NAT before one."""

import asyncio
import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
from aiortc import (
    RTCBundlePolicy,
    RTCConfiguration,
    RTCPeerConnection,
    RTCSessionDescription,
)
from aiortc.mediastreams import AudioStreamTrack, MediaStreamError, MediaStreamTrack

from offhook.media.clock_io import PacketClock
from offhook.media.pcm import RATE_OUT, Pcm
from offhook.signaling.ice.port_io import IcePort
from offhook.signaling.peer_io import PeerLeg
from tests.support.waiting import until

BUNDLED = RTCConfiguration(bundlePolicy=RTCBundlePolicy.MAX_BUNDLE)
"""With one transport from the start, as browsers are set up for calls."""


def unchanged(sdp: str) -> str:
    return sdp


def bare(sdp: str) -> str:
    """Without candidates and their end, as openai-agents-js sends its offer."""
    return re.sub(r"a=(candidate:[^\r]*|end-of-candidates)\r\n", "", sdp)


def only(transport: str, sdp: str) -> str:
    """With candidates of one transport alone."""
    return re.sub(rf"a=candidate:\S+ \d+ (?!{transport})[^\r]*\r\n", "", sdp)


def tone(hz: float, seconds: float) -> Pcm:
    times = np.arange(int(seconds * RATE_OUT)) / RATE_OUT
    return (10_000 * np.sin(2 * np.pi * hz * times)).astype(np.int16)


@dataclass
class Caller:
    """A stock aiortc peer that says silence, and the leg that answered it."""

    leg: PeerLeg
    pc: RTCPeerConnection = field(default_factory=partial(RTCPeerConnection, BUNDLED))
    heard: int = 0
    """Loud samples."""
    listening: "asyncio.Task[None] | None" = None

    async def call(
        self,
        change: Callable[[str], str] = unchanged,
        change_answer: Callable[[str], str] = unchanged,
    ) -> str:
        """Calls the leg; returns its answer."""
        self.pc.addTrack(AudioStreamTrack())
        self.pc.createDataChannel("chat")
        self.pc.on("track", self._listen)
        await self.pc.setLocalDescription(await self.pc.createOffer())
        answer = await self.leg.answer(change(self.pc.localDescription.sdp))
        changed = RTCSessionDescription(change_answer(answer), "answer")
        await self.pc.setRemoteDescription(changed)
        return answer

    def _listen(self, track: MediaStreamTrack) -> None:
        async def listen() -> None:
            try:
                while True:
                    frame: Any = await track.recv()
                    self.heard += int(np.sum(np.abs(frame.to_ndarray().astype(int)) > 1500))
            except MediaStreamError:
                pass

        self.listening = asyncio.create_task(listen())

    @property
    def ice(self) -> Any:
        """aiortc's transport."""
        return self.pc.getTransceivers()[0].receiver.transport.transport

    @property
    def port(self) -> int:
        """The peer's."""
        number: int = self.ice._connection._nominated[1].local_candidate.port
        return number

    async def nominate(self) -> None:
        """Checks and nominates its path again, as browsers do each 2.5 s."""
        connection = self.ice._connection
        pair = connection._nominated[1]
        await pair.protocol.request(
            connection.build_request(pair, nominate=True),
            pair.remote_addr,
            integrity_key=connection.remote_password.encode(),
        )

    async def close(self) -> None:
        await self.pc.close()
        await self.leg.hang_up("test over")


@asynccontextmanager
async def calls(
    port: IcePort, number: int, change: Callable[[str], str] = unchanged
) -> AsyncIterator[list[Caller]]:
    """So many connected calls, each with our clock."""
    clock = PacketClock()
    clock.add_source(port)
    callers = [Caller(PeerLeg(f"callee {n}", ice_port=port)) for n in range(number)]
    try:
        await asyncio.gather(*(caller.call(change) for caller in callers))
        await until(lambda: all(caller.leg.connected for caller in callers), 60)
        for caller in callers:
            clock.add(caller.leg)
        yield callers
    finally:
        await asyncio.gather(*(caller.close() for caller in callers))
        for caller in callers:
            clock.remove(caller.leg)


async def talk(*callers: Caller) -> None:
    """Each hears a tone of its leg, and its leg gets its packets."""
    before = [(c.leg.statistics().packets_received, c.heard) for c in callers]
    for caller in callers:
        caller.leg.playout.write(tone(440, 2))

    def all_heard() -> bool:
        return all(
            c.leg.statistics().packets_received > received + 10 and c.heard > heard + 20_000
            for c, (received, heard) in zip(callers, before, strict=True)
        )

    await until(all_heard, 60)


class _Datagrams(asyncio.DatagramProtocol):
    def __init__(self, receive: Callable[[bytes, Any], None]) -> None:
        self._receive = receive

    def datagram_received(self, data: bytes, addr: Any) -> None:
        self._receive(data, addr)


async def datagrams(receive: Callable[[bytes, Any], None]) -> asyncio.DatagramTransport:
    """A UDP socket of this machine whose datagrams are handed to `receive`."""
    transport, _ = await asyncio.get_running_loop().create_datagram_endpoint(
        lambda: _Datagrams(receive), local_addr=("127.0.0.1", 0)
    )
    return transport


class Nat:
    """A NAT between one caller and a port: the caller talks to `inside`, and the port sees an
    address that `rebind` changes."""

    inside: asyncio.DatagramTransport
    outside: asyncio.DatagramTransport

    def __init__(self, port: int) -> None:
        self._server = "127.0.0.1", port
        self.packets = 0
        """From the caller."""
        self._caller: Any = None

    async def open(self) -> "Nat":
        self.inside = await datagrams(self._out)
        self.outside = await datagrams(self._in)
        return self

    def _out(self, data: bytes, addr: Any) -> None:
        self._caller = addr
        self.packets += 1
        self.outside.sendto(data, self._server)

    def _in(self, data: bytes, addr: Any) -> None:
        if self._caller is not None:
            self.inside.sendto(data, self._caller)

    async def rebind(self) -> None:
        """What a NAT does when its mapping expires."""
        old, self.outside = self.outside, await datagrams(self._in)
        old.close()

    @property
    def address(self) -> tuple[str, int]:
        """As the port sees the caller."""
        host, number = self.outside.get_extra_info("sockname")
        return host, number

    @property
    def port(self) -> int:
        """As the caller sees the port."""
        number: int = self.inside.get_extra_info("sockname")[1]
        return number

    def before(self, answer: str) -> str:
        """The answer with the NAT's address in place of ours."""
        number = self._server[1]
        return only("udp", answer).replace(f"127.0.0.1 {number} typ", f"127.0.0.1 {self.port} typ")

    def close(self) -> None:
        self.inside.close()
        self.outside.close()
