"""Where a call may go by the providers' REST, and that nothing else gets into a request."""

from urllib.parse import parse_qs
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from offhook.media.leg import LegError
from offhook.telephony.carriers.plivo.rest import transfer_markup
from offhook.telephony.carriers.rest.request import DialRequest, RestError, destination, path_id
from offhook.telephony.carriers.twilio.rest import dial_markup
from tests.telephony.carriers.rest.fake_rest_words import settings_for
from tests.telephony.carriers.specs import api

TO = "+14155551212"
SIP = "sip:desk@pbx.example.org;transport=tls"
WEBHOOK = "https://voice.example.org/carriers/x/answer"
CONTROLLED = ("twilio", "telnyx", "plivo", "vonage")


def api_of(provider, **changes):
    return api(settings_for(provider, "", **changes))


def only_noun(markup):
    """The one thing that a document dials, and how it calls it."""
    response = ElementTree.fromstring(markup)
    (dial,) = response
    (noun,) = dial
    assert [response.tag, dial.tag, len(noun)] == ["Response", "Dial", 0]
    assert not any(element.attrib for element in response.iter())
    return noun.tag, noun.text


@pytest.mark.parametrize(
    "text",
    [
        TO,
        "+4930123456",
        SIP,
        "sips:+4930123456@[2001:db8::1]:5061",
        "sip:a.b-c_d~e*1@192.0.2.1:5060;user=phone;lr",
    ],
)
def test_numbers_and_sip_uris_are_taken(text):
    assert destination(text) == text


def test_a_tel_uri_and_space_around_are_taken_off():
    assert destination(f" tel:{TO}\n") == TO


@pytest.mark.parametrize(
    "text",
    [
        "",
        "+",
        "4155551212",
        "004930123456",
        "+0123456789",
        "+1234567890123456",
        "+1415555121२",
        "+1415555 1212",
        "+14155551212,200",
        "+14155551212<+14155551213",
        "+14155551212;ext=1",
        "+14155551212\n+14155551213",
        "client:alice",
        "sip:pbx.example.org",
        "sip:a@",
        "sip:a@b c",
        "sip:a@host?Replaces=1",
        "sip:a,200@host",
        "sip:a%0d%0a@host",
        "sip:a@host;x=<y>",
        "sip:a@host</Sip><Sip>sip:b@host",
        'sip:a@host"',
        "sip:a@host&To=+14155551212",
        "sip:a:password@host",
        "sip:a@b@c",
        "sip:" + "a" * 500 + "@host",
        "https://example.org/",
        "911",
    ],
)
def test_nothing_else_is(text):
    with pytest.raises(RestError, match="not a valid destination") as error:
        destination(text)
    assert isinstance(error.value, LegError)
    assert error.value.status == 0
    assert len(str(error.value)) < 400
    for make in (dial_markup, lambda text: transfer_markup(text, WEBHOOK)):
        with pytest.raises(RestError):
            make(text)
    for provider in CONTROLLED:
        with pytest.raises(RestError):
            api_of(provider).transfer("1f2d7a3c-58b6", text)


@given(st.text() | st.from_regex(r"(\+|sips?:).*", fullmatch=True))
def test_what_comes_through_is_one_element_of_markup_and_one_value_of_a_form(text):
    try:
        target = destination(text)
    except RestError:
        return
    assert target.isascii()
    assert target.isprintable()
    assert not set(target) & set("<>&\"'?,# \\")
    assert only_noun(dial_markup(text))[1] == target
    form = parse_qs(api_of("twilio").transfer("CA1", text).body.decode())
    assert form.keys() == {"Twiml"}


@pytest.mark.parametrize("caller", ["", "anonymous", "+49 30 1", "+1\n2345", "sip:a@b", "٣٤٥٦"])
def test_a_caller_id_is_digits(caller):
    with pytest.raises(RestError, match="caller ID"):
        DialRequest(TO, caller, WEBHOOK)


@pytest.mark.parametrize(
    "call_id",
    ["", ".", "..", "../../Accounts", "CA1/../CA2", "CA1?x=1", "CA1#", "CA1%2F", "a b", "ü"],
)
def test_an_id_that_could_change_the_url_is_refused(call_id):
    for provider in CONTROLLED:
        with pytest.raises(RestError, match="not a valid id of a call"):
            api_of(provider).hang_up(call_id)
        with pytest.raises(RestError, match="not a valid id of a call"):
            api_of(provider).transfer(call_id, TO)
    with pytest.raises(RestError):
        path_id("x" * 201)


def test_so_is_an_account_that_could():
    for provider in ("twilio", "telnyx", "plivo", "exotel"):
        with pytest.raises(RestError, match="not a valid id of an"):
            api_of(provider, account="../other").dial(DialRequest(TO, "12345", WEBHOOK))
