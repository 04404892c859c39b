"""A trunk's registration is kept, whatever its registrar answers, and given up politely."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from offhook.telephony.sip.auth.credentials import Credentials
from offhook.telephony.sip.auth.digest import DigestServer
from offhook.telephony.sip.messages.grammar import SipError
from offhook.telephony.sip.messages.message import parse_message, respond
from offhook.telephony.sip.messages.uri import Uri
from offhook.telephony.sip.trunks import registration as module
from offhook.telephony.sip.trunks.register_requests import MAX_EXPIRY_RAISES
from offhook.telephony.sip.trunks.registration import Registration
from offhook.telephony.sip.trunks.registration_table import (
    TRANSITIONS,
    Action,
    Event,
    RegistrationState,
)
from offhook.telephony.sip.trunks.trunks import Trunk

TRUNK = Trunk(
    "carrier", username="1001", password="secret", server="sip.example.com", register=True
)
CONTACT = Uri.parse("sip:1001@192.0.2.7:5062")
START = 1000.0


class Registrar:
    """The far end, and the clock: what is sent, what comes back, when the timer fires."""

    def __init__(self, trunk=TRUNK, targets=1):
        self.now = START
        self.registration = Registration(
            trunk, CONTACT, "offhook/test", uniform=lambda low, high: high
        )
        self.registration.servers.number = targets
        self.registration.start(self.now)
        self.target = None

    @property
    def state(self):
        return self.registration.status.state

    @property
    def detail(self):
        return self.registration.status.detail

    def take(self):
        """The request that is to be sent, as it comes out of the wire."""
        taken = self.registration.request_to_send()
        assert taken is not None, f"nothing to send, {self.registration.status}"
        request, self.target = taken
        return self.on_the_wire(request)

    def on_the_wire(self, request):
        request.headers.prepend("Via", "SIP/2.0/UDP 192.0.2.7:5062;rport;branch=z9hG4bK1")
        return parse_message(request.serialize())

    def answer(self, request, status=200, *headers, reason="", via=None):
        response = respond(request, status, reason, to_tag="x", headers=headers)
        if via:
            response.headers.set("Via", via)
        self.registration.receive(parse_message(response.serialize()), self.now)

    def accept(self, request, *contacts):
        listed = contacts or (f"<{CONTACT}>;expires={request.expires}",)
        self.answer(request, 200, *(("Contact", c) for c in listed))

    def wait(self):
        """Until the timer, and past it; the s that went by."""
        timer = self.registration.get_timer()
        assert timer is not None
        passed, self.now = timer - self.now, max(self.now, timer)
        self.registration.handle_timer(self.now)
        return passed

    def nothing_to_send(self):
        return self.registration.request_to_send() is None


def test_the_contact_is_registered_for_as_long_as_asked():
    peer = Registrar()
    request = peer.take()
    assert str(request.uri) == "sip:sip.example.com"
    assert str(request.to.uri) == str(request.from_.uri) == "sip:1001@sip.example.com"
    assert request.from_.tag
    assert not request.to.tag
    assert [str(c) for c in request.contacts] == ["<sip:1001@192.0.2.7:5062>"]
    assert (request.expires, request.max_forwards) == (300, 70)
    assert request.headers.get("User-Agent") == "offhook/test"
    assert peer.state is RegistrationState.REGISTERING
    assert peer.registration.get_timer() is None, "the transaction has the timers meanwhile"
    peer.accept(request)
    assert (peer.state, peer.detail) == (RegistrationState.REGISTERED, "")
    assert peer.registration.status.expires_at == START + 300
    assert peer.nothing_to_send()


def test_it_is_refreshed_before_it_ends_in_the_same_call():
    peer = Registrar()
    first = peer.take()
    peer.accept(first)
    assert peer.wait() == 300 - module.REFRESH_MARGIN_S
    assert peer.state is RegistrationState.REFRESHING
    second = peer.take()
    assert second.call_id == first.call_id
    assert second.cseq.number == first.cseq.number + 1
    peer.accept(second)
    assert peer.registration.status.expires_at == peer.now + 300


@pytest.mark.parametrize(
    ("given_", "refreshed"), [(3600, 3530), (60, 30), (2, 1), (1, 1), (10**30, 86330)]
)
def test_the_life_that_the_registrar_gives_is_what_counts(given_, refreshed):
    peer = Registrar()
    peer.accept(peer.take(), f"<{CONTACT}>;expires={given_}")
    assert peer.wait() == refreshed
    assert not peer.nothing_to_send()


@pytest.mark.parametrize(
    ("headers", "life"),
    [
        ([("Contact", f"<{CONTACT}>;expires=30"), ("Expires", "90")], 30),
        ([("Contact", f"<{CONTACT}>"), ("Expires", "90")], 90),
        ([("Contact", f"<{CONTACT}>;expires=soon"), ("Expires", "90")], 90),
        ([("Expires", "90")], 90),
        ([("Contact", f"<{CONTACT}>")], 300),
        ([], 300),
        # ours is one of several, in another spelling
        (
            [
                ("Contact", "<sip:1001@198.51.100.9>;expires=20, <sip:1001@192.0.2.7>;expires=10"),
                ("Contact", "<sip:1001@192.0.2.7:5062;transport=udp;ob>;q=1;expires=70"),
            ],
            70,
        ),
        # a box on the way has rewritten it
        (
            [("Contact", "<sip:1001@203.0.113.1:9>;expires=40,<sip:1001@203.0.113.1>;expires=50")],
            40,
        ),
    ],
)
def test_our_binding_is_found_in_what_the_registrar_lists(headers, life):
    peer = Registrar()
    peer.answer(peer.take(), 200, *headers)
    assert peer.registration.status.expires_at == peer.now + life


def test_a_registrar_that_keeps_nothing_has_not_registered_us():
    peer = Registrar()
    peer.accept(peer.take(), f"<{CONTACT}>;expires=0", "<sip:1001@198.51.100.9>;expires=20")
    assert peer.state is RegistrationState.WAITING
    assert "stored no contact" in peer.detail
    assert peer.wait() == module.BACKOFF_FIRST_S
    peer.accept(peer.take())
    assert peer.state is RegistrationState.REGISTERED


def test_a_longer_life_is_asked_for_when_ours_is_too_brief():
    peer = Registrar()
    first = peer.take()
    peer.answer(first, 423, ("Min-Expires", "600"))
    second = peer.take()
    assert (second.expires, second.cseq.number) == (600, first.cseq.number + 1)
    peer.accept(second)
    assert peer.registration.status.expires_at == peer.now + 600
    peer.wait()
    assert peer.take().expires == 600, "it is not asked for too little twice"


@pytest.mark.parametrize("least", ["", "300", "5", "never", "4294967295", "9" * 30])
def test_a_423_that_leads_nowhere_is_a_refusal(least):
    peer = Registrar()
    peer.answer(peer.take(), 423, ("Min-Expires", least))
    assert peer.state is RegistrationState.REFUSED
    assert peer.nothing_to_send()


def test_a_registrar_cannot_raise_the_life_for_ever():
    peer = Registrar()
    for least in range(301, 301 + MAX_EXPIRY_RAISES):
        peer.answer(peer.take(), 423, ("Min-Expires", str(least)))
    peer.answer(peer.take(), 423, ("Min-Expires", "400"))
    assert peer.state is RegistrationState.REFUSED
    assert "too short" in peer.detail


def check(server, request, now):
    return server.check(request, {"1001": "secret"}.get, now)


def test_a_challenge_is_answered_and_the_next_request_brings_the_answer_along():
    peer, server = Registrar(), DigestServer("sip.example.com")
    first = peer.take()
    peer.answer(first, 401, *server.challenge(first, peer.now))
    second = peer.take()
    assert second.cseq.number == first.cseq.number + 1
    assert check(server, second, peer.now).ok
    assert peer.detail == ""
    peer.accept(second, f"<{CONTACT}>;expires=20")
    peer.wait()
    third = peer.take()
    assert third.cseq.number == second.cseq.number + 1
    assert check(server, third, peer.now).ok
    assert Credentials.parse(third.headers.get("Authorization")).nonce_count == "00000002"


@pytest.mark.parametrize("says_so", [True, False])
def test_a_nonce_that_has_become_stale_costs_one_more_request(says_so):
    peer, server = Registrar(), DigestServer("sip.example.com", nonce_s=30)
    first = peer.take()
    peer.answer(first, 401, *server.challenge(first, peer.now))
    peer.accept(peer.take())
    peer.wait()
    refresh = peer.take()
    assert check(server, refresh, peer.now).stale
    peer.answer(refresh, 401, *server.challenge(refresh, peer.now, stale=says_so))
    assert peer.state is RegistrationState.REFRESHING
    again = peer.take()
    assert not check(server, again, peer.now).stale
    peer.accept(again)
    assert peer.state is RegistrationState.REGISTERED


def test_a_wrong_password_is_said_and_seldom_tried_again():
    peer, server = Registrar(), DigestServer("sip.example.com")
    first = peer.take()
    peer.answer(first, 401, *server.challenge(first, peer.now))
    second = peer.take()
    peer.answer(second, 401, *server.challenge(second, peer.now), reason="Unauthorized")
    assert peer.state is RegistrationState.REFUSED
    assert peer.detail == (
        "401 Unauthorized: wrong username or password, or the realm is not the trunk's"
    )
    assert peer.nothing_to_send()
    assert peer.wait() >= module.REFUSED_S
    assert not peer.nothing_to_send()


def test_an_algorithm_that_we_do_not_know_is_not_a_wrong_password():
    far = Registrar()
    challenge = 'Digest realm="r", nonce="n", algorithm=AKAv2-SHA-256'
    far.answer(far.take(), 401, ("WWW-Authenticate", challenge))
    assert far.state is RegistrationState.REFUSED
    assert far.detail == "401 Unauthorized: it wants a digest not known here (AKAv2-SHA-256)"


def test_a_password_that_is_wanted_and_not_there_is_said():
    peer = Registrar(Trunk("t", username="1001", server="sip.example.com", register=True))
    first = peer.take()
    peer.answer(first, 401, *DigestServer("r").challenge(first, peer.now))
    assert peer.state is RegistrationState.REFUSED
    assert "requires a password" in peer.detail


@pytest.mark.parametrize("status", [302, 400, 403, 404, 405, 606])
def test_a_refusal_ends_the_binding_and_is_not_argued_with(status):
    peer = Registrar(targets=3)
    peer.accept(peer.take())
    peer.wait()
    peer.answer(peer.take(), status, reason="Go Away")
    assert peer.state is RegistrationState.REFUSED
    assert peer.detail.startswith(f"{status} Go Away")
    assert peer.registration.status.expires_at is None
    assert peer.nothing_to_send()
    assert peer.wait() >= module.REFUSED_S


def test_a_busy_registrar_is_left_alone_for_as_long_as_it_asks():
    peer = Registrar()
    peer.answer(peer.take(), 503, ("Retry-After", "120 (maintenance);duration=600"))
    assert peer.state is RegistrationState.WAITING
    assert peer.detail == "503 Service Unavailable, retry after 120 s"
    assert peer.wait() == 120
    peer.answer(peer.take(), 503, ("Retry-After", "99999999999"))
    assert peer.wait() == module.MAX_RETRY_AFTER_S
    peer.accept(peer.take())
    assert peer.state is RegistrationState.REGISTERED


def test_another_server_takes_over_from_a_busy_one():
    peer = Registrar(targets=2)
    peer.answer(peer.take(), 503, ("Retry-After", "900"))
    request = peer.take()
    assert (peer.target, peer.state) == (1, RegistrationState.REGISTERING)
    peer.accept(request)
    peer.wait()
    peer.take()
    assert peer.target == 1, "it stays with the server that serves it"
    peer.registration.failed("timeout", peer.now)
    assert peer.state is RegistrationState.LAPSING
    peer.wait()
    peer.take()
    assert peer.target == 1, "the first one still does not want to be asked"


def test_a_new_round_does_not_begin_with_a_busy_server():
    peer = Registrar(targets=2)
    peer.take()
    peer.registration.failed("timeout", peer.now)
    peer.answer(peer.take(), 503, ("Retry-After", "900"))
    assert peer.wait() == module.BACKOFF_FIRST_S
    peer.take()
    assert peer.target == 0


def test_servers_that_do_not_answer_are_tried_in_turn_and_then_less_and_less_often():
    peer = Registrar(targets=3)
    waits = []
    for _ in range(9):
        tried = []
        for _ in range(3):
            peer.take()
            tried.append(peer.target)
            peer.now += 32
            peer.registration.failed("timeout", peer.now)
        assert sorted(tried) == [0, 1, 2]
        assert peer.state is RegistrationState.WAITING
        waits.append(peer.wait())
    assert waits == [5, 10, 20, 40, 80, 160, 300, 300, 300]
    assert "no response" in peer.detail
    peer.accept(peer.take())
    peer.registration.servers.number = 1
    peer.wait()
    peer.take()
    assert peer.target == 0, "the server that served us is not there any more"
    peer.registration.failed("transport", peer.now)
    assert peer.wait() == 5, "a success begins anew"


def test_waiting_times_are_spread():
    spread = set()
    for seed in range(20):
        registration = Registration(TRUNK, CONTACT, uniform=random.Random(seed).uniform)
        registration.start(0.0)
        registration.failed("timeout", 0.0)
        spread.add(registration.get_timer())
        registration.handle_timer(registration.get_timer())
        request, _ = registration.request_to_send()
        request.headers.prepend("Via", "SIP/2.0/UDP 192.0.2.7:5062;branch=z9hG4bK1")
        registration.receive(respond(request, 200, to_tag="x"), 100.0)
        spread.add(registration.get_timer())
    assert len(spread) == 40
    backoffs = sorted(spread)[:20]
    refreshes = sorted(spread)[20:]
    assert backoffs[0] >= module.BACKOFF_FIRST_S / 2
    assert backoffs[-1] <= module.BACKOFF_FIRST_S
    assert refreshes[0] >= 100 + 230 * (1 - module.REFRESH_SPREAD)
    assert refreshes[-1] <= 100 + 230


def test_a_binding_that_cannot_be_refreshed_counts_until_its_end():
    peer = Registrar()
    peer.accept(peer.take())
    end = peer.registration.status.expires_at
    peer.wait()
    while peer.now < end:
        if not peer.nothing_to_send():
            peer.registration.failed("timeout", peer.now)
            assert peer.state is RegistrationState.LAPSING
            assert peer.registration.status.expires_at == end
        peer.wait()
    assert peer.now == end
    assert peer.registration.status.expires_at is None
    assert peer.state in (RegistrationState.WAITING, RegistrationState.REGISTERING)


def test_a_binding_may_end_while_a_refresh_is_out():
    peer = Registrar()
    peer.accept(peer.take())
    peer.wait()
    refresh = peer.take()
    assert peer.wait() == module.REFRESH_MARGIN_S
    assert (peer.state, peer.registration.status.expires_at) == (
        RegistrationState.REGISTERING,
        None,
    )
    peer.accept(refresh)
    assert peer.state is RegistrationState.REGISTERED


def test_it_is_taken_back_at_the_end():
    peer, server = Registrar(), DigestServer("r")
    peer.accept(peer.take())
    peer.registration.unregister(peer.now)
    request = peer.take()
    assert request.expires == 0
    assert [str(c.uri) for c in request.contacts] == [str(CONTACT)], "and not everybody's, by *"
    peer.answer(request, 401, *server.challenge(request, peer.now))
    again = peer.take()
    assert again.expires == 0
    assert check(server, again, peer.now).ok
    peer.answer(again)
    assert peer.state is RegistrationState.UNREGISTERED
    assert peer.registration.get_timer() is None
    assert peer.nothing_to_send()


def test_the_end_waits_for_a_request_that_is_out():
    peer = Registrar()
    request = peer.take()
    peer.registration.unregister(peer.now)
    assert peer.state is RegistrationState.STOPPING
    assert peer.nothing_to_send()
    peer.accept(request)
    assert peer.take().expires == 0
    peer.registration.failed("timeout", peer.now)
    assert peer.state is RegistrationState.UNREGISTERED


@pytest.mark.parametrize("how", ["waiting", "refused"])
def test_what_is_not_registered_is_not_taken_back(how):
    peer = Registrar()
    request = peer.take()
    if how == "waiting":
        peer.registration.failed("timeout", peer.now)
    else:
        peer.answer(request, 403)
    peer.registration.unregister(peer.now)
    assert peer.state is RegistrationState.UNREGISTERED
    assert peer.nothing_to_send()
    assert peer.registration.get_timer() is None


def test_our_address_is_learned_from_the_via_that_comes_back():
    peer = Registrar()
    via = "SIP/2.0/UDP 192.0.2.7:5062;branch=z9hG4bK1;received=203.0.113.5;rport=40123"
    peer.answer(peer.take(), 401, via=via)
    assert peer.registration.public_address == ("203.0.113.5", 40123)


@pytest.mark.parametrize(
    ("via", "address"),
    [
        ("SIP/2.0/UDP 192.0.2.7:5062;branch=z9hG4bK1;rport", ("192.0.2.7", 5062)),
        ("SIP/2.0/UDP 192.0.2.7;branch=z9hG4bK1", ("192.0.2.7", 5060)),
        ("SIP/2.0/UDP [2001:db8::7]:5062;branch=z9hG4bK1;rport=7", ("2001:db8::7", 7)),
        ("SIP/2.0/UDP 192.0.2.7;branch=z9hG4bK1;received=evil.example", None),
        ("SIP/2.0/UDP 192.0.2.7;branch=z9hG4bK1;rport=99999", None),
        ("SIP/2.0/WS x.invalid;branch=z9hG4bK1", None),
    ],
)
def test_what_is_no_address_teaches_nothing(via, address):
    peer = Registrar()
    peer.answer(peer.take(), 200, via=via)
    assert peer.registration.public_address == address
    assert peer.state is RegistrationState.REGISTERED


def test_a_new_address_of_ours_takes_the_place_of_the_old_one():
    peer = Registrar()
    peer.accept(peer.take())
    moved = Uri.parse("sip:1001@203.0.113.5:40123")
    peer.registration.move(moved, peer.now)
    request = peer.take()
    assert [(str(c.uri), c.parameter("expires")) for c in request.contacts] == [
        (str(moved), None),
        (str(CONTACT), "0"),
    ]
    peer.accept(request, f"<{moved}>;expires=200")
    assert peer.registration.status.expires_at == peer.now + 200
    peer.wait()
    assert len(peer.take().contacts) == 1


def test_an_address_that_comes_back_is_not_taken_away():
    peer = Registrar()
    peer.accept(peer.take())
    peer.registration.move(Uri.parse("sip:1001@203.0.113.5:40123"), peer.now)
    request = peer.take()
    peer.registration.move(CONTACT, peer.now)
    peer.answer(request, 500)
    peer.wait()
    assert [str(c) for c in peer.take().contacts] == [f"<{CONTACT}>"]


def test_an_address_that_changes_while_a_request_is_out_is_registered_next():
    peer = Registrar()
    request = peer.take()
    moved = Uri.parse("sip:1001@203.0.113.5:40123")
    peer.registration.move(moved, peer.now)
    assert peer.nothing_to_send()
    peer.accept(request)
    assert peer.wait() == 0
    assert [str(c.uri) for c in peer.take().contacts] == [str(moved), str(CONTACT)]


def test_an_address_that_changes_with_every_packet_does_not_keep_us_busy():
    peer = Registrar()
    peer.accept(peer.take())
    asked = 0
    end = peer.now + 20 * module.CONTACT_CHANGE_INTERVAL_S
    while peer.now < end:
        seen = Uri.parse(f"sip:1001@203.0.113.5:{10000 + asked}")
        peer.registration.move(seen, peer.now)
        if (taken := peer.registration.request_to_send()) is None:
            peer.wait()
            continue
        asked += 1
        assert asked < 50
        peer.accept(peer.on_the_wire(taken[0]))
    assert 18 <= asked <= 23


def test_a_server_that_is_gone_from_the_list_is_not_asked_to_the_end():
    peer = Registrar(targets=2)
    peer.take()
    peer.registration.failed("timeout", peer.now)
    peer.accept(peer.take())
    assert peer.target == 1
    peer.registration.servers.number = 1
    peer.registration.unregister(peer.now)
    peer.take()
    assert peer.target == 0


def test_strange_responses_change_nothing():
    peer = Registrar()
    request = peer.take()
    for change in (
        lambda r: r.headers.set("CSeq", "77 REGISTER"),
        lambda r: r.headers.set("Call-ID", "another"),
        lambda r: setattr(r, "status", 183),
    ):
        response = respond(request, 200, to_tag="x")
        change(response)
        peer.registration.receive(response, peer.now)
        assert peer.state is RegistrationState.REGISTERING
    peer.accept(request)
    peer.answer(request, 403)
    assert peer.state is RegistrationState.REGISTERED, "one request has one final response"
    peer.registration.failed("timeout", peer.now)
    assert peer.state is RegistrationState.REGISTERED


def test_a_trunk_without_a_server_cannot_register():
    with pytest.raises(SipError, match="server"):
        Registration(Trunk("t", username="1"), CONTACT)


def test_every_state_that_waits_for_a_response_knows_every_outcome():
    outcomes = {Event.ACCEPTED, Event.AGAIN, Event.NEXT, Event.EXHAUSTED, Event.DENIED}
    for state in (
        RegistrationState.REGISTERING,
        RegistrationState.REFRESHING,
        RegistrationState.STOPPING,
        RegistrationState.UNREGISTERING,
    ):
        assert {e for s, e in TRANSITIONS if s is state} >= outcomes
    assert {action for _, action in TRANSITIONS.values()} == set(Action), (
        "no action is without a row"
    )


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["answer", "fail", "wait", "stop", "start", "move"]),
            st.sampled_from([200, 302, 401, 403, 407, 423, 480, 500, 503, 600]),
            st.integers(0, 900),
        ),
        max_size=40,
    )
)
def test_whatever_happens_one_request_is_out_and_time_goes_on(steps):
    """No step of a registrar makes us send without end, stand still, or send two at once."""
    peer = Registrar(targets=2)
    server = DigestServer("r", nonce_s=10)
    out = peer.take()
    for what, status, number in steps:
        if what == "answer" and out is not None:
            extra = server.challenge(out, peer.now, stale=bool(number % 2))
            asked = [("Proxy-Authenticate", v) for _, v in extra] if status == 407 else extra
            headers = [("Min-Expires", str(number)), ("Retry-After", str(number)), *asked]
            request, out = out, None
            peer.answer(request, status, *headers, ("Expires", str(number)))
        elif what == "fail" and out is not None:
            out = None
            peer.registration.failed("timeout", peer.now)
        elif what == "wait" and peer.registration.get_timer() is not None:
            peer.wait()
        elif what == "stop":
            peer.registration.unregister(peer.now)
        elif what == "start":
            peer.registration.start(peer.now)
        elif what == "move":
            peer.registration.move(Uri.parse(f"sip:1001@192.0.2.7:{6000 + number}"), peer.now)
        taken = peer.registration.request_to_send()
        if taken is not None:
            assert out is None
            out = peer.on_the_wire(taken[0])
        idle = out is None and peer.registration.get_timer() is None
        assert idle == (peer.state is RegistrationState.UNREGISTERED)
