"""How a provider comes to a stream's URL: it asks a webhook, and reads the answer.

[tw-s] twilio.com/docs/usage/security: the signature of a webhook and of a stream's request
[tw-x] twilio.com/docs/voice/twiml/stream
[tx-x] developers.telnyx.com/docs/voice/programmable-voice/texml-verbs/stream
[pl-x] docs.plivo.com/docs/voice/xml/audiostream
[vo-n] developer.vonage.com/en/voice/voice-api/ncco-reference, connect to a websocket
[ex-v] developer.exotel.com/docs/agentstream/stream-voicebot-applet
"""

import base64
import hashlib
import hmac
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from xml.etree import ElementTree

import aiohttp

BY_WEBHOOK = ("twilio", "telnyx", "plivo", "vonage", "exotel")
"""The others open their stream at once."""
WEBHOOK_S = 15
"""[tw-s]: Twilio waits no longer for an answer."""
CONNECT_S = 10


class Refused(ConnectionError):
    """Raised when the application does not take a call or its stream; the text says why."""


@dataclass(frozen=True)
class CallFacts:
    """What the provider tells of a call."""

    stream_id: str = "MZ0123456789abcdef0123456789abcdef"
    call_id: str = "CA0123456789abcdef0123456789abcdef"
    account: str = "AC0123456789abcdef0123456789abcdef"
    caller: str = "+13125550100"
    called: str = "+13125550199"
    parameters: Mapping[str, str] = field(default_factory=dict)


def twilio_signature(secret: str, url: str, form: Mapping[str, str] | None = None) -> str:
    """[tw-s]: HMAC-SHA1 over the URL and the form's fields by name, in base64."""
    text = url + "".join(f"{name}{value}" for name, value in sorted((form or {}).items()))
    digest = hmac.new(secret.encode(), text.encode(), hashlib.sha1).digest()
    return base64.b64encode(digest).decode()


@dataclass(frozen=True)
class Answer:
    """What a webhook made of a call."""

    stream_url: str = ""
    """Empty: no stream."""
    parameters: Mapping[str, str] = field(default_factory=dict)
    """To be told by the stream."""
    instead: str = ""
    """What is done where there is no stream."""


def read_xml(text: str) -> Answer:
    """[tw-x] [tx-x] [pl-x]. Raises ValueError when it is none of them."""
    try:
        root = ElementTree.fromstring(text)
    except ElementTree.ParseError as error:
        raise ValueError(f"not XML: {error}") from error
    if root.tag != "Response":
        raise ValueError(f"not a Response but a {root.tag}")
    stream = root.find(".//Stream")
    if stream is None:
        return Answer(instead=root[0].tag if len(root) else "")
    given = {p.get("name", ""): p.get("value", "") for p in stream.findall("Parameter")}
    headers = stream.get("extraHeaders", "")
    given |= dict(pair.split("=", 1) for pair in headers.split(",") if "=" in pair)
    return Answer(stream.get("url") or (stream.text or "").strip(), given)


def read_json(text: str) -> Answer:
    """[vo-n] [ex-v]. Raises ValueError when it is none of them."""
    read = json.loads(text)
    if isinstance(read, dict):
        return Answer(str(read.get("url") or ""), instead="no url")
    for action in read:
        if action.get("action") == "connect":
            endpoint = action["endpoint"][0]
            return Answer(endpoint["uri"], endpoint.get("headers") or {})
    return Answer(instead="no connect")


def request(
    provider: str, facts: CallFacts, secret: str, url: str
) -> tuple[str, Mapping[str, str], dict[str, str]]:
    """Method, fields and headers of what a provider asks when a call comes in."""
    ends = {"From": facts.caller, "To": facts.called}
    call = {"CallStatus": "ringing", "Direction": "inbound"}
    match provider:
        case "twilio":
            form = {"CallSid": facts.call_id, "AccountSid": facts.account, **ends, **call}
            signature = twilio_signature(secret, url, form)
            return "POST", form, {"X-Twilio-Signature": signature}
        case "telnyx":
            return "POST", {"CallSid": facts.call_id, "AccountSid": facts.account, **ends}, {}
        case "plivo":
            return "POST", {"CallUUID": facts.call_id, "Event": "StartApp", **ends, **call}, {}
        case "vonage":
            ids = {"uuid": facts.call_id, "conversation_uuid": f"CON-{facts.call_id}"}
            return "GET", {**ids, "from": facts.caller, "to": facts.called}, {}
    fields = {"CallSid": facts.call_id, "CallFrom": facts.caller, "CallTo": facts.called}
    return "GET", fields, {}


async def ask_webhook(
    http: aiohttp.ClientSession, provider: str, url: str, facts: CallFacts, secret: str = ""
) -> Answer:
    """A call comes in. Raises Refused when it gets no stream."""
    method, fields, headers = request(provider, facts, secret, url)
    given = {"data": fields} if method == "POST" else {"params": fields}
    timeout = aiohttp.ClientTimeout(WEBHOOK_S)
    try:
        async with http.request(method, url, headers=headers, timeout=timeout, **given) as response:  # type: ignore[arg-type]
            text = await response.text()
            if response.status != 200:
                raise Refused(f"{url}: {response.status} {text[:200]}")
            answer = read_json(text) if "json" in response.content_type else read_xml(text)
    except (aiohttp.ClientError, TimeoutError, ValueError, LookupError) as error:
        raise Refused(f"{url}: {error or 'no answer'}") from error
    if not answer.stream_url:
        raise Refused(f"{url}: {answer.instead or 'nothing'} instead of a stream")
    return answer


@dataclass(frozen=True)
class Application:
    """Who is called: a webhook, or where there is none a stream's URL at once."""

    provider: str = "twilio"
    webhook: str = ""
    secret: str = ""
    stream: str = ""


async def find_stream(
    http: aiohttp.ClientSession, application: Application, facts: CallFacts
) -> tuple[str, CallFacts, dict[str, str]]:
    """The URL to be opened, the call with what the stream is to tell of it, and the headers to ask
    with. Raises Refused."""
    if not application.webhook:
        return application.stream, facts, {}
    answer = await ask_webhook(
        http, application.provider, application.webhook, facts, application.secret
    )
    headers = {}
    if application.provider == "twilio":
        signature = twilio_signature(application.secret, answer.stream_url)
        headers["X-Twilio-Signature"] = signature
    return answer.stream_url, replace(facts, parameters=dict(answer.parameters)), headers
