"""What the registrar makes of REGISTERs, honest and hostile."""

import itertools
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from offhook.telephony.sip.auth.digest import DigestClient
from offhook.telephony.sip.extensions.registrar import (
    MAX_CONTACTS,
    MAX_EXPIRES_S,
    MIN_EXPIRES_S,
    Registrar,
)
from offhook.telephony.sip.messages.flow import Flow
from offhook.telephony.sip.messages.headers import Headers, NameAddr
from offhook.telephony.sip.messages.message import Request, Response, parse_message
from offhook.telephony.sip.messages.uri import Uri
from offhook.telephony.sip.trunks.extension import Extension
from offhook.telephony.sip.trunks.trunks import SipSettings, Trunk
from offhook.telephony.sip.user_agent import CallReceived, ExtensionChanged, UserAgent

US = ("192.0.2.1", 5060)
HOME = Flow("UDP", ("203.0.113.9", 40001), US)
OFFICE = Flow("TCP", ("198.51.100.7", 40002), US, 7)
ANN, BOB = Extension(password="ann's", name="Ann"), Extension(password="bob's", name="Bob")
EXTENSIONS = {"101": ANN, "102": BOB}
SDP = (
    "v=0\r\no=- 1 1 IN IP4 203.0.113.9\r\ns=-\r\nc=IN IP4 203.0.113.9\r\nt=0 0\r\n"
    "m=audio 4000 RTP/AVP 0\r\n"
)
START = 1000.0
branches = itertools.count(1)


def server(**chosen: object) -> UserAgent:
    def flow_to(transport, host, port):
        return Flow(transport, (host, port), US)

    return UserAgent(SipSettings(**{"extensions": EXTENSIONS, **chosen}), lambda flow: US, flow_to)


class Phone:
    """A phone that proves its password, unless the test has it do otherwise."""

    def __init__(self, ua, number="101", password="ann's", flow=HOME, port=5062):
        self.ua, self.number, self.flow = ua, number, flow
        self.contact = f"<sip:{number}@10.0.0.5:{port}>"
        self.digest = DigestClient(number, password)
        self.call_id = f"register-{next(branches)}"
        self.cseq = 0

    def request(self, method="REGISTER", *headers, to="", contact=None, body=""):
        self.cseq += 1
        to = to or self.number
        contact = self.contact if contact is None else contact
        fields = [
            ("From", f"<sip:{self.number}@192.0.2.1>;tag=phone"),
            ("To", f"<sip:{to}@192.0.2.1>"),
            ("Call-ID", self.call_id),
            ("CSeq", f"{self.cseq} {method}"),
            ("Max-Forwards", "70"),
            *([("Contact", contact)] if contact else []),
            *headers,
            *([("Content-Type", "application/sdp")] if body else []),
        ]
        uri = Uri.parse(f"sip:{to}@192.0.2.1" if body else "sip:192.0.2.1")
        return Request(method, uri, Headers(fields), body.encode())

    def send(self, request, now=START):
        """The responses to a request as it is, but for 100."""
        self.deliver(request, now)
        return self.read(now)

    def deliver(self, request, now=START):
        host, port = self.flow.remote
        sent = Request(request.method, request.uri, request.headers.copy(), request.body)
        way = f"SIP/2.0/{self.flow.transport} {host}:{port};branch=z9hG4bK{next(branches)};rport"
        sent.headers.prepend("Via", way)
        self.ua.receive(sent.serialize(), self.flow, now)

    def read(self, now=START):
        came = [parse_message(data) for data, _ in self.ua.messages_to_send()]
        return [m for m in came if isinstance(m, Response) and m.status > 100]

    def ask(self, request, now=START):
        """The response once the challenge was answered."""
        [challenge] = self.send(request, now)
        if challenge.status != 401:
            return challenge
        again = self.digest.authorize(challenge, request)
        self.cseq = again.cseq.number
        answers = self.send(again, now)
        return answers[0] if answers else None

    def register(self, *headers, now=START, **fields):
        return self.ask(self.request("REGISTER", *headers, **fields), now)


def contacts(ua, number="101"):
    return [str(binding.contact) for binding in ua.phones.registrar.bindings(number)]


def test_a_phone_registers_is_reached_by_its_flow_and_leaves():
    ua = server()
    phone = Phone(ua)
    answer = phone.register(("Expires", "120"))
    assert answer.status == 200
    [listed] = answer.contacts
    assert listed.uri == NameAddr.parse(phone.contact).uri
    assert listed.parameter("expires") == "120"
    [binding] = ua.phones.registrar.bindings("101")
    assert binding.flow == HOME
    assert binding.behind_nat
    assert phone.register(("Expires", "0"), now=START + 10).contacts == []
    assert contacts(ua) == []


def test_a_phone_is_known_since_it_came_first_and_by_what_it_says_it_is():
    ua = server()
    phone = Phone(ua)
    phone.register(("User-Agent", "desk\x0bphone"))
    phone.register(("User-Agent", "desk phone 2"), now=START + 60)
    [binding] = ua.phones.registrar.bindings("101")
    assert (binding.since, binding.user_agent) == (START, "desk phone 2")
    phone.register(("Expires", "0"), now=START + 70)
    phone.register(now=START + 80)
    [binding] = ua.phones.registrar.bindings("101")
    assert (binding.since, binding.user_agent) == (START + 80, "")


def test_bindings_end_with_their_time_and_with_their_connection():
    ua = server()
    Phone(ua, flow=HOME).register(("Expires", "60"))
    Phone(ua, flow=OFFICE, port=5070).register(("Expires", "200"))
    assert len(contacts(ua)) == 2
    ua.handle_timer(START + 61)
    assert contacts(ua) == ["sip:101@10.0.0.5:5070"]
    ua.flow_failed(OFFICE, START + 62)
    assert contacts(ua) == []
    changes = []
    while (event := ua.next_event()) is not None:
        changes.append(event)
    assert changes.count(ExtensionChanged("101")) == 4


def test_expiries_are_kept_within_limits():
    ua = server()
    phone = Phone(ua)
    short = phone.register(("Expires", str(MIN_EXPIRES_S - 1)))
    assert (short.status, short.headers.get("Min-Expires")) == (423, str(MIN_EXPIRES_S))
    assert contacts(ua) == []
    long = phone.register(("Expires", "86400"))
    assert long.contacts[0].parameter("expires") == str(MAX_EXPIRES_S)
    huge = phone.register(contact=f"{phone.contact};expires=99999999999999999999")
    assert huge.contacts[0].parameter("expires") == str(MAX_EXPIRES_S)


def test_the_same_phone_elsewhere_takes_the_place_of_its_old_contact():
    ua = server()
    named = ';+sip.instance="<urn:uuid:1>";reg-id=1'
    Phone(ua).register(contact=f"<sip:101@10.0.0.5:5062>{named}")
    Phone(ua, flow=OFFICE).register(contact=f"<sip:101@10.9.9.9:6000>{named}")
    [binding] = ua.phones.registrar.bindings("101")
    assert binding.flow == OFFICE


def test_all_contacts_are_removed_at_once_and_only_by_expires_0():
    ua = server()
    for port in (1, 2, 3):
        Phone(ua, port=port).register()
    phone = Phone(ua)
    assert phone.register(contact="*").status == 400
    assert len(contacts(ua)) == 3
    assert phone.register(("Expires", "0"), contact="*").status == 200
    assert contacts(ua) == []


def test_an_old_request_that_comes_late_changes_nothing():
    ua = server()
    phone = Phone(ua)
    phone.cseq = 10
    phone.register()
    phone.cseq = 3
    assert phone.register(("Expires", "0")).status == 500
    assert len(contacts(ua)) == 1


def test_the_oldest_contact_gives_way_and_a_hundred_at_once_are_refused():
    ua = server()
    for port in range(1, MAX_CONTACTS + 3):
        Phone(ua, port=port).register()
    assert contacts(ua) == [f"sip:101@10.0.0.5:{p}" for p in range(MAX_CONTACTS + 2, 2, -1)]
    many = ", ".join(f"<sip:101@10.0.0.5:{port}>" for port in range(1000, 1100))
    assert Phone(ua).register(contact=many).status == 403
    assert len(contacts(ua)) == MAX_CONTACTS


def test_proxies_on_the_way_are_kept_and_named_again():
    ua = server()
    answer = Phone(ua).register(("Path", "<sip:edge.example;lr>"), ("Supported", "path"))
    assert answer.headers.all("Path") == ["<sip:edge.example;lr>"]
    assert ua.phones.registrar.bindings("101")[0].path == ("<sip:edge.example;lr>",)


def test_nobody_registers_another_number():
    ua = server()
    assert Phone(ua, "102", "bob's").register(to="101").status == 403
    assert contacts(ua) == []


def test_an_unknown_number_is_told_from_a_wrong_password_by_nothing():
    replies = []
    for number in ("101", "999"):
        ua = server()
        phone = Phone(ua, number, "wrong")
        request = phone.request()
        first = phone.send(request)[0]
        second = phone.send(phone.digest.authorize(first, request))[0]
        replies.append(
            [
                (r.status, r.reason, re.sub('nonce="[^"]*"', "", r.headers.get("WWW-Authenticate")))
                for r in (first, second)
            ]
        )
        assert contacts(ua, number) == []
    assert replies[0] == replies[1]


def test_wrong_passwords_are_ignored_after_some():
    ua = server(requests_per_second=1000)
    phone = Phone(ua, password="wrong")
    answered = 0
    for _ in range(40):
        phone.digest = DigestClient("101", "wrong")
        request = phone.request()
        first = phone.send(request)
        if not first:
            break
        answered += len(phone.send(phone.digest.authorize(first[0], request)))
    assert answered < 15
    right = Phone(ua)
    assert right.send(right.request()) == []
    elsewhere = Phone(ua, flow=OFFICE)
    assert elsewhere.register().status == 200


def test_a_flood_of_registers_is_limited_per_source():
    ua = server()
    phone = Phone(ua)
    statuses = [r.status for _ in range(500) for r in phone.send(phone.request())]
    assert statuses.count(401) <= 60
    assert len(statuses) <= 62


def test_a_replayed_register_is_refused_as_stale_and_changes_nothing():
    ua = server()
    phone = Phone(ua)
    request = phone.request()
    proved = phone.digest.authorize(phone.send(request)[0], request)
    assert phone.send(proved)[0].status == 200
    phone.cseq = proved.cseq.number
    phone.register(("Expires", "0"))
    [again] = phone.send(proved)
    assert again.status == 401
    assert "stale=true" in again.headers.get("WWW-Authenticate")
    assert contacts(ua) == []
    thief = Phone(ua, flow=OFFICE)
    assert thief.send(proved)[0].status == 401  # nor from another address


@pytest.mark.parametrize("digest", [("MD5",), ("SHA-256", "MD5")])
def test_the_algorithms_of_the_settings_are_offered_in_order(digest):
    ua = server(digest=digest)
    phone = Phone(ua)
    [challenge] = phone.send(phone.request())
    offered = challenge.headers.all("WWW-Authenticate")
    assert [re.search("algorithm=([^,]+)", each)[1] for each in offered] == list(digest)
    assert phone.register().status == 200


def test_a_trunks_password_and_address_register_nothing():
    trunks = (Trunk("pbx", addresses=("203.0.113.0/24",), username="pbx", password="secret"),)
    ua = server(trunks=trunks)
    phone = Phone(ua, "pbx", "secret")
    assert phone.send(phone.request())[0].status == 401
    assert phone.register().status == 401
    assert len(ua.phones.registrar) == 0


def test_without_extensions_nobody_registers():
    ua = server(extensions={}, trunks=(Trunk("pbx", addresses=("203.0.113.0/24",)),))
    assert Phone(ua).register().status == 405


def test_a_call_from_a_phone_is_its_owners_whatever_its_from_says():
    ua = server()
    phone = Phone(ua)
    request = phone.request("INVITE", to="102", body=SDP)
    request.headers.set("From", "<sip:102@192.0.2.1>;tag=phone")
    [challenge] = phone.send(request)
    assert challenge.status == 401
    phone.send(phone.digest.authorize(challenge, request))
    [call] = [e for e in iter(ua.next_event, None) if isinstance(e, CallReceived)]
    assert call.trunk.extension == "101"


@pytest.mark.parametrize("anonymous", [False, True])
def test_a_registered_phone_is_asked_for_its_password_at_a_trunks_address_too(anonymous):
    trunks = (Trunk("pbx", addresses=("203.0.113.0/24",)),)
    ua = server(trunks=trunks, allow_anonymous=anonymous)
    phone = Phone(ua)
    phone.register()
    [challenge] = phone.send(phone.request("INVITE", to="102", body=SDP))
    assert challenge.status == 401


def test_a_registered_phone_may_ask_whether_we_are_there():
    ua = server()
    phone = Phone(ua)
    assert phone.send(phone.request("OPTIONS")) == []
    phone.register()
    assert [r.status for r in phone.send(phone.request("OPTIONS"))] == [200]


def test_another_password_in_the_settings_ends_the_bindings():
    ua = server()
    Phone(ua).register()
    Phone(ua, "102", "bob's", port=7).register()
    changed = {"101": Extension(password="new", name="Ann"), "102": BOB}
    ua.use(SipSettings(extensions=changed), START + 1)
    assert contacts(ua) == []
    assert len(contacts(ua, "102")) == 1


CONTACTS = st.lists(
    st.one_of(
        st.just("*"),
        st.builds(
            "<sip:{}@10.0.0.{}>;expires={}".format,
            st.sampled_from(["101", "x", "%00"]),
            st.integers(0, 30),
            st.one_of(st.integers(-5, 10**12), st.text("0123456789;=abc", max_size=5)),
        ),
        st.text('<>*";,=sip:@', max_size=12),
    ),
    max_size=12,
)


@settings(max_examples=150, deadline=None)
@given(CONTACTS, st.sampled_from(["", "0", "60", "x", "99999999999"]), st.integers(0, 400))
def test_whatever_a_phone_says_its_contacts_stay_bounded(values, expires, later):
    registrar = Registrar(EXTENSIONS, lambda number: None)
    for number, value in enumerate(values):
        headers = f"Expires: {expires}\r\n" if expires else ""
        text = (
            "REGISTER sip:us SIP/2.0\r\nVia: SIP/2.0/UDP 1.2.3.4;branch=z9hG4bK1\r\n"
            f"From: <sip:101@us>;tag=a\r\nTo: <sip:101@us>\r\nCall-ID: a\r\nCSeq: {number} REGISTER"
            f"\r\nContact: {value}\r\n{headers}Content-Length: 0\r\n\r\n"
        )
        try:
            request = parse_message(text.encode())
        except ValueError:
            continue
        answer = registrar.receive(request, "101", HOME, 0.0)
        assert answer.status in (200, 400, 403, 423, 500)
        assert len(registrar) <= MAX_CONTACTS
    registrar.handle_timer(MAX_EXPIRES_S + later)
    assert len(registrar) == 0
    assert not registrar.has_flow(HOME)
