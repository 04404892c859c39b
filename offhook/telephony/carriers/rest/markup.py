"""What a provider asks when a call is there, and what it is answered: a stream, or no call.

A webhook tells of a call in a form (Twilio, Telnyx's TeXML, Plivo), in JSON (Vonage's POST) or in
its query (Exotel, Vonage's GET). The answer is a document of the provider's own: TwiML, TeXML,
Plivo XML, an NCCO, or for Exotel the stream's URL. Genesys and Asterisk do not ask: they open the
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

_XML = "application/xml"
_JSON = "application/json"
_FORM = "application/x-www-form-urlencoded"
_TWILIO_CHARS = 500
_PLIVO_HEADERS_CHARS = 512
_PLIVO_ALLOWED = re.compile(r"[A-Za-z0-9]+")
_EXOTEL_PARAMETERS = 3
_EXOTEL_CHARS = 256
# XML 1.0 §2.2: characters that no document may have, not even escaped
_NOT_XML = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\ufffe\uffff\ud800-\udfff]")

# Names of what every webhook has, the first that is there counts: id, caller, called, event.
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


@dataclass(frozen=True, slots=True)
class Incoming:
    """What a webhook says of a call."""

    call_id: str
    """The provider's."""
    caller: str = ""
    called: str = ""
    parameters: Mapping[str, str] = field(default_factory=dict)
    """Everything else in it that is text or a number, bounded as custom parameters are."""
    event: str = ""
    """What happened, in the provider's word: "ringing", "completed"; "" for a call that comes in
    at a provider which does not say so."""


def answer(
    settings: CarrierSettings,
    stream_url: str,
    parameters: Mapping[str, str] | None = None,
    incoming: Incoming | None = None,
) -> tuple[str, str]:
    """Content type and body of the answer that connects a call with a stream.

    `parameters` come back in the stream's first message, as far as the provider carries them:
    Plivo takes letters and digits only, Twilio 500 characters with the name, Exotel three; others
    are left out. Vonage's first message does not name the call unless it is told to, of what
    `incoming` says. ValueError for a provider that does not ask.
    """
    given = dict(parameters or {})
    form = settings.format
    if form is None:
        raise ValueError(f"{settings.provider} opens its stream without being told")
    match settings.provider:
        case "twilio":
            fits = {n: v for n, v in given.items() if len(n) + len(v) < _TWILIO_CHARS}
            return _XML, _connect({"url": stream_url}, fits)
        case "telnyx":
            return _XML, _connect(_telnyx_stream(stream_url, form), given)
        case "plivo":
            return _XML, _plivo(stream_url, form, given)
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
    """Content type and body of the answer by which the caller hears that nobody is there."""
    match settings.provider:
        case "twilio" | "telnyx":
            return _XML, _document(Element("Reject", reason=reason))
        case "plivo":
            return _XML, _document(Element("Hangup", reason=reason))
        case "vonage":
            return _JSON, "[]"  # there is no word for it; a call with nothing to do ends
        case "exotel":
            return _JSON, "{}"  # without a URL its flow goes on to the next applet
        case _:
            raise ValueError(f"{settings.provider} opens its stream without asking")


def parse_webhook(
    settings: CarrierSettings, content_type: str, body: bytes, query: Mapping[str, str]
) -> Incoming:
    """What a webhook says of its call; what stands in the body goes before the query. ValueError
    when it names no call, or is not what its content type says."""
    if settings.provider not in _FIELDS:
        raise ValueError(f"{settings.provider} sends no webhooks")
    if len(query) > MAX_FIELDS:
        raise ValueError(f"more than {MAX_FIELDS} fields")
    told = dict(query) | _body_fields(content_type, body)
    found = []
    for names in _FIELDS[settings.provider]:
        name = next((name for name in names if told.get(name)), "")
        found.append(text_of(told.pop(name, ""), MAX_ID_CHARS))
    if not found[0]:
        raise ValueError("it names no call")
    told.pop(TOKEN_PARAMETER, None)  # lets its holder in: not for agents and records
    return Incoming(found[0], found[1], found[2], texts_of(told), found[3])


def _body_fields(content_type: str, body: bytes) -> Json:
    if len(body) > MAX_BODY_BYTES:
        raise ValueError(f"a body of {len(body)} bytes")
    kind = content_type.partition(";")[0].strip().lower()
    if not body:
        return {}
    if kind == _FORM:
        text = body.decode(errors="replace")
        return dict(parse_qsl(text, keep_blank_values=True, max_num_fields=MAX_FIELDS))
    if kind != _JSON:
        raise ValueError("a body that is neither a form nor JSON")
    told = read_object(body, MAX_BODY_BYTES)
    if told is None:
        raise ValueError("a body that is not a JSON object")
    return told


def _document(element: Element) -> str:
    response = Element("Response")
    response.append(element)
    text = tostring(response, encoding="unicode", short_empty_elements=True)
    return f'<?xml version="1.0" encoding="UTF-8"?>{text}'


def _connect(stream: Mapping[str, str], parameters: Mapping[str, str]) -> str:
    connect = Element("Connect")
    element = SubElement(connect, "Stream", {name: _text(stream[name]) for name in stream})
    for name, value in parameters.items():
        SubElement(element, "Parameter", name=_text(name), value=_text(value))
    return _document(connect)


def _telnyx_stream(url: str, form: Format) -> dict[str, str]:
    codec = form.encoding.upper()
    stream = {
        "url": url,
        "bidirectionalMode": "rtp",
        "bidirectionalCodec": codec,
        "bidirectionalSamplingRate": str(form.rate),
    }
    # What comes to us can be had in the codecs of calls only; otherwise it comes as it is.
    return stream if form.encoding == "l16" else stream | {"codec": codec}


def _plivo(url: str, form: Format, parameters: Mapping[str, str]) -> str:
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
    return _document(stream)


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
