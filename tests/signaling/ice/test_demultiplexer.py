"""The demultiplexer alone: no sockets, and a clock that the test sets."""

import struct

import pytest
from aioice import stun
from hypothesis import given
from hypothesis import strategies as st

from offhook.signaling.ice.demultiplexer import (
    MAX_ADDRESSES,
    MAX_TOMBSTONES,
    TOMBSTONE_S,
    Demultiplexer,
    Dropped,
)

PASSWORD = "p" * 24
ALICE, BOB, STRANGER = ("192.0.2.1", 1000), ("192.0.2.2", 2000), ("192.0.2.9", 9)
DTLS, RTP = bytes([22, 254, 253]), bytes([128, 111]) + bytes(10)


class Agent:
    """Notes what it gets. Its peer signs with PASSWORD."""

    def __init__(self) -> None:
        self.data: list[bytes] = []
        self.requests: list[tuple[stun.Message, tuple[str, int]]] = []
        self.responses: list[tuple[str, int]] = []
        self.ssrc = 0x0A0B0C0D
        self.checked: list[tuple[str, int]] = []

    def receive_data(self, data: bytes) -> None:
        self.data.append(data)

    def receive_request(self, message, local, remote) -> None:
        self.requests.append((message, remote))

    def receive_response(self, message, local, remote) -> bool:
        right = message.check_message_integrity(PASSWORD.encode())
        if right:
            self.responses.append(remote)
        return right

    def close_local(self, local) -> None:
        pass

    def sends(self, ssrc) -> bool:
        return ssrc == self.ssrc

    def check_address(self, local, remote) -> None:
        self.checked.append(remote)


def check(ufrag: str, password: str = PASSWORD, priority: bool = True, **more: object) -> bytes:
    """A connectivity check to the agent with this ufrag."""
    message = stun.Message(stun.Method.BINDING, stun.Class.REQUEST)
    message.attributes["USERNAME"] = f"{ufrag}:peer"
    if priority:
        message.attributes["PRIORITY"] = 1
    message.attributes |= more
    if password:
        message.add_message_integrity(password.encode())
    return bytes(message)


def response(transaction_id: bytes, password: str = PASSWORD) -> bytes:
    message = stun.Message(stun.Method.BINDING, stun.Class.RESPONSE, transaction_id)
    message.attributes["XOR-MAPPED-ADDRESS"] = ("127.0.0.1", 1)
    message.add_message_integrity(password.encode())
    return bytes(message)


class Port:
    """A demultiplexer with one local socket, and agents by ufrag."""

    def __init__(self, *ufrags: str) -> None:
        self.mux = Demultiplexer()
        self.local = self.mux.open_local()
        self.agents = {ufrag: Agent() for ufrag in ufrags}
        self.sessions = {u: self.mux.register(a, u, PASSWORD) for u, a in self.agents.items()}
        self.now = 0.0

    def receive(self, data: bytes, remote=ALICE, local=None) -> None:
        (local or self.local).receive(data, remote, self.now)

    def end(self, ufrag: str, heir: str = "") -> None:
        self.mux.unregister(self.sessions[ufrag], self.now, self.sessions.get(heir))

    def unlearned(self) -> bool:
        return not self.local.paths and not len(self.mux)


def test_an_address_is_learned_from_a_check_and_carries_data_then() -> None:
    port = Port("alice", "bob")
    port.receive(RTP)
    assert port.mux.dropped == Dropped(unknown_address=1)
    port.receive(check("alice"), ALICE)
    port.receive(check("bob"), BOB)
    port.receive(RTP, ALICE)
    port.receive(DTLS, BOB)
    assert port.agents["alice"].data == [RTP]
    assert port.agents["bob"].data == [DTLS]


@pytest.mark.parametrize("password", ["q" * 24, ""])
def test_a_stranger_who_knows_the_ufrag_gets_no_path_and_no_answer(password: str) -> None:
    port = Port("alice")
    port.receive(check("alice"), ALICE)
    port.receive(check("alice", password), STRANGER)
    port.receive(RTP, STRANGER)
    assert len(port.agents["alice"].requests) == 1
    assert port.agents["alice"].data == []
    assert port.mux.dropped == Dropped(unauthenticated=1, unknown_address=1)


def test_a_username_behind_the_signature_is_none() -> None:
    """What follows MESSAGE-INTEGRITY is not signed (RFC 8489 §9): not even by whoever signed."""
    port = Port("alice")
    message = stun.Message(stun.Method.BINDING, stun.Class.REQUEST)
    message.add_message_integrity(PASSWORD.encode())
    del message.attributes["FINGERPRINT"]
    name = b"alice:me"
    data = bytes(message) + struct.pack("!HH", 6, len(name)) + name
    port.receive(data[:2] + struct.pack("!H", len(data) - 20) + data[4:], STRANGER)
    assert port.agents["alice"].requests == []
    assert not port.local.paths


def test_a_reused_source_port_belongs_to_the_call_that_checks_from_it() -> None:
    """Not to the one that had it, which mediasoup once answered with 401."""
    port = Port("alice", "bob")
    port.receive(check("alice"))
    port.receive(check("bob"))
    port.receive(RTP)
    assert (port.agents["alice"].data, port.agents["bob"].data) == ([], [RTP])
    port.end("alice")
    port.receive(DTLS)
    assert port.agents["bob"].data == [RTP, DTLS]


def test_the_same_address_on_another_socket_is_another_path() -> None:
    port = Port("alice", "bob")
    other = port.mux.open_local()
    port.receive(check("alice"))
    port.receive(check("bob"), local=other)
    port.receive(RTP)
    port.receive(DTLS, local=other)
    assert (port.agents["alice"].data, port.agents["bob"].data) == ([RTP], [DTLS])
    port.mux.close_local(other)
    port.receive(DTLS, local=other)
    assert port.mux.dropped.unknown_address == 1
    port.receive(RTP)
    assert port.agents["alice"].data == [RTP, RTP]


def test_a_check_without_priority_gets_one() -> None:
    port = Port("alice")
    port.receive(check("alice", priority=False))
    ((message, _),) = port.agents["alice"].requests
    assert message.attributes["PRIORITY"] == (110 << 24) + (65535 << 8) + 255


def test_a_response_is_found_by_its_transaction_and_learned_if_it_is_signed() -> None:
    """An ICE-lite peer sends no checks; responses have no USERNAME."""
    port = Port("alice")
    ours, others = bytes(12), b"1" * 12
    port.mux.expect(ours, port.sessions["alice"])
    port.receive(response(others), BOB)
    port.receive(response(ours, "q" * 24), STRANGER)
    port.receive(RTP, STRANGER)
    assert port.agents["alice"].responses == []
    assert port.mux.dropped == Dropped(unexpected=1, unauthenticated=1, unknown_address=1)
    port.receive(response(ours), BOB)
    port.receive(RTP, BOB)
    assert port.agents["alice"].responses == [BOB]
    assert port.agents["alice"].data == [RTP]
    port.mux.forget(ours)
    port.receive(response(ours), BOB)
    assert port.agents["alice"].responses == [BOB]


def rtp(ssrc: int) -> bytes:
    return struct.pack("!BBHII", 128, 111, 1, 2, ssrc)


def rtcp(ssrc: int) -> bytes:
    return struct.pack("!BBHII", 128, 200, 1, ssrc, 0)


@pytest.mark.parametrize("packet", [rtp, rtcp])
def test_media_from_an_unknown_address_has_the_address_checked(packet) -> None:
    """A NAT has given the peer another port. The packet itself is dropped: anybody can know an
    SSRC."""
    port = Port("alice", "bob")
    port.agents["bob"].ssrc = 7
    for step, ssrc in enumerate((8, 7, 7)):
        port.now = float(step)
        port.receive(packet(ssrc), BOB)
    assert port.agents["bob"].checked == [BOB, BOB]
    assert port.agents["alice"].checked == []
    assert port.agents["bob"].data == []
    assert port.mux.dropped == Dropped(unknown_address=3)


def test_a_flood_from_unknown_addresses_is_not_looked_at() -> None:
    port = Port("alice")
    for number in range(1000):
        port.now = number * 0.0001
        port.receive(rtp(0x0A0B0C0D), ("192.0.2.1", 1 + number))
    assert len(port.agents["alice"].checked) <= 11
    for number in range(1000):
        port.now += 1
        port.receive(rtp(0x0A0B0C0D), ("192.0.2.1", 1 + number))
    assert len(set(port.agents["alice"].checked)) == MAX_ADDRESSES


def test_a_closed_call_leaves_nothing_behind_but_its_tombstone() -> None:
    port = Port("alice")
    port.mux.expect(bytes(12), port.sessions["alice"])
    port.receive(check("alice"), ALICE)
    port.receive(check("alice"), BOB)
    port.end("alice")
    port.end("alice")
    assert port.unlearned()
    port.receive(response(bytes(12)), ALICE)
    port.receive(check("alice"), ALICE)
    port.receive(RTP, ALICE)
    assert port.mux.dropped == Dropped(late=1, unexpected=1, unknown_address=1)
    port.now = TOMBSTONE_S + 1
    port.receive(check("alice"), ALICE)
    assert port.mux.dropped.unknown_ufrag == 1
    assert port.agents["alice"].data == []


def test_tombstones_are_bounded() -> None:
    port = Port()
    for number in range(MAX_TOMBSTONES + 50):
        port.mux.unregister(port.mux.register(Agent(), f"u{number}", PASSWORD), port.now)
    assert len(port.mux._tombstones) == MAX_TOMBSTONES
    port.now = TOMBSTONE_S + 1
    port.mux.unregister(port.mux.register(Agent(), "last", PASSWORD), port.now)
    assert len(port.mux._tombstones) == 1


def test_after_a_restart_the_addresses_of_the_old_credentials_are_the_new_ones() -> None:
    port = Port("old", "new")
    port.receive(check("old"), ALICE)
    port.receive(check("new"), BOB)
    port.end("old", heir="new")
    for remote in (ALICE, BOB):
        port.receive(RTP, remote)
    assert port.agents["new"].data == [RTP, RTP]
    port.end("new")
    assert port.unlearned()


def test_an_heir_that_has_ended_inherits_nothing() -> None:
    port = Port("old", "new")
    port.receive(check("old"), ALICE)
    port.end("new")
    port.end("old", heir="new")
    assert port.unlearned()


def test_a_peer_has_a_limited_number_of_addresses() -> None:
    port = Port("alice")
    for number in range(MAX_ADDRESSES + 10):
        port.receive(check("alice"), ("192.0.2.1", 1 + number))
    assert len(port.agents["alice"].requests) == MAX_ADDRESSES
    assert len(port.local.paths) == MAX_ADDRESSES
    assert port.mux.dropped == Dropped(too_many_addresses=10)
    port.receive(check("alice"), ("192.0.2.1", 1))  # those that it has still work
    assert len(port.agents["alice"].requests) == MAX_ADDRESSES + 1


def test_credentials_are_long_and_never_twice() -> None:
    mux, seen = Demultiplexer(), set()
    for _ in range(200):
        ufrag, password = mux.credentials()
        assert len(ufrag) >= 8
        assert len(password) >= 22
        mux.register(Agent(), ufrag, password)
        seen.add(ufrag)
    assert len(seen) == 200
    with pytest.raises(ValueError, match="in use"):
        mux.register(Agent(), ufrag, password)


attribute = st.builds(
    lambda kind, value: struct.pack("!HH", kind, len(value)) + value + bytes(-len(value) % 4),
    st.sampled_from([6, 8, 9, 0x20, 0x24, 0x25, 0x8028, 0x8029, 0x802A, 0x7777]),
    st.binary(max_size=24),
)
stun_like = st.builds(
    lambda kind, attributes, more: (
        struct.pack("!HHI12s", kind, len(attributes) + more, stun.COOKIE, bytes(12)) + attributes
    ),
    st.sampled_from([0x0001, 0x0011, 0x0101, 0x0111, 0x0003, 0x0FFF]),
    st.builds(b"".join, st.lists(attribute, max_size=5)),
    st.sampled_from([0, 0, 0, 1, 4]),
)
damaged = st.builds(
    lambda at, bits: (lambda d: d[:at] + bytes([d[at] ^ bits]) + d[at + 1 :])(check("alice")),
    st.integers(0, 67),  # all but the FINGERPRINT, which nobody signs
    st.integers(1, 255),
)
anything = st.one_of(st.binary(max_size=80), stun_like, damaged)


@given(st.lists(st.tuples(anything, st.sampled_from([ALICE, BOB, STRANGER])), max_size=20))
def test_no_datagram_raises_or_is_taken_for_another(datagrams) -> None:
    port = Port("alice", "bob")
    port.mux.expect(bytes(12), port.sessions["bob"])
    port.receive(check("bob"), BOB)
    for data, remote in datagrams:
        port.receive(data, remote)
    bob, alice = port.agents["bob"], port.agents["alice"]
    assert len(bob.requests) == 1
    assert port.local.paths[BOB] is port.sessions["bob"]
    assert bob.data == [d for d, remote in datagrams if remote == BOB and d and d[0] > 3]
    assert alice.requests == []
    port.end("alice")
    port.end("bob")
    assert port.unlearned()


steps = st.lists(
    st.tuples(
        st.sampled_from(["check", "check", "data", "end", "restart"]),
        st.integers(0, 3),
        st.sampled_from([ALICE, BOB, STRANGER]),
    ),
    max_size=40,
)


@given(steps)
def test_each_address_has_one_owner_the_last_that_checked(steps) -> None:
    """Against a table that is kept in the simplest way."""
    port = Port(*(f"call{n}" for n in range(4)))
    owner: dict[tuple[str, int], str] = {}
    for what, number, remote in steps:
        ufrag, heir = f"call{number}", f"call{(number + 1) % 4}"
        alive = port.mux._sessions.keys()
        before = len(port.agents[owner[remote]].data) if remote in owner else 0
        match what:
            case "check":
                if ufrag.encode() in alive:
                    owner[remote] = ufrag
                port.receive(check(ufrag), remote)
            case "data":
                port.receive(RTP, remote)
                if remote in owner:
                    assert len(port.agents[owner[remote]].data) == before + 1
            case "end":
                owner = {a: u for a, u in owner.items() if u != ufrag}
                port.end(ufrag)
            case "restart":
                kept = heir.encode() in alive and ufrag.encode() in alive
                owner = {
                    a: heir if u == ufrag else u for a, u in owner.items() if kept or u != ufrag
                }
                port.end(ufrag, heir)
        assert {a: s.ufrag.decode() for a, s in port.local.paths.items()} == owner
        for session in port.sessions.values():
            assert {a for _, a in session.paths} == {
                a for a, s in port.local.paths.items() if s is session
            }
