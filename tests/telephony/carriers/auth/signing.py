"""Requests as the providers sign them, made by hand from what their documents say."""

import base64
import hashlib
import hmac
import json
from urllib.parse import parse_qsl, urlencode

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from offhook.telephony.carriers.auth.signatures import Nonces, SignedRequest
from offhook.telephony.carriers.providers import provider_of
from offhook.telephony.carriers.settings import CarrierSettings

NOW = 1_780_000_000.0
HOST = "voice.example.org"
PATH = "/carriers/x/voice"
URL = f"https://{HOST}{PATH}"
FORM = "application/x-www-form-urlencoded"
FIELDS = [("CallSid", "CA0123"), ("From", "+15550100"), ("To", "+15550101"), ("Who", "Zoë & co")]
TOKEN = "5a5c1f2b9be5bd3d7eccbd8c5c5b1f55"
TELNYX_KEY = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
CLIENT_SECRET = b"client secret of the audio hook!"
SECRETS = {
    "telnyx": base64.b64encode(TELNYX_KEY.public_key().public_bytes_raw()).decode(),
    "genesys": base64.b64encode(CLIENT_SECRET).decode(),
}
SIGNING = ("twilio", "telnyx", "plivo", "vonage", "genesys")
ORGANIZATION = "d7934305-0972-4844-938e-9060eef73d05"


def carrier(provider, **values):
    keys = {"genesys": "the API key", "exotel": "exotel's key"}
    accounts = {"genesys": ORGANIZATION, "vonage": "application", "chan_websocket": "asterisk"}
    given = {
        "account": accounts.get(provider, ""),
        "secret": SECRETS.get(provider, TOKEN),
        "api_key": keys.get(provider, ""),
    }
    return CarrierSettings(provider=provider, **(given | values))


def verify(settings: CarrierSettings, request: SignedRequest, now: float, seen: Nonces) -> None:
    provider_of(settings).verify(request, now, seen)


def b64(data):
    return base64.b64encode(data).decode()


def b64url(data):
    return base64.urlsafe_b64encode(data).decode().rstrip("=")


def token_of(claims, secret=TOKEN, header=None):
    head = json.dumps(header or {"alg": "HS256", "typ": "JWT"}).encode()
    text = f"{b64url(head)}.{b64url(json.dumps(claims).encode())}"
    made = hmac.digest(secret.encode(), text.encode(), hashlib.sha256)
    return f"{text}.{b64url(made)}"


def sign_twilio(url, body, now, wrong):
    pairs = sorted(set(parse_qsl(body.decode(), keep_blank_values=True)))
    if body.startswith(b"{"):
        pairs = []
    text = url + "".join(k + v for k, v in pairs)
    secret = "wrong" if wrong else TOKEN
    return {"X-Twilio-Signature": b64(hmac.digest(secret.encode(), text.encode(), hashlib.sha1))}


def sign_telnyx(url, body, now, wrong):
    key = Ed25519PrivateKey.generate() if wrong else TELNYX_KEY
    text = f"{now:.0f}|".encode() + body
    return {
        "Telnyx-Signature-Ed25519": b64(key.sign(text)),
        "Telnyx-Timestamp": f"{now:.0f}",
    }


def sign_plivo(url, body, now, wrong, nonce="05429567804466091622"):
    base, _, query = url.partition("?")
    queries = "&".join(f"{k}={v}" for k, v in sorted(parse_qsl(query)))
    fields = "".join(k + v for k, v in sorted(parse_qsl(body.decode(), keep_blank_values=True)))
    text = f"{base}?{queries}{'.' if queries else ''}{fields}.{nonce}"
    secret = "wrong" if wrong else TOKEN
    made = b64(hmac.digest(secret.encode(), text.encode(), hashlib.sha256))
    return {"X-Plivo-Signature-V3": f"b3RoZXI=, {made}", "X-Plivo-Signature-V3-Nonce": nonce}


def sign_vonage(url, body, now, wrong):
    claims = {
        "iat": int(now),
        "jti": f"jti-{now}",
        "iss": "Vonage",
        "api_key": "a1b2c3",
        "application_id": "application",
        "payload_hash": hashlib.sha256(body).hexdigest(),
    }
    return {"Authorization": "Bearer " + token_of(claims, "wrong" if wrong else TOKEN)}


AUDIOHOOK_HEADERS = {
    "Audiohook-Organization-Id": ORGANIZATION,
    "Audiohook-Session-Id": "30b0e395-84d3-4570-ac13-9a62d8f514c0",
    "Audiohook-Correlation-Id": "e160e428-53e2-487c-977d-96989bf5c99d",
    "X-API-KEY": "the API key",
}
COVERED = ("@request-target", "@authority", *(name.lower() for name in AUDIOHOOK_HEADERS))


def sign_genesys(url, body, now, wrong, covered=COVERED, **parameters):
    """`parameters` as they stand in the header, "" for one that is left out."""
    authority, slash, target = url.partition("://")[2].partition("/")
    values = {"@request-target": slash + target, "@authority": authority}
    values |= {name.lower(): value for name, value in AUDIOHOOK_HEADERS.items()}
    told = {"keyid": '"the API key"', "nonce": '"VGhpc0lzQVVuaXF1ZU5vbmNl"'}
    told |= {"alg": '"hmac-sha256"', "created": f"{now:.0f}", "expires": f"{now + 10:.0f}"}
    names = " ".join(f'"{name}"' for name in covered)
    described = f"({names})" + "".join(f";{k}={v}" for k, v in (told | parameters).items() if v)
    lines = [f'"{k}": {values[k]}' for k in covered] + [f'"@signature-params": {described}']
    secret = b"wrong" if wrong else CLIENT_SECRET
    made = hmac.digest(secret, "\n".join(lines).encode(), hashlib.sha256)
    return AUDIOHOOK_HEADERS | {
        "Signature": f"sig1=:{b64(made)}:",
        "Signature-Input": f"sig1={described}",
    }


SIGNERS = {
    "twilio": sign_twilio,
    "telnyx": sign_telnyx,
    "plivo": sign_plivo,
    "vonage": sign_vonage,
    "genesys": sign_genesys,
}


class Attempt:
    """One request as a provider would send it to `url`, and as it arrives."""

    def __init__(self, provider, url=URL, fields=FIELDS, now=NOW, wrong=False, **values):
        self.provider = provider
        self.settings = carrier(provider, **values)
        self.url = url
        self.body = b"" if provider == "genesys" else urlencode(fields).encode()
        self.content_type = FORM
        self.signed_at = now
        self.wrong = wrong
        self.arrival = {}
        self.headers = {}
        self.dropped = ()
        self.peer = "203.0.113.7"

    def sign(self):
        self.headers = SIGNERS[self.provider](self.url, self.body, self.signed_at, self.wrong)
        return self

    def request(self):
        scheme, _, rest = self.url.partition("://")
        host, slash, path = rest.partition("/")
        upgrade = self.provider == "genesys"
        seen_as = {"scheme": scheme, "host": host, "path_qs": slash + path} | self.arrival
        extra = seen_as.pop("headers", {})
        sent = {"Content-Type": self.content_type} | self.headers | extra
        return SignedRequest.read(
            self.settings,
            "GET" if upgrade else "POST",
            headers=[(k, v) for k, v in sent.items() if k.lower() not in self.dropped],
            body=self.body,
            peer=self.peer,
            upgrade=upgrade,
            **seen_as,
        )
