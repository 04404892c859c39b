"""Plivo: webhooks answered with Plivo XML.

Source: Plivo's "Validating requests", "Plivo XML" and, of keepCallAlive, "Audio streaming".
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
    XML,
    ContinuingProvider,
    document,
    redirects,
    xml_text,
)
from offhook.telephony.carriers.plivo.rest import TRANSFER_PARAMETER, PlivoApi, transfer_markup
from offhook.telephony.carriers.plivo.stream import PlivoStream
from offhook.telephony.carriers.rest.request import RestError
from offhook.telephony.carriers.webhook import CallFields, Reply, WebhookCall


class Plivo(ContinuingProvider):
    name = "plivo"
    meanings: ClassVar = {"account": "the auth id", "secret": "the auth token"}
    formats: ClassVar = {"pcmu": (8000,), "l16": (16000, 8000)}
    api = PlivoApi
    proves_stream = False
    pause = "Wait"
    target_status = "DialStatus"
    headers = ("x-plivo-",)
    fields = CallFields(("CallUUID",), event=("CallStatus", "Event"))

    def authenticate(self, request: SignedRequest, now: float, seen: Nonces) -> None:
        """HMAC over URL, fields and a nonce (V3), by the account or its main account. Without a V3
        header, if the settings accept that: over URL and nonce alone (V2)."""
        version = "v3" if "x-plivo-signature-v3-nonce" in request.headers else "v2"
        if version == "v2" and not self.settings.signature_v2:
            raise Rejected("no x-plivo-signature-v3 header; V2 signs no fields: see signature_v2")
        nonce = request.header(f"x-plivo-signature-{version}-nonce")
        names = (f"x-plivo-signature-{version}", f"x-plivo-signature-ma-{version}")
        given = [s.strip() for name in names for s in request.headers.get(name, "").split(",")]
        if not any(given):
            raise Rejected(f"no {names[0]} header")
        if request.body and not request.form:
            raise Rejected("a body that is not a form is not signed")
        for url in request.url_candidates:
            if version == "v3":
                text = f"{_signed_text(url, request)}.{nonce}"
            else:
                text = url.partition("?")[0] + nonce
            made = hmac.digest(utf8(self.settings.secret), utf8(text), hashlib.sha256)
            expected = base64.b64encode(made).decode()
            if any([equal(signature, expected) for signature in given]):
                break
        else:
            raise request.mismatch(self.settings)
        # Both nonces: otherwise a V3 request could be replayed with its V2 signature alone.
        nonces = (request.headers.get(f"x-plivo-signature-{v}-nonce", "") for v in ("v2", "v3"))
        seen.add(*(set(nonces) - {""}))

    def stream(self, query: Mapping[str, str]) -> PlivoStream:
        return PlivoStream()

    def answer(self, stream_url: str, call: WebhookCall, then_url: str = "") -> Reply:
        form = self.format
        kind = "audio/x-mulaw" if form.encoding == "pcmu" else "audio/x-l16"
        stream = Element(
            "Stream",
            bidirectional="true",
            keepCallAlive="true",
            contentType=f"{kind};rate={form.rate}",
        )
        stream.text = xml_text(stream_url)
        return document(stream, *redirects(then_url))

    def answered_by(self, report: WebhookCall) -> Result | None:
        said = report.parameters.get("Machine", "").lower()
        return {"true": "machine", "false": "human"}.get(said)  # type: ignore[return-value]

    def refusal(self, reason: Literal["busy", "rejected"] = "busy") -> Reply:
        return document(Element("Hangup", reason=reason))

    def transfer_answer(self, query: Mapping[str, str], outcome_url: str) -> Reply | None:
        target = query.get(TRANSFER_PARAMETER)
        if target is None:
            return None
        try:
            return Reply(XML, transfer_markup(target, outcome_url))
        except RestError as fault:
            return Reply(text=str(fault), status=400)


def _signed_text(url: str, request: SignedRequest) -> str:
    """Join the URL with its sorted query and the sorted fields, as the V3 signature does."""
    base = url.partition("?")[0]
    query = "&".join(f"{name}={value}" for name, value in sorted(request.query))
    if request.method == "GET" or not request.form:
        return f"{base}?{query}" if query else base
    fields = "".join(name + value for name, value in sorted(request.form))
    return f"{base}?{query}{'.' if query else ''}{fields}"
