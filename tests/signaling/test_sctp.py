"""What an association receives, compared with what its peer sent, whatever the network does."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from offhook.signaling import sctp
from offhook.signaling.sctp import DCEP, Data, Inbound, Message, SctpViolation

FIRST = 2**32 - 20
"""The peer's first TSN, so that they begin anew soon."""
TEXT = 51


def fragments(number: int, size: int, stream: int, unordered: bool = False) -> list[Data]:
    """A message whose number its bytes say, in so many chunks; TSNs are set by `numbered`."""
    return [
        Data(0, stream, TEXT, n == 0, n == size - 1, unordered, bytes([number % 256, n % 256]))
        for n in range(size)
    ]


def numbered(messages: list[list[Data]]) -> list[Data]:
    chunks = [chunk for message in messages for chunk in message]
    for n, chunk in enumerate(chunks):
        chunk.tsn = (FIRST + n) % 2**32
    return chunks


def whole(message: list[Data]) -> Message:
    return Message(message[0].stream, TEXT, b"".join(chunk.payload for chunk in message))


MESSAGES = st.lists(
    st.builds(fragments, st.integers(0, 255), st.integers(1, 6), st.integers(0, 3), st.booleans()),
    max_size=30,
)


@given(MESSAGES, st.data())
def test_every_message_comes_once_however_chunks_arrive(messages, data) -> None:
    chunks = numbered(messages)
    inbound = Inbound(FIRST - 1)
    got: list[Message] = []
    twice = data.draw(st.lists(st.sampled_from(chunks), max_size=20)) if chunks else []
    for chunk in data.draw(st.permutations(chunks + twice)):
        got += inbound.receive(chunk)
    assert sorted(map(str, got)) == sorted(str(whole(message)) for message in messages)
    assert inbound.last_tsn == (FIRST - 1 + len(chunks)) % 2**32
    assert inbound.gaps() == []
    assert inbound.window == sctp.MAX_MESSAGE_BYTES + sctp.MAX_EARLY_BYTES


@given(
    st.lists(
        st.builds(fragments, st.integers(0, 255), st.integers(1, 6), st.integers(0, 3)), max_size=30
    ),
    st.data(),
)
def test_ordered_messages_of_a_stream_keep_their_order(messages, data) -> None:
    chunks = numbered(messages)
    inbound = Inbound(FIRST - 1)
    got = [m for chunk in data.draw(st.permutations(chunks)) for m in inbound.receive(chunk)]
    assert got == [whole(message) for message in messages]


@given(MESSAGES, st.data())
def test_gaps_say_what_has_come(messages, data) -> None:
    chunks = numbered(messages)
    inbound = Inbound(FIRST - 1)
    came: set[int] = set()
    for chunk in data.draw(st.permutations(chunks))[: len(chunks) // 2]:
        inbound.receive(chunk)
        came.add((chunk.tsn - FIRST) % 2**32)
        cumulative = (inbound.last_tsn - FIRST + 1) % 2**32
        said = {cumulative - 1 + n for a, b in inbound.gaps() for n in range(a, b + 1)}
        assert said | set(range(cumulative)) == came


@given(MESSAGES, st.data())
def test_what_the_peer_gives_up_is_skipped_and_the_rest_comes(messages, data) -> None:
    chunks = numbered(messages)
    lost = data.draw(st.sets(st.sampled_from(range(len(messages))))) if messages else set()
    inbound = Inbound(FIRST - 1)
    got: list[Message] = []
    gone = {id(chunk) for n in lost for chunk in messages[n][-1:]}
    for chunk in chunks:
        if id(chunk) not in gone:
            got += inbound.receive(chunk)
    if chunks:
        got += inbound.skip(chunks[-1].tsn)
        assert inbound.last_tsn == chunks[-1].tsn
    kept = [whole(message) for n, message in enumerate(messages) if n not in lost]
    assert sorted(map(str, got)) == sorted(map(str, kept))
    assert inbound.gaps() == []


def test_a_skip_far_ahead_costs_no_more_than_what_has_come() -> None:
    inbound = Inbound(FIRST - 1)
    inbound.skip((FIRST + 2**31 - 10) % 2**32)
    assert inbound.last_tsn == (FIRST + 2**31 - 10) % 2**32
    inbound.skip(FIRST)  # an old one
    assert inbound.last_tsn == (FIRST + 2**31 - 10) % 2**32


def test_a_message_without_an_end_is_a_violation_at_the_limit() -> None:
    inbound, payload = Inbound(0), bytes(1024)
    for n in range(sctp.MAX_MESSAGE_BYTES // 1024):
        inbound.receive(Data(n + 1, 1, TEXT, n == 0, False, False, payload))
    assert inbound.window == sctp.MAX_EARLY_BYTES
    with pytest.raises(SctpViolation, match="a message of more than 262144 bytes"):
        inbound.receive(Data(n + 2, 1, TEXT, False, False, False, b"x"))


def test_a_message_of_the_largest_size_is_taken() -> None:
    inbound, size = Inbound(0), sctp.MAX_MESSAGE_BYTES // 1024
    for n in range(size):
        got = inbound.receive(Data(n + 1, 1, TEXT, n == 0, n == size - 1, False, bytes(1024)))
    assert [len(message.data) for message in got] == [sctp.MAX_MESSAGE_BYTES]


@pytest.mark.parametrize("step", [1, 2])
@pytest.mark.parametrize("size", [1, 1100])
def test_what_comes_early_is_bounded_in_bytes_and_in_number(step: int, size: int) -> None:
    inbound = Inbound(0)
    for n in range(100_000):
        inbound.receive(Data(3 + step * n, n % 60_000, TEXT, False, False, False, bytes(size)))
    assert len(inbound._early) <= sctp.MAX_EARLY_TSNS
    assert inbound.window >= sctp.MAX_MESSAGE_BYTES
    assert len(inbound._runs) <= sctp.MAX_EARLY_TSNS
    assert len(inbound.gaps()) <= sctp.MAX_GAPS
    assert inbound.last_tsn == 0


def test_duplicates_that_are_said_are_few() -> None:
    inbound = Inbound(0)
    for _ in range(1000):
        inbound.receive(Data(1, 1, TEXT, True, True, False, b"x"))
    assert inbound.duplicates == [1] * sctp.MAX_DUPLICATES


def test_a_channels_label_is_short() -> None:
    with pytest.raises(SctpViolation, match="a DATA_CHANNEL_OPEN of more than 1024 bytes"):
        Inbound(0).receive(Data(1, 1, DCEP, True, True, False, bytes(1025)))


def test_the_rest_of_a_message_that_was_given_up_is_no_message() -> None:
    inbound = Inbound(0)
    inbound.skip(1)
    assert inbound.receive(Data(2, 1, TEXT, False, True, False, b"x")) == []
    assert inbound.receive(Data(3, 1, TEXT, True, False, False, b"a")) == []
    assert inbound.receive(Data(4, 2, TEXT, False, True, False, b"b")) == []
    assert inbound.receive(Data(5, 1, TEXT, True, True, False, b"c")) == [Message(1, TEXT, b"c")]
