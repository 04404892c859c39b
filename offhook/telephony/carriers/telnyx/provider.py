"""Telnyx: webhooks of TeXML applications, and those of Call Control after a transfer.

A transfer is a command of Call Control, which reports on it in JSON. The target's call carries our
`target_leg_client_state`, by which it is told from the caller's; if it ends without an answer the
caller's call goes on, and is connected to a stream by another command.

Source: Telnyx's "TeXML", "Webhook fundamentals", "Transfer call" and "Streaming start".
"""

import base64
import hashlib
import re
from collections.abc import Mapping
from typing import ClassVar, Literal
from xml.etree.ElementTree import Element

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from offhook.media.answer_status import Result
from offhook.telephony.carriers.auth.signatures import (
    Nonces,
    Rejected,
    SignedRequest,
    check_age,
    utf8,
)
from offhook.telephony.carriers.markup import answered_by, connect, document
from offhook.telephony.carriers.provider import Provider
from offhook.telephony.carriers.streams.json_text import (
    MAX_ID_CHARS,
    Json,
    decode_base64,
    text_of,
    texts_of,
)
from offhook.telephony.carriers.telnyx.rest import TRANSFER_STATE, TelnyxApi
from offhook.telephony.carriers.telnyx.stream import TelnyxStream
from offhook.telephony.carriers.webhook import CallFields, Reply, WebhookCall, read_fields

ED25519_KEY_BYTES = 32
TARGET = "target"
"""Parameter of a webhook about the call to a transfer's target."""

_TIMESTAMP = re.compile(r"[0-9]{1,12}")
_EVENTS: Mapping[str, str] = {
    "call.initiated": "initiated",
    "call.ringing": "ringing",
    "call.answered": "answered",
    "call.bridged": "answered",
}
"""Events of Call Control in the words of TeXML's CallStatus."""
_DETECTED = ("call.machine.detection.ended", "call.machine.greeting.ended")
_RESULTS: Mapping[str, Result] = {
    "human": "human",
    "human_residence": "human",
    "human_business": "human",
    "machine": "machine",
    "beep_detected": "machine_end",
    "ended": "machine_end",
    "fax_detected": "fax",
    "not_sure": "unknown",
    "silence": "unknown",
}
"""Results of Call Control's machine detection."""
_CAUSES: Mapping[str, str] = {
    "normal_clearing": "completed",
    "time_limit": "completed",
    "user_busy": "busy",
    "timeout": "no-answer",
    "no_answer": "no-answer",
    "call_rejected": "rejected",
    "originator_cancel": "canceled",
}
"""Likewise the causes of `call.hangup`; any other is a failure."""


class Telnyx(Provider):
    name = "telnyx"
    meanings: ClassVar = {
        "account": "the TeXML application's id",
        "secret": "the public key of what it signs (base64)",
        "api_key": "the API key",
    }
    required_to_dial = (*Provider.required_to_dial, "api_key")
    formats: ClassVar = {
        "pcmu": (8000,),
        "pcma": (8000,),
        "l16": (16000, 8000, 24000),
        "opus": (48000,),
    }
    api = TelnyxApi
    asks = True
    proves_stream = False
    renames_calls = True
    reports = True
    headers = ("telnyx-",)
    fields = CallFields(("CallSid",), event=("StreamEvent", "CallStatus"))

    def check_secrets(self) -> None:
        super().check_secrets()
        key = decode_base64(self.settings.secret)
        if key is None:
            raise self.settings.wrong("secret is not base64")
        if len(key) != ED25519_KEY_BYTES:
            raise self.settings.wrong("secret must be Telnyx's public key, 32 bytes in base64")

    def authenticate(self, request: SignedRequest, now: float, seen: Nonces) -> None:
        """Ed25519 over the time and the body. The URL is not covered, so it proves nothing."""
        given = request.header("telnyx-signature-ed25519")
        timestamp = request.header("telnyx-timestamp")
        if not _TIMESTAMP.fullmatch(timestamp):
            raise Rejected("telnyx-timestamp is not a timestamp")
        if not request.body:
            raise Rejected("an empty body is not signed: set Telnyx to POST")
        check_age(float(timestamp), now)
        try:
            signature = base64.b64decode(given, validate=True)
            key = Ed25519PublicKey.from_public_bytes(base64.b64decode(self.settings.secret))
            key.verify(signature, utf8(timestamp) + b"|" + request.body)
        except (ValueError, InvalidSignature):
            raise Rejected("the signature does not match Telnyx's public key") from None
        seen.add(f"{timestamp}|{hashlib.sha256(request.body).hexdigest()}")

    def stream(self, query: Mapping[str, str]) -> TelnyxStream:
        return TelnyxStream(self.format)

    def parse_webhook(
        self, content_type: str, body: bytes, query: Mapping[str, str]
    ) -> WebhookCall:
        fields = read_fields(content_type, body, query)
        event = fields.get("data")
        return _call_event(event) if isinstance(event, dict) else self.fields.read(fields)

    def answer(self, stream_url: str, call: WebhookCall, then_url: str = "") -> Reply:
        form = self.format
        codec = form.encoding.upper()
        stream = {
            "url": stream_url,
            "bidirectionalMode": "rtp",
            "bidirectionalCodec": codec,
            "bidirectionalSamplingRate": str(form.rate),
        }
        # Telnyx transcodes received audio to telephony codecs only; otherwise it arrives as it is.
        return document(connect(stream if codec == "L16" else stream | {"codec": codec}))

    def refusal(self, reason: Literal["busy", "rejected"] = "busy") -> Reply:
        return document(Element("Reject", reason=reason))

    def answered_by(self, report: WebhookCall) -> Result | None:
        if report.event in _DETECTED:
            return _RESULTS.get(report.parameters.get("result", ""))
        return answered_by(report)

    def dial_status(self, report: WebhookCall) -> str:
        return report.event if TARGET in report.parameters else ""

    def caller_status(self, report: WebhookCall) -> str:
        return "" if TARGET in report.parameters else report.event


def _call_event(event: Json) -> WebhookCall:
    """Return what an event of Call Control says of a call: if it is about the target of a transfer,
    of the call that was transferred. Raises ValueError if it names none."""
    payload = event.get("payload")
    payload = payload if isinstance(payload, dict) else {}
    kind = text_of(event.get("event_type"), MAX_ID_CHARS)
    if kind == "call.hangup":
        said = _CAUSES.get(text_of(payload.get("hangup_cause"), MAX_ID_CHARS), "failed")
    else:
        said = _EVENTS.get(kind, kind)
    state = (decode_base64(payload.get("client_state")) or b"").decode(errors="replace")
    parameters = texts_of(payload)
    if state.startswith(TRANSFER_STATE):
        parameters[TARGET] = text_of(payload.get("to"), MAX_ID_CHARS)
        return WebhookCall(state.removeprefix(TRANSFER_STATE), "", "", parameters, said)
    call_id = text_of(payload.get("call_control_id"), MAX_ID_CHARS)
    if not call_id:
        raise ValueError("the webhook names no call")
    caller, called = (text_of(payload.get(name), MAX_ID_CHARS) for name in ("from", "to"))
    return WebhookCall(call_id, caller, called, parameters, said)
