import pytest
from hypothesis import given
from hypothesis import strategies as st

from offhook.telephony.sip.messages.grammar import SipError
from offhook.telephony.sip.messages.uri import Uri

SAME_TEXT = {
    "sip:called.example": Uri("sip", host="called.example"),
    "sip:ann@called.example": Uri("sip", "ann", "called.example"),
    "sips:ann:se$cret@192.0.2.4:5061": Uri("sips", "ann", "192.0.2.4", 5061, password="se$cret"),
    "sip:ann@[2001:db8::5]:5070;transport=tcp;lr": Uri(
        "sip", "ann", "2001:db8::5", 5070, (("transport", "tcp"), ("lr", None))
    ),
    "sip:ext_7@my_pbx.local;x=": Uri("sip", "ext_7", "my_pbx.local", None, (("x", ""),)),
    "sip:7;phone-context=pbx@h.example;user=phone": Uri(
        "sip", "7;phone-context=pbx", "h.example", None, (("user", "phone"),)
    ),
    "sip:b?c/d,e@h?Subject=a%20b%26c&Priority=high": Uri(
        "sip", "b?c/d,e", "h", headers=(("Subject", "a b&c"), ("Priority", "high"))
    ),
    "sip:@198.51.100.7": Uri("sip", "", "198.51.100.7"),
    "sip:%00%FF%C3%A4@h": Uri("sip", "\0\udcffä", "h"),
    "sip:198.51.100.1;lr;vst=AAA-%3DBB": Uri(
        "sip", host="198.51.100.1", parameters=(("lr", None), ("vst", "AAA-=BB"))
    ),
    "tel:+1-555-0100;phone-context=example.com": Uri(
        "tel", opaque="+1-555-0100", parameters=(("phone-context", "example.com"),)
    ),
    "urn:service:sos": Uri("urn", opaque="service:sos"),
}


@pytest.mark.parametrize(("text", "uri"), SAME_TEXT.items(), ids=SAME_TEXT)
def test_a_uri_reads_and_writes_the_same_text(text: str, uri: Uri) -> None:
    assert Uri.parse(text) == uri
    assert str(uri) == text


@pytest.mark.parametrize(
    ("text", "written"),
    [
        ("SIP:Ann@Called.EXAMPLE;Transport=TCP", "sip:Ann@called.example;transport=TCP"),
        ("sip:%61nn%40x@h", "sip:ann%40x@h"),
        ("sip:100%@h;;lr", "sip:100%25@h;lr"),
        ("sip:jürg@h", "sip:j%C3%BCrg@h"),
        ("sip:a@h:05060", "sip:a@h:5060"),
        ("sip:a@h?Replaces=1@2%3Bto-tag%3D3", "sip:a@h?Replaces=1%402%3Bto-tag%3D3"),
    ],
)
def test_what_is_let_pass_is_written_as_the_grammar_has_it(text: str, written: str) -> None:
    assert str(Uri.parse(text)) == written


@pytest.mark.parametrize(
    "text",
    [
        "",
        "ann",
        "ann@called.example",
        ":x",
        "1sip:a@h",
        "sip:",
        "sip:ann@",
        "sip:a b@h",
        "sip:a@h\r\nVia: x",
        "<sip:a@h>",
        'sip:"a"@h',
        "sip:a@b@c",
        "sip:a@h ;lr",
        "sip:a@h:",
        "sip:a@h:0",
        "sip:a@h:65536",
        "sip:a@h:٥",
        "sip:a@h:" + "9" * 5000,
        "sip:a@[2001:db8::5",
        "sip:a@[2001:db8::5]5060",
        "sip:a@[fe80::1%eth0]",
        "sip:a@[h]",
        "sip:a@2001:db8::5",
        "sip:a@hôte",
        "sip:a@h;=1",
        "sip:a@h?",
        "sip:a@h?Subject",
        "tel:",
        "tel:;ext=7",
    ],
)
def test_what_is_no_uri_is_refused(text: str) -> None:
    with pytest.raises(SipError):
        Uri.parse(text)


def test_parameters_are_set_replaced_and_taken_off() -> None:
    uri = Uri.parse("sip:a@h;lr;transport=udp")
    assert uri.parameter("lr") == ""
    assert uri.parameter("maddr") is None
    assert str(uri.with_parameter("transport", "tls")) == "sip:a@h;lr;transport=tls"
    assert str(uri.with_parameter("ob", None)) == "sip:a@h;lr;transport=udp;ob"
    assert str(uri.without_parameter("transport")) == "sip:a@h;lr"


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("tel:+1-(555)-01.00;ext=7", "+15550100"),
        ("sip:+1-555-0100;phone-context=x@h", "+15550100"),
        ("sip:*21#@h", "*21#"),
        ("sip:john.doe@h", "john.doe"),
        ("sip:h", ""),
        ("urn:service:sos", "service:sos"),
    ],
)
def test_the_number_has_no_visual_separators(text: str, number: str) -> None:
    assert Uri.parse(text).number == number


@given(
    st.text(alphabet=st.characters(exclude_categories=["Cs"])),
    st.text(alphabet=st.characters(exclude_categories=["Cs"]), min_size=1),
)
def test_any_text_comes_back_out_of_the_parts_that_escape(user: str, value: str) -> None:
    uri = Uri("sip", user, "h", None, (("x", value),), (("Replaces", value),), password=user)
    assert Uri.parse(str(uri)) == uri


@given(st.text() | st.text(alphabet="sip:%@;?&=[]<>aF0.\udcc3\udca4"))
def test_any_text_is_a_uri_that_writes_itself_or_is_refused(text: str) -> None:
    for candidate in (text, "sip:" + text, "sip:a@h" + text, "tel:" + text):
        try:
            uri = Uri.parse(candidate)
        except SipError:
            continue
        assert Uri.parse(str(uri)) == uri
