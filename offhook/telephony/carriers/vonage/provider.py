"""Vonage: webhooks signed with a token, answered with an NCCO.

Source: Vonage's "Webhooks", "NCCO reference" and "Signed webhooks".
"""

import hashlib
import json
from collections.abc import Mapping
from typing import ClassVar, Literal

from offhook.media.answer_status import Result
from offhook.telephony.carriers.auth.signatures import (
    Nonces,
    Rejected,
    SignedRequest,
    check_age,
    equal,
    utf8,
)
from offhook.telephony.carriers.provider import Provider
from offhook.telephony.carriers.vonage.json_web_token import is_numeric_date, verify_token
from offhook.telephony.carriers.vonage.rest import VonageApi
from offhook.telephony.carriers.vonage.stream import VonageStream
from offhook.telephony.carriers.webhook import JSON, CallFields, Reply, WebhookCall


class Vonage(Provider):
    name = "vonage"
    meanings: ClassVar = {
        "account": "the application's id",
        "secret": "the signature secret",
        "api_key": "the application's private key (PEM, or its file's name)",
    }
    required_to_dial = (*Provider.required_to_dial, "api_key")
    formats: ClassVar = {"l16": (16000, 8000, 24000)}
    api = VonageApi
    asks = True
    proves_stream = False
    reports = True
    fields = CallFields(("uuid",), ("from", "from_user"), ("to",), ("status",))

    def authenticate(self, request: SignedRequest, now: float, seen: Nonces) -> None:
        """A JWT (HS256) whose claims include a hash of the content."""
        scheme, _, token = request.header("authorization").partition(" ")
        if scheme.lower() != "bearer":
            raise Rejected("no signed token in Authorization")
        account, secret = self.settings.account, self.settings.secret
        try:
            claims, signed = verify_token(token.strip(), utf8(secret))
        except ValueError as error:
            raise Rejected(str(error)) from None
        issued, expires = claims.get("iat"), claims.get("exp", now + 1)
        if not is_numeric_date(issued) or not is_numeric_date(expires):
            raise Rejected("the token has no issue time")
        check_age(issued, now)
        if expires <= now:
            raise Rejected("the token has expired")
        if account and claims.get("application_id", account) != account:
            raise Rejected("the token is for another application")
        _check_payload(claims.get("payload_hash"), request)
        seen.add(signed)

    def stream(self, query: Mapping[str, str]) -> VonageStream:
        return VonageStream()

    def answer(self, stream_url: str, call: WebhookCall, then_url: str = "") -> Reply:
        endpoint = {
            "type": "websocket",
            "uri": stream_url,
            "content-type": f"audio/l16;rate={self.format.rate}",
            # All that the stream's first message will say of the call.
            "headers": {"uuid": call.call_id, "from": call.caller, "to": call.called},
        }
        return Reply(JSON, json.dumps([{"action": "connect", "endpoint": [endpoint]}]))

    def answered_by(self, report: WebhookCall) -> Result | None:
        if report.event == "machine":
            beeped = report.parameters.get("sub_state") == "beep_start"
            return "machine_end" if beeped else "machine"
        return "human" if report.event == "human" else None

    def refusal(self, reason: Literal["busy", "rejected"] = "busy") -> Reply:
        return Reply(JSON, "[]")  # NCCO has no reject action; a call with nothing to do ends


def _check_payload(claimed: object, request: SignedRequest) -> None:
    content = request.body
    if not content and request.query:
        if claimed is None:
            raise Rejected("the query is not signed: set the webhook's method to POST")
        # for a GET the hash covers the query, written as JSON
        query = json.dumps(dict(request.query), separators=(",", ":"), ensure_ascii=False)
        content = utf8(query)
    made = hashlib.sha256(content).hexdigest()
    if not isinstance(claimed, str) or not equal(claimed.lower(), made):
        raise Rejected("the body hash does not match")
