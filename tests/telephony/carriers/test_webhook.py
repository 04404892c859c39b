"""What a webhook says and what it is answered, beside what the providers' libraries write."""

import base64
import json
from urllib.parse import urlencode
from xml.etree.ElementTree import canonicalize, fromstring

import pytest
from hypothesis import given
from hypothesis import strategies as st

from offhook.telephony.carriers.auth.signatures import MAX_BODY_BYTES
from offhook.telephony.carriers.provider import Provider
from offhook.telephony.carriers.providers import provider_of
from offhook.telephony.carriers.webhook import Reply, WebhookCall
from tests.telephony.carriers.auth.signing import carrier
from tests.telephony.carriers.specs import ASKING, PROVIDERS

URL = "wss://voice.example.org/carriers/x/stream/Ab-_1"
CALL = WebhookCall("uuid-1", "15550100", "15550101")
FORM = "application/x-www-form-urlencoded"


def provider(name, **values) -> Provider:
    return provider_of(carrier(name, **values))


def same(one: Reply, other: str) -> bool:
    assert one.content_type == "application/xml"
    return canonicalize(one.text) == canonicalize(other)


class TestAnswer:
    def test_twilios_library_writes_the_same(self):
        twiml = pytest.importorskip("twilio.twiml.voice_response")
        response, connect = twiml.VoiceResponse(), twiml.Connect()
        connect.append(twiml.Stream(url=URL))
        response.append(connect)
        assert same(provider("twilio").answer(URL, CALL), response.to_xml())

    def test_plivos_library_writes_the_same(self):
        xml = pytest.importorskip("plivo.xml")
        response = xml.ResponseElement()
        response.add(
            xml.StreamElement(
                URL,
                bidirectional=True,
                keepCallAlive=True,
                contentType="audio/x-mulaw;rate=8000",
            )
        )
        assert same(provider("plivo").answer(URL, CALL), response.to_string(False))

    def test_telnyx_is_asked_for_sound_both_ways(self):
        reply = provider("telnyx", encoding="pcma").answer(URL, CALL)
        assert reply.content_type == "application/xml"
        assert fromstring(reply.text).find("Connect/Stream").attrib == {
            "url": URL,
            "bidirectionalMode": "rtp",
            "bidirectionalCodec": "PCMA",
            "bidirectionalSamplingRate": "8000",
            "codec": "PCMA",
        }
        reply = provider("telnyx", encoding="l16").answer(URL, CALL)
        wide = fromstring(reply.text).find("Connect/Stream")
        assert wide.get("bidirectionalCodec") == "L16"
        assert wide.get("bidirectionalSamplingRate") == "16000"
        assert wide.get("codec") is None  # comes as the call has it

    def test_vonage_is_told_what_its_first_message_says(self):
        reply = provider("vonage", rate=24000).answer(URL, CALL)
        assert reply.content_type == "application/json"
        assert json.loads(reply.text) == [
            {
                "action": "connect",
                "endpoint": [
                    {
                        "type": "websocket",
                        "uri": URL,
                        "content-type": "audio/l16;rate=24000",
                        "headers": {"uuid": "uuid-1", "from": "15550100", "to": "15550101"},
                    }
                ],
            }
        ]

    def test_exotel_gets_a_url(self):
        assert json.loads(provider("exotel").answer(URL, CALL).text) == {"url": URL}
        wide = provider("exotel", rate=16000)
        assert json.loads(wide.answer(URL, CALL).text) == {"url": f"{URL}?sample-rate=16000"}
        url = json.loads(wide.answer(f"{URL}?token=t", CALL).text)["url"]
        assert url == f"{URL}?token=t&sample-rate=16000"

    @given(st.text(), st.sampled_from(ASKING))
    def test_any_url_makes_a_document_that_can_be_read(self, more, name):
        reply = provider(name).answer(f"{URL}?{more}", CALL, f"{URL}?{more}")
        reply.text.encode()
        if reply.content_type == "application/json":
            json.loads(reply.text)
        else:
            fromstring(reply.text)


class TestRefusal:
    @pytest.mark.parametrize("reason", ["busy", "rejected"])
    def test_the_libraries_write_the_same(self, reason):
        twiml = pytest.importorskip("twilio.twiml.voice_response")
        plivo = pytest.importorskip("plivo.xml")
        response = twiml.VoiceResponse()
        response.reject(reason=reason)
        for name in ("twilio", "telnyx"):
            assert same(provider(name).refusal(reason), response.to_xml())
        response = plivo.ResponseElement()
        response.add(plivo.HangupElement(reason=reason))
        assert same(provider("plivo").refusal(reason), response.to_string(False))

    def test_those_without_a_word_for_it_get_nothing_to_do(self):
        assert provider("vonage").refusal() == Reply("application/json", "[]")
        assert provider("exotel").refusal() == Reply("application/json", "{}")


class TestContinuation:
    """What a carrier does once our side has closed the stream."""

    THEN = "https://voice.example.org/carriers/x/resume/Ab-_1?tries=1"

    def test_twilios_library_writes_the_same(self):
        twiml = pytest.importorskip("twilio.twiml.voice_response")
        response, connect = twiml.VoiceResponse(), twiml.Connect()
        connect.append(twiml.Stream(url=URL))
        response.append(connect)
        response.redirect(self.THEN, method="POST")
        twilio = provider("twilio")
        assert same(twilio.answer(URL, CALL, self.THEN), response.to_xml())
        again, end = twiml.VoiceResponse(), twiml.VoiceResponse()
        again.pause(length=1)
        again.redirect(self.THEN, method="POST")
        end.hangup()
        assert same(twilio.retry(self.THEN), again.to_xml())
        assert same(twilio.hang_up(), end.to_xml())

    def test_plivos_library_writes_the_same(self):
        xml = pytest.importorskip("plivo.xml")
        again, end = xml.ResponseElement(), xml.ResponseElement()
        again.add(xml.WaitElement(length=1))
        again.add(xml.RedirectElement(self.THEN, method="POST"))
        end.add(xml.HangupElement())
        plivo = provider("plivo")
        assert same(plivo.retry(self.THEN), again.to_string(False))
        assert same(plivo.hang_up(), end.to_string(False))
        stream, redirect = fromstring(plivo.answer(URL, CALL, self.THEN).text)
        assert (stream.tag, stream.get("keepCallAlive")) == ("Stream", "true")
        assert (redirect.tag, redirect.text) == ("Redirect", self.THEN)

    @pytest.mark.parametrize("name", [p.name for p in PROVIDERS if p.asks and not p.continues])
    def test_others_are_not_asked_for_what_they_do_not_document(self, name):
        one = provider(name).answer(URL, CALL, self.THEN)
        assert one == provider(name).answer(URL, CALL)


STATE = base64.b64encode(b"offhook:v3:caller").decode()


def telnyx_event(kind, **payload):
    ends = {"call_control_id": "v3:leg", "from": "+15550100", "to": "+15550101"}
    return json.dumps({"data": {"event_type": kind, "payload": ends | payload}}).encode()


class TestTransfers:
    """What a carrier says of a transfer."""

    @pytest.mark.parametrize(
        ("kind", "cause", "status"),
        [
            ("call.initiated", None, "initiated"),
            ("call.answered", None, "answered"),
            ("call.bridged", None, "answered"),
            ("call.hangup", "user_busy", "busy"),
            ("call.hangup", "timeout", "no-answer"),
            ("call.hangup", "call_rejected", "rejected"),
            ("call.hangup", "originator_cancel", "canceled"),
            ("call.hangup", "normal_clearing", "completed"),
            ("call.hangup", "not_found", "failed"),
            ("call.hangup", None, "failed"),
        ],
    )
    def test_telnyx_says_it_of_the_targets_call_and_of_the_callers(self, kind, cause, status):
        telnyx = provider("telnyx")
        body = telnyx_event(kind, hangup_cause=cause, client_state=STATE)
        of_target = telnyx.parse_webhook("application/json", body, {})
        assert of_target.call_id == "v3:caller"
        assert telnyx.dial_status(of_target) == status
        assert telnyx.caller_status(of_target) == ""
        for state in (None, "", "bm90IG91cnM=", "no base64"):
            body = telnyx_event(kind, hangup_cause=cause, client_state=state)
            of_caller = telnyx.parse_webhook("application/json", body, {})
            assert (of_caller.call_id, of_caller.caller) == ("v3:leg", "+15550100")
            assert telnyx.dial_status(of_caller) == ""
            assert telnyx.caller_status(of_caller) == status

    def test_twilio_and_plivo_say_both_at_once(self):
        for name, field, call_id in (
            ("twilio", "DialCallStatus", "CallSid"),
            ("plivo", "DialStatus", "CallUUID"),
        ):
            fields = {call_id: "1", field: "busy", "CallStatus": "in-progress"}
            one = provider(name)
            report = one.parse_webhook(FORM, urlencode(fields).encode(), {})
            assert (one.dial_status(report), one.caller_status(report)) == ("busy", "in-progress")


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
    @pytest.mark.parametrize(("name", "kind", "body", "query", "incoming"), WEBHOOKS)
    def test_a_webhook_tells_of_a_call(self, name, kind, body, query, incoming):
        assert provider(name).parse_webhook(kind, body.encode(), query) == incoming

    def test_what_is_signed_goes_before_the_query(self):
        body = b"CallSid=CA1&From=%2B1"
        incoming = provider("twilio").parse_webhook(FORM, body, {"CallSid": "CA2", "From": "+9"})
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
            provider("twilio").parse_webhook(kind, body, {})

    def test_nothing_unprintable_gets_into_a_log(self):
        body = json.dumps({"uuid": "a\nb", "from": "\ud800x", "k\r": "\x1b[31m"}).encode()
        incoming = provider("vonage").parse_webhook("application/json", body, {})
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
    def test_any_body_is_read_or_a_value_error(self, name, kind, body, query):
        try:
            incoming = provider(name).parse_webhook(kind, body, query)
        except ValueError:
            return
        assert incoming.call_id
