"""How the provider comes to a stream's URL: it asks a webhook, and reads the answer.

[tw-s] twilio.com/docs/usage/security: the signature of a webhook and of a stream's request
[tw-x] twilio.com/docs/voice/twiml/stream
"""

import base64
import hashlib
import hmac
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from xml.etree import ElementTree

import aiohttp

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
    """[tw-x] Reads the document of the provider, or of one that writes its verbs in the same way.
    Raises ValueError when it is none."""
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


async def ask_webhook(
    http: aiohttp.ClientSession,
    method: str,
    url: str,
    fields: Mapping[str, str],
    headers: Mapping[str, str],
    read: Callable[[str], Answer] = read_xml,
) -> Answer:
    """A call comes in. Raises Refused when it gets no stream."""
    given = {"data": fields} if method == "POST" else {"params": fields}
    timeout = aiohttp.ClientTimeout(WEBHOOK_S)
    try:
        async with http.request(method, url, headers=headers, timeout=timeout, **given) as response:  # type: ignore[arg-type]
            text = await response.text()
            if response.status != 200:
                raise Refused(f"{url}: {response.status} {text[:200]}")
            answer = read(text)
    except (aiohttp.ClientError, TimeoutError, ValueError, LookupError) as error:
        raise Refused(f"{url}: {error or 'no answer'}") from error
    if not answer.stream_url:
        raise Refused(f"{url}: {answer.instead or 'nothing'} instead of a stream")
    return answer


@dataclass(frozen=True)
class Application:
    """Who is called: a webhook, or where there is none a stream's URL at once."""

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
    url, secret = application.webhook, application.secret
    form = {
        "CallSid": facts.call_id,
        "AccountSid": facts.account,
        "From": facts.caller,
        "To": facts.called,
        "CallStatus": "ringing",
        "Direction": "inbound",
    }
    signed = {"X-Twilio-Signature": twilio_signature(secret, url, form)}
    answer = await ask_webhook(http, "POST", url, form, signed)
    signed = {"X-Twilio-Signature": twilio_signature(secret, answer.stream_url)}
    return answer.stream_url, replace(facts, parameters=dict(answer.parameters)), signed
