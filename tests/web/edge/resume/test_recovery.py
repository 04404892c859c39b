"""Which edge has which phone call: the table, the lease, and what is read from Redis."""

import json
from dataclasses import replace
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from offhook.media.leg import CallInfo
from offhook.telephony.sip.media.media_plan import SavedMedia
from offhook.telephony.sip.messages.grammar import SipError
from offhook.telephony.sip.messages.uri import Uri
from offhook.telephony.sip.sessions.saved_dialog import CSEQ_GAP, SavedDialog
from offhook.web.edge.resume.recovery import (
    MAX_RECOVERING,
    TABLE,
    CallAction,
    CallEvent,
    CallTable,
    Lease,
    SavedCallState,
)
from offhook.web.edge.resume.saved_call import TooLargeError
from offhook.web.edge.resume.saved_phone_call import SavedPhoneCall, unpack

S, E, A = SavedCallState, CallEvent, CallAction
DIALOG = SavedDialog(
    call_id="4711@pbx",
    local="<sip:agent@10.0.0.5>;tag=ours",
    remote='"Ada, L." <sip:+49301@pbx.example>;tag=theirs',
    remote_target="sip:+49301@10.0.0.9:5080;ob",
    route_set=("<sip:10.0.0.5;lr;ftag=x>", "<sip:198.51.100.4;lr;transport=tcp>"),
    local_cseq=7,
    remote_cseq=None,
    we_called=False,
    transport="UDP",
    media=SavedMedia("v=0\r\n", 1, "AES_CM_128_HMAC_SHA1_80"),
)
NOW = datetime(2026, 11, 23, 12, tzinfo=UTC)
CALL = SavedPhoneCall(
    "token", "desk", NOW, NOW, CallInfo("sip", caller="+49301", variables={"n": 1}), DIALOG
)


@pytest.mark.parametrize(
    ("events", "actions", "state"),
    [
        ((E.BEGUN, E.CHANGED, E.ENDED), (A.SAVE, A.SAVE, A.FORGET), None),
        ((E.BEGUN, E.CLAIMED_ELSEWHERE, E.ENDED), (A.SAVE, A.LEAVE, A.NOTHING), None),
        ((E.BEGUN, E.DRAINED, E.CLAIMED_ELSEWHERE), (A.SAVE, A.SAVE, A.LEAVE), None),
        ((E.BEGUN, E.DRAINED, E.KEPT, E.ENDED), (A.SAVE, A.SAVE, A.NOTHING, A.NOTHING), None),
        ((E.CLAIMED, E.ANSWERED, E.CHANGED), (A.REINVITE, A.SAVE, A.SAVE), S.HELD),
        ((E.CLAIMED, E.REFUSED, E.ENDED), (A.REINVITE, A.FORGET, A.NOTHING), None),
        ((E.CLAIMED, E.CLAIMED_ELSEWHERE), (A.REINVITE, A.LEAVE), None),
        ((E.CLAIMED, E.CHANGED, E.BEGUN), (A.REINVITE, A.NOTHING, A.NOTHING), S.RECOVERING),
        ((E.ENDED, E.CHANGED, E.ANSWERED), (A.NOTHING, A.NOTHING, A.NOTHING), None),
    ],
)
def test_who_has_a_call(events, actions, state):
    table = CallTable()
    assert tuple(table.apply("call", event) for event in events) == actions
    assert table.state("call") is state


def test_every_state_can_be_left():
    for state in (S.HELD, S.OFFERED, S.RECOVERING):
        assert TABLE[state, E.CLAIMED_ELSEWHERE] == (S.ELSEWHERE, A.LEAVE)
        assert TABLE[state, E.ENDED] == (S.OVER, A.FORGET)
        assert TABLE[state, E.KEPT].state is S.OVER
    assert not [row for row in TABLE if row[0] in (S.OVER, S.ELSEWHERE)]


def test_only_so_many_calls_are_claimed_at_once():
    table = CallTable()
    for number in range(MAX_RECOVERING):
        assert table.free == MAX_RECOVERING - number
        table.apply(f"{number}", E.CLAIMED)
    assert table.free == 0
    table.apply("0", E.ANSWERED)
    table.apply("1", E.REFUSED)
    assert table.free == 2


def test_calls_of_others_are_claimed_after_a_whole_lease_without_a_gap():
    lease = Lease(3.0)
    assert not lease.valid(0)
    assert not lease.lapsed(100)  # it was never held
    for now in (10.0, 11.0, 12.0):
        lease.renewed(now)
        assert lease.valid(now)
        assert not lease.may_claim(now)
    lease.renewed(13.0)
    assert lease.may_claim(13.0)
    assert not lease.lapsed(15.9)
    assert lease.lapsed(16.0)  # Redis was away: all leases have run out
    assert not lease.may_claim(16.0)
    lease.renewed(17.0)
    assert lease.valid(17.0)
    assert not lease.may_claim(19.0)
    lease.renewed(19.5)
    assert lease.may_claim(20.0)
    lease.give_up()
    assert not lease.may_claim(20.0)


def test_a_call_survives_packing():
    assert unpack(CALL.pack()) == CALL
    assert len(CALL.pack()) < 1500
    dialog = DIALOG.dialog(Uri("sip", host="10.0.0.12"))
    assert dialog.local_cseq == 7 + CSEQ_GAP
    assert str(dialog.remote) == DIALOG.remote
    assert [str(route) for route in dialog.route_set] == list(DIALOG.route_set)
    assert DIALOG.next_hop().host == "10.0.0.5"
    assert replace(DIALOG, route_set=()).next_hop().port == 5080


@pytest.mark.parametrize(
    "values",
    [
        {"call_id": ""},
        {"call_id": "a\r\nVia: x"},
        {"local": "<sip:agent@10.0.0.5>"},
        {"local": "no address"},
        {"remote": "<sip:a@b>\r\nX: y"},
        {"remote_target": "tel:+4930"},
        {"remote_target": "sip:x@h" + "a" * 3000},
        {"route_set": ("<sip:10.0.0.5;lr>",) * 33},
        {"route_set": ("<mailto:x@y>",)},
        {"local_cseq": -1},
        {"local_cseq": 2**31 - 1},
        {"remote_cseq": 2**40},
    ],
)
def test_what_was_no_dialog_is_refused(values):
    forged = replace(DIALOG, **values)

    def use() -> None:
        forged.next_hop()
        forged.dialog(Uri("sip", host="10.0.0.12"))

    with pytest.raises(SipError):
        use()


@pytest.mark.parametrize(
    "change",
    [
        {"v": 2},
        {"token": 5},
        {"extra": 1},
        {"answered": "yesterday"},
        {"answered": "2026-11-23T12:00:00"},
        {"dialog": {}},
        {"info": {"direction": "sideways"}},
    ],
)
def test_what_was_not_saved_so_is_refused(change):
    with pytest.raises(ValueError, match=r"."):
        unpack(json.dumps({**json.loads(CALL.pack()), **change}).encode())


@given(st.binary(max_size=200))
def test_garbage_is_refused(data):
    with pytest.raises(ValueError, match=r"."):
        unpack(data)


def test_too_much_is_refused():
    many = replace(CALL.info, variables={"text": "x" * 20_000})
    with pytest.raises(TooLargeError):
        replace(CALL, info=many).pack()
    with pytest.raises(ValueError, match=r"."):
        unpack(b"[" * 1000 + b" " * 20_000)
    with pytest.raises(ValueError, match=r"."):
        unpack(b'{"v":' + b"[" * 15_000)
    with pytest.raises(ValueError, match=r"."):
        replace(CALL, info=replace(CALL.info, variables={"f": object()})).pack()
