"""How each provider comes to a stream's URL: it asks a webhook, and reads the answer.

[tx-x] developers.telnyx.com/docs/voice/programmable-voice/texml-verbs/stream
[pl-x] docs.plivo.com/docs/voice/xml/audiostream
[vo-n] developer.vonage.com/en/voice/voice-api/ncco-reference, connect to a websocket
[ex-v] developer.exotel.com/docs/agentstream/stream-voicebot-applet
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace

import aiohttp

from offhook.web.app.callers.twilio import webhook_io as webhook
from offhook.web.app.callers.twilio.webhook_io import Answer, CallFacts, ask_webhook, read_xml

BY_WEBHOOK = ("twilio", "telnyx", "plivo", "vonage", "exotel")
"""The others open their stream at once."""


@dataclass(frozen=True)
class Application(webhook.Application):
    """Who is called, by which provider."""

    provider: str = "twilio"


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


def request(provider: str, facts: CallFacts) -> tuple[str, Mapping[str, str]]:
    """Method and fields of what a provider asks when a call comes in, unsigned."""
    ends = {"From": facts.caller, "To": facts.called}
    match provider:
        case "telnyx":  # [tx-x]
            return "POST", {"CallSid": facts.call_id, "AccountSid": facts.account, **ends}
        case "plivo":  # [pl-x]
            call = {"Event": "StartApp", "CallStatus": "ringing", "Direction": "inbound"}
            return "POST", {"CallUUID": facts.call_id, **ends, **call}
        case "vonage":
            ids = {"uuid": facts.call_id, "conversation_uuid": f"CON-{facts.call_id}"}
            return "GET", {**ids, "from": facts.caller, "to": facts.called}
    return "GET", {"CallSid": facts.call_id, "CallFrom": facts.caller, "CallTo": facts.called}


async def find_stream(
    http: aiohttp.ClientSession, application: Application, facts: CallFacts
) -> tuple[str, CallFacts, dict[str, str]]:
    """See `offhook.web.app.callers.twilio.webhook_io`."""
    provider = application.provider
    if provider == "twilio" or not application.webhook:
        return await webhook.find_stream(http, application, facts)
    method, fields = request(provider, facts)
    read = read_json if provider in ("vonage", "exotel") else read_xml
    answer = await ask_webhook(http, method, application.webhook, fields, {}, read)
    return answer.stream_url, replace(facts, parameters=dict(answer.parameters)), {}
