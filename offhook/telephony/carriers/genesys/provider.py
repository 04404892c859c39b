"""Genesys Cloud: AudioHook integrations, which sign the WebSocket's request.

Source: Genesys' "AudioHook security".
"""

import base64
from collections.abc import Mapping
from typing import ClassVar

from offhook.telephony.carriers.auth.signatures import (
    Nonces,
    Rejected,
    SignedRequest,
    check_age,
    equal,
)
from offhook.telephony.carriers.genesys.http_signature import HttpSignature, parse_signatures
from offhook.telephony.carriers.genesys.stream import GenesysStream
from offhook.telephony.carriers.provider import Provider
from offhook.telephony.carriers.streams.json_text import decode_base64

_COMPONENTS = frozenset(
    (
        "@request-target",
        "@authority",
        "audiohook-organization-id",
        "audiohook-session-id",
        "audiohook-correlation-id",
        "x-api-key",
    )
)


class Genesys(Provider):
    name = "genesys"
    meanings: ClassVar = {
        "account": "the organization's id",
        "secret": "the client secret (base64)",
        "api_key": "the key it sends as X-API-KEY",
    }
    required = ("secret", "api_key")
    headers = ("audiohook-", "signature")

    def check_secrets(self) -> None:
        super().check_secrets()
        if decode_base64(self.settings.secret) is None:
            raise self.settings.wrong("secret is not base64")

    def authenticate(self, request: SignedRequest, now: float, seen: Nonces) -> None:
        """HTTP message signature over the upgrade request, with the client secret."""
        if not equal(request.header("x-api-key"), self.settings.api_key):
            raise Rejected("wrong API key")
        organization = request.headers.get("audiohook-organization-id", "")
        if self.settings.account and organization != self.settings.account:
            raise Rejected("wrong organization")
        headers = (request.header("signature-input"), request.header("signature"))
        try:
            signatures = parse_signatures(*headers)
        except ValueError as error:
            raise Rejected(str(error)) from None
        reason = ""
        for signature in signatures:
            try:
                self._check(request, signature, now)
            except Rejected as error:
                reason = str(error)
                continue
            seen.add(str(signature.parameters["nonce"]))
            return
        raise Rejected(reason)

    def _check(self, request: SignedRequest, signature: HttpSignature, now: float) -> None:
        parameters = signature.parameters
        missing = _COMPONENTS.difference(signature.components)
        if missing:
            raise Rejected(f"the signature does not cover {', '.join(sorted(missing))}")
        unknown = [c for c in signature.components if c.startswith("@")]
        if not _COMPONENTS.issuperset(unknown):
            raise Rejected("the signature covers an unknown component")
        if parameters.get("alg", "hmac-sha256") != "hmac-sha256":
            raise Rejected("the signature algorithm is not hmac-sha256")
        if not equal(str(parameters.get("keyid", "")), self.settings.api_key):
            raise Rejected("the signature has another key id")
        created, expires = parameters.get("created"), parameters.get("expires", now + 1)
        if not isinstance(created, int) or isinstance(expires, str):
            raise Rejected("the signature has no creation time")
        if not isinstance(parameters.get("nonce"), str):
            raise Rejected("the signature has no nonce")
        check_age(created, now)
        if expires <= now:
            raise Rejected("the signature has expired")
        secret = base64.b64decode(self.settings.secret)
        for url in request.url_candidates:
            authority, slash, target = url.partition("://")[2].partition("/")
            values = {**request.headers, "@authority": authority, "@request-target": slash + target}
            try:
                if signature.verify(secret, values):
                    return
            except KeyError as error:
                raise Rejected(f"the signature covers {error}, which the request lacks") from None
        raise request.mismatch(self.settings)

    def stream(self, query: Mapping[str, str]) -> GenesysStream:
        return GenesysStream()
