"""What is saved of phones, and what another process makes of it."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from offhook.telephony.sip.extensions.registrar import MAX_EXPIRES_S
from offhook.telephony.sip.extensions.saved_phones import pack, unpack
from tests.telephony.sip.extensions.test_registrar import (
    OFFICE,
    START,
    US,
    Phone,
    contacts,
    server,
)

EPOCH, LATER = 1_700_000_000.0, 50.0
"""Since 1970, and the monotonic time of the process that comes after."""


def saved(ua):
    [(number, phones)] = ua.phones.registrar.by_datagram().items()
    return pack(number, "ann's", phones, EPOCH)


def read(text, password="ann's", local=(US,), now=LATER):
    """By a process that starts 20 seconds after START."""
    return unpack("101", password, text, local, EPOCH + START + 20 - LATER, now)


def registered(*headers, **fields):
    ua = server()
    Phone(ua).register(("Expires", "120"), ("Path", "<sip:edge.example;lr>"), *headers, **fields)
    return ua


def test_phones_are_reached_after_a_restart_as_before():
    before = registered(("User-Agent", "desk"))
    Phone(before, flow=OFFICE, port=5070).register()  # its connection ends with the server
    text = saved(before).text
    assert saved(before).expires == EPOCH + START + 120
    assert "ann's" not in text
    [(key, phone)] = read(text)
    [_, was] = before.phones.registrar.bindings("101")
    assert (phone.contact, phone.flow, phone.path) == (was.contact, was.flow, was.path)
    assert (phone.expires_at, phone.since) == (LATER + 100, LATER - 20)
    assert phone.user_agent == "desk"
    after = server()
    after.phones.restore("101", ((key, phone),), LATER)
    assert contacts(after) == ["sip:101@10.0.0.5:5062"]
    late = Phone(after)
    late.call_id, late.cseq = phone.call_id, phone.cseq - 3  # and not undone by an old request
    assert late.register(("Expires", "0"), now=LATER).status == 500
    after.handle_timer(LATER + 101)
    assert contacts(after) == []


def test_a_phone_that_has_registered_meanwhile_stays_as_it_is():
    text = saved(registered()).text
    after = server()
    Phone(after).register(now=LATER)
    [now] = after.phones.registrar.bindings("101")
    after.phones.restore("101", read(text), LATER)
    assert after.phones.registrar.bindings("101") == (now,)


def test_phones_of_an_old_password_or_address_and_those_that_have_expired_are_not_reached():
    text = saved(registered()).text
    assert read(text, password="another one") == ()
    assert read(text, local=[("192.0.2.1", 5080)]) == ()
    assert read(text, now=LATER + 100) == ()
    assert len(read(text, now=LATER + 99)) == 1


def test_a_clock_that_was_set_back_lengthens_no_registration():
    text = saved(registered()).text
    [(_, phone)] = unpack("101", "ann's", text, [US], EPOCH + START - 86_400, LATER)
    assert phone.expires_at == LATER + MAX_EXPIRES_S


def test_a_password_in_a_contact_is_not_saved_and_an_endless_one_is_left_out():
    secret = registered(contact="<sip:101:hidden@10.0.0.5:5062>")
    assert "hidden" not in saved(secret).text
    assert saved(registered(contact=f"<sip:101@10.0.0.5;x={'y' * 5000}>")) is None


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("contact", "<"),
        ("remote", ["phone.example", 5060]),
        ("remote", ["10.0.0.5"]),
        ("remote", ["10.0.0.5", 99_999]),
        ("remote", ["10.0.0.5", -1]),
        ("path", ["<sip:edge.example;lr>\r\nX-Forged: yes"]),
        ("user_agent", "desk\r\nX-Forged: yes"),
        ("expires", float("inf")),
        ("cseq", 10**40),
        ("cseq", "1"),
        ("more", 1),
    ],
)
def test_what_was_not_saved_by_us_is_refused(field, value):
    table = json.loads(saved(registered()).text)
    table["phones"][0][field] = value
    with pytest.raises(ValueError):  # noqa: PT011
        read(json.dumps(table))


@given(st.text() | st.recursive(st.none() | st.text() | st.integers(), st.lists).map(json.dumps))
def test_nothing_else_is_read(text):
    with pytest.raises(ValueError):  # noqa: PT011
        read(text)
