"""Telnyx's REST API, version 2: calls by TeXML or Call Control, commands by Call Control.

A call placed by TeXML requests our webhook, as Twilio's do; its CallSid is its call_control_id. A
call placed by Call Control is given its stream URL at once.

Source: Telnyx's API reference ("TeXML REST commands", "Call commands") and "API error codes".
"""

from typing import ClassVar

from offhook.telephony.carriers.rest.request import (
    Api,
    Auth,
    BearerAuth,
    DialRequest,
    Response,
    RestError,
    RestRequest,
    destination,
    path_id,
)

CODECS = {"pcmu": "PCMU", "pcma": "PCMA", "l16": "L16", "opus": "OPUS"}


class TelnyxApi(Api):
    title = "Telnyx"
    default_url = "https://api.telnyx.com"
    credentials = "api_key (the API key, KEY…) and account (the application's id)"
    error_messages: ClassVar = {
        "10002": "a number is not valid: check it and its country code",
        "10010": "permission denied: check what the API key is allowed to do",
        "10016": "a number is not in the form +14155551212: check number too",
        "90015": "no call has this id",
    }
    ended_codes = frozenset(("90018",))

    def auth(self) -> Auth:
        return BearerAuth(self.require("api_key"))

    def dial(self, call: DialRequest) -> RestRequest:
        if call.stream_url:
            return self._dial_to_stream(call)
        body: dict[str, object] = {
            "To": call.to,
            "From": call.caller,
            "Url": call.webhook_url,
            "Timeout": call.ring_timeout(5, 120),
        }
        if call.status_url:
            body["StatusCallback"] = call.status_url
        path = ("v2", "texml", "calls", path_id(self.require("account"), "an application"))
        return self.request("POST", *path, json_body=body)

    def _dial_to_stream(self, call: DialRequest) -> RestRequest:
        form = self.settings.format
        if form is None:
            raise RestError(0, "the carrier has no encoding set")
        body: dict[str, object] = {
            "connection_id": self.require("account"),
            "to": call.to,
            "from": call.caller,
            "timeout_secs": call.ring_timeout(5, 600),
            "stream_url": call.stream_url,
            "stream_track": "inbound_track",
            "stream_codec": CODECS[form.encoding],
            "stream_bidirectional_mode": "rtp",
            "stream_bidirectional_codec": CODECS[form.encoding],
            "stream_bidirectional_sampling_rate": form.rate,
        }
        if call.status_url:
            body |= {"webhook_url": call.status_url, "webhook_url_method": "POST"}
        return self.request("POST", "v2", "calls", json_body=body)

    def hang_up(self, call_id: str) -> RestRequest:
        return self._command(call_id, "hangup", {})

    def transfer(self, call_id: str, target: str, outcome_url: str = "") -> RestRequest:
        return self._command(call_id, "transfer", {"to": destination(target)})

    def _command(self, call_id: str, name: str, body: dict[str, object]) -> RestRequest:
        return self.request(
            "POST", "v2", "calls", path_id(call_id), "actions", name, json_body=body
        )

    def call_id(self, answer: Response) -> object:
        data = answer.get("data", answer)
        if not isinstance(data, dict):
            return None
        return data.get("call_control_id") or data.get("call_sid")

    def read_error(self, answer: Response) -> tuple[object, object]:
        errors = answer.get("errors")
        first = errors[0] if isinstance(errors, list) and errors else None
        if not isinstance(first, dict):
            return "", ""
        return first.get("code", ""), first.get("detail") or first.get("title", "")
