"""Settings that cannot work are refused in words, and a call finds its trunk and its route."""

from dataclasses import replace
from pathlib import Path

import pytest

from offhook.media.leg import CallInfo
from offhook.telephony.sip.dial_plan import request_uri
from offhook.telephony.sip.messages.grammar import SipError
from offhook.telephony.sip.messages.message import Request, parse_message
from offhook.telephony.sip.trunks.routes import Route, route
from offhook.telephony.sip.trunks.trunks import (
    SipSettings,
    Trunk,
    by_username,
    identify,
    read_address,
)


def invite(to="sip:100@pbx.example", from_="sip:alice@far.example"):
    message = parse_message(
        f"INVITE {to} SIP/2.0\r\nVia: SIP/2.0/UDP 10.0.0.1;branch=z9hG4bK1\r\n"
        f"From: <{from_}>;tag=1\r\nTo: <{to}>\r\nCall-ID: c\r\nCSeq: 1 INVITE\r\n\r\n".encode()
    )
    assert isinstance(message, Request)
    return message


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"name": ""}, "a trunk needs a name"),
        ({"addresses": ("10.0.0.300",)}, "10.0.0.300"),
        ({"addresses": ("example.com",)}, "addresses"),
        ({"register": True}, "register needs a server and a username"),
        ({"register": True, "server": "a.example"}, "username"),
        ({"password": "p"}, "a password needs a username"),
        ({"transport": "SCTP"}, "UDP, TCP or TLS, not 'SCTP'"),
        ({"srtp": "yes"}, "off, optional or required"),
        ({"codecs": ()}, "codecs is empty"),
        ({"codecs": ("g729",)}, "unknown codec 'g729'"),
        ({"headers": ("X-A: b",)}, "'X-A: b' is not a valid header name"),
        ({"expires_seconds": 0}, "expires_seconds"),
        ({"session_seconds": 30}, "at least 90"),
        ({"server": "a b"}, "server"),
        ({"server": "tel:+49"}, "server"),
        ({"server": "[::1"}, "server"),
        ({"server": "a.example:70000"}, "server"),
        ({"username": "a\r\nVia: x", "password": "p"}, "username"),
        ({"caller_id": "\0"}, "caller_id"),
        ({"caller_id_header": "rpid"}, "caller_id_header"),
        ({"public_name": "sbc.example.com:5061"}, "public_name must be a host name"),
        ({"public_name": "2001:db8::1"}, "public_name must be a host name"),
        ({"public_name": "sbc"}, "public_name must be a host name"),
        ({"public_name": "-sbc.example"}, "public_name must be a host name"),
        ({"server": "a.example", "backup_servers": ("tel:+49",)}, "backup_servers"),
        ({"backup_servers": ("a.example",)}, "backup_servers needs a server"),
        ({"webrtc": True, "srtp": "off"}, "srtp must not be off"),
    ],
)
def test_a_trunk_that_cannot_work_is_refused_in_words(values, said):
    with pytest.raises(SipError) as error:
        Trunk(**{"name": "carrier", **values})
    assert said in str(error.value)
    assert "Traceback" not in str(error.value)
    if values.get("name", "x"):
        assert "'carrier'" in str(error.value)


@pytest.mark.parametrize(
    ("server", "host", "port"),
    [
        ("sip.example.com", "sip.example.com", None),
        ("sip.example.com:5080", "sip.example.com", 5080),
        ("SIP:Sip.Example.com:5080;transport=tcp", "sip.example.com", 5080),
        ("192.0.2.1", "192.0.2.1", None),
        ("2001:db8::1", "2001:db8::1", None),
        ("[2001:db8::1]:5080", "2001:db8::1", 5080),
    ],
)
def test_a_server_is_a_host_a_host_with_a_port_or_a_uri(server, host, port):
    trunk = Trunk("t", username="u", server=server)
    assert (trunk.server_uri.host, trunk.server_uri.port) == (host, port)
    assert (trunk.registrar.host, trunk.registrar.port) == (host, port)
    assert trunk.address_of_record.host == host
    assert trunk.address_of_record.port is None


def test_a_domain_stands_in_from_and_to_and_in_the_registrars_uri():
    trunk = Trunk("t", username="u", server="10.0.0.1:5080", domain="example.com")
    assert str(trunk.registrar) == "sip:example.com"
    assert str(trunk.address_of_record) == "sip:u@example.com"
    with pytest.raises(SipError, match="no server"):
        _ = Trunk("inbound").server_uri


def test_a_password_is_not_shown():
    trunk = Trunk("t", username="u", password="hush-hush", server="a.example")
    assert "hush-hush" not in repr(trunk) + repr(SipSettings(trunks=(trunk,)))


PEM = {"certificate": Path("c.pem"), "key": Path("k.pem")}


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"udp": 70000}, "udp must be a port"),
        ({"wss": -1, **PEM}, "wss must be a port"),
        ({"tls": 5061}, "need a certificate"),
        ({"wss": 443, "certificate": Path("c.pem")}, "need a certificate"),
        ({"rtp_ports": (20000, 10000)}, "rtp_ports"),
        ({"rtp_ports": (0, 10000)}, "rtp_ports"),
        ({"rtp_ports": (10000, 70000)}, "rtp_ports"),
        ({"trunks": (Trunk("a"), Trunk("a"))}, "two trunks are named 'a'"),
        ({"routes": (Route(trunk="b"),)}, "unknown trunk 'b'"),
        ({"unknown": "challenge"}, "drop or refuse"),
        ({"requests_per_second": 0}, "requests_per_second"),
        ({"media_timeout_seconds": -1}, "media_timeout_seconds"),
        ({"max_calls": 0}, "max_calls"),
        ({"trace_messages": -1}, "trace_messages"),
        ({"user_agent": "a\nb"}, "user_agent"),
    ],
)
def test_settings_that_cannot_work_are_refused_in_words(values, said):
    with pytest.raises(SipError) as error:
        SipSettings(**values)
    assert said in str(error.value)


def test_settings_that_work_are_taken():
    SipSettings()
    SipSettings(
        udp=0, tcp=None, tls=5061, wss=0, trunks=(Trunk("a"),), routes=(Route(trunk="a"),), **PEM
    )


@pytest.mark.parametrize("header", ["X-A", ": x", "X A: b", ":"])
def test_a_routes_header_is_a_name_and_a_pattern(header):
    with pytest.raises(SipError, match="header"):
        Route(header=header)


# --- whose call it is ---

PBX = Trunk("pbx", addresses=("192.0.2.0/24", "2001:db8::/32"), domain="pbx.example")
OFFICE = Trunk("office", addresses=("192.0.2.7",))
CARRIER = Trunk("carrier", username="1001", password="x", server="198.51.100.1:5080", register=True)
SECOND = Trunk("second", username="1002", password="y", server="198.51.100.1", register=True)
PHONE = Trunk("phone", username="1001", password="z")
TRUNKS = (PBX, OFFICE, CARRIER, SECOND, PHONE)


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ("192.0.2.9", "pbx"),
        ("192.0.2.7", "office"),
        ("::ffff:192.0.2.9", "pbx"),
        ("2001:db8:9::1", "pbx"),
        ("2001:db8:9::1%eth0", "pbx"),
        ("198.51.100.1", "carrier"),
        ("198.51.100.2", None),
        ("10.0.0.1", None),
        ("2001:db9::1", None),
        ("nonsense", None),
        ("", None),
    ],
)
def test_a_trunk_is_known_by_its_address(source, name):
    found = identify(TRUNKS, source, invite("sip:100@offhook.example"))
    assert (found.name if found else None) == name


def test_accounts_at_one_provider_are_told_apart_by_who_is_called():
    for user, name in (("1001", "carrier"), ("1002", "second"), ("999", "carrier")):
        assert identify(TRUNKS, "198.51.100.1", invite(f"sip:{user}@10.0.0.1:5060")).name == name


def test_trunks_behind_one_address_are_told_apart_by_their_domain():
    other = replace(PBX, name="other", domain="far.example")
    for domain in ("pbx.example", "far.example"):
        request = invite(f"sip:100@{domain}", "sip:a@b.example")
        assert identify((PBX, other), "192.0.2.9", request).domain == domain


def test_trunks_behind_one_address_are_told_apart_by_the_name_they_know_us_by():
    one = replace(PBX, name="one", public_name="one.example")
    two = replace(PBX, name="two", public_name="two.example")
    for name in ("one", "two"):
        request = invite(f"sip:100@{name}.example", "sip:a@pbx.example")
        assert identify((one, two), "192.0.2.9", request).name == name


def test_a_backup_servers_address_is_the_trunks_too():
    trunk = Trunk("t", server="198.51.100.1", backup_servers=("198.51.100.2:5080",))
    assert [uri.host for uri in trunk.server_uris] == ["198.51.100.1", "198.51.100.2"]
    assert identify((trunk,), "198.51.100.2", invite()) is trunk
    assert trunk.is_host("198.51.100.2")
    assert not trunk.is_host("198.51.100.3")


def test_a_number_is_called_with_the_transport_of_the_servers_uri():
    trunk = Trunk("t", server="sip:wa.example:5061;transport=tls", transport="TLS")
    assert str(request_uri("+49 30 1", trunk)) == "sip:+49301@wa.example:5061;transport=tls"
    elsewhere = replace(trunk, domain="far.example")
    assert str(request_uri("+49 30 1", elsewhere)) == "sip:+49301@far.example"


def test_a_servers_name_counts_as_the_addresses_it_has_now():
    named = Trunk("named", username="u", server="sip.example.com")
    assert identify((named,), "203.0.113.5", invite()) is None
    assert identify((named,), "203.0.113.5", invite(), {"named": {"203.0.113.5"}}) is named


def test_a_password_belongs_to_the_trunk_that_calls_us_first():
    assert by_username(TRUNKS, "1001") is PHONE
    assert by_username(TRUNKS, "1002") is SECOND
    assert by_username(TRUNKS, "") is None
    assert by_username((Trunk("open", username="u"),), "u") is None


def test_an_address_is_read_in_every_spelling():
    assert str(read_address("::ffff:10.0.0.1")) == "10.0.0.1"
    assert str(read_address("fe80::1%eth0")) == "fe80::1"
    assert read_address("host") is None


# --- where it goes ---

ROUTES = (
    Route("vip", header="X-Customer: gold*"),
    Route("support", called="+49*", trunk="pbx"),
    Route("sales", called="Sales"),
    Route("night", caller="*999"),
    Route("fallback", trunk="carrier"),
)


@pytest.mark.parametrize(
    ("call", "agent"),
    [
        (CallInfo(called="+4930123", trunk="pbx"), "support"),
        (CallInfo(called="+4930123", trunk="office"), None),
        (CallInfo(called="SALES"), "sales"),
        (CallInfo(called="presales"), None),
        (CallInfo(caller="+1999", called="1"), "night"),
        (CallInfo(called="1", trunk="carrier"), "fallback"),
        (CallInfo(called="sales", headers={"x-customer": "Gold-7"}), "vip"),
        (CallInfo(called="sales", headers={"X-Customer": "silver"}), "sales"),
        (CallInfo(), None),
    ],
)
def test_the_first_route_that_fits_takes_the_call(call, agent):
    found = route(ROUTES, call)
    assert (found.agent if found else None) == agent


def test_a_route_without_patterns_takes_everything():
    assert route((Route("all"),), CallInfo(called="x")).agent == "all"
