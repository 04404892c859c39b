"""Twilio: webhooks answered with TwiML, whose streams are signed as well.

Source: Twilio's "Security", "TwiML for Programmable Voice" and error 31921.
"""

import base64
import hashlib
import hmac
from collections.abc import Mapping
from typing import ClassVar, Literal
from xml.etree.ElementTree import Element

from offhook.media.answer_status import Result
from offhook.telephony.carriers.auth.signatures import Nonces, Rejected, SignedRequest, equal, utf8
from offhook.telephony.carriers.markup import (
    ContinuingProvider,
    answered_by,
    connect,
    document,
    redirects,
)
from offhook.telephony.carriers.twilio.rest import TwilioApi
from offhook.telephony.carriers.twilio.stream import TwilioStream
from offhook.telephony.carriers.webhook import CallFields, Reply, WebhookCall


class Twilio(ContinuingProvider):
    name = "twilio"
    meanings: ClassVar = {
        "account": "the account's SID",
        "secret": "the auth token",
        "api_key": "an API key's SID, a colon, its secret, to be used for its REST instead of the "
        "auth token",
    }
    formats: ClassVar = {"pcmu": (8000,)}
    api = TwilioApi
    pause = "Pause"
    target_status = "DialCallStatus"
    headers = ("x-twilio-", "i-twilio-")
    fields = CallFields(("CallSid",), event=("StreamEvent", "CallStatus"))

    def authenticate(self, request: SignedRequest, now: float, seen: Nonces) -> None:
        """HMAC over the URL and the form fields sorted by name. For any other body the URL's query
        carries a hash of it."""
        given = request.header("x-twilio-signature")
        # Webhooks signed with a shared key instead of the auth token name their hash.
        settings_header = request.headers.get("x-twilio-webhooks-signature-settings", "")
        algorithm = hashlib.sha256 if "algorithm=HMAC_SHA256" in settings_header else hashlib.sha1
        if request.body and not request.form:
            digest = dict(request.query).get("bodySHA256", "")
            if not equal(digest.lower(), hashlib.sha256(request.body).hexdigest()):
                raise Rejected("the body hash does not match")
        fields = "".join(name + value for name, value in sorted(set(request.form)))
        for url in request.url_candidates:
            made = hmac.digest(utf8(self.settings.secret), utf8(url + fields), algorithm)
            if equal(given, base64.b64encode(made).decode()):
                seen.add(given)  # no nonce, but each call has its id, and each stream its ticket
                return
        raise request.mismatch(self.settings)

    def stream(self, query: Mapping[str, str]) -> TwilioStream:
        return TwilioStream()

    def answer(self, stream_url: str, call: WebhookCall, then_url: str = "") -> Reply:
        return document(connect({"url": stream_url}), *redirects(then_url))

    def answered_by(self, report: WebhookCall) -> Result | None:
        return answered_by(report)

    def refusal(self, reason: Literal["busy", "rejected"] = "busy") -> Reply:
        return document(Element("Reject", reason=reason))
