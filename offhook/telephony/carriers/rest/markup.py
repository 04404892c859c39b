"""Parses the webhooks of providers and builds the responses: connect a stream, or reject the call.

A webhook describes a call in a form (Twilio, Telnyx's TeXML, Plivo), in JSON (Vonage's POST) or in
its query (Exotel, Vonage's GET). The response is the provider's own document: TwiML, TeXML, Plivo
XML, an NCCO, or for Exotel the stream's URL. Genesys and Asterisk send no webhook: they open the
stream at once.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal
from urllib.parse import parse_qsl, urlencode
from xml.etree.ElementTree import Element, SubElement, tostring

from offhook.telephony.carriers.auth.signatures import MAX_BODY_BYTES, MAX_FIELDS, TOKEN_PARAMETER
from offhook.telephony.carriers.settings import CarrierSettings, Provider
from offhook.telephony.carriers.streams.json_text import (
    MAX_ID_CHARS,
    Json,
    read_object,
    text_of,
    texts_of,
)
from offhook.telephony.carriers.streams.stream import Format

CONTINUING: tuple[Provider, ...] = ("twilio", "plivo")
"""Providers documented to follow the rest of their instructions once our side closes the stream
(Twilio: error 31921; Plivo: keepCallAlive)."""
REPORTING: tuple[Provider, ...] = ("twilio", "plivo", "vonage")
"""Providers that say how a transfer has ended, and ask what to do next."""
RETRY_S = 1
"""Pause in s until a provider asks again."""

_XML = "application/xml"
_JSON = "application/json"
_FORM = "application/x-www-form-urlencoded"
_TWILIO_CHARS = 500
_PLIVO_HEADERS_CHARS = 512
_PLIVO_ALLOWED = re.compile(r"[A-Za-z0-9]+")
_EXOTEL_PARAMETERS = 3
_EXOTEL_CHARS = 256
# XML 1.0 §2.2: characters not allowed in a document, not even escaped
_NOT_XML = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\ufffe\uffff\ud800-\udfff]")

# Field names by provider; the first present counts: id, caller, called, event.
_FIELDS: Mapping[Provider, tuple[tuple[str, ...], ...]] = {
    "twilio": (("CallSid",), ("From",), ("To",), ("StreamEvent", "CallStatus")),
    "telnyx": (("CallSid",), ("From",), ("To",), ("StreamEvent", "CallStatus")),
    "plivo": (("CallUUID",), ("From",), ("To",), ("CallStatus", "Event")),
    "vonage": (("uuid",), ("from", "from_user"), ("to",), ("status",)),
    "exotel": (
        ("CallSid",),
        ("CallFrom", "Callfrom", "From"),
        ("CallTo", "To"),
        ("Status", "CallStatus", "EventType"),
    ),
}

# Where the status of the target's call is; elsewhere it is the event itself.
_DIAL_STATUS: Mapping[Provider, str] = {"twilio": "DialCallStatus", "plivo": "DialStatus"}


@dataclass(frozen=True, slots=True)
class WebhookCall:
    """What a webhook says about a call."""

    call_id: str
    """The provider's id of the call."""
    caller: str = ""
    called: str = ""
    parameters: Mapping[str, str] = field(default_factory=dict)
    """All other fields that are text or numbers, limited like custom parameters."""
    event: str = ""
    """The provider's name for what happened: "ringing", "completed"; "" if it does not say."""


def answer(
    settings: CarrierSettings,
    stream_url: str,
    parameters: Mapping[str, str] | None = None,
    incoming: WebhookCall | None = None,
    then_url: str = "",
) -> tuple[str, str]:
    """Return content type and body of the response that connects a call to a stream. Once our side
    closes the stream, a provider of `CONTINUING` asks `then_url` what to do next.

    `parameters` come back in the stream's first message, as far as the provider supports them:
    Plivo accepts letters and digits only, Twilio 500 characters including the name, Exotel three;
    others are dropped. Vonage's first message identifies the call only by parameters, taken from
    `incoming`. Raises ValueError for a provider without webhooks.
    """
    given = dict(parameters or {})
    form = settings.format
    if form is None:
        raise ValueError(f"{settings.provider} opens its stream without a webhook")
    match settings.provider:
        case "twilio":
            fits = {n: v for n, v in given.items() if len(n) + len(v) < _TWILIO_CHARS}
            return _XML, _connect({"url": stream_url}, fits, then_url)
        case "telnyx":
            return _XML, _connect(_telnyx_stream(stream_url, form), given)
        case "plivo":
            return _XML, _plivo(stream_url, form, given, then_url)
        case "vonage":
            if incoming is not None:
                given |= {
                    "uuid": incoming.call_id,
                    "from": incoming.caller,
                    "to": incoming.called,
                }
            return _JSON, _ncco(stream_url, form, given)
        case _:
            return _JSON, json.dumps({"url": _exotel_url(stream_url, form, given)})


def refusal(
    settings: CarrierSettings, reason: Literal["busy", "rejected"] = "busy"
) -> tuple[str, str]:
    """Return content type and body of the response that rejects a call."""
    match settings.provider:
        case "twilio" | "telnyx":
            return _XML, _document(Element("Reject", reason=reason))
        case "plivo":
            return _XML, _document(Element("Hangup", reason=reason))
        case "vonage":
            return _JSON, "[]"  # NCCO has no reject action; a call with nothing to do ends
        case "exotel":
            return _JSON, "{}"  # without a URL the flow continues with the next applet
        case _:
            raise ValueError(f"{settings.provider} opens its stream without a webhook")


def retry(settings: CarrierSettings, url: str) -> tuple[str, str]:
    """Return content type and body of the response that has a provider of `CONTINUING` ask `url` a
    moment later."""
    wait = Element("Pause" if settings.provider == "twilio" else "Wait", length=str(RETRY_S))
    return _XML, _document(wait, _redirect(url))


def hang_up() -> tuple[str, str]:
    """Return content type and body of the response that has a provider of `CONTINUING` end a
    call."""
    return _XML, _document(Element("Hangup"))


def parse_webhook(
    settings: CarrierSettings, content_type: str, body: bytes, query: Mapping[str, str]
) -> WebhookCall:
    """Parse a webhook; fields of the body take precedence over the query. Raises ValueError if it
    names no call or is malformed."""
    if settings.provider not in _FIELDS:
        raise ValueError(f"{settings.provider} sends no webhooks")
    if len(query) > MAX_FIELDS:
        raise ValueError(f"more than {MAX_FIELDS} fields")
    fields = dict(query) | _body_fields(content_type, body)
    found = []
    for names in _FIELDS[settings.provider]:
        name = next((name for name in names if fields.get(name)), "")
        found.append(text_of(fields.pop(name, ""), MAX_ID_CHARS))
    if not found[0]:
        raise ValueError("the webhook names no call")
    fields.pop(TOKEN_PARAMETER, None)  # a credential: not for agents and records
    return WebhookCall(found[0], found[1], found[2], texts_of(fields), found[3])


def dial_status(settings: CarrierSettings, report: WebhookCall) -> str:
    """Return how the call to the target of a transfer goes, in the provider's words: "busy",
    "completed"; "" if the webhook does not say."""
    field = _DIAL_STATUS.get(settings.provider)
    return report.event if field is None else report.parameters.get(field, "")


def caller_status(settings: CarrierSettings, report: WebhookCall) -> str:
    """Return the status of the call that was transferred, from the same webhook; "" if it does not
    say."""
    return report.event if settings.provider in _DIAL_STATUS else ""


def _body_fields(content_type: str, body: bytes) -> Json:
    if len(body) > MAX_BODY_BYTES:
        raise ValueError(f"body of {len(body)} bytes is too large")
    kind = content_type.partition(";")[0].strip().lower()
    if not body:
        return {}
    if kind == _FORM:
        text = body.decode(errors="replace")
        return dict(parse_qsl(text, keep_blank_values=True, max_num_fields=MAX_FIELDS))
    if kind != _JSON:
        raise ValueError("the body is neither a form nor JSON")
    fields = read_object(body, MAX_BODY_BYTES)
    if fields is None:
        raise ValueError("the body is not a JSON object")
    return fields


def _document(*elements: Element) -> str:
    response = Element("Response")
    response.extend(elements)
    text = tostring(response, encoding="unicode", short_empty_elements=True)
    return f'<?xml version="1.0" encoding="UTF-8"?>{text}'


def _redirect(url: str) -> Element:
    element = Element("Redirect", method="POST")
    element.text = _text(url)
    return element


def _connect(stream: Mapping[str, str], parameters: Mapping[str, str], then_url: str = "") -> str:
    connect = Element("Connect")
    element = SubElement(connect, "Stream", {name: _text(stream[name]) for name in stream})
    for name, value in parameters.items():
        SubElement(element, "Parameter", name=_text(name), value=_text(value))
    return _document(connect, *([_redirect(then_url)] if then_url else []))


def _telnyx_stream(url: str, form: Format) -> dict[str, str]:
    codec = form.encoding.upper()
    stream = {
        "url": url,
        "bidirectionalMode": "rtp",
        "bidirectionalCodec": codec,
        "bidirectionalSamplingRate": str(form.rate),
    }
    # Telnyx transcodes received audio to telephony codecs only; otherwise it arrives as it is.
    return stream if form.encoding == "l16" else stream | {"codec": codec}


def _plivo(url: str, form: Format, parameters: Mapping[str, str], then_url: str) -> str:
    kind = "audio/x-mulaw" if form.encoding == "pcmu" else "audio/x-l16"
    stream = Element(
        "Stream",
        bidirectional="true",
        keepCallAlive="true",
        contentType=f"{kind};rate={form.rate}",
    )
    headers = ""
    for name, value in parameters.items():
        longer = f"{headers},{name}={value}" if headers else f"{name}={value}"
        allowed = _PLIVO_ALLOWED.fullmatch(name) and _PLIVO_ALLOWED.fullmatch(value)
        if allowed and len(longer) <= _PLIVO_HEADERS_CHARS:
            headers = longer
    if headers:
        stream.set("extraHeaders", headers)
    stream.text = _text(url)
    return _document(stream, *([_redirect(then_url)] if then_url else []))


def _ncco(url: str, form: Format, parameters: Mapping[str, str]) -> str:
    endpoint = {
        "type": "websocket",
        "uri": url,
        "content-type": f"audio/l16;rate={form.rate}",
        "headers": dict(parameters),
    }
    return json.dumps([{"action": "connect", "endpoint": [endpoint]}])


def _exotel_url(url: str, form: Format, parameters: Mapping[str, str]) -> str:
    query = {} if form.rate == 8000 else {"sample-rate": str(form.rate)}
    for name, value in list(parameters.items())[:_EXOTEL_PARAMETERS]:
        longer = query | {name: value}
        if len(urlencode(longer)) <= _EXOTEL_CHARS:
            query = longer
    return f"{url}{'&' if '?' in url else '?'}{urlencode(query)}" if query else url


def _text(text: str) -> str:
    return _NOT_XML.sub("", text)
