"""Damaged STUN and whatever else comes to the port of all WebRTC calls, over UDP and ICE-TCP.

Calls begin and end all along. Checks of their peers are changed before they are signed, so that
aioice reads them, or after; strangers forge, repeat and flood. No exception may escape, no datagram
take long, and when all calls are over the port must have forgotten them.
"""

import asyncio
import gc
import random
import struct
import sys
import time
from dataclasses import asdict, dataclass, field

from aioice import Candidate, stun

from offhook.signaling.ice.agent_io import IceAgent
from offhook.signaling.ice.demultiplexer import Address
from offhook.signaling.ice.framing import Deframer, FramingError, frame
from offhook.signaling.ice.port_io import IcePort
from tests.fuzz.result import Result, resident_kb

CALLS = 12
ADDRESSES: tuple[Address, ...] = tuple((f"192.0.2.{n}", 1000 + n) for n in range(30))
ATTRIBUTES = {
    "PRIORITY": (0, 1, 2**32 - 1),
    "USE-CANDIDATE": (None,),
    "ICE-CONTROLLING": (0, 2**64 - 1),
    "ICE-CONTROLLED": (0, 2**64 - 1),
    "XOR-MAPPED-ADDRESS": (("192.0.2.1", 1), ("2001:db8::1", 65535)),
    "ERROR-CODE": ((487, "Role Conflict"), (0, ""), (699, "ü")),
    "REALM": ("", "x" * 700),
    "LIFETIME": (0,),
}
UNSIGNED_KINDS = (0x0001, 0x0003, 0x0011, 0x0101, 0x0111, 0x0117, 0x3FFF)


class Sink:
    """A socket that sends nothing."""

    def sendto(self, data: bytes, remote: Address) -> None:
        stun.parse_message(data)  # we send what we would read ourselves


@dataclass(eq=False)
class PeerOfCall:
    agent: IceAgent
    connecting: "asyncio.Task[None]"
    ufrag: str = "peer"
    sent: list[bytes] = field(default_factory=list)

    def check(self, chance: random.Random) -> bytes:
        """A signed request, mostly one that a peer would send."""
        message = stun.Message(stun.Method.BINDING, stun.Class.REQUEST)
        name = self.ufrag if chance.random() < 0.9 else ""
        message.attributes["USERNAME"] = f"{self.agent.local_username}:{name}"
        for _ in range(chance.randrange(4)):
            kind = chance.choice(list(ATTRIBUTES))
            message.attributes[kind] = chance.choice(ATTRIBUTES[kind])
        if chance.random() < 0.1:
            message.message_method = chance.choice(list(stun.Method))
        message.add_message_integrity(self.agent.local_password.encode())
        return bytes(message)


def _stun(chance: random.Random) -> bytes:
    """Attributes of any length under a header that is right, or nearly."""
    attributes = b""
    for _ in range(chance.randrange(6)):
        kind = chance.choice([6, 8, 9, 0x20, 0x24, 0x25, 0x8028, 0x8029, 0x802A, 0x802B, 0x7777])
        value = chance.randbytes(chance.randrange(25))
        length = len(value) if chance.random() < 0.9 else chance.randrange(65536)
        attributes += struct.pack("!HH", kind, length) + value + bytes(-len(value) % 4)
    length = len(attributes) if chance.random() < 0.9 else chance.randrange(65536)
    header = struct.pack("!HHI", chance.choice(UNSIGNED_KINDS), length, stun.COOKIE)
    return header + chance.randbytes(12) + attributes


def _damaged(data: bytes, chance: random.Random) -> bytes:
    changed = bytearray(data)
    for _ in range(chance.randrange(1, 4)):
        if changed:
            changed[chance.randrange(len(changed))] ^= 1 << chance.randrange(8)
    return bytes(
        changed[: chance.randrange(len(changed) + 1)] if chance.random() < 0.2 else changed
    )


class _Run:
    def __init__(self, messages: int, seed: int, progress: bool) -> None:
        self._chance, self._messages, self._progress = random.Random(seed), messages, progress
        self.result = Result("ice", most_growth_kb=16 * 1024)  # of aioice's connections
        self._port = IcePort(7861)
        self._port.tcp.addresses.append("127.0.0.1")  # not bound: nothing here has a socket
        self._locals = [self._port.demultiplexer.open_local(Sink()) for _ in range(2)]
        self._calls: list[PeerOfCall] = []

    async def _begin(self) -> None:
        agent = IceAgent(self._port, [])
        agent.is_remote_ssrc = lambda ssrc: ssrc % 5 == 0
        await agent.gather_candidates()
        agent.remote_username, agent.remote_password = "peer", "p" * 24
        await agent.add_remote_candidate(
            Candidate("1", 1, "udp", 1, *self._chance.choice(ADDRESSES), "host")
        )
        self._calls.append(PeerOfCall(agent, asyncio.create_task(agent.connect())))

    async def _end(self, call: PeerOfCall) -> None:
        self._calls.remove(call)
        await call.agent.close()
        await asyncio.gather(call.connecting, return_exceptions=True)

    async def _restart(self, call: PeerOfCall) -> None:
        call.ufrag = self._chance.choice(["peer", "again"])
        await call.agent.connections.restart(call.ufrag, "q" * 24)
        if self._chance.random() < 0.5:
            await call.agent.connections.cancel_restart()
            call.ufrag = "peer"

    def _datagram(self) -> bytes:
        chance, call = self._chance, self._chance.choice(self._calls)
        match chance.randrange(8):
            case 0 | 1:
                data = call.check(chance)
                call.sent = [*call.sent[-20:], data]
                return data
            case 2:
                return _damaged(call.check(chance), chance)
            case 3:
                return chance.choice(call.sent or [b""])  # repeated
            case 4:
                return _stun(chance)
            case 5:
                return bytes([chance.randrange(4, 256)]) + chance.randbytes(chance.randrange(200))
            case 6:
                expected = list(self._port.demultiplexer._expected) or [bytes(12)]
                response = stun.Message(
                    stun.Method.BINDING,
                    chance.choice([stun.Class.RESPONSE, stun.Class.ERROR]),
                    chance.choice(expected),
                )
                kind = chance.choice(list(ATTRIBUTES))
                response.attributes[kind] = chance.choice(ATTRIBUTES[kind])
                response.add_message_integrity(b"p" * 24)
                return bytes(response)
        return chance.randbytes(chance.randrange(60))

    def _receive(self, data: bytes) -> None:
        chance, mux = self._chance, self._port.demultiplexer
        local, remote = chance.choice(self._locals), chance.choice(ADDRESSES)
        gc.disable()  # its time is nobody's
        started = time.thread_time()
        try:
            if chance.random() < 0.2:  # in pieces, over TCP
                stream, deframer = frame(data[:3000]), Deframer()
                cut = chance.randrange(len(stream) + 1)
                for piece in (stream[:cut], stream[cut:]):
                    for packet in deframer.receive(piece):
                        local.receive(packet, remote, started)
            else:
                local.receive(data, remote, started)
        except FramingError:
            self.result.counts["framing"] += 1
        except Exception as error:
            self.result.raised(error, data)
        took = time.thread_time() - started
        gc.enable()
        self.result.spent += took
        if took * 1000 > self.result.slowest_ms:
            self.result.slowest_ms, self.result.slowest = round(took * 1000, 3), repr(data)
        assert len(mux) <= 2 * CALLS

    async def run(self) -> Result:
        loop, chance, result = asyncio.get_running_loop(), self._chance, self.result
        loop.set_exception_handler(
            lambda _, context: result.raised(context.get("exception") or Exception(), context)
        )
        grown_from = resident_kb()
        for number in range(self._messages):
            result.messages += 1
            if number == self._messages // 10:
                grown_from = resident_kb()
            if len(self._calls) < CALLS:
                await self._begin()
            elif chance.random() < 0.01:
                await self._end(chance.choice(self._calls))
            elif chance.random() < 0.01:
                await self._restart(chance.choice(self._calls))
            if not self._calls:
                await self._begin()
            self._receive(self._datagram())
            if number % 20 == 0:
                await asyncio.sleep(0)
            if chance.random() < 0.001:
                other = self._locals.pop()
                for session in set(other.paths.values()):
                    session.receiver.close_local(other)
                self._port.demultiplexer.close_local(other)
                self._locals.append(self._port.demultiplexer.open_local(Sink()))
            if self._progress and number % 10_000 == 0:
                print(f"\r{number}", end="", file=sys.stderr)
        for call in tuple(self._calls):
            await self._end(call)
        mux = self._port.demultiplexer
        result.counts.update(asdict(mux.dropped))
        left = {
            "sessions": len(mux),
            "responses waited for": len(mux._expected),
            "addresses": sum(len(local.paths) for local in self._locals),
            "tasks": len(asyncio.all_tasks()) - 1,
        }
        result.left = {what: number for what, number in left.items() if number}
        result.finish(grown_from)
        return result


def run(messages: int, seed: int, progress: bool = False) -> Result:
    """So many datagrams of this seed."""
    return asyncio.run(_run(messages, seed, progress))


async def _run(messages: int, seed: int, progress: bool) -> Result:
    return await _Run(messages, seed, progress).run()
