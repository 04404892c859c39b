"""Requests to the providers' REST, and what their answers mean."""

import base64
import json
from urllib.parse import parse_qs, urlsplit
from xml.etree import ElementTree

import pytest
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, padding

from offhook.telephony.carriers.plivo.rest import transfer_markup, transfer_url
from offhook.telephony.carriers.rest.request import (
    BearerAuth,
    DialRequest,
    RestError,
    RestRequest,
)
from offhook.telephony.carriers.streams.stream import Format
from offhook.telephony.carriers.vonage.rest import ApplicationAuth
from tests.telephony.carriers.rest.fake_rest_words import (
    EXOTEL_SID,
    PLIVO_ID,
    TELNYX_APPLICATION,
    TELNYX_KEY,
    TOKEN,
    TWILIO_KEY,
    TWILIO_SID,
    VONAGE_APPLICATION,
    settings_for,
    vonage_key,
    vonage_pem,
)
from tests.telephony.carriers.specs import WITH_REST, api

TO = "+14155551212"
SIP = "sip:desk@pbx.example.org;transport=tls"
WEBHOOK = "https://voice.example.org/carriers/x/answer?a=1&b=2"
OUTCOME = "https://voice.example.org/carriers/x/transfer/call-1"
STATUS = "https://voice.example.org/carriers/x/status"
STREAM = "wss://voice.example.org/carriers/x/stream/ticket"
CALL_ID = {
    "twilio": "CA" + "0" * 32,
    "telnyx": "v3:MdI91X4lWFEs7IgbBEOT9M4AigoY08M0WWZFISt1Yw2axZ_IiE4pqg",
    "plivo": "1f2d7a3c-58b6-4e1d-86da-77300b68f8bb",
    "vonage": "63f61863-4a51-4f6b-86e1-46edebcf9356",
    "exotel": "c5797dcbaaeed7678c4062a4a3ed2f8a",
}
CONTROLLED = ("twilio", "telnyx", "plivo", "vonage")


def api_of(provider: str, **changes):
    return api(settings_for(provider, "", **changes))


def dialled(provider, ring_seconds=45.0, stream_url="", rest_url="", **changes):
    known = settings_for(provider, rest_url, **changes)
    return api(known).dial(DialRequest(TO, known.number, WEBHOOK, STATUS, ring_seconds, stream_url))


def form(request: RestRequest) -> dict[str, list[str]]:
    assert request.headers["Content-Type"] == "application/x-www-form-urlencoded"
    return parse_qs(request.body.decode(), strict_parsing=True)


def body(request: RestRequest):
    assert request.headers["Content-Type"] == "application/json"
    return json.loads(request.body)


class TestTwilio:
    def test_a_call_is_placed_with_our_webhook_and_a_status_callback(self):
        request = dialled("twilio")
        assert request.method == "POST"
        assert request.url == (
            f"https://api.twilio.com/2010-04-01/Accounts/{TWILIO_SID}/Calls.json"
        )
        assert form(request) == {
            "To": [TO],
            "From": ["+15005550006"],
            "Url": [WEBHOOK],
            "Method": ["POST"],
            "Timeout": ["45"],
            "StatusCallback": [STATUS],
            "StatusCallbackMethod": ["POST"],
            "StatusCallbackEvent": ["initiated", "ringing", "answered", "completed"],
        }

    def test_a_call_is_hung_up_by_its_status(self):
        request = api_of("twilio").hang_up(CALL_ID["twilio"])
        assert request.url.endswith(f"/Accounts/{TWILIO_SID}/Calls/{CALL_ID['twilio']}.json")
        assert form(request) == {"Status": ["completed"]}

    @pytest.mark.parametrize(("target", "noun"), [(TO, "Number"), (SIP, "Sip")])
    def test_a_transfer_dials_a_number_or_a_sip_uri(self, target, noun):
        twiml = form(api_of("twilio").transfer(CALL_ID["twilio"], target))["Twiml"][0]
        dial = ElementTree.fromstring(twiml).find("Dial")
        assert [(child.tag, child.text) for child in dial] == [(noun, target)]
        assert not dial.attrib

    def test_how_a_transfer_has_ended_is_told_to_us(self):
        request = api_of("twilio").transfer(CALL_ID["twilio"], TO, OUTCOME)
        dial = ElementTree.fromstring(form(request)["Twiml"][0]).find("Dial")
        assert dial.attrib == {"action": OUTCOME, "method": "POST"}

    def test_who_asks_is_the_account_or_a_key_of_it(self):
        assert basic(dialled("twilio")) == f"{TWILIO_SID}:{TOKEN}"
        with_key = dialled("twilio", api_key=f"{TWILIO_KEY}:key:secret")
        assert basic(with_key) == f"{TWILIO_KEY}:key:secret"
        with pytest.raises(RestError, match="colon"):
            dialled("twilio", api_key=TWILIO_KEY)


class TestTelnyx:
    def test_a_call_is_placed_by_texml_with_our_webhook(self):
        request = dialled("telnyx", ring_seconds=500)
        assert request.url == f"https://api.telnyx.com/v2/texml/calls/{TELNYX_APPLICATION}"
        assert body(request) == {
            "To": TO,
            "From": "+15005550006",
            "Url": WEBHOOK,
            "Timeout": 120,
            "StatusCallback": STATUS,
        }
        assert request.auth.header(0) == f"Bearer {TELNYX_KEY}"

    @pytest.mark.parametrize(
        ("encoding", "codec", "rate"), [("pcmu", "PCMU", 8000), ("l16", "L16", 16000)]
    )
    def test_a_call_in_progress_is_connected_to_a_stream(self, encoding, codec, rate):
        call = CALL_ID["telnyx"]
        request = api_of("telnyx").connect(call, STREAM, Format(encoding, rate))
        assert request.url == f"https://api.telnyx.com/v2/calls/{call}/actions/streaming_start"
        assert body(request) == {
            "stream_url": STREAM,
            "stream_track": "inbound_track",
            "stream_codec": codec,
            "stream_bidirectional_mode": "rtp",
            "stream_bidirectional_codec": codec,
            "stream_bidirectional_sampling_rate": rate,
        }

    def test_how_a_transfer_goes_is_told_to_us_with_the_callers_id(self):
        call = CALL_ID["telnyx"]
        assert body(api_of("telnyx").transfer(call, TO, OUTCOME)) == {
            "to": TO,
            "webhook_url": OUTCOME,
            "target_leg_client_state": base64.b64encode(f"offhook:{call}".encode()).decode(),
        }

    def test_hang_up_and_transfer_are_commands_to_the_call(self):
        telnyx, call = api_of("telnyx"), CALL_ID["telnyx"]
        commands = f"https://api.telnyx.com/v2/calls/{call}/actions"
        hang_up, transfer = telnyx.hang_up(call), telnyx.transfer(call, SIP)
        assert (hang_up.url, body(hang_up)) == (f"{commands}/hangup", {})
        assert (transfer.url, body(transfer)) == (f"{commands}/transfer", {"to": SIP})


class TestPlivo:
    def test_a_call_is_placed_with_numbers_without_plus(self):
        request = dialled("plivo")
        assert request.url == f"https://api.plivo.com/v1/Account/{PLIVO_ID}/Call/"
        assert body(request) == {
            "from": "15005550006",
            "to": "14155551212",
            "answer_url": WEBHOOK,
            "answer_method": "POST",
            "ring_timeout": 45,
            "ring_url": STATUS,
            "ring_method": "POST",
            "hangup_url": STATUS,
            "hangup_method": "POST",
        }
        assert basic(request) == f"{PLIVO_ID}:{TOKEN}"

    def test_a_call_is_hung_up_by_deleting_it(self):
        request = api_of("plivo").hang_up(CALL_ID["plivo"])
        assert (request.method, request.body) == ("DELETE", b"")
        assert request.url.endswith(f"/v1/Account/{PLIVO_ID}/Call/{CALL_ID['plivo']}/")

    @pytest.mark.parametrize("target", [TO, SIP])
    def test_a_transfer_names_a_url_of_ours_which_knows_the_target(self, target):
        request = api_of("plivo").transfer(CALL_ID["plivo"], target, OUTCOME)
        url = urlsplit(body(request).pop("aleg_url"))
        assert body(request) == body(request) | {"legs": "aleg", "aleg_method": "POST"}
        assert url.hostname == "voice.example.org"
        assert url.path == urlsplit(OUTCOME).path
        assert parse_qs(url.query) == {"target": [target]}
        assert transfer_url(OUTCOME, target) == body(request)["aleg_url"]

    def test_which_answers_with_the_number_or_sip_uri(self):
        for target, element in (
            (TO, "<Number>14155551212</Number>"),
            (SIP, f"<User>{SIP}</User>"),
        ):
            dial = f'<Dial action="{OUTCOME}" method="POST">{element}</Dial>'
            assert transfer_markup(target, OUTCOME) == f"<Response>{dial}</Response>"

    def test_and_so_a_transfer_needs_our_public_url(self):
        with pytest.raises(RestError, match="set public_url"):
            api_of("plivo").transfer(CALL_ID["plivo"], TO)


class TestVonage:
    def test_a_call_is_placed_with_our_webhook_and_numbers_without_plus(self):
        request = dialled("vonage", ring_seconds=0.2)
        assert request.url == "https://api.nexmo.com/v1/calls"
        assert body(request) == {
            "to": [{"type": "phone", "number": "14155551212"}],
            "from": {"type": "phone", "number": "15005550006"},
            "answer_url": [WEBHOOK],
            "answer_method": "POST",
            "event_url": [STATUS],
            "event_method": "POST",
            "ringing_timer": 1,
        }

    def test_hang_up_and_transfer_change_the_call(self):
        vonage, call = api_of("vonage"), CALL_ID["vonage"]
        hang_up = vonage.hang_up(call)
        assert (hang_up.method, hang_up.url) == ("PUT", f"https://api.nexmo.com/v1/calls/{call}")
        assert body(hang_up) == {"action": "hangup"}
        assert body(vonage.transfer(call, SIP)) == {
            "action": "transfer",
            "destination": {
                "type": "ncco",
                "ncco": [
                    {
                        "action": "connect",
                        "from": "15005550006",
                        "endpoint": [{"type": "sip", "uri": SIP}],
                    }
                ],
            },
        }

    def test_what_is_done_after_a_transfer_that_failed_is_ours_to_say(self):
        request = api_of("vonage").transfer(CALL_ID["vonage"], TO, OUTCOME)
        [connect] = body(request)["destination"]["ncco"]
        assert connect["eventType"] == "synchronous"
        assert connect["eventUrl"] == [OUTCOME]

    def test_each_request_has_a_token_of_its_own_signed_with_the_private_key(self):
        auth = dialled("vonage").auth
        first, second = (auth.header(1_700_000_000.5).removeprefix("Bearer ") for _ in range(2))
        assert first != second
        head, claims, signature = first.split(".")
        vonage_key().public_key().verify(
            unbase64(signature), f"{head}.{claims}".encode(), padding.PKCS1v15(), hashes.SHA256()
        )
        assert json.loads(unbase64(head)) == {"alg": "RS256", "typ": "JWT"}
        told = json.loads(unbase64(claims))
        assert told.pop("jti")
        assert told == {
            "application_id": VONAGE_APPLICATION,
            "iat": 1_700_000_000,
            "exp": 1_700_000_900,
        }

    def test_the_token_is_one_that_pyjwt_takes(self):
        jwt = pytest.importorskip("jwt")
        token = dialled("vonage").auth.header(4_000_000_000).removeprefix("Bearer ")
        told = jwt.decode(
            token, vonage_key().public_key(), algorithms=["RS256"], options={"verify_iat": False}
        )
        assert told["application_id"] == VONAGE_APPLICATION

    @pytest.mark.parametrize("what", ["nonsense", "elliptic", "encrypted", "cut"])
    def test_what_is_no_rsa_key_is_said_to_be_none_and_not_shown(self, what):
        pem = {
            "nonsense": "-----BEGIN nothing at all",
            "elliptic": pem_of(ec.generate_private_key(ec.SECP256R1())),
            "encrypted": pem_of(vonage_key(), b"password"),
            "cut": vonage_pem()[:600],
        }[what]
        with pytest.raises(RestError, match="not the application's private key") as error:
            ApplicationAuth(VONAGE_APPLICATION, pem).header(0)
        assert pem[-40:] not in str(error.value)


class TestExotel:
    def test_a_call_is_placed_straight_to_the_stream(self):
        request = dialled("exotel", stream_url=STREAM, number="08047491899")
        assert request.url == (
            f"https://api.exotel.com/v1/Accounts/{EXOTEL_SID}/Calls/connect.json"
        )
        assert form(request) == {
            "From": [TO],
            "CallerId": ["08047491899"],
            "TimeOut": ["45"],
            "StreamUrl": [STREAM],
            "StreamType": ["bidirectional"],
            "StatusCallback": [STATUS],
            "StatusCallbackContentType": ["application/json"],
            "StatusCallbackEvents[0]": ["terminal"],
            "StatusCallbackEvents[1]": ["answered"],
        }
        assert basic(request) == f"the-api-key:{TOKEN}"

    def test_or_to_a_flow(self):
        told = form(dialled("exotel"))
        assert told["Url"] == [WEBHOOK]
        assert "StreamUrl" not in told

    def test_sip_uris_hang_up_and_transfer_are_refused_with_what_to_do_instead(self):
        exotel = api_of("exotel")
        with pytest.raises(RestError, match="telephone numbers only"):
            exotel.dial(DialRequest(SIP, "08047491899", WEBHOOK))
        with pytest.raises(RestError, match="close the stream"):
            exotel.hang_up(CALL_ID["exotel"])
        with pytest.raises(RestError, match="Connect applet"):
            exotel.transfer(CALL_ID["exotel"], TO)


@pytest.mark.parametrize("provider", WITH_REST)
def test_no_secret_stands_in_the_text_of_a_request(provider):
    known = settings_for(provider, "")
    request = dialled(provider)
    for secret in filter(None, (known.secret, known.api_key)):
        assert secret[-40:] not in repr(request)
        assert secret[-40:] not in request.url


@pytest.mark.parametrize("provider", WITH_REST)
def test_without_a_status_url_nobody_is_to_be_told(provider):
    known = settings_for(provider, "")
    for stream_url in ("", STREAM):
        call = DialRequest(TO, known.number, WEBHOOK, stream_url=stream_url)
        request = api(known).dial(call)
        assert b"allback" not in request.body
        assert b"event" not in request.body
        assert b"hangup_url" not in request.body
        assert b"webhook_url" not in request.body


@pytest.mark.parametrize("provider", WITH_REST)
def test_a_rest_url_of_the_settings_is_where_it_asks(provider):
    request = dialled(provider, rest_url="https://eu.example.net/gateway/")
    own = urlsplit(dialled(provider).url)
    assert request.url == f"https://eu.example.net/gateway{own.path}"


@pytest.mark.parametrize(
    ("provider", "missing"),
    [
        ("twilio", "account"),
        ("telnyx", "api_key"),
        ("telnyx", "account"),
        ("plivo", "account"),
        ("vonage", "api_key"),
        ("vonage", "account"),
        ("exotel", "account"),
    ],
)
def test_what_is_missing_in_the_settings_is_named(provider, missing):
    with pytest.raises(RestError, match=f"carrier '{provider}' needs {missing}") as error:
        dialled(provider, **{missing: ""})
    assert error.value.status == 0


@pytest.mark.parametrize("key", ["KEY with space", "KEY\nX-Admin: yes", "KEY\r", "schlüssel"])
def test_a_key_that_would_be_two_header_fields_is_refused(key):
    with pytest.raises(RestError, match="invalid characters") as error:
        BearerAuth(key).header(0)
    assert key not in str(error.value)


def basic(request: RestRequest) -> str:
    return base64.b64decode(request.auth.header(0).removeprefix("Basic ")).decode()


def unbase64(text: str) -> bytes:
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))


def pem_of(key, password: bytes | None = None) -> str:
    encryption = (
        serialization.BestAvailableEncryption(password)
        if password
        else serialization.NoEncryption()
    )
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, encryption
    ).decode()
