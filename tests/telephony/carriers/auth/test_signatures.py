"""Who is let in: every provider's signature, bent in every way that a proxy or a stranger does."""

import hashlib
import json
from urllib.parse import urlencode

import pytest

from offhook.telephony.carriers.auth.signatures import (
    WINDOW_S,
    Nonces,
    Rejected,
    Replayed,
)
from tests.telephony.carriers.auth.signing import (
    HOST,
    NOW,
    PATH,
    SECRETS,
    TOKEN,
    URL,
    Attempt,
    b64,
    carrier,
    verify,
)
from tests.telephony.carriers.specs import SIGNING


def right(provider):
    return Attempt(provider).sign()


def wrong(provider):
    return Attempt(provider, wrong=True).sign()


def missing(provider):
    return Attempt(provider)


def other_port(provider):
    attempt = Attempt(provider, url=f"https://{HOST}:9999{PATH}").sign()
    attempt.arrival = {"host": f"{HOST}:8443"}
    return attempt


def default_port_said(provider):
    attempt = Attempt(provider, url=f"https://{HOST}:443{PATH}").sign()
    attempt.arrival = {"host": HOST}
    return attempt


def default_port_not_said(provider):
    attempt = Attempt(provider).sign()
    attempt.arrival = {"host": f"{HOST}:443"}
    return attempt


INSIDE = {"scheme": "http", "host": "10.0.0.5:8080"}
FORWARDED = {
    "X-Forwarded-Proto": "https",
    "X-Forwarded-Host": HOST,
    "X-Forwarded-For": "203.0.113.7",
}


def behind_a_trusted_proxy(provider):
    attempt = Attempt(provider, trust_proxy=True).sign()
    attempt.arrival = INSIDE | {"headers": FORWARDED}
    return attempt


def behind_a_proxy_not_trusted(provider):
    attempt = Attempt(provider).sign()
    attempt.arrival = INSIDE | {"headers": FORWARDED}
    return attempt


def behind_a_proxy_with_a_public_url(provider):
    attempt = Attempt(provider, public_url=f"https://{HOST}/").sign()
    attempt.arrival = INSIDE
    return attempt


def behind_a_path_of_a_proxy(provider):
    attempt = Attempt(provider, url=f"https://{HOST}/calls{PATH}").sign()
    attempt.settings = carrier(provider, public_url=f"https://{HOST}/calls")
    attempt.arrival = INSIDE | {"path_qs": PATH}
    return attempt


def trailing_slash_lost(provider):
    attempt = Attempt(provider, url=f"{URL}/?agent=a").sign()
    attempt.arrival = {"path_qs": f"{PATH}?agent=a"}
    return attempt


def trailing_slash_added(provider):
    attempt = Attempt(provider).sign()
    attempt.arrival = {"path_qs": f"{PATH}/"}
    return attempt


def with_a_query(provider):
    return Attempt(provider, url=f"{URL}?z=2&agent=front%20desk&a=1").sign()


def json_body(provider):
    attempt = Attempt(provider)
    if provider != "genesys":
        attempt.body = json.dumps({"CallSid": "CA0123"}).encode()
        attempt.content_type = "application/json"
    if provider == "twilio":
        attempt.url += f"?bodySHA256={hashlib.sha256(attempt.body).hexdigest()}"
    return attempt.sign()


def body_changed(provider):
    attempt = Attempt(provider).sign()
    attempt.body = urlencode([("CallSid", "CA9999")]).encode()
    return attempt


def json_body_changed(provider):
    attempt = json_body(provider)
    attempt.body = b'{"CallSid": "CA9999"}'
    return attempt


def other_path(provider):
    attempt = Attempt(provider).sign()
    attempt.arrival = {"path_qs": "/carriers/x/status"}
    return attempt


def too_old(provider):
    return Attempt(provider, now=NOW - WINDOW_S - 1).sign()


def from_the_future(provider):
    return Attempt(provider, now=NOW + WINDOW_S + 1).sign()


def signed_for_http(provider):
    attempt = Attempt(provider, url=URL.replace("https", "http")).sign()
    attempt.arrival = {"scheme": "https"}
    return attempt


def host_in_capitals(provider):
    attempt = Attempt(provider).sign()
    attempt.arrival = {"host": HOST.upper()}
    return attempt


def signed_with_capitals(provider):
    return Attempt(provider, url=f"https://Voice.Example.ORG{PATH}").sign()


ALL = set(SIGNING)
URL_NOT_SIGNED = {"telnyx", "vonage"}
# Each way a request may come, and whose is taken then. Telnyx and Vonage sign no URL, Genesys no
# scheme and no body, Twilio and Plivo no time.
CASES = {
    right: ALL,
    wrong: set(),
    missing: set(),
    other_port: URL_NOT_SIGNED,
    default_port_said: ALL,
    default_port_not_said: ALL,
    behind_a_trusted_proxy: ALL,
    behind_a_proxy_not_trusted: URL_NOT_SIGNED,
    behind_a_proxy_with_a_public_url: ALL,
    behind_a_path_of_a_proxy: ALL,
    trailing_slash_lost: ALL,
    trailing_slash_added: ALL,
    with_a_query: ALL,
    json_body: ALL - {"plivo"},  # Plivo signs forms only
    body_changed: {"genesys"},
    json_body_changed: {"genesys"},
    other_path: URL_NOT_SIGNED,
    too_old: {"twilio", "plivo"},
    from_the_future: {"twilio", "plivo"},
    signed_for_http: {"telnyx", "vonage", "genesys"},
    host_in_capitals: ALL,
    signed_with_capitals: ALL,
}


@pytest.mark.parametrize("provider", SIGNING)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_whose_request_is_taken(case, provider):
    attempt = case(provider)
    if provider in CASES[case]:
        verify(attempt.settings, attempt.request(), NOW, Nonces())
        return
    with pytest.raises(Rejected) as caught:
        verify(attempt.settings, attempt.request(), NOW, Nonces())
    for secret in (TOKEN, SECRETS.get(provider, TOKEN), "the API key", *attempt.headers.values()):
        assert secret not in str(caught.value)


@pytest.mark.parametrize("provider", SIGNING)
def test_a_request_is_taken_once(provider):
    attempt, seen = right(provider), Nonces()
    verify(attempt.settings, attempt.request(), NOW, seen)
    with pytest.raises(Replayed):
        verify(attempt.settings, attempt.request(), NOW + 1, seen)


@pytest.mark.parametrize("provider", SIGNING)
def test_what_was_refused_is_not_remembered(provider):
    seen = Nonces()
    attempt = right(provider)
    attempt.settings = carrier(provider, secret=b64(bytes(32)))
    with pytest.raises(Rejected):
        verify(attempt.settings, attempt.request(), NOW, seen)
    attempt.settings = carrier(provider)
    verify(attempt.settings, attempt.request(), NOW, seen)


@pytest.mark.parametrize("provider", SIGNING)
def test_any_header_that_is_missing_is_missed(provider):
    optional = {"audiohook-organization-id"}
    for name in right(provider).headers:
        attempt = right(provider)
        attempt.dropped = (name.lower(),)
        attempt.settings = carrier(provider, account="") if name in optional else attempt.settings
        with pytest.raises(Rejected):
            verify(attempt.settings, attempt.request(), NOW, Nonces())


@pytest.mark.parametrize("provider", SIGNING)
def test_an_empty_secret_lets_nobody_in(provider):
    loopback = carrier(provider, secret="", insecure=True)
    attempt = right(provider)
    attempt.settings = loopback
    for peer in ("203.0.113.7", "", "not an address"):
        attempt.peer = peer
        with pytest.raises(Rejected, match="this machine"):
            verify(loopback, attempt.request(), NOW, Nonces())
    attempt.peer = "127.0.0.1"
    verify(loopback, attempt.request(), NOW, Nonces())
