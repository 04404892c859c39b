"""What the providers' REST answers, and what we say of it."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from offhook.telephony.carriers.rest.request import MAX_DETAIL_CHARS, RestError, path_id
from tests.telephony.carriers.rest.fake_rest_words import settings_for
from tests.telephony.carriers.specs import WITH_REST, api


def api_of(provider):
    return api(settings_for(provider, ""))


# What the provider says → what we say of it, of every error that its documents have for calls.
ERRORS = [
    ("twilio", 401, {"code": 20003, "message": "Authenticate"}, "wrong credentials: check account"),
    ("twilio", 403, {"code": 20003, "message": "Permission Denied"}, "permission denied"),
    ("twilio", 404, {"code": 20404, "message": "was not found"}, "not found"),
    ("twilio", 429, {"code": 20429, "message": "Too Many Requests"}, "try again in a few seconds"),
    ("twilio", 403, {"code": 10001, "message": "Account is not active"}, "not active"),
    ("twilio", 400, {"code": 10004, "message": "Call concurrency limit"}, "call limit is reached"),
    ("twilio", 400, {"code": 21205, "message": "Url is not valid"}, "check public_url"),
    ("twilio", 400, {"code": 21210, "message": "not yet verified"}, "nor verified: check number"),
    ("twilio", 400, {"code": 21211, "message": "Invalid 'To'"}, "number to be called is not valid"),
    ("twilio", 400, {"code": 21215, "message": "not authorized"}, "Voice Geographic Permissions"),
    ("twilio", 400, {"code": 21216, "message": "not allowed"}, "may not call this number"),
    ("twilio", 400, {"code": 21219, "message": "unverified"}, "trial account calls verified"),
    ("twilio", 400, {"code": 99999, "message": "Something new"}, "99999 Something new"),
    ("telnyx", 401, {"errors": [{"code": "10009", "title": "A"}]}, "wrong credentials: check api_"),
    ("telnyx", 403, {"errors": [{"code": "10010", "title": "A"}]}, "permission denied"),
    ("telnyx", 404, {"errors": [{"code": 10005, "title": "A"}]}, "not found"),
    ("telnyx", 422, {"errors": [{"code": "10016", "title": "A"}]}, "form +14155551212"),
    ("telnyx", 422, {"errors": [{"code": "10002", "detail": "B"}]}, "a number is not valid"),
    ("telnyx", 422, {"errors": [{"code": "1", "title": "A", "detail": "B"}]}, "(it said: 1 B)"),
    ("telnyx", 429, {"errors": [{"code": "10011", "title": "A"}]}, "too many requests"),
    ("plivo", 400, {"error": "to parameter not present"}, "it said: to parameter not present"),
    ("plivo", 401, "Could not verify your access level for that URL.", "check account (the auth"),
    ("plivo", 403, {"error": {"geo": "blocked"}}, 'it said: {"geo": "blocked"}'),
    ("plivo", 404, {"error": "not found"}, "not found"),
    ("plivo", 402, {"error": "insufficient credit"}, "top it up"),
    ("vonage", 400, {"error_title": "Bad Request", "invalid_parameters": {"to": "x"}}, '{"to": '),
    ("vonage", 401, {"title": "Unauthorized", "detail": "bad"}, "application's id) and api_key"),
    ("vonage", 429, {"title": "Rate Limit Hit"}, "too many requests"),
    ("exotel", 400, {"RestException": {"Message": "missing", "Code": "34001"}}, "34001 missing"),
    ("exotel", 401, {"RestException": {"Message": "no", "Code": "UNAUTHORIZED"}}, "the API token)"),
    ("exotel", 402, {"RestException": {"Message": "balance"}}, "no credit left"),
]


@pytest.mark.parametrize(("provider", "status", "said", "text"), ERRORS)
def test_a_refused_call_is_explained(provider, status, said, text):
    data = said.encode() if isinstance(said, str) else json.dumps(said).encode()
    with pytest.raises(RestError) as error:
        api_of(provider).read_dial(status, data)
    assert text in str(error.value)
    assert str(error.value).startswith(provider.capitalize())
    assert error.value.status == status


@pytest.mark.parametrize("provider", WITH_REST)
@pytest.mark.parametrize(
    ("status", "text"),
    [
        (302, r"unexpected redirect \(HTTP 302\): check rest_url"),
        (404, "check account and rest_url"),
        (418, r"the request was rejected \(HTTP 418\)"),
        (500, r"server error \(HTTP 500\): try again later"),
        (503, "try again later"),
    ],
)
@pytest.mark.parametrize("said", [b"", b"<html>no", b"[1]", b"null", b'{"error": null}', b"\xff"])
def test_an_answer_without_sense_is_explained_by_its_status(provider, status, text, said):
    for read in ("read_dial", "read_hang_up", "read_transfer"):
        with pytest.raises(RestError, match=text) as error:
            getattr(api_of(provider), read)(status, said)
        assert "it says" not in str(error.value)


@pytest.mark.parametrize(
    ("provider", "status", "said"),
    [
        ("twilio", 404, {"code": 20404, "message": "not found"}),
        ("twilio", 400, {"code": 21220, "message": "Call is not in-progress."}),
        ("telnyx", 422, {"errors": [{"code": "90018", "title": "Call has already ended"}]}),
        ("telnyx", 422, {"errors": [{"code": 90018, "title": "Call has already ended"}]}),
        ("telnyx", 404, {"errors": [{"code": "10005", "title": "Resource not found"}]}),
        ("plivo", 404, {"error": "not found"}),
        ("vonage", 404, {"error_title": "Not Found"}),
    ],
)
def test_a_call_that_has_ended_is_hung_up_but_cannot_be_transferred(provider, status, said):
    data = json.dumps(said).encode()
    api_of(provider).read_hang_up(status, data)
    with pytest.raises(RestError, match="the call has ended"):
        api_of(provider).read_transfer(status, data)


@pytest.mark.parametrize(
    ("provider", "said"),
    [
        ("twilio", {"sid": "CA1"}),
        ("telnyx", {"data": {"call_control_id": "CA1"}}),
        ("telnyx", {"data": {"call_sid": "CA1", "status": "queued"}}),
        ("telnyx", {"call_sid": "CA1", "status": "queued"}),
        ("plivo", {"request_uuid": "CA1"}),
        ("vonage", {"uuid": "CA1"}),
        ("exotel", {"Call": {"Sid": "CA1"}}),
    ],
)
def test_a_call_that_is_placed_has_an_id(provider, said):
    assert api_of(provider).read_dial(201, json.dumps(said).encode()) == "CA1"


@pytest.mark.parametrize("provider", WITH_REST)
@pytest.mark.parametrize(
    "said", ["", "{}", "<xml/>", '{"sid": 7, "uuid": [], "data": 3, "Call": 3, "request_uuid": ""}']
)
def test_one_without_is_an_error(provider, said):
    with pytest.raises(RestError, match="has no call id"):
        api_of(provider).read_dial(200, said.encode())


@pytest.mark.parametrize(
    "evil", ["a\nERROR b", "a\x1b[31mb", "a\u202eb", "a\u2028b", "\ud800", "x" * 9999]
)
def test_what_the_provider_says_stays_on_its_line(evil):
    with pytest.raises(RestError) as error:
        api_of("plivo").read_dial(400, json.dumps({"error": evil}).encode())
    assert str(error.value).isprintable()
    assert len(str(error.value)) < 100 + MAX_DETAIL_CHARS


KEYS = (
    *("code", "message", "sid"),
    *("errors", "title", "detail", "data", "call_control_id"),
    *("error", "request_uuid"),
    *("error_title", "invalid_parameters", "uuid"),
    *("RestException", "Code", "Message", "Call", "Sid"),
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=300),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(KEYS),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)
BODIES = JSON.map(lambda value: json.dumps(value).encode()) | st.binary(max_size=200)


@given(st.sampled_from(WITH_REST), st.integers(100, 999), BODIES)
def test_whatever_is_answered_is_read_or_explained_on_one_line(provider, status, said):
    one = api_of(provider)
    for read in (one.read_dial, one.read_hang_up, one.read_transfer):
        call_id, text = None, ""
        try:
            call_id = read(status, said)
        except RestError as error:
            text = str(error)
        assert text.isprintable()
        assert len(text) < 400 + MAX_DETAIL_CHARS
        assert text or 200 <= status < 300 or read == one.read_hang_up
        assert call_id is None or path_id(call_id)


def test_json_that_is_nested_without_end_is_no_answer():
    deep = b'{"error": ' + b"[" * 100_000 + b"]" * 100_000 + b"}"
    just = b'{"error": ' + b"[" * 900 + b"]" * 900 + b"}"
    for said in (deep, just):
        with pytest.raises(RestError, match="server error"):
            api_of("plivo").read_dial(500, said)
