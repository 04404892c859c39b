"""What a webhook says and what it is answered, beside what the providers' libraries write."""

import json
from urllib.parse import parse_qsl, urlencode, urlsplit
from xml.etree.ElementTree import canonicalize, fromstring

import pytest
from hypothesis import given
from hypothesis import strategies as st

from offhook.telephony.carriers.auth.signatures import MAX_BODY_BYTES
from offhook.telephony.carriers.rest.markup import (
    CONTINUING,
    WebhookCall,
    answer,
    hang_up,
    parse_webhook,
    refusal,
    retry,
)
from tests.telephony.carriers.auth.signing import carrier

URL = "wss://voice.example.org/carriers/x/stream/Ab-_1"
PARAMETERS = {"agent": "frontdesk", "note": 'a<b & "ü"'}
FORM = "application/x-www-form-urlencoded"
ASKING = ("twilio", "telnyx", "plivo", "vonage", "exotel")
OPENING = ("genesys", "audiosocket", "chan_websocket")


def same(one, other):
    return canonicalize(one) == canonicalize(other)


class TestAnswer:
    def test_twilios_library_writes_the_same(self):
        twiml = pytest.importorskip("twilio.twiml.voice_response")
        kind, body = answer(carrier("twilio"), URL, PARAMETERS)
        response, connect = twiml.VoiceResponse(), twiml.Connect()
        stream = twiml.Stream(url=URL)
        for name, value in PARAMETERS.items():
            stream.parameter(name=name, value=value)
        connect.append(stream)
        response.append(connect)
        assert kind == "application/xml"
        assert same(body, response.to_xml())

    def test_plivos_library_writes_the_same(self):
        xml = pytest.importorskip("plivo.xml")
        kind, body = answer(carrier("plivo"), URL, {"agent": "frontdesk", "count": "3"})
        response = xml.ResponseElement()
        response.add(
            xml.StreamElement(
                URL,
                bidirectional=True,
                keepCallAlive=True,
                contentType="audio/x-mulaw;rate=8000",
                extraHeaders="agent=frontdesk,count=3",
            )
        )
        assert kind == "application/xml"
        assert same(body, response.to_string(False))

    def test_telnyx_is_asked_for_sound_both_ways(self):
        kind, body = answer(carrier("telnyx", encoding="pcma"), URL, {"a": "1"})
        stream = fromstring(body).find("Connect/Stream")
        assert kind == "application/xml"
        assert stream.attrib == {
            "url": URL,
            "bidirectionalMode": "rtp",
            "bidirectionalCodec": "PCMA",
            "bidirectionalSamplingRate": "8000",
            "codec": "PCMA",
        }
        assert [p.attrib for p in stream] == [{"name": "a", "value": "1"}]
        wide = fromstring(answer(carrier("telnyx", encoding="l16"), URL)[1]).find("Connect/Stream")
        assert wide.get("bidirectionalCodec") == "L16"
        assert wide.get("bidirectionalSamplingRate") == "16000"
        assert wide.get("codec") is None  # comes as the call has it

    def test_vonage_is_told_what_its_first_message_says(self):
        incoming = WebhookCall("uuid-1", "15550100", "15550101")
        kind, body = answer(carrier("vonage", rate=24000), URL, PARAMETERS, incoming)
        assert kind == "application/json"
        assert json.loads(body) == [
            {
                "action": "connect",
                "endpoint": [
                    {
                        "type": "websocket",
                        "uri": URL,
                        "content-type": "audio/l16;rate=24000",
                        "headers": PARAMETERS
                        | {"uuid": "uuid-1", "from": "15550100", "to": "15550101"},
                    }
                ],
            }
        ]

    def test_exotel_gets_a_url(self):
        assert json.loads(answer(carrier("exotel"), URL)[1]) == {"url": URL}
        body = answer(carrier("exotel", rate=16000), URL, PARAMETERS)[1]
        parts = urlsplit(json.loads(body)["url"])
        assert parse_qsl(parts.query) == [("sample-rate", "16000"), *PARAMETERS.items()]
        more = {"a": "1" * 300, "b": "2", "c": "3", "d": "4"}
        url = json.loads(answer(carrier("exotel"), f"{URL}?token=t", more)[1])["url"]
        assert url == f"{URL}?token=t&b=2&c=3"

    def test_what_a_provider_cannot_carry_is_left_out(self):
        body = answer(carrier("plivo"), URL, {"a": "1", "b": "+1 555", "c_d": "x", "e": "2"})[1]
        assert fromstring(body).find("Stream").get("extraHeaders") == "a=1,e=2"
        body = answer(carrier("plivo"), URL, {"a": "1" * 600, "b": "2" * 500, "c": "3" * 20})[1]
        assert fromstring(body).find("Stream").get("extraHeaders") == "b=" + "2" * 500
        assert (
            fromstring(answer(carrier("plivo"), URL)[1]).find("Stream").get("extraHeaders") is None
        )
        body = answer(carrier("twilio"), URL, {"a": "1" * 500, "b": "2"})[1]
        assert [p.get("name") for p in fromstring(body).iter("Parameter")] == ["b"]

    @pytest.mark.parametrize("provider", OPENING)
    def test_those_who_do_not_ask_are_not_answered(self, provider):
        with pytest.raises(ValueError, match=provider):
            answer(carrier(provider), URL)
        with pytest.raises(ValueError, match=provider):
            refusal(carrier(provider))
        with pytest.raises(ValueError, match=provider):
            parse_webhook(carrier(provider), "", b"", {})

    @given(st.dictionaries(st.text(), st.text()), st.sampled_from(ASKING))
    def test_any_parameter_makes_a_document_that_can_be_read(self, parameters, provider):
        kind, body = answer(carrier(provider), URL, parameters)
        body.encode()
        document = json.loads(body) if kind == "application/json" else fromstring(body)
        if provider in ("twilio", "telnyx"):
            assert document.find("Connect/Stream").get("url") == URL


class TestRefusal:
    @pytest.mark.parametrize("reason", ["busy", "rejected"])
    def test_the_libraries_write_the_same(self, reason):
        twiml = pytest.importorskip("twilio.twiml.voice_response")
        plivo = pytest.importorskip("plivo.xml")
        response = twiml.VoiceResponse()
        response.reject(reason=reason)
        for provider in ("twilio", "telnyx"):
            assert same(refusal(carrier(provider), reason)[1], response.to_xml())
        response = plivo.ResponseElement()
        response.add(plivo.HangupElement(reason=reason))
        assert same(refusal(carrier("plivo"), reason)[1], response.to_string(False))

    def test_those_without_a_word_for_it_get_nothing_to_do(self):
        assert refusal(carrier("vonage")) == ("application/json", "[]")
        assert refusal(carrier("exotel")) == ("application/json", "{}")


class TestContinuation:
    """What a carrier does once our side has closed the stream."""

    THEN = "https://voice.example.org/carriers/x/resume/Ab-_1?tries=1"

    def test_twilios_library_writes_the_same(self):
        twiml = pytest.importorskip("twilio.twiml.voice_response")
        response, connect = twiml.VoiceResponse(), twiml.Connect()
        connect.append(twiml.Stream(url=URL))
        response.append(connect)
        response.redirect(self.THEN, method="POST")
        assert same(answer(carrier("twilio"), URL, then_url=self.THEN)[1], response.to_xml())
        again, end = twiml.VoiceResponse(), twiml.VoiceResponse()
        again.pause(length=1)
        again.redirect(self.THEN, method="POST")
        end.hangup()
        assert same(retry(carrier("twilio"), self.THEN)[1], again.to_xml())
        assert same(hang_up()[1], end.to_xml())

    def test_plivos_library_writes_the_same(self):
        xml = pytest.importorskip("plivo.xml")
        again = xml.ResponseElement()
        again.add(xml.WaitElement(length=1))
        again.add(xml.RedirectElement(self.THEN, method="POST"))
        assert same(retry(carrier("plivo"), self.THEN)[1], again.to_string(False))
        stream, redirect = fromstring(answer(carrier("plivo"), URL, then_url=self.THEN)[1])
        assert (stream.tag, stream.get("keepCallAlive")) == ("Stream", "true")
        assert (redirect.tag, redirect.text) == ("Redirect", self.THEN)

    @pytest.mark.parametrize("provider", [p for p in ASKING if p not in CONTINUING])
    def test_others_are_not_asked_for_what_they_do_not_document(self, provider):
        one = answer(carrier(provider), URL, then_url=self.THEN)
        assert one == answer(carrier(provider), URL)


WEBHOOKS = [
    (
        "twilio",
        FORM,
        urlencode(
            {
                "CallSid": "CA0123",
                "AccountSid": "AC0123",
                "From": "+15550100",
                "To": "+15550101",
                "CallStatus": "ringing",
                "CallerName": "",
            }
        ),
        {"agent": "night"},
        WebhookCall(
            "CA0123",
            "+15550100",
            "+15550101",
            {"AccountSid": "AC0123", "CallerName": "", "agent": "night"},
            "ringing",
        ),
    ),
    (
        "telnyx",
        FORM + "; charset=utf-8",
        urlencode(
            {
                "CallSid": "v3:abc",
                "From": "sip:a@b",
                "To": "+15550101",
                "CallStatus": "completed",
                "ConnectionId": "123",
            }
        ),
        {},
        WebhookCall("v3:abc", "sip:a@b", "+15550101", {"ConnectionId": "123"}, "completed"),
    ),
    (
        "plivo",
        FORM,
        urlencode(
            {
                "CallUUID": "u-1",
                "From": "15550100",
                "To": "15550101",
                "Event": "StartApp",
                "CallStatus": "ringing",
            }
        ),
        {},
        WebhookCall("u-1", "15550100", "15550101", {"Event": "StartApp"}, "ringing"),
    ),
    (
        "vonage",
        "application/json",
        json.dumps(
            {
                "uuid": "u-1",
                "from": "447700900000",
                "to": 442079460000,
                "conversation_uuid": "CON-1",
                "rate": 0.01,
                "detail": None,
                "more": {"a": 1},
            }
        ),
        {},
        WebhookCall("u-1", "447700900000", "442079460000", {"conversation_uuid": "CON-1"}),
    ),
    (
        "vonage",
        "",
        "",
        {"uuid": "u-1", "from_user": "jane", "to": "442079460000", "status": "answered"},
        WebhookCall("u-1", "jane", "442079460000", {}, "answered"),
    ),
    (
        "exotel",
        "",
        "",
        {"CallSid": "x1", "CallFrom": "09876", "CallTo": "08047", "Direction": "incoming"},
        WebhookCall("x1", "09876", "08047", {"Direction": "incoming"}),
    ),
    (
        "exotel",
        "application/json",
        '{"CallSid": "x1", "Status": "no-answer", "EventType": "terminal", "From": "09876"}',
        {"token": "t"},
        WebhookCall("x1", "09876", "", {"EventType": "terminal"}, "no-answer"),
    ),
]


class TestWebhooks:
    @pytest.mark.parametrize(("provider", "kind", "body", "query", "incoming"), WEBHOOKS)
    def test_a_webhook_tells_of_a_call(self, provider, kind, body, query, incoming):
        assert parse_webhook(carrier(provider), kind, body.encode(), query) == incoming

    def test_what_is_signed_goes_before_the_query(self):
        body = b"CallSid=CA1&From=%2B1"
        incoming = parse_webhook(carrier("twilio"), FORM, body, {"CallSid": "CA2", "From": "+9"})
        assert (incoming.call_id, incoming.caller) == ("CA1", "+1")

    @pytest.mark.parametrize(
        ("kind", "body", "says"),
        [
            (FORM, b"", "no call"),
            (FORM, b"CallSid=&From=1", "no call"),
            (FORM, b"CallSid=" + b"x" * 300, "no call"),
            (FORM, b"a=1&" * 300, "fields"),
            (FORM, b"a" * (MAX_BODY_BYTES + 1), "bytes"),
            ("text/plain", b"CallSid=CA1", "neither"),
            ("", b"CallSid=CA1", "neither"),
            ("application/json", b"[1]", "JSON object"),
            ("application/json", b"{", "JSON object"),
            ("application/json", b"[" * 60_000, "JSON object"),
            ("application/json", b"\xff\xfe", "JSON object"),
            ("application/json", b'{"CallSid": true}', "no call"),
            ("application/json", b'{"CallSid": ["CA1"]}', "no call"),
        ],
    )
    def test_one_that_does_not_is_refused(self, kind, body, says):
        with pytest.raises(ValueError, match=says):
            parse_webhook(carrier("twilio"), kind, body, {})

    def test_nothing_unprintable_gets_into_a_log(self):
        body = json.dumps({"uuid": "a\nb", "from": "\ud800x", "k\r": "\x1b[31m"}).encode()
        incoming = parse_webhook(carrier("vonage"), "application/json", body, {})
        assert (incoming.call_id, incoming.caller) == ("a b", " x")
        assert incoming.parameters == {"k ": " [31m"}

    @given(
        st.sampled_from(ASKING),
        st.sampled_from([FORM, "application/json", "", "x/y;z"]),
        st.binary()
        | st.recursive(
            st.none() | st.booleans() | st.floats() | st.integers() | st.text(),
            lambda v: st.lists(v) | st.dictionaries(st.sampled_from(["uuid", "From", ""]), v),
            max_leaves=4,
        ).map(lambda value: json.dumps(value).encode()),
        st.dictionaries(st.text(), st.text()),
    )
    def test_any_body_is_read_or_a_value_error(self, provider, kind, body, query):
        try:
            incoming = parse_webhook(carrier(provider), kind, body, query)
        except ValueError:
            return
        assert incoming.call_id
