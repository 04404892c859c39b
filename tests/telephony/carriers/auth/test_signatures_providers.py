"""Each provider's signature beside what its documents and its own library say of it."""

import hashlib
import hmac
import importlib.util
import json
import time
from pathlib import Path
from urllib.parse import urlencode

import pytest

from offhook.telephony.carriers.auth.signatures import (
    Nonces,
    Rejected,
    SignedRequest,
)
from offhook.telephony.carriers.genesys.http_signature import MAX_SIGNATURES, parse_signatures
from tests.telephony.carriers.auth.signing import (
    COVERED,
    FIELDS,
    FORM,
    HOST,
    NOW,
    ORGANIZATION,
    PATH,
    SECRETS,
    TOKEN,
    URL,
    Attempt,
    b64,
    b64url,
    carrier,
    sign_genesys,
    sign_telnyx,
    token_of,
    verify,
)


def right(provider, **values):
    return Attempt(provider, **values).sign()


def telnyx_webhooks():
    """Its module for this alone: all of the package takes seconds to load."""
    pytest.importorskip("nacl")
    package = importlib.util.find_spec("telnyx")
    if package is None:
        pytest.skip("telnyx is not installed")
    path = Path(package.origin).parent / "lib" / "webhook_verification.py"
    spec = importlib.util.spec_from_file_location("telnyx_webhook_verification", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def is_taken(attempt, now=NOW):
    try:
        verify(attempt.settings, attempt.request(), now, Nonces())
    except Rejected:
        return False
    return True


class TestTwilio:
    def test_the_example_of_its_documents_fits(self):
        form = [
            ("CallSid", "CA1234567890ABCDE"),
            ("Caller", "+14158675309"),
            ("Digits", "1234"),
            ("From", "+14158675309"),
            ("To", "+18005551212"),
        ]
        request = SignedRequest(
            "POST",
            ("https://mycompany.com/myapp.php?foo=1&bar=2",),
            {"x-twilio-signature": "RSOYDt4T1cUTdK1PDd93/VVr8B8="},
            form=tuple(form),
        )
        verify(carrier("twilio", secret="12345"), request, NOW, Nonces())

    def test_repeated_fields_and_empty_ones_count_as_its_library_counts_them(self):
        validator = pytest.importorskip("twilio.request_validator").RequestValidator(TOKEN)

        class Form(dict):
            def getall(self, name):
                return [v for k, v in fields if k == name]

        fields = [("To", "b"), ("To", "a"), ("To", "a"), ("Empty", ""), ("A", "ü&=+")]
        made = validator.compute_signature(URL, Form(fields))
        attempt = Attempt("twilio", fields=fields)
        attempt.headers = {"X-Twilio-Signature": made}
        verify(attempt.settings, attempt.request(), NOW, Nonces())

    @pytest.mark.parametrize("wrong", [False, True])
    @pytest.mark.parametrize("url", [URL, f"{URL}?z=2&a=%20b", f"https://{HOST}:443{PATH}"])
    def test_its_library_takes_what_we_take(self, url, wrong):
        validator = pytest.importorskip("twilio.request_validator").RequestValidator(TOKEN)
        attempt = right("twilio", url=url, wrong=wrong)
        given = attempt.headers["X-Twilio-Signature"]
        assert validator.validate(url, dict(FIELDS), given) == is_taken(attempt) == (not wrong)

    def test_its_library_takes_the_json_that_we_take(self):
        validator = pytest.importorskip("twilio.request_validator").RequestValidator(TOKEN)
        attempt = Attempt("twilio")
        attempt.body, attempt.content_type = b'{"CallSid": "CA1"}', "application/json"
        attempt.url += f"?bodySHA256={hashlib.sha256(attempt.body).hexdigest()}"
        given = attempt.sign().headers["X-Twilio-Signature"]
        assert validator.validate(attempt.url, attempt.body.decode(), given)
        assert is_taken(attempt)

    @pytest.mark.parametrize("path", ["/carriers/x/stream/abc", "/carriers/x/stream/abc/"])
    @pytest.mark.parametrize("signed_path", ["/carriers/x/stream/abc", "/carriers/x/stream/abc/"])
    @pytest.mark.parametrize("scheme", ["wss", "https"])
    @pytest.mark.parametrize("signed_host", [HOST, f"{HOST}:443"])
    def test_an_upgrade_is_signed_as_the_socket_it_opens(
        self, path, signed_path, scheme, signed_host
    ):
        validator = pytest.importorskip("twilio.request_validator").RequestValidator(TOKEN)
        made = validator.compute_signature(f"{scheme}://{signed_host}{signed_path}", {})
        settings = carrier("twilio", public_url=f"https://{HOST}")
        request = SignedRequest.read(
            settings,
            "GET",
            "http",
            "10.0.0.5:8080",
            path,
            [("x-twilio-signature", made), ("Upgrade", "websocket")],
            upgrade=True,
        )
        verify(settings, request, NOW, Nonces())
        plain = SignedRequest.read(
            settings, "GET", "http", "a", path, [("X-Twilio-Signature", made)]
        )
        if scheme == "wss":  # a socket's signature opens no webhook
            with pytest.raises(Rejected):
                verify(settings, plain, NOW, Nonces())

    def test_an_upgrade_without_tls_is_for_this_machine(self):
        validator = pytest.importorskip("twilio.request_validator").RequestValidator(TOKEN)
        settings = carrier("twilio", public_url="http://localhost:8080")
        made = validator.compute_signature("ws://localhost:8080/s", {})
        read = (settings, "GET", "http", "localhost:8080", "/s", [("x-twilio-signature", made)])
        verify(settings, SignedRequest.read(*read, upgrade=True), NOW, Nonces())

    def test_a_shared_key_signs_with_sha256(self):
        twilio = pytest.importorskip("twilio.request_validator")
        algorithm = twilio.HMAC_SHA256
        params = dict(FIELDS)
        made = twilio.RequestValidator(TOKEN).compute_signature(URL, params, algorithm)
        attempt = Attempt("twilio")
        attempt.headers = {
            "X-Twilio-Signature": made,
            twilio.SIGNATURE_SETTINGS_HEADER: "key=webhooks_sharedkey_1,algorithm=HMAC_SHA256",
        }
        verify(attempt.settings, attempt.request(), NOW, Nonces())

    def test_a_body_that_nothing_vouches_for_is_refused(self):
        attempt = Attempt("twilio")
        attempt.body, attempt.content_type = b'{"a": 1}', "application/json"
        with pytest.raises(Rejected, match="body"):
            verify(attempt.settings, attempt.sign().request(), NOW, Nonces())


class TestTelnyx:
    def test_its_library_takes_what_we_take(self):
        library = telnyx_webhooks()
        now = time.time()
        attempt = Attempt("telnyx", now=now).sign()
        verify(attempt.settings, attempt.request(), now, Nonces())
        library.verify_webhook_signature(attempt.body, attempt.headers, SECRETS["telnyx"])
        attempt = Attempt("telnyx", now=now, wrong=True).sign()
        with pytest.raises(library.WebhookVerificationError):
            library.verify_webhook_signature(attempt.body, attempt.headers, SECRETS["telnyx"])

    def test_a_get_has_nothing_that_is_signed(self):
        headers = sign_telnyx(URL, b"", NOW, False)
        read = ("GET", "https", HOST, f"{PATH}?CallSid=CA1", headers.items())
        request = SignedRequest.read(carrier("telnyx"), *read)
        with pytest.raises(Rejected, match="POST"):
            verify(carrier("telnyx"), request, NOW, Nonces())

    @pytest.mark.parametrize("timestamp", ["", "now", "-1", "1e9", "9" * 400, "١٢٣"])
    def test_a_time_is_digits(self, timestamp):
        attempt = right("telnyx")
        attempt.headers["Telnyx-Timestamp"] = timestamp
        assert not is_taken(attempt)


class TestPlivo:
    FIELDS = (("To", "b"), ("To", "a"), ("Empty", ""), ("From", "+1 555"))

    @pytest.mark.parametrize("method", ["GET", "POST"])
    @pytest.mark.parametrize("query", ["", "?b=2&a=1&a=0", "?x=a%20b&blank="])
    @pytest.mark.parametrize("fields", [(), FIELDS])
    def test_what_its_library_signs_is_taken(self, method, query, fields):
        plivo = pytest.importorskip("plivo.utils.signature_v3")
        if method == "GET" and fields:
            return
        params = {}
        for name, value in fields:
            params.setdefault(name, []).append(value)
        url = URL + query
        build = plivo.construct_get_url if method == "GET" else plivo.construct_post_url
        base = build(url, params).decode()
        made = plivo.get_signature_v3(TOKEN.encode(), base, b"123").decode()
        params = {k: v if len(v) > 1 else v[0] for k, v in params.items()}
        assert plivo.validate_v3_signature(method, url, "123", TOKEN, made, params)
        headers = [
            ("Content-Type", FORM),
            ("X-Plivo-Signature-V3", made),
            ("X-Plivo-Signature-V3-Nonce", "123"),
        ]
        settings = carrier("plivo")
        request = SignedRequest.read(
            settings, method, "https", HOST, PATH + query, headers, urlencode(fields).encode()
        )
        verify(settings, request, NOW, Nonces())

    def test_its_library_takes_what_we_take(self):
        plivo = pytest.importorskip("plivo.utils")
        attempt = right("plivo", url=f"{URL}?z=2&agent=front%20desk&a=1")
        given = attempt.headers["X-Plivo-Signature-V3"].replace(" ", "")
        nonce = attempt.headers["X-Plivo-Signature-V3-Nonce"]
        params = dict(FIELDS)
        assert plivo.validate_v3_signature("POST", attempt.url, nonce, TOKEN, given, params)

    def test_the_main_account_may_sign_for_its_subaccount(self):
        attempt = right("plivo")
        made = attempt.headers.pop("X-Plivo-Signature-V3")
        attempt.headers |= {"X-Plivo-Signature-V3": "AAAA", "X-Plivo-Signature-Ma-V3": made}
        verify(attempt.settings, attempt.request(), NOW, Nonces())

    def test_a_body_that_is_not_a_form_is_not_signed(self):
        attempt = right("plivo", fields=())
        made = hmac.digest(TOKEN.encode(), f"{URL}.1".encode(), hashlib.sha256)
        attempt.headers = {"X-Plivo-Signature-V3": b64(made), "X-Plivo-Signature-V3-Nonce": "1"}
        assert is_taken(attempt)
        attempt.body, attempt.content_type = b'{"CallUUID": "1"}', "application/json"
        assert not is_taken(attempt)

    def version_2(self, nonce="42"):
        made = b64(hmac.digest(TOKEN.encode(), f"{URL}{nonce}".encode(), hashlib.sha256))
        return {"X-Plivo-Signature-V2": made, "X-Plivo-Signature-V2-Nonce": nonce}

    def test_version_2_is_refused_unless_it_is_asked_for(self):
        attempt = Attempt("plivo")
        attempt.headers = self.version_2()
        with pytest.raises(Rejected, match="signature_v2"):
            verify(attempt.settings, attempt.request(), NOW, Nonces())

    def test_version_2_is_taken_where_there_is_no_version_3(self):
        plivo = pytest.importorskip("plivo.utils")
        attempt = Attempt("plivo", url=f"{URL}?a=1", signature_v2=True)
        attempt.headers = self.version_2()
        made = attempt.headers["X-Plivo-Signature-V2"]
        assert plivo.validate_signature(attempt.url, "42", made, TOKEN)
        verify(attempt.settings, attempt.request(), NOW, Nonces())
        attempt.headers |= {"X-Plivo-Signature-V3": "AAAA", "X-Plivo-Signature-V3-Nonce": "42"}
        with pytest.raises(Rejected):
            verify(attempt.settings, attempt.request(), NOW, Nonces())

    def test_what_came_with_version_3_does_not_come_again_with_version_2(self):
        seen, attempt = Nonces(), Attempt("plivo", signature_v2=True).sign()
        attempt.headers |= self.version_2()
        verify(attempt.settings, attempt.request(), NOW, seen)
        attempt.headers = self.version_2()
        attempt.body = urlencode([("CallUUID", "another")]).encode()
        with pytest.raises(Rejected, match="replayed"):
            verify(attempt.settings, attempt.request(), NOW, seen)


class TestVonage:
    def attempt(self, secret=TOKEN, header=None, **claims):
        attempt = Attempt("vonage")
        told = {"iat": NOW, "payload_hash": hashlib.sha256(attempt.body).hexdigest()}
        told = {k: v for k, v in (told | claims).items() if v is not None}
        attempt.headers = {"Authorization": f"Bearer {token_of(told, secret, header)}"}
        return attempt

    def test_its_library_takes_what_we_take(self):
        library = pytest.importorskip("vonage_jwt")
        now = time.time()
        for wrong in (False, True):
            attempt = right("vonage", now=now, wrong=wrong)
            token = attempt.headers["Authorization"].removeprefix("Bearer ")
            assert library.verify_signature(token, TOKEN) == is_taken(attempt, now) == (not wrong)

    def test_what_pyjwt_signs_is_taken(self):
        jwt = pytest.importorskip("jwt")
        attempt = Attempt("vonage")
        claims = {"iat": NOW, "jti": "1", "payload_hash": hashlib.sha256(attempt.body).hexdigest()}
        token = jwt.encode(claims, TOKEN, algorithm="HS256")
        attempt.headers = {"Authorization": f"bearer {token}"}
        verify(attempt.settings, attempt.request(), NOW, Nonces())

    @pytest.mark.parametrize(
        "claims",
        [
            {"iat": None},
            {"iat": True},
            {"iat": "1780000000"},
            {"iat": float("nan")},
            {"iat": 10**400},
            {"exp": NOW - 1},
            {"exp": []},
            {"application_id": "another"},
            {"payload_hash": None},
            {"payload_hash": 7},
            {"payload_hash": ""},
            {"header": {"alg": "none"}},
            {"header": {"alg": "HS512"}},
            {"header": {"alg": ["HS256"]}},
        ],
    )
    def test_a_token_that_says_too_little_or_too_much_is_refused(self, claims):
        attempt = self.attempt(**claims)
        with pytest.raises(Rejected):
            verify(attempt.settings, attempt.request(), NOW, Nonces())

    def test_a_token_written_in_another_way_is_the_same_token(self):
        seen, attempt = Nonces(), right("vonage")
        verify(attempt.settings, attempt.request(), NOW, seen)
        alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
        given = attempt.headers["Authorization"]
        # the last letter of 32 bytes in base64 has two bits that mean nothing
        other = given[:-1] + alphabet[alphabet.index(given[-1]) ^ 1]
        attempt.headers["Authorization"] = other
        with pytest.raises(Rejected, match="replayed"):
            verify(attempt.settings, attempt.request(), NOW, seen)

    def test_a_token_of_endless_depth_is_refused(self):
        attempt = right("vonage")
        deep = b64url(b"[" * 60_000)
        for token in (f"{deep}.e30.AAAA", f"e30.{deep}.AAAA"):
            attempt.headers["Authorization"] = f"Bearer {token}"
            assert not is_taken(attempt)

    @pytest.mark.parametrize("scheme", ["", "Basic", "Token"])
    def test_nothing_but_a_bearer_token_is_read(self, scheme):
        attempt = right("vonage")
        token = attempt.headers["Authorization"].partition(" ")[2]
        attempt.headers["Authorization"] = f"{scheme} {token}".strip()
        with pytest.raises(Rejected):
            verify(attempt.settings, attempt.request(), NOW, Nonces())

    @pytest.mark.parametrize("claimed", [None, "", hashlib.sha256(b"").hexdigest()])
    def test_a_get_whose_query_is_not_signed_is_refused(self, claimed):
        """Whoever has read a token that did not arrive could say with it who calls."""
        settings = carrier("vonage")
        claims = {"iat": NOW} | ({} if claimed is None else {"payload_hash": claimed})
        headers = [("Authorization", f"Bearer {token_of(claims)}")]
        target = f"{PATH}?{urlencode({'to': '15550199', 'uuid': 'forged'})}"
        request = SignedRequest.read(settings, "GET", "https", HOST, target, headers)
        with pytest.raises(Rejected, match=r"POST|body hash"):
            verify(settings, request, NOW, Nonces())

    @pytest.mark.parametrize("change", [False, True])
    def test_of_a_get_the_query_is_signed(self, change):
        settings = carrier("vonage")
        query = {"to": "15550100", "from": "Zoë", "uuid": "aaaa-bbbb"}
        text = json.dumps(query, separators=(",", ":"), ensure_ascii=False)
        claims = {"iat": NOW, "payload_hash": hashlib.sha256(text.encode()).hexdigest()}
        headers = [("Authorization", f"Bearer {token_of(claims)}")]
        target = f"{PATH}?{urlencode(query | ({'to': '15550199'} if change else {}))}"
        request = SignedRequest.read(settings, "GET", "https", HOST, target, headers)
        if not change:
            verify(settings, request, NOW, Nonces())
            return
        with pytest.raises(Rejected, match="body hash does not match"):
            verify(settings, request, NOW, Nonces())


class TestGenesys:
    EXAMPLE = (
        ("Audiohook-Organization-Id", ORGANIZATION),
        ("Audiohook-Correlation-Id", "e160e428-53e2-487c-977d-96989bf5c99d"),
        ("Audiohook-Session-Id", "30b0e395-84d3-4570-ac13-9a62d8f514c0"),
        ("X-API-KEY", "SGVsbG8sIEkgYW0gdGhlIEFQSSBrZXkh"),
        ("Signature", "sig1=:NZBwyBHRRyRoeLqy1IzOa9VYBuI8TgMFt2GRDkDuJh4=:"),
        (
            "Signature-Input",
            'sig1=("@request-target" "@authority" "audiohook-organization-id" '
            '"audiohook-session-id" "audiohook-correlation-id" "x-api-key");'
            'keyid="SGVsbG8sIEkgYW0gdGhlIEFQSSBrZXkh";nonce="VGhpc0lzQVVuaXF1ZU5vbmNl";'
            'alg="hmac-sha256";created=1641013200;expires=3282026430',
        ),
    )

    def test_the_example_of_its_documents_fits(self):
        settings = carrier(
            "genesys",
            secret="TXlTdXBlclNlY3JldEtleVRlbGxOby0xITJAMyM0JDU=",
            api_key="SGVsbG8sIEkgYW0gdGhlIEFQSSBrZXkh",
        )
        target = "/api/v1/voicebiometrics/ws"
        read = ("GET", "https", "audiohook.example.com", target, self.EXAMPLE)
        request = SignedRequest.read(settings, *read, upgrade=True)
        verify(settings, request, 1641013205, Nonces())

    @pytest.mark.parametrize(
        ("name", "value"),
        [
            ("created", ""),
            ("created", '"1"'),
            ("expires", '"9"'),
            ("expires", f"{NOW - 1:.0f}"),
            ("nonce", ""),
            ("nonce", "7"),
            ("keyid", ""),
            ("keyid", '"another"'),
            ("alg", '"rsa-pss-sha512"'),
        ],
    )
    def test_every_parameter_is_looked_at(self, name, value):
        attempt = Attempt("genesys")
        attempt.headers = sign_genesys(URL, b"", NOW, False, **{name: value})
        assert not is_taken(attempt)

    def test_what_may_be_left_out_may_be_left_out(self):
        attempt = Attempt("genesys")
        attempt.headers = sign_genesys(URL, b"", NOW, False, alg="", expires="")
        assert is_taken(attempt)

    @pytest.mark.parametrize("name", COVERED)
    def test_every_part_has_to_be_covered(self, name):
        attempt = Attempt("genesys")
        others = [other for other in COVERED if other != name]
        attempt.headers = sign_genesys(URL, b"", NOW, False, covered=others)
        with pytest.raises(Rejected, match=f"does not cover {name}"):
            verify(attempt.settings, attempt.request(), NOW, Nonces())

    def test_another_organization_is_refused(self):
        attempt = right("genesys")
        attempt.settings = carrier("genesys", account="another")
        with pytest.raises(Rejected, match="organization"):
            verify(attempt.settings, attempt.request(), NOW, Nonces())

    def test_a_signature_that_a_proxy_added_does_no_harm(self):
        attempt = right("genesys")
        signature, described = (attempt.headers[n] for n in ("Signature", "Signature-Input"))
        attempt.headers["Signature"] = f"proxy=:AAAA:, {signature}"
        attempt.headers["Signature-Input"] = f'proxy=("@method");created=1 , {described}'
        verify(attempt.settings, attempt.request(), NOW, Nonces())

    def test_only_so_many_signatures_are_read(self):
        for count, taken in ((MAX_SIGNATURES, True), (MAX_SIGNATURES + 1, False)):
            attempt = right("genesys")
            others = [f"s{n}" for n in range(count - 1)]
            for name, value in (("Signature", ":AAAA:"), ("Signature-Input", '("a");created=1')):
                added = [f"{other}={value}" for other in others]
                attempt.headers[name] = ",".join([*added, attempt.headers[name]])
            assert is_taken(attempt) == taken

    @pytest.mark.parametrize(
        "described",
        [
            "",
            "sig1",
            'sig1=("a" "a");created=1',
            'sig1=("a";sf);created=1',
            'sig1=("a");created=1;created=2',
            'sig1=("a");created=1,',
            'sig1=("a);created=1',
            'sig2=("a");created=1',
            ",".join(f'sig{n}=("a");created=1' for n in range(9)),
        ],
    )
    def test_headers_that_are_not_structured_fields_are_refused(self, described):
        made = ", ".join(f"sig{n}=:AAAA:" for n in (1, 3, 4))
        with pytest.raises(ValueError, match=r"malformed|repeated|no signature"):
            parse_signatures(described, made)
