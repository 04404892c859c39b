import pytest
from hypothesis import given
from hypothesis import strategies as st

from offhook.telephony.sip.messages.grammar import SipError, parse_number
from offhook.telephony.sip.messages.headers import COMPACT_NAMES, CSeq, Headers, NameAddr, Via
from offhook.telephony.sip.messages.uri import Uri

ANN = Uri.parse("sip:ann@h")
TEXT = st.text(alphabet=st.characters(exclude_categories=["Cs"]))


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("sip:ann@h", NameAddr(ANN)),
        ("<sip:ann@h>", NameAddr(ANN)),
        ("< sip:ann@h >", NameAddr(ANN)),
        ("sip:ann@h;tag=1", NameAddr(ANN, "", (("tag", "1"),))),
        (
            "<sip:ann@h;lr>;Tag = 1 ; x",
            NameAddr(Uri.parse("sip:ann@h;lr"), "", (("tag", "1"), ("x", None))),
        ),
        ("Ann<sip:ann@h>", NameAddr(ANN, "Ann")),
        ("Ann  van X <sip:ann@h>", NameAddr(ANN, "Ann  van X")),
        ("Bell, Ann <sip:ann@h>", NameAddr(ANN, "Bell, Ann")),
        ("Änn \udcff <sip:ann@h>", NameAddr(ANN, "Änn \udcff")),
        ('  "Ann"<sip:ann@h>', NameAddr(ANN, "Ann")),
        (r'"a \"b\" \\ <sip:x@y>, \c" <sip:ann@h>', NameAddr(ANN, r'a "b" \ <sip:x@y>, c')),
        ('<sip:ann@h>;q="a;b, \\"";r', NameAddr(ANN, "", (("q", 'a;b, "'), ("r", None)))),
        ("<sip:ann@h>;;tag=1;", NameAddr(ANN, "", (("tag", "1"),))),
        ("<sip:ann@h>;vst=AAA-=BB", NameAddr(ANN, "", (("vst", "AAA-=BB"),))),
        ("<https://h/?x,y>", NameAddr(Uri("https", opaque="//h/?x,y"))),
    ],
)
def test_names_and_addresses_are_read(text: str, value: NameAddr) -> None:
    assert NameAddr.parse(text) == value
    assert NameAddr.parse(str(value)) == value


@pytest.mark.parametrize(
    "text",
    [
        "",
        "*",
        "Ann",
        "<>",
        "<sip:ann@h",
        '"Ann <sip:ann@h>',
        '"Ann',
        '"Ann" sip:ann@h',
        '"Ann" x <sip:ann@h>',
        'Ann "B" <sip:ann@h>',
        "sip:ann@h?Subject=a",
        "sip:a,b@h",
        "<sip:ann@h> x;tag=1",
        "<sip:ann@h>;tag=1, <sip:bob@h>",
        "<sip:ann@h>;tag=a b",
        '<sip:ann@h>;tag="a',
        '<sip:ann@h>;tag="a"b',
        "<sip:ann@h>;=1",
        "<sip:ann@h>;t g=1",
    ],
)
def test_what_is_no_name_and_address_is_refused(text: str) -> None:
    with pytest.raises(SipError):
        NameAddr.parse(text)


def test_parameters_of_the_uri_and_of_the_header_field_are_kept_apart() -> None:
    inside = NameAddr.parse("<sip:ann@h;tag=1>")
    assert (inside.tag, inside.uri.parameter("tag")) == ("", "1")
    outside = NameAddr.parse("sip:ann@h;tag=1")
    assert (outside.tag, outside.uri.parameter("tag")) == ("1", None)
    assert str(inside.with_parameter("tag", "2")) == "<sip:ann@h;tag=1>;tag=2"


@given(TEXT, TEXT)
def test_any_name_and_parameter_come_back_out_of_their_quotes(name: str, value: str) -> None:
    address = NameAddr(ANN, name, (("x", value), ("y", None)))
    assert NameAddr.parse(str(address)) == address


@pytest.mark.parametrize(
    ("text", "via"),
    [
        ("SIP/2.0/UDP h;branch=z9hG4bK1", Via("UDP", "h", None, (("branch", "z9hG4bK1"),))),
        ("SIP/2.0/tls my_pbx:5061", Via("TLS", "my_pbx", 5061)),
        ("sip  / 2.0\t/ TCP \t h : 5060 ; RPORT", Via("TCP", "h", 5060, (("rport", None),))),
        ('SIP/2.0/WSS [2001:DB8::1]:443;x="a;b"', Via("WSS", "2001:db8::1", 443, (("x", "a;b"),))),
        (
            "SIP/2.0/UDP [2001:db8::1];received=[2001:db8::9]",
            Via("UDP", "2001:db8::1", None, (("received", "[2001:db8::9]"),)),
        ),
    ],
)
def test_vias_are_read(text: str, via: Via) -> None:
    assert Via.parse(text) == via
    assert Via.parse(str(via)) == via


@pytest.mark.parametrize(
    "text",
    [
        "",
        ";",
        "SIP/2.0",
        "SIP/2.0/UDP",
        "SIP/2.0/ h",
        "HTTP/1.1/TCP h",
        "SIP/2.0/UDP h i",
        "SIP/2.0/UDP [::1",
    ],
)
def test_what_is_no_via_is_refused(text: str) -> None:
    with pytest.raises(SipError):
        Via.parse(text)


def test_a_via_tells_what_it_asks_for() -> None:
    via = Via.parse("SIP/2.0/UDP 10.0.0.1;rport;branch=z9hG4bK1")
    assert (via.branch, via.rport, via.received) == ("z9hG4bK1", "", None)


def test_a_cseq_is_a_number_and_a_method() -> None:
    assert CSeq.parse("0009 \t INVITE") == CSeq(9, "INVITE")
    assert str(CSeq(2147483647, "BYE")) == "2147483647 BYE"
    for text in ("", "1", "INVITE", "1 2 3", "-1 BYE", "2147483648 BYE", "1 BY(E", "٣ BYE"):
        with pytest.raises(SipError):
            CSeq.parse(text)


@pytest.mark.parametrize("text", ["", "-1", "+1", " 1", "1.0", "0x1", "²", "١", "256", "9" * 9000])
def test_only_decimal_digits_within_the_limit_are_a_number(text: str) -> None:
    with pytest.raises(SipError):
        parse_number(text, 255)


def test_numbers_may_begin_with_zeros() -> None:
    assert parse_number("0" * 5000 + "255", 255) == 255
    assert parse_number("000", 255) == 0


def test_names_are_found_in_any_case_and_compact_and_written_as_usual() -> None:
    headers = Headers([("v", "1"), ("CALL-id", "2"), ("x-Own", "3")])
    assert headers.items() == [("Via", "1"), ("Call-ID", "2"), ("x-Own", "3")]
    assert headers.get("VIA") == headers.get("v") == "1"
    assert headers.get("i") == "2"
    assert headers.get("X-oWN") == "3"
    assert "call-ID" in headers
    assert "To" not in headers
    assert headers.get("t") is None


def test_every_compact_name_is_that_of_a_known_header_field() -> None:
    for compact, name in COMPACT_NAMES.items():
        [(spelling, _)] = Headers([(compact.upper(), "x")]).items()
        assert spelling.lower() == name


def test_lists_are_taken_apart_at_commas_that_part_values() -> None:
    headers = Headers(
        [
            ("Contact", '"a, \\", b" <sip:a,b@h>;x="c, d" , ,<sip:e@h>'),
            ("Subject", "one, two"),
            ("m", "sip:f@h"),
            ("WWW-Authenticate", 'Digest realm="a", nonce="b"'),
        ]
    )
    assert headers.all("Contact") == [
        '"a, \\", b" <sip:a,b@h>;x="c, d"',
        "<sip:e@h>",
        "sip:f@h",
    ]
    assert headers.all("Subject") == ["one, two"]
    assert headers.all("WWW-Authenticate") == ['Digest realm="a", nonce="b"']
    assert headers.all("Via") == []


@pytest.mark.parametrize("text", ['a, "b, c', "a, <b, c", 'a, <b", c'])
def test_what_follows_an_open_quote_or_bracket_is_one_value(text: str) -> None:
    assert Headers([("Accept", text)]).all("Accept") == ["a", text[3:]]


def test_a_list_yields_no_more_values_than_asked_for() -> None:
    headers = Headers([("Accept", ",".join("abc")), ("Accept", ",".join("def"))])
    assert headers.all("Accept", 4) == ["a", "b", "c", "d"]
    assert len(Headers([("Accept", "a," * 500)]).all("Accept")) == 100


def test_header_fields_are_changed_in_their_place() -> None:
    headers = Headers([("Via", "1"), ("To", "2"), ("Via", "3"), ("From", "4")])
    headers.set("Via", "a", "b")
    assert headers.items() == [("Via", "a"), ("Via", "b"), ("To", "2"), ("From", "4")]
    headers.prepend("v", "0")
    headers.add("Subject", "5")
    headers.remove("To")
    headers.set("Expires", "6")
    assert headers.items() == [
        ("Via", "0"),
        ("Via", "a"),
        ("Via", "b"),
        ("From", "4"),
        ("Subject", "5"),
        ("Expires", "6"),
    ]
    copy = headers.copy()
    copy.remove("Via")
    assert headers.count("Via") == 3


def test_nothing_given_as_a_header_field_begins_another() -> None:
    headers = Headers([("Subject", "a\r\nVia: b\nc\rd")])
    assert headers.get("Subject") == "a  Via: b c d"
    for name in ("", "a b", "a:b", "a\r\nVia", "ä"):
        with pytest.raises(SipError):
            headers.add(name, "x")


def test_headers_show_no_values_in_logs() -> None:
    assert repr(Headers([("Authorization", "secret"), ("t", "x")])) == "Headers(Authorization, To)"
