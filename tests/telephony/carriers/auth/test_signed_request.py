"""What is read of a request, those who know a password, and what hostile requests do: nothing."""

import contextlib
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from offhook.telephony.carriers.auth import signatures
from offhook.telephony.carriers.auth.signatures import (
    MAX_BODY_BYTES,
    MAX_FIELDS,
    Nonces,
    Rejected,
    SignedRequest,
    is_listed,
    url_token,
)
from offhook.telephony.carriers.genesys.http_signature import parse_signatures
from offhook.telephony.carriers.vonage.json_web_token import verify_token
from tests.telephony.carriers.auth.signing import (
    FORM,
    HOST,
    NOW,
    PATH,
    SIGNERS,
    TOKEN,
    URL,
    Attempt,
    b64,
    carrier,
    verify,
)


def ask(settings, target=PATH, peer="203.0.113.7", **headers):
    sent = [(name.replace("_", "-"), value) for name, value in headers.items()]
    request = SignedRequest.read(settings, "GET", "https", HOST, target, sent, peer=peer)
    verify(settings, request, NOW, Nonces())


def basic(user, password):
    return "Basic " + b64(f"{user}:{password}".encode())


class TestWithoutASignature:
    @pytest.mark.parametrize(
        ("provider", "user"), [("exotel", "exotel's key"), ("chan_websocket", "asterisk")]
    )
    def test_a_password_or_a_token_lets_in(self, provider, user):
        settings = carrier(provider)
        ask(settings, authorization=basic(user, TOKEN))
        ask(settings, f"{PATH}?token={url_token(settings)}&CallSid=1")
        for wrong in (basic(user, "x"), basic("x", TOKEN), f"Bearer {TOKEN}", "Basic ???", "Basic"):
            with pytest.raises(Rejected):
                ask(settings, authorization=wrong)
        for target in (PATH, f"{PATH}?token=", f"{PATH}?token={TOKEN}"):
            with pytest.raises(Rejected):
                ask(settings, target)

    def test_a_token_is_of_one_carrier_and_hides_its_secret(self):
        tokens = {url_token(carrier("exotel", name=name, secret=s)) for name in "ab" for s in "cd"}
        assert len(tokens) == 4
        assert not any(TOKEN in token for token in tokens)

    @pytest.mark.parametrize("provider", ["audiosocket", "chan_websocket"])
    def test_asterisk_is_known_by_its_address(self, provider):
        settings = carrier(provider, secret="", addresses=("127.0.0.0/8", "::1", "10.1.0.0/16"))
        for peer in ("127.0.0.1", "::1", "::ffff:10.1.2.3", "10.1.255.255"):
            ask(settings, peer=peer)
            assert is_listed(settings, peer)
        for peer in ("10.2.0.1", "203.0.113.7", "", "localhost", "fe80::1%eth0"):
            assert not is_listed(settings, peer)
            with pytest.raises(Rejected):
                ask(settings, peer=peer)

    def test_only_asterisk_is_known_by_its_address(self):
        with pytest.raises(Rejected, match="neither"):
            ask(carrier("exotel"), peer="127.0.0.1")

    def test_no_password_is_not_an_empty_password(self):
        settings = carrier("chan_websocket", secret="", account="")
        for target in (PATH, f"{PATH}?token={url_token(settings)}"):
            with pytest.raises(Rejected, match="addresses"):
                ask(settings, target, authorization=basic("", ""))

    def test_an_address_behind_a_proxy_is_the_proxys_word(self):
        settings = carrier("chan_websocket", secret="")
        with pytest.raises(Rejected):  # our own proxy's address is not the caller's
            ask(settings, peer="", X_Forwarded_For="127.0.0.1")
        trusting = carrier("chan_websocket", secret="", trust_proxy=True)
        ask(trusting, peer="10.0.0.1", X_Forwarded_For="203.0.113.7, 127.0.0.1")
        with pytest.raises(Rejected):
            ask(trusting, peer="127.0.0.1", X_Forwarded_For="127.0.0.1, 203.0.113.7")


class TestRequests:
    def test_a_request_that_no_webhook_is_so_large_as_is_refused(self):
        read = (carrier("twilio"), "POST", "https", HOST, PATH, [("content-type", FORM)])
        with pytest.raises(Rejected, match="bytes"):
            SignedRequest.read(*read, body=bytes(MAX_BODY_BYTES + 1))
        with pytest.raises(Rejected, match="fields"):
            SignedRequest.read(*read, body=b"a=&" * (MAX_FIELDS + 1))

    def test_no_header_and_no_field_is_shown(self):
        request = Attempt("vonage").sign().request()
        assert "Bearer" not in repr(request)
        assert "CA0123" not in repr(request)

    def test_what_was_seen_is_forgotten_from_the_oldest(self, monkeypatch):
        monkeypatch.setattr(signatures, "MAX_SEEN", 3)
        seen = Nonces()
        for text in "abcd":
            seen.add(text)
        for text in "bcd":
            with pytest.raises(Rejected):
                seen.add(text)
        seen.add("a")

    def test_candidates_stay_few(self):
        settings = carrier("twilio", trust_proxy=True)
        headers = {
            "x-forwarded-host": "A.example:8443, b.example",
            "x-forwarded-proto": "https,http",
        }
        urls = signatures.candidates(settings, "http", "x", "/a/?b=c", headers, upgrade=True)
        assert urls[0] == "wss://A.example:8443/a/?b=c"
        assert {"https://a.example/a?b=c", "wss://A.example/a/?b=c"} <= set(urls)
        assert len(urls) <= 16
        assert not any("b.example" in url or url.startswith(("http:", "ws:")) for url in urls)


TEXT = st.text(max_size=20) | st.text(st.characters(categories=["Cs", "Po"]), max_size=5)
PIECES = (
    "sig1=",
    "(",
    ")",
    '"@authority"',
    '"x',
    " ",
    ";",
    "created=",
    "1780000000",
    ":",
    ",",
    "=",
)
HOSTILE = TEXT | st.lists(st.sampled_from(PIECES), max_size=12).map("".join)


@given(st.data())
def test_nothing_but_refused_comes_of_any_request(data):
    provider = data.draw(st.sampled_from([*SIGNERS, "exotel", "chan_websocket", "audiosocket"]))
    made = SIGNERS[provider](URL, b"", NOW, False) if provider in SIGNERS else {}
    names = [*made, "Host", "Content-Type", "X-Forwarded-For", "X-Forwarded-Host", "Authorization"]
    drawn = data.draw(st.lists(st.tuples(st.sampled_from(names), HOSTILE)))
    headers = [*made.items(), *drawn] if data.draw(st.booleans()) else drawn
    told = carrier(provider, trust_proxy=data.draw(st.booleans()), addresses=())
    method = data.draw(st.sampled_from(["GET", "POST"]))
    host, target = data.draw(TEXT), "/" + data.draw(TEXT)
    body, peer = data.draw(st.binary(min_size=1)), data.draw(TEXT)

    def attempt():
        request = SignedRequest.read(told, method, "https", host, target, headers, body, peer)
        verify(told, request, NOW, Nonces())

    with pytest.raises(Rejected):
        attempt()


@given(HOSTILE, HOSTILE)
def test_no_text_breaks_the_readers(one, other):
    with contextlib.suppress(ValueError):
        parse_signatures(one, other)
    with pytest.raises(ValueError, match="token"):
        verify_token(one, b"secret")


LONG = [
    "sig1=(" + " " * 8000,
    'sig1=("' + "a" * 8000,
    "sig1=(" + '"a"' * 2500,
    "a=1" + " " * 8000,
    'sig1=("a")' + ";a=1" * 2000 + "!",
    'sig1=("a");b="' + "\\\\" * 4000,
]


@pytest.mark.slow
@pytest.mark.parametrize("text", LONG, ids=range(len(LONG)))
def test_a_long_header_is_read_in_no_time(text):
    started = time.process_time()
    with pytest.raises(ValueError, match=r"malformed|repeated"):
        parse_signatures(text, "sig1=:AAAA:")
    assert time.process_time() - started < 1  # of all threads, on a busy machine
