"""Who answers, as providers are asked for it and say it."""

import json
from urllib.parse import parse_qs, urlencode

import pytest

from offhook.media.answer_status import Mode
from offhook.telephony.carriers.providers import provider_of
from offhook.telephony.carriers.rest.request import DialRequest
from offhook.telephony.carriers.settings import CarrierSettings
from tests.telephony.carriers.rest.fake_rest_words import settings_for
from tests.telephony.carriers.specs import api

STATUS = "https://voice.example.org/carriers/x/status"
FORM = "application/x-www-form-urlencoded"


def asked(provider: str, detection: Mode | None, status: str = STATUS) -> dict[str, object]:
    """The fields with which a call is placed."""
    known = settings_for(provider, "")
    call = DialRequest("+14155551212", known.number, STATUS, status, detection=detection)
    request = api(known).dial(call)
    if provider == "twilio":
        return {name: values[0] for name, values in parse_qs(request.body.decode()).items()}
    fields: dict[str, object] = json.loads(request.body)
    return fields


@pytest.mark.parametrize("provider", ["twilio", "telnyx"])
def test_markup_providers_are_asked_beside_the_call(provider: str) -> None:
    fields = asked(provider, "detect")
    assert fields["MachineDetection"] == "Enable"
    assert str(fields["AsyncAmd"]).lower() == "true"
    assert fields["AsyncAmdStatusCallback"] == STATUS
    assert asked(provider, "message")["MachineDetection"] == "DetectMessageEnd"


def test_vonage_and_plivo_are_asked_in_their_words() -> None:
    wanted = {"behavior": "continue", "mode": "detect"}
    assert asked("vonage", "detect")["advanced_machine_detection"] == wanted
    wanted["mode"] = "detect_beep"
    assert asked("vonage", "message")["advanced_machine_detection"] == wanted
    fields = asked("plivo", "detect")
    assert (fields["machine_detection"], fields["machine_detection_url"]) == ("true", STATUS)


@pytest.mark.parametrize("provider", ["twilio", "telnyx", "plivo", "vonage"])
def test_nobody_is_asked_for_what_is_not_wanted(provider: str) -> None:
    plain = asked(provider, None)
    assert asked(provider, "off") == plain
    assert asked(provider, "detect", status="") == asked(provider, None, status="")
    assert not [name for name in plain if "achine" in name]


@pytest.mark.parametrize(
    ("provider", "fields", "result"),
    [
        ("twilio", {"CallSid": "CA1", "AnsweredBy": "human"}, "human"),
        ("twilio", {"CallSid": "CA1", "AnsweredBy": "machine_start"}, "machine"),
        ("twilio", {"CallSid": "CA1", "AnsweredBy": "machine_end_beep"}, "machine_end"),
        ("twilio", {"CallSid": "CA1", "AnsweredBy": "fax"}, "fax"),
        ("twilio", {"CallSid": "CA1", "AnsweredBy": "a ghost"}, None),
        ("twilio", {"CallSid": "CA1", "CallStatus": "ringing"}, None),
        ("telnyx", {"CallSid": "v3:1", "AnsweredBy": "machine_end_silence"}, "machine_end"),
        ("plivo", {"CallUUID": "1", "Event": "MachineDetection", "Machine": "true"}, "machine"),
        ("plivo", {"CallUUID": "1", "Event": "StartApp"}, None),
    ],
)
def test_what_forms_say(provider: str, fields: dict[str, str], result: str | None) -> None:
    one = provider_of(CarrierSettings(provider, insecure=True))
    report = one.parse_webhook(FORM, urlencode(fields).encode(), {})
    assert one.answered_by(report) == result


@pytest.mark.parametrize(
    ("kind", "said", "result"),
    [
        ("call.machine.detection.ended", "machine", "machine"),
        ("call.machine.detection.ended", "human_residence", "human"),
        ("call.machine.detection.ended", "not_sure", "unknown"),
        ("call.machine.greeting.ended", "beep_detected", "machine_end"),
        ("call.answered", "machine", None),
    ],
)
def test_what_telnyx_says_by_call_control(kind: str, said: str, result: str | None) -> None:
    one = provider_of(CarrierSettings("telnyx", insecure=True))
    payload = {"call_control_id": "v3:1", "result": said}
    body = json.dumps({"data": {"event_type": kind, "payload": payload}}).encode()
    assert one.answered_by(one.parse_webhook("application/json", body, {})) == result


@pytest.mark.parametrize(
    ("fields", "result"),
    [
        ({"status": "machine"}, "machine"),
        ({"status": "machine", "sub_state": "beep_start"}, "machine_end"),
        ({"status": "human"}, "human"),
        ({"status": "answered"}, None),
    ],
)
def test_what_vonage_says(fields: dict[str, str], result: str | None) -> None:
    one = provider_of(CarrierSettings("vonage", insecure=True))
    body = json.dumps({"uuid": "1", **fields}).encode()
    assert one.answered_by(one.parse_webhook("application/json", body, {})) == result
