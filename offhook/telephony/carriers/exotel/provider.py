"""Exotel: a Voicebot applet that asks for the URL of its stream, known by a token or a password.

Source: Exotel's "Working with the Stream and Voicebot Applet".
"""

import json
from collections.abc import Mapping
from typing import ClassVar, Literal

from offhook.telephony.carriers.auth.signatures import Nonces, SignedRequest, check_password
from offhook.telephony.carriers.exotel.rest import ExotelApi
from offhook.telephony.carriers.exotel.stream import ExotelStream
from offhook.telephony.carriers.provider import Provider
from offhook.telephony.carriers.webhook import JSON, CallFields, Reply, WebhookCall


class Exotel(Provider):
    name = "exotel"
    meanings: ClassVar = {
        "account": "the account's SID",
        "secret": "the API token",
        "api_key": "the API key that the token belongs to",
    }
    required = ("secret", "api_key")
    required_to_dial = (*Provider.required_to_dial, "api_key")
    formats: ClassVar = {"l16": (8000, 16000, 24000)}
    api = ExotelApi
    asks = True
    proves_stream = False
    signs_urls = False
    dials_to_stream = True
    fields = CallFields(
        ("CallSid",),
        ("CallFrom", "Callfrom", "From"),
        ("CallTo", "To"),
        ("Status", "CallStatus", "EventType"),
    )

    def authenticate(self, request: SignedRequest, now: float, seen: Nonces) -> None:
        check_password(self.settings, request, self.settings.api_key)

    def stream(self, query: Mapping[str, str]) -> ExotelStream:
        return ExotelStream()

    def answer(self, stream_url: str, call: WebhookCall, then_url: str = "") -> Reply:
        if self.format.rate != 8000:
            stream_url += f"{'&' if '?' in stream_url else '?'}sample-rate={self.format.rate}"
        return Reply(JSON, json.dumps({"url": stream_url}))

    def refusal(self, reason: Literal["busy", "rejected"] = "busy") -> Reply:
        return Reply(JSON, "{}")  # without a URL the flow continues with the next applet
