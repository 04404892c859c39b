"""The traits of RFC 4475 in messages of our own, and in the RFC's where its files are at hand."""

from pathlib import Path

import pytest

from offhook.telephony.sip.messages.headers import CSeq
from offhook.telephony.sip.messages.message import (
    Message,
    MessageError,
    Request,
    Response,
    parse_message,
    respond,
    sdp_of,
)
from tests.fuzz.parser import read
from tests.support.sip_messages import SDP, TORTURE

RFC_FILES = Path(__file__).parents[5] / "shared/peers/rfc4475"

PARSES = [
    "wsinv",
    "intmeth",
    "esc01",
    "escnull",
    "esc02",
    "lwsdisp",
    "longreq",
    "dblreq",
    "semiuri",
    "transports",
    "mpart01",
    "unreason",
    "noreason",
    "baddate",
    "badaspec",
    "baddn",
    "badbranch",
    "unksm2",
    "bext01",
    "invut",
    "regaut01",
    "bcast",
    "zeromf",
    "cparam01",
    "cparam02",
    "regescrt",
    "sdp01",
    "inv2543",
]
REFUSED = {
    "clerr": "400 Body Shorter Than Content-Length",
    "ncl": "400 Malformed Content-Length",
    "scalar02": "400 Malformed CSeq",
    "quotbal": "400 Malformed To",
    "ltgtruri": "400 Malformed Request-URI",
    "lwsruri": "400 Malformed Request-Line",
    "lwsstart": "400 Malformed Request-Line",
    "trws": "400 Malformed Request-Line",
    "escruri": "400 Header Fields in the Request-URI",
    "regbadct": "400 Malformed Contact",
    "badvers": "505 Version Not Supported",
    "mismatch01": "400 Method of CSeq Is Not the Request's",
    "mismatch02": "400 Method of CSeq Is Not the Request's",
    "insuf": "400 Missing From",
    "unkscm": "416 Unsupported URI Scheme",
    "novelsc": "416 Unsupported URI Scheme",
    "multi01": "400 More Than One From",
    "mcl01": "400 More Than One Content-Length",
}
"""Requests, and what they are answered with."""
DROPPED = {
    "badinv01": "400 Malformed Via",
    "scalarlg": "400 Malformed CSeq",
    "bigcode": "400 Malformed Status-Line",
}
"""Responses, and a request of which it cannot be told where it came from."""


def rfc_message(name: str) -> bytes:
    path = RFC_FILES / f"{name}.dat"
    if not path.exists():
        pytest.skip("the messages of RFC 4475 are not here")
    data = path.read_bytes()
    return data + b"\r\n" if name == "baddn" else data  # the file lacks its last line break


def take(name: str, source: str) -> bytes:
    return TORTURE[name] if source == "ours" else rfc_message(name)


def torture(name: str) -> Message:
    return parse_message(TORTURE[name])


both = pytest.mark.parametrize("source", ["ours", "RFC 4475"])


def test_every_message_has_its_outcome() -> None:
    assert sorted(TORTURE) == sorted([*PARSES, *REFUSED, *DROPPED])
    assert len(TORTURE) == 49


@both
@pytest.mark.parametrize("name", PARSES)
def test_odd_messages_are_read_and_written(name: str, source: str) -> None:
    parsed = parse_message(take(name, source))
    written = parsed.serialize()
    assert parse_message(written).serialize() == written
    assert read(take(name, source)) == "parsed"


@both
@pytest.mark.parametrize("name", REFUSED)
def test_malformed_requests_are_answered(name: str, source: str) -> None:
    with pytest.raises(MessageError) as caught:
        parse_message(take(name, source))
    error = caught.value
    assert str(error) == REFUSED[name]
    assert error.request
    answer = respond(error.request, error.status, error.reason, to_tag="t").serialize()
    assert answer.startswith(f"SIP/2.0 {REFUSED[name]}\r\nVia: SIP/".encode())


@both
@pytest.mark.parametrize("name", DROPPED)
def test_what_cannot_be_answered_is_dropped(name: str, source: str) -> None:
    with pytest.raises(MessageError) as caught:
        parse_message(take(name, source))
    assert str(caught.value) == DROPPED[name]
    assert caught.value.request is None


def test_wsinv_is_an_invite_behind_its_white_space() -> None:
    invite = torture("wsinv")
    assert isinstance(invite, Request)
    assert invite.uri.parameter("flag") == ""
    assert (invite.to.tag, invite.from_.tag) == ("7761t", "55ff")
    assert invite.from_.display_name == 'A \\ B "'
    assert (invite.max_forwards, invite.cseq) == (71, CSeq(12, "INVITE"))
    assert [(via.transport, via.host, via.branch) for via in invite.vias] == [
        ("UDP", "192.0.2.40", "z9hG4bKws0"),
        ("TCP", "far.example", "z9hG4bKws1"),
        ("UDP", "198.51.100.44", "z9hG4bKws2"),
    ]
    assert invite.headers.get("Subject") == ""
    assert (invite.headers.get("Brand-New") or "").split() == ["one", "two"]
    assert invite.routes[0].uri.parameter("odd") == "yes"
    [contact] = invite.contacts
    assert contact.display_name == 'A "  quote'
    assert (contact.parameter("new"), contact.parameter("q")) == ("thing", "0.5")
    assert sdp_of(invite) == SDP.decode()


def test_intmeth_uses_every_character_it_may() -> None:
    odd = torture("intmeth")
    assert isinstance(odd, Request)
    assert odd.method == odd.cseq.method == "!ask_%24me'~+`"
    assert (odd.uri.user, odd.uri.password) == ("9_an.odd~(u$er)&so+on,?/;*", "p=&1~(w)")
    assert odd.to.display_name == "BEEP:\x07 ZERO:\x00 RUB:\x7f"
    assert odd.from_.display_name == "one~` two'+_ three*%!.-"
    assert odd.from_.parameter("own'~+*_!.-%") == "поиск"
    assert odd.headers.get("own-header-!.%*+_`'~") == "\ufeff電話"


def test_escapes_are_undone_in_uris_and_only_there() -> None:
    invite = torture("esc01")
    assert isinstance(invite, Request)
    assert invite.uri.user == "sips:desk@called.example"
    assert (invite.to.uri.user, invite.from_.uri.user) == ("desk", "I am ann")
    [contact] = invite.contacts
    assert contact.uri.user == "ann"
    assert contact.uri.parameters == (("lr", None), ("key", "v%41"))
    assert [contact.uri.user for contact in torture("escnull").contacts] == ["\0", "\0\0"]
    options = torture("esc02")
    assert isinstance(options, Request)
    assert options.method == "OPT%49ONS"
    assert options.to.display_name == "%Y%46"
    assert [contact.uri.user for contact in options.contacts] == ["one", "three"]


def test_only_the_first_of_two_messages_in_a_datagram_is_read() -> None:
    first = torture("dblreq")
    assert isinstance(first, Request)
    assert (first.method, first.body) == ("REGISTER", b"")


def test_a_long_request_has_all_its_vias() -> None:
    assert len(torture("longreq").vias) == 34


def test_unknown_transports_and_schemes_are_read() -> None:
    vias = torture("transports").vias
    assert [via.transport for via in vias] == ["UDP", "SCTP", "TLS", "PIGEON", "TCP"]
    register = torture("unksm2")
    assert (register.to.uri.scheme, register.from_.uri.scheme) == ("isbn", "https")
    assert register.contacts[0].uri.opaque == "Ann_Example"


def test_parameters_of_a_bare_contact_are_not_those_of_its_uri() -> None:
    [bare], [bracketed] = torture("cparam01").contacts, torture("cparam02").contacts
    assert (bare.parameter("flag"), bare.uri.parameter("flag")) == ("", None)
    assert (bracketed.parameter("flag"), bracketed.uri.parameter("flag")) == (None, "")
    [escaped] = torture("regescrt").contacts
    assert escaped.uri.headers == (("Route", "<sip:far.example>"),)


def test_a_reason_may_be_anything_or_nothing() -> None:
    unreason, noreason = torture("unreason"), torture("noreason")
    assert isinstance(unreason, Response)
    assert isinstance(noreason, Response)
    assert unreason.reason == "= 10**2 * 2; это двести"
    assert (noreason.status, noreason.reason) == (100, "")


def test_a_request_older_than_the_rfc_is_read() -> None:
    old = torture("inv2543")
    assert (old.via.branch, old.from_.tag, old.max_forwards) == (None, "", None)
    assert old.body == SDP
