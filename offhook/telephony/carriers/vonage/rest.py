"""Vonage's REST API: the Voice API, version 1. Each request is signed as the application.

Source: Vonage's "Voice API reference", "NCCO reference" and "Authentication".
"""

import json
from base64 import urlsafe_b64encode
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from uuid import uuid4

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.padding import PKCS1v15
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from offhook.telephony.carriers.rest.request import (
    Api,
    DialRequest,
    Response,
    RestError,
    RestRequest,
    destination,
    is_sip,
    path_id,
    readable,
)
from offhook.telephony.carriers.settings import CarrierSettings

JWT_LIFETIME_S = 900
"""Lifetime of our tokens: long enough for clocks that differ by minutes."""

_JWT_HEADER = {"alg": "RS256", "typ": "JWT"}
_PEM_BEGINS = "-----BEGIN "


@dataclass(frozen=True, slots=True)
class ApplicationAuth:
    """A Vonage application, which signs a token for each request (RS256, RFC 7519)."""

    application_id: str
    private_key: str = field(repr=False)
    """PEM."""

    def header(self, now: float) -> str:
        """Return the value of the Authorization header. Raises RestError for an invalid key."""
        claims = {
            "application_id": self.application_id,
            "iat": int(now),
            "exp": int(now) + JWT_LIFETIME_S,
            "jti": str(uuid4()),
        }
        parts = [_base64url(json.dumps(part).encode()) for part in (_JWT_HEADER, claims)]
        signature = _private_key(self.private_key).sign(
            ".".join(parts).encode(), PKCS1v15(), SHA256()
        )
        return "Bearer " + ".".join((*parts, _base64url(signature)))


@lru_cache(maxsize=8)
def _private_key(pem: str) -> RSAPrivateKey:
    try:
        key = load_pem_private_key(pem.encode(), None)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        key = None
    if not isinstance(key, RSAPrivateKey):
        raise RestError(0, "Vonage: api_key is not the application's private key (RSA, as PEM)")
    return key


def _base64url(data: bytes) -> str:
    return urlsafe_b64encode(data).decode().rstrip("=")


class VonageApi(Api):
    title = "Vonage"
    default_url = "https://api.nexmo.com"
    credentials = "account (the application's id) and api_key (its private key)"

    def __init__(self, settings: CarrierSettings) -> None:
        """Raises RestError if the private key cannot be read."""
        super().__init__(_with_key(settings))

    def auth(self) -> ApplicationAuth:
        return ApplicationAuth(self.require("account"), self.require("api_key"))

    def dial(self, call: DialRequest) -> RestRequest:
        body: dict[str, object] = {
            "to": [endpoint(call.to)],
            "from": endpoint("+" + call.caller.removeprefix("+")),
            "answer_url": [call.webhook_url],
            "answer_method": "POST",
            "ringing_timer": call.ring_timeout(1, 120),
        }
        if call.status_url:
            body |= {"event_url": [call.status_url], "event_method": "POST"}
        if call.detects:
            mode = "detect_beep" if call.detection == "message" else "detect"
            body["advanced_machine_detection"] = {"behavior": "continue", "mode": mode}
        return self.request("POST", "v1", "calls", json_body=body)

    def hang_up(self, call_id: str) -> RestRequest:
        return self._update(call_id, {"action": "hangup"})

    def transfer(self, call_id: str, target: str, outcome_url: str = "") -> RestRequest:
        connect: dict[str, object] = {
            "action": "connect",
            "endpoint": [endpoint(destination(target))],
        }
        if outcome_url:  # whose answer replaces this NCCO if the target cannot be reached
            connect |= {"eventType": "synchronous", "eventUrl": [outcome_url]}
        # Without a number Vonage shows none, and some networks then reject the call.
        if self.settings.number:
            connect["from"] = self.settings.number.removeprefix("+")
        where = {"type": "ncco", "ncco": [connect]}
        return self._update(call_id, {"action": "transfer", "destination": where})

    def _update(self, call_id: str, body: dict[str, object]) -> RestRequest:
        return self.request("PUT", "v1", "calls", path_id(call_id), json_body=body)

    def call_id(self, answer: Response) -> object:
        return answer.get("uuid")

    def read_error(self, answer: Response) -> tuple[object, object]:
        """Read Vonage's own error format ("error_title", "invalid_parameters") or RFC 7807's."""
        title = answer.get("error_title") or answer.get("title", "")
        detail = answer.get("detail") or answer.get("invalid_parameters", "")
        words = [readable(part) for part in (title, detail)]
        return "", ": ".join(word for word in words if word)


def endpoint(address: str) -> dict[str, str]:
    """Return Vonage's endpoint object for a number or SIP URI."""
    if is_sip(address):
        return {"type": "sip", "uri": address}
    return {"type": "phone", "number": address.removeprefix("+")}


def _with_key(settings: CarrierSettings) -> CarrierSettings:
    """Read the private key, which may be given as a file name."""
    key = settings.api_key
    if not key or key.lstrip().startswith(_PEM_BEGINS):
        return settings
    try:
        return replace(settings, api_key=Path(key).read_text())
    except (OSError, ValueError) as error:
        # Do not show the path: it may be a malformed key.
        why = error.strerror if isinstance(error, OSError) else "not a text file"
        raise RestError(
            0, f"carrier {settings.name!r}: cannot read the file that api_key names: {why}"
        ) from None
