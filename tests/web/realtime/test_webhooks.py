"""Signed webhooks, verified by the openai package as its users do."""

import base64
import json
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai import OpenAI
from openai.types.webhooks import RealtimeCallIncomingWebhookEvent

from offhook.pipeline.speech.streams.retry import AttemptFailed
from offhook.web.http.webhook_signature import signed_headers, signing_key
from offhook.web.realtime.incoming import TABLE, IncomingCall, IncomingEvent, IncomingState
from offhook.web.realtime.webhooks import failure_of, incoming_call, retry_policy

ENCODED = "whsec_" + base64.b64encode(b"sixteen bytes at least").decode()
PLAIN = "a secret of words, and long enough"
HEADERS = [("From", '"A" <sip:a@b>;tag=1'), ("X-Order", "17"), ("X-Order", "18"), ("To", "ü\udcff")]


def unwrapped(event, secret, *, keys, at=None):
    headers = signed_headers(event.id, event.body, keys, at or time.time())
    client = OpenAI(api_key="x", webhook_secret=secret)
    return client.webhooks.unwrap(event.body, headers)


@pytest.mark.parametrize("secret", [ENCODED, PLAIN])
def test_a_webhook_is_verified_by_the_openai_package(secret):
    event = incoming_call("rtc_1", HEADERS, time.time())
    read = unwrapped(event, secret, keys=(secret,))
    assert isinstance(read, RealtimeCallIncomingWebhookEvent)
    assert read.data.call_id == "rtc_1"
    found = [(h.name, h.value) for h in read.data.sip_headers]
    assert found == [*HEADERS[:3], ("To", "ü?")]
    assert event.id.startswith("wh_")
    assert read.id.startswith("evt_")


def test_while_secrets_change_over_either_verifies():
    event = incoming_call("rtc_1", (), time.time())
    for secret in (ENCODED, PLAIN):
        assert unwrapped(event, secret, keys=(ENCODED, PLAIN))
    with pytest.raises(Exception, match="signature"):
        unwrapped(event, "another secret of words", keys=(ENCODED, PLAIN))


def test_an_attempt_is_signed_anew_and_an_old_one_is_refused():
    event = incoming_call("rtc_1", (), time.time())
    first, second = (signed_headers(event.id, event.body, (PLAIN,), at) for at in (1.0, 400.0))
    assert first["webhook-id"] == second["webhook-id"]
    assert first["webhook-signature"] != second["webhook-signature"]
    with pytest.raises(Exception, match="too old"):
        unwrapped(event, PLAIN, keys=(PLAIN,), at=time.time() - 301)


def test_credentials_are_left_out_and_headers_are_bounded():
    headers = [("Authorization", "x"), ("Proxy-authorization", "y"), ("Via", "z" * 9_000)]
    event = json.loads(incoming_call("rtc_1", headers + [("X", "1")] * 500, 0.0).body)
    sent = event["data"]["sip_headers"]
    assert sent[0] == {"name": "Via", "value": "z" * 2_048}
    assert len(sent) == 128
    assert (event["object"], event["type"]) == ("event", "realtime.call.incoming")


@pytest.mark.parametrize("secret", ["", "short", "whsec_", "whsec_c2hvcnQ=", "whsec_%%%"])
def test_a_secret_that_protects_nothing_is_refused(secret):
    with pytest.raises(ValueError, match=r"too short|base64"):
        signing_key(secret)


def test_what_may_succeed_later_is_tried_again_until_it_is_too_late():
    policy = retry_policy(10.0)
    busy, gone = failure_of(503, 0.0), failure_of(410, 0.0)
    assert isinstance(busy, AttemptFailed)
    assert isinstance(gone, AttemptFailed)
    assert [policy.pause_s(busy, 0.0) for _ in range(4)] == [0.5, 1.0, 2.0, 4.0]
    assert policy.pause_s(busy, 9.0) is None
    policy.reset()
    assert policy.pause_s(gone, 0.0) is None
    slow = failure_of(429, 7.0)
    assert slow is not None
    assert policy.pause_s(slow, 0.0) == 7.0
    assert failure_of(204, 0.0) is None
    assert failure_of(307, 0.0).hopeless  # nowhere else


@given(st.lists(st.sampled_from(IncomingEvent)))
def test_the_first_decision_counts(events):
    call = IncomingCall()
    changed = [event for event in events if call.apply(event)]
    assert changed == events[:1]
    if changed:
        assert call.state is TABLE[IncomingState.RINGING, changed[0]]
