import pytest
from hypothesis import given
from hypothesis import strategies as st

from offhook.telephony.sip.messages.grammar import SipError
from offhook.telephony.sip.messages.message import Request, Response, respond
from offhook.telephony.sip.sessions.reliable import (
    MAX_WAITING,
    RAck,
    ReliableReceiver,
    ReliableSender,
    Retransmission,
    rseq_of,
)
from tests.telephony.sip.session_peers import made

INVITE = made("INVITE", [], cseq=5)


def ringing(body: bytes = b"") -> Response:
    return respond(INVITE, 183, to_tag="us", body=body)


def prack(rack: str) -> Request:
    return made("PRACK", [("RAck", rack)])


def times(repetition: Retransmission) -> list[float]:
    sent = []
    while (at := repetition.get_timer()) < repetition.deadline:
        if repetition.due(at):
            sent.append(at)
    return sent


def test_a_2xx_is_repeated_at_t1_doubling_to_t2_for_64_t1() -> None:
    sent = times(Retransmission(respond(INVITE, 200), 0.0))
    assert sent == [0.5, 1.5, 3.5, 7.5, 11.5, 15.5, 19.5, 23.5, 27.5, 31.5]


def test_a_provisional_response_is_repeated_ever_more_slowly() -> None:
    sender = ReliableSender(INVITE, 10)
    assert sender.send(ringing(), 0.0) is not None
    sent = []
    while not sender.timed_out(at := sender.get_timer() or 0.0):
        if sender.retransmit(at) is not None:
            sent.append(at)
    assert sent == [0.5, 1.5, 3.5, 7.5, 15.5, 31.5]
    assert at == 32.0


def test_responses_are_numbered_and_one_at_a_time_is_out() -> None:
    sender = ReliableSender(INVITE, 10)
    first = sender.send(ringing(), 0.0)
    assert first is not None
    assert (rseq_of(first), first.require) == (10, ["100rel"])
    assert sender.send(ringing(b"sdp"), 0.1) is None
    acknowledged, following = sender.acknowledge(prack("10 5 INVITE"), 0.2)
    assert acknowledged is first
    assert following is not None
    assert rseq_of(following) == 11
    sender.acknowledge(prack("11 5 INVITE"), 0.3)
    assert sender.get_timer() is None


@pytest.mark.parametrize(
    "rack", ["11 5 INVITE", "9 5 INVITE", "10 6 INVITE", "10 5 UPDATE", "10 5", "", "x 5 INVITE"]
)
def test_a_prack_for_something_else_is_none(rack: str) -> None:
    sender = ReliableSender(INVITE, 10)
    sender.send(ringing(), 0.0)
    with pytest.raises(SipError):
        sender.acknowledge(prack(rack), 0.1)
    assert sender.get_timer() is not None


def test_an_answer_waits_for_the_prack_only_while_media_are_in_the_balance() -> None:
    sender = ReliableSender(INVITE, 10)
    sender.send(ringing(), 0.0)
    assert not sender.blocks_answer
    sender.send(ringing(b"sdp"), 0.1)
    assert sender.blocks_answer
    sender.acknowledge(prack("10 5 INVITE"), 0.2)
    assert sender.blocks_answer
    sender.acknowledge(prack("11 5 INVITE"), 0.3)
    assert not sender.blocks_answer


def test_after_the_final_response_nothing_is_repeated_but_a_late_prack_is_known() -> None:
    sender = ReliableSender(INVITE, 10)
    sender.send(ringing(), 0.0)
    sender.stop()
    assert sender.get_timer() is None
    assert not sender.timed_out(1e9)
    sender.acknowledge(prack("10 5 INVITE"), 1.0)


def test_responses_that_wait_are_bounded() -> None:
    sender = ReliableSender(INVITE, 1)
    for _ in range(MAX_WAITING + 20):
        sender.send(ringing(), 0.0)
    number = 1
    following: Response | None = ringing()
    while following is not None:
        _, following = sender.acknowledge(prack(f"{number} 5 INVITE"), 0.0)
        number += 1
    assert number - 1 == 1 + MAX_WAITING


def test_the_caller_takes_them_in_their_order_and_each_once() -> None:
    receiver = ReliableReceiver()
    assert [receiver.accept(rseq) for rseq in (7, 7, 9, 8, 8, 9, 10)] == [
        True,
        False,
        False,
        True,
        False,
        True,
        True,
    ]


@pytest.mark.parametrize(
    ("status", "headers"),
    [
        (180, []),
        (180, [("RSeq", "1")]),
        (180, [("Require", "100rel")]),
        (180, [("Require", "100rel"), ("RSeq", "many")]),
        (180, [("Require", "100rel"), ("RSeq", "4294967296")]),
        (100, [("Require", "100rel"), ("RSeq", "1")]),
        (200, [("Require", "100rel"), ("RSeq", "1")]),
    ],
)
def test_a_response_without_all_that_it_takes_is_not_reliable(
    status: int, headers: list[tuple[str, str]]
) -> None:
    assert rseq_of(respond(INVITE, status, headers=headers)) is None


@given(st.text(max_size=60))
def test_whatever_stands_in_rack_it_is_read_or_refused(text: str) -> None:
    request = made("PRACK", [])
    request.headers.add("RAck", text)
    try:
        rack = RAck.of(request)
    except SipError:
        return
    assert str(rack).split() == [str(rack.rseq), str(rack.cseq), rack.method]
